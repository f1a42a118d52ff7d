//! Field tables, with the types RabbitMQ's errata list rather than those of the specification's grammar: `s` is a signed
//! 16-bit integer (not a short string), `b`, `l` and `L` are signed, `B` is unsigned. A decoded table writes the same bytes
//! again, except that a boolean is written as 0 or 1. What a table's entries mean is not known here.

use std::fmt;

use bytes::Bytes;
use understudy_record::ShortStr;

use crate::wire::{DecodeError, Field, Reader, Writer};

/// Tables and arrays inside tables. Real ones nest three or four deep (`x-death` holds tables in an array); the bound keeps
/// a hostile one from the stack's end.
pub const MAX_TABLE_DEPTH: usize = 32;

/// Named values in the order they were written; a name may occur twice, the first one counts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FieldTable(Vec<(ShortStr, FieldValue)>);

/// One value with its wire type.
#[derive(Clone, Debug, PartialEq)]
pub enum FieldValue {
    Bool(bool),
    I8(i8),
    U8(u8),
    I16(i16),
    U16(u16),
    I32(i32),
    U32(u32),
    I64(i64),
    /// The same as `I64` under the specification's own tag, `L`.
    BigI64(i64),
    F32(f32),
    F64(f64),
    Decimal {
        scale: u8,
        value: u32,
    },
    /// A long string, `S`.
    Text(Bytes),
    /// A byte array, `x`.
    Binary(Bytes),
    Array(Vec<FieldValue>),
    /// Seconds since 1970.
    Timestamp(u64),
    Table(FieldTable),
    Void,
}

impl FieldTable {
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Reads a table with its four octets of length in front, all of `bytes`.
    ///
    /// # Errors
    /// If it is malformed or something follows it.
    pub fn from_bytes(bytes: &Bytes) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        let table = Self::read(&mut reader)?;
        reader.finish()?;
        Ok(table)
    }

    /// With its four octets of length in front.
    pub fn to_bytes(&self) -> Bytes {
        let mut out = Vec::new();
        self.write(&mut Writer::new(&mut out));
        Bytes::from(out)
    }

    /// A copy that no longer holds on to the buffer it was read from: for what is kept long.
    #[must_use]
    pub fn detached(&self) -> Self {
        Self::from_bytes(&self.to_bytes()).unwrap_or_else(|_| self.clone())
    }

    pub fn get(&self, name: &str) -> Option<&FieldValue> {
        self.0.iter().find(|(key, _)| key.as_bytes() == name.as_bytes()).map(|(_, value)| value)
    }

    pub fn contains(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// Sets `name` to `value`, in the place it had or at the end.
    pub fn insert(&mut self, name: ShortStr, value: impl Into<FieldValue>) {
        let value = value.into();
        match self.0.iter_mut().find(|(key, _)| *key == name) {
            Some((_, old)) => *old = value,
            None => self.0.push((name, value)),
        }
    }

    /// [`Self::insert`] for names known at compile time, to be chained.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Into<FieldValue>) -> Self {
        self.insert(ShortStr::from_static(name), value);
        self
    }

    pub fn remove(&mut self, name: &str) -> Option<FieldValue> {
        let place = self.0.iter().position(|(key, _)| key.as_bytes() == name.as_bytes())?;
        Some(self.0.remove(place).1)
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&ShortStr, &FieldValue)> {
        self.0.iter().map(|(name, value)| (name, value))
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn read_nested(reader: &mut Reader<'_>, depth: usize) -> Result<Self, DecodeError> {
        let mut entries = nested(reader, depth)?;
        let mut table = Self::new();
        while entries.remaining() > 0 {
            let name = entries.short_str()?;
            table.0.push((name, FieldValue::read_nested(&mut entries, depth)?));
        }
        Ok(table)
    }
}

impl FromIterator<(ShortStr, FieldValue)> for FieldTable {
    fn from_iter<I: IntoIterator<Item = (ShortStr, FieldValue)>>(entries: I) -> Self {
        Self(entries.into_iter().collect())
    }
}

impl Field for FieldTable {
    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Self::read_nested(reader, 1)
    }

    fn write(&self, writer: &mut Writer<'_>) {
        writer.with_length(|writer| {
            for (name, value) in &self.0 {
                writer.short_str(name);
                value.write(writer);
            }
        });
    }
}

impl FieldValue {
    pub fn as_bool(&self) -> Option<bool> {
        match self {
            Self::Bool(value) => Some(*value),
            _ => None,
        }
    }

