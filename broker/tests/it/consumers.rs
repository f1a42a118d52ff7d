//! Consumers that are fast, slow, or do not read at all: what waits for one of them is bounded, and nobody stalls.

use std::collections::BTreeSet;
use std::time::Instant;

use crate::harness::{Client, PATIENCE, Single, drain_numbers};

/// What each message carries behind its number.
const PADDING: usize = 8 << 10;

fn publish(client: &mut Client, numbers: std::ops::Range<u64>) {
    for number in numbers {
        client.publish("work", format!("{number}{}", " ".repeat(PADDING)));
    }
    client.await_confirms().unwrap();
}

#[test]
fn a_consumer_without_prefetch_gets_a_large_backlog_to_its_end() {
    let broker = Single::start();
    let mut publisher = Client::guest(broker.amqp());
    publisher.declare("work").unwrap();
    publisher.select_confirms();
    // Each round is many times what may wait for one client, so that delivery stops and goes on again.
    for round in 0..6_u64 {
        let numbers = round * 1500..(round + 1) * 1500;
        publish(&mut publisher, numbers.clone());
        let mut consumer = Client::guest(broker.amqp());
        assert_eq!(drain_numbers(&mut consumer, "work"), numbers.collect::<BTreeSet<u64>>());
    }
}

#[test]
fn a_consumer_that_does_not_read_holds_up_nobody_and_its_messages_come_back() {
    /// Far more, in bytes, than the broker and the sockets keep for one client: some kernels let a receive buffer grow to
    /// 32 MiB.
    const MESSAGES: u64 = 9000;
    let broker = Single::start();
    let mut publisher = Client::guest(broker.amqp());
    publisher.declare("work").unwrap();
    publisher.select_confirms();
    let mut asleep = Client::guest(broker.amqp());
    asleep.consume("work", 0).unwrap();
    publish(&mut publisher, 0..MESSAGES);
    // It has been given some, and not all: a bound was met.
    let ready = || broker.metric("messages_ready").unwrap();
    assert!((1..MESSAGES).contains(&ready()), "{} are ready", ready());
    let mut awake = Client::guest(broker.amqp());
    awake.consume("work", 0).unwrap();
    let mut seen = 0;
    let deadline = Instant::now() + PATIENCE;
    while ready() > 0 {
        let delivery = awake.next_delivery(deadline).expect("the other consumer is served");
        awake.ack(delivery.delivery_tag, false);
        seen += 1;
    }
    drop(asleep);
    while seen < MESSAGES {
        let delivery = awake.next_delivery(deadline).unwrap_or_else(|| panic!("{seen} came"));
        awake.ack(delivery.delivery_tag, false);
        seen += 1;
    }
}
