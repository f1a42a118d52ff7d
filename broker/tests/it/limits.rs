//! Clients that take more than their share, by mistake or on purpose: what each costs is bounded, and others notice nothing.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use understudy_protocol::{
    BasicProperties, ChannelId, ClientConfig, ClientEnd, DeliveryTag, FieldTable, Method, basic, channel, connection,
    queue, sasl,
};

use crate::bad_clients::cheap_hash;
use crate::harness::raw::{Answer, BODY, HEADER, Raw, frame, handshake, header, method};
use crate::harness::{Broker, Client, PATIENCE, Single, await_true, short};

const MIB: usize = 1 << 20;

/// Resident memory of the broker's process, in bytes.
fn resident(broker: &Broker) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", broker.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}

fn with(options: &str) -> Single {
    Single::start_with(|settings| settings.extra = options.split_whitespace().map(String::from).collect())
}

/// Somebody who does ordinary work meanwhile.
struct Bystander {
    client: Client,
    messages: u32,
}

impl Bystander {
    fn start(broker: &Broker) -> Self {
        let mut client = Client::guest(broker.amqp());
        client.declare("calm").unwrap();
        client.select_confirms();
        Self { client, messages: 0 }
    }

    /// A publish that is confirmed, and its message taken back: within the harness's patience.
    #[track_caller]
    fn works(&mut self) {
        self.messages += 1;
        let text = self.messages.to_string();
        self.client.publish_confirmed("calm", text.clone()).unwrap();
        assert_eq!(self.client.get("calm", true).unwrap().body.to_contiguous(), text);
    }
}

/// As many of `octets` as the broker takes while nothing is read; it must have stopped taking them before the end.
fn send_until_it_stops(stream: &mut TcpStream, octets: &[u8], most: usize) -> usize {
    stream.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
    let mut sent = 0;
    while sent < most {
        match stream.write(&octets[sent % octets.len()..]) {
            Ok(count) => sent += count,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => return sent,
            Err(error) => panic!("after {sent} octets: {error}"),
        }
    }
    panic!("all of {sent} octets were taken")
}

fn users(broker: &mut crate::harness::Settings) {
    let file = broker.data.with_file_name("users");
    std::fs::write(&file, format!("anna:{}\nguest:{}\n", cheap_hash("secret"), cheap_hash("guest"))).unwrap();
    broker.users_file = Some(file);
}

fn login_as(user: &str, password: &str) -> Vec<u8> {
    let start_ok = connection::StartOk {
        client_properties: FieldTable::new(),
        mechanism: short("PLAIN"),
        response: sasl::plain(user, password),
        locale: short("en_US"),
    };
    [b"AMQP\0\0\x09\x01".to_vec(), method(0, start_ok)].concat()
}

#[test]
fn a_refused_login_waits_and_nobody_else_does() {
    let broker = Single::start_with(|settings| {
        users(settings);
        settings.extra = ["--login-failure-delay-ms", "10000"].map(String::from).into();
    });
    let mut wrong: Vec<_> = (0..200)
        .map(|number| {
            let mut stream = TcpStream::connect(broker.amqp()).unwrap();
            stream.write_all(&login_as("anna", &number.to_string())).unwrap();
            stream
        })
        .collect();
    broker.await_metric("refused_logins_total", 200);
    let anna = ClientConfig { user: "anna".into(), password: "secret".into(), ..Default::default() };
    let mut anna = Client::connect(broker.amqp(), anna).unwrap();
    anna.declare("q").unwrap();
    // All of them still wait: they have heard connection.start at most.
    for stream in &mut wrong {
        stream.set_nonblocking(true).unwrap();
        let mut said = Vec::new();
        let end = stream.read_to_end(&mut said).unwrap_err();
        assert_eq!(end.kind(), ErrorKind::WouldBlock);
        assert!(said.is_empty() || (said.starts_with(&[1, 0, 0]) && said.len() < 1000), "{}", said.escape_ascii());
    }
    drop(wrong);
    broker.await_metric("connections", 1);
    let log = broker.log();
    let told = log.matches("127.0.0.1").count();
    assert!((1..=12).contains(&told), "{told} lines about 200 refused logins from one address:\n{log}");
}

