//! What is under `manifests/` is one thing said three ways: the kustomize base, `install.yaml`, the Helm chart. Each renders the
//! same objects, and each object has only fields that Kubernetes knows. Tests that need kustomize and helm are ignored unless
//! `make manifests-check` runs them, with their paths in `KUSTOMIZE` and `HELM`; with `UPDATE_EXPECT=1` files are written anew.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use expect_test::{expect, expect_file};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Namespace, Service, ServiceAccount};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

const NAMESPACE: &str = "understudy-system";
const KEEP: &str = "helm.sh/resource-policy";
/// Every value of the chart that changes what is rendered.
const EVERY_VALUE: &str = r#"
namespaced: true
replicas: 3
image: {repository: registry.example/operator, tag: "1", pullPolicy: Always}
brokerImage: registry.example/broker:1
imagePullSecrets: [{name: registry}]
resources: {requests: {cpu: 1m}}
priorityClassName: system-cluster-critical
nodeSelector: {kubernetes.io/os: linux}
tolerations: [{key: dedicated, operator: Exists}]
affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: a, operator: Exists}]}]}}}
podLabels: {team: platform}
podAnnotations: {note: seen}
serviceAccount: {annotations: {note: seen}}
env: [{name: RUST_LOG, value: debug}]
"#;

/// By kind and name.
type Objects = BTreeMap<(String, String), Value>;

fn manifests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../manifests")
}

fn objects(text: &str) -> Objects {
    let documents = serde_yaml::Deserializer::from_str(text).map(|document| Value::deserialize(document).unwrap());
    let named = documents.filter(|document| !document.is_null()).map(|object| {
        let text = |pointer| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        ((text("/kind"), text("/metadata/name")), object)
    });
    let list: Vec<_> = named.collect();
    let count = list.len();
    let objects: Objects = list.into_iter().collect();
    assert_eq!(objects.len(), count, "an object stands there twice");
    objects
}

