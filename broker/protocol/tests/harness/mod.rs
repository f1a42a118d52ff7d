//! Two ways to test a server connection: [`Raw`] writes frames by hand and reads the answers, [`Pair`] lets our own client
//! talk to it. Time is virtual: it moves when a test says so.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use understudy_protocol::{
    ChannelId, ClientConfig, ClientConnection, ClientEvent, DeliveryTag, End, Event, FieldTable, Method,
    PROTOCOL_HEADER, ReplyCode, ServerConfig, ServerConnection, basic, channel, connection, sasl,
};
use understudy_record::ShortStr;

/// A frame as it is on the wire.
pub fn frame(kind: u8, channel: u16, payload: &[u8]) -> Vec<u8> {
    let size = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&[kind][..], &channel.to_be_bytes(), &size, payload, &[0xce]].concat()
}

pub fn method_frame(channel: u16, method: impl Into<Method>) -> Vec<u8> {
    let mut payload = Vec::new();
    method.into().encode(&mut payload);
    frame(1, channel, &payload)
}

pub fn header_frame(channel: u16, body_size: u64, properties: &[u8]) -> Vec<u8> {
    frame(2, channel, &[&[0, 60, 0, 0], &body_size.to_be_bytes()[..], properties].concat())
}

/// Publish method, header and one body frame.
pub fn publish_frames(channel: u16, exchange: &str, key: &str, body: &[u8]) -> Vec<u8> {
    let exchange = ShortStr::try_from(exchange).unwrap();
    let routing_key = ShortStr::try_from(key).unwrap();
    let publish = basic::Publish { exchange, routing_key, ..Default::default() };
    let mut frames = method_frame(channel, publish);
    frames.extend(header_frame(channel, body.len() as u64, &[0, 0]));
    if !body.is_empty() {
        frames.extend(frame(3, channel, body));
    }
    frames
}

/// A server connection with a hand on its socket. Answers what a broker would answer to anyone named guest.
pub struct Raw {
    pub now: Duration,
    pub server: ServerConnection,
    buffer: BytesMut,
    pub events: Vec<Event>,
    /// Whether to answer events at once.
    pub answers: bool,
}

impl Raw {
    pub fn new(config: ServerConfig) -> Self {
        let now = Duration::from_secs(1_000);
        let server = ServerConnection::new(now, config);
        Self { now, server, buffer: BytesMut::new(), events: Vec::new(), answers: true }
    }

    /// Past the handshake, with no heartbeats.
    pub fn open() -> Self {
        Self::open_with(
            ServerConfig::default(),
            &connection::TuneOk { channel_max: 2047, frame_max: 131_072, heartbeat: 0 },
        )
    }

    pub fn open_with(config: ServerConfig, tune_ok: &connection::TuneOk) -> Self {
        let mut raw = Self::new(config);
        let mut hello = PROTOCOL_HEADER.to_vec();
        hello.extend(method_frame(0, start_ok(&FieldTable::new())));
        hello.extend(method_frame(0, tune_ok.clone()));
        hello.extend(method_frame(0, connection::Open { virtual_host: ShortStr::from_static("/") }));
        raw.send(&hello);
        assert!(raw.server.is_open(), "handshake: {:?}", raw.events);
        raw.answered();
        raw.events.clear();
        raw
    }

    /// With channels 1 to `count` open.
    pub fn with_channels(count: u16) -> Self {
        let mut raw = Self::open();
        (1..=count).for_each(|channel| raw.send(&method_frame(channel, channel::Open {})));
        assert_eq!(raw.answered().len(), usize::from(count));
        raw.events.clear();
        raw
    }

    pub fn send(&mut self, octets: &[u8]) {
        self.buffer.extend_from_slice(octets);
        self.server.handle_bytes(self.now, &mut self.buffer);
        self.collect();
    }

    pub fn send_method(&mut self, channel: u16, method: impl Into<Method>) {
        self.send(&method_frame(channel, method));
    }

    /// Lets time pass to the connection's next own step.
    pub fn wait(&mut self) {
        self.now = self.server.poll_timeout().expect("a connection that waits for something");
        self.server.handle_timeout(self.now);
        self.collect();
    }

    fn collect(&mut self) {
        while let Some(event) = self.server.poll_event() {
            if self.answers {
                answer(&mut self.server, self.now, &event);
            }
            self.events.push(event);
        }
    }

    /// Everything the server wrote since the last call.
    pub fn octets(&mut self) -> Bytes {
        let output = self.server.output();
        let length = output.remaining();
        output.copy_to_bytes(length)
    }

    /// The same as methods; heartbeats are left out.
    pub fn answered(&mut self) -> Vec<(u16, Method)> {
        methods(&self.octets())
    }

    /// The connection.close or channel.close the server answered with, alone: channel, code, text, (class, method).
    pub fn refusal(&mut self) -> (u16, u16, String, (u16, u16)) {
        let answered = self.answered();
        match &answered[..] {
            [(0, Method::ConnectionClose(close))] => {
                (0, close.reply_code, close.reply_text.to_string(), (close.class_id, close.method_id))
            }
            [(channel, Method::ChannelClose(close))] => {
                (*channel, close.reply_code, close.reply_text.to_string(), (close.class_id, close.method_id))
            }
            other => panic!("expected one close, got {other:?}"),
        }
    }

