//! The core thread as backup: whom to follow, what its primary sends, and the way out.

use std::time::Duration;

use tokio::sync::mpsc;
use understudy_record::variant::{Variant, is_broken};
use understudy_record::version::VersionRange;
use understudy_record::{Epoch, Identity, ReplicaName};
use understudy_replication::{Backup, BackupOutput, FollowError, LeaseAnswer, LeaseRequest, PrimaryMessage};

use crate::{Node, Order, Role, Target, ToPrimary, UpstreamEvent, Writer, versions};

/// The pause before a connection that failed is tried again; doubles up to the longest.
const SHORTEST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

pub(crate) struct BackupRole {
    pub(crate) backup: Backup,
    /// The connection to the primary, by its number.
    pub(crate) link: Option<u64>,
    sender: Option<mpsc::UnboundedSender<ToPrimary>>,
    pub(crate) target: Option<(Epoch, ReplicaName)>,
    dial_at: Duration,
    pause: Duration,
    /// Why there was no connection, as last told: the same is not worth a line every half second.
    told: String,
}

impl BackupRole {
    pub(crate) fn new(backup: Backup) -> Self {
        Self {
            backup,
            link: None,
            sender: None,
            target: None,
            dial_at: Duration::ZERO,
            pause: SHORTEST_PAUSE,
            told: String::new(),
        }
    }

    /// `false`: there is no connection.
    pub(crate) fn say(&self, word: ToPrimary) -> bool {
        self.sender.as_ref().is_some_and(|sender| sender.send(word).is_ok())
    }
}

impl Node {
    /// The Lease says whom to follow, or that this process is the primary.
    pub(crate) fn follow_lease(&mut self) {
        let Role::Backup(role) = &mut self.role else { return };
        let Some((lease, version)) = &self.lease else { return };
        if let Err(why) = VersionRange::OWN.check(lease.cluster_version()) {
            return self.stand_aside(why);
        }
        self.needs_upgrade = None;
        let Some(holder) = lease.holder() else { return };
        let resumes = is_broken(Variant::ResumeOldRole) && holder.store == self.me.store;
        if *holder == self.me || resumes {
            // Rule 8: this process, not its name. An earlier process's role is nobody's until an election.
            let (lease, version) = (lease.clone(), version.clone());
            // One on its way out that was elected before the set went on without it takes the role, and hands it over.
            let is_fit = self.leaving.is_none() || role.backup.is_clean();
            if is_fit && (lease.epoch() > role.backup.history().last().epoch || resumes) {
                if self.lease_order.is_present(&version) {
                    self.become_primary(lease, version);
                } else if self.lease_order.begin_read(self.now, lease.epoch()) {
                    self.around.request_lease(lease.epoch(), LeaseRequest::Read);
                }
            }
            return;
        }
        let target = (holder.name != self.me.name).then(|| (lease.epoch(), holder.name.clone()));
        if role.target == target {
            return;
        }
        role.target = target;
        role.pause = SHORTEST_PAUSE;
        role.dial_at = self.now;
        if role.link.is_some() {
            self.drop_upstream(true);
        }
        self.tick_backup();
    }

    /// Without a Lease, what a primary says of itself: it makes the Lease anew once it hears every member (rule 7). One whose
    /// epoch is over is told so by the hello (rule 5): as long as it takes itself for the primary nobody else may be elected.
    pub(crate) fn follow_unleased(&mut self, epoch: Epoch, primary: ReplicaName) {
        let Role::Backup(role) = &mut self.role else { return };
        if self.lease.is_some() || role.link.is_some() || primary == self.me.name {
            return;
        }
        role.target = Some((epoch, primary));
        self.tick_backup();
    }

    /// The answer to a read that tells which Lease is there.
    pub(crate) fn handle_lease_read(&mut self, epoch: Epoch, answer: LeaseAnswer) {
        if let Some(seen) = self.lease_order.handle_answer(epoch, answer) {
            self.handle_lease_seen(seen);
        }
    }

    pub(crate) fn tick_backup(&mut self) {
        let now = self.now;
        if self.lease_order.is_read_due(now) {
            self.follow_lease();
        }
        self.with_backup(|backup, _, out| {
            backup.handle_timeout(now, out);
            Ok(())
        });
        let Role::Backup(role) = &mut self.role else { return };
        let Some((epoch, name)) = &role.target else { return };
        if role.link.is_some() || now < role.dial_at || self.leaving.is_some() {
            return;
        }
        let Some(address) = self.around.address_of(name) else {
            tracing::error!(%name, "the Lease names a primary that is none of this cluster's replicas");
            role.dial_at = now + LONGEST_PAUSE;
            return;
        };
        let target = Target { epoch: *epoch, name: name.clone(), address };
        role.link = Some(self.around.dial(target));
        role.dial_at = now + role.pause;
        role.pause = (role.pause * 2).min(LONGEST_PAUSE);
    }

