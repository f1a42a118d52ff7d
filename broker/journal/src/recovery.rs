//! Opening a directory: whose it is, which segments count, whether every byte is right, and what to do about a tail that
//! is not. It cuts what was never durable, and refuses what is damaged.

use std::error::Error;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use understudy_record::{Epoch, Frame, FrameKind, Index, Position, StoreId};

use crate::checkpoint::{self, CHECKPOINT_DRAFT_NAME, CHECKPOINT_NAME, Entry, Found};
use crate::dir::LOCK_NAME;
use crate::error::{Failure, OpenError};
use crate::reader::Segment;
use crate::segment::{
    Cursor, FORMAT, HeaderError, Item, SEGMENT_HEADER_BYTES, ScanError, SegmentHeader, SegmentId, SegmentKind,
    encode_mark, vouched,
};
use crate::state::{Base, LogState};
use crate::storage::read_full;
use crate::store::{STORE_DRAFT_NAME, STORE_NAME, StoreMeta};
use crate::store_map::{KeptSegment, StoreMap};
use crate::{Storage, StorageFile};

/// Written again at a time, in bytes.
const REWRITE_BYTES: usize = 1 << 20;

pub type VisitError = Box<dyn Error + Send + Sync>;

/// Is given every frame of the log as it stands there. A frame shares the memory of the 256 KiB it was read with: copy
/// what is to be kept for long.
pub type Visit<'a> = &'a mut dyn FnMut(Frame) -> Result<(), VisitError>;

/// What was found in the directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovery {
    pub store: StoreId,
    /// The directory was empty: this store has never held anything.
    pub fresh: bool,
    /// The highest epoch this store has heard of (rule 2).
    pub known_epoch: Epoch,
    /// The first record in the log; one more than the last if there is none.
    pub first: Index,
    pub last: Position,
    /// The highest `committed` stamp on a frame. It may exceed `last`.
    pub committed: Index,
    /// The log may not be cut below this.
    pub floor: Index,
    /// The first position of each epoch, oldest first.
    pub epochs: Vec<Position>,
    /// The sync point, if the log begins with a base.
    pub base: Option<Position>,
    /// What was cut off the end, which was never reported durable.
    pub cut: Option<TornTail>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TornTail {
    pub segment: String,
    pub offset: u64,
    pub bytes: u64,
    pub reason: String,
}

/// How far an opening is, for people who wait for it.
#[derive(Debug, Default)]
pub struct Progress {
    /// Segments to read.
    pub segments: AtomicU64,
    pub segments_done: AtomicU64,
    /// Records and pieces of a checkpoint that have been read.
    pub records_done: AtomicU64,
}

/// An opened log, on its way to a [`Journal`](crate::Journal).
pub(crate) struct Opened {
    pub(crate) meta: StoreMeta,
    pub(crate) fresh: bool,
    pub(crate) state: LogState,
    pub(crate) segments: Vec<Segment>,
    pub(crate) tail: Arc<dyn StorageFile>,
    pub(crate) cut: Option<TornTail>,
    pub(crate) older: StoreMap,
    /// The sync point of the checkpoint in force.
    pub(crate) checkpoint: Option<Position>,
    /// The number of the next kept segment.
    pub(crate) next_kept: u32,
}

