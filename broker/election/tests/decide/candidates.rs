//! Who is elected, once somebody must be.

use expect_test::expect;
use understudy_election::Loss;

use crate::case::{Case, healthy};

fn dead_primary() -> Case {
    healthy(&["a", "b", "c"]).gone("a").lost_primary(&["b", "c"], Loss::Reset, 990)
}

#[test]
fn the_highest_log_then_the_preferred_then_the_first_name() {
    dead_primary().check(expect![[r#"
        elect at version 7: epoch 4 held by b/b/1; in sync: b/b, c/c
        PrimaryGone: the process of primary a has ended
    "#]]);
    dead_primary().preferring("c").check(expect![[r#"
        elect at version 7: epoch 4 held by c/c/1; in sync: b/b, c/c
        PrimaryGone: the process of primary a has ended
    "#]]);
    dead_primary().preferring("c").log_ends("b", 3, 51).check(expect![[r#"
        elect at version 7: epoch 4 held by b/b/1; in sync: b/b, c/c
        PrimaryGone: the process of primary a has ended
    "#]]);
}

/// Case K18: however long the log of an outdated replica looks, it is not in the set.
#[test]
fn never_one_outside_the_set() {
    dead_primary().in_sync(&["a", "b"]).log_ends("c", 3, 99).check(expect![[r#"
        elect at version 7: epoch 4 held by b/b/1; in sync: b/b
        PrimaryGone: the process of primary a has ended
    "#]]);
    dead_primary().in_sync(&["a"]).log_ends("c", 3, 99).check(expect![[r#"
        wait
        InSyncMembersAway: the process of primary a has ended; waits for a (store a), which may hold confirmed messages
    "#]]);
}

#[test]
fn never_one_with_a_dirty_store() {
    dead_primary().dirty("b").check(expect![[r#"
        elect at version 7: epoch 4 held by c/c/1; in sync: c/c
        PrimaryGone: the process of primary a has ended
    "#]]);
    dead_primary().dirty("b").dirty("c").new_store("a").check(expect![[r#"
        blocked
        NoInSyncMemberLeft: a came back with another store, so primary a/a/1 is no more; nobody is left who had every confirmed message: a lost store a and came back with 9a, b has a damaged or unfinished store, c has a damaged or unfinished store. Bring one back with its store, or, to go on with what the other replicas have, set the annotation understudy.dev/force-recovery
    "#]]);
}

#[test]
fn members_that_are_not_reached_leave_the_set() {
    dead_primary().reset("c").check(expect![[r#"
        elect at version 7: epoch 4 held by b/b/1; in sync: b/b
        PrimaryGone: the process of primary a has ended
    "#]]);
}

#[test]
fn a_replica_that_the_spec_no_longer_has_only_if_there_is_no_other() {
    dead_primary().scaled_down("b").log_ends("b", 3, 51).check(expect![[r#"
        elect at version 7: epoch 4 held by c/c/1; in sync: b/b, c/c
        PrimaryGone: the process of primary a has ended
    "#]]);
    dead_primary().scaled_down("b").reset("c").check(expect![[r#"
        elect at version 7: epoch 4 held by b/b/1; in sync: b/b
        PrimaryGone: the process of primary a has ended
    "#]]);
    dead_primary().scaled_down("b").gone("b").new_store("a").new_store("c").check(expect![[r#"
        blocked
        NoInSyncMemberLeft: a came back with another store, so primary a/a/1 is no more; nobody is left who had every confirmed message: a lost store a and came back with 9a, b was removed from the cluster, c lost store c and came back with 9c. Bring one back with its store, or, to go on with what the other replicas have, set the annotation understudy.dev/force-recovery
    "#]]);
}

#[test]
fn when_nobody_of_the_set_answers_it_waits_for_those_that_may_come_back() {
    dead_primary().in_sync(&["a", "b"]).reset("b").check(expect![[r#"
        wait
        InSyncMembersAway: the process of primary a has ended; waits for a (store a) or b (store b), which may hold confirmed messages
    "#]]);
    dead_primary().in_sync(&["a", "b"]).new_store("b").check(expect![[r#"
        wait
        InSyncMembersAway: the process of primary a has ended; waits for a (store a), which may hold confirmed messages (b lost store b and came back with 9b)
    "#]]);
    dead_primary().in_sync(&["a", "b"]).new_store("a").new_store("b").check(expect![[r#"
        blocked
        NoInSyncMemberLeft: a came back with another store, so primary a/a/1 is no more; nobody is left who had every confirmed message: a lost store a and came back with 9a, b lost store b and came back with 9b. Bring one back with its store, or, to go on with what the other replicas have, set the annotation understudy.dev/force-recovery
    "#]]);
}

#[test]
fn a_person_may_force_the_highest_log_that_is_left() {
    let lost = || dead_primary().in_sync(&["a", "b"]).new_store("a").new_store("b").log_ends("c", 3, 40);
    lost().forced().check(expect![[r#"
        elect at version 7: epoch 4 held by c/c/1; in sync: c/c
        Forced: forced by a person; c goes on from 3:40; what may be lost: a lost store a and came back with 9a; b lost store b and came back with 9b
    "#]]);
    lost().forced().dirty("c").check(expect![[r#"
        elect at version 7: epoch 4 held by a/9a/2; in sync: a/9a, b/9b
        Forced: forced by a person; a goes on from 0:0; what may be lost: c has at least 40 records more, up to 3:40; a lost store a and came back with 9a; b lost store b and came back with 9b
    "#]]);
}

#[test]
fn force_is_not_used_while_a_member_can_be_elected() {
    dead_primary().forced().check(expect![[r#"
        elect at version 7: epoch 4 held by b/b/1; in sync: b/b, c/c
        PrimaryGone: the process of primary a has ended
    "#]]);
    healthy(&["a", "b", "c"]).forced().check(expect![[r#"
        wait
        PrimaryHealthy: primary a is heard
    "#]]);
}
