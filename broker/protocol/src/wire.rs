//! The primitive fields of a frame's payload, read as slices of the buffer they came in and written to a `Vec`. Knows
//! integers, bits, short and long strings; tables are built on it in `table`, methods in `method`.

use bytes::Bytes;
use understudy_record::ShortStr;

use crate::ids::{DeliveryTag, MethodId};
use crate::reply::ReplyCode;

/// What is wrong with the payload of a frame that was itself well formed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    #[error("a field runs past the end of its frame")]
    Truncated,
    #[error("{0} octets after the last field")]
    TrailingBytes(usize),
    #[error("unknown table field type {0:#04x}")]
    UnknownFieldType(u8),
    #[error("a table nested more than {} deep", crate::table::MAX_TABLE_DEPTH)]
    TooDeep,
    #[error("property flags {0:#06x} name properties that do not exist")]
    PropertyFlags(u16),
    #[error("unknown method {0}")]
    UnknownMethod(MethodId),
}

impl DecodeError {
    pub fn reply_code(&self) -> ReplyCode {
        match self {
            Self::UnknownMethod(_) => ReplyCode::CommandInvalid,
            _ => ReplyCode::SyntaxError,
        }
    }
}

/// Reads fields from a part of a buffer, never past that part's end.
#[derive(Clone, Debug)]
pub(crate) struct Reader<'a> {
    bytes: &'a Bytes,
    at: usize,
    end: usize,
    bits: u8,
    /// How many of `bits` are still to be read.
    bits_left: u8,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a Bytes) -> Self {
        Self::part(bytes, 0, bytes.len())
    }

    /// Reads `bytes[start..end]`.
    pub(crate) fn part(bytes: &'a Bytes, start: usize, end: usize) -> Self {
        debug_assert!(start <= end && end <= bytes.len(), "part {start}..{end} of {} bytes", bytes.len());
        Self { bytes, at: start, end, bits: 0, bits_left: 0 }
    }

    pub(crate) fn remaining(&self) -> usize {
        self.end - self.at
    }

    /// Passes over `count` bytes and says where they started.
    #[inline]
    pub(crate) fn skip(&mut self, count: usize) -> Result<usize, DecodeError> {
        if count > self.remaining() {
            return Err(DecodeError::Truncated);
        }
        self.bits_left = 0;
        self.at += count;
        Ok(self.at - count)
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let start = self.skip(N)?;
        self.bytes.get(start..start + N).and_then(|slice| slice.try_into().ok()).ok_or(DecodeError::Truncated)
    }

    #[inline]
    pub(crate) fn slice(&mut self, count: usize) -> Result<Bytes, DecodeError> {
        let start = self.skip(count)?;
        // An empty slice would still hold on to the buffer.
        Ok(if count == 0 { Bytes::new() } else { self.bytes.slice(start..start + count) })
    }

    #[inline]
    pub(crate) fn u8(&mut self) -> Result<u8, DecodeError> {
        self.array().map(u8::from_be_bytes)
    }

    #[inline]
    pub(crate) fn u16(&mut self) -> Result<u16, DecodeError> {
        self.array().map(u16::from_be_bytes)
    }

    #[inline]
    pub(crate) fn u32(&mut self) -> Result<u32, DecodeError> {
        self.array().map(u32::from_be_bytes)
    }

    #[inline]
    pub(crate) fn u64(&mut self) -> Result<u64, DecodeError> {
        self.array().map(u64::from_be_bytes)
    }

    /// Consecutive bits share an octet, the first in its lowest bit (AMQP 4.2.5.2).
    #[inline]
    fn bit(&mut self) -> Result<bool, DecodeError> {
        if self.bits_left == 0 {
            self.bits = self.u8()?;
            self.bits_left = 8;
        }
        let bit = self.bits & 1 == 1;
        self.bits >>= 1;
        self.bits_left -= 1;
        Ok(bit)
    }

    #[inline]
    pub(crate) fn short_str(&mut self) -> Result<ShortStr, DecodeError> {
        let length = self.u8()?;
        let bytes = self.slice(usize::from(length))?;
        Ok(ShortStr::new(bytes).expect("its length was an octet"))
    }

    #[inline]
    pub(crate) fn long_str(&mut self) -> Result<Bytes, DecodeError> {
        let length = self.u32()?;
        self.slice(usize::try_from(length).map_err(|_| DecodeError::Truncated)?)
    }

    /// The next `count` bytes as a reader of their own.
    pub(crate) fn split(&mut self, count: usize) -> Result<Self, DecodeError> {
        let start = self.skip(count)?;
        Ok(Self::part(self.bytes, start, start + count))
    }

    pub(crate) fn finish(&self) -> Result<(), DecodeError> {
        match self.remaining() {
            0 => Ok(()),
            count => Err(DecodeError::TrailingBytes(count)),
        }
    }
}

