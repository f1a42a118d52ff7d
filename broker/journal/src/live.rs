//! Which messages a checkpoint found alive, and how much of each segment that is. A few bytes a message, however many queues
//! hold it.

use roaring::RoaringTreemap;
use understudy_record::{FRAME_HEADER_BYTES, Index};

/// What a message takes in a segment beside body and properties, in bytes, about: header, names, targets.
const OVERHEAD_BYTES: u64 = FRAME_HEADER_BYTES as u64 + 48;

#[derive(Debug, Default)]
pub(crate) struct LiveSet {
    indexes: RoaringTreemap,
    /// In order of `first`; each reaches to the next.
    cells: Vec<Cell>,
}

/// Live messages from `first` on, up to the next cell's.
#[derive(Clone, Copy, Debug)]
struct Cell {
    first: Index,
    bytes: u64,
}

impl LiveSet {
    /// Empty. `firsts`: where the ranges begin whose bytes are asked for later, in any order.
    pub(crate) fn of_ranges(firsts: impl IntoIterator<Item = Index>) -> Self {
        let mut cells: Vec<_> = firsts.into_iter().map(|first| Cell { first, bytes: 0 }).collect();
        cells.sort_unstable_by_key(|cell| cell.first);
        cells.dedup_by_key(|cell| cell.first);
        Self { indexes: RoaringTreemap::new(), cells }
    }

    /// A message, or part of one, of so many bytes. Once is enough.
    pub(crate) fn insert(&mut self, index: Index, bytes: u64) {
        if self.indexes.insert(index.0) {
            let begun = self.cells.partition_point(|cell| cell.first <= index);
            if let Some(cell) = begun.checked_sub(1).and_then(|at| self.cells.get_mut(at)) {
                cell.bytes += bytes + OVERHEAD_BYTES;
            }
        }
    }

    /// Live messages of this range, and about how many bytes they take; the range is one or more of those named at first.
    pub(crate) fn within(&self, first: Index, last: Index) -> (u64, u64) {
        let from = self.cells.partition_point(|cell| cell.first < first);
        let cells = self.cells.get(from..).unwrap_or_default().iter().take_while(|cell| cell.first <= last);
        (self.indexes.range_cardinality(first.0..=last.0), cells.map(|cell| cell.bytes).sum())
    }

    /// In order.
    pub(crate) fn range(&self, first: Index, last: Index) -> impl Iterator<Item = Index> + '_ {
        let mut indexes = self.indexes.iter();
        indexes.advance_to(first.0);
        indexes.take_while(move |index| *index <= last.0).map(Index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_message_counts_once_in_its_range() {
        let mut live = LiveSet::of_ranges([50, 10, 100, 50].map(Index));
        for (index, bytes) in [(12, 1000), (12, 1000), (49, 1), (50, 7), (1 << 40, 5)] {
            live.insert(Index(index), bytes);
        }
        assert_eq!(live.within(Index(10), Index(49)), (2, 1001 + 2 * OVERHEAD_BYTES));
        assert_eq!(live.within(Index(50), Index(99)), (1, 7 + OVERHEAD_BYTES));
        assert_eq!(live.within(Index(10), Index(99)), (3, 1008 + 3 * OVERHEAD_BYTES));
        assert_eq!(live.within(Index(1), Index(9)), (0, 0));
        assert_eq!(live.range(Index(13), Index(1 << 40)).collect::<Vec<_>>(), [49, 50, 1 << 40].map(Index));
    }
}
