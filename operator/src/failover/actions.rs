//! What a task does beside deciding: streams to where the pods are, the primary's address, outdated pods, the status. Each
//! request to the API server is a job that the loop hears of when it is done.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, Preconditions};
use understudy_crds::{BrokerClusterStatus, UpdateStrategy};
use understudy_election::Register;
use understudy_proto as wire;
use understudy_record::ReplicaName;

use super::adopt::adopt;
use super::catch_ups::News;
use super::endpoint::{PrimaryAddress, publish};
use super::peer::{Address, Command};
use super::roll::{self, Order, RollPod, RollRules, RollStep};
use super::task::{Done, ENDPOINT_CHECK_EVERY, HAND_OVER_RETRY_AFTER, SWAP_TIMEOUT, Task, timestamp};
use crate::names::GRPC_PORT;
use crate::status::{self, CHANGES_EVERY, PROGRESS_EVERY, Snapshot, Turned};

/// An operator that has just begun waits so long for brokers to speak before it says in a status that they do not.
pub(super) const LOOKS_WITHIN: Duration = Duration::from_secs(2);

impl Task {
    /// The replicas of the spec, and what the set holds beside them; streams to where their pods are.
    pub(super) fn follow_replicas(&mut self) {
        let mut names: BTreeSet<ReplicaName> = self.cluster().pod_names().map(|name| ReplicaName::new(&name)).collect();
        if let Some(lease) = self.held() {
            let prefix = format!("{}-", self.names.cluster());
            let own = lease.in_sync().iter().map(|member| &member.name);
            names.extend(own.filter(|name| name.as_str().starts_with(&prefix)).cloned());
        }
        let names: Vec<ReplicaName> = names.into_iter().collect();
        let unknown: Vec<ReplicaName> =
            names.iter().filter(|name| self.sight.replica(name).is_none()).cloned().collect();
        self.sight.keep_only(&names);
        if !unknown.is_empty() {
            for name in &unknown {
                if let Some(facts) = self.pods.get(name) {
                    self.sight.handle_pod(name, facts.clone());
                }
            }
            if self.pods_listed {
                self.sight.handle_pods_listed(&self.pods.keys().cloned().collect::<Vec<_>>());
            }
        }
        let replicas: Vec<_> = names.into_iter().map(|name| (name.clone(), self.address(&name))).collect();
        self.peers.update(&replicas);
    }

    fn address(&self, name: &ReplicaName) -> Option<Address> {
        let pod = self.pods.get(name)?;
        let ip = pod.ip.as_ref()?.parse().ok()?;
        let host = self.names.pod_host(name.as_str(), &self.cluster().namespace);
        let life = (pod.uid.clone(), pod.container_id.clone());
        Some(Address { ip, life, host, tls: self.assignment.applied.tls.clone() })
    }

    pub(super) fn tell_whom_to_follow(&self, name: &ReplicaName) {
        let Some(lease) = self.held() else { return };
        let Some(holder) = lease.holder().filter(|holder| holder.name != *name) else { return };
        let host = self.names.pod_host(holder.name.as_str(), &self.cluster().namespace);
        let request = wire::FollowRequest {
            epoch: lease.epoch().0,
            primary: holder.name.to_string(),
            grpc_address: format!("{host}:{GRPC_PORT}"),
        };
        self.peers.send(name, Command::Follow(request));
    }

    pub(super) fn publish_endpoint(&mut self) {
        let now = self.now();
        if now >= self.recheck_endpoint_at {
            (self.published, self.recheck_endpoint_at) = (None, now + ENDPOINT_CHECK_EVERY);
        }
        let address = self.primary_address().filter(|address| Some(address) != self.published.as_ref());
        let Some(address) = address.filter(|_| !self.publishing && now >= self.publish_after) else { return };
        self.publishing = true;
        let (client, cluster) = (self.client.clone(), self.cluster().clone());
        self.jobs.spawn(async move {
            let published = tokio::time::timeout(SWAP_TIMEOUT * 2, publish(&client, &cluster, &address)).await;
            Done::Published(address, flatten(published))
        });
    }

