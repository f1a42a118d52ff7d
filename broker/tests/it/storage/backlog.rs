//! Backlogs of many times the memory budget: every message comes, whole and in order, while others are published, and while
//! primaries die.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use understudy_protocol::ClientConfig;

use super::numbered::{body, number_of, size_of_body};
use super::{BUDGET_BYTES, small};
use crate::harness::{Broker, Client, Cluster, LOOK_AGAIN, Load, PATIENCE, Single, await_true, drain_numbers};

const QUEUES: u64 = 5;
const BACKLOG_BYTES: u64 = 40 << 20;

/// Publishes that wait for their confirms.
const WINDOW: usize = 200;

/// Above any number of messages in one queue: each message's number says its queue and its place there.
const PER_QUEUE: u64 = 1 << 32;

fn name(queue: u64) -> String {
    format!("backlog-{queue}")
}

/// Where the numbers end that carry so many bytes, all queues together.
fn end_of(from: u64, bytes: u64) -> u64 {
    let weight = |place: u64| (0..QUEUES).map(move |queue| size_of_body(queue * PER_QUEUE + place) as u64);
    let mut sum = 0;
    let mut lighter = |place: &u64| {
        let goes_on = sum < bytes;
        sum += weight(*place).sum::<u64>();
        goes_on
    };
    (from..).find(|place| !lighter(place)).expect("every message weighs something")
}

/// To all queues in turn.
fn publish(client: &mut Client, places: Range<u64>) {
    for place in places {
        for queue in 0..QUEUES {
            client.publish(&name(queue), body(queue * PER_QUEUE + place));
        }
        if client.unconfirmed().len() >= WINDOW {
            client.await_confirms().unwrap();
        }
    }
    client.await_confirms().unwrap();
}

/// Returns where the numbers of each queue end.
fn fill(broker: &Broker) -> u64 {
    let mut client = Client::guest(broker.amqp());
    (0..QUEUES).for_each(|queue| _ = client.declare(&name(queue)).unwrap());
    client.select_confirms();
    let end = end_of(0, BACKLOG_BYTES);
    publish(&mut client, 0..end);
    await_true("what is above the budget has left memory", || {
        broker.metric("message_resident_bytes").is_some_and(|bytes| bytes <= BUDGET_BYTES)
    });
    end
}

#[derive(Clone, Copy, Debug)]
enum How {
    Prefetch(u16),
    WithoutAck,
    Get,
}

/// Takes all messages of a queue, up to number `end`, and holds each against what must come next.
fn take_in_order(to: SocketAddr, queue: u64, how: How, end: u64) {
    let mut client = Client::guest(to);
    match how {
        How::Prefetch(count) => client.consume(&name(queue), count).unwrap(),
        How::WithoutAck => client.consume_without_ack(&name(queue)).unwrap(),
        How::Get => {}
    }
    for expected in 0..end {
        let deadline = Instant::now() + PATIENCE;
        let (came, tag, redelivered) = match how {
            How::Get => loop {
                if let Some(got) = client.get(&name(queue), false) {
                    break (got.body, Some(got.delivery_tag), got.redelivered);
                }
                assert!(Instant::now() < deadline, "queue {queue} has nothing where {expected} comes next");
                std::thread::sleep(LOOK_AGAIN);
            },
            How::Prefetch(_) | How::WithoutAck => {
                let delivery = client.next_delivery(deadline);
                let delivery =
                    delivery.unwrap_or_else(|| panic!("{expected} of queue {queue} is missing: {:?}", client.ended()));
                let tag = matches!(how, How::Prefetch(_)).then_some(delivery.delivery_tag);
                (delivery.body, tag, delivery.redelivered)
            }
        };
        assert_eq!(number_of(&came), queue * PER_QUEUE + expected, "queue {queue}, by {how:?}");
        assert!(!redelivered, "{expected} of queue {queue} was never delivered before");
        if let Some(tag) = tag {
            client.ack(tag, false);
        }
    }
    client.close();
}

#[test]
fn a_backlog_of_many_times_the_budget_comes_whole_and_in_order_whoever_asks_while_others_publish() {
    let broker = Single::start_with(small);
    let end = fill(&broker);
    let last = end_of(end, BACKLOG_BYTES / 8);
    let to = broker.amqp();
    let publisher = std::thread::spawn(move || {
        let mut client = Client::guest(to);
        client.select_confirms();
        publish(&mut client, end..last);
    });
    let ways = [How::Prefetch(1), How::Prefetch(10), How::Prefetch(0), How::WithoutAck, How::Get];
    let consumers: Vec<_> =
        (0..).zip(ways).map(|(queue, how)| std::thread::spawn(move || take_in_order(to, queue, how, last))).collect();
    publisher.join().expect("the publisher ends well");
    consumers.into_iter().for_each(|consumer| consumer.join().expect("the consumer ends well"));
    broker.await_metric("messages_ready", 0);
    broker.await_metric("messages_unacknowledged", 0);
    broker.await_metric("message_resident_bytes", 0);
}

