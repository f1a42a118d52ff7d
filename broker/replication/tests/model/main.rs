//! Every interleaving of a small cluster, within bounds, explored with `stateright`: three replicas and one Lease; elections
//! by anybody at any moment, heard of late; crashes, lost disks, broken streams, acknowledgements that arrive late; swaps whose
//! answer is lost, and which take effect late or never; a Lease that is deleted, created blank by anybody, written anew by a primary, or recovered.
//!
//! The parts are the real ones: `Primary`, `Backup`, `LeaseKeeper`, `Lease`, and for a Lease that is gone `decide`. What the
//! broker's core thread does between them is done here the same way: one journal, one connection to follow, one request to
//! the Lease's store at a time. Not explored: time (every election, silence and retry may happen at any moment), who would
//! be wise to elect, bases and checkpoints (every follower resumes from the log), heartbeats, forced elections.
//!
//! Each test says how many states there are. With other bounds, by name:
//!
//! ```text
//! MODEL=elections=2,silences=1 cargo test -p understudy-replication --test model -- --ignored --nocapture
//! ```

#![allow(clippy::unwrap_used, reason = "the model fails as a test does")]

mod cluster;
mod electors;
mod happen;
mod lease_store;
mod replica;
mod rules;
mod steps;

use std::sync::Arc;

use stateright::{Checker, Expectation, HasDiscoveries, Model, Property};
use understudy_election::Lease;

use cluster::{Action, Cluster, Ledger, State, Used};
use happen::Step;
use lease_store::LeaseStore;
use replica::{LEASE, Replica};
use rules::{Bounds, Broken, CALM, JOINING, LAGGING, PAIR};

impl Model for Cluster {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![self.settled()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.possible(state, actions);
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut step = Step { cluster: self, state: state.clone() };
        step.take(action).then(|| step.finish())
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(
                "no confirmed record is lost while a disk in sync lives",
                |cluster: &Self, state: &State| {
                    let mut living = state.living_members(cluster).peekable();
                    living.peek().is_none() || living.any(|holds_all| holds_all)
                },
            ),
            Property::always("an electable store holds every confirmed record", |cluster: &Self, state: &State| {
                state.living_members(cluster).all(|holds_all| holds_all)
            }),
            Property::always("at most one primary commits in an epoch", |_: &Self, state: &State| {
                !state.ledger.two_committed
            }),
            Property::always("committed logs are prefixes of each other", |_: &Self, state: &State| {
                !state.ledger.parted
            }),
            Property::always("no epoch is given twice, nor a lower one", |_: &Self, state: &State| {
                !state.ledger.epoch_lowered
            }),
            Property::sometimes(FAILOVER, |_: &Self, state: &State| {
                state.replicas.iter().any(|it| it.leader().is_some_and(|leader| leader.primary.epoch().0 > 1))
            }),
            Property::sometimes(CONFIRM_AFTER, |_: &Self, state: &State| state.ledger.confirmed_after_failover),
            Property::sometimes(JOINS, |_: &Self, state: &State| state.ledger.joined),
            Property::sometimes(RECREATED, |_: &Self, state: &State| state.ledger.recreated),
            Property::sometimes(RECOVERED, |_: &Self, state: &State| state.ledger.recovered),
        ]
    }
}

const FAILOVER: &str = "a failover happens";
const CONFIRM_AFTER: &str = "something is confirmed after a failover";
const JOINS: &str = "a member joins";
const RECREATED: &str = "a deleted Lease is written anew";
const RECOVERED: &str = "a deleted Lease is recovered";

