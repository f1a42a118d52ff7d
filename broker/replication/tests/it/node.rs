//! One replica of the simulation: what the broker's core thread does, with a map of numbers for its state.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use understudy_election::{Lease, Version};
use understudy_record::version::{ClusterVersion, VersionRange};
use understudy_record::{
    BacklogCursor, BasePiece, Body, Epoch, Frame, Identity, Index, Message, Position, ProcessId, QueueId, Record,
    ReplicaName, ShortStr,
};
use understudy_replication::{
    Acknowledge, Backlog, BacklogQueue, Backup, BackupConfig, BackupOutput, Hello, KeeperOutput, LeaseKeeper,
    LeaseRequest, Primary, PrimaryConfig, PrimaryMessage, PrimaryOutput, RecoveredLog, StreamId, SyncId,
};

use crate::store::{Contents, Order, Report, Store, Writer, body_number, number_of};

pub(crate) const LEASE: Duration = Duration::from_secs(5);
pub(crate) const BACKUP_TIMEOUT: Duration = Duration::from_secs(2);

/// The one queue there is.
const QUEUE: QueueId = QueueId(Index(1));

/// A chunk of the backlog: small, so that much happens between two.
const CHUNK: usize = 20;

#[derive(Debug)]
pub(crate) enum ToPrimary {
    Hello(Hello),
    Acknowledge(Acknowledge),
    CaughtUp(Index),
    Fetch { epoch: Epoch, sync_id: SyncId, from: BacklogCursor },
}

#[derive(Debug)]
pub(crate) enum FromPrimary {
    Message(PrimaryMessage),
    Backlog(Backlog),
}

/// What a step of a node leads to outside of it.
#[derive(Debug)]
pub(crate) enum Act {
    Say(ToPrimary),
    Tell(StreamId, FromPrimary),
    /// The backup ends its connection.
    HangUp,
    /// The primary ends a follower's stream.
    Cut(StreamId),
    Lease(Epoch, LeaseRequest),
    Confirm(Vec<(Index, u64)>),
}

pub(crate) enum Role {
    Down,
    Backup(Box<Backup>),
    Primary(Box<Primary>, Box<LeaseKeeper>),
}

/// One that knows the versions up to this one.
pub(crate) fn build(newest: u32) -> VersionRange {
    VersionRange { oldest: ClusterVersion::FIRST, newest: ClusterVersion(newest) }
}

pub(crate) struct Node {
    pub(crate) name: ReplicaName,
    pub(crate) process: u64,
    pub(crate) replicated: bool,
    /// The cluster's versions that its build knows.
    pub(crate) knows: VersionRange,
    pub(crate) store: Store,
    pub(crate) orders: VecDeque<Order>,
    pub(crate) role: Role,
    /// The state: on a primary it runs ahead, on a backup it holds what is committed.
    pub(crate) state: Contents,
    last_index: Index,
    syncs: BTreeMap<SyncId, Index>,
    told: Index,
    pub(crate) acts: Vec<Act>,
}

impl Node {
    pub(crate) fn new(name: &str, store: u128) -> Self {
        Self {
            name: ReplicaName::new(name),
            process: 0,
            replicated: false,
            knows: build(2),
            store: Store::new(store),
            orders: VecDeque::new(),
            role: Role::Down,
            state: Contents::new(),
            last_index: Index(0),
            syncs: BTreeMap::new(),
            told: Index(0),
            acts: Vec::new(),
        }
    }

    pub(crate) fn identity(&self) -> Identity {
        Identity { name: self.name.clone(), store: self.store.id, process: ProcessId(self.process) }
    }

    pub(crate) fn describe(&self) -> String {
        match &self.role {
            Role::Down => format!("{} is down", self.identity()),
            Role::Backup(backup) => format!(
                "{} is a backup: known epoch {}, last {}, primary {:?}, lost {:?}, clean {}, durable {}",
                self.identity(),
                backup.known_epoch(),
                backup.history().last(),
                backup.primary(),
                backup.lost(),
                backup.is_clean(),
                backup.durable()
            ),
            Role::Primary(primary, keeper) => format!(
                "{} is primary of {}: last {}, committed {}, hold {:?}, followers {:?}, {keeper:?}",
                self.identity(),
                primary.epoch(),
                primary.last(),
                primary.committed(),
                primary.hold(),
                primary.followers().collect::<Vec<_>>()
            ),
        }
    }

