//! Step 2: the spec and the operator's own defaults become a [`Target`], the only input of building. Needs no client.

use crate::failover::GivenDefinitions;
use understudy_crds::{BrokerCluster, InvalidCluster, ValidatedCluster};

/// What a spec leaves to the operator.
#[derive(Clone, Debug, Default)]
pub struct Defaults {
    pub broker_image: String,
    /// Where the operator runs, if in a cluster.
    pub operator_namespace: Option<String>,
}

/// A cluster to be made, nothing left open.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    pub cluster: ValidatedCluster,
    pub image: String,
    /// Pods there are to be now: the spec's, none in hibernation, more while one that is to go is needed.
    pub pods: u8,
    /// What `spec.definitions` names, once it was read.
    pub definitions: Option<GivenDefinitions>,
    /// Where the operator comes from, if it runs in a cluster.
    pub operator_namespace: Option<String>,
}

/// # Errors
/// The first mistake in the spec.
pub fn validate(cluster: &BrokerCluster, defaults: &Defaults) -> Result<Target, InvalidCluster> {
    let cluster = ValidatedCluster::parse(cluster)?;
    let image = cluster.image.clone().unwrap_or_else(|| defaults.broker_image.clone());
    let pods = if cluster.orders.hibernated { 0 } else { cluster.replicas };
    Ok(Target { pods, definitions: None, cluster, image, operator_namespace: defaults.operator_namespace.clone() })
}
