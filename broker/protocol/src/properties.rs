//! A message's properties: kept as the bytes they came in, looked at one by one when needed. Most messages are routed and
//! delivered without anything but `delivery_mode` being read.
//!
//! The bytes are a content header's flags and property list (AMQP 4.2.6.1), without class, weight and body size.

use bytes::Bytes;
use understudy_record::ShortStr;

use crate::table::{FieldTable, FieldValue, check_table};
use crate::wire::{DecodeError, Field, Reader, Writer};

/// Raw properties, without a copy. Cloning counts a reference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Properties(Bytes);

/// The same, decoded: for who changes them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BasicProperties {
    pub content_type: Option<ShortStr>,
    pub content_encoding: Option<ShortStr>,
    pub headers: Option<FieldTable>,
    /// 2 is persistent.
    pub delivery_mode: Option<u8>,
    pub priority: Option<u8>,
    pub correlation_id: Option<ShortStr>,
    pub reply_to: Option<ShortStr>,
    /// Milliseconds, in decimal.
    pub expiration: Option<ShortStr>,
    pub message_id: Option<ShortStr>,
    /// Seconds since 1970.
    pub timestamp: Option<u64>,
    /// `type` in the specification.
    pub kind: Option<ShortStr>,
    pub user_id: Option<ShortStr>,
    pub app_id: Option<ShortStr>,
    pub cluster_id: Option<ShortStr>,
}

/// Each property's flag; they are listed from the highest down.
mod flag {
    pub(super) const CONTENT_TYPE: u16 = 1 << 15;
    pub(super) const CONTENT_ENCODING: u16 = 1 << 14;
    pub(super) const HEADERS: u16 = 1 << 13;
    pub(super) const DELIVERY_MODE: u16 = 1 << 12;
    pub(super) const PRIORITY: u16 = 1 << 11;
    pub(super) const CORRELATION_ID: u16 = 1 << 10;
    pub(super) const REPLY_TO: u16 = 1 << 9;
    pub(super) const EXPIRATION: u16 = 1 << 8;
    pub(super) const MESSAGE_ID: u16 = 1 << 7;
    pub(super) const TIMESTAMP: u16 = 1 << 6;
    pub(super) const TYPE: u16 = 1 << 5;
    pub(super) const USER_ID: u16 = 1 << 4;
    pub(super) const APP_ID: u16 = 1 << 3;
    pub(super) const CLUSTER_ID: u16 = 1 << 2;
    /// "More flags follow" and one that nobody has: there are no more than fourteen properties.
    pub(super) const UNKNOWN: u16 = 0b11;
}

const PERSISTENT: u8 = 2;

impl Properties {
    /// None set.
    pub const EMPTY: Self = Self(Bytes::from_static(&[0, 0]));

