//! A cluster in which something has happened, step by step, and the decision as text.

use std::collections::BTreeMap;
use std::time::Duration;

use expect_test::Expect;
use understudy_election::{
    Contact, Decision, Elector, Force, Incarnation, Lease, LeaseParts, Loss, Observed, Register, ReplicaView, Report,
    Role, Spec, StoreState, Timings, Version, View, decide,
};
use understudy_record::version::{ClusterVersion, VersionRange};
use understudy_record::{Epoch, Identity, Index, Position, ProcessId, ReplicaName, StoreId};

/// When the Lease was last seen to change. Its duration is 5 s, the backup timeout 2 s, the stall timeout 10 s.
pub(crate) const RENEWED: u64 = 100_000;

pub(crate) struct Case {
    pub(crate) now_ms: u64,
    pub(crate) view: View,
}

pub(crate) fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

pub(crate) fn knows(oldest: u32, newest: u32) -> VersionRange {
    VersionRange { oldest: ClusterVersion(oldest), newest: ClusterVersion(newest) }
}

pub(crate) fn name(text: &str) -> ReplicaName {
    ReplicaName::new(text)
}

pub(crate) fn version(incarnation: &str, revision: &str) -> Version {
    Version::new(Incarnation::new(incarnation), revision)
}

pub(crate) fn identity(text: &str) -> Identity {
    let letter = u128::from(text.as_bytes()[0] - b'a') + 10;
    Identity { name: name(text), store: StoreId(letter), process: ProcessId(1) }
}

/// `a` is the primary of epoch 3, everybody hears it, and all is well.
pub(crate) fn healthy(names: &[&str]) -> Case {
    case(names, false)
}

pub(crate) fn case(names: &[&str], processes_in_set: bool) -> Case {
    let in_sync = names.iter().map(|text| identity(text).member(processes_in_set)).collect();
    let lease = Lease::from_parts(LeaseParts {
        holder: Some(identity(names[0])),
        epoch: Epoch(3),
        given: None,
        in_sync,
        duration: ms(5_000),
        cluster_version: ClusterVersion(2),
        renewed: None,
    });
    let lease = lease.expect("a Lease");
    let replicas = names.iter().map(|text| {
        let role = match *text {
            "a" => Role::Primary { epoch: Epoch(3), stalled_for: Duration::ZERO },
            _ => Role::Hears { epoch: Epoch(3) },
        };
        let report = Report {
            identity: identity(text),
            known_epoch: Epoch(3),
            last: Position::new(Epoch(3), Index(50)),
            durable: Position::new(Epoch(3), Index(50)),
            state: StoreState::Clean,
            recorded_set: lease.in_sync().clone(),
            knows: knows(1, 2),
            cluster_version: ClusterVersion(2),
            role,
            blank_seen: None,
        };
        (name(text), ReplicaView { contact: Contact::Reachable, report: Some(report) })
    });
    let view = View {
        elector: Elector::Operator,
        replicas: replicas.collect::<BTreeMap<_, _>>(),
        spec: Spec {
            replicas: names.iter().map(|text| name(text)).collect(),
            processes_in_set,
            preferred: None,
            forced: Force::No,
            ..Spec::default()
        },
        timings: Timings::default(),
        register: Register::Held(Observed { lease, version: version("1", "7"), unchanged_since: ms(RENEWED) }),
    };
    Case { now_ms: RENEWED + 1_000, view }
}

impl Case {
    pub(crate) fn replica(&mut self, of: &str) -> &mut ReplicaView {
        self.view.replicas.get_mut(&name(of)).expect("a replica of this case")
    }

    pub(crate) fn report(&mut self, of: &str) -> &mut Report {
        self.replica(of).report.as_mut().expect("every replica has reported")
    }

    pub(crate) fn by_backup(mut self, of: &str) -> Self {
        self.view.elector = Elector::Backup(identity(of));
        self
    }

    /// Milliseconds after the Lease was last seen to change.
    pub(crate) fn at(mut self, after_ms: u64) -> Self {
        self.now_ms = RENEWED + after_ms;
        self
    }

    pub(crate) fn contact(mut self, of: &str, contact: Contact) -> Self {
        self.replica(of).contact = contact;
        self
    }

    pub(crate) fn reset(self, of: &str) -> Self {
        self.contact(of, Contact::Lost { since: ms(RENEWED + 900), how: Loss::Reset })
    }

    pub(crate) fn silent_since(self, of: &str, after_ms: u64) -> Self {
        self.contact(of, Contact::Lost { since: ms(RENEWED + after_ms), how: Loss::Silent })
    }

    pub(crate) fn gone(self, of: &str) -> Self {
        self.contact(of, Contact::Gone)
    }

    pub(crate) fn role(mut self, of: &str, role: Role) -> Self {
        self.report(of).role = role;
        self
    }

    /// The backups `of` have lost the primary of epoch 3.
    pub(crate) fn lost_primary(self, of: &[&str], how: Loss, after_ms: u64) -> Self {
        let role = Role::Lost { epoch: Epoch(3), since: ms(RENEWED + after_ms), how };
        of.iter().fold(self, |case, of| case.role(of, role))
    }

    pub(crate) fn log_ends(mut self, of: &str, epoch: u64, index: u64) -> Self {
        self.report(of).last = Position::new(Epoch(epoch), Index(index));
        self.durable_to(of, epoch, index)
    }

    /// What comes after that in its log is in memory only.
    pub(crate) fn durable_to(mut self, of: &str, epoch: u64, index: u64) -> Self {
        self.report(of).durable = Position::new(Epoch(epoch), Index(index));
        self
    }

