//! The parts of large messages in the log: how long they stay, and that they go; uploads that are cut off, or on their way while
//! replicas come and go; damage.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use bytes::Bytes;
use understudy_protocol::basic;

use super::{assert_whole, large, next_whole, patient};
use crate::harness::raw::{BODY, HEADER, Raw, frame, handshake, header, method};
use crate::harness::{Broker, Client, Cluster, PATIENCE, Settings, await_true, short};

/// Less than a part, so that each has a segment for itself, and checkpoints come often.
const SEGMENT_BYTES: u64 = 256 << 10;

/// What is left of a directory once nothing in it lives, at most: a few segments, and the checkpoint.
const LITTLE_BYTES: u64 = 4 << 20;

fn small(settings: &mut Settings) {
    patient(settings);
    let options = [("--segment-bytes", SEGMENT_BYTES), ("--checkpoint-bytes", SEGMENT_BYTES)];
    options.iter().for_each(|(option, value)| settings.extra.push(format!("{option}={value}")));
}

fn disk_use(data: &Path) -> u64 {
    let files = std::fs::read_dir(data).into_iter().flatten().flatten();
    files.filter_map(|file| file.metadata().ok()).map(|meta| meta.len()).sum()
}

/// Small messages come and go until `done`.
#[track_caller]
fn pass_traffic_until(cluster: &Cluster, what: &str, mut done: impl FnMut() -> bool) {
    let mut client = cluster.client();
    client.declare("traffic").unwrap();
    client.select_confirms();
    await_true(what, || {
        client.publish_confirmed("traffic", vec![7; 32 << 10]).unwrap();
        assert!(client.get("traffic", true).is_some());
        done()
    });
}

#[track_caller]
fn await_little_disk(cluster: &Cluster) {
    let little = |broker: &Broker| disk_use(&broker.settings.data) <= LITTLE_BYTES;
    pass_traffic_until(cluster, "nothing large is left on any disk", || cluster.brokers.iter().all(little));
}

#[test]
fn parts_stay_for_a_client_that_reads_slowly_and_go_when_it_has_them() {
    let cluster = Cluster::start_with(small);
    let primary = cluster.primary();
    let mut client = cluster.client();
    client.declare("large").unwrap();
    client.select_confirms();
    let bodies: Vec<Bytes> = (0..3).map(|number| large(10, number)).collect();
    let (returned, delivered) = bodies.split_first().expect("three");
    for body in delivered {
        client.publish_confirmed("large", body.clone()).unwrap();
    }
    let mut lazy = cluster.client();
    lazy.select_confirms();
    lazy.consume_without_ack("large").unwrap();
    lazy.publish_mandatory("nowhere", returned.clone());
    await_true("all of it is handed out", || client.declare("large").unwrap().message_count == 0);
    let checkpoints = || cluster.brokers[primary].metric("checkpoints_total").unwrap();
    let goal = checkpoints() + 4;
    pass_traffic_until(&cluster, "checkpoints without the messages", || checkpoints() >= goal);
    delivered.iter().for_each(|body| _ = next_whole(&mut lazy, body, false));
    let back = lazy.next_return(Instant::now() + PATIENCE).expect("it comes back");
    assert_whole(&back.body, returned);
    lazy.await_confirms().unwrap();
    await_little_disk(&cluster);
}

/// Part of a message of `size` octets: its beginning.
fn begin_upload(cluster: &Cluster, body: &[u8], size: usize) -> Raw {
    let mut raw = Raw::connect(cluster.brokers[cluster.primary()].amqp());
    let publish = method(1, basic::Publish { routing_key: short("large"), ..Default::default() });
    raw.send(&[handshake("/"), publish, frame(HEADER, 1, &header(size as u64))].concat());
    go_on(&mut raw, body);
    raw
}

fn go_on(raw: &mut Raw, body: &[u8]) {
    body.chunks(100_000).for_each(|piece| raw.send(&frame(BODY, 1, piece)));
}

/// The primary has written so many bytes.
#[track_caller]
fn await_written(cluster: &Cluster, bytes: u64) {
    let data = &cluster.brokers[cluster.primary()].settings.data;
    await_true("what was sent is on disk", || disk_use(data) >= bytes);
}