    /// Checks every octet, so that no later reader finds a malformed one; allocates nothing.
    ///
    /// # Errors
    /// If a property runs past the end, a header's type is unknown, or something follows the last property.
    #[inline]
    pub fn parse(bytes: Bytes) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(&bytes);
        let flags = reader.u16()?;
        if flags & flag::UNKNOWN != 0 {
            return Err(DecodeError::PropertyFlags(flags));
        }
        if flags & !flag::DELIVERY_MODE != 0 {
            let mut property = flag::CONTENT_TYPE;
            while property > flag::UNKNOWN {
                if flags & property != 0 {
                    skip_property(&mut reader, property, check_table)?;
                }
                property >>= 1;
            }
        } else if flags != 0 {
            reader.u8()?;
        }
        reader.finish()?;
        Ok(Self(bytes))
    }

    /// For bytes that were parsed before, like those of a record. What is malformed in them reads as absent.
    pub const fn from_raw(bytes: Bytes) -> Self {
        Self(bytes)
    }

    /// Whether it is worth looking for these two: cheap, and nothing is copied.
    #[inline]
    pub fn may_have_priority_or_expiration(bytes: &[u8]) -> bool {
        const HIGH: u8 = ((flag::PRIORITY | flag::EXPIRATION) >> 8) as u8;
        bytes.first().is_some_and(|flags| flags & HIGH != 0)
    }

    pub const fn as_bytes(&self) -> &Bytes {
        &self.0
    }

    pub fn delivery_mode(&self) -> Option<u8> {
        self.find(flag::DELIVERY_MODE)?.u8().ok()
    }

    pub fn is_persistent(&self) -> bool {
        self.delivery_mode() == Some(PERSISTENT)
    }

    pub fn priority(&self) -> Option<u8> {
        self.find(flag::PRIORITY)?.u8().ok()
    }

    pub fn timestamp(&self) -> Option<u64> {
        self.find(flag::TIMESTAMP)?.u64().ok()
    }

    pub fn has_headers(&self) -> bool {
        self.flags() & flag::HEADERS != 0
    }

    /// Decodes them: allocates.
    pub fn headers(&self) -> Option<FieldTable> {
        FieldTable::read(&mut self.find(flag::HEADERS)?).ok()
    }

    pub fn content_type(&self) -> Option<ShortStr> {
        self.short_str(flag::CONTENT_TYPE)
    }

    pub fn content_encoding(&self) -> Option<ShortStr> {
        self.short_str(flag::CONTENT_ENCODING)
    }

    pub fn correlation_id(&self) -> Option<ShortStr> {
        self.short_str(flag::CORRELATION_ID)
    }

    pub fn reply_to(&self) -> Option<ShortStr> {
        self.short_str(flag::REPLY_TO)
    }

    pub fn expiration(&self) -> Option<ShortStr> {
        self.short_str(flag::EXPIRATION)
    }

    pub fn message_id(&self) -> Option<ShortStr> {
        self.short_str(flag::MESSAGE_ID)
    }

    /// `type` in the specification.
    pub fn kind(&self) -> Option<ShortStr> {
        self.short_str(flag::TYPE)
    }

    pub fn user_id(&self) -> Option<ShortStr> {
        self.short_str(flag::USER_ID)
    }

    pub fn app_id(&self) -> Option<ShortStr> {
        self.short_str(flag::APP_ID)
    }

    pub fn cluster_id(&self) -> Option<ShortStr> {
        self.short_str(flag::CLUSTER_ID)
    }

    pub fn decode(&self) -> BasicProperties {
        BasicProperties {
            content_type: self.content_type(),
            content_encoding: self.content_encoding(),
            headers: self.headers(),
            delivery_mode: self.delivery_mode(),
            priority: self.priority(),
            correlation_id: self.correlation_id(),
            reply_to: self.reply_to(),
            expiration: self.expiration(),
            message_id: self.message_id(),
            timestamp: self.timestamp(),
            kind: self.kind(),
            user_id: self.user_id(),
            app_id: self.app_id(),
            cluster_id: self.cluster_id(),
        }
    }

    /// A copy with this header, in place of one of that name.
    #[must_use]
    pub fn with_header(&self, name: &'static str, value: impl Into<FieldValue>) -> Self {
        let mut properties = self.decode();
        properties.headers.get_or_insert_default().insert(ShortStr::from_static(name), value);
        properties.encode()
    }

    fn flags(&self) -> u16 {
        Reader::new(&self.0).u16().unwrap_or(0)
    }

    fn short_str(&self, wanted: u16) -> Option<ShortStr> {
        self.find(wanted)?.short_str().ok()
    }

    /// A reader at the property with flag `wanted`, if it is set.
    fn find(&self, wanted: u16) -> Option<Reader<'_>> {
        let mut reader = Reader::new(&self.0);
        let flags = reader.u16().ok()?;
        if flags & wanted == 0 {
            return None;
        }
        let mut property = flag::CONTENT_TYPE;
        while property > wanted {
            if flags & property != 0 {
                skip_property(&mut reader, property, skip_table).ok()?;
            }
            property >>= 1;
        }
        Some(reader)
    }
}

