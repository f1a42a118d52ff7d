//! A small synchronous AMQP client over the protocol crate's client side. One call waits for one answer; what the broker
//! sends meanwhile of its own accord (deliveries, confirms, returns, blocked) is kept until it is asked for.

use std::collections::{BTreeSet, VecDeque};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes, BytesMut};
use understudy_protocol::{
    BasicProperties, ChannelId, ClientConfig, ClientConnection, ClientEnd, ClientEvent, Delivery, DeliveryTag,
    FieldTable, GotMessage, Method, PublishRef, Return, basic, confirm, queue,
};
use understudy_record::{Body, ShortStr};

use super::{PATIENCE, Stream};

/// Bytes asked for in one read.
const READ_BYTES: usize = 64 << 10;

/// How long a read blocks before the deadline and the heartbeat are looked at again.
const READ_TIMEOUT: Duration = Duration::from_millis(20);

/// How the broker said no.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    Channel {
        code: u16,
        text: String,
    },
    Connection(ClientEnd),
    /// Neither yes nor no came in time.
    NoAnswer,
}

impl Refused {
    pub(crate) fn code(&self) -> u16 {
        match self {
            Self::Channel { code, .. } | Self::Connection(ClientEnd::ByServer { code, .. }) => *code,
            Self::Connection(_) | Self::NoAnswer => 0,
        }
    }

    pub(crate) fn text(&self) -> String {
        match self {
            Self::Channel { text, .. } => text.clone(),
            Self::Connection(ClientEnd::ByServer { text, .. }) => text.to_string(),
            Self::Connection(end) => end.to_string(),
            Self::NoAnswer => "no answer".to_owned(),
        }
    }
}

pub(crate) fn short(text: &str) -> ShortStr {
    ShortStr::try_from(text).expect("a short string")
}

pub(crate) struct Client {
    stream: Box<dyn Stream>,
    connection: ClientConnection,
    buffer: BytesMut,
    started: Instant,
    kept: VecDeque<ClientEvent>,
    ended: Option<ClientEnd>,
    published: u64,
    /// Publishes that wait for their confirms, by number, from 1.
    unconfirmed: BTreeSet<u64>,
    patience: Duration,
}

/// Tests use one channel, but for those about channels.
pub(crate) const CHANNEL: ChannelId = ChannelId(1);

impl Client {
    pub(crate) fn connect(to: SocketAddr, config: ClientConfig) -> Result<Self, ClientEnd> {
        Self::connect_within(to, config, PATIENCE)
    }

    pub(crate) fn connect_within(to: SocketAddr, config: ClientConfig, patience: Duration) -> Result<Self, ClientEnd> {
        let stream = TcpStream::connect_timeout(&to, patience).map_err(|_| ClientEnd::SocketEnded)?;
        Self::over_within(stream, config, patience)
    }

    /// A new connection over TLS, or whatever it is.
    pub(crate) fn over(stream: impl Stream + 'static, config: ClientConfig) -> Result<Self, ClientEnd> {
        Self::over_within(stream, config, PATIENCE)
    }

    fn over_within(stream: impl Stream + 'static, config: ClientConfig, patience: Duration) -> Result<Self, ClientEnd> {
        stream.socket().set_nodelay(true).unwrap();
        stream.socket().set_read_timeout(Some(READ_TIMEOUT)).unwrap();
        let stream = Box::new(stream);
        let mut client = Self {
            stream,
            connection: ClientConnection::new(Duration::ZERO, config),
            buffer: BytesMut::new(),
            started: Instant::now(),
            kept: VecDeque::new(),
            ended: None,
            published: 0,
            unconfirmed: BTreeSet::new(),
            patience,
        };
        client.flush();
        let deadline = Instant::now() + patience;
        let opened = client.take_until(deadline, |event| match event {
            ClientEvent::Connected { .. } => Some(()),
            _ => None,
        });
        match (opened, client.ended.clone()) {
            (Some(()), _) => {
                client.open_channel(CHANNEL);
                Ok(client)
            }
            (None, end) => Err(end.unwrap_or(ClientEnd::SocketEnded)),
        }
    }

    /// Without heartbeats: a test may look elsewhere for longer than a heartbeat lasts.
    #[track_caller]
    pub(crate) fn guest(to: SocketAddr) -> Self {
        let config = ClientConfig { heartbeat_seconds: 0, ..Default::default() };
        Self::connect(to, config).unwrap_or_else(|end| panic!("no connection to {to}: {end}"))
    }

