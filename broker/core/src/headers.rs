//! Matching of the headers exchange: a binding's arguments against a message's headers. `x-match` is `all` (the default),
//! `any`, `all-with-x` or `any-with-x`; the first two leave out arguments whose names start with `x-`. An argument without a
//! value asks only that the header be there.

use bytes::Bytes;
use understudy_protocol::{FieldTable, FieldValue};

use crate::arguments;

const X_MATCH: &str = "x-match";

#[derive(Debug)]
pub(crate) struct HeaderMatch {
    any: bool,
    wanted: Vec<(String, FieldValue)>,
}

impl HeaderMatch {
    /// `arguments`: an encoded table that was checked when the binding was made.
    pub(crate) fn parse(arguments: &Bytes) -> Self {
        let table = arguments::decode(arguments).unwrap_or_default();
        let mode = table.get(X_MATCH).and_then(FieldValue::as_bytes).map(|mode| mode.to_vec()).unwrap_or_default();
        let with_x = mode.ends_with(b"-with-x");
        let wanted = table.iter().map(|(name, value)| (name.to_text().into_owned(), value.clone()));
        let wanted = wanted.filter(|(name, _)| name != X_MATCH && (with_x || !name.starts_with("x-"))).collect();
        Self { any: mode.starts_with(b"any"), wanted }
    }

    pub(crate) fn is_valid_mode(mode: &[u8]) -> bool {
        matches!(mode, b"all" | b"any" | b"all-with-x" | b"any-with-x")
    }

    /// With nothing wanted, `all` matches everything and `any` nothing, as in RabbitMQ.
    pub(crate) fn matches(&self, headers: &FieldTable) -> bool {
        let mut held = self.wanted.iter().map(|(name, wanted)| match headers.get(name) {
            Some(found) => matches!(wanted, FieldValue::Void) || same(wanted, found),
            None => false,
        });
        if self.any { held.any(|held| held) } else { held.all(|held| held) }
    }
}

/// By value: clients differ in the type they give a number, and in how they send text.
fn same(wanted: &FieldValue, found: &FieldValue) -> bool {
    let is_whole = |value, float: f64| arguments::whole(value).is_some_and(|whole| whole as f64 == float);
    match (float(wanted), float(found)) {
        (Some(wanted), Some(found)) => wanted == found,
        (Some(wanted), None) => is_whole(found, wanted),
        (None, Some(found)) => is_whole(wanted, found),
        (None, None) => arguments::same_value(wanted, found),
    }
}

fn float(value: &FieldValue) -> Option<f64> {
    match value {
        FieldValue::F32(value) => Some(f64::from(*value)),
        FieldValue::F64(value) => Some(*value),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use understudy_record::ShortStr;

    use super::*;

    fn table(fields: &[(&'static str, FieldValue)]) -> FieldTable {
        let mut table = FieldTable::new();
        fields.iter().for_each(|(name, value)| table.insert(ShortStr::from_static(name), value.clone()));
        table
    }

    fn text(value: &'static str) -> FieldValue {
        FieldValue::Text(Bytes::from_static(value.as_bytes()))
    }

    fn matches(arguments: &[(&'static str, FieldValue)], headers: &[(&'static str, FieldValue)]) -> bool {
        HeaderMatch::parse(&arguments::encode(&table(arguments))).matches(&table(headers))
    }

    /// Case P15.
    #[test]
    fn all_and_any_skip_x_and_with_x_include_it() {
        let (a, b, xa) = (("a", text("1")), ("b", text("2")), ("x-a", text("1")));
        let only = |field: &(&'static str, FieldValue)| [field.clone()];
        let mode = |mode| (X_MATCH, text(mode));
        assert!(matches(&[mode("all"), a.clone(), b.clone()], &[a.clone(), b.clone()]));
        assert!(!matches(&[mode("all"), a.clone(), b.clone()], &only(&a)));
        assert!(!matches(&[a.clone(), b.clone()], &only(&a)), "all is the default");
        assert!(matches(&[mode("any"), a.clone(), b.clone()], &only(&b)));
        assert!(!matches(&[mode("any"), a.clone()], &[("a", text("2"))]));
        assert!(matches(&[mode("all"), a.clone(), xa.clone()], &only(&a)));
        assert!(!matches(&[mode("all-with-x"), a.clone(), xa.clone()], &only(&a)));
        assert!(!matches(&[mode("any"), xa.clone()], &only(&xa)));
        assert!(matches(&[mode("any-with-x"), a.clone(), xa.clone()], &only(&xa)));
        assert!(matches(&[], &only(&a)));
        assert!(!matches(&[mode("any")], &only(&a)));
    }

    #[test]
    fn an_argument_without_a_value_asks_for_presence_and_numbers_and_texts_compare_by_value() {
        assert!(matches(&[("a", FieldValue::Void)], &[("a", text("whatever"))]));
        assert!(!matches(&[("a", FieldValue::Void)], &[]));
        assert!(matches(&[("n", FieldValue::I32(7))], &[("n", FieldValue::I64(7))]));
        assert!(!matches(&[("n", FieldValue::I32(7))], &[("n", text("7"))]));
        assert!(matches(&[("n", FieldValue::I32(7))], &[("n", FieldValue::F64(7.0))]));
        assert!(matches(&[("n", FieldValue::F32(7.0))], &[("n", FieldValue::Timestamp(7))]));
        assert!(!matches(&[("n", FieldValue::F64(7.5))], &[("n", FieldValue::I32(7))]));
        assert!(!matches(&[("n", FieldValue::I32(1))], &[("n", FieldValue::Bool(true))]));
        assert!(matches(&[("n", text("7"))], &[("n", FieldValue::Binary(Bytes::from_static(b"7")))]));
    }
}
