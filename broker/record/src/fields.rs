//! The bytes of what records and base pieces have in common: messages, declarations, bindings, lists.

use std::sync::Arc;

use crate::record::{
    Binding, Destination, ExchangeKind, ExchangeSpec, HeldMessage, Message, PartRef, QueueSpec, RecordError, Replicate,
    Settled,
};
use crate::wire::{Reader, Writer};
use crate::{Body, Index, QueueId};

pub(crate) fn write_message(w: &mut Writer<'_>, message: &Message) {
    w.bool(message.persistent).short(message.exchange.as_bytes()).short(message.routing_key.as_bytes());
    w.bytes(&message.properties);
    if let Some(parts) = &message.parts {
        assert!(!parts.is_empty(), "a message without parts has no list of them");
        write_parts(w, parts);
    }
}

pub(crate) fn read_message(r: &mut Reader, in_parts: bool, body: Body) -> Result<Message, RecordError> {
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

pub(crate) fn read_settled(r: &mut Reader) -> Result<Vec<Settled>, RecordError> {
    let count = r.count(16)?;
    let one = |_| Ok(Settled { queue: r.queue()?, dequeued: r.indexes()?, requeued: r.indexes()? });
    (0..count).map(one).collect()
}

/// Each index as its distance below the one before: a few bytes a message. `plain`: none has a priority or expires.
pub(crate) fn write_held(w: &mut Writer<'_>, messages: &[HeldMessage], plain: bool) {
    let mut before = u64::MAX;
    w.list(messages, |w, message| {
        assert!(message.index.0 < before, "held messages come newest first");
        w.varint(before - message.index.0).varint(message.delivery_count.into()).varint(message.bytes.into());
        if !plain {
            w.u8(message.priority).varint(message.expires_ms);
        }
        before = message.index.0;
    });
}

pub(crate) fn read_held(r: &mut Reader, plain: bool) -> Result<Vec<HeldMessage>, RecordError> {
    let mut before = u64::MAX;
    let mut messages = Vec::new();
    for _ in 0..r.count(3)? {
        let distance = r.varint()?;
        let index = before.checked_sub(distance).filter(|index| *index < before);
        let index = Index(index.ok_or(RecordError::Malformed { what: "held message's distance", value: distance })?);
        let narrow = |what, value: u64| u32::try_from(value).map_err(|_| RecordError::Malformed { what, value });
        let delivery_count = narrow("delivery count", r.varint()?)?;
        let bytes = narrow("held message's size", r.varint()?)?;
        let (priority, expires_ms) = if plain { (0, 0) } else { (r.u8()?, r.varint()?) };
        messages.push(HeldMessage { index, delivery_count, bytes, priority, expires_ms });
        before = index.0;
    }
    Ok(messages)
}

/// In the order in which they make up the body, which is that of their indexes; each as its distance above the one before.
pub(crate) fn write_parts(w: &mut Writer<'_>, parts: &[PartRef]) {
    let mut before = 0;
    w.list(parts, |w, part| {
        assert!(part.index.0 > before, "parts come in the order of their indexes");
        w.varint(part.index.0 - before).varint(part.bytes.into());
        before = part.index.0;
    });
}

pub(crate) fn read_parts(r: &mut Reader) -> Result<Vec<PartRef>, RecordError> {
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

/// The first tag where all is replicated, else the second and how much is; the third, and how much is, of what drops
/// duplicates.
fn write_replicate<'w, 'a>(
    w: &'w mut Writer<'a>,
    [plain, other, deduplicating]: [u8; 3],
    replicate: Replicate,
    deduplicates: bool,
) -> &'w mut Writer<'a> {
    match replicate {
        Replicate::All if deduplicates => w.u8(deduplicating).u8(0),
        Replicate::Configuration if deduplicates => w.u8(deduplicating).u8(1),
        Replicate::Nothing if deduplicates => w.u8(deduplicating).u8(2),
        Replicate::All => w.u8(plain),
        Replicate::Configuration => w.u8(other).u8(1),
        Replicate::Nothing => w.u8(other).u8(2),
    }
}

pub(crate) fn read_replicate(r: &mut Reader) -> Result<Replicate, RecordError> {
    match r.u8()? {
        1 => Ok(Replicate::Configuration),
        2 => Ok(Replicate::Nothing),
        other => Err(RecordError::Malformed { what: "replication", value: other.into() }),
    }
}

/// The same where it may be all.
pub(crate) fn read_any_replicate(r: &mut Reader) -> Result<Replicate, RecordError> {
    match r.u8()? {
        0 => Ok(Replicate::All),
        1 => Ok(Replicate::Configuration),
        2 => Ok(Replicate::Nothing),
        other => Err(RecordError::Malformed { what: "replication", value: other.into() }),
    }
}

pub(crate) fn write_exchange(w: &mut Writer<'_>, tags: [u8; 3], spec: &ExchangeSpec) {
    let kind = match spec.kind {
        ExchangeKind::Direct => 1,
        ExchangeKind::Fanout => 2,
        ExchangeKind::Topic => 3,
        ExchangeKind::Headers => 4,
        ExchangeKind::MessageDeduplication => 5,
    };
    let w = write_replicate(w, tags, spec.replicate, spec.deduplicates);
    w.short(spec.name.as_bytes()).u8(kind).bool(spec.durable).bool(spec.auto_delete).bool(spec.internal);
    w.bytes(&spec.arguments);
}

pub(crate) fn read_exchange(
    r: &mut Reader,
    replicate: Replicate,
    deduplicates: bool,
) -> Result<ExchangeSpec, RecordError> {
    let name = r.short()?;
    let kind = match r.u8()? {
        1 => ExchangeKind::Direct,
        2 => ExchangeKind::Fanout,
        3 => ExchangeKind::Topic,
        4 => ExchangeKind::Headers,
        5 if deduplicates => ExchangeKind::MessageDeduplication,
        other => return Err(RecordError::Malformed { what: "exchange kind", value: other.into() }),
    };
    Ok(ExchangeSpec {
        name,
        kind,
        durable: r.bool()?,
        auto_delete: r.bool()?,
        internal: r.bool()?,
        replicate,
        deduplicates,
        arguments: r.bytes()?,
    })
}

pub(crate) fn write_queue(w: &mut Writer<'_>, tags: [u8; 3], id: Option<QueueId>, spec: &QueueSpec) {
    let w = write_replicate(w, tags, spec.replicate, spec.deduplicates);
    if let Some(id) = id {
        w.u64(id.0.0);
    }
    w.short(spec.name.as_bytes()).bool(spec.durable).bool(spec.exclusive).bool(spec.auto_delete);
    w.bytes(&spec.arguments);
}

pub(crate) fn read_queue(r: &mut Reader, replicate: Replicate, deduplicates: bool) -> Result<QueueSpec, RecordError> {
    let name = r.short()?;
    let (durable, exclusive, auto_delete) = (r.bool()?, r.bool()?, r.bool()?);
    Ok(QueueSpec { name, durable, exclusive, auto_delete, replicate, deduplicates, arguments: r.bytes()? })
}

pub(crate) fn write_binding(w: &mut Writer<'_>, binding: &Binding) {
    w.short(binding.source.as_bytes());
    match &binding.destination {
        Destination::Queue(queue) => _ = w.u8(1).u64(queue.0.0),
        Destination::Exchange(name) => _ = w.u8(2).short(name.as_bytes()),
    }
    w.short(binding.routing_key.as_bytes()).bytes(&binding.arguments);
}

pub(crate) fn read_binding(r: &mut Reader) -> Result<Binding, RecordError> {
    let source = r.short()?;
    let destination = match r.u8()? {
        1 => Destination::Queue(r.queue()?),
        2 => Destination::Exchange(r.short()?),
        other => return Err(RecordError::Malformed { what: "binding destination", value: other.into() }),
    };
    Ok(Binding { source, destination, routing_key: r.short()?, arguments: r.bytes()? })
}
