use std::collections::BTreeMap;
use std::io::Read;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flate2::read::GzDecoder;
use serde_json::json;

use super::*;
use crate::fake_api::{FakeApi, cluster_path};

/// In every place where one could stand.
const PLANTED: &str = "pl4nted-Xq7-s3cret";

fn path(api: &str, rest: &str) -> String {
    format!("/{api}/namespaces/shop/{rest}")
}

fn planted() -> FakeApi {
    let api = FakeApi::with_cluster("orders");
    let annotations = json!({
        "example.com/password": PLANTED, "note": format!("see amqp://app:{PLANTED}@orders:5672/"),
        "kubectl.kubernetes.io/last-applied-configuration": format!("{{\"spec\":\"{PLANTED}\"}}"),
    });
    api.change(&cluster_path("orders"), |cluster| {
        cluster["metadata"]["annotations"] = annotations.clone();
        cluster["metadata"]["managedFields"] = json!([{"f:token": PLANTED}]);
        cluster["spec"]["users"] = json!({"secretRef": {"name": "own-users"}});
        cluster["spec"]["podTemplate"] =
            json!({"env": [{"name": "API_TOKEN", "value": PLANTED}, {"name": "PLAIN", "value": PLANTED}]});
        cluster["status"]["conditions"][1]["status"] = "False".into();
        cluster["status"]["conditions"][1]["message"] = format!("login with password={PLANTED} failed").into();
    });
    let secret = |name: &str| {
        json!({"kind": "Secret", "apiVersion": "v1", "type": "Opaque",
               "metadata": {"name": name, "namespace": "shop", "annotations": {"x": PLANTED}},
               "data": {"password": STANDARD.encode(PLANTED), "username": STANDARD.encode("app")}})
    };
    for name in ["orders-user", "own-users"] {
        api.put(&path("api/v1", &format!("secrets/{name}")), secret(name));
    }
    let object = |kind: &str, name: &str| json!({"kind": kind, "metadata": {"name": name, "annotations": annotations}});
    for (group, resource, kind) in [
        ("apis/apps/v1", "statefulsets", "StatefulSet"),
        ("api/v1", "services", "Service"),
        ("apis/discovery.k8s.io/v1", "endpointslices", "EndpointSlice"),
        ("api/v1", "persistentvolumeclaims", "PersistentVolumeClaim"),
        ("apis/policy/v1", "poddisruptionbudgets", "PodDisruptionBudget"),
        ("apis/coordination.k8s.io/v1", "leases", "Lease"),
    ] {
        api.put(&path(group, &format!("{resource}/orders")), object(kind, "orders"));
    }
    for n in 0..2 {
        let pod = format!("orders-{n}");
        let mut value = object("Pod", &pod);
        value["spec"]["containers"] = json!([{
            "args": [format!("--token={PLANTED}"), "--key", PLANTED],
            "env": [{"name": "DB_PASSWORD", "value": PLANTED}, {"name": "DSN", "value": format!("amqp://a:{PLANTED}@h")}],
        }]);
        api.put(&path("api/v1", &format!("pods/{pod}")), value);
        api.put_text(
            &path("api/v1", &format!("pods/{pod}/log")),
            &format!("{{\"password\":\"{PLANTED}\"}}\nuser app came\n{PLANTED}\n"),
        );
        api.put_text(
            &path("api/v1", &format!("pods/{pod}:15692/proxy/metrics")),
            &format!("up{{url=\"amqp://a:{PLANTED}@h\"}} 1\n"),
        );
    }
    let event = |of: &str| json!({"kind": "Event", "metadata": {"name": of}, "involvedObject": {"name": of}, "message": format!("token: {PLANTED}")});
    for of in ["orders-1", "data-orders-1", "other-0"] {
        api.put(&path("api/v1", &format!("events/{of}")), event(of));
    }
    let operators = "/api/v1/namespaces/understudy-system/pods/understudy-operator-x";
    api.put(operators, object("Pod", "understudy-operator-x"));
    api.put_text(&format!("{operators}/log"), &format!("Authorization: Bearer {PLANTED}\n"));
    api
}

async fn bundle(api: &FakeApi) -> Bundle {
    collect(&api.kubernetes(), None, "understudy-system", OffsetDateTime::UNIX_EPOCH).await.unwrap()
}

