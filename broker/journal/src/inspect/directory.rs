//! One reading: the files of a directory, the headers of segments, the checkpoint; then `walk` goes through the frames.
//! Nothing is kept open between two files, so that a directory of many segments is no matter.

use std::io;

use understudy_record::{BasePiece, Index, Position};

use super::live::{Census, Range};
use super::walk;
use super::{
    CheckpointSeen, Damage, Depth, InspectError, Inspection, Leftover, SegmentRole, SegmentSeen, Stopped, StoreSeen,
};
use crate::Storage;
use crate::checkpoint::{CHECKPOINT_NAME, Entry, FindError, Found, Manifest};
use crate::error::Failure;
use crate::files::{Checkpoint, FileName, Files, Lack, has_frames, len_of};
use crate::order::Order;
use crate::recovery;
use crate::segment::{HeaderError, SegmentHeader, SegmentId, SegmentKind};
use crate::store::{STORE_NAME, StoreMeta};

/// A segment that counts, its header read.
pub(super) struct Segment {
    pub(super) id: SegmentId,
    pub(super) role: SegmentRole,
    /// As the checkpoint names it.
    pub(super) entry: Option<Entry>,
    /// The file's length.
    pub(super) len: u64,
    pub(super) header: Result<SegmentHeader, HeaderFault>,
}

pub(super) enum HeaderFault {
    Wrong(HeaderError),
    Unreadable(Damage),
}

pub(super) fn read(storage: &dyn Storage, depth: Depth) -> Result<Inspection, Stopped> {
    let mut names = list(storage)?;
    names.sort_unstable();
    let mut found = Inspection {
        place: storage.place(),
        depth,
        store: None,
        checkpoint: None,
        segments: Vec::new(),
        last: None,
        committed: Index(0),
        cut: None,
        leftovers: Vec::new(),
        damage: Vec::new(),
        bytes_read: 0,
    };
    if !FileName::Store.is_in(&names) {
        found.damage.push(store_missing(storage, &names)?);
        strangers(storage, &names, &mut found)?;
        return Ok(found);
    }
    let meta = match StoreMeta::read(storage) {
        Ok(meta) => meta,
        Err(error) => {
            found.damage.push(Damage::of_opening(STORE_NAME, error)?);
            strangers(storage, &names, &mut found)?;
            return Ok(found);
        }
    };
    let StoreMeta { id, epoch: known_epoch, generation, version, .. } = meta;
    found.store = Some(StoreSeen { id, known_epoch, generation, version });
    if let Err(error) = recovery::check_version(storage, meta) {
        found.damage.push(Damage::of_opening(STORE_NAME, error)?);
    }

    let checkpoint = find_checkpoint(storage, meta, &names, &mut found)?;
    let files = Files::sort(&names, meta, &checkpoint);
    let segments = open_segments(storage, meta, &files, &mut found)?;
    found.leftovers = leftovers(storage, files);
    let (order, census) = match &checkpoint {
        Checkpoint::InForce(checkpoint) => {
            let ranges = ranges(&segments, &checkpoint.manifest);
            match read_checkpoint(storage, checkpoint, Census::new(ranges, segments.len()), &mut found)? {
                Some((order, census)) => (Some(order), Some(census)),
                None => (None, None),
            }
        }
        Checkpoint::None => (Some(Order::of_log(meta.generation)), None),
        Checkpoint::Damaged => (None, None),
    };
    walk::all(storage, meta, &segments, order, census.as_ref(), &mut found)?;
    Ok(found)
}

fn list(storage: &dyn Storage) -> Result<Vec<String>, Stopped> {
    let not_a_store = |why| Stopped::Error(InspectError::NotAStore { place: storage.place(), why });
    storage.list().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => not_a_store("there is no such directory"),
        io::ErrorKind::NotADirectory => not_a_store("it is not a directory"),
        _ => Failure::of(storage, "list", "the files")(error).into(),
    })
}

/// A log without the file `store` is damaged; a directory without either is something else.
fn store_missing(storage: &dyn Storage, names: &[String]) -> Result<Damage, Stopped> {
    let is_segment = |name: &&String| matches!(FileName::of(name), FileName::Segment(_));
    let mut holds_log = FileName::Checkpoint.is_in(names);
    for name in names.iter().filter(is_segment) {
        holds_log |= has_frames(storage, name)?;
    }
    if holds_log {
        return Ok(Damage::missing(STORE_NAME, 0, "there is a log, and this file, which says whose it is, is missing"));
    }
    let why = match names {
        [] => "it is empty",
        names if names.iter().any(|name| is_segment(&name)) || FileName::Lock.is_in(names) => {
            "a broker began to use it, and has written nothing yet"
        }
        _ => "it holds no file `store` and no log",
    };
    Err(Stopped::Error(InspectError::NotAStore { place: storage.place(), why }))
}

