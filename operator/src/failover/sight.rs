//! What the operator sees of a cluster's replicas: each one's stream, pod and last words, folded into the election's view.
//! Pure: events and times come as arguments.
//!
//! A replica that answers is reachable, whatever its Pod object says: a pod may be deleted while its process
//! lives on, and a kubelet reports late. Only for one that does not answer does the pod decide whether it is known to have
//! ended.

use std::collections::BTreeMap;
use std::time::Duration;

use understudy_election::{Contact, Elector, Lease, Loss, Register, ReplicaView, Role, Spec, Timings, View};
use understudy_proto as wire;
use understudy_record::{Identity, ReplicaName};

use super::pods::PodFacts;
use understudy_proto::{ReadError, Said, read};

/// How often brokers report even if nothing changes.
pub(crate) const REPORT_INTERVAL: Duration = Duration::from_millis(500);
/// A stream that is quiet for longer than two reports counts as silent from its last one on. The election adds
/// `failover.backupTimeout` before it draws conclusions.
pub(crate) const QUIET_AFTER: Duration = Duration::from_millis(1_200);

/// The state of the stream to one broker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Link {
    #[default]
    Untried,
    Up {
        heard_at: Duration,
    },
    Down {
        since: Duration,
        how: Loss,
    },
}

/// Everything known of one replica.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) link: Link,
    pub(crate) pod: Option<PodFacts>,
    /// The pod's list was read, so that a pod that is not in it does not exist.
    pods_known: bool,
    /// The process that last spoke is known to have ended, by the pod or by its own word.
    ended: bool,
    /// The last status, kept when the stream is lost.
    pub(crate) status: Option<wire::Status>,
    said: Option<Said>,
    /// Why its status was refused, if it was.
    pub(crate) refused: Option<String>,
}

impl Seen {
    pub(crate) fn contact(&self, now: Duration) -> Contact {
        match self.link {
            _ if matches!(self.said, Some(Said::Ended(_))) => Contact::Gone,
            Link::Up { heard_at } if now < heard_at + QUIET_AFTER => Contact::Reachable,
            _ if self.ended || (self.pods_known && self.pod.is_none()) => Contact::Gone,
            Link::Up { heard_at } => Contact::Lost { since: heard_at, how: Loss::Silent },
            Link::Down { since, how } => Contact::Lost { since, how },
            Link::Untried => Contact::Unknown,
        }
    }

    pub(crate) fn identity(&self) -> Option<&Identity> {
        self.said.as_ref().map(Said::identity)
    }

    /// Its status, if it is heard.
    pub(crate) fn heard(&self, now: Duration) -> Option<&wire::Status> {
        self.status.as_ref().filter(|_| self.contact(now) == Contact::Reachable)
    }

    /// A member of the Lease's set that does its work now: serves, or hears the primary. Being in the set is not enough for a
    /// roll: a member that was just restarted is in it, and acknowledges nothing until it follows.
    pub(crate) fn works_in_set(&self, lease: &Lease, now: Duration) -> bool {
        let Some(Said::Report(report)) = &self.said else { return false };
        let works =
            matches!(report.role, Role::Primary { epoch, .. } | Role::Hears { epoch } if epoch == lease.epoch());
        works && !self.ended && self.contact(now) == Contact::Reachable && lease.entry_of(&report.identity).is_some()
    }

    fn view(&self, now: Duration) -> ReplicaView {
        let report = match &self.said {
            Some(Said::Report(report)) => Some(report.clone()),
            _ => None,
        };
        ReplicaView { contact: self.contact(now), report }
    }
}

/// A status without what changes all the while.
fn settled(status: &wire::Status) -> wire::Status {
    let mut settled = status.clone();
    settled.last.iter_mut().for_each(|last| last.index = 0);
    (settled.durable, settled.committed, settled.primary_for_ms, settled.counts) = (0, 0, 0, None);
    settled.followers.iter_mut().for_each(|follower| follower.durable = 0);
    settled
}

#[derive(Debug)]
pub(crate) struct Sight {
    cluster: String,
    replicas: BTreeMap<ReplicaName, Seen>,
}

impl Sight {
    pub(crate) fn new(cluster: &str) -> Self {
        Self { cluster: cluster.to_owned(), replicas: BTreeMap::new() }
    }

    pub(crate) fn replicas(&self) -> &BTreeMap<ReplicaName, Seen> {
        &self.replicas
    }

