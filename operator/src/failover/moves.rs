//! What a task does about a role that is to be moved on purpose (see [`super::switchover`]): asks the primary, answers the
//! person in the status and by an event, and takes the annotation off.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use kube::api::{Api, Patch, PatchParams};
use serde_json::json;
use tokio::time::timeout;
use understudy_crds::{
    BrokerCluster, FORCE_PRIMARY_ANNOTATION, LastSwitchover, SWITCHOVER_ANNOTATION, SwitchoverOutcome, ValidatedCluster,
};
use understudy_proto as wire;
use understudy_record::ReplicaName;

use super::peer::Command;
use super::roll::RollStep;
use super::switchover::{Answer, Leaving, Picture, Request, RequestKind, Step, Why};
use super::task::{Done, HAND_OVER_RETRY_AFTER, JOB_RETRY_AFTER, SWAP_TIMEOUT, Task, timestamp};
use crate::status;

/// A person waits: the next attempt comes sooner than the operator's own.
const REQUEST_RETRY_AFTER: Duration = Duration::from_secs(1);

/// An annotation that is to go, if it still says what was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Removal {
    annotation: &'static str,
    value: String,
}

impl Task {
    /// What the annotations ask for.
    pub(super) fn note_request(&mut self) {
        let request = request(self.cluster());
        if self.inherited != request {
            self.inherited = None;
        }
        self.switchover.note_request(self.now(), request);
    }

    pub(super) fn picture(&self) -> Picture {
        let (cluster, lease, now) = (self.cluster(), self.held(), self.now());
        let pods: BTreeSet<ReplicaName> = cluster.pod_names().map(|name| ReplicaName::new(&name)).collect();
        let works = |name: &ReplicaName| {
            lease.zip(self.sight.replica(name)).is_some_and(|(lease, seen)| seen.works_in_set(lease, now))
        };
        Picture {
            holder: lease.and_then(|lease| lease.holder()).map(|holder| holder.name.clone()),
            serves: lease.is_some_and(|lease| status::serving(lease, &self.sight, now).is_some()),
            in_sync: pods.iter().filter(|name| works(name)).cloned().collect(),
            preferred: cluster.preferred_primary.as_deref().map(ReplicaName::new),
            leaving: self.leaving(),
            is_quiet: self.roll == RollStep::Done
                && self.assignment.problem.is_none()
                && !cluster.orders.maintenance
                && !cluster.orders.paused,
            is_handing_over: self.handing_over.is_some_and(|until| now < until),
            pods,
        }
    }

    /// The replicas that should not have the role.
    pub(super) fn leaving(&self) -> BTreeMap<ReplicaName, Leaving> {
        let cluster = self.cluster();
        let own: BTreeSet<ReplicaName> = cluster.pod_names().map(|name| ReplicaName::new(&name)).collect();
        let cordoned = self.cordoned.borrow();
        let of_pods = self.pods.iter().filter_map(|(name, pod)| {
            let cordoned = pod.node.as_ref().is_some_and(|node| cordoned.contains(node));
            let away = !own.contains(name);
            away.then_some(Leaving::ScaledAway)
                .or(cordoned.then_some(Leaving::NodeCordoned))
                .map(|why| (name.clone(), why))
        });
        let fenced = cluster.orders.fenced.iter().map(|name| (ReplicaName::new(name), Leaving::Fenced));
        of_pods.chain(fenced).collect()
    }

    /// Carries out what a request, or the preferred primary, calls for.
    pub(super) fn switch(&mut self) {
        let (now, picture) = (self.now(), self.picture());
        match self.switchover.step(now, &picture) {
            Step::Nothing => {}
            Step::HandOver { from, to, why } => {
                let epoch = self.known_epoch();
                let request = wire::HandOverRequest { epoch, to: to.to_string() };
                if self.peers.send(&from, Command::HandOver(request)) {
                    // Longer than the call may take; its answer comes earlier.
                    self.handing_over = Some(now + HAND_OVER_RETRY_AFTER * 4);
                    self.switchover.note_asked(now);
                    self.moving_for = Some(why);
                    self.own_reason = Some((self.held_epoch_after(), why.reason(), why.to_string()));
                    self.announcer.normal("HandOver", "Switchover", format!("{from} hands over to {to}: {why}"));
                }
            }
            Step::Answer(answer) => self.answer(answer),
        }
        self.remove_annotation();
    }

