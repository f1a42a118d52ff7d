//! What the journal's thread does: it takes orders in order, writes a batch, syncs once, reports once. No thread and no
//! clock of its own.

use std::sync::mpsc;

use understudy_journal::{Finished, Flaw, Journal, JournalError};
use understudy_record::version::ClusterVersion;
use understudy_record::{Epoch, Frame, Index};
use understudy_replication::Session;

use crate::{Installed, JournalEvent, Rebuild};

/// Orders taken into one batch at most, so that a report never waits for an endless stream of them.
const BATCH_ORDERS: usize = 1024;

/// Bytes of one batch at most: the next sync starts soon even when a backlog has piled up.
const BATCH_BYTES: usize = 8 << 20;

/// On whose behalf something was written; a report of an earlier role or session is void.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writer {
    Primary(Epoch),
    Backup(Session),
}

#[derive(Debug)]
pub enum Order {
    Append(Writer, Vec<Frame>),
    /// Report how far the log is durable.
    Barrier(Writer),
    PersistEpoch(Epoch),
    /// Of the cluster, before anything that it brought is appended.
    PersistVersion(ClusterVersion),
    Truncate(Index),
    BeginBase,
    CompleteBase(Session),
    /// Put a checkpoint in force.
    Install(Box<Finished>),
    /// The log is not to be counted on; dropping the sender says that this is remembered, or cannot be.
    MarkFlawed(Flaw, mpsc::Sender<()>),
    /// Read the whole log again.
    Rebuild {
        seed: u64,
        accept_differences: bool,
    },
}

/// Carries orders out on the journal. After an error it is done for: nothing is written, synced or reported any more.
pub struct JournalWorker {
    journal: Journal,
}

/// What a batch leads to once it is durable.
#[derive(Default)]
struct Reports {
    durable: Option<Writer>,
    completed: Option<Session>,
}

impl JournalWorker {
    pub fn new(journal: Journal) -> Self {
        Self { journal }
    }

    /// Carries out `first` and what else is waiting, up to the batch's bounds, and syncs once. `done`: so many bytes of frames
    /// are no longer queued.
    ///
    /// # Errors
    /// If the journal failed. The text is for people; the process gives up its role.
    pub fn batch(
        &mut self,
        first: Order,
        mut next: impl FnMut() -> Option<Order>,
        mut done: impl FnMut(usize),
        report: &mut dyn FnMut(JournalEvent),
    ) -> Result<(), String> {
        let mut reports = Reports::default();
        let mut bytes = self.carry_out(first, &mut reports, &mut done, report)?;
        for _ in 1..BATCH_ORDERS {
            if bytes >= BATCH_BYTES {
                break;
            }
            let Some(order) = next() else { break };
            bytes += self.carry_out(order, &mut reports, &mut done, report)?;
        }
        if let Some(writer) = reports.durable {
            let durable = self.journal.sync().map_err(|error| explain(&error))?;
            report(JournalEvent::Durable(writer, durable.index));
        }
        if let Some(session) = reports.completed {
            report(JournalEvent::BaseCompleted(session));
        }
        Ok(())
    }

    /// Returns the bytes written.
    fn carry_out(
        &mut self,
        order: Order,
        reports: &mut Reports,
        unqueued: &mut impl FnMut(usize),
        report: &mut dyn FnMut(JournalEvent),
    ) -> Result<usize, String> {
        let mut bytes = 0;
        let done = match order {
            Order::Append(writer, frames) => {
                bytes = frames.iter().map(Frame::len).sum();
                reports.durable = Some(writer);
                let done = self.journal.append(&frames);
                drop(frames);
                unqueued(bytes);
                done
            }
            Order::Barrier(writer) => {
                reports.durable = Some(writer);
                Ok(())
            }
            Order::PersistEpoch(epoch) => self.journal.persist_epoch(epoch),
            Order::PersistVersion(version) => self.journal.persist_version(version),
            Order::Truncate(after) => self.journal.truncate_after(after),
            Order::BeginBase => self.give_up_base().and_then(|()| self.journal.begin_base()),
            Order::CompleteBase(session) => {
                reports.completed = Some(session);
                self.journal.complete_base().map(|_| ())
            }
            Order::Install(finished) => self.journal.install(&finished).map(|obsolete| {
                let outcome = obsolete.map(|obsolete| (self.journal.first(), obsolete));
                report(JournalEvent::Installed(Box::new(Installed { finished, outcome })));
            }),
            Order::MarkFlawed(flaw, _noted) => self.journal.mark_flawed(flaw),
            Order::Rebuild { seed, accept_differences } => {
                *reports = Reports::default(); // of roles that are over
                return self.rebuild(Rebuild::new(seed, accept_differences), report).map(|()| 0);
            }
        };
        done.map(|()| bytes).map_err(|error| explain(&error))
    }

    fn rebuild(&mut self, mut rebuild: Rebuild, report: &mut dyn FnMut(JournalEvent)) -> Result<(), String> {
        self.give_up_base().map_err(|error| explain(&error))?;
        self.journal.sync().map_err(|error| explain(&error))?; // what a role begins with is durable
        self.journal
            .reader()
            .replay(&mut |frame| rebuild.take(frame))
            .map_err(|error| format!("the log cannot be read again: {error}"))?;
        let recovered = rebuild.finish(&self.journal)?;
        report(JournalEvent::Rebuilt(Box::new(recovered)));
        Ok(())
    }

    fn give_up_base(&mut self) -> Result<(), JournalError> {
        if self.journal.base_in_progress() { self.journal.abandon_base() } else { Ok(()) }
    }
}

fn explain(error: &JournalError) -> String {
    format!("the journal failed, so this process gives up its role and ends: {error}")
}
