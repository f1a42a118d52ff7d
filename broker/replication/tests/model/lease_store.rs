//! The Lease's store: one register with compare-and-swap, requests that take effect late or never, answers that are lost,
//! watches that show what was, and the elector that makes a new Lease when there is none.

use std::collections::BTreeMap;

use understudy_election::{
    Contact, Decision, Elector as Who, Force, Incarnation, Lease, LeaseParts, Register, ReplicaView, Report,
    Role as Says, Spec, StoreState, Stored, Timings, Version, View, decide,
};
use understudy_record::ReplicaName;
use understudy_record::version::{ClusterVersion, VersionRange};
use understudy_replication::{LeaseAnswer, LeaseRequest};

use crate::replica::{LATER, LEASE, NAMES, Replica, Role};
use crate::rules::Broken;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LeaseStore {
    pub(crate) current: Stored,
    /// Revisions, and the incarnations named after them, are never given twice.
    last_revision: u8,
    /// As it was when it was deleted.
    pub(crate) deleted: Option<Lease>,
    /// The Lease as each election or recovery wrote it: what a late watch may still show.
    pub(crate) elected: Vec<(Lease, Version)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Request {
    pub(crate) replica: usize,
    pub(crate) request: LeaseRequest,
    pub(crate) answer: Option<LeaseAnswer>,
    /// Nobody waits for the answer.
    pub(crate) given_up: bool,
    /// Broken rule 7: what a creation makes.
    pub(crate) carries: Option<Lease>,
}

/// Somebody who found that nothing stands in the Lease, and what it has heard since.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Elector {
    /// The Lease as it saw it before it went.
    pub(crate) last: Option<Lease>,
    pub(crate) reports: [Option<Report>; 3],
}

impl Request {
    /// Broken rule 7: a Lease written anew says nothing of the epochs that others may have been given.
    pub(crate) fn forget_given(&mut self) {
        let LeaseRequest::Swap { lease, .. } = &mut self.request else { return };
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
        let version = Version::new(Incarnation::new("1"), "1");
        let elected = vec![(first.clone(), version.clone())];
        Self { current: Stored::Held(first, version), last_revision: 1, deleted: None, elected }
    }

    /// The set that says who is electable; of the deleted Lease while nothing stands in another.
    pub(crate) fn in_force(&self) -> Option<&Lease> {
        self.current.lease().or(self.deleted.as_ref())
    }

    /// Into the Lease that is there.
    pub(crate) fn write(&mut self, lease: Lease) -> Version {
        self.last_revision += 1;
        let incarnation = self.current.version().map(Version::incarnation).cloned();
        let incarnation = incarnation.unwrap_or_else(|| Incarnation::new(self.last_revision.to_string()));
        let version = Version::new(incarnation, self.last_revision.to_string());
        let before = self.current.lease();
        if before.is_none_or(|before| before.epoch() != lease.epoch() || before.holder() != lease.holder()) {
            self.elected.push((lease.clone(), version.clone()));
        }
        self.current = Stored::Held(lease, version.clone());
        version
    }

    pub(crate) fn create(&mut self) -> Version {
        self.last_revision += 1;
        let number = self.last_revision.to_string();
        let version = Version::new(Incarnation::new(&number), number);
        self.current = Stored::Blank(version.clone());
        version
    }

    pub(crate) fn delete(&mut self) {
        if let Stored::Held(lease, _) = std::mem::replace(&mut self.current, Stored::Absent) {
            self.deleted = Some(lease);
        }
    }

    pub(crate) fn serve(&mut self, request: &Request) -> LeaseAnswer {
        match &request.request {
            LeaseRequest::Read => LeaseAnswer::Read(self.current.clone()),
            _ if !self.may_take(&request.request) => LeaseAnswer::Conflict,
            LeaseRequest::Swap { lease, .. } => LeaseAnswer::Written(self.write(lease.clone())),
            LeaseRequest::Create => match &request.carries {
                None => LeaseAnswer::Written(self.create()),
                Some(lease) => {
                    self.write(lease.clone());
                    LeaseAnswer::Conflict // so that it is read
                }
            },
        }
    }

    /// Whether the request would take effect now.
    pub(crate) fn may_take(&self, request: &LeaseRequest) -> bool {
        match request {
            LeaseRequest::Swap { expected, .. } => self.current.version() == Some(expected),
            LeaseRequest::Create => self.current == Stored::Absent,
            LeaseRequest::Read => false,
        }
    }
}

/// What a replica says of itself to an elector.
pub(crate) fn report(replica: &Replica) -> Option<Report> {
    let (known_epoch, last, durable, role) = match &replica.role {
        Role::Down => return None,
        Role::Backup(backup, _) => {
            let epoch = backup.known_epoch();
            let role = if backup.primary().is_some() { Says::Hears { epoch } } else { Says::Idle };
            (epoch, backup.history().last(), backup.history().position_at(backup.durable()), role)
        }
        Role::Primary(leader) => {
            let epoch = leader.primary.epoch();
            let durable = leader.primary.history().position_at(leader.primary.own_durable());
            (epoch, leader.primary.last(), durable, Says::Primary { epoch, stalled_for: std::time::Duration::ZERO })
        }
    };
    let recorded = replica.received().iter().rev().find_map(understudy_record::Frame::in_sync_set);
    Some(Report {
        cluster_version: ClusterVersion::FIRST,
        knows: VersionRange::OWN,
        identity: replica.identity(),
        known_epoch,
        last,
        durable,
        state: StoreState::Clean,
        recorded_set: recorded.into_iter().flatten().collect(),
        role,
        blank_seen: replica.blanks_seen.last().cloned(),
    })
}

impl Elector {
    /// What this elector writes into the blank Lease of that version, if what it has heard allows it.
    pub(crate) fn decide(&self, blank: &Version, in_memory: bool, broken: Option<Broken>) -> Option<Lease> {
        let names: Vec<_> = NAMES.iter().map(|name| ReplicaName::new(name)).collect();
        let replicas: BTreeMap<_, _> = names
            .iter()
            .cloned()
            .zip(&self.reports)
            .map(|(name, report)| {
                let contact = if report.is_some() { Contact::Reachable } else { Contact::Unknown };
                let mut report = report.clone();
                if let Some(report) = report.as_mut().filter(|_| broken == Some(Broken::RecoversFromOldReports)) {
                    report.blank_seen = Some(blank.incarnation().clone());
                }
                if let Some(report) = report.as_mut().filter(|_| broken == Some(Broken::RecoversByMemory)) {
                    report.durable = report.last;
                }
                (name, ReplicaView { contact, report })
            })
            .collect();
        let view = View {
            elector: Who::Operator,
            register: Register::Blank { version: blank.clone(), last: self.last.clone() },
            replicas,
            spec: Spec {
                replicas: names.into_iter().collect(),
                processes_in_set: in_memory,
                preferred: Some(ReplicaName::new(NAMES[2])), // the one that may not have been in the set
                forced: Force::No,
                ..Spec::default()
            },
            timings: Timings { lease_duration: LEASE, ..Timings::default() },
        };
        match decide(LATER, &view) {
            Decision::Elect { lease, .. } => Some(lease),
            _ => None,
        }
    }
}
