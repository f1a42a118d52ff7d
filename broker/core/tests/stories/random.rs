//! Histories nobody thought of. Whatever clients send, nothing panics, the books agree, and every replica ends in the same
//! state: one that applied all records, one that started over from a sync point in the middle of it, and one that recovered
//! from a checkpoint; whatever leaves memory meanwhile, and however late it is read back.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use proptest::prelude::*;
use understudy_core::{
    Account, AdminCommand, BacklogChunk, BacklogCursor, BacklogItem, BacklogMessage, ChannelId, Command, ConnectionId,
    ConnectionInfo, Core, DeliveryTag, EffectKind, Limit, LimitOf, Load, Outputs, PartLoad, Publish, ScrubPass, Time,
};
use understudy_protocol::{BasicProperties, FieldTable, FieldValue};
use understudy_record::{BasePiece, Body, Epoch, Index, KeyedBy, Message, PartRef, Position, QueueId, Record};

use crate::harness::*;
use crate::scrub::alter;

#[derive(Clone, Debug)]
enum Event {
    Say(u64, u16, Command),
    CloseConnection(u64),
    Administer(AdminCommand),
    Writable(u64, bool),
    /// So many of the records that wait for their commit are committed.
    Commit(usize),
    EndStep,
    /// A replica starts over from here.
    StartSync,
    /// It gets the next part of the backlog, or reads so many pieces or records of what was sent.
    ReadBacklog(usize),
    ReceivePieces(usize),
    ReceiveRecords(usize),
    /// So many messages too much are in memory; so many of the last records are not in the log yet.
    Evict {
        budget: u64,
        unwritten: u64,
    },
    /// One of the loads that wait is answered: which, modulo their number.
    Answer(usize),
    /// A checkpoint begins, and takes so many messages at a time.
    StartCheckpoint,
    TakeSlice(usize),
    /// What the next slice of a pass over the state is, of so many messages at most, is written down.
    Scrub(usize),
    /// So many milliseconds go by.
    Wait(u64),
    /// So many of the large messages that are on their way to clients have been sent.
    Sent(usize),
}

fn name() -> impl Strategy<Value = &'static str> {
    prop_oneof![4 => Just("a"), 3 => Just("b"), 2 => Just("c"), 1 => Just("")]
}

fn exchange_name() -> impl Strategy<Value = &'static str> {
    prop_oneof![
        3 => Just("x"),
        3 => Just("y"),
        3 => Just("z"),
        1 => Just("amq.fanout"),
        1 => Just("amq.topic"),
        1 => Just("amq.direct"),
        2 => Just(""),
    ]
}

fn key() -> impl Strategy<Value = &'static str> {
    prop_oneof![Just("a"), Just("b"), Just("a.b"), Just("#"), Just("a.*"), Just("")]
}

fn flags() -> impl Strategy<Value = &'static str> {
    prop_oneof![
        8 => Just(""),
        2 => Just("durable"),
        2 => Just("auto-delete"),
        1 => Just("exclusive"),
        1 => Just("passive"),
        1 => Just("no-wait"),
        1 => Just("if-unused"),
        1 => Just("if-empty"),
        2 => Just("no-ack"),
        1 => Just("mandatory"),
        1 => Just("internal"),
    ]
}

/// Kept the same for one name, or most declares would fail.
fn kind_of(name: &str) -> &'static str {
    match name {
        "x" => "fanout",
        "z" => "x-message-deduplication",
        _ => "topic",
    }
}

fn declared(name: &str, flags: &str) -> Command {
    let size = [("x-cache-size", FieldValue::I32(2)), ("x-cache-ttl", FieldValue::I32(9))];
    let arguments = if name == "z" { arguments(&size) } else { Bytes::new() };
    exchange_with(name, kind_of(name), flags, arguments)
}

/// A queue that drops duplicates, by the messages in it or by the last two.
fn deduplicating(name: &str, flags: &str, sized: bool, more: &[(&str, FieldValue)]) -> Command {
    let size = ("x-cache-size", FieldValue::I32(2));
    let known = [("x-message-deduplication", FieldValue::Bool(true))].into_iter().chain(sized.then_some(size));
    declare_with(name, flags, arguments(&known.chain(more.iter().cloned()).collect::<Vec<_>>()))
}

/// A message with a key.
fn keyed(exchange: &str, routing_key: &str, key: i32, ttl: Option<i32>) -> Command {
    let mut headers = FieldTable::new().with("x-deduplication-header", key);
    if let Some(ttl) = ttl {
        headers.insert(short("x-cache-ttl"), ttl);
    }
    publish_with(
        exchange,
        routing_key,
        "",
        "",
        &BasicProperties { headers: Some(headers), ..BasicProperties::default() },
    )
}

fn said(message: &Message) -> (Bytes, Bytes) {
    (message.body.to_contiguous(), message.properties.clone())
}

