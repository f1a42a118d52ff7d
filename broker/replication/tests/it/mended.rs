//! Interleavings that once lost something or stood still, each as one short story.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use understudy_election::Lease;
use understudy_record::version::{ClusterVersion, VersionRange};
use understudy_record::*;
use understudy_replication::*;

use crate::world::version;

fn at(ms: u64) -> Duration {
    Duration::from_millis(ms)
}
fn id(n: u64, process: u64) -> Identity {
    Identity { name: ReplicaName::new(&format!("r{n}")), store: StoreId(n.into()), process: ProcessId(process) }
}
fn set(numbers: &[u64], replicated: bool) -> InSyncSet {
    numbers.iter().map(|n| id(*n, *n).member(replicated)).collect()
}
fn config(replicated_only: bool) -> PrimaryConfig {
    PrimaryConfig {
        me: id(1, 1),
        min_in_sync: 2,
        replicated_only,
        backup_timeout: at(2000),
        stall_timeout: at(10_000),
        lease_duration: at(5000),
        resume_records: 50,
        knows: VersionRange::OWN,
        version: ClusterVersion::FIRST,
        max_catch_ups: 1,
    }
}
fn frame(index: u64, bytes: usize, committed: u64) -> Frame {
    let message = Message {
        exchange: ShortStr::EMPTY,
        routing_key: ShortStr::EMPTY,
        properties: Bytes::new(),
        persistent: true,
        parts: None,
        body: Body::new(Bytes::from(vec![0; bytes])),
    };
    Frame::record(
        Position { epoch: Epoch(1), index: Index(index) },
        Index(committed),
        &Record::Publish { targets: vec![QueueId(Index(1))], message },
        &mut BytesMut::new(),
    )
}
fn hello(n: u64, process: u64, history: History) -> Hello {
    Hello {
        follower: id(n, process),
        epoch: Epoch(1),
        history,
        first: Index(1),
        floor: Index(0),
        clean: true,
        half_base: None,
        knows: VersionRange::OWN,
    }
}
fn pair() -> (Primary, Vec<PrimaryOutput>) {
    let log = OwnLog { history: History::default(), first: Index(1), durable: Index(0) };
    let mut p = Primary::new(at(0), config(false), Epoch(1), log, set(&[1, 2, 3], false));
    let mut out = Vec::new();
    p.handle_lease_held(at(0), &mut out);
    p.handle_appended(at(0), &[frame(1, 10, 0)], &mut out);
    p.handle_durable(at(0), Epoch(1), Index(1), &mut out);
    for n in [2, 3] {
        p.handle_hello(at(1), StreamId(n), &hello(n, n, History::default()), 0, &mut out);
        p.handle_acknowledge(
            at(2),
            StreamId(n),
            Acknowledge { epoch: Epoch(1), durable: Index(1), received: Index(1) },
            &mut out,
        );
    }
    assert_eq!(p.committed(), Index(1));
    (p, out)
}
fn ack(p: &mut Primary, now: u64, n: u64, index: u64, out: &mut Vec<PrimaryOutput>) {
    p.handle_acknowledge(
        at(now),
        StreamId(n),
        Acknowledge { epoch: Epoch(1), durable: Index(index), received: Index(index) },
        out,
    );
}

fn backup_config(replicated_only: bool) -> BackupConfig {
    BackupConfig { me: id(2, 2), replicated_only, backup_timeout: at(2000), knows: VersionRange::OWN }
}
fn welcome(resume: Resume) -> Welcome {
    Welcome { epoch: Epoch(1), primary: id(1, 1), version: ClusterVersion::FIRST, resume }
}

/// What a new store's journal gives.
fn empty_log(known_epoch: u64) -> RecoveredLog {
    RecoveredLog {
        known_epoch: Epoch(known_epoch),
        cluster_version: ClusterVersion::FIRST,
        history: History::default(),
        first: Index(1),
        floor: Index(0),
        applied: Index(0),
        pending: Default::default(),
        damaged: false,
    }
}

#[test]
fn a_large_message_durable_here_first_is_counted_back() {
    let (mut p, mut out) = pair();
    assert_eq!(p.unsettled_bytes(), 0);
    p.handle_appended(at(3), &[frame(2, 70 << 20, 1)], &mut out);
    p.handle_durable(at(4), Epoch(1), Index(2), &mut out); // the own disk is first
    ack(&mut p, 5, 2, 2, &mut out);
    ack(&mut p, 5, 3, 2, &mut out);
    assert_eq!(p.committed(), Index(2));
    assert_eq!(p.unsettled_bytes(), 0, "everything is committed, publishers stay paused above 64 MiB");
}

