//! The states of a small cluster and the steps between them: what the broker's core thread, its network and the Lease's
//! store may do next, in any order.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use understudy_record::{Epoch, Frame, Identity};
use understudy_replication::{Acknowledge, InSyncSet, PrimaryMessage, StreamId};

use crate::lease_store::{Elector, LeaseStore, Request};
use crate::replica::Replica;
use crate::rules::{Bounds, Broken};

pub(crate) const REPLICAS: usize = 3;

#[derive(Clone, Debug)]
pub(crate) struct Cluster {
    pub(crate) bounds: Bounds,
    pub(crate) broken: Option<Broken>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub(crate) replicas: [Arc<Replica>; REPLICAS],
    pub(crate) links: Vec<Link>,
    pub(crate) store: LeaseStore,
    pub(crate) requests: Vec<Request>,
    pub(crate) elector: Option<Elector>,
    pub(crate) ledger: Ledger,
    pub(crate) used: Used,
}

/// A backup's connection to a primary.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Link {
    pub(crate) backup: usize,
    pub(crate) primary: usize,
    pub(crate) stream: StreamId,
    /// The backup has not ended it; the primary may not know.
    pub(crate) open: bool,
    pub(crate) down: VecDeque<PrimaryMessage>,
    /// The newest acknowledgement under way; an older one that comes first is one that came before this was given.
    pub(crate) up: Option<Acknowledge>,
}

/// What has happened, for the properties.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Ledger {
    /// The longest log that a primary has found committed, and so told publishers.
    pub(crate) committed: Vec<Frame>,
    pub(crate) committers: BTreeMap<Epoch, Identity>,
    pub(crate) two_committed: bool,
    pub(crate) parted: bool,
    /// An epoch was given, or taken, a second time, or a lower one than was known, or in which something was committed.
    pub(crate) epoch_lowered: bool,
    pub(crate) confirmed_after_failover: bool,
    pub(crate) joined: bool,
    pub(crate) recreated: bool,
    pub(crate) recovered: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Used {
    pub(crate) publishes: u8,
    pub(crate) elections: u8,
    pub(crate) silences: u8,
    pub(crate) breaks: u8,
    pub(crate) crashes: u8,
    pub(crate) lost_disks: u8,
    pub(crate) lost_answers: u8,
    pub(crate) deletions: u8,
    pub(crate) recoveries: u8,
}

/// Replicas by number, requests and links by their place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Publish {
        primary: usize,
    },
    JournalCompletes {
        replica: usize,
    },
    Connect {
        backup: usize,
        primary: usize,
    },
    Deliver {
        link: usize,
    },
    Acknowledge {
        link: usize,
    },
    NoticeEnd {
        link: usize,
    },
    Break {
        link: usize,
    },
    FindSilent {
        primary: usize,
    },
    AskLease {
        primary: usize,
    },
    ServeLease {
        request: usize,
    },
    AnswerLease {
        request: usize,
    },
    LoseAnswer {
        request: usize,
    },
    TakeRole {
        replica: usize,
        elected: usize,
    },
    /// The backup that the Lease names finds out whether it is the present one.
    ReadLease {
        replica: usize,
    },
    SeeDeposed {
        primary: usize,
    },
    SeeDeleted {
        primary: usize,
    },
    Elect {
        candidate: usize,
        reaching: u8,
    },
    Crash {
        replica: usize,
    },
    Restart {
        replica: usize,
    },
    LoseDisk {
        replica: usize,
    },
    DeleteLease,
    /// By anybody, late or not.
    CreateLease,
    ElectorFindsNone {
        knowing: bool,
    },
    ElectorHears {
        replica: usize,
    },
    ElectorRecovers,
    Resume {
        replica: usize,
        elected: usize,
    },
}

impl Cluster {
    pub(crate) fn is_broken(&self, rule: Broken) -> bool {
        self.broken == Some(rule)
    }

    /// The set's entries name processes.
    pub(crate) fn names_processes(&self) -> bool {
        self.bounds.in_memory && !self.is_broken(Broken::ProcessesNotInSet)
    }
}

impl State {
    pub(crate) fn set_of(&self) -> Option<&InSyncSet> {
        self.store.in_force().map(|lease| lease.in_sync())
    }

    /// For each member of the set whose store (and memory, where it counts) lives: whether it holds all that is committed.
    pub(crate) fn living_members(&self, cluster: &Cluster) -> impl Iterator<Item = bool> {
        let set = self.set_of();
        (0..REPLICAS).filter_map(move |number| {
            let identity = self.replicas[number].identity();
            let replica = &self.replicas[number];
            let member = set.is_some_and(|set| set.iter().any(|member| member.is(&identity)));
            if !member || (cluster.bounds.in_memory && !replica.is_up()) {
                return None;
            }
            let committed = &self.ledger.committed;
            Some(if cluster.bounds.in_memory {
                replica.received().starts_with(committed)
            } else {
                replica.disk.log.starts_with(committed)
            })
        })
    }
}
