//! A node's surroundings in a simulation: what it asks for is noted, and the world carries it out in its own time.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use understudy_core::{Load, PartLoad};
use understudy_journal::Flaw;
use understudy_node::{BacklogReply, CheckpointId, CheckpointOrder, ChunkToSend, Order, Surroundings, Target};
use understudy_record::{Epoch, Index, ReplicaName};
use understudy_replication::{LeaseRequest, StreamId};

/// Pieces of checkpoints that may wait.
const CHECKPOINT_INBOX: usize = 8;

#[derive(Debug)]
pub(crate) enum Act {
    Order(Order),
    Checkpoint(CheckpointId, CheckpointOrder),
    Dial(u64, Target),
    HangUp,
    ReadLog(StreamId, Index),
    Load(Epoch, Load),
    LoadPart(Epoch, PartLoad),
    Backlog(ChunkToSend, oneshot::Sender<Result<BacklogReply, String>>),
    Lease(Epoch, LeaseRequest),
}

/// What node and world share.
#[derive(Debug, Default)]
pub(crate) struct Shelf {
    pub(crate) acts: Vec<Act>,
    pub(crate) stalled_for: Duration,
    pub(crate) waiting_checkpoints: usize,
    /// Checkpoints up to this one were given up.
    pub(crate) given_up: u64,
    pub(crate) flaw: Option<Flaw>,
    next_link: u64,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct SimAround(Arc<Mutex<Shelf>>);

impl SimAround {
    pub(crate) fn shelf(&self) -> MutexGuard<'_, Shelf> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Surroundings for SimAround {
    fn order(&mut self, order: Order) {
        self.shelf().acts.push(Act::Order(order));
    }

    fn journal_stalled_for(&self) -> Duration {
        self.shelf().stalled_for
    }

    fn mark_flawed(&mut self, flaw: Flaw) {
        self.shelf().flaw = Some(flaw);
    }

    fn checkpoint(&mut self, id: CheckpointId, order: CheckpointOrder) {
        let mut shelf = self.shelf();
        shelf.waiting_checkpoints += 1;
        shelf.acts.push(Act::Checkpoint(id, order));
    }

    fn has_room_for_pieces(&self) -> bool {
        self.shelf().waiting_checkpoints < CHECKPOINT_INBOX
    }

    fn give_up_checkpoint(&mut self, id: CheckpointId) {
        let mut shelf = self.shelf();
        shelf.given_up = shelf.given_up.max(id.0);
        drop(shelf);
        self.checkpoint(id, CheckpointOrder::GiveUp);
    }

    fn address_of(&self, replica: &ReplicaName) -> Option<String> {
        Some(replica.to_string())
    }

    fn dial(&mut self, target: Target) -> u64 {
        let mut shelf = self.shelf();
        shelf.next_link += 1;
        let link = shelf.next_link;
        shelf.acts.push(Act::HangUp);
        shelf.acts.push(Act::Dial(link, target));
        link
    }

    fn hang_up(&mut self) {
        self.shelf().acts.push(Act::HangUp);
    }

    fn read_log(&mut self, stream: StreamId, from: Index, _: bool) {
        self.shelf().acts.push(Act::ReadLog(stream, from));
    }

    fn load(&mut self, epoch: Epoch, load: Load) {
        self.shelf().acts.push(Act::Load(epoch, load));
    }

    fn load_part(&mut self, epoch: Epoch, load: PartLoad) {
        self.shelf().acts.push(Act::LoadPart(epoch, load));
    }

    fn read_backlog(&mut self, chunk: ChunkToSend, reply: oneshot::Sender<Result<BacklogReply, String>>) {
        self.shelf().acts.push(Act::Backlog(chunk, reply));
    }

    fn request_lease(&mut self, epoch: Epoch, request: LeaseRequest) {
        self.shelf().acts.push(Act::Lease(epoch, request));
    }
}
