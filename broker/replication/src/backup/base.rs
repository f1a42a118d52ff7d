//! A base on its way into this replica: its place in the line, the topology, the queues' backlogs, and when it is whole.

use std::time::Duration;

use bytes::BytesMut;
use understudy_record::{BasePiece, Frame, Index};

use super::{Backup, BackupOutput, Building, FollowError, Link, Session};
use crate::catch_up::CatchUp;
use crate::history::History;
use crate::message::{Acknowledge, Backlog, Base, Waiting};
use crate::primary::KEPT_TIMEOUTS;

/// A catch-up that has brought nothing for so many times the backup timeout, or for so long, is begun anew: the longer of the
/// two, since a limited bandwidth may make a part of it take some seconds.
const STUCK_TIMEOUTS: u32 = 5;
const STUCK_AT_LEAST: Duration = Duration::from_secs(10);

impl Backup {
    /// Others' bases come first.
    pub fn handle_waiting(
        &mut self,
        now: Duration,
        waiting: Waiting,
        out: &mut Vec<BackupOutput>,
    ) -> Result<(), FollowError> {
        self.check_epoch(waiting.epoch)?;
        let Link::AwaitingBase { last_heard, place, .. } = &mut self.link else {
            return Err(FollowError::OutOfPlace { what: "a place in the line" });
        };
        (*last_heard, *place) = (now, waiting.place);
        if self.epoch_is_durable {
            // It says that this replica lives, and nothing of its log, which the base will replace.
            let (durable, received) = (Index(0), Index(0));
            out.push(BackupOutput::Acknowledge(Acknowledge { epoch: self.known_epoch, durable, received }));
        }
        Ok(())
    }

    /// The topology as of the sync point: from here on the old log is kept, unused, until the new one is whole.
    pub fn handle_base(&mut self, now: Duration, base: Base, out: &mut Vec<BackupOutput>) -> Result<(), FollowError> {
        let Link::AwaitingBase { primary, .. } = &self.link else {
            return Err(FollowError::OutOfPlace { what: "a base" });
        };
        let primary = primary.clone();
        self.check_epoch(base.epoch)?;
        let start = base.frames.first().ok_or_else(|| FollowError::BadBase("it is empty".into()))?;
        let start = start.decode_base().map_err(|error| FollowError::BadBase(error.to_string()))?;
        let BasePiece::Start { sync_point, epochs, .. } = start else {
            return Err(FollowError::BadBase("it does not begin with its start".into()));
        };
        let history = History::new(epochs, sync_point.index).filter(|history| history.last() == sync_point);
        let history = history.filter(|_| sync_point == base.sync_point);
        self.history = history.ok_or_else(|| FollowError::BadBase("its epochs are not in order".into()))?;
        self.first = sync_point.index.next();
        (self.committed, self.applied, self.floor) = (sync_point.index, sync_point.index, sync_point.index);
        self.session += 1;
        (self.durable, self.log_session) = (Index(0), self.session);
        self.pending.clear();
        self.building = Building::Base(Box::new(CatchUp::new(now, self.known_epoch, &base)));
        self.completed = None;
        self.link = Link::Following { primary, last_heard: now };
        out.push(BackupOutput::BeginBase);
        out.push(BackupOutput::Append(self.session, base.frames.clone()));
        out.push(BackupOutput::ApplyBase(base.frames));
        self.fetch_next(out);
        Ok(())
    }

    pub fn handle_backlog(
        &mut self,
        now: Duration,
        backlog: Backlog,
        out: &mut Vec<BackupOutput>,
    ) -> Result<(), FollowError> {
        let Building::Base(catch_up) = &mut self.building else { return Ok(()) };
        if catch_up.name().sync_id != backlog.sync_id {
            return Ok(()); // of a catch-up that was given up
        }
        if !catch_up.take(now, &backlog) {
            return Err(FollowError::OutOfPlace { what: "a part of a backlog" });
        }
        let Backlog { queue, as_of, mut frames, done, .. } = backlog;
        self.floor = self.floor.max(as_of);
        if done {
            let piece = BasePiece::QueueDone { queue };
            frames.push(Frame::base(catch_up.sync_point(), self.committed, &piece, &mut BytesMut::new()));
        }
        out.push(BackupOutput::Append(self.session, frames.clone()));
        out.push(BackupOutput::ApplyBase(frames));
        self.fetch_next(out);
        Ok(())
    }

    /// The new log has taken the old one's place.
    pub fn handle_base_completed(&mut self, session: Session, out: &mut Vec<BackupOutput>) {
        let Building::Base(catch_up) = &self.building else { return };
        if catch_up.completing() != Some(session) {
            return;
        }
        self.completed = Some(catch_up.name());
        self.building = Building::Nothing;
        self.damaged = false;
        if let Link::Following { .. } = self.link {
            out.push(BackupOutput::CaughtUp(self.floor));
        }
    }

    /// One that stands still is begun anew; one whose primary does not come back is given up.
    pub(super) fn watch_base(&mut self, now: Duration, out: &mut Vec<BackupOutput>) {
        let timeout = self.config.backup_timeout;
        let Building::Base(catch_up) = &self.building else { return };
        if catch_up.is_stuck(now, (timeout * STUCK_TIMEOUTS).max(STUCK_AT_LEAST)) {
            out.push(BackupOutput::Close("the catch-up stands still: it is begun anew".into()));
            self.building = Building::Remains;
            self.handle_disconnected(now, true, out);
        } else if let Link::Down { .. } = self.link
            && catch_up.parted().is_some_and(|since| now.saturating_sub(since) >= timeout * KEPT_TIMEOUTS)
        {
            self.building = Building::Remains;
            out.push(BackupOutput::Recover);
        }
    }

    pub(super) fn fetch_next(&mut self, out: &mut Vec<BackupOutput>) {
        let Building::Base(catch_up) = &mut self.building else { return };
        let (epoch, sync_id) = (self.known_epoch, catch_up.name().sync_id);
        while let Some((queue, from)) = catch_up.fetch_next() {
            out.push(BackupOutput::Fetch { epoch, sync_id, queue, from });
        }
        let reached = self.history.last().index >= self.floor; // what the base shows effects of
        if catch_up.has_all() && catch_up.completing().is_none() && reached {
            catch_up.complete_under(self.session);
            let piece = BasePiece::End { floor: self.floor };
            let end = vec![Frame::base(catch_up.sync_point(), self.committed, &piece, &mut BytesMut::new())];
            out.push(BackupOutput::Append(self.session, end.clone()));
            out.push(BackupOutput::ApplyBase(end));
            out.push(BackupOutput::CompleteBase(self.session));
        }
    }
}
