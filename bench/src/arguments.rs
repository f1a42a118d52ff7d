//! What may be typed, and the plan that it makes. Nothing here runs.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use understudy_bench::compare::ComparePlan;
use understudy_bench::limit::LimitPlan;
use understudy_bench::storage::backlog::BacklogPlan;
use understudy_bench::storage::catch_up::CatchUpPlan;
use understudy_bench::storage::old::OldPlan;
use understudy_bench::storage::restart::RestartPlan;
use understudy_bench::storage::steady::SteadyPlan;
use understudy_bench::{AckPolicy, DevPlan, LoadPlan, MIN_MESSAGE_BYTES, QueuePlan};

#[derive(Parser)]
#[command(name = "understudy-bench", version, about = "A load generator for AMQP 0-9-1 brokers")]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// One load against brokers that run: rates, latencies, and what became of every message
    Run(RunArgs),
    /// Ours against RabbitMQ, in turns, as ratios; starts and stops both clusters
    Compare(CompareArgs),
    /// The journal alone against a bare loop of write + fdatasync on this disk, by size of batch; no broker runs
    Limit(LimitArgs),
    /// From kill -9 with many messages in many queues until ready, against RabbitMQ's classic queues
    Restart(RestartArgs),
    /// The memory of the brokers while a backlog larger than their budget is published and drained
    Backlog(BacklogArgs),
    /// The disk that one old unacknowledged message costs while gigabytes pass it by
    Old(OldArgs),
    /// Full speed with checkpoints and without
    Steady(SteadyArgs),
    /// Half of full speed while a backup with an empty disk fills itself from a backlog
    #[command(name = "catchup")]
    CatchUp(CatchUpArgs),
}

/// Our own cluster, as several measures start it.
#[derive(Args)]
pub(crate) struct OursArgs {
    /// The binary that `dev` is run with
    #[arg(long, default_value = "target/release/understudy")]
    pub(crate) understudy: PathBuf,
    /// Where the files of what is started go while it runs: a real disk
    #[arg(long, default_value_os_t = std::env::temp_dir())]
    pub(crate) dir: PathBuf,
    /// First AMQP port of ours; the other brokers follow
    #[arg(long, default_value_t = 35672)]
    pub(crate) understudy_port: u16,
    /// An argument for each broker, such as --broker-arg=--resume-records=1000; may be given several times
    #[arg(long = "broker-arg", value_name = "ARG", allow_hyphen_values = true)]
    pub(crate) broker_arguments: Vec<String>,
    /// All figures as JSON, instead of the table
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args)]
pub(crate) struct RestartArgs {
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=30_000_000))]
    pub(crate) messages: u64,
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) queues: u32,
    /// Message size in bytes
    #[arg(long, default_value_t = 100, value_parser = parse_size)]
    pub(crate) size: usize,
    /// Unconfirmed messages while they are published; many, since each queue of RabbitMQ syncs by itself
    #[arg(long, default_value_t = 5000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) window: u32,
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=100))]
    pub(crate) rounds: u16,
    /// Measure one of them alone
    #[arg(long, value_enum)]
    pub(crate) only: Option<Only>,
    #[arg(long, default_value = "bench/rabbitmq-cluster")]
    pub(crate) rabbitmq_script: PathBuf,
    /// AMQP port of RabbitMQ; its other ports follow, up to 20 above
    #[arg(long, default_value_t = 25672)]
    pub(crate) rabbitmq_port: u16,
    #[command(flatten)]
    pub(crate) ours: OursArgs,
}

#[derive(Args)]
pub(crate) struct BacklogArgs {
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=9))]
    pub(crate) replicas: u16,
    /// Of all messages together, such as 2GiB
    #[arg(long, default_value = "2GiB", value_parser = parse_bytes)]
    pub(crate) bytes: u64,
    /// What every broker is given, such as 256MiB
    #[arg(long, default_value = "256MiB", value_parser = parse_bytes)]
    pub(crate) memory_budget: u64,
    /// Message size in bytes
    #[arg(long, default_value_t = 1024, value_parser = parse_size)]
    pub(crate) size: usize,
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) window: u32,
    #[arg(long, default_value_t = 1000)]
    pub(crate) prefetch: u16,
    #[command(flatten)]
    pub(crate) ours: OursArgs,
}

