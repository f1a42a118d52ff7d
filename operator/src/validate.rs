//! Step 2: the spec and the operator's own defaults become a [`Target`], the only input of building. Needs no client.

use understudy_crds::{BrokerCluster, InvalidCluster, ValidatedCluster};

/// What a spec leaves to the operator.
#[derive(Clone, Debug)]
pub struct Defaults {
    pub broker_image: String,
}

/// A cluster to be made, nothing left open.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    pub cluster: ValidatedCluster,
    pub image: String,
}

/// # Errors
/// The first mistake in the spec.
pub fn validate(cluster: &BrokerCluster, defaults: &Defaults) -> Result<Target, InvalidCluster> {
    let cluster = ValidatedCluster::parse(cluster)?;
    let image = cluster.image.clone().unwrap_or_else(|| defaults.broker_image.clone());
    Ok(Target { cluster, image })
}
