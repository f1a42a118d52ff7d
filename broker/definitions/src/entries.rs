//! The entries of a file, as it has them.

use serde::Deserialize;
use serde_json::{Map, Value};

#[derive(Deserialize)]
pub(crate) struct VhostEntry {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) description: Option<String>,
    #[serde(default)]
    pub(crate) tags: Value,
    #[serde(default)]
    pub(crate) metadata: Map<String, Value>,
    #[serde(default)]
    pub(crate) limits: Value,
}

#[derive(Deserialize)]
pub(crate) struct UserEntry {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) password_hash: Option<String>,
    #[serde(default)]
    pub(crate) password: Option<String>,
    #[serde(default)]
    pub(crate) hashing_algorithm: Option<String>,
    #[serde(default)]
    pub(crate) tags: Value,
    #[serde(default)]
    pub(crate) limits: Value,
}

#[derive(Deserialize)]
pub(crate) struct PermissionEntry {
    pub(crate) user: String,
    pub(crate) vhost: Option<String>,
    pub(crate) configure: String,
    pub(crate) write: String,
    pub(crate) read: String,
}

#[derive(Deserialize)]
pub(crate) struct TopicPermissionEntry {
    pub(crate) user: String,
    pub(crate) vhost: Option<String>,
    pub(crate) exchange: String,
    pub(crate) write: String,
    pub(crate) read: String,
}

#[derive(Deserialize)]
pub(crate) struct ExchangeEntry {
    pub(crate) name: String,
    pub(crate) vhost: Option<String>,
    pub(crate) r#type: String,
    #[serde(default)]
    pub(crate) durable: bool,
    #[serde(default)]
    pub(crate) auto_delete: bool,
    #[serde(default)]
    pub(crate) internal: bool,
    #[serde(default)]
    pub(crate) arguments: Map<String, Value>,
}

#[derive(Deserialize)]
pub(crate) struct QueueEntry {
    pub(crate) name: String,
    pub(crate) vhost: Option<String>,
    #[serde(default)]
    pub(crate) durable: bool,
    #[serde(default)]
    pub(crate) auto_delete: bool,
    #[serde(default)]
    pub(crate) arguments: Map<String, Value>,
}

#[derive(Deserialize)]
pub(crate) struct BindingEntry {
    pub(crate) source: String,
    pub(crate) vhost: Option<String>,
    pub(crate) destination: String,
    pub(crate) destination_type: String,
    #[serde(default)]
    pub(crate) routing_key: String,
    #[serde(default)]
    pub(crate) arguments: Map<String, Value>,
}

#[derive(Deserialize)]
pub(crate) struct PolicyEntry {
    pub(crate) name: String,
    pub(crate) vhost: Option<String>,
    #[serde(flatten)]
    pub(crate) value: PolicyValue,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct PolicyValue {
    pub(crate) pattern: String,
    #[serde(default)]
    pub(crate) apply_to: String,
    #[serde(default)]
    pub(crate) priority: i64,
    pub(crate) definition: Value,
}

#[derive(Deserialize)]
pub(crate) struct NamedEntry {
    #[serde(default)]
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) component: Option<String>,
    pub(crate) vhost: Option<String>,
    #[serde(default)]
    pub(crate) value: Value,
}
