//! A primary with virtual clients, whose story is written down: `log` is a record, `load` what the core wants to read back,
//! `1/1 >` what a client's channel was told.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write;
use std::time::Duration;

use bytes::Bytes;
use expect_test::Expect;
use understudy_core::{
    Account, AdminCommand, ChannelId, Command, ConnectionId, ConnectionInfo, Core, DeliveryTag, Effect, EffectKind,
    LOAD_BYTES, LOAD_MESSAGES, Load, Outputs, PartLoad, Publish, Refusal, Time,
};
use understudy_protocol::{BasicProperties, FieldTable, FieldValue, Properties};
use understudy_record::{
    Admin, ApplyTo, BasePiece, Binding, Body, Destination, Epoch, HashAlgorithm, Identity, Index, KeyedBy, Message,
    PartRef, PasswordHash, Permission, PolicySpec, Position, ProcessId, QueueId, Record, ReplicaName, Replicate,
    Settled, ShortStr, StoreId, TopicPermission, UserSpec, VhostSpec,
};

pub(crate) struct Story {
    pub(crate) core: Core,
    /// Every record so far.
    pub(crate) log: Vec<(Index, Record)>,
    text: String,
    open: Vec<(u64, u16)>,
    /// Each step commits and confirms at once.
    auto_commit: bool,
    /// What was asked for and not answered.
    loads: VecDeque<Load>,
    /// Parts that were asked for.
    part_loads: Vec<PartLoad>,
    auto_part_load: bool,
    time: Time,
    /// Loads are answered at once, and not written down.
    auto_load: bool,
    store: Store,
}

/// What every message says, and every part, by its index: the log, to those who read it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Store {
    messages: BTreeMap<Index, Message>,
    parts: BTreeMap<Index, Body>,
}

impl Store {
    pub(crate) fn note(&mut self, index: Index, record: &Record) {
        match record {
            Record::Publish { message, .. }
            | Record::PublishHere { message, .. }
            | Record::Staged { message, .. }
            | Record::StagedHere { message, .. } => _ = self.messages.insert(index, as_read(message)),
            Record::Part { body } => _ = self.parts.insert(index, body.clone()),
            _ => {}
        }
    }

    pub(crate) fn part(&self, part: PartRef) -> &Body {
        let body = self.parts.get(&part.index).unwrap_or_else(|| panic!("{part:?} was never written"));
        assert_eq!(body.len(), part.bytes as usize, "{part:?}");
        body
    }

    pub(crate) fn read(&self, load: &Load) -> Vec<(Index, Message)> {
        let bytes: usize = load.indexes.iter().map(|index| self.message(*index).body.len()).sum();
        let bounded = bytes as u64 <= LOAD_BYTES || load.indexes.len() == 1;
        assert!(bounded && load.indexes.len() <= LOAD_MESSAGES, "{} messages, {bytes} bytes", load.indexes.len());
        assert!(load.indexes.is_sorted_by(|one, next| one < next), "{load:?}");
        load.indexes.iter().map(|index| (*index, self.message(*index).clone())).collect()
    }

    pub(crate) fn message(&self, index: Index) -> &Message {
        self.messages.get(&index).unwrap_or_else(|| panic!("message {index} was never published"))
    }
}

/// A story in which every record is committed and confirmed at the end of its step.
pub(crate) fn story() -> Story {
    Story { auto_commit: true, ..uncommitted_story() }
}

/// A story in which nothing is committed until [`Story::commit`].
pub(crate) fn uncommitted_story() -> Story {
    Story::with(promoted(Core::new(1)))
}

pub(crate) fn promoted(mut core: Core) -> Core {
    let mut out = Outputs::default();
    core.set_cluster_version(3);
    core.promote(&mut out);
    assert!(out.records.is_empty(), "nothing to clear up");
    core
}

impl Story {
    pub(crate) fn with(mut core: Core) -> Self {
        let time = Time { wall_ms: 1_000_000, steady: Duration::from_secs(1) };
        core.set_time(time);
        let (log, text, open, loads) = (Vec::new(), String::new(), Vec::new(), VecDeque::new());
        let (part_loads, store) = (Vec::new(), Store::default());
        let (auto_commit, auto_load, auto_part_load) = (false, true, true);
        Self { core, log, text, open, auto_commit, loads, part_loads, auto_part_load, auto_load, time, store }
    }

    /// The story goes on with `core`, which has this one's log.
    pub(crate) fn successor(&self, core: Core) -> Self {
        Self { store: self.store.clone(), ..Self::with(core) }
    }