    pub(super) fn adopt_lease(&mut self) {
        if self.adopted || self.adopting || self.held().is_none() || self.now() < self.adopt_after {
            return;
        }
        self.adopting = true;
        let (client, cluster) = (self.client.clone(), self.cluster().clone());
        self.jobs.spawn(async move {
            Done::Adopted(flatten(tokio::time::timeout(SWAP_TIMEOUT, adopt(&client, &cluster)).await))
        });
    }

    /// Of the Lease's holder, if the pod under its name is still that one.
    fn primary_address(&self) -> Option<PrimaryAddress> {
        let lease = self.held()?;
        let holder = lease.holder()?;
        let seen = self.sight.replica(&holder.name).filter(|seen| seen.identity() == Some(holder))?;
        let pod = seen.pod.as_ref()?;
        let ip = pod.ip.as_ref()?.parse().ok()?;
        Some(PrimaryAddress { epoch: lease.epoch(), pod: holder.name.to_string(), ip, node: pod.node.clone() })
    }

    /// The spec's, or the primary's own until it has taken that up, whichever asks for more.
    fn min_in_sync(&self) -> usize {
        let wanted = u32::from(self.cluster().min_in_sync);
        let primary = self.held().and_then(|lease| status::serving(lease, &self.sight, self.now()));
        let own = primary.and_then(|primary| primary.settings.as_ref()).map_or(wanted, |own| own.min_in_sync);
        usize::try_from(own.max(wanted)).unwrap_or(usize::MAX)
    }

