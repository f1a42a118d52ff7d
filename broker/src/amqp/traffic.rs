//! What one connection adds to the broker's counters: messages that its client publishes, gets and has confirmed, and now and
//! then how long a confirm took. Costs no allocation, no lock and no shared counter a message: what a batch brings is added at its end.

use std::sync::Arc;
use std::time::Instant;

use understudy_core::{ChannelId, Command, EffectKind};

use crate::metrics::Metrics;

pub(super) struct Traffic {
    metrics: Arc<Metrics>,
    /// By the channel's number; those in confirm mode.
    confirming: Vec<Option<Box<Confirming>>>,
    since: Counts,
}

/// Since the last addition.
#[derive(Default)]
struct Counts {
    published: u64,
    confirmed: u64,
    delivered: u64,
}

/// One channel's publishes since `confirm.select`, numbered from 1.
#[derive(Default)]
struct Confirming {
    published: u64,
    /// All up to here are settled.
    floor: u64,
    /// Beyond it, settled out of turn: no more than the client has unconfirmed.
    early: Vec<u64>,
    /// One publish at a time is timed.
    timed: Option<(u64, Instant)>,
}

impl Traffic {
    pub(super) fn new(metrics: Arc<Metrics>) -> Self {
        Self { metrics, confirming: Vec::new(), since: Counts::default() }
    }

    /// A command that was read.
    pub(super) fn note_read(&mut self, channel: ChannelId, command: &Command) {
        match command {
            Command::BasicPublish { .. } => {
                self.since.published += 1;
                if let Some(confirming) = self.of(channel) {
                    confirming.published += 1;
                    let number = confirming.published;
                    confirming.timed.get_or_insert_with(|| (number, Instant::now()));
                }
            }
            Command::ConfirmSelect { .. } => {
                let place = usize::from(channel.0);
                if self.confirming.len() <= place {
                    self.confirming.resize_with(place + 1, || None);
                }
                self.confirming[place].get_or_insert_default();
            }
            Command::ChannelOpen | Command::ChannelClose => self.forget(channel),
            _ => {}
        }
    }

    /// An answer on its way to the client.
    pub(super) fn note_sent(&mut self, channel: ChannelId, effect: &EffectKind) {
        match effect {
            EffectKind::BasicDeliver { .. } | EffectKind::BasicGetOk { .. } => self.since.delivered += 1,
            EffectKind::PublisherAck { delivery_tag, multiple } => {
                self.settle(channel, delivery_tag.0, *multiple, true)
            }
            EffectKind::PublisherNack { delivery_tag, multiple } => {
                self.settle(channel, delivery_tag.0, *multiple, false)
            }
            _ => {}
        }
    }

    fn settle(&mut self, channel: ChannelId, number: u64, multiple: bool, confirmed: bool) {
        let Some(confirming) = self.confirming.get_mut(usize::from(channel.0)).and_then(Option::as_mut) else { return };
        let settled = confirming.settle(number, multiple);
        if let Some((timed, since)) = confirming.timed
            && (timed == number || (multiple && timed < number))
        {
            confirming.timed = None;
            if confirmed {
                self.metrics.confirm_seconds.observe(since.elapsed().as_secs_f64());
            }
        }
        if confirmed {
            self.since.confirmed += settled;
        }
    }

    pub(super) fn forget(&mut self, channel: ChannelId) {
        if let Some(confirming) = self.confirming.get_mut(usize::from(channel.0)) {
            *confirming = None;
        }
    }

    fn of(&mut self, channel: ChannelId) -> Option<&mut Confirming> {
        self.confirming.get_mut(usize::from(channel.0))?.as_deref_mut()
    }

    /// At the end of what was read, or is sent, in one go.
    pub(super) fn add_up(&mut self) {
        let Counts { published, confirmed, delivered } = std::mem::take(&mut self.since);
        let counters = [&self.metrics.published, &self.metrics.confirmed, &self.metrics.delivered];
        for (counter, count) in counters.into_iter().zip([published, confirmed, delivered]) {
            if count > 0 {
                counter.inc_by(count);
            }
        }
    }
}

impl Confirming {
    /// How many have not been settled before.
    fn settle(&mut self, number: u64, multiple: bool) -> u64 {
        if !multiple && number != self.floor + 1 {
            self.early.push(number);
            return 1;
        }
        let before = self.early.len();
        self.early.retain(|early| *early > number);
        let known = (before - self.early.len()) as u64;
        let new = number.saturating_sub(self.floor).saturating_sub(known);
        self.floor = self.floor.max(number);
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_publish_is_settled_once() {
        let mut confirming = Confirming::default();
        let settled = [(1, false), (4, false), (5, false), (3, true), (5, true), (6, false), (9, true)];
        let counts = settled.map(|(number, multiple)| confirming.settle(number, multiple));
        assert_eq!(counts, [1, 1, 1, 2, 0, 1, 3]);
        assert_eq!((confirming.floor, confirming.early.len()), (9, 0));
    }
}
