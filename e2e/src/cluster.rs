//! One broker cluster under test, as its user sees it: the object, its status, its Secret, its Services.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Secret};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::events::v1::Event;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::NamespaceResourceScope;
use kube::{Client, Resource};
use serde::de::DeserializeOwned;
use serde_json::json;
use understudy_bench::Target;
use understudy_crds::{BrokerCluster, BrokerClusterStatus, ConditionStatus, LastSwitchover};
use understudy_record::{Identity, Member};

use crate::space::Space;
use crate::wait::eventually;

/// Pods are scheduled, volumes bound, certificates made and a primary elected in some ten seconds; a machine that
/// builds something at the same time takes several times that.
const READY_WITHIN: Duration = Duration::from_secs(120);

/// The operator gives a failover that is under way half a minute.
const ANSWERED_WITHIN: Duration = Duration::from_secs(60);

const IN_SYNC_ANNOTATION: &str = "understudy.dev/in-sync";

/// Shorter than any goal for a failover, so that an attempt at an address that does not answer is not what is measured.
const ATTEMPT_LIMIT: Duration = Duration::from_millis(1000);

#[derive(Clone)]
pub struct Cluster {
    pub client: Client,
    pub namespace: String,
    pub name: String,
}

impl Cluster {
    pub(crate) async fn create(space: &Space, name: &str, spec: serde_json::Value) -> Result<Self> {
        let cluster = Self { client: space.client.clone(), namespace: space.namespace.clone(), name: name.to_owned() };
        let object: BrokerCluster = serde_json::from_value(json!({
            "apiVersion": "understudy.dev/v1alpha1", "kind": "BrokerCluster", "metadata": { "name": name }, "spec": spec,
        }))?;
        cluster.api::<BrokerCluster>().create(&PostParams::default(), &object).await?;
        Ok(cluster)
    }

    pub fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// # Errors
    /// If the object cannot be read, or is not there.
    pub async fn read<K>(&self, name: &str) -> Result<K>
    where
        K: Resource<Scope = NamespaceResourceScope> + Clone + std::fmt::Debug + DeserializeOwned,
        K::DynamicType: Default,
    {
        let kind = K::kind(&K::DynamicType::default()).into_owned();
        self.api::<K>().get(name).await.with_context(|| format!("{kind} {name}"))
    }

    /// # Errors
    /// If the object cannot be read, or nobody has written a status yet.
    pub async fn status(&self) -> Result<BrokerClusterStatus> {
        self.read::<BrokerCluster>(&self.name).await?.status.context("there is no status yet")
    }

    /// Waits until the status of the newest spec says `Ready`.
    ///
    /// # Errors
    /// After the deadline, with what the status said instead.
    pub async fn ready(&self) -> Result<BrokerClusterStatus> {
        eventually(format!("{} to be Ready", self.name), READY_WITHIN, async || {
            let cluster = self.read::<BrokerCluster>(&self.name).await?;
            let status = cluster.status.context("there is no status yet")?;
            ensure!(status.observed_generation == cluster.metadata.generation, "the status is of an older spec");
            let ready = status.conditions.iter().find(|condition| condition.kind == "Ready");
            let ready = ready.context("there is no condition Ready")?;
            ensure!(ready.status == ConditionStatus::True, "{}: {}", ready.reason, ready.message);
            Ok(status)
        })
        .await
    }

    /// Waits until the operator has seen the primary of a later epoch and everything is in order again.
    ///
    /// # Errors
    /// After the deadline.
    pub async fn ready_after(&self, epoch: i64) -> Result<BrokerClusterStatus> {
        self.epoch_after(epoch).await?;
        eventually(format!("the status to speak of an epoch after {epoch}"), READY_WITHIN, async || {
            let now = self.status().await?.epoch;
            ensure!(now > Some(epoch), "it says {now:?}");
            Ok(())
        })
        .await?;
        self.ready().await
    }

    /// # Errors
    /// If the Lease cannot be read.
    pub async fn lease(&self) -> Result<Lease> {
        self.read::<Lease>(&self.name).await
    }

