//! What a spec lays over the pod template, in the manner of `kubectl patch`: objects field by field, lists of things with
//! names by name.

use k8s_openapi::api::core::v1::PodTemplateSpec;
use serde_json::Value;
use understudy_crds::PodTemplate;

use super::BuildError;

/// Lists whose items are told apart by a field.
const KEYED_LISTS: [(&str, &str); 8] = [
    ("containers", "name"),
    ("initContainers", "name"),
    ("volumes", "name"),
    ("env", "name"),
    ("ports", "containerPort"),
    ("volumeMounts", "mountPath"),
    ("imagePullSecrets", "name"),
    ("hostAliases", "ip"),
];

/// # Errors
/// If the result is no pod template.
pub(super) fn pod_template(made: PodTemplateSpec, over: &PodTemplate) -> Result<PodTemplateSpec, BuildError> {
    if *over == PodTemplate::default() {
        return Ok(made);
    }
    let failed = |source| BuildError::PodTemplate { source };
    let mut template = serde_json::to_value(made).map_err(failed)?;
    if let Some(spec) = &over.spec {
        merge(&mut template["spec"], spec, None);
    }
    let metadata = serde_json::to_value(&over.metadata).map_err(failed)?;
    merge(&mut template["metadata"], &metadata, None);
    serde_json::from_value(template).map_err(failed)
}

/// Null takes away. `list_key`: what tells items apart, where both are lists.
fn merge(into: &mut Value, over: &Value, list_key: Option<&str>) {
    match (into, over) {
        (Value::Object(into), Value::Object(over)) => {
            for (name, value) in over {
                if value.is_null() {
                    into.remove(name);
                    continue;
                }
                let key = KEYED_LISTS.iter().find(|(list, _)| list == name).map(|(_, key)| *key);
                merge(into.entry(name.clone()).or_insert(Value::Null), value, key);
            }
        }
        (Value::Array(into), Value::Array(over)) if list_key.is_some() => {
            let key = list_key.unwrap_or_default();
            for item in over {
                let same = into.iter_mut().find(|there| there.get(key).is_some() && there.get(key) == item.get(key));
                match same {
                    Some(there) => merge(there, item, None),
                    None => into.push(item.clone()),
                }
            }
        }
        (into, over) => *into = over.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn laid_over(over: Value) -> Value {
        let made = json!({
            "metadata": {"labels": {"ours": "1"}},
            "spec": {"enableServiceLinks": false, "containers": [
                {"name": "broker", "image": "i", "env": [{"name": "A", "value": "1"}], "volumeMounts": [{"name": "data", "mountPath": "/d"}]},
            ], "tolerations": [{"key": "x"}]},
        });
        let over: PodTemplate = serde_json::from_value(over).unwrap();
        let merged = pod_template(serde_json::from_value(made).unwrap(), &over).unwrap();
        serde_json::to_value(merged).unwrap()
    }

    #[test]
    fn by_name_where_there_are_names_and_else_anew() {
        let merged = laid_over(json!({
            "metadata": {"labels": {"team": "shop"}, "annotations": {"a": "b"}},
            "spec": {"enableServiceLinks": null, "hostname": "h", "tolerations": [{"key": "y"}], "containers": [
                {"name": "side", "image": "s"},
                {"name": "broker", "env": [{"name": "B", "value": "2"}, {"name": "A", "value": "3"}],
                 "volumeMounts": [{"name": "more", "mountPath": "/m"}]},
            ]},
        }));
        expect_test::expect![[r#"
            {
              "metadata": {
                "annotations": {
                  "a": "b"
                },
                "labels": {
                  "ours": "1",
                  "team": "shop"
                }
              },
              "spec": {
                "containers": [
                  {
                    "env": [
                      {
                        "name": "A",
                        "value": "3"
                      },
                      {
                        "name": "B",
                        "value": "2"
                      }
                    ],
                    "image": "i",
                    "name": "broker",
                    "volumeMounts": [
                      {
                        "mountPath": "/d",
                        "name": "data"
                      },
                      {
                        "mountPath": "/m",
                        "name": "more"
                      }
                    ]
                  },
                  {
                    "image": "s",
                    "name": "side"
                  }
                ],
                "hostname": "h",
                "tolerations": [
                  {
                    "key": "y"
                  }
                ]
              }
            }"#]]
        .assert_eq(&format!("{merged:#}"));
    }

    #[test]
    fn what_makes_no_pod_is_an_error() {
        let over: PodTemplate = serde_json::from_value(json!({"spec": {"hostNetwork": "maybe"}})).unwrap();
        assert!(matches!(pod_template(PodTemplateSpec::default(), &over), Err(BuildError::PodTemplate { .. })));
    }
}
