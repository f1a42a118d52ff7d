//! Manual promotion, and replicas that a person keeps out.

use expect_test::expect;
use understudy_election::{Loss, Promotion};

use crate::case::{Case, healthy, name};

fn manual(to: Option<&str>) -> Case {
    let mut case = healthy(&["a", "b", "c"]).gone("a").lost_primary(&["b", "c"], Loss::Reset, 990);
    case.view.spec.promotion = Promotion::Manual { to: to.map(name) };
    case
}

#[test]
fn nobody_is_elected_whom_nobody_has_named() {
    manual(None).check(expect![[r#"
        blocked
        AwaitsPromotion: the process of primary a has ended; promotion is manual: name one of b, c in the annotation understudy.dev/switchover
    "#]]);
    manual(None).by_backup("b").at(60_000).check(expect![[r#"
        blocked
        AwaitsPromotion: the process of primary a has ended; promotion is manual: name one of b, c in the annotation understudy.dev/switchover
    "#]]);
    manual(Some("d")).check(expect![[r#"
        blocked
        AwaitsPromotion: the process of primary a has ended; promotion is manual: name one of b, c in the annotation understudy.dev/switchover (d, which it names, is not among them)
    "#]]);
}

#[test]
fn who_is_named_is_elected_if_it_is_in_the_set() {
    manual(Some("c")).check(expect![[r#"
        elect at version 7: epoch 4 held by c/c/1; in sync: b/b, c/c
        PrimaryGone: the process of primary a has ended
    "#]]);
}

/// As long as there is nothing to decide nobody is asked.
#[test]
fn a_primary_that_serves_stays() {
    let mut case = healthy(&["a", "b", "c"]);
    case.view.spec.promotion = Promotion::Manual { to: Some(name("c")) };
    case.check(expect![[r#"
        wait
        PrimaryHealthy: primary a is heard
    "#]]);
}

/// Neither elected nor kept in the set.
#[test]
fn who_is_fenced_is_passed_over() {
    let case = || healthy(&["a", "b", "c"]).gone("a").lost_primary(&["b", "c"], Loss::Reset, 990);
    let mut one = case();
    one.view.spec.fenced = [name("b")].into();
    one.check(expect![[r#"
        elect at version 7: epoch 4 held by c/c/1; in sync: c/c
        PrimaryGone: the process of primary a has ended
    "#]]);
    let mut all = case();
    all.view.spec.fenced = [name("b"), name("c")].into();
    all.check(expect![[r#"
        wait
        InSyncMembersAway: the process of primary a has ended; waits for a (store a) or b (store b) or c (store c), which may hold confirmed messages
    "#]]);
}