/// Segments of which nobody knows whether they count.
fn strangers(storage: &dyn Storage, names: &[String], found: &mut Inspection) -> Result<(), Stopped> {
    for name in names {
        let FileName::Segment(id) = FileName::of(name) else { continue };
        let role = match id.kind {
            SegmentKind::Log => SegmentRole::Log,
            SegmentKind::Kept => SegmentRole::Kept,
        };
        found.segments.push(SegmentSeen::unread(name.clone(), role, len_of(storage, name)?));
    }
    Ok(())
}

fn find_checkpoint(
    storage: &dyn Storage,
    meta: StoreMeta,
    names: &[String],
    found: &mut Inspection,
) -> Result<Checkpoint, Stopped> {
    let damage = match Checkpoint::find(storage, meta, names) {
        Ok(checkpoint) => return Ok(checkpoint),
        Err(FindError::Io(error)) => Damage::unreadable(CHECKPOINT_NAME, 0, &error)?,
        Err(FindError::Newer { found }) => Damage::newer(CHECKPOINT_NAME, 0, found),
        Err(FindError::Bad { offset, reason }) => Damage::bytes(CHECKPOINT_NAME, offset, reason),
    };
    found.damage.push(damage);
    Ok(Checkpoint::Damaged)
}

/// In the order of their names.
fn leftovers(storage: &dyn Storage, files: Files) -> Vec<Leftover> {
    let ours = files.leftovers.into_iter().filter_map(|leftover| {
        // What is gone by now is no leftover.
        let bytes = len_of(storage, &leftover.name).ok()?;
        Some(Leftover { name: leftover.name, bytes, what: leftover.what, is_removed_at_opening: true })
    });
    // What is not a broker's may be anything, a directory for one.
    let foreign = files.foreign.into_iter();
    let foreign = foreign.map(|name| Leftover { name, bytes: 0, what: "not a broker's", is_removed_at_opening: false });
    let mut seen: Vec<_> = ours.chain(foreign).collect();
    seen.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    seen
}

/// Reads the headers of all segments that count; what is missing or wrong with them is damage.
fn open_segments(
    storage: &dyn Storage,
    meta: StoreMeta,
    files: &Files,
    found: &mut Inspection,
) -> Result<Vec<Segment>, Stopped> {
    let mut segments = Vec::new();
    for (id, entry) in &files.kept {
        let role = match id.kind {
            SegmentKind::Log => SegmentRole::KeptLog,
            SegmentKind::Kept => SegmentRole::Kept,
        };
        match open_segment(storage, meta, *id, role) {
            Ok(segment) => {
                let segment = Segment { entry: *entry, ..segment };
                found.damage.extend(entry.and_then(|entry| Lack::end_of(&entry, segment.len)).map(Damage::lack));
                segments.push(segment);
            }
            Err(Stopped::Changed) => found.damage.push(Damage::lack(Lack::named(*id))),
            Err(other) => return Err(other),
        }
    }
    found.damage.extend(files.lacks().map(Damage::lack));
    for id in &files.log {
        segments.push(open_segment(storage, meta, *id, SegmentRole::Log)?);
    }
    for (at, segment) in segments.iter().enumerate() {
        // What is wrong with the last one's may be a torn tail: that is seen when it is read.
        if at + 1 < segments.len() || segment.role != SegmentRole::Log {
            found.damage.extend(segment.header_damage());
        }
        let mut seen = SegmentSeen::unread(segment.id.name(), segment.role, segment.len);
        seen.range = segment.entry.map(|entry| (entry.first, entry.last));
        found.segments.push(seen);
    }
    Ok(segments)
}

fn open_segment(storage: &dyn Storage, meta: StoreMeta, id: SegmentId, role: SegmentRole) -> Result<Segment, Stopped> {
    let name = id.name();
    let file = storage.open(&name).map_err(Failure::of(storage, "open", &name))?;
    let len = file.len().map_err(Failure::of(storage, "measure", &name))?;
    let header = match SegmentHeader::read(&*file, meta.id, id) {
        Ok(header) => header.map_err(HeaderFault::Wrong),
        Err(error) => Err(HeaderFault::Unreadable(Damage::unreadable(&name, 0, &error)?)),
    };
    Ok(Segment { id, role, entry: None, len, header })
}

