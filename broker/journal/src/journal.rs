//! Writing the log. One owner, one thread; every call blocks until the disk has answered.

use std::io::IoSlice;
use std::sync::{Arc, Mutex};

use understudy_record::variant::{Variant, is_broken};
use understudy_record::version::ClusterVersion;
use understudy_record::{Epoch, Frame, FrameKind, Index, Position, StoreId};

use crate::base::Aside;
use crate::checkpoint::{CHECKPOINT_DRAFT_NAME, CHECKPOINT_NAME};
use crate::draft::{Checkpointer, Finished, Obsolete};
use crate::error::{Failure, JournalError, OpenError};
use crate::reader::{LogReader, Segment, Shared, lock};
use crate::recovery::{self, Progress, Recovery, Visit, create_segment};
use crate::segment::{Cursor, Item, MARK_BYTES, SegmentId, encode_mark};
use crate::state::{Base, LogState};
use crate::store::{Flaw, StoreMeta};
use crate::store_map::StoreMap;
use crate::{Storage, StorageFile};

/// Frames given to one vectored write: two pieces each is what a kernel takes at once (1024).
const FRAMES_PER_WRITE: usize = 512;

/// Below this a segment would have no room beside its header.
const MIN_SEGMENT_BYTES: u64 = 256;

#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// A segment is closed by the frame that makes it at least this long, in bytes. A frame is never split.
    pub segment_bytes: u64,
    /// What a checkpoint leaves of the log before its sync point, in bytes: a follower that was away for a moment resumes.
    pub retain_bytes: u64,
    /// The same while a follower lacks it.
    pub retain_for_followers_bytes: u64,
}

impl Default for Options {
    /// Segments of 64 MiB: a few seconds of a busy broker, so that space comes back in small steps; one more is retained. A
    /// follower that lacks more than 1 GiB fetches the live messages instead.
    fn default() -> Self {
        Self { segment_bytes: 64 << 20, retain_bytes: 64 << 20, retain_for_followers_bytes: 1 << 30 }
    }
}

/// The log, open for writing.
///
/// Getters, then commands in the order of a life: [`append`](Self::append) and [`sync`](Self::sync) in turn;
/// [`persist_epoch`](Self::persist_epoch), [`truncate_after`](Self::truncate_after) when a primary is followed;
/// [`begin_base`](Self::begin_base), [`complete_base`](Self::complete_base) when it no longer has what this store lacks.
/// The first command the disk refuses is the last: all later ones return the same error.
pub struct Journal {
    pub(crate) storage: Arc<dyn Storage>,
    options: Options,
    pub(crate) meta: StoreMeta,
    pub(crate) log: Log,
    /// The store that stays in force while a new one is filled.
    pub(crate) aside: Option<Aside>,
    pub(crate) shared: Arc<Mutex<Shared>>,
    failure: Option<Failure>,
}

/// The log that is being written, but for its list of segments, which readers see.
pub(crate) struct Log {
    pub(crate) state: LogState,
    pub(crate) durable: Position,
    pub(crate) tail_id: SegmentId,
    pub(crate) tail: Arc<dyn StorageFile>,
    pub(crate) tail_len: u64,
    pub(crate) tail_unsynced: bool,
    pub(crate) names_unsynced: bool,
}

impl Journal {
    /// Opens the log in `storage`, or begins one under the id `fresh` if there is none. Every frame goes to `visit`.
    pub fn open(
        storage: Arc<dyn Storage>,
        options: Options,
        fresh: StoreId,
        visit: Visit<'_>,
    ) -> Result<(Self, Recovery), OpenError> {
        Self::open_watched(storage, options, fresh, &Progress::default(), visit)
    }

