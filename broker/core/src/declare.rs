//! Exchanges and queues as clients declare, delete and purge them, and those that go by themselves: exclusive queues with
//! their connection, auto-delete queues with their last consumer, auto-delete exchanges with their last binding.

use bytes::Bytes;
use understudy_protocol::FieldTable;
use understudy_record::{
    Destination, ExchangeKind, ExchangeSpec, Index, QueueId, QueueSpec, Record, ShortStr, VhostId,
};

use crate::MAX_MESSAGES_PER_RECORD;
use crate::access::Kind;
use crate::arguments::{self, ALTERNATE_EXCHANGE, DEAD_LETTER_EXCHANGE, QUEUE_TYPE, REPLICATE, assert_same};
use crate::client::{Caller, Origin};
use crate::core::Core;
use crate::deduplication::assert_same_deduplication;
use crate::effect::{EffectKind, Outputs};
use crate::error::{self, Failure};
use crate::exchange::Exchange;
use crate::policies::Target;
use crate::queue::{Queue, QueueSession};
use crate::settle::dequeue;

const RESERVED_PREFIX: &[u8] = b"amq.";

#[derive(Clone, Copy, Debug)]
pub(crate) struct ExchangeFlags {
    pub(crate) durable: bool,
    pub(crate) auto_delete: bool,
    pub(crate) internal: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueFlags {
    pub(crate) durable: bool,
    pub(crate) exclusive: bool,
    pub(crate) auto_delete: bool,
}

/// The consumers of a queue that was deleted by record `deleted`, of clients that understand what that means.
struct Cancelled {
    deleted: Index,
    consumers: Vec<(Origin, ShortStr)>,
}

impl Core {
    // ---- exchanges

    /// A passive declare.
    pub(crate) fn find_exchange(
        &mut self,
        Caller { origin, vhost }: Caller,
        name: &ShortStr,
        no_wait: bool,
        out: &mut Outputs,
    ) -> Result<(), Failure> {
        refuse_default_exchange(name)?;
        let exchange = self.exchange_named(vhost, name)?;
        self.reply_after(exchange.declared, no_wait, origin, EffectKind::ExchangeDeclareOk, out);
        Ok(())
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "a declare has these fields; naming them again would say nothing new"
    )]
    pub(crate) fn declare_exchange(
        &mut self,
        caller: Caller,
        name: ShortStr,
        kind: &ShortStr,
        flags: ExchangeFlags,
        no_wait: bool,
        arguments: Bytes,
        out: &mut Outputs,
    ) -> Result<(), Failure> {
        let kind = ExchangeKind::from_name(kind.as_bytes()).ok_or_else(|| error::unknown_exchange_type(kind))?;
        let gate = self.ensure_exchange(caller.vhost, Some(caller.origin), name, kind, flags, arguments, out)?;
        self.reply_after(gate, no_wait, caller.origin, EffectKind::ExchangeDeclareOk, out);
        Ok(())
    }

