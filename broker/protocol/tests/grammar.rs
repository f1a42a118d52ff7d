//! What a server answers to frames in the wrong order, of the wrong size or form: each mistake, its code and text, and what
//! lives on afterwards.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod harness;

use std::time::Duration;

use bytes::Bytes;
use harness::{Raw, frame, header_frame, method_frame, publish_frames, start_ok, tag};
use understudy_protocol::{
    ChannelId, DeliverRef, End, Event, FieldTable, Method, MethodId, PROTOCOL_HEADER, ReplyCode, ServerConfig, access,
    basic, channel, connection, exchange, queue, tx,
};
use understudy_record::{Body, ShortStr};

const ONE: ChannelId = ChannelId(1);

/// Sends `octets` to a server with channels 1 and 2 open, which must close the connection with `code`, and say `text`.
fn check_hard(octets: &[u8], code: u16, text: &str) {
    let mut raw = Raw::with_channels(2);
    raw.send(octets);
    let (channel, closed_with, said, _) = raw.refusal();
    assert_eq!((channel, closed_with), (0, code), "{said}");
    let name = ReplyCode::from_number(code).unwrap().name();
    assert_eq!(said, format!("{name} - {text}"));
    assert!(matches!(raw.end(), Some(End::ByServer { code: ended, .. }) if ended.number() == code));
    // From here on nothing counts but the answer.
    let events = raw.events.len();
    raw.send_method(1, queue::Purge::default());
    raw.send(&publish_frames(2, "", "q", b"late"));
    assert_eq!((raw.events.len(), raw.octets().len()), (events, 0));
}

fn check_closes_after_close_ok(octets: &[u8]) {
    let mut raw = Raw::with_channels(1);
    raw.send(octets);
    raw.refusal();
    assert!(!raw.server.is_closed());
    raw.send_method(0, connection::CloseOk {});
    assert!(raw.server.is_closed());
}

#[test]
fn another_protocol_is_answered_with_ours() {
    for hello in
        [&b"AMQP\x00\x01\x00\x00"[..], b"AMQP\x01\x01\x00\x0a", b"GET / HTTP/1.1\r\n\r\n", b"AMQX", b"\x16\x03\x01"]
    {
        let mut raw = Raw::new(ServerConfig::default());
        raw.send(hello);
        assert_eq!(raw.octets().as_ref(), PROTOCOL_HEADER);
        assert_eq!(raw.end(), Some(&End::ProtocolHeader));
        assert!(raw.server.is_closed());
    }
}

#[test]
fn a_header_may_come_octet_by_octet() {
    let mut raw = Raw::new(ServerConfig::default());
    for octet in PROTOCOL_HEADER {
        assert_eq!(raw.octets().len(), 0);
        raw.send(&[octet]);
    }
    let answered = raw.answered();
    let [(0, Method::ConnectionStart(start))] = &answered[..] else { panic!("{answered:?}") };
    assert_eq!((start.version_major, start.version_minor, &start.mechanisms[..]), (0, 9, &b"PLAIN AMQPLAIN"[..]));
}

#[test]
fn a_client_that_stops_in_the_handshake_is_dropped_in_time() {
    let mut raw = Raw::new(ServerConfig::default());
    raw.send(&PROTOCOL_HEADER);
    let start = raw.now;
    raw.wait();
    assert_eq!((raw.end(), raw.now - start), (Some(&End::HandshakeTimeout), Duration::from_secs(10)));
    assert!(raw.server.is_closed());
}

