//! A disk that runs full: what could not be written is not confirmed, the broker gives up its role and says what to do, and
//! with room again everything that was confirmed is there.
//!
//! Publishers would have to wait long before it is full: these brokers are told not to mind.

use std::collections::BTreeSet;

use understudy_protocol::ClientConfig;

use crate::harness::{Broker, Client, Cluster, Places, Settings, SmallDisk, drain_numbers, write_certificates};

/// What each message carries behind its number.
const PADDING: usize = 8 << 10;

/// No alarm before the disk is full.
const REGARDLESS: &str = "--disk-free-watermark=0";

#[test]
fn a_full_disk_confirms_nothing_it_could_not_write_and_loses_nothing_it_confirmed() {
    let _places = Places::take(1);
    let root = tempfile::tempdir().unwrap();
    write_certificates(&root.path().join("tls"));
    let mut settings = Settings::single(root.path());
    std::fs::create_dir(&settings.data).unwrap();
    let Some(disk) = SmallDisk::mount(&settings.data, 8) else { return };
    settings.through = disk.enter();
    settings.extra.push(REGARDLESS.into());
    let mut broker = settings.start();
    broker.await_ready();
    let mut client = Client::guest(broker.amqp());
    client.declare("work").unwrap();
    client.select_confirms();
    let mut confirmed = BTreeSet::new();
    // Twice what the disk holds, so that it is full long before.
    for number in 0..(16 << 20) / PADDING as u64 {
        let body = format!("{number}{}", " ".repeat(PADDING));
        if client.publish_confirmed("work", body).is_err() {
            break;
        }
        confirmed.insert(number);
    }
    assert!(client.ended().is_some(), "all was confirmed on a disk that cannot hold it");
    assert!(confirmed.len() > 100, "{} confirmed", confirmed.len());
    expect_full(&mut broker);

    disk.resize(&settings.data, 64);
    broker.restart();
    broker.await_ready();
    let mut client = Client::guest(broker.amqp());
    client.select_confirms();
    let seen = drain_numbers(&mut client, "work");
    let lost: Vec<_> = confirmed.difference(&seen).collect();
    assert!(lost.is_empty(), "confirmed and lost: {lost:?}");
    assert!(seen.len() <= confirmed.len() + 1, "more than the one message whose confirm did not come");
    client.publish_confirmed("work", "0").unwrap();
}

/// The broker has ended, and said why and what to do.
#[track_caller]
fn expect_full(broker: &mut Broker) {
    let status = broker.await_end();
    assert!(status.code().is_some_and(|code| code != 0), "{status}");
    let log = broker.log();
    let last = log.lines().last().unwrap();
    for words in ["ERROR", "No space left on device", "make room or enlarge the volume, then restart this broker"] {
        assert!(last.contains(words), "no {words:?} in: {last}");
    }
}

#[test]
fn a_full_disk_of_one_of_three_costs_that_replica_only() {
    let mut cluster = Cluster::start();
    let (small, other) = (cluster.backups()[0], cluster.backups()[1]);
    let first = cluster.primary();
    let mut ledger = Ledger::default();
    ledger.publish_until(&mut cluster, |_, published| published == 10);
    // A new disk, and a small one.
    cluster.brokers[small].kill();
    let data = cluster.brokers[small].settings.data.clone();
    std::fs::remove_dir_all(&data).unwrap();
    std::fs::create_dir(&data).unwrap();
    let Some(disk) = SmallDisk::mount(&data, 8) else { return };
    cluster.brokers[small].settings.through = disk.enter();
    cluster.brokers[small].settings.extra.push(REGARDLESS.into());
    cluster.brokers[small].restart();
    cluster.await_all_in_sync();

    // As a backup it leaves the set, and the others go on.
    ledger.publish_until(&mut cluster, |cluster, _| cluster.brokers[small].has_ended());
    expect_full(&mut cluster.brokers[small]);
    cluster.await_set(&[first, other]);
    ledger.publish_until(&mut cluster, |_, published| published == 10);
    assert_eq!(cluster.primary(), first);

    // As primary it is replaced.
    disk.resize(&data, 24);
    cluster.brokers[small].restart();
    cluster.await_all_in_sync();
    cluster.brokers[other].kill();
    cluster.await_set(&[first, small]);
    cluster.brokers[first].kill();
    assert_eq!(cluster.await_other_primary(first), small);
    cluster.brokers[first].restart();
    cluster.brokers[other].restart();
    cluster.await_all_in_sync();
    ledger.publish_until(&mut cluster, |cluster, _| cluster.brokers[small].has_ended());
    expect_full(&mut cluster.brokers[small]);
    cluster.await_other_primary(small);
    ledger.publish_until(&mut cluster, |_, published| published == 10);

    disk.resize(&data, 96);
    cluster.brokers[small].restart();
    cluster.await_all_in_sync();
    let seen = drain_numbers(&mut cluster.client(), "work");
    let lost: Vec<_> = ledger.confirmed.difference(&seen).collect();
    assert!(lost.is_empty(), "confirmed and lost: {lost:?}");
}

/// Large messages to whichever broker is the primary, one at a time; each number once.
#[derive(Default)]
struct Ledger {
    next: u64,
    confirmed: BTreeSet<u64>,
}

impl Ledger {
    /// Until `done`, which is told how many confirms there were.
    fn publish_until(&mut self, cluster: &mut Cluster, mut done: impl FnMut(&mut Cluster, u64) -> bool) {
        let mut published = 0;
        let mut client = None;
        // Far more than any disk here holds.
        for _ in 0..(256 << 20) / PADDING {
            if done(cluster, published) {
                return;
            }
            let Some(open) = client.take().or_else(|| connect(cluster)) else { continue };
            let open = client.insert(open);
            let body = format!("{}{}", self.next, " ".repeat(PADDING));
            match open.publish_confirmed("work", body) {
                Ok(()) => {
                    published += 1;
                    self.confirmed.insert(self.next);
                }
                Err(_) => client = None,
            }
            self.next += 1;
        }
        panic!("{published} messages, and still not done");
    }
}

/// `None` if the primary went away meanwhile.
fn connect(cluster: &Cluster) -> Option<Client> {
    let mut client = Client::connect(cluster.brokers[cluster.primary()].amqp(), ClientConfig::default()).ok()?;
    client.declare("work").ok()?;
    client.select_confirms();
    Some(client)
}
