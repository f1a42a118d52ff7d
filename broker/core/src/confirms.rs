//! Publisher confirms of one channel: which publishes wait for which commit, and how runs of them become one ack.
//!
//! Publishes get ascending log indexes, so they also become confirmable in order. An unroutable one is confirmed at once
//! and alone; a `multiple` ack therefore never speaks for a publish that is still waiting.

use std::collections::VecDeque;

use understudy_record::Index;

use crate::command::DeliveryTag;

/// Its length is bounded by the records in flight between the core and the commit, which the shell bounds.
#[derive(Debug, Default)]
pub(crate) struct Confirms {
    published: u64,
    waiting: VecDeque<(DeliveryTag, Index)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ack {
    pub(crate) tag: DeliveryTag,
    pub(crate) multiple: bool,
}

impl Confirms {
    /// A publish that became record `index`, or was routed nowhere by the topology of that index. `true` if it is the
    /// first that waits. Never before the one that waits ahead of it, so that they go out in order.
    pub(crate) fn routed(&mut self, index: Index) -> bool {
        self.published += 1;
        let index = self.waiting.back().map_or(index, |(_, last)| index.max(*last));
        self.waiting.push_back((DeliveryTag(self.published), index));
        self.waiting.len() == 1
    }

    /// A publish that no queue took: confirmed at once. `multiple` is for a run of them: nothing before it waits.
    pub(crate) fn unroutable(&mut self) -> Ack {
        self.published += 1;
        Ack { tag: DeliveryTag(self.published), multiple: false }
    }

    /// A publish that a queue has refused: told so at once, and alone.
    pub(crate) fn refused(&mut self) -> DeliveryTag {
        self.published += 1;
        DeliveryTag(self.published)
    }

    pub(crate) fn first_waiting(&self) -> Option<Index> {
        self.waiting.front().map(|(_, index)| *index)
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Confirms what `confirmable` covers. Second: how many publishes that were.
    pub(crate) fn release(&mut self, confirmable: Index) -> Option<(Ack, usize)> {
        let mut released = 0;
        let mut last = None;
        while let Some((tag, _)) = self.waiting.front().filter(|(_, index)| *index <= confirmable).copied() {
            self.waiting.pop_front();
            released += 1;
            last = Some(tag);
        }
        last.map(|tag| (Ack { tag, multiple: released > 1 }, released))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_becomes_one_ack_and_never_speaks_for_what_waits() {
        let mut confirms = Confirms::default();
        assert!(confirms.routed(Index(10)));
        assert!(!confirms.routed(Index(11)));
        assert_eq!(confirms.unroutable(), Ack { tag: DeliveryTag(3), multiple: false });
        assert!(!confirms.routed(Index(12)));
        assert_eq!(confirms.release(Index(9)), None);
        assert_eq!(confirms.release(Index(11)), Some((Ack { tag: DeliveryTag(2), multiple: true }, 2)));
        assert_eq!(confirms.first_waiting(), Some(Index(12)));
        assert_eq!(confirms.release(Index(20)), Some((Ack { tag: DeliveryTag(4), multiple: false }, 1)));
        assert_eq!(confirms.waiting(), 0);
    }
}
