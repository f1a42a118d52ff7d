//! Understudy on a real Kubernetes: each test applies a `BrokerCluster` in a namespace of its own, puts a client on the
//! failover Service, takes something away, and checks the ledger: each confirmed message delivered, none twice unless its
//! delivery was unacknowledged at the failure.
//!
//! `make e2e` runs them: those that take a node or the operator away from everybody alone, those that only give orders beside
//! one another (`e2e/run`).

mod apply;
mod cases;
mod certificates;
mod everything;
mod killed;
mod kubectl;
mod lease_contended;
mod lease_deleted;
mod leaving;
mod lost_node;
mod manifests;
mod mistakes;
mod network;
mod operator_away;
mod orders;
mod probes;
mod recreated;
mod rights;
mod rolling;
mod scaling;
mod stopped;
mod switchover;
mod twenty;
mod upgraded;
mod volume;

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use understudy_crds::BrokerClusterStatus;
use understudy_e2e::{Aftermath, Cluster};

/// Three brokers that leave the machine's two cores to each other.
fn small() -> Value {
    json!({
        "replicas": 3,
        "storage": { "size": "1Gi" },
        "resources": { "requests": { "cpu": "50m", "memory": "64Mi" } },
        // Half the default: tests wait for it to run out.
        "failover": { "leaseDuration": "5s" },
    })
}

/// Everything is as the spec says, the primary another one, and the client's account shows that it worked.
async fn recovered(cluster: &Cluster, epoch_before: i64, aftermath: &Aftermath) -> Result<BrokerClusterStatus> {
    ensure!(aftermath.account.confirmed > 0, "nothing was confirmed");
    let status = cluster.ready_after(epoch_before).await?;
    ensure!(status.in_sync_replicas == 3, "{} replicas are in sync", status.in_sync_replicas);
    Ok(status)
}

/// Long enough for anything that is only a matter of a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
