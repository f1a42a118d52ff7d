//! Policies: what administrators set for many queues and exchanges at once, by their names, besides the arguments with which
//! these were declared; and operator policies, which bound what the others may set. They are the virtual host's.
//!
//! Of each kind at most one counts for a queue or exchange: of those that match its name, apply to what it is, and set nothing
//! that its type does not have, the one of the highest priority; among equals, where RabbitMQ does not say, the one whose name
//! comes first. Where policy and operator policy set the same number, the smaller counts; with an argument:
//!
//! | setting | counts |
//! | --- | --- |
//! | `max-length`, `max-length-bytes`, `message-ttl`, `delivery-limit`, `consumer-timeout` | the smallest |
//! | `expires` | the smallest; for a quorum queue the policy's |
//! | `overflow` | the argument; for a quorum queue the policy's |
//! | `dead-letter-exchange`, `dead-letter-routing-key`, `alternate-exchange` | the argument |
//! | `understudy-replicate` | the argument; later changes of the policy do not reach what is declared |
//!
//! A change holds from its record on, the same on every replica. Deadlines that messages have stay.
//!
//! Patterns are those of permissions: regular expressions that match anywhere unless they are anchored, without what looks
//! ahead or back, except for one that begins with `^(?!…)`, as `^(?!amq\.)`.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use regex::bytes::Regex;
use understudy_protocol::{FieldTable, FieldValue};
use understudy_record::{Admin, ApplyTo, PolicySpec, QueueId, QueueSpec, Replicate, ShortStr, VhostId};

use crate::access::compile;
use crate::administration::{Refusal, refused};
use crate::arguments::{self, QUEUE_TYPE, REPLICATE};
use crate::core::Core;
use crate::effect::Outputs;
use crate::limits::Overflow;
use crate::selective::replicate_named;
use crate::{MAX_POLICIES, MAX_POLICY_BYTES, MAX_TEXT_BYTES};

pub(crate) const ALTERNATE_EXCHANGE: &str = "alternate-exchange";
pub(crate) const CONSUMER_TIMEOUT: &str = "consumer-timeout";
pub(crate) const DEAD_LETTER_EXCHANGE: &str = "dead-letter-exchange";
pub(crate) const DEAD_LETTER_ROUTING_KEY: &str = "dead-letter-routing-key";
pub(crate) const DELIVERY_LIMIT: &str = "delivery-limit";
pub(crate) const EXPIRES: &str = "expires";
pub(crate) const MAX_LENGTH: &str = "max-length";
pub(crate) const MAX_LENGTH_BYTES: &str = "max-length-bytes";
pub(crate) const MESSAGE_TTL: &str = "message-ttl";
pub(crate) const OVERFLOW: &str = "overflow";

/// With the least value, and what a wrong one is called.
const NUMBERS: [(&str, i64, &str); 9] = [
    (CONSUMER_TIMEOUT, 0, "consumer timeout"),
    (DELIVERY_LIMIT, 0, "delivery limit"),
    (EXPIRES, 1, "queue expiry"),
    (MAX_LENGTH, 0, "maximum length"),
    (MAX_LENGTH_BYTES, 0, "maximum length in bytes"),
    ("max-in-memory-length", 0, "maximum memory in bytes"),
    ("max-in-memory-bytes", 0, "maximum memory in bytes"),
    (MESSAGE_TTL, 0, "message TTL"),
    ("initial-cluster-size", 0, "cluster size"),
];

const TEXTS: [(&str, &str); 3] = [
    (ALTERNATE_EXCHANGE, "alternate exchange name"),
    (DEAD_LETTER_EXCHANGE, "dead letter exchange name"),
    (DEAD_LETTER_ROUTING_KEY, "dead letter routing key"),
];

/// Taken, kept and shown, with whatever value; as the numbers that have no constant of their own they have no effect: every
/// queue is replicated, pages by itself, and is served by the primary.
const WITHOUT_EFFECT: [&str; 17] = [
    "dead-letter-strategy",
    "federation-upstream",
    "federation-upstream-pattern",
    "federation-upstream-set",
    "ha-mode",
    "ha-params",
    "ha-promote-on-failure",
    "ha-promote-on-shutdown",
    "ha-sync-batch-size",
    "ha-sync-mode",
    "max-age",
    "queue-leader-locator",
    "queue-master-locator",
    "queue-mode",
    "queue-version",
    "stream-max-segment-size-bytes",
    "target-group-size",
];

