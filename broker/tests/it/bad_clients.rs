//! Clients that break the rules: each mistake gets its code and its text, and costs nobody else anything.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use argon2::password_hash::{PasswordHasher, SaltString};
use argon2::{Algorithm, Argon2, Params, Version};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use understudy_protocol::{ChannelId, ClientConfig, ClientEnd, FieldTable, basic, connection, exchange, queue};

use crate::harness::raw::{Answer, BODY, HEADER, HEARTBEAT, METHOD, Raw, frame, handshake, header, method};
use crate::harness::{CHANNEL, Client, PATIENCE, Single, await_true, short};

/// One client's mistake, after a handshake and with channel 1 open, as octets; and how the broker must answer.
struct Mistake {
    what: &'static str,
    octets: Vec<u8>,
    code: u16,
    text: &'static str,
}

fn mistake(what: &'static str, octets: impl Into<Vec<u8>>, code: u16, text: &'static str) -> Mistake {
    Mistake { what, octets: octets.into(), code, text }
}

fn mistakes() -> Vec<Mistake> {
    let publish = method(1, basic::Publish { routing_key: short("q"), ..Default::default() });
    let mut bad_end = frame(HEARTBEAT, 0, &[]);
    *bad_end.last_mut().unwrap() = 0xcf;
    let mut short_declare = Vec::new();
    understudy_protocol::Method::from(queue::Declare::default()).encode(&mut short_declare);
    short_declare.truncate(6);
    vec![
        mistake("a frame type that is none", frame(4, 1, b"x"), 501, "FRAME_ERROR - frame type 4 does not exist"),
        mistake("a bad end octet", bad_end, 501, "FRAME_ERROR - a frame on channel 0 ends with 0xcf instead of 0xce"),
        mistake(
            "a frame beyond frame_max, by its header alone",
            [BODY, 0, 1, 0, 3, 0, 0],
            501,
            "FRAME_ERROR - a frame with 196608 octets of payload on channel 1, 131072 are negotiated",
        ),
        mistake("a method cut short", frame(METHOD, 1, &short_declare), 502, "SYNTAX_ERROR - "),
        mistake("an unknown method", frame(METHOD, 1, &[0, 50, 0, 99]), 503, "COMMAND_INVALID - "),
        mistake(
            "a method of the server's",
            method(1, queue::DeclareOk::default()),
            503,
            "COMMAND_INVALID - queue.declare-ok",
        ),
        mistake(
            "a queue's method on channel 0",
            method(0, queue::Declare::default()),
            503,
            "COMMAND_INVALID - queue.declare on channel 0",
        ),
        mistake(
            "a channel that is not open",
            method(7, queue::Declare::default()),
            504,
            "CHANNEL_ERROR - expected 'channel.open'",
        ),
        mistake(
            "a channel opened twice",
            method(1, understudy_protocol::channel::Open::default()),
            504,
            "CHANNEL_ERROR - second 'channel.open' seen",
        ),
        mistake(
            "a channel above channel_max",
            method(3000, understudy_protocol::channel::Open::default()),
            530,
            "NOT_ALLOWED - channel number 3000 is above the negotiated channel_max (2047)",
        ),
        mistake("a body without a publish", frame(BODY, 1, b"x"), 505, "UNEXPECTED_FRAME - "),
        mistake(
            "a method where a header belongs",
            [publish.clone(), method(1, queue::Declare::default())].concat(),
            505,
            "UNEXPECTED_FRAME - ",
        ),
        mistake(
            "a body longer than its header says",
            [publish, frame(HEADER, 1, &header(1)), frame(BODY, 1, b"xy")].concat(),
            505,
            "UNEXPECTED_FRAME - more content body than its header announced",
        ),
        mistake("a heartbeat on a channel", frame(HEARTBEAT, 1, &[]), 505, "UNEXPECTED_FRAME - heartbeat on channel 1"),
        mistake(
            "an exchange type that is none",
            method(1, exchange::Declare { exchange: short("x"), kind: short("maze"), ..Default::default() }),
            503,
            "COMMAND_INVALID - unknown exchange type 'maze'",
        ),
        mistake(
            "prefetch in octets",
            method(1, basic::Qos { prefetch_size: 1, ..Default::default() }),
            540,
            "NOT_IMPLEMENTED - ",
        ),
    ]
}

