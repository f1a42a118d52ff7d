//! The plain demonstration: the primary is killed, the others take over, the killed one comes back, and again. One failure
//! at a time; what each cost, and the table of them.

use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::process::Signal;
use serde::Serialize;
use understudy_bench::{Ledger, Publisher};
use understudy_record::Epoch;

use super::IN_SYNC_WITHIN;
use super::report::{ms, percentile};
use super::scene::Scene;
use crate::arguments::DemoOptions;
use crate::dev::LocalCluster;
use crate::status::columns;

/// From a kill to the first confirm of a message sent after it. The goal is a third of a second.
const RECOVERED_WITHIN: Duration = Duration::from_secs(20);

/// One kill, survived.
#[derive(Clone, Debug)]
pub(crate) struct Failover {
    pub(crate) killed: String,
    pub(crate) primary: String,
    pub(crate) epoch: Epoch,
    /// From the kill to the first confirm of a message sent after it.
    pub(crate) gap: Duration,
    /// From the notice of the death to the swapped Lease.
    pub(crate) elected: Option<Duration>,
}

/// As many kills as were asked for, or as went well: the first that does not is a problem and the last.
pub(crate) async fn run(
    options: &DemoOptions,
    cluster: &LocalCluster,
    scene: &mut Scene,
    ledger: &Ledger,
    publisher: &Publisher,
    problems: &mut Vec<String>,
) -> Vec<Failover> {
    let mut failovers = Vec::new();
    let mut last_kill = Instant::now();
    for number in 1..=options.kills {
        match kill_once(number, options, cluster, scene, ledger, publisher, &mut last_kill).await {
            Ok(failover) => failovers.push(failover),
            Err(error) => {
                problems.push(format!("kill {number}: {error:#}"));
                scene.say(&format!("kill {number}: {error:#}"));
                break;
            }
        }
    }
    failovers
}

/// Waits until every broker is in sync again and the time has come, kills the primary, and waits for the first confirm of a
/// message that was sent after it.
async fn kill_once(
    number: u32,
    options: &DemoOptions,
    cluster: &LocalCluster,
    scene: &mut Scene,
    ledger: &Ledger,
    publisher: &Publisher,
    last_kill: &mut Instant,
) -> anyhow::Result<Failover> {
    scene.await_all_in_sync(usize::from(options.replicas), IN_SYNC_WITHIN).await?;
    let next_kill = *last_kill + Duration::from_millis(options.interval_ms);
    scene.during(tokio::time::sleep_until(next_kill.into())).await;
    let (killed, epoch) = scene.primary().context("there is no primary to kill")?;
    let at = cluster.signal(&killed, Signal::KILL).await.with_context(|| format!("{killed} does not run"))?;
    ledger.note_failure(at);
    *last_kill = at;
    scene.say(&format!("kill {number} of {}: kill -9 {killed}", options.kills));
    let gap = scene.during(publisher.recovery(at, RECOVERED_WITHIN)).await;
    let election = scene.await_primary_after(epoch, RECOVERED_WITHIN).await?;
    let gap = gap.with_context(|| format!("no confirm within {RECOVERED_WITHIN:?}"))?;
    scene.say(&format!("first confirm on {} after {} ms", election.name, gap.as_millis()));
    Ok(Failover { killed, primary: election.name, epoch: election.epoch, gap, elected: election.elected })
}

pub(crate) fn table(failovers: &[Failover]) -> String {
    let mut rows = vec![["KILL", "KILLED", "NEW PRIMARY", "EPOCH", "ELECTED IN", "GAP"].map(str::to_string).to_vec()];
    for (number, failover) in (1..).zip(failovers) {
        rows.push(vec![
            number.to_string(),
            failover.killed.clone(),
            failover.primary.clone(),
            failover.epoch.to_string(),
            failover.elected.map_or_else(|| "-".into(), |elected| format!("{:.1} ms", ms(elected))),
            format!("{:.0} ms", ms(failover.gap)),
        ]);
    }
    let mut text = format!("\n{}\n", columns(&rows));
    if let Some(gap) = gap(failovers) {
        text.push_str(&format!(
            "From a kill to the first confirm on the new primary: median {:.0} ms, p99 {:.0} ms, max {:.0} ms\n\n",
            gap.median, gap.p99, gap.max
        ));
    }
    text
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct JsonKills<'a> {
    failovers: Vec<JsonFailover<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gap_ms: Option<JsonGap>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct JsonFailover<'a> {
    killed: &'a str,
    primary: &'a str,
    epoch: u64,
    gap_ms: f64,
    elected_ms: Option<f64>,
}

#[derive(Serialize)]
struct JsonGap {
    median: f64,
    p99: f64,
    max: f64,
}

pub(crate) fn to_json(failovers: &[Failover]) -> JsonKills<'_> {
    JsonKills { failovers: failovers.iter().map(Failover::to_json).collect(), gap_ms: gap(failovers) }
}

impl Failover {
    fn to_json(&self) -> JsonFailover<'_> {
        let Self { killed, primary, epoch, gap, elected } = self;
        JsonFailover { killed, primary, epoch: epoch.0, gap_ms: ms(*gap), elected_ms: elected.map(ms) }
    }
}

fn gap(failovers: &[Failover]) -> Option<JsonGap> {
    let mut gaps: Vec<_> = failovers.iter().map(|failover| failover.gap).collect();
    gaps.sort_unstable();
    let max = ms(*gaps.last()?);
    Some(JsonGap { median: ms(percentile(&gaps, 50)?), p99: ms(percentile(&gaps, 99)?), max })
}
