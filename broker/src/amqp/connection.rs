//! One client's connection: its task reads, lets the protocol machine make sense of it, hands commands to the core
//! thread in batches, and writes what the core answers. Fullness goes both ways: while the core's inbox is full, the socket
//! is not read; while the socket is full, the core gets to know and delivers no more.
//!
//! Where publishers must wait, a connection goes on being read until it publishes: acknowledgements and all else that stands
//! before its first publish take effect, the publish and what stands behind it wait, and nothing more is read, so that what
//! waits is bounded by one read. Deliveries to it go on. A connection that does not publish notices nothing.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot, watch};
use understudy_core::{Account, Command, ConnectionId, ConnectionInfo};
use understudy_protocol::{
    ChannelId, End, Event, Method, MethodId, ReplyCode, ServerConfig, ServerConnection, connection, sasl,
};
use understudy_record::Body;

use super::gets::Gets;
use super::large::{self, Streaming};
use super::socket::{Untaken, Written, part, read_some, sleep_until, write_all_of, write_some};
use super::traffic::Traffic;
use super::{Amqp, Peer, convert};
use understudy_node::{ClientEvent, Flow, Outbox, Outgoing, Upload, effect_cost};

/// The read buffer grows by at least so much. One read's worth of publishes is one batch for the core.
const READ_BYTES: usize = 64 << 10;

/// Encoded bytes waiting for the socket above which no more effects are taken from the outbox.
const OUTPUT_BYTES: usize = 256 << 10;

/// Outbox entries taken in one go.
const OUTBOX_BATCH: usize = 64;

/// Below this many bytes in the outbox a congested connection gets deliveries again.
const UNCONGESTED_BYTES: usize = 512 << 10;

/// Above this many bytes in the outbox the client is not read either. Deliveries stop long before: what is in there are answers
/// to what it asks for and does not read.
const OVERFULL_BYTES: usize = 16 << 20;

/// Messages that have begun to come and are not whole, on all channels of a connection: each costs up to a mebibyte before its
/// parts go to the log. A client that sends one message after the other has one.
const MAX_ASSEMBLING_BYTES: usize = 64 << 20;

pub(super) struct Connection {
    amqp: Arc<Amqp>,
    peer: Peer,
    id: ConnectionId,
    protocol: ServerConnection,
    /// Commands not handed over yet; the socket is not read meanwhile.
    commands: Vec<(understudy_core::ChannelId, Command)>,
    /// Where among them the first publish is.
    first_publish: Option<usize>,
    gets: Gets,
    traffic: Traffic,
    /// It has ever published, or begun to: it is told when publishers must wait.
    is_publisher: bool,
    outbox: Outbox,
    inbox: mpsc::UnboundedReceiver<Outgoing>,
    /// A large message is on its way out; what stands behind it waits in `held`.
    streaming: Option<Streaming>,
    held: VecDeque<Outgoing>,
    /// The core knows this connection.
    registered: bool,
    /// The right to be open.
    place: Option<OwnedSemaphorePermit>,
    /// Who has logged in.
    user: String,
    account: Account,
    blocked: bool,
    ended: bool,
}

impl Connection {
    pub(super) fn new(amqp: Arc<Amqp>, peer: Peer) -> Self {
        let id = ConnectionId(amqp.next_connection.fetch_add(1, Ordering::Relaxed));
        let protocol = ServerConnection::new(amqp.started.elapsed(), amqp.server_for(&peer));
        let (sender, inbox) = mpsc::unbounded_channel();
        let outbox = Outbox {
            sender,
            pending_bytes: Arc::new(AtomicUsize::new(0)),
            congested: Arc::new(AtomicBool::new(false)),
            upload: Arc::new(Upload::beside(&amqp.uploads)),
        };
        Self {
            traffic: Traffic::new(amqp.metrics.clone()),
            amqp,
            peer,
            id,
            protocol,
            commands: Vec::new(),
            first_publish: None,
            gets: Gets::default(),
            is_publisher: false,
            outbox,
            inbox,
            streaming: None,
            held: VecDeque::new(),
            registered: false,
            place: None,
            user: String::new(),
            account: Account::default(),
            blocked: false,
            ended: false,
        }
    }

