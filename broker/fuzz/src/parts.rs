//! What is in frames, each by itself; and a connection without a broker behind it.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use understudy_protocol::{
    End, Event, FieldTable, Method, Properties, ReplyCode, ServerConfig, ServerConnection, channel, sasl,
};

use crate::input::Input;
use crate::script;

/// A method's payload. What was read and written is read as the same again.
pub fn method(octets: &[u8]) {
    let Ok(method) = Method::decode(&Bytes::copy_from_slice(octets)) else { return };
    let (mut once, mut twice) = (Vec::new(), Vec::new());
    method.encode(&mut once);
    let again = Method::decode(&Bytes::copy_from_slice(&once)).expect("what was written can be read");
    again.encode(&mut twice);
    assert_eq!(once, twice);
    assert_eq!(method.id(), again.id());
}

/// A table with its length in front.
pub fn table(octets: &[u8]) {
    let Ok(table) = FieldTable::from_bytes(&Bytes::copy_from_slice(octets)) else { return };
    let once = table.to_bytes();
    let again = FieldTable::from_bytes(&once).expect("what was written can be read");
    assert_eq!(once, again.to_bytes());
    assert_eq!(once, table.detached().to_bytes());
    assert_eq!(table.len(), again.len());
    table.iter().for_each(|(name, value)| {
        _ = (name.to_text(), value.type_name(), value.as_int(), value.as_str(), value.as_bool(), value.as_array());
    });
}

/// A content header's property flags and list.
pub fn properties(octets: &[u8]) {
    let Ok(properties) = Properties::parse(Bytes::copy_from_slice(octets)) else { return };
    let decoded = properties.decode();
    let once = decoded.encode();
    let again = Properties::parse(once.as_bytes().clone()).expect("what was written can be read");
    assert_eq!(again.decode().encode().as_bytes(), once.as_bytes());
    assert_eq!(properties.delivery_mode(), decoded.delivery_mode);
    assert_eq!(properties.priority(), again.priority());
    assert_eq!(properties.expiration(), again.expiration());
    assert_eq!(properties.headers().map(|table| table.to_bytes()), again.headers().map(|table| table.to_bytes()));
    let counted = properties.with_header("x-delivery-count", 3i64);
    let counted = Properties::parse(counted.as_bytes().clone()).expect("with a header more it can be read");
    let headers = counted.headers().expect("it has a header");
    assert_eq!(headers.get("x-delivery-count").and_then(|value| value.as_int()), Some(3));
    assert_eq!(counted.reply_to(), properties.reply_to());
}

/// A mechanism and its response.
pub fn sasl(octets: &[u8]) {
    let mut input = Input::new(octets);
    let own: &[u8] = input.piece();
    let mechanisms = [&b"PLAIN"[..], b"AMQPLAIN", b"EXTERNAL", own];
    let response = Bytes::copy_from_slice(input.rest());
    for mechanism in mechanisms {
        if let Ok(credentials) = sasl::parse(mechanism, &response) {
            assert!(credentials.user.len() + credentials.password.len() <= response.len());
        }
    }
}

/// Octets to a connection, in reads of some length, and answers of a kind to what it asks.
pub fn connection(octets: &[u8]) {
    let mut input = Input::new(octets);
    let mode = input.octet();
    let step = usize::from(input.octet()).max(1);
    let sent = if mode & 1 == 0 { input.rest().to_vec() } else { script::octets_of(input) };
    let prefix = if mode & 2 == 0 { Vec::new() } else { script::handshake() };
    let mut peer = Peer {
        server: ServerConnection::new(Duration::ZERO, ServerConfig { max_message_bytes: 5000, ..script::config() }),
        now: Duration::ZERO,
        ended: false,
        refuses: mode & 4 != 0,
        is_slow: mode & 8 != 0,
        closes: mode & 16 != 0,
        unopened: Vec::new(),
    };
    let mut buffer = BytesMut::new();
    let (mut received, mut written) = (0, 0);
    for read in prefix.chunks(prefix.len().max(1)).chain(sent.chunks(step)) {
        buffer.extend_from_slice(read);
        received += read.len();
        peer.server.handle_bytes(peer.now, &mut buffer);
        peer.answer();
        let held = peer.server.assembling_bytes() + buffer.len();
        assert!(held <= received, "{held} octets held of {received}");
        written += peer.drain();
        // A short answer to each of the shortest frames, and the handshake.
        assert!(written <= 4096 + received * 64, "{written} octets for {received}");
    }
    peer.refuses = false;
    peer.is_slow = false;
    peer.answer();
    for turn in 0.. {
        let Some(at) = peer.server.poll_timeout() else { break };
        assert!(turn < 1000, "a connection that waits without end");
        peer.now = peer.now.max(at);
        peer.server.handle_timeout(peer.now);
        peer.answer();
        peer.drain();
    }
    peer.server.handle_eof();
    peer.answer();
    assert!(peer.ended && peer.server.is_closed());
}

struct Peer {
    server: ServerConnection,
    now: Duration,
    ended: bool,
    refuses: bool,
    /// Answers to channels' opening come later.
    is_slow: bool,
    closes: bool,
    unopened: Vec<understudy_protocol::ChannelId>,
}

impl Peer {
    fn drain(&mut self) -> usize {
        let output = self.server.output();
        let length = bytes::Buf::remaining(output);
        bytes::Buf::advance(output, length);
        length
    }

    fn answer(&mut self) {
        if !self.is_slow {
            self.unopened.drain(..).for_each(|channel| self.server.open_channel(channel));
        }
        while let Some(event) = self.server.poll_event() {
            assert!(!self.ended, "after its end: {event:?}");
            match event {
                Event::Authenticate { mechanism, response, client_properties, .. } => {
                    _ = client_properties.to_bytes();
                    match sasl::parse(mechanism.as_bytes(), &response) {
                        Ok(_) if !self.refuses => self.server.accept_authentication(self.now),
                        _ => self.server.refuse_authentication(self.now, "no"),
                    }
                }
                Event::Open { .. } => self.server.open_connection(self.now),
                Event::ChannelOpen(channel) if self.is_slow => self.unopened.push(channel),
                Event::ChannelOpen(channel) => self.server.open_channel(channel),
                Event::ChannelClose(channel) => self.server.channel_closed(channel),
                Event::Method(channel, method) => {
                    if self.closes {
                        let cause = method.id();
                        self.server.close_channel(channel, ReplyCode::PreconditionFailed, "no", cause);
                    }
                }
                Event::Publish(channel, publish) => {
                    assert!(publish.body.len() <= 5000);
                    if self.refuses {
                        self.server.send_method(channel, &Method::ChannelFlow(channel::Flow { active: true }));
                    }
                }
                Event::Ended(end) => {
                    self.ended = true;
                    if let End::ByPeer { .. } = end {
                        self.server.connection_closed();
                    }
                }
                Event::PublishPart(..) | Event::ChannelFailed { .. } | Event::UpdateSecret { .. } => {}
            }
        }
    }
}
