//! Octets that no client would send: nothing panics, memory stays bounded, and a connection that ends says why once.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod harness;

use harness::{Raw, frame, header_frame, method_frame, publish_frames, start_ok};
use proptest::prelude::*;
use understudy_protocol::{Event, FieldTable, PROTOCOL_HEADER, basic, channel, connection, queue};
use understudy_record::ShortStr;

/// A client's ordinary hour: handshake, two channels, a declaration, messages of several shapes, an ack.
fn ordinary_session() -> Vec<u8> {
    let arguments = FieldTable::new().with("x-max-length", 10i32).with("t", FieldTable::new().with("deep", true));
    let declare = queue::Declare { queue: ShortStr::from_static("q"), arguments, ..Default::default() };
    [
        PROTOCOL_HEADER.to_vec(),
        method_frame(0, start_ok(&FieldTable::new().with("product", "test"))),
        method_frame(0, connection::TuneOk { channel_max: 5, frame_max: 4096, heartbeat: 10 }),
        method_frame(0, connection::Open { virtual_host: ShortStr::from_static("/") }),
        method_frame(1, channel::Open {}),
        method_frame(2, channel::Open {}),
        method_frame(1, declare),
        publish_frames(1, "", "q", b"hello"),
        frame(8, 0, &[]),
        method_frame(2, basic::Publish::default()),
        header_frame(2, 6, b"\x30\0\0\0\0\x04\x01at\x01\x02"),
        frame(3, 2, b"abc"),
        publish_frames(1, "e", "k", b""),
        frame(3, 2, b"def"),
        method_frame(1, basic::Ack::default()),
        method_frame(2, channel::Close::default()),
        method_frame(0, connection::Close::default()),
    ]
    .concat()
}

/// Sends it in reads of `step` octets, and lets the connection come to its end. Returns how many events there were.
fn survive(octets: &[u8], step: usize) -> usize {
    let mut raw = Raw::new(understudy_protocol::ServerConfig::default());
    octets.chunks(step.max(1)).for_each(|chunk| raw.send(chunk));
    for waits in 0.. {
        if raw.server.poll_timeout().is_none() {
            break;
        }
        assert!(waits < 100, "a connection that waits without end");
        raw.wait();
    }
    // Ended once, at the end, and silent from then on.
    if raw.end().is_some() {
        assert!(matches!(raw.events.last(), Some(Event::Ended(_))));
        assert!(raw.server.is_closed());
    }
    raw.server.handle_eof();
    raw.events.len()
}

#[test]
fn an_ordinary_session_is_understood_at_every_cut() {
    let session = ordinary_session();
    let expected = survive(&session, usize::MAX);
    assert_eq!(expected, 11);
    for step in 1..100 {
        assert_eq!(survive(&session, step), expected, "in reads of {step} octets");
    }
}

#[test]
fn every_truncation_is_survived() {
    let session = ordinary_session();
    for end in 0..session.len() {
        survive(&session[..end], usize::MAX);
    }
}

#[test]
fn every_single_wrong_octet_is_survived() {
    let session = ordinary_session();
    for place in 0..session.len() {
        for change in [1, 0x80, 0xff] {
            let mut damaged = session.clone();
            damaged[place] ^= change;
            survive(&damaged, usize::MAX);
        }
    }
}

/// An octet a frame: pieces are gathered, so that memory follows the octets and not the frames.
#[test]
fn a_message_in_tiny_frames_is_gathered() {
    let mut raw = Raw::with_channels(1);
    raw.send(&[method_frame(1, basic::Publish::default()), header_frame(1, 50_000, &[0, 0])].concat());
    let octet = frame(3, 1, b"x");
    (0..50_000).for_each(|_| raw.send(&octet));
    let [Event::Publish(_, publish)] = &raw.events[..] else { panic!("{} events", raw.events.len()) };
    assert_eq!((publish.body.len(), publish.body.pieces().count()), (50_000, 1));
}

#[test]
fn a_flood_ahead_of_the_login_is_bounded() {
    let mut raw = Raw::new(understudy_protocol::ServerConfig::default());
    raw.answers = false;
    raw.send(&PROTOCOL_HEADER);
    raw.send(&method_frame(0, start_ok(&FieldTable::new())));
    raw.octets();
    let heartbeats = frame(8, 0, &[]).repeat(8192);
    (0..17).for_each(|_| raw.send(&heartbeats));
    assert!(raw.end().is_some());
    assert_eq!(raw.octets().len(), 0);
}

proptest! {
    #[test]
    fn random_octets_are_survived(prefix in 0usize..600, octets: Vec<u8>, step in 1usize..50) {
        let session = ordinary_session();
        survive(&[&session[..prefix.min(session.len())], &octets].concat(), step);
    }

    /// Frames that are whole, of random kinds on random channels, with random payloads.
    #[test]
    fn random_frames_are_survived(
        frames in prop::collection::vec(
            (prop::sample::select(vec![1u8, 1, 1, 2, 3, 3, 8]), 0u16..4,
             prop::sample::select(vec![10u8, 20, 40, 50, 60, 85, 90]), 0u8..121, prop::collection::vec(any::<u8>(), 0..40)),
            0..20),
    ) {
        let mut octets = ordinary_session();
        octets.truncate(octets.len() - method_frame(0, connection::Close::default()).len());
        for (kind, channel, class, method, arguments) in frames {
            octets.extend(frame(kind, channel, &[&[0, class, 0, method][..], &arguments].concat()));
        }
        survive(&octets, usize::MAX);
    }
}