    pub(super) async fn run<S: AsyncRead + AsyncWrite + Send + Unpin>(mut self, stream: S) {
        self.amqp.metrics.connections.inc();
        let (mut reading, mut writing) = tokio::io::split(stream);
        let mut flow = self.amqp.flow.clone();
        let clients = self.amqp.clients.clone();
        let upload = self.outbox.upload.clone();
        let mut buffer = BytesMut::with_capacity(READ_BYTES);
        let mut outgoing = Vec::with_capacity(OUTBOX_BATCH);
        // TLS may hold back what it was given.
        let mut unflushed = false;
        let mut untaken = Untaken::default();
        // Octets since unfinished messages were looked at.
        let mut unlooked = 0;
        while !(self.protocol.is_closed() && self.protocol.output().is_empty()) {
            let begun = self.has_begun_to_publish();
            self.show_flow();
            let wake = self.protocol.poll_timeout().map(|at| self.amqp.started + at);
            let sendable = self.sendable();
            let has_commands = !self.commands.is_empty();
            let uploads = upload.is_full();
            let overfull = self.outbox.pending_bytes.load(Ordering::Acquire) > OVERFULL_BYTES;
            let may_read = !has_commands && !begun && !uploads && !overfull && !self.protocol.is_closed();
            let excused = begun || uploads || (self.first_publish.is_some() && self.publishers_must_wait());
            let waits = self.blocked || begun || sendable < self.commands.len();
            let may_wait = self.is_publisher && self.protocol.is_open();
            let has_room = self.protocol.output().remaining() < OUTPUT_BYTES;
            let streams = self.streaming.is_some();
            let wanted = self.protocol.wanted_bytes(&buffer).max(READ_BYTES);
            let output = self.protocol.output();
            let has_output = !output.is_empty() || unflushed;
            let give_up = untaken.since(has_output && !excused).map(|since| since + self.amqp.options.send_timeout);
            tokio::select! {
                permit = clients.reserve(), if sendable > 0 => {
                    let Ok(permit) = permit else { return self.end().await };
                    let commands = self.take_commands(sendable);
                    permit.send(ClientEvent::Commands { id: self.id, commands });
                    self.drain_events().await; // what stood behind a publish that had to wait
                }
                // While a large message goes out too, since its connection may be closed meanwhile.
                count = self.inbox.recv_many(&mut outgoing, OUTBOX_BATCH), if has_room || streams => {
                    if count == 0 { return self.end().await }
                    self.take_all(&mut outgoing).await;
                }
                piece = next_piece(&mut self.streaming), if has_room && streams => {
                    self.take_piece(piece).await;
                }
                () = upload.shrunk(), if uploads => {}
                written = write_some(&mut writing, output), if has_output => {
                    untaken = Untaken::default();
                    let Ok(written) = written else { return self.end().await };
                    unflushed = written == Written::Some;
                }
                read = read_some(&mut reading, &mut buffer, wanted), if may_read => {
                    match read {
                        Ok(0) | Err(_) => self.protocol.handle_eof(),
                        Ok(count) => {
                            self.protocol.handle_bytes(self.now(), &mut buffer);
                            unlooked += count;
                        }
                    }
                    if unlooked > OUTPUT_BYTES {
                        unlooked = 0;
                        self.bound_assembling();
                    }
                    self.drain_events().await;
                }
                () = sleep_until(wake.into_iter().chain(give_up).min()) => {
                    if give_up.is_some_and(|at| at <= Instant::now()) {
                        self.amqp.metrics.unread_connections.inc();
                        let patience = self.amqp.options.send_timeout;
                        tracing::warn!(peer = %self.peer, user = %self.user, "dropped: it took nothing of what waits for it for {patience:?}");
                        return self.end().await;
                    }
                    let now = self.now();
                    if !may_read {
                        self.protocol.handle_unread(now); // it is this side that does not listen
                    }
                    self.protocol.handle_timeout(now);
                    self.drain_events().await;
                }
                changed = flow_turns(&mut flow, waits), if waits || may_wait => {
                    if changed.is_err() { return self.end().await }
                }
            }
        }
        self.end().await;
        part(&mut reading, &mut writing).await;
    }

