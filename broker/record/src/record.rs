//! What a record says, and its bytes. Tags are numbers that never change meaning; the golden test pins them.
//!
//! A record's small part is its *meta*; a message's body travels beside it and is not copied.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use crate::admin::{Admin, read_vhost, write_vhost};
use crate::fields::{
    read_any_replicate, read_binding, read_exchange, read_held, read_message, read_parts, read_queue, read_replicate,
    read_settled, write_binding, write_exchange, write_held, write_message, write_parts, write_queue,
};
use crate::keys::{read_keys, read_seen, write_keys, write_seen};
use crate::scrub::{StateDigest, read_digests, write_digests};
use crate::wire::{Reader, Writer};
use crate::{Body, Epoch, Identity, Index, Member, Position, QueueId, ShortStr, StoreId, VhostId, VhostSpec};

/// One change of the broker's state. Everything a random choice, a clock or a policy decides is decided before the
/// record is written: applying it needs nothing else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// A primary's first record under its epoch (rules 4 and 7).
    EpochStart {
        primary: Identity,
        in_sync: Vec<Member>,
    },
    /// The in-sync set in force from here on, as the Lease has it (rule 7).
    InSyncSet {
        members: Vec<Member>,
    },
    ExchangeDeclare(ExchangeSpec),
    /// Its bindings go with it.
    ExchangeDelete {
        name: ShortStr,
    },
    /// The queue's id is this record's index.
    QueueDeclare(QueueSpec),
    /// Its messages and bindings go with it.
    QueueDelete {
        queue: QueueId,
    },
    Bind(Binding),
    Unbind(Binding),
    /// The message's id, in each target queue, is this record's index. It claims the parts that it lists.
    Publish {
        targets: Vec<QueueId>,
        message: Message,
    },
    /// A [`Self::Publish`] that also, or only, goes to queues whose messages are not replicated: `here` is which. Only the
    /// log of the primary that wrote it has this record: see [`Self::for_followers`].
    PublishHere {
        targets: Vec<QueueId>,
        here: Vec<QueueId>,
        message: Message,
    },
    /// A [`Self::Dequeue`] from a queue whose messages are not replicated.
    DequeueHere {
        queue: QueueId,
        messages: Vec<Index>,
    },
    /// A [`Self::Requeue`] in such a queue.
    RequeueHere {
        queue: QueueId,
        messages: Vec<Index>,
    },
    /// A [`Self::Purge`] of such a queue.
    PurgeHere {
        queue: QueueId,
        up_to: Index,
        except: Vec<Index>,
    },
    /// A [`Self::Staged`] for such queues, or for such queues too.
    StagedHere {
        targets: Vec<QueueId>,
        here: Vec<QueueId>,
        message: Message,
    },
    /// What a follower has in place of a record that concerns only the primary that wrote it: nothing, at the same index.
    Withheld,
    /// A message of a transaction, as [`Self::Publish`] has it: in no queue before its [`Self::Transaction`] is there. An
    /// [`Self::EpochStart`] drops those whose transaction was cut off.
    Staged {
        targets: Vec<QueueId>,
        message: Message,
    },
    /// The decision of a transaction, by which all of it takes effect at once: the `staged` records directly before this
    /// one, in number, and what it settles.
    Transaction {
        staged: u32,
        settled: Vec<Settled>,
    },
    /// Part of a large message's body, ahead of the message, as soon as it has come: so that a long body is nowhere held as
    /// a whole, and others' records stand between its parts. An [`Self::EpochStart`] drops those that nobody has claimed.
    Part {
        body: Body,
    },
    /// These parts will not be claimed: their message was cut off, refused or not routed.
    Discard {
        parts: Vec<Index>,
    },
    /// These messages leave the queue. Unknown ones are no error: they left before.
    Dequeue {
        queue: QueueId,
        messages: Vec<Index>,
    },
    /// These messages were delivered and came back: delivery count + 1, same place in the queue.
    Requeue {
        queue: QueueId,
        messages: Vec<Index>,
    },
    /// All messages up to and including `up_to` leave the queue, but those in `except` (delivered and not yet acknowledged).
    Purge {
        queue: QueueId,
        up_to: Index,
        except: Vec<Index>,
    },
    /// What time it is from here on, by the primary's clock: milliseconds since 1970. Messages that expire count from it.
    Time {
        wall_ms: u64,
    },
    /// Keys that exchanges remember from here on, to drop what comes with one of them again. Those of a message take effect
    /// with the record that brings it into its queues, which is the next one that is neither of this kind nor a
    /// [`Self::Staged`]; an [`Self::EpochStart`] in its place drops them. `alone`: the messages reached no queue, and the keys
    /// take effect with this very record.
    Seen {
        keys: Vec<SeenKey>,
        alone: bool,
    },
    /// Changes nothing: what the primary's state is as of this record, for every replica to compare with its own.
    Scrub {
        digests: Vec<StateDigest>,
    },
    /// A declare, a delete of an exchange, a bind or an unbind, in another virtual host than the default one.
    In {
        vhost: VhostId,
        change: Box<Record>,
    },
    Admin(Admin),
    /// Changes nothing. Of a version that there is not, for tests of upgrades.
    #[cfg(feature = "made-up-version")]
    MadeUp {
        epoch: Epoch,
    },
}

