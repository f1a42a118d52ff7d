//! The broker's state machine: exchanges, bindings, queues, consumers. A client's [`Command`] becomes [`Record`]s and, once
//! those are committed, [`Effect`]s.
//!
//! It contains no sockets, no wire format, no files, no threads, no clock and no replication. It does not know who the
//! in-sync set is: it is told how far the log is committed and how far it may be confirmed. Randomness (server-given names)
//! comes from a seed, so a history of calls replays exactly.
//!
//! A [`Core`] is one of two things:
//!
//! - **A replica**, from the start: [`Core::apply`] takes committed records in index order, [`Core::apply_base`] the pieces of
//!   a sync point. Nothing else changes it, and it decides nothing.
//! - **A primary**, from [`Core::promote`] on. Its methods come in this order in each step of the shell's loop:
//!   [`Core::connection_opened`], [`Core::handle`], [`Core::handle_writable`], [`Core::connection_closed`] for what arrived;
//!   [`Core::handle_committed`] if the log moved; then [`Core::deliver`] once, which writes the acknowledgements of the step
//!   as batched records and hands out messages. It never goes back: a demoted primary is rebuilt from its journal.
//!
//! The primary's state runs ahead of the commit; what clients see does not. A reply waits for the record it follows from, a
//! delivery for its message's commit, a publisher confirm for the confirm horizon.
//!
//! # Not enforced yet
//!
//! These arguments are checked, kept and compared as RabbitMQ does, but have no effect: `x-message-ttl`, `x-expires`,
//! `x-max-length`, `x-max-length-bytes`, `x-overflow`, `x-dead-letter-exchange`, `x-dead-letter-routing-key`,
//! `x-max-priority`, `x-single-active-consumer`, `x-queue-mode`, `x-delivery-limit`, `alternate-exchange`, the consumer's
//! `x-priority`, and the message property `expiration`. The headers `CC` and `BCC` do not route. Transactions (`tx.*`) are
//! refused with 540.
//!
//! [`Record`]: understudy_record::Record

mod arguments;
mod base;
mod binding;
mod client;
mod command;
mod confirms;
mod consume;
mod core;
mod declare;
mod delivery;
mod digest;
mod effect;
mod error;
mod exchange;
mod gates;
mod headers;
mod publish;
mod queue;
mod reply;
mod session;
mod settle;
mod slots;
mod state;
mod stats;
mod topic;

pub use base::BacklogChunk;
pub use command::{ChannelId, Command, ConnectionId, ConnectionInfo, DeliveryTag, Publish};
pub use core::Core;
pub use effect::{AmqpError, Effect, EffectKind, Outputs};
pub use state::ApplyError;
pub use stats::{QueueStats, Stats};

/// Deliveries that one channel may leave unacknowledged, whatever prefetch it asked for: 16 MB of bookkeeping at most. A
/// client that set no limit and acknowledges nothing stops here instead of being handed the whole queue.
pub const MAX_UNACKED_PER_CHANNEL: usize = 1 << 18;

/// Messages handed out in one step, so that a step stays around a millisecond and publishers get their turn.
pub const MAX_DELIVERIES_PER_STEP: usize = 4096;

/// Bytes handed out in one step: what a fast network takes in a millisecond, and what one client may be given beyond its
/// bound before the shell says that it does not read.
pub const MAX_DELIVERED_BYTES_PER_STEP: u64 = 1 << 20;

/// Messages from one queue before the next queue has its turn: enough to make batches, few enough to be fair.
pub const MAX_DELIVERIES_PER_TURN: usize = 128;

/// Messages listed in one record, so that its meta stays well below the frame's bound (8 bytes each).
pub const MAX_MESSAGES_PER_RECORD: usize = 1 << 17;

/// Consumers of one channel: each channel's close visits them all.
pub const MAX_CONSUMERS_PER_CHANNEL: usize = 1 << 16;
