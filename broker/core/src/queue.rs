//! One queue: its messages in index order, and which of them are handed out.
//!
//! The messages and their delivery counts are replicated state, changed by records alone. What is handed out (the cursor,
//! the returned ones) is the primary's own: a backup's cursor stays before the first message, so there everything is ready.
//!
//! It does not know who consumes; see the `delivery` module. Which messages are read back before they are handed out is
//! in `ahead`, which leave memory in `evict`.

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::sync::Arc;

use hashbrown::HashMap;
use understudy_record::variant::{Variant, is_broken};
use understudy_record::{Index, Message, QueueId, QueueSpec, Replicate, VhostId};

use crate::ahead::{Reach, Window};
use crate::arguments;
use crate::command::ConnectionId;
use crate::entry::Entry;
use crate::evict::Listed;
use crate::limits::Limits;
use crate::load::{Asked, WaitingGet};
use crate::runs::Runs;
use crate::session::ConsumerId;
use crate::slots::Slots;

#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) id: QueueId,
    pub(crate) vhost: VhostId,
    pub(crate) spec: QueueSpec,
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
    pub(crate) limits: Option<Limits>,
    /// The backlog of a sync point that is still arriving.
    backlog: Option<Backlog>,
    /// How often each message came back after each sync point that is being sent, so that the backlog can tell its delivery
    /// count as of the sync point: the receiver counts the later ones itself.
    returns_since_sync: HashMap<(Index, Index), u32>,
    /// Messages that are in memory.
    pub(crate) resident: usize,
    /// Where they are.
    pub(crate) runs: Runs,
    /// What comes next of the returned ones.
    pub(crate) returned_ahead: Window,
    /// What comes next above the cursor.
    pub(crate) ahead: Window,
    pub(crate) reach: Reach,
    /// No message below this index is handed out and resident.
    pub(crate) handed_out_from: u64,
    pub(crate) listed: Listed,
    pub(crate) session: QueueSession,
}

/// What arrived early: records about messages that are still to come.
#[derive(Debug, Default)]
struct Backlog {
    sync_point: Index,
    gone: HashSet<Index>,
    returned: HashMap<Index, u32>,
    purges: Vec<(Index, HashSet<Index>)>,
}

/// The primary's own knowledge of a queue: who owns it, who consumes, which lists it is in. Never replicated.
#[derive(Debug, Default)]
pub(crate) struct QueueSession {
    /// Of an exclusive queue.
    pub(crate) owner: Option<ConnectionId>,
    pub(crate) consumers: Vec<ConsumerId>,
    /// Consumers that may take the next message: those of the highest priority first, and these in turn.
    pub(crate) active: VecDeque<ConsumerId>,
    pub(crate) exclusive_consumer: bool,
    /// Of a queue with `x-single-active-consumer`: the one of its consumers that gets messages.
    pub(crate) single_active: Option<ConsumerId>,
    /// In the list of queues that have something to deliver.
    pub(crate) dirty: bool,
    /// In the list of queues that wait for a commit.
    pub(crate) waiting: bool,
    /// Messages that are being read back.
    pub(crate) loading: Option<Asked>,
    /// In the list of queues that wait for others' messages to be read back first.
    pub(crate) wanting: bool,
    /// Whose message is being read back, or will be with its commit. Each is also a reply that its channel waits for.
    pub(crate) gets: Vec<WaitingGet>,
}

/// What a piece of backlog led to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// With its weight in bytes.
    Added(u32),
    /// It was settled or purged since the sync point.
    AlreadyGone,
    /// Above the sync point, or not below what is here, or the backlog is done.
    OutOfPlace,
}

impl Queue {
    pub(crate) fn new(vhost: VhostId, id: QueueId, spec: QueueSpec) -> Self {
        Self {
            id,
            vhost,
            limits: Limits::of(&spec.arguments),
            spec,
            entries: Slots::default(),
            bytes: 0,
            cursor: 0,
            returned: BTreeSet::new(),
            unacked: 0,
            unacked_bytes: 0,
            backlog: None,
            returns_since_sync: HashMap::new(),
            resident: 0,
            runs: Runs::default(),
            returned_ahead: Window::default(),
            ahead: Window::default(),
            reach: Reach::default(),
            handed_out_from: u64::MAX,
            listed: Listed::No,
            session: QueueSession::default(),
        }
    }

