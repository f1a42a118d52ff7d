//! K6, K5: others write the Lease, too, again and again, and what they write of the time is nonsense. Who holds it goes on.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::jiff::{Timestamp, ToSpan};
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use tokio::task::JoinHandle;
use understudy_e2e::{Cluster, Failure, Goal, Load, RATE, Row, eventually, kill_process, with_temp_ns};

use crate::{PATIENCE, recovered, small};

const SCRIBBLE_ANNOTATION: &str = "example.com/scribble";
/// Several renewals.
const SCRIBBLED_FOR: Duration = Duration::from_secs(12);
/// Several a second, so that who reads before it writes is often too late.
const ENOUGH_WRITES: u64 = 60;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a cluster: make e2e"]
async fn others_write_the_lease_all_the_time() {
    with_temp_ns("lease_contended", |space| async move {
        let cluster = space.create_cluster(small()).await?;
        cluster.ready().await?;
        let load = Load::start(&cluster.target().await?, "work").await?;
        let (primary, epoch) = (cluster.primary().await?, cluster.epoch().await?);
        let scribbler = Scribbler::start(&cluster);
        load.confirms(RATE * SCRIBBLED_FOR.as_secs(), PATIENCE).await?;
        // A change of the set has to come through, in both directions.
        let backup = cluster.backup().await?;
        let is_in = async || -> Result<bool> {
            Ok(cluster.in_sync().await?.iter().any(|member| member.name.as_str() == backup))
        };
        cluster.delete_pod(&backup).await?;
        for wanted in [false, true] {
            eventually(format!("{backup} in the set: {wanted}"), PATIENCE, async || {
                ensure!(is_in().await? == wanted, "{:?}", cluster.in_sync().await?);
                Ok(())
            })
            .await?;
        }
        load.confirms(RATE, PATIENCE).await?;
        let writes = scribbler.stop().await?;
        ensure!(writes > ENOUGH_WRITES, "{writes} writes only");
        ensure!(cluster.primary().await? == primary && cluster.epoch().await? == epoch, "the primary changed");
        let before = cluster.lease().await?.resource_version();
        eventually("the next renewal", PATIENCE, async || {
            let lease = cluster.lease().await?;
            ensure!(lease.resource_version() != before, "none yet");
            ensure!(lease.annotations().contains_key(SCRIBBLE_ANNOTATION), "what others wrote is gone");
            Ok(())
        })
        .await?;
        let aftermath = load.finish().await?;
        ensure!(aftermath.reconnects == 0 && aftermath.consumer_reconnects == 0, "clients noticed: {aftermath:?}");
        let (failure, gap) = (Failure::now(), aftermath.longest_silence);
        let scenario = "Lease written by others (longest silence)";
        Row { scenario, failure, gap, goal: Goal::KilledProcess }.write(&aftermath.account, &cluster.ready().await?)?;

        // Renewed, as it says, in an hour: nobody waits for that.
        let load = Load::start(&cluster.target().await?, "later").await?;
        scribble(&cluster, u64::MAX, 1).await?;
        let failure = kill_process(&cluster, &[primary.name.to_string()]).await?;
        let gap = load.recovery(failure).await?;
        let aftermath = load.finish().await?;
        let status = recovered(&cluster, epoch, &aftermath).await?;
        let scenario = "primary killed, Lease renewed in the future";
        Row { scenario, failure, gap, goal: Goal::KilledProcess }.write(&aftermath.account, &status)
    })
    .await;
}

struct Scribbler {
    writes: Arc<AtomicU64>,
    task: JoinHandle<Result<()>>,
}

impl Scribbler {
    fn start(cluster: &Cluster) -> Self {
        let writes = Arc::new(AtomicU64::new(0));
        let (cluster, counted) = (cluster.clone(), writes.clone());
        let task = tokio::spawn(async move {
            loop {
                let number = counted.fetch_add(1, Ordering::Relaxed);
                let hours = if number.is_multiple_of(2) { -1 } else { 1 };
                scribble(&cluster, number, hours).await?;
            }
        });
        Self { writes, task }
    }

    /// How many writes there were.
    async fn stop(self) -> Result<u64> {
        ensure!(!self.task.is_finished(), "a write has failed: {:?}", self.task.await);
        self.task.abort();
        Ok(self.writes.load(Ordering::Relaxed))
    }
}

/// As somebody would whose clock is off by so much.
async fn scribble(cluster: &Cluster, number: u64, hours: i64) -> Result<()> {
    let time = Timestamp::now().checked_add(hours.hours()).context("there is no such time")?;
    let patch = json!({
        "metadata": { "annotations": { SCRIBBLE_ANNOTATION: number.to_string() } },
        "spec": { "renewTime": format!("{time:.6}") },
    });
    cluster.api::<Lease>().patch(&cluster.name, &PatchParams::default(), &Patch::Merge(patch)).await?;
    Ok(())
}
