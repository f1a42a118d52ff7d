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
use understudy_record::{Epoch, Index, QueueId};
use understudy_replication::{Backlog, SyncId};

use super::convert;
use super::{MAX_MESSAGE_BYTES, Tls};
use crate::journal_thread::Queued;
use understudy_node::{Event, Target, ToPrimary, UpstreamEvent};

/// Of what waits for this replica's disk, in bytes, above which no more of a backlog is taken: a catch-up goes as fast as
/// the disk, and not into memory.
const QUEUED_BYTES: usize = 8 << 20;

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
}

impl Upstream {
    pub(crate) fn new(
        cluster: String,
        me: understudy_record::Identity,
        tls: Tls,
        events: mpsc::Sender<Event>,
        queued: Arc<Queued>,
        runtime: Handle,
    ) -> Self {
        let shared = Arc::new(UpstreamShared { cluster, me, tls, events, queued });
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
        let mut client = ReplicaClient::new(channel.clone())
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES);
        let (sender, words) = mpsc::unbounded_channel();
        self.say(link, UpstreamEvent::Connected(sender)).await;
        let (me, cluster) = (self.clone(), self.cluster.clone());
        let words = UnboundedReceiverStream::new(words).filter_map(move |word| {
            let wire = match word {
                ToPrimary::Fetch { epoch, sync_id, queue } => {
                    tokio::spawn(me.clone().fetch(link, channel.clone(), epoch, sync_id, queue));
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
                    Ok(message) => self.say(link, UpstreamEvent::Message(message)).await,
                    Err(error) => return closed(true, format!("{} says what cannot be: {error}", target.name)),
                },
                Ok(None) => return closed(true, format!("{} ended the stream (epoch {})", target.name, target.epoch)),
                Err(status) => return closed(true, format!("{}: {}", target.name, status.message())),
            }
        }
    }

    /// One queue's backlog. An error ends the connection: the catch-up is begun anew.
    async fn fetch(self: Arc<Self>, link: u64, channel: Channel, epoch: Epoch, sync_id: SyncId, queue: QueueId) {
        if let Err(reason) = self.fetch_all(link, channel, epoch, sync_id, queue).await {
            let reason = format!("queue {queue} cannot be fetched: {reason}");
            self.say(link, UpstreamEvent::Closed { reset: true, reason }).await;
        }
    }

    async fn fetch_all(
        &self,
        link: u64,
        channel: Channel,
        epoch: Epoch,
        sync_id: SyncId,
        queue: QueueId,
    ) -> Result<(), String> {
        let mut client = ReplicaClient::new(channel).max_decoding_message_size(MAX_MESSAGE_BYTES);
        let request = wire::FetchQueueRequest {
            epoch: epoch.0,
            sync_id: sync_id.0,
            queue: queue.0.0,
            follower: Some(wire::wire_identity(&self.me)),
        };
        let mut chunks = client.fetch_queue(request).await.map_err(|status| status.message().to_owned())?.into_inner();
        loop {
            let chunk = chunks.message().await.map_err(|status| status.message().to_owned())?;
            let chunk = chunk.ok_or("the primary ended it before its end")?;
            let frames = convert::frames(chunk.pieces).map_err(|error| error.to_string())?;
            let (as_of, done) = (Index(chunk.as_of), chunk.done);
            let backlog = Backlog { sync_id, queue, as_of, frames, done };
            let (taken, is_taken) = oneshot::channel();
            self.say(link, UpstreamEvent::Backlog(backlog, taken)).await;
            // Who is gone takes no more: what follows finds out.
            _ = is_taken.await;
            self.queued.below(QUEUED_BYTES).await;
            if done {
                return Ok(());
            }
        }
    }
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
