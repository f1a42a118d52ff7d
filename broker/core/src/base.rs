//! Sync points: how a replica starts from the middle of the log. The primary's side reads topology and backlog; the other
//! side takes the pieces, mixed with the live records that follow the sync point.
//!
//! The backlog is read as it is now, not as it was at the sync point: what was settled since is simply not there. So a piece
//! may show the effect of records the receiver has not applied yet, and records may arrive before the message they are
//! about. Both are harmless: settling a message that is not there is no error, and what arrives early is kept aside
//! (see [`crate::queue`]). Parts of large messages that nobody has claimed are part of the topology, as of the sync point;
//! those of a message come before it. This module does not know how pieces travel or who asked for them.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::sync::Arc;

use understudy_record::{
    Admin, BacklogCursor, BasePiece, Binding, Destination, HeldKey, HeldMessage, Index, Message, MessageKey, PartRef,
    QueueId, ShortStr, VhostId, VhostLimits,
};

use crate::deduplication::headers_of;
use crate::entry::message_bytes;
use crate::expiry::Wishes;
use crate::queue::{Arrival, Queue};
use crate::state::{ApplyError, State, detached_queue};
use crate::vhost::Vhost;

/// How far the state has been built from a sync point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BaseState {
    /// Not built from a sync point: the log is here from its beginning.
    None,
    Topology {
        sync_point: Index,
    },
    Backlog {
        sync_point: Index,
    },
    Complete,
}

/// Part of a queue's backlog.
#[derive(Debug)]
pub struct BacklogChunk {
    /// Newest message first, each after its parts.
    pub items: Vec<BacklogItem>,
    pub next: BacklogCursor,
    /// Nothing older is left.
    pub done: bool,
    /// The lists of the parts in `items`: as long as they are held, the parts stay in the log.
    pub held: Vec<Arc<[PartRef]>>,
}

impl BacklogChunk {
    /// These parts from where `from` says on, up to about `max_bytes`.
    pub fn of_parts(parts: &Arc<[PartRef]>, from: BacklogCursor, max_bytes: usize) -> Self {
        let mut chunk = Self { items: Vec::new(), next: from, done: false, held: vec![parts.clone()] };
        let mut room = max_bytes as u64;
        chunk.done = chunk.add_parts(Index(0), parts, &mut room, usize::MAX);
        chunk
    }

    pub fn messages(&self) -> impl Iterator<Item = &BacklogMessage> {
        self.items.iter().filter_map(|item| match item {
            BacklogItem::Message(message) => Some(message),
            BacklogItem::Part(_) => None,
        })
    }

    /// The message's parts that have not been read, as long as there is room; `false` if some are left.
    fn add_parts(&mut self, message: Index, parts: &[PartRef], room: &mut u64, max_items: usize) -> bool {
        let read = self.next.begun.filter(|(begun, _)| *begun == message).map_or(0, |(_, read)| read);
        for (at, part) in parts.iter().enumerate().skip(read) {
            if *room == 0 || self.items.len() >= max_items {
                self.next.begun = Some((message, at));
                return false;
            }
            *room = room.saturating_sub(part.bytes.into());
            self.items.push(BacklogItem::Part(*part));
        }
        self.next.begun = Some((message, parts.len()));
        true
    }
}

/// What a backlog is sent as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BacklogItem {
    /// Of the next message; the log has it under its index.
    Part(PartRef),
    Message(BacklogMessage),
}

/// A message of a queue's backlog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BacklogMessage {
    pub index: Index,
    /// How often it was delivered and came back, as of the sync point.
    pub delivery_count: u32,
    /// When it leaves by itself, in milliseconds since 1970; 0: never.
    pub expires_ms: u64,
    /// `None`: it is not in memory; the log has it under its index.
    pub message: Option<Arc<Message>>,
    /// What it weighs: body and properties, in bytes.
    pub bytes: u32,
}

/// Part of a queue's backlog by reference, for a [`BasePiece::Held`].
#[derive(Debug)]
pub struct HeldChunk {
    /// Of the large ones among the messages: for a [`BasePiece::Parts`] each, before the messages.
    pub parts: Vec<(Index, Arc<[PartRef]>)>,
    /// Of the messages, in a queue that drops their duplicates: for a [`BasePiece::Keys`] before the messages.
    pub keys: Vec<HeldKey>,
    /// Newest first.
    pub messages: Vec<HeldMessage>,
    /// Nothing older is left.
    pub done: bool,
}

