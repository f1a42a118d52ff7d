//! The comparison as a table for people: a row a figure, the median of the rounds with their lowest and highest, and the
//! ratio of ours to RabbitMQ's, taken round by round.

use std::fmt::Write as _;

use super::{Comparison, RABBITMQ, Round, SHAPES, UNDERSTUDY};
use crate::figures::{STRINGS_TAKE_ALL, spread};

/// The figure of a row, from one round; `None` where the round has none.
type Figure = fn(&Round) -> Option<f64>;

const ROWS: [(&str, Figure); 10] = [
    ("confirmed, msg/s", |round| Some(round.loads.first()?.confirmed_rate)),
    ("delivered, msg/s", |round| Some(round.loads.first()?.delivered_rate)),
    ("confirm, median ms", |round| Some(round.loads.first()?.confirm.p50_ms)),
    ("confirm, p99 ms", |round| Some(round.loads.first()?.confirm.p99_ms)),
    ("end to end, median ms", |round| Some(round.loads.first()?.end_to_end.p50_ms)),
    ("confirmed, msg/s", |round| Some(round.loads.get(1)?.confirmed_rate)),
    ("confirm, median ms", |round| Some(round.loads.get(1)?.confirm.p50_ms)),
    ("confirm, p99 ms", |round| Some(round.loads.get(1)?.confirm.p99_ms)),
    ("end to end, median ms", |round| Some(round.loads.get(1)?.end_to_end.p50_ms)),
    ("kill to confirm, ms", |round| round.failover.as_ref()?.gap_ms),
];
/// Rows before which a heading stands.
const HEADINGS: [(usize, &str); 3] = [(0, SHAPES[0].name), (5, SHAPES[1].name), (9, "leader killed with -9")];

pub fn render(comparison: &Comparison) -> String {
    let mut text = String::new();
    let rounds_of = |name| comparison.peers.iter().find(|(peer, _)| *peer == name).map(|(_, rounds)| rounds.as_slice());
    let (ours, theirs) = (rounds_of(UNDERSTUDY).unwrap_or_default(), rounds_of(RABBITMQ).unwrap_or_default());
    let rounds = ours.len().max(theirs.len());
    line(&mut text, &format!("median (lowest to highest) of {rounds} rounds"), UNDERSTUDY, RABBITMQ, "ratio");
    for (at, (name, figure)) in ROWS.iter().enumerate() {
        if let Some((_, heading)) = HEADINGS.iter().find(|(row, _)| *row == at) {
            line(&mut text, heading, "", "", "");
        }
        let of = |rounds: &[Round]| rounds.iter().filter_map(figure).collect::<Vec<f64>>();
        let ratios = ours.iter().zip(theirs).filter_map(|(ours, theirs)| Some(figure(ours)? / figure(theirs)?));
        line(&mut text, &format!("  {name}"), &spread(of(ours)), &spread(of(theirs)), &spread(ratios.collect()));
    }
    ledgers(&mut text, comparison);
    text
}

/// Rates that come from brokers that lose messages are no rates.
fn ledgers(text: &mut String, comparison: &Comparison) {
    for (name, rounds) in &comparison.peers {
        let accounts = rounds.iter().flat_map(|round| {
            let failover = round.failover.as_ref().map(|failover| &failover.account);
            round.loads.iter().map(|load| &load.account).chain(failover)
        });
        let (mut confirmed, mut lost, mut duplicated, mut redelivered) = (0, 0, 0, 0);
        for account in accounts {
            confirmed += account.confirmed;
            lost += account.lost;
            duplicated += account.duplicated;
            redelivered += account.redelivered;
        }
        let unrecovered =
            rounds.iter().filter_map(|round| round.failover.as_ref()).filter(|f| f.gap_ms.is_none()).count();
        write!(text, "{name}: {confirmed} confirmed, {lost} lost, {duplicated} duplicated, {redelivered} redelivered")
            .expect(STRINGS_TAKE_ALL);
        if unrecovered > 0 {
            write!(text, ", {unrecovered} failovers without recovery").expect(STRINGS_TAKE_ALL);
        }
        let cpus = rounds.iter().flat_map(|round| &round.loads).map(|load| load.generator_cpus).fold(0.0, f64::max);
        writeln!(text, "; the generator used up to {cpus:.2} CPUs").expect(STRINGS_TAKE_ALL);
    }
}

fn line(text: &mut String, first: &str, ours: &str, theirs: &str, ratio: &str) {
    let line = format!("{first:<42}{ours:>28}{theirs:>28}{ratio:>24}");
    writeln!(text, "{}", line.trim_end()).expect(STRINGS_TAKE_ALL);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::Failover;
    use crate::ledger::Account;
    use crate::load::LoadReport;

    fn round(rate: f64, gap_ms: Option<f64>) -> Round {
        let load = LoadReport { confirmed_rate: rate, ..LoadReport::default() };
        Round {
            loads: vec![load],
            failover: Some(Failover { gap_ms, account: Account { lost: 1, ..Account::default() } }),
        }
    }

    #[test]
    fn ratios_are_taken_round_by_round() {
        let comparison = Comparison {
            peers: vec![
                (UNDERSTUDY, vec![round(300.0, Some(100.0)), round(200.0, None), round(900.0, Some(50.0))]),
                (RABBITMQ, vec![round(100.0, Some(200.0)), round(100.0, Some(1.0)), round(300.0, Some(200.0))]),
            ],
        };
        let text = render(&comparison);
        let row = |name: &str| {
            text.lines()
                .find(|line| line.contains(name))
                .unwrap()
                .split_ascii_whitespace()
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert_eq!(row("confirmed, msg/s"), "confirmed, msg/s 300 (200 to 900) 100 (100 to 300) 3.00 (2.00 to 3.00)");
        assert_eq!(
            row("kill to confirm"),
            "kill to confirm, ms 75.0 (50.0 to 100) 200 (1.00 to 200) 0.38 (0.25 to 0.50)"
        );
        assert!(
            text.contains("understudy: 0 confirmed, 3 lost, 0 duplicated, 0 redelivered, 1 failovers without recovery"),
            "{text}"
        );
    }

    #[test]
    fn one_peer_alone_has_no_ratio() {
        let text = render(&Comparison { peers: vec![(RABBITMQ, vec![round(100.0, None)])] });
        let row = text.lines().find(|line| line.contains("confirmed, msg/s")).unwrap();
        assert_eq!(row.split_ascii_whitespace().collect::<Vec<_>>(), ["confirmed,", "msg/s", "-", "100", "-"]);
    }
}
