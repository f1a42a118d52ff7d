//! What a backup that starts over costs the clients: a backlog stands in many queues, one backup's directory is emptied, and
//! while it fills itself again a publisher and a consumer go on at half of full speed, which is measured first. Beside it the
//! machine's own limit: the same bytes from a loopback connection to the disk, and nothing else.

mod copy;

use std::fmt;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::{
    DRAIN_LIMIT, OURS, SILENCE_LIMIT, StorageError, fill, on_cluster, ours, ours_failed, queues, ready, target_of,
};
use crate::consumer::{Consumer, ConsumerPlan};
use crate::figures::{count, mebibytes, number};
use crate::ledger::{Account, Ledger};
use crate::load::{LoadPlan, create_queue, run_load};
use crate::peers::{DevCluster, DevPlan, signal};
use crate::publisher::{Publisher, PublisherPlan, PublisherReport, Silence};
use crate::target::QueuePlan;

/// The share of its throughput that a publisher keeps.
pub const THROUGHPUT_GOAL: f64 = 0.85;
/// The longest pause that a catch-up may cause, in milliseconds. On a machine that has other work, too, a longer one is not its
/// doing as long as there are such without it.
pub const PAUSE_GOAL_MS: f64 = 50.0;
/// What the bare copy moves at most: enough to be past all caches' first kindness, and no more of the disk.
const MAX_COPY_BYTES: u64 = 1 << 30;
/// At the end at most: what is published meanwhile needs disk, too.
const WATCHED_AFTER: Duration = Duration::from_secs(60);
const READY_LIMIT: Duration = Duration::from_secs(1800);
const SHRINK_LIMIT: Duration = Duration::from_secs(60);
const LOOK_AGAIN: Duration = Duration::from_millis(20);

#[derive(Clone, Debug)]
pub struct CatchUpPlan {
    pub dev: DevPlan,
    /// Of all bodies of the backlog together.
    pub bytes: u64,
    pub queues: usize,
    pub backlog_message_bytes: usize,
    /// Of the load.
    pub message_bytes: usize,
    pub window: usize,
    /// How long full speed is measured, and the load before the catch-up.
    pub duration: Duration,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct CatchUpReport {
    pub backlog_messages: u64,
    pub backlog_bytes: u64,
    pub queues: usize,
    /// Messages a second, confirmed, without any limit.
    pub full_rate: f64,
    /// Messages a second that the publisher was to send from then on.
    pub asked_rate: u64,
    pub before: Phase,
    /// From the death of the backup until the set is smaller: the price of a death, not of a catch-up.
    pub death: Phase,
    pub during: Phase,
    pub after: Phase,
    /// From the start of the new process until it is in the set.
    pub catch_up_seconds: f64,
    /// Frames that the backup received, by kind.
    pub received_log_bytes: u64,
    pub received_backlog_bytes: u64,
    /// Of loopback to disk, bytes a second.
    pub copy_rate: f64,
    pub account: Account,
}

/// What the publisher and the consumer saw for a while.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Phase {
    pub seconds: f64,
    /// Messages a second.
    pub confirmed_rate: f64,
    pub delivered_rate: f64,
    /// Longest time without any confirm while messages waited for one; 0: none of 20 ms.
    pub longest_pause_ms: f64,
    /// When it began, since the beginning of the phase.
    pub longest_pause_at_seconds: f64,
    /// How many are longer than the goal.
    pub long_pauses: usize,
}

impl CatchUpReport {
    /// During the catch-up, to before it.
    pub fn throughput_ratio(&self) -> f64 {
        self.during.confirmed_rate / self.before.confirmed_rate
    }

    /// Backlog bytes a second of the catch-up, to those of the bare copy.
    pub fn limit_ratio(&self) -> f64 {
        self.rate() / self.copy_rate
    }

    fn rate(&self) -> f64 {
        self.received_backlog_bytes as f64 / self.catch_up_seconds
    }

    /// What may be seen during the catch-up: the goal, or what was seen without one.
    pub fn allowed_pause_ms(&self) -> f64 {
        PAUSE_GOAL_MS.max(self.before.longest_pause_ms).max(self.after.longest_pause_ms)
    }

    pub fn is_good(&self) -> bool {
        self.throughput_ratio() >= THROUGHPUT_GOAL && self.during.longest_pause_ms <= self.allowed_pause_ms()
    }
}

