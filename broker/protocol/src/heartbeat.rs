//! When to say that we are still here, and when to give up on the peer. Any octet counts as a sign of life, both ways, so a
//! slow upload needs no heartbeats.

use std::time::Duration;

/// The two clocks of one connection; none runs when the negotiated interval is 0.
#[derive(Clone, Debug, Default)]
pub(crate) struct Heartbeat {
    interval: Option<Duration>,
    last_received: Duration,
    next_check: Duration,
    /// Octets put out when last checked.
    seen_total: u64,
}

/// What a timeout asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeartbeatAction {
    None,
    Send,
    /// Two intervals without an octet (AMQP 4.2.7).
    PeerIsGone,
}

impl Heartbeat {
    pub(crate) fn start(&mut self, now: Duration, seconds: u16) {
        self.interval = (seconds > 0).then(|| Duration::from_secs(seconds.into()));
        self.last_received = now;
        self.next_check = now + self.interval.unwrap_or_default() / 2;
    }

    pub(crate) fn stop(&mut self) {
        self.interval = None;
    }

    pub(crate) fn handle_received(&mut self, now: Duration) {
        self.last_received = now;
    }

    pub(crate) fn poll_timeout(&self) -> Option<Duration> {
        self.interval.map(|interval| self.next_check.min(self.last_received + interval * 2))
    }

    /// `total`: octets ever put out; `waiting`: whether some are still to be written, in which case a heartbeat would only
    /// join the queue.
    pub(crate) fn handle_timeout(&mut self, now: Duration, total: u64, waiting: bool) -> HeartbeatAction {
        let Some(interval) = self.interval else { return HeartbeatAction::None };
        if now >= self.last_received + interval * 2 {
            return HeartbeatAction::PeerIsGone;
        }
        if now < self.next_check {
            return HeartbeatAction::None;
        }
        self.next_check = now + interval / 2;
        let quiet = total == self.seen_total;
        self.seen_total = total;
        if quiet && !waiting { HeartbeatAction::Send } else { HeartbeatAction::None }
    }

    /// Counts the heartbeat just sent as seen: it is no reason to leave out the next one.
    pub(crate) fn sent(&mut self, total: u64) {
        self.seen_total = total;
    }
}
