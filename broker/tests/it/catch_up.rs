//! A backup without a log fills itself from the primary while publishing goes on, and is worth as much as any other then.

use std::collections::BTreeSet;

use crate::harness::{Broker, Client, Cluster, Load, await_some, await_true, drain_numbers};

#[test]
fn a_backup_whose_disk_was_lost_catches_up_under_load_and_has_everything() {
    let mut cluster = Cluster::start();
    let mut client = cluster.client();
    client.declare("old").unwrap();
    client.select_confirms();
    (0..3000_u64).for_each(|number| client.publish("old", number.to_string()));
    client.await_confirms().unwrap();
    let load = Load::start(cluster.addresses(), "work");
    load.await_more(100);
    let [backup, other] = cluster.backups();
    cluster.brokers[backup].kill();
    std::fs::remove_dir_all(&cluster.brokers[backup].settings.data).unwrap();
    cluster.brokers[backup].restart();
    cluster.await_all_in_sync();
    assert!(cluster.brokers[backup].log().contains("resume="), "it followed");
    load.await_more(100);

    // The others go, so that it is the one to have everything; first the backup, so that nobody else can be elected.
    cluster.brokers[other].kill();
    let primary = cluster.primary();
    cluster.await_set(&[primary, backup]);
    load.await_more(50);
    cluster.brokers[primary].kill();
    assert_eq!(cluster.await_other_primary(primary), backup);
    cluster.brokers[other].restart();
    load.await_more(50);
    let published = load.stop();
    let mut client = Client::guest(cluster.brokers[backup].amqp());
    published.check(&drain_numbers(&mut client, "work"));
    assert_eq!(drain_numbers(&mut client, "old"), (0..3000).collect::<BTreeSet<u64>>());
    assert_eq!(
        published.closed.len(),
        1,
        "publishing was disturbed by more than the primary's death: {:?}",
        published.closed
    );
}

#[test]
fn a_backup_that_is_back_with_a_new_disk_before_its_old_one_has_left_the_set_joins_after_it() {
    let mut cluster = Cluster::start();
    let [backup, _] = cluster.backups();
    let primary = cluster.primary();
    let mut client = cluster.client();
    client.declare("work").unwrap();
    client.select_confirms();
    let store = |cluster: &Cluster| {
        let lease = std::fs::read_to_string(cluster.lease_file()).unwrap();
        let at = lease.rfind(&format!("\"{}/", cluster.name(backup))).expect("the backup is in the set");
        lease[at..].lines().next().unwrap().to_owned()
    };
    // Which of the two the primary gets to first is a matter of milliseconds.
    for _ in 0..4 {
        let old = store(&cluster);
        cluster.brokers[backup].kill();
        std::fs::remove_dir_all(&cluster.brokers[backup].settings.data).unwrap();
        cluster.brokers[backup].restart();
        cluster.brokers[backup].await_ready();
        cluster.await_all_in_sync();
        assert_ne!(store(&cluster), old, "it is in the set as what it is no longer");
        client.publish_confirmed("work", "1").unwrap();
        assert_eq!(cluster.primary(), primary);
    }
}

