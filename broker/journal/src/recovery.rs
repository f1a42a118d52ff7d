//! Opening a directory: whose it is, whether all of its log is right, and what to do about a tail that is not. It cuts what
//! was never durable, and refuses what is damaged. What counts in a directory is for `files` to say, the reading is `scan`'s.

use std::error::Error;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use understudy_record::version::{ClusterVersion, VersionRange};
use understudy_record::{Epoch, Frame, Index, Position, StoreId};

use crate::error::{Failure, OpenError};
use crate::files::{self, Checkpoint, FileName, Files, Lack};
use crate::reader::Segment;
use crate::scan::{self, Scanned};
use crate::segment::{SEGMENT_HEADER_BYTES, SegmentHeader, SegmentId, encode_mark};
use crate::state::LogState;
use crate::storage::read_full;
use crate::store::{STORE_NAME, StoreMeta};
use crate::store_map::StoreMap;
use crate::{Storage, StorageFile};

/// Written again at a time, in bytes.
const REWRITE_BYTES: usize = 1 << 20;

pub type VisitError = Box<dyn Error + Send + Sync>;

/// Is given every frame of the log as it stands there. A frame shares the memory of the 256 KiB it was read with: copy
/// what is to be kept for long.
pub type Visit<'a> = &'a mut dyn FnMut(Frame) -> Result<(), VisitError>;

/// What was found in the directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovery {
    pub store: StoreId,
    /// The directory was empty: this store has never held anything.
    pub fresh: bool,
    /// The highest epoch this store has heard of (rule 2).
    pub known_epoch: Epoch,
    /// The first record in the log; one more than the last if there is none.
    pub first: Index,
    pub last: Position,
    /// The highest `committed` stamp on a frame. It may exceed `last`.
    pub committed: Index,
    /// The log may not be cut below this.
    pub floor: Index,
    /// The first position of each epoch, oldest first.
    pub epochs: Vec<Position>,
    /// The sync point, if the log begins with a base.
    pub base: Option<Position>,
    /// What was cut off the end, which was never reported durable.
    pub cut: Option<TornTail>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TornTail {
    pub segment: String,
    pub offset: u64,
    pub bytes: u64,
    pub reason: String,
}

/// How far an opening is, for people who wait for it.
#[derive(Debug, Default)]
pub struct Progress {
    /// Segments to read.
    pub segments: AtomicU64,
    pub segments_done: AtomicU64,
    /// Records and pieces of a checkpoint that have been read.
    pub records_done: AtomicU64,
}

/// An opened log, on its way to a [`Journal`](crate::Journal).
pub(crate) struct Opened {
    pub(crate) meta: StoreMeta,
    pub(crate) fresh: bool,
    pub(crate) state: LogState,
    pub(crate) segments: Vec<Segment>,
    pub(crate) tail: Arc<dyn StorageFile>,
    pub(crate) cut: Option<TornTail>,
    pub(crate) older: StoreMap,
    /// The sync point of the checkpoint in force.
    pub(crate) checkpoint: Option<Position>,
    /// The number of the next kept segment.
    pub(crate) next_kept: u32,
}

pub(crate) fn open(
    storage: &dyn Storage,
    fresh: StoreId,
    progress: &Progress,
    visit: Visit<'_>,
) -> Result<Opened, OpenError> {
    let names = storage.list().map_err(Failure::of(storage, "list", "the files"))?;
    if !FileName::Store.is_in(&names) {
        return begin(storage, fresh, &names);
    }
    let meta = StoreMeta::read(storage)?;
    check_version(storage, meta)?;
    let checkpoint = Checkpoint::find(storage, meta, &names).map_err(|error| error.into_open_error(storage))?;
    let files = Files::sort(&names, meta, &checkpoint);
    check(storage, &files)?;
    // Nothing is changed before all of the log is known to be right.
    let mut counted = |frame| {
        progress.records_done.fetch_add(1, Ordering::Relaxed);
        visit(frame)
    };
    let found = checkpoint.in_force();
    let mut scanned = scan::scan(storage, meta, &files, found, progress, &mut counted)?;
    settle(storage, meta, &mut scanned)?;
    let Scanned { order, segments, tail, cut, mut older, .. } = scanned;
    let checkpoint = order.sync_point();
    let mut state = order.state;
    state.first_record = found.map(|found| found.manifest.first_record);
    older.base();
    remove_all(storage, files.leftovers.iter().map(|leftover| &*leftover.name))?;
    let next_kept = files.next_kept;
    Ok(Opened { meta, fresh: false, state, segments, tail, cut, older, checkpoint, next_kept })
}

/// The present build must know everything that may stand in the log.
pub(crate) fn check_version(storage: &dyn Storage, meta: StoreMeta) -> Result<(), OpenError> {
    let unknown = |why| OpenError::Version { place: storage.place(), name: STORE_NAME.to_owned(), why };
    VersionRange::OWN.check(meta.version).map_err(unknown)
}

/// Begins a store in a directory that has none.
fn begin(storage: &dyn Storage, id: StoreId, names: &[String]) -> Result<Opened, OpenError> {
    remove_all(storage, left_by_first_start(storage, names)?.into_iter())?;
    let meta = StoreMeta { id, epoch: Epoch(0), generation: 0, flaw: None, version: ClusterVersion::FIRST };
    let id = SegmentId::log(0, 0);
    let tail = create_segment(storage, meta.id, id, Position::default())?;
    tail.sync_data().map_err(Failure::of(storage, "sync", &id.name()))?;
    storage.sync_dir().map_err(Failure::of(storage, "sync", "the directory"))?;
    meta.write(storage)?;
    let segments = vec![Segment::new(id, Index(1))];
    let (state, older) = (LogState::default(), StoreMap::default());
    Ok(Opened { meta, fresh: true, state, segments, tail, cut: None, older, checkpoint: None, next_kept: 0 })
}

