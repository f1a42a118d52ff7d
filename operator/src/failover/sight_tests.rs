//! What brokers, pods and streams say, folded and decided upon: stories of a few lines each.

use expect_test::{Expect, expect};
use understudy_election::{Decision, Loss};
use understudy_proto as wire;
use understudy_record::StoreId;

use super::pods::PodFacts;
use super::scene::{Scene, hearing, name, pod, status};
use super::sight::QUIET_AFTER;

fn check(scene: &Scene, expected: Expect) {
    let text = match scene.decision() {
        Decision::Wait { reason, .. } => format!("wait: {reason}"),
        Decision::Elect { lease, candidate, reason, .. } => {
            let set: Vec<_> = lease.in_sync().iter().map(|member| member.name.to_string()).collect();
            format!("elect {} at {} with {}: {reason}", candidate.name, lease.epoch(), set.join(" "))
        }
        Decision::Create { candidate, .. } => format!("create a blank Lease for {}", candidate.name),
        Decision::Blocked { reason } => format!("blocked: {reason}"),
    };
    expected.assert_eq(&text);
}

#[test]
fn a_healthy_primary_is_left_alone() {
    check(&Scene::new(), expect!["wait: primary orders-0 is heard"]);
}

/// A killed process: its streams break, here and at the backups, before any Pod object changes.
#[test]
fn broken_streams_are_enough() {
    let mut scene = Scene::new();
    scene.sight.handle_lost(&name(0), Loss::Reset, scene.now);
    check(&scene, expect!["wait: orders-1 still hears primary orders-0"]);
    scene.after(3);
    scene.hear_of_loss(1, 1, true);
    check(&scene, expect!["wait: orders-2 still hears primary orders-0"]);
    scene.hear_of_loss(2, 1, true);
    check(
        &scene,
        expect!["elect orders-2 at 2 with orders-1 orders-2: the elector and orders-1 have both lost primary orders-0"],
    );
}

#[test]
fn the_kubelets_word_ends_a_process_once_no_backup_hears_it() {
    let mut scene = Scene::new();
    scene.sight.handle_lost(&name(0), Loss::Reset, scene.now);
    scene.sight.handle_pod(&name(0), PodFacts { exited: true, ..pod("p0", "c0") });
    scene.hear(1, 1, wire::Role::Backup, None);
    scene.hear(2, 1, wire::Role::Backup, None);
    check(&scene, expect!["elect orders-2 at 2 with orders-1 orders-2: the process of primary orders-0 has ended"]);
}

/// A pod that is deleted while its process lives on is no reason to act.
#[test]
fn a_process_that_answers_lives_whatever_its_pod_says() {
    let mut scene = Scene::new();
    scene.sight.handle_pod_deleted(&name(0));
    check(&scene, expect!["wait: primary orders-0 is heard"]);
}

/// The pod's next process does not resume.
#[test]
fn a_restarted_primary_is_another_one() {
    let mut scene = Scene::new();
    scene.sight.handle_lost(&name(0), Loss::Reset, scene.now);
    scene.after(200);
    scene.hear(0, 2, wire::Role::Idle, None);
    scene.hear_of_loss(1, 200, true);
    scene.hear_of_loss(2, 200, true);
    check(
        &scene,
        expect![
            "elect orders-2 at 2 with orders-0 orders-1 orders-2: orders-0 was restarted, and a restarted process does not resume as primary"
        ],
    );
}

#[test]
fn one_that_reads_its_journal_is_not_counted() {
    let mut scene = Scene::new();
    scene.sight.handle_lost(&name(0), Loss::Reset, scene.now);
    scene.hear_of_loss(1, 0, true);
    scene.hear(2, 2, wire::Role::Recovering, None);
    check(
        &scene,
        expect!["elect orders-1 at 2 with orders-1: the elector and orders-1 have both lost primary orders-0"],
    );
}

/// A frozen node: nothing is reset, everything is silent.
#[test]
fn silence_counts_from_the_last_word_and_after_the_timeout() {
    let mut scene = Scene::new();
    scene.after(1_500);
    scene.hear_of_loss(1, 1_400, false);
    scene.hear(2, 1, wire::Role::Backup, hearing(None));
    check(&scene, expect!["wait: orders-2 still hears primary orders-0"]);
    scene.after(700);
    scene.hear_of_loss(1, 2_100, false);
    scene.hear_of_loss(2, 2_100, false);
    check(
        &scene,
        expect!["elect orders-2 at 2 with orders-1 orders-2: the elector and orders-1 have both lost primary orders-0"],
    );
}

/// The primary's pod and volume are gone; it comes back as another store.
#[test]
fn a_lost_disk_is_another_store() {
    let mut scene = Scene::new();
    scene.sight.handle_lost(&name(0), Loss::Reset, scene.now);
    scene.sight.handle_pod_deleted(&name(0));
    scene.hear_of_loss(1, 0, true);
    scene.hear_of_loss(2, 0, true);
    scene.sight.handle_pod(&name(0), pod("p0-new", "c9"));
    let mut fresh = status(0, 5, wire::Role::Idle);
    fresh.identity.as_mut().unwrap().store = StoreId(77).to_string();
    (fresh.epoch, fresh.last) = (0, None);
    scene.sight.handle_status(&name(0), fresh, true, scene.now).unwrap();
    check(
        &scene,
        expect![
            "elect orders-2 at 2 with orders-1 orders-2: orders-0 came back with another store, so primary orders-0/00000000000000000000000000000001/0000000000000001 is no more"
        ],
    );
}

