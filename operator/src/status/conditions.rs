//! The conditions, each from a snapshot. Pure.

use understudy_crds::ConditionStatus;
use understudy_election::{Decision, Register, WaitReason};

use crate::failover::settings::{difference as settings_difference, wanted as wanted_settings};

use super::{RESOURCES_AVAILABLE, Snapshot, Verdict, blocked_text, role};

/// Reasons for which somebody has to do something: waiting helps nobody.
const NEEDS_A_PERSON: [&str; 14] = [
    "ApplyFailed",
    "AwaitsPromotion",
    "AwaitsSwitchover",
    "BuildFailed",
    "InvalidSpec",
    "LeaseUnswappable",
    "LeaseWentBack",
    "NoCleanStore",
    "NoInSyncMemberLeft",
    "PodFailing",
    "PodsRefused",
    "RecoveryUnsafe",
    "ReferenceMissing",
    "RollHeld",
];

/// In the order in which people read them. `Reconciling` and `Stalled` are there while they are true, as kstatus has it.
pub(super) fn all(snapshot: &Snapshot<'_>) -> Vec<Verdict> {
    let available = available(snapshot);
    let durable = durable(snapshot, &available);
    let ready = ready(snapshot, &available);
    let progressing = progressing(&ready);
    let standing = standing(&ready);
    let control_plane = control_plane_reachable(snapshot);
    let resources = resources_available(snapshot);
    [available, ready, durable, progressing, control_plane, resources].into_iter().chain(standing).collect()
}

/// Whether the cluster is on its way to its spec by itself.
fn progressing(ready: &Verdict) -> Verdict {
    let status = match ready.status {
        ConditionStatus::False if !needs_a_person(ready) => ConditionStatus::True,
        ConditionStatus::Unknown => ConditionStatus::Unknown,
        _ => ConditionStatus::False,
    };
    Verdict::new("Progressing", status, &ready.reason, ready.message.clone())
}

fn standing(ready: &Verdict) -> Option<Verdict> {
    let kind = match ready.status {
        ConditionStatus::True => return None,
        _ if needs_a_person(ready) => "Stalled",
        _ => "Reconciling",
    };
    Some(Verdict::new(kind, ConditionStatus::True, &ready.reason, ready.message.clone()))
}

fn needs_a_person(ready: &Verdict) -> bool {
    NEEDS_A_PERSON.contains(&ready.reason.as_str())
}

/// Whether the brokers reach the API server, as far as the Lease shows it. Without it they go on as they are, and cannot
/// shrink the set.
fn control_plane_reachable(snapshot: &Snapshot<'_>) -> Verdict {
    use ConditionStatus::{False, True, Unknown};
    let verdict = |status, reason: &str, message| Verdict::new("ControlPlaneReachable", status, reason, message);
    let Register::Held(observed) = snapshot.register else {
        return verdict(Unknown, "NoLease", "there is no Lease that anybody renews".into());
    };
    let Some(primary) = snapshot.serving() else {
        return verdict(Unknown, "NoPrimary", "there is no primary that would renew its Lease".into());
    };
    let since = snapshot.now.saturating_sub(observed.unchanged_since);
    if since <= observed.lease.duration() {
        return verdict(True, "LeaseRenewed", "the primary renews its Lease".into());
    }
    let name = primary.identity.as_ref().map(|identity| identity.name.clone()).unwrap_or_default();
    let seconds = observed.lease.duration().as_secs();
    let message = format!(
        "{name} serves, and has not renewed its Lease for more than its {seconds} s: it goes on, and cannot take a replica that is \
         lost out of the set"
    );
    verdict(False, "LeaseNotRenewed", message)
}

