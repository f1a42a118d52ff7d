//! Our client and our server, end to end, on a virtual wire and in virtual time.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod harness;

use std::time::Duration;

use bytes::Bytes;
use harness::{Pair, tag};
use proptest::prelude::*;
use understudy_protocol::{
    BasicProperties, ChannelId, ClientConfig, ClientEnd, ClientEvent, DeliverRef, Delivery, End, Event, FieldTable,
    GetOkRef, Method, PublishRef, ReplyCode, ReturnRef, ServerConfig, basic, confirm, connection, queue,
};
use understudy_record::{Body, ShortStr};

const ONE: ChannelId = ChannelId(1);

fn short(text: &'static str) -> ShortStr {
    ShortStr::from_static(text)
}

fn persistent() -> Bytes {
    BasicProperties { delivery_mode: Some(2), ..Default::default() }.encode().as_bytes().clone()
}

#[test]
fn the_handshake_agrees_on_the_lower_limits_and_the_clients_heartbeat() {
    let server_properties = FieldTable::new().with("cluster_name", "orders");
    let server = ServerConfig { server_properties: server_properties.clone(), ..Default::default() };
    let client = ClientConfig { frame_max: 8192, heartbeat_seconds: 7, ..Default::default() };
    let mut pair = Pair::new(server, client);
    pair.step = 1;
    pair.drive();
    assert_eq!(pair.client_events, [ClientEvent::Connected { server_properties }]);
    assert_eq!((pair.server.channel_max(), pair.server.frame_max(), pair.server.heartbeat_seconds()), (2047, 8192, 7));
    assert!(pair.server.client_capability("consumer_cancel_notify"));
    assert!(!pair.server.client_capability("flying"));
}

#[test]
fn a_message_goes_in_and_out_and_is_confirmed() {
    let mut pair = Pair::connected();
    pair.client.send_method(ONE, &confirm::Select { no_wait: false }.into());
    pair.drive();
    assert_eq!(pair.server_events, [Event::Method(ONE, confirm::Select { no_wait: false }.into())]);
    pair.server_events.clear();

    let body = Body::new(Bytes::from(vec![b'x'; 300_000]));
    let properties = persistent();
    let message =
        PublishRef { exchange: b"", routing_key: b"q", mandatory: true, properties: &properties, body: &body };
    pair.client.publish(ONE, &message).unwrap();
    pair.drive();
    let Some(Event::Publish(ONE, publish)) = pair.server_events.pop() else { panic!("{:?}", pair.server_events) };
    assert!(publish.mandatory && publish.properties.is_persistent());
    assert_eq!((publish.routing_key.as_bytes(), &publish.body), (&b"q"[..], &body));

    let delivery = DeliverRef {
        consumer_tag: &short("c"),
        delivery_tag: tag(1),
        redelivered: false,
        exchange: &publish.exchange,
        routing_key: &publish.routing_key,
        properties: publish.properties.as_bytes(),
        body: &publish.body,
    };
    pair.server.send_deliver(ONE, &delivery).unwrap();
    pair.server.send_ack(ONE, tag(1), false);
    pair.drive();
    let expected = Delivery {
        consumer_tag: short("c"),
        delivery_tag: tag(1),
        redelivered: false,
        exchange: short(""),
        routing_key: short("q"),
        properties: publish.properties.clone(),
        body,
    };
    let ack = basic::Ack { delivery_tag: tag(1), multiple: false };
    assert_eq!(pair.client_events, [ClientEvent::Delivery(ONE, expected), ClientEvent::Method(ONE, ack.into())]);

    pair.client.send_ack(ONE, tag(1), false);
    pair.drive();
    let ack = basic::Ack { delivery_tag: tag(1), multiple: false };
    assert_eq!(pair.server_events, [Event::Method(ONE, ack.into())]);
}

#[test]
fn what_comes_back_and_what_was_got_arrive_whole() {
    let mut pair = Pair::connected();
    let body = Body::new("hello".into());
    let (exchange, routing_key, properties) = (&short("amq.topic"), &short("k"), &persistent()[..]);
    let back = ReturnRef { code: ReplyCode::NoRoute, text: "NO_ROUTE", exchange, routing_key, properties, body: &body };
    pair.server.send_return(ONE, &back).unwrap();
    let got = GetOkRef {
        delivery_tag: tag(9),
        redelivered: true,
        exchange,
        routing_key,
        message_count: 3,
        properties,
        body: &Body::default(),
    };
    pair.server.send_get_ok(ONE, &got).unwrap();
    pair.server.send_nack(ONE, tag(2), true);
    pair.drive();
    let [ClientEvent::Return(ONE, returned), ClientEvent::GotMessage(ONE, got), ClientEvent::Method(ONE, nack)] =
        &pair.client_events[..]
    else {
        panic!("{:?}", pair.client_events)
    };
    assert_eq!((returned.code, &returned.text, &returned.body), (312, &short("NO_ROUTE"), &body));
    assert_eq!((got.delivery_tag, got.redelivered, got.message_count, got.body.len()), (tag(9), true, 3, 0));
    assert_eq!(*nack, Method::from(basic::Nack { delivery_tag: tag(2), multiple: true, requeue: false }));
}

