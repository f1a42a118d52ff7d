//! A namespace for each test: made anew, and gone at its end, with everything in it. If the test fails, what there was is
//! written down first.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use futures::FutureExt;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::Client;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use serde_json::json;

use crate::cluster::Cluster;
use crate::outcomes::Outcome;
use crate::{dump, faults, operator, wait::eventually};

/// Kubernetes waits for the brokers' orderly end, then for the volumes' release.
const NAMESPACE_ENDS_WITHIN: Duration = Duration::from_secs(120);

/// If set, tests that succeed leave a dump, too.
const DUMP_ALWAYS_VARIABLE: &str = "UNDERSTUDY_E2E_DUMP_ALWAYS";

#[derive(Clone)]
pub struct Space {
    pub client: Client,
    pub namespace: String,
}

/// Runs a test in a namespace of its own, named after it, on nodes that all work and with an operator that runs.
///
/// # Panics
/// If the test fails, after its dump: that is how a test says so.
pub async fn with_temp_ns<F: Future<Output = Result<()>>>(name: &'static str, test: impl FnOnce(Space) -> F) {
    let begun = Instant::now();
    let space = Space::new(name).await.unwrap_or_else(|error| panic!("{name} cannot begin: {error:#}"));
    // A panicking assertion is followed by the dump and the cleaning as an error is; nothing of the test is used again.
    let outcome = AssertUnwindSafe(test(space.clone())).catch_unwind().await;
    let failure = match outcome {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(format!("{error:#}")),
        Err(payload) => Some(panic_text(&*payload)),
    };
    if failure.is_some() || std::env::var_os(DUMP_ALWAYS_VARIABLE).is_some() {
        dump::write(name, &space.namespace).await;
    }
    faults::restore_nodes();
    let gone = space.end().await;
    let passed = failure.is_none() && gone.is_ok();
    if let Err(error) = (Outcome { test: name.to_owned(), passed, took: begun.elapsed() }).note() {
        eprintln!("{name}: its outcome is not in the table: {error:#}");
    }
    if let (None, Err(error)) = (&failure, gone) {
        panic!("{name}: its namespace does not go: {error:#}");
    }
    if let Some(failure) = failure {
        panic!("{name}: {failure}");
    }
}

fn panic_text(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<String>().cloned();
    text.or_else(|| payload.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_else(|| "panicked".into())
}

impl Space {
    async fn new(name: &str) -> Result<Self> {
        let client = Client::try_default().await.context("no cluster: run `make e2e`, or `e2e/run`")?;
        faults::restore_nodes();
        operator::restore_operator(&client).await?;
        faults::nodes_ready(&client).await?;
        let namespace = format!("e2e-{}", name.replace('_', "-"));
        let space = Self { client, namespace };
        space.end().await.context("what an earlier run left")?;
        let object: Namespace = serde_json::from_value(json!({
            "metadata": {
                "name": space.namespace,
                // The strictest level: a cluster must run where it is enforced.
                "labels": { "pod-security.kubernetes.io/enforce": "restricted" },
            },
        }))?;
        Api::<Namespace>::all(space.client.clone()).create(&PostParams::default(), &object).await?;
        Ok(space)
    }

    /// Applies a `BrokerCluster` named `orders`; `spec` as a user would write it.
    ///
    /// # Errors
    /// If the API server does not take it.
    pub async fn create_cluster(&self, spec: serde_json::Value) -> Result<Cluster> {
        Cluster::create(self, "orders", spec).await
    }

    async fn end(&self) -> Result<()> {
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        if namespaces.get_opt(&self.namespace).await?.is_none() {
            return Ok(());
        }
        namespaces.delete(&self.namespace, &DeleteParams::default()).await?;
        // Nobody needs an orderly end any more, and a pod on a node that was lost would keep the namespace for long.
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        pods.delete_collection(&DeleteParams::default().grace_period(1), &ListParams::default()).await?;
        eventually(format!("the end of namespace {}", self.namespace), NAMESPACE_ENDS_WITHIN, async || match namespaces
            .get_opt(&self.namespace)
            .await?
        {
            None => Ok(()),
            Some(namespace) => {
                let status = namespace.status.and_then(|status| status.conditions).unwrap_or_default();
                let why: Vec<_> = status.into_iter().filter_map(|condition| condition.message).collect();
                Err(anyhow!("it is still there: {}", why.join("; ")))
            }
        })
        .await
    }
}