    /// What is on its way to the journal.
    pub(crate) fn add_received(&self, contents: &mut Contents) {
        for order in &self.orders {
            match order {
                Order::Append(_, frames) => {
                    contents.extend(
                        frames
                            .iter()
                            .filter(|f| f.kind == understudy_record::FrameKind::Record)
                            .filter_map(|f| number_of(f).map(|n| (f.position.index, n))),
                    );
                }
                Order::Truncate(after) => _ = contents.split_off(&after.next()),
                _ => {}
            }
        }
    }

    pub(crate) fn is_up(&self) -> bool {
        !matches!(self.role, Role::Down)
    }

    pub(crate) fn crash(&mut self) {
        self.role = Role::Down;
        self.orders.clear();
        self.store.crash();
        self.acts.clear();
    }

    pub(crate) fn start(&mut self, now: Duration) {
        self.process += 1;
        self.recover(now);
    }

    /// What the broker does at a start and after a demotion: the state from the log, up to the highest committed stamp.
    fn recover(&mut self, now: Duration) {
        let pending: Vec<_> = self.orders.drain(..).collect();
        self.store.carry_out(pending.into_iter());
        self.store.crash();
        let log = &self.store.log;
        let stamped = log.records.iter().map(|frame| frame.committed).max().unwrap_or_default();
        let sync_point = log.base.as_ref().map_or(Index(0), |base| base.sync_point.index);
        let floor = log.base.as_ref().and_then(|base| base.floor).unwrap_or_default();
        let committed = if log.is_checkpointed() { stamped.max(floor) } else { stamped };
        let applied = committed.max(sync_point).min(log.history().last().index);
        self.state = log.contents().range(..=applied).map(|(index, number)| (*index, *number)).collect();
        self.last_index = applied;
        let pending = log.records.iter().filter(|frame| frame.position.index > applied).cloned().collect();
        let config = BackupConfig {
            me: self.identity(),
            replicated_only: self.replicated,
            backup_timeout: BACKUP_TIMEOUT,
            knows: self.knows,
        };
        let (known_epoch, history, first) = (self.store.known_epoch, log.history(), log.first());
        let cluster_version = self.store.cluster_version;
        assert!(self.knows.contains(cluster_version), "a build without a place on its store was started");
        let log =
            RecoveredLog { known_epoch, cluster_version, history, first, floor, applied, pending, damaged: false };
        let backup = Backup::new(now, config, log);
        self.role = Role::Backup(Box::new(backup));
        self.acts.push(Act::HangUp);
    }

    pub(crate) fn backup(&mut self, now: Duration, step: impl FnOnce(&mut Backup, &mut Vec<BackupOutput>) -> bool) {
        let Role::Backup(backup) = &mut self.role else { return };
        let mut out = Vec::new();
        let fine = step(backup, &mut out);
        self.carry_out_backup(now, out);
        if !fine {
            self.acts.push(Act::HangUp);
            self.disconnected(now);
        }
    }

    pub(crate) fn disconnected(&mut self, now: Duration) {
        let Role::Backup(backup) = &mut self.role else { return };
        let mut out = Vec::new();
        backup.handle_disconnected(now, true, &mut out);
        self.carry_out_backup(now, out);
    }

    fn carry_out_backup(&mut self, now: Duration, outputs: Vec<BackupOutput>) {
        for output in outputs {
            match output {
                BackupOutput::PersistEpoch(epoch) => self.orders.push_back(Order::PersistEpoch(epoch)),
                BackupOutput::PersistVersion(version) => self.orders.push_back(Order::PersistVersion(version)),
                BackupOutput::Truncate(after) => {
                    assert!(after >= self.last_index, "cut after {after}, applied {}", self.last_index);
                    self.orders.push_back(Order::Truncate(after));
                }
                BackupOutput::Append(session, frames) => {
                    self.orders.push_back(Order::Append(Writer::Backup(session), frames));
                }
                BackupOutput::Barrier(session) => self.orders.push_back(Order::Barrier(Writer::Backup(session))),
                BackupOutput::BeginBase => {
                    self.state.clear();
                    self.orders.push_back(Order::BeginBase);
                }
                BackupOutput::CompleteBase(session) => self.orders.push_back(Order::CompleteBase(session)),
                BackupOutput::Apply(frames) => self.apply(&frames),
                BackupOutput::ApplyBase(frames) => frames.iter().for_each(|frame| self.apply_piece(frame)),
                BackupOutput::Acknowledge(ack) => self.acts.push(Act::Say(ToPrimary::Acknowledge(ack))),
                BackupOutput::CaughtUp(floor) => self.acts.push(Act::Say(ToPrimary::CaughtUp(floor))),
                BackupOutput::Fetch { epoch, sync_id, from, .. } => {
                    self.acts.push(Act::Say(ToPrimary::Fetch { epoch, sync_id, from }));
                }
                BackupOutput::Close(_) => self.acts.push(Act::HangUp),
                BackupOutput::Recover => return self.recover(now),
            }
        }
    }

