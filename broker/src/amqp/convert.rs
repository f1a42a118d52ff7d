//! AMQP methods to the core's commands, and the core's effects to what goes on the wire.

use std::sync::Arc;

use bytes::Bytes;
use understudy_core::{Command, EffectKind};
use understudy_protocol::{
    DeliverRef, DeliveryTag, FieldTable, GetOkRef, HeaderTooLarge, Method, MethodId, Properties, ReplyCode, ReturnRef,
    ServerConnection, basic, exchange, queue,
};
use understudy_record::{Body, Message, PartRef, ShortStr};

/// A method that asks something of the core. `None`: it is none that a client may send here.
pub(super) fn command(method: Method) -> Option<Command> {
    Some(match method {
        Method::ExchangeDeclare(m) => Command::ExchangeDeclare {
            name: m.exchange.detached(),
            kind: m.kind.detached(),
            passive: m.passive,
            durable: m.durable,
            auto_delete: m.auto_delete,
            internal: m.internal,
            no_wait: m.no_wait,
            arguments: table(&m.arguments),
        },
        Method::ExchangeDelete(m) => {
            Command::ExchangeDelete { name: m.exchange, if_unused: m.if_unused, no_wait: m.no_wait }
        }
        Method::ExchangeBind(m) => Command::ExchangeBind {
            destination: m.destination.detached(),
            source: m.source.detached(),
            routing_key: m.routing_key.detached(),
            no_wait: m.no_wait,
            arguments: table(&m.arguments),
        },
        Method::ExchangeUnbind(m) => Command::ExchangeUnbind {
            destination: m.destination.detached(),
            source: m.source.detached(),
            routing_key: m.routing_key.detached(),
            no_wait: m.no_wait,
            arguments: table(&m.arguments),
        },
        Method::QueueDeclare(m) => Command::QueueDeclare {
            name: m.queue.detached(),
            passive: m.passive,
            durable: m.durable,
            exclusive: m.exclusive,
            auto_delete: m.auto_delete,
            no_wait: m.no_wait,
            arguments: table(&m.arguments),
        },
        Method::QueueBind(m) => Command::QueueBind {
            queue: m.queue.detached(),
            exchange: m.exchange.detached(),
            routing_key: m.routing_key.detached(),
            no_wait: m.no_wait,
            arguments: table(&m.arguments),
        },
        Method::QueueUnbind(m) => Command::QueueUnbind {
            queue: m.queue.detached(),
            exchange: m.exchange.detached(),
            routing_key: m.routing_key.detached(),
            arguments: table(&m.arguments),
        },
        Method::QueuePurge(m) => Command::QueuePurge { queue: m.queue, no_wait: m.no_wait },
        Method::QueueDelete(m) => {
            Command::QueueDelete { queue: m.queue, if_unused: m.if_unused, if_empty: m.if_empty, no_wait: m.no_wait }
        }
        Method::BasicQos(m) => {
            Command::BasicQos { prefetch_size: m.prefetch_size, prefetch_count: m.prefetch_count, global: m.global }
        }
        Method::BasicConsume(m) => Command::BasicConsume {
            queue: m.queue.detached(),
            consumer_tag: m.consumer_tag.detached(),
            no_local: m.no_local,
            no_ack: m.no_ack,
            exclusive: m.exclusive,
            no_wait: m.no_wait,
            arguments: table(&m.arguments),
        },
        Method::BasicCancel(m) => Command::BasicCancel { consumer_tag: m.consumer_tag, no_wait: m.no_wait },
        Method::BasicGet(m) => Command::BasicGet { queue: m.queue, no_ack: m.no_ack },
        Method::BasicAck(m) => Command::BasicAck { delivery_tag: tag(m.delivery_tag), multiple: m.multiple },
        Method::BasicNack(m) => {
            Command::BasicNack { delivery_tag: tag(m.delivery_tag), multiple: m.multiple, requeue: m.requeue }
        }
        Method::BasicReject(m) => Command::BasicReject { delivery_tag: tag(m.delivery_tag), requeue: m.requeue },
        Method::BasicRecover(m) => Command::BasicRecover { requeue: m.requeue },
        Method::BasicRecoverAsync(m) => Command::BasicRecoverAsync { requeue: m.requeue },
        Method::ConfirmSelect(m) => Command::ConfirmSelect { no_wait: m.no_wait },
        Method::TxSelect(_) => Command::TxSelect,
        Method::TxCommit(_) => Command::TxCommit,
        Method::TxRollback(_) => Command::TxRollback,
        _ => return None,
    })
}

