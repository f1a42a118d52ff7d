//! A message's place in a queue. What it says is either in memory (*resident*) or only in the log (*stored*); the index
//! alone is enough to read it back.
//!
//! A queue keeps its entries in a ring of 24-byte places (the index, 16 bytes of entry), so a stored backlog costs 24 bytes
//! a message, and up to 48 while the ring has just grown. A message published to several queues costs one more entry of a
//! hash map, about 40 bytes, for all of them together.

use std::num::NonZeroU32;
use std::sync::Arc;

use understudy_record::Message;

#[derive(Debug)]
pub(crate) struct Entry {
    message: Option<Arc<Message>>,
    /// Plus one: so there is a value that no entry has, which an empty place in the ring takes.
    weight: NonZeroU32,
    /// How often it was delivered and came back.
    pub(crate) delivery_count: u32,
}

impl Entry {
    pub(crate) fn resident(message: Arc<Message>, bytes: u32) -> Self {
        Self { message: Some(message), ..Self::stored(bytes, 0) }
    }

    /// `bytes`: what the message weighs.
    pub(crate) fn stored(bytes: u32, delivery_count: u32) -> Self {
        let weight = NonZeroU32::MIN.saturating_add(bytes);
        Self { message: None, weight, delivery_count }
    }

    /// What the message weighs: body and properties, in bytes.
    pub(crate) fn bytes(&self) -> u32 {
        self.weight.get() - 1
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
    u32::try_from(message.body.len() + message.properties.len()).map_or(u32::MAX - 1, |bytes| bytes.min(u32::MAX - 1))
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
        assert_eq!(Entry::stored(0, 0).bytes(), 0);
        assert_eq!(Entry::stored(7, 0).bytes(), 7);
        assert_eq!(Entry::stored(u32::MAX, 0).bytes(), u32::MAX - 1);
    }
}
