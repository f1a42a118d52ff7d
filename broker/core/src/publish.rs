//! Publishing: the checks, the routing decision, and the record that carries it. This is the hot path: one record, one
//! reference-counted message, one entry in each queue.

use std::sync::Arc;

use bytes::Bytes;
use understudy_protocol::{Properties, ReplyCode};
use understudy_record::{Body, Index, Message, PartRef, QueueId, Record, SeenKey, ShortStr};

use crate::arguments;
use crate::client::{Caller, Origin};
use crate::command::Publish;
use crate::copies;
use crate::core::Core;
use crate::deduplication::Passing;
use crate::effect::{EffectKind, Outputs};
use crate::error::{self, Failure};
use crate::exchange::Routed;
use crate::transaction::Held;

/// A user's tag: it may claim that messages are another's.
const IMPERSONATOR: &str = "impersonator";

impl Core {
    pub(crate) fn publish(&mut self, caller: Caller, publish: Publish, out: &mut Outputs) -> Result<(), Failure> {
        let Caller { origin, vhost } = caller;
        let properties = Properties::from_raw(publish.properties.clone());
        let parts = self.take_upload(origin);
        let (more_keys, changed) = match self.check_and_complete(caller, &publish, &properties) {
            Ok(completed) => completed,
            Err(failure) => {
                self.discard(parts.as_ref(), out);
                return Err(failure);
            }
        };
        let passing = Passing::at(self.time.wall_ms);
        let routed = Routed::new(&publish.routing_key, &more_keys, &publish.properties, &passing);
        let mut targets = self.state.vhost(vhost).route(&publish.exchange, &routed);
        let (seen, mut is_duplicate) = passing.passed();
        let transactional = self.is_transactional(origin);
        // In a transaction its queues may still go before the commit.
        let on_disk = transactional || targets.iter().any(|queue| self.is_durable(*queue));
        let persistent = on_disk && properties.is_persistent();
        let Publish { exchange, routing_key, mandatory, properties, body, .. } = publish;
        let properties = changed.unwrap_or(properties);
        let mut message = Message { exchange, routing_key, properties, persistent, parts, body };
        if transactional {
            let again = (is_duplicate || !seen.is_empty()).then_some(more_keys);
            return self.publish_later(origin, Held::of_publisher(message, targets, mandatory, again), out);
        }
        self.answer(&message);
        let is_unrouted = targets.is_empty();
        if self.take_out_duplicates(&mut targets, &message.properties, &passing) {
            is_duplicate = true;
            message.persistent &= targets.iter().any(|queue| self.is_durable(*queue));
        }
        let full = self.take_out_full(&mut targets, message.body_bytes() + message.properties.len() as u64);
        if !full.is_empty() {
            self.publish_refused(origin, message, targets, &full, out);
            return Ok(());
        }
        if targets.is_empty() {
            self.drop_unrouted(origin, message, mandatory && is_unrouted, out);
            let remembered = self.write_seen_alone(seen, out);
            // A duplicate is confirmed no sooner than its original, which the log has by now.
            let gate = match is_duplicate || remembered.is_some() {
                true => self.state.last_index,
                false => self.state.topology_index,
            };
            self.confirm_dropped(origin, gate, out);
            return Ok(());
        }
        let index = self.write_publish(targets, message, seen, out);
        self.confirm_when_committed(origin, index);
        Ok(())
    }

    /// `seen`: what it leaves at exchanges.
    pub(crate) fn write_publish(
        &mut self,
        targets: Vec<QueueId>,
        message: Message,
        seen: Vec<SeenKey>,
        out: &mut Outputs,
    ) -> Index {
        self.note_time([(&message.properties, &targets[..])], out);
        self.write_seen(seen, out);
        let queues = targets.clone();
        let index = self.write(self.publish_record(targets, message), out);
        queues.into_iter().for_each(|queue| self.expect_commit(queue, index));
        index
    }

    /// Some queues are full and refuse it. The others take it all the same, the publisher hears of the refusal (T5), and where
    /// it is to be dead-lettered it is. The parts of a large one are for the first that take it: the publisher has it still.
    fn publish_refused(
        &mut self,
        origin: Origin,
        message: Message,
        targets: Vec<QueueId>,
        full: &[QueueId],
        out: &mut Outputs,
    ) {
        let dead_letters = |queue: &&QueueId| {
            let rules = self.state.queues.get(*queue).map(|queue| &queue.rules);
            rules.and_then(|rules| rules.limits).is_some_and(|limits| limits.dead_letters_refused())
        };
        let letters: Vec<QueueId> = full.iter().filter(dead_letters).copied().collect();
        let mut parts = message.parts.clone();
        if !targets.is_empty() {
            parts = None;
            self.write_publish(targets, message.clone(), Vec::new(), out);
        }
        for queue in letters {
            let passing = Passing::at(self.time.wall_ms);
            let letter = self.refused_letter(queue, &message, &passing);
            self.write_seen_alone(passing.orphans(), out);
            let Some(Held { message, targets, seen, .. }) = letter else { continue };
            if message.parts.is_none() || parts.take().is_some() {
                self.write_publish(targets, message, seen, out);
            }
        }
        self.discard(parts.as_ref(), out);
        if let Some(confirms) = &mut self.channel_mut(origin).confirms {
            let delivery_tag = confirms.refused();
            self.emit(origin, EffectKind::PublisherNack { delivery_tag, multiple: false }, out);
        }
    }

