//! AMQP's tables as JSON and back, as RabbitMQ's definitions have them: whole numbers become `long`, others `double`, texts
//! `longstr`. What JSON has no word for (octets that are no text, a time) is written as near as it goes.

use bytes::Bytes;
use serde_json::{Map, Number, Value};
use understudy_protocol::{FieldTable, FieldValue};
use understudy_record::ShortStr;

/// `arguments`: a table without its length. Empty if it makes no sense.
pub fn from_arguments(arguments: &Bytes) -> Map<String, Value> {
    let mut whole = u32::try_from(arguments.len()).unwrap_or(0).to_be_bytes().to_vec();
    whole.extend_from_slice(arguments);
    from_table(&FieldTable::from_bytes(&whole.into()).unwrap_or_default())
}

fn from_table(table: &FieldTable) -> Map<String, Value> {
    table.iter().map(|(name, value)| (name.to_text().into_owned(), from_value(value))).collect()
}

fn from_value(value: &FieldValue) -> Value {
    if let Some(number) = value.as_int() {
        return number.into();
    }
    match value {
        FieldValue::Bool(value) => (*value).into(),
        FieldValue::F32(value) => Number::from_f64(f64::from(*value)).map_or(Value::Null, Value::Number),
        FieldValue::F64(value) => Number::from_f64(*value).map_or(Value::Null, Value::Number),
        FieldValue::Decimal { scale, value } => {
            let value = f64::from(*value) / 10_f64.powi(i32::from(*scale));
            Number::from_f64(value).map_or(Value::Null, Value::Number)
        }
        FieldValue::Text(bytes) | FieldValue::Binary(bytes) => String::from_utf8_lossy(bytes).into(),
        FieldValue::Array(values) => values.iter().map(from_value).collect(),
        FieldValue::Timestamp(seconds) => (*seconds).into(),
        FieldValue::Table(table) => Value::Object(from_table(table)),
        _ => Value::Null,
    }
}

/// A table without its length.
///
/// # Errors
/// What stands in it that AMQP has no word for.
pub fn to_arguments(map: &Map<String, Value>) -> Result<Bytes, String> {
    let whole = to_table(map)?.to_bytes();
    Ok(whole.slice(whole.len().min(4)..))
}

fn to_table(map: &Map<String, Value>) -> Result<FieldTable, String> {
    let entry = |(name, value): (&String, &Value)| {
        let short = ShortStr::try_from(name.as_str());
        Ok((short.map_err(|_| format!("an argument's name is too long: {name}"))?, to_value(value)?))
    };
    map.iter().map(entry).collect()
}

fn to_value(value: &Value) -> Result<FieldValue, String> {
    Ok(match value {
        Value::Null => FieldValue::Void,
        Value::Bool(value) => FieldValue::Bool(*value),
        Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(number), _) => FieldValue::I64(number),
            (None, Some(number)) => FieldValue::F64(number),
            (None, None) => return Err(format!("the number {number} is none that AMQP has")),
        },
        Value::String(text) => FieldValue::Text(Bytes::copy_from_slice(text.as_bytes())),
        Value::Array(values) => FieldValue::Array(values.iter().map(to_value).collect::<Result<_, _>>()?),
        Value::Object(map) => FieldValue::Table(to_table(map)?),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_json_can_say_comes_back() {
        let value = json!({
            "x-max-length": 1000, "negative": -1, "x-overflow": "reject-publish", "b": true, "half": 1.5,
            "list": [1, "two", {"three": 3}], "none": null, "é": "ü",
        });
        let Value::Object(map) = value else { unreachable!() };
        assert_eq!(from_arguments(&to_arguments(&map).unwrap()), map);
        assert_eq!(from_arguments(&Bytes::new()), Map::new());
        assert_eq!(from_arguments(&Bytes::from_static(b"\xff\xff")), Map::new(), "no table");
    }

    #[test]
    fn whole_numbers_are_long_as_in_rabbitmq() {
        let Value::Object(map) = json!({"n": 1}) else { unreachable!() };
        assert_eq!(&to_arguments(&map).unwrap()[..], b"\x01nl\0\0\0\0\0\0\0\x01");
    }
}
