//! One queue: its lanes of messages, one for each priority, and what the primary knows of it.
//!
//! It does not know who consumes; see the `delivery` module. What is handed out of a lane, and in which order, is in `lane`.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;
use understudy_record::variant::{Variant, is_broken};
use understudy_record::{HeldMessage, Index, Message, MessageKey, QueueId, QueueSpec, Replicate, VhostId};

use crate::ahead::Reach;
use crate::command::ConnectionId;
use crate::dead_letter::Condemned;
use crate::entry::Entry;
use crate::evict::Listed;
use crate::keys::{KeyRules, Keys};
use crate::lane::Lane;
use crate::load::{Asked, WaitingGet};
use crate::policies::Settings;
use crate::queue_rules::QueueRules;
use crate::session::ConsumerId;

#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) id: QueueId,
    pub(crate) vhost: VhostId,
    pub(crate) spec: QueueSpec,
    pub(crate) rules: QueueRules,
    /// What it knows, if it drops duplicates.
    pub(crate) keys: Option<Box<Keys>>,
    /// Of the lowest priority; mostly there is no other.
    lane: Lane,
    /// Of the priorities from 1 on, as far as there were messages.
    upper_lanes: Vec<Lane>,
    /// The backlog of a sync point that is still arriving.
    backlog: Option<Backlog>,
    /// How often each message came back after each sync point that is being sent, so that the backlog can tell its delivery
    /// count as of the sync point: the receiver counts the later ones itself.
    returns_since_sync: HashMap<(Index, Index), u32>,
    pub(crate) reach: Reach,
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
    /// When its deadlines are looked at, in milliseconds since 1970.
    pub(crate) watched_from: Option<u64>,
    /// Messages above this one are committed since the last turn, and consumers waited for them: they are offered before
    /// they can expire.
    pub(crate) fresh_above: Option<Index>,
    /// When it goes, unless it is used.
    pub(crate) unused_until: Option<Duration>,
    /// Messages on their way to where its dead letters go.
    pub(crate) condemned: Option<Box<Condemned>>,
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

impl QueueSession {
    pub(crate) fn is_fresh(&self, index: Index) -> bool {
        self.fresh_above.is_some_and(|above| index > above)
    }
}

