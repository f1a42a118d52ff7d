//! The core thread: one loop that waits, turns what happened into steps of the pure crates, and carries out their outputs.
//!
//! It owns the core's state and the replication role; nothing else touches them and there is no lock. It never blocks:
//! sockets, the disk and the API server are other tasks' business. Every batch of events ends in [`Node::settle`], which
//! turns records into frames once and hands the same frames to the journal and to the followers.

mod backup;
mod checkpoint;
mod clients;
mod event;
mod primary;
mod status;
mod versions;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use tokio::sync::{mpsc, watch};
use understudy_core::{ConnectionId, Core, Load, Outputs};
use understudy_election::{Lease, Version};
use understudy_record::version::VersionRange;
use understudy_record::{Epoch, Frame, Identity, Index, Message, Position, QueueId};
use understudy_replication::{Backup, BackupConfig};

pub(crate) use checkpoint::{CheckpointEvent, Installed};
pub(crate) use clients::cost as effect_cost;
pub(crate) use event::{
    BacklogReply, BacklogRequest, ClientEvent, ControlEvent, Event, FollowerEvent, JournalEvent, LeaseEvent, Outbox,
    Outgoing, ToPrimary, Upload, UpstreamEvent,
};
pub(crate) use status::{CheckpointCounts, Door, Flow, NodeStatus, RoleStatus, Shared};

use crate::checkpoint_thread::CheckpointHandle;
use crate::config::Config;
use crate::journal_thread::{JournalHandle, Order, Writer};
use crate::lease_requests::LeaseRequests;
use crate::peers::{LogReads, Upstream};
use crate::recorded_sets::RecordedSets;
use crate::recovery::Recovered;
use crate::resources::Alarms;

/// How often the loop looks at its clocks when nothing happens.
const TICK: Duration = Duration::from_millis(20);

/// Events taken in one go. What a batch leads to is written and sent once, so larger batches cost less each; smaller
/// ones answer sooner.
const EVENT_BATCH: usize = 256;
const CLIENT_BATCH: usize = 64;

/// The arena for frames' small parts grows by so much at a time.
const ARENA_BYTES: usize = 256 << 10;
const ARENA_RESERVE_BYTES: usize = 1 << 10;

/// What a message in memory takes beside its body and properties, in bytes: its names, its bookkeeping, its share of the
/// buffer that it came in.
const MESSAGE_OVERHEAD_BYTES: u64 = 512;

/// How long an orderly end may take, after which the process ends all the same.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long the end of a process that has found damage waits for the disk to remember it.
const MARK_TIMEOUT: Duration = Duration::from_secs(1);

/// How this process stands to the log.
enum Role {
    /// The journal is being read again; what arrives is dropped.
    Recovering,
    Backup(Box<backup::BackupRole>),
    Primary(Box<primary::PrimaryRole>),
}

pub(crate) struct Node {
    config: Arc<Config>,
    me: Identity,
    started: Instant,
    core: Core,
    out: Outputs,
    arena: BytesMut,
    role: Role,
    journal: JournalHandle,
    upstream: Upstream,
    log_reads: LogReads,
    lease_requests: LeaseRequests,
    clients: HashMap<ConnectionId, clients::Client>,
    /// Parts of large messages that are not committed yet, in order, whose they are and their bytes.
    uploads: VecDeque<(Index, ConnectionId, usize)>,
    /// The newest Lease seen.
    lease: Option<(Lease, Version)>,
    recorded_sets: RecordedSets,
    checkpoints: checkpoint::Checkpoints,
    /// What queues want back and this replica has not written yet; the core bounds it.
    loads: Vec<Load>,
    /// What this replica runs short of.
    alarms: Alarms,
    shared: Arc<Shared>,
    /// Since when this process has been on its way out.
    leaving: Option<Duration>,
    /// Why this replica takes part in nothing before it gets another build.
    needs_upgrade: Option<String>,
    ended: bool,
    /// Ends when the journal has marked the store as damaged.
    damage_noted: Option<std::sync::mpsc::Receiver<()>>,
    /// The last step ended with messages that could be handed out at once.
    more_to_deliver: bool,
    /// The last step ended with bodies that could leave memory at once.
    more_to_evict: bool,
    now: Duration,
    /// Milliseconds since the start at the last turn of the loop; liveness is that this moves.
    heartbeat: Arc<AtomicU64>,
}

/// What the node is made of.
pub(crate) struct NodeParts {
    pub(crate) config: Arc<Config>,
    pub(crate) me: Identity,
    pub(crate) started: Instant,
    pub(crate) journal: JournalHandle,
    pub(crate) checkpoints: CheckpointHandle,
    /// Of the log as it was found.
    pub(crate) log_bytes: u64,
    pub(crate) upstream: Upstream,
    pub(crate) log_reads: LogReads,
    pub(crate) lease_requests: LeaseRequests,
    pub(crate) shared: Arc<Shared>,
    pub(crate) heartbeat: Arc<AtomicU64>,
}