#[test]
fn a_broker_that_says_it_is_done_is_done() {
    let mut scene = Scene::new();
    scene.hear(0, 1, wire::Role::Ended, None);
    scene.hear(1, 1, wire::Role::Backup, None);
    scene.hear(2, 1, wire::Role::Backup, None);
    check(&scene, expect!["elect orders-2 at 2 with orders-1 orders-2: the process of primary orders-0 has ended"]);
}

#[test]
fn a_quiet_stream_is_looked_at_again_in_time() {
    let scene = Scene::new();
    assert_eq!(scene.sight.next_quiet(scene.now), Some(scene.now + QUIET_AFTER));
}

/// A status that makes no sense changes nothing and is shown.
#[test]
fn nonsense_is_refused() {
    let mut scene = Scene::new();
    let refused = |scene: &mut Scene, change: fn(&mut wire::Status)| {
        let mut status = status(1, 1, wire::Role::Backup);
        change(&mut status);
        let error = scene.sight.handle_status(&name(1), status, false, scene.now).unwrap_err();
        assert!(scene.sight.replica(&name(1)).unwrap().refused.is_some());
        error.to_string()
    };
    expect!["the status carries no identity"].assert_eq(&refused(&mut scene, |status| status.identity = None));
    expect![[r#"it belongs to cluster "other""#]]
        .assert_eq(&refused(&mut scene, |status| status.cluster = "other".into()));
    expect![[r#"it calls itself "orders-2" and was asked as orders-1"#]].assert_eq(&refused(&mut scene, |status| {
        status.identity.as_mut().unwrap().name = "orders-2".into();
    }));
    expect![[r#"not a in-sync member (name/store or name/store/process): "x""#]]
        .assert_eq(&refused(&mut scene, |status| status.in_sync = vec!["x".into()]));
    expect!["an in-sync set of 1000 members"].assert_eq(&refused(&mut scene, |status| {
        status.in_sync = vec!["x".into(); 1000];
    }));
    check(&scene, expect!["wait: primary orders-0 is heard"]);
}

/// A stale container id that comes late does not end a process that answers.
#[test]
fn a_late_kubelet_does_no_harm() {
    let mut scene = Scene::new();
    scene.sight.handle_lost(&name(0), Loss::Reset, scene.now);
    scene.hear(0, 1, wire::Role::Primary, None);
    scene.sight.handle_pod(&name(0), pod("p0", "c0-next"));
    check(&scene, expect!["wait: primary orders-0 is heard"]);
    assert_eq!(scene.sight.replica(&name(0)).unwrap().heard(scene.now).unwrap().epoch, 1);
}

/// A backup that was restarted keeps its store and its place in the set, and is no help until it follows again.
#[test]
fn in_the_set_and_at_work_are_two_things() {
    let mut scene = Scene::new();
    let works = |scene: &Scene, ordinal| {
        let understudy_election::Register::Held(observed) = scene.tracker.register() else { panic!("no Lease") };
        scene.sight.replica(&name(ordinal)).unwrap().works_in_set(&observed.lease, scene.now)
    };
    assert!(works(&scene, 0) && works(&scene, 1));
    scene.sight.handle_pod(&name(1), pod("p1-new", "c1-new"));
    assert!(!works(&scene, 1), "the pod is another one, and its process has not spoken");
    scene.hear(1, 2, wire::Role::Idle, None);
    assert!(!works(&scene, 1), "it follows nobody yet");
    scene.hear(1, 2, wire::Role::Backup, hearing(None));
    assert!(works(&scene, 1));
}

/// What a turn is made for: not for a log that grows, nor for time that passes.
#[test]
fn a_log_that_grows_is_no_news() {
    let mut scene = Scene::new();
    let mut said = status(0, 1, wire::Role::Primary);
    let mut told = |status: &wire::Status, first, after_ms| {
        scene.after(after_ms);
        scene.sight.handle_status(&name(0), status.clone(), first, scene.now).unwrap()
    };
    told(&said, false, 0);
    assert!(told(&said, true, 500), "another stream");
    assert!(!told(&said, false, 500));
    (said.durable, said.committed, said.primary_for_ms) = (900, 900, 77_000);
    assert!(!told(&said, false, 500));
    said.confirms_held = "no backup is in sync".into();
    assert!(told(&said, false, 500));
    assert!(!told(&said, false, 500));
    let silence = u64::try_from(QUIET_AFTER.as_millis()).unwrap();
    assert!(told(&said, false, silence), "it was silent");
    said.identity.as_mut().unwrap().process = "f".repeat(16);
    assert!(told(&said, false, 100), "another process");
}

/// An operator that has just begun says nothing of brokers that it has not asked yet.
#[test]
fn a_replica_is_known_once_it_has_spoken_or_cannot() {
    let now = std::time::Duration::from_secs(1);
    let mut sight = super::sight::Sight::new("orders");
    sight.keep_only(&[name(0), name(1), name(2)]);
    let knows = |sight: &super::sight::Sight| [0, 1, 2].map(|ordinal| sight.knows(&name(ordinal), now));
    let address = Some("10.0.0.1".to_owned());
    sight.handle_pod(&name(0), PodFacts { ip: address.clone(), ..pod("p0", "c0") });
    sight.handle_pod(&name(1), PodFacts { ip: address.clone(), exited: true, ..pod("p1", "c1") });
    sight.handle_pod(&name(2), PodFacts { ip: None, ..pod("p2", "c2") });
    assert_eq!(knows(&sight), [false, true, true]);
    sight.handle_lost(&name(0), Loss::Silent, now);
    assert_eq!(knows(&sight), [false, true, true], "what was never heard is not lost");
    sight.handle_lost(&name(0), Loss::Reset, now);
    sight.handle_pod(&name(2), PodFacts { ip: address, ..pod("p2", "c2") });
    assert_eq!(knows(&sight), [true, true, false]);
}
