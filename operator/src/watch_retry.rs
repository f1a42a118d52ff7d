//! When a watch is tried again: soon, and always after the same pause.
//!
//! kube's default doubles the pause up to half a minute. A controller's watches share one backoff, and each one's error is
//! a step of it, so that after an outage of the API server nine of them took minutes until the last one watched again.

use std::time::Duration;

use kube::runtime::utils::Backoff;

/// Some requests a second while the API server is away; the controller's watches are all back within three seconds.
const WATCH_RETRY_AFTER: Duration = Duration::from_millis(250);

pub(crate) struct WatchRetry;

impl Iterator for WatchRetry {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        Some(WATCH_RETRY_AFTER)
    }
}

impl Backoff for WatchRetry {
    fn reset(&mut self) {}
}
