//! The file `checkpoint`: the state as of a sync point, by which recovery starts in the middle of the log, and the list of
//! the segments that hold the messages it speaks of.
//!
//! ```text
//! header, 64 bytes (little-endian)             kept segment in the manifest, 29 bytes
//!      0   8  magic "undrchkp"                      0   1  kind: 0 a log segment, 1 a kept one
//!      8   4  crc32c of the 52 bytes that follow    1   4  sequence number
//!     12   4  format                                5   8  the first message that may be in it
//!     16  16  store id                             13   8  the last
//!     32   4  generation                           21   8  length
//!     36  28  zero
//! frames: base pieces from `Start` to `End`, messages by reference (`Held`)
//! manifest: sequence number of the log's first segment (4), its first record (8), kept segments' number (4), kept segments
//! footer, 24 bytes: offset of the manifest (8), crc32c of manifest and offset (4), zero (4), magic "undrchkp"
//! ```
//!
//! It is written beside the one in force and takes its place by one rename, so there is always a whole one, or none.

use std::io::{self, IoSlice};
use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use understudy_record::{Frame, Index, StoreId};

use crate::error::{Failure, OpenError};
use crate::reader::ReadError;
use crate::recovery::Visit;
use crate::segment::{Cursor, FORMAT, Item, ScanError, SegmentId, SegmentKind};
use crate::storage::read_full;
use crate::{Storage, StorageFile};

pub(crate) const CHECKPOINT_NAME: &str = "checkpoint";
pub(crate) const CHECKPOINT_DRAFT_NAME: &str = "checkpoint.new";

const MAGIC: &[u8; 8] = b"undrchkp";
const HEADER_BYTES: u64 = 64;
const FOOTER_BYTES: u64 = 24;
const ENTRY_BYTES: usize = 29;

/// A kept segment as a checkpoint names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) id: SegmentId,
    pub(crate) first: Index,
    pub(crate) last: Index,
    pub(crate) len: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Manifest {
    pub(crate) generation: u32,
    pub(crate) log_start: u32,
    /// The first record that the log has from that segment on.
    pub(crate) first_record: Index,
    pub(crate) kept: Vec<Entry>,
}

/// A checkpoint that was found, its frames not read yet.
pub(crate) struct Found {
    pub(crate) manifest: Manifest,
    file: Arc<dyn StorageFile>,
    store: StoreId,
    /// Where the frames end.
    end: u64,
}

#[derive(Debug)]
pub(crate) enum FindError {
    Io(io::Error),
    Newer { found: u32 },
    Bad { offset: u64, reason: String },
}

impl From<io::Error> for FindError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

pub(crate) fn header(store: StoreId, generation: u32) -> [u8; HEADER_BYTES as usize] {
    let mut bytes = [0; HEADER_BYTES as usize];
    let mut fields = &mut bytes[12..];
    fields.put_u32_le(FORMAT);
    fields.put_u128_le(store.0);
    fields.put_u32_le(generation);
    bytes[..8].copy_from_slice(MAGIC);
    let crc = crc32c::crc32c(&bytes[12..]);
    bytes[8..12].copy_from_slice(&crc.to_le_bytes());
    bytes
}

impl Manifest {
    /// Manifest and footer, to be written at `offset`.
    pub(crate) fn encode(&self, offset: u64) -> Bytes {
        let mut bytes = BytesMut::new();
        bytes.put_u32_le(self.log_start);
        bytes.put_u64_le(self.first_record.0);
        bytes.put_u32_le(u32::try_from(self.kept.len()).expect("as many files as a directory holds"));
        for entry in &self.kept {
            bytes.put_u8(u8::from(entry.id.kind == SegmentKind::Kept));
            bytes.put_u32_le(entry.id.sequence);
            bytes.put_u64_le(entry.first.0);
            bytes.put_u64_le(entry.last.0);
            bytes.put_u64_le(entry.len);
        }
        let crc = crc32c::crc32c_append(crc32c::crc32c(&bytes), &offset.to_le_bytes());
        bytes.put_u64_le(offset);
        bytes.put_u32_le(crc);
        bytes.put_u32_le(0);
        bytes.put_slice(MAGIC);
        bytes.freeze()
    }

