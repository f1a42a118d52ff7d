//! The cluster's version between a primary and its followers: when it may be raised, who is refused, who hears of it and when.

use std::time::Duration;

use bytes::BytesMut;
use understudy_record::version::{ClusterVersion, VersionRange};
use understudy_record::{Epoch, Frame, Identity, Index, Position, ProcessId, Record, ReplicaName, StoreId};
use understudy_replication::*;

fn at(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn name(n: u64) -> ReplicaName {
    ReplicaName::new(&format!("r{n}"))
}

fn id(n: u64) -> Identity {
    Identity { name: name(n), store: StoreId(n.into()), process: ProcessId(n) }
}

fn knows(newest: u32) -> VersionRange {
    VersionRange { oldest: ClusterVersion(1), newest: ClusterVersion(newest) }
}

const REPLICAS: [u64; 3] = [1, 2, 3];

/// Replica 1 of a cluster at version 2, with a build that knows version 3; nobody follows yet.
fn primary() -> Primary {
    let config = PrimaryConfig {
        max_catch_ups: 1,
        me: id(1),
        min_in_sync: 2,
        replicated_only: false,
        backup_timeout: at(2000),
        stall_timeout: at(10_000),
        lease_duration: at(5000),
        resume_records: 50,
        knows: knows(3),
        version: ClusterVersion(2),
    };
    let set = REPLICAS.map(|n| id(n).member(false)).into();
    let log = OwnLog { history: History::default(), first: Index(1), durable: Index(0) };
    let mut primary = Primary::new(at(0), config, Epoch(1), log, set);
    let members = REPLICAS.map(|n| id(n).member(false)).to_vec();
    let start = Record::EpochStart { primary: id(1), in_sync: members };
    let position = Position::new(Epoch(1), Index(1));
    let start = Frame::record(position, Index(0), &start, &mut BytesMut::new());
    primary.handle_appended(at(0), &[start], &mut Vec::new());
    primary.handle_durable(at(0), Epoch(1), Index(1), &mut Vec::new());
    primary
}

fn greet(primary: &mut Primary, n: u64, build: VersionRange) -> Vec<PrimaryOutput> {
    let mut out = Vec::new();
    let hello = Hello {
        half_base: None,
        follower: id(n),
        epoch: Epoch(0),
        history: History::default(),
        first: Index(1),
        floor: Index(0),
        clean: true,
        knows: build,
    };
    primary.handle_hello(at(1), StreamId(n), &hello, 0, &mut out);
    out
}

fn next(primary: &Primary) -> Option<u32> {
    primary.next_version(&REPLICAS.map(name)).map(|version| version.0)
}

fn welcome(version: u32) -> Welcome {
    Welcome { epoch: Epoch(1), primary: id(1), version: ClusterVersion(version), resume: Resume::After(Index(0)) }
}

fn backup() -> Backup {
    let log = RecoveredLog {
        known_epoch: Epoch(0),
        cluster_version: ClusterVersion(2),
        history: History::default(),
        first: Index(1),
        floor: Index(0),
        applied: Index(0),
        pending: Default::default(),
        damaged: false,
    };
    let config = BackupConfig { me: id(2), replicated_only: false, backup_timeout: at(2000), knows: knows(3) };
    Backup::new(at(0), config, log)
}

#[test]
fn the_next_version_is_due_when_every_replica_is_here_and_knows_it() {
    let mut p = primary();
    assert_eq!(next(&p), None, "nobody has said what it knows");
    greet(&mut p, 2, knows(3));
    assert_eq!(next(&p), None, "one is missing");
    greet(&mut p, 3, knows(2));
    assert_eq!(next(&p), None, "one does not know it");
    p.handle_stream_closed(at(2), StreamId(3), &mut Vec::new());
    assert_eq!(next(&p), None, "it is away, and nobody knows what it comes back as");
    greet(&mut p, 3, knows(5));
    assert_eq!(next(&p), Some(3));
    p.handle_version(at(3), ClusterVersion(3), &mut Vec::new());
    assert_eq!((next(&p), p.cluster_version()), (None, ClusterVersion(3)));
}

/// A replica that the spec has no more counts for as long as the set does.
#[test]
fn a_member_that_is_no_replica_any_more_counts_too() {
    let mut p = primary();
    greet(&mut p, 2, knows(3));
    assert_eq!(p.next_version(&[name(1), name(2)]), None);
    greet(&mut p, 3, knows(3));
    assert_eq!(p.next_version(&[name(1), name(2)]), Some(ClusterVersion(3)));
}

#[test]
fn followers_hear_of_a_raise_before_the_first_record_that_it_brought() {
    let mut p = primary();
    greet(&mut p, 2, knows(3));
    greet(&mut p, 3, knows(3));
    let mut out = Vec::new();
    p.handle_version(at(2), ClusterVersion(3), &mut out);
    let told = PrimaryMessage::Version(ClusterVersion(3));
    for n in [2, 3] {
        assert!(out.contains(&PrimaryOutput::Send(StreamId(n), told.clone())), "{out:?}");
    }
    out.clear();
    p.handle_version(at(3), ClusterVersion(2), &mut out);
    assert_eq!((out, p.cluster_version()), (vec![], ClusterVersion(3)), "never lower");
}

#[test]
fn a_build_that_does_not_know_the_version_is_refused_with_the_cure() {
    let mut p = primary();
    greet(&mut p, 2, knows(3));
    greet(&mut p, 3, knows(3));
    p.handle_version(at(2), ClusterVersion(3), &mut Vec::new());
    let out = greet(&mut p, 3, knows(2));
    let reason = "the build of r3 knows versions 1 to 2, the cluster is at version 3: upgrade it to one that knows \
                  version 3; a cluster does not go back to an earlier version";
    let refusal = Refusal { epoch: Epoch(1), reason: reason.into() };
    assert!(out.contains(&PrimaryOutput::Send(StreamId(3), PrimaryMessage::Refusal(refusal))), "{out:?}");
    let mut out = Vec::new();
    p.handle_timeout(at(3), &mut out);
    let without: InSyncSet = [1, 2].map(|n| id(n).member(false)).into();
    assert!(out.contains(&PrimaryOutput::ProposeSet(without)), "confirms do not wait for it: {out:?}");
}

/// It came between the asking and the raise.
#[test]
fn a_follower_that_does_not_know_the_version_goes_when_the_lease_has_it() {
    let mut p = primary();
    greet(&mut p, 2, knows(3));
    greet(&mut p, 3, knows(2));
    let mut out = Vec::new();
    p.handle_version(at(2), ClusterVersion(3), &mut out);
    let closed = |n| out.iter().any(|o| matches!(o, PrimaryOutput::Close(StreamId(of), _) if *of == n));
    assert_eq!([2, 3].map(closed), [false, true], "{out:?}");
}

#[test]
fn a_backup_remembers_the_version_before_it_takes_a_record() {
    let mut b = backup();
    assert_eq!(b.handle_connected(at(0)).knows, knows(3));
    let mut out = Vec::new();
    b.handle_welcome(at(1), welcome(2), &mut out).unwrap();
    assert!(!out.iter().any(|o| matches!(o, BackupOutput::PersistVersion(_))), "it is known: {out:?}");
    out.clear();
    b.handle_version(ClusterVersion(3), &mut out).unwrap();
    assert_eq!(out, [BackupOutput::PersistVersion(ClusterVersion(3))]);
    assert_eq!(b.cluster_version(), ClusterVersion(3));
    out.clear();
    b.handle_version(ClusterVersion(2), &mut out).unwrap();
    assert_eq!((out, b.cluster_version()), (vec![], ClusterVersion(3)));
}

#[test]
fn a_backup_follows_no_cluster_of_a_version_that_it_does_not_know() {
    let mut b = backup();
    b.handle_connected(at(0));
    let mut out = Vec::new();
    let refused = b.handle_welcome(at(1), welcome(4), &mut out).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "this build knows versions 1 to 3, the cluster is at version 4: upgrade it to one that knows version 4; a cluster \
         does not go back to an earlier version"
    );
    assert!(b.primary().is_none());
}

#[test]
fn nobody_becomes_primary_of_a_cluster_whose_version_it_does_not_know() {
    let mut out = Vec::new();
    let refused = backup().handle_elected(Epoch(2), ClusterVersion(4), &mut out);
    assert!(matches!(refused, Err(FollowError::Version(_))), "{refused:?}");
    assert_eq!(out, [], "not even the epoch");
    backup().handle_elected(Epoch(2), ClusterVersion(3), &mut out).unwrap();
    assert_eq!(
        out[..2],
        [BackupOutput::PersistVersion(ClusterVersion(3)), BackupOutput::PersistEpoch(Epoch(2))],
        "before anything is written"
    );
}