#[test]
fn a_refused_name_is_no_line_of_the_log() {
    let broker = Single::start_with(users);
    let name = format!("anna\n2026-11-30 WARN all is well {}", "x".repeat(5000));
    let config = ClientConfig { user: name, ..Default::default() };
    assert!(Client::connect(broker.amqp(), config).is_err());
    broker.await_log("login refused");
    let log = broker.log();
    assert!(log.contains(r"anna\n2026") && !log.lines().any(|line| line.starts_with("2026-11-30 WARN")), "{log}");
    assert!(log.lines().all(|line| line.len() < 500), "{log}");
}

#[test]
fn a_handshake_octet_by_octet_is_over_in_time() {
    let broker = with("--handshake-timeout-ms 2000");
    let mut bystander = Bystander::start(&broker);
    // Without the channel behind it, and the last octet of connection.open.
    let mut octets = handshake("/");
    octets.truncate(octets.len() - method(1, channel::Open {}).len() - 1);
    for already in [0, 3, 8, octets.len() - 5] {
        let mut stream = TcpStream::connect(broker.amqp()).unwrap();
        stream.set_nonblocking(true).unwrap();
        stream.write_all(&octets[..already]).unwrap();
        let (mut said, mut sent) = (Vec::new(), already);
        let deadline = Instant::now() + PATIENCE;
        // One octet a second would not get through within the time: so this goes on until the broker ends it.
        while Instant::now() < deadline {
            match stream.read_to_end(&mut said) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                _ => break,
            }
            std::thread::sleep(Duration::from_millis(300)); // the pace of the slow client
            if sent < octets.len() {
                _ = stream.write(&octets[sent..=sent]);
                sent += 1;
            }
            bystander.works();
        }
        assert!(Instant::now() < deadline, "it is still open after {sent} octets");
    }
    assert_eq!(broker.log().matches("did not finish the handshake in time").count(), 4);
}

#[test]
fn thousands_that_say_nothing_cost_little_and_are_let_go() {
    let broker = with("--handshake-timeout-ms 4000");
    let mut bystander = Bystander::start(&broker);
    let before = resident(&broker);
    let connect = |octets: &[u8]| {
        let mut stream = TcpStream::connect(broker.amqp()).unwrap();
        stream.write_all(octets).unwrap();
        stream
    };
    let mut streams = Vec::new();
    for _ in 0..1000 {
        streams.extend([connect(b""), connect(b"AMQP\0\0\x09\x01"), connect(&Raw::login())]);
        if streams.len() % 300 == 0 {
            bystander.works();
        }
    }
    let grown = resident(&broker).saturating_sub(before);
    assert!(grown < 3000 * 65_536, "{} bytes each", grown / 3000);
    bystander.works();
    broker.await_metric("connections", 1);
    bystander.works();
    drop(streams);
}

#[test]
fn a_login_with_a_flood_behind_it_is_bounded() {
    let broker = Single::start_with(|settings| {
        users(settings);
        settings.extra = ["--login-failure-delay-ms", "20000"].map(String::from).into();
    });
    let mut bystander = Bystander::start(&broker);
    let before = resident(&broker);
    let publish = [method(1, basic::Publish::default()), frame(HEADER, 1, &header(0))].concat().repeat(10_000);
    let flood: Vec<_> = (0..20)
        .map(|_| {
            let mut stream = TcpStream::connect(broker.amqp()).unwrap();
            stream.write_all(&login_as("anna", "wrong")).unwrap();
            send_until_it_stops(&mut stream, &publish, 64 * MIB);
            stream
        })
        .collect();
    bystander.works();
    let grown = resident(&broker).saturating_sub(before);
    assert!(grown < 20 * MIB, "{} MiB", grown / MIB);
    drop(flood);
}

