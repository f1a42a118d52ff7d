//! What becomes of messages otherwise than by an acknowledgement, over checkpoints and a restart.

use std::collections::BTreeSet;
use std::time::Instant;

use understudy_protocol::{exchange, queue};

use super::numbered::{body, number_of};
use super::{pass_traffic_until, small};
use crate::harness::{Broker, Client, PATIENCE, Single, short};

#[track_caller]
fn checkpoints_pass(broker: &Broker, count: u64) {
    let goal = broker.metric("checkpoints_total").unwrap() + count;
    let mut client = Client::guest(broker.amqp());
    client.select_confirms();
    pass_traffic_until(&mut client, &format!("{count} checkpoints"), || {
        broker.metric("checkpoints_total").unwrap() >= goal
    });
    client.close();
}

/// Everything in the queue, taken out of it in order, each with its flag.
#[track_caller]
fn take_all(client: &mut Client, queue: &str) -> Vec<(u64, bool)> {
    let mut all = Vec::new();
    while let Some(got) = client.get(queue, true) {
        all.push((number_of(&got.body), got.redelivered));
    }
    all
}

fn publish(client: &mut Client, exchange: &str, routing_key: &str, numbers: std::ops::Range<u64>) {
    numbers.for_each(|number| client.publish_to(exchange, routing_key, body(number)));
    client.await_confirms().unwrap();
}

fn client_of(broker: &Broker) -> Client {
    let mut client = Client::guest(broker.amqp());
    client.select_confirms();
    client
}

#[test]
fn what_was_purged_or_deleted_stays_gone_and_the_rest_stays() {
    let mut broker = Single::start_with(small);
    let mut client = client_of(&broker);
    ["purged", "deleted", "anew"].iter().for_each(|queue| _ = client.declare(queue).unwrap());
    for queue in ["purged", "deleted", "anew"] {
        publish(&mut client, "", queue, 0..200);
    }
    // Some of the purged queue's messages are with a consumer: those stay.
    let held: Vec<_> = (0..3).map(|_| client.get("purged", false).expect("a message")).collect();
    checkpoints_pass(&broker, 2);
    assert_eq!(client.purge("purged").unwrap(), 197);
    assert_eq!(client.delete("deleted").unwrap(), 200);
    assert_eq!(client.delete("anew").unwrap(), 200);
    client.declare("anew").unwrap();
    publish(&mut client, "", "anew", 1000..1005);
    publish(&mut client, "", "purged", 2000..2005);
    client.ack(held[1].delivery_tag, false);
    checkpoints_pass(&broker, 2);
    publish(&mut client, "", "purged", 2005..2006);

    for _ in 0..2 {
        broker.restart();
        broker.await_ready();
        let mut client = client_of(&broker);
        assert_eq!(client.declare("purged").unwrap().message_count, 8);
        checkpoints_pass(&broker, 1);
    }
    let mut client = client_of(&broker);
    let numbers = |client: &mut Client, queue| -> Vec<u64> {
        take_all(client, queue).into_iter().map(|(number, _)| number).collect()
    };
    assert_eq!(numbers(&mut client, "purged"), [0, 2].into_iter().chain(2000..2006).collect::<Vec<_>>());
    assert_eq!(numbers(&mut client, "anew"), (1000..1005).collect::<Vec<_>>());
    assert_eq!(client.declare("deleted").unwrap().message_count, 0);
}

#[test]
fn what_is_requeued_comes_back_in_its_place_and_marked_also_from_disk() {
    const MESSAGES: u64 = 400;
    let mut broker = Single::start_with(small);
    let mut client = client_of(&broker);
    client.declare("work").unwrap();
    publish(&mut client, "", "work", 0..MESSAGES);
    let tags: Vec<_> = (0..50).map(|_| client.get("work", false).expect("a message").delivery_tag).collect();
    // What is unacknowledged is the first to leave memory, and is on disk only when it comes back.
    checkpoints_pass(&broker, 2);
    let back: BTreeSet<u64> = [3, 4, 17, 49].into();
    for (number, tag) in (0..).zip(&tags) {
        if back.contains(&number) { client.requeue(*tag) } else { client.ack(*tag, false) }
    }
    publish(&mut client, "", "work", MESSAGES..MESSAGES + 1);
    let left: Vec<u64> = back.iter().copied().chain(50..=MESSAGES).collect();
    let mut consumer = client_of(&broker);
    consumer.consume("work", 0).unwrap();
    for number in &left {
        let delivery = consumer.next_delivery(Instant::now() + PATIENCE).unwrap_or_else(|| panic!("{number} missing"));
        assert_eq!(number_of(&delivery.body), *number);
        assert_eq!(delivery.redelivered, back.contains(number), "the flag of {number}");
    }
    consumer.close();
    checkpoints_pass(&broker, 2);

    broker.restart();
    broker.await_ready();
    let mut client = client_of(&broker);
    // After a restart nobody knows what was delivered; so each may have been.
    assert_eq!(take_all(&mut client, "work"), left.iter().map(|number| (*number, true)).collect::<Vec<_>>());
}

#[test]
fn a_message_of_three_queues_lives_until_the_last_has_let_go() {
    const MESSAGES: u64 = 300;
    let mut broker = Single::start_with(small);
    let mut client = client_of(&broker);
    let fan = exchange::Declare { exchange: short("fan"), kind: short("fanout"), durable: true, ..Default::default() };
    client.call(fan).unwrap();
    for queue in ["a", "b", "c"] {
        client.declare(queue).unwrap();
        let bind = queue::Bind { queue: short(queue), exchange: short("fan"), ..Default::default() };
        client.call(bind).unwrap();
    }
    publish(&mut client, "fan", "", 0..MESSAGES);
    let in_order = |range: std::ops::Range<u64>, flag| range.map(|number| (number, flag)).collect::<Vec<_>>();
    assert_eq!(take_all(&mut client, "a"), in_order(0..MESSAGES, false));
    checkpoints_pass(&broker, 2);
    // Every other one is gone from `b` too, and the segments are rewritten around them.
    let mut tags = Vec::new();
    while let Some(got) = client.get("b", false) {
        tags.push(got.delivery_tag);
    }
    assert_eq!(tags.len() as u64, MESSAGES);
    tags.iter().step_by(2).for_each(|tag| client.ack(*tag, false));
    publish(&mut client, "fan", "", MESSAGES..MESSAGES + 1);
    checkpoints_pass(&broker, 2);

    broker.restart();
    broker.await_ready();
    let mut client = client_of(&broker);
    assert_eq!(take_all(&mut client, "a"), in_order(MESSAGES..MESSAGES + 1, true));
    checkpoints_pass(&broker, 2);
    let odd: Vec<_> = (0..MESSAGES).filter(|number| number % 2 == 1).chain([MESSAGES]).collect();
    assert_eq!(take_all(&mut client, "b"), odd.iter().map(|number| (*number, true)).collect::<Vec<_>>());
    assert_eq!(client.delete("a").unwrap(), 0);
    checkpoints_pass(&broker, 2);

    broker.restart();
    broker.await_ready();
    let mut client = client_of(&broker);
    assert_eq!(take_all(&mut client, "b"), []);
    assert_eq!(take_all(&mut client, "c"), in_order(0..MESSAGES + 1, true));
}