#[derive(Args)]
pub(crate) struct CatchUpArgs {
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(2..=9))]
    pub(crate) replicas: u16,
    /// Of the whole backlog, such as 5GiB
    #[arg(long, default_value = "5GiB", value_parser = parse_bytes)]
    pub(crate) bytes: u64,
    /// Queues that it is in
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) queues: u32,
    /// Message size of the backlog in bytes
    #[arg(long, default_value_t = 4096, value_parser = parse_size)]
    pub(crate) backlog_size: usize,
    /// Message size of the load in bytes
    #[arg(long, default_value_t = 1024, value_parser = parse_size)]
    pub(crate) size: usize,
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) window: u32,
    /// Seconds for which full speed is measured, and the load before and after
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u64).range(2..=600))]
    pub(crate) duration: u64,
    #[command(flatten)]
    pub(crate) ours: OursArgs,
}

#[derive(Args)]
pub(crate) struct OldArgs {
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=9))]
    pub(crate) replicas: u16,
    /// Of the later traffic, such as 10GiB
    #[arg(long, default_value = "10GiB", value_parser = parse_bytes)]
    pub(crate) bytes: u64,
    /// Message size in bytes
    #[arg(long, default_value_t = 1024, value_parser = parse_size)]
    pub(crate) size: usize,
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) window: u32,
    #[command(flatten)]
    pub(crate) ours: OursArgs,
}

#[derive(Args)]
pub(crate) struct SteadyArgs {
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=9))]
    pub(crate) replicas: u16,
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=100))]
    pub(crate) rounds: u16,
    /// Seconds of each load, with a second of warm-up
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u64).range(2..=600))]
    pub(crate) duration: u64,
    /// Log bytes between two checkpoints, such as 64MiB; without it the broker's default
    #[arg(long, value_parser = parse_bytes)]
    pub(crate) checkpoint_bytes: Option<u64>,
    /// Messages that stand all the time, so that a checkpoint has something to write
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(0..=30_000_000))]
    pub(crate) backlog: u64,
    /// Queues that these are in
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) backlog_queues: u32,
    /// Message size of the backlog in bytes
    #[arg(long, default_value_t = 100, value_parser = parse_size)]
    pub(crate) backlog_size: usize,
    /// Message size of the load in bytes
    #[arg(long, default_value_t = 1024, value_parser = parse_size)]
    pub(crate) size: usize,
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) window: u32,
    #[command(flatten)]
    pub(crate) ours: OursArgs,
}

#[derive(Args)]
pub(crate) struct CompareArgs {
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=100))]
    pub(crate) rounds: u16,
    /// Seconds of each load, with a second of warm-up
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(2..=600))]
    pub(crate) duration: u64,
    /// Do not kill leaders
    #[arg(long)]
    pub(crate) no_failover: bool,
    /// Measure one of them alone
    #[arg(long, value_enum)]
    pub(crate) only: Option<Only>,
    /// The binary that `dev` is run with
    #[arg(long, default_value = "target/release/understudy")]
    pub(crate) understudy: PathBuf,
    #[arg(long, default_value = "bench/rabbitmq-cluster")]
    pub(crate) rabbitmq_script: PathBuf,
    /// Where both clusters keep their files while they run: a real disk, since fsync is part of what is measured
    #[arg(long, default_value_os_t = std::env::temp_dir())]
    pub(crate) dir: PathBuf,
    /// First AMQP port of ours; the other brokers follow
    #[arg(long, default_value_t = 35672)]
    pub(crate) understudy_port: u16,
    /// First AMQP port of RabbitMQ; its other ports follow, up to 20 above
    #[arg(long, default_value_t = 25672)]
    pub(crate) rabbitmq_port: u16,
    /// All figures of all rounds as JSON, instead of the table
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Only {
    Understudy,
    Rabbitmq,
}

