//! What a queue reads back from the log, ahead of its consumers: batches in delivery order (what came back first, then what
//! is above the cursor), asked for while enough is still in memory to hand out meanwhile.
//!
//! How far a queue has looked is remembered, so each message is passed over once: see [`Window`]. Who reads is not known
//! here; see `load` for when a queue asks.

use understudy_record::{Index, QueueId};

use crate::entry::Entry;
use crate::lane::Lane;
use crate::queue::Queue;
use crate::{HEAD_BYTES, LEAST_REACH, LOAD_BYTES, LOAD_MESSAGES, MAX_DELIVERIES_PER_STEP};

/// How many messages are enough ahead; twice as many are asked for in one go, up to a batch's bounds. It falls back to a few
/// where memory is so short that what was ahead had to leave before somebody took it, and doubles with each batch: such a
/// queue would else read the same messages again for each one that it hands out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reach(usize);

impl Default for Reach {
    /// More messages than one step hands out need not lie there, however light they are.
    fn default() -> Self {
        Self(MAX_DELIVERIES_PER_STEP)
    }
}

impl Reach {
    pub(crate) fn fall_back(&mut self) {
        self.0 = LEAST_REACH;
    }

    pub(crate) fn grow(&mut self) {
        self.0 = (self.0 * 2).min(MAX_DELIVERIES_PER_STEP);
    }

    fn is_short(self) -> bool {
        self.0 < MAX_DELIVERIES_PER_STEP
    }

    fn batch_messages(self) -> usize {
        (self.0 * 2).min(LOAD_MESSAGES)
    }
}

/// A stretch of ready messages, from the next one to hand out: all of them are in memory or asked for.
#[derive(Debug, Default)]
pub(crate) struct Window {
    /// The index of the last; 0: none.
    pub(crate) to: u64,
    bytes: u64,
    messages: usize,
}

impl Window {
    pub(crate) fn covers(&self, key: u64) -> bool {
        key <= self.to
    }

    /// The message was handed out, or is gone.
    pub(crate) fn leave(&mut self, key: u64, bytes: u32) {
        if self.covers(key) {
            self.bytes -= u64::from(bytes);
            self.messages -= 1;
        }
    }

    /// The message is ready again. If it is stored the queue must look anew.
    pub(crate) fn come_back(&mut self, key: u64, bytes: u32, resident: bool) {
        if !self.covers(key) {
        } else if resident {
            self.grow(self.to, bytes);
        } else {
            *self = Self::default();
        }
    }

    /// Half a batch, so that the next is there before the last one is used up.
    fn is_enough_with(&self, next: Option<&Self>, reach: Reach) -> bool {
        let (bytes, messages) = next.map_or((0, 0), |next| (next.bytes, next.messages));
        self.bytes + bytes >= HEAD_BYTES || self.messages + messages >= reach.0
    }

    fn grow(&mut self, to: u64, bytes: u32) {
        self.to = to;
        self.bytes += u64::from(bytes);
        self.messages += 1;
    }
}

/// Messages to be read back in one go.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) indexes: Vec<Index>,
    pub(crate) bytes: u64,
    most: usize,
}

impl Batch {
    /// Of a queue that looks so far.
    pub(crate) fn of(reach: Reach) -> Self {
        Self { indexes: Vec::new(), bytes: 0, most: reach.batch_messages() }
    }

    /// `false`: it is full. A message heavier than a batch is one by itself.
    pub(crate) fn add(&mut self, index: Index, bytes: u32) -> bool {
        let bytes = u64::from(bytes);
        let fits = self.bytes + bytes <= LOAD_BYTES && self.indexes.len() < self.most;
        if fits || self.indexes.is_empty() {
            self.bytes += bytes;
            self.indexes.push(index);
            return true;
        }
        false
    }
}

struct Look<'a> {
    up_to: u64,
    batch: Option<&'a mut Batch>,
    passed: usize,
    /// Messages passed since the first stored one was found.
    passed_since_stored: Option<usize>,
}

impl Look<'_> {
    fn passes(&mut self, key: u64, entry: &Entry, enough: bool) -> bool {
        let ends = self.passed_since_stored.map_or(enough, |passed| passed >= LOAD_MESSAGES);
        if key > self.up_to || ends {
            return false;
        }
        if !entry.is_resident() {
            let taken = self.batch.as_mut().is_some_and(|batch| batch.add(Index(key), entry.memory_bytes()));
            if !taken {
                return false;
            }
            self.passed_since_stored.get_or_insert(0);
        }
        self.passed += 1;
        self.passed_since_stored.iter_mut().for_each(|passed| *passed += 1);
        true
    }
}

