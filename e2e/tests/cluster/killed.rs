//! The primary's process dies, or its pod goes.

use anyhow::ensure;
use understudy_e2e::{Failure, Goal, Load, Row, kill_process, with_temp_ns};

use crate::{recovered, small};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a cluster: make e2e"]
async fn the_primary_is_killed() {
    with_temp_ns("primary_killed", |space| async move {
        let cluster = space.create_cluster(small()).await?;
        cluster.ready().await?;
        for round in 1..=3 {
            let target = cluster.target().await?;
            let load = Load::start(&target, "work").await?;
            let (primary, epoch) = (cluster.primary().await?, cluster.epoch().await?);
            kill_process(&cluster, &[primary.name.to_string()]).await?;
            let failure = Failure::now();
            let gap = load.recovery(failure).await?;
            let heir = cluster.primary().await?;
            ensure!(heir != primary, "a process that was killed is still the primary");
            let aftermath = load.finish().await?;
            let scenario = format!("primary's process killed, round {round}");
            let status = recovered(&cluster, epoch, &aftermath).await?;
            Row { scenario: &scenario, failure, gap, goal: Goal::KilledProcess }.write(&aftermath.account, &status)?;
        }
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a cluster: make e2e"]
async fn the_primary_pod_is_deleted() {
    with_temp_ns("pod_deleted", |space| async move {
        let cluster = space.create_cluster(small()).await?;
        cluster.ready().await?;
        let load = Load::start(&cluster.target().await?, "work").await?;
        let (primary, epoch) = (cluster.primary().await?, cluster.epoch().await?);
        cluster.delete_pod(primary.name.as_str()).await?;
        // It hands over first, so that there is no moment of failure to measure from, only the longest silence.
        let failure = Failure::now();
        load.recovery(failure).await?;
        let status = cluster.ready_after(epoch).await?;
        ensure!(status.primary.as_deref() != Some(primary.name.as_str()), "{} leads on", primary.name);
        let aftermath = load.finish().await?;
        let gap = aftermath.longest_silence;
        let status = recovered(&cluster, epoch, &aftermath).await?;
        let scenario = "primary's pod deleted (longest silence)";
        Row { scenario, failure, gap, goal: Goal::KilledProcess }.write(&aftermath.account, &status)
    })
    .await;
}
