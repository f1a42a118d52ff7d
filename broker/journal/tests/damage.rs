//! Torn tails are cut, damage is refused with its place (D2, D4); a disk that fails is never trusted again (D6).

mod story;

use proptest::prelude::*;
use story::*;
use understudy_journal::sim::{Faults, SimStorage};
use understudy_journal::{JournalError, OpenError, Storage};
use understudy_record::Index;

const FIRST: &str = "log-00000000-00000000.seg";

/// A log of records 1 to `last`, each durable on its own, and the frames' bytes in its first segment.
fn synced_one_by_one(last: u64) -> SimStorage {
    let storage = SimStorage::new();
    let mut journal = open(storage.clone()).journal;
    for index in 1..=last {
        journal.append(&records(1, [index])).expect("a disk without faults");
        journal.sync().expect("a disk without faults");
    }
    storage
}

/// One segment, whose last record was written and never synced.
fn with_an_unsynced_end() -> (SimStorage, usize) {
    let storage = SimStorage::new();
    let mut journal = open(storage.clone()).journal;
    journal.append(&records(1, 1..=3)).expect("a disk without faults");
    journal.sync().expect("a disk without faults");
    let end = storage.read(FIRST).expect("a disk without faults").len();
    journal.append(&records(1, [4])).expect("a disk without faults");
    (storage, end)
}

#[test]
fn the_last_record_cut_at_every_byte_is_cut_off() {
    let (storage, end) = with_an_unsynced_end();
    let whole = storage.read(FIRST).unwrap();
    assert!(whole.len() > end + 100);
    for len in end..whole.len() {
        let disk = storage.fork();
        disk.overwrite(FIRST, &whole[..len]);
        let found = open(disk.clone());
        assert_eq!(positions(&found.frames), "1:1 1:2 1:3", "cut at {len}");
        assert_eq!(found.recovery.cut.map(|cut| cut.bytes), (len > end).then_some((len - end) as u64));
        assert_eq!(open(disk).recovery.cut, None, "cut at {len}: cut once");
    }
}

#[test]
fn a_tail_of_zeros_or_of_rubbish_is_cut_off() {
    let (storage, end) = with_an_unsynced_end();
    let durable = storage.read(FIRST).unwrap()[..end].to_vec();
    for tail in [vec![0; 5000], vec![0xa5; 5000], vec![1; 300_000]] {
        let disk = storage.fork();
        disk.overwrite(FIRST, &[&durable[..], &tail[..]].concat());
        let mut found = open(disk.clone());
        assert_eq!(positions(&found.frames), "1:1 1:2 1:3");
        found.journal.append(&records(1, [4])).unwrap();
        found.journal.sync().unwrap();
        assert_eq!(positions(&open(disk).frames), "1:1 1:2 1:3 1:4");
    }
}

#[test]
fn a_hole_in_a_batch_that_was_never_durable_is_a_torn_tail() {
    let storage = SimStorage::new();
    let mut journal = open(storage.clone()).journal;
    journal.append(&records(1, 1..=2)).unwrap();
    journal.sync().unwrap();
    let end = storage.read(FIRST).unwrap().len();
    journal.append(&records(1, 3..=5)).unwrap();
    // Sectors reach a disk in any order: the first one did not, the later records did.
    let mut bytes = storage.read(FIRST).unwrap();
    bytes[end..end + 50].fill(0);
    storage.overwrite(FIRST, &bytes);
    assert_eq!(positions(&open(storage).frames), "1:1 1:2");
}

#[test]
fn a_message_that_looks_like_a_log_is_only_a_message() {
    // What a durable log looks like from inside, as the body of a message that was torn.
    let inner = synced_one_by_one(2).read(FIRST).unwrap();
    let (storage, end) = with_an_unsynced_end();
    let durable = storage.read(FIRST).unwrap()[..end].to_vec();
    storage.overwrite(FIRST, &[&durable[..], &[7; 11], &inner[..]].concat());
    assert_eq!(positions(&open(storage).frames), "1:1 1:2 1:3");
}

