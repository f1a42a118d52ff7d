//! The measure as a table: a row for each size of batch.

use std::fmt::Write as _;

use super::{GOAL, Limit, Point, Round};
use crate::figures::{STRINGS_TAKE_ALL, count, number, spread};

pub fn table(limit: &Limit) -> String {
    let mut text = String::new();
    let rounds = limit.points.first().map_or(0, |point| point.rounds.len());
    row(&mut text, ["batch", "journal", "bare", "journal", "bare", "ratio", "with frames", "batch p50", "bare p50"]);
    row(&mut text, ["messages", "msg/s", "msg/s", "MiB/s", "MiB/s", "journal/bare", "made in it", "ms", "ms"]);
    for point in &limit.points {
        let making = |round: &Round| round.journal.rate_with_making / round.bare.rate;
        row(
            &mut text,
            [
                &count(point.batch as u64),
                &rate(point, |round| round.journal.rate),
                &rate(point, |round| round.bare.rate),
                &number(point.throughput(|round| round.journal)),
                &number(point.throughput(|round| round.bare)),
                &spread(point.rounds.iter().map(Round::ratio).collect()),
                &number(point.median(making)),
                &number(point.median(|round| round.journal.batch_p50_ms)),
                &number(point.median(|round| round.bare.batch_p50_ms)),
            ],
        );
    }
    let worst = limit.worst_ratio();
    let verdict = if worst >= GOAL { "reached" } else { "missed" };
    writeln!(
        text,
        "{} byte messages, medians of {rounds} rounds; the lowest ratio is {}, the goal of {GOAL} is {verdict}",
        limit.message_bytes,
        number(worst)
    )
    .expect(STRINGS_TAKE_ALL);
    text
}

fn rate(point: &Point, figure: fn(&Round) -> f64) -> String {
    count(point.median(figure) as u64)
}

fn row(text: &mut String, cells: [&str; 9]) {
    let [batch, journal, bare, journal_bytes, bare_bytes, ratio, making, sync, bare_sync] = cells;
    let line = format!(
        "{batch:>8}{journal:>11}{bare:>11}{journal_bytes:>9}{bare_bytes:>9}{ratio:>23}{making:>13}{sync:>11}{bare_sync:>10}"
    );
    writeln!(text, "{}", line.trim_end()).expect(STRINGS_TAKE_ALL);
}

#[cfg(test)]
mod tests {
    use super::super::example;
    use super::*;

    #[test]
    fn a_row_for_each_size_and_a_verdict() {
        let text = table(&example());
        let words = |line: &str| line.split_ascii_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let rows: Vec<_> = text.lines().map(words).collect();
        assert_eq!(rows[2], ["1", "900", "1,000", "0.90", "1.00", "0.90", "0.81", "1.00", "1.00"]);
        assert_eq!(rows[5][..6], ["4,096", "350,000", "500,000", "350", "500", "0.70"]);
        assert!(text.ends_with("the lowest ratio is 0.70, the goal of 0.8 is missed\n"), "{text}");
    }
}
