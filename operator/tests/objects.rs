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
    let target =
        validate(&cluster, &Defaults { broker_image: "understudy/broker:dev".into(), ..Defaults::default() }).unwrap();
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
        "imagePullSecrets": [{"name": "registry"}], "durability": "Replicated",
        "storage": {"size": "20Gi", "storageClassName": "fast", "freeWatermark": "3Gi",
            "retention": {"whenDeleted": "Delete", "whenScaled": "Delete"}},
        "resources": {"requests": {"cpu": 2, "memory": "4Gi"}},
        "broker": {"segmentSize": "16Mi", "checkpointSize": "1Gi", "checkpointRate": "128Mi", "resumeRecords": 1000,
            "scrubInterval": "0s", "handshakeTimeout": "5s", "acceptDifferences": true},
        "memory": {"budget": "1Gi", "watermarkPercent": 75},
        "scheduling": {"spread": "Required", "nodeSelector": {"disk": "nvme"}, "priorityClassName": "high",
            "tolerations": [{"key": "brokers", "operator": "Exists", "effect": "NoSchedule"}],
            "topologySpreadConstraints": [{"topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule"}],
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                {"matchExpressions": [{"key": "kubernetes.io/arch", "operator": "In", "values": ["amd64"]}]}]}}}},
        "podTemplate": {"metadata": {"labels": {"team": "shop"}, "annotations": {"example.com/scrape": "no"}},
            "spec": {"containers": [{"name": "side", "image": "side:1"}, {"name": "broker", "env": [{"name": "RUST_LOG", "value": "debug"}]}]}},
        "service": {"type": "LoadBalancer", "annotations": {"example.com/lb": "internal"}, "labels": {"team": "shop"},
            "externalTrafficPolicy": "Local", "loadBalancerClass": "example.com/fast", "loadBalancerSourceRanges": ["10.0.0.0/8"],
            "amqpsPort": 443},
        "clients": {"backupConnections": "Refuse", "plaintext": "Refuse", "maxConnections": 1000, "maxChannelsPerConnection": 100,
            "maxMessageSize": "16Mi", "consumerTimeout": "10m", "loginFailureDelay": "2s",
            "saslMechanisms": ["PLAIN", "EXTERNAL"], "saslTlsOnly": ["PLAIN"],
            "tls": {"issuer": {"name": "company", "kind": "ClusterIssuer"}, "dnsNames": ["orders.example.com"],
                "clientAuthority": {"secretName": "people"}, "clientCertificates": "Required", "loginFrom": "SanDns", "minVersion": "1.3"}},
        "failover": {"leaseDuration": "3s", "backupTimeout": "500ms", "stallTimeout": "1m", "promotion": "Manual"},
        "primary": {"preferred": "orders-0"},
        "replication": {"catchUpBandwidth": "50Mi", "maxCatchUps": 2, "default": "configuration"},
        "update": {"strategy": "Supervised"},
        "monitoring": {"podMonitor": {"labels": {"prometheus": "main"}, "interval": "15s"}},
        "networkPolicies": {"enabled": false},
    });
    expect_file!["golden/everything-set.yaml"].assert_eq(&yaml(&built(spec, &Observed::default())));
}

/// Its authority is none that brokers let each other in by.
#[test]
fn the_operator_issues_what_clients_see_where_nobody_else_does() {
    let built =
        built(serde_json::json!({"clients": {"tls": {"dnsNames": ["orders.example.com"]}}}), &Observed::default());
    let secret = |name: &str| {
        let object = built.objects.iter().find(|object| object.name == name).unwrap_or_else(|| panic!("no {name}"));
        object.value.clone()
    };
    let (peers, clients) = (secret("orders-tls"), secret("orders-client-tls"));
    assert_eq!(clients["type"], "kubernetes.io/tls");
    assert_ne!(peers["data"]["ca.crt"], clients["data"]["ca.crt"]);
    assert_eq!(secret("orders-client-ca")["data"]["ca.crt"], clients["data"]["ca.crt"]);
    let hosts = clients["metadata"]["annotations"]["understudy.dev/hosts"].as_str().unwrap().to_owned();
    assert!(hosts.contains("orders.shop.svc,") && hosts.ends_with(",orders,orders-any,orders.example.com"), "{hosts}");
    let user = secret("orders-user");
    let keys: Vec<&String> = user["data"].as_object().unwrap().keys().collect();
    assert_eq!(keys, ["host", "password", "port", "tls-port", "tls-uri", "uri", "username", "users"]);
}

