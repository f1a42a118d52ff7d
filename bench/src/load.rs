//! One load: some publishers and consumers on one queue for a while, and what they saw. It does not start brokers.

use std::fmt;
use std::time::Duration;

use serde::Serialize;
use understudy_protocol::queue;

use crate::consumer::{AckPolicy, Consumer, ConsumerPlan};
use crate::latency::{Latencies, LatencySummary};
use crate::ledger::{Account, Ledger};
use crate::link::{Link, LinkError};
use crate::publisher::{Publisher, PublisherPlan};
use crate::target::{QueuePlan, Target};

/// What is left unconfirmed or undelivered after so long counts as it stands.
const DRAIN_LIMIT: Duration = Duration::from_secs(20);
/// A consumer that is not accepted by then will not be.
const READY_LIMIT: Duration = Duration::from_secs(15);

#[derive(Clone, Debug)]
pub struct LoadPlan {
    pub queue: QueuePlan,
    pub publishers: usize,
    pub consumers: usize,
    /// With the warm-up.
    pub duration: Duration,
    /// Warm-up is `measure_from` of these two.
    pub publisher: PublisherPlan,
    pub consumer: ConsumerPlan,
    /// Deletes the queue at the end.
    pub delete_queue: bool,
}

/// Rates in messages a second, over the time after the warm-up.
#[derive(Clone, Debug, Default, Serialize)]
pub struct LoadReport {
    pub confirmed_rate: f64,
    pub delivered_rate: f64,
    pub confirm: LatencySummary,
    pub end_to_end: LatencySummary,
    /// Longest time that messages of one publisher waited without any confirm.
    pub longest_silence_ms: f64,
    pub reconnects: u64,
    pub returned: u64,
    pub unconfirmed: u64,
    /// The generator's own share of the machine, in CPU seconds a second; 0 where /proc does not tell.
    pub generator_cpus: f64,
    pub account: Account,
    pub errors: Vec<String>,
}

/// Runs the load and takes at most its duration and the limits of draining.
///
/// # Errors
/// If no broker answers at the beginning. What happens later is in the report.
pub async fn run_load(target: &Target, plan: &LoadPlan) -> Result<LoadReport, LinkError> {
    create_queue(target, &plan.queue).await?;
    let ledger = Ledger::new();
    let consumers: Vec<Consumer> = (0..plan.consumers)
        .map(|_| Consumer::start(&ledger, target.clone(), plan.queue.clone(), plan.consumer.clone()))
        .collect();
    for consumer in &consumers {
        consumer.wait_ready(READY_LIMIT).await;
    }
    let cpu_before = cpu_time();
    let publishers: Vec<Publisher> = (0..plan.publishers)
        .map(|_| Publisher::start(&ledger, target.clone(), plan.queue.clone(), plan.publisher.clone()))
        .collect();
    tokio::time::sleep(plan.duration).await;
    consumers.iter().for_each(Consumer::end_measure);
    let cpu_after = cpu_time();

    let mut report = LoadReport::default();
    collect_publishers(publishers, &mut report).await;
    if plan.consumers > 0 {
        ledger.drained(DRAIN_LIMIT).await;
    }
    collect_consumers(consumers, &mut report).await;
    report.account = ledger.account();
    if let (Some(before), Some(after)) = (cpu_before, cpu_after) {
        report.generator_cpus = after.saturating_sub(before).as_secs_f64() / plan.duration.as_secs_f64();
    }
    if plan.delete_queue
        && let Err(error) = delete_queue(target, &plan.queue).await
    {
        report.errors.push(format!("queue not deleted: {error}"));
    }
    Ok(report)
}