    fn decode(generation: u32, mut bytes: &[u8]) -> Result<Self, &'static str> {
        const SHORT: &str = "its list of segments is shorter than it says";
        if bytes.len() < 16 {
            return Err(SHORT);
        }
        let (log_start, first_record) = (bytes.get_u32_le(), Index(bytes.get_u64_le()));
        let count = bytes.get_u32_le() as usize;
        if bytes.len() != count.saturating_mul(ENTRY_BYTES) {
            return Err(SHORT);
        }
        let mut kept: Vec<Entry> = Vec::with_capacity(count);
        for _ in 0..count {
            let id = match bytes.get_u8() {
                0 => SegmentId::log(generation, bytes.get_u32_le()),
                1 => SegmentId::kept(generation, bytes.get_u32_le()),
                _ => return Err("it lists a segment of no kind that this format has"),
            };
            if id.kind == SegmentKind::Log && id.sequence >= log_start {
                return Err("it lists a segment that the log has");
            }
            let (first, last) = (Index(bytes.get_u64_le()), Index(bytes.get_u64_le()));
            if first > last || kept.last().is_some_and(|before| before.last >= first) {
                return Err("the ranges of its segments are out of order");
            }
            kept.push(Entry { id, first, last, len: bytes.get_u64_le() });
        }
        Ok(Self { generation, log_start, first_record, kept })
    }
}

/// Opens the checkpoint and reads what is around its frames.
pub(crate) fn find(storage: &dyn Storage, store: StoreId) -> Result<Found, FindError> {
    let bad = |offset, reason: &str| FindError::Bad { offset, reason: reason.to_owned() };
    let file = storage.open(CHECKPOINT_NAME)?;
    let len = file.len()?;
    if len < HEADER_BYTES + FOOTER_BYTES {
        return Err(bad(0, "it is shorter than an empty one"));
    }
    let mut bytes = [0; HEADER_BYTES as usize];
    read_full(&*file, &mut bytes, 0)?;
    if &bytes[..8] != MAGIC {
        return Err(bad(0, "it does not begin as a checkpoint does"));
    }
    let mut fields = &bytes[8..];
    if fields.get_u32_le() != crc32c::crc32c(&bytes[12..]) {
        return Err(bad(0, "the checksum of its header is wrong"));
    }
    match fields.get_u32_le() {
        FORMAT => {}
        found => return Err(FindError::Newer { found }),
    }
    if fields.get_u128_le() != store.0 {
        return Err(bad(16, "it belongs to another store"));
    }
    let generation = fields.get_u32_le();
    let footer_at = len - FOOTER_BYTES;
    let mut footer = [0; FOOTER_BYTES as usize];
    read_full(&*file, &mut footer, footer_at)?;
    let mut fields = &footer[..];
    let (end, crc, zero) = (fields.get_u64_le(), fields.get_u32_le(), fields.get_u32_le());
    if &footer[16..] != MAGIC || zero != 0 || !(HEADER_BYTES..=footer_at).contains(&end) {
        return Err(bad(footer_at, "it does not end as a checkpoint does"));
    }
    let manifest_len = usize::try_from(footer_at - end).unwrap_or(usize::MAX);
    let mut manifest = vec![0; manifest_len];
    read_full(&*file, &mut manifest, end)?;
    if crc != crc32c::crc32c_append(crc32c::crc32c(&manifest), &end.to_le_bytes()) {
        return Err(bad(end, "the checksum of its list of segments is wrong"));
    }
    let manifest = Manifest::decode(generation, &manifest).map_err(|reason| bad(end, reason))?;
    Ok(Found { manifest, file, store, end })
}

impl Found {
    /// Every frame, in order.
    pub(crate) fn frames(&self) -> Frames {
        let id = SegmentId::log(self.manifest.generation, 0); // for marks, of which there are none
        Frames(Cursor::new(self.file.clone(), self.store, id, HEADER_BYTES, self.end))
    }
}

