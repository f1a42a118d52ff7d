//! Consumers: their coming and going, their limits, and `basic.get`.

use std::cmp::Reverse;

use bytes::Bytes;
use understudy_record::{QueueId, ShortStr};

use crate::arguments;
use crate::client::{Caller, Origin};
use crate::command::DeliveryTag;
use crate::core::Core;
use crate::declare::count;
use crate::direct_reply::is_pseudo_queue;
use crate::effect::{EffectKind, Outputs};
use crate::error::{self, Failure};
use crate::session::{Answer, Consumer, ConsumerId, Reply, Turn, Unacked};
use crate::settle::Settlement;

/// What `basic.consume` asks for.
#[derive(Debug)]
pub(crate) struct Wish {
    pub(crate) queue: ShortStr,
    pub(crate) tag: ShortStr,
    pub(crate) no_ack: bool,
    pub(crate) exclusive: bool,
    pub(crate) no_wait: bool,
    pub(crate) arguments: Bytes,
}

impl Core {
    pub(crate) fn consume(&mut self, caller: Caller, wish: Wish, out: &mut Outputs) -> Result<(), Failure> {
        let Caller { origin, vhost } = caller;
        if is_pseudo_queue(&wish.queue) {
            return self.consume_replies(origin, wish, out);
        }
        let channel = self.channel_mut(origin);
        if channel.consumers.len() >= crate::MAX_CONSUMERS_PER_CHANNEL {
            return Err(error::too_many_consumers(crate::MAX_CONSUMERS_PER_CHANNEL));
        }
        let taken = channel.consumers.contains_key(&wish.tag);
        if taken || self.has_reply_consumer_tag(origin, &wish.tag) {
            return Err(error::consumer_tag_in_use(&wish.tag));
        }
        let prefetch = self.channel_mut(origin).consumer_prefetch;
        let name = self.resolve(origin, wish.queue)?;
        let queue = self.queue_named(vhost, &name)?;
        self.refuse_locked(queue, Some(origin))?;
        let table = arguments::decode(&wish.arguments).ok_or_else(error::malformed_table)?;
        let vhost = self.state.vhost(vhost).name();
        arguments::check_consumer(&table, &error::queue(vhost, &name))?;
        let alone = queue.rules.single_active_consumer || !queue.session.consumers.is_empty();
        if queue.session.exclusive_consumer || (wish.exclusive && alone) {
            return Err(error::in_exclusive_use(vhost, &name));
        }
        let id = queue.id;
        let tag = if wish.tag.is_empty() { self.random_name("amq.ctag-") } else { wish.tag.detached() };
        // Nothing waits for an acknowledgement of a consumer that gives none, so no limit applies to it.
        let prefetch = if wish.no_ack { 0 } else { prefetch };
        let consumer = self.add_consumer(Consumer {
            connection: origin.connection,
            channel: origin.channel,
            tag: tag.clone(),
            queue: id,
            no_ack: wish.no_ack,
            prefetch,
            priority: arguments::consumer_priority(&table),
            unacked: 0,
            turn: Turn::NotStarted,
        });
        if let Some(queue) = self.state.queues.get_mut(&id) {
            queue.session.consumers.push(consumer);
            queue.session.exclusive_consumer = wish.exclusive;
            if queue.rules.single_active_consumer {
                queue.session.single_active.get_or_insert(consumer);
            }
        }
        if wish.no_wait {
            self.start_consumer(consumer);
        } else {
            self.reply_and_start(id.0, origin, EffectKind::BasicConsumeOk { consumer_tag: tag }, consumer, out);
        }
        Ok(())
    }

    fn add_consumer(&mut self, consumer: Consumer) -> ConsumerId {
        self.last_consumer.0 += 1;
        let id = self.last_consumer;
        let origin = Origin { connection: consumer.connection, channel: consumer.channel };
        self.channel_mut(origin).consumers.insert(consumer.tag.clone(), id);
        self.consumers.insert(id, consumer);
        id
    }

    /// Cancelling an unknown consumer succeeds: it may have raced the queue's deletion (P9).
    pub(crate) fn cancel(
        &mut self,
        origin: Origin,
        tag: ShortStr,
        no_wait: bool,
        out: &mut Outputs,
    ) -> Result<(), Failure> {
        let queue = match self.cancel_replies(origin, &tag) {
            true => None,
            false => self.channel_mut(origin).consumers.remove(&tag).and_then(|id| self.forget_consumer(id)),
        };
        self.reply_unless(no_wait, origin, EffectKind::BasicCancelOk { consumer_tag: tag }, out);
        if let Some(queue) = queue {
            self.delete_if_abandoned(queue, out);
        }
        Ok(())
    }

