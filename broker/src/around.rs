//! The core thread's surroundings in a broker: the journal's thread, the checkpoints', the connection to the primary, reads of
//! the log, the Lease's store. It only passes on.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::mpsc::Sender;
use tokio::sync::oneshot;
use understudy_core::{Load, PartLoad};
use understudy_journal::{Flaw, LogReader};
use understudy_node::{
    BacklogReply, CheckpointId, CheckpointOrder, ChunkToSend, Event, FollowerEvent, Order, READ_BYTES, Surroundings,
    Target, read_messages, read_part,
};
use understudy_record::{Epoch, Frame, Index, ReplicaName};
use understudy_replication::{LeaseRequest, StreamId};

use crate::checkpoint_thread::CheckpointHandle;
use crate::config::Config;
use crate::journal_thread::JournalHandle;
use crate::lease_requests::LeaseRequests;
use crate::peers::{Bandwidth, Upstream};

pub(crate) struct Around {
    pub(crate) config: Arc<Config>,
    pub(crate) journal: JournalHandle,
    pub(crate) checkpoints: CheckpointHandle,
    pub(crate) upstream: Upstream,
    pub(crate) log_reads: LogReads,
    pub(crate) lease_requests: LeaseRequests,
    /// Told when the journal has marked the store as damaged.
    pub(crate) damage_noted: std::sync::mpsc::Sender<()>,
}

impl Surroundings for Around {
    fn order(&mut self, order: Order) {
        self.journal.order(order);
    }

    fn journal_stalled_for(&self) -> Duration {
        Duration::from_millis(self.journal.stalled_ms())
    }

    fn mark_flawed(&mut self, flaw: Flaw) {
        self.journal.order(Order::MarkFlawed(flaw, self.damage_noted.clone()));
    }

    fn checkpoint(&mut self, id: CheckpointId, order: CheckpointOrder) {
        self.checkpoints.order(id, order);
    }

    fn has_room_for_pieces(&self) -> bool {
        self.checkpoints.has_room()
    }

    fn give_up_checkpoint(&mut self, id: CheckpointId) {
        self.checkpoints.give_up(id);
    }

    fn address_of(&self, replica: &ReplicaName) -> Option<String> {
        self.config.address_of(replica)
    }

    fn dial(&mut self, target: Target) -> u64 {
        self.upstream.dial(target)
    }

    fn hang_up(&mut self) {
        self.upstream.close();
    }

    fn read_log(&mut self, stream: StreamId, from: Index, is_backlog: bool) {
        self.log_reads.read(stream, from, is_backlog);
    }

    fn load(&mut self, epoch: Epoch, load: Load) {
        self.log_reads.load(epoch, load);
    }

    fn load_part(&mut self, epoch: Epoch, load: PartLoad) {
        self.log_reads.load_part(epoch, load);
    }

    fn read_backlog(&mut self, chunk: ChunkToSend, reply: oneshot::Sender<Result<BacklogReply, String>>) {
        self.log_reads.backlog(chunk, reply);
    }

    fn request_lease(&mut self, epoch: Epoch, request: LeaseRequest) {
        self.lease_requests.send(epoch, request);
    }
}

/// Reads of the journal beside the core thread.
pub(crate) struct LogReads {
    reader: LogReader,
    events: Sender<Event>,
    runtime: Handle,
    catch_ups: Arc<Bandwidth>,
}

impl LogReads {
    /// `catch_ups`: what those may take.
    pub(crate) fn new(reader: LogReader, events: Sender<Event>, runtime: Handle, catch_ups: Arc<Bandwidth>) -> Self {
        Self { reader, events, runtime, catch_ups }
    }

    /// `is_backlog`: within the bandwidth of catch-ups.
    pub(crate) fn read(&self, stream: StreamId, from: Index, is_backlog: bool) {
        let limit = is_backlog.then(|| self.catch_ups.clone());
        let (mut reader, events) = (self.reader.clone(), self.events.clone());
        self.runtime.spawn_blocking(move || {
            let frames = reader.read_from(from, READ_BYTES).map_err(|error| error.to_string());
            if let (Some(limit), Ok(frames)) = (limit, &frames) {
                limit.pass_blocking(frames.iter().map(Frame::len).sum());
            }
            _ = events.blocking_send(Event::Follower(stream, FollowerEvent::LogRead { from, frames }));
        });
    }

    /// For the primary of `epoch`. Answers with [`Event::Loaded`].
    pub(crate) fn load(&self, epoch: Epoch, load: Load) {
        let (mut reader, events) = (self.reader.clone(), self.events.clone());
        self.runtime.spawn_blocking(move || {
            let messages = read_messages(&mut reader, &load.indexes);
            _ = events.blocking_send(Event::Loaded(epoch, load.queue, messages));
        });
    }

    /// The same for a part of a large message. Answers with [`Event::PartLoaded`].
    fn load_part(&self, epoch: Epoch, load: PartLoad) {
        let (mut reader, events) = (self.reader.clone(), self.events.clone());
        self.runtime.spawn_blocking(move || {
            let body = read_part(&mut reader, load.part.index);
            _ = events.blocking_send(Event::PartLoaded(epoch, load, body));
        });
    }

    /// Makes a backlog's pieces, with what is not in memory read from the log, and hands them over.
    pub(crate) fn backlog(&self, chunk: ChunkToSend, reply: oneshot::Sender<Result<BacklogReply, String>>) {
        let mut reader = self.reader.clone();
        self.runtime.spawn_blocking(move || {
            _ = reply.send(chunk.fill(&mut reader));
        });
    }
}
