//! Publishers that send again whatever was not confirmed, and the primary dies among them: each message is there once.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use understudy_protocol::{BasicProperties, ClientConfig, FieldTable, exchange, queue};

use crate::harness::{Client, Cluster, LOOK_AGAIN, Settings, await_true, short};

/// A client that gets no answer for so long tries the next broker.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);

const MESSAGES: u32 = 3000;
const WORKERS: u32 = 3;
/// Sent before their confirms are waited for: those of one batch, too, that had theirs when the connection ended are sent again.
const BATCH: usize = 20;

fn connect(to: SocketAddr) -> Option<Client> {
    let mut client = Client::connect_within(to, ClientConfig::default(), ANSWER_WITHIN).ok()?;
    client.call(understudy_protocol::confirm::Select::default()).ok()?;
    Some(client)
}

/// Sends the numbers to the queues `held` and `last` and the exchange `once`, until all are confirmed; returns how many were
/// sent again.
fn publish_all(brokers: &[SocketAddr], numbers: Vec<u32>, confirmed: &AtomicUsize) -> usize {
    let (mut left, mut sent, mut again): (Vec<u32>, BTreeSet<u32>, usize) = (numbers, BTreeSet::new(), 0);
    for door in brokers.iter().cycle() {
        let Some(mut client) = connect(*door) else {
            std::thread::sleep(LOOK_AGAIN);
            continue;
        };
        while !left.is_empty() {
            let batch = &left[..left.len().min(BATCH)];
            for number in batch {
                again += usize::from(!sent.insert(*number));
                let headers = FieldTable::new().with("x-deduplication-header", i64::from(*number));
                let properties = || BasicProperties { headers: Some(headers.clone()), ..BasicProperties::default() };
                for (exchange, key) in [("", "held"), ("", "last"), ("once", "")] {
                    client.publish_to_as(exchange, key, properties(), number.to_string());
                }
            }
            if client.await_confirms().is_err() {
                break;
            }
            confirmed.fetch_add(batch.len(), Ordering::Relaxed);
            left.drain(..batch.len());
        }
        if left.is_empty() {
            return again;
        }
    }
    unreachable!("the doors go round")
}

/// How often each number is in a queue.
fn drain(client: &mut Client, queue: &str) -> BTreeMap<u32, u32> {
    let mut seen = BTreeMap::new();
    while let Some(got) = client.get(queue, true) {
        let body = got.body.to_contiguous();
        *seen.entry(std::str::from_utf8(&body).unwrap().parse().unwrap()).or_default() += 1;
    }
    seen
}

#[test]
fn kill_9_of_the_primary_amid_retries_leaves_each_message_once() {
    // Replicas restart from checkpoints, and what they know with them.
    let mut cluster = Cluster::start_with(|settings: &mut Settings| {
        settings.extra.extend(["--checkpoint-bytes=65536".to_owned(), "--segment-bytes=65536".to_owned()]);
    });
    let mut client = cluster.client();
    let knows = || FieldTable::new().with("x-message-deduplication", true);
    client.declare_with("held", knows()).unwrap();
    client.declare_with("last", knows().with("x-cache-size", 100_000_i32)).unwrap();
    let once = exchange::Declare {
        exchange: short("once"),
        kind: short("x-message-deduplication"),
        durable: true,
        arguments: FieldTable::new().with("x-cache-size", 100_000_i32),
        ..Default::default()
    };
    client.call(once).unwrap();
    client.declare("behind").unwrap();
    client.call(queue::Bind { queue: short("behind"), exchange: short("once"), ..Default::default() }).unwrap();
    let confirmed = Arc::new(AtomicUsize::new(0));
    let workers: Vec<_> = (0..WORKERS)
        .map(|worker| {
            let (brokers, confirmed) = (cluster.addresses(), confirmed.clone());
            let numbers = (0..MESSAGES).filter(|number| number % WORKERS == worker).collect();
            std::thread::spawn(move || publish_all(&brokers, numbers, &confirmed))
        })
        .collect();
    for kills in 1..=4 {
        await_true("some were confirmed", || confirmed.load(Ordering::Relaxed) >= kills * MESSAGES as usize / 6);
        let primary = cluster.primary();
        cluster.brokers[primary].kill();
        cluster.await_other_primary(primary);
        cluster.brokers[primary].restart();
        cluster.await_all_in_sync();
    }
    let again: usize = workers.into_iter().map(|worker| worker.join().unwrap()).sum();
    let mut client = cluster.client();
    let whole: BTreeMap<u32, u32> = (0..MESSAGES).map(|number| (number, 1)).collect();
    for queue in ["held", "last", "behind"] {
        assert_eq!(drain(&mut client, queue), whole, "in {queue}");
    }
    eprintln!("{again} messages were sent again");
    assert!(again > 0, "four kills, and nobody had to send anything again");
}