pub(crate) fn open(
    storage: &dyn Storage,
    fresh: StoreId,
    progress: &Progress,
    visit: Visit<'_>,
) -> Result<Opened, OpenError> {
    let names = storage.list().map_err(Failure::of(storage, "list", "the files"))?;
    let is_fresh = !names.iter().any(|name| name == STORE_NAME);
    let meta = if is_fresh {
        refuse_foreign(storage, &names)?;
        StoreMeta { id: fresh, epoch: Epoch(0), generation: 0, damaged: false }
    } else {
        StoreMeta::read(storage)?
    };
    let found = match !is_fresh && names.iter().any(|name| name == CHECKPOINT_NAME) {
        true => Some(checkpoint::find(storage, meta.id).map_err(|error| error.into_open_error(storage))?),
        false => None,
    };
    // One of another generation was left by a catch-up that put a new log in force.
    let found = found.filter(|found| found.manifest.generation == meta.generation);
    let files = Files::sort(&names, (!is_fresh).then_some(meta), found.as_ref());
    if is_fresh {
        remove_all(storage, &files.leftovers)?;
        let id = SegmentId::log(0, 0);
        let tail = create_segment(storage, meta.id, id, Position::default())?;
        tail.sync_data().map_err(Failure::of(storage, "sync", &id.name()))?;
        storage.sync_dir().map_err(Failure::of(storage, "sync", "the directory"))?;
        meta.write(storage)?;
        let segments = vec![Segment::new(id, Index(1))];
        let (state, older) = (LogState::default(), StoreMap::default());
        let (cut, checkpoint, next_kept) = (None, None, 0);
        return Ok(Opened { meta, fresh: true, state, segments, tail, cut, older, checkpoint, next_kept });
    }
    files.check(storage, meta, found.as_ref())?;
    // Nothing is changed before all of the log is known to be right.
    let mut counted = |frame| {
        progress.records_done.fetch_add(1, Ordering::Relaxed);
        visit(frame)
    };
    let mut opened = Scan::new(storage, meta, progress).run(&files.log, found.as_ref(), &mut counted)?;
    opened.next_kept = files.next_kept;
    remove_all(storage, &files.leftovers)?;
    Ok(opened)
}

/// The files of a directory, by what they are to this store.
struct Files {
    /// The log's segments, in order.
    log: Vec<SegmentId>,
    /// Of earlier generations, of a checkpoint that never came into force, of one that did and left them.
    leftovers: Vec<String>,
    next_kept: u32,
}

impl Files {
    fn sort(names: &[String], meta: Option<StoreMeta>, found: Option<&Found>) -> Self {
        let mut files = Self { log: Vec::new(), leftovers: Vec::new(), next_kept: 0 };
        let log_start = found.map_or(0, |found| found.manifest.log_start);
        for name in names {
            let Some(id) = SegmentId::from_name(name) else {
                let draft = name == STORE_DRAFT_NAME || name == CHECKPOINT_DRAFT_NAME;
                if draft || (name == CHECKPOINT_NAME && found.is_none()) {
                    files.leftovers.push(name.clone());
                }
                continue;
            };
            let ours = meta.is_some_and(|meta| meta.generation == id.generation);
            if ours && id.kind == SegmentKind::Kept {
                files.next_kept = files.next_kept.max(id.sequence.saturating_add(1));
            }
            let named = found.is_some_and(|found| found.manifest.kept.iter().any(|entry| entry.id == id));
            match id.kind {
                SegmentKind::Log if ours && id.sequence >= log_start => files.log.push(id),
                _ if ours && named => {}
                _ => files.leftovers.push(name.clone()),
            }
        }
        files.log.sort_unstable();
        files
    }

    /// Every segment that has to be there is, in its whole length.
    fn check(&self, storage: &dyn Storage, meta: StoreMeta, found: Option<&Found>) -> Result<(), OpenError> {
        let start = found.map_or(0, |found| found.manifest.log_start);
        if let Some(gap) = (start..).zip(&self.log).find_map(|(at, id)| (at != id.sequence).then_some(at)) {
            return Err(missing(storage, SegmentId::log(meta.generation, gap), "a later one is there"));
        }
        if self.log.is_empty() {
            return Err(missing(storage, SegmentId::log(meta.generation, start), "a store always has one"));
        }
        for entry in found.into_iter().flat_map(|found| &found.manifest.kept) {
            let name = entry.id.name();
            let file = match storage.open(&name) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    return Err(missing(storage, entry.id, "the checkpoint names it"));
                }
                file => file.map_err(Failure::of(storage, "open", &name))?,
            };
            let len = file.len().map_err(Failure::of(storage, "measure", &name))?;
            if len < entry.len {
                let reason = format!("it is cut off: the checkpoint knows it as {} bytes long", entry.len);
                return Err(OpenError::Damaged { place: storage.place(), segment: name, offset: len, reason });
            }
        }
        Ok(())
    }
}

