//! A second store beside the first: what a catch-up from a sync point fills (base pieces and live records, as they come).
//! The old one stays in force until the new one is complete; one rename of the file `store` decides between them. A crash
//! on the way leaves the old one, and the half one is removed at the next opening.

use understudy_record::Position;

use crate::Journal;
use crate::checkpoint::CHECKPOINT_NAME;
use crate::error::{Failure, JournalError};
use crate::journal::Log;
use crate::reader::{Segment, lock};
use crate::recovery::create_segment;
use crate::segment::SegmentId;
use crate::state::{Base, LogState};
use crate::store::StoreMeta;
use crate::store_map::StoreMap;

/// The log in force, put aside while another is filled.
pub(crate) struct Aside {
    log: Log,
    segments: Vec<Segment>,
    older: StoreMap,
    checkpoint: Option<Position>,
}

impl Journal {
    /// From here on, [`append`](Self::append) fills a new store: first a [`BasePiece::Start`](understudy_record::BasePiece::Start),
    /// then the base's other pieces and the records after its sync point, mixed as they come.
    pub fn begin_base(&mut self) -> Result<(), JournalError> {
        if self.base_in_progress() {
            return Err(JournalError::BaseInProgress);
        }
        self.sync()?;
        let begun = self.new_log();
        let log = self.or_fail(begun)?;
        self.put_in_front(log);
        Ok(())
    }

    /// Makes the new store, which must be whole, the one in force, and removes the old one. Durable on return.
    pub fn complete_base(&mut self) -> Result<Position, JournalError> {
        self.usable()?;
        if !self.base_in_progress() {
            return Err(JournalError::NoBase);
        }
        match self.log.state.head.base {
            Base::Whole { floor, .. } if self.last().index >= floor => {}
            Base::Whole { .. } => {
                return Err(JournalError::BaseIncomplete { missing: "records that its backlog shows effects of" });
            }
            Base::None | Base::Awaited | Base::Open { .. } => {
                return Err(JournalError::BaseIncomplete { missing: "the last piece of the sync point's state" });
            }
        }
        let durable = self.sync()?;
        self.usable()?; // the sync's mark may have failed
        let meta = StoreMeta { generation: self.log.tail_id.generation, flaw: None, ..self.meta };
        let written = meta.write(&*self.storage);
        self.or_fail(written)?;
        self.meta = meta;
        // So that no reader does it while the writer waits for the lock.
        lock(&self.shared).older.base();
        let Some(old) = self.aside.take() else { return Ok(durable) };
        let ids = old.segments.iter().map(|segment| segment.id).chain(old.older.kept.iter().map(|kept| kept.id));
        let names = ids.map(SegmentId::name).chain(old.checkpoint.map(|_| CHECKPOINT_NAME.to_owned()));
        let removed = self.remove_files(names.collect());
        self.or_fail(removed)?;
        Ok(durable)
    }

    /// Goes back to the store in force, and removes what was filled of the new one.
    pub fn abandon_base(&mut self) -> Result<(), JournalError> {
        self.usable()?;
        let Some(aside) = self.aside.take() else { return Err(JournalError::NoBase) };
        self.log = aside.log;
        let half = {
            let mut shared = lock(&self.shared);
            shared.version += 1;
            (shared.first, shared.last) = (self.log.state.first(), self.log.state.head.last);
            (shared.older, shared.checkpoint) = (aside.older, aside.checkpoint);
            std::mem::replace(&mut shared.segments, aside.segments)
        };
        let removed = self.remove_files(half.iter().map(|segment| segment.id.name()).collect());
        self.or_fail(removed)
    }

    fn new_log(&self) -> Result<Log, Failure> {
        let tail_id = SegmentId::log(self.log.tail_id.generation + 1, 0);
        let tail = create_segment(&*self.storage, self.meta.id, tail_id, Position::default())?;
        Ok(Log {
            state: LogState::awaiting_base(),
            durable: Position::default(),
            tail_id,
            tail,
            tail_len: crate::segment::SEGMENT_HEADER_BYTES,
            tail_unsynced: true,
            names_unsynced: true,
        })
    }

    fn put_in_front(&mut self, log: Log) {
        let segment = Segment::new(log.tail_id, log.state.first());
        let log = std::mem::replace(&mut self.log, log);
        let mut shared = lock(&self.shared);
        shared.version += 1;
        (shared.first, shared.last) = (self.log.state.first(), self.log.state.head.last);
        let segments = std::mem::replace(&mut shared.segments, vec![segment]);
        let (older, checkpoint) = (std::mem::take(&mut shared.older), shared.checkpoint.take());
        drop(shared);
        self.aside = Some(Aside { log, segments, older, checkpoint });
    }

    /// Newest first and in one go: their generation counts no more, so a hole among them is no matter.
    fn remove_files(&self, names: Vec<String>) -> Result<(), Failure> {
        let storage = &*self.storage;
        for name in names.iter().rev() {
            storage.remove(name).map_err(Failure::of(storage, "remove", name))?;
        }
        storage.sync_dir().map_err(Failure::of(storage, "sync", "the directory"))
    }
}
