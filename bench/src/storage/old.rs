//! What one old message that is never acknowledged costs: gigabytes of later traffic, published and acknowledged, pass it
//! by, while every replica's data directory is measured over and over. Then every broker is killed at once, the restart
//! is timed, and the old message must be there.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::task::JoinSet;
use understudy_protocol::{ClientEvent, basic};

use super::{
    DRAIN_LIMIT, OURS, StorageError, highest, on_cluster, ours, ours_failed, publish_all, queues, ready, restart,
    target_of, time_for,
};
use crate::consumer::{Consumer, ConsumerPlan};
use crate::figures::{count, mebibytes};
use crate::ledger::{Account, Ledger};
use crate::link::{Link, LinkError};
use crate::load::create_queue;
use crate::peers::{DevCluster, DevPlan};
use crate::publisher::{Publisher, PublisherPlan};
use crate::sampler::{Peaks, disk_bytes};
use crate::stamp::Stamp;
use crate::target::{QueuePlan, Target};

/// As the broker's own.
pub const SEGMENT_BYTES: u64 = 64 << 20;
/// A message's frame beside its body, roughly: its headers, names and properties.
const FRAME_BYTES: u64 = 100;
/// A segment fills in about a second; its file is seen several times.
const SAMPLE_EVERY: Duration = Duration::from_millis(100);
const OLD_QUEUE: &str = "old";
const TRAFFIC_QUEUE: &str = "traffic";
/// The peaks' name for the live data, which no broker has.
const LIVE: &str = "live data";
const READY_LIMIT: Duration = Duration::from_secs(300);
/// The old message is delivered to its holder within it.
const HELD_LIMIT: Duration = Duration::from_secs(30);

#[derive(Clone, Debug)]
pub struct OldPlan {
    pub dev: DevPlan,
    /// Of the bodies of the later traffic.
    pub bytes: u64,
    pub message_bytes: usize,
    pub window: usize,
}

/// Sizes in bytes.
#[derive(Clone, Debug, Default, Serialize)]
pub struct OldReport {
    pub messages: u64,
    pub message_bytes: usize,
    pub traffic_seconds: f64,
    /// Of each replica's data directory while the traffic passed.
    pub disk_peak: BTreeMap<String, u64>,
    /// The same right after it.
    pub disk_after: BTreeMap<String, u64>,
    /// The most that was published and not consumed at one time.
    pub live_peak: u64,
    /// From the first new process to the first answer over AMQP.
    pub restart_ms: f64,
    /// Until every replica says ready: in sync again.
    pub all_ready_ms: f64,
    pub old_message_is_there: bool,
    pub account: Account,
}

impl OldReport {
    /// Twice the live data and four segments.
    pub fn bound(&self) -> u64 {
        2 * self.live_peak + 4 * SEGMENT_BYTES
    }

    pub fn is_within_bound(&self) -> bool {
        highest(&self.disk_peak) <= self.bound()
    }
}

/// Runs it; `progress` gets a line for each step. The cluster is stopped in any case.
///
/// # Errors
/// If the cluster does not start, does not take the traffic, or does not come back.
pub async fn old(plan: &OldPlan, mut progress: impl FnMut(String)) -> Result<OldReport, StorageError> {
    let cluster = DevCluster::start(&plan.dev).await.map_err(ours)?;
    on_cluster(cluster, async |cluster| measure(plan, cluster, &mut progress).await).await
}

