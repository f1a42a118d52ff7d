//! The broker's side of one connection: octets in, [`Event`]s out; commands in, octets out. It checks everything that can be
//! checked without knowing what a queue is: framing, the order of frames, the life of channels, heartbeats, limits. It does
//! not know users, virtual hosts, exchanges or queues; those questions are events, answered by commands.
//!
//! Methods come in four kinds, used in this order:
//!
//! 1. `handle_*` when something happened: [`ServerConnection::handle_bytes`] after each read, `handle_timeout` when
//!    [`ServerConnection::poll_timeout`] has come, `handle_eof`;
//! 2. `poll_event` until there is none;
//! 3. commands: answers to events, and what the broker sends by itself. On a channel or connection that is not open they do
//!    nothing, so what was decided before a close may arrive after it;
//! 4. [`ServerConnection::output`] to be written out, then the socket dropped if [`ServerConnection::is_closed`].

mod channels;
mod commands;
mod handshake;

use std::collections::VecDeque;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use understudy_record::{Body, ShortStr};

use crate::content::Publish;
use crate::frame::{self, FrameKind};
use crate::heartbeat::{Heartbeat, HeartbeatAction};
use crate::ids::{ChannelId, MethodId};
use crate::method::{self, Method, connection};
use crate::output::Output;
use crate::reply::ReplyCode;
use crate::table::FieldTable;
use crate::wire::Reader;

use channels::Channel;

/// How long the answer to our `connection.close` may take before the socket is dropped all the same.
const CLOSE_OK_TIMEOUT: Duration = Duration::from_secs(10);
/// The same when framing is lost, so that no answer can be read: time for the close frame to arrive.
const FRAMING_LOST_GRACE: Duration = Duration::from_secs(1);
/// A refused login is dropped only after a moment: a slow guesser is a smaller problem.
const REFUSAL_DELAY: Duration = Duration::from_secs(1);
/// Largest frame payload before one is negotiated: 4096 by the specification; twice that, as RabbitMQ allows, for long
/// tokens in place of passwords.
const HANDSHAKE_FRAME_MAX: usize = 8192;
/// What an impatient client may send ahead while the caller decides on its login or virtual host.
const MAX_STASHED_BYTES: usize = 1 << 20;
/// Room for events that a connection keeps between reads: some 40 KiB, so that thousands of connections that were busy once
/// cost little.
const KEEP_EVENTS: usize = 256;

/// What a server offers and insists on.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    pub server_properties: FieldTable,
    pub mechanisms: Vec<&'static str>,
    /// Highest channel number; 0: no limit.
    pub channel_max: u16,
    /// In octets; 0: no limit.
    pub frame_max: u32,
    /// What we suggest; the client decides.
    pub heartbeat_seconds: u16,
    pub max_message_bytes: u64,
    /// Bodies above this size come in parts, so that a long one is nowhere held as a whole.
    pub whole_body_bytes: u64,
    /// Of each part but the last, which is what is left.
    pub part_bytes: usize,
    /// From the connection's start to `connection.open`.
    pub handshake_timeout: Duration,
}

impl Default for ServerConfig {
    /// RabbitMQ's defaults, except for `server_properties`, which are empty.
    fn default() -> Self {
        Self {
            server_properties: FieldTable::new(),
            mechanisms: vec!["PLAIN", "AMQPLAIN"],
            channel_max: 2047,
            frame_max: 131_072,
            heartbeat_seconds: 60,
            max_message_bytes: 128 << 20,
            whole_body_bytes: 1 << 20,
            part_bytes: 512 << 10,
            handshake_timeout: Duration::from_secs(10),
        }
    }
}

/// What the peer did, in the order it did it.
#[derive(Debug, PartialEq)]
pub enum Event {
    /// Answer [`ServerConnection::accept_authentication`] or [`ServerConnection::refuse_authentication`]; `sasl` reads the
    /// response.
    Authenticate {
        mechanism: ShortStr,
        response: Bytes,
        client_properties: FieldTable,
        locale: ShortStr,
    },
    /// Answer [`ServerConnection::open_connection`] or [`ServerConnection::close_connection`].
    Open {
        virtual_host: ShortStr,
    },
    /// Answer [`ServerConnection::open_channel`], exactly once for each, even if the channel is closed meanwhile.
    ChannelOpen(ChannelId),
    /// Of the classes exchange, queue, basic (never publish), confirm, tx.
    Method(ChannelId, Method),
    /// The next part of a long body, as soon as it has come. They precede the [`Event::Publish`] that has the last, on the
    /// same channel; if the channel or the connection closes before that they come to nothing.
    PublishPart(ChannelId, Body),
    Publish(ChannelId, Publish),
    /// The peer closes the channel: answer [`ServerConnection::channel_closed`].
    ChannelClose(ChannelId),
    /// The channel was closed here, for a mistake that only this crate sees. Nothing to answer.
    ChannelFailed {
        channel: ChannelId,
        code: ReplyCode,
        text: String,
    },
    /// Answer with `connection.update-secret-ok` on channel 0, or close the connection.
    UpdateSecret {
        secret: Bytes,
        reason: ShortStr,
    },
    /// The last event, exactly once: the connection's state can be freed. If it ended [`End::ByPeer`], answer
    /// [`ServerConnection::connection_closed`] then.
    Ended(End),
}

