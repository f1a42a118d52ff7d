//! In Kubernetes, a new primary puts its own address into the failover Service's EndpointSlice, and each replica says its
//! role on its pod. Both are conveniences: safety rests on the Lease alone, and the operator does the first one too.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointSlice};
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::{Client, Error};
use serde_json::json;
use understudy_record::Epoch;

use understudy_node::{NodeStatus, RoleStatus, Shared};

const EPOCH_ANNOTATION: &str = "understudy.dev/epoch";
const ROLE_LABEL: &str = "understudy.dev/role";

/// Pause after a failed write; the role may have changed meanwhile, so what is written is worked out anew.
const RETRY: Duration = Duration::from_millis(250);

/// A write that is not answered by then is tried again.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(3);

pub(crate) struct Announcer {
    pub(crate) client: Client,
    pub(crate) namespace: String,
    pub(crate) cluster: String,
    pub(crate) pod: String,
    pub(crate) pod_ip: Option<String>,
    pub(crate) node: Option<String>,
    pub(crate) shared: Arc<Shared>,
}

/// What the world is to know.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Announcement {
    role: &'static str,
    /// Set on the primary.
    epoch: Option<Epoch>,
}

impl Announcement {
    fn of(status: &NodeStatus) -> Self {
        let role = match &status.role {
            RoleStatus::Primary { .. } => "primary",
            RoleStatus::Backup { catch_up: Some(_), .. } => "catching-up",
            RoleStatus::Backup { primary: Some(_), .. } => "backup",
            RoleStatus::Backup { .. }
            | RoleStatus::Recovering
            | RoleStatus::Outdated
            | RoleStatus::Fenced
            | RoleStatus::Ended => "idle",
        };
        Self { role, epoch: (role == "primary").then_some(status.epoch) }
    }
}

impl Announcer {
    /// For as long as the process lives.
    pub(crate) async fn run(self) {
        let mut status = self.shared.status.subscribe();
        let (mut published, mut labelled) = (None, None);
        loop {
            let wanted = Announcement::of(&status.borrow_and_update());
            if wanted.epoch.is_some() && published != wanted.epoch {
                match bounded(self.publish(wanted.epoch.unwrap_or_default())).await {
                    Ok(()) => published = wanted.epoch,
                    Err(error) => tracing::warn!("the failover Service's EndpointSlice was not written: {error}"),
                }
            }
            if labelled != Some(wanted.role) {
                match bounded(self.label(wanted.role)).await {
                    Ok(()) => labelled = Some(wanted.role),
                    Err(error) => tracing::warn!("the pod's role label was not written: {error}"),
                }
            }
            let settled = labelled == Some(wanted.role) && (wanted.epoch.is_none() || published == wanted.epoch);
            if !settled {
                tokio::time::sleep(RETRY).await;
            } else if status.wait_for(|status| Announcement::of(status) != wanted).await.is_err() {
                return;
            }
        }
    }

    /// One update, never backwards in epoch. The slice itself is made by the operator.
    async fn publish(&self, epoch: Epoch) -> Result<(), Error> {
        let Some(ip) = &self.pod_ip else { return Ok(()) };
        let api: Api<EndpointSlice> = Api::namespaced(self.client.clone(), &self.namespace);
        let name = format!("{}-primary", self.cluster);
        let Some(mut slice) = api.get_opt(&name).await? else { return Ok(()) };
        let annotations = slice.metadata.annotations.get_or_insert_default();
        let known = annotations.get(EPOCH_ANNOTATION).and_then(|text| text.parse().ok()).unwrap_or(Epoch(0));
        let current = slice.endpoints.iter().any(|endpoint| endpoint.addresses.contains(ip));
        if known > epoch || (known == epoch && current) || slice.address_type != address_type(ip) {
            return Ok(());
        }
        annotations.insert(EPOCH_ANNOTATION.into(), epoch.to_string());
        slice.endpoints = vec![Endpoint {
            addresses: vec![ip.clone()],
            conditions: Some(EndpointConditions { ready: Some(true), serving: Some(true), terminating: Some(false) }),
            // Where a Service's traffic may only come in at the endpoint's own node.
            node_name: self.node.clone(),
            target_ref: Some(k8s_openapi::api::core::v1::ObjectReference {
                kind: Some("Pod".into()),
                namespace: Some(self.namespace.clone()),
                name: Some(self.pod.clone()),
                ..Default::default()
            }),
            ..Endpoint::default()
        }];
        // The resource version read above goes with it: somebody else's newer write is not overwritten.
        api.replace(&name, &PostParams::default(), &slice).await.map(drop)
    }

    async fn label(&self, role: &str) -> Result<(), Error> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        let patch = Patch::Merge(json!({ "metadata": { "labels": { ROLE_LABEL: role } } }));
        api.patch(&self.pod, &PatchParams::default(), &patch).await.map(drop)
    }
}

fn address_type(ip: &str) -> &'static str {
    if ip.contains(':') { "IPv6" } else { "IPv4" }
}

async fn bounded(request: impl Future<Output = Result<(), Error>>) -> Result<(), String> {
    match tokio::time::timeout(REQUEST_TIMEOUT, request).await {
        Ok(outcome) => outcome.map_err(|error| error.to_string()),
        Err(_) => Err("the API server does not answer".into()),
    }
}
