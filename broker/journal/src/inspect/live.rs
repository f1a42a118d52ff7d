//! Which messages live, by the word of a checkpoint, and in which segment each has to be.

use std::collections::BTreeMap;

use roaring::RoaringTreemap;
use understudy_record::{FRAME_HEADER_BYTES, HeldMessage, Index, PartRef};

use super::Live;

/// The indexes that a segment answers for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Range {
    pub(super) first: Index,
    pub(super) last: Index,
    /// Which of the segments.
    pub(super) segment: usize,
}

/// Live messages, counted by segment.
#[derive(Debug)]
pub(super) struct Census {
    /// A few bits a message where they stand close together.
    set: RoaringTreemap,
    /// Ascending by `first`; where several begin with the same index, the last has it.
    ranges: Vec<Range>,
    by_segment: Vec<Live>,
    pub(super) messages: u64,
    pub(super) message_bytes: u64,
    pub(super) held: u64,
    /// Messages that are in no range.
    pub(super) homeless: u64,
    /// Of each large message, the bytes that its parts hold.
    in_parts: BTreeMap<Index, u64>,
}

impl Census {
    pub(super) fn new(mut ranges: Vec<Range>, segments: usize) -> Self {
        ranges.sort_by_key(|range| (range.first, range.segment));
        Self {
            set: RoaringTreemap::new(),
            ranges,
            by_segment: vec![Live::default(); segments],
            messages: 0,
            message_bytes: 0,
            held: 0,
            homeless: 0,
            in_parts: BTreeMap::new(),
        }
    }

    pub(super) fn count(&mut self, message: &HeldMessage) {
        self.held += 1;
        if !self.set.insert(message.index.0) {
            return;
        }
        self.messages += 1;
        self.message_bytes += u64::from(message.bytes);
        // The rest of a large one is in its parts, which stand elsewhere.
        let elsewhere = self.in_parts.get(&message.index).copied().unwrap_or(0);
        self.settle(message.index, u64::from(message.bytes).saturating_sub(elsewhere));
    }

    /// The parts of `message`, or those that no message has claimed. Each lives as a message does, without being one.
    pub(super) fn count_parts(&mut self, message: Index, parts: &[PartRef]) {
        self.in_parts.insert(message, parts.iter().map(|part| u64::from(part.bytes)).sum());
        for part in parts {
            if self.set.insert(part.index.0) {
                self.settle(part.index, part.bytes.into());
            }
        }
    }

    /// In the segment that answers for it.
    fn settle(&mut self, index: Index, bytes: u64) {
        let after = self.ranges.partition_point(|range| range.first <= index);
        let range = after.checked_sub(1).map(|at| self.ranges[at]).filter(|range| index <= range.last);
        match range.and_then(|range| self.by_segment.get_mut(range.segment)) {
            Some(live) => {
                live.messages += 1;
                live.bytes += bytes + FRAME_HEADER_BYTES as u64;
            }
            None => self.homeless += 1,
        }
    }

    pub(super) fn contains(&self, index: Index) -> bool {
        self.set.contains(index.0)
    }

    pub(super) fn of_segment(&self, segment: usize) -> Live {
        self.by_segment.get(segment).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_counts_once_in_the_segment_that_answers_for_it() {
        let range = |first, last, segment| Range { first: Index(first), last: Index(last), segment };
        // Segments 1 and 2 begin with the same record: the first of them holds pieces of a base only.
        let mut census = Census::new(vec![range(100, u64::MAX, 2), range(1, 60, 0), range(100, 99, 1)], 3);
        for index in [60, 1, 60, 99, 61, 100, 1_000_000] {
            census.count(&HeldMessage { index: Index(index), bytes: 10, ..HeldMessage::default() });
        }
        assert_eq!((census.held, census.messages, census.message_bytes, census.homeless), (7, 6, 60, 2));
        let live = |messages| Live { messages, bytes: messages * (10 + FRAME_HEADER_BYTES as u64) };
        assert_eq!([0, 1, 2].map(|segment| census.of_segment(segment)), [live(2), live(0), live(2)]);
        assert!(census.contains(Index(1_000_000)) && !census.contains(Index(999_999)));
    }

    #[test]
    fn a_part_lives_where_it_stands_and_its_message_weighs_there_what_is_left() {
        let range = |first, last, segment| Range { first: Index(first), last: Index(last), segment };
        let mut census = Census::new(vec![range(1, 60, 0), range(61, 100, 1)], 2);
        let part = |index, bytes| PartRef { index: Index(index), bytes };
        census.count_parts(Index(0), &[part(50, 7)]);
        for _ in 0..2 {
            census.count_parts(Index(70), &[part(59, 100), part(61, 100)]);
            census.count(&HeldMessage { index: Index(70), bytes: 210, ..HeldMessage::default() });
        }
        assert_eq!((census.held, census.messages, census.message_bytes, census.homeless), (2, 1, 210, 0));
        let header = FRAME_HEADER_BYTES as u64;
        assert_eq!(census.of_segment(0), Live { messages: 2, bytes: 107 + 2 * header });
        assert_eq!(census.of_segment(1), Live { messages: 2, bytes: 110 + 2 * header });
    }
}
