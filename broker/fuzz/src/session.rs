//! Two connections with the broker's core behind them, and a replica that follows.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use understudy_core::{
    Account, ChannelId, Command, ConnectionId, ConnectionInfo, Core, EffectKind, GUEST, Load, Outputs, Time,
};
use understudy_protocol::{
    ChannelId as Channel, End, Event, Method, MethodId, ReplyCode, ServerConnection, connection, sasl,
};
use understudy_record::version::ClusterVersion;
use understudy_record::{Body, Epoch, Frame, Index, Message, Position, Record, Rope};

use crate::convert;
use crate::input::Input;
use crate::script;

/// By both clocks.
fn time(now: Duration) -> Time {
    let wall_ms = 1_700_000_000_000 + u64::try_from(now.as_millis()).expect("a short run");
    Time { wall_ms, steady: now }
}

struct Client {
    id: ConnectionId,
    server: ServerConnection,
    buffer: BytesMut,
    registered: bool,
    ended: bool,
}

struct Broker {
    now: Duration,
    clients: [Client; 2],
    core: Core,
    replica: Core,
    messages: BTreeMap<Index, Message>,
    parts: BTreeMap<Index, Body>,
    loads: VecDeque<Load>,
    committed: Index,
    /// Nothing is committed until this ends.
    is_held: bool,
    /// What clients sent so far.
    received: usize,
    /// Records, if they are kept.
    written: Option<Vec<(Index, Record)>>,
}

/// Steps of two clients and of the world around them.
pub fn session(octets: &[u8]) {
    Broker::new().run(octets);
}

/// What the core writes.
pub(crate) fn records_of(script: &[u8]) -> Vec<(Index, Record)> {
    let mut broker = Broker::new();
    broker.written = Some(Vec::new());
    broker.run(script)
}

impl Broker {
    fn new() -> Self {
        let client = |id| Client {
            id: ConnectionId(id),
            server: ServerConnection::new(Duration::ZERO, script::config()),
            buffer: BytesMut::new(),
            registered: false,
            ended: false,
        };
        let mut core = Core::new(1);
        core.set_cluster_version(ClusterVersion::NEWEST.0);
        core.promote(&mut Outputs::default());
        core.set_time(time(Duration::ZERO));
        let mut broker = Self {
            now: Duration::ZERO,
            clients: [client(1), client(2)],
            core,
            replica: Core::new(2),
            messages: BTreeMap::new(),
            parts: BTreeMap::new(),
            loads: VecDeque::new(),
            committed: Index(0),
            is_held: false,
            received: 0,
            written: None,
        };
        for at in 0..2 {
            broker.receive(at, &script::handshake());
            (1..3).for_each(|channel| broker.receive(at, &script::frame(1, channel, &[0, 20, 0, 10, 0])));
            assert!(broker.clients[at].server.is_open());
        }
        broker
    }

    fn run(mut self, octets: &[u8]) -> Vec<(Index, Record)> {
        let mut input = Input::new(octets);
        while !input.is_empty() {
            let step = input.octet();
            let client = usize::from(step >> 7);
            match script::sent_by(step, &mut input) {
                Some(octets) => self.receive(client, &octets),
                None => {
                    let what = input.octet();
                    self.special(client, what);
                }
            }
        }
        self.end();
        self.written.unwrap_or_default()
    }

    fn receive(&mut self, at: usize, octets: &[u8]) {
        self.received += octets.len();
        let client = &mut self.clients[at];
        client.buffer.extend_from_slice(octets);
        client.server.handle_bytes(self.now, &mut client.buffer);
        self.step(at);
    }

