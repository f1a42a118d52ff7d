//! Who gets a base when, which base goes on after a break, and what a backup that was away is sent: each as one short story.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use understudy_record::version::{ClusterVersion, VersionRange};
use understudy_record::*;
use understudy_replication::*;

const QUEUE: QueueId = QueueId(Index(1));

fn at(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn id(n: u64, process: u64) -> Identity {
    Identity { name: ReplicaName::new(&format!("r{n}")), store: StoreId(n.into()), process: ProcessId(process) }
}

fn frame(epoch: u64, index: u64, committed: u64) -> Frame {
    let message = Message {
        exchange: ShortStr::EMPTY,
        routing_key: ShortStr::EMPTY,
        properties: Bytes::new(),
        persistent: true,
        parts: None,
        body: Body::new(Bytes::from(vec![0; 100])),
    };
    let record = Record::Publish { targets: vec![QUEUE], message };
    Frame::record(Position::new(Epoch(epoch), Index(index)), Index(committed), &record, &mut BytesMut::new())
}

fn history(starts: &[(u64, u64)], last: u64) -> History {
    let starts = starts.iter().map(|&(epoch, index)| Position::new(Epoch(epoch), Index(index))).collect();
    History::new(starts, Index(last)).unwrap()
}

/// Alone in its set, with ten records, all committed.
fn primary(epoch: u64, before: History) -> Primary {
    let config = PrimaryConfig {
        knows: VersionRange::OWN,
        version: ClusterVersion::FIRST,
        me: id(1, 1),
        min_in_sync: 1,
        replicated_only: false,
        backup_timeout: at(2000),
        stall_timeout: at(1_000_000),
        lease_duration: at(5000),
        resume_records: 1000,
        max_catch_ups: 1,
    };
    let first = before.last().index.0 + 1;
    let in_force = [id(1, 1).member(false)].into();
    let durable = before.last().index;
    let log = OwnLog { history: before, first: Index(1), durable };
    let mut primary = Primary::new(at(0), config, Epoch(epoch), log, in_force);
    let frames: Vec<_> = (first..first + 10).map(|index| frame(epoch, index, index - 1)).collect();
    let mut out = Vec::new();
    primary.handle_lease_held(at(0), &mut out);
    primary.handle_appended(at(0), &frames, &mut out);
    primary.handle_durable(at(0), Epoch(epoch), Index(first + 9), &mut out);
    assert_eq!(primary.committed(), Index(first + 9));
    primary
}

/// Of a store whose log is of no use.
fn dirty_hello(n: u64, process: u64) -> Hello {
    Hello {
        knows: VersionRange::OWN,
        follower: id(n, process),
        epoch: Epoch(1),
        history: History::default(),
        first: Index(1),
        floor: Index(0),
        clean: false,
        half_base: None,
    }
}

/// Of a log that is being filled from the sync point 10 under the number `sync_id`, and has nothing after it.
fn half_hello(n: u64, process: u64, sync_id: u64) -> Hello {
    let half_base = Some(HalfBase { epoch: Epoch(1), sync_id: SyncId(sync_id) });
    Hello { history: history(&[(1, 1)], 10), first: Index(11), floor: Index(10), half_base, ..dirty_hello(n, process) }
}

/// What the shell does: a base with one queue.
fn serve_bases(primary: &mut Primary, now: Duration, out: &mut Vec<PrimaryOutput>) -> Vec<u64> {
    let taken = out.extract_if(.., |output| matches!(output, PrimaryOutput::TakeBase(..))).collect::<Vec<_>>();
    let taken = taken.into_iter().map(|output| match output {
        PrimaryOutput::TakeBase(stream, sync_id) => {
            let queues = vec![BacklogQueue { queue: QUEUE, messages: 10, bytes: 1000 }];
            primary.send_base(now, stream, sync_id, vec![], queues, out);
            stream.0
        }
        output => panic!("{output:?}"),
    });
    taken.collect()
}

fn resumes(out: &[PrimaryOutput]) -> Vec<Resume> {
    let resume = |output: &PrimaryOutput| match output {
        PrimaryOutput::Send(_, PrimaryMessage::Welcome(welcome)) => Some(welcome.resume),
        _ => None,
    };
    out.iter().filter_map(resume).collect()
}

fn places(out: &[PrimaryOutput], stream: u64) -> Vec<u64> {
    let place = |output: &PrimaryOutput| match output {
        PrimaryOutput::Send(StreamId(to), PrimaryMessage::Waiting(waiting)) if *to == stream => Some(waiting.place),
        _ => None,
    };
    out.iter().filter_map(place).collect()
}

fn ends(out: &[PrimaryOutput]) -> Vec<u64> {
    let end = |output: &PrimaryOutput| match output {
        PrimaryOutput::EndSync(SyncId(id)) => Some(*id),
        _ => None,
    };
    out.iter().filter_map(end).collect()
}

fn closed(out: &[PrimaryOutput]) -> Vec<u64> {
    let close = |output: &PrimaryOutput| match output {
        PrimaryOutput::Close(StreamId(stream), _) => Some(*stream),
        _ => None,
    };
    out.iter().filter_map(close).collect()
}

fn ack(primary: &mut Primary, now: Duration, stream: u64, index: u64, out: &mut Vec<PrimaryOutput>) {
    let ack = Acknowledge { epoch: Epoch(1), durable: Index(index), received: Index(index) };
    primary.handle_acknowledge(now, StreamId(stream), ack, out);
}

#[test]
fn who_needs_a_base_waits_for_its_turn_and_hears_that_it_does() {
    let (mut p, mut out) = (primary(1, History::default()), Vec::new());
    for n in [2, 3, 4] {
        p.handle_hello(at(1), StreamId(n), &dirty_hello(n, n), 0, &mut out);
    }
    assert_eq!(serve_bases(&mut p, at(1), &mut out), [2]);
    assert_eq!((places(&out, 3), places(&out, 4)), (vec![1], vec![2]));
    out.clear();
    for now in (100..10_000).step_by(100) {
        p.handle_fetch(at(now), SyncId(1), QUEUE, false);
        for (n, index) in [(2, 10), (3, 0), (4, 0)] {
            ack(&mut p, at(now), n, index, &mut out);
        }
        p.handle_timeout(at(now), &mut out);
    }
    assert_eq!(closed(&out), [] as [u64; 0], "five times the timeout, and nobody was silent");
    assert!(places(&out, 3).len() > 20 && places(&out, 3).iter().all(|place| *place == 1), "{:?}", places(&out, 3));
    let status: Vec<_> = p.followers().map(|follower| follower.catch_up).collect();
    let expected = [
        FollowerCatchUp::Running { queues_done: 0, queues: 1 },
        FollowerCatchUp::Waiting { place: 1 },
        FollowerCatchUp::Waiting { place: 2 },
    ];
    assert_eq!(status, expected.map(Some));

    p.handle_stream_closed(at(10_000), StreamId(3), &mut out); // goes away, and loses its place
    p.handle_caught_up(at(10_001), StreamId(2), Index(10), &mut out);
    assert_eq!((serve_bases(&mut p, at(10_001), &mut out), ends(&out)), (vec![4], vec![1]));
}

#[test]
fn a_catch_up_that_stands_still_does_not_block_the_line() {
    let (mut p, mut out) = (primary(1, History::default()), Vec::new());
    for n in [2, 3] {
        p.handle_hello(at(1), StreamId(n), &dirty_hello(n, n), 0, &mut out);
    }
    serve_bases(&mut p, at(1), &mut out);
    let mut turned = None;
    for now in (100..60_000).step_by(100) {
        // It is alive, and fetches nothing.
        ack(&mut p, at(now), 2, 10, &mut out);
        ack(&mut p, at(now), 3, 0, &mut out);
        p.handle_timeout(at(now), &mut out);
        if serve_bases(&mut p, at(now), &mut out) == [3] {
            turned = Some(now);
            break;
        }
    }
    assert_eq!(turned, Some(20_100), "ten times the backup timeout, and one turn of the clock");
    assert_eq!((closed(&out), ends(&out)), (vec![2], vec![1]));
    out.clear();
    p.handle_hello(at(21_000), StreamId(20), &half_hello(2, 2, 1), 0, &mut out);
    assert_eq!((resumes(&out), places(&out, 20)), (vec![Resume::Base], vec![1]), "it starts over, and waits");
}

/// The backlog is here and the disk takes its time: what arrives of the log is progress, too.
#[test]
fn a_catch_up_without_a_backlog_left_is_not_stuck_while_the_log_arrives() {
    let (mut p, mut out) = (primary(1, History::default()), Vec::new());
    p.handle_hello(at(1), StreamId(2), &dirty_hello(2, 2), 0, &mut out);
    serve_bases(&mut p, at(1), &mut out);
    p.handle_fetch(at(1), SyncId(1), QUEUE, true);
    for step in 1..600 {
        p.handle_appended(at(step * 100), &[frame(1, 10 + step, 10)], &mut out);
        p.handle_durable(at(step * 100), Epoch(1), Index(10 + step), &mut out);
        ack(&mut p, at(step * 100), 2, 10 + step, &mut out);
        p.handle_timeout(at(step * 100), &mut out);
    }
    assert_eq!(closed(&out), [] as [u64; 0]);
}

#[test]
fn a_base_goes_on_after_a_break_of_the_connection() {
    let (mut p, mut out) = (primary(1, History::default()), Vec::new());
    p.handle_hello(at(1), StreamId(2), &dirty_hello(2, 2), 0, &mut out);
    serve_bases(&mut p, at(1), &mut out);
    p.handle_stream_closed(at(2), StreamId(2), &mut out);
    p.handle_appended(at(3), &[frame(1, 11, 10)], &mut out);
    assert_eq!(p.retain_from(true), Index(11), "what it lacks stays in the log");
    assert_eq!(p.retain_from(false), Index(u64::MAX), "unless the disk is full");
    out.clear();
    p.handle_hello(at(30_000), StreamId(20), &half_hello(2, 2, 1), 0, &mut out);
    assert_eq!((resumes(&out), ends(&out)), (vec![Resume::SameBase(SyncId(1))], vec![]));
    let sent = out.iter().filter_map(|output| match output {
        PrimaryOutput::Send(_, PrimaryMessage::Records(records)) => Some(records.frames.len()),
        _ => None,
    });
    assert_eq!(sent.collect::<Vec<_>>(), [1], "the record of the time between");
    assert_eq!(p.retain_from(true), Index(11), "it is on its way, and may not arrive");
    // Rule 3: what it acknowledges still says nothing.
    ack(&mut p, at(30_001), 20, 11, &mut out);
    assert!(p.followers().all(|follower| follower.durable == Index(0) && follower.catching_up));
    p.handle_caught_up(at(30_002), StreamId(20), Index(11), &mut out);
    assert_eq!(ends(&out), [1]);
}

#[test]
fn a_base_goes_on_for_nobody_else_and_not_for_ever() {
    for (hello, waits_ms) in [
        (half_hello(2, 3, 1), 1),                                              // another process
        (Hello { half_base: None, ..half_hello(2, 2, 1) }, 1),                 // it knows of none
        (half_hello(2, 2, 7), 1),                                              // another base
        (Hello { history: history(&[(1, 1)], 12), ..half_hello(2, 2, 1) }, 1), // another log
        (half_hello(2, 2, 1), 61_000),                                         // too late
    ] {
        let (mut p, mut out) = (primary(1, History::default()), Vec::new());
        p.handle_hello(at(1), StreamId(2), &dirty_hello(2, 2), 0, &mut out);
        serve_bases(&mut p, at(1), &mut out);
        p.handle_stream_closed(at(2), StreamId(2), &mut out);
        p.handle_timeout(at(2 + waits_ms), &mut out);
        p.handle_hello(at(3 + waits_ms), StreamId(20), &hello, 0, &mut out);
        assert_eq!(resumes(&out), [Resume::Base, Resume::Base], "{hello:?}");
        assert_eq!(ends(&out), [1], "{hello:?}");
        assert_eq!(serve_bases(&mut p, at(3 + waits_ms), &mut out), [20]);
    }
}

fn backup() -> Backup {
    let config =
        BackupConfig { knows: VersionRange::OWN, me: id(2, 2), replicated_only: false, backup_timeout: at(2000) };
    let log = RecoveredLog {
        cluster_version: ClusterVersion::FIRST,
        known_epoch: Epoch(1),
        history: History::default(),
        first: Index(1),
        floor: Index(0),
        applied: Index(0),
        pending: VecDeque::new(),
        damaged: false,
    };
    Backup::new(at(0), config, log)
}

fn welcome(epoch: u64, resume: Resume) -> Welcome {
    Welcome { epoch: Epoch(epoch), primary: id(1, epoch), version: ClusterVersion::FIRST, resume }
}

/// Up to the fetch of its one queue.
fn half_base(b: &mut Backup, out: &mut Vec<BackupOutput>) {
    b.handle_connected(at(1));
    b.handle_welcome(at(1), welcome(1, Resume::Base), out).unwrap();
    let sync_point = Position::new(Epoch(1), Index(10));
    let start = BasePiece::Start { sync_point, epochs: vec![Position::new(Epoch(1), Index(1))], in_sync: vec![] };
    let pieces = [start, BasePiece::TopologyEnd];
    let frames = pieces.iter().map(|piece| Frame::base(sync_point, Index(10), piece, &mut BytesMut::new())).collect();
    let queues = vec![BacklogQueue { queue: QUEUE, messages: 10, bytes: 1000 }];
    b.handle_base(at(1), Base { epoch: Epoch(1), sync_id: SyncId(1), sync_point, frames, queues }, out).unwrap();
}

fn chunk(from: BacklogCursor, next: u64, done: bool) -> Backlog {
    Backlog {
        sync_id: SyncId(1),
        queue: QUEUE,
        from,
        next: Index(next).into(),
        as_of: Index(10),
        frames: vec![],
        messages: 1,
        bytes: 100,
        done,
    }
}

fn fetches(out: &[BackupOutput]) -> Vec<BacklogCursor> {
    let fetch = |output: &BackupOutput| match output {
        BackupOutput::Fetch { from, .. } => Some(*from),
        _ => None,
    };
    out.iter().filter_map(fetch).collect()
}

fn count(out: &[BackupOutput], which: fn(&BackupOutput) -> bool) -> usize {
    out.iter().filter(|output| which(output)).count()
}

#[test]
fn a_backup_fetches_on_from_where_it_was() {
    let (mut b, mut out) = (backup(), Vec::new());
    half_base(&mut b, &mut out);
    b.handle_backlog(at(2), chunk(BacklogCursor::START, 7, false), &mut out).unwrap();
    b.handle_disconnected(at(3), true, &mut out);
    assert_eq!(count(&out, |output| *output == BackupOutput::Recover), 0);
    out.clear();
    let hello = b.handle_connected(at(4));
    assert_eq!(hello.half_base, Some(HalfBase { epoch: Epoch(1), sync_id: SyncId(1) }));
    assert!(!hello.clean && hello.history.last().index == Index(10));
    b.handle_welcome(at(5), welcome(1, Resume::SameBase(SyncId(1))), &mut out).unwrap();
    assert_eq!(fetches(&out), [Index(7).into()]);
    let repeated = b.handle_backlog(at(6), chunk(BacklogCursor::START, 7, false), &mut out);
    assert!(repeated.is_err(), "what it has would be applied twice");
    b.handle_backlog(at(6), chunk(Index(7).into(), 1, true), &mut out).unwrap();
    assert_eq!(count(&out, |output| matches!(output, BackupOutput::CompleteBase(_))), 1);
    assert!(b.catch_up(at(6)).is_some_and(|progress| progress.resumed && progress.messages_done == 10));
}

#[test]
fn a_base_that_became_whole_during_the_break_is_not_begun_anew() {
    let (mut b, mut out) = (backup(), Vec::new());
    half_base(&mut b, &mut out);
    b.handle_backlog(at(2), chunk(BacklogCursor::START, 1, true), &mut out).unwrap();
    let session = out.iter().find_map(|output| match output {
        BackupOutput::CompleteBase(session) => Some(*session),
        _ => None,
    });
    b.handle_disconnected(at(3), true, &mut out);
    b.handle_connected(at(4));
    out.clear();
    b.handle_base_completed(session.unwrap(), &mut out); // the hello said that it is half
    assert!(b.is_clean());
    assert_eq!(count(&out, |output| matches!(output, BackupOutput::CaughtUp(_))), 0, "nobody has welcomed it");
    b.handle_welcome(at(5), welcome(1, Resume::SameBase(SyncId(1))), &mut out).unwrap();
    assert_eq!(count(&out, |output| *output == BackupOutput::CaughtUp(Index(10))), 1);
}

#[test]
fn half_a_base_of_another_epoch_is_replaced_and_until_then_counts_for_nothing() {
    let (mut b, mut out) = (backup(), Vec::new());
    half_base(&mut b, &mut out);
    b.handle_disconnected(at(3), true, &mut out);
    b.handle_connected(at(4));
    out.clear();
    b.handle_welcome(at(5), welcome(2, Resume::Base), &mut out).unwrap();
    b.handle_waiting(at(6), Waiting { epoch: Epoch(2), place: 3 }, &mut out).unwrap();
    assert_eq!(
        count(&out, |output| matches!(output, BackupOutput::Acknowledge(_))),
        0,
        "the epoch is not on disk (rule 2)"
    );
    assert_eq!(b.catch_up(at(6)).map(|progress| progress.place), Some(3));
    assert!(!b.is_clean());
    let Some(BackupOutput::Barrier(session)) = out.last().cloned() else { panic!("{out:?}") };
    b.handle_durable(session, Index(10), &mut out);
    b.handle_waiting(at(7), Waiting { epoch: Epoch(2), place: 2 }, &mut out).unwrap();
    let nothing = Acknowledge { epoch: Epoch(2), durable: Index(0), received: Index(0) };
    assert_eq!(out.last(), Some(&BackupOutput::Acknowledge(nothing)));
    out.clear();
    b.handle_disconnected(at(8), true, &mut out);
    assert_eq!(out, [BackupOutput::Recover], "the old log is worth more than the rest of a base");
}

#[test]
fn half_a_base_is_kept_for_a_while_only() {
    let (mut b, mut out) = (backup(), Vec::new());
    half_base(&mut b, &mut out);
    b.handle_disconnected(at(10_000), true, &mut out);
    out.clear();
    b.handle_timeout(at(69_000), &mut out);
    assert!(out.is_empty());
    b.handle_timeout(at(70_000), &mut out);
    assert_eq!(out, [BackupOutput::Recover]);
}

/// Away during two failovers, with a tail that reached nobody: it is cut, and the log alone brings the rest.
#[test]
fn a_backup_that_missed_two_failovers_gets_what_it_missed_and_no_more() {
    let config =
        BackupConfig { knows: VersionRange::OWN, me: id(2, 2), replicated_only: false, backup_timeout: at(2000) };
    let log = RecoveredLog {
        cluster_version: ClusterVersion::FIRST,
        known_epoch: Epoch(1),
        history: history(&[(1, 1)], 110),
        first: Index(1),
        floor: Index(0),
        applied: Index(90),
        pending: (91..=110).map(|index| frame(1, index, 90)).collect(),
        damaged: false,
    };
    let (mut b, mut out) = (Backup::new(at(0), config, log), Vec::new());
    // The second epoch began after 100, the third after 150; its primary's ten records are in memory, the rest in its log.
    let mut p = primary(3, history(&[(1, 1), (2, 101)], 150));
    let hello = b.handle_connected(at(1));
    let mut sent = Vec::new();
    p.handle_hello(at(1), StreamId(2), &hello, 0, &mut sent);
    let (mut bytes, mut committed) = (0, Vec::new());
    while !sent.is_empty() {
        match sent.remove(0) {
            PrimaryOutput::Send(_, PrimaryMessage::Welcome(welcome)) => {
                assert_eq!(welcome.resume, Resume::After(Index(100)));
                b.handle_welcome(at(2), welcome, &mut out).unwrap();
            }
            PrimaryOutput::Send(_, PrimaryMessage::Records(records)) => {
                bytes += records.frames.iter().map(Frame::len).sum::<usize>();
                b.handle_records(at(3), records, &mut out).unwrap();
            }
            PrimaryOutput::ReadLog(stream, from) => {
                assert!(p.reads_backlog(stream), "nobody's confirm waits for it");
                let frames = (from.0..=150).take(7).map(|index| frame(2, index, index - 1)).collect();
                p.handle_log_read(at(2), stream, from, Ok(frames), &mut sent);
            }
            output => panic!("{output:?}"),
        }
    }
    let missed = (101..=160).map(|index| frame(if index <= 150 { 2 } else { 3 }, index, index - 1).len());
    assert_eq!(bytes, missed.sum::<usize>());
    assert_eq!(b.history(), &history(&[(1, 1), (2, 101), (3, 151)], 160));
    assert_eq!(out.iter().filter(|output| **output == BackupOutput::Truncate(Index(100))).count(), 1);
    for output in out {
        if let BackupOutput::Apply(frames) = output {
            committed.extend(frames.iter().map(|frame| (frame.position.epoch.0, frame.position.index.0)));
        }
    }
    let epoch_of = |index| if index <= 100 { 1 } else { 2 + u64::from(index > 150) };
    assert_eq!(committed, (91..=160).map(|index| (epoch_of(index), index)).collect::<Vec<_>>(), "none of the cut tail");
}
