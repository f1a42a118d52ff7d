//! Long bodies: in parts on their way in, piece by piece on their way out, and nothing else between on their channel.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod harness;

use std::time::Duration;

use bytes::Bytes;
use harness::{Pair, Raw, frame, header_frame, method_frame, tag};
use proptest::prelude::*;
use understudy_protocol::{
    ChannelId, ClientConfig, ClientEvent, DeliverRef, End, Event, GetOkRef, Method, MethodId, PublishRef, ReplyCode,
    ReturnRef, ServerConfig, basic, channel, connection, queue,
};
use understudy_record::{Body, ShortStr};

const ONE: ChannelId = ChannelId(1);
const TWO: ChannelId = ChannelId(2);

fn config() -> ServerConfig {
    ServerConfig { whole_body_bytes: 100, part_bytes: 64, max_message_bytes: 5000, ..Default::default() }
}

fn raw() -> Raw {
    let mut raw =
        Raw::open_with(config(), &connection::TuneOk { channel_max: 2047, frame_max: 131_072, heartbeat: 10 });
    raw.send_method(1, channel::Open {});
    raw.send_method(2, channel::Open {});
    raw.answered();
    raw.events.clear();
    raw
}

fn text(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 % 251) as u8).collect()
}

fn publish(channel: u16) -> Vec<u8> {
    let routing_key = ShortStr::from_static("q");
    method_frame(channel, basic::Publish { routing_key, ..Default::default() })
}

/// What came on each channel, in order: the sizes of the parts and of the last, and all of it in one run.
fn received(events: &[Event], on: ChannelId) -> (Vec<usize>, Vec<u8>) {
    let bodies = events.iter().filter_map(|event| match event {
        Event::PublishPart(channel, body) if *channel == on => Some(body),
        Event::Publish(channel, publish) if *channel == on => Some(&publish.body),
        _ => None,
    });
    let bodies: Vec<&Body> = bodies.collect();
    (bodies.iter().map(|body| body.len()).collect(), bodies.iter().flat_map(|body| body.to_contiguous()).collect())
}

#[test]
fn a_body_is_whole_up_to_the_bound_and_in_full_parts_beyond() {
    for (size, expected) in [
        (100, vec![100]),
        (101, vec![64, 37]),
        (128, vec![64, 64]),
        (129, vec![64, 64, 1]),
        (192, vec![64, 64, 64]),
        (200, vec![64, 64, 64, 8]),
    ] {
        // One frame, and one octet a frame.
        for step in [size, 1] {
            let mut raw = raw();
            raw.send(&[publish(1), header_frame(1, size as u64, &[0, 0])].concat());
            text(size).chunks(step).for_each(|piece| raw.send(&frame(3, 1, piece)));
            assert_eq!(received(&raw.events, ONE), (expected.clone(), text(size)), "{size} octets by {step}");
            assert_eq!(raw.server.assembling_bytes(), 0);
            assert!(!raw.server.is_amid_publish());
        }
    }
}

