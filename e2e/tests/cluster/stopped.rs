//! The operator is killed after each write to the API server: every procedure is carried through by lives of one write, and
//! nothing that was confirmed is lost.
//!
//! The deployed operator is away; the test runs the operator's executable itself, with the rights of its ServiceAccount, and
//! starts it anew at once (`Lives`). A procedure whose every life would first write the same again comes to no end here.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams};
use serde_json::json;
use tokio::task::JoinHandle;
use understudy_crds::{
    BrokerCluster, ConditionStatus, HIBERNATION_ANNOTATION, Quantity, SWITCHOVER_ANNOTATION, SwitchoverOutcome,
};
use understudy_e2e::{Cluster, Lives, Load, OperatorPause, RATE, eventually, kill_process, with_temp_ns};

use crate::{PATIENCE, small};

/// Changes of primary: a switchover, two failovers (K15), a roll.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a cluster: make e2e"]
async fn the_role_moves_by_lives_of_one_write() {
    with_temp_ns("stopped_moves", |space| async move {
        let pause = OperatorPause::begin(&space.client).await?;
        let mut lives = Lives::begin(&space.client, &space.namespace).await?;
        let cluster = lives.through("creation", created(space.create_cluster(small()).await?)).await?;
        let load = Load::start(&cluster.target().await?, "work").await?;
        let epochs = Epochs::watch(&cluster);

        let heir = cluster.backup().await?;
        let epoch = cluster.epoch().await?;
        let answer = lives.through("switchover", cluster.ask(SWITCHOVER_ANNOTATION, &heir)).await?;
        ensure!(answer.outcome == SwitchoverOutcome::Done && answer.to == heir, "{answer:?}");
        lives.through("after the switchover", cluster.ready_after(epoch)).await?;
        the_service_leads_to_the_primary(&cluster).await?;

        for round in 1..=2 {
            let (primary, epoch) = (cluster.primary().await?, cluster.epoch().await?);
            let failed_over = async {
                let failure = kill_process(&cluster, &[primary.name.to_string()]).await?;
                load.recovery(failure).await?;
                ensure!(cluster.primary().await? != primary, "a process that was killed is still the primary");
                cluster.ready_after(epoch).await
            };
            lives.through(&format!("failover {round}"), failed_over).await?;
            the_service_leads_to_the_primary(&cluster).await?;
        }

        let (before, epoch) = (uids(&cluster).await?, cluster.epoch().await?);
        cluster.patch(json!({ "resources": { "requests": { "memory": "96Mi" } } })).await?;
        lives.through("rollout", cluster.ready_after(epoch)).await?;
        let now = uids(&cluster).await?;
        let kept: Vec<_> = now.iter().filter(|(pod, uid)| before.get(*pod) == Some(uid)).collect();
        ensure!(kept.is_empty() && now.len() == 3, "not replaced: {kept:?}, of {}", now.len());
        the_service_leads_to_the_primary(&cluster).await?;

        load.finish().await?;
        epochs.never_went_back().await?;
        lives.end().await?;
        pause.end().await
    })
    .await;
}

