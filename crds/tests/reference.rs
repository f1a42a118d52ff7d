//! `docs/reference.md` says of every field what the schema says. `UPDATE_EXPECT=1 cargo test -p understudy-crds` writes it anew.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::fmt::Write as _;

use expect_test::expect_file;
use kube::CustomResourceExt;
use serde_json::Value;
use understudy_crds::BrokerCluster;

const HEAD: &str = "<!-- Generated from crds/src by `make generate`; do not edit. -->\n\n# BrokerCluster, field by field\n\n\
`understudy.dev/v1alpha1`, short name `bc`. `kubectl explain brokercluster.spec --recursive` shows the same. Every field may be left \
out unless it says *required*. Times are a number and `ms`, `s` or `m`; sizes are Kubernetes quantities like `500m`, `2` or `8Gi`.\n";

#[test]
fn the_reference_is_current() {
    let crd = serde_json::to_value(BrokerCluster::crd()).unwrap();
    let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    let mut text = HEAD.to_owned();
    for part in ["spec", "status"] {
        let fields = &schema["properties"][part];
        write!(text, "\n## {part}\n\n{}\n", one_line(fields["description"].as_str().unwrap_or_default())).unwrap();
        tables(&mut text, part, fields);
    }
    text.push_str("\n## Rules\n\nWhat the API server refuses, beyond types and ranges:\n\n");
    rules(&mut text, "", schema);
    expect_file!["../../docs/reference.md"].assert_eq(&text);
}

/// One table for the fields of an object, then those of the objects in it.
fn tables(text: &mut String, path: &str, schema: &Value) {
    let Some(properties) = schema["properties"].as_object() else { return };
    text.push_str("\n| field | type | default | |\n| --- | --- | --- | --- |\n");
    let required: Vec<&str> = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    for (name, field) in properties {
        let mut description = one_line(field["description"].as_str().unwrap_or_default());
        if required.contains(&name.as_str()) {
            description.push_str(" *Required.*");
        }
        match changes(schema, name, field) {
            Changes::Any => {}
            Changes::None => description.push_str(" **Cannot be changed.**"),
            Changes::Grows => description.push_str(" **Can only grow.**"),
        }
        let default = match &field["default"] {
            Value::Null => String::new(),
            Value::Object(_) => "see there".into(),
            value => format!("`{}`", value.as_str().map_or_else(|| value.to_string(), str::to_owned)),
        };
        let name = if inner(field).is_some() { link(path, name) } else { format!("`{name}`") };
        writeln!(text, "| {name} | {} | {default} | {description} |", type_of(field)).unwrap();
    }
    for (name, field) in properties {
        if let Some(inner) = inner(field) {
            let path = format!("{path}.{name}");
            write!(text, "\n### {path}\n").unwrap();
            let description = one_line(field["description"].as_str().unwrap_or_default());
            write!(text, "\n{description}\n").unwrap();
            tables(text, &path, inner);
        }
    }
}

/// The object whose fields have a table of their own.
fn inner(field: &Value) -> Option<&Value> {
    [field, &field["items"]].into_iter().find(|schema| schema["properties"].is_object())
}

fn link(path: &str, name: &str) -> String {
    let anchor: String = format!("{path}.{name}").to_lowercase().chars().filter(|c| *c != '.').collect();
    format!("[`{name}`](#{anchor})")
}

fn type_of(field: &Value) -> String {
    if field["x-kubernetes-int-or-string"] == true {
        return "quantity".into();
    }
    if let Some(words) = field["enum"].as_array() {
        return words.iter().filter_map(Value::as_str).map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ");
    }
    let range = |low: &str, high: &str, unit: &str| match (field[low].as_f64(), field[high].as_f64()) {
        (Some(low), Some(high)) => format!(", {low} to {high}{unit}"),
        (None, Some(high)) => format!(", at most {high}{unit}"),
        _ => String::new(),
    };
    match field["type"].as_str().unwrap_or_default() {
        "array" => format!("list of {}{}", type_of(&field["items"]), range("minItems", "maxItems", "")),
        "object" if field["additionalProperties"].is_object() => {
            format!("map to {}", type_of(&field["additionalProperties"]))
        }
        "string" if field["pattern"] == "^[0-9]+(ms|s|m)$" => "time".into(),
        "string" => format!("string{}", range("minLength", "maxLength", " characters")),
        "integer" => format!("integer{}", range("minimum", "maximum", "")),
        other => other.into(),
    }
}

enum Changes {
    Any,
    None,
    Grows,
}

/// As the rules that compare with the old value have it, here or at the object that the field is in.
fn changes(object: &Value, name: &str, field: &Value) -> Changes {
    let texts = |schema: &Value| -> Vec<(String, String)> {
        let rules = schema["x-kubernetes-validations"].as_array().cloned().unwrap_or_default();
        let text = |rule: &Value, key: &str| rule[key].as_str().unwrap_or_default().to_owned();
        rules
            .iter()
            .map(|rule| (text(rule, "rule"), text(rule, "message")))
            .filter(|(rule, _)| rule.contains("oldSelf"))
            .collect()
    };
    let of_object = texts(object).into_iter().filter(|(rule, _)| rule.contains(&format!("oldSelf.{name}")));
    let own = texts(field).into_iter().filter(|(rule, _)| !rule.contains("oldSelf."));
    let mut all = own.chain(of_object);
    match all.next() {
        None => Changes::Any,
        Some((_, message)) if message.contains("grow") => Changes::Grows,
        Some(_) => Changes::None,
    }
}

fn rules(text: &mut String, path: &str, schema: &Value) {
    for rule in schema["x-kubernetes-validations"].as_array().into_iter().flatten() {
        let place = if path.is_empty() { "the object" } else { path };
        writeln!(text, "- `{place}`: {}", one_line(rule["message"].as_str().unwrap())).unwrap();
    }
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        rules(text, &path, field);
        rules(text, &format!("{path}[]"), &field["items"]);
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}