impl Segment {
    pub(super) fn header_damage(&self) -> Option<Damage> {
        match &self.header {
            Ok(_) => None,
            Err(HeaderFault::Wrong(HeaderError::Bad(reason))) => Some(Damage::bytes(self.id.name(), 0, *reason)),
            Err(HeaderFault::Wrong(HeaderError::Newer { found })) => Some(Damage::newer(self.id.name(), 0, *found)),
            Err(HeaderFault::Wrong(HeaderError::Another(reason))) => Some(Damage::bytes(self.id.name(), 0, &**reason)),
            Err(HeaderFault::Unreadable(damage)) => Some(damage.clone()),
        }
    }

    /// The last record before it, if its header is right.
    pub(super) fn before(&self) -> Option<Position> {
        self.header.as_ref().ok().map(|header| header.before)
    }
}

/// Which indexes each segment answers for, as far as headers and checkpoint tell.
fn ranges(segments: &[Segment], manifest: &Manifest) -> Vec<Range> {
    let mut ranges = Vec::new();
    // From the end: a log segment's range ends where the next begins.
    let mut last = Index(u64::MAX);
    for (at, segment) in segments.iter().enumerate().rev() {
        match (segment.entry, segment.before()) {
            (Some(entry), _) => ranges.push(Range { first: entry.first, last: entry.last, segment: at }),
            (None, Some(before)) => {
                let first = before.index.next().max(manifest.first_record);
                ranges.push(Range { first, last, segment: at });
                last = before.index;
            }
            (None, None) => {}
        }
    }
    ranges
}

/// Reads the checkpoint's pieces; `None`, and damage, if it is not whole.
fn read_checkpoint(
    storage: &dyn Storage,
    checkpoint: &Found,
    mut census: Census,
    found: &mut Inspection,
) -> Result<Option<(Order, Census)>, Stopped> {
    let Manifest { log_start, first_record, .. } = checkpoint.manifest;
    let bytes = len_of(storage, CHECKPOINT_NAME)?;
    found.bytes_read += bytes;
    let mut seen = CheckpointSeen { bytes, log_start, first_record, ..CheckpointSeen::default() };
    let mut homeless_at = None;
    let order = Order::of_checkpoint(checkpoint, &mut |offset, frame| {
        let piece = frame.decode_base().map_err(|error| Damage::undecodable(CHECKPOINT_NAME, offset, &error))?;
        seen.count(&piece, &mut census);
        if census.homeless > 0 {
            homeless_at.get_or_insert(offset);
        }
        Ok(())
    });
    let order = match order {
        Ok(order) => order,
        Err(unread) => {
            found.damage.push(Damage::of_unread(CHECKPOINT_NAME, unread)?);
            return Ok(None);
        }
    };
    // What is already missing or misread would be told twice.
    if let Some(offset) = homeless_at.filter(|_| found.damage.is_empty()) {
        let reason = format!("no segment answers for {} of the messages that it names from here on", census.homeless);
        found.damage.push(Damage::missing(CHECKPOINT_NAME, offset, reason));
    }
    let Census { messages, message_bytes, held, .. } = census;
    // After its last piece the log stands at the sync point.
    let (sync_point, floor) = (order.state.head.last, order.state.floor());
    found.checkpoint = Some(CheckpointSeen { sync_point, floor, messages, message_bytes, held, ..seen });
    Ok(Some((order, census)))
}

impl CheckpointSeen {
    fn count(&mut self, piece: &BasePiece, census: &mut Census) {
        match piece {
            BasePiece::In { piece, .. } => self.count(piece, census),
            BasePiece::Exchange(_) => self.exchanges += 1,
            BasePiece::Queue { .. } => self.queues += 1,
            BasePiece::Binding(_) => self.bindings += 1,
            BasePiece::Held { messages, .. } => messages.iter().for_each(|message| census.count(message)),
            BasePiece::Parts { message, parts } => census.count_parts(*message, parts),
            BasePiece::Start { .. }
            | BasePiece::Vhost { .. }
            | BasePiece::Admin(_)
            | BasePiece::Keys { .. }
            | BasePiece::TopologyEnd
            | BasePiece::Writer { .. }
            | BasePiece::Time { .. }
            | BasePiece::Message { .. }
            | BasePiece::Part { .. }
            | BasePiece::QueueDone { .. }
            | BasePiece::End { .. } => {}
        }
    }
}

impl SegmentSeen {
    fn unread(name: String, role: SegmentRole, bytes: u64) -> Self {
        Self { name, role, range: None, bytes, counts: None, live: None, lost: 0, gone: false }
    }
}
