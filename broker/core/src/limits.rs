//! Queues with a limit on what is ready in them (`x-max-length`, `x-max-length-bytes`): a publish to a full one is refused, or
//! its oldest messages go.
//!
//! What is ready is counted, as in RabbitMQ: what consumers have been given is not in the way of others. So that a message
//! which somebody takes at once makes no other one go, the oldest go at the end of a step, when no consumer would take them,
//! and only those whose commit is through.
//!
//! A limit refuses publishers, who hear of it. Of a dead letter nobody would hear, so one that comes to a full queue is taken.

use std::collections::BTreeMap;

use understudy_record::{Index, QueueId};

use crate::client::Origin;
use crate::core::Core;
use crate::dead_letter::Reason;
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
    overflow: Overflow,
}

/// What happens to a publish to a full queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Overflow {
    /// It is taken, and the oldest go.
    #[default]
    DropHead,
    RejectPublish,
    /// It is refused, and goes where the queue's dead letters go.
    RejectPublishAndDeadLetter,
}

impl Overflow {
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        match name {
            "drop-head" => Some(Self::DropHead),
            "reject-publish" => Some(Self::RejectPublish),
            "reject-publish-dlx" => Some(Self::RejectPublishAndDeadLetter),
            _ => None,
        }
    }
}

impl Limits {
    /// `None`: there is no limit.
    pub(crate) fn new(messages: Option<u64>, bytes: Option<u64>, overflow: Overflow) -> Option<Self> {
        messages.or(bytes)?;
        Some(Self { messages: messages.unwrap_or(u64::MAX), bytes: bytes.unwrap_or(u64::MAX), overflow })
    }

    /// What is refused goes where dead letters go.
    pub(crate) fn dead_letters_refused(self) -> bool {
        self.overflow == Overflow::RejectPublishAndDeadLetter
    }

    fn are_passed(self, messages: u64, bytes: u64) -> bool {
        messages > self.messages || bytes > self.bytes
    }
}

impl Queue {
    /// One that refuses has taken what is in it, and may be beyond its limit by what came back to it: nothing of that goes.
    fn drops_oldest(&self) -> bool {
        self.rules.limits.is_some_and(|limits| limits.overflow == Overflow::DropHead)
    }

    fn is_too_long(&self) -> bool {
        let passed = |limits: Limits| limits.are_passed(self.ready() as u64, self.ready_bytes());
        self.drops_oldest() && self.rules.limits.is_some_and(passed)
    }

    /// A publish of so many messages more would be refused.
    fn refuses(&self, messages: u64, bytes: u64) -> bool {
        self.rules
            .limits
            .filter(|limits| limits.overflow != Overflow::DropHead)
            .is_some_and(|limits| limits.are_passed(self.ready() as u64 + messages, self.ready_bytes() + bytes))
    }
}

impl Core {
    /// Takes out, and returns, those of the queues that refuse a message of so many bytes.
    pub(crate) fn take_out_full(&self, targets: &mut Vec<QueueId>, bytes: u64) -> Vec<QueueId> {
        // Mostly no queue has a limit.
        if self.state.limited == 0 {
            return Vec::new();
        }
        let refuses = |id: &mut QueueId| self.state.queues.get(id).is_some_and(|queue| queue.refuses(1, bytes));
        targets.extract_if(.., refuses).collect()
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
            let Some((index, _)) = queue.peek_least().filter(|(index, _)| *index <= self.committed) else { break };
            queue.hand_out(index);
            dropped.push(index);
            *work -= 1;
        }
        let (still_too_long, dies) = (queue.is_too_long(), queue.rules.dead_letter.is_some());
        self.state.evictable.note(queue);
        if dies {
            dropped.into_iter().for_each(|index| self.condemn(id, index, Reason::MaxLength));
        } else if !dropped.is_empty() {
            dropped.sort_unstable();
            self.write(dequeue(self.state.is_unreplicated(id), id, dropped), out);
        }
        still_too_long
    }
}