#[derive(Args)]
pub(crate) struct RunArgs {
    /// Addresses, tried in order, the next one when a connection is lost
    #[arg(long, value_delimiter = ',', default_value = "127.0.0.1:5672")]
    pub(crate) addresses: Vec<String>,
    #[arg(long, default_value = "guest")]
    pub(crate) user: String,
    #[arg(long, default_value = "guest", env = "UNDERSTUDY_BENCH_PASSWORD", hide_env_values = true)]
    pub(crate) password: String,
    /// Seconds, at least 1; 0 turns heartbeats off
    #[arg(long, default_value_t = 10)]
    pub(crate) heartbeat: u16,
    /// The queue; by default a new one, deleted at the end
    #[arg(long)]
    pub(crate) queue: Option<String>,
    /// x-queue-type, such as quorum
    #[arg(long)]
    pub(crate) queue_type: Option<String>,
    /// A queue that does not survive a restart
    #[arg(long)]
    pub(crate) transient_queue: bool,
    /// Messages that do not survive a restart
    #[arg(long)]
    pub(crate) transient: bool,
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(0..=1000))]
    pub(crate) publishers: u16,
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(0..=1000))]
    pub(crate) consumers: u16,
    /// Seconds, with the warm-up
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) duration: u64,
    /// Seconds at the beginning that are not in the figures
    #[arg(long, default_value_t = 1)]
    pub(crate) warm_up: u64,
    /// Message size in bytes
    #[arg(long, default_value_t = 1024, value_parser = parse_size)]
    pub(crate) size: usize,
    /// Messages of a publisher that wait for their confirm, at most
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) window: u32,
    /// Messages a second of each publisher; by default as many as the window allows
    #[arg(long)]
    pub(crate) rate: Option<u64>,
    /// Unacknowledged deliveries of a consumer, at most
    #[arg(long, default_value_t = 1000)]
    pub(crate) prefetch: u16,
    #[arg(long, value_enum, default_value_t = Ack::Each)]
    pub(crate) ack: Ack,
    /// Threads of the generator
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) threads: u16,
    /// One JSON object instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Ack {
    /// One acknowledgement a message
    Each,
    /// One for all that a read of the socket brought
    PerRead,
}

#[derive(Args)]
pub(crate) struct LimitArgs {
    /// Message size in bytes
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=16 << 20))]
    pub(crate) size: u32,
    /// Messages of a batch; each is tried, in ascending order
    #[arg(long, value_delimiter = ',', default_values_t = BATCHES, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(crate) batches: Vec<u32>,
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=100))]
    pub(crate) rounds: u16,
    /// Milliseconds of one turn of one of the two
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u64).range(10..=60_000))]
    pub(crate) turn_ms: u64,
    /// A directory on the disk to measure
    #[arg(long, default_value_os_t = std::env::temp_dir())]
    pub(crate) dir: PathBuf,
    /// Draw the plot into this file too
    #[arg(long)]
    pub(crate) svg: Option<PathBuf>,
    /// All figures of all rounds as JSON, instead of the table and the plot
    #[arg(long)]
    pub(crate) json: bool,
}

/// One message is a broker with one patient client; thousands are a busy one's fsync.
const BATCHES: [u32; 7] = [1, 4, 16, 64, 256, 1024, 4096];

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

