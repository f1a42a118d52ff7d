//! What an elector knows when it decides: the Lease as it last saw it, each replica as it last heard it, the spec and the
//! timings. Plain data, gathered by the caller; nothing here judges it.
//!
//! Every `Duration` that is a point in time is on the elector's own monotonic clock. What another process reports as an age
//! ("lost for 300 ms") is converted on receipt.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use understudy_record::version::{ClusterVersion, VersionRange};
use understudy_record::{Epoch, Identity, Member, Position, ReplicaName};

use crate::{Incarnation, Register};

#[derive(Clone, Debug)]
pub struct View {
    pub elector: Elector,
    pub register: Register,
    /// Replicas the elector knows of, itself included if it is one. One that is missing has not been heard.
    pub replicas: BTreeMap<ReplicaName, ReplicaView>,
    pub spec: Spec,
    pub timings: Timings,
}

/// Who decides. The two differ in what they may act upon, not in whom they would elect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Elector {
    /// Sees every replica from outside, and acts within milliseconds on what it and a backup agree upon.
    Operator,
    /// Fallback when there is no operator: this replica, which acts once the Lease has run out on its own clock.
    Backup(Identity),
}

#[derive(Clone, Debug, Default)]
pub struct Spec {
    /// The names of all replicas the cluster should have.
    pub replicas: BTreeSet<ReplicaName>,
    /// Entries of the in-sync set name processes, since a restart loses what was acknowledged (`durability: Replicated`).
    pub processes_in_set: bool,
    /// Wins among candidates whose logs are equally long.
    pub preferred: Option<ReplicaName>,
    pub forced: Force,
    pub promotion: Promotion,
    /// Not to be elected, though they are in the set: a person keeps them out.
    pub fenced: BTreeSet<ReplicaName>,
}

/// Whether a primary that is lost is replaced at once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Promotion {
    #[default]
    Automatic,
    /// A person says when, and by whom of the set. Whoever asks without one waits for that.
    Manual { to: Option<ReplicaName> },
}

/// Whether a person has said that losing what nobody can give back is better than waiting for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Force {
    #[default]
    No,
    /// Once no member of the set is left: the highest clean log.
    Highest,
    /// This replica, whoever else is there and whatever state its store is in.
    Named(ReplicaName),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timings {
    /// Written into a blank Lease; one that is not carries its own.
    pub lease_duration: Duration,
    /// Silence after which a stream's other end counts as lost.
    pub backup_timeout: Duration,
    /// How long a primary's journal may make no progress, while it has work, before another replica takes over.
    pub stall_timeout: Duration,
}

impl Default for Timings {
    fn default() -> Self {
        Self {
            lease_duration: Duration::from_secs(5),
            backup_timeout: Duration::from_secs(2),
            stall_timeout: Duration::from_secs(10),
        }
    }
}

#[derive(Clone, Debug)]
pub struct ReplicaView {
    pub contact: Contact,
    /// The last it said, kept when contact is lost. `None`: it never said anything to this elector.
    pub report: Option<Report>,
}

/// Whether the elector hears a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contact {
    /// Not heard yet.
    Unknown,
    Reachable,
    /// `since`: when the stream broke; for silence, when something was last heard.
    Lost {
        since: Duration,
        how: Loss,
    },
    /// Nothing runs under this name, says whoever runs it: the process was seen to exit, the pod is deleted. Holds until
    /// somebody answers under the name again.
    Gone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Loss {
    /// The other end closed the stream or refused a new one: there is a machine, and the process is not on it.
    Reset,
    /// Nothing comes: the process, the machine or the network between has stopped.
    Silent,
}

/// What a replica says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Report {
    pub identity: Identity,
    /// The highest epoch it has persisted.
    pub known_epoch: Epoch,
    /// Where its log ends, in memory.
    pub last: Position,
    /// Where that part of it ends which no loss of power takes.
    pub durable: Position,
    pub state: StoreState,
    /// The newest in-sync set that its log records (rule 7); empty while there is none.
    pub recorded_set: BTreeSet<Member>,
    /// The cluster's versions that its build knows. In a cluster of another one it may not be elected.
    pub knows: VersionRange,
    /// The highest version of the cluster that its store has heard of: what its log may hold.
    pub cluster_version: ClusterVersion,
    pub role: Role,
    /// The blank Lease that it saw as the present one when it said this. Only for that one does its word count (rule 7): an
    /// older word may be of before it was elected, led and confirmed, all by a Lease that is gone.
    pub blank_seen: Option<Incarnation>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StoreState {
    Clean,
    /// It does not hold a whole log: damaged, or a catch-up from a sync point is not finished. May not be elected.
    Dirty,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// `stalled_for`: how long its journal has had work and made no progress; zero when all is well.
    Primary { epoch: Epoch, stalled_for: Duration },
    /// A message of this epoch's primary came within the backup timeout.
    Hears { epoch: Epoch },
    /// It has heard this epoch's primary, and does not any more.
    Lost { epoch: Epoch, since: Duration, how: Loss },
    /// It has heard no primary since its process started.
    Idle,
}
