//! Every method of AMQP 0-9-1 with RabbitMQ's additions (`confirm`, `basic.nack`, `exchange.bind`, `connection.blocked`,
//! `connection.update-secret`), as plain structs with the specification's field names. Reserved fields are read over and
//! written as zero. Which method is allowed when is the business of `server` and `client`.

use bytes::Bytes;
use understudy_record::ShortStr;

use crate::ids::{DeliveryTag, MethodId};
use crate::table::FieldTable;
use crate::wire::{DecodeError, Field, Reader, Writer};

/// Who may send a method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sender {
    Client,
    Server,
    Both,
}

macro_rules! methods {
    ($($class:ident $class_id:literal {
        $($variant:ident $name:ident $text:literal $id:literal $sender:ident
            ($($before:ty),*) { $($field:ident: $type:ty),* } ($($after:ty),*);)*
    })*) => {
        $(pub mod $class {
            #[allow(unused_imports, reason = "not every class has every type of field")]
            use super::{Bytes, DecodeError, DeliveryTag, Field, FieldTable, MethodId, Reader, ShortStr, Writer};

            $(
                #[doc = concat!("`", $text, "`")]
                #[derive(Clone, Debug, Default, PartialEq)]
                pub struct $name {
                    $(pub $field: $type,)*
                }

                impl $name {
                    pub const ID: MethodId = MethodId::new($class_id, $id);

                    #[allow(unused_variables, reason = "some methods have no arguments")]
                    #[inline]
                    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
                        $(<$before>::read(reader)?;)*
                        $(let $field = <$type>::read(reader)?;)*
                        $(<$after>::read(reader)?;)*
                        reader.finish()?;
                        Ok(Self { $($field),* })
                    }

                    #[allow(unused_variables, reason = "some methods have no arguments")]
                    #[inline]
                    pub(crate) fn write(&self, writer: &mut Writer<'_>) {
                        $(<$before>::default().write(writer);)*
                        $(self.$field.write(writer);)*
                        $(<$after>::default().write(writer);)*
                    }
                }
            )*
        })*

        #[derive(Clone, Debug, PartialEq)]
        pub enum Method {
            $($($variant($class::$name),)*)*
        }

        impl Method {
            pub const fn id(&self) -> MethodId {
                match self {
                    $($(Self::$variant(_) => $class::$name::ID,)*)*
                }
            }

            /// As the specification writes it: `queue.declare`.
            pub const fn name(&self) -> &'static str {
                match self {
                    $($(Self::$variant(_) => $text,)*)*
                }
            }

            pub(crate) const fn sender(&self) -> Sender {
                match self {
                    $($(Self::$variant(_) => Sender::$sender,)*)*
                }
            }

            pub(crate) fn read_arguments(id: MethodId, reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
                match (id.class, id.method) {
                    $($(($class_id, $id) => $class::$name::read(reader).map(Self::$variant),)*)*
                    _ => Err(DecodeError::UnknownMethod(id)),
                }
            }

            fn write_arguments(&self, writer: &mut Writer<'_>) {
                match self {
                    $($(Self::$variant(method) => method.write(writer),)*)*
                }
            }

            /// One of each, with arguments drawn from `random`.
            #[cfg(test)]
            fn samples(random: &mut tests::Random) -> Vec<Self> {
                vec![$($(Self::$variant($class::$name { $($field: <$type as tests::Sample>::sample(random)),* }),)*)*]
            }
        }

        $($(impl From<$class::$name> for Method {
            fn from(method: $class::$name) -> Self {
                Self::$variant(method)
            }
        })*)*
    };
}

