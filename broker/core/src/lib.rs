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
//!   a sync point. Nothing else changes it, and it decides nothing. [`Core::take_difference`] says where a primary's scrub
//!   ([`Core::scrub`], at any moment) found it to have something else than the primary.
//! - **A primary**, from [`Core::promote`] on. Its methods come in this order in each step of the shell's loop:
//!   [`Core::connection_opened`], [`Core::handle`], [`Core::handle_writable`], [`Core::connection_closed`] for what arrived;
//!   [`Core::handle_committed`] if the log moved, [`Core::handle_loaded`] if messages were read back; then [`Core::deliver`]
//!   once, which writes the acknowledgements of the step as batched records and hands out messages; last [`Core::evict`],
//!   so that what was just read back is handed out first. It never goes back: a demoted primary is rebuilt from its journal.
//!
//! What messages say need not be in memory: the log has it, and a message's index is enough to read it back. A replica keeps
//! none of it. A primary keeps what it took from publishers until [`Core::evict`] lets it go, and asks for what it is about
//! to deliver by [`Outputs::loads`], which [`Core::handle_loaded`] answers.
//!
//! A large message's body comes in parts ([`Command::PublishPart`]), each a record of its own before the message's: they are
//! in the log alone, on every replica, and what the core hands out names them. Whoever sends them reads them there.
//!
//! The primary's state runs ahead of the commit; what clients see does not. A reply waits for the record it follows from, a
//! delivery for its message's commit, a publisher confirm for the confirm horizon.
//!
//! # Virtual hosts and users
//!
//! What a client declares belongs to the virtual host of its connection ([`ConnectionInfo`]). Who may do what there follows
//! from records that [`Core::administer`] writes. Whether a client is who it says has been found out before
//! [`Core::connection_opened`]: by what [`Core::login_since`] hands out, or elsewhere.
//!
//! # Redelivery
//!
//! A message that a consumer gave back, or that one held whose channel ended, is *redelivered* from then on, and says how
//! often it came back (the delivery count). Each return is a record, so the count is the same on every replica and survives
//! failover, restart, checkpoint and catch-up: a new primary has every return whose record was committed, and may have
//! later ones. What the old primary's clients held when it ended was not given back: a new primary marks all that it finds
//! as redelivered, since it may have been delivered, and counts nothing for it.
//!
//! # Not enforced
//!
//! `x-queue-mode` is checked, kept and compared as RabbitMQ does, but has no effect: every queue pages by itself.
//!
//! [`Record`]: understudy_record::Record

mod access;
mod accounts;
mod ack_timeout;
mod administration;
mod ahead;
mod arguments;
mod base;
mod binding;
mod client;
mod command;
mod confirms;
mod consume;
mod copies;
mod core;
mod dead_letter;
mod deadlines;
mod declare;
mod deduplication;
mod definitions;
mod delivery;
mod digest;
mod direct_reply;
mod effect;
mod entry;
mod error;
mod evict;
mod exchange;
mod expiry;
mod gates;
mod headers;
mod keys;
mod lane;
mod letter;
mod limits;
mod load;
mod parts;
mod policies;
mod publish;
mod queue;
mod queue_rules;
mod reply;
mod runs;
mod scrub;
mod selective;
mod session;
mod settle;
mod slots;
mod staged;
mod state;
mod stats;
mod tally;
mod time;
mod topic;
mod transaction;
mod unused;
mod vhost;

pub use accounts::GUEST;
pub use administration::{AdminCommand, Limit, LimitOf, Login, Refusal};
pub use base::{BacklogChunk, BacklogItem, BacklogMessage, HeldChunk};
pub use command::{Account, ChannelId, Command, ConnectionId, ConnectionInfo, DeliveryTag, Publish};
pub use core::Core;
pub use definitions::{BindingDefinition, Definitions, UserDefinition, VhostDefinition};
pub use effect::{AmqpError, Effect, EffectKind, Outputs};
pub use load::{Load, PartLoad};
pub use scrub::{Difference, ScrubPass};
pub use state::ApplyError;
pub use stats::{QueueStats, Stats};
pub use time::Time;
pub use understudy_record::BacklogCursor;
pub use vhost::DEFAULT_VHOST;

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

/// Messages that leave queues which are too long in one step: about a millisecond.
pub const MAX_DROPPED_PER_STEP: usize = 4096;

/// Messages that expire in one step: about a millisecond.
pub const MAX_EXPIRED_PER_STEP: usize = 4096;

/// Messages of one queue that expire before the next queue has its turn; and as many wait to be dead-lettered.
pub const EXPIRIES_PER_TURN: usize = 1024;

/// The version of the cluster from which on messages expire. Replicas before it do not know the time.
pub const EXPIRING_SINCE: u32 = 3;

/// Dead letters written in one step: about a millisecond.
pub const MAX_DEAD_LETTERS_PER_STEP: usize = 1024;

/// Dead letters of one queue before the next queue has its turn, which are one transaction.
pub const DEAD_LETTERS_PER_TURN: usize = 128;

