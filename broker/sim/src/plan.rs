//! What kind of run a seed makes: how many replicas, which faults and how often, how busy the clients are. Each run has a few
//! kinds of faults in abundance instead of a little of all: that is how rare combinations are found.

use std::time::Duration;

use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use understudy_node::Settings;
use understudy_record::ReplicaName;

/// What can go wrong. See `faults` for what each does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    Kill,
    PowerLoss,
    PowerLossOfAll,
    Freeze,
    CutOneWay,
    CutBothWays,
    Isolate,
    LoseDisk,
    FailWrite,
    FailSync,
    FullDisk,
    StallDisk,
    ApiDown,
    ApiSlow,
    ApiCutFromOne,
    DeleteLease,
    OperatorAway,
    HandOver,
    ShutDown,
    BreakLink,
    /// One replica is told another `minInSync`.
    Retell,
}

pub(crate) const FAULTS: [Fault; 21] = [
    Fault::Kill,
    Fault::PowerLoss,
    Fault::PowerLossOfAll,
    Fault::Freeze,
    Fault::CutOneWay,
    Fault::CutBothWays,
    Fault::Isolate,
    Fault::LoseDisk,
    Fault::FailWrite,
    Fault::FailSync,
    Fault::FullDisk,
    Fault::StallDisk,
    Fault::ApiDown,
    Fault::ApiSlow,
    Fault::ApiCutFromOne,
    Fault::DeleteLease,
    Fault::OperatorAway,
    Fault::HandOver,
    Fault::ShutDown,
    Fault::BreakLink,
    Fault::Retell,
];

#[derive(Clone, Debug)]
pub struct Plan {
    pub(crate) replicas: usize,
    pub(crate) min_in_sync: usize,
    pub(crate) replicated_only: bool,
    pub(crate) faults: Vec<Fault>,
    /// Between two faults, about.
    pub(crate) pause: Duration,
    /// The time of faults; calm follows.
    pub(crate) stormy: Duration,
    pub(crate) publishers: usize,
    pub(crate) consumers: usize,
    /// Between two publishes of one publisher, about.
    pub(crate) publish_every: Duration,
    pub(crate) largest_body: usize,
    pub(crate) operator: bool,
    pub(crate) memory_budget: u64,
    pub(crate) checkpoint_bytes: u64,
    pub(crate) resume_records: u64,
    pub(crate) scrub_interval: Duration,
    pub(crate) max_catch_ups: usize,
    /// Of ten answers of the API server, so many are lost.
    pub(crate) lost_answers: u32,
    /// How long a watch may lag, at most.
    pub(crate) watch_lag: Duration,
    /// The Lease is deleted while those who hold everything are away: see `absence`.
    pub(crate) absence: bool,
}

pub(crate) const LEASE_DURATION: Duration = Duration::from_millis(2000);
pub(crate) const BACKUP_TIMEOUT: Duration = Duration::from_millis(500);
pub(crate) const STALL_TIMEOUT: Duration = Duration::from_millis(1500);

impl Plan {
    pub(crate) fn of(rng: &mut StdRng) -> Self {
        let kinds = match rng.random_range(0..10) {
            0 => 0,
            n => 1 + n / 2,
        };
        let mut faults: Vec<Fault> = FAULTS.choose_multiple(rng, kinds).copied().collect();
        // Both together leave it open whether the lost disk was the only one with everything: that is for a person to decide.
        if faults.contains(&Fault::DeleteLease) {
            faults.retain(|fault| *fault != Fault::LoseDisk);
        }
        let replicated_only = rng.random_bool(0.15);
        // Nobody can tell whether a process that is gone was the only one with everything.
        if replicated_only {
            faults.retain(|fault| *fault != Fault::DeleteLease);
        }
        let replicas = *[1, 2, 3, 3, 3, 3, 3, 5].choose(rng).unwrap_or(&3);
        let millis = Duration::from_millis;
        let mut stormy = millis(rng.random_range(3_000..12_000));
        let absence = rng.random_bool(0.15) && replicas > 1 && !replicated_only;
        if absence {
            // It loses one disk and the one Lease itself, and takes its time.
            faults.retain(|fault| !matches!(fault, Fault::DeleteLease | Fault::LoseDisk));
            stormy += millis(4_000);
        }
        Self {
            replicas,
            min_in_sync: rng.random_range(1..=2.min(replicas)),
            replicated_only,
            faults,
            pause: millis(*[100, 300, 800, 2000].choose(rng).unwrap_or(&300)),
            stormy,
            publishers: rng.random_range(1..=3),
            consumers: rng.random_range(0..=3),
            publish_every: millis(*[2, 5, 20, 60].choose(rng).unwrap_or(&20)),
            largest_body: *[16, 300, 3000].choose(rng).unwrap_or(&16),
            operator: rng.random_bool(0.7),
            memory_budget: *[0, 20_000, 1 << 30].choose(rng).unwrap_or(&0),
            checkpoint_bytes: *[8_000, 40_000, 1 << 30].choose(rng).unwrap_or(&40_000),
            resume_records: *[0, 20, 1_000_000].choose(rng).unwrap_or(&20),
            max_catch_ups: rng.random_range(1..=2),
            scrub_interval: millis(*[0, 500, 3000].choose(rng).unwrap_or(&500)),
            lost_answers: *[0, 0, 1, 3].choose(rng).unwrap_or(&0),
            watch_lag: millis(*[20, 200, 3000].choose(rng).unwrap_or(&20)),
            absence,
        }
    }

    pub(crate) fn settings(&self, min_in_sync: usize) -> Settings {
        Settings {
            replicas: (0..self.replicas).map(|place| ReplicaName::new(&format!("orders-{place}"))).collect(),
            min_in_sync,
            consumer_timeout: Duration::ZERO,
        }
    }

    /// Whether the network, the processes, the disks and the Lease are left alone.
    pub(crate) fn is_fair(&self) -> bool {
        self.faults.is_empty() && self.lost_answers == 0 && !self.absence
    }
}
