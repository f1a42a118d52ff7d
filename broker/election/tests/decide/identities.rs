//! Names that come back as somebody else.

use expect_test::expect;
use understudy_election::{Lease, LeaseParts, Loss, Register};
use understudy_record::Epoch;

use crate::case::{case, healthy, ms};

/// Case H6: identity is per process start.
#[test]
fn a_restarted_primary_is_elected_anew_or_follows() {
    let case = || healthy(&["a", "b", "c"]).restarted("a").lost_primary(&["b", "c"], Loss::Reset, 990);
    case().check(expect![[r#"
        elect at version 7: epoch 4 held by a/a/2; in sync: a/a, b/b, c/c
        PrimaryRestarted: a was restarted, and a restarted process does not resume as primary
    "#]]);
    case().log_ends("b", 3, 51).check(expect![[r#"
        elect at version 7: epoch 4 held by b/b/1; in sync: a/a, b/b, c/c
        PrimaryRestarted: a was restarted, and a restarted process does not resume as primary
    "#]]);
}

/// Case K21: pod and disk of the primary are deleted.
#[test]
fn a_primary_that_lost_its_disk_is_replaced_and_comes_back_outside_the_set() {
    let case = healthy(&["a", "b", "c"]).new_store("a").lost_primary(&["b", "c"], Loss::Reset, 990);
    case.check(expect![[r#"
        elect at version 7: epoch 4 held by b/b/1; in sync: b/b, c/c
        PrimaryRestarted: a came back with another store, so primary a/a/1 is no more
    "#]]);
}

#[test]
fn a_single_replica_waits_for_its_store_and_is_elected_with_it() {
    healthy(&["a"]).gone("a").check(expect![[r#"
        wait
        InSyncMembersAway: the process of primary a has ended; waits for a (store a), which may hold confirmed messages
    "#]]);
    healthy(&["a"]).restarted("a").check(expect![[r#"
        elect at version 7: epoch 4 held by a/a/2; in sync: a/a
        PrimaryRestarted: a was restarted, and a restarted process does not resume as primary
    "#]]);
    healthy(&["a"]).new_store("a").check(expect![[r#"
        blocked
        NoInSyncMemberLeft: a came back with another store, so primary a/a/1 is no more; nobody is left who had every confirmed message: a lost store a and came back with 9a. Bring one back with its store, or, to go on with what the other replicas have, set the annotation understudy.dev/force-recovery
    "#]]);
}

/// `durability: Replicated`: what was acknowledged is in memory only.
#[test]
fn processes_that_restarted_have_lost_what_they_held_in_memory() {
    let case = || case(&["a", "b", "c"], true);
    case().restarted("a").lost_primary(&["b", "c"], Loss::Reset, 990).check(expect![[r#"
        elect at version 7: epoch 4 held by b/b/1; in sync: b/b/1, c/c/1
        PrimaryRestarted: a was restarted, and a restarted process does not resume as primary
    "#]]);
    case().restarted("a").restarted("b").restarted("c").check(expect![[r#"
        blocked
        NoInSyncMemberLeft: a was restarted, and a restarted process does not resume as primary; nobody is left who had every confirmed message: a was restarted and lost what it had in memory, b was restarted and lost what it had in memory, c was restarted and lost what it had in memory. Bring one back with its store, or, to go on with what the other replicas have, set the annotation understudy.dev/force-recovery
    "#]]);
    case().restarted("a").restarted("b").restarted("c").forced().check(expect![[r#"
        elect at version 7: epoch 4 held by a/a/2; in sync: a/a/2, b/b/2, c/c/2
        Forced: forced by a person; a goes on from 3:50; what may be lost: a was restarted and lost what it had in memory; b was restarted and lost what it had in memory; c was restarted and lost what it had in memory
    "#]]);
}

#[test]
fn a_vacant_lease_is_taken_at_once() {
    let mut case = healthy(&["a", "b"]);
    let Register::Held(observed) = &mut case.view.register else { panic!("no Lease in this case") };
    observed.lease = Lease::from_parts(LeaseParts {
        holder: None,
        epoch: Epoch(3),
        given: None,
        in_sync: observed.lease.in_sync().clone(),
        duration: ms(5_000),
        cluster_version: observed.lease.cluster_version(),
        renewed: None,
    })
    .unwrap();
    case.check(expect![[r#"
        elect at version 7: epoch 4 held by a/a/1; in sync: a/a, b/b
        NoHolder: the Lease names no primary
    "#]]);
}