    fn apply(&mut self, frames: &[Frame]) {
        for frame in frames {
            assert_eq!(frame.position.index, self.last_index.next(), "records are applied in order");
            self.last_index = frame.position.index;
            self.state.extend(number_of(frame).map(|number| (frame.position.index, number)));
        }
    }

    fn apply_piece(&mut self, frame: &Frame) {
        match frame.decode_base().unwrap() {
            BasePiece::Start { sync_point, .. } => self.last_index = sync_point.index,
            BasePiece::Message { index, message, .. } => _ = self.state.insert(index, body_number(&message.body)),
            _ => {}
        }
    }

    /// The Lease names this process.
    pub(crate) fn elected(&mut self, now: Duration, lease: Lease, lease_version: Version) {
        let member = self.identity().member(self.replicated);
        let Role::Backup(backup) = &mut self.role else { return };
        if !lease.in_sync().contains(&member) {
            return;
        }
        let mut out = Vec::new();
        let version = lease.cluster_version().max(backup.cluster_version());
        let Ok(log) = backup.handle_elected(lease.epoch(), version, &mut out) else { return };
        self.carry_out_backup(now, out);
        self.acts.push(Act::HangUp);
        let config = PrimaryConfig {
            me: self.identity(),
            min_in_sync: 2,
            replicated_only: self.replicated,
            backup_timeout: BACKUP_TIMEOUT,
            stall_timeout: LEASE * 10,
            lease_duration: LEASE,
            resume_records: 5,
            knows: self.knows,
            version,
            max_catch_ups: 1,
        };
        let in_sync: Vec<_> = lease.in_sync().iter().cloned().collect();
        let primary = Primary::new(now, config, lease.epoch(), log, lease.in_sync().clone());
        let mut keeper = LeaseKeeper::new(now, self.identity(), lease, lease_version, LEASE);
        keeper.raise(version);
        self.role = Role::Primary(Box::new(primary), Box::new(keeper));
        self.syncs.clear();
        self.told = Index(0);
        let record = Record::EpochStart { primary: self.identity(), in_sync };
        self.write(now, vec![record]);
    }

    /// A client publishes a message that carries `number`.
    pub(crate) fn publish(&mut self, now: Duration, number: u64) {
        let Role::Primary(primary, _) = &self.role else { return };
        let (number, version) = (number.to_le_bytes(), primary.cluster_version().0.to_le_bytes());
        let message = Message {
            exchange: ShortStr::EMPTY,
            routing_key: ShortStr::EMPTY,
            properties: Bytes::new(),
            persistent: true,
            parts: None,
            body: Body::new([&number[..], &version].concat().into()),
        };
        self.write(now, vec![Record::Publish { targets: vec![QUEUE], message }]);
    }

    fn write(&mut self, now: Duration, records: Vec<Record>) {
        let Role::Primary(primary, _) = &mut self.role else { return };
        let (epoch, committed) = (primary.epoch(), primary.committed());
        let mut frames = Vec::new();
        for record in records {
            self.last_index = self.last_index.next();
            let position = Position { epoch, index: self.last_index };
            let frame = Frame::record(position, committed, &record, &mut BytesMut::new());
            self.state.extend(number_of(&frame).map(|number| (position.index, number)));
            frames.push(frame);
        }
        self.orders.push_back(Order::Append(Writer::Primary(epoch), frames.clone()));
        self.primary(now, |primary, out| primary.handle_appended(now, &frames, out));
    }

