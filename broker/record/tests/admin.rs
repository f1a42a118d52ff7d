//! The bytes of what administrators change, pinned as those of all records are; any such record through its bytes and back.

use bytes::{Bytes, BytesMut};
use expect_test::{Expect, expect};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use understudy_record::{
    Admin, ApplyTo, BasePiece, Binding, Body, Destination, ExchangeKind, ExchangeSpec, HashAlgorithm, Index,
    PasswordHash, Permission, PolicySpec, QueueId, QueueSpec, Record, RecordError, Replicate, ShortStr,
    TopicPermission, UserLimits, UserSpec, VhostId, VhostLimits, VhostSpec,
};

const SHOP: VhostId = VhostId(Index(7));

fn meta_of(record: &Record) -> Bytes {
    let mut meta = BytesMut::new();
    record.encode_meta(&mut meta);
    meta.freeze()
}

fn meta_of_piece(piece: &BasePiece) -> Bytes {
    let mut meta = BytesMut::new();
    piece.encode_meta(&mut meta);
    meta.freeze()
}

fn hex(bytes: &[u8]) -> String {
    let words: Vec<String> =
        bytes.chunks(16).map(|row| row.iter().map(|byte| format!("{byte:02x}")).collect()).collect();
    words.join("\n") + "\n"
}

#[track_caller]
fn check(record: &Record, expected: &Expect) {
    let meta = meta_of(record);
    expected.assert_eq(&hex(&meta));
    assert_eq!(Record::decode(meta, Body::default()).as_ref(), Ok(record));
}

#[track_caller]
fn check_piece(piece: &BasePiece, expected: &Expect) {
    let meta = meta_of_piece(piece);
    expected.assert_eq(&hex(&meta));
    assert_eq!(BasePiece::decode(meta, Body::default()).as_ref(), Ok(piece));
}

fn short(text: &'static str) -> ShortStr {
    ShortStr::from_static(text)
}

fn exchange() -> ExchangeSpec {
    ExchangeSpec {
        name: short("ex"),
        kind: ExchangeKind::Topic,
        durable: true,
        auto_delete: false,
        internal: false,
        replicate: Replicate::All,
        deduplicates: false,
        arguments: Bytes::from_static(b"\x01kt\x01"),
    }
}

fn queue() -> QueueSpec {
    QueueSpec {
        name: short("q"),
        durable: true,
        exclusive: false,
        auto_delete: false,
        replicate: Replicate::Nothing,
        deduplicates: false,
        arguments: Bytes::new(),
    }
}

fn binding() -> Binding {
    let destination = Destination::Queue(QueueId(Index(9)));
    Binding { source: short("ex"), destination, routing_key: short("k"), arguments: Bytes::new() }
}

fn shop() -> VhostSpec {
    VhostSpec { name: short("shop"), description: "A shop".into(), tags: vec![short("a"), short("b")] }
}