    /// A queue whose backlog up to `sync_point` is still to come.
    pub(crate) fn awaiting_backlog(vhost: VhostId, id: QueueId, spec: QueueSpec, sync_point: Index) -> Self {
        Self { backlog: Some(Backlog { sync_point, ..Backlog::default() }), ..Self::new(vhost, id, spec) }
    }

    /// Its messages are on every replica.
    pub(crate) fn is_replicated(&self) -> bool {
        self.spec.replicate == Replicate::All
    }

    /// Of its consumers one gets messages, until it goes.
    pub(crate) fn has_single_active_consumer(&self) -> bool {
        !self.spec.arguments.is_empty() && arguments::wants_single_active_consumer(&self.spec.arguments)
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn ready(&self) -> usize {
        self.entries.len() - self.unacked
    }

    pub(crate) fn ready_bytes(&self) -> u64 {
        self.bytes - self.unacked_bytes
    }

    pub(crate) fn unacked(&self) -> usize {
        self.unacked
    }

    pub(crate) fn contains(&self, index: Index) -> bool {
        self.entries.contains(index.0)
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = (Index, &Entry)> {
        self.entries.iter().map(|(key, entry)| (Index(key), entry))
    }

    /// With `from` and above, oldest first.
    pub(crate) fn entries_from(&self, from: Index) -> impl Iterator<Item = (Index, &Entry)> {
        self.entries.iter_after(from.0.saturating_sub(1)).map(|(key, entry)| (Index(key), entry))
    }

    /// Below `before`, newest first.
    pub(crate) fn entries_down_from(&self, before: Index) -> impl Iterator<Item = (Index, &Entry)> {
        self.entries.iter_down_from(before.0).map(|(key, entry)| (Index(key), entry))
    }

    pub(crate) fn into_entries(self) -> impl Iterator<Item = (Index, Entry)> {
        self.entries.into_items().map(|(key, entry)| (Index(key), entry))
    }

    pub(crate) fn push(&mut self, index: Index, entry: Entry) {
        self.bytes += u64::from(entry.bytes());
        if entry.is_resident() {
            self.resident += 1;
            self.runs.push_back(index.0, self.entries.last_key());
        }
        self.entries.push_back(index.0, entry);
    }

    /// What was removed; `None` if it left before.
    pub(crate) fn remove(&mut self, index: Index) -> Option<Entry> {
        let Some(entry) = self.entries.remove(index.0) else {
            if let Some(backlog) = self.backlog.as_mut().filter(|backlog| index <= backlog.sync_point)
                && !is_broken(Variant::ForgetEarlyDequeue)
            {
                backlog.gone.insert(index);
            }
            return None;
        };
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

    /// The message was delivered and came back: ready again, at its old place.
    pub(crate) fn give_back(&mut self, index: Index, syncs: &BTreeMap<Index, usize>) {
        if let Some(entry) = self.entries.get_mut(index.0) {
            entry.delivery_count = entry.delivery_count.saturating_add(1);
            let (bytes, resident) = (entry.memory_bytes(), entry.is_resident());
            if index.0 <= self.cursor && self.returned.insert(index.0) {
                self.unacked -= 1;
                self.unacked_bytes -= u64::from(entry.bytes());
                self.returned_ahead.come_back(index.0, bytes, resident);
            }
            for sync_point in syncs.range(index..).map(|(sync_point, _)| sync_point) {
                *self.returns_since_sync.entry((*sync_point, index)).or_default() += 1;
            }
        } else if let Some(backlog) = self.backlog.as_mut().filter(|backlog| index <= backlog.sync_point) {
            *backlog.returned.entry(index).or_default() += 1;
        }
    }

    pub(crate) fn purge(&mut self, up_to: Index, except: &[Index], mut gone: impl FnMut(Index, Entry)) {
        let except: HashSet<Index> = except.iter().copied().collect();
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
        if let Some(backlog) = &mut self.backlog {
            backlog.purges.push((up_to, except));
        }
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
    }

    // ---- handing out, on the primary

    /// Everything is ready again, for a new primary.
    pub(crate) fn hand_out_from_start(&mut self) {
        self.cursor = 0;
        self.returned.clear();
        (self.unacked, self.unacked_bytes) = (0, 0);
        self.forget_ahead();
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
    }

    /// Ready: not handed out, or come back.
    pub(crate) fn is_ready(&self, index: Index) -> bool {
        index.0 > self.cursor || self.returned.contains(&index.0)
    }

    /// In index order.
    pub(crate) fn unacked_indexes(&self) -> Vec<Index> {
        let below = self.entries.iter().take_while(|(key, _)| *key <= self.cursor);
        below.filter(|(key, _)| !self.returned.contains(key)).map(|(key, _)| Index(key)).collect()
    }

    /// In index order.
    pub(crate) fn ready_indexes(&self) -> Vec<Index> {
        let ready = self.entries.iter().filter(|(key, _)| *key > self.cursor || self.returned.contains(key));
        ready.map(|(key, _)| Index(key)).collect()
    }

    // ---- sync points

    /// The delivery count the message had at `sync_point`, while that sync point is being sent.
    pub(crate) fn delivery_count_at(&self, sync_point: Index, index: Index, entry: &Entry) -> u32 {
        if self.returns_since_sync.is_empty() {
            return entry.delivery_count;
        }
        let since = self.returns_since_sync.get(&(sync_point, index)).copied().unwrap_or(0);
        entry.delivery_count.saturating_sub(since)
    }

    pub(crate) fn forget_sync(&mut self, sync_point: Index) {
        self.returns_since_sync.retain(|(other, _), _| *other != sync_point);
    }

    /// A message of the backlog: older than all that are here. It is stored.
    pub(crate) fn arrive(&mut self, index: Index, delivery_count: u32, bytes: u32, large: bool) -> Arrival {
        let lowest = self.entries.first_key();
        let Some(backlog) = &mut self.backlog else { return Arrival::OutOfPlace };
        if index > backlog.sync_point || lowest.is_some_and(|lowest| lowest <= index.0) {
            return Arrival::OutOfPlace;
        }
        let purged = backlog.purges.iter().any(|(up_to, except)| index <= *up_to && !except.contains(&index));
        if backlog.gone.remove(&index) || purged {
            return Arrival::AlreadyGone;
        }
        let delivery_count = delivery_count.saturating_add(backlog.returned.remove(&index).unwrap_or(0));
        let entry = Entry::stored(bytes, delivery_count, large);
        let bytes = entry.bytes();
        self.bytes += u64::from(bytes);
        self.entries.push_front(index.0, entry);
        Arrival::Added(bytes)
    }

    /// The backlog is here in full; what was kept aside for messages that never came is dropped.
    pub(crate) fn backlog_done(&mut self) {
        self.backlog = None;
    }

    pub(crate) fn awaits_backlog(&self) -> bool {
        self.backlog.is_some()
    }

    /// The counts agree with the messages.
    pub(crate) fn assert_consistent(&self) {
        assert_eq!(self.unacked, self.unacked_indexes().len(), "unacked of queue {}", self.id);
        assert_eq!(self.ready(), self.ready_indexes().len(), "ready of queue {}", self.id);
        let bytes: u64 = self.entries.iter().map(|(_, entry)| u64::from(entry.bytes())).sum();
        assert_eq!(self.bytes, bytes, "bytes of queue {}", self.id);
        let handed_out = self.entries.iter().filter(|(key, _)| !self.is_ready(Index(*key)));
        let unacked: u64 = handed_out.map(|(_, entry)| u64::from(entry.bytes())).sum();
        assert_eq!(self.unacked_bytes, unacked, "bytes of queue {} that are handed out", self.id);
        self.assert_memory_consistent();
        assert!(self.returned.iter().all(|key| *key <= self.cursor && self.entries.contains(*key)));
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use understudy_record::{Body, ShortStr};

    use super::*;

    fn message() -> Message {
        let body = Body::new(Bytes::from_static(b"four"));
        Message {
            exchange: ShortStr::EMPTY,
            routing_key: ShortStr::EMPTY,
            properties: Bytes::new(),
            persistent: true,
            parts: None,
            body,
        }
    }

    fn queue(indexes: impl IntoIterator<Item = u64>) -> Queue {
        let name = ShortStr::from_static("q");
        let spec = QueueSpec {
            name,
            durable: true,
            exclusive: false,
            auto_delete: false,
            replicate: Replicate::All,
            arguments: Bytes::new(),
        };
        let mut queue = Queue::new(VhostId::DEFAULT, QueueId(Index(1)), spec);
        indexes.into_iter().for_each(|index| queue.push(Index(index), Entry::resident(Arc::new(message()), 4)));
        queue
    }

    fn hand_out(queue: &mut Queue) -> Option<u64> {
        let index = queue.peek()?.0;
        queue.hand_out(index);
        queue.assert_consistent();
        Some(index.0)
    }

    /// Case T8: a message that came back takes its old place.
    #[test]
    fn what_comes_back_goes_to_its_old_place() {
        let mut queue = queue([2, 3, 5]);
        assert_eq!((hand_out(&mut queue), hand_out(&mut queue)), (Some(2), Some(3)));
        queue.give_back(Index(3), &BTreeMap::new());
        queue.give_back(Index(2), &BTreeMap::new());
        assert_eq!((queue.ready(), queue.unacked()), (3, 0));
        assert_eq!((hand_out(&mut queue), hand_out(&mut queue)), (Some(2), Some(3)));
        assert_eq!(queue.entries().next().unwrap().1.delivery_count, 1);
        assert_eq!((hand_out(&mut queue), hand_out(&mut queue)), (Some(5), None));
        assert!(queue.remove(Index(3)).is_some() && queue.remove(Index(3)).is_none());
        queue.assert_consistent();
        assert_eq!((queue.ready(), queue.unacked(), queue.bytes()), (0, 2, 8));
    }

    #[test]
    fn a_purge_spares_what_is_handed_out() {
        let mut queue = queue([2, 3, 4, 9]);
        hand_out(&mut queue);
        let except = queue.unacked_indexes();
        let mut gone = Vec::new();
        queue.purge(Index(4), &except, |index, _| gone.push(index.0));
        assert_eq!(gone, [3, 4]);
        queue.assert_consistent();
        assert_eq!((queue.ready(), queue.unacked()), (1, 1));
    }

    /// Records about messages that the backlog has not brought yet hold when it brings them.
    #[test]
    fn early_records_wait_for_their_messages() {
        let spec = queue([]).spec;
        let mut queue = Queue::awaiting_backlog(VhostId::DEFAULT, QueueId(Index(1)), spec, Index(10));
        queue.push(Index(12), Entry::stored(4, 0, false));
        queue.remove(Index(7));
        queue.give_back(Index(6), &BTreeMap::new());
        queue.purge(Index(4), &[Index(3)], |_, _| {});
        assert_eq!(queue.arrive(Index(9), 0, 4, false), Arrival::Added(4));
        assert_eq!(queue.arrive(Index(9), 0, 4, false), Arrival::OutOfPlace, "twice");
        assert_eq!(queue.arrive(Index(7), 0, 4, false), Arrival::AlreadyGone);
        assert_eq!(queue.arrive(Index(6), 2, 4, false), Arrival::Added(4));
        assert_eq!(queue.arrive(Index(4), 0, 4, false), Arrival::AlreadyGone);
        assert_eq!(queue.arrive(Index(3), 0, 4, false), Arrival::Added(4));
        queue.backlog_done();
        assert_eq!(queue.arrive(Index(2), 0, 4, false), Arrival::OutOfPlace, "after the end");
        let counts: Vec<_> = queue.entries().map(|(index, entry)| (index.0, entry.delivery_count)).collect();
        assert_eq!(counts, [(3, 0), (6, 3), (9, 0), (12, 0)]);
        queue.assert_consistent();
    }
}
