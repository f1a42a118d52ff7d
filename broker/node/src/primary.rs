//! The core thread as primary: followers, the Lease, clients' confirms; and the ways in and out of the role.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::BytesMut;
use tokio::sync::{mpsc, oneshot};
use understudy_core::BacklogChunk;
use understudy_election::{Incarnation, Lease, Version};
use understudy_record::variant::{Variant, is_broken};
use understudy_record::version::VersionRange;
use understudy_record::{Alarms, BasePiece, Epoch, Frame, Identity, Index, PartRef, Position, QueueId, Record};
use understudy_replication::{
    BacklogQueue, KeeperOutput, LeaseAnswer, LeaseKeeper, Primary, PrimaryConfig, PrimaryMessage, PrimaryOutput,
    StreamId, SyncId,
};

use crate::administration::Administered;
use crate::hand_over::HandOver;
use crate::{BacklogReply, BacklogRequest, ChunkToSend, Flow, FollowerEvent, Node, Role, versions};

/// One chunk of a backlog: large enough for the disk and the network, small enough that the core thread, which chooses it, is
/// free again after some tens of microseconds.
const BACKLOG_CHUNK_BYTES: usize = 512 << 10;
const BACKLOG_CHUNK_MESSAGES: usize = 512;

/// Records that are not committed, in bytes, above which publishers are made to wait: what a slow disk or backup may
/// cost in memory.
const UNCOMMITTED_BYTES: usize = 64 << 20;

pub(crate) struct PrimaryRole {
    pub(crate) primary: Primary,
    pub(crate) keeper: LeaseKeeper,
    pub(crate) outputs: Vec<PrimaryOutput>,
    /// Each follower's stream; dropping the sender ends it.
    streams: BTreeMap<StreamId, mpsc::UnboundedSender<PrimaryMessage>>,
    /// What each follower that has a stream runs short of.
    alarms: BTreeMap<StreamId, (Identity, Alarms)>,
    syncs: BTreeMap<SyncId, Sync>,
    pub(crate) since: std::time::Duration,
    /// No clients: another primary may exist (rule 6).
    pub(crate) isolated: bool,
    announced_commit: bool,
    /// What the Lease's store last failed in; said once, not at each try.
    pub(crate) trouble: Option<String>,
    /// The record that every member must acknowledge before that blank Lease is written as the deleted one was.
    proof: Option<(Incarnation, Index)>,
    pub(crate) hand_over: Option<HandOver>,
    pub(crate) administered: Administered,
    /// Who may log in, as others have been told last.
    pub(crate) login_version: Option<u64>,
}

/// A catch-up under way.
struct Sync {
    sync_point: Index,
    /// Parts of large messages that no message had claimed at the sync point. Whoever holds the list keeps them in the log.
    unclaimed: Arc<[PartRef]>,
}

/// Under this name, which no queue has, a follower fetches the parts that no message had claimed at the sync point.
const UNCLAIMED: QueueId = QueueId(Index(0));

impl PrimaryRole {
    fn handle_alarms(&mut self, stream: StreamId, alarms: Alarms) {
        let Some((follower, known)) = self.alarms.get_mut(&stream) else { return };
        *known = alarms;
        let texts = alarms.describe(follower.name.as_str());
        if texts.is_empty() {
            tracing::info!("{} has room again", follower.name);
        } else {
            tracing::warn!("a backup's alarm: {}", texts.join("; "));
        }
    }

    /// What the members of the set run short of, this replica (`own`) first. A backup that has left, or whose stream has
    /// ended, has nothing to say any more.
    fn shortages(&mut self, me: &Identity, own: Alarms, with_process: bool) -> Vec<String> {
        self.alarms.retain(|stream, _| self.streams.contains_key(stream));
        let in_force = self.primary.in_force();
        let mut texts = own.describe(me.name.as_str());
        for (follower, alarms) in self.alarms.values().filter(|(_, alarms)| alarms.any()) {
            if in_force.contains(&follower.member(with_process)) {
                texts.extend(alarms.describe(follower.name.as_str()));
            }
        }
        texts
    }

    fn complain(&mut self, trouble: String) {
        if self.trouble.as_ref() != Some(&trouble) {
            tracing::warn!("{trouble}");
            self.trouble = Some(trouble);
        }
    }
}

