//! Clients: publishers with confirms, consumers that acknowledge, return and hold, one that purges, and at the end those who
//! drain what is left. They reconnect when they are closed, and know only what they were told.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use rand::Rng;
use tokio::sync::{mpsc, oneshot};
use understudy_core::{ChannelId, Command, ConnectionId, ConnectionInfo, DeliveryTag, Effect, EffectKind, Publish};
use understudy_node::{ClientEvent, Door, Outbox, Outgoing, Upload, effect_cost};
use understudy_record::{Body, ShortStr};

use crate::ledger::{DEAD, FANOUT, LATE, MARKS, MessageId, ONCE, ONCE_EXCHANGE, PILE, QUEUES, TIMED, WORK};
use crate::machine::ClientEnd;
use crate::network::Place;
use crate::witness::message_id;
use crate::world::{ForProcess, Happening, World};

const CHANNEL: ChannelId = ChannelId(1);

/// What one publisher may have unconfirmed.
const WINDOW: usize = 40;
const PREFETCH: u16 = 8;

/// No key is forgotten in a run.
const CACHE_SIZE: u32 = 1_000_000;

/// Of what expires, in ms: long enough for another primary to come meanwhile.
const LONGEST_LIFE_MS: u64 = 3_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Publisher,
    Consumer(&'static str),
    Purger,
    Drainer(&'static str),
}

#[derive(Debug)]
pub(crate) enum ClientStep {
    Connect,
    Publish(ConnectionId),
    Settle(ConnectionId, u64, MessageId),
    Mark(ConnectionId),
    Purge(ConnectionId),
    Get(ConnectionId),
    /// What the broker said reaches the client.
    Hears(ConnectionId, Outgoing),
    /// The connection broke.
    Lost(ConnectionId),
}

pub(crate) struct Client {
    pub(crate) kind: Kind,
    /// Sent, not confirmed, and to be sent again: whoever drops duplicates makes that safe.
    to_send_again: Vec<MessageId>,
    pub(crate) connection: Option<Connection>,
    pub(crate) stopped: bool,
    /// A confirm or a delivery has come since the calm began, or, of a drainer, its queue is empty.
    pub(crate) content: bool,
}

pub(crate) struct Connection {
    pub(crate) id: ConnectionId,
    place: Place,
    up_at: Duration,
    pub(crate) down_at: Duration,
    next_tag: u64,
    unconfirmed: BTreeMap<u64, MessageId>,
    /// Acknowledged since the last mark.
    acked: Vec<MessageId>,
    marks: BTreeMap<u64, Vec<MessageId>>,
    purging: Option<Vec<MessageId>>,
    /// Delivered and not acknowledged or returned.
    outstanding: BTreeMap<u64, MessageId>,
    /// Of those, how many are held for as long as the connection lives.
    held: usize,
}

impl Client {
    pub(crate) fn new(kind: Kind) -> Self {
        Self { kind, to_send_again: Vec::new(), connection: None, stopped: false, content: false }
    }

    fn queue(&self) -> &'static str {
        match self.kind {
            Kind::Consumer(queue) | Kind::Drainer(queue) => queue,
            Kind::Publisher | Kind::Purger => PILE,
        }
    }
}

impl World {
    pub(crate) fn client_step(&mut self, client: usize, step: ClientStep) -> Result<(), String> {
        match step {
            ClientStep::Connect => self.connect_client(client),
            ClientStep::Publish(id) => self.publish(client, id),
            ClientStep::Settle(id, tag, message) => self.settle_delivery(client, id, tag, message),
            ClientStep::Mark(id) => self.mark(client, id),
            ClientStep::Purge(id) => self.purge(client, id),
            ClientStep::Get(id) => self.get(client, id),
            ClientStep::Hears(id, outgoing) => return self.client_hears(client, id, outgoing),
            ClientStep::Lost(id) => self.client_lost(client, id),
        }
        Ok(())
    }

