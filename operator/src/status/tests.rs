//! The conditions, by situation: what a person reads in `kubectl get` and `describe`.

use expect_test::{Expect, expect};
use understudy_crds::{BrokerClusterStatus, ConditionStatus, Timestamp, ValidatedCluster};
use understudy_election::Loss;
use understudy_proto as wire;

use crate::apply::Workload;
use crate::failover::pods::PodFacts;
use crate::failover::roll::{RollStep, RollWait};
use crate::failover::scene::{Scene, hearing, name, pod, status};
use crate::status::{Problem, Snapshot, Turned, alarms_turned, assess, assess_problem, without_progress};
use crate::validate::{Defaults, validate};

/// A scene with everything else that a status is made of.
struct Case {
    scene: Scene,
    cluster: ValidatedCluster,
    workload: Workload,
    problem: Option<Problem>,
    roll: RollStep,
}

fn object() -> understudy_crds::BrokerCluster {
    let json = serde_json::json!({
        "apiVersion": "understudy.dev/v1alpha1", "kind": "BrokerCluster",
        "metadata": {"name": "orders", "namespace": "shop", "uid": "u-1", "generation": 4}, "spec": {},
    });
    serde_json::from_value(json).unwrap()
}

impl Case {
    fn new() -> Self {
        let mut scene = Scene::new();
        for ordinal in 0..3 {
            let facts = PodFacts { ready: true, ..pod(&format!("p{ordinal}"), &format!("c{ordinal}")) };
            scene.sight.handle_pod(&name(ordinal), facts);
        }
        let cluster =
            validate(&object(), &Defaults { broker_image: "broker".into(), ..Defaults::default() }).unwrap().cluster;
        let workload = Workload { pods: 3, update_revision: Some("r1".into()), pods_refused: None, differs: false };
        Self { scene, cluster, workload, problem: None, roll: RollStep::Done }
    }

    fn assess(&self, previous: Option<&BrokerClusterStatus>, at_ms: i64) -> BrokerClusterStatus {
        let decision = self.scene.decision();
        let snapshot = Snapshot {
            cluster: &self.cluster,
            workload: &self.workload,
            pods_held: self.cluster.replicas,
            problem: self.problem.as_ref(),
            sight: &self.scene.sight,
            register: self.scene.tracker.register(),
            decision: Some(&decision),
            roll: &self.roll,
            failovers: &[],
            last_switchover: None,
            definitions: None,
            epoch: 1,
            now: self.scene.now,
        };
        assess(&snapshot, previous, &Timestamp::from_unix_ms(at_ms))
    }

    fn check(&self, expected: Expect) {
        expected.assert_eq(&conditions(&self.assess(None, 0)));
    }
}

fn conditions(status: &BrokerClusterStatus) -> String {
    let line = |c: &understudy_crds::Condition| format!("{} {:?} {}: {}\n", c.kind, c.status, c.reason, c.message);
    status.conditions.iter().map(line).collect()
}

