//! `understudy-sim`: runs seeds, on as many threads as there are cores, and ends with a line of counts. Exits with 1 if a seed
//! failed, and prints what replays it.

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use clap::Parser;
use understudy_sim::{Counts, Failure, run_seed};

/// Simulated processes come and go by the thousand, each with its buffers.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

#[derive(Debug, Parser)]
#[command(about = "Runs simulated clusters, one a seed, and says what was found")]
struct Arguments {
    /// Seeds, `FROM..TO` (TO is left out) or one number.
    #[arg(default_value = "0..2000")]
    seeds: String,
    /// Prints what happened, line by line, of a seed that fails.
    #[arg(long)]
    story: bool,
    /// Runs each seed twice and compares what happened.
    #[arg(long)]
    twice: bool,
    /// Goes on after a failure.
    #[arg(long)]
    all: bool,
    /// Breaks each rule in turn and counts the seeds until the checkers notice; fails if one does not within the seeds.
    #[cfg(feature = "variants")]
    #[arg(long)]
    broken: bool,
    /// Breaks one rule, by its name.
    #[cfg(feature = "variants")]
    #[arg(long)]
    variant: Option<String>,
    /// Threads; as many as there are cores if absent.
    #[arg(long)]
    threads: Option<usize>,
    /// Logs of the brokers, as far as RUST_LOG asks for them.
    #[arg(long)]
    logs: bool,
}

#[cfg(feature = "variants")]
mod broken;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let Some((from, to)) = range(&arguments.seeds) else {
        eprintln!("{:?} is not a range of seeds: FROM..TO, or one number", arguments.seeds);
        return ExitCode::from(2);
    };
    if arguments.logs {
        let filter = tracing_subscriber::EnvFilter::from_default_env();
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    }
    if !arguments.story {
        std::panic::set_hook(Box::new(|_| {})); // it becomes a failure with its seed
    }
    #[cfg(feature = "variants")]
    if arguments.broken {
        return broken::run_all(from, to);
    }
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let next = AtomicU64::new(from);
    let stop = AtomicBool::new(false);
    let sum = Mutex::new((Counts::default(), Vec::<Failure>::new()));
    std::thread::scope(|scope| {
        for _ in 0..arguments.threads.unwrap_or(cores) {
            scope.spawn(|| {
                #[cfg(feature = "variants")]
                understudy_record::variant::break_rule(arguments.variant.as_deref().and_then(broken::variant));
                while !stop.load(Ordering::Relaxed) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= to {
                        break;
                    }
                    let outcome = run_seed(seed, arguments.story);
                    let mut failure = outcome.failure;
                    if failure.is_none() && arguments.twice && run_seed(seed, false).trace != outcome.trace {
                        let reason = "a second run went another way".to_owned();
                        failure = Some(Failure { seed, reason, story: Vec::new() });
                    }
                    let mut sum = sum.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                    sum.0 += &outcome.counts;
                    if let Some(failure) = failure {
                        sum.1.push(failure);
                        stop.store(!arguments.all, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let (counts, mut failures) = sum.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    failures.sort_by_key(|failure| failure.seed);
    for Failure { seed, reason, story } in &failures {
        story.iter().for_each(|line| println!("{line}"));
        println!("seed {seed} failed {reason}");
        println!("  replay: make sim SEEDS={seed}");
    }
    println!("sim: {counts}; {} failed", failures.len());
    if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn range(text: &str) -> Option<(u64, u64)> {
    match text.split_once("..") {
        Some((from, to)) => Some((from.parse().ok()?, to.parse().ok()?)),
        None => text.parse().ok().and_then(|seed: u64| Some((seed, seed.checked_add(1)?))),
    }
}