#[test]
fn every_flipped_bit_of_what_was_durable_is_noticed() {
    let storage = synced_one_by_one(12);
    let names = segments(&storage);
    assert_eq!(names.len(), 3, "{names:?}");
    let mut noticed = 0;
    for name in &names {
        let whole = storage.read(name).unwrap();
        let last = *name == names[2];
        // The very last mark has nothing behind it that vouches for it; no record is lost with it.
        let end = if last { whole.len() - 40 } else { whole.len() };
        for at in 0..end {
            let disk = storage.fork();
            let mut flipped = whole.clone();
            flipped[at] ^= 1 << (at % 8);
            disk.overwrite(name, &flipped);
            match try_open(disk).err() {
                Some(OpenError::Damaged { segment, offset, .. }) => {
                    assert_eq!(segment, *name);
                    assert!(offset <= at as u64, "byte {at} was reported as damage at {offset}");
                    noticed += 1;
                }
                other => panic!("{name} byte {at}: {:?}", other.map(|error| error.to_string())),
            }
        }
    }
    assert!(noticed > 3000, "{noticed}");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    /// Whatever becomes of the bytes: no panic, and never a frame that was not written.
    #[test]
    fn rot_never_yields_what_was_not_written(at in 0usize..1500, junk in prop::collection::vec(any::<u8>(), 1..80), cut in any::<bool>()) {
        let storage = synced_one_by_one(7);
        let written = open(storage.fork()).frames;
        let mut bytes = storage.read(FIRST).unwrap();
        let at = at % bytes.len();
        if cut { bytes.truncate(at) } else {
            let end = (at + junk.len()).min(bytes.len());
            bytes[at..end].copy_from_slice(&junk[..end - at]);
        }
        storage.overwrite(FIRST, &bytes);
        if let Ok(found) = try_open(storage) {
            prop_assert!(written.starts_with(&found.frames));
        }
    }
}

#[test]
fn a_missing_segment_is_named() {
    for at in 0..2 {
        let storage = synced_one_by_one(12);
        let name = &segments(&storage)[at];
        storage.remove(name).unwrap();
        let error = try_open(storage).err().unwrap().to_string();
        assert!(error.contains(name.as_str()) && error.contains("missing"), "{error}");
    }
}

#[test]
fn a_failed_sync_ends_all_trust() {
    let storage = SimStorage::new();
    let mut journal = open(storage.clone()).journal;
    journal.append(&records(1, 1..=2)).unwrap();
    let durable = journal.sync().unwrap();
    journal.append(&records(1, [3])).unwrap();
    storage.set_faults(Faults { sync_error_after: Some(0), ..Faults::default() });
    let error = journal.sync().unwrap_err();
    assert!(matches!(error, JournalError::Failed(_)), "{error}");
    // The next sync of that disk would succeed: it must not be asked.
    assert_eq!(journal.sync(), Err(error.clone()));
    assert_eq!(journal.append(&records(1, [4])), Err(error.clone()));
    assert_eq!(journal.truncate_after(Index(1)), Err(error.clone()));
    assert_eq!(journal.begin_base(), Err(error));
    assert_eq!(journal.durable(), durable);
}

/// After a failed sync the system counts as written what may stand in its cache alone, and the next sync succeeds without
/// writing it (D6). A process that starts anew finds it there, and must not take it for durable.
#[test]
fn what_a_failed_sync_left_in_the_cache_is_written_again() {
    for before in 0..4 {
        let storage = SimStorage::new();
        let mut journal = open(storage.clone()).journal;
        journal.append(&records(1, 1..=3)).unwrap();
        journal.sync().unwrap();
        for index in 4..4 + before {
            journal.append(&records(1, [index])).unwrap();
            journal.sync().unwrap();
        }
        journal.append(&records(1, 4 + before..=9)).unwrap();
        storage.set_faults(Faults { sync_error_after: Some(0), ..Faults::default() });
        assert!(journal.sync().is_err());
        drop(journal);
        storage.set_faults(Faults::default());
        let found = open(storage.clone());
        let durable = found.journal.durable().index;
        assert_eq!(durable, Index(9), "it is all in the cache");
        drop(found);
        storage.crash(before);
        assert_eq!(open(storage).journal.last().index, durable, "{before} syncs before the one that failed");
    }
}