    /// How it ended, if it did.
    pub fn end(&self) -> Option<&End> {
        let ends: Vec<&End> = self
            .events
            .iter()
            .filter_map(|event| if let Event::Ended(end) = event { Some(end) } else { None })
            .collect();
        assert!(ends.len() <= 1, "ended more than once: {ends:?}");
        ends.first().copied()
    }
}

pub fn start_ok(client_properties: &FieldTable) -> connection::StartOk {
    connection::StartOk {
        client_properties: client_properties.clone(),
        mechanism: ShortStr::from_static("PLAIN"),
        response: sasl::plain("guest", "guest"),
        locale: ShortStr::from_static("en_US"),
    }
}

/// The method frames in `octets`, which hold nothing else but heartbeats and content.
pub fn methods(octets: &[u8]) -> Vec<(u16, Method)> {
    let mut methods = Vec::new();
    let mut rest = octets;
    while let [kind, a, b, s0, s1, s2, s3, after @ ..] = rest {
        let size = u32::from_be_bytes([*s0, *s1, *s2, *s3]) as usize;
        if *kind == 1 {
            let payload = Bytes::copy_from_slice(&after[..size]);
            methods.push((u16::from_be_bytes([*a, *b]), Method::decode(&payload).unwrap()));
        }
        assert_eq!(after[size], 0xce);
        rest = &after[size + 1..];
    }
    methods
}

fn answer(server: &mut ServerConnection, now: Duration, event: &Event) {
    match event {
        Event::Authenticate { mechanism, response, .. } => match sasl::parse(mechanism.as_bytes(), response) {
            Ok(credentials) if credentials.user == "guest" && credentials.password == "guest" => {
                server.accept_authentication(now);
            }
            _ => server.refuse_authentication(now, "Login was refused using authentication mechanism PLAIN"),
        },
        Event::Open { virtual_host } if virtual_host.as_bytes() == b"/" => server.open_connection(now),
        Event::Open { virtual_host } => {
            let text = format!("vhost {virtual_host} not found");
            server.close_connection(now, ReplyCode::NotAllowed, &text, connection::Open::ID);
        }
        Event::ChannelOpen(channel) => server.open_channel(*channel),
        Event::ChannelClose(channel) => server.channel_closed(*channel),
        Event::Ended(End::ByPeer { .. }) => server.connection_closed(),
        _ => {}
    }
}

/// Our client against our server.
pub struct Pair {
    pub now: Duration,
    pub server: ServerConnection,
    pub client: ClientConnection,
    to_server: BytesMut,
    to_client: BytesMut,
    pub server_events: Vec<Event>,
    pub client_events: Vec<ClientEvent>,
    /// How many octets arrive at a time.
    pub step: usize,
    /// Cuts the wire from client to server.
    pub client_is_mute: bool,
}

impl Pair {
    pub fn new(server: ServerConfig, client: ClientConfig) -> Self {
        let now = Duration::from_secs(50);
        Self {
            now,
            server: ServerConnection::new(now, server),
            client: ClientConnection::new(now, client),
            to_server: BytesMut::new(),
            to_client: BytesMut::new(),
            server_events: Vec::new(),
            client_events: Vec::new(),
            step: usize::MAX,
            client_is_mute: false,
        }
    }

    /// Connected, with channel 1 open.
    pub fn connected() -> Self {
        let mut pair = Self::new(ServerConfig::default(), ClientConfig::default());
        pair.connect();
        pair
    }

    pub fn connect(&mut self) {
        self.drive();
        self.client.open_channel(ChannelId(1));
        self.drive();
        assert_eq!(self.client_events.pop(), Some(ClientEvent::ChannelOpened(ChannelId(1))));
        self.client_events.clear();
        self.server_events.clear();
    }

    /// Moves octets both ways until nothing moves.
    pub fn drive(&mut self) {
        loop {
            let step = self.step;
            let output = self.client.output();
            let count = output.remaining().min(step);
            let octets = output.copy_to_bytes(count);
            let moved_up = !octets.is_empty();
            if moved_up && !self.client_is_mute {
                self.to_server.extend_from_slice(&octets);
                self.server.handle_bytes(self.now, &mut self.to_server);
            }
            while let Some(event) = self.server.poll_event() {
                answer(&mut self.server, self.now, &event);
                self.server_events.push(event);
            }
            let output = self.server.output();
            let count = output.remaining().min(step);
            let octets = output.copy_to_bytes(count);
            if !octets.is_empty() {
                self.to_client.extend_from_slice(&octets);
                self.client.handle_bytes(self.now, &mut self.to_client);
            }
            self.client_events.extend(std::iter::from_fn(|| self.client.poll_event()));
            if !moved_up && octets.is_empty() {
                return;
            }
        }
    }

    /// Jumps to the next moment either side waits for; `false` if there is none.
    pub fn wait(&mut self) -> bool {
        let Some(next) = self.server.poll_timeout().into_iter().chain(self.client.poll_timeout()).min() else {
            return false;
        };
        assert!(next >= self.now, "time would run backwards");
        self.now = next;
        self.server.handle_timeout(next);
        self.client.handle_timeout(next);
        self.drive();
        true
    }
}

pub const fn tag(tag: u64) -> DeliveryTag {
    DeliveryTag(tag)
}