impl Node {
    pub(crate) fn new(parts: NodeParts, recovered: Recovered) -> Self {
        let interval = parts.config.checkpoint_bytes;
        let mut node = Self {
            config: parts.config,
            me: parts.me,
            started: parts.started,
            core: Core::new(0),
            out: Outputs::default(),
            arena: BytesMut::with_capacity(ARENA_BYTES),
            role: Role::Recovering,
            journal: parts.journal,
            upstream: parts.upstream,
            log_reads: parts.log_reads,
            lease_requests: parts.lease_requests,
            clients: HashMap::new(),
            uploads: VecDeque::new(),
            lease: None,
            recorded_sets: RecordedSets::default(),
            checkpoints: checkpoint::Checkpoints::new(parts.checkpoints, interval, parts.log_bytes),
            loads: Vec::new(),
            alarms: Alarms::default(),
            shared: parts.shared,
            leaving: None,
            needs_upgrade: None,
            ended: false,
            damage_noted: None,
            more_to_deliver: false,
            more_to_evict: false,
            now: Duration::ZERO,
            heartbeat: parts.heartbeat,
        };
        node.now = node.started.elapsed();
        node.become_backup(recovered);
        node
    }

    /// Runs until the process is to end.
    pub(crate) async fn run(mut self, mut events: mpsc::Receiver<Event>, mut clients: mpsc::Receiver<ClientEvent>) {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut event_batch = Vec::with_capacity(EVENT_BATCH);
        let mut client_batch = Vec::with_capacity(CLIENT_BATCH);
        while !self.ended {
            let mut ticked = false;
            tokio::select! {
                biased;
                _ = tick.tick() => ticked = true,
                count = events.recv_many(&mut event_batch, EVENT_BATCH) => if count == 0 { break },
                count = clients.recv_many(&mut client_batch, CLIENT_BATCH) => if count == 0 { break },
                () = std::future::ready(()), if self.has_work() => {}
            }
            // Whatever has come is heard before a clock is looked at: after a pause of this process itself, peers that
            // spoke meanwhile are not silent.
            while event_batch.len() < EVENT_BATCH
                && let Ok(event) = events.try_recv()
            {
                event_batch.push(event);
            }
            while client_batch.len() < CLIENT_BATCH
                && let Ok(event) = clients.try_recv()
            {
                client_batch.push(event);
            }
            self.now = self.started.elapsed();
            self.heartbeat.store(self.now.as_millis() as u64, Ordering::Relaxed);
            event_batch.drain(..).for_each(|event| self.handle(event));
            client_batch.drain(..).for_each(|event| self.handle_client(event));
            if ticked {
                self.handle_tick();
            }
            self.settle();
            if ticked {
                self.publish_status();
            }
        }
        self.publish_status();
        if let Some(noted) = self.damage_noted {
            _ = noted.recv_timeout(MARK_TIMEOUT); // the loop is over: nobody waits for this thread
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Journal(event) => self.handle_journal(event),
            Event::Follower(stream, event) => self.handle_follower(stream, event),
            Event::Upstream(link, event) => self.handle_upstream(link, event),
            Event::Lease(LeaseEvent::Seen(seen)) => self.handle_lease_seen(seen),
            Event::Lease(LeaseEvent::Answer(epoch, answer)) => self.handle_lease_answer(epoch, answer),
            Event::Control(ControlEvent::HandOver { epoch, to, reply }) => {
                _ = reply.send(self.hand_over(epoch, to));
            }
            Event::Control(ControlEvent::Shutdown) => self.leave(),
            // As primary it counts at the end of this batch; as backup it goes with the next acknowledgement.
            Event::Alarms(alarms) => self.alarms = alarms,
            Event::Checkpoint(event) => self.handle_checkpoint(event),
            Event::Loaded(epoch, queue, messages) => self.handle_loaded(epoch, queue, messages),
        }
    }

    fn handle_journal(&mut self, event: JournalEvent) {
        match event {
            JournalEvent::Durable(Writer::Primary(epoch), index) => {
                if let Role::Primary(role) = &mut self.role {
                    role.primary.handle_durable(self.now, epoch, index, &mut role.outputs);
                }
            }
            JournalEvent::Durable(Writer::Backup(session), index) => {
                self.with_backup(|backup, _, out| {
                    backup.handle_durable(session, index, out);
                    Ok(())
                });
            }
            JournalEvent::BaseCompleted(session) => self.with_backup(|backup, _, out| {
                backup.handle_base_completed(session, out);
                Ok(())
            }),
            JournalEvent::Rebuilt(recovered) => self.become_backup(*recovered),
            JournalEvent::Installed(installed) => self.handle_installed(*installed),
            JournalEvent::Failed(reason) => self.end_role(reason),
        }
    }

