//! A sequence in key order from which items leave anywhere: the messages of a queue by index, the unacknowledged deliveries
//! of a channel by tag. Items leave mostly at the front and in order, so it is a chain of short rings with tombstones, not a
//! tree: a push and a removal at the front are a few instructions, any other removal two short binary searches.
//!
//! It knows nothing of messages. No operation but a scan costs more than one ring's length, however long the sequence is, and
//! growing copies nothing. One item that stays for ever does not keep the places of those that went around it.

use std::collections::VecDeque;

/// Slots of one ring: short enough to be tidied between two messages, long enough that the chain is a hundredth of a per cent.
const RING_SLOTS: usize = 512;

/// Below this many tombstones compacting a ring costs more than it frees.
const SPARE_TOMBSTONES: usize = 16;

/// Places that a ring may keep whatever is in it: a queue that is empty between two messages does not allocate for each.
const SPARE_PLACES: usize = 64;

#[derive(Debug)]
pub(crate) struct Slots<T> {
    /// Keys ascend over all of them. Each has a live item, but for a ring that is alone.
    rings: VecDeque<Ring<T>>,
    live: usize,
}

#[derive(Debug)]
struct Ring<T> {
    /// Keys ascend; the first and the last slot are live.
    slots: VecDeque<(u64, Option<T>)>,
    live: usize,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self { rings: VecDeque::new(), live: 0 }
    }
}

impl<T> Slots<T> {
    pub(crate) fn len(&self) -> usize {
        self.live
    }

    pub(crate) fn first_key(&self) -> Option<u64> {
        self.rings.front()?.first_key()
    }

    pub(crate) fn last_key(&self) -> Option<u64> {
        self.rings.back()?.last_key()
    }

    /// `key` is above every key here.
    pub(crate) fn push_back(&mut self, key: u64, item: T) {
        debug_assert!(self.last_key().is_none_or(|last| last < key), "{key} after {:?}", self.last_key());
        if self.rings.back().is_none_or(Ring::is_full) {
            self.rings.push_back(Ring::new(!self.rings.is_empty()));
        }
        let ring = self.rings.back_mut().expect("one was pushed if there was none");
        ring.slots.push_back((key, Some(item)));
        ring.live += 1;
        self.live += 1;
    }

    /// `key` is below every key here.
    pub(crate) fn push_front(&mut self, key: u64, item: T) {
        debug_assert!(self.first_key().is_none_or(|first| key < first), "{key} before {:?}", self.first_key());
        if self.rings.front().is_none_or(Ring::is_full) {
            self.rings.push_front(Ring::new(!self.rings.is_empty()));
        }
        let ring = self.rings.front_mut().expect("one was pushed if there was none");
        ring.slots.push_front((key, Some(item)));
        ring.live += 1;
        self.live += 1;
    }

    /// `key` was here before, and is not now. It may be anywhere.
    pub(crate) fn put_back(&mut self, key: u64, item: T) {
        debug_assert!(!self.contains(key), "{key} is there");
        if self.last_key().is_none_or(|last| last < key) {
            return self.push_back(key, item);
        }
        let at = self.ring_of(key).unwrap_or(0);
        let ring = &mut self.rings[at];
        match ring.slots.binary_search_by_key(&key, |slot| slot.0) {
            Ok(place) => ring.slots[place].1 = Some(item),
            Err(place) => ring.slots.insert(place, (key, Some(item))),
        }
        ring.live += 1;
        self.live += 1;
        if ring.slots.len() > 2 * RING_SLOTS {
            let upper = ring.split();
            self.rings.insert(at + 1, upper);
        }
    }

    pub(crate) fn contains(&self, key: u64) -> bool {
        self.get(key).is_some()
    }

    pub(crate) fn get(&self, key: u64) -> Option<&T> {
        let ring = &self.rings[self.ring_of(key)?];
        ring.slots[ring.place(key)?].1.as_ref()
    }

    pub(crate) fn get_mut(&mut self, key: u64) -> Option<&mut T> {
        let at = self.ring_of(key)?;
        let ring = &mut self.rings[at];
        let place = ring.place(key)?;
        ring.slots[place].1.as_mut()
    }

    pub(crate) fn remove(&mut self, key: u64) -> Option<T> {
        let at = self.ring_of(key)?;
        let ring = &mut self.rings[at];
        let place = ring.place(key)?;
        let item = ring.slots[place].1.take()?;
        ring.live -= 1;
        self.live -= 1;
        ring.tidy();
        if ring.live == 0 {
            self.drop_empty(at);
        }
        Some(item)
    }

