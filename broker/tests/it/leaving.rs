//! Messages that leave their queue by another way than a consumer's acknowledgement, and the order in which they leave it, when
//! the primary dies: deadlines, priorities, delivery counts, and dead letters on their way.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use understudy_protocol::{BasicProperties, FieldTable};
use understudy_record::ShortStr;

use crate::harness::{Client, Cluster, await_true, short};

fn dying_into(queue: &'static str) -> FieldTable {
    FieldTable::new()
        .with("x-dead-letter-exchange", ShortStr::EMPTY)
        .with("x-dead-letter-routing-key", ShortStr::from_static(queue))
}

/// The primary is killed, and comes back as a backup.
fn fail_over(cluster: &mut Cluster) -> Client {
    let primary = cluster.primary();
    cluster.brokers[primary].kill();
    let successor = cluster.await_other_primary(primary);
    cluster.brokers[primary].restart();
    Client::guest(cluster.brokers[successor].amqp())
}

fn messages_in(client: &mut Client, queue: &str) -> u32 {
    let passive = understudy_protocol::queue::Declare { queue: short(queue), passive: true, ..Default::default() };
    client.declare_as(passive).unwrap().message_count
}

/// Takes all that is there.
fn drain(client: &mut Client, queue: &str) -> Vec<(String, FieldTable)> {
    let mut all = Vec::new();
    while let Some(got) = client.get(queue, true) {
        let headers = got.properties.headers().unwrap_or_default();
        let body = String::from_utf8(got.body.to_contiguous().to_vec()).unwrap();
        all.push((body.trim_end().to_owned(), headers));
    }
    all
}

/// While they change their place the primary is killed, again and again: each is in one place at the end, and died once.
#[test]
fn a_dead_letter_on_its_way_is_neither_lost_nor_doubled() {
    const MESSAGES: u32 = 600;
    let mut cluster = Cluster::start();
    let mut client = cluster.client();
    client.declare_with("work", dying_into("dead")).unwrap();
    client.declare("dead").unwrap();
    client.select_confirms();
    for number in 0..MESSAGES {
        // Now and then a large one, which is written anew part by part.
        let padding = if number % 50 == 0 { 3 << 19 } else { 0 };
        client.publish("work", format!("{number}{}", " ".repeat(padding)));
    }
    client.await_confirms().unwrap();
    for killed in 0..4 {
        cluster.await_all_in_sync();
        client.consume("work", 50).unwrap();
        let mut rejected = 0;
        while rejected < MESSAGES / 8 || killed == 3 {
            let Some(delivery) = client.next_delivery(Instant::now() + Duration::from_secs(2)) else { break };
            client.nack(delivery.delivery_tag, false);
            rejected += 1;
        }
        if killed < 3 {
            client = fail_over(&mut cluster);
        }
    }
    await_true("nothing is left to reject", || messages_in(&mut client, "dead") == MESSAGES);
    assert_eq!(messages_in(&mut client, "work"), 0);
    let mut times: BTreeMap<u32, u32> = BTreeMap::new();
    for (number, headers) in drain(&mut client, "dead") {
        *times.entry(number.parse().unwrap()).or_default() += 1;
        let deaths = headers.get("x-death").and_then(|deaths| deaths.as_array()).unwrap();
        let count = deaths[0].as_table().unwrap().get("count").and_then(|count| count.as_int());
        assert_eq!((deaths.len(), count), (1, Some(1)), "message {number}");
    }
    assert_eq!(times, (0..MESSAGES).map(|number| (number, 1)).collect());
}

