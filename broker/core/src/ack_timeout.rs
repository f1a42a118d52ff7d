//! Deliveries that nobody acknowledges: a channel that has held one for longer than the consumer timeout is closed (406), so that
//! what it holds goes to somebody who is at work. The time is the cluster's, or the queue's own (`x-consumer-timeout`).
//!
//! When each delivery was made is not kept, only when a channel's deliveries had come how far, once in a second at most: so a
//! channel may hold one up to a second longer.

use std::collections::VecDeque;
use std::time::Duration;

use crate::client::Origin;
use crate::core::Core;
use crate::effect::Outputs;
use crate::error;
use crate::session::Channel;

/// How exactly the time of a delivery is known; and how often all channels are looked at.
const EVERY: Duration = Duration::from_secs(1);

/// Of one channel: from which delivery tag on deliveries were made at that time or later. As many as there are seconds in the
/// consumer timeout, 16 bytes each.
#[derive(Debug, Default)]
pub(crate) struct DeliveryTimes(VecDeque<(u64, Duration)>);

impl DeliveryTimes {
    /// A delivery is made.
    pub(crate) fn note(&mut self, tag: u64, now: Duration) {
        if self.0.back().is_none_or(|(_, last)| now.saturating_sub(*last) >= EVERY) {
            self.0.push_back((tag, now));
        }
    }

    /// Since when at the latest the delivery, the oldest that is not acknowledged, has been out.
    fn since(&mut self, oldest: u64, now: Duration) -> Duration {
        while self.0.get(1).is_some_and(|(next, _)| *next <= oldest) {
            self.0.pop_front();
        }
        self.0.front().map_or(now, |(_, noted)| (*noted + EVERY).min(now))
    }

    fn clear(&mut self) {
        self.0.clear();
    }
}

impl Core {
    /// How long a channel may hold a delivery that it does not acknowledge; `None`: for ever.
    pub fn set_consumer_timeout(&mut self, timeout: Option<Duration>) {
        self.consumer_timeout = timeout;
    }

    /// At the end of a step.
    pub(crate) fn close_overdue(&mut self, out: &mut Outputs) {
        let now = self.time.steady;
        if now < self.next_ack_check {
            return;
        }
        self.next_ack_check = now + EVERY;
        let mut overdue = Vec::new();
        let (queues, default) = (&self.state.queues, self.consumer_timeout);
        for (connection, state) in &mut self.connections {
            for (channel, state) in &mut state.channels {
                let Some((tag, unacked)) = state.oldest_unacked() else {
                    state.delivery_times.clear();
                    continue;
                };
                let own = queues.get(&unacked.queue).and_then(|queue| queue.rules.consumer_timeout);
                let Some(timeout) = own.map(Duration::from_millis).or(default) else { continue };
                if now.saturating_sub(state.delivery_times.since(tag, now)) >= timeout {
                    overdue.push((*connection, *channel, timeout));
                }
            }
        }
        overdue.sort_unstable();
        for (connection, channel, timeout) in overdue {
            self.close_overdue_channel(Origin { connection, channel }, timeout, out);
        }
    }

    fn close_overdue_channel(&mut self, origin: Origin, timeout: Duration, out: &mut Outputs) {
        let failure = error::acknowledgement_timed_out(origin.channel, timeout);
        self.fail(origin, failure.of(understudy_protocol::MethodId::NONE), out);
    }
}

impl Channel {
    /// With its tag; what a transaction settles is none.
    fn oldest_unacked(&self) -> Option<(u64, crate::session::Unacked)> {
        let first = self.unacked.first_key()?;
        Some((first, *self.unacked.get(first)?))
    }
}
