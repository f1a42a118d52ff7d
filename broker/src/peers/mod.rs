//! The other replicas, over gRPC: what is served to them and to the operator, how this one follows, relays and asks.
//! Wire types end here: everything inside speaks in domain types.

mod administration;
mod bandwidth;
mod control;
mod convert;
mod relay;
mod replica;
mod tls;
mod upstream;

pub(crate) use bandwidth::Bandwidth;
pub(crate) use control::ControlService;
pub(crate) use convert::status_to_wire;
pub(crate) use relay::relay;
pub(crate) use replica::ReplicaService;
pub(crate) use tls::{Tls, server_builder};
pub(crate) use upstream::Upstream;

/// The largest gRPC message taken: a frame with the largest body, and a batch's worth of others.
pub(crate) const MAX_MESSAGE_BYTES: usize = understudy_record::MAX_BODY_BYTES + (32 << 20);