/// What an operator may set.
const OPERATORS: [&str; 7] =
    [DELIVERY_LIMIT, EXPIRES, "max-in-memory-bytes", "max-in-memory-length", MAX_LENGTH, MAX_LENGTH_BYTES, MESSAGE_TTL];

/// A policy with one of these does not apply to a classic queue, as in RabbitMQ.
const NOT_OF_CLASSIC: [&str; 6] = [
    "dead-letter-strategy",
    DELIVERY_LIMIT,
    "initial-cluster-size",
    "max-age",
    "queue-leader-locator",
    "stream-max-segment-size-bytes",
];

/// The same for a quorum queue.
const NOT_OF_QUORUM: [&str; 10] = [
    "ha-mode",
    "ha-params",
    "ha-promote-on-failure",
    "ha-promote-on-shutdown",
    "ha-sync-mode",
    "initial-cluster-size",
    "max-age",
    "queue-master-locator",
    "queue-mode",
    "stream-max-segment-size-bytes",
];

/// What a policy applies to, or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Exchange,
    Classic,
    Quorum,
}

impl Target {
    /// `arguments`: of a queue, checked.
    pub(crate) fn of_queue(arguments: &FieldTable) -> Self {
        match arguments.get(QUEUE_TYPE).and_then(FieldValue::as_str) {
            Some("quorum") => Self::Quorum,
            _ => Self::Classic,
        }
    }
}

/// Of one virtual host: those of users, and those of operators, each the highest priority first.
#[derive(Debug, Default)]
pub(crate) struct Policies([Vec<Policy>; 2]);

#[derive(Debug)]
struct Policy {
    spec: PolicySpec,
    pattern: NamePattern,
    definition: FieldTable,
}

/// Those that count for one queue or exchange.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Settings<'a>([Option<&'a Policy>; 2]);

/// Regular expressions on octets.
#[derive(Clone, Debug)]
struct NamePattern {
    /// `None`: nothing matches.
    matches: Option<Arc<Regex>>,
    /// Of what these match nothing is.
    except: Option<Arc<Regex>>,
}

impl NamePattern {
    fn new(text: &str) -> Result<Self, String> {
        let regex = |text: &str| compile(text).map(|regex| Some(Arc::new(regex)));
        match without_lookahead(text) {
            Some((except, rest)) => {
                Ok(Self { matches: regex(&format!("^{rest}"))?, except: regex(&format!("^(?:{except})"))? })
            }
            None => Ok(Self { matches: regex(text)?, except: None }),
        }
    }

    /// One that was accepted once, by another build perhaps: what this one does not understand matches nothing.
    fn known(text: &str) -> Self {
        Self::new(text).unwrap_or(Self { matches: None, except: None })
    }

    fn is_match(&self, name: &ShortStr) -> bool {
        let is_match = |regex: &Arc<Regex>| regex.is_match(name.as_bytes());
        self.matches.as_ref().is_some_and(is_match) && !self.except.as_ref().is_some_and(is_match)
    }
}

/// Of `^(?!a)b` the `a` and the `b`, unless the `^(?!a)` is of a part only.
fn without_lookahead(text: &str) -> Option<(&str, &str)> {
    let inside = text.strip_prefix("^(?!")?;
    let (mut depth, mut in_class, mut escaped, mut end) = (1_u32, false, false, None);
    for (at, octet) in inside.bytes().enumerate() {
        match octet {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'[' if !in_class => in_class = true,
            b']' => in_class = false,
            _ if in_class => {}
            b'(' => depth += 1,
            b')' if depth == 0 => return None,
            b')' => {
                depth -= 1;
                if depth == 0 && end.is_none() {
                    end = Some(at);
                }
            }
            b'|' if depth == 0 => return None,
            _ => {}
        }
    }
    end.map(|end| (&inside[..end], &inside[end + 1..]))
}

impl Policy {
    fn new(spec: PolicySpec) -> Self {
        let pattern = NamePattern::known(&spec.pattern);
        let definition = arguments::decode(&spec.definition).unwrap_or_default().detached();
        Self { spec, pattern, definition }
    }

    fn applies_to(&self, target: Target) -> bool {
        let applies = match self.spec.apply_to {
            ApplyTo::All => true,
            ApplyTo::Queues => target != Target::Exchange,
            ApplyTo::ClassicQueues => target == Target::Classic,
            ApplyTo::QuorumQueues => target == Target::Quorum,
            ApplyTo::Exchanges => target == Target::Exchange,
            ApplyTo::Streams => false,
        };
        let none_of = |keys: &[&str]| !keys.iter().any(|key| self.definition.contains(key));
        applies
            && match target {
                Target::Exchange => true,
                Target::Classic => none_of(&NOT_OF_CLASSIC),
                Target::Quorum => none_of(&NOT_OF_QUORUM),
            }
    }