    fn now(&self) -> Duration {
        self.amqp.started.elapsed()
    }

    fn publishers_must_wait(&self) -> bool {
        *self.amqp.flow.borrow() != Flow::Open
    }

    /// How many of the commands may go to the core: while publishers must wait, those before the first publish; and not more
    /// gets than may be unanswered.
    fn sendable(&self) -> usize {
        let before = match self.first_publish {
            Some(before) if self.publishers_must_wait() => before,
            _ => self.commands.len(),
        };
        before.min(self.gets.sendable(&self.commands))
    }

    /// The protocol's own memory, for a client that begins messages and does not end them.
    fn bound_assembling(&mut self) {
        let held = self.protocol.assembling_bytes();
        if held > MAX_ASSEMBLING_BYTES {
            let text = format!("{held} bytes of messages that are not whole, {MAX_ASSEMBLING_BYTES} may be");
            self.protocol.close_connection(self.now(), ReplyCode::ResourceError, &text, MethodId::NONE);
        }
    }

    /// Publishers must wait for long, and part of a message has been read: the rest of it, which may be large, stays in the
    /// socket.
    fn has_begun_to_publish(&mut self) -> bool {
        let begun = matches!(&*self.amqp.flow.borrow(), Flow::Blocked(_)) && self.protocol.is_amid_publish();
        self.is_publisher |= begun;
        begun
    }

    /// Tells a publisher that publishes are held for long, and when they are not any more.
    fn show_flow(&mut self) {
        match &*self.amqp.flow.borrow() {
            Flow::Blocked(reason) if !self.blocked && self.is_publisher && self.protocol.is_open() => {
                self.protocol.block(reason);
                self.blocked = true;
            }
            Flow::Open if self.blocked => {
                self.protocol.unblock();
                self.blocked = false;
            }
            _ => {}
        }
    }

    /// What has been read, up to a publish that must wait. What stands behind it, a close included, stays where it is: else
    /// whoever publishes and closes at once would never have to wait.
    async fn drain_events(&mut self) {
        while !(self.first_publish.is_some() && self.publishers_must_wait())
            && let Some(event) = self.protocol.poll_event()
        {
            match event {
                Event::Authenticate { mechanism, response, .. } => self.authenticate(&mechanism, response).await,
                Event::Open { virtual_host } => self.open(&virtual_host).await,
                Event::ChannelOpen(channel) => self.push(channel, Command::ChannelOpen),
                Event::ChannelClose(channel) => self.push(channel, Command::ChannelClose),
                Event::PublishPart(channel, body) => {
                    self.is_publisher = true;
                    self.outbox.upload.add(body.len());
                    self.first_publish.get_or_insert(self.commands.len());
                    self.push(channel, Command::PublishPart { body });
                }
                Event::Publish(channel, publish) => {
                    self.is_publisher = true;
                    self.first_publish.get_or_insert(self.commands.len());
                    self.push(channel, convert::publish(publish));
                }
                Event::Method(channel, method) => {
                    let (id, name) = (method.id(), method.name());
                    match convert::command(method) {
                        Some(command) => self.push(channel, command),
                        None => {
                            let text = format!("{name} is not for a client to send");
                            self.protocol.close_connection(self.now(), ReplyCode::CommandInvalid, &text, id);
                        }
                    }
                }
                Event::ChannelFailed { channel, code, text } => {
                    tracing::info!(peer = %self.peer, channel = channel.0, code = code.number(), "channel closed: {text}");
                    self.hand_over().await;
                    let channel = understudy_core::ChannelId(channel.0);
                    self.gets.forget(channel);
                    self.traffic.forget(channel);
                    _ = self.amqp.clients.send(ClientEvent::ChannelFailed { id: self.id, channel }).await;
                }
                Event::UpdateSecret { .. } => {
                    // A password does not expire: whoever logged in with one has nothing to renew, as in RabbitMQ.
                    let answer = Method::ConnectionUpdateSecretOk(connection::UpdateSecretOk {});
                    self.protocol.send_method(ChannelId(0), &answer);
                }
                Event::Ended(end) => self.handle_ended(&end).await,
            }
        }
    }

