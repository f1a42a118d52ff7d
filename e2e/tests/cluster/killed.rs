//! The primary's process dies, or its pod goes.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::events::v1::Event;
use kube::api::ListParams;
use understudy_e2e::{Cluster, Failure, Goal, Load, Row, eventually, kill_process, with_temp_ns};

use crate::{PATIENCE, recovered, small};

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
            let failure = kill_process(&cluster, &[primary.name.to_string()]).await?;
            let gap = load.recovery(failure).await?;
            let heir = cluster.primary().await?;
            ensure!(heir != primary, "a process that was killed is still the primary");
            let aftermath = load.finish().await?;
            let scenario = format!("primary's process killed, round {round}");
            let status = recovered(&cluster, epoch, &aftermath).await?;
            let last = status.last_failover.as_ref().context("the status speaks of no failover")?;
            ensure!(last.from.as_deref() == Some(primary.name.as_str()), "the failover was from {:?}", last.from);
            ensure!(Some(&last.to) == status.primary.as_ref() && Some(last.epoch) == status.epoch, "{last:?}");
            ensure!(last.noticed_at.is_some() && last.elected_at.is_some() && last.serving_at.is_some(), "{last:?}");
            Row { scenario: &scenario, failure, gap, goal: Goal::KilledProcess }.write(&aftermath.account, &status)?;
        }
        events_name_each_primary(&cluster, 4).await
    })
    .await;
}

async fn events_name_each_primary(cluster: &Cluster, primaries: usize) -> Result<()> {
    eventually("an event for each primary", PATIENCE, async || {
        let events = cluster.api::<Event>().list(&ListParams::default()).await?.items;
        let of_cluster = events.into_iter().filter(|event| {
            event.regarding.as_ref().is_some_and(|regarding| regarding.kind.as_deref() == Some("BrokerCluster"))
        });
        let notes: Vec<String> = of_cluster.filter_map(|event| event.note).collect();
        for epoch in 1..=primaries {
            let wanted = format!("as primary of epoch {epoch}:");
            let first = format!("is primary of epoch {epoch}:");
            ensure!(
                notes.iter().any(|note| note.contains(&wanted) || note.contains(&first)),
                "epoch {epoch}: {notes:?}"
            );
        }
        Ok(())
    })
    .await
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
