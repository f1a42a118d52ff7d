//! The bytes of the keys by which queues and exchanges know a message again.

use crate::Index;
use crate::record::{HeldKey, KeyedBy, MessageKey, RecordError, SeenKey};
use crate::wire::{Reader, Writer};
use crate::{QueueId, VhostId};

pub(crate) fn write_seen(w: &mut Writer<'_>, keys: &[SeenKey]) {
    w.list(keys, |w, seen| {
        w.u64(seen.vhost.0.0)
            .short(seen.exchange.as_bytes())
            .u128(u128::from_be_bytes(seen.key.0))
            .varint(seen.expires_ms);
    });
}

pub(crate) fn read_seen(r: &mut Reader) -> Result<Vec<SeenKey>, RecordError> {
    let count = r.count(26)?;
    let one = |_| {
        let (vhost, exchange) = (VhostId(r.index()?), r.short()?);
        Ok(SeenKey { vhost, exchange, key: MessageKey(r.u128()?.to_be_bytes()), expires_ms: r.varint()? })
    };
    (0..count).map(one).collect()
}

pub(crate) fn write_keys(w: &mut Writer<'_>, of: &KeyedBy, keys: &[HeldKey]) {
    match of {
        KeyedBy::Queue(queue) => _ = w.u8(1).u64(queue.0.0),
        KeyedBy::Exchange(name) => _ = w.u8(2).short(name.as_bytes()),
    }
    w.list(keys, |w, held| _ = w.varint(held.place).u128(u128::from_be_bytes(held.key.0)).varint(held.expires_ms));
}

pub(crate) fn read_keys(r: &mut Reader) -> Result<(KeyedBy, Vec<HeldKey>), RecordError> {
    let of = match r.u8()? {
        1 => KeyedBy::Queue(QueueId(Index(r.u64()?))),
        2 => KeyedBy::Exchange(r.short()?),
        other => return Err(RecordError::Malformed { what: "owner of keys", value: other.into() }),
    };
    let count = r.count(18)?;
    let one = |_| Ok(HeldKey { place: r.varint()?, key: MessageKey(r.u128()?.to_be_bytes()), expires_ms: r.varint()? });
    Ok((of, (0..count).map(one).collect::<Result<_, RecordError>>()?))
}
