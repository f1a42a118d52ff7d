//! Reading the log beside its writer, from any thread: a follower that fell behind, a body that left memory, a state that
//! is built anew. A reader sees what is written, durable or not. A cut or a replaced log while it reads is an error, never
//! wrong data: the log's version is compared after each read.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use understudy_record::{Frame, FrameKind, Index, Position, StoreId};

use crate::checkpoint;
use crate::error::Failure;
use crate::order;
use crate::recovery::{Visit, VisitError};
use crate::segment::{Cursor, Item, SEGMENT_HEADER_BYTES, ScanError, SegmentId, SegmentKind};
use crate::store_map::StoreMap;
use crate::{Storage, StorageFile};

/// How far apart a segment's signposts stand: a read from an arbitrary index passes over that much at most, and a segment
/// of 64 MiB has a few thousand of them.
pub(crate) const SIGNPOST_BYTES: u64 = 16 << 10;

/// Times a read of messages begins anew because a checkpoint moved them meanwhile. Each is a whole checkpoint's work, so
/// more than one in a row is a fault.
const MOVES_BORNE: usize = 8;

/// What is known of a segment without reading it.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub(crate) id: SegmentId,
    /// The first record in it or after it.
    pub(crate) first: Index,
    pub(crate) len: u64,
    /// Offsets where an item begins, with the record that comes next there.
    pub(crate) signposts: Vec<(Index, u64)>,
}

impl Segment {
    /// One that has its header only.
    pub(crate) fn new(id: SegmentId, first: Index) -> Self {
        Self { id, first, len: SEGMENT_HEADER_BYTES, signposts: vec![(first, SEGMENT_HEADER_BYTES)] }
    }

    /// One that is whole and was not read: it has no signposts until somebody looks for something in it.
    pub(crate) fn unread(id: SegmentId, first: Index, len: u64) -> Self {
        Self { id, first, len, signposts: Vec::new() }
    }

    /// A frame begins at `offset`, and no record before `next` comes after it.
    pub(crate) fn note(&mut self, next: Index, offset: u64) {
        let last = self.signposts.last().map_or(0, |(_, offset)| *offset);
        if offset >= last + SIGNPOST_BYTES {
            self.signposts.push((next, offset));
        }
    }

    /// An offset at or before record `index`, which is in this segment.
    pub(crate) fn signpost(&self, index: Index) -> u64 {
        signpost(&self.signposts, index).0
    }

    pub(crate) fn cut(&mut self, len: u64) {
        self.len = len;
        self.signposts.retain(|(_, offset)| *offset <= len);
    }
}

/// Between which offsets `index` is; no second one if it is after the last signpost.
pub(crate) fn signpost(signposts: &[(Index, u64)], index: Index) -> (u64, Option<u64>) {
    let after = signposts.partition_point(|(next, _)| *next <= index);
    let begin = after.checked_sub(1).map_or(SEGMENT_HEADER_BYTES, |at| signposts[at].1);
    (begin, signposts.get(after).map(|(_, offset)| *offset))
}

/// What the writer tells its readers.
#[derive(Debug)]
pub(crate) struct Shared {
    /// Counts cuts and replacements of the log.
    pub(crate) version: u64,
    /// Counts checkpoints that came into force: each may have moved messages.
    pub(crate) moves: u64,
    pub(crate) segments: Vec<Segment>,
    /// Messages that stand elsewhere than as records of the log.
    pub(crate) older: StoreMap,
    /// The sync point of the checkpoint in force.
    pub(crate) checkpoint: Option<Position>,
    /// The next kept segment's number.
    pub(crate) next_kept: u32,
    /// Counts drafts of checkpoints: the last one has the draft's name in the directory.
    pub(crate) drafts: u64,
    pub(crate) first: Index,
    pub(crate) last: Position,
}

impl Shared {
    /// Of the log in front: the one that is being written.
    pub(crate) fn generation(&self) -> u32 {
        self.segments.last().map_or(0, |segment| segment.id.generation)
    }

    /// Whether this segment is part of the store.
    pub(crate) fn counts(&self, id: SegmentId) -> bool {
        let log = self.segments.iter().map(|segment| segment.id);
        log.chain(self.older.kept.iter().map(|kept| kept.id)).any(|other| other == id)
    }

    pub(crate) fn take_kept_sequence(&mut self) -> u32 {
        let sequence = self.next_kept;
        self.next_kept += 1;
        sequence
    }

