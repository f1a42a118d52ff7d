//! Whether a live object already is what we would apply: no write when nothing changed. Pure.
//!
//! Every field we set must be there with our value; fields that others set (defaults, the status, their labels) do not
//! count. What we once set and do not set any more is found by the hash of what was applied, kept in an annotation.

use serde_json::Value;
use sha2::{Digest, Sha256};
use understudy_crds::Quantity;

pub(crate) const HASH_ANNOTATION: &str = "understudy.dev/applied-hash";

/// Of the object as built. Its `resourceVersion`, if it has one, is a precondition and not part of it.
pub(crate) fn hash(desired: &Value) -> String {
    let mut plain = desired.clone();
    if let Some(metadata) = plain.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("resourceVersion");
    }
    // serde_json keeps object keys sorted, so equal values have equal texts.
    Sha256::digest(plain.to_string().as_bytes()).iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

/// Whether `live` holds everything that `desired` says. Lists must have the same length, item by item.
pub(crate) fn covers(live: &Value, desired: &Value) -> bool {
    match (live, desired) {
        (Value::Object(live), Value::Object(desired)) => desired.iter().all(|(key, value)| match live.get(key) {
            Some(live) => covers(live, value),
            None => is_empty(value),
        }),
        (Value::Array(live), Value::Array(desired)) => {
            live.len() == desired.len() && live.iter().zip(desired).all(|(live, desired)| covers(live, desired))
        }
        (Value::String(live), Value::String(desired)) => live == desired || same_quantity(live, desired),
        _ => live == desired,
    }
}

/// The API server drops empty maps and lists.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(fields) => fields.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

/// The API server writes quantities its own way: `1000m` comes back as `1`.
fn same_quantity(live: &str, desired: &str) -> bool {
    matches!((live.parse::<Quantity>(), desired.parse::<Quantity>()), (Ok(live), Ok(desired)) if live == desired)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_others_add_does_not_count_and_what_is_ours_does() {
        let desired = json!({"spec": {"replicas": 3, "ports": [{"port": 1}], "cpu": "1000m", "none": {}}});
        let table = [
            (
                json!({"spec": {"replicas": 3, "ports": [{"port": 1, "protocol": "TCP"}], "cpu": "1", "x": 1}, "status": {}}),
                true,
            ),
            (json!({"spec": {"replicas": 2, "ports": [{"port": 1}], "cpu": "1"}}), false),
            (json!({"spec": {"replicas": 3, "ports": [{"port": 1}, {"port": 2}], "cpu": "1"}}), false),
            (json!({"spec": {"replicas": 3, "ports": [], "cpu": "1"}}), false),
            (json!({"spec": {"replicas": 3, "ports": [{"port": 1}]}}), false),
            (json!({"spec": {"replicas": 3, "ports": [{"port": 1}], "cpu": "2"}}), false),
        ];
        for (live, expected) in table {
            assert_eq!(covers(&live, &desired), expected, "{live}");
        }
    }

    #[test]
    fn the_hash_is_of_what_is_set_and_not_of_the_precondition() {
        let plain = json!({"metadata": {"name": "a"}, "spec": {"b": 1, "a": 2}});
        let with_version = json!({"spec": {"a": 2, "b": 1}, "metadata": {"name": "a", "resourceVersion": "7"}});
        assert_eq!(hash(&plain), hash(&with_version));
        assert_ne!(hash(&plain), hash(&json!({"metadata": {"name": "a"}, "spec": {"b": 1}})));
    }
}