fn output(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn tool(variable: &str) -> Command {
    let program =
        std::env::var(variable).unwrap_or_else(|_| panic!("{variable} is not set: use `make manifests-check`"));
    Command::new(program)
}

fn kustomized(folder: &str) -> String {
    output(tool("KUSTOMIZE").arg("build").arg("--load-restrictor=LoadRestrictionsNone").arg(manifests().join(folder)))
}

fn chart() -> PathBuf {
    manifests().join("helm/understudy-operator")
}

fn templated(arguments: &[&str]) -> Objects {
    let mut helm = tool("HELM");
    helm.args(["template", "any", "--namespace", NAMESPACE, "--kube-version", "1.34.0"]).arg(chart()).args(arguments);
    let mut objects = objects(&output(&mut helm));
    for object in objects.values_mut() {
        assert_eq!(object.pointer("/metadata/namespace").is_some(), is_namespaced(object), "{object}");
    }
    if let Some(crd) = objects.get_mut(&("CustomResourceDefinition".into(), "brokerclusters.understudy.dev".into())) {
        let metadata = crd["metadata"].as_object_mut().unwrap();
        let annotations = metadata.remove("annotations").unwrap();
        assert_eq!(annotations, serde_json::json!({KEEP: "keep"}), "the CRD stays when the chart goes");
    }
    objects
}

fn is_namespaced(object: &Value) -> bool {
    let kind = object["kind"].as_str().unwrap();
    !["Namespace", "CustomResourceDefinition", "ClusterRole", "ClusterRoleBinding"].contains(&kind)
}

fn assert_same(mut kustomize: Objects, helm: &Objects) {
    // Helm makes it before it renders anything: --create-namespace.
    kustomize.remove(&("Namespace".into(), NAMESPACE.into())).expect("kustomize makes the namespace");
    assert_eq!(kustomize.keys().collect::<Vec<_>>(), helm.keys().collect::<Vec<_>>());
    for (key, object) in &kustomize {
        assert_eq!(object, &helm[key], "{key:?}: kustomize left, helm right");
    }
}

/// The chart can read no file outside of its folder.
#[test]
fn the_chart_has_the_crd_and_the_rules() {
    let crd = std::fs::read_to_string(manifests().join("../crds/yaml/brokercluster.yaml")).unwrap();
    expect_file![chart().join("files/brokercluster.yaml")].assert_eq(&crd);
    let access = objects(&std::fs::read_to_string(manifests().join("base/access.yaml")).unwrap());
    let role = &access[&("ClusterRole".to_owned(), "understudy-operator".to_owned())];
    let rules = serde_yaml::to_string(&role["rules"]).unwrap();
    let text = format!("# Generated from manifests/base/access.yaml by `make generate`; do not edit.\n{rules}");
    expect_file![chart().join("files/rules.yaml")].assert_eq(&text);
}

#[test]
#[ignore = "needs kustomize"]
fn the_one_file_is_what_kustomize_makes() {
    let text = format!(
        "# All of it: kubectl apply --server-side -f install.yaml\n# Generated from manifests/base by `make manifests`; do not edit.\n{}",
        kustomized("base")
    );
    expect_file![manifests().join("install.yaml")].assert_eq(&text);
}

#[test]
#[ignore = "needs kustomize and helm"]
fn kustomize_and_helm_render_the_same() {
    assert_same(objects(&kustomized("base")), &templated(&[]));
    assert_same(objects(&kustomized("namespaced")), &templated(&["--set", "namespaced=true"]));
}

#[test]
#[ignore = "needs kustomize and helm"]
fn the_service_monitor_is_the_same_too() {
    let helm = templated(&["--set", "metrics.serviceMonitor.enabled=true"]);
    let key = ("ServiceMonitor".to_owned(), "understudy-operator".to_owned());
    let mut of_chart = helm[&key].clone();
    of_chart["metadata"].as_object_mut().unwrap().remove("namespace");
    assert_eq!(
        objects(&std::fs::read_to_string(manifests().join("monitoring/operator.yaml")).unwrap())[&key],
        of_chart
    );
}

/// Nothing of the operator's own namespace alone needs the rest of the cluster.
#[test]
#[ignore = "needs kustomize"]
fn the_namespaced_operator_has_no_role_outside() {
    let objects = objects(&kustomized("namespaced"));
    let outside: Vec<&str> = objects
        .values()
        .filter(|object| !is_namespaced(object))
        .map(|object| object["kind"].as_str().unwrap())
        .collect();
    assert_eq!(outside, ["CustomResourceDefinition", "Namespace"]);
    let role = &objects[&("Role".to_owned(), "understudy-operator".to_owned())];
    assert!(!role.to_string().contains("nodes"), "{role}");
    assert!(role["rules"].as_array().unwrap().len() > 10);
}

#[test]
#[ignore = "needs helm"]
fn every_value_of_the_chart_has_its_effect_and_others_are_refused() {
    let file = std::env::temp_dir().join(format!("understudy-values-{}.yaml", std::process::id()));
    std::fs::write(&file, EVERY_VALUE).unwrap();
    let rendered = templated(&["--values", file.to_str().unwrap()]);
    std::fs::remove_file(&file).unwrap();
    rendered.values().for_each(assert_known);
    let deployment = &rendered[&("Deployment".to_owned(), "understudy-operator".to_owned())];
    let pod = &deployment["spec"]["template"];
    let picked = serde_json::json!({
        "replicas": deployment["spec"]["replicas"],
        "image": pod["spec"]["containers"][0]["image"],
        "pull": pod["spec"]["containers"][0]["imagePullPolicy"],
        "env": pod["spec"]["containers"][0]["env"].as_array().unwrap().iter().map(|v| &v["name"]).collect::<Vec<_>>(),
        "resources": pod["spec"]["containers"][0]["resources"],
        "secrets": pod["spec"]["imagePullSecrets"],
        "priority": pod["spec"]["priorityClassName"],
        "nodes": pod["spec"]["nodeSelector"],
        "tolerations": pod["spec"]["tolerations"].as_array().unwrap().len(),
        "affinity": pod["spec"]["affinity"].as_object().unwrap().keys().collect::<Vec<_>>(),
        "metadata": pod["metadata"],
    });
    expect![[r#"{"affinity":["nodeAffinity"],"env":["UNDERSTUDY_BROKER_IMAGE","POD_NAME","POD_NAMESPACE","UNDERSTUDY_NAMESPACE","RUST_LOG"],"image":"registry.example/operator:1","metadata":{"annotations":{"note":"seen"},"labels":{"app.kubernetes.io/name":"understudy-operator","team":"platform"}},"nodes":{"kubernetes.io/os":"linux"},"priority":"system-cluster-critical","pull":"Always","replicas":3,"resources":{"limits":{"cpu":"1","memory":"256Mi"},"requests":{"cpu":"1m","memory":"64Mi"}},"secrets":[{"name":"registry"}],"tolerations":3}"#]]
        .assert_eq(&picked.to_string());
    for wrong in ["replica=1", "image.pullPolicy=Sometimes", "replicas=-1", "namespaced=perhaps"] {
        let mut helm = tool("HELM");
        helm.args(["template", "any", "--set", wrong]).arg(chart());
        let refused = helm.output().unwrap();
        assert!(!refused.status.success(), "{wrong} is taken");
    }
    output(tool("HELM").args(["lint", "--strict", "--quiet"]).arg(chart()));
}

#[test]
fn the_one_file_has_only_fields_that_kubernetes_knows() {
    let objects = objects(&std::fs::read_to_string(manifests().join("install.yaml")).unwrap());
    assert!(objects.len() >= 8);
    objects.values().for_each(assert_known);
}

/// The Prometheus operator's kinds have no types here: these fields of them are all that is used. promtool looks into the rules.
#[test]
#[ignore = "needs kustomize"]
fn the_objects_for_prometheus_are_as_its_operator_has_them() {
    let objects = objects(&kustomized("monitoring"));
    let fields = |kind: &str, name: &str, pointer: &str| -> Vec<String> {
        let object = &objects[&(kind.to_owned(), name.to_owned())];
        assert_eq!(object["apiVersion"], "monitoring.coreos.com/v1");
        assert_eq!(object["metadata"]["namespace"], NAMESPACE);
        object.pointer(pointer).unwrap().as_object().unwrap().keys().cloned().collect()
    };
    assert_eq!(fields("ServiceMonitor", "understudy-operator", "/spec"), ["endpoints", "selector"]);
    assert_eq!(fields("ServiceMonitor", "understudy-operator", "/spec/endpoints/0"), ["honorLabels", "path", "port"]);
    let brokers = |pointer| fields("PodMonitor", "understudy-brokers", pointer);
    assert_eq!(brokers("/spec"), ["namespaceSelector", "podMetricsEndpoints", "selector"]);
    assert_eq!(brokers("/spec/podMetricsEndpoints/0"), ["path", "port", "relabelings"]);
    assert_eq!(brokers("/spec/podMetricsEndpoints/0/relabelings/0"), ["sourceLabels", "targetLabel"]);
    assert_eq!(fields("PrometheusRule", "understudy", "/spec"), ["groups"]);
    assert_eq!(objects.len(), 3);
}

/// Read as Kubernetes' own type and written again, nothing is missing.
fn assert_known(object: &Value) {
    let kind = object["kind"].as_str().unwrap();
    match kind {
        "ClusterRole" => assert_whole::<ClusterRole>(object),
        "ClusterRoleBinding" => assert_whole::<ClusterRoleBinding>(object),
        "CustomResourceDefinition" => assert_whole::<CustomResourceDefinition>(object),
        "Deployment" => assert_whole::<Deployment>(object),
        "Namespace" => assert_whole::<Namespace>(object),
        "PodDisruptionBudget" => assert_whole::<PodDisruptionBudget>(object),
        "Role" => assert_whole::<Role>(object),
        "RoleBinding" => assert_whole::<RoleBinding>(object),
        "Service" => assert_whole::<Service>(object),
        "ServiceAccount" => assert_whole::<ServiceAccount>(object),
        kind => panic!("no type is known for {kind}"),
    }
}

fn assert_whole<K: DeserializeOwned + Serialize>(object: &Value) {
    let typed: K = serde_json::from_value(object.clone()).unwrap_or_else(|error| panic!("{error}: {object}"));
    let again = serde_json::to_value(typed).unwrap();
    let mut lost = Vec::new();
    compare("", object, &again, &mut lost);
    assert_eq!(lost, Vec::<String>::new(), "{}", object["kind"]);
}

fn compare(path: &str, left: &Value, right: &Value, lost: &mut Vec<String>) {
    match (left, right) {
        (Value::Object(left), Value::Object(right)) => {
            for (key, value) in left {
                match right.get(key) {
                    Some(other) => compare(&format!("{path}.{key}"), value, other, lost),
                    None => lost.push(format!("{path}.{key}")),
                }
            }
        }
        (Value::Array(left), Value::Array(right)) if left.len() == right.len() => {
            left.iter().zip(right).enumerate().for_each(|(at, (l, r))| compare(&format!("{path}[{at}]"), l, r, lost));
        }
        (Value::Number(left), Value::Number(right)) if left.as_f64() == right.as_f64() => {}
        _ if left == right => {}
        _ => lost.push(path.to_owned()),
    }
}
