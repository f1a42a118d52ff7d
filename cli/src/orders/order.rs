//! One order as a value: its annotation, what forbids it, and by what a status shows that it is carried out. Pure.

use std::collections::BTreeSet;

use anyhow::{bail, ensure};
use understudy_crds::{FENCED_ANNOTATION, HIBERNATION_ANNOTATION, MAINTENANCE_ANNOTATION, RECONCILE_ANNOTATION};

use crate::arguments::bin_name;
use crate::kubernetes::Seen;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// These pods, beside those that are.
    Fence(BTreeSet<String>),
    Unfence(BTreeSet<String>),
    Hibernate,
    Wake,
    MaintenanceOn,
    MaintenanceOff,
    Pause,
    Resume,
}

impl Order {
    /// The annotation, and the value that it is to have; `None` takes it off.
    pub(super) fn annotation(&self, seen: &Seen) -> (&'static str, Option<String>) {
        match self {
            Self::Fence(_) | Self::Unfence(_) => {
                let fenced: Vec<String> = self.fenced_then(seen).into_iter().collect();
                (FENCED_ANNOTATION, (!fenced.is_empty()).then(|| fenced.join(",")))
            }
            Self::Hibernate => (HIBERNATION_ANNOTATION, Some("on".into())),
            Self::Wake => (HIBERNATION_ANNOTATION, None),
            Self::MaintenanceOn => (MAINTENANCE_ANNOTATION, Some("on".into())),
            Self::MaintenanceOff => (MAINTENANCE_ANNOTATION, None),
            Self::Pause => (RECONCILE_ANNOTATION, Some("paused".into())),
            Self::Resume => (RECONCILE_ANNOTATION, None),
        }
    }

    pub(super) fn depends_on_what_is_there(&self) -> bool {
        matches!(self, Self::Fence(_) | Self::Unfence(_))
    }

    fn fenced_then(&self, seen: &Seen) -> BTreeSet<String> {
        let fenced = seen.fenced();
        match self {
            Self::Fence(pods) => fenced.union(pods).cloned().collect(),
            Self::Unfence(pods) => fenced.difference(pods).cloned().collect(),
            _ => fenced,
        }
    }

    /// Whether the annotation says so already.
    pub(super) fn stands(&self, seen: &Seen) -> bool {
        match self {
            Self::Fence(_) | Self::Unfence(_) => self.fenced_then(seen) == seen.fenced(),
            _ => {
                let (annotation, value) = self.annotation(seen);
                seen.annotation(annotation) == value.as_deref()
            }
        }
    }