    /// A new primary to which all of this story's log is committed and whose messages are all stored; from here on each step
    /// commits.
    pub(crate) fn restarted(&self) -> Self {
        let mut next = self.successor(promoted(self.replica()));
        next.commit().skip();
        let log = [self.log.clone(), std::mem::take(&mut next.log)].concat();
        Self { auto_commit: true, log, ..next }
    }

    /// What is read back stays away until [`Self::answer`].
    pub(crate) fn hold_loads(&mut self) -> &mut Self {
        self.auto_load = false;
        self
    }

    /// Answers the load that has waited longest.
    pub(crate) fn answer(&mut self) -> &mut Self {
        let load = self.loads.pop_front().expect("something was asked for");
        let mut out = Outputs::default();
        self.core.handle_loaded(load.queue, self.store.read(&load), &mut out);
        self.end_step(out)
    }

    /// Parts that are read stay away until [`Self::answer_parts`].
    pub(crate) fn hold_parts(&mut self) -> &mut Self {
        self.auto_part_load = false;
        self
    }

    pub(crate) fn answer_parts(&mut self) -> &mut Self {
        let mut out = Outputs::default();
        self.load_parts(&mut out);
        self.end_step(out)
    }

    fn load_parts(&mut self, out: &mut Outputs) {
        for load in std::mem::take(&mut self.part_loads) {
            let body = self.store.part(load.part).clone();
            self.core.handle_part_loaded(load, body, out);
        }
    }

    /// Answers the load that was asked for last.
    pub(crate) fn answer_last(&mut self) -> &mut Self {
        self.loads.rotate_right(1);
        self.answer()
    }

    /// Everything that may leave memory does.
    pub(crate) fn evict(&mut self) -> &mut Self {
        while self.core.evict(self.core.last_index(), 0) {}
        self.core.assert_consistent();
        self
    }

    /// A client that understands consumer cancel notifications, unless its number is 9.
    fn open(&mut self, connection: u64, channel: u16) {
        let mut out = Outputs::default();
        if !self.open.iter().any(|(open, _)| *open == connection) {
            let consumer_cancel_notify = connection != 9;
            let info = ConnectionInfo { user: "guest".to_owned(), consumer_cancel_notify, ..ConnectionInfo::default() };
            self.core.connection_opened(ConnectionId(connection), info).expect("it may do everything");
        }
        if !self.open.contains(&(connection, channel)) {
            self.core.handle(ConnectionId(connection), ChannelId(channel), Command::ChannelOpen, &mut out);
            self.open.push((connection, channel));
        }
        assert!(out.records.is_empty() && out.effects.is_empty(), "{out:?}");
    }

    /// A connection of that user, `+` before the name of one that only the shell knows.
    pub(crate) fn enter(&mut self, connection: u64, user: &str, vhost: &str) -> &mut Self {
        let (user, account) = match user.strip_prefix('+') {
            Some(user) => (user, Account::Elsewhere),
            None if user == "guest" => (user, Account::OpenGuest),
            None => (user, Account::Recorded),
        };
        let info = ConnectionInfo { user: user.to_owned(), account, vhost: short(vhost), consumer_cancel_notify: true };
        match self.core.connection_opened(ConnectionId(connection), info) {
            Ok(()) => self.open.push((connection, 0)),
            Err(error) => {
                writeln!(
                    self.text,
                    "{connection} refused: {} {error} ({},{})",
                    error.code.number(),
                    error.class,
                    error.method
                )
                .unwrap();
            }
        }
        self
    }

    /// A step with a channel's opening, which may be refused.
    pub(crate) fn open_channel(&mut self, connection: u64, channel: u16) -> &mut Self {
        self.open.push((connection, channel));
        self.say(connection, channel, [Command::ChannelOpen])
    }

    /// What an administrator asks for, in one step.
    pub(crate) fn administer(&mut self, commands: impl IntoIterator<Item = AdminCommand>) -> &mut Self {
        let mut out = Outputs::default();
        for command in commands {
            match self.core.administer(command, &mut out) {
                Ok(true) => {}
                Ok(false) => self.text += "as it was\n",
                Err(Refusal::Differs(why)) => writeln!(self.text, "differs: {why}").unwrap(),
                Err(Refusal::Refused(why)) => writeln!(self.text, "refused: {why}").unwrap(),
            }
        }
        self.end_step(out)
    }

