//! Messages on the wire: a method that carries content, then a header frame, then body frames. Here are the messages as
//! both sides see them, and the assembly of one from its frames, channel by channel. No frame is copied, except body
//! frames so small that holding on to each would cost more than the octets.

use bytes::{Bytes, BytesMut};
use understudy_record::{Body, ShortStr};

use crate::frame::{Frame, FrameKind};
use crate::ids::{DeliveryTag, MethodId};
use crate::method::{basic, write_id};
use crate::properties::Properties;
use crate::reply::{ReplyCode, short_str_cut};
use crate::wire::{DecodeError, Field, Reader, Writer};

/// A message as a publisher sent it. All parts are slices of the read buffer: `ShortStr::detached` what is kept long. Of a
/// long body, what stood before `body` has come as parts.
#[derive(Clone, Debug, PartialEq)]
pub struct Publish {
    pub exchange: ShortStr,
    pub routing_key: ShortStr,
    pub mandatory: bool,
    pub immediate: bool,
    pub properties: Properties,
    pub body: Body,
}

/// A message as a consumer received it.
#[derive(Clone, Debug, PartialEq)]
pub struct Delivery {
    pub consumer_tag: ShortStr,
    pub delivery_tag: DeliveryTag,
    pub redelivered: bool,
    pub exchange: ShortStr,
    pub routing_key: ShortStr,
    pub properties: Properties,
    pub body: Body,
}

/// A message that came back to its publisher.
#[derive(Clone, Debug, PartialEq)]
pub struct Return {
    pub code: u16,
    pub text: ShortStr,
    pub exchange: ShortStr,
    pub routing_key: ShortStr,
    pub properties: Properties,
    pub body: Body,
}

/// A message that `basic.get` got.
#[derive(Clone, Debug, PartialEq)]
pub struct GotMessage {
    pub delivery_tag: DeliveryTag,
    pub redelivered: bool,
    pub exchange: ShortStr,
    pub routing_key: ShortStr,
    pub message_count: u32,
    pub properties: Properties,
    pub body: Body,
}

/// A message to publish. `properties` are raw; empty stands for none.
#[derive(Clone, Copy, Debug)]
pub struct PublishRef<'a> {
    pub exchange: &'a [u8],
    pub routing_key: &'a [u8],
    pub mandatory: bool,
    pub properties: &'a [u8],
    pub body: &'a Body,
}

/// A message to deliver to a consumer.
#[derive(Clone, Copy, Debug)]
pub struct DeliverRef<'a> {
    pub consumer_tag: &'a ShortStr,
    pub delivery_tag: DeliveryTag,
    pub redelivered: bool,
    pub exchange: &'a ShortStr,
    pub routing_key: &'a ShortStr,
    pub properties: &'a [u8],
    pub body: &'a Body,
}

/// A message to send back to its publisher. The text is sent as it is: RabbitMQ says `NO_ROUTE`.
#[derive(Clone, Copy, Debug)]
pub struct ReturnRef<'a> {
    pub code: ReplyCode,
    pub text: &'a str,
    pub exchange: &'a ShortStr,
    pub routing_key: &'a ShortStr,
    pub properties: &'a [u8],
    pub body: &'a Body,
}

/// A message that answers `basic.get`.
#[derive(Clone, Copy, Debug)]
pub struct GetOkRef<'a> {
    pub delivery_tag: DeliveryTag,
    pub redelivered: bool,
    pub exchange: &'a ShortStr,
    pub routing_key: &'a ShortStr,
    pub message_count: u32,
    pub properties: &'a [u8],
    pub body: &'a Body,
}

/// The method before the content, written without building it first.
pub(crate) trait ContentHead {
    fn write_method(&self, writer: &mut Writer<'_>);
}

impl ContentHead for PublishRef<'_> {
    #[inline]
    fn write_method(&self, writer: &mut Writer<'_>) {
        write_id(writer, basic::Publish::ID);
        0u16.write(writer);
        writer.short_bytes(self.exchange);
        writer.short_bytes(self.routing_key);
        self.mandatory.write(writer);
        false.write(writer);
    }
}

