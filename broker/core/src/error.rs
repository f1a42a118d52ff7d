//! Which mistake gets which reply code and which words: one constructor each, worded as RabbitMQ words it, since clients and
//! people search for those words. Whether a code closes the channel or the connection is [`ReplyCode::is_hard`]'s to say.

use std::time::Duration;

use understudy_protocol::{MethodId, ReplyCode};
use understudy_record::ShortStr;

use crate::command::{ChannelId, Command, DeliveryTag};
use crate::effect::AmqpError;

/// A command's refusal, before it is known which command.
#[derive(Debug)]
pub(crate) struct Failure {
    code: ReplyCode,
    cause: String,
}

impl Failure {
    fn new(code: ReplyCode, cause: impl Into<String>) -> Self {
        Self { code, cause: cause.into() }
    }

    pub(crate) fn text(&self) -> String {
        format!("{} - {}", self.code.name(), self.cause)
    }

    pub(crate) fn of(self, id: MethodId) -> AmqpError {
        AmqpError { text: self.text(), code: self.code, class: id.class, method: id.method }
    }
}

/// `vhost`, here and below: the virtual host's name.
pub(crate) fn queue(vhost: &ShortStr, name: &ShortStr) -> String {
    format!("queue '{name}' in vhost '{vhost}'")
}

pub(crate) fn exchange(vhost: &ShortStr, name: &ShortStr) -> String {
    format!("exchange '{name}' in vhost '{vhost}'")
}

pub(crate) fn no_queue(vhost: &ShortStr, name: &ShortStr) -> Failure {
    Failure::new(ReplyCode::NotFound, format!("no {}", queue(vhost, name)))
}

pub(crate) fn no_exchange(vhost: &ShortStr, name: &ShortStr) -> Failure {
    Failure::new(ReplyCode::NotFound, format!("no {}", exchange(vhost, name)))
}

pub(crate) fn access_refused(object: &str, user: &str) -> Failure {
    Failure::new(ReplyCode::AccessRefused, format!("access to {object} refused for user '{user}'"))
}

pub(crate) fn no_vhost(name: &ShortStr) -> Failure {
    Failure::new(ReplyCode::NotAllowed, format!("vhost {name} not found"))
}

/// `because`: with what comes before it.
pub(crate) fn vhost_refused(vhost: &ShortStr, user: &str, because: &str) -> Failure {
    Failure::new(ReplyCode::NotAllowed, format!("access to vhost '{vhost}' refused for user '{user}'{because}"))
}

pub(crate) fn too_many_connections(user: &str, limit: u64) -> Failure {
    let cause = format!("connection refused for user '{user}': user connection limit ({limit}) is reached");
    Failure::new(ReplyCode::NotAllowed, cause)
}

pub(crate) fn too_many_channels(user: &str, limit: u64) -> Failure {
    let cause =
        format!("number of channels opened for user '{user}' has reached the maximum allowed user limit of ({limit})");
    Failure::new(ReplyCode::NotAllowed, cause)
}

pub(crate) fn too_many_queues(vhost: &ShortStr, name: &ShortStr, limit: u64) -> Failure {
    precondition_failed(format!("cannot declare queue '{name}': queue limit in vhost '{vhost}' ({limit}) is reached"))
}

/// What the connection stands on is gone.
pub(crate) fn deleted(what: &str, name: &ShortStr) -> Failure {
    Failure::new(ReplyCode::ConnectionForced, format!("{what} '{name}' is deleted"))
}

pub(crate) fn no_previous_queue() -> Failure {
    Failure::new(ReplyCode::NotFound, "no previously declared queue")
}

pub(crate) fn precondition_failed(cause: impl Into<String>) -> Failure {
    Failure::new(ReplyCode::PreconditionFailed, cause)
}

pub(crate) fn in_use(object: String) -> Failure {
    precondition_failed(format!("{object} in use"))
}

pub(crate) fn not_empty(vhost: &ShortStr, name: &ShortStr) -> Failure {
    precondition_failed(format!("{} not empty", queue(vhost, name)))
}

pub(crate) fn unknown_delivery_tag(tag: DeliveryTag) -> Failure {
    precondition_failed(format!("unknown delivery tag {}", tag.0))
}

pub(crate) fn acknowledgement_timed_out(channel: ChannelId, timeout: Duration) -> Failure {
    precondition_failed(format!(
        "delivery acknowledgement on channel {} timed out. Timeout value used: {} ms. This timeout value can be configured, \
         see consumers doc guide to learn more",
        channel.0,
        timeout.as_millis()
    ))
}