/// Takes and acknowledges a queue's messages through failovers, on a thread of its own.
struct Drainer {
    stop: Arc<AtomicBool>,
    /// How often each place was handed out.
    thread: JoinHandle<BTreeMap<u64, u32>>,
}

/// A client that gets no answer for so long tries the next broker.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);

impl Drainer {
    /// `prefetch` bounds what is handed out twice after a failover, and how far the queue is drained in one.
    fn start(doors: Vec<SocketAddr>, queue: u64, prefetch: u16, taken: Arc<AtomicU64>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut seen = BTreeMap::new();
            let mut doors = doors.into_iter().cycle();
            while !stopped.load(Ordering::Relaxed) {
                let door = doors.next().expect("a broker at least");
                let client = Client::connect_within(door, ClientConfig::default(), ANSWER_WITHIN).ok();
                match client.and_then(|mut client| client.consume(&name(queue), prefetch).ok().map(|()| client)) {
                    Some(client) => drain(client, queue, &stopped, &taken, &mut seen),
                    None => std::thread::sleep(LOOK_AGAIN),
                }
            }
            seen
        });
        Self { stop, thread }
    }
}

/// Until the connection ends, or is silent.
fn drain(mut client: Client, queue: u64, stop: &AtomicBool, taken: &AtomicU64, seen: &mut BTreeMap<u64, u32>) {
    let mut before = None;
    let mut last = Instant::now();
    while client.ended().is_none() && !stop.load(Ordering::Relaxed) && last.elapsed() < ANSWER_WITHIN {
        let Some(delivery) = client.next_delivery(Instant::now() + LOOK_AGAIN) else { continue };
        last = Instant::now();
        let place = number_of(&delivery.body) - queue * PER_QUEUE;
        // One consumer that gives nothing back: whatever came on another connection, on this one it only ascends.
        assert!(before < Some(place), "{place} of queue {queue} came after {before:?}");
        before = Some(place);
        let times = seen.entry(place).or_insert(0);
        *times += 1;
        assert!(*times == 1 || delivery.redelivered, "{place} of queue {queue} came {times} times, unmarked");
        taken.fetch_add(u64::from(*times == 1), Ordering::Relaxed);
        client.ack(delivery.delivery_tag, false);
    }
    if client.ended().is_none() {
        client.close();
    }
}

#[test]
fn primaries_that_die_while_a_backlog_is_drained_lose_nothing_of_it() {
    const KILLS: u64 = 3;
    let mut cluster = Cluster::start_with(small);
    let end = fill(&cluster.brokers[cluster.primary()]);
    let taken = Arc::new(AtomicU64::new(0));
    let load = Load::start(cluster.addresses(), "work");
    let drainers: Vec<_> = (0..)
        .zip([1, 20, 20, 50, 200])
        .map(|(queue, prefetch)| Drainer::start(cluster.addresses(), queue, prefetch, taken.clone()))
        .collect();
    for kill in 1..=KILLS {
        let goal = end * QUEUES * kill / (KILLS + 1);
        await_true(&format!("{goal} messages are taken"), || taken.load(Ordering::Relaxed) >= goal);
        let primary = cluster.primary();
        cluster.brokers[primary].kill();
        cluster.await_other_primary(primary);
        eprintln!("{} of {} taken when a primary was killed", taken.load(Ordering::Relaxed), end * QUEUES);
        cluster.brokers[primary].restart();
        cluster.await_all_in_sync();
    }
    await_true("all are taken", || taken.load(Ordering::Relaxed) >= end * QUEUES);
    let published = load.stop();
    let mut client = cluster.client();
    for queue in 0..QUEUES {
        await_true("the queue is empty", || client.declare(&name(queue)).unwrap().message_count == 0);
    }
    for (queue, drainer) in (0_u64..).zip(drainers) {
        drainer.stop.store(true, Ordering::Relaxed);
        let seen = drainer.thread.join().expect("the consumer ends well");
        assert!(seen.keys().copied().eq(0..end), "{} of the {end} of queue {queue} came", seen.len());
        let twice = seen.values().filter(|times| **times > 1).count();
        eprintln!("queue {queue}: {twice} of {end} were handed out more than once");
        // Nothing is handed out again that had been acknowledged when it was drained for good.
        assert_eq!(client.declare(&name(queue)).unwrap().message_count, 0, "some of queue {queue} came back");
    }
    published.check(&drain_numbers(&mut client, "work"));
}
