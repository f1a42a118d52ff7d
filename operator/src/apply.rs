//! Step 4: makes the API server's objects those that were built, by server-side apply, and writes nothing that is there
//! already. Needs a client. Its result, [`Applied`], is the only thing the status may say of the objects.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams, PostParams, Preconditions};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use understudy_crds::ValidatedCluster;

use crate::build::{Built, Mode, Prepared, TlsMaterial};
use crate::covers::{HASH_ANNOTATION, covers, hash};
use crate::names::{FIELD_MANAGER, Names};

/// Until an object that was deleted is gone.
const LOOK_EVERY: Duration = Duration::from_millis(100);
const GONE_AFTER_LOOKS: u32 = 100;

/// What is known of a cluster's objects once they are applied.
#[derive(Clone, Debug, PartialEq)]
pub struct Applied {
    pub tls: TlsMaterial,
    /// As [`Built`] has it.
    pub certificates_end: BTreeMap<&'static str, i64>,
    pub workload: Workload,
    /// The version of the failover Service's EndpointSlice, as far as it was looked at: another one is a reason to look whether
    /// it says what it should.
    pub slice_version: Option<String>,
}

/// The StatefulSet as the API server returned it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Workload {
    /// Pods that exist.
    pub pods: i32,
    /// Revision that pods should have, once the controller has seen the newest template.
    pub update_revision: Option<String>,
    /// Why a pod could not be made.
    pub pods_refused: Option<String>,
    /// The StatefulSet is not what the spec makes of it, and is left so: reconciliation is paused.
    pub differs: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    #[error(
        "cannot {verb} {kind} {name}: this cluster has no such kind; install what defines it, or leave it out of the spec"
    )]
    NoSuchKind { verb: &'static str, kind: String, name: String },
    #[error("cannot {verb} {kind} {name}: {source}")]
    Api { verb: &'static str, kind: String, name: String, source: Box<kube::Error> },
    #[error("{kind} {name} exists and belongs to something else ({owner}): rename the cluster, or remove that object")]
    Taken { kind: String, name: String, owner: String },
    #[error("{kind} {name} as the API server has it cannot be read: {source}")]
    Decode { kind: String, name: String, source: serde_json::Error },
}

/// What happened to one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Unchanged,
    Written,
}

/// # Errors
/// The first object that cannot be applied; those before it are.
pub async fn apply(client: &Client, cluster: &ValidatedCluster, built: Built) -> Result<Applied, ApplyError> {
    let mut workload = Workload::default();
    let set_name = Names::of(&cluster.name).stateful_set();
    let mut slice_version = None;
    let mut written = 0_u32;
    for prepared in &built.objects {
        let (outcome, live) = apply_one(client, cluster, prepared).await?;
        written += u32::from(outcome == Outcome::Written);
        match (live, prepared.resource.kind.as_str()) {
            (Some(live), "StatefulSet") => {
                let decode = |source| ApplyError::Decode { kind: "StatefulSet".into(), name: set_name.clone(), source };
                workload = read_workload(serde_json::from_value(live).map_err(decode)?);
            }
            (Some(live), "EndpointSlice") => {
                slice_version = live.pointer("/metadata/resourceVersion").and_then(Value::as_str).map(str::to_owned);
            }
            _ => {}
        }
    }
    for (claim, size) in &built.claims_to_grow {
        grow(client, &cluster.namespace, claim, size).await?;
        written += 1;
    }
    if written > 0 {
        tracing::info!(cluster = %cluster.name, namespace = %cluster.namespace, written, "objects written");
    }
    crate::metrics::OBJECTS_WRITTEN.inc_by(u64::from(written));
    Ok(Applied { tls: built.tls, certificates_end: built.certificates_end, workload, slice_version })
}