#[test]
fn a_part_is_handed_over_as_soon_as_it_has_come() {
    let mut raw = raw();
    raw.send(&[publish(1), header_frame(1, 300, &[0, 0])].concat());
    assert!(!raw.server.is_amid_publish());
    raw.send(&frame(3, 1, &text(63)));
    assert_eq!((raw.events.len(), raw.server.assembling_bytes(), raw.server.is_amid_publish()), (0, 63, true));
    raw.send(&frame(3, 1, &[1]));
    assert_eq!((raw.events.len(), raw.server.assembling_bytes(), raw.server.is_amid_publish()), (1, 0, true));
    raw.send(&frame(3, 1, &[2; 70]));
    assert_eq!((raw.events.len(), raw.server.assembling_bytes()), (2, 6));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    /// Whatever the frames, whatever the reads, however two channels' frames are mixed.
    #[test]
    fn parts_do_not_depend_on_frames_reads_or_other_channels(
        sizes in (1usize..400, 1usize..400),
        frames in prop::collection::vec((any::<bool>(), 1usize..150), 0..40),
        reads in prop::collection::vec(1usize..120, 1..20),
    ) {
        let bodies = [text(sizes.0), text(sizes.1).into_iter().rev().collect::<Vec<u8>>()];
        let mut octets = Vec::new();
        let mut left = [&bodies[0][..], &bodies[1][..]];
        for (channel, body) in (1..).zip(&bodies) {
            octets.extend(publish(channel));
            octets.extend(header_frame(channel, body.len() as u64, &[0, 0]));
        }
        for (second, size) in frames.into_iter().chain([(false, 400), (true, 400)]) {
            let (now, later) = left[usize::from(second)].split_at(size.min(left[usize::from(second)].len()));
            if !now.is_empty() {
                octets.extend(frame(3, 1 + u16::from(second), now));
            }
            left[usize::from(second)] = later;
        }
        let mut raw = raw();
        let mut rest = &octets[..];
        for size in reads.iter().cycle() {
            let (now, later) = rest.split_at((*size).min(rest.len()));
            raw.send(now);
            rest = later;
            if rest.is_empty() { break }
        }
        for (channel, body) in [ONE, TWO].into_iter().zip(&bodies) {
            let expected = match body.len() {
                size @ 0..=100 => vec![size],
                size => (0..size).step_by(64).map(|from| 64.min(size - from)).collect(),
            };
            prop_assert_eq!(&received(&raw.events, channel), &(expected, body.clone()));
        }
    }
}

#[test]
fn mistakes_in_the_middle_of_a_long_body_are_what_they_always_were() {
    let begun = [publish(1), header_frame(1, 200, &[0, 0]), frame(3, 1, &text(70))].concat();
    // Longer than announced.
    let mut raw = raw();
    raw.send(&[&begun[..], &frame(3, 1, &text(131))].concat());
    let expected = "UNEXPECTED_FRAME - more content body than its header announced".to_owned();
    assert_eq!(raw.refusal(), (0, 505, expected, (60, 40)));
    assert!(!raw.events.iter().any(|event| matches!(event, Event::Publish(..))), "{:?}", raw.events);
    // A close in the middle.
    let mut raw = self::raw();
    raw.send(&[&begun[..], &method_frame(1, channel::Close::default())].concat());
    let expected = "UNEXPECTED_FRAME - expected content body, got another frame".to_owned();
    assert_eq!(raw.refusal(), (0, 505, expected, (60, 40)));
    // Larger than allowed: refused by its header, before any part of it.
    let mut raw = self::raw();
    raw.send(&[publish(1), header_frame(1, 5001, &[0, 0]), frame(3, 1, &text(70))].concat());
    let expected = "PRECONDITION_FAILED - message size 5001 is larger than configured max size 5000".to_owned();
    assert_eq!(raw.refusal(), (1, 406, expected, (60, 40)));
    assert!(matches!(raw.events[..], [Event::ChannelFailed { channel: ONE, .. }]), "{:?}", raw.events);
}

#[test]
fn heartbeats_pass_between_the_frames_of_a_long_body() {
    let mut raw = raw();
    raw.send(&[publish(1), header_frame(1, 200, &[0, 0])].concat());
    for (count, piece) in text(200).chunks(20).enumerate() {
        let from = raw.now;
        while raw.now < from + Duration::from_secs(15) {
            raw.wait();
            raw.send(&frame(8, 0, &[]));
        }
        assert_eq!(raw.end(), None, "after {count} pieces");
        raw.send(&frame(3, 1, piece));
    }
    assert_eq!(received(&raw.events, ONE), (vec![64, 64, 64, 8], text(200)));
}