    /// The segment that holds record `index`, if the log does.
    pub(crate) fn segment_of(&self, index: Index) -> Option<&Segment> {
        if index < self.first || index > self.last.index {
            return None;
        }
        // Several may begin with the same record, if base pieces fill them; the last one has it.
        let after = self.segments.partition_point(|segment| segment.first <= index);
        after.checked_sub(1).map(|at| &self.segments[at])
    }
}

pub(crate) fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    // No code panics between two changes that belong together.
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error(transparent)]
    Failed(#[from] Failure),
    #[error("record {index} is not in this log, which begins with {first}")]
    Gone { index: Index, first: Index },
    #[error("the log was cut or replaced while it was read; read again")]
    Changed,
    #[error("the log is damaged: {segment} at byte {offset}: {reason}")]
    Damaged { segment: String, offset: u64, reason: String },
    #[error("a record cannot be applied: {0}")]
    Refused(VisitError),
}

/// A place in the log, and a handle on its segment.
struct Place {
    version: u64,
    id: SegmentId,
    file: Arc<dyn StorageFile>,
    /// The record that comes next at `offset`.
    next: Index,
    offset: u64,
}

/// Where a message is to be looked for.
struct Located {
    version: u64,
    id: SegmentId,
    /// The segment's length.
    end: u64,
    /// Where the message begins if `exact`, else at or before it.
    offset: u64,
    exact: bool,
    /// Where it ends at the latest, if a signpost tells.
    until: Option<u64>,
}

pub struct LogReader {
    storage: Arc<dyn Storage>,
    store: StoreId,
    shared: Arc<Mutex<Shared>>,
    /// Where the last read ended: most readers go on from there.
    place: Option<Place>,
}

impl Clone for LogReader {
    fn clone(&self) -> Self {
        Self::new(self.storage.clone(), self.store, self.shared.clone())
    }
}

impl LogReader {
    pub(crate) fn new(storage: Arc<dyn Storage>, store: StoreId, shared: Arc<Mutex<Shared>>) -> Self {
        Self { storage, store, shared, place: None }
    }

    /// The first record the log has, or would have.
    pub fn first(&self) -> Index {
        lock(&self.shared).first
    }

    /// The last record written.
    pub fn last(&self) -> Position {
        lock(&self.shared).last
    }

    /// The records from `index` on, in order and without a gap: about `max_bytes` of them, at least one if there is one.
    /// None if the log ends before `index`.
    pub fn read_from(&mut self, index: Index, max_bytes: usize) -> Result<Vec<Frame>, ReadError> {
        let mut frames = Vec::new();
        let (mut next, mut bytes) = (index, 0);
        while bytes < max_bytes || frames.is_empty() {
            let Some((mut place, end)) = self.seek(next)? else { break };
            let (version, before) = (place.version, next);
            let mut cursor = Cursor::new(place.file.clone(), self.store, place.id, place.offset, end);
            while bytes < max_bytes || frames.is_empty() {
                let frame = match cursor.next() {
                    Ok(Some(Item::Frame(frame))) => frame,
                    Ok(Some(Item::Mark)) => continue,
                    Ok(None) => break,
                    Err(error) => return Err(self.scan_error(error, version, place.id)),
                };
                if frame.kind == FrameKind::Record && frame.position.index >= next {
                    if frame.position.index != next {
                        let reason = format!("record {} where {next} comes next", frame.position.index);
                        let bad = ScanError::Bad { offset: cursor.offset(), reason };
                        return Err(self.scan_error(bad, version, place.id));
                    }
                    next = next.next();
                    bytes += frame.len();
                    frames.push(frame);
                }
            }
            if next == before {
                let reason = format!("record {next} should be in it and is not");
                return Err(self.scan_error(ScanError::Bad { offset: cursor.offset(), reason }, version, place.id));
            }
            (place.next, place.offset) = (next, cursor.offset());
            self.place = Some(place);
            self.unchanged_since(version)?;
        }
        Ok(frames)
    }

