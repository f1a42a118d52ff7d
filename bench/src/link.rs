//! One connection with one channel: a socket and the client's side of the protocol, driven by a single task. It decides
//! nothing about messages; it connects, declares the queue, moves octets, and says when the connection is over.
//!
//! A turn writes what can be written, reads what is there in one call, and waits only when there was nothing to read.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::time::{Duration, Instant};

use bytes::{Buf, BytesMut};
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::time::Sleep;
use understudy_protocol::{
    ChannelId, ClientConfig, ClientConnection, ClientEnd, ClientEvent, DeliveryTag, GotMessage, HeaderTooLarge, Method,
    MethodId, PublishRef, basic,
};
use understudy_record::ShortStr;

use crate::target::{QueuePlan, Target};

const CHANNEL: ChannelId = ChannelId(1);
/// A read takes this much at once: some sixty messages of 1 KiB, so that reads stay few at any rate.
const READ_BYTES: usize = 64 * 1024;
/// Slices of one vectored write; more do not make it cheaper.
const WRITE_SLICES: usize = 64;
/// Requests without an answer, at most: enough that the way there and back costs nothing.
const PIPELINE: usize = 64;
/// How often a waiting task looks at things that are not events: a stop, a silence, a heartbeat.
const TICK: Duration = Duration::from_millis(5);
/// A good-order close is given so long before the socket is dropped.
const CLOSE_LIMIT: Duration = Duration::from_secs(2);

#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    #[error("no address to connect to")]
    NoAddress,
    #[error("the queue's name is longer than 255 bytes")]
    QueueName,
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("no answer within {} ms", .0.as_millis())]
    TimedOut(Duration),
    #[error("no confirm for {} ms", .0.as_millis())]
    Silent(Duration),
    #[error("the broker closed the connection: {code} {text}")]
    ClosedByBroker { code: u16, text: String },
    #[error("the broker closed the channel: {code} {text}")]
    ChannelClosed { code: u16, text: String },
    #[error("the broker cancelled the consumer")]
    ConsumerCancelled,
    #[error("connection ended: {0}")]
    Ended(String),
    #[error(transparent)]
    HeaderTooLarge(#[from] HeaderTooLarge),
}

pub(crate) struct Link {
    stream: TcpStream,
    connection: ClientConnection,
    input: BytesMut,
    /// Zero of the connection's own time.
    origin: Instant,
    tick: Pin<Box<Sleep>>,
    tick_every: Duration,
    has_read: bool,
}

impl Link {
    /// Connects, shakes hands, opens the channel and declares the queue, all within the target's limit for one attempt.
    pub(crate) async fn open(target: &Target, address: &str, queue: &QueuePlan) -> Result<Self, LinkError> {
        let opening = async {
            let mut link = Self::connect(target, address).await?;
            let declare = queue.declare().ok_or(LinkError::QueueName)?;
            link.request(declare.into(), understudy_protocol::queue::DeclareOk::ID).await?;
            Ok(link)
        };
        tokio::time::timeout(target.attempt_limit, opening)
            .await
            .unwrap_or(Err(LinkError::TimedOut(target.attempt_limit)))
    }