    fn push(&mut self, channel: ChannelId, command: Command) {
        let channel = understudy_core::ChannelId(channel.0);
        self.gets.note_read(&command);
        self.traffic.note_read(channel, &command);
        self.commands.push((channel, command));
    }

    /// The first `count` of the commands.
    fn take_commands(&mut self, count: usize) -> Vec<(understudy_core::ChannelId, Command)> {
        let taken = self.take_first(count);
        self.gets.note_sent(&taken);
        self.traffic.add_up();
        taken
    }

    fn take_first(&mut self, count: usize) -> Vec<(understudy_core::ChannelId, Command)> {
        if count >= self.commands.len() {
            self.first_publish = None;
            return std::mem::take(&mut self.commands);
        }
        let rest = self.commands.split_off(count);
        self.first_publish = self.first_publish.and_then(|at| at.checked_sub(count));
        std::mem::replace(&mut self.commands, rest)
    }

    /// What has been read goes to the core before something that must come after it.
    async fn hand_over(&mut self) {
        if !self.commands.is_empty() {
            let commands = self.take_commands(usize::MAX);
            _ = self.amqp.clients.send(ClientEvent::Commands { id: self.id, commands }).await;
        }
    }

    async fn authenticate(&mut self, mechanism: &understudy_record::ShortStr, response: bytes::Bytes) {
        let offered = self.amqp.options.mechanisms.on(self.peer.tls, self.peer.certificate_name.is_some());
        if !{ offered }.any(|offered| offered.name().as_bytes() == mechanism.as_bytes()) {
            let error = sasl::SaslError::UnknownMechanism(convert::text_of(mechanism)).to_string();
            self.amqp.logins.refuse(&self.peer, "", &error).await;
            return self.protocol.refuse_authentication(self.now(), &error);
        }
        let (user, account, reason) = match &self.peer.certificate_name {
            Some(name) if mechanism.as_bytes() == sasl::EXTERNAL.as_bytes() => {
                (name.clone(), self.amqp.authenticator.account_of(name), "no such user as the certificate's")
            }
            _ => match sasl::parse(mechanism.as_bytes(), &response) {
                Ok(credentials) => {
                    let user = String::from_utf8_lossy(&credentials.user).into_owned();
                    // Without an answer the handshake runs out of time.
                    let Some(account) = self.verify(credentials).await else { return };
                    (user, account, "wrong user or password")
                }
                Err(error) => {
                    self.amqp.logins.refuse(&self.peer, "", &error.to_string()).await;
                    return self.protocol.refuse_authentication(self.now(), &error.to_string());
                }
            },
        };
        if let Some(account) = account {
            tracing::debug!(peer = %self.peer, %user, "logged in");
            (self.user, self.account) = (user, account);
            self.protocol.accept_authentication(self.now());
        } else {
            self.amqp.metrics.refused_logins.inc();
            self.amqp.logins.refuse(&self.peer, &user, reason).await;
            let mechanism = convert::text_of(mechanism);
            let text = format!(
                "Login was refused using authentication mechanism {mechanism}. For details see the broker logfile."
            );
            self.protocol.refuse_authentication(self.now(), &text);
        }
    }

    /// Where the user is known from, if the password is right. One that has to be hashed waits for its turn; `None` after as
    /// long as the handshake may take.
    async fn verify(&self, credentials: sasl::Credentials) -> Option<Option<Account>> {
        let authenticator = self.amqp.authenticator.clone();
        let sasl::Credentials { user, password } = credentials;
        if authenticator.is_quick(&user, &password) {
            return Some(authenticator.verify(&user, &password));
        }
        let turn = tokio::time::timeout(self.amqp.options.handshake_timeout, self.amqp.logins.turn(&self.peer)).await;
        let _turn = turn.ok()?;
        Some(tokio::task::spawn_blocking(move || authenticator.verify(&user, &password)).await.unwrap_or(None))
    }

