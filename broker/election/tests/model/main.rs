//! Every interleaving of a small cluster, within bounds: three replicas, one Lease, elections by anybody at any moment (also
//! on stale reads), crashes, lost disks, acknowledgements that arrive late, swaps whose answer is lost, which take effect
//! late or never.
//!
//! The Lease values are the real ones: an election is [`Lease::elect`], a change of the set [`Lease::with_set`], and whether
//! a replica is the holder, or an entry of a set speaks of it, is asked of the real identities. Logs and commit are modelled,
//! as the rules have them. Not modelled: time, who would be wise to elect, bytes.
//!
//! Invariants, checked in every state: each confirmed value is in the log of every member of the Lease's set whose store (and
//! memory, where the set counts on it) lives; and no epoch has two primaries.
//!
//! Each test named `without_…` breaks one rule and fails unless the explorer finds the loss that the rule prevents.

#![allow(clippy::unwrap_used, reason = "the model fails as a test does")]

mod explorer;
mod world;

use explorer::explore;
use world::{Bounds, Rule};

/// The states seen, within `bounds` and by the rules; panics with the story of a violation.
fn holds(bounds: Bounds) {
    let outcome = explore(bounds, None);
    assert!(outcome.violation.is_none(), "after {} states:\n{}", outcome.states, outcome.story());
    println!("{} states", outcome.states);
}

/// Breaking `rule` must be found out.
fn is_needed(rule: Rule, bounds: Bounds) {
    let outcome = explore(bounds, Some(rule));
    assert!(outcome.violation.is_some(), "{rule:?} was broken in {} states and nothing was lost", outcome.states);
    println!("{} states:\n{}", outcome.states, outcome.story());
}

const SMALL: Bounds =
    Bounds { in_sync: 3, epochs: 2, values: 1, crashes: 0, losses: 0, set_changes: 0, in_memory: false };

/// One replica is not in sync at first.
const CATCHING_UP: Bounds = Bounds { in_sync: 2, set_changes: 1, ..SMALL };

#[test]
fn nothing_confirmed_is_lost_while_the_set_shrinks() {
    holds(Bounds { set_changes: 1, ..SMALL });
}

#[test]
fn nothing_confirmed_is_lost_while_the_set_grows() {
    holds(CATCHING_UP);
}

#[test]
fn nothing_confirmed_is_lost_by_a_lost_disk() {
    holds(Bounds { losses: 1, ..SMALL });
}

#[test]
fn nothing_confirmed_is_lost_by_a_crash() {
    holds(Bounds { crashes: 1, ..SMALL });
}

#[test]
fn nothing_confirmed_is_lost_by_a_crash_that_loses_memory() {
    holds(Bounds { crashes: 1, in_memory: true, ..SMALL });
}

#[test]
#[ignore = "ten million states; run with --release -- --ignored"]
fn nothing_confirmed_is_lost_within_wide_bounds() {
    holds(Bounds { epochs: 3, ..SMALL });
    holds(Bounds { crashes: 1, losses: 1, set_changes: 1, ..SMALL });
    holds(Bounds { crashes: 1, in_memory: true, set_changes: 1, ..SMALL });
}

#[test]
fn nothing_confirmed_is_lost_while_the_set_changes_twice() {
    holds(Bounds { set_changes: 2, ..CATCHING_UP });
}

#[test]
fn without_refusing_lower_epochs() {
    is_needed(Rule::RefuseLowerEpochs, SMALL);
}

#[test]
fn without_shrinking_before_the_confirm() {
    is_needed(Rule::ShrinkBeforeConfirm, Bounds { set_changes: 1, ..SMALL });
}

#[test]
fn without_the_epoch_start_on_a_newcomer() {
    is_needed(Rule::GrowAfterEpochStart, CATCHING_UP);
}

#[test]
fn without_waiting_for_a_newcomer_from_before_the_swap() {
    is_needed(Rule::WaitForNewcomer, CATCHING_UP);
}

#[test]
fn without_counting_both_sets_while_a_swap_is_unknown() {
    is_needed(Rule::UnknownCountsBoth, CATCHING_UP);
}

#[test]
fn without_distrusting_a_read_of_the_old_version() {
    is_needed(Rule::ReadsProveNothing, CATCHING_UP);
}

#[test]
fn without_electing_from_the_set_only() {
    is_needed(Rule::ElectFromTheSet, Bounds { set_changes: 0, ..CATCHING_UP });
}

#[test]
fn without_a_new_identity_for_a_restarted_process() {
    is_needed(Rule::RestartIsNewIdentity, Bounds { crashes: 1, ..CATCHING_UP });
}

#[test]
fn without_a_new_identity_for_a_new_store() {
    is_needed(Rule::NewStoreIsNewIdentity, Bounds { losses: 1, ..SMALL });
}

#[test]
fn without_counting_acknowledgements_for_their_store() {
    is_needed(Rule::AcksCountForTheirStore, Bounds { losses: 1, ..CATCHING_UP });
}

#[test]
fn without_processes_in_the_set_where_memory_counts() {
    is_needed(Rule::ProcessesInSet, Bounds { crashes: 1, in_memory: true, ..SMALL });
}
