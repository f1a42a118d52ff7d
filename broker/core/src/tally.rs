//! What all messages weigh, and those of them that are in memory: each counted once, however many queues hold it.
//!
//! A message of a sync point's backlog counts for each queue by itself: its queues do not share it.

use std::sync::{Arc, Weak};

use hashbrown::HashMap;
use understudy_record::{Index, Message};

use crate::entry::Entry;

#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Messages that were published to several queues and are still in one; those published to one queue are not here.
    copies: HashMap<Index, Copies>,
    bytes: u64,
    resident_bytes: u64,
    resident_messages: u64,
}

#[derive(Debug)]
struct Copies {
    /// Queues that hold the message.
    held: u32,
    /// Those of them in which it is resident.
    resident: u32,
    /// What these share.
    message: Weak<Message>,
}

impl Tally {
    /// Of all messages, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Of those in memory, in bytes.
    pub(crate) fn resident_bytes(&self) -> u64 {
        self.resident_bytes
    }

    pub(crate) fn resident_messages(&self) -> u64 {
        self.resident_messages
    }

    /// A message came into `queues`, resident in all of them if `message` is given, with its bytes in memory.
    pub(crate) fn publish(&mut self, index: Index, queues: usize, bytes: u32, message: Option<&(Arc<Message>, u32)>) {
        if queues == 0 {
            return;
        }
        self.bytes += u64::from(bytes);
        if let Some((_, bytes)) = message {
            self.resident_bytes += u64::from(*bytes);
            self.resident_messages += 1;
        }
        if let Ok(held @ 2..) = u32::try_from(queues) {
            let resident = if message.is_some() { held } else { 0 };
            let message = message.map_or_else(Weak::new, |(message, _)| Arc::downgrade(message));
            self.copies.insert(index, Copies { held, resident, message });
        }
    }

    /// A stored message came into one queue, with its backlog.
    pub(crate) fn arrive(&mut self, bytes: u32) {
        self.bytes += u64::from(bytes);
    }

    /// A queue gave up its copy.
    pub(crate) fn release(&mut self, index: Index, entry: &Entry) {
        if entry.is_resident() {
            self.let_go(index, entry.memory_bytes());
        }
        if let Some(copies) = self.copies.get_mut(&index) {
            copies.held -= 1;
            if copies.held > 0 {
                return;
            }
            self.copies.remove(&index);
        }
        self.bytes -= u64::from(entry.bytes());
    }

    /// A queue's copy is no longer in memory, where it counted for `bytes`.
    pub(crate) fn let_go(&mut self, index: Index, bytes: u32) {
        if let Some(copies) = self.copies.get_mut(&index) {
            copies.resident -= 1;
            if copies.resident > 0 {
                return;
            }
            copies.message = Weak::new();
        }
        self.resident_bytes -= u64::from(bytes);
        self.resident_messages -= 1;
    }

    /// A queue's copy is read back; returns what it is to hold: what other queues hold already, if any does.
    pub(crate) fn load(&mut self, index: Index, bytes: u32, message: Message) -> Arc<Message> {
        if let Some(copies) = self.copies.get_mut(&index) {
            copies.resident += 1;
            if let Some(shared) = copies.message.upgrade().filter(|_| copies.resident > 1) {
                return shared;
            }
            let message = Arc::new(message);
            copies.message = Arc::downgrade(&message);
            self.resident_bytes += u64::from(bytes);
            self.resident_messages += 1;
            return message;
        }
        self.resident_bytes += u64::from(bytes);
        self.resident_messages += 1;
        Arc::new(message)
    }

    /// The books agree with these, which are all entries of all queues.
    pub(crate) fn assert_consistent<'a>(&self, entries: impl Iterator<Item = (Index, &'a Entry)>) {
        let mut seen: HashMap<Index, (u32, u32)> = HashMap::new();
        let (mut bytes, mut resident_bytes, mut resident_messages) = (0, 0, 0);
        for (index, entry) in entries {
            let shared = self.copies.contains_key(&index);
            let (held, resident) = seen.entry(index).or_default();
            if !shared || *held == 0 {
                bytes += u64::from(entry.bytes());
            }
            if entry.is_resident() && (!shared || *resident == 0) {
                resident_bytes += u64::from(entry.memory_bytes());
                resident_messages += 1;
            }
            (*held, *resident) = (*held + 1, *resident + u32::from(entry.is_resident()));
        }
        assert_eq!(self.bytes, bytes, "bytes of all messages");
        assert_eq!(self.resident_bytes, resident_bytes, "bytes of all messages in memory");
        assert_eq!(self.resident_messages, resident_messages, "messages in memory");
        for (index, copies) in &self.copies {
            assert_eq!(Some(&(copies.held, copies.resident)), seen.get(index), "queues that hold message {index}");
        }
    }
}