    /// Something in the log cannot be read back. The store is marked, so that this replica's next process is not counted on
    /// before it has fetched everything anew.
    pub(super) fn end_role_damaged(&mut self, reason: String) {
        let (noted, done) = std::sync::mpsc::channel();
        self.journal.order(Order::MarkDamaged(noted));
        self.damage_noted = Some(done);
        self.end_role(reason);
    }

    /// The disk does not do what it must: nothing is acknowledged any more, and another replica takes over.
    fn end_role(&mut self, reason: String) {
        tracing::error!("{reason}");
        self.shared.set_failure(reason);
        self.close_clients("the broker's journal failed");
        self.ended = true;
    }

    /// Messages that were read back. One that a queue holds and the log does not have is damage that no checksum tells.
    fn handle_loaded(&mut self, epoch: Epoch, queue: QueueId, messages: Result<Vec<(Index, Option<Message>)>, String>) {
        if !matches!(&self.role, Role::Primary(role) if role.primary.epoch() == epoch) {
            return; // of a role that is over: the log may have been cut or replaced while it was read
        }
        let messages = match messages {
            Ok(messages) => messages,
            Err(reason) => return self.end_role_damaged(format!("messages cannot be read back: {reason}")),
        };
        let missing = messages.iter().find(|(index, message)| message.is_none() && self.core.holds(queue, *index));
        if let Some((index, _)) = missing {
            let reason = format!("message {index} of queue {queue} is not in the log: the log is damaged");
            return self.end_role_damaged(reason);
        }
        let there = messages.into_iter().filter_map(|(index, message)| Some((index, message?))).collect();
        self.core.handle_loaded(queue, there, &mut self.out);
    }

    /// The Lease as it is now seen: this process may be the primary, or no longer, or have another to follow.
    fn handle_lease_seen(&mut self, seen: Option<(Lease, Version)>) {
        if let (Some((new, _)), Some((known, _))) = (&seen, &self.lease)
            && new.epoch() < known.epoch()
        {
            return; // an old state, from a watch that lags
        }
        self.lease = seen;
        self.publish_status();
        match &self.role {
            Role::Primary(_) => self.show_lease_to_keeper(),
            Role::Backup(_) => self.follow_lease(),
            Role::Recovering => {}
        }
    }

    fn handle_tick(&mut self) {
        match &mut self.role {
            Role::Recovering => {}
            Role::Primary(_) => self.tick_primary(),
            Role::Backup(_) => self.tick_backup(),
        }
        self.end_if_left();
        if let Some(since) = self.leaving {
            let overdue = self.now.saturating_sub(since) >= LEAVE_TIMEOUT;
            if overdue {
                tracing::warn!("nobody took over within {} s: ending all the same", LEAVE_TIMEOUT.as_secs());
            }
            self.ended |= overdue;
        }
    }

    /// A backup that leaves may go once the set in force does not count on it.
    fn end_if_left(&mut self) {
        let counted = self.lease.as_ref().is_none_or(|(lease, _)| lease.entry_of(&self.me).is_some());
        if self.leaving.is_some() && matches!(self.role, Role::Backup(_)) && !counted {
            tracing::info!("left the in-sync set");
            self.ended = true;
        }
    }

    /// Carries out what the batch led to, until nothing more follows from it.
    fn settle(&mut self) {
        self.more_to_deliver = self.is_primary() && self.core.deliver(&mut self.out);
        loop {
            self.order_loads();
            self.write_records();
            if !self.carry_out_primary() {
                break;
            }
            self.dispatch_effects(); // who does not read is known before more is handed out
            self.more_to_deliver = self.is_primary() && self.core.deliver(&mut self.out);
        }
        self.poll_keeper();
        self.dispatch_effects();
        self.order_loads();
        if let Role::Primary(role) = &self.role {
            let around = self.core.resident_messages().saturating_mul(MESSAGE_OVERHEAD_BYTES);
            let budget = self.config.memory_budget.saturating_sub(around);
            self.more_to_evict = self.core.evict(role.primary.own_durable(), budget);
        }
        self.drive_checkpoint();
    }

    /// Something could be done at once, without anything happening.
    fn has_work(&self) -> bool {
        self.is_primary() && (self.more_to_deliver || self.more_to_evict) || self.checkpoints.wants_slice()
    }

    /// Messages that queues want back are read beside this thread, once they are in the log: with `durability: Replicated`
    /// what is committed may still be on its way there.
    fn order_loads(&mut self) {
        self.loads.append(&mut self.out.loads);
        let Role::Primary(role) = &self.role else { return self.loads.clear() };
        let (epoch, written) = (role.primary.epoch(), role.primary.own_durable());
        for load in self.loads.extract_if(.., |load| load.indexes.last().is_none_or(|last| *last <= written)) {
            self.log_reads.load(epoch, load);
        }
    }

