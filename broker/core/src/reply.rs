//! Effects and their order: replies on one channel keep the order of their commands, each waits for the commit of what it
//! speaks of, and a message that has to be read back for its reading; deliveries and confirms are streams of their own.

use understudy_record::Index;

use crate::client::Origin;
use crate::command::DeliveryTag;
use crate::confirms::Ack;
use crate::core::Core;
use crate::effect::{Effect, EffectKind, Outputs};
use crate::session::{Answer, ConsumerId, Reply};

impl Core {
    pub(crate) fn emit(&self, origin: Origin, kind: EffectKind, out: &mut Outputs) {
        out.effects.push(Effect { connection: origin.connection, channel: origin.channel, kind });
    }

    /// A reply that waits for nothing but the replies before it.
    pub(crate) fn reply(&mut self, origin: Origin, effect: EffectKind, out: &mut Outputs) {
        self.push_reply(
            origin,
            Reply { gate: Index(0), confirmable: false, answer: Answer::Known(effect), start: None },
            out,
        );
    }

    pub(crate) fn reply_unless(&mut self, no_wait: bool, origin: Origin, effect: EffectKind, out: &mut Outputs) {
        if !no_wait {
            self.reply(origin, effect, out);
        }
    }

    /// A reply that follows from record `gate`.
    pub(crate) fn reply_after(
        &mut self,
        gate: Index,
        no_wait: bool,
        origin: Origin,
        effect: EffectKind,
        out: &mut Outputs,
    ) {
        if !no_wait {
            self.push_reply(
                origin,
                Reply { gate, confirmable: false, answer: Answer::Known(effect), start: None },
                out,
            );
        }
    }

    /// A reply after which deliveries to `consumer` begin.
    pub(crate) fn reply_and_start(
        &mut self,
        gate: Index,
        origin: Origin,
        effect: EffectKind,
        consumer: ConsumerId,
        out: &mut Outputs,
    ) {
        self.push_reply(
            origin,
            Reply { gate, confirmable: false, answer: Answer::Known(effect), start: Some(consumer) },
            out,
        );
    }

    pub(crate) fn push_reply(&mut self, origin: Origin, reply: Reply, out: &mut Outputs) {
        let replies = &mut self.channel_mut(origin).replies;
        replies.push_back(reply);
        if replies.len() == 1 {
            self.release_replies(origin, out);
        }
    }

    pub(crate) fn release_replies(&mut self, origin: Origin, out: &mut Outputs) {
        let (committed, confirmable) = (self.committed, self.confirmable);
        loop {
            let Some(connection) = self.connections.get_mut(&origin.connection) else { return };
            let Some(channel) = connection.channels.get_mut(&origin.channel) else { return };
            let Some(reply) = channel.replies.front() else { return };
            let (reached, gates) = match reply.confirmable {
                true => (confirmable, &mut self.confirm_gates),
                false => (committed, &mut self.reply_gates),
            };
            if reply.gate > reached {
                gates.wait(reply.gate, origin.connection, origin.channel);
                return;
            }
            // What it speaks of is being read back.
            if matches!(channel.replies.front(), Some(Reply { answer: Answer::Loading(_), .. })) {
                return;
            }
            let Some(Reply { answer: Answer::Known(effect), start, .. }) = channel.replies.pop_front() else { return };
            if matches!(effect, EffectKind::CloseChannel { .. }) {
                connection.channels.remove(&origin.channel);
            }
            self.emit(origin, effect, out);
            if let Some(consumer) = start {
                self.start_consumer(consumer);
            }
        }
    }

    /// The log is committed up to `committed`; publisher confirms may go out up to `confirmable`, which is not beyond it.
    /// Both only grow. Releases what waited; deliveries follow with [`Core::deliver`].
    pub fn handle_committed(&mut self, committed: Index, confirmable: Index, out: &mut Outputs) {
        // Whoever sees a commit sees whole transactions.
        let committed = self.transactions.whole(committed);
        let before = self.committed;
        self.committed = self.committed.max(committed);
        self.confirmable = self.confirmable.max(confirmable.min(committed));
        while let Some((_, queue)) = self.waiting.first().filter(|(index, _)| *index <= self.committed).copied() {
            self.waiting.pop_first();
            if let Some(queue) = self.state.queues.get_mut(&queue) {
                queue.session.waiting = false;
                queue.session.fresh_above.get_or_insert(before);
            }
            self.mark_dirty(queue);
        }
        self.close_deleted(out);
        self.ask_for_committed(out);
        self.dead_letters.handle_committed(self.committed);
        while let Some((connection, channel)) = self.reply_gates.take_due(self.committed) {
            self.release_replies(Origin { connection, channel }, out);
        }
        while let Some((connection, channel)) = self.confirm_gates.take_due(self.confirmable) {
            let origin = Origin { connection, channel };
            self.release_replies(origin, out);
            self.release_confirms(origin, out);
        }
    }

    fn release_confirms(&mut self, origin: Origin, out: &mut Outputs) {
        let confirmable = self.confirmable;
        let Some(connection) = self.connections.get_mut(&origin.connection) else { return };
        let Some(channel) = connection.channels.get_mut(&origin.channel) else { return };
        let Some(confirms) = &mut channel.confirms else { return };
        let released = confirms.release(confirmable);
        if let Some(next) = confirms.first_waiting() {
            self.confirm_gates.wait(next, origin.connection, origin.channel);
        }
        if let Some((ack, count)) = released {
            self.unconfirmed -= count;
            self.emit(origin, EffectKind::PublisherAck { delivery_tag: ack.tag, multiple: ack.multiple }, out);
        }
    }

    /// The ack of an unroutable publish. `alone`: no earlier publish of the channel waits, so a run of these becomes one.
    pub(crate) fn emit_ack(&self, origin: Origin, ack: Ack, alone: bool, out: &mut Outputs) {
        let before = DeliveryTag(ack.tag.0 - 1);
        if let Some(Effect { connection, channel, kind: EffectKind::PublisherAck { delivery_tag, multiple } }) =
            out.effects.last_mut()
            && (*connection, *channel, *delivery_tag, alone) == (origin.connection, origin.channel, before, true)
        {
            (*delivery_tag, *multiple) = (ack.tag, true);
            return;
        }
        self.emit(origin, EffectKind::PublisherAck { delivery_tag: ack.tag, multiple: ack.multiple }, out);
    }
}
