//! The log as a storage engine, under real processes: what it takes of the disk, backlogs that are not in memory, replicas
//! that come back after checkpoints, and damage. Everything is small (segments, the log between checkpoints, the memory
//! budget), so that a few megabytes are hundreds of segments and hardly anything is in memory.

mod backlog;
mod damage;
mod disk_use;
mod numbered;
mod random;
mod returning;
mod settling;
mod short_of_disk;

use std::path::Path;
use std::time::Instant;

use crate::harness::{Client, Cluster, PATIENCE, Settings, await_true};

const SEGMENT_BYTES: u64 = 256 << 10;
const CHECKPOINT_BYTES: u64 = 256 << 10;
const BUDGET_BYTES: u64 = 1 << 20;

fn small(settings: &mut Settings) {
    let options = [
        ("--segment-bytes", SEGMENT_BYTES),
        ("--checkpoint-bytes", CHECKPOINT_BYTES),
        ("--memory-budget", BUDGET_BYTES),
    ];
    options.iter().for_each(|(option, value)| settings.extra.push(format!("{option}={value}")));
}

/// A busy machine's pauses are not to look like deaths.
fn patient(settings: &mut Settings) {
    (settings.backup_timeout_ms, settings.lease_duration_ms) = (5_000, 5_000);
}

/// Bytes of all files; what goes meanwhile counts nothing.
fn disk_use(data: &Path) -> u64 {
    let files = std::fs::read_dir(data).into_iter().flatten().flatten();
    files.filter_map(|file| file.metadata().ok()).map(|meta| meta.len()).sum()
}

/// Names of files that begin so, sorted.
fn files(data: &Path, begin: &str) -> Vec<String> {
    let files = std::fs::read_dir(data).into_iter().flatten().flatten();
    let names = files.filter_map(|file| file.file_name().into_string().ok());
    let mut names: Vec<String> = names.filter(|name| name.starts_with(begin)).collect();
    names.sort();
    names
}

/// `heir` takes over from whoever is primary; all three are in sync before and after.
fn make_primary(cluster: &mut Cluster, heir: usize) {
    cluster.await_all_in_sync();
    let primary = cluster.primary();
    if primary == heir {
        return;
    }
    // First the other backup, so that nobody else can be elected.
    let other = 3 - heir - primary;
    cluster.brokers[other].kill();
    cluster.await_set(&[primary, heir]);
    cluster.brokers[primary].kill();
    assert_eq!(cluster.await_other_primary(primary), heir);
    cluster.brokers[other].restart();
    cluster.brokers[primary].restart();
    cluster.await_all_in_sync();
}

/// Publishes until `done`, a few messages at a time, and takes them out again: traffic that leaves nothing behind.
#[track_caller]
fn pass_traffic_until(client: &mut Client, what: &str, mut done: impl FnMut() -> bool) {
    const AT_A_TIME: u64 = 16;
    client.declare("traffic").unwrap();
    client.purge("traffic").unwrap(); // what was acknowledged last and came back, if a broker died soon after
    client.consume("traffic", 0).unwrap();
    let mut number = 0;
    await_true(what, || {
        for _ in 0..AT_A_TIME {
            client.publish("traffic", numbered::body(number));
            number += 1;
        }
        client.await_confirms().unwrap();
        for expected in number - AT_A_TIME..number {
            let delivery = client.next_delivery(Instant::now() + PATIENCE).expect("what was just published");
            assert_eq!(numbered::number_of(&delivery.body), expected);
            client.ack(delivery.delivery_tag, false);
        }
        done()
    });
}