    /// No queue takes it.
    pub(crate) fn drop_unrouted(&mut self, origin: Origin, message: Message, mandatory: bool, out: &mut Outputs) {
        self.discard(message.parts.as_ref(), out);
        if mandatory {
            let (text, message) = (ReplyCode::NoRoute.name().to_owned(), Arc::new(message));
            self.emit(origin, EffectKind::BasicReturn { code: ReplyCode::NoRoute, text, message }, out);
        }
    }

    /// Part of a large message's body, ahead of the message.
    pub(crate) fn publish_part(&mut self, origin: Origin, body: Body, out: &mut Outputs) {
        let bytes = u32::try_from(body.len()).expect("a part is far below 4 GiB");
        let index = self.write(Record::Part { body }, out);
        self.uploads.entry(origin).or_default().push(PartRef { index, bytes });
    }

    /// The parts that came on this channel since its last message.
    pub(crate) fn take_upload(&mut self, origin: Origin) -> Option<Arc<[PartRef]>> {
        // Nearly always nobody uploads anything.
        if self.uploads.is_empty() {
            return None;
        }
        self.uploads.remove(&origin).map(Arc::from)
    }

    /// No message will claim these. Whoever holds the list, to send a message back, keeps them in the log.
    pub(crate) fn discard(&mut self, parts: Option<&Arc<[PartRef]>>, out: &mut Outputs) {
        let Some(parts) = parts else { return };
        self.write(Record::Discard { parts: parts.iter().map(|part| part.index).collect() }, out);
        self.state.parts.retire(parts.clone());
    }

    /// Its further routing keys, and the properties as they go on if they do not go on as they came.
    fn check_and_complete(
        &mut self,
        caller: Caller,
        publish: &Publish,
        properties: &Properties,
    ) -> Result<(Vec<ShortStr>, Option<Bytes>), Failure> {
        self.check_publish(caller, publish, properties)?;
        let named = self.name_reply_consumer(caller.origin, properties)?;
        let (more_keys, stripped) = copies::of(named.as_ref().unwrap_or(properties))?;
        Ok((more_keys, stripped.or(named.map(|named| named.as_bytes().clone()))))
    }

    fn check_publish(&self, caller: Caller, publish: &Publish, properties: &Properties) -> Result<(), Failure> {
        if publish.immediate {
            return Err(error::not_implemented("immediate=true"));
        }
        if !publish.exchange.is_empty() {
            let vhost = self.state.vhost(caller.vhost);
            let exchange = vhost.exchanges.get(&publish.exchange);
            if exchange.ok_or_else(|| error::no_exchange(vhost.name(), &publish.exchange))?.spec.internal {
                return Err(error::internal_exchange(vhost.name(), &publish.exchange));
            }
        }
        if let Some(claimed) = properties.user_id() {
            let info = self.connections.get(&caller.origin.connection).map(|connection| &connection.info);
            let user = info.map_or("", |info| &info.user);
            if claimed.as_bytes() != user.as_bytes() && !info.is_some_and(|info| self.has_tag(info, IMPERSONATOR)) {
                return Err(error::precondition_failed(format!(
                    "user_id property set to '{claimed}' but authenticated user was '{user}'"
                )));
            }
        }
        if let Some(expiration) = properties.expiration() {
            arguments::check_expiration(&expiration.to_text())?;
        }
        // Neither transient nor persistent: whoever sent it may count on more than it would get.
        match properties.delivery_mode() {
            None | Some(1 | 2) => Ok(()),
            Some(mode) => Err(error::precondition_failed(format!("invalid message: {{delivery_mode_unknown,{mode}}}"))),
        }
    }

    pub(crate) fn is_durable(&self, queue: QueueId) -> bool {
        self.state.queues.get(&queue).is_some_and(|queue| queue.spec.durable)
    }

    /// The queue has something to deliver once `index` is committed.
    pub(crate) fn expect_commit(&mut self, id: QueueId, index: Index) {
        self.watch_length(id);
        let Some(queue) = self.state.queues.get_mut(&id) else { return };
        if let Some(first) = queue.first_deadline() {
            self.expiries.watch(queue, first.get());
        }
        let session = &mut queue.session;
        if !session.active.is_empty() && !session.dirty && !session.waiting {
            session.waiting = true;
            self.waiting.insert((index, id));
        }
    }

    fn confirm_when_committed(&mut self, origin: Origin, index: Index) {
        let Some(confirms) = &mut self.channel_mut(origin).confirms else { return };
        let first = confirms.routed(index);
        self.unconfirmed += 1;
        if first {
            self.confirm_gates.wait(index, origin.connection, origin.channel);
        }
    }

    /// At once, unless that by which it reached nobody could still be undone: then with the commit of that, which is `gate`.
    fn confirm_dropped(&mut self, origin: Origin, gate: Index, out: &mut Outputs) {
        if gate > self.confirmable {
            return self.confirm_when_committed(origin, gate);
        }
        let Some(confirms) = &mut self.channel_mut(origin).confirms else { return };
        let (ack, alone) = (confirms.unroutable(), confirms.waiting() == 0);
        self.emit_ack(origin, ack, alone, out);
    }
}
