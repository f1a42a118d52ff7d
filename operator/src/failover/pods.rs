//! What a Pod object says of the process in it, reduced to what elections, rolls and the status need. Pure.

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};

use crate::names::BROKER_CONTAINER;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PodFacts {
    pub(crate) uid: String,
    pub(crate) ip: Option<String>,
    pub(crate) node: Option<String>,
    /// The container's life that the kubelet last reported. Another one means that the process before has ended.
    pub(crate) container_id: Option<String>,
    /// The kubelet says that no process runs in it.
    pub(crate) exited: bool,
    /// Somebody has asked for its deletion; the process may still be handing over.
    pub(crate) deleting: bool,
    pub(crate) ready: bool,
    /// Of the pod's template, as the StatefulSet controller labels it.
    pub(crate) revision: Option<String>,
    /// Why it does not run, in the words of whoever knows.
    pub(crate) trouble: Option<String>,
}

impl PodFacts {
    pub(crate) fn of(pod: &Pod) -> Self {
        let status = pod.status.clone().unwrap_or_default();
        let labels = pod.metadata.labels.as_ref();
        let container = status.container_statuses.iter().flatten().find(|container| container.name == BROKER_CONTAINER);
        let finished = matches!(status.phase.as_deref(), Some("Failed" | "Succeeded"));
        let is_true = |kind: &str| status.conditions.iter().flatten().any(|c| c.type_ == kind && c.status == "True");
        let unschedulable =
            status.conditions.iter().flatten().find(|c| c.type_ == "PodScheduled" && c.status == "False");
        let unschedulable = unschedulable.map(|condition| {
            let reason = condition.reason.as_deref().unwrap_or("Unschedulable");
            format!("{reason}: {}", condition.message.as_deref().unwrap_or("no node takes the pod"))
        });
        let finished_because = status.reason.clone().or_else(|| status.phase.clone()).filter(|_| finished);
        Self {
            uid: pod.metadata.uid.clone().unwrap_or_default(),
            ip: status.pod_ip.clone().filter(|ip| !ip.is_empty()),
            node: pod.spec.as_ref().and_then(|spec| spec.node_name.clone()),
            container_id: container.and_then(|container| container.container_id.clone()),
            exited: finished || container.is_some_and(has_exited),
            deleting: pod.metadata.deletion_timestamp.is_some(),
            ready: is_true("Ready"),
            revision: labels.and_then(|labels| labels.get("controller-revision-hash").cloned()),
            trouble: container.and_then(trouble).or(unschedulable).or(finished_because),
        }
    }
}

/// Terminated, or waiting for its next start.
fn has_exited(container: &ContainerStatus) -> bool {
    let Some(state) = &container.state else { return false };
    let ran_before = container.last_state.as_ref().is_some_and(|last| last.terminated.is_some());
    state.terminated.is_some() || (state.waiting.is_some() && ran_before)
}

fn trouble(container: &ContainerStatus) -> Option<String> {
    let state = container.state.as_ref()?;
    if let Some(waiting) = &state.waiting {
        let reason = waiting.reason.as_deref().unwrap_or("Waiting");
        if matches!(reason, "ContainerCreating" | "PodInitializing") {
            return None;
        }
        return Some(match &waiting.message {
            Some(message) => format!("{reason}: {message}"),
            None => reason.to_owned(),
        });
    }
    let ended = state.terminated.as_ref()?;
    let reason = ended.reason.as_deref().unwrap_or("Terminated");
    Some(format!("{reason}, exit code {}", ended.exit_code))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(status: serde_json::Value) -> PodFacts {
        let pod = serde_json::json!({"metadata": {"name": "orders-0", "uid": "p-1"}, "spec": {"containers": []}, "status": status});
        PodFacts::of(&serde_json::from_value(pod).unwrap())
    }

    fn container(state: serde_json::Value, last: serde_json::Value) -> PodFacts {
        let status = serde_json::json!({"name": "broker", "image": "b", "imageID": "", "ready": false, "restartCount": 0,
            "containerID": "containerd://a", "state": state, "lastState": last});
        facts(serde_json::json!({"podIP": "10.0.0.1", "containerStatuses": [status]}))
    }

    #[test]
    fn a_process_has_ended_when_the_kubelet_says_so() {
        use serde_json::json;
        let terminated = json!({"terminated": {"exitCode": 137, "reason": "Error"}});
        let table = [
            (json!({"running": {}}), json!({}), false),
            (json!({"running": {}}), terminated.clone(), false),
            (terminated.clone(), json!({}), true),
            (json!({"waiting": {"reason": "CrashLoopBackOff"}}), terminated, true),
            (json!({"waiting": {"reason": "ContainerCreating"}}), json!({}), false),
        ];
        for (state, last, expected) in table {
            assert_eq!(container(state.clone(), last.clone()).exited, expected, "{state} after {last}");
        }
        assert!(facts(json!({"phase": "Failed", "reason": "Evicted"})).exited);
        assert!(!facts(json!({"phase": "Pending"})).exited);
    }

    /// The reason shows.
    #[test]
    fn trouble_is_told_in_the_words_of_who_knows() {
        use serde_json::json;
        let pull = json!({"waiting": {"reason": "ErrImagePull", "message": "not found"}});
        assert_eq!(container(pull, json!({})).trouble.as_deref(), Some("ErrImagePull: not found"));
        let ended = json!({"terminated": {"exitCode": 2, "reason": "Error"}});
        assert_eq!(container(ended, json!({})).trouble.as_deref(), Some("Error, exit code 2"));
        assert_eq!(container(json!({"waiting": {"reason": "ContainerCreating"}}), json!({})).trouble, None);
        let full = json!({"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}]});
        assert_eq!(facts(full).trouble.as_deref(), Some("Unschedulable: 0/3 nodes"));
        assert_eq!(facts(json!({"phase": "Failed", "reason": "Evicted"})).trouble.as_deref(), Some("Evicted"));
        assert_eq!(facts(json!({"phase": "Running"})).trouble, None);
    }
}