/// What a transaction says of one queue's deliveries: see [`Record::Dequeue`] and [`Record::Requeue`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settled {
    pub queue: QueueId,
    pub dequeued: Vec<Index>,
    pub requeued: Vec<Index>,
}

impl Record {
    /// What a follower's log has in this one's place; `None`: the same. Of a message that goes to no replicated queue it has
    /// nothing, or what must be said of its parts, which are replicated; of a transaction's one an empty shell, since the
    /// transaction counts its messages.
    pub fn for_followers(&self) -> Option<Self> {
        Some(match self {
            Self::PublishHere { targets, message, .. } => match &message.parts {
                _ if !targets.is_empty() => Self::Publish { targets: targets.clone(), message: message.clone() },
                Some(parts) => Self::Discard { parts: parts.iter().map(|part| part.index).collect() },
                None => Self::Withheld,
            },
            Self::StagedHere { targets, message, .. } => {
                let (targets, mut message) = (targets.clone(), message.clone());
                if targets.is_empty() {
                    (message.properties, message.body) = (Bytes::new(), Body::default());
                }
                Self::Staged { targets, message }
            }
            Self::DequeueHere { .. } | Self::RequeueHere { .. } | Self::PurgeHere { .. } => Self::Withheld,
            _ => return None,
        })
    }
}

/// A piece of a sync point: the state as of one position, by which a replica without the log's beginning starts its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BasePiece {
    /// Opens a base. `epochs`: where each epoch known at `sync_point` began, oldest first.
    Start {
        sync_point: Position,
        epochs: Vec<Position>,
        in_sync: Vec<Member>,
    },
    Exchange(ExchangeSpec),
    Queue {
        id: QueueId,
        spec: QueueSpec,
    },
    Binding(Binding),
    /// What the last [`Record::Time`] said at the sync point. Before [`Self::TopologyEnd`].
    Time {
        wall_ms: u64,
    },
    /// Keys that a queue or an exchange remembers. Before [`Self::TopologyEnd`] those that are kept whatever becomes of their
    /// messages, oldest first; after it, in checkpoints only, those of the messages in the queue's next [`Self::Held`].
    Keys {
        of: KeyedBy,
        keys: Vec<HeldKey>,
    },
    /// The topology is whole; from here on live records and backlog may follow in any order.
    TopologyEnd,
    /// A virtual host other than the default one.
    Vhost {
        id: VhostId,
        spec: VhostSpec,
    },
    /// An exchange, a queue or a binding of such a virtual host, which came before.
    In {
        vhost: VhostId,
        piece: Box<BasePiece>,
    },
    /// A user, what one may do, a limit: as the change that makes it.
    Admin(Admin),
    /// The store of the primary whose epoch the sync point is in. In checkpoints only.
    Writer {
        store: StoreId,
    },
    /// One message of a queue's backlog. Those of one queue come newest first.
    Message {
        queue: QueueId,
        index: Index,
        delivery_count: u32,
        /// As [`HeldMessage`] has it.
        expires_ms: u64,
        message: Message,
    },
    QueueDone {
        queue: QueueId,
    },
    /// Messages of a queue's backlog by reference: what they say stands in the same store's segments. In checkpoints only,
    /// never on a stream. Those of one queue come newest first, over all its pieces.
    Held {
        queue: QueueId,
        messages: Vec<HeldMessage>,
    },
    /// Part of a large message's body, under its index. On a stream only, before the message: its bytes are put down and
    /// say nothing of the state.
    Part {
        index: Index,
        body: Body,
    },
    /// The parts of a message of the backlog, before its [`Self::Held`]; or, with `message` 0 and before
    /// [`Self::TopologyEnd`], those that no message had claimed at the sync point.
    Parts {
        message: Index,
        parts: Vec<PartRef>,
    },
    /// The base is whole. `floor`: no earlier index may be the end of this log, since the backlog shows effects up to it.
    End {
        floor: Index,
    },
}

