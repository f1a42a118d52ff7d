//! The in-sync sets that the log put into force, with their records' indexes: the last one is what a recovery without a
//! Lease goes by (rule 7), and the last one up to a sync point is part of its checkpoint.

use std::collections::VecDeque;

use understudy_record::{Frame, Index, Member};

/// Set changes remembered at most. There is one for each member lost or won, and a checkpoint forgets those before it.
const MAX_SETS: usize = 1024;

#[derive(Clone, Debug, Default)]
pub struct RecordedSets(VecDeque<(Index, Vec<Member>)>);

impl RecordedSets {
    /// Takes note of what a frame of the log says.
    pub fn note(&mut self, frame: &Frame) {
        let Some(set) = frame.in_sync_set() else { return };
        if self.0.len() == MAX_SETS {
            self.0.pop_front();
        }
        self.0.push_back((frame.position.index, set));
    }

    /// The log was cut after `index`.
    pub fn cut_after(&mut self, index: Index) {
        self.0.retain(|(at, _)| *at <= index);
    }

    pub fn latest(&self) -> &[Member] {
        self.0.back().map_or(&[], |(_, set)| set)
    }

    pub fn as_of(&self, index: Index) -> &[Member] {
        self.0.iter().rev().find(|(at, _)| *at <= index).map_or(&[], |(_, set)| set)
    }

    /// Keeps what a checkpoint of `sync_point`, or a later one, needs.
    pub fn forget_before(&mut self, sync_point: Index) {
        while self.0.get(1).is_some_and(|(at, _)| *at <= sync_point) {
            self.0.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use understudy_record::{Position, Record, ReplicaName, StoreId};

    use super::*;

    fn set(store: u128) -> Vec<Member> {
        vec![Member { name: ReplicaName::new("orders-0"), store: StoreId(store), process: None }]
    }

    fn noted(indexes: &[u64]) -> RecordedSets {
        let mut sets = RecordedSets::default();
        for &index in indexes {
            let position = Position { index: Index(index), ..Position::default() };
            let record = Record::InSyncSet { members: set(index.into()) };
            sets.note(&Frame::record(position, Index(0), &record, &mut BytesMut::new()));
        }
        sets
    }

    #[test]
    fn each_point_of_the_log_has_its_set() {
        let mut sets = noted(&[3, 7, 20]);
        assert_eq!(sets.latest(), set(20));
        assert_eq!((sets.as_of(Index(2)), sets.as_of(Index(7))), (&[][..], &set(7)[..]));
        sets.forget_before(Index(19));
        assert_eq!(sets.as_of(Index(19)), set(7));
        sets.cut_after(Index(19));
        assert_eq!(sets.latest(), set(7));
    }
}
