//! The log's ordinary life: order, epochs, cuts, bases, readers.

mod story;

use std::io::{self, IoSlice};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use story::*;
use understudy_journal::sim::SimStorage;
use understudy_journal::{DirStorage, Journal, JournalError, Options, OrderError, ReadError, Storage, StorageFile};
use understudy_record::{Epoch, Frame, Index};

#[test]
fn an_empty_directory_becomes_a_store_and_keeps_its_id() {
    let storage = SimStorage::new();
    let first = open(storage.clone()).recovery;
    assert!(first.fresh);
    assert_eq!((first.store, first.first, first.last), (STORE, Index(1), position(0, 0)));
    let again = open(storage).recovery;
    assert!(!again.fresh);
    assert_eq!(again.store, STORE);
}

#[test]
fn what_is_written_is_what_is_read_in_bytes_and_in_order() {
    let storage = SimStorage::new();
    let mut journal = open(storage.clone()).journal;
    let written: Vec<Frame> = [records(1, 1..=20), records(3, 21..=30)].concat();
    for batch in written.chunks(7) {
        journal.append(batch).unwrap();
    }
    assert_eq!(journal.durable(), position(0, 0));
    assert_eq!(journal.sync(), Ok(position(3, 30)));
    assert!(segments(&storage).len() > 3);
    let found = open(storage);
    assert_eq!(found.frames, written);
    assert_eq!(found.recovery.last, position(3, 30));
    assert_eq!(found.recovery.committed, Index(29));
    assert_eq!(found.recovery.epochs, [position(1, 1), position(3, 21)]);
    assert_eq!(found.recovery.known_epoch, Epoch(3), "a record's epoch is known from then on");
    assert_eq!(found.journal.epoch_at(Index(20)), Some(Epoch(1)));
    assert_eq!(found.journal.epoch_at(Index(21)), Some(Epoch(3)));
    assert_eq!(found.journal.epoch_at(Index(31)), None);
    assert_eq!(found.journal.epoch_at(Index(0)), None);
}

#[test]
fn what_does_not_continue_the_log_is_refused_and_changes_nothing() {
    let mut journal = open(SimStorage::new()).journal;
    journal.append(&records(2, 1..=2)).unwrap();
    let gap = JournalError::Order(OrderError::Gap { expected: Index(3), found: Index(4) });
    assert_eq!(journal.append(&records(2, [4])), Err(gap.clone()));
    assert_eq!(
        journal.append(&[record(2, 3), record(2, 5)]),
        Err(JournalError::Order(OrderError::Gap { expected: Index(4), found: Index(5) }))
    );
    let back = OrderError::EpochBack { index: Index(3), last: Epoch(2), found: Epoch(1) };
    assert_eq!(journal.append(&records(1, [3])), Err(back.into()));
    assert!(matches!(journal.append(&[base_start(position(2, 9))]), Err(JournalError::Order(OrderError::Base { .. }))));
    assert_eq!(journal.last(), position(2, 2));
    journal.append(&records(2, [3])).unwrap();
}

#[test]
fn an_epoch_never_goes_back() {
    let storage = SimStorage::new();
    let mut journal = open(storage.clone()).journal;
    journal.persist_epoch(Epoch(7)).unwrap();
    journal.persist_epoch(Epoch(5)).unwrap();
    assert_eq!(journal.known_epoch(), Epoch(7));
    storage.crash(1);
    assert_eq!(open(storage).recovery.known_epoch, Epoch(7));
}

#[test]
fn a_divergent_tail_is_cut_at_any_place_and_replaced() {
    for keep in 0..=20 {
        let storage = SimStorage::new();
        let mut journal = open(storage.clone()).journal;
        journal.append(&records(1, 1..=10)).unwrap();
        journal.sync().unwrap();
        journal.append(&records(2, 11..=20)).unwrap();
        journal.truncate_after(Index(keep)).unwrap();
        let epoch = if keep > 10 { 2 } else { u64::from(keep > 0) };
        assert_eq!(journal.last(), position(epoch, keep));
        assert!(keep == 20 || journal.durable() == journal.last(), "a cut is durable");
        journal.append(&records(3, keep + 1..=keep + 5)).unwrap();
        journal.sync().unwrap();
        storage.crash(keep);
        let found = open(storage);
        assert_eq!(found.recovery.last, position(3, keep + 5));
        let expected: Vec<_> = [(1, 1), (2, 11), (3, keep + 1)].into_iter().filter(|(_, at)| *at <= keep + 1).collect();
        let expected: Vec<_> = expected.into_iter().filter(|(epoch, at)| *epoch == 3 || *at <= keep).collect();
        assert_eq!(
            found.recovery.epochs,
            expected.into_iter().map(|(epoch, at)| position(epoch, at)).collect::<Vec<_>>()
        );
    }
}

