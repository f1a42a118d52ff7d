//! One replica: the real [`Backup`], or the real [`Primary`] and [`LeaseKeeper`], over a disk that is a list of frames.

use std::time::Duration;

use bytes::BytesMut;
use understudy_election::{Incarnation, Lease, Version};
use understudy_record::version::{ClusterVersion, VersionRange};
use understudy_record::{Epoch, Frame, Identity, Index, Position, ProcessId, Record, ReplicaName, StoreId};
use understudy_replication::{
    Backup, BackupConfig, History, LeaseKeeper, OwnLog, Primary, PrimaryConfig, RecoveredLog, Session,
};

pub(crate) const NAMES: [&str; 3] = ["a", "b", "c"];

/// Time decides nothing here: each input comes at one of three moments. A primary begins at the first, hears at the second,
/// and at the third finds silent whom it does not hear; a keeper asks at the third.
pub(crate) const BEGIN: Duration = Duration::ZERO;
pub(crate) const NOW: Duration = Duration::from_secs(1);
pub(crate) const LATER: Duration = Duration::from_secs(2);
pub(crate) const LEASE: Duration = Duration::from_secs(3600);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Replica {
    pub(crate) number: usize,
    pub(crate) store: u8,
    pub(crate) process: u8,
    pub(crate) disk: Disk,
    /// Given to the journal and not carried out.
    pub(crate) orders: Vec<Order>,
    pub(crate) role: Role,
    pub(crate) connects: u8,
    /// Blank Leases that this process has seen, in their order, since it knew which is the present one.
    pub(crate) blanks_seen: Vec<Incarnation>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Disk {
    pub(crate) log: Vec<Frame>,
    pub(crate) epoch: Epoch,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Order {
    PersistEpoch(Epoch),
    Truncate(Index),
    Append(Vec<Frame>),
    Barrier,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Role {
    Down,
    /// With the session of the last order that is to be reported.
    Backup(Box<Backup>, Session),
    Primary(Box<Leader>),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Leader {
    pub(crate) primary: Primary,
    pub(crate) keeper: LeaseKeeper,
    /// What every member must acknowledge before that blank Lease is written as the deleted one was (rule 7).
    pub(crate) proof: Option<(Option<Incarnation>, Index)>,
}

impl Disk {
    fn carry_out(&mut self, order: Order) {
        match order {
            Order::PersistEpoch(epoch) => self.epoch = self.epoch.max(epoch),
            Order::Truncate(after) => self.log.retain(|frame| frame.position.index <= after),
            Order::Append(frames) => self.log.extend(frames),
            Order::Barrier => {}
        }
    }

    pub(crate) fn last(&self) -> Index {
        self.log.last().map(|frame| frame.position.index).unwrap_or_default()
    }

    fn history(&self) -> History {
        let mut history = History::default();
        self.log.iter().for_each(|frame| history.extend(frame.position));
        history
    }
}

impl Replica {
    /// With an empty disk, and running.
    pub(crate) fn new(number: usize, in_memory: bool) -> Self {
        let (disk, orders) = (Disk::default(), Vec::new());
        let mut replica =
            Self { number, store: 0, process: 0, disk, orders, role: Role::Down, connects: 0, blanks_seen: Vec::new() };
        replica.start(in_memory);
        replica
    }

    pub(crate) fn name(&self) -> ReplicaName {
        ReplicaName::new(NAMES[self.number])
    }

    pub(crate) fn identity(&self) -> Identity {
        let (store, process) = (StoreId(self.store.into()), ProcessId(self.process.into()));
        Identity { name: self.name(), store, process }
    }

    pub(crate) fn is_up(&self) -> bool {
        self.role != Role::Down
    }

    pub(crate) fn leader(&self) -> Option<&Leader> {
        match &self.role {
            Role::Primary(leader) => Some(leader),
            _ => None,
        }
    }

    pub(crate) fn backup(&self) -> Option<&Backup> {
        match &self.role {
            Role::Backup(backup, _) => Some(backup),
            _ => None,
        }
    }

    /// It looks at the Lease, which is blank.
    pub(crate) fn see_blank(&mut self, incarnation: &Incarnation) {
        self.blanks_seen.retain(|seen| seen != incarnation);
        self.blanks_seen.push(incarnation.clone());
    }

    /// Its log as it will be once the journal has carried out its orders.
    pub(crate) fn received(&self) -> Vec<Frame> {
        let mut disk = self.disk.clone();
        self.orders.iter().cloned().for_each(|order| disk.carry_out(order));
        disk.log
    }

    /// The journal carries out all its orders; what it reports is up to the caller.
    pub(crate) fn sync(&mut self) {
        for order in std::mem::take(&mut self.orders) {
            self.disk.carry_out(order);
        }
    }

    /// A backup begins from what is on disk: at a start, and when a primary gives up its role.
    pub(crate) fn start(&mut self, in_memory: bool) {
        let log = RecoveredLog {
            cluster_version: ClusterVersion::FIRST,
            known_epoch: self.disk.epoch,
            history: self.disk.history(),
            first: Index(1),
            floor: Index(0),
            applied: Index(0),
            pending: self.disk.log.iter().cloned().collect(),
            damaged: false,
        };
        let config = BackupConfig {
            knows: VersionRange::OWN,
            me: self.identity(),
            replicated_only: in_memory,
            backup_timeout: LATER,
        };
        self.role = Role::Backup(Box::new(Backup::new(BEGIN, config, log)), 0);
    }

    /// The log at `epoch`'s beginning becomes a primary's.
    pub(crate) fn lead(&mut self, log: OwnLog, lease: Lease, version: Version, in_memory: bool) {
        let config = PrimaryConfig {
            max_catch_ups: 1,
            knows: VersionRange::OWN,
            version: ClusterVersion::FIRST,
            me: self.identity(),
            min_in_sync: 1,
            replicated_only: in_memory,
            backup_timeout: LATER,
            stall_timeout: LEASE,
            lease_duration: LEASE,
            resume_records: u64::MAX,
        };
        let in_force = lease.in_sync().clone();
        let primary = Primary::new(BEGIN, config, lease.epoch(), log, in_force);
        let keeper = LeaseKeeper::new(BEGIN, self.identity(), lease, version, LEASE);
        self.role = Role::Primary(Box::new(Leader { primary, keeper, proof: None }));
    }
}

/// Frames say nothing of what was committed when they were made: a backup then knows less, and cuts more readily.
pub(crate) fn frame(epoch: Epoch, index: Index, record: &Record) -> Frame {
    Frame::record(Position { epoch, index }, Index(0), record, &mut BytesMut::new())
}