    /// The same, with somebody who watches `progress`.
    pub fn open_watched(
        storage: Arc<dyn Storage>,
        options: Options,
        fresh: StoreId,
        progress: &Progress,
        visit: Visit<'_>,
    ) -> Result<(Self, Recovery), OpenError> {
        let options = Options { segment_bytes: options.segment_bytes.max(MIN_SEGMENT_BYTES), ..options };
        let opened = recovery::open(&*storage, fresh, progress, visit)?;
        let state = opened.state;
        let recovery = Recovery {
            store: opened.meta.id,
            fresh: opened.fresh,
            known_epoch: opened.meta.epoch,
            first: state.first(),
            last: state.head.last,
            committed: state.committed,
            floor: state.floor(),
            epochs: state.epochs.clone(),
            base: match state.head.base {
                Base::Whole { sync_point, .. } => Some(sync_point),
                Base::None | Base::Awaited | Base::Open { .. } => None,
            },
            cut: opened.cut,
        };
        let last = opened.segments.last().expect("an opened log has a segment");
        let (tail_id, tail_len) = (last.id, last.len);
        let shared = Shared {
            version: 0,
            moves: 0,
            segments: opened.segments,
            older: opened.older,
            checkpoint: opened.checkpoint,
            next_kept: opened.next_kept,
            drafts: 0,
            first: state.first(),
            last: state.head.last,
        };
        let log = Log {
            durable: state.head.last,
            state,
            tail_id,
            tail: opened.tail,
            tail_len,
            tail_unsynced: false,
            names_unsynced: false,
        };
        let shared = Arc::new(Mutex::new(shared));
        Ok((Self { storage, options, meta: opened.meta, log, aside: None, shared, failure: None }, recovery))
    }

    pub fn store_id(&self) -> StoreId {
        self.meta.id
    }

    /// The highest version of the cluster that this store has heard of and will remember.
    pub fn cluster_version(&self) -> ClusterVersion {
        self.meta.version
    }

    /// The highest epoch this store has heard of and will remember.
    pub fn known_epoch(&self) -> Epoch {
        self.meta.epoch
    }

    /// The first record the log has, or would have.
    pub fn first(&self) -> Index {
        self.log.state.first()
    }

    /// The last record written.
    pub fn last(&self) -> Position {
        self.log.state.head.last
    }

    /// The last record that any crash leaves in place.
    pub fn durable(&self) -> Position {
        self.log.durable
    }

    /// The highest `committed` stamp on a frame.
    pub fn committed(&self) -> Index {
        self.log.state.committed
    }

    /// The log may not be cut below this.
    pub fn floor(&self) -> Index {
        self.log.state.floor()
    }

    /// The first position of each epoch, oldest first.
    pub fn epochs(&self) -> &[Position] {
        &self.log.state.epochs
    }

    /// Which epoch wrote `index`; `None` for what the log does not reach.
    pub fn epoch_at(&self, index: Index) -> Option<Epoch> {
        self.log.state.epoch_at(index)
    }

    /// Why the log is not to be counted on, if so; see [`Self::mark_flawed`].
    pub fn flaw(&self) -> Option<Flaw> {
        self.meta.flaw
    }

    /// A new store is being filled: this one is dirty. What [`sync`](Self::sync) reports meanwhile concerns the new store,
    /// which a crash still undoes as a whole.
    pub fn base_in_progress(&self) -> bool {
        self.aside.is_some()
    }

    /// What the log's segments hold, in bytes: what a checkpoint could give back.
    pub fn log_bytes(&self) -> u64 {
        lock(&self.shared).segments.iter().map(|segment| segment.len).sum()
    }

    /// What may still be written, in bytes.
    pub fn free_space(&self) -> Result<u64, JournalError> {
        Ok(self.storage.free_space().map_err(Failure::of(&*self.storage, "measure", "the free space"))?)
    }

    /// What makes checkpoints, on another thread.
    pub fn checkpointer(&self) -> Checkpointer {
        Checkpointer::new(self.storage.clone(), self.meta.id, self.options, self.shared.clone())
    }

