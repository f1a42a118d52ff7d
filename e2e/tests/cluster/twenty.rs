//! Twenty failovers of each kind, one after the other, under a constant load: how long each part took, and what a client of the
//! failover Service felt. What must never happen is asserted, as everywhere; how long it took is told.
//!
//! No part of a usual run: `make failovers`, or `e2e/run twenty::`.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use understudy_crds::{SWITCHOVER_ANNOTATION, SwitchoverOutcome};
use understudy_e2e::{
    Cluster, Cordon, Failure, Goal, Load, Outage, RATE, Rounds, eventually, kill_process, lead_from, node_of,
    operator_node, rounds_wanted, with_temp_ns,
};

use crate::scaling::evict;
use crate::{PATIENCE, recovered, small};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a cluster, and minutes: make failovers"]
async fn processes_are_killed() {
    repeat("twenty_killed", Rounds::new("process killed", Goal::KilledProcess), async |cluster, load| {
        let primary = cluster.primary().await?.name.to_string();
        let failure = kill_process(cluster, &[primary]).await?;
        load.recovery(failure).await.map(Some)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a cluster, and minutes: make failovers"]
async fn pods_are_deleted() {
    repeat("twenty_deleted", Rounds::new("pod deleted", Goal::KilledProcess), async |cluster, load| {
        let primary = cluster.primary().await?.name.to_string();
        cluster.delete_pod(&primary).await?;
        load.recovery(Failure::now()).await?;
        Ok(None)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a cluster, and minutes: make failovers"]
async fn nodes_freeze() {
    repeat("twenty_frozen", Rounds::new("node frozen", Goal::LostNode), async |cluster, load| {
        node_lost(cluster, load, Outage::freeze).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a cluster, and minutes: make failovers"]
async fn nodes_are_cut_off() {
    repeat("twenty_cut_off", Rounds::new("node cut off", Goal::LostNode), async |cluster, load| {
        node_lost(cluster, load, Outage::cut_off).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a cluster, and minutes: make failovers"]
async fn roles_are_handed_over() {
    repeat("twenty_handed_over", Rounds::new("switchover", Goal::Switchover), async |cluster, load| {
        let heir = cluster.backup().await?;
        let answer = cluster.ask(SWITCHOVER_ANNOTATION, &heir).await?;
        ensure!(answer.outcome == SwitchoverOutcome::Done && answer.to == heir, "{answer:?}");
        load.confirms(RATE, PATIENCE).await?;
        Ok(None)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a cluster, and minutes: make failovers"]
async fn nodes_are_drained() {
    repeat("twenty_drained", Rounds::new("node drained", Goal::Switchover), async |cluster, load| {
        let (primary, epoch) = (cluster.primary().await?.name.to_string(), cluster.epoch().await?);
        let cordon = Cordon::begin(&cluster.client, &node_of(cluster, &primary).await?).await?;
        cluster.epoch_after(epoch).await?;
        evict(cluster, &primary).await?;
        load.confirms(RATE, PATIENCE).await?;
        cordon.end().await?;
        Ok(None)
    })
    .await;
}

/// The node of a primary, which is not the operator's: one that was lost with it is another matter (`lost_node`).
async fn node_lost(cluster: &Cluster, load: &Load, lose: impl Fn(&str) -> Result<Outage>) -> Result<Option<Duration>> {
    let primary = cluster.primary().await?.name.to_string();
    let outage = lose(&node_of(cluster, &primary).await?)?;
    let gap = load.recovery(Failure::now()).await?;
    outage.end()?;
    Ok(Some(gap))
}

/// One failover after the other; each with a load of its own, whose ledger has to be clean, and from three replicas in sync.
/// `fail` returns how long a message sent after the failure waited for its confirm, or nothing where the role is handed over: there
/// is no moment of failure, and the longest silence counts.
async fn repeat(
    name: &'static str,
    mut rounds: Rounds,
    fail: impl AsyncFn(&Cluster, &Load) -> Result<Option<Duration>>,
) {
    with_temp_ns(name, |space| async move {
        let wanted = rounds_wanted()?;
        let cluster = space.create_cluster(small()).await?;
        cluster.ready().await?;
        let mut done = Ok(());
        for round in 1..=wanted {
            done = one(&cluster, &mut rounds, &fail).await.with_context(|| format!("round {round}"));
            if done.is_err() {
                break;
            }
        }
        // What was measured before something went wrong is told, too.
        rounds.write()?;
        done
    })
    .await;
}

async fn one(
    cluster: &Cluster,
    rounds: &mut Rounds,
    fail: &impl AsyncFn(&Cluster, &Load) -> Result<Option<Duration>>,
) -> Result<()> {
    let operator = operator_node(cluster).await?;
    let (primary, _) = lead_from(cluster, |_, node| node != operator).await?;
    let epoch = cluster.epoch().await?;
    let load = Load::start(&cluster.target().await?, "work").await?;
    let gap = fail(cluster, &load).await?;
    cluster.ready_after(epoch).await?;
    let aftermath = load.finish().await?;
    let status = recovered(cluster, epoch, &aftermath).await?;
    ensure!(cluster.epoch().await? > epoch, "the epoch did not change");
    rounds.add(gap.unwrap_or(aftermath.longest_silence), epoch, &status, &aftermath.account)?;
    made_anew(cluster, &primary).await
}

/// A process that ends again and again is not started again for minutes: its pod is replaced before that, while it is a backup.
async fn made_anew(cluster: &Cluster, pod: &str) -> Result<()> {
    let restarts = |pod: &Pod| {
        let containers = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
        containers.map(|container| container.restart_count).sum::<i32>()
    };
    let before: Pod = cluster.read(pod).await?;
    if restarts(&before) == 0 || cluster.primary().await?.name.as_str() == pod {
        return Ok(());
    }
    cluster.delete_pod(pod).await?;
    eventually(format!("another pod {pod}"), PATIENCE, async || {
        let now: Pod = cluster.read(pod).await?;
        ensure!(now.metadata.uid != before.metadata.uid, "it is still the old one");
        Ok(())
    })
    .await?;
    eventually("three replicas in sync", PATIENCE, async || {
        let count = cluster.in_sync().await?.len();
        ensure!(count == 3, "{count} are");
        let status = cluster.ready().await?;
        ensure!(status.in_sync_replicas == 3, "{} are, says the status", status.in_sync_replicas);
        Ok(())
    })
    .await
}
