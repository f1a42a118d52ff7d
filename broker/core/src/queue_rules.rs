//! What a queue's arguments and policies make of it, read from them once, and again when policies change.

use bytes::Bytes;
use understudy_protocol::{FieldTable, FieldValue};
use understudy_record::ShortStr;

use crate::arguments::{
    self, CONSUMER_TIMEOUT, DEAD_LETTER_EXCHANGE, DEAD_LETTER_ROUTING_KEY, DELIVERY_LIMIT, EXPIRES, MAX_LENGTH,
    MAX_LENGTH_BYTES, MAX_PRIORITY, MESSAGE_TTL, OVERFLOW, SINGLE_ACTIVE_CONSUMER,
};
use crate::limits::{Limits, Overflow};
use crate::policies::{self, Settings, Target};

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
    /// How long a channel may hold a delivery, in milliseconds.
    pub(crate) consumer_timeout: Option<u64>,
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
    /// `arguments`: of a queue, checked. See [`crate::policies`] for what counts where both say something.
    pub(crate) fn of(arguments: &Bytes, settings: Settings<'_>) -> Self {
        if arguments.is_empty() && settings.is_empty() {
            return Self::default();
        }
        let Some(table) = arguments::decode(arguments) else { return Self::default() };
        let number = |name| table.get(name).and_then(FieldValue::as_int).and_then(|value| u64::try_from(value).ok());
        let least = |name, key| number(name).into_iter().chain(settings.number(key)).min();
        let flag = |name| table.get(name).and_then(FieldValue::as_bool).unwrap_or(false);
        let by_policy = Target::of_queue(&table) == Target::Quorum;
        let own = table.get(OVERFLOW).and_then(FieldValue::as_str);
        let set = settings.text(policies::OVERFLOW);
        let overflow = if by_policy { set.or(own) } else { own.or(set) }.and_then(Overflow::from_name);
        let exchange = text(&table, DEAD_LETTER_EXCHANGE).or_else(|| kept(settings, policies::DEAD_LETTER_EXCHANGE));
        let routing_key =
            text(&table, DEAD_LETTER_ROUTING_KEY).or_else(|| kept(settings, policies::DEAD_LETTER_ROUTING_KEY));
        let delivery_limit = least(DELIVERY_LIMIT, policies::DELIVERY_LIMIT);
        let (length, bytes) =
            (least(MAX_LENGTH, policies::MAX_LENGTH), least(MAX_LENGTH_BYTES, policies::MAX_LENGTH_BYTES));
        let timeouts = number(CONSUMER_TIMEOUT).into_iter().chain(settings.number(policies::CONSUMER_TIMEOUT));
        Self {
            limits: Limits::new(length, bytes, overflow.unwrap_or_default()),
            dead_letter: exchange.map(|exchange| Box::new(DeadLetterTo { exchange, routing_key })),
            delivery_limit: delivery_limit.map(|limit| u32::try_from(limit).unwrap_or(u32::MAX)),
            single_active_consumer: flag(SINGLE_ACTIVE_CONSUMER),
            consumer_timeout: timeouts.filter(|timeout| *timeout > 0).min(),
            message_ttl: least(MESSAGE_TTL, policies::MESSAGE_TTL),
            max_priority: number(MAX_PRIORITY).map_or(0, |most| u8::try_from(most).unwrap_or(u8::MAX)),
            expires: match settings.number(policies::EXPIRES) {
                Some(expires) if by_policy => Some(expires),
                _ => least(EXPIRES, policies::EXPIRES),
            },
        }
    }
}

fn kept(settings: Settings<'_>, key: &str) -> Option<ShortStr> {
    settings.text(key).and_then(|text| ShortStr::try_from(text).ok())
}

/// It is kept as long as the queue: not with the buffer that the arguments came in.
fn text(table: &FieldTable, name: &str) -> Option<ShortStr> {
    table.get(name).and_then(FieldValue::as_str).and_then(|text| ShortStr::try_from(text).ok())
}
