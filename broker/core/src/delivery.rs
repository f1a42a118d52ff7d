//! Handing messages to consumers: queues in turn, the consumers of a queue in turn, committed messages only. Only queues
//! that have both a message and a consumer that may take it are looked at. A message that is not in memory is read back first.

use std::collections::VecDeque;
use std::sync::Arc;

use hashbrown::HashMap;
use understudy_record::{Index, Message, QueueId};

use crate::client::Origin;
use crate::core::Core;
use crate::effect::{EffectKind, Outputs};
use crate::session::{Consumer, ConsumerId, Turn, Unacked};
use crate::{MAX_DELIVERED_BYTES_PER_STEP, MAX_DELIVERIES_PER_STEP, MAX_DELIVERIES_PER_TURN};

/// Why a queue's turn ended.
enum TurnEnd {
    /// It has had its share.
    Share,
    /// Its next message is not committed yet.
    Uncommitted(Index),
    /// Its next message is not in memory.
    Stored,
    /// No message, or nobody who may take it.
    Nothing,
}

impl Core {
    /// Ends a step: writes what was acknowledged in it, and hands out messages. `true` if more could be handed out at once:
    /// call again without waiting.
    pub fn deliver(&mut self, out: &mut Outputs) -> bool {
        self.write_settled(out);
        self.hand_out_answers(out);
        let (mut messages, mut bytes) = (MAX_DELIVERIES_PER_STEP, MAX_DELIVERED_BYTES_PER_STEP);
        while messages > 0 && bytes > 0 {
            let Some(id) = self.dirty.pop_front() else { break };
            let before = messages;
            let end = self.take_turn(id, &mut messages, &mut bytes, out);
            if messages < before || matches!(end, TurnEnd::Stored) {
                self.ask_for_messages(id, out);
            }
            let Some(queue) = self.state.queues.get_mut(&id) else { continue };
            queue.session.dirty = false;
            if !matches!(end, TurnEnd::Share) {
                queue.session.fresh_above = None;
            }
            match end {
                TurnEnd::Share => self.mark_dirty(id),
                TurnEnd::Uncommitted(index) => self.expect_commit(id, index),
                // It is read back: `handle_loaded` goes on.
                TurnEnd::Stored | TurnEnd::Nothing => {}
            }
        }
        self.write_settled(out);
        self.expire(out);
        let more_to_drop = self.drop_oldest(out);
        let more_dead = self.write_dead_letters(out);
        self.delete_unused(out);
        self.close_overdue(out);
        more_to_drop || more_dead || self.expiries_are_due() || !self.dirty.is_empty()
    }

    fn take_turn(&mut self, id: QueueId, messages: &mut usize, bytes: &mut u64, out: &mut Outputs) -> TurnEnd {
        let mut share = MAX_DELIVERIES_PER_TURN;
        while share > 0 && *messages > 0 && *bytes > 0 {
            let Some(queue) = self.state.queues.get(&id) else { return TurnEnd::Nothing };
            let Some((index, entry)) = queue.peek() else { return TurnEnd::Nothing };
            if index > self.committed {
                return TurnEnd::Uncommitted(index);
            }
            if self.is_expired(queue, index) {
                self.expire_next(id, index);
                (share, *messages) = (share - 1, *messages - 1);
                continue;
            }
            let (message, delivery_count) = (entry.message().cloned(), entry.delivery_count);
            let weight = u64::from(entry.memory_bytes());
            let Some(message) = message else {
                return if self.next_consumer(id).is_some() { TurnEnd::Stored } else { TurnEnd::Nothing };
            };
            let Some(consumer) = self.next_consumer(id) else { return TurnEnd::Nothing };
            *bytes = bytes.saturating_sub(weight);
            (share, *messages) = (share - 1, *messages - 1);
            self.deliver_one(id, index, delivery_count, message, consumer, out);
        }
        TurnEnd::Share
    }

    /// The first in turn, which may take a message. Those that may not leave the turn until they may.
    fn next_consumer(&mut self, id: QueueId) -> Option<ConsumerId> {
        loop {
            let first = self.state.queues.get(&id)?.session.active.front().copied()?;
            if self.may_take(first) {
                return Some(first);
            }
            self.state.queues.get_mut(&id)?.session.active.pop_front();
            if let Some(consumer) = self.consumers.get_mut(&first) {
                consumer.turn = Turn::Parked;
            }
        }
    }