    /// It is there, as it is asked for; returns the record that declared it. `by`: who asks, if it is a client.
    #[expect(
        clippy::too_many_arguments,
        reason = "a declare has these fields; naming them again would say nothing new"
    )]
    pub(crate) fn ensure_exchange(
        &mut self,
        vhost: VhostId,
        by: Option<Origin>,
        name: ShortStr,
        kind: ExchangeKind,
        flags: ExchangeFlags,
        arguments: Bytes,
        out: &mut Outputs,
    ) -> Result<Index, Failure> {
        refuse_default_exchange(&name)?;
        let table = arguments::decode(&arguments).ok_or_else(error::malformed_table)?;
        let ExchangeFlags { durable, auto_delete, internal } = flags;
        let object = error::exchange(self.state.vhost(vhost).name(), &name);
        let settings = self.state.vhost(vhost).policies.of(Target::Exchange, &name);
        let replicate = self.replication(&table, settings, &object)?;
        let deduplicates = self.deduplicates(Some(kind), &table, &object)?;
        let wanted = ExchangeSpec { name, kind, durable, auto_delete, internal, replicate, deduplicates, arguments };
        if let Some(exchange) = self.state.vhost(vhost).exchanges.get(&wanted.name) {
            assert_exchange_equivalent(&wanted, &table, &exchange.spec, &object)?;
            return Ok(exchange.declared);
        }
        refuse_reserved_name("exchange", &wanted.name)?;
        arguments::check_exchange_name(ALTERNATE_EXCHANGE, &table, &object)?;
        self.check_argument_access(by, (Kind::Exchange, &wanted.name), table.get(ALTERNATE_EXCHANGE))?;
        Ok(self.write(Record::ExchangeDeclare(wanted).within(vhost), out))
    }

    /// Deleting what does not exist succeeds.
    pub(crate) fn delete_exchange(
        &mut self,
        Caller { origin, vhost }: Caller,
        name: ShortStr,
        if_unused: bool,
        no_wait: bool,
        out: &mut Outputs,
    ) -> Result<(), Failure> {
        refuse_default_exchange(&name)?;
        let here = self.state.vhost(vhost);
        if name.as_bytes().starts_with(RESERVED_PREFIX) {
            return Err(error::system_exchange(here.name(), &name));
        }
        if let Some(exchange) = here.exchanges.get(&name) {
            if if_unused && exchange.has_bindings() {
                return Err(error::in_use(error::exchange(here.name(), &name)));
            }
            self.remove_exchange(vhost, name, out);
        }
        self.reply_after(self.state.topology_index, no_wait, origin, EffectKind::ExchangeDeleteOk, out);
        Ok(())
    }

    /// It is there.
    pub(crate) fn remove_exchange(&mut self, vhost: VhostId, name: ShortStr, out: &mut Outputs) {
        let sources = self.state.vhost(vhost).sources_of(&Destination::Exchange(name.clone()));
        self.write(Record::ExchangeDelete { name }.within(vhost), out);
        self.delete_unbound_exchanges(vhost, sources, out);
    }

    /// Of `candidates`, which have just lost a binding, deletes those that were only there for their bindings.
    pub(crate) fn delete_unbound_exchanges(
        &mut self,
        vhost: VhostId,
        mut candidates: Vec<ShortStr>,
        out: &mut Outputs,
    ) {
        while let Some(name) = candidates.pop() {
            let here = self.state.vhost(vhost);
            let exchange = here.exchanges.get(&name);
            if exchange.is_some_and(|exchange| exchange.spec.auto_delete && !exchange.has_bindings()) {
                candidates.extend(here.sources_of(&Destination::Exchange(name.clone())));
                self.write(Record::ExchangeDelete { name }.within(vhost), out);
            }
        }
    }

    // ---- queues

    /// A passive declare.
    pub(crate) fn find_queue(
        &mut self,
        Caller { origin, vhost }: Caller,
        name: ShortStr,
        no_wait: bool,
        out: &mut Outputs,
    ) -> Result<(), Failure> {
        if self.is_reply_name(&name) {
            return self.declared_replies(origin, name, no_wait, out);
        }
        let queue = self.queue_named(vhost, &name)?;
        self.refuse_locked(queue, Some(origin))?;
        self.declared(origin, queue.id, no_wait, out);
        Ok(())
    }

    pub(crate) fn declare_queue(
        &mut self,
        Caller { origin, vhost }: Caller,
        name: ShortStr,
        flags: QueueFlags,
        no_wait: bool,
        arguments: Bytes,
        out: &mut Outputs,
    ) -> Result<(), Failure> {
        if self.is_reply_name(&name) {
            return self.declared_replies(origin, name, no_wait, out);
        }
        let name = match name.is_empty() {
            true => {
                let name = self.random_name("amq.gen-");
                self.check_given_name(origin, &name)?;
                name
            }
            false => {
                refuse_reserved_name("queue", &name)?;
                name
            }
        };
        let id = self.ensure_queue(vhost, Some(origin), name, flags, arguments, out)?;
        self.declared(origin, id, no_wait, out);
        Ok(())
    }

    /// It is there, as it is asked for. `by`: who asks, if it is a client.
    pub(crate) fn ensure_queue(
        &mut self,
        vhost: VhostId,
        by: Option<Origin>,
        name: ShortStr,
        flags: QueueFlags,
        arguments: Bytes,
        out: &mut Outputs,
    ) -> Result<QueueId, Failure> {
        let table = arguments::decode(&arguments).ok_or_else(error::malformed_table)?;
        let QueueFlags { exclusive, auto_delete, .. } = flags;
        // An exclusive queue goes with its connection: nothing of it is durable, whatever the client asks.
        let durable = flags.durable && !exclusive;
        let object = error::queue(self.state.vhost(vhost).name(), &name);
        let settings = self.state.vhost(vhost).policies.of(Target::of_queue(&table), &name);
        let replicate = self.replication(&table, settings, &object)?;
        let replicate = if exclusive { self.replication_of_exclusive() } else { replicate };
        let deduplicates = self.deduplicates(None, &table, &object)?;
        let wanted = QueueSpec { name, durable, exclusive, auto_delete, replicate, deduplicates, arguments };
        let known = self.state.vhost(vhost).names.get(&wanted.name).and_then(|id| self.state.queues.get(id));
        match known {
            Some(queue) => {
                if wanted.exclusive != queue.spec.exclusive {
                    return Err(error::locked(self.state.vhost(vhost).name(), &wanted.name));
                }
                self.refuse_locked(queue, by)?;
                assert_queue_equivalent(&wanted, &table, &queue.spec, &object)?;
                Ok(queue.id)
            }
            None => self.create_queue(vhost, by, wanted, &table, out),
        }
    }

    fn create_queue(
        &mut self,
        vhost: VhostId,
        by: Option<Origin>,
        spec: QueueSpec,
        table: &FieldTable,
        out: &mut Outputs,
    ) -> Result<QueueId, Failure> {
        let here = self.state.vhost(vhost);
        let object = error::queue(here.name(), &spec.name);
        if let Some(limit) = here.limits.max_queues.filter(|limit| here.names.len() as u64 >= *limit) {
            return Err(error::too_many_queues(here.name(), &spec.name, limit));
        }
        arguments::check_queue(table, &object)?;
        if table.get(QUEUE_TYPE).and_then(|kind| kind.as_str()) == Some("stream") {
            return Err(error::not_implemented(format!(
                "{object}: x-queue-type 'stream' is not supported; declare it as 'classic' or 'quorum', every queue is replicated"
            )));
        }
        self.check_argument_access(by, (Kind::Queue, &spec.name), table.get(DEAD_LETTER_EXCHANGE))?;
        let exclusive = spec.exclusive;
        let id = QueueId(self.write(Record::QueueDeclare(spec).within(vhost), out));
        if let Some(origin) = by.filter(|_| exclusive) {
            if let Some(queue) = self.state.queues.get_mut(&id) {
                queue.session.owner = Some(origin.connection);
            }
            if let Some(connection) = self.connections.get_mut(&origin.connection) {
                connection.exclusive_queues.insert(id);
            }
        }
        Ok(id)
    }

    /// As RabbitMQ says of a name that answers may be published to.
    fn declared_replies(
        &mut self,
        origin: Origin,
        name: ShortStr,
        no_wait: bool,
        out: &mut Outputs,
    ) -> Result<(), Failure> {
        let reply = EffectKind::QueueDeclareOk { name, message_count: 0, consumer_count: 1 };
        self.reply_unless(no_wait, origin, reply, out);
        Ok(())
    }

    fn declared(&mut self, origin: Origin, id: QueueId, no_wait: bool, out: &mut Outputs) {
        self.note_use(id);
        let Some(queue) = self.state.queues.get(&id) else { return };
        let name = queue.spec.name.clone();
        let (message_count, consumer_count) = (count(queue.ready()), count(queue.session.consumers.len()));
        self.channel_mut(origin).last_queue = name.clone();
        let reply = EffectKind::QueueDeclareOk { name, message_count, consumer_count };
        self.reply_after(id.0, no_wait, origin, reply, out);
    }

    /// Deleting what does not exist succeeds.
    pub(crate) fn delete_queue_by_name(
        &mut self,
        Caller { origin, vhost }: Caller,
        name: ShortStr,
        if_unused: bool,
        if_empty: bool,
        no_wait: bool,
        out: &mut Outputs,
    ) -> Result<(), Failure> {
        let name = self.resolve(origin, name)?;
        let (mut message_count, mut told) = (0, None);
        if let Ok(queue) = self.queue_named(vhost, &name) {
            self.refuse_locked(queue, Some(origin))?;
            let vhost = self.state.vhost(vhost).name();
            if if_empty && queue.ready() > 0 {
                return Err(error::not_empty(vhost, &name));
            }
            if if_unused && !queue.session.consumers.is_empty() {
                return Err(error::in_use(error::queue(vhost, &name)));
            }
            message_count = count(queue.ready());
            told = self.remove_queue(queue.id, out);
        }
        let reply = EffectKind::QueueDeleteOk { message_count };
        self.reply_after(self.state.topology_index, no_wait, origin, reply, out);
        // As in RabbitMQ: whoever deletes a queue that it consumes from hears so afterwards.
        self.tell_consumers(told, out);
        Ok(())
    }

    /// Its consumers are told, if their clients understand (P9); what they have not acknowledged is gone with it.
    pub(crate) fn delete_queue(&mut self, id: QueueId, out: &mut Outputs) {
        let told = self.remove_queue(id, out);
        self.tell_consumers(told, out);
    }

    fn tell_consumers(&mut self, told: Option<Cancelled>, out: &mut Outputs) {
        let Some(Cancelled { deleted, consumers }) = told else { return };
        for (origin, consumer_tag) in consumers {
            self.reply_after(deleted, false, origin, EffectKind::BasicCancel { consumer_tag }, out);
        }
    }

    /// What was under way for a queue whose deletion is `gate`. Nothing is left of its consumers.
    pub(crate) fn end_queue_session(&mut self, id: QueueId, session: QueueSession, gate: Index, out: &mut Outputs) {
        self.expiries.forget(id, session.watched_from);
        self.forget_unused(id, session.unused_until);
        self.forget_condemned(session.condemned, out);
        self.end_loads_of(id, session.loading, session.wanting, session.gets, gate, out);
    }

    /// Returns whom to tell.
    fn remove_queue(&mut self, id: QueueId, out: &mut Outputs) -> Option<Cancelled> {
        let queue = self.state.queues.get_mut(&id)?;
        let vhost = queue.vhost;
        let mut session = std::mem::take(&mut queue.session);
        self.settled.remove(&id);
        let sources = self.state.vhost(vhost).sources_of(&Destination::Queue(id));
        let gate = self.write(Record::QueueDelete { queue: id }, out);
        if let Some(owner) = session.owner.and_then(|owner| self.connections.get_mut(&owner)) {
            owner.exclusive_queues.remove(&id);
        }
        let mut consumers = Vec::new();
        for consumer in std::mem::take(&mut session.consumers) {
            let Some(consumer) = self.consumers.remove(&consumer) else { continue };
            let origin = Origin { connection: consumer.connection, channel: consumer.channel };
            let Some(connection) = self.connections.get_mut(&origin.connection) else { continue };
            let notify = connection.info.consumer_cancel_notify;
            let Some(channel) = connection.channels.get_mut(&origin.channel) else { continue };
            channel.consumers.remove(&consumer.tag);
            if notify {
                consumers.push((origin, consumer.tag));
            }
        }
        self.end_queue_session(id, session, gate, out);
        self.delete_unbound_exchanges(vhost, sources, out);
        Some(Cancelled { deleted: gate, consumers })
    }

    /// An auto-delete queue that has just lost its last consumer.
    pub(crate) fn delete_if_abandoned(&mut self, id: QueueId, out: &mut Outputs) {
        let queue = self.state.queues.get(&id);
        if queue.is_some_and(|queue| queue.spec.auto_delete && queue.session.consumers.is_empty()) {
            self.delete_queue(id, out);
        }
    }

    /// All ready messages go; what is delivered and unacknowledged stays.
    pub(crate) fn purge(
        &mut self,
        Caller { origin, vhost }: Caller,
        name: ShortStr,
        no_wait: bool,
        out: &mut Outputs,
    ) -> Result<(), Failure> {
        let name = self.resolve(origin, name)?;
        let queue = self.queue_named(vhost, &name)?;
        self.refuse_locked(queue, Some(origin))?;
        let id = queue.id;
        self.write_settled_of(id, out);
        let queue = self.queue_named(vhost, &name)?;
        let message_count = count(queue.ready());
        let mut gate = Index(0);
        if queue.unacked() <= MAX_MESSAGES_PER_RECORD {
            let (up_to, except) = (self.state.last_index, queue.unacked_indexes());
            if message_count > 0 {
                let record = match self.state.is_unreplicated(id) {
                    true => Record::PurgeHere { queue: id, up_to, except },
                    false => Record::Purge { queue: id, up_to, except },
                };
                gate = self.write(record, out);
            }
        } else {
            // The exceptions would not fit one record, so the messages that go are listed instead.
            let here = !queue.is_replicated();
            for messages in queue.ready_indexes().chunks(MAX_MESSAGES_PER_RECORD) {
                gate = self.write(dequeue(here, id, messages.to_vec()), out);
            }
        }
        self.reply_after(gate.max(id.0), no_wait, origin, EffectKind::QueuePurgeOk { message_count }, out);
        Ok(())
    }

    // ---- names

    /// What an empty queue name means: the queue last declared on this channel.
    pub(crate) fn resolve(&mut self, origin: Origin, name: ShortStr) -> Result<ShortStr, Failure> {
        if !name.is_empty() {
            return Ok(name);
        }
        match &self.channel_mut(origin).last_queue {
            last if last.is_empty() => Err(error::no_previous_queue()),
            last => Ok(last.clone()),
        }
    }

    pub(crate) fn queue_named(&self, vhost: VhostId, name: &ShortStr) -> Result<&Queue, Failure> {
        let vhost = self.state.vhost(vhost);
        let queue = vhost.names.get(name).and_then(|id| self.state.queues.get(id));
        queue.ok_or_else(|| error::no_queue(vhost.name(), name))
    }

    pub(crate) fn exchange_named(&self, vhost: VhostId, name: &ShortStr) -> Result<&Exchange, Failure> {
        let vhost = self.state.vhost(vhost);
        vhost.exchanges.get(name).ok_or_else(|| error::no_exchange(vhost.name(), name))
    }

    /// Another connection's exclusive queue. `by`: who asks, if it is a client.
    pub(crate) fn refuse_locked(&self, queue: &Queue, by: Option<Origin>) -> Result<(), Failure> {
        match queue.session.owner {
            Some(owner) if by.is_none_or(|origin| origin.connection != owner) => {
                Err(error::locked(self.state.vhost(queue.vhost).name(), &queue.spec.name))
            }
            _ => Ok(()),
        }
    }
}