fn remove_all(storage: &dyn Storage, names: &[String]) -> Result<(), Failure> {
    for name in names {
        storage.remove(name).map_err(Failure::of(storage, "remove", name))?;
    }
    match names {
        [] => Ok(()),
        _ => storage.sync_dir().map_err(Failure::of(storage, "sync", "the directory")),
    }
}

/// A new segment with its header, neither durable yet.
pub(crate) fn create_segment(
    storage: &dyn Storage,
    store: StoreId,
    id: SegmentId,
    before: Position,
) -> Result<Arc<dyn StorageFile>, Failure> {
    let name = id.name();
    let file = storage.create(&name).map_err(Failure::of(storage, "create", &name))?;
    let header = SegmentHeader { store, id, before }.encode();
    file.append(&mut [IoSlice::new(&header)]).map_err(Failure::of(storage, "write", &name))?;
    Ok(file)
}

/// A directory without a `store` file is taken only if nothing in it can matter to anybody.
fn refuse_foreign(storage: &dyn Storage, names: &[String]) -> Result<(), OpenError> {
    for name in names {
        if SegmentId::from_name(name).is_some() {
            // A first start that was interrupted leaves a segment without a record.
            let file = storage.open(name).map_err(Failure::of(storage, "open", name))?;
            let len = file.len().map_err(Failure::of(storage, "measure", name))?;
            if len > SEGMENT_HEADER_BYTES {
                return Err(OpenError::StoreMissing { place: storage.place() });
            }
        } else if !matches!(name.as_str(), LOCK_NAME | STORE_DRAFT_NAME | CHECKPOINT_DRAFT_NAME | "lost+found") {
            return Err(OpenError::NotOurs { place: storage.place(), name: name.clone() });
        }
    }
    Ok(())
}

fn missing(storage: &dyn Storage, id: SegmentId, why: &str) -> OpenError {
    let reason = format!("this segment is missing, but {why}");
    OpenError::Damaged { place: storage.place(), segment: id.name(), offset: 0, reason }
}

/// Writes `from..to` of a file once more. The process before may have ended because a sync had failed; the system then
/// counts as written what stands in its cache alone, and a sync that succeeds now would prove nothing.
fn rewrite(file: &dyn StorageFile, from: u64, to: u64) -> io::Result<()> {
    let mut buffer = vec![0; REWRITE_BYTES];
    let mut offset = from;
    while offset < to {
        let wanted = usize::try_from(to - offset).unwrap_or(usize::MAX).min(REWRITE_BYTES);
        let filled = read_full(file, &mut buffer[..wanted], offset)?;
        if filled == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        file.rewrite(&buffer[..filled], offset)?;
        offset += filled as u64;
    }
    Ok(())
}

fn kept_segment(entry: &Entry) -> KeptSegment {
    let Entry { id, first, last, len } = *entry;
    KeptSegment { id, first, last, len, signposts: None }
}

/// One pass over the checkpoint and all segments after it.
struct Scan<'a> {
    storage: &'a dyn Storage,
    meta: StoreMeta,
    progress: &'a Progress,
    state: LogState,
    segments: Vec<Segment>,
    cut: Option<TornTail>,
    /// Records up to there are covered by the checkpoint: they are checked and not visited.
    covered: Option<Covered>,
    older: StoreMap,
    /// Everything in the tail before this place was synced without an error.
    vouched_to: u64,
}

/// The part of the log before a checkpoint's sync point.
#[derive(Clone, Copy)]
struct Covered {
    sync_point: Position,
    /// The last record passed.
    passed: Position,
}

/// How a segment's readable part ended.
enum End {
    Whole,
    Bad { offset: u64, reason: String },
}

impl<'a> Scan<'a> {
    fn new(storage: &'a dyn Storage, meta: StoreMeta, progress: &'a Progress) -> Self {
        let state = if meta.generation == 0 { LogState::default() } else { LogState::awaiting_base() };
        let (segments, older) = (Vec::new(), StoreMap::default());
        Self { storage, meta, progress, state, segments, cut: None, covered: None, older, vouched_to: 0 }
    }

