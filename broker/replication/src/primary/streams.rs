//! What each follower is sent, and when a stream ends: records from memory or by way of the journal, heartbeats, refusals.

use std::time::Duration;

use understudy_record::Frame;

use super::{BATCH_BYTES, Primary, PrimaryOutput, StreamId, WINDOW_BYTES};
use crate::message::{PrimaryMessage, Records, Refusal};

impl Primary {
    pub(super) fn close_silent(&mut self, now: Duration, out: &mut Vec<PrimaryOutput>) {
        let timeout = self.config.backup_timeout;
        let stall = self.config.stall_timeout;
        let silent = self.followers.iter().filter(|(_, follower)| {
            let stands_still = !follower.in_flight.is_empty() && now.saturating_sub(follower.last_progress) >= stall;
            stands_still || now.saturating_sub(follower.last_heard) >= timeout
        });
        for stream in silent.map(|(stream, _)| *stream).collect::<Vec<_>>() {
            if let Some(follower) = self.followers.get(&stream) {
                self.mark_lost(now, follower.member.clone(), Duration::ZERO);
            }
            self.close(now, stream, &format!("silent for {} ms", timeout.as_millis()), out);
        }
    }

    pub(super) fn send_heartbeats(&mut self, now: Duration, out: &mut Vec<PrimaryOutput>) {
        let interval = self.config.backup_timeout / 5;
        let quiet = self
            .followers
            .iter()
            .filter(|(_, follower)| !follower.awaits_base && now.saturating_sub(follower.last_sent) >= interval);
        for stream in quiet.map(|(stream, _)| *stream).collect::<Vec<_>>() {
            self.send_records(now, stream, Vec::new(), out);
        }
    }

    pub(super) fn pump_all(&mut self, now: Duration, out: &mut Vec<PrimaryOutput>) {
        for stream in self.followers.keys().copied().collect::<Vec<_>>() {
            self.pump(now, stream, out);
        }
    }

    /// Sends what the follower lacks and its window takes: from memory, or by way of the journal.
    pub(super) fn pump(&mut self, now: Duration, stream: StreamId, out: &mut Vec<PrimaryOutput>) {
        loop {
            let Some(follower) = self.followers.get_mut(&stream) else { return };
            let full = follower.in_flight_bytes >= WINDOW_BYTES;
            if full || follower.reading || follower.awaits_base || follower.next >= self.recent.next() {
                return;
            }
            if !self.recent.holds(follower.next) {
                follower.reading = true;
                out.push(PrimaryOutput::ReadLog(stream, follower.next));
                return;
            }
            let frames = self.recent.from(follower.next, BATCH_BYTES);
            self.send_records(now, stream, frames, out);
        }
    }

    pub(super) fn send_records(
        &mut self,
        now: Duration,
        stream: StreamId,
        frames: Vec<Frame>,
        out: &mut Vec<PrimaryOutput>,
    ) {
        // The one place where frames leave for a follower, from memory or from the log.
        let frames: Vec<Frame> = match frames.into_iter().map(Frame::for_followers).collect() {
            Ok(frames) => frames,
            Err(error) => return self.close(now, stream, &format!("a record cannot be read: {error}"), out),
        };
        let committed = self.commit.committed();
        let Some(follower) = self.followers.get_mut(&stream) else { return };
        follower.last_sent = now;
        if let Some(last) = frames.last() {
            let (index, bytes) = (last.position.index, frames.iter().map(Frame::len).sum());
            follower.next = index.next();
            if follower.in_flight.is_empty() {
                follower.last_progress = now;
            }
            follower.in_flight.push_back((index, bytes));
            follower.in_flight_bytes += bytes;
        }
        let records = Records { epoch: self.epoch, committed, frames };
        out.push(PrimaryOutput::Send(stream, PrimaryMessage::Records(records)));
    }

    pub(super) fn refuse(&self, stream: StreamId, reason: &str, out: &mut Vec<PrimaryOutput>) {
        let refusal = Refusal { epoch: self.epoch, reason: reason.into() };
        out.push(PrimaryOutput::Send(stream, PrimaryMessage::Refusal(refusal)));
        out.push(PrimaryOutput::Close(stream, reason.into()));
    }

    pub(super) fn close(&mut self, now: Duration, stream: StreamId, reason: &str, out: &mut Vec<PrimaryOutput>) {
        out.push(PrimaryOutput::Close(stream, reason.into()));
        if let Some(follower) = self.followers.remove(&stream) {
            self.part_sync(now, stream, out);
            self.mark_lost(now, follower.member, self.reset_grace());
        }
    }
}
