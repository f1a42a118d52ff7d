//! Measures of the storage engine with brokers at work: how long a restart takes, what a backlog costs in memory, what an
//! old message costs on disk, and what the work in the background costs the load. Each starts the clusters it measures and
//! stops them again, an interrupt included.

pub mod backlog;
pub mod catch_up;
pub mod old;
mod queues;
mod ready;
pub mod restart;
pub mod steady;

use std::collections::BTreeMap;
use std::time::Duration;

use crate::ledger::Ledger;
use crate::link::LinkError;
use crate::peers::{DevCluster, PeerError};
use crate::publisher::{Publisher, PublisherPlan, PublisherReport};
use crate::target::{QueuePlan, Target};

#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    #[error("{peer}: {source}")]
    Peer { peer: &'static str, source: PeerError },
    #[error("{peer}: {source}")]
    Load { peer: &'static str, source: LinkError },
    #[error("{peer}: {what}")]
    Failed { peer: &'static str, what: String },
    #[error("interrupted")]
    Interrupted,
}

const OURS: &str = "understudy";

/// A broker that fsyncs thousands of queues may well be silent for so long.
const SILENCE_LIMIT: Duration = Duration::from_secs(60);
const DRAIN_LIMIT: Duration = Duration::from_secs(60);
/// A broker that is slower than this many messages a second is not measured to its end.
const SLOWEST_RATE: u64 = 500;
/// What is added to that for a start and an end.
const PATIENCE: Duration = Duration::from_secs(120);

fn ours(source: PeerError) -> StorageError {
    StorageError::Peer { peer: OURS, source }
}

fn ours_failed(what: impl Into<String>) -> StorageError {
    StorageError::Failed { peer: OURS, what: what.into() }
}

/// The primary first.
fn target_of(cluster: &DevCluster) -> Target {
    let addresses = cluster.addresses();
    let primary = cluster.primary().map(|(_, address)| address);
    let first = addresses.iter().position(|address| Some(address) == primary.as_ref()).unwrap_or(0);
    Target::local(addresses).starting_at(first)
}

fn time_for(messages: u64) -> Duration {
    Duration::from_secs(messages / SLOWEST_RATE) + PATIENCE
}

/// Sends so many messages in turns to the queues and waits for every confirm.
async fn fill(
    peer: &'static str,
    target: &Target,
    queues: &[QueuePlan],
    messages: u64,
    plan: PublisherPlan,
) -> Result<PublisherReport, StorageError> {
    let Some(first) = queues.first() else { return Ok(PublisherReport::default()) };
    let ledger = Ledger::new();
    let plan =
        PublisherPlan { limit: Some(messages), spread_over: queues.to_vec(), silence_limit: SILENCE_LIMIT, ..plan };
    let publisher = Publisher::start(&ledger, target.clone(), first.clone(), plan);
    publish_all(peer, publisher, messages).await
}

/// Waits until a publisher with a limit has had its last confirm.
async fn publish_all(peer: &'static str, publisher: Publisher, messages: u64) -> Result<PublisherReport, StorageError> {
    let limit = time_for(messages);
    if publisher.wait_confirmed(messages, limit).await {
        return Ok(publisher.stop(DRAIN_LIMIT).await);
    }
    let state = if publisher.blocked() { ", blocked by the broker" } else { "" };
    let confirmed = publisher.confirmed();
    let report = publisher.stop(Duration::ZERO).await;
    let errors = report.errors.first().map(|error| format!("; {error}")).unwrap_or_default();
    let limit = limit.as_secs();
    let what = format!("{confirmed} of {messages} messages were confirmed within {limit} s{state}{errors}");
    Err(StorageError::Failed { peer, what })
}

/// The highest of several names' values.
fn highest(values: &BTreeMap<String, u64>) -> u64 {
    values.values().copied().max().unwrap_or(0)
}

/// Runs a measure until it ends or is interrupted, and stops the cluster in both cases.
async fn on_cluster<T>(
    cluster: DevCluster,
    measure: impl AsyncFnOnce(&DevCluster) -> Result<T, StorageError>,
) -> Result<T, StorageError> {
    let outcome = tokio::select! {
        outcome = measure(&cluster) => outcome,
        _ = tokio::signal::ctrl_c() => Err(StorageError::Interrupted),
    };
    cluster.stop().await.map_err(ours)?;
    outcome
}