impl State {
    pub(crate) fn apply_base(&mut self, piece: BasePiece) -> Result<(), ApplyError> {
        let (vhost, piece) = piece.in_vhost();
        match (self.base, piece) {
            (_, BasePiece::Start { sync_point, .. }) => {
                let sync_point = sync_point.index;
                *self = Self::default();
                self.base = BaseState::Topology { sync_point };
                (self.last_index, self.topology_index) = (sync_point, sync_point);
                Ok(())
            }
            (BaseState::Topology { sync_point }, BasePiece::Vhost { id, spec }) => {
                if self.vhosts.named(&spec.name).is_some() || self.vhosts.get(id).is_some() {
                    return Err(ApplyError::Exists { index: sync_point, name: spec.name });
                }
                self.vhosts.add(id, &spec);
                Ok(())
            }
            (BaseState::Topology { sync_point }, BasePiece::Admin(change)) => self.administer(sync_point, &change),
            (BaseState::Topology { sync_point }, BasePiece::Exchange(spec)) => {
                self.vhost_mut(sync_point, vhost)?.declare_exchange(sync_point, &spec)
            }
            (BaseState::Topology { sync_point }, BasePiece::Queue { id, spec }) => {
                let named = self.vhost_mut(sync_point, vhost)?.names.contains_key(&spec.name);
                if named || self.queues.contains_key(&id) {
                    return Err(ApplyError::Exists { index: sync_point, name: spec.name });
                }
                if id.0 > sync_point {
                    return Err(ApplyError::Base { what: "a queue declared after the sync point" });
                }
                self.add_queue(Queue::awaiting_backlog(vhost, id, detached_queue(&spec), sync_point));
                Ok(())
            }
            (BaseState::Topology { sync_point }, BasePiece::Binding(binding)) => self.bind(sync_point, vhost, &binding),
            (BaseState::Topology { .. }, BasePiece::Parts { message: Index(0), parts }) => {
                parts.into_iter().for_each(|part| self.parts.add(part.index, part.bytes));
                Ok(())
            }
            (BaseState::Topology { .. }, BasePiece::Writer { store }) => {
                self.writers = [None, Some(store)];
                Ok(())
            }
            (BaseState::Topology { .. }, BasePiece::Time { wall_ms }) => {
                self.wall_ms = wall_ms;
                Ok(())
            }
            (BaseState::Topology { .. }, BasePiece::Keys { of, keys }) => self.take_keys(vhost, of, &keys),
            (BaseState::Backlog { .. }, BasePiece::Keys { keys, .. }) => {
                self.expected_keys = keys.into_iter().map(|held| (Index(held.place), held.key)).collect();
                Ok(())
            }
            (BaseState::Topology { sync_point }, BasePiece::TopologyEnd) => {
                self.base = BaseState::Backlog { sync_point };
                Ok(())
            }
            (BaseState::Backlog { .. }, BasePiece::Message { queue, index, delivery_count, expires_ms, message }) => {
                let (bytes, priority) = (message_bytes(&message), Wishes::of(&message.properties).priority);
                if let Some(parts) = &message.parts {
                    self.parts.expect(index, parts);
                }
                let keys = self.queues.get(&queue).and_then(|queue| queue.keys.as_deref());
                let key = keys.and_then(|keys| keys.key_of(&headers_of(&message.properties)));
                self.arrive(queue, HeldMessage { index, delivery_count, bytes, priority, expires_ms }, key)
            }
            // Its bytes are in the log, and the message that has it is still to come.
            (BaseState::Backlog { .. }, BasePiece::Part { .. }) => Ok(()),
            (BaseState::Backlog { .. }, BasePiece::Parts { message, parts }) if message != Index(0) => {
                self.parts.expect(message, &parts);
                Ok(())
            }
            (BaseState::Backlog { .. }, BasePiece::Held { queue, messages }) => {
                let keys = std::mem::take(&mut self.expected_keys);
                let mut messages = messages.into_iter();
                messages.try_for_each(|message| self.arrive(queue, message, keys.get(&message.index).copied()))
            }
            (BaseState::Backlog { .. }, BasePiece::QueueDone { queue }) => {
                if let Some(queue) = self.queues.get_mut(&queue) {
                    queue.backlog_done();
                }
                Ok(())
            }
            (BaseState::Backlog { .. }, BasePiece::End { floor }) => {
                if self.queues.values().any(Queue::awaits_backlog) {
                    return Err(ApplyError::Base { what: "the end before every queue was done" });
                }
                self.parts.forget_expected();
                (self.base, self.floor) = (BaseState::Complete, floor);
                Ok(())
            }
            (BaseState::Topology { .. }, _) => Err(ApplyError::Base { what: "backlog before the end of the topology" }),
            (BaseState::Backlog { .. }, _) => Err(ApplyError::Base { what: "topology after its end" }),
            (BaseState::None | BaseState::Complete, _) => Err(ApplyError::Base { what: "a piece without a start" }),
        }
    }

