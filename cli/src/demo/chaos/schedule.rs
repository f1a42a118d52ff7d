//! Which broker fails, when and how: a list made from a seed before anything runs, so that a seed stands for the same list.
//! Brokers are numbers here; which of them is primary when its turn comes is nothing to a schedule.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// Every second failure or so is followed by another one after at most this, or within the stop that goes on.
const FOLLOWED_WITHIN: Duration = Duration::from_secs(1);
const LEAST_BETWEEN: Duration = Duration::from_millis(1);
const FOLLOWED: f64 = 0.25;
/// After all stops are over: enough for the cluster to be whole again most of the time.
const CALM: (Duration, Duration) = (Duration::from_millis(1000), Duration::from_millis(4000));
/// One that nobody should take for more than a pause.
const SHORT_STOP: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(1500));
/// From where a silent broker is given up (2 s) to well beyond the Lease's duration (5 s).
const LONG_STOP: (Duration, Duration) = (Duration::from_millis(1500), Duration::from_millis(9000));

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    /// Since the beginning.
    pub(crate) at: Duration,
    pub(crate) broker: usize,
    pub(crate) kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// SIGKILL; the supervisor starts it again.
    Kill,
    /// SIGSTOP, and SIGCONT after this.
    Stop(Duration),
}

/// Failures of so many brokers in order of time, all over by `length`.
pub(crate) fn schedule(seed: u64, length: Duration, brokers: usize) -> Vec<Fault> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut faults = Vec::new();
    let mut stopped_until = vec![Duration::ZERO; brokers];
    let mut at = uniform(&mut random, CALM);
    let mut last = None;
    loop {
        let broker = other_than(&mut random, last, brokers);
        let kind = match stopped_until[broker] > at || random.random_bool(0.5) {
            true => Kind::Kill,
            false => Kind::Stop(stop_length(&mut random)),
        };
        stopped_until[broker] = match kind {
            Kind::Kill => Duration::ZERO,
            Kind::Stop(length) => at + length,
        };
        let all_run_from = stopped_until.iter().max().copied().unwrap_or_default().max(at);
        if all_run_from >= length {
            return faults;
        }
        faults.push(Fault { at, broker, kind });
        let followed = random.random_bool(FOLLOWED);
        last = followed.then_some(broker);
        at = match followed {
            true => at + log_uniform(&mut random, (LEAST_BETWEEN, FOLLOWED_WITHIN.max(all_run_from - at))),
            false => all_run_from + uniform(&mut random, CALM),
        };
    }
}

fn other_than(random: &mut StdRng, last: Option<usize>, brokers: usize) -> usize {
    match last {
        Some(last) => (last + random.random_range(1..brokers)) % brokers,
        None => random.random_range(0..brokers),
    }
}

fn stop_length(random: &mut StdRng) -> Duration {
    match random.random_bool(0.5) {
        true => log_uniform(random, SHORT_STOP),
        false => uniform(random, LONG_STOP),
    }
}

fn uniform(random: &mut StdRng, (least, most): (Duration, Duration)) -> Duration {
    random.random_range(least..most)
}

/// As many of some milliseconds as of some hundreds.
fn log_uniform(random: &mut StdRng, (least, most): (Duration, Duration)) -> Duration {
    let power = random.random_range(least.as_secs_f64().ln()..most.as_secs_f64().ln());
    Duration::from_secs_f64(power.exp()).clamp(least, most)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTH: Duration = Duration::from_secs(600);

    fn all() -> impl Iterator<Item = Vec<Fault>> {
        (0..50).map(|seed| schedule(seed, LENGTH, 3))
    }

    #[test]
    fn a_seed_stands_for_its_schedule() {
        assert_eq!(schedule(7, LENGTH, 3), schedule(7, LENGTH, 3));
        assert_ne!(schedule(7, LENGTH, 3), schedule(8, LENGTH, 3));
        let short = schedule(7, Duration::from_secs(60), 3);
        assert!(schedule(7, LENGTH, 3).starts_with(&short), "the same, only longer");
    }

    #[test]
    fn it_is_in_order_and_over_in_time() {
        for faults in all() {
            assert!(faults.is_sorted_by(|one, next| one.at < next.at));
            let ends = faults.iter().map(|fault| match fault.kind {
                Kind::Kill => fault.at,
                Kind::Stop(length) => fault.at + length,
            });
            assert!(ends.max() < Some(LENGTH));
            assert!((100..400).contains(&faults.len()), "{} in ten minutes", faults.len());
        }
    }

    #[test]
    fn nobody_is_stopped_who_is_already() {
        for faults in all() {
            let mut stopped_until = [Duration::ZERO; 3];
            for fault in faults {
                match fault.kind {
                    Kind::Kill => stopped_until[fault.broker] = Duration::ZERO,
                    Kind::Stop(length) => {
                        assert!(stopped_until[fault.broker] <= fault.at);
                        stopped_until[fault.broker] = fault.at + length;
                    }
                }
            }
        }
    }

    #[test]
    fn each_broker_gets_everything_and_some_of_it_at_once() {
        let lease = Duration::from_secs(5);
        for faults in all() {
            for broker in 0..3 {
                let mine = || faults.iter().filter(move |fault| fault.broker == broker).map(|fault| fault.kind);
                assert!(mine().filter(|kind| *kind == Kind::Kill).count() > 10);
                assert!(mine().any(|kind| matches!(kind, Kind::Stop(length) if length > lease)));
                assert!(mine().any(|kind| matches!(kind, Kind::Stop(length) if length < lease / 50)));
            }
            let close = |pair: &&[Fault]| pair[1].at - pair[0].at < Duration::from_millis(100);
            let together = faults.windows(2).filter(close).inspect(|pair| assert_ne!(pair[0].broker, pair[1].broker));
            assert!(together.count() > 5);
        }
    }
}
