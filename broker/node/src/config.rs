//! What a node is told once, at its start.

use std::time::Duration;

#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// For what is random in the core: names of queues that clients leave to the broker.
    pub seed: u64,
    pub min_in_sync: usize,
    /// `durability: Replicated`.
    pub replicated_only: bool,
    pub lease_duration: Duration,
    pub backup_timeout: Duration,
    pub stall_timeout: Duration,
    /// See [`PrimaryConfig`](understudy_replication::PrimaryConfig).
    pub resume_records: u64,
    /// Bytes of log between two checkpoints.
    pub checkpoint_bytes: u64,
    /// Message bodies that are kept in memory, in bytes.
    pub memory_budget: u64,
}
