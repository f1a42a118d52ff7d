//! More replicas and fewer, and nodes that are drained: the role moves first, and nothing is lost.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{Api, EvictParams, ListParams};
use serde_json::json;
use understudy_e2e::{Cluster, Cordon, Failure, Goal, Load, RATE, Row, eventually, lead_from, node_of, with_temp_ns};

use crate::{PATIENCE, recovered, small};

/// An eviction that may be is made in less.
const REFUSED_WITHIN: Duration = Duration::from_secs(5);

/// The primary is the pod that goes: it hands over first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a cluster: make e2e"]
async fn scaled_down_and_up_with_the_primary_among_those_that_go() {
    with_temp_ns("scaling", |space| async move {
        let mut spec = small();
        spec["storage"]["retention"] = json!({ "whenScaled": "Delete" });
        let cluster = space.create_cluster(spec).await?;
        cluster.ready().await?;
        lead_from(&cluster, |pod, _| pod == "orders-2").await?;
        let target = cluster.target().await?;
        let kept = Load::start_backlog(&target, "kept").await?;
        let load = Load::start(&target, "work").await?;
        let epoch = cluster.epoch().await?;
        let failure = Failure::now();
        let before = uids(&cluster).await?;
        cluster.patch(json!({ "replicas": 2 })).await?;
        let status = cluster.ready_after(epoch).await?;
        ensure!(
            status.in_sync_replicas == 2 && status.replicas == 2,
            "{} of {}",
            status.in_sync_replicas,
            status.replicas
        );
        eventually("the third volume's end", PATIENCE, async || {
            let claims: Api<PersistentVolumeClaim> = cluster.api();
            let left = claims.list(&ListParams::default()).await?.items.len();
            ensure!(left == 2, "{left} volumes are there");
            Ok(())
        })
        .await?;
        load.confirms(RATE, PATIENCE).await?;
        let grown = cluster.epoch().await?;
        ensure!(grown == epoch + 1, "the role moved {} times", grown - epoch);
        cluster.patch(json!({ "replicas": 3 })).await?;
        eventually("three in sync", PATIENCE * 2, async || {
            let status = cluster.ready().await?;
            ensure!(status.in_sync_replicas == 3, "{}", status.in_sync_replicas);
            Ok(())
        })
        .await?;
        // No broker is restarted to hear of it, and none for another minInSync.
        cluster.patch(json!({ "minInSync": 1, "clients": { "consumerTimeout": "10m" } })).await?;
        cluster.ready().await?;
        let (now, stay) = (uids(&cluster).await?, ["orders-0", "orders-1"]);
        let same = stay.iter().all(|pod| before.get(*pod) == now.get(*pod));
        ensure!(same, "pods were replaced: {before:?}, then {now:?}");
        ensure!(cluster.epoch().await? == grown, "the role moved");
        load.confirms(RATE, PATIENCE).await?;
        let kept = kept.finish().await?;
        let aftermath = load.finish().await?;
        let status = recovered(&cluster, epoch, &kept).await?;
        let gap = aftermath.longest_silence;
        Row { scenario: "scaled 3 to 2 to 3 (longest silence)", failure, gap, goal: Goal::None }
            .write(&aftermath.account, &status)
    })
    .await;
}

async fn uids(cluster: &Cluster) -> Result<BTreeMap<String, String>> {
    let pods = cluster.api::<Pod>().list(&ListParams::default()).await?;
    Ok(pods.items.into_iter().filter_map(|pod| pod.metadata.name.zip(pod.metadata.uid)).collect())
}

/// K9: as `kubectl drain` does it, node by node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a cluster: make e2e"]
async fn the_primarys_node_is_drained() {
    with_temp_ns("drained", |space| async move {
        let cluster = space.create_cluster(small()).await?;
        cluster.ready().await?;
        let load = Load::start(&cluster.target().await?, "work").await?;
        let epoch = cluster.epoch().await?;
        let primary = cluster.primary().await?.name.to_string();
        let node = node_of(&cluster, &primary).await?;
        let failure = Failure::now();
        let cordon = Cordon::begin(&cluster.client, &node).await?;
        cluster.epoch_after(epoch).await?;
        ensure!(cluster.primary().await?.name.as_str() != primary, "the primary stays on a cordoned node");
        evict(&cluster, &primary).await?;
        // One is away: the budget keeps the others.
        let heir = cluster.primary().await?.name.to_string();
        let other = cluster.pod_names(3).into_iter().find(|pod| *pod != primary && *pod != heir);
        let other = other.context("there is no third pod")?;
        // The client tries again for minutes what is refused so.
        let pods: Api<Pod> = cluster.api();
        let parameters = EvictParams::default();
        let evicted = tokio::time::timeout(REFUSED_WITHIN, pods.evict(&other, &parameters)).await;
        ensure!(!matches!(evicted, Ok(Ok(_))), "a second pod may be evicted: {evicted:?}");
        let budget: PodDisruptionBudget = cluster.read(&cluster.name).await?;
        let allowed = budget.status.map(|status| status.disruptions_allowed);
        ensure!(allowed == Some(0), "the budget allows {allowed:?} more");
        load.confirms(RATE, PATIENCE).await?;
        cordon.end().await?;
        let aftermath = load.finish().await?;
        let status = recovered(&cluster, epoch, &aftermath).await?;
        ensure!(aftermath.reconnects <= 2, "the publisher connected anew for {:?}", aftermath.errors);
        let gap = aftermath.longest_silence;
        Row { scenario: "node drained (longest silence)", failure, gap, goal: Goal::Switchover }
            .write(&aftermath.account, &status)
    })
    .await;
}

/// K9: nobody has to be asked whether a one-replica cluster may go from its node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a cluster: make e2e"]
async fn a_single_broker_can_be_drained() {
    with_temp_ns("single", |space| async move {
        let mut spec = small();
        spec["replicas"] = json!(1);
        let cluster = space.create_cluster(spec).await?;
        cluster.ready().await?;
        let load = Load::start(&cluster.target().await?, "work").await?;
        let epoch = cluster.epoch().await?;
        let budgets: Api<PodDisruptionBudget> = cluster.api();
        ensure!(budgets.list(&ListParams::default()).await?.items.is_empty(), "there is a budget");
        evict(&cluster, "orders-0").await?;
        cluster.ready_after(epoch).await?;
        load.confirms(RATE, PATIENCE).await?;
        load.finish().await.map(drop)
    })
    .await;
}

/// The budget's controller may not have seen the last change yet.
pub(crate) async fn evict(cluster: &Cluster, pod: &str) -> Result<()> {
    eventually(format!("{pod} to be evicted"), PATIENCE, async || {
        cluster.api::<Pod>().evict(pod, &EvictParams::default()).await.map(drop).map_err(Into::into)
    })
    .await
}
