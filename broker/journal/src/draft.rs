//! Making a checkpoint, beside the writer: state and messages come in pieces, live messages of mostly dead segments are
//! copied together, and the result waits to be put in force by the journal's own thread ([`Journal::install`]). Until then
//! nothing names what is written here; a crash leaves files that the next opening removes.
//!
//! [`Journal::install`]: crate::Journal::install

use std::collections::{BTreeSet, HashMap};
use std::io::IoSlice;
use std::sync::{Arc, Mutex};

use bytes::BytesMut;
use understudy_record::{BasePiece, Frame, HeldMessage, Index, PartRef, Position, StoreId};

use crate::checkpoint::{self, CHECKPOINT_DRAFT_NAME, Entry, Manifest};
use crate::consolidate::{Source, Step, plan, plan_without_room};
use crate::error::Failure;
use crate::journal::Options;
use crate::live::LiveSet;
use crate::reader::{LogReader, ReadError, Segment, Shared, lock};
use crate::recovery::create_segment;
use crate::segment::{SegmentId, SegmentKind};
use crate::store_map::KeptSegment;
use crate::{Storage, StorageFile};

/// Messages copied at a time, at most.
const COPY_MESSAGES: usize = 256;

/// Their bytes, about: what is in memory of the messages that move.
const COPY_BYTES: u64 = 1 << 20;

/// Pieces given to one vectored write: what a kernel takes at once.
const SLICES_PER_WRITE: usize = 1024;

/// Space given back in one step, in bytes.
const SHRINK_BYTES: u64 = 4 << 20;

/// Written between two syncs, in bytes: small enough that the writer's own sync beside it does not wait long.
const SYNC_BYTES: u64 = 4 << 20;