fn pair() -> Pair {
    let client = ClientConfig { frame_max: 4096, ..Default::default() };
    let mut pair = Pair::new(ServerConfig { max_message_bytes: 1 << 20, ..config() }, client);
    pair.connect();
    pair.client.open_channel(TWO);
    pair.drive();
    pair.client_events.clear();
    pair.server_events.clear();
    pair
}

fn body(bytes: &[u8]) -> Body {
    Body::new(Bytes::copy_from_slice(bytes))
}

#[test]
fn a_content_begun_goes_out_piece_by_piece_and_what_is_said_meanwhile_after_it() {
    let (empty, none) = (ShortStr::EMPTY, Body::default());
    let deliver = DeliverRef {
        consumer_tag: &empty,
        delivery_tag: tag(1),
        redelivered: false,
        exchange: &empty,
        routing_key: &empty,
        properties: &[],
        body: &none,
    };
    let mut pair = pair();
    let whole = text(20_000);
    assert_eq!(pair.server.begin_deliver(ONE, &deliver, 20_000), Ok(true));
    pair.server.send_ack(ONE, tag(7), false);
    pair.server.send_method(ONE, &queue::PurgeOk { message_count: 3 }.into());
    pair.server.send_body(ONE, &body(&whole[..9_000]));
    pair.drive();
    assert_eq!(pair.client_events, []);
    // Another channel does not wait.
    pair.server.send_method(TWO, &queue::PurgeOk { message_count: 4 }.into());
    pair.drive();
    assert_eq!(pair.client_events, [ClientEvent::Method(TWO, queue::PurgeOk { message_count: 4 }.into())]);
    pair.client_events.clear();
    pair.server.send_body(ONE, &Body::default());
    pair.server.send_body(ONE, &body(&whole[9_000..]));
    pair.server.send_ack(ONE, tag(8), false);
    pair.drive();
    let [ClientEvent::Delivery(ONE, delivery), rest @ ..] = &pair.client_events[..] else {
        panic!("{:?}", pair.client_events)
    };
    assert_eq!(delivery.body, body(&whole));
    let ack = |number| ClientEvent::Method(ONE, basic::Ack { delivery_tag: tag(number), multiple: false }.into());
    let purged = ClientEvent::Method(ONE, queue::PurgeOk { message_count: 3 }.into());
    assert_eq!(rest, [ack(7), purged, ack(8)]);
}

#[test]
fn returns_and_gets_go_out_piece_by_piece_too() {
    let (empty, none) = (ShortStr::EMPTY, Body::default());
    let mut pair = pair();
    let returned = ReturnRef {
        code: ReplyCode::NoRoute,
        text: "NO_ROUTE",
        exchange: &empty,
        routing_key: &empty,
        properties: &[],
        body: &none,
    };
    assert_eq!(pair.server.begin_return(ONE, &returned, 5), Ok(true));
    pair.server.send_body(ONE, &body(b"he"));
    pair.server.send_body(ONE, &body(b"llo"));
    let got = GetOkRef {
        delivery_tag: tag(1),
        redelivered: true,
        exchange: &empty,
        routing_key: &empty,
        message_count: 0,
        properties: &[],
        body: &none,
    };
    assert_eq!(pair.server.begin_get_ok(ONE, &got, 2), Ok(true));
    pair.server.send_body(ONE, &body(b"ho"));
    pair.drive();
    let [ClientEvent::Return(ONE, returned), ClientEvent::GotMessage(ONE, got)] = &pair.client_events[..] else {
        panic!("{:?}", pair.client_events)
    };
    assert_eq!((&returned.body, &got.body), (&body(b"hello"), &body(b"ho")));
}

/// Begun on channel 1, with five octets to come.
fn sending() -> Pair {
    let (empty, none) = (ShortStr::EMPTY, Body::default());
    let deliver = DeliverRef {
        consumer_tag: &empty,
        delivery_tag: tag(1),
        redelivered: false,
        exchange: &empty,
        routing_key: &empty,
        properties: &[],
        body: &none,
    };
    let mut pair = pair();
    assert_eq!(pair.server.begin_deliver(ONE, &deliver, 5), Ok(true));
    assert_eq!(pair.server.begin_deliver(ChannelId(9), &deliver, 5), Ok(false), "a channel that is not open");
    pair
}

