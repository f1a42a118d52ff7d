//! `spec.storage`: the volumes.

#![allow(unreachable_pub, reason = "KubeSchema derives a private twin of each type that carries its visibility")]

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::amount::Amount;

/// The volume of each replica.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("quantity(string(self.size)).compareTo(quantity(string(oldSelf.size))) >= 0").message(
        "storage.size can only grow: a volume cannot be made smaller"
    ),
    validation = Rule::new(
        "has(self.storageClassName) == has(oldSelf.storageClassName) && (!has(self.storageClassName) || self.storageClassName == oldSelf.storageClassName)"
    ).message("storage.storageClassName cannot be changed: the volumes exist already"),
    validation = Rule::new(
        "!has(self.freeWatermark) || quantity(string(self.freeWatermark)).add(quantity(string(self.freeWatermark))).compareTo(quantity(string(self.size))) <= 0"
    ).message("storage.freeWatermark must be at most half of storage.size: publishers would hardly ever go on")
)]
pub struct Storage {
    /// Of each replica's volume. It can grow, if the storage class allows that, and never shrink.
    #[serde(default = "default_size")]
    pub size: Amount,
    /// The namespace's default class if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub storage_class_name: Option<String>,
    /// While less than this is free on the volume of the primary or of an in-sync backup, publishers wait; consumers and
    /// acknowledgements do not. They go on once a fifth more is free. 0 turns it off. If absent: a tenth of the volume, at
    /// least 64Mi and at most 2Gi.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub free_watermark: Option<Amount>,
    /// What becomes of the volumes with the messages on them.
    #[serde(default)]
    pub retention: Retention,
}

/// What becomes of volumes that no pod has any more.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Retention {
    /// When the BrokerCluster is deleted. `Retain`: a cluster of the same name finds its messages again.
    #[serde(default)]
    pub when_deleted: WhatToDo,
    /// When `replicas` becomes smaller.
    #[serde(default)]
    pub when_scaled: WhatToDo,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum WhatToDo {
    #[default]
    Retain,
    Delete,
}

impl WhatToDo {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Retain => "Retain",
            Self::Delete => "Delete",
        }
    }
}

fn default_size() -> Amount {
    Amount::new("8Gi")
}

impl Default for Storage {
    fn default() -> Self {
        Self { size: default_size(), storage_class_name: None, free_watermark: None, retention: Retention::default() }
    }
}
