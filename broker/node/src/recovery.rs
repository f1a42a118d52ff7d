//! From frames back to state: at a start, and when a demoted primary gives up what ran ahead of the commit.
//!
//! Records up to the highest committed index that any frame was stamped with are applied; the rest waits, in order, for
//! the word of a primary, or for this replica's own election.
//!
//! A log that leads to another state than its primary had (a record that does not fit, a scrub that differs) is read to its
//! end and no more: its replica needs a base, and does not end over it, or it would meet the same record at each start.

use std::collections::VecDeque;

use understudy_core::{ApplyError, Core};
use understudy_journal::{Flaw, Journal};
use understudy_record::{Frame, FrameKind, Index};
use understudy_replication::{History, RecoveredLog};

use crate::recorded_sets::RecordedSets;

/// Why a state is not to be counted on: it is not what the primary had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inconsistency {
    /// The record that showed it.
    pub at: Index,
    pub text: String,
}

/// The state that a log gives.
#[derive(Debug)]
pub struct Recovered {
    pub core: Core,
    pub log: RecoveredLog,
    pub recorded_sets: RecordedSets,
    /// The state is worth nothing.
    pub inconsistency: Option<Inconsistency>,
}

/// Takes a log's frames in physical order.
#[derive(Debug)]
pub struct Rebuild {
    core: Core,
    pending: VecDeque<Frame>,
    committed: Index,
    applied: Index,
    recorded_sets: RecordedSets,
    inconsistency: Option<Inconsistency>,
    accepts_differences: bool,
}

impl Rebuild {
    /// `accept_differences`: a state that is not what a primary had counts all the same, because somebody said so.
    pub fn new(seed: u64, accept_differences: bool) -> Self {
        Self {
            accepts_differences: accept_differences,
            core: Core::new(seed),
            pending: VecDeque::new(),
            committed: Index(0),
            applied: Index(0),
            recorded_sets: RecordedSets::default(),
            inconsistency: None,
        }
    }

    pub fn take(&mut self, frame: Frame) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        self.committed = self.committed.max(frame.committed);
        self.recorded_sets.note(&frame);
        if self.inconsistency.is_some() {
            return Ok(());
        }
        match frame.kind {
            FrameKind::Base => {
                let applied = self.core.apply_base(frame.decode_base()?);
                self.applied = self.applied.max(frame.position.index);
                self.judge(frame.position.index, applied);
            }
            FrameKind::Record => self.pending.push_back(frame),
        }
        while self.pending.front().is_some_and(|frame| frame.position.index <= self.committed)
            && let Some(frame) = self.pending.pop_front()
        {
            let index = frame.position.index;
            let applied = self.core.apply(index, &frame.decode_record()?);
            self.applied = index;
            self.judge(index, applied);
        }
        Ok(())
    }

    fn judge(&mut self, at: Index, applied: Result<(), ApplyError>) {
        let text = match (applied, self.core.take_difference()) {
            (Ok(()), None) => return,
            (Err(error), _) => format!("record {at} of the log cannot be applied: {error}"),
            (Ok(()), Some(difference)) if self.accepts_differences => {
                return tracing::error!("accepted as told: {difference}");
            }
            (Ok(()), Some(difference)) => difference.to_string(),
        };
        self.inconsistency = Some(Inconsistency { at, text });
        self.pending.clear();
        self.core = Core::new(0); // nobody is to count on what is left of it
    }

    pub fn finish(self, journal: &Journal) -> Result<Recovered, String> {
        let (epochs, last) = (journal.epochs(), journal.last());
        let history = History::new(epochs.to_vec(), last.index)
            .filter(|history| history.last() == last)
            .ok_or_else(|| format!("the log's epochs {epochs:?} do not lead to its end {last}"))?;
        let Self { core, pending, applied, recorded_sets, inconsistency, accepts_differences, .. } = self;
        let accepted = |flaw: &Flaw| accepts_differences && matches!(flaw, Flaw::Inconsistent(_));
        let flaw = journal.flaw().filter(|flaw| !accepted(flaw));
        let known_before = match flaw {
            Some(Flaw::Inconsistent(at)) => {
                let text =
                    format!("the state was found to differ from the primary's at record {at}, by an earlier process");
                Some(Inconsistency { at, text })
            }
            Some(Flaw::Unreadable) | None => None,
        };
        let inconsistency = known_before.or(inconsistency);
        let damaged = flaw.is_some() || inconsistency.is_some();
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
                damaged,
            },
            recorded_sets,
            inconsistency,
        })
    }
}
