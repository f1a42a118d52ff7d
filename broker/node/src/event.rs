//! What reaches the core thread. Clients' events come through an inbox of their own, so that nothing else waits behind them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::sync::{Notify, mpsc, oneshot};
use understudy_core::{
    AdminCommand, AmqpError, BacklogCursor, ChannelId, Command, ConnectionId, ConnectionInfo, Definitions, Effect,
    PartLoad,
};
use understudy_election::Stored;
use understudy_record::{Alarms, Body, Epoch, Frame, Index, Message, QueueId, ReplicaName};
use understudy_replication::{Acknowledge, Backlog, Hello, LeaseAnswer, PrimaryMessage, Session, StreamId, SyncId};

use crate::{AdminOutcomes, AdminReply, CheckpointEvent, Installed, Recovered, Settings, Writer};

#[derive(Debug)]
pub enum ClientEvent {
    Opened {
        id: ConnectionId,
        info: ConnectionInfo,
        outbox: Outbox,
        /// Whether it may: if not, it is not known here. Dropped without a word where the outbox says why.
        answer: oneshot::Sender<Result<(), AmqpError>>,
    },
    Commands {
        id: ConnectionId,
        commands: Vec<(ChannelId, Command)>,
    },
    /// The channel was closed by the connection's own grammar: its state goes, nothing is answered.
    ChannelFailed {
        id: ConnectionId,
        channel: ChannelId,
    },
    /// Part of a message that was being sent to the client is not to be had: the log is damaged, or the disk fails.
    Unreadable {
        id: ConnectionId,
        reason: String,
    },
    /// The client has read enough of what waited for it.
    Writable {
        id: ConnectionId,
    },
    Closed {
        id: ConnectionId,
    },
}

/// The core thread's way to a connection's task.
#[derive(Clone, Debug)]
pub struct Outbox {
    pub sender: mpsc::UnboundedSender<Outgoing>,
    /// Bytes handed over and not yet written to the socket. Bounds the sender: deliveries stop above a mark.
    pub pending_bytes: Arc<AtomicUsize>,
    /// Set by the core thread when it stopped deliveries; the task says [`ClientEvent::Writable`] once it has caught up.
    pub congested: Arc<AtomicBool>,
    /// Parts of large messages that came from this connection.
    pub upload: Arc<Upload>,
}

/// Parts of large messages that all connections together may have uncommitted, in bytes: enough for one batch to be written
/// while the next one comes in. Each connection may have one part beyond that, so that none starves. It is what a confirm of
/// another connection waits for at most, beside its own record.
const UPLOAD_BYTES: usize = 2 << 20;

/// Parts of large messages that one connection has handed over and that are not committed yet.
#[derive(Debug)]
pub struct Upload {
    bytes: AtomicUsize,
    /// Of all connections.
    total: Arc<AtomicUsize>,
    shrunk: Notify,
}

impl Upload {
    pub fn beside(total: &Arc<AtomicUsize>) -> Self {
        Self { bytes: AtomicUsize::new(0), total: total.clone(), shrunk: Notify::new() }
    }

    /// Nothing more is to be read until some of it is committed.
    pub fn is_full(&self) -> bool {
        self.bytes.load(Ordering::Acquire) > 0 && self.total.load(Ordering::Acquire) >= UPLOAD_BYTES
    }

    pub fn add(&self, bytes: usize) {
        self.bytes.fetch_add(bytes, Ordering::AcqRel);
        self.total.fetch_add(bytes, Ordering::AcqRel);
    }

    pub fn remove(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::AcqRel);
        self.total.fetch_sub(bytes, Ordering::AcqRel);
        self.shrunk.notify_one();
    }

    /// Something has been removed since this was last awaited.
    pub async fn shrunk(&self) {
        self.shrunk.notified().await;
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        // Nobody will take back what a role that ended has left.
        self.total.fetch_sub(self.bytes.load(Ordering::Acquire), Ordering::AcqRel);
    }
}

#[derive(Debug)]
pub enum Outgoing {
    Effects(Vec<Effect>),
    ChannelOpenOk(ChannelId),
    ChannelCloseOk(ChannelId),
    /// The broker closes: 320 with this text.
    Force(String),
}

