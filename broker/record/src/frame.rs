//! A frame: one record (or base piece) as it stands on disk and on the replication stream, byte for byte the same.
//!
//! ```text
//! offset  bytes  field (little-endian)
//!      0      4  crc32c of everything after these four bytes, body included
//!      4      1  kind: 1 record, 2 base piece
//!      5      3  zero
//!      8      4  meta length
//!     12      4  body length
//!     16      8  epoch
//!     24      8  index (a base piece: that of its sync point)
//!     32      8  how far the log was committed when the primary wrote this frame
//!     40         meta, then body
//! ```
//!
//! The committed index is a truth that only grows, stamped so that a restarting replica knows how far it may apply.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::version::ClusterVersion;
use crate::{BasePiece, Body, Epoch, Index, Member, Message, Position, Record, RecordError, Rope};

pub const FRAME_HEADER_BYTES: usize = 40;

/// A frame's meta at most: the longest is a purge or acknowledgement that lists a few hundred thousand messages.
pub const MAX_META_BYTES: usize = 16 << 20;

/// A body at most: the largest `maxMessageSize` that may be configured.
pub const MAX_BODY_BYTES: usize = 512 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FrameKind {
    Record,
    Base,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Frame {
    pub kind: FrameKind,
    pub position: Position,
    pub committed: Index,
    /// Header and meta in one run.
    head: Bytes,
    body: Body,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    #[error("checksum {found:08x} where the bytes give {computed:08x}")]
    Checksum { found: u32, computed: u32 },
    #[error("frame {field} is {value}, which no version writes")]
    Header { field: &'static str, value: u64 },
    #[error(transparent)]
    Record(#[from] RecordError),
}

struct Header {
    crc: u32,
    kind: FrameKind,
    meta_len: usize,
    body_len: usize,
    position: Position,
    committed: Index,
}

impl Frame {
    /// Writes `record` as a frame. Small parts go to `arena`, from which the frame keeps a slice; the body is shared.
    pub fn record(position: Position, committed: Index, record: &Record, arena: &mut BytesMut) -> Self {
        Self::write(FrameKind::Record, position, committed, arena, record.body(), |arena| record.encode_meta(arena))
    }

    pub fn base(position: Position, committed: Index, piece: &BasePiece, arena: &mut BytesMut) -> Self {
        Self::write(FrameKind::Base, position, committed, arena, piece.body(), |arena| piece.encode_meta(arena))
    }

    fn write(
        kind: FrameKind,
        position: Position,
        committed: Index,
        arena: &mut BytesMut,
        body: Body,
        encode_meta: impl FnOnce(&mut BytesMut),
    ) -> Self {
        let start = arena.len();
        assert_eq!(start, 0, "the arena is empty between frames: each takes what it wrote");
        arena.put_bytes(0, FRAME_HEADER_BYTES);
        encode_meta(arena);
        let (meta_len, body_len) = (arena.len() - FRAME_HEADER_BYTES, body.len());
        assert!(meta_len <= MAX_META_BYTES && body_len <= MAX_BODY_BYTES, "frame of {meta_len} + {body_len} bytes");
        let mut fields = &mut arena[4..FRAME_HEADER_BYTES];
        fields.put_u8(match kind {
            FrameKind::Record => 1,
            FrameKind::Base => 2,
        });
        fields.put_bytes(0, 3);
        fields.put_u32_le(u32::try_from(meta_len).expect("checked against its bound above"));
        fields.put_u32_le(u32::try_from(body_len).expect("checked against its bound above"));
        fields.put_u64_le(position.epoch.0);
        fields.put_u64_le(position.index.0);
        fields.put_u64_le(committed.0);
        let crc = checksum(&arena[4..], &body);
        arena[..4].copy_from_slice(&crc.to_le_bytes());
        Self { kind, position, committed, head: arena.split().freeze(), body }
    }

    /// Whole length on disk, in bytes.
    pub fn len(&self) -> usize {
        self.head.len() + self.body.len()
    }

    pub fn is_empty(&self) -> bool {
        false
    }

    pub fn body(&self) -> &Body {
        &self.body
    }

    /// The frame's bytes in order, for a vectored write or a stream.
    pub fn pieces(&self) -> impl Iterator<Item = &Bytes> + Clone {
        std::iter::once(&self.head).chain(self.body.pieces())
    }

    /// Takes the next whole frame off a stream; `None` if it is not whole yet. An error leaves the stream where it was.
    pub fn take(stream: &mut Rope) -> Result<Option<Self>, FrameError> {
        let mut fixed = [0; FRAME_HEADER_BYTES];
        if !stream.peek(&mut fixed) {
            return Ok(None);
        }
        let header = parse_header(&fixed)?;
        let head_len = FRAME_HEADER_BYTES + header.meta_len;
        if stream.len() < head_len + header.body_len {
            return Ok(None);
        }
        let whole = "a rope as long as the frame gives the frame";
        let head = stream.take(head_len).expect(whole).to_contiguous();
        let body = stream.take(header.body_len).expect(whole);
        let computed = checksum(&head[4..], &body);
        if computed != header.crc {
            return Err(FrameError::Checksum { found: header.crc, computed });
        }
        Ok(Some(Self { kind: header.kind, position: header.position, committed: header.committed, head, body }))
    }

    pub fn decode_record(&self) -> Result<Record, RecordError> {
        Record::decode(self.head.slice(FRAME_HEADER_BYTES..), self.body.clone())
    }

    pub fn decode_base(&self) -> Result<BasePiece, RecordError> {
        BasePiece::decode(self.head.slice(FRAME_HEADER_BYTES..), self.body.clone())
    }
}

impl Frame {
    /// The index of the message, or of the part of one, that this frame carries, if it carries one. Cheap: nothing is
    /// decoded.
    pub fn message_index(&self) -> Option<Index> {
        let meta = self.head.get(FRAME_HEADER_BYTES..)?;
        let index_at = |at: usize| {
            let bytes = meta.get(at..at + 8)?.try_into().ok()?;
            Some(Index(u64::from_le_bytes(bytes)))
        };
        match (self.kind, *meta.first()?) {
            (
                FrameKind::Record,
                Record::PUBLISH
                | Record::PUBLISH_IN_PARTS
                | Record::STAGED
                | Record::STAGED_IN_PARTS
                | Record::PUBLISH_HERE
                | Record::PUBLISH_HERE_IN_PARTS
                | Record::STAGED_HERE
                | Record::STAGED_HERE_IN_PARTS
                | Record::PART,
            ) => Some(self.position.index),
            // After the tag: the queue, then the index.
            (
                FrameKind::Base,
                BasePiece::MESSAGE
                | BasePiece::MESSAGE_IN_PARTS
                | BasePiece::EXPIRING_MESSAGE
                | BasePiece::EXPIRING_MESSAGE_IN_PARTS,
            ) => index_at(9),
            (FrameKind::Base, BasePiece::PART) => index_at(1),
            _ => None,
        }
    }

    /// From which version of the cluster on such a frame may be written; `None` for a kind that this build does not know.
    /// Cheap: nothing is decoded.
    pub fn since(&self) -> Option<ClusterVersion> {
        let tag = *self.head.get(FRAME_HEADER_BYTES)?;
        match self.kind {
            FrameKind::Record => Record::since(tag),
            FrameKind::Base => BasePiece::since(tag),
        }
    }

    /// What this frame carries of a large message's body, if that is what it carries.
    pub fn part(&self) -> Option<&Body> {
        let tag = *self.head.get(FRAME_HEADER_BYTES)?;
        let is_part =
            matches!((self.kind, tag), (FrameKind::Record, Record::PART) | (FrameKind::Base, BasePiece::PART));
        is_part.then_some(&self.body)
    }

    /// The same in memory of its own: it holds on to nothing that the frame was read with.
    pub fn detached(&self) -> Self {
        let mut whole = BytesMut::with_capacity(self.len());
        self.pieces().for_each(|piece| whole.extend_from_slice(piece));
        let mut whole = whole.freeze();
        let head = whole.split_to(self.head.len());
        Self { head, body: Body::new(whole), ..*self }
    }

    /// The message that this frame carries, in memory of its own: it holds on to nothing that the frame was read with.
    ///
    /// # Errors
    /// If the frame cannot be decoded.
    pub fn detached_message(&self) -> Result<Option<Message>, RecordError> {
        if self.message_index().is_none() {
            return Ok(None);
        }
        let head = Bytes::copy_from_slice(&self.head[FRAME_HEADER_BYTES..]);
        let mut body = BytesMut::with_capacity(self.body.len());
        self.body.pieces().for_each(|piece| body.extend_from_slice(piece));
        let body = Body::new(body.freeze());
        Ok(match self.kind {
            FrameKind::Record => match Record::decode(head, body)? {
                Record::Publish { message, .. }
                | Record::PublishHere { message, .. }
                | Record::Staged { message, .. }
                | Record::StagedHere { message, .. } => Some(message),
                _ => None,
            },
            FrameKind::Base => match BasePiece::decode(head, body)? {
                BasePiece::Message { message, .. } => Some(message),
                _ => None,
            },
        })
    }

    /// What a follower gets in place of this frame: mostly the same. Cheap for all that is.
    ///
    /// # Errors
    /// If the frame cannot be decoded.
    pub fn for_followers(self) -> Result<Self, RecordError> {
        if self.kind != FrameKind::Record || !self.head.get(FRAME_HEADER_BYTES).copied().is_some_and(Record::is_here) {
            return Ok(self);
        }
        let Some(record) = self.decode_record()?.for_followers() else { return Ok(self) };
        Ok(Self::record(self.position, self.committed, &record, &mut BytesMut::new()))
    }

    /// The in-sync set that this frame puts into force, if it is one that does (rule 7). Cheap for all others.
    pub fn in_sync_set(&self) -> Option<Vec<Member>> {
        match (self.kind, self.head.get(FRAME_HEADER_BYTES)) {
            (FrameKind::Record, Some(&(Record::EPOCH_START | Record::IN_SYNC_SET))) => match self.decode_record() {
                Ok(Record::EpochStart { in_sync, .. }) => Some(in_sync),
                Ok(Record::InSyncSet { members }) => Some(members),
                _ => None,
            },
            (FrameKind::Base, Some(&BasePiece::START)) => match self.decode_base() {
                Ok(BasePiece::Start { in_sync, .. }) => Some(in_sync),
                _ => None,
            },
            _ => None,
        }
    }
}

/// The whole length of the frame whose header this is, in bytes, without looking at its checksum.
pub fn peek_header(header: &[u8; FRAME_HEADER_BYTES]) -> Result<usize, FrameError> {
    parse_header(header).map(|header| FRAME_HEADER_BYTES + header.meta_len + header.body_len)
}

fn parse_header(bytes: &[u8; FRAME_HEADER_BYTES]) -> Result<Header, FrameError> {
    let mut fields = &bytes[..];
    let crc = fields.get_u32_le();
    let kind = match fields.get_u8() {
        1 => FrameKind::Record,
        2 => FrameKind::Base,
        other => return Err(FrameError::Header { field: "kind", value: other.into() }),
    };
    let reserved = fields.get_uint_le(3);
    if reserved != 0 {
        return Err(FrameError::Header { field: "reserved part", value: reserved });
    }
    let bounded = |field, value: u32, bound: usize| match value as usize {
        len if len <= bound => Ok(len),
        _ => Err(FrameError::Header { field, value: value.into() }),
    };
    let meta_len = bounded("meta length", fields.get_u32_le(), MAX_META_BYTES)?;
    let body_len = bounded("body length", fields.get_u32_le(), MAX_BODY_BYTES)?;
    let position = Position { epoch: Epoch(fields.get_u64_le()), index: Index(fields.get_u64_le()) };
    Ok(Header { crc, kind, meta_len, body_len, position, committed: Index(fields.get_u64_le()) })
}

fn checksum(head_after_crc: &[u8], body: &Body) -> u32 {
    body.pieces().fold(crc32c::crc32c(head_after_crc), |crc, piece| crc32c::crc32c_append(crc, piece))
}
