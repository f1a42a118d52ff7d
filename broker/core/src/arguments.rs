//! Argument tables of declares, binds and consumes: which are valid, and whether two declares mean the same object. Values
//! are checked as RabbitMQ checks them, also where the broker does not act on them yet (see the crate's documentation).

use bytes::{BufMut, Bytes, BytesMut};
use understudy_protocol::{FieldTable, FieldValue};

use crate::error::{Failure, malformed_table, precondition_failed};

/// Largest expiry or TTL, in milliseconds: ten years.
pub(crate) const MAX_EXPIRY_MS: i64 = 10 * 365 * 24 * 3600 * 1000;

const HIGHEST_PRIORITY: i64 = 255;

type Check = fn(&FieldValue, &FieldTable) -> Result<(), String>;

const QUEUE_ARGUMENTS: [(&str, Check); 17] = [
    (EXPIRES, check_expires),
    (MESSAGE_TTL, check_ttl),
    (DEAD_LETTER_EXCHANGE, check_text),
    (DEAD_LETTER_ROUTING_KEY, check_dead_letter_key),
    (MAX_LENGTH, check_not_negative),
    (MAX_LENGTH_BYTES, check_not_negative),
    ("x-max-in-memory-length", check_not_negative),
    ("x-max-in-memory-bytes", check_not_negative),
    (MAX_PRIORITY, check_max_priority),
    (OVERFLOW, check_overflow),
    ("x-queue-mode", check_queue_mode),
    ("x-queue-version", check_queue_version),
    ("x-queue-master-locator", check_text),
    (SINGLE_ACTIVE_CONSUMER, check_bool),
    (QUEUE_TYPE, check_queue_type),
    (DELIVERY_LIMIT, check_not_negative),
    (CONSUMER_TIMEOUT, check_not_negative),
];

const CONSUMER_ARGUMENTS: [(&str, Check); 2] = [(PRIORITY, check_int), ("x-cancel-on-ha-failover", check_bool)];

pub(crate) const QUEUE_TYPE: &str = "x-queue-type";
pub(crate) const ALTERNATE_EXCHANGE: &str = "alternate-exchange";
pub(crate) const REPLICATE: &str = "x-understudy-replicate";
const PRIORITY: &str = "x-priority";
pub(crate) const SINGLE_ACTIVE_CONSUMER: &str = "x-single-active-consumer";
pub(crate) const MAX_LENGTH: &str = "x-max-length";
pub(crate) const MAX_LENGTH_BYTES: &str = "x-max-length-bytes";
pub(crate) const OVERFLOW: &str = "x-overflow";
pub(crate) const DEAD_LETTER_EXCHANGE: &str = "x-dead-letter-exchange";
pub(crate) const DEAD_LETTER_ROUTING_KEY: &str = "x-dead-letter-routing-key";
pub(crate) const CONSUMER_TIMEOUT: &str = "x-consumer-timeout";
pub(crate) const EXPIRES: &str = "x-expires";
pub(crate) const MESSAGE_TTL: &str = "x-message-ttl";
pub(crate) const MAX_PRIORITY: &str = "x-max-priority";
pub(crate) const DELIVERY_LIMIT: &str = "x-delivery-limit";
/// Of queues and exchanges, checked in [`crate::deduplication`]; and the type of an exchange.
pub(crate) const MESSAGE_DEDUPLICATION: &str = "x-message-deduplication";
pub(crate) const CACHE_SIZE: &str = "x-cache-size";
/// A header, too.
pub(crate) const CACHE_TTL: &str = "x-cache-ttl";
pub(crate) const CACHE_PERSISTENCE: &str = "x-cache-persistence";
pub(crate) const DEDUPLICATION_HEADER: &str = "x-deduplication-header";

/// `arguments`: an encoded table without its length. `None` if it is malformed.
pub(crate) fn decode(arguments: &Bytes) -> Option<FieldTable> {
    let mut whole = BytesMut::with_capacity(4 + arguments.len());
    whole.put_u32(u32::try_from(arguments.len()).ok()?);
    whole.extend_from_slice(arguments);
    FieldTable::from_bytes(&whole.freeze()).ok()
}

/// The inverse of [`decode`].
pub(crate) fn encode(table: &FieldTable) -> Bytes {
    table.to_bytes().slice(4..)
}

/// The same arguments in the order of their names: many clients keep them in maps, and write them in another order each time.
pub(crate) fn sorted(arguments: &Bytes) -> Result<Bytes, Failure> {
    let table = decode(arguments).ok_or_else(malformed_table)?;
    if table.iter().is_sorted_by_key(|(name, _)| name.as_bytes()) {
        return Ok(arguments.clone());
    }
    let mut fields: Vec<_> = table.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
    fields.sort_by(|(a, _), (b, _)| a.as_bytes().cmp(b.as_bytes()));
    Ok(encode(&fields.into_iter().collect()))
}