/// A queue with dead letters.
fn dying(name: &str, to: &str, full: bool) -> Command {
    let limit = if full { ("x-max-length", FieldValue::I32(2)) } else { ("x-delivery-limit", FieldValue::I32(1)) };
    let ranks = ("x-max-priority", FieldValue::I32(3));
    let lives = if full { ("x-message-ttl", FieldValue::I32(5)) } else { ("x-expires", FieldValue::I32(30)) };
    let overflow = ("x-overflow", text_value(if to == "x" { "reject-publish-dlx" } else { "drop-head" }));
    let key = ("x-dead-letter-routing-key", text_value("b"));
    declare_with(
        name,
        "durable",
        arguments(&[("x-dead-letter-exchange", text_value(to)), key, limit, overflow, ranks, lives]),
    )
}

fn command() -> impl Strategy<Value = Command> {
    let tag = 0..12_u64;
    prop_oneof![
        6 => (name(), flags()).prop_map(|(name, flags)| declare(name, flags)),
        1 => (name(), flags()).prop_map(|(name, flags)| delete(name, flags)),
        2 => Just(declare_with("b", "", arguments(&[("x-max-length", FieldValue::I32(2))]))),
        1 => Just(declare_with("a", "durable", arguments(&[("x-max-length-bytes", FieldValue::I32(9))]))),
        2 => (name(), exchange_name(), any::<bool>()).prop_map(|(name, to, full)| dying(name, to, full)),
        1 => Just(declare_with("a", "", arguments(&[("x-max-length", FieldValue::I32(1)), ("x-overflow", text_value("reject-publish"))]))),
        3 => Just(declare_with("c", "", arguments(&[("x-understudy-replicate", text_value("none"))]))),
        2 => Just(declare_with("b", "durable", arguments(&[("x-understudy-replicate", text_value("configuration"))]))),
        1 => name().prop_map(purge),
        4 => (exchange_name(), flags()).prop_map(|(name, flags)| declared(name, flags)),
        4 => (name(), flags(), any::<bool>()).prop_map(|(name, flags, sized)| deduplicating(name, flags, sized, &[])),
        2 => (name(), any::<bool>()).prop_map(|(name, sized)| {
            let dies = [("x-dead-letter-exchange", text_value("z")), ("x-max-length", FieldValue::I32(2))];
            deduplicating(name, "durable", sized, &dies)
        }),
        1 => (any::<bool>()).prop_map(|sized| {
            deduplicating("b", "durable", sized, &[("x-understudy-replicate", text_value("configuration"))])
        }),
        14 => (exchange_name(), key(), 0..4_i32, proptest::option::of(1..20_i32))
            .prop_map(|(to, routing_key, key, ttl)| keyed(to, routing_key, key, ttl)),
        1 => (exchange_name(), flags()).prop_map(|(name, flags)| delete_exchange(name, flags)),
        4 => (name(), exchange_name(), key()).prop_map(|(queue, exchange, key)| bind(queue, exchange, key)),
        1 => (name(), exchange_name(), key()).prop_map(|(queue, exchange, key)| unbind(queue, exchange, key)),
        2 => (exchange_name(), exchange_name(), key()).prop_map(|(to, from, key)| bind_exchange(to, from, key)),
        1 => (exchange_name(), exchange_name(), key()).prop_map(|(to, from, key)| unbind_exchange(to, from, key)),
        14 => (exchange_name(), key()).prop_map(|(to, key)| publish_to(to, key, "")),
        10 => name().prop_map(|queue| persistent(queue, "")),
        6 => (name(), proptest::option::of(0..9_u8), proptest::option::of(0..20_u64)).prop_map(|(queue, priority, lives)| {
            let expiration = lives.map(|lives| short(&lives.to_string()));
            publish_with("", queue, "", "", &BasicProperties { priority, expiration, ..BasicProperties::default() })
        }),
        5 => (name(), name(), flags()).prop_map(|(queue, tag, flags)| consume(queue, tag, flags)),
        2 => name().prop_map(cancel),
        4 => (name(), flags()).prop_map(|(queue, flags)| get(queue, flags)),
        7 => Just(ack_to(0)),
        2 => (tag.clone(), any::<bool>()).prop_map(|(tag, multiple)| Command::BasicAck { delivery_tag: DeliveryTag(tag), multiple }),
        2 => any::<bool>().prop_map(|requeue| nack(0, true, requeue)),
        2 => (tag, any::<bool>(), any::<bool>()).prop_map(|(tag, multiple, requeue)| nack(tag, multiple, requeue)),
        1 => any::<bool>().prop_map(|requeue| Command::BasicRecover { requeue }),
        2 => (0..4_u16, any::<bool>()).prop_map(|(count, global)| qos(count, global)),
        6 => Just(part("")),
        2 => Just(select()),
        3 => Just(Command::TxSelect),
        5 => Just(Command::TxCommit),
        1 => Just(Command::TxRollback),
        1 => Just(Command::ChannelClose),
    ]
}

