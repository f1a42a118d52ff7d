//! The Lease store, carried to and from the core thread: requests of the primary's keeper, and what a watch shows.

use std::sync::Arc;

use futures::StreamExt;
use tokio::runtime::Handle;
use tokio::sync::mpsc::Sender;
use understudy_lease::{LeaseStore, SwapError};
use understudy_record::Epoch;
use understudy_replication::{LeaseAnswer, LeaseRequest};

use understudy_node::{Event, LeaseEvent};

pub(crate) struct LeaseRequests {
    store: Arc<dyn LeaseStore>,
    events: Sender<Event>,
    runtime: Handle,
}

impl LeaseRequests {
    pub(crate) fn new(store: Arc<dyn LeaseStore>, events: Sender<Event>, runtime: Handle) -> Self {
        Self { store, events, runtime }
    }

    /// The answer comes as an event that carries `epoch`.
    pub(crate) fn send(&self, epoch: Epoch, request: LeaseRequest) {
        let (store, events) = (self.store.clone(), self.events.clone());
        self.runtime.spawn(async move {
            let answer = answer(&*store, request).await;
            _ = events.send(Event::Lease(LeaseEvent::Answer(epoch, answer))).await;
        });
    }
}

async fn answer(store: &dyn LeaseStore, request: LeaseRequest) -> LeaseAnswer {
    let written = match request {
        LeaseRequest::Read => {
            return match store.read().await {
                Ok(seen) => LeaseAnswer::Read(seen),
                Err(error) => LeaseAnswer::Unknown(error.to_string()),
            };
        }
        LeaseRequest::Swap { expected, lease } => store.swap(&expected, &lease).await,
        LeaseRequest::Create => store.create().await,
    };
    match written {
        Ok(version) => LeaseAnswer::Written(version),
        Err(SwapError::Conflict) => LeaseAnswer::Conflict,
        Err(error @ SwapError::Refused { .. }) => LeaseAnswer::Refused(error.to_string()),
        Err(error @ SwapError::Unknown { .. }) => LeaseAnswer::Unknown(error.to_string()),
    }
}

/// Tells the core thread of every change of the Lease, for as long as the process lives.
pub(crate) async fn watch(store: Arc<dyn LeaseStore>, events: Sender<Event>) {
    let mut changes = store.watch();
    while let Some(change) = changes.next().await {
        match change {
            Ok(seen) => {
                if events.send(Event::Lease(LeaseEvent::Seen(seen))).await.is_err() {
                    return;
                }
            }
            Err(error) => tracing::warn!("the Lease cannot be watched: {error}"),
        }
    }
}
