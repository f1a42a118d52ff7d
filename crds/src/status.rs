//! The status as the API server stores it. Written by the operator only; nothing acts on it, everything in it can be
//! observed anew.

use std::fmt;

use k8s_openapi::jiff;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What the operator sees. Nothing acts on it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BrokerClusterStatus {
    /// The generation of the spec that the rest of the status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Pods that exist, for the scale subresource.
    #[serde(default)]
    pub replicas: i32,
    /// Selects the pods, for the scale subresource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// The pod that holds the Lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub primary: Option<String>,
    /// Counts the primaries the cluster has had.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<i64>,
    /// What every replica's build knows, and what may therefore be written; raised once all of them know the next one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_version: Option<i64>,
    /// Pods in the in-sync set: each holds every confirmed message and may be elected.
    #[serde(default)]
    pub in_sync: Vec<String>,
    /// How many those are.
    #[serde(default)]
    pub in_sync_replicas: i32,
    /// One entry for each replica, by name.
    #[serde(default)]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub replica_statuses: Vec<ReplicaStatus>,
    /// `Available`, `Ready`, `Durable`, `Progressing`, `ControlPlaneReachable`, `ResourcesAvailable`, and, while there is reason
    /// to, `Reconciling` or `Stalled`.
    #[serde(default)]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// The last change of primary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_failover: Option<FailoverRecord>,
    /// The last ten changes of primary, the newest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failovers: Vec<FailoverRecord>,
    /// What became of `spec.definitions`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub definitions: Option<DefinitionsStatus>,
    /// What became of the last request to move the role.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_switchover: Option<LastSwitchover>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReplicaStatus {
    /// The pod's name.
    pub name: String,
    /// What it does.
    pub role: ReplicaRole,
    /// Whether it is in the in-sync set.
    pub in_sync: bool,
    /// Epoch and index of the last record in its log, as `epoch:index`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<String>,
    /// Records of the primary's log that it has not made durable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lag: Option<i64>,
    /// How far it is with fetching what it lacks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub catch_up: Option<CatchUpProgress>,
    /// What keeps it from its work, if anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum ReplicaRole {
    Primary,
    Backup,
    CatchingUp,
    /// Reads its journal.
    Recovering,
    /// Runs, and follows nobody.
    Idle,
    /// Its journal failed, or it is on its way out.
    Ended,
    /// The operator does not hear it.
    Unreachable,
    /// There is no such pod.
    Absent,
}

impl fmt::Display for ReplicaRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CatchUpProgress {
    /// Queues whose messages it has.
    pub queues_done: i64,
    /// Queues there are.
    pub queues: i64,
    /// Messages it has fetched.
    #[serde(default)]
    pub messages_done: i64,
    /// Messages to fetch, those included.
    #[serde(default)]
    pub messages: i64,
    /// Bytes it has fetched.
    pub bytes_done: i64,
    /// Bytes to fetch, those included.
    pub bytes: i64,
    /// The present rate.
    #[serde(default)]
    pub bytes_per_second: i64,
    /// Until it is done, at the present rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remaining_seconds: Option<i64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// What it is about.
    #[serde(rename = "type")]
    pub kind: String,
    /// Whether it is so.
    pub status: ConditionStatus,
    /// One word, for machines.
    pub reason: String,
    /// For people.
    #[serde(default)]
    pub message: String,
    /// Since when the status is what it is.
    pub last_transition_time: Timestamp,
    /// The generation of the spec that it speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum ConditionStatus {
    True,
    False,
    Unknown,
}

/// A change of primary that the operator has seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FailoverRecord {
    /// The pod that was the primary before, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// The pod that is the primary since.
    pub to: String,
    /// Its epoch.
    pub epoch: i64,
    /// One word, for machines.
    pub reason: String,
    /// When the operator first knew that the old primary had to be replaced; absent if it was not the operator's doing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub noticed_at: Option<Timestamp>,
    /// When the operator saw the Lease name the new one; absent if it happened while no operator ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elected_at: Option<Timestamp>,
    /// When the new one said that it serves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serving_at: Option<Timestamp>,
    /// From the last that was heard of the old one until the operator decided, in milliseconds; absent, here and below, if it was
    /// not the operator's doing or not seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detect_ms: Option<i64>,
    /// From the decision until the Lease named the new one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elect_ms: Option<i64>,
    /// From then until it served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub promote_ms: Option<i64>,
    /// From then, too, until the Service led to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub route_ms: Option<i64>,
}

/// An import of definitions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DefinitionsStatus {
    /// Of the text that was imported.
    pub hash: String,
    /// When.
    pub at: Timestamp,
    /// Entries that were made or changed.
    pub changed: i64,
    /// Entries that were there already.
    pub unchanged: i64,
    /// Entries that were not taken, or that exist and are something else; the first twenty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
}

/// A request by annotation (`understudy.dev/switchover`, `understudy.dev/force-primary`) that the operator has answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LastSwitchover {
    /// The pod that was asked for.
    pub to: String,
    /// What became of it.
    pub outcome: SwitchoverOutcome,
    /// For people.
    pub message: String,
    /// From the request to the old primary until the new one served, in milliseconds; absent if nothing was handed over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gap_ms: Option<i64>,
    /// When it was answered.
    pub at: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum SwitchoverOutcome {
    /// The pod is the primary.
    Done,
    /// Nothing has changed.
    Refused,
}

/// A moment, RFC 3339 with milliseconds, UTC. For people: nothing is computed from it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(inline)]
pub struct Timestamp(#[schemars(extend("format" = "date-time"))] pub String);

impl Timestamp {
    /// From milliseconds since 1970; a number outside the calendar becomes its start.
    pub fn from_unix_ms(ms: i64) -> Self {
        let instant = jiff::Timestamp::from_millisecond(ms).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
        Self(format!("{instant:.3}"))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_written_with_milliseconds() {
        assert_eq!(Timestamp::from_unix_ms(1_700_000_000_123).0, "2023-11-14T22:13:20.123Z");
        assert_eq!(Timestamp::from_unix_ms(0).0, "1970-01-01T00:00:00.000Z");
        assert_eq!(Timestamp::from_unix_ms(i64::MAX).0, "1970-01-01T00:00:00.000Z");
    }
}
