//! `understudy demo`: a local cluster, a publisher with confirms and a consumer at work, and the primary killed again and
//! again, or with `--chaos` any broker killed or stopped. In the end everything that was confirmed must have been delivered,
//! once. What counts as lost or duplicated is the ledger's to say, not this module's.

mod chaos;
mod kills;
mod logs;
mod report;
mod scene;

use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::ensure;
use tokio::signal::unix::{SignalKind, signal};
use understudy_bench::{Consumer, ConsumerPlan, Ledger, Publisher, PublisherPlan, QueuePlan, Target};

use crate::arguments::{DemoOptions, DevOptions};
use crate::dev::{Config, LocalCluster};
use report::{Report, Story};
use scene::Scene;

const QUEUE: &str = "demo";
/// A cluster of processes on one machine is up in a second or two, on a busy one in some more.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// Until the publisher has its first confirms and the consumer its queue.
const AT_WORK_WITHIN: Duration = Duration::from_secs(20);
/// Before the first kill, so that it hits a cluster at work.
const FIRST_CONFIRMS: u64 = 200;
/// A restarted broker reads its journal and catches up on what it missed.
const IN_SYNC_WITHIN: Duration = Duration::from_secs(60);
const LAST_CONFIRMS_WITHIN: Duration = Duration::from_secs(20);
const DRAINED_WITHIN: Duration = Duration::from_secs(30);
/// Unconfirmed messages of the publisher, at most.
const WINDOW: usize = 500;
/// Just above the 2 s after which a silent broker is given up: clients wait out a stopped backup as patient ones do, and look
/// elsewhere for a stopped primary when another has just taken over, so that what the gaps show is the cluster's doing.
const CHAOS_SILENCE_LIMIT: Duration = Duration::from_millis(2200);
/// A stopped broker's socket takes connections that nobody answers.
const CHAOS_ATTEMPT_LIMIT: Duration = Duration::from_millis(500);
const CHAOS_HEARTBEAT_SECONDS: u16 = 1;
/// A day: the seed's schedule is made beforehand.
const MOST_MINUTES: f64 = 24.0 * 60.0;

pub(crate) async fn run(options: DemoOptions) -> anyhow::Result<ExitCode> {
    check(&options)?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let config = Config::try_from(&dev_options(&options))?;
    let (cluster, events) = LocalCluster::start(config).await?;
    let names = cluster.names();
    let mut scene = Scene::new(events, options.json);
    let played = tokio::select! {
        played = play(&options, &cluster, &mut scene) => played,
        _ = terminate.recv() => Err(anyhow::anyhow!("stopped by a signal")),
        _ = interrupt.recv() => Err(anyhow::anyhow!("stopped by a signal")),
    };
    let mut directory = cluster.stop().await;
    let mut report = played?;
    report.problems.extend(logs::complaints(&directory, &names));
    if !report.is_clean() {
        scene.say(&format!("kept for whoever looks into it: {}", directory.keep().display()));
    }
    if options.json {
        println!("{}", serde_json::to_string_pretty(&report.to_json())?);
    } else {
        print!("{}", report.to_text());
    }
    Ok(if report.is_clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn check(options: &DemoOptions) -> anyhow::Result<()> {
    ensure!(options.replicas >= 2, "--replicas {}: with one broker nobody can take over", options.replicas);
    if options.chaos {
        let minutes = options.minutes;
        ensure!(minutes > 0.0 && minutes <= MOST_MINUTES, "--minutes {minutes}: more than 0, at most {MOST_MINUTES}");
        let most = understudy_bench::MAX_MESSAGES as f64 / f64::from(options.rate.max(1)) / 60.0;
        ensure!(minutes < most, "--minutes {minutes}: at --rate {} the ledger is full after {most:.0}", options.rate);
    }
    Ok(())
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
        tls: None,
        broker_arguments: Vec::new(),
        verbose: options.verbose,
    }
}

async fn play(options: &DemoOptions, cluster: &LocalCluster, scene: &mut Scene) -> anyhow::Result<Report> {
    scene.say(&format!("starting {} brokers", options.replicas));
    scene.await_ready(READY_WITHIN).await?;

    let ledger = Ledger::new();
    let mut target = Target::local(cluster.amqp_addresses());
    let mut publisher_plan =
        PublisherPlan { rate: Some(options.rate.into()), window: WINDOW, ..PublisherPlan::default() };
    if options.chaos {
        target.attempt_limit = CHAOS_ATTEMPT_LIMIT;
        target.heartbeat_seconds = CHAOS_HEARTBEAT_SECONDS;
        publisher_plan.silence_limit = CHAOS_SILENCE_LIMIT;
    }
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
    let mut story = if options.chaos {
        let seed = options.seed.unwrap_or_else(seed_by_the_clock);
        let length = Duration::from_secs_f64(options.minutes * 60.0);
        let struck = chaos::run(seed, length, cluster, scene, &ledger, &publisher, &mut problems).await;
        Story::Chaos { seed, struck }
    } else {
        Story::Kills(kills::run(options, cluster, scene, &ledger, &publisher, &mut problems).await)
    };

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
    if let Story::Chaos { struck, .. } = &mut story {
        chaos::note_gaps(struck, &ledger, &published.recoveries, &mut problems);
    }
    Ok(Report { story, account: ledger.account(), reconnects: published.reconnects, problems })
}

fn seed_by_the_clock() -> u64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::from(since_1970.subsec_micros())
}
