//! Going through the frames of segments: checksums, order, and which live messages are there. After a damaged frame it goes
//! on with the next one where the frame's length can be believed, without minding the order any more.

use std::sync::Arc;

use understudy_record::{FRAME_HEADER_BYTES, Frame, FrameKind, Index, Position, StoreId, peek_header};

use super::directory::{HeaderFault, Segment};
use super::live::Census;
use super::{Counts, Damage, Depth, Inspection, Live, MAX_PLACES_PER_FILE, SegmentRole, Stopped};
use crate::error::Failure;
use crate::order::{self, Order, check_record};
use crate::recovery::TornTail;
use crate::segment::{Cursor, HeaderError, Item, SEGMENT_HEADER_BYTES, ScanError, SegmentId, SegmentKind, vouched};
use crate::storage::read_full;
use crate::store::StoreMeta;
use crate::{Storage, StorageFile};

/// What stands next in a segment.
enum Seen<'a> {
    Frame(&'a Frame),
    Mark,
    /// Something that is damaged.
    Hole,
}

/// What reading one segment gave.
#[derive(Default)]
struct Reading {
    counts: Counts,
    /// Messages found that the checkpoint names, and their frames' bytes.
    live: Live,
    /// The first and last record.
    records: Option<(Index, Index)>,
    committed: Index,
    /// Where reading stopped.
    end: u64,
    /// The file was removed before it was its turn.
    gone: bool,
    cut: Option<TornTail>,
    damage: Vec<Damage>,
}

/// Reads what `found.depth` asks for; `order` is `None` if it is not known where the log begins.
pub(super) fn all(
    storage: &dyn Storage,
    meta: StoreMeta,
    segments: &[Segment],
    order: Option<Order>,
    census: Option<&Census>,
    found: &mut Inspection,
) -> Result<(), Stopped> {
    let are_headers_right = found.damage.is_empty();
    let log = segments.iter().position(|segment| segment.role == SegmentRole::Log).unwrap_or(segments.len());
    let mut readings: Vec<Option<Reading>> = Vec::with_capacity(segments.len());
    let reader = Reader { storage, store: meta.id, census, depth: found.depth };
    for segment in &segments[..log] {
        let reading = match found.depth {
            Depth::Opening => None,
            Depth::Everything => Some(reader.kept(segment)?),
        };
        readings.push(reading);
    }
    let sync_point = found.checkpoint.map(|checkpoint| checkpoint.sync_point);
    let unread = match (found.depth, sync_point) {
        (Depth::Everything, _) => 0,
        (Depth::Opening, Some(sync_point)) => {
            let befores = segments[log..].iter().map_while(Segment::before);
            order::passed_over(befores.map(|before| before.index), sync_point.index)
        }
        (Depth::Opening, None) if order.is_some() => 0,
        // An opening would not get beyond the checkpoint.
        (Depth::Opening, None) => (segments.len() - log).saturating_sub(1),
    };
    readings.resize_with(log + unread, || None);
    let from = (log + unread).min(segments.len());
    let jump = order.as_ref().and_then(Order::sync_point).map(|_| Jump::ToTheStart);
    let mut walk = LogWalk { reader: &reader, order, jump };
    for (at, segment) in segments.iter().enumerate().skip(from) {
        readings.push(Some(walk.segment(segment, at + 1 == segments.len())?));
    }
    // Where the log ends is not known if the broker has removed the end that was listed.
    let order = walk.order.filter(|_| walk.jump != Some(Jump::OverRemoved));
    if let Some(order) = &order {
        found.last = Some(order.last());
        found.committed = order.state.committed;
        if let (Some(reason), Some(tail), Some(Some(reading))) = (order.lack(), segments.last(), readings.last()) {
            found.damage.push(Damage::missing(tail.id.name(), reading.end, reason));
        }
    }
    for (at, reading) in readings.into_iter().enumerate() {
        let seen = &mut found.segments[at];
        if segments[at].role == SegmentRole::Log {
            seen.range = log_range(segments, at);
            // Beyond the sync point the checkpoint tells nothing.
            let is_told =
                |sync_point: Position| segments[at].before().is_some_and(|before| before.index < sync_point.index);
            seen.live = census.filter(|_| sync_point.is_some_and(is_told)).map(|census| census.of_segment(at));
        } else {
            seen.live = census.map(|census| census.of_segment(at));
        }
        let Some(mut reading) = reading else { continue };
        found.bytes_read += reading.end;
        found.committed = found.committed.max(reading.committed);
        seen.gone = reading.gone;
        if seen.gone {
            continue;
        }
        if seen.role == SegmentRole::Log {
            seen.range = reading.records;
        }
        seen.counts = Some(reading.counts);
        if let Some(live) = &mut seen.live {
            live.bytes = reading.live.bytes;
        }
        if let Some(live) = seen.live.filter(|_| are_headers_right) {
            seen.lost = live.messages.saturating_sub(reading.live.messages);
            if seen.lost > 0 && reading.damage.is_empty() {
                let reason = format!("{} messages that the checkpoint names are not in it", seen.lost);
                reading.damage.push(Damage::missing(&seen.name, SEGMENT_HEADER_BYTES, reason));
            }
        }
        found.cut = found.cut.take().or(reading.cut);
        found.damage.append(&mut reading.damage);
    }
    Ok(())
}

