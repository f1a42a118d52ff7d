//! Step 5: what the object's status says. [`assess`] is pure; [`write`] is the only place that writes it.
//!
//! Nothing acts on the status. It is written when something that matters has changed, at once; progress alone (positions,
//! lags, catch-up) at most every [`PROGRESS_EVERY`]; and never when nothing has.

mod conditions;
#[cfg(test)]
mod tests;

use std::time::Duration;

use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;
use understudy_crds::{
    BrokerCluster, BrokerClusterStatus, CatchUpProgress, Condition, ConditionStatus, DefinitionsStatus, FailoverRecord,
    LastSwitchover, ReplicaRole, ReplicaStatus, Timestamp, ValidatedCluster,
};
use understudy_election::{BlockedReason, Contact, Decision, Lease, Register};
use understudy_proto as wire;
use understudy_record::ReplicaName;

use crate::apply::Workload;
use crate::failover::roll::RollStep;
use crate::failover::sight::{Seen, Sight};
use crate::names::{FIELD_MANAGER, selector_text};

/// Positions move with every message; once every two seconds is enough for people.
pub(crate) const PROGRESS_EVERY: Duration = Duration::from_secs(2);
/// Changes that matter may come in bursts; between two writes there is this much time, unless the primary changes.
pub(crate) const CHANGES_EVERY: Duration = Duration::from_secs(1);
/// The API server takes a message of any length; people do not.
const MAX_MESSAGE_CHARS: usize = 1_000;

/// The condition that says whether alarms block publishers.
pub(crate) const RESOURCES_AVAILABLE: &str = "ResourcesAvailable";

/// Why the operator cannot bring the cluster to its spec.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// `InvalidSpec` or `ApplyFailed`.
    pub reason: &'static str,
    pub message: String,
}

/// Everything that the status is made of.
pub(crate) struct Snapshot<'a> {
    pub(crate) cluster: &'a ValidatedCluster,
    pub(crate) workload: &'a Workload,
    /// Pods that there are to be, more than the spec says while one that is to go is needed.
    pub(crate) pods_held: u8,
    pub(crate) problem: Option<&'a Problem>,
    pub(crate) sight: &'a Sight,
    pub(crate) register: &'a Register,
    pub(crate) decision: Option<&'a Decision>,
    pub(crate) roll: &'a RollStep,
    /// The newest first.
    pub(crate) failovers: &'a [FailoverRecord],
    pub(crate) last_switchover: Option<&'a LastSwitchover>,
    pub(crate) definitions: Option<&'a DefinitionsStatus>,
    /// The last that is known, whether there is a Lease or not.
    pub(crate) epoch: u64,
    /// On the task's clock, for what is heard.
    pub(crate) now: Duration,
}

/// A condition without its times.
struct Verdict {
    kind: &'static str,
    status: ConditionStatus,
    reason: String,
    message: String,
}

impl Verdict {
    fn new(kind: &'static str, status: ConditionStatus, reason: &str, message: String) -> Self {
        Self { kind, status, reason: reason.to_owned(), message: message.chars().take(MAX_MESSAGE_CHARS).collect() }
    }
}

/// The status now. Transition times are kept from `previous` where the condition has not changed.
pub(crate) fn assess(
    snapshot: &Snapshot<'_>,
    previous: Option<&BrokerClusterStatus>,
    at: &Timestamp,
) -> BrokerClusterStatus {
    let cluster = snapshot.cluster;
    let lease = snapshot.lease();
    let verdicts = conditions::all(snapshot);
    let in_sync: Vec<String> =
        lease.map(|lease| lease.in_sync().iter().map(|m| m.name.to_string()).collect()).unwrap_or_default();
    BrokerClusterStatus {
        observed_generation: cluster.generation,
        replicas: snapshot.workload.pods,
        selector: Some(selector_text(&cluster.name)),
        primary: lease.and_then(|lease| lease.holder()).map(|holder| holder.name.to_string()),
        // A deleted Lease is forgotten by the API server, not by us: a person who forces a recovery needs the number.
        epoch: lease.map(|lease| to_i64(lease.epoch().0)).or_else(|| previous.and_then(|status| status.epoch)),
        cluster_version: lease
            .map(|lease| i64::from(lease.cluster_version().0))
            .or_else(|| previous.and_then(|status| status.cluster_version)),
        in_sync_replicas: i32::try_from(in_sync.len()).unwrap_or(i32::MAX),
        in_sync,
        replica_statuses: cluster.pod_names().map(|name| replica_status(snapshot, &name)).collect(),
        conditions: verdicts.into_iter().map(|verdict| condition(verdict, cluster.generation, previous, at)).collect(),
        last_failover: snapshot.failovers.first().cloned().or_else(|| previous.and_then(|p| p.last_failover.clone())),
        failovers: snapshot.failovers.to_vec(),
        definitions: snapshot.definitions.cloned(),
        last_switchover: snapshot.last_switchover.cloned().or_else(|| previous.and_then(|p| p.last_switchover.clone())),
    }
}