    fn run(mut self, ids: &[SegmentId], found: Option<&Found>, visit: Visit<'_>) -> Result<Opened, OpenError> {
        let mut tail = None;
        let mut unread = 0;
        if let Some(found) = found {
            self.checkpoint(found, visit)?;
            unread = self.pass_over(ids)?;
        }
        let checkpoint = self.covered.map(|covered| covered.sync_point);
        let ids = ids.get(unread..).unwrap_or_default();
        self.progress.segments.store(ids.len() as u64, Ordering::Relaxed);
        for &id in ids {
            let file = self.storage.open(&id.name()).map_err(Failure::of(self.storage, "open", &id.name()))?;
            let len = file.len().map_err(Failure::of(self.storage, "measure", &id.name()))?;
            self.segments.push(Segment::new(id, self.last().index.next()));
            if let End::Bad { offset, reason } = self.segment(id, &file, len, visit)? {
                let last = ids.last() == Some(&id);
                let durable_once = !last
                    || vouched(&*file, self.meta.id, id, offset, len).map_err(Failure::of(
                        self.storage,
                        "read",
                        &id.name(),
                    ))?;
                if durable_once {
                    return Err(self.damaged(id, offset, reason));
                }
                self.cut = Some(TornTail { segment: id.name(), offset, bytes: len - offset, reason });
            }
            self.progress.segments_done.fetch_add(1, Ordering::Relaxed);
            tail = Some((id, file));
        }
        let (id, tail) = tail
            .ok_or_else(|| missing(self.storage, SegmentId::log(self.meta.generation, 0), "a store always has one"))?;
        if !matches!(self.state.head.base, Base::None | Base::Whole { .. }) {
            let offset = self.segments.last().map_or(0, |segment| segment.len);
            return Err(self.damaged(id, offset, "the sync point's state ends here and is not whole".to_owned()));
        }
        if let Some(Covered { sync_point, passed }) = self.covered.filter(|covered| covered.passed < covered.sync_point)
        {
            let offset = self.segments.last().map_or(0, |segment| segment.len);
            let reason = format!("the log ends at {passed}, before the checkpoint's sync point {sync_point}");
            return Err(self.damaged(id, offset, reason));
        }
        if self.state.head.last.index < self.state.floor() {
            let offset = self.segments.last().map_or(0, |segment| segment.len);
            let reason = format!("the log ends at {}, but must reach {}", self.state.head.last, self.state.floor());
            return Err(self.damaged(id, offset, reason));
        }
        self.settle(id, &*tail)?;
        let Self { meta, mut state, segments, cut, mut older, .. } = self;
        state.first_record = found.map(|found| found.manifest.first_record);
        older.base();
        Ok(Opened { meta, fresh: false, state, segments, tail, cut, older, checkpoint, next_kept: 0 })
    }

    /// The last record read, covered ones included.
    fn last(&self) -> Position {
        match self.covered {
            Some(covered) if covered.passed < covered.sync_point => covered.passed,
            _ => self.state.head.last,
        }
    }

    /// The checkpoint's pieces are the log's beginning.
    fn checkpoint(&mut self, found: &Found, visit: Visit<'_>) -> Result<(), OpenError> {
        let place = || self.storage.place();
        let damaged =
            |offset, reason| OpenError::Damaged { place: place(), segment: CHECKPOINT_NAME.to_owned(), offset, reason };
        self.state = LogState::awaiting_base();
        let mut frames = found.frames();
        loop {
            let offset = frames.offset();
            let frame = match frames.next() {
                Ok(None) => break,
                Ok(Some(frame)) => frame,
                Err(ScanError::Bad { offset, reason }) => return Err(damaged(offset, reason)),
                Err(ScanError::Io(error)) => {
                    return Err(Failure::of(self.storage, "read", CHECKPOINT_NAME)(error).into());
                }
            };
            let advance = self.state.admit(std::slice::from_ref(&frame));
            self.state.apply(advance.map_err(|error| damaged(offset, error.to_string()))?);
            visit(frame).map_err(|source| OpenError::Refused {
                place: place(),
                segment: CHECKPOINT_NAME.to_owned(),
                offset,
                source,
            })?;
        }
        let Base::Whole { sync_point, .. } = self.state.head.base else {
            return Err(damaged(frames.offset(), "its state ends here and is not whole".to_owned()));
        };
        self.covered = Some(Covered { sync_point, passed: Position::default() });
        self.older.kept = found.manifest.kept.iter().map(kept_segment).collect();
        Ok(())
    }

