//! A base under way on a backup: which queues are fetched and how far, and how fast it goes. It outlives the connection, so that
//! the same primary can go on with it. What is journalled and applied is the backup's business.

use std::collections::VecDeque;
use std::time::Duration;

use understudy_record::{BacklogCursor, Epoch, Position, QueueId};

use crate::backup::Session;
use crate::message::{Backlog, BacklogQueue, Base, HalfBase, SyncId};

/// Queues whose backlog is fetched at the same time: enough to hide a round trip, few enough to leave the live stream room.
const PARALLEL_FETCHES: usize = 4;

/// The rate is that of so many samples, taken at least so far apart: of the last ten seconds.
const RATE_SAMPLES: usize = 20;
const SAMPLE_EVERY: Duration = Duration::from_millis(500);

/// How far a catch-up is. What has left a queue since the sync point counts as done with its queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CatchUpProgress {
    pub queues_done: u64,
    pub queues: u64,
    pub messages_done: u64,
    pub messages: u64,
    /// Of bodies and properties, as are all bytes here.
    pub bytes_done: u64,
    pub bytes: u64,
    /// Over the last seconds.
    pub bytes_per_second: u64,
    /// At that rate; `None` while there is none.
    pub remaining: Option<Duration>,
    /// It went on after a break of the connection.
    pub resumed: bool,
    /// Place in the line of those that wait for their base, from 1; 0: it does not wait.
    pub place: u64,
}

/// One queue that is being fetched.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Fetch {
    queue: BacklogQueue,
    cursor: BacklogCursor,
    messages: u64,
    bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CatchUp {
    epoch: Epoch,
    sync_id: SyncId,
    sync_point: Position,
    waiting: VecDeque<BacklogQueue>,
    fetching: Vec<Fetch>,
    totals: CatchUpProgress,
    /// Of queues that are done.
    messages_done: u64,
    bytes_done: u64,
    fetched_bytes: u64,
    samples: VecDeque<(Duration, u64)>,
    last_progress: Duration,
    /// Without a connection since then.
    parted: Option<Duration>,
    /// Everything has come; under this session the journal was told to put the new log in the old one's place.
    completing: Option<Session>,
}

impl CatchUp {
    /// `epoch`: of the primary that gives the base.
    pub(crate) fn new(now: Duration, epoch: Epoch, base: &Base) -> Self {
        let totals = CatchUpProgress {
            queues: base.queues.len() as u64,
            messages: base.queues.iter().map(|queue| queue.messages).sum(),
            bytes: base.queues.iter().map(|queue| queue.bytes).sum(),
            ..CatchUpProgress::default()
        };
        Self {
            epoch,
            sync_id: base.sync_id,
            sync_point: base.sync_point,
            waiting: base.queues.iter().copied().collect(),
            fetching: Vec::new(),
            totals,
            messages_done: 0,
            bytes_done: 0,
            fetched_bytes: 0,
            samples: [(now, 0)].into(),
            last_progress: now,
            parted: None,
            completing: None,
        }
    }

    pub(crate) fn name(&self) -> HalfBase {
        HalfBase { epoch: self.epoch, sync_id: self.sync_id }
    }

    pub(crate) fn sync_point(&self) -> Position {
        self.sync_point
    }

    /// Nothing more is to be fetched.
    pub(crate) fn has_all(&self) -> bool {
        self.waiting.is_empty() && self.fetching.is_empty()
    }

    pub(crate) fn parted(&self) -> Option<Duration> {
        self.parted
    }

    pub(crate) fn is_stuck(&self, now: Duration, deadline: Duration) -> bool {
        self.parted.is_none() && !self.fetching.is_empty() && now.saturating_sub(self.last_progress) >= deadline
    }

    pub(crate) fn completing(&self) -> Option<Session> {
        self.completing
    }

    pub(crate) fn complete_under(&mut self, session: Session) {
        self.completing = Some(session);
    }

    pub(crate) fn part(&mut self, now: Duration) {
        self.parted.get_or_insert(now);
    }

    /// The same primary goes on. Returns what was being fetched, and how far it had come.
    pub(crate) fn resume(&mut self, now: Duration) -> impl Iterator<Item = (QueueId, BacklogCursor)> {
        self.parted = None;
        self.last_progress = now;
        self.totals.resumed = true;
        self.samples = [(now, self.fetched_bytes)].into();
        self.fetching.iter().map(|fetch| (fetch.queue.queue, fetch.cursor))
    }

    /// The next queue to fetch, if there is one and room for it.
    pub(crate) fn fetch_next(&mut self) -> Option<(QueueId, BacklogCursor)> {
        if self.fetching.len() >= PARALLEL_FETCHES {
            return None;
        }
        let queue = self.waiting.pop_front()?;
        self.fetching.push(Fetch { queue, cursor: BacklogCursor::START, messages: 0, bytes: 0 });
        Some((queue.queue, BacklogCursor::START))
    }