#[test]
fn a_member_that_came_back_ends_the_isolation_though_the_lease_is_away() {
    let (mut p, mut out) = pair();
    p.handle_stream_closed(at(10), StreamId(2), &mut out);
    p.handle_timeout(at(700), &mut out); // overdue: proposed, the API server does not answer
    assert!(out.iter().any(|o| matches!(o, PrimaryOutput::ProposeSet(_))));
    let mut history = History::default();
    history.extend(Position::new(Epoch(1), Index(1)));
    p.handle_hello(at(800), StreamId(20), &hello(2, 2, history), 0, &mut out);
    out.clear();
    for now in (900..9000).step_by(100) {
        ack(&mut p, now, 20, 1, &mut out);
        ack(&mut p, now, 3, 1, &mut out);
        p.handle_timeout(at(now), &mut out);
    }
    assert!(p.hears_all());
    assert!(!out.iter().any(|o| matches!(o, PrimaryOutput::CloseClients(_))), "every member acknowledges (rule 6)");
}

#[test]
fn no_record_goes_to_a_follower_that_awaits_its_base() {
    let (mut p, mut out) = pair();
    out.clear();
    // 4 has another cluster's log: a base.
    let mut h = hello(4, 4, History::default());
    h.clean = false;
    p.handle_hello(at(10), StreamId(4), &h, 0, &mut out);
    p.handle_appended(at(10), &[frame(2, 10, 1)], &mut out); // what `settle` writes before it carries out `TakeBase`
    let to4: Vec<_> = out
        .iter()
        .filter_map(|o| match o {
            PrimaryOutput::Send(StreamId(4), m) => Some(m),
            _ => None,
        })
        .collect();
    assert!(!to4.iter().any(|m| matches!(m, PrimaryMessage::Records(_))), "{to4:?}");
}

#[test]
fn a_backup_whose_disk_hangs_leaves_the_set() {
    let (mut p, mut out) = pair();
    p.handle_appended(at(10), &[frame(2, 10, 1)], &mut out);
    p.handle_durable(at(11), Epoch(1), Index(2), &mut out);
    ack(&mut p, 12, 3, 2, &mut out);
    out.clear();
    for now in (100..60_000).step_by(100) {
        // it answers every heartbeat, and its journal stands still
        ack(&mut p, now, 2, 1, &mut out);
        ack(&mut p, now, 3, 2, &mut out);
        p.handle_timeout(at(now), &mut out);
    }
    assert!(out.iter().any(|o| matches!(o, PrimaryOutput::ProposeSet(_))), "a minute without a commit: {:?}", p.hold());
}

#[test]
fn a_hand_over_that_came_to_nothing_does_not_keep_the_set_from_shrinking() {
    let (mut p, mut out) = pair();
    let lease = Lease::bootstrap(&id(1, 1), set(&[1, 2, 3], false), at(5000)).unwrap();
    let mut k = LeaseKeeper::new(at(0), id(1, 1), lease, version(1), at(5000));
    k.poll_request(at(0), true, true).unwrap().unwrap();
    k.handle_answer(at(1), LeaseAnswer::Written(version(2)));
    p.handle_stream_closed(at(10), StreamId(2), &mut out);
    p.handle_timeout(at(700), &mut out);
    let proposed = out
        .iter()
        .find_map(|o| match o {
            PrimaryOutput::ProposeSet(s) => Some(s.clone()),
            _ => None,
        })
        .unwrap();
    k.propose(proposed);
    k.poll_request(at(700), true, true).unwrap().unwrap();
    // 2 is back before the answer, and a person asks for it as primary (Node::hand_over).
    let mut history = History::default();
    history.extend(Position::new(Epoch(1), Index(1)));
    p.handle_hello(at(800), StreamId(20), &hello(2, 2, history), 0, &mut out);
    assert!(p.followers().any(|f| f.in_sync && f.identity == id(2, 2)));
    p.handle_own_leaving();
    k.hand_over(id(2, 2), [id(1, 1), id(2, 2), id(3, 3)].into());
    k.handle_answer(at(810), LeaseAnswer::Written(version(3)));
    p.handle_outcome(at(810), SwapOutcome::Applied, &mut out);
    let next = k.poll_request(at(820), true, true).unwrap();
    assert!(
        !matches!(&next, Some(LeaseRequest::Swap { lease, .. }) if lease.epoch() > Epoch(1)),
        "2 is not in the set"
    );
    assert!(k.successor().is_none());
    p.handle_staying(); // what the node does then
    out.clear();
    p.handle_stream_closed(at(1000), StreamId(3), &mut out);
    for now in (1100..20_000).step_by(100) {
        p.handle_timeout(at(now), &mut out);
    }
    assert!(out.iter().any(|o| matches!(o, PrimaryOutput::ProposeSet(_))), "{out:?}");
}