#[test]
fn a_channel_that_is_closed_here_closes_after_its_content() {
    let mut pair = sending();
    pair.server.close_channel(ONE, ReplyCode::NotFound, "no queue", MethodId::NONE);
    pair.drive();
    assert_eq!(pair.client_events, []);
    pair.server.send_body(ONE, &body(b"hello"));
    pair.drive();
    let [ClientEvent::Delivery(ONE, delivery), ClientEvent::ChannelClosed { channel: ONE, code: 404, .. }] =
        &pair.client_events[..]
    else {
        panic!("{:?}", pair.client_events)
    };
    assert_eq!(delivery.body, body(b"hello"));
    pair.server.send_body(ONE, &body(b"more")); // nothing is awaited any more
    pair.drive();
    assert_eq!(pair.client_events.len(), 2);
}

#[test]
fn a_channel_that_the_peer_closes_is_answered_after_its_content() {
    let mut pair = sending();
    pair.drive();
    pair.client.close_channel(ONE);
    pair.drive(); // the harness answers the close at once
    assert_eq!((&pair.server_events[..], pair.client_events.len()), (&[Event::ChannelClose(ONE)][..], 0));
    pair.server.send_body(ONE, &body(b"hello"));
    pair.drive();
    let closed = |event: &ClientEvent| matches!(event, ClientEvent::ChannelClosed { channel: ONE, code: 200, .. });
    assert!(matches!(&pair.client_events[..], [event] if closed(event)), "{:?}", pair.client_events);
}

#[test]
fn a_number_reopened_too_early_hears_the_rest_of_its_earlier_content_first() {
    let mut raw = raw();
    let (empty, none) = (ShortStr::EMPTY, Body::default());
    let deliver = DeliverRef {
        consumer_tag: &empty,
        delivery_tag: tag(1),
        redelivered: false,
        exchange: &empty,
        routing_key: &empty,
        properties: &[],
        body: &none,
    };
    assert_eq!(raw.server.begin_deliver(ONE, &deliver, 5), Ok(true));
    raw.octets();
    raw.send_method(1, channel::Close::default());
    raw.send_method(1, channel::Open {});
    assert_eq!(raw.octets(), Bytes::new());
    raw.server.send_body(ONE, &body(b"hello"));
    let expected = [
        frame(3, 1, b"hello"),
        method_frame(1, Method::ChannelCloseOk(channel::CloseOk {})),
        method_frame(1, channel::OpenOk {}),
    ];
    assert_eq!(raw.octets(), expected.concat());
}

#[test]
fn a_closed_connection_says_nothing_more_of_it() {
    let mut pair = sending();
    pair.drive();
    pair.server.close_connection(pair.now, ReplyCode::ConnectionForced, "over", MethodId::NONE);
    pair.server.send_body(ONE, &body(b"hello"));
    pair.drive();
    assert!(matches!(&pair.client_events[..], [ClientEvent::Ended(_)]), "{:?}", pair.client_events);
    assert!(matches!(&pair.server_events[..], [Event::Ended(End::ByServer { .. })]), "{:?}", pair.server_events);
}

#[test]
fn a_client_takes_a_long_body_as_one() {
    let mut pair = pair();
    let whole = body(&text(10_000));
    let message = PublishRef { exchange: b"", routing_key: b"q", mandatory: false, properties: &[], body: &whole };
    pair.client.publish(ONE, &message).unwrap();
    pair.drive();
    let (sizes, octets) = received(&pair.server_events, ONE);
    assert_eq!((sizes.len(), octets), (10_000_usize.div_ceil(64), text(10_000)));
}
