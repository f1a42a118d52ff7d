//! Looking at a store from outside: what is right is described, what is wrong is found with its place, what a broker would do
//! is foretold, and nothing is changed.

mod story;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::BytesMut;
use story::*;
use understudy_journal::inspect::{
    Damage, DamageKind, Depth, InspectError, Inspection, ReadOnlyDir, SegmentRole, User, inspect,
};
use understudy_journal::sim::{Faults, SimStorage};
use understudy_journal::{DirStorage, Journal, JournalError, Options, Recovery, Storage};
use understudy_record::{BasePiece, Frame, HeldMessage, Index, QueueId, Record, StoreId};

const QUEUE: QueueId = QueueId(Index(1));

/// As [`SMALL`], with a part of the log before a checkpoint left.
const RETAINING: Options = Options { segment_bytes: 1500, retain_bytes: 3500, retain_for_followers_bytes: 0 };

type Failed = Box<dyn std::error::Error + Send + Sync>;

fn held(index: u64) -> HeldMessage {
    HeldMessage { index: Index(index), bytes: (index * 37 % 700) as u32, ..HeldMessage::default() }
}

/// A checkpoint as of the last record, in which `live`, ascending, are what the one queue holds.
fn checkpoint(journal: &mut Journal, live: &[u64]) -> Result<(), Failed> {
    let sync_point = journal.sync()?;
    let maker = journal.checkpointer();
    let mut draft = maker.begin()?;
    let start = BasePiece::Start { sync_point, epochs: vec![position(1, 1)], in_sync: Vec::new() };
    draft.add(sync_point.index, &[start, BasePiece::TopologyEnd], &mut |_| true)?;
    let newest_first: Vec<HeldMessage> = live.iter().rev().map(|index| held(*index)).collect();
    for messages in newest_first.chunks(10) {
        let piece = BasePiece::Held { queue: QUEUE, messages: messages.to_vec() };
        draft.add(sync_point.index, &[piece], &mut |_| true)?;
    }
    draft.add(sync_point.index, &[BasePiece::QueueDone { queue: QUEUE }], &mut |_| true)?;
    let finished = draft.finish(sync_point.index, Index(u64::MAX), &mut |_| true)?;
    if let Some(obsolete) = journal.install(&finished)? {
        maker.remove(obsolete, &mut || ())?;
    }
    Ok(())
}

/// What the checkpoint of [`rich`] names: a few of the oldest, all of a run after them, two of the retained log.
fn live() -> Vec<u64> {
    [3, 9].into_iter().chain(13..=24).chain([38, 40]).collect()
}

/// A store with a segment of each role: records 1 to 40, a checkpoint, records 41 to 46.
fn fill(storage: &SimStorage) -> Result<Journal, Failed> {
    let (mut journal, _) = Journal::open(Arc::new(storage.clone()), RETAINING, STORE, &mut |_| Ok(()))?;
    for index in (1..=40).step_by(2) {
        journal.append(&records(1, index..=index + 1))?;
        journal.sync()?;
    }
    checkpoint(&mut journal, &live())?;
    for index in 41..=46 {
        journal.append(&records(1, [index]))?;
        journal.sync()?;
    }
    Ok(journal)
}

fn rich() -> SimStorage {
    let storage = SimStorage::new();
    drop(fill(&storage).expect("a disk without faults"));
    storage
}

fn contents(storage: &SimStorage) -> BTreeMap<String, Vec<u8>> {
    let names = storage.list().expect("a disk without faults");
    names.into_iter().map(|name| (name.clone(), storage.read(&name).expect("listed"))).collect()
}

/// Inspects, and sees to it that nothing was changed.
#[track_caller]
fn look(storage: &SimStorage, depth: Depth) -> Inspection {
    let (before, changes) = (contents(storage), storage.changes());
    let found = inspect(storage, depth).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(storage.changes(), changes, "something was written");
    assert!(contents(storage) == before, "something is different");
    found
}

fn opening(storage: &SimStorage) -> Result<Recovery, String> {
    let opened = Journal::open(Arc::new(storage.fork()), SMALL, StoreId(1), &mut |frame| {
        frame.decode_record().map(|_| ()).or_else(|_| frame.decode_base().map(|_| ()))?;
        Ok(())
    });
    opened.map(|(_, recovery)| recovery).map_err(|error| error.to_string())
}

