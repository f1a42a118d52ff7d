//! `understudy demo`: a local cluster, a publisher with confirms and a consumer at work, and the primary killed again and
//! again. In the end everything that was confirmed must have been delivered, once. What counts as lost or duplicated is
//! the ledger's to say, not this module's.

mod report;
mod scene;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use tokio::signal::unix::{SignalKind, signal};
use understudy_bench::{Consumer, ConsumerPlan, Ledger, Publisher, PublisherPlan, QueuePlan, Target};

use crate::arguments::{DemoOptions, DevOptions};
use crate::dev::{Config, LocalCluster};
use report::{Failover, Report};
use scene::Scene;

const QUEUE: &str = "demo";
/// A cluster of processes on one machine is up in a second or two, on a busy one in some more.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// Until the publisher has its first confirms and the consumer its queue.
const AT_WORK_WITHIN: Duration = Duration::from_secs(20);
/// Before the first kill, so that it hits a cluster at work.
const FIRST_CONFIRMS: u64 = 200;
/// From a kill to the first confirm of a message sent after it. The goal is a third of a second.
const RECOVERED_WITHIN: Duration = Duration::from_secs(20);
/// A restarted broker reads its journal and catches up on what it missed.
const IN_SYNC_WITHIN: Duration = Duration::from_secs(60);
const LAST_CONFIRMS_WITHIN: Duration = Duration::from_secs(20);
const DRAINED_WITHIN: Duration = Duration::from_secs(30);
/// Unconfirmed messages of the publisher, at most.
const WINDOW: usize = 500;

pub(crate) async fn run(options: DemoOptions) -> anyhow::Result<ExitCode> {
    ensure!(options.replicas >= 2, "--replicas {}: with one broker nobody can take over", options.replicas);
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let config = Config::try_from(&dev_options(&options))?;
    let (cluster, events) = LocalCluster::start(config).await?;
    let mut scene = Scene::new(events, options.json);
    let played = tokio::select! {
        played = play(&options, &cluster, &mut scene) => played,
        _ = terminate.recv() => Err(anyhow::anyhow!("stopped by a signal")),
        _ = interrupt.recv() => Err(anyhow::anyhow!("stopped by a signal")),
    };
    cluster.stop().await;
    let report = played?;
    if options.json {
        println!("{}", serde_json::to_string_pretty(&report.to_json())?);
    } else {
        print!("{}", report.to_text());
    }
    Ok(if report.is_clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn dev_options(options: &DemoOptions) -> DevOptions {
    DevOptions {
        replicas: options.replicas,
        dir: options.dir.clone(),
        amqp_port: 0,
        min_in_sync: None,
        durability: options.durability,
        json: options.json,
        broker_bin: options.broker_bin.clone(),
        broker_arguments: Vec::new(),
        verbose: options.verbose,
    }
}

async fn play(options: &DemoOptions, cluster: &LocalCluster, scene: &mut Scene) -> anyhow::Result<Report> {
    scene.say(&format!("starting {} brokers", options.replicas));
    scene.await_ready(READY_WITHIN).await?;

    let ledger = Ledger::new();
    let target = Target::local(cluster.amqp_addresses());
    let publisher_plan = PublisherPlan { rate: Some(options.rate.into()), window: WINDOW, ..PublisherPlan::default() };
    let publisher = Publisher::start(&ledger, target.clone(), QueuePlan::durable(QUEUE), publisher_plan);
    let consumer = Consumer::start(&ledger, target, QueuePlan::durable(QUEUE), ConsumerPlan::default());
    let at_work =
        consumer.wait_ready(AT_WORK_WITHIN).await && publisher.wait_confirmed(FIRST_CONFIRMS, AT_WORK_WITHIN).await;
    ensure!(
        at_work,
        "no work got done within {AT_WORK_WITHIN:?}: {} messages confirmed, {} delivered",
        publisher.confirmed(),
        consumer.delivered()
    );
    scene.say("a publisher and a consumer are at work");

    let mut problems = Vec::new();
    let mut failovers = Vec::new();
    let mut last_kill = Instant::now();
    for number in 1..=options.kills {
        match kill_once(number, options, cluster, scene, &ledger, &publisher, &mut last_kill).await {
            Ok(failover) => failovers.push(failover),
            Err(error) => {
                problems.push(format!("kill {number}: {error:#}"));
                scene.say(&format!("kill {number}: {error:#}"));
                break;
            }
        }
    }

    scene.say("no more messages; waiting for the last confirms and deliveries");
    let published = publisher.stop(LAST_CONFIRMS_WITHIN).await;
    if published.unconfirmed > 0 {
        problems
            .push(format!("{} messages are still unconfirmed after {LAST_CONFIRMS_WITHIN:?}", published.unconfirmed));
    }
    if !ledger.drained(DRAINED_WITHIN).await {
        problems
            .push(format!("{} confirmed messages were not delivered within {DRAINED_WITHIN:?}", ledger.undelivered()));
    }
    consumer.stop().await;
    Ok(Report { account: ledger.account(), failovers, reconnects: published.reconnects, problems })
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
    let at = cluster.kill(&killed).await.with_context(|| format!("{killed} does not run"))?;
    ledger.note_failure(at);
    *last_kill = at;
    scene.say(&format!("kill {number} of {}: kill -9 {killed}", options.kills));
    let gap = scene.during(publisher.recovery(at, RECOVERED_WITHIN)).await;
    let election = scene.await_primary_after(epoch, RECOVERED_WITHIN).await?;
    let gap = gap.with_context(|| format!("no confirm within {RECOVERED_WITHIN:?}"))?;
    scene.say(&format!("first confirm on {} after {} ms", election.name, gap.as_millis()));
    Ok(Failover { killed, primary: election.name, epoch: election.epoch, gap, elected: election.elected })
}
