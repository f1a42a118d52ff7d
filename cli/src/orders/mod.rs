//! `fence`, `unfence`, `hibernate`, `wake`, `maintenance`, `pause`, `resume`: what a person orders for now, written into the
//! BrokerCluster's annotations, where the operator reads it. Each may be said again; what would harm is refused with what to do
//! instead. Nothing here does what is ordered: it is the operator's, and its status shows when it is done.

mod order;

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::arguments::{
    FenceOptions, HibernateOptions, MaintenanceCommand, MaintenanceOptions, NamedOrderOptions, OrderOptions,
    UnfenceOptions,
};
use crate::consent;
use crate::kubernetes::{Kubernetes, Seen, said};
use order::Order;

const LOOK_AGAIN: Duration = Duration::from_millis(250);
/// Others change the object too, the operator above all; then it is read anew.
const MAX_CONFLICTS: u32 = 10;

/// How an order is carried out.
#[derive(Clone, Copy, Debug)]
struct Manner {
    wait: Option<Duration>,
    dry_run: bool,
    /// Agreed beforehand to what would be asked.
    yes: bool,
}

impl Manner {
    fn of(options: &OrderOptions, yes: bool) -> Self {
        let wait = options.wait.then(|| Duration::from_secs(options.timeout));
        Self { wait, dry_run: options.dry_run, yes }
    }
}

pub(crate) async fn fence(options: FenceOptions) -> anyhow::Result<ExitCode> {
    let FenceOptions { pods, yes, order } = options;
    let cluster = cluster_of(&pods)?;
    let pods = pods.into_iter().collect();
    give(order, yes, Some(cluster), Order::Fence(pods)).await
}

pub(crate) async fn unfence(options: UnfenceOptions) -> anyhow::Result<ExitCode> {
    let cluster = cluster_of(&options.pods)?;
    let pods = options.pods.into_iter().collect();
    give(options.order, true, Some(cluster), Order::Unfence(pods)).await
}

pub(crate) async fn hibernate(options: HibernateOptions) -> anyhow::Result<ExitCode> {
    give(options.order, options.yes, options.name, Order::Hibernate).await
}

pub(crate) async fn wake(options: NamedOrderOptions) -> anyhow::Result<ExitCode> {
    give(options.order, true, options.name, Order::Wake).await
}

pub(crate) async fn maintenance(options: MaintenanceOptions) -> anyhow::Result<ExitCode> {
    let (options, order) = match options.command {
        MaintenanceCommand::On(options) => (options, Order::MaintenanceOn),
        MaintenanceCommand::Off(options) => (options, Order::MaintenanceOff),
    };
    give(options.order, true, options.name, order).await
}

pub(crate) async fn pause(options: NamedOrderOptions) -> anyhow::Result<ExitCode> {
    give(options.order, true, options.name, Order::Pause).await
}

pub(crate) async fn resume(options: NamedOrderOptions) -> anyhow::Result<ExitCode> {
    give(options.order, true, options.name, Order::Resume).await
}

async fn give(options: OrderOptions, yes: bool, name: Option<String>, order: Order) -> anyhow::Result<ExitCode> {
    let kubernetes = Kubernetes::reach(&options.reach).await?;
    let said = carry_out(&kubernetes, name.as_deref(), &order, Manner::of(&options, yes)).await?;
    println!("{said}");
    Ok(ExitCode::SUCCESS)
}

/// Pods are called NAME-ORDINAL.
fn cluster_of(pods: &[String]) -> anyhow::Result<String> {
    let mut clusters = BTreeSet::new();
    for pod in pods {
        let name = pod.rsplit_once('-').filter(|(name, ordinal)| !name.is_empty() && ordinal.parse::<u8>().is_ok());
        let (name, _) = name.with_context(|| format!("{pod:?} is no broker's pod: they are called like orders-1"))?;
        clusters.insert(name.to_owned());
    }
    let mut names = clusters.into_iter();
    let first = names.next().context("give a pod's name")?;
    if let Some(other) = names.next() {
        bail!("these are pods of several clusters, {first} and {other}: give an order to one at a time");
    }
    Ok(first)
}

/// Says what has become of it.
async fn carry_out(
    kubernetes: &Kubernetes,
    name: Option<&str>,
    order: &Order,
    manner: Manner,
) -> anyhow::Result<String> {
    let mut seen = kubernetes.cluster(name).await?;
    let name = seen.name().to_owned();
    order.check(&seen)?;
    let is_new = !order.stands(&seen);
    if is_new && let Some(question) = order.question(&seen).filter(|_| !manner.dry_run && !manner.yes) {
        let otherwise = format!("{question}. Nothing was done: say --yes if that is meant");
        consent::ask(&format!("{question}. Go on?"), &otherwise)?;
    }
    let mut conflicts = 0;
    while !order.stands(&seen) {
        match annotate(kubernetes, &seen, order, manner.dry_run).await {
            Ok(()) if manner.dry_run => return Ok(format!("{} (dry run: nothing was changed)", order.would(&seen))),
            Ok(()) => {}
            Err(kube::Error::Api(refusal)) if refusal.code == 409 && conflicts < MAX_CONFLICTS => conflicts += 1,
            Err(error) => return Err(said(error)).with_context(|| format!("BrokerCluster {name} cannot be annotated")),
        }
        seen = kubernetes.cluster(Some(&name)).await?;
        order.check(&seen)?; // somebody else may have changed it
    }
    if manner.dry_run {
        return Ok(format!("{} already (dry run)", order.done(&name)));
    }
    let Some(within) = manner.wait else {
        return Ok(format!("{}; not waited for", order.ordered(&name)));
    };
    let awaited = async {
        while order.pending(&seen).is_some() {
            tokio::time::sleep(LOOK_AGAIN).await;
            seen = kubernetes.cluster(Some(&name)).await?;
        }
        anyhow::Ok(())
    };
    let outcome = tokio::time::timeout(within, awaited).await;
    match outcome {
        Ok(result) => result?,
        Err(_) => {
            let pending = order.pending(&seen).unwrap_or_default();
            bail!(
                "{}, and the status does not show it after {} s: {pending}. The order stands; {} shows how far it is, \
                 and whether the operator runs: `kubectl get pods -A -l app.kubernetes.io/name=understudy-operator`",
                order.ordered(&name),
                within.as_secs(),
                format_args!("`{} status {name} --watch`", crate::arguments::bin_name()),
            );
        }
    }
    let already = if is_new { "" } else { " already" };
    Ok(format!("{}{already}", order.done(&name)))
}

async fn annotate(kubernetes: &Kubernetes, seen: &Seen, order: &Order, dry_run: bool) -> Result<(), kube::Error> {
    let (annotation, value) = order.annotation(seen);
    // A list that somebody else has changed meanwhile is not overwritten.
    let version = order.depends_on_what_is_there().then(|| seen.resource_version()).flatten();
    let mut patch = json!({ "metadata": { "annotations": { annotation: value } } });
    if let Some(version) = version {
        patch["metadata"]["resourceVersion"] = version.into();
    }
    let parameters = PatchParams { dry_run, ..PatchParams::default() };
    kubernetes.clusters().patch(seen.name(), &parameters, &Patch::Merge(patch)).await.map(drop)
}

#[cfg(test)]
mod tests;
