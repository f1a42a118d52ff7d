//! Below `minInSync` nothing is confirmed, everybody is told why, what was committed is still served, and it ends by itself.

use std::fs;
use std::time::{Duration, Instant};

use crate::harness::{Client, Cluster, PATIENCE};

#[test]
fn below_min_in_sync_publishers_wait_and_consumers_do_not() {
    let mut cluster = Cluster::start();
    let mut publisher = cluster.client();
    publisher.declare("work").unwrap();
    publisher.select_confirms();
    (0..10_u32).for_each(|number| publisher.publish_confirmed("work", number.to_string()).unwrap());
    let primary = cluster.primary();
    let backups = cluster.backups();
    for backup in backups {
        cluster.brokers[backup].kill();
    }
    cluster.await_set(&[primary]);
    // Without having sent anything, and without a heartbeat.
    let reason = publisher.await_blocked();
    assert!(reason.contains("1 replicas in sync, minInSync is 2"), "{reason}");
    assert_eq!(cluster.primary(), primary);
    cluster.brokers[primary].await_metric("confirms_held", 1);
    publisher.publish("work", "10");

    // What was committed before is there for consumers, and their acknowledgements count.
    let mut consumer = Client::guest(cluster.brokers[primary].amqp());
    consumer.consume("work", 0).unwrap();
    for number in 0..10_u32 {
        let delivery = consumer.next_delivery(Instant::now() + PATIENCE).unwrap();
        assert_eq!(delivery.body.to_contiguous(), number.to_string());
        consumer.ack(delivery.delivery_tag, false);
    }
    let for_a_while = Instant::now() + Duration::from_millis(500);
    assert!(!publisher.await_confirm(for_a_while), "confirmed below minInSync");

    cluster.brokers[backups[0]].restart();
    publisher.await_unblocked();
    publisher.await_confirms().unwrap();
    cluster.brokers[primary].await_metric("confirms_held", 0);
    cluster.await_set(&[primary, backups[0]]);
    let delivery = consumer.next_delivery(Instant::now() + PATIENCE).unwrap();
    assert_eq!(delivery.body.to_contiguous(), "10");
}

/// A person lowers it: what waited is confirmed, and nobody was restarted. Raised again, what comes next waits. What makes no
/// sense changes nothing.
#[test]
fn the_settings_file_counts_while_brokers_run() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("settings");
    let say = |text: &str| {
        let fresh = place.path().join("fresh");
        fs::write(&fresh, text).unwrap();
        fs::rename(&fresh, &file).unwrap();
    };
    say("min-in-sync=2\n");
    let mut cluster = Cluster::start_with(|settings| {
        settings.min_in_sync = 3;
        settings.extra.extend(["--settings-file".into(), file.display().to_string()]);
    });
    let mut publisher = cluster.client();
    publisher.declare("work").unwrap();
    publisher.select_confirms();
    publisher.publish_confirmed("work", "first").unwrap();
    let primary = cluster.primary();
    for backup in cluster.backups() {
        cluster.brokers[backup].kill();
    }
    cluster.await_set(&[primary]);
    publisher.await_blocked();
    publisher.publish("work", "held");
    assert!(!publisher.await_confirm(Instant::now() + Duration::from_millis(300)), "confirmed below minInSync");
    say("min-in-sync=1\n");
    publisher.await_unblocked();
    publisher.await_confirms().unwrap();

    say("min-in-sync=many\n");
    cluster.brokers[primary].await_log("the changed settings cannot be used, those before go on");
    publisher.publish_confirmed("work", "after a mistake").unwrap();
    say("min-in-sync=2\n");
    let reason = publisher.await_blocked();
    assert!(reason.contains("1 replicas in sync, minInSync is 2"), "{reason}");
    publisher.publish("work", "held again");
    assert!(!publisher.await_confirm(Instant::now() + Duration::from_millis(300)), "confirmed below minInSync");
    assert_eq!(cluster.primary(), primary);
}
