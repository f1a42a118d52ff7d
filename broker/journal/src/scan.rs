//! One pass over the checkpoint and the segments after it, as an opening needs them: every byte is checked, and what is new
//! is visited. It changes nothing on disk; what to do about a tail that is not right is for `recovery`.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use understudy_record::{Frame, FrameKind, RecordError};

use crate::checkpoint::{CHECKPOINT_NAME, Entry, Found};
use crate::error::{Failure, OpenError};
use crate::files::{Files, Lack};
use crate::order::{self, Order, Taken, Unread};
use crate::reader::Segment;
use crate::recovery::{Progress, TornTail, Visit};
use crate::segment::{
    Cursor, FORMAT, HeaderError, Item, SEGMENT_HEADER_BYTES, ScanError, SegmentHeader, SegmentId, vouched,
};
use crate::store::StoreMeta;
use crate::store_map::{KeptSegment, StoreMap};
use crate::{OrderError, Storage, StorageFile};

/// What all of the log is, which is right up to `cut`.
pub(crate) struct Scanned {
    pub(crate) order: Order,
    pub(crate) segments: Vec<Segment>,
    /// The last of them.
    pub(crate) tail: Arc<dyn StorageFile>,
    pub(crate) cut: Option<TornTail>,
    pub(crate) older: StoreMap,
    /// Everything in the tail before this place was synced without an error.
    pub(crate) vouched_to: u64,
}

/// How a segment's readable part ended.
enum End {
    Whole,
    Bad { offset: u64, reason: String },
}

struct Scan<'a> {
    storage: &'a dyn Storage,
    meta: StoreMeta,
    order: Order,
    segments: Vec<Segment>,
    older: StoreMap,
    /// Of the segment that is read.
    vouched_to: u64,
}

/// Reads all that counts; the checkpoint that is `found` is the one in force.
pub(crate) fn scan(
    storage: &dyn Storage,
    meta: StoreMeta,
    files: &Files,
    found: Option<&Found>,
    progress: &Progress,
    visit: Visit<'_>,
) -> Result<Scanned, OpenError> {
    let order = match found {
        Some(found) => read_checkpoint(storage, found, visit)?,
        None => Order::of_log(meta.generation),
    };
    let older = StoreMap::of_kept(files.kept.iter().filter_map(|(_, entry)| *entry).map(kept_segment).collect());
    let mut scan = Scan { storage, meta, order, segments: Vec::new(), older, vouched_to: 0 };
    let unread = scan.pass_over(&files.log)?;
    let ids = files.log.get(unread..).unwrap_or_default();
    progress.segments.store(ids.len() as u64, Ordering::Relaxed);
    let (mut cut, mut tail) = (None, None);
    for &id in ids {
        let file = storage.open(&id.name()).map_err(Failure::of(storage, "open", &id.name()))?;
        let len = file.len().map_err(Failure::of(storage, "measure", &id.name()))?;
        scan.segments.push(Segment::new(id, scan.order.last().index.next()));
        if let End::Bad { offset, reason } = scan.segment(id, &file, len, visit)? {
            let is_last = ids.last() == Some(&id);
            let is_vouched = || vouched(&*file, meta.id, id, offset, len);
            if !is_last || is_vouched().map_err(Failure::of(storage, "read", &id.name()))? {
                return Err(scan.damaged(id, offset, reason));
            }
            cut = Some(TornTail { segment: id.name(), offset, bytes: len - offset, reason });
        }
        progress.segments_done.fetch_add(1, Ordering::Relaxed);
        tail = Some((id, file));
    }
    let (id, tail) = tail.ok_or_else(|| Lack::tail(SegmentId::log(meta.generation, 0)).into_open_error(storage))?;
    if let Some(reason) = scan.order.lack() {
        let end = scan.segments.last().map_or(0, |segment| segment.len);
        return Err(scan.damaged(id, end, reason));
    }
    let Scan { order, segments, older, vouched_to, .. } = scan;
    Ok(Scanned { order, segments, tail, cut, older, vouched_to })
}