pub(crate) fn refuse_default_exchange(name: &ShortStr) -> Result<(), Failure> {
    if name.is_empty() { Err(error::default_exchange()) } else { Ok(()) }
}

fn refuse_reserved_name(kind: &str, name: &ShortStr) -> Result<(), Failure> {
    if name.as_bytes().starts_with(RESERVED_PREFIX) { Err(error::reserved_name(kind, name)) } else { Ok(()) }
}

fn assert_exchange_equivalent(
    wanted: &ExchangeSpec,
    table: &FieldTable,
    current: &ExchangeSpec,
    object: &str,
) -> Result<(), Failure> {
    assert_same("type", wanted.kind.name(), current.kind.name(), object)?;
    assert_same("durable", text(wanted.durable), text(current.durable), object)?;
    assert_same("auto_delete", text(wanted.auto_delete), text(current.auto_delete), object)?;
    assert_same("internal", text(wanted.internal), text(current.internal), object)?;
    let deduplicates = current.deduplicates;
    let current = arguments::decode(&current.arguments).unwrap_or_default();
    assert_same_deduplication((wanted.deduplicates, table), (deduplicates, &current), object)?;
    arguments::assert_equivalent(REPLICATE, table, &current, object)?;
    arguments::assert_equivalent(ALTERNATE_EXCHANGE, table, &current, object)
}

fn assert_queue_equivalent(
    wanted: &QueueSpec,
    table: &FieldTable,
    current: &QueueSpec,
    object: &str,
) -> Result<(), Failure> {
    assert_same("durable", text(wanted.durable), text(current.durable), object)?;
    assert_same("auto_delete", text(wanted.auto_delete), text(current.auto_delete), object)?;
    let deduplicates = current.deduplicates;
    let current = arguments::decode(&current.arguments).unwrap_or_default();
    assert_same_deduplication((wanted.deduplicates, table), (deduplicates, &current), object)?;
    arguments::assert_equivalent(REPLICATE, table, &current, object)?;
    arguments::assert_queue_equivalent(table, &current, object)
}

fn text(flag: bool) -> &'static str {
    if flag { "true" } else { "false" }
}

/// AMQP counts in 32 bits.
pub(crate) fn count(items: usize) -> u32 {
    u32::try_from(items).unwrap_or(u32::MAX)
}
