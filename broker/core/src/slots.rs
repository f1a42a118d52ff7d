//! A sequence in key order from which items leave anywhere: the messages of a queue by index, the unacknowledged deliveries
//! of a channel by tag. Items leave mostly at the front and in order, so it is a ring with tombstones, not a tree: a push
//! and a removal at the front are a few instructions, any other removal a binary search at worst.
//!
//! It knows nothing of messages. Tombstones never outnumber the live items by more than [`SPARE_TOMBSTONES`], so one item
//! that stays for ever does not keep the places of the millions that went after it; and a ring that was long once does not
//! keep its memory when most of what it held is gone.

use std::collections::VecDeque;

/// Below this many tombstones compacting costs more than it frees.
const SPARE_TOMBSTONES: usize = 64;

/// Places that a ring may keep whatever is in it, so that bursts below that cost no copying. Above it gives memory back once
/// it is less than a quarter full, to half full: so the copying costs a constant for each item that left.
const SPARE_PLACES: usize = 4096;

#[derive(Debug)]
pub(crate) struct Slots<T> {
    /// Keys ascend; the first and the last slot are live.
    slots: VecDeque<(u64, Option<T>)>,
    live: usize,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self { slots: VecDeque::new(), live: 0 }
    }
}

impl<T> Slots<T> {
    pub(crate) fn len(&self) -> usize {
        self.live
    }

    pub(crate) fn first_key(&self) -> Option<u64> {
        self.slots.front().map(|slot| slot.0)
    }

    pub(crate) fn last_key(&self) -> Option<u64> {
        self.slots.back().map(|slot| slot.0)
    }

    /// `key` is above every key here.
    pub(crate) fn push_back(&mut self, key: u64, item: T) {
        debug_assert!(self.last_key().is_none_or(|last| last < key), "{key} after {:?}", self.last_key());
        self.slots.push_back((key, Some(item)));
        self.live += 1;
    }

    /// `key` is below every key here.
    pub(crate) fn push_front(&mut self, key: u64, item: T) {
        debug_assert!(self.first_key().is_none_or(|first| key < first), "{key} before {:?}", self.first_key());
        self.slots.push_front((key, Some(item)));
        self.live += 1;
    }

    pub(crate) fn contains(&self, key: u64) -> bool {
        self.get(key).is_some()
    }

    pub(crate) fn get(&self, key: u64) -> Option<&T> {
        self.slots[self.place(key)?].1.as_ref()
    }

    pub(crate) fn get_mut(&mut self, key: u64) -> Option<&mut T> {
        let place = self.place(key)?;
        self.slots[place].1.as_mut()
    }

    pub(crate) fn remove(&mut self, key: u64) -> Option<T> {
        let place = self.place(key)?;
        let item = self.slots[place].1.take()?;
        self.live -= 1;
        self.tidy();
        Some(item)
    }

    /// The live item with the lowest key above `key`.
    pub(crate) fn next_after(&self, key: u64) -> Option<(u64, &T)> {
        let start = match self.place(key) {
            Some(place) => place + 1,
            None => self.slots.partition_point(|slot| slot.0 <= key),
        };
        self.slots.range(start..).find_map(|(key, item)| item.as_ref().map(|item| (*key, item)))
    }

    /// Live items with keys above `key`, in order.
    pub(crate) fn iter_after(&self, key: u64) -> impl Iterator<Item = (u64, &T)> {
        let start = self.slots.partition_point(|slot| slot.0 <= key);
        self.slots.range(start..).filter_map(|(key, item)| item.as_ref().map(|item| (*key, item)))
    }

    /// Live items with keys from `from` to `to`, both included, in order.
    pub(crate) fn range_mut(&mut self, from: u64, to: u64) -> impl DoubleEndedIterator<Item = (u64, &mut T)> {
        let start = self.slots.partition_point(|slot| slot.0 < from);
        let end = self.slots.partition_point(|slot| slot.0 <= to).max(start);
        self.slots.range_mut(start..end).filter_map(|(key, item)| item.as_mut().map(|item| (*key, item)))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        self.slots.iter().filter_map(|(key, item)| item.as_ref().map(|item| (*key, item)))
    }

    /// Live items with keys below `before`, highest first.
    pub(crate) fn iter_down_from(&self, before: u64) -> impl Iterator<Item = (u64, &T)> {
        let end = self.slots.partition_point(|slot| slot.0 < before);
        self.slots.range(..end).rev().filter_map(|(key, item)| item.as_ref().map(|item| (*key, item)))
    }

    /// Removes and returns, in key order, the items up to and including `up_to` for which `wanted` holds.
    pub(crate) fn take_up_to(&mut self, up_to: u64, mut wanted: impl FnMut(u64) -> bool) -> Vec<(u64, T)> {
        let mut taken = Vec::new();
        for (key, item) in &mut self.slots {
            if *key > up_to {
                break;
            }
            if item.is_some() && wanted(*key) {
                taken.extend(item.take().map(|item| (*key, item)));
            }
        }
        self.live -= taken.len();
        self.tidy();
        taken
    }

    pub(crate) fn into_items(self) -> impl Iterator<Item = (u64, T)> {
        self.slots.into_iter().filter_map(|(key, item)| item.map(|item| (key, item)))
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
            self.slots.shrink_to(2 * self.live + SPARE_TOMBSTONES);
        }
        if self.slots.capacity() > 4 * self.slots.len() + SPARE_PLACES {
            self.slots.shrink_to(2 * self.slots.len() + SPARE_PLACES / 2);
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
            assert!(slots.slots.len() <= 2 + SPARE_TOMBSTONES);
        }
        assert_eq!(keys(&slots), [0]);
    }
    #[test]
    fn a_ring_that_was_long_once_gives_its_memory_back() {
        let mut slots = Slots::default();
        (0..100_000).for_each(|key| slots.push_back(key, 'x'));
        for key in 0..100_000 {
            slots.remove(key);
            assert!(slots.slots.capacity() <= 4 * slots.len() + SPARE_PLACES);
        }
    }
}
