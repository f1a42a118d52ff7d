//! `spec.users` and `spec.definitions`: what is in the cluster from the beginning.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One user who may do everything. If `secretName` is absent the operator makes one with a password of its own. Either way the
/// Secret `NAME-user` has what an application needs: `username`, `password`, `host`, `port`, `uri`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Users {
    /// A Secret with `username` and `password`, in the cluster's namespace, that somebody else keeps. A change counts within
    /// half a minute, for connections that begin then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub secret_name: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConfigMapKeyRef {
    /// The ConfigMap's name, in the cluster's namespace.
    #[schemars(length(min = 1, max = 253))]
    pub config_map_name: String,
    /// The key in it.
    #[serde(default = "default_definitions_key")]
    #[schemars(length(min = 1, max = 253))]
    pub key: String,
}

fn default_definitions_key() -> String {
    "definitions.json".into()
}