impl ContentHead for DeliverRef<'_> {
    #[inline]
    fn write_method(&self, writer: &mut Writer<'_>) {
        write_id(writer, basic::Deliver::ID);
        writer.short_str(self.consumer_tag);
        self.delivery_tag.write(writer);
        self.redelivered.write(writer);
        writer.short_str(self.exchange);
        writer.short_str(self.routing_key);
    }
}

impl ContentHead for ReturnRef<'_> {
    fn write_method(&self, writer: &mut Writer<'_>) {
        write_id(writer, basic::Return::ID);
        self.code.number().write(writer);
        short_str_cut(self.text).write(writer);
        writer.short_str(self.exchange);
        writer.short_str(self.routing_key);
    }
}

impl ContentHead for GetOkRef<'_> {
    fn write_method(&self, writer: &mut Writer<'_>) {
        write_id(writer, basic::GetOk::ID);
        self.delivery_tag.write(writer);
        self.redelivered.write(writer);
        writer.short_str(self.exchange);
        writer.short_str(self.routing_key);
        self.message_count.write(writer);
    }
}

/// Body frames smaller than this are gathered by copying: a message sent an octet a frame must not cost forty octets of
/// bookkeeping for each.
const GATHER_BYTES: usize = 1024;

/// Where one channel stands between a content method and the last octet of its body.
#[derive(Debug, Default)]
pub(crate) enum Assembly<M> {
    #[default]
    Idle,
    /// The method came, the header is next.
    Header(M),
    Body(Box<PartialContent<M>>),
}

#[derive(Debug)]
pub(crate) struct PartialContent<M> {
    head: M,
    properties: Properties,
    body: Body,
    /// Small pieces, after `body`.
    gathered: BytesMut,
    /// Octets in these two.
    held: usize,
    /// Octets at which what is held is a part, unless it is the last.
    part_bytes: usize,
    /// Octets the header announced.
    size: u64,
    /// Octets of body still to come, at least 1.
    left: u64,
}

/// What a body may be, in octets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BodyLimits {
    pub(crate) max: u64,
    /// A longer body comes in parts.
    pub(crate) whole: u64,
    pub(crate) part: usize,
}

impl BodyLimits {
    /// Whatever comes, in one piece.
    pub(crate) const NONE: Self = Self { max: u64::MAX, whole: u64::MAX, part: usize::MAX };
}