    pub(crate) fn replica(&self, name: &ReplicaName) -> Option<&Seen> {
        self.replicas.get(name)
    }

    /// Whether this one was heard, or does not answer, or has no address to ask at.
    pub(crate) fn knows(&self, name: &ReplicaName, now: Duration) -> bool {
        self.replica(name).is_some_and(|seen| {
            let has_address = seen.pod.as_ref().is_some_and(|pod| pod.ip.is_some());
            !has_address || seen.contact(now) != Contact::Unknown
        })
    }

    /// The replicas to look at: those of the spec, and those of the in-sync set that a scale-down is about to remove.
    pub(crate) fn keep_only(&mut self, names: &[ReplicaName]) {
        self.replicas.retain(|name, _| names.contains(name));
        for name in names {
            self.replicas.entry(name.clone()).or_default();
        }
    }

    /// A status has come over the stream. `first`: the first one of a new stream. True: it tells more than that time passes and
    /// the log grows.
    pub(crate) fn handle_status(
        &mut self,
        name: &ReplicaName,
        status: wire::Status,
        first: bool,
        at: Duration,
    ) -> Result<bool, ReadError> {
        let Some(seen) = self.replicas.get_mut(name) else { return Ok(false) };
        let said = match read(&status, &self.cluster, name, at) {
            Ok(said) => said,
            Err(error) => {
                seen.refused = Some(error.to_string());
                return Err(error);
            }
        };
        let was_heard = seen.contact(at) == Contact::Reachable && seen.refused.is_none();
        let is_news =
            first || !was_heard || seen.status.as_ref().is_none_or(|before| settled(before) != settled(&status));
        if first {
            seen.ended = false;
        }
        seen.refused = None;
        seen.link = Link::Up { heard_at: at };
        seen.said = Some(said);
        seen.status = Some(status);
        Ok(is_news)
    }

    /// The stream has broken, or could not be made. A reset outweighs silence: it tells more.
    pub(crate) fn handle_lost(&mut self, name: &ReplicaName, how: Loss, at: Duration) {
        let Some(seen) = self.replicas.get_mut(name) else { return };
        seen.link = match (seen.link, how) {
            (Link::Up { heard_at }, Loss::Silent) => Link::Down { since: heard_at, how },
            (Link::Down { how: Loss::Reset, .. }, _) | (Link::Down { how: Loss::Silent, .. }, Loss::Silent) => {
                seen.link
            }
            (Link::Untried, Loss::Silent) => Link::Untried, // it was never heard: that is no loss
            (_, Loss::Reset) => Link::Down { since: at, how },
        };
    }

    pub(crate) fn handle_pod(&mut self, name: &ReplicaName, facts: PodFacts) {
        let Some(seen) = self.replicas.get_mut(name) else { return };
        if let Some(before) = &seen.pod {
            let other_container = facts.container_id.is_some()
                && before.container_id.is_some()
                && facts.container_id != before.container_id;
            seen.ended |= before.uid != facts.uid || other_container;
        }
        seen.ended |= facts.exited;
        seen.pod = Some(facts);
    }

    pub(crate) fn handle_pod_deleted(&mut self, name: &ReplicaName) {
        let Some(seen) = self.replicas.get_mut(name) else { return };
        seen.pod = None;
        seen.ended = true;
    }

    /// The list of pods was read in full: `existing` are all there are.
    pub(crate) fn handle_pods_listed(&mut self, existing: &[ReplicaName]) {
        for (name, seen) in &mut self.replicas {
            seen.pods_known = true;
            if !existing.contains(name) {
                seen.pod = None;
            }
        }
    }

    pub(crate) fn view(&self, now: Duration, register: Register, spec: Spec, timings: Timings) -> View {
        let replicas = self.replicas.iter().map(|(name, seen)| (name.clone(), seen.view(now))).collect();
        View { elector: Elector::Operator, register, replicas, spec, timings }
    }

    /// When a stream that is up will count as silent, if nothing comes.
    pub(crate) fn next_quiet(&self, now: Duration) -> Option<Duration> {
        let quiet = self.replicas.values().filter_map(|seen| match seen.link {
            Link::Up { heard_at } => Some(heard_at + QUIET_AFTER),
            _ => None,
        });
        quiet.filter(|at| *at > now).min()
    }
}