/// What a policy may set; with some of it an operator's is refused.
fn settings() -> impl Strategy<Value = Vec<(&'static str, FieldValue)>> {
    let number = |value: i32| FieldValue::I32(value);
    let setting = prop_oneof![
        3 => (0..4_i32).prop_map(move |length| ("max-length", number(length))),
        1 => (0..40_i32).prop_map(move |bytes| ("max-length-bytes", number(bytes))),
        2 => (0..9_i32).prop_map(move |ms| ("message-ttl", number(ms))),
        1 => (1..20_i32).prop_map(move |ms| ("expires", number(ms))),
        1 => prop_oneof![Just("reject-publish"), Just("reject-publish-dlx")].prop_map(|how| ("overflow", text_value(how))),
        3 => prop_oneof![Just("x"), Just("")].prop_map(|name| ("dead-letter-exchange", text_value(name))),
        1 => name().prop_map(|name| ("dead-letter-routing-key", text_value(name))),
        1 => Just(("alternate-exchange", text_value("x"))),
        1 => Just(("understudy-replicate", text_value("configuration"))),
    ];
    proptest::collection::vec(setting, 1..3)
}

fn admin() -> impl Strategy<Value = AdminCommand> {
    let pattern = || prop_oneof![4 => Just(".*"), 1 => Just("^(a|x|amq)"), 1 => Just("")];
    let limit = (any::<bool>(), proptest::option::of(0..4_u64));
    prop_oneof![
        6 => Just(add_vhost("shop")),
        2 => Just(delete_vhost("shop")),
        4 => Just(add_user("anna")),
        1 => Just(AdminCommand::DeleteUser { name: short("anna") }),
        6 => (pattern(), pattern(), pattern()).prop_map(|(c, w, r)| permit("anna", "shop", [c, w, r])),
        1 => Just(AdminCommand::ClearPermission { user: short("anna"), vhost: short("shop") }),
        1 => pattern().prop_map(|write| permit_topics("anna", "shop", "y", [write, ""])),
        6 => (0..2_usize, any::<bool>(), -1..2_i64, settings()).prop_map(|(at, of_operator, priority, settings)| {
            let (name, pattern) = [("p", "^(a|x)"), ("q", "^(?!a)")][at];
            let policy = policy(name, pattern, priority, &settings);
            if of_operator { operator(policy) } else { policy }
        }),
        2 => prop_oneof![Just("p"), Just("q")].prop_map(clear_policy),
        1 => limit.prop_map(|(of_user, value)| match of_user {
            true => AdminCommand::SetLimit { of: LimitOf::User(short("anna")), limit: Limit::MaxChannels, value },
            false => AdminCommand::SetLimit { of: LimitOf::Vhost(short("shop")), limit: Limit::MaxQueues, value },
        }),
    ]
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        40 => (1..4_u64, 1..3_u16, command()).prop_map(|(connection, channel, command)| Event::Say(connection, channel, command)),
        1 => (1..4_u64).prop_map(Event::CloseConnection),
        6 => admin().prop_map(Event::Administer),
        1 => (1..4_u64, any::<bool>()).prop_map(|(connection, writable)| Event::Writable(connection, writable)),
        12 => (0..8_usize).prop_map(Event::Commit),
        12 => Just(Event::EndStep),
        1 => Just(Event::StartSync),
        6 => (1..5_usize).prop_map(Event::ReadBacklog),
        6 => (1..5_usize).prop_map(Event::ReceivePieces),
        6 => (1..9_usize).prop_map(Event::ReceiveRecords),
        8 => (0..12_u64, 0..4_u64).prop_map(|(budget, unwritten)| Event::Evict { budget, unwritten }),
        12 => any::<usize>().prop_map(Event::Answer),
        2 => Just(Event::StartCheckpoint),
        8 => (1..5_usize).prop_map(Event::TakeSlice),
        5 => (1..9_u64).prop_map(Event::Wait),
        3 => (1..4_usize).prop_map(Event::Sent),
        8 => (1..4_usize).prop_map(Event::Scrub),
    ]
}

/// A replica that is starting over, and what is on its way to it.
struct Sync {
    replica: Core,
    sync_point: Index,
    /// Queues whose backlog is not sent in full, with the place where it goes on.
    to_read: Vec<(QueueId, BacklogCursor)>,
    /// Parts that no message had claimed at the sync point; they are read like a queue's backlog, of queue 0.
    unclaimed: Arc<[PartRef]>,
    pieces: VecDeque<BasePiece>,
    records: VecDeque<(Index, Record)>,
    topology_received: bool,
    /// The last record when the backlog was read last: the base shows effects up to there.
    floor: Index,
    ended: bool,
    /// Parts that the replica's log has.
    parts: BTreeSet<Index>,
}