/// What [`apply`] would return if it changed nothing: for a cluster whose reconciliation is paused.
pub(crate) fn leave_alone(built: Built, set: Option<StatefulSet>) -> Applied {
    let wanted = built.objects.iter().find(|object| object.resource.kind == "StatefulSet");
    let live = set.as_ref().and_then(|set| serde_json::to_value(set).ok());
    let is_as_wanted = wanted.zip(live).is_some_and(|(wanted, mut live)| {
        // Typed, it has lost what every object says of itself.
        for field in ["apiVersion", "kind"] {
            live[field] = wanted.value[field].clone();
        }
        covers(&live, &with_hash(&wanted.value))
    });
    let workload = Workload { differs: !is_as_wanted, ..set.map(read_workload).unwrap_or_default() };
    Applied { tls: built.tls, certificates_end: built.certificates_end, workload, slice_version: None }
}

async fn apply_one(
    client: &Client,
    cluster: &ValidatedCluster,
    prepared: &Prepared,
) -> Result<(Outcome, Option<Value>), ApplyError> {
    let Prepared { resource, name, mode, .. } = prepared;
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), &cluster.namespace, resource);
    let failed = |verb| {
        move |source| ApplyError::Api {
            verb,
            kind: resource.kind.clone(),
            name: name.clone(),
            source: Box::new(source),
        }
    };
    let live = match api.get_opt(name).await {
        // Where nobody has defined its kind the answer is no API object.
        Err(kube::Error::Api(status)) if status.code == 404 => None,
        live => live.map_err(failed("read"))?,
    };
    if let Some(live) = &live {
        match check_owner(cluster, prepared, live) {
            // Somebody else's of that name is nothing of ours to remove.
            Err(_) if *mode == Mode::Absent => return Ok((Outcome::Unchanged, None)),
            checked => checked?,
        }
    }
    match (mode, live) {
        (Mode::Absent, None) => Ok((Outcome::Unchanged, None)),
        (Mode::Absent, Some(live)) => {
            let preconditions = Preconditions { uid: live.uid(), resource_version: None };
            let params = DeleteParams::default().preconditions(preconditions);
            api.delete(name, &params).await.map_err(failed("delete"))?;
            Ok((Outcome::Written, None))
        }
        (Mode::CreateOnly, Some(live)) => Ok((Outcome::Unchanged, Some(encode(prepared, &live)?))),
        (Mode::CreateOnly, None) => {
            let object: DynamicObject = decode(prepared, prepared.value.clone())?;
            match api.create(&PostParams::default(), &object).await {
                Ok(_) => Ok((Outcome::Written, None)),
                // The primary was faster.
                Err(kube::Error::Api(status)) if status.code == 409 => Ok((Outcome::Unchanged, None)),
                Err(error) => Err(failed("create")(error)),
            }
        }
        (Mode::Apply, live) => {
            let live_uid = live.as_ref().and_then(ResourceExt::uid);
            let desired = with_hash(&prepared.value);
            let live = live.map(|live| encode(prepared, &live)).transpose()?;
            if let Some(live) = live.filter(|live| covers(live, &desired)) {
                return Ok((Outcome::Unchanged, Some(live)));
            }
            let params = PatchParams::apply(FIELD_MANAGER).force();
            let live_uid = live_uid.filter(|_| resource.kind == "StatefulSet");
            let applied = match api.patch(name, &params, &Patch::Apply(&desired)).await {
                // An apply makes what is not there: only its kind can be missing.
                Err(kube::Error::Api(status)) if status.code == 404 && !status.message.contains("namespaces") => {
                    let (kind, name) = (resource.kind.clone(), name.clone());
                    return Err(ApplyError::NoSuchKind { verb: "apply", kind, name });
                }
                Err(kube::Error::Api(status)) if live_uid.is_some() && is_immutable(&status) => {
                    tracing::info!(cluster = %cluster.name, why = status.message, "StatefulSet replaced, its pods and volumes kept");
                    orphan(&api, name, live_uid).await.map_err(failed("replace"))?;
                    api.patch(name, &params, &Patch::Apply(&desired)).await.map_err(failed("apply"))?
                }
                applied => applied.map_err(failed("apply"))?,
            };
            Ok((Outcome::Written, Some(encode(prepared, &applied)?)))
        }
    }
}