fn of_role(found: &Inspection, role: SegmentRole) -> Vec<&str> {
    found.segments.iter().filter(|segment| segment.role == role).map(|segment| segment.name.as_str()).collect()
}

#[test]
fn a_healthy_store_is_described_and_left_as_it_is() {
    let storage = rich();
    let recovery = opening(&storage).expect("it is healthy");
    for depth in [Depth::Opening, Depth::Everything] {
        let found = look(&storage, depth);
        assert_eq!((&found.damage[..], &found.cut, &found.leftovers[..]), (&[][..], &None, &[][..]));
        let store = found.store.expect("it is right");
        assert_eq!((store.id, store.known_epoch, store.generation), (STORE, recovery.known_epoch, 0));
        assert_eq!((found.last, found.committed), (Some(recovery.last), recovery.committed));
        let checkpoint = found.checkpoint.expect("it is right");
        assert_eq!((checkpoint.sync_point, checkpoint.floor), (position(1, 40), recovery.floor));
        assert_eq!(checkpoint.first_record, recovery.first);
        assert_eq!((checkpoint.messages, checkpoint.held), (live().len() as u64, live().len() as u64));
        assert_eq!(found.live_messages(), Some(live().len() as u64));

        let counted: u64 = found.segments.iter().filter_map(|segment| segment.live).map(|live| live.messages).sum();
        assert_eq!(counted, live().len() as u64);
        assert!(found.segments.iter().all(|segment| segment.lost == 0 && !segment.gone));
        for role in [SegmentRole::Kept, SegmentRole::KeptLog, SegmentRole::Log] {
            assert!(!of_role(&found, role).is_empty(), "no {role:?} in {:?}", found.segments);
        }
        let ranges: Vec<_> = found.segments.iter().filter_map(|segment| segment.range).collect();
        assert!(ranges.is_sorted_by(|a, b| a.1 < b.0), "{ranges:?}");
        let mut names: Vec<&str> = found.segments.iter().map(|segment| segment.name.as_str()).collect();
        names.sort_unstable();
        assert_eq!(names, segments(&storage));

        let unread = found.segments.iter().filter(|segment| segment.counts.is_none()).count();
        match depth {
            Depth::Opening => assert!(unread > 0 && found.bytes_read < found.bytes(), "{unread} unread"),
            Depth::Everything => assert_eq!((unread, found.bytes_read), (0, found.bytes())),
        }
    }
}

#[test]
fn frames_are_counted_and_the_share_that_lives() {
    let found = look(&rich(), Depth::Everything);
    let all_of = |role| found.segments.iter().filter(move |segment| segment.role == role);
    let messages = |role| all_of(role).filter_map(|segment| segment.counts).map(|counts| counts.messages).sum::<u64>();
    let live_of = |role| all_of(role).filter_map(|segment| segment.live).map(|live| live.messages).sum::<u64>();
    assert_eq!(messages(SegmentRole::Kept), live_of(SegmentRole::Kept), "a kept segment has copies of live ones only");
    for segment in all_of(SegmentRole::Kept) {
        assert_eq!(segment.counts.map(|counts| counts.marks), Some(0));
        let live = segment.live.expect("the checkpoint tells");
        assert_eq!(live.bytes + 64, segment.bytes, "all but the header of {}", segment.name);
        assert!(segment.share_live().is_some_and(|share| share > 0.5 && share < 1.0), "{:?}", segment.share_live());
    }
    let log: Vec<_> = all_of(SegmentRole::Log).collect();
    let records = log.iter().filter_map(|segment| segment.counts).map(|counts| counts.records).sum::<u64>();
    let first = log[0].range.expect("it has records").0;
    assert_eq!(records, 46 - first.previous().0);
    assert_eq!(log.last().expect("a tail").live, None, "the checkpoint knows nothing of what came after it");
    assert!(log.iter().filter_map(|segment| segment.counts).map(|counts| counts.marks).sum::<u64>() > 5);
}

