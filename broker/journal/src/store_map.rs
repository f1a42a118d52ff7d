//! Where messages stand that are not records of the log: in kept segments, and in the pieces of a base that a catch-up
//! wrote. Records of the log are found by their index alone, see `reader`.
//!
//! A message's index is all that a queue remembers of its place, so no queue is touched when messages move.

use understudy_record::Index;

use crate::reader::Segment;
use crate::segment::SegmentId;

/// A segment that holds the messages of a range which the log no longer covers.
#[derive(Clone, Debug)]
pub(crate) struct KeptSegment {
    pub(crate) id: SegmentId,
    /// No message outside of `first..=last` is in it, and none of these is elsewhere.
    pub(crate) first: Index,
    pub(crate) last: Index,
    pub(crate) len: u64,
    /// What its messages were estimated at, in bytes, when all of them lived; its length until it has been written anew.
    pub(crate) weight: u64,
    /// As in [`Segment`]; `None` until somebody has looked into it.
    pub(crate) signposts: Option<Vec<(Index, u64)>>,
}

impl KeptSegment {
    /// A log segment that goes on as what it is, for the records of a range. What else is in it, pieces of a base, is elsewhere
    /// by now.
    pub(crate) fn of_log(segment: &Segment, first: Index, last: Index) -> Self {
        let Segment { id, len, ref signposts, .. } = *segment;
        Self {
            id,
            first,
            last,
            len,
            weight: len,
            signposts: Some(signposts.clone()).filter(|signposts| !signposts.is_empty()),
        }
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct StoreMap {
    /// Their ranges ascend and do not overlap.
    pub(crate) kept: Vec<KeptSegment>,
    /// The messages of the base that stands in the log, each with its place: 24 bytes a message, until the first checkpoint
    /// after the catch-up has moved them to kept segments.
    base: Vec<(Index, SegmentId, u64)>,
    base_sorted: bool,
}

impl StoreMap {
    /// As a checkpoint leaves it.
    pub(crate) fn of_kept(kept: Vec<KeptSegment>) -> Self {
        Self { kept, ..Self::default() }
    }

    pub(crate) fn kept_with(&self, index: Index) -> Option<&KeptSegment> {
        let after = self.kept.partition_point(|kept| kept.first <= index);
        after.checked_sub(1).map(|at| &self.kept[at]).filter(|kept| index <= kept.last)
    }

    pub(crate) fn set_signposts(&mut self, id: SegmentId, signposts: Vec<(Index, u64)>) {
        if let Some(kept) = self.kept.iter_mut().find(|kept| kept.id == id) {
            kept.signposts = Some(signposts);
        }
    }

    /// A piece of the base with this message begins there.
    pub(crate) fn note_base_message(&mut self, index: Index, id: SegmentId, offset: u64) {
        self.base.push((index, id, offset));
        self.base_sorted = false;
    }

    pub(crate) fn base_message(&mut self, index: Index) -> Option<(SegmentId, u64)> {
        let base = self.base();
        let at = base.partition_point(|(other, ..)| *other < index);
        base.get(at).filter(|(other, ..)| *other == index).map(|(_, id, offset)| (*id, *offset))
    }

    /// In the order of their indexes; a message that several queues hold is there for each.
    pub(crate) fn base(&mut self) -> &[(Index, SegmentId, u64)] {
        if !self.base_sorted {
            self.base.sort_unstable();
            self.base_sorted = true;
        }
        &self.base
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(sequence: u32, first: u64, last: u64) -> KeptSegment {
        let id = SegmentId::kept(1, sequence);
        KeptSegment { id, first: Index(first), last: Index(last), len: 0, weight: 0, signposts: None }
    }

    #[test]
    fn a_message_is_in_the_one_segment_whose_range_has_it() {
        let mut map = StoreMap::of_kept(vec![kept(4, 1, 10), kept(2, 11, 11), kept(3, 20, 30)]);
        let found = |map: &StoreMap, index| map.kept_with(Index(index)).map(|kept| kept.id.sequence);
        let cases =
            [(0, None), (1, Some(4)), (10, Some(4)), (11, Some(2)), (12, None), (19, None), (20, Some(3)), (31, None)];
        for (index, expected) in cases {
            assert_eq!(found(&map, index), expected, "message {index}");
        }
        map.set_signposts(SegmentId::kept(1, 3), vec![(Index(20), 64), (Index(24), 5000)]);
        assert_eq!(map.kept_with(Index(25)).and_then(|kept| kept.signposts.as_ref()).map(Vec::len), Some(2));
    }

    #[test]
    fn messages_of_a_base_are_found_whatever_order_they_came_in() {
        let mut map = StoreMap::default();
        let id = SegmentId::log(2, 0);
        for (index, offset) in [(9, 100), (7, 200), (8, 300), (7, 400)] {
            map.note_base_message(Index(index), id, offset);
        }
        assert_eq!(map.base_message(Index(7)), Some((id, 200)));
        assert_eq!(map.base_message(Index(8)), Some((id, 300)));
        assert_eq!(map.base_message(Index(6)), None);
        map.note_base_message(Index(6), id, 500);
        assert_eq!(map.base_message(Index(6)), Some((id, 500)));
    }
}