    /// # Errors
    /// If it would harm, or makes no sense; with what to do instead.
    pub(super) fn check(&self, seen: &Seen) -> anyhow::Result<()> {
        match self {
            Self::Fence(pods) => self.check_fence(seen, pods),
            Self::Unfence(pods) => known(seen, pods),
            Self::Hibernate => {
                let fenced = seen.fenced();
                ensure!(
                    fenced.is_empty() || self.stands(seen),
                    "{} is fenced, and a hibernated cluster has no pod to look at: `{} unfence` first",
                    listed(&fenced),
                    bin_name()
                );
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn check_fence(&self, seen: &Seen, pods: &BTreeSet<String>) -> anyhow::Result<()> {
        known(seen, pods)?;
        if self.stands(seen) {
            return Ok(());
        }
        let (in_sync, fenced) = (seen.in_sync(), self.fenced_then(seen));
        let name = seen.name();
        let left: Vec<&&str> = in_sync.iter().filter(|pod| !fenced.contains(**pod)).collect();
        if left.is_empty() {
            let whom = if in_sync.is_empty() { "nobody is in sync now".to_owned() } else { sole(&in_sync) };
            bail!(
                "not fenced: {whom}, so no replica would be left that has every confirmed message, and nobody could be \
                 primary. Wait until another one is in sync (`{program} status {name} --watch`), and say it again",
                program = bin_name()
            );
        }
        Ok(())
    }

    /// What a person has to agree to, if anything.
    pub(super) fn question(&self, seen: &Seen) -> Option<String> {
        match self {
            Self::Hibernate => Some(format!(
                "All {} pods of {} end, and clients find nobody until `{} wake {}`; all data is kept",
                seen.replica_count(),
                seen.name(),
                bin_name(),
                seen.name()
            )),
            Self::Fence(_) => {
                let (fenced, needed) = (self.fenced_then(seen), seen.min_in_sync());
                let left = seen.in_sync().into_iter().filter(|pod| !fenced.contains(*pod)).count() as u64;
                (left < needed).then(|| {
                    format!(
                        "{left} replicas stay in sync and minInSync is {needed}: nothing is confirmed while that is so"
                    )
                })
            }
            _ => None,
        }
    }

    /// What the status does not show yet; `None` once it does.
    pub(super) fn pending(&self, seen: &Seen) -> Option<String> {
        match self {
            Self::Fence(pods) => {
                let in_sync = seen.in_sync();
                let primary = pods.iter().find(|pod| seen.primary() == Some(pod));
                let member = pods.iter().find(|pod| in_sync.contains(pod.as_str()));
                match (primary, member) {
                    (Some(pod), _) => Some(format!("{pod} is the primary still")),
                    (None, Some(pod)) => Some(format!("{pod} is in sync still")),
                    (None, None) => None,
                }
            }
            Self::Unfence(pods) => {
                let in_sync = seen.in_sync();
                let outside = pods.iter().find(|pod| !in_sync.contains(pod.as_str()))?;
                let replica = seen.replica(outside);
                let role = replica.and_then(|replica| replica["role"].as_str()).unwrap_or("Absent");
                let message = replica.and_then(|replica| replica["message"].as_str());
                let message = message.map(|message| format!(": {message}")).unwrap_or_default();
                Some(format!("{outside} ({role}) is not in sync yet{message}"))
            }
            Self::Hibernate => {
                let is_so =
                    seen.condition("Ready").is_some_and(|c| c["reason"] == "Hibernated" && c["status"] == "True");
                (!is_so).then(|| seen.condition_text("Ready"))
            }
            Self::Wake => (!seen.is("Available", "True")).then(|| seen.condition_text("Available")),
            // They keep the operator from doing something, so no status shows them: they hold from its next look on.
            Self::MaintenanceOn | Self::MaintenanceOff | Self::Pause | Self::Resume => None,
        }
    }

    pub(super) fn would(&self, seen: &Seen) -> String {
        match self.annotation(seen) {
            (annotation, Some(value)) => format!("would set {annotation}={value} on BrokerCluster {}", seen.name()),
            (annotation, None) => format!("would take {annotation} off BrokerCluster {}", seen.name()),
        }
    }

    pub(super) fn ordered(&self, name: &str) -> String {
        match self {
            Self::Fence(pods) => format!("the fence of {} is ordered", listed(pods)),
            Self::Unfence(pods) => format!("the end of the fence of {} is ordered", listed(pods)),
            Self::Hibernate => format!("hibernation of {name} is ordered"),
            Self::Wake => format!("{name} is told to wake"),
            _ => self.done(name),
        }
    }

    pub(super) fn done(&self, name: &str) -> String {
        match self {
            Self::Fence(pods) if pods.len() == 1 => {
                format!("{} is fenced: it is neither primary nor in sync", listed(pods))
            }
            Self::Fence(pods) => format!("{} are fenced: they are neither primary nor in sync", listed(pods)),
            Self::Unfence(pods) if pods.len() == 1 => format!("{} is in sync, and not fenced", listed(pods)),
            Self::Unfence(pods) => format!("{} are in sync, and not fenced", listed(pods)),
            Self::Hibernate => format!("{name} is hibernated: no pods, all data kept"),
            Self::Wake => format!("{name} is awake, and serves"),
            Self::MaintenanceOn => format!("maintenance of {name} is on"),
            Self::MaintenanceOff => format!("maintenance of {name} is off"),
            Self::Pause => format!("{name} is paused: the operator changes none of its objects, and elects primaries"),
            Self::Resume => format!("{name} is not paused"),
        }
    }
}

fn known(seen: &Seen, pods: &BTreeSet<String>) -> anyhow::Result<()> {
    let own = seen.pod_names();
    match pods.iter().find(|pod| !own.contains(*pod) && !seen.fenced().contains(*pod)) {
        Some(stranger) => bail!("{stranger} is no pod of {}: it has {}", seen.name(), listed(&own)),
        None => Ok(()),
    }
}

fn sole(in_sync: &BTreeSet<&str>) -> String {
    let names = in_sync.iter().copied().collect::<Vec<_>>().join(", ");
    if in_sync.len() == 1 { format!("{names} is the only one in sync") } else { format!("only {names} are in sync") }
}

fn listed(pods: &BTreeSet<String>) -> String {
    pods.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
}
