//! Sync points: how a replica starts from the middle of the log. The primary's side reads topology and backlog; the other
//! side takes the pieces, mixed with the live records that follow the sync point.
//!
//! The backlog is read as it is now, not as it was at the sync point: what was settled since is simply not there. So a piece
//! may show the effect of records the receiver has not applied yet, and records may arrive before the message they are
//! about. Both are harmless: settling a message that is not there is no error, and what arrives early is kept aside
//! (see [`crate::queue`]). This module does not know how pieces travel or who asked for them.

use std::sync::Arc;

use understudy_record::{BasePiece, Binding, Destination, HeldMessage, Index, Message, QueueId, ShortStr};

use crate::entry::message_bytes;
use crate::queue::{Arrival, Queue};
use crate::state::{ApplyError, State, detached_queue};

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
    /// Newest first.
    pub messages: Vec<BacklogMessage>,
    /// Nothing older is left.
    pub done: bool,
}

/// A message of a queue's backlog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BacklogMessage {
    pub index: Index,
    /// How often it was delivered and came back, as of the sync point.
    pub delivery_count: u32,
    /// `None`: it is not in memory; the log has it under its index.
    pub message: Option<Arc<Message>>,
    /// What it weighs: body and properties, in bytes.
    pub bytes: u32,
}

/// Part of a queue's backlog by reference, for a [`BasePiece::Held`].
#[derive(Debug)]
pub struct HeldChunk {
    /// Newest first.
    pub messages: Vec<HeldMessage>,
    /// Nothing older is left.
    pub done: bool,
}

impl State {
    pub(crate) fn apply_base(&mut self, piece: BasePiece) -> Result<(), ApplyError> {
        match (self.base, piece) {
            (_, BasePiece::Start { sync_point, .. }) => {
                let sync_point = sync_point.index;
                *self = Self::default();
                self.base = BaseState::Topology { sync_point };
                (self.last_index, self.topology_index) = (sync_point, sync_point);
                Ok(())
            }
            (BaseState::Topology { sync_point }, BasePiece::Exchange(spec)) => {
                if self.exchanges.contains_key(&spec.name) {
                    return Err(ApplyError::Exists { index: sync_point, name: spec.name });
                }
                self.add_exchange(sync_point, &spec);
                Ok(())
            }
            (BaseState::Topology { sync_point }, BasePiece::Queue { id, spec }) => {
                if self.names.contains_key(&spec.name) || self.queues.contains_key(&id) {
                    return Err(ApplyError::Exists { index: sync_point, name: spec.name });
                }
                if id.0 > sync_point {
                    return Err(ApplyError::Base { what: "a queue declared after the sync point" });
                }
                self.add_queue(Queue::awaiting_backlog(id, detached_queue(&spec), sync_point));
                Ok(())
            }
            (BaseState::Topology { sync_point }, BasePiece::Binding(binding)) => self.bind(sync_point, &binding),
            (BaseState::Topology { sync_point }, BasePiece::TopologyEnd) => {
                self.base = BaseState::Backlog { sync_point };
                Ok(())
            }
            (BaseState::Backlog { .. }, BasePiece::Message { queue, index, delivery_count, message }) => {
                let bytes = message_bytes(&message);
                self.arrive(queue, HeldMessage { index, delivery_count, bytes })
            }
            (BaseState::Backlog { .. }, BasePiece::Held { queue, messages }) => {
                messages.into_iter().try_for_each(|message| self.arrive(queue, message))
            }
            (BaseState::Backlog { .. }, BasePiece::QueueDone { queue }) => {
                if let Some(queue) = self.queues.get_mut(&queue) {
                    queue.backlog_done();
                }
                Ok(())
            }
            (BaseState::Backlog { .. }, BasePiece::End { .. }) => {
                if self.queues.values().any(Queue::awaits_backlog) {
                    return Err(ApplyError::Base { what: "the end before every queue was done" });
                }
                self.base = BaseState::Complete;
                Ok(())
            }
            (BaseState::Topology { .. }, _) => Err(ApplyError::Base { what: "backlog before the end of the topology" }),
            (BaseState::Backlog { .. }, _) => Err(ApplyError::Base { what: "topology after its end" }),
            (BaseState::None | BaseState::Complete, _) => Err(ApplyError::Base { what: "a piece without a start" }),
        }
    }

