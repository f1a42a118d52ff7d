//! Checkpoints that come to nothing, beside others that do: what they wrote goes, and nothing else does.

mod story;

use std::sync::Arc;

use bytes::BytesMut;
use story::*;
use understudy_journal::sim::{Faults, SimStorage};
use understudy_journal::{CheckpointError, Checkpointer, Draft, Finished, Journal, Storage};
use understudy_record::{BasePiece, Body, Frame, HeldMessage, Index, Message, QueueId, Record};

fn opened() -> (SimStorage, Journal) {
    let storage = SimStorage::new();
    let (journal, _) = Journal::open(Arc::new(storage.clone()), SMALL, STORE, &mut |_| Ok(())).expect("opens");
    (storage, journal)
}

fn write(journal: &mut Journal, indexes: std::ops::RangeInclusive<u64>) {
    journal.append(&records(1, indexes)).expect("room enough");
    journal.sync().expect("a disk that works");
}

/// As of the log's end, in which these messages live.
fn draft(journal: &Journal, maker: &Checkpointer, live: &[u64]) -> Draft {
    let sync_point = journal.last();
    let mut draft = maker.begin().expect("room enough");
    let held =
        |index: &u64| HeldMessage { index: Index(*index), bytes: (*index as u32 * 37) % 700, ..HeldMessage::default() };
    let mut messages: Vec<HeldMessage> = live.iter().map(held).collect();
    messages.reverse();
    let queue = QueueId(Index(1));
    let pieces = [
        BasePiece::Start { sync_point, epochs: vec![position(1, 1)], in_sync: Vec::new() },
        BasePiece::TopologyEnd,
        BasePiece::Held { queue, messages },
        BasePiece::QueueDone { queue },
    ];
    draft.add(sync_point.index, &pieces, &mut |_| true).expect("room enough");
    draft
}

fn finish(journal: &Journal, draft: Draft) -> Result<Finished, CheckpointError> {
    draft.finish(journal.last().index, Index(u64::MAX), &mut |_| true)
}

fn checkpoint(journal: &Journal, maker: &Checkpointer, live: &[u64]) -> Finished {
    finish(journal, draft(journal, maker, live)).expect("room enough")
}

fn install(journal: &mut Journal, maker: &Checkpointer, finished: &Finished) {
    let obsolete = journal.install(finished).expect("a disk that works").expect("it is of this log");
    maker.remove(obsolete, &mut || ()).expect("a disk that works");
}

fn names(storage: &SimStorage) -> Vec<String> {
    let mut names = storage.list().expect("listing");
    names.sort();
    names
}

#[track_caller]
fn assert_readable(journal: &Journal, live: &[u64]) {
    let live: Vec<Index> = live.iter().copied().map(Index).collect();
    journal.reader().messages(&live).expect("every live message");
}

/// The word that an earlier one is not wanted may come when its successor is already being written, or waits.
#[test]
fn discarding_one_leaves_its_successor_alone() {
    for whole in [false, true] {
        let (_storage, mut journal) = opened();
        let maker = journal.checkpointer();
        write(&mut journal, 1..=20);
        let earlier = checkpoint(&journal, &maker, &[2, 9]);
        write(&mut journal, 21..=30);
        let later = draft(&journal, &maker, &[2, 9, 25]);
        let later = if whole {
            let later = finish(&journal, later).expect("room enough");
            maker.discard(earlier).expect("a disk that works");
            later
        } else {
            maker.discard(earlier).expect("a disk that works");
            finish(&journal, later).expect("room enough")
        };
        install(&mut journal, &maker, &later);
        assert_readable(&journal, &[2, 9, 25]);
    }
}

