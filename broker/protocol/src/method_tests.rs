//! Every method there and back, cut, damaged, and as another implementation sees it.

use amq_protocol::frame::{AMQPFrame, WriteContext, gen_frame, parse_frame};
use expect_test::expect;
use proptest::prelude::*;

use super::*;
use crate::table::FieldValue;

/// Draws sample arguments; the same seed draws the same ones.
pub(super) struct Random(pub(super) u64);

impl Random {
    /// SplitMix64.
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// ASCII, so that the oracle, which insists on UTF-8, can read it.
    fn text(&mut self, longest: usize) -> Bytes {
        let length = self.below(longest + 1);
        (0..length).map(|_| b' ' + self.below(95) as u8).collect::<Vec<u8>>().into()
    }

    fn value(&mut self, depth: usize) -> FieldValue {
        let n = self.next();
        match self.below(if depth == 0 { 15 } else { 17 }) {
            0 => FieldValue::Bool(n & 1 == 1),
            1 => FieldValue::I8(n as i8),
            2 => FieldValue::U8(n as u8),
            3 => FieldValue::I16(n as i16),
            4 => FieldValue::U16(n as u16),
            5 => FieldValue::I32(n as i32),
            6 => FieldValue::U32(n as u32),
            7 => FieldValue::I64(n as i64),
            8 => FieldValue::F32(n as f32),
            9 => FieldValue::F64(n as f64),
            10 => FieldValue::Decimal { scale: n as u8, value: (n >> 8) as u32 },
            11 => FieldValue::Text(self.text(40)),
            12 => FieldValue::Binary(Bytes::copy_from_slice(&n.to_le_bytes())),
            13 => FieldValue::Timestamp(n),
            14 => FieldValue::Void,
            15 => FieldValue::Array((0..self.below(4)).map(|_| self.value(depth - 1)).collect()),
            _ => FieldValue::Table(self.table(depth - 1)),
        }
    }

    /// With its names in order, since the oracle sorts them.
    fn table(&mut self, depth: usize) -> FieldTable {
        let names = (0..self.below(4)).map(|place| format!("{place}{}", String::from_utf8_lossy(&self.text(8))));
        let names: Vec<_> = names.collect();
        names.iter().map(|name| (ShortStr::try_from(name.as_str()).unwrap(), self.value(depth))).collect()
    }
}

pub(super) trait Sample {
    fn sample(random: &mut Random) -> Self;
}

macro_rules! sample {
    ($($type:ty => |$random:ident| $sample:expr;)*) => {
        $(impl Sample for $type {
            fn sample($random: &mut Random) -> Self {
                $sample
            }
        })*
    };
}
sample! {
    bool => |random| random.next() & 1 == 1;
    u8 => |random| random.next() as u8;
    u16 => |random| random.next() as u16;
    u32 => |random| random.next() as u32;
    DeliveryTag => |random| DeliveryTag(random.next());
    ShortStr => |random| ShortStr::new(random.text(255)).unwrap();
    Bytes => |random| random.text(600);
    FieldTable => |random| random.table(3);
}

fn encoded(method: &Method) -> Bytes {
    let mut out = Vec::new();
    method.encode(&mut out);
    out.into()
}

proptest! {
    #[test]
    fn every_method_is_read_as_it_was_written(seed: u64) {
        for method in Method::samples(&mut Random(seed)) {
            prop_assert_eq!(Method::decode(&encoded(&method)), Ok(method));
        }
    }

    /// The crate `amq-protocol` reads our frames, and writes what it read as the same octets.
    #[test]
    fn another_implementation_agrees_octet_for_octet(seed: u64) {
        for mut method in Method::samples(&mut Random(seed)) {
            match &mut method {
                // It knows one value only of these.
                Method::AccessRequestOk(request_ok) => request_ok.ticket = 1,
                Method::BasicQos(qos) => qos.prefetch_size = 0,
                _ => {}
            }
            let payload = encoded(&method);
            let size = u32::try_from(payload.len()).unwrap().to_be_bytes();
            let frame = [&[1, 0, 7][..], &size, &payload, &[0xce]].concat();
            let (rest, theirs) = parse_frame(&frame[..]).map_err(|error| TestCaseError::fail(format!("{method:?}: {error}")))?;
            prop_assert!(rest.is_empty());
            prop_assert!(matches!(theirs, AMQPFrame::Method(7, _)));
            let (written, _) = gen_frame(&theirs)(WriteContext::from(Vec::new())).unwrap().into_inner();
            prop_assert_eq!(Bytes::from(written), Bytes::from(frame), "{:?}", method);
        }
    }

    #[test]
    fn no_method_is_read_from_less_or_more_than_it_is(seed: u64) {
        for method in Method::samples(&mut Random(seed)) {
            let whole = encoded(&method);
            for end in 0..whole.len() {
                prop_assert!(Method::decode(&whole.slice(..end)).is_err(), "{} cut at {}", method.name(), end);
            }
            let longer = Bytes::from([&whole[..], &[0]].concat());
            prop_assert_eq!(Method::decode(&longer), Err(DecodeError::TrailingBytes(1)));
        }
    }

    #[test]
    fn random_octets_do_no_harm(class in prop::sample::select(vec![10u16, 20, 40, 50, 60]), method in 0u16..130,
                                arguments: Vec<u8>) {
        let payload = [&class.to_be_bytes(), &method.to_be_bytes(), &arguments[..]].concat();
        // Whatever it is taken for, it is written back as the same, or refused.
        if let Ok(method) = Method::decode(&payload.into()) {
            prop_assert_eq!(Method::decode(&encoded(&method)).map(|again| again.id()), Ok(method.id()));
        }
    }
}

