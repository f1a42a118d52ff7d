//! One replica's loop body: it owns the core's state and the replication role, turns what happened into steps of the pure
//! crates, and carries out their outputs through its [`Surroundings`]. It never blocks and there is no lock. Every batch of
//! events ends in [`Node::settle`], which turns records into frames once and hands the same frames to the journal and to the
//! followers.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use understudy_core::{ConnectionId, Core, KEY_BYTES, Load, Outputs, PartLoad, Time};
use understudy_election::{Incarnation, Lease, Stored, Version};
use understudy_journal::Flaw;
use understudy_record::version::VersionRange;
use understudy_record::{Alarms, Body, Epoch, Frame, Identity, Index, Message, Position, QueueId};
use understudy_replication::{Backup, BackupConfig};

use crate::config::Settings;
use crate::lease_order::LeaseOrder;
use crate::recorded_sets::RecordedSets;
use crate::{
    ControlEvent, Event, JournalEvent, LeaseEvent, NodeConfig, Order, Recovered, Shared, Surroundings, Writer, backup,
    checkpoint, clients, primary, scrub, versions,
};

/// The arena for frames' small parts grows by so much at a time.
const ARENA_BYTES: usize = 256 << 10;
const ARENA_RESERVE_BYTES: usize = 1 << 10;

/// What a message in memory takes beside its body and properties, in bytes: its names, its bookkeeping, its share of the
/// buffer that it came in.
const MESSAGE_OVERHEAD_BYTES: u64 = 512;

/// How long an orderly end may take, after which the process ends all the same.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(10);

/// How this process stands to the log.
pub(crate) enum Role {
    /// The journal is being read again; what arrives is dropped.
    Recovering,
    Backup(Box<backup::BackupRole>),
    Primary(Box<primary::PrimaryRole>),
}

pub struct Node {
    pub(crate) config: NodeConfig,
    pub(crate) me: Identity,
    pub(crate) core: Core,
    pub(crate) out: Outputs,
    arena: BytesMut,
    pub(crate) role: Role,
    pub(crate) around: Box<dyn Surroundings>,
    pub(crate) clients: BTreeMap<ConnectionId, clients::Client>,
    /// Parts of large messages that are not committed yet, in order, whose they are and their bytes.
    pub(crate) uploads: VecDeque<(Index, ConnectionId, usize)>,
    /// The newest Lease seen.
    pub(crate) lease: Option<(Lease, Version)>,
    /// The blank Lease that is there instead, as was last seen.
    pub(crate) blank_seen: Option<Incarnation>,
    pub(crate) lease_order: LeaseOrder,
    pub(crate) recorded_sets: RecordedSets,
    pub(crate) checkpoints: checkpoint::Checkpoints,
    /// What queues want back and this replica has not written yet; the core bounds it.
    loads: Vec<Load>,
    pub(crate) scrubber: scrub::Scrubber,
    pub(crate) agreement: scrub::Agreement,
    /// What this replica runs short of.
    pub(crate) alarms: Alarms,
    pub(crate) shared: Arc<Shared>,
    /// Since when this process has been on its way out.
    pub(crate) leaving: Option<Duration>,
    /// Why this replica takes part in nothing before it gets another build.
    pub(crate) needs_upgrade: Option<String>,
    pub(crate) ended: bool,
    /// The last step ended with messages that could be handed out at once.
    more_to_deliver: bool,
    /// The last step ended with bodies that could leave memory at once.
    more_to_evict: bool,
    pub(crate) now: Duration,
    pub(crate) time: Time,
}

impl Node {
    /// `log_bytes`: of the log as it was found. `now`: as of every later turn, since any fixed moment.
    pub fn new(
        now: Duration,
        config: NodeConfig,
        me: Identity,
        around: Box<dyn Surroundings>,
        shared: Arc<Shared>,
        recovered: Recovered,
        log_bytes: u64,
    ) -> Self {
        let interval = config.checkpoint_bytes;
        let scrubber = scrub::Scrubber::new(config.scrub_interval);
        let mut node = Self {
            config,
            me,
            core: Core::new(0),
            out: Outputs::default(),
            arena: BytesMut::with_capacity(ARENA_BYTES),
            role: Role::Recovering,
            around,
            clients: BTreeMap::new(),
            uploads: VecDeque::new(),
            lease: None,
            blank_seen: None,
            lease_order: LeaseOrder::default(),
            recorded_sets: RecordedSets::default(),
            checkpoints: checkpoint::Checkpoints::new(interval, log_bytes),
            loads: Vec::new(),
            scrubber,
            agreement: scrub::Agreement::default(),
            alarms: Alarms::default(),
            shared,
            leaving: None,
            needs_upgrade: None,
            ended: false,
            more_to_deliver: false,
            more_to_evict: false,
            now,
            time: Time { wall_ms: 0, steady: now },
        };
        node.become_backup(recovered);
        node
    }