    /// The live item with the lowest key above `key`.
    pub(crate) fn next_after(&self, key: u64) -> Option<(u64, &T)> {
        self.iter_after(key).next()
    }

    /// Live items with keys above `key`, in order.
    pub(crate) fn iter_after(&self, key: u64) -> impl Iterator<Item = (u64, &T)> {
        let at = self.ring_of(key).unwrap_or(0);
        let start = self.rings.get(at).map_or(0, |ring| ring.slots.partition_point(|slot| slot.0 <= key));
        let first = self.rings.get(at).into_iter().flat_map(move |ring| ring.slots.range(start..));
        let rest = self.rings.iter().skip(at + 1).flat_map(|ring| &ring.slots);
        first.chain(rest).filter_map(|(key, item)| item.as_ref().map(|item| (*key, item)))
    }

    /// Live items with keys from `from` to `to`, both included, in order.
    pub(crate) fn range_mut(&mut self, from: u64, to: u64) -> impl DoubleEndedIterator<Item = (u64, &mut T)> {
        let start = self.ring_of(from).unwrap_or(0);
        let end = self.ring_of(to).map_or(start, |at| at + 1).max(start).min(self.rings.len());
        let within = self.rings.range_mut(start..end).flat_map(move |ring| {
            let start = ring.slots.partition_point(|slot| slot.0 < from);
            let end = ring.slots.partition_point(|slot| slot.0 <= to).max(start);
            ring.slots.range_mut(start..end)
        });
        within.filter_map(|(key, item)| item.as_mut().map(|item| (*key, item)))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        let slots = self.rings.iter().flat_map(|ring| &ring.slots);
        slots.filter_map(|(key, item)| item.as_ref().map(|item| (*key, item)))
    }

    /// Live items with keys below `before`, highest first.
    pub(crate) fn iter_down_from(&self, before: u64) -> impl Iterator<Item = (u64, &T)> {
        let end = self.ring_of(before).map_or(0, |at| at + 1);
        let below = self.rings.range(..end).rev().flat_map(move |ring| {
            let end = ring.slots.partition_point(|slot| slot.0 < before);
            ring.slots.range(..end).rev()
        });
        below.filter_map(|(key, item)| item.as_ref().map(|item| (*key, item)))
    }

    /// Removes and returns, in key order, the items up to and including `up_to` for which `wanted` holds.
    pub(crate) fn take_up_to(&mut self, up_to: u64, wanted: impl FnMut(u64) -> bool) -> Vec<(u64, T)> {
        let mut taken = Vec::new();
        self.drain_up_to(up_to, wanted, |key, item| taken.push((key, item)));
        taken
    }

    /// The same, one by one: of a long sequence there is no second copy.
    pub(crate) fn drain_up_to(
        &mut self,
        up_to: u64,
        mut wanted: impl FnMut(u64) -> bool,
        mut taken: impl FnMut(u64, T),
    ) {
        let mut gone = 0;
        for ring in self.rings.iter_mut().take_while(|ring| ring.first_key().is_some_and(|first| first <= up_to)) {
            for (key, item) in ring.slots.iter_mut().take_while(|slot| slot.0 <= up_to) {
                if item.is_some() && wanted(*key) {
                    item.take().into_iter().for_each(|item| taken(*key, item));
                    ring.live -= 1;
                    gone += 1;
                }
            }
            ring.tidy();
        }
        self.live -= gone;
        self.rings.retain(|ring| ring.live > 0);
    }

    pub(crate) fn into_items(self) -> impl Iterator<Item = (u64, T)> {
        let slots = self.rings.into_iter().flat_map(|ring| ring.slots);
        slots.filter_map(|(key, item)| item.map(|item| (key, item)))
    }

    /// The ring that has `key` if any has: the last that does not begin above it.
    fn ring_of(&self, key: u64) -> Option<usize> {
        // Most of what is asked for is at one of the ends.
        let last = self.rings.len().checked_sub(1)?;
        if last == 0 || self.rings[1].first_key().is_some_and(|first| key < first) {
            return Some(0);
        }
        if self.rings[last].first_key().is_some_and(|first| key >= first) {
            return Some(last);
        }
        let begun = self.rings.partition_point(|ring| ring.first_key().is_some_and(|first| first <= key));
        Some(begun.saturating_sub(1))
    }

    fn drop_empty(&mut self, at: usize) {
        if self.rings.len() > 1 {
            self.rings.remove(at);
        }
    }
}

