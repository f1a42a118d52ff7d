//! The journal's own thread: whatever was ordered while the last sync ran is its next batch; no timer. A failure is reported
//! and is the end.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Instant;

use tokio::sync::Notify;
use tokio::sync::mpsc::Sender;
use understudy_journal::Journal;
use understudy_node::{Event, JournalEvent, JournalWorker, Order};
use understudy_record::Frame;

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
        let mut thread = JournalThread {
            worker: JournalWorker::new(journal),
            inbox,
            events,
            queued: waiting,
            busy_since_ms: busy,
            started,
        };
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
    worker: JournalWorker,
    inbox: mpsc::Receiver<Order>,
    events: Sender<Event>,
    queued: Arc<Queued>,
    busy_since_ms: Arc<AtomicU64>,
    started: Instant,
}

impl JournalThread {
    fn run(&mut self) {
        while let Ok(first) = self.inbox.recv() {
            self.busy_since_ms.store(self.started.elapsed().as_millis() as u64, Ordering::Relaxed);
            let Self { worker, inbox, events, queued, .. } = self;
            let mut report = |event| _ = events.blocking_send(Event::Journal(event));
            let outcome = worker.batch(first, || inbox.try_recv().ok(), |bytes| queued.remove(bytes), &mut report);
            self.busy_since_ms.store(IDLE, Ordering::Relaxed);
            if let Err(error) = outcome {
                _ = self.events.blocking_send(Event::Journal(JournalEvent::Failed(error)));
                return;
            }
        }
    }
}
