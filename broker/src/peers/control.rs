//! The `Control` service: what the operator and the command line see and ask for.

use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::Stream;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};
use understudy_election::{Lease, Stored};
use understudy_lease::LeaseStore;
use understudy_proto as wire;
use understudy_record::Epoch;

use super::{administration, convert};
use crate::fence;
use understudy_node::{AdminReply, ControlEvent, Event, LeaseEvent, Shared};

/// Between two statuses at least, however fast things change: a watcher needs no more.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(10);
const DEFAULT_INTERVAL: Duration = Duration::from_millis(500);

/// How long a hand-over may take before its caller is told that it did not happen.
const HAND_OVER_TIMEOUT: Duration = Duration::from_secs(5);

pub(crate) struct ControlService {
    pub(crate) cluster: String,
    pub(crate) data_dir: PathBuf,
    pub(crate) started: Instant,
    pub(crate) shared: Arc<Shared>,
    pub(crate) events: mpsc::Sender<Event>,
    pub(crate) lease: Arc<dyn LeaseStore>,
}

#[tonic::async_trait]
impl wire::control_server::Control for ControlService {
    type ReadDefinitionsStream = Pin<Box<dyn Stream<Item = Result<wire::Definitions, Status>> + Send>>;
    type WatchStream = Pin<Box<dyn Stream<Item = Result<wire::Status, Status>> + Send>>;

    async fn watch(&self, request: Request<wire::WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let asked = Duration::from_millis(request.into_inner().interval_ms.into());
        let interval = if asked.is_zero() { DEFAULT_INTERVAL } else { asked.max(SHORTEST_INTERVAL) };
        let (sender, statuses) = mpsc::channel(1);
        let (cluster, started) = (self.cluster.clone(), self.started);
        let mut watch = self.shared.status.subscribe();
        tokio::spawn(async move {
            loop {
                let snapshot = watch.borrow_and_update().clone();
                let status = convert::status_to_wire(&snapshot, &cluster, started.elapsed());
                if sender.send(Ok(status)).await.is_err() {
                    return;
                }
                tokio::time::sleep(SHORTEST_INTERVAL).await; // coalesces a burst of changes
                // A change, or the interval: both lead to the next status. An error: the broker ends.
                if let Ok(Err(_)) = tokio::time::timeout(interval, watch.changed()).await {
                    return;
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(statuses))))
    }

    async fn promote(&self, _: Request<wire::PromoteRequest>) -> Result<Response<wire::PromoteReply>, Status> {
        // Only the Lease makes a primary; the caller's word is a reason to read it now.
        self.read_lease().await?;
        Ok(Response::new(wire::PromoteReply {}))
    }

    async fn follow(&self, request: Request<wire::FollowRequest>) -> Result<Response<wire::FollowReply>, Status> {
        self.read_lease().await?;
        let request = request.into_inner();
        if let Some(primary) = convert::replica_name(&request.primary) {
            let event = ControlEvent::Follow(Epoch(request.epoch), primary); // of use where there is no Lease
            self.events.send(Event::Control(event)).await.map_err(|_| Status::unavailable("the broker is ending"))?;
        }
        Ok(Response::new(wire::FollowReply {}))
    }

    async fn hand_over(
        &self,
        request: Request<wire::HandOverRequest>,
    ) -> Result<Response<wire::HandOverReply>, Status> {
        let request = request.into_inner();
        let epoch = Epoch(request.epoch);
        let (reply, answer) = oneshot::channel();
        let event = ControlEvent::HandOver { epoch, to: convert::replica_name(&request.to), reply };
        let ending = |_| Status::unavailable("the broker is ending");
        self.events.send(Event::Control(event)).await.map_err(|_| Status::unavailable("the broker is ending"))?;
        answer.await.map_err(ending)?.map_err(Status::failed_precondition)?;
        let lease = tokio::time::timeout(HAND_OVER_TIMEOUT, self.lease_after(epoch)).await;
        let lease =
            lease.map_err(|_| Status::deadline_exceeded("the Lease has not changed: see the primary's log"))??;
        let primary = lease.holder().map(|holder| holder.name.to_string()).unwrap_or_default();
        Ok(Response::new(wire::HandOverReply { epoch: lease.epoch().0, primary }))
    }

    async fn fence(&self, request: Request<wire::FenceRequest>) -> Result<Response<wire::FenceReply>, Status> {
        let (directory, fenced) = (self.data_dir.clone(), request.into_inner().fenced);
        let marked = tokio::task::spawn_blocking(move || fence::set(&directory, fenced)).await;
        let changed = marked.map_err(|error| Status::internal(error.to_string()))?;
        let changed = changed.map_err(|error| Status::internal(format!("the mark cannot be written: {error}")))?;
        if changed {
            tracing::warn!(fenced, "this process ends, and the next one is as a person has asked");
            let sent = self.events.send(Event::Control(ControlEvent::Shutdown)).await;
            sent.map_err(|_| Status::unavailable("the broker is ending"))?;
        }
        Ok(Response::new(wire::FenceReply {}))
    }

    async fn administer(
        &self,
        request: Request<wire::AdministerRequest>,
    ) -> Result<Response<wire::AdministerReply>, Status> {
        let mut commands = Vec::new();
        let wrong = administration::commands(request.into_inner())?.into_iter();
        let wrong = wrong.map(|command| command.map(|command| commands.push(command))).collect();
        let outcomes = self.ask(|reply| ControlEvent::Administer(commands, reply)).await?;
        Ok(Response::new(administration::outcomes(wrong, outcomes)))
    }

    async fn read_definitions(
        &self,
        request: Request<wire::ReadDefinitionsRequest>,
    ) -> Result<Response<Self::ReadDefinitionsStream>, Status> {
        let topology = request.into_inner().topology;
        let definitions = self.ask(|reply| ControlEvent::ReadDefinitions { topology, reply }).await?;
        let messages = administration::definitions(definitions).into_iter().map(Ok);
        Ok(Response::new(Box::pin(futures::stream::iter(messages))))
    }
}

impl ControlService {
    /// A question to the core thread that only a primary answers.
    async fn ask<T>(&self, event: impl FnOnce(AdminReply<T>) -> ControlEvent) -> Result<T, Status> {
        let (reply, answer) = oneshot::channel();
        let sent = self.events.send(Event::Control(event(reply))).await;
        sent.map_err(|_| Status::unavailable("the broker is ending"))?;
        let lost = |_| Status::unavailable("the primary has changed meanwhile: what was asked may have been done");
        answer.await.map_err(lost)?.map_err(Status::failed_precondition)
    }

    async fn read_lease(&self) -> Result<Option<Lease>, Status> {
        let seen = self.lease.read().await.map_err(|error| Status::unavailable(error.to_string()))?;
        let lease = seen.lease().cloned();
        let sent = self.events.send(Event::Lease(LeaseEvent::Seen(seen))).await;
        sent.map_err(|_| Status::unavailable("the broker is ending"))?;
        Ok(lease)
    }

    async fn lease_after(&self, epoch: Epoch) -> Result<Lease, Status> {
        use futures::StreamExt;
        let mut changes = self.lease.watch();
        while let Some(seen) = changes.next().await {
            if let Ok(Stored::Held(lease, _)) = seen
                && lease.epoch() > epoch
            {
                return Ok(lease);
            }
        }
        Err(Status::unavailable("the Lease cannot be watched"))
    }
}
