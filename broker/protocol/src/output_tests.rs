//! What is put in comes out, in frames of the right size, however a socket takes it.

use proptest::prelude::*;
use understudy_record::ShortStr;

use super::*;
use crate::content::{Assembly, BodyLimits, DeliverRef};
use crate::frame::{frame_at, scan};
use crate::ids::DeliveryTag;
use crate::method::{basic, channel};
use crate::properties::Properties;

fn body(pieces: &[usize]) -> Body {
    let mut body = Body::default();
    for (place, length) in pieces.iter().enumerate() {
        body.push(Bytes::from(vec![place as u8; *length]));
    }
    body
}

fn push(output: &mut Output, frame_max: u32, properties: &[u8], body: &Body) -> Result<(), HeaderTooLarge> {
    let message = DeliverRef {
        consumer_tag: &ShortStr::from_static("ctag"),
        delivery_tag: DeliveryTag(7),
        redelivered: true,
        exchange: &ShortStr::from_static("e"),
        routing_key: &ShortStr::from_static("k"),
        properties,
        body,
    };
    output.push_content(ChannelId(3), frame_max, &message, properties, body)
}

/// Writes it all out the way a socket does: some octets of some slices at a time.
fn drain(output: &mut Output, step: usize) -> Vec<u8> {
    let mut drained = Vec::new();
    while output.has_remaining() {
        let mut slices = [IoSlice::new(&[]); 3];
        let count = output.chunks_vectored(&mut slices);
        assert!(count > 0, "{} octets left, no slice", output.len());
        let seen: Vec<u8> = slices[..count].iter().flat_map(|slice| slice.iter().copied()).collect();
        assert!(seen.starts_with(output.chunk()));
        let taken = seen.len().min(step);
        drained.extend_from_slice(&seen[..taken]);
        output.advance(taken);
    }
    assert!(output.is_empty());
    drained
}

proptest! {
    /// F3: no frame above the negotiated size, the eight octets around the payload included; nothing lost or doubled,
    /// however the body came in and however the socket takes it.
    #[test]
    fn a_message_is_written_in_frames_of_the_negotiated_size(
        pieces in prop::collection::vec(0usize..9000, 0..5), frame_max in 4096u32..9000, step in 1usize..5000,
    ) {
        let body = body(&pieces);
        let mut output = Output::default();
        push(&mut output, frame_max, &[0x10, 0, 2], &body).unwrap();
        let before = output.len();
        let octets = Bytes::from(drain(&mut output, step));
        prop_assert_eq!((octets.len(), output.total()), (before, before as u64));

        let scanned = scan(&octets, frame_max as usize - FRAME_OVERHEAD_BYTES, usize::MAX);
        prop_assert_eq!((scanned.whole, scanned.error), (octets.len(), None));
        let method = frame_at(&octets, 0).unwrap();
        let mut assembly = Assembly::Header(());
        let (mut at, mut content, mut frames) = (method.end + 1, None, 0);
        while let Some(frame) = frame_at(&octets, at) {
            prop_assert!(content.is_none());
            prop_assert_eq!(frame.channel, ChannelId(3));
            content = assembly.take(&octets, frame, &BodyLimits::NONE, &mut Vec::new()).unwrap();
            at = frame.end + 1;
            frames += 1;
        }
        let (_, properties, read) = content.unwrap();
        prop_assert!(properties.is_persistent());
        prop_assert_eq!(frames, 1 + body.len().div_ceil(frame_max as usize - 8));
        prop_assert_eq!(read, body);
    }
}

#[test]
fn a_large_body_is_passed_on_by_reference_and_a_small_one_copied() {
    let (small, large) = (body(&[COPY_BYTES]), body(&[COPY_BYTES + 1]));
    let mut output = Output::default();
    push(&mut output, 131_072, &[], &small).unwrap();
    push(&mut output, 131_072, &[], &large).unwrap();
    let mut slices = [IoSlice::new(&[]); 8];
    assert_eq!(output.chunks_vectored(&mut slices), 3);
    assert_eq!(slices[1].as_ptr(), large.pieces().next().unwrap().as_ptr());
}

#[test]
fn an_empty_body_has_no_frame() {
    let mut output = Output::default();
    push(&mut output, 4096, &[], &Body::default()).unwrap();
    let octets = Bytes::from(drain(&mut output, 100));
    let header = frame_at(&octets, frame_at(&octets, 0).unwrap().end + 1).unwrap();
    assert_eq!((header.kind, header.end + 1), (FrameKind::Header, octets.len()));
    assert_eq!(&octets[header.start..header.end], [0, 60, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn properties_that_do_not_fit_a_frame_leave_nothing_behind() {
    let headers = |length| {
        let table = crate::FieldTable::new().with("h", Bytes::from(vec![0; length]));
        crate::BasicProperties { headers: Some(table), ..Default::default() }.encode()
    };
    let mut output = Output::default();
    let too_large = headers(4096);
    let size = too_large.as_bytes().len();
    let refused = push(&mut output, 4096, too_large.as_bytes(), &Body::default());
    assert_eq!(refused, Err(HeaderTooLarge { size, frame_max: 4096 }));
    assert!(output.is_empty());
    // Flags 2, table length 4, name 2, tag 1, length 4: 13 octets around the value; 12 + 8 around the properties.
    assert!(push(&mut output, 4096, headers(4096 - 33).as_bytes(), &Body::default()).is_ok());
    assert!(push(&mut output, 4096, headers(4096 - 32).as_bytes(), &Body::default()).is_err());
}

#[test]
fn golden_octets_of_a_delivery() {
    let mut output = Output::default();
    push(&mut output, 4096, Properties::EMPTY.as_bytes(), &Body::new("hi".into())).unwrap();
    let method = b"\x01\0\x03\0\0\0\x16\0\x3c\0\x3c\x04ctag\0\0\0\0\0\0\0\x07\x01\x01e\x01k\xce";
    let header = b"\x02\0\x03\0\0\0\x0e\0\x3c\0\0\0\0\0\0\0\0\0\x02\0\0\xce";
    assert_eq!(drain(&mut output, 1000), [&method[..], header, b"\x03\0\x03\0\0\0\x02hi\xce"].concat());
}

#[test]
fn what_is_written_out_gives_its_memory_back() {
    let mut output = Output::default();
    for _ in 0..10_000 {
        output.push_method(ChannelId(1), &basic::Ack::default().into());
    }
    let all = output.len();
    output.advance(all - 100);
    assert!(output.small.len() <= SLACK_BYTES, "{} octets kept for 100", output.small.len());
    output.advance(100);
    assert!(output.small.capacity() <= KEEP_BYTES, "{} octets of capacity kept", output.small.capacity());
    output.push_method(ChannelId(1), &channel::CloseOk {}.into());
    assert_eq!(drain(&mut output, 100), b"\x01\0\x01\0\0\0\x04\0\x14\0\x29\xce");
}