    fn order(&self) -> (std::cmp::Reverse<i64>, &ShortStr) {
        (std::cmp::Reverse(self.spec.priority), &self.spec.name)
    }
}

/// The names that a change of policies may concern.
#[derive(Debug)]
pub(crate) struct Concerned(Vec<NamePattern>);

impl Concerned {
    pub(crate) fn has(&self, name: &ShortStr) -> bool {
        self.0.iter().any(|pattern| pattern.is_match(name))
    }
}

impl Policies {
    /// It takes the place of the one of its name.
    pub(crate) fn put(&mut self, operator: bool, spec: &PolicySpec) -> Concerned {
        let before = self.take(operator, &spec.name);
        let policy = Policy::new(PolicySpec {
            name: spec.name.detached(),
            pattern: spec.pattern.clone(),
            definition: Bytes::copy_from_slice(&spec.definition),
            ..*spec
        });
        let concerned = before.map(|policy| policy.pattern).into_iter().chain([policy.pattern.clone()]).collect();
        let all = &mut self.0[usize::from(operator)];
        let place = all.partition_point(|other| other.order() < policy.order());
        all.insert(place, policy);
        Concerned(concerned)
    }

    /// `None`: there is none of this name.
    pub(crate) fn delete(&mut self, operator: bool, name: &ShortStr) -> Option<Concerned> {
        self.take(operator, name).map(|policy| Concerned(vec![policy.pattern]))
    }

    fn take(&mut self, operator: bool, name: &ShortStr) -> Option<Policy> {
        let all = &mut self.0[usize::from(operator)];
        let place = all.iter().position(|policy| policy.spec.name == *name)?;
        Some(all.remove(place))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.iter().all(Vec::is_empty)
    }

    /// Each with whether it is an operator's, the highest priority of users' first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (bool, &PolicySpec)> {
        let [users, operators] = &self.0;
        let users = users.iter().map(|policy| (false, &policy.spec));
        users.chain(operators.iter().map(|policy| (true, &policy.spec)))
    }

    /// As the changes that make them, in a fixed order.
    pub(crate) fn changes(&self, vhost: VhostId) -> impl Iterator<Item = Admin> {
        self.iter().map(move |(operator, spec)| Admin::PolicyPut { vhost, operator, policy: spec.clone() })
    }

    pub(crate) fn of(&self, target: Target, name: &ShortStr) -> Settings<'_> {
        if self.is_empty() {
            return Settings::default();
        }
        Settings(
            self.0
                .each_ref()
                .map(|all| all.iter().find(|policy| policy.applies_to(target) && policy.pattern.is_match(name))),
        )
    }

    pub(crate) fn of_queue(&self, spec: &QueueSpec) -> Settings<'_> {
        if self.is_empty() {
            return Settings::default();
        }
        let arguments = arguments::decode(&spec.arguments).unwrap_or_default();
        self.of(Target::of_queue(&arguments), &spec.name)
    }
}

impl<'a> Settings<'a> {
    pub(crate) fn is_empty(self) -> bool {
        self.0.iter().all(Option::is_none)
    }

    fn values(self, key: &str) -> impl Iterator<Item = &'a FieldValue> {
        self.0.into_iter().flatten().filter_map(move |policy| policy.definition.get(key))
    }

    pub(crate) fn number(self, key: &str) -> Option<u64> {
        self.values(key).filter_map(FieldValue::as_int).filter_map(|value| u64::try_from(value).ok()).min()
    }

    pub(crate) fn text(self, key: &str) -> Option<&'a str> {
        self.values(key).find_map(FieldValue::as_str)
    }

    pub(crate) fn replicate(self) -> Option<Replicate> {
        self.text(replicate_key()).and_then(replicate_named)
    }
}

/// The argument's name without the `x-`.
fn replicate_key() -> &'static str {
    REPLICATE.trim_start_matches("x-")
}

