//! Little-endian fields in a run of bytes: the reader that refuses instead of panicking, and its writer.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::record::RecordError;
use crate::{Epoch, Identity, Index, Member, Position, ProcessId, QueueId, ReplicaName, ShortStr, StoreId, VhostId};

/// Reads fields from the front; every method refuses when the bytes run out.
#[derive(Debug)]
pub(crate) struct Reader(pub(crate) Bytes);

impl Reader {
    pub(crate) fn u8(&mut self) -> Result<u8, RecordError> {
        self.need(1)?;
        Ok(self.0.get_u8())
    }

    pub(crate) fn u32(&mut self) -> Result<u32, RecordError> {
        self.need(4)?;
        Ok(self.0.get_u32_le())
    }

    pub(crate) fn u64(&mut self) -> Result<u64, RecordError> {
        self.need(8)?;
        Ok(self.0.get_u64_le())
    }

    pub(crate) fn u128(&mut self) -> Result<u128, RecordError> {
        self.need(16)?;
        Ok(self.0.get_u128_le())
    }

    pub(crate) fn bool(&mut self) -> Result<bool, RecordError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(RecordError::Malformed { what: "boolean", value: other.into() }),
        }
    }

    pub(crate) fn bytes(&mut self) -> Result<Bytes, RecordError> {
        let len = self.u32()? as usize;
        self.need(len)?;
        Ok(self.0.split_to(len))
    }

    pub(crate) fn short(&mut self) -> Result<ShortStr, RecordError> {
        let len = usize::from(self.u8()?);
        self.need(len)?;
        ShortStr::new(self.0.split_to(len)).ok_or(RecordError::Malformed { what: "short string", value: len as u64 })
    }

    /// Seven bits a byte, the lowest first.
    pub(crate) fn varint(&mut self) -> Result<u64, RecordError> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = u64::from(self.u8()?);
            let bits = byte & 0x7f;
            if (shift == 63 && bits > 1) || (shift > 0 && byte == 0) {
                return Err(RecordError::Malformed { what: "number's last byte", value: byte });
            }
            value |= bits << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(RecordError::Malformed { what: "number of more than ten bytes", value })
    }

    /// A list's length, refused if the bytes left cannot hold that many items of `item_bytes` each: no allocation on the
    /// word of a damaged count.
    pub(crate) fn count(&mut self, item_bytes: usize) -> Result<usize, RecordError> {
        let count = self.u32()? as usize;
        self.need(count.saturating_mul(item_bytes))?;
        Ok(count)
    }

    pub(crate) fn index(&mut self) -> Result<Index, RecordError> {
        self.u64().map(Index)
    }

    pub(crate) fn queue(&mut self) -> Result<QueueId, RecordError> {
        self.index().map(QueueId)
    }

    /// A virtual host other than the default one, with something in it of which `may_follow` knows the tag.
    pub(crate) fn other_vhost(&mut self, may_follow: impl FnOnce(u8) -> bool) -> Result<VhostId, RecordError> {
        let vhost = self.vhost()?;
        if vhost == VhostId::DEFAULT {
            return Err(RecordError::Malformed { what: "virtual host", value: 0 });
        }
        match self.0.first() {
            Some(tag) if may_follow(*tag) => Ok(vhost),
            Some(tag) => Err(RecordError::Malformed { what: "kind in a virtual host", value: (*tag).into() }),
            None => Err(RecordError::Short { needed: 1, left: 0 }),
        }
    }

    pub(crate) fn indexes(&mut self) -> Result<Vec<Index>, RecordError> {
        (0..self.count(8)?).map(|_| self.index()).collect()
    }

    pub(crate) fn queues(&mut self) -> Result<Vec<QueueId>, RecordError> {
        (0..self.count(8)?).map(|_| self.queue()).collect()
    }

    pub(crate) fn position(&mut self) -> Result<Position, RecordError> {
        Ok(Position { epoch: Epoch(self.u64()?), index: self.index()? })
    }

    pub(crate) fn name(&mut self) -> Result<ReplicaName, RecordError> {
        let name = self.short()?;
        match std::str::from_utf8(name.as_bytes()) {
            Ok(text) => Ok(ReplicaName::new(text)),
            Err(_) => Err(RecordError::Malformed { what: "replica name", value: 0 }),
        }
    }

    pub(crate) fn identity(&mut self) -> Result<Identity, RecordError> {
        Ok(Identity { name: self.name()?, store: StoreId(self.u128()?), process: ProcessId(self.u64()?) })
    }

    pub(crate) fn member(&mut self) -> Result<Member, RecordError> {
        let (name, store) = (self.name()?, StoreId(self.u128()?));
        let process = if self.bool()? { Some(ProcessId(self.u64()?)) } else { None };
        Ok(Member { name, store, process })
    }

    pub(crate) fn members(&mut self) -> Result<Vec<Member>, RecordError> {
        (0..self.count(18)?).map(|_| self.member()).collect()
    }

    /// Everything must have been read: what is left over was written by something this version does not know.
    pub(crate) fn finish(self) -> Result<(), RecordError> {
        if self.0.is_empty() { Ok(()) } else { Err(RecordError::LeftOver { bytes: self.0.len() }) }
    }

    fn need(&self, bytes: usize) -> Result<(), RecordError> {
        if self.0.len() < bytes {
            return Err(RecordError::Short { needed: bytes, left: self.0.len() });
        }
        Ok(())
    }
}

