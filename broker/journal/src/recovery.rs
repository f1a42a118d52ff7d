//! Opening a directory: whose it is, which segments count, whether every byte is right, and what to do about a tail that
//! is not. It cuts what was never durable, and refuses what is damaged.

use std::error::Error;
use std::io::{self, IoSlice};
use std::sync::Arc;

use understudy_record::{Epoch, Frame, Index, Position, StoreId};

use crate::dir::LOCK_NAME;
use crate::error::{Failure, OpenError};
use crate::reader::Segment;
use crate::segment::{
    Cursor, FORMAT, HeaderError, Item, SEGMENT_HEADER_BYTES, ScanError, SegmentHeader, SegmentId, encode_mark, vouched,
};
use crate::state::{Base, LogState};
use crate::storage::read_full;
use crate::store::{STORE_DRAFT_NAME, STORE_NAME, StoreMeta};
use crate::{Storage, StorageFile};

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

/// An opened log, on its way to a [`Journal`](crate::Journal).
pub(crate) struct Opened {
    pub(crate) meta: StoreMeta,
    pub(crate) fresh: bool,
    pub(crate) state: LogState,
    pub(crate) segments: Vec<Segment>,
    pub(crate) tail: Arc<dyn StorageFile>,
    pub(crate) cut: Option<TornTail>,
}

pub(crate) fn open(storage: &dyn Storage, fresh: StoreId, visit: Visit<'_>) -> Result<Opened, OpenError> {
    let names = storage.list().map_err(Failure::of(storage, "list", "the files"))?;
    let is_fresh = !names.iter().any(|name| name == STORE_NAME);
    let meta = if is_fresh {
        refuse_foreign(storage, &names)?;
        StoreMeta { id: fresh, epoch: Epoch(0), generation: 0 }
    } else {
        StoreMeta::read(storage)?
    };
    let (mut ours, mut stale) = (Vec::new(), Vec::new());
    for id in names.iter().filter_map(|name| SegmentId::from_name(name)) {
        let kept = !is_fresh && id.generation == meta.generation;
        if kept { &mut ours } else { &mut stale }.push(id);
    }
    ours.sort_unstable();
    if let Some(gap) = (0..).zip(&ours).find_map(|(at, id)| (at != id.sequence).then_some(at)) {
        return Err(missing(storage, meta, gap, "a later one is there"));
    }
    if ours.is_empty() && !is_fresh {
        return Err(missing(storage, meta, 0, "a store always has one"));
    }
    let stale = stale.into_iter().map(SegmentId::name);
    let drafts = names.iter().filter(|name| *name == STORE_DRAFT_NAME).cloned();
    let leftovers: Vec<String> = stale.chain(drafts).collect();
    if is_fresh {
        remove_all(storage, &leftovers)?;
        let id = SegmentId { generation: 0, sequence: 0 };
        let tail = create_segment(storage, meta.id, id, Position::default())?;
        tail.sync_data().map_err(Failure::of(storage, "sync", &id.name()))?;
        storage.sync_dir().map_err(Failure::of(storage, "sync", "the directory"))?;
        meta.write(storage)?;
        let segments = vec![Segment::new(id, Index(1))];
        return Ok(Opened { meta, fresh: true, state: LogState::default(), segments, tail, cut: None });
    }
    // Nothing is changed before all of the log is known to be right.
    let opened = Scan::new(storage, meta).run(&ours, visit)?;
    remove_all(storage, &leftovers)?;
    Ok(opened)
}

