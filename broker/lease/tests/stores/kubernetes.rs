//! The Kubernetes store: what it writes, and what it concludes from an answer, or from none.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::BoxStream;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde_json::{Value, json};
use understudy_election::{Incarnation, Stored, Version};
use understudy_lease::{KubernetesLease, LeaseError, LeaseStore, SwapError};
use understudy_record::version::ClusterVersion;

use super::fake_api::{FakeApi, Fault, NAME, NAMESPACE};
use super::{begin, contract, elected, first_lease, held, identity, set, within};

/// What a request may take here; only requests that are never answered take it.
const TIMEOUT: Duration = Duration::from_millis(300);

fn store(api: &FakeApi) -> KubernetesLease {
    KubernetesLease::new(api.client(), NAMESPACE, NAME, TIMEOUT)
}

fn handles(api: &FakeApi) -> contract::Handles {
    let store = || Arc::new(store(api)) as Arc<dyn LeaseStore>;
    vec![store(), store(), store()]
}

macro_rules! contract {
    ($($name:ident),+) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
        async fn $name() {
            contract::$name(handles(&FakeApi::default())).await;
        }
    )+};
}
contract!(
    what_is_written_is_read,
    only_the_version_expected_is_replaced,
    of_many_contenders_one_wins_each_epoch,
    a_watch_shows_the_present_and_each_change
);

#[tokio::test]
async fn writes_the_fields_that_people_and_tools_know() {
    let api = FakeApi::default();
    let owner = OwnerReference { name: "orders".into(), uid: "u-1".into(), ..OwnerReference::default() };
    let labels = BTreeMap::from([("app.kubernetes.io/instance".to_owned(), "orders".to_owned())]);
    begin(&store(&api).with_create_metadata(labels, Some(owner)), &first_lease()).await;
    let object = api.object().unwrap();
    assert_eq!(object["metadata"]["labels"], json!({ "app.kubernetes.io/instance": "orders" }));
    assert_eq!(object["metadata"]["ownerReferences"][0]["uid"], "u-1");
    let annotations = &object["metadata"]["annotations"];
    assert_eq!(
        annotations["understudy.dev/in-sync"],
        "a/00000000000000000000000000000061,b/00000000000000000000000000000062,c/00000000000000000000000000000063"
    );
    assert_eq!(annotations["understudy.dev/lease-duration-ms"], "1500");
    assert_eq!(annotations["understudy.dev/version"], "1");
    let spec = &object["spec"];
    assert_eq!(spec["holderIdentity"], "a/00000000000000000000000000000061/0000000000000001");
    assert_eq!((&spec["leaseTransitions"], &spec["leaseDurationSeconds"]), (&json!(1), &json!(2)));
    let renewed = spec["renewTime"].as_str().unwrap();
    assert!(renewed.ends_with('Z') && renewed.len() == "2026-01-01T00:00:00.000000Z".len(), "{renewed}");
}

