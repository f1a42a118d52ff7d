//! What catch-ups may take of the network and of the disk's reads: a token bucket that all of them share, first come, first
//! served. Live records do not pass here.

use std::num::NonZeroU64;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What was not used is kept for so long: a part of a backlog that is late by less is not slowed down for it.
const CREDIT: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(crate) struct Bandwidth {
    /// Bytes a second; `None`: no limit.
    limit: Option<NonZeroU64>,
    /// When everything granted so far has passed.
    passed: Mutex<Option<Instant>>,
}

impl Bandwidth {
    pub(crate) fn new(limit: Option<NonZeroU64>) -> Self {
        Self { limit, passed: Mutex::new(None) }
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

    #[test]
    fn without_a_limit_nothing_waits() {
        let bandwidth = Bandwidth::new(None);
        let now = Instant::now();
        assert_eq!(bandwidth.grant(now, usize::MAX), now);
        assert_eq!(bandwidth.grant(now, usize::MAX), now);
    }
}