const UNCLAIMED: QueueId = QueueId(Index(0));

impl Sync {
    /// `own`: for this very replica.
    fn start(core: &mut Core, own: bool) -> Self {
        let sync_point = core.begin_sync();
        let start =
            BasePiece::Start { sync_point: Position::new(Epoch(1), sync_point), epochs: vec![], in_sync: vec![] };
        let mut pieces: VecDeque<_> = [start].into();
        pieces.extend(core.snapshot_topology());
        pieces.extend(own.then(|| core.unreplicated_keys()).into_iter().flatten());
        pieces.push_back(BasePiece::TopologyEnd);
        let queues = core.queues().into_iter().map(|(queue, ..)| queue);
        let to_read = queues.chain([UNCLAIMED]).map(|queue| (queue, BacklogCursor::START)).collect();
        Self {
            replica: Core::new(7),
            sync_point,
            to_read,
            unclaimed: core.unclaimed_parts(),
            pieces,
            records: VecDeque::new(),
            topology_received: false,
            floor: sync_point,
            ended: false,
            parts: BTreeSet::new(),
        }
    }

    fn read_backlog(&mut self, core: &Core, store: &Store, messages: usize) {
        if self.to_read.is_empty() {
            return;
        }
        let (queue, from) = self.to_read.remove(0);
        self.floor = core.last_index();
        let chunk = match queue {
            UNCLAIMED => BacklogChunk::of_parts(&self.unclaimed, from, 6),
            queue => core.backlog_chunk(queue, from, self.sync_point, 6, messages),
        };
        for item in chunk.items {
            self.pieces.push_back(match item {
                BacklogItem::Part(part) => BasePiece::Part { index: part.index, body: store.part(part).clone() },
                BacklogItem::Message(BacklogMessage { index, delivery_count, expires_ms, message, bytes }) => {
                    let message = message.map_or_else(|| store.message(index).clone(), |message| (*message).clone());
                    assert_eq!(u64::from(bytes), message.body_bytes() + message.properties.len() as u64);
                    assert_eq!(message, *store.message(index));
                    BasePiece::Message { queue, index, delivery_count, expires_ms, message }
                }
            });
        }
        if chunk.done {
            self.pieces.push_back(BasePiece::QueueDone { queue });
        } else {
            self.to_read.push((queue, chunk.next));
        }
    }

    fn receive_pieces(&mut self, count: usize) {
        for piece in self.pieces.drain(..count.min(self.pieces.len())) {
            self.topology_received |= piece == BasePiece::TopologyEnd;
            match &piece {
                BasePiece::Part { index, .. } => _ = self.parts.insert(*index),
                BasePiece::Message { message, .. } => {
                    let missing = parts_of(message).find(|part| !self.parts.contains(part));
                    assert_eq!(missing, None, "a message that came before its parts");
                }
                _ => {}
            }
            self.replica.apply_base(piece).unwrap();
        }
        if self.to_read.is_empty() && self.pieces.is_empty() && !std::mem::replace(&mut self.ended, true) {
            self.replica.apply_base(BasePiece::End { floor: self.floor }).unwrap();
        }
        self.replica.assert_consistent();
    }

    fn receive_records(&mut self, count: usize) {
        if self.topology_received {
            for (index, record) in self.records.drain(..count.min(self.records.len())) {
                if let Record::Part { .. } = record {
                    self.parts.insert(index);
                }
                self.replica.apply(index, &record).unwrap();
            }
            self.replica.assert_consistent();
        }
    }

    fn finish(mut self, core: &Core, store: &Store) -> Core {
        while !self.to_read.is_empty() {
            self.read_backlog(core, store, 3);
            self.receive_pieces(2);
            self.receive_records(1);
        }
        self.receive_pieces(usize::MAX);
        assert!(self.ended);
        self.receive_records(usize::MAX);
        assert_eq!(self.replica.take_difference(), None);
        let missing =
            parts_named_by(&checkpoint(&self.replica, core.last_index())).find(|part| !self.parts.contains(part));
        assert_eq!(missing, None, "a part that the replica's log has not");
        self.replica
    }
}

fn parts_of(message: &Message) -> impl Iterator<Item = Index> {
    message.parts.iter().flat_map(|parts| parts.iter()).map(|part| part.index)
}

fn parts_named_by(pieces: &[BasePiece]) -> impl Iterator<Item = Index> {
    pieces.iter().flat_map(|piece| match piece {
        BasePiece::Parts { parts, .. } => parts.iter().map(|part| part.index).collect(),
        _ => Vec::new(),
    })
}

/// A checkpoint being taken.
struct Checkpoint {
    sync_point: Index,
    pieces: Vec<BasePiece>,
    to_read: Vec<(QueueId, BacklogCursor)>,
    floor: Index,
    records: Vec<(Index, Record)>,
}

