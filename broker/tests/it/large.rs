//! Large messages: whole on every replica and to every client, and nowhere in memory as a whole.

mod parts;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use bytes::Bytes;
use understudy_record::Body;

use crate::harness::{Broker, Client, Cluster, PATIENCE, Settings, await_true};

const MIB: usize = 1 << 20;

/// What a broker may take beyond what it took before, while a message of 100 MiB passes: the parts of it that are under way
/// between sockets, disk and replicas, and what the allocator keeps.
const MEMORY_BYTES: u64 = 48 << 20;

/// What a broker takes that has just begun, about.
const FRESH_BYTES: u64 = 40 << 20;

/// A busy machine's pauses are not to look like deaths.
fn patient(settings: &mut Settings) {
    (settings.backup_timeout_ms, settings.lease_duration_ms) = (5_000, 5_000);
}

/// Pseudo-random, and no two megabytes of it, nor of another number's, are alike.
fn large(mebibytes: usize, number: u64) -> Bytes {
    let mut state = 88_172_645_463_325_252_u64;
    let mut block: Vec<u8> = (0..MIB / 8)
        .flat_map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()
        })
        .collect();
    let mut whole = Vec::with_capacity(mebibytes * MIB);
    for at in 0..mebibytes as u64 {
        block[..16].copy_from_slice(&(u128::from(number) << 64 | u128::from(at)).to_le_bytes());
        whole.extend_from_slice(&block);
    }
    whole.into()
}

#[track_caller]
fn assert_whole(body: &Body, expected: &Bytes) {
    assert_eq!(body.len(), expected.len(), "octets");
    assert!(body.to_contiguous() == *expected, "of {} octets some are others", expected.len());
}

/// How much memory each broker takes, from here on.
struct Memory(Vec<u64>);

impl Memory {
    fn watch(brokers: &[Broker]) -> Self {
        let watch = |broker: &Broker| {
            std::fs::write(format!("/proc/{}/clear_refs", broker.pid()), "5").expect("the peak can be reset");
            status(broker, "VmRSS:")
        };
        Self(brokers.iter().map(watch).collect())
    }

    #[track_caller]
    fn assert_bounded(&self, brokers: &[Broker], what: &str) {
        for (broker, before) in brokers.iter().zip(&self.0) {
            let grown = status(broker, "VmHWM:").saturating_sub(*before);
            eprintln!("{what}: {} took {} KiB more than {} KiB", broker.settings.name, grown >> 10, before >> 10);
            assert!(grown < MEMORY_BYTES, "{} took {grown} bytes: {what}", broker.settings.name);
        }
    }
}