/// By headers alone: up to where the next one begins.
fn log_range(segments: &[Segment], at: usize) -> Option<(Index, Index)> {
    let first = segments[at].before()?.index.next();
    let last = segments.get(at + 1)?.before()?.index;
    (first <= last).then_some((first, last))
}

struct Reader<'a> {
    storage: &'a dyn Storage,
    store: StoreId,
    census: Option<&'a Census>,
    depth: Depth,
}

impl Reader<'_> {
    /// A segment that is there for its messages.
    fn kept(&self, segment: &Segment) -> Result<Reading, Stopped> {
        let range = segment.entry.map(|entry| (entry.first, entry.last));
        let end = segment.entry.map_or(segment.len, |entry| entry.len.min(segment.len));
        let mut passed = segment.before();
        let mut last = None;
        let is_log = segment.role == SegmentRole::KeptLog;
        self.frames(segment.id, end, false, &mut |seen| match seen {
            Seen::Hole => {
                passed = None;
                Ok(())
            }
            Seen::Mark if is_log => Ok(()),
            Seen::Mark => Err("a mark where only messages stand".to_owned()),
            Seen::Frame(frame) if is_log => loosely(&mut passed, frame),
            Seen::Frame(frame) => {
                let index = frame.message_index().ok_or("a frame without a message")?;
                if range.is_some_and(|(first, last)| !(first..=last).contains(&index)) {
                    return Err(format!("message {index}, for which it does not answer"));
                }
                match last.replace(index).filter(|last| *last >= index) {
                    Some(last) => Err(format!("message {index} after message {last}")),
                    None => Ok(()),
                }
            }
        })
    }

    /// Reads frame after frame to `end`; `check` says what is wrong with one whose checksum is right, and is told of holes.
    /// Of a `tail` it is asked whether what is wrong was ever durable.
    fn frames(
        &self,
        id: SegmentId,
        end: u64,
        tail: bool,
        check: &mut dyn FnMut(Seen<'_>) -> Result<(), String>,
    ) -> Result<Reading, Stopped> {
        let name = id.name();
        let mut reading = Reading { end: SEGMENT_HEADER_BYTES.min(end), ..Reading::default() };
        let Some(file) = self.open(&name)? else { return Ok(Reading { gone: true, ..Reading::default() }) };
        let mut cursor = Cursor::new(file.clone(), self.store, id, SEGMENT_HEADER_BYTES.min(end), end);
        while reading.damage.len() < MAX_PLACES_PER_FILE {
            let offset = cursor.offset();
            let mut is_read = true;
            let wrong = match cursor.next() {
                Ok(None) => break,
                Ok(Some(Item::Mark)) => {
                    reading.counts.marks += 1;
                    check(Seen::Mark).err()
                }
                Ok(Some(Item::Frame(frame))) => {
                    let wrong = check(Seen::Frame(&frame)).err();
                    if wrong.is_none() {
                        reading.damage.extend(undecodable(&name, offset, &frame));
                    }
                    if wrong.is_none() || !tail {
                        reading.note(&frame, id.kind, self.census);
                    }
                    wrong
                }
                Err(ScanError::Bad { reason, .. }) => {
                    is_read = false;
                    Some(reason)
                }
                Err(error) => {
                    reading.damage.push(Damage::of_scan(&name, offset, error)?);
                    return Ok(reading);
                }
            };
            if wrong.is_some() && tail && !self.is_vouched(&*file, id, offset, end)? {
                let torn = |reason| TornTail { segment: name, offset, bytes: end - offset, reason };
                return Ok(Reading { cut: wrong.map(torn), ..reading });
            }
            reading.end = cursor.offset();
            let Some(mut reason) = wrong else { continue };
            _ = check(Seen::Hole);
            let next = if is_read { Some(reading.end) } else { self.after_bad(&file, id, offset, end) };
            if next.is_none() {
                reason += &left_unread(end - offset);
            }
            reading.damage.push(Damage::bytes(&name, offset, reason));
            let Some(next) = next else { break };
            if !is_read {
                cursor = Cursor::new(file.clone(), self.store, id, next, end);
            }
        }
        Ok(reading)
    }

    /// `None`: a broker at work has removed it, which is no matter if everything is to be read: that takes a while.
    fn open(&self, name: &str) -> Result<Option<Arc<dyn StorageFile>>, Stopped> {
        match self.storage.open(name).map_err(Failure::of(self.storage, "open", name)).map_err(Stopped::from) {
            Ok(file) => Ok(Some(file)),
            Err(Stopped::Changed) if self.depth == Depth::Everything => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn is_vouched(&self, file: &dyn StorageFile, id: SegmentId, from: u64, end: u64) -> Result<bool, Stopped> {
        Ok(vouched(file, self.store, id, from, end).map_err(Failure::of(self.storage, "read", &id.name()))?)
    }

    /// Where reading may go on after what is bad at `offset`: after as many bytes as it says it has, if the segment ends
    /// there, or what stands there looks like a frame or is a mark.
    fn after_bad(&self, file: &Arc<dyn StorageFile>, id: SegmentId, offset: u64, end: u64) -> Option<u64> {
        // What is no frame's header may be that of a mark, which is as long.
        let next = offset + length_at(file, offset)?.unwrap_or(FRAME_HEADER_BYTES as u64);
        let looks_like_a_frame = || {
            length_at(file, next).flatten().is_some_and(|len| next.checked_add(len).is_some_and(|after| after <= end))
        };
        let is_right = || Cursor::new(file.clone(), self.store, id, next, end).next().is_ok();
        (next <= end && (looks_like_a_frame() || is_right())).then_some(next)
    }
}

/// How long the frame there is by its header, in bytes; `Some(None)` if that is no frame's header.
fn length_at(file: &Arc<dyn StorageFile>, offset: u64) -> Option<Option<u64>> {
    let mut fixed = [0; FRAME_HEADER_BYTES];
    let is_whole = read_full(&**file, &mut fixed, offset).ok()? == FRAME_HEADER_BYTES;
    is_whole.then(|| peek_header(&fixed).ok().map(|len| len as u64))
}

fn left_unread(bytes: u64) -> String {
    format!("; where the next frame begins is not known, so {bytes} bytes were not read")
}

fn undecodable(name: &str, offset: u64, frame: &Frame) -> Option<Damage> {
    let error = match frame.kind {
        FrameKind::Record => frame.decode_record().err(),
        FrameKind::Base => frame.decode_base().err(),
    };
    error.map(|error| Damage::undecodable(name, offset, &error))
}

/// A record follows the last one, if that is known; nothing is asked of pieces of a base.
fn loosely(passed: &mut Option<Position>, frame: &Frame) -> Result<(), String> {
    let Some(before) = passed else { return Ok(()) };
    match frame.kind {
        FrameKind::Base => *before = frame.position.max(*before),
        FrameKind::Record => {
            check_record(*before, frame.position)?;
            *before = frame.position;
        }
    }
    Ok(())
}

impl Reading {
    fn note(&mut self, frame: &Frame, segment: SegmentKind, census: Option<&Census>) {
        let index = frame.position.index;
        match frame.kind {
            FrameKind::Base => self.counts.pieces += 1,
            FrameKind::Record => {
                self.counts.records += 1;
                self.records = Some((self.records.map_or(index, |(first, _)| first), index));
            }
        }
        if let Some(message) = frame.message_index() {
            self.counts.messages += 1;
            // A base's pieces in the log do not count: a checkpoint has moved what lives of them.
            let counts = frame.kind == FrameKind::Record || segment == SegmentKind::Kept;
            if counts && census.is_some_and(|census| census.contains(message)) {
                self.live.messages += 1;
                self.live.bytes += frame.len() as u64;
            }
        }
        self.committed = self.committed.max(frame.committed);
    }
}

/// Why the segment to come need not follow the last record read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Jump {
    /// What comes before it is not in the log, or was passed over.
    ToTheStart,
    /// The one before it was removed while this went on.
    OverRemoved,
}

/// The log, segment by segment.
struct LogWalk<'a> {
    reader: &'a Reader<'a>,
    /// `None` once something was wrong. Then each segment is checked by itself.
    order: Option<Order>,
    jump: Option<Jump>,
}

