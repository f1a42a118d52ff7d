//! `spec.resources` and `spec.memory`: what a broker is granted, and how it uses it.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::amount::Amount;

/// Requests and limits of the broker's container. Both are always set, so that a quota never refuses the pod; what is
/// absent here gets a default (requests 200m and 512Mi, limits 2 and 1Gi, a limit never below its request).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Resources {
    /// What a node must have free for the pod, by resource.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub requests: BTreeMap<String, Amount>,
    /// What the container may use at most, by resource.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub limits: BTreeMap<String, Amount>,
}

/// How each broker uses the memory that its container's limit grants it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Memory {
    /// Message bodies that are kept in memory; of the others only the index is, and they are read from disk ahead of their
    /// consumers. If absent: 40 % of the container's memory limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<Amount>,
    /// While the primary or an in-sync backup uses more of its memory limit than this, publishers wait; consumers and
    /// acknowledgements do not. They go on once it uses 5 % of the limit less.
    #[serde(default = "default_watermark_percent")]
    #[schemars(range(min = 10, max = 100))]
    pub watermark_percent: i32,
}

fn default_watermark_percent() -> i32 {
    crate::validated::DEFAULT_MEMORY_WATERMARK.into()
}

impl Default for Memory {
    fn default() -> Self {
        Self { budget: None, watermark_percent: default_watermark_percent() }
    }
}
