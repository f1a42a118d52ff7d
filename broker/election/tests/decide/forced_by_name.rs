//! A person names who goes on, and takes the loss; the reason says what it may be.

use expect_test::expect;
use understudy_election::{Contact, Loss};

use crate::case::{Case, RENEWED, healthy, ms};

/// `c` was away while `a` and `b` went on; then both died.
fn stale_c() -> Case {
    let case = healthy(&["a", "b", "c"]).in_sync(&["a", "b"]).log_ends("c", 3, 40);
    case.gone("a").reset("b").lost_primary(&["c"], Loss::Reset, 900)
}

#[test]
fn a_stale_replica_is_elected_by_name_only_and_what_others_have_more_is_told() {
    stale_c().check(expect![[r#"
        wait
        InSyncMembersAway: the process of primary a has ended; waits for a (store a) or b (store b), which may hold confirmed messages
    "#]]);
    stale_c().forcing("c").check(expect![[r#"
        elect at version 7: epoch 4 held by c/c/1; in sync: c/c
        Forced: forced by a person; c goes on from 3:40; what may be lost: a has 10 records more, up to 3:50 (it does not answer); b has 10 records more, up to 3:50 (last heard 0.1 s ago)
    "#]]);
}

#[test]
fn one_that_does_not_answer_cannot_be_forced() {
    stale_c().contact("c", Contact::Unknown).forcing("c").check(expect![[r#"
        wait
        ForcedUnheard: the election of c was forced, but it does not answer
    "#]]);
}

/// Nor does it keep others from being elected without a loss.
#[test]
fn one_that_does_not_answer_stands_in_nobodys_way() {
    let dead = || healthy(&["a", "b", "c"]).gone("a").lost_primary(&["b", "c"], Loss::Reset, 900);
    dead().forcing("a").check(expect![[r#"
        elect at version 7: epoch 4 held by b/b/1; in sync: b/b, c/c
        PrimaryGone: the process of primary a has ended
    "#]]);
    dead().in_sync(&["a", "b"]).reset("c").forcing("c").check(expect![[r#"
        elect at version 7: epoch 4 held by b/b/1; in sync: b/b
        PrimaryGone: the process of primary a has ended
    "#]]);
}

#[test]
fn a_damaged_store_may_be_named_and_is_alone_in_its_set() {
    let lost = || healthy(&["a", "b", "c"]).restarted("a").lost_primary(&["b", "c"], Loss::Reset, 900);
    let all_damaged = || lost().dirty("a").dirty("b").dirty("c");
    all_damaged().check(expect![[r#"
        blocked
        NoInSyncMemberLeft: a was restarted, and a restarted process does not resume as primary; nobody is left who had every confirmed message: a has a damaged or unfinished store, b has a damaged or unfinished store, c has a damaged or unfinished store. Bring one back with its store, or, to go on with what the other replicas have, set the annotation understudy.dev/force-recovery
    "#]]);
    all_damaged().forced().check(expect![[r#"
        wait
        NobodyToForce: an election was forced, but no replica with a clean store answers; one that is not clean may be named in the annotation understudy.dev/force-primary
    "#]]);
    all_damaged().forcing("b").check(expect![[r#"
        elect at version 7: epoch 4 held by b/b/1; in sync: b/b
        Forced: forced by a person; b goes on from 3:50; what may be lost: what cannot be read in the damaged or unfinished store of b; a has a damaged or unfinished store; c has a damaged or unfinished store
    "#]]);
}

#[test]
fn a_log_of_an_earlier_epoch_may_have_parted_before_its_end() {
    stale_c().log_ends("c", 2, 45).forcing("c").check(expect![[r#"
        elect at version 7: epoch 4 held by c/c/1; in sync: c/c
        Forced: forced by a person; c goes on from 2:45; what may be lost: a has at least 5 records more, up to 3:50 (it does not answer); b has at least 5 records more, up to 3:50 (last heard 0.1 s ago)
    "#]]);
}

#[test]
fn a_member_of_the_set_loses_nothing_and_takes_the_others_along() {
    healthy(&["a", "b", "c"]).gone("a").lost_primary(&["b", "c"], Loss::Reset, 900).forcing("c").check(expect![[r#"
        elect at version 7: epoch 4 held by c/c/1; in sync: b/b, c/c
        Forced: forced by a person; c goes on from 3:50; what may be lost: nothing that is known
    "#]]);
}

#[test]
fn a_serving_primary_does_not_stand_in_the_way_and_is_not_forced_itself() {
    healthy(&["a", "b", "c"]).in_sync(&["a", "b"]).log_ends("c", 3, 40).forcing("c").check(expect![[r#"
        elect at version 7: epoch 4 held by c/c/1; in sync: c/c
        Forced: forced by a person; c goes on from 3:40; what may be lost: a has 10 records more, up to 3:50; b has 10 records more, up to 3:50
    "#]]);
    healthy(&["a", "b", "c"]).forcing("a").check(expect![[r#"
        wait
        PrimaryHealthy: primary a is heard
    "#]]);
}

#[test]
fn without_a_lease_too() {
    let deleted = || healthy(&["a", "b", "c"]).lease_deleted().dirty("a").dirty("b").log_ends("b", 3, 60).dirty("c");
    deleted().forcing("c").check(expect![[r#"
        elect at version 9: epoch 10003 held by c/c/1; in sync: c/c
        Forced: forced by a person; not waited for: nobody; c goes on from 3:50; what may be lost: what cannot be read in the damaged or unfinished store of c; b has 10 records more, up to 3:60; b has a damaged or unfinished store
    "#]]);
    let silent = Contact::Lost { since: ms(RENEWED - 40_000), how: Loss::Silent };
    let stale = healthy(&["a", "b", "c"]).lease_deleted().contact("a", silent).log_ends("c", 3, 20);
    stale.forcing("c").check(expect![[r#"
        elect at version 9: epoch 10003 held by c/c/1; in sync: c/c
        Forced: forced by a person; not waited for: a; c goes on from 3:20; what may be lost: a has 30 records more, up to 3:50 (last heard 41.0 s ago); b has 30 records more, up to 3:50
    "#]]);
}
