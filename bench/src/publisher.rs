//! A publisher with confirms: keeps a window of unconfirmed messages full, follows the cluster to another address when
//! its connection is lost, and sends again what was not confirmed. The window is in [`window`]; here are the task, the
//! connection and what callers see of it.

mod window;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use serde::Serialize;
use tokio::task::JoinSet;
use understudy_protocol::{BasicProperties, ClientEvent, Method, PublishRef, confirm};
use understudy_record::{Body, ShortStr};

use crate::latency::Latencies;
use crate::ledger::{Fate, Ledger, ProducerId, Sequence};
use crate::link::{Finder, Link, LinkError};
use crate::stamp::{MIN_MESSAGE_BYTES, Stamp};
use crate::target::{QueuePlan, Target};
use window::{Sent, Window};

/// Octets that may wait for the socket before no more messages are made: a window of large messages stays in the making
/// while the broker reads slowly.
const MAX_WAITING_BYTES: usize = 512 * 1024;
/// Silences kept, the longest ones: a run with more of them has a mean that says it better.
const MAX_SILENCES: usize = 1000;
/// Shorter pauses between confirms are ordinary.
const SILENCE: Duration = Duration::from_millis(20);
/// Errors kept, the first ones.
const MAX_ERRORS: usize = 100;
/// With a rate, messages are made this often.
const PACE: Duration = Duration::from_millis(1);
/// How often a waiting caller looks again.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

const UNPOISONED: &str = "nobody panics while holding this lock";

#[derive(Clone, Debug)]
pub struct PublisherPlan {
    /// At least [`MIN_MESSAGE_BYTES`].
    pub message_bytes: usize,
    /// Messages sent and not yet confirmed, at most.
    pub window: usize,
    /// Messages a second; absent: as many as the window allows.
    pub rate: Option<u64>,
    /// Messages in total, without those sent again; absent: until it is stopped.
    pub limit: Option<u64>,
    /// Queues that the messages go to in turns; none: the one it was started with.
    pub spread_over: Vec<QueuePlan>,
    pub persistent: bool,
    /// With messages unconfirmed and no confirm for so long, the publisher goes to the next address, unless the broker
    /// said that it is blocked.
    pub silence_limit: Duration,
    /// Warm-up: what happens earlier than this after the first connection is not in the figures.
    pub measure_from: Duration,
}

impl Default for PublisherPlan {
    fn default() -> Self {
        Self {
            message_bytes: 1024,
            window: 500,
            rate: None,
            limit: None,
            spread_over: Vec::new(),
            persistent: true,
            silence_limit: Duration::from_secs(5),
            measure_from: Duration::ZERO,
        }
    }
}

/// A publisher at work. Dropping it stops it without waiting for the last confirms.
#[derive(Debug)]
pub struct Publisher {
    live: Arc<Live>,
    ledger: Ledger,
    /// One task, aborted when this is dropped.
    task: JoinSet<PublisherReport>,
}

/// A time without confirms while messages waited for them. Times since the run's origin.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Silence {
    pub from: Duration,
    pub until: Duration,
}

impl Silence {
    pub fn length(&self) -> Duration {
        self.until.saturating_sub(self.from)
    }
}

/// A noted failure, and when the first message sent after it was confirmed.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Recovery {
    /// Since the run's origin.
    pub failed_at: Duration,
    /// `None`: no message sent after it was confirmed.
    pub after: Option<Duration>,
}

#[derive(Clone, Debug, Default)]
pub struct PublisherReport {
    pub sent: u64,
    pub confirmed: u64,
    /// Confirmed between the end of the warm-up and the stop, in `measured_for`.
    pub measured_confirmed: u64,
    pub measured_for: Duration,
    /// From when a message was made (for the first time, if it was sent again) to its confirm.
    pub latency: Latencies,
    pub silences: Vec<Silence>,
    pub longest_silence: Duration,
    pub recoveries: Vec<Recovery>,
    pub reconnects: u64,
    /// Messages returned as unroutable.
    pub returned: u64,
    /// Left without an answer at the end.
    pub unconfirmed: u64,
    pub errors: Vec<String>,
}

/// What callers see of a running publisher.
#[derive(Debug, Default)]
struct Live {
    /// Nanoseconds since the origin at which the drain ends; 0 while nobody asked to stop.
    stop_by: AtomicU64,
    confirmed: AtomicU64,
    reconnects: AtomicU64,
    blocked: AtomicBool,
    address: Mutex<Option<String>>,
    recoveries: Mutex<Vec<Recovery>>,
}