/// What the client sends before the caller has decided waits, in order.
#[test]
fn a_client_may_send_ahead_of_the_answers() {
    let mut raw = Raw::new(ServerConfig::default());
    raw.answers = false;
    raw.send(&PROTOCOL_HEADER);
    raw.send(&method_frame(0, start_ok(&FieldTable::new())));
    raw.send(&method_frame(0, connection::TuneOk { channel_max: 10, frame_max: 65_536, heartbeat: 0 }));
    raw.send(&method_frame(0, connection::Open { virtual_host: ShortStr::from_static("/") }));
    let declare = queue::Declare { queue: ShortStr::from_static("q"), ..Default::default() };
    // A frame larger than any of the handshake, in two parts.
    let rest = [method_frame(1, channel::Open {}), publish_frames(1, "", "q", &[7; 60_000]), method_frame(1, declare)]
        .concat();
    raw.send(&rest[..30_000]);
    assert!(matches!(raw.events[..], [Event::Authenticate { .. }]));
    raw.server.accept_authentication(raw.now);
    raw.send(&rest[30_000..]);
    assert!(matches!(raw.events[..], [Event::Authenticate { .. }, Event::Open { .. }]), "{:?}", raw.events);
    raw.server.open_connection(raw.now);
    raw.send(&frame(8, 0, &[]));
    let kinds = &raw.events[2..];
    assert!(matches!(kinds, [Event::ChannelOpen(ONE), Event::Publish(ONE, _), Event::Method(ONE, _)]), "{kinds:?}");
}

#[test]
fn garbage_before_the_login_is_dropped_without_an_answer() {
    let mut raw = Raw::new(ServerConfig::default());
    raw.send(&PROTOCOL_HEADER);
    raw.octets();
    raw.send(&[9; 100]);
    assert_eq!(raw.octets().len(), 0);
    assert!(matches!(raw.end(), Some(End::ByServer { code: ReplyCode::FrameError, .. })));
    assert!(!raw.server.is_closed());
    raw.wait();
    assert!(raw.server.is_closed());
}

/// RabbitMQ sends the close frame only to clients that declared `authentication_failure_close`.
#[test]
fn a_refused_login_is_told_to_those_who_can_hear_it() {
    for (declared, expected) in [(true, 1), (false, 0)] {
        let mut raw = Raw::new(ServerConfig::default());
        raw.send(&PROTOCOL_HEADER);
        raw.octets();
        let capabilities = FieldTable::new().with("authentication_failure_close", declared);
        let client_properties = FieldTable::new().with("capabilities", capabilities);
        let response = Bytes::from_static(b"\0guest\0wrong");
        raw.send_method(0, connection::StartOk { response, ..start_ok(&client_properties) });
        let answered = raw.answered();
        assert_eq!(answered.len(), expected, "{answered:?}");
        assert_eq!(raw.end(), Some(&End::AuthenticationRefused));
        let start = raw.now;
        raw.wait();
        assert!(raw.server.is_closed() && raw.now > start);
    }
}

/// P2: more than was offered, or "no limit" where there is one, is 530 and no open-ok.
#[test]
fn tune_ok_out_of_range_is_530() {
    let cases = [
        (0, 131_072, "negotiated channel_max = 0 is higher than the maximum allowed value (2047)"),
        (2048, 131_072, "negotiated channel_max = 2048 is higher than the maximum allowed value (2047)"),
        (2047, 0, "negotiated frame_max = 0 is higher than the maximum allowed value (131072)"),
        (2047, 131_073, "negotiated frame_max = 131073 is higher than the maximum allowed value (131072)"),
        (2047, 4095, "negotiated frame_max = 4095 is lower than the minimum allowed value (4096)"),
    ];
    for (channel_max, frame_max, text) in cases {
        let mut raw = Raw::new(ServerConfig::default());
        raw.send(&PROTOCOL_HEADER);
        raw.send_method(0, start_ok(&FieldTable::new()));
        raw.octets();
        let tune_ok = connection::TuneOk { channel_max, frame_max, heartbeat: 0 };
        let open = connection::Open { virtual_host: ShortStr::from_static("/") };
        raw.send(&[method_frame(0, tune_ok), method_frame(0, open)].concat());
        let (_, code, said, cause) = raw.refusal();
        assert_eq!((code, said.as_str(), cause), (530, format!("NOT_ALLOWED - {text}").as_str(), (10, 31)));
    }
    let no_limits = ServerConfig { channel_max: 0, frame_max: 0, ..Default::default() };
    Raw::open_with(no_limits, &connection::TuneOk { channel_max: 0, frame_max: 0, heartbeat: 0 });
}