    /// One step with these commands.
    pub(crate) fn say(
        &mut self,
        connection: u64,
        channel: u16,
        commands: impl IntoIterator<Item = Command>,
    ) -> &mut Self {
        self.open(connection, channel);
        let mut out = Outputs::default();
        for command in commands {
            if matches!(command, Command::ChannelClose) {
                self.open.retain(|open| *open != (connection, channel));
            }
            self.core.handle(ConnectionId(connection), ChannelId(channel), command, &mut out);
        }
        self.end_step(out)
    }

    /// So many milliseconds later.
    pub(crate) fn wait(&mut self, ms: u64) -> &mut Self {
        self.time.wall_ms += ms;
        self.time.steady += Duration::from_millis(ms);
        self.core.set_time(self.time);
        self.end_step(Outputs::default())
    }

    pub(crate) fn close_connection(&mut self, connection: u64) -> &mut Self {
        let mut out = Outputs::default();
        self.core.connection_closed(ConnectionId(connection), &mut out);
        self.open.retain(|(open, _)| *open != connection);
        self.end_step(out)
    }

    pub(crate) fn writable(&mut self, connection: u64, writable: bool) -> &mut Self {
        let mut out = Outputs::default();
        self.core.handle_writable(ConnectionId(connection), writable, &mut out);
        self.end_step(out)
    }

    /// The log is committed and confirmable as far as it goes.
    pub(crate) fn commit(&mut self) -> &mut Self {
        let last = self.core.last_index();
        self.commit_to(last.0, last.0)
    }

    pub(crate) fn commit_to(&mut self, committed: u64, confirmable: u64) -> &mut Self {
        writeln!(self.text, "committed {committed}, confirmable {confirmable}").unwrap();
        let mut out = Outputs::default();
        self.core.handle_committed(Index(committed), Index(confirmable), &mut out);
        self.end_step(out)
    }

    fn end_step(&mut self, mut out: Outputs) -> &mut Self {
        loop {
            let more = self.core.deliver(&mut out);
            self.core.assert_consistent();
            let committed = Index(self.log.last().map_or(0, |(index, _)| index.0));
            self.write_down(std::mem::take(&mut out));
            if self.auto_part_load && !self.part_loads.is_empty() {
                self.load_parts(&mut out);
                continue;
            }
            if self.auto_load && !self.loads.is_empty() {
                for load in std::mem::take(&mut self.loads) {
                    self.core.handle_loaded(load.queue, self.store.read(&load), &mut out);
                }
                continue;
            }
            let last = self.core.last_index();
            if self.auto_commit && committed < last {
                self.core.handle_committed(last, last, &mut out);
            } else if !more {
                return self;
            }
        }
    }

    /// What messages say stands in this one's log.
    pub(crate) fn read_from(&mut self, other: &Self) {
        self.store = other.store.clone();
    }

    pub(crate) fn store(&self) -> Store {
        self.store.clone()
    }

    /// Of a step that was no client's.
    pub(crate) fn take_outputs(&mut self, out: Outputs) {
        self.write_down(out);
    }

    fn write_down(&mut self, out: Outputs) {
        for (index, record) in out.records {
            writeln!(self.text, "log {index} {}", describe_record(&record)).unwrap();
            self.store.note(index, &record);
            self.log.push((index, record));
        }
        for Effect { connection, channel, kind } in out.effects {
            let (connection, channel) = (connection.0, channel.0);
            match &kind {
                EffectKind::CloseChannel { .. } => self.open.retain(|open| *open != (connection, channel)),
                EffectKind::CloseConnection { .. } => {
                    self.open.retain(|(open, open_channel)| *open != connection || *open_channel == 0);
                    self.open.push((connection, 0));
                }
                _ => {}
            }
            writeln!(self.text, "{connection}/{channel} > {}", describe_effect(&kind)).unwrap();
        }
        self.part_loads.extend(out.part_loads);
        for load in out.loads {
            if !self.auto_load {
                writeln!(self.text, "load {} for #{}", list(&load.indexes), load.queue).unwrap();
            }
            let twice = self.loads.iter().any(|other| other.queue == load.queue);
            assert!(!twice, "a second load for queue {} while one is on its way", load.queue);
            self.loads.push_back(load);
        }
    }

    /// Compares what was written down since the last time.
    pub(crate) fn expect(&mut self, expected: Expect) -> &mut Self {
        expected.assert_eq(&std::mem::take(&mut self.text));
        self
    }

    /// Skips what was written down: set-up.
    pub(crate) fn skip(&mut self) -> &mut Self {
        self.text.clear();
        self
    }

    /// What is written down, for tests that look for one thing.
    pub(crate) fn take_text(&mut self) -> String {
        std::mem::take(&mut self.text)
    }

