//! What the fuzzer begins with: one of each kind, so that it need not find out the grammar by chance.

use std::io;
use std::path::Path;

use bytes::BytesMut;
use understudy_protocol::{
    BasicProperties, DeliveryTag, FieldTable, Method, basic, channel, confirm, exchange, queue, tx,
};
use understudy_record::{BasePiece, Epoch, Frame, Index, Position, ShortStr};

use crate::script::{self, BODY, HEADER, METHOD, METHODS, SPECIAL};
use crate::session;

fn short(text: &'static str) -> ShortStr {
    ShortStr::from_static(text)
}

fn payload(method: &Method) -> Vec<u8> {
    let mut octets = Vec::new();
    method.encode(&mut octets);
    octets
}

/// A step of a script.
fn step(client: u8, what: u8, channel: u8, rest: &[u8]) -> Vec<u8> {
    [&[client << 7 | what << 4 | channel][..], rest].concat()
}

fn piece(octets: &[u8]) -> Vec<u8> {
    let length = u8::try_from(octets.len()).expect("a short piece");
    [&[length][..], octets].concat()
}

fn says(client: u8, channel: u8, method: impl Into<Method>) -> Vec<u8> {
    let octets = payload(&method.into());
    let id = (u16::from_be_bytes([octets[0], octets[1]]), u16::from_be_bytes([octets[2], octets[3]]));
    let place = METHODS.iter().position(|known| *known == id).expect("a method of the list");
    let place = u8::try_from(place).expect("a short list");
    step(client, METHOD, channel, &[&[place][..], &piece(&octets[4..])].concat())
}

fn publishes(client: u8, to: (&'static str, &'static str), properties: &BasicProperties, body: &[u8]) -> Vec<u8> {
    let (exchange, routing_key) = (short(to.0), short(to.1));
    let size = u16::try_from(body.len()).expect("a short body").to_be_bytes();
    let header = [&size[..], &piece(properties.encode().as_bytes())].concat();
    let bodies = body.chunks(200).flat_map(|chunk| step(client, BODY, 1, &piece(chunk)));
    [
        says(client, 1, basic::Publish { exchange, routing_key, mandatory: true, ..Default::default() }),
        step(client, HEADER, 1, &header),
        bodies.collect(),
    ]
    .concat()
}

fn declares(client: u8, name: &'static str, arguments: FieldTable) -> Vec<u8> {
    says(client, 1, queue::Declare { queue: short(name), durable: true, arguments, ..Default::default() })
}

fn special(client: u8, what: u8) -> Vec<u8> {
    step(client, SPECIAL, 0, &[what])
}