/// What changes how many pods there are, and how large: volumes grow (K24), two replicas, three, none, three; then none for good.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a cluster: make e2e"]
async fn the_size_changes_by_lives_of_one_write() {
    with_temp_ns("stopped_sizes", |space| async move {
        let mut spec = small();
        spec["minInSync"] = json!(1);
        volumes_may_grow(&Api::all(space.client.clone())).await?;
        let pause = OperatorPause::begin(&space.client).await?;
        let mut lives = Lives::begin(&space.client, &space.namespace).await?;
        let cluster = lives.through("creation", created(space.create_cluster(spec).await?)).await?;
        let load = Load::start(&cluster.target().await?, "work").await?;

        let before = uids(&cluster).await?;
        cluster.patch(json!({ "storage": { "size": "2Gi" } })).await?;
        lives.through("volume growth", grown(&cluster, "2Gi")).await?;
        ensure!(uids(&cluster).await? == before, "pods were replaced for a volume's size");

        cluster.patch(json!({ "replicas": 2 })).await?;
        lives.through("three replicas to two", replicas(&cluster, 2)).await?;
        load.confirms(RATE, PATIENCE).await?;
        cluster.patch(json!({ "replicas": 3 })).await?;
        lives.through("two replicas to three", replicas(&cluster, 3)).await?;
        load.confirms(RATE, PATIENCE).await?;
        let kept = load.stop_publishing().await?;

        cluster.annotate(HIBERNATION_ANNOTATION, Some("on")).await?;
        lives.through("hibernation", hibernated(&cluster)).await?;
        cluster.annotate(HIBERNATION_ANNOTATION, None).await?;
        lives.through("waking", replicas(&cluster, 3)).await?;
        the_service_leads_to_the_primary(&cluster).await?;
        kept.finish().await?;

        cluster.api::<BrokerCluster>().delete(&cluster.name, &DeleteParams::default()).await?;
        lives.through("deletion", gone(&cluster)).await?;
        lives.end().await?;
        pause.end().await
    })
    .await;
}

async fn created(cluster: Cluster) -> Result<Cluster> {
    cluster.ready().await?;
    Ok(cluster)
}

/// The EndpointSlice is of the Lease's epoch, and has the address of its holder.
async fn the_service_leads_to_the_primary(cluster: &Cluster) -> Result<()> {
    eventually("the Service to lead to the Lease's holder", PATIENCE, async || {
        let (epoch, primary) = (cluster.epoch().await?, cluster.primary().await?);
        let slice: EndpointSlice = cluster.read(&format!("{}-primary", cluster.name)).await?;
        let of = slice.annotations().get("understudy.dev/epoch").context("the slice has no epoch")?.clone();
        let addresses: Vec<String> = slice.endpoints.into_iter().flat_map(|endpoint| endpoint.addresses).collect();
        let holder = cluster.pod_ip(primary.name.as_str()).await?;
        ensure!(
            of == epoch.to_string() && addresses == [holder],
            "{addresses:?} of epoch {of}, {epoch} is the Lease's"
        );
        Ok(())
    })
    .await
}

/// The class that claims without one get lets them grow, as classes of most clouds do.
pub(crate) async fn volumes_may_grow(classes: &Api<StorageClass>) -> Result<()> {
    const DEFAULT: &str = "storageclass.kubernetes.io/is-default-class";
    let all = classes.list(&ListParams::default()).await?;
    let default = all.items.into_iter().find(|class| class.annotations().get(DEFAULT).is_some_and(|is| is == "true"));
    let name = default.context("there is no default class")?.name_any();
    let patch = Patch::Merge(json!({ "allowVolumeExpansion": true }));
    classes.patch(&name, &PatchParams::default(), &patch).await?;
    Ok(())
}

