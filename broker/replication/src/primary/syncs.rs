//! Catch-ups from a sync point, on the primary: who waits for one, how many run at once, which of them may go on after a break,
//! and when one that stands still is ended. What a base and a backlog are is the caller's business.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use understudy_record::{Frame, Identity, Index, QueueId};

use super::{Follower, Primary, PrimaryOutput, StreamId};
use crate::message::{BacklogQueue, Base, HalfBase, Hello, PrimaryMessage, SyncId, Waiting};

/// A catch-up whose connection broke may go on for so many times the backup timeout: long enough for a link to be mended or a
/// frozen process to wake. It holds up nobody else meanwhile, but records that it lacks stay in the log.
pub(crate) const KEPT_TIMEOUTS: u32 = 30;

/// A catch-up that has fetched nothing for so many times the backup timeout, or for so long, is ended, and goes to the end of
/// the line: the longer of the two. Twice what a backup itself waits, so that this is for those that do not look after it.
const STILL_TIMEOUTS: u32 = 10;
const STILL_AT_LEAST: Duration = Duration::from_secs(20);

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Syncs {
    syncs: BTreeMap<SyncId, Sync>,
    /// Who needs a base and has to wait, in order.
    line: VecDeque<StreamId>,
    last: u64,
}

/// One catch-up from a sync point.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Sync {
    follower: Identity,
    sync_point: Index,
    /// Queues whose backlog has not been fetched to its end.
    left: BTreeSet<QueueId>,
    queues: usize,
    /// The first record that the follower may not have received.
    missing_from: Index,
    last_progress: Duration,
    link: Link,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Link {
    /// The base is being made for this stream.
    Taking(StreamId),
    Running(StreamId),
    /// Without a stream since then.
    Parted(Duration),
}

impl Link {
    fn stream(self) -> Option<StreamId> {
        match self {
            Self::Taking(stream) | Self::Running(stream) => Some(stream),
            Self::Parted(_) => None,
        }
    }
}

/// How far a follower's catch-up is, as its primary sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FollowerCatchUp {
    /// Its place in the line, from 1.
    Waiting {
        place: u64,
    },
    Running {
        queues_done: u64,
        queues: u64,
    },
}

impl Syncs {
    fn of_stream(&mut self, stream: StreamId) -> Option<(SyncId, &mut Sync)> {
        let mut all = self.syncs.iter_mut();
        all.find(|(_, sync)| sync.link.stream() == Some(stream)).map(|(id, sync)| (*id, sync))
    }

    fn running(&self) -> usize {
        self.syncs.values().filter(|sync| sync.link.stream().is_some()).count()
    }

    fn place(&self, stream: StreamId) -> Option<u64> {
        self.line.iter().position(|waiting| *waiting == stream).map(|place| place as u64 + 1)
    }

    pub(super) fn status(&self, stream: StreamId) -> Option<FollowerCatchUp> {
        if let Some(place) = self.place(stream) {
            return Some(FollowerCatchUp::Waiting { place });
        }
        let sync = self.syncs.values().find(|sync| sync.link.stream() == Some(stream))?;
        let (queues, left) = (sync.queues as u64, sync.left.len() as u64);
        Some(FollowerCatchUp::Running { queues_done: queues.saturating_sub(left), queues })
    }

    /// The first record that a catch-up may ask the log for. `parted`: those without a stream, too.
    pub(super) fn missing_from(&self, parted: bool) -> Option<Index> {
        let wanted = self.syncs.values().filter(|sync| match sync.link {
            Link::Taking(_) => false,
            Link::Running(_) => true,
            Link::Parted(_) => parted,
        });
        wanted.map(|sync| sync.missing_from).min()
    }
}

impl Primary {
    /// A part of a catch-up's backlog is about to be read for the follower; `done`: the last one of its queue.
    pub fn handle_fetch(&mut self, now: Duration, sync_id: SyncId, queue: QueueId, done: bool) {
        if let Some(sync) = self.syncs.syncs.get_mut(&sync_id) {
            sync.last_progress = now;
            if done {
                sync.left.remove(&queue);
            }
        }
    }

    /// Whether the half base of this hello goes on; it is given up if not.
    pub(super) fn resume_sync(
        &mut self,
        now: Duration,
        stream: StreamId,
        hello: &Hello,
        common: Index,
        out: &mut Vec<PrimaryOutput>,
    ) -> Option<SyncId> {
        let named = hello.half_base.filter(|half| half.epoch == self.epoch);
        let there = |sync: &Sync| {
            let whole = common == hello.history.last().index && common >= sync.sync_point;
            let readable = common.next() >= self.log_first || self.recent.holds(common.next());
            sync.follower == hello.follower && matches!(sync.link, Link::Parted(_)) && whole && readable
        };
        let known = named.filter(|half| self.syncs.syncs.get(&half.sync_id).is_some_and(there));
        let resumed = known.map(|HalfBase { sync_id, .. }| sync_id);
        self.end_syncs(out, |id, sync| sync.follower.name == hello.follower.name && Some(id) != resumed);
        let sync = self.syncs.syncs.get_mut(&resumed?)?;
        sync.link = Link::Running(stream);
        sync.last_progress = now;
        sync.missing_from = common.next();
        resumed
    }

    /// The follower needs a base, and has been welcomed: it gets one at once, or waits for its turn.
    pub(super) fn enter_line(&mut self, now: Duration, stream: StreamId, out: &mut Vec<PrimaryOutput>) {
        self.syncs.line.push_back(stream);
        self.take_next_base(now, out);
        self.send_place(now, stream, out);
    }