#[test]
fn an_unknown_virtual_host_is_530() {
    let mut raw = Raw::new(ServerConfig::default());
    raw.send(&PROTOCOL_HEADER);
    raw.send_method(0, start_ok(&FieldTable::new()));
    raw.send_method(0, connection::TuneOk { channel_max: 1, frame_max: 4096, heartbeat: 0 });
    raw.octets();
    raw.send_method(0, connection::Open { virtual_host: ShortStr::from_static("/x") });
    let (_, code, said, cause) = raw.refusal();
    assert_eq!((code, said.as_str(), cause), (530, "NOT_ALLOWED - vhost /x not found", (10, 40)));
}

#[test]
fn malformed_frames_are_501() {
    check_hard(&[4, 0, 1, 0, 0, 0, 0, 0xce], 501, "frame type 4 does not exist");
    let mut bad_end = method_frame(1, basic::Ack::default());
    *bad_end.last_mut().unwrap() = 0xcd;
    check_hard(&bad_end, 501, "a frame on channel 1 ends with 0xcd instead of 0xce");
    check_hard(&frame(8, 0, &[1]), 501, "heartbeat with a payload");
    // F3. The octets around the payload are forgiven, as RabbitMQ does; one more is not. The header alone decides.
    let text = "a frame with 131073 octets of payload on channel 1, 131072 are negotiated";
    check_hard(&frame(3, 1, &[0; 131_073])[..7], 501, text);
}

#[test]
fn after_lost_framing_the_socket_goes_soon() {
    let mut raw = Raw::with_channels(1);
    raw.send(&[4, 0, 1, 0, 0, 0, 0, 0xce]);
    let start = raw.now;
    raw.wait();
    assert!(raw.server.is_closed());
    assert_eq!(raw.now - start, Duration::from_secs(1));
}

#[test]
fn malformed_fields_are_502() {
    check_hard(&frame(1, 1, &[0, 60, 0]), 502, "a field runs past the end of its frame");
    check_hard(&frame(1, 1, &[0, 60, 0, 80, 0]), 502, "a field runs past the end of its frame");
    let longer = frame(1, 1, b"\0\x3c\0\x50\0\0\0\0\0\0\0\x01\x01extra");
    check_hard(&longer, 502, "5 octets after the last field");
    let publish = method_frame(1, basic::Publish::default());
    let cut = [publish.clone(), header_frame(1, 0, &[0x10, 0])].concat();
    check_hard(&cut, 502, "a field runs past the end of its frame");
    // P4: an unknown tag in a header hurts this connection only, and at once.
    let tag = [publish, header_frame(1, 0, b"\x20\0\0\0\0\x03\x01aU")].concat();
    check_hard(&tag, 502, "unknown table field type 0x55");
}

#[test]
fn unknown_and_misplaced_methods_are_503() {
    check_hard(&frame(1, 1, &[0, 60, 0, 77]), 503, "unknown method (60,77)");
    check_hard(&method_frame(1, queue::DeclareOk::default()), 503, "queue.declare-ok from a client");
    check_hard(&method_frame(1, basic::Deliver::default()), 503, "basic.deliver from a client");
    check_hard(&method_frame(0, queue::Declare::default()), 503, "queue.declare on channel 0");
    check_hard(&method_frame(1, connection::CloseOk {}), 503, "connection.close-ok on channel 1");
    let early = "unexpected connection.open in this state of the connection";
    check_hard(&method_frame(0, connection::Open::default()), 503, early);
}

#[test]
fn channels_opened_twice_or_not_at_all_are_504() {
    check_hard(&method_frame(1, channel::Open {}), 504, "second 'channel.open' seen");
    check_hard(&method_frame(3, queue::Declare::default()), 504, "expected 'channel.open'");
    let mut raw = Raw::open();
    raw.send_method(7, basic::Qos::default());
    assert_eq!(raw.refusal().3, (60, 10));
}