/// Why a connection ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum End {
    #[error("closed by the client: {code} {text}")]
    ByPeer { code: u16, text: ShortStr },
    #[error("closed by the broker: {} {} - {text}", code.number(), code.name())]
    ByServer { code: ReplyCode, text: String },
    #[error("the client speaks another protocol or version")]
    ProtocolHeader,
    #[error("authentication refused")]
    AuthenticationRefused,
    #[error("the client did not finish the handshake in time")]
    HandshakeTimeout,
    #[error("two heartbeat intervals without an octet from the client")]
    HeartbeatMissed,
    #[error("the client closed the socket without closing the connection")]
    SocketEnded,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Waits for the protocol header.
    Header,
    /// Waits for start-ok.
    Start,
    /// Waits for the caller's word on the login.
    Authenticating,
    /// Waits for tune-ok.
    Tune,
    /// Waits for `connection.open`.
    AwaitingOpen,
    /// Waits for the caller's word on the virtual host.
    Opening,
    Open,
    /// The peer sent `connection.close`: waits for the caller to have freed its state.
    PeerClosing,
    /// We sent `connection.close`.
    Closing {
        deadline: Duration,
        framing_lost: bool,
    },
    /// Nothing more is said; the socket is dropped at the deadline.
    Dropping {
        deadline: Duration,
    },
    Closed,
}

/// See the module's documentation.
#[derive(Debug)]
pub struct ServerConnection {
    config: ServerConfig,
    phase: Phase,
    handshake_deadline: Duration,
    /// By channel number; grown to the highest number seen, which the negotiated `channel_max` bounds.
    channels: Vec<Channel>,
    events: VecDeque<Event>,
    ended: bool,
    output: Output,
    heartbeat: Heartbeat,
    heartbeat_seconds: u16,
    channel_max: u16,
    frame_max: u32,
    client_properties: FieldTable,
    /// What came in while waiting for the caller's word.
    stash: BytesMut,
    blocked: bool,
}

/// A mistake that costs the connection.
#[derive(Debug)]
struct Fault {
    code: ReplyCode,
    text: String,
    cause: MethodId,
}

impl Fault {
    fn new(code: ReplyCode, cause: MethodId, text: impl Into<String>) -> Self {
        Self { code, text: text.into(), cause }
    }
}

impl ServerConnection {
    pub fn new(now: Duration, config: ServerConfig) -> Self {
        Self {
            handshake_deadline: now + config.handshake_timeout,
            channel_max: config.channel_max,
            frame_max: frame::FRAME_MIN_SIZE,
            config,
            phase: Phase::Header,
            channels: Vec::new(),
            events: VecDeque::new(),
            ended: false,
            output: Output::default(),
            heartbeat: Heartbeat::default(),
            heartbeat_seconds: 0,
            client_properties: FieldTable::new(),
            stash: BytesMut::new(),
            blocked: false,
        }
    }

    /// What the client said about itself in start-ok.
    pub fn client_properties(&self) -> &FieldTable {
        &self.client_properties
    }

    /// Whether the client declared a capability, like `consumer_cancel_notify`.
    pub fn client_capability(&self, name: &str) -> bool {
        let capabilities = self.client_properties.get("capabilities").and_then(|value| value.as_table());
        capabilities.and_then(|table| table.get(name)?.as_bool()).unwrap_or(false)
    }

    /// Highest channel number agreed on; 0: no limit.
    pub fn channel_max(&self) -> u16 {
        self.channel_max
    }

    /// Largest frame agreed on, in octets; 0: no limit.
    pub fn frame_max(&self) -> u32 {
        self.frame_max
    }

    pub fn heartbeat_seconds(&self) -> u16 {
        self.heartbeat_seconds
    }

    /// Octets of messages that are not whole yet: memory that belongs to no queue so far.
    pub fn assembling_bytes(&self) -> usize {
        self.channels.iter().map(Channel::held_bytes).sum()
    }