#[test]
fn a_message_of_20_mb_is_on_every_replica_also_through_a_catch_up() {
    let mut cluster = Cluster::start();
    let body: Vec<u8> = (0..20 << 20).map(|at: u32| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let mut client = cluster.client();
    client.declare("large").unwrap();
    client.select_confirms();
    client.publish_confirmed("large", body.clone()).unwrap();
    let [backup, other] = cluster.backups();
    cluster.brokers[backup].kill();
    std::fs::remove_dir_all(&cluster.brokers[backup].settings.data).unwrap();
    cluster.brokers[backup].restart();
    cluster.await_all_in_sync();
    let primary = cluster.primary();
    cluster.brokers[other].kill();
    cluster.await_set(&[primary, backup]);
    cluster.brokers[primary].kill();
    assert_eq!(cluster.await_other_primary(primary), backup);
    let mut client = Client::guest(cluster.brokers[backup].amqp());
    let got = client.get("large", true).expect("it is there");
    assert!(got.body.to_contiguous() == body, "{} octets came", got.body.len());
}

const QUEUES: [&str; 4] = ["a", "b", "c", "d"];

/// Of each queue in the tests below: four megabytes together, with which a catch-up at a megabyte a second takes a while.
const MESSAGES: usize = 64;
const MESSAGE_BYTES: usize = 16 << 10;

/// A replica with an empty disk gets a base, since the log has far more records than there are messages.
fn slow_catch_ups() -> Cluster {
    let cluster = Cluster::start_with(|settings| {
        settings.extra.extend(["--catch-up-bandwidth=1048576".into(), "--resume-records=1".into()]);
    });
    let mut client = cluster.client();
    client.select_confirms();
    client.declare("gone").unwrap();
    (0..10 * MESSAGES).for_each(|_| client.publish("gone", "0"));
    client.await_confirms().unwrap();
    client.delete("gone").unwrap();
    for queue in QUEUES {
        client.declare(queue).unwrap();
        (0..MESSAGES).for_each(|number| client.publish(queue, format!("{number:0>MESSAGE_BYTES$}")));
    }
    client.await_confirms().unwrap();
    cluster
}

fn drain(client: &mut Client, queue: &str) -> Vec<usize> {
    let mut numbers = Vec::new();
    while let Some(message) = client.get(queue, true) {
        numbers.push(String::from_utf8_lossy(&message.body.to_contiguous()).parse().unwrap());
    }
    numbers
}

#[test]
fn a_catch_up_that_was_interrupted_goes_on_where_it_was() {
    let mut cluster = slow_catch_ups();
    let ([backup, other], primary) = (cluster.backups(), cluster.primary());
    cluster.brokers[backup].kill();
    std::fs::remove_dir_all(&cluster.brokers[backup].settings.data).unwrap();
    cluster.brokers[backup].restart();
    await_true("part of it is there", || {
        cluster.brokers[backup].metric("catch_up_messages_done").is_some_and(|n| n > 0)
    });
    cluster.brokers[backup].freeze();
    cluster.brokers[primary].await_log("closing a follower's stream: silent");

    // Meanwhile: what was fetched is consumed, what was not is purged, a queue goes and another comes.
    let mut client = cluster.client();
    client.select_confirms();
    (0..10).for_each(|number| assert_eq!(drain_one(&mut client, "a"), Some(number)));
    client.purge("b").unwrap();
    client.delete("c").unwrap();
    client.declare("e").unwrap();
    client.publish_confirmed("b", "1000").unwrap();
    client.publish_confirmed("e", "2000").unwrap();
    cluster.brokers[backup].thaw();
    cluster.await_all_in_sync();
    let log = cluster.brokers[backup].log();
    assert!(log.contains("resume=SameBase"), "it started over:\n{log}");
    let bases = cluster.brokers[primary].log().matches("a follower catches up from a sync point").count();
    assert_eq!(bases, 1, "it was given another base:\n{log}");

    cluster.brokers[other].kill();
    cluster.await_set(&[primary, backup]);
    cluster.brokers[primary].kill();
    assert_eq!(cluster.await_other_primary(primary), backup);
    let mut client = Client::guest(cluster.brokers[backup].amqp());
    assert_eq!(drain(&mut client, "a"), (10..MESSAGES).collect::<Vec<_>>());
    assert_eq!(drain(&mut client, "b"), [1000]);
    assert_eq!(drain(&mut client, "d"), (0..MESSAGES).collect::<Vec<_>>());
    assert_eq!(drain(&mut client, "e"), [2000]);
    assert_eq!(client.declare("c").unwrap().message_count, 0);
}

/// What it was sent, by the primary's own count: of the log, and of messages that come with a new beginning.
fn sent_to(primary: &Broker, follower: &str) -> (u64, u64) {
    let sent =
        |kind| primary.metric(&format!("replication_sent_bytes_total{{follower=\"{follower}\",kind=\"{kind}\"}}"));
    (sent("log").expect("it follows"), sent("backlog").unwrap_or(0) + sent("base").unwrap_or(0))
}

#[test]
fn a_backup_that_was_away_for_a_while_gets_what_it_missed_and_no_more() {
    let cluster = Cluster::start();
    let load = Load::paced(cluster.addresses(), "work", 500);
    load.await_more(100);
    let ([backup, other], primary) = (cluster.backups(), cluster.primary());
    let names = [backup, other].map(|at| cluster.name(at));
    let sent = || names.each_ref().map(|name| sent_to(&cluster.brokers[primary], name));
    let before = sent();
    cluster.brokers[backup].freeze();
    cluster.await_set(&[primary, other]);
    load.await_more(2000);
    cluster.brokers[backup].thaw();
    cluster.await_all_in_sync();
    let after = sent();
    let published = load.stop();
    // The other one was there all the time: it was sent each byte of the log once, as it was written.
    let [to_backup, to_other] = [0, 1].map(|at| after[at].0 - before[at].0);
    let ratio = to_backup as f64 / to_other as f64;
    eprintln!("{to_backup} bytes sent to a backup that missed {to_other}: {ratio:.3}");
    assert!(to_other > 2000 * 1500, "{to_other} bytes for 2,000 messages of 1,500 on average");
    assert!((0.9..1.3).contains(&ratio), "{to_backup} bytes sent to a backup that missed {to_other}");
    assert_eq!([after[0].1, after[1].1], [before[0].1, before[1].1], "somebody began anew");
    assert_eq!(cluster.primary(), primary);
    published.check(&drain_numbers(&mut cluster.client(), "work"));
}

fn drain_one(client: &mut Client, queue: &str) -> Option<usize> {
    client.get(queue, true).map(|message| String::from_utf8_lossy(&message.body.to_contiguous()).parse().unwrap())
}

#[test]
fn replicas_that_start_over_take_turns() {
    let mut cluster = slow_catch_ups();
    let ([one, other], primary) = (cluster.backups(), cluster.primary());
    for backup in [one, other] {
        cluster.brokers[backup].kill();
        std::fs::remove_dir_all(&cluster.brokers[backup].settings.data).unwrap();
    }
    cluster.await_set(&[primary]);
    [one, other].into_iter().for_each(|backup| cluster.brokers[backup].restart());
    let waits = |at: usize| cluster.brokers[at].metric("catch_up_place") == Some(1);
    let waiting = await_some("one waits", || [one, other].into_iter().find(|at| waits(*at)));
    assert!(!cluster.brokers[waiting].is_ready());
    let first = one + other - waiting;
    cluster.brokers[first].await_metric("catch_up_queues", QUEUES.len() as u64);
    cluster.await_set(&[primary, first]);
    cluster.await_all_in_sync();
}
