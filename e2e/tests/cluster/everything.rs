//! All replicas at once: what was confirmed is on their disks.

use anyhow::Result;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams};
use understudy_e2e::{Cluster, Failure, Goal, Load, Row, kill_process, with_temp_ns};

use crate::{recovered, small};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a cluster: make e2e"]
async fn all_pods_are_deleted() {
    with_temp_ns("all_deleted", |space| async move {
        let cluster = space.create_cluster(small()).await?;
        cluster.ready().await?;
        survives(&cluster, "all pods deleted (longest silence)", async {
            let pods = cluster.api::<Pod>();
            pods.delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
            Ok(Failure::now())
        })
        .await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a cluster: make e2e"]
async fn all_processes_are_killed() {
    with_temp_ns("all_killed", |space| async move {
        let cluster = space.create_cluster(small()).await?;
        cluster.ready().await?;
        survives(&cluster, "all processes killed (longest silence)", kill_process(&cluster, &cluster.pod_names(3)))
            .await
    })
    .await;
}

/// One queue is consumed all the while; another one holds its messages over the end of everything.
async fn survives(cluster: &Cluster, scenario: &str, end: impl Future<Output = Result<Failure>>) -> Result<()> {
    let target = cluster.target().await?;
    let kept = Load::start_backlog(&target, "kept").await?;
    let load = Load::start(&target, "work").await?;
    let epoch = cluster.epoch().await?;
    let failure = end.await?;
    // Pods that are deleted serve for another moment: the longest silence is what a client feels either way.
    load.recovery(failure).await?;
    kept.recovery(failure).await?;
    let aftermath = load.finish().await?;
    let gap = aftermath.longest_silence;
    let kept = kept.finish().await?;
    recovered(cluster, epoch, &aftermath).await?;
    let status = recovered(cluster, epoch, &kept).await?;
    Row { scenario, failure, gap, goal: Goal::None }.write(&aftermath.account, &status)
}