/// Runs it; `progress` gets a line for each step. The cluster is stopped in any case.
///
/// # Errors
/// If the cluster does not start, does not take the backlog, or the backup is not in the set again within half an hour.
pub async fn catch_up(plan: &CatchUpPlan, mut progress: impl FnMut(String)) -> Result<CatchUpReport, StorageError> {
    let (parent, bytes) = (plan.dev.parent.clone(), plan.bytes.min(MAX_COPY_BYTES));
    let copied = tokio::task::spawn_blocking(move || copy::rate(&parent, bytes)).await;
    let copied = copied.map_err(|error| ours_failed(error.to_string()))?;
    let copy_rate = copied.map_err(|error| ours_failed(format!("the bare copy failed: {error}")))?;
    progress(format!("loopback to disk: {} MiB/s", number(copy_rate / f64::from(1 << 20))));
    let cluster = DevCluster::start(&plan.dev).await.map_err(ours)?;
    let report = on_cluster(cluster, async |cluster| measure(plan, cluster, &mut progress).await).await?;
    Ok(CatchUpReport { copy_rate, ..report })
}

async fn measure(
    plan: &CatchUpPlan,
    cluster: &DevCluster,
    progress: &mut impl FnMut(String),
) -> Result<CatchUpReport, StorageError> {
    let load = |source| StorageError::Load { peer: OURS, source };
    let target = target_of(cluster);
    let standing = queues::numbered("standing", plan.queues);
    queues::declare(&target, &standing).await.map_err(load)?;
    let backlog_messages = plan.bytes / plan.backlog_message_bytes as u64;
    let publishing =
        PublisherPlan { message_bytes: plan.backlog_message_bytes, window: plan.window, ..PublisherPlan::default() };
    fill(OURS, &target, &standing, backlog_messages, publishing.clone()).await?;
    progress(format!("{} messages stand in {} queues", count(backlog_messages), plan.queues));

    let mut full = LoadPlan::new(QueuePlan::durable("full-speed"), plan.duration);
    full.publisher.message_bytes = plan.message_bytes;
    full.publisher.window = plan.window;
    let full_rate = run_load(&target, &full).await.map_err(load)?.confirmed_rate;
    let asked_rate = (full_rate / 2.0) as u64;
    progress(format!("full speed: {full_rate:.0} msg/s; going on at {asked_rate}"));

    let queue = QueuePlan::durable("live");
    create_queue(&target, &queue).await.map_err(load)?;
    let ledger = Ledger::new();
    let consumer = Consumer::start(&ledger, target.clone(), queue.clone(), ConsumerPlan::default());
    let publishing = PublisherPlan {
        message_bytes: plan.message_bytes,
        window: plan.window,
        rate: Some(asked_rate),
        silence_limit: SILENCE_LIMIT,
        ..PublisherPlan::default()
    };
    let publisher = Publisher::start(&ledger, target.clone(), queue, publishing);
    let mark = || Mark { at: ledger.now(), confirmed: publisher.confirmed(), delivered: consumer.delivered() };
    publisher.wait_confirmed(asked_rate, SILENCE_LIMIT).await; // the first second is not counted

    let mut marks = vec![mark()];
    tokio::time::sleep(plan.duration).await;
    marks.push(mark());
    let (primary, _) = cluster.primary().ok_or_else(|| ours_failed("no broker is primary"))?;
    let backup = cluster.names().into_iter().find(|name| *name != primary);
    let backup = backup.ok_or_else(|| ours_failed("there is no backup"))?;
    let started = empty(cluster, &backup).await?;
    let http = |name: &str| cluster.http_of(name).ok_or_else(|| ours_failed(format!("{name} has no health address")));
    let (primary_http, backup_http) = (http(&primary)?, http(&backup)?);
    let left = cluster.names().len() as u64 - 1;
    await_value(&primary_http, "understudy_in_sync_replicas", SHRINK_LIMIT, |value| value <= left).await?;
    marks.push(mark());
    progress(format!("{backup} starts over"));
    let ready = ready::health(&backup_http, READY_LIMIT).await;
    let ready = ready.ok_or_else(|| ours_failed(format!("{backup} did not catch up")))?;
    marks.push(mark());
    let catch_up_seconds = ready.saturating_duration_since(started).as_secs_f64();
    progress(format!("{backup} is in the set after {catch_up_seconds:.1} s"));
    let metrics = ready::get(&backup_http, "/metrics").await.unwrap_or_default();
    let received =
        |kind: &str| value_of(&metrics, &format!("understudy_replication_received_bytes_total{{kind=\"{kind}\"}}"));
    let (received_log_bytes, received_backlog_bytes) = (received("log"), received("backlog"));
    // A disk that falters does so in its own time: it is watched for as long without a catch-up as with one.
    let as_long = ready.saturating_duration_since(started).min(WATCHED_AFTER);
    tokio::time::sleep(plan.duration.max(as_long)).await;
    marks.push(mark());
    let metrics = ready::get(&primary_http, "/metrics").await.unwrap_or_default();
    if value_of(&metrics, "understudy_publishers_blocked").is_some_and(|blocked| blocked > 0) {
        return Err(ours_failed(
            "publishers are blocked, so the figures say nothing: the disk is nearly full (the backlog takes five times its size), or memory is",
        ));
    }

    let published = publisher.stop(DRAIN_LIMIT).await;
    ledger.drained(DRAIN_LIMIT).await;
    consumer.stop().await;
    let phase = |number: usize| marks[number].until(&marks[number + 1], &published);
    Ok(CatchUpReport {
        backlog_messages,
        backlog_bytes: backlog_messages * plan.backlog_message_bytes as u64,
        queues: plan.queues,
        full_rate,
        asked_rate,
        before: phase(0),
        death: phase(1),
        during: phase(2),
        after: phase(3),
        catch_up_seconds,
        received_log_bytes: received_log_bytes.unwrap_or(0),
        received_backlog_bytes: received_backlog_bytes.unwrap_or(0),
        copy_rate: 0.0,
        account: ledger.account(),
    })
}