    fn is_primary(&self) -> bool {
        matches!(self.role, Role::Primary(_))
    }

    /// Records that the core has made become frames: the same for the journal and for the followers.
    fn write_records(&mut self) {
        if self.out.records.is_empty() {
            return;
        }
        let Role::Primary(role) = &mut self.role else {
            panic!("{} records were made by a replica that is no primary", self.out.records.len());
        };
        let (epoch, committed) = (role.primary.epoch(), role.primary.committed());
        let arena = &mut self.arena;
        let frames: Vec<Frame> = self
            .out
            .records
            .drain(..)
            .map(|(index, record)| {
                if arena.capacity() < ARENA_RESERVE_BYTES {
                    arena.reserve(ARENA_BYTES);
                }
                Frame::record(Position { epoch, index }, committed, &record, arena)
            })
            .collect();
        versions::check_writable(&frames, role.primary.cluster_version());
        self.checkpoints.note_written(frames.iter().map(Frame::len).sum());
        self.journal.order(Order::Append(Writer::Primary(epoch), frames.clone()));
        role.primary.handle_appended(self.now, &frames, &mut role.outputs);
        self.note_sets(&frames);
    }

    /// Leaves in good order: a primary hands over first, a backup says so.
    fn leave(&mut self) {
        if self.leaving.is_some() {
            return;
        }
        self.leaving = Some(self.now);
        match &self.role {
            Role::Primary(role) => {
                let epoch = role.primary.epoch();
                match self.hand_over(epoch, None) {
                    Ok(()) => tracing::info!("leaving: handing over"),
                    Err(reason) => {
                        tracing::warn!("leaving without a successor: {reason}");
                        self.close_clients("the broker is shutting down");
                        self.ended = true;
                    }
                }
            }
            Role::Backup(_) => self.leave_as_backup(),
            Role::Recovering => self.ended = true,
        }
    }

    fn become_backup(&mut self, recovered: Recovered) {
        if self.leaving.is_some() {
            self.ended = true;
            return;
        }
        let config = BackupConfig {
            me: self.me.clone(),
            replicated_only: self.config.replicated_only(),
            backup_timeout: self.config.backup_timeout,
            knows: VersionRange::OWN,
        };
        let Recovered { core, log, recorded_sets } = recovered;
        tracing::info!(last = %log.history.last(), applied = %log.applied, epoch = %log.known_epoch, "log read");
        let backup = Backup::new(self.now, config, log);
        self.core = core;
        self.recorded_sets = recorded_sets;
        self.out = Outputs::default();
        self.role = Role::Backup(Box::new(backup::BackupRole::new(backup)));
        self.follow_lease();
        self.publish_status();
    }

    /// Gives up what ran ahead of the commit: the state is read from the journal again.
    fn recover(&mut self) {
        self.upstream.close();
        self.give_up_checkpoint();
        self.uploads.clear(); // their connections are closed
        self.role = Role::Recovering;
        self.core = Core::new(0);
        self.out = Outputs::default();
        self.loads.clear();
        self.journal.order(Order::Rebuild { seed: self.config.seed });
        self.publish_status();
    }

    /// What the frames say of the set, for a recovery without a Lease (rule 7).
    fn note_sets(&mut self, frames: &[Frame]) {
        frames.iter().for_each(|frame| self.recorded_sets.note(frame));
    }

    fn apply(&mut self, frames: &[Frame]) -> Result<(), String> {
        for frame in frames {
            let index = frame.position.index;
            let record = frame.decode_record().map_err(|error| format!("record {index}: {error}"))?;
            self.core.apply(index, &record).map_err(|error| format!("record {index}: {error}"))?;
        }
        Ok(())
    }

    fn epoch(&self) -> Epoch {
        match &self.role {
            Role::Primary(role) => role.primary.epoch(),
            Role::Backup(role) => role.backup.known_epoch(),
            Role::Recovering => Epoch(0),
        }
    }

    fn last(&self) -> Position {
        match &self.role {
            Role::Primary(role) => role.primary.last(),
            Role::Backup(role) => role.backup.history().last(),
            Role::Recovering => Position { epoch: Epoch(0), index: Index(0) },
        }
    }
}

/// Starts the core thread: a runtime of one thread, with nothing on it but the loop.
pub(crate) fn spawn(
    parts: NodeParts,
    recovered: Recovered,
    events: mpsc::Receiver<Event>,
    clients: mpsc::Receiver<ClientEvent>,
    ended: watch::Sender<bool>,
) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    std::thread::Builder::new().name("core".into()).spawn(move || {
        runtime.block_on(Node::new(parts, recovered).run(events, clients));
        _ = ended.send(true);
    })?;
    Ok(())
}
