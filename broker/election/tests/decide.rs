//! The decision, case by case: a cluster of three in which something has happened, and what its elector then does, as text.
//! Identities are shortened to `name/store/process`; a restarted process counts one up, a new store starts with `9`.

use std::collections::BTreeMap;
use std::time::Duration;

use expect_test::{Expect, expect};
use understudy_election::{
    Contact, Decision, Elector, Lease, LeaseParts, Loss, Observed, Register, ReplicaView, Report, Role, Spec,
    StoreState, Timings, Version, View, decide,
};
use understudy_record::{Epoch, Identity, Index, Position, ProcessId, ReplicaName, StoreId};

/// When the Lease was last seen to change. Its duration is 5 s, the backup timeout 2 s, the stall timeout 10 s.
const RENEWED: u64 = 100_000;

struct Case {
    now_ms: u64,
    view: View,
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn name(text: &str) -> ReplicaName {
    ReplicaName::new(text)
}

fn identity(text: &str) -> Identity {
    let letter = u128::from(text.as_bytes()[0] - b'a') + 10;
    Identity { name: name(text), store: StoreId(letter), process: ProcessId(1) }
}

/// `a` is the primary of epoch 3, everybody hears it, and all is well.
fn healthy(names: &[&str]) -> Case {
    case(names, false)
}

fn case(names: &[&str], processes_in_set: bool) -> Case {
    let in_sync = names.iter().map(|text| identity(text).member(processes_in_set)).collect();
    let lease = Lease::from_parts(LeaseParts {
        holder: Some(identity(names[0])),
        epoch: Epoch(3),
        in_sync,
        duration: ms(5_000),
        renewed: None,
    });
    let lease = lease.expect("a Lease");
    let replicas = names.iter().map(|text| {
        let role = match *text {
            "a" => Role::Primary { epoch: Epoch(3), stalled_for: Duration::ZERO },
            _ => Role::Hears { epoch: Epoch(3) },
        };
        let report = Report {
            identity: identity(text),
            known_epoch: Epoch(3),
            last: Position::new(Epoch(3), Index(50)),
            state: StoreState::Clean,
            recorded_set: lease.in_sync().clone(),
            role,
        };
        (name(text), ReplicaView { contact: Contact::Reachable, report: Some(report) })
    });
    let view = View {
        elector: Elector::Operator,
        replicas: replicas.collect::<BTreeMap<_, _>>(),
        spec: Spec {
            replicas: names.iter().map(|text| name(text)).collect(),
            processes_in_set,
            preferred: None,
            forced: false,
        },
        timings: Timings::default(),
        register: Register::Held(Observed { lease, version: Version::new("7"), unchanged_since: ms(RENEWED) }),
    };
    Case { now_ms: RENEWED + 1_000, view }
}

impl Case {
    fn replica(&mut self, of: &str) -> &mut ReplicaView {
        self.view.replicas.get_mut(&name(of)).expect("a replica of this case")
    }

    fn report(&mut self, of: &str) -> &mut Report {
        self.replica(of).report.as_mut().expect("every replica has reported")
    }

    fn by_backup(mut self, of: &str) -> Self {
        self.view.elector = Elector::Backup(identity(of));
        self
    }

    /// Milliseconds after the Lease was last seen to change.
    fn at(mut self, after_ms: u64) -> Self {
        self.now_ms = RENEWED + after_ms;
        self
    }

    fn contact(mut self, of: &str, contact: Contact) -> Self {
        self.replica(of).contact = contact;
        self
    }

    fn reset(self, of: &str) -> Self {
        self.contact(of, Contact::Lost { since: ms(RENEWED + 900), how: Loss::Reset })
    }

    fn silent_since(self, of: &str, after_ms: u64) -> Self {
        self.contact(of, Contact::Lost { since: ms(RENEWED + after_ms), how: Loss::Silent })
    }

    fn gone(self, of: &str) -> Self {
        self.contact(of, Contact::Gone)
    }

    fn role(mut self, of: &str, role: Role) -> Self {
        self.report(of).role = role;
        self
    }