    /// The value of any of the integer types.
    pub fn as_int(&self) -> Option<i64> {
        match *self {
            Self::I8(value) => Some(value.into()),
            Self::U8(value) => Some(value.into()),
            Self::I16(value) => Some(value.into()),
            Self::U16(value) => Some(value.into()),
            Self::I32(value) => Some(value.into()),
            Self::U32(value) => Some(value.into()),
            Self::I64(value) | Self::BigI64(value) => Some(value),
            _ => None,
        }
    }

    /// Of a long string or a byte array.
    pub fn as_bytes(&self) -> Option<&Bytes> {
        match self {
            Self::Text(bytes) | Self::Binary(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// Of a long string that is UTF-8.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::Text(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        }
    }

    pub fn as_table(&self) -> Option<&FieldTable> {
        match self {
            Self::Table(table) => Some(table),
            _ => None,
        }
    }

    pub fn as_array(&self) -> Option<&[FieldValue]> {
        match self {
            Self::Array(values) => Some(values),
            _ => None,
        }
    }

    /// As RabbitMQ's error texts name it: "received '1' of type 'signedint'".
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::Bool(_) => "bool",
            Self::I8(_) => "byte",
            Self::U8(_) => "unsignedbyte",
            Self::I16(_) => "short",
            Self::U16(_) => "unsignedshort",
            Self::I32(_) => "signedint",
            Self::U32(_) => "unsignedint",
            Self::I64(_) | Self::BigI64(_) => "long",
            Self::F32(_) => "float",
            Self::F64(_) => "double",
            Self::Decimal { .. } => "decimal",
            Self::Text(_) => "longstr",
            Self::Binary(_) => "binary",
            Self::Array(_) => "array",
            Self::Timestamp(_) => "timestamp",
            Self::Table(_) => "table",
            Self::Void => "void",
        }
    }

    fn read_nested(reader: &mut Reader<'_>, depth: usize) -> Result<Self, DecodeError> {
        Ok(match reader.u8()? {
            b't' => Self::Bool(reader.u8()? != 0),
            b'b' => Self::I8(reader.u8()?.cast_signed()),
            b'B' => Self::U8(reader.u8()?),
            b's' => Self::I16(reader.u16()?.cast_signed()),
            b'u' => Self::U16(reader.u16()?),
            b'I' => Self::I32(reader.u32()?.cast_signed()),
            b'i' => Self::U32(reader.u32()?),
            b'l' => Self::I64(reader.u64()?.cast_signed()),
            b'L' => Self::BigI64(reader.u64()?.cast_signed()),
            b'f' => Self::F32(f32::from_bits(reader.u32()?)),
            b'd' => Self::F64(f64::from_bits(reader.u64()?)),
            b'D' => Self::Decimal { scale: reader.u8()?, value: reader.u32()? },
            b'S' => Self::Text(reader.long_str()?),
            b'x' => Self::Binary(reader.long_str()?),
            b'A' => {
                let mut items = nested(reader, depth + 1)?;
                let mut values = Vec::new();
                while items.remaining() > 0 {
                    values.push(Self::read_nested(&mut items, depth + 1)?);
                }
                Self::Array(values)
            }
            b'T' => Self::Timestamp(reader.u64()?),
            b'F' => Self::Table(FieldTable::read_nested(reader, depth + 1)?),
            b'V' => Self::Void,
            tag => return Err(DecodeError::UnknownFieldType(tag)),
        })
    }

    fn write(&self, writer: &mut Writer<'_>) {
        match self {
            Self::Bool(value) => writer.bytes(&[b't', u8::from(*value)]),
            Self::I8(value) => writer.bytes(&[b'b', value.cast_unsigned()]),
            Self::U8(value) => writer.bytes(&[b'B', *value]),
            Self::I16(value) => tagged(writer, b's', &value.to_be_bytes()),
            Self::U16(value) => tagged(writer, b'u', &value.to_be_bytes()),
            Self::I32(value) => tagged(writer, b'I', &value.to_be_bytes()),
            Self::U32(value) => tagged(writer, b'i', &value.to_be_bytes()),
            Self::I64(value) => tagged(writer, b'l', &value.to_be_bytes()),
            Self::BigI64(value) => tagged(writer, b'L', &value.to_be_bytes()),
            Self::F32(value) => tagged(writer, b'f', &value.to_bits().to_be_bytes()),
            Self::F64(value) => tagged(writer, b'd', &value.to_bits().to_be_bytes()),
            Self::Decimal { scale, value } => {
                writer.bytes(&[b'D', *scale]);
                writer.bytes(&value.to_be_bytes());
            }
            Self::Text(bytes) => {
                writer.bytes(b"S");
                writer.long_bytes(bytes);
            }
            Self::Binary(bytes) => {
                writer.bytes(b"x");
                writer.long_bytes(bytes);
            }
            Self::Array(values) => {
                writer.bytes(b"A");
                writer.with_length(|writer| values.iter().for_each(|value| value.write(writer)));
            }
            Self::Timestamp(value) => tagged(writer, b'T', &value.to_be_bytes()),
            Self::Table(table) => {
                writer.bytes(b"F");
                table.write(writer);
            }
            Self::Void => writer.bytes(b"V"),
        }
    }
}