impl Checkpoint {
    fn start(core: &mut Core) -> Self {
        let Sync { sync_point, pieces, mut to_read, floor, .. } = Sync::start(core, true);
        to_read.retain(|(queue, _)| *queue != UNCLAIMED);
        Self { sync_point, pieces: pieces.into(), to_read, floor, records: Vec::new() }
    }

    fn take_slice(&mut self, core: &Core, messages: usize) {
        let Some((queue, BacklogCursor { before, .. })) = self.to_read.pop() else { return };
        self.floor = core.last_index();
        let chunk = core.held_chunk(queue, before, self.sync_point, messages);
        let parts = chunk.parts.iter();
        self.pieces.extend(parts.map(|(message, parts)| BasePiece::Parts { message: *message, parts: parts.to_vec() }));
        assert!(
            chunk.messages.len() <= messages && chunk.messages.is_sorted_by(|newer, older| newer.index > older.index)
        );
        let oldest = chunk.messages.last().map_or(before, |message| message.index);
        if !chunk.keys.is_empty() {
            self.pieces.push(BasePiece::Keys { of: KeyedBy::Queue(queue), keys: chunk.keys });
        }
        if !chunk.messages.is_empty() {
            self.pieces.push(BasePiece::Held { queue, messages: chunk.messages });
        }
        match chunk.done {
            true => self.pieces.push(BasePiece::QueueDone { queue }),
            false => self.to_read.push((queue, oldest.into())),
        }
    }

    /// What a restart makes of it: the checkpoint, then the log.
    fn recover(mut self, core: &mut Core, sending: &[Arc<Message>]) -> Core {
        while !self.to_read.is_empty() {
            self.take_slice(core, 3);
        }
        // What it does not name is gone with the segments before the sync point.
        let mut live: BTreeSet<Index> = parts_named_by(&self.pieces).collect();
        live.extend(core.pinned_parts().iter().map(|part| part.index));
        let needed = sending.iter().flat_map(|message| parts_of(message));
        let state = checkpoint(core, core.last_index());
        let needed = needed.chain(parts_named_by(&state));
        let lost = needed.filter(|part| *part <= self.sync_point).find(|part| !live.contains(part));
        assert_eq!(lost, None, "a part that somebody needs");
        let mut recovered = Core::new(9);
        self.pieces.into_iter().for_each(|piece| recovered.apply_base(piece).unwrap());
        recovered.apply_base(BasePiece::End { floor: self.floor }).unwrap();
        recovered.assert_consistent();
        self.records.iter().for_each(|(index, record)| recovered.apply(*index, record).unwrap());
        assert_eq!(recovered.take_difference(), None);
        recovered
    }
}

struct World {
    core: Core,
    /// A follower.
    plain: Core,
    /// What the primary's own log gives again.
    own: Core,
    sync: Option<Sync>,
    checkpoint: Option<Checkpoint>,
    scrub: ScrubPass,
    store: Store,
    /// Asked for and not answered; one for each queue at most.
    loads: Vec<Load>,
    part_loads: Vec<PartLoad>,
    committed: Index,
    time: Time,
    published: u64,
    /// Large messages that are on their way to clients.
    sending: Vec<Arc<Message>>,
    /// By body, each of which is unique, and properties, which say how it died.
    indexes: HashMap<(Bytes, Bytes), Index>,
    /// Of each message of a transaction.
    decisions: HashMap<Index, Index>,
    staged: Vec<Index>,
    /// Everything written and told, in order.
    story: Vec<String>,
}

impl World {
    fn new() -> Self {
        let core = promoted(Core::new(1));
        Self {
            scrub: core.begin_scrub(),
            core,
            plain: Core::new(2),
            own: Core::new(3),
            sync: None,
            checkpoint: None,
            store: Store::default(),
            loads: Vec::new(),
            part_loads: Vec::new(),
            committed: Index(0),
            time: Time { wall_ms: 1_000, steady: Duration::ZERO },
            published: 0,
            sending: Vec::new(),
            indexes: HashMap::new(),
            decisions: HashMap::new(),
            staged: Vec::new(),
            story: Vec::new(),
        }
    }