impl Cluster {
    /// A cluster at rest: a is the primary of epoch 1, the members of the set follow it, and its epoch's start is committed.
    fn settled(&self) -> State {
        let replicas = std::array::from_fn(|number| Arc::new(Replica::new(number, self.names_processes())));
        let members = replicas[..self.bounds.in_sync].iter();
        let in_sync = members.map(|it: &Arc<Replica>| it.identity().member(self.names_processes())).collect();
        let first = Lease::bootstrap(&replicas[0].identity(), in_sync, LEASE).unwrap();
        let mut state = State {
            replicas,
            links: Vec::new(),
            store: LeaseStore::new(first),
            requests: Vec::new(),
            elector: None,
            ledger: Ledger::default(),
            used: Used::default(),
        };
        let sound = Cluster { broken: self.broken.filter(|it| *it == Broken::ProcessesNotInSet), bounds: self.bounds };
        let calm = |action: &Action| match action {
            Action::TakeRole { .. } | Action::Deliver { .. } | Action::Acknowledge { .. } => true,
            Action::AskLease { .. } | Action::ServeLease { .. } | Action::AnswerLease { .. } => true,
            Action::JournalCompletes { .. } => true,
            Action::Connect { backup, .. } => *backup < self.bounds.in_sync,
            _ => false,
        };
        loop {
            let mut actions = Vec::new();
            sound.possible(&state, &mut actions);
            let mut next = actions.into_iter().filter(calm).filter_map(|action| sound.next_state(&state, action));
            let Some(next) = next.next() else { break };
            state = next;
        }
        for replica in &mut state.replicas {
            Arc::make_mut(replica).connects = 0;
        }
        assert_eq!(state.ledger.committed.len(), 1, "{state:#?}");
        state
    }
}