pub(crate) struct Frames(Cursor);

impl Frames {
    pub(crate) fn offset(&self) -> u64 {
        self.0.offset()
    }

    pub(crate) fn next(&mut self) -> Result<Option<Frame>, ScanError> {
        let offset = self.0.offset();
        match self.0.next()? {
            None => Ok(None),
            Some(Item::Frame(frame)) => Ok(Some(frame)),
            Some(Item::Mark) => Err(ScanError::Bad { offset, reason: "a mark where only frames stand".to_owned() }),
        }
    }
}

/// The frames of the checkpoint in force.
pub(crate) fn replay(storage: &dyn Storage, store: StoreId, visit: Visit<'_>) -> Result<(), ReadError> {
    let damaged = |offset, reason| ReadError::Damaged { segment: CHECKPOINT_NAME.to_owned(), offset, reason };
    let found = find(storage, store).map_err(|error| match error {
        FindError::Io(error) => Failure::of(storage, "read", CHECKPOINT_NAME)(error).into(),
        FindError::Newer { found } => damaged(12, format!("it is of format {found}")),
        FindError::Bad { offset, reason } => damaged(offset, reason),
    })?;
    let mut frames = found.frames();
    loop {
        match frames.next() {
            Ok(None) => return Ok(()),
            Ok(Some(frame)) => visit(frame).map_err(ReadError::Refused)?,
            Err(ScanError::Bad { offset, reason }) => return Err(damaged(offset, reason)),
            Err(ScanError::Io(error)) => return Err(Failure::of(storage, "read", CHECKPOINT_NAME)(error).into()),
        }
    }
}

impl FindError {
    pub(crate) fn into_open_error(self, storage: &dyn Storage) -> OpenError {
        match self {
            Self::Io(error) => Failure::of(storage, "read", CHECKPOINT_NAME)(error).into(),
            Self::Newer { found } => {
                OpenError::Newer { place: storage.place(), name: CHECKPOINT_NAME.to_owned(), found, known: FORMAT }
            }
            Self::Bad { offset, reason } => {
                OpenError::Damaged { place: storage.place(), segment: CHECKPOINT_NAME.to_owned(), offset, reason }
            }
        }
    }
}

/// Writes the header of a new draft.
pub(crate) fn create_draft(
    storage: &dyn Storage,
    store: StoreId,
    generation: u32,
) -> Result<(Arc<dyn StorageFile>, u64), Failure> {
    let file = storage.create(CHECKPOINT_DRAFT_NAME).map_err(Failure::of(storage, "create", CHECKPOINT_DRAFT_NAME))?;
    let header = header(store, generation);
    file.append(&mut [IoSlice::new(&header)]).map_err(Failure::of(storage, "write", CHECKPOINT_DRAFT_NAME))?;
    Ok((file, HEADER_BYTES))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_is_read_as_it_is_written_and_refused_when_it_cannot_be() {
        let entry = |id, first, last| Entry { id, first: Index(first), last: Index(last), len: 4096 };
        let kept = vec![entry(SegmentId::kept(3, 7), 1, 90), entry(SegmentId::log(3, 2), 91, 100)];
        let manifest = Manifest { generation: 3, log_start: 5, first_record: Index(101), kept };
        let bytes = manifest.encode(1000);
        let list = &bytes[..bytes.len() - FOOTER_BYTES as usize];
        assert_eq!(Manifest::decode(3, list), Ok(manifest.clone()));
        for len in 0..list.len() {
            assert!(Manifest::decode(3, &list[..len]).is_err(), "cut to {len} bytes");
        }
        let swapped = Manifest { kept: manifest.kept.iter().rev().copied().collect(), ..manifest };
        let bytes = swapped.encode(1000);
        assert!(Manifest::decode(3, &bytes[..bytes.len() - FOOTER_BYTES as usize]).is_err());
    }
}
