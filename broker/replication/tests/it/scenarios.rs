//! Hundreds of seeds in several weathers, and the meta-test: a seed replays.

use understudy_record::version::ClusterVersion;

use crate::world::{Weather, World};

const FAIR: Weather = Weather { crash: 0, wipe: 0, break_link: 1, lose_answer: 1, election: 0, upgrade: 0 };
const CRASHES: Weather = Weather { crash: 2, wipe: 0, break_link: 2, lose_answer: 2, election: 2, upgrade: 0 };
const WIPES: Weather = Weather { crash: 1, wipe: 2, break_link: 2, lose_answer: 2, election: 2, upgrade: 0 };
const ELECTIONS: Weather = Weather { crash: 1, wipe: 0, break_link: 4, lose_answer: 8, election: 8, upgrade: 0 };
const STALE: Weather = Weather { crash: 3, wipe: 0, break_link: 8, lose_answer: 12, election: 4, upgrade: 0 };
const LOSSY: Weather = Weather { crash: 1, wipe: 1, break_link: 10, lose_answer: 25, election: 1, upgrade: 0 };

const UPGRADES: Weather = Weather { crash: 0, wipe: 0, break_link: 1, lose_answer: 4, election: 1, upgrade: 2 };

#[derive(Clone, Copy)]
enum Durability {
    Fsync,
    Replicated,
}

/// What the runs of a scenario came to.
#[derive(Debug, Default)]
struct Sum {
    confirmed: usize,
    elections: usize,
    bases: usize,
    resumed: usize,
    waited: usize,
    hand_overs: usize,
    checkpoints: usize,
    /// Runs that ended at version 3.
    raised: usize,
}

/// Seeds of one scenario, or the one that `SEED` names.
fn seeds(count: u64) -> Vec<u64> {
    match std::env::var("SEED") {
        Ok(seed) => vec![seed.parse().expect("SEED is a number")],
        Err(_) => (0..count).collect(),
    }
}

fn run(seed: u64, weather: Weather, durability: Durability, steps: usize) -> World {
    let mut world = World::new(seed, matches!(durability, Durability::Replicated));
    world.blind = if seed.is_multiple_of(2) { 0.9 } else { 0.0 };
    for _ in 0..steps {
        world.step(weather);
    }
    world
}

/// Bad weather, then fair weather until everybody is in sync; nothing confirmed may be missing at any step.
fn survives(weather: Weather, durability: Durability, count: u64) -> Sum {
    let mut sum = Sum::default();
    for seed in seeds(count) {
        let mut world = run(seed, weather, durability, 1200);
        world.calm();
        sum.confirmed += world.confirmed.len();
        sum.elections += world.elections;
        sum.bases += world.bases;
        sum.resumed += world.resumed;
        sum.waited += world.waited;
        sum.hand_overs += world.hand_overs;
        sum.checkpoints += world.checkpoints;
        sum.raised += usize::from(world.lease.cluster_version() == ClusterVersion(3));
    }
    sum
}

/// A simulation that gets nowhere proves nothing. One seed alone may.
fn expect(sum: &Sum, enough: bool) {
    assert!(enough || std::env::var("SEED").is_ok(), "too little happened: {sum:?}");
}

#[test]
fn nothing_confirmed_is_lost_in_fair_weather() {
    let sum = survives(FAIR, Durability::Fsync, 100);
    expect(&sum, sum.confirmed > 200 && sum.bases > 50 && sum.resumed > 50 && sum.waited > 20);
}

#[test]
fn nothing_confirmed_is_lost_through_crashes() {
    let sum = survives(CRASHES, Durability::Fsync, 200);
    expect(&sum, sum.confirmed > 400 && sum.elections > 200 && sum.hand_overs > 0);
}

#[test]
fn nothing_confirmed_is_lost_with_lost_disks() {
    let sum = survives(WIPES, Durability::Fsync, 200);
    expect(&sum, sum.confirmed > 400 && sum.bases > 50 && sum.resumed > 20 && sum.checkpoints > 1000);
}

#[test]
fn nothing_confirmed_is_lost_in_a_storm_of_elections() {
    let sum = survives(ELECTIONS, Durability::Fsync, 150);
    expect(&sum, sum.confirmed > 100 && sum.elections > 500);
}

#[test]
fn nothing_confirmed_is_lost_by_lost_answers_of_the_lease() {
    let (stale, lossy) = (survives(STALE, Durability::Fsync, 100), survives(LOSSY, Durability::Fsync, 100));
    expect(&stale, stale.confirmed > 100);
    expect(&lossy, lossy.confirmed > 100);
}

#[test]
fn nothing_confirmed_is_lost_where_memory_is_what_counts() {
    for weather in [CRASHES, WIPES, STALE] {
        let sum = survives(weather, Durability::Replicated, 100);
        expect(&sum, sum.confirmed > 50);
    }
}

/// No store holds what was written at a version that it does not remember, nor is a build started on a store of a version that
/// it does not know; the Lease's version is never lowered: each is asserted where it happens.
#[test]
fn nothing_confirmed_is_lost_while_builds_come_and_go() {
    for durability in [Durability::Fsync, Durability::Replicated] {
        let sum = survives(UPGRADES, durability, 150);
        expect(&sum, sum.confirmed > 200 && sum.raised > 4 && sum.raised < 140);
    }
}

#[test]
fn a_seed_replays() {
    let digest = |seed| run(seed, WIPES, Durability::Fsync, 2000).digest();
    assert_eq!(digest(7), digest(7));
    assert_ne!(digest(7), digest(8));
}