    /// Segments that end before the sync point are not read, but for their headers; returns how many.
    fn pass_over(&mut self, ids: &[SegmentId]) -> Result<usize, OpenError> {
        let Some(mut covered) = self.covered else { return Ok(0) };
        let mut headers = Vec::new();
        for &id in ids {
            let name = id.name();
            let failed = |error| OpenError::Failed(Failure::of(self.storage, "read", &name)(error));
            let file = self.storage.open(&name).map_err(failed)?;
            let len = file.len().map_err(failed)?;
            let mut bytes = [0; SEGMENT_HEADER_BYTES as usize];
            let whole = read_full(&*file, &mut bytes, 0).map_err(failed)? as u64 == SEGMENT_HEADER_BYTES;
            // One that is not right is read in full, which says what is wrong with it.
            let header = whole.then(|| SegmentHeader::decode(&bytes).ok()).flatten();
            match header.filter(|header| header.store == self.meta.id && header.id == id) {
                Some(header) => headers.push((header.before, len)),
                None => break,
            }
        }
        let sync_point = covered.sync_point.index;
        let unread = headers.iter().skip(1).take_while(|(before, _)| before.index <= sync_point).count();
        for ((before, len), id) in headers.iter().zip(ids).take(unread) {
            self.segments.push(Segment::unread(*id, before.index.next(), *len));
        }
        if let Some((before, _)) = headers.get(unread) {
            covered.passed = *before;
            self.covered = Some(covered);
        }
        Ok(unread)
    }

    /// A record that the checkpoint covers, or a piece of the base that it has replaced.
    fn is_covered(&mut self, frame: &Frame) -> Result<bool, String> {
        let Some(covered) = &mut self.covered else { return Ok(false) };
        if frame.kind == FrameKind::Base {
            // The base that began this log: its records follow the base's sync point.
            covered.passed = covered.passed.max(frame.position);
            return Ok(true);
        }
        if covered.passed >= covered.sync_point {
            return Ok(false);
        }
        let (found, expected) = (frame.position, covered.passed.index.next());
        if found.index != expected || found.epoch < covered.passed.epoch {
            return Err(format!("record {found} where {expected} comes next"));
        }
        covered.passed = found;
        if found.index == covered.sync_point.index && found != covered.sync_point {
            return Err(format!("record {found} where the checkpoint has {}", covered.sync_point));
        }
        Ok(true)
    }