    /// A second replica that has applied the whole log, as followers get it.
    pub(crate) fn replica(&self) -> Core {
        let mut core = Core::new(2);
        self.log.iter().for_each(|(index, record)| core.apply(*index, &as_followed(record)).unwrap());
        core
    }

    /// This replica, started again.
    pub(crate) fn own(&self) -> Core {
        let mut core = Core::new(3);
        self.log.iter().for_each(|(index, record)| core.apply(*index, record).unwrap());
        core
    }
}

pub(crate) fn as_followed(record: &Record) -> Record {
    record.for_followers().unwrap_or_else(|| record.clone())
}

/// What is read of it somewhere else: its list of parts is another one.
pub(crate) fn as_read(message: &Message) -> Message {
    let parts = message.parts.as_ref().map(|parts| parts.to_vec().into());
    Message { parts, ..message.clone() }
}

/// The core's whole state, messages by reference. It is a sync point of its own.
pub(crate) fn checkpoint(core: &Core, sync_point: Index) -> Vec<BasePiece> {
    let start = BasePiece::Start { sync_point: Position::new(Epoch(1), sync_point), epochs: vec![], in_sync: vec![] };
    let mut pieces = vec![start];
    pieces.extend(core.snapshot_topology());
    pieces.extend(core.unreplicated_keys());
    pieces.extend(core.writer());
    pieces.push(BasePiece::TopologyEnd);
    for (queue, ..) in core.queues() {
        let chunk = core.held_chunk(queue, sync_point.next(), sync_point, usize::MAX);
        assert!(chunk.done);
        let parts =
            chunk.parts.iter().map(|(message, parts)| BasePiece::Parts { message: *message, parts: parts.to_vec() });
        pieces.extend(parts);
        pieces.push(BasePiece::Keys { of: KeyedBy::Queue(queue), keys: chunk.keys });
        pieces.push(BasePiece::Held { queue, messages: chunk.messages });
        pieces.push(BasePiece::QueueDone { queue });
    }
    pieces.push(BasePiece::End { floor: sync_point });
    pieces
}

pub(crate) fn short(text: &str) -> ShortStr {
    ShortStr::try_from(text).unwrap()
}

// ---- commands

pub(crate) fn arguments(fields: &[(&str, FieldValue)]) -> Bytes {
    let mut table = FieldTable::new();
    fields.iter().for_each(|(name, value)| table.insert(short(name), value.clone()));
    table.to_bytes().slice(4..)
}

pub(crate) fn text_value(text: &str) -> FieldValue {
    FieldValue::Text(Bytes::copy_from_slice(text.as_bytes()))
}

/// `flags`: of `durable`, `exclusive`, `auto-delete`, `passive`, `no-wait`.
pub(crate) fn declare_with(name: &str, flags: &str, arguments: Bytes) -> Command {
    let has = |flag: &str| flags.split(' ').any(|word| word == flag);
    Command::QueueDeclare {
        name: short(name),
        passive: has("passive"),
        durable: has("durable"),
        exclusive: has("exclusive"),
        auto_delete: has("auto-delete"),
        no_wait: has("no-wait"),
        arguments,
    }
}

pub(crate) fn declare(name: &str, flags: &str) -> Command {
    declare_with(name, flags, Bytes::new())
}

pub(crate) fn exchange(name: &str, kind: &str, flags: &str) -> Command {
    exchange_with(name, kind, flags, Bytes::new())
}

pub(crate) fn exchange_with(name: &str, kind: &str, flags: &str, arguments: Bytes) -> Command {
    let has = |flag: &str| flags.split(' ').any(|word| word == flag);
    Command::ExchangeDeclare {
        name: short(name),
        kind: short(kind),
        passive: has("passive"),
        durable: has("durable"),
        auto_delete: has("auto-delete"),
        internal: has("internal"),
        no_wait: has("no-wait"),
        arguments,
    }
}

pub(crate) fn delete_exchange(name: &str, flags: &str) -> Command {
    Command::ExchangeDelete { name: short(name), if_unused: flags.contains("if-unused"), no_wait: false }
}

pub(crate) fn bind_with(queue: &str, exchange: &str, key: &str, arguments: Bytes) -> Command {
    let (queue, exchange, routing_key) = (short(queue), short(exchange), short(key));
    Command::QueueBind { queue, exchange, routing_key, no_wait: false, arguments }
}

pub(crate) fn bind(queue: &str, exchange: &str, key: &str) -> Command {
    bind_with(queue, exchange, key, Bytes::new())
}

