//! `spec.failover`, `spec.primary` and `spec.replication`.

#![allow(unreachable_pub, reason = "KubeSchema derives a private twin of each type that carries its visibility")]

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::amount::Amount;

/// Times of failover: a number and `ms`, `s` or `m`.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("duration(self.backupTimeout) <= duration(self.leaseDuration)").message(
    "failover.backupTimeout must not be longer than failover.leaseDuration"
))]
pub struct Failover {
    /// Without the operator, a backup stands once the Lease has not been renewed for this long. The primary renews it twice as
    /// often: an idle cluster writes nothing else to the API server.
    #[serde(default = "default_lease_duration")]
    #[schemars(regex(pattern = "^[0-9]+(ms|s|m)$"), length(max = 10))]
    #[x_kube(validation = Rule::new("duration(self) >= duration('1s') && duration(self) <= duration('10m')").message(
        "failover.leaseDuration must lie between 1s and 10m"
    ))]
    pub lease_duration: String,
    /// Silence after which a peer counts as lost; also the longest that confirms wait for a backup that hangs.
    #[serde(default = "default_backup_timeout")]
    #[schemars(regex(pattern = "^[0-9]+(ms|s|m)$"), length(max = 10))]
    #[x_kube(validation = Rule::new("duration(self) >= duration('200ms') && duration(self) <= duration('5m')").message(
        "failover.backupTimeout must lie between 200ms and 5m"
    ))]
    pub backup_timeout: String,
    /// A primary whose journal has made no progress for this long is replaced.
    #[serde(default = "default_stall_timeout")]
    #[schemars(regex(pattern = "^[0-9]+(ms|s|m)$"), length(max = 10))]
    #[x_kube(validation = Rule::new("duration(self) >= duration('1s') && duration(self) <= duration('10m')").message(
        "failover.stallTimeout must lie between 1s and 10m"
    ))]
    pub stall_timeout: String,
    /// `Automatic`: a backup is elected as soon as the primary is lost. `Manual`: nothing is served until a person names one
    /// that is in sync, by the annotation `understudy.dev/switchover` or `kubectl understudy switchover --to POD`. A cluster that
    /// was stopped waits for that, too. Hand-overs are made either way.
    #[serde(default)]
    pub promotion: Promotion,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum Promotion {
    #[default]
    Automatic,
    Manual,
}

fn default_lease_duration() -> String {
    "10s".into()
}

fn default_backup_timeout() -> String {
    "2s".into()
}

fn default_stall_timeout() -> String {
    "10s".into()
}

impl Default for Failover {
    fn default() -> Self {
        Self {
            lease_duration: default_lease_duration(),
            backup_timeout: default_backup_timeout(),
            stall_timeout: default_stall_timeout(),
            promotion: Promotion::default(),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Primary {
    /// Pod that should be the primary, like `orders-0`. An election prefers it among those equally far; while another one
    /// serves the role is handed over to it once it has been in sync for half a minute, and no sooner than a minute after the
    /// last change of primary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub preferred: Option<String>,
}

/// How backups get what they lack, and what they get at all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Replication {
    /// Bytes a second that the primary gives to backups which catch up, all together, like `50Mi`. If absent: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub catch_up_bandwidth: Option<Amount>,
    /// Backups that catch up at the same time; the others wait for their turn.
    #[serde(default = "default_max_catch_ups")]
    #[schemars(range(min = 1, max = 8))]
    pub max_catch_ups: i32,
    /// What becomes of queues and exchanges that do not say so themselves (`x-understudy-replicate`): `all`, they and their
    /// messages are on every replica; `configuration`, they are, empty; `none`, they are on the primary alone.
    #[serde(default)]
    pub default: Replicate,
}

fn default_max_catch_ups() -> i32 {
    crate::validated::DEFAULT_MAX_CATCH_UPS.into()
}

impl Default for Replication {
    fn default() -> Self {
        Self { catch_up_bandwidth: None, max_catch_ups: default_max_catch_ups(), default: Replicate::default() }
    }
}

/// Written as clients write it in `x-understudy-replicate`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum Replicate {
    #[default]
    All,
    Configuration,
    None,
}

impl Replicate {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Configuration => "configuration",
            Self::None => "none",
        }
    }
}