    fn closed_window(&self) -> Option<Order> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let next = self.cluster().update_windows.closed_until(i64::try_from(now.as_secs()).unwrap_or(i64::MAX))?;
        Some(Order::Window { next })
    }

    pub(super) fn roll(&mut self) {
        let pods = self.roll_pods();
        let cluster = self.cluster();
        let rules = RollRules {
            min_in_sync: self.min_in_sync(),
            supervised: cluster.update == UpdateStrategy::Supervised,
            order: match (cluster.orders.paused, cluster.orders.maintenance) {
                (true, _) => Some(Order::Paused),
                (false, true) => Some(Order::Maintenance),
                (false, false) => self.closed_window(),
            },
        };
        self.roll = match cluster.orders.hibernated {
            true => RollStep::Done,
            false => roll::next(&pods, rules),
        };
        if self.assignment.problem.is_some() {
            return;
        }
        match self.roll.clone() {
            RollStep::Delete { pod, uid } => {
                self.deleted.insert(uid.clone());
                let api: Api<Pod> = Api::namespaced(self.client.clone(), &self.cluster().namespace);
                self.jobs.spawn(async move {
                    let preconditions = Preconditions { uid: Some(uid.clone()), resource_version: None };
                    let params = DeleteParams::default().preconditions(preconditions);
                    let deleted = tokio::time::timeout(SWAP_TIMEOUT, api.delete(pod.as_str(), &params)).await;
                    Done::Deleted { pod, uid, result: flatten(deleted.map(|deleted| deleted.map(drop))) }
                });
            }
            RollStep::HandOver { from } => {
                if self.handing_over.is_some_and(|until| self.now() < until) {
                    return;
                }
                let epoch = self.held().map_or(0, |lease| lease.epoch().0);
                let request = wire::HandOverRequest { epoch, to: String::new() };
                if self.peers.send(&from, Command::HandOver(request)) {
                    // Longer than the call may take; its answer comes earlier.
                    self.handing_over = Some(self.now() + HAND_OVER_RETRY_AFTER * 4);
                    self.announcer.normal("HandOver", "Roll", format!("primary {from} is outdated and hands over"));
                }
            }
            RollStep::Done | RollStep::Wait { .. } | RollStep::Hold(_) => {}
        }
    }

    fn roll_pods(&mut self) -> Vec<RollPod> {
        let existing: BTreeSet<&String> = self.pods.values().map(|pod| &pod.uid).collect();
        self.deleted.retain(|uid| existing.contains(uid));
        let revision = self.assignment.applied.workload.update_revision.as_ref();
        let (lease, now) = (self.held(), self.now());
        // A fenced pod is left as it is: somebody looks at it.
        let fenced = &self.cluster().orders.fenced;
        let names =
            self.cluster().pod_names().filter(|name| !fenced.contains(name)).map(|name| ReplicaName::new(&name));
        let pods = names.map(|name| {
            let pod = self.pods.get(&name).filter(|pod| !pod.deleting && !self.deleted.contains(&pod.uid));
            RollPod {
                uid: pod.map(|pod| pod.uid.clone()),
                outdated: pod.is_some_and(|pod| revision.is_some() && pod.revision.as_ref() != revision),
                in_sync: lease
                    .zip(self.sight.replica(&name))
                    .is_some_and(|(lease, seen)| seen.works_in_set(lease, now)),
                primary: lease.and_then(|lease| lease.holder()).is_some_and(|holder| holder.name == name),
                name,
            }
        });
        pods.collect()
    }

    /// Whether everything that the status speaks of was looked at. Before that it would take back what an earlier operator has
    /// seen, only to say it again a moment later.
    fn has_looked(&self) -> bool {
        let now = self.now();
        let is_known = |name: String| self.sight.knows(&ReplicaName::new(&name), now);
        let is_new = self.written.is_none();
        let is_read = !matches!(self.tracker.register(), Register::Unread) && self.pods_listed;
        is_new || now >= LOOKS_WITHIN || (is_read && self.cluster().pod_names().all(is_known))
    }

    pub(super) fn write_status(&mut self) {
        if !self.has_looked() {
            return;
        }
        let now = self.now();
        let snapshot = Snapshot {
            cluster: self.cluster(),
            workload: &self.assignment.applied.workload,
            pods_held: self.assignment.target.pods,
            problem: self.assignment.problem.as_ref(),
            sight: &self.sight,
            register: self.tracker.register(),
            decision: self.decision.as_ref(),
            roll: &self.roll,
            failovers: self.history.records(),
            last_switchover: self.last_switchover.as_ref(),
            definitions: self.import.done.as_ref(),
            epoch: self.known_epoch(),
            now,
        };
        let status = status::assess(&snapshot, self.written.as_ref(), &timestamp());
        let min_in_sync = self.cluster().min_in_sync;
        self.gauges.observe(&status, min_in_sync, &self.assignment.applied.certificates_end);
        for news in self.catch_ups.observe(now, &status.replica_statuses) {
            match news {
                News::Started { message } => self.announcer.normal("CatchUpStarted", "CatchUp", message),
                News::Done { message } => self.announcer.normal("CatchUpDone", "CatchUp", message),
            }
        }
        let Some(due) = self.status_due(&status) else { return };
        self.write_after = self.write_after.max(due);
        if self.writing || now < self.write_after {
            return;
        }
        self.writing = true;
        let (client, namespace, name) =
            (self.client.clone(), self.cluster().namespace.clone(), self.cluster().name.to_string());
        self.jobs.spawn(async move {
            let written =
                tokio::time::timeout(SWAP_TIMEOUT * 2, status::write(&client, &namespace, &name, &status)).await;
            Done::StatusWritten(Box::new(status), flatten(written))
        });
    }

    /// An event when the first alarm comes, and when the last has gone.
    pub(super) fn announce_alarms(&self, status: &BrokerClusterStatus) {
        match status::alarms_turned(self.written.as_ref(), status) {
            None => {}
            Some(Turned::On { reason, message }) => self.announcer.warning(reason, "Block", message.to_owned()),
            Some(Turned::Off { message }) => self.announcer.normal("AlarmOver", "Unblock", message.to_owned()),
        }
    }

    /// When this status may be written; `None`: it is what is there already.
    fn status_due(&self, status: &BrokerClusterStatus) -> Option<Duration> {
        let Some(written) = &self.written else { return Some(Duration::ZERO) };
        if written == status {
            return None;
        }
        let since = self.written_at.unwrap_or_default();
        let truths = |status: &BrokerClusterStatus| {
            status.conditions.iter().map(|condition| condition.status).collect::<Vec<_>>()
        };
        if written.primary != status.primary
            || written.last_switchover != status.last_switchover
            || written.epoch != status.epoch
            || truths(written) != truths(status)
        {
            return Some(Duration::ZERO);
        }
        let matters = status::without_progress(written) != status::without_progress(status);
        Some(since + if matters { CHANGES_EVERY } else { PROGRESS_EVERY })
    }
}

fn flatten<E: std::fmt::Display>(result: Result<Result<(), E>, tokio::time::error::Elapsed>) -> Result<(), String> {
    match result {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("the API server did not answer in time".into()),
    }
}