    /// A message of the backlog. What it says is in the log, or about to be.
    fn arrive(&mut self, queue: QueueId, message: HeldMessage) -> Result<(), ApplyError> {
        // A queue that is gone was deleted since the sync point; what is still on its way for it means nothing.
        let Some(queue) = self.queues.get_mut(&queue) else { return Ok(()) };
        match queue.arrive(message.index, message.delivery_count, message.bytes) {
            Arrival::Added(bytes) => self.tally.arrive(bytes),
            Arrival::AlreadyGone => {}
            Arrival::OutOfPlace => return Err(ApplyError::Base { what: "a message not older than those here" }),
        }
        Ok(())
    }

    /// Exchanges, queues, bindings, in an order that can be applied.
    pub(crate) fn topology(&self) -> Vec<BasePiece> {
        let mut exchanges: Vec<_> = self.exchanges.values().collect();
        exchanges.sort_unstable_by_key(|exchange| &exchange.spec.name);
        let mut queues: Vec<_> = self.queues.values().collect();
        queues.sort_unstable_by_key(|queue| queue.id);
        let mut bindings = Vec::new();
        for exchange in &exchanges {
            let first = bindings.len();
            bindings.extend(exchange.bindings());
            bindings[first..].sort_unstable_by(|one, other| binding_order(one).cmp(&binding_order(other)));
        }
        let exchanges = exchanges.into_iter().filter(|exchange| !exchange.is_built_in());
        let exchanges = exchanges.map(|exchange| BasePiece::Exchange(exchange.spec.clone()));
        let queues = queues.into_iter().map(|queue| BasePiece::Queue { id: queue.id, spec: queue.spec.clone() });
        let bindings = bindings.into_iter().map(|binding| BasePiece::Binding((**binding).clone()));
        exchanges.chain(queues).chain(bindings).collect()
    }

    pub(crate) fn backlog_chunk(
        &self,
        id: QueueId,
        before: Index,
        sync_point: Index,
        max_bytes: usize,
        max_messages: usize,
    ) -> BacklogChunk {
        let Some(queue) = self.queues.get(&id) else { return BacklogChunk { messages: Vec::new(), done: true } };
        let mut entries = queue.entries_down_from(before.min(sync_point.next())).peekable();
        let (mut messages, mut bytes) = (Vec::new(), 0);
        while messages.len() < max_messages && bytes < max_bytes as u64 {
            let Some((index, entry)) = entries.next() else { break };
            bytes += u64::from(entry.bytes());
            let delivery_count = queue.delivery_count_at(sync_point, index, entry);
            let (message, bytes) = (entry.message().cloned(), entry.bytes());
            messages.push(BacklogMessage { index, delivery_count, message, bytes });
        }
        BacklogChunk { done: entries.peek().is_none(), messages }
    }

    pub(crate) fn held_chunk(&self, id: QueueId, before: Index, sync_point: Index, max_messages: usize) -> HeldChunk {
        let Some(queue) = self.queues.get(&id) else { return HeldChunk { messages: Vec::new(), done: true } };
        let mut entries = queue.entries_down_from(before.min(sync_point.next()));
        let mut messages = Vec::with_capacity(max_messages.min(queue.len()));
        messages.extend(entries.by_ref().take(max_messages).map(|(index, entry)| {
            let delivery_count = queue.delivery_count_at(sync_point, index, entry);
            HeldMessage { index, delivery_count, bytes: entry.bytes() }
        }));
        HeldChunk { done: entries.next().is_none(), messages }
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
