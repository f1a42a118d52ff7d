//! What the core thread lets others see: a snapshot of itself, whether clients may publish, and where the primary is.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::watch;
use understudy_core::Login;
use understudy_election::Incarnation;
use understudy_journal::Progress;
use understudy_record::version::ClusterVersion;
use understudy_record::{Alarms, Epoch, Identity, Index, Position, ReplicaName};
use understudy_replication::{CatchUpProgress, FollowerStatus};

use crate::config::Settings;
use crate::{Node, Role};

/// Where a client's connection belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Door {
    /// No primary is known, or this one may serve nobody.
    Closed,
    Here,
    At {
        name: ReplicaName,
        address: String,
    },
}

/// Whether publishers may go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Flow {
    Open,
    /// For a moment: the disk or a backup is behind.
    Paused,
    /// Until somebody mends it; clients are told.
    Blocked(String),
}

#[derive(Clone, Debug, PartialEq)]
pub struct NodeStatus {
    pub me: Identity,
    pub role: RoleStatus,
    pub epoch: Epoch,
    pub last: Position,
    pub first: Index,
    /// The last record that no loss of power takes.
    pub durable: Position,
    pub committed: Index,
    /// The in-sync set: in force, or as the log last said.
    pub in_sync: Vec<understudy_record::Member>,
    pub journal_stalled_ms: u64,
    /// The blank Lease that it sees as the present one.
    pub blank_seen: Option<Incarnation>,
    /// What this replica runs short of.
    pub alarms: Alarms,
    pub failure: Option<String>,
    /// How the state was found to differ from the primary's; `None` again once everything was fetched anew.
    pub inconsistency: Option<String>,
    pub inconsistencies: u64,
    /// Why nobody is elected, as this replica sees it, while it misses a primary.
    pub waits: Option<String>,
    /// The cluster's: in force, or as the store remembers it.
    pub cluster_version: ClusterVersion,
    /// Why this replica waits for another build.
    pub needs_upgrade: Option<String>,
    /// As it was last told; `None` while it takes part in nothing.
    pub settings: Option<Settings>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum RoleStatus {
    Recovering,
    /// Its build is too old for its log: it takes part in nothing.
    Outdated,
    /// A person keeps it out: it takes part in nothing, and its log is not opened.
    Fenced,
    Backup {
        primary: Option<Identity>,
        /// For how long no primary has been heard, and whether by a reset.
        lost: Option<(Duration, bool)>,
        /// Its log is whole.
        clean: bool,
        catch_up: Option<CatchUpProgress>,
    },
    Primary {
        since: Duration,
        held: Option<String>,
        /// Why publishers are blocked.
        blocked: Option<String>,
        isolated: bool,
        followers: Vec<FollowerStatus>,
        /// How often each follower's state was found to differ from the primary's, as far as this process knows.
        disagreed: BTreeMap<ReplicaName, u64>,
        connections: u64,
        queues: u64,
        ready: u64,
        unacknowledged: u64,
        /// Of messages in memory.
        resident_bytes: u64,
        /// Keys by which queues and exchanges know duplicates.
        remembered_keys: u64,
    },
    Ended,
}

impl NodeStatus {
    pub fn is_clean(&self) -> bool {
        match &self.role {
            RoleStatus::Recovering | RoleStatus::Outdated | RoleStatus::Fenced | RoleStatus::Ended => false,
            RoleStatus::Primary { .. } => true,
            RoleStatus::Backup { clean, .. } => *clean,
        }
    }

