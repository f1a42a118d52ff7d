//! Whether the brokers go by the settings that the spec says. They read them from a volume, which the kubelet brings up to date
//! within a minute or so by itself, and at once when the pod's own object changes: so that is changed, once for each pod.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;
use understudy_crds::ValidatedCluster;
use understudy_proto as wire;
use understudy_record::ReplicaName;

use super::task::{Done, Task};
use crate::names::SETTINGS_ANNOTATION;

/// A broker looks at its file every two seconds; what it has not taken up by then is asked for again.
const AGAIN_AFTER: Duration = Duration::from_secs(30);

/// The broker's own, where the spec does not say.
const DEFAULT_CONSUMER_TIMEOUT: Duration = Duration::from_secs(30 * 60);

/// What was asked for last, and when.
#[derive(Debug, Default)]
pub(super) struct Nudges(BTreeMap<ReplicaName, (String, Duration)>);

/// As a broker should report them.
pub(crate) fn wanted(cluster: &ValidatedCluster) -> wire::Settings {
    let timeout = cluster.clients.consumer_timeout.unwrap_or(DEFAULT_CONSUMER_TIMEOUT);
    wire::Settings {
        replicas: cluster.replicas.into(),
        min_in_sync: cluster.min_in_sync.into(),
        consumer_timeout_ms: u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX),
    }
}

/// What of it differs, for people; nothing from a broker that takes part in nothing, or is too old to say.
pub(crate) fn difference(reported: Option<&wire::Settings>, wanted: &wire::Settings) -> Option<String> {
    let reported = reported?;
    let pairs = [
        ("replicas", u64::from(reported.replicas), u64::from(wanted.replicas)),
        ("minInSync", reported.min_in_sync.into(), wanted.min_in_sync.into()),
        ("consumerTimeout (ms)", reported.consumer_timeout_ms, wanted.consumer_timeout_ms),
    ];
    let differ = pairs.iter().filter(|(_, is, should)| is != should);
    let texts: Vec<String> = differ.map(|(name, is, should)| format!("{name} {is} instead of {should}")).collect();
    (!texts.is_empty()).then(|| texts.join(", "))
}

impl Task {
    /// While reconciliation is paused the settings are not written either.
    pub(super) fn hurry_settings(&mut self) {
        if self.cluster().orders.paused || self.assignment.problem.is_some() {
            return;
        }
        let (now, wanted) = (self.now(), wanted(self.cluster()));
        let text = format!("{}/{}/{}", wanted.replicas, wanted.min_in_sync, wanted.consumer_timeout_ms);
        let behind = self.sight.replicas().iter().filter_map(|(name, seen)| {
            difference(seen.heard(now)?.settings.as_ref(), &wanted)?;
            Some((name.clone(), seen.pod.as_ref()?.uid.clone()))
        });
        for (name, uid) in behind.collect::<Vec<_>>() {
            let asked = self.nudges.0.get(&name);
            if asked.is_some_and(|(asked, at)| *asked == text && now < *at + AGAIN_AFTER) {
                continue;
            }
            // Another value each time, or nothing would change.
            let value = format!("{text}@{}", now.as_millis());
            self.nudges.0.insert(name.clone(), (text.clone(), now));
            let api: Api<Pod> = Api::namespaced(self.client.clone(), &self.cluster().namespace);
            let patch = json!({ "metadata": { "uid": uid, "annotations": { SETTINGS_ANNOTATION: value } } });
            self.jobs.spawn(async move {
                let result = api.patch(name.as_str(), &PatchParams::default(), &Patch::Merge(patch)).await;
                Done::Nudged { pod: name, result: result.map(drop).map_err(|error| error.to_string()) }
            });
        }
    }

    pub(super) fn handle_nudged(&mut self, pod: &ReplicaName, result: Result<(), String>) {
        if let Err(error) = result {
            tracing::debug!(cluster = %self.cluster().name, %pod, error, "the kubelet takes its time with the settings");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_is_said_and_what_is_not_known_is_not() {
        let wanted = wire::Settings { replicas: 3, min_in_sync: 2, consumer_timeout_ms: 1000 };
        assert_eq!(difference(None, &wanted), None);
        assert_eq!(difference(Some(&wanted), &wanted), None);
        let reported = wire::Settings { replicas: 5, min_in_sync: 1, ..wanted };
        let text = difference(Some(&reported), &wanted);
        assert_eq!(text.as_deref(), Some("replicas 5 instead of 3, minInSync 1 instead of 2"));
    }
}