fn remove_all(storage: &dyn Storage, names: &[String]) -> Result<(), Failure> {
    for name in names {
        storage.remove(name).map_err(Failure::of(storage, "remove", name))?;
    }
    match names {
        [] => Ok(()),
        _ => storage.sync_dir().map_err(Failure::of(storage, "sync", "the directory")),
    }
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

/// A directory without a `store` file is taken only if nothing in it can matter to anybody.
fn refuse_foreign(storage: &dyn Storage, names: &[String]) -> Result<(), OpenError> {
    for name in names {
        if SegmentId::from_name(name).is_some() {
            // A first start that was interrupted leaves a segment without a record.
            let file = storage.open(name).map_err(Failure::of(storage, "open", name))?;
            let len = file.len().map_err(Failure::of(storage, "measure", name))?;
            if len > SEGMENT_HEADER_BYTES {
                return Err(OpenError::StoreMissing { place: storage.place() });
            }
        } else if !matches!(name.as_str(), LOCK_NAME | STORE_DRAFT_NAME | "lost+found") {
            return Err(OpenError::NotOurs { place: storage.place(), name: name.clone() });
        }
    }
    Ok(())
}

fn missing(storage: &dyn Storage, meta: StoreMeta, sequence: u32, why: &str) -> OpenError {
    let id = SegmentId { generation: meta.generation, sequence };
    let reason = format!("this segment is missing, but {why}");
    OpenError::Damaged { place: storage.place(), segment: id.name(), offset: 0, reason }
}

/// One pass over all segments.
struct Scan<'a> {
    storage: &'a dyn Storage,
    meta: StoreMeta,
    state: LogState,
    segments: Vec<Segment>,
    cut: Option<TornTail>,
}

/// How a segment's readable part ended.
enum End {
    Whole,
    Bad { offset: u64, reason: String },
}

impl<'a> Scan<'a> {
    fn new(storage: &'a dyn Storage, meta: StoreMeta) -> Self {
        let state = if meta.generation == 0 { LogState::default() } else { LogState::awaiting_base() };
        Self { storage, meta, state, segments: Vec::new(), cut: None }
    }

    fn run(mut self, ids: &[SegmentId], visit: Visit<'_>) -> Result<Opened, OpenError> {
        let mut tail = None;
        for &id in ids {
            let file = self.storage.open(&id.name()).map_err(Failure::of(self.storage, "open", &id.name()))?;
            let len = file.len().map_err(Failure::of(self.storage, "measure", &id.name()))?;
            self.segments.push(Segment::new(id, self.state.head.last.index.next()));
            if let End::Bad { offset, reason } = self.segment(id, &file, len, visit)? {
                let last = ids.last() == Some(&id);
                let durable_once = !last
                    || vouched(&*file, self.meta.id, id, offset, len).map_err(Failure::of(
                        self.storage,
                        "read",
                        &id.name(),
                    ))?;
                if durable_once {
                    return Err(self.damaged(id, offset, reason));
                }
                self.cut = Some(TornTail { segment: id.name(), offset, bytes: len - offset, reason });
            }
            tail = Some((id, file));
        }
        let (id, tail) = tail.ok_or_else(|| missing(self.storage, self.meta, 0, "a store always has one"))?;
        if !matches!(self.state.head.base, Base::None | Base::Whole { .. }) {
            let offset = self.segments.last().map_or(0, |segment| segment.len);
            return Err(self.damaged(id, offset, "the sync point's state ends here and is not whole".to_owned()));
        }
        if self.state.head.last.index < self.state.floor() {
            let offset = self.segments.last().map_or(0, |segment| segment.len);
            let reason = format!("the log ends at {}, but must reach {}", self.state.head.last, self.state.floor());
            return Err(self.damaged(id, offset, reason));
        }
        self.settle(id, &*tail)?;
        Ok(Opened { meta: self.meta, fresh: false, state: self.state, segments: self.segments, tail, cut: self.cut })
    }

