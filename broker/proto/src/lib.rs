//! The gRPC messages and services, generated from `proto/understudy.proto`, and the reading of a broker's status and of
//! its alarms, which three parties share. Otherwise wire types only: each side turns them into its own at the edge.

mod alarms;
mod said;

pub use said::{ReadError, Said, identity, read, wire_identity};

mod generated {
    #![allow(missing_docs, unreachable_pub, clippy::all)]
    tonic::include_proto!("understudy.v1");
}

pub use generated::*;
