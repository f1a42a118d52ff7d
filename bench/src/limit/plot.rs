//! Throughput against the size of a batch, drawn with letters for a terminal. The size's axis is logarithmic.

use std::fmt::Write as _;

use super::{Limit, Round, Speed};
use crate::figures::{STRINGS_TAKE_ALL, number};

const ROWS: usize = 16;
const COLUMNS: usize = 64;
/// The axis's numbers stand in front of it.
const MARGIN: usize = 8;

const BARE: char = 'o';
const JOURNAL: char = '*';
/// Where both fall on one place.
const BOTH: char = '@';

pub fn plot(limit: &Limit) -> String {
    let mut canvas = vec![vec![' '; COLUMNS]; ROWS];
    draw(limit, |round| round.bare, BARE, &mut canvas);
    draw(limit, |round| round.journal, JOURNAL, &mut canvas);
    let top = top_of(limit);
    let mut text = String::new();
    writeln!(text, "{:>MARGIN$}  {JOURNAL} journal   {BARE} bare write + fdatasync   {BOTH} both", "MiB/s")
        .expect(STRINGS_TAKE_ALL);
    for (row, line) in canvas.iter().enumerate() {
        let is_labelled = row % 5 == 0;
        let value = top * (ROWS - 1 - row) as f64 / (ROWS - 1) as f64;
        let label = if is_labelled { number(value) } else { String::new() };
        let line: String = line.iter().collect();
        writeln!(text, "{label:>MARGIN$} {}{}", if is_labelled { '+' } else { '|' }, line.trim_end())
            .expect(STRINGS_TAKE_ALL);
    }
    writeln!(text, "{:>MARGIN$} +{}", "", "-".repeat(COLUMNS)).expect(STRINGS_TAKE_ALL);
    writeln!(text, "{:>MARGIN$}  {}", "", size_axis(limit)).expect(STRINGS_TAKE_ALL);
    writeln!(text, "{:>MARGIN$}  messages in a batch, each batch synced", "").expect(STRINGS_TAKE_ALL);
    text
}

fn draw(limit: &Limit, speed: fn(&Round) -> Speed, letter: char, canvas: &mut [Vec<char>]) {
    let top = top_of(limit);
    let heights: Vec<_> = limit.points.iter().map(|point| (point.throughput(speed) / top).clamp(0.0, 1.0)).collect();
    for (row, line) in canvas.iter_mut().enumerate() {
        for (column, place) in line.iter_mut().enumerate() {
            let height = height_at(limit, &heights, column as f64 / (COLUMNS - 1) as f64);
            if height.is_some_and(|height| ROWS - 1 - (height * (ROWS - 1) as f64).round() as usize == row) {
                *place = if *place == ' ' { letter } else { BOTH };
            }
        }
    }
}

/// The highest of both curves.
pub(super) fn top_of(limit: &Limit) -> f64 {
    let tops = limit
        .points
        .iter()
        .map(|point| point.throughput(|round| round.journal).max(point.throughput(|round| round.bare)));
    tops.fold(f64::MIN_POSITIVE, f64::max)
}

/// Where a size lies on the logarithmic axis, from 0 to 1.
pub(super) fn place_of(limit: &Limit, batch: usize) -> f64 {
    let log = |batch: usize| (batch.max(1) as f64).log2();
    let (first, last) = match limit.points.as_slice() {
        [first, .., last] => (log(first.batch), log(last.batch)),
        _ => return 0.5,
    };
    if last > first { (log(batch) - first) / (last - first) } else { 0.5 }
}

/// Straight lines between the points.
fn height_at(limit: &Limit, heights: &[f64], place: f64) -> Option<f64> {
    let places: Vec<_> = limit.points.iter().map(|point| place_of(limit, point.batch)).collect();
    let after = places.iter().position(|at| *at >= place - 1e-9)?;
    let Some(before) = after.checked_sub(1) else { return heights.first().copied() };
    let share = (place - places[before]) / (places[after] - places[before]);
    Some(heights[before] + (heights[after] - heights[before]) * share.clamp(0.0, 1.0))
}

fn size_axis(limit: &Limit) -> String {
    let mut axis = vec![' '; COLUMNS + 8];
    let mut free_from = 0;
    for point in &limit.points {
        let label = point.batch.to_string();
        let centre = (place_of(limit, point.batch) * (COLUMNS - 1) as f64).round() as usize;
        let from = centre.saturating_sub(label.len() / 2);
        if from < free_from {
            continue;
        }
        axis.iter_mut().skip(from).zip(label.chars()).for_each(|(place, letter)| *place = letter);
        free_from = from + label.len() + 1;
    }
    axis.into_iter().collect::<String>().trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::super::example;
    use super::*;

    #[test]
    fn both_lines_reach_from_the_first_size_to_the_last() {
        let text = plot(&example());
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[1].trim_start().starts_with("500 +") && lines[1].ends_with(BARE), "{text}");
        let journal_ends: Vec<_> = lines.iter().filter(|line| line.chars().count() == MARGIN + 2 + COLUMNS).collect();
        assert!(journal_ends.iter().any(|line| line.ends_with(JOURNAL)), "{text}");
        assert!(lines[ROWS].trim_start().starts_with(&format!("0.00 +{BOTH}")), "{text}");
        let sizes: Vec<_> = lines[ROWS + 2].split_ascii_whitespace().collect();
        assert_eq!(sizes, ["1", "16", "256", "4096"]);
    }

    #[test]
    fn one_size_alone_is_drawn_too() {
        let mut limit = example();
        limit.points.truncate(1);
        assert!(plot(&limit).contains("messages in a batch"));
    }
}
