//! What a queue's arguments make of it, read from them once.

use bytes::Bytes;
use understudy_protocol::{FieldTable, FieldValue};
use understudy_record::ShortStr;

use crate::arguments::{
    self, DEAD_LETTER_EXCHANGE, DEAD_LETTER_ROUTING_KEY, DELIVERY_LIMIT, EXPIRES, MAX_LENGTH, MAX_LENGTH_BYTES,
    MAX_PRIORITY, MESSAGE_TTL, OVERFLOW, SINGLE_ACTIVE_CONSUMER,
};
use crate::limits::{Limits, Overflow};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct QueueRules {
    pub(crate) limits: Option<Limits>,
    pub(crate) dead_letter: Option<Box<DeadLetterTo>>,
    /// A message that came back more often leaves the queue.
    pub(crate) delivery_limit: Option<u32>,
    /// Of its consumers one gets messages, until it goes.
    pub(crate) single_active_consumer: bool,
    /// How long a message stays, in milliseconds, unless it says less.
    pub(crate) message_ttl: Option<u64>,
    /// The highest priority that messages have here; 0: they have none.
    pub(crate) max_priority: u8,
    /// How long the queue is there without being used, in milliseconds.
    pub(crate) expires: Option<u64>,
}

/// Where messages go that leave a queue without having been consumed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeadLetterTo {
    pub(crate) exchange: ShortStr,
    /// `None`: the message's own keys.
    pub(crate) routing_key: Option<ShortStr>,
}

impl QueueRules {
    /// `arguments`: of a queue, checked.
    pub(crate) fn of(arguments: &Bytes) -> Self {
        if arguments.is_empty() {
            return Self::default();
        }
        let Some(table) = arguments::decode(arguments) else { return Self::default() };
        let number = |name| table.get(name).and_then(FieldValue::as_int).and_then(|value| u64::try_from(value).ok());
        let flag = |name| table.get(name).and_then(FieldValue::as_bool).unwrap_or(false);
        let overflow = table.get(OVERFLOW).and_then(FieldValue::as_str).and_then(Overflow::from_name);
        let delivery_limit = number(DELIVERY_LIMIT).map(|limit| u32::try_from(limit).unwrap_or(u32::MAX));
        Self {
            limits: Limits::new(number(MAX_LENGTH), number(MAX_LENGTH_BYTES), overflow.unwrap_or_default()),
            dead_letter: text(&table, DEAD_LETTER_EXCHANGE).map(|exchange| {
                Box::new(DeadLetterTo { exchange, routing_key: text(&table, DEAD_LETTER_ROUTING_KEY) })
            }),
            delivery_limit,
            single_active_consumer: flag(SINGLE_ACTIVE_CONSUMER),
            message_ttl: number(MESSAGE_TTL),
            max_priority: number(MAX_PRIORITY).map_or(0, |most| u8::try_from(most).unwrap_or(u8::MAX)),
            expires: number(EXPIRES),
        }
    }
}

/// It is kept as long as the queue: not with the buffer that the arguments came in.
fn text(table: &FieldTable, name: &str) -> Option<ShortStr> {
    table.get(name).and_then(FieldValue::as_str).and_then(|text| ShortStr::try_from(text).ok())
}
