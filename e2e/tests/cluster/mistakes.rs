//! What goes wrong in the surroundings is named, hits as little as it can, and is over when its cause is.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Namespace, Pod, ResourceQuota, Secret};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::json;
use understudy_e2e::{Cluster, Load, RATE, eventually, with_temp_ns};

use crate::{PATIENCE, small};

/// K3: a backup alone is hit, the primary serves on; the corrected image needs nobody's hands.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a cluster: make e2e"]
async fn a_bad_image_hits_one_backup() {
    with_temp_ns("bad_image", |space| async move {
        let cluster = space.create_cluster(small()).await?;
        cluster.ready().await?;
        let load = Load::start(&cluster.target().await?, "work").await?;
        let epoch = cluster.epoch().await?;
        cluster.patch(json!({ "image": "understudy/broker:there-is-no-such", "imagePullPolicy": "Never" })).await?;
        condition(&cluster, "Stalled", "PodFailing", "ErrImageNeverPull").await?;
        load.confirms(RATE, PATIENCE).await?;
        let pods = cluster.api::<Pod>().list(&ListParams::default()).await?;
        let failing = pods.items.iter().filter(|pod| {
            let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref());
            statuses.is_some_and(|all| all.iter().any(|container| !container.ready))
        });
        ensure!(failing.count() == 1, "more than one pod is hit");
        ensure!(cluster.epoch().await? == epoch, "the primary has changed");
        cluster.patch(json!({ "image": null, "imagePullPolicy": null })).await?;
        cluster.ready().await?;
        load.confirms(RATE, PATIENCE).await?;
        load.finish().await.map(drop)
    })
    .await;
}

/// K12: a quota that refuses a pod is quoted, and the pod comes when the quota rises.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a cluster: make e2e"]
async fn a_quota_that_is_in_the_way_is_quoted() {
    with_temp_ns("quota", |space| async move {
        let quotas: Api<ResourceQuota> = Api::namespaced(space.client.clone(), &space.namespace);
        let quota = json!({ "metadata": { "name": "few" }, "spec": { "hard": { "pods": "2" } } });
        quotas.create(&PostParams::default(), &serde_json::from_value(quota)?).await?;
        let cluster = space.create_cluster(small()).await?;
        condition(&cluster, "Stalled", "PodsRefused", "exceeded quota: few").await?;
        let more = json!({ "spec": { "hard": { "pods": "10" } } });
        quotas.patch("few", &PatchParams::default(), &Patch::Merge(more)).await?;
        cluster.ready().await.map(drop)
    })
    .await;
}

/// K13: new connections need the new password; who is connected stays, and no pod is touched.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a cluster: make e2e"]
async fn a_password_is_rotated_and_nothing_else_happens() {
    with_temp_ns("password", |space| async move {
        let cluster = space.create_cluster(small()).await?;
        cluster.ready().await?;
        let old = cluster.target().await?;
        let load = Load::start(&old, "work").await?;
        let before = uids(&cluster).await?;
        let secrets: Api<Secret> = cluster.api();
        let patch = json!({ "stringData": { "password": "another one, and long enough" } });
        secrets.patch("orders-user", &PatchParams::default(), &Patch::Merge(patch)).await?;
        // The kubelet renews the file within a minute or so.
        let new = cluster.target().await?;
        ensure!(new.password != old.password, "the Secret has the old password");
        eventually("a connection with the new password", PATIENCE * 3, async || {
            let second = Load::start(&new, "second").await?;
            second.finish().await.map(drop)
        })
        .await?;
        load.confirms(RATE, PATIENCE).await?;
        let aftermath = load.finish().await?;
        // On a busy machine a client may lose its patience; nobody may be sent away.
        let sent_away: Vec<&String> =
            aftermath.errors.iter().filter(|error| !error.contains("no confirm for")).collect();
        ensure!(sent_away.is_empty(), "who was connected was sent away: {sent_away:?}");
        ensure!(uids(&cluster).await? == before, "pods were replaced");
        Ok(())
    })
    .await;
}

/// K10: a namespace goes with the cluster in it, without anybody's help.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a cluster: make e2e"]
async fn a_namespace_goes_with_its_cluster() {
    with_temp_ns("namespace", |space| async move {
        let cluster = space.create_cluster(small()).await?;
        cluster.ready().await?;
        let namespaces: Api<Namespace> = Api::all(space.client.clone());
        namespaces.delete(&space.namespace, &DeleteParams::default()).await?;
        eventually("the namespace's end", PATIENCE * 2, async || {
            let left = namespaces.get_opt(&space.namespace).await?;
            ensure!(left.is_none(), "{:?}", left.and_then(|left| left.status?.conditions));
            Ok(())
        })
        .await
    })
    .await;
}

async fn condition(cluster: &Cluster, kind: &str, reason: &str, text: &str) -> Result<()> {
    eventually(format!("{kind} with {reason}"), PATIENCE * 2, async || {
        let status = cluster.status().await?;
        let found = status.conditions.iter().find(|condition| condition.kind == kind);
        let found = found.with_context(|| format!("there is none; {:?}", status.conditions))?;
        ensure!(found.reason == reason && found.message.contains(text), "{found:?}");
        Ok(())
    })
    .await
}

async fn uids(cluster: &Cluster) -> Result<Vec<Option<String>>> {
    let pods = cluster.api::<Pod>().list(&ListParams::default()).await?;
    Ok(pods.items.into_iter().map(|pod| pod.metadata.uid).collect())
}
