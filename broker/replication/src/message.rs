//! What primary and backup say to each other, as domain values. Their gRPC form is the shell's business.

use understudy_record::version::{ClusterVersion, VersionRange};
use understudy_record::{BacklogCursor, Epoch, Frame, Identity, Index, Position, QueueId};

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
    /// The base that is not whole, if it may go on: `history` and `first` are then of the log that is being filled.
    pub half_base: Option<HalfBase>,
}

/// A base that a break of the connection has left unfinished. An epoch has one primary, one process: the two numbers name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HalfBase {
    pub epoch: Epoch,
    pub sync_id: SyncId,
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
    Waiting(Waiting),
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
    /// A base comes next, at once or after those of others.
    Base,
    /// The base that the hello named goes on: the records after the hello's last one come next, and the backlog is to be
    /// fetched from where it was left.
    SameBase(SyncId),
}

/// Others' bases come first: a heartbeat for who waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Waiting {
    pub epoch: Epoch,
    /// 1: the next.
    pub place: u64,
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
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Backlog {
    pub sync_id: SyncId,
    pub queue: QueueId,
    /// Where it goes on, and where the next one will.
    pub from: BacklogCursor,
    pub next: BacklogCursor,
    /// It shows effects of records up to there.
    pub as_of: Index,
    pub frames: Vec<Frame>,
    /// What it holds, counted as [`BacklogQueue`] counts.
    pub messages: u64,
    pub bytes: u64,
    /// Nothing of the queue is left.
    pub done: bool,
}
