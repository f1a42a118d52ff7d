//! Queues of which the backups have less than all: what a failover leaves of them, and what a restart does.

use understudy_protocol::{FieldTable, exchange, queue};
use understudy_record::ShortStr;

use crate::harness::{CHANNEL, Client, Cluster, Single, await_true, short};

const MODES: [&str; 3] = ["all", "configuration", "none"];

/// Durable, and named like its mode.
fn declare(client: &mut Client, mode: &'static str) {
    let arguments = FieldTable::new().with("x-understudy-replicate", ShortStr::from_static(mode));
    let declare = queue::Declare { queue: short(mode), durable: true, arguments, ..Default::default() };
    client.declare_as(declare).unwrap();
}

fn bind(client: &mut Client, mode: &str) {
    client.call(queue::Bind { queue: short(mode), exchange: short("spread"), ..Default::default() }).unwrap();
}

/// Declares all three, bound to one exchange.
fn set_up(client: &mut Client) {
    let spread =
        exchange::Declare { exchange: short("spread"), kind: short("fanout"), durable: true, ..Default::default() };
    client.call(spread).unwrap();
    for mode in MODES {
        declare(client, mode);
        bind(client, mode);
    }
    client.select_confirms();
}

fn publish(client: &mut Client, numbers: std::ops::Range<u32>) {
    numbers.for_each(|number| client.publish_to("spread", "", number.to_string()));
    client.await_confirms().unwrap();
}

/// Its messages, or the code by which it is not there.
fn passive(client: &mut Client, name: &str) -> Result<u32, u16> {
    let declare = queue::Declare { queue: short(name), passive: true, ..Default::default() };
    let found = client.declare_as(declare).map(|ok| ok.message_count).map_err(|refused| refused.code());
    if found.is_err() {
        client.open_channel(CHANNEL);
        client.select_confirms();
    }
    found
}

#[test]
fn after_a_failover_one_queue_has_all_one_is_empty_and_one_is_gone() {
    let mut cluster = Cluster::start();
    let mut client = cluster.client();
    set_up(&mut client);
    publish(&mut client, 0..20);
    assert_eq!(MODES.map(|mode| passive(&mut client, mode)), [Ok(20), Ok(20), Ok(20)]);
    let primary = cluster.primary();
    cluster.brokers[primary].kill();
    let successor = cluster.await_other_primary(primary);
    let mut client = Client::guest(cluster.brokers[successor].amqp());
    client.select_confirms();
    assert_eq!(MODES.map(|mode| passive(&mut client, mode)), [Ok(20), Ok(0), Err(404)]);
    // The empty one is still bound, the other is as new.
    declare(&mut client, "none");
    publish(&mut client, 20..23);
    assert_eq!(MODES.map(|mode| passive(&mut client, mode)), [Ok(23), Ok(3), Ok(0)]);
    // The old primary, which had them all, has what the others have when it is the primary once more.
    cluster.brokers[primary].restart();
    cluster.await_all_in_sync();
    cluster.brokers[successor].terminate();
    let third = cluster.await_other_primary(successor);
    let mut client = Client::guest(cluster.brokers[third].amqp());
    client.select_confirms();
    assert_eq!(MODES.map(|mode| passive(&mut client, mode)), [Ok(23), Ok(0), Err(404)]);
    // Whoever follows still can apply what the primary writes.
    cluster.brokers[successor].restart();
    cluster.await_all_in_sync();
    publish(&mut client, 23..24);
    assert_eq!(passive(&mut client, "all"), Ok(24));
}

#[test]
fn a_restart_of_the_only_replica_loses_nothing_of_them() {
    let mut broker = Single::start_with(|settings| {
        settings.extra.extend(["--checkpoint-bytes=65536".to_owned(), "--segment-bytes=65536".to_owned()]);
    });
    let mut client = Client::guest(broker.amqp());
    set_up(&mut client);
    publish(&mut client, 0..20);
    // Until a checkpoint has taken the beginning of the log along.
    client.declare("other").unwrap();
    await_true("two checkpoints", || {
        client.publish_confirmed("other", vec![0; 32 << 10]).unwrap();
        client.purge("other").unwrap();
        broker.metric("checkpoints_total").unwrap() >= 2
    });
    publish(&mut client, 20..23);
    for _ in 0..2 {
        broker.kill();
        broker.restart();
        broker.await_ready();
        let mut client = Client::guest(broker.amqp());
        client.select_confirms();
        assert_eq!(MODES.map(|mode| passive(&mut client, mode)), [Ok(23); 3]);
    }
    let mut client = Client::guest(broker.amqp());
    for mode in MODES {
        let bodies: Vec<_> = (0..23).map(|_| client.get(mode, true).unwrap().body.to_contiguous()).collect();
        assert_eq!(bodies, (0..23).map(|number| number.to_string()).collect::<Vec<_>>(), "{mode}");
    }
}