#[tokio::test]
async fn keeps_what_others_have_put_on_the_object() {
    let api = FakeApi::default();
    let store = store(&api);
    begin(&store, &first_lease()).await;
    let others = |object: &mut Value| {
        object["metadata"]["annotations"]["example.com/note"] = json!("kept");
        object["metadata"]["labels"] = json!({ "team": "payments" });
        object["metadata"]["ownerReferences"] =
            json!([{ "apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "u-2" }]);
        object["spec"]["acquireTime"] = json!("2026-01-01T00:00:00.000000Z");
    };
    api.edit(others);
    let (lease, version) = held(&store).await;
    store.swap(&version, &elected(&lease, "b")).await.unwrap();
    let mut expected = api.object().unwrap();
    others(&mut expected);
    assert_eq!(api.object().unwrap(), expected);
    assert_eq!(api.object().unwrap()["spec"]["leaseTransitions"], 2);
}

#[tokio::test]
async fn a_swap_is_one_request_if_the_version_was_seen_and_two_if_not() {
    let api = FakeApi::default();
    let (one, two) = (store(&api), store(&api));
    let mut version = begin(&one, &first_lease()).await;
    api.take_requests();
    for _ in 0..2 {
        version = one.swap(&version, &first_lease()).await.unwrap();
    }
    assert_eq!(api.take_requests().len(), 2);
    version = two.swap(&version, &first_lease()).await.unwrap();
    assert_eq!(api.take_requests().len(), 2);
    // A version that is in force no more is a conflict without a write.
    two.swap(&version, &first_lease()).await.unwrap();
    api.take_requests();
    assert_eq!(one.swap(&version, &first_lease()).await, Err(SwapError::Conflict));
    let path = format!("/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{NAME}");
    assert_eq!(api.take_requests(), [format!("GET {path}")]);
}

/// Case K6. What is certain after each answer to a swap, and whether it was applied.
#[tokio::test]
async fn an_answer_is_taken_for_no_more_than_it_says() {
    for (fault, expected, applied) in [
        (Fault::Status(409), "conflict", false),
        (Fault::Status(404), "conflict", false),
        (Fault::Status(400), "refused", false),
        (Fault::Status(401), "refused", false),
        (Fault::Status(403), "refused", false),
        (Fault::Status(422), "refused", false),
        (Fault::Status(429), "refused", false),
        (Fault::Status(408), "unknown", false),
        (Fault::Status(500), "unknown", false),
        (Fault::Status(503), "unknown", false),
        (Fault::DoneThenStatus(500), "unknown", true),
        (Fault::DoneThenStatus(504), "unknown", true),
        (Fault::Silence, "unknown", false),
        (Fault::DoneThenSilence, "unknown", true),
        (Fault::DoneThenGarbage, "unknown", true),
        (Fault::Reset, "unknown", false),
    ] {
        let api = FakeApi::default();
        let store = store(&api);
        let version = begin(&store, &first_lease()).await;
        api.fail_write(fault);
        let smaller = first_lease().with_set(&identity("a"), set(&["a", "b"])).unwrap();
        let error = within(store.swap(&version, &smaller)).await.unwrap_err();
        assert_eq!(kind(&error), expected, "{fault:?}: {error}");
        // The caller finds out by reading, and by a later write of its own.
        let (lease, now) = held(&store).await;
        assert_eq!((lease.same_configuration(&smaller), now != version), (applied, applied), "{fault:?}");
        store.swap(&now, &smaller).await.unwrap();
    }
}

#[tokio::test]
async fn a_create_conflicts_with_a_lease_and_is_refused_without_a_namespace() {
    for (fault, expected) in [
        (Fault::Status(409), "conflict"),
        (Fault::Status(404), "refused"),
        (Fault::Status(403), "refused"),
        (Fault::DoneThenSilence, "unknown"),
        (Fault::Status(500), "unknown"),
    ] {
        let api = FakeApi::default();
        api.fail_write(fault);
        let error = within(store(&api).create()).await.unwrap_err();
        assert_eq!(kind(&error), expected, "{fault:?}: {error}");
    }
}

#[tokio::test]
async fn a_swap_of_a_deleted_lease_is_a_conflict() {
    let api = FakeApi::default();
    let store = store(&api);
    let version = begin(&store, &first_lease()).await;
    api.delete();
    assert_eq!(store.swap(&version, &first_lease()).await, Err(SwapError::Conflict));
    assert_eq!(store.read().await, Ok(Stored::Absent));
}

#[tokio::test]
async fn a_swap_that_cannot_read_first_has_written_nothing() {
    let api = FakeApi::default();
    let version = begin(&store(&api), &first_lease()).await;
    for fault in [Fault::Status(500), Fault::Silence, Fault::Reset] {
        let fresh = store(&api);
        api.fail_read(fault);
        let error = within(fresh.swap(&version, &first_lease())).await.unwrap_err();
        assert_eq!(kind(&error), "refused", "{fault:?}: {error}");
    }
}

#[tokio::test]
async fn an_epoch_that_kubernetes_cannot_hold_is_refused() {
    let api = FakeApi::default();
    begin(&store(&api), &first_lease()).await;
    api.edit(|object| object["spec"]["leaseTransitions"] = json!(i32::MAX));
    let store = store(&api);
    let (lease, version) = held(&store).await;
    let error = store.swap(&version, &elected(&lease, "b")).await.unwrap_err();
    assert_eq!(kind(&error), "refused", "{error}");
}

#[tokio::test]
async fn what_is_no_lease_of_ours_is_an_error_that_names_the_field() {
    let annotations = |object: &mut Value, name: &str, value: Value| object["metadata"]["annotations"][name] = value;
    type Edit = Box<dyn Fn(&mut Value)>;
    let edits: Vec<(&str, Edit)> = vec![
        ("spec.leaseTransitions", Box::new(|object| _ = object.as_object_mut().unwrap().remove("spec"))),
        ("metadata.uid", Box::new(|object| _ = object["metadata"].as_object_mut().unwrap().remove("uid"))),
        ("spec.holderIdentity", Box::new(|object| object["spec"]["holderIdentity"] = json!("kube-scheduler-1"))),
        (
            "spec.holderIdentity",
            Box::new(move |object| {
                annotations(object, "understudy.dev/in-sync", json!("b/00000000000000000000000000000062"));
            }),
        ),
        ("spec.leaseTransitions", Box::new(|object| object["spec"]["leaseTransitions"] = json!(-1))),
        ("spec.leaseTransitions", Box::new(|object| object["spec"]["leaseTransitions"] = json!(0))),
        ("spec.leaseTransitions", Box::new(|object| object["spec"]["leaseTransitions"] = Value::Null)),
        (
            "understudy.dev/in-sync",
            Box::new(|object| _ = object["metadata"].as_object_mut().unwrap().remove("annotations")),
        ),
        (
            "understudy.dev/in-sync",
            Box::new(move |object| annotations(object, "understudy.dev/in-sync", json!("a/1,b/2"))),
        ),
        ("understudy.dev/in-sync", Box::new(move |object| annotations(object, "understudy.dev/in-sync", json!(" , ")))),
        (
            "understudy.dev/lease-duration-ms",
            Box::new(move |object| annotations(object, "understudy.dev/lease-duration-ms", json!("5s"))),
        ),
        (
            "spec.leaseDurationSeconds",
            Box::new(move |object| annotations(object, "understudy.dev/lease-duration-ms", json!("0"))),
        ),
        ("understudy.dev/version", Box::new(move |object| annotations(object, "understudy.dev/version", json!("two")))),
        ("understudy.dev/version", Box::new(move |object| annotations(object, "understudy.dev/version", json!("0")))),
    ];
    for (expected, edit) in edits {
        let api = FakeApi::default();
        let store = store(&api);
        begin(&store, &first_lease()).await;
        api.edit(edit);
        match store.read().await {
            Err(LeaseError::Malformed { field, .. }) => assert_eq!(field, expected),
            other => panic!("{expected}: {other:?}"),
        }
    }
}

/// Our own, and such as a person makes who wants the Lease back.
#[tokio::test]
async fn a_lease_without_our_fields_is_blank_and_what_else_it_has_stays() {
    type Edit = fn(&mut Value);
    let edits: [Edit; 4] = [
        |_| {},
        |object| _ = object.as_object_mut().unwrap().remove("spec"),
        |object| object["spec"]["holderIdentity"] = json!(""),
        |object| {
            object["metadata"]["annotations"] = json!({ "example.com/note": "kept", "understudy.dev/version": "x" });
            object["spec"] = json!({ "leaseDurationSeconds": 15, "renewTime": "2026-01-01T00:00:00.000000Z" });
        },
    ];
    for edit in edits {
        let api = FakeApi::default();
        let store = store(&api);
        let created = store.create().await.unwrap();
        assert_eq!(store.read().await, Ok(Stored::Blank(created.clone())));
        api.edit(edit);
        let seen = store.read().await.unwrap();
        assert_eq!(seen.blank(), Some(created.incarnation()), "{seen:?}");
        let note = api.object().unwrap()["metadata"]["annotations"]["example.com/note"].clone();
        store.swap(seen.version().unwrap(), &first_lease()).await.unwrap();
        assert!(held(&store).await.0.same_configuration(&first_lease()));
        assert_eq!(api.object().unwrap()["metadata"]["annotations"]["example.com/note"], note);
    }
}

/// Rule 7: one object is not taken for another that bears its name.
#[tokio::test]
async fn the_incarnation_is_the_objects_uid() {
    let api = FakeApi::default();
    let store = store(&api);
    let first = begin(&store, &first_lease()).await;
    assert_eq!(first.incarnation(), &Incarnation::new(api.object().unwrap()["metadata"]["uid"].as_str().unwrap()));
    let other = Version::new(Incarnation::new("another"), first.revision());
    assert_eq!(store.swap(&other, &first_lease()).await, Err(SwapError::Conflict));
    api.delete();
    assert_ne!(store.create().await.unwrap().incarnation(), first.incarnation());
}

#[tokio::test]
async fn reads_a_duration_in_seconds_where_no_annotation_says_more() {
    let api = FakeApi::default();
    let store = store(&api);
    begin(&store, &first_lease()).await;
    api.edit(|object| {
        _ = object["metadata"]["annotations"].as_object_mut().unwrap().remove("understudy.dev/lease-duration-ms");
    });
    let (lease, _) = held(&store).await;
    assert_eq!(lease.duration(), Duration::from_secs(2));
}

#[tokio::test]
async fn a_lease_of_before_there_were_versions_is_of_the_first() {
    let api = FakeApi::default();
    let store = store(&api);
    begin(&store, &first_lease().raised(&identity("a"), ClusterVersion(3)).unwrap()).await;
    assert_eq!(held(&store).await.0.cluster_version(), ClusterVersion(3));
    api.edit(|object| _ = object["metadata"]["annotations"].as_object_mut().unwrap().remove("understudy.dev/version"));
    assert_eq!(held(&store).await.0.cluster_version(), ClusterVersion::FIRST);
}

#[tokio::test]
async fn a_watch_reports_errors_and_goes_on() {
    let api = FakeApi::default();
    let store = store(&api);
    let version = begin(&store, &first_lease()).await;
    let mut watch = store.watch();
    assert_eq!(within(watch.next()).await.unwrap().unwrap().into_held().unwrap().1, version);
    api.fail_watch(Fault::Status(500));
    api.fail_watch(Fault::Reset);
    let version = store.swap(&version, &elected(&first_lease(), "b")).await.unwrap();
    let mut failures = 0;
    assert_eq!(after_failures(&mut watch, &mut failures).await.unwrap().into_held().unwrap().1, version);
    api.edit(|object| object["spec"]["leaseTransitions"] = json!(-1));
    let malformed = after_failures(&mut watch, &mut failures).await;
    assert!(matches!(malformed, Err(LeaseError::Malformed { .. })), "{malformed:?}");
    api.delete();
    assert_eq!(after_failures(&mut watch, &mut failures).await, Ok(Stored::Absent));
    assert_eq!(failures, 2, "each failed watch is reported, once");
}

type Watch = BoxStream<'static, Result<Stored, LeaseError>>;

/// The next the watch shows that is not a failure to look.
async fn after_failures(watch: &mut Watch, failures: &mut u32) -> Result<Stored, LeaseError> {
    loop {
        match within(watch.next()).await.unwrap() {
            Err(LeaseError::Unavailable { .. }) => *failures += 1,
            other => return other,
        }
    }
}

/// A watch whose connection is dead and does not say so.
#[tokio::test]
async fn a_watch_that_has_gone_quiet_is_noticed() {
    let api = FakeApi::default();
    let store = store(&api);
    let version = begin(&store, &first_lease()).await;
    api.fail_watch(Fault::Silence);
    let mut watch = store.watch();
    assert_eq!(within(watch.next()).await.unwrap().unwrap().into_held().unwrap().1, version);
    let version = store.swap(&version, &elected(&first_lease(), "b")).await.unwrap();
    assert_eq!(within(watch.next()).await.unwrap().unwrap().into_held().unwrap().1, version);
    let version = store.swap(&version, &elected(&first_lease(), "c")).await.unwrap();
    assert_eq!(within(watch.next()).await.unwrap().unwrap().into_held().unwrap().1, version);
}

fn kind(error: &SwapError) -> &'static str {
    match error {
        SwapError::Conflict => "conflict",
        SwapError::Unknown { .. } => "unknown",
        SwapError::Refused { .. } => "refused",
    }
}