/// The backup ends, and its next process finds an empty directory. Returns when that was started.
async fn empty(cluster: &DevCluster, backup: &str) -> Result<Instant, StorageError> {
    let pid = cluster.pid_of(backup).ok_or_else(|| ours_failed(format!("{backup} does not run")))?;
    let data = cluster.data_of(backup);
    let aside = data.with_extension("emptied");
    // It stands still, so that it does not meet a directory that is going away.
    signal("STOP", pid).await.map_err(ours)?;
    std::fs::rename(&data, &aside).map_err(|error| ours_failed(format!("{}: {error}", data.display())))?;
    cluster.kill(pid).await.map_err(ours)?;
    cluster.await_restart(backup, pid).await.map_err(ours)?;
    let started = cluster.started(backup).unwrap_or_else(Instant::now);
    // It goes with the cluster: a file system that gives back gigabytes makes everybody wait.
    Ok(started)
}

async fn await_value(
    address: &str,
    name: &str,
    limit: Duration,
    wanted: impl Fn(u64) -> bool,
) -> Result<(), StorageError> {
    let deadline = Instant::now() + limit;
    while Instant::now() < deadline {
        if ready::get(address, "/metrics").await.is_ok_and(|text| value_of(&text, name).is_some_and(&wanted)) {
            return Ok(());
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
    Err(ours_failed(format!("{name} at {address} is not what it should be after {} s", limit.as_secs())))
}

/// Of a series in the exposition format.
fn value_of(metrics: &str, series: &str) -> Option<u64> {
    let value = metrics.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))?;
    value.trim().parse::<f64>().ok().map(|value| value as u64)
}

/// What had happened by a moment.
struct Mark {
    /// Since the run's origin.
    at: Duration,
    confirmed: u64,
    delivered: u64,
}

impl Mark {
    fn until(&self, end: &Self, published: &PublisherReport) -> Phase {
        let seconds = end.at.saturating_sub(self.at).as_secs_f64();
        let rate = |from: u64, until: u64| if seconds > 0.0 { (until - from) as f64 / seconds } else { 0.0 };
        // A pause counts where it ends or lies.
        let within = |silence: &&Silence| silence.until > self.at && silence.from < end.at;
        let pauses = published.silences.iter().filter(within);
        let pauses = pauses.map(|silence| {
            let from = silence.from.max(self.at);
            (silence.until.min(end.at).saturating_sub(from), from.saturating_sub(self.at))
        });
        let long_pauses = pauses.clone().filter(|(length, _)| length.as_secs_f64() * 1e3 > PAUSE_GOAL_MS).count();
        let (longest, longest_at) = pauses.max().unwrap_or_default();
        Phase {
            seconds,
            confirmed_rate: rate(self.confirmed, end.confirmed),
            delivered_rate: rate(self.delivered, end.delivered),
            longest_pause_ms: longest.as_secs_f64() * 1e3,
            longest_pause_at_seconds: longest_at.as_secs_f64(),
            long_pauses,
        }
    }
}

