//! The journal's own thread: it takes orders in order, writes a batch, syncs once, reports once.
//!
//! Group commit without a timer: whatever was ordered while the last sync ran is the next batch. A failure is reported
//! and is the end: nothing is written, synced or acknowledged after it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Instant;

use tokio::sync::Notify;
use tokio::sync::mpsc::Sender;
use understudy_journal::{Finished, Journal, JournalError};
use understudy_record::version::ClusterVersion;
use understudy_record::{Epoch, Frame, Index};
use understudy_replication::Session;

use crate::node::{Event, Installed, JournalEvent};
use crate::recovery::Rebuild;

/// Orders taken into one batch at most, so that a report never waits for an endless stream of them.
const BATCH_ORDERS: usize = 1024;

/// Bytes of one batch at most: the next sync starts soon even when a backlog has piled up.
const BATCH_BYTES: usize = 8 << 20;

/// On whose behalf something was written; a report of an earlier role or session is void.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Writer {
    Primary(Epoch),
    Backup(Session),
}

#[derive(Debug)]
pub(crate) enum Order {
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
    /// Something in the log cannot be read back; dropping the sender says that this is remembered, or cannot be.
    MarkDamaged(mpsc::Sender<()>),
    /// Read the whole log again.
    Rebuild {
        seed: u64,
    },
}

/// The core thread's end.
#[derive(Debug)]
pub(crate) struct JournalHandle {
    orders: mpsc::Sender<Order>,
    queued: Arc<Queued>,
    busy_since_ms: Arc<AtomicU64>,
    started: Instant,
}

/// Frames that were handed to the journal and are not written yet: what a slow disk keeps in memory.
#[derive(Debug, Default)]
pub(crate) struct Queued {
    bytes: AtomicUsize,
    shrunk: Notify,
}

impl Queued {
    /// Waits until fewer bytes than this are queued.
    pub(crate) async fn below(&self, bytes: usize) {
        loop {
            let shrunk = self.shrunk.notified();
            tokio::pin!(shrunk);
            shrunk.as_mut().enable(); // what happens from here on is not missed
            if self.bytes.load(Ordering::Acquire) < bytes {
                return;
            }
            shrunk.await;
        }
    }

    fn remove(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::AcqRel);
        self.shrunk.notify_waiters();
    }
}

/// A batch is not being worked on.
const IDLE: u64 = u64::MAX;

impl JournalHandle {
    /// Starts the thread. Reports go to `events`.
    pub(crate) fn start(journal: Journal, events: Sender<Event>) -> std::io::Result<Self> {
        let (orders, inbox) = mpsc::channel();
        let busy_since_ms = Arc::new(AtomicU64::new(IDLE));
        let started = Instant::now();
        let queued = Arc::<Queued>::default();
        let (busy, waiting) = (busy_since_ms.clone(), queued.clone());
        let mut thread = JournalThread { journal, inbox, events, queued: waiting, busy_since_ms: busy, started };
        std::thread::Builder::new().name("journal".into()).spawn(move || thread.run())?;
        Ok(Self { orders, queued, busy_since_ms, started })
    }

    pub(crate) fn queued(&self) -> Arc<Queued> {
        self.queued.clone()
    }

    /// Carried out in order. After a failure orders are dropped: the failure has been reported and the process ends.
    pub(crate) fn order(&self, order: Order) {
        if let Order::Append(_, frames) = &order {
            self.queued.bytes.fetch_add(frames.iter().map(Frame::len).sum(), Ordering::AcqRel);
        }
        _ = self.orders.send(order);
    }

    /// How long the present batch has been worked on, in milliseconds; 0 when there is none (rule: renewal and election
    /// depend on the journal's progress).
    pub(crate) fn stalled_ms(&self) -> u64 {
        match self.busy_since_ms.load(Ordering::Relaxed) {
            IDLE => 0,
            since => (self.started.elapsed().as_millis() as u64).saturating_sub(since),
        }
    }
}

struct JournalThread {
    journal: Journal,
    inbox: mpsc::Receiver<Order>,
    events: Sender<Event>,
    queued: Arc<Queued>,
    busy_since_ms: Arc<AtomicU64>,
    started: Instant,
}

/// What a batch leads to once it is durable.
#[derive(Default)]
struct Reports {
    durable: Option<Writer>,
    completed: Option<Session>,
}

impl JournalThread {
    fn run(&mut self) {
        while let Ok(first) = self.inbox.recv() {
            self.busy_since_ms.store(self.started.elapsed().as_millis() as u64, Ordering::Relaxed);
            let outcome = self.batch(first);
            self.busy_since_ms.store(IDLE, Ordering::Relaxed);
            if let Err(error) = outcome {
                _ = self.events.blocking_send(Event::Journal(JournalEvent::Failed(error)));
                return;
            }
        }
    }

    fn batch(&mut self, first: Order) -> Result<(), String> {
        let mut reports = Reports::default();
        let mut bytes = self.carry_out(first, &mut reports)?;
        for _ in 1..BATCH_ORDERS {
            if bytes >= BATCH_BYTES {
                break;
            }
            let Ok(order) = self.inbox.try_recv() else { break };
            bytes += self.carry_out(order, &mut reports)?;
        }
        if let Some(writer) = reports.durable {
            let durable = self.journal.sync().map_err(|error| self.explain(&error))?;
            self.report(JournalEvent::Durable(writer, durable.index));
        }
        if let Some(session) = reports.completed {
            self.report(JournalEvent::BaseCompleted(session));
        }
        Ok(())
    }

    /// Returns the bytes written.
    fn carry_out(&mut self, order: Order, reports: &mut Reports) -> Result<usize, String> {
        let mut bytes = 0;
        let done = match order {
            Order::Append(writer, frames) => {
                bytes = frames.iter().map(Frame::len).sum();
                reports.durable = Some(writer);
                let done = self.journal.append(&frames);
                drop(frames);
                self.queued.remove(bytes);
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
                self.report(JournalEvent::Installed(Box::new(Installed { finished, outcome })));
            }),
            Order::MarkDamaged(_noted) => self.journal.mark_damaged(),
            Order::Rebuild { seed } => {
                *reports = Reports::default(); // of roles that are over
                return self.rebuild(seed).map(|()| 0);
            }
        };
        done.map(|()| bytes).map_err(|error| self.explain(&error))
    }

    fn rebuild(&mut self, seed: u64) -> Result<(), String> {
        self.give_up_base().map_err(|error| self.explain(&error))?;
        let mut rebuild = Rebuild::new(seed);
        self.journal
            .reader()
            .replay(&mut |frame| rebuild.take(frame))
            .map_err(|error| format!("the log cannot be read again: {error}"))?;
        let recovered = rebuild.finish(&self.journal)?;
        self.report(JournalEvent::Rebuilt(Box::new(recovered)));
        Ok(())
    }

    fn give_up_base(&mut self) -> Result<(), JournalError> {
        if self.journal.base_in_progress() { self.journal.abandon_base() } else { Ok(()) }
    }

    fn report(&self, event: JournalEvent) {
        _ = self.events.blocking_send(Event::Journal(event));
    }

    fn explain(&self, error: &JournalError) -> String {
        format!("the journal failed, so this process gives up its role and ends: {error}")
    }
}