pub(crate) fn unbind(queue: &str, exchange: &str, key: &str) -> Command {
    let (queue, exchange, routing_key) = (short(queue), short(exchange), short(key));
    Command::QueueUnbind { queue, exchange, routing_key, arguments: Bytes::new() }
}

pub(crate) fn bind_exchange(destination: &str, source: &str, key: &str) -> Command {
    let (destination, source, routing_key) = (short(destination), short(source), short(key));
    Command::ExchangeBind { destination, source, routing_key, no_wait: false, arguments: Bytes::new() }
}

pub(crate) fn unbind_exchange(destination: &str, source: &str, key: &str) -> Command {
    let (destination, source, routing_key) = (short(destination), short(source), short(key));
    Command::ExchangeUnbind { destination, source, routing_key, no_wait: false, arguments: Bytes::new() }
}

pub(crate) fn delete(name: &str, flags: &str) -> Command {
    let (if_unused, if_empty) = (flags.contains("if-unused"), flags.contains("if-empty"));
    Command::QueueDelete { queue: short(name), if_unused, if_empty, no_wait: false }
}

pub(crate) fn purge(name: &str) -> Command {
    Command::QueuePurge { queue: short(name), no_wait: false }
}

pub(crate) fn publish_with(
    exchange: &str,
    key: &str,
    body: &str,
    flags: &str,
    properties: &BasicProperties,
) -> Command {
    Command::BasicPublish(Publish {
        exchange: short(exchange),
        routing_key: short(key),
        mandatory: flags.contains("mandatory"),
        immediate: flags.contains("immediate"),
        properties: properties.encode().as_bytes().clone(),
        body: Body::new(Bytes::copy_from_slice(body.as_bytes())),
    })
}

/// Part of the next message on its channel.
pub(crate) fn part(body: &str) -> Command {
    Command::PublishPart { body: Body::new(Bytes::copy_from_slice(body.as_bytes())) }
}

pub(crate) fn publish_to(exchange: &str, key: &str, body: &str) -> Command {
    publish_with(exchange, key, body, "", &BasicProperties::default())
}

/// Straight to a queue.
pub(crate) fn publish(queue: &str, body: &str) -> Command {
    publish_to("", queue, body)
}

pub(crate) fn persistent(queue: &str, body: &str) -> Command {
    publish_with("", queue, body, "", &BasicProperties { delivery_mode: Some(2), ..BasicProperties::default() })
}

/// `flags`: of `no-ack`, `exclusive`, `no-wait`.
pub(crate) fn consume(queue: &str, tag: &str, flags: &str) -> Command {
    Command::BasicConsume {
        queue: short(queue),
        consumer_tag: short(tag),
        no_local: false,
        no_ack: flags.contains("no-ack"),
        exclusive: flags.contains("exclusive"),
        no_wait: flags.contains("no-wait"),
        arguments: Bytes::new(),
    }
}

pub(crate) fn cancel(tag: &str) -> Command {
    Command::BasicCancel { consumer_tag: short(tag), no_wait: false }
}

pub(crate) fn get(queue: &str, flags: &str) -> Command {
    Command::BasicGet { queue: short(queue), no_ack: flags.contains("no-ack") }
}

pub(crate) fn ack(tag: u64) -> Command {
    Command::BasicAck { delivery_tag: DeliveryTag(tag), multiple: false }
}

pub(crate) fn ack_to(tag: u64) -> Command {
    Command::BasicAck { delivery_tag: DeliveryTag(tag), multiple: true }
}

pub(crate) fn nack(tag: u64, multiple: bool, requeue: bool) -> Command {
    Command::BasicNack { delivery_tag: DeliveryTag(tag), multiple, requeue }
}

pub(crate) fn qos(prefetch_count: u16, global: bool) -> Command {
    Command::BasicQos { prefetch_size: 0, prefetch_count, global }
}

pub(crate) fn select() -> Command {
    Command::ConfirmSelect { no_wait: false }
}

pub(crate) fn epoch_start() -> Record {
    let primary = Identity { name: ReplicaName::new("b"), store: StoreId(1), process: ProcessId(1) };
    Record::EpochStart { primary, in_sync: Vec::new() }
}

// ---- what administrators ask for

pub(crate) fn add_vhost(name: &str) -> AdminCommand {
    AdminCommand::AddVhost(VhostSpec { name: short(name), description: String::new(), tags: Vec::new() })
}

pub(crate) fn delete_vhost(name: &str) -> AdminCommand {
    AdminCommand::DeleteVhost { name: short(name) }
}

