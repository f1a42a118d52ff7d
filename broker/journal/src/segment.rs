//! The bytes of a segment file: a header, then frames, with a *mark* after each batch that was made durable.
//!
//! ```text
//! header, 64 bytes (little-endian)            mark, 40 bytes
//!      0   8  magic "undrstdy"                     0   4  crc32c of the 36 bytes that follow
//!      8   4  crc32c of the 52 bytes that follow   4   1  0x4d (a frame has 1 or 2 here)
//!     12   4  format                               5   3  zero
//!     16  16  store id                             8  16  store id
//!     32   4  generation                          24   8  its own offset
//!     36   4  sequence number, from 0             32   4  generation
//!     40   8  index of the next record            36   4  sequence number
//!     48   8  epoch of the record before
//!     56   4  kind: 0 log, 1 kept
//!     60   4  zero
//! ```
//!
//! A *log* segment holds every record of its range, and what a catch-up's base is made of. A *kept* segment holds copies of
//! the frames whose messages outlived mostly dead log segments, in the order of their messages' indexes, and no mark: it is
//! whole before anything names it.
//!
//! A mark says: everything in this segment before me was fsynced. It is written after the fsync, rides on the next one,
//! and lets recovery tell a tail that was never durable (cut it) from damage to what was (refuse). It names its own
//! place, so that a message's body cannot pass for one. A segment is created only when the one before it is durable.

use std::io;
use std::sync::Arc;

use bytes::{Buf, BufMut, BytesMut};
use understudy_record::{Epoch, FRAME_HEADER_BYTES, Frame, Index, Position, Rope, StoreId, peek_header};

use crate::StorageFile;
use crate::storage::read_full;

pub(crate) const FORMAT: u32 = 1;
pub(crate) const SEGMENT_HEADER_BYTES: u64 = 64;
pub(crate) const MARK_BYTES: usize = 40;

const MAGIC: &[u8; 8] = b"undrstdy";
const MARK_KIND: u8 = 0x4d;

/// One read: large enough for a disk to be quick at, small enough that a record kept from it holds on to little else.
const READ_BYTES: usize = 256 << 10;

/// The first read of a cursor, in bytes; each further one is twice as much, up to [`READ_BYTES`]. Who looks for one message begins
/// at a signpost near it and stops there: messages of one queue stand far apart where many queues take turns.
const FIRST_READ_BYTES: usize = 16 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SegmentKind {
    Log,
    Kept,
}

/// Which segment: the log's life (a catch-up starts another), what it is, and the place among its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SegmentId {
    pub(crate) generation: u32,
    pub(crate) kind: SegmentKind,
    pub(crate) sequence: u32,
}

impl SegmentId {
    pub(crate) fn log(generation: u32, sequence: u32) -> Self {
        Self { generation, kind: SegmentKind::Log, sequence }
    }

    pub(crate) fn kept(generation: u32, sequence: u32) -> Self {
        Self { generation, kind: SegmentKind::Kept, sequence }
    }

    pub(crate) fn name(self) -> String {
        let kind = match self.kind {
            SegmentKind::Log => "log",
            SegmentKind::Kept => "kept",
        };
        format!("{kind}-{:08x}-{:08x}.seg", self.generation, self.sequence)
    }

