//! The spec as the API server stores it, with the schema's defaults and CEL rules.
//!
//! A field is here only if something acts on it. Defaults that depend on other fields (`minInSync`, limits) are not in the
//! schema: they are resolved by the parse.

#![allow(unreachable_pub, reason = "KubeSchema derives a private twin of each type that carries its visibility")]

use std::collections::BTreeMap;

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::amount::Amount;
use crate::status::BrokerClusterStatus;

/// A hot-standby message broker: one primary, the other replicas backups that hold every confirmed message.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "understudy.dev",
    version = "v1alpha1",
    kind = "BrokerCluster",
    plural = "brokerclusters",
    shortname = "bc",
    category = "all",
    namespaced,
    derive = "PartialEq",
    status = "BrokerClusterStatus",
    doc = "A hot-standby AMQP broker: one primary, and backups that hold every confirmed message and take over when it dies.",
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    printcolumn(
        name = "Primary",
        type_ = "string",
        json_path = ".status.primary",
        description = "The replica that serves clients"
    ),
    printcolumn(
        name = "Epoch",
        type_ = "integer",
        json_path = ".status.epoch",
        description = "Counts the primaries the cluster has had"
    ),
    printcolumn(
        name = "In-Sync",
        type_ = "integer",
        json_path = ".status.inSyncReplicas",
        description = "Replicas that hold every confirmed message, the primary included"
    ),
    printcolumn(name = "Ready", type_ = "string", json_path = r#".status.conditions[?(@.type=="Ready")].status"#),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].reason"#,
        priority = 1
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    validation = Rule::new("self.metadata.name.size() <= 40 && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')").message(
        "a BrokerCluster's name becomes part of Service and pod names: at most 40 characters, lower case letters, digits and '-', starting with a letter"
    ),
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.minInSync) || self.minInSync <= self.replicas").message(
    "minInSync must not be greater than replicas: no message could ever be confirmed"
))]
pub struct BrokerClusterSpec {
    /// Brokers in the cluster, the primary included. Odd or even makes no difference: there is no majority vote.
    #[serde(default = "default_replicas")]
    #[schemars(range(min = 1, max = 9))]
    pub replicas: i32,
    /// Image of the broker; the operator's own default if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub image: Option<String>,
    #[serde(default)]
    pub image_pull_policy: PullPolicy,
    /// How many replicas, the primary included, must hold a message before its publisher gets a confirm. With fewer in
    /// sync nothing is confirmed. If absent: 2, or 1 with one replica.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 9))]
    pub min_in_sync: Option<i32>,
    /// What a confirm of a persistent message means: `Fsync`, on the disk of every in-sync replica; `Replicated`, in their memory.
    #[serde(default)]
    #[x_kube(validation = Rule::new("self == oldSelf").message(
        "durability cannot be changed on a running cluster: make a new one and move the messages"
    ))]
    pub durability: Durability,
    #[serde(default)]
    pub storage: Storage,
    #[serde(default)]
    pub resources: Resources,
    #[serde(default)]
    pub memory: Memory,
    #[serde(default)]
    pub failover: Failover,
    #[serde(default)]
    pub clients: Clients,
    #[serde(default)]
    pub primary: Primary,
    #[serde(default)]
    pub replication: Replication,
}

fn default_replicas() -> i32 {
    3
}

