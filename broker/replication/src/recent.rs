//! The newest part of the log, in memory, for followers that keep pace. Who falls behind it reads the journal.

use std::collections::VecDeque;

use understudy_record::{Frame, Index};

/// What is kept at most, in bytes, of records that are durable here. Enough for a backup that hesitates for a moment; one
/// further behind is fed from the journal, which the page cache still has. A large message passes through without being here
/// as a whole.
const MAX_DURABLE_BYTES: usize = 8 << 20;

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Recent {
    frames: VecDeque<Frame>,
    bytes: usize,
    /// Index of the first frame held; the next to come when none is.
    first: Index,
}

impl Recent {
    /// Empty; the next record is `next`.
    pub(crate) fn starting_at(next: Index) -> Self {
        Self { first: next, ..Self::default() }
    }

    /// The next to come.
    pub(crate) fn next(&self) -> Index {
        Index(self.first.0 + self.frames.len() as u64)
    }

    pub(crate) fn push(&mut self, frame: &Frame) {
        assert_eq!(frame.position.index, self.next(), "records enter in order");
        self.bytes += frame.len();
        self.frames.push_back(frame.clone());
    }

    /// Drops the oldest over the bound, but nothing after `settled`, which is durable here and committed: the rest could not
    /// be read back from the journal, or is counted back by its length once it is committed.
    pub(crate) fn trim(&mut self, settled: Index) {
        while self.bytes > MAX_DURABLE_BYTES && self.first <= settled {
            let Some(frame) = self.frames.pop_front() else { break };
            self.bytes -= frame.len();
            self.first = self.first.next();
        }
    }

    pub(crate) fn holds(&self, index: Index) -> bool {
        index >= self.first
    }

    /// Frames from `from` on, up to about `max_bytes`, at least one if there is one. Only where [`Self::holds`].
    pub(crate) fn from(&self, from: Index, max_bytes: usize) -> Vec<Frame> {
        let skip = usize::try_from(from.0.saturating_sub(self.first.0)).unwrap_or(usize::MAX);
        let mut room = max_bytes;
        let fits = |frame: &&Frame| {
            let fits = room > 0;
            room = room.saturating_sub(frame.len());
            fits
        };
        self.frames.range(skip.min(self.frames.len())..).take_while(fits).cloned().collect()
    }

    /// Bytes of the records after `from`, up to and including `to`, as far as they are held.
    pub(crate) fn bytes_between(&self, from: Index, to: Index) -> usize {
        let place = |index: Index| usize::try_from(index.next().0.saturating_sub(self.first.0)).unwrap_or(usize::MAX);
        let end = place(to).min(self.frames.len());
        self.frames.range(place(from).min(end)..end).map(Frame::len).sum()
    }
}