    pub(crate) fn open_channel(&mut self, channel: ChannelId) {
        self.connection.open_channel(channel);
        self.take(|event| match event {
            ClientEvent::ChannelOpened(opened) if *opened == channel => Some(()),
            _ => None,
        });
    }

    pub(crate) fn ended(&self) -> Option<&ClientEnd> {
        self.ended.as_ref()
    }

    /// Sends a method and waits for its answer.
    pub(crate) fn call(&mut self, method: impl Into<Method>) -> Result<Method, Refused> {
        self.call_on(CHANNEL, method)
    }

    pub(crate) fn call_on(&mut self, channel: ChannelId, method: impl Into<Method>) -> Result<Method, Refused> {
        let method = method.into();
        if let Some(end) = &self.ended {
            return Err(Refused::Connection(end.clone()));
        }
        self.connection.send_method(channel, &method);
        let answer = self.take(|event| match event {
            ClientEvent::Method(_, Method::BasicAck(_) | Method::BasicNack(_) | Method::BasicCancel(_)) => None,
            ClientEvent::Method(on, method) if *on == channel => Some(Ok(method.clone())),
            ClientEvent::ChannelClosed { channel: on, code, text } if *on == channel => {
                Some(Err(Refused::Channel { code: *code, text: text.to_string() }))
            }
            _ => None,
        });
        answer.unwrap_or_else(|| Err(self.refusal()))
    }

    fn refusal(&self) -> Refused {
        self.ended.clone().map_or(Refused::NoAnswer, Refused::Connection)
    }

    /// A durable queue.
    pub(crate) fn declare(&mut self, name: &str) -> Result<queue::DeclareOk, Refused> {
        self.declare_as(queue::Declare { queue: short(name), durable: true, ..Default::default() })
    }

    pub(crate) fn declare_as(&mut self, declare: queue::Declare) -> Result<queue::DeclareOk, Refused> {
        self.call(declare).map(|answer| match answer {
            Method::QueueDeclareOk(ok) => ok,
            other => panic!("queue.declare is answered by {}", other.name()),
        })
    }

    /// A durable queue with arguments.
    pub(crate) fn declare_with(&mut self, name: &str, arguments: FieldTable) -> Result<queue::DeclareOk, Refused> {
        self.declare_as(queue::Declare { queue: short(name), durable: true, arguments, ..Default::default() })
    }

    pub(crate) fn select_confirms(&mut self) {
        self.call(confirm::Select::default()).expect("confirm mode");
    }

    /// A persistent message to a queue by its name; nothing is waited for.
    pub(crate) fn publish(&mut self, queue: &str, body: impl Into<Bytes>) {
        self.publish_to("", queue, body);
    }

    pub(crate) fn publish_to(&mut self, exchange: &str, routing_key: &str, body: impl Into<Bytes>) {
        self.put_publish(exchange, routing_key, body);
        self.flush();
    }

    /// In one write, and nothing is waited for.
    pub(crate) fn publish_and_close(&mut self, queue: &str, body: impl Into<Bytes>) {
        self.put_publish("", queue, body);
        self.connection.close(self.started.elapsed(), "done");
        self.flush();
    }

    /// To a queue that need not exist; nothing is waited for.
    pub(crate) fn publish_mandatory(&mut self, queue: &str, body: impl Into<Bytes>) {
        self.put("", queue, true, body);
        self.flush();
    }

    pub(crate) fn next_return(&mut self, deadline: Instant) -> Option<Return> {
        self.take_until(deadline, |event| match event {
            ClientEvent::Return(_, returned) => Some(returned.clone()),
            _ => None,
        })
    }

    /// To a queue; nothing is waited for.
    pub(crate) fn publish_as(&mut self, queue: &str, properties: BasicProperties, body: impl Into<Bytes>) {
        self.put_as("", queue, false, properties, body);
        self.flush();
    }

    /// Anywhere; nothing is waited for.
    pub(crate) fn publish_to_as(
        &mut self,
        exchange: &str,
        routing_key: &str,
        properties: BasicProperties,
        body: impl Into<Bytes>,
    ) {
        self.put_as(exchange, routing_key, false, properties, body);
        self.flush();
    }

    fn put_publish(&mut self, exchange: &str, routing_key: &str, body: impl Into<Bytes>) {
        self.put(exchange, routing_key, false, body);
    }