    /// Serves, or follows as a member of the set: what a budget of disruptions may count on.
    pub fn is_ready(&self) -> bool {
        match &self.role {
            RoleStatus::Recovering | RoleStatus::Outdated | RoleStatus::Fenced | RoleStatus::Ended => false,
            RoleStatus::Primary { isolated, .. } => !isolated,
            RoleStatus::Backup { primary, catch_up, .. } => {
                primary.is_some() && catch_up.is_none() && self.in_sync.iter().any(|member| member.is(&self.me))
            }
        }
    }
}

/// Of checkpoints that came into force.
#[derive(Debug, Default)]
pub struct CheckpointCounts {
    pub count: AtomicU64,
    /// Of the files, in bytes.
    pub bytes: AtomicU64,
    /// Messages that were moved out of mostly dead segments, in bytes.
    pub moved_bytes: AtomicU64,
}

impl CheckpointCounts {
    pub fn add(&self, bytes: u64, moved_bytes: u64) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.moved_bytes.fetch_add(moved_bytes, Ordering::Relaxed);
    }
}

/// For metrics: the newest sample and what it is judged by. In bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub resident: u64,
    pub limit: u64,
    pub budget: u64,
    pub disk_free: u64,
    pub disk_free_watermark: u64,
    pub alarms: Alarms,
}

/// The core thread writes, everybody reads.
#[derive(Debug)]
pub struct Shared {
    pub status: watch::Sender<NodeStatus>,
    pub flow: watch::Sender<Flow>,
    pub door: watch::Sender<Door>,
    pub usage: watch::Sender<Usage>,
    /// Who may log in, as the primary's log says; on a backup it means nothing.
    pub login: watch::Sender<Arc<Login>>,
    /// How far the reading of the log is.
    pub recovery: Progress,
    pub checkpoints: CheckpointCounts,
    failure: Mutex<Option<String>>,
    waits: Mutex<Option<String>>,
}

impl Shared {
    pub fn new(me: Identity) -> Self {
        let zero = Position { epoch: Epoch(0), index: Index(0) };
        let status = NodeStatus {
            me,
            role: RoleStatus::Recovering,
            epoch: zero.epoch,
            last: zero,
            first: zero.index,
            durable: zero,
            committed: zero.index,
            in_sync: Vec::new(),
            journal_stalled_ms: 0,
            blank_seen: None,
            alarms: Alarms::default(),
            failure: None,
            inconsistency: None,
            inconsistencies: 0,
            waits: None,
            cluster_version: ClusterVersion::FIRST,
            needs_upgrade: None,
            settings: None,
        };
        Self {
            status: watch::Sender::new(status),
            flow: watch::Sender::new(Flow::Open),
            door: watch::Sender::new(Door::Closed),
            usage: watch::Sender::new(Usage::default()),
            login: watch::Sender::new(Arc::default()),
            recovery: Progress::default(),
            checkpoints: CheckpointCounts::default(),
            failure: Mutex::new(None),
            waits: Mutex::new(None),
        }
    }

    /// Why this process is about to end.
    pub fn set_failure(&self, reason: String) {
        if let Ok(mut failure) = self.failure.lock() {
            failure.get_or_insert(reason);
        }
    }

    pub fn failure(&self) -> Option<String> {
        self.failure.lock().ok().and_then(|failure| failure.clone())
    }

    /// Why nobody is elected; `None` once somebody is heard.
    pub fn set_waits(&self, reason: Option<String>) {
        if let Ok(mut waits) = self.waits.lock() {
            *waits = reason;
        }
    }

    fn waits(&self) -> Option<String> {
        self.waits.lock().ok().and_then(|waits| waits.clone())
    }

    /// The store is of a newer build: no core thread will ever say anything.
    pub fn set_outdated(&self, reason: String) {
        self.status.send_modify(|status| {
            status.role = RoleStatus::Outdated;
            status.needs_upgrade = Some(reason);
        });
    }

    /// A person keeps this replica out: no core thread will ever say anything.
    pub fn set_fenced(&self) {
        self.status.send_modify(|status| status.role = RoleStatus::Fenced);
    }

    pub fn set_flow(&self, flow: Flow) {
        self.flow.send_if_modified(|known| {
            let changed = *known != flow;
            *known = flow;
            changed
        });
    }
}

impl Node {
    pub fn publish_status(&mut self) {
        let status = self.status();
        let door = self.door();
        if !self.is_primary() {
            self.shared.set_flow(Flow::Open);
        }
        self.shared.door.send_if_modified(|known| {
            let changed = *known != door;
            *known = door;
            changed
        });
        self.shared.status.send_if_modified(|known| {
            let changed = *known != status;
            *known = status;
            changed
        });
    }

