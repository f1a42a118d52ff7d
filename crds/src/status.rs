//! The status as the API server stores it. Written by the operator only; nothing acts on it, everything in it can be
//! observed anew.

use std::fmt;

use k8s_openapi::jiff;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
    #[serde(default)]
    pub in_sync_replicas: i32,
    /// One entry for each replica, by name.
    #[serde(default)]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub replica_statuses: Vec<ReplicaStatus>,
    #[serde(default)]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_failover: Option<LastFailover>,
    /// What became of the last request to move the role.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_switchover: Option<LastSwitchover>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReplicaStatus {
    /// The pod's name.
    pub name: String,
    pub role: ReplicaRole,
    pub in_sync: bool,
    /// Epoch and index of the last record in its log, as `epoch:index`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<String>,
    /// Records of the primary's log that it has not made durable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lag: Option<i64>,
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
    pub queues_done: i64,
    pub queues: i64,
    #[serde(default)]
    pub messages_done: i64,
    #[serde(default)]
    pub messages: i64,
    pub bytes_done: i64,
    pub bytes: i64,
    #[serde(default)]
    pub bytes_per_second: i64,
    /// At the present rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remaining_seconds: Option<i64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// `Available`, `Ready`, `Durable` or `ResourcesAvailable`.
    #[serde(rename = "type")]
    pub kind: String,
    pub status: ConditionStatus,
    /// One word, for machines.
    pub reason: String,
    /// For people.
    #[serde(default)]
    pub message: String,
    pub last_transition_time: Timestamp,
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

/// The last change of primary that the operator has seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LastFailover {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    pub to: String,
    pub epoch: i64,
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
}

/// A request by annotation (`understudy.dev/switchover`, `understudy.dev/force-primary`) that the operator has answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LastSwitchover {
    /// The pod that was asked for.
    pub to: String,
    pub outcome: SwitchoverOutcome,
    /// For people.
    pub message: String,
    /// From the request to the old primary until the new one served, in milliseconds; absent if nothing was handed over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gap_ms: Option<i64>,
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
