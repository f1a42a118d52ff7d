//! Connections between replicas: each direction keeps its order, across connections there is none. A direction that is cut
//! holds what is sent until it is mended.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::mpsc::UnboundedReceiver;
use understudy_core::BacklogCursor;
use understudy_node::ToPrimary;
use understudy_record::{Epoch, QueueId};
use understudy_replication::{PrimaryMessage, SyncId};

/// A process on a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) machine: usize,
    pub(crate) process: u64,
}

/// A follower's connection to its primary.
pub(crate) struct Link {
    pub(crate) follower: Place,
    /// The follower's own number for it.
    pub(crate) number: u64,
    pub(crate) target: usize,
    /// The process that took it.
    pub(crate) primary: Option<Place>,
    pub(crate) words: Option<UnboundedReceiver<ToPrimary>>,
    pub(crate) messages: Option<UnboundedReceiver<PrimaryMessage>>,
    pub(crate) follower_open: bool,
    pub(crate) primary_open: bool,
    /// What was sent last arrives then, so nothing later does before.
    pub(crate) up_at: Duration,
    pub(crate) down_at: Duration,
}

/// One queue's backlog on its way.
pub(crate) struct Fetch {
    pub(crate) link: u64,
    pub(crate) epoch: Epoch,
    pub(crate) sync_id: SyncId,
    pub(crate) queue: QueueId,
    pub(crate) from: BacklogCursor,
}

#[derive(Default)]
pub(crate) struct Network {
    pub(crate) links: BTreeMap<u64, Link>,
    pub(crate) fetches: BTreeMap<u64, Fetch>,
    /// Nothing gets from the first machine to the second before then.
    cuts: BTreeMap<(usize, usize), Duration>,
    made: u64,
}

/// The machine number of the operator, for cuts.
pub(crate) const OPERATOR: usize = usize::MAX;

impl Network {
    pub(crate) fn number(&mut self) -> u64 {
        self.made += 1;
        self.made
    }

    pub(crate) fn cut(&mut self, from: usize, to: usize, until: Duration) {
        let known = self.cuts.entry((from, to)).or_default();
        *known = until.max(*known);
    }

    pub(crate) fn mend_all(&mut self) {
        self.cuts.clear();
    }

    pub(crate) fn is_cut(&self, from: usize, to: usize, now: Duration) -> bool {
        self.cuts.get(&(from, to)).is_some_and(|until| now < *until)
    }

    /// When something sent now arrives, at the earliest.
    pub(crate) fn arrival(&self, from: usize, to: usize, now: Duration, delay: Duration) -> Duration {
        self.cuts.get(&(from, to)).map_or(now, |until| now.max(*until)) + delay
    }
}