fn is_immutable(status: &kube::core::Status) -> bool {
    status.code == 422 && status.message.contains("updates to statefulset spec for fields other than")
}

/// Deletes the object alone, and waits until it is gone: what it owned is adopted by the next one of its name. An operator that
/// ends in between finds none, and makes it.
async fn orphan(api: &Api<DynamicObject>, name: &str, uid: Option<String>) -> Result<(), kube::Error> {
    let preconditions = Preconditions { uid: uid.clone(), resource_version: None };
    let params = DeleteParams::orphan().preconditions(preconditions);
    match api.delete(name, &params).await {
        Err(kube::Error::Api(status)) if status.code == 404 => return Ok(()),
        deleted => drop(deleted?),
    }
    // The garbage collector takes the owner off the pods first.
    for _ in 0..GONE_AFTER_LOOKS {
        if api.get_opt(name).await?.is_none_or(|live| live.uid() != uid) {
            return Ok(());
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    Ok(()) // the apply says what is in the way
}

/// An object under our name that another controller owns, an earlier cluster of the same name included, is left alone; so
/// is one that a person made.
fn check_owner(cluster: &ValidatedCluster, prepared: &Prepared, live: &DynamicObject) -> Result<(), ApplyError> {
    let controller = live.owner_references().iter().find(|owner| owner.controller == Some(true));
    let owner = match controller {
        Some(owner) if owner.uid == cluster.uid => return Ok(()),
        Some(owner) => format!("{} {}, uid {}", owner.kind, owner.name, owner.uid),
        // Brokers create the EndpointSlice without an owner if they are faster than we.
        None if prepared.mode == Mode::CreateOnly => return Ok(()),
        None => "it has no owner".to_owned(),
    };
    Err(ApplyError::Taken { kind: prepared.resource.kind.clone(), name: prepared.name.clone(), owner })
}

fn with_hash(value: &Value) -> Value {
    let mut desired = value.clone();
    let hash = hash(value);
    if let Some(metadata) = desired.get_mut("metadata").and_then(Value::as_object_mut) {
        let annotations = metadata.entry("annotations").or_insert_with(|| json!({}));
        if let Some(annotations) = annotations.as_object_mut() {
            annotations.insert(HASH_ANNOTATION.into(), hash.into());
        }
    }
    desired
}

fn encode(prepared: &Prepared, object: &DynamicObject) -> Result<Value, ApplyError> {
    let mut value = serde_json::to_value(object).map_err(|source| undecodable(prepared, source))?;
    // Items of a list come without them; we asked for this kind.
    if let Some(fields) = value.as_object_mut() {
        fields.insert("apiVersion".into(), prepared.resource.api_version.clone().into());
        fields.insert("kind".into(), prepared.resource.kind.clone().into());
    }
    Ok(value)
}

fn decode<T: serde::de::DeserializeOwned>(prepared: &Prepared, value: Value) -> Result<T, ApplyError> {
    serde_json::from_value(value).map_err(|source| undecodable(prepared, source))
}

fn undecodable(prepared: &Prepared, source: serde_json::Error) -> ApplyError {
    ApplyError::Decode { kind: prepared.resource.kind.clone(), name: prepared.name.clone(), source }
}

fn read_workload(set: StatefulSet) -> Workload {
    let seen = set.status.as_ref().and_then(|status| status.observed_generation);
    let current = seen.is_some() && seen == set.metadata.generation;
    let status = set.status.unwrap_or_default();
    let update_revision = status.update_revision.filter(|_| current);
    Workload { pods: status.replicas, update_revision, ..Workload::default() }
}

async fn grow(client: &Client, namespace: &str, claim: &str, size: &str) -> Result<(), ApplyError> {
    let api: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), namespace);
    let patch = json!({"spec": {"resources": {"requests": {"storage": size}}}});
    let failed = |source| ApplyError::Api {
        verb: "grow",
        kind: "PersistentVolumeClaim".into(),
        name: claim.to_owned(),
        source: Box::new(source),
    };
    api.patch(claim, &PatchParams::default(), &Patch::Merge(&patch)).await.map_err(failed)?;
    Ok(())
}