#[test]
fn a_new_store_replaces_the_old_one_once_it_is_whole() {
    let storage = SimStorage::new();
    let mut journal = open(storage.clone()).journal;
    journal.append(&records(1, 1..=5)).unwrap();
    let s = position(2, 100);
    journal.begin_base().unwrap();
    assert!(journal.base_in_progress());
    assert!(matches!(journal.append(&records(2, [101])), Err(JournalError::Order(_))), "a base begins with its start");
    journal.append(&[base_start(s), record(2, 101), base_message(s, 99), record(2, 102)]).unwrap();
    assert!(matches!(journal.complete_base(), Err(JournalError::BaseIncomplete { .. })));
    assert!(matches!(journal.truncate_after(Index(101)), Err(JournalError::BaseInProgress)));
    assert_eq!(positions(&open(storage.fork()).frames), "1:1 1:2 1:3 1:4 1:5", "a crash leaves the old one");

    journal.append(&[base_message(s, 98), base_end(s, 103)]).unwrap();
    assert!(matches!(journal.complete_base(), Err(JournalError::BaseIncomplete { .. })), "103 is still to come");
    journal.append(&records(2, 103..=104)).unwrap();
    assert_eq!(journal.complete_base(), Ok(position(2, 104)));
    assert_eq!(journal.first(), Index(101));
    assert_eq!(journal.floor(), Index(103));
    assert!(matches!(journal.truncate_after(Index(102)), Err(JournalError::BelowFloor { floor: Index(103), .. })));
    journal.truncate_after(Index(103)).unwrap();

    storage.crash(3);
    let found = open(storage.clone());
    assert_eq!(positions(&found.frames), "base@2:100 2:101 base@2:100 2:102 base@2:100 base@2:100 2:103");
    assert_eq!(found.recovery.base, Some(s));
    assert_eq!(found.recovery.store, STORE, "it is the same disk");
    assert_eq!(found.journal.epoch_at(Index(50)), Some(Epoch(1)));
    assert!(segments(&storage).iter().all(|name| name.starts_with("log-00000001-")), "{:?}", segments(&storage));
}

#[test]
fn a_cut_never_takes_a_piece_of_the_base() {
    let mut journal = open(SimStorage::new()).journal;
    let s = position(1, 10);
    journal.begin_base().unwrap();
    journal.append(&[base_start(s), record(1, 11), record(1, 12), base_end(s, 10), record(1, 13)]).unwrap();
    journal.complete_base().unwrap();
    assert_eq!(journal.floor(), Index(12), "the base's end stands behind record 12");
    assert!(matches!(journal.truncate_after(Index(11)), Err(JournalError::BelowFloor { .. })));
}

#[test]
fn a_reader_starts_anywhere_and_goes_on() {
    let mut journal = open(SimStorage::new()).journal;
    let mut reader = journal.reader();
    assert_eq!(reader.read_from(Index(1), 1000).unwrap(), []);
    let written = records(1, 1..=60);
    journal.append(&written).unwrap();
    for from in 1..=60 {
        let frames = reader.clone().read_from(Index(from), usize::MAX).unwrap();
        assert_eq!(frames, written[from as usize - 1..]);
        assert_eq!(reader.clone().read_from(Index(from), 1).unwrap().len(), 1);
    }
    let mut next = Index(1);
    let mut read = Vec::new();
    while read.len() < 60 {
        let batch = reader.read_from(next, 1000).unwrap();
        next = batch.last().unwrap().position.index.next();
        read.extend(batch);
    }
    assert_eq!(read, written);
    assert_eq!(reader.read_from(next, 1000).unwrap(), []);
    journal.append(&records(1, [61])).unwrap();
    assert_eq!(positions(&reader.read_from(next, 1000).unwrap()), "1:61");
}