    /// Whether some message's body has begun to come and is not whole: memory, or parts that the caller has been given.
    pub fn is_amid_publish(&self) -> bool {
        self.channels.iter().any(Channel::is_amid_body)
    }

    /// Whether the socket is to be dropped once [`Self::output`] is written out.
    pub fn is_closed(&self) -> bool {
        self.phase == Phase::Closed
    }

    pub fn is_open(&self) -> bool {
        self.phase == Phase::Open
    }

    /// Takes all whole frames from `buffer` and leaves what follows. Call after each read, with the same buffer.
    pub fn handle_bytes(&mut self, now: Duration, buffer: &mut BytesMut) {
        if buffer.is_empty() {
            return;
        }
        self.heartbeat.handle_received(now);
        if !self.stash.is_empty() {
            self.stash.extend_from_slice(buffer);
            std::mem::swap(&mut self.stash, buffer);
            self.stash.clear();
        }
        self.consume(now, buffer);
    }

    /// The caller has not read the socket up to now, by its own choice: the peer's silence meant nothing.
    pub fn handle_unread(&mut self, now: Duration) {
        self.heartbeat.handle_received(now);
    }

    /// How many octets `buffer`, as `handle_bytes` left it, lacks to hold a whole frame: reserve at least as many before
    /// the next read.
    pub fn wanted_bytes(&self, buffer: &BytesMut) -> usize {
        frame::missing(buffer, self.max_payload())
    }

    /// The socket ended, or failed.
    pub fn handle_eof(&mut self) {
        self.finish(End::SocketEnded);
    }

    pub fn handle_timeout(&mut self, now: Duration) {
        match self.phase {
            Phase::Closing { deadline, .. } | Phase::Dropping { deadline } if now >= deadline => {
                self.phase = Phase::Closed
            }
            Phase::Header
            | Phase::Start
            | Phase::Authenticating
            | Phase::Tune
            | Phase::AwaitingOpen
            | Phase::Opening
                if now >= self.handshake_deadline =>
            {
                self.finish(End::HandshakeTimeout);
            }
            _ => {}
        }
        match self.heartbeat.handle_timeout(now, self.output.total(), !self.output.is_empty()) {
            HeartbeatAction::None => {}
            HeartbeatAction::Send => {
                self.output.push_heartbeat();
                self.heartbeat.sent(self.output.total());
            }
            HeartbeatAction::PeerIsGone => self.finish(End::HeartbeatMissed),
        }
    }

