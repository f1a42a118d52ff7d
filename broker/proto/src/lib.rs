//! The gRPC messages and services, generated from `proto/understudy.proto`. Wire types only: each side turns them into
//! its own at the edge.

#![allow(missing_docs, unreachable_pub, clippy::all)]

tonic::include_proto!("understudy.v1");
