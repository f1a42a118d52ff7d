//! A replica loses its disk: it comes back as a new store, and counts again only once it has everything.

use anyhow::{Context, Result, ensure};
use understudy_e2e::{Cluster, Failure, Goal, Load, Row, eventually, lead_from, with_temp_ns};
use understudy_record::StoreId;

use crate::{PATIENCE, recovered, small};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a cluster: make e2e"]
async fn a_backup_without_its_volume_catches_up() {
    with_temp_ns("volume_lost", |space| async move {
        let cluster = space.create_cluster(small()).await?;
        cluster.ready().await?;
        let target = cluster.target().await?;
        // Messages that are there before, and stay until the end: they come to the new disk by catch-up alone.
        let kept = Load::start_backlog(&target, "kept").await?;
        kept.confirms(500, PATIENCE).await?;
        let load = Load::start(&target, "work").await?;

        let backup = cluster.backup().await?;
        let before = store(&cluster, &backup).await?;
        cluster.delete_volume_and_pod(&backup).await?;
        let failure = Failure::now();
        new_store(&cluster, &backup, before).await?;

        let aftermath = load.finish().await?;
        let gap = aftermath.longest_silence;
        let scenario = "a backup's volume lost (longest silence)";
        Row { scenario, failure, gap, goal: Goal::KilledProcess }
            .write(&aftermath.account, &cluster.status().await?)?;

        // It leads next, with what it has.
        let kept = kept.stop_publishing().await?;
        lead_from(&cluster, |pod, _| pod == backup).await?;
        kept.finish().await.map(drop)
    })
    .await;
}

/// K21: another one leads, with all that was confirmed, and this one comes back as a new store.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a cluster: make e2e"]
async fn the_primary_loses_its_pod_and_its_volume() {
    with_temp_ns("primary_volume_lost", |space| async move {
        let cluster = space.create_cluster(small()).await?;
        cluster.ready().await?;
        let target = cluster.target().await?;
        let kept = Load::start_backlog(&target, "kept").await?;
        kept.confirms(500, PATIENCE).await?;
        let load = Load::start(&target, "work").await?;
        let (primary, epoch) = (cluster.primary().await?.name.to_string(), cluster.epoch().await?);
        let (before, members) = (store(&cluster, &primary).await?, cluster.in_sync().await?);
        cluster.delete_volume_and_pod(&primary).await?;
        let failure = Failure::now();
        cluster.epoch_after(epoch).await?;
        let heir = cluster.primary().await?;
        ensure!(
            heir.name.as_str() != primary && members.iter().any(|member| member.store == heir.store),
            "{heir} leads, and was not in sync: {members:?}"
        );
        new_store(&cluster, &primary, before).await?;
        let aftermath = load.finish().await?;
        let gap = aftermath.longest_silence;
        let status = recovered(&cluster, epoch, &aftermath).await?;
        recovered(&cluster, epoch, &kept.finish().await?).await?;
        let scenario = "primary's pod and volume lost (longest silence)";
        Row { scenario, failure, gap, goal: Goal::KilledProcess }.write(&aftermath.account, &status)
    })
    .await;
}

/// That of a member of the set.
async fn store(cluster: &Cluster, pod: &str) -> Result<StoreId> {
    let members = cluster.in_sync().await?;
    let member = members.iter().find(|member| member.name.as_str() == pod);
    member.map(|member| member.store).with_context(|| format!("{pod} is not in sync: {members:?}"))
}

async fn new_store(cluster: &Cluster, pod: &str, before: StoreId) -> Result<()> {
    eventually(format!("a new store of {pod} in the in-sync set"), PATIENCE * 2, async || {
        let now = store(cluster, pod).await?;
        ensure!(now != before, "it is still store {now}");
        Ok(())
    })
    .await?;
    cluster.ready().await.map(drop)
}