    /// A turn begins. Whatever has come is to be handled before the clocks are looked at ([`Node::tick`]): after a pause of
    /// this process itself, peers that spoke meanwhile are not silent. It ends with [`Node::settle`].
    pub fn begin_turn(&mut self, time: Time) {
        self.now = time.steady;
        self.time = time;
        self.core.set_time(time);
    }

    /// The state, for comparison.
    pub fn core(&self) -> &Core {
        &self.core
    }

    /// The process is to end: the role is given up, or handed over.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// Something could be done at once, without anything happening.
    pub fn has_work(&self) -> bool {
        self.is_primary() && (self.more_to_deliver || self.more_to_evict) || self.wants_slice()
    }

    pub fn handle(&mut self, event: Event) {
        match event {
            Event::Journal(event) => self.handle_journal(event),
            Event::Follower(stream, event) => self.handle_follower(stream, event),
            Event::Upstream(link, event) => self.handle_upstream(link, event),
            Event::Lease(LeaseEvent::Seen(seen)) => self.handle_lease_seen(seen),
            Event::Lease(LeaseEvent::Answer(epoch, answer)) => self.handle_lease_answer(epoch, answer),
            Event::Control(ControlEvent::HandOver { epoch, to, reply }) => {
                self.handle_hand_over(epoch, to, reply);
            }
            Event::Control(ControlEvent::Administer(commands, reply)) => self.administer(commands, reply),
            Event::Control(ControlEvent::ReadDefinitions { topology, reply }) => {
                self.read_definitions(topology, reply);
            }
            Event::Control(ControlEvent::Follow(epoch, primary)) => self.follow_unleased(epoch, primary),
            Event::Control(ControlEvent::Shutdown) => self.leave(),
            // As primary it counts at the end of this batch; as backup it goes with the next acknowledgement.
            Event::Alarms(alarms) => self.alarms = alarms,
            Event::Settings(settings) => self.take_settings(settings),
            Event::Checkpoint(event) => self.handle_checkpoint(event),
            Event::Loaded(epoch, queue, messages) => self.handle_loaded(epoch, queue, messages),
            Event::PartLoaded(epoch, load, body) => self.handle_part_loaded(epoch, load, body),
        }
    }

    /// A lower `minInSync` frees what waits for it at once, a higher one holds what has not been confirmed yet.
    fn take_settings(&mut self, settings: Settings) {
        if let Role::Primary(role) = &mut self.role {
            role.primary.set_min_in_sync(self.now, settings.min_in_sync, &mut role.outputs);
        }
        self.config.settings = settings;
        self.set_consumer_timeout();
    }