    fn may_take(&self, id: ConsumerId) -> bool {
        let Some(consumer) = self.consumers.get(&id) else { return false };
        let Some(connection) = self.connections.get(&consumer.connection) else { return false };
        let Some(channel) = connection.channels.get(&consumer.channel) else { return false };
        connection.writable && (consumer.no_ack || !(consumer.is_at_limit() || channel.is_at_limit()))
    }

    fn deliver_one(
        &mut self,
        queue: QueueId,
        index: Index,
        delivery_count: u32,
        message: Arc<Message>,
        id: ConsumerId,
        out: &mut Outputs,
    ) {
        if let Some(queue) = self.state.queues.get_mut(&queue) {
            queue.hand_out(index);
            end_turn(&mut queue.session.active, &self.consumers);
            self.state.evictable.note(queue);
        }
        let Some(consumer) = self.consumers.get_mut(&id) else { return };
        let (no_ack, consumer_tag) = (consumer.no_ack, consumer.tag.clone());
        let origin = Origin { connection: consumer.connection, channel: consumer.channel };
        if !no_ack {
            consumer.unacked += 1;
            let channel = self.channel_mut(origin);
            channel.consumer_unacked += 1;
            channel.last_served = id;
        }
        let delivery_tag = self.track(origin, Unacked { queue, index, consumer: Some(id) }, no_ack);
        let redelivered = self.is_redelivered(index, delivery_count);
        let kind = EffectKind::BasicDeliver { consumer_tag, delivery_tag, redelivered, delivery_count, message };
        self.emit(origin, kind, out);
    }

    // ---- who is in turn

    /// The queue may have something to deliver.
    pub(crate) fn mark_dirty(&mut self, id: QueueId) {
        let Some(queue) = self.state.queues.get_mut(&id) else { return };
        if !queue.session.active.is_empty() && !queue.session.dirty {
            queue.session.dirty = true;
            self.dirty.push_back(id);
        }
    }

    /// Its consume-ok is out: deliveries may follow.
    pub(crate) fn start_consumer(&mut self, id: ConsumerId) {
        self.enter_turn(id, Turn::NotStarted);
    }

    /// It may be able to take messages again.
    pub(crate) fn resume_consumer(&mut self, id: ConsumerId) {
        self.enter_turn(id, Turn::Parked);
    }

    /// All consumers of the channel may, beginning with the one after that which was served last.
    pub(crate) fn resume_channel(&mut self, origin: Origin) {
        let channel = self.channel_mut(origin);
        let mut consumers: Vec<ConsumerId> = channel.consumers.values().copied().collect();
        let last_served = channel.last_served;
        consumers.sort_unstable_by_key(|id| (*id <= last_served, *id));
        consumers.into_iter().for_each(|consumer| self.resume_consumer(consumer));
    }

    fn enter_turn(&mut self, id: ConsumerId, from: Turn) {
        let Some(consumer) = self.consumers.get_mut(&id).filter(|consumer| consumer.turn == from) else { return };
        let Some(queue) = self.state.queues.get_mut(&consumer.queue) else { return };
        if queue.session.single_active.is_some_and(|active| active != id) {
            consumer.turn = Turn::Parked;
            return;
        }
        consumer.turn = Turn::Active;
        let (queue_id, priority) = (consumer.queue, consumer.priority);
        let place = place_of(priority, &queue.session.active, &self.consumers);
        queue.session.active.insert(place, id);
        self.mark_dirty(queue_id);
    }
}

type Consumers = HashMap<ConsumerId, Consumer>;

/// The next message is for the next in turn, of those with the priority of the first.
fn end_turn(active: &mut VecDeque<ConsumerId>, consumers: &Consumers) {
    let Some(first) = active.front().copied().filter(|_| active.len() > 1) else { return };
    let priority = priority(first, consumers);
    if active.back().is_some_and(|last| self::priority(*last, consumers) == priority) {
        return active.rotate_left(1);
    }
    active.pop_front();
    active.insert(place_of(priority, active, consumers), first);
}

/// Behind all that have at least this priority.
fn place_of(priority: i64, active: &VecDeque<ConsumerId>, consumers: &Consumers) -> usize {
    let below = |id: &ConsumerId| self::priority(*id, consumers) < priority;
    // Mostly all have the same.
    if active.back().is_none_or(|last| !below(last)) { active.len() } else { active.partition_point(|id| !below(id)) }
}

fn priority(id: ConsumerId, consumers: &Consumers) -> i64 {
    consumers.get(&id).map_or(0, |consumer| consumer.priority)
}
