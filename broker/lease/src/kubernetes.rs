//! The Lease as a `coordination.k8s.io/v1` Lease. Every write replaces the whole object and carries the `resourceVersion` it
//! replaces; the API server compares and swaps. What is written is the object as it was last seen at that version with our
//! fields changed, so owner references and whatever labels and annotations others have put on it stay.
//!
//! | here | there |
//! | --- | --- |
//! | holder | `spec.holderIdentity`: `name/store/process` |
//! | epoch | `spec.leaseTransitions` |
//! | in-sync set | annotation `understudy.dev/in-sync`: members, separated by commas |
//! | highest epoch given | annotation `understudy.dev/given-epoch`, where it is above the epoch |
//! | duration | `spec.leaseDurationSeconds`, rounded up; in full in annotation `understudy.dev/lease-duration-ms` |
//! | cluster's version | annotation `understudy.dev/version`; absent: 1 |
//! | renewed | `spec.renewTime`, by the writer's clock |
//! | incarnation | `metadata.uid` |
//!
//! One that has neither holder nor epoch nor set is blank, whoever made it.
//!
//! Needs the verbs `get`, `list`, `watch`, `create` and `update`.

mod encoding;

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::{BoxStream, StreamExt, unfold};
use k8s_openapi::api::coordination::v1::Lease as KubeLease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{Api, PostParams};
use kube::runtime::watcher;
use understudy_election::{Lease, Stored, Version};

use crate::{LeaseError, LeaseStore, SwapError};
pub use encoding::{DURATION_ANNOTATION, GIVEN_EPOCH_ANNOTATION, IN_SYNC_ANNOTATION, VERSION_ANNOTATION};

/// A primary renews twice within its Lease's duration, so a watch that shows nothing for three quarters of it has either lost
/// its connection without noticing or watches a primary that does not renew. One read tells which. It is within these bounds; where
/// there is no primary it begins with the shortest and doubles with each read that brings nothing. Shorter for all, the clusters
/// of one operator would keep an API server busy with such reads.
const SHORTEST_QUIET: Duration = Duration::from_secs(2);
const LONGEST_QUIET: Duration = Duration::from_secs(10);

/// Between an error of the watch and the next attempt: short against a failover, long against the API server's patience.
const WATCH_RETRY: Duration = Duration::from_millis(250);

/// One named Lease in one namespace.
#[derive(Clone)]
pub struct KubernetesLease {
    api: Api<KubeLease>,
    name: String,
    request_timeout: Duration,
    labels: BTreeMap<String, String>,
    owner: Option<OwnerReference>,
    /// The object as last seen, so that a swap need not read it first. Only a hint: its version is compared.
    seen: Arc<Mutex<Option<KubeLease>>>,
}

impl KubernetesLease {
    /// `request_timeout` bounds every request; a write that runs into it is [`SwapError::Unknown`].
    pub fn new(client: kube::Client, namespace: &str, name: &str, request_timeout: Duration) -> Self {
        let api = Api::namespaced(client, namespace);
        let (labels, owner, seen) = (BTreeMap::new(), None, Arc::default());
        Self { api, name: name.to_owned(), request_timeout, labels, owner, seen }
    }

    /// What a Lease that this store creates carries besides its own fields. One that exists is left as it is.
    #[must_use]
    pub fn with_create_metadata(mut self, labels: BTreeMap<String, String>, owner: Option<OwnerReference>) -> Self {
        (self.labels, self.owner) = (labels, owner);
        self
    }

    /// The object whose version is `expected`, to be changed and written back.
    async fn object_at(&self, expected: &Version) -> Result<KubeLease, SwapError> {
        let is_expected = |object: &KubeLease| encoding::version(object).is_ok_and(|version| version == *expected);
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(object) = seen.filter(is_expected) {
            return Ok(object);
        }
        // Nothing has been written yet, so whatever fails here is a refusal.
        let found = self.bounded(self.api.get_opt(&self.name)).await;
        let found = found.map_err(|failure| SwapError::Refused { why: format!("read before writing: {failure}") })?;
        found.filter(is_expected).ok_or(SwapError::Conflict)
    }

    fn remember(&self, object: Option<&KubeLease>) {
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = object.cloned();
    }

    /// The version of what was written.
    fn written(&self, object: &KubeLease) -> Result<Version, SwapError> {
        self.remember(Some(object));
        // A success without a version cannot be told from a write that another has overtaken.
        encoding::version(object)
            .map_err(|error| SwapError::Unknown { why: format!("the API server's answer: {error}") })
    }

    async fn bounded<T>(&self, request: impl Future<Output = kube::Result<T>>) -> Result<T, Failure> {
        match tokio::time::timeout(self.request_timeout, request).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(Failure::Kube(error)),
            Err(_) => Err(Failure::Timeout(self.request_timeout)),
        }
    }
}

#[async_trait]
impl LeaseStore for KubernetesLease {
    async fn read(&self) -> Result<Stored, LeaseError> {
        let found = self.bounded(self.api.get_opt(&self.name)).await;
        let found = found.map_err(|failure| LeaseError::Unavailable { why: failure.to_string() })?;
        self.remember(found.as_ref());
        encoding::decode(found.as_ref())
    }