    fn special(&mut self, at: usize, what: u8) {
        match what % 8 {
            0 => self.is_held = true,
            1 => self.is_held = false,
            2 => _ = self.core.evict(self.committed, 0),
            3 => {
                if let Some(load) = self.loads.pop_front() {
                    self.answer(&load);
                }
            }
            4 => self.core.handle_writable(self.clients[at].id, what & 8 == 0, &mut Outputs::default()),
            5 => {
                // From a part of a second to half a minute; queues and messages expire meanwhile.
                self.now += Duration::from_millis(u64::from(what) * 125);
                self.tell_time();
                for client in &mut self.clients {
                    client.server.handle_timeout(self.now);
                }
                self.step(1 - at);
            }
            6 => self.core.assert_consistent(),
            _ => {
                self.clients[at].server.handle_eof();
            }
        }
        self.step(at);
    }

    fn tell_time(&mut self) {
        self.core.set_time(time(self.now));
    }

    fn step(&mut self, at: usize) {
        let mut out = Outputs::default();
        self.take_events(at, &mut out);
        self.end_step(out);
    }

    fn take_events(&mut self, at: usize, out: &mut Outputs) {
        let now = self.now;
        while let Some(event) = self.clients[at].server.poll_event() {
            let client = &mut self.clients[at];
            assert!(!client.ended, "after its end: {event:?}");
            let id = client.id;
            match event {
                Event::Authenticate { mechanism, response, .. } => match sasl::parse(mechanism.as_bytes(), &response) {
                    Ok(_) => client.server.accept_authentication(now),
                    Err(_) => client.server.refuse_authentication(now, "no"),
                },
                Event::Open { virtual_host } => {
                    let info = ConnectionInfo {
                        user: GUEST.into(),
                        account: Account::OpenGuest,
                        vhost: virtual_host,
                        consumer_cancel_notify: client.server.client_capability("consumer_cancel_notify"),
                    };
                    match self.core.connection_opened(id, info) {
                        Ok(()) => {
                            client.registered = true;
                            client.server.open_connection(now);
                        }
                        Err(error) => client.server.close_connection(now, error.code, "no", MethodId::NONE),
                    }
                }
                Event::ChannelOpen(channel) => {
                    self.core.handle(id, ChannelId(channel.0), Command::ChannelOpen, out);
                    self.dispatch(out);
                    self.clients[at].server.open_channel(channel);
                }
                Event::ChannelClose(channel) => {
                    self.core.handle(id, ChannelId(channel.0), Command::ChannelClose, out);
                    self.dispatch(out);
                    self.clients[at].server.channel_closed(channel);
                }
                Event::ChannelFailed { channel, .. } => {
                    self.core.handle(id, ChannelId(channel.0), Command::ChannelClose, out);
                }
                Event::PublishPart(channel, body) => {
                    self.core.handle(id, ChannelId(channel.0), Command::PublishPart { body }, out);
                }
                Event::Publish(channel, publish) => {
                    self.core.handle(id, ChannelId(channel.0), convert::publish(publish), out);
                }
                Event::Method(channel, method) => {
                    let cause = method.id();
                    match convert::command(method) {
                        Some(command) => self.core.handle(id, ChannelId(channel.0), command, out),
                        None => client.server.close_connection(now, ReplyCode::CommandInvalid, "no", cause),
                    }
                }
                Event::UpdateSecret { .. } => {
                    let answer = Method::ConnectionUpdateSecretOk(connection::UpdateSecretOk {});
                    client.server.send_method(Channel(0), &answer);
                }
                Event::Ended(end) => {
                    client.ended = true;
                    let by_peer = matches!(end, End::ByPeer { .. });
                    if std::mem::take(&mut client.registered) {
                        self.core.connection_closed(id, out);
                    }
                    if by_peer {
                        self.clients[at].server.connection_closed();
                    }
                }
            }
        }
    }