#[test]
fn a_newcomer_given_up_does_not_keep_a_deleted_lease_from_coming_back() {
    let (mut p, mut out) = pair();
    let mut history = History::default();
    history.extend(Position::new(Epoch(1), Index(1)));
    // keep the commit ahead so that the newcomer stays awaited
    p.handle_hello(at(10), StreamId(4), &hello(4, 4, history), 0, &mut out);
    p.handle_appended(at(10), &[frame(2, 10, 1)], &mut out);
    p.handle_durable(at(11), Epoch(1), Index(2), &mut out);
    ack(&mut p, 11, 2, 2, &mut out);
    ack(&mut p, 11, 3, 2, &mut out);
    ack(&mut p, 12, 4, 1, &mut out); // awaited, lacks 2
    p.handle_stream_closed(at(13), StreamId(4), &mut out);
    assert!(p.hears_all(), "4 was never a member");
}

#[test]
fn a_refused_batch_leaves_no_phantom_in_the_history() {
    let log = empty_log(1);
    let mut b = Backup::new(at(0), backup_config(false), log);
    let mut out = Vec::new();
    b.handle_connected(at(0));
    b.handle_welcome(at(0), welcome(Resume::After(Index(0))), &mut out).unwrap();
    out.clear();
    let bad = Records { epoch: Epoch(1), committed: Index(0), frames: vec![frame(1, 1, 0), frame(3, 1, 0)] };
    assert!(b.handle_records(at(1), bad, &mut out).is_err());
    assert!(out.is_empty());
    assert_eq!(b.history().last().index, Index(0));
}

#[test]
fn a_base_is_completed_only_when_the_log_reaches_what_it_shows() {
    let log = empty_log(1);
    let mut b = Backup::new(at(0), backup_config(false), log);
    let mut out = Vec::new();
    b.handle_connected(at(0));
    b.handle_welcome(at(0), welcome(Resume::Base), &mut out).unwrap();
    let s = Position::new(Epoch(1), Index(5));
    let pieces = [
        BasePiece::Start { sync_point: s, epochs: vec![Position::new(Epoch(1), Index(1))], in_sync: vec![] },
        BasePiece::TopologyEnd,
    ];
    let frames = pieces.iter().map(|p| Frame::base(s, Index(5), p, &mut BytesMut::new())).collect();
    let queues = vec![BacklogQueue { queue: QueueId(Index(2)), messages: 1, bytes: 1 }];
    b.handle_base(at(1), Base { epoch: Epoch(1), sync_id: SyncId(1), sync_point: s, frames, queues }, &mut out)
        .unwrap();
    out.clear();
    // The chunk shows record 9's effect; the live stream has not brought 6 to 9 yet.
    b.handle_backlog(
        at(2),
        Backlog {
            sync_id: SyncId(1),
            queue: QueueId(Index(2)),
            from: BacklogCursor::START,
            next: Index(2).into(),
            as_of: Index(9),
            frames: vec![],
            messages: 0,
            bytes: 0,
            done: true,
        },
        &mut out,
    )
    .unwrap();
    assert!(
        !out.iter().any(|o| matches!(o, BackupOutput::CompleteBase(_))),
        "the journal refuses this and the process ends"
    );
}

