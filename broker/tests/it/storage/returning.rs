//! A backup that comes back after checkpoints have let go of the log it lacks, or without anything: it fills itself, by the
//! log or by a base, and is worth as much as any other then.

use std::collections::BTreeSet;

use super::numbered::{body, number_of};
use super::{BUDGET_BYTES, CHECKPOINT_BYTES, SEGMENT_BYTES, files, make_primary, pass_traffic_until, small};
use crate::harness::{Broker, Client, Cluster, Consumer, Load, await_true, drain_numbers};

fn publish(client: &mut Client, queue: &str, numbers: std::ops::Range<u64>) {
    for number in numbers {
        client.publish(queue, body(number));
        if client.unconfirmed().len() >= 100 {
            client.await_confirms().unwrap();
        }
    }
    client.await_confirms().unwrap();
}

/// Takes exactly these out of the queue, in order.
#[track_caller]
fn expect_all(client: &mut Client, queue: &str, numbers: impl IntoIterator<Item = u64>) {
    for number in numbers {
        let got = client.get(queue, true).unwrap_or_else(|| panic!("{queue} ends before {number}"));
        assert_eq!(number_of(&got.body), number, "the next in {queue}");
    }
    assert!(client.get(queue, true).is_none(), "{queue} has more");
}

/// How this broker has come back, each time: the last word is on the last.
fn resumptions(broker: &Broker) -> Vec<String> {
    let log = broker.log();
    let lines = log.lines().filter_map(|line| line.split_once("resume=").map(|(_, how)| how));
    lines.map(|how| how.split(['(', ' ']).next().unwrap_or_default().to_owned()).collect()
}

#[track_caller]
fn await_checkpoints(broker: &Broker, more: u64, client: &mut Client) {
    let goal = broker.metric("checkpoints_total").unwrap() + more;
    let what = format!("{more} checkpoints of {}", broker.settings.name);
    pass_traffic_until(client, &what, || broker.metric("checkpoints_total").unwrap() >= goal);
}

#[test]
fn a_backup_that_lost_its_disk_gets_a_stored_backlog_and_serves_it_all() {
    const QUEUES: [&str; 3] = ["one", "two", "three"];
    const MESSAGES: u64 = 400;
    let mut cluster = Cluster::start_with(small);
    let mut client = cluster.client();
    client.select_confirms();
    for queue in QUEUES {
        client.declare(queue).unwrap();
        publish(&mut client, queue, 0..MESSAGES);
    }
    // Gaps in it: what a base and checkpoints carry is not one range.
    let gone = |number: &u64| number % 3 == 1;
    let tags: Vec<_> = (0..MESSAGES).map(|_| client.get("two", false).expect("a message").delivery_tag).collect();
    (0..).zip(&tags).filter(|(number, _)| gone(number)).for_each(|(_, tag)| client.ack(*tag, false));
    // What is confirmed stands behind them in the log.
    publish(&mut client, "three", MESSAGES..MESSAGES + 1);
    client.close();
    // The next primary has nothing of it in memory.
    let old = cluster.primary();
    cluster.brokers[old].kill();
    let primary = cluster.await_other_primary(old);
    cluster.brokers[old].restart();
    cluster.await_all_in_sync();
    assert!(cluster.brokers[primary].metric("message_resident_bytes").unwrap() <= BUDGET_BYTES);

    let load = Load::start(cluster.addresses(), "work");
    let consumer = Consumer::start(cluster.addresses(), "work");
    load.await_more(100);
    let backup = cluster.backups()[0];
    let broker = &mut cluster.brokers[backup];
    broker.kill();
    std::fs::remove_dir_all(&broker.settings.data).unwrap();
    broker.restart();
    cluster.await_all_in_sync();
    assert_eq!(resumptions(&cluster.brokers[backup]).last().map(String::as_str), Some("Base"));
    load.await_more(100);

    // It makes checkpoints, and the base that stood in its log is gone with the first: its messages are in kept segments.
    let mut client = cluster.client();
    client.select_confirms();
    await_checkpoints(&cluster.brokers[backup], 2, &mut client);
    client.close();
    let data = cluster.brokers[backup].settings.data.clone();
    await_true(&format!("the base is gone from {:?}", files(&data, "")), || {
        let first = files(&data, "log-").first().cloned().unwrap_or_default();
        !files(&data, "kept-").is_empty() && !first.ends_with("-00000000.seg")
    });

    let broker = &mut cluster.brokers[backup];
    broker.restart();
    cluster.await_all_in_sync();
    assert_eq!(resumptions(&cluster.brokers[backup]).last().map(String::as_str), Some("After"));
    make_primary(&mut cluster, backup);
    load.await_more(100);
    let published = load.stop();
    let mut client = cluster.client();
    expect_all(&mut client, "one", 0..MESSAGES);
    expect_all(&mut client, "two", (0..MESSAGES).filter(|number| !gone(number)));
    expect_all(&mut client, "three", 0..=MESSAGES);
    await_true("the queue is empty", || client.declare("work").unwrap().message_count == 0);
    let mut seen: BTreeSet<u64> = consumer.stop().into_keys().collect();
    seen.extend(drain_numbers(&mut client, "work"));
    published.check(&seen);
    assert_eq!(cluster.primary(), backup);
}

