//! Three replicas, and the primary dies, leaves, or freezes. The ledger must balance each time.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use understudy_protocol::ClientEnd;

use crate::harness::{Client, Cluster, Consumer, Load, PATIENCE, Settings, await_some, await_true, drain_numbers};

#[test]
fn kill_9_of_the_primary_under_load_several_times() {
    let mut cluster = Cluster::start();
    let load = Load::start(cluster.addresses(), "work");
    let mut epoch = cluster.lease().unwrap().epoch;
    for _ in 0..4 {
        load.await_more(200);
        let primary = cluster.primary();
        cluster.brokers[primary].kill();
        cluster.await_other_primary(primary);
        load.await_more(50);
        cluster.brokers[primary].restart();
        cluster.await_all_in_sync();
        let now = cluster.lease().unwrap().epoch;
        assert!(now > epoch, "epoch {now} after {epoch}");
        epoch = now;
    }
    let published = load.stop();
    let seen = drain_numbers(&mut cluster.client(), "work");
    published.check(&seen);
    eprintln!(
        "kill -9, four times: {} confirmed, {} uncertain, longest gap {:?}",
        published.confirmed.len(),
        published.uncertain.len(),
        published.gap
    );
}

#[test]
fn a_consumer_at_work_sees_every_confirmed_message_and_knows_a_second_delivery_by_its_flag() {
    let mut cluster = Cluster::start();
    let load = Load::start(cluster.addresses(), "work");
    let consumer = Consumer::start(cluster.addresses(), "work");
    for _ in 0..2 {
        load.await_more(300);
        let primary = cluster.primary();
        cluster.brokers[primary].kill();
        cluster.await_other_primary(primary);
        load.await_more(100);
        cluster.brokers[primary].restart();
        cluster.await_all_in_sync();
    }
    let published = load.stop();
    let mut client = cluster.client();
    await_true("the queue is empty", || client.declare("work").unwrap().message_count == 0);
    let seen = consumer.stop();
    // What the consumer had not acknowledged when it was stopped.
    let mut all: BTreeSet<u64> = drain_numbers(&mut client, "work");
    let twice = seen.values().filter(|times| **times > 1).count();
    all.extend(seen.into_keys());
    published.check(&all);
    eprintln!("{} messages consumed, {twice} of them redelivered after a failover", all.len());
}

#[test]
fn everything_that_was_in_a_queue_at_a_failover_is_marked_as_redelivered() {
    let mut cluster = Cluster::start();
    let mut client = cluster.client();
    client.declare("work").unwrap();
    client.select_confirms();
    client.publish_confirmed("work", "1").unwrap();
    let primary = cluster.primary();
    cluster.brokers[primary].kill();
    let successor = cluster.await_other_primary(primary);
    let mut client = Client::guest(cluster.brokers[successor].amqp());
    client.select_confirms();
    client.publish_confirmed("work", "2").unwrap();
    let flags = [client.get("work", true), client.get("work", true)].map(|got| got.unwrap().redelivered);
    assert_eq!(flags, [true, false]);
}

#[test]
fn sigterm_of_the_primary_hands_over_and_tells_its_clients_to_whom() {
    // Who waited for the primary that has left, rather than go on without it, would wait so long.
    let backup_timeout = Duration::from_secs(8);
    let change = |settings: &mut Settings| settings.backup_timeout_ms = backup_timeout.as_millis() as u64;
    let mut cluster = Cluster::start_with(change);
    for _ in 0..2 {
        let primary = cluster.primary();
        let before = cluster.lease().unwrap();
        let mut clients: Vec<_> = (0..3).map(|_| cluster.client()).collect();
        let [backup, _] = cluster.backups();
        clients.push(Client::guest(cluster.brokers[backup].amqp()));
        let load = Load::start(cluster.addresses(), "work");
        load.await_more(100);
        cluster.brokers[primary].terminate();
        let successor = cluster.await_other_primary(primary);
        for client in &mut clients {
            let end = client.await_ended();
            let ClientEnd::ByServer { code: 320, text } = &end else { panic!("{end}") };
            let expected = format!("CONNECTION_FORCED - {} is the primary now", cluster.name(successor));
            assert_eq!(text.to_string(), expected);
        }
        load.await_more(50);
        assert!(cluster.brokers[primary].await_end().success(), "it left in good order");
        let after = cluster.lease().unwrap();
        assert_eq!(after.epoch, before.epoch + 1, "one election, nobody stood against it");
        cluster.brokers[primary].restart();
        cluster.await_all_in_sync();
        let published = load.stop();
        let seen = drain_numbers(&mut cluster.client(), "work");
        published.check(&seen);
        assert!(published.gap < backup_timeout, "{:?}", published.gap);
        eprintln!("SIGTERM: {} confirmed, longest gap {:?}", published.confirmed.len(), published.gap);
    }
}

