//! What a backup acts upon, with no operator to help.

use expect_test::expect;
use understudy_election::{Contact, Decision, Elector, Lease, LeaseParts, Loss, Register, Renewal, Role, decide};

use crate::case::{RENEWED, healthy, ms};

#[test]
fn nobody_before_the_lease_has_run_out() {
    let case = || healthy(&["a", "b", "c"]).by_backup("b").reset("a").lost_primary(&["b", "c"], Loss::Reset, 990);
    case().at(4_999).check(expect![[r#"
        wait until +5000
        PrimaryNotHeard: primary a is not heard, but its Lease has not run out
    "#]]);
    case().at(5_000).check(expect![[r#"
        elect at version 7: epoch 4 held by b/b/1; in sync: b/b, c/c
        LeaseExpired: primary a is not heard and has not renewed its Lease for 5000 ms
    "#]]);
}

/// Case K5: the clocks of writer and reader are never compared. The primary renews by a clock that is an hour ahead or
/// behind; all that counts is when this backup last saw a change.
#[test]
fn nobody_while_renewals_are_seen_whatever_the_clocks_say() {
    for skew_us in [-3_600_000_000, 0, 3_600_000_000] {
        let mut case = healthy(&["a", "b", "c"]).by_backup("b").reset("a").lost_primary(&["b"], Loss::Reset, 990);
        let Register::Held(observed) = &mut case.view.register else { panic!("no Lease in this case") };
        let lease = observed.lease.clone();
        observed.lease = Lease::from_parts(LeaseParts {
            holder: lease.holder().cloned(),
            epoch: lease.epoch(),
            given: None,
            in_sync: lease.in_sync().clone(),
            duration: lease.duration(),
            cluster_version: lease.cluster_version(),
            renewed: Some(Renewal(RENEWED as i64 * 1_000 + skew_us)),
        })
        .unwrap();
        let before = decide(ms(RENEWED + 4_999), &case.view);
        assert!(matches!(before, Decision::Wait { .. }), "skew {skew_us}: {before:?}");
        let after = decide(ms(RENEWED + 5_000), &case.view);
        assert!(matches!(after, Decision::Elect { .. }), "skew {skew_us}: {after:?}");
    }
}

/// Case K6, rule 6: a long outage of the API server, hours after the last renewal.
#[test]
fn never_one_that_this_backup_hears() {
    healthy(&["a", "b", "c"]).by_backup("b").at(7_200_000).check(expect![[r#"
        wait
        PrimaryStillHeard: b still hears primary a
    "#]]);
}

/// Rule 6: the primary cannot commit without `b`, nor shrink the set without the Lease.
#[test]
fn one_that_another_backup_hears_once_its_lease_has_run_out() {
    let case = || healthy(&["a", "b", "c"]).by_backup("b").contact("a", Contact::Unknown);
    case().lost_primary(&["b"], Loss::Silent, 0).at(5_000).check(expect![[r#"
        elect at version 7: epoch 4 held by b/b/1; in sync: b/b, c/c
        LeaseExpired: primary a is not heard and has not renewed its Lease for 5000 ms
    "#]]);
}

#[test]
fn nobody_by_a_backup_that_is_not_in_sync() {
    let case = healthy(&["a", "b", "c"]).in_sync(&["a", "b"]).by_backup("c").reset("a");
    case.lost_primary(&["b", "c"], Loss::Reset, 990).at(60_000).check(expect![[r#"
        wait
        NotInSync: c is not in sync: it waits for a (store a) or b (store b), which may hold confirmed messages
    "#]]);
}

#[test]
fn nobody_by_the_holder_itself() {
    healthy(&["a", "b", "c"]).by_backup("a").role("a", Role::Idle).at(60_000).check(expect![[r#"
        wait
        PrimaryHealthy: primary a is heard
    "#]]);
}

/// Case H6, without an operator: the process that came back under the primary's name stands at once, if the others can
/// stay in the set.
#[test]
fn a_primary_that_restarted_within_its_lease() {
    let restarted = |others: Contact| {
        let case = healthy(&["a", "b", "c"]).restarted("a").lost_primary(&["b", "c"], Loss::Reset, 990);
        let mut case = case.contact("b", others).contact("c", others);
        case.view.elector = Elector::Backup(case.report("a").identity.clone());
        case
    };
    restarted(Contact::Reachable).check(expect![[r#"
        elect at version 7: epoch 4 held by a/a/2; in sync: a/a, b/b, c/c
        PrimaryRestarted: a was restarted, and a restarted process does not resume as primary
    "#]]);
    restarted(Contact::Unknown).check(expect![[r#"
        wait until +5000
        PrimaryEnded: primary a has ended; waiting to hear b, c
    "#]]);
    restarted(Contact::Unknown).at(5_000).check(expect![[r#"
        elect at version 7: epoch 4 held by a/a/2; in sync: a/a
        PrimaryRestarted: a was restarted, and a restarted process does not resume as primary
    "#]]);
}