#[test]
fn a_frame_before_the_login_is_small() {
    let broker = Single::start();
    let mut raw = Raw::connect(broker.amqp());
    raw.send(b"AMQP\0\0\x09\x01");
    // By its header alone: 8 KiB are the most.
    raw.send(&[1, 0, 0, 0, 0, 0x20, 1]);
    assert_eq!(raw.close(), Answer::Dropped);
    broker.await_log("8193 octets of payload");
}

#[test]
fn connections_and_channels_are_limited() {
    let broker = with("--max-connections 3 --channel-max 5");
    let mut clients: Vec<_> = (0..3).map(|_| Client::guest(broker.amqp())).collect();
    let one_more = Client::connect(broker.amqp(), ClientConfig::default()).err().unwrap();
    let ClientEnd::ByServer { code: 530, text } = &one_more else { panic!("{one_more}") };
    assert_eq!(text.to_string(), "NOT_ALLOWED - connection refused: node connection limit (3) is reached");
    clients.pop().unwrap().close();
    await_true("there is room for one again", || Client::connect(broker.amqp(), ClientConfig::default()).is_ok());
    (2..=5).for_each(|channel| clients[0].open_channel(ChannelId(channel)));
    clients[0].declare("q").unwrap();

    drop(clients);
    broker.await_metric("connections", 0);
    let mut raw = Raw::connect(broker.amqp());
    raw.send(&Raw::login());
    raw.send(&method(0, connection::TuneOk { channel_max: 5, frame_max: 4096, heartbeat: 0 }));
    raw.send(&method(0, connection::Open { virtual_host: short("/") }));
    raw.send(&method(6, channel::Open {}));
    let text = "NOT_ALLOWED - channel number 6 is above the negotiated channel_max (5)".to_owned();
    assert_eq!(raw.close(), Answer::Closed { channel: 0, code: 530, text });
}

/// A queue of large messages, and a broker that keeps few of them in memory.
fn with_backlog(options: &str, messages: usize) -> (Single, Client) {
    let broker = with(&format!("--memory-budget {} {options}", 32 * MIB));
    let mut client = Client::guest(broker.amqp());
    client.declare("backlog").unwrap();
    client.select_confirms();
    let body = bytes::Bytes::from(vec![42; MIB]);
    for _ in 0..messages / 16 {
        (0..16).for_each(|_| client.publish("backlog", body.clone()));
        client.await_confirms().unwrap();
    }
    (broker, client)
}

/// With the message above its own bound in memory, on the socket and in the core's step, and as much again for what the allocator
/// keeps: what is not bounded takes hundreds.
const UNREAD_BOUND: usize = 128 * MIB;

#[test]
fn a_consumer_that_does_not_read_is_dropped_and_its_messages_go_back() {
    let (broker, mut other) = with_backlog("--send-timeout-ms 3000", 320);
    let mut bystander = Bystander::start(&broker);
    let before = resident(&broker);
    let mut raw = Raw::connect(broker.amqp());
    raw.send(&handshake("/"));
    raw.send(&method(1, basic::Consume { queue: short("backlog"), ..Default::default() }));
    let mut most = 0;
    await_true("it is dropped", || {
        bystander.works();
        most = most.max(resident(&broker).saturating_sub(before));
        broker.metric("unread_connections_total") == Some(1)
    });
    assert!(most < UNREAD_BOUND, "{} MiB", most / MIB);
    await_true("all are there again", || other.declare("backlog").unwrap().message_count == 320);
    bystander.works();
    broker.await_log("dropped: it took nothing of what waits for it");
}

#[test]
fn asking_for_a_thousand_messages_and_reading_none_costs_a_few() {
    let (broker, mut other) = with_backlog("--send-timeout-ms 3000", 320);
    let mut bystander = Bystander::start(&broker);
    let before = resident(&broker);
    let mut raw = Raw::connect(broker.amqp());
    raw.send(&handshake("/"));
    let get = method(1, basic::Get { queue: short("backlog"), no_ack: false });
    raw.send(&get.repeat(2000));
    let mut most = 0;
    await_true("it is dropped", || {
        bystander.works();
        most = most.max(resident(&broker).saturating_sub(before));
        broker.metric("unread_connections_total") == Some(1)
    });
    assert!(most < UNREAD_BOUND + 64 * MIB, "{} MiB", most / MIB);
    await_true("all are there again", || other.declare("backlog").unwrap().message_count == 320);
    // Who reads gets them all, one after the other.
    let mut raw = Raw::connect(broker.amqp());
    raw.send(&handshake("/"));
    raw.send(&get.repeat(400));
    let answers = raw.methods_until(400, |method| matches!(method, Method::BasicGetOk(_) | Method::BasicGetEmpty(_)));
    let empty = answers.iter().filter(|answer| matches!(answer, Method::BasicGetEmpty(_))).count();
    assert_eq!(empty, 80);
}

