//! The bytes of every record kind, base piece and frame, pinned: a log written by one version is read by the next, and a
//! change here is a change of the format. Shown is the meta in hex, 16 bytes a row.

use bytes::{Bytes, BytesMut};
use expect_test::{Expect, expect};
use understudy_record::{
    BasePiece, Binding, Body, Destination, Epoch, ExchangeKind, ExchangeSpec, Frame, HeldKey, HeldMessage, Identity,
    Index, KeyedBy, Member, Message, MessageKey, PartRef, Position, ProcessId, QueueId, QueueSpec, Record, RecordError,
    ReplicaName, Replicate, Rope, SeenKey, Settled, ShortStr, StateDigest, StoreId, VhostId,
};

fn hex(bytes: &[u8]) -> String {
    let words: Vec<String> =
        bytes.chunks(16).map(|row| row.iter().map(|byte| format!("{byte:02x}")).collect()).collect();
    words.join("\n") + "\n"
}

#[track_caller]
fn check_record(record: &Record, expected: &Expect) {
    let mut meta = BytesMut::new();
    record.encode_meta(&mut meta);
    expected.assert_eq(&hex(&meta));
    assert_eq!(Record::decode(meta.freeze(), record.body()).as_ref(), Ok(record));
}

#[track_caller]
fn check_piece(piece: &BasePiece, expected: &Expect) {
    let mut meta = BytesMut::new();
    piece.encode_meta(&mut meta);
    expected.assert_eq(&hex(&meta));
    assert_eq!(BasePiece::decode(meta.freeze(), piece.body()).as_ref(), Ok(piece));
}

fn short(text: &'static str) -> ShortStr {
    ShortStr::from_static(text)
}

fn queue(index: u64) -> QueueId {
    QueueId(Index(index))
}

fn members() -> Vec<Member> {
    let identity = Identity { name: ReplicaName::new("b-1"), store: StoreId(0xabc), process: ProcessId(0x77) };
    vec![identity.member(false), identity.member(true)]
}

fn message() -> Message {
    Message {
        exchange: short("amq.topic"),
        routing_key: short("a.b"),
        properties: Bytes::from_static(&[0x10, 0, 2]),
        persistent: true,
        parts: None,
        body: Bytes::from_static(b"hello").into(),
    }
}

fn message_in_parts() -> Message {
    Message { parts: Some(parts().into()), ..message() }
}

fn parts() -> Vec<PartRef> {
    vec![PartRef { index: Index(39), bytes: 512 << 10 }, PartRef { index: Index(41), bytes: 4 }]
}

fn exchange(kind: ExchangeKind) -> ExchangeSpec {
    let arguments = Bytes::from_static(b"\x01kt\x01");
    ExchangeSpec {
        name: short("ex"),
        kind,
        durable: true,
        auto_delete: false,
        internal: true,
        replicate: Replicate::All,
        deduplicates: false,
        arguments,
    }
}

fn queue_spec() -> QueueSpec {
    let arguments = Bytes::from_static(b"\x01kt\x01");
    QueueSpec {
        name: short("orders"),
        durable: true,
        exclusive: false,
        auto_delete: true,
        replicate: Replicate::All,
        deduplicates: false,
        arguments,
    }
}

fn binding(destination: Destination) -> Binding {
    Binding { source: short("ex"), destination, routing_key: short("a.#"), arguments: Bytes::new() }
}

