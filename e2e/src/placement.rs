//! Choosing which broker is primary, so that a test loses what it means to lose.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::Api;
use understudy_crds::{SWITCHOVER_ANNOTATION, SwitchoverOutcome};

use crate::cluster::Cluster;
use crate::faults::node_of;
use crate::operator;

/// The node that the operator which works runs on.
///
/// # Errors
/// If it does not run.
pub async fn operator_node(cluster: &Cluster) -> Result<String> {
    let leader = operator::leader(&cluster.client).await?;
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), operator::NAMESPACE);
    let pod = pods.get(&leader).await.with_context(|| format!("the operator {leader}"))?;
    pod.spec.and_then(|spec| spec.node_name).context("the operator is on no node")
}

/// Makes a broker primary that is wanted, judged by its pod and node, if the primary is not; returns both.
///
/// # Errors
/// If there is none, or it is not handed the role.
pub async fn lead_from(cluster: &Cluster, wanted: impl Fn(&str, &str) -> bool) -> Result<(String, String)> {
    let primary = cluster.primary().await?.name.to_string();
    let mut candidates = vec![primary.clone()];
    candidates.extend(cluster.pod_names(3).into_iter().filter(|pod| *pod != primary));
    for pod in candidates {
        let node = node_of(cluster, &pod).await?;
        if !wanted(&pod, &node) {
            continue;
        }
        if pod != primary {
            let epoch = cluster.epoch().await?;
            let answer = cluster.ask(SWITCHOVER_ANNOTATION, &pod).await?;
            ensure!(answer.outcome == SwitchoverOutcome::Done, "{}", answer.message);
            cluster.ready_after(epoch).await?;
            let heir = cluster.primary().await?.name;
            ensure!(heir.as_str() == pod, "{heir} leads, though {pod} was handed the role");
        }
        return Ok((pod, node));
    }
    anyhow::bail!("no broker is one that was asked for")
}
