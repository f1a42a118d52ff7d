//! The primary gives its role to another replica because somebody asks for it. Clients are closed once, with the successor's
//! name; a hand-over that comes to nothing is not noticed by them.

use std::time::Duration;

use understudy_protocol::ClientEnd;

use crate::harness::{Client, Cluster, Load, Settings, await_some, await_true, drain_numbers};

/// Who waited for a timeout anywhere in a switchover would wait so long.
const BACKUP_TIMEOUT: Duration = Duration::from_secs(8);

fn start() -> Cluster {
    Cluster::start_with(|settings: &mut Settings| settings.backup_timeout_ms = BACKUP_TIMEOUT.as_millis() as u64)
}

#[test]
fn a_client_under_load_is_closed_once_and_told_by_whom_it_is_served_next() {
    const ROUNDS: usize = 4;
    let cluster = start();
    let load = Load::start(cluster.addresses(), "work");
    let mut primary = cluster.primary();
    for _ in 0..ROUNDS {
        load.await_more(200);
        let before = cluster.lease().unwrap();
        let mut idle = [primary, (primary + 1) % 3].map(|at| Client::guest(cluster.brokers[at].amqp()));
        let target = (primary + 1) % 3;
        let handed_over = cluster.brokers[primary].hand_over(before.epoch, &cluster.name(target));
        assert_eq!(handed_over, Ok((cluster.name(target), before.epoch + 1)));
        for client in &mut idle {
            let end = client.await_ended();
            let ClientEnd::ByServer { code: 320, text } = &end else { panic!("{end}") };
            assert_eq!(text.to_string(), format!("CONNECTION_FORCED - {} is the primary now", cluster.name(target)));
        }
        load.await_more(50);
        assert_eq!(cluster.primary(), target);
        assert_eq!(cluster.lease().unwrap().epoch, before.epoch + 1, "one swap, and nobody stood against it");
        cluster.await_all_in_sync();
        primary = target;
    }
    load.await_more(50);
    let published = load.stop();
    assert_eq!(published.closed.len(), ROUNDS, "one disconnect for each switchover: {:?}", published.closed);
    published.check(&drain_numbers(&mut cluster.client(), "work"));
    assert!(published.gap < BACKUP_TIMEOUT, "{:?}", published.gap);
    eprintln!(
        "{ROUNDS} switchovers: {} confirmed, {} uncertain, longest gap {:?}",
        published.confirmed.len(),
        published.uncertain.len(),
        published.gap
    );
}

/// It reads its log again before it follows: the successor's first confirms must not wait for that, unless nobody else is there.
#[test]
fn the_old_primary_stays_in_the_set_only_where_min_in_sync_needs_it() {
    let cluster = Cluster::start();
    let (primary, epoch) = (cluster.primary(), cluster.lease().unwrap().epoch);
    let [backup, other] = cluster.backups();
    cluster.brokers[primary].hand_over(epoch, &cluster.name(backup)).unwrap();
    assert_eq!(cluster.primary(), backup);
    let log = cluster.brokers[backup].log();
    let elected = log.lines().find(|line| line.contains(&format!("primary epoch={}", epoch + 1)));
    let elected = elected.unwrap_or_else(|| panic!("no election in the log:\n{log}"));
    assert!(elected.contains(&cluster.name(other)), "{elected}");
    assert!(!elected.contains(&cluster.name(primary)), "{elected}");
    cluster.await_all_in_sync();

    cluster.brokers[other].freeze();
    cluster.await_set(&[primary, backup]);
    cluster.brokers[backup].hand_over(epoch + 1, &cluster.name(primary)).unwrap();
    assert_eq!(cluster.primary(), primary);
    let mut client = Client::guest(cluster.brokers[primary].amqp());
    client.declare("work").unwrap();
    client.select_confirms();
    client.publish_confirmed("work", "1").unwrap();
    cluster.await_set(&[primary, backup]);
    cluster.brokers[other].thaw();
    cluster.await_all_in_sync();
}

#[test]
fn without_a_name_the_furthest_backup_takes_over() {
    let cluster = start();
    let (primary, epoch) = (cluster.primary(), cluster.lease().unwrap().epoch);
    let (successor, now) = cluster.brokers[primary].hand_over(epoch, "").unwrap();
    assert_ne!(successor, cluster.name(primary));
    assert_eq!(now, epoch + 1);
    await_true("it serves", || cluster.name(cluster.primary()) == successor);
}

