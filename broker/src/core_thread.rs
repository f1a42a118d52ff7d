//! The core thread: one loop that waits, lets the node take its turn, and waits again. Sockets, the disk and the API server are
//! other tasks' business.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::sync::{mpsc, watch};
use understudy_core::Time;
use understudy_node::{ClientEvent, Event, Node};

/// How often the loop looks at its clocks when nothing happens.
const TICK: Duration = Duration::from_millis(20);

/// Events taken in one go. What a batch leads to is written and sent once, so larger batches cost less each; smaller
/// ones answer sooner.
const EVENT_BATCH: usize = 256;
const CLIENT_BATCH: usize = 64;

/// How long the end of a process that has found damage waits for the disk to remember it.
const MARK_TIMEOUT: Duration = Duration::from_secs(1);

pub(crate) struct CoreThread {
    pub(crate) started: Instant,
    pub(crate) events: mpsc::Receiver<Event>,
    pub(crate) clients: mpsc::Receiver<ClientEvent>,
    /// Milliseconds since the start at the last turn of the loop; liveness is that this moves.
    pub(crate) heartbeat: Arc<AtomicU64>,
    /// Disconnects when the journal has marked the store as damaged, or never had to.
    pub(crate) damage_noted: std::sync::mpsc::Receiver<()>,
    pub(crate) ended: watch::Sender<bool>,
}

impl CoreThread {
    /// Starts the thread: a runtime of its own, with nothing on it but the loop. `make` makes the node there.
    pub(crate) fn spawn(self, make: impl FnOnce(Duration) -> Node + Send + 'static) -> std::io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        std::thread::Builder::new().name("core".into()).spawn(move || {
            let node = make(self.started.elapsed());
            let (noted, ended) = runtime.block_on(self.run(node));
            _ = noted.recv_timeout(MARK_TIMEOUT); // the loop is over: nobody waits for this thread
            _ = ended.send(true);
        })?;
        Ok(())
    }

    /// Runs until the process is to end.
    async fn run(mut self, mut node: Node) -> (std::sync::mpsc::Receiver<()>, watch::Sender<bool>) {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut events = Vec::with_capacity(EVENT_BATCH);
        let mut clients = Vec::with_capacity(CLIENT_BATCH);
        while !node.has_ended() {
            let mut ticked = false;
            tokio::select! {
                biased;
                _ = tick.tick() => ticked = true,
                count = self.events.recv_many(&mut events, EVENT_BATCH) => if count == 0 { break },
                count = self.clients.recv_many(&mut clients, CLIENT_BATCH) => if count == 0 { break },
                () = std::future::ready(()), if node.has_work() => {}
            }
            while events.len() < EVENT_BATCH
                && let Ok(event) = self.events.try_recv()
            {
                events.push(event);
            }
            while clients.len() < CLIENT_BATCH
                && let Ok(event) = self.clients.try_recv()
            {
                clients.push(event);
            }
            let now = self.started.elapsed();
            self.heartbeat.store(now.as_millis() as u64, Ordering::Relaxed);
            node.begin_turn(Time { wall_ms: wall_ms(), steady: now });
            events.drain(..).for_each(|event| node.handle(event));
            clients.drain(..).for_each(|event| node.handle_client(event));
            if ticked {
                node.tick();
            }
            node.settle();
            if ticked {
                node.publish_status();
            }
        }
        node.publish_status();
        (self.damage_noted, self.ended)
    }
}

/// Milliseconds since 1970. A clock that stands before that is no clock.
fn wall_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
