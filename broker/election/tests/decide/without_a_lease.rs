//! A new cluster, and one whose Lease was deleted: in its place is none yet, or a blank one (rule 7).

use expect_test::expect;
use understudy_election::{Contact, Incarnation, Register, Role};
use understudy_record::Epoch;

use crate::case::{Case, case, healthy, identity};

#[test]
fn a_new_cluster_begins_once_every_replica_has_answered() {
    let newborn = || healthy(&["a", "b", "c"]).newborn();
    newborn().contact("c", Contact::Unknown).check(expect![[r#"
        wait
        ReplicasUnheard: nothing stands in the Lease; somebody is elected once these have answered too: c
    "#]]);
    newborn().check(expect![[r#"
        elect at version 9: epoch 1 held by a/a/1; in sync: a/a, b/b, c/c
        NewCluster: a new cluster: every replica has answered, and all are empty
    "#]]);
    newborn().preferring("b").by_backup("c").check(expect![[r#"
        elect at version 9: epoch 1 held by b/b/1; in sync: a/a, b/b, c/c
        NewCluster: a new cluster: every replica has answered, and all are empty
    "#]]);
}

#[test]
fn a_living_primary_writes_it_anew() {
    let case = healthy(&["a", "b", "c"]).lease_deleted();
    case.role("b", Role::Hears { epoch: Epoch(3) }).check(expect![[r#"
        wait
        PrimaryRecreatesLease: the Lease is gone, but b knows a living primary of epoch 3, which writes it anew
    "#]]);
}

/// Rule 7.
#[test]
fn otherwise_the_highest_log_of_all_replicas() {
    let case = || healthy(&["a", "b", "c"]).log_ends("b", 3, 60).log_ends("a", 2, 90);
    case().lease_deleted().check(expect![[r#"
        elect at version 9: epoch 10003 held by b/b/1; in sync: b/b
        LeaseRecovered: the Lease was deleted; every replica has answered, and the highest log ends at 3:60
    "#]]);
    case().lease_deleted_unseen().check(expect![[r#"
        elect at version 9: epoch 10003 held by b/b/1; in sync: b/b
        LeaseRecovered: the Lease was deleted; every replica has answered, and the highest log ends at 3:60
    "#]]);
    case().lease_deleted().reset("a").check(expect![[r#"
        wait
        ReplicasUnheard: nothing stands in the Lease; somebody is elected once these have answered too: a
    "#]]);
}

/// Rule 7: what a replica said before it knew that the Lease is gone may be of before it led by it. Another blank Lease that
/// it has seen proves nothing: by that one, too, it may have been elected and led.
#[test]
fn only_the_word_of_a_replica_that_sees_this_very_blank_lease_counts() {
    let seeing = |seen: Option<&str>| {
        let mut case = healthy(&["a", "b", "c"]).lease_deleted();
        case.report("b").blank_seen = seen.map(Incarnation::new);
        case
    };
    seeing(None).check(expect![[r#"
        wait
        ReplicasUnheard: nothing stands in the Lease; somebody is elected once these have answered too: b
    "#]]);
    seeing(Some("1")).check(expect![[r#"
        wait
        ReplicasUnheard: nothing stands in the Lease; somebody is elected once these have answered too: b
    "#]]);
}

/// Rule 7: a creation may take effect late, so it says nothing. It waits for those whom the first content would wait for.
#[test]
fn a_blank_lease_is_created_once_somebody_could_be_elected_in_it() {
    let case = || healthy(&["a", "b", "c"]).lease_deleted().none_created();
    case().check(expect![[r#"
        create a blank Lease, for a/a/1
        LeaseRecovered: the Lease was deleted; every replica has answered, and the highest log ends at 3:50
    "#]]);
    case().by_backup("b").check(expect![[r#"
        create a blank Lease, for a/a/1
        LeaseRecovered: the Lease was deleted; every replica has answered, and the highest log ends at 3:50
    "#]]);
    case().reset("c").check(expect![[r#"
        wait
        ReplicasUnheard: nothing stands in the Lease; somebody is elected once these have answered too: c
    "#]]);
    case().role("b", Role::Hears { epoch: Epoch(3) }).check(expect![[r#"
        wait
        PrimaryRecreatesLease: the Lease is gone, but b knows a living primary of epoch 3, which writes it anew
    "#]]);
    case().new_store("a").check(expect![[r#"
        blocked
        RecoveryUnsafe: the Lease is gone, and so may be confirmed messages that only these had: a lost store a and came back with 9a. Bring them back, or, to go on with what the other replicas have, set the annotation understudy.dev/force-recovery
    "#]]);
    case().new_store("a").forced().check(expect![[r#"
        create a blank Lease, for b/b/1
        Forced: forced by a person; not waited for: nobody; b goes on from 3:50; what may be lost: a lost store a and came back with 9a
    "#]]);
    healthy(&["a", "b", "c"]).newborn().none_created().check(expect![[r#"
        create a blank Lease, for a/a/1
        NewCluster: a new cluster: every replica has answered, and all are empty
    "#]]);
}

#[test]
fn logs_that_end_alike_are_alike_and_stay_in_the_set() {
    healthy(&["a", "b", "c"]).log_ends("c", 3, 49).lease_deleted_unseen().check(expect![[r#"
        elect at version 9: epoch 10003 held by a/a/1; in sync: a/a, b/b
        LeaseRecovered: the Lease was deleted; every replica has answered, and the highest log ends at 3:50
    "#]]);
}

/// Rule 7: a confirm stood on what every member had on disk. What is in memory alone, behind a disk that hangs, a loss of
/// power takes: it makes no log the highest, and nobody a member who has less than that on disk.
#[test]
fn only_what_is_durable_counts() {
    let behind = || healthy(&["a", "b", "c"]).durable_to("b", 3, 49);
    behind().lease_deleted().check(expect![[r#"
        elect at version 9: epoch 10003 held by a/a/1; in sync: a/a, c/c
        LeaseRecovered: the Lease was deleted; every replica has answered, and the highest log ends at 3:50
    "#]]);
    let longest = || behind().log_ends("b", 3, 60).durable_to("b", 3, 49);
    longest().lease_deleted_unseen().check(expect![[r#"
        elect at version 9: epoch 10003 held by a/a/1; in sync: a/a, c/c
        LeaseRecovered: the Lease was deleted; every replica has answered, and the highest log ends at 3:50
    "#]]);
    longest().lease_deleted_unseen().new_store("c").forced().check(expect![[r#"
        elect at version 9: epoch 10003 held by a/a/1; in sync: a/a
        Forced: forced by a person; not waited for: nobody; a goes on from 3:50; what may be lost: c lost store c and came back with 9c
    "#]]);
    let of_processes = || case(&["a", "b", "c"], true).log_ends("b", 3, 60).durable_to("b", 3, 49);
    of_processes().lease_deleted_unseen().check(expect![[r#"
        elect at version 9: epoch 10003 held by b/b/1; in sync: b/b/1
        LeaseRecovered: the Lease was deleted; every replica has answered, and the highest log ends at 3:60
    "#]]);
}

#[test]
fn not_without_the_store_of_a_member_that_may_have_held_more() {
    let case = || healthy(&["a", "b", "c"]).new_store("a");
    case().lease_deleted().check(expect![[r#"
        blocked
        RecoveryUnsafe: the Lease is gone, and so may be confirmed messages that only these had: a lost store a and came back with 9a. Bring them back, or, to go on with what the other replicas have, set the annotation understudy.dev/force-recovery
    "#]]);
    case().lease_deleted_unseen().check(expect![[r#"
        blocked
        RecoveryUnsafe: the Lease is gone, and so may be confirmed messages that only these had: a lost store a and came back with 9a. Bring them back, or, to go on with what the other replicas have, set the annotation understudy.dev/force-recovery
    "#]]);
    case().lease_deleted_unseen().forced().check(expect![[r#"
        elect at version 9: epoch 10003 held by b/b/1; in sync: b/b, c/c
        Forced: forced by a person; not waited for: nobody; b goes on from 3:50; what may be lost: a lost store a and came back with 9a
    "#]]);
}

#[test]
fn not_when_a_longer_log_is_damaged() {
    let case = healthy(&["a", "b", "c"]).log_ends("b", 3, 60).dirty("b");
    case.lease_deleted_unseen().check(expect![[r#"
        blocked
        RecoveryUnsafe: the Lease is gone, and so may be confirmed messages that only these had: b has a damaged or unfinished store. Bring them back, or, to go on with what the other replicas have, set the annotation understudy.dev/force-recovery
    "#]]);
}

/// The Lease said that only `a` was in sync; the others' logs do not know that yet.
#[test]
fn the_lease_as_last_seen_outweighs_what_logs_record() {
    let mut case = healthy(&["a", "b", "c"]).in_sync(&["a"]).log_ends("b", 2, 40).log_ends("c", 2, 40);
    case.report("b").recorded_set = [identity("b").member(false), identity("c").member(false)].into();
    case.report("c").recorded_set = case.report("b").recorded_set.clone();
    case.lease_deleted().new_store("a").check(expect![[r#"
        blocked
        RecoveryUnsafe: the Lease is gone, and so may be confirmed messages that only these had: a lost store a and came back with 9a. Bring them back, or, to go on with what the other replicas have, set the annotation understudy.dev/force-recovery
    "#]]);
}

#[test]
fn empty_stores_are_no_new_cluster_if_a_lease_was_seen() {
    let case = healthy(&["a", "b"]).new_store("a").new_store("b");
    let mut case = case.lease_deleted_of_two();
    case.view.spec.preferred = None;
    case.check(expect![[r#"
        blocked
        RecoveryUnsafe: the Lease is gone, and so may be confirmed messages that only these had: a lost store a and came back with 9a, b lost store b and came back with 9b. Bring them back, or, to go on with what the other replicas have, set the annotation understudy.dev/force-recovery
    "#]]);
}

#[test]
fn forced_with_replicas_missing() {
    let case = || healthy(&["a", "b", "c"]).lease_deleted_unseen().reset("a").reset("b");
    case().check(expect![[r#"
        wait
        ReplicasUnheard: nothing stands in the Lease; somebody is elected once these have answered too: a, b
    "#]]);
    case().forced().check(expect![[r#"
        elect at version 9: epoch 10003 held by c/c/1; in sync: c/c
        Forced: forced by a person; not waited for: a, b; c goes on from 3:50; what may be lost: a does not answer; b does not answer
    "#]]);
    case().reset("c").forced().check(expect![[r#"
        wait
        NobodyToForce: an election was forced, but no replica with a clean store answers; one that is not clean may be named in the annotation understudy.dev/force-primary
    "#]]);
}

#[test]
fn nobody_with_a_clean_store() {
    healthy(&["a", "b", "c"]).lease_deleted().dirty("a").dirty("b").dirty("c").check(expect![[r#"
        blocked
        NoCleanStore: the Lease is gone, and no replica has a clean store: a, b, c. Restore one from a backup, or name the one to go on with in the annotation understudy.dev/force-primary
    "#]]);
}

impl Case {
    fn lease_deleted_of_two(self) -> Self {
        let Register::Held(observed) = self.view.register.clone() else { panic!("no Lease in this case") };
        self.blank_instead(Some(observed.lease))
    }
}
