//! What is under `manifests/`, as a real API server sees it: nothing is unknown, nothing is refused.

use anyhow::{Context, Result, ensure};
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, ValidationDirective};
use serde::Deserialize;
use serde_json::Value;
use understudy_e2e::{Space, with_temp_ns};

const EXAMPLES: [(&str, &str); 5] = [
    ("minimal", include_str!("../../../manifests/examples/minimal.yaml")),
    ("production", include_str!("../../../manifests/examples/production.yaml")),
    ("single", include_str!("../../../manifests/examples/single.yaml")),
    ("tls", include_str!("../../../manifests/examples/tls.yaml")),
    ("definitions", include_str!("../../../manifests/examples/definitions.yaml")),
];
const INSTALL: &str = include_str!("../../../manifests/install.yaml");
/// Their namespace is their own, or they have none.
const OUTSIDE: [&str; 4] = ["Namespace", "CustomResourceDefinition", "ClusterRole", "ClusterRoleBinding"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a cluster: make e2e"]
async fn every_manifest_is_what_the_api_server_takes() {
    with_temp_ns("manifests", |space| async move {
        for (name, text) in EXAMPLES {
            ensure!(dry_run(&space, text, true).await.with_context(|| name.to_owned())? > 0, "{name} is empty");
        }
        ensure!(dry_run(&space, INSTALL, false).await.context("install.yaml")? >= 8, "install.yaml lacks objects");
        Ok(())
    })
    .await;
}

async fn dry_run(space: &Space, text: &str, is_example: bool) -> Result<usize> {
    let mut count = 0;
    for document in serde_yaml::Deserializer::from_str(text) {
        let value = Value::deserialize(document)?;
        let word = |pointer| value.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        let (api_version, kind, name) = (word("/apiVersion"), word("/kind"), word("/metadata/name"));
        let (group, version) = api_version.rsplit_once('/').unwrap_or(("", &api_version));
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, &kind));
        let namespace = if is_example { space.namespace.clone() } else { word("/metadata/namespace") };
        let api: Api<DynamicObject> = match OUTSIDE.contains(&kind.as_str()) {
            true => Api::all_with(space.client.clone(), &resource),
            false => Api::namespaced_with(space.client.clone(), &namespace, &resource),
        };
        let params = PatchParams {
            dry_run: true,
            force: true,
            field_manager: Some("understudy-e2e".into()),
            field_validation: Some(ValidationDirective::Strict),
        };
        api.patch(&name, &params, &Patch::Apply(&value)).await.with_context(|| format!("{kind} {name}"))?;
        count += 1;
    }
    Ok(count)
}