fn available(snapshot: &Snapshot<'_>) -> Verdict {
    use ConditionStatus::{False, True, Unknown};
    let verdict = |status, reason: &str, message| Verdict::new("Available", status, reason, message);
    if snapshot.cluster.orders.hibernated {
        return verdict(False, "Hibernated", "hibernation is on: there are no pods, and all data is kept".into());
    }
    if let (Some(lease), Some(_)) = (snapshot.lease(), snapshot.serving()) {
        let name = lease.holder().map(|holder| holder.name.to_string()).unwrap_or_default();
        return verdict(True, "PrimaryServing", format!("{name} serves as primary of epoch {}", lease.epoch()));
    }
    match snapshot.decision {
        Some(Decision::Blocked { reason }) => verdict(False, reason.kind(), blocked_text(reason, snapshot.epoch)),
        Some(Decision::Wait { reason: WaitReason::PrimaryHealthy { primary }, .. }) => {
            verdict(False, "PrimaryStarting", format!("{} was elected and does not serve yet", primary.name))
        }
        Some(Decision::Wait { reason: reason @ WaitReason::LeaseUnread, .. }) => {
            verdict(Unknown, reason.kind(), reason.to_string())
        }
        Some(Decision::Wait { reason, .. }) => verdict(False, reason.kind(), reason.to_string()),
        Some(Decision::Elect { .. } | Decision::Create { .. }) => {
            verdict(False, "Electing", "a primary is being elected".into())
        }
        None => verdict(Unknown, "NotObserved", "the brokers have not been looked at yet".into()),
    }
}

fn durable(snapshot: &Snapshot<'_>, available: &Verdict) -> Verdict {
    use ConditionStatus::{False, True, Unknown};
    let verdict = |status, reason: &str, message| Verdict::new("Durable", status, reason, message);
    let (Some(lease), Some(primary)) = (snapshot.lease(), snapshot.serving()) else {
        let status = if available.status == Unknown { Unknown } else { False };
        return verdict(status, "NoPrimary", "without a primary nothing is confirmed".into());
    };
    // What the primary goes by: it may not have taken up yet what the spec says now.
    let needed = primary.settings.as_ref().map_or(snapshot.cluster.min_in_sync.into(), |own| own.min_in_sync);
    let (in_sync, needed) = (lease.in_sync().len(), usize::try_from(needed).unwrap_or(usize::MAX));
    if in_sync < needed {
        let message = format!("{in_sync} in sync, minInSync is {needed}: messages are taken and not confirmed");
        return verdict(False, "BelowMinInSync", message);
    }
    if !primary.confirms_held.is_empty() {
        return verdict(False, "ConfirmsHeld", primary.confirms_held.clone());
    }
    verdict(True, "InSync", format!("{in_sync} replicas hold every confirmed message, minInSync is {needed}"))
}

