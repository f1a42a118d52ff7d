//! The messages of a queue in index order, and which of them are handed out: all of them or, in a queue with priorities, those
//! of one priority.
//!
//! The messages and their delivery counts are replicated state, changed by records alone. What is handed out (the cursor,
//! the returned ones) is the primary's own: a backup's cursor stays before the first message, so there everything is ready.
//!
//! Which messages are read back before they are handed out is in `ahead`, which leave memory in `evict`.

use std::collections::{BTreeSet, HashSet};
use std::num::NonZeroU64;
use std::sync::Arc;

use understudy_record::{Index, Message};

use crate::ahead::Window;
use crate::deadlines::Deadlines;
use crate::entry::Entry;
use crate::runs::Runs;
use crate::slots::Slots;

#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) entries: Slots<Entry>,
    /// Of the bodies and properties, in bytes.
    bytes: u64,
    /// The highest index handed out so far; what is above it is ready.
    pub(crate) cursor: u64,
    /// Handed out and come back: below the cursor, and ready.
    pub(crate) returned: BTreeSet<u64>,
    /// Handed out and neither settled nor come back.
    unacked: usize,
    /// Of those, in bytes.
    unacked_bytes: u64,
    /// Messages that are in memory.
    pub(crate) resident: usize,
    /// Where they are.
    pub(crate) runs: Runs,
    /// What comes next of the returned ones.
    pub(crate) returned_ahead: Window,
    /// What comes next above the cursor.
    pub(crate) ahead: Window,
    /// No message below this index is handed out and resident.
    pub(crate) handed_out_from: u64,
    /// Of those that expire; mostly none does.
    deadlines: Option<Box<Deadlines>>,
}

impl Default for Lane {
    fn default() -> Self {
        Self {
            entries: Slots::default(),
            bytes: 0,
            cursor: 0,
            returned: BTreeSet::new(),
            unacked: 0,
            unacked_bytes: 0,
            resident: 0,
            runs: Runs::default(),
            returned_ahead: Window::default(),
            ahead: Window::default(),
            handed_out_from: u64::MAX,
            deadlines: None,
        }
    }
}

impl Lane {
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn unacked(&self) -> usize {
        self.unacked
    }

    pub(crate) fn unacked_bytes(&self) -> u64 {
        self.unacked_bytes
    }

    /// `expires`: when it leaves by itself, in milliseconds since 1970.
    pub(crate) fn push(&mut self, index: Index, entry: Entry, expires: Option<NonZeroU64>) {
        self.bytes += u64::from(entry.bytes());
        if entry.is_resident() {
            self.resident += 1;
            self.runs.push_back(index.0, self.entries.last_key());
        }
        self.entries.push_back(index.0, entry);
        if let Some(expires) = expires {
            self.deadlines.get_or_insert_default().push_back(index.0, expires);
        }
    }

    /// A stored message that is older than all that are here; `false`: it is not.
    pub(crate) fn push_front(&mut self, index: Index, entry: Entry, expires: Option<NonZeroU64>) -> bool {
        if self.entries.first_key().is_some_and(|lowest| lowest <= index.0) {
            return false;
        }
        self.bytes += u64::from(entry.bytes());
        self.entries.push_front(index.0, entry);
        if let Some(expires) = expires {
            self.deadlines.get_or_insert_default().push_front(index.0, expires);
        }
        true
    }

    /// What was removed; `None` if it left before.
    pub(crate) fn remove(&mut self, index: Index) -> Option<Entry> {
        let entry = self.entries.remove(index.0)?;
        self.forget(index, &entry);
        Some(entry)
    }

    /// The message is stored and becomes resident; `message` gives it, told its weight.
    pub(crate) fn load(&mut self, index: Index, message: impl FnOnce(u32) -> Arc<Message>) {
        let Some(entry) = self.entries.get_mut(index.0) else { return };
        entry.load(message(entry.memory_bytes()));
        self.resident += 1;
        // One range for all that is read back in a row, and none for what was before the first message.
        let before = self.runs.down_from(index.0).filter(|(_, end)| *end < index.0);
        let next = before.and_then(|(_, end)| self.entries.next_after(end));
        let from = match (before, next) {
            (Some((_, end)), Some((next, _))) if next == index.0 => end + 1,
            _ => index.0,
        };
        self.runs.add(from, index.0);
    }

    /// The message was delivered and came back: ready again, at its old place. `false`: it is not here.
    pub(crate) fn give_back(&mut self, index: Index) -> bool {
        let Some(entry) = self.entries.get_mut(index.0) else { return false };
        entry.delivery_count = entry.delivery_count.saturating_add(1);
        let (bytes, resident) = (entry.memory_bytes(), entry.is_resident());
        if index.0 <= self.cursor && self.returned.insert(index.0) {
            self.unacked -= 1;
            self.unacked_bytes -= u64::from(entry.bytes());
            self.returned_ahead.come_back(index.0, bytes, resident);
            self.deadlines.iter_mut().for_each(|deadlines| deadlines.came_back(index.0));
        }
        true
    }