/// Appends fields to a buffer.
#[derive(Debug)]
pub(crate) struct Writer<'a> {
    pub(crate) out: &'a mut Vec<u8>,
    /// Bits written into the last octet; 0 or 8: the next bit starts an octet.
    bits: u8,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(out: &'a mut Vec<u8>) -> Self {
        Self { out, bits: 0 }
    }

    #[inline]
    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.bits = 0;
        self.out.extend_from_slice(bytes);
    }

    #[inline]
    fn bit(&mut self, bit: bool) {
        if self.bits.is_multiple_of(8) {
            self.bytes(&[0]);
        }
        if let Some(last) = self.out.last_mut() {
            *last |= u8::from(bit) << self.bits;
        }
        self.bits = (self.bits + 1) % 8;
    }

    #[inline]
    pub(crate) fn short_str(&mut self, text: &ShortStr) {
        self.short_bytes(text.as_bytes());
    }

    /// At most 255 of `bytes`: callers hold short strings, the cut only keeps the frame well formed.
    #[inline]
    pub(crate) fn short_bytes(&mut self, bytes: &[u8]) {
        let cut = &bytes[..bytes.len().min(ShortStr::MAX_BYTES)];
        #[expect(clippy::cast_possible_truncation, reason = "cut to 255")]
        self.bytes(&[cut.len() as u8]);
        self.out.extend_from_slice(cut);
    }

    /// # Panics
    /// If `bytes` are 4 GiB or more: whoever made them broke the bounds on messages and tables.
    pub(crate) fn long_bytes(&mut self, bytes: &[u8]) {
        let length = u32::try_from(bytes.len()).expect("a long string under 4 GiB");
        self.bytes(&length.to_be_bytes());
        self.out.extend_from_slice(bytes);
    }

    /// Writes a length before what `write` writes.
    ///
    /// # Panics
    /// As [`Writer::long_bytes`].
    pub(crate) fn with_length(&mut self, write: impl FnOnce(&mut Writer<'_>)) {
        self.bytes(&[0; 4]);
        let start = self.out.len();
        write(self);
        let length = u32::try_from(self.out.len() - start).expect("a table under 4 GiB");
        self.out[start - 4..start].copy_from_slice(&length.to_be_bytes());
        self.bits = 0;
    }
}

/// One argument of a method.
pub(crate) trait Field: Sized {
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError>;
    fn write(&self, writer: &mut Writer<'_>);
}

macro_rules! integer_fields {
    ($($int:ident),*) => {
        $(impl Field for $int {
            #[inline]
            fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
                reader.$int()
            }
            #[inline]
            fn write(&self, writer: &mut Writer<'_>) {
                writer.bytes(&self.to_be_bytes());
            }
        })*
    };
}
integer_fields!(u8, u16, u32, u64);

impl Field for DeliveryTag {
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        reader.u64().map(Self)
    }
    fn write(&self, writer: &mut Writer<'_>) {
        self.0.write(writer);
    }
}

impl Field for bool {
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        reader.bit()
    }
    fn write(&self, writer: &mut Writer<'_>) {
        writer.bit(*self);
    }
}

impl Field for ShortStr {
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        reader.short_str()
    }
    fn write(&self, writer: &mut Writer<'_>) {
        writer.short_str(self);
    }
}

/// A long string.
impl Field for Bytes {
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        reader.long_str()
    }
    fn write(&self, writer: &mut Writer<'_>) {
        writer.long_bytes(self);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nine_bits_take_two_octets_and_a_number_ends_them() {
        let mut out = Vec::new();
        let mut writer = Writer::new(&mut out);
        for bit in [true, false, true, false, false, false, false, true, true] {
            bit.write(&mut writer);
        }
        7u8.write(&mut writer);
        true.write(&mut writer);
        assert_eq!(out, [0b1000_0101, 1, 7, 1]);

        let bytes = Bytes::from(out);
        let mut reader = Reader::new(&bytes);
        let bits: Vec<bool> = (0..9).map(|_| bool::read(&mut reader).unwrap()).collect();
        assert_eq!(bits, [true, false, true, false, false, false, false, true, true]);
        assert_eq!(reader.u8(), Ok(7));
        assert_eq!(bool::read(&mut reader), Ok(true));
        assert_eq!(reader.finish(), Ok(()));
    }

    #[test]
    fn nothing_is_read_past_the_end_of_a_part() {
        let bytes = Bytes::from_static(b"\x05abcde");
        assert_eq!(Reader::part(&bytes, 0, 5).short_str(), Err(DecodeError::Truncated));
        assert_eq!(Reader::new(&bytes).short_str().unwrap().as_bytes(), b"abcde");
        assert_eq!(Reader::new(&bytes).u64(), Err(DecodeError::Truncated));
        assert_eq!(Reader::new(&bytes).finish(), Err(DecodeError::TrailingBytes(6)));
    }
}
