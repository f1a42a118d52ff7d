//! The same failure again and again: what each part of the failovers took, as medians and maxima in one row of a table.

use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::time::Duration;

use anyhow::{Context, Result};
use understudy_bench::Account;
use understudy_crds::{BrokerClusterStatus, FailoverRecord};

use crate::report::Goal;

/// Where rows are appended; `e2e/run` prints them at the end.
const FILE_VARIABLE: &str = "UNDERSTUDY_E2E_FAILOVERS";

/// How many rounds of each kind there are.
const COUNT_VARIABLE: &str = "UNDERSTUDY_E2E_ROUNDS";
const COUNT: u32 = 20;

const PARTS: usize = 4;

/// # Errors
/// If the environment says something else than a number.
pub fn rounds_wanted() -> Result<u32> {
    let Some(text) = std::env::var_os(COUNT_VARIABLE) else { return Ok(COUNT) };
    let count = text.to_str().and_then(|text| text.parse().ok()).filter(|count| *count > 0);
    count.with_context(|| format!("{COUNT_VARIABLE} is {text:?}, no number of rounds"))
}

/// The rounds of one kind so far.
pub struct Rounds {
    kind: &'static str,
    goal: Goal,
    gaps: Vec<i64>,
    /// Detect, elect, promote, route: in milliseconds, of those rounds in which the operator saw them.
    parts: [Vec<i64>; PARTS],
    confirmed: u64,
    lost: u64,
}

impl Rounds {
    pub fn new(kind: &'static str, goal: Goal) -> Self {
        Self { kind, goal, gaps: Vec::new(), parts: Default::default(), confirmed: 0, lost: 0 }
    }

    /// `gap`: what the client felt. `status`: after a failover from the primary of `epoch`.
    ///
    /// # Errors
    /// If the status does not speak of it.
    pub fn add(&mut self, gap: Duration, epoch: i64, status: &BrokerClusterStatus, account: &Account) -> Result<()> {
        // A node that comes back may cause another change: the first one after the failure is what was measured.
        let later = status.failovers.iter().filter(|record| record.epoch > epoch);
        let record = later.min_by_key(|record| record.epoch).context("the status speaks of no failover")?;
        let gap = i64::try_from(gap.as_millis()).unwrap_or(i64::MAX);
        self.gaps.push(gap);
        for (known, part) in self.parts.iter_mut().zip(parts(record)) {
            known.extend(part);
        }
        (self.confirmed, self.lost) = (self.confirmed + account.confirmed, self.lost + account.lost);
        let told = parts(record).map(|part| part.map_or("-".to_owned(), |ms| ms.to_string())).join(" ");
        println!(
            "{} {}: {} (detect, elect, promote, route: {told}; {})",
            self.kind,
            self.gaps.len(),
            gap,
            record.reason
        );
        Ok(())
    }

    /// # Errors
    /// If the file for the rows cannot be written.
    pub fn write(&self) -> Result<()> {
        let line = self.row();
        print!("{line}");
        let Some(path) = std::env::var_os(FILE_VARIABLE) else { return Ok(()) };
        let file = OpenOptions::new().append(true).create(true).open(&path);
        file.and_then(|mut file| file.write_all(line.as_bytes())).with_context(|| format!("{path:?}"))
    }

    fn row(&self) -> String {
        let mut line = format!("{:<20} {:>4} ", self.kind, self.gaps.len());
        for values in self.parts.iter().chain([&self.gaps]) {
            let text = median_and_most(values).map_or("-".to_owned(), |(median, most)| format!("{median}/{most}"));
            let _ = write!(line, " {text:>11}"); // writing to a String does not fail
        }
        let verdict = match (self.goal.limit(), self.gaps.iter().max()) {
            (Some(limit), Some(most)) => {
                let met = u128::try_from(*most).is_ok_and(|most| most < limit.as_millis());
                format!("{} (< {} s)", if met { "met" } else { "MISSED" }, limit.as_secs())
            }
            _ => "-".to_owned(),
        };
        let _ = writeln!(line, "  {verdict:<14} {:>9} {:>5}", self.confirmed, self.lost);
        line
    }
}

fn parts(record: &FailoverRecord) -> [Option<i64>; PARTS] {
    [record.detect_ms, record.elect_ms, record.promote_ms, record.route_ms]
}

/// The median is one of the values: of an even number the higher of the two in the middle.
fn median_and_most(values: &[i64]) -> Option<(i64, i64)> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    Some((*sorted.get(sorted.len() / 2)?, *sorted.last()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(epoch: i64, detect_ms: Option<i64>) -> FailoverRecord {
        FailoverRecord {
            from: Some("orders-0".into()),
            to: "orders-1".into(),
            epoch,
            reason: "ProcessGone".into(),
            noticed_at: None,
            elected_at: None,
            serving_at: None,
            detect_ms,
            elect_ms: detect_ms,
            promote_ms: Some(4),
            route_ms: Some(6),
        }
    }

    #[test]
    fn a_row_has_the_medians_and_maxima_of_what_was_seen() {
        let mut rounds = Rounds::new("process killed", Goal::KilledProcess);
        let mut account = Account { confirmed: 100, ..Account::default() };
        for (gap, detect) in [(120, Some(10)), (90, None), (1_400, Some(30))] {
            // The newest first, as the status has them.
            let failovers = vec![record(9, Some(999)), record(8, detect), record(7, Some(888))];
            let status = BrokerClusterStatus { failovers, ..BrokerClusterStatus::default() };
            rounds.add(Duration::from_millis(gap), 7, &status, &account).unwrap();
            account.lost += 1;
        }
        let row = rounds.row();
        let words: Vec<&str> = row.split_whitespace().collect();
        let expected = "process killed 3 30/30 30/30 4/4 6/6 120/1400 MISSED (< 1 s) 300 3";
        assert_eq!(words.join(" "), expected);
        let nothing = BrokerClusterStatus { failovers: vec![record(7, None)], ..BrokerClusterStatus::default() };
        assert!(rounds.add(Duration::ZERO, 7, &nothing, &account).is_err());
    }
}