    pub(crate) fn from_name(name: &str) -> Option<Self> {
        let (kind, rest) = match name.strip_prefix("log-") {
            Some(rest) => (SegmentKind::Log, rest),
            None => (SegmentKind::Kept, name.strip_prefix("kept-")?),
        };
        let (generation, sequence) = rest.strip_suffix(".seg")?.split_once('-')?;
        let hex = |digits: &str| (digits.len() == 8).then(|| u32::from_str_radix(digits, 16).ok()).flatten();
        let id = Self { generation: hex(generation)?, kind, sequence: hex(sequence)? };
        (id.name() == name).then_some(id)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub(crate) store: StoreId,
    pub(crate) id: SegmentId,
    /// The last record before this segment.
    pub(crate) before: Position,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum HeaderError {
    /// It may be of a segment that was being begun when the power failed.
    Bad(&'static str),
    Newer {
        found: u32,
    },
    /// Right, and not the one that belongs here; for people.
    Another(String),
}

impl SegmentHeader {
    pub(crate) fn encode(&self) -> [u8; SEGMENT_HEADER_BYTES as usize] {
        let mut bytes = [0; SEGMENT_HEADER_BYTES as usize];
        let mut fields = &mut bytes[12..];
        fields.put_u32_le(FORMAT);
        fields.put_u128_le(self.store.0);
        fields.put_u32_le(self.id.generation);
        fields.put_u32_le(self.id.sequence);
        fields.put_u64_le(self.before.index.next().0);
        fields.put_u64_le(self.before.epoch.0);
        fields.put_u32_le(match self.id.kind {
            SegmentKind::Log => 0,
            SegmentKind::Kept => 1,
        });
        bytes[..8].copy_from_slice(MAGIC);
        let crc = crc32c::crc32c(&bytes[12..]);
        bytes[8..12].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8; SEGMENT_HEADER_BYTES as usize]) -> Result<Self, HeaderError> {
        if &bytes[..8] != MAGIC {
            return Err(HeaderError::Bad("it does not begin as a segment does"));
        }
        let mut fields = &bytes[8..];
        if fields.get_u32_le() != crc32c::crc32c(&bytes[12..]) {
            return Err(HeaderError::Bad("the checksum of its header is wrong"));
        }
        let found = fields.get_u32_le();
        if found != FORMAT {
            return Err(HeaderError::Newer { found });
        }
        let store = StoreId(fields.get_u128_le());
        let (generation, sequence) = (fields.get_u32_le(), fields.get_u32_le());
        let next = Index(fields.get_u64_le());
        let before = Position::new(Epoch(fields.get_u64_le()), next.previous());
        let kind = match fields.get_u32_le() {
            0 => SegmentKind::Log,
            1 => SegmentKind::Kept,
            _ => return Err(HeaderError::Bad("it is of no kind that this format has")),
        };
        Ok(Self { store, id: SegmentId { generation, kind, sequence }, before })
    }

    /// Of the file that is segment `id` of this store, by its name and place.
    pub(crate) fn read(file: &dyn StorageFile, store: StoreId, id: SegmentId) -> io::Result<Result<Self, HeaderError>> {
        let mut bytes = [0; SEGMENT_HEADER_BYTES as usize];
        if (read_full(file, &mut bytes, 0)? as u64) < SEGMENT_HEADER_BYTES {
            return Ok(Err(HeaderError::Bad("its header is not whole")));
        }
        Ok(Self::decode(&bytes).and_then(|header| header.belonging_to(store, id)))
    }

    fn belonging_to(self, store: StoreId, id: SegmentId) -> Result<Self, HeaderError> {
        if self.store != store {
            let reason = format!("it belongs to store {}, this directory to {store}", self.store);
            return Err(HeaderError::Another(reason));
        }
        if self.id != id {
            return Err(HeaderError::Another(format!("it is {} under another name", self.id.name())));
        }
        Ok(self)
    }
}

/// The mark that stands at `offset` and vouches for everything before it.
pub(crate) fn encode_mark(store: StoreId, id: SegmentId, offset: u64) -> [u8; MARK_BYTES] {
    let mut bytes = [0; MARK_BYTES];
    let mut fields = &mut bytes[4..];
    fields.put_u8(MARK_KIND);
    fields.put_bytes(0, 3);
    fields.put_u128_le(store.0);
    fields.put_u64_le(offset);
    fields.put_u32_le(id.generation);
    fields.put_u32_le(id.sequence);
    let crc = crc32c::crc32c(&bytes[4..]);
    bytes[..4].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// What stands next in a segment.
pub(crate) enum Item {
    Frame(Frame),
    Mark,
}

#[derive(Debug)]
pub(crate) enum ScanError {
    Io(io::Error),
    /// No frame and no mark; `reason` for people.
    Bad {
        offset: u64,
        reason: String,
    },
}

impl From<ScanError> for io::Error {
    fn from(error: ScanError) -> Self {
        match error {
            ScanError::Io(error) => error,
            ScanError::Bad { offset, reason } => Self::other(format!("damaged at byte {offset}: {reason}")),
        }
    }
}

/// Reads a segment item by item.
pub(crate) struct Cursor {
    file: Arc<dyn StorageFile>,
    store: StoreId,
    id: SegmentId,
    /// Read from the file and not yet taken.
    ahead: Rope,
    offset: u64,
    end: u64,
    read_bytes: usize,
}

impl Cursor {
    /// Of the bytes from `offset`, where an item begins, to `end`.
    pub(crate) fn new(file: Arc<dyn StorageFile>, store: StoreId, id: SegmentId, offset: u64, end: u64) -> Self {
        Self { file, store, id, ahead: Rope::default(), offset, end, read_bytes: FIRST_READ_BYTES }
    }

    /// Where the next item begins.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// The first read takes `bytes`, up to [`READ_BYTES`]: what is looked for reaches so far at most, and comes with one read.
    pub(crate) fn reading_first(self, bytes: u64) -> Self {
        let read_bytes = usize::try_from(bytes).unwrap_or(usize::MAX).clamp(FIRST_READ_BYTES, READ_BYTES);
        Self { read_bytes, ..self }
    }

    pub(crate) fn into_file(self) -> Arc<dyn StorageFile> {
        self.file
    }

    pub(crate) fn next(&mut self) -> Result<Option<Item>, ScanError> {
        if self.offset >= self.end {
            return Ok(None);
        }
        let mut fixed = [0; FRAME_HEADER_BYTES];
        if !self.fetch(FRAME_HEADER_BYTES)? {
            return Err(self.bad(format!("only {} bytes are left", self.end - self.offset)));
        }
        assert!(self.ahead.peek(&mut fixed), "fetched {FRAME_HEADER_BYTES} bytes, {} are there", self.ahead.len());
        if fixed[4] == MARK_KIND {
            const { assert!(MARK_BYTES == FRAME_HEADER_BYTES) };
            if fixed != encode_mark(self.store, self.id, self.offset) {
                return Err(self.bad("a mark that does not belong here".to_owned()));
            }
            self.ahead.take(MARK_BYTES);
            self.offset += MARK_BYTES as u64;
            return Ok(Some(Item::Mark));
        }
        let len = peek_header(&fixed).map_err(|error| self.bad(error.to_string()))?;
        if !self.fetch(len)? {
            let left = self.end - self.offset;
            return Err(self.bad(format!("a frame of {len} bytes where {left} are left")));
        }
        match Frame::take(&mut self.ahead) {
            Ok(Some(frame)) => {
                self.offset += len as u64;
                Ok(Some(Item::Frame(frame)))
            }
            Ok(None) => Err(self.bad("a frame that does not end".to_owned())),
            Err(error) => Err(self.bad(error.to_string())),
        }
    }

    /// Reads ahead until `len` bytes are there; `false` if the segment has not so many.
    fn fetch(&mut self, len: usize) -> Result<bool, ScanError> {
        if self.offset + len as u64 > self.end {
            return Ok(false);
        }
        while self.ahead.len() < len {
            let from = self.offset + self.ahead.len() as u64;
            let left = usize::try_from(self.end - from).unwrap_or(usize::MAX);
            let mut chunk = BytesMut::zeroed(left.min(self.read_bytes));
            self.read_bytes = (self.read_bytes * 2).min(READ_BYTES);
            match self.file.read_at(&mut chunk, from).map_err(ScanError::Io)? {
                0 => return Err(ScanError::Io(io::ErrorKind::UnexpectedEof.into())),
                count => chunk.truncate(count),
            }
            self.ahead.push(chunk.freeze());
        }
        Ok(true)
    }

    fn bad(&self, reason: String) -> ScanError {
        ScanError::Bad { offset: self.offset, reason }
    }
}

/// Looks for a mark after `from`: whether what stands at `from` was durable once.
pub(crate) fn vouched(file: &dyn StorageFile, store: StoreId, id: SegmentId, from: u64, end: u64) -> io::Result<bool> {
    let mut window = vec![0; READ_BYTES];
    let mut start = from;
    while start + MARK_BYTES as u64 <= end {
        let filled = read_full(file, &mut window, start)?;
        for (at, bytes) in window[..filled].windows(MARK_BYTES).enumerate() {
            let offset = start + at as u64;
            if bytes[4] == MARK_KIND && offset > from && bytes == encode_mark(store, id, offset) {
                return Ok(true);
            }
        }
        match filled {
            short if short < MARK_BYTES => break,
            filled => start += (filled - MARK_BYTES + 1) as u64,
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: SegmentId = SegmentId { generation: 2, kind: SegmentKind::Log, sequence: 0xb };

    fn hex(bytes: &[u8]) -> String {
        let row = |row: &[u8]| row.iter().map(|byte| format!("{byte:02x}")).collect::<String>() + "\n";
        bytes.chunks(8).map(row).collect()
    }

    #[test]
    fn names_are_read_as_they_are_written_and_nothing_else_is() {
        assert_eq!(ID.name(), "log-00000002-0000000b.seg");
        assert_eq!(SegmentId::from_name(&ID.name()), Some(ID));
        let kept = SegmentId::kept(2, 0xb);
        assert_eq!(kept.name(), "kept-00000002-0000000b.seg");
        assert_eq!(SegmentId::from_name(&kept.name()), Some(kept));
        for name in
            ["log-2-b.seg", "log-00000002-0000000B.seg", "log-00000002-+000000b.seg", "store", "log-00000002.seg"]
        {
            assert_eq!(SegmentId::from_name(name), None, "{name}");
        }
    }

    #[test]
    fn header_and_mark_are_these_bytes() {
        let before = Position::new(Epoch(3), Index(41));
        let header = SegmentHeader { store: StoreId(0xfeed), id: ID, before };
        let bytes = header.encode();
        expect_test::expect![[r#"
            756e647273746479
            7e09e08101000000
            edfe000000000000
            0000000000000000
            020000000b000000
            2a00000000000000
            0300000000000000
            0000000000000000
        "#]]
        .assert_eq(&hex(&bytes));
        assert_eq!(SegmentHeader::decode(&bytes), Ok(header));
        expect_test::expect![[r#"
            628b8dfb4d000000
            edfe000000000000
            0000000000000000
            0010000000000000
            020000000b000000
        "#]]
        .assert_eq(&hex(&encode_mark(StoreId(0xfeed), ID, 4096)));
    }

    #[test]
    fn every_flipped_bit_of_a_header_is_noticed() {
        let bytes = SegmentHeader { store: StoreId(7), id: ID, before: Position::default() }.encode();
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(matches!(SegmentHeader::decode(&flipped), Err(HeaderError::Bad(_))), "bit {bit}");
        }
    }

    #[test]
    fn a_newer_format_is_named_as_such() {
        let mut bytes = SegmentHeader { store: StoreId(7), id: ID, before: Position::default() }.encode();
        bytes[12] = 2;
        let crc = crc32c::crc32c(&bytes[12..]);
        bytes[8..12].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(SegmentHeader::decode(&bytes), Err(HeaderError::Newer { found: 2 }));
    }
}
