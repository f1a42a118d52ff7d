//! Which channels have something that waits for an index, so that a commit visits those and no others.

use std::collections::BTreeSet;

use understudy_record::Index;

use crate::command::{ChannelId, ConnectionId};

/// At most one entry for each channel that waits, plus those of channels that went meanwhile: they are skipped when due.
#[derive(Debug, Default)]
pub(crate) struct Gates(BTreeSet<(Index, ConnectionId, ChannelId)>);

impl Gates {
    pub(crate) fn wait(&mut self, index: Index, connection: ConnectionId, channel: ChannelId) {
        self.0.insert((index, connection, channel));
    }

    /// The next channel that waits for `reached` or less.
    pub(crate) fn take_due(&mut self, reached: Index) -> Option<(ConnectionId, ChannelId)> {
        let (index, connection, channel) = *self.0.first()?;
        if index > reached {
            return None;
        }
        self.0.pop_first();
        Some((connection, channel))
    }
}
