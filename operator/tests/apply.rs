//! What the apply step writes, and what it does not, against an API server of a few lines.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod fake;

use expect_test::expect;
use fake::FakeApi;
use kube::Client;
use serde_json::{Value, json};
use time::OffsetDateTime;
use understudy_crds::BrokerCluster;
use understudy_operator::apply::{Applied, ApplyError, apply};
use understudy_operator::build::{VerifiedCredentials, build};
use understudy_operator::dereference::{Observed, dereference};
use understudy_operator::validate::{Defaults, validate};

const SET: &str = "/apis/apps/v1/namespaces/shop/statefulsets/orders";
const BUDGET: &str = "/apis/policy/v1/namespaces/shop/poddisruptionbudgets/orders";
const CLAIMS: &str = "/api/v1/namespaces/shop/persistentvolumeclaims";
const SERVICE: &str = "/api/v1/namespaces/shop/services/orders";

/// One reconciliation of the cluster with this uid and spec; secrets are kept from the last.
async fn reconcile(api: &FakeApi, uid: &str, spec: serde_json::Value) -> Result<Applied, ApplyError> {
    let empty = json!({"kind": "List", "apiVersion": "v1", "metadata": {}, "items": []});
    api.put(CLAIMS, empty);
    reconcile_with(&api.client(), uid, spec).await
}

async fn reconcile_with(client: &Client, uid: &str, spec: serde_json::Value) -> Result<Applied, ApplyError> {
    let cluster: BrokerCluster = serde_json::from_value(json!({
        "apiVersion": "understudy.dev/v1alpha1", "kind": "BrokerCluster",
        "metadata": {"name": "orders", "namespace": "shop", "uid": uid, "generation": 1}, "spec": spec,
    }))
    .unwrap();
    let target =
        validate(&cluster, &Defaults { broker_image: "understudy/broker:dev".into(), ..Defaults::default() }).unwrap();
    let observed: Observed = dereference(client, &target.cluster).await.unwrap();
    let built = build(&target, &observed, &VerifiedCredentials::default(), OffsetDateTime::UNIX_EPOCH).unwrap();
    apply(client, &target.cluster, built).await
}