/// Appends fields.
#[derive(Debug)]
pub(crate) struct Writer<'a>(pub(crate) &'a mut BytesMut);

impl Writer<'_> {
    pub(crate) fn u8(&mut self, value: u8) -> &mut Self {
        self.0.put_u8(value);
        self
    }

    pub(crate) fn u32(&mut self, value: u32) -> &mut Self {
        self.0.put_u32_le(value);
        self
    }

    pub(crate) fn u64(&mut self, value: u64) -> &mut Self {
        self.0.put_u64_le(value);
        self
    }

    pub(crate) fn bool(&mut self, value: bool) -> &mut Self {
        self.u8(value.into())
    }

    pub(crate) fn varint(&mut self, mut value: u64) -> &mut Self {
        while value >= 0x80 {
            self.0.put_u8(value as u8 | 0x80);
            value >>= 7;
        }
        self.u8(value as u8)
    }

    pub(crate) fn bytes(&mut self, value: &[u8]) -> &mut Self {
        let len = u32::try_from(value.len()).expect("a field of a record is far below 4 GiB (frame bounds)");
        self.u32(len).0.put_slice(value);
        self
    }

    pub(crate) fn short(&mut self, value: &[u8]) -> &mut Self {
        let len = u8::try_from(value.len()).expect("short strings and replica names hold at most 255 bytes");
        self.u8(len).0.put_slice(value);
        self
    }

    pub(crate) fn list<T>(&mut self, items: &[T], mut write: impl FnMut(&mut Self, &T)) -> &mut Self {
        self.u32(u32::try_from(items.len()).expect("a list in a record is far below 2^32 (frame bounds)"));
        items.iter().for_each(|item| write(self, item));
        self
    }

    pub(crate) fn indexes(&mut self, items: &[Index]) -> &mut Self {
        self.list(items, |w, index| _ = w.u64(index.0))
    }

    pub(crate) fn queues(&mut self, items: &[QueueId]) -> &mut Self {
        self.list(items, |w, queue| _ = w.u64(queue.0.0))
    }

    pub(crate) fn position(&mut self, position: Position) -> &mut Self {
        self.u64(position.epoch.0).u64(position.index.0)
    }

    pub(crate) fn identity(&mut self, identity: &Identity) -> &mut Self {
        self.short(identity.name.as_str().as_bytes()).u128(identity.store.0).u64(identity.process.0)
    }

    pub(crate) fn members(&mut self, members: &[Member]) -> &mut Self {
        self.list(members, |w, member| {
            w.short(member.name.as_str().as_bytes()).u128(member.store.0).bool(member.process.is_some());
            if let Some(process) = member.process {
                w.u64(process.0);
            }
        })
    }

    pub(crate) fn u128(&mut self, value: u128) -> &mut Self {
        self.0.put_u128_le(value);
        self
    }
}
