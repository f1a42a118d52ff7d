//! Somebody deletes the Lease. It resets nothing (rule 7): a primary writes it as it was, and where none is left the replicas
//! say what they have.

use anyhow::{Result, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::DeleteParams;
use understudy_e2e::{Cluster, Failure, Goal, Load, Row, eventually, kill_process, with_temp_ns};

use crate::{PATIENCE, recovered, small};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a cluster: make e2e"]
async fn the_lease_is_deleted_under_a_living_primary() {
    with_temp_ns("lease_deleted", |space| async move {
        let cluster = space.create_cluster(small()).await?;
        cluster.ready().await?;
        let load = Load::start(&cluster.target().await?, "work").await?;
        load.confirms(100, PATIENCE).await?;
        let (primary, epoch, set) = (cluster.primary().await?, cluster.epoch().await?, cluster.in_sync().await?);
        for _ in 0..2 {
            delete_lease(&cluster).await?;
            eventually("the Lease as it was", PATIENCE, async || {
                let now = (cluster.primary().await?, cluster.epoch().await?, cluster.in_sync().await?);
                ensure!(now == (primary.clone(), epoch, set.clone()), "it is {now:?}");
                Ok(())
            })
            .await?;
        }
        let failure = Failure::now();
        load.confirms(100, PATIENCE).await?;
        let reconnects = load.reconnects();
        let aftermath = load.finish().await?;
        ensure!(reconnects == 0, "the client has lost its connection {reconnects} times");
        let status = cluster.ready().await?;
        ensure!(status.in_sync_replicas == 3, "{} replicas are in sync", status.in_sync_replicas);
        let scenario = "Lease deleted twice (longest silence)";
        let gap = aftermath.longest_silence;
        Row { scenario, failure, gap, goal: Goal::KilledProcess }.write(&aftermath.account, &status)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a cluster: make e2e"]
async fn the_lease_is_deleted_when_nobody_is_left() {
    with_temp_ns("lease_recovered", |space| async move {
        let cluster = space.create_cluster(small()).await?;
        cluster.ready().await?;
        let target = cluster.target().await?;
        let kept = Load::start_backlog(&target, "kept").await?;
        let load = Load::start(&target, "work").await?;
        kept.confirms(100, PATIENCE).await?;
        let epoch = cluster.epoch().await?;
        let failure = kill_process(&cluster, &cluster.pod_names(3)).await?;
        delete_lease(&cluster).await?;
        load.recovery(failure).await?;
        kept.recovery(failure).await?;
        let now = cluster.epoch().await?;
        ensure!(now > epoch + 1_000, "epoch {now} after {epoch}: nobody knows which were given");
        let aftermath = load.finish().await?;
        recovered(&cluster, epoch, &kept.finish().await?).await?;
        let status = recovered(&cluster, epoch, &aftermath).await?;
        let scenario = "all killed, Lease deleted (longest silence)";
        let gap = aftermath.longest_silence;
        Row { scenario, failure, gap, goal: Goal::None }.write(&aftermath.account, &status)
    })
    .await;
}

async fn delete_lease(cluster: &Cluster) -> Result<()> {
    cluster.api::<Lease>().delete(&cluster.name, &DeleteParams::default()).await?;
    Ok(())
}
