//! Where to send a load: addresses, credentials, and the queue it goes through. Nothing here connects.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use understudy_protocol::{FieldTable, FieldValue, queue};
use understudy_record::ShortStr;

/// A broker or a cluster of them. The addresses are tried in order, the next one after each loss.
#[derive(Clone, Debug)]
pub struct Target {
    pub addresses: Vec<String>,
    pub user: String,
    pub password: String,
    pub virtual_host: String,
    pub heartbeat_seconds: u16,
    /// How long one address may take to connect, to shake hands and to declare the queue, before the next is tried.
    pub attempt_limit: Duration,
}

impl Target {
    /// guest/guest and "/", as every client's defaults.
    pub fn local(addresses: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            addresses: addresses.into_iter().map(Into::into).collect(),
            user: "guest".into(),
            password: "guest".into(),
            virtual_host: "/".into(),
            heartbeat_seconds: 10,
            attempt_limit: Duration::from_secs(2),
        }
    }

    /// The same target, with another address tried first.
    #[must_use]
    pub fn starting_at(mut self, first: usize) -> Self {
        let count = self.addresses.len().max(1);
        self.addresses.rotate_left(first % count);
        self
    }
}

/// The queue of a run, declared anew at each connection, as clients with automatic recovery do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct QueuePlan {
    pub name: String,
    pub durable: bool,
    /// `x-queue-type`; absent: the broker's default.
    pub queue_type: Option<String>,
}

impl QueuePlan {
    pub fn durable(name: impl Into<String>) -> Self {
        Self { name: name.into(), durable: true, queue_type: None }
    }

    /// `None` if the name is longer than AMQP allows.
    pub(crate) fn short_name(&self) -> Option<ShortStr> {
        ShortStr::try_from(self.name.as_str()).ok()
    }

    pub(crate) fn declare(&self) -> Option<queue::Declare> {
        let mut arguments = FieldTable::new();
        if let Some(queue_type) = &self.queue_type {
            arguments.insert(
                ShortStr::from_static("x-queue-type"),
                FieldValue::Text(bytes::Bytes::copy_from_slice(queue_type.as_bytes())),
            );
        }
        Some(queue::Declare {
            queue: self.short_name()?,
            durable: self.durable,
            arguments,
            ..queue::Declare::default()
        })
    }
}