/// The status of a cluster that was never made, because its spec is invalid or an object could not be applied.
pub(crate) fn assess_problem(cluster: &BrokerCluster, problem: &Problem, at: &Timestamp) -> BrokerClusterStatus {
    let previous = cluster.status.as_ref();
    let ready = Verdict::new("Ready", ConditionStatus::False, problem.reason, problem.message.clone());
    let generation = cluster.metadata.generation;
    let stalled = Verdict::new("Stalled", ConditionStatus::True, problem.reason, problem.message.clone());
    let mut status = previous.cloned().unwrap_or_default();
    for verdict in [ready, stalled] {
        status.conditions.retain(|condition| condition.kind != verdict.kind && condition.kind != "Reconciling");
        status.conditions.push(condition(verdict, generation, previous, at));
    }
    status.observed_generation = generation;
    status
}

/// The same without what moves by itself: two statuses that differ here differ in something that matters.
pub(crate) fn without_progress(status: &BrokerClusterStatus) -> BrokerClusterStatus {
    let mut plain = status.clone();
    for replica in &mut plain.replica_statuses {
        (replica.position, replica.lag, replica.catch_up) = (None, None, None);
    }
    for condition in &mut plain.conditions {
        condition.message.clear();
    }
    plain
}

/// What an event is worth: alarms where there were none, or none any more.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Turned<'a> {
    On { reason: &'a str, message: &'a str },
    Off { message: &'a str },
}

pub(crate) fn alarms_turned<'a>(
    before: Option<&BrokerClusterStatus>,
    after: &'a BrokerClusterStatus,
) -> Option<Turned<'a>> {
    fn of(status: &BrokerClusterStatus) -> Option<&Condition> {
        status.conditions.iter().find(|condition| condition.kind == RESOURCES_AVAILABLE)
    }
    let (was, is) = (before.and_then(of).map(|condition| condition.status), of(after)?);
    match (was, is.status) {
        (Some(ConditionStatus::False), ConditionStatus::True) => Some(Turned::Off { message: &is.message }),
        (Some(ConditionStatus::False), _) => None,
        (_, ConditionStatus::False) => Some(Turned::On { reason: &is.reason, message: &is.message }),
        _ => None,
    }
}

/// # Errors
/// If the API server refuses or does not answer.
pub(crate) async fn write(
    client: &Client,
    namespace: &str,
    name: &str,
    status: &BrokerClusterStatus,
) -> Result<(), kube::Error> {
    let api: Api<BrokerCluster> = Api::namespaced(client.clone(), namespace);
    let resource = kube::api::ApiResource::erase::<BrokerCluster>(&());
    let patch = json!({"apiVersion": resource.api_version, "kind": resource.kind, "status": status});
    let manager = format!("{FIELD_MANAGER}-status");
    api.patch_status(name, &PatchParams::apply(&manager).force(), &Patch::Apply(&patch)).await?;
    crate::metrics::STATUS_WRITTEN.inc();
    Ok(())
}

impl Snapshot<'_> {
    fn lease(&self) -> Option<&Lease> {
        match self.register {
            Register::Held(observed) => Some(&observed.lease),
            Register::Absent { .. } | Register::Blank { .. } | Register::Unread => None,
        }
    }

    /// The primary by the Lease, if it is heard and says that it is.
    pub(crate) fn serving(&self) -> Option<&wire::Status> {
        serving(self.lease()?, self.sight, self.now)
    }

    fn in_set(&self, name: &str, seen: Option<&Seen>) -> bool {
        let entry = self.lease().and_then(|lease| lease.in_sync().iter().find(|m| m.name.as_str() == name));
        let identity = seen.and_then(Seen::identity);
        entry.is_some_and(|member| identity.is_none_or(|identity| member.is(identity)))
    }

    fn works_in_set(&self, name: &str) -> bool {
        self.lease().zip(self.seen(name)).is_some_and(|(lease, seen)| seen.works_in_set(lease, self.now))
    }

    fn seen(&self, name: &str) -> Option<&Seen> {
        self.sight.replica(&ReplicaName::new(name))
    }
}