impl RunArgs {
    pub(crate) fn plan(&self) -> LoadPlan {
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

/// A number with B, KiB, MiB or GiB behind it; bytes without.
fn parse_bytes(text: &str) -> Result<u64, String> {
    let split = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let shift = match unit.trim() {
        "" | "B" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        unit => return Err(format!("{unit} is none of B, KiB, MiB and GiB")),
    };
    let number: u64 = number.parse().map_err(|_| format!("not a number: {number}"))?;
    // A TiB is more than any measure writes.
    let bytes = number.checked_mul(1 << shift).filter(|bytes| (1..=1 << 40).contains(bytes));
    bytes.ok_or_else(|| format!("{text} is not between a byte and 1024 GiB"))
}

impl OursArgs {
    fn plan(&self, replicas: u16) -> DevPlan {
        DevPlan {
            binary: self.understudy.clone(),
            parent: self.dir.clone(),
            replicas,
            amqp_port: self.understudy_port,
            broker_arguments: self.broker_arguments.clone(),
        }
    }
}

impl RestartArgs {
    pub(crate) fn plan(&self) -> RestartPlan {
        RestartPlan {
            messages: self.messages,
            queues: self.queues as usize,
            message_bytes: self.size,
            window: self.window as usize,
            rounds: usize::from(self.rounds),
            understudy: (self.only != Some(Only::Rabbitmq)).then(|| self.ours.plan(1)), // as many as RabbitMQ has
            rabbitmq_script: (self.only != Some(Only::Understudy)).then(|| self.rabbitmq_script.clone()),
            rabbitmq_port: self.rabbitmq_port,
            dir: self.ours.dir.clone(),
        }
    }
}

impl BacklogArgs {
    pub(crate) fn plan(&self) -> BacklogPlan {
        BacklogPlan {
            dev: self.ours.plan(self.replicas),
            bytes: self.bytes,
            message_bytes: self.size,
            memory_budget: self.memory_budget,
            window: self.window as usize,
            prefetch: self.prefetch,
        }
    }
}

impl CatchUpArgs {
    pub(crate) fn plan(&self) -> CatchUpPlan {
        CatchUpPlan {
            dev: self.ours.plan(self.replicas),
            bytes: self.bytes,
            queues: self.queues as usize,
            backlog_message_bytes: self.backlog_size,
            message_bytes: self.size,
            window: self.window as usize,
            duration: Duration::from_secs(self.duration),
        }
    }
}

impl OldArgs {
    pub(crate) fn plan(&self) -> OldPlan {
        OldPlan {
            dev: self.ours.plan(self.replicas),
            bytes: self.bytes,
            message_bytes: self.size,
            window: self.window as usize,
        }
    }
}

impl SteadyArgs {
    pub(crate) fn plan(&self) -> SteadyPlan {
        SteadyPlan {
            dev: self.ours.plan(self.replicas),
            checkpoint_bytes: self.checkpoint_bytes,
            rounds: usize::from(self.rounds),
            duration: Duration::from_secs(self.duration),
            message_bytes: self.size,
            window: self.window as usize,
            backlog: self.backlog,
            backlog_queues: self.backlog_queues as usize,
            backlog_message_bytes: self.backlog_size,
        }
    }
}

impl CompareArgs {
    pub(crate) fn plan(&self) -> ComparePlan {
        ComparePlan {
            rounds: usize::from(self.rounds),
            duration: Duration::from_secs(self.duration),
            failover: !self.no_failover,
            understudy: (self.only != Some(Only::Rabbitmq)).then(|| self.understudy.clone()),
            rabbitmq_script: (self.only != Some(Only::Understudy)).then(|| self.rabbitmq_script.clone()),
            dir: self.dir.clone(),
            understudy_port: self.understudy_port,
            rabbitmq_port: self.rabbitmq_port,
        }
    }
}

impl LimitArgs {
    pub(crate) fn plan(&self) -> LimitPlan {
        let mut batches: Vec<_> = self.batches.iter().map(|batch| *batch as usize).collect();
        batches.sort_unstable();
        batches.dedup();
        LimitPlan {
            dir: self.dir.clone(),
            message_bytes: self.size as usize,
            batches,
            rounds: usize::from(self.rounds),
            turn: Duration::from_millis(self.turn_ms),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_options_do_not_contradict_each_other() {
        Cli::command().debug_assert();
    }

    #[test]
    fn sizes_have_units() {
        assert_eq!(parse_bytes("2GiB"), Ok(2 << 30));
        assert_eq!(parse_bytes("100"), Ok(100));
        assert_eq!(parse_bytes("64 MiB"), Ok(64 << 20));
        for wrong in ["", "GiB", "2GB", "0", "-1MiB", "1025GiB", "99999999999999999999"] {
            assert!(parse_bytes(wrong).is_err(), "{wrong}");
        }
    }
}
