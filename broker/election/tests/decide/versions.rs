//! Builds that do not know the cluster's version are not elected; a new cluster begins with what all of its replicas know.

use expect_test::expect;
use understudy_election::{Decision, Lease, Loss, decide};
use understudy_record::version::ClusterVersion;

use crate::case::{Case, healthy, ms};

/// The version of the Lease that is written.
fn written(case: &Case) -> ClusterVersion {
    match decide(ms(case.now_ms), &case.view) {
        Decision::Elect { lease, .. } => Lease::cluster_version(&lease),
        other => panic!("nothing is written: {other:?}"),
    }
}

fn primary_gone() -> Case {
    healthy(&["a", "b", "c"]).gone("a").lost_primary(&["b", "c"], Loss::Reset, 0).at_version(3)
}

#[test]
fn a_build_that_does_not_know_the_version_is_passed_over() {
    let case = primary_gone().builds(&["c"], 3).log_ends("b", 3, 60);
    case.check(expect![[r#"
        elect at version 7: epoch 4 held by c/c/1; in sync: c/c
        PrimaryGone: the process of primary a has ended
    "#]]);
    assert_eq!(written(&case), ClusterVersion(3));
}

#[test]
fn a_member_of_such_a_build_is_waited_for() {
    primary_gone().builds(&["b", "c"], 2).gone("c").check(expect![[r#"
        wait
        InSyncMembersAway: the process of primary a has ended; waits for a (store a) or c (store c) or b (store b), which may hold confirmed messages (the build of b knows versions 1 to 2, the cluster is at version 3: upgrade it to one that knows version 3; a cluster does not go back to an earlier version)
    "#]]);
    primary_gone().builds(&["b", "c"], 2).new_store("c").forced().check(expect![[r#"
        wait
        NobodyToForce: an election was forced, but no replica with a clean store answers; one that is not clean may be named in the annotation understudy.dev/force-primary
    "#]]);
}

#[test]
fn a_new_cluster_begins_with_the_newest_version_that_all_know() {
    let newborn = |newest| healthy(&["a", "b", "c"]).builds(&["a", "b"], 4).builds(&["c"], newest).newborn();
    assert_eq!(written(&newborn(2)), ClusterVersion(2));
    assert_eq!(written(&newborn(4)), ClusterVersion(4));
    let mut apart = newborn(2);
    apart.report("a").knows.oldest = ClusterVersion(3);
    apart.check(expect![[r#"
        wait
        NoCommonVersion: the replicas' builds are too far apart for one cluster: a knows versions 3 to 4, b knows versions 1 to 4, c knows versions 1 to 2
    "#]]);
}

/// Rule 7: the stores remember the version that the deleted Lease had.
#[test]
fn a_lease_is_recovered_at_the_version_of_the_stores() {
    let deleted = || healthy(&["a", "b", "c"]).at_version(3).builds(&["a", "b", "c"], 3).lease_deleted_unseen();
    assert_eq!(written(&deleted()), ClusterVersion(3));
    let mut one_has_heard = deleted();
    one_has_heard.report("a").cluster_version = ClusterVersion(2);
    one_has_heard.report("b").cluster_version = ClusterVersion(2);
    assert_eq!(written(&one_has_heard), ClusterVersion(3));
    deleted().builds(&["a"], 2).check(expect![[r#"
        elect at version 9: epoch 10003 held by b/b/1; in sync: b/b, c/c
        LeaseRecovered: the Lease was deleted; every replica has answered, and the highest log ends at 3:50
    "#]]);
    deleted().builds(&["a"], 2).log_ends("a", 3, 60).check(expect![[r#"
        blocked
        RecoveryUnsafe: the Lease is gone, and so may be confirmed messages that only these had: the build of a knows versions 1 to 2, the cluster is at version 3: upgrade it to one that knows version 3; a cluster does not go back to an earlier version. Bring them back, or, to go on with what the other replicas have, set the annotation understudy.dev/force-recovery
    "#]]);
    deleted().builds(&["a", "b", "c"], 2).check(expect![[r#"
        blocked
        RecoveryUnsafe: the Lease is gone, and so may be confirmed messages that only these had: the build of a knows versions 1 to 2, the cluster is at version 3: upgrade it to one that knows version 3; a cluster does not go back to an earlier version, the build of b knows versions 1 to 2, the cluster is at version 3: upgrade it to one that knows version 3; a cluster does not go back to an earlier version, the build of c knows versions 1 to 2, the cluster is at version 3: upgrade it to one that knows version 3; a cluster does not go back to an earlier version. Bring them back, or, to go on with what the other replicas have, set the annotation understudy.dev/force-recovery
    "#]]);
}
