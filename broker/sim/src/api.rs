//! The API server, as far as the Lease goes: compare-and-swap, outages, answers that are lost before or after the write took
//! effect, a Lease that somebody deletes.

use std::time::Duration;

use understudy_election::{Incarnation, Lease, Stored, Version};
use understudy_replication::{LeaseAnswer, LeaseRequest};

#[derive(Debug)]
pub(crate) struct Api {
    stored: Stored,
    /// Of the last write; never given twice.
    revision: u64,
    /// Every state there was: a list may be answered from a cache that is behind.
    history: Vec<Stored>,
    /// Nothing gets through before.
    pub(crate) down_until: Duration,
    pub(crate) slow_until: Duration,
    /// One replica, and the operator if it is past the last, does not reach it.
    pub(crate) cut_from: Option<usize>,
    pub(crate) cut_until: Duration,
}

impl Api {
    pub(crate) fn new() -> Self {
        let never = Duration::ZERO;
        Self {
            stored: Stored::Absent,
            revision: 0,
            history: Vec::new(),
            down_until: never,
            slow_until: never,
            cut_from: None,
            cut_until: never,
        }
    }

    pub(crate) fn lease(&self) -> Option<&Lease> {
        self.stored.lease()
    }

    /// There is one, be it blank.
    pub(crate) fn is_there(&self) -> bool {
        self.stored != Stored::Absent
    }

    pub(crate) fn seen(&self) -> Stored {
        self.stored.clone()
    }

    /// As a cache may have it that is behind.
    pub(crate) fn seen_before(&self, states_ago: usize) -> Option<Stored> {
        self.history.iter().rev().nth(states_ago).cloned()
    }

    pub(crate) fn is_reached_by(&self, place: usize, now: Duration) -> bool {
        now >= self.down_until && (self.cut_from != Some(place) || now >= self.cut_until)
    }

    /// A request takes effect.
    pub(crate) fn serve(&mut self, request: LeaseRequest) -> LeaseAnswer {
        let revision = (self.revision + 1).to_string();
        let (lease, incarnation) = match request {
            LeaseRequest::Read => return LeaseAnswer::Read(self.seen()),
            LeaseRequest::Swap { expected, lease } if self.stored.version() == Some(&expected) => {
                (Some(lease), expected.incarnation().clone())
            }
            LeaseRequest::Create if !self.is_there() => (None, Incarnation::new(&revision)),
            LeaseRequest::Swap { .. } | LeaseRequest::Create => return LeaseAnswer::Conflict,
        };
        self.revision += 1;
        let version = Version::new(incarnation, revision);
        self.stored = match lease {
            Some(lease) => Stored::Held(lease, version.clone()),
            None => Stored::Blank(version.clone()),
        };
        self.history.push(self.seen());
        LeaseAnswer::Written(version)
    }

    pub(crate) fn delete(&mut self) {
        self.stored = Stored::Absent;
    }
}
