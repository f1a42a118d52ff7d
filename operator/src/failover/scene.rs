//! A cluster on stage, for tests: brokers speak, streams break, pods go, time passes as the test says.

use std::collections::BTreeSet;
use std::time::Duration;

use understudy_election::{
    Decision, Force, Incarnation, Lease, LeaseTracker, Spec, Stored, Timings, Version, View, decide,
};
use understudy_proto as wire;
use understudy_record::{Identity, ProcessId, ReplicaName, StoreId};

use super::pods::PodFacts;
use super::sight::Sight;
use understudy_proto::wire_identity;

/// Three replicas, `orders-0` the primary of epoch 1, all in sync, all heard at second 10.
pub(crate) struct Scene {
    pub(crate) sight: Sight,
    pub(crate) tracker: LeaseTracker,
    pub(crate) now: Duration,
}

pub(crate) fn name(ordinal: u64) -> ReplicaName {
    ReplicaName::new(&format!("orders-{ordinal}"))
}

pub(crate) fn identity(ordinal: u64, process: u64) -> Identity {
    Identity { name: name(ordinal), store: StoreId(u128::from(ordinal) + 1), process: ProcessId(process) }
}

pub(crate) fn pod(uid: &str, container: &str) -> PodFacts {
    let (uid, container) = (uid.to_owned(), container.to_owned());
    PodFacts { uid, container_id: Some(container), ip: Some("10.0.0.1".into()), ..PodFacts::default() }
}

pub(crate) fn status(ordinal: u64, process: u64, role: wire::Role) -> wire::Status {
    let identity = identity(ordinal, process);
    wire::Status {
        cluster: "orders".into(),
        identity: Some(wire_identity(&identity)),
        role: role.into(),
        epoch: 1,
        last: Some(wire::Position { epoch: 1, index: 100 + ordinal }),
        clean: true,
        in_sync: (0..3).map(|ordinal| self::identity(ordinal, 1).member(false).to_string()).collect(),
        ..wire::Status::default()
    }
}

pub(crate) fn hearing(lost: Option<wire::Lost>) -> Option<wire::HeardPrimary> {
    let primary = Some(wire_identity(&identity(0, 1)));
    Some(wire::HeardPrimary { primary, epoch: 1, lost })
}

impl Scene {
    pub(crate) fn new() -> Self {
        let mut sight = Sight::new("orders");
        let names: Vec<_> = (0..3).map(name).collect();
        sight.keep_only(&names);
        let mut scene = Self { sight, tracker: LeaseTracker::default(), now: Duration::from_secs(10) };
        let members = (0..3).map(|ordinal| identity(ordinal, 1).member(false)).collect();
        let lease = Lease::bootstrap(&identity(0, 1), members, Duration::from_secs(5)).unwrap();
        scene.tracker.observe(scene.now, Stored::Held(lease, Version::new(Incarnation::new("1"), "1")));
        for ordinal in 0..3 {
            scene.sight.handle_pod(&name(ordinal), pod(&format!("p{ordinal}"), &format!("c{ordinal}")));
        }
        scene.sight.handle_pods_listed(&names);
        scene.hear(0, 1, wire::Role::Primary, None);
        scene.hear(1, 1, wire::Role::Backup, hearing(None));
        scene.hear(2, 1, wire::Role::Backup, hearing(None));
        scene
    }

    pub(crate) fn hear(&mut self, ordinal: u64, process: u64, role: wire::Role, heard: Option<wire::HeardPrimary>) {
        let status = wire::Status { heard, ..status(ordinal, process, role) };
        self.sight.handle_status(&name(ordinal), status, true, self.now).unwrap();
    }

    /// A backup reports that it has lost the primary.
    pub(crate) fn hear_of_loss(&mut self, ordinal: u64, since_ms: u64, reset: bool) {
        self.hear(ordinal, 1, wire::Role::Backup, hearing(Some(wire::Lost { since_ms, reset })));
    }

    pub(crate) fn after(&mut self, ms: u64) {
        self.now += Duration::from_millis(ms);
    }

    pub(crate) fn view(&self) -> View {
        let spec = Spec {
            replicas: (0..3).map(name).collect::<BTreeSet<_>>(),
            processes_in_set: false,
            preferred: None,
            forced: Force::No,
            ..Spec::default()
        };
        self.sight.view(self.now, self.tracker.register().clone(), spec, Timings::default())
    }

    pub(crate) fn decision(&self) -> Decision {
        decide(self.now, &self.view())
    }
}