/// A directory without a `store` file is taken only if nothing in it can matter to anybody: what a first start that was
/// interrupted has left, which is returned.
fn left_by_first_start<'a>(storage: &dyn Storage, names: &'a [String]) -> Result<Vec<&'a str>, OpenError> {
    let mut left = Vec::new();
    for name in names {
        match FileName::of(name) {
            FileName::Lock | FileName::LostAndFound => {}
            FileName::StoreDraft | FileName::CheckpointDraft => left.push(&**name),
            FileName::Segment(_) if files::has_frames(storage, name)? => {
                return Err(OpenError::StoreMissing { place: storage.place() });
            }
            FileName::Segment(_) => left.push(name),
            FileName::Store | FileName::Checkpoint | FileName::Foreign => {
                return Err(OpenError::NotOurs { place: storage.place(), name: name.clone() });
            }
        }
    }
    Ok(left)
}

/// Every segment that has to be there is, in its whole length.
fn check(storage: &dyn Storage, files: &Files) -> Result<(), OpenError> {
    let refused = |lack: Lack| Err(lack.into_open_error(storage));
    if let Some(lack) = files.lacks().next() {
        return refused(lack);
    }
    for entry in files.kept.iter().filter_map(|(_, entry)| entry.as_ref()) {
        match files::len_of(storage, &entry.id.name()) {
            Ok(len) => Lack::end_of(entry, len).map_or(Ok(()), refused)?,
            Err(failure) if failure.kind == io::ErrorKind::NotFound => return refused(Lack::named(entry.id)),
            Err(failure) => return Err(failure.into()),
        }
    }
    Ok(())
}

/// Cuts what has to go and makes durable what stays: the process that wrote it may have died before its fsync.
fn settle(storage: &dyn Storage, meta: StoreMeta, scanned: &mut Scanned) -> Result<(), OpenError> {
    let before = scanned.order.last();
    let Scanned { segments, tail, cut, vouched_to, .. } = scanned;
    let segment = segments.last_mut().expect("the tail is one of the segments");
    let (id, name) = (segment.id, segment.id.name());
    if let Some(cut) = cut {
        tail.truncate(cut.offset).map_err(Failure::of(storage, "cut the torn tail of", &name))?;
        if cut.offset == 0 {
            let header = SegmentHeader { store: meta.id, id, before }.encode();
            tail.append(&mut [IoSlice::new(&header)]).map_err(Failure::of(storage, "write", &name))?;
            segment.len = SEGMENT_HEADER_BYTES;
        }
    }
    rewrite(&**tail, *vouched_to, segment.len).map_err(Failure::of(storage, "write again", &name))?;
    tail.sync_data().map_err(Failure::of(storage, "sync", &name))?;
    storage.sync_dir().map_err(Failure::of(storage, "sync", "the directory"))?;
    let mark = encode_mark(meta.id, id, segment.len);
    match tail.append(&mut [IoSlice::new(&mark)]) {
        Ok(()) => segment.len += mark.len() as u64,
        // A full disk must not keep a broker from serving what it has; the next sync marks its place.
        Err(error) if error.kind() == io::ErrorKind::StorageFull => {
            tail.truncate(segment.len).map_err(Failure::of(storage, "cut", &name))?;
        }
        Err(error) => return Err(Failure::of(storage, "write", &name)(error).into()),
    }
    Ok(())
}

fn remove_all<'a>(storage: &dyn Storage, names: impl Iterator<Item = &'a str>) -> Result<(), Failure> {
    let mut removed = false;
    for name in names {
        storage.remove(name).map_err(Failure::of(storage, "remove", name))?;
        removed = true;
    }
    if removed { storage.sync_dir().map_err(Failure::of(storage, "sync", "the directory")) } else { Ok(()) }
}

/// A new segment with its header, neither durable yet.
pub(crate) fn create_segment(
    storage: &dyn Storage,
    store: StoreId,
    id: SegmentId,
    before: Position,
) -> Result<Arc<dyn StorageFile>, Failure> {
    let name = id.name();
    let file = storage.create(&name).map_err(Failure::of(storage, "create", &name))?;
    let header = SegmentHeader { store, id, before }.encode();
    file.append(&mut [IoSlice::new(&header)]).map_err(Failure::of(storage, "write", &name))?;
    Ok(file)
}

/// Writes `from..to` of a file once more. The process before may have ended because a sync had failed; the system then
/// counts as written what stands in its cache alone, and a sync that succeeds now would prove nothing.
fn rewrite(file: &dyn StorageFile, from: u64, to: u64) -> io::Result<()> {
    let mut buffer = vec![0; REWRITE_BYTES];
    let mut offset = from;
    while offset < to {
        let wanted = usize::try_from(to - offset).unwrap_or(usize::MAX).min(REWRITE_BYTES);
        let filled = read_full(file, &mut buffer[..wanted], offset)?;
        if filled == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        file.rewrite(&buffer[..filled], offset)?;
        offset += filled as u64;
    }
    Ok(())
}
