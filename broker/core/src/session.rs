//! What the primary knows of its clients: connections, channels, consumers. None of it is replicated; all of it dies with
//! the primary.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use understudy_record::{Index, QueueId, ShortStr, VhostId};

use crate::access::Access;
use crate::ack_timeout::DeliveryTimes;
use crate::command::{ChannelId, ConnectionId, ConnectionInfo, DeliveryTag};
use crate::confirms::Confirms;
use crate::direct_reply::ReplyConsumer;
use crate::effect::EffectKind;
use crate::slots::Slots;
use crate::transaction::Transaction;

/// A consumer, numbered by the core, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ConsumerId(pub(crate) u64);

#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) info: ConnectionInfo,
    pub(crate) vhost: VhostId,
    pub(crate) access: Access,
    /// The client reads what it is sent; deliveries pause while it does not.
    pub(crate) writable: bool,
    /// It broke the protocol: what it still sends is ignored.
    pub(crate) failed: bool,
    pub(crate) channels: BTreeMap<ChannelId, Channel>,
    /// Queues that go when it goes.
    pub(crate) exclusive_queues: BTreeSet<QueueId>,
}

impl Connection {
    pub(crate) fn new(info: ConnectionInfo, vhost: VhostId, access: Access) -> Self {
        let (channels, exclusive_queues) = (BTreeMap::new(), BTreeSet::new());
        Self { info, vhost, access, writable: true, failed: false, channels, exclusive_queues }
    }
}

#[derive(Debug)]
pub(crate) struct Channel {
    next_tag: u64,
    /// Delivered and not yet settled, by delivery tag.
    pub(crate) unacked: Slots<Unacked>,
    pub(crate) delivery_times: DeliveryTimes,
    /// Of those, the ones that count against the channel's own limit: not what `basic.get` took.
    pub(crate) consumer_unacked: usize,
    pub(crate) consumers: BTreeMap<ShortStr, ConsumerId>,
    /// Of the pseudo-queue, which is none of those.
    pub(crate) reply_consumer: Option<Box<ReplyConsumer>>,
    /// Who had the last delivery: the others are ahead of it when the channel's limit lets go.
    pub(crate) last_served: ConsumerId,
    /// `basic.qos` without `global`: the limit of consumers yet to come. 0: none.
    pub(crate) consumer_prefetch: u16,
    /// `basic.qos` with `global`: all consumers of the channel together. 0: none.
    pub(crate) channel_prefetch: u16,
    /// What an empty queue name means.
    pub(crate) last_queue: ShortStr,
    pub(crate) confirms: Option<Confirms>,
    /// In transactional mode: what has been said since the last commit. Never beside `confirms`.
    pub(crate) transaction: Option<Box<Transaction>>,
    /// In order; the first waits for its commit.
    pub(crate) replies: VecDeque<Reply>,
    /// Its close waits behind earlier replies; what the client still sends is ignored.
    pub(crate) closing: bool,
}

impl Default for Channel {
    fn default() -> Self {
        Self {
            next_tag: 1,
            unacked: Slots::default(),
            delivery_times: DeliveryTimes::default(),
            consumer_unacked: 0,
            consumers: BTreeMap::new(),
            reply_consumer: None,
            last_served: ConsumerId(0),
            consumer_prefetch: 0,
            channel_prefetch: 0,
            last_queue: ShortStr::EMPTY,
            confirms: None,
            transaction: None,
            replies: VecDeque::new(),
            closing: false,
        }
    }
}

impl Channel {
    pub(crate) fn take_tag(&mut self) -> DeliveryTag {
        let tag = DeliveryTag(self.next_tag);
        self.next_tag += 1;
        tag
    }

    /// All consumers together have reached the channel's own limit.
    pub(crate) fn is_at_limit(&self) -> bool {
        let shared = self.channel_prefetch > 0 && self.consumer_unacked >= usize::from(self.channel_prefetch);
        shared || self.is_full()
    }

    /// No more deliveries can be kept in mind.
    pub(crate) fn is_full(&self) -> bool {
        let in_transaction = self.transaction.as_ref().map_or(0, |transaction| transaction.settled.len());
        self.unacked.len() + in_transaction >= crate::MAX_UNACKED_PER_CHANNEL
    }
}

/// A delivery that waits for its acknowledgement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unacked {
    pub(crate) queue: QueueId,
    pub(crate) index: Index,
    /// `None`: taken by `basic.get`.
    pub(crate) consumer: Option<ConsumerId>,
}

/// Something to say once `gate` is committed or, if `confirmable`, may be confirmed.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) gate: Index,
    pub(crate) confirmable: bool,
    pub(crate) answer: Answer,
    /// Deliveries to this consumer begin after this reply.
    pub(crate) start: Option<ConsumerId>,
}

#[derive(Debug)]
pub(crate) enum Answer {
    Known(EffectKind),
    /// A `basic.get` that took a message which has to be read back first.
    Loading(LoadingGet),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct LoadingGet {
    pub(crate) queue: QueueId,
    pub(crate) index: Index,
    /// The message leaves its queue with the answer.
    pub(crate) no_ack: bool,
    pub(crate) delivery_tag: DeliveryTag,
    pub(crate) redelivered: bool,
    pub(crate) delivery_count: u32,
    pub(crate) message_count: u32,
}

#[derive(Debug)]
pub(crate) struct Consumer {
    pub(crate) connection: ConnectionId,
    pub(crate) channel: ChannelId,
    pub(crate) tag: ShortStr,
    pub(crate) queue: QueueId,
    pub(crate) no_ack: bool,
    /// 0: no limit.
    pub(crate) prefetch: u16,
    /// `x-priority`: as long as it may take messages nobody below gets any.
    pub(crate) priority: i64,
    pub(crate) unacked: u32,
    pub(crate) turn: Turn,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Its consume-ok has not gone out yet.
    NotStarted,
    /// In its queue's list of consumers that take messages in turn.
    Active,
    /// It could not take the last message offered: a limit, a client that does not read, or a queue with a single active
    /// consumer, which is another one.
    Parked,
}

impl Consumer {
    pub(crate) fn is_at_limit(&self) -> bool {
        self.prefetch > 0 && self.unacked >= u32::from(self.prefetch)
    }
}
