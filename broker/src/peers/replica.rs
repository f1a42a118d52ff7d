//! The `Replica` service: followers' streams, backlogs, relayed clients.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::{Stream, StreamExt};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_stream::wrappers::{ReceiverStream, UnboundedReceiverStream};
use tonic::{Request, Response, Status, Streaming};
use understudy_proto as wire;
use understudy_record::{Alarms, Epoch, Frame, Index, QueueId, ReplicaName};
use understudy_replication::{StreamId, SyncId};

use super::{Bandwidth, convert};
use crate::amqp::{Amqp, Peer};
use crate::metrics::Metrics;
use understudy_node::{BacklogReply, BacklogRequest, Door, Event, Flow, FollowerEvent};

/// Backlog chunks on their way to one follower.
const CHUNKS_IN_FLIGHT: usize = 4;

pub(crate) struct ReplicaService {
    pub(crate) cluster: String,
    pub(crate) events: mpsc::Sender<Event>,
    pub(crate) amqp: Arc<Amqp>,
    pub(crate) door: watch::Receiver<Door>,
    metrics: Arc<Metrics>,
    /// For all catch-ups together.
    catch_ups: Arc<Bandwidth>,
    next_stream: AtomicU64,
}

impl ReplicaService {
    pub(crate) fn new(
        cluster: String,
        events: mpsc::Sender<Event>,
        amqp: Arc<Amqp>,
        door: watch::Receiver<Door>,
        catch_ups: Arc<Bandwidth>,
    ) -> Self {
        let metrics = amqp.metrics.clone();
        Self { cluster, events, amqp, door, metrics, catch_ups, next_stream: AtomicU64::new(1) }
    }
}

