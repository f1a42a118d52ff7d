//! What a queue or an exchange remembers so that it knows a message again: the keys of messages, and for how long.
//!
//! Without a size, in queues alone, a key is there as long as its message: what is known follows from what is in the queue, where
//! for a while two messages can have one key, when the first is about to leave. With a size the last so many keys are known, each
//! for its time to live at most, whatever becomes of the messages. This is replicated state: it changes by records alone, and what time
//! it is the last [`Record::Time`] has said. Whether a message is a duplicate only the primary asks, by its own clock; see
//! [`crate::deduplication`].
//!
//! A key is the first half of a SHA-256 of a header's value. Values can be long and are chosen by publishers, so they are not
//! kept; nobody finds two values with one key by less than 2^64 attempts, and by chance, among a thousand million keys, two are
//! the same with a probability of 10^-21. The hash has no secret: every replica must make the same of a value, for ever.
//!
//! [`Record::Time`]: understudy_record::Record::Time

use std::collections::{BTreeMap, BTreeSet};

use sha2::{Digest, Sha256};
use understudy_protocol::{FieldTable, FieldValue};
use understudy_record::{HeldKey, Index, MessageKey, ShortStr};

use crate::arguments::{self, CACHE_SIZE, CACHE_TTL, DEDUPLICATION_HEADER};

/// Which header has the value, unless the arguments say.
const DEFAULT_HEADER: &str = "x-deduplication-header";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyRules {
    header: ShortStr,
    /// `None`: each key as long as its message.
    size: Option<usize>,
    /// In milliseconds, unless the message says.
    ttl: Option<u64>,
}

