//! A real directory: one broker at a time, and a clear word about what is wrong with it.

mod story;

use std::path::Path;

use story::*;
use understudy_journal::{DirError, DirStorage, Journal, OpenError, Storage};
use understudy_record::version::ClusterVersion;
use understudy_record::{FRAME_HEADER_BYTES, Frame, Rope};

fn take(path: &Path) -> DirStorage {
    DirStorage::open(path).expect("a directory that may be used")
}

#[test]
fn two_brokers_do_not_share_a_directory() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("not/there/yet");
    let first = take(&path);
    let error = DirStorage::open(&path).unwrap_err();
    assert!(matches!(error, DirError::InUse { pid: Some(pid), .. } if pid == std::process::id()), "{error}");
    let text = error.to_string();
    assert!(text.contains(path.to_str().unwrap()) && text.contains("another broker"), "{text}");
    drop(first);
    take(&path);
}

#[test]
fn a_log_on_a_real_disk_is_there_again() {
    let dir = tempfile::tempdir().unwrap();
    let written = records(1, 1..=50);
    {
        let mut journal = open(take(dir.path())).journal;
        journal.append(&written).unwrap();
        journal.sync().unwrap();
        assert!(journal.free_space().unwrap() > 0);
    }
    let found = open(take(dir.path()));
    assert_eq!(found.frames, written);
    assert_eq!(found.recovery.cut, None);
}

#[test]
fn a_directory_with_other_things_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("thesis.tex"), "x").unwrap();
    let error = try_open(take(dir.path())).err().unwrap();
    assert!(matches!(&error, OpenError::NotOurs { name, .. } if name == "thesis.tex"), "{error}");
    let names = take(dir.path()).list().unwrap();
    assert!(!names.iter().any(|name| name == "store"), "{names:?}");
}

#[test]
fn the_root_of_a_volume_is_an_empty_directory() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("lost+found")).unwrap();
    assert!(open(take(dir.path())).recovery.fresh);
    assert!(!open(take(dir.path())).recovery.fresh);
}

/// A store with a few records, with `change` done to the text of its file `store`.
fn with_store_file(change: impl FnOnce(String) -> Option<String>) -> OpenError {
    let dir = tempfile::tempdir().expect("a directory that may be used");
    let mut journal = open(take(dir.path())).journal;
    journal.append(&records(1, 1..=3)).expect("a directory that may be used");
    journal.sync().expect("a directory that may be used");
    drop(journal);
    let path = dir.path().join("store");
    match change(std::fs::read_to_string(&path).expect("a directory that may be used")) {
        Some(text) => std::fs::write(&path, text).expect("a directory that may be used"),
        None => std::fs::remove_file(&path).expect("a directory that may be used"),
    }
    let error = try_open(take(dir.path())).err().expect("a directory that may be used");
    assert_eq!(segments(&take(dir.path())).len(), 1, "nothing was touched");
    error
}

#[test]
fn a_lost_damaged_or_newer_store_file_is_told_apart() {
    let lost = with_store_file(|_| None);
    assert!(matches!(lost, OpenError::StoreMissing { .. }), "{lost}");
    let damaged = with_store_file(|text| Some(text.replace("epoch 1", "epoch 0")));
    assert!(matches!(damaged, OpenError::MetaDamaged { .. }), "{damaged}");
    let newer = with_store_file(|text| {
        let lines = text.replace("format 1", "format 2");
        let lines = &lines[..lines.find("checksum").unwrap()];
        Some(format!("{lines}checksum {:08x}\n", crc32c::crc32c(lines.as_bytes())))
    });
    assert!(matches!(newer, OpenError::Newer { found: 2, known: 1, .. }), "{newer}");
}

/// A directory whose log holds three records, after `change`; why it cannot be opened.
fn refused(change: impl FnOnce(&mut Journal)) -> OpenError {
    let dir = tempfile::tempdir().expect("a directory that may be used");
    let mut journal = open(take(dir.path())).journal;
    journal.append(&records(1, 1..=3)).expect("a directory that may be used");
    change(&mut journal);
    journal.sync().expect("a directory that may be used");
    drop(journal);
    let contents = || {
        let storage = take(dir.path());
        let mut names = storage.list().expect("a directory that may be used");
        names.sort();
        names
            .into_iter()
            .map(|name| std::fs::read(dir.path().join(name)).expect("a directory that may be used"))
            .collect::<Vec<_>>()
    };
    let before = contents();
    let error = try_open(take(dir.path())).err().expect("a directory that may be used");
    assert_eq!(contents(), before, "nothing was touched");
    error
}

#[test]
fn a_store_remembers_the_version_of_the_cluster() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = open(take(dir.path())).journal;
    assert_eq!(journal.cluster_version(), ClusterVersion::FIRST);
    journal.persist_version(ClusterVersion::NEWEST).unwrap();
    journal.persist_version(ClusterVersion::FIRST).unwrap();
    drop(journal);
    assert_eq!(open(take(dir.path())).journal.cluster_version(), ClusterVersion::NEWEST, "and never lowers it");
}

#[test]
fn a_store_of_a_version_that_this_build_does_not_know_is_left_to_a_newer_one() {
    let next = ClusterVersion(ClusterVersion::NEWEST.0 + 1);
    let error = refused(|journal| journal.persist_version(next).unwrap());
    assert!(matches!(&error, OpenError::Version { why, .. } if why.cluster == next), "{error}");
    assert!(error.needs_upgrade());
}

/// At the log's end it would pass for a torn tail, but for its checksum.
#[test]
fn a_record_of_an_unknown_kind_is_no_damage_and_is_not_cut() {
    for at_the_end in [true, false] {
        let error = refused(|journal| {
            journal.append(&[of_unknown_kind(records(1, 4..=4).remove(0))]).unwrap();
            if !at_the_end {
                journal.append(&records(1, 5..=6)).unwrap();
            }
        });
        assert!(matches!(error, OpenError::UnknownKind { .. }), "{error}");
        assert!(error.needs_upgrade());
    }
}

/// The same frame with another tag, and the checksum that goes with it.
fn of_unknown_kind(frame: Frame) -> Frame {
    let mut bytes = frame.pieces().fold(Vec::new(), |all, piece| [&all[..], piece].concat());
    bytes[FRAME_HEADER_BYTES] = 254;
    let checksum = crc32c::crc32c(&bytes[4..]);
    bytes[..4].copy_from_slice(&checksum.to_le_bytes());
    let mut rope = Rope::default();
    rope.push(bytes.into());
    Frame::take(&mut rope).expect("a frame with its checksum").expect("a whole frame")
}

#[test]
fn a_path_that_is_no_directory_is_told() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let error = DirStorage::open(file.path()).unwrap_err().to_string();
    assert!(error.contains(file.path().to_str().unwrap()), "{error}");
}

#[test]
fn a_segment_of_another_store_is_told() {
    let (mine, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    drop(open(take(mine.path())));
    let storage = std::sync::Arc::new(take(other.path()));
    let fresh = understudy_record::StoreId(99);
    understudy_journal::Journal::open(storage, SMALL, fresh, &mut |_| Ok(())).unwrap();
    let name = "log-00000000-00000000.seg";
    std::fs::copy(other.path().join(name), mine.path().join(name)).unwrap();
    let error = try_open(take(mine.path())).err().unwrap().to_string();
    assert!(error.contains("belongs to store 00000000000000000000000000000063"), "{error}");
}
