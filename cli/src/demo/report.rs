//! The closing table of a demonstration, and the same as JSON.

use std::time::Duration;

use serde::Serialize;
use understudy_bench::Account;
use understudy_record::Epoch;

use crate::status::columns;

pub(crate) struct Report {
    pub(crate) account: Account,
    pub(crate) failovers: Vec<Failover>,
    pub(crate) reconnects: u64,
    /// What went wrong besides lost and duplicated messages.
    pub(crate) problems: Vec<String>,
}

/// One kill, survived.
#[derive(Clone, Debug)]
pub(crate) struct Failover {
    pub(crate) killed: String,
    pub(crate) primary: String,
    pub(crate) epoch: Epoch,
    /// From the kill to the first confirm of a message sent after it.
    pub(crate) gap: Duration,
    /// From the notice of the death to the swapped Lease.
    pub(crate) elected: Option<Duration>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct JsonReport<'a> {
    clean: bool,
    account: &'a Account,
    failovers: Vec<JsonFailover<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gap_ms: Option<JsonGap>,
    reconnects: u64,
    problems: &'a [String],
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct JsonFailover<'a> {
    killed: &'a str,
    primary: &'a str,
    epoch: u64,
    gap_ms: f64,
    elected_ms: Option<f64>,
}

#[derive(Serialize)]
struct JsonGap {
    median: f64,
    p99: f64,
    max: f64,
}

impl Report {
    pub(crate) fn is_clean(&self) -> bool {
        self.account.is_clean() && self.problems.is_empty()
    }

    pub(crate) fn to_text(&self) -> String {
        let mut rows =
            vec![["KILL", "KILLED", "NEW PRIMARY", "EPOCH", "ELECTED IN", "GAP"].map(str::to_string).to_vec()];
        for (number, failover) in (1..).zip(&self.failovers) {
            rows.push(vec![
                number.to_string(),
                failover.killed.clone(),
                failover.primary.clone(),
                failover.epoch.to_string(),
                failover.elected.map_or_else(|| "-".into(), |elected| format!("{:.1} ms", ms(elected))),
                format!("{:.0} ms", ms(failover.gap)),
            ]);
        }
        let mut text = format!("\n{}\n", columns(&rows));
        if let Some(gap) = self.gap() {
            text.push_str(&format!(
                "From a kill to the first confirm on the new primary: median {:.0} ms, p99 {:.0} ms, max {:.0} ms\n\n",
                gap.median, gap.p99, gap.max
            ));
        }
        text.push_str(&format!("Messages\n{}\n", self.account));
        for problem in &self.problems {
            text.push_str(&format!("PROBLEM: {problem}\n"));
        }
        text.push_str(if self.is_clean() {
            "Every confirmed message was delivered, once.\n"
        } else {
            "FAILED: see above.\n"
        });
        text
    }

    pub(crate) fn to_json(&self) -> JsonReport<'_> {
        JsonReport {
            clean: self.is_clean(),
            account: &self.account,
            failovers: self.failovers.iter().map(Failover::to_json).collect(),
            gap_ms: self.gap(),
            reconnects: self.reconnects,
            problems: &self.problems,
        }
    }

    fn gap(&self) -> Option<JsonGap> {
        let mut gaps: Vec<_> = self.failovers.iter().map(|failover| failover.gap).collect();
        gaps.sort_unstable();
        let max = ms(*gaps.last()?);
        Some(JsonGap { median: ms(percentile(&gaps, 50)?), p99: ms(percentile(&gaps, 99)?), max })
    }
}

impl Failover {
    fn to_json(&self) -> JsonFailover<'_> {
        let Self { killed, primary, epoch, gap, elected } = self;
        JsonFailover { killed, primary, epoch: epoch.0, gap_ms: ms(*gap), elected_ms: elected.map(ms) }
    }
}

/// The smallest value that so many of a hundred do not exceed (nearest rank). Of fewer than a hundred values the 99th
/// percentile is the greatest.
fn percentile(sorted: &[Duration], of_100: usize) -> Option<Duration> {
    let rank = (sorted.len() * of_100).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).copied()
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    fn failover(number: u64, gap_ms: u64) -> Failover {
        Failover {
            killed: format!("dev-{}", number % 3),
            primary: format!("dev-{}", (number + 1) % 3),
            epoch: Epoch(number + 2),
            gap: Duration::from_millis(gap_ms),
            elected: (number != 1).then(|| Duration::from_micros(2500)),
        }
    }

    fn report() -> Report {
        Report {
            account: Account { sent: 1010, confirmed: 1000, delivered: 1003, ..Account::default() },
            failovers: vec![failover(0, 120), failover(1, 95), failover(2, 240)],
            reconnects: 3,
            problems: Vec::new(),
        }
    }

    #[test]
    fn the_closing_table() {
        expect![[r#"

            KILL  KILLED  NEW PRIMARY  EPOCH  ELECTED IN  GAP
            1     dev-0   dev-1        2      2.5 ms      120 ms
            2     dev-1   dev-2        3      -           95 ms
            3     dev-2   dev-0        4      2.5 ms      240 ms

            From a kill to the first confirm on the new primary: median 120 ms, p99 240 ms, max 240 ms

            Messages
              sent                1010  
              confirmed           1000  
              delivered           1003  
              lost                   0  confirmed, never delivered
              duplicated             0  delivered again after an acknowledgement that was taken
              redelivered            0  delivered again, unacknowledged at a failure
              abandoned              0  unconfirmed at a failure, sent again as new messages
              resent                 0  of these, had arrived all the same

            Every confirmed message was delivered, once.
        "#]]
        .assert_eq(&report().to_text());
    }

    #[test]
    fn a_lost_message_or_a_problem_is_a_failure() {
        let lost = Report { account: Account { lost: 1, ..report().account }, ..report() };
        assert!(!lost.is_clean());
        let stuck = Report { problems: vec!["kill 4: no confirm".into()], ..report() };
        assert!(!stuck.is_clean());
        assert!(stuck.to_text().contains("PROBLEM: kill 4: no confirm") && stuck.to_text().contains("FAILED"));
        assert!(report().is_clean());
    }

    #[test]
    fn programs_get_the_same_in_milliseconds() {
        let json = serde_json::to_value(report().to_json()).unwrap();
        assert_eq!(json["clean"], true);
        assert_eq!(json["gapMs"]["median"], 120.0);
        assert_eq!(json["gapMs"]["max"], 240.0);
        assert_eq!(json["failovers"][2]["electedMs"], 2.5);
        assert_eq!(json["failovers"][1]["electedMs"], serde_json::Value::Null);
        assert_eq!(json["account"]["confirmed"], 1000);
    }

    #[test]
    fn percentiles_are_values_that_were_seen() {
        let gaps: Vec<_> = (1..=200).map(Duration::from_millis).collect();
        assert_eq!(percentile(&gaps, 50), Some(Duration::from_millis(100)));
        assert_eq!(percentile(&gaps, 99), Some(Duration::from_millis(198)));
        assert_eq!(percentile(&gaps[..50], 99), Some(Duration::from_millis(50)));
        assert_eq!(percentile(&gaps[..1], 50), Some(Duration::from_millis(1)));
        assert_eq!(percentile(&[], 50), None);
    }
}
