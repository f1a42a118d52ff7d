//! What primary and backup say to each other, as domain values. Their gRPC form is the shell's business.

use understudy_record::version::{ClusterVersion, VersionRange};
use understudy_record::{Epoch, Frame, Identity, Index, Position, QueueId};

use crate::history::History;

/// A backup's first word.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Hello {
    pub follower: Identity,
    /// The highest epoch it has made durable (rule 2).
    pub epoch: Epoch,
    pub history: History,
    /// First index its log holds as records; what came before is in its base.
    pub first: Index,
    /// How far it has applied, or its base's floor: its log cannot be cut below this.
    pub floor: Index,
    /// False while its log is a base that is not whole.
    pub clean: bool,
    /// The cluster's versions that its build knows.
    pub knows: VersionRange,
}

/// From the backup, as its journal goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Acknowledge {
    pub epoch: Epoch,
    pub durable: Index,
    pub received: Index,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum PrimaryMessage {
    Welcome(Welcome),
    Records(Records),
    Refusal(Refusal),
    Base(Base),
    /// The cluster's version is this from here on: records that it brought may follow.
    Version(ClusterVersion),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Welcome {
    pub epoch: Epoch,
    pub primary: Identity,
    /// The cluster's.
    pub version: ClusterVersion,
    pub resume: Resume,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Resume {
    /// Cut the log after this index; the records that follow come next.
    After(Index),
    /// A base comes next.
    Base,
}

/// The log from one index on. No frames: a heartbeat.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Records {
    pub epoch: Epoch,
    pub committed: Index,
    pub frames: Vec<Frame>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Refusal {
    /// The answerer's own epoch.
    pub epoch: Epoch,
    pub reason: String,
}

/// One catch-up, numbered by the primary's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SyncId(pub u64);

/// The topology as of the sync point, and what backlog there is to fetch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Base {
    pub epoch: Epoch,
    pub sync_id: SyncId,
    pub sync_point: Position,
    pub frames: Vec<Frame>,
    pub queues: Vec<BacklogQueue>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BacklogQueue {
    pub queue: QueueId,
    pub messages: u64,
    pub bytes: u64,
}

/// A part of one queue's backlog, newest message first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backlog {
    pub sync_id: SyncId,
    pub queue: QueueId,
    /// It shows effects of records up to there.
    pub as_of: Index,
    pub frames: Vec<Frame>,
    /// Nothing of the queue is left.
    pub done: bool,
}
