//! The spec as the API server stores it, with the schema's defaults and CEL rules.
//!
//! A field is here only if something acts on it. Defaults that depend on other fields (`minInSync`, limits) are not in the
//! schema: they are resolved by the parse.

#![allow(unreachable_pub, reason = "KubeSchema derives a private twin of each type that carries its visibility")]

mod broker;
mod clients;
mod contents;
mod failover;
mod operation;
mod pods;
mod resources;
mod service;
mod storage;

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::status::BrokerClusterStatus;

pub use broker::Broker;
pub use clients::{
    BackupConnections, ClientCertificates, ClientTls, Clients, IssuerRef, LoginFrom, Plaintext, SaslMechanism,
    SecretKeyRef, TlsVersion,
};
pub use contents::{ConfigMapKeyRef, Users};
pub use failover::{Failover, Primary, Promotion, Replicate, Replication};
pub use operation::{Day, MaintenanceWindow, Monitoring, NetworkPolicies, PodMonitor, Update, UpdateStrategy};
pub use pods::{
    LocalRef, Metadata, PodTemplate, PullPolicy, Scheduling, Spread, Toleration, TopologySpread, WhenUnsatisfiable,
};
pub use resources::{Memory, Resources};
pub use service::{Service, ServiceType, TrafficPolicy};
pub use storage::{Retention, Storage, WhatToDo};

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
    /// When the kubelet fetches the image.
    #[serde(default)]
    pub image_pull_policy: PullPolicy,
    /// Secrets by which the kubelet may fetch the image, in the cluster's namespace.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub image_pull_secrets: Vec<LocalRef>,
    /// How many replicas, the primary included, must hold a message before its publisher gets a confirm. With fewer in
    /// sync nothing is confirmed. Changes without a restart. If absent: 2, or 1 with one replica.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 9))]
    pub min_in_sync: Option<i32>,
    /// What a confirm of a persistent message means: `Fsync`, on the disk of every in-sync replica; `Replicated`, in their memory.
    #[serde(default)]
    #[x_kube(validation = Rule::new("self == oldSelf").message(
        "durability cannot be changed on a running cluster: make a new one and move the messages"
    ))]
    pub durability: Durability,
    /// Volumes.
    #[serde(default)]
    pub storage: Storage,
    /// What each broker is granted.
    #[serde(default)]
    pub resources: Resources,
    /// How each broker uses its memory.
    #[serde(default)]
    pub memory: Memory,
    /// How each broker keeps its log, and what it does beside. Nothing here is needed for an ordinary cluster.
    #[serde(default)]
    pub broker: Broker,
    /// Which nodes the pods run on.
    #[serde(default)]
    pub scheduling: Scheduling,
    /// What else the pods are to have.
    #[serde(default)]
    pub pod_template: PodTemplate,
    /// The Service that follows the primary.
    #[serde(default)]
    pub service: Service,
    /// How clients come in, and what they may cost.
    #[serde(default)]
    pub clients: Clients,
    /// Who may log in from the beginning.
    #[serde(default)]
    pub users: Users,
    /// Queues, exchanges, users, permissions, policies and so on that the cluster is to have, as JSON in the format of RabbitMQ's
    /// definitions file. Imported once a primary serves, and again whenever the ConfigMap changes; what it does not name is left alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub definitions: Option<ConfigMapKeyRef>,
    /// When the role of the primary passes on.
    #[serde(default)]
    pub failover: Failover,
    /// Which pod should be the primary.
    #[serde(default)]
    pub primary: Primary,
    /// What backups get, and how fast.
    #[serde(default)]
    pub replication: Replication,
    /// How changes reach the pods.
    #[serde(default)]
    pub update: Update,
    /// Objects for the Prometheus operator.
    #[serde(default)]
    pub monitoring: Monitoring,
    /// Who may reach the pods.
    #[serde(default)]
    pub network_policies: NetworkPolicies,
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
            image_pull_secrets: Vec::new(),
            min_in_sync: None,
            durability: Durability::default(),
            storage: Storage::default(),
            resources: Resources::default(),
            memory: Memory::default(),
            broker: Broker::default(),
            scheduling: Scheduling::default(),
            pod_template: PodTemplate::default(),
            service: Service::default(),
            clients: Clients::default(),
            users: Users::default(),
            definitions: None,
            failover: Failover::default(),
            primary: Primary::default(),
            replication: Replication::default(),
            update: Update::default(),
            monitoring: Monitoring::default(),
            network_policies: NetworkPolicies::default(),
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