/// A volume that goes when a pod is scaled away must not go when all pods are.
#[test]
fn hibernation_takes_pods_away_and_no_volume() {
    let mut cluster: BrokerCluster = serde_json::from_value(serde_json::json!({
        "apiVersion": "understudy.dev/v1alpha1", "kind": "BrokerCluster",
        "metadata": {"name": "orders", "namespace": "shop", "uid": "u-1"},
        "spec": {"storage": {"retention": {"whenScaled": "Delete"}}},
    }))
    .unwrap();
    let set = |cluster: &BrokerCluster| {
        let target = validate(cluster, &Defaults::default()).unwrap();
        let built = build(&target, &Observed::default(), &VerifiedCredentials::default(), OffsetDateTime::UNIX_EPOCH);
        let set = built.unwrap().objects.into_iter().find(|object| object.resource.kind == "StatefulSet");
        set.unwrap().value["spec"].clone()
    };
    let awake = set(&cluster);
    assert_eq!(
        (&awake["replicas"], &awake["persistentVolumeClaimRetentionPolicy"]["whenScaled"]),
        (&3.into(), &"Delete".into())
    );
    cluster.metadata.annotations = Some([("understudy.dev/hibernation".to_owned(), "on".to_owned())].into());
    let asleep = set(&cluster);
    assert_eq!(
        (&asleep["replicas"], &asleep["persistentVolumeClaimRetentionPolicy"]["whenScaled"]),
        (&0.into(), &"Retain".into())
    );
    assert_eq!(asleep["template"], awake["template"]);
}

#[test]
fn peers_and_the_operator_alone_may_speak_to_brokers_as_brokers() {
    let cluster = serde_json::from_value(serde_json::json!({
        "apiVersion": "understudy.dev/v1alpha1", "kind": "BrokerCluster",
        "metadata": {"name": "orders", "namespace": "shop", "uid": "u-1"}, "spec": {},
    }))
    .unwrap();
    let defaults = Defaults { broker_image: "b".into(), operator_namespace: Some("understudy-system".into()) };
    let target = validate(&cluster, &defaults).unwrap();
    let built =
        build(&target, &Observed::default(), &VerifiedCredentials::default(), OffsetDateTime::UNIX_EPOCH).unwrap();
    let policy = built.objects.iter().find(|object| object.resource.kind == "NetworkPolicy").unwrap();
    let rule = &policy.value["spec"]["ingress"][1];
    assert_eq!(rule["ports"][0]["port"], 7672);
    assert_eq!(rule["from"][0]["podSelector"]["matchLabels"]["app.kubernetes.io/instance"], "orders");
    assert_eq!(rule["from"][1]["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"], "understudy-system");
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

/// The StatefulSet's template has the new size, and the claims grow, those of the spec alone.
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
    let template = &after.value["spec"]["volumeClaimTemplates"][0]["spec"];
    assert_eq!(
        (&template["resources"]["requests"]["storage"], &template["storageClassName"]),
        (&"10Gi".into(), &"fast".into())
    );
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

#[test]
fn it_is_known_when_each_certificate_ends() {
    let ends = built(serde_json::json!({"clients": {"tls": {}}}), &Observed::default()).certificates_end;
    let day = |which| ends[which] / 86_400;
    assert_eq!([day("ca"), day("tls"), day("client-ca"), day("client-tls")], [3650, 365, 3650, 365]);
    let names: Vec<_> = built(serde_json::json!({}), &Observed::default()).certificates_end.into_keys().collect();
    assert_eq!(names, ["ca", "tls"]);
}