impl Node {
    /// The Lease names this very process (rules 1 and 8).
    pub(crate) fn become_primary(&mut self, lease: Lease, version: Version) {
        let Role::Backup(role) = &mut self.role else { return };
        let epoch = lease.epoch();
        let member = self.me.member(self.config.replicated_only);
        if !lease.in_sync().contains(&member) {
            tracing::error!(%epoch, "the Lease names this process as primary but its set does not hold it: not taken (rule 1)");
            return;
        }
        let mut outputs = Vec::new();
        // Never lower than what this store knows: somebody may have put the Lease back by hand.
        let cluster_version = lease.cluster_version().max(role.backup.cluster_version());
        let log = match role.backup.handle_elected(epoch, cluster_version, &mut outputs) {
            Ok(log) => log,
            Err(error) => {
                tracing::error!(%epoch, "elected, but cannot take the role: {error}");
                return;
            }
        };
        self.around.hang_up();
        self.carry_out_backup(outputs);
        if !self.may_take_over() {
            return;
        }
        let config = PrimaryConfig {
            me: self.me.clone(),
            min_in_sync: self.config.settings.min_in_sync,
            replicated_only: self.config.replicated_only,
            backup_timeout: self.config.backup_timeout,
            stall_timeout: self.config.stall_timeout,
            lease_duration: self.config.lease_duration,
            resume_records: self.config.resume_records,
            knows: VersionRange::OWN,
            version: cluster_version,
            max_catch_ups: self.config.max_catch_ups,
        };
        let in_sync: Vec<_> = lease.in_sync().iter().cloned().collect();
        let primary = Primary::new(self.now, config, epoch, log, lease.in_sync().clone());
        let holder = match lease.holder() {
            Some(holder) if is_broken(Variant::ResumeOldRole) => holder.clone(),
            _ => self.me.clone(),
        };
        let mut keeper = LeaseKeeper::new(self.now, holder, lease, version, self.config.lease_duration);
        keeper.raise(cluster_version);
        self.role = Role::Primary(Box::new(PrimaryRole {
            primary,
            keeper,
            outputs: Vec::new(),
            streams: BTreeMap::new(),
            alarms: BTreeMap::new(),
            syncs: BTreeMap::new(),
            since: self.now,
            isolated: false,
            announced_commit: false,
            trouble: None,
            proof: None,
            hand_over: None,
            administered: Administered::default(),
            login_version: None,
        }));
        tracing::info!(%epoch, %cluster_version, set = ?in_sync.iter().map(|m| m.name.to_string()).collect::<Vec<_>>(), "primary");
        self.core.set_default_replication(self.config.replicate);
        self.core.set_time(self.time);
        self.set_consumer_timeout();
        self.core.append(Record::EpochStart { primary: self.me.clone(), in_sync }, &mut self.out);
        self.take_up_version(epoch, cluster_version);
        self.core.promote(&mut self.out);
        self.settle();
        self.publish_status();
    }

    /// Another primary exists, or may (rule 5): clients are closed, and what ran ahead of the commit is forgotten.
    pub(crate) fn demote(&mut self, epoch: Epoch, holder: Option<&Identity>) {
        let Role::Primary(role) = &mut self.role else { return };
        if is_broken(Variant::IgnoreDemotion) {
            return;
        }
        let hand_over = role.hand_over.take();
        let successor = holder.map_or_else(|| "another replica".to_owned(), |holder| holder.name.to_string());
        tracing::warn!(%epoch, %successor, "primary no longer");
        self.close_clients(&format!("{successor} is the primary now"));
        if let Some(hand_over) = hand_over {
            hand_over.answer(Ok(())); // who asked sees in the Lease to whom
        }
        if self.leaving.is_some() {
            self.ended = true;
        }
        self.recover();
    }