#[test]
fn each_mistake_closes_the_connection_with_its_code_and_hurts_nobody_else() {
    let broker = Single::start();
    let mut other = Client::guest(broker.amqp());
    other.declare("calm").unwrap();
    other.select_confirms();
    for Mistake { what, octets, code, text } in mistakes() {
        let mut raw = Raw::connect(broker.amqp());
        raw.send(&handshake("/"));
        raw.send(&octets);
        let answer = raw.close();
        let Answer::Closed { channel: 0, code: got, text: said } = &answer else { panic!("{what}: {answer:?}") };
        assert!(*got == code && said.starts_with(text), "{what}: {got} {said:?}, expected {code} {text:?}");
        other.publish_confirmed("calm", what).unwrap();
    }
}

#[test]
fn a_stranger_gets_the_protocol_header_and_no_more() {
    let broker = Single::start();
    for hello in
        [&b"GET / HTTP/1.1\r\n\r\n"[..], b"AMQP\0\0\x08\0", b"AMQP\x01\x01\0\x0a", &[0xff; 300], b"\x16\x03\x01"]
    {
        let mut raw = Raw::connect(broker.amqp());
        raw.send(hello);
        assert_eq!(raw.rest(), b"AMQP\0\0\x09\x01", "after {hello:?}");
    }
    // The right header and then nonsense: not a word (who has not logged in is told nothing), and the socket is dropped.
    let mut raw = Raw::connect(broker.amqp());
    raw.send(b"AMQP\0\0\x09\x01");
    raw.send(&[0xff; 64]);
    assert_eq!(raw.close(), Answer::Dropped);
}

#[test]
fn what_crosses_a_close_is_read_until_the_client_hangs_up() {
    let broker = Single::start();
    cross_a_close(broker.amqp());
}

/// To close the socket while the client still sends would reset it, and take the close-ok from a client that reads it later.
pub(crate) fn cross_a_close(address: SocketAddr) {
    let mut raw = Raw::connect(address);
    raw.send(&handshake("/"));
    raw.send(&method(0, connection::Close { reply_code: 200, ..Default::default() }));
    assert!(raw.rest().ends_with(&method(0, connection::CloseOk {})));
    let publish = method(1, basic::Publish { routing_key: short("q"), ..Default::default() });
    for _ in 0..40 {
        std::thread::sleep(Duration::from_millis(5)); // the pace of a client at work, not a wait for something
        raw.send_to_listener(&[publish.clone(), frame(HEADER, 1, &header(0))].concat());
    }
    raw.hang_up();
}

/// Whoever logged in with a password has none that expires: the answer is that all is well, as RabbitMQ's.
#[test]
fn a_new_secret_is_taken_note_of() {
    let broker = Single::start();
    let mut raw = Raw::connect(broker.amqp());
    raw.send(&handshake("/"));
    raw.send(&method(0, connection::UpdateSecret { new_secret: "new".into(), reason: short("expiry") }));
    raw.await_octets(&method(0, connection::UpdateSecretOk {}));
    raw.send(&method(0, connection::Close { reply_code: 200, ..Default::default() }));
    raw.await_octets(&method(0, connection::CloseOk {}));
}

#[test]
fn soft_mistakes_cost_the_channel_only() {
    let broker = Single::start();
    let mut client = Client::guest(broker.amqp());
    let mut refused = |method: understudy_protocol::Method| {
        let refused = client.call(method).expect_err("it is refused");
        client.open_channel(CHANNEL);
        (refused.code(), refused.text())
    };
    let passive = queue::Declare { queue: short("nowhere"), passive: true, ..Default::default() };
    assert_eq!(refused(passive.into()), (404, "NOT_FOUND - no queue 'nowhere' in vhost '/'".into()));
    let reserved = queue::Declare { queue: short("amq.mine"), ..Default::default() };
    assert_eq!(refused(reserved.into()).0, 403);
    let durable = |durable| queue::Declare { queue: short("q"), durable, ..Default::default() };
    client.call(durable(true)).unwrap();
    let inequivalent = client.call(durable(false)).unwrap_err();
    assert_eq!(inequivalent.code(), 406);
    assert!(inequivalent.text().contains("inequivalent arg 'durable' for queue 'q' in vhost '/'"), "{inequivalent:?}");

    client.open_channel(CHANNEL);
    client.open_channel(ChannelId(2));
    client.publish_to("nowhere", "k", "x");
    let refused = client.await_channel_closed();
    assert_eq!((refused.code(), refused.text()), (404, "NOT_FOUND - no exchange 'nowhere' in vhost '/'".into()));
    // The other channel of the same connection lives.
    client.call_on(ChannelId(2), durable(true)).unwrap();
    client.open_channel(CHANNEL);
    client.ack(understudy_protocol::DeliveryTag(9), false);
    let refused = client.await_channel_closed();
    assert_eq!((refused.code(), refused.text()), (406, "PRECONDITION_FAILED - unknown delivery tag 9".into()));
}

