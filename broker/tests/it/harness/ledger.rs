//! The ledger: a publisher and a consumer that go on through failovers, and what each of them knows for certain.
//!
//! Every number is published once and never again, whatever became of its confirm. So a number that comes out of the queue
//! twice without having been handed to a consumer before was doubled by the brokers, and a confirmed one that does not come
//! out was lost by them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use understudy_protocol::{ClientConfig, Delivery};

use super::{Client, LOOK_AGAIN, PATIENCE};

/// Publishes that wait for their confirms.
const WINDOW: usize = 64;

/// Bytes of a large message.
const LARGE: usize = 12 << 10;

/// A client that gets no answer for so long tries the next broker.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);

/// A publisher at work on a thread of its own.
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    confirms: Arc<AtomicU64>,
    thread: JoinHandle<Published>,
}

/// What a publisher knows in the end.
#[derive(Debug, Default)]
pub(crate) struct Published {
    pub(crate) confirmed: BTreeSet<u64>,
    /// Sent, and the connection ended before the answer.
    pub(crate) uncertain: BTreeSet<u64>,
    /// How each connection ended that the brokers closed.
    pub(crate) closed: Vec<String>,
    /// The longest time between two confirms.
    pub(crate) gap: Duration,
}

impl Load {
    /// Publishes to `queue` (durable, declared here) until it is told to stop, with whichever broker answers; as fast as
    /// confirms come.
    pub(crate) fn start(brokers: Vec<SocketAddr>, queue: &str) -> Self {
        Self::begin(brokers, queue, Duration::ZERO)
    }

    /// The same, but no faster than so many messages a second.
    pub(crate) fn paced(brokers: Vec<SocketAddr>, queue: &str, per_second: u32) -> Self {
        Self::begin(brokers, queue, Duration::from_secs(1) / per_second)
    }

    fn begin(brokers: Vec<SocketAddr>, queue: &str, interval: Duration) -> Self {
        let (stop, confirms) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, counted, queue) = (stop.clone(), confirms.clone(), queue.to_owned());
        let thread = std::thread::spawn(move || publish(&brokers, &queue, interval, &stopped, &counted));
        Self { stop, confirms, thread }
    }

    pub(crate) fn confirms(&self) -> u64 {
        self.confirms.load(Ordering::Relaxed)
    }

    /// So many more confirms have come.
    #[track_caller]
    pub(crate) fn await_more(&self, count: u64) {
        let goal = self.confirms() + count;
        super::await_true(&format!("{count} more confirms"), || self.confirms() >= goal);
    }

    pub(crate) fn stop(self) -> Published {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("the publisher ends well")
    }
}

fn publish(
    brokers: &[SocketAddr],
    queue: &str,
    interval: Duration,
    stop: &AtomicBool,
    confirms: &AtomicU64,
) -> Published {
    let mut published = Published::default();
    let mut next = 0;
    let mut last_confirm = Instant::now();
    let mut last_publish = Instant::now();
    let mut doors = brokers.iter().cycle();
    while !stop.load(Ordering::Relaxed) {
        let Some(mut client) = connect(*doors.next().expect("a broker at least"), queue) else {
            std::thread::sleep(LOOK_AGAIN);
            continue;
        };
        client.select_confirms();
        let first = next;
        while client.ended().is_none() {
            let done = stop.load(Ordering::Relaxed);
            if done && client.unconfirmed().is_empty() {
                break;
            }
            let full = done || client.unconfirmed().len() >= WINDOW;
            let due = last_publish + interval;
            if !full && Instant::now() >= due {
                client.publish(queue, body_of(next));
                next += 1;
                last_publish = Instant::now();
                continue;
            }
            let before = client.unconfirmed().len();
            let answered = client.await_confirm(if full { Instant::now() + ANSWER_WITHIN } else { due });
            if answered {
                published.gap = published.gap.max(last_confirm.elapsed());
                last_confirm = Instant::now();
                confirms.fetch_add((before - client.unconfirmed().len()) as u64, Ordering::Relaxed);
            } else if full && client.ended().is_none() {
                break; // frozen, perhaps: the next broker
            }
        }
        while client.await_confirm(Instant::now()) {} // that came with the end
        if let Some(end) = client.ended() {
            published.closed.push(end.to_string());
        }
        // The first number of this connection was its publish 1.
        let (confirmed, uncertain): (BTreeSet<_>, BTreeSet<_>) =
            (first..next).partition(|number| !client.unconfirmed().contains(&(number - first + 1)));
        published.confirmed.extend(confirmed);
        published.uncertain.extend(uncertain);
    }
    published
}

