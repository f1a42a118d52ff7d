//! Replicas whose clocks differ. Who leads, and whether somebody else has to, is decided by no time of day.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::harness::{Broker, Cluster, Load, Settings, drain_numbers};

const HOUR_SECONDS: i64 = 3600;
/// Nothing may happen in so many lease durations.
const QUIET_LEASES: u32 = 4;

/// The process's own library of C, but for the time of day. Made by the compiler driver that every Rust program is linked with.
fn shifted_clock(root: &Path) -> String {
    let library = root.join("shifted_clock.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/data/shifted_clock.c");
    let made = Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(source).status().unwrap();
    assert!(made.success(), "cc: {made}");
    library.display().to_string()
}

/// Of the first thing that a broker says, against ours.
fn seconds_off(broker: &Broker) -> i64 {
    let log = broker.log();
    let first = log.split_whitespace().next().unwrap();
    let said = OffsetDateTime::parse(first, &Rfc3339).unwrap_or_else(|error| panic!("{first}: {error}"));
    (said - OffsetDateTime::now_utc()).whole_seconds()
}

#[test]
fn an_hour_between_clocks_changes_nothing() {
    let root = tempfile::tempdir().unwrap();
    let library = shifted_clock(root.path());
    let shift = |at: usize| (at as i64 - 1) * HOUR_SECONDS;
    let cluster = Cluster::start_with(|settings: &mut Settings| {
        let at = settings.name.rsplit('-').next().and_then(|number| number.parse().ok()).unwrap();
        let shift = format!("CLOCK_SHIFT_SECONDS={}", shift(at));
        settings.through = vec!["env".into(), format!("LD_PRELOAD={library}"), shift];
    });
    for (at, broker) in cluster.brokers.iter().enumerate() {
        let off = seconds_off(broker) - shift(at);
        assert!(off.abs() < HOUR_SECONDS / 2, "{} is off by {off} s more than it should", broker.settings.name);
    }
    let load = Load::start(cluster.addresses(), "work");
    let before = cluster.lease().unwrap();
    let lease_duration = Duration::from_millis(cluster.brokers[0].settings.lease_duration_ms);
    let begun = Instant::now();
    while begun.elapsed() < lease_duration * QUIET_LEASES {
        load.await_more(50);
    }
    assert_eq!(cluster.lease().unwrap(), before, "renewals were seen, and yet something was done");
    // By turns those lead whose clocks are behind, right, ahead.
    for _ in 0..3 {
        let primary = cluster.primary();
        cluster.brokers[primary].freeze();
        cluster.await_other_primary(primary);
        load.await_more(50);
        cluster.brokers[primary].thaw();
        cluster.await_all_in_sync();
    }
    let published = load.stop();
    published.check(&drain_numbers(&mut cluster.client(), "work"));
    eprintln!("clocks an hour apart: {} confirmed, longest gap {:?}", published.confirmed.len(), published.gap);
}