impl Queue {
    /// As its arguments alone make it.
    pub(crate) fn new(vhost: VhostId, id: QueueId, spec: QueueSpec) -> Self {
        Self {
            id,
            rules: QueueRules::of(&spec.arguments, Settings::default()),
            keys: spec.deduplicates.then(|| Box::new(Keys::new(KeyRules::of(&spec.arguments)))),
            vhost,
            spec,
            lane: Lane::default(),
            upper_lanes: Vec::new(),
            backlog: None,
            returns_since_sync: HashMap::new(),
            reach: Reach::default(),
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

    // ---- lanes

    /// The highest priority first.
    pub(crate) fn lanes(&self) -> impl DoubleEndedIterator<Item = &Lane> {
        self.upper_lanes.iter().rev().chain(std::iter::once(&self.lane))
    }

    /// The same.
    pub(crate) fn lanes_mut(&mut self) -> impl DoubleEndedIterator<Item = &mut Lane> {
        self.upper_lanes.iter_mut().rev().chain(std::iter::once(&mut self.lane))
    }

    /// In which the message is, if it is here.
    fn lane_of(&self, index: Index) -> &Lane {
        self.upper_lanes.iter().find(|lane| lane.entries.contains(index.0)).unwrap_or(&self.lane)
    }

    fn lane_of_mut(&mut self, index: Index) -> &mut Lane {
        self.upper_lanes.iter_mut().find(|lane| lane.entries.contains(index.0)).unwrap_or(&mut self.lane)
    }

    /// For messages of this priority, or the highest that the queue has.
    fn lane_for(&mut self, priority: u8) -> &mut Lane {
        match usize::from(priority.min(self.rules.max_priority)) {
            0 => &mut self.lane,
            priority => {
                let there = self.upper_lanes.len().max(priority);
                self.upper_lanes.resize_with(there, Lane::default);
                &mut self.upper_lanes[priority - 1]
            }
        }
    }

    /// By which the message is handed out.
    pub(crate) fn priority_of(&self, index: Index) -> u8 {
        let place = self.upper_lanes.iter().position(|lane| lane.entries.contains(index.0));
        place.and_then(|place| u8::try_from(place + 1).ok()).unwrap_or(0)
    }

    pub(crate) fn entry(&self, index: Index) -> Option<&Entry> {
        self.lane_of(index).entries.get(index.0)
    }

    pub(crate) fn len(&self) -> usize {
        self.lanes().map(Lane::len).sum()
    }

    pub(crate) fn ready(&self) -> usize {
        self.lanes().map(|lane| lane.len() - lane.unacked()).sum()
    }

    pub(crate) fn ready_bytes(&self) -> u64 {
        self.lanes().map(|lane| lane.bytes() - lane.unacked_bytes()).sum()
    }

    pub(crate) fn unacked(&self) -> usize {
        self.lanes().map(Lane::unacked).sum()
    }

    /// Keys that it remembers.
    pub(crate) fn remembered(&self) -> usize {
        self.keys.as_ref().map_or(0, |keys| keys.len())
    }

    pub(crate) fn contains(&self, index: Index) -> bool {
        self.entry(index).is_some()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.lanes().map(Lane::bytes).sum()
    }

    /// Messages that are in memory.
    pub(crate) fn resident(&self) -> usize {
        self.lanes().map(|lane| lane.resident).sum()
    }

    /// Oldest first.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (Index, &Entry)> {
        self.entries_from(Index(0))
    }

    /// With `from` and above, oldest first.
    pub(crate) fn entries_from(&self, from: Index) -> impl Iterator<Item = (Index, &Entry)> {
        let lanes = self.lanes().map(|lane| lane.entries.iter_after(from.0.saturating_sub(1)));
        merged(lanes.collect(), |key, best| key < best)
    }

    /// Below `before`, newest first.
    pub(crate) fn entries_down_from(&self, before: Index) -> impl Iterator<Item = (Index, &Entry)> {
        let lanes = self.lanes().map(|lane| lane.entries.iter_down_from(before.0));
        merged(lanes.collect(), |key, best| key > best)
    }

    pub(crate) fn into_entries(self) -> impl Iterator<Item = (Index, Entry)> {
        let lanes = self.upper_lanes.into_iter().chain(std::iter::once(self.lane));
        lanes.flat_map(|lane| lane.entries.into_items()).map(|(key, entry)| (Index(key), entry))
    }

    /// `expires`: when it leaves by itself, in milliseconds since 1970.
    pub(crate) fn push(&mut self, index: Index, entry: Entry, priority: u8, expires: Option<NonZeroU64>) {
        self.lane_for(priority).push(index, entry, expires);
    }

    /// What was removed; `None` if it left before.
    pub(crate) fn remove(&mut self, index: Index) -> Option<Entry> {
        let removed = self.lane_of_mut(index).remove(index);
        if let Some(keys) = &mut self.keys {
            keys.left(index);
        }
        if removed.is_none()
            && let Some(backlog) = self.backlog.as_mut().filter(|backlog| index <= backlog.sync_point)
            && !is_broken(Variant::ForgetEarlyDequeue)
        {
            backlog.gone.insert(index);
        }
        removed
    }

    /// The message is stored and becomes resident; `message` gives it, told its weight.
    pub(crate) fn load(&mut self, index: Index, message: impl FnOnce(u32) -> Arc<Message>) {
        self.lane_of_mut(index).load(index, message);
    }

    /// The message was delivered and came back: ready again, at its old place.
    pub(crate) fn give_back(&mut self, index: Index, syncs: &BTreeMap<Index, usize>) {
        if self.lane_of_mut(index).give_back(index) {
            for sync_point in syncs.range(index..).map(|(sync_point, _)| sync_point) {
                *self.returns_since_sync.entry((*sync_point, index)).or_default() += 1;
            }
        } else if let Some(backlog) = self.backlog.as_mut().filter(|backlog| index <= backlog.sync_point) {
            *backlog.returned.entry(index).or_default() += 1;
        }
    }

    pub(crate) fn purge(&mut self, up_to: Index, except: &[Index], mut gone: impl FnMut(Index, Entry)) {
        let except: HashSet<Index> = except.iter().copied().collect();
        let mut keys = self.keys.take();
        self.lanes_mut().for_each(|lane| {
            lane.purge(up_to, &except, &mut |index, entry| {
                keys.iter_mut().for_each(|keys| keys.left(index));
                gone(index, entry);
            });
        });
        self.keys = keys;
        if let Some(backlog) = &mut self.backlog {
            backlog.purges.push((up_to, except));
        }
    }

    // ---- handing out, on the primary

    /// Everything is ready again, for a new primary.
    pub(crate) fn hand_out_from_start(&mut self) {
        self.lanes_mut().for_each(Lane::hand_out_from_start);
    }

    /// The next message to hand out: the oldest of the highest priority.
    pub(crate) fn peek(&self) -> Option<(Index, &Entry)> {
        if self.upper_lanes.is_empty() {
            return self.lane.peek();
        }
        self.lanes().find_map(Lane::peek)
    }

    /// The first to go from a queue that is too long: the oldest of the lowest priority.
    pub(crate) fn peek_least(&self) -> Option<(Index, &Entry)> {
        self.lanes().rev().find_map(Lane::peek)
    }

    /// Hands out `index`, which is what [`Self::peek`] or [`Self::peek_least`] gave.
    pub(crate) fn hand_out(&mut self, index: Index) {
        self.lane_of_mut(index).hand_out(index);
    }

    /// Ready: not handed out, or come back.
    pub(crate) fn is_ready(&self, index: Index) -> bool {
        self.lane_of(index).is_ready(index)
    }

    /// In index order.
    pub(crate) fn unacked_indexes(&self) -> Vec<Index> {
        let handed_out = self.lanes().flat_map(|lane| {
            let below = lane.entries.iter().take_while(|(key, _)| *key <= lane.cursor);
            below.filter(|(key, _)| !lane.returned.contains(key)).map(|(key, _)| Index(key))
        });
        let mut handed_out: Vec<_> = handed_out.collect();
        handed_out.sort_unstable();
        handed_out
    }

    /// In index order.
    pub(crate) fn ready_indexes(&self) -> Vec<Index> {
        self.entries().map(|(index, _)| index).filter(|index| self.is_ready(*index)).collect()
    }

    // ---- expiry

    /// When the message leaves by itself, in milliseconds since 1970.
    pub(crate) fn expires(&self, index: Index) -> Option<NonZeroU64> {
        self.lane_of(index).expires(index)
    }

    /// When the first of the ready ones leaves by itself.
    pub(crate) fn first_deadline(&self) -> Option<NonZeroU64> {
        self.lanes().filter_map(Lane::first_deadline).min()
    }

    /// Ready ones that are due at `now`, in no order.
    pub(crate) fn due(&self, now: u64) -> impl Iterator<Item = Index> {
        self.lanes().flat_map(move |lane| lane.due(now))
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

    /// A message of the backlog: older than all that are here, of its priority. It is stored.
    pub(crate) fn arrive(&mut self, message: HeldMessage, key: Option<MessageKey>, large: bool) -> Arrival {
        let HeldMessage { index, bytes, priority, expires_ms, .. } = message;
        let Some(backlog) = &mut self.backlog else { return Arrival::OutOfPlace };
        if index > backlog.sync_point {
            return Arrival::OutOfPlace;
        }
        let purged = backlog.purges.iter().any(|(up_to, except)| index <= *up_to && !except.contains(&index));
        let gone = backlog.gone.remove(&index) || purged;
        let returned = backlog.returned.remove(&index).unwrap_or(0);
        let entry = Entry::stored(bytes, message.delivery_count.saturating_add(returned), large);
        let bytes = entry.bytes();
        let lane = self.lane_for(priority);
        if gone {
            let in_place = lane.entries.first_key().is_none_or(|lowest| lowest > index.0);
            return if in_place { Arrival::AlreadyGone } else { Arrival::OutOfPlace };
        }
        if lane.push_front(index, entry, NonZeroU64::new(expires_ms)) {
            if let (Some(keys), Some(key)) = (&mut self.keys, key) {
                keys.arrive(index, key);
            }
            Arrival::Added(bytes)
        } else {
            Arrival::OutOfPlace
        }
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
        self.lanes().for_each(Lane::assert_consistent);
        self.keys.iter().for_each(|keys| keys.assert_consistent(|index| self.contains(index)));
        assert_eq!(self.unacked(), self.unacked_indexes().len(), "unacked of queue {}", self.id);
        self.assert_ahead_consistent();
    }
}

/// One sequence of several, of each the next that is `before` the others' next.
fn merged<'a, I: Iterator<Item = (u64, &'a Entry)>>(
    lanes: Vec<I>,
    before: fn(u64, u64) -> bool,
) -> impl Iterator<Item = (Index, &'a Entry)> {
    let mut lanes: Vec<_> = lanes.into_iter().map(Iterator::peekable).collect();
    std::iter::from_fn(move || {
        let mut best: Option<(usize, u64)> = None;
        if lanes.len() > 1 {
            for (place, lane) in lanes.iter_mut().enumerate() {
                let Some((key, _)) = lane.peek() else { continue };
                if best.is_none_or(|(_, best)| before(*key, best)) {
                    best = Some((place, *key));
                }
            }
        }
        let (key, entry) = lanes.get_mut(best.map_or(0, |(place, _)| place))?.next()?;
        Some((Index(key), entry))
    })
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use understudy_protocol::FieldTable;
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
            deduplicates: false,
            arguments: Bytes::new(),
        };
        let mut queue = Queue::new(VhostId::DEFAULT, QueueId(Index(1)), spec);
        indexes
            .into_iter()
            .for_each(|index| queue.push(Index(index), Entry::resident(Arc::new(message()), 4), 0, None));
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