    fn happen(&mut self, event: Event) {
        let mut out = Outputs::default();
        match event {
            Event::Say(connection, channel, mut command) => {
                if let Command::BasicPublish(Publish { body, .. }) | Command::PublishPart { body } = &mut command {
                    self.published += 1;
                    *body = Body::new(Bytes::from(self.published.to_string()));
                }
                let (id, channel) = (ConnectionId(connection), ChannelId(channel));
                if self.core.stats().connections < 3 {
                    let (user, consumer_cancel_notify) = ("guest".to_owned(), connection == 1);
                    let info = ConnectionInfo { user, consumer_cancel_notify, ..ConnectionInfo::default() };
                    let of_shop = ConnectionInfo {
                        user: "anna".to_owned(),
                        account: Account::Recorded,
                        vhost: short("shop"),
                        consumer_cancel_notify,
                    };
                    for id in (1..4).map(ConnectionId) {
                        self.core.connection_closed(id, &mut out);
                        let is_in = id.0 > 1 && self.core.connection_opened(id, of_shop.clone()).is_ok();
                        if !is_in {
                            self.core.connection_opened(id, info.clone()).unwrap();
                        }
                    }
                }
                self.core.handle(id, channel, Command::ChannelOpen, &mut out);
                self.core.handle(id, channel, command, &mut out);
            }
            Event::Administer(command) => {
                let before = self.core.last_index();
                if let Ok(false) | Err(_) = self.core.administer(command, &mut out) {
                    assert_eq!(self.core.last_index(), before, "nothing was changed");
                }
            }
            Event::CloseConnection(connection) => self.core.connection_closed(ConnectionId(connection), &mut out),
            Event::Writable(connection, writable) => {
                self.core.handle_writable(ConnectionId(connection), writable, &mut out);
            }
            Event::Commit(records) => {
                let last = self.core.last_index();
                self.committed = Index((self.committed.0 + records as u64).min(last.0));
                let confirmable = self.committed.previous();
                self.core.handle_committed(self.committed, confirmable, &mut out);
            }
            Event::EndStep => _ = self.core.deliver(&mut out),
            Event::StartSync => {
                // Everything applied so far is what the sync point shows.
                self.drain(std::mem::take(&mut out));
                self.finish_sync();
                self.sync = Some(Sync::start(&mut self.core, false));
            }
            Event::ReadBacklog(messages) => {
                if let Some(sync) = &mut self.sync {
                    sync.read_backlog(&self.core, &self.store, messages);
                }
            }
            Event::ReceivePieces(count) => self.sync.iter_mut().for_each(|sync| sync.receive_pieces(count)),
            Event::Evict { budget, unwritten } => {
                let stored = Index(self.core.last_index().0.saturating_sub(unwritten));
                while self.core.evict(stored, budget) {}
            }
            Event::Answer(which) if which % 2 == 0 && !self.part_loads.is_empty() || self.loads.is_empty() => {
                if !self.part_loads.is_empty() {
                    let load = self.part_loads.swap_remove(which % self.part_loads.len());
                    self.core.handle_part_loaded(load, self.store.part(load.part).clone(), &mut out);
                }
            }
            Event::Answer(which) => {
                let load = self.loads.swap_remove(which % self.loads.len());
                let mut messages = self.store.read(&load);
                messages.rotate_left(which % load.indexes.len());
                self.core.handle_loaded(load.queue, messages, &mut out);
            }
            Event::StartCheckpoint => {
                self.drain(std::mem::take(&mut out));
                self.finish_checkpoint();
                self.checkpoint = Some(Checkpoint::start(&mut self.core));
            }
            Event::TakeSlice(messages) => {
                if let Some(checkpoint) = &mut self.checkpoint {
                    checkpoint.take_slice(&self.core, messages);
                }
            }
            Event::Scrub(messages) => {
                if self.core.scrub(&mut self.scrub, messages, &mut out).is_none() {
                    assert!(self.scrub.is_done() && self.scrub.progress() == 1.0, "{:?}", self.scrub);
                    self.scrub = self.core.begin_scrub();
                }
            }
            Event::Wait(ms) => {
                self.time.wall_ms += ms;
                self.time.steady += Duration::from_millis(ms);
                self.core.set_time(self.time);
            }
            Event::Sent(count) => _ = self.sending.drain(..count.min(self.sending.len())),
            Event::ReceiveRecords(count) => self.sync.iter_mut().for_each(|sync| sync.receive_records(count)),
        }
        self.drain(out);
        self.core.assert_consistent();
    }

