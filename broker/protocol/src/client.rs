//! A client's side of one connection, for load generators and tests: the same four kinds of methods as `server`. It trusts
//! its server more than the server trusts it: what is out of order ends the connection, with a text for people.
//!
//! It knows no reconnecting, no failover, no consumers: that is a client library's part.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use understudy_record::ShortStr;

use crate::content::{Assembly, BodyLimits, Content, Delivery, GotMessage, PublishRef, Return};
use crate::frame::{self, Frame, FrameKind, PROTOCOL_HEADER};
use crate::heartbeat::{Heartbeat, HeartbeatAction};
use crate::ids::{ChannelId, DeliveryTag};
use crate::method::{Method, basic, channel, connection};
use crate::output::{HeaderTooLarge, Output};
use crate::reply::{ReplyCode, short_str_cut};
use crate::sasl;
use crate::table::FieldTable;
use crate::wire::Reader;

/// How long `connection.close-ok` may take.
const CLOSE_OK_TIMEOUT: Duration = Duration::from_secs(10);
/// Largest frame payload before one is negotiated: a server may list many hosts in its properties.
const HANDSHAKE_FRAME_MAX: usize = 131_072;

#[derive(Clone, Debug)]
pub struct ClientConfig {
    pub user: String,
    pub password: String,
    /// Who we are is said by what carries the connection: log in by EXTERNAL instead.
    pub external: bool,
    pub virtual_host: String,
    pub client_properties: FieldTable,
    /// What we ask for; the server's offer bounds it. 0: what the server offers.
    pub channel_max: u16,
    /// In octets, likewise.
    pub frame_max: u32,
    /// 0: none.
    pub heartbeat_seconds: u16,
}

impl Default for ClientConfig {
    fn default() -> Self {
        let capabilities = FieldTable::new()
            .with("publisher_confirms", true)
            .with("basic.nack", true)
            .with("consumer_cancel_notify", true)
            .with("connection.blocked", true)
            .with("exchange_exchange_bindings", true)
            .with("authentication_failure_close", true);
        Self {
            user: "guest".into(),
            password: "guest".into(),
            external: false,
            virtual_host: "/".into(),
            client_properties: FieldTable::new().with("product", "understudy").with("capabilities", capabilities),
            channel_max: 0,
            frame_max: 0,
            heartbeat_seconds: 10,
        }
    }
}

/// What the server did, in the order it did it.
#[derive(Debug, PartialEq)]
pub enum ClientEvent {
    /// Channels may be opened.
    Connected {
        server_properties: FieldTable,
    },
    ChannelOpened(ChannelId),
    /// Any other method: the `…-ok`s, confirms ([`Method::BasicAck`]), `basic.cancel`, `basic.get-empty`.
    Method(ChannelId, Method),
    Delivery(ChannelId, Delivery),
    Return(ChannelId, Return),
    GotMessage(ChannelId, GotMessage),
    /// By the server, or 200 as the answer to [`ClientConnection::close_channel`].
    ChannelClosed {
        channel: ChannelId,
        code: u16,
        text: ShortStr,
    },
    Blocked {
        reason: ShortStr,
    },
    Unblocked,
    /// The last event, exactly once.
    Ended(ClientEnd),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientEnd {
    #[error("closed by the server: {code} {text}")]
    ByServer { code: u16, text: ShortStr },
    #[error("closed by us")]
    ByUs,
    #[error("the server broke the protocol: {0}")]
    ProtocolError(String),
    #[error("the server speaks another protocol or version")]
    UnsupportedVersion,
    #[error("two heartbeat intervals without an octet from the server")]
    HeartbeatMissed,
    #[error("the server closed the socket without closing the connection")]
    SocketEnded,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    AwaitingStart,
    AwaitingTune,
    AwaitingOpenOk,
    Open,
    Closing { deadline: Duration },
    Closed,
}

/// The methods that bring content to a client.
#[derive(Debug)]
enum Head {
    Deliver(basic::Deliver),
    Return(basic::Return),
    GetOk(basic::GetOk),
}

#[derive(Debug, Default)]
enum Channel {
    #[default]
    Free,
    Opening,
    Open(Assembly<Head>),
    Closing,
}

/// See the module's documentation.
#[derive(Debug)]
pub struct ClientConnection {
    config: ClientConfig,
    phase: Phase,
    channels: Vec<Channel>,
    events: VecDeque<ClientEvent>,
    ended: bool,
    output: Output,
    heartbeat: Heartbeat,
    channel_max: u16,
    frame_max: u32,
    server_properties: FieldTable,
}

impl ClientConnection {
    /// The protocol header is in [`Self::output`] at once.
    pub fn new(now: Duration, config: ClientConfig) -> Self {
        let mut output = Output::default();
        output.push_raw(&PROTOCOL_HEADER);
        let mut heartbeat = Heartbeat::default();
        // Until the server says otherwise; bounds the handshake too.
        heartbeat.start(now, config.heartbeat_seconds);
        Self {
            config,
            phase: Phase::AwaitingStart,
            channels: Vec::new(),
            events: VecDeque::new(),
            ended: false,
            output,
            heartbeat,
            channel_max: 0,
            frame_max: 0,
            server_properties: FieldTable::new(),
        }
    }

