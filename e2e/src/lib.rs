//! What the cluster tests (`tests/cluster`) are written with: a namespace for each, a broker cluster in it, a load with a
//! ledger through the failover Service, and the means to kill what it runs on.
//!
//! It starts no Kubernetes (`e2e/up` does) and knows nothing of how a broker works inside: it sees what a user of the
//! cluster sees, and what the machine under it can do to it. Nothing here waits without a deadline, and each deadline
//! says what was waited for.

mod audit;
mod cluster;
mod dump;
mod faults;
mod identity;
mod inside;
mod lives;
mod load;
mod operator;
mod outcomes;
mod placement;
mod report;
mod rounds;
mod space;
mod wait;

pub use audit::{AuditMark, Written};
pub use cluster::Cluster;
pub use faults::{
    ApiOutage, Cordon, Outage, Parting, StoppedProcess, ensure_node_counts_as_ready, kill_process, node_of,
    restore_nodes,
};
pub use identity::Account;
pub use inside::{InsideAccount, InsideClient, InsideState};
pub use lives::Lives;
pub use load::{Aftermath, Load, Published, RATE};
pub use operator::{OperatorPause, replace_operator, restore_operator};
pub use outcomes::Outcome;
pub use placement::{lead_from, operator_node};
pub use report::{Failure, Goal, Row};
pub use rounds::{Rounds, rounds_wanted};
pub use space::{Space, with_temp_ns};
pub use wait::eventually;
