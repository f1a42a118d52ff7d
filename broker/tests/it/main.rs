//! The broker's integration tests: one binary. All but `arrows` are about real processes, over their sockets, signals and
//! directories; what can be shown without a process is shown in the crates.

#![expect(clippy::unwrap_used, reason = "a test's harness fails by panicking")]

mod administration;
mod alarms;
mod arrows;
mod bad_clients;
mod bad_surroundings;
mod catch_up;
mod chaos;
mod clocks;
mod consumers;
mod deduplication;
mod durability;
mod exclusive_queues;
mod failover;
mod fencing;
mod full_disk;
mod harness;
mod inspect;
mod large;
mod leaving;
mod limits;
mod min_in_sync;
mod relay;
mod scrub;
mod selective;
mod storage;
mod switchover;
mod tls;
mod traffic;
mod transactions;
mod versions;
