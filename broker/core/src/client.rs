//! Connections and channels: their coming and going, and which command goes where. What each command does is in the
//! modules of its subject.

use understudy_protocol::MethodId;
use understudy_record::{QueueId, VhostId};

use crate::command::{ChannelId, Command, ConnectionId, ConnectionInfo};
use crate::core::{Core, Role};
use crate::effect::{AmqpError, EffectKind, Outputs};
use crate::error::{Failure, method_id, precondition_failed};
use crate::session::{Answer, Channel, Connection};

const CONNECTION_OPEN: MethodId = MethodId::new(10, 40);

/// Where a command came from, and its replies go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Origin {
    pub(crate) connection: ConnectionId,
    pub(crate) channel: ChannelId,
}

/// Who has asked for something, and in which virtual host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller {
    pub(crate) origin: Origin,
    pub(crate) vhost: VhostId,
}

impl Core {
    /// # Errors
    /// If there is no such virtual host, or the user may not use it, or has too many connections: the connection is to be
    /// closed, and the core does not know it.
    pub fn connection_opened(&mut self, id: ConnectionId, info: ConnectionInfo) -> Result<(), AmqpError> {
        debug_assert_ne!(self.role, Role::Replica, "only a primary serves clients");
        let admitted = self.admit(&info).map_err(|failure| failure.of(CONNECTION_OPEN));
        let (vhost, access) = admitted?;
        self.connections.insert(id, Connection::new(info, vhost, access));
        Ok(())
    }

    /// The connection is gone. What it had not acknowledged is ready again, its exclusive queues are deleted.
    pub fn connection_closed(&mut self, id: ConnectionId, out: &mut Outputs) {
        self.close_channels(id, out);
        if let Some(connection) = self.connections.remove(&id) {
            connection.exclusive_queues.into_iter().for_each(|queue| self.delete_queue(queue, out));
        }
    }

    /// A channel that was opened, unless it was refused, or has failed since.
    pub fn has_channel(&self, id: ConnectionId, channel: ChannelId) -> bool {
        self.connections.get(&id).is_some_and(|connection| connection.channels.contains_key(&channel))
    }

    /// Carries out one command. A command of a connection or channel that is not open is ignored: it crossed its close.
    pub fn handle(&mut self, id: ConnectionId, channel: ChannelId, command: Command, out: &mut Outputs) {
        let origin = Origin { connection: id, channel };
        let Some(connection) = self.connections.get_mut(&id).filter(|connection| !connection.failed) else { return };
        match command {
            Command::ChannelOpen => {
                if let Err(failure) = self.check_channels(id) {
                    return self.fail(origin, failure.of(MethodId::NONE), out);
                }
                if let Some(connection) = self.connections.get_mut(&id) {
                    connection.channels.entry(channel).or_default();
                }
            }
            Command::ChannelClose => {
                if let Some(state) = connection.channels.remove(&channel) {
                    self.clear_channel(origin, state, out);
                }
            }
            command => {
                if connection.channels.get(&channel).is_none_or(|channel| channel.closing) {
                    return;
                }
                let method = method_id(&command);
                let caller = Caller { origin, vhost: connection.vhost };
                let allowed = connection.check_access(&self.state, channel, &command);
                if let Err(failure) = allowed.and_then(|()| self.carry_out(caller, command, out)) {
                    self.fail(origin, failure.of(method), out);
                }
            }
        }
    }

