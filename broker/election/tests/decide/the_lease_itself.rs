//! Leases that are not there yet, late, or at their end.

use expect_test::expect;
use understudy_election::{Lease, LeaseParts, Loss, Register};
use understudy_record::Epoch;

use crate::case::{healthy, ms};

#[test]
fn is_read_before_anything_else() {
    let mut case = healthy(&["a", "b", "c"]).gone("a");
    case.view.register = Register::Unread;
    case.check(expect![[r#"
        wait
        LeaseUnread: the Lease has not been read yet
    "#]]);
}

#[test]
fn is_behind_what_replicas_know_for_a_moment_or_was_put_back() {
    let case = || {
        let mut case = healthy(&["a", "b", "c"]).gone("a");
        case.report("b").known_epoch = Epoch(5);
        case
    };
    case().check(expect![[r#"
        wait until +5000
        LeaseBehind: the Lease as seen here has epoch 3, and b knows 5: waiting for the newer Lease
    "#]]);
    case().at(5_000).check(expect![[r#"
        blocked
        LeaseWentBack: the Lease stands at epoch 3, but b knows epoch 5: it was put back to an older state. Delete it, and it is recovered from the replicas' logs
    "#]]);
}

#[test]
fn has_no_epoch_after_the_last() {
    let mut case = healthy(&["a", "b", "c"]).gone("a").lost_primary(&["b", "c"], Loss::Reset, 0);
    let Register::Held(observed) = &mut case.view.register else { panic!("no Lease in this case") };
    observed.lease = Lease::from_parts(LeaseParts {
        holder: observed.lease.holder().cloned(),
        epoch: Epoch(u64::MAX),
        given: None,
        in_sync: observed.lease.in_sync().clone(),
        duration: ms(5_000),
        cluster_version: observed.lease.cluster_version(),
        renewed: None,
    })
    .unwrap();
    case.check(expect![[r#"
        blocked
        LeaseUnswappable: the next Lease cannot be written: there is no epoch after 18446744073709551615
    "#]]);
}