#[test]
fn a_refused_publish_of_the_channel_leaves_other_channels_and_the_number_usable() {
    let mut pair = Pair::connected();
    pair.client.open_channel(ChannelId(2));
    pair.drive();
    pair.client_events.clear();
    pair.server.close_channel(ONE, ReplyCode::NotFound, "no exchange 'x' in vhost '/'", basic::Publish::ID);
    pair.server.send_ack(ONE, tag(1), false); // too late: nothing follows a channel.close
    pair.drive();
    let text = short("NOT_FOUND - no exchange 'x' in vhost '/'");
    assert_eq!(pair.client_events, [ClientEvent::ChannelClosed { channel: ONE, code: 404, text }]);
    pair.client_events.clear();
    pair.client.open_channel(ONE);
    pair.client.send_method(ChannelId(2), &queue::Purge::default().into());
    pair.drive();
    assert_eq!(pair.client_events, [ClientEvent::ChannelOpened(ONE)]);
    assert!(pair.server_events.contains(&Event::Method(ChannelId(2), queue::Purge::default().into())));
}

#[test]
fn closing_from_the_clients_side_is_answered() {
    let mut pair = Pair::connected();
    pair.client.close_channel(ONE);
    pair.drive();
    let closed = ClientEvent::ChannelClosed { channel: ONE, code: 200, text: short("") };
    assert_eq!(pair.client_events, [closed]);
    pair.client.close(pair.now, "bye");
    pair.drive();
    assert_eq!(pair.client_events.last(), Some(&ClientEvent::Ended(ClientEnd::ByUs)));
    assert_eq!(pair.server_events.last(), Some(&Event::Ended(End::ByPeer { code: 200, text: short("bye") })));
    assert!(pair.client.is_closed() && pair.server.is_closed());
    assert!(!pair.wait(), "nobody waits for anything");
}

#[test]
fn closing_from_the_servers_side_is_answered() {
    let mut pair = Pair::connected();
    pair.server.close_connection(
        pair.now,
        ReplyCode::ConnectionForced,
        "this broker is no longer the primary",
        connection::Open::ID,
    );
    pair.drive();
    let text = short("CONNECTION_FORCED - this broker is no longer the primary");
    assert_eq!(pair.client_events, [ClientEvent::Ended(ClientEnd::ByServer { code: 320, text })]);
    assert!(pair.server.is_closed());
}

/// P3: heartbeats keep an idle connection up in both directions.
#[test]
fn an_idle_connection_lives() {
    let mut pair = Pair::connected();
    let start = pair.now;
    while pair.now < start + Duration::from_secs(600) {
        assert!(pair.wait());
    }
    assert_eq!((&pair.client_events[..], &pair.server_events[..]), (&[][..], &[][..]));
}

/// H9: a peer that says nothing is given up after two intervals of the heartbeat it chose.
#[test]
fn a_silent_client_is_given_up_after_two_intervals() {
    let mut pair = Pair::connected();
    let start = pair.now;
    pair.client_is_mute = true;
    while pair.server_events.is_empty() {
        assert!(pair.wait());
    }
    assert_eq!(pair.server_events, [Event::Ended(End::HeartbeatMissed)]);
    assert_eq!(pair.now - start, Duration::from_secs(20));
    assert!(pair.server.is_closed());
}

#[test]
fn a_client_that_asked_for_blocked_is_told_once() {
    let mut pair = Pair::connected();
    pair.server.block("low on in-sync replicas");
    pair.server.block("still");
    pair.drive();
    pair.server.unblock();
    pair.server.unblock();
    pair.drive();
    let blocked = ClientEvent::Blocked { reason: short("low on in-sync replicas") };
    assert_eq!(pair.client_events, [blocked, ClientEvent::Unblocked]);

    let client = ClientConfig { client_properties: FieldTable::new(), ..Default::default() };
    let mut deaf = Pair::new(ServerConfig::default(), client);
    deaf.connect();
    deaf.server.block("x");
    deaf.drive();
    assert_eq!(deaf.client_events, []);
}

#[test]
fn wrong_passwords_are_refused() {
    let client = ClientConfig { password: "wrong".into(), ..Default::default() };
    let mut pair = Pair::new(ServerConfig::default(), client);
    pair.drive();
    assert_eq!(pair.server_events.last(), Some(&Event::Ended(End::AuthenticationRefused)));
    let text = short("ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN");
    assert_eq!(pair.client_events, [ClientEvent::Ended(ClientEnd::ByServer { code: 403, text })]);
}

proptest! {
    /// However the octets are cut on their way, the same messages arrive.
    #[test]
    fn messages_arrive_whatever_the_reads(
        step in 1usize..300, sizes in prop::collection::vec(0usize..10_000, 1..8), frame_max in 4096u32..6000,
    ) {
        let client = ClientConfig { frame_max, ..Default::default() };
        let mut pair = Pair::new(ServerConfig::default(), client);
        pair.step = step;
        pair.connect();
        let bodies: Vec<Body> = sizes.iter().enumerate().map(|(n, size)| Body::new(vec![n as u8; *size].into())).collect();
        for body in &bodies {
            let message = PublishRef { exchange: b"e", routing_key: b"k", mandatory: false, properties: &[], body };
            pair.client.publish(ONE, &message).unwrap();
        }
        pair.drive();
        let arrived: Vec<Body> = pair.server_events.drain(..).map(|event| match event {
            Event::Publish(ONE, publish) => publish.body,
            other => panic!("{other:?}"),
        }).collect();
        prop_assert_eq!(&arrived, &bodies);
        for body in &arrived {
            let (consumer_tag, exchange, routing_key) = (&short("c"), &short("e"), &short("k"));
            let message = DeliverRef { consumer_tag, delivery_tag: tag(1), redelivered: false, exchange, routing_key,
                                       properties: &[], body };
            pair.server.send_deliver(ONE, &message).unwrap();
        }
        pair.drive();
        let back: Vec<Body> = pair.client_events.drain(..).map(|event| match event {
            ClientEvent::Delivery(ONE, delivery) => delivery.body,
            other => panic!("{other:?}"),
        }).collect();
        prop_assert_eq!(back, bodies);
    }
}
