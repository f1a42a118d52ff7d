//! Step 1: reads what building depends on and no spec says: secrets that are kept once made, the volumes that exist, why
//! pods are missing. Needs a client; changes nothing.

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{ConfigMap, Event, PersistentVolumeClaim, Secret};
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};
use understudy_crds::{ConfigMapKeyRef, ValidatedCluster};

use crate::names::{Names, selector_text};

/// Volumes of one cluster at most: nine replicas, and those left over from before a scale-down.
const MAX_CLAIMS: u32 = 64;
/// Events read to learn why pods are missing; the newest few are enough.
const MAX_EVENTS: u32 = 50;

#[derive(Clone, Debug, Default)]
pub struct Observed {
    pub stateful_set: Option<StatefulSet>,
    pub user_secret: Option<Secret>,
    pub tls_secret: Option<Secret>,
    pub authority_secret: Option<Secret>,
    /// The certificate that clients see and its authority, where they are the operator's own.
    pub client_tls_secret: Option<Secret>,
    pub client_authority_secret: Option<Secret>,
    /// The text that `spec.definitions` names.
    pub definitions: Option<String>,
    /// `spec.users.secretName`'s.
    pub given_user_secret: Option<Secret>,
    pub claims: Vec<PersistentVolumeClaim>,
    /// Why the StatefulSet could not make a pod, if one is missing (a quota, an admission rule).
    pub pods_refused: Option<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum DereferenceError {
    #[error("cannot read {what}: {source}")]
    Read { what: &'static str, source: Box<kube::Error> },
    #[error("{field} names the {kind} {name}, which is not there: make it, or name another")]
    NotThere { field: &'static str, kind: &'static str, name: String },
    #[error("{field} names the {kind} {name}, which has no {key}: add it, or name another")]
    NoKey { field: &'static str, kind: &'static str, name: String, key: String },
}

/// # Errors
/// If the API server does not answer, or refuses; or if something that the spec names is not there.
pub async fn dereference(client: &Client, cluster: &ValidatedCluster) -> Result<Observed, DereferenceError> {
    let (namespace, name) = (cluster.namespace.as_str(), &cluster.name);
    let names = Names::of(name);
    let read = |what| move |source| DereferenceError::Read { what, source: Box::new(source) };
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let sets: Api<StatefulSet> = Api::namespaced(client.clone(), namespace);
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), namespace);
    let stateful_set = sets.get_opt(&names.stateful_set()).await.map_err(read("the StatefulSet"))?;
    let of_cluster = ListParams::default().labels(&selector_text(name)).limit(MAX_CLAIMS);
    let tls = cluster.clients.tls.as_ref();
    let (client_tls_secret, client_authority_secret) = match tls {
        Some(tls) if tls.secret_name.is_none() => (
            secrets.get_opt(&names.client_tls_secret()).await.map_err(read("the clients' certificate"))?,
            secrets.get_opt(&names.client_authority_secret()).await.map_err(read("the clients' authority"))?,
        ),
        _ => (None, None),
    };
    if let Some(name) = tls.and_then(|tls| tls.secret_name.as_deref()) {
        given_secret(&secrets, "spec.clients.tls.secretName", name, &["tls.crt", "tls.key"]).await?;
    }
    if let Some(authority) = tls.and_then(|tls| tls.client_authority.as_ref()) {
        given_secret(&secrets, "spec.clients.tls.clientAuthority", &authority.secret_name, &[authority.key.as_str()])
            .await?;
    }
    let given_user_secret = match &cluster.users_secret {
        Some(name) => Some(given_secret(&secrets, "spec.users.secretName", name, &["username", "password"]).await?),
        None => None,
    };
    let definitions = match &cluster.definitions {
        Some(given) => Some(given_text(client, namespace, given).await?),
        None => None,
    };
    Ok(Observed {
        pods_refused: match &stateful_set {
            Some(set) if pods_missing(set) => {
                why_refused(client, namespace, set).await.map_err(read("the StatefulSet's events"))?
            }
            _ => None,
        },
        stateful_set,
        user_secret: secrets.get_opt(&names.user_secret()).await.map_err(read("the users' Secret"))?,
        tls_secret: secrets.get_opt(&names.tls_secret()).await.map_err(read("the certificates' Secret"))?,
        authority_secret: secrets.get_opt(&names.authority_secret()).await.map_err(read("the authority's Secret"))?,
        client_tls_secret,
        client_authority_secret,
        given_user_secret,
        definitions,
        claims: claims.list(&of_cluster).await.map_err(read("the volume claims"))?.items,
    })
}

/// One that somebody else keeps: a pod that mounted it would wait for it without a word.
async fn given_secret(
    secrets: &Api<Secret>,
    field: &'static str,
    name: &str,
    keys: &[&str],
) -> Result<Secret, DereferenceError> {
    let read = secrets.get_opt(name).await;
    let secret = read.map_err(|source| DereferenceError::Read { what: field, source: Box::new(source) })?;
    let secret = secret.ok_or_else(|| DereferenceError::NotThere { field, kind: "Secret", name: name.to_owned() })?;
    let has =
        |key: &str| secret.data.as_ref().is_some_and(|data| data.get(key).is_some_and(|value| !value.0.is_empty()));
    match keys.iter().find(|key| !has(key)) {
        Some(key) => {
            let (name, key) = (name.to_owned(), (*key).to_owned());
            Err(DereferenceError::NoKey { field, kind: "Secret", name, key })
        }
        None => Ok(secret),
    }
}

async fn given_text(client: &Client, namespace: &str, given: &ConfigMapKeyRef) -> Result<String, DereferenceError> {
    const FIELD: &str = "spec.definitions";
    const KIND: &str = "ConfigMap";
    let (name, key) = (given.config_map_name.clone(), given.key.clone());
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let map = maps.get_opt(&name).await;
    let map = map.map_err(|source| DereferenceError::Read { what: FIELD, source: Box::new(source) })?;
    let Some(map) = map else { return Err(DereferenceError::NotThere { field: FIELD, kind: KIND, name }) };
    let text = map.data.and_then(|mut data| data.remove(&key));
    text.ok_or(DereferenceError::NoKey { field: FIELD, kind: KIND, name, key })
}

pub(crate) fn pods_missing(set: &StatefulSet) -> bool {
    let wanted = set.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(0);
    set.status.as_ref().map_or(0, |status| status.replicas) < wanted
}

async fn why_refused(client: &Client, namespace: &str, set: &StatefulSet) -> Result<Option<String>, kube::Error> {
    let events: Api<Event> = Api::namespaced(client.clone(), namespace);
    let fields = format!("involvedObject.kind=StatefulSet,involvedObject.name={},reason=FailedCreate", set.name_any());
    let list = events.list(&ListParams::default().fields(&fields).limit(MAX_EVENTS)).await?;
    let of_this = list.items.into_iter().filter(|event| event.involved_object.uid == set.metadata.uid);
    Ok(of_this.max_by_key(|event| event.last_timestamp.clone()).and_then(|event| event.message))
}