/// Passes over a table, checking all of it, building nothing.
pub(crate) fn check_table(reader: &mut Reader<'_>) -> Result<(), DecodeError> {
    check_entries(reader, 1)
}

fn check_entries(reader: &mut Reader<'_>, depth: usize) -> Result<(), DecodeError> {
    let mut entries = nested(reader, depth)?;
    while entries.remaining() > 0 {
        let length = usize::from(entries.u8()?);
        entries.skip(length)?;
        check_value(&mut entries, depth)?;
    }
    Ok(())
}

fn check_value(reader: &mut Reader<'_>, depth: usize) -> Result<(), DecodeError> {
    let size = match reader.u8()? {
        b'V' => 0,
        b't' | b'b' | b'B' => 1,
        b's' | b'u' => 2,
        b'I' | b'i' | b'f' => 4,
        b'D' => 5,
        b'l' | b'L' | b'd' | b'T' => 8,
        b'S' | b'x' => usize::try_from(reader.u32()?).map_err(|_| DecodeError::Truncated)?,
        b'F' => return check_entries(reader, depth + 1),
        b'A' => {
            let mut items = nested(reader, depth + 1)?;
            while items.remaining() > 0 {
                check_value(&mut items, depth + 1)?;
            }
            0
        }
        tag => return Err(DecodeError::UnknownFieldType(tag)),
    };
    reader.skip(size).map(drop)
}

/// What is inside the next table or array.
fn nested<'a>(reader: &mut Reader<'a>, depth: usize) -> Result<Reader<'a>, DecodeError> {
    if depth > MAX_TABLE_DEPTH {
        return Err(DecodeError::TooDeep);
    }
    let length = usize::try_from(reader.u32()?).map_err(|_| DecodeError::Truncated)?;
    reader.split(length)
}

fn tagged(writer: &mut Writer<'_>, tag: u8, value: &[u8]) {
    writer.bytes(&[tag]);
    writer.bytes(value);
}

macro_rules! into_field_value {
    ($($from:ty => $variant:ident),* $(,)?) => {
        $(impl From<$from> for FieldValue {
            fn from(value: $from) -> Self {
                Self::$variant(value)
            }
        })*
    };
}
into_field_value!(
    bool => Bool, i8 => I8, u8 => U8, i16 => I16, u16 => U16, i32 => I32, u32 => U32, i64 => I64, f32 => F32, f64 => F64,
    Bytes => Text, Vec<FieldValue> => Array, FieldTable => Table,
);

impl From<&str> for FieldValue {
    fn from(text: &str) -> Self {
        Self::Text(Bytes::copy_from_slice(text.as_bytes()))
    }
}

impl From<ShortStr> for FieldValue {
    fn from(text: ShortStr) -> Self {
        Self::Text(text.bytes().clone())
    }
}

/// For error texts and logs.
impl fmt::Display for FieldValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool(value) => write!(f, "{value}"),
            Self::F32(value) => write!(f, "{value:?}"),
            Self::F64(value) => write!(f, "{value:?}"),
            Self::Decimal { scale, value } => write!(f, "{value}e-{scale}"),
            Self::Text(bytes) => f.write_str(&String::from_utf8_lossy(bytes)),
            Self::Binary(bytes) => write!(f, "{} octets", bytes.len()),
            Self::Timestamp(value) => write!(f, "{value}"),
            Self::Void => f.write_str("undefined"),
            Self::Array(values) => {
                f.write_str("[")?;
                for (place, value) in values.iter().enumerate() {
                    write!(f, "{}{value}", if place == 0 { "" } else { "," })?;
                }
                f.write_str("]")
            }
            Self::Table(table) => {
                f.write_str("{")?;
                for (place, (name, value)) in table.iter().enumerate() {
                    write!(f, "{}{name}={value}", if place == 0 { "" } else { "," })?;
                }
                f.write_str("}")
            }
            integer => write!(f, "{}", integer.as_int().unwrap_or_default()),
        }
    }
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