    fn carry_out(&mut self, caller: Caller, command: Command, out: &mut Outputs) -> Result<(), Failure> {
        use crate::settle::Settlement;
        let origin = caller.origin;
        match command {
            Command::ChannelOpen | Command::ChannelClose => Ok(()),
            Command::ExchangeDeclare { passive: true, name, no_wait, .. } => {
                self.find_exchange(caller, &name, no_wait, out)
            }
            Command::ExchangeDeclare { name, kind, durable, auto_delete, internal, no_wait, arguments, .. } => {
                let flags = crate::declare::ExchangeFlags { durable, auto_delete, internal };
                self.declare_exchange(caller, name, &kind, flags, no_wait, arguments, out)
            }
            Command::ExchangeDelete { name, if_unused, no_wait } => {
                self.delete_exchange(caller, name, if_unused, no_wait, out)
            }
            Command::QueueDeclare { passive: true, name, no_wait, .. } => self.find_queue(caller, name, no_wait, out),
            Command::QueueDeclare { name, durable, exclusive, auto_delete, no_wait, arguments, .. } => {
                let flags = crate::declare::QueueFlags { durable, exclusive, auto_delete };
                self.declare_queue(caller, name, flags, no_wait, arguments, out)
            }
            Command::QueuePurge { queue, no_wait } => self.purge(caller, queue, no_wait, out),
            Command::QueueDelete { queue, if_unused, if_empty, no_wait } => {
                self.delete_queue_by_name(caller, queue, if_unused, if_empty, no_wait, out)
            }
            bind @ (Command::ExchangeBind { .. } | Command::QueueBind { .. }) => self.bind(caller, bind, out),
            unbind @ (Command::ExchangeUnbind { .. } | Command::QueueUnbind { .. }) => self.unbind(caller, unbind, out),
            Command::BasicQos { prefetch_size, prefetch_count, global } => {
                self.limit(origin, prefetch_size, prefetch_count, global, out)
            }
            Command::BasicConsume { queue, consumer_tag, no_ack, exclusive, no_wait, arguments, no_local: _ } => {
                let wish = crate::consume::Wish { queue, tag: consumer_tag, no_ack, exclusive, no_wait, arguments };
                self.consume(caller, wish, out)
            }
            Command::BasicCancel { consumer_tag, no_wait } => self.cancel(origin, consumer_tag, no_wait, out),
            Command::PublishPart { body } => {
                self.publish_part(origin, body, out);
                Ok(())
            }
            Command::BasicPublish(publish) => self.publish(caller, publish, out),
            Command::BasicGet { queue, no_ack } => self.take_one(caller, queue, no_ack, out),
            Command::BasicAck { delivery_tag, multiple } => {
                self.settle(origin, delivery_tag, multiple, Settlement::Dequeue)
            }
            Command::BasicNack { delivery_tag, multiple, requeue } => {
                self.settle(origin, delivery_tag, multiple, Settlement::of_nack(requeue))
            }
            Command::BasicReject { delivery_tag, requeue } => {
                self.settle(origin, delivery_tag, false, Settlement::of_nack(requeue))
            }
            Command::BasicRecover { requeue } => self.recover(origin, requeue, false, out),
            Command::BasicRecoverAsync { requeue } => self.recover(origin, requeue, true, out),
            Command::ConfirmSelect { no_wait } => {
                let channel = self.channel_mut(origin);
                if channel.transaction.is_some() {
                    return Err(precondition_failed("cannot switch from tx to confirm mode"));
                }
                channel.confirms.get_or_insert_default();
                self.reply_unless(no_wait, origin, EffectKind::ConfirmSelectOk, out);
                Ok(())
            }
            Command::TxSelect => self.select_transactions(origin, out),
            Command::TxCommit => self.commit_transaction(origin, out),
            Command::TxRollback => self.roll_back_transaction(origin, out),
        }
    }

    /// Closes the channel or, for a hard error, the connection.
    pub(crate) fn fail(&mut self, origin: Origin, error: AmqpError, out: &mut Outputs) {
        if error.code.is_hard() {
            if let Some(connection) = self.connections.get_mut(&origin.connection) {
                connection.failed = true;
            }
            self.close_channels(origin.connection, out);
            self.emit(origin, EffectKind::CloseConnection { error }, out);
            return;
        }
        let mut failed = std::mem::take(self.channel_mut(origin));
        let replies = std::mem::take(&mut failed.replies);
        let channel = self.channel_mut(origin);
        (channel.replies, channel.closing) = (replies, true);
        self.clear_channel(origin, failed, out);
        self.reply(origin, EffectKind::CloseChannel { error }, out);
    }

    pub(crate) fn close_channels(&mut self, id: ConnectionId, out: &mut Outputs) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let channels = std::mem::take(&mut connection.channels);
        for (channel, state) in channels {
            self.clear_channel(Origin { connection: id, channel }, state, out);
        }
    }

    /// Gives back what a channel held, now that it is gone: consumers, deliveries, and the queues that go with their last
    /// consumer. Its unsent replies and confirms are dropped.
    fn clear_channel(&mut self, origin: Origin, channel: Channel, out: &mut Outputs) {
        let cut_off = self.take_upload(origin);
        self.discard(cut_off.as_ref(), out);
        self.unconfirmed -= channel.confirms.as_ref().map_or(0, |confirms| confirms.waiting());
        if let Some(consumer) = &channel.reply_consumer {
            self.forget_reply_consumer(origin, consumer);
        }
        let mut left: Vec<QueueId> = Vec::new();
        for consumer in channel.consumers.values() {
            left.extend(self.forget_consumer(*consumer));
        }
        for (_, unacked) in channel.unacked.into_items() {
            self.note_settled(unacked, crate::settle::Settlement::Requeue);
        }
        if let Some(transaction) = channel.transaction {
            self.end_transaction(*transaction, out);
        }
        let gets = channel.replies.into_iter().filter_map(|reply| match reply.answer {
            Answer::Loading(get) => Some(get),
            _ => None,
        });
        self.forget_gets(origin, gets);
        self.write_settled(out);
        left.into_iter().for_each(|queue| self.delete_if_abandoned(queue, out));
    }

    /// Deliveries to this client pause while it does not read what it was sent.
    pub fn handle_writable(&mut self, id: ConnectionId, writable: bool, _out: &mut Outputs) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let resumed = writable && !connection.writable;
        connection.writable = writable;
        if resumed {
            let channels: Vec<ChannelId> = connection.channels.keys().copied().collect();
            channels.into_iter().for_each(|channel| self.resume_channel(Origin { connection: id, channel }));
        }
    }

    pub(crate) fn channel_mut(&mut self, origin: Origin) -> &mut Channel {
        let connection = self.connections.get_mut(&origin.connection);
        let channel = connection.and_then(|connection| connection.channels.get_mut(&origin.channel));
        channel.expect("commands are carried out on open channels only: `handle` has looked")
    }
}
