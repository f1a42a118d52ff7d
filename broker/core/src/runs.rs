//! Where in a queue resident messages may be: ranges of indexes, apart from each other. Outside of them every message is
//! stored; inside, most are resident, some may be stored or gone. So whoever looks for resident messages passes over the
//! millions of a stored backlog in one step.
//!
//! Each range was made for at least one resident message, so there are never more ranges than messages were in memory.

use std::collections::BTreeMap;

/// A queue that was never above its memory has one range.
#[derive(Debug, Default)]
pub(crate) struct Runs {
    /// The highest, apart from the others, since every publish extends it: first and last index.
    back: Option<(u64, u64)>,
    /// By their first index; none reaches to the next.
    others: BTreeMap<u64, u64>,
}

impl Runs {
    /// `key` is above all there is. `last`: the queue's last message before.
    pub(crate) fn push_back(&mut self, key: u64, last: Option<u64>) {
        match (&mut self.back, last) {
            (Some((_, end)), Some(last)) if last <= *end => *end = key,
            (_, Some(_)) => {
                self.others.extend(self.back);
                self.back = Some((key, key));
            }
            (_, None) => *self = Self { back: Some((key, key)), others: BTreeMap::new() },
        }
    }

    pub(crate) fn add(&mut self, from: u64, to: u64) {
        self.edit(|runs| {
            let (mut from, mut to) = (from, to);
            while let Some((start, end)) = runs.range(..=to.saturating_add(1)).next_back().map(|(s, e)| (*s, *e)) {
                if end.saturating_add(1) < from {
                    break;
                }
                runs.remove(&start);
                (from, to) = (from.min(start), to.max(end));
            }
            runs.insert(from, to);
        });
    }

    pub(crate) fn remove(&mut self, from: u64, to: u64) {
        if from > to {
            return;
        }
        self.edit(|runs| {
            while let Some((start, end)) = runs.range(..=to).next_back().map(|(s, e)| (*s, *e)) {
                if end < from {
                    break;
                }
                runs.remove(&start);
                if start < from {
                    runs.insert(start, from - 1);
                }
                if end > to {
                    runs.insert(to + 1, end);
                }
            }
        });
    }

    /// The highest that begins at or below `key`.
    pub(crate) fn down_from(&self, key: u64) -> Option<(u64, u64)> {
        self.back.filter(|(start, _)| *start <= key).or_else(|| self.others.range(..=key).next_back().map(copied))
    }

    /// The lowest that ends at or above `key`.
    pub(crate) fn up_from(&self, key: u64) -> Option<(u64, u64)> {
        let around = self.others.range(..=key).next_back().map(copied).filter(|(_, end)| *end >= key);
        let above = || self.others.range(key..).next().map(copied);
        around.or_else(above).or(self.back.filter(|(_, end)| *end >= key))
    }

    fn edit(&mut self, change: impl FnOnce(&mut BTreeMap<u64, u64>)) {
        self.others.extend(self.back.take());
        change(&mut self.others);
        self.back = self.others.pop_last();
    }
}

fn copied((start, end): (&u64, &u64)) -> (u64, u64) {
    (*start, *end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(runs: &Runs) -> Vec<(u64, u64)> {
        runs.others.iter().map(copied).chain(runs.back).collect()
    }

    #[test]
    fn ranges_grow_merge_and_split() {
        let mut runs = Runs::default();
        runs.push_back(10, None);
        runs.push_back(15, Some(10));
        runs.push_back(19, Some(15));
        assert_eq!(all(&runs), [(10, 19)]);
        runs.remove(12, 25);
        assert_eq!(all(&runs), [(10, 11)]);
        runs.push_back(30, Some(19));
        runs.push_back(31, Some(30));
        assert_eq!(all(&runs), [(10, 11), (30, 31)]);
        runs.add(20, 22);
        assert_eq!(all(&runs), [(10, 11), (20, 22), (30, 31)]);
        runs.add(12, 18);
        assert_eq!(all(&runs), [(10, 18), (20, 22), (30, 31)]);
        runs.remove(21, 21);
        assert_eq!(all(&runs), [(10, 18), (20, 20), (22, 22), (30, 31)]);
        assert_eq!((runs.down_from(21), runs.up_from(21)), (Some((20, 20)), Some((22, 22))));
        assert_eq!((runs.down_from(9), runs.up_from(32)), (None, None));
        assert_eq!((runs.down_from(99), runs.up_from(0)), (Some((30, 31)), Some((10, 18))));
        assert_eq!((runs.down_from(15), runs.up_from(15)), (Some((10, 18)), Some((10, 18))));
        runs.add(15, 29);
        assert_eq!(all(&runs), [(10, 31)]);
        runs.remove(0, u64::MAX);
        assert_eq!(all(&runs), []);
        runs.push_back(40, None);
        assert_eq!(all(&runs), [(40, 40)]);
    }
}