impl<T> Ring<T> {
    /// `whole`: it is one of a long sequence, and will be filled.
    fn new(whole: bool) -> Self {
        Self { slots: VecDeque::with_capacity(if whole { RING_SLOTS } else { 0 }), live: 0 }
    }

    /// Its upper half is another ring from now on.
    fn split(&mut self) -> Self {
        self.slots.retain(|slot| slot.1.is_some());
        let slots = self.slots.split_off(self.slots.len() / 2);
        let live = slots.len();
        self.live -= live;
        Self { slots, live }
    }

    fn is_full(&self) -> bool {
        self.slots.len() >= RING_SLOTS
    }

    fn first_key(&self) -> Option<u64> {
        self.slots.front().map(|slot| slot.0)
    }

    fn last_key(&self) -> Option<u64> {
        self.slots.back().map(|slot| slot.0)
    }

    fn place(&self, key: u64) -> Option<usize> {
        // Keys are dense where one queue or one channel has the traffic: then the distance to the first is the place.
        let distance = usize::try_from(key.checked_sub(self.first_key()?)?).ok()?;
        match self.slots.get(distance) {
            Some(slot) if slot.0 == key => Some(distance),
            _ => self.slots.binary_search_by_key(&key, |slot| slot.0).ok(),
        }
    }

