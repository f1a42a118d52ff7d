//! A backup without a log fills itself from the primary while publishing goes on, and is worth as much as any other then.

use std::collections::BTreeSet;

use crate::harness::{Client, Cluster, Load, drain_numbers};

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
