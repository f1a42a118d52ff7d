//! Figures for people: medians with their spread, three digits each, sizes in binary units. Nothing here measures.

pub(crate) const STRINGS_TAKE_ALL: &str = "writing to a string cannot fail";

/// `None` of nothing. What is not a number is left out.
pub(crate) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.retain(|value| value.is_finite());
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(values[middle]),
        _ => Some(f64::midpoint(values[middle - 1], values[middle])),
    }
}

/// "median (lowest to highest)"
pub(crate) fn spread(mut values: Vec<f64>) -> String {
    values.retain(|value| value.is_finite());
    values.sort_by(f64::total_cmp);
    match values.as_slice() {
        [] => "-".to_owned(),
        [one] => number(*one),
        [lowest, .., highest] => {
            let median = median(values.clone()).map_or_else(|| "-".to_owned(), number);
            format!("{median} ({} to {})", number(*lowest), number(*highest))
        }
    }
}

/// Three digits are what such a measure is worth.
pub(crate) fn number(value: f64) -> String {
    match value {
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value => format!("{value:.2}"),
    }
}

pub(crate) fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// A count with commas between its thousands.
pub(crate) fn count(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_spreads() {
        assert_eq!(median(vec![]), None);
        assert_eq!(median(vec![3.0, f64::NAN, 1.0]), Some(2.0));
        assert_eq!(median(vec![3.0, 9.0, 1.0]), Some(3.0));
        assert_eq!(spread(vec![]), "-");
        assert_eq!(spread(vec![2.0]), "2.00");
        assert_eq!(spread(vec![123.4, 12.34, 1.234]), "12.3 (1.23 to 123)");
    }

    #[test]
    fn counts_have_commas() {
        let shown = [0, 999, 1000, 1_234_567].map(count);
        assert_eq!(shown, ["0", "999", "1,000", "1,234,567"]);
    }
}
