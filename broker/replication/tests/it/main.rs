//! Replication under a hostile world: real primaries, backups and keepers of the Lease; simulated journals, streams and
//! Lease store that crash, break, delay and lose answers. A seed replays a run: `SEED=17 cargo test -p understudy-replication`.

#![allow(clippy::unwrap_used, reason = "the simulation makes the frames it reads")]

mod catch_up;
mod durable;
mod forced;
mod mended;
mod node;
mod scenarios;
mod store;
mod turns;
mod versions;
mod world;
