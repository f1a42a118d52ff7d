//! Events on the BrokerCluster, for people: each change of primary, each election that cannot be held. Lost if the API server
//! does not take them: nothing depends on them.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Client, Resource};
use tokio::time::timeout;
use understudy_crds::{BrokerCluster, ValidatedCluster};

use crate::names::FIELD_MANAGER;

const PUBLISH_TIMEOUT: Duration = Duration::from_secs(5);
/// The API server refuses longer ones.
const MAX_NOTE_CHARS: usize = 1_000;

pub(super) struct Announcer {
    client: Client,
    reporter: Reporter,
    cluster: ObjectReference,
    /// A recorder counts events of the same reason together, whatever they say, and keeps the first one's words. So each
    /// text gets its own, and only repetitions of the last text are counted.
    last: Mutex<Option<(String, Recorder)>>,
}

impl Announcer {
    pub(super) fn new(client: Client, cluster: &ValidatedCluster) -> Self {
        let instance = std::env::var("POD_NAME").ok();
        let reporter = Reporter { controller: FIELD_MANAGER.into(), instance };
        let cluster = ObjectReference {
            api_version: Some(BrokerCluster::api_version(&()).into_owned()),
            kind: Some(BrokerCluster::kind(&()).into_owned()),
            name: Some(cluster.name.to_string()),
            namespace: Some(cluster.namespace.clone()),
            uid: Some(cluster.uid.clone()),
            ..ObjectReference::default()
        };
        Self { client, reporter, cluster, last: Mutex::new(None) }
    }

    pub(super) fn normal(&self, reason: &str, action: &str, note: String) {
        self.publish(EventType::Normal, reason, action, note);
    }

    pub(super) fn warning(&self, reason: &str, action: &str, note: String) {
        self.publish(EventType::Warning, reason, action, note);
    }

    fn publish(&self, type_: EventType, reason: &str, action: &str, note: String) {
        tracing::info!(cluster = self.cluster.name, namespace = self.cluster.namespace, reason, note, "event");
        let note: String = note.chars().take(MAX_NOTE_CHARS).collect();
        let (recorder, cluster) = (self.recorder(&note), self.cluster.clone());
        let event = Event { type_, reason: reason.into(), note: Some(note), action: action.into(), secondary: None };
        tokio::spawn(async move {
            match timeout(PUBLISH_TIMEOUT, recorder.publish(&event, &cluster)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::debug!(%error, "event not published"),
                Err(_) => tracing::debug!("event not published: no answer"),
            }
        });
    }

    fn recorder(&self, note: &str) -> Recorder {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        match &*last {
            Some((said, recorder)) if said == note => recorder.clone(),
            _ => {
                let recorder = Recorder::new(self.client.clone(), self.reporter.clone());
                *last = Some((note.to_owned(), recorder.clone()));
                recorder
            }
        }
    }
}
