//! The text of a table of statuses, as an operator writes them.

use expect_test::{Expect, expect};
use serde_json::{Value, json};

use super::super::kubernetes::summarize;
use super::*;
use crate::kubernetes::Seen;

/// 2026-01-02T03:05:00Z.
fn view() -> View {
    View { now: OffsetDateTime::from_unix_timestamp(1_767_323_100).unwrap(), ..View::plain() }
}

fn summary(annotations: Value, status: Value) -> Summary {
    let object = json!({
        "apiVersion": "understudy.dev/v1alpha1", "kind": "BrokerCluster",
        "metadata": {"name": "orders", "generation": 2, "annotations": annotations}, "spec": {}, "status": status,
    });
    summarize("shop/orders", &Seen::of(serde_json::from_value(object).unwrap())).unwrap()
}

fn check(annotations: Value, status: Value, expected: Expect) {
    expected.assert_eq(&summary(annotations, status).to_text(&view()));
}

fn condition(kind: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({"type": kind, "status": status, "reason": reason, "message": message,
           "lastTransitionTime": "2026-01-02T03:00:00.000Z"})
}

fn failover(epoch: u64) -> Value {
    json!({"from": "orders-0", "to": "orders-1", "epoch": epoch, "reason": "ProcessEnded",
           "noticedAt": "2026-01-02T03:04:05.006Z", "electedAt": "2026-01-02T03:04:05.010Z",
           "servingAt": "2026-01-02T03:04:05.060Z", "detectMs": 3, "electMs": 4, "promoteMs": 50, "routeMs": 12})
}

fn well() -> Value {
    json!({
        "observedGeneration": 2, "primary": "orders-1", "epoch": 4, "clusterVersion": 2,
        "inSync": ["orders-0", "orders-1", "orders-2"],
        "replicaStatuses": [
            {"name": "orders-0", "role": "Backup", "inSync": true, "position": "4:1200", "lag": 3},
            {"name": "orders-1", "role": "Primary", "inSync": true, "position": "4:1203"},
            {"name": "orders-2", "role": "Backup", "inSync": true, "position": "4:1203", "lag": 0},
        ],
        "conditions": [
            condition("Available", "True", "PrimaryServing", "orders-1 serves as primary of epoch 4"),
            condition("Ready", "True", "AsSpecified", "3 replicas, all in sync"),
            condition("Progressing", "False", "AsSpecified", "3 replicas, all in sync"),
        ],
        "lastFailover": failover(4), "failovers": [failover(4), {"to": "orders-0", "epoch": 1, "reason": "FirstPrimary"}],
    })
}