/// By what a message is known again: 128 bits made from a header's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageKey(pub [u8; 16]);

/// A key that passed an exchange which drops what it has seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenKey {
    pub vhost: VhostId,
    pub exchange: ShortStr,
    pub key: MessageKey,
    /// When it is forgotten, in milliseconds since 1970; 0: once there are too many.
    pub expires_ms: u64,
}

/// What remembers keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyedBy {
    Queue(QueueId),
    Exchange(ShortStr),
}

/// A key that is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldKey {
    /// In a queue the message's index, in an exchange a number that counts up.
    pub place: u64,
    pub key: MessageKey,
    /// As [`SeenKey`] has it.
    pub expires_ms: u64,
}

/// A message that a queue holds, without the message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeldMessage {
    pub index: Index,
    /// How often it was delivered and came back.
    pub delivery_count: u32,
    /// What it weighs: body and properties, in bytes.
    pub bytes: u32,
    /// Its place in a queue with priorities; 0 in others.
    pub priority: u8,
    /// When it leaves this queue by itself: milliseconds since 1970. 0: never.
    pub expires_ms: u64,
}

impl HeldMessage {
    /// Of a message that stays and has no priority nothing more is written.
    fn is_plain(&self) -> bool {
        self.priority == 0 && self.expires_ms == 0
    }
}

/// Part of a large message's body, by reference: it was written as a record of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PartRef {
    /// Of the record that has it.
    pub index: Index,
    /// Its length.
    pub bytes: u32,
}

/// What a publisher handed over, unchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub exchange: ShortStr,
    pub routing_key: ShortStr,
    /// The content header's property flags and list, as received and checked.
    pub properties: Bytes,
    /// Delivery mode 2 on at least one durable queue.
    pub persistent: bool,
    /// Of a large message: the parts of its body that come before `body`, in order, never an empty list.
    pub parts: Option<Arc<[PartRef]>>,
    pub body: Body,
}

