//! The `BrokerCluster` custom resource, `understudy.dev/v1alpha1`.
//!
//! Two shapes of the same thing. [`BrokerCluster`] is what the API server stores: serde and schemars types, every field
//! as a person may have written it. [`ValidatedCluster`] is what the operator builds from: made only by
//! [`ValidatedCluster::parse`], with durations, quantities and defaults resolved, so that no later step has to doubt it.
//! The API server refuses most mistakes already, by the schema and CEL rules of `yaml/brokercluster.yaml` (generated from
//! these types; a test fails if it is stale); the parse repeats them, because an old object may predate a rule.
//!
//! What this crate does not do: it speaks to no API server and knows no other Kubernetes object.

mod amount;
mod spec;
mod status;
mod validated;

pub use amount::{Amount, AmountError, Quantity};
pub use spec::{
    BackupConnections, Broker, BrokerCluster, BrokerClusterSpec, ClientCertificates, ClientTls, Clients,
    ConfigMapKeyRef, Day, Durability, Failover, IssuerRef, LocalRef, LoginFrom, MaintenanceWindow, Memory, Metadata,
    Monitoring, NetworkPolicies, Plaintext, PodMonitor, PodTemplate, Primary, Promotion, PullPolicy, Replicate,
    Replication, Resources, Retention, SaslMechanism, Scheduling, SecretKeyRef, Service, ServiceType, Spread, Storage,
    TlsVersion, Toleration, TopologySpread, TrafficPolicy, Update, UpdateStrategy, Users, WhatToDo, WhenUnsatisfiable,
};
pub use status::{
    BrokerClusterStatus, CatchUpProgress, Condition, ConditionStatus, DefinitionsStatus, FailoverRecord,
    LastSwitchover, ReplicaRole, ReplicaStatus, SwitchoverOutcome, Timestamp,
};
pub use validated::{
    BrokerOptions, ClientSettings, ClusterName, DEFAULT_MAX_CATCH_UPS, DEFAULT_MEMORY_WATERMARK, FENCED_ANNOTATION,
    FORCE_PRIMARY_ANNOTATION, FORCE_RECOVERY_ANNOTATION, FailoverTimes, HIBERNATION_ANNOTATION, InvalidCluster,
    MAINTENANCE_ANNOTATION, MAX_NAME_BYTES, Orders, RECONCILE_ANNOTATION, ResourceAmounts, SWITCHOVER_ANNOTATION,
    ServicePorts, UpdateWindows, ValidatedCluster,
};