impl KeyRules {
    /// `arguments`: checked.
    pub(crate) fn of(arguments: &bytes::Bytes) -> Self {
        let table = arguments::decode(arguments).unwrap_or_default();
        let number = |name| table.get(name).and_then(arguments::whole_or_text);
        let size = number(CACHE_SIZE).map(|size| usize::try_from(size).unwrap_or(usize::MAX));
        let header = table.get(DEDUPLICATION_HEADER).and_then(FieldValue::as_str);
        let header = header.and_then(|name| ShortStr::try_from(name).ok());
        let header = header.unwrap_or_else(|| ShortStr::from_static(DEFAULT_HEADER));
        Self { header, size, ttl: number(CACHE_TTL) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Kept {
    key: MessageKey,
    /// 0: not by itself.
    expires_ms: u64,
}

#[derive(Debug)]
pub(crate) struct Keys {
    rules: KeyRules,
    /// By the message's index, or a number that counts up: the oldest first.
    kept: BTreeMap<u64, Kept>,
    /// The same by key.
    places: BTreeSet<(MessageKey, u64)>,
    /// The sum of what each of them is as a number: the same on every replica.
    sum: u64,
}

impl Keys {
    pub(crate) fn new(rules: KeyRules) -> Self {
        Self { rules, kept: BTreeMap::new(), places: BTreeSet::new(), sum: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.kept.len()
    }

    pub(crate) fn sum(&self) -> u64 {
        self.sum
    }

    /// Keys stay without their messages.
    pub(crate) fn outlive_messages(&self) -> bool {
        self.rules.size.is_some()
    }

    /// Of a message with these headers; `None`: it is nobody's duplicate.
    pub(crate) fn key_of(&self, headers: &FieldTable) -> Option<MessageKey> {
        // A name that is no text is nobody's header.
        headers.get(&self.rules.header.to_text()).and_then(key_of)
    }

    /// When the key of such a message, which comes now, is forgotten; 0: not by itself.
    pub(crate) fn expiry(&self, headers: &FieldTable, now_ms: u64) -> u64 {
        if !self.outlive_messages() {
            return 0;
        }
        let own = headers.get(CACHE_TTL).and_then(arguments::whole_or_text).filter(|ttl| *ttl > 0);
        own.or(self.rules.ttl).map_or(0, |ttl| now_ms.saturating_add(ttl))
    }

    /// Where the key is, as far as it is remembered at that time.
    pub(crate) fn find(&self, key: MessageKey, now_ms: u64) -> impl Iterator<Item = u64> {
        let places = self.places.range((key, 0)..=(key, u64::MAX)).map(|(_, place)| *place);
        places.filter(move |place| {
            self.kept.get(place).is_some_and(|kept| kept.expires_ms == 0 || kept.expires_ms > now_ms)
        })
    }

    /// A message has come into the queue, by a record from whose time `now_ms` is.
    pub(crate) fn note(&mut self, index: Index, headers: &FieldTable, now_ms: u64) {
        if let Some(key) = self.key_of(headers) {
            self.add(HeldKey { place: index.0, key, expires_ms: self.expiry(headers, now_ms) }, now_ms);
        }
    }

    /// A message has passed the exchange.
    pub(crate) fn pass(&mut self, key: MessageKey, expires_ms: u64, now_ms: u64) {
        let place = self.kept.last_key_value().map_or(1, |(last, _)| last.saturating_add(1));
        self.add(HeldKey { place, key, expires_ms }, now_ms);
    }

    /// `held`: above all that are here. The oldest go as far as there are too many, or they are due.
    fn add(&mut self, held: HeldKey, now_ms: u64) {
        if let Some(size) = self.rules.size {
            let former = self.find(held.key, 0).next();
            former.into_iter().for_each(|former| self.forget(former));
            let due = |kept: &Kept| (1..=now_ms).contains(&kept.expires_ms);
            while let Some((first, kept)) = self.kept.first_key_value()
                && (self.kept.len() >= size || due(kept))
            {
                self.forget(*first);
            }
        }
        self.put(held);
    }

    /// One that somebody else's state had.
    pub(crate) fn put(&mut self, HeldKey { place, key, expires_ms }: HeldKey) {
        self.forget(place);
        self.places.insert((key, place));
        let kept = Kept { key, expires_ms };
        self.kept.insert(place, kept);
        self.sum = self.sum.wrapping_add(number_of(place, kept));
    }

    /// Of a message of the queue's backlog.
    pub(crate) fn arrive(&mut self, index: Index, key: MessageKey) {
        if !self.outlive_messages() {
            self.put(HeldKey { place: index.0, key, expires_ms: 0 });
        }
    }

    fn forget(&mut self, place: u64) {
        let Some(kept) = self.kept.remove(&place) else { return };
        self.sum = self.sum.wrapping_sub(number_of(place, kept));
        self.places.remove(&(kept.key, place));
    }

    /// The message has left the queue.
    pub(crate) fn left(&mut self, index: Index) {
        if !self.outlive_messages() {
            self.forget(index.0);
        }
    }

    pub(crate) fn clear(&mut self) {
        (self.kept, self.places, self.sum) = (BTreeMap::new(), BTreeSet::new(), 0);
    }

    /// Oldest first.
    pub(crate) fn held(&self) -> impl Iterator<Item = HeldKey> {
        self.kept.iter().map(|(place, kept)| HeldKey { place: *place, key: kept.key, expires_ms: kept.expires_ms })
    }

    pub(crate) fn of(&self, index: Index) -> Option<MessageKey> {
        self.kept.get(&index.0).map(|kept| kept.key)
    }

    /// `holds`: whether the queue has that message.
    pub(crate) fn assert_consistent(&self, holds: impl Fn(Index) -> bool) {
        assert_eq!(self.kept.len(), self.places.len(), "each key is where it is");
        let is_twice = self.places.iter().zip(self.places.iter().skip(1)).any(|((one, _), (next, _))| one == next);
        assert!(!self.outlive_messages() || !is_twice, "each key is there once");
        let mut sum = 0_u64;
        for (place, kept) in &self.kept {
            assert!(self.places.contains(&(kept.key, *place)), "the place of a key");
            assert!(self.outlive_messages() || holds(Index(*place)), "the key of message {place}, which is gone");
            sum = sum.wrapping_add(number_of(*place, *kept));
        }
        assert_eq!(self.sum, sum, "the sum of the keys");
        assert!(self.rules.size.is_none_or(|size| self.kept.len() <= size), "more keys than there may be");
    }
}

/// Splitmix's finalizer over what is to be the same. It stands in logs: it never changes.
fn number_of(place: u64, kept: Kept) -> u64 {
    let mix = |value: u64| {
        let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    };
    let key = u128::from_be_bytes(kept.key.0);
    let [low, high] = [key as u64, (key >> 64) as u64];
    mix(mix(mix(mix(place.wrapping_add(0x9e37_79b9_7f4a_7c15)) ^ low) ^ high) ^ kept.expires_ms)
}

/// Numbers are the same whatever their width, and so are texts and octets; `1`, `"1"` and `1.0` are three. `None`: it is no
/// value by which a message is known.
fn key_of(value: &FieldValue) -> Option<MessageKey> {
    let mut hash = Sha256::new();
    match value {
        FieldValue::Text(bytes) | FieldValue::Binary(bytes) => {
            hash.update(b"s");
            hash.update(bytes);
        }
        FieldValue::Bool(value) => hash.update([b'b', u8::from(*value)]),
        FieldValue::F32(value) => hash.update([&b"f"[..], &f64::from(*value).to_be_bytes()].concat()),
        FieldValue::F64(value) => hash.update([&b"f"[..], &value.to_be_bytes()].concat()),
        FieldValue::Decimal { scale, value } => hash.update([&b"d"[..], &[*scale], &value.to_be_bytes()].concat()),
        FieldValue::Timestamp(seconds) => hash.update([&b"i"[..], &i128::from(*seconds).to_be_bytes()].concat()),
        FieldValue::Array(_) | FieldValue::Table(_) | FieldValue::Void => return None,
        number => hash.update([&b"i"[..], &i128::from(number.as_int()?).to_be_bytes()].concat()),
    }
    let hash = hash.finalize();
    Some(MessageKey(*hash.first_chunk().expect("a SHA-256 has 32 octets")))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn keys(size: Option<i64>, ttl: Option<i64>) -> Keys {
        let mut table = FieldTable::new().with("x-message-deduplication", true);
        for (name, value) in [(CACHE_SIZE, size), (CACHE_TTL, ttl)] {
            if let Some(value) = value {
                table.insert(ShortStr::from_static(name), value);
            }
        }
        Keys::new(KeyRules::of(&arguments::encode(&table)))
    }

    fn headers(key: i64) -> FieldTable {
        FieldTable::new().with(DEFAULT_HEADER, key)
    }

    fn has(keys: &Keys, key: i64, now_ms: u64) -> bool {
        keys.find(keys.key_of(&headers(key)).unwrap(), now_ms).next().is_some()
    }

    fn note(keys: &mut Keys, index: u64, key: i64, now_ms: u64) {
        keys.note(Index(index), &headers(key), now_ms);
        keys.assert_consistent(|_| true);
    }

    #[test]
    fn values_are_the_same_by_what_they_say() {
        let text = |text: &'static str| FieldValue::Text(Bytes::from_static(text.as_bytes()));
        let same = [
            (FieldValue::I8(7), FieldValue::I64(7)),
            (FieldValue::U32(7), FieldValue::Timestamp(7)),
            (text("a"), FieldValue::Binary(Bytes::from_static(b"a"))),
            (FieldValue::F32(0.5), FieldValue::F64(0.5)),
        ];
        same.iter().for_each(|(one, other)| assert_eq!(key_of(one), key_of(other), "{one:?} and {other:?}"));
        let apart = [FieldValue::I8(1), text("1"), FieldValue::F64(1.0), FieldValue::Bool(true), text(""), text("2")];
        for (place, one) in apart.iter().enumerate() {
            apart[..place].iter().for_each(|other| assert_ne!(key_of(one), key_of(other), "{one:?} and {other:?}"));
        }
        for none in [FieldValue::Void, FieldValue::Array(Vec::new()), FieldValue::Table(FieldTable::new())] {
            assert_eq!(key_of(&none), None, "{none:?}");
        }
        // It stands in logs.
        assert_eq!(key_of(&text("a")), Some(MessageKey(KEY_OF_A.to_be_bytes())));
        assert_eq!(key_of(&FieldValue::I8(-1)), Some(MessageKey(KEY_OF_MINUS_ONE.to_be_bytes())));
    }

    /// The first halves of the SHA-256 of `sa`, and of `i` and sixteen octets 255.
    const KEY_OF_A: u128 = 0x4cf6_829a_a937_28e8_f3c9_7df9_13fb_1bfa;
    const KEY_OF_MINUS_ONE: u128 = 0xaed0_645b_a34f_c953_8e66_23c5_c6f2_9871;

    #[test]
    fn a_key_goes_with_its_message() {
        let mut keys = keys(None, None);
        keys.note(Index(3), &headers(1), 0);
        keys.note(Index(4), &headers(2), 0);
        keys.note(Index(5), &FieldTable::new(), 0);
        assert_eq!(keys.len(), 2);
        keys.left(Index(3));
        assert!(!has(&keys, 1, 0) && has(&keys, 2, 0));
        // Whichever of two goes first.
        for (first, second) in [(6, 7), (7, 6)] {
            note(&mut keys, 6, 1, 0);
            note(&mut keys, 7, 1, 0);
            keys.left(Index(first));
            keys.assert_consistent(|index| index != Index(first));
            assert!(has(&keys, 1, 0));
            keys.left(Index(second));
            assert!(!has(&keys, 1, 0));
        }
        keys.left(Index(4));
        assert_eq!((keys.len(), keys.sum()), (0, 0));
    }

    #[test]
    fn the_oldest_go_when_there_are_too_many_or_they_are_due() {
        let mut keys = keys(Some(2), Some(100));
        note(&mut keys, 1, 1, 1000);
        keys.left(Index(1));
        assert!(has(&keys, 1, 1099) && !has(&keys, 1, 1100));
        note(&mut keys, 2, 2, 1050);
        note(&mut keys, 3, 3, 1060);
        assert!(!has(&keys, 1, 1060) && has(&keys, 2, 1060) && has(&keys, 3, 1060));
        note(&mut keys, 4, 2, 1150);
        assert_eq!(keys.held().map(|held| held.place).collect::<Vec<_>>(), [3, 4], "the same key once more");
        note(&mut keys, 5, 9, 1160);
        assert_eq!(keys.held().map(|held| held.place).collect::<Vec<_>>(), [4, 5]);
        note(&mut keys, 6, 8, 2000);
        assert_eq!(keys.held().map(|held| held.place).collect::<Vec<_>>(), [6]);
    }

    #[test]
    fn a_message_may_say_how_long_its_key_is_remembered() {
        let keys = keys(Some(2), Some(100));
        let expiry = |ttl: FieldValue| keys.expiry(&headers(1).with(CACHE_TTL, ttl), 1000);
        assert_eq!(expiry(FieldValue::I32(7)), 1007);
        assert_eq!(expiry(FieldValue::Text(Bytes::from_static(b"8"))), 1008);
        assert_eq!((expiry(FieldValue::I32(0)), expiry(FieldValue::Void)), (1100, 1100));
        assert_eq!(expiry(FieldValue::I64(i64::MAX)), 1000 + i64::MAX as u64);
    }
}
