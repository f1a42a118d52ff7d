//! K14: another CRD and other operators than those that a cluster was made with. Its spec stays byte for byte, its pods are not
//! touched; and what cannot be changed in place is made anew around the same pods and volumes.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ApiResource, DynamicObject, ListParams, PostParams};
use kube::{Client, CustomResourceExt, ResourceExt};
use serde_json::{Value, json};
use understudy_crds::BrokerCluster;
use understudy_e2e::{Cluster, Load, RATE, eventually, replace_operator, with_temp_ns};

use crate::stopped::volumes_may_grow;
use crate::{PATIENCE, small};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a cluster: make e2e"]
async fn crd_and_operator_are_upgraded_under_a_living_cluster() {
    with_temp_ns("upgraded", |space| async move {
        let cluster = space.create_cluster(much_set()).await?;
        cluster.ready().await?;
        let load = Load::start(&cluster.target().await?, "work").await?;
        let (epoch, lives, spec) = (cluster.epoch().await?, cluster.lives().await?, spec(&cluster).await?);
        let set: StatefulSet = cluster.read(&cluster.name).await?;
        for step in [Step::FieldMore, Step::FieldLess] {
            change_crd(&space.client, step).await?;
            replace_operator(&space.client).await?;
            cluster.ready().await?;
            load.confirms(RATE, PATIENCE).await?;
            ensure!(self::spec(&cluster).await? == spec, "{step:?}: {spec} became {}", self::spec(&cluster).await?);
            let now: StatefulSet = cluster.read(&cluster.name).await?;
            ensure!(now.uid() == set.uid() && now.metadata.generation == set.metadata.generation, "{step:?}: {now:?}");
        }

        // A claim template cannot be changed.
        volumes_may_grow(&Api::all(space.client.clone())).await?;
        let claims = claims(&cluster).await?;
        cluster.patch(json!({ "storage": { "size": "2Gi" } })).await?;
        eventually("another StatefulSet, and claims that have grown", PATIENCE, async || {
            let now: StatefulSet = cluster.read(&cluster.name).await?;
            ensure!(now.uid() != set.uid(), "it is the old one");
            let sizes: Vec<String> = self::claims(&cluster).await?.into_values().map(|(_, size)| size).collect();
            ensure!(sizes == ["2Gi"; 3], "{sizes:?}");
            Ok(())
        })
        .await?;
        cluster.ready().await?;
        let uids = |claims: BTreeMap<String, (String, String)>| -> Vec<String> {
            claims.into_values().map(|(uid, _)| uid).collect()
        };
        ensure!(uids(self::claims(&cluster).await?) == uids(claims), "volumes were replaced");
        ensure!(cluster.lives().await? == lives, "pods were touched: {lives:?}, {:?}", cluster.lives().await?);
        load.confirms(RATE, PATIENCE).await?;
        let aftermath = load.finish().await?;
        ensure!(cluster.epoch().await? == epoch, "the primary changed");
        ensure!(aftermath.reconnects == 0 && aftermath.consumer_reconnects == 0, "clients noticed: {aftermath:?}");
        Ok(())
    })
    .await;
}

/// A value in each part of the spec that a cluster like this can have.
fn much_set() -> Value {
    let mut spec = small();
    spec["minInSync"] = json!(2);
    spec["durability"] = json!("Fsync");
    spec["storage"]["freeWatermark"] = json!("64Mi");
    spec["storage"]["retention"] = json!({ "whenDeleted": "Retain", "whenScaled": "Retain" });
    spec["memory"] = json!({ "watermarkPercent": 75 });
    spec["scheduling"] = json!({
        "spread": "Preferred",
        "tolerations": [{ "key": "example.com/nothing", "operator": "Exists", "effect": "NoSchedule" }],
        "nodeSelector": { "kubernetes.io/os": "linux" },
    });
    spec["podTemplate"] =
        json!({ "metadata": { "labels": { "team": "orders" } }, "spec": { "dnsPolicy": "ClusterFirst" } });
    spec["service"] = json!({ "type": "ClusterIP", "annotations": { "example.com/is": "kept" } });
    spec["clients"] = json!({ "backupConnections": "Relay", "maxConnections": 500, "consumerTimeout": "60m" });
    spec["failover"] = json!({ "leaseDuration": "6s", "backupTimeout": "2500ms", "stallTimeout": "12s" });
    spec["replication"] = json!({ "catchUpBandwidth": "100Mi", "maxCatchUps": 2 });
    spec["update"] = json!({ "strategy": "Automatic" });
    spec["networkPolicies"] = json!({ "enabled": true });
    spec
}

/// As the API server keeps it, not as a type of ours would read it.
async fn spec(cluster: &Cluster) -> Result<Value> {
    let resource = ApiResource::erase::<BrokerCluster>(&());
    let api: Api<DynamicObject> = Api::namespaced_with(cluster.client.clone(), &cluster.namespace, &resource);
    Ok(api.get(&cluster.name).await?.data["spec"].clone())
}

/// Each with its UID and the size that it asks for.
async fn claims(cluster: &Cluster) -> Result<BTreeMap<String, (String, String)>> {
    let claims = cluster.api::<PersistentVolumeClaim>().list(&ListParams::default()).await?;
    let described = claims.items.into_iter().map(|claim| {
        let uid = claim.uid().unwrap_or_default();
        let requests = claim.spec.clone().and_then(|spec| spec.resources?.requests).unwrap_or_default();
        (claim.name_any(), (uid, requests.get("storage").map(|size| size.0.clone()).unwrap_or_default()))
    });
    Ok(described.collect())
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// A later version of the CRD, with a field that ours does not have.
    FieldMore,
    /// And the one before again.
    FieldLess,
}

const FIELD: &str = "exampleOfALaterVersion";

async fn change_crd(client: &Client, step: Step) -> Result<()> {
    let resource = ApiResource::erase::<CustomResourceDefinition>(&());
    let crds: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    let mut crd = crds.get(BrokerCluster::crd_name()).await?;
    let versions = crd.data.pointer_mut("/spec/versions").and_then(Value::as_array_mut);
    for version in versions.context("the CRD has no versions")? {
        let spec = version.pointer_mut("/schema/openAPIV3Schema/properties/spec/properties");
        let spec = spec.and_then(Value::as_object_mut).context("no spec in the schema")?;
        match step {
            Step::FieldMore => drop(spec.insert(FIELD.into(), json!({ "type": "string", "description": "None." }))),
            Step::FieldLess => drop(spec.remove(FIELD)),
        }
    }
    crds.replace(BrokerCluster::crd_name(), &PostParams::default(), &crd).await?;
    Ok(())
}