    fn tidy(&mut self) {
        while self.slots.front().is_some_and(|slot| slot.1.is_none()) {
            self.slots.pop_front();
        }
        while self.slots.back().is_some_and(|slot| slot.1.is_none()) {
            self.slots.pop_back();
        }
        if self.slots.len() > 2 * self.live + SPARE_TOMBSTONES {
            self.slots.retain(|slot| slot.1.is_some());
            self.slots.shrink_to(2 * self.live + SPARE_PLACES);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(slots: &Slots<char>) -> Vec<u64> {
        slots.iter().map(|(key, _)| key).collect()
    }

    #[test]
    fn items_leave_anywhere_and_come_at_both_ends() {
        let mut slots = Slots::default();
        [3, 5, 9].into_iter().for_each(|key| slots.push_back(key, 'x'));
        slots.push_front(1, 'a');
        assert_eq!(slots.remove(5), Some('x'));
        assert_eq!(slots.remove(5), None);
        assert_eq!(slots.next_after(3).map(|(key, _)| key), Some(9));
        assert_eq!(slots.next_after(0).map(|(key, _)| key), Some(1));
        assert_eq!(slots.next_after(9), None);
        assert_eq!(keys(&slots), [1, 3, 9]);
        assert_eq!(slots.iter_down_from(9).map(|(key, _)| key).collect::<Vec<_>>(), [3, 1]);
        assert_eq!(slots.iter_after(1).map(|(key, _)| key).collect::<Vec<_>>(), [3, 9]);
        assert_eq!(slots.range_mut(1, 3).rev().map(|(key, _)| key).collect::<Vec<_>>(), [3, 1]);
        assert_eq!(slots.range_mut(4, 3).count(), 0);
        assert_eq!(slots.take_up_to(3, |key| key != 1), [(3, 'x')]);
        assert_eq!((slots.len(), slots.first_key(), slots.last_key()), (2, Some(1), Some(9)));
    }

    #[test]
    fn one_old_item_does_not_keep_the_places_of_all_that_went_after_it() {
        let mut slots = Slots::default();
        slots.push_back(0, 'o');
        for key in 1..100_000 {
            slots.push_back(key, 'x');
            slots.remove(key);
            slots.push_back(key + 1_000_000, 'y');
            slots.remove(key + 1_000_000);
            assert!(places(&slots) <= 2 * RING_SLOTS);
        }
        assert_eq!(keys(&slots), [0]);
    }

    /// What is held on to, in slots.
    fn places<T>(slots: &Slots<T>) -> usize {
        slots.rings.iter().map(|ring| ring.slots.capacity()).sum()
    }

    #[test]
    fn a_sequence_that_was_long_once_gives_its_memory_back() {
        let mut slots = Slots::default();
        (0..100_000).for_each(|key| slots.push_back(key, 'x'));
        assert!(places(&slots) < 100_000 + 2 * RING_SLOTS, "growing doubles nothing");
        for key in 0..100_000 {
            slots.remove(key);
            assert!(places(&slots) <= slots.len() + 2 * RING_SLOTS);
        }
    }

    /// Every 300th stays: the rings around them shrink to what they hold.
    #[test]
    fn items_that_stay_here_and_there_keep_little_around_them() {
        let mut slots = Slots::default();
        (0..300_000).for_each(|key| slots.push_back(key, 'x'));
        (0..300_000).filter(|key| key % 300 != 0).for_each(|key| _ = slots.remove(key));
        assert_eq!(slots.len(), 1000);
        assert!(places(&slots) <= 1000 * SPARE_PLACES, "{}", places(&slots));
    }

    #[test]
    fn what_comes_back_finds_its_place_however_many_come_back() {
        let mut slots = Slots::default();
        (0..10_000).for_each(|key| slots.push_back(key, 'x'));
        let back: Vec<u64> = (0..10_000).filter(|key| key % 7 != 0).collect();
        back.iter().for_each(|key| _ = slots.remove(*key));
        back.iter().rev().for_each(|key| slots.put_back(*key, 'y'));
        assert_eq!(keys(&slots), (0..10_000).collect::<Vec<_>>());
        assert!(slots.rings.iter().all(|ring| ring.slots.len() <= 2 * RING_SLOTS), "no operation costs more");
        assert_eq!(slots.take_up_to(4999, |_| true).len(), 5000);
        assert_eq!((slots.len(), slots.first_key()), (5000, Some(5000)));
    }

    /// Against a map, over many lengths and at the edges of rings.
    #[test]
    fn it_does_what_a_sorted_map_does() {
        let mut seed = 7_u64;
        let mut dice = |bound: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % bound
        };
        for round in 0..60 {
            let (mut slots, mut map) = (Slots::default(), std::collections::BTreeMap::new());
            let (mut low, mut high) = (1_000_000_u64, 1_000_000);
            for _ in 0..4000 {
                let anywhere = |dice: &mut dyn FnMut(u64) -> u64| low.saturating_sub(2) + dice(high - low + 4);
                match dice(if round % 2 == 0 { 12 } else { 9 }) {
                    0..=4 => {
                        high += 1 + dice(3) / 2;
                        slots.push_back(high, high);
                        map.insert(high, high);
                    }
                    5 => {
                        low -= 1 + dice(2);
                        slots.push_front(low, low);
                        map.insert(low, low);
                    }
                    6 if dice(40) == 0 => {
                        let up_to = anywhere(&mut dice);
                        let taken = slots.take_up_to(up_to, |key| key % 3 != 0);
                        let expected: Vec<_> =
                            map.range(..=up_to).filter(|(key, _)| *key % 3 != 0).map(|(k, v)| (*k, *v)).collect();
                        expected.iter().for_each(|(key, _)| _ = map.remove(key));
                        assert_eq!(taken, expected);
                    }
                    7 => {
                        let key = anywhere(&mut dice);
                        assert_eq!(slots.get(key), map.get(&key));
                        assert_eq!(slots.next_after(key), map.range(key + 1..).next().map(|(k, v)| (*k, v)));
                        let down: Vec<_> = slots.iter_down_from(key).take(5).map(|(k, _)| k).collect();
                        assert_eq!(down, map.range(..key).rev().take(5).map(|(k, _)| *k).collect::<Vec<_>>());
                        let to = key + dice(2000);
                        let there: Vec<_> = slots.range_mut(key, to).map(|(k, _)| k).collect();
                        assert_eq!(there, map.range(key..=to).map(|(k, _)| *k).collect::<Vec<_>>());
                    }
                    8 if dice(3) == 0 => {
                        let key = anywhere(&mut dice);
                        if let std::collections::btree_map::Entry::Vacant(vacant) = map.entry(key) {
                            slots.put_back(key, key);
                            vacant.insert(key);
                            (low, high) = (low.min(key), high.max(key));
                        }
                    }
                    8 => {
                        let first = map.first_key_value().map_or(0, |(key, _)| *key);
                        assert_eq!(slots.remove(first), map.remove(&first));
                    }
                    _ => {
                        let key = anywhere(&mut dice);
                        assert_eq!(slots.remove(key), map.remove(&key));
                    }
                }
                assert_eq!((slots.len(), slots.first_key()), (map.len(), map.first_key_value().map(|(key, _)| *key)));
                assert_eq!(slots.last_key(), map.last_key_value().map(|(key, _)| *key));
                if slots.len() == 0 {
                    (low, high) = (low.min(high), high);
                }
            }
            assert!(slots.iter().map(|(key, _)| key).eq(map.keys().copied()));
            assert!(slots.into_items().map(|(key, _)| key).eq(map.into_keys()));
        }
    }
}
