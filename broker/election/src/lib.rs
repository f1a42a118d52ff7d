//! Who is primary: the cluster's Lease as a value, and the decision about who may take it.
//!
//! Everything here is a function of its arguments. There is no clock (time is a `Duration` on the caller's own monotonic
//! clock), no network, no Kubernetes and no file: the caller gathers a [`View`], asks [`decide`], and carries the answer to
//! a lease store. Safety rests on [`Lease`] alone, whose values are derived in one file, each by its rule; a view that is
//! late or wrong makes [`decide`] act too early, too late or in vain, but never unsafely.

mod candidate;
mod decide;
mod force;
mod lease;
mod reason;
mod recovery;
mod stored;
mod tracker;
mod view;

pub use decide::{Decision, decide};
pub use lease::{
    Lease, LeaseParts, MAX_LEASE_DURATION, MAX_MEMBERS, MalformedLease, NotElectable, NotHolder, RECREATION_EPOCH_GAP,
    Renewal,
};
pub use reason::{
    Ahead, BlockedReason, FORCE_PRIMARY_ANNOTATION, FORCE_RECOVERY_ANNOTATION, FailoverReason, LastHeard, LostMember,
    LostWhy, MayBeLost, SWITCHOVER_ANNOTATION, WaitReason,
};
pub use recovery::{RECOVERY_EPOCH_GAP, whom_to_follow};
pub use stored::{Incarnation, Stored, Version};
pub use tracker::{LeaseTracker, Observed, Register};
pub use view::{Contact, Elector, Force, Loss, Promotion, ReplicaView, Report, Role, Spec, StoreState, Timings, View};