    pub(crate) fn purge(&mut self, up_to: Index, except: &HashSet<Index>, gone: &mut impl FnMut(Index, Entry)) {
        let mut entries = std::mem::take(&mut self.entries);
        entries.drain_up_to(
            up_to.0,
            |key| !except.contains(&Index(key)),
            |key, entry| {
                self.forget(Index(key), &entry);
                gone(Index(key), entry);
            },
        );
        self.entries = entries;
    }

    fn forget(&mut self, index: Index, entry: &Entry) {
        self.bytes -= u64::from(entry.bytes());
        self.resident -= usize::from(entry.is_resident());
        if index.0 > self.cursor {
            self.ahead.leave(index.0, entry.memory_bytes());
        } else if self.returned.remove(&index.0) {
            self.returned_ahead.leave(index.0, entry.memory_bytes());
        } else {
            self.unacked -= 1;
            self.unacked_bytes -= u64::from(entry.bytes());
        }
        if let Some(deadlines) = &mut self.deadlines {
            deadlines.remove(index.0);
            if deadlines.is_empty() {
                self.deadlines = None;
            }
        }
    }

    // ---- handing out, on the primary

    /// Everything is ready again, for a new primary.
    pub(crate) fn hand_out_from_start(&mut self) {
        self.cursor = 0;
        self.returned.clear();
        (self.unacked, self.unacked_bytes) = (0, 0);
        self.forget_ahead();
        self.deadlines.iter_mut().for_each(|deadlines| deadlines.start_over());
    }

    /// The next message to hand out.
    pub(crate) fn peek(&self) -> Option<(Index, &Entry)> {
        if let Some(returned) = self.returned.first() {
            return self.entries.get(*returned).map(|entry| (Index(*returned), entry));
        }
        self.entries.next_after(self.cursor).map(|(key, entry)| (Index(key), entry))
    }

    /// Hands out `index`, which is what [`Self::peek`] gave.
    pub(crate) fn hand_out(&mut self, index: Index) {
        let entry = self.entries.get(index.0);
        let (bytes, in_memory) = entry.map_or((0, 0), |entry| (entry.bytes(), entry.memory_bytes()));
        if self.returned.remove(&index.0) {
            self.returned_ahead.leave(index.0, in_memory);
        } else {
            debug_assert!(index.0 > self.cursor, "{index} was handed out before (cursor {})", self.cursor);
            self.cursor = index.0;
            self.ahead.leave(index.0, in_memory);
        }
        self.handed_out_from = self.handed_out_from.min(index.0);
        self.unacked += 1;
        self.unacked_bytes += u64::from(bytes);
        self.deadlines.iter_mut().for_each(|deadlines| deadlines.handed_out(index.0));
    }

    /// Ready: not handed out, or come back.
    pub(crate) fn is_ready(&self, index: Index) -> bool {
        index.0 > self.cursor || self.returned.contains(&index.0)
    }

    // ---- expiry

    pub(crate) fn expires(&self, index: Index) -> Option<NonZeroU64> {
        self.deadlines.as_ref()?.get(index.0)
    }

    /// When the first of the ready ones leaves by itself.
    pub(crate) fn first_deadline(&self) -> Option<NonZeroU64> {
        self.deadlines.as_ref()?.first(self.cursor)
    }

    /// Ready ones that are due at `now`, in no order.
    pub(crate) fn due(&self, now: u64) -> impl Iterator<Item = Index> {
        self.deadlines.iter().flat_map(move |deadlines| deadlines.due(self.cursor, now)).map(Index)
    }

    /// The counts agree with the messages.
    pub(crate) fn assert_consistent(&self) {
        let handed_out = || self.entries.iter().filter(|(key, _)| !self.is_ready(Index(*key)));
        assert_eq!(self.unacked, handed_out().count(), "unacked");
        let bytes: u64 = self.entries.iter().map(|(_, entry)| u64::from(entry.bytes())).sum();
        assert_eq!(self.bytes, bytes, "bytes");
        let unacked: u64 = handed_out().map(|(_, entry)| u64::from(entry.bytes())).sum();
        assert_eq!(self.unacked_bytes, unacked, "bytes that are handed out");
        assert!(self.returned.iter().all(|key| *key <= self.cursor && self.entries.contains(*key)));
        if let Some(deadlines) = &self.deadlines {
            let (holds, is_ready) = (|index| self.entries.contains(index), |index| self.is_ready(Index(index)));
            deadlines.assert_consistent(holds, self.cursor, is_ready);
        }
        self.assert_memory_consistent();
    }
}
