//! How long a broker with many messages in many queues takes from its start, after a kill -9, until it serves: ours and
//! RabbitMQ with classic durable queues, one node each, in turns in one run. The time with nothing in it is measured
//! first, since much of what RabbitMQ takes is its own start.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Serialize;

use super::{OURS, StorageError, fill, queues, ready, target_of};
use crate::figures::{count, median, number, spread};
use crate::peers::{DevCluster, DevPlan, PeerError, RabbitCluster};
use crate::publisher::PublisherPlan;
use crate::target::{QueuePlan, Target};

const RABBITMQ: &str = "rabbitmq";
const QUEUE_NAME: &str = "restart";
/// The share of RabbitMQ's time that ours is to need at most.
pub const GOAL: f64 = 0.2;
/// A broker that is not ready within this has failed.
const READY_LIMIT: Duration = Duration::from_secs(900);
/// Between the last confirm and the kill, and after a restart: what a broker puts off for a moment is done.
const SETTLE: Duration = Duration::from_secs(3);
/// The process is gone soon after its signal, but its memory has to be given back first.
const GONE_LIMIT: Duration = Duration::from_secs(30);
const LOOK_AGAIN: Duration = Duration::from_millis(1);

#[derive(Clone, Debug)]
pub struct RestartPlan {
    pub messages: u64,
    pub queues: usize,
    pub message_bytes: usize,
    pub window: usize,
    pub rounds: usize,
    /// `None` leaves ours out.
    pub understudy: Option<DevPlan>,
    /// `rabbitmq-cluster`; `None` leaves RabbitMQ out.
    pub rabbitmq_script: Option<PathBuf>,
    pub rabbitmq_port: u16,
    /// Where RabbitMQ's files go; removed at the end.
    pub dir: PathBuf,
}

#[derive(Clone, Debug, Serialize)]
pub struct RestartReport {
    pub messages: u64,
    pub queues: usize,
    pub message_bytes: usize,
    pub peers: Vec<PeerRestarts>,
}

#[derive(Clone, Debug, Serialize)]
pub struct PeerRestarts {
    pub name: &'static str,
    /// With one empty queue, before the messages came.
    pub empty: Restart,
    pub fill_seconds: f64,
    /// One a round, with all the messages.
    pub full: Vec<Restart>,
}

/// Milliseconds from the start of the process.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Restart {
    /// Until a client was told that a queue is there.
    pub amqp_ms: f64,
    /// Until the health endpoint said ready; RabbitMQ has none here.
    pub health_ms: Option<f64>,
    /// Messages in all queues then.
    pub found: u64,
}

impl Restart {
    /// Until both.
    pub fn ready_ms(&self) -> f64 {
        self.health_ms.map_or(self.amqp_ms, |health| health.max(self.amqp_ms))
    }
}

impl RestartReport {
    /// Whether every restart found every message.
    pub fn is_complete(&self) -> bool {
        self.peers.iter().flat_map(|peer| &peer.full).all(|restart| restart.found == self.messages)
    }

    /// Ours to RabbitMQ's, round by round.
    pub fn ratios(&self) -> Vec<f64> {
        let of = |name| self.peers.iter().find(|peer| peer.name == name).map_or(&[] as &[_], |peer| &peer.full);
        of(OURS).iter().zip(of(RABBITMQ)).map(|(ours, theirs)| ours.ready_ms() / theirs.ready_ms()).collect()
    }
}

/// Runs it; `progress` gets a line for each step. The brokers are stopped in any case.
///
/// # Errors
/// If a broker does not start, does not take the messages, or is not ready again within a quarter of an hour.
pub async fn restart(plan: &RestartPlan, mut progress: impl FnMut(String)) -> Result<RestartReport, StorageError> {
    let mut peers = Vec::new();
    let outcome = tokio::select! {
        outcome = measure(plan, &mut peers, &mut progress) => outcome,
        _ = tokio::signal::ctrl_c() => Err(StorageError::Interrupted),
    };
    for peer in peers {
        let name = peer.name();
        if let Err(error) = peer.stop().await {
            progress(format!("{name} did not stop: {error}"));
        }
    }
    outcome
}

