//! `spec.update`, `spec.monitoring` and `spec.networkPolicies`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A pod is replaced when its template changes: backups one by one, each awaited in sync, then a hand-over, the old primary
/// last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Update {
    /// `Automatic`: all of it. `Supervised`: the hand-over is a person's, by `kubectl understudy switchover`; until then the
    /// old primary goes on.
    #[serde(default)]
    pub strategy: UpdateStrategy,
    /// When pods that work may be replaced. Outside these times a changed template waits; a pod that is not in sync is replaced
    /// all the same, and what changes without a restart does not wait. If absent: at any time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 14))]
    pub windows: Vec<MaintenanceWindow>,
}

/// A time of the week, in UTC. An update that has begun in it is not begun anew by the next one, but goes on there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MaintenanceWindow {
    /// Days on which it begins. If absent: each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 7))]
    pub days: Vec<Day>,
    /// When it begins, in UTC, like `02:30`.
    #[schemars(regex(pattern = "^([01][0-9]|2[0-3]):[0-5][0-9]$"))]
    pub start: String,
    /// How long it lasts, 10m to 1440m, like `120m`.
    #[schemars(regex(pattern = "^[0-9]+m$"), length(max = 5))]
    pub duration: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum Day {
    Monday,
    Tuesday,
    Wednesday,
    Thursday,
    Friday,
    Saturday,
    Sunday,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum UpdateStrategy {
    #[default]
    Automatic,
    Supervised,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Monitoring {
    /// A PodMonitor for this cluster's pods. Needs the Prometheus operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_monitor: Option<PodMonitor>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodMonitor {
    /// Labels by which a Prometheus finds it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Between two scrapes, like `15s`. If absent: what that Prometheus has as its default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = "^[0-9]+(ms|s|m)$"), length(max = 10))]
    pub interval: Option<String>,
}

/// A NetworkPolicy for the pods: AMQP and metrics are open to all, what replicas and the operator say to each other is not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NetworkPolicies {
    /// Whether there is one.
    #[serde(default = "enabled")]
    pub enabled: bool,
}

fn enabled() -> bool {
    true
}

impl Default for NetworkPolicies {
    fn default() -> Self {
        Self { enabled: enabled() }
    }
}
