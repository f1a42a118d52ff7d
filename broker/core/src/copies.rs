//! The headers `CC` and `BCC`: further routing keys of a message. The second is taken off before anybody else sees it.

use bytes::Bytes;
use understudy_protocol::{FieldTable, FieldValue, Properties};
use understudy_record::ShortStr;

use crate::error::{Failure, precondition_failed};

pub(crate) const CC: &str = "CC";
const BCC: &str = "BCC";

/// The further routing keys, in no order, and the properties as they go on if they do not go on as they came.
///
/// # Errors
/// If one of the headers is not a list. What is in it and is no text, or too long for a routing key, counts for nothing.
pub(crate) fn of(properties: &Properties) -> Result<(Vec<ShortStr>, Option<Bytes>), Failure> {
    if !properties.has_headers() || !may_be_in(properties.as_bytes()) {
        return Ok((Vec::new(), None));
    }
    let (keys, strip) = keys(&properties.headers().unwrap_or_default())?;
    if !strip {
        return Ok((keys, None));
    }
    let mut stripped = properties.decode();
    if let Some(headers) = &mut stripped.headers {
        headers.remove(BCC);
    }
    Ok((keys, Some(stripped.encode().as_bytes().clone())))
}

/// The further routing keys, and whether a header among them is to be taken off.
///
/// # Errors
/// As [`of`].
pub(crate) fn keys(headers: &FieldTable) -> Result<(Vec<ShortStr>, bool), Failure> {
    let mut keys = Vec::new();
    for header in [CC, BCC] {
        let Some(value) = headers.get(header) else { continue };
        let listed = value.as_array().ok_or_else(|| {
            let kind = value.type_name();
            precondition_failed(format!("invalid message: {{unacceptable_type_in_header,\"{header}\",{kind}}}"))
        })?;
        let texts = listed.iter().filter(|value| matches!(value, FieldValue::Text(_))).filter_map(FieldValue::as_bytes);
        keys.extend(texts.filter_map(|text| ShortStr::new(text.clone())));
    }
    Ok((keys, headers.contains(BCC)))
}

/// Nearly no message has them, and a look at its octets is much less than decoding its headers: a name stands behind its
/// length.
fn may_be_in(properties: &[u8]) -> bool {
    properties.windows(3).any(|octets| octets == b"\x02CC") || properties.windows(4).any(|octets| octets == b"\x03BCC")
}

#[cfg(test)]
mod tests {
    use understudy_protocol::BasicProperties;

    use super::*;

    fn with(headers: FieldTable) -> Properties {
        BasicProperties { headers: Some(headers), delivery_mode: Some(2), ..BasicProperties::default() }.encode()
    }

    fn list(texts: &[&'static str]) -> FieldValue {
        FieldValue::Array(texts.iter().map(|text| FieldValue::Text(Bytes::from_static(text.as_bytes()))).collect())
    }

    #[test]
    fn both_headers_route_and_one_is_taken_off() {
        let headers = FieldTable::new().with("a", 1_i32).with("CC", list(&["x", "y"])).with("BCC", list(&["z"]));
        let (keys, stripped) = of(&with(headers)).unwrap();
        assert_eq!(keys, ["x", "y", "z"].map(ShortStr::from_static));
        let stripped = Properties::from_raw(stripped.unwrap());
        assert!(stripped.is_persistent());
        assert_eq!(stripped.headers(), Some(FieldTable::new().with("a", 1_i32).with("CC", list(&["x", "y"]))));
    }

    #[test]
    fn what_is_no_text_or_too_long_counts_for_nothing() {
        let long = FieldValue::Text(Bytes::from(vec![b'k'; 256]));
        let mixed = FieldValue::Array(vec![FieldValue::I32(1), long, FieldValue::Text(Bytes::from_static(b"k"))]);
        assert_eq!(of(&with(FieldTable::new().with("CC", mixed))).unwrap(), (vec![ShortStr::from_static("k")], None));
    }

    #[test]
    fn a_header_that_is_no_list_is_refused() {
        for (header, value) in [("CC", list(&["x"])), ("BCC", list(&[]))] {
            assert!(of(&with(FieldTable::new().with(header, value))).is_ok());
        }
        let Err(failure) = of(&with(FieldTable::new().with("BCC", FieldValue::Text(Bytes::from_static(b"x"))))) else {
            panic!("it was taken")
        };
        assert!(format!("{failure:?}").contains(r#"{unacceptable_type_in_header,\"BCC\",longstr}"#), "{failure:?}");
    }

    #[test]
    fn a_value_that_looks_like_the_header_is_none() {
        let headers = FieldTable::new().with("a", FieldValue::Text(Bytes::from_static(b"\x02CC \x03BCC")));
        let properties = with(headers);
        assert!(may_be_in(properties.as_bytes()));
        assert_eq!(of(&properties).unwrap(), (Vec::new(), None));
        assert_eq!(of(&Properties::EMPTY).unwrap(), (Vec::new(), None));
    }
}
