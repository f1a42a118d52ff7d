//! A cluster in Kubernetes, as its BrokerCluster's status says. The status is read leniently, field by field: a newer or
//! older operator may write more or less of it.

use anyhow::Context;
use kube::api::{Api, DynamicObject};
use kube::core::{ApiResource, GroupVersionKind};
use serde::Deserialize;

use super::summary::{CatchUp, Condition, LastFailover, Replica, Summary};

const GROUP: &str = "understudy.dev";
const VERSION: &str = "v1alpha1";
const KIND: &str = "BrokerCluster";
const PLURAL: &str = "brokerclusters";

pub(crate) async fn summary(namespace: Option<&str>, name: &str) -> anyhow::Result<Summary> {
    let (api, namespace) = broker_clusters(namespace).await?;
    let object = api.get_opt(name).await.with_context(|| format!("{KIND} {namespace}/{name} cannot be read"))?;
    let object = object.with_context(|| format!("there is no {KIND} {name} in namespace {namespace}"))?;
    let status = object.data.get("status").cloned().unwrap_or_default();
    summarize(&format!("{namespace}/{name}"), status).with_context(|| format!("the status of {namespace}/{name}"))
}

/// The clusters of a namespace, by default the current context's, and which that is.
pub(crate) async fn broker_clusters(namespace: Option<&str>) -> anyhow::Result<(Api<DynamicObject>, String)> {
    let client =
        kube::Client::try_default().await.context("no way to a Kubernetes API server: is a kubeconfig there?")?;
    let namespace = namespace.unwrap_or_else(|| client.default_namespace()).to_string();
    let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(GROUP, VERSION, KIND), PLURAL);
    Ok((Api::namespaced_with(client, &namespace, &resource), namespace))
}

fn summarize(cluster: &str, status: serde_json::Value) -> Result<Summary, serde_json::Error> {
    let status: Option<Status> = serde_json::from_value(status)?;
    let status = status.unwrap_or_default();
    Ok(Summary {
        cluster: cluster.into(),
        primary: status.primary,
        epoch: status.epoch,
        cluster_version: status.cluster_version,
        in_sync: status.in_sync,
        confirms_held: None,
        publishers_blocked: None,
        replicas: status.replica_statuses.into_iter().map(Replica::from).collect(),
        conditions: status.conditions.into_iter().map(Condition::from).collect(),
        last_failover: status.last_failover.map(LastFailover::from),
    })
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    primary: Option<String>,
    epoch: Option<u64>,
    cluster_version: Option<u32>,
    in_sync: Vec<String>,
    replica_statuses: Vec<ReplicaStatus>,
    conditions: Vec<ConditionStatus>,
    last_failover: Option<FailoverStatus>,
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
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct FailoverStatus {
    from: Option<String>,
    to: String,
    reason: String,
    noticed_at: Option<String>,
    elected_at: Option<String>,
    serving_at: Option<String>,
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
    fn from(ConditionStatus { kind, status, reason, message }: ConditionStatus) -> Self {
        Self { kind, status, reason, message }
    }
}

impl From<FailoverStatus> for LastFailover {
    fn from(status: FailoverStatus) -> Self {
        let FailoverStatus { from, to, reason, noticed_at, elected_at, serving_at } = status;
        Self { from, to, reason, noticed_at, elected_at, serving_at }
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_status_as_the_operator_writes_it() {
        let status = json!({
            "observedGeneration": 1,
            "primary": "orders-1",
            "epoch": 4,
            "clusterVersion": 2,
            "inSync": ["orders-0", "orders-1"],
            "replicaStatuses": [
                {"name": "orders-0", "role": "Backup", "inSync": true, "position": "4:1200", "lag": 3},
                {"name": "orders-1", "role": "Primary", "inSync": true, "position": "4:1203"},
                {"name": "orders-2", "role": "CatchingUp", "inSync": false, "position": "3:800", "lag": 403,
                 "catchUp": {"queuesDone": 1, "queues": 4, "bytesDone": 1048576, "bytes": 3145728}},
            ],
            "conditions": [
                {"type": "Available", "status": "True", "reason": "PrimaryServes", "message": "orders-1 serves"},
                {"type": "Ready", "status": "False", "reason": "CatchingUp", "message": "orders-2 catches up"},
            ],
            "lastFailover": {"from": "orders-0", "to": "orders-1", "epoch": 4, "reason": "its process has ended",
                             "noticedAt": "2026-01-02T03:04:05.006Z", "electedAt": "2026-01-02T03:04:05.010Z"},
        });
        expect![[r#"
            Cluster   shop/orders
            Primary   orders-1, epoch 4
            In sync   2 of 3: orders-0, orders-1
            Version   2
            Failover  from orders-0 to orders-1: its process has ended
                      noticed 2026-01-02T03:04:05.006Z
                      elected 2026-01-02T03:04:05.010Z

            REPLICA   ROLE        IN-SYNC  POSITION  LAG  CATCH-UP
            orders-0  Backup      yes      4:1200    3    -
            orders-1  Primary     yes      4:1203    -    -
            orders-2  CatchingUp  no       3:800     403  1/4 queues, 1.0 MiB of 3.0 MiB

            CONDITION  STATUS  REASON         MESSAGE
            Available  True    PrimaryServes  orders-1 serves
            Ready      False   CatchingUp     orders-2 catches up
        "#]]
        .assert_eq(&summarize("shop/orders", status).unwrap().to_text());
    }

    #[test]
    fn a_cluster_whose_operator_has_written_nothing_yet() {
        for nothing in [json!(null), json!({}), json!({"primary": null, "future": [1, 2]})] {
            assert_eq!(summarize("a/b", nothing).unwrap().primary, None);
        }
        assert!(summarize("a/b", json!({"primary": 7})).is_err());
    }
}