pub(super) fn publish(publish: understudy_protocol::Publish) -> Command {
    Command::BasicPublish(understudy_core::Publish {
        exchange: publish.exchange,
        routing_key: publish.routing_key,
        mandatory: publish.mandatory,
        immediate: publish.immediate,
        properties: publish.properties.as_bytes().clone(),
        body: publish.body,
    })
}

/// A body that follows what was begun: its parts, and what comes after them.
pub(super) type Rest = (Arc<[PartRef]>, Body);

/// Writes one effect to the connection's output. Of a large message only its beginning: what is returned is to follow.
pub(super) fn send(
    to: &mut ServerConnection,
    now: std::time::Duration,
    channel: understudy_protocol::ChannelId,
    effect: EffectKind,
) -> Result<Option<Rest>, HeaderTooLarge> {
    let method: Method = match effect {
        EffectKind::BasicDeliver { consumer_tag, delivery_tag, redelivered, delivery_count, message } => {
            return with_delivery_count(&message.properties, delivery_count, |properties| {
                let head = DeliverRef {
                    consumer_tag: &consumer_tag,
                    delivery_tag: DeliveryTag(delivery_tag.0),
                    redelivered,
                    exchange: &message.exchange,
                    routing_key: &message.routing_key,
                    properties,
                    body: &message.body,
                };
                match rest_of(&message) {
                    None => to.send_deliver(channel, &head).map(|()| None),
                    Some(rest) => {
                        to.begin_deliver(channel, &head, message.body_bytes()).map(|begun| begun.then_some(rest))
                    }
                }
            });
        }
        EffectKind::BasicGetOk { delivery_tag, redelivered, delivery_count, message_count, message } => {
            return with_delivery_count(&message.properties, delivery_count, |properties| {
                let head = GetOkRef {
                    delivery_tag: DeliveryTag(delivery_tag.0),
                    redelivered,
                    exchange: &message.exchange,
                    routing_key: &message.routing_key,
                    message_count,
                    properties,
                    body: &message.body,
                };
                match rest_of(&message) {
                    None => to.send_get_ok(channel, &head).map(|()| None),
                    Some(rest) => {
                        to.begin_get_ok(channel, &head, message.body_bytes()).map(|begun| begun.then_some(rest))
                    }
                }
            });
        }
        EffectKind::BasicReturn { code, text, message } => {
            let head = ReturnRef {
                code,
                text: &text,
                exchange: &message.exchange,
                routing_key: &message.routing_key,
                properties: &message.properties,
                body: &message.body,
            };
            return match rest_of(&message) {
                None => to.send_return(channel, &head).map(|()| None),
                Some(rest) => to.begin_return(channel, &head, message.body_bytes()).map(|begun| begun.then_some(rest)),
            };
        }
        EffectKind::PublisherAck { delivery_tag, multiple } => {
            to.send_ack(channel, DeliveryTag(delivery_tag.0), multiple);
            return Ok(None);
        }
        EffectKind::PublisherNack { delivery_tag, multiple } => {
            to.send_nack(channel, DeliveryTag(delivery_tag.0), multiple);
            return Ok(None);
        }
        EffectKind::CloseChannel { error } => {
            to.close_channel(channel, error.code, bare(&error.text, error.code), cause(error.class, error.method));
            return Ok(None);
        }
        EffectKind::CloseConnection { error } => {
            to.close_connection(now, error.code, bare(&error.text, error.code), cause(error.class, error.method));
            return Ok(None);
        }
        EffectKind::ExchangeDeclareOk => Method::ExchangeDeclareOk(exchange::DeclareOk::default()),
        EffectKind::ExchangeDeleteOk => Method::ExchangeDeleteOk(exchange::DeleteOk::default()),
        EffectKind::ExchangeBindOk => Method::ExchangeBindOk(exchange::BindOk::default()),
        EffectKind::ExchangeUnbindOk => Method::ExchangeUnbindOk(exchange::UnbindOk::default()),
        EffectKind::QueueDeclareOk { name, message_count, consumer_count } => {
            queue::DeclareOk { queue: name, message_count, consumer_count }.into()
        }
        EffectKind::QueueBindOk => Method::QueueBindOk(queue::BindOk::default()),
        EffectKind::QueueUnbindOk => Method::QueueUnbindOk(queue::UnbindOk::default()),
        EffectKind::QueuePurgeOk { message_count } => queue::PurgeOk { message_count }.into(),
        EffectKind::QueueDeleteOk { message_count } => queue::DeleteOk { message_count }.into(),
        EffectKind::BasicQosOk => Method::BasicQosOk(basic::QosOk::default()),
        EffectKind::BasicConsumeOk { consumer_tag } => basic::ConsumeOk { consumer_tag }.into(),
        EffectKind::BasicCancelOk { consumer_tag } => basic::CancelOk { consumer_tag }.into(),
        EffectKind::BasicCancel { consumer_tag } => basic::Cancel { consumer_tag, no_wait: true }.into(),
        EffectKind::BasicGetEmpty => Method::BasicGetEmpty(basic::GetEmpty::default()),
        EffectKind::BasicRecoverOk => Method::BasicRecoverOk(basic::RecoverOk::default()),
        EffectKind::ConfirmSelectOk => Method::ConfirmSelectOk(understudy_protocol::confirm::SelectOk::default()),
        EffectKind::TxSelectOk => Method::TxSelectOk(understudy_protocol::tx::SelectOk::default()),
        EffectKind::TxCommitOk => Method::TxCommitOk(understudy_protocol::tx::CommitOk::default()),
        EffectKind::TxRollbackOk => Method::TxRollbackOk(understudy_protocol::tx::RollbackOk::default()),
    };
    to.send_method(channel, &method);
    Ok(None)
}