    /// Reads one segment as far as it is right.
    fn segment(
        &mut self,
        id: SegmentId,
        file: &Arc<dyn StorageFile>,
        len: u64,
        visit: Visit<'_>,
    ) -> Result<End, OpenError> {
        let name = id.name();
        let failed = |error| OpenError::Failed(Failure::of(self.storage, "read", &name)(error));
        let mut bytes = [0; SEGMENT_HEADER_BYTES as usize];
        if (read_full(&**file, &mut bytes, 0).map_err(failed)? as u64) < SEGMENT_HEADER_BYTES {
            return Ok(End::Bad { offset: 0, reason: "its header is not whole".to_owned() });
        }
        let expected = SegmentHeader { store: self.meta.id, id, before: self.state.head.last };
        match SegmentHeader::decode(&bytes) {
            Ok(found) if found == expected => {}
            Ok(found) if found.store != expected.store => {
                let reason = format!("it belongs to store {}, this directory to {}", found.store, expected.store);
                return Err(self.damaged(id, 0, reason));
            }
            Ok(found) if found.id != id => {
                return Err(self.damaged(id, 0, format!("it is {} under another name", found.id.name())));
            }
            Ok(found) => {
                let reason = format!("it follows {}, but the one before it ends at {}", found.before, expected.before);
                return Err(self.damaged(id, 0, reason));
            }
            Err(HeaderError::Newer { found }) => {
                return Err(OpenError::Newer { place: self.storage.place(), name, found, known: FORMAT });
            }
            Err(HeaderError::Bad(reason)) => return Ok(End::Bad { offset: 0, reason: reason.to_owned() }),
        }
        let mut cursor = Cursor::new(file.clone(), self.meta.id, id, SEGMENT_HEADER_BYTES, len);
        loop {
            let offset = cursor.offset();
            match cursor.next() {
                Ok(None) => return Ok(End::Whole),
                Ok(Some(Item::Mark)) => {}
                Ok(Some(Item::Frame(frame))) => {
                    let next = self.state.head.last.index.next();
                    match self.state.admit(std::slice::from_ref(&frame)) {
                        Ok(advance) => self.state.apply(advance),
                        Err(error) => return Ok(End::Bad { offset, reason: error.to_string() }),
                    }
                    if let Some(segment) = self.segments.last_mut() {
                        segment.note(next, offset);
                    }
                    visit(frame).map_err(|source| OpenError::Refused {
                        place: self.storage.place(),
                        segment: id.name(),
                        offset,
                        source,
                    })?;
                }
                Err(ScanError::Bad { offset, reason }) => return Ok(End::Bad { offset, reason }),
                Err(ScanError::Io(error)) => {
                    return Err(Failure::of(self.storage, "read", &id.name())(error).into());
                }
            }
            if let Some(segment) = self.segments.last_mut() {
                segment.len = cursor.offset();
            }
        }
    }

    /// Cuts what has to go and makes durable what stays: the process that wrote it may have died before its fsync.
    fn settle(&mut self, id: SegmentId, tail: &dyn StorageFile) -> Result<(), OpenError> {
        let name = id.name();
        let segment = self.segments.last_mut().expect("the tail is one of the segments");
        if let Some(cut) = &self.cut {
            tail.truncate(cut.offset).map_err(Failure::of(self.storage, "cut the torn tail of", &name))?;
            if cut.offset == 0 {
                let header = SegmentHeader { store: self.meta.id, id, before: self.state.head.last }.encode();
                tail.append(&mut [IoSlice::new(&header)]).map_err(Failure::of(self.storage, "write", &name))?;
                segment.len = SEGMENT_HEADER_BYTES;
            }
        }
        tail.sync_data().map_err(Failure::of(self.storage, "sync", &name))?;
        self.storage.sync_dir().map_err(Failure::of(self.storage, "sync", "the directory"))?;
        let mark = encode_mark(self.meta.id, id, segment.len);
        match tail.append(&mut [IoSlice::new(&mark)]) {
            Ok(()) => segment.len += mark.len() as u64,
            // A full disk must not keep a broker from serving what it has; the next sync marks its place.
            Err(error) if error.kind() == io::ErrorKind::StorageFull => {
                tail.truncate(segment.len).map_err(Failure::of(self.storage, "cut", &name))?;
            }
            Err(error) => return Err(Failure::of(self.storage, "write", &name)(error).into()),
        }
        Ok(())
    }

    fn damaged(&self, id: SegmentId, offset: u64, reason: String) -> OpenError {
        OpenError::Damaged { place: self.storage.place(), segment: id.name(), offset, reason }
    }
}
