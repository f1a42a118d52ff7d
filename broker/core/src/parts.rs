//! Large messages: their bodies come in parts, each a record of its own, before the message that claims them. Here is
//! which parts no message has claimed yet, and which message has which, with how many queues hold it. What the parts say
//! is in the log alone.
//!
//! A part that somebody is sending to a client must stay in the log though its message is gone: whoever sends holds the
//! list of parts, so lists that are still held then are remembered until they are not. That is the primary's own
//! knowledge and no state.

use std::collections::BTreeMap;
use std::sync::Arc;

use hashbrown::HashMap;
use understudy_record::{Index, PartRef};

use crate::entry::Entry;
use crate::state::ApplyError;

/// Lists of parts that are gone and may still be held, before all of them are looked at for the first time.
const RETIRED: usize = 64;

#[derive(Debug, Default)]
pub(crate) struct Parts {
    /// With their bytes.
    unclaimed: BTreeMap<Index, u32>,
    /// By message.
    claimed: HashMap<Index, Claimed>,
    retired: Vec<Arc<[PartRef]>>,
    /// How many there were after the last look that found some let go.
    retired_then: usize,
}

#[derive(Debug)]
struct Claimed {
    parts: Arc<[PartRef]>,
    /// Queues that hold the message.
    held: u32,
}

impl Parts {
    // ---- the state

    pub(crate) fn add(&mut self, index: Index, bytes: u32) {
        self.unclaimed.insert(index, bytes);
    }

    /// Whether record `index` may claim these: they are there, as long as they are said to be, each once.
    pub(crate) fn check(&self, index: Index, parts: &[PartRef]) -> Result<(), ApplyError> {
        let known = |part: &PartRef| self.unclaimed.get(&part.index) == Some(&part.bytes);
        if let Some(part) = parts.iter().find(|part| !known(part)) {
            return Err(ApplyError::UnknownPart { index, part: part.index });
        }
        if parts.is_sorted_by(|one, next| one.index < next.index) { Ok(()) } else { Err(ApplyError::Targets { index }) }
    }

    /// `message` has these parts, which [`Self::check`] has found, in so many queues.
    pub(crate) fn claim(&mut self, message: Index, parts: &Arc<[PartRef]>, queues: usize) {
        self.set_aside(parts);
        match u32::try_from(queues) {
            Ok(held @ 1..) => _ = self.claimed.insert(message, Claimed { parts: parts.clone(), held }),
            _ => self.retire(parts.clone()),
        }
    }

    /// A message that is in no queue yet has these, which [`Self::check`] has found: nobody else can claim them.
    pub(crate) fn set_aside(&mut self, parts: &[PartRef]) {
        parts.iter().for_each(|part| _ = self.unclaimed.remove(&part.index));
    }

    /// Nobody will claim these.
    pub(crate) fn discard(&mut self, index: Index, parts: &[Index]) -> Result<(), ApplyError> {
        if let Some(part) = parts.iter().find(|part| !self.unclaimed.contains_key(*part)) {
            return Err(ApplyError::UnknownPart { index, part: *part });
        }
        parts.iter().for_each(|part| _ = self.unclaimed.remove(part));
        Ok(())
    }

    /// Another primary: whoever was sending must begin anew.
    pub(crate) fn discard_all(&mut self) {
        self.unclaimed.clear();
    }

    /// A sync point's message has these parts; queues that hold it are still to come.
    pub(crate) fn expect(&mut self, message: Index, parts: &[PartRef]) {
        self.claimed.entry(message).or_insert_with(|| Claimed { parts: parts.into(), held: 0 });
    }

    /// Another queue holds the message, which [`Self::of`] knows.
    pub(crate) fn hold(&mut self, message: Index) {
        if let Some(claimed) = self.claimed.get_mut(&message) {
            claimed.held += 1;
        }
    }

    /// All queues that hold what the sync point has have come.
    pub(crate) fn forget_expected(&mut self) {
        self.claimed.retain(|_, claimed| claimed.held > 0);
    }

    /// A queue gave up the message.
    pub(crate) fn release(&mut self, message: Index) {
        let Some(claimed) = self.claimed.get_mut(&message) else { return };
        claimed.held -= 1;
        if claimed.held == 0
            && let Some(claimed) = self.claimed.remove(&message)
        {
            self.retire(claimed.parts);
        }
    }

    // ---- reading

    pub(crate) fn of(&self, message: Index) -> Option<&Arc<[PartRef]>> {
        // Mostly there is none, and nothing to hash.
        if self.claimed.is_empty() {
            return None;
        }
        self.claimed.get(&message).map(|claimed| &claimed.parts)
    }

    /// In the order of their indexes.
    pub(crate) fn unclaimed(&self) -> impl Iterator<Item = PartRef> {
        self.unclaimed.iter().map(|(index, bytes)| PartRef { index: *index, bytes: *bytes })
    }

    /// Claimed and unclaimed, in number.
    pub(crate) fn count(&self) -> usize {
        self.unclaimed.len() + self.claimed.values().map(|claimed| claimed.parts.len()).sum::<usize>()
    }

