//! What a dead letter says: the message, as it is published again, with an account of its deaths in its headers (`x-death`,
//! `x-first-death-*`, `x-last-death-*`), and whether it goes in circles. As RabbitMQ does it; where it goes is the queue's rule,
//! when it is written is in `dead_letter`.

use bytes::Bytes;
use understudy_protocol::{FieldTable, FieldValue, Properties};
use understudy_record::{Message, ShortStr};

use crate::copies;
use crate::queue_rules::DeadLetterTo;

const DEATHS: &str = "x-death";

/// Why a message left its queue without having been consumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    Rejected,
    Expired,
    MaxLength,
    DeliveryLimit,
}

impl Reason {
    const fn name(self) -> &'static str {
        match self {
            Self::Rejected => "rejected",
            Self::Expired => "expired",
            Self::MaxLength => "maxlen",
            Self::DeliveryLimit => "delivery_limit",
        }
    }
}

/// A death, as it will be told.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Death<'a> {
    pub(crate) queue: &'a ShortStr,
    pub(crate) reason: Reason,
    /// Seconds since 1970.
    pub(crate) time: u64,
}

/// The message as it goes on.
#[derive(Debug)]
pub(crate) struct Letter {
    pub(crate) message: Message,
    /// Its routing keys beside the message's own.
    pub(crate) more_keys: Vec<ShortStr>,
    /// The newest first.
    deaths: Vec<FieldValue>,
    reason: Reason,
}

impl Letter {
    /// `message` keeps its body, or the reference to one.
    pub(crate) fn new(message: &Message, death: Death<'_>, to: &DeadLetterTo) -> Self {
        let mut properties = Properties::from_raw(message.properties.clone()).decode();
        let mut headers = properties.headers.take().unwrap_or_default();
        // What was taken from a publisher has well-formed ones.
        let (own_keys, _) = copies::keys(&headers).unwrap_or_default();
        let more_keys = match to.routing_key {
            Some(_) => {
                headers.remove(copies::CC);
                Vec::new()
            }
            None => own_keys.clone(),
        };
        let routing_keys = std::iter::once(&message.routing_key).chain(&own_keys).map(text).collect();
        let first = !headers.contains(DEATHS);
        let deaths = told(&headers, death, message, routing_keys, properties.expiration.take());
        let said = [
            ("reason", death.reason.name().into()),
            ("queue", text(death.queue)),
            ("exchange", text(&message.exchange)),
        ];
        for (what, value) in said {
            if first {
                headers.insert(name(&format!("x-first-death-{what}")), value.clone());
            }
            headers.insert(name(&format!("x-last-death-{what}")), value);
        }
        headers.insert(ShortStr::from_static(DEATHS), FieldValue::Array(deaths.clone()));
        properties.headers = Some(headers);
        let message = Message {
            exchange: to.exchange.clone(),
            routing_key: to.routing_key.as_ref().unwrap_or(&message.routing_key).clone(),
            properties: properties.encode().as_bytes().clone(),
            ..message.clone()
        };
        Self { message, more_keys, deaths, reason: death.reason }
    }

    /// It has been in `queue` before, and since then nobody has rejected it: by itself it would go round for ever (T13).
    pub(crate) fn goes_in_circles(&self, queue: &ShortStr) -> bool {
        if self.reason == Reason::Rejected {
            return false;
        }
        let says = |death: &FieldValue, what, wanted: &[u8]| entry(death, what).is_some_and(|found| found == wanted);
        let Some(last) = self.deaths.iter().position(|death| says(death, "queue", queue.as_bytes())) else {
            return false;
        };
        self.deaths[..=last].iter().all(|death| !says(death, "reason", Reason::Rejected.name().as_bytes()))
    }
}