/// `object`: `queue 'q' in vhost '/'`.
pub(crate) fn check_queue(table: &FieldTable, object: &str) -> Result<(), Failure> {
    check_exchange_name(DEAD_LETTER_EXCHANGE, table, object)?;
    check(&QUEUE_ARGUMENTS, table, object)
}

pub(crate) fn check_consumer(table: &FieldTable, object: &str) -> Result<(), Failure> {
    check(&CONSUMER_ARGUMENTS, table, object)
}

/// An argument that names an exchange.
pub(crate) fn check_exchange_name(name: &str, table: &FieldTable, object: &str) -> Result<(), Failure> {
    match table.get(name) {
        Some(value) if value.as_str().is_none() => {
            let kind = value.type_name();
            Err(precondition_failed(format!("invalid type '{kind}' for arg '{name}' in {object}")))
        }
        _ => Ok(()),
    }
}

/// 0 if it says nothing.
pub(crate) fn consumer_priority(table: &FieldTable) -> i64 {
    table.get(PRIORITY).and_then(FieldValue::as_int).unwrap_or(0)
}

fn check(known: &[(&str, Check)], table: &FieldTable, object: &str) -> Result<(), Failure> {
    for (name, check) in known {
        if let Some(value) = table.get(name) {
            check(value, table)
                .map_err(|why| precondition_failed(format!("invalid arg '{name}' for {object}: {why}")))?;
        }
    }
    Ok(())
}

/// A declare of a queue that exists: the arguments the broker knows must have the same values.
pub(crate) fn assert_queue_equivalent(
    received: &FieldTable,
    current: &FieldTable,
    object: &str,
) -> Result<(), Failure> {
    QUEUE_ARGUMENTS.iter().try_for_each(|(name, _)| assert_equivalent(name, received, current, object))
}

pub(crate) fn assert_equivalent(
    name: &str,
    received: &FieldTable,
    current: &FieldTable,
    object: &str,
) -> Result<(), Failure> {
    let (received, current) = (received.get(name), current.get(name));
    let same = match (received, current) {
        (Some(received), Some(current)) => same_value(received, current),
        // A queue without a type is a classic one.
        (Some(given), None) | (None, Some(given)) => name == QUEUE_TYPE && given.as_str() == Some("classic"),
        (None, None) => true,
    };
    if same {
        return Ok(());
    }
    let (received, current) = match (received, current) {
        (Some(received), Some(current)) => (quoted(received), quoted(current)),
        (received, current) => (described(received), described(current)),
    };
    Err(precondition_failed(format!(
        "inequivalent arg '{name}' for {object}: received {received} but current is {current}"
    )))
}

/// Whether two arguments say the same: clients differ in the width they give an integer, and in how they send text.
pub(crate) fn same_value(one: &FieldValue, other: &FieldValue) -> bool {
    match (whole(one), whole(other)) {
        (Some(one), Some(other)) => return one == other,
        (None, None) => {}
        _ => return false,
    }
    match (one.as_bytes(), other.as_bytes()) {
        (Some(one), Some(other)) => one == other,
        _ => one == other,
    }
}

/// Integers and timestamps.
pub(crate) fn whole(value: &FieldValue) -> Option<i64> {
    match value {
        FieldValue::Timestamp(seconds) => i64::try_from(*seconds).ok(),
        value => value.as_int(),
    }
}

/// A number that may be written as text.
pub(crate) fn whole_or_text(value: &FieldValue) -> Option<u64> {
    match value.as_str() {
        Some(text) => text.parse().ok(),
        None => value.as_int().and_then(|value| u64::try_from(value).ok()),
    }
}

/// A property of the object itself, which reads without its type.
pub(crate) fn assert_same(name: &str, received: &str, current: &str, object: &str) -> Result<(), Failure> {
    if received == current {
        return Ok(());
    }
    Err(precondition_failed(format!(
        "inequivalent arg '{name}' for {object}: received '{received}' but current is '{current}'"
    )))
}

fn quoted(value: &FieldValue) -> String {
    match value {
        FieldValue::Void => "none".to_owned(),
        value => format!("'{}'", plain(value)),
    }
}

fn described(value: Option<&FieldValue>) -> String {
    value.map_or("none".to_owned(), |value| format!("the value '{}' of type '{}'", plain(value), value.type_name()))
}

fn plain(value: &FieldValue) -> String {
    match (value.as_int(), value.as_bool(), value.as_bytes()) {
        (Some(value), ..) => value.to_string(),
        (_, Some(value), _) => value.to_string(),
        (.., Some(value)) => String::from_utf8_lossy(value).into_owned(),
        _ => value.to_string(),
    }
}

