//! The StatefulSet: pods with stable names and disks, all started at once.
//!
//! `OnDelete`: a rolling update by ordinal would take the primary in its turn, whoever it is. The operator deletes outdated
//! pods itself, backups first (see `failover::roll`). Probes ask the broker alone, so that no outage of the API server
//! restarts a pod.

use k8s_openapi::api::apps::v1::{
    StatefulSet, StatefulSetPersistentVolumeClaimRetentionPolicy, StatefulSetSpec, StatefulSetUpdateStrategy,
};
use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, PersistentVolumeClaimSpec, PodTemplateSpec, VolumeResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use understudy_crds::{Amount, ValidatedCluster, WhatToDo};

use super::{BuildError, overlay, pod};
use crate::dereference::Observed;
use crate::names::{DATA_VOLUME, Names, labels, metadata, selector, selector_labels};
use crate::validate::Target;

/// # Errors
/// If what the spec lays over the pod template makes no pod of it.
pub(super) fn build(target: &Target, observed: &Observed) -> Result<StatefulSet, BuildError> {
    let cluster = &target.cluster;
    let names = Names::of(&cluster.name);
    // Hibernation takes all pods away, and no volume with them.
    let when_scaled = match cluster.orders.hibernated {
        true => WhatToDo::Retain,
        false => cluster.retention.when_scaled,
    };
    let template = PodTemplateSpec {
        metadata: Some(ObjectMeta { labels: Some(labels(&cluster.name)), ..ObjectMeta::default() }),
        spec: Some(pod::build(target, &names)),
    };
    Ok(StatefulSet {
        metadata: metadata(cluster, names.stateful_set()),
        spec: Some(StatefulSetSpec {
            replicas: Some(i32::from(target.pods)),
            service_name: Some(names.nodes_service()),
            selector: selector(&cluster.name),
            pod_management_policy: Some("Parallel".into()),
            update_strategy: Some(StatefulSetUpdateStrategy { type_: Some("OnDelete".into()), rolling_update: None }),
            persistent_volume_claim_retention_policy: Some(StatefulSetPersistentVolumeClaimRetentionPolicy {
                when_deleted: Some(cluster.retention.when_deleted.as_str().into()),
                when_scaled: Some(when_scaled.as_str().into()),
            }),
            revision_history_limit: Some(5),
            template: overlay::pod_template(template, &cluster.pod_template)?,
            volume_claim_templates: Some(vec![claim_template(cluster, observed)]),
            ..StatefulSetSpec::default()
        }),
        status: None,
    })
}

/// Volume claims of the spec's pods that ask for less than the spec says.
pub(super) fn claims_to_grow(cluster: &ValidatedCluster, observed: &Observed) -> Vec<(String, String)> {
    let names = Names::of(&cluster.name);
    let Ok(wanted) = cluster.storage_size.quantity() else { return Vec::new() };
    let own: Vec<String> = cluster.pod_names().map(|pod| names.claim(&pod)).collect();
    let small = observed.claims.iter().filter(|claim| {
        let size = claim.spec.as_ref().and_then(claimed).and_then(|size| size.quantity().ok());
        size.is_some_and(|size| size < wanted) && claim.metadata.deletion_timestamp.is_none()
    });
    let small = small.filter_map(|claim| claim.metadata.name.clone()).filter(|name| own.contains(name));
    small.map(|name| (name, cluster.storage_size.to_string())).collect()
}

fn claimed(spec: &PersistentVolumeClaimSpec) -> Option<Amount> {
    spec.resources.as_ref()?.requests.as_ref()?.get("storage").map(|quantity| Amount(quantity.0.clone()))
}

/// Volumes never shrink, and their class is that of the first one; whoever brought that about otherwise is not followed. A size
/// that grows makes another StatefulSet (see `apply`), and claims that exist are grown one by one.
fn claim_template(cluster: &ValidatedCluster, observed: &Observed) -> PersistentVolumeClaim {
    let existing = observed.stateful_set.as_ref().and_then(|set| set.spec.as_ref()?.volume_claim_templates.as_ref());
    let existing = existing.and_then(|templates| templates.first()?.spec.as_ref());
    let size = match existing.and_then(claimed) {
        Some(before) if before.quantity().ok() >= cluster.storage_size.quantity().ok() => before,
        _ => cluster.storage_size.clone(),
    };
    let class = match existing {
        Some(spec) => spec.storage_class_name.clone(),
        None => cluster.storage_class.clone(),
    };
    PersistentVolumeClaim {
        metadata: ObjectMeta {
            name: Some(DATA_VOLUME.into()),
            labels: Some(selector_labels(&cluster.name)),
            ..ObjectMeta::default()
        },
        spec: Some(PersistentVolumeClaimSpec {
            access_modes: Some(vec!["ReadWriteOnce".into()]),
            storage_class_name: class,
            resources: Some(VolumeResourceRequirements {
                requests: Some([("storage".to_owned(), Quantity(size.to_string()))].into()),
                limits: None,
            }),
            ..PersistentVolumeClaimSpec::default()
        }),
        status: None,
    }
}
