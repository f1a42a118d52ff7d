//! What the core answers. Every effect that follows from a record has waited for that record's commit before it is here.

use std::sync::Arc;

use understudy_protocol::ReplyCode;
use understudy_record::{Index, Message, ShortStr};

use crate::command::{ChannelId, ConnectionId, DeliveryTag};
use crate::load::{Load, PartLoad};

/// To one connection, in the order it must be sent.
#[derive(Clone, Debug)]
pub struct Effect {
    pub connection: ConnectionId,
    pub channel: ChannelId,
    pub kind: EffectKind,
}

#[derive(Clone, Debug)]
pub enum EffectKind {
    ExchangeDeclareOk,
    ExchangeDeleteOk,
    ExchangeBindOk,
    ExchangeUnbindOk,
    QueueDeclareOk {
        name: ShortStr,
        message_count: u32,
        consumer_count: u32,
    },
    QueueBindOk,
    QueueUnbindOk,
    QueuePurgeOk {
        message_count: u32,
    },
    QueueDeleteOk {
        message_count: u32,
    },
    BasicQosOk,
    BasicConsumeOk {
        consumer_tag: ShortStr,
    },
    BasicCancelOk {
        consumer_tag: ShortStr,
    },
    /// The broker cancels: the queue is gone. Only to clients that declared `consumer_cancel_notify`.
    BasicCancel {
        consumer_tag: ShortStr,
    },
    BasicDeliver {
        consumer_tag: ShortStr,
        delivery_tag: DeliveryTag,
        redelivered: bool,
        /// How often the message came back to its queue, as the log has it.
        delivery_count: u32,
        message: Arc<Message>,
    },
    BasicGetOk {
        delivery_tag: DeliveryTag,
        redelivered: bool,
        /// As in a delivery.
        delivery_count: u32,
        message_count: u32,
        message: Arc<Message>,
    },
    BasicGetEmpty,
    /// A mandatory message that no queue took (312). Before that publish's ack.
    BasicReturn {
        code: ReplyCode,
        text: String,
        message: Arc<Message>,
    },
    BasicRecoverOk,
    ConfirmSelectOk,
    TxSelectOk,
    /// The transaction is committed, and may be confirmed as a publish may.
    TxCommitOk,
    TxRollbackOk,
    /// A publisher confirm: every publish of the channel up to `delivery_tag` if `multiple`.
    PublisherAck {
        delivery_tag: DeliveryTag,
        multiple: bool,
    },
    PublisherNack {
        delivery_tag: DeliveryTag,
        multiple: bool,
    },
    /// A soft error; the channel is gone from the core and its next command is a `ChannelOpen`.
    CloseChannel {
        error: AmqpError,
    },
    /// A hard error; the core has forgotten the connection's channels and ignores what it still sends.
    CloseConnection {
        error: AmqpError,
    },
}

/// Why a channel or connection is closed. `class` and `method` name the offending command, 0 if none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct AmqpError {
    pub code: ReplyCode,
    /// As RabbitMQ words it, starting with the code's name: `NOT_FOUND - no queue 'x' in vhost '/'`.
    pub text: String,
    pub class: u16,
    pub method: u16,
}

/// Where the core writes during one step. The shell drains it.
#[derive(Debug, Default)]
pub struct Outputs {
    /// New records in index order, already applied to the primary's own state.
    pub records: Vec<(Index, understudy_record::Record)>,
    pub effects: Vec<Effect>,
    /// Messages to be read back from the log. Each is answered by [`crate::Core::handle_loaded`].
    pub loads: Vec<Load>,
    /// Parts of large messages. Each is answered by [`crate::Core::handle_part_loaded`].
    pub part_loads: Vec<PartLoad>,
}
