//! A broker in memory that does what a test asks of it: right or wrong. One queue; several brokers may share it, as a
//! cluster would. A killed broker drops its connections at once, and what they had out goes back to the queue.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use understudy_protocol::{
    ChannelId, DeliverRef, DeliveryTag, Event, Method, Properties, ServerConfig, ServerConnection, basic, confirm,
    queue,
};
use understudy_record::{Body, ShortStr};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Behaviour {
    Right,
    /// Confirms every tenth message and does not keep it.
    Forgets,
    /// Puts every tenth message back into the queue after it was acknowledged.
    Repeats,
    /// Refuses every tenth message.
    Refuses,
    /// Takes messages and never answers.
    NeverConfirms,
}

#[derive(Clone)]
struct Stored {
    properties: Properties,
    body: Body,
    redelivered: bool,
}

/// A queue that several brokers may serve.
#[derive(Clone, Default)]
pub(crate) struct Shared(Arc<SharedQueue>);

#[derive(Default)]
struct SharedQueue {
    ready: Mutex<VecDeque<Stored>>,
    changed: Notify,
}

impl Shared {
    fn push(&self, message: Stored) {
        self.0.ready.lock().unwrap().push_back(message);
        self.0.changed.notify_waiters();
    }

    fn put_back(&self, messages: impl DoubleEndedIterator<Item = Stored>) {
        let mut ready = self.0.ready.lock().unwrap();
        messages.rev().for_each(|message| ready.push_front(Stored { redelivered: true, ..message }));
        self.0.changed.notify_waiters();
    }
}

pub(crate) struct FakeBroker {
    pub(crate) address: String,
    task: JoinSet<()>,
}

impl FakeBroker {
    pub(crate) async fn start(shared: &Shared, behaviour: Behaviour) -> Self {
        Self::start_at("127.0.0.1:0", shared, behaviour).await
    }

    pub(crate) async fn start_at(address: &str, shared: &Shared, behaviour: Behaviour) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let shared = shared.clone();
        let mut task = JoinSet::new();
        task.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                connections.spawn(serve(stream, Session::new(shared.clone(), behaviour)));
            }
        });
        Self { address, task }
    }

    /// As a killed process: sockets close, and nobody listens.
    pub(crate) async fn kill(mut self) {
        self.task.shutdown().await;
    }
}

/// One connection's state; what is out goes back when it ends, however it ends.
struct Session {
    shared: Shared,
    behaviour: Behaviour,
    published: u64,
    prefetch: usize,
    consumer: Option<ChannelId>,
    next_tag: u64,
    acknowledged: u64,
    out: VecDeque<(u64, Stored)>,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.shared.put_back(std::mem::take(&mut self.out).into_iter().map(|(_, message)| message));
    }
}

async fn serve(mut stream: TcpStream, mut session: Session) {
    let origin = Instant::now();
    let mut connection = ServerConnection::new(Duration::ZERO, ServerConfig::default());
    let mut input = BytesMut::new();
    loop {
        let shared = session.shared.clone();
        let mut changed = std::pin::pin!(shared.0.changed.notified());
        changed.as_mut().enable(); // before looking at the queue, so that no change is missed
        session.deliver(&mut connection);
        while !connection.output().is_empty() {
            if stream.write_buf(connection.output()).await.is_err() {
                return;
            }
        }
        if connection.is_closed() {
            return;
        }
        tokio::select! {
            read = stream.read_buf(&mut input) => match read {
                Ok(0) | Err(_) => return,
                Ok(_) => connection.handle_bytes(origin.elapsed(), &mut input),
            },
            () = &mut changed => {}
        }
        while let Some(event) = connection.poll_event() {
            session.take(&mut connection, origin.elapsed(), event);
        }
    }
}

impl Session {
    fn new(shared: Shared, behaviour: Behaviour) -> Self {
        let (published, prefetch, next_tag) = (0, 0, 1);
        Self { shared, behaviour, published, prefetch, consumer: None, next_tag, acknowledged: 0, out: VecDeque::new() }
    }

    fn take(&mut self, connection: &mut ServerConnection, now: Duration, event: Event) {
        match event {
            Event::Authenticate { .. } => connection.accept_authentication(now),
            Event::Open { .. } => connection.open_connection(now),
            Event::ChannelOpen(channel) => connection.open_channel(channel),
            Event::ChannelClose(channel) => connection.channel_closed(channel),
            Event::Ended(_) => connection.connection_closed(),
            Event::Publish(channel, publish) => {
                self.published += 1;
                let tag = DeliveryTag(self.published);
                let is_tenth = self.published.is_multiple_of(10);
                match self.behaviour {
                    Behaviour::NeverConfirms => return,
                    Behaviour::Refuses if is_tenth => return connection.send_nack(channel, tag, false),
                    Behaviour::Forgets if is_tenth => {}
                    _ => self.shared.push(Stored {
                        properties: publish.properties,
                        body: publish.body,
                        redelivered: false,
                    }),
                }
                connection.send_ack(channel, tag, false);
            }
            Event::Method(channel, method) => self.take_method(connection, channel, method),
            _ => {}
        }
    }

    fn take_method(&mut self, connection: &mut ServerConnection, channel: ChannelId, method: Method) {
        let answer: Method = match method {
            Method::QueueDeclare(declare) => {
                queue::DeclareOk { queue: declare.queue, ..queue::DeclareOk::default() }.into()
            }
            Method::QueueDelete(_) => queue::DeleteOk::default().into(),
            Method::ConfirmSelect(_) => confirm::SelectOk::default().into(),
            Method::BasicQos(qos) => {
                self.prefetch = usize::from(qos.prefetch_count);
                basic::QosOk::default().into()
            }
            Method::BasicConsume(_) => {
                self.consumer = Some(channel);
                basic::ConsumeOk { consumer_tag: ShortStr::from_static("c") }.into()
            }
            Method::BasicAck(ack) => return self.acknowledge(ack.delivery_tag.0, ack.multiple),
            _ => return,
        };
        connection.send_method(channel, &answer);
    }

    fn acknowledge(&mut self, tag: u64, multiple: bool) {
        let (done, kept): (VecDeque<_>, VecDeque<_>) =
            self.out.drain(..).partition(|(out, _)| if multiple { *out <= tag } else { *out == tag });
        self.out = kept;
        for (_, message) in done {
            self.acknowledged += 1;
            if self.behaviour == Behaviour::Repeats && self.acknowledged.is_multiple_of(10) {
                self.shared.put_back(std::iter::once(message));
            }
        }
    }

    fn deliver(&mut self, connection: &mut ServerConnection) {
        let Some(channel) = self.consumer else { return };
        let mut ready = self.shared.0.ready.lock().unwrap();
        while self.out.len() < self.prefetch
            && let Some(message) = ready.pop_front()
        {
            let delivery = DeliverRef {
                consumer_tag: &ShortStr::from_static("c"),
                delivery_tag: DeliveryTag(self.next_tag),
                redelivered: message.redelivered,
                exchange: &ShortStr::EMPTY,
                routing_key: &ShortStr::from_static("q"),
                properties: message.properties.as_bytes(),
                body: &message.body,
            };
            connection.send_deliver(channel, &delivery).unwrap();
            self.out.push_back((self.next_tag, message));
            self.next_tag += 1;
        }
    }
}
