//! Every object of a cluster, against the committed text. `UPDATE_EXPECT=1 cargo test -p understudy-operator` writes them
//! anew; read the difference before you commit it: what changes in a pod's template restarts every broker.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use expect_test::expect_file;
use serde_json::Value;
use time::OffsetDateTime;
use understudy_crds::BrokerCluster;
use understudy_operator::build::{Built, Mode, VerifiedCredentials, build};
use understudy_operator::dereference::Observed;
use understudy_operator::validate::{Defaults, validate};

fn built(spec: Value, observed: &Observed) -> Built {
    let cluster: BrokerCluster = serde_json::from_value(serde_json::json!({
        "apiVersion": "understudy.dev/v1alpha1", "kind": "BrokerCluster",
        "metadata": {"name": "orders", "namespace": "shop", "uid": "u-1", "generation": 1}, "spec": spec,
    }))
    .unwrap();
    let target = validate(&cluster, &Defaults { broker_image: "understudy/broker:dev".into() }).unwrap();
    build(&target, observed, &VerifiedCredentials::default(), OffsetDateTime::UNIX_EPOCH).unwrap()
}

/// All of them as YAML, with what is random or secret struck out.
fn yaml(built: &Built) -> String {
    let documents = built.objects.iter().map(|object| {
        let mut value = object.value.clone();
        if object.mode == Mode::Absent {
            return format!("# absent: {} {}\n", object.resource.kind, object.name);
        }
        if object.resource.kind == "Secret" {
            let data = value["data"].as_object_mut().unwrap();
            data.values_mut().for_each(|value| *value = "...".into());
            if let Some(annotations) = value["metadata"].get_mut("annotations").and_then(Value::as_object_mut) {
                annotations.entry("understudy.dev/issuer").and_modify(|issuer| *issuer = "...".into());
            }
        }
        let mode = if object.mode == Mode::CreateOnly { "# made once, then left alone\n" } else { "" };
        format!("{mode}{}", serde_yaml::to_string(&value).unwrap())
    });
    documents.collect::<Vec<_>>().join("---\n")
}

#[test]
fn a_cluster_of_three() {
    expect_file!["golden/three.yaml"].assert_eq(&yaml(&built(serde_json::json!({}), &Observed::default())));
}

#[test]
fn everything_set() {
    let spec = serde_json::json!({
        "replicas": 5, "minInSync": 3, "image": "registry.example/broker:1", "imagePullPolicy": "Always",
        "durability": "Replicated", "storage": {"size": "20Gi", "storageClassName": "fast", "freeWatermark": "3Gi"},
        "resources": {"requests": {"cpu": 2, "memory": "4Gi"}},
        "memory": {"budget": "1Gi", "watermarkPercent": 75},
        "failover": {"leaseDuration": "3s", "backupTimeout": "500ms", "stallTimeout": "1m"},
        "clients": {"backupConnections": "Refuse"}, "primary": {"preferred": "orders-0"},
        "replication": {"catchUpBandwidth": "50Mi", "maxCatchUps": 2, "default": "configuration"},
    });
    let built = built(spec, &Observed::default());
    let set = built.objects.iter().find(|object| object.resource.kind == "StatefulSet").unwrap();
    expect_file!["golden/stateful-set-everything-set.yaml"].assert_eq(&serde_yaml::to_string(&set.value).unwrap());
}

/// A budget on a single replica would make its node undrainable.
#[test]
fn one_replica_has_no_disruption_budget() {
    let built = built(serde_json::json!({"replicas": 1}), &Observed::default());
    let budget = built.objects.iter().find(|object| object.resource.kind == "PodDisruptionBudget").unwrap();
    assert_eq!(budget.mode, Mode::Absent);
}

/// The same spec over what was made is the same, so that nothing is written.
#[test]
fn built_anew_over_what_exists_nothing_differs() {
    let first = built(serde_json::json!({}), &Observed::default());
    let kept = |name: &str| {
        let object = first.objects.iter().find(|object| object.name == name).unwrap();
        Some(serde_json::from_value(object.value.clone()).unwrap())
    };
    let observed = Observed {
        user_secret: kept("orders-user"),
        tls_secret: kept("orders-tls"),
        authority_secret: kept("orders-ca"),
        ..Observed::default()
    };
    let second = built(serde_json::json!({}), &observed);
    for (first, second) in first.objects.iter().zip(&second.objects) {
        assert_eq!(first.value, second.value, "{} {}", first.resource.kind, first.name);
    }
}

/// The StatefulSet's template keeps the size it was made with; the claims grow, and only those of the spec.
#[test]
fn storage_grows_by_its_claims() {
    let first =
        built(serde_json::json!({"storage": {"size": "8Gi", "storageClassName": "fast"}}), &Observed::default());
    let set = first.objects.iter().find(|object| object.resource.kind == "StatefulSet").unwrap();
    let claim = |name: &str, size: &str| {
        let json =
            serde_json::json!({"metadata": {"name": name}, "spec": {"resources": {"requests": {"storage": size}}}});
        serde_json::from_value(json).unwrap()
    };
    let observed = Observed {
        stateful_set: Some(serde_json::from_value(set.value.clone()).unwrap()),
        claims: vec![
            claim("data-orders-0", "8Gi"),
            claim("data-orders-1", "10Gi"),
            claim("data-orders-7", "8Gi"),
            claim("theirs", "1Gi"),
        ],
        ..Observed::default()
    };
    let grown = built(serde_json::json!({"storage": {"size": "10Gi", "storageClassName": "fast"}}), &observed);
    assert_eq!(grown.claims_to_grow, [("data-orders-0".to_owned(), "10Gi".to_owned())]);
    let after = grown.objects.iter().find(|object| object.resource.kind == "StatefulSet").unwrap();
    assert_eq!(after.value, set.value);
}

/// Every container sets requests and limits for both.
#[test]
fn requests_and_limits_are_always_set() {
    let built = built(serde_json::json!({}), &Observed::default());
    let set = built.objects.iter().find(|object| object.resource.kind == "StatefulSet").unwrap();
    let containers = set.value["spec"]["template"]["spec"]["containers"].as_array().unwrap();
    for container in containers {
        for kind in ["requests", "limits"] {
            for resource in ["cpu", "memory"] {
                assert!(container["resources"][kind][resource].is_string(), "{kind} {resource} of {container}");
            }
        }
    }
}

/// Probes ask the broker alone, by HTTP on its own port.
#[test]
fn probes_are_local() {
    let built = built(serde_json::json!({}), &Observed::default());
    let set = built.objects.iter().find(|object| object.resource.kind == "StatefulSet").unwrap();
    let container = &set.value["spec"]["template"]["spec"]["containers"][0];
    for (probe, path) in [("startupProbe", "/startupz"), ("readinessProbe", "/readyz"), ("livenessProbe", "/livez")] {
        assert_eq!(container[probe]["httpGet"]["path"], path);
        assert_eq!(container[probe]["httpGet"]["port"], 15692);
        assert!(container[probe]["httpGet"].get("host").is_none());
    }
}