/// Why there is no checkpoint this time. The log is what it was.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    #[error(transparent)]
    Failed(#[from] Failure),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("the checkpoint was given up")]
    GivenUp,
    #[error("the pieces of a checkpoint are not in order: {what}")]
    Order { what: &'static str },
}

/// Told after each write how many bytes it was, so that the caller may pause; `false` gives the checkpoint up.
pub type Pace<'a> = &'a mut dyn FnMut(u64) -> bool;

/// Makes checkpoints, one after the other. For a thread of its own; every call blocks.
#[derive(Clone)]
pub struct Checkpointer {
    storage: Arc<dyn Storage>,
    store: StoreId,
    options: Options,
    shared: Arc<Mutex<Shared>>,
}

/// A checkpoint that is being written.
pub struct Draft {
    maker: Checkpointer,
    name: DraftName,
    generation: u32,
    file: Arc<dyn StorageFile>,
    len: u64,
    unsynced: u64,
    sync_point: Option<Position>,
    live: LiveSet,
    /// Of each large message, the bytes that its parts hold.
    in_parts: HashMap<Index, u64>,
    arena: BytesMut,
}

/// A checkpoint that is whole and durable, and not in force.
#[derive(Debug)]
pub struct Finished {
    /// Which draft it was.
    number: u64,
    pub(crate) generation: u32,
    /// Of the log whose segments it names: one that was cut since has others in their place.
    pub(crate) version: u64,
    pub(crate) sync_point: Position,
    /// The log must be committed and durable up to here before it comes into force.
    pub(crate) floor: Index,
    pub(crate) log_start: u32,
    pub(crate) first_record: Index,
    pub(crate) kept: Vec<KeptSegment>,
    /// Those of `kept` that were written for it.
    created: Vec<SegmentId>,
    /// Segments that nothing needs once it is in force.
    pub(crate) obsolete: Vec<SegmentId>,
    /// Of the file, in bytes.
    pub bytes: u64,
    /// Live messages that were moved, in bytes.
    pub moved_bytes: u64,
}

impl Finished {
    pub fn floor(&self) -> Index {
        self.floor
    }

    pub fn sync_point(&self) -> Position {
        self.sync_point
    }
}

/// Files that the checkpoint in force no longer needs; see [`Checkpointer::remove`].
#[derive(Debug, Default)]
pub struct Obsolete(pub(crate) Vec<SegmentId>);

impl Checkpointer {
    pub(crate) fn new(storage: Arc<dyn Storage>, store: StoreId, options: Options, shared: Arc<Mutex<Shared>>) -> Self {
        Self { storage, store, options, shared }
    }

    /// Starts a draft. One that was given up before is removed.
    pub fn begin(&self) -> Result<Draft, CheckpointError> {
        let storage = &*self.storage;
        self.remove_draft()?;
        let (number, generation) = {
            let shared = &mut *lock(&self.shared);
            shared.drafts += 1;
            (shared.drafts, shared.generation())
        };
        let name = DraftName { maker: self.clone(), number, is_wanted: false };
        let (file, len) = checkpoint::create_draft(storage, self.store, generation)?;
        let (live, in_parts, arena) = (LiveSet::default(), HashMap::new(), BytesMut::new());
        Ok(Draft {
            maker: self.clone(),
            name,
            generation,
            file,
            len,
            unsynced: 0,
            sync_point: None,
            live,
            in_parts,
            arena,
        })
    }

    /// Removes files that [`Journal::install`](crate::Journal::install) named. What a crash leaves goes at the next opening.
    /// `pause` is called between two steps, so that the writer's syncs get their turn.
    pub fn remove(&self, obsolete: Obsolete, pause: &mut dyn FnMut()) -> Result<(), CheckpointError> {
        for id in obsolete.0 {
            let name = id.name();
            self.shrink(&name, pause)?;
            self.remove_file(&name)?;
        }
        // Not synced: one that comes back after a power loss is left over, and goes at the next opening.
        Ok(())
    }

    /// Gives a file's space back in steps: as one, it would hold up the writer's next sync.
    fn shrink(&self, name: &str, pause: &mut dyn FnMut()) -> Result<(), Failure> {
        // Too many open files, say, do not keep it from going as a whole, and removing it tells what is wrong otherwise.
        let Ok(file) = self.storage.open(name) else { return Ok(()) };
        let mut len = file.len().map_err(Failure::of(&*self.storage, "measure", name))?;
        while len > SHRINK_BYTES {
            len -= SHRINK_BYTES;
            file.truncate(len).map_err(Failure::of(&*self.storage, "shorten", name))?;
            pause();
        }
        Ok(())
    }

    /// Removes what a checkpoint that does not come into force has written, and nothing else: another may have been begun.
    pub fn discard(&self, finished: Finished) -> Result<(), CheckpointError> {
        if self.is_latest(finished.number) {
            self.remove_draft()?;
        }
        for id in finished.created {
            self.remove_file(&id.name())?;
        }
        Ok(())
    }

    /// Whether the draft's name in the directory is this one's.
    fn is_latest(&self, number: u64) -> bool {
        lock(&self.shared).drafts == number
    }

    fn remove_draft(&self) -> Result<(), Failure> {
        self.remove_file(CHECKPOINT_DRAFT_NAME)
    }

    fn remove_file(&self, name: &str) -> Result<(), Failure> {
        match self.storage.remove(name) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(Failure::of(&*self.storage, "remove", name)(error))
            }
            _ => Ok(()),
        }
    }
}

/// A draft's file, as long as nobody has the whole checkpoint: dropped before, it leaves nothing behind.
struct DraftName {
    maker: Checkpointer,
    number: u64,
    is_wanted: bool,
}

impl Drop for DraftName {
    fn drop(&mut self) {
        if !self.is_wanted && self.maker.is_latest(self.number) {
            _ = self.maker.remove_draft(); // the next one, or the next opening, tries again
        }
    }
}

/// Segments that were written for a checkpoint, as long as nobody has the whole of it.
struct Created {
    maker: Checkpointer,
    ids: Vec<SegmentId>,
}