#[test]
fn all_is_well() {
    check(
        json!({}),
        well(),
        expect![[r#"
        shop/orders  primary orders-1, epoch 4, version 2, 3 of 3 in sync
        ├── orders-0  Backup   in sync  at 4:1200  lag 3
        ├── orders-1  Primary  in sync  at 4:1203
        └── orders-2  Backup   in sync  at 4:1203  lag 0

        As they should be: Available, Ready, Progressing
        Last change of primary: from orders-0 to orders-1, epoch 4, 54 s ago: ProcessEnded (detect 3, elect 4, promote 50, route 12 ms)
    "#]],
    );
}

#[test]
fn the_last_ten_failovers() {
    let view = View { failovers: true, ..view() };
    let text = summary(json!({}), well()).to_text(&view);
    expect![[r#"
        As they should be: Available, Ready, Progressing
        EPOCH  SERVING SINCE             FROM      TO        DETECT  ELECT  PROMOTE  ROUTE  REASON
        4      2026-01-02T03:04:05.060Z  orders-0  orders-1  3 ms    4 ms   50 ms    12 ms  ProcessEnded
        1      -                         -         orders-0  -       -      -        -      FirstPrimary
    "#]]
    .assert_eq(text.rsplit_once("\n\n").unwrap().1);
}

#[test]
fn one_catches_up_during_maintenance() {
    let mut status = well();
    status["inSync"] = json!(["orders-0", "orders-1"]);
    status["replicaStatuses"][2] = json!({
        "name": "orders-2", "role": "CatchingUp", "inSync": false, "position": "3:800", "lag": 403,
        "message": "reads from segments",
        "catchUp": {"queuesDone": 1, "queues": 4, "messagesDone": 30, "messages": 90, "bytesDone": 1_048_576,
                    "bytes": 3_145_728, "bytesPerSecond": 524_288, "remainingSeconds": 4},
    });
    let text = "not in sync: orders-2 (CatchingUp)";
    status["conditions"] = json!([
        condition("Available", "True", "PrimaryServing", "orders-1 serves"),
        condition("Ready", "False", "NotInSync", text),
        condition("Progressing", "True", "NotInSync", text),
        condition("ControlPlaneReachable", "Unknown", "NoLease", "there is no Lease that anybody renews"),
        condition("Reconciling", "True", "NotInSync", text),
    ]);
    check(
        json!({"understudy.dev/maintenance": "on"}),
        status,
        expect![[r#"
        ! Ready False, Progressing True, Reconciling True (NotInSync, for 5 min): not in sync: orders-2 (CatchingUp)
        ! ControlPlaneReachable Unknown (NoLease, for 5 min): there is no Lease that anybody renews
        * Maintenance: nothing is rolled out, no role goes back to a preferred pod

        shop/orders  primary orders-1, epoch 4, version 2, 2 of 3 in sync
        ├── orders-0  Backup      in sync      at 4:1200  lag 3
        ├── orders-1  Primary     in sync      at 4:1203
        └── orders-2  CatchingUp  not in sync  at 3:800   lag 403
                      [######..............] 33 %  1/4 queues, 30/90 messages, 1.0 MiB of 3.0 MiB, 0.5 MiB/s, 4 s left
                      reads from segments

        As they should be: Available
        Last change of primary: from orders-0 to orders-1, epoch 4, 54 s ago: ProcessEnded (detect 3, elect 4, promote 50, route 12 ms)
    "#]],
    );
}

#[test]
fn nobody_leads() {
    let mut status = well();
    status["primary"] = Value::Null;
    status["inSync"] = json!(["orders-0"]);
    status["replicaStatuses"] = json!([
        {"name": "orders-0", "role": "Absent", "inSync": true},
        {"name": "orders-1", "role": "Idle", "inSync": false, "position": "4:1203"},
        {"name": "orders-2", "role": "Unreachable", "inSync": false, "message": "ImagePullBackOff: no such image"},
    ]);
    let text = "orders-0 is the only one in sync and does not answer";
    status["conditions"] = json!([
        condition("Available", "False", "NoInSyncMemberLeft", text),
        condition("Ready", "False", "NoInSyncMemberLeft", text),
        condition("Stalled", "True", "NoInSyncMemberLeft", text),
    ]);
    check(
        json!({}),
        status,
        expect![[r#"
        ! Available False, Ready False, Stalled True (NoInSyncMemberLeft, for 5 min): orders-0 is the only one in sync and does not answer

        shop/orders  no primary, epoch 4, version 2, 1 of 3 in sync
        ├── orders-0  Absent       in sync
        ├── orders-1  Idle         not in sync  at 4:1203
        └── orders-2  Unreachable  not in sync
                      ImagePullBackOff: no such image

        Last change of primary: from orders-0 to orders-1, epoch 4, 54 s ago: ProcessEnded (detect 3, elect 4, promote 50, route 12 ms)
    "#]],
    );
}

#[test]
fn hibernated_as_ordered() {
    let status = json!({
        "observedGeneration": 2, "epoch": 4, "inSync": ["orders-0"],
        "replicaStatuses": [{"name": "orders-0", "role": "Absent", "inSync": true}],
        "conditions": [
            condition("Available", "False", "Hibernated", "hibernation is on"),
            condition("Durable", "False", "NoPrimary", "without a primary nothing is confirmed"),
            condition("Ready", "True", "Hibernated", "no pods, as ordered"),
            condition("ControlPlaneReachable", "Unknown", "NoPrimary", "there is no primary"),
        ],
    });
    check(
        json!({"understudy.dev/hibernation": "on"}),
        status,
        expect![[r#"
        * Hibernated: no pods, all data kept

        shop/orders  no primary, epoch 4, 1 of 1 in sync
        └── orders-0  Absent  in sync

        As they should be: Available, Durable, Ready, ControlPlaneReachable
    "#]],
    );
}

#[test]
fn paused_and_fenced_and_of_an_older_spec() {
    let mut status = well();
    status["observedGeneration"] = 1.into();
    status["inSync"] = json!(["orders-0", "orders-1"]);
    status["replicaStatuses"][2]["inSync"] = false.into();
    let annotations = json!({"understudy.dev/reconcile": "paused", "understudy.dev/fenced": "orders-2, "});
    check(
        annotations,
        status,
        expect![[r#"
        ! Not the newest state: the operator has not looked at the newest spec yet
        * Paused: the operator changes no object; primaries are elected
        * Fenced: orders-2; neither primary nor in sync while that stands

        shop/orders  primary orders-1, epoch 4, version 2, 2 of 3 in sync
        ├── orders-0  Backup   in sync  at 4:1200  lag 3
        ├── orders-1  Primary  in sync  at 4:1203
        └── orders-2  Backup   fenced   at 4:1203  lag 0

        As they should be: Available, Ready, Progressing
        Last change of primary: from orders-0 to orders-1, epoch 4, 54 s ago: ProcessEnded (detect 3, elect 4, promote 50, route 12 ms)
    "#]],
    );
}

#[test]
fn a_cluster_whose_operator_has_written_nothing_yet() {
    check(
        json!({}),
        json!(null),
        expect![[r#"
        ! Not the newest state: no operator has looked at it yet

        shop/orders  no primary
    "#]],
    );
    check(
        json!({}),
        json!({"primary": null, "future": [1, 2]}),
        expect![[r#"
        shop/orders  no primary
    "#]],
    );
}

#[test]
fn a_status_that_is_none_is_an_error() {
    let object = json!({"apiVersion": "understudy.dev/v1alpha1", "kind": "BrokerCluster", "metadata": {"name": "b"},
                        "status": {"primary": 7}});
    assert!(summarize("a/b", &Seen::of(serde_json::from_value(object).unwrap())).is_err());
}

#[test]
fn colours_are_for_terminals_and_widths_are_of_what_is_seen() {
    let plain = summary(json!({}), well()).to_text(&view());
    let coloured = summary(json!({}), well()).to_text(&View { colour: true, ..view() });
    assert!(coloured.contains("\x1b[32min sync\x1b[0m"), "{coloured}");
    let mut stripped = coloured;
    for code in ["1", "31", "32", "33", "0"] {
        stripped = stripped.replace(&format!("\x1b[{code}m"), "");
    }
    assert_eq!(stripped, plain);
}

#[test]
fn ages_are_told_in_the_unit_that_says_most() {
    let age = |text: &str| view().age(Some(&text.to_owned()));
    for (moment, expected) in [
        ("2026-01-02T03:04:59Z", "1 s"),
        ("2026-01-02T03:00:00.500Z", "4 min"),
        ("2026-01-01T03:05:00Z", "24 h"),
        ("2025-12-02T03:05:00Z", "31 d"),
        ("2027-01-01T00:00:00Z", "0 s"),
    ] {
        assert_eq!(age(moment).as_deref(), Some(expected), "{moment}");
    }
    assert_eq!(age("yesterday"), None);
    assert_eq!(view().age(None), None);
}
