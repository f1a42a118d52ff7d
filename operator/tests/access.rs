//! The ClusterRole of `manifests/base` grants what the operator's code calls, all of what it grants to brokers, and nothing
//! else.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::collections::BTreeSet;

use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule};
use serde::Deserialize;
use time::OffsetDateTime;
use understudy_operator::build::{VerifiedCredentials, build};
use understudy_operator::dereference::Observed;
use understudy_operator::validate::{Defaults, validate};

type Grant = (String, String, String);

/// Group, resource, verbs, and where the code calls them.
const CALLED: [(&str, &str, &str); 25] = [
    ("understudy.dev", "brokerclusters", "list watch"),   // controller
    ("understudy.dev", "brokerclusters", "get patch"),    // failover::moves: takes annotations off
    ("understudy.dev", "brokerclusters/status", "patch"), // status
    ("understudy.dev", "brokerclusters/finalizers", "update"), // owner references, where that is enforced
    ("apps", "statefulsets", "get list watch create patch delete"), // controller, dereference, apply
    ("", "services", "get list watch create patch"),      // controller, apply
    ("", "serviceaccounts", "get list watch create patch"), // controller, apply
    ("", "secrets", "get list watch create patch"),       // controller, dereference, apply
    ("", "configmaps", "get list watch create patch"),    // controller, dereference, apply
    ("", "nodes", "list watch"),                          // failover::nodes
    ("", "pods", "list watch delete patch"),              // failover::task; patch also granted to brokers
    ("", "persistentvolumeclaims", "list patch"),         // dereference, apply
    ("", "events", "list"),                               // dereference
    ("events.k8s.io", "events", "create patch"),          // failover::announce
    ("policy", "poddisruptionbudgets", "get list watch create patch delete"), // controller, apply
    ("networking.k8s.io", "networkpolicies", "get list watch create patch delete"), // controller, apply
    ("cert-manager.io", "certificates", "get create patch delete"), // apply
    ("monitoring.coreos.com", "podmonitors", "get create patch delete"), // apply
    ("rbac.authorization.k8s.io", "roles", "get list watch create patch"), // controller, apply
    ("rbac.authorization.k8s.io", "rolebindings", "get list watch create patch"), // controller, apply
    ("coordination.k8s.io", "leases", "get list watch create update"), // understudy-lease
    ("coordination.k8s.io", "leases", "delete"),          // earlier
    ("discovery.k8s.io", "endpointslices", "get list watch"), // controller, failover::endpoint
    ("discovery.k8s.io", "endpointslices", "create"),     // apply, failover::endpoint
    ("discovery.k8s.io", "endpointslices", "update delete"), // failover::endpoint
];

fn grants(rules: &[PolicyRule]) -> BTreeSet<Grant> {
    let mut grants = BTreeSet::new();
    for rule in rules {
        for group in rule.api_groups.iter().flatten() {
            for resource in rule.resources.iter().flatten() {
                grants.extend(rule.verbs.iter().map(|verb| (group.clone(), resource.clone(), verb.clone())));
            }
        }
    }
    grants
}

fn granted_to_operator() -> BTreeSet<Grant> {
    let text = include_str!("../../manifests/base/access.yaml");
    let documents = serde_yaml::Deserializer::from_str(text).map(|d| serde_yaml::Value::deserialize(d).unwrap());
    let role = documents.into_iter().find(|document| document["kind"] == "ClusterRole").unwrap();
    let role: ClusterRole = serde_yaml::from_value(role).unwrap();
    grants(&role.rules.unwrap())
}

#[test]
fn the_operator_may_do_what_it_does_and_nothing_else() {
    let called: BTreeSet<Grant> = CALLED
        .iter()
        .flat_map(|(group, resource, verbs)| {
            verbs.split(' ').map(|verb| ((*group).to_owned(), (*resource).to_owned(), verb.to_owned()))
        })
        .collect();
    let granted = granted_to_operator();
    assert_eq!(called.difference(&granted).collect::<Vec<_>>(), Vec::<&Grant>::new(), "called and not granted");
    assert_eq!(granted.difference(&called).collect::<Vec<_>>(), Vec::<&Grant>::new(), "granted and not called");
}

/// Kubernetes lets nobody grant what he has not got.
#[test]
fn the_operator_has_what_it_grants_to_brokers() {
    let cluster = serde_json::from_value(serde_json::json!({
        "apiVersion": "understudy.dev/v1alpha1", "kind": "BrokerCluster",
        "metadata": {"name": "orders", "namespace": "shop", "uid": "u-1"}, "spec": {},
    }))
    .unwrap();
    let target = validate(&cluster, &Defaults { broker_image: "broker".into(), ..Defaults::default() }).unwrap();
    let verified = VerifiedCredentials::default();
    let built = build(&target, &Observed::default(), &verified, OffsetDateTime::UNIX_EPOCH).unwrap();
    let role = built.objects.iter().find(|object| object.resource.kind == "Role").unwrap();
    let rules: Vec<PolicyRule> = serde_json::from_value(role.value["rules"].clone()).unwrap();
    let to_brokers = grants(&rules);
    assert!(to_brokers.len() >= 7, "{to_brokers:?}");
    assert!(to_brokers.is_subset(&granted_to_operator()));
}