#[test]
fn what_cannot_be_handed_over_is_refused_with_the_reason_and_not_noticed_by_clients() {
    let cluster = Cluster::start();
    let (primary, epoch) = (cluster.primary(), cluster.lease().unwrap().epoch);
    let [backup, other] = cluster.backups();
    let load = Load::start(cluster.addresses()[primary..=primary].to_vec(), "work");
    load.await_more(50);
    let refused = |at: usize, epoch: u64, to: &str| cluster.brokers[at].hand_over(epoch, to).unwrap_err();
    let name = |at: usize| cluster.name(at);
    assert_eq!(refused(primary, epoch + 1, &name(backup)), format!("the epoch is {epoch}, not {}", epoch + 1));
    assert_eq!(refused(primary, epoch, &name(primary)), format!("{} is the primary already", name(primary)));
    assert_eq!(refused(backup, epoch, &name(other)), format!("{} is not the primary", name(backup)));
    let lacks = |who: &str| format!("{who} is not in sync, or not connected: it may lack confirmed messages");
    assert_eq!(refused(primary, epoch, "nobody"), lacks("nobody"));
    cluster.brokers[backup].freeze();
    cluster.await_set(&[primary, other]);
    assert_eq!(refused(primary, epoch, &name(backup)), lacks(&name(backup)));
    cluster.brokers[backup].thaw();
    load.await_more(50);
    let published = load.stop();
    assert!(published.closed.is_empty(), "clients noticed: {:?}", published.closed);
    assert_eq!(cluster.lease().unwrap().epoch, epoch);
    published.check(&drain_numbers(&mut cluster.client(), "work"));
}

#[test]
fn publishers_go_on_when_the_lease_cannot_be_changed_and_it_works_once_it_can() {
    let cluster = start();
    let (primary, epoch) = (cluster.primary(), cluster.lease().unwrap().epoch);
    let [backup, _] = cluster.backups();
    let load = Load::start(cluster.addresses()[primary..=primary].to_vec(), "work");
    load.await_more(50);
    // Whoever compares and swaps needs a lock on this file.
    let lock = cluster.lease_file().with_file_name("lease.lock");
    std::fs::remove_file(&lock).unwrap();
    std::fs::create_dir(&lock).unwrap();
    let refused = cluster.brokers[primary].hand_over(epoch, &cluster.name(backup)).unwrap_err();
    assert!(refused.starts_with("the Lease could not be changed: "), "{refused}");
    load.await_more(100);
    std::fs::remove_dir(&lock).unwrap();
    let handed_over = await_some("the Lease can be changed", || {
        cluster.brokers[primary].hand_over(epoch, &cluster.name(backup)).ok()
    });
    assert_eq!(handed_over, (cluster.name(backup), epoch + 1));
    load.await_more(100);
    let published = load.stop();
    assert_eq!(published.closed.len(), 1, "{:?}", published.closed);
    published.check(&drain_numbers(&mut cluster.client(), "work"));
    cluster.await_all_in_sync();
}

/// A backup that leaves has told its primary, which dies before it has taken it out of the set: it is the only one who has
/// everything.
#[test]
fn a_backup_that_is_elected_on_its_way_out_takes_the_role_and_hands_it_over() {
    let mut cluster = Cluster::start();
    let primary = cluster.primary();
    let [leaving, other] = cluster.backups();
    cluster.brokers[other].kill();
    cluster.await_set(&[primary, leaving]);
    let mut client = Client::guest(cluster.brokers[primary].amqp());
    client.declare("work").unwrap();
    client.select_confirms();
    client.publish_confirmed("work", "1").unwrap();

    cluster.brokers[primary].freeze();
    cluster.brokers[leaving].terminate();
    cluster.brokers[leaving].await_log("leaving: the primary has been told");
    cluster.brokers[primary].kill();
    cluster.brokers[leaving].await_log("primary epoch=2");
    cluster.brokers[other].restart();
    assert!(cluster.brokers[leaving].await_end().success());
    let log = cluster.brokers[leaving].log();
    assert!(log.contains("primary no longer") && !log.contains("nobody took over"), "{log}");
    assert_eq!(cluster.await_other_primary(leaving), other);
    assert_eq!(drain_numbers(&mut cluster.client(), "work"), [1].into());
}