#[test]
fn content_out_of_order_is_505() {
    let publish = method_frame(1, basic::Publish::default());
    check_hard(&header_frame(1, 5, &[0, 0]), 505, "expected method frame, got a content frame");
    check_hard(&frame(3, 1, b"x"), 505, "expected method frame, got a content frame");
    let mut raw = Raw::open();
    raw.send(&header_frame(1, 5, &[0, 0]));
    assert_eq!(raw.refusal().3, (0, 0), "no method is to blame");
    check_hard(&frame(3, 3, b"x"), 505, "content frame on channel 3, which is not open");
    check_hard(&frame(3, 0, b"x"), 505, "content frame on channel 0 without a publish");
    check_hard(&[publish.clone(), publish.clone()].concat(), 505, "expected content header, got another frame");
    let body_first = [publish.clone(), frame(3, 1, b"x")].concat();
    check_hard(&body_first, 505, "expected content header, got another frame");
    let started = [publish.clone(), header_frame(1, 5, &[0, 0]), frame(3, 1, b"abc")].concat();
    check_hard(&[&started[..], &publish].concat(), 505, "expected content body, got another frame");
    let over = [&started[..], &frame(3, 1, b"def")].concat();
    check_hard(&over, 505, "more content body than its header announced");
    let wrong_class = [publish, frame(2, 1, b"\0\x32\0\0\0\0\0\0\0\0\0\0\0\0")].concat();
    check_hard(&wrong_class, 505, "content header for class 50, only class 60 has content");
    check_hard(&frame(8, 1, &[]), 505, "heartbeat on channel 1");
}

#[test]
fn more_channels_than_agreed_are_530() {
    let tune_ok = connection::TuneOk { channel_max: 4, frame_max: 4096, heartbeat: 0 };
    let mut raw = Raw::open_with(ServerConfig::default(), &tune_ok);
    raw.send_method(4, channel::Open {});
    assert_eq!(raw.answered(), [(4, channel::OpenOk {}.into())]);
    raw.send_method(5, channel::Open {});
    let (channel, code, text, _) = raw.refusal();
    assert_eq!((channel, code), (0, 530));
    assert_eq!(text, "NOT_ALLOWED - channel number 5 is above the negotiated channel_max (4)");
}

#[test]
fn flow_off_and_only_off_is_540() {
    check_hard(&method_frame(1, channel::Flow { active: false }), 540, "active=false");
    let mut raw = Raw::with_channels(1);
    raw.send_method(1, channel::Flow { active: true });
    assert_eq!(raw.answered(), [(1, channel::FlowOk { active: true }.into())]);
}

#[test]
fn old_clients_get_their_ticket() {
    let mut raw = Raw::with_channels(1);
    raw.send_method(1, access::Request::default());
    assert_eq!(raw.answered(), [(1, access::RequestOk { ticket: 1 }.into())]);
    assert_eq!(raw.events, []);
}

#[test]
fn a_close_is_over_with_its_answer() {
    check_closes_after_close_ok(&method_frame(9, queue::Declare::default()));
    check_closes_after_close_ok(&frame(8, 1, &[]));
}

#[test]
fn a_close_without_an_answer_is_over_at_the_deadline() {
    let mut raw = Raw::with_channels(1);
    raw.server.close_connection(raw.now, ReplyCode::ConnectionForced, "", MethodId::NONE);
    assert_eq!(raw.refusal(), (0, 320, "CONNECTION_FORCED".into(), (0, 0)));
    let start = raw.now;
    raw.send_method(0, connection::Close::default()); // crossed ours
    assert_eq!(raw.answered(), [(0, connection::CloseOk {}.into())]);
    raw.wait();
    assert_eq!((raw.server.is_closed(), raw.now - start), (true, Duration::from_secs(10)));
}