/// Checkpoints every few messages, so that several are made while the backup lacks less than a segment.
#[test]
fn a_backup_that_was_away_for_some_checkpoints_comes_back_by_the_log_or_by_a_base() {
    let often = CHECKPOINT_BYTES / 16;
    let mut cluster = Cluster::start_with(|settings| {
        settings.extra = [
            format!("--segment-bytes={SEGMENT_BYTES}"),
            format!("--checkpoint-bytes={often}"),
            format!("--memory-budget={BUDGET_BYTES}"),
            // By its length a log is never dearer than a base here; only by what is left of it.
            "--resume-records=1000000".to_owned(),
        ]
        .into();
    });
    let [backup, other] = cluster.backups();
    let primary = cluster.primary();
    let mut client = cluster.client();
    client.select_confirms();
    client.declare("kept").unwrap();
    publish(&mut client, "kept", 0..100);

    // Few bytes: the log before the checkpoints is still there.
    cluster.brokers[backup].kill();
    let before = cluster.brokers[primary].metric("checkpoints_total").unwrap();
    let mut number = 100;
    await_true("three checkpoints", || {
        publish(&mut client, "kept", number..number + 1);
        number += 1;
        cluster.brokers[primary].metric("checkpoints_total").unwrap() >= before + 3
    });
    cluster.brokers[backup].restart();
    cluster.await_all_in_sync();
    let ways = resumptions(&cluster.brokers[backup]);
    assert!(ways.len() > 1 && ways.iter().all(|way| way == "After"), "it came back by {ways:?}");

    // Many, and the primary is another one, which has never heard of it and keeps nothing for it.
    cluster.brokers[backup].kill();
    cluster.await_set(&[primary, other]);
    cluster.brokers[primary].terminate();
    cluster.brokers[primary].await_end();
    cluster.brokers[primary].restart();
    assert_eq!(cluster.await_other_primary(primary), other);
    cluster.await_set(&[primary, other]);
    let mut client = cluster.client();
    client.select_confirms();
    await_checkpoints(&cluster.brokers[other], 20, &mut client);
    publish(&mut client, "kept", number..number + 50);
    number += 50;
    cluster.brokers[backup].restart();
    cluster.await_all_in_sync();
    assert_eq!(resumptions(&cluster.brokers[backup]).last().map(String::as_str), Some("Base"));
    client.close();

    make_primary(&mut cluster, backup);
    let mut client = cluster.client();
    expect_all(&mut client, "kept", 0..number);
}