/// Says where it is, and no later than at `at`; a tail that is cut counts as told.
#[track_caller]
fn assert_told(found: &Inspection, name: &str, at: usize) {
    let places = found.damage.iter().map(|damage| (damage.file.as_str(), damage.offset));
    let cut = found.cut.iter().map(|cut| (cut.segment.as_str(), cut.offset));
    let told = places.chain(cut).any(|(file, offset)| file == name && offset <= at as u64);
    assert!(told, "{name}, byte {at}: {:?} {:?}", found.damage, found.cut);
}

#[test]
fn a_flipped_bit_is_found_in_every_file_and_a_broker_judges_alike() {
    const STEP: usize = 3;
    let storage = rich();
    let tail = segments(&storage).into_iter().rfind(|name| name.starts_with("log-")).expect("a tail");
    let (mut flips, mut refused) = (0, 0);
    for (name, whole) in contents(&storage) {
        for at in (0..whole.len()).step_by(STEP) {
            let disk = storage.fork();
            let mut flipped = whole.clone();
            flipped[at] ^= 1 << (at % 8);
            disk.overwrite(&name, &flipped);
            let found = inspect(&disk, Depth::Everything).unwrap_or_else(|error| panic!("{error}"));
            assert_told(&found, &name, at);
            assert!(found.cut.is_none() || name == tail, "{name}, byte {at}: {:?}", found.cut);
            assert!(found.damage.iter().all(|damage| damage.file == name), "{name}, byte {at}: {:?}", found.damage);

            let found = inspect(&disk, Depth::Opening).unwrap_or_else(|error| panic!("{error}"));
            let is_refused = opening(&disk).is_err();
            // A broker does not look at the headers of what it does not read yet.
            let is_unread = found.segments.iter().any(|segment| segment.name == name && segment.counts.is_none());
            assert!(
                is_refused != found.damage.is_empty() || (is_unread && !is_refused && at < 64),
                "{name}, byte {at}: refused: {is_refused}; found: {:?}",
                found.damage
            );
            flips += 1;
            refused += u32::from(is_refused);
        }
    }
    println!("{flips} flips, {refused} of which keep a broker from opening");
    assert!(flips > 3000 && refused > 500, "{flips} flips, {refused} refused");
}

/// Damage in the middle of a segment hides what is damaged, and nothing after it.
#[test]
fn every_place_of_several_is_listed() {
    let storage = rich();
    let found = look(&storage, Depth::Everything);
    let kept = of_role(&found, SegmentRole::Kept)[0].to_owned();
    let log = of_role(&found, SegmentRole::KeptLog)[0].to_owned();
    let mut bytes = storage.read(&kept).expect("there");
    let body = bytes.len() - 1;
    bytes[body] ^= 1;
    storage.overwrite(&kept, &bytes);
    // Two messages' bodies in a log segment: each begins with its place, `1:N `.
    let range = found.segments.iter().find(|segment| segment.name == log).and_then(|segment| segment.range);
    let (first, last) = range.expect("it has records");
    let there: Vec<u64> = live().into_iter().filter(|index| (first.0..=last.0).contains(index)).collect();
    let mut bytes = storage.read(&log).expect("there");
    for index in [there[0], there[there.len() - 1]] {
        let text = format!("1:{index} ");
        let at = bytes.windows(text.len()).position(|window| window == text.as_bytes()).expect("its body is there");
        bytes[at] = b'x';
    }
    storage.overwrite(&log, &bytes);
    let found = look(&storage, Depth::Everything);
    let files: Vec<&str> = found.damage.iter().map(|damage| damage.file.as_str()).collect();
    assert_eq!(files, [&kept[..], &log, &log], "{:?}", found.damage);
    assert!(found.damage.iter().all(|damage| damage.reason.contains("checksum")), "{:?}", found.damage);
    let lost = |name: &str| found.segments.iter().find(|segment| segment.name == name).map(|segment| segment.lost);
    assert_eq!((lost(&kept), lost(&log)), (Some(1), Some(2)), "live messages that are lost");
    assert_eq!(look(&storage, Depth::Opening).damage, [], "a broker would not read them yet");
}