#[test]
fn virtual_hosts() {
    check(
        &Record::Admin(Admin::VhostCreate(shop())),
        &expect![[r#"
        280473686f7006000000412073686f70
        0200000001610162
    "#]],
    );
    check(
        &Record::Admin(Admin::VhostDelete { vhost: SHOP }),
        &expect![[r#"
        290700000000000000
    "#]],
    );
    let limits = VhostLimits { max_connections: Some(0), max_queues: None };
    check(
        &Record::Admin(Admin::VhostLimits { vhost: SHOP, limits }),
        &expect![[r#"
        31070000000000000001000000000000
        000000
    "#]],
    );
    check_piece(
        &BasePiece::Vhost { id: SHOP, spec: shop() },
        &expect![[r#"
        1407000000000000000473686f700600
        0000412073686f700200000001610162
    "#]],
    );
}

#[test]
fn what_is_in_another_virtual_host() {
    check(
        &Record::ExchangeDeclare(exchange()).within(SHOP),
        &expect![[r#"
        2a070000000000000003026578030100
        0004000000016b7401
    "#]],
    );
    check(
        &Record::ExchangeDelete { name: short("ex") }.within(SHOP),
        &expect![[r#"
        2a070000000000000004026578
    "#]],
    );
    check(
        &Record::QueueDeclare(queue()).within(SHOP),
        &expect![[r#"
        2a07000000000000001b020171010000
        00000000
    "#]],
    );
    check(
        &Record::Bind(binding()).within(SHOP),
        &expect![[r#"
        2a070000000000000007026578010900
        000000000000016b00000000
    "#]],
    );
    check(
        &Record::Unbind(binding()).within(SHOP),
        &expect![[r#"
        2a070000000000000008026578010900
        000000000000016b00000000
    "#]],
    );
    check_piece(
        &BasePiece::Exchange(exchange()).within(SHOP),
        &expect![[r#"
        15070000000000000002026578030100
        0004000000016b7401
    "#]],
    );
    check_piece(
        &BasePiece::Queue { id: QueueId(Index(9)), spec: queue() }.within(SHOP),
        &expect![[r#"
        1507000000000000000e020900000000
        000000017101000000000000
    "#]],
    );
    check_piece(
        &BasePiece::Binding(binding()).within(SHOP),
        &expect![[r#"
        15070000000000000004026578010900
        000000000000016b00000000
    "#]],
    );
}

#[test]
fn in_the_default_virtual_host_records_are_as_they_were() {
    let record = Record::QueueDeclare(queue());
    assert_eq!(record.clone().within(VhostId::DEFAULT), record);
    let piece = BasePiece::Exchange(exchange());
    assert_eq!(piece.clone().within(VhostId::DEFAULT), piece);
}

#[test]
fn nothing_else_stands_in_a_virtual_host() {
    let declare = meta_of(&Record::QueueDeclare(queue()).within(SHOP));
    let with = |at: usize, byte: u8| {
        let mut bytes = BytesMut::from(&declare[..]);
        bytes[at] = byte;
        Record::decode(bytes.freeze(), Body::default())
    };
    assert!(with(0, declare[0]).is_ok());
    assert_eq!(with(1, 0), Err(RecordError::Malformed { what: "virtual host", value: 0 }));
    for tag in [42, 6, 9, 40, 43, 255] {
        let refused = Err(RecordError::Malformed { what: "kind in a virtual host", value: tag.into() });
        assert_eq!(with(9, tag), refused, "tag {tag}");
    }
    assert_eq!(Record::decode(declare.slice(..9), Body::default()), Err(RecordError::Short { needed: 1, left: 0 }));
    let piece = meta_of_piece(&BasePiece::Binding(binding()).within(SHOP));
    let mut bytes = BytesMut::from(&piece[..]);
    bytes[9] = 21;
    let refused = Err(RecordError::Malformed { what: "kind in a virtual host", value: 21 });
    assert_eq!(BasePiece::decode(bytes.freeze(), Body::default()), refused);
}

#[test]
fn users_and_what_they_may_do() {
    let password = PasswordHash { algorithm: HashAlgorithm::RabbitSha256, text: "aGFzaA==".into() };
    let user = UserSpec { name: short("anna"), password, tags: vec![short("monitoring")] };
    check(
        &Record::Admin(Admin::UserPut(user.clone())),
        &expect![[r#"
        2b04616e6e6102080000006147467a61
        413d3d010000000a6d6f6e69746f7269
        6e67
    "#]],
    );
    check(
        &Record::Admin(Admin::UserDelete { name: short("anna") }),
        &expect![[r#"
        2c04616e6e61
    "#]],
    );
    let permission = Permission { configure: "^a".into(), write: ".*".into(), read: String::new() };
    let put = Admin::PermissionPut { user: short("anna"), vhost: SHOP, permission };
    check(
        &Record::Admin(put.clone()),
        &expect![[r#"
        2d04616e6e6107000000000000000200
        00005e61020000002e2a00000000
    "#]],
    );
    check(
        &Record::Admin(Admin::PermissionDelete { user: short("anna"), vhost: VhostId::DEFAULT }),
        &expect![[r#"
        2e04616e6e610000000000000000
    "#]],
    );
    let permission = TopicPermission { write: "^w".into(), read: "^{username}".into() };
    let exchange = short("amq.topic");
    let topic = Admin::TopicPermissionPut { user: short("anna"), vhost: SHOP, exchange: exchange.clone(), permission };
    check(
        &Record::Admin(topic),
        &expect![[r#"
        2f04616e6e6107000000000000000961
        6d712e746f706963020000005e770b00
        00005e7b757365726e616d657d
    "#]],
    );
    let topic = Admin::TopicPermissionDelete { user: short("anna"), vhost: SHOP, exchange };
    check(
        &Record::Admin(topic),
        &expect![[r#"
        3004616e6e6107000000000000000961
        6d712e746f706963
    "#]],
    );
    let limits = UserLimits { max_connections: Some(3), max_channels: Some(u64::MAX) };
    check(
        &Record::Admin(Admin::UserLimits { user: short("anna"), limits }),
        &expect![[r#"
        3204616e6e6101030000000000000001
        ffffffffffffffff
    "#]],
    );
    check_piece(
        &BasePiece::Admin(put),
        &expect![[r#"
        162d04616e6e61070000000000000002
        0000005e61020000002e2a00000000
    "#]],
    );
    assert!(!format!("{user:?}").contains("aGFzaA"), "a hash in a log of text");
}

#[test]
fn policies() {
    let policy = PolicySpec {
        name: short("limit"),
        pattern: "^tmp".into(),
        apply_to: ApplyTo::QuorumQueues,
        priority: -2,
        definition: Bytes::from_static(b"\x01kt\x01"),
    };
    let put = Admin::PolicyPut { vhost: SHOP, operator: true, policy };
    check(
        &Record::Admin(put.clone()),
        &expect![[r#"
        3c070000000000000001056c696d6974
        040000005e746d7004feffffffffffff
        ff04000000016b7401
    "#]],
    );
    check(
        &Record::Admin(Admin::PolicyDelete { vhost: VhostId::DEFAULT, operator: false, name: short("limit") }),
        &expect![[r#"
            3d000000000000000000056c696d6974
        "#]],
    );
    check_piece(
        &BasePiece::Admin(put),
        &expect![[r#"
        163c070000000000000001056c696d69
        74040000005e746d7004feffffffffff
        ffff04000000016b7401
    "#]],
    );
}

fn any_short() -> impl Strategy<Value = ShortStr> {
    vec(any::<u8>(), 0..256).prop_map(|bytes| ShortStr::new(bytes.into()).expect("at most 255 bytes"))
}

fn vhost() -> impl Strategy<Value = VhostId> {
    any::<u64>().prop_map(|index| VhostId(Index(index)))
}

fn limit() -> impl Strategy<Value = Option<u64>> {
    option::of(any::<u64>())
}

fn policy() -> impl Strategy<Value = PolicySpec> {
    let all = ["all", "queues", "classic_queues", "quorum_queues", "streams", "exchanges"];
    let apply_to = prop::sample::select(all.map(|name| ApplyTo::from_name(name).expect("one of them")).to_vec());
    (any_short(), ".{0,40}", apply_to, any::<i64>(), vec(any::<u8>(), 0..40)).prop_map(
        |(name, pattern, apply_to, priority, definition)| PolicySpec {
            name,
            pattern,
            apply_to,
            priority,
            definition: definition.into(),
        },
    )
}

fn admin() -> impl Strategy<Value = Admin> {
    let algorithms = vec![HashAlgorithm::Argon2id, HashAlgorithm::RabbitSha256, HashAlgorithm::RabbitSha512];
    let text = || ".{0,40}";
    prop_oneof![
        (any_short(), text(), vec(any_short(), 0..4))
            .prop_map(|(name, description, tags)| Admin::VhostCreate(VhostSpec { name, description, tags })),
        vhost().prop_map(|vhost| Admin::VhostDelete { vhost }),
        (any_short(), prop::sample::select(algorithms), text(), vec(any_short(), 0..4)).prop_map(
            |(name, algorithm, text, tags)| Admin::UserPut(UserSpec {
                name,
                password: PasswordHash { algorithm, text },
                tags
            })
        ),
        any_short().prop_map(|name| Admin::UserDelete { name }),
        (any_short(), vhost(), text(), text(), text()).prop_map(|(user, vhost, configure, write, read)| {
            Admin::PermissionPut { user, vhost, permission: Permission { configure, write, read } }
        }),
        (any_short(), vhost()).prop_map(|(user, vhost)| Admin::PermissionDelete { user, vhost }),
        (any_short(), vhost(), any_short(), text(), text()).prop_map(|(user, vhost, exchange, write, read)| {
            Admin::TopicPermissionPut { user, vhost, exchange, permission: TopicPermission { write, read } }
        }),
        (any_short(), vhost(), any_short()).prop_map(|(user, vhost, exchange)| Admin::TopicPermissionDelete {
            user,
            vhost,
            exchange
        }),
        (vhost(), limit(), limit()).prop_map(|(vhost, max_connections, max_queues)| Admin::VhostLimits {
            vhost,
            limits: VhostLimits { max_connections, max_queues }
        }),
        (any_short(), limit(), limit()).prop_map(|(user, max_connections, max_channels)| Admin::UserLimits {
            user,
            limits: UserLimits { max_connections, max_channels }
        }),
        (vhost(), any::<bool>(), policy()).prop_map(|(vhost, operator, policy)| Admin::PolicyPut {
            vhost,
            operator,
            policy
        }),
        (vhost(), any::<bool>(), any_short()).prop_map(|(vhost, operator, name)| Admin::PolicyDelete {
            vhost,
            operator,
            name
        }),
    ]
}

proptest! {
    #[test]
    fn each_is_read_as_it_was_written(change in admin()) {
        let record = Record::Admin(change.clone());
        prop_assert_eq!(Record::decode(meta_of(&record), Body::default()), Ok(record));
        let piece = BasePiece::Admin(change);
        prop_assert_eq!(BasePiece::decode(meta_of_piece(&piece), Body::default()), Ok(piece));
    }

    #[test]
    fn damage_is_an_error_or_another_change_and_never_a_panic(change in admin(), at in any::<usize>(), byte in any::<u8>(), cut in any::<bool>()) {
        let meta = meta_of(&Record::Admin(change));
        let at = at % meta.len();
        let mut bytes = BytesMut::from(&meta[..]);
        if cut { bytes.truncate(at) } else { bytes[at] = byte };
        if let Ok(read) = Record::decode(bytes.freeze(), Body::default()) {
            let again = meta_of(&read);
            prop_assert_eq!(Record::decode(again, Body::default()), Ok(read));
        }
    }
}
