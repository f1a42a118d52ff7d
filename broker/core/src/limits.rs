//! Queues with a limit on what is ready in them (`x-max-length`, `x-max-length-bytes`): a publish to a full one is refused, or
//! its oldest messages go.
//!
//! What is ready is counted, as in RabbitMQ: what consumers have been given is not in the way of others. So that a message
//! which somebody takes at once makes no other one go, the oldest go at the end of a step, when no consumer would take them,
//! and only those whose commit is through.
//!
//! Not yet: a queue with a dead-letter exchange is not limited by dropping, since what it drops is to be dead-lettered.

use std::collections::BTreeMap;

use bytes::Bytes;
use understudy_protocol::FieldValue;
use understudy_record::{Index, QueueId};

use crate::arguments::{self, DEAD_LETTER_EXCHANGE, MAX_LENGTH, MAX_LENGTH_BYTES, OVERFLOW};
use crate::client::Origin;
use crate::core::Core;
use crate::effect::Outputs;
use crate::queue::Queue;
use crate::settle::dequeue;
use crate::transaction::Held;
use crate::{MAX_DROPPED_PER_STEP, MAX_MESSAGES_PER_RECORD};

/// Of one queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Messages that are ready.
    messages: u64,
    /// Their bodies and properties, in bytes.
    bytes: u64,
    /// A publish that goes beyond is refused; otherwise the oldest go.
    refuses: bool,
}

impl Limits {
    /// `arguments`: of a queue, checked. `None`: it has no limit, or none that holds yet.
    pub(crate) fn of(arguments: &Bytes) -> Option<Self> {
        if arguments.is_empty() {
            return None;
        }
        let table = arguments::decode(arguments)?;
        let limit = |name| table.get(name).and_then(FieldValue::as_int).and_then(|limit| u64::try_from(limit).ok());
        let (messages, bytes) = (limit(MAX_LENGTH), limit(MAX_LENGTH_BYTES));
        let refuses = table.get(OVERFLOW).and_then(FieldValue::as_str).is_some_and(|how| how != "drop-head");
        let holds = messages.or(bytes).is_some() && (refuses || !table.contains(DEAD_LETTER_EXCHANGE));
        holds.then_some(Self { messages: messages.unwrap_or(u64::MAX), bytes: bytes.unwrap_or(u64::MAX), refuses })
    }

    fn are_passed(self, messages: u64, bytes: u64) -> bool {
        messages > self.messages || bytes > self.bytes
    }
}

impl Queue {
    /// One that refuses has taken what is in it, and may be beyond its limit by what came back to it: nothing of that goes.
    fn drops_oldest(&self) -> bool {
        self.limits.is_some_and(|limits| !limits.refuses)
    }

    fn is_too_long(&self) -> bool {
        let passed = |limits: Limits| limits.are_passed(self.ready() as u64, self.ready_bytes());
        self.drops_oldest() && self.limits.is_some_and(passed)
    }

    /// A publish of so many messages more would be refused.
    fn refuses(&self, messages: u64, bytes: u64) -> bool {
        self.limits.is_some_and(|limits| {
            limits.refuses && limits.are_passed(self.ready() as u64 + messages, self.ready_bytes() + bytes)
        })
    }
}

impl Core {
    /// Takes out those of the queues that refuse a message of so many bytes. Whether there were any.
    pub(crate) fn take_out_full(&self, targets: &mut Vec<QueueId>, bytes: u64) -> bool {
        // Mostly no queue has a limit.
        if self.state.limited == 0 {
            return false;
        }
        let before = targets.len();
        targets.retain(|id| !self.state.queues.get(id).is_some_and(|queue| queue.refuses(1, bytes)));
        targets.len() < before
    }

    /// A queue that refuses some of what the channel's transaction publishes, which comes all at once.
    pub(crate) fn find_full(&self, origin: Origin) -> Option<&Queue> {
        if self.state.limited == 0 {
            return None;
        }
        let channel = self.connections.get(&origin.connection)?.channels.get(&origin.channel)?;
        let published = &channel.transaction.as_ref()?.published;
        let mut coming: BTreeMap<QueueId, (u64, u64)> = BTreeMap::new();
        for Held { message, targets, .. } in published {
            for target in targets {
                let (messages, bytes) = coming.entry(*target).or_default();
                (*messages, *bytes) = (*messages + 1, *bytes + message.body_bytes() + message.properties.len() as u64);
            }
        }
        let full = |(id, (messages, bytes))| self.state.queues.get(&id).filter(|queue| queue.refuses(messages, bytes));
        coming.into_iter().find_map(full)
    }

    /// More is ready in the queue than before: at the end of the step its oldest may have to go.
    pub(crate) fn watch_length(&mut self, id: QueueId) {
        if self.state.limited == 0 {
            return;
        }
        if self.state.queues.get(&id).is_some_and(Queue::drops_oldest) {
            self.too_long.insert(id);
        }
    }

    /// A new primary knows of no queue whether it is too long.
    pub(crate) fn watch_all_lengths(&mut self) {
        let limited = self.state.queues.values().filter(|queue| queue.drops_oldest()).map(|queue| queue.id);
        self.too_long = limited.collect();
    }

    /// `true` if more could go at once.
    pub(crate) fn drop_oldest(&mut self, out: &mut Outputs) -> bool {
        let mut work = MAX_DROPPED_PER_STEP;
        let mut watched = std::mem::take(&mut self.too_long);
        watched.retain(|id| self.drop_oldest_of(*id, &mut work, out));
        // Those that were added meanwhile are none: nothing becomes ready here.
        self.too_long = watched;
        work == 0 && !self.too_long.is_empty()
    }

    /// Whether it has to be looked at again.
    fn drop_oldest_of(&mut self, id: QueueId, work: &mut usize, out: &mut Outputs) -> bool {
        let Some(queue) = self.state.queues.get_mut(&id) else { return false };
        let session = &queue.session;
        if session.dirty || session.loading.is_some() && !session.active.is_empty() {
            return true; // somebody may take them yet
        }
        let mut dropped: Vec<Index> = Vec::new();
        while *work > 0 && dropped.len() < MAX_MESSAGES_PER_RECORD && queue.is_too_long() {
            let Some((index, _)) = queue.peek().filter(|(index, _)| *index <= self.committed) else { break };
            queue.hand_out(index);
            dropped.push(index);
            *work -= 1;
        }
        let still_too_long = queue.is_too_long();
        self.state.evictable.note(queue);
        if !dropped.is_empty() {
            dropped.sort_unstable();
            self.write(dequeue(self.state.is_unreplicated(id), id, dropped), out);
        }
        still_too_long
    }
}