impl Queue {
    /// Nothing more need be read back now: everything is in memory, or enough of what comes next.
    pub(crate) fn has_enough_ahead(&self) -> bool {
        let next = self.lanes().find(|lane| lane.resident < lane.entries.len());
        next.is_none_or(|lane| lane.sees_enough_ahead(self.reach) || self.waits_for_room())
    }

    /// What is read beyond the next message would leave again before anybody has room for it, and be asked for once more.
    fn waits_for_room(&self) -> bool {
        let next_is_there = || self.peek().is_some_and(|(_, entry)| entry.is_resident());
        self.reach.is_short() && self.session.active.is_empty() && next_is_there()
    }

    /// Looks on, over what is in memory, until there is enough ahead or `up_to` is reached. Stored messages go into `batch`
    /// until it is full; without one they end the look. Returns how many messages were passed.
    pub(crate) fn look_ahead(&mut self, up_to: Index, mut batch: Option<&mut Batch>) -> usize {
        let (reach, mut passed) = (self.reach, 0);
        for lane in self.lanes_mut() {
            passed += lane.look_ahead(reach, up_to, batch.as_deref_mut());
            if !lane.sees_all() {
                break; // those below come later
            }
        }
        passed
    }

    /// To be looked at anew: what was ahead has left memory, or did not come.
    pub(crate) fn forget_ahead(&mut self) {
        self.lanes_mut().for_each(Lane::forget_ahead);
    }

    /// It is stored, and somebody will ask for it.
    pub(crate) fn is_wanted(&self, index: Index) -> bool {
        self.is_ready(index) && self.entry(index).is_some_and(|entry| !entry.is_resident())
    }

    pub(crate) fn assert_ahead_consistent(&self) {
        let loading = self.session.loading.is_some();
        self.lanes().for_each(|lane| lane.assert_ahead_consistent(loading, self.id));
    }
}

impl Lane {
    /// Nothing need be looked at to know what comes next.
    pub(crate) fn sees_enough_ahead(&self, reach: Reach) -> bool {
        let seen = self.sees_returned();
        self.returned_ahead.is_enough_with(seen.then_some(&self.ahead), reach)
    }

    fn sees_returned(&self) -> bool {
        self.returned.last().is_none_or(|last| self.returned_ahead.covers(*last))
    }

    fn sees_all(&self) -> bool {
        self.sees_returned() && self.entries.last_key().is_none_or(|last| last <= self.ahead.to.max(self.cursor))
    }

    /// See [`Queue::look_ahead`].
    pub(crate) fn look_ahead(&mut self, reach: Reach, up_to: Index, batch: Option<&mut Batch>) -> usize {
        let mut look = Look { up_to: up_to.0, batch, passed: 0, passed_since_stored: None };
        for key in self.returned.range(self.returned_ahead.to + 1..) {
            let Some(entry) = self.entries.get(*key) else { break };
            if !look.passes(*key, entry, self.returned_ahead.is_enough_with(None, reach)) {
                return look.passed;
            }
            self.returned_ahead.grow(*key, entry.memory_bytes());
        }
        for (key, entry) in self.entries.iter_after(self.ahead.to.max(self.cursor)) {
            if !look.passes(key, entry, self.returned_ahead.is_enough_with(Some(&self.ahead), reach)) {
                return look.passed;
            }
            self.ahead.grow(key, entry.memory_bytes());
        }
        look.passed
    }

    pub(crate) fn forget_ahead(&mut self) {
        (self.returned_ahead, self.ahead) = (Window::default(), Window::default());
    }

    fn assert_ahead_consistent(&self, loading: bool, queue: QueueId) {
        let returned = self.returned.iter().filter(|key| self.returned_ahead.covers(**key));
        let returned = returned.filter_map(|key| self.entries.get(*key));
        let above = self.entries.iter_after(self.cursor).filter(|(key, _)| self.ahead.covers(*key));
        for (window, entries) in [
            (&self.returned_ahead, returned.collect::<Vec<_>>()),
            (&self.ahead, above.map(|(_, entry)| entry).collect::<Vec<_>>()),
        ] {
            let bytes: u64 = entries.iter().map(|entry| u64::from(entry.memory_bytes())).sum();
            assert_eq!((window.bytes, window.messages), (bytes, entries.len()), "ahead in queue {queue}");
            let stored = entries.iter().any(|entry| !entry.is_resident());
            assert!(loading || !stored, "queue {queue} takes a stored message for one in memory");
        }
    }
}