pub(crate) fn add_user(name: &str) -> AdminCommand {
    let password = PasswordHash { algorithm: HashAlgorithm::Argon2id, text: format!("hash of {name}") };
    AdminCommand::AddUser(UserSpec { name: short(name), password, tags: Vec::new() })
}

pub(crate) fn permit(user: &str, vhost: &str, [configure, write, read]: [&str; 3]) -> AdminCommand {
    let permission = Permission { configure: configure.into(), write: write.into(), read: read.into() };
    AdminCommand::SetPermission { user: short(user), vhost: short(vhost), permission }
}

pub(crate) fn permit_topics(user: &str, vhost: &str, exchange: &str, [write, read]: [&str; 2]) -> AdminCommand {
    let permission = TopicPermission { write: write.into(), read: read.into() };
    AdminCommand::SetTopicPermission { user: short(user), vhost: short(vhost), exchange: short(exchange), permission }
}

/// In `/`, for all.
pub(crate) fn policy(name: &str, pattern: &str, priority: i64, definition: &[(&str, FieldValue)]) -> AdminCommand {
    let definition = arguments(definition);
    let policy =
        PolicySpec { name: short(name), pattern: pattern.to_owned(), apply_to: ApplyTo::All, priority, definition };
    AdminCommand::SetPolicy { vhost: short("/"), operator: false, policy }
}

/// The same, an operator's.
pub(crate) fn operator(mut policy: AdminCommand) -> AdminCommand {
    if let AdminCommand::SetPolicy { operator, .. } = &mut policy {
        *operator = true;
    }
    policy
}

pub(crate) fn clear_policy(name: &str) -> AdminCommand {
    AdminCommand::ClearPolicy { vhost: short("/"), operator: false, name: short(name) }
}

// ---- in words

fn describe_admin(change: &Admin) -> String {
    match change {
        Admin::VhostCreate(spec) => format!("create vhost {}", spec.name),
        Admin::VhostDelete { vhost } => format!("delete vhost @{vhost}"),
        Admin::UserPut(spec) => format!("user {} {:?}", spec.name, spec.tags),
        Admin::UserDelete { name } => format!("delete user {name}"),
        Admin::PermissionPut { user, vhost, permission: Permission { configure, write, read } } => {
            format!("permit {user} in @{vhost} '{configure}' '{write}' '{read}'")
        }
        Admin::PermissionDelete { user, vhost } => format!("forbid {user} in @{vhost}"),
        Admin::TopicPermissionPut { user, vhost, exchange, permission: TopicPermission { write, read } } => {
            format!("permit {user} topics of {exchange} in @{vhost} '{write}' '{read}'")
        }
        Admin::TopicPermissionDelete { user, vhost, exchange } => {
            format!("free topics of {exchange} in @{vhost} for {user}")
        }
        Admin::VhostLimits { vhost, limits } => {
            format!("limit @{vhost} to {:?} connections, {:?} queues", limits.max_connections, limits.max_queues)
        }
        Admin::PolicyPut { vhost, operator, policy } => {
            let kind = if *operator { "operator policy" } else { "policy" };
            let PolicySpec { name, pattern, apply_to, priority, .. } = policy;
            format!("{kind} {name} in @{vhost} for {} '{pattern}', priority {priority}", apply_to.name())
        }
        Admin::PolicyDelete { vhost, operator, name } => {
            format!("delete {} {name} in @{vhost}", if *operator { "operator policy" } else { "policy" })
        }
        Admin::UserLimits { user, limits } => {
            format!("limit {user} to {:?} connections, {:?} channels", limits.max_connections, limits.max_channels)
        }
    }
}