#[tokio::test]
async fn everything_is_made_in_order_and_then_nothing_is_written() {
    let api = FakeApi::default();
    let applied = reconcile(&api, "u-1", json!({})).await.unwrap();
    assert_eq!(applied.workload.update_revision.as_deref(), Some("orders-abc"));
    assert_eq!(applied.workload.pods, 3);
    expect![[r#"
        PATCH /api/v1/namespaces/shop/serviceaccounts/orders-broker
        PATCH /apis/rbac.authorization.k8s.io/v1/namespaces/shop/roles/orders-broker
        PATCH /apis/rbac.authorization.k8s.io/v1/namespaces/shop/rolebindings/orders-broker
        PATCH /api/v1/namespaces/shop/secrets/orders-ca
        PATCH /api/v1/namespaces/shop/secrets/orders-tls
        PATCH /api/v1/namespaces/shop/secrets/orders-user
        PATCH /api/v1/namespaces/shop/configmaps/orders-settings
        PATCH /api/v1/namespaces/shop/services/orders-nodes
        PATCH /api/v1/namespaces/shop/services/orders
        PATCH /api/v1/namespaces/shop/services/orders-any
        POST /apis/discovery.k8s.io/v1/namespaces/shop/endpointslices
        PATCH /apis/policy/v1/namespaces/shop/poddisruptionbudgets/orders
        PATCH /apis/networking.k8s.io/v1/namespaces/shop/networkpolicies/orders
        PATCH /apis/apps/v1/namespaces/shop/statefulsets/orders"#]]
    .assert_eq(&api.take_writes().join("\n"));

    // Resyncs of an idle cluster. The EndpointSlice's version is known from the first look on.
    let first = reconcile(&api, "u-1", json!({})).await.unwrap();
    assert_eq!(first, Applied { slice_version: first.slice_version.clone(), ..applied });
    assert!(first.slice_version.is_some());
    for _ in 0..2 {
        assert_eq!(reconcile(&api, "u-1", json!({})).await.unwrap(), first);
    }
    assert_eq!(api.take_writes(), Vec::<String>::new());

    // Somebody changes it: whoever watches it is told.
    let slice = "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices/orders-primary";
    api.change(slice, |slice| slice["metadata"]["resourceVersion"] = "99".into());
    let changed = reconcile(&api, "u-1", json!({})).await.unwrap();
    assert_ne!(changed.slice_version, first.slice_version);
    assert_eq!(api.take_writes(), Vec::<String>::new());
}

#[tokio::test]
async fn drift_and_changes_are_written_where_they_are_and_nowhere_else() {
    let api = FakeApi::default();
    reconcile(&api, "u-1", json!({})).await.unwrap();
    api.take_writes();

    api.change(SET, |set| set["spec"]["replicas"] = 1.into());
    reconcile(&api, "u-1", json!({})).await.unwrap();
    assert_eq!(api.take_writes(), [format!("PATCH {SET}")]);

    // What others add is theirs.
    api.change(SET, |set| set["metadata"]["labels"]["team"] = "shop".into());
    reconcile(&api, "u-1", json!({})).await.unwrap();
    assert_eq!(api.take_writes(), Vec::<String>::new());

    reconcile(&api, "u-1", json!({"image": "other"})).await.unwrap();
    assert_eq!(api.take_writes(), [format!("PATCH {SET}")]);
}

/// What we set once and do not set any more is taken out.
#[tokio::test]
async fn a_field_that_is_no_longer_set_is_written() {
    let api = FakeApi::default();
    reconcile(&api, "u-1", json!({"clients": {"backupConnections": "Refuse"}})).await.unwrap();
    api.take_writes();
    reconcile(&api, "u-1", json!({})).await.unwrap();
    assert_eq!(api.take_writes(), [format!("PATCH {SET}")]);
}

#[tokio::test]
async fn scaled_to_one_the_budget_goes() {
    let api = FakeApi::default();
    reconcile(&api, "u-1", json!({})).await.unwrap();
    api.take_writes();
    reconcile(&api, "u-1", json!({"replicas": 1})).await.unwrap();
    assert!(api.take_writes().contains(&format!("DELETE {BUDGET}")));
    reconcile(&api, "u-1", json!({"replicas": 1})).await.unwrap();
    assert_eq!(api.take_writes(), Vec::<String>::new());
}

/// The claim template of a StatefulSet cannot be changed: another one takes over its pods.
#[tokio::test]
async fn a_volume_that_grows_makes_another_stateful_set() {
    let api = FakeApi::default();
    reconcile(&api, "u-1", json!({})).await.unwrap();
    api.take_writes();
    reconcile(&api, "u-1", json!({"storage": {"size": "9Gi"}})).await.unwrap();
    let writes = api.take_writes();
    assert_eq!(writes, [format!("PATCH {SET}"), format!("DELETE {SET}"), format!("PATCH {SET}")]);
    reconcile(&api, "u-1", json!({"storage": {"size": "9Gi"}})).await.unwrap();
    assert_eq!(api.take_writes(), Vec::<String>::new());
    // Killed between the two: the next one makes it.
    api.remove(SET);
    reconcile(&api, "u-1", json!({"storage": {"size": "9Gi"}})).await.unwrap();
    assert_eq!(api.take_writes(), [format!("PATCH {SET}")]);
    // An object from before the schema refused it: a volume is never made smaller.
    reconcile(&api, "u-1", json!({"storage": {"size": "8Gi"}})).await.unwrap();
    assert_eq!(api.take_writes(), Vec::<String>::new());
}

/// Reconciles by lives of one write until one has nothing to write; what each wrote.
async fn by_lives(api: &FakeApi, spec: Value, mut after_each: impl FnMut(&str)) -> Vec<String> {
    let mut writes = Vec::new();
    for _ in 0..50 {
        let outcome = reconcile_with(&api.client_of_a_life(1), "u-1", spec.clone()).await;
        let written = api.take_writes();
        if written.is_empty() {
            outcome.unwrap();
            return writes;
        }
        writes.extend(written);
        after_each(writes.last().unwrap());
    }
    panic!("it comes to no end: {writes:?}");
}

#[tokio::test]
async fn an_operator_killed_after_each_write_makes_a_cluster_all_the_same() {
    let (by_lives_of_one, at_once) = (FakeApi::default(), FakeApi::default());
    by_lives_of_one.put(CLAIMS, json!({"kind": "List", "apiVersion": "v1", "metadata": {}, "items": []}));
    let writes = by_lives(&by_lives_of_one, json!({}), |_| {}).await;
    reconcile(&at_once, "u-1", json!({})).await.unwrap();
    assert_eq!(writes, at_once.take_writes(), "each life goes on where the one before ended");
}

/// K24: killed in any step of a volume's growth the next one resumes, and no size that was asked for is taken back.
#[tokio::test]
async fn an_operator_killed_after_each_write_makes_volumes_grow() {
    let claim = |name: &str| format!("{CLAIMS}/data-orders-{name}");
    let size_of = |claim: &Value| claim["spec"]["resources"]["requests"]["storage"].as_str().unwrap().to_owned();
    let api = FakeApi::default();
    reconcile(&api, "u-1", json!({"storage": {"size": "1Gi"}})).await.unwrap();
    let claims = ["0", "1", "2"].map(|name| {
        let object = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": format!("data-orders-{name}")},
            "spec": {"resources": {"requests": {"storage": "1Gi"}}}});
        api.put(&claim(name), object.clone());
        object
    });
    api.put(CLAIMS, json!({"kind": "List", "apiVersion": "v1", "metadata": {}, "items": claims}));
    api.take_writes();
    let mut grown = 0;
    let writes = by_lives(&api, json!({"storage": {"size": "2Gi"}}), |write| {
        // The list shows what became of each.
        let now: Vec<Value> = ["0", "1", "2"].iter().filter_map(|name| api.get(&claim(name))).collect();
        let large = now.iter().filter(|claim| size_of(claim) == "2Gi").count();
        assert!(large >= grown && now.len() == 3, "after {write}: {now:?}");
        grown = large;
        let items: Vec<Value> = ["0", "1", "2"]
            .into_iter()
            .zip(now)
            .map(|(name, mut claim)| {
                claim["metadata"]["name"] = format!("data-orders-{name}").into();
                claim
            })
            .collect();
        api.put(CLAIMS, json!({"kind": "List", "apiVersion": "v1", "metadata": {}, "items": items}));
        if let Some(set) = api.get(SET) {
            assert_eq!(size_of(&set["spec"]["volumeClaimTemplates"][0]), "2Gi", "after {write}");
        }
    })
    .await;
    expect![[r#"
        PATCH /apis/apps/v1/namespaces/shop/statefulsets/orders
        DELETE /apis/apps/v1/namespaces/shop/statefulsets/orders
        PATCH /apis/apps/v1/namespaces/shop/statefulsets/orders
        PATCH /api/v1/namespaces/shop/persistentvolumeclaims/data-orders-0
        PATCH /api/v1/namespaces/shop/persistentvolumeclaims/data-orders-1
        PATCH /api/v1/namespaces/shop/persistentvolumeclaims/data-orders-2"#]]
    .assert_eq(&writes.join("\n"));
    assert_eq!(grown, 3);
}

/// A stale cache shows an earlier cluster of the same name; nothing of the new one's is touched.
#[tokio::test]
async fn what_belongs_to_another_cluster_of_the_name_is_left_alone() {
    let api = FakeApi::default();
    reconcile(&api, "u-2", json!({})).await.unwrap();
    api.take_writes();
    let error = reconcile(&api, "u-1", json!({"replicas": 1})).await.unwrap_err();
    expect!["ServiceAccount orders-broker exists and belongs to something else (BrokerCluster orders, uid u-2): rename the cluster, or remove that object"]
        .assert_eq(&error.to_string());
    assert_eq!(api.take_writes(), Vec::<String>::new());
}

#[tokio::test]
async fn an_object_that_a_person_made_is_left_alone() {
    let api = FakeApi::default();
    api.put(SERVICE, json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "orders", "uid": "theirs"}}));
    let error = reconcile(&api, "u-1", json!({})).await.unwrap_err();
    assert!(matches!(&error, ApplyError::Taken { kind, .. } if kind == "Service"), "{error}");
    assert!(api.take_writes().iter().all(|write| !write.ends_with(SERVICE)));
}
