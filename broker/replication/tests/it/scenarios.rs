//! Hundreds of seeds in several weathers, and the meta-test: a seed replays.

use crate::world::{Weather, World};

const FAIR: Weather = Weather { crash: 0, wipe: 0, break_link: 1, lose_answer: 1, election: 0 };
const CRASHES: Weather = Weather { crash: 2, wipe: 0, break_link: 2, lose_answer: 2, election: 2 };
const WIPES: Weather = Weather { crash: 1, wipe: 2, break_link: 2, lose_answer: 2, election: 2 };
const ELECTIONS: Weather = Weather { crash: 1, wipe: 0, break_link: 4, lose_answer: 8, election: 8 };

/// Seeds of one weather, or the one that `SEED` names.
fn seeds(count: u64) -> Vec<u64> {
    match std::env::var("SEED") {
        Ok(seed) => vec![seed.parse().expect("SEED is a number")],
        Err(_) => (0..count).collect(),
    }
}

fn run(seed: u64, weather: Weather, steps: usize) -> World {
    let mut world = World::new(seed);
    for _ in 0..steps {
        world.step(weather);
    }
    world
}

fn survives(weather: Weather, count: u64) -> (usize, usize, usize) {
    let (mut confirmed, mut elections, mut bases) = (0, 0, 0);
    for seed in seeds(count) {
        let mut world = run(seed, weather, 1500);
        world.calm();
        confirmed += world.confirmed.len();
        elections += world.elections;
        bases += world.bases;
    }
    (confirmed, elections, bases)
}

#[test]
fn nothing_confirmed_is_lost_in_fair_weather() {
    let (confirmed, _, _) = survives(FAIR, 20);
    assert!(confirmed > 20, "only {confirmed} confirmed: the simulation does not get anywhere");
}

#[test]
fn nothing_confirmed_is_lost_through_crashes() {
    let (confirmed, elections, _) = survives(CRASHES, 50);
    assert!(confirmed > 50 && elections > 100, "{confirmed} confirmed, {elections} elections");
}

#[test]
fn nothing_confirmed_is_lost_with_lost_disks() {
    let (confirmed, _, bases) = survives(WIPES, 50);
    assert!(confirmed > 50 && bases > 50, "{confirmed} confirmed, {bases} bases");
}

#[test]
fn nothing_confirmed_is_lost_in_a_storm_of_elections_and_lost_answers() {
    let (confirmed, elections, _) = survives(ELECTIONS, 50);
    assert!(confirmed > 20 && elections > 500, "{confirmed} confirmed, {elections} elections");
}

#[test]
fn a_seed_replays() {
    assert_eq!(run(7, WIPES, 2000).digest(), run(7, WIPES, 2000).digest());
    assert_ne!(run(7, WIPES, 2000).digest(), run(8, WIPES, 2000).digest());
}