    pub fn is_open(&self) -> bool {
        self.phase == Phase::Open
    }

    /// Whether the socket is to be dropped once [`Self::output`] is written out.
    pub fn is_closed(&self) -> bool {
        self.phase == Phase::Closed
    }

    /// Agreed on; 0: no limit.
    pub fn frame_max(&self) -> u32 {
        self.frame_max
    }

    /// Agreed on; 0: no limit.
    pub fn channel_max(&self) -> u16 {
        self.channel_max
    }

    /// Takes all whole frames from `buffer` and leaves what follows. Call after each read, with the same buffer.
    pub fn handle_bytes(&mut self, now: Duration, buffer: &mut BytesMut) {
        if buffer.is_empty() {
            return;
        }
        self.heartbeat.handle_received(now);
        if self.phase == Phase::AwaitingStart && buffer.starts_with(b"AMQP") {
            return self.finish(ClientEnd::UnsupportedVersion);
        }
        let scan = frame::scan(buffer, self.max_payload(), usize::MAX);
        let bytes = buffer.split_to(scan.whole).freeze();
        let mut at = 0;
        while let Some(frame) = frame::frame_at(&bytes, at) {
            at = frame.end + 1;
            if self.phase == Phase::Closed {
                return;
            }
            if let Err(text) = self.handle_frame(now, &bytes, frame) {
                return self.finish(ClientEnd::ProtocolError(text));
            }
        }
        if let Some(error) = scan.error {
            self.finish(ClientEnd::ProtocolError(error.to_string()));
        }
    }

    /// How many octets `buffer`, as `handle_bytes` left it, lacks to hold a whole frame.
    pub fn wanted_bytes(&self, buffer: &BytesMut) -> usize {
        frame::missing(buffer, self.max_payload())
    }

    pub fn handle_eof(&mut self) {
        self.finish(ClientEnd::SocketEnded);
    }

    pub fn handle_timeout(&mut self, now: Duration) {
        if let Phase::Closing { deadline } = self.phase
            && now >= deadline
        {
            self.finish(ClientEnd::ByUs);
        }
        match self.heartbeat.handle_timeout(now, self.output.total(), !self.output.is_empty()) {
            HeartbeatAction::PeerIsGone => self.finish(ClientEnd::HeartbeatMissed),
            HeartbeatAction::Send if self.phase == Phase::Open => {
                self.output.push_heartbeat();
                self.heartbeat.sent(self.output.total());
            }
            HeartbeatAction::Send | HeartbeatAction::None => {}
        }
    }

    /// When to call [`Self::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<Duration> {
        let closing = match self.phase {
            Phase::Closing { deadline } => Some(deadline),
            _ => None,
        };
        closing.into_iter().chain(self.heartbeat.poll_timeout()).min()
    }

    pub fn poll_event(&mut self) -> Option<ClientEvent> {
        self.events.pop_front()
    }

    /// What is to be written to the socket.
    pub fn output(&mut self) -> &mut Output {
        &mut self.output
    }

    /// Answered by [`ClientEvent::ChannelOpened`]. Does nothing before [`ClientEvent::Connected`].
    pub fn open_channel(&mut self, channel: ChannelId) {
        if self.phase != Phase::Open || channel == ChannelId::CONNECTION {
            return;
        }
        let place = usize::from(channel.0);
        if self.channels.len() <= place {
            self.channels.resize_with(place + 1, Channel::default);
        }
        self.set_channel(channel, Channel::Opening);
        self.output.push_method(channel, &channel::Open {}.into());
    }

    /// Answered by [`ClientEvent::ChannelClosed`].
    pub fn close_channel(&mut self, channel: ChannelId) {
        if self.is_channel_open(channel) {
            self.set_channel(channel, Channel::Closing);
            let close = channel::Close { reply_code: ReplyCode::ReplySuccess.number(), ..Default::default() };
            self.output.push_method(channel, &close.into());
        }
    }

    /// Any method without content; nothing happens if the channel is not open.
    pub fn send_method(&mut self, channel: ChannelId, method: &Method) {
        if self.is_channel_open(channel) || (channel == ChannelId::CONNECTION && self.phase == Phase::Open) {
            self.output.push_method(channel, method);
        }
    }

