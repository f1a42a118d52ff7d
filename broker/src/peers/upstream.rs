//! A backup's connection to its primary: dialled here, spoken over by the core thread, frames checked on the way in.

use std::sync::Arc;

use futures::StreamExt;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::transport::Channel;
use understudy_proto as wire;
use understudy_proto::replica_client::ReplicaClient;
use understudy_record::{BacklogCursor, Epoch, Frame, Index, QueueId};
use understudy_replication::{Backlog, SyncId};

use super::convert;
use super::{MAX_MESSAGE_BYTES, Tls};
use crate::journal_thread::Queued;
use crate::metrics::ReplicationBytes;
use understudy_node::{Event, Target, ToPrimary, UpstreamEvent};

/// Of what waits for this replica's disk, in bytes, above which no more of a backlog is taken: a catch-up goes as fast as
/// the disk, and not into memory. Little, so that one sync is short, for who shares the disk and for the live records between.
const QUEUED_BYTES: usize = 2 << 20;

pub(crate) struct Upstream {
    shared: Arc<UpstreamShared>,
    runtime: Handle,
    next_link: u64,
    task: Option<JoinHandle<()>>,
}

struct UpstreamShared {
    cluster: String,
    me: understudy_record::Identity,
    tls: Tls,
    events: mpsc::Sender<Event>,
    /// What waits for this replica's disk.
    queued: Arc<Queued>,
    received: ReplicationBytes,
}

impl Upstream {
    pub(crate) fn new(
        cluster: String,
        me: understudy_record::Identity,
        tls: Tls,
        events: mpsc::Sender<Event>,
        queued: Arc<Queued>,
        received: ReplicationBytes,
        runtime: Handle,
    ) -> Self {
        let shared = Arc::new(UpstreamShared { cluster, me, tls, events, queued, received });
        Self { shared, runtime, next_link: 1, task: None }
    }

    /// Gives up any earlier connection. Returns the new one's number, which its events carry.
    pub(crate) fn dial(&mut self, target: Target) -> u64 {
        self.close();
        let link = self.next_link;
        self.next_link += 1;
        let shared = self.shared.clone();
        self.task = Some(self.runtime.spawn(async move {
            let closed = shared.follow(link, &target).await;
            shared.say(link, closed).await;
        }));
        link
    }

    pub(crate) fn close(&mut self) {
        if let Some(task) = self.task.take() {
            task.abort();
        }
    }
}

impl UpstreamShared {
    async fn say(&self, link: u64, event: UpstreamEvent) {
        _ = self.events.send(Event::Upstream(link, event)).await;
    }

    /// Until the connection ends; returns how.
    async fn follow(self: &Arc<Self>, link: u64, target: &Target) -> UpstreamEvent {
        let closed = |reset, reason| UpstreamEvent::Closed { reset, reason };
        let channel = match self.tls.connect(&target.address).await {
            Ok(channel) => channel,
            Err(error) => {
                return closed(true, format!("{} at {}: {}", target.name, target.address, describe(&error)));
            }
        };
        let backlogs = match self.tls.backlog_channel(&target.address) {
            Ok(channel) => channel,
            Err(error) => return closed(true, format!("{} at {}: {}", target.name, target.address, describe(&error))),
        };
        let mut client = ReplicaClient::new(channel)
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES);
        let (sender, words) = mpsc::unbounded_channel();
        self.say(link, UpstreamEvent::Connected(sender)).await;
        let (me, cluster) = (self.clone(), self.cluster.clone());
        let words = UnboundedReceiverStream::new(words).filter_map(move |word| {
            let wire = match word {
                ToPrimary::Fetch { epoch, sync_id, queue, from } => {
                    let fetch = Fetch { link, epoch, sync_id, queue };
                    tokio::spawn(me.clone().fetch(fetch, backlogs.clone(), from));
                    None
                }
                word => Some(convert::to_primary_to_wire(word, &cluster)),
            };
            std::future::ready(wire)
        });
        let mut messages = match client.follow(words).await {
            Ok(response) => response.into_inner(),
            Err(status) => return closed(true, format!("{} refuses: {}", target.name, status.message())),
        };
        loop {
            match messages.message().await {
                Ok(Some(message)) => match convert::primary_message(message) {
                    Ok(message) => {
                        self.received.count(&message);
                        self.say(link, UpstreamEvent::Message(message)).await;
                    }
                    Err(error) => return closed(true, format!("{} says what cannot be: {error}", target.name)),
                },
                Ok(None) => return closed(true, format!("{} ended the stream (epoch {})", target.name, target.epoch)),
                Err(status) => return closed(true, format!("{}: {}", target.name, status.message())),
            }
        }
    }

    /// One queue's backlog. An error ends the connection: the catch-up goes on over the next one.
    async fn fetch(self: Arc<Self>, fetch: Fetch, channel: Channel, from: BacklogCursor) {
        if let Err(reason) = self.fetch_all(fetch, channel, from).await {
            let reason = format!("queue {} cannot be fetched: {reason}", fetch.queue);
            self.say(fetch.link, UpstreamEvent::Closed { reset: true, reason }).await;
        }
    }

    async fn fetch_all(&self, fetch: Fetch, channel: Channel, mut from: BacklogCursor) -> Result<(), String> {
        let Fetch { link, epoch, sync_id, queue } = fetch;
        let mut client = ReplicaClient::new(channel).max_decoding_message_size(MAX_MESSAGE_BYTES);
        let request = wire::FetchQueueRequest {
            epoch: epoch.0,
            sync_id: sync_id.0,
            queue: queue.0.0,
            follower: Some(wire::wire_identity(&self.me)),
            from: Some(convert::cursor_to_wire(from)),
        };
        let mut chunks = client.fetch_queue(request).await.map_err(|status| status.message().to_owned())?.into_inner();
        loop {
            let chunk = chunks.message().await.map_err(|status| status.message().to_owned())?;
            let chunk = chunk.ok_or("the primary ended it before its end")?;
            let frames = convert::frames(chunk.pieces).map_err(|error| error.to_string())?;
            self.received.backlog.inc_by(frames.iter().map(Frame::len).sum::<usize>() as u64);
            let (as_of, done, next) = (Index(chunk.as_of), chunk.done, convert::cursor(chunk.next));
            let (messages, bytes) = (chunk.messages, chunk.bytes);
            let backlog = Backlog { sync_id, queue, from, next, as_of, frames, messages, bytes, done };
            from = next;
            let (taken, is_taken) = oneshot::channel();
            self.say(link, UpstreamEvent::Backlog(backlog, taken)).await;
            // Who is gone takes no more.
            if is_taken.await.is_err() || done {
                return Ok(());
            }
            self.queued.below(QUEUED_BYTES).await;
        }
    }
}

/// What is fetched, and for which connection to the primary.
#[derive(Clone, Copy)]
struct Fetch {
    link: u64,
    epoch: Epoch,
    sync_id: SyncId,
    queue: QueueId,
}

/// A transport error with its causes: the outermost says nothing.
fn describe(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    if text.contains("certificate") {
        text.push_str("; every replica's --tls-dir must be of one authority");
    }
    text
}