impl Default for BrokerClusterSpec {
    fn default() -> Self {
        Self {
            replicas: default_replicas(),
            image: None,
            image_pull_policy: PullPolicy::default(),
            min_in_sync: None,
            durability: Durability::default(),
            storage: Storage::default(),
            resources: Resources::default(),
            memory: Memory::default(),
            failover: Failover::default(),
            clients: Clients::default(),
            primary: Primary::default(),
            replication: Replication::default(),
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum PullPolicy {
    Always,
    #[default]
    IfNotPresent,
    Never,
}

impl PullPolicy {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Always => "Always",
            Self::IfNotPresent => "IfNotPresent",
            Self::Never => "Never",
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum Durability {
    #[default]
    Fsync,
    Replicated,
}

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
}

fn default_size() -> Amount {
    Amount::new("8Gi")
}

impl Default for Storage {
    fn default() -> Self {
        Self { size: default_size(), storage_class_name: None, free_watermark: None }
    }
}

/// Requests and limits of the broker's container. Both are always set, so that a quota never refuses the pod; what is
/// absent here gets a default (requests 200m and 512Mi, limits 2 and 1Gi, a limit never below its request).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Resources {
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub requests: BTreeMap<String, Amount>,
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

/// Times of failover: a number and `ms`, `s` or `m`.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("duration(self.backupTimeout) <= duration(self.leaseDuration)").message(
    "failover.backupTimeout must not be longer than failover.leaseDuration"
))]
pub struct Failover {
    /// Without the operator, a backup stands once the Lease has not been renewed for this long.
    #[serde(default = "default_lease_duration")]
    #[schemars(regex(pattern = "^[0-9]+(ms|s|m)$"), length(max = 10))]
    #[x_kube(validation = Rule::new("duration(self) >= duration('1s') && duration(self) <= duration('10m')").message(
        "failover.leaseDuration must lie between 1s and 10m"
    ))]
    pub lease_duration: String,
    /// Silence after which a peer counts as lost; also the longest that confirms wait for a backup that hangs.
    #[serde(default = "default_backup_timeout")]
    #[schemars(regex(pattern = "^[0-9]+(ms|s|m)$"), length(max = 10))]
    #[x_kube(validation = Rule::new("duration(self) >= duration('200ms') && duration(self) <= duration('5m')").message(
        "failover.backupTimeout must lie between 200ms and 5m"
    ))]
    pub backup_timeout: String,
    /// A primary whose journal has made no progress for this long is replaced.
    #[serde(default = "default_stall_timeout")]
    #[schemars(regex(pattern = "^[0-9]+(ms|s|m)$"), length(max = 10))]
    #[x_kube(validation = Rule::new("duration(self) >= duration('1s') && duration(self) <= duration('10m')").message(
        "failover.stallTimeout must lie between 1s and 10m"
    ))]
    pub stall_timeout: String,
}

fn default_lease_duration() -> String {
    "5s".into()
}

fn default_backup_timeout() -> String {
    "2s".into()
}

fn default_stall_timeout() -> String {
    "10s".into()
}

impl Default for Failover {
    fn default() -> Self {
        Self {
            lease_duration: default_lease_duration(),
            backup_timeout: default_backup_timeout(),
            stall_timeout: default_stall_timeout(),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Clients {
    /// What happens to a client that reaches a backup: `Relay`, its bytes go to the primary; `Refuse`, it is closed with a
    /// text that names the primary.
    #[serde(default)]
    pub backup_connections: BackupConnections,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum BackupConnections {
    #[default]
    Relay,
    Refuse,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Primary {
    /// Pod that should be the primary, like `orders-0`. An election prefers it among those equally far; while another one
    /// serves the role is handed over to it once it has been in sync for half a minute, and no sooner than a minute after the
    /// last change of primary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub preferred: Option<String>,
}

/// How backups get what they lack, and what they get at all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Replication {
    /// Bytes a second that the primary gives to backups which catch up, all together, like `50Mi`. If absent: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub catch_up_bandwidth: Option<Amount>,
    /// Backups that catch up at the same time; the others wait for their turn.
    #[serde(default = "default_max_catch_ups")]
    #[schemars(range(min = 1, max = 8))]
    pub max_catch_ups: i32,
    /// What becomes of queues and exchanges that do not say so themselves (`x-understudy-replicate`): `all`, they and their
    /// messages are on every replica; `configuration`, they are, empty; `none`, they are on the primary alone.
    #[serde(default)]
    pub default: Replicate,
}

fn default_max_catch_ups() -> i32 {
    crate::validated::DEFAULT_MAX_CATCH_UPS.into()
}

impl Default for Replication {
    fn default() -> Self {
        Self { catch_up_bandwidth: None, max_catch_ups: default_max_catch_ups(), default: Replicate::default() }
    }
}

/// Written as clients write it in `x-understudy-replicate`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Replicate {
    #[default]
    All,
    Configuration,
    None,
}

impl Replicate {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Configuration => "configuration",
            Self::None => "none",
        }
    }
}