/// Gives the file another format number, and a right checksum.
fn make_newer(storage: &SimStorage, name: &str) {
    let mut bytes = storage.read(name).expect("there");
    if name == "store" {
        let lines = String::from_utf8(bytes).expect("text").replace("format 1", "format 7");
        let lines = &lines[..lines.find("checksum").expect("a checksum")];
        bytes = format!("{lines}checksum {:08x}\n", crc32c::crc32c(lines.as_bytes())).into_bytes();
    } else {
        bytes[12] = 7;
        let crc = crc32c::crc32c(&bytes[12..64]);
        bytes[8..12].copy_from_slice(&crc.to_le_bytes());
    }
    storage.overwrite(name, &bytes);
}

#[test]
fn each_kind_of_damage_has_its_name() {
    let healthy = look(&rich(), Depth::Opening);
    let kept = of_role(&healthy, SegmentRole::Kept)[0].to_owned();
    let log: Vec<String> = of_role(&healthy, SegmentRole::Log).into_iter().map(str::to_owned).collect();
    assert!(log.len() >= 3, "{log:?}");
    let (middle, tail) = (&log[1], &log[log.len() - 1]);
    let copy = |storage: &SimStorage, from: &str, to: &str| {
        let bytes = storage.read(from).expect("there");
        storage.overwrite(to, &bytes);
    };
    type Deed<'a> = Box<dyn Fn(&SimStorage) + 'a>;
    let removed = |name: &str| -> Deed<'_> {
        let name = name.to_owned();
        Box::new(move |storage| storage.remove(&name).expect("there"))
    };
    let newer = |name: &str| -> Deed<'_> {
        let name = name.to_owned();
        Box::new(move |storage| make_newer(storage, &name))
    };
    let strange = {
        let other = SimStorage::new();
        Journal::open(Arc::new(other.clone()), SMALL, StoreId(0xbad), &mut |_| Ok(())).expect("a disk without faults");
        other.read("log-00000000-00000000.seg").expect("there")
    };
    let table: Vec<(Deed<'_>, &str, DamageKind, &str)> = vec![
        (removed(middle), middle, DamageKind::Missing, "a later one is there"),
        (removed(&kept), &kept, DamageKind::Missing, "the checkpoint names it"),
        (removed("store"), "store", DamageKind::Missing, "this file, which says whose it is, is missing"),
        (removed("checkpoint"), "log-00000000-00000000.seg", DamageKind::Missing, "a later one is there"),
        (newer(middle), middle, DamageKind::Newer, "it is of format 7, this version knows 1"),
        (newer(&kept), &kept, DamageKind::Newer, "it is of format 7, this version knows 1"),
        (newer("checkpoint"), "checkpoint", DamageKind::Newer, "it is of format 7, this version knows 1"),
        (newer("store"), "store", DamageKind::Newer, "it is of format 7, this version knows 1"),
        (Box::new(|storage| copy(storage, tail, middle)), middle, DamageKind::Bytes, "under another name"),
        (Box::new(|storage| storage.overwrite(middle, &strange)), middle, DamageKind::Bytes, "it belongs to store"),
        (Box::new(|storage| storage.overwrite(middle, &[])), middle, DamageKind::Bytes, "its header is not whole"),
        (Box::new(|storage| storage.overwrite(&kept, &[])), &kept, DamageKind::Missing, "it is cut off"),
        (Box::new(|storage| storage.overwrite("store", b"")), "store", DamageKind::Bytes, "it has no checksum line"),
        (
            Box::new(|storage| storage.overwrite("checkpoint", b"")),
            "checkpoint",
            DamageKind::Bytes,
            "it is shorter than an empty one",
        ),
    ];
    for (deed, file, kind, reason) in table {
        for depth in [Depth::Opening, Depth::Everything] {
            let storage = rich();
            deed(&storage);
            let found = look(&storage, depth);
            let is_told =
                |damage: &Damage| damage.file == file && damage.kind == kind && damage.reason.contains(reason);
            assert!(found.damage.iter().any(is_told), "{file}, {kind:?}, {reason:?}: {:?}", found.damage);
        }
    }
}