/// All deaths, this one first: one entry for each queue and reason.
fn told(
    headers: &FieldTable,
    death: Death<'_>,
    message: &Message,
    routing_keys: Vec<FieldValue>,
    expiration: Option<ShortStr>,
) -> Vec<FieldValue> {
    let mut earlier = headers.get(DEATHS).and_then(FieldValue::as_array).unwrap_or_default().to_vec();
    let same = earlier.iter().position(|other| {
        let says = |what, wanted: &[u8]| entry(other, what).is_some_and(|found| found == wanted);
        says("queue", death.queue.as_bytes()) && says("reason", death.reason.name().as_bytes())
    });
    let newest = match same.map(|place| earlier.remove(place)) {
        Some(FieldValue::Table(mut again)) => {
            let count = again.get("count").and_then(FieldValue::as_int).unwrap_or(0);
            again.insert(ShortStr::from_static("count"), FieldValue::I64(count.saturating_add(1)));
            again
        }
        _ => {
            let mut table = FieldTable::new()
                .with("count", FieldValue::I64(1))
                .with("reason", FieldValue::from(death.reason.name()))
                .with("queue", text(death.queue))
                .with("time", FieldValue::Timestamp(death.time))
                .with("exchange", text(&message.exchange))
                .with("routing-keys", FieldValue::Array(routing_keys));
            if let Some(expiration) = expiration {
                table.insert(ShortStr::from_static("original-expiration"), text(&expiration));
            }
            table
        }
    };
    earlier.insert(0, FieldValue::Table(newest));
    earlier
}

/// A text of one death's account.
fn entry<'a>(death: &'a FieldValue, what: &str) -> Option<&'a Bytes> {
    death.as_table()?.get(what)?.as_bytes()
}

fn text(value: &ShortStr) -> FieldValue {
    value.clone().into()
}

fn name(text: &str) -> ShortStr {
    ShortStr::try_from(text).expect("a header's name is below 255 bytes")
}

#[cfg(test)]
mod tests {
    use understudy_protocol::BasicProperties;
    use understudy_record::Body;

    use super::*;

    fn to(routing_key: Option<&'static str>) -> DeadLetterTo {
        DeadLetterTo { exchange: ShortStr::from_static("dlx"), routing_key: routing_key.map(ShortStr::from_static) }
    }

    fn message(properties: BasicProperties) -> Message {
        Message {
            exchange: ShortStr::from_static("ex"),
            routing_key: ShortStr::from_static("key"),
            properties: properties.encode().as_bytes().clone(),
            persistent: true,
            parts: None,
            body: Body::default(),
        }
    }

    fn die(message: &Message, queue: &'static str, reason: Reason, time: u64, to: &DeadLetterTo) -> Letter {
        Letter::new(message, Death { queue: &ShortStr::from_static(queue), reason, time }, to)
    }

    fn headers(letter: &Letter) -> FieldTable {
        Properties::from_raw(letter.message.properties.clone()).headers().unwrap()
    }