/// True only if everything is as the spec says: objects, pods, revision, set.
fn ready(snapshot: &Snapshot<'_>, available: &Verdict) -> Verdict {
    use ConditionStatus::{False, True, Unknown};
    let verdict = |status, reason: &str, message| Verdict::new("Ready", status, reason, message);
    let cluster = snapshot.cluster;
    if let Some(problem) = snapshot.problem {
        return verdict(False, problem.reason, problem.message.clone());
    }
    if cluster.orders.hibernated {
        return match snapshot.workload.pods {
            0 => verdict(True, "Hibernated", "no pods, as ordered".into()),
            pods => verdict(False, "Scaling", format!("{pods} pods are on their way out")),
        };
    }
    let wanted = i32::from(cluster.replicas);
    if let Some(refused) = snapshot.workload.pods_refused.as_ref().filter(|_| snapshot.workload.pods < wanted) {
        let message = format!("{} of {wanted} pods exist: {refused}", snapshot.workload.pods);
        return verdict(False, "PodsRefused", message);
    }
    let names: Vec<String> = cluster.pod_names().filter(|name| !cluster.orders.fenced.contains(name)).collect();
    let trouble = names.iter().find_map(|name| {
        let trouble = snapshot.seen(name)?.pod.as_ref()?.trouble.as_ref()?;
        Some(format!("{name}: {trouble}"))
    });
    if let Some(trouble) = trouble {
        return verdict(False, "PodFailing", trouble);
    }
    if available.status != True {
        let status = if available.status == Unknown { Unknown } else { False };
        return verdict(status, &available.reason, available.message.clone());
    }
    if snapshot.workload.differs {
        return verdict(False, "Paused", "the spec has changed, and reconciliation is paused".into());
    }
    if snapshot.pods_held > cluster.replicas {
        let message = format!("{} pods stay until the role is with one that the spec has", snapshot.pods_held);
        return verdict(False, "Scaling", message);
    }
    if snapshot.workload.pods != wanted {
        return verdict(False, "Scaling", format!("{} pods exist, {wanted} wanted", snapshot.workload.pods));
    }
    let outdated = names.iter().find_map(|name| {
        let status = snapshot.seen(name)?.heard(snapshot.now)?;
        (!status.needs_upgrade.is_empty()).then(|| format!("{name}: {}", status.needs_upgrade))
    });
    if let Some(outdated) = outdated {
        return verdict(False, "UpgradeNeeded", outdated);
    }
    if let Some((reason, text)) = snapshot.roll.text() {
        return verdict(False, reason, text);
    }
    if snapshot.workload.update_revision.is_none() {
        return verdict(False, "Rolling", "the StatefulSet's controller has not seen the newest template yet".into());
    }
    let outside: Vec<String> = names
        .iter()
        .filter(|name| !snapshot.works_in_set(name))
        .map(|name| format!("{name} ({})", role(snapshot.seen(name), snapshot.now)))
        .collect();
    if !outside.is_empty() {
        return verdict(False, "NotInSync", format!("not in sync: {}", outside.join(", ")));
    }
    if snapshot.lease().is_some_and(|lease| lease.in_sync().len() > usize::from(cluster.replicas)) {
        return verdict(False, "Scaling", "a removed replica is still in the in-sync set".into());
    }
    let pod_ready = |name: &&String| snapshot.seen(name).and_then(|s| s.pod.as_ref()).is_some_and(|pod| pod.ready);
    let unready: Vec<&str> = names.iter().filter(|name| !pod_ready(name)).map(String::as_str).collect();
    if !unready.is_empty() {
        return verdict(False, "PodsNotReady", format!("not ready: {}", unready.join(", ")));
    }
    let wanted_settings = wanted_settings(cluster);
    let behind = names.iter().find_map(|name| {
        let own = snapshot.seen(name)?.heard(snapshot.now)?.settings.as_ref();
        Some(format!("{name} still has {}", settings_difference(own, &wanted_settings)?))
    });
    if cluster.orders.paused && behind.is_some() {
        return verdict(False, "Paused", "the spec has changed, and reconciliation is paused".into());
    }
    if let Some(behind) = behind {
        let message = format!("{behind}; the kubelet brings a change to the pod within about a minute");
        return verdict(False, "SettingsPending", message);
    }
    if !cluster.orders.fenced.is_empty() {
        let fenced: Vec<&str> = cluster.orders.fenced.iter().map(String::as_str).collect();
        let message = format!("fenced: {}; all others are in sync", fenced.join(", "));
        return verdict(True, "Fenced", message);
    }
    verdict(True, "AsSpecified", format!("{wanted} replicas, all in sync"))
}

/// False while a replica that is heard runs short of memory or disk, whether or not it is in sync: one that is catching up
/// will be.
fn resources_available(snapshot: &Snapshot<'_>) -> Verdict {
    use ConditionStatus::{False, True, Unknown};
    let verdict = |status, reason: &str, message| Verdict::new(RESOURCES_AVAILABLE, status, reason, message);
    let (mut memory, mut disk, mut heard) = (false, false, 0);
    let mut texts = Vec::new();
    for name in snapshot.cluster.pod_names() {
        let Some(status) = snapshot.seen(&name).and_then(|seen| seen.heard(snapshot.now)) else { continue };
        heard += 1;
        let Some(alarms) = &status.alarms else { continue };
        memory |= alarms.memory.is_some();
        disk |= alarms.disk.is_some();
        texts.extend(alarms.describe(&name));
    }
    let reason = match (memory, disk) {
        (true, true) => "MemoryAndDiskAlarm",
        (true, false) => "MemoryAlarm",
        (false, true) => "DiskAlarm",
        (false, false) if heard == 0 => return verdict(Unknown, "NotObserved", "no broker is heard".into()),
        (false, false) => return verdict(True, "NoAlarm", "no replica is low on memory or disk".into()),
    };
    let blocked = snapshot.serving().is_some_and(|primary| !primary.publishers_blocked.is_empty());
    let consequence = if blocked { "; publishers wait" } else { "" };
    verdict(False, reason, format!("{}{consequence}", texts.join("; ")))
}
