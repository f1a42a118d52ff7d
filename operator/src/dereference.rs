//! Step 1: reads what building depends on and no spec says: secrets that are kept once made, the volumes that exist, why
//! pods are missing. Needs a client; changes nothing.

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{Event, PersistentVolumeClaim, Secret};
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};
use understudy_crds::{ClusterName, InvalidCluster};

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
    pub claims: Vec<PersistentVolumeClaim>,
    /// Why the StatefulSet could not make a pod, if one is missing (a quota, an admission rule).
    pub pods_refused: Option<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum DereferenceError {
    #[error("cannot read {what}: {source}")]
    Read { what: &'static str, source: Box<kube::Error> },
    #[error(transparent)]
    Name(#[from] InvalidCluster),
}

/// # Errors
/// If the API server does not answer, or refuses.
pub async fn dereference(client: &Client, namespace: &str, name: &str) -> Result<Observed, DereferenceError> {
    let name = ClusterName::parse(name)?;
    let names = Names::of(&name);
    let read = |what| move |source| DereferenceError::Read { what, source: Box::new(source) };
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let sets: Api<StatefulSet> = Api::namespaced(client.clone(), namespace);
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), namespace);
    let stateful_set = sets.get_opt(&names.stateful_set()).await.map_err(read("the StatefulSet"))?;
    let of_cluster = ListParams::default().labels(&selector_text(&name)).limit(MAX_CLAIMS);
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
        claims: claims.list(&of_cluster).await.map_err(read("the volume claims"))?.items,
    })
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
