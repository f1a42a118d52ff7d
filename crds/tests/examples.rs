//! The examples are what the API server takes and the operator understands, and one of them shows every field there is.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use kube::CustomResourceExt;
use regex::Regex;
use serde::Deserialize;
use serde_json::Value;
use understudy_crds::{BrokerCluster, ValidatedCluster};

/// Fields that exclude one that the production example has.
const LEFT_OUT: [&str; 1] = ["clients.tls.secretName"];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../manifests/examples")
}

fn documents(text: &str) -> Vec<Value> {
    serde_yaml::Deserializer::from_str(text).map(|document| Value::deserialize(document).unwrap()).collect()
}

fn spec_schema() -> Value {
    let crd = serde_json::to_value(BrokerCluster::crd()).unwrap();
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"].clone()
}

#[test]
fn every_example_is_valid() {
    let schema = spec_schema();
    let mut clusters = 0;
    for entry in std::fs::read_dir(folder()).unwrap() {
        let path = entry.unwrap().path();
        for mut document in documents(&std::fs::read_to_string(&path).unwrap()) {
            if document["kind"] != "BrokerCluster" {
                assert_eq!(document["kind"], "ConfigMap", "{}", path.display());
                continue;
            }
            let mut wrong = Vec::new();
            check("spec", &schema, &document["spec"], &mut wrong);
            assert_eq!(wrong, Vec::<String>::new(), "{}", path.display());
            document["metadata"]["namespace"] = "default".into();
            document["metadata"]["uid"] = "u-1".into();
            let cluster: BrokerCluster = serde_json::from_value(document).unwrap();
            ValidatedCluster::parse(&cluster).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            clusters += 1;
        }
    }
    assert!(clusters >= 5, "{clusters} clusters");
}

#[test]
fn the_definitions_of_the_example_are_there() {
    let documents = documents(&std::fs::read_to_string(folder().join("definitions.yaml")).unwrap());
    let [map, cluster] = documents.as_slice() else { panic!("a ConfigMap and a cluster are expected") };
    let reference = &cluster["spec"]["definitions"];
    assert_eq!(reference["configMapName"], map["metadata"]["name"]);
    let text = map["data"][reference["key"].as_str().unwrap()].as_str().unwrap();
    let definitions: Value = serde_json::from_str(text).unwrap();
    assert!(definitions["queues"].as_array().is_some_and(|queues| !queues.is_empty()));
}

#[test]
fn the_production_example_shows_every_field() {
    let mut known = BTreeSet::new();
    leaves_of_schema("", &spec_schema(), &mut known);
    let document = documents(&std::fs::read_to_string(folder().join("production.yaml")).unwrap()).remove(0);
    let mut shown = BTreeSet::new();
    leaves("", &document["spec"], &known, &mut shown);
    let missing: Vec<_> = known.difference(&shown).filter(|path| !LEFT_OUT.contains(&path.as_str())).collect();
    assert_eq!(missing, Vec::<&String>::new(), "add them to manifests/examples/production.yaml");
}

#[test]
fn the_check_finds_what_is_wrong() {
    let wrong = |yaml: &str| {
        let mut wrong = Vec::new();
        check("spec", &spec_schema(), &serde_yaml::from_str(yaml).unwrap(), &mut wrong);
        wrong.join("; ")
    };
    assert_eq!(wrong("{replicas: 3, storage: {size: 8Gi}}"), "");
    assert_eq!(wrong("replica: 3"), "spec.replica is no field");
    assert_eq!(wrong("replicas: three"), "spec.replicas: \"three\" is no integer");
    assert_eq!(wrong("replicas: 10"), "spec.replicas: 10 is out of range");
    assert_eq!(wrong("storage: {size: big}"), "spec.storage.size: \"big\" does not match");
    assert_eq!(wrong("durability: Sometimes"), "spec.durability: \"Sometimes\" is none of its words");
    assert_eq!(wrong("definitions: {}"), "spec.definitions lacks configMapName");
}

fn leaves_of_schema(path: &str, schema: &Value, known: &mut BTreeSet<String>) {
    let object = [schema, &schema["items"]].into_iter().find(|schema| schema["properties"].is_object());
    let Some(object) = object else {
        known.insert(path.to_owned());
        return;
    };
    for (name, field) in object["properties"].as_object().unwrap() {
        leaves_of_schema(&format!("{path}{}{name}", if path.is_empty() { "" } else { "." }), field, known);
    }
}

fn leaves(path: &str, value: &Value, known: &BTreeSet<String>, shown: &mut BTreeSet<String>) {
    if known.contains(path) {
        shown.insert(path.to_owned());
        return;
    }
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                leaves(&format!("{path}{}{name}", if path.is_empty() { "" } else { "." }), field, known, shown);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| leaves(path, item, known, shown)),
        _ => {}
    }
}

/// As the API server checks a structural schema, as far as ours uses it; and a field that it would prune is wrong.
fn check(path: &str, schema: &Value, value: &Value, wrong: &mut Vec<String>) {
    let mut say = |text: String| wrong.push(format!("{path}{text}"));
    if value.is_null() {
        if schema["nullable"] != true {
            say(": null".into());
        }
        return;
    }
    if let Some(words) = schema["enum"].as_array()
        && !words.contains(value)
    {
        return say(format!(": {value} is none of its words"));
    }
    let texts = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    if let Some(pattern) = schema["pattern"].as_str()
        && !Regex::new(pattern).unwrap().is_match(&texts(value))
    {
        return say(format!(": {value} does not match"));
    }
    if schema["x-kubernetes-int-or-string"] == true {
        if !value.is_string() && !value.is_i64() {
            say(format!(": {value} is no quantity"));
        }
        return;
    }
    match (schema["type"].as_str().unwrap_or_default(), value) {
        ("object", Value::Object(fields)) => {
            for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
                if !fields.contains_key(name) {
                    say(format!(" lacks {name}"));
                }
            }
            for (name, field) in fields {
                let path = format!("{path}.{name}");
                match (&schema["properties"][name], &schema["additionalProperties"]) {
                    (known @ Value::Object(_), _) | (_, known @ Value::Object(_)) => check(&path, known, field, wrong),
                    _ if schema["x-kubernetes-preserve-unknown-fields"] == true => {}
                    _ => wrong.push(format!("{path} is no field")),
                }
            }
        }
        ("array", Value::Array(items)) => {
            if schema["maxItems"].as_u64().is_some_and(|most| items.len() as u64 > most) {
                say(" is too long".into());
            }
            items.iter().for_each(|item| check(&format!("{path}[]"), &schema["items"], item, wrong));
        }
        ("string", Value::String(text)) => {
            let bytes = text.len() as u64;
            let short = schema["minLength"].as_u64().is_some_and(|least| bytes < least);
            if short || schema["maxLength"].as_u64().is_some_and(|most| bytes > most) {
                say(format!(": {value} is too short or too long"));
            }
        }
        ("integer", Value::Number(number)) if number.is_i64() => {
            let number = number.as_f64().unwrap();
            let low = schema["minimum"].as_f64().is_some_and(|low| number < low);
            if low || schema["maximum"].as_f64().is_some_and(|high| number > high) {
                say(format!(": {value} is out of range"));
            }
        }
        ("boolean", Value::Bool(_)) => {}
        (kind, value) => say(format!(": {value} is no {kind}")),
    }
}
