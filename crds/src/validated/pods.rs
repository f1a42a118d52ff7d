//! What a spec says of pods beyond what the operator makes of them by itself.

use k8s_openapi::api::core::v1::{Affinity, PodSpec};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::InvalidCluster;
use crate::spec::{PodTemplate, Scheduling};

/// Labels and annotations that selectors and the operator itself rest on.
const RESERVED: [&str; 2] = ["app.kubernetes.io/", "understudy.dev/"];

/// Of the broker's container, what makes it a broker of this cluster.
const RESERVED_OF_BROKER: [&str; 3] = ["image", "command", "args"];

pub(super) fn parse_affinity(scheduling: &Scheduling) -> Result<Option<Affinity>, InvalidCluster> {
    let affinity = scheduling.affinity.as_ref();
    affinity.map(|affinity| shaped("spec.scheduling.affinity", affinity)).transpose()
}

pub(super) fn check_template(template: &PodTemplate) -> Result<(), InvalidCluster> {
    let reserved = |key: &&String| RESERVED.iter().any(|prefix| key.starts_with(prefix));
    for (kind, map) in [("labels", &template.metadata.labels), ("annotations", &template.metadata.annotations)] {
        if let Some(key) = map.keys().find(reserved) {
            return Err(InvalidCluster::Reserved(format!("metadata.{kind}[{key}]")));
        }
    }
    let Some(spec) = &template.spec else { return Ok(()) };
    let containers = spec.get("containers").and_then(Value::as_array);
    let broker =
        containers.and_then(|all| all.iter().find(|c| c.get("name").and_then(Value::as_str) == Some("broker")));
    if let Some(field) =
        RESERVED_OF_BROKER.iter().find(|field| broker.is_some_and(|broker| broker.get(**field).is_some()))
    {
        return Err(InvalidCluster::Reserved(format!("spec.containers[broker].{field}")));
    }
    // What is in it has the right types, though a part alone lacks what the whole has.
    let mut whole = spec.clone();
    if let Some(fields) = whole.as_object_mut() {
        fields.entry("containers").or_insert_with(|| Value::Array(Vec::new()));
    }
    shaped::<PodSpec>("spec.podTemplate.spec", &whole).map(drop)
}

fn shaped<T: DeserializeOwned>(field: &'static str, value: &Value) -> Result<T, InvalidCluster> {
    serde_json::from_value(value.clone()).map_err(|error| {
        let why = error.to_string().chars().take(200).collect();
        InvalidCluster::Shape { field, why }
    })
}
