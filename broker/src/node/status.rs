//! What the core thread lets others see: a snapshot of itself, whether clients may publish, and where the primary is.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use understudy_journal::Progress;
use understudy_record::{Epoch, Identity, Index, Position, ReplicaName};
use understudy_replication::{CatchUpProgress, FollowerStatus};

use super::{Node, Role};
use crate::resources::{Alarms, Usage};

/// Where a client's connection belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Door {
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
pub(crate) enum Flow {
    Open,
    /// For a moment: the disk or a backup is behind.
    Paused,
    /// Until somebody mends it; clients are told.
    Blocked(String),
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NodeStatus {
    pub(crate) me: Identity,
    pub(crate) role: RoleStatus,
    pub(crate) epoch: Epoch,
    pub(crate) last: Position,
    pub(crate) first: Index,
    pub(crate) durable: Index,
    pub(crate) committed: Index,
    /// The in-sync set: in force, or as the log last said.
    pub(crate) in_sync: Vec<understudy_record::Member>,
    pub(crate) journal_stalled_ms: u64,
    /// What this replica runs short of.
    pub(crate) alarms: Alarms,
    pub(crate) failure: Option<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum RoleStatus {
    Recovering,
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
        connections: u64,
        queues: u64,
        ready: u64,
        unacknowledged: u64,
        /// Of messages in memory.
        resident_bytes: u64,
    },
    Ended,
}

impl NodeStatus {
    pub(crate) fn is_clean(&self) -> bool {
        match &self.role {
            RoleStatus::Recovering | RoleStatus::Ended => false,
            RoleStatus::Primary { .. } => true,
            RoleStatus::Backup { clean, .. } => *clean,
        }
    }

    /// Serves, or follows as a member of the set: what a budget of disruptions may count on.
    pub(crate) fn is_ready(&self) -> bool {
        match &self.role {
            RoleStatus::Recovering | RoleStatus::Ended => false,
            RoleStatus::Primary { isolated, .. } => !isolated,
            RoleStatus::Backup { primary, catch_up, .. } => {
                primary.is_some() && catch_up.is_none() && self.in_sync.iter().any(|member| member.is(&self.me))
            }
        }
    }
}

/// Of checkpoints that came into force.
#[derive(Debug, Default)]
pub(crate) struct CheckpointCounts {
    pub(crate) count: AtomicU64,
    /// Of the files, in bytes.
    pub(crate) bytes: AtomicU64,
    /// Messages that were moved out of mostly dead segments, in bytes.
    pub(crate) moved_bytes: AtomicU64,
}

impl CheckpointCounts {
    pub(super) fn add(&self, bytes: u64, moved_bytes: u64) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.moved_bytes.fetch_add(moved_bytes, Ordering::Relaxed);
    }
}

/// The core thread writes, everybody reads.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) status: watch::Sender<NodeStatus>,
    pub(crate) flow: watch::Sender<Flow>,
    pub(crate) door: watch::Sender<Door>,
    pub(crate) usage: watch::Sender<Usage>,
    /// How far the reading of the log is.
    pub(crate) recovery: Progress,
    pub(crate) checkpoints: CheckpointCounts,
    failure: Mutex<Option<String>>,
}

impl Shared {
    pub(crate) fn new(me: Identity) -> Self {
        let zero = Position { epoch: Epoch(0), index: Index(0) };
        let status = NodeStatus {
            me,
            role: RoleStatus::Recovering,
            epoch: zero.epoch,
            last: zero,
            first: zero.index,
            durable: zero.index,
            committed: zero.index,
            in_sync: Vec::new(),
            journal_stalled_ms: 0,
            alarms: Alarms::default(),
            failure: None,
        };
        Self {
            status: watch::Sender::new(status),
            flow: watch::Sender::new(Flow::Open),
            door: watch::Sender::new(Door::Closed),
            usage: watch::Sender::new(Usage::default()),
            recovery: Progress::default(),
            checkpoints: CheckpointCounts::default(),
            failure: Mutex::new(None),
        }
    }

    /// Why this process is about to end.
    pub(crate) fn set_failure(&self, reason: String) {
        if let Ok(mut failure) = self.failure.lock() {
            failure.get_or_insert(reason);
        }
    }

    pub(crate) fn failure(&self) -> Option<String> {
        self.failure.lock().ok().and_then(|failure| failure.clone())
    }

    pub(crate) fn set_flow(&self, flow: Flow) {
        self.flow.send_if_modified(|known| {
            let changed = *known != flow;
            *known = flow;
            changed
        });
    }
}

impl Node {
    pub(super) fn publish_status(&mut self) {
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
            Role::Primary(role) => (role.primary.log_first(), role.primary.own_durable(), role.primary.committed()),
            Role::Backup(role) => (role.backup.first(), role.backup.durable(), role.backup.committed()),
            Role::Recovering => (Index(0), Index(0), Index(0)),
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
            journal_stalled_ms: self.journal.stalled_ms(),
            alarms: self.alarms,
            failure: self.shared.failure(),
        }
    }

    fn role_status(&self) -> RoleStatus {
        match &self.role {
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
                    connections: stats.connections as u64,
                    queues: stats.queues as u64,
                    ready: stats.messages_ready as u64,
                    unacknowledged: stats.messages_unacked as u64,
                    resident_bytes: stats.resident_bytes,
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
                let address = |primary: &Identity| self.config.address_of(&primary.name);
                match primary.and_then(|primary| Some((primary.name.clone(), address(primary)?))) {
                    Some((name, address)) => Door::At { name, address },
                    None => Door::Closed,
                }
            }
        }
    }
}