    /// Its channel has let go of it. Returns its queue. What it has not acknowledged stays with the channel.
    pub(crate) fn forget_consumer(&mut self, id: ConsumerId) -> Option<QueueId> {
        let consumer = self.consumers.remove(&id)?;
        let queue = self.state.queues.get_mut(&consumer.queue)?;
        queue.session.consumers.retain(|other| *other != id);
        if consumer.turn == Turn::Active {
            queue.session.active.retain(|other| *other != id);
        }
        if queue.session.consumers.is_empty() {
            queue.session.exclusive_consumer = false;
            // Its head is no longer spared.
            self.state.evictable.note(queue);
        }
        let unused = queue.session.consumers.is_empty();
        if queue.session.single_active == Some(id) {
            let priority = |id: &ConsumerId| self.consumers.get(id).map(|consumer| consumer.priority);
            let next = queue.session.consumers.iter().copied().max_by_key(|id| (priority(id), Reverse(*id)));
            queue.session.single_active = next;
            // One whose consume-ok is not out yet begins with that.
            next.into_iter().for_each(|next| self.resume_consumer(next));
        }
        if unused {
            self.note_use(consumer.queue);
        }
        Some(consumer.queue)
    }

    /// `basic.qos`. Without `global` it is the limit of each consumer yet to come, and lifts the channel's own; with `global`
    /// it is the limit of all consumers of the channel together, from now on (P14).
    pub(crate) fn limit(
        &mut self,
        origin: Origin,
        prefetch_size: u32,
        prefetch_count: u16,
        global: bool,
        out: &mut Outputs,
    ) -> Result<(), Failure> {
        if prefetch_size != 0 {
            return Err(error::not_implemented(format!("prefetch_size!=0 ({prefetch_size})")));
        }
        let channel = self.channel_mut(origin);
        if global {
            channel.channel_prefetch = prefetch_count;
        } else {
            (channel.consumer_prefetch, channel.channel_prefetch) = (prefetch_count, 0);
        }
        self.resume_channel(origin);
        self.reply(origin, EffectKind::BasicQosOk, out);
        Ok(())
    }

    /// `basic.get`. A message that is published but not committed is taken, and handed over with its commit: a client that
    /// publishes and then gets finds what it published. One that is stored is taken too, and handed over when it is read.
    pub(crate) fn take_one(
        &mut self,
        caller: Caller,
        queue: ShortStr,
        no_ack: bool,
        out: &mut Outputs,
    ) -> Result<(), Failure> {
        let Caller { origin, vhost } = caller;
        let name = self.resolve(origin, queue)?;
        let queue = self.queue_named(vhost, &name)?;
        self.refuse_locked(queue, Some(origin))?;
        let id = queue.id;
        self.write_settled_of(id, out);
        self.note_use(id);
        self.drop_expired_head(id);
        let full = self.channel_mut(origin).is_full();
        let Some(queue) = self.state.queues.get_mut(&id) else { return Ok(()) };
        let next = queue.peek().map(|(index, entry)| (index, entry.message().cloned(), entry.delivery_count));
        let Some((index, message, delivery_count)) = next.filter(|_| no_ack || !full) else {
            self.reply_after(id.0, false, origin, EffectKind::BasicGetEmpty, out);
            return Ok(());
        };
        queue.hand_out(index);
        let message_count = count(queue.ready());
        self.state.evictable.note(queue);
        let redelivered = self.is_redelivered(index, delivery_count);
        let unacked = Unacked { queue: id, index, consumer: None };
        let answer = match message {
            Some(message) => {
                let delivery_tag = self.track(origin, unacked, no_ack);
                Answer::Known(EffectKind::BasicGetOk {
                    delivery_tag,
                    redelivered,
                    delivery_count,
                    message_count,
                    message,
                })
            }
            None => self.take_stored(origin, unacked, no_ack, (redelivered, delivery_count), message_count),
        };
        self.push_reply(origin, Reply { gate: index, confirmable: false, answer, start: None }, out);
        self.ask_for_messages(id, out);
        Ok(())
    }

    /// Numbers a delivery; it waits for its acknowledgement, or has it already.
    pub(crate) fn track(&mut self, origin: Origin, unacked: Unacked, no_ack: bool) -> DeliveryTag {
        let now = self.time.steady;
        let channel = self.channel_mut(origin);
        let tag = channel.take_tag();
        if no_ack {
            self.note_settled(unacked, Settlement::Dequeue);
        } else {
            channel.delivery_times.note(tag.0, now);
            channel.unacked.push_back(tag.0, unacked);
        }
        tag
    }
}