impl Drop for Created {
    fn drop(&mut self) {
        for id in &self.ids {
            _ = self.maker.remove_file(&id.name()); // the next opening tries again
        }
    }
}

/// What a checkpoint will name, and what was written for it.
struct Arranged {
    kept: Vec<KeptSegment>,
    created: Created,
    moved_bytes: u64,
}

impl Draft {
    /// Takes pieces in the order in which they are applied: the `Start` first, without the `End`. Messages by reference only.
    /// `committed`: how far the log is known to be committed.
    pub fn add(&mut self, committed: Index, pieces: &[BasePiece], pace: Pace<'_>) -> Result<(), CheckpointError> {
        let mut frames = Vec::with_capacity(pieces.len());
        for piece in pieces {
            match piece {
                BasePiece::Start { sync_point, .. } => {
                    self.sync_point = Some(*sync_point);
                    self.live = LiveSet::of_ranges(self.range_starts());
                }
                BasePiece::Held { messages, .. } => {
                    for message in messages {
                        self.live.insert(message.index, weight(message, &self.in_parts));
                    }
                }
                BasePiece::Parts { message, parts } => {
                    let bytes = parts.iter().map(|part| u64::from(part.bytes)).sum();
                    self.in_parts.insert(*message, bytes);
                    self.pin(parts);
                }
                BasePiece::Message { .. } | BasePiece::Part { .. } => {
                    return Err(CheckpointError::Order { what: "a whole message" });
                }
                BasePiece::End { .. } => return Err(CheckpointError::Order { what: "an end before the last piece" }),
                _ => {}
            }
            let position = self.sync_point.ok_or(CheckpointError::Order { what: "a piece before the start" })?;
            frames.push(Frame::base(position, committed, piece, &mut self.arena));
        }
        self.write(&frames, pace)
    }

    /// These parts are read by somebody still, whatever the state says: they stay where they can be found.
    pub fn pin(&mut self, parts: &[PartRef]) {
        parts.iter().for_each(|part| self.live.insert(part.index, part.bytes.into()));
    }

    /// Moves what has to move and makes everything durable. `floor`: the last index whose effects the pieces may show.
    /// `retain_from`: records from there on stay in the log, as far as `retain_bytes` allow, for followers that lack them.
    pub fn finish(mut self, floor: Index, retain_from: Index, pace: Pace<'_>) -> Result<Finished, CheckpointError> {
        let sync_point = self.sync_point.ok_or(CheckpointError::Order { what: "an end without a start" })?;
        let end = Frame::base(sync_point, floor, &BasePiece::End { floor }, &mut self.arena);
        self.write(&[end], pace)?;
        let version = lock(&self.maker.shared).version;
        let (sources, log_start, first_record) = self.sources(sync_point.index, retain_from)?;
        let arranged = match self.arrange(plan(&sources, self.maker.options.segment_bytes), pace) {
            // Without room to move messages there is still what goes as a whole.
            Err(CheckpointError::Failed(failure)) if failure.is_full() => {
                self.arrange(plan_without_room(&sources), pace)?
            }
            arranged => arranged?,
        };
        let Arranged { kept, mut created, moved_bytes } = arranged;
        // Messages are found by these ranges: a list that is wrong must never come into force.
        if !kept.is_sorted_by(|one, next| one.last < next.first) || kept.iter().any(|kept| kept.first > kept.last) {
            return Err(CheckpointError::Order { what: "segments whose ranges overlap" });
        }
        let stays = |id: &SegmentId| kept.iter().any(|kept| kept.id == *id);
        let obsolete = self.superseded(log_start).into_iter().filter(|id| !stays(id)).collect();

        let entries = kept.iter().map(|kept| Entry { id: kept.id, first: kept.first, last: kept.last, len: kept.len });
        let manifest = Manifest { generation: self.generation, log_start, first_record, kept: entries.collect() };
        let manifest = manifest.encode(self.len);
        self.append(&[IoSlice::new(&manifest)])?;
        self.len += manifest.len() as u64;
        let storage = &*self.maker.storage;
        self.file.sync_data().map_err(Failure::of(storage, "sync", CHECKPOINT_DRAFT_NAME))?;
        if kept.iter().any(|kept| kept.id.kind == SegmentKind::Kept && !self.is_in_force(kept.id)) {
            // Before the rename: it must not be durable without what it names.
            storage.sync_dir().map_err(Failure::of(storage, "sync", "the directory"))?;
        }
        self.name.is_wanted = true;
        let created = std::mem::take(&mut created.ids);
        let (number, generation, bytes) = (self.name.number, self.generation, self.len);
        Ok(Finished {
            number,
            generation,
            version,
            sync_point,
            floor,
            log_start,
            first_record,
            kept,
            created,
            obsolete,
            bytes,
            moved_bytes,
        })
    }