#[derive(Debug)]
pub enum Event {
    Journal(JournalEvent),
    Follower(StreamId, FollowerEvent),
    Upstream(u64, UpstreamEvent),
    Lease(LeaseEvent),
    Control(ControlEvent),
    /// What this replica runs short of has changed.
    Alarms(Alarms),
    Settings(Settings),
    Checkpoint(CheckpointEvent),
    /// Messages that were read back for a queue; `None` for one that the log does not have.
    Loaded(Epoch, QueueId, Result<Vec<(Index, Option<Message>)>, String>),
    /// A part of a large message that was read; `None` if the log does not have it.
    PartLoaded(Epoch, PartLoad, Result<Option<Body>, String>),
}

#[derive(Debug)]
pub enum JournalEvent {
    Durable(Writer, Index),
    BaseCompleted(Session),
    Rebuilt(Box<Recovered>),
    Installed(Box<Installed>),
    Failed(String),
}

/// From one follower's stream, on the primary.
#[derive(Debug)]
pub enum FollowerEvent {
    /// Its first word. Dropping the sender ends the stream.
    Hello(Box<Hello>, mpsc::UnboundedSender<PrimaryMessage>),
    Acknowledge(Acknowledge),
    /// What the follower runs short of has changed.
    Alarms(Alarms),
    CaughtUp(Index),
    /// The follower's state was found to differ from the primary's, as of this record. It leaves, or comes back for a base.
    Inconsistent {
        follower: ReplicaName,
        at: Index,
        reason: String,
    },
    Leaving(String),
    LogRead {
        from: Index,
        frames: Result<Vec<Frame>, String>,
    },
    Backlog {
        request: BacklogRequest,
        reply: oneshot::Sender<Result<BacklogReply, String>>,
    },
    Closed,
}

#[derive(Clone, Copy, Debug)]
pub struct BacklogRequest {
    pub epoch: Epoch,
    pub sync_id: SyncId,
    pub queue: QueueId,
    /// How far the last chunk came.
    pub from: BacklogCursor,
}

#[derive(Debug)]
pub struct BacklogReply {
    pub as_of: Index,
    pub frames: Vec<Frame>,
    /// In `frames`, counted as the base counts a queue.
    pub messages: u64,
    pub bytes: u64,
    /// Where the next chunk goes on.
    pub next: BacklogCursor,
    pub done: bool,
}

/// What a backup says to its primary.
#[derive(Debug)]
pub enum ToPrimary {
    /// With the record by which this replica's state was found to differ from its primary's.
    Hello(Box<Hello>, Option<Index>),
    /// With what this replica runs short of.
    Acknowledge(Acknowledge, Alarms),
    CaughtUp(Index),
    /// Why; with the record by which the state was found to differ from the primary's, if that is why.
    Leaving(String, Option<Index>),
    Fetch {
        epoch: Epoch,
        sync_id: SyncId,
        queue: QueueId,
        from: BacklogCursor,
    },
}

/// From the connection to the primary, on a backup. The number is the connection's.
#[derive(Debug)]
pub enum UpstreamEvent {
    Connected(mpsc::UnboundedSender<ToPrimary>),
    Message(PrimaryMessage),
    /// With a word to be dropped, or said, once it is taken: the next comes after it.
    Backlog(Backlog, oneshot::Sender<()>),
    /// `reset`: the connection broke or was refused, rather than fell silent.
    Closed {
        reset: bool,
        reason: String,
    },
}

#[derive(Debug)]
pub enum LeaseEvent {
    /// The Lease as a watch, a read or an own election shows it.
    Seen(Stored),
    /// The answer to the keeper's request of that epoch.
    Answer(Epoch, LeaseAnswer),
}

#[derive(Debug)]
pub enum ControlEvent {
    HandOver {
        epoch: Epoch,
        to: Option<ReplicaName>,
        reply: oneshot::Sender<Result<(), String>>,
    },
    /// For the primary: all of them are carried out, and answered when they may be confirmed.
    Administer(Vec<AdminCommand>, AdminReply<AdminOutcomes>),
    /// `topology`: with exchanges, queues and bindings.
    ReadDefinitions {
        topology: bool,
        reply: AdminReply<Definitions>,
    },
    /// There is no Lease, and this replica says that it is the primary of that epoch.
    Follow(Epoch, ReplicaName),
    /// Leave in good order, then end.
    Shutdown,
}