/// As RabbitMQ's quorum queues do: a message that came back says how often, in a header. One whose properties would not
/// fit the client's frames with it goes without: what could be delivered once can be delivered again.
fn with_delivery_count(
    properties: &Bytes,
    delivery_count: u32,
    mut send: impl FnMut(&Bytes) -> Result<Option<Rest>, HeaderTooLarge>,
) -> Result<Option<Rest>, HeaderTooLarge> {
    if delivery_count > 0 {
        let counted =
            Properties::from_raw(properties.clone()).with_header("x-delivery-count", i64::from(delivery_count));
        if let Ok(sent) = send(counted.as_bytes()) {
            return Ok(sent);
        }
    }
    send(properties)
}

/// Of a large message.
fn rest_of(message: &Message) -> Option<Rest> {
    Some((message.parts.clone()?, message.body.clone()))
}

/// The core keeps tables without their length, as they stand in a record.
fn table(table: &FieldTable) -> Bytes {
    let whole = table.to_bytes();
    whole.slice(whole.len().min(4)..)
}

fn tag(tag: DeliveryTag) -> understudy_core::DeliveryTag {
    understudy_core::DeliveryTag(tag.0)
}

fn cause(class: u16, method: u16) -> MethodId {
    MethodId { class, method }
}

/// The text without the code's name, which the connection puts there itself.
pub(super) fn bare(text: &str, code: ReplyCode) -> &str {
    text.strip_prefix(code.name()).and_then(|rest| rest.strip_prefix(" - ")).unwrap_or(text)
}

/// A name for people.
pub(super) fn text_of(name: &ShortStr) -> String {
    name.to_text().into_owned()
}