    pub(crate) fn handle_upstream(&mut self, link: u64, event: UpstreamEvent) {
        let now = self.now;
        let Role::Backup(role) = &mut self.role else { return };
        if role.link != Some(link) {
            return; // of a connection that was given up
        }
        if let Some(reason) = versions::unknown_kind(&event) {
            return self.give_way(reason);
        }
        match event {
            UpstreamEvent::Connected(sender) => {
                role.sender = Some(sender);
                let hello = role.backup.handle_connected(now);
                role.say(ToPrimary::Hello(Box::new(hello), self.agreement.own().map(|own| own.at)));
            }
            UpstreamEvent::Message(message) => {
                if let PrimaryMessage::Welcome(welcome) = &message {
                    role.pause = SHORTEST_PAUSE;
                    role.told.clear();
                    tracing::info!(primary = %welcome.primary, epoch = %welcome.epoch, resume = ?welcome.resume, "following");
                }
                self.with_backup(|backup, now, out| match message {
                    PrimaryMessage::Welcome(welcome) => backup.handle_welcome(now, welcome, out),
                    PrimaryMessage::Records(records) => backup.handle_records(now, records, out),
                    PrimaryMessage::Base(base) => backup.handle_base(now, base, out),
                    PrimaryMessage::Version(version) => backup.handle_version(version, out),
                    PrimaryMessage::Waiting(waiting) => backup.handle_waiting(now, waiting, out),
                    PrimaryMessage::Refusal(refusal) => {
                        tracing::debug!(epoch = %refusal.epoch, "refused: {}", refusal.reason);
                        Ok(()) // it ends the stream
                    }
                });
            }
            UpstreamEvent::Backlog(backlog, taken) => {
                self.with_backup(|backup, now, out| backup.handle_backlog(now, backlog, out));
                _ = taken.send(());
            }
            UpstreamEvent::Closed { reset, reason } => {
                if role.backup.primary().is_some() {
                    tracing::warn!("the connection to the primary ended: {reason}");
                } else if role.told == reason {
                    tracing::debug!("no connection to the primary: {reason}");
                } else {
                    tracing::warn!("no connection to the primary: {reason}");
                    role.told = reason;
                }
                self.drop_upstream(reset);
                self.publish_status(); // the elector waits for this witness
            }
        }
    }

    /// Lets the backup take a step, and carries out what it says. An error is the other side's: the connection is closed.
    pub(crate) fn with_backup(
        &mut self,
        step: impl FnOnce(&mut Backup, Duration, &mut Vec<BackupOutput>) -> Result<(), FollowError>,
    ) {
        let Role::Backup(role) = &mut self.role else { return };
        let mut outputs = Vec::new();
        let outcome = step(&mut role.backup, self.now, &mut outputs);
        self.carry_out_backup(outputs);
        self.look_for_difference();
        if let Err(error) = outcome {
            tracing::warn!("the primary is not followed: {error}");
            self.drop_upstream(true);
        }
    }

    pub(crate) fn carry_out_backup(&mut self, outputs: Vec<BackupOutput>) {
        for output in outputs {
            let Role::Backup(role) = &mut self.role else { return };
            match output {
                BackupOutput::PersistEpoch(epoch) => self.around.order(Order::PersistEpoch(epoch)),
                BackupOutput::PersistVersion(version) => self.around.order(Order::PersistVersion(version)),
                BackupOutput::Truncate(after) => {
                    tracing::info!(%after, "cutting a tail that the primary does not have");
                    self.recorded_sets.cut_after(after);
                    self.around.order(Order::Truncate(after));
                }
                BackupOutput::Append(session, frames) => {
                    self.note_sets(&frames);
                    self.checkpoints.note_written(frames.iter().map(understudy_record::Frame::len).sum());
                    self.around.order(Order::Append(Writer::Backup(session), frames));
                }
                BackupOutput::Barrier(session) => self.around.order(Order::Barrier(Writer::Backup(session))),
                BackupOutput::BeginBase => {
                    self.give_up_checkpoint();
                    self.core = understudy_core::Core::new(self.config.seed);
                    self.around.order(Order::BeginBase);
                }
                BackupOutput::CompleteBase(session) => self.around.order(Order::CompleteBase(session)),
                BackupOutput::Apply(frames) => {
                    self.apply(&frames);
                }
                BackupOutput::ApplyBase(frames) => {
                    for frame in frames {
                        let piece = frame.decode_base().map_err(|error| error.to_string());
                        let applied =
                            piece.and_then(|piece| self.core.apply_base(piece).map_err(|error| error.to_string()));
                        if let Err(reason) = applied {
                            return self.end_role(format!("the primary's base cannot be taken: {reason}"));
                        }
                    }
                }
                BackupOutput::Acknowledge(ack) => _ = role.say(ToPrimary::Acknowledge(ack, self.alarms)),
                BackupOutput::CaughtUp(floor) => {
                    tracing::info!(%floor, "caught up");
                    self.agreement.mended();
                    role.say(ToPrimary::CaughtUp(floor));
                }
                BackupOutput::Fetch { epoch, sync_id, queue, from } => {
                    _ = role.say(ToPrimary::Fetch { epoch, sync_id, queue, from });
                }
                BackupOutput::Close(reason) => {
                    tracing::warn!("closing the connection to the primary: {reason}");
                    self.around.hang_up();
                    role.link = None;
                    role.sender = None;
                }
                BackupOutput::Recover => return self.recover(),
            }
        }
    }

    pub(crate) fn drop_upstream(&mut self, reset: bool) {
        self.around.hang_up();
        let now = self.now;
        let Role::Backup(role) = &mut self.role else { return };
        role.link = None;
        role.sender = None;
        let mut outputs = Vec::new();
        role.backup.handle_disconnected(now, reset, &mut outputs);
        self.carry_out_backup(outputs);
    }

    /// The primary takes this replica out of the set first, so that its confirms do not wait for a process that is gone.
    pub(crate) fn leave_as_backup(&mut self) {
        let Role::Backup(role) = &mut self.role else { return };
        if role.sender.is_none() {
            self.ended = true;
            return;
        }
        role.say(ToPrimary::Leaving("the broker is shutting down".into(), None));
        tracing::info!("leaving: the primary has been told");
    }

    /// Whom this backup hears.
    pub(crate) fn heard(&self) -> Option<&Identity> {
        match &self.role {
            Role::Backup(role) => role.backup.primary(),
            _ => None,
        }
    }
}
