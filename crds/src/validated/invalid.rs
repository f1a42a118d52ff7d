//! What can be wrong with a spec: field, cause, cure.

use std::time::Duration;

use super::{
    FORCE_RECOVERY_ANNOTATION, MAX_CATCH_UPS, MAX_NAME_BYTES, MAX_REPLICAS, MIN_MEMORY_WATERMARK, MIN_REPLICAS,
};
use crate::amount::{Amount, AmountError};

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidCluster {
    #[error(
        "metadata.name {name:?} cannot be part of Service and pod names: use at most {MAX_NAME_BYTES} lower case letters, digits and '-', \
         starting with a letter and not ending with '-'"
    )]
    Name { name: String },
    #[error("the object has no {0}: it was not read from an API server")]
    NotStored(&'static str),
    #[error("spec.replicas is {0}: choose {MIN_REPLICAS} to {MAX_REPLICAS}")]
    Replicas(i32),
    #[error(
        "spec.minInSync is {min_in_sync} with spec.replicas {replicas}: choose 1 to {replicas}, or no message could ever be confirmed"
    )]
    MinInSync { min_in_sync: i32, replicas: u8 },
    #[error("{field}: {source}")]
    Amount { field: String, source: AmountError },
    #[error("{0} is zero: give it a size")]
    Zero(String),
    #[error(
        "spec.storage.freeWatermark is {watermark} with spec.storage.size {size}: choose at most half of it, or publishers would hardly \
         ever go on"
    )]
    FreeWatermark { watermark: Amount, size: Amount },
    #[error("spec.memory.watermarkPercent is {0}: choose {MIN_MEMORY_WATERMARK} to 100")]
    MemoryWatermark(i32),
    #[error(
        "spec.memory.budget is {budget}: choose less than {percent} % (spec.memory.watermarkPercent) of the memory limit, {limit}, or \
         publishers would wait for ever"
    )]
    MemoryBudget { budget: Amount, percent: u8, limit: Amount },
    #[error("spec.resources: the request for {resource}, {request}, is greater than its limit, {limit}")]
    RequestAboveLimit { resource: String, request: Amount, limit: Amount },
    #[error("{field} {text:?} is not a time: write a whole number and ms, s or m, like 500ms")]
    Time { field: &'static str, text: String },
    #[error("{field} {text:?} is not a time of the day: write hours and minutes of UTC, like 02:30")]
    TimeOfDay { field: &'static str, text: String },
    #[error("{field} is {text}: choose between {least:?} and {most:?}")]
    TimeRange { field: &'static str, text: String, least: Duration, most: Duration },
    #[error(
        "spec.failover.backupTimeout is longer than spec.failover.leaseDuration: a lost backup would hold confirms for longer than a lost \
         primary would"
    )]
    BackupTimeoutAboveLease,
    #[error("spec.primary.preferred {preferred:?} is none of the cluster's pods: {name}-0 to {name}-{last}")]
    Preferred { preferred: String, name: String, last: u8 },
    #[error("spec.replication.maxCatchUps is {0}: choose 1 to {MAX_CATCH_UPS}")]
    MaxCatchUps(i32),
    #[error("annotation {FORCE_RECOVERY_ANNOTATION} is {0:?}: give the epoch that the status shows, a number")]
    ForcedRecovery(String),
    #[error("{field} is {value}: choose {least} to {most}")]
    Range { field: &'static str, value: String, least: u64, most: u64 },
    #[error(
        "spec.clients.plaintext is Refuse and there is no spec.clients.tls: no client could come in; add tls, or serve plaintext"
    )]
    NoListener,
    #[error("spec.clients.tls has secretName and issuer: leave one of them out")]
    TwoCertificates,
    #[error(
        "spec.clients.tls.clientCertificates is Required and there is no clientAuthority to judge them by: name its Secret"
    )]
    NoClientAuthority,
    #[error("spec.clients.tls.dnsNames: {0:?} is no host name")]
    HostName(String),
    #[error("spec.service.{field} is for the types {types}: change spec.service.type, or leave it out")]
    ServiceField { field: &'static str, types: &'static str },
    #[error("spec.service.amqpPort and amqpsPort are both {0}: choose two")]
    SamePort(u16),
    #[error("{field} is not what a pod's spec has there: {why}")]
    Shape { field: &'static str, why: String },
    #[error("spec.podTemplate.{0} is the operator's own: leave it out")]
    Reserved(String),
    #[error("annotation {annotation} names {name:?}, which is none of the cluster's pods")]
    Unknown { annotation: &'static str, name: String },
    #[error("annotation {annotation} is {text:?}: it knows {known}; take it off for the opposite")]
    Word { annotation: &'static str, text: String, known: &'static str },
}
