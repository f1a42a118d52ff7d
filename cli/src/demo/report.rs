//! The closing words of a demonstration, and the same as JSON: what failed, what became of the messages, and the verdict.

use std::time::Duration;

use serde::Serialize;
use understudy_bench::Account;

use super::chaos::{self, Struck};
use super::kills::{self, Failover};

pub(crate) struct Report {
    pub(crate) story: Story,
    pub(crate) account: Account,
    pub(crate) reconnects: u64,
    /// What went wrong besides lost and duplicated messages.
    pub(crate) problems: Vec<String>,
}

/// What was done to the cluster.
pub(crate) enum Story {
    Kills(Vec<Failover>),
    Chaos { seed: u64, struck: Vec<Struck> },
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct JsonReport<'a> {
    clean: bool,
    account: &'a Account,
    #[serde(flatten)]
    story: JsonStory<'a>,
    reconnects: u64,
    problems: &'a [String],
}

#[derive(Serialize)]
#[serde(untagged)]
enum JsonStory<'a> {
    Kills(kills::JsonKills<'a>),
    Chaos(chaos::JsonChaos<'a>),
}

impl Report {
    /// Nothing lost, nothing twice without a reason or without the word that it is, and no other problem.
    pub(crate) fn is_clean(&self) -> bool {
        self.account.is_clean() && self.account.unflagged == 0 && self.problems.is_empty()
    }

    pub(crate) fn to_text(&self) -> String {
        let mut text = match &self.story {
            Story::Kills(failovers) => kills::table(failovers),
            Story::Chaos { seed, struck } => chaos::table(*seed, struck),
        };
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
            story: match &self.story {
                Story::Kills(failovers) => JsonStory::Kills(kills::to_json(failovers)),
                Story::Chaos { seed, struck } => JsonStory::Chaos(chaos::to_json(*seed, struck)),
            },
            reconnects: self.reconnects,
            problems: &self.problems,
        }
    }
}

/// The smallest value that so many of a hundred do not exceed (nearest rank). Of fewer than a hundred values the 99th
/// percentile is the greatest.
pub(crate) fn percentile(sorted: &[Duration], of_100: usize) -> Option<Duration> {
    let rank = (sorted.len() * of_100).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).copied()
}

pub(crate) fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use understudy_record::Epoch;

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
            story: Story::Kills(vec![failover(0, 120), failover(1, 95), failover(2, 240)]),
            account: Account { sent: 1010, confirmed: 1000, delivered: 1003, ..Account::default() },
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
              unflagged              0  second deliveries that did not say so

            Every confirmed message was delivered, once.
        "#]]
        .assert_eq(&report().to_text());
    }

    #[test]
    fn a_lost_message_or_a_problem_is_a_failure() {
        let lost = Report { account: Account { lost: 1, ..report().account }, ..report() };
        assert!(!lost.is_clean());
        let unflagged = Report { account: Account { redelivered: 1, unflagged: 1, ..report().account }, ..report() };
        assert!(!unflagged.is_clean());
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
