//! Applying a cluster: what is made, what the status says, what is refused, and that nothing is written when idle.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{Pod, Secret, Service, ServiceAccount};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::ResourceExt;
use kube::api::{Api, ApiResource, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use understudy_crds::{BrokerCluster, ConditionStatus, ReplicaRole};
use understudy_e2e::{AuditMark, Cluster, Load, Written, eventually, with_temp_ns};

use crate::{PATIENCE, small};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a cluster: make e2e"]
async fn an_applied_cluster_becomes_ready() {
    with_temp_ns("applied", |space| async move {
        let cluster = space.create_cluster(small()).await?;
        let status = cluster.ready().await?;

        let primary = status.primary.clone().context("no primary")?;
        let names: BTreeSet<String> = cluster.pod_names(3).into_iter().collect();
        ensure!(names.contains(&primary), "primary is {primary}");
        ensure!(status.epoch >= Some(1), "epoch is {:?}", status.epoch);
        ensure!(status.in_sync.iter().cloned().collect::<BTreeSet<_>>() == names, "in sync: {:?}", status.in_sync);
        ensure!(status.replicas == 3 && status.selector.is_some(), "scale: {} {:?}", status.replicas, status.selector);
        for kind in ["Available", "Ready", "Durable"] {
            let condition = status.conditions.iter().find(|condition| condition.kind == kind);
            let condition = condition.with_context(|| format!("no condition {kind}"))?;
            ensure!(condition.status == ConditionStatus::True && !condition.reason.is_empty(), "{condition:?}");
        }
        let roles: Vec<ReplicaRole> = status.replica_statuses.iter().map(|replica| replica.role).collect();
        let count = |role| roles.iter().filter(|found| **found == role).count();
        ensure!(count(ReplicaRole::Primary) == 1 && count(ReplicaRole::Backup) == 2, "roles: {roles:?}");
        ensure!(status.replica_statuses.iter().all(|replica| replica.position.is_some()), "no positions");

        objects_are_there(&cluster, &primary).await?;
        pods_are_spread_and_labelled(&cluster, &primary).await?;
        let scale = cluster.api::<BrokerCluster>().get_scale(&cluster.name).await?;
        ensure!(scale.status.is_some_and(|status| status.replicas == 3), "the scale subresource");
        Ok(())
    })
    .await;
}

async fn objects_are_there(cluster: &Cluster, primary: &str) -> Result<()> {
    let name = cluster.name.as_str();
    let set: StatefulSet = cluster.read(name).await?;
    ensure!(
        set.spec.and_then(|spec| spec.pod_management_policy).as_deref() == Some("Parallel"),
        "pods start one by one"
    );
    let failover: Service = cluster.read(name).await?;
    ensure!(failover.spec.and_then(|spec| spec.selector).unwrap_or_default().is_empty(), "the Service selects pods");
    let nodes: Service = cluster.read(&format!("{name}-nodes")).await?;
    ensure!(
        nodes.spec.is_some_and(|spec| spec.publish_not_ready_addresses == Some(true)),
        "only ready pods have names"
    );
    cluster.read::<Service>(&format!("{name}-any")).await?;
    for secret in ["user", "tls", "ca"] {
        cluster.read::<Secret>(&format!("{name}-{secret}")).await?;
    }
    cluster.read::<ServiceAccount>(&format!("{name}-broker")).await?;
    cluster.read::<Role>(&format!("{name}-broker")).await?;
    cluster.read::<RoleBinding>(&format!("{name}-broker")).await?;
    cluster.read::<PodDisruptionBudget>(name).await?;

    let slice: EndpointSlice = cluster.read(&format!("{name}-primary")).await?;
    let addresses: Vec<String> = slice.endpoints.iter().flat_map(|endpoint| endpoint.addresses.clone()).collect();
    ensure!(addresses == [cluster.pod_ip(primary).await?], "the Service leads to {addresses:?}");
    let epoch = slice.annotations().get("understudy.dev/epoch").context("the slice has no epoch")?;
    ensure!(*epoch == cluster.epoch().await?.to_string(), "the slice is of epoch {epoch}");
    Ok(())
}

async fn pods_are_spread_and_labelled(cluster: &Cluster, primary: &str) -> Result<()> {
    let mut nodes = BTreeSet::new();
    for name in cluster.pod_names(3) {
        let pod: Pod = cluster.read(&name).await?;
        nodes.insert(pod.spec.as_ref().and_then(|spec| spec.node_name.clone()));
        let wanted = if name == primary { "primary" } else { "backup" };
        eventually(format!("the label of {name}"), PATIENCE, async || {
            let pod: Pod = cluster.read(&name).await?;
            let role = pod.labels().get("understudy.dev/role");
            ensure!(role.is_some_and(|role| role == wanted), "{role:?} instead of {wanted}");
            Ok(())
        })
        .await?;
    }
    ensure!(nodes.len() == 3, "the pods are on {nodes:?}");
    Ok(())
}

/// How long an idle cluster is looked at, in seconds: several of the operator's and the brokers' periods unless told otherwise.
const IDLE_VARIABLE: &str = "UNDERSTUDY_E2E_IDLE_SECONDS";
const IDLE_SECONDS: u64 = 20;
/// A Lease of the default duration, 10 s, is renewed twice in it; the operators' own, of 15 s, three times.
const RENEWED_EVERY: u64 = 5;

/// K2: nothing is written while nothing happens, not by the operator, not by Kubernetes' controllers on its behalf; but for the
/// Lease, which its holder renews.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a cluster: make e2e"]
async fn an_idle_cluster_writes_nothing() {
    let seconds = std::env::var(IDLE_VARIABLE).ok().and_then(|text| text.parse().ok()).unwrap_or(IDLE_SECONDS);
    with_temp_ns("idle", |space| async move {
        let mut spec = small();
        spec["failover"]["leaseDuration"] = json!("10s");
        let cluster = space.create_cluster(spec).await?;
        cluster.ready().await?;
        // The last of what readiness leads to.
        let before = eventually("five quiet seconds", PATIENCE, async || {
            let before = versions(&cluster).await?;
            tokio::time::sleep(Duration::from_secs(5)).await;
            unchanged(&before, &versions(&cluster).await?)?;
            Ok(before)
        })
        .await?;
        let mark = AuditMark::now()?;
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(seconds) {
            unchanged(&before, &versions(&cluster).await?)?;
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        match mark {
            Some(mark) => only_leases_are_renewed(&cluster, &mark.writes_since()?, begun.elapsed().as_secs()),
            None => Ok(()),
        }
    })
    .await;
}

/// Also writes that change nothing are found so, and whose they are.
fn only_leases_are_renewed(cluster: &Cluster, writes: &BTreeMap<Written, u64>, seconds: u64) -> Result<()> {
    println!("writes to the API server in {seconds} s of an idle cluster:");
    let (brokers, operator) = (
        format!("system:serviceaccount:{}:{}-broker", cluster.namespace, cluster.name),
        "system:serviceaccount:understudy-system:understudy-operator",
    );
    let mut renewals = 0;
    for (written, count) in writes {
        let Written { who, verb, resource, namespace } = written;
        println!("{count:>6} {verb:<7} {resource:<32} {namespace:<18} {who}");
        let is_renewal = verb == "update" && resource == "leases.coordination.k8s.io";
        // One more where the time begins right before a renewal.
        let is_often = *count > seconds / RENEWED_EVERY + 1;
        match (who == &brokers, who == operator) {
            (true, _) => {
                renewals += count;
                ensure!(
                    is_renewal && !is_often && *namespace == cluster.namespace,
                    "brokers: {written:?}, {count} times"
                );
            }
            (_, true) => {
                ensure!(
                    is_renewal && !is_often && namespace == "understudy-system",
                    "the operator: {written:?}, {count} times"
                );
            }
            _ => ensure!(*namespace != cluster.namespace, "others: {written:?}, {count} times"),
        }
    }
    ensure!(renewals > 0, "the log knows of no renewal");
    Ok(())
}

/// Resource versions of everything that belongs to the cluster, but the Lease, which is renewed.
async fn versions(cluster: &Cluster) -> Result<BTreeMap<String, String>> {
    let mut versions = BTreeMap::new();
    macro_rules! add {
        ($($kind:ty),*) => {$(
            for object in cluster.api::<$kind>().list(&ListParams::default()).await? {
                let version = object.resource_version().unwrap_or_default();
                versions.insert(format!("{} {}", stringify!($kind), object.name_any()), version);
            }
        )*};
    }
    add!(
        BrokerCluster,
        StatefulSet,
        Service,
        EndpointSlice,
        Secret,
        ServiceAccount,
        Role,
        RoleBinding,
        PodDisruptionBudget,
        Pod
    );
    Ok(versions)
}

fn unchanged(before: &BTreeMap<String, String>, now: &BTreeMap<String, String>) -> Result<()> {
    let changed: Vec<&String> =
        now.iter().filter(|(name, version)| before.get(*name) != Some(version)).map(|(name, _)| name).collect();
    ensure!(changed.is_empty(), "written while idle: {changed:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a cluster: make e2e"]
async fn any_broker_is_a_door() {
    with_temp_ns("any", |space| async move {
        let cluster = space.create_cluster(small()).await?;
        cluster.ready().await?;
        let mut doors = vec![format!("{}-any.{}.svc", cluster.name, cluster.namespace)];
        for pod in cluster.pod_names(3) {
            doors.push(cluster.pod_ip(&pod).await?);
        }
        for (number, door) in doors.iter().enumerate() {
            let target = cluster.target_at(|_, port| vec![format!("{door}:{port}")]).await?;
            let load =
                Load::start(&target, &format!("door-{number}")).await.with_context(|| format!("through {door}"))?;
            load.confirms(100, PATIENCE).await.with_context(|| format!("through {door}"))?;
            load.finish().await.with_context(|| format!("through {door}"))?;
        }
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a cluster: make e2e"]
async fn impossible_values_are_refused_with_a_reason() {
    with_temp_ns("refused", |space| async move {
        let resource = ApiResource::erase::<BrokerCluster>(&());
        let api: Api<DynamicObject> = Api::namespaced_with(space.client.clone(), &space.namespace, &resource);
        let dry = PostParams { dry_run: true, ..PostParams::default() };
        let long = "a".repeat(41);
        let cases: [(&str, Value, &str); 9] = [
            ("a", json!({ "replicas": 3, "minInSync": 4 }), "minInSync must not be greater than replicas"),
            ("a", json!({ "replicas": 0 }), "spec.replicas"),
            ("a", json!({ "replicas": 10 }), "spec.replicas"),
            ("a", json!({ "replicas": "three" }), "spec.replicas"),
            ("a", json!({ "durability": "Sometimes" }), "\"Fsync\", \"Replicated\""),
            ("a", json!({ "failover": { "leaseDuration": "soon" } }), "spec.failover.leaseDuration"),
            ("a", json!({ "failover": { "leaseDuration": "0s" } }), "must lie between 1s and 10m"),
            ("a", json!({ "failover": { "leaseDuration": "2s", "backupTimeout": "3s" } }), "must not be longer than"),
            (&long, json!({}), "at most 40 characters"),
        ];
        for (name, spec, expected) in cases {
            let object = object(name, &spec)?;
            match api.create(&dry, &object).await {
                Err(kube::Error::Api(error)) => {
                    ensure!(error.message.contains(expected), "{spec}: {:?} lacks {expected:?}", error.message);
                }
                other => bail!("{spec} is not refused: {other:?}"),
            }
        }
        // What may not change once it is there.
        api.create(&PostParams::default(), &object("small", &json!({ "replicas": 1, "storage": { "size": "1Gi" } }))?)
            .await?;
        let dry = PatchParams { dry_run: true, ..PatchParams::default() };
        let changes = [
            (json!({ "storage": { "size": "512Mi" } }), "can only grow"),
            (json!({ "durability": "Replicated" }), "cannot be changed on a running cluster"),
        ];
        for (spec, expected) in changes {
            match api.patch("small", &dry, &Patch::Merge(json!({ "spec": spec }))).await {
                Err(kube::Error::Api(error)) => {
                    ensure!(error.message.contains(expected), "{spec}: {:?} lacks {expected:?}", error.message);
                }
                other => bail!("{spec} is not refused: {other:?}"),
            }
        }
        Ok(())
    })
    .await;
}

fn object(name: &str, spec: &Value) -> Result<DynamicObject> {
    let object = json!({
        "apiVersion": "understudy.dev/v1alpha1", "kind": "BrokerCluster", "metadata": { "name": name }, "spec": spec,
    });
    Ok(serde_json::from_value(object)?)
}