impl Message {
    /// Of the whole body, in bytes.
    pub fn body_bytes(&self) -> u64 {
        let parts = self.parts.iter().flat_map(|parts| parts.iter());
        parts.map(|part| u64::from(part.bytes)).sum::<u64>() + self.body.len() as u64
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExchangeSpec {
    pub name: ShortStr,
    pub kind: ExchangeKind,
    pub durable: bool,
    pub auto_delete: bool,
    pub internal: bool,
    pub replicate: Replicate,
    /// It drops messages that it has seen. Said by the record itself, since replicas of earlier versions kept the arguments
    /// that ask for it and did nothing.
    pub deduplicates: bool,
    /// An encoded AMQP table, without its length.
    pub arguments: Bytes,
}

/// How much of a queue or exchange the backups have. It is decided when the object is declared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Replicate {
    /// All of it.
    #[default]
    All,
    /// Of a queue: that it is there, and its bindings. Another store's primary has it empty. Of an exchange: all.
    Configuration,
    /// Nothing that lasts: another store's primary deletes it.
    Nothing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExchangeKind {
    Direct,
    Fanout,
    Topic,
    Headers,
    /// A fanout that drops messages which it has seen.
    MessageDeduplication,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueSpec {
    pub name: ShortStr,
    pub durable: bool,
    /// Owned by one connection of the primary that declared it; a new primary deletes it.
    pub exclusive: bool,
    pub auto_delete: bool,
    pub replicate: Replicate,
    /// As an exchange has it.
    pub deduplicates: bool,
    /// An encoded AMQP table, without its length.
    pub arguments: Bytes,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Binding {
    pub source: ShortStr,
    pub destination: Destination,
    pub routing_key: ShortStr,
    /// An encoded AMQP table, without its length.
    pub arguments: Bytes,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Destination {
    Queue(QueueId),
    Exchange(ShortStr),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    #[error("a record ends early: {needed} bytes needed, {left} left")]
    Short { needed: usize, left: usize },
    #[error("a record has {bytes} bytes after its end")]
    LeftOver { bytes: usize },
    #[error("a record kind {tag} that this version does not know; a newer version wrote it")]
    UnknownTag { tag: u8 },
    #[error("a record's {what} is {value}")]
    Malformed { what: &'static str, value: u64 },
}

impl Record {
    pub(crate) const EPOCH_START: u8 = 1;
    pub(crate) const IN_SYNC_SET: u8 = 2;
    pub(crate) const PUBLISH: u8 = 9;
    pub(crate) const PART: u8 = 13;
    const DISCARD: u8 = 14;
    pub(crate) const PUBLISH_IN_PARTS: u8 = 15;
    pub(crate) const STAGED: u8 = 16;
    pub(crate) const STAGED_IN_PARTS: u8 = 17;
    const TRANSACTION: u8 = 18;
    /// From here up to [`Self::LAST_HERE`]: those of which a follower's log has something else.
    const FIRST_HERE: u8 = Self::PUBLISH_HERE;
    pub(crate) const PUBLISH_HERE: u8 = 19;
    pub(crate) const PUBLISH_HERE_IN_PARTS: u8 = 20;
    pub(crate) const STAGED_HERE: u8 = 21;
    pub(crate) const STAGED_HERE_IN_PARTS: u8 = 22;
    const DEQUEUE_HERE: u8 = 23;
    const REQUEUE_HERE: u8 = 24;
    const PURGE_HERE: u8 = 25;
    const LAST_HERE: u8 = Self::PURGE_HERE;
    const WITHHELD: u8 = 26;
    /// With how much of it is replicated, where that is not all.
    const QUEUE_DECLARE_AS: u8 = 27;
    const EXCHANGE_DECLARE_AS: u8 = 28;
    const SCRUB: u8 = 29;
    const TIME: u8 = 30;

    const IN_VHOST: u8 = 42;

    /// Of what drops duplicates, with how much of it is replicated.
    const QUEUE_DECLARE_DEDUPLICATING: u8 = 70;
    const EXCHANGE_DECLARE_DEDUPLICATING: u8 = 71;
    const SEEN: u8 = 72;

    /// A record of this tag may stand in a [`Self::In`].
    const fn is_of_a_vhost(tag: u8) -> bool {
        matches!(
            tag,
            3 | 4
                | 5
                | 7
                | 8
                | Self::QUEUE_DECLARE_AS
                | Self::EXCHANGE_DECLARE_AS
                | Self::QUEUE_DECLARE_DEDUPLICATING
                | Self::EXCHANGE_DECLARE_DEDUPLICATING
        )
    }

    /// Itself, or what it changes in that virtual host.
    pub fn in_vhost(&self) -> (VhostId, &Self) {
        match self {
            Self::In { vhost, change } => (*vhost, change),
            record => (VhostId::DEFAULT, record),
        }
    }

    /// The change in that virtual host, which is one of the kinds that [`Self::In`] names.
    #[must_use]
    pub fn within(self, vhost: VhostId) -> Self {
        match vhost {
            VhostId::DEFAULT => self,
            vhost => Self::In { vhost, change: Box::new(self) },
        }
    }

    /// Whether [`Self::for_followers`] has something to say of a record with this tag.
    pub(crate) fn is_here(tag: u8) -> bool {
        (Self::FIRST_HERE..=Self::LAST_HERE).contains(&tag)
    }
    #[cfg(feature = "made-up-version")]
    pub(crate) const MADE_UP: u8 = 255;

    /// Appends the meta part.
    pub fn encode_meta(&self, out: &mut BytesMut) {
        let w = &mut Writer(out);
        match self {
            Self::EpochStart { primary, in_sync } => _ = w.u8(Self::EPOCH_START).identity(primary).members(in_sync),
            Self::InSyncSet { members } => _ = w.u8(Self::IN_SYNC_SET).members(members),
            Self::ExchangeDeclare(spec) => {
                write_exchange(w, [3, Self::EXCHANGE_DECLARE_AS, Self::EXCHANGE_DECLARE_DEDUPLICATING], spec);
            }
            Self::ExchangeDelete { name } => _ = w.u8(4).short(name.as_bytes()),
            Self::QueueDeclare(spec) => {
                write_queue(w, [5, Self::QUEUE_DECLARE_AS, Self::QUEUE_DECLARE_DEDUPLICATING], None, spec);
            }
            Self::QueueDelete { queue } => _ = w.u8(6).u64(queue.0.0),
            Self::Bind(binding) => write_binding(w.u8(7), binding),
            Self::Unbind(binding) => write_binding(w.u8(8), binding),
            Self::Publish { targets, message } => {
                w.u8(if message.parts.is_some() { Self::PUBLISH_IN_PARTS } else { Self::PUBLISH });
                w.queues(targets);
                write_message(w, message);
            }
            Self::Staged { targets, message } => {
                w.u8(if message.parts.is_some() { Self::STAGED_IN_PARTS } else { Self::STAGED });
                w.queues(targets);
                write_message(w, message);
            }
            Self::PublishHere { targets, here, message } => {
                w.u8(if message.parts.is_some() { Self::PUBLISH_HERE_IN_PARTS } else { Self::PUBLISH_HERE });
                w.queues(targets).queues(here);
                write_message(w, message);
            }
            Self::StagedHere { targets, here, message } => {
                w.u8(if message.parts.is_some() { Self::STAGED_HERE_IN_PARTS } else { Self::STAGED_HERE });
                w.queues(targets).queues(here);
                write_message(w, message);
            }
            Self::DequeueHere { queue, messages } => _ = w.u8(Self::DEQUEUE_HERE).u64(queue.0.0).indexes(messages),
            Self::RequeueHere { queue, messages } => _ = w.u8(Self::REQUEUE_HERE).u64(queue.0.0).indexes(messages),
            Self::PurgeHere { queue, up_to, except } => {
                w.u8(Self::PURGE_HERE).u64(queue.0.0).u64(up_to.0).indexes(except);
            }
            Self::Withheld => _ = w.u8(Self::WITHHELD),
            Self::Transaction { staged, settled } => {
                w.u8(Self::TRANSACTION).u32(*staged).list(settled, |w, settled| {
                    w.u64(settled.queue.0.0).indexes(&settled.dequeued).indexes(&settled.requeued);
                });
            }
            Self::Part { .. } => _ = w.u8(Self::PART),
            Self::Discard { parts } => _ = w.u8(Self::DISCARD).indexes(parts),
            Self::Dequeue { queue, messages } => _ = w.u8(10).u64(queue.0.0).indexes(messages),
            Self::Requeue { queue, messages } => _ = w.u8(11).u64(queue.0.0).indexes(messages),
            Self::Purge { queue, up_to, except } => _ = w.u8(12).u64(queue.0.0).u64(up_to.0).indexes(except),
            Self::Scrub { digests } => write_digests(w.u8(Self::SCRUB), digests),
            Self::Time { wall_ms } => _ = w.u8(Self::TIME).u64(*wall_ms),
            Self::Seen { keys, alone } => write_seen(w.u8(Self::SEEN).bool(*alone), keys),
            Self::In { vhost, change } => change.encode_meta(w.u8(Self::IN_VHOST).vhost(*vhost).0),
            Self::Admin(change) => change.write(w),
            #[cfg(feature = "made-up-version")]
            Self::MadeUp { epoch } => _ = w.u8(Self::MADE_UP).u64(epoch.0),
        }
    }

    /// The part that is not copied: a message's body.
    pub fn body(&self) -> Body {
        match self {
            Self::Publish { message, .. }
            | Self::PublishHere { message, .. }
            | Self::Staged { message, .. }
            | Self::StagedHere { message, .. } => message.body.clone(),
            Self::Part { body } => body.clone(),
            _ => Body::default(),
        }
    }

    /// `meta` and `body` as they stand in a frame whose checksum was right.
    pub fn decode(meta: Bytes, body: Body) -> Result<Self, RecordError> {
        let mut r = Reader(meta);
        let record = match r.u8()? {
            Self::EPOCH_START => Self::EpochStart { primary: r.identity()?, in_sync: r.members()? },
            Self::IN_SYNC_SET => Self::InSyncSet { members: r.members()? },
            3 => Self::ExchangeDeclare(read_exchange(&mut r, Replicate::All, false)?),
            Self::EXCHANGE_DECLARE_AS => {
                let replicate = read_replicate(&mut r)?;
                Self::ExchangeDeclare(read_exchange(&mut r, replicate, false)?)
            }
            Self::EXCHANGE_DECLARE_DEDUPLICATING => {
                let replicate = read_any_replicate(&mut r)?;
                Self::ExchangeDeclare(read_exchange(&mut r, replicate, true)?)
            }
            4 => Self::ExchangeDelete { name: r.short()? },
            5 => Self::QueueDeclare(read_queue(&mut r, Replicate::All, false)?),
            Self::QUEUE_DECLARE_AS => {
                let replicate = read_replicate(&mut r)?;
                Self::QueueDeclare(read_queue(&mut r, replicate, false)?)
            }
            Self::QUEUE_DECLARE_DEDUPLICATING => {
                let replicate = read_any_replicate(&mut r)?;
                Self::QueueDeclare(read_queue(&mut r, replicate, true)?)
            }
            6 => Self::QueueDelete { queue: r.queue()? },
            7 => Self::Bind(read_binding(&mut r)?),
            8 => Self::Unbind(read_binding(&mut r)?),
            Self::PUBLISH => Self::Publish { targets: r.queues()?, message: read_message(&mut r, false, body)? },
            Self::PUBLISH_IN_PARTS => {
                Self::Publish { targets: r.queues()?, message: read_message(&mut r, true, body)? }
            }
            tag @ (Self::STAGED | Self::STAGED_IN_PARTS) => Self::Staged {
                targets: r.queues()?,
                message: read_message(&mut r, tag == Self::STAGED_IN_PARTS, body)?,
            },
            tag @ (Self::PUBLISH_HERE | Self::PUBLISH_HERE_IN_PARTS) => {
                let (targets, here) = (r.queues()?, r.queues()?);
                let message = read_message(&mut r, tag == Self::PUBLISH_HERE_IN_PARTS, body)?;
                Self::PublishHere { targets, here, message }
            }
            tag @ (Self::STAGED_HERE | Self::STAGED_HERE_IN_PARTS) => {
                let (targets, here) = (r.queues()?, r.queues()?);
                let message = read_message(&mut r, tag == Self::STAGED_HERE_IN_PARTS, body)?;
                Self::StagedHere { targets, here, message }
            }
            Self::DEQUEUE_HERE => Self::DequeueHere { queue: r.queue()?, messages: r.indexes()? },
            Self::REQUEUE_HERE => Self::RequeueHere { queue: r.queue()?, messages: r.indexes()? },
            Self::PURGE_HERE => Self::PurgeHere { queue: r.queue()?, up_to: r.index()?, except: r.indexes()? },
            Self::WITHHELD => Self::Withheld,
            Self::TRANSACTION => Self::Transaction { staged: r.u32()?, settled: read_settled(&mut r)? },
            Self::PART => Self::Part { body },
            Self::DISCARD => Self::Discard { parts: r.indexes()? },
            10 => Self::Dequeue { queue: r.queue()?, messages: r.indexes()? },
            11 => Self::Requeue { queue: r.queue()?, messages: r.indexes()? },
            12 => Self::Purge { queue: r.queue()?, up_to: r.index()?, except: r.indexes()? },
            Self::SCRUB => Self::Scrub { digests: read_digests(&mut r)? },
            Self::TIME => Self::Time { wall_ms: r.u64()? },
            Self::SEEN => {
                let alone = r.bool()?;
                Self::Seen { keys: read_seen(&mut r)?, alone }
            }
            Self::IN_VHOST => {
                let vhost = r.other_vhost(Self::is_of_a_vhost)?;
                return Ok(Self::In { vhost, change: Box::new(Self::decode(r.0, body)?) });
            }
            tag if Admin::is_tag(tag) => Self::Admin(Admin::read(tag, &mut r)?),
            #[cfg(feature = "made-up-version")]
            Self::MADE_UP => Self::MadeUp { epoch: Epoch(r.u64()?) },
            tag => return Err(RecordError::UnknownTag { tag }),
        };
        r.finish()?;
        Ok(record)
    }
}

impl BasePiece {
    pub(crate) const START: u8 = 1;
    pub(crate) const MESSAGE: u8 = 6;
    pub(crate) const PART: u8 = 10;
    pub(crate) const MESSAGE_IN_PARTS: u8 = 12;
    const TIME: u8 = 16;
    const HELD_WITH_MORE: u8 = 17;
    pub(crate) const EXPIRING_MESSAGE: u8 = 18;
    pub(crate) const EXPIRING_MESSAGE_IN_PARTS: u8 = 19;
    const VHOST: u8 = 20;
    const IN_VHOST: u8 = 21;
    const ADMIN: u8 = 22;
    const DEDUPLICATING_EXCHANGE: u8 = 23;
    const DEDUPLICATING_QUEUE: u8 = 24;
    const KEYS: u8 = 25;

    /// A piece of this tag may stand in a [`Self::In`].
    const fn is_of_a_vhost(tag: u8) -> bool {
        matches!(tag, 2 | 3 | 4 | 13 | 14 | Self::DEDUPLICATING_EXCHANGE | Self::DEDUPLICATING_QUEUE | Self::KEYS)
    }

    /// Itself, or what it says of that virtual host.
    pub fn in_vhost(self) -> (VhostId, Self) {
        match self {
            Self::In { vhost, piece } => (vhost, *piece),
            piece => (VhostId::DEFAULT, piece),
        }
    }

    /// The piece of that virtual host, which is one of the kinds that [`Self::In`] names.
    #[must_use]
    pub fn within(self, vhost: VhostId) -> Self {
        match vhost {
            VhostId::DEFAULT => self,
            vhost => Self::In { vhost, piece: Box::new(self) },
        }
    }

    /// Appends the meta part.
    pub fn encode_meta(&self, out: &mut BytesMut) {
        let w = &mut Writer(out);
        match self {
            Self::Start { sync_point, epochs, in_sync } => {
                w.u8(Self::START)
                    .position(*sync_point)
                    .list(epochs, |w, start| _ = w.position(*start))
                    .members(in_sync);
            }
            Self::Exchange(spec) => write_exchange(w, [2, 13, Self::DEDUPLICATING_EXCHANGE], spec),
            Self::Queue { id, spec } => write_queue(w, [3, 14, Self::DEDUPLICATING_QUEUE], Some(*id), spec),
            Self::Vhost { id, spec } => write_vhost(w.u8(Self::VHOST).vhost(*id), spec),
            Self::In { vhost, piece } => piece.encode_meta(w.u8(Self::IN_VHOST).vhost(*vhost).0),
            Self::Admin(change) => change.write(w.u8(Self::ADMIN)),
            Self::Writer { store } => _ = w.u8(15).u128(store.0),
            Self::Binding(binding) => write_binding(w.u8(4), binding),
            Self::TopologyEnd => _ = w.u8(5),
            Self::Keys { of, keys } => write_keys(w.u8(Self::KEYS), of, keys),
            Self::Message { queue, index, delivery_count, expires_ms, message } => {
                w.u8(match (*expires_ms > 0, message.parts.is_some()) {
                    (false, false) => Self::MESSAGE,
                    (false, true) => Self::MESSAGE_IN_PARTS,
                    (true, false) => Self::EXPIRING_MESSAGE,
                    (true, true) => Self::EXPIRING_MESSAGE_IN_PARTS,
                });
                w.u64(queue.0.0).u64(index.0).u32(*delivery_count);
                if *expires_ms > 0 {
                    w.u64(*expires_ms);
                }
                write_message(w, message);
            }
            Self::Time { wall_ms } => _ = w.u8(Self::TIME).u64(*wall_ms),
            Self::QueueDone { queue } => _ = w.u8(7).u64(queue.0.0),
            Self::End { floor } => _ = w.u8(8).u64(floor.0),
            Self::Held { queue, messages } => {
                let plain = messages.iter().all(HeldMessage::is_plain);
                write_held(w.u8(if plain { 9 } else { Self::HELD_WITH_MORE }).u64(queue.0.0), messages, plain);
            }
            Self::Part { index, .. } => _ = w.u8(Self::PART).u64(index.0),
            Self::Parts { message, parts } => write_parts(w.u8(11).u64(message.0), parts),
        }
    }

    /// The part that is not copied: a message's body.
    pub fn body(&self) -> Body {
        match self {
            Self::Message { message, .. } => message.body.clone(),
            Self::Part { body, .. } => body.clone(),
            _ => Body::default(),
        }
    }

    /// `meta` and `body` as they stand in a frame whose checksum was right.
    pub fn decode(meta: Bytes, body: Body) -> Result<Self, RecordError> {
        let mut r = Reader(meta);
        let piece = match r.u8()? {
            Self::START => {
                let sync_point = r.position()?;
                let epochs = (0..r.count(16)?).map(|_| r.position()).collect::<Result<_, _>>()?;
                Self::Start { sync_point, epochs, in_sync: r.members()? }
            }
            2 => Self::Exchange(read_exchange(&mut r, Replicate::All, false)?),
            13 => {
                let replicate = read_replicate(&mut r)?;
                Self::Exchange(read_exchange(&mut r, replicate, false)?)
            }
            Self::DEDUPLICATING_EXCHANGE => {
                let replicate = read_any_replicate(&mut r)?;
                Self::Exchange(read_exchange(&mut r, replicate, true)?)
            }
            3 => Self::Queue { id: r.queue()?, spec: read_queue(&mut r, Replicate::All, false)? },
            14 => {
                let replicate = read_replicate(&mut r)?;
                Self::Queue { id: r.queue()?, spec: read_queue(&mut r, replicate, false)? }
            }
            Self::DEDUPLICATING_QUEUE => {
                let replicate = read_any_replicate(&mut r)?;
                Self::Queue { id: r.queue()?, spec: read_queue(&mut r, replicate, true)? }
            }
            Self::KEYS => {
                let (of, keys) = read_keys(&mut r)?;
                Self::Keys { of, keys }
            }
            Self::VHOST => Self::Vhost { id: r.vhost()?, spec: read_vhost(&mut r)? },
            Self::IN_VHOST => {
                let vhost = r.other_vhost(Self::is_of_a_vhost)?;
                return Ok(Self::In { vhost, piece: Box::new(Self::decode(r.0, body)?) });
            }
            Self::ADMIN => {
                let tag = r.u8()?;
                Self::Admin(Admin::read(tag, &mut r)?)
            }
            15 => Self::Writer { store: StoreId(r.u128()?) },
            4 => Self::Binding(read_binding(&mut r)?),
            5 => Self::TopologyEnd,
            tag @ (Self::MESSAGE
            | Self::MESSAGE_IN_PARTS
            | Self::EXPIRING_MESSAGE
            | Self::EXPIRING_MESSAGE_IN_PARTS) => Self::Message {
                queue: r.queue()?,
                index: r.index()?,
                delivery_count: r.u32()?,
                expires_ms: match tag {
                    Self::EXPIRING_MESSAGE | Self::EXPIRING_MESSAGE_IN_PARTS => r.u64()?,
                    _ => 0,
                },
                message: {
                    let in_parts = matches!(tag, Self::MESSAGE_IN_PARTS | Self::EXPIRING_MESSAGE_IN_PARTS);
                    read_message(&mut r, in_parts, body)?
                },
            },
            Self::TIME => Self::Time { wall_ms: r.u64()? },
            7 => Self::QueueDone { queue: r.queue()? },
            8 => Self::End { floor: r.index()? },
            9 => Self::Held { queue: r.queue()?, messages: read_held(&mut r, true)? },
            Self::HELD_WITH_MORE => Self::Held { queue: r.queue()?, messages: read_held(&mut r, false)? },
            Self::PART => Self::Part { index: r.index()?, body },
            11 => Self::Parts { message: r.index()?, parts: read_parts(&mut r)? },
            tag => return Err(RecordError::UnknownTag { tag }),
        };
        r.finish()?;
        Ok(piece)
    }
}

impl ExchangeKind {
    pub fn from_name(name: &[u8]) -> Option<Self> {
        match name {
            b"direct" => Some(Self::Direct),
            b"fanout" => Some(Self::Fanout),
            b"topic" => Some(Self::Topic),
            b"headers" => Some(Self::Headers),
            b"x-message-deduplication" => Some(Self::MessageDeduplication),
            _ => None,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Fanout => "fanout",
            Self::Topic => "topic",
            Self::Headers => "headers",
            Self::MessageDeduplication => "x-message-deduplication",
        }
    }
}

/// The epoch table's type: a position that is the first of its epoch.
impl Position {
    pub fn new(epoch: Epoch, index: Index) -> Self {
        Self { epoch, index }
    }
}