    /// The backups `of` have lost the primary of epoch 3.
    fn lost_primary(self, of: &[&str], how: Loss, after_ms: u64) -> Self {
        let role = Role::Lost { epoch: Epoch(3), since: ms(RENEWED + after_ms), how };
        of.iter().fold(self, |case, of| case.role(of, role))
    }

    fn log_ends(mut self, of: &str, epoch: u64, index: u64) -> Self {
        self.report(of).last = Position::new(Epoch(epoch), Index(index));
        self
    }

    fn restarted(mut self, of: &str) -> Self {
        let report = self.report(of);
        report.identity.process.0 += 1;
        report.role = Role::Idle;
        self.contact(of, Contact::Reachable)
    }

    fn new_store(mut self, of: &str) -> Self {
        let report = self.report(of);
        report.identity.store.0 += 0x90;
        report.identity.process.0 += 1;
        (report.role, report.last, report.known_epoch) = (Role::Idle, Position::default(), Epoch(0));
        report.recorded_set.clear();
        self.contact(of, Contact::Reachable)
    }

    fn dirty(mut self, of: &str) -> Self {
        self.report(of).state = StoreState::Dirty;
        self
    }

    fn preferring(mut self, of: &str) -> Self {
        self.view.spec.preferred = Some(name(of));
        self
    }

    fn forced(mut self) -> Self {
        self.view.spec.forced = true;
        self
    }

    fn scaled_down(mut self, without: &str) -> Self {
        self.view.spec.replicas.remove(&name(without));
        self
    }

    fn in_sync(mut self, names: &[&str]) -> Self {
        let Register::Held(observed) = &mut self.view.register else { panic!("no Lease in this case") };
        let set = names.iter().map(|text| identity(text).member(false)).collect();
        observed.lease = observed.lease.with_set(&identity("a"), set).expect("a set with its holder");
        self
    }

    /// Nobody hears a primary any more, and the elector never saw the Lease that was deleted.
    fn lease_deleted_unseen(mut self) -> Self {
        self.view.register = Register::Absent { since: ms(RENEWED), last: None };
        self.lost_primary(&["a", "b", "c"], Loss::Reset, 0)
    }

    fn lease_deleted(mut self) -> Self {
        let Register::Held(observed) = self.view.register.clone() else { panic!("no Lease in this case") };
        self.view.register = Register::Absent { since: ms(RENEWED), last: Some(observed.lease) };
        self.lost_primary(&["a", "b", "c"], Loss::Reset, 0)
    }

    fn newborn(mut self) -> Self {
        self.view.register = Register::Absent { since: ms(RENEWED), last: None };
        for replica in self.view.replicas.values_mut() {
            let report = replica.report.as_mut().expect("every replica has reported");
            report.known_epoch = Epoch(0);
            report.last = Position::default();
            report.recorded_set.clear();
            report.role = Role::Idle;
        }
        self
    }

