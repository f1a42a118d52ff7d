//! A BrokerCluster as it was read at one moment. Fields that are absent or something else are nothing.

use std::collections::BTreeSet;

use kube::api::DynamicObject;
use serde_json::Value;
use understudy_crds::FENCED_ANNOTATION;

/// What an absent `spec.minInSync` means with enough replicas.
const DEFAULT_MIN_IN_SYNC: u64 = 2;

#[derive(Clone, Debug)]
pub(crate) struct Seen {
    object: DynamicObject,
}

impl Seen {
    pub(crate) fn of(object: DynamicObject) -> Self {
        Self { object }
    }

    pub(crate) fn name(&self) -> &str {
        self.object.metadata.name.as_deref().unwrap_or_default()
    }

    pub(crate) fn resource_version(&self) -> Option<&str> {
        self.object.metadata.resource_version.as_deref()
    }

    pub(crate) fn generation(&self) -> Option<i64> {
        self.object.metadata.generation
    }

    /// Without surrounding blanks; one that is empty is none.
    pub(crate) fn annotation(&self, annotation: &str) -> Option<&str> {
        let text = self.object.metadata.annotations.as_ref()?.get(annotation)?.trim();
        (!text.is_empty()).then_some(text)
    }

    pub(crate) fn spec(&self, field: &str) -> &Value {
        &self.object.data["spec"][field]
    }

    pub(crate) fn whole_status(&self) -> Value {
        self.object.data.get("status").cloned().unwrap_or_default()
    }

    pub(crate) fn status(&self, field: &str) -> &Value {
        &self.object.data["status"][field]
    }

    pub(crate) fn primary(&self) -> Option<&str> {
        self.status("primary").as_str()
    }

    pub(crate) fn epoch(&self) -> Option<u64> {
        self.status("epoch").as_u64()
    }

    pub(crate) fn replica_count(&self) -> u64 {
        self.spec("replicas").as_u64().unwrap_or(3)
    }

    pub(crate) fn min_in_sync(&self) -> u64 {
        self.spec("minInSync").as_u64().unwrap_or_else(|| self.replica_count().min(DEFAULT_MIN_IN_SYNC))
    }

    pub(crate) fn in_sync(&self) -> BTreeSet<&str> {
        self.status("inSync").as_array().into_iter().flatten().filter_map(Value::as_str).collect()
    }

    pub(crate) fn fenced(&self) -> BTreeSet<String> {
        let names = self.annotation(FENCED_ANNOTATION).unwrap_or_default().split(',').map(str::trim);
        names.filter(|name| !name.is_empty()).map(str::to_owned).collect()
    }

    pub(crate) fn condition(&self, kind: &str) -> Option<&Value> {
        let mut conditions = self.status("conditions").as_array().into_iter().flatten();
        conditions.find(|condition| condition["type"] == kind)
    }

    /// `Available is False, Hibernated: there are no pods`, or that nobody says so.
    pub(crate) fn condition_text(&self, kind: &str) -> String {
        match self.condition(kind) {
            Some(condition) => {
                let text = |field: &str| condition[field].as_str().unwrap_or_default();
                format!("{kind} is {}, {}: {}", text("status"), text("reason"), text("message"))
            }
            None => format!("there is no condition {kind}"),
        }
    }

    pub(crate) fn is(&self, kind: &str, status: &str) -> bool {
        self.condition(kind).is_some_and(|condition| condition["status"] == status)
    }

    pub(crate) fn serves(&self, pod: &str) -> bool {
        self.primary() == Some(pod) && self.is("Available", "True")
    }

    pub(crate) fn replicas(&self) -> impl Iterator<Item = &Value> {
        self.status("replicaStatuses").as_array().into_iter().flatten()
    }

    pub(crate) fn replica(&self, pod: &str) -> Option<&Value> {
        self.replicas().find(|replica| replica["name"] == pod)
    }

    pub(crate) fn pod_names(&self) -> BTreeSet<String> {
        (0..self.replica_count()).map(|ordinal| format!("{}-{ordinal}", self.name())).collect()
    }
}
