//! The core from outside: what clients send, what is written to the log, what clients see and when.
//!
//! Stories are golden text (`UPDATE_EXPECT=1` rewrites them); the `random` ones compare replicas after histories that nobody
//! thought of.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod confirms;
mod consumers;
mod dead_letters;
mod deduplication;
mod desk;
mod direct_replies;
mod errors;
mod expiry;
mod harness;
mod large;
mod limits;
mod memory;
mod permissions;
mod policies;
mod priorities;
mod random;
mod ranks;
mod replicas;
mod scrub;
mod selective;
mod settling;
mod topology;
mod transactions;
mod vhosts;
