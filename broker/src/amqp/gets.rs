//! How many messages a client has asked for (`basic.get`) and not taken. One that asks for thousands in one breath and reads
//! none of them would have them all in memory; consumers are bounded by what waits for their socket, gets by this.

use std::collections::HashMap;

use understudy_core::{ChannelId, Command, EffectKind};

/// Gets that are not answered yet, or whose answers wait to be written: each may bring a mebibyte. Those beyond wait for
/// their turn, and what stands behind them too.
pub(super) const MAX_GETS: usize = 64;

/// Of one connection.
#[derive(Default)]
pub(super) struct Gets {
    /// Read, and not handed to the core yet.
    waiting: usize,
    /// At the core, or answered and not written. A channel that closes takes its own with it.
    unanswered: HashMap<ChannelId, usize>,
}

impl Gets {
    pub(super) fn note_read(&mut self, command: &Command) {
        self.waiting += usize::from(matches!(command, Command::BasicGet { .. }));
    }

    /// How many of the commands may be handed over, as far as gets are concerned.
    pub(super) fn sendable(&self, commands: &[(ChannelId, Command)]) -> usize {
        if self.waiting == 0 {
            return commands.len();
        }
        let room = MAX_GETS.saturating_sub(self.unanswered.values().sum());
        if self.waiting <= room {
            return commands.len();
        }
        let gets = commands.iter().enumerate().filter(|(_, (_, command))| matches!(command, Command::BasicGet { .. }));
        { gets }.nth(room).map_or(commands.len(), |(place, _)| place)
    }

    pub(super) fn note_sent(&mut self, commands: &[(ChannelId, Command)]) {
        if self.waiting == 0 && self.unanswered.is_empty() {
            return;
        }
        for (channel, command) in commands {
            match command {
                Command::BasicGet { .. } => {
                    self.waiting = self.waiting.saturating_sub(1);
                    *self.unanswered.entry(*channel).or_default() += 1;
                }
                Command::ChannelClose => self.forget(*channel),
                _ => {}
            }
        }
    }

    pub(super) fn note_answered(&mut self, channel: ChannelId, effect: &EffectKind) {
        match effect {
            EffectKind::BasicGetOk { .. } | EffectKind::BasicGetEmpty => {
                let Some(unanswered) = self.unanswered.get_mut(&channel) else { return };
                *unanswered -= 1;
                if *unanswered == 0 {
                    self.forget(channel);
                }
            }
            EffectKind::CloseChannel { .. } => self.forget(channel),
            _ => {}
        }
    }

    /// The channel is closed: what it asked for is not answered.
    pub(super) fn forget(&mut self, channel: ChannelId) {
        self.unanswered.remove(&channel);
    }
}

#[cfg(test)]
mod tests {
    use understudy_record::ShortStr;

    use super::*;

    const CHANNEL: ChannelId = ChannelId(1);

    fn get() -> (ChannelId, Command) {
        (CHANNEL, Command::BasicGet { queue: ShortStr::from_static("q"), no_ack: true })
    }

    fn read(gets: &mut Gets, commands: &[(ChannelId, Command)]) {
        commands.iter().for_each(|(_, command)| gets.note_read(command));
    }

    #[test]
    fn gets_wait_for_the_answers_before_them() {
        let mut gets = Gets::default();
        let mut commands: Vec<_> = (0..100).map(|_| get()).collect();
        commands.insert(3, (CHANNEL, Command::TxSelect));
        read(&mut gets, &commands);
        assert_eq!(gets.sendable(&commands), MAX_GETS + 1);
        gets.note_sent(&commands[..=MAX_GETS]);
        let rest = &commands[MAX_GETS + 1..];
        assert_eq!(gets.sendable(rest), 0);
        gets.note_answered(ChannelId(2), &EffectKind::BasicGetEmpty);
        assert_eq!(gets.sendable(rest), 0, "another channel's");
        (0..2).for_each(|_| gets.note_answered(CHANNEL, &EffectKind::BasicGetEmpty));
        assert_eq!(gets.sendable(rest), 2);
        gets.note_sent(&rest[..2]);
        assert_eq!(gets.sendable(&[&rest[2..], &[(CHANNEL, Command::TxSelect)]].concat()), 0, "nothing overtakes them");
    }

    #[test]
    fn a_channel_that_closes_takes_its_gets_with_it() {
        for closes in [true, false] {
            let mut gets = Gets::default();
            let commands: Vec<_> = (0..MAX_GETS).map(|_| get()).collect();
            read(&mut gets, &commands);
            gets.note_sent(&commands);
            read(&mut gets, &[get()]);
            assert_eq!(gets.sendable(&[get()]), 0);
            if closes {
                gets.note_sent(&[(CHANNEL, Command::ChannelClose)]);
            } else {
                gets.forget(CHANNEL);
            }
            assert_eq!(gets.sendable(&[get()]), 1);
            // An answer that was on its way is none of the next channel's.
            gets.note_answered(CHANNEL, &EffectKind::BasicGetEmpty);
            gets.note_sent(&[get()]);
            assert_eq!(gets.unanswered.values().sum::<usize>(), 1);
        }
    }
}