    /// Takes note of a part of a backlog; `false` if it is not the one that comes next.
    pub(crate) fn take(&mut self, now: Duration, backlog: &Backlog) -> bool {
        let place = self.fetching.iter().position(|fetch| fetch.queue.queue == backlog.queue);
        let Some((place, fetch)) = place.and_then(|place| Some((place, self.fetching.get_mut(place)?))) else {
            return false;
        };
        if fetch.cursor != backlog.from {
            return false;
        }
        fetch.cursor = backlog.next;
        fetch.messages = fetch.messages.saturating_add(backlog.messages).min(fetch.queue.messages);
        fetch.bytes = fetch.bytes.saturating_add(backlog.bytes).min(fetch.queue.bytes);
        if backlog.done {
            let fetch = self.fetching.swap_remove(place);
            self.messages_done += fetch.queue.messages;
            self.bytes_done += fetch.queue.bytes;
            self.totals.queues_done += 1;
        }
        self.last_progress = now;
        self.fetched_bytes = self.fetched_bytes.saturating_add(backlog.bytes);
        if self.samples.back().is_none_or(|(at, _)| now.saturating_sub(*at) >= SAMPLE_EVERY) {
            if self.samples.len() == RATE_SAMPLES {
                self.samples.pop_front();
            }
            self.samples.push_back((now, self.fetched_bytes));
        }
        true
    }

    pub(crate) fn progress(&self, now: Duration) -> CatchUpProgress {
        let fetching = |count: fn(&Fetch) -> u64| self.fetching.iter().map(count).sum::<u64>();
        let bytes_done = self.bytes_done + fetching(|fetch| fetch.bytes);
        let (since, before) = self.samples.front().copied().unwrap_or_default();
        let seconds = now.saturating_sub(since).as_secs_f64();
        let rate = if seconds > 0.0 { (self.fetched_bytes - before) as f64 / seconds } else { 0.0 };
        let left = self.totals.bytes.saturating_sub(bytes_done);
        CatchUpProgress {
            messages_done: self.messages_done + fetching(|fetch| fetch.messages),
            bytes_done,
            bytes_per_second: rate as u64,
            remaining: Duration::try_from_secs_f64(left as f64 / rate).ok(),
            ..self.totals
        }
    }
}

#[cfg(test)]
mod tests {
    use understudy_record::Index;

    use super::*;

    fn queue(id: u64, messages: u64, bytes: u64) -> BacklogQueue {
        BacklogQueue { queue: QueueId(Index(id)), messages, bytes }
    }

    fn chunk(id: u64, from: BacklogCursor, next: u64, messages: u64, done: bool) -> Backlog {
        Backlog {
            sync_id: SyncId(1),
            queue: QueueId(Index(id)),
            from,
            next: Index(next).into(),
            as_of: Index(100),
            frames: vec![],
            messages,
            bytes: messages * 10,
            done,
        }
    }

    fn catch_up(queues: Vec<BacklogQueue>) -> CatchUp {
        let sync_point = Position::new(Epoch(1), Index(100));
        CatchUp::new(at(0), Epoch(1), &Base { epoch: Epoch(1), sync_id: SyncId(1), sync_point, frames: vec![], queues })
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn what_has_left_a_queue_counts_as_done_with_it() {
        let mut catch_up = catch_up(vec![queue(1, 50, 500), queue(2, 50, 500)]);
        assert!(catch_up.fetch_next().is_some() && catch_up.fetch_next().is_some() && catch_up.fetch_next().is_none());
        assert!(catch_up.take(at(5), &chunk(1, BacklogCursor::START, 70, 20, false)));
        let progress = catch_up.progress(at(10));
        assert_eq!((progress.messages_done, progress.bytes_done, progress.bytes_per_second), (20, 200, 20));
        assert_eq!(progress.remaining, Some(at(40)));
        assert!(catch_up.take(at(10), &chunk(1, Index(70).into(), 60, 1, true)));
        let progress = catch_up.progress(at(10));
        assert_eq!((progress.queues_done, progress.messages_done, progress.bytes_done), (1, 50, 500));
        assert!(!catch_up.has_all());
    }

    #[test]
    fn a_part_is_taken_once_and_in_its_place() {
        let mut catch_up = catch_up(vec![queue(1, 50, 500)]);
        catch_up.fetch_next();
        assert!(catch_up.take(at(1), &chunk(1, BacklogCursor::START, 70, 20, false)));
        assert!(!catch_up.take(at(1), &chunk(1, BacklogCursor::START, 70, 20, false)), "twice");
        assert!(!catch_up.take(at(1), &chunk(1, Index(60).into(), 50, 5, false)), "one is missing");
        assert!(!catch_up.take(at(1), &chunk(2, BacklogCursor::START, 70, 20, false)), "nobody asked for it");
        catch_up.part(at(2));
        assert_eq!(catch_up.resume(at(3)).collect::<Vec<_>>(), [(QueueId(Index(1)), Index(70).into())]);
        assert!(catch_up.progress(at(3)).resumed);
    }

    #[test]
    fn a_rate_is_that_of_the_last_seconds() {
        let mut catch_up = catch_up(vec![queue(1, 1 << 40, 1 << 40)]);
        catch_up.fetch_next();
        assert_eq!(catch_up.progress(at(0)).remaining, None);
        let mut from = BacklogCursor::START;
        for second in 1..=100 {
            let messages = if second <= 50 { 1000 } else { 10 };
            let next = 10_000 - second;
            assert!(catch_up.take(at(second), &chunk(1, from, next, messages, false)));
            from = Index(next).into();
        }
        assert_eq!(catch_up.progress(at(100)).bytes_per_second, 100);
    }
}