/// What somebody finds who unpacks it.
fn unpacked(bundle: &Bundle) -> BTreeMap<String, String> {
    let mut bytes = Vec::new();
    pack(bundle, "understudy-orders", OffsetDateTime::UNIX_EPOCH, &mut bytes).unwrap();
    let mut archive = tar::Archive::new(GzDecoder::new(bytes.as_slice()));
    let entries = archive.entries().unwrap().map(|entry| {
        let mut entry = entry.unwrap();
        let name = entry.path().unwrap().display().to_string();
        let mut text = String::new();
        entry.read_to_string(&mut text).unwrap();
        (name.strip_prefix("understudy-orders/").unwrap().to_owned(), text)
    });
    entries.collect()
}

#[tokio::test]
async fn a_secret_that_stands_everywhere_is_nowhere_in_the_bundle() {
    let api = planted();
    let bundle = bundle(&api).await;
    assert_eq!(api.first_not_granted(), None);
    let files = unpacked(&bundle);
    assert_eq!(bundle.problems, Vec::<String>::new());
    let expected = [
        "about.txt",
        "brokercluster.yaml",
        "endpointslices.yaml",
        "events.yaml",
        "lease.yaml",
        "logs/orders-0.log",
        "logs/orders-0.previous.log",
        "logs/orders-1.log",
        "logs/orders-1.previous.log",
        "metrics/orders-0.txt",
        "metrics/orders-1.txt",
        "operator.yaml",
        "operator/understudy-operator-x.log",
        "operator/understudy-operator-x.previous.log",
        "persistentvolumeclaims.yaml",
        "poddisruptionbudgets.yaml",
        "pods.yaml",
        "secrets.yaml",
        "services.yaml",
        "statefulsets.yaml",
        "status.txt",
    ];
    assert_eq!(files.keys().map(String::as_str).collect::<Vec<_>>(), expected);
    let coded = STANDARD.encode(PLANTED);
    for (name, text) in &files {
        assert!(!text.contains(PLANTED) && !text.contains(&coded), "{name}:\n{text}");
        assert!(!text.contains("last-applied") && !text.contains("managedFields"), "{name}:\n{text}");
        let says_nothing_of_it = ["about.txt", "secrets.yaml"].contains(&name.as_str());
        assert!(says_nothing_of_it || text.contains("(struck out)"), "{name} had nothing to strike out:\n{text}");
    }
    assert!(files["secrets.yaml"].contains("own-users") && files["secrets.yaml"].contains("- password"));
    assert!(files["logs/orders-0.log"].contains("user app came"));
    assert!(!files["events.yaml"].contains("other-0") && files["events.yaml"].contains("data-orders-1"));
}

/// Without the right to read Secrets their values are not known: what looks like one is struck out all the same.
#[tokio::test]
async fn without_the_values_by_their_looks() {
    let api = planted();
    for name in ["orders-user", "own-users"] {
        api.remove(&path("api/v1", &format!("secrets/{name}")));
    }
    let files = unpacked(&bundle(&api).await);
    // In a place of which nothing says that it holds a secret it cannot be told.
    let unsaid = ["pods.yaml", "brokercluster.yaml", "logs/orders-0.log", "logs/orders-1.log"];
    for (name, text) in
        files.iter().filter(|(name, _)| !unsaid.iter().any(|unsaid| name.replace(".previous", "") == *unsaid))
    {
        assert!(!text.contains(PLANTED), "{name}:\n{text}");
    }
    assert_eq!(files["pods.yaml"].matches(PLANTED).count(), 2, "the argument after --key of each");
}

#[tokio::test]
async fn what_cannot_be_read_is_named_and_the_rest_is_there() {
    let api = FakeApi::with_cluster("orders");
    let pod = json!({"kind": "Pod", "metadata": {"name": "orders-0"}});
    api.put(&path("api/v1", "pods/orders-0"), pod);
    let bundle = bundle(&api).await;
    let all = bundle.problems.join("\n");
    for part in ["leases/orders", "the metrics of orders-0", "the log of orders-0", "say --operator-namespace"] {
        assert!(all.contains(part), "{part:?} is not in {all}");
    }
    assert!(bundle.files["about.txt"].contains("the log of orders-0"));
    assert!(bundle.files["status.txt"].contains("shop/orders"));
    let error = collect(&api.kubernetes(), Some("other"), "x", OffsetDateTime::UNIX_EPOCH).await.err().unwrap();
    assert!(error.to_string().contains("no BrokerCluster other"));
}