impl Publisher {
    pub fn start(ledger: &Ledger, target: Target, queue: QueuePlan, plan: PublisherPlan) -> Self {
        let live = Arc::new(Live::default());
        let work = Work::new(ledger.clone(), live.clone(), target, queue, plan);
        let mut task = JoinSet::new();
        task.spawn(work.run());
        Self { live, ledger: ledger.clone(), task }
    }

    pub fn confirmed(&self) -> u64 {
        self.live.confirmed.load(Ordering::Acquire)
    }

    pub fn reconnects(&self) -> u64 {
        self.live.reconnects.load(Ordering::Acquire)
    }

    /// Whether the broker said `connection.blocked`.
    pub fn blocked(&self) -> bool {
        self.live.blocked.load(Ordering::Acquire)
    }

    /// Where it is connected, if it is.
    pub fn address(&self) -> Option<String> {
        self.live.address.lock().expect(UNPOISONED).clone()
    }

    /// Waits until `count` messages are confirmed in total; `false` if that took too long.
    pub async fn wait_confirmed(&self, count: u64, within: Duration) -> bool {
        let deadline = Instant::now() + within;
        while self.confirmed() < count {
            if Instant::now() >= deadline {
                return false;
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        true
    }

    /// From a failure noted in the ledger to the first confirm of a message sent after it; `None` if there is none
    /// within `within` from now.
    pub async fn recovery(&self, failed_at: Instant, within: Duration) -> Option<Duration> {
        let failed_at = self.ledger.time_of(failed_at);
        let deadline = Instant::now() + within;
        loop {
            let found =
                self.live.recoveries.lock().expect(UNPOISONED).iter().find(|r| r.failed_at == failed_at).copied();
            match found {
                Some(recovery) => return recovery.after,
                None if Instant::now() >= deadline => return None,
                None => tokio::time::sleep(LOOK_AGAIN).await,
            }
        }
    }

    /// No new messages; waits at most `drain` for the confirms of those that were sent.
    pub async fn stop(mut self, drain: Duration) -> PublisherReport {
        let stop_by = self.ledger.now() + drain;
        self.live.stop_by.store(u64::try_from(stop_by.as_nanos()).unwrap_or(u64::MAX).max(1), Ordering::Release);
        let ended = self.task.join_next().await.expect("one task was spawned, and is joined here only");
        ended.expect("a publisher's task neither panics nor is aborted")
    }
}

/// The task.
struct Work {
    ledger: Ledger,
    live: Arc<Live>,
    finder: Finder,
    queue: QueuePlan,
    plan: PublisherPlan,
    producer: ProducerId,
    window: Window,
    properties: Bytes,
    /// Where message bodies are made; most are copied out of it at once, so that it is reused.
    arena: BytesMut,
    filler: Vec<u8>,
    /// Since when messages wait without a confirm; `None` while none waits.
    quiet_since: Option<Duration>,
    /// Set at the first connection.
    measure_from: Option<Duration>,
    rate_from: Option<Duration>,
    /// Messages made, without those sent again.
    made: u64,
    failures_seen: usize,
    unrecovered: Vec<Duration>,
    report: PublisherReport,
}

enum Outcome {
    Finished,
    Lost(LinkError),
}

impl Work {
    fn new(ledger: Ledger, live: Arc<Live>, target: Target, queue: QueuePlan, plan: PublisherPlan) -> Self {
        let producer = ledger.book().open_producer();
        let delivery_mode = if plan.persistent { 2 } else { 1 };
        let properties = BasicProperties { delivery_mode: Some(delivery_mode), ..BasicProperties::default() }.encode();
        Self {
            failures_seen: ledger.failures_noted(),
            ledger,
            live,
            finder: Finder::new(target, queue.clone()),
            queue,
            producer,
            window: Window::new(plan.window),
            properties: properties.as_bytes().clone(),
            arena: BytesMut::new(),
            filler: vec![b'.'; plan.message_bytes.saturating_sub(MIN_MESSAGE_BYTES)],
            plan,
            quiet_since: None,
            measure_from: None,
            rate_from: None,
            made: 0,
            unrecovered: Vec::new(),
            report: PublisherReport::default(),
        }
    }

    async fn run(mut self) -> PublisherReport {
        let mut connected_before = false;
        while !self.is_finished() {
            let link = match self.finder.attempt().await {
                Ok((link, address)) => {
                    *self.live.address.lock().expect(UNPOISONED) = Some(address);
                    link
                }
                Err((address, error)) => {
                    self.note_error(&address, &error);
                    continue;
                }
            };
            if std::mem::replace(&mut connected_before, true) {
                self.report.reconnects += 1;
                self.live.reconnects.store(self.report.reconnects, Ordering::Release);
            }
            let outcome = self.serve(link).await;
            let address = self.live.address.lock().expect(UNPOISONED).take().unwrap_or_default();
            self.live.blocked.store(false, Ordering::Release);
            match outcome {
                Outcome::Finished => break,
                Outcome::Lost(error) => self.note_error(&address, &error),
            }
            let abandoned = self.window.lose();
            self.ledger.book().settle(self.producer, &abandoned, Fate::Abandoned);
        }
        self.report.unconfirmed = self.window.unconfirmed() as u64;
        self.report.recoveries = std::mem::take(&mut *self.live.recoveries.lock().expect(UNPOISONED));
        let unrecovered = self.unrecovered.iter().map(|failed_at| Recovery { failed_at: *failed_at, after: None });
        self.report.recoveries.extend(unrecovered);
        self.report
    }

    async fn serve(&mut self, mut link: Link) -> Outcome {
        match self.work_on(&mut link).await {
            Ok(()) => {
                link.close().await;
                Outcome::Finished
            }
            Err(error) => Outcome::Lost(error),
        }
    }

    async fn work_on(&mut self, link: &mut Link) -> Result<(), LinkError> {
        if self.plan.rate.is_some() {
            link.tick_every(PACE);
        }
        link.request(confirm::Select::default().into(), confirm::SelectOk::ID).await?;
        let now = self.ledger.now();
        self.measure_from.get_or_insert(now + self.plan.measure_from);
        self.rate_from.get_or_insert(now);
        let queues = if self.plan.spread_over.is_empty() {
            std::slice::from_ref(&self.queue)
        } else {
            self.plan.spread_over.as_slice()
        };
        let routing_keys =
            queues.iter().map(QueuePlan::short_name).collect::<Option<Vec<_>>>().ok_or(LinkError::QueueName)?;
        while !self.is_finished() {
            self.fill(link, &routing_keys)?;
            link.turn().await?;
            self.take_events(link)?;
            self.check_silence(now)?;
        }
        Ok(())
    }

    /// Sends as many messages as the window, the rate and the socket allow: first those to be sent again.
    fn fill(&mut self, link: &mut Link, routing_keys: &[ShortStr]) -> Result<(), LinkError> {
        let now = self.ledger.now();
        let mut room = self.window.room();
        let mut new = self.new_messages_due(now);
        if room == 0 {
            return Ok(());
        }
        let ledger = self.ledger.clone();
        let mut book = ledger.book();
        while room > 0 && link.waiting_bytes() < MAX_WAITING_BYTES {
            let created = match self.window.next_again() {
                Some(created) => created,
                None if new > 0 => {
                    new -= 1;
                    self.made += 1;
                    now
                }
                None => break,
            };
            let Some(sequence) = book.send(self.producer) else { break };
            let stamp = Stamp { run: self.ledger.run(), producer: self.producer, sequence, created };
            self.arena.extend_from_slice(&stamp.encode());
            self.arena.extend_from_slice(&self.filler);
            let body = Body::new(self.arena.split().freeze());
            let routing_key = routing_keys[(self.report.sent % routing_keys.len() as u64) as usize].as_bytes();
            link.publish(&PublishRef {
                exchange: b"",
                routing_key,
                mandatory: true,
                properties: &self.properties,
                body: &body,
            })?;
            self.window.push(Sent { sequence, created, sent: now });
            self.quiet_since.get_or_insert(now);
            self.report.sent += 1;
            room -= 1;
        }
        Ok(())
    }

    fn new_messages_due(&self, now: Duration) -> u64 {
        let left = self.plan.limit.map_or(u64::MAX, |limit| limit.saturating_sub(self.made));
        left.min(self.new_messages_allowed(now))
    }

    fn new_messages_allowed(&self, now: Duration) -> u64 {
        match (self.is_stopping(), self.plan.rate, self.rate_from) {
            (true, ..) => 0,
            (false, Some(rate), Some(from)) => {
                let due = now.saturating_sub(from).as_secs_f64() * rate as f64;
                (due as u64).saturating_sub(self.made)
            }
            (false, ..) => u64::MAX,
        }
    }

    fn take_events(&mut self, link: &mut Link) -> Result<(), LinkError> {
        let now = self.ledger.now();
        let mut answers = Answers::default();
        let outcome = loop {
            match link.poll_event() {
                Ok(None) => break Ok(()),
                Ok(Some(event)) => self.take_event(event, now, &mut answers),
                Err(error) => break Err(error),
            }
        };
        self.note_answers(now, &answers);
        outcome
    }

    fn take_event(&mut self, event: ClientEvent, now: Duration, answers: &mut Answers) {
        match event {
            ClientEvent::Method(_, Method::BasicAck(ack)) => {
                let measure_from = self.measure_from.filter(|_| !self.is_stopping()).unwrap_or(Duration::MAX);
                self.window.settle(ack.delivery_tag.0, ack.multiple, |sent| {
                    answers.confirmed.push(sent.sequence);
                    answers.latest_sent = answers.latest_sent.max(sent.sent);
                    if sent.created >= measure_from {
                        self.report.latency.record(now.saturating_sub(sent.created));
                    }
                });
            }
            ClientEvent::Method(_, Method::BasicNack(nack)) => {
                let mut again = Vec::new();
                self.window.settle(nack.delivery_tag.0, nack.multiple, |sent| {
                    answers.nacked.push(sent.sequence);
                    again.push(sent.created);
                });
                again.into_iter().for_each(|created| self.window.send_again(created));
            }
            ClientEvent::Return(..) => self.report.returned += 1,
            ClientEvent::Blocked { .. } => self.live.blocked.store(true, Ordering::Release),
            ClientEvent::Unblocked => self.live.blocked.store(false, Ordering::Release),
            _ => {}
        }
    }

    fn note_answers(&mut self, now: Duration, answers: &Answers) {
        if answers.confirmed.is_empty() && answers.nacked.is_empty() {
            return;
        }
        {
            let mut book = self.ledger.book();
            book.settle(self.producer, &answers.confirmed, Fate::Confirmed);
            book.settle(self.producer, &answers.nacked, Fate::Nacked);
        }
        if answers.confirmed.is_empty() {
            return;
        }
        let count = answers.confirmed.len() as u64;
        self.report.confirmed += count;
        self.live.confirmed.store(self.report.confirmed, Ordering::Release);
        if let Some(from) = self.measure_from.filter(|from| now >= *from && !self.is_stopping()) {
            self.report.measured_confirmed += count;
            self.report.measured_for = now - from;
        }
        self.note_silence(now);
        self.note_recoveries(now, answers.latest_sent);
    }

    fn note_silence(&mut self, now: Duration) {
        let next = (!self.window.is_idle()).then_some(now);
        let Some(from) = std::mem::replace(&mut self.quiet_since, next) else { return };
        if self.measure_from.is_some_and(|measure_from| now >= measure_from) {
            self.report.note_silence(Silence { from, until: now });
        }
    }

    fn note_recoveries(&mut self, now: Duration, latest_sent: Duration) {
        if self.failures_seen < self.ledger.failures_noted() {
            let new = self.ledger.failures_from(self.failures_seen);
            self.failures_seen += new.len();
            self.unrecovered.extend(new);
        }
        let live = &self.live;
        self.unrecovered.retain(|failed_at| {
            let is_over = latest_sent > *failed_at;
            if is_over {
                let after = Some(now.saturating_sub(*failed_at));
                live.recoveries.lock().expect(UNPOISONED).push(Recovery { failed_at: *failed_at, after });
            }
            !is_over
        });
    }

    fn check_silence(&self, connected_at: Duration) -> Result<(), LinkError> {
        let Some(quiet_since) = self.quiet_since else { return Ok(()) };
        let silence = self.ledger.now().saturating_sub(quiet_since.max(connected_at));
        let is_blocked = self.live.blocked.load(Ordering::Acquire);
        if silence > self.plan.silence_limit && !is_blocked { Err(LinkError::Silent(silence)) } else { Ok(()) }
    }

    fn is_stopping(&self) -> bool {
        self.live.stop_by.load(Ordering::Acquire) != 0
    }

    fn is_finished(&self) -> bool {
        let stop_by = self.live.stop_by.load(Ordering::Acquire);
        stop_by != 0 && (self.window.is_idle() || self.ledger.now() >= Duration::from_nanos(stop_by))
    }

    fn note_error(&mut self, address: &str, error: &LinkError) {
        if self.report.errors.len() < MAX_ERRORS {
            self.report.errors.push(format!("{address}: {error}"));
        }
    }
}

/// What one turn brought.
#[derive(Debug, Default)]
struct Answers {
    confirmed: Vec<Sequence>,
    nacked: Vec<Sequence>,
    latest_sent: Duration,
}

impl PublisherReport {
    fn note_silence(&mut self, silence: Silence) {
        self.longest_silence = self.longest_silence.max(silence.length());
        if silence.length() < SILENCE {
            return;
        }
        if self.silences.len() == MAX_SILENCES {
            let shortest = (0..MAX_SILENCES).min_by_key(|at| self.silences[*at].length());
            shortest.map(|at| self.silences.remove(at));
        }
        self.silences.push(silence);
    }
}