    pub(crate) fn handle_follower(&mut self, stream: StreamId, event: FollowerEvent) {
        let now = self.now;
        let Role::Primary(role) = &mut self.role else {
            self.refuse_follower(event);
            return;
        };
        let out = &mut role.outputs;
        match event {
            FollowerEvent::Hello(hello, sender) => {
                let messages: u64 = self.core.backlogs().into_iter().map(|(_, messages, _)| messages).sum();
                let live_messages = messages + self.core.parts();
                tracing::info!(follower = %hello.follower, last = %hello.history.last(), clean = hello.clean, "follower");
                role.streams.insert(stream, sender);
                role.alarms.insert(stream, (hello.follower.clone(), Alarms::default()));
                role.primary.handle_hello(now, stream, &hello, live_messages, out);
            }
            FollowerEvent::Acknowledge(ack) => role.primary.handle_acknowledge(now, stream, ack, out),
            FollowerEvent::Alarms(alarms) => role.handle_alarms(stream, alarms),
            FollowerEvent::Inconsistent { follower, at, reason } => {
                self.handle_inconsistent_follower(&follower, at, &reason);
            }
            FollowerEvent::CaughtUp(floor) => {
                if let Some((follower, _)) = role.alarms.get(&stream) {
                    self.agreement.agrees(&follower.name);
                }
                role.primary.handle_caught_up(now, stream, floor, out);
            }
            FollowerEvent::Leaving(reason) => {
                tracing::info!(?stream, "a follower leaves: {reason}");
                role.streams.remove(&stream);
                role.primary.handle_leaving(now, stream, out);
            }
            FollowerEvent::LogRead { from, frames } => role.primary.handle_log_read(now, stream, from, frames, out),
            FollowerEvent::Backlog { request, reply } => {
                self.backlog(request, reply);
            }
            FollowerEvent::Closed => {
                if role.streams.remove(&stream).is_some() {
                    tracing::info!(?stream, "a follower's stream ended");
                }
                role.primary.handle_stream_closed(now, stream, out);
            }
        }
        // Outputs that speak of the state as of this very event are carried out before the next one.
        self.settle();
    }

    fn refuse_follower(&self, event: FollowerEvent) {
        match event {
            FollowerEvent::Hello(_, sender) => {
                let reason = format!("{} is not the primary", self.me.name);
                let refusal = understudy_replication::Refusal { epoch: self.epoch(), reason };
                _ = sender.send(PrimaryMessage::Refusal(refusal));
            }
            FollowerEvent::Backlog { reply, .. } => _ = reply.send(Err(format!("{} is not the primary", self.me.name))),
            _ => {}
        }
    }

    /// Carries out the replication's outputs; `true` if there were any.
    pub(crate) fn carry_out_primary(&mut self) -> bool {
        let Role::Primary(role) = &mut self.role else { return false };
        let outputs = std::mem::take(&mut role.outputs);
        let any = !outputs.is_empty();
        for output in outputs {
            let Role::Primary(role) = &mut self.role else { return false };
            match output {
                PrimaryOutput::Send(stream, message) => {
                    if let Some(sender) = role.streams.get(&stream) {
                        _ = sender.send(message);
                    }
                }
                PrimaryOutput::Close(stream, reason) => {
                    tracing::warn!(?stream, "closing a follower's stream: {reason}");
                    role.streams.remove(&stream);
                }
                PrimaryOutput::ReadLog(stream, from) => {
                    let is_backlog = role.primary.reads_backlog(stream);
                    self.around.read_log(stream, from, is_backlog);
                }
                PrimaryOutput::TakeBase(stream, sync_id) => self.send_base(stream, sync_id),
                PrimaryOutput::EndSync(sync_id) => self.end_sync(sync_id),
                PrimaryOutput::ProposeSet(set) => {
                    tracing::info!(set = ?set.iter().map(|m| m.name.to_string()).collect::<Vec<_>>(), "changing the in-sync set");
                    role.keeper.propose(set);
                }
                PrimaryOutput::SetInForce(set) => {
                    tracing::info!(set = ?set.iter().map(|m| m.name.to_string()).collect::<Vec<_>>(), "the in-sync set is");
                    let members = set.into_iter().collect();
                    self.core.append(Record::InSyncSet { members }, &mut self.out);
                    self.publish_status();
                }
                PrimaryOutput::Committed { committed, confirmable } => {
                    if !role.announced_commit {
                        role.announced_commit = true;
                        tracing::info!(%committed, "the epoch's start is committed");
                    }
                    self.core.handle_committed(committed, confirmable, &mut self.out);
                    self.answer_administered();
                    self.release_uploads(committed);
                }
                PrimaryOutput::Demote { epoch } => {
                    self.demote(epoch, None);
                    return false;
                }
                PrimaryOutput::CloseClients(reason) => {
                    role.isolated = true;
                    tracing::error!("{reason}");
                    self.end_clients(&reason);
                    self.publish_status();
                }
                PrimaryOutput::ServeClients => {
                    role.isolated = false;
                    self.publish_status();
                }
            }
        }
        self.set_flow();
        any
    }