#[test]
fn an_upload_that_is_cut_off_leaves_nothing() {
    let mut cluster = Cluster::start_with(small);
    let body = large(10, 1);
    // By its client.
    let mut client = cluster.client();
    client.declare("large").unwrap();
    let raw = begin_upload(&cluster, &body[..9_000_000], body.len());
    await_written(&cluster, 8 << 20);
    drop(raw);
    await_little_disk(&cluster);
    // By its primary's death.
    let raw = begin_upload(&cluster, &body[..9_000_000], body.len());
    await_written(&cluster, 8 << 20);
    let primary = cluster.primary();
    cluster.brokers[primary].kill();
    cluster.await_other_primary(primary);
    cluster.brokers[primary].restart();
    cluster.await_all_in_sync();
    drop(raw);
    await_little_disk(&cluster);
    assert_eq!(cluster.client().declare("large").unwrap().message_count, 0);
}

#[test]
fn an_upload_goes_on_while_a_backup_starts_over_and_is_whole_there() {
    let mut cluster = Cluster::start_with(small);
    let body = large(20, 1);
    let mut client = cluster.client();
    client.declare("large").unwrap();
    let mut raw = begin_upload(&cluster, &body[..11_000_000], body.len());
    await_written(&cluster, 10 << 20);
    let [backup, other] = cluster.backups();
    cluster.brokers[backup].kill();
    std::fs::remove_dir_all(&cluster.brokers[backup].settings.data).unwrap();
    cluster.brokers[backup].restart();
    cluster.await_all_in_sync();
    assert!(cluster.brokers[backup].log().contains("resume=Base"), "{}", cluster.brokers[backup].log());
    go_on(&mut raw, &body[11_000_000..]);
    await_true("it is in its queue", || client.declare("large").unwrap().message_count == 1);
    // Some checkpoints move the parts, on the replica that got them with its base, too.
    let checkpoints = |cluster: &Cluster| cluster.brokers[backup].metric("checkpoints_total").unwrap();
    let goal = checkpoints(&cluster) + 2;
    pass_traffic_until(&cluster, "checkpoints", || checkpoints(&cluster) >= goal);
    let primary = cluster.primary();
    cluster.brokers[other].kill();
    cluster.await_set(&[primary, backup]);
    cluster.brokers[primary].kill();
    assert_eq!(cluster.await_other_primary(primary), backup);
    cluster.brokers[other].restart();
    let mut client = Client::guest(cluster.brokers[backup].amqp());
    assert_whole(&client.get("large", true).expect("it is there").body, &body);
    cluster.brokers[primary].restart();
    cluster.await_all_in_sync();
    await_little_disk(&cluster);
}

/// Changes one byte in the middle of the part that begins with `begin`.
fn damage(data: &Path, begin: &[u8]) {
    for file in std::fs::read_dir(data).unwrap().flatten().map(|file| file.path()) {
        let bytes = std::fs::read(&file).unwrap();
        let Some(at) = bytes.windows(begin.len()).position(|window| window == begin) else { continue };
        let at = at + 1000;
        let flipped = bytes[at] ^ 0x10;
        std::fs::File::options().write(true).open(&file).unwrap().write_all_at(&[flipped], at as u64).unwrap();
        return;
    }
    panic!("it is in no file of {data:?}");
}

#[test]
fn a_primary_that_cannot_read_a_part_gives_up_its_role_and_another_serves_the_message_whole() {
    let mut cluster = Cluster::start_with(patient);
    let body = large(8, 1);
    let mut client = cluster.client();
    client.declare("large").unwrap();
    client.select_confirms();
    client.publish_confirmed("large", body.clone()).unwrap();
    let damaged = cluster.primary();
    damage(&cluster.brokers[damaged].settings.data, &body[5 << 20..(5 << 20) + 32]);
    client.consume("large", 1).unwrap();
    assert!(client.next_delivery(Instant::now() + PATIENCE).is_none(), "half of it is nothing");
    let broker = &mut cluster.brokers[damaged];
    assert!(!broker.await_end().success());
    let log = broker.log();
    let said = log.lines().last().unwrap_or_default();
    assert!(said.contains("a part of a large message, record ") && said.contains("the log is damaged: "), "{said}");
    let new = cluster.await_other_primary(damaged);
    let mut client = Client::guest(cluster.brokers[new].amqp());
    assert_whole(&client.get("large", true).expect("it is there").body, &body);
}