    /// Each large message with how many queues hold it, in the order of their indexes.
    #[cfg(test)]
    fn messages(&self) -> Vec<(Index, &[PartRef], u32)> {
        let mut messages: Vec<_> =
            self.claimed.iter().map(|(index, claimed)| (*index, &*claimed.parts, claimed.held)).collect();
        messages.sort_unstable_by_key(|(index, ..)| *index);
        messages
    }

    /// The books agree with these, which are all entries of all queues. A sync point's may be expected and not there yet.
    pub(crate) fn assert_consistent<'a>(&self, entries: impl Iterator<Item = (Index, &'a Entry)>) {
        let mut held: HashMap<Index, u32> = HashMap::new();
        entries.filter(|(_, entry)| entry.is_large()).for_each(|(index, _)| *held.entry(index).or_default() += 1);
        let claimed = self.claimed.iter().filter(|(_, claimed)| claimed.held > 0);
        let claimed: HashMap<Index, u32> = claimed.map(|(index, claimed)| (*index, claimed.held)).collect();
        assert_eq!(claimed, held, "queues that hold each large message");
        for (index, claimed) in &self.claimed {
            let both = claimed.parts.iter().find(|part| self.unclaimed.contains_key(&part.index));
            assert_eq!(both, None, "claimed by {index} and unclaimed");
        }
    }

    // ---- what is gone and still held

    pub(crate) fn retire(&mut self, parts: Arc<[PartRef]>) {
        if Arc::strong_count(&parts) == 1 {
            return;
        }
        self.retired.push(parts);
        if self.retired.len() >= RETIRED.max(2 * self.retired_then) {
            self.let_go();
        }
    }

    /// The parts that are gone and that somebody still holds.
    pub(crate) fn pinned(&mut self) -> Vec<PartRef> {
        self.let_go();
        self.retired.iter().flat_map(|parts| parts.iter().copied()).collect()
    }

    fn let_go(&mut self) {
        self.retired.retain(|parts| Arc::strong_count(parts) > 1);
        self.retired_then = self.retired.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(index: u64) -> PartRef {
        PartRef { index: Index(index), bytes: 10 }
    }

    fn with_parts(indexes: &[u64]) -> (Parts, Arc<[PartRef]>) {
        let mut parts = Parts::default();
        indexes.iter().for_each(|index| parts.add(Index(*index), 10));
        (parts, indexes.iter().copied().map(part).collect())
    }

    #[test]
    fn parts_are_claimed_once_and_as_they_are() {
        let (mut parts, list) = with_parts(&[1, 3]);
        assert_eq!(parts.check(Index(5), &list), Ok(()));
        let unknown = |part| Err(ApplyError::UnknownPart { index: Index(5), part: Index(part) });
        assert_eq!(parts.check(Index(5), &[part(1), part(2)]), unknown(2));
        assert_eq!(parts.check(Index(5), &[PartRef { bytes: 9, ..part(1) }]), unknown(1));
        assert_eq!(parts.check(Index(5), &[part(3), part(1)]), Err(ApplyError::Targets { index: Index(5) }));
        parts.claim(Index(5), &list, 2);
        assert_eq!(parts.check(Index(5), &list), unknown(1));
        assert_eq!((parts.unclaimed().count(), parts.count()), (0, 2));
        parts.release(Index(5));
        assert_eq!(parts.of(Index(5)), Some(&list));
        parts.release(Index(5));
        assert_eq!(parts.count(), 0);
    }

    #[test]
    fn what_is_gone_is_pinned_while_somebody_holds_it() {
        let (mut parts, list) = with_parts(&[1, 3]);
        parts.claim(Index(5), &list, 1);
        assert_eq!(parts.pinned(), []);
        parts.release(Index(5));
        assert_eq!(parts.pinned(), [part(1), part(3)]);
        drop(list);
        assert_eq!(parts.pinned(), []);
    }

    #[test]
    fn what_is_let_go_is_forgotten_without_anybody_asking() {
        let mut parts = Parts::default();
        let held: Vec<Arc<[PartRef]>> = (0..3).map(|index| [part(index)].into()).collect();
        held.iter().for_each(|list| parts.retire(list.clone()));
        for index in 10..10_000 {
            let list: Arc<[PartRef]> = [part(index)].into();
            parts.retire(list.clone());
        }
        assert!(parts.retired.len() <= RETIRED, "{} lists", parts.retired.len());
        assert_eq!(parts.pinned().len(), 3);
    }

    #[test]
    fn a_sync_points_message_that_no_queue_holds_is_forgotten() {
        let mut parts = Parts::default();
        parts.expect(Index(5), &[part(1)]);
        parts.expect(Index(6), &[part(2)]);
        [6, 6, 7].into_iter().for_each(|index| parts.hold(Index(index)));
        parts.forget_expected();
        assert_eq!(parts.messages(), [(Index(6), &[part(2)][..], 2)]);
    }
}
