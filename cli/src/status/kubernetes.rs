//! A cluster in Kubernetes, as its BrokerCluster says. The status is read leniently, field by field: a newer or older operator
//! may write more or less of it.

use anyhow::Context;
use serde::Deserialize;
use understudy_crds::{HIBERNATION_ANNOTATION, MAINTENANCE_ANNOTATION, RECONCILE_ANNOTATION};

use super::summary::{CatchUp, Condition, Failover, Orders, Replica, Summary};
use crate::kubernetes::{Kubernetes, Seen};

pub(crate) async fn summary(kubernetes: &Kubernetes, name: Option<&str>) -> anyhow::Result<Summary> {
    let seen = kubernetes.cluster(name).await?;
    let cluster = format!("{}/{}", kubernetes.namespace, seen.name());
    summarize(&cluster, &seen).with_context(|| format!("the status of {cluster}"))
}

pub(crate) fn summarize(cluster: &str, seen: &Seen) -> Result<Summary, serde_json::Error> {
    let status: Option<Status> = serde_json::from_value(seen.whole_status())?;
    let has_status = status.is_some();
    let status = status.unwrap_or_default();
    let note = if !has_status {
        Some("no operator has looked at it yet")
    } else if status.observed_generation.is_some_and(|observed| seen.generation().is_some_and(|now| observed < now)) {
        Some("the operator has not looked at the newest spec yet")
    } else {
        None
    };
    let failovers: Vec<Failover> = status.failovers.into_iter().map(Failover::from).collect();
    Ok(Summary {
        cluster: cluster.into(),
        primary: status.primary,
        epoch: status.epoch,
        cluster_version: status.cluster_version,
        in_sync: status.in_sync,
        confirms_held: None,
        publishers_blocked: None,
        note: note.map(str::to_owned),
        orders: orders(seen),
        replicas: status.replica_statuses.into_iter().map(Replica::from).collect(),
        conditions: status.conditions.into_iter().map(Condition::from).collect(),
        last_failover: failovers.first().cloned().or_else(|| status.last_failover.map(Failover::from)),
        failovers,
    })
}

fn orders(seen: &Seen) -> Orders {
    let is = |annotation, word| seen.annotation(annotation) == Some(word);
    Orders {
        paused: is(RECONCILE_ANNOTATION, "paused"),
        hibernated: is(HIBERNATION_ANNOTATION, "on"),
        maintenance: is(MAINTENANCE_ANNOTATION, "on"),
        fenced: seen.fenced().into_iter().collect(),
    }
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    observed_generation: Option<i64>,
    primary: Option<String>,
    epoch: Option<u64>,
    cluster_version: Option<u32>,
    in_sync: Vec<String>,
    replica_statuses: Vec<ReplicaStatus>,
    conditions: Vec<ConditionStatus>,
    last_failover: Option<FailoverStatus>,
    failovers: Vec<FailoverStatus>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ReplicaStatus {
    name: String,
    role: String,
    in_sync: bool,
    position: Option<String>,
    lag: Option<u64>,
    catch_up: Option<CatchUpStatus>,
    message: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct CatchUpStatus {
    queues_done: u64,
    queues: u64,
    messages_done: u64,
    messages: u64,
    bytes_done: u64,
    bytes: u64,
    bytes_per_second: u64,
    remaining_seconds: Option<u64>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ConditionStatus {
    #[serde(rename = "type")]
    kind: String,
    status: String,
    reason: String,
    message: String,
    last_transition_time: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct FailoverStatus {
    from: Option<String>,
    to: String,
    epoch: Option<u64>,
    reason: String,
    noticed_at: Option<String>,
    elected_at: Option<String>,
    serving_at: Option<String>,
    detect_ms: Option<u64>,
    elect_ms: Option<u64>,
    promote_ms: Option<u64>,
    route_ms: Option<u64>,
}

impl From<ReplicaStatus> for Replica {
    fn from(status: ReplicaStatus) -> Self {
        let ReplicaStatus { name, role, in_sync, position, lag, catch_up, message } = status;
        let catch_up = catch_up.map(|status| CatchUp {
            queues_done: status.queues_done,
            queues: status.queues,
            messages_done: status.messages_done,
            messages: status.messages,
            bytes_done: status.bytes_done,
            bytes: status.bytes,
            bytes_per_second: status.bytes_per_second,
            remaining_seconds: status.remaining_seconds,
        });
        Self { name, role, in_sync, position, lag, catch_up, amqp: None, message, alarms: Vec::new() }
    }
}

impl From<ConditionStatus> for Condition {
    fn from(read: ConditionStatus) -> Self {
        let ConditionStatus { kind, status, reason, message, last_transition_time } = read;
        Self { kind, status, reason, message, since: last_transition_time }
    }
}

impl From<FailoverStatus> for Failover {
    fn from(status: FailoverStatus) -> Self {
        let FailoverStatus { from, to, epoch, reason, noticed_at, elected_at, serving_at, .. } = status;
        let FailoverStatus { detect_ms, elect_ms, promote_ms, route_ms, .. } = status;
        Self { from, to, epoch, reason, noticed_at, elected_at, serving_at, detect_ms, elect_ms, promote_ms, route_ms }
    }
}
