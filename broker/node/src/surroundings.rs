//! What a node needs done: by threads and tasks in a broker, by a simulation in its own time. Everything here returns at once;
//! answers come back as [`Event`](crate::Event)s.

use std::time::Duration;

use tokio::sync::oneshot;
use understudy_core::{Load, PartLoad};
use understudy_journal::Flaw;
use understudy_record::{Epoch, Index, ReplicaName};
use understudy_replication::{LeaseRequest, StreamId};

use crate::{BacklogReply, CheckpointId, CheckpointOrder, ChunkToSend, Order};

/// Whom the Lease names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    pub epoch: Epoch,
    pub name: ReplicaName,
    pub address: String,
}

pub trait Surroundings: Send {
    /// To the journal, which carries orders out one after the other and reports with
    /// [`JournalEvent`](crate::JournalEvent)s. After a failure it drops them: the failure has been reported.
    fn order(&mut self, order: Order);

    /// How long the journal has been at its present batch; zero when there is none.
    fn journal_stalled_for(&self) -> Duration;

    /// The store is to remember that it is not to be counted on. The process ends after this, and waits a moment for it.
    fn mark_flawed(&mut self, flaw: Flaw);

    /// To the maker of checkpoints.
    fn checkpoint(&mut self, id: CheckpointId, order: CheckpointOrder);

    /// Whether it would take up pieces soon.
    fn has_room_for_pieces(&self) -> bool;

    /// Work on it, and on those before it, ends soon, and what was written goes.
    fn give_up_checkpoint(&mut self, id: CheckpointId);

    /// Where a replica is; `None` if it is not one of the cluster's.
    fn address_of(&self, replica: &ReplicaName) -> Option<String>;

    /// Connects to the primary and gives up any earlier connection. Returns the new one's number, which its events carry.
    fn dial(&mut self, target: Target) -> u64;

    /// Ends the connection to the primary, without an event.
    fn hang_up(&mut self);

    /// Reads the log for a follower; answered with [`FollowerEvent::LogRead`](crate::FollowerEvent). `is_backlog`: within the
    /// bandwidth of catch-ups.
    fn read_log(&mut self, stream: StreamId, from: Index, is_backlog: bool);

    /// Reads messages back for the primary of `epoch`; answered with [`Event::Loaded`](crate::Event).
    fn load(&mut self, epoch: Epoch, load: Load);

    /// Reads a part of a large message for the primary of `epoch`; answered with [`Event::PartLoaded`](crate::Event).
    fn load_part(&mut self, epoch: Epoch, load: PartLoad);

    /// Makes a backlog's pieces, with what is not in memory read from the log.
    fn read_backlog(&mut self, chunk: ChunkToSend, reply: oneshot::Sender<Result<BacklogReply, String>>);

    /// To the Lease's store, for the primary of `epoch`; answered with [`LeaseEvent::Answer`](crate::LeaseEvent).
    fn request_lease(&mut self, epoch: Epoch, request: LeaseRequest);
}