    fn put(&mut self, exchange: &str, routing_key: &str, mandatory: bool, body: impl Into<Bytes>) {
        self.put_as(exchange, routing_key, mandatory, BasicProperties::default(), body);
    }

    /// A persistent message.
    fn put_as(
        &mut self,
        exchange: &str,
        routing_key: &str,
        mandatory: bool,
        properties: BasicProperties,
        body: impl Into<Bytes>,
    ) {
        let body = Body::new(body.into());
        let properties = BasicProperties { delivery_mode: Some(2), ..properties }.encode();
        let message = PublishRef {
            exchange: exchange.as_bytes(),
            routing_key: routing_key.as_bytes(),
            mandatory,
            properties: properties.as_bytes(),
            body: &body,
        };
        self.connection.publish(CHANNEL, &message).expect("small properties");
        self.published += 1;
        self.unconfirmed.insert(self.published);
    }

    pub(crate) fn unconfirmed(&self) -> &BTreeSet<u64> {
        &self.unconfirmed
    }

    /// Waits for the confirms of everything that was published.
    pub(crate) fn await_confirms(&mut self) -> Result<(), Refused> {
        while !self.unconfirmed.is_empty() {
            if !self.await_confirm(Instant::now() + self.patience) {
                return Err(self.refusal());
            }
        }
        Ok(())
    }

    /// Waits for one more confirm frame; `false` if none came until then, or the connection ended.
    pub(crate) fn await_confirm(&mut self, deadline: Instant) -> bool {
        let confirmed = self.take_until(deadline, |event| match event {
            ClientEvent::Method(_, Method::BasicAck(ack)) => Some(ack.clone()),
            ClientEvent::Method(_, Method::BasicNack(nack)) => panic!("message {} was refused", nack.delivery_tag),
            _ => None,
        });
        let Some(basic::Ack { delivery_tag: DeliveryTag(tag), multiple }) = confirmed else { return false };
        if multiple {
            self.unconfirmed.retain(|number| *number > tag);
        } else {
            assert!(self.unconfirmed.remove(&tag), "{tag} is confirmed twice");
        }
        true
    }

    pub(crate) fn publish_confirmed(&mut self, queue: &str, body: impl Into<Bytes>) -> Result<(), Refused> {
        self.publish(queue, body);
        self.await_confirms()
    }

    pub(crate) fn get(&mut self, queue: &str, no_ack: bool) -> Option<GotMessage> {
        self.try_get(queue, no_ack).unwrap_or_else(|_| panic!("no answer to basic.get: {:?}", self.ended))
    }

    pub(crate) fn try_get(&mut self, queue: &str, no_ack: bool) -> Result<Option<GotMessage>, Refused> {
        self.connection.send_method(CHANNEL, &basic::Get { queue: short(queue), no_ack }.into());
        let got = self.take(|event| match event {
            ClientEvent::GotMessage(_, message) => Some(Some(message.clone())),
            ClientEvent::Method(_, Method::BasicGetEmpty(_)) => Some(None),
            _ => None,
        });
        got.ok_or_else(|| self.refusal())
    }

    pub(crate) fn consume(&mut self, queue: &str, prefetch: u16) -> Result<(), Refused> {
        self.call(basic::Qos { prefetch_count: prefetch, ..Default::default() })?;
        self.call(basic::Consume { queue: short(queue), ..Default::default() }).map(|_| ())
    }

    pub(crate) fn consume_without_ack(&mut self, queue: &str) -> Result<(), Refused> {
        self.call(basic::Consume { queue: short(queue), no_ack: true, ..Default::default() }).map(|_| ())
    }

    pub(crate) fn next_delivery(&mut self, deadline: Instant) -> Option<Delivery> {
        self.take_until(deadline, |event| match event {
            ClientEvent::Delivery(_, delivery) => Some(delivery.clone()),
            _ => None,
        })
    }

    pub(crate) fn ack(&mut self, tag: DeliveryTag, multiple: bool) {
        self.connection.send_ack(CHANNEL, tag, multiple);
        self.flush();
    }

    pub(crate) fn requeue(&mut self, tag: DeliveryTag) {
        self.nack(tag, true);
    }

    pub(crate) fn nack(&mut self, tag: DeliveryTag, requeue: bool) {
        let nack = basic::Nack { delivery_tag: tag, multiple: false, requeue };
        self.connection.send_method(CHANNEL, &nack.into());
        self.flush();
    }