#[test]
fn nothing_is_acknowledged_before_its_epoch_is_on_disk() {
    for replicated_only in [false, true] {
        let log = empty_log(0);
        let config = backup_config(replicated_only);
        let mut b = Backup::new(at(0), config, log);
        let mut out = Vec::new();
        b.handle_connected(at(1));
        let welcome = welcome(Resume::After(Index(0)));
        b.handle_welcome(at(2), welcome, &mut out).unwrap();
        let Some(BackupOutput::Barrier(session)) = out.last().cloned() else { panic!("{out:?}") };
        for frames in [vec![], vec![frame(1, 10, 0)], vec![]] {
            b.handle_records(at(3), Records { epoch: Epoch(1), committed: Index(0), frames }, &mut out).unwrap();
        }
        let acknowledges = |out: &[BackupOutput]| out.iter().any(|o| matches!(o, BackupOutput::Acknowledge(_)));
        assert!(!acknowledges(&out), "the journal has not reported yet: {out:?}");
        b.handle_durable(session, Index(1), &mut out);
        assert!(acknowledges(&out));
    }
}

/// The journal had put a checkpoint of the old log in force just before it began the new one, and says so now.
#[test]
fn where_the_old_log_begins_says_nothing_of_the_one_that_is_filled() {
    let config = backup_config(false);
    let mut b = Backup::new(at(0), config, empty_log(1));
    let mut out = Vec::new();
    b.handle_connected(at(0));
    b.handle_welcome(at(0), welcome(Resume::Base), &mut out).unwrap();
    let s = Position::new(Epoch(1), Index(50));
    let pieces = [
        BasePiece::Start { sync_point: s, epochs: vec![Position::new(Epoch(1), Index(1))], in_sync: vec![] },
        BasePiece::TopologyEnd,
    ];
    let frames = pieces.iter().map(|p| Frame::base(s, Index(50), p, &mut BytesMut::new())).collect();
    b.handle_base(at(1), Base { epoch: Epoch(1), sync_id: SyncId(1), sync_point: s, frames, queues: vec![] }, &mut out)
        .unwrap();
    b.handle_log_start(Index(7), Index(20));
    assert_eq!(b.first(), Index(51), "as primary it would offer a follower records that its log does not have");
}

/// On a small volume a member that does not come back would otherwise hold publishers up: its share of the log is a gigabyte.
#[test]
fn a_disk_with_little_room_keeps_records_only_for_who_is_here() {
    let (mut p, mut out) = pair();
    p.handle_appended(at(3), &[frame(2, 10, 1), frame(3, 10, 1)], &mut out);
    ack(&mut p, 5, 2, 3, &mut out);
    assert_eq!((p.retain_from(true), p.retain_from(false)), (Index(2), Index(4)), "3 has acknowledged the first only");
    p.handle_stream_closed(at(10), StreamId(3), &mut out);
    assert_eq!((p.retain_from(true), p.retain_from(false)), (Index(2), Index(4)));
    p.handle_stream_closed(at(10), StreamId(2), &mut out);
    assert_eq!((p.retain_from(true), p.retain_from(false)), (Index(2), Index(u64::MAX)));
}

fn here(index: u64, bytes: usize) -> Frame {
    let Ok(Record::Publish { targets: here, message }) = frame(index, bytes, 0).decode_record() else {
        panic!("it publishes")
    };
    let record = Record::PublishHere { targets: Vec::new(), here, message };
    Frame::record(Position { epoch: Epoch(1), index: Index(index) }, Index(0), &record, &mut BytesMut::new())
}

/// From memory and from the log alike; and the publisher waits for its bytes on the own disk as for others.
#[test]
fn what_is_not_replicated_reaches_no_follower_and_counts_here() {
    let (mut p, mut out) = pair();
    out.clear();
    p.handle_appended(at(3), &[here(2, 1 << 20), frame(3, 10, 1)], &mut out);
    assert!(p.unsettled_bytes() > 1 << 20);
    p.handle_hello(at(4), StreamId(4), &hello(4, 4, History::default()), 0, &mut out);
    p.handle_log_read(at(5), StreamId(4), Index(1), Ok(vec![frame(1, 10, 0), here(2, 1 << 20)]), &mut out);
    let mut seen = 0;
    for output in out {
        let PrimaryOutput::Send(_, PrimaryMessage::Records(records)) = output else { continue };
        for sent in records.frames.iter().filter(|sent| sent.position.index == Index(2)) {
            assert_eq!(sent.decode_record(), Ok(Record::Withheld));
            seen += 1;
        }
    }
    assert_eq!(seen, 3, "two that keep pace, and one from the beginning");
    let mut out = Vec::new();
    p.handle_durable(at(6), Epoch(1), Index(3), &mut out);
    [2, 3].iter().for_each(|n| ack(&mut p, 6, *n, 3, &mut out));
    assert_eq!((p.committed(), p.unsettled_bytes()), (Index(3), 0));
}