/// Case T1. The clock goes on: what is due leaves the new primary's queue, and nothing before it.
#[test]
fn deadlines_survive_a_failover_and_a_catch_up() {
    let mut cluster = Cluster::start();
    let mut client = cluster.client();
    client.declare_with("work", dying_into("dead")).unwrap();
    client.declare("dead").unwrap();
    client.select_confirms();
    let passing = |ms: &str| BasicProperties { expiration: Some(short(ms)), ..Default::default() };
    client.publish_as("work", passing("600000"), "later");
    client.publish_as("work", passing("4000"), "soon");
    client.publish_as("work", BasicProperties::default(), "never");
    client.await_confirms().unwrap();
    // One that has them from a base alone is the next primary.
    let [backup, other] = cluster.backups();
    cluster.brokers[backup].kill();
    std::fs::remove_dir_all(&cluster.brokers[backup].settings.data).unwrap();
    cluster.brokers[backup].restart();
    cluster.await_all_in_sync();
    cluster.brokers[other].kill();
    cluster.await_set(&[cluster.primary(), backup]);
    let primary = cluster.primary();
    cluster.brokers[primary].kill();
    assert_eq!(cluster.await_other_primary(primary), backup);
    cluster.brokers[other].restart();
    let mut client = Client::guest(cluster.brokers[backup].amqp());
    await_true("what is due has left", || messages_in(&mut client, "dead") == 1);
    let [(body, headers)] = &drain(&mut client, "dead")[..] else { panic!("one is dead") };
    assert_eq!(body, "soon");
    let death = headers.get("x-death").and_then(|deaths| deaths.as_array()).unwrap()[0].as_table().unwrap();
    let said = |what| death.get(what).and_then(|value| value.as_str());
    assert_eq!((said("reason"), said("original-expiration")), (Some("expired"), Some("4000")));
    let left: Vec<_> = drain(&mut client, "work").into_iter().map(|(body, _)| body).collect();
    assert_eq!(left, ["later", "never"]);
}

/// Case T7.
#[test]
fn priorities_survive_a_failover_and_a_restart_of_all() {
    let mut cluster = Cluster::start();
    let mut client = cluster.client();
    let ranked = || FieldTable::new().with("x-max-priority", 5);
    client.declare_with("work", ranked()).unwrap();
    client.select_confirms();
    for (number, priority) in [None, Some(1), Some(9), Some(5), Some(0), Some(1)].into_iter().enumerate() {
        client.publish_as("work", BasicProperties { priority, ..Default::default() }, number.to_string());
    }
    client.await_confirms().unwrap();
    let mut client = fail_over(&mut cluster);
    client.declare_with("work", ranked()).unwrap();
    assert_eq!(&*client.get("work", true).unwrap().body.to_contiguous(), b"2");
    cluster.await_all_in_sync();
    // From the journals.
    cluster.brokers.iter_mut().for_each(crate::harness::Broker::kill);
    cluster.brokers.iter_mut().for_each(crate::harness::Broker::restart);
    let mut client = Client::guest(cluster.brokers[cluster.primary()].amqp());
    let order: Vec<_> = drain(&mut client, "work").into_iter().map(|(body, _)| body).collect();
    assert_eq!(order, ["3", "1", "5", "0", "4"]);
}

#[test]
fn delivery_counts_survive_a_failover() {
    let mut cluster = Cluster::start();
    let mut client = cluster.client();
    client.declare_with("work", dying_into("dead").with("x-delivery-limit", 2)).unwrap();
    client.declare("dead").unwrap();
    client.select_confirms();
    client.publish_confirmed("work", "poison").unwrap();
    for _ in 0..2 {
        let got = client.get("work", false).unwrap();
        client.requeue(got.delivery_tag);
        await_true("it is back", || messages_in(&mut client, "work") == 1);
    }
    let mut client = fail_over(&mut cluster);
    let got = client.get("work", false).unwrap();
    assert_eq!(
        got.properties.headers().unwrap().get("x-delivery-count").and_then(|count| count.as_int()),
        Some(2),
        "of what came back before"
    );
    client.requeue(got.delivery_tag);
    await_true("it dies", || messages_in(&mut client, "dead") == 1);
    let (_, headers) = drain(&mut client, "dead").remove(0);
    assert_eq!(headers.get("x-first-death-reason").and_then(|reason| reason.as_str()), Some("delivery_limit"));
}

/// Case T6: the new primary gives it its whole time again, and then it goes.
#[test]
fn an_unused_queue_goes_after_a_failover() {
    let mut cluster = Cluster::start();
    let mut client = cluster.client();
    client.declare_with("work", FieldTable::new().with("x-expires", 2_000)).unwrap();
    let mut client = fail_over(&mut cluster);
    assert_eq!(messages_in(&mut client, "work"), 0, "it is there, and used by this");
    // Looking for it by a client would use it.
    cluster.brokers[cluster.primary()].await_metric("queues", 0);
}
