//! Direct reply-to: a client that asks consumes from the pseudo-queue `amq.rabbitmq.reply-to`, and what answers it publish to
//! the name that stands in its messages' `reply-to` goes straight to its channel. There is no queue, and no record: an answer
//! reaches its channel at most once, and not a channel that is gone, whatever was confirmed to the publisher.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use hashbrown::HashMap;
use understudy_protocol::Properties;
use understudy_record::{Message, ShortStr};

use crate::MAX_WAITING_ANSWERS_BYTES;
use crate::client::Origin;
use crate::consume::Wish;
use crate::core::Core;
use crate::effect::{EffectKind, Outputs};
use crate::error::{self, Failure, precondition_failed};

const PSEUDO_QUEUE: &str = "amq.rabbitmq.reply-to";

/// What an answer takes in memory beside body and properties, in bytes, about.
const HELD_BYTES: u64 = 256;

/// Of all channels.
#[derive(Debug, Default)]
pub(crate) struct DirectReplies {
    by_key: HashMap<ShortStr, Origin>,
    /// Channels that answers wait for.
    waited_for: BTreeSet<Origin>,
}

/// A channel's consumer of the pseudo-queue.
#[derive(Debug)]
pub(crate) struct ReplyConsumer {
    tag: ShortStr,
    /// What `reply-to` becomes in what the channel publishes.
    key: ShortStr,
    /// Its consume-ok is out.
    started: bool,
    waiting: VecDeque<Arc<Message>>,
    waiting_bytes: u64,
}

pub(crate) fn is_pseudo_queue(name: &ShortStr) -> bool {
    name.as_bytes() == PSEUDO_QUEUE.as_bytes()
}

impl Core {
    /// `basic.consume` from the pseudo-queue.
    pub(crate) fn consume_replies(&mut self, origin: Origin, wish: Wish, out: &mut Outputs) -> Result<(), Failure> {
        let channel = self.channel_mut(origin);
        if channel.consumers.contains_key(&wish.tag) {
            return Err(error::consumer_tag_in_use(&wish.tag));
        }
        if let Some(consumer) = &channel.reply_consumer {
            return Err(match consumer.tag == wish.tag {
                true => error::consumer_tag_in_use(&wish.tag),
                false => precondition_failed("reply consumer already set"),
            });
        }
        if !wish.no_ack {
            return Err(precondition_failed("reply consumer cannot acknowledge"));
        }
        let tag = if wish.tag.is_empty() { self.random_name("amq.ctag-") } else { wish.tag.detached() };
        let key = self.random_name("amq.rabbitmq.reply-to.");
        self.direct_replies.by_key.insert(key.clone(), origin);
        let (waiting, waiting_bytes) = (VecDeque::new(), 0);
        let consumer = ReplyConsumer { tag: tag.clone(), key, started: false, waiting, waiting_bytes };
        self.channel_mut(origin).reply_consumer = Some(Box::new(consumer));
        self.reply_unless(wish.no_wait, origin, EffectKind::BasicConsumeOk { consumer_tag: tag }, out);
        Ok(())
    }

    /// Whether it was this channel's consumer of the pseudo-queue.
    pub(crate) fn cancel_replies(&mut self, origin: Origin, tag: &ShortStr) -> bool {
        let consumer = &mut self.channel_mut(origin).reply_consumer;
        let taken = consumer.take_if(|consumer| consumer.tag == *tag);
        taken.map(|consumer| self.forget_reply_consumer(origin, &consumer)).is_some()
    }

    /// Its channel has let go of it.
    pub(crate) fn forget_reply_consumer(&mut self, origin: Origin, consumer: &ReplyConsumer) {
        self.direct_replies.by_key.remove(&consumer.key);
        self.direct_replies.waited_for.remove(&origin);
    }

    pub(crate) fn has_reply_consumer_tag(&mut self, origin: Origin, tag: &ShortStr) -> bool {
        self.channel_mut(origin).reply_consumer.as_ref().is_some_and(|consumer| consumer.tag == *tag)
    }

    /// The pseudo-queue, or the name of a consumer of it that is still there: who answers may ask by a declare.
    pub(crate) fn is_reply_name(&self, name: &ShortStr) -> bool {
        is_pseudo_queue(name) || self.direct_replies.by_key.contains_key(name)
    }

    /// A message's properties with the channel's own name in `reply-to`, if it asks for answers this way.
    ///
    /// # Errors
    /// If nobody on the channel would get them.
    pub(crate) fn name_reply_consumer(
        &mut self,
        origin: Origin,
        properties: &Properties,
    ) -> Result<Option<Properties>, Failure> {
        if !properties.reply_to().is_some_and(|reply_to| is_pseudo_queue(&reply_to)) {
            return Ok(None);
        }
        let Some(consumer) = &self.channel_mut(origin).reply_consumer else {
            return Err(precondition_failed("fast reply consumer does not exist"));
        };
        let mut named = properties.decode();
        named.reply_to = Some(consumer.key.clone());
        Ok(Some(named.encode()))
    }

    /// A message that was published to the default exchange goes to the consumer that its routing key names, if it is one.
    /// What its client does not read in time is dropped above a bound.
    pub(crate) fn answer(&mut self, message: &Message) {
        if self.direct_replies.by_key.is_empty() || !message.exchange.is_empty() {
            return;
        }
        let Some(origin) = self.direct_replies.by_key.get(&message.routing_key).copied() else { return };
        let Some(consumer) = &mut self.channel_mut(origin).reply_consumer else { return };
        let bytes = held_bytes(message);
        if !consumer.waiting.is_empty() && consumer.waiting_bytes + bytes > MAX_WAITING_ANSWERS_BYTES {
            return;
        }
        consumer.waiting.push_back(Arc::new(message.clone()));
        consumer.waiting_bytes += bytes;
        self.direct_replies.waited_for.insert(origin);
    }

    pub(crate) fn hand_out_answers(&mut self, out: &mut Outputs) {
        // Nearly always nobody waits for any.
        if self.direct_replies.waited_for.is_empty() {
            return;
        }
        let mut waited_for = std::mem::take(&mut self.direct_replies.waited_for);
        waited_for.retain(|origin| !self.hand_out_answers_to(*origin, out));
        self.direct_replies.waited_for = waited_for;
    }

    /// Returns whether none waits any more.
    fn hand_out_answers_to(&mut self, origin: Origin, out: &mut Outputs) -> bool {
        let Some(connection) = self.connections.get_mut(&origin.connection) else { return true };
        let writable = connection.writable;
        let Some(channel) = connection.channels.get_mut(&origin.channel) else { return true };
        let nothing_before = channel.replies.is_empty();
        let Some(consumer) = &mut channel.reply_consumer else { return true };
        consumer.started |= nothing_before;
        if !writable || !consumer.started {
            return false;
        }
        let (waiting, tag) = (std::mem::take(&mut consumer.waiting), consumer.tag.clone());
        consumer.waiting_bytes = 0;
        for message in waiting {
            let (consumer_tag, delivery_tag) = (tag.clone(), self.channel_mut(origin).take_tag());
            let (redelivered, delivery_count) = (false, 0);
            let kind = EffectKind::BasicDeliver { consumer_tag, delivery_tag, redelivered, delivery_count, message };
            self.emit(origin, kind, out);
        }
        true
    }
}

fn held_bytes(message: &Message) -> u64 {
    HELD_BYTES + (message.properties.len() + message.body.len()) as u64
}