/// F3: the message costs its channel, whose further frames are passed over, and nothing else.
#[test]
fn a_message_over_the_maximum_is_406_on_its_channel() {
    let config = ServerConfig { max_message_bytes: 10, ..Default::default() };
    let tune_ok = connection::TuneOk { channel_max: 2047, frame_max: 4096, heartbeat: 0 };
    let mut raw = Raw::open_with(config, &tune_ok);
    raw.send(&[method_frame(1, channel::Open {}), method_frame(2, channel::Open {})].concat());
    raw.answered();
    raw.events.clear();

    raw.send(&publish_frames(1, "", "q", b"0123456789"));
    assert!(matches!(&raw.events[..], [Event::Publish(ONE, publish)] if publish.body.len() == 10));
    raw.send(&publish_frames(1, "", "q", b"0123456789a"));
    let text = "message size 11 is larger than configured max size 10";
    assert_eq!(raw.refusal(), (1, 406, format!("PRECONDITION_FAILED - {text}"), (60, 40)));
    let failed = Event::ChannelFailed { channel: ONE, code: ReplyCode::PreconditionFailed, text: text.into() };
    assert_eq!(raw.events.pop(), Some(failed));

    raw.events.clear();
    raw.send(&publish_frames(1, "", "q", b"dropped"));
    raw.send(&publish_frames(2, "", "q", b"taken"));
    assert!(matches!(&raw.events[..], [Event::Publish(ChannelId(2), _)]), "{:?}", raw.events);
    raw.send(&[method_frame(1, channel::CloseOk {}), method_frame(1, channel::Open {})].concat());
    assert_eq!(raw.answered(), [(1, channel::OpenOk {}.into())]);
}

#[test]
fn after_the_servers_channel_close_only_close_ok_counts() {
    let mut raw = Raw::with_channels(2);
    raw.server.close_channel(ONE, ReplyCode::NotFound, "no queue 'q' in vhost '/'", queue::Declare::ID);
    assert_eq!(raw.refusal(), (1, 404, "NOT_FOUND - no queue 'q' in vhost '/'".into(), (50, 10)));
    raw.send(&publish_frames(1, "", "q", b"x"));
    raw.send_method(1, queue::Declare::default());
    raw.send_method(1, channel::Open {});
    raw.server.send_method(ONE, &queue::DeclareOk::default().into());
    raw.server.close_channel(ONE, ReplyCode::NotFound, "again", MethodId::NONE);
    assert_eq!((raw.events.len(), raw.octets().len()), (0, 0));
    raw.send_method(2, exchange::Declare::default());
    assert_eq!(raw.events.len(), 1, "the other channel lives");
    raw.send_method(1, channel::CloseOk {});
    raw.send_method(1, channel::Open {});
    assert_eq!(raw.answered(), [(1, channel::OpenOk {}.into())]);
}

#[test]
fn channel_closes_that_cross_are_both_answered() {
    let mut raw = Raw::with_channels(1);
    raw.server.close_channel(ONE, ReplyCode::NotFound, "x", MethodId::NONE);
    raw.octets();
    raw.send_method(1, channel::Close::default());
    assert_eq!(raw.answered(), [(1, channel::CloseOk {}.into())]);
    assert_eq!(raw.events, [], "it was closed before");
    // Some clients forget their close-ok here, and open the number again.
    raw.send_method(1, channel::Open {});
    assert_eq!(raw.answered(), [(1, channel::OpenOk {}.into())]);

    // The other order: the client's close first, and the server's mistake found later.
    raw.answers = false;
    raw.send_method(1, channel::Close::default());
    raw.server.close_channel(ONE, ReplyCode::NotFound, "x", MethodId::NONE);
    raw.server.channel_closed(ONE);
    assert_eq!(raw.answered(), [(1, channel::CloseOk {}.into())]);
}

/// What the broker decided for a channel's earlier life never reaches the next channel of that number.
#[test]
fn a_reopened_number_hears_nothing_from_its_earlier_life() {
    let mut raw = Raw::with_channels(1);
    raw.answers = false;
    raw.send_method(1, channel::Close::default());
    raw.server.channel_closed(ONE);
    raw.send_method(1, channel::Open {});
    raw.octets();
    let stale = DeliverRef {
        consumer_tag: &ShortStr::EMPTY,
        delivery_tag: tag(1),
        redelivered: false,
        exchange: &ShortStr::EMPTY,
        routing_key: &ShortStr::EMPTY,
        properties: &[],
        body: &Body::default(),
    };
    raw.server.send_deliver(ONE, &stale).unwrap();
    raw.server.send_ack(ONE, tag(1), true);
    raw.server.close_channel(ONE, ReplyCode::NotFound, "", MethodId::NONE);
    assert_eq!(raw.octets().len(), 0);
    raw.server.open_channel(ONE);
    assert_eq!(raw.answered(), [(1, channel::OpenOk {}.into())]);
    raw.server.send_deliver(ONE, &stale).unwrap();
    assert_eq!(raw.answered().len(), 1);
}