impl fmt::Display for CatchUpReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: f64| number(bytes / f64::from(1 << 20));
        writeln!(
            f,
            "{} messages, {:.0} MiB, in {} queues; full speed {:.0} msg/s, load {} msg/s",
            count(self.backlog_messages),
            mebibytes(self.backlog_bytes),
            self.queues,
            self.full_rate,
            self.asked_rate
        )?;
        writeln!(
            f,
            "{:<24}{:>9}{:>18}{:>18}{:>18}{:>12}{:>12}",
            "",
            "s",
            "confirmed msg/s",
            "delivered msg/s",
            "longest pause ms",
            "it began s",
            format!("over {PAUSE_GOAL_MS} ms")
        )?;
        let rows = [
            ("before", self.before),
            ("a backup dies", self.death),
            ("it catches up", self.during),
            ("after", self.after),
        ];
        for (name, phase) in rows {
            let (pause, at) = if phase.longest_pause_ms > 0.0 {
                (number(phase.longest_pause_ms), format!("{:.1}", phase.longest_pause_at_seconds))
            } else {
                ("< 20".to_owned(), String::new())
            };
            writeln!(
                f,
                "{name:<24}{:>9.1}{:>18.0}{:>18.0}{pause:>18}{at:>12}{:>12}",
                phase.seconds, phase.confirmed_rate, phase.delivered_rate, phase.long_pauses
            )?;
        }
        writeln!(
            f,
            "caught up in {:.1} s: {} MiB of backlog at {} MiB/s and {} MiB of log; loopback to disk alone {} MiB/s, ratio {:.2}",
            self.catch_up_seconds,
            mib(self.received_backlog_bytes as f64),
            mib(self.rate()),
            mib(self.received_log_bytes as f64),
            mib(self.copy_rate),
            self.limit_ratio()
        )?;
        let verdict = |reached| if reached { "reached" } else { "MISSED" };
        let (ratio, pause) = (self.throughput_ratio(), self.during.longest_pause_ms);
        writeln!(
            f,
            "throughput during to before {ratio:.2}: the goal of {THROUGHPUT_GOAL} is {}; no pause above {} ms ({PAUSE_GOAL_MS}, or what was seen without a catch-up) is {}",
            verdict(ratio >= THROUGHPUT_GOAL),
            number(self.allowed_pause_ms()),
            verdict(pause <= self.allowed_pause_ms())
        )?;
        write!(f, "{}", self.account)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_counts_for_the_phase_it_lies_in() {
        let at = Duration::from_millis;
        let published = PublisherReport {
            silences: vec![
                Silence { from: at(900), until: at(1030) },
                Silence { from: at(1500), until: at(1540) },
                Silence { from: at(2500), until: at(2600) },
            ],
            ..PublisherReport::default()
        };
        let mark = |ms, count| Mark { at: at(ms), confirmed: count, delivered: count / 2 };
        let phase = mark(1000, 100).until(&mark(2000, 600), &published);
        assert!((phase.longest_pause_ms - 40.0).abs() < 1e-6, "{phase:?}");
        assert!((phase.longest_pause_at_seconds - 0.5).abs() < 1e-6, "{phase:?}");
        assert_eq!(mark(500, 0).until(&mark(2000, 600), &published).long_pauses, 1, "that of 130 ms");
        assert!((phase.confirmed_rate - 500.0).abs() < 1e-6 && (phase.delivered_rate - 250.0).abs() < 1e-6);
    }

    #[test]
    fn both_goals_count_and_are_told() {
        let phase = |rate, pause| Phase {
            confirmed_rate: rate,
            delivered_rate: rate,
            longest_pause_ms: pause,
            ..Phase::default()
        };
        let mut report = CatchUpReport {
            before: phase(100.0, 0.0),
            during: phase(90.0, 40.0),
            catch_up_seconds: 2.0,
            received_backlog_bytes: 200 << 20,
            copy_rate: 200.0 * f64::from(1 << 20),
            ..CatchUpReport::default()
        };
        assert!(report.is_good());
        assert!(report.to_string().contains("at 100 MiB/s") && report.to_string().contains("ratio 0.50"), "{report}");
        report.during.longest_pause_ms = 60.0;
        assert!(!report.is_good());
        let text = report.to_string();
        assert!(text.contains("0.90: the goal of 0.85 is reached; no pause above 50.0 ms"), "{text}");
        assert!(text.contains("is MISSED"), "{text}");
        report.after.longest_pause_ms = 61.0;
        assert!(report.is_good(), "the machine pauses as long without it");
    }

    #[test]
    fn reads_a_series() {
        let text = "# HELP a b\nbytes_total{kind=\"log\"} 12\nbytes_total{kind=\"backlog\"} 1.5e3\n";
        assert_eq!(value_of(text, "bytes_total{kind=\"backlog\"}"), Some(1500));
        assert_eq!(value_of(text, "bytes_total"), None);
    }
}