pub(crate) fn describe_record(record: &Record) -> String {
    match record {
        Record::EpochStart { .. } => "epoch start".to_owned(),
        Record::InSyncSet { .. } => "in-sync set".to_owned(),
        Record::ExchangeDeclare(spec) => {
            let flags =
                flags(&[("durable", spec.durable), ("auto-delete", spec.auto_delete), ("internal", spec.internal)]);
            format!("declare {} exchange {}{flags}{}", spec.kind.name(), spec.name, replication(spec.replicate))
        }
        Record::ExchangeDelete { name } => format!("delete exchange {name}"),
        Record::In { vhost, change } => format!("in @{vhost}: {}", describe_record(change)),
        Record::Admin(change) => describe_admin(change),
        Record::QueueDeclare(spec) => {
            let flags = [("durable", spec.durable), ("exclusive", spec.exclusive), ("auto-delete", spec.auto_delete)];
            // An exclusive one never is.
            let replicate = if spec.exclusive { Replicate::All } else { spec.replicate };
            format!("declare queue {}{}{}", spec.name, self::flags(&flags), replication(replicate))
        }
        Record::QueueDelete { queue } => format!("delete queue #{queue}"),
        Record::Bind(binding) => format!("bind {}", describe_binding(binding)),
        Record::Unbind(binding) => format!("unbind {}", describe_binding(binding)),
        Record::Publish { targets, message } => {
            let targets: Vec<_> = targets.iter().map(|queue| format!("#{queue}")).collect();
            let flags = flags(&[("persistent", message.persistent)]);
            format!("publish {} to {}{flags}", describe_message(message), targets.join(" "))
        }
        Record::PublishHere { targets, here, message } => {
            let flags = flags(&[("persistent", message.persistent)]);
            let (targets, here) = (numbers(targets), numbers(here));
            format!("publish {} to {targets}here {}{flags}", describe_message(message), here.trim_end())
        }
        Record::StagedHere { targets, here, message } => {
            let flags = flags(&[("persistent", message.persistent)]);
            let (targets, here) = (numbers(targets), numbers(here));
            format!("staged {} for {targets}here {}{flags}", describe_message(message), here.trim_end())
        }
        Record::DequeueHere { queue, messages } => format!("dequeue {} from #{queue} here", list(messages)),
        Record::RequeueHere { queue, messages } => format!("requeue {} in #{queue} here", list(messages)),
        Record::PurgeHere { queue, up_to, except } => {
            format!("purge #{queue} here up to {up_to} except [{}]", list(except))
        }
        Record::Withheld => "withheld".to_owned(),
        Record::Staged { targets, message } => {
            let targets: Vec<_> = targets.iter().map(|queue| format!("#{queue}")).collect();
            let flags = flags(&[("persistent", message.persistent)]);
            format!("staged {} for {}{flags}", describe_message(message), targets.join(" "))
        }
        Record::Transaction { staged, settled } => {
            let mut text = format!("transaction of {staged} staged");
            for Settled { queue, dequeued, requeued } in settled {
                if !dequeued.is_empty() {
                    write!(text, ", dequeue {} from #{queue}", list(dequeued)).unwrap();
                }
                if !requeued.is_empty() {
                    write!(text, ", requeue {} in #{queue}", list(requeued)).unwrap();
                }
            }
            text
        }
        Record::Part { body } => format!("part '{}'", String::from_utf8_lossy(&body.to_contiguous())),
        Record::Discard { parts } => format!("discard {}", list(parts)),
        Record::Dequeue { queue, messages } => format!("dequeue {} from #{queue}", list(messages)),
        Record::Requeue { queue, messages } => format!("requeue {} in #{queue}", list(messages)),
        Record::Purge { queue, up_to, except } => format!("purge #{queue} up to {up_to} except [{}]", list(except)),
        Record::Time { wall_ms } => format!("it is {wall_ms}"),
        Record::Seen { keys, alone } => {
            let keys: Vec<_> = keys.iter().map(|seen| format!("{} until {}", seen.exchange, seen.expires_ms)).collect();
            format!("seen{} by {}", if *alone { " alone" } else { "" }, keys.join(", "))
        }
        Record::Scrub { digests } => format!("scrub, {} digests", digests.len()),
    }
}

