//! Transactions of real clients, and the primary dies among them: each is there wholly or not at all.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use understudy_protocol::{ClientConfig, FieldValue, tx};

use crate::harness::{Client, Cluster, LOOK_AGAIN, await_true};

/// A client that gets no answer for so long tries the next broker.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);

const MESSAGES: u32 = 1500;
const WORKERS: usize = 4;

fn connect(to: SocketAddr) -> Option<Client> {
    let mut client = Client::connect_within(to, ClientConfig::default(), ANSWER_WITHIN).ok()?;
    client.call(tx::Select {}).ok()?;
    Some(client)
}

/// Moves one message out of `in`, to `a` once and to `b` twice, in one transaction. `Some(None)`: nothing is there;
/// `None`: the connection ended.
fn move_one(client: &mut Client) -> Option<Option<u32>> {
    let Some(got) = client.try_get("in", false).ok()? else { return Some(None) };
    let body = got.body.to_contiguous();
    let number = std::str::from_utf8(&body).unwrap().parse().unwrap();
    ["a", "b", "b"].iter().for_each(|queue| client.publish(queue, body.clone()));
    client.ack(got.delivery_tag, false);
    client.call(tx::Commit {}).ok()?;
    Some(Some(number))
}

/// Until nothing is left; returns what was certainly moved.
fn work(brokers: &[SocketAddr], moved: &AtomicUsize) -> Vec<u32> {
    let mut certain = Vec::new();
    for door in brokers.iter().cycle() {
        let Some(mut client) = connect(*door) else {
            std::thread::sleep(LOOK_AGAIN);
            continue;
        };
        while let Some(outcome) = move_one(&mut client) {
            match outcome {
                Some(number) => certain.push(number),
                None => return certain,
            }
            moved.fetch_add(1, Ordering::Relaxed);
        }
    }
    certain
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

/// Each message is moved once, whatever becomes of the connection that does it: a commit of which only a part took effect
/// would lose a message, or move one again.
#[test]
fn kill_9_of_the_primary_amid_commits_leaves_whole_transactions() {
    let mut cluster = Cluster::start();
    let mut client = cluster.client();
    ["in", "a", "b"].iter().for_each(|queue| _ = client.declare(queue).unwrap());
    client.select_confirms();
    (0..MESSAGES).for_each(|number| client.publish("in", number.to_string()));
    client.await_confirms().unwrap();
    let moved = Arc::new(AtomicUsize::new(0));
    let workers: Vec<_> = (0..WORKERS)
        .map(|_| {
            let (brokers, moved) = (cluster.addresses(), moved.clone());
            std::thread::spawn(move || work(&brokers, &moved))
        })
        .collect();
    for kills in 1..=3 {
        await_true("some were moved", || moved.load(Ordering::Relaxed) >= kills * MESSAGES as usize / 5);
        let primary = cluster.primary();
        cluster.brokers[primary].kill();
        cluster.await_other_primary(primary);
        cluster.brokers[primary].restart();
        cluster.await_all_in_sync();
    }
    let mut certain: Vec<u32> = workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect();
    // What another held when a worker found nothing.
    certain.extend(work(&cluster.addresses(), &moved));
    let mut client = cluster.client();
    let (left, a, b) = (drain(&mut client, "in"), drain(&mut client, "a"), drain(&mut client, "b"));
    assert_eq!(left, BTreeMap::new(), "all were moved");
    assert_eq!(a, (0..MESSAGES).map(|number| (number, 1)).collect());
    assert_eq!(b, (0..MESSAGES).map(|number| (number, 2)).collect());
    eprintln!("{} commits were told, {} took effect untold", certain.len(), MESSAGES as usize - certain.len());
    certain.sort_unstable();
    assert!(certain.is_sorted_by(|one, next| one < next), "a message whose move was told was moved again");
}

#[test]
fn a_large_message_is_in_its_transaction_and_stays_there_across_a_failover() {
    let mut cluster = Cluster::start();
    let mut client = cluster.client();
    client.declare("work").unwrap();
    client.call(tx::Select {}).unwrap();
    let large: Vec<u8> = (0..3 << 20).map(|at: u32| (at / 7) as u8).collect();
    client.publish("work", large.clone());
    client.call(tx::Rollback {}).unwrap();
    client.publish("work", large.clone());
    client.publish("work", "small");
    assert!(client.get("work", true).is_none(), "nothing before the commit");
    client.call(tx::Commit {}).unwrap();
    client.publish("work", large.clone()); // never committed
    let primary = cluster.primary();
    cluster.brokers[primary].kill();
    let successor = cluster.await_other_primary(primary);
    let mut client = Client::guest(cluster.brokers[successor].amqp());
    let bodies = [client.get("work", true), client.get("work", true)].map(|got| got.unwrap().body.to_contiguous());
    assert!(bodies[0] == large && bodies[1] == "small");
    assert!(client.get("work", true).is_none());
}

#[test]
fn how_often_a_message_came_back_survives_a_failover() {
    let mut cluster = Cluster::start();
    let mut client = cluster.client();
    client.declare("work").unwrap();
    client.select_confirms();
    client.publish_confirmed("work", "1").unwrap();
    let counts = |client: &mut Client| {
        let got = client.get("work", false).unwrap();
        let count = got.properties.headers().and_then(|headers| headers.get("x-delivery-count").cloned());
        (got.delivery_tag, got.redelivered, count)
    };
    for expected in [None, Some(FieldValue::I64(1))] {
        let (tag, redelivered, count) = counts(&mut client);
        assert_eq!((redelivered, &count), (expected.is_some(), &expected));
        client.requeue(tag);
    }
    // What is confirmed after it has what was before it everywhere.
    client.publish_confirmed("work", "2").unwrap();
    assert_eq!(counts(&mut client).2, Some(FieldValue::I64(2)));
    let primary = cluster.primary();
    cluster.brokers[primary].kill();
    let successor = cluster.await_other_primary(primary);
    let mut client = Client::guest(cluster.brokers[successor].amqp());
    let (_, redelivered, count) = counts(&mut client);
    assert_eq!((redelivered, count), (true, Some(FieldValue::I64(2))), "what nobody gave back is not counted");
}