type Outgoing<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl wire::replica_server::Replica for ReplicaService {
    type FollowStream = Outgoing<wire::PrimaryMessage>;
    type FetchQueueStream = ReceiverStream<Result<wire::BacklogChunk, Status>>;
    type RelayStream = Outgoing<wire::RelayBytes>;

    async fn follow(
        &self,
        request: Request<Streaming<wire::FollowerMessage>>,
    ) -> Result<Response<Self::FollowStream>, Status> {
        let mut words = request.into_inner();
        let Some(wire::FollowerMessage { message: Some(wire::follower_message::Message::Hello(hello)), .. }) =
            words.message().await?
        else {
            return Err(Status::invalid_argument("a follower's first word is its hello"));
        };
        let inconsistent_at = hello.inconsistent_at;
        let hello = convert::hello(hello, &self.cluster)?;
        let follower = hello.follower.name.clone();
        let sent = self.metrics.sent_to(&hello.follower.name);
        let stream = StreamId(self.next_stream.fetch_add(1, Ordering::Relaxed));
        let (sender, messages) = mpsc::unbounded_channel();
        let events = self.events.clone();
        if inconsistent_at > 0 {
            let inconsistent = FollowerEvent::Inconsistent {
                follower: follower.clone(),
                at: Index(inconsistent_at),
                reason: "it comes back to fetch everything anew".into(),
            };
            send(&events, stream, inconsistent).await?;
        }
        send(&events, stream, FollowerEvent::Hello(Box::new(hello), sender)).await?;
        tokio::spawn(async move {
            let mut alarms = Alarms::default();
            while let Ok(Some(word)) = words.message().await {
                use wire::follower_message::Message;
                if let Some(Message::Acknowledge(_)) = &word.message {
                    let said = word.alarms.map_or_else(Alarms::default, Alarms::from);
                    if std::mem::replace(&mut alarms, said) != said
                        && send(&events, stream, FollowerEvent::Alarms(said)).await.is_err()
                    {
                        return;
                    }
                }
                if let Some(Message::Leaving(wire::Leaving { reason, inconsistent_at: at @ 1.. })) = &word.message {
                    let (follower, reason) = (follower.clone(), reason.clone());
                    let inconsistent = FollowerEvent::Inconsistent { follower, at: Index(*at), reason };
                    if send(&events, stream, inconsistent).await.is_err() {
                        return;
                    }
                }
                let event = match word.message {
                    Some(Message::Acknowledge(ack)) => FollowerEvent::Acknowledge(convert::acknowledge(&ack)),
                    Some(Message::CaughtUp(caught_up)) => FollowerEvent::CaughtUp(Index(caught_up.floor)),
                    Some(Message::Leaving(leaving)) => FollowerEvent::Leaving(leaving.reason),
                    Some(Message::Hello(_)) | None => break,
                };
                if send(&events, stream, event).await.is_err() {
                    return;
                }
            }
            _ = send(&events, stream, FollowerEvent::Closed).await;
        });
        let messages = UnboundedReceiverStream::new(messages);
        Ok(Response::new(Box::pin(messages.map(move |message| {
            sent.count(&message);
            Ok(convert::primary_message_to_wire(message))
        }))))
    }

    async fn fetch_queue(
        &self,
        request: Request<wire::FetchQueueRequest>,
    ) -> Result<Response<Self::FetchQueueStream>, Status> {
        let request = request.into_inner();
        let (sender, chunks) = mpsc::channel(CHUNKS_IN_FLIGHT);
        let (events, catch_ups) = (self.events.clone(), self.catch_ups.clone());
        let follower = request.follower.map(|follower| follower.name).unwrap_or_default();
        let sent = self.metrics.sent_to(&ReplicaName::new(&follower));
        let flow = self.amqp.flow.clone();
        tokio::spawn(async move {
            let mut from = convert::cursor(request.from);
            loop {
                let request = BacklogRequest {
                    epoch: Epoch(request.epoch),
                    sync_id: SyncId(request.sync_id),
                    queue: QueueId(Index(request.queue)),
                    from,
                };
                // Publishers that are blocked may be waiting for this very replica.
                let urgent = matches!(*flow.borrow(), Flow::Blocked(_));
                let chunk = catch_ups.make(urgent, fetch_chunk(&events, request)).await;
                let done = chunk.as_ref().map_or(true, |chunk| chunk.done);
                if let Ok(chunk) = &chunk {
                    from = chunk.next;
                    catch_ups.note(chunk.as_of);
                    let bytes = chunk.frames.iter().map(Frame::len).sum();
                    catch_ups.pass(bytes).await;
                    sent.backlog.inc_by(bytes as u64);
                }
                let chunk = chunk.map(convert::backlog_to_wire);
                if sender.send(chunk).await.is_err() || done {
                    return;
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(chunks)))
    }

    async fn relay(
        &self,
        request: Request<Streaming<wire::RelayBytes>>,
    ) -> Result<Response<Self::RelayStream>, Status> {
        if *self.door.borrow() != Door::Here {
            return Err(Status::unavailable("not the primary, or not yet"));
        }
        let mut incoming = request.into_inner();
        let first = incoming.message().await?.ok_or_else(|| Status::invalid_argument("an empty relay"))?;
        let client = Peer::relayed(&first);
        let outgoing = super::relay::serve_relayed(&self.amqp, client, first.data, incoming);
        Ok(Response::new(Box::pin(outgoing)))
    }
}

async fn send(events: &mpsc::Sender<Event>, stream: StreamId, event: FollowerEvent) -> Result<(), Status> {
    let sent = events.send(Event::Follower(stream, event)).await;
    sent.map_err(|_| Status::unavailable("the broker is ending"))
}

async fn fetch_chunk(events: &mpsc::Sender<Event>, request: BacklogRequest) -> Result<BacklogReply, Status> {
    let (reply, answer) = oneshot::channel();
    send(events, StreamId(0), FollowerEvent::Backlog { request, reply }).await?;
    let answer = answer.await.map_err(|_| Status::unavailable("the broker is ending"))?;
    answer.map_err(Status::failed_precondition)
}