#[test]
fn a_message_above_the_limit_is_refused_and_one_at_the_limit_is_not() {
    let broker =
        Single::start_with(|settings| settings.extra = ["--max-message-size", "1000"].map(String::from).into());
    let mut client = Client::guest(broker.amqp());
    client.declare("q").unwrap();
    client.select_confirms();
    client.publish_confirmed("q", vec![7; 1000]).unwrap();
    client.publish("q", vec![7; 1001]);
    let refused = client.await_channel_closed();
    let text = "PRECONDITION_FAILED - message size 1001 is larger than configured max size 1000";
    assert_eq!((refused.code(), refused.text().as_str()), (406, text));
    client.open_channel(CHANNEL);
    assert_eq!(client.declare("q").unwrap().message_count, 1);
}

#[test]
fn half_a_message_is_no_message() {
    let broker = Single::start();
    let mut client = Client::guest(broker.amqp());
    client.declare("q").unwrap();
    let publish = method(1, basic::Publish { routing_key: short("q"), ..Default::default() });
    let whole =
        [publish, frame(HEADER, 1, &header(1000)), frame(BODY, 1, &[7; 600]), frame(BODY, 1, &[7; 400])].concat();
    for sent in [whole.len() - 1, whole.len() - 450, 60, 40, 20] {
        let mut raw = Raw::connect(broker.amqp());
        raw.send(&handshake("/"));
        raw.send(&whole[..sent]);
        raw.hang_up();
    }
    broker.await_metric("connections", 1);
    assert_eq!(client.declare("q").unwrap().message_count, 0);
}

#[test]
fn a_wrong_vhost_and_an_impossible_tune_are_refused() {
    let broker = Single::start();
    let config = ClientConfig { virtual_host: "nowhere".into(), ..Default::default() };
    let Err(ClientEnd::ByServer { code, text }) = Client::connect(broker.amqp(), config) else { panic!("it opened") };
    assert_eq!((code, text.to_string().as_str()), (530, "NOT_ALLOWED - vhost nowhere not found"));
    for (tune, words) in [
        (connection::TuneOk { channel_max: 2047, frame_max: 100, heartbeat: 0 }, "frame_max = 100 is lower than"),
        (
            connection::TuneOk { channel_max: 2047, frame_max: 1 << 20, heartbeat: 0 },
            "frame_max = 1048576 is higher than",
        ),
        (connection::TuneOk { channel_max: 0, frame_max: 131_072, heartbeat: 0 }, "channel_max = 0 is higher than"),
    ] {
        let mut raw = Raw::connect(broker.amqp());
        raw.send(&Raw::login());
        raw.send(&method(0, tune));
        let answer = raw.close();
        let Answer::Closed { code: 530, text, .. } = &answer else { panic!("{words}: {answer:?}") };
        assert!(text.contains(words), "{text}");
    }
}

/// As cheap as argon2 can be: the broker takes its parameters from the hash.
pub(crate) fn cheap_hash(password: &str) -> String {
    let argon2 = Argon2::new(Algorithm::Argon2id, Version::V0x13, Params::new(8, 1, 1, None).unwrap());
    let salt = SaltString::from_b64("c29tZXNhbHRzb21l").unwrap();
    argon2.hash_password(password.as_bytes(), &salt).unwrap().to_string()
}

#[test]
fn wrong_credentials_are_told_so_only_if_the_client_expects_it() {
    let broker = Single::start_with(|settings| {
        let file = settings.data.with_file_name("users");
        std::fs::write(&file, format!("anna:{}\n", cheap_hash("secret"))).unwrap();
        settings.users_file = Some(file);
    });
    let as_user = |user: &str, password: &str| ClientConfig {
        user: user.into(),
        password: password.into(),
        ..Default::default()
    };
    let mut anna = Client::connect(broker.amqp(), as_user("anna", "secret")).unwrap();
    for (user, password) in [("anna", "wrong"), ("anna", ""), ("nobody", "secret"), ("guest", "guest")] {
        let Err(end) = Client::connect(broker.amqp(), as_user(user, password)) else { panic!("{user} logged in") };
        let ClientEnd::ByServer { code, text } = end else { panic!("{user}: {end}") };
        let words = "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN";
        assert!(code == 403 && text.to_string().starts_with(words), "{code} {text}");
    }
    // A client that does not know `authentication_failure_close` sees its socket dropped.
    let plain = ClientConfig { client_properties: FieldTable::new(), ..as_user("anna", "wrong") };
    assert_eq!(Client::connect(broker.amqp(), plain).err(), Some(ClientEnd::SocketEnded));
    assert_eq!(broker.metric("refused_logins_total"), Some(5));
    anna.declare("q").unwrap();
    let log = broker.log();
    assert!(log.contains("login refused") && !log.contains("secret"), "the log names no password:\n{log}");
}

