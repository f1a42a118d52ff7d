//! The reconciliation: dereference, validate, build, apply, then hand over to the cluster's failover task, which writes the
//! status. Runs when the BrokerCluster or one of its objects changes, and from time to time. No finalizer: everything is
//! owned by the BrokerCluster and goes with it, except volumes, which stay.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures::StreamExt;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{ConfigMap, Secret, Service, ServiceAccount};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::api::Api;
use kube::runtime::controller::Action;
use kube::runtime::reflector::Store;
use kube::runtime::{Controller, watcher};
use kube::{Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};
use time::OffsetDateTime;
use understudy_crds::{BrokerCluster, InvalidCluster, Timestamp};

use crate::apply::{ApplyError, apply, leave_alone};
use crate::build::{BuildError, VerifiedCredentials, build};
use crate::config::Config;
use crate::dereference::{DereferenceError, Observed, dereference};
use crate::earlier::leave_behind;
use crate::failover::{Assignment, Failovers, GivenDefinitions};
use crate::names::{FIELD_MANAGER, MANAGED_BY_LABEL};
use crate::status::{self, Problem};
use crate::validate::{Defaults, Target, validate};
use crate::watch_retry::WatchRetry;

/// Certificates are renewed and drift that no watch has shown is found within this time.
const RESYNC_AFTER: Duration = Duration::from_secs(600);
/// What others keep and a spec names is read again this often: nothing tells of its changes.
const GIVEN_AFTER: Duration = Duration::from_secs(30);
/// While pods are missing the reason is looked up again this often.
const PODS_MISSING_AFTER: Duration = Duration::from_secs(10);
/// Pods that must stay for a moment may go soon.
const HELD_AFTER: Duration = Duration::from_secs(1);
const RETRY_AFTER: Duration = Duration::from_secs(5);
/// Changes of objects that come together are reconciled together.
const DEBOUNCE: Duration = Duration::from_millis(100);
/// Reconciliations at once. All of them together, after a start, would only wait for one another and for the API server, each with
/// connections and memory of its own; fast failovers wait for none.
const CONCURRENCY: u16 = 16;
/// Tasks of clusters that no longer exist end within this time.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

