//! What checkpoints and the consolidator cost a load at full speed: two of our clusters with the same standing backlog,
//! one that writes checkpoints and one that never does, loaded in turns in one run.

use std::fmt;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::Serialize;

use super::{OURS, StorageError, fill, ours, queues, target_of};
use crate::figures::{count, median, spread};
use crate::load::{LoadPlan, LoadReport, run_load};
use crate::peers::{DevCluster, DevPlan};
use crate::publisher::PublisherPlan;
use crate::sampler::Sampler;
use crate::target::QueuePlan;

/// The share of the throughput that must be left with the work in the background.
pub const GOAL: f64 = 0.9;
/// More log than any run writes: no checkpoint.
const NEVER: u64 = 1 << 50;
/// The file that a broker replaces with each checkpoint.
const CHECKPOINT: &str = "checkpoint";
const SAMPLE_EVERY: Duration = Duration::from_millis(20);
/// Ports of the second cluster, behind those of the first.
const PORT_STEP: u16 = 10;

#[derive(Clone, Debug)]
pub struct SteadyPlan {
    /// Of both, but for ports and checkpoints.
    pub dev: DevPlan,
    /// Log bytes between two checkpoints in the cluster that writes them; `None`: the broker's default.
    pub checkpoint_bytes: Option<u64>,
    pub rounds: usize,
    /// Of one load, with the warm-up.
    pub duration: Duration,
    pub message_bytes: usize,
    pub window: usize,
    /// Messages that stand in other queues all the time.
    pub backlog: u64,
    pub backlog_queues: usize,
    pub backlog_message_bytes: usize,
}

#[derive(Clone, Debug, Serialize)]
pub struct SteadyReport {
    pub backlog: u64,
    pub message_bytes: usize,
    pub rounds: Vec<Round>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Round {
    pub with: Turn,
    pub without: Turn,
}

#[derive(Clone, Debug, Serialize)]
pub struct Turn {
    pub load: LoadReport,
    /// Of all replicas, while the load ran.
    pub checkpoints: u64,
}

/// Of a row, from one load.
type Figure = fn(&LoadReport) -> f64;

impl SteadyReport {
    fn ratios(&self, figure: Figure) -> Vec<f64> {
        self.rounds.iter().map(|round| figure(&round.with.load) / figure(&round.without.load)).collect()
    }

    /// With to without, round by round.
    pub fn throughput_ratios(&self) -> Vec<f64> {
        self.ratios(|load| load.confirmed_rate)
    }