    pub(crate) fn set_consumer_timeout(&mut self) {
        let timeout = self.config.settings.consumer_timeout;
        self.core.set_consumer_timeout((!timeout.is_zero()).then_some(timeout));
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
    pub(crate) fn end_role_damaged(&mut self, reason: String) {
        self.mark_flawed(Flaw::Unreadable);
        self.end_role(reason);
    }

    pub(crate) fn mark_flawed(&mut self, flaw: Flaw) {
        self.around.mark_flawed(flaw);
    }

    /// The disk does not do what it must: nothing is acknowledged any more, and another replica takes over.
    pub(crate) fn end_role(&mut self, reason: String) {
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

    fn handle_part_loaded(&mut self, epoch: Epoch, load: PartLoad, body: Result<Option<Body>, String>) {
        if !matches!(&self.role, Role::Primary(role) if role.primary.epoch() == epoch) {
            return;
        }
        match body {
            Ok(Some(body)) => self.core.handle_part_loaded(load, body, &mut self.out),
            Ok(None) if !self.core.wants_part(load) => {} // it went with its message
            Ok(None) => {
                let index = load.part.index;
                self.end_role_damaged(format!("part {index} of a message is not in the log: the log is damaged"));
            }
            Err(reason) => self.end_role_damaged(format!("messages cannot be read back: {reason}")),
        }
    }

    /// The Lease as it is now seen: this process may be the primary, or no longer, or have another to follow.
    pub(crate) fn handle_lease_seen(&mut self, seen: Stored) {
        self.lease_order.handle_seen(&seen);
        if let (Some(new), Some((known, _))) = (seen.lease(), &self.lease)
            && new.epoch() < known.epoch()
        {
            return; // an old state, from a watch that lags
        }
        self.blank_seen = seen.blank().cloned();
        self.lease = seen.into_held();
        self.publish_status();
        match &self.role {
            Role::Primary(_) => self.show_lease_to_keeper(),
            Role::Backup(_) => self.follow_lease(),
            Role::Recovering => {}
        }
    }

    /// To be called every few milliseconds.
    pub fn tick(&mut self) {
        match &mut self.role {
            Role::Recovering => {}
            Role::Primary(_) => {
                self.tick_primary();
                self.drive_scrub();
            }
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
    pub fn settle(&mut self) {
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
        self.publish_login();
        self.poll_keeper();
        self.dispatch_effects();
        self.order_loads();
        if let Role::Primary(role) = &self.role {
            let around = self.core.resident_messages().saturating_mul(MESSAGE_OVERHEAD_BYTES);
            let around = around.saturating_add(self.core.transaction_bytes());
            let around = around.saturating_add(self.core.remembered_keys().saturating_mul(KEY_BYTES));
            let budget = self.config.memory_budget.saturating_sub(around);
            self.more_to_evict = self.core.evict(role.primary.own_durable(), budget);
        }
        self.drive_checkpoint();
    }

    /// Messages that queues want back are read beside this thread, once they are in the log: with `durability: Replicated`
    /// what is committed may still be on its way there.
    fn order_loads(&mut self) {
        self.loads.append(&mut self.out.loads);
        let Role::Primary(role) = &self.role else {
            self.out.part_loads.clear();
            return self.loads.clear();
        };
        let (epoch, written) = (role.primary.epoch(), role.primary.own_durable());
        for load in self.loads.extract_if(.., |load| load.indexes.last().is_none_or(|last| *last <= written)) {
            self.around.load(epoch, load);
        }
        // A part that is to be read is of a committed message, which own log had before that.
        self.out.part_loads.drain(..).for_each(|load| self.around.load_part(epoch, load));
    }

    pub(crate) fn is_primary(&self) -> bool {
        matches!(self.role, Role::Primary(_))
    }

    /// Records that the core has made become frames: the same for the journal and for the followers.
    pub(crate) fn write_records(&mut self) {
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
        self.around.order(Order::Append(Writer::Primary(epoch), frames.clone()));
        role.primary.handle_appended(self.now, &frames, &mut role.outputs);
        self.note_sets(&frames);
    }

    /// Leaves in good order: a primary hands over first, a backup says so.
    pub(crate) fn leave(&mut self) {
        if self.leaving.is_some() {
            return;
        }
        self.leaving = Some(self.now);
        match &self.role {
            Role::Primary(role) => {
                let epoch = role.primary.epoch();
                let under_way = role.hand_over.is_some();
                match self.hand_over(epoch, None) {
                    Err(_) if under_way => {}
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

    pub(crate) fn become_backup(&mut self, recovered: Recovered) {
        if self.leaving.is_some() {
            self.ended = true;
            return;
        }
        let config = BackupConfig {
            me: self.me.clone(),
            replicated_only: self.config.replicated_only,
            backup_timeout: self.config.backup_timeout,
            knows: VersionRange::OWN,
        };
        let Recovered { core, log, recorded_sets, inconsistency } = recovered;
        tracing::info!(last = %log.history.last(), applied = %log.applied, epoch = %log.known_epoch, "log read");
        let backup = Backup::new(self.now, config, log);
        self.core = core;
        if let Some(inconsistency) = inconsistency {
            tracing::error!(
                "the state is not what the primary had, so everything is fetched anew: {}",
                inconsistency.text
            );
            self.agreement.found(inconsistency);
        }
        self.recorded_sets = recorded_sets;
        self.out = Outputs::default();
        self.role = Role::Backup(Box::new(backup::BackupRole::new(backup)));
        self.follow_lease();
        self.publish_status();
    }

    /// Gives up what ran ahead of the commit: the state is read from the journal again.
    pub(crate) fn recover(&mut self) {
        self.around.hang_up();
        self.give_up_checkpoint();
        self.scrubber.give_up_pass();
        self.uploads.clear(); // their connections are closed
        self.role = Role::Recovering;
        self.core = Core::new(0);
        self.out = Outputs::default();
        self.loads.clear();
        let (seed, accept_differences) = (self.config.seed, self.config.accept_differences);
        self.around.order(Order::Rebuild { seed, accept_differences });
        self.publish_status();
    }

    /// What the frames say of the set, for a recovery without a Lease (rule 7).
    pub(crate) fn note_sets(&mut self, frames: &[Frame]) {
        frames.iter().for_each(|frame| self.recorded_sets.note(frame));
    }

    pub(crate) fn epoch(&self) -> Epoch {
        match &self.role {
            Role::Primary(role) => role.primary.epoch(),
            Role::Backup(role) => role.backup.known_epoch(),
            Role::Recovering => Epoch(0),
        }
    }

    pub(crate) fn last(&self) -> Position {
        match &self.role {
            Role::Primary(role) => role.primary.last(),
            Role::Backup(role) => role.backup.history().last(),
            Role::Recovering => Position { epoch: Epoch(0), index: Index(0) },
        }
    }
}
