//! Replicas that a person keeps out.

use crate::harness::{Client, Cluster, await_true};

/// In order: the role is handed over, the set is left, nothing is opened; and back.
#[test]
fn who_is_fenced_takes_part_in_nothing_until_it_is_let_in() {
    let mut cluster = Cluster::start();
    let mut client = cluster.client();
    client.declare("work").unwrap();
    client.select_confirms();
    client.publish_confirmed("work", "before").unwrap();
    let primary = cluster.primary();
    cluster.brokers[primary].fence(true);
    assert!(cluster.brokers[primary].await_end().success());
    let successor = cluster.await_other_primary(primary);
    let mut client = Client::guest(cluster.brokers[successor].amqp());
    client.select_confirms();

    // Whatever starts it again: the mark is on its disk.
    for _ in 0..2 {
        cluster.brokers[primary].restart();
        await_true("the replica to say that it is fenced", || {
            cluster.brokers[primary].status().is_ok_and(|status| status.fenced)
        });
        assert!(!cluster.brokers[primary].is_ready());
        assert!(cluster.brokers[primary].http("/livez").is_some());
        client.publish_confirmed("work", "meanwhile").unwrap();
        let in_sync = cluster.brokers[successor].status().unwrap().in_sync;
        assert_eq!(in_sync.len(), 2, "{in_sync:?}");
        cluster.brokers[primary].kill();
    }
    cluster.brokers[primary].restart();
    await_true("it to answer", || cluster.brokers[primary].status().is_ok_and(|status| status.fenced));
    cluster.brokers[primary].fence(false);
    assert!(cluster.brokers[primary].await_end().success());
    cluster.brokers[primary].restart();
    cluster.await_all_in_sync();
    assert!(!cluster.brokers[primary].status().unwrap().fenced);
    let bodies: Vec<Vec<u8>> =
        std::iter::from_fn(|| client.get("work", true)).map(|got| got.body.to_contiguous().to_vec()).collect();
    assert_eq!(bodies, [b"before".to_vec(), b"meanwhile".to_vec(), b"meanwhile".to_vec()]);
}
