//! What a record says, and its bytes. Tags are numbers that never change meaning; the golden test pins them.
//!
//! A record's small part is its *meta*; a message's body travels beside it and is not copied.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use crate::wire::{Reader, Writer};
use crate::{Body, Epoch, Identity, Index, Member, Position, QueueId, ShortStr};

/// One change of the broker's state. Everything a random choice, a clock or a policy decides is decided before the
/// record is written: applying it needs nothing else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// A primary's first record under its epoch (rules 4 and 7).
    EpochStart {
        primary: Identity,
        in_sync: Vec<Member>,
    },
    /// The in-sync set in force from here on, as the Lease has it (rule 7).
    InSyncSet {
        members: Vec<Member>,
    },
    ExchangeDeclare(ExchangeSpec),
    /// Its bindings go with it.
    ExchangeDelete {
        name: ShortStr,
    },
    /// The queue's id is this record's index.
    QueueDeclare(QueueSpec),
    /// Its messages and bindings go with it.
    QueueDelete {
        queue: QueueId,
    },
    Bind(Binding),
    Unbind(Binding),
    /// The message's id, in each target queue, is this record's index. It claims the parts that it lists.
    Publish {
        targets: Vec<QueueId>,
        message: Message,
    },
    /// Part of a large message's body, ahead of the message, as soon as it has come: so that a long body is nowhere held as
    /// a whole, and others' records stand between its parts. An [`Self::EpochStart`] drops those that nobody has claimed.
    Part {
        body: Body,
    },
    /// These parts will not be claimed: their message was cut off, refused or not routed.
    Discard {
        parts: Vec<Index>,
    },
    /// These messages leave the queue. Unknown ones are no error: they left before.
    Dequeue {
        queue: QueueId,
        messages: Vec<Index>,
    },
    /// These messages were delivered and came back: delivery count + 1, same place in the queue.
    Requeue {
        queue: QueueId,
        messages: Vec<Index>,
    },
    /// All messages up to and including `up_to` leave the queue, but those in `except` (delivered and not yet acknowledged).
    Purge {
        queue: QueueId,
        up_to: Index,
        except: Vec<Index>,
    },
    /// Changes nothing. Of a version that there is not, for tests of upgrades.
    #[cfg(feature = "made-up-version")]
    MadeUp {
        epoch: Epoch,
    },
}

/// A piece of a sync point: the state as of one position, by which a replica without the log's beginning starts its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BasePiece {
    /// Opens a base. `epochs`: where each epoch known at `sync_point` began, oldest first.
    Start {
        sync_point: Position,
        epochs: Vec<Position>,
        in_sync: Vec<Member>,
    },
    Exchange(ExchangeSpec),
    Queue {
        id: QueueId,
        spec: QueueSpec,
    },
    Binding(Binding),
    /// The topology is whole; from here on live records and backlog may follow in any order.
    TopologyEnd,
    /// One message of a queue's backlog. Those of one queue come newest first.
    Message {
        queue: QueueId,
        index: Index,
        delivery_count: u32,
        message: Message,
    },
    QueueDone {
        queue: QueueId,
    },
    /// Messages of a queue's backlog by reference: what they say stands in the same store's segments. In checkpoints only,
    /// never on a stream. Those of one queue come newest first, over all its pieces.
    Held {
        queue: QueueId,
        messages: Vec<HeldMessage>,
    },
    /// Part of a large message's body, under its index. On a stream only, before the message: its bytes are put down and
    /// say nothing of the state.
    Part {
        index: Index,
        body: Body,
    },
    /// The parts of a message of the backlog, before its [`Self::Held`]; or, with `message` 0 and before
    /// [`Self::TopologyEnd`], those that no message had claimed at the sync point.
    Parts {
        message: Index,
        parts: Vec<PartRef>,
    },
    /// The base is whole. `floor`: no earlier index may be the end of this log, since the backlog shows effects up to it.
    End {
        floor: Index,
    },
}

/// A message that a queue holds, without the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldMessage {
    pub index: Index,
    /// How often it was delivered and came back.
    pub delivery_count: u32,
    /// What it weighs: body and properties, in bytes.
    pub bytes: u32,
}