fn scripts() -> Vec<Vec<u8>> {
    let none = BasicProperties::default();
    let headers = FieldTable::new().with("CC", FieldTable::new()).with("k", "v").with("n", 7i32);
    let rich = BasicProperties {
        headers: Some(headers.clone()),
        delivery_mode: Some(2),
        priority: Some(3),
        expiration: Some(short("1000")),
        reply_to: Some(short("amq.rabbitmq.reply-to")),
        ..Default::default()
    };
    let to_q = ("", "q");
    let consume = |client, tag, no_ack| {
        says(client, 1, basic::Consume { queue: short("q"), consumer_tag: short(tag), no_ack, ..Default::default() })
    };
    let ack = |client, tag| says(client, 1, basic::Ack { delivery_tag: DeliveryTag(tag), multiple: true });
    let arguments = FieldTable::new()
        .with("x-max-length", 2i32)
        .with("x-overflow", "reject-publish")
        .with("x-max-length-bytes", 100i32);
    let bind = |kind, key, arguments: FieldTable| {
        [
            says(0, 1, exchange::Declare { exchange: short("x"), kind: short(kind), ..Default::default() }),
            says(
                0,
                1,
                queue::Bind {
                    queue: short("q"),
                    exchange: short("x"),
                    routing_key: short(key),
                    arguments,
                    ..Default::default()
                },
            ),
            publishes(0, ("x", "a.b.c"), &rich, b"hello"),
        ]
        .concat()
    };
    let declared = declares(0, "q", FieldTable::new());
    vec![
        [declared.clone(), publishes(0, to_q, &none, b"hello"), consume(1, "c", false), ack(1, 1)].concat(),
        [
            says(0, 1, confirm::Select::default()),
            declared.clone(),
            publishes(0, to_q, &rich, &[7; 150]),
            says(0, 1, basic::Get { queue: short("q"), no_ack: false }),
            special(0, 2),
            says(0, 1, basic::Nack { delivery_tag: DeliveryTag(0), multiple: true, requeue: true }),
            special(0, 2),
            consume(0, "d", true),
            special(0, 3),
        ]
        .concat(),
        [
            declares(0, "q", arguments),
            special(0, 0),
            publishes(0, to_q, &none, &[1; 90]),
            publishes(0, to_q, &none, &[2; 90]),
            special(0, 1),
            says(1, 1, queue::Purge { queue: short("q"), ..Default::default() }),
            says(1, 1, queue::Delete { queue: short("q"), if_empty: true, ..Default::default() }),
        ]
        .concat(),
        [
            says(0, 1, tx::Select {}),
            declared.clone(),
            publishes(0, to_q, &none, b"in a transaction"),
            says(0, 1, tx::Commit {}),
            publishes(0, to_q, &none, &[3; 130]),
            says(0, 1, tx::Rollback {}),
        ]
        .concat(),
        [
            declared.clone(),
            publishes(0, to_q, &rich, b"unacknowledged"),
            consume(1, "c", false),
            says(0, 1, queue::Delete { queue: short("q"), ..Default::default() }),
            declared.clone(),
            says(1, 1, basic::Reject { delivery_tag: DeliveryTag(1), requeue: true }),
            special(1, 5),
        ]
        .concat(),
        [
            declares(0, "q", FieldTable::new().with("x-single-active-consumer", true)),
            consume(0, "c", false),
            consume(1, "d", false),
            says(0, 1, basic::Consume { queue: short("q"), exclusive: true, ..Default::default() }),
            special(1, 4),
            publishes(0, to_q, &none, &[4; 20]),
            special(1, 12),
            says(0, 1, basic::Cancel { consumer_tag: short("c"), no_wait: true }),
        ]
        .concat(),
        [
            declared.clone(),
            says(
                0,
                1,
                exchange::Declare {
                    exchange: short("x"),
                    kind: short("direct"),
                    auto_delete: true,
                    arguments: FieldTable::new().with("alternate-exchange", "amq.fanout"),
                    ..Default::default()
                },
            ),
            says(0, 1, queue::Bind { queue: short("q"), exchange: short("amq.fanout"), ..Default::default() }),
            publishes(0, ("x", "q"), &rich, &[5; 300]),
            says(0, 1, exchange::Delete { exchange: short("x"), if_unused: true, ..Default::default() }),
            says(0, 1, queue::Unbind { queue: short("q"), exchange: short("amq.fanout"), ..Default::default() }),
        ]
        .concat(),
        [
            declares(0, "d", FieldTable::new()),
            declares(
                0,
                "q",
                FieldTable::new()
                    .with("x-message-ttl", 100i32)
                    .with("x-dead-letter-exchange", "")
                    .with("x-dead-letter-routing-key", "d"),
            ),
            publishes(0, to_q, &none, b"short-lived"),
            special(0, 5),
            special(0, 13),
            says(0, 1, basic::Get { queue: short("d"), no_ack: false }),
            says(0, 1, basic::Reject { delivery_tag: DeliveryTag(1), requeue: false }),
        ]
        .concat(),
        [
            declares(0, "q", FieldTable::new().with("x-max-priority", 5i32).with("x-expires", 1000i32)),
            publishes(0, to_q, &none, b"low"),
            publishes(0, to_q, &rich, b"high"),
            special(0, 2),
            consume(1, "c", false),
            special(1, 253),
            says(1, 1, basic::Cancel { consumer_tag: short("c"), no_wait: false }),
            special(1, 253),
            special(1, 253),
        ]
        .concat(),
        [
            declares(
                0,
                "q",
                FieldTable::new()
                    .with("x-max-length", 1i32)
                    .with("x-dead-letter-exchange", "amq.fanout")
                    .with("x-overflow", "reject-publish"),
            ),
            declares(0, "d", FieldTable::new().with("x-dead-letter-exchange", "").with("x-delivery-limit", 1i32)),
            says(0, 1, queue::Bind { queue: short("d"), exchange: short("amq.fanout"), ..Default::default() }),
            publishes(0, to_q, &rich, &[6; 120]),
            publishes(0, to_q, &rich, &[7; 20]),
            says(0, 1, queue::Purge { queue: short("d"), no_wait: true }),
        ]
        .concat(),
        [declared.clone(), bind("topic", "a.*.#", FieldTable::new())].concat(),
        [declared.clone(), bind("headers", "", headers.clone().with("x-match", "any"))].concat(),
        [declared.clone(), bind("fanout", "", FieldTable::new())].concat(),
        [
            says(0, 1, basic::Consume { queue: short("amq.rabbitmq.reply-to"), no_ack: true, ..Default::default() }),
            declares(0, "q", FieldTable::new().with("x-understudy-replicate", "none")),
            publishes(0, to_q, &rich, b"request"),
            says(1, 1, basic::Qos { prefetch_count: 1, global: true, ..Default::default() }),
            consume(1, "", false),
            says(1, 1, basic::Recover { requeue: true }),
            says(1, 1, basic::Cancel { consumer_tag: short("c"), no_wait: false }),
            says(1, 1, channel::Close::default()),
            says(1, 1, channel::Open {}),
        ]
        .concat(),
        [
            says(0, 1, queue::Declare { queue: short("e"), exclusive: true, ..Default::default() }),
            says(1, 1, queue::Declare { queue: short("e"), passive: true, ..Default::default() }),
            says(
                0,
                1,
                exchange::Bind {
                    destination: short("amq.topic"),
                    source: short("amq.direct"),
                    routing_key: short("k"),
                    ..Default::default()
                },
            ),
            says(
                0,
                1,
                exchange::Unbind {
                    destination: short("amq.topic"),
                    source: short("amq.direct"),
                    routing_key: short("k"),
                    ..Default::default()
                },
            ),
            special(0, 7),
        ]
        .concat(),
    ]
}