    /// When to call [`Self::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<Duration> {
        let phase = match self.phase {
            Phase::Closing { deadline, .. } | Phase::Dropping { deadline } => Some(deadline),
            Phase::Open | Phase::PeerClosing => None,
            Phase::Closed => return None,
            _ => Some(self.handshake_deadline),
        };
        phase.into_iter().chain(self.heartbeat.poll_timeout()).min()
    }

    pub fn poll_event(&mut self) -> Option<Event> {
        let event = self.events.pop_front();
        if event.is_none() {
            self.events.shrink_to(KEEP_EVENTS);
        }
        event
    }

    /// What is to be written to the socket.
    pub fn output(&mut self) -> &mut Output {
        &mut self.output
    }

    fn consume(&mut self, now: Duration, buffer: &mut BytesMut) {
        loop {
            let result = match self.phase {
                Phase::Closed
                | Phase::Dropping { .. }
                | Phase::PeerClosing
                | Phase::Closing { framing_lost: true, .. } => {
                    buffer.clear();
                    return;
                }
                Phase::Authenticating | Phase::Opening => return self.stash(now, buffer),
                Phase::Header => match self.take_protocol_header(buffer) {
                    true => continue,
                    false => return,
                },
                // The limits change from one frame to the next.
                Phase::Start | Phase::Tune | Phase::AwaitingOpen => self.consume_frames(now, buffer, 1),
                Phase::Open | Phase::Closing { .. } => self.consume_frames(now, buffer, usize::MAX),
            };
            match result {
                Ok(0) => return,
                Ok(_) => {}
                Err((fault, framing_lost)) => self.fail(now, fault, framing_lost),
            }
        }
    }

    /// Keeps what an impatient client sent, until the caller has decided.
    fn stash(&mut self, now: Duration, buffer: &mut BytesMut) {
        if self.stash.len() + buffer.len() > MAX_STASHED_BYTES {
            let text = format!("more than {MAX_STASHED_BYTES} octets sent ahead of the handshake");
            self.fail(now, Fault::new(ReplyCode::UnexpectedFrame, MethodId::NONE, text), true);
            buffer.clear();
        } else {
            self.stash.unsplit(buffer.split());
        }
    }

    /// Goes on after the caller's word.
    fn resume(&mut self, now: Duration) {
        let mut buffer = std::mem::take(&mut self.stash);
        if !buffer.is_empty() {
            self.consume(now, &mut buffer);
            self.stash.unsplit(buffer);
        }
    }

    /// Takes up to `frames` frames and says how many octets they were. An error says whether framing is lost with it.
    fn consume_frames(&mut self, now: Duration, buffer: &mut BytesMut, frames: usize) -> Result<usize, (Fault, bool)> {
        let scan = frame::scan(buffer, self.max_payload(), frames);
        if scan.whole > 0 {
            let bytes = buffer.split_to(scan.whole).freeze();
            let mut at = 0;
            while let Some(frame) = frame::frame_at(&bytes, at) {
                at = frame.end + 1;
                let result = match (self.phase, frame.kind) {
                    (Phase::Open, FrameKind::Method | FrameKind::Header | FrameKind::Body) if frame.channel.0 > 0 => {
                        self.handle_channel_frame(&bytes, frame, &mut at)
                    }
                    (Phase::Closed | Phase::Dropping { .. } | Phase::PeerClosing, _) => Ok(()),
                    (Phase::Closing { .. }, _) => {
                        self.handle_frame_while_closing(&bytes, frame);
                        Ok(())
                    }
                    _ => self.handle_connection_frame(now, &bytes, frame),
                };
                if let Err(fault) = result {
                    self.fail(now, fault, false);
                }
            }
        }
        match scan.error {
            None => Ok(scan.whole),
            Some(error) => Err((Fault::new(ReplyCode::FrameError, MethodId::NONE, error.to_string()), true)),
        }
    }

    /// After our `connection.close` nothing counts but its answer, and a close of the client's own that crossed it.
    fn handle_frame_while_closing(&mut self, bytes: &Bytes, frame: frame::Frame) {
        if frame.kind != FrameKind::Method || frame.channel != ChannelId::CONNECTION {
            return;
        }
        match method::read_id(&mut Reader::part(bytes, frame.start, frame.end)) {
            Ok(connection::CloseOk::ID) => self.phase = Phase::Closed,
            Ok(connection::Close::ID) => self.output.push_method(frame.channel, &connection::CloseOk {}.into()),
            _ => {}
        }
    }

    /// Closes the connection for a mistake, in the way that fits how far it has come.
    fn fail(&mut self, now: Duration, fault: Fault, framing_lost: bool) {
        match self.phase {
            // A stranger gets no answer.
            Phase::Header | Phase::Start | Phase::Authenticating => {
                self.drop_at(now + REFUSAL_DELAY, End::ByServer { code: fault.code, text: fault.text });
            }
            Phase::Tune | Phase::AwaitingOpen | Phase::Opening | Phase::Open => {
                self.start_closing(now, fault.code, &fault.text, fault.cause, framing_lost);
            }
            Phase::Closing { deadline, .. } if framing_lost => {
                self.phase = Phase::Closing { deadline: deadline.min(now + FRAMING_LOST_GRACE), framing_lost };
            }
            Phase::PeerClosing | Phase::Closing { .. } | Phase::Dropping { .. } | Phase::Closed => {}
        }
    }

    fn start_closing(&mut self, now: Duration, code: ReplyCode, text: &str, cause: MethodId, framing_lost: bool) {
        let close = connection::Close {
            reply_code: code.number(),
            reply_text: code.text(text),
            class_id: cause.class,
            method_id: cause.method,
        };
        self.output.push_method(ChannelId::CONNECTION, &close.into());
        let patience = if framing_lost { FRAMING_LOST_GRACE } else { CLOSE_OK_TIMEOUT };
        self.phase = Phase::Closing { deadline: now + patience, framing_lost };
        self.end(End::ByServer { code, text: text.to_owned() });
    }

    fn drop_at(&mut self, deadline: Duration, end: End) {
        self.phase = Phase::Dropping { deadline };
        self.end(end);
    }

    fn finish(&mut self, end: End) {
        self.phase = Phase::Closed;
        self.end(end);
    }

    /// Nothing happens on an ended connection, and its end is told once.
    fn end(&mut self, end: End) {
        self.heartbeat.stop();
        self.channels = Vec::new();
        self.stash = BytesMut::new();
        if !self.ended {
            self.ended = true;
            self.events.push_back(Event::Ended(end));
        }
    }

    fn max_payload(&self) -> usize {
        match self.phase {
            Phase::Header | Phase::Start | Phase::Authenticating | Phase::Tune => HANDSHAKE_FRAME_MAX,
            _ if self.frame_max == 0 => usize::MAX,
            _ => self.frame_max as usize,
        }
    }
}