    /// Puts a checkpoint in force. `None` if it is of a log that was replaced meanwhile, or shows what is not durable here, or
    /// there is no room for its name: it is to be discarded. Durable on return; what is obsolete then may be removed at leisure.
    pub fn install(&mut self, finished: &Finished) -> Result<Option<Obsolete>, JournalError> {
        self.usable()?;
        let sync_point = finished.sync_point;
        let stale = self.base_in_progress()
            || finished.generation != self.meta.generation
            || finished.version != lock(&self.shared).version
            || self.epoch_at(sync_point.index).is_some_and(|epoch| epoch != sync_point.epoch);
        if stale || finished.floor > self.log.durable.index || finished.floor < self.floor() {
            return Ok(None);
        }
        let storage = &*self.storage;
        let renamed = storage.rename(CHECKPOINT_DRAFT_NAME, CHECKPOINT_NAME).map_err(Failure::of(
            storage,
            "replace",
            CHECKPOINT_NAME,
        ));
        if renamed.as_ref().is_err_and(Failure::is_full) {
            return Ok(None); // some file systems want room for a name too: the one before stays in force
        }
        let renamed = renamed.and_then(|()| storage.sync_dir().map_err(Failure::of(storage, "sync", "the directory")));
        self.or_fail(renamed)?;
        let shared = &mut *lock(&self.shared);
        shared.moves += 1;
        shared.checkpoint = Some(finished.sync_point);
        shared.older = StoreMap::of_kept(finished.kept.clone());
        shared.segments.retain(|segment| segment.id.sequence >= finished.log_start);
        shared.first = finished.first_record;
        self.log.state.rest_on(finished.sync_point, finished.floor, finished.first_record);
        Ok(Some(Obsolete(finished.obsolete.clone())))
    }

    /// A reader for another thread.
    pub fn reader(&self) -> LogReader {
        LogReader::new(self.storage.clone(), self.meta.id, self.shared.clone())
    }

    /// Writes `frames` at the end. Readers see them at once; a crash may take them until [`sync`](Self::sync) returns.
    /// Frames out of order are refused as a whole. A higher epoch is persisted first (rule 2).
    pub fn append(&mut self, frames: &[Frame]) -> Result<(), JournalError> {
        self.usable()?;
        let advance = self.log.state.admit(frames)?;
        self.persist_epoch(advance.head.last.epoch)?;
        let written = self.write(frames);
        self.or_fail(written)?;
        self.log.state.apply(advance);
        let mut shared = lock(&self.shared);
        shared.first = self.log.state.first();
        shared.last = self.log.state.head.last;
        Ok(())
    }

    /// Returns once everything appended is durable: the last record.
    pub fn sync(&mut self) -> Result<Position, JournalError> {
        self.usable()?;
        if !self.log.tail_unsynced && !self.log.names_unsynced {
            return Ok(self.log.durable);
        }
        if is_broken(Variant::ReportUnsynced) {
            return Ok(self.log.state.head.last);
        }
        let synced = self.log.make_durable(&*self.storage);
        self.or_fail(synced)?;
        self.log.durable = self.log.state.head.last;
        // What was synced stays so, whatever becomes of the mark: a failure here is for the next call to tell.
        let marked = self.mark();
        _ = self.or_fail(marked);
        Ok(self.log.durable)
    }

    /// Cuts everything after `index`: a tail that the primary does not have. Durable on return.
    pub fn truncate_after(&mut self, index: Index) -> Result<(), JournalError> {
        self.usable()?;
        if self.base_in_progress() {
            return Err(JournalError::BaseInProgress);
        }
        if index >= self.last().index {
            return Ok(());
        }
        if index < self.floor() {
            return Err(JournalError::BelowFloor { index, floor: self.floor() });
        }
        let cut = self.cut_after(index);
        self.or_fail(cut)
    }

    /// Remembers `epoch` if it is higher than what is known. Durable on return.
    pub fn persist_epoch(&mut self, epoch: Epoch) -> Result<(), JournalError> {
        self.usable()?;
        if epoch <= self.meta.epoch {
            return Ok(());
        }
        let meta = StoreMeta { epoch, ..self.meta };
        let written = meta.write(&*self.storage);
        self.or_fail(written)?;
        self.meta = meta;
        Ok(())
    }

