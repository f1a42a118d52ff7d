//! One reading: the files of a directory by what they are to a broker, their headers, the checkpoint; then `walk` goes through
//! the frames. Nothing is kept open between two files, so that a directory of many segments is no matter.

use std::io;

use understudy_record::{BasePiece, Index, Position};

use super::live::{Census, Range};
use super::walk::{self, Order};
use super::{
    CheckpointSeen, Damage, Depth, InspectError, Inspection, Leftover, SegmentRole, SegmentSeen, Stopped, StoreSeen,
    len_of, measure,
};
use crate::Storage;
use crate::checkpoint::{self, CHECKPOINT_DRAFT_NAME, CHECKPOINT_NAME, Entry, FindError, Found, Manifest};
use crate::dir::LOCK_NAME;
use crate::error::Failure;
use crate::segment::{HeaderError, SEGMENT_HEADER_BYTES, SegmentHeader, SegmentId, SegmentKind};
use crate::state::{Base, LogState};
use crate::storage::read_full;
use crate::store::{STORE_DRAFT_NAME, STORE_NAME, StoreMeta};

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
    /// It may be of a segment that was being begun when the power failed.
    Bad(&'static str),
    Newer(u32),
    /// Right, and not the one that belongs here.
    Another(String),
    Unreadable(Damage),
}

/// What the checkpoint says.
enum Checkpoint {
    None,
    Damaged,
    InForce(Found),
}

