//! The broker's shell: it turns what happens on sockets, the disk, the clock and the Lease into events, lets the pure
//! crates decide, and carries out what they say.
//!
//! One core thread ([`node`]) owns the state and the replication role, without locks. The journal has a thread of its
//! own, and so have checkpoints. Everything else is tasks on tokio that talk to the core thread through two bounded inboxes: clients' commands, and
//! all that must not wait behind them. Nothing here decides what a queue does, what is committed or who is elected.

mod amqp;
mod around;
mod aside;
mod checkpoint_thread;
mod config;
mod core_thread;
mod elector;
mod fence;
mod http;
mod inspect;
mod journal_thread;
mod kubernetes;
mod lease_requests;
mod metrics;
mod parent;
mod peers;
mod resources;
mod run;

pub use config::{Arguments, Config, ConfigError};
pub use inspect::{INSPECT, run_inspect};
pub use run::run;
