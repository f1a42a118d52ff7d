//! K23: a pod that is told to end takes a bounded time, whether there is somebody to hand over to or not.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::json;
use understudy_e2e::{Cluster, Load, RATE, StoppedProcess, eventually, with_temp_ns};

use crate::{PATIENCE, recovered, small};

/// Half of the pods' grace period.
const ENDS_WITHIN: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a cluster: make e2e"]
async fn a_primary_without_a_successor_ends_all_the_same() {
    with_temp_ns("no_successor", |space| async move {
        let cluster = space.create_cluster(small()).await?;
        cluster.ready().await?;
        let load = Load::start(&cluster.target().await?, "work").await?;
        let (primary, epoch) = (cluster.primary().await?.name.to_string(), cluster.epoch().await?);
        let mut hung = Vec::new();
        for backup in cluster.pod_names(3).iter().filter(|pod| **pod != primary) {
            hung.push(StoppedProcess::begin(&cluster, backup).await?.0);
        }
        let took = replaced(&cluster, &primary).await?;
        println!("a primary without a successor ended after {} ms", took.as_millis());
        for process in hung {
            process.end()?;
        }
        load.confirms(RATE, PATIENCE).await?;
        let aftermath = load.finish().await?;
        let status = recovered(&cluster, epoch, &aftermath).await?;
        let told = format!("primary of epoch {}:", status.epoch.unwrap_or_default());
        eventually("an event that names who goes on", PATIENCE, async || {
            let events = cluster.events().await?;
            ensure!(events.iter().any(|event| event.contains(&told)), "{events:?}");
            Ok(())
        })
        .await
    })
    .await;
}

/// There is nobody to hand over to, and nobody is waited for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a cluster: make e2e"]
async fn a_single_broker_ends_at_once() {
    with_temp_ns("single_ends", |space| async move {
        let mut spec = small();
        spec["replicas"] = json!(1);
        let cluster = space.create_cluster(spec).await?;
        cluster.ready().await?;
        let load = Load::start(&cluster.target().await?, "work").await?;
        let epoch = cluster.epoch().await?;
        let took = replaced(&cluster, "orders-0").await?;
        println!("a single broker ended after {} ms", took.as_millis());
        cluster.ready_after(epoch).await?;
        load.confirms(RATE, PATIENCE).await?;
        load.finish().await.map(drop)
    })
    .await;
}

/// Deletes a pod; how long until there is another one of its name.
async fn replaced(cluster: &Cluster, pod: &str) -> Result<Duration> {
    let before = cluster.lives().await?;
    let begun = Instant::now();
    cluster.delete_pod(pod).await?;
    eventually(format!("another pod {pod}"), ENDS_WITHIN, async || {
        let now = cluster.lives().await?;
        ensure!(now.get(pod).is_some_and(|life| before.get(pod) != Some(life)), "it is the old one: {now:?}");
        Ok(())
    })
    .await?;
    Ok(begun.elapsed())
}