    /// Remembers the cluster's version if it is higher than what is known: from here on the log may hold what it brought.
    /// Durable on return.
    pub fn persist_version(&mut self, version: ClusterVersion) -> Result<(), JournalError> {
        self.usable()?;
        if version <= self.meta.version {
            return Ok(());
        }
        let meta = StoreMeta { version, ..self.meta };
        let written = meta.write(&*self.storage);
        self.or_fail(written)?;
        self.meta = meta;
        Ok(())
    }

    /// Remembers that the log is not to be counted on, until another one has taken its place; the first reason stays. Durable
    /// on return.
    pub fn mark_flawed(&mut self, flaw: Flaw) -> Result<(), JournalError> {
        self.usable()?;
        if self.meta.flaw.is_some() {
            return Ok(());
        }
        let meta = StoreMeta { flaw: Some(flaw), ..self.meta };
        let written = meta.write(&*self.storage);
        self.or_fail(written)?;
        self.meta = meta;
        Ok(())
    }

    pub(crate) fn usable(&self) -> Result<(), JournalError> {
        self.failure.clone().map_or(Ok(()), |failure| Err(failure.into()))
    }

    /// The first failure is kept, for every later call.
    pub(crate) fn or_fail<T>(&mut self, done: Result<T, Failure>) -> Result<T, JournalError> {
        done.map_err(|failure| self.failure.get_or_insert(failure).clone().into())
    }

    fn write(&mut self, mut frames: &[Frame]) -> Result<(), Failure> {
        let mut before = self.log.state.head.last;
        while !frames.is_empty() {
            if self.log.tail_len >= self.options.segment_bytes {
                self.roll(before)?;
            }
            let mut len = 0;
            let room = self.options.segment_bytes.saturating_sub(self.log.tail_len);
            let fits = |frame: &&Frame| {
                let starts_inside = len < room;
                len += if starts_inside { frame.len() as u64 } else { 0 };
                starts_inside
            };
            let count = frames.iter().take(FRAMES_PER_WRITE).take_while(fits).count();
            let (now, later) = frames.split_at(count);
            self.write_to_tail(now, len, &mut before)?;
            frames = later;
        }
        Ok(())
    }

    /// Writes `frames`, which are `len` bytes long, to the tail segment.
    fn write_to_tail(&mut self, frames: &[Frame], len: u64, before: &mut Position) -> Result<(), Failure> {
        let log = &mut self.log;
        let mut slices: Vec<_> = frames.iter().flat_map(Frame::pieces).map(|piece| IoSlice::new(piece)).collect();
        log.tail_unsynced = true;
        if let Err(error) = log.tail.append(&mut slices) {
            // Best effort: recovery cuts what this leaves behind.
            _ = log.tail.truncate(log.tail_len);
            return Err(Failure::of(&*self.storage, "write", &log.tail_id.name())(error));
        }
        let Shared { segments, older, .. } = &mut *lock(&self.shared);
        let segment = segments.last_mut().expect("the tail is one of the segments");
        for frame in frames {
            segment.note(before.index.next(), log.tail_len);
            if let (FrameKind::Base, Some(index)) = (frame.kind, frame.message_index()) {
                older.note_base_message(index, log.tail_id, log.tail_len);
            }
            log.tail_len += frame.len() as u64;
            // A base piece has its sync point's position, which no record after it falls behind.
            *before = frame.position.max(*before);
        }
        assert_eq!(segment.len + len, log.tail_len, "the tail's length as readers and as the writer know it");
        segment.len = log.tail_len;
        Ok(())
    }

    /// Closes the tail segment, durably, and begins the next.
    fn roll(&mut self, before: Position) -> Result<(), Failure> {
        self.log.tail_unsynced = true; // its last mark is not durable, and a closed segment has no torn tail
        self.log.make_durable(&*self.storage)?;
        let id = SegmentId { sequence: self.log.tail_id.sequence + 1, ..self.log.tail_id };
        self.log.tail = create_segment(&*self.storage, self.meta.id, id, before)?;
        let segment = Segment::new(id, before.index.next());
        (self.log.tail_id, self.log.tail_len) = (id, segment.len);
        (self.log.tail_unsynced, self.log.names_unsynced) = (true, true);
        lock(&self.shared).segments.push(segment);
        Ok(())
    }