pub(crate) fn locked(vhost: &ShortStr, name: &ShortStr) -> Failure {
    let cause = format!(
        "cannot obtain exclusive access to locked {}. It could be originally declared on another connection or the \
         exclusive property value does not match that of the original declaration.",
        queue(vhost, name)
    );
    Failure::new(ReplyCode::ResourceLocked, cause)
}

pub(crate) fn in_exclusive_use(vhost: &ShortStr, name: &ShortStr) -> Failure {
    Failure::new(ReplyCode::AccessRefused, format!("{} in exclusive use", queue(vhost, name)))
}

/// `kind`: `queue` or `exchange`.
pub(crate) fn reserved_name(kind: &str, name: &ShortStr) -> Failure {
    Failure::new(ReplyCode::AccessRefused, format!("{kind} name '{name}' contains reserved prefix 'amq.*'"))
}

pub(crate) fn default_exchange() -> Failure {
    Failure::new(ReplyCode::AccessRefused, "operation not permitted on the default exchange")
}

pub(crate) fn system_exchange(vhost: &ShortStr, name: &ShortStr) -> Failure {
    Failure::new(ReplyCode::AccessRefused, format!("deletion of system {} not allowed", exchange(vhost, name)))
}

pub(crate) fn internal_exchange(vhost: &ShortStr, name: &ShortStr) -> Failure {
    Failure::new(ReplyCode::AccessRefused, format!("cannot publish to internal {}", exchange(vhost, name)))
}

pub(crate) fn unknown_exchange_type(kind: &ShortStr) -> Failure {
    Failure::new(ReplyCode::CommandInvalid, format!("unknown exchange type '{kind}'"))
}

pub(crate) fn malformed_table() -> Failure {
    Failure::new(ReplyCode::SyntaxError, "malformed argument table")
}

pub(crate) fn consumer_tag_in_use(tag: &ShortStr) -> Failure {
    Failure::new(ReplyCode::NotAllowed, format!("attempt to reuse consumer tag '{tag}'"))
}

pub(crate) fn too_many_consumers(limit: usize) -> Failure {
    Failure::new(ReplyCode::NotAllowed, format!("reached maximum ({limit}) of consumers per channel"))
}

pub(crate) fn transaction_too_large(messages: usize, bytes: u64) -> Failure {
    precondition_failed(format!(
        "transaction too large: at most {messages} messages and {} MiB can wait for one commit; commit more often",
        bytes >> 20
    ))
}

pub(crate) fn too_many_transactions(bytes: u64) -> Failure {
    precondition_failed(format!(
        "the transactions of all channels hold {} MiB that wait for their commits, the most there may be; try again, and \
         commit more often",
        bytes >> 20
    ))
}

pub(crate) fn not_implemented(cause: impl Into<String>) -> Failure {
    Failure::new(ReplyCode::NotImplemented, cause)
}

/// The numbers of the method that `command` came from.
pub(crate) fn method_id(command: &Command) -> MethodId {
    let (class, method) = match command {
        Command::ChannelOpen => (20, 10),
        Command::ChannelClose => (20, 40),
        Command::ExchangeDeclare { .. } => (40, 10),
        Command::ExchangeDelete { .. } => (40, 20),
        Command::ExchangeBind { .. } => (40, 30),
        Command::ExchangeUnbind { .. } => (40, 40),
        Command::QueueDeclare { .. } => (50, 10),
        Command::QueueBind { .. } => (50, 20),
        Command::QueuePurge { .. } => (50, 30),
        Command::QueueDelete { .. } => (50, 40),
        Command::QueueUnbind { .. } => (50, 50),
        Command::BasicQos { .. } => (60, 10),
        Command::BasicConsume { .. } => (60, 20),
        Command::BasicCancel { .. } => (60, 30),
        Command::PublishPart { .. } | Command::BasicPublish(_) => (60, 40),
        Command::BasicGet { .. } => (60, 70),
        Command::BasicAck { .. } => (60, 80),
        Command::BasicReject { .. } => (60, 90),
        Command::BasicRecoverAsync { .. } => (60, 100),
        Command::BasicRecover { .. } => (60, 110),
        Command::BasicNack { .. } => (60, 120),
        Command::ConfirmSelect { .. } => (85, 10),
        Command::TxSelect => (90, 10),
        Command::TxCommit => (90, 20),
        Command::TxRollback => (90, 30),
    };
    MethodId::new(class, method)
}
