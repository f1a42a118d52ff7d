//! The Lease's store: one register with compare-and-swap, requests that take effect late or never, answers that are lost,
//! watches that show what was, and the elector that makes a new Lease when there is none.

use std::collections::BTreeMap;

use understudy_election::Version;
use understudy_election::{
    Contact, Decision, Elector as Who, Force, Lease, LeaseParts, Register, ReplicaView, Report, Role as Says, Spec,
    StoreState, Timings, View, decide,
};
use understudy_record::version::{ClusterVersion, VersionRange};
use understudy_record::{Epoch, ReplicaName};
use understudy_replication::{LeaseAnswer, LeaseRequest};

use crate::replica::{LATER, LEASE, NAMES, Replica, Role};
use crate::rules::Broken;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LeaseStore {
    pub(crate) current: Option<(Lease, u8)>,
    /// Versions are never given twice.
    last_version: u8,
    /// As it was when it was deleted.
    pub(crate) deleted: Option<Lease>,
    /// The Lease as each election, creation or recovery wrote it: what a late watch may still show.
    pub(crate) elected: Vec<(Lease, u8)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Request {
    pub(crate) replica: usize,
    pub(crate) request: LeaseRequest,
    pub(crate) answer: Option<LeaseAnswer>,
    /// Nobody waits for the answer.
    pub(crate) given_up: bool,
}

/// Somebody who found that there is no Lease, and what it has heard since.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Elector {
    /// The Lease as it saw it before it went.
    pub(crate) last: Option<Lease>,
    pub(crate) reports: [Option<Report>; 3],
}

pub(crate) fn version(number: u8) -> Version {
    Version::new(number.to_string())
}

impl Request {
    /// Broken rule 7: a Lease written anew says nothing of the epochs that others may have been given.
    pub(crate) fn forget_given(&mut self) {
        let (LeaseRequest::Swap { lease, .. } | LeaseRequest::Create { lease }) = &mut self.request else { return };
        let parts = LeaseParts {
            cluster_version: ClusterVersion::FIRST,
            holder: lease.holder().cloned(),
            epoch: lease.epoch(),
            given: None,
            in_sync: lease.in_sync().clone(),
            duration: lease.duration(),
            renewed: None,
        };
        if let Ok(forgetful) = Lease::from_parts(parts) {
            *lease = forgetful;
        }
    }
}

impl LeaseStore {
    pub(crate) fn new(first: Lease) -> Self {
        Self { current: Some((first.clone(), 1)), last_version: 1, deleted: None, elected: vec![(first, 1)] }
    }

    /// The set that says who is electable; of the deleted Lease while there is none.
    pub(crate) fn in_force(&self) -> Option<&Lease> {
        self.current.as_ref().map(|(lease, _)| lease).or(self.deleted.as_ref())
    }

    pub(crate) fn write(&mut self, lease: Lease) -> u8 {
        self.last_version += 1;
        let before = self.current.as_ref().map(|(before, _)| before);
        if before.is_none_or(|before| before.epoch() != lease.epoch() || before.holder() != lease.holder()) {
            self.elected.push((lease.clone(), self.last_version));
        }
        self.current = Some((lease, self.last_version));
        self.last_version
    }

    pub(crate) fn delete(&mut self) {
        self.deleted = self.current.take().map(|(lease, _)| lease);
    }

    pub(crate) fn serve(&mut self, request: &LeaseRequest) -> LeaseAnswer {
        match request {
            LeaseRequest::Read => {
                LeaseAnswer::Read(self.current.clone().map(|(lease, number)| (lease, version(number))))
            }
            LeaseRequest::Swap { lease, .. } | LeaseRequest::Create { lease } if self.may_take(request) => {
                LeaseAnswer::Written(version(self.write(lease.clone())))
            }
            LeaseRequest::Swap { .. } | LeaseRequest::Create { .. } => LeaseAnswer::Conflict,
        }
    }

    /// Whether the request would take effect now.
    pub(crate) fn may_take(&self, request: &LeaseRequest) -> bool {
        match (request, &self.current) {
            (LeaseRequest::Swap { expected, .. }, Some((_, current))) => *expected == version(*current),
            (LeaseRequest::Create { .. }, None) => true,
            _ => false,
        }
    }
}

/// What a replica says of itself to an elector.
pub(crate) fn report(replica: &Replica) -> Option<Report> {
    let (known_epoch, last, role) = match &replica.role {
        Role::Down => return None,
        Role::Backup(backup, _) => {
            let epoch = backup.known_epoch();
            let role = if backup.primary().is_some() { Says::Hears { epoch } } else { Says::Idle };
            (epoch, backup.history().last(), role)
        }
        Role::Primary(leader) => {
            let epoch = leader.primary.epoch();
            (epoch, leader.primary.last(), Says::Primary { epoch, stalled_for: std::time::Duration::ZERO })
        }
    };
    let recorded = replica.received().iter().rev().find_map(understudy_record::Frame::in_sync_set);
    Some(Report {
        cluster_version: ClusterVersion::FIRST,
        knows: VersionRange::OWN,
        identity: replica.identity(),
        known_epoch,
        last,
        state: StoreState::Clean,
        recorded_set: recorded.into_iter().flatten().collect(),
        role,
        lease_gone: true,
    })
}

impl Elector {
    /// The Lease that this elector creates, if what it has heard allows one.
    pub(crate) fn decide(&self, in_memory: bool, broken: Option<Broken>) -> Option<Lease> {
        let names: Vec<_> = NAMES.iter().map(|name| ReplicaName::new(name)).collect();
        let replicas: BTreeMap<_, _> = names
            .iter()
            .cloned()
            .zip(&self.reports)
            .map(|(name, report)| {
                let contact = if report.is_some() { Contact::Reachable } else { Contact::Unknown };
                (name, ReplicaView { contact, report: report.clone() })
            })
            .collect();
        let view = View {
            elector: Who::Operator,
            register: Register::Absent { since: LATER, last: self.last.clone() },
            replicas,
            spec: Spec {
                replicas: names.into_iter().collect(),
                processes_in_set: in_memory,
                preferred: Some(ReplicaName::new(NAMES[2])), // the one that may not have been in the set
                forced: Force::No,
            },
            timings: Timings { lease_duration: LEASE, ..Timings::default() },
        };
        let Decision::Create { lease, .. } = decide(LATER, &view) else { return None };
        if broken != Some(Broken::RecoversWithoutGap) {
            return Some(lease);
        }
        let known = self.reports.iter().flatten().map(|report| report.known_epoch.0);
        Lease::from_parts(LeaseParts {
            cluster_version: ClusterVersion::FIRST,
            holder: lease.holder().cloned(),
            epoch: Epoch(known.max().unwrap_or_default() + 1),
            given: None,
            in_sync: lease.in_sync().clone(),
            duration: LEASE,
            renewed: None,
        })
        .ok()
    }
}
