//! Queues that belong to a connection, and names that the broker gives.

use understudy_protocol::{basic, queue};

use crate::harness::{CHANNEL, Client, Cluster, Single, await_some, short};

fn exclusive(name: &str) -> queue::Declare {
    queue::Declare { queue: short(name), exclusive: true, ..Default::default() }
}

#[test]
fn an_exclusive_queue_is_locked_for_others_until_its_connection_ends_however_it_ends() {
    let broker = Single::start();
    let mut other = Client::guest(broker.amqp());
    for ends_well in [true, false] {
        let mut owner = Client::guest(broker.amqp());
        owner.declare_as(exclusive("mine")).unwrap();
        let refused = other.declare_as(exclusive("mine")).unwrap_err();
        assert_eq!(refused.code(), 405);
        let words = "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue 'mine' in vhost '/'";
        assert!(refused.text().starts_with(words), "{refused:?}");
        other.open_channel(CHANNEL);
        let refused = other.call(basic::Consume { queue: short("mine"), ..Default::default() }).unwrap_err();
        assert_eq!(refused.code(), 405);
        other.open_channel(CHANNEL);
        if ends_well {
            owner.close()
        } else {
            drop(owner)
        }
        await_some("the queue is freed", || {
            let freed = other.declare_as(exclusive("mine")).ok();
            if freed.is_none() {
                other.open_channel(CHANNEL);
            }
            freed
        });
        other.call(queue::Delete { queue: short("mine"), ..Default::default() }).unwrap();
    }
}

#[test]
fn names_that_the_broker_gives_differ_also_after_a_restart() {
    let mut broker = Single::start();
    let mut names = std::collections::BTreeSet::new();
    for _ in 0..2 {
        let mut client = Client::guest(broker.amqp());
        for _ in 0..10 {
            let named = queue::Declare { durable: true, ..Default::default() };
            let name = client.declare_as(named).unwrap().queue.to_string();
            assert!(name.starts_with("amq.gen-"), "{name}");
            assert!(names.insert(name.clone()), "{name} was given twice");
            let passive = queue::Declare { queue: short(&name), passive: true, ..Default::default() };
            client.declare_as(passive).unwrap();
            // A name of this kind is the broker's to give, not a client's to claim.
            assert_eq!(client.declare(&name).unwrap_err().code(), 403);
            client.open_channel(CHANNEL);
        }
        broker.restart();
        broker.await_ready();
    }
}

#[test]
fn a_failover_ends_exclusive_queues_with_their_connections() {
    let mut cluster = Cluster::start();
    let primary = cluster.primary();
    let mut owner = cluster.client();
    owner.declare_as(exclusive("mine")).unwrap();
    owner.declare("ours").unwrap();
    cluster.brokers[primary].kill();
    let successor = cluster.await_other_primary(primary);
    let mut client = Client::guest(cluster.brokers[successor].amqp());
    let passive = |name: &str| queue::Declare { queue: short(name), passive: true, ..Default::default() };
    client.declare_as(passive("ours")).unwrap();
    assert_eq!(client.declare_as(passive("mine")).unwrap_err().code(), 404);
    client.open_channel(CHANNEL);
    client.declare_as(exclusive("mine")).unwrap();
}