#[test]
fn a_reader_sees_no_base_piece_and_nothing_before_it_but_replay_does() {
    let storage = SimStorage::new();
    let mut journal = open(storage.clone()).journal;
    journal.append(&records(1, 1..=3)).unwrap();
    let mut reader = journal.reader();
    reader.read_from(Index(1), 1).unwrap();
    let s = position(1, 10);
    journal.begin_base().unwrap();
    let pieces: Vec<_> = (1..=9).map(|index| base_message(s, index)).collect();
    journal
        .append(&[vec![base_start(s)], pieces, vec![record(1, 11), base_end(s, 11), record(1, 12)]].concat())
        .unwrap();
    journal.complete_base().unwrap();
    assert!(matches!(reader.read_from(Index(2), 1), Err(ReadError::Gone { first: Index(11), .. })));
    assert_eq!(positions(&reader.read_from(Index(11), usize::MAX).unwrap()), "1:11 1:12");
    let mut replayed = Vec::new();
    reader
        .replay(&mut |frame| {
            replayed.push(frame);
            Ok(())
        })
        .unwrap();
    assert_eq!(replayed, open(storage).frames);
    assert_eq!(replayed.len(), 13);
}

/// The writer appends, rolls and cuts on a real disk while a reader follows: what it reads is always a log that was.
#[test]
fn a_reader_beside_a_busy_writer_reads_what_was_written_or_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let storage = Arc::new(DirStorage::open(dir.path()).unwrap());
    let options = Options { segment_bytes: 20_000, ..Options::default() };
    let (mut journal, _) = Journal::open(storage, options, STORE, &mut |_| Ok(())).unwrap();
    let mut reader = journal.reader();
    let writer = std::thread::spawn(move || {
        for epoch in 1..=300 {
            let first = journal.last().index.next().0;
            for batch in 0..4 {
                journal.append(&records(epoch, first + batch * 8..first + batch * 8 + 8)).unwrap();
            }
            journal.truncate_after(Index(journal.last().index.0 - 16)).unwrap();
        }
        journal.last()
    });
    let (mut next, mut read, mut changed) = (Index(1), 0_u64, 0_u64);
    while !writer.is_finished() || next != reader.last().index.next() {
        match reader.read_from(next, 10_000) {
            Ok(frames) => {
                for frame in &frames {
                    assert_eq!(*frame, record(frame.position.epoch.0, next.0));
                    next = next.next();
                    read += 1;
                }
                // What it stood in may have been cut.
                next = next.min(reader.last().index.next());
            }
            Err(ReadError::Changed) => changed += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(writer.join().unwrap().index.next(), next);
    println!("{read} records read, {changed} reads met a change");
}

#[test]
fn what_opening_reports_is_durable_even_if_its_writer_died_before_the_sync() {
    for seed in 0..40 {
        let storage = SimStorage::new();
        let mut journal = open(storage.clone()).journal;
        journal.append(&records(1, 1..=4)).unwrap();
        drop(journal); // killed: the system still has what was written
        assert_eq!(open(storage.clone()).recovery.last, position(1, 4));
        storage.crash(seed);
        assert_eq!(open(storage).recovery.last, position(1, 4), "seed {seed}");
    }
}

#[test]
fn a_reader_that_stood_in_a_cut_tail_reads_the_new_one() {
    let mut journal = open(SimStorage::new()).journal;
    journal.append(&records(1, 1..=20)).unwrap();
    let mut reader = journal.reader();
    assert_eq!(positions(&reader.read_from(Index(18), 1).unwrap()), "1:18");
    journal.truncate_after(Index(2)).unwrap();
    assert_eq!(reader.read_from(Index(19), 1).unwrap(), []);
    journal.append(&records(2, 3..=20)).unwrap();
    assert_eq!(positions(&reader.read_from(Index(18), usize::MAX).unwrap()), "2:18 2:19 2:20");
}

/// A disk on which something happens during the next read.
struct Interrupted {
    disk: SimStorage,
    during_read: Interruption,
    reads: Arc<AtomicUsize>,
}

type Interruption = Arc<Mutex<Option<Box<dyn FnOnce() + Send>>>>;

struct InterruptedFile(Arc<dyn StorageFile>, Interruption, Arc<AtomicUsize>);

impl Storage for Interrupted {
    fn list(&self) -> io::Result<Vec<String>> {
        self.disk.list()
    }
    fn create(&self, name: &str) -> io::Result<Arc<dyn StorageFile>> {
        self.disk.create(name)
    }
    fn open(&self, name: &str) -> io::Result<Arc<dyn StorageFile>> {
        Ok(Arc::new(InterruptedFile(self.disk.open(name)?, self.during_read.clone(), self.reads.clone())))
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.disk.rename(from, to)
    }
    fn remove(&self, name: &str) -> io::Result<()> {
        self.disk.remove(name)
    }
    fn sync_dir(&self) -> io::Result<()> {
        self.disk.sync_dir()
    }
    fn free_space(&self) -> io::Result<u64> {
        self.disk.free_space()
    }
    fn place(&self) -> String {
        self.disk.place()
    }
}

impl StorageFile for InterruptedFile {
    fn append(&self, slices: &mut [IoSlice<'_>]) -> io::Result<()> {
        self.0.append(slices)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }
    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        let interruption = self.1.lock().map_or(None, |mut next| next.take());
        if let Some(interruption) = interruption {
            interruption();
        }
        self.2.fetch_add(1, Ordering::Relaxed);
        self.0.read_at(into, offset)
    }
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }
    fn truncate(&self, len: u64) -> io::Result<()> {
        self.0.truncate(len)
    }
}