#[test]
fn a_segment_that_ends_early_is_missed_at_the_next() {
    let storage = rich();
    let log = of_role(&look(&storage, Depth::Opening), SegmentRole::Log)[0].to_owned();
    // All of it but its header: what is left is right in itself.
    let bytes = storage.read(&log).expect("there");
    storage.overwrite(&log, &bytes[..64]);
    let found = look(&storage, Depth::Everything);
    assert!(found.damage.iter().any(|damage| damage.reason.contains("but the one before it ends at")), "{found:?}");
}

#[test]
fn a_message_that_the_checkpoint_names_and_nobody_has_is_missed() {
    let storage = SimStorage::new();
    let (mut journal, _) = Journal::open(Arc::new(storage.clone()), RETAINING, STORE, &mut |_| Ok(())).expect("opens");
    journal.append(&records(1, 1..=9)).expect("a disk without faults");
    let dequeue = Record::Dequeue { queue: QUEUE, messages: vec![Index(2)] };
    let frame = Frame::record(position(1, 10), Index(9), &dequeue, &mut BytesMut::new());
    journal.append(&[frame]).expect("a disk without faults");
    journal.append(&records(1, 11..=13)).expect("a disk without faults");
    checkpoint(&mut journal, &[9, 10, 11]).expect("nobody looks what record 10 is");
    let found = look(&storage, Depth::Everything);
    let reasons: Vec<_> = found.damage.iter().map(|damage| damage.reason.as_str()).collect();
    assert_eq!(reasons, ["1 messages that the checkpoint names are not in it"]);
    assert_eq!(found.segments.iter().map(|segment| segment.lost).sum::<u64>(), 1);
}

#[test]
fn a_torn_tail_is_foretold_and_no_damage() {
    let storage = rich();
    let tail = segments(&storage).into_iter().rfind(|name| name.starts_with("log-")).expect("a tail");
    let whole = storage.read(&tail).expect("there");
    for junk in [vec![0xa5; 700], vec![0; 3], vec![1; 40]] {
        storage.overwrite(&tail, &[&whole[..], &junk].concat());
        for depth in [Depth::Opening, Depth::Everything] {
            let found = look(&storage, depth);
            assert_eq!(found.damage, []);
            let cut = found.cut.expect("a torn tail");
            assert_eq!((&cut.segment, cut.offset, cut.bytes), (&tail, whole.len() as u64, junk.len() as u64));
            assert_eq!(opening(&storage).expect("it is cut").cut, Some(cut));
        }
    }
}

#[test]
fn leftovers_are_told_with_what_becomes_of_them() {
    let storage = rich();
    let rubbish =
        ["checkpoint.new", "store.new", "kept-00000000-00000fff.seg", "log-00000001-00000000.seg", "notes.txt"];
    for name in rubbish {
        storage.overwrite(name, b"half a thing");
    }
    storage.overwrite("lock", b"77\n");
    let found = look(&storage, Depth::Everything);
    assert_eq!(found.damage, []);
    let seen: Vec<_> = found.leftovers.iter().map(|left| (left.name.as_str(), left.is_removed_at_opening)).collect();
    let mut expected: Vec<_> = rubbish.iter().map(|name| (*name, *name != "notes.txt")).collect();
    expected.sort_unstable();
    assert_eq!(seen, expected);
    let what = |name| found.leftovers.iter().find(|left| left.name == name).map(|left| left.what);
    assert_eq!(what("log-00000001-00000000.seg"), Some("of a catch-up that is not complete"));

    drop(open(storage.clone()));
    let left = look(&storage, Depth::Everything).leftovers;
    assert_eq!(left.iter().map(|left| left.name.as_str()).collect::<Vec<_>>(), ["notes.txt"]);
}

