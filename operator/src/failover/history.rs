//! The changes of primary that were seen, with what each took. Pure: times come as arguments.

use std::time::Duration;

use understudy_crds::{FailoverRecord, Timestamp};
use understudy_record::Epoch;

/// So many are kept.
const KEPT: usize = 10;

#[derive(Debug, Default)]
pub(super) struct History {
    /// The newest first.
    records: Vec<FailoverRecord>,
    /// When the primary was first missed, by the calendar, and when it was last heard before that.
    missed: Option<(Timestamp, Duration)>,
    decided_at: Option<Duration>,
    /// Of the newest record, if it was seen to happen.
    elected_at: Option<Duration>,
}

/// A change of primary, as the Lease shows it.
pub(super) struct Change {
    pub(super) from: Option<String>,
    pub(super) to: String,
    pub(super) epoch: Epoch,
    pub(super) reason: String,
    /// It happened while the operator looked.
    pub(super) watched: bool,
    /// It was the operator's own election.
    pub(super) own: bool,
}

impl History {
    /// From what an earlier operator has written.
    pub(super) fn of(records: &[FailoverRecord]) -> Self {
        Self { records: records.iter().take(KEPT).cloned().collect(), ..Self::default() }
    }

    pub(super) fn records(&self) -> &[FailoverRecord] {
        &self.records
    }

    pub(super) fn is_missed(&self) -> bool {
        self.missed.is_some()
    }

    pub(super) fn note_missed(&mut self, at: Timestamp, last_heard: Duration) {
        self.missed.get_or_insert((at, last_heard));
    }

    pub(super) fn note_there(&mut self) {
        (self.missed, self.decided_at) = (None, None);
    }

    /// An election was decided, and is about to be tried.
    pub(super) fn note_decided(&mut self, now: Duration) {
        self.decided_at.get_or_insert(now);
    }

    pub(super) fn begin(&mut self, now: Duration, at: Timestamp, change: Change) {
        let decided_at = self.decided_at.take().filter(|_| change.own);
        let last_heard = self.missed.as_ref().map(|(_, last_heard)| *last_heard);
        let missed_at = self.missed.as_ref().map(|(at, _)| at.clone());
        self.elected_at = change.watched.then_some(now);
        let record = FailoverRecord {
            from: change.from,
            to: change.to,
            epoch: i64::try_from(change.epoch.0).unwrap_or(i64::MAX),
            reason: change.reason,
            noticed_at: missed_at.filter(|_| change.watched),
            elected_at: change.watched.then_some(at),
            serving_at: None,
            detect_ms: decided_at.zip(last_heard).map(|(decided, heard)| millis(decided, heard)),
            elect_ms: decided_at.map(|decided| millis(now, decided)),
            promote_ms: None,
            route_ms: None,
        };
        self.records.insert(0, record);
        self.records.truncate(KEPT);
    }

    pub(super) fn note_serving(&mut self, now: Duration, at: Timestamp, epoch: Epoch) {
        let Some(elected_at) = self.elected_at else { return };
        if let Some(record) = self.newest(epoch).filter(|record| record.serving_at.is_none()) {
            record.serving_at = Some(at);
            record.promote_ms = Some(millis(now, elected_at));
        }
    }

    /// The Service leads to the primary of this epoch.
    pub(super) fn note_routed(&mut self, now: Duration, epoch: Epoch) {
        let Some(elected_at) = self.elected_at else { return };
        if let Some(record) = self.newest(epoch) {
            record.route_ms.get_or_insert(millis(now, elected_at));
        }
    }

    fn newest(&mut self, epoch: Epoch) -> Option<&mut FailoverRecord> {
        self.records.first_mut().filter(|record| i64::try_from(epoch.0) == Ok(record.epoch))
    }
}

fn millis(later: Duration, earlier: Duration) -> i64 {
    i64::try_from(later.saturating_sub(earlier).as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_unix_ms(ms)
    }

    fn change(epoch: u64, own: bool) -> Change {
        let (from, to) = (Some("orders-0".into()), "orders-1".into());
        Change { from, to, epoch: Epoch(epoch), reason: "PrimaryLost".into(), watched: true, own }
    }

    #[test]
    fn each_part_of_a_failover_is_timed() {
        let mut history = History::default();
        history.note_missed(at(1_000), ms(900));
        history.note_missed(at(1_100), ms(1_000));
        history.note_decided(ms(1_300));
        history.note_decided(ms(1_350));
        history.begin(ms(1_320), at(1_320), change(4, true));
        history.note_routed(ms(1_340), Epoch(4));
        history.note_serving(ms(1_370), at(1_370), Epoch(4));
        history.note_serving(ms(9_000), at(9_000), Epoch(4));
        history.note_routed(ms(9_000), Epoch(4));
        let record = &history.records()[0];
        assert_eq!((record.detect_ms, record.elect_ms), (Some(400), Some(20)));
        assert_eq!((record.promote_ms, record.route_ms), (Some(50), Some(20)));
        assert_eq!(record.noticed_at, Some(at(1_000)));
    }

    /// What brokers did among themselves was not decided here.
    #[test]
    fn what_was_not_seen_has_no_times() {
        let mut history = History::default();
        history.note_decided(ms(10));
        history.begin(ms(20), at(20), change(4, false));
        assert_eq!((history.records()[0].detect_ms, history.records()[0].elect_ms), (None, None));
        history.begin(ms(30), at(30), Change { watched: false, ..change(5, false) });
        history.note_serving(ms(40), at(40), Epoch(5));
        assert_eq!((history.records()[0].promote_ms, history.records()[0].serving_at.clone()), (None, None));
    }

    #[test]
    fn ten_are_kept_and_taken_over_from_before() {
        let mut history = History::default();
        (1..=12).for_each(|epoch| history.begin(ms(epoch), at(0), change(epoch, false)));
        let epochs: Vec<i64> = history.records().iter().map(|record| record.epoch).collect();
        assert_eq!(epochs, (3..=12).rev().collect::<Vec<_>>());
        assert_eq!(History::of(history.records()).records(), history.records());
    }
}
