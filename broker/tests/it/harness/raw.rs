//! A socket to a broker without a protocol machine: for octets that no client library would send.

use std::net::{SocketAddr, TcpStream};

use understudy_protocol::{FieldTable, Method, channel, connection, sasl};

use super::{PATIENCE, Stream, short};

pub(crate) const METHOD: u8 = 1;
pub(crate) const HEADER: u8 = 2;
pub(crate) const BODY: u8 = 3;
pub(crate) const HEARTBEAT: u8 = 8;

const END_OCTET: u8 = 0xce;

/// How a broker let go of a client.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Closed {
        channel: u16,
        code: u16,
        text: String,
    },
    /// The socket, without a word.
    Dropped,
}

pub(crate) struct Raw {
    stream: Box<dyn Stream>,
}

impl Raw {
    pub(crate) fn connect(to: SocketAddr) -> Self {
        Self::over(TcpStream::connect(to).unwrap())
    }

    pub(crate) fn over(stream: impl Stream + 'static) -> Self {
        stream.socket().set_read_timeout(Some(PATIENCE)).unwrap();
        stream.socket().set_write_timeout(Some(PATIENCE)).unwrap();
        stream.socket().set_nodelay(true).unwrap();
        Self { stream: Box::new(stream) }
    }

    /// The protocol header and guest's start-ok.
    pub(crate) fn login() -> Vec<u8> {
        let start_ok = connection::StartOk {
            client_properties: FieldTable::new(),
            mechanism: short("PLAIN"),
            response: sasl::plain("guest", "guest"),
            locale: short("en_US"),
        };
        [b"AMQP\0\0\x09\x01".to_vec(), method(0, start_ok)].concat()
    }

    pub(crate) fn send(&mut self, octets: &[u8]) {
        // A broker that has closed the socket already is what some tests are about.
        _ = self.stream.write_all(octets);
    }

    /// The same, where the broker must still listen.
    pub(crate) fn send_to_listener(&mut self, octets: &[u8]) {
        self.stream.write_all(octets).expect("the broker listens");
    }

    /// Nothing more will be sent.
    pub(crate) fn hang_up(&mut self) {
        self.stream.hang_up();
    }

    /// Reads up to these octets.
    pub(crate) fn await_octets(&mut self, octets: &[u8]) {
        let mut read = Vec::new();
        while !read.ends_with(octets) {
            let mut octet = [0];
            self.stream.read_exact(&mut octet).expect("the broker says so");
            read.push(octet[0]);
        }
    }

    /// The broker's first word, right at the beginning.
    pub(crate) fn start(&mut self) -> connection::Start {
        match self.next_method() {
            Some((0, Method::ConnectionStart(start))) => start,
            other => panic!("no connection.start, but {other:?}"),
        }
    }

    /// All octets until the broker closes the socket.
    pub(crate) fn rest(&mut self) -> Vec<u8> {
        let mut octets = Vec::new();
        _ = self.stream.read_to_end(&mut octets); // a reset is an end too
        octets
    }

    /// Reads on to the broker's close of a channel or of the connection.
    pub(crate) fn close(&mut self) -> Answer {
        loop {
            match self.next_method() {
                None => return Answer::Dropped,
                Some((channel, Method::ConnectionClose(close))) => {
                    return Answer::Closed { channel, code: close.reply_code, text: close.reply_text.to_string() };
                }
                Some((channel, Method::ChannelClose(close))) => {
                    return Answer::Closed { channel, code: close.reply_code, text: close.reply_text.to_string() };
                }
                Some(_) => {}
            }
        }
    }

    /// Reads on until so many methods of the kind have come; returns those.
    pub(crate) fn methods_until(&mut self, count: usize, is_wanted: impl Fn(&Method) -> bool) -> Vec<Method> {
        let mut found = Vec::new();
        while found.len() < count {
            match self.next_method() {
                Some((_, method)) if is_wanted(&method) => found.push(method),
                Some((_, Method::ConnectionClose(close))) => panic!("closed: {close:?}"),
                Some(_) => {}
                None => panic!("dropped after {} of {count}", found.len()),
            }
        }
        found
    }

    /// `None` once the socket has ended.
    fn next_method(&mut self) -> Option<(u16, Method)> {
        loop {
            let mut head = [0; 7];
            self.stream.read_exact(&mut head).ok()?;
            let [kind, high, low, a, b, c, d] = head;
            let mut payload = vec![0; u32::from_be_bytes([a, b, c, d]) as usize + 1];
            self.stream.read_exact(&mut payload).expect("a whole frame");
            assert_eq!(payload.pop(), Some(END_OCTET), "the broker's own frames are well formed");
            if kind == METHOD {
                let method = Method::decode(&payload.into()).expect("the broker's own methods are well formed");
                return Some((u16::from_be_bytes([high, low]), method));
            }
        }
    }
}

pub(crate) fn frame(kind: u8, channel: u16, payload: &[u8]) -> Vec<u8> {
    let size = u32::try_from(payload.len()).unwrap();
    [&[kind][..], &channel.to_be_bytes(), &size.to_be_bytes(), payload, &[END_OCTET]].concat()
}

pub(crate) fn method(channel: u16, method: impl Into<Method>) -> Vec<u8> {
    let mut payload = Vec::new();
    method.into().encode(&mut payload);
    frame(METHOD, channel, &payload)
}

/// A content header's payload: class basic, no properties.
pub(crate) fn header(body_size: u64) -> Vec<u8> {
    [&[0, 60, 0, 0][..], &body_size.to_be_bytes(), &[0, 0]].concat()
}

/// Everything up to an open channel 1, sent without waiting for an answer.
pub(crate) fn handshake(virtual_host: &str) -> Vec<u8> {
    [
        Raw::login(),
        method(0, connection::TuneOk { channel_max: 2047, frame_max: 131_072, heartbeat: 0 }),
        method(0, connection::Open { virtual_host: short(virtual_host) }),
        method(1, channel::Open::default()),
    ]
    .concat()
}
