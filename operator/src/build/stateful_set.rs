//! The StatefulSet: pods with stable names and disks, all started at once.
//!
//! `OnDelete`: a rolling update by ordinal would take the primary in its turn, whoever it is. The operator deletes outdated
//! pods itself, backups first (see `failover::roll`). Probes ask the broker alone, so that no outage of the API server
//! restarts a pod.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::{
    StatefulSet, StatefulSetPersistentVolumeClaimRetentionPolicy, StatefulSetSpec, StatefulSetUpdateStrategy,
};
use k8s_openapi::api::core::v1::{
    Affinity, Capabilities, Container, ContainerPort, EnvVar, EnvVarSource, HTTPGetAction, KeyToPath,
    ObjectFieldSelector, PersistentVolumeClaim, PersistentVolumeClaimSpec, PodAffinityTerm, PodAntiAffinity,
    PodSecurityContext, PodSpec, PodTemplateSpec, Probe, ResourceRequirements, SeccompProfile, SecretVolumeSource,
    SecurityContext, TopologySpreadConstraint, Volume, VolumeMount, VolumeResourceRequirements,
    WeightedPodAffinityTerm,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use understudy_crds::{
    Amount, BackupConnections, DEFAULT_MAX_CATCH_UPS, DEFAULT_MEMORY_WATERMARK, Durability, Replicate, ValidatedCluster,
};

use crate::dereference::Observed;
use crate::names::{
    AMQP_PORT, BROKER_CONTAINER, DATA_VOLUME, GRPC_PORT, HTTP_PORT, Names, labels, metadata, selector, selector_labels,
};
use crate::validate::Target;

/// Also the image's user.
const BROKER_USER: i64 = 65532;
const DATA_DIR: &str = "/var/lib/understudy";
const TLS_DIR: &str = "/etc/understudy/tls";
const USERS_DIR: &str = "/etc/understudy/users";
/// A primary hands over in well under a second; the rest is for a backup to leave the set while the API server is slow.
const GRACE_SECONDS: i64 = 60;
/// A journal of some hundred gigabytes is read in this time; a start that takes longer is a fault.
const STARTUP_SECONDS: i32 = 3600;
const HOSTNAME_KEY: &str = "kubernetes.io/hostname";

pub(super) fn build(target: &Target, observed: &Observed) -> StatefulSet {
    let cluster = &target.cluster;
    let names = Names::of(&cluster.name);
    StatefulSet {
        metadata: metadata(cluster, names.stateful_set()),
        spec: Some(StatefulSetSpec {
            replicas: Some(i32::from(cluster.replicas)),
            service_name: Some(names.nodes_service()),
            selector: selector(&cluster.name),
            pod_management_policy: Some("Parallel".into()),
            update_strategy: Some(StatefulSetUpdateStrategy { type_: Some("OnDelete".into()), rolling_update: None }),
            persistent_volume_claim_retention_policy: Some(StatefulSetPersistentVolumeClaimRetentionPolicy {
                when_deleted: Some("Retain".into()),
                when_scaled: Some("Retain".into()),
            }),
            revision_history_limit: Some(5),
            template: PodTemplateSpec {
                metadata: Some(ObjectMeta { labels: Some(labels(&cluster.name)), ..ObjectMeta::default() }),
                spec: Some(pod(target, &names)),
            },
            volume_claim_templates: Some(vec![claim_template(cluster, observed)]),
            ..StatefulSetSpec::default()
        }),
        status: None,
    }
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

/// A StatefulSet's claim template cannot be changed: the size it was made with stays in it, and claims are grown one by one.
fn claim_template(cluster: &ValidatedCluster, observed: &Observed) -> PersistentVolumeClaim {
    let existing = observed.stateful_set.as_ref().and_then(|set| set.spec.as_ref()?.volume_claim_templates.as_ref());
    let existing = existing.and_then(|templates| templates.first()?.spec.as_ref());
    let size = existing.and_then(claimed).unwrap_or_else(|| cluster.storage_size.clone());
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

fn pod(target: &Target, names: &Names) -> PodSpec {
    let cluster = &target.cluster;
    let term = PodAffinityTerm {
        label_selector: Some(selector(&cluster.name)),
        topology_key: HOSTNAME_KEY.into(),
        ..PodAffinityTerm::default()
    };
    PodSpec {
        service_account_name: Some(names.broker_account()),
        automount_service_account_token: Some(true), // brokers renew the Lease themselves
        enable_service_links: Some(false),
        termination_grace_period_seconds: Some(GRACE_SECONDS),
        affinity: Some(Affinity {
            pod_anti_affinity: Some(PodAntiAffinity {
                preferred_during_scheduling_ignored_during_execution: Some(vec![WeightedPodAffinityTerm {
                    weight: 100,
                    pod_affinity_term: term,
                }]),
                ..PodAntiAffinity::default()
            }),
            ..Affinity::default()
        }),
        topology_spread_constraints: Some(vec![TopologySpreadConstraint {
            max_skew: 1,
            topology_key: HOSTNAME_KEY.into(),
            when_unsatisfiable: "ScheduleAnyway".into(),
            label_selector: Some(selector(&cluster.name)),
            ..TopologySpreadConstraint::default()
        }]),
        security_context: Some(PodSecurityContext {
            run_as_non_root: Some(true),
            run_as_user: Some(BROKER_USER),
            run_as_group: Some(BROKER_USER),
            fs_group: Some(BROKER_USER),
            fs_group_change_policy: Some("OnRootMismatch".into()),
            seccomp_profile: Some(SeccompProfile { type_: "RuntimeDefault".into(), localhost_profile: None }),
            ..PodSecurityContext::default()
        }),
        containers: vec![container(target)],
        volumes: Some(vec![
            secret_volume("tls", names.tls_secret(), &[]),
            secret_volume("users", names.user_secret(), &["users"]),
        ]),
        ..PodSpec::default()
    }
}

fn container(target: &Target) -> Container {
    let cluster = &target.cluster;
    let amounts = |amounts: &BTreeMap<String, Amount>| {
        Some(amounts.iter().map(|(resource, amount)| (resource.clone(), Quantity(amount.to_string()))).collect())
    };
    let port = |name: &str, number| ContainerPort {
        name: Some(name.into()),
        container_port: number,
        protocol: Some("TCP".into()),
        ..ContainerPort::default()
    };
    let mount = |name: &str, path: &str, read_only: bool| VolumeMount {
        name: name.into(),
        mount_path: path.into(),
        read_only: read_only.then_some(true),
        ..VolumeMount::default()
    };
    Container {
        name: BROKER_CONTAINER.into(),
        image: Some(target.image.clone()),
        image_pull_policy: Some(cluster.image_pull_policy.as_str().into()),
        args: Some(arguments(cluster)),
        env: Some(vec![
            field("POD_NAME", "metadata.name"),
            field("POD_NAMESPACE", "metadata.namespace"),
            field("POD_IP", "status.podIP"),
            field("NODE_NAME", "spec.nodeName"),
        ]),
        ports: Some(vec![port("amqp", AMQP_PORT), port("grpc", GRPC_PORT), port("http", HTTP_PORT)]),
        resources: Some(ResourceRequirements {
            requests: amounts(&cluster.resources.requests),
            limits: amounts(&cluster.resources.limits),
            claims: None,
        }),
        security_context: Some(SecurityContext {
            allow_privilege_escalation: Some(false),
            read_only_root_filesystem: Some(true),
            capabilities: Some(Capabilities { drop: Some(vec!["ALL".into()]), add: None }),
            ..SecurityContext::default()
        }),
        volume_mounts: Some(vec![
            mount(DATA_VOLUME, DATA_DIR, false),
            mount("tls", TLS_DIR, true),
            mount("users", USERS_DIR, true),
        ]),
        startup_probe: Some(probe("/startupz", 1, 2, STARTUP_SECONDS)),
        readiness_probe: Some(probe("/readyz", 2, 2, 3)),
        liveness_probe: Some(probe("/livez", 10, 5, 6)),
        ..Container::default()
    }
}

fn arguments(cluster: &ValidatedCluster) -> Vec<String> {
    let names = Names::of(&cluster.name);
    let namespace = &cluster.namespace;
    let durability = match cluster.durability {
        Durability::Fsync => "fsync",
        Durability::Replicated => "replicated",
    };
    let mut arguments: Vec<String> = vec![
        "--name=$(POD_NAME)".into(),
        format!("--cluster={}", cluster.name),
        format!("--data-dir={DATA_DIR}"),
        format!("--amqp-listen=0.0.0.0:{AMQP_PORT}"),
        format!("--grpc-listen=0.0.0.0:{GRPC_PORT}"),
        format!("--http-listen=0.0.0.0:{HTTP_PORT}"),
        format!("--peer-pattern={}:{GRPC_PORT}", names.pod_host("{name}", namespace)),
        format!("--replicas={}", cluster.replicas),
        format!("--min-in-sync={}", cluster.min_in_sync),
        format!("--durability={durability}"),
        format!("--lease=kubernetes:{namespace}/{}", names.lease()),
        format!("--lease-duration-ms={}", cluster.failover.lease_duration.as_millis()),
        format!("--backup-timeout-ms={}", cluster.failover.backup_timeout.as_millis()),
        format!("--stall-timeout-ms={}", cluster.failover.stall_timeout.as_millis()),
        format!("--tls-dir={TLS_DIR}"),
        format!("--users-file={USERS_DIR}/users"),
    ];
    // What is absent is the broker's to decide, by what its container grants it.
    let numbers = [
        ("memory-budget", cluster.memory_budget),
        ("memory-watermark", Some(cluster.memory_watermark).filter(|p| *p != DEFAULT_MEMORY_WATERMARK).map(u64::from)),
        ("disk-free-watermark", cluster.disk_free_watermark),
        ("catch-up-bandwidth", cluster.catch_up_bandwidth),
        ("max-catch-ups", Some(cluster.max_catch_ups).filter(|n| *n != DEFAULT_MAX_CATCH_UPS).map(u64::from)),
    ];
    arguments.extend(numbers.iter().filter_map(|(name, number)| number.map(|number| format!("--{name}={number}"))));
    match cluster.replicate {
        Replicate::All => {}
        Replicate::Configuration | Replicate::None => {
            arguments.push(format!("--replicate={}", cluster.replicate.as_str()));
        }
    }
    match cluster.backup_connections {
        BackupConnections::Relay => {}
        BackupConnections::Refuse => arguments.push("--backup-connections=refuse".into()),
    }
    arguments
}

fn field(name: &str, path: &str) -> EnvVar {
    EnvVar {
        name: name.into(),
        value: None,
        value_from: Some(EnvVarSource {
            field_ref: Some(ObjectFieldSelector { api_version: Some("v1".into()), field_path: path.into() }),
            ..EnvVarSource::default()
        }),
    }
}

fn probe(path: &str, period_seconds: i32, timeout_seconds: i32, failure_threshold: i32) -> Probe {
    Probe {
        http_get: Some(HTTPGetAction {
            path: Some(path.into()),
            port: IntOrString::Int(HTTP_PORT),
            ..HTTPGetAction::default()
        }),
        period_seconds: Some(period_seconds),
        timeout_seconds: Some(timeout_seconds),
        failure_threshold: Some(failure_threshold),
        ..Probe::default()
    }
}

/// A directory, never a single file of it: the kubelet renews directories in place (no subPath).
fn secret_volume(name: &str, secret: String, keys: &[&str]) -> Volume {
    let item = |key: &&str| KeyToPath { key: (*key).into(), path: (*key).into(), mode: None };
    Volume {
        name: name.into(),
        secret: Some(SecretVolumeSource {
            secret_name: Some(secret),
            default_mode: Some(0o440),
            items: (!keys.is_empty()).then(|| keys.iter().map(item).collect()),
            optional: None,
        }),
        ..Volume::default()
    }
}