    /// The checkpoint, if there is one, and every frame after it as the log was when this began, in the order in which they
    /// stand there, as at opening. Not beside a checkpoint's coming into force.
    pub fn replay(&mut self, visit: Visit<'_>) -> Result<(), ReadError> {
        let (version, segments, checkpoint) = {
            let shared = lock(&self.shared);
            let from = shared.checkpoint.map_or(0, |sync_point| {
                let befores = shared.segments.iter().map(|segment| segment.first.previous());
                order::passed_over(befores, sync_point.index)
            });
            let segments = shared.segments.get(from..).unwrap_or_default();
            let ends: Vec<_> = segments.iter().map(|segment| (segment.id, segment.len)).collect();
            (shared.version, ends, shared.checkpoint)
        };
        if checkpoint.is_some() {
            checkpoint::replay(&*self.storage, self.store, visit)?;
        }
        for (id, end) in segments {
            let file = self.open(id, version)?;
            let mut cursor = Cursor::new(file, self.store, id, SEGMENT_HEADER_BYTES, end);
            while let Some(item) = cursor.next().map_err(|error| self.scan_error(error, version, id))? {
                if let Item::Frame(frame) = item {
                    let covered = |sync_point: Position| {
                        frame.kind == FrameKind::Base || frame.position.index <= sync_point.index
                    };
                    if checkpoint.is_some_and(covered) {
                        continue;
                    }
                    self.unchanged_since(version)?;
                    visit(frame).map_err(ReadError::Refused)?;
                }
            }
        }
        self.unchanged_since(version)
    }

    /// The frames that carry the messages `indexes`, which ascend; in that order, checked against their checksums.
    ///
    /// # Errors
    /// As [`Self::messages_if_there`]; and if one is not there.
    pub fn messages(&mut self, indexes: &[Index]) -> Result<Vec<Frame>, ReadError> {
        let first = self.first();
        let found = self.messages_if_there(indexes)?.into_iter().zip(indexes);
        found.map(|(frame, index)| frame.ok_or(ReadError::Gone { index: *index, first })).collect()
    }

    /// The same, with `None` for a message that is in no segment: no checkpoint needed it any more, or something is wrong.
    ///
    /// # Errors
    /// If what is read is damaged, or cannot be read.
    pub fn messages_if_there(&mut self, indexes: &[Index]) -> Result<Vec<Option<Frame>>, ReadError> {
        debug_assert!(indexes.is_sorted(), "indexes ascend");
        for _ in 0..MOVES_BORNE {
            let moves = lock(&self.shared).moves;
            let found = self.find_messages(indexes);
            // What a checkpoint moved meanwhile is looked for where it is now.
            let whole = found.as_ref().is_ok_and(|frames| frames.iter().all(Option::is_some));
            if whole || lock(&self.shared).moves == moves {
                return found;
            }
        }
        Err(ReadError::Changed)
    }

    fn find_messages(&self, indexes: &[Index]) -> Result<Vec<Option<Frame>>, ReadError> {
        let mut frames = Vec::with_capacity(indexes.len());
        // Where the last one was, and whether it was a piece of a base.
        let mut at: Option<(SegmentId, Cursor, bool)> = None;
        let mut since = None;
        for &index in indexes {
            let Some(Located { version, id, end, offset, exact, until }) = self.locate(index)? else {
                frames.push(None);
                continue;
            };
            if *since.get_or_insert(version) != version {
                return Err(ReadError::Changed); // the cursor may stand where the log was cut since
            }
            let near = |cursor: &Cursor, was_exact: bool| {
                // What is near enough is passed over: a jump would read its surroundings anew. A base has no order.
                let behind = (exact || was_exact) && offset < cursor.offset();
                !behind && offset <= cursor.offset() + SIGNPOST_BYTES
            };
            let from = |file: Arc<dyn StorageFile>| {
                let reach = until.map_or(0, |until| until.saturating_sub(offset));
                Cursor::new(file, self.store, id, offset, end).reading_first(reach)
            };
            let mut cursor = match at.take() {
                Some((open, cursor, was_exact)) if open == id && near(&cursor, was_exact) => cursor,
                Some((open, cursor, _)) if open == id => from(cursor.into_file()),
                _ => from(self.open(id, version)?),
            };
            let mut found = None;
            while let Some(item) = cursor.next().map_err(|error| self.scan_error(error, version, id))? {
                let Item::Frame(frame) = item else { continue };
                match frame.message_index() {
                    Some(other) if other == index => {
                        // Its surroundings' memory is free for the next read: new memory costs more than the copy.
                        let is_small = (frame.len() as u64) < SIGNPOST_BYTES;
                        found = Some(if is_small { frame.detached() } else { frame });
                        break;
                    }
                    // Nothing that comes later in such a segment has a lower index.
                    Some(other) if other > index && !exact => {
                        cursor = from(self.open(id, version)?);
                        break;
                    }
                    _ => {}
                }
            }
            frames.push(found);
            at = Some((id, cursor, exact));
        }
        Ok(frames)
    }