    fn connect_client(&mut self, client: usize) {
        if self.clients[client].connection.is_some() || self.clients[client].stopped {
            return;
        }
        let now = self.schedule.now;
        let serving = (0..self.machines.len()).find(|&machine| {
            let process = self.machines[machine].process.as_ref();
            process.is_some_and(|process| *process.shared.door.borrow() == Door::Here)
        });
        let anyone = self.rng.random_range(0..self.machines.len());
        let machine = serving.filter(|_| self.rng.random_bool(0.9)).unwrap_or(anyone);
        let Some(process) = &mut self.machines[machine].process else {
            return self.later_client(client, ClientStep::Connect, 5..150);
        };
        let id = ConnectionId(self.network.number());
        let (sender, outgoing) = mpsc::unbounded_channel();
        let pending_bytes = Arc::new(AtomicUsize::new(0));
        let congested = Arc::new(AtomicBool::new(false));
        let upload = Arc::new(Upload::beside(&Arc::default()));
        let outbox = Outbox { sender, pending_bytes: pending_bytes.clone(), congested: congested.clone(), upload };
        process.outboxes.insert(id, ClientEnd { client, outgoing, pending_bytes, congested });
        let place = Place { machine, process: process.key };
        self.clients[client].connection = Some(Connection {
            id,
            place,
            up_at: now,
            down_at: now,
            next_tag: 0,
            unconfirmed: BTreeMap::new(),
            acked: Vec::new(),
            marks: BTreeMap::new(),
            purging: None,
            outstanding: BTreeMap::new(),
            held: 0,
        });
        let info = ConnectionInfo { consumer_cancel_notify: true, ..ConnectionInfo::default() };
        let (answer, _) = oneshot::channel(); // it may do everything
        self.client_event(client, ClientEvent::Opened { id, info, outbox, answer });
        self.say(client, vec![Command::ChannelOpen, Command::ConfirmSelect { no_wait: true }]);
        let text = ShortStr::from_static;
        let mut topology: Vec<Command> = QUEUES.into_iter().map(declare).collect();
        topology.push(Command::ExchangeDeclare {
            name: text(FANOUT),
            kind: text("fanout"),
            passive: false,
            durable: true,
            auto_delete: false,
            internal: false,
            no_wait: true,
            arguments: Bytes::new(),
        });
        topology.push(Command::ExchangeDeclare {
            name: text(ONCE_EXCHANGE),
            kind: text("x-message-deduplication"),
            passive: false,
            durable: true,
            auto_delete: false,
            internal: false,
            no_wait: true,
            arguments: argument("x-cache-size", &[&[b'I'][..], &CACHE_SIZE.to_be_bytes()].concat()),
        });
        topology.push(Command::QueueBind {
            queue: text(ONCE[1]),
            exchange: text(ONCE_EXCHANGE),
            routing_key: ShortStr::EMPTY,
            no_wait: true,
            arguments: Bytes::new(),
        });
        topology.extend(WORK.into_iter().map(|queue| Command::QueueBind {
            queue: text(queue),
            exchange: text(FANOUT),
            routing_key: ShortStr::EMPTY,
            no_wait: true,
            arguments: Bytes::new(),
        }));
        self.say(client, topology);
        match self.clients[client].kind {
            Kind::Publisher => {
                for message in std::mem::take(&mut self.clients[client].to_send_again) {
                    self.insist(client, message);
                }
                self.later_client(client, ClientStep::Publish(id), 1..20);
            }
            Kind::Consumer(queue) => {
                let limit = Command::BasicQos { prefetch_size: 0, prefetch_count: PREFETCH, global: false };
                let consume = Command::BasicConsume {
                    queue: text(queue),
                    consumer_tag: text("consumer"),
                    no_local: false,
                    no_ack: false,
                    exclusive: false,
                    no_wait: true,
                    arguments: Bytes::new(),
                };
                self.say(client, vec![limit, consume]);
                self.later_client(client, ClientStep::Mark(id), 100..300);
            }
            Kind::Purger => self.later_client(client, ClientStep::Purge(id), 200..1500),
            Kind::Drainer(_) => self.get(client, id),
        }
    }

