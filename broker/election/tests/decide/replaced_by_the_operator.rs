//! What the operator acts upon.

use expect_test::expect;
use understudy_election::{Contact, Loss, Role};
use understudy_record::Epoch;

use crate::case::{RENEWED, healthy, ms};

#[test]
fn nobody_while_all_is_well() {
    healthy(&["a", "b", "c"]).check(expect![[r#"
        wait
        PrimaryHealthy: primary a is heard
    "#]]);
}

#[test]
fn a_primary_whose_process_was_seen_to_exit() {
    let case = healthy(&["a", "b", "c"]).gone("a").lost_primary(&["b", "c"], Loss::Reset, 990);
    case.check(expect![[r#"
        elect at version 7: epoch 4 held by b/b/1; in sync: b/b, c/c
        PrimaryGone: the process of primary a has ended
    "#]]);
}

#[test]
fn a_primary_that_two_witnesses_have_lost() {
    let case = healthy(&["a", "b", "c"]).reset("a").lost_primary(&["b", "c"], Loss::Reset, 990);
    case.check(expect![[r#"
        elect at version 7: epoch 4 held by b/b/1; in sync: b/b, c/c
        PrimaryLost: the elector and b have both lost primary a
    "#]]);
}

/// The elector and one backup may sit behind the same broken link: on one node, in one zone.
#[test]
fn a_primary_that_two_witnesses_have_lost_is_left_while_a_third_member_hears_it() {
    let case = || healthy(&["a", "b", "c"]).reset("a").lost_primary(&["c"], Loss::Reset, 990);
    case().check(expect![[r#"
        wait until +5000
        PrimaryStillHeard: b still hears primary a
    "#]]);
    let silent = case().silent_since("b", 990);
    silent.check(expect![[r#"
        elect at version 7: epoch 4 held by c/c/1; in sync: c/c
        PrimaryLost: the elector and c have both lost primary a
    "#]]);
    case().at(5_000).check(expect![[r#"
        elect at version 7: epoch 4 held by b/b/1; in sync: b/b, c/c
        LeaseExpired: primary a is not heard and has not renewed its Lease for 5000 ms
    "#]]);
}

#[test]
fn a_primary_that_only_the_operator_has_lost_is_left() {
    let case = healthy(&["a", "b", "c"]).reset("a");
    case.check(expect![[r#"
        wait until +5000
        PrimaryStillHeard: b still hears primary a
    "#]]);
}

#[test]
fn a_primary_that_only_a_backup_has_lost_is_left() {
    let case = healthy(&["a", "b", "c"]).lost_primary(&["b", "c"], Loss::Reset, 990);
    case.check(expect![[r#"
        wait until +5990
        PrimaryHealthy: primary a is heard
    "#]]);
}

#[test]
fn silence_counts_after_the_backup_timeout() {
    let frozen = || healthy(&["a", "b", "c"]).silent_since("a", 500).lost_primary(&["b", "c"], Loss::Silent, 700);
    frozen().at(2_000).check(expect![[r#"
        wait until +2700
        PrimaryNotHeard: primary a is not heard, but its Lease has not run out
    "#]]);
    frozen().at(2_699).check(expect![[r#"
        wait until +2700
        PrimaryNotHeard: primary a is not heard, but its Lease has not run out
    "#]]);
    frozen().at(2_700).check(expect![[r#"
        elect at version 7: epoch 4 held by b/b/1; in sync: b/b, c/c
        PrimaryLost: the elector and b have both lost primary a
    "#]]);
}

#[test]
fn a_witness_of_an_earlier_epoch_says_nothing_about_this_primary() {
    let earlier = Role::Lost { epoch: Epoch(2), since: ms(RENEWED), how: Loss::Reset };
    healthy(&["a", "b", "c"]).reset("a").role("b", earlier).role("c", Role::Idle).check(expect![[r#"
        wait until +5000
        PrimaryNotHeard: primary a is not heard, but its Lease has not run out
    "#]]);
}

#[test]
fn a_witness_outside_the_set_does_not_count() {
    let case = healthy(&["a", "b", "c"]).in_sync(&["a", "b"]).reset("a").lost_primary(&["c"], Loss::Reset, 990);
    case.check(expect![[r#"
        wait until +5000
        PrimaryStillHeard: b still hears primary a
    "#]]);
}

#[test]
fn a_primary_that_was_never_heard_once_its_lease_has_run_out() {
    let case = || {
        let case = healthy(&["a", "b", "c"]).contact("a", Contact::Unknown);
        case.role("b", Role::Idle).role("c", Role::Idle)
    };
    case().at(4_999).check(expect![[r#"
        wait until +5000
        PrimaryNotHeard: primary a is not heard, but its Lease has not run out
    "#]]);
    case().at(5_000).check(expect![[r#"
        elect at version 7: epoch 4 held by b/b/1; in sync: b/b, c/c
        LeaseExpired: primary a is not heard and has not renewed its Lease for 5000 ms
    "#]]);
}

#[test]
fn a_primary_whose_journal_stands_still() {
    let stalled = |for_ms| {
        let role = Role::Primary { epoch: Epoch(3), stalled_for: ms(for_ms) };
        healthy(&["a", "b", "c"]).role("a", role)
    };
    stalled(9_999).check(expect![[r#"
        wait
        PrimaryHealthy: primary a is heard
    "#]]);
    stalled(10_000).check(expect![[r#"
        elect at version 7: epoch 4 held by b/b/1; in sync: b/b, c/c
        JournalStalled: the journal of primary a has made no progress for 10000 ms
    "#]]);
    stalled(10_000).in_sync(&["a"]).check(expect![[r#"
        wait
        InSyncMembersAway: the journal of primary a has made no progress for 10000 ms; waits for a (store a), which may hold confirmed messages
    "#]]);
}

#[test]
fn a_holder_that_answers_but_never_takes_its_role() {
    let case = || healthy(&["a", "b", "c"]).role("a", Role::Idle);
    case().at(4_999).check(expect![[r#"
        wait until +5000
        PrimaryHealthy: primary a is heard
    "#]]);
    case().at(5_000).check(expect![[r#"
        elect at version 7: epoch 4 held by b/b/1; in sync: b/b, c/c
        PrimaryNotServing: a holds the Lease and answers, but neither renews it nor acts as primary
    "#]]);
}

#[test]
fn a_deleted_pod_that_backups_still_hear_is_left_until_they_have_lost_it() {
    let case = || healthy(&["a", "b", "c"]).gone("a");
    case().check(expect![[r#"
        wait until +5000
        PrimaryStillHeard: b still hears primary a
    "#]]);
    case().lost_primary(&["b", "c"], Loss::Reset, 990).check(expect![[r#"
        elect at version 7: epoch 4 held by b/b/1; in sync: b/b, c/c
        PrimaryGone: the process of primary a has ended
    "#]]);
}