// Variant, struct, name, number, who sends it, (reserved before), {fields}, (reserved after).
methods! {
    connection 10 {
        ConnectionStart Start "connection.start" 10 Server ()
            { version_major: u8, version_minor: u8, server_properties: FieldTable, mechanisms: Bytes, locales: Bytes } ();
        ConnectionStartOk StartOk "connection.start-ok" 11 Client ()
            { client_properties: FieldTable, mechanism: ShortStr, response: Bytes, locale: ShortStr } ();
        ConnectionSecure Secure "connection.secure" 20 Server () { challenge: Bytes } ();
        ConnectionSecureOk SecureOk "connection.secure-ok" 21 Client () { response: Bytes } ();
        ConnectionTune Tune "connection.tune" 30 Server () { channel_max: u16, frame_max: u32, heartbeat: u16 } ();
        ConnectionTuneOk TuneOk "connection.tune-ok" 31 Client () { channel_max: u16, frame_max: u32, heartbeat: u16 } ();
        ConnectionOpen Open "connection.open" 40 Client () { virtual_host: ShortStr } (ShortStr, bool);
        ConnectionOpenOk OpenOk "connection.open-ok" 41 Server () {} (ShortStr);
        ConnectionClose Close "connection.close" 50 Both ()
            { reply_code: u16, reply_text: ShortStr, class_id: u16, method_id: u16 } ();
        ConnectionCloseOk CloseOk "connection.close-ok" 51 Both () {} ();
        ConnectionBlocked Blocked "connection.blocked" 60 Server () { reason: ShortStr } ();
        ConnectionUnblocked Unblocked "connection.unblocked" 61 Server () {} ();
        ConnectionUpdateSecret UpdateSecret "connection.update-secret" 70 Client () { new_secret: Bytes, reason: ShortStr } ();
        ConnectionUpdateSecretOk UpdateSecretOk "connection.update-secret-ok" 71 Server () {} ();
    }
    channel 20 {
        ChannelOpen Open "channel.open" 10 Client () {} (ShortStr);
        ChannelOpenOk OpenOk "channel.open-ok" 11 Server () {} (Bytes);
        ChannelFlow Flow "channel.flow" 20 Both () { active: bool } ();
        ChannelFlowOk FlowOk "channel.flow-ok" 21 Both () { active: bool } ();
        ChannelClose Close "channel.close" 40 Both ()
            { reply_code: u16, reply_text: ShortStr, class_id: u16, method_id: u16 } ();
        ChannelCloseOk CloseOk "channel.close-ok" 41 Both () {} ();
    }
    access 30 {
        AccessRequest Request "access.request" 10 Client ()
            { realm: ShortStr, exclusive: bool, passive: bool, active: bool, write_access: bool, read_access: bool } ();
        AccessRequestOk RequestOk "access.request-ok" 11 Server () { ticket: u16 } ();
    }
    exchange 40 {
        ExchangeDeclare Declare "exchange.declare" 10 Client (u16)
            { exchange: ShortStr, kind: ShortStr, passive: bool, durable: bool, auto_delete: bool, internal: bool,
              no_wait: bool, arguments: FieldTable } ();
        ExchangeDeclareOk DeclareOk "exchange.declare-ok" 11 Server () {} ();
        ExchangeDelete Delete "exchange.delete" 20 Client (u16) { exchange: ShortStr, if_unused: bool, no_wait: bool } ();
        ExchangeDeleteOk DeleteOk "exchange.delete-ok" 21 Server () {} ();
        ExchangeBind Bind "exchange.bind" 30 Client (u16)
            { destination: ShortStr, source: ShortStr, routing_key: ShortStr, no_wait: bool, arguments: FieldTable } ();
        ExchangeBindOk BindOk "exchange.bind-ok" 31 Server () {} ();
        ExchangeUnbind Unbind "exchange.unbind" 40 Client (u16)
            { destination: ShortStr, source: ShortStr, routing_key: ShortStr, no_wait: bool, arguments: FieldTable } ();
        ExchangeUnbindOk UnbindOk "exchange.unbind-ok" 51 Server () {} ();
    }
    queue 50 {
        QueueDeclare Declare "queue.declare" 10 Client (u16)
            { queue: ShortStr, passive: bool, durable: bool, exclusive: bool, auto_delete: bool, no_wait: bool,
              arguments: FieldTable } ();
        QueueDeclareOk DeclareOk "queue.declare-ok" 11 Server ()
            { queue: ShortStr, message_count: u32, consumer_count: u32 } ();
        QueueBind Bind "queue.bind" 20 Client (u16)
            { queue: ShortStr, exchange: ShortStr, routing_key: ShortStr, no_wait: bool, arguments: FieldTable } ();
        QueueBindOk BindOk "queue.bind-ok" 21 Server () {} ();
        QueuePurge Purge "queue.purge" 30 Client (u16) { queue: ShortStr, no_wait: bool } ();
        QueuePurgeOk PurgeOk "queue.purge-ok" 31 Server () { message_count: u32 } ();
        QueueDelete Delete "queue.delete" 40 Client (u16)
            { queue: ShortStr, if_unused: bool, if_empty: bool, no_wait: bool } ();
        QueueDeleteOk DeleteOk "queue.delete-ok" 41 Server () { message_count: u32 } ();
        QueueUnbind Unbind "queue.unbind" 50 Client (u16)
            { queue: ShortStr, exchange: ShortStr, routing_key: ShortStr, arguments: FieldTable } ();
        QueueUnbindOk UnbindOk "queue.unbind-ok" 51 Server () {} ();
    }
    basic 60 {
        BasicQos Qos "basic.qos" 10 Client () { prefetch_size: u32, prefetch_count: u16, global: bool } ();
        BasicQosOk QosOk "basic.qos-ok" 11 Server () {} ();
        BasicConsume Consume "basic.consume" 20 Client (u16)
            { queue: ShortStr, consumer_tag: ShortStr, no_local: bool, no_ack: bool, exclusive: bool, no_wait: bool,
              arguments: FieldTable } ();
        BasicConsumeOk ConsumeOk "basic.consume-ok" 21 Server () { consumer_tag: ShortStr } ();
        BasicCancel Cancel "basic.cancel" 30 Both () { consumer_tag: ShortStr, no_wait: bool } ();
        BasicCancelOk CancelOk "basic.cancel-ok" 31 Both () { consumer_tag: ShortStr } ();
        BasicPublish Publish "basic.publish" 40 Client (u16)
            { exchange: ShortStr, routing_key: ShortStr, mandatory: bool, immediate: bool } ();
        BasicReturn Return "basic.return" 50 Server ()
            { reply_code: u16, reply_text: ShortStr, exchange: ShortStr, routing_key: ShortStr } ();
        BasicDeliver Deliver "basic.deliver" 60 Server ()
            { consumer_tag: ShortStr, delivery_tag: DeliveryTag, redelivered: bool, exchange: ShortStr,
              routing_key: ShortStr } ();
        BasicGet Get "basic.get" 70 Client (u16) { queue: ShortStr, no_ack: bool } ();
        BasicGetOk GetOk "basic.get-ok" 71 Server ()
            { delivery_tag: DeliveryTag, redelivered: bool, exchange: ShortStr, routing_key: ShortStr,
              message_count: u32 } ();
        BasicGetEmpty GetEmpty "basic.get-empty" 72 Server () {} (ShortStr);
        BasicAck Ack "basic.ack" 80 Both () { delivery_tag: DeliveryTag, multiple: bool } ();
        BasicReject Reject "basic.reject" 90 Client () { delivery_tag: DeliveryTag, requeue: bool } ();
        BasicRecoverAsync RecoverAsync "basic.recover-async" 100 Client () { requeue: bool } ();
        BasicRecover Recover "basic.recover" 110 Client () { requeue: bool } ();
        BasicRecoverOk RecoverOk "basic.recover-ok" 111 Server () {} ();
        BasicNack Nack "basic.nack" 120 Both () { delivery_tag: DeliveryTag, multiple: bool, requeue: bool } ();
    }
    confirm 85 {
        ConfirmSelect Select "confirm.select" 10 Client () { no_wait: bool } ();
        ConfirmSelectOk SelectOk "confirm.select-ok" 11 Server () {} ();
    }
    tx 90 {
        TxSelect Select "tx.select" 10 Client () {} ();
        TxSelectOk SelectOk "tx.select-ok" 11 Server () {} ();
        TxCommit Commit "tx.commit" 20 Client () {} ();
        TxCommitOk CommitOk "tx.commit-ok" 21 Server () {} ();
        TxRollback Rollback "tx.rollback" 30 Client () {} ();
        TxRollbackOk RollbackOk "tx.rollback-ok" 31 Server () {} ();
    }
}

impl Method {
    /// A method frame's payload, all of it.
    ///
    /// # Errors
    /// If the method is unknown or its arguments are not exactly those it has.
    pub fn decode(payload: &Bytes) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(payload);
        let id = read_id(&mut reader)?;
        Self::read_arguments(id, &mut reader)
    }

    /// A method frame's payload.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut writer = Writer::new(out);
        write_id(&mut writer, self.id());
        self.write_arguments(&mut writer);
    }

    /// Whether a content header and body follow it.
    pub const fn has_content(&self) -> bool {
        matches!(self, Self::BasicPublish(_) | Self::BasicReturn(_) | Self::BasicDeliver(_) | Self::BasicGetOk(_))
    }
}

pub(crate) fn read_id(reader: &mut Reader<'_>) -> Result<MethodId, DecodeError> {
    Ok(MethodId::new(reader.u16()?, reader.u16()?))
}

pub(crate) fn write_id(writer: &mut Writer<'_>, id: MethodId) {
    writer.bytes(&id.class.to_be_bytes());
    writer.bytes(&id.method.to_be_bytes());
}

#[cfg(test)]
#[path = "method_tests.rs"]
mod tests;