    fn later_client(&mut self, client: usize, step: ClientStep, millis: std::ops::Range<u64>) {
        let delay = Duration::from_micros(self.rng.random_range(millis.start * 1000..millis.end * 1000));
        self.schedule.after(delay, Happening::Client(client, step));
    }

    /// Towards the broker, in order.
    fn client_event(&mut self, client: usize, event: ClientEvent) {
        let delay = self.delay();
        let now = self.schedule.now;
        let Some(connection) = &mut self.clients[client].connection else { return };
        connection.up_at = connection.up_at.max(now + delay);
        let (at, place) = (connection.up_at, connection.place);
        self.schedule.at(at, Happening::To(place, ForProcess::Client(event)));
    }

    fn say(&mut self, client: usize, commands: Vec<Command>) {
        let Some(connection) = &self.clients[client].connection else { return };
        let commands = commands.into_iter().map(|command| (CHANNEL, command)).collect();
        self.client_event(client, ClientEvent::Commands { id: connection.id, commands });
    }

    /// The client's connection, if it is still that one.
    fn connection(&mut self, client: usize, id: ConnectionId) -> Option<&mut Connection> {
        self.clients[client].connection.as_mut().filter(|connection| connection.id == id)
    }

    fn publish(&mut self, client: usize, id: ConnectionId) {
        if self.clients[client].stopped {
            return;
        }
        let Some(connection) = self.connection(client, id) else { return };
        let full = connection.unconfirmed.len() >= WINDOW;
        if !full && self.rng.random_bool(0.1) {
            let lives = Duration::from_millis(self.rng.random_range(0..LONGEST_LIFE_MS));
            let message = self.ledger.publish_timed(self.schedule.now + lives);
            self.send(client, "", TIMED, message, 0, expiring(lives));
        } else if !full && self.rng.random_bool(0.1) {
            let message = self.ledger.publish_once();
            self.insist(client, message);
        } else if !full {
            let (exchange, key, queues): (&str, &str, &[&'static str]) = match self.rng.random_range(0..10) {
                0 | 1 => (FANOUT, "", &WORK),
                2 | 3 => ("", PILE, &[PILE]),
                n if n % 2 == 0 => ("", WORK[0], &WORK[..1]),
                _ => ("", WORK[1], &WORK[1..]),
            };
            let message = self.ledger.publish(queues);
            self.send(client, exchange, key, message, 0, persistent());
        }
        let every = self.plan.publish_every.as_millis() as u64;
        self.later_client(client, ClientStep::Publish(id), every / 2..every * 3 / 2 + 1);
    }

    /// The first attempt, or one more.
    fn insist(&mut self, client: usize, message: MessageId) {
        let Some((queue, attempt)) = self.ledger.attempt(message) else { return };
        let (exchange, key) = if queue == ONCE[0] { ("", queue) } else { (ONCE_EXCHANGE, "") };
        self.send(client, exchange, key, message, attempt, keyed(message));
    }

    /// `attempt`: 0, where there is only one. Returns the publish's tag.
    fn send(
        &mut self,
        client: usize,
        exchange: &'static str,
        key: &'static str,
        message: MessageId,
        attempt: u8,
        properties: Bytes,
    ) -> Option<u64> {
        let mut body = message.to_le_bytes().to_vec();
        body.push(attempt);
        body.resize(9 + self.rng.random_range(0..self.plan.largest_body), 0x2e);
        let connection = self.clients[client].connection.as_mut()?;
        connection.next_tag += 1;
        let tag = connection.next_tag;
        connection.unconfirmed.insert(tag, message);
        self.say(
            client,
            vec![Command::BasicPublish(Publish {
                exchange: ShortStr::from_static(exchange),
                routing_key: ShortStr::from_static(key),
                mandatory: false,
                immediate: false,
                properties,
                body: Body::new(body.into()),
            })],
        );
        Some(tag)
    }

    fn settle_delivery(&mut self, client: usize, id: ConnectionId, tag: u64, message: MessageId) {
        let queue = self.clients[client].queue();
        let consumes = matches!(self.clients[client].kind, Kind::Consumer(_));
        let returns = self.rng.random_bool(0.1) && consumes;
        let rejects = consumes && queue == WORK[1] && self.rng.random_bool(0.1);
        let Some(connection) = self.connection(client, id) else { return };
        connection.outstanding.remove(&tag);
        let delivery_tag = DeliveryTag(tag);
        if returns {
            self.ledger.return_it(message, queue);
            self.say(client, vec![Command::BasicReject { delivery_tag, requeue: true }]);
        } else if rejects {
            self.ledger.reject(message);
            self.say(client, vec![Command::BasicReject { delivery_tag, requeue: false }]);
        } else {
            connection.acked.push(message);
            self.say(client, vec![Command::BasicAck { delivery_tag, multiple: false }]);
        }
    }

    /// What was acknowledged so far is settled once a later publish of this channel is confirmed.
    fn mark(&mut self, client: usize, id: ConnectionId) {
        let Some(connection) = self.connection(client, id) else { return };
        let acked = std::mem::take(&mut connection.acked);
        if !acked.is_empty() {
            let message = self.ledger.publish(&[MARKS]);
            if let Some(tag) = self.send(client, "", MARKS, message, 0, persistent())
                && let Some(connection) = self.connection(client, id)
            {
                connection.marks.insert(tag, acked);
            }
        }
        self.later_client(client, ClientStep::Mark(id), 50..300);
    }

    fn purge(&mut self, client: usize, id: ConnectionId) {
        if self.clients[client].stopped || self.connection(client, id).is_none() {
            return;
        }
        let sure = self.ledger.purge_begins();
        if let Some(connection) = self.connection(client, id) {
            connection.purging = Some(sure);
        }
        self.say(client, vec![Command::QueuePurge { queue: ShortStr::from_static(PILE), no_wait: false }]);
    }

    fn get(&mut self, client: usize, id: ConnectionId) {
        if self.connection(client, id).is_some() {
            let queue = ShortStr::from_static(self.clients[client].queue());
            self.say(client, vec![Command::BasicGet { queue, no_ack: false }]);
        }
    }

    fn client_hears(&mut self, client: usize, id: ConnectionId, outgoing: Outgoing) -> Result<(), String> {
        if self.connection(client, id).is_none() {
            return Ok(());
        }
        match outgoing {
            Outgoing::Effects(effects) => {
                for effect in effects {
                    self.client_hears_effect(client, id, effect)?;
                }
            }
            Outgoing::Force(_) => self.client_lost(client, id),
            Outgoing::ChannelOpenOk(_) | Outgoing::ChannelCloseOk(_) => {}
        }
        Ok(())
    }

    fn client_hears_effect(&mut self, client: usize, id: ConnectionId, effect: Effect) -> Result<(), String> {
        let now = self.schedule.now;
        let Some(connection) = self.connection(client, id) else { return Ok(()) };
        match effect.kind {
            EffectKind::PublisherAck { delivery_tag, multiple } => {
                let tag = delivery_tag.0;
                let tags: Vec<u64> = match multiple {
                    true => connection.unconfirmed.range(..=tag).map(|(tag, _)| *tag).collect(),
                    false => vec![tag],
                };
                for tag in tags {
                    let Some(connection) = self.connection(client, id) else { break };
                    let settled = connection.marks.remove(&tag).unwrap_or_default();
                    if let Some(message) = connection.unconfirmed.remove(&tag) {
                        self.ledger.confirm(message);
                    }
                    let queue = self.clients[client].queue();
                    settled.into_iter().for_each(|message| self.ledger.settle(message, queue));
                }
                self.clients[client].content |= self.is_calm;
            }
            EffectKind::PublisherNack { .. } => return Err("a publish was refused".into()),
            EffectKind::BasicDeliver { delivery_tag, redelivered, message, .. } => {
                let queue = self.clients[client].queue();
                let number = message_id(&message.body).ok_or("a message of nobody")?;
                self.ledger.deliver(number, queue, redelivered, now)?;
                let holds = self.rng.random_bool(0.02);
                let Some(connection) = self.connection(client, id) else { return Ok(()) };
                connection.outstanding.insert(delivery_tag.0, number);
                if holds && connection.held + 2 < PREFETCH.into() {
                    connection.held += 1;
                } else {
                    let step = ClientStep::Settle(id, delivery_tag.0, number);
                    self.later_client(client, step, 0..30);
                }
            }
            EffectKind::BasicGetOk { delivery_tag, redelivered, message, .. } => {
                let queue = self.clients[client].queue();
                let number = message_id(&message.body).ok_or("a message of nobody")?;
                self.ledger.deliver(number, queue, redelivered, now)?;
                if ONCE.contains(&queue) {
                    let attempt = message.body.to_contiguous().get(8).copied();
                    self.ledger.came_of(number, attempt.ok_or("a message of nobody")?)?;
                }
                let ack = Command::BasicAck { delivery_tag, multiple: false };
                let next = Command::BasicGet { queue: ShortStr::from_static(queue), no_ack: false };
                self.say(client, vec![ack, next]);
            }
            EffectKind::BasicGetEmpty => {
                let waits = self.clients[client].queue() == LATE && self.ledger.awaits_expiry();
                self.clients[client].content = !waits;
                if waits {
                    self.later_client(client, ClientStep::Get(id), 20..100);
                }
            }
            EffectKind::QueuePurgeOk { .. } => {
                let sure = connection.purging.take().unwrap_or_default();
                self.ledger.purge_may_take_all();
                self.ledger.purged(&sure);
                self.later_client(client, ClientStep::Purge(id), 200..1500);
            }
            EffectKind::CloseChannel { error } | EffectKind::CloseConnection { error } => {
                return Err(format!("a client was closed for an error of its own: {error:?}"));
            }
            _ => {}
        }
        Ok(())
    }

    fn client_lost(&mut self, client: usize, id: ConnectionId) {
        let Some(connection) = self.connection(client, id) else { return };
        let (place, was_purging) = (connection.place, connection.purging.is_some());
        let outstanding = std::mem::take(&mut connection.outstanding);
        let unconfirmed: Vec<MessageId> = std::mem::take(&mut connection.unconfirmed).into_values().collect();
        let insisted_on = unconfirmed.into_iter().filter(|message| self.ledger.is_insisted_on(*message));
        self.clients[client].to_send_again.extend(insisted_on);
        let queue = self.clients[client].queue();
        outstanding.into_values().for_each(|message| self.ledger.return_it(message, queue));
        if was_purging {
            self.ledger.purge_may_take_all();
        }
        self.client_event(client, ClientEvent::Closed { id });
        self.clients[client].connection = None;
        if let Some(process) = self.process_at(place) {
            process.outboxes.remove(&id);
        }
        self.later_client(client, ClientStep::Connect, 5..150);
    }

    /// No more of this client: its connection is closed in good order.
    pub(crate) fn stop_client(&mut self, client: usize) {
        self.clients[client].stopped = true;
        if let Some(connection) = &self.clients[client].connection {
            let id = connection.id;
            self.client_lost(client, id);
        }
    }

    /// What the node said to its clients in this turn goes on its way; what was confirmed is checked as it leaves.
    pub(crate) fn collect_outboxes(&mut self, machine: usize) -> Result<(), String> {
        let Some(process) = &mut self.machines[machine].process else { return Ok(()) };
        let place = Place { machine, process: process.key };
        let mut said = Vec::new();
        let mut writable = Vec::new();
        for (id, end) in &mut process.outboxes {
            let mut bytes = 0;
            while let Ok(outgoing) = end.outgoing.try_recv() {
                if let Outgoing::Effects(effects) = &outgoing {
                    bytes += effects.iter().map(effect_cost).sum::<usize>();
                }
                said.push((end.client, *id, outgoing));
            }
            end.pending_bytes.fetch_sub(bytes, Ordering::AcqRel);
            if bytes > 0 && end.congested.swap(false, Ordering::AcqRel) {
                writable.push(*id);
            }
        }
        for id in writable {
            self.schedule.after(Duration::ZERO, Happening::To(place, ForProcess::Client(ClientEvent::Writable { id })));
        }
        for (client, id, outgoing) in said {
            if let Outgoing::Effects(effects) = &outgoing {
                for effect in effects {
                    if let EffectKind::PublisherAck { delivery_tag, multiple } = effect.kind {
                        self.check_confirm(client, id, delivery_tag.0, multiple)?;
                    }
                }
            }
            let (delay, now) = (self.delay(), self.schedule.now);
            let Some(connection) = self.connection(client, id) else { continue };
            connection.down_at = connection.down_at.max(now + delay);
            let at = connection.down_at;
            self.schedule.at(at, Happening::Client(client, ClientStep::Hears(id, outgoing)));
        }
        Ok(())
    }

    fn check_confirm(&mut self, client: usize, id: ConnectionId, tag: u64, multiple: bool) -> Result<(), String> {
        let Some(connection) = self.connection(client, id) else { return Ok(()) };
        let messages: Vec<MessageId> = match multiple {
            true => connection.unconfirmed.range(..=tag).map(|(_, message)| *message).collect(),
            false => connection.unconfirmed.get(&tag).copied().into_iter().collect(),
        };
        let standings = self.standings();
        for message in messages {
            self.witness.confirmed(message, self.api.lease(), &standings)?;
        }
        Ok(())
    }
}

fn declare(queue: &'static str) -> Command {
    Command::QueueDeclare {
        name: ShortStr::from_static(queue),
        passive: false,
        durable: true,
        exclusive: false,
        auto_delete: false,
        no_wait: true,
        arguments: match queue {
            _ if queue == WORK[1] => dies_into(DEAD),
            TIMED => dies_into(LATE),
            _ if queue == ONCE[0] => argument("x-message-deduplication", b"t\x01"),
            _ => Bytes::new(),
        },
    }
}

/// A queue's arguments, as a table without its length: its dead letters go to that queue.
fn dies_into(queue: &str) -> Bytes {
    let [to, by] = [("x-dead-letter-exchange", ""), ("x-dead-letter-routing-key", queue)]
        .map(|(name, value)| argument(name, &long_string(value)));
    [to, by].concat().into()
}

/// One field of a table: its name, and a type's letter with the value.
fn argument(name: &str, value: &[u8]) -> Bytes {
    let mut field = vec![name.len() as u8];
    field.extend_from_slice(name.as_bytes());
    field.extend_from_slice(value);
    field.into()
}

fn long_string(text: &str) -> Vec<u8> {
    let mut value = vec![b'S'];
    value.extend_from_slice(&(text.len() as u32).to_be_bytes());
    value.extend_from_slice(text.as_bytes());
    value
}

/// Persistent, with the key by which duplicates are known.
fn keyed(message: MessageId) -> Bytes {
    let headers = argument("x-deduplication-header", &long_string(&message.to_string()));
    let mut properties = vec![0x30, 0x00];
    properties.extend_from_slice(&(headers.len() as u32).to_be_bytes());
    properties.extend_from_slice(&headers);
    properties.push(2);
    properties.into()
}

/// Property flags with delivery-mode alone, and its value 2.
fn persistent() -> Bytes {
    Bytes::from_static(&[0x10, 0x00, 2])
}

/// With an expiration, too.
fn expiring(after: Duration) -> Bytes {
    let text = after.as_millis().to_string();
    let mut properties = vec![0x11, 0x00, 2, text.len() as u8];
    properties.extend_from_slice(text.as_bytes());
    properties.into()
}
