//! What a connection asks of the core. The shell turns AMQP methods into these, so that the core knows no wire.

use bytes::Bytes;
pub use understudy_protocol::{ChannelId, DeliveryTag};
use understudy_record::{Body, ShortStr};

/// One client connection of this primary, numbered by the shell, never reused while the process lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// In the order the client sent them. `no_wait`: the client wants no reply (an error still closes the channel).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    ChannelOpen,
    /// The client closed the channel; the shell has answered close-ok.
    ChannelClose,
    ExchangeDeclare {
        name: ShortStr,
        kind: ShortStr,
        passive: bool,
        durable: bool,
        auto_delete: bool,
        internal: bool,
        no_wait: bool,
        /// An encoded AMQP table, without its length.
        arguments: Bytes,
    },
    ExchangeDelete {
        name: ShortStr,
        if_unused: bool,
        no_wait: bool,
    },
    ExchangeBind {
        destination: ShortStr,
        source: ShortStr,
        routing_key: ShortStr,
        no_wait: bool,
        arguments: Bytes,
    },
    ExchangeUnbind {
        destination: ShortStr,
        source: ShortStr,
        routing_key: ShortStr,
        no_wait: bool,
        arguments: Bytes,
    },
    QueueDeclare {
        name: ShortStr,
        passive: bool,
        durable: bool,
        exclusive: bool,
        auto_delete: bool,
        no_wait: bool,
        arguments: Bytes,
    },
    QueueBind {
        queue: ShortStr,
        exchange: ShortStr,
        routing_key: ShortStr,
        no_wait: bool,
        arguments: Bytes,
    },
    QueueUnbind {
        queue: ShortStr,
        exchange: ShortStr,
        routing_key: ShortStr,
        arguments: Bytes,
    },
    QueuePurge {
        queue: ShortStr,
        no_wait: bool,
    },
    QueueDelete {
        queue: ShortStr,
        if_unused: bool,
        if_empty: bool,
        no_wait: bool,
    },
    BasicQos {
        prefetch_size: u32,
        prefetch_count: u16,
        global: bool,
    },
    BasicConsume {
        queue: ShortStr,
        consumer_tag: ShortStr,
        no_local: bool,
        no_ack: bool,
        exclusive: bool,
        no_wait: bool,
        arguments: Bytes,
    },
    BasicCancel {
        consumer_tag: ShortStr,
        no_wait: bool,
    },
    /// Part of a large message's body, ahead of the [`Self::BasicPublish`] that has the rest. Written at once.
    PublishPart {
        body: Body,
    },
    BasicPublish(Publish),
    BasicGet {
        queue: ShortStr,
        no_ack: bool,
    },
    BasicAck {
        delivery_tag: DeliveryTag,
        multiple: bool,
    },
    BasicNack {
        delivery_tag: DeliveryTag,
        multiple: bool,
        requeue: bool,
    },
    BasicReject {
        delivery_tag: DeliveryTag,
        requeue: bool,
    },
    BasicRecover {
        requeue: bool,
    },
    /// The same without an answer.
    BasicRecoverAsync {
        requeue: bool,
    },
    ConfirmSelect {
        no_wait: bool,
    },
    TxSelect,
    TxCommit,
    TxRollback,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publish {
    pub exchange: ShortStr,
    pub routing_key: ShortStr,
    pub mandatory: bool,
    pub immediate: bool,
    /// The content header's property flags and list, already checked to be well-formed.
    pub properties: Bytes,
    /// What follows the parts that came before, if some did.
    pub body: Body,
}

/// What the core must know of a connection besides its commands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionInfo {
    pub user: String,
    pub account: Account,
    /// The virtual host's name.
    pub vhost: ShortStr,
    /// The client declared `consumer_cancel_notify`.
    pub consumer_cancel_notify: bool,
}

/// Where the user of a connection is known from, and so what it may do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Account {
    /// The shell knows it, the log does not: it may do everything.
    #[default]
    Elsewhere,
    /// `guest`, as long as no record names it.
    OpenGuest,
    /// A record.
    Recorded,
}

impl Default for ConnectionInfo {
    /// A nameless user that may do everything, in the default virtual host.
    fn default() -> Self {
        let vhost = ShortStr::from_static(crate::DEFAULT_VHOST);
        Self { user: String::new(), account: Account::Elsewhere, vhost, consumer_cancel_notify: false }
    }
}

impl ConnectionInfo {
    pub(crate) fn user_name(&self) -> Option<ShortStr> {
        ShortStr::try_from(self.user.as_str()).ok()
    }

    pub(crate) fn is_same_user(&self, other: &Self) -> bool {
        let elsewhere = |info: &Self| info.account == Account::Elsewhere;
        self.user == other.user && elsewhere(self) == elsewhere(other)
    }
}
