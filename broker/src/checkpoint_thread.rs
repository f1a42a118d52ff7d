//! The thread that writes checkpoints and moves live messages, beside the core thread and the journal's. It works at a bounded
//! rate, so that the journal's own writes hardly notice.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::Sender;
use understudy_journal::Checkpointer;
use understudy_node::{Brakes, CheckpointId, CheckpointOrder, CheckpointWorker, Event};

/// Orders that may wait: a slice is a few thousand messages, so this is little memory, and enough to be busy all the time.
const INBOX: usize = 8;

/// What is written in one go before the pace is looked at, in bytes.
const PACE_BYTES: u64 = 256 << 10;

/// Between two steps of giving space back.
const REMOVE_PAUSE: Duration = Duration::from_millis(5);

#[derive(Debug)]
pub(crate) struct CheckpointHandle {
    orders: mpsc::Sender<(CheckpointId, CheckpointOrder)>,
    waiting: Arc<AtomicUsize>,
    /// The latest that was given up.
    given_up: Arc<AtomicU64>,
}

impl CheckpointHandle {
    /// Starts the thread. `rate`: bytes a second that it writes at most.
    pub(crate) fn start(maker: Checkpointer, rate: u64, events: Sender<Event>) -> std::io::Result<Self> {
        let (orders, inbox) = mpsc::channel();
        let (waiting, given_up) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicU64::new(0)));
        let pace = Pace { rate, unpaced: 0, since: Instant::now(), given_up: given_up.clone() };
        let thread =
            CheckpointThread { worker: CheckpointWorker::new(maker), inbox, events, waiting: waiting.clone(), pace };
        std::thread::Builder::new().name("checkpoint".into()).spawn(move || thread.run())?;
        Ok(Self { orders, waiting, given_up })
    }

    /// Whether an order would be taken up soon. Who gives one without asking is patient.
    pub(crate) fn has_room(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) < INBOX
    }

    pub(crate) fn order(&self, id: CheckpointId, order: CheckpointOrder) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        _ = self.orders.send((id, order));
    }

    /// Work on it, and on those before it, ends soon, and what was written goes.
    pub(crate) fn give_up(&self, id: CheckpointId) {
        self.given_up.fetch_max(id.0, Ordering::Relaxed);
        self.order(id, CheckpointOrder::GiveUp);
    }
}

struct CheckpointThread {
    worker: CheckpointWorker,
    inbox: mpsc::Receiver<(CheckpointId, CheckpointOrder)>,
    events: Sender<Event>,
    waiting: Arc<AtomicUsize>,
    pace: Pace,
}

impl CheckpointThread {
    fn run(self) {
        let Self { mut worker, inbox, events, waiting, mut pace } = self;
        while let Ok((id, order)) = inbox.recv() {
            waiting.fetch_sub(1, Ordering::Relaxed);
            let mut brakes = Brakes { keep: |bytes| pace.keep(id, bytes), rest: || std::thread::sleep(REMOVE_PAUSE) };
            if let Some(event) = worker.carry_out(id, order, &mut brakes)
                && events.blocking_send(Event::Checkpoint(event)).is_err()
            {
                return;
            }
        }
    }
}

/// Keeps the writing to its rate.
struct Pace {
    rate: u64,
    unpaced: u64,
    since: Instant,
    given_up: Arc<AtomicU64>,
}

impl Pace {
    /// `false`: the checkpoint was given up.
    fn keep(&mut self, id: CheckpointId, bytes: u64) -> bool {
        self.unpaced += bytes;
        if self.unpaced >= PACE_BYTES {
            let due = Duration::from_secs_f64(self.unpaced as f64 / self.rate.max(1) as f64);
            std::thread::sleep(due.saturating_sub(self.since.elapsed()));
            (self.unpaced, self.since) = (0, Instant::now());
        }
        self.given_up.load(Ordering::Relaxed) < id.0
    }
}