async fn measure(
    plan: &RestartPlan,
    peers: &mut Vec<Peer>,
    progress: &mut impl FnMut(String),
) -> Result<RestartReport, StorageError> {
    if let Some(dev) = &plan.understudy {
        let cluster = DevCluster::start(dev).await.map_err(super::ours)?;
        peers.push(Peer::Understudy(cluster));
    }
    if let Some(script) = &plan.rabbitmq_script {
        peers.push(Peer::start_rabbitmq(script, plan).await?);
    }
    let queues = queues::numbered(QUEUE_NAME, plan.queues);
    let mut measured = Vec::new();
    for peer in &*peers {
        measured.push(peer.prepare(plan, &queues, progress).await?);
    }
    for round in 1..=plan.rounds {
        for (peer, measured) in peers.iter().zip(&mut measured) {
            let restart = peer.restart(&queues).await?;
            let name = peer.name();
            let found = count(restart.found);
            progress(format!("round {round}, {name}: ready after {:.0} ms, {found} messages", restart.ready_ms()));
            measured.full.push(restart);
        }
    }
    let RestartPlan { messages, message_bytes, .. } = *plan;
    Ok(RestartReport { messages, queues: plan.queues, message_bytes, peers: measured })
}

enum Peer {
    Understudy(DevCluster),
    RabbitMq(RabbitCluster),
}

impl Peer {
    async fn start_rabbitmq(script: &Path, plan: &RestartPlan) -> Result<Self, StorageError> {
        let dir = plan.dir.join(format!("understudy-bench-rabbitmq-{:016x}", rand::random::<u64>()));
        let started = RabbitCluster::start(script, &dir, plan.rabbitmq_port, 1).await;
        started.map(Self::RabbitMq).map_err(|source| StorageError::Peer { peer: RABBITMQ, source })
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Understudy(_) => OURS,
            Self::RabbitMq(_) => RABBITMQ,
        }
    }

    fn target(&self) -> Target {
        match self {
            Self::Understudy(cluster) => target_of(cluster),
            Self::RabbitMq(cluster) => Target::local(cluster.addresses()),
        }
    }

    async fn prepare(
        &self,
        plan: &RestartPlan,
        queues: &[QueuePlan],
        progress: &mut impl FnMut(String),
    ) -> Result<PeerRestarts, StorageError> {
        let (peer, target) = (self.name(), self.target());
        let load = |source| StorageError::Load { peer, source };
        queues::declare(&target, &queues[..1]).await.map_err(load)?;
        let empty = self.restart(&queues[..1]).await?;
        progress(format!("{peer}: ready after {:.0} ms with nothing in it", empty.ready_ms()));
        let target = self.target(); // its roles may have changed
        queues::declare(&target, queues).await.map_err(load)?;
        let publishing =
            PublisherPlan { message_bytes: plan.message_bytes, window: plan.window, ..PublisherPlan::default() };
        let begun = Instant::now();
        fill(peer, &target, queues, plan.messages, publishing).await?;
        let fill_seconds = begun.elapsed().as_secs_f64();
        let rate = plan.messages as f64 / fill_seconds;
        progress(format!("{peer}: {} messages in {} queues, {rate:.0} a second", plan.messages, plan.queues));
        Ok(PeerRestarts { name: peer, empty, fill_seconds, full: Vec::new() })
    }

    /// Kills it, starts it, waits until it is ready, and counts.
    async fn restart(&self, queues: &[QueuePlan]) -> Result<Restart, StorageError> {
        tokio::time::sleep(SETTLE).await;
        let peer = self.name();
        let target = self.target();
        let failed = |what: &str| StorageError::Failed { peer, what: what.to_owned() };
        let wrong = |source| StorageError::Peer { peer, source };
        let (first, http) = (queues.first().ok_or_else(|| failed("no queue"))?, self.http());
        let (amqp, health) = match self {
            Self::Understudy(cluster) => {
                let name = cluster.names().into_iter().next().ok_or_else(|| failed("no broker"))?;
                let pid = cluster.pid_of(&name).ok_or_else(|| failed("no process"))?;
                cluster.kill(pid).await.map_err(wrong)?;
                // `understudy dev` starts it again by itself, maybe before this is polled again.
                let ready = async { tokio::join!(ready::amqp(&target, first, READY_LIMIT), await_health(http)) };
                let restarted = async { cluster.await_restart(&name, pid).await.map(|()| cluster.started(&name)) };
                await_gone(pid).await.map_err(wrong)?;
                let (restarted, (amqp, health)) = tokio::join!(restarted, ready);
                let started = restarted.map_err(wrong)?.ok_or_else(|| failed("no process"))?;
                (since(started, amqp), health.map(|health| since(started, Some(health))))
            }
            Self::RabbitMq(cluster) => {
                let address = cluster.addresses().into_iter().next().ok_or_else(|| failed("no node"))?;
                let pid = cluster.pid_at(&address).await.map_err(wrong)?;
                cluster.kill(pid).await.map_err(wrong)?;
                await_gone(pid).await.map_err(wrong)?;
                let started = Instant::now();
                let ready = ready::amqp(&target, first, READY_LIMIT);
                let (launched, amqp) = tokio::join!(cluster.launch(&address), ready);
                launched.map_err(wrong)?;
                (since(started, amqp), None)
            }
        };
        let amqp_ms = amqp.ok_or_else(|| failed("not ready again within a quarter of an hour"))?;
        let health_ms = match health {
            Some(ms) => Some(ms.ok_or_else(|| failed("never healthy again"))?),
            None => None,
        };
        let counted = queues::count(&self.target(), queues).await;
        let found = counted.map_err(|source| StorageError::Load { peer, source })?;
        Ok(Restart { amqp_ms, health_ms, found })
    }

    fn http(&self) -> Option<String> {
        match self {
            Self::Understudy(cluster) => cluster.names().first().and_then(|name| cluster.http_of(name)),
            Self::RabbitMq(_) => None,
        }
    }

    async fn stop(self) -> Result<(), PeerError> {
        match self {
            Self::Understudy(cluster) => cluster.stop().await,
            Self::RabbitMq(cluster) => cluster.stop().await,
        }
    }
}

