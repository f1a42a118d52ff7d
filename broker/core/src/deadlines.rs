//! When the messages of a lane leave it by themselves. Every message that ever does has its deadline here, on every replica;
//! which of those that are ready is the first is asked by the primary.
//!
//! Mostly all messages of a queue live equally long, so deadlines ascend with the indexes: these form a *chain*, of which the
//! next is the first that is ready. Those that are due before an earlier message are kept by themselves, in order of time, and so
//! are those that came back. A message of the chain takes 16 bytes, another one about 80.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU64;

use crate::slots::Slots;

/// By index; deadlines in milliseconds since 1970.
#[derive(Debug, Default)]
pub(crate) struct Deadlines {
    /// Deadlines ascend with the indexes.
    chain: Slots<NonZeroU64>,
    /// The others.
    early: BTreeMap<u64, NonZeroU64>,
    /// With their deadlines: of those others the ready ones, and of the chain those that came back.
    due: BTreeSet<(NonZeroU64, u64)>,
}

impl Deadlines {
    /// `index` is above all that are here.
    pub(crate) fn push_back(&mut self, index: u64, deadline: NonZeroU64) {
        let last = self.chain.last_key().and_then(|last| self.chain.get(last));
        if last.is_none_or(|last| *last <= deadline) {
            self.chain.push_back(index, deadline);
        } else {
            self.add_early(index, deadline);
        }
    }

    /// `index` is below all that are here.
    pub(crate) fn push_front(&mut self, index: u64, deadline: NonZeroU64) {
        let first = self.chain.first_key().and_then(|first| self.chain.get(first));
        if first.is_none_or(|first| deadline <= *first) {
            self.chain.push_front(index, deadline);
        } else {
            self.add_early(index, deadline);
        }
    }

    fn add_early(&mut self, index: u64, deadline: NonZeroU64) {
        self.early.insert(index, deadline);
        self.due.insert((deadline, index));
    }

    pub(crate) fn get(&self, index: u64) -> Option<NonZeroU64> {
        self.chain.get(index).or_else(|| self.early.get(&index)).copied()
    }

    /// The message has left.
    pub(crate) fn remove(&mut self, index: u64) {
        if let Some(deadline) = self.chain.remove(index).or_else(|| self.early.remove(&index)) {
            self.due.remove(&(deadline, index));
        }
    }

    pub(crate) fn handed_out(&mut self, index: u64) {
        if !self.due.is_empty()
            && let Some(deadline) = self.get(index)
        {
            self.due.remove(&(deadline, index));
        }
    }

    pub(crate) fn came_back(&mut self, index: u64) {
        if let Some(deadline) = self.get(index) {
            self.due.insert((deadline, index));
        }
    }

    /// All are ready, and none has been handed out.
    pub(crate) fn start_over(&mut self) {
        self.due = self.early.iter().map(|(index, deadline)| (*deadline, *index)).collect();
    }

    /// The first deadline of a ready message. What is above `cursor` is ready.
    pub(crate) fn first(&self, cursor: u64) -> Option<NonZeroU64> {
        let chain = self.chain.next_after(cursor).map(|(_, deadline)| *deadline);
        let due = self.due.first().map(|(deadline, _)| *deadline);
        chain.into_iter().chain(due).min()
    }

    /// Ready ones that are due at `now`, in no order.
    pub(crate) fn due(&self, cursor: u64, now: u64) -> impl Iterator<Item = u64> {
        let chain = self.chain.iter_after(cursor).take_while(move |(_, deadline)| deadline.get() <= now);
        let due = self.due.iter().take_while(move |(deadline, _)| deadline.get() <= now);
        // One of the chain that came back is below the cursor.
        chain.map(|(index, _)| index).chain(due.map(|(_, index)| *index))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.chain.len() == 0 && self.early.is_empty()
    }

    /// `holds`: whether the lane has the message; `is_ready`: and nobody else.
    pub(crate) fn assert_consistent(&self, holds: impl Fn(u64) -> bool, cursor: u64, is_ready: impl Fn(u64) -> bool) {
        assert!(self.chain.iter().is_sorted_by_key(|(_, deadline)| deadline), "the chain of deadlines");
        let all = self.chain.iter().map(|(index, _)| index).chain(self.early.keys().copied());
        all.for_each(|index| assert!(holds(index), "a deadline of message {index}, which is gone"));
        let came_back =
            self.chain.iter().filter(|(index, _)| *index <= cursor).map(|(index, deadline)| (index, *deadline));
        let early = self.early.iter().map(|(index, deadline)| (*index, *deadline));
        let ready = came_back.chain(early).filter(|(index, _)| is_ready(*index));
        let ready: BTreeSet<_> = ready.map(|(index, deadline)| (deadline, index)).collect();
        assert_eq!(self.due, ready, "ready messages off the chain that are due");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(deadline: u64) -> NonZeroU64 {
        NonZeroU64::new(deadline).unwrap()
    }

    fn with(deadlines: &[(u64, u64)]) -> Deadlines {
        let mut all = Deadlines::default();
        deadlines.iter().for_each(|(index, deadline)| all.push_back(*index, at(*deadline)));
        all
    }

    fn due(deadlines: &Deadlines, cursor: u64, now: u64) -> Vec<u64> {
        let mut due: Vec<_> = deadlines.due(cursor, now).collect();
        due.sort_unstable();
        due
    }

    /// Case T1: what is due before the messages ahead of it leaves before them.
    #[test]
    fn whatever_is_due_is_found_wherever_it_is() {
        let mut deadlines = with(&[(1, 50), (2, 20), (3, 60), (4, 20), (5, 60)]);
        assert_eq!((deadlines.chain.len(), deadlines.early.len()), (3, 2));
        assert_eq!(deadlines.first(0), Some(at(20)));
        assert_eq!(due(&deadlines, 0, 50), [1, 2, 4]);
        deadlines.remove(2);
        deadlines.handed_out(1);
        assert_eq!(due(&deadlines, 1, 50), [4]);
        deadlines.came_back(1);
        deadlines.handed_out(4);
        assert_eq!(due(&deadlines, 4, 50), [1]);
        assert_eq!(deadlines.first(4), Some(at(50)));
        deadlines.start_over();
        assert_eq!(due(&deadlines, 0, 60), [1, 3, 4, 5]);
        deadlines.assert_consistent(|_| true, 0, |_| true);
    }

    #[test]
    fn what_comes_newest_first_makes_a_chain_too() {
        let mut deadlines = Deadlines::default();
        for (index, deadline) in [(9, 90), (8, 80), (7, 85), (6, 70)] {
            deadlines.push_front(index, at(deadline));
        }
        assert_eq!((deadlines.chain.len(), deadlines.get(7)), (3, Some(at(85))));
        deadlines.push_back(10, at(90));
        assert_eq!(due(&deadlines, 0, 85), [6, 7, 8]);
        [6, 7, 8, 9, 10].into_iter().for_each(|index| deadlines.remove(index));
        assert!(deadlines.is_empty() && deadlines.first(0).is_none());
    }
}
