//! One replica as a value: the core's state, the replication role, the Lease's keeper and the checkpoints, driven by events.
//!
//! A broker runs it on a thread of its own, a simulation in its own time; the code is the same. `now` is an argument, what must
//! be done goes through [`Surroundings`], and nothing here reads a clock, starts a thread or opens a socket. Channels of tokio are
//! used as plain queues: nothing is awaited.

mod administration;
mod backup;
mod checkpoint;
mod checkpoint_worker;
mod clients;
mod config;
mod event;
mod hand_over;
mod journal_worker;
mod lease_order;
mod log_reads;
mod node;
mod primary;
mod recorded_sets;
mod recovery;
mod scrub;
mod status;
mod surroundings;
mod versions;

pub use administration::{AdminOutcomes, AdminReply};
pub use checkpoint::{CheckpointEvent, Installed};
pub use checkpoint_worker::{Brakes, CheckpointId, CheckpointOrder, CheckpointWorker};
pub use clients::cost as effect_cost;
pub use config::{NodeConfig, Settings};
pub use event::{
    BacklogReply, BacklogRequest, ClientEvent, ControlEvent, Event, FollowerEvent, JournalEvent, LeaseEvent, Outbox,
    Outgoing, ToPrimary, Upload, UpstreamEvent,
};
pub use journal_worker::{JournalWorker, Order, Writer};
pub use log_reads::{ChunkToSend, READ_BYTES, read_messages, read_part};
pub use node::Node;
pub use recorded_sets::RecordedSets;
pub use recovery::{Inconsistency, Rebuild, Recovered};
pub use status::{CheckpointCounts, Door, Flow, NodeStatus, RoleStatus, Shared, Usage};
pub use surroundings::{Surroundings, Target};

pub(crate) use node::Role;