async fn await_health(address: Option<String>) -> Option<Instant> {
    ready::health(&address?, READY_LIMIT).await
}

fn since(started: Instant, at: Option<Instant>) -> Option<f64> {
    Some(at?.saturating_duration_since(started).as_secs_f64() * 1e3)
}

/// Until a killed process has no more memory and no more ports.
pub(super) async fn await_gone(pid: u32) -> Result<(), PeerError> {
    let deadline = Instant::now() + GONE_LIMIT;
    while runs(pid) {
        if Instant::now() >= deadline {
            return Err(PeerError::TimedOut { what: format!("the end of process {pid}"), limit: GONE_LIMIT });
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
    Ok(())
}

/// One that waits for its parent to take notice has ended.
fn runs(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
}

impl fmt::Display for RestartReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rounds = self.peers.iter().map(|peer| peer.full.len()).max().unwrap_or(0);
        let (messages, queues) = (count(self.messages), count(self.queues as u64));
        writeln!(f, "{messages} persistent messages of {} bytes in {queues} durable queues", self.message_bytes)?;
        writeln!(f, "kill -9, then from the start of the process until it is ready, median of {rounds} rounds")?;
        writeln!(f, "{:<12}{:>24}{:>12}{:>12}{:>14}", "", "ready, ms", "AMQP, ms", "empty, ms", "found")?;
        for peer in &self.peers {
            let of = |figure: fn(&Restart) -> f64| peer.full.iter().map(figure).collect::<Vec<_>>();
            let amqp = median(of(|restart| restart.amqp_ms)).map_or_else(|| "-".to_owned(), number);
            let found = peer.full.iter().map(|restart| restart.found).min().map_or_else(|| "-".to_owned(), count);
            let empty = number(peer.empty.ready_ms());
            writeln!(f, "{:<12}{:>24}{amqp:>12}{empty:>12}{found:>14}", peer.name, spread(of(Restart::ready_ms)))?;
        }
        if let Some(ratio) = median(self.ratios()) {
            let verdict = if ratio <= GOAL { "reached" } else { "missed" };
            writeln!(f, "ratio {}, the goal of {GOAL} is {verdict}", spread(self.ratios()))?;
        }
        if !self.is_complete() {
            writeln!(f, "MESSAGES ARE MISSING OR TOO MANY")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(name: &'static str, ms: &[f64], found: u64) -> PeerRestarts {
        let restart = |ms: &f64| Restart { amqp_ms: *ms, health_ms: Some(ms + 1.0), found };
        let empty = Restart { amqp_ms: 10.0, health_ms: None, found: 0 };
        PeerRestarts { name, empty, fill_seconds: 1.0, full: ms.iter().map(restart).collect() }
    }

    fn report(found: u64) -> RestartReport {
        let peers = vec![peer(OURS, &[99.0, 199.0], found), peer(RABBITMQ, &[999.0, 999.0], 1000)];
        RestartReport { messages: 1000, queues: 10, message_bytes: 100, peers }
    }

    #[test]
    fn ready_is_the_later_of_both_and_the_ratio_is_of_rounds() {
        let text = report(1000).to_string();
        assert!(text.contains("ratio 0.15 (0.10 to 0.20), the goal of 0.2 is reached\n"), "{text}");
        assert!(text.contains("150 (100 to 200)"), "{text}");
        assert!(report(1000).is_complete() && !text.contains("MISSING"));
    }

    #[test]
    fn a_missing_message_is_shouted() {
        assert!(!report(999).is_complete());
        assert!(report(999).to_string().contains("MESSAGES ARE MISSING"));
    }

    #[tokio::test]
    async fn a_process_that_ended_is_gone() {
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        assert!(runs(child.id()));
        child.kill().unwrap();
        await_gone(child.id()).await.unwrap();
        child.wait().unwrap();
    }
}