    /// Nothing happens if the channel is not open.
    ///
    /// # Errors
    /// If the properties do not fit in a frame.
    pub fn publish(&mut self, channel: ChannelId, message: &PublishRef<'_>) -> Result<(), HeaderTooLarge> {
        if !self.is_channel_open(channel) {
            return Ok(());
        }
        let frame_max = if self.frame_max == 0 { u32::MAX } else { self.frame_max };
        self.output.push_content(channel, frame_max, message, message.properties, message.body)
    }

    /// Acknowledges deliveries.
    pub fn send_ack(&mut self, channel: ChannelId, delivery_tag: DeliveryTag, multiple: bool) {
        self.send_method(channel, &basic::Ack { delivery_tag, multiple }.into());
    }

    /// Answered by [`ClientEvent::Ended`] with [`ClientEnd::ByUs`].
    pub fn close(&mut self, now: Duration, text: &str) {
        if matches!(self.phase, Phase::Closing { .. } | Phase::Closed) {
            return;
        }
        let reply_text = short_str_cut(text);
        let close =
            connection::Close { reply_code: ReplyCode::ReplySuccess.number(), reply_text, ..Default::default() };
        self.output.push_method(ChannelId::CONNECTION, &close.into());
        self.phase = Phase::Closing { deadline: now + CLOSE_OK_TIMEOUT };
    }

    fn handle_frame(&mut self, now: Duration, bytes: &Bytes, frame: Frame) -> Result<(), String> {
        match frame.kind {
            FrameKind::Heartbeat => Ok(()),
            FrameKind::Method => {
                let mut reader = Reader::part(bytes, frame.start, frame.end);
                let method = crate::method::read_id(&mut reader)
                    .and_then(|id| Method::read_arguments(id, &mut reader))
                    .map_err(|error| error.to_string())?;
                match frame.channel {
                    ChannelId::CONNECTION => self.handle_connection_method(now, method),
                    channel => self.handle_channel_method(channel, method),
                }
            }
            FrameKind::Header | FrameKind::Body => match self.channel(frame.channel) {
                Some(Channel::Open(assembly)) => {
                    // What a server sends is as large as what we let others publish.
                    let content = assembly
                        .take(bytes, frame, &BodyLimits::NONE, &mut Vec::new())
                        .map_err(|error| error.to_string())?;
                    if let Some(content) = content {
                        self.events.push_back(content_event(frame.channel, content));
                    }
                    Ok(())
                }
                Some(Channel::Closing) => Ok(()),
                _ => Err(format!("content on channel {}, which is not open", frame.channel)),
            },
        }
    }

    fn handle_connection_method(&mut self, now: Duration, method: Method) -> Result<(), String> {
        match (self.phase, method) {
            (_, Method::ConnectionClose(close)) => {
                self.output.push_method(ChannelId::CONNECTION, &connection::CloseOk {}.into());
                self.finish(ClientEnd::ByServer { code: close.reply_code, text: close.reply_text });
            }
            (Phase::Closing { .. }, Method::ConnectionCloseOk(_)) => self.finish(ClientEnd::ByUs),
            (Phase::Closing { .. }, _) => {}
            (Phase::AwaitingStart, Method::ConnectionStart(start)) => self.answer_start(start),
            (Phase::AwaitingTune, Method::ConnectionTune(tune)) => self.answer_tune(now, &tune),
            (Phase::AwaitingOpenOk, Method::ConnectionOpenOk(_)) => {
                self.phase = Phase::Open;
                let server_properties = self.server_properties.clone();
                self.events.push_back(ClientEvent::Connected { server_properties });
            }
            (Phase::Open, Method::ConnectionBlocked(blocked)) => {
                self.events.push_back(ClientEvent::Blocked { reason: blocked.reason });
            }
            (Phase::Open, Method::ConnectionUnblocked(_)) => self.events.push_back(ClientEvent::Unblocked),
            (Phase::Open, method @ Method::ConnectionUpdateSecretOk(_)) => {
                self.events.push_back(ClientEvent::Method(ChannelId::CONNECTION, method));
            }
            (phase, method) => return Err(format!("{} while {phase:?}", method.name())),
        }
        Ok(())
    }

    fn answer_start(&mut self, start: connection::Start) {
        self.server_properties = start.server_properties;
        let (mechanism, response) = match self.config.external {
            true => (sasl::EXTERNAL, Bytes::new()),
            false => ("PLAIN", sasl::plain(&self.config.user, &self.config.password)),
        };
        let start_ok = connection::StartOk {
            client_properties: self.config.client_properties.clone(),
            mechanism: ShortStr::from_static(mechanism),
            response,
            locale: ShortStr::from_static("en_US"),
        };
        self.output.push_method(ChannelId::CONNECTION, &start_ok.into());
        self.phase = Phase::AwaitingTune;
    }

