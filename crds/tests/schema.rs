//! The generated schema is the committed one. `UPDATE_EXPECT=1 cargo test -p understudy-crds` writes it anew.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use expect_test::expect_file;
use kube::CustomResourceExt;
use understudy_crds::BrokerCluster;

#[test]
fn the_committed_schema_is_current() {
    let yaml = serde_yaml::to_string(&BrokerCluster::crd()).unwrap();
    let text =
        format!("# Generated from crds/src by `UPDATE_EXPECT=1 cargo test -p understudy-crds`; do not edit.\n{yaml}");
    expect_file!["../yaml/brokercluster.yaml"].assert_eq(&text);
}

/// A structural schema gives every object its properties and every field a type, or the API server prunes it.
#[test]
fn every_field_has_a_type_and_a_description() {
    fn walk(path: &str, schema: &serde_json::Value) {
        let Some(properties) = schema.get("properties").and_then(|p| p.as_object()) else { return };
        for (name, field) in properties {
            let path = format!("{path}.{name}");
            let typed = field.get("type").is_some() || field.get("x-kubernetes-int-or-string").is_some();
            assert!(typed, "{path} has no type: {field}");
            assert!(field.get("$ref").is_none(), "{path} is a reference");
            let described = field.get("description").and_then(|d| d.as_str()).is_some_and(|d| !d.is_empty());
            assert!(described, "{path} has no description: kubectl explain would show none");
            walk(&path, field);
            if let Some(items) = field.get("items") {
                walk(&format!("{path}[]"), items);
            }
        }
    }
    let crd = serde_json::to_value(BrokerCluster::crd()).unwrap();
    let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    assert!(schema["properties"]["spec"]["properties"]["replicas"]["default"] == 3, "{schema}");
    walk("", schema);
}