/// Dead letters that are written and not committed, in bytes: as much as keeps the disk busy, and far below what makes
/// publishers wait.
pub const MAX_UNCOMMITTED_DEAD_LETTERS_BYTES: u64 = 8 << 20;

/// Messages listed in one record, so that its meta stays well below the frame's bound (8 bytes each).
pub const MAX_MESSAGES_PER_RECORD: usize = 1 << 17;

/// Answers of direct reply-to that wait for one channel, in bytes: what a client that reads has on its way at any time is
/// far less, and what is beyond is dropped, as if it had come too late.
pub const MAX_WAITING_ANSWERS_BYTES: u64 = 16 << 20;

/// Consumers of one channel: each channel's close visits them all.
pub const MAX_CONSUMERS_PER_CHANNEL: usize = 1 << 16;

/// The version of the cluster from which on some queues and exchanges may be replicated less than others. Replicas before it
/// do not know their records.
pub const SELECTIVE_REPLICATION_SINCE: u32 = 2;

/// The version of the cluster from which on transactions are written. Replicas before it do not know their records.
pub const TRANSACTIONS_SINCE: u32 = 2;

/// The version of the cluster from which on virtual hosts, users, permissions, limits and policies are written.
pub const ADMINISTRATION_SINCE: u32 = 3;

/// The version of the cluster from which on queues and exchanges drop duplicates. Replicas before it do not know their records.
pub const DEDUPLICATION_SINCE: u32 = 3;

/// The largest `x-cache-size`: so many keys take about 110 MB, and a checkpoint lists them in one go, in some tens of milliseconds.
pub const MAX_CACHE_SIZE: u64 = 1_000_000;

/// What a key that is remembered takes in memory, in bytes, about.
pub const KEY_BYTES: u64 = 110;

/// Keys in one record or piece: with the longest names of exchanges far below a frame's bound.
pub const SEEN_PER_RECORD: usize = 4096;

/// Virtual hosts: each takes a few KiB, with the exchanges that it has from the start.
pub const MAX_VHOSTS: usize = 10_000;

/// Users in the log.
pub const MAX_USERS: usize = 10_000;

/// Permissions, and as many topic permissions.
pub const MAX_PERMISSIONS: usize = 100_000;

/// Policies of one virtual host, and as many of its operators: a queue's declare looks at each.
pub const MAX_POLICIES: usize = 1000;

/// What a policy sets, encoded, in octets.
pub const MAX_POLICY_BYTES: usize = 1 << 14;

/// Of a password's hash, a description or a pattern, in octets: far more than anybody writes.
pub const MAX_TEXT_BYTES: usize = 4096;

/// Tags of a user or a virtual host.
pub const MAX_TAGS: usize = 64;

/// Messages of one transaction: its commit writes them in one step, which should stay at some tens of milliseconds.
pub const MAX_TRANSACTION_MESSAGES: usize = 1 << 15;

/// What the messages of one transaction take in memory before the commit, in bytes, of large ones without their parts: a
/// fraction of what may be on its way to the disk and the backups at any time, since it gets there at once.
pub const MAX_TRANSACTION_BYTES: u64 = 16 << 20;

/// The same for all channels together, so that thousands of clients that never commit cannot take the memory. Eight of the
/// largest; thousands of ordinary ones.
pub const MAX_OPEN_TRANSACTIONS_BYTES: u64 = 128 << 20;

/// Messages read back from the log in one go for one queue: what a disk gives in about a millisecond, and half a step's
/// deliveries.
pub const LOAD_BYTES: u64 = 512 << 10;

/// The same in messages: the list of indexes stays small, and so does what a reader has to look up in one go.
pub const LOAD_MESSAGES: usize = 1024;

/// Messages that a queue wants ahead again at first, after memory was too short for those it had: about a consumer's credit.
pub const LEAST_REACH: usize = 8;

/// What a large message counts for in memory: about its last part, whatever its length, since the others never are.
pub const LARGE_RESIDENT_BYTES: u32 = 512 << 10;

/// What stays in memory at the head of each queue while anything else can leave. With less than this ahead of its consumers
/// a queue asks for the next batch, so half a batch is handed out while the next is read.
pub const HEAD_BYTES: u64 = LOAD_BYTES / 2;

/// Being read back at any time for all queues together: enough to keep a disk busy, little beside any memory budget, even
/// when thousands of queues get their consumers back at once.
pub const MAX_LOADING_BYTES: u64 = 16 << 20;

/// Messages that one call of [`Core::evict`] looks at, so that it stays below a millisecond.
pub const MAX_EVICTIONS_PER_STEP: usize = 4096;

/// Messages that leave one queue before the next queue has its turn.
pub const EVICTIONS_PER_TURN: usize = 256;

/// Messages that one record of a scrub speaks of: it takes the core thread 0.06 to 0.25 ms.
pub const SCRUB_MESSAGES: usize = 1 << 14;

/// Queues that one record of a scrub speaks of: about as long, and 11 KiB of log.
pub const SCRUB_QUEUES: usize = 256;
