//! The PodDisruptionBudget: one voluntary disruption at a time. None for one replica, whose node could never be drained.

use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use understudy_crds::ValidatedCluster;

use crate::names::{Names, metadata, selector};

pub(super) fn build(cluster: &ValidatedCluster) -> Option<PodDisruptionBudget> {
    (cluster.replicas > 1).then(|| PodDisruptionBudget {
        metadata: metadata(cluster, Names::of(&cluster.name).disruption_budget()),
        spec: Some(PodDisruptionBudgetSpec {
            max_unavailable: Some(IntOrString::Int(1)),
            selector: Some(selector(&cluster.name)),
            // A pod that never became ready may always be evicted: it serves nobody.
            unhealthy_pod_eviction_policy: Some("AlwaysAllow".into()),
            ..PodDisruptionBudgetSpec::default()
        }),
        status: None,
    })
}