    /// The smallest number of checkpoints in a turn that should have some.
    pub fn fewest_checkpoints(&self) -> u64 {
        self.rounds.iter().map(|round| round.with.checkpoints).min().unwrap_or(0)
    }
}

/// Runs all rounds; `progress` gets a line for each load. The clusters are stopped in any case.
///
/// # Errors
/// If a cluster does not start, or answers no load.
pub async fn steady(plan: &SteadyPlan, mut progress: impl FnMut(String)) -> Result<SteadyReport, StorageError> {
    let mut clusters = Vec::new();
    let outcome = tokio::select! {
        outcome = measure(plan, &mut clusters, &mut progress) => outcome,
        _ = tokio::signal::ctrl_c() => Err(StorageError::Interrupted),
    };
    for cluster in clusters {
        if let Err(error) = cluster.stop().await {
            progress(format!("a cluster did not stop: {error}"));
        }
    }
    outcome
}

async fn measure(
    plan: &SteadyPlan,
    clusters: &mut Vec<DevCluster>,
    progress: &mut impl FnMut(String),
) -> Result<SteadyReport, StorageError> {
    for (number, checkpoint_bytes) in [plan.checkpoint_bytes, Some(NEVER)].into_iter().enumerate() {
        let mut dev = plan.dev.clone();
        dev.amqp_port += PORT_STEP * number as u16;
        dev.broker_arguments.extend(checkpoint_bytes.map(|bytes| format!("--checkpoint-bytes={bytes}")));
        let cluster = DevCluster::start(&dev).await.map_err(ours)?;
        stand(plan, &cluster).await?;
        clusters.push(cluster);
    }
    progress(format!("{} messages stand in each of two clusters", count(plan.backlog)));
    let [with, without] = &clusters[..] else { return Err(super::ours_failed("two clusters were started")) };
    let mut report = SteadyReport { backlog: plan.backlog, message_bytes: plan.message_bytes, rounds: Vec::new() };
    for number in 1..=plan.rounds {
        // Who goes first changes, so that neither is favoured by what the disk still does for the other.
        let (with, without) = if number % 2 == 1 {
            let with = turn(plan, with).await?;
            (with, turn(plan, without).await?)
        } else {
            let without = turn(plan, without).await?;
            (turn(plan, with).await?, without)
        };
        for (name, turn) in [("with checkpoints", &with), ("without", &without)] {
            let Turn { load, checkpoints } = turn;
            let (rate, p99) = (load.confirmed_rate, load.confirm.p99_ms);
            progress(format!("round {number}, {name}: {rate:.0} msg/s, p99 {p99:.2} ms, {checkpoints} checkpoints"));
        }
        report.rounds.push(Round { with, without });
    }
    Ok(report)
}

/// The backlog that checkpoints have to write.
async fn stand(plan: &SteadyPlan, cluster: &DevCluster) -> Result<(), StorageError> {
    let target = target_of(cluster);
    let queues = queues::numbered("standing", plan.backlog_queues);
    queues::declare(&target, &queues).await.map_err(|source| StorageError::Load { peer: OURS, source })?;
    let publishing =
        PublisherPlan { message_bytes: plan.backlog_message_bytes, window: plan.window, ..PublisherPlan::default() };
    fill(OURS, &target, &queues, plan.backlog, publishing).await.map(drop)
}

async fn turn(plan: &SteadyPlan, cluster: &DevCluster) -> Result<Turn, StorageError> {
    let queue = QueuePlan::durable(format!("steady-{:016x}", rand::random::<u64>()));
    let mut load = LoadPlan::new(queue, plan.duration);
    load.publisher.message_bytes = plan.message_bytes;
    load.publisher.window = plan.window;
    let files = cluster.names().iter().map(|name| cluster.data_of(name).join(CHECKPOINT)).collect();
    let checkpoints = Checkpoints::watch(files);
    let load = run_load(&target_of(cluster), &load).await;
    let load = load.map_err(|source| StorageError::Load { peer: OURS, source })?;
    Ok(Turn { load, checkpoints: checkpoints.seen.load(Ordering::Relaxed) })
}

/// Counts how often files are replaced.
struct Checkpoints {
    seen: Arc<AtomicU64>,
    _sampler: Sampler,
}

impl Checkpoints {
    fn watch(files: Vec<PathBuf>) -> Self {
        let seen = Arc::new(AtomicU64::new(0));
        let counted = seen.clone();
        let mut last = identities(&files);
        let sampler = Sampler::start(SAMPLE_EVERY, move || {
            let now = identities(&files);
            let replaced = now.iter().zip(&last).filter(|(now, last)| now.is_some() && now != last).count();
            counted.fetch_add(replaced as u64, Ordering::Relaxed);
            last = now;
        });
        Self { seen, _sampler: sampler }
    }
}

/// What changes when a file is replaced, even within one tick of the clock or by one that takes over its number.
fn identities(files: &[PathBuf]) -> Vec<Option<(u64, i64, i64)>> {
    let identity = |file: &PathBuf| {
        let metadata = file.metadata().ok()?;
        Some((metadata.ino(), metadata.mtime(), metadata.mtime_nsec()))
    };
    files.iter().map(identity).collect()
}

impl fmt::Display for SteadyReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rounds, backlog) = (self.rounds.len(), count(self.backlog));
        writeln!(
            f,
            "{} byte messages beside {backlog} that stand; median (lowest to highest) of {rounds} rounds",
            self.message_bytes
        )?;
        writeln!(f, "{:<20}{:>28}{:>28}{:>24}", "checkpoints", "with", "without", "ratio")?;
        let rows: [(&str, Figure); 4] = [
            ("confirmed, msg/s", |load| load.confirmed_rate),
            ("delivered, msg/s", |load| load.delivered_rate),
            ("confirm, median ms", |load| load.confirm.p50_ms),
            ("confirm, p99 ms", |load| load.confirm.p99_ms),
        ];
        for (name, figure) in rows {
            let with = spread(self.rounds.iter().map(|round| figure(&round.with.load)).collect());
            let without = spread(self.rounds.iter().map(|round| figure(&round.without.load)).collect());
            writeln!(f, "{name:<20}{with:>28}{without:>28}{:>24}", spread(self.ratios(figure)))?;
        }
        let seen = spread(self.rounds.iter().map(|round| round.with.checkpoints as f64).collect());
        let unseen = spread(self.rounds.iter().map(|round| round.without.checkpoints as f64).collect());
        writeln!(f, "{:<20}{seen:>28}{unseen:>28}", "checkpoints a turn")?;
        if self.fewest_checkpoints() == 0 {
            writeln!(
                f,
                "A TURN SAW NO CHECKPOINT, so nothing is proved: make it longer, or --checkpoint-bytes smaller"
            )?;
        } else if let Some(ratio) = median(self.throughput_ratios()) {
            let verdict = if ratio >= GOAL { "reached" } else { "missed" };
            writeln!(f, "the goal of {GOAL} for the throughput is {verdict}")?;
        }
        let unclean = |turn: &Turn| !turn.load.account.is_clean() || turn.load.unconfirmed > 0;
        let unclean = self.rounds.iter().filter(|round| unclean(&round.with) || unclean(&round.without)).count();
        if unclean > 0 {
            writeln!(f, "{unclean} ROUNDS LOST, DUPLICATED OR LEFT MESSAGES UNCONFIRMED")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::Account;

    fn turn(rate: f64, checkpoints: u64) -> Turn {
        Turn { load: LoadReport { confirmed_rate: rate, ..LoadReport::default() }, checkpoints }
    }

    #[test]
    fn ratios_are_taken_round_by_round_and_what_was_not_measured_is_said() {
        let rounds = vec![
            Round { with: turn(95.0, 3), without: turn(100.0, 0) },
            Round { with: turn(400.0, 0), without: turn(500.0, 0) },
        ];
        let mut report = SteadyReport { backlog: 1000, message_bytes: 1024, rounds };
        let text = report.to_string();
        assert!(text.contains("0.88 (0.80 to 0.95)") && !text.contains("the goal"), "{text}");
        assert!(text.contains("A TURN SAW NO CHECKPOINT") && !text.contains("ROUNDS LOST"), "{text}");
        report.rounds[1].with.checkpoints = 1;
        report.rounds[0].without.load.account = Account { lost: 1, ..Account::default() };
        let text = report.to_string();
        assert!(text.contains("the goal of 0.9 for the throughput is missed"), "{text}");
        assert!(!text.contains("A TURN SAW NO CHECKPOINT") && text.contains("1 ROUNDS LOST"), "{text}");
    }

    #[test]
    fn counts_replaced_files() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(CHECKPOINT);
        std::fs::write(&file, "1").unwrap();
        let checkpoints = Checkpoints::watch(vec![file.clone(), dir.path().join("never")]);
        let deadline = std::time::Instant::now() + Duration::from_secs(20);
        for expected in 1..=2 {
            let new = dir.path().join("new");
            std::fs::write(&new, "2").unwrap();
            std::fs::rename(&new, &file).unwrap();
            while checkpoints.seen.load(Ordering::Relaxed) < expected {
                assert!(std::time::Instant::now() < deadline);
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        assert_eq!(checkpoints.seen.load(Ordering::Relaxed), 2);
    }
}