    /// A message of the backlog. What it says is in the log, or about to be.
    fn arrive(&mut self, queue: QueueId, message: HeldMessage, key: Option<MessageKey>) -> Result<(), ApplyError> {
        // A queue that is gone was deleted since the sync point; what is still on its way for it means nothing.
        let Some(queue) = self.queues.get_mut(&queue) else { return Ok(()) };
        let large = self.parts.of(message.index).is_some();
        let remembered = queue.remembered();
        let arrival = queue.arrive(message, key, large);
        self.remembered = self.remembered + queue.remembered() - remembered;
        match arrival {
            Arrival::Added(bytes) => {
                self.tally.arrive(bytes);
                if large {
                    self.parts.hold(message.index);
                }
            }
            Arrival::AlreadyGone => {}
            Arrival::OutOfPlace => return Err(ApplyError::Base { what: "a message not older than those here" }),
        }
        Ok(())
    }

    /// Exchanges, queues, bindings, other virtual hosts with theirs, policies, users and what they may do, and the parts that no
    /// message has claimed, in an order that can be applied.
    pub(crate) fn topology(&self) -> Vec<BasePiece> {
        let mut pieces = Vec::new();
        let mut queues: BTreeMap<VhostId, Vec<&Queue>> = BTreeMap::new();
        self.queues.values().for_each(|queue| queues.entry(queue.vhost).or_default().push(queue));
        for vhost in self.vhosts.iter() {
            if vhost.id != VhostId::DEFAULT {
                pieces.push(BasePiece::Vhost { id: vhost.id, spec: vhost.spec.clone() });
            }
            // Before what they are for.
            pieces.extend(vhost.policies.changes(vhost.id).map(BasePiece::Admin));
            let mut queues = queues.remove(&vhost.id).unwrap_or_default();
            queues.sort_unstable_by_key(|queue| queue.id);
            pieces.extend(vhost.topology(&queues).map(|piece| piece.within(vhost.id)));
        }
        pieces.extend(self.limits_and_accounts().map(BasePiece::Admin));
        pieces.extend(self.topology_keys());
        let parts: Vec<PartRef> = self.parts.unclaimed().collect();
        pieces.extend((!parts.is_empty()).then_some(BasePiece::Parts { message: Index(0), parts }));
        pieces.extend((self.wall_ms > 0).then_some(BasePiece::Time { wall_ms: self.wall_ms }));
        pieces
    }

    /// Virtual hosts' limits, users and what they may do, as the changes that make them, in an order that can be applied.
    pub(crate) fn limits_and_accounts(&self) -> impl Iterator<Item = Admin> {
        let limits = self.vhosts.iter().filter(|vhost| vhost.limits != VhostLimits::default());
        let limits = limits.map(|vhost| Admin::VhostLimits { vhost: vhost.id, limits: vhost.limits });
        limits.chain(self.accounts.changes())
    }

    /// The same of policies.
    pub(crate) fn policies(&self) -> impl Iterator<Item = Admin> {
        self.vhosts.iter().flat_map(|vhost| vhost.policies.changes(vhost.id))
    }