    fn arrange(&self, steps: Vec<Step>, pace: Pace<'_>) -> Result<Arranged, CheckpointError> {
        let created = Created { maker: self.maker.clone(), ids: Vec::new() };
        let mut arranged = Arranged { kept: Vec::new(), created, moved_bytes: 0 };
        for step in steps {
            match step {
                Step::Keep(source) => arranged.kept.push(self.stays(source)?),
                Step::Rewrite { first, last } => self.rewrite(first, last, &mut arranged, pace)?,
            }
        }
        Ok(arranged)
    }

    /// Where the ranges of all that holds messages begin.
    fn range_starts(&self) -> Vec<Index> {
        let shared = &mut *lock(&self.maker.shared);
        let log = shared.segments.iter().map(|segment| segment.first.max(shared.first));
        let mut starts: Vec<Index> = log.chain(shared.older.kept.iter().map(|kept| kept.first)).collect();
        starts.extend(shared.older.base().first().map(|(first, ..)| *first));
        starts
    }

    fn source(&self, id: Option<SegmentId>, first: Index, last: Index, len: u64, must_move: bool) -> Source {
        let (live_messages, live_bytes) = self.live.within(first, last);
        Source { id, first, last, len, weight: len, must_move, live_messages, live_bytes }
    }

    /// What holds messages up to the sync point and is not to stay in the log; the log's first segment from then on, and the
    /// first record in it.
    fn sources(&self, sync_point: Index, retain_from: Index) -> Result<(Vec<Source>, u32, Index), CheckpointError> {
        let shared = &mut *lock(&self.maker.shared);
        if shared.generation() != self.generation {
            return Err(CheckpointError::GivenUp);
        }
        let stays = |kept: &KeptSegment| {
            let source = self.source(Some(kept.id), kept.first, kept.last, kept.len, false);
            Source { weight: kept.weight, ..source }
        };
        let mut sources: Vec<Source> = shared.older.kept.iter().map(stays).collect();
        let base = shared.older.base();
        let with_base: BTreeSet<SegmentId> = base.iter().map(|(_, id, _)| *id).collect();
        if let (Some((first, ..)), Some((last, ..))) = (base.first(), base.last()) {
            sources.push(self.source(None, *first, *last, 0, true));
        }
        // Whole segments up to the sync point, but for the newest that are retained.
        let ends = shared.segments.iter().skip(1).map(|next| next.first.previous());
        let aged: Vec<(&Segment, Index)> =
            shared.segments.iter().zip(ends).take_while(|(_, last)| *last <= sync_point).collect();
        let mut log_start = aged.len();
        let mut retained = 0;
        while let Some((segment, last)) = log_start.checked_sub(1).map(|at| aged[at]) {
            retained += segment.len;
            let wanted = retained <= self.maker.options.retain_bytes
                || (last >= retain_from && retained <= self.maker.options.retain_for_followers_bytes);
            if !wanted {
                break;
            }
            log_start -= 1;
        }
        for (segment, last) in &aged[..log_start] {
            // One that holds nothing but pieces of a base has no range of its own.
            let first = segment.first.max(shared.first);
            if first <= *last {
                let must_move = with_base.contains(&segment.id);
                sources.push(self.source(Some(segment.id), first, *last, segment.len, must_move));
            }
        }
        let start = shared.segments.get(log_start).ok_or(CheckpointError::GivenUp)?;
        Ok((sources, start.id.sequence, start.first.max(shared.first)))
    }