    fn drain(&mut self, out: Outputs) {
        self.story.extend(out.records.iter().map(|record| format!("{record:?}")));
        self.story.extend(out.effects.iter().map(|effect| format!("{effect:?}")));
        assert!(!self.core.is_amid_transaction(), "a step ends amid a transaction");
        self.story.extend(out.loads.iter().map(|load| format!("{load:?}")));
        self.part_loads.extend(out.part_loads);
        for load in out.loads {
            assert!(
                load.indexes.iter().all(|index| *index <= self.committed),
                "{load:?}, committed {}",
                self.committed
            );
            let twice = self.loads.iter().any(|other| other.queue == load.queue);
            assert!(!twice, "{load:?} while another is on its way");
            self.loads.push(load);
        }
        for (index, record) in out.records {
            if let Record::Publish { message, .. }
            | Record::PublishHere { message, .. }
            | Record::Staged { message, .. }
            | Record::StagedHere { message, .. } = &record
            {
                self.indexes.insert(said(message), index);
            }
            match record {
                Record::Staged { .. } | Record::StagedHere { .. } => self.staged.push(index),
                Record::Transaction { .. } => {
                    self.decisions.extend(self.staged.drain(..).map(|staged| (staged, index)))
                }
                Record::Seen { alone: false, .. } => {}
                _ => assert_eq!(self.staged, [], "record {index} amid a transaction"),
            }
            self.store.note(index, &record);
            let record = match record {
                Record::Publish { targets, message } => Record::Publish { targets, message: as_read(&message) },
                Record::Staged { targets, message } => Record::Staged { targets, message: as_read(&message) },
                Record::PublishHere { targets, here, message } => {
                    Record::PublishHere { targets, here, message: as_read(&message) }
                }
                Record::StagedHere { targets, here, message } => {
                    Record::StagedHere { targets, here, message: as_read(&message) }
                }
                record => record,
            };
            self.own.apply(index, &record).unwrap();
            assert_eq!(self.own.take_difference(), None);
            self.plain.apply(index, &as_followed(&record)).unwrap();
            assert_eq!(self.plain.take_difference(), None);
            if let Some(sync) = &mut self.sync {
                sync.records.push_back((index, as_followed(&record)));
            }
            if let Some(checkpoint) = &mut self.checkpoint {
                checkpoint.records.push((index, record));
            }
        }
        for effect in out.effects {
            match effect.kind {
                EffectKind::CloseConnection { .. } => {
                    let mut out = Outputs::default();
                    self.core.connection_closed(effect.connection, &mut out);
                    self.drain(out);
                }
                EffectKind::BasicDeliver { message, .. } | EffectKind::BasicGetOk { message, .. } => {
                    let index = self.indexes[&said(&message)];
                    assert_eq!(*message, *self.store.message(index));
                    let index = self.decisions.get(&index).copied().unwrap_or(index);
                    assert!(index <= self.committed, "{index} was handed out, {} is committed", self.committed);
                    self.sending.extend(Some(message).filter(|message| message.parts.is_some()));
                }
                EffectKind::BasicReturn { message, .. } => {
                    self.sending.extend(Some(message).filter(|message| message.parts.is_some()));
                }
                _ => {}
            }
        }
    }

    fn finish_checkpoint(&mut self) {
        if let Some(checkpoint) = self.checkpoint.take() {
            let sync_point = checkpoint.sync_point;
            let recovered = checkpoint.recover(&mut self.core, &self.sending);
            self.core.end_sync(sync_point);
            assert_eq!(recovered.own_text(), self.core.own_text(), "recovered from a checkpoint at {sync_point}");
            assert_eq!(recovered.digest(), self.core.digest());
            assert_eq!((recovered.resident_bytes(), recovered.resident_messages()), (0, 0), "all is stored");
            recovered.assert_consistent();
            self.scrub_all(recovered);
        }
    }

    /// A whole pass finds no difference.
    fn scrub_all(&mut self, mut replica: Core) {
        let (mut pass, mut out) = (self.core.begin_scrub(), Outputs::default());
        while self.core.scrub(&mut pass, 3, &mut out).is_some() {}
        out.records.iter().for_each(|(index, record)| replica.apply(*index, record).unwrap());
        assert_eq!(replica.take_difference(), None);
        self.drain(out);
    }

    /// Whoever waits for a message gets it.
    fn settle_loads(&mut self) {
        for _ in 0..10_000 {
            let last = self.core.last_index();
            self.happen(Event::Commit(last.0 as usize));
            self.happen(Event::EndStep);
            self.happen(Event::Answer(0));
            self.happen(Event::EndStep);
            if self.loads.is_empty() && self.part_loads.is_empty() && self.core.last_index() == last {
                return;
            }
        }
        panic!("loads without end");
    }

    fn finish_sync(&mut self) {
        if let Some(sync) = self.sync.take() {
            let sync_point = sync.sync_point;
            let replica = sync.finish(&self.core, &self.store);
            self.core.end_sync(sync_point);
            assert_eq!(
                replica.replicated_text(),
                self.core.replicated_text(),
                "a replica from sync point {sync_point}"
            );
            replica.assert_consistent();
            self.scrub_all(replica);
        }
    }