/// Reads a log of five records while `change` is done to it.
fn read_interrupted_by(
    change: impl FnOnce(&mut Journal) + Send + 'static,
    replay: bool,
) -> Result<Vec<Frame>, ReadError> {
    let during_read = Interruption::default();
    let disk = Interrupted { disk: SimStorage::new(), during_read: during_read.clone(), reads: Arc::default() };
    let mut journal = open(disk).journal;
    journal.append(&records(1, 1..=5)).expect("in order");
    let mut reader = journal.reader();
    *during_read.lock().expect("nobody panicked") = Some(Box::new(move || change(&mut journal)));
    let mut frames = Vec::new();
    if replay {
        reader.replay(&mut |frame| {
            frames.push(frame);
            Ok(())
        })?;
    } else {
        frames = reader.read_from(Index(1), usize::MAX)?;
    }
    Ok(frames)
}

#[test]
fn a_log_that_changes_under_a_reader_is_told() {
    for replay in [false, true] {
        let cut = read_interrupted_by(|journal| journal.truncate_after(Index(2)).unwrap(), replay);
        assert!(matches!(cut, Err(ReadError::Changed)), "{cut:?}");
        let replaced_tail = |journal: &mut Journal| {
            journal.truncate_after(Index(4)).unwrap();
            journal.append(&[sized(2, 5, 37 * 5)]).unwrap();
        };
        let cut = read_interrupted_by(replaced_tail, replay);
        assert!(matches!(cut, Err(ReadError::Changed)), "{cut:?}");
        let base = read_interrupted_by(|journal| journal.begin_base().unwrap(), replay);
        assert!(matches!(base, Err(ReadError::Changed)), "{base:?}");
        let more = read_interrupted_by(|journal| journal.append(&records(1, 6..=9)).unwrap(), replay);
        assert!(more.unwrap().starts_with(&records(1, 1..=5)));
    }
}

/// As a catch-up finds a queue's messages where many queues take turns.
#[test]
fn a_message_far_from_the_others_comes_with_one_read_and_holds_on_to_no_more_than_itself() {
    let reads = Arc::<AtomicUsize>::default();
    let disk = Interrupted { disk: SimStorage::new(), during_read: Interruption::default(), reads: reads.clone() };
    let (mut journal, _) = Journal::open(Arc::new(disk), Options::default(), STORE, &mut |_| Ok(())).expect("opens");
    let written: Vec<Frame> = (1..=100).map(|index| sized(1, index, 5000)).collect();
    journal.append(&written).expect("appends");
    let indexes: Vec<Index> = (1..=91).step_by(9).map(Index).collect();
    let before = reads.load(Ordering::Relaxed);
    let frames = journal.reader().messages(&indexes).expect("all are there");
    assert_eq!(reads.load(Ordering::Relaxed) - before, indexes.len());
    for (frame, index) in frames.into_iter().zip(indexes) {
        assert_eq!(frame, written[index.0 as usize - 1]);
        let (body, len) = (frame.body().to_contiguous(), frame.len());
        drop(frame);
        let held = body.try_into_mut().expect("nobody else has it").capacity();
        assert!(held <= len, "{held} bytes are kept for a frame of {len}");
    }
}

/// In a base's log a message of the backlog may stand behind live records, which have higher indexes.
#[test]
fn messages_of_a_base_and_records_between_them_are_read_in_one_go() {
    let Found { mut journal, .. } = open(SimStorage::new());
    let sync_point = position(1, 5);
    journal.begin_base().expect("begins");
    journal.append(&[base_start(sync_point)]).expect("appends");
    journal
        .append(&[record(1, 6), base_message(sync_point, 3), record(1, 7), base_message(sync_point, 2)])
        .expect("appends");
    journal.append(&[record(1, 8), base_end(sync_point, 8)]).expect("appends");
    journal.complete_base().expect("completes");
    let indexes = [2, 3, 6, 7, 8].map(Index);
    let frames = journal.reader().messages(&indexes).expect("all are there");
    assert_eq!(frames.iter().filter_map(Frame::message_index).collect::<Vec<_>>(), indexes);
}
