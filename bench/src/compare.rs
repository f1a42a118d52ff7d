//! Ours and RabbitMQ under the same loads, in turns, in one run: the machine's mood hits both. Both clusters run all the
//! time; the one that is not measured is idle. What comes out are ratios with their spread over the rounds, and the
//! absolute figures beside them.

mod table;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::consumer::{Consumer, ConsumerPlan};
use crate::ledger::{Account, Ledger};
use crate::link::LinkError;
use crate::load::{LoadPlan, LoadReport, create_queue, delete_queue, run_load};
use crate::peers::{DevCluster, DevPlan, PeerError, RabbitCluster};
use crate::publisher::{Publisher, PublisherPlan};
use crate::target::{QueuePlan, Target};

pub use table::render;

/// Ours has three replicas, as RabbitMQ's quorum queue has.
const REPLICAS: u16 = 3;
/// Messages a second while a leader is killed: far below what either does, so that no backlog is measured.
const FAILOVER_RATE: u64 = 1000;
/// A cluster that does not confirm again within this has failed the round.
const RECOVERY_LIMIT: Duration = Duration::from_secs(30);
const DRAIN_LIMIT: Duration = Duration::from_secs(20);
/// Confirmed before the leader is killed.
const BEFORE_KILL: u64 = 1000;
/// A node that was started again catches up before the next load.
const SETTLE: Duration = Duration::from_secs(3);

#[derive(Clone, Debug)]
pub struct ComparePlan {
    pub rounds: usize,
    /// Of one load, with the warm-up.
    pub duration: Duration,
    /// Kill the leader once a round.
    pub failover: bool,
    /// `understudy`; `None` leaves ours out.
    pub understudy: Option<PathBuf>,
    /// `rabbitmq-cluster`; `None` leaves RabbitMQ out.
    pub rabbitmq_script: Option<PathBuf>,
    /// Where the clusters' files go; removed at the end.
    pub dir: PathBuf,
    pub understudy_port: u16,
    pub rabbitmq_port: u16,
}

