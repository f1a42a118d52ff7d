//! The changes that the words of a command line ask for. Passwords are hashed here: no broker ever sees one that is set.

use anyhow::{Context, anyhow, ensure};
use serde_json::{Map, Value};
use understudy_definitions::{hash, to_arguments};
use understudy_proto::admin_change::Change;
use understudy_proto::{
    HashAlgorithm, Limit, LimitChange, PermissionDefinition, PolicyDefinition, TopicPermissionDefinition,
    UserDefinition, VhostDefinition, limit_change::Of,
};

use crate::arguments::{LimitName, LimitOf, PolicyOf};

pub(super) fn add_vhost(name: String, description: String, tags: Vec<String>) -> Change {
    Change::AddVhost(VhostDefinition { name, description, tags, ..VhostDefinition::default() })
}

pub(super) fn user(name: String, password: &str, tags: Vec<String>) -> anyhow::Result<UserDefinition> {
    let (algorithm, password_hash) = (HashAlgorithm::Argon2id.into(), hash(password)?);
    Ok(UserDefinition { name, algorithm, password_hash, tags, ..UserDefinition::default() })
}

pub(super) fn set_tags(name: String, tags: Vec<String>) -> Change {
    let algorithm = HashAlgorithm::Argon2id.into();
    Change::SetTags(UserDefinition { name, algorithm, tags, ..UserDefinition::default() })
}

/// `topic`: the exchange.
pub(super) fn set_permission(
    user: String,
    vhost: String,
    topic: Option<String>,
    patterns: Vec<String>,
) -> anyhow::Result<Change> {
    let mut patterns = patterns.into_iter();
    let (first, second, third) = (patterns.next(), patterns.next(), patterns.next());
    match (topic, first, second, third) {
        (None, Some(configure), Some(write), Some(read)) => {
            Ok(Change::SetPermission(PermissionDefinition { user, vhost, configure, write, read }))
        }
        (Some(exchange), Some(write), Some(read), None) => Ok(Change::SetTopicPermission(TopicPermissionDefinition {
            user,
            vhost,
            exchange: exchange.into_bytes().into(),
            write,
            read,
        })),
        (topic, ..) => {
            ensure!(topic.is_some(), "three patterns are needed: what it may configure, write to and read from");
            Err(anyhow!("with --topic two patterns are needed: which routing keys it may write and read"))
        }
    }
}

/// `topic`: the exchange, or all with an empty one.
pub(super) fn clear_permission(user: String, vhost: String, topic: Option<String>) -> Change {
    match topic {
        None => Change::ClearPermission(PermissionDefinition { user, vhost, ..PermissionDefinition::default() }),
        Some(exchange) => Change::ClearTopicPermission(TopicPermissionDefinition {
            user,
            vhost,
            exchange: exchange.into_bytes().into(),
            ..TopicPermissionDefinition::default()
        }),
    }
}

pub(super) fn set_limit(of: &LimitOf, name: LimitName, value: Option<u64>) -> Change {
    let of = match (&of.vhost, &of.user) {
        (Some(vhost), _) => Some(Of::Vhost(vhost.clone())),
        (None, user) => user.clone().map(Of::User),
    };
    let limit = match name {
        LimitName::Connections => Limit::MaxConnections,
        LimitName::Queues => Limit::MaxQueues,
        LimitName::Channels => Limit::MaxChannels,
    };
    Change::SetLimit(LimitChange { limit: limit.into(), value, of })
}

/// `definition`: a JSON object.
pub(super) fn set_policy(
    of: PolicyOf,
    name: String,
    pattern: String,
    definition: &str,
    priority: i64,
    apply_to: String,
) -> anyhow::Result<Change> {
    let definition: Map<String, Value> =
        serde_json::from_str(definition).context("the definition is no JSON object")?;
    let definition = to_arguments(&definition).map_err(|why| anyhow!(why))?;
    let PolicyOf { vhost, operator } = of;
    Ok(Change::SetPolicy(PolicyDefinition { vhost, operator, name, pattern, apply_to, priority, definition }))
}

pub(super) fn clear_policy(of: PolicyOf, name: String) -> Change {
    let PolicyOf { vhost, operator } = of;
    Change::ClearPolicy(PolicyDefinition { vhost, operator, name, ..PolicyDefinition::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_definition_is_a_json_object() {
        let set = |definition: &str| {
            let of = PolicyOf { vhost: "/".into(), operator: true };
            set_policy(of, "p".into(), "^a".into(), definition, -1, "queues".into())
        };
        let Change::SetPolicy(policy) = set(r#"{"max-length": 3}"#).unwrap() else { panic!("another change") };
        assert_eq!((policy.operator, policy.priority), (true, -1));
        assert_eq!(policy.definition.as_ref(), b"\x0amax-lengthl\0\0\0\0\0\0\0\x03");
        assert!(set("[1]").unwrap_err().to_string().contains("no JSON object"));
    }

    #[test]
    fn as_many_patterns_as_are_needed() {
        let set = |topic: Option<&str>, patterns: &[&str]| {
            let patterns = patterns.iter().map(|text| (*text).to_owned()).collect();
            set_permission("anna".into(), "/".into(), topic.map(str::to_owned), patterns)
        };
        assert!(matches!(set(None, &["a", "b", "c"]), Ok(Change::SetPermission(_))));
        assert!(matches!(set(Some("amq.topic"), &["a", "b"]), Ok(Change::SetTopicPermission(_))));
        assert!(set(None, &["a", "b"]).unwrap_err().to_string().contains("three"));
        assert!(set(Some("x"), &["a", "b", "c"]).unwrap_err().to_string().contains("two"));
    }
}