    async fn open(&mut self, virtual_host: &understudy_record::ShortStr) {
        let Ok(place) = self.amqp.places.clone().try_acquire_owned() else {
            let text =
                format!("connection refused: node connection limit ({}) is reached", self.amqp.options.max_connections);
            let cause = understudy_protocol::connection::Open::ID;
            return self.protocol.close_connection(self.now(), ReplyCode::NotAllowed, &text, cause);
        };
        self.place = Some(place);
        let info = ConnectionInfo {
            user: self.user.clone(),
            account: self.account,
            vhost: virtual_host.detached(),
            consumer_cancel_notify: self.protocol.client_capability("consumer_cancel_notify"),
        };
        let (answer, answered) = oneshot::channel();
        let opened = ClientEvent::Opened { id: self.id, info, outbox: self.outbox.clone(), answer };
        if self.amqp.clients.send(opened).await.is_err() {
            return;
        }
        match answered.await {
            Ok(Ok(())) => {
                self.registered = true;
                self.protocol.open_connection(self.now());
            }
            Ok(Err(error)) => {
                tracing::warn!(peer = %self.peer, user = %self.user, "connection refused: {error}");
                self.protocol.close_connection(
                    self.now(),
                    error.code,
                    convert::bare(&error.text, error.code),
                    connection::Open::ID,
                );
            }
            // Not the primary, or no longer: its word stands in the outbox.
            Err(_) => {}
        }
    }

    /// What the core says, in order: up to a large message, which goes out first.
    async fn take_all(&mut self, outgoing: &mut Vec<Outgoing>) {
        let now = self.now();
        for message in outgoing.drain(..) {
            match message {
                Outgoing::Force(_) => {
                    self.streaming = None;
                    self.held.clear();
                    self.take(now, message);
                }
                message if self.streaming.is_some() => self.held.push_back(message),
                message => self.take(now, message),
            }
        }
        self.report_writable().await;
        self.drain_events().await;
    }

    /// The next piece of the large message, and after its last whatever waited for it.
    async fn take_piece(&mut self, piece: Result<Body, large::Unreadable>) {
        let now = self.now();
        let Some(streaming) = &self.streaming else { return };
        match piece {
            Ok(body) => self.protocol.send_body(streaming.channel, &body),
            Err(error) => {
                let reason = error.to_string();
                tracing::error!(peer = %self.peer, "{reason}");
                self.streaming = None;
                self.held.clear();
                self.protocol.close_connection(now, ReplyCode::InternalError, &reason, MethodId::NONE);
                _ = self.amqp.clients.send(ClientEvent::Unreadable { id: self.id, reason }).await;
            }
        }
        if self.streaming.as_ref().is_some_and(Streaming::is_over) || !self.protocol.is_open() {
            self.streaming = None;
            while self.streaming.is_none()
                && let Some(message) = self.held.pop_front()
            {
                self.take(now, message);
            }
            self.report_writable().await;
        }
        self.drain_events().await;
    }

    fn take(&mut self, now: Duration, message: Outgoing) {
        match message {
            Outgoing::Effects(effects) => {
                let mut bytes = 0;
                let mut effects = effects.into_iter();
                for effect in effects.by_ref() {
                    bytes += effect_cost(&effect);
                    self.gets.note_answered(effect.channel, &effect.kind);
                    self.traffic.note_sent(effect.channel, &effect.kind);
                    let channel = ChannelId(effect.channel.0);
                    match convert::send(&mut self.protocol, now, channel, effect.kind) {
                        Ok(None) => {}
                        Ok(Some((parts, last))) => {
                            self.streaming = Some(Streaming::new(channel, parts, last, self.amqp.reader.clone()));
                            break;
                        }
                        Err(error) => {
                            let text = format!("{error}: reconnect with a larger frame_max");
                            self.protocol.close_connection(now, ReplyCode::FrameError, &text, MethodId::NONE);
                        }
                    }
                }
                self.traffic.add_up();
                let rest: Vec<_> = effects.collect();
                if !rest.is_empty() {
                    self.held.push_front(Outgoing::Effects(rest));
                }
                self.outbox.pending_bytes.fetch_sub(bytes, Ordering::AcqRel);
            }
            Outgoing::ChannelOpenOk(channel) => self.protocol.open_channel(ChannelId(channel.0)),
            Outgoing::ChannelCloseOk(channel) => self.protocol.channel_closed(ChannelId(channel.0)),
            Outgoing::Force(reason) => {
                self.registered = false; // the core has forgotten it
                self.commands.clear();
                self.gets = Gets::default();
                self.first_publish = None;
                self.protocol.close_connection(now, ReplyCode::ConnectionForced, &reason, MethodId::NONE);
            }
        }
    }