impl Core {
    pub(crate) fn set_policy(
        &mut self,
        vhost: &ShortStr,
        operator: bool,
        mut policy: PolicySpec,
        out: &mut Outputs,
    ) -> Result<(), Refusal> {
        let vhost = self.vhost_id(vhost)?;
        if policy.name.is_empty() || std::str::from_utf8(policy.name.as_bytes()).is_err() {
            return refused("a policy needs a name, which is text");
        }
        if policy.pattern.len() > MAX_TEXT_BYTES {
            return refused(format!("a text of more than {MAX_TEXT_BYTES} octets"));
        }
        if policy.definition.len() > MAX_POLICY_BYTES {
            return refused(format!("a definition of more than {MAX_POLICY_BYTES} octets"));
        }
        if let Err(why) = NamePattern::new(&policy.pattern) {
            return refused(format!("pattern should be regular expression but is invalid: {why}"));
        }
        policy.definition = arguments::sorted(&policy.definition).or_else(|failure| refused(failure.text()))?;
        let definition = arguments::decode(&policy.definition).unwrap_or_default();
        check(&definition, operator).or_else(refused)?;
        let policies = &self.state.vhost(vhost).policies;
        if policies.iter().any(|(of, known)| of == operator && *known == policy) {
            return Ok(());
        }
        let others = policies.iter().filter(|(of, known)| *of == operator && known.name != policy.name);
        if others.count() >= MAX_POLICIES {
            return refused(format!("there are {MAX_POLICIES} policies in this virtual host, the most there may be"));
        }
        self.write_policy(vhost, Admin::PolicyPut { vhost, operator, policy }, out)
    }

    pub(crate) fn clear_policy(
        &mut self,
        vhost: &ShortStr,
        operator: bool,
        name: ShortStr,
        out: &mut Outputs,
    ) -> Result<(), Refusal> {
        let id = self.vhost_id(vhost)?;
        if !self.state.vhost(id).policies.iter().any(|(of, known)| of == operator && known.name == name) {
            let kind = if operator { "operator policy" } else { "policy" };
            return refused(format!("there is no {kind} '{name}' in virtual host '{vhost}'"));
        }
        self.write_policy(id, Admin::PolicyDelete { vhost: id, operator, name }, out)
    }

    /// What a queue is let have may be less than it has, and it may go sooner or later than was thought.
    fn write_policy(&mut self, vhost: VhostId, change: Admin, out: &mut Outputs) -> Result<(), Refusal> {
        let queues: Vec<QueueId> = self.state.vhost(vhost).names.values().copied().collect();
        let lives = |core: &Self, id: &QueueId| core.state.queues.get(id).and_then(|queue| queue.rules.expires);
        let before: BTreeMap<QueueId, Option<u64>> = queues.iter().map(|id| (*id, lives(self, id))).collect();
        self.write_admin(change, out)?;
        for (id, expires) in before {
            self.watch_length(id);
            if lives(self, &id) != expires {
                self.renew_use(id);
            }
        }
        Ok(())
    }
}

/// # Errors
/// In RabbitMQ's words, what a policy cannot set.
fn check(definition: &FieldTable, operator: bool) -> Result<(), String> {
    if definition.is_empty() {
        return Err("no policy provided".to_owned());
    }
    let (mut unknown, mut wrong) = (Vec::new(), None);
    for (name, value) in definition.iter() {
        let key = std::str::from_utf8(name.as_bytes()).unwrap_or_default();
        let invalid = |what: &str| Some(format!("{} is not a valid {what}", term(value)));
        let verdict = if operator && !OPERATORS.contains(&key) {
            Err(())
        } else if let Some((_, least, what)) = NUMBERS.iter().find(|(known, ..)| *known == key) {
            Ok(if value.as_int().is_some_and(|value| value >= *least) { None } else { invalid(what) })
        } else if let Some((_, what)) = TEXTS.iter().find(|(known, _)| *known == key) {
            let short = value.as_str().is_some_and(|text| text.len() <= ShortStr::MAX_BYTES);
            Ok(if short { None } else { invalid(what) })
        } else if key == OVERFLOW {
            let known = value.as_str().and_then(Overflow::from_name);
            Ok(if known.is_some() { None } else { invalid("overflow value") })
        } else if key == replicate_key() {
            let known = value.as_str().and_then(replicate_named);
            Ok(if known.is_some() { None } else { invalid("understudy-replicate value") })
        } else if WITHOUT_EFFECT.contains(&key) {
            Ok(None)
        } else {
            Err(())
        };
        match verdict {
            Ok(why) => wrong = wrong.or(why),
            Err(()) => unknown.push(format!("{{<<\"{key}\">>,{}}}", term(value))),
        }
    }
    match wrong {
        Some(why) => Err(why),
        None if !unknown.is_empty() => Err(format!("[{}] are not recognised policy settings", unknown.join(","))),
        None => Ok(()),
    }
}