    /// How many messages there were.
    pub(crate) fn purge(&mut self, queue: &str) -> Result<u32, Refused> {
        self.call(queue::Purge { queue: short(queue), ..Default::default() }).map(|answer| match answer {
            Method::QueuePurgeOk(ok) => ok.message_count,
            other => panic!("queue.purge is answered by {}", other.name()),
        })
    }

    /// How many messages there were.
    pub(crate) fn delete(&mut self, queue: &str) -> Result<u32, Refused> {
        self.call(queue::Delete { queue: short(queue), ..Default::default() }).map(|answer| match answer {
            Method::QueueDeleteOk(ok) => ok.message_count,
            other => panic!("queue.delete is answered by {}", other.name()),
        })
    }

    /// The reason, once `connection.blocked` has come.
    #[track_caller]
    pub(crate) fn await_blocked(&mut self) -> String {
        let reason = self.take(|event| match event {
            ClientEvent::Blocked { reason } => Some(reason.to_string()),
            _ => None,
        });
        reason.expect("connection.blocked")
    }

    /// `connection.blocked` is among what has come.
    pub(crate) fn has_been_blocked(&self) -> bool {
        self.kept.iter().any(|event| matches!(event, ClientEvent::Blocked { .. }))
    }

    #[track_caller]
    pub(crate) fn await_unblocked(&mut self) {
        let unblocked = self.take(|event| match event {
            ClientEvent::Unblocked => Some(()),
            _ => None,
        });
        unblocked.expect("connection.unblocked");
    }

    /// Waits until the broker closes the channel.
    #[track_caller]
    pub(crate) fn await_channel_closed(&mut self) -> Refused {
        let closed = self.take(|event| match event {
            ClientEvent::ChannelClosed { code, text, .. } => {
                Some(Refused::Channel { code: *code, text: text.to_string() })
            }
            _ => None,
        });
        closed.unwrap_or_else(|| panic!("the channel was not closed: {:?}", self.ended))
    }

    /// Waits until the broker ends the connection.
    #[track_caller]
    pub(crate) fn await_ended(&mut self) -> ClientEnd {
        let deadline = Instant::now() + self.patience;
        while self.ended.is_none() && Instant::now() < deadline {
            self.turn();
        }
        self.ended.clone().expect("the connection has not ended")
    }

    pub(crate) fn close(mut self) {
        self.connection.close(self.started.elapsed(), "done");
        self.await_ended();
    }

    fn take<T>(&mut self, wanted: impl FnMut(&ClientEvent) -> Option<T>) -> Option<T> {
        self.take_until(Instant::now() + self.patience, wanted)
    }

    /// The first event that is wanted; the others are kept. `None` at the deadline, or when the connection has ended.
    fn take_until<T>(&mut self, deadline: Instant, mut wanted: impl FnMut(&ClientEvent) -> Option<T>) -> Option<T> {
        let mut looked_at = 0;
        loop {
            while let Some(event) = self.kept.get(looked_at) {
                if let Some(found) = wanted(event) {
                    self.kept.remove(looked_at);
                    return Some(found);
                }
                looked_at += 1;
            }
            if self.ended.is_some() || Instant::now() >= deadline {
                return None;
            }
            self.turn();
        }
    }

    /// Writes what waits, reads what is there, keeps the events.
    fn turn(&mut self) {
        self.flush();
        self.buffer.reserve(self.connection.wanted_bytes(&self.buffer).max(READ_BYTES));
        let mut read = [0; READ_BYTES];
        match self.stream.read(&mut read) {
            Ok(0) => self.connection.handle_eof(),
            Ok(count) => {
                self.buffer.extend_from_slice(&read[..count]);
                self.connection.handle_bytes(self.started.elapsed(), &mut self.buffer);
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(_) => self.connection.handle_eof(),
        }
        let now = self.started.elapsed();
        if self.connection.poll_timeout().is_some_and(|at| at <= now) {
            self.connection.handle_timeout(now);
        }
        self.flush();
        while let Some(event) = self.connection.poll_event() {
            match event {
                ClientEvent::Ended(end) => self.ended = Some(end),
                event => self.kept.push_back(event),
            }
        }
    }

    fn flush(&mut self) {
        let output = self.connection.output();
        while output.has_remaining() {
            match self.stream.write(output.chunk()) {
                Ok(count) => output.advance(count),
                // The end is told by the next read.
                Err(_) => output.advance(output.remaining()),
            }
        }
    }
}
