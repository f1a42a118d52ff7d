//! What catch-ups may take of the network, the disk and the processors: a token bucket that all of them share, first come, first
//! served, and turns while live traffic goes on. Live records do not pass here.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use understudy_record::Index;

/// What was not used is kept for so long: a part of a backlog that is late by less is not slowed down for it.
const CREDIT: Duration = Duration::from_millis(50);

/// While live traffic goes on, all catch-ups together rest for so many times what it took to make a part of a backlog. Where the
/// core thread, the disk or the processors are busy that is long, so they give way the more, the less there is to share.
const REST: u32 = 3;

/// Yet no longer: a replica that is not in the set protects nobody, and on a busy machine the time that a part took is mostly
/// its wait for the core thread.
const LONGEST_REST: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub(crate) struct Bandwidth {
    /// Bytes a second; `None`: no limit.
    limit: Option<NonZeroU64>,
    /// When everything granted so far has passed.
    passed: Mutex<Option<Instant>>,
    /// The log's last record, when a part of a backlog was last made.
    seen: AtomicU64,
    /// Records were written between the last two of them.
    is_live: AtomicBool,
    turn: tokio::sync::Mutex<()>,
}

impl Bandwidth {
    pub(crate) fn new(limit: Option<NonZeroU64>) -> Self {
        let (passed, seen, is_live) = (Mutex::new(None), AtomicU64::new(0), AtomicBool::new(false));
        Self { limit, passed, seen, is_live, turn: tokio::sync::Mutex::new(()) }
    }

    /// Grants `bytes`, and says from when on they may go.
    fn grant(&self, now: Instant, bytes: usize) -> Instant {
        let Some(limit) = self.limit else { return now };
        let mut passed = self.passed.lock().unwrap_or_else(PoisonError::into_inner);
        let earliest = now.checked_sub(CREDIT).unwrap_or(now);
        let start = passed.map_or(earliest, |passed| passed.max(earliest));
        *passed = Some(start + Duration::from_secs_f64(bytes as f64 / limit.get() as f64));
        start.max(now)
    }

    /// A part of a backlog was made when this was the log's last record.
    pub(crate) fn note(&self, last: Index) {
        let before = self.seen.swap(last.0, Ordering::Relaxed);
        self.is_live.store(before != last.0, Ordering::Relaxed);
    }

    /// Makes a part of a backlog: with live traffic one at a time, and a rest after each. `urgent`: nobody gives way.
    pub(crate) async fn make<T>(&self, urgent: bool, making: impl Future<Output = T>) -> T {
        if urgent || !self.is_live.load(Ordering::Relaxed) {
            return making.await;
        }
        let _turn = self.turn.lock().await;
        let begun = Instant::now();
        let made = making.await;
        tokio::time::sleep((begun.elapsed() * REST).min(LONGEST_REST)).await;
        made
    }

    pub(crate) async fn pass(&self, bytes: usize) {
        let now = Instant::now();
        let at = self.grant(now, bytes);
        if at > now {
            tokio::time::sleep_until(at.into()).await;
        }
    }

    /// On a thread that may block.
    pub(crate) fn pass_blocking(&self, bytes: usize) {
        let now = Instant::now();
        std::thread::sleep(self.grant(now, bytes).saturating_duration_since(now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_together_stay_below_the_limit_and_little_is_saved_up() {
        let bandwidth = Bandwidth::new(NonZeroU64::new(1000));
        let begin = Instant::now();
        let at = |ms| begin + Duration::from_millis(ms);
        assert_eq!(bandwidth.grant(at(0), 150), at(0), "50 ms of credit");
        assert_eq!(bandwidth.grant(at(0), 100), at(100));
        assert_eq!(bandwidth.grant(at(150), 100), at(200), "behind what was granted to others");
        assert_eq!(bandwidth.grant(at(10_000), 150), at(10_000));
        assert_eq!(bandwidth.grant(at(10_000), 1), at(10_100), "ten idle seconds give no ten seconds' bytes");
    }

    #[tokio::test]
    async fn live_traffic_is_given_way_to() {
        let bandwidth = Bandwidth::new(None);
        let at_once = async |urgent| {
            let (now, most) = (AtomicU64::new(0), AtomicU64::new(0));
            let work = || async {
                most.fetch_max(now.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
                tokio::task::yield_now().await;
                now.fetch_sub(1, Ordering::Relaxed);
            };
            tokio::join!(bandwidth.make(urgent, work()), bandwidth.make(urgent, work()));
            most.into_inner()
        };
        assert_eq!(at_once(false).await, 2);
        bandwidth.note(Index(7));
        assert_eq!(at_once(true).await, 2, "publishers are blocked");
        assert_eq!(at_once(false).await, 1, "records are being written");
        bandwidth.note(Index(7));
        assert_eq!(at_once(false).await, 2, "none was written meanwhile");
    }

    #[test]
    fn without_a_limit_nothing_waits() {
        let bandwidth = Bandwidth::new(None);
        let now = Instant::now();
        assert_eq!(bandwidth.grant(now, usize::MAX), now);
        assert_eq!(bandwidth.grant(now, usize::MAX), now);
    }
}
