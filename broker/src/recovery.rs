//! From frames back to state: at a start, and when a demoted primary gives up what ran ahead of the commit.
//!
//! Records up to the highest committed index that any frame was stamped with are applied; the rest waits, in order, for
//! the word of a primary, or for this replica's own election.

use std::collections::VecDeque;

use understudy_core::Core;
use understudy_journal::Journal;
use understudy_record::{Frame, FrameKind, Index};
use understudy_replication::{History, RecoveredLog};

use crate::recorded_sets::RecordedSets;

/// The state that a log gives.
#[derive(Debug)]
pub(crate) struct Recovered {
    pub(crate) core: Core,
    pub(crate) log: RecoveredLog,
    pub(crate) recorded_sets: RecordedSets,
}

/// Takes a log's frames in physical order.
#[derive(Debug)]
pub(crate) struct Rebuild {
    core: Core,
    pending: VecDeque<Frame>,
    committed: Index,
    applied: Index,
    recorded_sets: RecordedSets,
}

impl Rebuild {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            core: Core::new(seed),
            pending: VecDeque::new(),
            committed: Index(0),
            applied: Index(0),
            recorded_sets: RecordedSets::default(),
        }
    }

    pub(crate) fn take(&mut self, frame: Frame) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        self.committed = self.committed.max(frame.committed);
        self.recorded_sets.note(&frame);
        match frame.kind {
            FrameKind::Base => {
                self.core.apply_base(frame.decode_base()?)?;
                self.applied = self.applied.max(frame.position.index);
            }
            FrameKind::Record => self.pending.push_back(frame),
        }
        while let Some(frame) = self.pending.front()
            && frame.position.index <= self.committed
        {
            self.core.apply(frame.position.index, &frame.decode_record()?)?;
            self.applied = frame.position.index;
            self.pending.pop_front();
        }
        Ok(())
    }

    pub(crate) fn finish(self, journal: &Journal) -> Result<Recovered, String> {
        let (epochs, last) = (journal.epochs(), journal.last());
        let history = History::new(epochs.to_vec(), last.index)
            .filter(|history| history.last() == last)
            .ok_or_else(|| format!("the log's epochs {epochs:?} do not lead to its end {last}"))?;
        let Self { core, pending, applied, recorded_sets, .. } = self;
        let (known_epoch, first, floor) = (journal.known_epoch(), journal.first(), journal.floor());
        Ok(Recovered {
            core,
            log: RecoveredLog {
                known_epoch,
                cluster_version: journal.cluster_version(),
                history,
                first,
                floor,
                applied,
                pending,
                damaged: journal.is_damaged(),
            },
            recorded_sets,
        })
    }
}
