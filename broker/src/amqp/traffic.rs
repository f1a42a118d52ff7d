//! What one connection adds to the broker's counters: messages that its client publishes, gets and has confirmed, and now and
//! then how long a confirm took. Costs no allocation and no lock a message.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use understudy_core::{ChannelId, Command, EffectKind};

use crate::metrics::Metrics;

pub(super) struct Traffic {
    metrics: Arc<Metrics>,
    /// Channels in confirm mode.
    confirming: HashMap<ChannelId, Confirming>,
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
        Self { metrics, confirming: HashMap::new() }
    }

    /// A command that was read.
    pub(super) fn note_read(&mut self, channel: ChannelId, command: &Command) {
        match command {
            Command::BasicPublish { .. } => {
                self.metrics.published.inc();
                if let Some(confirming) = self.confirming.get_mut(&channel) {
                    confirming.published += 1;
                    let number = confirming.published;
                    confirming.timed.get_or_insert_with(|| (number, Instant::now()));
                }
            }
            Command::ConfirmSelect { .. } => _ = self.confirming.entry(channel).or_default(),
            Command::ChannelOpen | Command::ChannelClose => self.forget(channel),
            _ => {}
        }
    }

    /// An answer on its way to the client.
    pub(super) fn note_sent(&mut self, channel: ChannelId, effect: &EffectKind) {
        match effect {
            EffectKind::BasicDeliver { .. } | EffectKind::BasicGetOk { .. } => self.metrics.delivered.inc(),
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
        let Some(confirming) = self.confirming.get_mut(&channel) else { return };
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
            self.metrics.confirmed.inc_by(settled);
        }
    }

    pub(super) fn forget(&mut self, channel: ChannelId) {
        self.confirming.remove(&channel);
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