fn describe_effect(kind: &EffectKind) -> String {
    match kind {
        EffectKind::QueueDeclareOk { name, message_count, consumer_count } => {
            let name = if name.as_bytes().starts_with(b"amq.gen-") { "amq.gen-…".into() } else { name.to_text() };
            format!("queue.declare-ok {name}, {message_count} messages, {consumer_count} consumers")
        }
        EffectKind::QueuePurgeOk { message_count } => format!("queue.purge-ok, {message_count} messages"),
        EffectKind::QueueDeleteOk { message_count } => format!("queue.delete-ok, {message_count} messages"),
        EffectKind::BasicConsumeOk { consumer_tag } => format!("consume-ok {}", describe_tag(consumer_tag)),
        EffectKind::BasicCancelOk { consumer_tag } => format!("cancel-ok {consumer_tag}"),
        EffectKind::BasicCancel { consumer_tag } => format!("cancel {consumer_tag}"),
        EffectKind::BasicDeliver { consumer_tag, delivery_tag, redelivered, delivery_count, message } => {
            let flags = redelivery(*redelivered, *delivery_count);
            format!("deliver {delivery_tag} to {}: {}{flags}", describe_tag(consumer_tag), describe_message(message))
        }
        EffectKind::BasicGetOk { delivery_tag, redelivered, delivery_count, message_count, message } => {
            let flags = redelivery(*redelivered, *delivery_count);
            format!("get-ok {delivery_tag}: {}{flags}, {message_count} left", describe_message(message))
        }
        EffectKind::BasicReturn { code, text, message } => {
            format!("return {} {text}: {}", code.number(), describe_message(message))
        }
        EffectKind::PublisherAck { delivery_tag, multiple } => {
            format!("confirm {}{delivery_tag}", if *multiple { "up to " } else { "" })
        }
        EffectKind::PublisherNack { delivery_tag, .. } => format!("refuse {delivery_tag}"),
        EffectKind::CloseChannel { error } => {
            format!("channel.close {} {error} ({},{})", error.code.number(), error.class, error.method)
        }
        EffectKind::CloseConnection { error } => {
            format!("connection.close {} {error} ({},{})", error.code.number(), error.class, error.method)
        }
        EffectKind::ExchangeDeclareOk => "exchange.declare-ok".to_owned(),
        EffectKind::ExchangeDeleteOk => "exchange.delete-ok".to_owned(),
        EffectKind::ExchangeBindOk => "exchange.bind-ok".to_owned(),
        EffectKind::ExchangeUnbindOk => "exchange.unbind-ok".to_owned(),
        EffectKind::QueueBindOk => "queue.bind-ok".to_owned(),
        EffectKind::QueueUnbindOk => "queue.unbind-ok".to_owned(),
        EffectKind::BasicQosOk => "qos-ok".to_owned(),
        EffectKind::BasicGetEmpty => "get-empty".to_owned(),
        EffectKind::BasicRecoverOk => "recover-ok".to_owned(),
        EffectKind::ConfirmSelectOk => "confirm.select-ok".to_owned(),
        EffectKind::TxSelectOk => "tx.select-ok".to_owned(),
        EffectKind::TxCommitOk => "tx.commit-ok".to_owned(),
        EffectKind::TxRollbackOk => "tx.rollback-ok".to_owned(),
    }
}

fn replication(replicate: Replicate) -> &'static str {
    match replicate {
        Replicate::All => "",
        Replicate::Configuration => " replicated as configuration",
        Replicate::Nothing => " not replicated",
    }
}

fn numbers(queues: &[QueueId]) -> String {
    queues.iter().map(|queue| format!("#{queue} ")).collect()
}

fn redelivery(redelivered: bool, delivery_count: u32) -> String {
    assert!(redelivered || delivery_count == 0, "it came back, so this is not its first delivery");
    match (redelivered, delivery_count) {
        (false, _) => String::new(),
        (true, 0) => " redelivered".to_owned(),
        (true, count) => format!(" redelivered x{count}"),
    }
}

fn describe_tag(tag: &ShortStr) -> std::borrow::Cow<'_, str> {
    if tag.as_bytes().starts_with(b"amq.ctag-") { "amq.ctag-…".into() } else { tag.to_text() }
}

fn describe_binding(binding: &Binding) -> String {
    let destination = match &binding.destination {
        Destination::Queue(queue) => format!("#{queue}"),
        Destination::Exchange(name) => format!("exchange {name}"),
    };
    format!("{destination} to {} by '{}'", binding.source, binding.routing_key)
}

fn describe_message(message: &Message) -> String {
    let parts: String =
        message.parts.iter().flat_map(|parts| parts.iter()).map(|part| format!("[{}] ", part.index)).collect();
    let deaths = describe_deaths(message);
    format!("{parts}'{}'{deaths}", String::from_utf8_lossy(&message.body.to_contiguous()))
}

/// The newest first.
fn describe_deaths(message: &Message) -> String {
    let headers = Properties::from_raw(message.properties.clone()).headers().unwrap_or_default();
    let deaths = headers.get("x-death").and_then(FieldValue::as_array).unwrap_or_default();
    let said: Vec<_> = deaths
        .iter()
        .map(|death| {
            let death = death.as_table().unwrap();
            let text = |what| death.get(what).and_then(FieldValue::as_str).unwrap();
            let count = death.get("count").and_then(FieldValue::as_int).unwrap();
            format!("{} in {} x{count}", text("reason"), text("queue"))
        })
        .collect();
    if said.is_empty() { String::new() } else { format!(" ({})", said.join(", ")) }
}

fn flags(flags: &[(&str, bool)]) -> String {
    flags.iter().filter(|(_, set)| *set).map(|(name, _)| format!(" {name}")).collect()
}

fn list(indexes: &[Index]) -> String {
    indexes.iter().map(Index::to_string).collect::<Vec<_>>().join(" ")
}
