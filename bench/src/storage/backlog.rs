//! What a backlog far beyond the memory budget costs in memory: it is published, then drained, while the resident set
//! size of every broker is asked for over and over. The generator's ledger says whether all of it came back.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::{OURS, StorageError, highest, on_cluster, ours, ours_failed, publish_all, target_of, time_for};
use crate::consumer::{Consumer, ConsumerPlan};
use crate::figures::{count, mebibytes, number};
use crate::ledger::{Account, Ledger};
use crate::load::{create_queue, delete_queue};
use crate::peers::{DevCluster, DevPlan};
use crate::publisher::{Publisher, PublisherPlan};
use crate::sampler::{Peaks, resident_bytes};
use crate::target::QueuePlan;

/// What a broker may use beside its budget.
pub const ALLOWANCE_BYTES: u64 = 128 << 20;
/// Often enough that a peak of a few batches is seen.
const SAMPLE_EVERY: Duration = Duration::from_millis(20);
const QUEUE_NAME: &str = "backlog";

#[derive(Clone, Debug)]
pub struct BacklogPlan {
    pub dev: DevPlan,
    /// Of all bodies together.
    pub bytes: u64,
    pub message_bytes: usize,
    /// Given to every broker, in bytes.
    pub memory_budget: u64,
    pub window: usize,
    pub prefetch: u16,
}

/// Resident sizes by broker, in bytes.
#[derive(Clone, Debug, Default, Serialize)]
pub struct BacklogReport {
    pub messages: u64,
    pub message_bytes: usize,
    pub memory_budget: u64,
    /// Who was primary when the backlog stood.
    pub primary: String,
    pub resident_before: BTreeMap<String, u64>,
    pub resident_publishing: BTreeMap<String, u64>,
    pub resident_draining: BTreeMap<String, u64>,
    pub publish_seconds: f64,
    pub drain_seconds: f64,
    pub account: Account,
}

impl BacklogReport {
    pub fn allowed_bytes(&self) -> u64 {
        self.memory_budget + ALLOWANCE_BYTES
    }

    pub fn peak_bytes(&self) -> u64 {
        highest(&self.resident_publishing).max(highest(&self.resident_draining))
    }

    pub fn is_within_bound(&self) -> bool {
        self.peak_bytes() <= self.allowed_bytes()
    }
}

/// Runs it; `progress` gets a line for each step. The cluster is stopped in any case.
///
/// # Errors
/// If the cluster does not start, or does not take the backlog in a reasonable time.
pub async fn backlog(plan: &BacklogPlan, mut progress: impl FnMut(String)) -> Result<BacklogReport, StorageError> {
    let mut dev = plan.dev.clone();
    dev.broker_arguments.push(format!("--memory-budget={}", plan.memory_budget));
    let cluster = DevCluster::start(&dev).await.map_err(ours)?;
    on_cluster(cluster, async |cluster| measure(plan, cluster, &mut progress).await).await
}

async fn measure(
    plan: &BacklogPlan,
    cluster: &DevCluster,
    progress: &mut impl FnMut(String),
) -> Result<BacklogReport, StorageError> {
    let messages = plan.bytes.div_ceil(plan.message_bytes as u64);
    let (target, queue) = (target_of(cluster), QueuePlan::durable(QUEUE_NAME));
    let load = |source| StorageError::Load { peer: OURS, source };
    create_queue(&target, &queue).await.map_err(load)?;
    let processes = cluster.processes();
    let peaks = Peaks::start(SAMPLE_EVERY, move || {
        processes().into_iter().filter_map(|(name, pid)| Some((name, resident_bytes(pid)?))).collect()
    });
    tokio::time::sleep(10 * SAMPLE_EVERY).await;
    let resident_before = peaks.lap();

    let ledger = Ledger::new();
    let publishing = PublisherPlan {
        message_bytes: plan.message_bytes,
        window: plan.window,
        limit: Some(messages),
        ..PublisherPlan::default()
    };
    let begun = Instant::now();
    let publisher = Publisher::start(&ledger, target.clone(), queue.clone(), publishing);
    publish_all(OURS, publisher, messages).await?;
    let publish_seconds = begun.elapsed().as_secs_f64();
    let resident_publishing = peaks.lap();
    progress(format!("published in {publish_seconds:.1} s, peak {:.0} MiB", mebibytes(highest(&resident_publishing))));

    let primary = cluster.primary().map(|(name, _)| name).unwrap_or_default();
    let begun = Instant::now();
    let consuming = ConsumerPlan { prefetch: plan.prefetch, ..ConsumerPlan::default() };
    let consumer = Consumer::start(&ledger, target.clone(), queue.clone(), consuming);
    let is_drained = ledger.drained(time_for(messages)).await;
    let drain_seconds = begun.elapsed().as_secs_f64();
    let resident_draining = peaks.lap();
    consumer.stop().await;
    let account = ledger.account();
    if !is_drained {
        return Err(ours_failed(format!("not drained within {drain_seconds:.0} s\n{account}")));
    }
    progress(format!("drained in {drain_seconds:.1} s, peak {:.0} MiB", mebibytes(highest(&resident_draining))));
    delete_queue(&target, &queue).await.map_err(load)?;
    Ok(BacklogReport {
        messages,
        message_bytes: plan.message_bytes,
        memory_budget: plan.memory_budget,
        primary,
        resident_before,
        resident_publishing,
        resident_draining,
        publish_seconds,
        drain_seconds,
        account,
    })
}