/// Names, sorted out.
#[derive(Default)]
struct Names {
    /// In the order of their messages.
    kept: Vec<(SegmentId, Option<Entry>)>,
    log: Vec<SegmentId>,
    leftovers: Vec<(String, &'static str, bool)>,
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
    if !names.iter().any(|name| name == STORE_NAME) {
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
    found.store = Some(StoreSeen { id: meta.id, known_epoch: meta.epoch, generation: meta.generation });

    let checkpoint = find_checkpoint(storage, meta, &names, &mut found)?;
    let sorted = sort(&names, meta, &checkpoint);
    let segments = open_segments(storage, meta, &checkpoint, &sorted, &mut found)?;
    let leftovers = leftovers(storage, sorted.leftovers);
    found.leftovers = leftovers;
    let (order, census) = match &checkpoint {
        Checkpoint::InForce(checkpoint) => {
            let ranges = ranges(&segments, &checkpoint.manifest);
            match read_checkpoint(storage, checkpoint, Census::new(ranges, segments.len()), &mut found)? {
                Some((order, census)) => (Some(order), Some(census)),
                None => (None, None),
            }
        }
        Checkpoint::None if meta.generation == 0 => (Some(Order::new(LogState::default())), None),
        Checkpoint::None => (Some(Order::new(LogState::awaiting_base())), None),
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
    let mut holds_log = names.iter().any(|name| name == CHECKPOINT_NAME);
    for name in names.iter().filter(|name| SegmentId::from_name(name).is_some()) {
        // A first start that was interrupted leaves a segment without a record.
        holds_log |= len_of(storage, name)? > SEGMENT_HEADER_BYTES;
    }
    if holds_log {
        return Ok(Damage::missing(STORE_NAME, 0, "there is a log, and this file, which says whose it is, is missing"));
    }
    let ours = |name: &String| SegmentId::from_name(name).is_some() || name == LOCK_NAME;
    let why = match names {
        [] => "it is empty",
        names if names.iter().any(ours) => "a broker began to use it, and has written nothing yet",
        _ => "it holds no file `store` and no log",
    };
    Err(Stopped::Error(InspectError::NotAStore { place: storage.place(), why }))
}

/// Segments of which nobody knows whether they count.
fn strangers(storage: &dyn Storage, names: &[String], found: &mut Inspection) -> Result<(), Stopped> {
    for name in names {
        let Some(id) = SegmentId::from_name(name) else { continue };
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
    if !names.iter().any(|name| name == CHECKPOINT_NAME) {
        return Ok(Checkpoint::None);
    }
    let damage = match checkpoint::find(storage, meta.id) {
        Ok(found) if found.manifest.generation == meta.generation => return Ok(Checkpoint::InForce(found)),
        Ok(_) => return Ok(Checkpoint::None),
        Err(FindError::Io(error)) => Damage::unreadable(CHECKPOINT_NAME, 0, &error)?,
        Err(FindError::Newer { found }) => Damage::newer(CHECKPOINT_NAME, 0, found),
        Err(FindError::Bad { offset, reason }) => Damage::bytes(CHECKPOINT_NAME, offset, reason),
    };
    found.damage.push(damage);
    Ok(Checkpoint::Damaged)
}

fn sort(names: &[String], meta: StoreMeta, checkpoint: &Checkpoint) -> Names {
    let manifest = match checkpoint {
        Checkpoint::InForce(found) => Some(&found.manifest),
        Checkpoint::None | Checkpoint::Damaged => None,
    };
    let log_start = manifest.map_or(0, |manifest| manifest.log_start);
    let entries: &[Entry] = manifest.map_or(&[], |manifest| &manifest.kept);
    // By name, not as listed: one that is missing is missed.
    let mut sorted = Names { kept: entries.iter().map(|entry| (entry.id, Some(*entry))).collect(), ..Names::default() };
    for name in names {
        let leftover = match (name.as_str(), SegmentId::from_name(name)) {
            (STORE_NAME | LOCK_NAME | "lost+found", _) => continue,
            (CHECKPOINT_NAME, _) if !matches!(checkpoint, Checkpoint::None) => continue,
            (CHECKPOINT_NAME, _) => "a checkpoint of another log than the one in force",
            (STORE_DRAFT_NAME, _) => "a new file `store` that has not taken its place",
            (CHECKPOINT_DRAFT_NAME, _) => "a checkpoint that is not in force: being written, or given up",
            (_, None) => {
                sorted.leftovers.push((name.clone(), "not a broker's", false));
                continue;
            }
            (_, Some(id)) if id.generation < meta.generation => "of an earlier log, which a catch-up has replaced",
            (_, Some(id)) if id.generation > meta.generation => "of a catch-up that is not complete",
            (_, Some(id)) if entries.iter().any(|entry| entry.id == id) => continue,
            (_, Some(id)) if id.kind == SegmentKind::Log && id.sequence >= log_start => {
                sorted.log.push(id);
                continue;
            }
            (_, Some(id)) if id.kind == SegmentKind::Kept && matches!(checkpoint, Checkpoint::Damaged) => {
                sorted.kept.push((id, None));
                continue;
            }
            (_, Some(id)) if id.kind == SegmentKind::Log => "of the log before the checkpoint, which needs it no more",
            (_, Some(_)) => "messages for a checkpoint that is not in force: being written, given up, or replaced",
        };
        sorted.leftovers.push((name.clone(), leftover, true));
    }
    sorted.log.sort_unstable();
    sorted
}

fn leftovers(storage: &dyn Storage, names: Vec<(String, &'static str, bool)>) -> Vec<Leftover> {
    let seen = names.into_iter().filter_map(|(name, what, is_removed_at_opening)| {
        // What is not a broker's may be anything, a directory for one. What is gone by now is no leftover.
        let bytes = if is_removed_at_opening { len_of(storage, &name).ok()? } else { 0 };
        Some(Leftover { name, bytes, what, is_removed_at_opening })
    });
    seen.collect()
}

/// Reads the headers of all segments that count; what is missing or wrong with them is damage.
fn open_segments(
    storage: &dyn Storage,
    meta: StoreMeta,
    checkpoint: &Checkpoint,
    names: &Names,
    found: &mut Inspection,
) -> Result<Vec<Segment>, Stopped> {
    let mut segments = Vec::new();
    for (id, entry) in &names.kept {
        let name = id.name();
        let role = match id.kind {
            SegmentKind::Log => SegmentRole::KeptLog,
            SegmentKind::Kept => SegmentRole::Kept,
        };
        match open_segment(storage, meta, *id, role) {
            Ok(segment) => {
                let segment = Segment { entry: *entry, ..segment };
                if let Some(entry) = entry.filter(|entry| segment.len < entry.len) {
                    let reason = format!("it is cut off: the checkpoint knows it as {} bytes long", entry.len);
                    found.damage.push(Damage::missing(&name, segment.len, reason));
                }
                segments.push(segment);
            }
            Err(Stopped::Changed) => {
                let reason = "this segment is missing, but the checkpoint names it";
                found.damage.push(Damage::missing(&name, 0, reason));
            }
            Err(other) => return Err(other),
        }
    }
    let start = match checkpoint {
        Checkpoint::InForce(found) => found.manifest.log_start,
        Checkpoint::None => 0,
        // Where the log begins is not known.
        Checkpoint::Damaged => names.log.first().map_or(0, |id| id.sequence),
    };
    let missing = |sequence, why: &str| {
        let id = SegmentId::log(meta.generation, sequence);
        Damage::missing(id.name(), 0, format!("this segment is missing, but {why}"))
    };
    let mut expected = start;
    for id in &names.log {
        // A hole of any size is one place: its first segment is named.
        if id.sequence != expected && !matches!(checkpoint, Checkpoint::Damaged) {
            found.damage.push(missing(expected, "a later one is there"));
        }
        expected = id.sequence.saturating_add(1);
        segments.push(open_segment(storage, meta, *id, SegmentRole::Log)?);
    }
    if names.log.is_empty() {
        found.damage.push(missing(start, "a store always has one"));
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
    let len = measure(storage, &*file, &name)?;
    let mut bytes = [0; SEGMENT_HEADER_BYTES as usize];
    let header = match read_full(&*file, &mut bytes, 0) {
        Ok(filled) if (filled as u64) < SEGMENT_HEADER_BYTES => Err(HeaderFault::Bad("its header is not whole")),
        Ok(_) => match SegmentHeader::decode(&bytes) {
            Ok(header) if header.store != meta.id => Err(HeaderFault::Another(format!(
                "it belongs to store {}, this directory to {}",
                header.store, meta.id
            ))),
            Ok(header) if header.id != id => {
                Err(HeaderFault::Another(format!("it is {} under another name", header.id.name())))
            }
            Ok(header) => Ok(header),
            Err(HeaderError::Newer { found }) => Err(HeaderFault::Newer(found)),
            Err(HeaderError::Bad(reason)) => Err(HeaderFault::Bad(reason)),
        },
        Err(error) => Err(HeaderFault::Unreadable(Damage::unreadable(&name, 0, &error)?)),
    };
    Ok(Segment { id, role, entry: None, len, header })
}

impl Segment {
    pub(super) fn header_damage(&self) -> Option<Damage> {
        match &self.header {
            Ok(_) => None,
            Err(HeaderFault::Bad(reason)) => Some(Damage::bytes(self.id.name(), 0, *reason)),
            Err(HeaderFault::Newer(found)) => Some(Damage::newer(self.id.name(), 0, *found)),
            Err(HeaderFault::Another(reason)) => Some(Damage::bytes(self.id.name(), 0, reason.as_str())),
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
    let mut state = LogState::awaiting_base();
    let mut frames = checkpoint.frames();
    let mut homeless_at = None;
    loop {
        let offset = frames.offset();
        let read = match frames.next() {
            Ok(None) => break,
            Ok(Some(frame)) => state.admit(std::slice::from_ref(&frame)).map(|advance| (frame, advance)),
            Err(error) => {
                found.damage.push(Damage::of_scan(CHECKPOINT_NAME, offset, error)?);
                return Ok(None);
            }
        };
        let damage = match read.map(|(frame, advance)| (frame.decode_base(), advance)) {
            Ok((Ok(piece), advance)) => {
                state.apply(advance);
                seen.count(&piece, &mut census);
                if census.homeless > 0 {
                    homeless_at.get_or_insert(offset);
                }
                continue;
            }
            Ok((Err(error), _)) => Damage::undecodable(CHECKPOINT_NAME, offset, &error),
            Err(crate::OrderError::BasePiece(error)) => Damage::undecodable(CHECKPOINT_NAME, offset, &error),
            Err(error) => Damage::bytes(CHECKPOINT_NAME, offset, error.to_string()),
        };
        found.damage.push(damage);
        return Ok(None);
    }
    let Base::Whole { sync_point, floor } = state.head.base else {
        let reason = "its state ends here and is not whole";
        found.damage.push(Damage::missing(CHECKPOINT_NAME, frames.offset(), reason));
        return Ok(None);
    };
    // What is already missing or misread would be told twice.
    if let Some(offset) = homeless_at.filter(|_| found.damage.is_empty()) {
        let reason = format!("no segment answers for {} of the messages that it names from here on", census.homeless);
        found.damage.push(Damage::missing(CHECKPOINT_NAME, offset, reason));
    }
    let Census { messages, message_bytes, held, .. } = census;
    found.checkpoint = Some(CheckpointSeen { sync_point, floor, messages, message_bytes, held, ..seen });
    Ok(Some((Order::covered(state, sync_point), census)))
}

impl CheckpointSeen {
    fn count(&mut self, piece: &BasePiece, census: &mut Census) {
        match piece {
            BasePiece::Exchange(_) => self.exchanges += 1,
            BasePiece::Queue { .. } => self.queues += 1,
            BasePiece::Binding(_) => self.bindings += 1,
            BasePiece::Held { messages, .. } => messages.iter().for_each(|message| census.count(message)),
            BasePiece::Parts { message, parts } => census.count_parts(*message, parts),
            BasePiece::Start { .. }
            | BasePiece::TopologyEnd
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
