//! Kubernetes quantities: as written ([`Amount`]) and as numbers to compare ([`Quantity`]).
//!
//! The written form is kept for what goes back to the API server, so `1Gi` stays `1Gi`. No arithmetic beyond comparison.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize};

/// Longest text taken for a quantity; the API server's own canonical forms stay below 20.
const MAX_QUANTITY_BYTES: usize = 32;

/// A quantity as a person wrote it, `2`, `250m` or `8Gi`; YAML numbers are taken as well.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Amount(pub String);

impl Amount {
    pub fn new(text: &str) -> Self {
        Self(text.to_owned())
    }

    /// # Errors
    /// If the text is no quantity.
    pub fn quantity(&self) -> Result<Quantity, AmountError> {
        self.0.parse()
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum IntOrString {
            Int(i64),
            Text(String),
        }
        Ok(match IntOrString::deserialize(deserializer)? {
            IntOrString::Int(number) => Self(number.to_string()),
            IntOrString::Text(text) => Self(text),
        })
    }
}

impl JsonSchema for Amount {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Amount".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "x-kubernetes-int-or-string": true,
            "nullable": false,
            "pattern": r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$",
            "maxLength": MAX_QUANTITY_BYTES,
        })
    }
}

/// A quantity in thousandths, for comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Quantity(u128);

impl Quantity {
    pub fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// Rounded up to whole ones: of a size, its bytes.
    pub fn whole(self) -> u64 {
        u64::try_from(self.0.div_ceil(1_000)).unwrap_or(u64::MAX)
    }

    /// A share of it, in hundredths.
    pub fn percent(self, percent: u8) -> Self {
        Self(self.0.saturating_mul(percent.into()) / 100)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a quantity (write a number and an optional unit, like 500m, 2 or 8Gi)")]
pub struct AmountError(String);

impl FromStr for Quantity {
    type Err = AmountError;

    fn from_str(text: &str) -> Result<Self, AmountError> {
        let error = || AmountError(text.chars().take(MAX_QUANTITY_BYTES).collect());
        if text.len() > MAX_QUANTITY_BYTES {
            return Err(error());
        }
        let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let thousandths: u128 = match unit {
            "m" => 1,
            "" => 1_000,
            "k" => 1_000_000,
            "M" => 1_000_u128.pow(3),
            "G" => 1_000_u128.pow(4),
            "T" => 1_000_u128.pow(5),
            "P" => 1_000_u128.pow(6),
            "E" => 1_000_u128.pow(7),
            "Ki" => 1_000 << 10,
            "Mi" => 1_000 << 20,
            "Gi" => 1_000 << 30,
            "Ti" => 1_000 << 40,
            "Pi" => 1_000 << 50,
            "Ei" => 1_000 << 60,
            _ => return Err(error()),
        };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() || fraction.contains('.') || (number.contains('.') && fraction.is_empty()) {
            return Err(error());
        }
        let scale = u32::try_from(fraction.len()).map_err(|_| error())?;
        let joined: u128 = format!("{whole}{fraction}").parse().map_err(|_| error())?;
        let scaled = joined.checked_mul(thousandths).ok_or_else(error)?;
        let divisor = 10_u128.checked_pow(scale).ok_or_else(error)?;
        Ok(Self(scaled.div_ceil(divisor)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quantity(text: &str) -> Quantity {
        text.parse().unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn equal_quantities_in_other_units() {
        for (a, b) in [
            ("1", "1000m"),
            ("1Ki", "1024"),
            ("1.5Gi", "1536Mi"),
            ("8Gi", "8589934592"),
            ("1k", "1000"),
            ("0.5", "500m"),
        ] {
            assert_eq!(quantity(a), quantity(b), "{a} and {b}");
        }
    }

    #[test]
    fn whole_ones_and_shares() {
        for (text, whole) in [("8Gi", 8 << 30), ("1500m", 2), ("0", 0), ("99999999E", u64::MAX)] {
            assert_eq!(quantity(text).whole(), whole, "{text}");
        }
        assert_eq!(quantity("1Gi").percent(50), quantity("512Mi"));
        assert_eq!(quantity("1").percent(80), quantity("800m"));
    }

    #[test]
    fn compared_by_size_not_by_text() {
        assert!(quantity("10Gi") > quantity("8Gi"));
        assert!(quantity("8G") < quantity("8Gi"));
        assert!(quantity("900m") < quantity("1"));
        assert!(quantity("0Gi").is_zero());
    }

    #[test]
    fn what_is_no_quantity_is_refused() {
        for text in [
            "",
            "Gi",
            "-1Gi",
            "1.",
            ".5",
            "1.2.3",
            "8 Gi",
            "8gb",
            "1e3",
            "eight",
            "99999999999999999999999999999Ei",
            "9999999999999999999999999999999999999",
        ] {
            assert!(text.parse::<Quantity>().is_err(), "{text}");
        }
    }

    #[test]
    fn numbers_and_texts_are_both_read() {
        assert_eq!(serde_json::from_str::<Amount>("2").unwrap(), Amount::new("2"));
        assert_eq!(serde_json::from_str::<Amount>("\"250m\"").unwrap(), Amount::new("250m"));
        assert!(serde_json::from_str::<Amount>("{}").is_err());
    }
}