    /// The topology as of the last record, in frames. Called before anything else is appended.
    fn send_base(&mut self, stream: StreamId, sync_id: SyncId) {
        self.write_records();
        let Role::Primary(role) = &mut self.role else { return };
        let sync_point = role.primary.last();
        let mut arena = BytesMut::new();
        let committed = role.primary.committed();
        let start = BasePiece::Start {
            sync_point,
            epochs: role.primary.history().starts().to_vec(),
            in_sync: role.primary.in_force().iter().cloned().collect(),
        };
        let pieces = std::iter::once(start).chain(self.core.snapshot_topology()).chain([BasePiece::TopologyEnd]);
        let frames: Vec<Frame> = pieces.map(|piece| Frame::base(sync_point, committed, &piece, &mut arena)).collect();
        versions::check_writable(&frames, role.primary.cluster_version());
        let queues = self.core.backlogs();
        let unclaimed = self.core.unclaimed_parts();
        let queues: Vec<_> = (!unclaimed.is_empty())
            .then(|| (UNCLAIMED, unclaimed.len() as u64, unclaimed.iter().map(|part| u64::from(part.bytes)).sum()))
            .into_iter()
            .chain(queues)
            .map(|(queue, messages, bytes)| BacklogQueue { queue, messages, bytes })
            .collect();
        tracing::info!(?stream, %sync_point, queues = queues.len(), "a follower catches up from a sync point");
        role.syncs.insert(sync_id, Sync { sync_point: self.core.begin_sync(), unclaimed });
        role.primary.send_base(self.now, stream, sync_id, frames, queues, &mut role.outputs);
    }

    fn end_sync(&mut self, sync_id: SyncId) {
        let Role::Primary(role) = &mut self.role else { return };
        if let Some(sync) = role.syncs.remove(&sync_id) {
            self.core.end_sync(sync.sync_point);
        }
    }

    fn backlog(&mut self, request: BacklogRequest, reply: oneshot::Sender<Result<BacklogReply, String>>) {
        match self.next_chunk(request) {
            Ok(chunk) => self.around.read_backlog(chunk, reply),
            Err(reason) => _ = reply.send(Err(reason)),
        }
    }

    fn next_chunk(&mut self, request: BacklogRequest) -> Result<ChunkToSend, String> {
        let Role::Primary(role) = &mut self.role else { return Err("no longer the primary".into()) };
        if request.epoch != role.primary.epoch() {
            return Err(format!("epoch {} is over: it is {} now", request.epoch, role.primary.epoch()));
        }
        let Some(Sync { sync_point, unclaimed, .. }) = role.syncs.get(&request.sync_id) else {
            return Err("this catch-up is not known here".into());
        };
        let chunk = if request.queue == UNCLAIMED {
            BacklogChunk::of_parts(unclaimed, request.from, BACKLOG_CHUNK_BYTES)
        } else {
            let (bytes, messages) = (BACKLOG_CHUNK_BYTES, BACKLOG_CHUNK_MESSAGES);
            self.core.backlog_chunk(request.queue, request.from, *sync_point, bytes, messages)
        };
        role.primary.handle_fetch(self.now, request.sync_id, request.queue, chunk.done);
        Ok(ChunkToSend {
            queue: request.queue,
            sync_point: Position { epoch: request.epoch, index: *sync_point },
            committed: role.primary.committed(),
            as_of: self.core.last_index(),
            chunk,
        })
    }

    pub(crate) fn show_lease_to_keeper(&mut self) {
        let Role::Primary(role) = &mut self.role else { return };
        let outputs = role.keeper.handle_seen(self.lease.as_ref().map(|(lease, _)| lease));
        self.carry_out_keeper(outputs);
    }