    /// Notes in the log that all before this place is durable.
    fn mark(&mut self) -> Result<(), Failure> {
        let log = &mut self.log;
        let mark = encode_mark(self.meta.id, log.tail_id, log.tail_len);
        if let Err(error) = log.tail.append(&mut [IoSlice::new(&mark)]) {
            _ = log.tail.truncate(log.tail_len);
            return Err(Failure::of(&*self.storage, "write", &log.tail_id.name())(error));
        }
        log.tail_len += MARK_BYTES as u64;
        lock(&self.shared).segments.last_mut().expect("the tail is one of the segments").len = log.tail_len;
        Ok(())
    }

    /// From the newest segment backwards, so that a crash on the way leaves a shorter log, never one with a hole.
    fn cut_after(&mut self, index: Index) -> Result<(), Failure> {
        let storage = &*self.storage;
        let (kept, offset) = self.end_of(index)?;
        self.log.state.cut_after(index);
        self.log.durable = self.log.durable.min(self.log.state.head.last);
        let removed: Vec<SegmentId> = {
            let mut shared = lock(&self.shared);
            shared.version += 1;
            shared.last = self.log.state.head.last;
            let removed = shared.segments.iter().map(|segment| segment.id).filter(|id| *id > kept).collect();
            shared.segments.retain(|segment| segment.id <= kept);
            shared.segments.last_mut().expect("the kept segment is one of them").cut(offset);
            removed
        };
        for id in removed.iter().rev() {
            storage.remove(&id.name()).map_err(Failure::of(storage, "remove", &id.name()))?;
            storage.sync_dir().map_err(Failure::of(storage, "sync", "the directory"))?;
        }
        if !removed.is_empty() {
            self.log.tail = storage.open(&kept.name()).map_err(Failure::of(storage, "open", &kept.name()))?;
        }
        (self.log.tail_id, self.log.tail_len) = (kept, offset);
        self.log.tail.truncate(offset).map_err(Failure::of(storage, "cut", &kept.name()))?;
        (self.log.tail_unsynced, self.log.names_unsynced) = (true, true);
        self.log.make_durable(storage)?;
        self.log.durable = self.log.state.head.last;
        self.mark()
    }

    /// Where the record after `index` begins.
    fn end_of(&self, index: Index) -> Result<(SegmentId, u64), Failure> {
        let next = index.next();
        let (id, signpost, len) = {
            let shared = lock(&self.shared);
            let segment = shared.segment_of(next).expect("checked against the log's first and last record");
            (segment.id, segment.signpost(next), segment.len)
        };
        let name = id.name();
        let failed = |error| Failure::of(&*self.storage, "read", &name)(error);
        let file = self.storage.open(&name).map_err(failed)?;
        let mut cursor = Cursor::new(file, self.meta.id, id, signpost, len);
        loop {
            let offset = cursor.offset();
            match cursor.next() {
                Ok(Some(Item::Frame(frame))) if frame.kind == FrameKind::Record && frame.position.index == next => {
                    return Ok((id, offset));
                }
                Ok(Some(_)) => {}
                Ok(None) => return Err(failed(std::io::Error::other(format!("record {next} is not in it")))),
                Err(error) => return Err(failed(error.into())),
            }
        }
    }
}

impl Log {
    /// Syncs what the tail segment and the directory have not got yet.
    pub(crate) fn make_durable(&mut self, storage: &dyn Storage) -> Result<(), Failure> {
        if self.tail_unsynced {
            self.tail.sync_data().map_err(Failure::of(storage, "sync", &self.tail_id.name()))?;
            self.tail_unsynced = false;
        }
        if self.names_unsynced {
            storage.sync_dir().map_err(Failure::of(storage, "sync", "the directory"))?;
            self.names_unsynced = false;
        }
        Ok(())
    }
}