/// What the checker has found: how many states there are, how many steps lead to the last of them, and the shortest way that
/// it saw to break a property.
struct Outcome {
    states: usize,
    depth: usize,
    seen: Vec<&'static str>,
    violation: Option<(&'static str, Vec<Action>)>,
}

fn explore(bounds: Bounds, broken: Option<Broken>) -> Outcome {
    let threads = if broken.is_some() { 1 } else { 2 }; // one finds the shortest, or nearly so
    let checker = Cluster { bounds, broken }.checker().threads(threads).finish_when(HasDiscoveries::AnyFailures);
    let checker = checker.spawn_bfs().join();
    let found: Vec<_> = checker.discoveries().into_iter().map(|(name, path)| (name, path.into_actions())).collect();
    let is_violation = |name| checker.model().property(name).expectation == Expectation::Always;
    let (violations, seen): (Vec<_>, Vec<_>) = found.into_iter().partition(|(name, _)| is_violation(name));
    Outcome {
        states: checker.unique_state_count(),
        depth: checker.max_depth() - 1,
        seen: seen.into_iter().map(|(name, _)| name).collect(),
        violation: violations.into_iter().min_by_key(|(_, actions)| actions.len()),
    }
}

/// Nothing breaks a property within `bounds`, and `expected` is among what happens.
fn holds(bounds: Bounds, expected: &[&str]) {
    let Outcome { states, depth, seen, violation } = explore(bounds, None);
    if let Some((property, actions)) = violation {
        panic!("{bounds:?}: not so that {property}, after {} steps:\n{actions:#?}", actions.len());
    }
    println!("{states} states, {depth} steps deep: {bounds:?}");
    let missing: Vec<_> = expected.iter().filter(|name| !seen.contains(name)).collect();
    assert!(missing.is_empty(), "{bounds:?}: never {missing:?}");
}

#[test]
fn elections() {
    holds(CALM, &[FAILOVER, CONFIRM_AFTER]);
    holds(Bounds { publishes: 0, elections: 2, ..CALM }, &[FAILOVER, CONFIRM_AFTER]);
}

#[test]
fn members_leave_and_come_back() {
    holds(Bounds { silences: 1, ..CALM }, &[FAILOVER, CONFIRM_AFTER, JOINS]);
    holds(Bounds { elections: 0, silences: 1, breaks: 1, connects: 2, ..CALM }, &[JOINS]);
}

#[test]
fn answers_are_lost() {
    holds(Bounds { publishes: 0, silences: 1, lost_answers: 1, ..CALM }, &[FAILOVER, CONFIRM_AFTER, JOINS]);
    holds(Bounds { breaks: 1, lost_answers: 1, ..JOINING }, &[JOINS]);
}

#[test]
fn a_newcomer_joins() {
    holds(Bounds { elections: 1, ..JOINING }, &[FAILOVER, CONFIRM_AFTER, JOINS]);
}

#[test]
fn processes_crash() {
    holds(Bounds { crashes: 1, ..CALM }, &[FAILOVER, CONFIRM_AFTER]);
    holds(Bounds { crashes: 1, slow_journals: true, ..PAIR }, &[FAILOVER, CONFIRM_AFTER]);
}

#[test]
fn processes_crash_whose_memory_counts() {
    holds(Bounds { crashes: 1, in_memory: true, ..CALM }, &[FAILOVER, CONFIRM_AFTER]);
}

#[test]
fn disks_are_lost() {
    holds(Bounds { lost_disks: 1, ..CALM }, &[FAILOVER, CONFIRM_AFTER]);
    holds(Bounds { lost_disks: 1, ..JOINING }, &[JOINS]);
}

#[test]
fn the_lease_is_deleted_between_two_elections() {
    holds(Bounds { publishes: 0, elections: 2, deletions: 1, ..PAIR }, &[FAILOVER, CONFIRM_AFTER, RECREATED]);
}

#[test]
fn the_lease_is_deleted_and_somebody_recovers_it() {
    let bounds = Bounds { deletions: 1, recoveries: 1, ..PAIR };
    holds(bounds, &[FAILOVER, CONFIRM_AFTER, RECREATED, RECOVERED]);
    holds(Bounds { publishes: 0, knowing_electors: true, ..bounds }, &[RECREATED, RECOVERED]);
    holds(Bounds { publishes: 0, lost_answers: 1, ..bounds }, &[RECREATED, RECOVERED]);
}

#[test]
fn the_lease_is_deleted_while_a_journal_lags() {
    holds(LAGGING, &[RECREATED, RECOVERED]);
}

#[test]
fn the_lease_is_deleted_twice() {
    let bounds = Bounds { publishes: 0, deletions: 2, recoveries: 2, ..PAIR };
    holds(bounds, &[FAILOVER, CONFIRM_AFTER, RECREATED, RECOVERED]);
}

#[test]
fn the_lease_is_deleted_three_times() {
    let bounds = Bounds { publishes: 0, elections: 0, crashes: 1, deletions: 3, recoveries: 2, ..PAIR };
    holds(bounds, &[FAILOVER, CONFIRM_AFTER, RECREATED, RECOVERED]);
}

/// `BROKEN=TakesLowerEpochs` breaks that rule too, and tells the story of what comes of it.
#[test]
#[ignore = "bounds come from MODEL"]
fn within_other_bounds() {
    let said = |name| std::env::var(name).unwrap_or_default();
    let bounds = CALM.with(&said("MODEL"));
    let broken = Broken::ALL.iter().find(|(_, broken, _)| format!("{broken:?}") == said("BROKEN"));
    let Some((_, broken, _)) = broken else { return holds(bounds, &[]) };
    let Outcome { states, depth, violation, .. } = explore(bounds, Some(*broken));
    println!("{broken:?}: {states} states, {depth} steps deep: {violation:#?}");
}

#[test]
fn each_broken_rule_is_found_out() {
    let mut unnoticed = Vec::new();
    for (rule, broken, bounds) in Broken::ALL {
        let Outcome { states, violation, .. } = explore(bounds, Some(broken));
        match violation {
            Some((property, actions)) => {
                println!("rule {rule}, {broken:?}: not so that {property}, {} steps, {states} states", actions.len());
            }
            None => unnoticed.push((rule, broken, states)),
        }
    }
    assert!(unnoticed.is_empty(), "nothing came of breaking {unnoticed:?}");
}
