//! Any broker is a door: a client at a backup is served by the primary, or is told who that is.

use std::collections::BTreeSet;
use std::time::Instant;

use understudy_protocol::{ClientConfig, ClientEnd, basic};

use crate::harness::raw::{Raw, handshake, method};
use crate::harness::{Client, Cluster, PATIENCE, await_true, drain_numbers, short};

#[test]
fn a_client_at_a_backup_sees_the_same_broker() {
    let cluster = Cluster::start();
    let mut at_primary = cluster.client();
    let [first, second] = cluster.backups();
    let mut publisher = Client::guest(cluster.brokers[first].amqp());
    let mut consumer = Client::guest(cluster.brokers[second].amqp());
    publisher.declare("work").unwrap();
    publisher.select_confirms();
    consumer.consume("work", 10).unwrap();
    for number in 0..100_u64 {
        publisher.publish("work", number.to_string());
    }
    publisher.await_confirms().unwrap();
    for number in 0..100_u64 {
        let delivery = consumer.next_delivery(Instant::now() + PATIENCE).unwrap();
        assert_eq!(delivery.body.to_contiguous(), number.to_string());
        consumer.ack(delivery.delivery_tag, false);
    }
    consumer.close();
    assert_eq!(at_primary.declare("work").unwrap().message_count, 0);
    let large = vec![42; 3 << 20];
    publisher.publish_confirmed("work", large.clone()).unwrap();
    assert_eq!(at_primary.get("work", true).unwrap().body.to_contiguous(), large);
    assert_eq!(cluster.brokers[first].metric("connections"), Some(0), "a backup serves nobody itself");
    publisher.close();
    cluster.brokers[first].await_metric("relayed_connections_total", 1);
}

#[test]
fn what_crosses_a_relayed_close_is_read_until_the_client_hangs_up() {
    let cluster = Cluster::start();
    let [backup, _] = cluster.backups();
    crate::bad_clients::cross_a_close(cluster.brokers[backup].amqp());
}

/// What nobody reads piles up in each socket and stream on its way, and then stops.
#[test]
fn a_relayed_consumer_that_does_not_read_is_dropped_too() {
    let cluster =
        Cluster::start_with(|settings| settings.extra = ["--send-timeout-ms", "3000"].map(String::from).into());
    let [backup, _] = cluster.backups();
    let mut client = cluster.client();
    client.declare("work").unwrap();
    client.select_confirms();
    for _ in 0..96 {
        client.publish_confirmed("work", vec![42; 1 << 20]).unwrap();
    }
    let mut raw = Raw::connect(cluster.brokers[backup].amqp());
    raw.send(&handshake("/"));
    raw.send(&method(1, basic::Consume { queue: short("work"), ..Default::default() }));
    let primary = &cluster.brokers[cluster.primary()];
    primary.await_metric("unread_connections_total", 1);
    await_true("all are there again", || client.declare("work").unwrap().message_count == 96);
}

#[test]
fn a_relayed_client_is_closed_when_the_primary_dies_and_served_again_by_the_next() {
    let mut cluster = Cluster::start();
    let primary = cluster.primary();
    let [backup, _] = cluster.backups();
    let mut client = Client::guest(cluster.brokers[backup].amqp());
    client.declare("work").unwrap();
    client.select_confirms();
    client.publish_confirmed("work", "1").unwrap();
    cluster.brokers[primary].kill();
    client.await_ended();
    // The same address again: the broker keeps the client waiting until there is a primary.
    let mut client = Client::guest(cluster.brokers[backup].amqp());
    client.select_confirms();
    client.publish_confirmed("work", "2").unwrap();
    assert_eq!(drain_numbers(&mut client, "work"), BTreeSet::from([1, 2]));
}

#[test]
fn a_backup_that_refuses_names_the_primary() {
    let cluster =
        Cluster::start_with(|settings| settings.extra = ["--backup-connections", "refuse"].map(String::from).into());
    let primary = cluster.primary();
    for backup in cluster.backups() {
        let Err(end) = Client::connect(cluster.brokers[backup].amqp(), ClientConfig::default()) else {
            panic!("a backup served a client")
        };
        let text = format!(
            "CONNECTION_FORCED - {} is a backup; the primary is {}",
            cluster.name(backup),
            cluster.name(primary)
        );
        assert_eq!(end, ClientEnd::ByServer { code: 320, text: text.as_str().try_into().unwrap() });
    }
    cluster.client().declare("work").unwrap();
}