/// Part of a large message's body, by reference: it was written as a record of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PartRef {
    /// Of the record that has it.
    pub index: Index,
    /// Its length.
    pub bytes: u32,
}

/// What a publisher handed over, unchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub exchange: ShortStr,
    pub routing_key: ShortStr,
    /// The content header's property flags and list, as received and checked.
    pub properties: Bytes,
    /// Delivery mode 2 on at least one durable queue.
    pub persistent: bool,
    /// Of a large message: the parts of its body that come before `body`, in order, never an empty list.
    pub parts: Option<Arc<[PartRef]>>,
    pub body: Body,
}

impl Message {
    /// Of the whole body, in bytes.
    pub fn body_bytes(&self) -> u64 {
        let parts = self.parts.iter().flat_map(|parts| parts.iter());
        parts.map(|part| u64::from(part.bytes)).sum::<u64>() + self.body.len() as u64
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExchangeSpec {
    pub name: ShortStr,
    pub kind: ExchangeKind,
    pub durable: bool,
    pub auto_delete: bool,
    pub internal: bool,
    /// An encoded AMQP table, without its length.
    pub arguments: Bytes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExchangeKind {
    Direct,
    Fanout,
    Topic,
    Headers,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueSpec {
    pub name: ShortStr,
    pub durable: bool,
    /// Owned by one connection of the primary that declared it; a new primary deletes it.
    pub exclusive: bool,
    pub auto_delete: bool,
    /// An encoded AMQP table, without its length.
    pub arguments: Bytes,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Binding {
    pub source: ShortStr,
    pub destination: Destination,
    pub routing_key: ShortStr,
    /// An encoded AMQP table, without its length.
    pub arguments: Bytes,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Destination {
    Queue(QueueId),
    Exchange(ShortStr),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    #[error("a record ends early: {needed} bytes needed, {left} left")]
    Short { needed: usize, left: usize },
    #[error("a record has {bytes} bytes after its end")]
    LeftOver { bytes: usize },
    #[error("a record kind {tag} that this version does not know; a newer version wrote it")]
    UnknownTag { tag: u8 },
    #[error("a record's {what} is {value}")]
    Malformed { what: &'static str, value: u64 },
}

impl Record {
    pub(crate) const EPOCH_START: u8 = 1;
    pub(crate) const IN_SYNC_SET: u8 = 2;
    pub(crate) const PUBLISH: u8 = 9;
    pub(crate) const PART: u8 = 13;
    const DISCARD: u8 = 14;
    pub(crate) const PUBLISH_IN_PARTS: u8 = 15;
    #[cfg(feature = "made-up-version")]
    pub(crate) const MADE_UP: u8 = 255;

    /// Appends the meta part.
    pub fn encode_meta(&self, out: &mut BytesMut) {
        let w = &mut Writer(out);
        match self {
            Self::EpochStart { primary, in_sync } => _ = w.u8(Self::EPOCH_START).identity(primary).members(in_sync),
            Self::InSyncSet { members } => _ = w.u8(Self::IN_SYNC_SET).members(members),
            Self::ExchangeDeclare(spec) => write_exchange(w.u8(3), spec),
            Self::ExchangeDelete { name } => _ = w.u8(4).short(name.as_bytes()),
            Self::QueueDeclare(spec) => write_queue(w.u8(5), spec),
            Self::QueueDelete { queue } => _ = w.u8(6).u64(queue.0.0),
            Self::Bind(binding) => write_binding(w.u8(7), binding),
            Self::Unbind(binding) => write_binding(w.u8(8), binding),
            Self::Publish { targets, message } => {
                w.u8(if message.parts.is_some() { Self::PUBLISH_IN_PARTS } else { Self::PUBLISH });
                w.list(targets, |w, queue| _ = w.u64(queue.0.0));
                write_message(w, message);
            }
            Self::Part { .. } => _ = w.u8(Self::PART),
            Self::Discard { parts } => _ = w.u8(Self::DISCARD).indexes(parts),
            Self::Dequeue { queue, messages } => _ = w.u8(10).u64(queue.0.0).indexes(messages),
            Self::Requeue { queue, messages } => _ = w.u8(11).u64(queue.0.0).indexes(messages),
            Self::Purge { queue, up_to, except } => _ = w.u8(12).u64(queue.0.0).u64(up_to.0).indexes(except),
            #[cfg(feature = "made-up-version")]
            Self::MadeUp { epoch } => _ = w.u8(Self::MADE_UP).u64(epoch.0),
        }
    }

    /// The part that is not copied: a message's body.
    pub fn body(&self) -> Body {
        match self {
            Self::Publish { message, .. } => message.body.clone(),
            Self::Part { body } => body.clone(),
            _ => Body::default(),
        }
    }

    /// `meta` and `body` as they stand in a frame whose checksum was right.
    pub fn decode(meta: Bytes, body: Body) -> Result<Self, RecordError> {
        let mut r = Reader(meta);
        let record = match r.u8()? {
            Self::EPOCH_START => Self::EpochStart { primary: r.identity()?, in_sync: r.members()? },
            Self::IN_SYNC_SET => Self::InSyncSet { members: r.members()? },
            3 => Self::ExchangeDeclare(read_exchange(&mut r)?),
            4 => Self::ExchangeDelete { name: r.short()? },
            5 => Self::QueueDeclare(read_queue(&mut r)?),
            6 => Self::QueueDelete { queue: r.queue()? },
            7 => Self::Bind(read_binding(&mut r)?),
            8 => Self::Unbind(read_binding(&mut r)?),
            Self::PUBLISH => Self::Publish { targets: r.queues()?, message: read_message(&mut r, false, body)? },
            Self::PUBLISH_IN_PARTS => {
                Self::Publish { targets: r.queues()?, message: read_message(&mut r, true, body)? }
            }
            Self::PART => Self::Part { body },
            Self::DISCARD => Self::Discard { parts: r.indexes()? },
            10 => Self::Dequeue { queue: r.queue()?, messages: r.indexes()? },
            11 => Self::Requeue { queue: r.queue()?, messages: r.indexes()? },
            12 => Self::Purge { queue: r.queue()?, up_to: r.index()?, except: r.indexes()? },
            #[cfg(feature = "made-up-version")]
            Self::MADE_UP => Self::MadeUp { epoch: Epoch(r.u64()?) },
            tag => return Err(RecordError::UnknownTag { tag }),
        };
        r.finish()?;
        Ok(record)
    }
}

impl BasePiece {
    pub(crate) const START: u8 = 1;
    pub(crate) const MESSAGE: u8 = 6;
    pub(crate) const PART: u8 = 10;
    pub(crate) const MESSAGE_IN_PARTS: u8 = 12;

    /// Appends the meta part.
    pub fn encode_meta(&self, out: &mut BytesMut) {
        let w = &mut Writer(out);
        match self {
            Self::Start { sync_point, epochs, in_sync } => {
                w.u8(Self::START)
                    .position(*sync_point)
                    .list(epochs, |w, start| _ = w.position(*start))
                    .members(in_sync);
            }
            Self::Exchange(spec) => write_exchange(w.u8(2), spec),
            Self::Queue { id, spec } => write_queue(w.u8(3).u64(id.0.0), spec),
            Self::Binding(binding) => write_binding(w.u8(4), binding),
            Self::TopologyEnd => _ = w.u8(5),
            Self::Message { queue, index, delivery_count, message } => {
                w.u8(if message.parts.is_some() { Self::MESSAGE_IN_PARTS } else { Self::MESSAGE });
                w.u64(queue.0.0).u64(index.0).u32(*delivery_count);
                write_message(w, message);
            }
            Self::QueueDone { queue } => _ = w.u8(7).u64(queue.0.0),
            Self::End { floor } => _ = w.u8(8).u64(floor.0),
            Self::Held { queue, messages } => write_held(w.u8(9).u64(queue.0.0), messages),
            Self::Part { index, .. } => _ = w.u8(Self::PART).u64(index.0),
            Self::Parts { message, parts } => write_parts(w.u8(11).u64(message.0), parts),
        }
    }

    /// The part that is not copied: a message's body.
    pub fn body(&self) -> Body {
        match self {
            Self::Message { message, .. } => message.body.clone(),
            Self::Part { body, .. } => body.clone(),
            _ => Body::default(),
        }
    }

    /// `meta` and `body` as they stand in a frame whose checksum was right.
    pub fn decode(meta: Bytes, body: Body) -> Result<Self, RecordError> {
        let mut r = Reader(meta);
        let piece = match r.u8()? {
            Self::START => {
                let sync_point = r.position()?;
                let epochs = (0..r.count(16)?).map(|_| r.position()).collect::<Result<_, _>>()?;
                Self::Start { sync_point, epochs, in_sync: r.members()? }
            }
            2 => Self::Exchange(read_exchange(&mut r)?),
            3 => Self::Queue { id: r.queue()?, spec: read_queue(&mut r)? },
            4 => Self::Binding(read_binding(&mut r)?),
            5 => Self::TopologyEnd,
            tag @ (Self::MESSAGE | Self::MESSAGE_IN_PARTS) => Self::Message {
                queue: r.queue()?,
                index: r.index()?,
                delivery_count: r.u32()?,
                message: read_message(&mut r, tag == Self::MESSAGE_IN_PARTS, body)?,
            },
            7 => Self::QueueDone { queue: r.queue()? },
            8 => Self::End { floor: r.index()? },
            9 => Self::Held { queue: r.queue()?, messages: read_held(&mut r)? },
            Self::PART => Self::Part { index: r.index()?, body },
            11 => Self::Parts { message: r.index()?, parts: read_parts(&mut r)? },
            tag => return Err(RecordError::UnknownTag { tag }),
        };
        r.finish()?;
        Ok(piece)
    }
}

impl ExchangeKind {
    pub fn from_name(name: &[u8]) -> Option<Self> {
        match name {
            b"direct" => Some(Self::Direct),
            b"fanout" => Some(Self::Fanout),
            b"topic" => Some(Self::Topic),
            b"headers" => Some(Self::Headers),
            _ => None,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Fanout => "fanout",
            Self::Topic => "topic",
            Self::Headers => "headers",
        }
    }
}

/// The epoch table's type: a position that is the first of its epoch.
impl Position {
    pub fn new(epoch: Epoch, index: Index) -> Self {
        Self { epoch, index }
    }
}

fn write_message(w: &mut Writer<'_>, message: &Message) {
    w.bool(message.persistent).short(message.exchange.as_bytes()).short(message.routing_key.as_bytes());
    w.bytes(&message.properties);
    if let Some(parts) = &message.parts {
        assert!(!parts.is_empty(), "a message without parts has no list of them");
        write_parts(w, parts);
    }
}

fn read_message(r: &mut Reader, in_parts: bool, body: Body) -> Result<Message, RecordError> {
    let persistent = r.bool()?;
    let (exchange, routing_key, properties) = (r.short()?, r.short()?, r.bytes()?);
    let parts = match in_parts {
        true => Some(read_parts(r)?).filter(|parts| !parts.is_empty()),
        false => None,
    };
    if in_parts && parts.is_none() {
        return Err(RecordError::Malformed { what: "number of parts", value: 0 });
    }
    Ok(Message { exchange, routing_key, properties, persistent, parts: parts.map(Arc::from), body })
}

/// Each index as its distance below the one before: a few bytes a message.
fn write_held(w: &mut Writer<'_>, messages: &[HeldMessage]) {
    let mut before = u64::MAX;
    w.list(messages, |w, message| {
        assert!(message.index.0 < before, "held messages come newest first");
        w.varint(before - message.index.0).varint(message.delivery_count.into()).varint(message.bytes.into());
        before = message.index.0;
    });
}

fn read_held(r: &mut Reader) -> Result<Vec<HeldMessage>, RecordError> {
    let mut before = u64::MAX;
    let mut messages = Vec::new();
    for _ in 0..r.count(3)? {
        let distance = r.varint()?;
        let index = before.checked_sub(distance).filter(|index| *index < before);
        let index = Index(index.ok_or(RecordError::Malformed { what: "held message's distance", value: distance })?);
        let narrow = |what, value: u64| u32::try_from(value).map_err(|_| RecordError::Malformed { what, value });
        let delivery_count = narrow("delivery count", r.varint()?)?;
        messages.push(HeldMessage { index, delivery_count, bytes: narrow("held message's size", r.varint()?)? });
        before = index.0;
    }
    Ok(messages)
}

/// In the order in which they make up the body, which is that of their indexes; each as its distance above the one before.
fn write_parts(w: &mut Writer<'_>, parts: &[PartRef]) {
    let mut before = 0;
    w.list(parts, |w, part| {
        assert!(part.index.0 > before, "parts come in the order of their indexes");
        w.varint(part.index.0 - before).varint(part.bytes.into());
        before = part.index.0;
    });
}

fn read_parts(r: &mut Reader) -> Result<Vec<PartRef>, RecordError> {
    let mut before = 0_u64;
    let mut parts = Vec::new();
    for _ in 0..r.count(2)? {
        let distance = r.varint()?;
        let index = before.checked_add(distance).filter(|index| *index > before);
        let index = Index(index.ok_or(RecordError::Malformed { what: "part's distance", value: distance })?);
        let bytes = r.varint()?;
        let bytes = u32::try_from(bytes).map_err(|_| RecordError::Malformed { what: "part's size", value: bytes })?;
        parts.push(PartRef { index, bytes });
        before = index.0;
    }
    Ok(parts)
}

fn write_exchange(w: &mut Writer<'_>, spec: &ExchangeSpec) {
    let kind = match spec.kind {
        ExchangeKind::Direct => 1,
        ExchangeKind::Fanout => 2,
        ExchangeKind::Topic => 3,
        ExchangeKind::Headers => 4,
    };
    w.short(spec.name.as_bytes()).u8(kind).bool(spec.durable).bool(spec.auto_delete).bool(spec.internal);
    w.bytes(&spec.arguments);
}

fn read_exchange(r: &mut Reader) -> Result<ExchangeSpec, RecordError> {
    let name = r.short()?;
    let kind = match r.u8()? {
        1 => ExchangeKind::Direct,
        2 => ExchangeKind::Fanout,
        3 => ExchangeKind::Topic,
        4 => ExchangeKind::Headers,
        other => return Err(RecordError::Malformed { what: "exchange kind", value: other.into() }),
    };
    Ok(ExchangeSpec {
        name,
        kind,
        durable: r.bool()?,
        auto_delete: r.bool()?,
        internal: r.bool()?,
        arguments: r.bytes()?,
    })
}

fn write_queue(w: &mut Writer<'_>, spec: &QueueSpec) {
    w.short(spec.name.as_bytes()).bool(spec.durable).bool(spec.exclusive).bool(spec.auto_delete);
    w.bytes(&spec.arguments);
}

fn read_queue(r: &mut Reader) -> Result<QueueSpec, RecordError> {
    let name = r.short()?;
    Ok(QueueSpec { name, durable: r.bool()?, exclusive: r.bool()?, auto_delete: r.bool()?, arguments: r.bytes()? })
}

fn write_binding(w: &mut Writer<'_>, binding: &Binding) {
    w.short(binding.source.as_bytes());
    match &binding.destination {
        Destination::Queue(queue) => _ = w.u8(1).u64(queue.0.0),
        Destination::Exchange(name) => _ = w.u8(2).short(name.as_bytes()),
    }
    w.short(binding.routing_key.as_bytes()).bytes(&binding.arguments);
}

fn read_binding(r: &mut Reader) -> Result<Binding, RecordError> {
    let source = r.short()?;
    let destination = match r.u8()? {
        1 => Destination::Queue(r.queue()?),
        2 => Destination::Exchange(r.short()?),
        other => return Err(RecordError::Malformed { what: "binding destination", value: other.into() }),
    };
    Ok(Binding { source, destination, routing_key: r.short()?, arguments: r.bytes()? })
}