    pub(crate) fn primary(&mut self, now: Duration, step: impl FnOnce(&mut Primary, &mut Vec<PrimaryOutput>)) {
        let Role::Primary(primary, _) = &mut self.role else { return };
        let mut out = Vec::new();
        step(primary, &mut out);
        for output in out {
            let Role::Primary(_, keeper) = &mut self.role else { return };
            match output {
                PrimaryOutput::Send(stream, message) => {
                    self.acts.push(Act::Tell(stream, FromPrimary::Message(message)))
                }
                PrimaryOutput::Close(stream, _) => self.acts.push(Act::Cut(stream)),
                PrimaryOutput::ReadLog(stream, from) => self.read_log(now, stream, from),
                PrimaryOutput::TakeBase(stream, sync_id) => self.send_base(now, stream, sync_id),
                PrimaryOutput::EndSync(sync_id) => {
                    assert!(
                        self.syncs.remove(&sync_id).is_some(),
                        "{sync_id:?} is ended once, after its base was taken"
                    );
                }
                PrimaryOutput::ProposeSet(set) => keeper.propose(set),
                PrimaryOutput::SetInForce(set) => {
                    self.write(now, vec![Record::InSyncSet { members: set.into_iter().collect() }]);
                }
                PrimaryOutput::Committed { confirmable, .. } => self.confirm(confirmable),
                PrimaryOutput::Demote { .. } => return self.recover(now),
                PrimaryOutput::CloseClients(_) | PrimaryOutput::ServeClients => {}
            }
        }
    }

    fn confirm(&mut self, confirmable: Index) {
        let from = self.told.next();
        if confirmable >= from {
            let newly = self.state.range(from..=confirmable).map(|(index, number)| (*index, *number)).collect();
            self.told = confirmable;
            self.acts.push(Act::Confirm(newly));
        }
    }

    /// A checkpoint comes into force: of what is committed and durable here, with `back` records before its sync point. What
    /// followers lack stays too, unless it is more than there is room for (`full`).
    pub(crate) fn checkpoint(&mut self, behind: u64, back: u64, full: bool) -> bool {
        let settled = match &self.role {
            Role::Down => return false,
            Role::Primary(primary, _) => primary.committed().min(primary.own_durable()),
            Role::Backup(backup) if backup.is_clean() => backup.committed().min(backup.durable()),
            Role::Backup(_) => return false,
        };
        let sync_point = Index(settled.0.saturating_sub(behind));
        let log = &mut self.store.log;
        let known = log.base.as_ref().map_or(Index(0), |base| base.sync_point.index);
        if sync_point <= known || self.store.is_building() {
            return false;
        }
        let retained = match &self.role {
            Role::Primary(primary, _) if !full => primary.retain_from(true),
            _ => Index(u64::MAX),
        };
        let log = &mut self.store.log;
        let first = Index(sync_point.next().0.saturating_sub(back)).min(retained).max(log.first());
        log.rest_on(sync_point, settled, first);
        match &mut self.role {
            Role::Down => {}
            Role::Primary(primary, _) => primary.handle_log_start(first),
            Role::Backup(backup) => backup.handle_log_start(first, settled),
        }
        true
    }

    fn read_log(&mut self, now: Duration, stream: StreamId, from: Index) {
        if from < self.store.log.first() {
            let gone = Err(format!("record {from} is not in this log"));
            return self.primary(now, |primary, out| primary.handle_log_read(now, stream, from, gone, out));
        }
        let written = self.store.log.records.iter().filter(|frame| frame.position.index >= from);
        let frames = written.take(4).cloned().collect();
        self.primary(now, |primary, out| primary.handle_log_read(now, stream, from, Ok(frames), out));
    }

    fn send_base(&mut self, now: Duration, stream: StreamId, sync_id: SyncId) {
        let Role::Primary(primary, _) = &mut self.role else { return };
        let sync_point = primary.last();
        let epochs = primary.history().starts().to_vec();
        let in_sync = primary.in_force().iter().cloned().collect();
        let committed = primary.committed();
        let pieces = [BasePiece::Start { sync_point, epochs, in_sync }, BasePiece::TopologyEnd];
        let frames = pieces.iter().map(|piece| Frame::base(sync_point, committed, piece, &mut BytesMut::new()));
        let frames = frames.collect();
        self.syncs.insert(sync_id, sync_point.index);
        let queues = vec![BacklogQueue { queue: QUEUE, messages: self.state.len() as u64, bytes: 0 }];
        self.primary(now, |primary, out| primary.send_base(now, stream, sync_id, frames, queues, out));
    }