#[test]
fn a_replica_of_a_build_that_is_too_old_is_named_with_the_cure() {
    let mut case = Case::new();
    let status = wire::Status {
        needs_upgrade: "this build knows versions 1 to 2, the cluster is at version 3: upgrade it".into(),
        ..status(2, 1, wire::Role::Recovering)
    };
    case.scene.sight.handle_status(&name(2), status, true, case.scene.now).unwrap();
    case.check(expect![[r#"
        Available True PrimaryServing: orders-0 serves as primary of epoch 1
        Ready False UpgradeNeeded: orders-2: this build knows versions 1 to 2, the cluster is at version 3: upgrade it
        Durable True InSync: 3 replicas hold every confirmed message, minInSync is 2
        Progressing True UpgradeNeeded: orders-2: this build knows versions 1 to 2, the cluster is at version 3: upgrade it
        ControlPlaneReachable True LeaseRenewed: the primary renews its Lease
        ResourcesAvailable True NoAlarm: no replica is low on memory or disk
        Reconciling True UpgradeNeeded: orders-2: this build knows versions 1 to 2, the cluster is at version 3: upgrade it
    "#]]);
    assert_eq!(case.assess(None, 0).cluster_version, Some(1));
}

/// What is in force counts, not what is asked for.
#[test]
fn settings_that_a_broker_has_not_taken_up_are_said() {
    let mut case = Case::new();
    let settings = wire::Settings { replicas: 3, min_in_sync: 1, consumer_timeout_ms: 1_800_000 };
    let status = wire::Status {
        settings: Some(settings),
        ..case.scene.sight.replica(&name(0)).unwrap().status.clone().unwrap()
    };
    case.scene.sight.handle_status(&name(0), status, false, case.scene.now).unwrap();
    case.check(expect![[r#"
        Available True PrimaryServing: orders-0 serves as primary of epoch 1
        Ready False SettingsPending: orders-0 still has minInSync 1 instead of 2; the kubelet brings a change to the pod within about a minute
        Durable True InSync: 3 replicas hold every confirmed message, minInSync is 1
        Progressing True SettingsPending: orders-0 still has minInSync 1 instead of 2; the kubelet brings a change to the pod within about a minute
        ControlPlaneReachable True LeaseRenewed: the primary renews its Lease
        ResourcesAvailable True NoAlarm: no replica is low on memory or disk
        Reconciling True SettingsPending: orders-0 still has minInSync 1 instead of 2; the kubelet brings a change to the pod within about a minute
    "#]]);
    case.cluster.orders.paused = true;
    let ready = case.assess(None, 0).conditions.into_iter().find(|condition| condition.kind == "Ready").unwrap();
    assert_eq!(ready.reason, "Paused");
}

#[test]
fn all_is_well() {
    let case = Case::new();
    case.check(expect![[r#"
        Available True PrimaryServing: orders-0 serves as primary of epoch 1
        Ready True AsSpecified: 3 replicas, all in sync
        Durable True InSync: 3 replicas hold every confirmed message, minInSync is 2
        Progressing False AsSpecified: 3 replicas, all in sync
        ControlPlaneReachable True LeaseRenewed: the primary renews its Lease
        ResourcesAvailable True NoAlarm: no replica is low on memory or disk
    "#]]);
    let status = case.assess(None, 0);
    assert_eq!((status.primary.as_deref(), status.epoch, status.in_sync_replicas), (Some("orders-0"), Some(1), 3));
    assert_eq!(status.observed_generation, Some(4));
    assert_eq!(status.selector.as_deref(), Some("app.kubernetes.io/instance=orders,app.kubernetes.io/name=understudy"));
}

#[test]
fn the_primary_is_lost() {
    let mut case = Case::new();
    case.scene.sight.handle_lost(&name(0), Loss::Reset, case.scene.now);
    case.check(expect![[r#"
        Available False PrimaryStillHeard: orders-1 still hears primary orders-0
        Ready False PrimaryStillHeard: orders-1 still hears primary orders-0
        Durable False NoPrimary: without a primary nothing is confirmed
        Progressing True PrimaryStillHeard: orders-1 still hears primary orders-0
        ControlPlaneReachable Unknown NoPrimary: there is no primary that would renew its Lease
        ResourcesAvailable True NoAlarm: no replica is low on memory or disk
        Reconciling True PrimaryStillHeard: orders-1 still hears primary orders-0
    "#]]);
}

#[test]
fn an_elected_primary_that_does_not_serve_yet() {
    let mut case = Case::new();
    case.scene.hear(0, 1, wire::Role::Backup, None);
    case.check(expect![[r#"
        Available False PrimaryStarting: orders-0 was elected and does not serve yet
        Ready False PrimaryStarting: orders-0 was elected and does not serve yet
        Durable False NoPrimary: without a primary nothing is confirmed
        Progressing True PrimaryStarting: orders-0 was elected and does not serve yet
        ControlPlaneReachable Unknown NoPrimary: there is no primary that would renew its Lease
        ResourcesAvailable True NoAlarm: no replica is low on memory or disk
        Reconciling True PrimaryStarting: orders-0 was elected and does not serve yet
    "#]]);
}

#[test]
fn confirms_are_held() {
    let mut case = Case::new();
    let mut held = status(0, 1, wire::Role::Primary);
    held.confirms_held = "the API server does not answer, so lost orders-2 cannot leave the set".into();
    case.scene.sight.handle_status(&name(0), held, false, case.scene.now).unwrap();
    case.check(expect![[r#"
        Available True PrimaryServing: orders-0 serves as primary of epoch 1
        Ready True AsSpecified: 3 replicas, all in sync
        Durable False ConfirmsHeld: the API server does not answer, so lost orders-2 cannot leave the set
        Progressing False AsSpecified: 3 replicas, all in sync
        ControlPlaneReachable True LeaseRenewed: the primary renews its Lease
        ResourcesAvailable True NoAlarm: no replica is low on memory or disk
    "#]]);
}

#[test]
fn below_min_in_sync() {
    let mut case = Case::new();
    case.cluster.min_in_sync = 4;
    case.check(expect![[r#"
        Available True PrimaryServing: orders-0 serves as primary of epoch 1
        Ready True AsSpecified: 3 replicas, all in sync
        Durable False BelowMinInSync: 3 in sync, minInSync is 4: messages are taken and not confirmed
        Progressing False AsSpecified: 3 replicas, all in sync
        ControlPlaneReachable True LeaseRenewed: the primary renews its Lease
        ResourcesAvailable True NoAlarm: no replica is low on memory or disk
    "#]]);
}

fn condition<'a>(status: &'a BrokerClusterStatus, kind: &str) -> &'a understudy_crds::Condition {
    status.conditions.iter().find(|condition| condition.kind == kind).unwrap()
}

fn shortage(bytes: u64, watermark: u64) -> Option<wire::Shortage> {
    Some(wire::Shortage { bytes, watermark })
}

#[test]
fn a_backup_is_low_on_disk() {
    let mut case = Case::new();
    let well = case.assess(None, 0);
    let mut low = wire::Status { heard: hearing(None), ..status(1, 1, wire::Role::Backup) };
    low.alarms = Some(wire::Alarms { memory: None, disk: shortage(80_000_000, 107_374_182) });
    case.scene.sight.handle_status(&name(1), low, false, case.scene.now).unwrap();
    let mut primary = status(0, 1, wire::Role::Primary);
    primary.publishers_blocked = "orders-1 is low on disk: 80 MB free, watermark 107 MB".into();
    case.scene.sight.handle_status(&name(0), primary, false, case.scene.now).unwrap();
    case.check(expect![[r#"
        Available True PrimaryServing: orders-0 serves as primary of epoch 1
        Ready True AsSpecified: 3 replicas, all in sync
        Durable True InSync: 3 replicas hold every confirmed message, minInSync is 2
        Progressing False AsSpecified: 3 replicas, all in sync
        ControlPlaneReachable True LeaseRenewed: the primary renews its Lease
        ResourcesAvailable False DiskAlarm: orders-1 is low on disk: 80 MB free, watermark 107 MB; publishers wait
    "#]]);
    let short = case.assess(Some(&well), 0);
    assert_eq!(short.replica_statuses[1].message.as_deref(), Some("it is low on disk: 80 MB free, watermark 107 MB"));
    let message = &condition(&short, "ResourcesAvailable").message;
    assert_eq!(alarms_turned(Some(&well), &short), Some(Turned::On { reason: "DiskAlarm", message }));
    assert_eq!(alarms_turned(None, &short), Some(Turned::On { reason: "DiskAlarm", message }));
    assert_eq!(alarms_turned(Some(&short), &short), None);
    let message = &condition(&well, "ResourcesAvailable").message;
    assert_eq!(alarms_turned(Some(&short), &well), Some(Turned::Off { message }));
    assert_eq!(alarms_turned(None, &well), None);
}

/// Which need not be the primary's shortage, nor one that blocks yet.
#[test]
fn two_replicas_are_low_on_different_things() {
    let mut case = Case::new();
    for (ordinal, role, memory, disk) in [
        (0, wire::Role::Primary, shortage(900_000_000, 858_993_459), None),
        (2, wire::Role::CatchingUp, None, shortage(0, 107_374_182)),
    ] {
        let low = wire::Status { alarms: Some(wire::Alarms { memory, disk }), ..status(ordinal, 1, role) };
        case.scene.sight.handle_status(&name(ordinal), low, false, case.scene.now).unwrap();
    }
    expect!["orders-0 is low on memory: 900 MB in use, watermark 859 MB; orders-2 is low on disk: 0 MB free, watermark 107 MB"].assert_eq(&condition(&case.assess(None, 0), "ResourcesAvailable").message);
    assert_eq!(condition(&case.assess(None, 0), "ResourcesAvailable").reason, "MemoryAndDiskAlarm");
}

/// Every other member has lost its disk: a person must look, and is told what to write.
#[test]
fn nobody_is_left_to_elect() {
    let mut case = Case::new();
    case.scene.sight.handle_lost(&name(0), Loss::Reset, case.scene.now);
    for ordinal in 0..3 {
        let mut wiped = status(ordinal, 9, wire::Role::Idle);
        wiped.identity.as_mut().unwrap().store = "0".repeat(31) + "f";
        case.scene.sight.handle_status(&name(ordinal), wiped, true, case.scene.now).unwrap();
    }
    let status = case.assess(None, 0);
    let available = &status.conditions[0];
    assert_eq!(available.reason, "NoInSyncMemberLeft");
    expect!["orders-0 came back with another store, so primary orders-0/00000000000000000000000000000001/0000000000000001 is no more; nobody is left who had every confirmed message: orders-0 lost store 00000000000000000000000000000001 and came back with 0000000000000000000000000000000f, orders-1 lost store 00000000000000000000000000000002 and came back with 0000000000000000000000000000000f, orders-2 lost store 00000000000000000000000000000003 and came back with 0000000000000000000000000000000f. Bring one back with its store, or, to go on with what the other replicas have, set the annotation understudy.dev/force-recovery to 1, the epoch it is about"].assert_eq(&available.message);
}

#[test]
fn a_quota_shows_with_its_own_words() {
    let mut case = Case::new();
    case.workload.pods = 2;
    case.workload.pods_refused = Some("pods \"orders-2\" is forbidden: exceeded quota: small".into());
    case.check(expect![[r#"
        Available True PrimaryServing: orders-0 serves as primary of epoch 1
        Ready False PodsRefused: 2 of 3 pods exist: pods "orders-2" is forbidden: exceeded quota: small
        Durable True InSync: 3 replicas hold every confirmed message, minInSync is 2
        Progressing False PodsRefused: 2 of 3 pods exist: pods "orders-2" is forbidden: exceeded quota: small
        ControlPlaneReachable True LeaseRenewed: the primary renews its Lease
        ResourcesAvailable True NoAlarm: no replica is low on memory or disk
        Stalled True PodsRefused: 2 of 3 pods exist: pods "orders-2" is forbidden: exceeded quota: small
    "#]]);
}

#[test]
fn a_bad_image_shows_and_the_primary_serves() {
    let mut case = Case::new();
    let trouble = Some("ErrImagePull: no such image".to_owned());
    case.scene.sight.handle_pod(&name(2), PodFacts { trouble, ..pod("p2", "c2") });
    case.roll = RollStep::Wait { outdated: 2, reason: RollWait::NotInSync(vec![name(2)]) };
    case.check(expect![[r#"
        Available True PrimaryServing: orders-0 serves as primary of epoch 1
        Ready False PodFailing: orders-2: ErrImagePull: no such image
        Durable True InSync: 3 replicas hold every confirmed message, minInSync is 2
        Progressing False PodFailing: orders-2: ErrImagePull: no such image
        ControlPlaneReachable True LeaseRenewed: the primary renews its Lease
        ResourcesAvailable True NoAlarm: no replica is low on memory or disk
        Stalled True PodFailing: orders-2: ErrImagePull: no such image
    "#]]);
    assert_eq!(case.assess(None, 0).replica_statuses[2].message.as_deref(), Some("ErrImagePull: no such image"));
}

/// Ready only when everything is the newest and in sync.
#[test]
fn not_ready_while_rolling() {
    let mut case = Case::new();
    case.roll = RollStep::Wait { outdated: 2, reason: RollWait::NotInSync(vec![name(2)]) };
    case.check(expect![[r#"
        Available True PrimaryServing: orders-0 serves as primary of epoch 1
        Ready False Rolling: 2 outdated; waiting for orders-2 to be in sync
        Durable True InSync: 3 replicas hold every confirmed message, minInSync is 2
        Progressing True Rolling: 2 outdated; waiting for orders-2 to be in sync
        ControlPlaneReachable True LeaseRenewed: the primary renews its Lease
        ResourcesAvailable True NoAlarm: no replica is low on memory or disk
        Reconciling True Rolling: 2 outdated; waiting for orders-2 to be in sync
    "#]]);
    case.roll = RollStep::Done;
    case.workload.update_revision = None;
    case.check(expect![[r#"
        Available True PrimaryServing: orders-0 serves as primary of epoch 1
        Ready False Rolling: the StatefulSet's controller has not seen the newest template yet
        Durable True InSync: 3 replicas hold every confirmed message, minInSync is 2
        Progressing True Rolling: the StatefulSet's controller has not seen the newest template yet
        ControlPlaneReachable True LeaseRenewed: the primary renews its Lease
        ResourcesAvailable True NoAlarm: no replica is low on memory or disk
        Reconciling True Rolling: the StatefulSet's controller has not seen the newest template yet
    "#]]);
}

#[test]
fn a_backup_with_a_new_disk_catches_up() {
    let mut case = Case::new();
    let mut fresh = status(2, 9, wire::Role::CatchingUp);
    fresh.identity.as_mut().unwrap().store = "0".repeat(31) + "f";
    fresh.catch_up = Some(wire::CatchUp {
        queues_done: 3,
        queues: 7,
        bytes_done: 10,
        bytes: 90,
        messages_done: 4,
        messages: 40,
        bytes_per_second: 20,
        remaining_seconds: Some(4),
        resumed: false,
        place: 0,
    });
    fresh.durable = 40;
    case.scene.sight.handle_status(&name(2), fresh, true, case.scene.now).unwrap();
    case.check(expect![[r#"
        Available True PrimaryServing: orders-0 serves as primary of epoch 1
        Ready False NotInSync: not in sync: orders-2 (CatchingUp)
        Durable True InSync: 3 replicas hold every confirmed message, minInSync is 2
        Progressing True NotInSync: not in sync: orders-2 (CatchingUp)
        ControlPlaneReachable True LeaseRenewed: the primary renews its Lease
        ResourcesAvailable True NoAlarm: no replica is low on memory or disk
        Reconciling True NotInSync: not in sync: orders-2 (CatchingUp)
    "#]]);
    let replica = case.assess(None, 0).replica_statuses.remove(2);
    assert!(!replica.in_sync);
    assert_eq!(replica.lag, Some(60));
    let progress = replica.catch_up.unwrap();
    assert_eq!((progress.queues_done, progress.queues, progress.bytes_done, progress.bytes), (3, 7, 10, 90));
    assert_eq!((progress.messages_done, progress.messages), (4, 40));
    assert_eq!((progress.bytes_per_second, progress.remaining_seconds), (20, Some(4)));
}

#[test]
fn a_spec_that_cannot_be_brought_about_says_so_and_the_primary_serves() {
    let mut case = Case::new();
    case.problem = Some(Problem { reason: "InvalidSpec", message: "spec.replicas is 0: choose 1 to 9".into() });
    case.check(expect![[r#"
        Available True PrimaryServing: orders-0 serves as primary of epoch 1
        Ready False InvalidSpec: spec.replicas is 0: choose 1 to 9
        Durable True InSync: 3 replicas hold every confirmed message, minInSync is 2
        Progressing False InvalidSpec: spec.replicas is 0: choose 1 to 9
        ControlPlaneReachable True LeaseRenewed: the primary renews its Lease
        ResourcesAvailable True NoAlarm: no replica is low on memory or disk
        Stalled True InvalidSpec: spec.replicas is 0: choose 1 to 9
    "#]]);
}

#[test]
fn a_cluster_that_was_never_made_says_why_once() {
    let problem = Problem { reason: "InvalidSpec", message: "spec.replicas is 0".into() };
    let mut object = object();
    let first = assess_problem(&object, &problem, &Timestamp::from_unix_ms(1));
    expect![[r#"
        Ready False InvalidSpec: spec.replicas is 0
        Stalled True InvalidSpec: spec.replicas is 0
    "#]]
    .assert_eq(&conditions(&first));
    object.status = Some(first.clone());
    assert_eq!(assess_problem(&object, &problem, &Timestamp::from_unix_ms(2)), first);
}

/// Looked at again, an idle cluster's status is the same, to the letter.
#[test]
fn nothing_changes_by_itself() {
    let mut case = Case::new();
    let first = case.assess(None, 1_000);
    case.scene.after(400);
    let second = case.assess(Some(&first), 2_000);
    assert_eq!(second, first);
    assert_eq!(second.conditions[0].last_transition_time, Timestamp::from_unix_ms(1_000));
}

#[test]
fn a_condition_keeps_its_time_until_it_turns() {
    let mut case = Case::new();
    let first = case.assess(None, 1_000);
    case.scene.sight.handle_lost(&name(0), Loss::Reset, case.scene.now);
    let second = case.assess(Some(&first), 2_000);
    assert_eq!(second.conditions[0].status, ConditionStatus::False);
    for now in &second.conditions {
        let before = first.conditions.iter().find(|before| before.kind == now.kind);
        let at = if before.is_some_and(|before| before.status == now.status) { 1_000 } else { 2_000 };
        assert_eq!(now.last_transition_time, Timestamp::from_unix_ms(at), "{}", now.kind);
    }
    assert_eq!(condition(&second, "ResourcesAvailable").last_transition_time, Timestamp::from_unix_ms(1_000));
    assert_eq!(condition(&second, "Reconciling").last_transition_time, Timestamp::from_unix_ms(2_000));
}

/// What persons have ordered, as a status tells it.
#[test]
fn orders_are_told() {
    let mut case = Case::new();
    case.cluster.orders.hibernated = true;
    case.workload.pods = 0;
    case.check(expect![[r#"
        Available False Hibernated: hibernation is on: there are no pods, and all data is kept
        Ready True Hibernated: no pods, as ordered
        Durable True InSync: 3 replicas hold every confirmed message, minInSync is 2
        Progressing False Hibernated: no pods, as ordered
        ControlPlaneReachable True LeaseRenewed: the primary renews its Lease
        ResourcesAvailable True NoAlarm: no replica is low on memory or disk
    "#]]);
    let mut case = Case::new();
    case.cluster.orders.fenced = ["orders-2".to_owned()].into();
    case.scene.sight.handle_pod_deleted(&name(2));
    case.check(expect![[r#"
        Available True PrimaryServing: orders-0 serves as primary of epoch 1
        Ready True Fenced: fenced: orders-2; all others are in sync
        Durable True InSync: 3 replicas hold every confirmed message, minInSync is 2
        Progressing False Fenced: fenced: orders-2; all others are in sync
        ControlPlaneReachable True LeaseRenewed: the primary renews its Lease
        ResourcesAvailable True NoAlarm: no replica is low on memory or disk
    "#]]);
}

/// The primary serves on, and nobody has seen its Lease renewed for longer than that lasts.
#[test]
fn a_primary_that_does_not_reach_the_api_server_is_told_of() {
    let mut case = Case::new();
    case.scene.after(6_000);
    case.scene.hear(0, 1, wire::Role::Primary, None);
    case.scene.hear(1, 1, wire::Role::Backup, hearing(None));
    case.scene.hear(2, 1, wire::Role::Backup, hearing(None));
    case.check(expect![[r#"
        Available True PrimaryServing: orders-0 serves as primary of epoch 1
        Ready True AsSpecified: 3 replicas, all in sync
        Durable True InSync: 3 replicas hold every confirmed message, minInSync is 2
        Progressing False AsSpecified: 3 replicas, all in sync
        ControlPlaneReachable False LeaseNotRenewed: orders-0 serves, and has not renewed its Lease for more than its 5 s: it goes on, and cannot take a replica that is lost out of the set
        ResourcesAvailable True NoAlarm: no replica is low on memory or disk
    "#]]);
}

#[test]
fn a_position_alone_is_no_change_that_matters() {
    let mut case = Case::new();
    let first = case.assess(None, 1_000);
    let mut further = status(0, 1, wire::Role::Primary);
    further.last = Some(wire::Position { epoch: 1, index: 9_000 });
    case.scene.sight.handle_status(&name(0), further, false, case.scene.now).unwrap();
    let second = case.assess(Some(&first), 2_000);
    assert_ne!(second, first);
    assert_eq!(without_progress(&second), without_progress(&first));
}
