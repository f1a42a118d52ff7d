//! What annotations order: for now, not for ever, so they are no part of the spec.

use std::collections::BTreeSet;

use kube::ResourceExt;

use super::{ClusterName, InvalidCluster};
use crate::spec::BrokerCluster;

/// `paused`: the operator changes no object. Elections go on.
pub const RECONCILE_ANNOTATION: &str = "understudy.dev/reconcile";
/// `on`: no pods; volumes, Secrets and Services stay.
pub const HIBERNATION_ANNOTATION: &str = "understudy.dev/hibernation";
/// `on`: nodes are being worked at. Nothing is rolled out and no role goes back to a preferred pod; a cordoned node's primary hands over.
pub const MAINTENANCE_ANNOTATION: &str = "understudy.dev/maintenance";
/// Pods, by name and separated by commas, that are to be no primary and in no set, as for a look at their disks.
pub const FENCED_ANNOTATION: &str = "understudy.dev/fenced";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Orders {
    pub paused: bool,
    pub hibernated: bool,
    pub maintenance: bool,
    /// Pods of this cluster.
    pub fenced: BTreeSet<String>,
}

impl Orders {
    pub(super) fn parse(cluster: &BrokerCluster, name: &ClusterName, replicas: u8) -> Result<Self, InvalidCluster> {
        let text = |annotation| cluster.annotations().get(annotation).map(|text| text.trim());
        let is_set = |annotation: &'static str, word: &'static str| match text(annotation) {
            None | Some("") => Ok(false),
            Some(text) if text == word => Ok(true),
            Some(text) => Err(InvalidCluster::Word { annotation, text: text.chars().take(40).collect(), known: word }),
        };
        let fenced = text(FENCED_ANNOTATION).unwrap_or_default().split(',').map(str::trim);
        let fenced: BTreeSet<String> = fenced.filter(|name| !name.is_empty()).map(str::to_owned).collect();
        let own: BTreeSet<String> = (0..replicas).map(|ordinal| format!("{name}-{ordinal}")).collect();
        if let Some(stranger) = fenced.difference(&own).next() {
            let name = stranger.chars().take(80).collect();
            return Err(InvalidCluster::Unknown { annotation: FENCED_ANNOTATION, name });
        }
        Ok(Self {
            paused: is_set(RECONCILE_ANNOTATION, "paused")?,
            hibernated: is_set(HIBERNATION_ANNOTATION, "on")?,
            maintenance: is_set(MAINTENANCE_ANNOTATION, "on")?,
            fenced,
        })
    }
}