/// Waits until claims and claim template ask for this much; none of them may ever ask for less than before.
async fn grown(cluster: &Cluster, size: &str) -> Result<()> {
    let wanted: Quantity = size.parse().context("no quantity")?;
    let mut seen: BTreeMap<String, Quantity> = BTreeMap::new();
    let deadline = tokio::time::Instant::now() + PATIENCE * 2;
    loop {
        let now = sizes(cluster).await?;
        for (name, size) in &now {
            let before = seen.insert(name.clone(), *size);
            ensure!(
                before.is_none_or(|before| before <= *size),
                "{name} has become smaller: {before:?}, then {size:?}"
            );
        }
        if now.len() == 4 && now.values().all(|size| *size == wanted) {
            break;
        }
        ensure!(tokio::time::Instant::now() < deadline, "sizes are {now:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let generation = cluster.read::<BrokerCluster>(&cluster.name).await?.metadata.generation;
    ensure!(cluster.ready().await?.observed_generation == generation, "the status is of an older spec");
    Ok(())
}

/// What each claim, and the StatefulSet's template while there is one, asks for.
async fn sizes(cluster: &Cluster) -> Result<BTreeMap<String, Quantity>> {
    let claims = cluster.api::<PersistentVolumeClaim>().list(&ListParams::default()).await?;
    let set = cluster.api::<StatefulSet>().get_opt(&cluster.name).await?;
    let templates = set.and_then(|set| set.spec?.volume_claim_templates).unwrap_or_default();
    let templates = templates.into_iter().map(|template| ("the template".to_owned(), template));
    let claims = claims.items.into_iter().map(|claim| (claim.name_any(), claim));
    let size = |claim: PersistentVolumeClaim| -> Result<Quantity> {
        let requests = claim.spec.and_then(|spec| spec.resources?.requests).unwrap_or_default();
        let size = requests.get("storage").context("a claim asks for nothing")?;
        size.0.parse().map_err(|_| anyhow::anyhow!("{size:?} is no quantity"))
    };
    claims.chain(templates).map(|(name, claim)| Ok((name, size(claim)?))).collect()
}

async fn replicas(cluster: &Cluster, wanted: i32) -> Result<()> {
    eventually(format!("{wanted} in sync"), PATIENCE * 2, async || {
        let status = cluster.ready().await?;
        ensure!(status.in_sync_replicas == wanted && status.replicas == wanted, "{}", status.in_sync_replicas);
        let pods = cluster.api::<Pod>().list(&ListParams::default()).await?.items.len();
        ensure!(i32::try_from(pods)? == wanted, "{pods} pods are there");
        Ok(())
    })
    .await
}

async fn hibernated(cluster: &Cluster) -> Result<()> {
    eventually("no pods", PATIENCE * 2, async || {
        let pods = cluster.api::<Pod>().list(&ListParams::default()).await?.items.len();
        ensure!(pods == 0, "{pods} are left");
        let status = cluster.status().await?;
        let ready = status.conditions.iter().find(|condition| condition.kind == "Ready").context("no Ready")?;
        ensure!(ready.reason == "Hibernated" && ready.status == ConditionStatus::True, "{ready:?}");
        Ok(())
    })
    .await
}

async fn gone(cluster: &Cluster) -> Result<()> {
    eventually("the cluster's end", PATIENCE * 2, async || {
        ensure!(cluster.api::<BrokerCluster>().get_opt(&cluster.name).await?.is_none(), "the object is there");
        ensure!(cluster.api::<StatefulSet>().get_opt(&cluster.name).await?.is_none(), "the StatefulSet is there");
        let services = cluster.api::<Service>().list(&ListParams::default()).await?.items.len();
        let slices = cluster.api::<EndpointSlice>().list(&ListParams::default()).await?.items.len();
        let pods = cluster.api::<Pod>().list(&ListParams::default()).await?.items.len();
        ensure!(services + slices + pods == 0, "{services} Services, {slices} EndpointSlices, {pods} pods");
        Ok(())
    })
    .await?;
    let claims = cluster.api::<PersistentVolumeClaim>().list(&ListParams::default()).await?.items.len();
    ensure!(claims == 3, "{claims} volume claims are left, though they are to be kept");
    Ok(())
}

/// The Lease's epochs, looked at all the while.
struct Epochs(JoinHandle<Result<()>>);

impl Epochs {
    fn watch(cluster: &Cluster) -> Self {
        let cluster = cluster.clone();
        Self(tokio::spawn(async move {
            let mut last = 0;
            loop {
                let now = cluster.epoch().await?;
                if now < last {
                    bail!("the epoch was {last} and is {now}");
                }
                last = now;
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }))
    }

    async fn never_went_back(self) -> Result<()> {
        self.0.abort();
        match self.0.await {
            Ok(looked) => looked,
            Err(error) if error.is_cancelled() => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

async fn uids(cluster: &Cluster) -> Result<BTreeMap<String, String>> {
    let pods = cluster.api::<Pod>().list(&ListParams::default()).await?;
    let living = pods.items.into_iter().filter(|pod| pod.metadata.deletion_timestamp.is_none());
    Ok(living.map(|pod| (pod.name_any(), pod.uid().unwrap_or_default())).collect())
}