    fn answer_tune(&mut self, now: Duration, tune: &connection::Tune) {
        /// The lower of two limits of which 0 is none.
        fn lower<T: Ord + Default>(ours: T, theirs: T) -> T {
            let none = T::default();
            if ours == none || (theirs != none && theirs < ours) { theirs } else { ours }
        }
        self.channel_max = lower(self.config.channel_max, tune.channel_max);
        self.frame_max = lower(self.config.frame_max, tune.frame_max);
        let heartbeat = self.config.heartbeat_seconds;
        self.heartbeat.start(now, heartbeat);
        let tune_ok = connection::TuneOk { channel_max: self.channel_max, frame_max: self.frame_max, heartbeat };
        self.output.push_method(ChannelId::CONNECTION, &tune_ok.into());
        let open = connection::Open { virtual_host: short_str_cut(&self.config.virtual_host) };
        self.output.push_method(ChannelId::CONNECTION, &open.into());
        self.phase = Phase::AwaitingOpenOk;
    }

    fn handle_channel_method(&mut self, channel: ChannelId, method: Method) -> Result<(), String> {
        let Some(slot) = self.channel(channel) else {
            return Err(format!("{} on channel {channel}, which was never opened", method.name()));
        };
        match (slot, method) {
            (Channel::Closing | Channel::Opening | Channel::Open(_), Method::ChannelClose(close)) => {
                self.set_channel(channel, Channel::Free);
                self.output.push_method(channel, &channel::CloseOk {}.into());
                let (code, text) = (close.reply_code, close.reply_text);
                self.events.push_back(ClientEvent::ChannelClosed { channel, code, text });
            }
            (Channel::Closing, Method::ChannelCloseOk(_)) => {
                self.set_channel(channel, Channel::Free);
                let code = ReplyCode::ReplySuccess.number();
                self.events.push_back(ClientEvent::ChannelClosed { channel, code, text: ShortStr::EMPTY });
            }
            (Channel::Closing, _) | (Channel::Free, Method::ChannelCloseOk(_)) => {}
            (Channel::Opening, Method::ChannelOpenOk(_)) => {
                self.set_channel(channel, Channel::Open(Assembly::Idle));
                self.events.push_back(ClientEvent::ChannelOpened(channel));
            }
            (Channel::Open(assembly), method) if assembly.is_idle() => match method {
                Method::BasicDeliver(head) => *assembly = Assembly::Header(Head::Deliver(head)),
                Method::BasicReturn(head) => *assembly = Assembly::Header(Head::Return(head)),
                Method::BasicGetOk(head) => *assembly = Assembly::Header(Head::GetOk(head)),
                Method::ChannelFlow(flow) => {
                    self.output.push_method(channel, &channel::FlowOk { active: flow.active }.into());
                }
                method => self.events.push_back(ClientEvent::Method(channel, method)),
            },
            (_, method) => return Err(format!("unexpected {} on channel {channel}", method.name())),
        }
        Ok(())
    }

    fn finish(&mut self, end: ClientEnd) {
        self.phase = Phase::Closed;
        self.heartbeat.stop();
        if !self.ended {
            self.ended = true;
            self.events.push_back(ClientEvent::Ended(end));
        }
    }

    fn max_payload(&self) -> usize {
        match (self.phase, self.frame_max) {
            (Phase::AwaitingStart | Phase::AwaitingTune, _) => HANDSHAKE_FRAME_MAX,
            (_, 0) => usize::MAX,
            (_, frame_max) => frame_max as usize,
        }
    }

    fn channel(&mut self, channel: ChannelId) -> Option<&mut Channel> {
        self.channels.get_mut(usize::from(channel.0))
    }

    fn set_channel(&mut self, channel: ChannelId, state: Channel) {
        if let Some(slot) = self.channel(channel) {
            *slot = state;
        }
    }

    fn is_channel_open(&self, channel: ChannelId) -> bool {
        let open = matches!(self.channels.get(usize::from(channel.0)), Some(Channel::Open(_)));
        open && self.phase == Phase::Open
    }
}

fn content_event(channel: ChannelId, (head, properties, body): Content<Head>) -> ClientEvent {
    match head {
        Head::Deliver(basic::Deliver { consumer_tag, delivery_tag, redelivered, exchange, routing_key }) => {
            let delivery =
                Delivery { consumer_tag, delivery_tag, redelivered, exchange, routing_key, properties, body };
            ClientEvent::Delivery(channel, delivery)
        }
        Head::Return(basic::Return { reply_code: code, reply_text: text, exchange, routing_key }) => {
            ClientEvent::Return(channel, Return { code, text, exchange, routing_key, properties, body })
        }
        Head::GetOk(basic::GetOk { delivery_tag, redelivered, exchange, routing_key, message_count }) => {
            let got = GotMessage { delivery_tag, redelivered, exchange, routing_key, message_count, properties, body };
            ClientEvent::GotMessage(channel, got)
        }
    }
}
