//! A whole cluster in simulated time: brokers made of the code that runs in a pod ([`understudy_node::Node`], the core, the log
//! on a disk in memory), the operator's elector and the backups' own, the Lease's store, clients. A seed decides what they do
//! and what goes wrong; the same seed gives the same run, to the last event.
//!
//! What is simulated: clocks (drift, processes that stand still), the network (delay, cuts of one direction, breaks, order
//! across connections), disks (slow, hanging, failing, full, power lost in the middle of a batch, lost for good), the API server
//! (down, slow, answers lost before or after the write took effect, watches that lag), the Lease (deleted, also while those who hold everything are away), clients that
//! publish, consume, return, purge and delete. What is checked stands in `ledger` (clients) and `witness` (logs).
//!
//! Not simulated: sockets, TLS, the AMQP codec, Kubernetes' objects other than the Lease, threads of one process running at
//! the same moment.

mod absence;
mod api;
mod around;
mod client;
mod disk;
mod elector;
mod faults;
mod lease;
mod ledger;
mod looks;
mod machine;
mod network;
mod plan;
mod report;
mod run;
mod schedule;
mod streams;
mod witness;
mod world;

pub use plan::Plan;
pub use report::Counts;
pub use run::{Failure, Outcome, run_seed};