    /// A replica with the primary's state, but altered in one place.
    fn altered(&self, whichever: usize) -> Option<Core> {
        let sync_point = self.core.last_index();
        let mut pieces = checkpoint(&self.core, sync_point);
        alter(&mut pieces, whichever)?;
        let mut replica = Core::new(3);
        pieces.into_iter().try_for_each(|piece| replica.apply_base(piece)).ok()?;
        Some(replica)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn replicas_agree_whatever_clients_do(events in proptest::collection::vec(event(), 1..250)) {
        let mut world = World::new();
        events.into_iter().for_each(|event| world.happen(event));
        world.finish_sync();
        world.finish_checkpoint();
        world.settle_loads();
        prop_assert_eq!(world.plain.resident_bytes(), 0);
        prop_assert_eq!(world.plain.replicated_text(), world.core.replicated_text());
        prop_assert_eq!(world.plain.digest(), world.core.digest());
        prop_assert_eq!(world.own.own_text(), world.core.own_text());
        world.plain.assert_consistent();
        // When all clients are gone nothing is held back.
        (1..4).for_each(|connection| world.happen(Event::CloseConnection(connection)));
        world.settle_loads();
        let stats = world.core.stats();
        let held = (stats.messages_unacked, stats.channels, stats.consumers, stats.unconfirmed);
        prop_assert_eq!(held, (0, 0, 0, 0));
        prop_assert_eq!(world.core.unclaimed_parts().len(), 0);
        world.sending.clear();
        prop_assert_eq!(world.core.pinned_parts(), []);
        // All that is left is ready for a new primary, in the same order.
        let mut out = Outputs::default();
        let messages: u64 = world.plain.queues().iter().map(|(_, messages, _)| messages).sum();
        let exclusive = world.plain.replicated_text().matches("exclusive: true").count();
        world.plain.promote(&mut out);
        world.plain.assert_consistent();
        if exclusive == 0 {
            prop_assert_eq!(world.plain.stats().messages_ready as u64, messages);
        }
    }

    /// Whatever differs is found within one pass.
    #[test]
    fn a_replica_whose_state_differs_in_one_place_is_found(
        events in proptest::collection::vec(event(), 1..150),
        places in proptest::collection::vec(any::<usize>(), 8),
        messages in 1..5_usize,
    ) {
        let mut world = World::new();
        events.into_iter().for_each(|event| world.happen(event));
        let mut altered: Vec<_> = places.into_iter().filter_map(|place| world.altered(place)).collect();
        let (mut pass, mut out) = (world.core.begin_scrub(), Outputs::default());
        while world.core.scrub(&mut pass, messages, &mut out).is_some() {}
        for replica in &mut altered {
            out.records.iter().for_each(|(index, record)| replica.apply(*index, record).unwrap());
            prop_assert!(replica.take_difference().is_some());
        }
    }

    /// One seed replays a whole cluster only if no hash map's order shows.
    #[test]
    fn the_same_history_gives_the_same_records_and_effects(events in proptest::collection::vec(event(), 1..100)) {
        let stories = [events.clone(), events].map(|events| {
            let mut world = World::new();
            events.into_iter().for_each(|event| world.happen(event));
            world.story
        });
        prop_assert_eq!(&stories[0], &stories[1]);
    }

    /// Each publish is confirmed once, and not before the horizon has passed it.
    #[test]
    fn every_publish_is_confirmed_once_and_none_early(
        steps in proptest::collection::vec((any::<bool>(), 0..3_u64, any::<bool>()), 1..120),
    ) {
        let mut core = promoted(Core::new(1));
        let (id, channel, mut out) = (ConnectionId(1), ChannelId(1), Outputs::default());
        core.connection_opened(id, ConnectionInfo { consumer_cancel_notify: true, ..ConnectionInfo::default() }).unwrap();
        for command in [Command::ChannelOpen, select(), declare("a", "")] {
            core.handle(id, channel, command, &mut out);
        }
        let (mut indexes, mut waiting, mut confirmable) = (HashMap::new(), BTreeSet::new(), Index(0));
        for (tag, (routed, confirms, ends)) in (1..).zip(steps) {
            let index = core.next_index();
            core.handle(id, channel, publish(if routed { "a" } else { "nowhere" }, "m"), &mut out);
            waiting.insert(tag);
            indexes.insert(tag, if routed { index } else { Index(0) });
            if ends {
                let last = core.last_index();
                confirmable = Index((confirmable.0 + confirms).min(last.0));
                core.handle_committed(last, confirmable, &mut out);
            }
            settle(&mut out, &mut waiting, &indexes, confirmable);
        }
        let last = core.last_index();
        core.handle_committed(last, last, &mut out);
        settle(&mut out, &mut waiting, &indexes, last);
        prop_assert!(waiting.is_empty(), "never confirmed: {waiting:?}");
        prop_assert_eq!(core.unconfirmed(), 0);
    }
}

fn settle(out: &mut Outputs, waiting: &mut BTreeSet<u64>, indexes: &HashMap<u64, Index>, confirmable: Index) {
    for effect in std::mem::take(out).effects {
        let EffectKind::PublisherAck { delivery_tag, multiple } = effect.kind else { continue };
        assert!(waiting.contains(&delivery_tag.0), "{delivery_tag} is confirmed twice");
        let first = if multiple { 0 } else { delivery_tag.0 };
        let confirmed: Vec<u64> = waiting.range(first..=delivery_tag.0).copied().collect();
        for tag in confirmed {
            waiting.remove(&tag);
            assert!(
                indexes[&tag] <= confirmable,
                "{tag} is confirmed at {confirmable}, its record is {}",
                indexes[&tag]
            );
        }
    }
}