    fn check(&self, expected: Expect) {
        expected.assert_eq(&tell(&decide(ms(self.now_ms), &self.view)));
    }
}

fn tell(decision: &Decision) -> String {
    let (what, kind, reason) = match decision {
        Decision::Wait { reason, until } => {
            let until = match until {
                Some(at) => format!("wait until +{}", at.as_millis() as i64 - RENEWED as i64),
                None => "wait".to_owned(),
            };
            (until, reason.kind(), reason.to_string())
        }
        Decision::Elect { expected, lease, candidate, reason } => {
            assert_eq!(lease.holder(), Some(candidate));
            (format!("elect at version {expected}: {lease}"), reason.kind(), reason.to_string())
        }
        Decision::Create { lease, candidate, reason } => {
            assert_eq!(lease.holder(), Some(candidate));
            (format!("create: {lease}"), reason.kind(), reason.to_string())
        }
        Decision::Blocked { reason } => ("blocked".to_owned(), reason.kind(), reason.to_string()),
    };
    let text = format!("{what}\n{kind}: {reason}\n");
    [31, 30, 15].iter().fold(text, |text, zeros| text.replace(&"0".repeat(*zeros), ""))
}

mod replaced_by_the_operator {
    use super::*;

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
        let case = healthy(&["a", "b", "c"]).reset("a").lost_primary(&["c"], Loss::Reset, 990);
        case.check(expect![[r#"
            elect at version 7: epoch 4 held by b/b/1; in sync: b/b, c/c
            PrimaryLost: the elector and c have both lost primary a
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
            InSyncMembersAway: the journal of primary a has made no progress for 10000 ms; only a may have every confirmed message: waiting for one to answer
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
    fn a_deleted_pod_that_backups_still_hear_is_left_until_one_has_lost_it() {
        let case = || healthy(&["a", "b", "c"]).gone("a");
        case().check(expect![[r#"
            wait until +5000
            PrimaryStillHeard: b still hears primary a
        "#]]);
        case().lost_primary(&["b"], Loss::Reset, 990).check(expect![[r#"
            elect at version 7: epoch 4 held by b/b/1; in sync: b/b, c/c
            PrimaryLost: the elector and b have both lost primary a
        "#]]);
    }
}

mod replaced_by_either {
    use super::*;

    /// Rule 6: past its Lease, and without an acknowledgement of `b`, which it cannot put out of the set.
    #[test]
    fn a_primary_that_neither_renews_nor_hears_its_whole_set() {
        let case = || healthy(&["a", "b", "c"]).lost_primary(&["b"], Loss::Silent, 1_000);
        case().at(7_999).check(expect![[r#"
            wait until +8000
            PrimaryHealthy: primary a is heard
        "#]]);
        case().at(8_000).check(expect![[r#"
            elect at version 7: epoch 4 held by b/b/1; in sync: b/b, c/c
            PrimaryCutOff: primary a does not renew its Lease and b has lost it, so it can confirm nothing
        "#]]);
        case().by_backup("b").at(8_000).check(expect![[r#"
            elect at version 7: epoch 4 held by b/b/1; in sync: b/b, c/c
            PrimaryCutOff: primary a does not renew its Lease and b has lost it, so it can confirm nothing
        "#]]);
    }
}

mod replaced_by_a_backup {
    use super::*;

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
                in_sync: lease.in_sync().clone(),
                duration: lease.duration(),
                renewed: Some(understudy_election::Renewal(RENEWED as i64 * 1_000 + skew_us)),
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
            NotInSync: c is not in sync, so it leaves the election to others
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
}

mod identities {
    use super::*;

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
            InSyncMembersAway: the process of primary a has ended; only a may have every confirmed message: waiting for one to answer
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
            Forced: forced by understudy.dev/force-recovery; what only these had is lost: a was restarted and lost what it had in memory, b was restarted and lost what it had in memory, c was restarted and lost what it had in memory
        "#]]);
    }

    #[test]
    fn a_vacant_lease_is_taken_at_once() {
        let mut case = healthy(&["a", "b"]);
        let Register::Held(observed) = &mut case.view.register else { panic!("no Lease in this case") };
        observed.lease = Lease::from_parts(LeaseParts {
            holder: None,
            epoch: Epoch(3),
            in_sync: observed.lease.in_sync().clone(),
            duration: ms(5_000),
            renewed: None,
        })
        .unwrap();
        case.check(expect![[r#"
            elect at version 7: epoch 4 held by a/a/1; in sync: a/a, b/b
            NoHolder: the Lease names no primary
        "#]]);
    }
}

mod candidates {
    use super::*;

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
            InSyncMembersAway: the process of primary a has ended; only a may have every confirmed message: waiting for one to answer
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
            InSyncMembersAway: the process of primary a has ended; only a, b may have every confirmed message: waiting for one to answer
        "#]]);
        dead_primary().in_sync(&["a", "b"]).new_store("b").check(expect![[r#"
            wait
            InSyncMembersAway: the process of primary a has ended; only a may have every confirmed message: waiting for one to answer (b lost store b and came back with 9b)
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
            Forced: forced by understudy.dev/force-recovery; what only these had is lost: a lost store a and came back with 9a, b lost store b and came back with 9b
        "#]]);
        lost().forced().dirty("c").check(expect![[r#"
            elect at version 7: epoch 4 held by a/9a/2; in sync: a/9a, b/9b
            Forced: forced by understudy.dev/force-recovery; what only these had is lost: a lost store a and came back with 9a, b lost store b and came back with 9b
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
}

mod without_a_lease {
    use super::*;

    #[test]
    fn a_new_cluster_begins_once_every_replica_has_answered() {
        let newborn = || healthy(&["a", "b", "c"]).newborn();
        newborn().contact("c", Contact::Unknown).check(expect![[r#"
            wait
            ReplicasUnheard: there is no Lease; it is created once these have answered too: c
        "#]]);
        newborn().check(expect![[r#"
            create: epoch 1 held by a/a/1; in sync: a/a, b/b, c/c
            NewCluster: a new cluster: every replica has answered, and all are empty
        "#]]);
        newborn().preferring("b").by_backup("c").check(expect![[r#"
            create: epoch 1 held by b/b/1; in sync: a/a, b/b, c/c
            NewCluster: a new cluster: every replica has answered, and all are empty
        "#]]);
    }

    #[test]
    fn a_living_primary_creates_it_anew() {
        let case = healthy(&["a", "b", "c"]).lease_deleted();
        case.role("b", Role::Hears { epoch: Epoch(3) }).check(expect![[r#"
            wait
            PrimaryRecreatesLease: the Lease is gone, but b knows a living primary of epoch 3, which creates it anew
        "#]]);
    }

    /// Rule 7.
    #[test]
    fn otherwise_the_highest_log_of_all_replicas() {
        let case = || healthy(&["a", "b", "c"]).log_ends("b", 3, 60).log_ends("a", 2, 90);
        case().lease_deleted().check(expect![[r#"
            create: epoch 103 held by b/b/1; in sync: b/b
            LeaseRecovered: the Lease was deleted; every replica has answered, and the highest log ends at 3:60
        "#]]);
        case().lease_deleted_unseen().check(expect![[r#"
            create: epoch 103 held by b/b/1; in sync: b/b
            LeaseRecovered: the Lease was deleted; every replica has answered, and the highest log ends at 3:60
        "#]]);
        case().lease_deleted().reset("a").check(expect![[r#"
            wait
            ReplicasUnheard: there is no Lease; it is created once these have answered too: a
        "#]]);
    }

    #[test]
    fn logs_that_end_alike_are_alike_and_stay_in_the_set() {
        healthy(&["a", "b", "c"]).log_ends("c", 3, 49).lease_deleted_unseen().check(expect![[r#"
            create: epoch 103 held by a/a/1; in sync: a/a, b/b
            LeaseRecovered: the Lease was deleted; every replica has answered, and the highest log ends at 3:50
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
            create: epoch 103 held by b/b/1; in sync: b/b, c/c
            Forced: forced by understudy.dev/force-recovery; not waited for: nobody; lost: a lost store a and came back with 9a
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
            ReplicasUnheard: there is no Lease; it is created once these have answered too: a, b
        "#]]);
        case().forced().check(expect![[r#"
            create: epoch 103 held by c/c/1; in sync: c/c
            Forced: forced by understudy.dev/force-recovery; not waited for: a, b; lost: a does not answer, b does not answer
        "#]]);
        case().reset("c").forced().check(expect![[r#"
            wait
            NobodyToForce: an election was forced, but no replica with a clean store answers
        "#]]);
    }

    #[test]
    fn nobody_with_a_clean_store() {
        healthy(&["a", "b", "c"]).lease_deleted().dirty("a").dirty("b").dirty("c").check(expect![[r#"
            blocked
            NoCleanStore: the Lease is gone, and no replica has a clean store: a, b, c. Restore one from a backup
        "#]]);
    }

    impl Case {
        fn lease_deleted_of_two(mut self) -> Self {
            let Register::Held(observed) = self.view.register.clone() else { panic!("no Lease in this case") };
            self.view.register = Register::Absent { since: ms(RENEWED), last: Some(observed.lease) };
            self
        }
    }
}

mod the_lease_itself {
    use super::*;

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
            in_sync: observed.lease.in_sync().clone(),
            duration: ms(5_000),
            renewed: None,
        })
        .unwrap();
        case.check(expect![[r#"
            blocked
            LeaseUnswappable: the next Lease cannot be written: there is no epoch after 18446744073709551615
        "#]]);
    }
}
