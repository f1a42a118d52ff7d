//! `spec.service`.

#![allow(unreachable_pub, reason = "KubeSchema derives a private twin of each type that carries its visibility")]

use std::collections::BTreeMap;

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The Service `NAME`, behind which the primary stands. `NAME-any`, over all pods, stays inside the cluster.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.externalTrafficPolicy) || (has(self.type) && self.type != 'ClusterIP')").message(
        "service.externalTrafficPolicy is for the types NodePort and LoadBalancer"
    ),
    validation = Rule::new(
        "!(has(self.loadBalancerClass) || has(self.loadBalancerSourceRanges)) || (has(self.type) && self.type == 'LoadBalancer')"
    ).message("service.loadBalancerClass and service.loadBalancerSourceRanges are for the type LoadBalancer")
)]
pub struct Service {
    /// `ClusterIP`, `NodePort` or `LoadBalancer`.
    #[serde(default, rename = "type")]
    pub kind: ServiceType,
    /// Annotations of the Service, for example what a cloud's load balancer is told by.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Labels of the Service, beside the operator's own.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// `Cluster`, or `Local`: traffic enters at the primary's node alone and keeps the client's address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external_traffic_policy: Option<TrafficPolicy>,
    /// The load balancer's class, if there are several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub load_balancer_class: Option<String>,
    /// Who may reach the load balancer, as CIDRs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub load_balancer_source_ranges: Vec<String>,
    /// The Service's port for AMQP without encryption.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65_535))]
    pub amqp_port: Option<i32>,
    /// The Service's port for AMQP over TLS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65_535))]
    pub amqps_port: Option<i32>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum ServiceType {
    #[default]
    #[serde(rename = "ClusterIP")]
    ClusterIp,
    NodePort,
    LoadBalancer,
}

impl ServiceType {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ClusterIp => "ClusterIP",
            Self::NodePort => "NodePort",
            Self::LoadBalancer => "LoadBalancer",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum TrafficPolicy {
    Cluster,
    Local,
}

impl TrafficPolicy {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cluster => "Cluster",
            Self::Local => "Local",
        }
    }
}
