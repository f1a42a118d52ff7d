//! Replicas that a person keeps out are told so, and told when they may come back. The primary goes last: as long as it serves and
//! nobody else could, it stays, and an event says so.

use std::collections::BTreeMap;
use std::time::Duration;

use understudy_proto as wire;
use understudy_record::ReplicaName;

use super::peer::Command;
use super::task::Task;

/// A process that was told ends, and the next one starts, within this time; then it is told again.
const AGAIN_AFTER: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub(super) struct Fencing {
    told_at: BTreeMap<ReplicaName, Duration>,
    /// The event was made.
    is_refused: bool,
}

impl Task {
    pub(super) fn fence(&mut self) {
        let now = self.now();
        let wanted = |name: &ReplicaName| self.cluster().orders.fenced.contains(name.as_str());
        let differ: Vec<(ReplicaName, bool)> = self
            .sight
            .replicas()
            .iter()
            .filter_map(|(name, seen)| Some((name.clone(), seen.heard(now)?.fenced)))
            .filter(|(name, fenced)| *fenced != wanted(name))
            .map(|(name, fenced)| (name, !fenced))
            .collect();
        let serves = self.held().and_then(|lease| lease.holder()).map(|holder| holder.name.clone());
        let mut is_refused = false;
        for (name, fenced) in differ {
            if fenced && serves.as_ref() == Some(&name) {
                is_refused = true; // it is told once another one has the role
                continue;
            }
            let told = self.fencing.told_at.get(&name).is_some_and(|at| now < *at + AGAIN_AFTER);
            if !told && self.peers.send(&name, Command::Fence(wire::FenceRequest { fenced })) {
                self.fencing.told_at.insert(name.clone(), now);
                let (reason, note) = match fenced {
                    true => ("Fenced", format!("{name} is kept out: it leaves the set and takes part in nothing")),
                    false => ("Unfenced", format!("{name} may take part again")),
                };
                self.announcer.normal(reason, "Fence", note);
            }
        }
        let leaving = self.leaving();
        let others_may = self.cluster().pod_names().any(|name| !leaving.contains_key(&ReplicaName::new(&name)));
        if is_refused && !others_may && !self.fencing.is_refused {
            let note =
                "the primary stays: all replicas are fenced or on cordoned nodes, and nobody could take its role";
            self.announcer.warning("FenceRefused", "Fence", note.into());
        }
        self.fencing.is_refused = is_refused && !others_may;
    }
}