#[test]
fn questions_whose_answers_nobody_reads_are_not_taken_for_ever() {
    let broker = with("--send-timeout-ms 3000");
    let mut bystander = Bystander::start(&broker);
    let before = resident(&broker);
    let mut stream = TcpStream::connect(broker.amqp()).unwrap();
    stream.write_all(&handshake("/")).unwrap();
    let question = method(1, queue::Declare { queue: short("calm"), passive: true, ..Default::default() });
    let octets = question.repeat(10_000);
    // Each question is answered: some 30 octets, and 128 bytes on the way.
    let sent = send_until_it_stops(&mut stream, &octets, 256 * MIB);
    bystander.works();
    let grown = resident(&broker).saturating_sub(before);
    // An answer is a few octets on the wire, and some hundreds while it waits.
    assert!(grown < UNREAD_BOUND + 64 * MIB, "{} MiB after {} questions", grown / MIB, sent / question.len());
    broker.await_metric("unread_connections_total", 1);
    bystander.works();
}

#[test]
fn messages_begun_on_every_channel_and_never_ended_cost_the_connection() {
    let broker = Single::start();
    let mut bystander = Bystander::start(&broker);
    let before = resident(&broker);
    let mut raw = Raw::connect(broker.amqp());
    raw.send(&handshake("/"));
    let part = vec![7; 100_000];
    let mut most = 0;
    for number in 2..300 {
        raw.send(&method(number, channel::Open {}));
        raw.send(&method(number, basic::Publish::default()));
        raw.send(&frame(HEADER, number, &header(1_000_000)));
        (0..9).for_each(|_| raw.send(&frame(BODY, number, &part)));
        if number % 20 == 0 {
            bystander.works();
            most = most.max(resident(&broker).saturating_sub(before));
        }
    }
    let answer = raw.close();
    let Answer::Closed { channel: 0, code: 506, text } = &answer else { panic!("{answer:?}") };
    assert!(text.starts_with("RESOURCE_ERROR - ") && text.contains("messages that are not whole"), "{text}");
    assert!(most < 128 * MIB, "{} MiB", most / MIB);
    bystander.works();
}

#[test]
fn thousands_of_channels_with_a_consumer_each_are_work_and_no_trouble() {
    let broker = Single::start();
    let mut bystander = Bystander::start(&broker);
    let before = resident(&broker);
    let mut raws = Vec::new();
    for connection in 0..4 {
        let mut raw = Raw::connect(broker.amqp());
        raw.send(&handshake("/"));
        for number in 2..=2047 {
            raw.send(&method(number, channel::Open {}));
            raw.send(&method(number, basic::Consume { queue: short("calm"), ..Default::default() }));
            raw.send(&method(number, basic::Cancel { consumer_tag: short("none"), no_wait: false }));
        }
        raw.methods_until(2046, |method| matches!(method, Method::BasicCancelOk(_)));
        bystander.client.publish_confirmed("calm", connection.to_string()).unwrap();
        raws.push(raw);
    }
    let grown = resident(&broker).saturating_sub(before);
    assert!(grown < 64 * MIB, "{} bytes a channel", grown / (4 * 2046));
    let consumers = bystander.client.declare("calm").unwrap().consumer_count;
    assert_eq!(consumers, 4 * 2046);
    drop(raws);
    await_true("all are gone", || bystander.client.declare("calm").unwrap().consumer_count == 0);
    await_true("what they had is back", || bystander.client.declare("calm").unwrap().message_count == 4);
}