/// The message property `expiration`: a whole number of milliseconds, as text; a sign may stand before it.
pub(crate) fn check_expiration(text: &str) -> Result<(), Failure> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let digits = unsigned.find(|c: char| !c.is_ascii_digit()).unwrap_or(unsigned.len());
    let (number, rest) = unsigned.split_at(digits);
    let significant = number.trim_start_matches('0');
    let why = match significant.parse::<i64>() {
        _ if number.is_empty() => "no_integer".to_owned(),
        _ if !rest.is_empty() => format!("{{leftover_string,{rest:?}}}"),
        _ if significant.is_empty() => return Ok(()),
        _ if text.starts_with('-') => format!("{{value_negative,-{significant}}}"),
        Ok(value) if value <= MAX_EXPIRY_MS => return Ok(()),
        _ => format!("{{value_too_large,{significant}}}"),
    };
    Err(precondition_failed(format!("invalid expiration '{text}': {why}")))
}

fn int(value: &FieldValue) -> Result<i64, String> {
    value.as_int().ok_or_else(|| format!("\"expected integer, got {}\"", value.type_name()))
}

fn text(value: &FieldValue) -> Result<&str, String> {
    value.as_str().ok_or_else(|| format!("{{unacceptable_type,{}}}", value.type_name()))
}

fn check_int(value: &FieldValue, _: &FieldTable) -> Result<(), String> {
    int(value).map(|_| ())
}

fn check_bool(value: &FieldValue, _: &FieldTable) -> Result<(), String> {
    value.as_bool().map(|_| ()).ok_or_else(|| format!("{{unacceptable_type,{}}}", value.type_name()))
}

fn check_text(value: &FieldValue, _: &FieldTable) -> Result<(), String> {
    text(value).map(|_| ())
}

fn check_not_negative(value: &FieldValue, _: &FieldTable) -> Result<(), String> {
    match int(value)? {
        value if value < 0 => Err(format!("{{value_negative,{value}}}")),
        _ => Ok(()),
    }
}

fn check_ttl(value: &FieldValue, table: &FieldTable) -> Result<(), String> {
    check_not_negative(value, table)?;
    match int(value)? {
        value if value > MAX_EXPIRY_MS => Err(format!("{{value_too_large,{value}}}")),
        _ => Ok(()),
    }
}

fn check_expires(value: &FieldValue, table: &FieldTable) -> Result<(), String> {
    match int(value)? {
        0 => Err("{value_zero,0}".to_owned()),
        _ => check_ttl(value, table),
    }
}

fn check_max_priority(value: &FieldValue, table: &FieldTable) -> Result<(), String> {
    check_not_negative(value, table)?;
    match int(value)? {
        value if value > HIGHEST_PRIORITY => Err(format!("{{max_value_exceeded,{value}}}")),
        _ => Ok(()),
    }
}

fn check_dead_letter_key(value: &FieldValue, table: &FieldTable) -> Result<(), String> {
    text(value)?;
    match table.contains("x-dead-letter-exchange") {
        true => Ok(()),
        false => Err("routing_key_but_no_dlx_defined".to_owned()),
    }
}

fn check_overflow(value: &FieldValue, _: &FieldTable) -> Result<(), String> {
    match text(value)? {
        "drop-head" | "reject-publish" | "reject-publish-dlx" => Ok(()),
        _ => Err("invalid_overflow".to_owned()),
    }
}

fn check_queue_mode(value: &FieldValue, _: &FieldTable) -> Result<(), String> {
    match text(value)? {
        "default" | "lazy" => Ok(()),
        other => Err(format!("\"unsupported queue mode '{other}'\"")),
    }
}

fn check_queue_version(value: &FieldValue, _: &FieldTable) -> Result<(), String> {
    match int(value)? {
        1 | 2 => Ok(()),
        other => Err(format!("\"unsupported queue version '{other}'\"")),
    }
}

fn check_queue_type(value: &FieldValue, _: &FieldTable) -> Result<(), String> {
    match text(value)? {
        "classic" | "quorum" | "stream" => Ok(()),
        other => Err(format!("\"unsupported queue type '{other}'\"")),
    }
}

#[cfg(test)]
mod tests {
    use understudy_record::ShortStr;

    use super::*;

    fn table(name: &str, value: FieldValue) -> FieldTable {
        let mut table = FieldTable::new();
        table.insert(ShortStr::try_from(name).unwrap(), value);
        table
    }

    fn longstr(text: &'static str) -> FieldValue {
        FieldValue::Text(Bytes::from_static(text.as_bytes()))
    }

    fn refusal(result: Result<(), Failure>) -> String {
        result.map_or_else(|failure| failure.text(), |()| "ok".to_owned())
    }

