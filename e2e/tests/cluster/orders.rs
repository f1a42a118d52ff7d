//! What persons order by annotations and the spec: pause, hibernation, maintenance, supervised updates.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use serde_json::{Value, json};
use understudy_crds::{
    ConditionStatus, HIBERNATION_ANNOTATION, MAINTENANCE_ANNOTATION, RECONCILE_ANNOTATION, SWITCHOVER_ANNOTATION,
    SwitchoverOutcome,
};
use understudy_e2e::{Cluster, Load, eventually, with_temp_ns};

use crate::{PATIENCE, small};

/// Several of the operator's periods: what has not happened by then does not happen.
const QUIET: Duration = Duration::from_secs(8);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a cluster: make e2e"]
async fn a_paused_cluster_is_left_as_it_is_and_fails_over() {
    with_temp_ns("paused", |space| async move {
        let cluster = space.create_cluster(small()).await?;
        cluster.ready().await?;
        let load = Load::start(&cluster.target().await?, "work").await?;
        for (annotation, reason) in [(RECONCILE_ANNOTATION, "Paused"), (MAINTENANCE_ANNOTATION, "Maintenance")] {
            let word = if reason == "Paused" { "paused" } else { "on" };
            cluster.annotate(annotation, Some(word)).await?;
            let before = uids(&cluster).await?;
            cluster.patch(json!({ "resources": { "requests": { "memory": memory(reason) } } })).await?;
            waits_because(&cluster, reason).await?;
            tokio::time::sleep(QUIET).await;
            ensure!(uids(&cluster).await? == before, "pods were replaced during {reason}");
            if reason == "Paused" {
                let epoch = cluster.epoch().await?;
                let primary = cluster.primary().await?.name.to_string();
                cluster.delete_pod(&primary).await?;
                cluster.epoch_after(epoch).await?;
                load.confirms(100, PATIENCE).await.context("after a failover of a paused cluster")?;
            }
            cluster.annotate(annotation, None).await?;
            eventually(format!("all pods to be replaced after {reason}"), PATIENCE * 2, async || {
                let now = uids(&cluster).await?;
                let kept = now.iter().filter(|(pod, uid)| before.get(*pod) == Some(uid)).count();
                ensure!(kept == 0 && now.len() == 3, "{kept} are what they were, of {}", now.len());
                Ok(())
            })
            .await?;
            cluster.ready().await?;
        }
        load.finish().await.map(drop)
    })
    .await;
}

fn memory(reason: &str) -> &'static str {
    if reason == "Paused" { "80Mi" } else { "96Mi" }
}

/// No pods, every message kept; and back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a cluster: make e2e"]
async fn a_hibernated_cluster_wakes_with_all_its_messages() {
    with_temp_ns("hibernation", |space| async move {
        let mut spec = small();
        // A scale-down would take the volumes away; hibernation is none.
        spec["storage"]["retention"] = json!({ "whenScaled": "Delete" });
        let cluster = space.create_cluster(spec).await?;
        cluster.ready().await?;
        let load = Load::start_backlog(&cluster.target().await?, "kept").await?;
        let kept = load.stop_publishing().await?;
        cluster.annotate(HIBERNATION_ANNOTATION, Some("on")).await?;
        eventually("no pods", PATIENCE * 2, async || {
            let pods = cluster.api::<Pod>().list(&ListParams::default()).await?.items.len();
            ensure!(pods == 0, "{pods} are left");
            let status = cluster.status().await?;
            let ready = status.conditions.iter().find(|condition| condition.kind == "Ready").context("no Ready")?;
            ensure!(ready.reason == "Hibernated" && ready.status == ConditionStatus::True, "{ready:?}");
            Ok(())
        })
        .await?;
        let claims: Api<PersistentVolumeClaim> = cluster.api();
        ensure!(claims.list(&ListParams::default()).await?.items.len() == 3, "volumes are gone");
        cluster.annotate(HIBERNATION_ANNOTATION, None).await?;
        cluster.ready().await?;
        let aftermath = kept.finish().await?;
        ensure!(aftermath.account.confirmed > 0, "nothing was there to keep");
        Ok(())
    })
    .await;
}

/// All but the primary are replaced; the hand-over is a person's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a cluster: make e2e"]
async fn a_supervised_update_waits_for_a_person() {
    with_temp_ns("supervised", |space| async move {
        let mut spec = small();
        spec["update"] = json!({ "strategy": "Supervised" });
        let cluster = space.create_cluster(spec).await?;
        cluster.ready().await?;
        let load = Load::start(&cluster.target().await?, "work").await?;
        let (before, epoch) = (uids(&cluster).await?, cluster.epoch().await?);
        let primary = cluster.primary().await?.name.to_string();
        cluster.patch(json!({ "resources": { "requests": { "memory": "80Mi" } } })).await?;
        waits_because(&cluster, "AwaitsSwitchover").await?;
        let now = uids(&cluster).await?;
        ensure!(now.get(&primary) == before.get(&primary), "the primary was replaced by itself");
        ensure!(now.iter().filter(|(pod, uid)| before.get(*pod) == Some(uid)).count() == 1, "not all backups are new");
        ensure!(cluster.epoch().await? == epoch, "the role was handed over by itself");
        let heir = cluster.backup().await?;
        let answer = cluster.ask(SWITCHOVER_ANNOTATION, &heir).await?;
        ensure!(answer.outcome == SwitchoverOutcome::Done, "{}", answer.message);
        cluster.ready_after(epoch).await?;
        ensure!(uids(&cluster).await?.get(&primary) != before.get(&primary), "the old primary was not replaced");
        let aftermath = load.finish().await?;
        ensure!(aftermath.reconnects <= 2, "the publisher connected anew for {:?}", aftermath.errors);
        Ok(())
    })
    .await;
}

