//! `spec.broker`: options of the broker that few clusters need.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::amount::Amount;

/// Options of the broker. What is absent is the broker's own value; a change replaces pods one by one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Broker {
    /// Size of one file of the log, 1Mi to 1Gi: disk space comes back in steps of it. If absent: 64Mi.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub segment_size: Option<Amount>,
    /// Log between two checkpoints, 1Mi to 64Gi: less means a shorter restart and less disk, more means less work beside. If
    /// absent: 64Mi.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint_size: Option<Amount>,
    /// What checkpoints may write in a second, 1Mi to 64Gi. If absent: 64Mi.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint_rate: Option<Amount>,
    /// A backup that lacks more records than this, and more than twice the live messages, gets the live messages instead of the
    /// log. If absent: 50000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub resume_records: Option<i32>,
    /// Within this time the primary has the backups compare all of their state with its own, like `10m`, at most `1440m`; `0s`:
    /// never. If absent: 10m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = "^[0-9]+(ms|s|m)$"), length(max = 10))]
    pub scrub_interval: Option<String>,
    /// A client has this time from its connection's beginning to `connection.open`, `1s` to `2m`. If absent: 10s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = "^[0-9]+(ms|s|m)$"), length(max = 10))]
    pub handshake_timeout: Option<String>,
    /// A replica counts although its state is not what its last primary had: for a cluster in which no replica's is, once
    /// somebody has decided whose counts. To be taken out again when that is over.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub accept_differences: bool,
}