    #[test]
    fn values_of_known_arguments_are_checked() {
        let why = |name, value| {
            let text = refusal(check_queue(&table(name, value), "queue 'q' in vhost '/'"));
            text.rsplit_once("in vhost '/': ").map_or(text.clone(), |(_, why)| why.to_owned())
        };
        assert_eq!(why(EXPIRES, FieldValue::I32(0)), "{value_zero,0}");
        assert_eq!(why(EXPIRES, FieldValue::I32(-1)), "{value_negative,-1}");
        assert_eq!(why(EXPIRES, longstr("1")), "\"expected integer, got longstr\"");
        assert_eq!(why(MESSAGE_TTL, FieldValue::I32(0)), "ok");
        assert_eq!(why("x-max-length", FieldValue::I64(-2)), "{value_negative,-2}");
        assert_eq!(why(MAX_PRIORITY, FieldValue::I32(256)), "{max_value_exceeded,256}");
        assert_eq!(why(DEAD_LETTER_ROUTING_KEY, longstr("k")), "routing_key_but_no_dlx_defined");
        assert_eq!(why("x-overflow", longstr("spill")), "invalid_overflow");
        assert_eq!(why("x-single-active-consumer", FieldValue::I32(1)), "{unacceptable_type,signedint}");
        assert_eq!(why(MESSAGE_TTL, FieldValue::I64(315_360_000_000)), "ok", "ten years");
        assert_eq!(why(MESSAGE_TTL, FieldValue::I64(315_360_000_001)), "{value_too_large,315360000001}");
        assert_eq!(why("x-queue-version", FieldValue::I32(3)), "\"unsupported queue version '3'\"");
        assert_eq!(
            refusal(check_queue(&table("x-dead-letter-exchange", FieldValue::I32(5)), "queue 'q' in vhost '/'")),
            "PRECONDITION_FAILED - invalid type 'signedint' for arg 'x-dead-letter-exchange' in queue 'q' in vhost '/'"
        );
        assert_eq!(why("x-unheard-of", FieldValue::Void), "ok", "unknown arguments are kept, not judged");
    }

    #[test]
    fn a_redeclare_with_other_arguments_is_refused_in_rabbitmq_s_words() {
        let (none, some) = (FieldTable::new(), table(EXPIRES, FieldValue::I64(60_000)));
        assert_eq!(
            refusal(assert_queue_equivalent(&none, &some, "queue 'q' in vhost '/'")),
            "PRECONDITION_FAILED - inequivalent arg 'x-expires' for queue 'q' in vhost '/': \
             received none but current is the value '60000' of type 'long'"
        );
        assert_eq!(
            refusal(assert_queue_equivalent(&table(EXPIRES, longstr("a")), &some, "queue 'q' in vhost '/'")),
            "PRECONDITION_FAILED - inequivalent arg 'x-expires' for queue 'q' in vhost '/': \
             received 'a' but current is '60000'"
        );
        assert_eq!(
            refusal(assert_queue_equivalent(&table(EXPIRES, FieldValue::F64(7.0)), &some, "queue 'q' in vhost '/'")),
            "PRECONDITION_FAILED - inequivalent arg 'x-expires' for queue 'q' in vhost '/': \
             received '7.0' but current is '60000'"
        );
        assert_eq!(refusal(assert_queue_equivalent(&table(EXPIRES, FieldValue::I32(60_000)), &some, "q")), "ok");
        let binary = FieldValue::Binary(Bytes::from_static(b"lazy"));
        let lazy = table("x-queue-mode", longstr("lazy"));
        assert_eq!(refusal(assert_queue_equivalent(&table("x-queue-mode", binary), &lazy, "q")), "ok");
        assert_eq!(refusal(assert_queue_equivalent(&table(QUEUE_TYPE, longstr("classic")), &none, "q")), "ok");
        assert_ne!(refusal(assert_queue_equivalent(&table(QUEUE_TYPE, longstr("quorum")), &none, "q")), "ok");
    }

    /// Case T1.
    #[test]
    fn an_expiration_is_a_whole_number() {
        let why = |text| refusal(check_expiration(text));
        for good in ["60000", "0", "-0", "+5", "00010", "315360000000"] {
            assert_eq!(why(good), "ok");
        }
        assert_eq!(why("later"), "PRECONDITION_FAILED - invalid expiration 'later': no_integer");
        assert_eq!(why("1000.5"), "PRECONDITION_FAILED - invalid expiration '1000.5': {leftover_string,\".5\"}");
        assert_eq!(
            why("+0999999999999"),
            "PRECONDITION_FAILED - invalid expiration '+0999999999999': {value_too_large,999999999999}"
        );
        assert_eq!(why("-7"), "PRECONDITION_FAILED - invalid expiration '-7': {value_negative,-7}");
        assert_eq!(why("-5x"), "PRECONDITION_FAILED - invalid expiration '-5x': {leftover_string,\"x\"}");
        assert_eq!(why("-"), "PRECONDITION_FAILED - invalid expiration '-': no_integer");
    }
}
