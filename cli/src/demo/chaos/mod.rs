//! Random brokers are killed or stopped for a while, by a schedule that a seed stands for, with no regard for what the
//! cluster is doing: the primary, a backup, the next one before the last is back. What happened to whom, and what it cost, is
//! in [`tally`].

mod schedule;
mod tally;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use understudy_bench::{Ledger, Publisher, Recovery};

use super::IN_SYNC_WITHIN;
use super::scene::Scene;
use crate::dev::LocalCluster;
use schedule::{Fault, Kind, schedule};
pub(crate) use tally::{Fall, JsonChaos, Role, Struck, table, to_json};

/// Confirms may have to wait for one that keeps ending soon after its start, which is started again after some seconds.
const RECOVERED_WITHIN: Duration = Duration::from_secs(30);

/// Plays the schedule to its end, when all brokers run again, and waits until all is well. Faults whose broker did not run at
/// that moment are passed over.
pub(crate) async fn run(
    seed: u64,
    length: Duration,
    cluster: &LocalCluster,
    scene: &mut Scene,
    ledger: &Ledger,
    publisher: &Publisher,
    problems: &mut Vec<String>,
) -> Vec<Struck> {
    let names = cluster.names();
    let faults = schedule(seed, length, names.len());
    scene.say(&format!("seed {seed}: {} faults within {} s", faults.len(), length.as_secs()));
    let mut run = Run { cluster, ledger, names, stopped: BTreeMap::new(), struck: Vec::new() };
    let began = Instant::now();
    for fault in faults {
        let due = began + fault.at;
        while let Some((broker, until)) = run.next_to_continue().filter(|(_, until)| *until <= due) {
            scene.during(tokio::time::sleep_until(until.into())).await;
            run.go_on(broker, scene).await;
        }
        scene.during(tokio::time::sleep_until(due.into())).await;
        run.strike(fault, scene).await;
    }
    while let Some((broker, until)) = run.next_to_continue() {
        scene.during(tokio::time::sleep_until(until.into())).await;
        run.go_on(broker, scene).await;
    }
    if let Some(last) = run.struck.last() {
        // Whether it does come is told with all others'.
        scene.during(publisher.recovery(last.at, RECOVERED_WITHIN)).await;
    }
    if let Err(error) = scene.await_all_in_sync(run.names.len(), IN_SYNC_WITHIN).await {
        problems.push(format!("after all was over: {error:#}"));
    }
    run.struck
}

/// What the publisher saw of each fault: the time to the first confirm of a message sent after it.
pub(crate) fn note_gaps(struck: &mut [Struck], ledger: &Ledger, recoveries: &[Recovery], problems: &mut Vec<String>) {
    for struck in struck.iter_mut() {
        let at = ledger.time_of(struck.at);
        struck.gap = recoveries.iter().find(|recovery| recovery.failed_at == at).and_then(|recovery| recovery.after);
        if struck.gap.is_none() {
            problems.push(format!(
                "no message sent after {} was {} has been confirmed",
                struck.broker,
                struck.fall.word()
            ));
        }
    }
    tally::note_overlaps(struck);
}

struct Run<'a> {
    cluster: &'a LocalCluster,
    ledger: &'a Ledger,
    names: Vec<String>,
    /// Who is stopped now: until when, and which of the faults it was.
    stopped: BTreeMap<usize, (Instant, usize)>,
    struck: Vec<Struck>,
}

impl Run<'_> {
    fn next_to_continue(&self) -> Option<(usize, Instant)> {
        self.stopped.iter().map(|(broker, (until, _))| (*broker, *until)).min_by_key(|(_, until)| *until)
    }

    async fn strike(&mut self, fault: Fault, scene: &mut Scene) {
        let name = &self.names[fault.broker];
        let primary = scene.primary();
        let role = match &primary {
            Some((primary, _)) if primary == name => Role::Primary,
            _ => Role::Backup,
        };
        let replaced = primary.is_some_and(|(primary, _)| primary != *name);
        let all_well = self.stopped.is_empty() && scene.all_in_sync(self.names.len());
        let (signal, fall) = match fault.kind {
            Kind::Kill => (Signal::KILL, Fall::Killed),
            Kind::Stop(_) => (Signal::STOP, Fall::Stopped { replaced: false }),
        };
        let Some(at) = self.cluster.signal(name, signal).await else {
            scene.say(&format!("{name} does not run: passed over"));
            return;
        };
        self.ledger.note_failure(at);
        let others = if all_well { "" } else { ", while others are away" };
        match fault.kind {
            Kind::Kill => {
                scene.say(&format!("SIGKILL {name}, {}{others}", role.word()));
                if let Some((_, stop)) = self.stopped.remove(&fault.broker) {
                    self.struck[stop].fall = Fall::Stopped { replaced };
                }
            }
            Kind::Stop(length) => {
                scene.say(&format!("SIGSTOP {name}, {}, for {:.0} ms{others}", role.word(), super::report::ms(length)));
                self.stopped.insert(fault.broker, (at + length, self.struck.len()));
            }
        }
        self.struck.push(Struck { at, broker: name.clone(), role, fall, alone: all_well, gap: None });
    }

    async fn go_on(&mut self, broker: usize, scene: &mut Scene) {
        let Some((_, fault)) = self.stopped.remove(&broker) else { return };
        let name = &self.names[broker];
        let replaced = scene.primary().is_some_and(|(primary, _)| primary != *name);
        self.struck[fault].fall = Fall::Stopped { replaced };
        // Should its process be another one by now, it does not mind.
        match self.cluster.signal(name, Signal::CONT).await {
            Some(_) => scene.say(&format!("SIGCONT {name}")),
            None => scene.say(&format!("{name} does not run: nothing to continue")),
        }
    }
}