#[test]
fn a_log_that_begins_with_a_base_is_described_before_and_after_it_counts() {
    let storage = SimStorage::new();
    let mut journal = open(storage.clone()).journal;
    journal.append(&records(1, 1..=4)).unwrap();
    let sync_point = position(1, 20);
    journal.begin_base().unwrap();
    journal.append(&[base_start(sync_point), base_message(sync_point, 17)]).unwrap();
    journal.append(&records(1, 21..=30)).unwrap();
    journal.sync().unwrap();
    let found = look(&storage, Depth::Everything);
    assert_eq!((&found.damage[..], found.last), (&[][..], Some(position(1, 4))));
    assert!(found.leftovers.iter().all(|left| left.what == "of a catch-up that is not complete"));
    assert!(!found.leftovers.is_empty());

    journal.append(&[base_message(sync_point, 16), base_end(sync_point, 25)]).unwrap();
    journal.complete_base().unwrap();
    journal.append(&records(1, 31..=33)).unwrap();
    journal.sync().unwrap();
    let found = look(&storage, Depth::Opening);
    assert_eq!((&found.damage[..], found.last, &found.leftovers[..]), (&[][..], Some(position(1, 33)), &[][..]));
    assert_eq!((found.checkpoint, found.live_messages()), (None, None));
    let counts = found.segments.iter().filter_map(|segment| segment.counts);
    let counted = counts.fold((0, 0), |(records, pieces), counts| (records + counts.records, pieces + counts.pieces));
    assert_eq!(counted, (13, 4));

    checkpoint(&mut journal, &[16, 17, 32]).expect("a disk without faults");
    let found = look(&storage, Depth::Everything);
    assert_eq!((&found.damage[..], found.last), (&[][..], Some(position(1, 33))));
    assert_eq!(found.live_messages(), Some(3));
}

#[test]
fn what_is_no_store_is_told_apart() {
    let storage = SimStorage::new();
    let why = |storage: &dyn Storage| match inspect(storage, Depth::Everything) {
        Err(InspectError::NotAStore { why, .. }) => why,
        other => panic!("{other:?}"),
    };
    assert_eq!(why(&storage), "it is empty");
    storage.overwrite("letter.txt", b"dear");
    assert_eq!(why(&storage), "it holds no file `store` and no log");
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(why(&ReadOnlyDir::new(&dir.path().join("nothing"))), "there is no such directory");
    let file = dir.path().join("file");
    std::fs::write(&file, "text").unwrap();
    assert_eq!(why(&ReadOnlyDir::new(&file)), "it is not a directory");
}

/// Power fails at every change that is made to a store's disk: what is left is never damage, and what the next opening does
/// about it is foretold.
#[test]
fn after_every_power_loss_the_opening_is_foretold() {
    let (mut points, mut cuts, mut fresh) = (0, 0, 0);
    for point in 0.. {
        let storage = SimStorage::new();
        storage.set_faults(Faults { power_loss_at: Some(point), ..Faults::default() });
        let whole = fill(&storage).is_ok();
        for seed in 0..2 {
            let storage = storage.fork_unsynced();
            storage.crash(seed);
            let at = format!("power loss at change {point}, seed {seed}");
            let recovery = opening(&storage).unwrap_or_else(|error| panic!("{at}: {error}"));
            for depth in [Depth::Opening, Depth::Everything] {
                match inspect(&storage, depth) {
                    Err(InspectError::NotAStore { .. }) => assert!(recovery.fresh, "{at}"),
                    Err(error) => panic!("{at}: {error}"),
                    Ok(found) => {
                        assert_eq!(found.damage, [], "{at}");
                        assert_eq!((found.last, &found.cut), (Some(recovery.last), &recovery.cut), "{at}");
                        assert_eq!(found.committed, recovery.committed, "{at}");
                    }
                }
            }
            cuts += u32::from(recovery.cut.is_some());
            fresh += u32::from(recovery.fresh);
        }
        points += 1;
        if whole {
            break;
        }
    }
    println!("{points} points of failure, {cuts} torn tails, {fresh} times before there was a store");
    assert!(points > 100 && cuts > 20 && fresh > 2, "{points} points, {cuts} cuts, {fresh} fresh");
}

