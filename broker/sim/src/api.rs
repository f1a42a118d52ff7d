//! The API server, as far as the Lease goes: compare-and-swap, outages, answers that are lost before or after the write took
//! effect, a Lease that somebody deletes.

use std::time::Duration;

use understudy_election::{Lease, Version};
use understudy_replication::{LeaseAnswer, LeaseRequest};

#[derive(Debug)]
pub(crate) struct Api {
    lease: Option<Lease>,
    version: u64,
    /// Every state there was: a list may be answered from a cache that is behind.
    history: Vec<(Lease, Version)>,
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
            lease: None,
            version: 0,
            history: Vec::new(),
            down_until: never,
            slow_until: never,
            cut_from: None,
            cut_until: never,
        }
    }

    pub(crate) fn lease(&self) -> Option<&Lease> {
        self.lease.as_ref()
    }

    pub(crate) fn seen(&self) -> Option<(Lease, Version)> {
        self.lease.clone().map(|lease| (lease, self.current()))
    }

    /// As a cache may have it that is behind.
    pub(crate) fn seen_before(&self, states_ago: usize) -> Option<(Lease, Version)> {
        self.history.iter().rev().nth(states_ago).cloned()
    }

    pub(crate) fn is_reached_by(&self, place: usize, now: Duration) -> bool {
        now >= self.down_until && (self.cut_from != Some(place) || now >= self.cut_until)
    }

    /// A request takes effect.
    pub(crate) fn serve(&mut self, request: LeaseRequest) -> LeaseAnswer {
        let written = match request {
            LeaseRequest::Read => return LeaseAnswer::Read(self.seen()),
            LeaseRequest::Swap { expected, lease } if self.lease.is_some() && expected == self.current() => lease,
            LeaseRequest::Create { lease } if self.lease.is_none() => lease,
            LeaseRequest::Swap { .. } | LeaseRequest::Create { .. } => return LeaseAnswer::Conflict,
        };
        self.lease = Some(written);
        self.version += 1;
        self.history.extend(self.seen());
        LeaseAnswer::Written(self.current())
    }

    pub(crate) fn delete(&mut self) {
        self.lease = None;
        self.version += 1;
    }

    fn current(&self) -> Version {
        Version::new(self.version.to_string())
    }
}