impl LogWalk<'_> {
    fn segment(&mut self, segment: &Segment, last: bool) -> Result<Reading, Stopped> {
        let (id, name) = (segment.id, segment.id.name());
        let mut damage = Vec::new();
        match &segment.header {
            Ok(header) => damage.extend(self.check_place(&name, header.before)),
            Err(HeaderFault::Wrong(HeaderError::Bad(reason))) if last && !self.is_vouched(segment)? => {
                let cut = TornTail { segment: name, offset: 0, bytes: segment.len, reason: (*reason).to_owned() };
                return Ok(Reading { cut: Some(cut), ..Reading::default() });
            }
            Err(_) => {
                // Those of the others were told when headers were read.
                damage.extend(segment.header_damage().filter(|_| last));
                self.order = None;
            }
        }
        let order = &mut self.order;
        let mut passed = segment.before();
        let mut reading = self.reader.frames(id, segment.len, last, &mut |seen| {
            match seen {
                Seen::Mark => {}
                Seen::Hole => (*order, passed) = (None, None),
                Seen::Frame(frame) => match order {
                    Some(order) => _ = order.take(frame)?,
                    None => loosely(&mut passed, frame)?,
                },
            }
            Ok(())
        })?;
        if reading.gone {
            self.jump = Some(Jump::OverRemoved);
        }
        reading.damage.splice(..0, damage);
        Ok(reading)
    }

    /// Whether a segment that follows `before` comes next.
    fn check_place(&mut self, name: &str, before: Position) -> Option<Damage> {
        let order = self.order.as_mut()?;
        if let Some(jump) = self.jump.take()
            && !order.jump(before)
            && jump == Jump::OverRemoved
        {
            self.order = None;
            return None;
        }
        let reason = order.check_segment(before).err()?;
        self.order = None;
        Some(Damage::bytes(name, 0, reason))
    }

    fn is_vouched(&self, segment: &Segment) -> Result<bool, Stopped> {
        match self.reader.open(&segment.id.name())? {
            Some(file) => self.reader.is_vouched(&*file, segment.id, 0, segment.len),
            None => Ok(true),
        }
    }
}