async fn measure(
    plan: &OldPlan,
    cluster: &DevCluster,
    progress: &mut impl FnMut(String),
) -> Result<OldReport, StorageError> {
    let target = target_of(cluster);
    let old_queue = QueuePlan::durable(OLD_QUEUE);
    let load = |source| StorageError::Load { peer: OURS, source };
    create_queue(&target, &old_queue).await.map_err(load)?;
    let old_ledger = Ledger::new();
    let one = PublisherPlan { message_bytes: plan.message_bytes, limit: Some(1), ..PublisherPlan::default() };
    publish_all(OURS, Publisher::start(&old_ledger, target.clone(), old_queue.clone(), one), 1).await?;
    let holder = hold(&target, &old_queue).await.map_err(load)?;
    progress("one message is delivered and not acknowledged".to_owned());

    let mut report = pass_by(plan, cluster, &target).await?;
    let (seconds, peak) = (report.traffic_seconds, mebibytes(highest(&report.disk_peak)));
    progress(format!("the traffic took {seconds:.0} s, the largest data directory {peak:.0} MiB"));
    drop(holder);

    (report.restart_ms, report.all_ready_ms) = restart_all(cluster, &old_queue).await?;
    progress(format!("all killed: answered again after {:.0} ms", report.restart_ms));
    let getting = async {
        let mut link = queues::open(&target_of(cluster)).await?;
        let message = link.get(old_queue.short_name().ok_or(LinkError::QueueName)?).await?;
        link.close().await;
        Ok(message)
    };
    let message = tokio::time::timeout(HELD_LIMIT, getting).await.unwrap_or(Err(LinkError::TimedOut(HELD_LIMIT)));
    let stamp = message.map_err(load)?.and_then(|message| Stamp::decode(&message.body));
    report.old_message_is_there = stamp.is_some_and(|stamp| stamp.run == old_ledger.run());
    Ok(report)
}

/// Takes the message and keeps it until the returned task is dropped, answering heartbeats meanwhile.
async fn hold(target: &Target, queue: &QueuePlan) -> Result<JoinSet<()>, LinkError> {
    let holding = async {
        let mut link = queues::open(target).await?;
        let queue = queue.short_name().ok_or(LinkError::QueueName)?;
        link.request(basic::Qos { prefetch_count: 1, ..basic::Qos::default() }.into(), basic::QosOk::ID).await?;
        link.send_method(&basic::Consume { queue, ..basic::Consume::default() }.into());
        while !take_delivery(&mut link).await? {}
        Ok(link)
    };
    let mut link = tokio::time::timeout(HELD_LIMIT, holding).await.unwrap_or(Err(LinkError::TimedOut(HELD_LIMIT)))?;
    let mut task = JoinSet::new();
    task.spawn(async move { while take_delivery(&mut link).await.is_ok() {} });
    Ok(task)
}

async fn take_delivery(link: &mut Link) -> Result<bool, LinkError> {
    link.turn().await?;
    let mut is_delivered = false;
    while let Some(event) = link.poll_event()? {
        is_delivered |= matches!(event, ClientEvent::Delivery(..));
    }
    Ok(is_delivered)
}

async fn pass_by(plan: &OldPlan, cluster: &DevCluster, target: &Target) -> Result<OldReport, StorageError> {
    let messages = plan.bytes.div_ceil(plan.message_bytes as u64);
    let queue = QueuePlan::durable(TRAFFIC_QUEUE);
    create_queue(target, &queue).await.map_err(|source| StorageError::Load { peer: OURS, source })?;
    let ledger = Ledger::new();
    let directories: Vec<_> = cluster.names().into_iter().map(|name| (cluster.data_of(&name), name)).collect();
    let disk = move || -> BTreeMap<String, u64> {
        directories.iter().filter_map(|(dir, name)| Some((name.clone(), disk_bytes(dir).ok()?))).collect()
    };
    let (sampled_disk, sampled_ledger) = (disk.clone(), ledger.clone());
    let frame_bytes = plan.message_bytes as u64 + FRAME_BYTES;
    let peaks = Peaks::start(SAMPLE_EVERY, move || {
        let mut sizes = sampled_disk();
        sizes.insert(LIVE.to_owned(), (sampled_ledger.undelivered() + 1) * frame_bytes);
        sizes
    });
    let publishing = PublisherPlan {
        message_bytes: plan.message_bytes,
        window: plan.window,
        limit: Some(messages),
        ..PublisherPlan::default()
    };
    let begun = Instant::now();
    let consumer = Consumer::start(&ledger, target.clone(), queue.clone(), ConsumerPlan::default());
    let publisher = Publisher::start(&ledger, target.clone(), queue.clone(), publishing);
    publish_all(OURS, publisher, messages).await?;
    let is_drained = ledger.drained(time_for(messages)).await;
    let traffic_seconds = begun.elapsed().as_secs_f64();
    consumer.stop().await;
    let account = ledger.account();
    if !is_drained {
        return Err(ours_failed(format!("the traffic was not consumed\n{account}")));
    }
    let mut disk_peak = peaks.lap();
    let live_peak = disk_peak.remove(LIVE).unwrap_or(frame_bytes);
    Ok(OldReport {
        messages,
        message_bytes: plan.message_bytes,
        traffic_seconds,
        disk_peak,
        disk_after: disk(),
        live_peak,
        account,
        ..OldReport::default()
    })
}