/// As Erlang shows it.
fn term(value: &FieldValue) -> String {
    let list = |items: Vec<String>| format!("[{}]", items.join(","));
    if let Some(number) = value.as_int() {
        return number.to_string();
    }
    match value {
        FieldValue::Text(text) | FieldValue::Binary(text) => format!("<<\"{}\">>", String::from_utf8_lossy(text)),
        FieldValue::F64(number) => format!("{number:?}"),
        FieldValue::Void => "null".to_owned(),
        FieldValue::Array(values) => list(values.iter().map(term).collect()),
        FieldValue::Table(table) => {
            list(table.iter().map(|(name, value)| format!("{{<<\"{name}\">>,{}}}", term(value))).collect())
        }
        value => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, name: &'static str) -> bool {
        NamePattern::new(pattern).unwrap().is_match(&ShortStr::from_static(name))
    }

    #[test]
    fn a_pattern_matches_anywhere_and_may_begin_with_what_it_must_not() {
        assert!(matches("b", "abc") && matches("", "abc") && !matches("^b", "abc"));
        for (pattern, one, other) in [
            (r"^(?!amq\.).*", "orders", "amq.gen-1"),
            (r"^(?!amq\.)", "amqx", "amq."),
            (r"^(?!(a|b[)(])x).", "ay", "b)x"),
            (r"^(?!a)b+$", "bb", "bc"),
        ] {
            assert!(matches(pattern, one), "{pattern} {one}");
            assert!(!matches(pattern, other), "{pattern} {other}");
        }
        // Of a part only, or elsewhere.
        for pattern in ["^(?!a)b|c", "a(?!b)", "^(?=a)", "(", "^(?!a"] {
            assert!(NamePattern::new(pattern).is_err(), "{pattern}");
        }
    }

    fn refusal(name: &'static str, value: impl Into<FieldValue>, operator: bool) -> String {
        check(&FieldTable::new().with(name, value), operator).err().unwrap_or_default()
    }

    fn text(text: &'static str) -> FieldValue {
        FieldValue::Text(Bytes::from_static(text.as_bytes()))
    }

    #[test]
    fn what_cannot_be_set_is_refused_in_rabbitmq_s_words() {
        assert_eq!(check(&FieldTable::new(), false), Err("no policy provided".to_owned()));
        assert_eq!(refusal("foo", 1_i32, false), r#"[{<<"foo">>,1}] are not recognised policy settings"#);
        let both = FieldTable::new().with("bar", text("a")).with("foo", 1_i32);
        assert_eq!(
            check(&both, false).unwrap_err(),
            r#"[{<<"bar">>,<<"a">>},{<<"foo">>,1}] are not recognised policy settings"#
        );
        let both = FieldTable::new().with("foo", 1_i32).with("max-length", -1_i32);
        assert_eq!(check(&both, false).unwrap_err(), "-1 is not a valid maximum length");
        assert_eq!(refusal("max-length", text("a"), false), r#"<<"a">> is not a valid maximum length"#);
        assert_eq!(refusal("max-length", FieldValue::F64(1.5), false), "1.5 is not a valid maximum length");
        assert_eq!(refusal("message-ttl", -1_i32, false), "-1 is not a valid message TTL");
        assert_eq!(refusal("expires", 0_i32, false), "0 is not a valid queue expiry");
        assert_eq!(refusal("dead-letter-exchange", 1_i32, false), "1 is not a valid dead letter exchange name");
        assert_eq!(refusal("overflow", text("spill"), false), r#"<<"spill">> is not a valid overflow value"#);
        assert_eq!(refusal("overflow", text("drop-head"), false), "");
        let unknown = r#"[{<<"overflow">>,<<"drop-head">>}] are not recognised policy settings"#;
        assert_eq!(refusal("overflow", text("drop-head"), true), unknown);
        assert_eq!(refusal("max-length", 0_i32, true), "");
        assert_eq!(refusal("understudy-replicate", text("none"), false), "");
        assert_ne!(refusal("understudy-replicate", text("no"), false), "");
    }

    #[test]
    fn what_has_no_effect_is_taken() {
        for key in WITHOUT_EFFECT {
            let table: FieldTable = [(ShortStr::from_static(key), text("x"))].into_iter().collect();
            assert_eq!(check(&table, false), Ok(()), "{key}");
        }
    }
}