    fn arrive(queue: &mut Queue, index: u64, delivery_count: u32) -> Arrival {
        let message = HeldMessage { index: Index(index), delivery_count, bytes: 4, ..HeldMessage::default() };
        queue.arrive(message, None, false)
    }

    /// Records about messages that the backlog has not brought yet hold when it brings them.
    #[test]
    fn early_records_wait_for_their_messages() {
        let spec = queue([]).spec;
        let mut queue = Queue::awaiting_backlog(VhostId::DEFAULT, QueueId(Index(1)), spec, Index(10));
        queue.push(Index(12), Entry::stored(4, 0, false), 0, None);
        queue.remove(Index(7));
        queue.give_back(Index(6), &BTreeMap::new());
        queue.purge(Index(4), &[Index(3)], |_, _| {});
        assert_eq!(arrive(&mut queue, 9, 0), Arrival::Added(4));
        assert_eq!(arrive(&mut queue, 9, 0), Arrival::OutOfPlace, "twice");
        assert_eq!(arrive(&mut queue, 7, 0), Arrival::AlreadyGone);
        assert_eq!(arrive(&mut queue, 6, 2), Arrival::Added(4));
        assert_eq!(arrive(&mut queue, 4, 0), Arrival::AlreadyGone);
        assert_eq!(arrive(&mut queue, 3, 0), Arrival::Added(4));
        queue.backlog_done();
        assert_eq!(arrive(&mut queue, 2, 0), Arrival::OutOfPlace, "after the end");
        let counts: Vec<_> = queue.entries().map(|(index, entry)| (index.0, entry.delivery_count)).collect();
        assert_eq!(counts, [(3, 0), (6, 3), (9, 0), (12, 0)]);
        queue.assert_consistent();
    }

