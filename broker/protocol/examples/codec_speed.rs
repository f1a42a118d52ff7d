//! How long the codec takes for a message, in nanoseconds: `cargo run --release -p understudy-protocol --example
//! codec_speed`. No sockets: the octets are in memory already.

use std::hint::black_box;
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes, BytesMut};
use understudy_protocol::{
    BasicProperties, ChannelId, ClientConfig, ClientConnection, ClientEvent, DeliverRef, DeliveryTag, Event, Output,
    PublishRef, ServerConfig, ServerConnection,
};
use understudy_record::{Body, ShortStr};

const MESSAGES: usize = 200;
const ROUNDS: usize = 5_000;
const CHANNEL: ChannelId = ChannelId(1);

fn main() {
    for size in [0, 16, 1024, 16 * 1024] {
        measure(size);
    }
}

fn measure(size: usize) {
    let now = Duration::ZERO;
    let (mut server, mut client) = connect();
    let properties = BasicProperties { delivery_mode: Some(2), ..Default::default() }.encode();
    let body = Body::new(Bytes::from(vec![b'x'; size]));
    let message = PublishRef {
        exchange: b"",
        routing_key: b"orders.new",
        mandatory: false,
        properties: properties.as_bytes(),
        body: &body,
    };
    (0..MESSAGES).for_each(|_| client.publish(CHANNEL, &message).expect("properties fit"));
    let octets = take(client.output());
    let delivery = DeliverRef {
        consumer_tag: &ShortStr::from_static("ctag1.1"),
        delivery_tag: DeliveryTag(1),
        redelivered: false,
        exchange: &ShortStr::EMPTY,
        routing_key: &ShortStr::from_static("orders.new"),
        properties: properties.as_bytes(),
        body: &body,
    };

    let mut reading = Duration::ZERO;
    let mut persistent = 0;
    for _ in 0..ROUNDS {
        let mut buffer = BytesMut::from(&octets[..]);
        let start = Instant::now();
        server.handle_bytes(now, &mut buffer);
        while let Some(event) = server.poll_event() {
            if let Event::Publish(_, publish) = event {
                persistent += usize::from(black_box(publish).properties.is_persistent());
            }
        }
        reading += start.elapsed();
    }
    assert_eq!(persistent, MESSAGES * ROUNDS);

    let start = Instant::now();
    for _ in 0..ROUNDS {
        for _ in 0..MESSAGES {
            server.send_deliver(CHANNEL, black_box(&delivery)).expect("properties fit");
        }
        let output = server.output();
        output.advance(output.remaining());
    }
    let delivering = start.elapsed();

    let start = Instant::now();
    for _ in 0..ROUNDS {
        for tag in 0..MESSAGES {
            server.send_ack(CHANNEL, DeliveryTag(black_box(tag as u64)), false);
        }
        let output = server.output();
        output.advance(output.remaining());
    }
    let acking = start.elapsed();

    let per_message = |spent: Duration| spent.as_nanos() as f64 / (MESSAGES * ROUNDS) as f64;
    println!(
        "{size:>6} octets: publish read in {:.0} ns, deliver written in {:.0} ns, confirm written in {:.0} ns",
        per_message(reading),
        per_message(delivering),
        per_message(acking)
    );
}

fn take(output: &mut Output) -> Bytes {
    let length = output.remaining();
    output.copy_to_bytes(length)
}

fn connect() -> (ServerConnection, ClientConnection) {
    let now = Duration::ZERO;
    let mut server = ServerConnection::new(now, ServerConfig::default());
    let mut client = ClientConnection::new(now, ClientConfig { heartbeat_seconds: 0, ..Default::default() });
    loop {
        server.handle_bytes(now, &mut BytesMut::from(take(client.output())));
        while let Some(event) = server.poll_event() {
            match event {
                Event::Authenticate { .. } => server.accept_authentication(now),
                Event::Open { .. } => server.open_connection(now),
                Event::ChannelOpen(channel) => server.open_channel(channel),
                _ => {}
            }
        }
        client.handle_bytes(now, &mut BytesMut::from(take(server.output())));
        while let Some(event) = client.poll_event() {
            match event {
                ClientEvent::Connected { .. } => client.open_channel(CHANNEL),
                ClientEvent::ChannelOpened(_) => return (server, client),
                _ => {}
            }
        }
    }
}