    pub(crate) fn backlog_chunk(
        &self,
        id: QueueId,
        from: BacklogCursor,
        sync_point: Index,
        max_bytes: usize,
        max_items: usize,
    ) -> BacklogChunk {
        let mut chunk = BacklogChunk { items: Vec::new(), next: from, done: true, held: Vec::new() };
        let Some(queue) = self.queues.get(&id).filter(|queue| queue.is_replicated()) else { return chunk };
        let mut entries = queue.entries_down_from(from.before.min(sync_point.next())).peekable();
        let mut room = max_bytes as u64;
        while chunk.items.len() < max_items && room > 0 {
            let Some((index, entry)) = entries.peek().copied() else { break };
            if let Some(parts) = self.parts.of(index).filter(|_| entry.is_large()) {
                chunk.held.push(parts.clone());
                let whole = chunk.add_parts(index, parts, &mut room, max_items);
                if !whole || room == 0 || chunk.items.len() >= max_items {
                    break;
                }
            }
            entries.next();
            room = room.saturating_sub(entry.memory_bytes().into());
            let delivery_count = queue.delivery_count_at(sync_point, index, entry);
            let (message, bytes) = (entry.message().cloned(), entry.bytes());
            let expires_ms = queue.expires(index).map_or(0, NonZeroU64::get);
            let message = BacklogMessage { index, delivery_count, expires_ms, message, bytes };
            chunk.items.push(BacklogItem::Message(message));
            chunk.next = index.into();
        }
        chunk.done = entries.peek().is_none();
        chunk
    }

    pub(crate) fn held_chunk(&self, id: QueueId, before: Index, sync_point: Index, max_messages: usize) -> HeldChunk {
        let (mut parts, mut keys, mut messages) = (Vec::new(), Vec::new(), Vec::new());
        let Some(queue) = self.queues.get(&id) else { return HeldChunk { parts, keys, messages, done: true } };
        let known = queue.keys.as_deref().filter(|known| !known.outlive_messages());
        let mut entries = queue.entries_down_from(before.min(sync_point.next()));
        messages.reserve(max_messages.min(queue.len()));
        messages.extend(entries.by_ref().take(max_messages).map(|(index, entry)| {
            if entry.is_large() {
                parts.extend(self.parts.of(index).map(|parts| (index, parts.clone())));
            }
            if let Some(key) = known.and_then(|known| known.of(index)) {
                keys.push(HeldKey { place: index.0, key, expires_ms: 0 });
            }
            let delivery_count = queue.delivery_count_at(sync_point, index, entry);
            let (priority, expires_ms) = (queue.priority_of(index), queue.expires(index).map_or(0, NonZeroU64::get));
            HeldMessage { index, delivery_count, bytes: entry.bytes(), priority, expires_ms }
        }));
        HeldChunk { done: entries.next().is_none(), parts, keys, messages }
    }
}

impl Vhost {
    /// With its queues, oldest first.
    fn topology(&self, queues: &[&Queue]) -> impl Iterator<Item = BasePiece> {
        let mut exchanges: Vec<_> = self.exchanges.values().collect();
        exchanges.sort_unstable_by_key(|exchange| &exchange.spec.name);
        let mut bindings = Vec::new();
        for exchange in &exchanges {
            let first = bindings.len();
            bindings.extend(exchange.bindings());
            bindings[first..].sort_unstable_by(|one, other| binding_order(one).cmp(&binding_order(other)));
        }
        let exchanges = exchanges.into_iter().filter(|exchange| !exchange.is_built_in());
        let exchanges = exchanges.map(|exchange| BasePiece::Exchange(exchange.spec.clone()));
        let queues = queues.iter().map(|queue| BasePiece::Queue { id: queue.id, spec: queue.spec.clone() });
        let bindings = bindings.into_iter().map(|binding| BasePiece::Binding((**binding).clone()));
        exchanges.chain(queues).chain(bindings)
    }
}

/// Of the bindings of one exchange.
fn binding_order(binding: &Binding) -> (Option<QueueId>, Option<&ShortStr>, &ShortStr, &bytes::Bytes) {
    let (queue, exchange) = match &binding.destination {
        Destination::Queue(queue) => (Some(*queue), None),
        Destination::Exchange(name) => (None, Some(name)),
    };
    (queue, exchange, &binding.routing_key, &binding.arguments)
}