/// What the core writes when it is told the scripts, as records and as frames.
fn records(scripts: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut seeds: Vec<Vec<u8>> = Vec::new();
    for script in scripts {
        let records = session::records_of(script);
        let (mut listed, mut framed) = (vec![0], vec![1, 0, 255]);
        let mut is_short = true;
        for (index, record) in &records {
            let mut meta = BytesMut::new();
            record.encode_meta(&mut meta);
            let body = record.body().to_contiguous();
            // The list ends before the first that does not fit it.
            is_short &= meta.len().max(body.len()) <= usize::from(u8::MAX);
            if is_short {
                listed.extend([&[0][..], &piece(&meta), &piece(&body)].concat());
            }
            let frame = Frame::record(Position::new(Epoch(1), *index), Index(0), record, &mut BytesMut::new());
            frame.pieces().for_each(|piece| framed.extend_from_slice(piece));
        }
        seeds.extend([listed, framed]);
    }
    let pieces = [
        BasePiece::Start { sync_point: Position::new(Epoch(1), Index(9)), epochs: vec![], in_sync: vec![] },
        BasePiece::TopologyEnd,
        BasePiece::End { floor: Index(9) },
    ];
    let mut seed = vec![0];
    for part in &pieces {
        let mut meta = BytesMut::new();
        part.encode_meta(&mut meta);
        seed.extend([&[1][..], &piece(&meta), &piece(&part.body().to_contiguous())].concat());
    }
    seeds.push(seed);
    // One of every tag, with nothing behind it: the fuzzer finds the rest.
    let empty = |kind: u8, tag: u8| [&[0, kind][..], &piece(&[&[tag][..], &[0; 40]].concat()), &piece(b"x")].concat();
    seeds.extend((0..64).flat_map(|tag| [empty(0, tag), empty(1, tag)]));
    seeds
}

/// One directory for each target.
///
/// # Errors
/// If it cannot be written.
pub fn write_seeds(to: &Path) -> io::Result<()> {
    let table = FieldTable::new()
        .with("a", true)
        .with("b", 1i32)
        .with("c", 2i64)
        .with("d", "text")
        .with("e", FieldTable::new().with("f", 1.5f64));
    let properties = BasicProperties {
        headers: Some(table.clone()),
        content_type: Some(short("text/plain")),
        timestamp: Some(7),
        user_id: Some(short("guest")),
        ..Default::default()
    };
    let scripts = scripts();
    let methods: Vec<_> = METHODS
        .iter()
        .map(|(class, id)| [&class.to_be_bytes()[..], &id.to_be_bytes(), &[0; 24]].concat())
        .chain([payload(&queue::Declare { queue: short("q"), arguments: table.clone(), ..Default::default() }.into())])
        .collect();
    let with = |mode: u8| scripts.iter().map(move |script| [&[mode, 255][..], script].concat());
    let raw = [&[0, 9][..], &script::handshake()].concat();
    let login = table.clone().with("LOGIN", "guest").with("PASSWORD", "guest").to_bytes().slice(4..);
    let seeds: [(&str, Vec<Vec<u8>>); 8] = [
        ("method", methods),
        ("properties", vec![properties.encode().as_bytes().to_vec()]),
        ("table", vec![table.to_bytes().to_vec()]),
        ("sasl", vec![b"\0\0guest\0guest".to_vec(), [&[0][..], &login].concat()]),
        ("connection", with(3).chain(with(11)).chain(with(19)).chain([raw]).collect()),
        ("session", scripts.clone()),
        ("record", records(&scripts)),
        ("journal", vec![b"\0\0\0\x30\x01".to_vec(), b"\x01\x01\0\x80".to_vec(), b"\x02\x02\0\x40\x07".to_vec()]),
    ];
    for (target, seeds) in seeds {
        let directory = to.join(target);
        std::fs::create_dir_all(&directory)?;
        for (number, seed) in seeds.iter().enumerate() {
            std::fs::write(directory.join(format!("seed-{number}")), seed)?;
        }
    }
    Ok(())
}
