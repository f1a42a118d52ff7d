//! How far a backup's log outlives a loss of power, as it says itself: a recovery goes by that (rule 7).

use std::collections::VecDeque;
use std::time::Duration;

use bytes::BytesMut;
use understudy_record::version::{ClusterVersion, VersionRange};
use understudy_record::*;
use understudy_replication::*;

const NOW: Duration = Duration::ZERO;

fn id(n: u64) -> Identity {
    Identity { name: ReplicaName::new(&format!("r{n}")), store: StoreId(u128::from(n)), process: ProcessId(n) }
}

fn records(epoch: u64, indexes: std::ops::RangeInclusive<u64>) -> Records {
    let frame = |index| {
        let record = Record::InSyncSet { members: Vec::new() };
        Frame::record(Position::new(Epoch(epoch), Index(index)), Index(0), &record, &mut BytesMut::new())
    };
    Records { epoch: Epoch(epoch), committed: Index(0), frames: indexes.map(frame).collect() }
}

/// Records 1 to 10 of epoch 1 were found on disk.
fn backup() -> Backup {
    let config = BackupConfig {
        knows: VersionRange::OWN,
        me: id(2),
        replicated_only: false,
        backup_timeout: Duration::from_secs(2),
    };
    let log = RecoveredLog {
        cluster_version: ClusterVersion::FIRST,
        known_epoch: Epoch(1),
        history: History::new(vec![Position::new(Epoch(1), Index(1))], Index(10)).unwrap(),
        first: Index(1),
        floor: Index(0),
        applied: Index(10),
        pending: VecDeque::new(),
        damaged: false,
    };
    Backup::new(NOW, config, log)
}

/// Returns the session.
fn follow(backup: &mut Backup, epoch: u64, after: u64) -> Session {
    let mut out = Vec::new();
    backup.handle_connected(NOW);
    let resume = Resume::After(Index(after));
    let welcome = Welcome { epoch: Epoch(epoch), primary: id(1), version: ClusterVersion::FIRST, resume };
    backup.handle_welcome(NOW, welcome, &mut out).unwrap();
    let barrier = out.iter().find_map(|output| match output {
        BackupOutput::Barrier(session) => Some(*session),
        _ => None,
    });
    barrier.unwrap()
}

#[test]
fn what_was_found_on_disk_is_durable() {
    assert_eq!(backup().durable(), Index(10));
}

#[test]
fn what_becomes_durable_after_the_link_broke_counts() {
    let (mut backup, mut out) = (backup(), Vec::new());
    let session = follow(&mut backup, 1, 10);
    backup.handle_records(NOW, records(1, 11..=20), &mut out).unwrap();
    assert_eq!((backup.durable(), backup.history().last().index), (Index(10), Index(20)));
    backup.handle_disconnected(NOW, true, &mut out);
    out.clear();
    backup.handle_durable(session, Index(15), &mut out);
    assert_eq!(backup.durable(), Index(15));
    follow(&mut backup, 1, 20);
    out.clear();
    backup.handle_durable(session, Index(20), &mut out);
    assert_eq!(backup.durable(), Index(20));
    assert_eq!(out, [], "an acknowledgement is of the session that it is given in");
}

#[test]
fn what_was_cut_is_durable_no_more() {
    let (mut backup, mut out) = (backup(), Vec::new());
    let before = follow(&mut backup, 1, 10);
    backup.handle_records(NOW, records(1, 11..=20), &mut out).unwrap();
    backup.handle_durable(before, Index(15), &mut out);
    backup.handle_disconnected(NOW, true, &mut out);
    let session = follow(&mut backup, 2, 12);
    assert_eq!(backup.durable(), Index(12));
    backup.handle_records(NOW, records(2, 13..=20), &mut out).unwrap();
    backup.handle_durable(before, Index(20), &mut out);
    assert_eq!(backup.durable(), Index(12), "the journal meant what was there before the cut");
    backup.handle_durable(session, Index(18), &mut out);
    assert_eq!(backup.durable(), Index(18));
    let log = backup.handle_elected(Epoch(3), ClusterVersion::FIRST, &mut out).unwrap();
    assert_eq!((log.durable, log.history.position_at(log.durable)), (Index(18), Position::new(Epoch(2), Index(18))));
}
