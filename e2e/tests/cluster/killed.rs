//! The primary's process dies, or its pod goes.

use anyhow::{Context, Result, ensure};
use understudy_crds::{SWITCHOVER_ANNOTATION, SwitchoverOutcome};
use understudy_e2e::{
    Cluster, Failure, Goal, Load, RATE, Row, StoppedProcess, eventually, kill_process, lead_from, with_temp_ns,
};

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
        let notes = cluster.events().await?;
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

/// K22: the pod comes back with another address, which the Service leads to once it is the primary again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a cluster: make e2e"]
async fn the_primary_pod_is_deleted() {
    with_temp_ns("pod_deleted", |space| async move {
        let cluster = space.create_cluster(small()).await?;
        cluster.ready().await?;
        let load = Load::start(&cluster.target().await?, "work").await?;
        let (primary, epoch) = (cluster.primary().await?, cluster.epoch().await?);
        let address = cluster.pod_ip(primary.name.as_str()).await?;
        cluster.delete_pod(primary.name.as_str()).await?;
        // It hands over first, so that there is no moment of failure to measure from, only the longest silence.
        let failure = Failure::now();
        load.recovery(failure).await?;
        let status = cluster.ready_after(epoch).await?;
        ensure!(status.primary.as_deref() != Some(primary.name.as_str()), "{} leads on", primary.name);
        let aftermath = load.finish().await?;
        let gap = aftermath.longest_silence;
        let status = recovered(&cluster, epoch, &aftermath).await?;
        lead_from(&cluster, |pod, _| pod == primary.name.as_str()).await?;
        let now = cluster.pod_ip(primary.name.as_str()).await?;
        ensure!(now != address, "the pod has come back with its old address: nothing is shown");
        let routed = cluster.routed_to().await?;
        ensure!(routed == [now.clone()], "the Service leads to {routed:?}, and {} is at {now}", primary.name);
        Load::start(&cluster.target().await?, "work").await?.finish().await?;
        let scenario = "primary's pod deleted (longest silence)";
        Row { scenario, failure, gap, goal: Goal::KilledProcess }.write(&aftermath.account, &status)
    })
    .await;
}

/// K16: a process that stands still is no primary any more, whatever its pod looks like, and a pod that does not end keeps nobody
/// waiting.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a cluster: make e2e"]
async fn a_hung_primary_delays_nothing() {
    with_temp_ns("hung", |space| async move {
        let cluster = space.create_cluster(small()).await?;
        cluster.ready().await?;
        let load = Load::start(&cluster.target().await?, "work").await?;
        let (primary, epoch) = (cluster.primary().await?.name.to_string(), cluster.epoch().await?);
        let before = cluster.lives().await?;
        let (hung, failure) = StoppedProcess::begin(&cluster, &primary).await?;
        let gap = load.recovery(failure).await?;
        let heir = cluster.primary().await?.name.to_string();
        ensure!(heir != primary, "a process that stands still is the primary");
        let routed = cluster.routed_to().await?;
        ensure!(routed == [cluster.pod_ip(&heir).await?], "the Service leads to {routed:?} and not to {heir}");
        // It is Terminating for all of its grace period, and the role goes on from one to the other meanwhile.
        cluster.delete_pod(&primary).await?;
        let other = cluster.pod_names(3).into_iter().find(|pod| *pod != primary && *pod != heir).context("no third")?;
        let answer = cluster.ask(SWITCHOVER_ANNOTATION, &other).await?;
        ensure!(answer.outcome == SwitchoverOutcome::Done, "{}", answer.message);
        load.confirms(2 * RATE, PATIENCE).await?;
        let routed = cluster.routed_to().await?;
        ensure!(routed == [cluster.pod_ip(&other).await?], "the Service leads to {routed:?} and not to {other}");
        ensure!(cluster.lives().await? == before, "it was not hung all the time: {:?}", cluster.lives().await?);
        hung.end()?;
        eventually("another pod of its name", PATIENCE, async || {
            ensure!(cluster.lives().await?.get(&primary) != before.get(&primary), "it is the old one");
            Ok(())
        })
        .await?;
        cluster.ready().await?;
        load.confirms(RATE, PATIENCE).await?;
        let aftermath = load.finish().await?;
        let status = recovered(&cluster, epoch, &aftermath).await?;
        let scenario = "primary's process hung";
        Row { scenario, failure, gap, goal: Goal::LostNode }.write(&aftermath.account, &status)
    })
    .await;
}
