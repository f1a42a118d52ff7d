//! The log on disk: one append-only sequence of [`Frame`](understudy_record::Frame)s in segment files, which is the
//! journal, the message store and what replication sends, byte for byte.
//!
//! What it promises: what [`Journal::sync`] reported is there after any crash; what was cut is gone for good; a record
//! damaged in the middle is an error that names its place, never skipped; after a failed write or fsync nothing is
//! reported durable any more. What it does not do: it decides nothing about roles, commits or confirms, holds no broker
//! state, starts no thread and knows no clock. Its calls block; the shell gives it a thread.
//!
//! So that disk and restart follow what is live: a *checkpoint* holds the state as of a sync point, messages by reference;
//! what the log had before it goes, and the few live messages of mostly dead segments are copied together first.
//!
//! Reading order: [`Storage`] (what is asked of a disk), `segment` (the bytes of a file), `state` (which frame may follow
//! which), `order` (the same, from where a checkpoint allows), `files` (what in a directory is what), `scan` (reading it all
//! once), `recovery` (opening), `journal` (writing), `base` (the second store of a catch-up), `reader`, `store_map` (where
//! messages are), `checkpoint` (the bytes of that file), `draft` and `consolidate` (making one), [`inspect`] (all of it from
//! outside).

mod base;
mod checkpoint;
mod consolidate;
mod dir;
mod draft;
mod error;
mod files;
pub mod inspect;
mod journal;
mod live;
mod order;
mod reader;
mod recovery;
mod scan;
mod segment;
pub mod sim;
mod state;
mod storage;
mod store;
mod store_map;

pub use dir::{DirError, DirStorage};
pub use draft::{CheckpointError, Checkpointer, Draft, Finished, Obsolete, Pace};
pub use error::{Failure, JournalError, OpenError};
pub use journal::{Journal, Options};
pub use reader::{LogReader, ReadError};
pub use recovery::{Progress, Recovery, TornTail, Visit, VisitError};
pub use state::OrderError;
pub use storage::{Storage, StorageFile};
pub use store::Flaw;