/// A disk that fails at any read is told as such, or there is no verdict; never a store that looks well.
#[test]
fn a_disk_that_cannot_be_read_is_not_called_healthy() {
    let storage = rich();
    let mut told = 0;
    for read in 0.. {
        storage.set_faults(Faults { read_error_after: Some(read), ..Faults::default() });
        let found = inspect(&storage, Depth::Everything);
        let was_met = storage.fork_unsynced();
        storage.set_faults(Faults::default());
        match found {
            Ok(found) if found.damage.is_empty() => {
                // It came through: the fault is still to come.
                let mut byte = [0];
                let later = (0..=read).find(|_| was_met.open("store").unwrap().read_at(&mut byte, 0).is_err());
                assert!(later.is_some(), "read {read} failed, and nobody said so");
                break;
            }
            Ok(found) => {
                assert!(found.damage.iter().any(|damage| damage.kind == DamageKind::Unreadable), "{:?}", found.damage);
                told += 1;
            }
            Err(InspectError::Failed(failure)) => {
                assert!(failure.text.contains("EIO"), "{failure}");
                told += 1;
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!(told > 20, "{told}");
}

/// Writes, checkpoints and cuts as fast as it can until it is told to stop.
fn be_busy(storage: &SimStorage, stop: &AtomicBool) -> Result<u64, Failed> {
    let (mut journal, _) = Journal::open(Arc::new(storage.clone()), SMALL, STORE, &mut |_| Ok(()))?;
    let mut rounds = 0;
    while !stop.load(Ordering::Relaxed) {
        let last = journal.last().index.0;
        journal.append(&records(1, last + 1..=last + 12))?;
        journal.sync()?;
        if rounds % 3 == 0 && last + 8 >= journal.floor().0 {
            match journal.truncate_after(Index(last + 8)) {
                Ok(()) | Err(JournalError::BelowFloor { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let last = journal.last().index.0;
        let live: Vec<u64> = (1..=last).filter(|index| index % 41 == 0 || index + 5 > last).collect();
        checkpoint(&mut journal, &live)?;
        rounds += 1;
    }
    Ok(rounds)
}

#[test]
fn a_broker_at_work_is_never_taken_for_damage() {
    const LOOKS: u32 = 400;
    let storage = SimStorage::new();
    let stop = AtomicBool::new(false);
    let (mut verdicts, mut restless) = (0, 0);
    let rounds = std::thread::scope(|scope| {
        let writer = scope.spawn(|| be_busy(&storage, &stop));
        let mut looks = 0;
        while looks < LOOKS && !writer.is_finished() {
            let depth = if looks % 2 == 0 { Depth::Opening } else { Depth::Everything };
            match inspect(&storage, depth) {
                Ok(found) => {
                    if !found.damage.is_empty() {
                        stop.store(true, Ordering::Relaxed);
                        panic!("{:?}", found.damage);
                    }
                    verdicts += 1;
                    looks += 1;
                }
                // The file `store` is still to be written.
                Err(InspectError::NotAStore { .. }) => {}
                Err(InspectError::Restless { .. }) => {
                    restless += 1;
                    looks += 1;
                }
                Err(InspectError::Failed(failure)) => {
                    stop.store(true, Ordering::Relaxed);
                    panic!("{failure}");
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
        writer.join().expect("no panic").expect("a disk without faults")
    });
    println!("{rounds} checkpoints beside {verdicts} verdicts, {restless} times none");
    assert!(verdicts > LOOKS / 4 && rounds > 10, "{rounds} checkpoints, {verdicts} verdicts, {restless} times none");
    assert_eq!(look(&storage, Depth::Everything).damage, []);
}

#[test]
fn who_uses_a_directory_is_known_without_taking_its_lock() {
    let dir = tempfile::tempdir().unwrap();
    let looked_at = ReadOnlyDir::new(dir.path());
    assert_eq!(looked_at.user(), User::Nobody);
    let used = Arc::new(DirStorage::open(dir.path()).unwrap());
    let (mut journal, _) = Journal::open(used.clone(), SMALL, STORE, &mut |_| Ok(())).unwrap();
    journal.append(&records(1, 1..=20)).unwrap();
    journal.sync().unwrap();
    assert_eq!(looked_at.user(), User::Process(std::process::id()));
    let found = inspect(&looked_at, Depth::Everything).unwrap();
    assert_eq!((&found.damage[..], found.last), (&[][..], Some(position(1, 20))));
    drop((journal, used));
    assert_eq!(looked_at.user(), User::Nobody);
    assert!(inspect(&looked_at, Depth::Opening).unwrap().damage.is_empty());
    assert!(looked_at.create("new").is_err() && looked_at.remove("store").is_err(), "it is for reading only");
}
