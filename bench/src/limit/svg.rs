//! The same plot as an SVG picture: two lines over a logarithmic axis of batch sizes, with the ratio under each size. It
//! stands alone: no script, no font but the reader's.

use std::fmt::Write as _;

use super::plot::{place_of, top_of};
use super::{GOAL, Limit, Round, Speed};
use crate::figures::{STRINGS_TAKE_ALL, number};

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 440.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 90.0;
const TOP: f64 = 56.0;
const BOTTOM: f64 = 92.0;
/// Lines across, with a number each.
const STEPS: f64 = 5.0;
/// The last points' names stand beside them, at least so far apart.
const LINE_HEIGHT: f64 = 16.0;

const JOURNAL: &str = "#1f6fb4";
const BARE: &str = "#8a8a8a";
const INK: &str = "#333333";
const GRID: &str = "#e4e4e4";

pub fn svg(limit: &Limit) -> String {
    let top = rounded_up(top_of(limit));
    let place = Place { limit, top };
    let mut text = String::new();
    let mut put = |piece: String| writeln!(text, "{piece}").expect(STRINGS_TAKE_ALL);
    put(format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12" fill="{INK}">"#
    ));
    put(format!(r#"<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>"#));
    put(format!(
        r#"<text x="{LEFT}" y="24" font-size="15">The journal against a bare loop of write + fdatasync, {} byte messages</text>"#,
        limit.message_bytes
    ));
    put(format!(r#"<text x="{LEFT}" y="44">MiB/s</text>"#));
    for step in 0..=STEPS as u32 {
        let value = top * f64::from(step) / STEPS;
        let y = place.y(value);
        put(format!(r#"<line x1="{LEFT}" y1="{y:.1}" x2="{:.1}" y2="{y:.1}" stroke="{GRID}"/>"#, WIDTH - RIGHT));
        put(format!(
            r#"<text x="{:.1}" y="{:.1}" text-anchor="end">{}</text>"#,
            LEFT - 8.0,
            y + 4.0,
            round_number(value)
        ));
    }
    sizes(&place, &mut put);
    let bare_end = curve(&place, |round| round.bare, BARE, "6 4", &mut put);
    let journal_end = curve(&place, |round| round.journal, JOURNAL, "none", &mut put);
    let (journal_y, bare_y) = apart(journal_end, bare_end);
    let names_x = WIDTH - RIGHT + 10.0;
    put(format!(r#"<text x="{names_x:.1}" y="{:.1}" fill="{JOURNAL}">journal</text>"#, journal_y + 4.0));
    put(format!(r#"<text x="{names_x:.1}" y="{:.1}" fill="{BARE}">bare loop</text>"#, bare_y + 4.0));
    put("</svg>".to_owned());
    text
}

struct Place<'a> {
    limit: &'a Limit,
    top: f64,
}

impl Place<'_> {
    fn x(&self, batch: usize) -> f64 {
        LEFT + place_of(self.limit, batch) * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, throughput: f64) -> f64 {
        HEIGHT - BOTTOM - (throughput / self.top).clamp(0.0, 1.0) * (HEIGHT - TOP - BOTTOM)
    }
}

/// The axis below, and the ratios.
fn sizes(place: &Place<'_>, put: &mut impl FnMut(String)) {
    let floor = HEIGHT - BOTTOM;
    put(format!(r#"<line x1="{LEFT}" y1="{floor}" x2="{:.1}" y2="{floor}" stroke="{INK}"/>"#, WIDTH - RIGHT));
    for point in &place.limit.points {
        let x = place.x(point.batch);
        put(format!(r#"<line x1="{x:.1}" y1="{floor}" x2="{x:.1}" y2="{:.1}" stroke="{INK}"/>"#, floor + 5.0));
        put(format!(r#"<text x="{x:.1}" y="{:.1}" text-anchor="middle">{}</text>"#, floor + 20.0, point.batch));
        let ratio = number(point.ratio());
        put(format!(
            r#"<text x="{x:.1}" y="{:.1}" text-anchor="middle" fill="{JOURNAL}">{ratio}</text>"#,
            floor + 38.0
        ));
    }
    let middle = f64::midpoint(LEFT, WIDTH - RIGHT);
    put(format!(
        r#"<text x="{middle:.1}" y="{:.1}" text-anchor="middle">messages in a batch, each batch synced; below each the ratio journal / bare (goal {GOAL})</text>"#,
        floor + 66.0
    ));
}

/// Draws one line and says at which height it ends.
fn curve(
    place: &Place<'_>,
    speed: fn(&Round) -> Speed,
    colour: &str,
    dashes: &str,
    put: &mut impl FnMut(String),
) -> f64 {
    let points: Vec<_> =
        place.limit.points.iter().map(|point| (place.x(point.batch), place.y(point.throughput(speed)))).collect();
    let path: Vec<_> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    put(format!(
        r#"<polyline points="{}" fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dashes}"/>"#,
        path.join(" ")
    ));
    for (x, y) in &points {
        put(format!(r#"<circle cx="{x:.1}" cy="{y:.1}" r="3" fill="{colour}"/>"#));
    }
    points.last().map_or(HEIGHT - BOTTOM, |(_, y)| *y)
}

/// Two heights moved so that a line of text fits at each.
fn apart(first: f64, second: f64) -> (f64, f64) {
    let gap = LINE_HEIGHT - (first - second).abs();
    if gap <= 0.0 {
        (first, second)
    } else if first >= second {
        (first + gap / 2.0, second - gap / 2.0)
    } else {
        (first - gap / 2.0, second + gap / 2.0)
    }
}

/// The next of 1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10, 15, ….
fn rounded_up(value: f64) -> f64 {
    let power = 10f64.powf(value.log10().floor());
    [1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0]
        .into_iter()
        .map(|step| step * power)
        .find(|step| *step >= value)
        .unwrap_or(value)
}

fn round_number(value: f64) -> String {
    if value.fract() == 0.0 { format!("{value:.0}") } else { number(value) }
}

#[cfg(test)]
mod tests {
    use super::super::example;
    use super::*;

    #[test]
    fn axes_both_lines_and_every_ratio_are_in_it() {
        let text = svg(&example());
        assert!(text.starts_with("<svg ") && text.trim_end().ends_with("</svg>"));
        assert_eq!(text.matches("<polyline ").count(), 2);
        assert_eq!(text.matches("<circle ").count(), 8);
        for shown in [">500<", ">0<", ">4096<", ">0.90<", ">0.70<", ">journal<", ">bare loop<"] {
            assert!(text.contains(shown), "{shown} is not in {text}");
        }
        assert!(!text.contains("NaN"));
    }

    #[test]
    fn the_axis_ends_at_a_round_number() {
        assert_eq!([0.25, 1.0, 1.1, 480.0, 810.0].map(rounded_up), [0.25, 1.0, 1.5, 500.0, 1000.0]);
    }

    #[test]
    fn names_do_not_cover_each_other() {
        assert_eq!(apart(100.0, 100.0), (108.0, 92.0));
        assert_eq!(apart(10.0, 90.0), (10.0, 90.0));
    }
}