    /// Delivers and commits until nothing more follows.
    fn end_step(&mut self, mut out: Outputs) {
        for turn in 0.. {
            assert!(turn < 100_000, "the core does not come to rest");
            let more = self.core.deliver(&mut out);
            self.write(&mut out);
            self.dispatch(&mut out);
            self.loads.extend(out.loads.drain(..));
            let last = self.core.last_index();
            if !self.is_held && self.committed != last {
                self.committed = last;
                self.core.handle_committed(last, last, &mut out);
            } else if !more {
                break;
            }
        }
        self.dispatch(&mut out);
        for client in &mut self.clients {
            let output = client.server.output();
            let length = output.remaining();
            output.advance(length);
            assert!(client.server.assembling_bytes() + client.buffer.len() <= self.received);
        }
    }

    /// Every record goes through its bytes to the replica.
    fn write(&mut self, out: &mut Outputs) {
        for (index, record) in out.records.drain(..) {
            let position = Position::new(Epoch(1), index);
            let frame = Frame::record(position, self.committed, &record, &mut BytesMut::new());
            let mut stream = Rope::default();
            frame.pieces().for_each(|piece| stream.push(piece.clone()));
            let frame = Frame::take(&mut stream).expect("a right frame").expect("a whole frame");
            let read = frame.decode_record().expect("what was written can be read");
            assert_eq!(read, record);
            if let Some(written) = &mut self.written {
                written.push((index, record));
            }
            match &read {
                Record::Publish { message, .. }
                | Record::PublishHere { message, .. }
                | Record::Staged { message, .. }
                | Record::StagedHere { message, .. } => {
                    let parts = message.parts.as_ref().map(|parts| parts.to_vec().into());
                    self.messages.insert(index, Message { parts, ..message.clone() });
                }
                _ => {}
            }
            if let Some(body) = frame.part() {
                self.parts.insert(index, body.clone());
            }
            let frame = frame.for_followers().expect("what was written can be read");
            let followed = frame.decode_record().expect("what was written can be read");
            if let Err(error) = self.replica.apply(index, &followed) {
                panic!("the replica does not take what the primary wrote: {error}: {followed:?}");
            }
            if let Some(difference) = self.replica.take_difference() {
                panic!("the replica has another state: {difference:?}");
            }
        }
    }

    fn dispatch(&mut self, out: &mut Outputs) {
        let now = self.now;
        for effect in out.effects.drain(..) {
            let Some(client) = self.clients.iter_mut().find(|client| client.id == effect.connection) else {
                panic!("an effect for nobody")
            };
            let channel = Channel(effect.channel.0);
            let closes = matches!(effect.kind, EffectKind::CloseConnection { .. });
            match convert::send(&mut client.server, now, channel, effect.kind) {
                Ok(None) => {}
                Ok(Some((parts, last))) => {
                    parts.iter().for_each(|part| client.server.send_body(channel, &self.parts[&part.index]));
                    client.server.send_body(channel, &last);
                }
                Err(_) => client.server.close_connection(now, ReplyCode::FrameError, "too large", MethodId::NONE),
            }
            assert!(!closes || !client.server.is_open());
        }
    }

    fn answer(&mut self, load: &Load) {
        let messages = load.indexes.iter().map(|index| (*index, self.messages[index].clone())).collect();
        let mut out = Outputs::default();
        self.core.handle_loaded(load.queue, messages, &mut out);
        self.end_step(out);
    }

    /// Everybody goes, and the replica has what the primary has.
    fn end(&mut self) {
        self.is_held = false;
        for at in 0..2 {
            self.step(at);
            self.clients[at].server.handle_eof();
            self.step(at);
            assert!(self.clients[at].ended && self.clients[at].server.is_closed());
        }
        while let Some(load) = self.loads.pop_front() {
            self.answer(&load);
        }
        let (mut pass, mut out) = (self.core.begin_scrub(), Outputs::default());
        while self.core.scrub(&mut pass, 3, &mut out).is_some() {}
        self.end_step(out);
        self.core.assert_consistent();
        self.replica.assert_consistent();
        assert_eq!(self.replica.queues(), self.core.backlogs());
    }
}