/// The checkpoint's pieces are the log's beginning.
fn read_checkpoint(storage: &dyn Storage, found: &Found, visit: Visit<'_>) -> Result<Order, OpenError> {
    let (place, segment) = (|| storage.place(), || CHECKPOINT_NAME.to_owned());
    let damaged = |offset, reason| OpenError::Damaged { place: place(), segment: segment(), offset, reason };
    let mut each = |offset, frame| {
        visit(frame).map_err(|source| OpenError::Refused { place: place(), segment: segment(), offset, source })
    };
    Order::of_checkpoint(found, &mut each).map_err(|unread| match unread {
        Unread::Scan { error: ScanError::Io(error), .. } => Failure::of(storage, "read", CHECKPOINT_NAME)(error).into(),
        Unread::Scan { error: ScanError::Bad { offset, reason }, .. } => damaged(offset, reason),
        Unread::Order { offset, error: OrderError::BasePiece(RecordError::UnknownTag { .. }) } => {
            OpenError::UnknownKind { place: place(), segment: segment(), offset }
        }
        Unread::Order { offset, error } => damaged(offset, error.to_string()),
        Unread::NotWhole { offset, reason } => damaged(offset, reason.to_owned()),
        Unread::Refused(error) => error,
    })
}

fn kept_segment(entry: Entry) -> KeptSegment {
    let Entry { id, first, last, len } = entry;
    KeptSegment { id, first, last, len, weight: len, signposts: None }
}

impl Scan<'_> {
    /// Segments that end before the sync point are not read, but for their headers; returns how many.
    fn pass_over(&mut self, ids: &[SegmentId]) -> Result<usize, OpenError> {
        let Some(sync_point) = self.order.sync_point() else { return Ok(0) };
        let mut headers = Vec::new();
        for &id in ids {
            let name = id.name();
            let failed = |error| OpenError::Failed(Failure::of(self.storage, "read", &name)(error));
            let file = self.storage.open(&name).map_err(failed)?;
            let len = file.len().map_err(failed)?;
            match SegmentHeader::read(&*file, self.meta.id, id).map_err(failed)? {
                Ok(header) => headers.push((header.before, len)),
                // It is read in full, which says what is wrong with it.
                Err(_) => break,
            }
        }
        let unread = order::passed_over(headers.iter().map(|(before, _)| before.index), sync_point.index);
        for ((before, len), id) in headers.iter().zip(ids).take(unread) {
            self.segments.push(Segment::unread(*id, before.index.next(), *len));
        }
        if let Some((before, _)) = headers.get(unread) {
            // If the checkpoint does not cover it, that segment is found not to follow.
            _ = self.order.jump(*before);
        }
        Ok(unread)
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
        match SegmentHeader::read(&**file, self.meta.id, id).map_err(failed)? {
            Ok(header) => {
                self.order.check_segment(header.before).map_err(|reason| self.damaged(id, 0, reason))?;
            }
            Err(HeaderError::Another(reason)) => return Err(self.damaged(id, 0, reason)),
            Err(HeaderError::Newer { found }) => {
                return Err(OpenError::Newer { place: self.storage.place(), name, found, known: FORMAT });
            }
            Err(HeaderError::Bad(reason)) => return Ok(End::Bad { offset: 0, reason: reason.to_owned() }),
        }
        let mut cursor = Cursor::new(file.clone(), self.meta.id, id, SEGMENT_HEADER_BYTES, len);
        self.vouched_to = 0;
        loop {
            let offset = cursor.offset();
            match cursor.next() {
                Ok(None) => return Ok(End::Whole),
                Ok(Some(Item::Mark)) => self.vouched_to = offset,
                // Its checksum is right, so nothing is torn or damaged.
                Ok(Some(Item::Frame(frame))) if frame.since().is_none() => {
                    return Err(OpenError::UnknownKind { place: self.storage.place(), segment: name, offset });
                }
                Ok(Some(Item::Frame(frame))) => {
                    let next = self.order.last().index.next();
                    let taken = match self.order.take(&frame) {
                        Ok(taken) => taken,
                        Err(reason) => return Ok(End::Bad { offset, reason }),
                    };
                    if let Some(segment) = self.segments.last_mut() {
                        segment.note(next, offset);
                    }
                    if taken == Taken::New {
                        self.visit(id, offset, frame, visit)?;
                    }
                }
                Err(ScanError::Bad { offset, reason }) => return Ok(End::Bad { offset, reason }),
                Err(ScanError::Io(error)) => return Err(failed(error)),
            }
            if let Some(segment) = self.segments.last_mut() {
                segment.len = cursor.offset();
            }
        }
    }

    fn visit(&mut self, id: SegmentId, offset: u64, frame: Frame, visit: Visit<'_>) -> Result<(), OpenError> {
        if let (FrameKind::Base, Some(index)) = (frame.kind, frame.message_index()) {
            self.older.note_base_message(index, id, offset);
        }
        let place = || self.storage.place();
        visit(frame).map_err(|source| OpenError::Refused { place: place(), segment: id.name(), offset, source })
    }

    fn damaged(&self, id: SegmentId, offset: u64, reason: String) -> OpenError {
        OpenError::Damaged { place: self.storage.place(), segment: id.name(), offset, reason }
    }
}
