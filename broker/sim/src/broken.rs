//! Can the simulator fail? Each rule is broken in turn, and within so many seeds a checker has to say so.

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use understudy_record::variant::{Variant, break_rule};
use understudy_sim::{Failure, run_seed};

pub(crate) fn variant(name: &str) -> Option<Variant> {
    Variant::ALL.into_iter().find(|variant| format!("{variant:?}") == name)
}

/// Breaks each rule, and runs the seeds until one fails.
pub(crate) fn run_all(from: u64, to: u64) -> ExitCode {
    let mut caught = 0;
    for variant in Variant::ALL {
        match first_failure(variant, from, to) {
            Some(Failure { seed, reason, .. }) => {
                caught += 1;
                let reason: String = reason.lines().next().unwrap_or_default().chars().take(200).collect();
                println!("{variant:?}: caught within {} seeds (seed {seed}): {reason}", seed - from + 1);
            }
            None => println!("{variant:?}: NOT caught by the seeds {from}..{to}"),
        }
    }
    let all = Variant::ALL.len();
    println!("sim: {caught} of {all} broken variants caught");
    if caught == all { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn first_failure(variant: Variant, from: u64, to: u64) -> Option<Failure> {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let next = AtomicU64::new(from);
    let first = Mutex::new(None::<Failure>);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                break_rule(Some(variant));
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    // Those below one that failed are finished, so that the answer is the same each time.
                    let known = first.lock().ok().and_then(|first| first.as_ref().map(|failure| failure.seed));
                    if seed >= known.unwrap_or(to) {
                        break;
                    }
                    if let Some(failure) = run_seed(seed, false).failure
                        && let Ok(mut first) = first.lock()
                        && first.as_ref().is_none_or(|first| failure.seed < first.seed)
                    {
                        *first = Some(failure);
                    }
                }
            });
        }
    });
    first.into_inner().ok().flatten()
}
