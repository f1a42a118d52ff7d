//! A consumer with acknowledgements: enters every delivery into the ledger, follows the cluster to another address when
//! its connection is lost. It keeps nothing of a message but its stamp.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use understudy_protocol::{ClientEvent, Delivery, DeliveryTag, basic};

use crate::latency::Latencies;
use crate::ledger::{Arrival, ConnectionId, Ledger};
use crate::link::{Finder, Link, LinkError};
use crate::stamp::Stamp;
use crate::target::{QueuePlan, Target};

/// Errors kept, the first ones.
const MAX_ERRORS: usize = 100;
/// How often a waiting caller looks again.
const LOOK_AGAIN: Duration = Duration::from_millis(1);
const UNPOISONED: &str = "nobody panics while holding this lock";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AckPolicy {
    /// One acknowledgement a message, as most applications do.
    Each,
    /// One for all that a read of the socket brought.
    PerRead,
}

#[derive(Clone, Debug)]
pub struct ConsumerPlan {
    /// Unacknowledged deliveries, at most.
    pub prefetch: u16,
    pub ack: AckPolicy,
    /// Warm-up: what happens earlier than this after the first connection is not in the figures.
    pub measure_from: Duration,
}

impl Default for ConsumerPlan {
    fn default() -> Self {
        Self { prefetch: 1000, ack: AckPolicy::Each, measure_from: Duration::ZERO }
    }
}

/// A consumer at work. Dropping it ends it at once, with what it has not acknowledged.
#[derive(Debug)]
pub struct Consumer {
    live: Arc<Live>,
    /// One task, aborted when this is dropped.
    task: JoinSet<ConsumerReport>,
}

#[derive(Clone, Debug, Default)]
pub struct ConsumerReport {
    /// Deliveries, second ones included.
    pub delivered: u64,
    /// Delivered between the end of the warm-up and the stop, in `measured_for`.
    pub measured_delivered: u64,
    pub measured_for: Duration,
    /// From when a message was made to its arrival here.
    pub latency: Latencies,
    pub reconnects: u64,
    pub errors: Vec<String>,
}

#[derive(Debug, Default)]
struct Live {
    stop: AtomicBool,
    /// Figures end here; the consumer itself goes on.
    measured: AtomicBool,
    ready: AtomicBool,
    delivered: AtomicU64,
    address: Mutex<Option<String>>,
}

impl Consumer {
    pub fn start(ledger: &Ledger, target: Target, queue: QueuePlan, plan: ConsumerPlan) -> Self {
        let live = Arc::new(Live::default());
        let work = Work {
            ledger: ledger.clone(),
            live: live.clone(),
            finder: Finder::new(target, queue.clone()),
            queue,
            plan,
            measure_from: None,
            report: ConsumerReport::default(),
        };
        let mut task = JoinSet::new();
        task.spawn(work.run());
        Self { live, task }
    }

    /// Deliveries so far, second ones included.
    pub fn delivered(&self) -> u64 {
        self.live.delivered.load(Ordering::Acquire)
    }

    /// Where it is connected, if it is.
    pub fn address(&self) -> Option<String> {
        self.live.address.lock().expect(UNPOISONED).clone()
    }