    /// Case T7: what came back keeps its place among those of its priority.
    #[test]
    fn the_highest_priority_comes_first() {
        let mut spec = queue([]).spec;
        spec.arguments = FieldTable::new().with("x-max-priority", 5).to_bytes().slice(4..);
        let mut queue = Queue::new(VhostId::DEFAULT, QueueId(Index(1)), spec);
        for (index, priority) in [(2, 0), (3, 5), (4, 200), (5, 1), (6, 0)] {
            queue.push(Index(index), Entry::stored(4, 0, false), priority, None);
        }
        assert_eq!(queue.entries().map(|(index, _)| index.0).collect::<Vec<_>>(), [2, 3, 4, 5, 6]);
        let newest: Vec<_> = queue.entries_down_from(Index(6)).map(|(index, _)| index.0).collect();
        assert_eq!(newest, [5, 4, 3, 2]);
        assert_eq!(queue.entries_from(Index(4)).map(|(index, _)| index.0).collect::<Vec<_>>(), [4, 5, 6]);
        assert_eq!((hand_out(&mut queue), hand_out(&mut queue), hand_out(&mut queue)), (Some(3), Some(4), Some(5)));
        queue.give_back(Index(5), &BTreeMap::new());
        queue.give_back(Index(3), &BTreeMap::new());
        assert_eq!((hand_out(&mut queue), hand_out(&mut queue), hand_out(&mut queue)), (Some(3), Some(5), Some(2)));
        assert_eq!((queue.ready(), queue.unacked_indexes().len(), queue.priority_of(Index(4))), (1, 4, 5));
        assert!(queue.remove(Index(4)).is_some() && queue.remove(Index(4)).is_none());
        queue.hand_out_from_start();
        queue.assert_consistent();
        assert_eq!(queue.peek_least().map(|(index, _)| index), Some(Index(2)));
    }
}