/// A whole message: its method, properties and body.
pub(crate) type Content<M> = (M, Properties, Body);

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ContentError {
    #[error("{0}")]
    Unexpected(&'static str),
    #[error("content header for class {0}, only class 60 has content")]
    WrongClass(u16),
    #[error(transparent)]
    Malformed(#[from] DecodeError),
    #[error("message size {size} is larger than configured max size {max}")]
    TooLarge { size: u64, max: u64 },
}

impl ContentError {
    pub(crate) fn reply_code(&self) -> ReplyCode {
        match self {
            Self::Unexpected(_) | Self::WrongClass(_) => ReplyCode::UnexpectedFrame,
            Self::Malformed(error) => error.reply_code(),
            Self::TooLarge { .. } => ReplyCode::PreconditionFailed,
        }
    }
}

impl<M> Assembly<M> {
    pub(crate) fn is_idle(&self) -> bool {
        matches!(self, Self::Idle)
    }

    /// Octets of body held for a message that is not whole yet.
    pub(crate) fn held_bytes(&self) -> usize {
        match self {
            Self::Idle | Self::Header(_) => 0,
            Self::Body(partial) => partial.held,
        }
    }

    /// Something of a body has come, and not all of it.
    pub(crate) fn is_amid_body(&self) -> bool {
        matches!(self, Self::Body(partial) if partial.left < partial.size)
    }

    /// Takes a header or body frame. Parts of a long body go to `parts` as they become full, and what follows the last of
    /// them is the content's body; without any, the body is whole. After an error the assembly is idle.
    pub(crate) fn take(
        &mut self,
        bytes: &Bytes,
        frame: Frame,
        limits: &BodyLimits,
        parts: &mut Vec<Body>,
    ) -> Result<Option<Content<M>>, ContentError> {
        match (std::mem::take(self), frame.kind) {
            (Self::Header(head), FrameKind::Header) => {
                let (size, properties) = read_header(bytes, frame, limits.max)?;
                if size == 0 {
                    return Ok(Some((head, properties, Body::default())));
                }
                let part_bytes = if size > limits.whole { limits.part.max(1) } else { usize::MAX };
                *self = Self::Body(Box::new(PartialContent {
                    head,
                    properties,
                    body: Body::default(),
                    gathered: BytesMut::new(),
                    held: 0,
                    part_bytes,
                    size,
                    left: size,
                }));
                Ok(None)
            }
            (Self::Body(mut partial), FrameKind::Body) => {
                partial.add(bytes, frame, parts)?;
                if partial.left > 0 {
                    *self = Self::Body(partial);
                    return Ok(None);
                }
                partial.flush_gathered();
                Ok(Some((partial.head, partial.properties, partial.body)))
            }
            (Self::Idle, _) => Err(ContentError::Unexpected("expected method frame, got a content frame")),
            (Self::Header(_), _) => Err(ContentError::Unexpected("expected content header, got another frame")),
            (Self::Body(_), _) => Err(ContentError::Unexpected("expected content body, got another frame")),
        }
    }
}

impl<M> PartialContent<M> {
    fn add(&mut self, bytes: &Bytes, frame: Frame, parts: &mut Vec<Body>) -> Result<(), ContentError> {
        let left = self.left.checked_sub((frame.end - frame.start) as u64);
        self.left = left.ok_or(ContentError::Unexpected("more content body than its header announced"))?;
        let mut start = frame.start;
        while start < frame.end {
            let end = frame.end.min(start.saturating_add(self.part_bytes - self.held));
            let last = self.left == 0 && end == frame.end;
            self.put(bytes, start, end, last);
            if self.held == self.part_bytes && !last {
                self.flush_gathered();
                self.held = 0;
                parts.push(std::mem::take(&mut self.body));
            }
            start = end;
        }
        Ok(())
    }

    fn put(&mut self, bytes: &Bytes, start: usize, end: usize, last: bool) {
        let whole = last && self.held == 0;
        if end - start < GATHER_BYTES && !whole {
            self.gathered.extend_from_slice(bytes.get(start..end).unwrap_or_default());
        } else {
            self.flush_gathered();
            self.body.push(bytes.slice(start..end));
        }
        self.held += end - start;
    }

    fn flush_gathered(&mut self) {
        self.body.push(self.gathered.split().freeze());
    }
}

/// A content header's body size and properties.
#[inline]
pub(crate) fn read_header(bytes: &Bytes, frame: Frame, max_size: u64) -> Result<(u64, Properties), ContentError> {
    let mut reader = Reader::part(bytes, frame.start, frame.end);
    let id = MethodId::new(reader.u16()?, reader.u16()?); // class and weight, which is always 0 and never looked at
    if id.class != basic::Publish::ID.class {
        return Err(ContentError::WrongClass(id.class));
    }
    let size = reader.u64()?;
    let properties = Properties::parse(reader.slice(reader.remaining())?)?;
    if size > max_size {
        return Err(ContentError::TooLarge { size, max: max_size });
    }
    Ok((size, properties))
}

impl Publish {
    pub(crate) fn from_content((head, properties, body): Content<basic::Publish>) -> Self {
        let basic::Publish { exchange, routing_key, mandatory, immediate } = head;
        Self { exchange, routing_key, mandatory, immediate, properties, body }
    }
}
