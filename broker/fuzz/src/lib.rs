//! Targets for a fuzzer: each takes any octets at all, and panics if a rule is broken.
//!
//! The small ones read one thing and write it again. `connection` is a client's whole connection to the protocol's state
//! machine; `session` is two of them with the broker's core behind, a replica that applies what the core writes, and clients that
//! obey no rule. `record` and `journal` are what a peer or a disk may hold.

// The broker's own: it is private there, and pure.
#[path = "../../src/amqp/convert.rs"]
#[allow(unreachable_pub, dead_code, reason = "what the broker uses of it is more than this")]
mod convert;

mod input;
mod log;
mod parts;
mod script;
mod seeds;
mod session;

pub use log::{journal, record};
pub use parts::{connection, method, properties, sasl, table};
pub use seeds::write_seeds;
pub use session::session;