    pub(super) fn take_next_base(&mut self, now: Duration, out: &mut Vec<PrimaryOutput>) {
        while self.syncs.running() < self.config.max_catch_ups
            && let Some(stream) = self.syncs.line.pop_front()
        {
            let Some(follower) = self.followers.get(&stream) else { continue };
            self.syncs.last += 1;
            let sync_id = SyncId(self.syncs.last);
            let sync = Sync {
                follower: follower.identity.clone(),
                sync_point: Index(0),
                left: BTreeSet::new(),
                queues: 0,
                missing_from: Index(0),
                last_progress: now,
                link: Link::Taking(stream),
            };
            self.syncs.syncs.insert(sync_id, sync);
            out.push(PrimaryOutput::TakeBase(stream, sync_id));
        }
    }

    /// The answer to `TakeBase`, given before anything else is appended: the sync point is the last record, and every
    /// later one follows live.
    pub fn send_base(
        &mut self,
        now: Duration,
        stream: StreamId,
        sync_id: SyncId,
        frames: Vec<Frame>,
        queues: Vec<BacklogQueue>,
        out: &mut Vec<PrimaryOutput>,
    ) {
        let sync_point = self.last();
        if !self.begin_sync(now, stream, sync_id, sync_point.index, &queues) {
            return;
        }
        let Some(follower) = self.followers.get_mut(&stream) else { return };
        follower.next = sync_point.index.next();
        follower.backlog_to = sync_point.index;
        follower.awaits_base = false;
        let base = Base { epoch: self.epoch, sync_id, sync_point, frames, queues };
        out.push(PrimaryOutput::Send(stream, PrimaryMessage::Base(base)));
        self.pump(now, stream, out);
    }

    /// The base has been made; `false` if nobody waits for it any more.
    fn begin_sync(
        &mut self,
        now: Duration,
        stream: StreamId,
        sync_id: SyncId,
        sync_point: Index,
        queues: &[BacklogQueue],
    ) -> bool {
        let Some(sync) = self.syncs.syncs.get_mut(&sync_id) else { return false };
        if sync.link != Link::Taking(stream) {
            return false;
        }
        sync.link = Link::Running(stream);
        (sync.sync_point, sync.missing_from) = (sync_point, sync_point.next());
        (sync.queues, sync.left) = (queues.len(), queues.iter().map(|queue| queue.queue).collect());
        sync.last_progress = now;
        true
    }

    /// The follower has received everything up to `received`. Once no backlog is left, this is what progress there is.
    pub(super) fn note_received(&mut self, now: Duration, stream: StreamId, received: Index) {
        if let Some((_, sync)) = self.syncs.of_stream(stream)
            && received >= sync.missing_from
        {
            sync.missing_from = received.next();
            if sync.left.is_empty() {
                sync.last_progress = now;
            }
        }
    }

    /// A follower's stream is gone. Its catch-up, if it has a base, may go on later.
    pub(super) fn part_sync(&mut self, now: Duration, stream: StreamId, out: &mut Vec<PrimaryOutput>) {
        self.syncs.line.retain(|waiting| *waiting != stream);
        if let Some((id, sync)) = self.syncs.of_stream(stream) {
            match sync.link {
                Link::Running(_) => sync.link = Link::Parted(now),
                Link::Taking(_) | Link::Parted(_) => self.end_syncs(out, |other, _| other == id),
            }
        }
    }

    /// The follower's base is whole, or it will not go on with it.
    pub(super) fn end_sync_of(&mut self, stream: StreamId, out: &mut Vec<PrimaryOutput>) {
        self.syncs.line.retain(|waiting| *waiting != stream);
        self.end_syncs(out, |_, sync| sync.link.stream() == Some(stream));
    }

    fn end_syncs(&mut self, out: &mut Vec<PrimaryOutput>, which: impl Fn(SyncId, &Sync) -> bool) {
        let ended = self.syncs.syncs.extract_if(.., |id, sync| which(*id, sync));
        out.extend(ended.map(|(id, _)| PrimaryOutput::EndSync(id)));
    }

    /// Ends what was kept for too long and what stands still; who waits gets its turn, and hears that it waits.
    pub(super) fn watch_syncs(&mut self, now: Duration, out: &mut Vec<PrimaryOutput>) {
        let timeout = self.config.backup_timeout;
        let (kept, still) = (timeout * KEPT_TIMEOUTS, (timeout * STILL_TIMEOUTS).max(STILL_AT_LEAST));
        self.end_syncs(out, |_, sync| matches!(sync.link, Link::Parted(since) if now.saturating_sub(since) >= kept));
        let stands_still = |sync: &Sync| now.saturating_sub(sync.last_progress) >= still;
        let stuck = self.syncs.syncs.values().filter(|sync| stands_still(sync)).filter_map(|sync| sync.link.stream());
        for stream in stuck.collect::<Vec<_>>() {
            self.end_sync_of(stream, out);
            self.close(now, stream, &format!("its catch-up has stood still for {} s", still.as_secs()), out);
        }
        self.take_next_base(now, out);
        let interval = timeout / 5;
        let due = |follower: &Follower| now.saturating_sub(follower.last_sent) >= interval;
        let line = self.syncs.line.iter().filter(|stream| self.followers.get(stream).is_some_and(due));
        for stream in line.copied().collect::<Vec<_>>() {
            self.send_place(now, stream, out);
        }
    }

    fn send_place(&mut self, now: Duration, stream: StreamId, out: &mut Vec<PrimaryOutput>) {
        let Some(place) = self.syncs.place(stream) else { return };
        let Some(follower) = self.followers.get_mut(&stream) else { return };
        follower.last_sent = now;
        let waiting = Waiting { epoch: self.epoch, place };
        out.push(PrimaryOutput::Send(stream, PrimaryMessage::Waiting(waiting)));
    }
}