    /// A part of the backlog, as it is at this moment.
    pub(crate) fn backlog(
        &mut self,
        now: Duration,
        stream: StreamId,
        epoch: Epoch,
        sync_id: SyncId,
        from: BacklogCursor,
    ) {
        let Role::Primary(primary, _) = &mut self.role else { return };
        let Some(&sync_point) = self.syncs.get(&sync_id) else { return };
        if primary.epoch() != epoch {
            return;
        }
        let wanted = self.state.range(..from.before.min(sync_point.next())).rev().take(CHUNK);
        let wanted: Vec<_> = wanted.map(|(index, number)| (*index, *number)).collect();
        let done = wanted.len() < CHUNK;
        primary.handle_fetch(now, sync_id, QUEUE, done);
        let position = Position { epoch, index: sync_point };
        let frames = wanted.iter().map(|(index, number)| {
            let message = Message {
                exchange: ShortStr::EMPTY,
                routing_key: ShortStr::EMPTY,
                properties: Bytes::new(),
                persistent: true,
                parts: None,
                body: Body::new(Bytes::copy_from_slice(&number.to_le_bytes())),
            };
            let piece = BasePiece::Message { queue: QUEUE, index: *index, delivery_count: 0, expires_ms: 0, message };
            Frame::base(position, primary.committed(), &piece, &mut BytesMut::new())
        });
        let next = wanted.last().map_or(from, |(index, _)| (*index).into());
        let (as_of, messages) = (self.last_index, wanted.len() as u64);
        let frames = frames.collect();
        let backlog = Backlog { sync_id, queue: QUEUE, from, next, as_of, frames, messages, bytes: 0, done };
        self.acts.push(Act::Tell(stream, FromPrimary::Backlog(backlog)));
    }

    pub(crate) fn take_backlog(&mut self, now: Duration, backlog: Backlog) {
        let (sync_id, next, done) = (backlog.sync_id, backlog.next, backlog.done);
        self.backup(now, |backup, out| backup.handle_backlog(now, backlog, out).is_ok());
        if let Role::Backup(backup) = &self.role
            && !done
        {
            let epoch = backup.known_epoch();
            self.acts.push(Act::Say(ToPrimary::Fetch { epoch, sync_id, from: next }));
        }
    }

    pub(crate) fn keeper(&mut self, now: Duration, step: impl FnOnce(&mut LeaseKeeper) -> Vec<KeeperOutput>) {
        let Role::Primary(_, keeper) = &mut self.role else { return };
        for output in step(keeper) {
            match output {
                KeeperOutput::Outcome(outcome) => {
                    self.primary(now, |primary, out| primary.handle_outcome(now, outcome, out))
                }
                KeeperOutput::Held => self.primary(now, |primary, out| primary.handle_lease_held(now, out)),
                KeeperOutput::Demoted { .. } => return self.recover(now),
                KeeperOutput::Trouble(_) => {}
            }
        }
    }

    /// The version is raised as soon as all three know the next one; what the Lease has comes into force.
    pub(crate) fn tick_version(&mut self, now: Duration, replicas: &[ReplicaName]) {
        let Role::Primary(primary, keeper) = &mut self.role else { return };
        if let Some(next) = primary.next_version(replicas) {
            keeper.raise(next);
        }
        let version = keeper.cluster_version();
        if version > primary.cluster_version() {
            self.orders.push_back(Order::PersistVersion(version));
            self.primary(now, |primary, out| primary.handle_version(now, version, out));
        }
    }

    pub(crate) fn poll_keeper(&mut self, now: Duration) {
        let Role::Primary(primary, keeper) = &mut self.role else { return };
        if keeper.successor().is_none() {
            primary.handle_staying();
        }
        let hears_all = primary.hears_all();
        if let Some(request) = keeper.poll_request(now, true, hears_all).unwrap() {
            self.acts.push(Act::Lease(primary.epoch(), request));
        }
    }

    /// The journal carries out everything ordered so far.
    pub(crate) fn turn_journal(&mut self, now: Duration) {
        let orders: Vec<_> = self.orders.drain(..).collect();
        for report in self.store.carry_out(orders.into_iter()) {
            match report {
                Report::Durable(Writer::Primary(epoch), index) => {
                    self.primary(now, |primary, out| primary.handle_durable(now, epoch, index, out));
                }
                Report::Durable(Writer::Backup(session), index) => self.backup(now, |backup, out| {
                    backup.handle_durable(session, index, out);
                    true
                }),
                Report::BaseCompleted(session) => self.backup(now, |backup, out| {
                    backup.handle_base_completed(session, out);
                    true
                }),
            }
        }
    }
}
