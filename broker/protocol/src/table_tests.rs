//! Tables of every type there and back, pinned octet by octet, and damaged.

use proptest::prelude::*;

use super::*;

fn value_strategy() -> impl Strategy<Value = FieldValue> {
    let bytes = || prop::collection::vec(any::<u8>(), 0..20).prop_map(Bytes::from);
    let leaf = prop_oneof![
        any::<bool>().prop_map(FieldValue::Bool),
        any::<i8>().prop_map(FieldValue::I8),
        any::<u8>().prop_map(FieldValue::U8),
        any::<i16>().prop_map(FieldValue::I16),
        any::<u16>().prop_map(FieldValue::U16),
        any::<i32>().prop_map(FieldValue::I32),
        any::<u32>().prop_map(FieldValue::U32),
        any::<i64>().prop_map(FieldValue::I64),
        any::<i64>().prop_map(FieldValue::BigI64),
        any::<f32>().prop_map(FieldValue::F32),
        any::<f64>().prop_map(FieldValue::F64),
        (any::<u8>(), any::<u32>()).prop_map(|(scale, value)| FieldValue::Decimal { scale, value }),
        bytes().prop_map(FieldValue::Text),
        bytes().prop_map(FieldValue::Binary),
        any::<u64>().prop_map(FieldValue::Timestamp),
        Just(FieldValue::Void),
    ];
    leaf.prop_recursive(4, 40, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(FieldValue::Array),
            prop::collection::vec((name_strategy(), inner), 0..5)
                .prop_map(|entries| FieldValue::Table(entries.into_iter().collect())),
        ]
    })
}

fn name_strategy() -> impl Strategy<Value = ShortStr> {
    prop::collection::vec(any::<u8>(), 0..10).prop_map(|name| ShortStr::new(name.into()).unwrap())
}

fn table_strategy() -> impl Strategy<Value = FieldTable> {
    prop::collection::vec((name_strategy(), value_strategy()), 0..8).prop_map(|entries| entries.into_iter().collect())
}

fn check(bytes: &Bytes) -> Result<(), DecodeError> {
    let mut reader = Reader::new(bytes);
    check_table(&mut reader)?;
    reader.finish()
}

proptest! {
    #[test]
    fn values_and_types_arrive_unchanged(table in table_strategy()) {
        let bytes = table.to_bytes();
        prop_assert_eq!(check(&bytes), Ok(()));
        prop_assert_eq!(FieldTable::from_bytes(&bytes), Ok(table));
    }

    /// What passes the check can be decoded and nothing else can, so later readers cannot fail.
    #[test]
    fn the_check_says_what_decoding_says(table in table_strategy(), place: prop::sample::Index, octet: u8) {
        let mut bytes = table.to_bytes().to_vec();
        let place = place.index(bytes.len());
        bytes[place] = octet;
        let bytes = Bytes::from(bytes);
        prop_assert_eq!(FieldTable::from_bytes(&bytes).map(drop), check(&bytes));
    }

    #[test]
    fn what_was_decoded_is_written_as_the_same_octets(mut octets: Vec<u8>) {
        let length = u32::try_from(octets.len()).unwrap().to_be_bytes();
        octets.splice(0..0, length);
        let bytes = Bytes::from(octets);
        if let Ok(table) = FieldTable::from_bytes(&bytes) {
            prop_assert_eq!(table.to_bytes(), bytes);
        }
    }
}

/// Each type of the errata with its octets (P4): tag, value, and the integer it stands for.
#[test]
fn every_tag_is_pinned() {
    let cases: &[(&[u8], FieldValue, Option<i64>)] = &[
        (b"t\x01", FieldValue::Bool(true), None),
        (b"b\xff", FieldValue::I8(-1), Some(-1)),
        (b"B\xff", FieldValue::U8(255), Some(255)),
        (b"s\xff\xfe", FieldValue::I16(-2), Some(-2)),
        (b"u\xff\xfe", FieldValue::U16(65_534), Some(65_534)),
        (b"I\xff\xff\xff\xff", FieldValue::I32(-1), Some(-1)),
        (b"i\xff\xff\xff\xff", FieldValue::U32(u32::MAX), Some(4_294_967_295)),
        (b"l\xff\xff\xff\xff\xff\xff\xff\xff", FieldValue::I64(-1), Some(-1)),
        (b"L\xff\xff\xff\xff\xff\xff\xff\xff", FieldValue::BigI64(-1), Some(-1)),
        (b"f\x3f\x80\0\0", FieldValue::F32(1.0), None),
        (b"d\x3f\xf0\0\0\0\0\0\0", FieldValue::F64(1.0), None),
        (b"D\x02\0\0\0\x07", FieldValue::Decimal { scale: 2, value: 7 }, None),
        (b"S\0\0\0\x02hi", FieldValue::Text("hi".into()), None),
        (b"x\0\0\0\x02hi", FieldValue::Binary("hi".into()), None),
        (b"A\0\0\0\x03Vt\0", FieldValue::Array(vec![FieldValue::Void, FieldValue::Bool(false)]), None),
        (b"T\0\0\0\0\0\0\0\x09", FieldValue::Timestamp(9), None),
        (b"F\0\0\0\x03\x01kV", FieldValue::Table(FieldTable::new().with("k", FieldValue::Void)), None),
        (b"V", FieldValue::Void, None),
    ];
    for (octets, value, integer) in cases {
        let mut table = vec![0, 0, 0, u8::try_from(octets.len()).unwrap() + 2, 1, b'a'];
        table.extend_from_slice(octets);
        let expected = FieldTable::new().with("a", value.clone());
        assert_eq!(FieldTable::from_bytes(&table.clone().into()), Ok(expected.clone()));
        assert_eq!(expected.to_bytes().as_ref(), table);
        assert_eq!(value.as_int(), *integer, "{value:?}");
    }
}

#[test]
fn an_unknown_tag_is_named() {
    for tag in [b'U', b'q', 0] {
        let bytes = Bytes::copy_from_slice(&[0, 0, 0, 3, 1, b'a', tag]);
        assert_eq!(FieldTable::from_bytes(&bytes), Err(DecodeError::UnknownFieldType(tag)));
        assert_eq!(check(&bytes), Err(DecodeError::UnknownFieldType(tag)));
    }
}

#[test]
fn nesting_ends_at_the_bound() {
    let nested = |depth| (1..depth).fold(FieldTable::new(), |inner, _| FieldTable::new().with("t", inner)).to_bytes();
    assert!(FieldTable::from_bytes(&nested(MAX_TABLE_DEPTH)).is_ok());
    assert_eq!(FieldTable::from_bytes(&nested(MAX_TABLE_DEPTH + 1)), Err(DecodeError::TooDeep));
    assert_eq!(check(&nested(MAX_TABLE_DEPTH + 1)), Err(DecodeError::TooDeep));
}

#[test]
fn entries_are_found_replaced_and_removed_by_name() {
    let mut table = FieldTable::new().with("a", 1i32).with("b", "x");
    table.insert(ShortStr::from_static("a"), 2i64);
    assert_eq!(table.get("a").and_then(FieldValue::as_int), Some(2));
    assert_eq!(table.get("b").and_then(FieldValue::as_str), Some("x"));
    assert_eq!(table.remove("a"), Some(FieldValue::I64(2)));
    assert_eq!((table.len(), table.contains("a")), (1, false));
}
