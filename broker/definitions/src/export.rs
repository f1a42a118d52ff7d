//! What a primary has, in RabbitMQ's format.

use serde_json::{Map, Value, json};
use understudy_proto::{Definitions, HashAlgorithm, VhostDefinition};

use crate::json::from_arguments;
use crate::{OWN_ALGORITHM, SHA256, SHA512};

/// In RabbitMQ's format.
pub fn export(definitions: Definitions) -> Value {
    let text = |octets: &bytes::Bytes| String::from_utf8_lossy(octets).into_owned();
    let limits = |limits: &[(&str, Option<u64>)]| {
        limits.iter().filter_map(|(name, value)| Some(((*name).to_owned(), json!((*value)?)))).collect::<Map<_, _>>()
    };
    let Definitions { vhosts, users, permissions, topic_permissions, policies, exchanges, queues, bindings, .. } =
        definitions;
    let vhost_limits = |vhost: &VhostDefinition| {
        limits(&[("max-connections", vhost.max_connections), ("max-queues", vhost.max_queues)])
    };
    let parameters = vhosts.iter().filter(|vhost| !vhost_limits(vhost).is_empty()).map(|vhost| {
        json!({"component": "vhost-limits", "name": "limits", "vhost": vhost.name, "value": vhost_limits(vhost)})
    });
    let (operators, policies): (Vec<_>, Vec<_>) = policies.iter().partition(|policy| policy.operator);
    let operators = operators.into_iter().map(|it| {
        let pairs = from_arguments(&it.definition).into_iter().map(|(name, value)| json!([name, value]));
        let value = json!({
            "pattern": it.pattern, "apply-to": it.apply_to, "priority": it.priority,
            "definition": pairs.collect::<Vec<_>>(),
        });
        json!({"component": "operator_policy", "name": it.name, "vhost": it.vhost, "value": value})
    });
    let policies = policies.into_iter().map(|it| {
        json!({
            "vhost": it.vhost, "name": it.name, "pattern": it.pattern, "apply-to": it.apply_to,
            "priority": it.priority, "definition": from_arguments(&it.definition),
        })
    });
    let vhosts_json = vhosts.iter().map(|vhost| {
        let limits: Vec<Value> = vhost_limits(vhost).into_iter().map(|(name, value)| json!([name, value])).collect();
        let metadata = json!({"description": vhost.description, "tags": vhost.tags});
        json!({"name": vhost.name, "limits": limits, "metadata": metadata})
    });
    let users = users.iter().map(|user| {
        let algorithm = match user.algorithm() {
            HashAlgorithm::RabbitSha256 => SHA256,
            HashAlgorithm::RabbitSha512 => SHA512,
            HashAlgorithm::Argon2id | HashAlgorithm::Unspecified => OWN_ALGORITHM,
        };
        json!({
            "name": user.name, "password_hash": user.password_hash, "hashing_algorithm": algorithm, "tags": user.tags,
            "limits": limits(&[("max-connections", user.max_connections), ("max-channels", user.max_channels)]),
        })
    });
    let permissions = permissions.iter().map(
        |it| json!({"user": it.user, "vhost": it.vhost, "configure": it.configure, "write": it.write, "read": it.read}),
    );
    let topic_permissions = topic_permissions.iter().map(|it| {
        json!({
            "user": it.user, "vhost": it.vhost, "exchange": text(&it.exchange), "write": it.write, "read": it.read,
        })
    });
    let exchanges = exchanges.iter().map(|it| {
        let mut exchange = json!({
            "name": text(&it.name), "vhost": it.vhost, "type": it.r#type, "durable": it.durable,
            "auto_delete": it.auto_delete, "arguments": from_arguments(&it.arguments),
        });
        if it.internal {
            exchange["internal"] = true.into();
        }
        exchange
    });
    let queues = queues.iter().map(|it| {
        let arguments = from_arguments(&it.arguments);
        let kind = arguments.get("x-queue-type").and_then(Value::as_str).unwrap_or("classic").to_owned();
        json!({
            "name": text(&it.name), "vhost": it.vhost, "type": kind, "durable": it.durable,
            "auto_delete": it.auto_delete, "arguments": arguments,
        })
    });
    let bindings = bindings.iter().map(|it| {
        json!({
            "source": text(&it.source), "vhost": it.vhost, "destination": text(&it.destination),
            "destination_type": if it.to_queue { "queue" } else { "exchange" },
            "routing_key": text(&it.routing_key), "arguments": from_arguments(&it.arguments),
        })
    });
    json!({
        "product_name": "Understudy",
        "product_version": env!("CARGO_PKG_VERSION"),
        "vhosts": vhosts_json.collect::<Vec<_>>(),
        "users": users.collect::<Vec<_>>(),
        "permissions": permissions.collect::<Vec<_>>(),
        "topic_permissions": topic_permissions.collect::<Vec<_>>(),
        "parameters": parameters.chain(operators).collect::<Vec<_>>(),
        "global_parameters": [],
        "policies": policies.collect::<Vec<_>>(),
        "exchanges": exchanges.collect::<Vec<_>>(),
        "queues": queues.collect::<Vec<_>>(),
        "bindings": bindings.collect::<Vec<_>>(),
    })
}