/// A disk that hangs keeps the report back, and nobody from reading what is there.
#[test]
fn a_disk_that_hangs_holds_the_report_and_not_the_readers() {
    let storage = SimStorage::new();
    let mut journal = open(storage.clone()).journal;
    journal.append(&records(1, 1..=3)).unwrap();
    journal.sync().unwrap();
    storage.set_faults(Faults { hang_syncs: true, ..Faults::default() });
    let mut reader = journal.reader();
    std::thread::scope(|scope| {
        let (done, reports) = std::sync::mpsc::channel();
        scope.spawn(move || {
            journal.append(&records(1, 4..=6)).unwrap();
            done.send(journal.durable()).unwrap();
            done.send(journal.sync().unwrap()).unwrap();
        });
        assert_eq!(reports.recv().unwrap().index, Index(3), "written, and not durable");
        assert_eq!(positions(&reader.read_from(Index(2), 1 << 20).unwrap()), "1:2 1:3 1:4 1:5 1:6");
        assert!(reports.try_recv().is_err(), "the sync has not returned");
        storage.set_faults(Faults::default());
        assert_eq!(reports.recv().unwrap().index, Index(6));
    });
}

#[test]
fn a_disk_that_cannot_be_read_is_told_and_nothing_is_changed() {
    let storage = synced_one_by_one(40);
    let names = segments(&storage);
    let bytes: Vec<_> = names.iter().map(|name| storage.read(name)).collect();
    let mut failed = 0;
    for reads in 0.. {
        storage.set_faults(Faults { read_error_after: Some(reads), ..Faults::default() });
        let opened = try_open(storage.clone());
        storage.set_faults(Faults::default());
        match opened {
            Err(OpenError::Failed(failure)) => assert!(failure.to_string().contains("cannot"), "{failure}"),
            Err(error) => panic!("read {reads}: {error}"),
            Ok(_) => break,
        }
        failed += 1;
    }
    assert!(failed > 5, "{failed} reads");
    let now: Vec<_> = names.iter().map(|name| storage.read(name)).collect();
    // The last opening, which succeeded, has written its mark.
    let last = names.len() - 1;
    assert_eq!(now[..last], bytes[..last]);
    let mut reader = open(storage.clone()).journal.reader();
    storage.set_faults(Faults { read_error_after: Some(0), ..Faults::default() });
    assert!(reader.messages(&[Index(7)]).is_err());
    assert_eq!(reader.messages(&[Index(7)]).expect("the disk works again").len(), 1);
}

#[test]
fn a_full_disk_is_told_and_leaves_the_log_intact() {
    for space in 0..900 {
        let storage = SimStorage::new();
        let mut journal = open(storage.clone()).journal;
        journal.append(&records(1, 1..=3)).unwrap();
        journal.sync().unwrap();
        storage.set_faults(Faults { space: Some(space), ..Faults::default() });
        let failed = journal.append(&[sized(1, 4, 900)]).unwrap_err();
        let text = failed.to_string();
        assert!(text.contains("/sim") && text.contains("make room"), "{text}");
        assert_eq!(journal.sync(), Err(failed));
        // The disk is still full when the broker starts again.
        assert_eq!(positions(&open(storage.clone()).frames), "1:1 1:2 1:3");
        storage.crash(space);
        assert_eq!(positions(&open(storage).frames), "1:1 1:2 1:3");
    }
}

#[test]
fn a_write_that_fails_is_told_once_and_for_all() {
    for writes in 0..12 {
        let storage = SimStorage::new();
        let mut journal = open(storage.clone()).journal;
        storage.set_faults(Faults { write_error_after: Some(writes), ..Faults::default() });
        let mut durable = 0;
        let failed = (1..).find_map(|index| {
            let step = journal.append(&records(1, [index])).and_then(|()| journal.sync());
            if step.is_ok() {
                durable = index;
            }
            step.err()
        });
        assert_eq!(journal.sync().err(), failed);
        storage.crash(writes);
        let found = open(storage);
        assert!(found.recovery.last.index >= Index(durable), "{} of {durable}", found.recovery.last);
    }
}