impl fmt::Display for BacklogReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.messages * self.message_bytes as u64;
        let (messages, size) = (count(self.messages), self.message_bytes);
        let mib = |bytes: u64| format!("{:.0}", mebibytes(bytes));
        writeln!(f, "{messages} persistent messages of {size} bytes, {} MiB", mib(bytes))?;
        writeln!(f, "highest resident set size, MiB")?;
        writeln!(f, "  {:<24}{:>10}{:>14}{:>12}", "", "before", "publishing", "draining")?;
        for (name, before) in &self.resident_before {
            let of = |peaks: &BTreeMap<String, u64>| peaks.get(name).map_or_else(|| "-".to_owned(), |peak| mib(*peak));
            let role = if *name == self.primary { ", primary" } else { "" };
            let (publishing, draining) = (of(&self.resident_publishing), of(&self.resident_draining));
            writeln!(f, "  {:<24}{:>10}{publishing:>14}{draining:>12}", format!("{name}{role}"), mib(*before))?;
        }
        let rate = |seconds: f64| {
            let messages_per_second = count((self.messages as f64 / seconds) as u64);
            format!("{messages_per_second} msg/s, {} MiB/s", number(mebibytes(bytes) / seconds))
        };
        writeln!(f, "published {}", rate(self.publish_seconds))?;
        writeln!(f, "drained   {}", rate(self.drain_seconds))?;
        let verdict = if self.is_within_bound() { "held" } else { "BROKEN" };
        let (peak, allowed, budget) = (mib(self.peak_bytes()), mib(self.allowed_bytes()), mib(self.memory_budget));
        writeln!(
            f,
            "peak {peak} MiB; budget {budget} MiB + {} MiB = {allowed} MiB is {verdict}",
            mib(ALLOWANCE_BYTES)
        )?;
        write!(f, "{}", self.account)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(draining_mib: u64) -> BacklogReport {
        let peaks = |mib: u64| BTreeMap::from([("dev-0".to_owned(), mib << 20), ("dev-1".to_owned(), 50 << 20)]);
        BacklogReport {
            messages: 2048,
            message_bytes: 1024,
            memory_budget: 256 << 20,
            primary: "dev-0".into(),
            resident_before: peaks(20),
            resident_publishing: peaks(300),
            resident_draining: peaks(draining_mib),
            publish_seconds: 2.0,
            drain_seconds: 0.5,
            account: Account::default(),
        }
    }

    #[test]
    fn the_highest_broker_in_either_phase_counts() {
        assert!(report(384).is_within_bound() && !report(385).is_within_bound());
        let text = report(385).to_string();
        assert!(text.contains("peak 385 MiB; budget 256 MiB + 128 MiB = 384 MiB is BROKEN"), "{text}");
        assert!(text.contains("published 1,024 msg/s, 1.00 MiB/s") && text.contains("drained   4,096 msg/s"), "{text}");
        let row: Vec<_> = text.lines().find(|line| line.contains("dev-0")).unwrap().split_ascii_whitespace().collect();
        assert_eq!(row, ["dev-0,", "primary", "20", "300", "385"]);
    }
}
