//! What a node is told at its start, and what may change while it runs.

use std::time::Duration;

use understudy_record::{ReplicaName, Replicate};

#[derive(Clone, Debug)]
pub struct NodeConfig {
    pub settings: Settings,
    /// For what is random in the core: names of queues that clients leave to the broker.
    pub seed: u64,
    /// `durability: Replicated`.
    pub replicated_only: bool,
    pub lease_duration: Duration,
    pub backup_timeout: Duration,
    pub stall_timeout: Duration,
    /// See [`PrimaryConfig`](understudy_replication::PrimaryConfig).
    pub resume_records: u64,
    /// Followers that fill a base at the same time, at most.
    pub max_catch_ups: usize,
    /// Bytes of log between two checkpoints.
    pub checkpoint_bytes: u64,
    /// Message bodies that are kept in memory, in bytes.
    pub memory_budget: u64,
    /// Of queues and exchanges that do not say.
    pub replicate: Replicate,
    /// Between the beginnings of two scrubs of the whole state; zero: none.
    pub scrub_interval: Duration,
    /// A state that is not what a primary had counts all the same, because somebody said so.
    pub accept_differences: bool,
}

/// What each replica is told anew when it changes. Two replicas may for a while have been told differently: none of it takes
/// part in what is committed or in who may be elected by a Lease. Where the Lease is gone, `replicas` are those who must have
/// answered; a member that a log names beside them still counts as missed, and is waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Every replica of the cluster, this one included.
    pub replicas: Vec<ReplicaName>,
    /// Publishers get no confirms while fewer replicas than this are in sync.
    pub min_in_sync: usize,
    /// How long a channel may hold a delivery that it does not acknowledge; zero: for ever.
    pub consumer_timeout: Duration,
}
