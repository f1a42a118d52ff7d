//! Which epoch wrote which part of the log. Two logs that agree on a position agree on everything before it, since one
//! primary writes an epoch and starts from a log that holds the earlier ones.

use understudy_record::variant::{Variant, is_broken};
use understudy_record::{Epoch, Index, Position};

/// Where each epoch began, oldest first, and where the log ends.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct History {
    starts: Vec<Position>,
    last: Index,
}

/// A replica's log as it takes the primary's role: nothing of the new epoch is in it yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnLog {
    pub history: History,
    /// First index held as a record.
    pub first: Index,
    /// The last record that no loss of power takes.
    pub durable: Index,
}

impl History {
    /// `None` if the starts are not in order, or lie beyond the end: no log looks so.
    pub fn new(starts: Vec<Position>, last: Index) -> Option<Self> {
        let ordered = starts.windows(2).all(|pair| pair[0].epoch < pair[1].epoch && pair[0].index < pair[1].index);
        let within = starts.last().is_none_or(|start| start.index <= last);
        let complete = last == Index(0) || !starts.is_empty();
        (ordered && within && complete).then_some(Self { starts, last })
    }

    pub fn starts(&self) -> &[Position] {
        &self.starts
    }

    pub fn last(&self) -> Position {
        Position { epoch: self.starts.last().map(|start| start.epoch).unwrap_or_default(), index: self.last }
    }

    /// The log has grown to `position`.
    ///
    /// # Panics
    /// If `position` is not after the last one, or of a lower epoch.
    pub fn extend(&mut self, position: Position) {
        let last = self.last();
        assert!(position.index > last.index && position.epoch >= last.epoch, "the log goes from {last} to {position}");
        if position.epoch > last.epoch {
            self.starts.push(Position { epoch: position.epoch, index: last.index.next() });
        }
        self.last = position.index;
    }

    /// The log has been cut after `index`.
    pub fn truncate_after(&mut self, index: Index) {
        self.starts.retain(|start| start.index <= index);
        self.last = self.last.min(index);
    }

    /// The epoch that wrote `index`; `None` outside the log.
    pub fn epoch_at(&self, index: Index) -> Option<Epoch> {
        if index > self.last {
            return None;
        }
        self.starts.iter().rev().find(|start| start.index <= index).map(|start| start.epoch)
    }

    /// The record at `index`; the beginning of all logs where there is none.
    pub fn position_at(&self, index: Index) -> Position {
        self.epoch_at(index).map(|epoch| Position { epoch, index }).unwrap_or_default()
    }

    /// The highest index up to which both logs hold the same records.
    pub fn common_prefix(&self, other: &Self) -> Index {
        if is_broken(Variant::KeepTail) {
            return self.last.min(other.last);
        }
        let shared = self.starts.iter().zip(&other.starts).take_while(|(ours, theirs)| ours == theirs).count();
        if shared == 0 {
            return Index(0);
        }
        self.end_of(shared - 1).min(other.end_of(shared - 1))
    }

    /// The last index of the epoch at `place` in the table.
    fn end_of(&self, place: usize) -> Index {
        self.starts.get(place + 1).map_or(self.last, |next| next.index.previous())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(starts: &[(u64, u64)], last: u64) -> History {
        let starts = starts.iter().map(|&(epoch, index)| Position { epoch: Epoch(epoch), index: Index(index) });
        History::new(starts.collect(), Index(last)).unwrap()
    }

    #[test]
    fn finds_where_two_logs_part() {
        let primary = history(&[(1, 1), (3, 11), (4, 15)], 20);
        type Starts = &'static [(u64, u64)];
        let cases: [(Starts, u64, u64); 8] = [
            (&[], 0, 0),
            (&[(1, 1)], 8, 8),                     // lags
            (&[(1, 1)], 12, 10),                   // an old primary with a tail nobody has
            (&[(1, 1), (2, 9)], 12, 8),            // an epoch that reached nobody else
            (&[(1, 1), (3, 11)], 18, 14),          // followed 3, has more of it than 4 took over
            (&[(1, 1), (3, 11), (4, 15)], 20, 20), // level
            (&[(1, 1), (3, 11), (4, 15)], 22, 20), // has a tail the primary lacks: it restarted? cut it
            (&[(2, 1)], 5, 0),                     // another cluster's
        ];
        for (starts, last, common) in cases {
            assert_eq!(primary.common_prefix(&history(starts, last)), Index(common), "{starts:?} to {last}");
            assert_eq!(history(starts, last).common_prefix(&primary), Index(common), "{starts:?} to {last}, reversed");
        }
    }

    #[test]
    fn grows_and_is_cut() {
        let mut log = History::default();
        log.extend(Position::new(Epoch(2), Index(1)));
        log.extend(Position::new(Epoch(2), Index(4)));
        log.extend(Position::new(Epoch(5), Index(5)));
        assert_eq!(log, history(&[(2, 1), (5, 5)], 5));
        assert_eq!(log.epoch_at(Index(4)), Some(Epoch(2)));
        assert_eq!(log.epoch_at(Index(6)), None);
        log.truncate_after(Index(4));
        assert_eq!(log.last(), Position::new(Epoch(2), Index(4)));
        log.truncate_after(Index(0));
        assert_eq!(log, History::default());
    }

    #[test]
    fn what_no_log_looks_like_is_refused() {
        let p = |epoch, index| Position::new(Epoch(epoch), Index(index));
        assert_eq!(History::new(vec![p(2, 1), p(1, 5)], Index(9)), None);
        assert_eq!(History::new(vec![p(1, 1), p(2, 5)], Index(4)), None);
        assert_eq!(History::new(vec![], Index(4)), None);
    }
}