#[test]
fn a_channel_holds_so_many_unacknowledged_messages_and_no_more() {
    const MOST: usize = 1 << 18;
    const MESSAGES: usize = MOST + 20_000;
    let broker = Single::start();
    let mut bystander = Bystander::start(&broker);
    let mut publisher = Client::guest(broker.amqp());
    publisher.declare("many").unwrap();
    publisher.select_confirms();
    for _ in 0..MESSAGES / 4000 {
        (0..4000).for_each(|_| publisher.publish("many", "x"));
        publisher.await_confirms().unwrap();
    }
    let sent = MESSAGES / 4000 * 4000;
    let before = resident(&broker);
    let mut raw = Raw::connect(broker.amqp());
    raw.send(&handshake("/"));
    raw.send(&method(1, basic::Consume { queue: short("many"), ..Default::default() }));
    let is_delivery = |method: &Method| matches!(method, Method::BasicDeliver(_));
    raw.methods_until(MOST, is_delivery);
    bystander.works();
    assert_eq!(publisher.declare("many").unwrap().message_count as usize, sent - MOST, "it got no more");
    let grown = resident(&broker).saturating_sub(before);
    assert!(grown < 160 * MIB, "{} bytes a message", grown / MOST);
    raw.send(&method(1, basic::Ack { delivery_tag: DeliveryTag(0), multiple: true }));
    raw.methods_until(sent - MOST, is_delivery);
}

#[test]
fn giant_headers_are_messages_or_mistakes_and_nothing_else() {
    let broker = with(&format!("--memory-budget {}", 32 * MIB));
    let mut bystander = Bystander::start(&broker);
    let before = resident(&broker);
    let mut client = Client::guest(broker.amqp());
    client.declare("headers").unwrap();
    // A header fills a frame, with an entry every ten octets or with one of all of it.
    let mut small = FieldTable::new();
    (0..9000).for_each(|number: u32| small.insert(short(&number.to_string()), number.to_string().as_str()));
    let large = FieldTable::new().with("h", "x".repeat(125_000).as_str());
    let publish = method(1, basic::Publish { routing_key: short("headers"), ..Default::default() });
    let mut raw = Raw::connect(broker.amqp());
    raw.send(&handshake("/"));
    for table in [small, large] {
        let properties = BasicProperties { headers: Some(table), delivery_mode: Some(2), ..Default::default() };
        let content = [&header(0)[..12], properties.encode().as_bytes()].concat();
        assert!((100_000..131_064).contains(&content.len()), "{}", content.len());
        for _ in 0..300 {
            raw.send(&[publish.clone(), frame(HEADER, 1, &content)].concat());
        }
        bystander.works();
    }
    await_true("all came", || client.declare("headers").unwrap().message_count == 600);
    let grown = resident(&broker).saturating_sub(before);
    assert!(grown < 160 * MIB, "{} MiB after 72 MiB of headers", grown / MIB);
    assert_eq!(client.get("headers", true).unwrap().properties.headers().unwrap().len(), 9000);

    // Deeper than tables may be, longer than they are, and a body beyond all bounds.
    let nested = (0..40).fold(FieldTable::new(), |table, _| FieldTable::new().with("t", table));
    let nested = [&header(0)[..12], &[0x20, 0], &nested.to_bytes()].concat();
    let overlong = [&header(0)[..12], &[0x20, 0, 0xff, 0xff, 0xff, 0xff], b"\x01aS\0\0\0\x01x"].concat();
    for (what, content, expected) in
        [("nested", nested, (0, 502)), ("overlong", overlong, (0, 502)), ("a body of 2^63", header(1 << 63), (1, 406))]
    {
        let mut raw = Raw::connect(broker.amqp());
        raw.send(&handshake("/"));
        raw.send(&[publish.clone(), frame(HEADER, 1, &content)].concat());
        let answer = raw.close();
        let Answer::Closed { channel, code, .. } = &answer else { panic!("{what}: {answer:?}") };
        assert_eq!((*channel, *code), expected, "{what}: {answer:?}");
        bystander.works();
    }
}