#[test]
fn epoch_start() {
    check_record(
        &Record::EpochStart {
            primary: Identity { name: ReplicaName::new("b-0"), store: StoreId(1), process: ProcessId(2) },
            in_sync: members(),
        },
        &expect![[r#"
            0103622d300100000000000000000000
            00000000000200000000000000020000
            0003622d31bc0a000000000000000000
            00000000000003622d31bc0a00000000
            00000000000000000000017700000000
            000000
        "#]],
    );
}

#[test]
fn in_sync_set() {
    check_record(
        &Record::InSyncSet { members: members() },
        &expect![[r#"
        020200000003622d31bc0a0000000000
        0000000000000000000003622d31bc0a
        00000000000000000000000000000177
        00000000000000
    "#]],
    );
}

#[test]
fn exchange_declare() {
    check_record(
        &Record::ExchangeDeclare(exchange(ExchangeKind::Direct)),
        &expect![[r#"
        030265780101000104000000016b7401
    "#]],
    );
}

#[test]
fn exchange_declare_fanout() {
    check_record(
        &Record::ExchangeDeclare(exchange(ExchangeKind::Fanout)),
        &expect![[r#"
        030265780201000104000000016b7401
    "#]],
    );
}

#[test]
fn exchange_declare_topic() {
    check_record(
        &Record::ExchangeDeclare(exchange(ExchangeKind::Topic)),
        &expect![[r#"
        030265780301000104000000016b7401
    "#]],
    );
}

#[test]
fn exchange_declare_headers() {
    check_record(
        &Record::ExchangeDeclare(exchange(ExchangeKind::Headers)),
        &expect![[r#"
        030265780401000104000000016b7401
    "#]],
    );
}

#[test]
fn exchange_delete() {
    check_record(
        &Record::ExchangeDelete { name: short("ex") },
        &expect![[r#"
        04026578
    "#]],
    );
}

#[test]
fn queue_declare() {
    check_record(
        &Record::QueueDeclare(queue_spec()),
        &expect![[r#"
        05066f72646572730100010400000001
        6b7401
    "#]],
    );
}

#[test]
fn queue_delete() {
    check_record(
        &Record::QueueDelete { queue: queue(9) },
        &expect![[r#"
        060900000000000000
    "#]],
    );
}

#[test]
fn bind() {
    check_record(
        &Record::Bind(binding(Destination::Queue(queue(9)))),
        &expect![[r#"
        0702657801090000000000000003612e
        2300000000
    "#]],
    );
}

#[test]
fn bind_to_exchange() {
    check_record(
        &Record::Bind(binding(Destination::Exchange(short("other")))),
        &expect![[r#"
        0702657802056f7468657203612e2300
        000000
    "#]],
    );
}

#[test]
fn unbind() {
    check_record(
        &Record::Unbind(binding(Destination::Queue(queue(9)))),
        &expect![[r#"
        0802657801090000000000000003612e
        2300000000
    "#]],
    );
}

#[test]
fn publish() {
    check_record(
        &Record::Publish { targets: vec![queue(5), queue(6)], message: message() },
        &expect![[r#"
        09020000000500000000000000060000
        00000000000109616d712e746f706963
        03612e6203000000100002
    "#]],
    );
}

#[test]
fn publish_in_parts() {
    check_record(
        &Record::Publish { targets: vec![queue(5), queue(6)], message: message_in_parts() },
        &expect![[r#"
            0f020000000500000000000000060000
            00000000000109616d712e746f706963
            03612e62030000001000020200000027
            8080200204
        "#]],
    );
}

#[test]
fn staged() {
    check_record(
        &Record::Staged { targets: vec![queue(5), queue(6)], message: message() },
        &expect![[r#"
            10020000000500000000000000060000
            00000000000109616d712e746f706963
            03612e6203000000100002
        "#]],
    );
}

#[test]
fn staged_in_parts() {
    check_record(
        &Record::Staged { targets: vec![queue(5)], message: message_in_parts() },
        &expect![[r#"
            11010000000500000000000000010961
            6d712e746f70696303612e6203000000
            10000202000000278080200204
        "#]],
    );
}

#[test]
fn transaction() {
    let settled = vec![
        Settled { queue: queue(5), dequeued: vec![Index(7), Index(8)], requeued: vec![] },
        Settled { queue: queue(6), dequeued: vec![], requeued: vec![Index(9)] },
    ];
    check_record(
        &Record::Transaction { staged: 2, settled },
        &expect![[r#"
            12020000000200000005000000000000
            00020000000700000000000000080000
            00000000000000000006000000000000
            00000000000100000009000000000000
            00
        "#]],
    );
}

#[test]
fn declared_as_not_all_replicated() {
    let spec = |replicate| QueueSpec { replicate, ..queue_spec() };
    check_record(
        &Record::QueueDeclare(spec(Replicate::Configuration)),
        &expect![[r#"
            1b01066f726465727301000104000000
            016b7401
        "#]],
    );
    check_record(
        &Record::ExchangeDeclare(ExchangeSpec { replicate: Replicate::Nothing, ..exchange(ExchangeKind::Fanout) }),
        &expect![[r#"
            1c020265780201000104000000016b74
            01
        "#]],
    );
    check_piece(
        &BasePiece::Queue { id: queue(9), spec: spec(Replicate::Nothing) },
        &expect![[r#"
            0e020900000000000000066f72646572
            7301000104000000016b7401
        "#]],
    );
    check_piece(
        &BasePiece::Exchange(ExchangeSpec { replicate: Replicate::Configuration, ..exchange(ExchangeKind::Topic) }),
        &expect![[r#"
            0d010265780301000104000000016b74
            01
        "#]],
    );
    for tag in [27, 28] {
        let all = Bytes::copy_from_slice(&[tag, 0]);
        let refused = Record::decode(all, Body::default());
        assert_eq!(refused, Err(RecordError::Malformed { what: "replication", value: 0 }), "all has its own tag");
    }
}

#[test]
fn base_writer() {
    check_piece(
        &BasePiece::Writer { store: StoreId(0xabc) },
        &expect![[r#"
            0fbc0a00000000000000000000000000
            00
        "#]],
    );
}

/// Each with what a follower has in its place.
#[test]
fn records_for_one_log_only() {
    let publish = |targets, message| Record::PublishHere { targets, here: vec![queue(7)], message };
    let stage = |targets, message| Record::StagedHere { targets, here: vec![queue(7)], message };
    let check = |record: Record, follower: &Record, expected: &Expect| {
        check_record(&record, expected);
        let position = Position::new(Epoch(3), Index(7));
        let frame = Frame::record(position, Index(6), &record, &mut BytesMut::new()).for_followers().unwrap();
        assert_eq!((frame.position, frame.committed), (position, Index(6)));
        assert_eq!(frame.decode_record().as_ref(), Ok(follower));
        // What it has is the same for whoever follows it.
        assert_eq!(frame.clone().for_followers(), Ok(frame));
    };
    check(
        publish(vec![], message()),
        &Record::Withheld,
        &expect![[r#"
            13000000000100000007000000000000
            000109616d712e746f70696303612e62
            03000000100002
        "#]],
    );
    check(
        publish(vec![queue(5)], message_in_parts()),
        &Record::Publish { targets: vec![queue(5)], message: message_in_parts() },
        &expect![[r#"
            14010000000500000000000000010000
            0007000000000000000109616d712e74
            6f70696303612e620300000010000202
            000000278080200204
        "#]],
    );
    let parts = parts().iter().map(|part| part.index).collect();
    check(
        publish(vec![], message_in_parts()),
        &Record::Discard { parts },
        &expect![[r#"
            14000000000100000007000000000000
            000109616d712e746f70696303612e62
            03000000100002020000002780802002
            04
        "#]],
    );
    check(
        stage(vec![queue(5)], message()),
        &Record::Staged { targets: vec![queue(5)], message: message() },
        &expect![[r#"
            15010000000500000000000000010000
            0007000000000000000109616d712e74
            6f70696303612e6203000000100002
        "#]],
    );
    let shell = Message { properties: Bytes::new(), body: Body::default(), ..message_in_parts() };
    check(
        stage(vec![], message_in_parts()),
        &Record::Staged { targets: vec![], message: shell },
        &expect![[r#"
            16000000000100000007000000000000
            000109616d712e746f70696303612e62
            03000000100002020000002780802002
            04
        "#]],
    );
    check(
        Record::DequeueHere { queue: queue(7), messages: vec![Index(9)] },
        &Record::Withheld,
        &expect![[r#"
            17070000000000000001000000090000
            0000000000
        "#]],
    );
    check(
        Record::RequeueHere { queue: queue(7), messages: vec![Index(9)] },
        &Record::Withheld,
        &expect![[r#"
            18070000000000000001000000090000
            0000000000
        "#]],
    );
    check(
        Record::PurgeHere { queue: queue(7), up_to: Index(9), except: vec![] },
        &Record::Withheld,
        &expect![[r#"
            19070000000000000009000000000000
            0000000000
        "#]],
    );
    check_record(
        &Record::Withheld,
        &expect![[r#"
            1a
        "#]],
    );
    assert_eq!(Record::Part { body: Body::default() }.for_followers(), None);
}

#[test]
fn part() {
    check_record(
        &Record::Part { body: Bytes::from_static(b"hell").into() },
        &expect![[r#"
            0d
        "#]],
    );
}

#[test]
fn discard() {
    check_record(
        &Record::Discard { parts: vec![Index(39), Index(41)] },
        &expect![[r#"
            0e020000002700000000000000290000
            0000000000
        "#]],
    );
}

#[test]
fn dequeue() {
    check_record(
        &Record::Dequeue { queue: queue(5), messages: vec![Index(7), Index(8)] },
        &expect![[r#"
        0a050000000000000002000000070000
        00000000000800000000000000
    "#]],
    );
}

#[test]
fn requeue() {
    check_record(
        &Record::Requeue { queue: queue(5), messages: vec![Index(7)] },
        &expect![[r#"
        0b050000000000000001000000070000
        0000000000
    "#]],
    );
}

#[test]
fn purge() {
    check_record(
        &Record::Purge { queue: queue(5), up_to: Index(100), except: vec![Index(7)] },
        &expect![[r#"
        0c050000000000000064000000000000
        00010000000700000000000000
    "#]],
    );
}

#[test]
fn base_start() {
    check_piece(
        &BasePiece::Start {
            sync_point: Position::new(Epoch(3), Index(100)),
            epochs: vec![Position::new(Epoch(1), Index(1)), Position::new(Epoch(3), Index(90))],
            in_sync: members(),
        },
        &expect![[r#"
            01030000000000000064000000000000
            00020000000100000000000000010000
            000000000003000000000000005a0000
            00000000000200000003622d31bc0a00
            00000000000000000000000000000362
            2d31bc0a000000000000000000000000
            0000017700000000000000
        "#]],
    );
}

#[test]
fn base_exchange() {
    check_piece(
        &BasePiece::Exchange(exchange(ExchangeKind::Topic)),
        &expect![[r#"
        020265780301000104000000016b7401
    "#]],
    );
}

#[test]
fn base_queue() {
    check_piece(
        &BasePiece::Queue { id: queue(9), spec: queue_spec() },
        &expect![[r#"
        030900000000000000066f7264657273
        01000104000000016b7401
    "#]],
    );
}

#[test]
fn base_binding() {
    check_piece(
        &BasePiece::Binding(binding(Destination::Queue(queue(9)))),
        &expect![[r#"
        0402657801090000000000000003612e
        2300000000
    "#]],
    );
}

#[test]
fn base_topology_end() {
    check_piece(
        &BasePiece::TopologyEnd,
        &expect![[r#"
        05
    "#]],
    );
}

#[test]
fn base_message() {
    check_piece(
        &BasePiece::Message { queue: queue(5), index: Index(42), delivery_count: 3, expires_ms: 0, message: message() },
        &expect![[r#"
            0605000000000000002a000000000000
            00030000000109616d712e746f706963
            03612e6203000000100002
        "#]],
    );
}

#[test]
fn base_message_in_parts() {
    check_piece(
        &BasePiece::Message {
            queue: queue(5),
            index: Index(42),
            delivery_count: 3,
            expires_ms: 0,
            message: message_in_parts(),
        },
        &expect![[r#"
            0c05000000000000002a000000000000
            00030000000109616d712e746f706963
            03612e62030000001000020200000027
            8080200204
        "#]],
    );
}

#[test]
fn base_queue_done() {
    check_piece(
        &BasePiece::QueueDone { queue: queue(5) },
        &expect![[r#"
        070500000000000000
    "#]],
    );
}

#[test]
fn base_end() {
    check_piece(
        &BasePiece::End { floor: Index(120) },
        &expect![[r#"
        087800000000000000
    "#]],
    );
}

#[test]
fn base_held() {
    let held = |index, delivery_count, bytes| HeldMessage {
        index: Index(index),
        delivery_count,
        bytes,
        ..HeldMessage::default()
    };
    check_piece(
        &BasePiece::Held { queue: queue(5), messages: vec![held(1000, 0, 1024), held(999, 2, 0), held(3, 0, 100)] },
        &expect![[r#"
            0905000000000000000300000097f8ff
            ffffffffffff01008008010200e40700
            64
        "#]],
    );
}

#[test]
fn base_held_with_more() {
    let more = HeldMessage { index: Index(1000), bytes: 1024, priority: 9, expires_ms: 300, ..HeldMessage::default() };
    let plain = HeldMessage { index: Index(3), ..HeldMessage::default() };
    check_piece(
        &BasePiece::Held { queue: queue(5), messages: vec![more, plain] },
        &expect![[r#"
        1105000000000000000200000097f8ff
        ffffffffffff0100800809ac02e50700
        000000
    "#]],
    );
}

#[test]
fn base_expiring_message() {
    let (queue, index, delivery_count, expires_ms) = (queue(5), Index(42), 3, 0x0123_4567);
    let piece = |message| BasePiece::Message { queue, index, delivery_count, expires_ms, message };
    check_piece(
        &piece(message()),
        &expect![[r#"
        1205000000000000002a000000000000
        00030000006745230100000000010961
        6d712e746f70696303612e6203000000
        100002
    "#]],
    );
    check_piece(
        &piece(message_in_parts()),
        &expect![[r#"
        1305000000000000002a000000000000
        00030000006745230100000000010961
        6d712e746f70696303612e6203000000
        10000202000000278080200204
    "#]],
    );
}

#[test]
fn time() {
    check_record(
        &Record::Time { wall_ms: 0x0123_4567 },
        &expect![[r#"
        1e6745230100000000
    "#]],
    );
    check_piece(
        &BasePiece::Time { wall_ms: 0x0123_4567 },
        &expect![[r#"
        106745230100000000
    "#]],
    );
}

#[test]
fn base_part() {
    check_piece(
        &BasePiece::Part { index: Index(41), body: Bytes::from_static(b"hell").into() },
        &expect![[r#"
            0a2900000000000000
        "#]],
    );
}

#[test]
fn base_parts() {
    check_piece(
        &BasePiece::Parts { message: Index(42), parts: parts() },
        &expect![[r#"
            0b2a0000000000000002000000278080
            200204
        "#]],
    );
}

#[test]
fn a_frame_is_header_meta_and_body() {
    let record = Record::Publish { targets: vec![queue(5)], message: message() };
    let position = Position::new(Epoch(3), Index(0x1234));
    let frame = Frame::record(position, Index(0x1230), &record, &mut BytesMut::new());
    let bytes: Vec<u8> = frame.pieces().flatten().copied().collect();
    expect![[r#"
        cbc4abd8010000002300000005000000
        03000000000000003412000000000000
        30120000000000000901000000050000
        00000000000109616d712e746f706963
        03612e620300000010000268656c6c6f
    "#]]
    .assert_eq(&hex(&bytes));
    assert_eq!(bytes.len(), frame.len());
    let mut stream = Rope::default();
    stream.push(bytes.into());
    assert_eq!(Frame::take(&mut stream), Ok(Some(frame)));

    let piece = BasePiece::QueueDone { queue: queue(5) };
    let frame = Frame::base(position, Index(0x1230), &piece, &mut BytesMut::new());
    let bytes: Vec<u8> = frame.pieces().flatten().copied().collect();
    expect![[r#"
        20d6f700020000000900000000000000
        03000000000000003412000000000000
        30120000000000000705000000000000
        00
    "#]]
    .assert_eq(&hex(&bytes));
}

#[test]
fn a_frame_knows_its_message() {
    let position = Position::new(Epoch(3), Index(7));
    let publish = Record::Publish { targets: vec![queue(5)], message: message() };
    let frame = Frame::record(position, Index(0), &publish, &mut BytesMut::new());
    assert_eq!(frame.message_index(), Some(Index(7)));
    assert_eq!(frame.detached_message(), Ok(Some(message())));
    assert_eq!(frame.detached(), frame);
    let targets = || vec![queue(5)];
    for record in [
        Record::Staged { targets: targets(), message: message() },
        Record::PublishHere { targets: vec![], here: targets(), message: message() },
        Record::PublishHere { targets: vec![], here: targets(), message: message_in_parts() },
        Record::StagedHere { targets: vec![], here: targets(), message: message() },
    ] {
        let frame = Frame::record(position, Index(0), &record, &mut BytesMut::new());
        assert_eq!(frame.message_index(), Some(Index(7)));
        assert_eq!(frame.detached_message().unwrap().unwrap().body, message().body);
    }
    let piece =
        BasePiece::Message { queue: queue(5), index: Index(42), delivery_count: 3, expires_ms: 0, message: message() };
    let frame = Frame::base(position, Index(0), &piece, &mut BytesMut::new());
    assert_eq!(frame.message_index(), Some(Index(42)));
    assert_eq!(frame.detached_message(), Ok(Some(message())));
    let piece = BasePiece::QueueDone { queue: queue(5) };
    let frame = Frame::base(position, Index(0), &piece, &mut BytesMut::new());
    assert_eq!((frame.message_index(), frame.detached_message()), (None, Ok(None)));
}

#[test]
fn a_frame_knows_its_part_and_a_large_message_its_length() {
    let position = Position::new(Epoch(3), Index(7));
    let body = Body::new(Bytes::from_static(b"hell"));
    let part = Record::Part { body: body.clone() };
    let piece = BasePiece::Part { index: Index(41), body: body.clone() };
    for (frame, index) in [
        (Frame::record(position, Index(0), &part, &mut BytesMut::new()), 7),
        (Frame::base(position, Index(0), &piece, &mut BytesMut::new()), 41),
    ] {
        assert_eq!((frame.message_index(), frame.part()), (Some(Index(index)), Some(&body)));
        assert_eq!(frame.detached_message(), Ok(None));
    }
    let message = message_in_parts();
    assert_eq!(message.body_bytes(), (512 << 10) + 4 + 5);
    let publish = Record::Publish { targets: vec![queue(5)], message: message.clone() };
    let staged = Record::Staged { targets: vec![queue(5)], message: message.clone() };
    let piece = BasePiece::Message {
        queue: queue(5),
        index: Index(42),
        delivery_count: 3,
        expires_ms: 0,
        message: message.clone(),
    };
    for (frame, index) in [
        (Frame::record(position, Index(0), &staged, &mut BytesMut::new()), 7),
        (Frame::record(position, Index(0), &publish, &mut BytesMut::new()), 7),
        (Frame::base(position, Index(0), &piece, &mut BytesMut::new()), 42),
    ] {
        assert_eq!((frame.message_index(), frame.part()), (Some(Index(index)), None));
        assert_eq!(frame.detached_message(), Ok(Some(message.clone())));
    }
}

#[test]
fn a_body_stays_beside_the_meta() {
    let record = Record::Publish { targets: vec![queue(5)], message: message() };
    assert_eq!(record.body(), Body::new(Bytes::from_static(b"hello")));
    assert!(Record::QueueDelete { queue: queue(1) }.body().is_empty());
}

#[test]
fn scrub() {
    let topology = StateDigest::Topology { exchanges: 6, queues: 2, digest: 0xfeed };
    let (from, to) = (Index(0x10), Index(u64::MAX));
    let slice = StateDigest::Queue { queue: queue(5), from, to, messages: 3, digest: 0xbeef };
    check_record(
        &Record::Scrub { digests: vec![topology, slice] },
        &expect![[r#"
            1d020000000106000000000000000200
            000000000000edfe0000000000000205
            000000000000001000000000000000ff
            ffffffffffffff0300000000000000ef
            be000000000000
        "#]],
    );
}

fn key() -> MessageKey {
    MessageKey(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff_u128.to_be_bytes())
}

#[test]
fn what_drops_duplicates() {
    let queue_spec = |replicate| QueueSpec { deduplicates: true, replicate, ..queue_spec() };
    check_record(
        &Record::QueueDeclare(queue_spec(Replicate::All)),
        &expect![[r#"
        4600066f726465727301000104000000
        016b7401
    "#]],
    );
    check_record(
        &Record::QueueDeclare(queue_spec(Replicate::Nothing)),
        &expect![[r#"
        4602066f726465727301000104000000
        016b7401
    "#]],
    );
    check_piece(
        &BasePiece::Queue { id: queue(5), spec: queue_spec(Replicate::All) },
        &expect![[r#"
        18000500000000000000066f72646572
        7301000104000000016b7401
    "#]],
    );
    let exchange = ExchangeSpec { deduplicates: true, ..exchange(ExchangeKind::MessageDeduplication) };
    check_record(
        &Record::ExchangeDeclare(exchange.clone()),
        &expect![[r#"
        47000265780501000104000000016b74
        01
    "#]],
    );
    check_record(
        &Record::ExchangeDeclare(exchange.clone()).within(VhostId(Index(7))),
        &expect![[r#"
        2a070000000000000047000265780501
        000104000000016b7401
    "#]],
    );
    check_piece(
        &BasePiece::Exchange(exchange),
        &expect![[r#"
        17000265780501000104000000016b74
        01
    "#]],
    );
}

#[test]
fn keys_of_messages() {
    let seen = |expires_ms| SeenKey { vhost: VhostId(Index(7)), exchange: short("ex"), key: key(), expires_ms };
    check_record(
        &Record::Seen { keys: vec![seen(0), seen(300)], alone: false },
        &expect![[r#"
        48000200000007000000000000000265
        78ffeeddccbbaa998877665544332211
        00000700000000000000026578ffeedd
        ccbbaa99887766554433221100ac02
    "#]],
    );
    check_record(
        &Record::Seen { keys: vec![seen(0)], alone: true },
        &expect![[r#"
        48010100000007000000000000000265
        78ffeeddccbbaa998877665544332211
        0000
    "#]],
    );
    let keys = vec![HeldKey { place: 300, key: key(), expires_ms: 0 }];
    check_piece(
        &BasePiece::Keys { of: KeyedBy::Queue(queue(5)), keys: keys.clone() },
        &expect![[r#"
        1901050000000000000001000000ac02
        ffeeddccbbaa99887766554433221100
        00
    "#]],
    );
    let of_exchange = BasePiece::Keys { of: KeyedBy::Exchange(short("ex")), keys };
    check_piece(
        &of_exchange,
        &expect![[r#"
        190202657801000000ac02ffeeddccbb
        aa9988776655443322110000
    "#]],
    );
    check_piece(
        &of_exchange.within(VhostId(Index(7))),
        &expect![[r#"
        15070000000000000019020265780100
        0000ac02ffeeddccbbaa998877665544
        3322110000
    "#]],
    );
}