/// A backup applies what is committed as soon as it comes, so a checkpoint may be made of records that the log does not have
/// yet, while another epoch's stand in their place. Once those are cut off, other messages stand where it says.
#[test]
fn one_that_was_made_before_a_cut_does_not_come_into_force_after_it() {
    let (storage, mut journal) = opened();
    let maker = journal.checkpointer();
    write(&mut journal, 1..=40);
    let mut draft = maker.begin().expect("room enough");
    let (sync_point, queue) = (position(2, 36), QueueId(Index(1)));
    let live: Vec<u64> = (2..=36).collect();
    let held =
        live.iter().rev().map(|index| HeldMessage { index: Index(*index), bytes: 500, ..HeldMessage::default() });
    let pieces = [
        BasePiece::Start { sync_point, epochs: vec![position(1, 1), position(2, 13)], in_sync: Vec::new() },
        BasePiece::TopologyEnd,
        BasePiece::Held { queue, messages: held.collect() },
        BasePiece::QueueDone { queue },
    ];
    draft.add(sync_point.index, &pieces, &mut |_| true).expect("room enough");
    let early = draft.finish(sync_point.index, Index(u64::MAX), &mut |_| true).expect("room enough");
    journal.truncate_after(Index(12)).expect("nothing below is in force");
    let others: Vec<Frame> = (13..=50).map(|index| sized(2, index, 90 + index as usize % 7 * 40)).collect();
    journal.append(&others).expect("room enough");
    journal.sync().expect("a disk that works");
    assert!(journal.install(&early).expect("a disk that works").is_none(), "it names what was cut off");
    maker.discard(early).expect("a disk that works");
    assert_readable(&journal, &live);
    drop(journal);
    assert_readable(&open(storage).journal, &live);
}

/// A draft that is put away when its successor has begun.
#[test]
fn dropping_a_draft_leaves_its_successor_alone() {
    let (_storage, mut journal) = opened();
    let maker = journal.checkpointer();
    write(&mut journal, 1..=20);
    let earlier = draft(&journal, &maker, &[2]);
    let later = draft(&journal, &maker, &[2]);
    drop(earlier);
    let later = finish(&journal, later).expect("room enough");
    install(&mut journal, &maker, &later);
}

/// A catch-up has begun when the word comes: the log that it may still go back to keeps its segments.
#[test]
fn discarding_one_while_a_base_is_filled_leaves_the_log_in_force_whole() {
    let (storage, mut journal) = opened();
    let maker = journal.checkpointer();
    write(&mut journal, 1..=20);
    let first = checkpoint(&journal, &maker, &[2, 3, 5, 7, 9]);
    install(&mut journal, &maker, &first);
    assert!(names(&storage).iter().any(|name| name.starts_with("kept-")), "{:?}", names(&storage));
    write(&mut journal, 21..=30);
    let second = checkpoint(&journal, &maker, &[2, 3, 5, 7, 9, 25]);
    journal.begin_base().expect("a disk that works");
    maker.discard(second).expect("a disk that works");
    journal.abandon_base().expect("a disk that works");
    assert_readable(&journal, &[2, 3, 5, 7, 9, 25]);
    drop(journal);
    assert_readable(&open(storage).journal, &[2, 3, 5, 7, 9, 25]);
}

/// Nor does the catch-up's end stumble over what is gone.
#[test]
fn a_base_is_completed_after_one_was_discarded() {
    let (storage, mut journal) = opened();
    let maker = journal.checkpointer();
    write(&mut journal, 1..=20);
    let first = checkpoint(&journal, &maker, &[2, 3, 5, 7, 9]);
    install(&mut journal, &maker, &first);
    write(&mut journal, 21..=30);
    let second = checkpoint(&journal, &maker, &[2, 3, 5, 7, 9, 25]);
    journal.begin_base().expect("a disk that works");
    journal.append(&[base_start(position(1, 30)), base_end(position(1, 30), 30)]).expect("a base without a backlog");
    maker.discard(second).expect("a disk that works");
    journal.complete_base().expect("the new log is whole");
    drop(journal);
    open(storage);
}