/// Kills every broker at once; milliseconds from the first new process to the first answer, and until all are ready.
async fn restart_all(cluster: &DevCluster, queue: &QueuePlan) -> Result<(f64, f64), StorageError> {
    let names = cluster.names();
    let killed: Vec<_> = names.iter().filter_map(|name| Some((name.clone(), cluster.pid_of(name)?))).collect();
    for (_, pid) in &killed {
        cluster.kill(*pid).await.map_err(ours)?;
    }
    for (name, pid) in &killed {
        restart::await_gone(*pid).await.map_err(ours)?;
        cluster.await_restart(name, *pid).await.map_err(ours)?;
    }
    let started = killed.iter().filter_map(|(name, _)| cluster.started(name)).min();
    let started = started.ok_or_else(|| ours_failed("no broker"))?;
    let answered = ready::amqp(&Target::local(cluster.addresses()), queue, READY_LIMIT).await;
    let answered = answered.ok_or_else(|| ours_failed("no answer after the restart"))?;
    let mut all_ready = answered;
    for name in &names {
        let http = cluster.http_of(name).ok_or_else(|| ours_failed("no health endpoint"))?;
        let ready = ready::health(&http, READY_LIMIT + DRAIN_LIMIT).await;
        all_ready = all_ready.max(ready.ok_or_else(|| ours_failed(format!("{name} is not ready after the restart")))?);
    }
    let since = |at: Instant| at.saturating_duration_since(started).as_secs_f64() * 1e3;
    Ok((since(answered), since(all_ready)))
}

impl fmt::Display for OldReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| format!("{:.0}", mebibytes(bytes));
        let traffic = mib(self.messages * self.message_bytes as u64);
        let rate = count((self.messages as f64 / self.traffic_seconds) as u64);
        writeln!(f, "one unacknowledged message, then {traffic} MiB published and acknowledged, {rate} msg/s")?;
        writeln!(f, "  {:<24}{:>16}{:>16}", "data directory, MiB", "highest", "after it")?;
        for (name, peak) in &self.disk_peak {
            let after = self.disk_after.get(name).map_or_else(|| "-".to_owned(), |bytes| mib(*bytes));
            writeln!(f, "  {name:<24}{:>16}{after:>16}", mib(*peak))?;
        }
        let verdict = if self.is_within_bound() { "held" } else { "BROKEN" };
        let (bound, live) = (mib(self.bound()), mib(self.live_peak));
        writeln!(f, "bound 2 x {live} MiB of live data + 4 segments = {bound} MiB is {verdict}")?;
        writeln!(
            f,
            "all killed with -9: answers after {:.0} ms, all in sync after {:.0} ms",
            self.restart_ms, self.all_ready_ms
        )?;
        let there = if self.old_message_is_there { "there" } else { "LOST" };
        writeln!(f, "the old message is {there}")?;
        write!(f, "{}", self.account)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_directory_is_held_against_the_bound() {
        let mut report = OldReport {
            messages: 1 << 20,
            message_bytes: 1024,
            traffic_seconds: 10.0,
            disk_peak: BTreeMap::from([("dev-0".to_owned(), 100 << 20), ("dev-1".to_owned(), 266 << 20)]),
            live_peak: 5 << 20,
            ..OldReport::default()
        };
        assert!(report.is_within_bound());
        let text = report.to_string();
        assert!(text.contains("then 1024 MiB published"), "{text}");
        assert!(text.contains("bound 2 x 5 MiB of live data + 4 segments = 266 MiB is held"), "{text}");
        assert!(text.contains("the old message is LOST"), "{text}");
        report.live_peak -= 1;
        assert!(!report.is_within_bound());
    }
}
