//! The core thread and the cluster's version: when it is raised, what it lets be written, and what a build does that it
//! leaves behind.

use understudy_core::Core;
use understudy_record::version::{ClusterVersion, UnknownVersion};
use understudy_record::{Epoch, Frame, Record};
use understudy_replication::PrimaryMessage;

use crate::{Node, Order, Role, ToPrimary, UpstreamEvent};

/// No frame leaves this replica that another one, or its own next build, may not be able to read.
pub(crate) fn check_writable(frames: &[Frame], version: ClusterVersion) {
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
pub(crate) fn unknown_kind(event: &UpstreamEvent) -> Option<String> {
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
    pub(crate) fn take_up_version(&mut self, epoch: Epoch, version: ClusterVersion) {
        self.core.set_cluster_version(version.0);
        if let Some(record) = Record::once_an_epoch(epoch, version) {
            self.core.append(record, &mut self.out);
        }
    }

    /// As primary: asks for the next version once every replica knows it, and takes it up once the Lease has it.
    pub(crate) fn tick_version(&mut self) {
        let Role::Primary(role) = &mut self.role else { return };
        if let Some(next) = role.primary.next_version(&self.config.settings.replicas) {
            role.keeper.raise(next);
        }
        let version = role.keeper.cluster_version();
        if version <= role.primary.cluster_version() {
            return;
        }
        tracing::info!(%version, "the cluster's version is raised: every replica knows it");
        let epoch = role.primary.epoch();
        self.around.order(Order::PersistVersion(version));
        role.primary.handle_version(self.now, version, &mut role.outputs);
        self.take_up_version(epoch, version);
    }

    /// As backup: the Lease is at a version that this build does not know. It neither follows nor stands for election, and
    /// goes on if the Lease says something else.
    pub(crate) fn stand_aside(&mut self, why: UnknownVersion) {
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
    pub(crate) fn give_way(&mut self, reason: String) {
        let Role::Backup(role) = &mut self.role else { return };
        tracing::error!("{reason}");
        role.say(ToPrimary::Leaving(reason.clone(), None));
        self.needs_upgrade = Some(reason);
        self.give_up_checkpoint();
        self.core = Core::new(self.config.seed);
        // The stream is the primary's to end, once it has read that word; nothing that comes on it is heard any more.
        self.role = Role::Recovering;
        self.publish_status();
    }
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use understudy_record::{FRAME_HEADER_BYTES, Index, Position, Rope};
    use understudy_replication::Records;

    use super::*;

    fn frame() -> Frame {
        let record = Record::Discard { parts: vec![Index(3)] };
        Frame::record(Position::new(Epoch(2), Index(7)), Index(0), &record, &mut BytesMut::new())
    }

    /// The frame with the tag of a kind that there is not, as a newer primary would send it.
    fn of_unknown_kind(frame: &Frame) -> Frame {
        let mut bytes = frame.pieces().fold(Vec::new(), |all, piece| [&all[..], piece].concat());
        bytes[FRAME_HEADER_BYTES] = 254;
        let checksum = crc32c::crc32c(&bytes[4..]);
        bytes[..4].copy_from_slice(&checksum.to_le_bytes());
        let mut rope = Rope::default();
        rope.push(bytes.into());
        Frame::take(&mut rope).unwrap().unwrap()
    }

    fn records(frames: Vec<Frame>) -> UpstreamEvent {
        UpstreamEvent::Message(PrimaryMessage::Records(Records { epoch: Epoch(2), committed: Index(0), frames }))
    }

    #[test]
    fn a_record_of_an_unknown_kind_is_seen_before_anything_is_done_with_it() {
        assert_eq!(unknown_kind(&records(vec![frame()])), None);
        let told = unknown_kind(&records(vec![frame(), of_unknown_kind(&frame())]));
        let expected = "the primary sends a record at 2:7 of a kind that this build does not know: upgrade it";
        assert_eq!(told.as_deref(), Some(expected));
    }

    #[test]
    fn what_the_cluster_knows_may_be_written() {
        check_writable(&[frame()], ClusterVersion::FIRST);
    }

    #[test]
    #[should_panic(expected = "the cluster is at ClusterVersion(1)")]
    fn what_it_does_not_know_is_never_written() {
        check_writable(&[of_unknown_kind(&frame())], ClusterVersion::FIRST);
    }
}