/// Messages of several channels may be interleaved frame by frame.
#[test]
fn channels_assemble_side_by_side() {
    let mut raw = Raw::with_channels(2);
    let publish =
        |channel| [method_frame(channel, basic::Publish::default()), header_frame(channel, 4, &[0, 0])].concat();
    raw.send(&[publish(1), publish(2), frame(3, 1, b"ab"), frame(3, 2, b"cd"), frame(3, 1, &[])].concat());
    assert_eq!((raw.events.len(), raw.server.assembling_bytes()), (0, 4));
    raw.send(&[frame(3, 2, b"ef"), frame(3, 1, b"gh")].concat());
    let bodies: Vec<(u16, Bytes)> = raw
        .events
        .iter()
        .map(|event| match event {
            Event::Publish(channel, publish) => (channel.0, publish.body.to_contiguous()),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(bodies, [(2, "cdef".into()), (1, "abgh".into())]);
    assert_eq!(raw.server.assembling_bytes(), 0);
}

/// P5: a message without a body is whole with its header.
#[test]
fn an_empty_message_is_whole_with_its_header() {
    let mut raw = Raw::with_channels(1);
    raw.send(&publish_frames(1, "e", "k", b""));
    let [Event::Publish(ONE, publish)] = &raw.events[..] else { panic!("{:?}", raw.events) };
    assert!(publish.body.is_empty());
    assert_eq!((publish.exchange.as_bytes(), publish.routing_key.as_bytes()), (&b"e"[..], &b"k"[..]));
}

/// No copy: the body is the read buffer's own memory.
#[test]
fn a_body_stays_where_it_was_read() {
    let mut raw = Raw::with_channels(1);
    let mut buffer = bytes::BytesMut::from(&publish_frames(1, "e", "k", &[5; 2000])[..]);
    let range = buffer.as_ptr_range();
    raw.server.handle_bytes(raw.now, &mut buffer);
    let Some(Event::Publish(_, publish)) = raw.server.poll_event() else { panic!("no publish") };
    assert!(publish.body.pieces().all(|piece| range.contains(&piece.as_ptr())));
    assert!(range.contains(&publish.exchange.as_bytes().as_ptr()));
}

/// What is kept for the connection's life must not keep the buffer of its first read.
#[test]
fn what_the_client_said_about_itself_is_a_copy() {
    let mut raw = Raw::new(ServerConfig::default());
    raw.send(&PROTOCOL_HEADER);
    let properties = FieldTable::new().with("product", "test");
    let mut buffer = bytes::BytesMut::from(&method_frame(0, start_ok(&properties))[..]);
    let range = buffer.as_ptr_range();
    raw.server.handle_bytes(raw.now, &mut buffer);
    assert_eq!(raw.server.client_properties(), &properties);
    let product = raw.server.client_properties().get("product").unwrap().as_bytes().unwrap();
    assert!(!range.contains(&product.as_ptr()));
}

/// P3: any octet counts, so a slow upload needs no heartbeats; 0 disables both ways.
#[test]
fn a_slow_upload_lives_and_zero_means_no_heartbeats() {
    let tune_ok = connection::TuneOk { channel_max: 1, frame_max: 131_072, heartbeat: 2 };
    let mut raw = Raw::open_with(ServerConfig::default(), &tune_ok);
    let upload = [method_frame(1, channel::Open {}), publish_frames(1, "", "q", &[0; 300])].concat();
    for octet in upload {
        raw.now += Duration::from_millis(3900);
        raw.server.handle_timeout(raw.now);
        raw.send(&[octet]);
    }
    assert!(matches!(raw.events.last(), Some(Event::Publish(..))));
    raw.octets();
    raw.now += Duration::from_secs(4);
    raw.server.handle_timeout(raw.now);
    assert!(raw.server.is_closed());

    let quiet = Raw::with_channels(1);
    assert_eq!(quiet.server.poll_timeout(), None);
}

/// Who is not listened to is not dead.
#[test]
fn a_client_that_is_not_read_lives() {
    let tune_ok = connection::TuneOk { channel_max: 1, frame_max: 4096, heartbeat: 2 };
    let mut raw = Raw::open_with(ServerConfig::default(), &tune_ok);
    for _ in 0..10 {
        raw.now += Duration::from_millis(3900);
        raw.server.handle_unread(raw.now);
        raw.server.handle_timeout(raw.now);
        raw.octets();
        assert!(raw.server.is_open());
    }
    raw.now += Duration::from_secs(4);
    raw.server.handle_timeout(raw.now);
    assert!(raw.server.is_closed());
}

/// The server's own heartbeats come often enough that a client never misses two.
#[test]
fn a_quiet_server_sends_heartbeats() {
    let tune_ok = connection::TuneOk { channel_max: 1, frame_max: 4096, heartbeat: 10 };
    let mut raw = Raw::open_with(ServerConfig::default(), &tune_ok);
    let mut silent_since = raw.now;
    for _ in 0..20 {
        raw.send(&frame(8, 0, &[]));
        raw.wait();
        let octets = raw.octets();
        if !octets.is_empty() {
            assert_eq!(octets.as_ref(), [8, 0, 0, 0, 0, 0, 0, 0xce]);
            silent_since = raw.now;
        }
        assert!(raw.now - silent_since <= Duration::from_secs(10));
    }
    assert_eq!(raw.end(), None);
}

#[test]
fn a_socket_that_ends_ends_the_connection_once() {
    let mut raw = Raw::with_channels(1);
    raw.server.handle_eof();
    raw.server.handle_eof();
    raw.send(b"late octets");
    assert_eq!((raw.end(), raw.server.is_closed()), (Some(&End::SocketEnded), true));
    raw.server.send_method(ONE, &queue::DeclareOk::default().into());
    assert_eq!(raw.octets().len(), 0);
}

#[test]
fn a_connection_closed_by_the_client_waits_for_its_state_to_be_freed() {
    let mut raw = Raw::with_channels(1);
    raw.answers = false;
    raw.send_method(0, connection::Close { reply_code: 200, ..Default::default() });
    assert_eq!(raw.end(), Some(&End::ByPeer { code: 200, text: ShortStr::EMPTY }));
    assert_eq!((raw.octets().len(), raw.server.is_closed()), (0, false));
    raw.server.connection_closed();
    assert_eq!(raw.answered(), [(0, connection::CloseOk {}.into())]);
    assert!(raw.server.is_closed());
}

#[test]
fn a_new_secret_is_the_callers_to_judge() {
    let mut raw = Raw::open();
    raw.send_method(0, connection::UpdateSecret { new_secret: "s".into(), reason: ShortStr::from_static("old") });
    assert_eq!(raw.events, [Event::UpdateSecret { secret: "s".into(), reason: ShortStr::from_static("old") }]);
    raw.server.send_method(ChannelId::CONNECTION, &connection::UpdateSecretOk {}.into());
    assert_eq!(raw.answered(), [(0, connection::UpdateSecretOk {}.into())]);
}

/// Whether a channel is in a transaction is not the grammar's to know.
#[test]
fn transactions_are_methods_like_others() {
    let mut raw = Raw::with_channels(1);
    let before = raw.events.len();
    raw.send_method(1, tx::Commit {});
    raw.send_method(1, tx::Select {});
    raw.send_method(1, tx::Rollback {});
    let names: Vec<_> = raw.events[before..]
        .iter()
        .map(|event| match event {
            Event::Method(ONE, method) => method.name(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(names, ["tx.commit", "tx.select", "tx.rollback"]);
    raw.server.send_method(ONE, &tx::CommitOk {}.into());
    assert_eq!(raw.octets().as_ref(), b"\x01\x00\x01\x00\x00\x00\x04\x00\x5a\x00\x15\xce");
    check_hard(&method_frame(0, tx::Select {}), 503, "tx.select on channel 0");
}