struct Context {
    client: Client,
    defaults: Defaults,
    verified: VerifiedCredentials,
    failovers: Failovers,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum ReconcileError {
    #[error(transparent)]
    Dereference(#[from] DereferenceError),
    #[error(transparent)]
    Invalid(#[from] InvalidCluster),
    #[error(transparent)]
    Build(#[from] BuildError),
    #[error(transparent)]
    Apply(#[from] ApplyError),
}

impl ReconcileError {
    fn reason(&self) -> &'static str {
        match self {
            Self::Invalid(_) => "InvalidSpec",
            Self::Dereference(DereferenceError::Read { .. }) => "ReadFailed",
            Self::Dereference(DereferenceError::NotThere { .. } | DereferenceError::NoKey { .. }) => "ReferenceMissing",
            Self::Build(_) => "BuildFailed",
            Self::Apply(_) => "ApplyFailed",
        }
    }
}

/// Runs until the process is told to end.
pub(crate) async fn run(client: Client, config: &Config) {
    let context = Arc::new(Context {
        client: client.clone(),
        defaults: Defaults {
            broker_image: config.broker_image.clone(),
            operator_namespace: config.own_namespace.clone(),
        },
        verified: VerifiedCredentials::default(),
        failovers: Failovers::new(client.clone()),
    });
    let ours = watcher::Config::default().labels(&format!("{MANAGED_BY_LABEL}={FIELD_MANAGER}"));
    let controller =
        Controller::new(api::<BrokerCluster>(&client, config.namespace.as_deref()), watcher::Config::default());
    let clusters = controller.store();
    let namespace = config.namespace.as_deref();
    let reconciliations = controller
        .with_config(kube::runtime::controller::Config::default().debounce(DEBOUNCE).concurrency(CONCURRENCY))
        .trigger_backoff(WatchRetry)
        .owns(api::<StatefulSet>(&client, namespace), ours.clone())
        .owns(api::<Service>(&client, namespace), ours.clone())
        .owns(api::<ConfigMap>(&client, namespace), ours.clone())
        .owns(api::<ServiceAccount>(&client, namespace), ours.clone())
        .owns(api::<Secret>(&client, namespace), ours.clone())
        .owns(api::<Role>(&client, namespace), ours.clone())
        .owns(api::<RoleBinding>(&client, namespace), ours.clone())
        .owns(api::<EndpointSlice>(&client, namespace), ours.clone())
        .owns(api::<NetworkPolicy>(&client, namespace), ours.clone())
        .owns(api::<PodDisruptionBudget>(&client, namespace), ours)
        .shutdown_on_signal()
        .run(reconcile, retry, context.clone())
        .for_each(|result| async move {
            if let Err(error) = result {
                tracing::debug!(%error, "reconciliation");
            }
        });
    tokio::select! {
        () = reconciliations => {}
        () = sweep(&context, &clusters) => {}
    }
}

fn api<K>(client: &Client, namespace: Option<&str>) -> Api<K>
where
    K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope> + Clone + DeserializeOwned + Debug,
{
    match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    }
}

/// Deleted clusters are not reconciled any more, so their tasks are ended here.
async fn sweep(context: &Context, clusters: &Store<BrokerCluster>) {
    if clusters.wait_until_ready().await.is_err() {
        return;
    }
    let mut ticks = tokio::time::interval(SWEEP_EVERY);
    loop {
        ticks.tick().await;
        let existing: Vec<_> = clusters
            .state()
            .iter()
            .filter(|cluster| cluster.metadata.deletion_timestamp.is_none())
            .map(|cluster| {
                ((cluster.namespace().unwrap_or_default(), cluster.name_any()), cluster.uid().unwrap_or_default())
            })
            .collect();
        context.failovers.retain(&existing);
    }
}

async fn reconcile(cluster: Arc<BrokerCluster>, context: Arc<Context>) -> Result<Action, ReconcileError> {
    if cluster.metadata.deletion_timestamp.is_some() {
        return Ok(Action::await_change()); // its objects go with it
    }
    let timer = crate::metrics::RECONCILE_SECONDS.start_timer();
    let result = steps(&cluster, &context).await;
    timer.observe_duration();
    let outcome = match &result {
        Ok(_) => "ok",
        Err(ReconcileError::Invalid(_)) => "invalid",
        Err(_) => "failed",
    };
    crate::metrics::RECONCILES.with_label_values(&[outcome]).inc();
    match result {
        Ok(action) => Ok(action),
        Err(error) => {
            report(&cluster, &context, &error).await;
            match error {
                // Nothing will change until the spec does.
                ReconcileError::Invalid(_) => Ok(Action::await_change()),
                error => Err(error),
            }
        }
    }
}

async fn steps(cluster: &BrokerCluster, context: &Context) -> Result<Action, ReconcileError> {
    let mut target = validate(cluster, &context.defaults)?;
    let observed = dereference(&context.client, &target.cluster).await?;
    target.definitions = observed.definitions.as_deref().map(given_definitions);
    let wanted = target.pods;
    target.pods = pods_for_now(&target, &observed, &context.failovers);
    if observed.stateful_set.is_none() && !target.cluster.orders.paused {
        leave_behind(&context.client, &target.cluster).await?;
    }
    let built = build(&target, &observed, &context.verified, OffsetDateTime::now_utc())?;
    let mut applied = match target.cluster.orders.paused {
        true => leave_alone(built, observed.stateful_set),
        false => apply(&context.client, &target.cluster, built).await?,
    };
    let is_held = target.pods > wanted;
    let uses_given = target.cluster.users_secret.is_some() || target.cluster.definitions.is_some();
    let missing = applied.workload.pods < i32::from(target.pods);
    applied.workload.pods_refused = observed.pods_refused.filter(|_| missing);
    context.failovers.assign(Assignment { target, applied, problem: None, status: cluster.status.clone() });
    Ok(Action::requeue(match (missing, uses_given) {
        _ if is_held => HELD_AFTER,
        (true, _) => PODS_MISSING_AFTER,
        (false, true) => GIVEN_AFTER,
        (false, false) => RESYNC_AFTER,
    }))
}

/// As many as the spec says, or as there are while those that would go are needed (see `failover::hold`).
fn pods_for_now(target: &Target, observed: &Observed, failovers: &Failovers) -> u8 {
    let cluster = &target.cluster;
    let existing = observed.stateful_set.as_ref().and_then(|set| set.spec.as_ref()?.replicas);
    let existing = existing.and_then(|replicas| u8::try_from(replicas).ok()).unwrap_or(0);
    if cluster.orders.hibernated || existing <= target.pods {
        return target.pods;
    }
    let key = (cluster.namespace.clone(), cluster.name.to_string());
    let keep = failovers.pods_to_keep(&key, &cluster.uid).unwrap_or(existing);
    keep.clamp(target.pods, existing)
}

fn given_definitions(text: &str) -> GivenDefinitions {
    let hash = Sha256::digest(text.as_bytes()).iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    GivenDefinitions { text: text.into(), hash }
}

/// Says in the status what is wrong, through the cluster's task if it has one.
async fn report(cluster: &BrokerCluster, context: &Context, error: &ReconcileError) {
    let (namespace, name) = (cluster.namespace().unwrap_or_default(), cluster.name_any());
    tracing::warn!(cluster = name, namespace, %error, "not reconciled");
    let problem = Problem { reason: error.reason(), message: error.to_string() };
    let key = (namespace, name);
    if context.failovers.report_problem(&key, &cluster.uid().unwrap_or_default(), &problem) {
        return;
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let at = Timestamp::from_unix_ms(i64::try_from(now.as_millis()).unwrap_or(0));
    let status = status::assess_problem(cluster, &problem, &at);
    if cluster.status.as_ref() == Some(&status) {
        return;
    }
    if let Err(error) = status::write(&context.client, &key.0, &key.1, &status).await {
        tracing::warn!(cluster = key.1, namespace = key.0, %error, "status");
    }
}

#[allow(clippy::needless_pass_by_value, reason = "the signature is kube's")]
fn retry(_: Arc<BrokerCluster>, _: &ReconcileError, _: Arc<Context>) -> Action {
    Action::requeue(RETRY_AFTER)
}