async fn collect_publishers(publishers: Vec<Publisher>, report: &mut LoadReport) {
    let mut latency = Latencies::default();
    // All stop at once; each takes its own time to hear the last confirms.
    for ended in join_all(publishers.into_iter().map(|publisher| publisher.stop(DRAIN_LIMIT))).await {
        report.confirmed_rate += rate(ended.measured_confirmed, ended.measured_for);
        report.longest_silence_ms = report.longest_silence_ms.max(ended.longest_silence.as_secs_f64() * 1e3);
        report.reconnects += ended.reconnects;
        report.returned += ended.returned;
        report.unconfirmed += ended.unconfirmed;
        report.errors.extend(ended.errors);
        latency.add(&ended.latency);
    }
    report.confirm = latency.summary();
}

async fn collect_consumers(consumers: Vec<Consumer>, report: &mut LoadReport) {
    let mut latency = Latencies::default();
    for ended in join_all(consumers.into_iter().map(Consumer::stop)).await {
        report.delivered_rate += rate(ended.measured_delivered, ended.measured_for);
        report.reconnects += ended.reconnects;
        report.errors.extend(ended.errors);
        latency.add(&ended.latency);
    }
    report.end_to_end = latency.summary();
}

async fn join_all<F>(futures: impl Iterator<Item = F>) -> Vec<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    let tasks: Vec<_> = futures.map(tokio::spawn).collect();
    let mut outputs = Vec::new();
    for task in tasks {
        outputs.push(task.await.expect("these tasks neither panic nor are aborted"));
    }
    outputs
}

/// Before the load, so that an error here is told at once instead of being tried again for ever.
pub(crate) async fn create_queue(target: &Target, queue: &QueuePlan) -> Result<(), LinkError> {
    let mut failure = LinkError::NoAddress;
    for address in &target.addresses {
        match Link::open(target, address, queue).await {
            Ok(link) => {
                link.close().await;
                return Ok(());
            }
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

pub(crate) async fn delete_queue(target: &Target, plan: &QueuePlan) -> Result<(), LinkError> {
    let mut failure = LinkError::NoAddress;
    for address in &target.addresses {
        let deleting = async {
            let mut link = Link::open(target, address, plan).await?;
            let queue = plan.short_name().ok_or(LinkError::QueueName)?;
            let answer = queue::DeleteOk::ID;
            link.request(queue::Delete { queue, ..queue::Delete::default() }.into(), answer).await?;
            link.close().await;
            Ok(())
        };
        match tokio::time::timeout(DRAIN_LIMIT, deleting).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => failure = error,
            Err(_) => failure = LinkError::TimedOut(DRAIN_LIMIT),
        }
    }
    Err(failure)
}

fn rate(count: u64, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { count as f64 / time.as_secs_f64() }
}

/// CPU time of this process so far: utime and stime of /proc/self/stat, in hundredths of a second on every Linux.
fn cpu_time() -> Option<Duration> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(Duration::from_millis((user + system) * 10))
}

impl LoadPlan {
    /// One publisher and one consumer, 1 KiB persistent, 500 unconfirmed, with a second of warm-up.
    pub fn new(queue: QueuePlan, duration: Duration) -> Self {
        let warm_up = Duration::from_secs(1).min(duration / 4);
        Self {
            queue,
            publishers: 1,
            consumers: 1,
            duration,
            publisher: PublisherPlan { measure_from: warm_up, ..PublisherPlan::default() },
            consumer: ConsumerPlan { measure_from: warm_up, ack: AckPolicy::Each, ..ConsumerPlan::default() },
            delete_queue: true,
        }
    }
}

impl fmt::Display for LoadReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "confirmed    {:>10.0} msg/s", self.confirmed_rate)?;
        writeln!(f, "delivered    {:>10.0} msg/s", self.delivered_rate)?;
        writeln!(f, "confirm      {}", self.confirm)?;
        writeln!(f, "end to end   {}", self.end_to_end)?;
        writeln!(
            f,
            "longest time without a confirm {:.1} ms, reconnects {}",
            self.longest_silence_ms, self.reconnects
        )?;
        writeln!(f, "generator used {:.2} CPUs", self.generator_cpus)?;
        write!(f, "{}", self.account)?;
        for error in &self.errors {
            writeln!(f, "  error: {error}")?;
        }
        Ok(())
    }
}