    /// A source that goes on as it is.
    fn stays(&self, source: Source) -> Result<KeptSegment, CheckpointError> {
        let shared = lock(&self.maker.shared);
        let kept = shared.older.kept.iter().find(|kept| Some(kept.id) == source.id).cloned();
        let of_log = || {
            let segment = shared.segments.iter().find(|segment| Some(segment.id) == source.id);
            segment.map(|segment| KeptSegment::of_log(segment, source.first, source.last))
        };
        kept.or_else(of_log).ok_or(CheckpointError::GivenUp)
    }

    /// The checkpoint in force names it.
    fn is_in_force(&self, id: SegmentId) -> bool {
        lock(&self.maker.shared).older.kept.iter().any(|kept| kept.id == id)
    }

    /// What counts now and will not unless the new checkpoint names it.
    fn superseded(&self, log_start: u32) -> Vec<SegmentId> {
        let shared = lock(&self.maker.shared);
        let log = shared.segments.iter().map(|segment| segment.id).filter(|id| id.sequence < log_start);
        log.chain(shared.older.kept.iter().map(|kept| kept.id)).collect()
    }

    /// Copies the live messages of `first..=last` to new segments.
    fn rewrite(
        &self,
        first: Index,
        last: Index,
        arranged: &mut Arranged,
        pace: Pace<'_>,
    ) -> Result<(), CheckpointError> {
        let mut reader = LogReader::new(self.maker.storage.clone(), self.maker.store, self.maker.shared.clone());
        let (count, bytes) = self.live.within(first, last);
        let mean = (bytes / count.max(1)).max(1);
        let at_once = usize::try_from(COPY_BYTES / mean).unwrap_or(1).clamp(1, COPY_MESSAGES);
        let mut live = self.live.range(first, last).peekable();
        let mut copies = Copies::new(&self.maker, self.generation, first, &mut arranged.created.ids);
        while live.peek().is_some() {
            let indexes: Vec<Index> = live.by_ref().take(at_once).collect();
            copies.add(&indexes, &reader.messages(&indexes)?, pace)?;
        }
        let (mut moved, moved_bytes) = copies.finish(last)?;
        // The estimate may be far off, if messages name many queues: what is whole must not look as if half of it had died.
        for kept in &mut moved {
            let share = u128::from(bytes) * u128::from(kept.len) / u128::from(moved_bytes.max(1));
            kept.weight = u64::try_from(share).map_or(kept.len, |share| share.min(kept.len));
        }
        arranged.kept.extend(moved);
        arranged.moved_bytes += moved_bytes;
        Ok(())
    }

    fn write(&mut self, frames: &[Frame], pace: Pace<'_>) -> Result<(), CheckpointError> {
        let slices: Vec<_> = frames.iter().flat_map(Frame::pieces).map(|piece| IoSlice::new(piece)).collect();
        let bytes: u64 = frames.iter().map(|frame| frame.len() as u64).sum();
        self.append(&slices)?;
        self.len += bytes;
        self.unsynced += bytes;
        if self.unsynced >= SYNC_BYTES {
            let storage = &*self.maker.storage;
            self.file.sync_data().map_err(Failure::of(storage, "sync", CHECKPOINT_DRAFT_NAME))?;
            self.unsynced = 0;
        }
        if pace(bytes) { Ok(()) } else { Err(CheckpointError::GivenUp) }
    }

