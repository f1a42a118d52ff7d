//! The command line of the load generator. What it does is in the library.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Args, Parser, Subcommand, ValueEnum};
use understudy_bench::compare::{ComparePlan, compare, render};
use understudy_bench::{AckPolicy, LoadPlan, MIN_MESSAGE_BYTES, QueuePlan, Target, run_load};

#[derive(Parser)]
#[command(name = "understudy-bench", version, about = "A load generator for AMQP 0-9-1 brokers")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// One load against brokers that run: rates, latencies, and what became of every message
    Run(RunArgs),
    /// Ours against RabbitMQ, in turns, as ratios; starts and stops both clusters
    Compare(CompareArgs),
}

#[derive(Args)]
struct CompareArgs {
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: u16,
    /// Seconds of each load, with a second of warm-up
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(2..=600))]
    duration: u64,
    /// Do not kill leaders
    #[arg(long)]
    no_failover: bool,
    /// Measure one of them alone
    #[arg(long, value_enum)]
    only: Option<Only>,
    /// The binary that `dev` is run with
    #[arg(long, default_value = "target/release/understudy")]
    understudy: PathBuf,
    #[arg(long, default_value = "bench/rabbitmq-cluster")]
    rabbitmq_script: PathBuf,
    /// Where both clusters keep their files while they run: a real disk, since fsync is part of what is measured
    #[arg(long, default_value_os_t = std::env::temp_dir())]
    dir: PathBuf,
    /// First AMQP port of ours; the other brokers follow
    #[arg(long, default_value_t = 35672)]
    understudy_port: u16,
    /// First AMQP port of RabbitMQ; its other ports follow, up to 20 above
    #[arg(long, default_value_t = 25672)]
    rabbitmq_port: u16,
    /// All figures of all rounds as JSON, instead of the table
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Only {
    Understudy,
    Rabbitmq,
}

#[derive(Args)]
struct RunArgs {
    /// Addresses, tried in order, the next one when a connection is lost
    #[arg(long, value_delimiter = ',', default_value = "127.0.0.1:5672")]
    addresses: Vec<String>,
    #[arg(long, default_value = "guest")]
    user: String,
    #[arg(long, default_value = "guest", env = "UNDERSTUDY_BENCH_PASSWORD", hide_env_values = true)]
    password: String,
    /// Seconds, at least 1; 0 turns heartbeats off
    #[arg(long, default_value_t = 10)]
    heartbeat: u16,
    /// The queue; by default a new one, deleted at the end
    #[arg(long)]
    queue: Option<String>,
    /// x-queue-type, such as quorum
    #[arg(long)]
    queue_type: Option<String>,
    /// A queue that does not survive a restart
    #[arg(long)]
    transient_queue: bool,
    /// Messages that do not survive a restart
    #[arg(long)]
    transient: bool,
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(0..=1000))]
    publishers: u16,
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(0..=1000))]
    consumers: u16,
    /// Seconds, with the warm-up
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    duration: u64,
    /// Seconds at the beginning that are not in the figures
    #[arg(long, default_value_t = 1)]
    warm_up: u64,
    /// Message size in bytes
    #[arg(long, default_value_t = 1024, value_parser = parse_size)]
    size: usize,
    /// Messages of a publisher that wait for their confirm, at most
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    window: u32,
    /// Messages a second of each publisher; by default as many as the window allows
    #[arg(long)]
    rate: Option<u64>,
    /// Unacknowledged deliveries of a consumer, at most
    #[arg(long, default_value_t = 1000)]
    prefetch: u16,
    #[arg(long, value_enum, default_value_t = Ack::Each)]
    ack: Ack,
    /// Threads of the generator
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    threads: u16,
    /// One JSON object instead of text
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Ack {
    /// One acknowledgement a message
    Each,
    /// One for all that a read of the socket brought
    PerRead,
}

/// 64 MiB: larger messages than any broker takes by default measure nothing.
const MAX_SIZE: usize = 64 << 20;

fn parse_size(text: &str) -> Result<usize, String> {
    let size: usize = text.parse().map_err(|_| format!("not a number: {text}"))?;
    if (MIN_MESSAGE_BYTES..=MAX_SIZE).contains(&size) {
        Ok(size)
    } else {
        Err(format!("from {MIN_MESSAGE_BYTES} (each message carries a stamp) to {MAX_SIZE}"))
    }
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Run(args) => runtime(args.threads).and_then(|runtime| runtime.block_on(run(args))),
        Command::Compare(args) => runtime(1).and_then(|runtime| runtime.block_on(compare_clusters(args))),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::from(2)
    })
}

/// One thread by default: the generator shares the machine with the brokers it measures.
fn runtime(threads: u16) -> anyhow::Result<tokio::runtime::Runtime> {
    let mut builder = match threads {
        0 | 1 => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    if threads > 1 {
        builder.worker_threads(usize::from(threads));
    }
    builder.enable_all().build().context("no runtime")
}

async fn run(args: RunArgs) -> anyhow::Result<ExitCode> {
    let target = Target {
        user: args.user.clone(),
        password: args.password.clone(),
        heartbeat_seconds: args.heartbeat,
        ..Target::local(args.addresses.clone())
    };
    let report = run_load(&target, &args.plan()).await.context("the load could not begin")?;
    if args.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        print!("{report}");
    }
    let is_clean = report.unconfirmed == 0 && (args.consumers == 0 || report.account.is_clean());
    Ok(if is_clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn compare_clusters(args: CompareArgs) -> anyhow::Result<ExitCode> {
    let plan = ComparePlan {
        rounds: usize::from(args.rounds),
        duration: Duration::from_secs(args.duration),
        failover: !args.no_failover,
        understudy: (args.only != Some(Only::Rabbitmq)).then_some(args.understudy),
        rabbitmq_script: (args.only != Some(Only::Understudy)).then_some(args.rabbitmq_script),
        dir: args.dir,
        understudy_port: args.understudy_port,
        rabbitmq_port: args.rabbitmq_port,
    };
    let comparison = compare(&plan, |line| eprintln!("{line}")).await?;
    if args.json {
        println!("{}", serde_json::to_string(&comparison)?);
    } else {
        print!("{}", render(&comparison));
    }
    Ok(ExitCode::SUCCESS)
}

impl RunArgs {
    fn plan(&self) -> LoadPlan {
        let queue = QueuePlan {
            name: self.queue.clone().unwrap_or_else(|| format!("bench-{:016x}", rand::random::<u64>())),
            durable: !self.transient_queue,
            queue_type: self.queue_type.clone(),
        };
        let mut plan = LoadPlan::new(queue, Duration::from_secs(self.duration));
        let warm_up = Duration::from_secs(self.warm_up);
        plan.publishers = usize::from(self.publishers);
        plan.consumers = usize::from(self.consumers);
        plan.delete_queue = self.queue.is_none();
        plan.publisher.message_bytes = self.size;
        plan.publisher.window = self.window as usize;
        plan.publisher.rate = self.rate;
        plan.publisher.persistent = !self.transient;
        plan.publisher.measure_from = warm_up;
        plan.consumer.prefetch = self.prefetch;
        plan.consumer.measure_from = warm_up;
        plan.consumer.ack = match self.ack {
            Ack::Each => AckPolicy::Each,
            Ack::PerRead => AckPolicy::PerRead,
        };
        plan
    }
}