/// A person names who goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a cluster: make e2e"]
async fn manual_promotion_waits_for_a_name() {
    with_temp_ns("manual", |space| async move {
        let mut spec = small();
        spec["failover"] = json!({ "promotion": "Manual" });
        let cluster = space.create_cluster(spec).await?;
        cluster.ready().await?;
        let load = Load::start_backlog(&cluster.target().await?, "work").await?;
        let (primary, epoch) = (cluster.primary().await?.name.to_string(), cluster.epoch().await?);
        understudy_e2e::kill_process(&cluster, std::slice::from_ref(&primary)).await?;
        eventually("the condition to ask for a person", PATIENCE, async || {
            let status = cluster.status().await?;
            let available = status.conditions.iter().find(|c| c.kind == "Available").context("no Available")?;
            ensure!(available.reason == "AwaitsPromotion", "{available:?}");
            Ok(())
        })
        .await?;
        // Longer than the Lease lasts: neither do brokers elect by themselves.
        tokio::time::sleep(QUIET).await;
        ensure!(cluster.epoch().await? == epoch, "somebody was elected");
        let heir = cluster.pod_names(3).into_iter().find(|pod| *pod != primary).context("no other")?;
        let answer = cluster.ask(SWITCHOVER_ANNOTATION, &heir).await?;
        ensure!(answer.outcome == SwitchoverOutcome::Done, "{}", answer.message);
        ensure!(cluster.primary().await?.name.as_str() == heir, "another one was promoted");
        load.confirms(100, PATIENCE).await?;
        load.finish().await.map(drop)
    })
    .await;
}

async fn waits_because(cluster: &Cluster, reason: &str) -> Result<()> {
    eventually(format!("Ready to say {reason}"), PATIENCE * 2, async || {
        let status = cluster.status().await?;
        let ready = status.conditions.iter().find(|condition| condition.kind == "Ready").context("no Ready")?;
        ensure!(ready.reason == reason, "{ready:?}");
        Ok(())
    })
    .await
}

async fn uids(cluster: &Cluster) -> Result<BTreeMap<String, String>> {
    let pods = cluster.api::<Pod>().list(&ListParams::default()).await?;
    let living = pods.items.into_iter().filter(|pod| pod.metadata.deletion_timestamp.is_none());
    Ok(living.map(|pod| (pod.name_any(), pod.uid().unwrap_or_default())).collect())
}

/// What a ConfigMap asks for is there, and again when it changes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a cluster: make e2e"]
async fn definitions_of_a_config_map_are_imported() {
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::api::{Patch, PatchParams, PostParams};

    with_temp_ns("definitions", |space| async move {
        let maps: Api<ConfigMap> = Api::namespaced(space.client.clone(), &space.namespace);
        let text = |queues: &[&str]| {
            let queues: Vec<Value> =
                queues.iter().map(|name| json!({ "name": name, "vhost": "/", "durable": true })).collect();
            json!({ "queues": queues, "vhosts": [{ "name": "shop" }] }).to_string()
        };
        let mut spec = small();
        spec["replicas"] = json!(1);
        spec["definitions"] = json!({ "configMapName": "topology" });
        let cluster = space.create_cluster(spec).await?;
        eventually("the missing ConfigMap to be named", PATIENCE, async || {
            let status = cluster.status().await?;
            let stalled = status.conditions.iter().find(|c| c.kind == "Stalled").context("not stalled")?;
            ensure!(stalled.reason == "ReferenceMissing" && stalled.message.contains("topology"), "{stalled:?}");
            Ok(())
        })
        .await?;
        let map = json!({ "metadata": { "name": "topology" }, "data": { "definitions.json": text(&["a"]) } });
        maps.create(&PostParams::default(), &serde_json::from_value(map)?).await?;
        cluster.ready().await?;
        let imported = async |changed: i64| {
            eventually(format!("an import that changes {changed}"), PATIENCE, async || {
                let done = cluster.status().await?.definitions.context("nothing was imported")?;
                ensure!(done.changed == changed && done.problems.is_empty(), "{done:?}");
                Ok(())
            })
            .await
        };
        imported(2).await?;
        let patch = json!({ "data": { "definitions.json": text(&["a", "b"]) } });
        maps.patch("topology", &PatchParams::default(), &Patch::Merge(patch)).await?;
        imported(1).await
    })
    .await;
}