    /// Where to look for a message; `None` if no segment's range has it.
    fn locate(&self, index: Index) -> Result<Option<Located>, ReadError> {
        loop {
            let unknown = {
                let shared = &mut *lock(&self.shared);
                let version = shared.version;
                let (id, len, signposts) = if let Some(kept) = shared.older.kept_with(index) {
                    (kept.id, kept.len, kept.signposts.as_deref())
                } else if let Some(segment) = shared.segment_of(index) {
                    let known = Some(segment.signposts.as_slice()).filter(|signposts| !signposts.is_empty());
                    (segment.id, segment.len, known)
                } else if let Some((id, offset)) = shared.older.base_message(index) {
                    let len = shared.segments.iter().find(|segment| segment.id == id).map_or(0, |segment| segment.len);
                    return Ok(Some(Located { version, id, end: len, offset, exact: true, until: None }));
                } else {
                    return Ok(None);
                };
                if let Some(signposts) = signposts {
                    let (offset, until) = signpost(signposts, index);
                    return Ok(Some(Located { version, id, end: len, offset, exact: false, until }));
                }
                (version, id, len)
            };
            let (version, id, len) = unknown;
            let signposts = self.survey(id, len, version)?;
            let shared = &mut *lock(&self.shared);
            match shared.segments.iter_mut().find(|segment| segment.id == id) {
                Some(segment) => segment.signposts = signposts,
                None => shared.older.set_signposts(id, signposts),
            }
        }
    }

    /// Reads a segment that nobody has looked into since the start.
    fn survey(&self, id: SegmentId, len: u64, version: u64) -> Result<Vec<(Index, u64)>, ReadError> {
        let mut segment = Segment { len, ..Segment::new(id, Index(0)) };
        let mut cursor = Cursor::new(self.open(id, version)?, self.store, id, SEGMENT_HEADER_BYTES, len);
        loop {
            let offset = cursor.offset();
            match cursor.next().map_err(|error| self.scan_error(error, version, id))? {
                None => return Ok(segment.signposts),
                Some(Item::Mark) => {}
                Some(Item::Frame(frame)) => {
                    // Pieces of a base in a log segment are not in order, and not what it is looked into for.
                    let counts = frame.kind == FrameKind::Record || id.kind == SegmentKind::Kept;
                    if let Some(index) = frame.message_index().filter(|_| counts) {
                        segment.note(index, offset);
                    }
                }
            }
        }
    }

    /// Where record `index` is to be looked for, and how far its segment is written; `None` if the log ends before it.
    fn seek(&mut self, index: Index) -> Result<Option<(Place, u64)>, ReadError> {
        let (version, id, end, signpost) = {
            let shared = lock(&self.shared);
            if index < shared.first {
                return Err(ReadError::Gone { index, first: shared.first });
            }
            match shared.segment_of(index) {
                Some(segment) => (shared.version, segment.id, segment.len, segment.signpost(index)),
                None => return Ok(None),
            }
        };
        let place = match self.place.take() {
            Some(place) if place.version == version && place.id == id => {
                let offset = if place.next == index { place.offset } else { signpost };
                Place { offset, ..place }
            }
            _ => Place { version, id, file: self.open(id, version)?, next: index, offset: signpost },
        };
        Ok(Some((place, end)))
    }

    fn open(&self, id: SegmentId, version: u64) -> Result<Arc<dyn StorageFile>, ReadError> {
        self.storage.open(&id.name()).map_err(|error| self.scan_error(ScanError::Io(error), version, id))
    }

    /// An error while the log changed is no news about the disk.
    fn scan_error(&self, error: ScanError, version: u64, id: SegmentId) -> ReadError {
        if let Err(changed) = self.unchanged_since(version) {
            return changed;
        }
        if !lock(&self.shared).counts(id) {
            return ReadError::Changed; // a checkpoint has come into force, and the segment may be gone
        }
        match error {
            ScanError::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                ReadError::Damaged { segment: id.name(), offset: 0, reason: "it is shorter than it was".to_owned() }
            }
            ScanError::Io(error) => Failure::of(&*self.storage, "read", &id.name())(error).into(),
            ScanError::Bad { offset, reason } => ReadError::Damaged { segment: id.name(), offset, reason },
        }
    }

    fn unchanged_since(&self, version: u64) -> Result<(), ReadError> {
        if lock(&self.shared).version == version { Ok(()) } else { Err(ReadError::Changed) }
    }
}
