//! The operator, taken away for the time of a test.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams};
use serde_json::json;

use crate::wait::eventually;

pub(crate) const NAMESPACE: &str = "understudy-system";
pub(crate) const DEPLOYMENT: &str = "understudy-operator";
pub(crate) const SELECTOR: &str = "app.kubernetes.io/name=understudy-operator";
const SCALES_WITHIN: Duration = Duration::from_secs(90);

/// The operator is scaled to zero. `with_temp_ns` brings it back before each test, if a test fails before its `end`.
#[must_use]
pub struct OperatorPause(Client);

impl OperatorPause {
    /// Returns once no process of it is left.
    ///
    /// # Errors
    /// If it does not go.
    pub async fn begin(client: &Client) -> Result<Self> {
        scale(client, 0).await?;
        let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
        eventually("the operator's end", SCALES_WITHIN, async || {
            let left = pods.list(&ListParams::default().labels(SELECTOR)).await?.items.len();
            ensure!(left == 0, "{left} pods are left");
            Ok(())
        })
        .await?;
        Ok(Self(client.clone()))
    }

    /// # Errors
    /// If the operator does not come back.
    pub async fn end(self) -> Result<()> {
        restore_operator(&self.0).await
    }
}

/// Every process of the operator is replaced by another one, which knows nothing.
///
/// # Errors
/// If they do not come up.
pub async fn replace_operator(client: &Client) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let labels = ListParams::default().labels(SELECTOR);
    let uids = async || -> Result<BTreeSet<String>> {
        Ok(pods.list(&labels).await?.items.into_iter().filter_map(|pod| pod.metadata.uid).collect())
    };
    let before = uids().await?;
    pods.delete_collection(&DeleteParams::default().grace_period(1), &labels).await?;
    eventually("the operator's pods to be others", SCALES_WITHIN, async || {
        let left = uids().await?.intersection(&before).count();
        ensure!(left == 0, "{left} of the old ones are left");
        Ok(())
    })
    .await?;
    restore_operator(client).await
}

/// As manifests/base has it: one works, the other stands by.
const REPLICAS: i32 = 2;

/// The operator runs, whatever a test before this one left.
///
/// # Errors
/// If it does not come up.
pub async fn restore_operator(client: &Client) -> Result<()> {
    scale(client, REPLICAS).await?;
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), NAMESPACE);
    eventually("the operator to be available", SCALES_WITHIN, async || {
        let status = deployments.get(DEPLOYMENT).await?.status.unwrap_or_default();
        ensure!(status.available_replicas == Some(REPLICAS), "{status:?}");
        leader(client).await.map(drop)
    })
    .await
}

async fn scale(client: &Client, replicas: i32) -> Result<()> {
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), NAMESPACE);
    let patch = Patch::Merge(json!({ "spec": { "replicas": replicas } }));
    deployments.patch(DEPLOYMENT, &PatchParams::default(), &patch).await?;
    Ok(())
}

/// The pod that works.
///
/// # Errors
/// If the operators' Lease names none.
pub(crate) async fn leader(client: &Client) -> Result<String> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), NAMESPACE);
    let holder = leases.get(DEPLOYMENT).await?.spec.and_then(|spec| spec.holder_identity);
    holder.filter(|holder| !holder.is_empty()).context("no operator leads")
}
