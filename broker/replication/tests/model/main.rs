//! Every interleaving of a small cluster, within bounds.

#![allow(clippy::unwrap_used, reason = "the model fails as a test does")]

mod cluster;
mod happen;
mod lease_store;
mod replica;
mod rules;
mod steps;

use std::sync::Arc;
use std::time::Instant;

use stateright::{Checker, HasDiscoveries, Model, Property};
use understudy_election::Lease;

use cluster::{Action, Cluster, Ledger, State, Used};
use happen::Step;
use lease_store::LeaseStore;
use replica::{LEASE, Replica};
use rules::{Bounds, Broken};

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

const CALM: Bounds = Bounds {
    in_sync: 3,
    publishes: 1,
    elections: 1,
    silences: 0,
    connects: 1,
    breaks: 0,
    crashes: 0,
    lost_disks: 0,
    lost_answers: 0,
    deletions: 0,
    slow_answers: false,
    slow_journals: false,
    in_memory: false,
};

fn explore(name: &str, bounds: Bounds, broken: Option<Broken>) {
    let started = Instant::now();
    let cluster = Cluster { bounds, broken };
    let threads = if broken.is_some() { 1 } else { 2 };
    let checker = cluster.checker().threads(threads).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let secs = started.elapsed().as_secs_f32();
    println!(
        "{name} {broken:?}: {} unique {} generated, depth {}, {secs:.1}s",
        checker.unique_state_count(),
        checker.state_count(),
        checker.max_depth()
    );
    for (name, path) in checker.discoveries() {
        let actions = path.into_actions();
        println!("   {name} after {}:", actions.len());
        if checker.model().property(name).expectation == stateright::Expectation::Always {
            for action in actions {
                println!("        {action:?}");
            }
        }
    }
}

#[test]
fn calm() {
    explore("calm", CALM, None);
}
#[test]
fn all() {
    let set: std::collections::BTreeMap<String, u8> = std::env::var("M")
        .unwrap_or_default()
        .split(',')
        .filter(|s| !s.is_empty())
        .map(|kv| {
            let (k, v) = kv.split_once('=').unwrap();
            (k.into(), v.parse().unwrap())
        })
        .collect();
    let v = |k: &str, d: u8| set.get(k).copied().unwrap_or(d);
    let bounds = Bounds {
        in_sync: v("s", 3) as usize,
        publishes: v("p", 1),
        elections: v("e", 1),
        silences: v("q", 0),
        connects: v("c", 1),
        breaks: v("b", 0),
        crashes: v("x", 0),
        lost_disks: v("l", 0),
        lost_answers: v("a", 0),
        deletions: v("d", 0),
        slow_answers: v("w", 0) > 0,
        slow_journals: v("j", 0) > 0,
        in_memory: v("m", 0) > 0,
    };
    use Broken::*;
    let all = [
        ElectsOutsiders,
        NewStoreIsOldStore,
        TakesLowerEpochs,
        AcknowledgesBeforeDurable,
        CountsOldSetOnly,
        TakesSilenceForSuccess,
        ReadsSettle,
        AcknowledgementsByName,
        ProcessesNotInSet,
        ShrinksBeforeSwap,
        AdmitsTooEarly,
        KeepsItsTail,
        RecreatesWithoutProof,
        CommitsBeforeOwnWrite,
        RecreatesWithoutGap,
        RecoversWithoutGap,
        RecoversFromOldReports,
        ResumesAfterRestart,
    ];
    let broken = std::env::var("BROKEN").ok().map(|b| *all.iter().find(|x| format!("{x:?}") == b).unwrap());
    explore("all", bounds, broken);
}