    pub(crate) fn restarted(mut self, of: &str) -> Self {
        let report = self.report(of);
        report.identity.process.0 += 1;
        report.role = Role::Idle;
        self.contact(of, Contact::Reachable)
    }

    pub(crate) fn new_store(mut self, of: &str) -> Self {
        let report = self.report(of);
        report.identity.store.0 += 0x90;
        report.identity.process.0 += 1;
        (report.role, report.known_epoch) = (Role::Idle, Epoch(0));
        (report.last, report.durable) = (Position::default(), Position::default());
        report.recorded_set.clear();
        self.contact(of, Contact::Reachable)
    }

    pub(crate) fn dirty(mut self, of: &str) -> Self {
        self.report(of).state = StoreState::Dirty;
        self
    }

    /// The builds of these replicas know the versions up to this one.
    pub(crate) fn builds(mut self, of: &[&str], newest: u32) -> Self {
        of.iter().for_each(|of| self.report(of).knows = knows(1, newest));
        self
    }

    /// The cluster's version in the Lease and in every store.
    pub(crate) fn at_version(mut self, version: u32) -> Self {
        if let Register::Held(observed) = &mut self.view.register {
            observed.lease = observed.lease.raised(&identity("a"), ClusterVersion(version)).expect("a holds the Lease");
        }
        for replica in self.view.replicas.values_mut() {
            replica.report.as_mut().expect("every replica has reported").cluster_version = ClusterVersion(version);
        }
        self
    }

    pub(crate) fn preferring(mut self, of: &str) -> Self {
        self.view.spec.preferred = Some(name(of));
        self
    }

    pub(crate) fn forced(mut self) -> Self {
        self.view.spec.forced = Force::Highest;
        self
    }

    pub(crate) fn forcing(mut self, of: &str) -> Self {
        self.view.spec.forced = Force::Named(name(of));
        self
    }

    pub(crate) fn scaled_down(mut self, without: &str) -> Self {
        self.view.spec.replicas.remove(&name(without));
        self
    }

    pub(crate) fn in_sync(mut self, names: &[&str]) -> Self {
        let Register::Held(observed) = &mut self.view.register else { panic!("no Lease in this case") };
        let set = names.iter().map(|text| identity(text).member(false)).collect();
        observed.lease = observed.lease.with_set(&identity("a"), set).expect("a set with its holder");
        self
    }

    /// There is a blank Lease, which all have seen; nobody hears a primary any more, and the elector never saw the Lease that
    /// was deleted.
    pub(crate) fn lease_deleted_unseen(self) -> Self {
        self.blank_instead(None).lost_primary(&["a", "b", "c"], Loss::Reset, 0)
    }

    /// The elector did see it.
    pub(crate) fn lease_deleted(self) -> Self {
        let Register::Held(observed) = self.view.register.clone() else { panic!("no Lease in this case") };
        self.blank_instead(Some(observed.lease)).lost_primary(&["a", "b", "c"], Loss::Reset, 0)
    }

    /// Everybody sees a blank Lease, which was created after another was deleted.
    pub(crate) fn blank_instead(mut self, last: Option<Lease>) -> Self {
        let version = version("2", "9");
        for replica in self.view.replicas.values_mut() {
            replica.report.as_mut().expect("every replica has reported").blank_seen =
                Some(version.incarnation().clone());
        }
        self.view.register = Register::Blank { version, last };
        self
    }

    /// Not even a blank Lease is there.
    pub(crate) fn none_created(mut self) -> Self {
        let Register::Blank { last, .. } = self.view.register else { panic!("there is a Lease in this case") };
        self.view.register = Register::Absent { since: ms(RENEWED), last };
        for replica in self.view.replicas.values_mut() {
            replica.report.as_mut().expect("every replica has reported").blank_seen = None;
        }
        self
    }

    pub(crate) fn newborn(self) -> Self {
        let mut case = self.blank_instead(None);
        for replica in case.view.replicas.values_mut() {
            let report = replica.report.as_mut().expect("every replica has reported");
            report.known_epoch = Epoch(0);
            report.last = Position::default();
            report.durable = report.last;
            report.recorded_set.clear();
            report.role = Role::Idle;
            report.cluster_version = ClusterVersion::FIRST;
        }
        case
    }

    pub(crate) fn check(&self, expected: Expect) {
        expected.assert_eq(&tell(&decide(ms(self.now_ms), &self.view)));
    }
}

pub(crate) fn tell(decision: &Decision) -> String {
    let (what, kind, reason) = match decision {
        Decision::Wait { reason, until } => {
            let until = match until {
                Some(at) => format!("wait until +{}", at.as_millis() as i64 - RENEWED as i64),
                None => "wait".to_owned(),
            };
            (until, reason.kind(), reason.to_string())
        }
        Decision::Elect { expected, lease, candidate, reason } => {
            assert_eq!(lease.holder(), Some(candidate));
            (format!("elect at version {}: {lease}", expected.revision()), reason.kind(), reason.to_string())
        }
        Decision::Create { candidate, reason } => {
            (format!("create a blank Lease, for {candidate}"), reason.kind(), reason.to_string())
        }
        Decision::Blocked { reason } => ("blocked".to_owned(), reason.kind(), reason.to_string()),
    };
    let text = format!("{what}\n{kind}: {reason}\n");
    [31, 30, 15].iter().fold(text, |text, zeros| text.replace(&"0".repeat(*zeros), ""))
}
