//! The core thread and the cluster's version: when it is raised, what it lets be written, and what a build does that it
//! leaves behind.

use understudy_record::version::{ClusterVersion, UnknownVersion};
use understudy_record::{Epoch, Frame, Record};
use understudy_replication::PrimaryMessage;

use super::{Node, Order, Role, ToPrimary, UpstreamEvent};

/// No frame leaves this replica that another one, or its own next build, may not be able to read.
pub(super) fn check_writable(frames: &[Frame], version: ClusterVersion) {
    for frame in frames {
        let since = frame.since();
        assert!(
            since.is_some_and(|since| since <= version),
            "{:?} {} is of version {since:?}, the cluster is at {version:?}",
            frame.kind,
            frame.position
        );
    }
}

/// What the primary has sent and this build cannot read: it goes neither to the journal nor to the state.
pub(super) fn unknown_kind(event: &UpstreamEvent) -> Option<String> {
    let frames = match event {
        UpstreamEvent::Message(PrimaryMessage::Records(records)) => &records.frames,
        UpstreamEvent::Message(PrimaryMessage::Base(base)) => &base.frames,
        UpstreamEvent::Backlog(backlog, _) => &backlog.frames,
        _ => return None,
    };
    let unknown = frames.iter().find(|frame| frame.since().is_none())?;
    let position = unknown.position;
    Some(format!("the primary sends a record at {position} of a kind that this build does not know: upgrade it"))
}

impl Node {
    /// As primary: what came with `version` may be written from here on. Its store remembers the version already.
    pub(super) fn take_up_version(&mut self, epoch: Epoch, version: ClusterVersion) {
        self.core.set_cluster_version(version.0);
        if let Some(record) = Record::once_an_epoch(epoch, version) {
            self.core.append(record, &mut self.out);
        }
    }

    /// As primary: asks for the next version once every replica knows it, and takes it up once the Lease has it.
    pub(super) fn tick_version(&mut self) {
        let Role::Primary(role) = &mut self.role else { return };
        if let Some(next) = role.primary.next_version(&self.config.replica_names()) {
            role.keeper.raise(next);
        }
        let version = role.keeper.cluster_version();
        if version <= role.primary.cluster_version() {
            return;
        }
        tracing::info!(%version, "the cluster's version is raised: every replica knows it");
        let epoch = role.primary.epoch();
        self.journal.order(Order::PersistVersion(version));
        role.primary.handle_version(self.now, version, &mut role.outputs);
        self.take_up_version(epoch, version);
    }

    /// As backup: the Lease is at a version that this build does not know. It neither follows nor stands for election, and
    /// goes on if the Lease says something else.
    pub(super) fn stand_aside(&mut self, why: UnknownVersion) {
        let reason = format!("this build {why}");
        if self.needs_upgrade.as_ref() != Some(&reason) {
            tracing::error!("{reason}");
            self.needs_upgrade = Some(reason);
        }
        let Role::Backup(role) = &mut self.role else { return };
        role.target = None;
        if role.link.is_some() {
            self.drop_upstream(true);
        }
        self.publish_status();
    }

    /// As backup: the primary has been told and takes this replica out of the set, whose log is whole as far as it goes and
    /// waits for a build that can read what comes next. This process stays, since another one of its kind could do no more.
    pub(super) fn give_way(&mut self, reason: String) {
        let Role::Backup(role) = &mut self.role else { return };
        tracing::error!("{reason}");
        role.say(ToPrimary::Leaving(reason.clone()));
        self.needs_upgrade = Some(reason);
        self.give_up_checkpoint();
        // The stream is the primary's to end, once it has read that word; nothing that comes on it is heard any more.
        self.role = Role::Recovering;
        self.publish_status();
    }
}