/// What the Lease's holder says, if it is heard and serves.
pub(crate) fn serving<'a>(lease: &Lease, sight: &'a Sight, now: Duration) -> Option<&'a wire::Status> {
    let holder = lease.holder()?;
    let seen = sight.replica(&holder.name).filter(|seen| seen.identity() == Some(holder))?;
    seen.heard(now).filter(|status| status.role() == wire::Role::Primary && status.epoch == lease.epoch().0)
}

/// What is wrong, and where a person may force it, the value that does: it counts for this epoch only.
pub(crate) fn blocked_text(reason: &BlockedReason, epoch: u64) -> String {
    match reason {
        BlockedReason::NoMemberLeft { .. } | BlockedReason::RecoveryUnsafe { .. } => {
            format!("{reason} to {epoch}, the epoch it is about")
        }
        _ => reason.to_string(),
    }
}

fn replica_status(snapshot: &Snapshot<'_>, name: &str) -> ReplicaStatus {
    let seen = snapshot.seen(name);
    let status = seen.and_then(|seen| seen.heard(snapshot.now));
    let role = role(seen, snapshot.now);
    let lag = match (snapshot.serving().and_then(|primary| primary.last.as_ref()), status) {
        (Some(primary), Some(status)) if role != ReplicaRole::Primary => {
            Some(to_i64(primary.index.saturating_sub(status.durable)))
        }
        _ => None,
    };
    let own_words = status.map(|status| status.message.as_str()).filter(|message| !message.is_empty());
    let message = seen.and_then(|seen| seen.pod.as_ref()).and_then(|pod| pod.trouble.as_deref()).or(own_words);
    let message = message.or_else(|| seen.and_then(|seen| seen.refused.as_deref())).map(str::to_owned);
    let alarms = status.and_then(|status| status.alarms).map(|alarms| alarms.describe("it").join("; "));
    ReplicaStatus {
        name: name.to_owned(),
        role,
        in_sync: snapshot.in_set(name, seen),
        position: status.and_then(|s| s.last.as_ref()).map(|last| format!("{}:{}", last.epoch, last.index)),
        lag,
        catch_up: status.filter(|_| role == ReplicaRole::CatchingUp).and_then(|s| s.catch_up.as_ref()).map(
            |progress| CatchUpProgress {
                queues_done: to_i64(progress.queues_done),
                queues: to_i64(progress.queues),
                messages_done: to_i64(progress.messages_done),
                messages: to_i64(progress.messages),
                bytes_done: to_i64(progress.bytes_done),
                bytes: to_i64(progress.bytes),
                bytes_per_second: to_i64(progress.bytes_per_second),
                remaining_seconds: progress.remaining_seconds.map(to_i64),
            },
        ),
        message: message.or(alarms).map(|text| text.chars().take(MAX_MESSAGE_CHARS).collect()),
    }
}

fn role(seen: Option<&Seen>, now: Duration) -> ReplicaRole {
    let Some(seen) = seen else { return ReplicaRole::Absent };
    match (seen.heard(now).map(wire::Status::role), seen.contact(now)) {
        (Some(wire::Role::Primary), _) => ReplicaRole::Primary,
        (Some(wire::Role::Backup), _) => ReplicaRole::Backup,
        (Some(wire::Role::CatchingUp), _) => ReplicaRole::CatchingUp,
        (Some(wire::Role::Recovering), _) => ReplicaRole::Recovering,
        (Some(wire::Role::Ended), _) => ReplicaRole::Ended,
        (Some(wire::Role::Idle | wire::Role::Unspecified), _) => ReplicaRole::Idle,
        (None, _) if seen.pod.is_none() => ReplicaRole::Absent,
        (None, Contact::Gone) => ReplicaRole::Ended,
        (None, _) => ReplicaRole::Unreachable,
    }
}

fn condition(
    verdict: Verdict,
    generation: Option<i64>,
    previous: Option<&BrokerClusterStatus>,
    at: &Timestamp,
) -> Condition {
    let before = previous.and_then(|status| status.conditions.iter().find(|c| c.kind == verdict.kind));
    let since = before.filter(|before| before.status == verdict.status).map(|before| &before.last_transition_time);
    Condition {
        kind: verdict.kind.to_owned(),
        status: verdict.status,
        reason: verdict.reason,
        message: verdict.message,
        last_transition_time: since.unwrap_or(at).clone(),
        observed_generation: generation,
    }
}

/// Wire numbers are unsigned, the API's are not.
fn to_i64(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