    /// Without a queue, and without a limit.
    pub(crate) async fn connect(target: &Target, address: &str) -> Result<Self, LinkError> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let config = ClientConfig {
            user: target.user.clone(),
            password: target.password.clone(),
            virtual_host: target.virtual_host.clone(),
            heartbeat_seconds: target.heartbeat_seconds,
            ..ClientConfig::default()
        };
        let mut link = Self {
            stream,
            connection: ClientConnection::new(Duration::ZERO, config),
            input: BytesMut::with_capacity(READ_BYTES),
            origin: Instant::now(),
            tick: Box::pin(tokio::time::sleep(TICK)),
            tick_every: TICK,
            has_read: false,
        };
        link.await_event(|event| matches!(event, ClientEvent::Connected { .. }).then_some(())).await?;
        link.connection.open_channel(CHANNEL);
        link.await_event(|event| matches!(event, ClientEvent::ChannelOpened(_)).then_some(())).await?;
        Ok(link)
    }

    /// Sends a method and waits for its answer. Other events that come meanwhile are dropped, so this is for the time
    /// before messages flow.
    pub(crate) async fn request(&mut self, method: Method, answer: MethodId) -> Result<Method, LinkError> {
        self.connection.send_method(CHANNEL, &method);
        self.await_event(|event| match event {
            ClientEvent::Method(_, method) if method.id() == answer => Some(method),
            _ => None,
        })
        .await
    }

    /// Sends methods, some at once, and hands over their answers in order.
    pub(crate) async fn request_all(
        &mut self,
        methods: impl IntoIterator<Item = Method>,
        answer: MethodId,
        mut take: impl FnMut(Method),
    ) -> Result<(), LinkError> {
        let mut methods = methods.into_iter().fuse();
        let mut open = 0;
        loop {
            for method in methods.by_ref().take(PIPELINE - open) {
                self.connection.send_method(CHANNEL, &method);
                open += 1;
            }
            if open == 0 {
                return Ok(());
            }
            let answered = self.await_event(|event| match event {
                ClientEvent::Method(_, method) if method.id() == answer => Some(method),
                _ => None,
            });
            take(answered.await?);
            open -= 1;
        }
    }

    /// Takes one message of a queue and acknowledges it; `None` if it is empty.
    pub(crate) async fn get(&mut self, queue: ShortStr) -> Result<Option<GotMessage>, LinkError> {
        self.connection.send_method(CHANNEL, &basic::Get { queue, no_ack: true }.into());
        self.await_event(|event| match event {
            ClientEvent::GotMessage(_, message) => Some(Some(message)),
            ClientEvent::Method(_, Method::BasicGetEmpty(_)) => Some(None),
            _ => None,
        })
        .await
    }

    async fn await_event<T>(&mut self, mut wanted: impl FnMut(ClientEvent) -> Option<T>) -> Result<T, LinkError> {
        loop {
            while let Some(event) = self.connection.poll_event() {
                if let Some(failure) = failure_in(&event) {
                    return Err(failure);
                }
                if let Some(found) = wanted(event) {
                    return Ok(found);
                }
            }
            self.turn().await?;
        }
    }

    pub(crate) fn tick_every(&mut self, period: Duration) {
        self.tick_every = period;
    }

    /// Writes and reads what can be, and returns after a read or a tick.
    pub(crate) async fn turn(&mut self) -> Result<(), LinkError> {
        tokio::task::consume_budget().await;
        loop {
            self.write()?;
            if self.read()? {
                return Ok(());
            }
            let interest = if self.connection.output().is_empty() {
                Interest::READABLE
            } else {
                Interest::READABLE | Interest::WRITABLE
            };
            tokio::select! {
                biased;
                ready = self.stream.ready(interest) => { ready?; }
                () = &mut self.tick => {
                    self.tick.as_mut().reset(tokio::time::Instant::now() + self.tick_every);
                    let now = self.origin.elapsed();
                    if self.connection.poll_timeout().is_some_and(|due| due <= now) {
                        self.connection.handle_timeout(now);
                        self.write()?;
                    }
                    return Ok(());
                }
            }
        }
    }

    fn write(&mut self) -> io::Result<()> {
        let output = self.connection.output();
        while output.has_remaining() {
            let mut slices = [IoSlice::new(&[]); WRITE_SLICES];
            let filled = output.chunks_vectored(&mut slices);
            match self.stream.try_write_vectored(&slices[..filled]) {
                Ok(written) => output.advance(written),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Whether anything came.
    fn read(&mut self) -> io::Result<bool> {
        self.input.reserve(self.connection.wanted_bytes(&self.input).max(READ_BYTES));
        match self.stream.try_read_buf(&mut self.input) {
            Ok(0) => self.connection.handle_eof(),
            Ok(_) => {
                self.has_read = true;
                self.connection.handle_bytes(self.origin.elapsed(), &mut self.input);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error),
        }
        Ok(true)
    }

    /// Whether the broker was heard since the last time this was asked.
    pub(crate) fn was_heard(&mut self) -> bool {
        std::mem::take(&mut self.has_read)
    }

    /// The next event; those that end the link come as errors.
    pub(crate) fn poll_event(&mut self) -> Result<Option<ClientEvent>, LinkError> {
        let event = self.connection.poll_event();
        match event.as_ref().and_then(failure_in) {
            Some(failure) => Err(failure),
            None => Ok(event),
        }
    }

    pub(crate) fn send_method(&mut self, method: &Method) {
        self.connection.send_method(CHANNEL, method);
    }

    pub(crate) fn publish(&mut self, message: &PublishRef<'_>) -> Result<(), HeaderTooLarge> {
        self.connection.publish(CHANNEL, message)
    }

    pub(crate) fn acknowledge(&mut self, tag: DeliveryTag, multiple: bool) {
        self.connection.send_ack(CHANNEL, tag, multiple);
    }

    /// Octets that wait for the socket.
    pub(crate) fn waiting_bytes(&mut self) -> usize {
        self.connection.output().len()
    }

    /// Closes in good order: everything sent before is taken by the broker. `false` if it did not answer in time.
    pub(crate) async fn close(mut self) -> bool {
        self.connection.close(self.origin.elapsed(), "done");
        let closing = async {
            while !self.connection.is_closed() {
                while let Some(event) = self.connection.poll_event() {
                    if let ClientEvent::Ended(end) = event {
                        return matches!(end, ClientEnd::ByUs);
                    }
                }
                if self.turn().await.is_err() {
                    return false;
                }
            }
            true
        };
        tokio::time::timeout(CLOSE_LIMIT, closing).await.unwrap_or(false)
    }
}

fn failure_in(event: &ClientEvent) -> Option<LinkError> {
    match event {
        ClientEvent::ChannelClosed { code, text, .. } => {
            Some(LinkError::ChannelClosed { code: *code, text: text.to_text().into_owned() })
        }
        ClientEvent::Ended(ClientEnd::ByServer { code, text }) => {
            Some(LinkError::ClosedByBroker { code: *code, text: text.to_text().into_owned() })
        }
        ClientEvent::Ended(end) => Some(LinkError::Ended(format!("{end:?}"))),
        ClientEvent::Method(_, Method::BasicCancel(_)) => Some(LinkError::ConsumerCancelled),
        _ => None,
    }
}

/// Finds the next broker that answers, beginning behind the last one.
pub(crate) struct Finder {
    target: Target,
    queue: QueuePlan,
    next: usize,
}

/// Between two rounds over all addresses: long enough not to burden the brokers, short against any failover.
const ROUND_PAUSE: Duration = Duration::from_millis(10);

impl Finder {
    pub(crate) fn new(target: Target, queue: QueuePlan) -> Self {
        Self { target, queue, next: 0 }
    }

    /// One attempt at the next address, with a pause after each round of failures.
    pub(crate) async fn attempt(&mut self) -> Result<(Link, String), (String, LinkError)> {
        let Some(address) = self.target.addresses.get(self.next).cloned() else {
            return Err((String::new(), LinkError::NoAddress));
        };
        self.next = (self.next + 1) % self.target.addresses.len();
        match Link::open(&self.target, &address, &self.queue).await {
            Ok(link) => Ok((link, address)),
            Err(error) => {
                if self.next == 0 {
                    tokio::time::sleep(ROUND_PAUSE).await;
                }
                Err((address, error))
            }
        }
    }
}