/// Copies of live messages included: a disk that is nearly full is not filled by tries that fail.
#[test]
fn one_that_fails_or_is_given_up_leaves_no_file() {
    let (storage, mut journal) = opened();
    let maker = journal.checkpointer();
    write(&mut journal, 1..=40);
    let before = names(&storage);
    let live = [2, 5, 9, 13, 18, 22, 27, 31];
    let mut written = 0;
    let whole = draft(&journal, &maker, &live).finish(Index(40), Index(u64::MAX), &mut |bytes| {
        written += bytes;
        true
    });
    maker.discard(whole.expect("room enough")).expect("a disk that works");
    assert_eq!(names(&storage), before, "after one that was discarded");
    let mut failures = 0;
    for space in (0..written + 2000).step_by(23) {
        let draft = draft(&journal, &maker, &live);
        storage.set_faults(Faults { space: Some(space), ..Faults::default() });
        let outcome = finish(&journal, draft);
        storage.set_faults(Faults::default());
        match outcome {
            Ok(finished) => maker.discard(finished).expect("a disk that works"),
            Err(error) => {
                failures += 1;
                assert!(matches!(&error, CheckpointError::Failed(failure) if failure.is_full()), "{error}");
            }
        }
        assert_eq!(names(&storage), before, "after one with room for {space} bytes");
    }
    assert!(failures > 3, "{failures}");
    let mut left = 300_u64;
    let given_up = draft(&journal, &maker, &live).finish(Index(40), Index(u64::MAX), &mut |bytes| {
        left = left.saturating_sub(bytes);
        left > 0
    });
    assert!(matches!(given_up, Err(CheckpointError::GivenUp)), "{given_up:?}");
    assert_eq!(names(&storage), before, "after one that was given up");
    drop(draft(&journal, &maker, &live));
    assert_eq!(names(&storage), before, "after one that never ended");
}

/// Segments without a live message go though there is no room to move the others' messages.
#[test]
fn a_full_disk_gets_back_what_needs_no_room() {
    let (storage, mut journal) = opened();
    let maker = journal.checkpointer();
    write(&mut journal, 1..=100);
    let before = storage.list().expect("listing").len();
    let live = [2, 30, 60];
    let draft = draft(&journal, &maker, &live);
    // Enough for the end of the list, not for the messages.
    storage.set_faults(Faults { space: Some(600), ..Faults::default() });
    let finished = finish(&journal, draft).expect("nothing need be moved");
    install(&mut journal, &maker, &finished);
    storage.set_faults(Faults::default());
    let after = storage.list().expect("listing").len();
    assert!(after < before / 2, "{after} files of {before}");
    assert_readable(&journal, &live);
    drop(journal);
    assert_readable(&open(storage).journal, &live);
}

/// A frame that names many queues is much longer than what its message weighs. It is moved once, not with each checkpoint.
#[test]
fn what_is_whole_is_not_moved_again_and_again() {
    let (_storage, mut journal) = opened();
    let maker = journal.checkpointer();
    let targets: Vec<QueueId> = (1..=60).map(|queue| QueueId(Index(queue))).collect();
    let wide = |index: u64| {
        let Ok(Record::Publish { message, .. }) = record(1, index).decode_record() else { panic!("{index}") };
        let record =
            Record::Publish { targets: targets.clone(), message: Message { body: Body::default(), ..message } };
        Frame::record(position(1, index), Index(index - 1), &record, &mut BytesMut::new())
    };
    let frames: Vec<Frame> = (1..=40).map(wide).collect();
    journal.append(&frames).expect("room enough");
    journal.sync().expect("a disk that works");
    let live: Vec<u64> = (1..=40).collect();
    let mut moved = Vec::new();
    for round in 0..4 {
        let sync_point = journal.last();
        let mut draft = maker.begin().expect("room enough");
        let held = |index: &u64| HeldMessage { index: Index(*index), bytes: 2, ..HeldMessage::default() };
        let queue = QueueId(Index(1));
        let pieces = [
            BasePiece::Start { sync_point, epochs: vec![position(1, 1)], in_sync: Vec::new() },
            BasePiece::TopologyEnd,
            BasePiece::Held { queue, messages: live.iter().rev().map(held).collect() },
            BasePiece::QueueDone { queue },
        ];
        draft.add(sync_point.index, &pieces, &mut |_| true).expect("room enough");
        let finished = finish(&journal, draft).expect("room enough");
        moved.push(finished.moved_bytes);
        install(&mut journal, &maker, &finished);
        let next = journal.last().index.0 + 1;
        if round < 3 {
            write(&mut journal, next..=next + 9); // dead at once: more segments of the log
        }
    }
    assert_readable(&journal, &live);
    assert!(moved[0] > 0 && moved[2..] == [0, 0], "{moved:?} bytes were moved");
}