#[test]
fn a_frozen_primary_is_replaced_and_confirms_nothing_when_it_thaws() {
    let cluster = Cluster::start();
    let primary = cluster.primary();
    let mut stale = cluster.client();
    stale.declare("work").unwrap();
    stale.select_confirms();
    stale.publish_confirmed("work", "1").unwrap();
    let mut idle = cluster.client();
    cluster.brokers[primary].freeze();
    // Into the socket of a broker that takes no step: it will read them when it is an old primary.
    (2..50_u32).for_each(|number| stale.publish("work", number.to_string()));
    let successor = cluster.await_other_primary(primary);
    let mut client = Client::guest(cluster.brokers[successor].amqp());
    client.select_confirms();
    client.publish_confirmed("work", "100").unwrap();

    cluster.brokers[primary].thaw();
    for client in [&mut stale, &mut idle] {
        let end = client.await_ended();
        let ClientEnd::ByServer { code: 320, text } = &end else { panic!("{end}") };
        assert!(text.to_string().ends_with("is the primary now"), "{text}");
    }
    assert!(!stale.await_confirm(Instant::now()), "an old primary confirmed something");
    cluster.await_all_in_sync();
    assert_eq!(drain_numbers(&mut client, "work"), BTreeSet::from([1, 100]));
}

#[test]
fn a_backup_is_taken_out_of_the_set_before_confirms_go_on_without_it() {
    let cluster = Cluster::start();
    let [backup, other] = cluster.backups();
    let mut client = cluster.client();
    client.declare("work").unwrap();
    client.select_confirms();
    client.publish_confirmed("work", "0").unwrap();
    cluster.brokers[backup].freeze();
    let start = Instant::now();
    client.publish_confirmed("work", "1").unwrap();
    let lease = cluster.lease().unwrap();
    assert!(!lease.in_sync.contains(&cluster.name(backup)), "confirmed while the set was {:?}", lease.in_sync);
    eprintln!("a frozen backup held confirms for {:?}", start.elapsed());
    assert!(start.elapsed() < PATIENCE);
    cluster.await_set(&[cluster.primary(), other]);
    cluster.brokers[backup].thaw();
    cluster.await_all_in_sync();
}

#[test]
fn a_backup_that_leaves_in_good_order_holds_nobody_up() {
    let mut cluster = Cluster::start_with(|settings| settings.backup_timeout_ms = 20_000);
    let [backup, _] = cluster.backups();
    let load = Load::start(cluster.addresses(), "work");
    load.await_more(50);
    cluster.brokers[backup].terminate();
    assert!(cluster.brokers[backup].await_end().success());
    load.await_more(50);
    let published = load.stop();
    let name = cluster.name(backup);
    assert!(!cluster.lease().unwrap().in_sync.contains(&name));
    assert!(published.gap < Duration::from_secs(10), "confirms waited for a backup that had left: {:?}", published.gap);
    published.check(&drain_numbers(&mut cluster.client(), "work"));
}

#[test]
fn all_three_killed_at_once_come_back_with_everything() {
    let mut cluster = Cluster::start();
    let load = Load::start(cluster.addresses(), "work");
    for _ in 0..2 {
        load.await_more(200);
        cluster.brokers.iter().for_each(|broker| broker.signal(rustix::process::Signal::KILL));
        cluster.brokers.iter_mut().for_each(crate::harness::Broker::restart);
        cluster.await_all_in_sync();
    }
    load.await_more(100);
    let published = load.stop();
    published.check(&drain_numbers(&mut cluster.client(), "work"));
}