    /// A hand-over was answered. True: it was one of these, so that its failure is for a person to see once, at the end.
    pub(super) fn note_handed_over(&mut self, result: &Result<wire::HandOverReply, String>) -> bool {
        let Some(why) = self.moving_for.take() else { return false };
        let outcome = if result.is_ok() { "done" } else { "failed" };
        crate::metrics::SWITCHOVERS.with_label_values(&[why.label(), outcome]).inc();
        let Err(error) = result else { return false };
        self.switchover.note_failed(error.clone());
        if why == Why::AskedFor {
            self.handing_over = Some(self.now() + REQUEST_RETRY_AFTER);
            return true;
        }
        false
    }

    fn answer(&mut self, answer: Answer) {
        let Answer { request, done, message, gap } = answer;
        let to = request.to.to_string();
        let annotation = match request.kind {
            RequestKind::Switchover => SWITCHOVER_ANNOTATION,
            RequestKind::Force => FORCE_PRIMARY_ANNOTATION,
        };
        let outcome = if done { SwitchoverOutcome::Done } else { SwitchoverOutcome::Refused };
        self.removal = Some(Removal { annotation, value: to.clone() });
        // An earlier operator has said so, and ended before the annotation was off.
        let is_told = |last: &LastSwitchover| last.to == to && last.outcome == outcome;
        if self.inherited.as_ref() == Some(&request) && self.last_switchover.as_ref().is_some_and(is_told) {
            return;
        }
        match (done, request.kind) {
            (true, _) => self.announcer.normal("SwitchoverDone", "Switchover", message.clone()),
            (false, RequestKind::Switchover) => {
                self.announcer.warning("SwitchoverRefused", "Switchover", message.clone());
            }
            (false, RequestKind::Force) => self.announcer.warning("ForceRefused", "Elect", message.clone()),
        }
        self.last_switchover = Some(LastSwitchover {
            to,
            outcome,
            message,
            gap_ms: gap.and_then(|gap| i64::try_from(gap.as_millis()).ok()),
            at: timestamp(),
        });
    }

    /// Not before the status says what became of it: whoever waits for the annotation to go reads it then.
    fn remove_annotation(&mut self) {
        let Some(removal) = self.removal.clone() else { return };
        let is_told =
            self.written.as_ref().and_then(|status| status.last_switchover.as_ref()) == self.last_switchover.as_ref();
        if self.removing || !is_told || self.now() < self.remove_after {
            return;
        }
        self.removing = true;
        let cluster = self.cluster();
        let api: Api<BrokerCluster> = Api::namespaced(self.client.clone(), &cluster.namespace);
        let name = cluster.name.to_string();
        self.jobs.spawn(async move {
            let result = match timeout(SWAP_TIMEOUT, remove(&api, &name, &removal)).await {
                Ok(removed) => removed,
                Err(_) => Err("the API server did not answer in time".into()),
            };
            Done::AnnotationRemoved(result)
        });
    }

    pub(super) fn handle_annotation_removed(&mut self, result: Result<(), String>) {
        self.removing = false;
        match result {
            Ok(()) => self.removal = None,
            Err(error) => {
                tracing::warn!(cluster = %self.cluster().name, error, "annotation not removed");
                self.remove_after = self.now() + JOB_RETRY_AFTER;
            }
        }
    }

    pub(super) fn announce_forced(&self, why: &str) {
        self.announcer.warning("PrimaryForced", "Elect", why.to_owned());
    }
}

/// What the annotations of a cluster ask for.
pub(super) fn request(cluster: &ValidatedCluster) -> Option<Request> {
    let request = |kind, to: &Option<String>| to.as_ref().map(|to| Request { kind, to: ReplicaName::new(to) });
    request(RequestKind::Force, &cluster.forced_primary)
        .or_else(|| request(RequestKind::Switchover, &cluster.switchover_to))
}

/// Gone already, or changed to something else meanwhile: as good.
async fn remove(api: &Api<BrokerCluster>, name: &str, removal: &Removal) -> Result<(), String> {
    let path = format!("/metadata/annotations/{}", removal.annotation.replace('~', "~0").replace('/', "~1"));
    let object = api.get_metadata_opt(name).await.map_err(|error| error.to_string())?;
    let Some(object) = object else { return Ok(()) };
    let annotations = object.metadata.annotations.unwrap_or_default();
    let Some(text) = annotations.get(removal.annotation).filter(|text| text.trim() == removal.value) else {
        return Ok(());
    };
    let operations = json!([{ "op": "test", "path": path, "value": text }, { "op": "remove", "path": path }]);
    let patch = serde_json::from_value(operations).map_err(|error| error.to_string())?;
    match api.patch(name, &PatchParams::default(), &Patch::<()>::Json(patch)).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}
