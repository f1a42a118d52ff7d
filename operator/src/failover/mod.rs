//! The fast path: one task a cluster that watches every broker, the Lease and the pods, elects a new primary the moment the
//! old one is known to be gone, and leads clients to it. Also rolls outdated pods and writes the status, because it alone
//! sees the brokers.
//!
//! Who may be elected is not decided here: `understudy-election` decides, on what [`sight`] has gathered, and the swap of the
//! Lease alone makes it so. Two operators at once are safe: one of two swaps is refused.

mod actions;
mod adopt;
mod announce;
mod catch_ups;
mod definitions;
mod elect;
mod endpoint;
mod fencing;
mod gauges;
mod history;
mod hold;
mod moves;
mod nodes;
mod peer;
mod peers;
pub(crate) mod pods;
pub(crate) mod roll;
pub(crate) mod settings;
pub(crate) mod sight;
mod switchover;
mod task;

#[cfg(test)]
pub(crate) mod scene;
#[cfg(test)]
mod sight_tests;

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};

use kube::Client;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use understudy_crds::BrokerClusterStatus;

pub use definitions::GivenDefinitions;

use crate::apply::Applied;
use crate::status::Problem;
use crate::validate::Target;

/// What the reconciliation gives to a cluster's task.
#[derive(Clone, Debug, PartialEq)]
pub struct Assignment {
    pub target: Target,
    pub applied: Applied,
    /// The newest spec or its objects could not be brought about; the task goes on with the last that could.
    pub problem: Option<Problem>,
    /// As last read: where the task starts from.
    pub status: Option<BrokerClusterStatus>,
}

/// Namespace and name.
pub type ClusterKey = (String, String);

struct Entry {
    uid: String,
    /// How many pods there must be.
    hold: watch::Receiver<u8>,
    assignments: watch::Sender<Assignment>,
    task: JoinHandle<()>,
}

/// The tasks of all clusters.
pub struct Failovers {
    client: Client,
    /// Nodes that take no pods.
    cordoned: watch::Receiver<BTreeSet<String>>,
    entries: Mutex<HashMap<ClusterKey, Entry>>,
}

impl Failovers {
    pub fn new(client: Client) -> Self {
        let cordoned = nodes::watch_cordoned(client.clone());
        Self { client, cordoned, entries: Mutex::default() }
    }

    /// How many pods the cluster must keep for now, whatever its spec says: the role and the data move off those that go first.
    /// `None`: nobody knows yet.
    pub fn pods_to_keep(&self, key: &ClusterKey, uid: &str) -> Option<u8> {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = entries.get(key).filter(|entry| entry.uid == uid && !entry.task.is_finished())?;
        Some(*entry.hold.borrow()).filter(|pods| *pods != hold::UNKNOWN)
    }

    /// Starts the cluster's task, or tells it what has changed. A cluster of another uid under the same name is another one.
    pub fn assign(&self, assignment: Assignment) {
        let cluster = &assignment.target.cluster;
        let (key, uid) = ((cluster.namespace.clone(), cluster.name.to_string()), cluster.uid.clone());
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = entries.get(&key).filter(|entry| entry.uid == uid && !entry.task.is_finished()) {
            entry.assignments.send_if_modified(|current| {
                let same = current.target == assignment.target
                    && current.applied == assignment.applied
                    && current.problem == assignment.problem;
                *current = assignment;
                !same
            });
            return;
        }
        let (assignments, receiver) = watch::channel(assignment);
        let (held, hold) = watch::channel(hold::UNKNOWN);
        let surroundings =
            task::Surroundings { client: self.client.clone(), cordoned: self.cordoned.clone(), hold: held };
        let task = tokio::spawn(task::run(surroundings, receiver));
        if let Some(before) = entries.insert(key, Entry { uid, hold, assignments, task }) {
            before.task.abort();
        }
        crate::metrics::CLUSTERS.set(i64::try_from(entries.len()).unwrap_or(i64::MAX));
    }

    /// Tells the cluster's task of a problem. False: there is no task, since the cluster was never made.
    pub fn report_problem(&self, key: &ClusterKey, uid: &str, problem: &Problem) -> bool {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(entry) = entries.get(key).filter(|entry| entry.uid == uid) else { return false };
        entry.assignments.send_if_modified(|current| {
            let changed = current.problem.as_ref() != Some(problem);
            current.problem = Some(problem.clone());
            changed
        });
        true
    }

    /// Ends the tasks of clusters that are not among `existing` (key and uid) any more.
    pub fn retain(&self, existing: &[(ClusterKey, String)]) {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.retain(|key, entry| {
            let exists = existing.iter().any(|(other, uid)| other == key && *uid == entry.uid);
            if !exists {
                entry.task.abort();
            }
            exists
        });
        crate::metrics::CLUSTERS.set(i64::try_from(entries.len()).unwrap_or(i64::MAX));
    }
}