    fn list(texts: &[&'static str]) -> FieldValue {
        FieldValue::Array(texts.iter().map(|text| FieldValue::Text(Bytes::from_static(text.as_bytes()))).collect())
    }

    /// Case T2.
    #[test]
    fn the_first_death_is_told_in_full() {
        let expiration = Some(ShortStr::from_static("500"));
        let letter = die(
            &message(BasicProperties { expiration, delivery_mode: Some(2), ..BasicProperties::default() }),
            "q",
            Reason::Rejected,
            7,
            &to(None),
        );
        assert_eq!(
            (letter.message.exchange.as_bytes(), letter.message.routing_key.as_bytes()),
            (b"dlx".as_slice(), b"key".as_slice())
        );
        let properties = Properties::from_raw(letter.message.properties.clone());
        assert_eq!((properties.expiration(), properties.delivery_mode()), (None, Some(2)));
        let death = FieldTable::new()
            .with("count", FieldValue::I64(1))
            .with("reason", "rejected")
            .with("queue", "q")
            .with("time", FieldValue::Timestamp(7))
            .with("exchange", "ex")
            .with("routing-keys", list(&["key"]))
            .with("original-expiration", "500");
        let expected = FieldTable::new()
            .with("x-first-death-reason", "rejected")
            .with("x-last-death-reason", "rejected")
            .with("x-first-death-queue", "q")
            .with("x-last-death-queue", "q")
            .with("x-first-death-exchange", "ex")
            .with("x-last-death-exchange", "ex")
            .with("x-death", FieldValue::Array(vec![FieldValue::Table(death)]));
        assert_eq!(headers(&letter), expected);
    }

    #[test]
    fn later_deaths_come_first_and_the_same_one_is_counted() {
        let first = die(&message(BasicProperties::default()), "a", Reason::Rejected, 1, &to(None));
        let second = die(&first.message, "b", Reason::MaxLength, 2, &to(Some("other")));
        let third = die(&second.message, "a", Reason::Rejected, 3, &to(None));
        let told: Vec<_> = third
            .deaths
            .iter()
            .map(|death| {
                let table = death.as_table().unwrap();
                let text = |what| table.get(what).and_then(FieldValue::as_str).unwrap().to_owned();
                let count = table.get("count").and_then(FieldValue::as_int).unwrap();
                (text("queue"), text("reason"), text("exchange"), count, table.get("time").cloned().unwrap())
            })
            .collect();
        let said = |queue: &str, reason: &str, exchange: &str, count, time| {
            (queue.to_owned(), reason.to_owned(), exchange.to_owned(), count, FieldValue::Timestamp(time))
        };
        assert_eq!(told, [said("a", "rejected", "ex", 2, 1), said("b", "maxlen", "dlx", 1, 2)]);
        let headers = headers(&third);
        let text = |name| headers.get(name).and_then(FieldValue::as_str).map(str::to_owned);
        assert_eq!(text("x-first-death-exchange").as_deref(), Some("ex"));
        assert_eq!(text("x-last-death-exchange").as_deref(), Some("dlx"));
        assert_eq!(third.message.routing_key, ShortStr::from_static("other"));
    }

    /// Case T4.
    #[test]
    fn another_key_takes_the_copies_away() {
        let copied = || BasicProperties {
            headers: Some(FieldTable::new().with("CC", list(&["x", "y"]))),
            ..BasicProperties::default()
        };
        let own = die(&message(copied()), "q", Reason::Rejected, 1, &to(None));
        assert_eq!(own.more_keys, ["x", "y"].map(ShortStr::from_static));
        assert!(headers(&own).contains("CC"));
        let other = die(&message(copied()), "q", Reason::Rejected, 1, &to(Some("z")));
        assert!(other.more_keys.is_empty() && !headers(&other).contains("CC"));
        for letter in [own, other] {
            let keys = letter.deaths[0].as_table().unwrap().get("routing-keys").cloned();
            assert_eq!(keys, Some(list(&["key", "x", "y"])));
        }
    }

    /// Case T13.
    #[test]
    fn a_circle_without_a_rejection_ends() {
        let circles = |letter: &Letter, queue| letter.goes_in_circles(&ShortStr::from_static(queue));
        let alone = die(&message(BasicProperties::default()), "a", Reason::MaxLength, 1, &to(None));
        assert!(circles(&alone, "a") && !circles(&alone, "b"));
        let rejected = die(&alone.message, "b", Reason::Rejected, 2, &to(None));
        assert!(!circles(&rejected, "a") && !circles(&rejected, "b"), "somebody wanted it so");
        let back = die(&rejected.message, "a", Reason::MaxLength, 3, &to(None));
        assert!(circles(&back, "a"), "it is in the queue that it comes from");
        assert!(!circles(&back, "b"), "b rejected it");
        let strange = BasicProperties {
            headers: Some(FieldTable::new().with("x-death", list(&["no table"]))),
            ..BasicProperties::default()
        };
        assert!(!circles(&die(&message(strange), "a", Reason::MaxLength, 1, &to(None)), "b"));
    }
}
