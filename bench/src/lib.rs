//! A load generator for any AMQP 0-9-1 broker: publishers that wait for confirms, consumers that acknowledge, and a
//! [`Ledger`] that says what became of every message.
//!
//! It follows a cluster as an ordinary client would: a list of addresses, the next one when a connection is lost, and
//! what was not confirmed sent again. It knows nothing of how a broker works inside, so that the same load and the same
//! ledger judge any of them. It speaks plain AMQP: no TLS, one channel a connection, one queue a run.

pub mod compare;
mod consumer;
mod figures;
mod latency;
mod ledger;
pub mod limit;
mod link;
mod load;
mod peers;
mod publisher;
mod sampler;
mod stamp;
pub mod storage;
mod target;

pub use consumer::{AckPolicy, Consumer, ConsumerPlan, ConsumerReport};
pub use latency::{Latencies, LatencySummary};
pub use ledger::{Account, ConnectionId, Ledger, MAX_MESSAGES, ProducerId, Sequence};
pub use link::LinkError;
pub use load::{LoadPlan, LoadReport, run_load};
pub use peers::{DevCluster, DevPlan, PeerError, RabbitCluster};
pub use publisher::{Publisher, PublisherPlan, PublisherReport, Recovery, Silence};
pub use stamp::MIN_MESSAGE_BYTES;
pub use target::{QueuePlan, Target};