/// The number, and now and then a large message.
fn body_of(number: u64) -> String {
    let padding = if number.is_multiple_of(8) { LARGE } else { 0 };
    format!("{number}{}", " ".repeat(padding))
}

fn connect(to: SocketAddr, queue: &str) -> Option<Client> {
    let mut client = Client::connect_within(to, ClientConfig::default(), ANSWER_WITHIN).ok()?;
    client.declare(queue).ok()?;
    Some(client)
}

impl Published {
    /// Every confirmed number is among those `seen`, and nothing is that was never sent.
    #[track_caller]
    pub(crate) fn check(&self, seen: &BTreeSet<u64>) {
        let lost: Vec<_> = self.confirmed.difference(seen).collect();
        assert!(lost.is_empty(), "{} of {} confirmed messages are lost: {lost:?}", lost.len(), self.confirmed.len());
        let invented: Vec<_> =
            seen.iter().filter(|number| !self.confirmed.contains(number) && !self.uncertain.contains(number)).collect();
        assert!(invented.is_empty(), "never published: {invented:?}");
    }
}

/// Takes everything out of a queue that nobody else uses, acknowledged; each number may be there once.
#[track_caller]
pub(crate) fn drain_numbers(client: &mut Client, queue: &str) -> BTreeSet<u64> {
    let count = client.declare(queue).expect("the queue is there").message_count;
    client.consume(queue, 0).expect("a consumer");
    let mut seen = BTreeSet::new();
    for _ in 0..count {
        let delivery = client.next_delivery(Instant::now() + PATIENCE);
        let delivery =
            delivery.unwrap_or_else(|| panic!("{} of {count} messages came: {:?}", seen.len(), client.ended()));
        let number = number_of(&delivery);
        assert!(seen.insert(number), "{number} is in the queue twice");
        client.ack(delivery.delivery_tag, false);
    }
    assert_eq!(client.declare(queue).expect("the queue is there").message_count, 0, "messages came from nowhere");
    seen
}

/// Behind a number there may be blanks, to make a message large.
fn number_of(delivery: &Delivery) -> u64 {
    let text = String::from_utf8(delivery.body.to_contiguous().to_vec()).expect("a number");
    text.trim_end().parse().expect("a number")
}

/// A consumer at work on a thread of its own.
pub(crate) struct Consumer {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<BTreeMap<u64, u32>>,
}

impl Consumer {
    /// Takes and acknowledges until it is told to stop. A number that was handed out before must be marked as redelivered.
    pub(crate) fn start(brokers: Vec<SocketAddr>, queue: &str) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, queue) = (stop.clone(), queue.to_owned());
        let thread = std::thread::spawn(move || consume(&brokers, &queue, &stopped));
        Self { stop, thread }
    }

    /// How often each number was handed out.
    pub(crate) fn stop(self) -> BTreeMap<u64, u32> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("the consumer ends well")
    }
}

fn consume(brokers: &[SocketAddr], queue: &str, stop: &AtomicBool) -> BTreeMap<u64, u32> {
    let mut seen = BTreeMap::new();
    let mut doors = brokers.iter().cycle();
    while !stop.load(Ordering::Relaxed) {
        let client = connect(*doors.next().expect("a broker at least"), queue);
        let Some(mut client) = client.and_then(|mut client| client.consume(queue, 100).ok().map(|()| client)) else {
            std::thread::sleep(LOOK_AGAIN);
            continue;
        };
        let mut last = Instant::now();
        while client.ended().is_none() && !stop.load(Ordering::Relaxed) && last.elapsed() < ANSWER_WITHIN {
            let Some(delivery) = client.next_delivery(Instant::now() + LOOK_AGAIN * 10) else { continue };
            last = Instant::now();
            let number = number_of(&delivery);
            let times = seen.entry(number).or_insert(0);
            *times += 1;
            assert!(
                *times == 1 || delivery.redelivered,
                "{number} came {times} times without being marked as redelivered"
            );
            client.ack(delivery.delivery_tag, false);
        }
        if client.ended().is_none() {
            client.close();
        }
    }
    seen
}
