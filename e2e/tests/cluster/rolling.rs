//! A changed spec reaches every pod, and no client notices more than a hand-over.

use std::collections::BTreeMap;

use anyhow::ensure;
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;
use understudy_e2e::{Cluster, Failure, Goal, Load, RATE, Row, with_temp_ns};

use crate::{PATIENCE, recovered, small};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a cluster: make e2e"]
async fn a_changed_spec_is_rolled_out() {
    with_temp_ns("rolling", |space| async move {
        let cluster = space.create_cluster(small()).await?;
        cluster.ready().await?;
        let load = Load::start(&cluster.target().await?, "work").await?;
        let (before, epoch) = (uids(&cluster).await?, cluster.epoch().await?);
        cluster.patch(json!({ "resources": { "requests": { "memory": "96Mi" } } })).await?;
        let failure = Failure::now();
        cluster.ready_after(epoch).await?;
        load.confirms(RATE, PATIENCE).await?;
        let aftermath = load.finish().await?;
        let status = recovered(&cluster, epoch, &aftermath).await?;
        let now = uids(&cluster).await?;
        let kept: Vec<&String> =
            now.iter().filter(|(pod, uid)| before.get(*pod) == Some(uid)).map(|(pod, _)| pod).collect();
        ensure!(kept.is_empty(), "Ready, though these pods were not replaced: {kept:?}");
        let gap = aftermath.longest_silence;
        let scenario = "rolling change (longest silence)";
        Row { scenario, failure, gap, goal: Goal::KilledProcess }.write(&aftermath.account, &status)
    })
    .await;
}

async fn uids(cluster: &Cluster) -> anyhow::Result<BTreeMap<String, String>> {
    let mut uids = BTreeMap::new();
    for name in cluster.pod_names(3) {
        let pod: Pod = cluster.read(&name).await?;
        uids.insert(name, pod.metadata.uid.unwrap_or_default());
    }
    Ok(uids)
}