    /// A client that has read most of what waited for it gets deliveries again.
    async fn report_writable(&mut self) {
        let low = self.outbox.pending_bytes.load(Ordering::Acquire) < UNCONGESTED_BYTES;
        if low && self.outbox.congested.swap(false, Ordering::AcqRel) {
            _ = self.amqp.clients.send(ClientEvent::Writable { id: self.id }).await;
        }
    }

    async fn handle_ended(&mut self, end: &End) {
        match end {
            End::ByPeer { .. } => tracing::debug!(peer = %self.peer, "closed by the client"),
            // That has been told already, or counted.
            End::AuthenticationRefused => tracing::debug!(peer = %self.peer, "{end}"),
            end if self.user.is_empty() => self.amqp.strangers.tell(&self.peer, &format!("a stranger has gone: {end}")),
            end => tracing::info!(peer = %self.peer, "connection ended: {end}"),
        }
        self.hand_over().await;
        self.deregister().await;
        if let End::ByPeer { .. } = end {
            self.protocol.connection_closed();
        }
    }

    async fn deregister(&mut self) {
        if std::mem::take(&mut self.registered) {
            _ = self.amqp.clients.send(ClientEvent::Closed { id: self.id }).await;
        }
    }

    async fn end(&mut self) {
        if self.registered {
            // Acknowledgements that were read count, though nothing can be written any more; publishes that had to wait do not.
            let commands = self.take_commands(self.sendable());
            if !commands.is_empty() {
                _ = self.amqp.clients.send(ClientEvent::Commands { id: self.id, commands }).await;
            }
        }
        self.deregister().await;
        if !std::mem::replace(&mut self.ended, true) {
            self.amqp.metrics.connections.dec();
        }
    }
}

/// Of the large message that goes out, if one does.
async fn next_piece(streaming: &mut Option<Streaming>) -> Result<Body, large::Unreadable> {
    match streaming {
        Some(streaming) => streaming.next_piece().await,
        None => std::future::pending().await,
    }
}

/// Whatever change there is to one that waits for it; to other publishers only that publishes are held for long: whoever has
/// published just before wonders where the confirm is.
async fn flow_turns(flow: &mut watch::Receiver<Flow>, waits: bool) -> Result<(), watch::error::RecvError> {
    if waits {
        return flow.changed().await;
    }
    flow.wait_for(|flow| matches!(flow, Flow::Blocked(_))).await.map(|_| ())
}

/// `clients.backupConnections: Refuse`: the handshake, then a close that names the primary.
pub(super) async fn refuse<S>(stream: S, config: ServerConfig, started: Instant, text: &str)
where
    S: AsyncRead + AsyncWrite + Send + Unpin,
{
    let mut protocol = ServerConnection::new(started.elapsed(), config);
    let (mut reading, mut writing) = tokio::io::split(stream);
    let mut buffer = BytesMut::with_capacity(READ_BYTES);
    while !(protocol.is_closed() && protocol.output().is_empty()) {
        let wake = protocol.poll_timeout().map(|at| started + at);
        let closed = protocol.is_closed();
        let output = protocol.output();
        let has_output = !output.is_empty();
        tokio::select! {
            written = write_all_of(&mut writing, output), if has_output => if written.is_err() { return },
            read = reading.read_buf(&mut buffer), if !closed => match read {
                Ok(0) | Err(_) => protocol.handle_eof(),
                Ok(_) => protocol.handle_bytes(started.elapsed(), &mut buffer),
            },
            () = sleep_until(wake) => protocol.handle_timeout(started.elapsed()),
        }
        while let Some(event) = protocol.poll_event() {
            match event {
                // Whoever it is: nothing is served here, so nothing is asked.
                Event::Authenticate { .. } => protocol.accept_authentication(started.elapsed()),
                Event::Open { .. } => {
                    protocol.close_connection(started.elapsed(), ReplyCode::ConnectionForced, text, MethodId::NONE);
                }
                Event::Ended(End::ByPeer { .. }) => protocol.connection_closed(),
                _ => {}
            }
        }
    }
    part(&mut reading, &mut writing).await;
}