impl Default for Properties {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl BasicProperties {
    pub fn encode(&self) -> Properties {
        let mut out = vec![0, 0];
        let mut flags = 0;
        let mut writer = Writer::new(&mut out);
        let mut put = |flag: u16, field: Option<&dyn WriteField>| {
            if let Some(field) = field {
                flags |= flag;
                field.write_to(&mut writer);
            }
        };
        put(flag::CONTENT_TYPE, present(&self.content_type));
        put(flag::CONTENT_ENCODING, present(&self.content_encoding));
        put(flag::HEADERS, present(&self.headers));
        put(flag::DELIVERY_MODE, present(&self.delivery_mode));
        put(flag::PRIORITY, present(&self.priority));
        put(flag::CORRELATION_ID, present(&self.correlation_id));
        put(flag::REPLY_TO, present(&self.reply_to));
        put(flag::EXPIRATION, present(&self.expiration));
        put(flag::MESSAGE_ID, present(&self.message_id));
        put(flag::TIMESTAMP, present(&self.timestamp));
        put(flag::TYPE, present(&self.kind));
        put(flag::USER_ID, present(&self.user_id));
        put(flag::APP_ID, present(&self.app_id));
        put(flag::CLUSTER_ID, present(&self.cluster_id));
        out[..2].copy_from_slice(&flags.to_be_bytes());
        Properties(Bytes::from(out))
    }
}

/// The writing half of [`Field`], which a trait object can have.
trait WriteField {
    fn write_to(&self, writer: &mut Writer<'_>);
}

impl<F: Field> WriteField for F {
    fn write_to(&self, writer: &mut Writer<'_>) {
        self.write(writer);
    }
}

fn present<F: Field>(field: &Option<F>) -> Option<&dyn WriteField> {
    field.as_ref().map(|field| field as &dyn WriteField)
}

type Step = fn(&mut Reader<'_>) -> Result<(), DecodeError>;

/// Passes over one property; `table` says how thoroughly a table.
#[inline]
fn skip_property(reader: &mut Reader<'_>, property: u16, table: Step) -> Result<(), DecodeError> {
    match property {
        flag::HEADERS => table(reader),
        flag::DELIVERY_MODE | flag::PRIORITY => reader.skip(1).map(drop),
        flag::TIMESTAMP => reader.skip(8).map(drop),
        _ => {
            let length = usize::from(reader.u8()?);
            reader.skip(length).map(drop)
        }
    }
}

fn skip_table(reader: &mut Reader<'_>) -> Result<(), DecodeError> {
    let length = usize::try_from(reader.u32()?).map_err(|_| DecodeError::Truncated)?;
    reader.skip(length).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_set() -> BasicProperties {
        let short = |text| Some(ShortStr::from_static(text));
        BasicProperties {
            content_type: short("text/plain"),
            content_encoding: short("gzip"),
            headers: Some(FieldTable::new().with("a", 1i32)),
            delivery_mode: Some(2),
            priority: Some(9),
            correlation_id: short("c"),
            reply_to: short("r"),
            expiration: short("1000"),
            message_id: short("m"),
            timestamp: Some(1_700_000_000),
            kind: short("k"),
            user_id: short("guest"),
            app_id: short("app"),
            cluster_id: short(""),
        }
    }

    #[test]
    fn every_property_is_found_behind_the_others() {
        let properties = Properties::parse(all_set().encode().0).unwrap();
        assert_eq!(properties.decode(), all_set());
        assert!(properties.is_persistent());
        assert_eq!(properties.user_id().unwrap().as_bytes(), b"guest");
    }

    /// The crate `amq-protocol` reads each of our properties, and writes what it read as the same octets.
    #[test]
    fn another_implementation_agrees_octet_for_octet() {
        use amq_protocol::frame::{AMQPFrame, WriteContext, gen_frame, parse_frame};

        let empty = BasicProperties::default();
        let two = BasicProperties { delivery_mode: Some(1), timestamp: Some(u64::MAX), ..Default::default() };
        for properties in [all_set(), empty, two] {
            let raw = properties.encode();
            let payload = [b"\0\x3c\0\0\0\0\0\0\0\0\0\x05", raw.as_bytes().as_ref()].concat();
            let size = u32::try_from(payload.len()).unwrap().to_be_bytes();
            let frame = [&[2, 0, 1][..], &size, &payload, &[0xce]].concat();
            let (rest, theirs) = parse_frame(&frame[..]).unwrap();
            assert!(rest.is_empty());
            let AMQPFrame::Header(1, header) = &theirs else { panic!("{theirs:?}") };
            assert_eq!(*header.properties.delivery_mode(), properties.delivery_mode);
            assert_eq!(*header.properties.timestamp(), properties.timestamp);
            let (written, _) = gen_frame(&theirs)(WriteContext::from(Vec::new())).unwrap().into_inner();
            assert_eq!(written, frame);
        }
    }

    #[test]
    fn a_header_takes_the_place_of_its_namesake_and_leaves_all_else_as_it_was() {
        let with = |value: i64| {
            let headers = FieldTable::new().with("a", 1i32).with("x-count", value);
            BasicProperties { headers: Some(headers), ..all_set() }
        };
        let first = all_set().encode().with_header("x-count", 7i64);
        assert_eq!(first.decode(), with(7));
        assert_eq!(first.with_header("x-count", 8i64).decode(), with(8));
        let headers = Some(FieldTable::new().with("x-count", 1i64));
        let alone = Properties::from_raw(Bytes::new()).with_header("x-count", 1i64);
        assert_eq!(alone.decode(), BasicProperties { headers, ..BasicProperties::default() });
    }

    #[test]
    fn absent_ones_are_absent() {
        let properties = Properties::parse(Properties::EMPTY.0).unwrap();
        assert_eq!(properties.decode(), BasicProperties::default());
        assert_eq!(BasicProperties::default().encode(), Properties::EMPTY);
        let mode_only = BasicProperties { delivery_mode: Some(2), ..Default::default() }.encode();
        assert_eq!(mode_only.as_bytes().as_ref(), [0x10, 0, 2]);
        assert!(Properties::parse(mode_only.0).unwrap().is_persistent());
    }

    #[test]
    fn each_truncation_is_refused_and_reads_as_absent() {
        let whole = all_set().encode().0;
        for end in 0..whole.len() {
            assert!(Properties::parse(whole.slice(..end)).is_err(), "cut at {end}");
            Properties::from_raw(whole.slice(..end)).decode();
        }
        let mut longer = whole.to_vec();
        longer.push(0);
        assert_eq!(Properties::parse(longer.into()), Err(DecodeError::TrailingBytes(1)));
        assert_eq!(Properties::parse(Bytes::from_static(&[0, 1])), Err(DecodeError::PropertyFlags(1)));
    }

    #[test]
    fn a_malformed_header_inside_is_refused_on_receipt() {
        let mut bytes = BasicProperties { headers: Some(FieldTable::new().with("a", true)), ..Default::default() }
            .encode()
            .0
            .to_vec();
        let tag = bytes.len() - 2;
        bytes[tag] = b'U';
        assert_eq!(Properties::parse(bytes.into()), Err(DecodeError::UnknownFieldType(b'U')));
    }
}