#[test]
fn a_lease_that_is_deleted_is_made_anew_as_it_was() {
    let cluster = Cluster::start();
    let load = Load::start(cluster.addresses(), "work");
    load.await_more(50);
    let before = cluster.lease().unwrap();
    std::fs::remove_file(cluster.lease_file()).unwrap();
    await_true("the Lease is there again", || cluster.lease().is_some());
    assert_eq!(cluster.lease().unwrap(), before);
    load.await_more(50);
    let published = load.stop();
    assert!(published.closed.is_empty(), "clients noticed: {:?}", published.closed);
    published.check(&drain_numbers(&mut cluster.client(), "work"));
}

/// Nobody remembers it but the logs. It is created blank, or a person has done that, and written into once all have seen it.
#[test]
fn a_lease_that_is_gone_while_nobody_runs_is_recovered() {
    let mut cluster = Cluster::start();
    let load = Load::start(cluster.addresses(), "work");
    let mut epoch = cluster.lease().unwrap().epoch;
    for made_by_hand in [None, Some("{\"incarnation\": 7, \"counter\": 1}")] {
        load.await_more(50);
        cluster.brokers.iter_mut().for_each(crate::harness::Broker::kill);
        std::fs::remove_file(cluster.lease_file()).unwrap();
        if let Some(blank) = made_by_hand {
            std::fs::write(cluster.lease_file(), blank).unwrap();
        }
        cluster.brokers.iter_mut().for_each(crate::harness::Broker::restart);
        let lease = await_some("a Lease with a content", || cluster.lease());
        assert!(lease.epoch > epoch + 1_000, "epoch {} after {epoch}: nobody knows which were given", lease.epoch);
        epoch = lease.epoch;
        cluster.await_all_in_sync();
    }
    load.await_more(50);
    let published = load.stop();
    published.check(&drain_numbers(&mut cluster.client(), "work"));
}

#[test]
fn after_the_whole_cluster_was_down_one_that_lacks_messages_waits_and_says_for_whom() {
    let mut cluster = Cluster::start();
    let primary = cluster.primary();
    let [backup, stale] = cluster.backups();
    let mut client = cluster.client();
    client.declare("work").unwrap();
    client.select_confirms();
    client.publish_confirmed("work", "1").unwrap();
    cluster.brokers[stale].kill();
    cluster.await_set(&[primary, backup]);
    client.publish_confirmed("work", "2").unwrap();
    let epoch = cluster.lease().unwrap().epoch;
    cluster.brokers[primary].kill();
    cluster.brokers[backup].kill();

    // The one that comes first is the one that must not be elected.
    cluster.brokers[stale].restart();
    let message = await_some("the stale replica says for whom it waits", || {
        Some(cluster.brokers[stale].status().ok()?.message).filter(|message| message.contains("which may hold"))
    });
    for member in [primary, backup].map(|at| cluster.name(at)) {
        assert!(message.contains(&format!("{member} (store ")), "{member} is not in {message:?}");
    }
    // Longer than the Lease lasts: it had every chance to stand.
    let outlasts_the_lease =
        Instant::now() + Duration::from_millis(cluster.brokers[stale].settings.lease_duration_ms * 2);
    await_true("the Lease has run out", || Instant::now() > outlasts_the_lease);
    assert_eq!(cluster.lease().unwrap().epoch, epoch, "a replica that lacks messages was elected");
    cluster.brokers[backup].restart();
    await_true("the backup is elected", || cluster.lease().is_some_and(|lease| lease.holder == cluster.name(backup)));
    cluster.brokers[primary].restart();
    cluster.await_all_in_sync();
    await_true("it waits no more", || cluster.brokers[stale].status().is_ok_and(|status| status.message.is_empty()));
    assert_eq!(drain_numbers(&mut cluster.client(), "work"), BTreeSet::from([1, 2]));
}