    async fn create(&self) -> Result<Version, SwapError> {
        let object = encoding::blank(&self.name, &self.labels, self.owner.as_ref());
        let created = self.bounded(self.api.create(&PostParams::default(), &object)).await;
        // A 404 is the namespace's: nothing there to conflict with.
        self.written(&created.map_err(|failure| failure.of_write(Missing::Refused))?)
    }

    async fn swap(&self, expected: &Version, lease: &Lease) -> Result<Version, SwapError> {
        let mut object = self.object_at(expected).await?;
        encoding::write_into(&mut object, lease)?;
        let swapped = self.bounded(self.api.replace(&self.name, &PostParams::default(), &object)).await;
        // A 404 is the Lease's: it was deleted, so what was expected is there no more.
        self.written(&swapped.map_err(|failure| failure.of_write(Missing::Conflict))?)
    }

    fn watch(&self) -> BoxStream<'static, Result<Stored, LeaseError>> {
        unfold(Watch::new(self.clone()), |mut watch| async move { Some((watch.next().await, watch)) }).boxed()
    }
}

/// A watch that heals itself.
struct Watch {
    store: KubernetesLease,
    events: Option<BoxStream<'static, watcher::Result<Option<KubeLease>>>>,
    /// The version last yielded; `Some(None)`: that there is no Lease.
    last: Option<Option<String>>,
    retry_after_error: bool,
    /// Of the Lease that was last seen, if it has a content.
    duration: Option<Duration>,
    /// How long it may show nothing before a read.
    patience: Duration,
}

impl Watch {
    fn new(store: KubernetesLease) -> Self {
        Self { store, events: None, last: None, retry_after_error: false, duration: None, patience: SHORTEST_QUIET }
    }

    async fn next(&mut self) -> Result<Stored, LeaseError> {
        if std::mem::take(&mut self.retry_after_error) {
            tokio::time::sleep(WATCH_RETRY).await;
        }
        loop {
            let (api, name) = (&self.store.api, &self.store.name);
            let events = self.events.get_or_insert_with(|| watcher::watch_object(api.clone(), name).boxed());
            let seen = match tokio::time::timeout(self.patience, events.next()).await {
                Ok(Some(Ok(seen))) => seen,
                Ok(Some(Err(error))) => return Err(self.failed(error.to_string())),
                Ok(None) => return Err(self.failed("the watch has ended".to_owned())),
                Err(_) => match self.store.bounded(api.get_opt(name)).await {
                    Ok(found) => {
                        if self.is_news(found.as_ref()) {
                            self.events = None;
                        }
                        found
                    }
                    Err(failure) => return Err(self.failed(failure.to_string())),
                },
            };
            if self.is_news(seen.as_ref()) {
                self.store.remember(seen.as_ref());
                self.last = Some(seen.as_ref().and_then(|lease| lease.metadata.resource_version.clone()));
                let stored = encoding::decode(seen.as_ref());
                self.duration = stored.as_ref().ok().and_then(|stored| stored.lease().map(Lease::duration));
                self.patience = self.duration.unwrap_or_default().mul_f32(0.75).clamp(SHORTEST_QUIET, LONGEST_QUIET);
                return stored;
            }
            if self.duration.is_none() {
                self.patience = LONGEST_QUIET.min(self.patience * 2);
            }
        }
    }

    fn is_news(&self, seen: Option<&KubeLease>) -> bool {
        self.last != Some(seen.and_then(|lease| lease.metadata.resource_version.clone()))
    }

    fn failed(&mut self, why: String) -> LeaseError {
        self.events = None;
        self.retry_after_error = true;
        LeaseError::Unavailable { why }
    }
}

/// How a request failed.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("no answer within {} ms", .0.as_millis())]
    Timeout(Duration),
    #[error(transparent)]
    Kube(kube::Error),
}

/// What a 404 says of a write.
#[derive(Clone, Copy)]
enum Missing {
    Conflict,
    Refused,
}

impl Failure {
    /// What is certain after a write has failed so. The API server answers with a status below 500 only before it has
    /// written; after anything else, and after silence, the write may have happened or may yet.
    fn of_write(self, missing: Missing) -> SwapError {
        let why = self.to_string();
        let code = match self {
            Self::Timeout(_) => return SwapError::Unknown { why },
            Self::Kube(kube::Error::Api(status)) => status.code,
            Self::Kube(kube::Error::BuildRequest(_)) => return SwapError::Refused { why },
            Self::Kube(_) => return SwapError::Unknown { why },
        };
        match (code, missing) {
            (409, _) | (404, Missing::Conflict) => SwapError::Conflict,
            // 408: a proxy or the server gave up waiting, at whatever point.
            (408, _) => SwapError::Unknown { why },
            (400..500, _) => SwapError::Refused { why },
            _ => SwapError::Unknown { why },
        }
    }
}