    /// Waits until the broker has accepted the consumer; `false` if that took too long.
    pub async fn wait_ready(&self, within: Duration) -> bool {
        let deadline = Instant::now() + within;
        while !self.live.ready.load(Ordering::Acquire) {
            if Instant::now() >= deadline {
                return false;
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        true
    }

    /// The figures end here, while it goes on consuming what is left in the queue.
    pub fn end_measure(&self) {
        self.live.measured.store(true, Ordering::Release);
    }

    /// Acknowledges what has come, closes in good order, and ends.
    pub async fn stop(mut self) -> ConsumerReport {
        self.live.stop.store(true, Ordering::Release);
        let ended = self.task.join_next().await.expect("one task was spawned, and is joined here only");
        ended.expect("a consumer's task neither panics nor is aborted")
    }
}

/// The task.
struct Work {
    ledger: Ledger,
    live: Arc<Live>,
    finder: Finder,
    queue: QueuePlan,
    plan: ConsumerPlan,
    /// Set at the first connection.
    measure_from: Option<Duration>,
    report: ConsumerReport,
}

impl Work {
    async fn run(mut self) -> ConsumerReport {
        let mut connected_before = false;
        while !self.live.stop.load(Ordering::Acquire) {
            let (link, address) = match self.finder.attempt().await {
                Ok(found) => found,
                Err((address, error)) => {
                    self.note_error(&address, &error);
                    continue;
                }
            };
            self.report.reconnects += u64::from(std::mem::replace(&mut connected_before, true));
            *self.live.address.lock().expect(UNPOISONED) = Some(address.clone());
            if let Err(error) = self.serve(link).await {
                self.note_error(&address, &error);
            }
            *self.live.address.lock().expect(UNPOISONED) = None;
            self.live.ready.store(false, Ordering::Release);
        }
        self.report
    }

    async fn serve(&mut self, mut link: Link) -> Result<(), LinkError> {
        let now = self.ledger.now();
        let connection = self.ledger.book().open_connection(now);
        self.measure_from.get_or_insert(now + self.plan.measure_from);
        let outcome = self.consume(&mut link, connection).await;
        if outcome.is_ok() && link.close().await {
            self.ledger.book().close(connection);
        } else {
            self.ledger.book().lose(connection, self.ledger.now());
        }
        outcome
    }

    async fn consume(&mut self, link: &mut Link, connection: ConnectionId) -> Result<(), LinkError> {
        let qos = basic::Qos { prefetch_count: self.plan.prefetch, ..basic::Qos::default() };
        link.request(qos.into(), basic::QosOk::ID).await?;
        let queue = self.queue.short_name().ok_or(LinkError::QueueName)?;
        // Not a request: deliveries may follow the answer in the same read.
        link.send_method(&basic::Consume { queue, ..basic::Consume::default() }.into());
        let mut arrivals = Vec::new();
        while !self.live.stop.load(Ordering::Acquire) {
            link.turn().await?;
            let outcome = self.take_events(link, connection, &mut arrivals);
            arrivals.clear();
            outcome?;
        }
        Ok(())
    }

    /// Enters what has come and acknowledges it, also if the connection ended behind it.
    fn take_events(
        &mut self,
        link: &mut Link,
        connection: ConnectionId,
        arrivals: &mut Vec<Arrival>,
    ) -> Result<(), LinkError> {
        let now = self.ledger.now();
        let mut latest = None;
        let mut foreign = 0;
        let outcome = loop {
            match link.poll_event() {
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
                Ok(Some(ClientEvent::Delivery(_, delivery))) => {
                    latest = Some(delivery.delivery_tag);
                    self.report.delivered += 1;
                    match self.arrival(&delivery, now) {
                        Some(arrival) => arrivals.push(arrival),
                        None => foreign += 1,
                    }
                    if self.plan.ack == AckPolicy::Each {
                        link.acknowledge(delivery.delivery_tag, false);
                    }
                }
                Ok(Some(ClientEvent::Method(_, method))) if method.id() == basic::ConsumeOk::ID => {
                    self.live.ready.store(true, Ordering::Release);
                }
                Ok(Some(_)) => {}
            }
        };
        if self.plan.ack == AckPolicy::PerRead
            && let Some(tag) = latest
        {
            link.acknowledge(tag, true);
        }
        self.enter(connection, now, arrivals, latest, foreign, link.was_heard());
        outcome
    }

    fn enter(
        &self,
        connection: ConnectionId,
        now: Duration,
        arrivals: &[Arrival],
        latest: Option<DeliveryTag>,
        foreign: u64,
        was_heard: bool,
    ) {
        if !was_heard {
            return;
        }
        let mut book = self.ledger.book();
        book.hear(connection, now);
        book.note_foreign(foreign);
        if let Some(tag) = latest {
            book.deliver(connection, arrivals);
            book.acknowledge(connection, now, tag.0);
            self.live.delivered.store(self.report.delivered, Ordering::Release);
        }
    }

    fn arrival(&mut self, delivery: &Delivery, now: Duration) -> Option<Arrival> {
        let stamp = Stamp::decode(&delivery.body).filter(|stamp| stamp.run == self.ledger.run())?;
        if let Some(from) = self.measure_from.filter(|from| now >= *from && !self.live.measured.load(Ordering::Acquire))
        {
            self.report.measured_delivered += 1;
            self.report.measured_for = now - from;
            if stamp.created >= from {
                self.report.latency.record(now.saturating_sub(stamp.created));
            }
        }
        let Stamp { producer, sequence, .. } = stamp;
        Some(Arrival { producer, sequence, tag: delivery.delivery_tag.0, redelivered: delivery.redelivered })
    }

    fn note_error(&mut self, address: &str, error: &LinkError) {
        if self.report.errors.len() < MAX_ERRORS {
            self.report.errors.push(format!("{address}: {error}"));
        }
    }
}