fn status(broker: &Broker, field: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{}/status", broker.pid())).expect("it runs");
    let line = text.lines().find_map(|line| line.strip_prefix(field)).expect("every process has it");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

#[track_caller]
fn next_whole(client: &mut Client, expected: &Bytes, redelivered: bool) -> understudy_protocol::DeliveryTag {
    let delivery = client.next_delivery(Instant::now() + PATIENCE).expect("it is delivered");
    assert_whole(&delivery.body, expected);
    assert_eq!(delivery.redelivered, redelivered);
    delivery.delivery_tag
}

#[test]
fn a_message_of_100_mib_goes_in_and_out_and_no_broker_holds_it_as_a_whole() {
    let cluster = Cluster::start_with(patient);
    let body = large(100, 1);
    let mut client = cluster.client();
    client.declare("large").unwrap();
    client.select_confirms();
    client.publish_confirmed("large", "warm").unwrap();
    assert_eq!(client.get("large", true).expect("it is there").body.len(), 4);

    let memory = Memory::watch(&cluster.brokers);
    client.publish_confirmed("large", body.clone()).unwrap();
    memory.assert_bounded(&cluster.brokers, "a publish");
    let got = client.get("large", false).expect("it is there");
    assert_whole(&got.body, &body);
    client.requeue(got.delivery_tag);
    drop(got);
    client.consume("large", 1).unwrap();
    let tag = next_whole(&mut client, &body, true);
    client.requeue(tag);
    let tag = next_whole(&mut client, &body, true);
    client.ack(tag, false);
    await_true("it is gone", || client.declare("large").unwrap().message_count == 0);
    memory.assert_bounded(&cluster.brokers, "a publish, a get and two deliveries");
}

#[test]
fn a_large_message_outlives_its_primary_a_restart_of_all_and_the_disk_of_a_backup() {
    let mut cluster = Cluster::start_with(patient);
    let body = large(100, 2);
    let mut client = cluster.client();
    client.declare("large").unwrap();
    client.select_confirms();
    client.publish_confirmed("large", body.clone()).unwrap();
    client.publish_confirmed("large", "after it").unwrap();

    let first = cluster.primary();
    cluster.brokers[first].kill();
    cluster.await_other_primary(first);
    cluster.brokers[first].restart();
    let mut client = cluster.client();
    client.consume("large", 1).unwrap();
    next_whole(&mut client, &body, true);
    drop(client); // unacknowledged

    cluster.await_all_in_sync();
    cluster.brokers.iter_mut().for_each(Broker::kill);
    cluster.brokers.iter_mut().for_each(Broker::restart);
    cluster.await_all_in_sync();
    let mut client = cluster.client();
    let got = client.get("large", false).expect("it is there");
    assert!(got.redelivered);
    assert_whole(&got.body, &body);
    client.requeue(got.delivery_tag);
    drop(got);

    // An empty backup gets it with its base, part by part.
    let [backup, other] = cluster.backups();
    let primary = cluster.primary();
    let mut memory = Memory::watch(&cluster.brokers);
    cluster.brokers[backup].kill();
    std::fs::remove_dir_all(&cluster.brokers[backup].settings.data).unwrap();
    cluster.brokers[backup].restart();
    cluster.await_all_in_sync();
    memory.0[backup] = FRESH_BYTES;
    memory.assert_bounded(&cluster.brokers, "a catch-up");
    cluster.brokers[other].kill();
    cluster.await_set(&[primary, backup]);
    cluster.brokers[primary].kill();
    assert_eq!(cluster.await_other_primary(primary), backup);
    cluster.brokers[other].restart();
    let mut client = Client::guest(cluster.brokers[backup].amqp());
    client.consume("large", 1).unwrap();
    let tag = next_whole(&mut client, &body, true);
    client.ack(tag, false);
    let small = client.next_delivery(Instant::now() + PATIENCE).expect("the one after it");
    assert_eq!(small.body.to_contiguous(), "after it");
}

#[test]
fn confirms_of_small_messages_flow_while_large_ones_come_in() {
    const LARGE: usize = 5;
    let cluster = Cluster::start_with(patient);
    let mut client = cluster.client();
    client.declare("large").unwrap();
    client.declare("small").unwrap();
    client.select_confirms();
    client.publish_confirmed("small", "warm").unwrap();
    let memory = Memory::watch(&cluster.brokers);
    let confirmed = AtomicUsize::new(0);
    let body = |number: usize| large(50, number as u64);
    let small = std::thread::scope(|scope| {
        for number in 0..LARGE {
            let (mut client, confirmed, body) = (cluster.client(), &confirmed, body(number));
            scope.spawn(move || {
                client.select_confirms();
                client.publish_confirmed("large", body).unwrap();
                confirmed.fetch_add(1, Ordering::SeqCst);
            });
        }
        let mut small = 0;
        while confirmed.load(Ordering::SeqCst) == 0 {
            client.publish_confirmed("small", "x").unwrap();
            small += 1;
        }
        small
    });
    eprintln!("{small} small messages were confirmed, one after the other, before the first large one");
    assert!(small >= 20, "only {small} small messages were confirmed before the first large one");
    memory.assert_bounded(&cluster.brokers, "five publishes at once");
    let mut left: Vec<Bytes> = (0..LARGE).map(body).collect();
    while !left.is_empty() {
        let got = client.get("large", true).expect("as many as were confirmed");
        let got = got.body.to_contiguous();
        let place = left.iter().position(|body| *body == got).expect("one of those published, whole");
        left.remove(place);
    }
}

#[test]
fn a_client_that_does_not_read_costs_little_and_nobody_else_anything() {
    let cluster = Cluster::start_with(patient);
    let mut client = cluster.client();
    client.declare("large").unwrap();
    client.declare("small").unwrap();
    client.select_confirms();
    let bodies: Vec<Bytes> = (0..3).map(|number| large(40, number)).collect();
    for body in &bodies {
        client.publish_confirmed("large", body.clone()).unwrap();
    }
    let memory = Memory::watch(&cluster.brokers);
    let mut lazy = cluster.client();
    lazy.consume_without_ack("large").unwrap();
    await_true("all of it is handed out", || client.declare("large").unwrap().message_count == 0);
    for number in 0..20 {
        client.publish_confirmed("small", number.to_string()).unwrap();
        assert_eq!(client.get("small", true).expect("it is there").body.to_contiguous(), number.to_string());
    }
    memory.assert_bounded(&cluster.brokers, "three messages for a client that does not read");
    // They are in no queue any more, and all there.
    bodies.iter().for_each(|body| _ = next_whole(&mut lazy, body, false));
    memory.assert_bounded(&cluster.brokers, "three messages that nobody waits for");
}