    fn status(&self) -> NodeStatus {
        let (first, durable, committed) = match &self.role {
            Role::Primary(role) => {
                let primary = &role.primary;
                (primary.log_first(), primary.history().position_at(primary.own_durable()), primary.committed())
            }
            Role::Backup(role) => {
                let backup = &role.backup;
                (backup.first(), backup.history().position_at(backup.durable()), backup.committed())
            }
            Role::Recovering => (Index(0), Position::default(), Index(0)),
        };
        NodeStatus {
            me: self.me.clone(),
            role: if self.ended { RoleStatus::Ended } else { self.role_status() },
            epoch: self.epoch(),
            last: self.last(),
            first,
            durable,
            committed,
            in_sync: match &self.role {
                Role::Primary(role) => role.primary.in_force().iter().cloned().collect(),
                _ => self.recorded_sets.latest().to_vec(),
            },
            journal_stalled_ms: self.around.journal_stalled_for().as_millis() as u64,
            blank_seen: self.blank_seen.clone(),
            alarms: self.alarms,
            failure: self.shared.failure(),
            inconsistency: self.agreement.own().map(|own| own.text.clone()),
            inconsistencies: self.agreement.own_count(),
            waits: self.shared.waits(),
            cluster_version: match &self.role {
                Role::Primary(role) => role.primary.cluster_version(),
                Role::Backup(role) => role.backup.cluster_version(),
                Role::Recovering => ClusterVersion::FIRST,
            },
            needs_upgrade: self.needs_upgrade.clone(),
            settings: Some(self.config.settings.clone()),
        }
    }

    fn role_status(&self) -> RoleStatus {
        match &self.role {
            Role::Recovering if self.needs_upgrade.is_some() => RoleStatus::Outdated,
            Role::Recovering => RoleStatus::Recovering,
            Role::Backup(role) => RoleStatus::Backup {
                primary: role.backup.primary().cloned(),
                lost: role
                    .backup
                    .lost()
                    .filter(|_| role.backup.has_followed())
                    .map(|(since, reset)| (self.now.saturating_sub(since), reset)),
                clean: role.backup.is_clean(),
                catch_up: role.backup.catch_up(self.now),
            },
            Role::Primary(role) => {
                let stats = self.core.stats();
                RoleStatus::Primary {
                    since: role.since,
                    held: role.primary.hold().map(|hold| hold.to_string()),
                    blocked: match &*self.shared.flow.borrow() {
                        Flow::Blocked(reason) => Some(reason.clone()),
                        Flow::Open | Flow::Paused => None,
                    },
                    isolated: role.isolated,
                    followers: role.primary.followers().collect(),
                    disagreed: self.agreement.counts().clone(),
                    connections: stats.connections as u64,
                    queues: stats.queues as u64,
                    ready: stats.messages_ready as u64,
                    unacknowledged: stats.messages_unacked as u64,
                    resident_bytes: stats.resident_bytes,
                    remembered_keys: self.core.remembered_keys(),
                }
            }
        }
    }

    fn door(&self) -> Door {
        if self.ended || self.leaving.is_some() {
            return Door::Closed;
        }
        match &self.role {
            Role::Primary(role) if role.isolated => Door::Closed,
            Role::Primary(_) => Door::Here,
            // The primary that is heard or, before one is, whom the Lease names: the relay finds out whether it serves.
            Role::Backup(_) | Role::Recovering => {
                let named = self.lease.as_ref().and_then(|(lease, _)| lease.holder());
                let primary = self.heard().or(named).filter(|primary| primary.name != self.me.name);
                let address = |primary: &Identity| self.around.address_of(&primary.name);
                match primary.and_then(|primary| Some((primary.name.clone(), address(primary)?))) {
                    Some((name, address)) => Door::At { name, address },
                    None => Door::Closed,
                }
            }
        }
    }
}