    pub(crate) fn handle_lease_answer(&mut self, epoch: Epoch, answer: LeaseAnswer) {
        let Role::Primary(role) = &mut self.role else { return self.handle_lease_read(epoch, answer) };
        if role.primary.epoch() != epoch {
            return;
        }
        if matches!(answer, LeaseAnswer::Written(_)) {
            role.trouble = None;
        }
        let trouble = match &answer {
            LeaseAnswer::Refused(reason) | LeaseAnswer::Unknown(reason) => Some(reason.clone()),
            LeaseAnswer::Read(_) | LeaseAnswer::Written(_) | LeaseAnswer::Conflict => None,
        };
        let outputs = role.keeper.handle_answer(self.now, answer);
        self.carry_out_keeper(outputs);
        if let Some(reason) = trouble {
            self.handle_hand_over_trouble(&reason);
        }
    }

    pub(crate) fn tick_primary(&mut self) {
        let stalled = self.is_stalled();
        let Role::Primary(role) = &mut self.role else { return };
        role.primary.handle_timeout(self.now, &mut role.outputs);
        self.tick_version();
        let Role::Primary(role) = &mut self.role else { return };
        let (epoch, handing_over) = (role.primary.epoch(), role.hand_over.is_some());
        if stalled && !handing_over && self.hand_over(epoch, None).is_ok() {
            tracing::error!("the journal makes no progress: handing over to a backup");
        }
        self.check_hand_over();
    }

    fn is_stalled(&self) -> bool {
        self.around.journal_stalled_for() >= self.config.stall_timeout
    }

    /// Rule 7: to have heard every member is that each has acknowledged something written after this very blank Lease was
    /// seen, under this epoch. To create a blank one takes no proof.
    fn hears_all(&mut self) -> bool {
        let Role::Primary(role) = &mut self.role else { return false };
        let Some(blank) = role.keeper.blank() else {
            role.proof = None;
            return role.keeper.is_deleted() && role.primary.hears_all();
        };
        if let Some((of, proof)) = &role.proof
            && of == blank
        {
            return role.primary.hears_all() && role.primary.held_by_all() >= *proof;
        }
        let (blank, members) = (blank.clone(), role.primary.in_force().iter().cloned().collect());
        role.proof = Some((blank, self.core.append(Record::InSyncSet { members }, &mut self.out)));
        false
    }

    pub(crate) fn poll_keeper(&mut self) {
        self.drive_hand_over();
        let (stalled, hears_all) = (self.is_stalled(), self.hears_all());
        let Role::Primary(role) = &mut self.role else { return };
        match role.keeper.poll_request(self.now, !stalled, hears_all) {
            Ok(None) => {}
            Ok(Some(request)) => self.around.request_lease(role.primary.epoch(), request),
            Err(error) => role.complain(error.to_string()),
        }
    }

    fn carry_out_keeper(&mut self, outputs: Vec<KeeperOutput>) {
        for output in outputs {
            let Role::Primary(role) = &mut self.role else { return };
            match output {
                KeeperOutput::Outcome(outcome) => role.primary.handle_outcome(self.now, outcome, &mut role.outputs),
                KeeperOutput::Held => role.primary.handle_lease_held(self.now, &mut role.outputs),
                KeeperOutput::Demoted { epoch, holder } => self.demote(epoch, holder.as_ref()),
                KeeperOutput::Trouble(reason) => role.complain(reason),
            }
        }
    }

    /// Tells the connections whether they may go on publishing.
    pub(crate) fn set_flow(&mut self) {
        let with_process = self.config.replicated_only;
        let Role::Primary(role) = &mut self.role else { return };
        let mut reasons = role.shortages(&self.me, self.alarms, with_process);
        if role.primary.is_below_min_in_sync() {
            let have = role.primary.in_force().len();
            reasons.insert(0, format!("{have} replicas in sync, minInSync is {}", self.config.settings.min_in_sync));
        }
        let flow = if !reasons.is_empty() {
            Flow::Blocked(reasons.join("; "))
        } else if role.primary.unsettled_bytes() > UNCOMMITTED_BYTES
            || role.hand_over.as_ref().is_some_and(|hand_over| hand_over.pauses_publishers(self.now))
        {
            Flow::Paused
        } else {
            Flow::Open
        };
        self.shared.set_flow(flow);
    }
}
