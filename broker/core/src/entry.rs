//! A message's place in a queue. What it says is either in memory (*resident*) or only in the log (*stored*); the index
//! alone is enough to read it back.
//!
//! A queue keeps its entries in a ring of 24-byte places (the index, 16 bytes of entry), so a stored backlog costs 24 bytes
//! a message, and up to 48 while the ring has just grown. A message published to several queues costs one more entry of a
//! hash map, about 40 bytes, for all of them together.

use std::num::NonZeroU32;
use std::sync::Arc;

use understudy_record::Message;

use crate::LARGE_RESIDENT_BYTES;

#[derive(Debug)]
pub(crate) struct Entry {
    message: Option<Arc<Message>>,
    /// Plus one: so there is a value that no entry has, which an empty place in the ring takes. The top bit: it is large.
    weight: NonZeroU32,
    /// How often it was delivered and came back.
    pub(crate) delivery_count: u32,
}

/// Of an entry's weight: the message's body has parts.
const LARGE: u32 = 1 << 31;

/// The heaviest weight; no message comes near it.
const MAX_WEIGHT: u32 = LARGE - 2;

impl Entry {
    pub(crate) fn resident(message: Arc<Message>, bytes: u32) -> Self {
        let large = message.parts.is_some();
        Self { message: Some(message), ..Self::stored(bytes, 0, large) }
    }

    /// `bytes`: what the message weighs. `large`: its body has parts.
    pub(crate) fn stored(bytes: u32, delivery_count: u32, large: bool) -> Self {
        let weight = NonZeroU32::MIN.saturating_add(bytes.min(MAX_WEIGHT));
        let weight = if large { weight | LARGE } else { weight };
        Self { message: None, weight, delivery_count }
    }

    /// What the message weighs: body and properties, in bytes.
    pub(crate) fn bytes(&self) -> u32 {
        (self.weight.get() & !LARGE) - 1
    }

    /// Its body has parts.
    pub(crate) fn is_large(&self) -> bool {
        self.weight.get() & LARGE != 0
    }

    /// What the message counts for in memory, if it is or were there, in bytes: of a large one its parts never are.
    pub(crate) fn memory_bytes(&self) -> u32 {
        if self.is_large() { self.bytes().min(LARGE_RESIDENT_BYTES) } else { self.bytes() }
    }

    /// `None`: it is stored.
    pub(crate) fn message(&self) -> Option<&Arc<Message>> {
        self.message.as_ref()
    }

    pub(crate) fn is_resident(&self) -> bool {
        self.message.is_some()
    }

    pub(crate) fn load(&mut self, message: Arc<Message>) {
        self.message = Some(message);
    }

    /// Stored from here on. `false` if it was.
    pub(crate) fn let_go(&mut self) -> bool {
        self.message.take().is_some()
    }
}

/// What a message weighs: body and properties, in bytes. One that does not fit the number is refused long before.
pub(crate) fn message_bytes(message: &Message) -> u32 {
    let bytes = message.body_bytes() + message.properties.len() as u64;
    u32::try_from(bytes).map_or(MAX_WEIGHT, |bytes| bytes.min(MAX_WEIGHT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_in_a_queue_takes_24_bytes() {
        assert_eq!(size_of::<(u64, Option<Entry>)>(), 24);
    }

    #[test]
    fn the_heaviest_weight_is_still_a_weight() {
        for large in [false, true] {
            for (bytes, expected) in [(0, 0), (7, 7), (u32::MAX, MAX_WEIGHT)] {
                let entry = Entry::stored(bytes, 0, large);
                assert_eq!((entry.bytes(), entry.is_large()), (expected, large));
            }
        }
    }

    #[test]
    fn a_large_message_counts_for_its_last_part_in_memory() {
        assert_eq!(Entry::stored(9 << 20, 0, false).memory_bytes(), 9 << 20);
        assert_eq!(Entry::stored(9 << 20, 0, true).memory_bytes(), LARGE_RESIDENT_BYTES);
        assert_eq!(Entry::stored(9 << 10, 0, true).memory_bytes(), 9 << 10);
    }
}