/// A whole, correct conversation: what the mutations start from.
fn session() -> Vec<u8> {
    let publish = || method(1, basic::Publish { routing_key: short("mutant"), ..Default::default() });
    [
        handshake("/"),
        method(1, queue::Declare { queue: short("mutant"), durable: true, ..Default::default() }),
        method(1, understudy_protocol::confirm::Select::default()),
        [publish(), frame(HEADER, 1, &header(5)), frame(BODY, 1, b"hello")].concat(),
        [publish(), frame(HEADER, 1, &header(0))].concat(),
        method(1, basic::Qos { prefetch_count: 10, ..Default::default() }),
        method(1, basic::Consume { queue: short("mutant"), ..Default::default() }),
        method(1, basic::Ack { delivery_tag: understudy_protocol::DeliveryTag(1), multiple: true }),
        method(1, exchange::Declare { exchange: short("mx"), kind: short("topic"), ..Default::default() }),
        method(
            1,
            queue::Bind {
                queue: short("mutant"),
                exchange: short("mx"),
                routing_key: short("a.#"),
                ..Default::default()
            },
        ),
        frame(HEARTBEAT, 0, &[]),
        method(1, understudy_protocol::channel::Close::default()),
        method(0, connection::Close { reply_code: 200, ..Default::default() }),
    ]
    .concat()
}

fn mutate(random: &mut StdRng, octets: &mut Vec<u8>) {
    // Mutations of the handshake end most sessions there; the octets behind it are worth more.
    let handshake_len = handshake("/").len();
    let from = if random.random_bool(0.2) { 0 } else { handshake_len };
    for _ in 0..random.random_range(1..=4) {
        let at = random.random_range(from..octets.len());
        match random.random_range(0..5) {
            0 => octets[at] ^= 1 << random.random_range(0..8),
            1 => octets[at] = random.random(),
            2 => octets.insert(at, random.random()),
            3 => _ = octets.remove(at),
            _ => {
                let end = random.random_range(at..octets.len().min(at + 40));
                let piece = octets[at..end].to_vec();
                let to = random.random_range(from..octets.len());
                octets.splice(to..to, piece);
            }
        }
    }
    if random.random_bool(0.2) {
        octets.truncate(random.random_range(from..octets.len()));
    }
}

#[test]
fn a_thousand_mutated_sessions_leave_the_broker_as_it_was() {
    const SESSIONS: u64 = 1000;
    const SEED: u64 = 0x5eed;
    let mut broker = Single::start();
    let mut other = Client::guest(broker.amqp());
    other.declare("calm").unwrap();
    other.select_confirms();
    let (session, to) = (session(), broker.amqp());
    std::thread::scope(|scope| {
        for worker in 0..4 {
            let session = &session;
            scope.spawn(move || {
                for seed in (0..SESSIONS).filter(|seed| seed % 4 == worker) {
                    let mut random = StdRng::seed_from_u64(SEED + seed);
                    let mut octets = session.clone();
                    mutate(&mut random, &mut octets);
                    let mut raw = Raw::connect(to);
                    raw.send(&octets);
                    raw.hang_up();
                    let start = Instant::now();
                    raw.rest();
                    assert!(start.elapsed() < PATIENCE, "seed {:#x}: the broker does not let go", SEED + seed);
                }
            });
        }
        (0..50).for_each(|number: u32| other.publish_confirmed("calm", number.to_string()).unwrap());
    });
    await_true("only the good client is left", || broker.metric("connections") == Some(1));
    assert_eq!(other.declare("calm").unwrap().message_count, 50);
    assert!(!broker.has_ended());
    // And nothing that got into the log harms a restart.
    broker.restart();
    broker.await_ready();
    assert_eq!(Client::guest(broker.amqp()).declare("calm").unwrap().message_count, 50);
}