#[derive(Debug, thiserror::Error)]
pub enum CompareError {
    #[error("{peer}: {source}")]
    Peer { peer: &'static str, source: PeerError },
    #[error("{peer}: {source}")]
    Load { peer: &'static str, source: LinkError },
    #[error("interrupted")]
    Interrupted,
}

/// One kind of load. The first is for throughput, the second for latency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Shape {
    pub name: &'static str,
    pub message_bytes: usize,
    pub window: usize,
}

pub const SHAPES: [Shape; 2] = [
    Shape { name: "1 KiB persistent, 500 unconfirmed", message_bytes: 1024, window: 500 },
    Shape { name: "1 KiB persistent, 1 unconfirmed", message_bytes: 1024, window: 1 },
];

/// What one cluster did in one round.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Round {
    /// In the order of [`SHAPES`].
    pub loads: Vec<LoadReport>,
    pub failover: Option<Failover>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Failover {
    /// From SIGKILL to the first confirm of a message sent after it, for a client of another node; absent: none came.
    pub gap_ms: Option<f64>,
    pub account: Account,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct Comparison {
    pub peers: Vec<(&'static str, Vec<Round>)>,
}

/// Runs all rounds. `progress` gets a line for each load. The clusters are stopped in any case, an interrupt included.
///
/// # Errors
/// If a cluster does not start, or answers no load at all.
pub async fn compare(plan: &ComparePlan, mut progress: impl FnMut(String)) -> Result<Comparison, CompareError> {
    let mut peers = Vec::new();
    let outcome = tokio::select! {
        outcome = compare_peers(plan, &mut peers, &mut progress) => outcome,
        _ = tokio::signal::ctrl_c() => Err(CompareError::Interrupted),
    };
    for peer in peers {
        let name = peer.name();
        if let Err(error) = peer.stop().await {
            progress(format!("{name} did not stop: {error}"));
        }
    }
    outcome
}

async fn compare_peers(
    plan: &ComparePlan,
    peers: &mut Vec<Peer>,
    progress: &mut impl FnMut(String),
) -> Result<Comparison, CompareError> {
    start_peers(plan, peers, progress).await?;
    let mut comparison = Comparison { peers: peers.iter().map(|peer| (peer.name(), Vec::new())).collect() };
    for number in 1..=plan.rounds {
        let mut rounds = vec![Round::default(); peers.len()];
        for shape in SHAPES {
            for (peer, round) in peers.iter().zip(&mut rounds) {
                let report = run_load(&peer.target(), &peer.load(shape, plan.duration))
                    .await
                    .map_err(|source| CompareError::Load { peer: peer.name(), source })?;
                progress(format!(
                    "round {number}, {:<11} {}: {:.0} msg/s, confirm {:.2} ms median",
                    peer.name(),
                    shape.name,
                    report.confirmed_rate,
                    report.confirm.p50_ms
                ));
                round.loads.push(report);
            }
        }
        if plan.failover {
            for (peer, round) in peers.iter().zip(&mut rounds) {
                let failover = peer.fail_over().await?;
                let gap = failover.gap_ms.map_or("none within the limit".to_owned(), |ms| format!("{ms:.0} ms"));
                progress(format!("round {number}, {:<11} leader killed: first confirm after {gap}", peer.name()));
                round.failover = Some(failover);
            }
        }
        comparison.peers.iter_mut().zip(rounds).for_each(|((_, all), round)| all.push(round));
    }
    Ok(comparison)
}

async fn start_peers(
    plan: &ComparePlan,
    peers: &mut Vec<Peer>,
    progress: &mut impl FnMut(String),
) -> Result<(), CompareError> {
    if let Some(binary) = &plan.understudy {
        progress(format!("starting {} dev", binary.display()));
        let dev = DevPlan {
            binary: binary.clone(),
            parent: plan.dir.clone(),
            replicas: REPLICAS,
            amqp_port: plan.understudy_port,
            broker_arguments: Vec::new(),
        };
        let started = DevCluster::start(&dev).await;
        peers.push(Peer::Understudy(started.map_err(|source| CompareError::Peer { peer: UNDERSTUDY, source })?));
    }
    if let Some(script) = &plan.rabbitmq_script {
        progress("starting three RabbitMQ nodes".to_owned());
        let started = RabbitCluster::start(
            script,
            &plan.dir.join(format!("understudy-bench-rabbitmq-{:016x}", rand::random::<u64>())),
            plan.rabbitmq_port,
            REPLICAS,
        )
        .await;
        peers.push(Peer::RabbitMq(started.map_err(|source| CompareError::Peer { peer: RABBITMQ, source })?));
    }
    Ok(())
}

const UNDERSTUDY: &str = "understudy";
const RABBITMQ: &str = "rabbitmq";

enum Peer {
    Understudy(DevCluster),
    RabbitMq(RabbitCluster),
}

impl Peer {
    fn name(&self) -> &'static str {
        match self {
            Self::Understudy(_) => UNDERSTUDY,
            Self::RabbitMq(_) => RABBITMQ,
        }
    }

    /// The leader first: RabbitMQ puts a new queue's leader on the node that declares it, which is the first address; ours
    /// is wherever the primary is. Neither pays for a hop in throughput and latency.
    fn target(&self) -> Target {
        match self {
            Self::Understudy(cluster) => {
                let addresses = cluster.addresses();
                let primary = cluster.primary().map(|(_, address)| address);
                let first = addresses.iter().position(|address| Some(address) == primary.as_ref()).unwrap_or(0);
                Target::local(addresses).starting_at(first)
            }
            Self::RabbitMq(cluster) => Target::local(cluster.addresses()),
        }
    }

    fn queue(&self) -> QueuePlan {
        let queue_type = match self {
            Self::Understudy(_) => None, // every durable queue is replicated
            Self::RabbitMq(_) => Some("quorum".to_owned()),
        };
        QueuePlan { queue_type, ..QueuePlan::durable(format!("bench-{:016x}", rand::random::<u64>())) }
    }

    fn load(&self, shape: Shape, duration: Duration) -> LoadPlan {
        let mut plan = LoadPlan::new(self.queue(), duration);
        plan.publisher.message_bytes = shape.message_bytes;
        plan.publisher.window = shape.window;
        plan
    }

    /// A publisher and a consumer on nodes that do not lead; the leader is killed under them, and started again.
    async fn fail_over(&self) -> Result<Failover, CompareError> {
        let failed = |source| CompareError::Peer { peer: self.name(), source };
        let (target, queue) = (self.target(), self.queue());
        create_queue(&target, &queue).await.map_err(|source| CompareError::Load { peer: self.name(), source })?;
        let ledger = Ledger::new();
        // The first address is the leader's, see `target`; its neighbours are not.
        let consumer = Consumer::start(&ledger, target.clone().starting_at(2), queue.clone(), ConsumerPlan::default());
        let plan = PublisherPlan { rate: Some(FAILOVER_RATE), ..PublisherPlan::default() };
        let publisher = Publisher::start(&ledger, target.starting_at(1), queue.clone(), plan);
        publisher.wait_confirmed(BEFORE_KILL, RECOVERY_LIMIT).await;
        let killed = self.kill_leader(&queue.name).await.map_err(failed)?;
        ledger.note_failure(killed.at);
        let gap = publisher.recovery(killed.at, RECOVERY_LIMIT).await;
        publisher.stop(DRAIN_LIMIT).await;
        ledger.drained(DRAIN_LIMIT).await;
        consumer.stop().await;
        self.repair(&killed).await.map_err(failed)?;
        delete_queue(&self.target(), &queue).await.ok(); // what is left of it is in nobody's way
        Ok(Failover { gap_ms: gap.map(|gap| gap.as_secs_f64() * 1e3), account: ledger.account() })
    }

    async fn kill_leader(&self, queue: &str) -> Result<Killed, PeerError> {
        match self {
            Self::Understudy(cluster) => {
                let (node, _) = cluster.primary().ok_or(PeerError::NoPrimary)?;
                let pid = cluster.pid_of(&node).ok_or(PeerError::NoPrimary)?;
                let at = cluster.kill(pid).await?;
                Ok(Killed { node, pid, at })
            }
            Self::RabbitMq(cluster) => {
                let (node, pid) = cluster.leader(queue).await?;
                let at = cluster.kill(pid).await?;
                Ok(Killed { node, pid, at })
            }
        }
    }

    /// `understudy dev` starts a dead broker by itself.
    async fn repair(&self, killed: &Killed) -> Result<(), PeerError> {
        match self {
            Self::Understudy(cluster) => cluster.await_restart(&killed.node, killed.pid).await?,
            Self::RabbitMq(cluster) => cluster.start_again(&killed.node).await?,
        }
        tokio::time::sleep(SETTLE).await;
        Ok(())
    }

    async fn stop(self) -> Result<(), PeerError> {
        match self {
            Self::Understudy(cluster) => cluster.stop().await,
            Self::RabbitMq(cluster) => cluster.stop().await,
        }
    }
}

struct Killed {
    /// Ours by name, RabbitMQ's by address.
    node: String,
    pid: u32,
    at: Instant,
}