    /// Reads one segment as far as it is right.
    fn segment(
        &mut self,
        id: SegmentId,
        file: &Arc<dyn StorageFile>,
        len: u64,
        visit: Visit<'_>,
    ) -> Result<End, OpenError> {
        let name = id.name();
        let failed = |error| OpenError::Failed(Failure::of(self.storage, "read", &name)(error));
        let mut bytes = [0; SEGMENT_HEADER_BYTES as usize];
        if (read_full(&**file, &mut bytes, 0).map_err(failed)? as u64) < SEGMENT_HEADER_BYTES {
            return Ok(End::Bad { offset: 0, reason: "its header is not whole".to_owned() });
        }
        let expected = SegmentHeader { store: self.meta.id, id, before: self.last() };
        match SegmentHeader::decode(&bytes) {
            Ok(found) if found == expected => {}
            Ok(found) if found.store != expected.store => {
                let reason = format!("it belongs to store {}, this directory to {}", found.store, expected.store);
                return Err(self.damaged(id, 0, reason));
            }
            Ok(found) if found.id != id => {
                return Err(self.damaged(id, 0, format!("it is {} under another name", found.id.name())));
            }
            Ok(found) => {
                let reason = format!("it follows {}, but the one before it ends at {}", found.before, expected.before);
                return Err(self.damaged(id, 0, reason));
            }
            Err(HeaderError::Newer { found }) => {
                return Err(OpenError::Newer { place: self.storage.place(), name, found, known: FORMAT });
            }
            Err(HeaderError::Bad(reason)) => return Ok(End::Bad { offset: 0, reason: reason.to_owned() }),
        }
        let mut cursor = Cursor::new(file.clone(), self.meta.id, id, SEGMENT_HEADER_BYTES, len);
        self.vouched_to = 0;
        loop {
            let offset = cursor.offset();
            match cursor.next() {
                Ok(None) => return Ok(End::Whole),
                Ok(Some(Item::Mark)) => self.vouched_to = offset,
                Ok(Some(Item::Frame(frame))) => {
                    let next = self.last().index.next();
                    match self.is_covered(&frame) {
                        Ok(false) => {}
                        Ok(true) => {
                            if let Some(segment) = self.segments.last_mut() {
                                segment.note(next, offset);
                                segment.len = cursor.offset();
                            }
                            continue;
                        }
                        Err(reason) => return Ok(End::Bad { offset, reason }),
                    }
                    if let (FrameKind::Base, Some(index)) = (frame.kind, frame.message_index()) {
                        self.older.note_base_message(index, id, offset);
                    }
                    match self.state.admit(std::slice::from_ref(&frame)) {
                        Ok(advance) => self.state.apply(advance),
                        Err(error) => return Ok(End::Bad { offset, reason: error.to_string() }),
                    }
                    if let Some(segment) = self.segments.last_mut() {
                        segment.note(next, offset);
                    }
                    visit(frame).map_err(|source| OpenError::Refused {
                        place: self.storage.place(),
                        segment: id.name(),
                        offset,
                        source,
                    })?;
                }
                Err(ScanError::Bad { offset, reason }) => return Ok(End::Bad { offset, reason }),
                Err(ScanError::Io(error)) => {
                    return Err(Failure::of(self.storage, "read", &id.name())(error).into());
                }
            }
            if let Some(segment) = self.segments.last_mut() {
                segment.len = cursor.offset();
            }
        }
    }

    /// Cuts what has to go and makes durable what stays: the process that wrote it may have died before its fsync.
    fn settle(&mut self, id: SegmentId, tail: &dyn StorageFile) -> Result<(), OpenError> {
        let name = id.name();
        let before = self.last();
        let segment = self.segments.last_mut().expect("the tail is one of the segments");
        if let Some(cut) = &self.cut {
            tail.truncate(cut.offset).map_err(Failure::of(self.storage, "cut the torn tail of", &name))?;
            if cut.offset == 0 {
                let header = SegmentHeader { store: self.meta.id, id, before }.encode();
                tail.append(&mut [IoSlice::new(&header)]).map_err(Failure::of(self.storage, "write", &name))?;
                segment.len = SEGMENT_HEADER_BYTES;
            }
        }
        rewrite(tail, self.vouched_to, segment.len).map_err(Failure::of(self.storage, "write again", &name))?;
        tail.sync_data().map_err(Failure::of(self.storage, "sync", &name))?;
        self.storage.sync_dir().map_err(Failure::of(self.storage, "sync", "the directory"))?;
        let mark = encode_mark(self.meta.id, id, segment.len);
        match tail.append(&mut [IoSlice::new(&mark)]) {
            Ok(()) => segment.len += mark.len() as u64,
            // A full disk must not keep a broker from serving what it has; the next sync marks its place.
            Err(error) if error.kind() == io::ErrorKind::StorageFull => {
                tail.truncate(segment.len).map_err(Failure::of(self.storage, "cut", &name))?;
            }
            Err(error) => return Err(Failure::of(self.storage, "write", &name)(error).into()),
        }
        Ok(())
    }

    fn damaged(&self, id: SegmentId, offset: u64, reason: String) -> OpenError {
        OpenError::Damaged { place: self.storage.place(), segment: id.name(), offset, reason }
    }
}