    fn append(&self, slices: &[IoSlice<'_>]) -> Result<(), CheckpointError> {
        let storage = &*self.maker.storage;
        for slices in slices.chunks(SLICES_PER_WRITE) {
            let failed = Failure::of(storage, "write", CHECKPOINT_DRAFT_NAME);
            self.file.append(&mut slices.to_vec()).map_err(failed)?;
        }
        Ok(())
    }
}

/// Kept segments as they are filled.
struct Copies<'a> {
    maker: &'a Checkpointer,
    generation: u32,
    /// Every segment that was begun.
    created: &'a mut Vec<SegmentId>,
    /// The next segment's range begins here.
    next: Index,
    done: Vec<KeptSegment>,
    open: Option<(Arc<dyn StorageFile>, Segment, Index)>,
    unsynced: u64,
    bytes: u64,
}

impl<'a> Copies<'a> {
    fn new(maker: &'a Checkpointer, generation: u32, next: Index, created: &'a mut Vec<SegmentId>) -> Self {
        Self { maker, generation, created, next, done: Vec::new(), open: None, unsynced: 0, bytes: 0 }
    }

    fn add(&mut self, indexes: &[Index], frames: &[Frame], pace: Pace<'_>) -> Result<(), CheckpointError> {
        let storage = &*self.maker.storage;
        for (index, frame) in indexes.iter().zip(frames) {
            if self.open.as_ref().is_some_and(|(_, segment, _)| segment.len >= self.maker.options.segment_bytes) {
                self.close(None)?;
            }
            let (file, segment, last) = match &mut self.open {
                Some(open) => open,
                None => {
                    let id = SegmentId::kept(self.generation, lock(&self.maker.shared).take_kept_sequence());
                    let before = Position { index: self.next.previous(), ..Position::default() };
                    self.created.push(id); // also if this fails half way
                    let file = create_segment(storage, self.maker.store, id, before)?;
                    self.open.insert((file, Segment::new(id, self.next), self.next))
                }
            };
            let mut slices: Vec<_> = frame.pieces().map(|piece| IoSlice::new(piece)).collect();
            let name = segment.id.name();
            for slices in slices.chunks_mut(SLICES_PER_WRITE) {
                file.append(slices).map_err(Failure::of(storage, "write", &name))?;
            }
            segment.note(*index, segment.len);
            let bytes = frame.len() as u64;
            segment.len += bytes;
            *last = *index;
            self.bytes += bytes;
            self.unsynced += bytes;
            if self.unsynced >= SYNC_BYTES {
                file.sync_data().map_err(Failure::of(storage, "sync", &name))?;
                self.unsynced = 0;
            }
            if !pace(bytes) {
                return Err(CheckpointError::GivenUp);
            }
        }
        Ok(())
    }

    /// `range_end`: of the last one; others end with their last message.
    fn close(&mut self, range_end: Option<Index>) -> Result<(), CheckpointError> {
        let Some((file, segment, last)) = self.open.take() else { return Ok(()) };
        let storage = &*self.maker.storage;
        file.sync_data().map_err(Failure::of(storage, "sync", &segment.id.name()))?;
        self.unsynced = 0;
        let last = range_end.unwrap_or(last);
        let Segment { id, len, signposts, .. } = segment;
        self.done.push(KeptSegment { id, first: self.next, last, len, weight: len, signposts: Some(signposts) });
        self.next = last.next();
        Ok(())
    }

    fn finish(mut self, last: Index) -> Result<(Vec<KeptSegment>, u64), CheckpointError> {
        self.close(Some(last))?;
        Ok((self.done, self.bytes))
    }
}

/// What its own frame holds of it, in bytes.
fn weight(message: &HeldMessage, in_parts: &HashMap<Index, u64>) -> u64 {
    let elsewhere = if in_parts.is_empty() { None } else { in_parts.get(&message.index) };
    u64::from(message.bytes).saturating_sub(elsewhere.copied().unwrap_or(0))
}