#[test]
fn unknown_methods_are_503_and_malformed_ones_502() {
    let unknown = Method::decode(&Bytes::from_static(&[0, 60, 0, 77])).unwrap_err();
    assert_eq!(unknown, DecodeError::UnknownMethod(MethodId::new(60, 77)));
    assert_eq!(unknown.reply_code().number(), 503);
    let truncated = Method::decode(&Bytes::from_static(&[0, 60, 0, 80, 0])).unwrap_err();
    assert_eq!((truncated.clone(), truncated.reply_code().number()), (DecodeError::Truncated, 502));
    assert_eq!(Method::decode(&Bytes::from_static(&[0, 60, 0])), Err(DecodeError::Truncated));
}

/// A name as long as it may be, of characters longer than an octet, is a name like any other (P5).
#[test]
fn a_multibyte_name_of_255_octets_is_carried_unchanged() {
    let name = ShortStr::try_from(format!("{}a", "é".repeat(127)).as_str()).unwrap();
    assert_eq!(name.as_bytes().len(), 255);
    let declare = Method::from(queue::Declare { queue: name, ..Default::default() });
    assert_eq!(Method::decode(&encoded(&declare)), Ok(declare));
}

/// Pins every method's number, name and place of arguments on the wire.
#[test]
fn wire_numbers_are_pinned() {
    let listed: Vec<String> = Method::samples(&mut Random(0))
        .iter()
        .map(|method| {
            format!("{} {}{}", method.name(), method.id(), if method.has_content() { " content" } else { "" })
        })
        .collect();
    expect![[r#"
        connection.start (10,10)
        connection.start-ok (10,11)
        connection.secure (10,20)
        connection.secure-ok (10,21)
        connection.tune (10,30)
        connection.tune-ok (10,31)
        connection.open (10,40)
        connection.open-ok (10,41)
        connection.close (10,50)
        connection.close-ok (10,51)
        connection.blocked (10,60)
        connection.unblocked (10,61)
        connection.update-secret (10,70)
        connection.update-secret-ok (10,71)
        channel.open (20,10)
        channel.open-ok (20,11)
        channel.flow (20,20)
        channel.flow-ok (20,21)
        channel.close (20,40)
        channel.close-ok (20,41)
        access.request (30,10)
        access.request-ok (30,11)
        exchange.declare (40,10)
        exchange.declare-ok (40,11)
        exchange.delete (40,20)
        exchange.delete-ok (40,21)
        exchange.bind (40,30)
        exchange.bind-ok (40,31)
        exchange.unbind (40,40)
        exchange.unbind-ok (40,51)
        queue.declare (50,10)
        queue.declare-ok (50,11)
        queue.bind (50,20)
        queue.bind-ok (50,21)
        queue.purge (50,30)
        queue.purge-ok (50,31)
        queue.delete (50,40)
        queue.delete-ok (50,41)
        queue.unbind (50,50)
        queue.unbind-ok (50,51)
        basic.qos (60,10)
        basic.qos-ok (60,11)
        basic.consume (60,20)
        basic.consume-ok (60,21)
        basic.cancel (60,30)
        basic.cancel-ok (60,31)
        basic.publish (60,40) content
        basic.return (60,50) content
        basic.deliver (60,60) content
        basic.get (60,70)
        basic.get-ok (60,71) content
        basic.get-empty (60,72)
        basic.ack (60,80)
        basic.reject (60,90)
        basic.recover-async (60,100)
        basic.recover (60,110)
        basic.recover-ok (60,111)
        basic.nack (60,120)
        confirm.select (85,10)
        confirm.select-ok (85,11)
        tx.select (90,10)
        tx.select-ok (90,11)
        tx.commit (90,20)
        tx.commit-ok (90,21)
        tx.rollback (90,30)
        tx.rollback-ok (90,31)"#]]
    .assert_eq(&listed.join("\n"));
}

#[test]
fn golden_octets() {
    let declare = queue::Declare {
        queue: ShortStr::from_static("q"),
        durable: true,
        auto_delete: true,
        arguments: FieldTable::new().with("x-max-length", 5i32),
        ..Default::default()
    };
    let octets = b"\0\x32\0\x0a\0\0\x01q\x0a\0\0\0\x12\x0cx-max-lengthI\0\0\0\x05";
    assert_eq!(encoded(&declare.into()).as_ref(), octets);
    let ack = basic::Ack { delivery_tag: DeliveryTag(0x0102), multiple: true };
    assert_eq!(encoded(&ack.into()).as_ref(), b"\0\x3c\0\x50\0\0\0\0\0\0\x01\x02\x01");
    let open = connection::Open { virtual_host: ShortStr::from_static("/") };
    assert_eq!(encoded(&open.into()).as_ref(), b"\0\x0a\0\x28\x01/\0\0");
    assert_eq!(encoded(&channel::OpenOk {}.into()).as_ref(), b"\0\x14\0\x0b\0\0\0\0");
}
