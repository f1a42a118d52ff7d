//! One seed's run: a storm, then calm in which service must return, then everything is drained and counted.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use understudy_node::{Door, NodeStatus, RoleStatus};

use crate::client::{Client, ClientStep, Kind};
use crate::ledger::{QUEUES, TIMED};
use crate::report::Counts;
use crate::world::{Happening, World};

/// Service must be back, with every replica in the set, so long after the last fault.
const RETURNS_WITHIN: Duration = Duration::from_secs(60);
/// What is left must be drained so long after that.
const DRAINS_WITHIN: Duration = Duration::from_secs(60);
/// Backups have the last records by then.
const SETTLES_WITHIN: Duration = Duration::from_secs(20);

#[derive(Clone, Debug)]
pub struct Failure {
    pub seed: u64,
    pub reason: String,
    /// What happened, line by line, if it was asked for.
    pub story: Vec<String>,
}

#[derive(Clone, Debug)]
pub struct Outcome {
    pub counts: Counts,
    /// Equal for two runs of one seed.
    pub trace: u64,
    pub failure: Option<Failure>,
}

/// Runs one seed. `tells`: with the story.
pub fn run_seed(seed: u64, tells: bool) -> Outcome {
    let mut world = World::new(seed, tells);
    let outcome = catch_unwind(AssertUnwindSafe(|| run(&mut world)));
    let reason = match outcome {
        Ok(Ok(())) => None,
        Ok(Err(reason)) => Some(reason),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            Some(format!("panicked: {}", text.unwrap_or_default()))
        }
    };
    let reason = reason.map(|reason| format!("after {:.3} s: {reason}", world.schedule.now.as_secs_f64()));
    let mut counts = world.counts.clone();
    counts.events = world.schedule.made();
    counts.published = world.ledger.published();
    counts.confirmed = world.ledger.confirmed;
    counts.delivered = world.ledger.delivered;
    counts.redelivered = world.ledger.redelivered;
    counts.settled = world.ledger.settled;
    counts.died = world.ledger.died;
    counts.expired = world.ledger.expired;
    counts.sent_again = world.ledger.sent_again;
    let story = world.story.take().unwrap_or_default();
    Outcome { counts, trace: world.trace, failure: reason.map(|reason| Failure { seed, reason, story }) }
}

fn run(world: &mut World) -> Result<(), String> {
    while world.schedule.now < world.plan.stormy {
        world.step()?;
    }
    world.calm_down();
    let returned = run_until(world, RETURNS_WITHIN, "service has not returned", |world| {
        is_whole(world) && world.clients.iter().all(|client| client.content || client.kind != Kind::Publisher)
    });
    if returned.is_err() && no_member_is_left(world) {
        world.counts.given_up += 1;
        return Ok(());
    }
    returned?;
    for client in 0..world.clients.len() {
        world.stop_client(client);
    }
    run_until(world, SETTLES_WITHIN, "backups do not get what the primary has", are_level)?;
    compare_states(world)?;
    let first = world.clients.len();
    for queue in QUEUES.into_iter().filter(|queue| *queue != TIMED) {
        world.clients.push(Client::new(Kind::Drainer(queue)));
    }
    for client in first..world.clients.len() {
        world.schedule.after(Duration::ZERO, Happening::Client(client, ClientStep::Connect));
    }
    run_until(world, DRAINS_WITHIN, "what is left cannot be drained", |world| {
        world.clients[first..].iter().all(|client| client.content)
    })?;
    world.ledger.check_drained(world.plan.is_fair())
}

fn run_until(
    world: &mut World,
    within: Duration,
    otherwise: &str,
    done: impl Fn(&World) -> bool,
) -> Result<(), String> {
    let deadline = world.schedule.now + within;
    loop {
        // Looking is dearer than a step.
        for _ in 0..50 {
            world.step()?;
        }
        if done(world) {
            return Ok(());
        }
        if world.schedule.now >= deadline {
            let lease = world.api.lease().map(ToString::to_string);
            let places: Vec<_> = statuses(world).map(brief).collect();
            return Err(format!("{otherwise}: Lease {lease:?}, replicas {places:#?}"));
        }
    }
}

/// Faults spare the last copy as far as they can foresee it. An elector that decided by what it had heard a moment before a disk
/// was lost may still have left nobody else in the set: then it is right that everything waits for a person.
fn no_member_is_left(world: &World) -> bool {
    let exists = |store| world.machines.iter().any(|machine| machine.store == Some(store));
    world.api.lease().is_some_and(|lease| !lease.in_sync().iter().any(|member| exists(member.store)))
}

fn statuses(world: &World) -> impl Iterator<Item = Option<NodeStatus>> + '_ {
    world.machines.iter().map(|machine| Some(machine.process.as_ref()?.shared.status.borrow().clone()))
}

fn brief(status: Option<NodeStatus>) -> String {
    let Some(status) = status else { return "no process".into() };
    let (last, committed, failure) = (status.last, status.committed, status.failure);
    let role = match status.role {
        RoleStatus::Backup { primary, lost, clean, catch_up } => {
            let primary = primary.map(|primary| primary.to_string());
            format!("backup of {primary:?}, lost {lost:?}, clean {clean}, catch-up {catch_up:?}")
        }
        RoleStatus::Primary { held, blocked, isolated, .. } => {
            format!("primary, held {held:?}, blocked {blocked:?}, isolated {isolated}")
        }
        other => format!("{other:?}"),
    };
    format!("{} epoch {} last {last} committed {committed}: {role} {failure:?}", status.me, status.epoch)
}

/// One serves, and everybody is in its set.
fn is_whole(world: &World) -> bool {
    let Some(lease) = world.api.lease() else { return false };
    let serving = |machine: &crate::machine::Machine| {
        let process = machine.process.as_ref();
        process.is_some_and(|process| {
            *process.shared.door.borrow() == Door::Here && Some(&process.identity) == lease.holder()
        })
    };
    lease.in_sync().len() == world.machines.len() && world.machines.iter().any(serving)
}

fn are_level(world: &World) -> bool {
    let mut ends = Vec::new();
    for status in statuses(world) {
        let Some(status) = status else { return false };
        if matches!(status.role, RoleStatus::Recovering | RoleStatus::Ended) || status.committed != status.last.index {
            return false;
        }
        ends.push(status.last);
    }
    // A status is a moment old: what counts is the state itself.
    let mut applied =
        world.machines.iter().filter_map(|machine| Some(machine.process.as_ref()?.node.core().last_index()));
    let first = applied.next();
    is_whole(world) && ends.windows(2).all(|pair| pair[0] == pair[1]) && applied.all(|index| Some(index) == first)
}

/// Replicas that have applied the same records are in the same state.
fn compare_states(world: &World) -> Result<(), String> {
    let texts: Vec<String> = world
        .machines
        .iter()
        .filter_map(|machine| Some(machine.process.as_ref()?.node.core().replicated_text()))
        .collect();
    match texts.windows(2).position(|pair| pair[0] != pair[1]) {
        None => Ok(()),
        Some(place) => {
            let different = texts[place].lines().zip(texts[place + 1].lines()).find(|(one, other)| one != other);
            Err(format!("replicas {place} and {} differ at the same record: {different:?}", place + 1))
        }
    }
}