    /// Waits until the Lease names the primary of a later epoch.
    ///
    /// # Errors
    /// After the deadline.
    pub async fn epoch_after(&self, epoch: i64) -> Result<()> {
        eventually(format!("an epoch after {epoch}"), READY_WITHIN, async || {
            let now = self.epoch().await?;
            ensure!(now > epoch, "the Lease's epoch is {now}");
            Ok(())
        })
        .await
    }

    /// Sets an annotation of the object, or takes it off.
    ///
    /// # Errors
    /// If the API server does not take it.
    pub async fn annotate(&self, annotation: &str, value: Option<&str>) -> Result<()> {
        let patch = Patch::Merge(json!({ "metadata": { "annotations": { annotation: value } } }));
        self.api::<BrokerCluster>().patch(&self.name, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// The Lease's word, which is right with no operator, too.
    ///
    /// # Errors
    /// If the Lease cannot be read, or names nobody.
    pub async fn primary(&self) -> Result<Identity> {
        let holder = self.lease().await?.spec.and_then(|spec| spec.holder_identity).unwrap_or_default();
        holder.parse().map_err(|error| anyhow!("the Lease's holder {holder:?}: {error}"))
    }

    /// # Errors
    /// If the Lease cannot be read.
    pub async fn epoch(&self) -> Result<i64> {
        let spec = self.lease().await?.spec.context("the Lease is empty")?;
        Ok(i64::from(spec.lease_transitions.context("the Lease has no epoch")?))
    }

    /// The in-sync set.
    ///
    /// # Errors
    /// If the Lease cannot be read.
    pub async fn in_sync(&self) -> Result<Vec<Member>> {
        let annotations = self.lease().await?.metadata.annotations.unwrap_or_default();
        let text = annotations.get(IN_SYNC_ANNOTATION).context("the Lease has no in-sync set")?;
        let members = text.split(',').filter(|entry| !entry.is_empty());
        members.map(|entry| entry.parse().map_err(|error| anyhow!("in-sync entry {entry:?}: {error}"))).collect()
    }

    pub fn pod_names(&self, replicas: usize) -> Vec<String> {
        (0..replicas).map(|number| format!("{}-{number}", self.name)).collect()
    }

    /// # Errors
    /// If the pod cannot be read, or has no address.
    pub async fn pod_ip(&self, pod: &str) -> Result<String> {
        let pod: Pod = self.read(pod).await?;
        pod.status.and_then(|status| status.pod_ip).context("the pod has no address")
    }

    /// Where the failover Service leads.
    ///
    /// # Errors
    /// If its EndpointSlice cannot be read.
    pub async fn routed_to(&self) -> Result<Vec<String>> {
        let slice: EndpointSlice = self.read(&format!("{}-primary", self.name)).await?;
        Ok(slice.endpoints.into_iter().flat_map(|endpoint| endpoint.addresses).collect())
    }

    /// Each pod with its UID and how often its containers were started again: what changes when Kubernetes touches one.
    ///
    /// # Errors
    /// If they cannot be listed.
    pub async fn lives(&self) -> Result<BTreeMap<String, (String, i32)>> {
        let pods = self.api::<Pod>().list(&ListParams::default()).await?;
        let lives = pods.items.into_iter().map(|pod| {
            let statuses = pod.status.and_then(|status| status.container_statuses).unwrap_or_default();
            let restarts = statuses.iter().map(|container| container.restart_count).sum();
            (pod.metadata.name.unwrap_or_default(), (pod.metadata.uid.unwrap_or_default(), restarts))
        });
        Ok(lives.collect())
    }

    /// What events say of the `BrokerCluster`, each with its reason before it.
    ///
    /// # Errors
    /// If they cannot be listed.
    pub async fn events(&self) -> Result<Vec<String>> {
        let events = self.api::<Event>().list(&ListParams::default()).await?.items;
        let kind = |event: &Event| event.regarding.as_ref().and_then(|regarding| regarding.kind.clone());
        let own = events.into_iter().filter(|event| kind(event).as_deref() == Some("BrokerCluster"));
        Ok(own
            .map(|event| format!("{}: {}", event.reason.unwrap_or_default(), event.note.unwrap_or_default()))
            .collect())
    }

    /// # Errors
    /// If there is none.
    pub async fn backup(&self) -> Result<String> {
        let primary = self.primary().await?;
        let members = self.in_sync().await?;
        let backup = members.iter().find(|member| member.name != primary.name).context("no backup is in sync")?;
        Ok(backup.name.to_string())
    }

    /// What an application is given: the Service and the Secret, nothing else.
    ///
    /// # Errors
    /// If the Secret cannot be read or lacks a key.
    pub async fn target(&self) -> Result<Target> {
        self.target_at(|host, port| vec![format!("{host}:{port}")]).await
    }

    /// The same user at other addresses.
    ///
    /// # Errors
    /// If the Secret cannot be read or lacks a key.
    pub async fn target_at(&self, addresses: impl FnOnce(&str, &str) -> Vec<String>) -> Result<Target> {
        let secret: Secret = self.read(&format!("{}-user", self.name)).await?;
        let data: BTreeMap<_, _> = secret.data.unwrap_or_default();
        let text = |key: &str| -> Result<String> {
            let bytes = data.get(key).with_context(|| format!("the Secret has no {key}"))?;
            Ok(String::from_utf8(bytes.0.clone())?)
        };
        Ok(Target {
            addresses: addresses(&text("host")?, &text("port")?),
            user: text("username")?,
            password: text("password")?,
            virtual_host: "/".into(),
            heartbeat_seconds: 1,
            attempt_limit: ATTEMPT_LIMIT,
        })
    }

    /// # Errors
    /// If the API server does not take it.
    pub async fn patch(&self, spec: serde_json::Value) -> Result<()> {
        let patch = Patch::Merge(json!({ "spec": spec }));
        self.api::<BrokerCluster>().patch(&self.name, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Asks the operator for something by an annotation, and waits until it has taken that off; its answer.
    ///
    /// # Errors
    /// If the API server does not take it, or nobody answers.
    pub async fn ask(&self, annotation: &str, value: &str) -> Result<LastSwitchover> {
        let before = self.status().await?.last_switchover;
        let patch = Patch::Merge(json!({ "metadata": { "annotations": { annotation: value } } }));
        self.api::<BrokerCluster>().patch(&self.name, &PatchParams::default(), &patch).await?;
        eventually(format!("an answer to {annotation}"), ANSWERED_WITHIN, async || {
            let cluster = self.read::<BrokerCluster>(&self.name).await?;
            let is_there = cluster.metadata.annotations.is_some_and(|all| all.contains_key(annotation));
            ensure!(!is_there, "the annotation is still there");
            let answer = cluster.status.and_then(|status| status.last_switchover);
            answer.filter(|answer| before.as_ref() != Some(answer)).context("the status has no answer")
        })
        .await
    }

    /// # Errors
    /// If the API server does not take it.
    pub async fn delete_pod(&self, pod: &str) -> Result<()> {
        self.api::<Pod>().delete(pod, &DeleteParams::default()).await?;
        Ok(())
    }

    /// Takes a pod's volume away: claim and pod, so that the pod comes back with an empty one.
    ///
    /// # Errors
    /// If the claim's object does not change within some time.
    pub async fn delete_volume_and_pod(&self, pod: &str) -> Result<()> {
        let claims: Api<PersistentVolumeClaim> = self.api();
        let claim = format!("data-{pod}");
        let before = claims.get(&claim).await?.metadata.uid;
        claims.delete(&claim, &DeleteParams::default()).await?;
        self.delete_pod(pod).await?;
        eventually(format!("a new claim {claim}"), READY_WITHIN, async || {
            let now = claims.get(&claim).await?.metadata.uid;
            if now == before {
                bail!("it is still the old one");
            }
            Ok(())
        })
        .await
    }
}
