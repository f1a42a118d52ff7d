//! A broker's pod: its container, what is mounted into it, where it may run. Probes ask the broker alone, so that no outage of
//! the API server restarts a pod.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::{
    Affinity, Capabilities, ConfigMapVolumeSource, Container, ContainerPort, EnvVar, EnvVarSource, HTTPGetAction,
    KeyToPath, LocalObjectReference, ObjectFieldSelector, PodAffinityTerm, PodAntiAffinity, PodSecurityContext,
    PodSpec, Probe, ResourceRequirements, SeccompProfile, SecretVolumeSource, SecurityContext, Toleration,
    TopologySpreadConstraint, Volume, VolumeMount, WeightedPodAffinityTerm,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use understudy_crds::{
    Amount, BackupConnections, ClientTls, DEFAULT_MAX_CATCH_UPS, DEFAULT_MEMORY_WATERMARK, Durability, Promotion,
    Replicate, Spread, TlsVersion, ValidatedCluster, WhenUnsatisfiable,
};

use super::service::client_ports;
use super::settings;
use crate::names::{AMQP_PORT, AMQPS_PORT, BROKER_CONTAINER, DATA_VOLUME, GRPC_PORT, HTTP_PORT, Names, selector};
use crate::validate::Target;

/// Also the image's user.
const BROKER_USER: i64 = 65532;
const DATA_DIR: &str = "/var/lib/understudy";
/// Volumes, and where they are mounted.
const TLS: &str = "tls";
const TLS_DIR: &str = "/etc/understudy/tls";
const USERS: &str = "users";
const USERS_DIR: &str = "/etc/understudy/users";
const SETTINGS: &str = "settings";
const SETTINGS_DIR: &str = "/etc/understudy/settings";
const CLIENT_TLS: &str = "client-tls";
const CLIENT_TLS_DIR: &str = "/etc/understudy/client-tls";
const CLIENT_AUTHORITY: &str = "client-authority";
const CLIENT_AUTHORITY_DIR: &str = "/etc/understudy/client-authority";
/// A primary hands over in well under a second; the rest is for a backup to leave the set while the API server is slow.
const GRACE_SECONDS: i64 = 60;
/// A journal of some hundred gigabytes is read in this time; a start that takes longer is a fault.
const STARTUP_SECONDS: i32 = 3600;
const HOSTNAME_KEY: &str = "kubernetes.io/hostname";

pub(super) fn build(target: &Target, names: &Names) -> PodSpec {
    let cluster = &target.cluster;
    PodSpec {
        service_account_name: Some(names.broker_account()),
        automount_service_account_token: Some(true), // brokers renew the Lease themselves
        enable_service_links: Some(false),
        termination_grace_period_seconds: Some(GRACE_SECONDS),
        image_pull_secrets: some_list(
            cluster.image_pull_secrets.iter().map(|name| LocalObjectReference { name: name.clone() }),
        ),
        node_selector: Some(cluster.scheduling.node_selector.clone()).filter(|labels| !labels.is_empty()),
        tolerations: some_list(cluster.scheduling.tolerations.iter().map(toleration)),
        priority_class_name: cluster.scheduling.priority_class_name.clone(),
        affinity: Some(affinity(cluster)),
        topology_spread_constraints: Some(spread_constraints(cluster)),
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
        volumes: Some(volumes(cluster, names)),
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
    let client_ports = client_ports(cluster).into_iter().map(|(name, number)| port(name, number));
    let mount = |name: &str, path: &str, read_only: bool| VolumeMount {
        name: name.into(),
        mount_path: path.into(),
        read_only: read_only.then_some(true),
        ..VolumeMount::default()
    };
    let mut mounts = vec![
        mount(DATA_VOLUME, DATA_DIR, false),
        mount(TLS, TLS_DIR, true),
        mount(USERS, USERS_DIR, true),
        mount(SETTINGS, SETTINGS_DIR, true),
    ];
    if let Some(tls) = &cluster.clients.tls {
        mounts.push(mount(CLIENT_TLS, CLIENT_TLS_DIR, true));
        if tls.client_authority.is_some() {
            mounts.push(mount(CLIENT_AUTHORITY, CLIENT_AUTHORITY_DIR, true));
        }
    }
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
        ports: Some(client_ports.chain([port("grpc", GRPC_PORT), port("http", HTTP_PORT)]).collect()),
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
        volume_mounts: Some(mounts),
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
        match cluster.clients.plaintext {
            true => format!("--amqp-listen=0.0.0.0:{AMQP_PORT}"),
            false => "--amqp-listen=none".into(),
        },
        format!("--grpc-listen=0.0.0.0:{GRPC_PORT}"),
        format!("--http-listen=0.0.0.0:{HTTP_PORT}"),
        format!("--peer-pattern={}:{GRPC_PORT}", names.pod_host("{name}", namespace)),
        format!("--settings-file={SETTINGS_DIR}/{}", settings::KEY),
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
        ("max-connections", cluster.clients.max_connections),
        ("channel-max", cluster.clients.max_channels_per_connection),
        ("max-message-size", cluster.clients.max_message_size),
        ("login-failure-delay-ms", cluster.clients.login_failure_delay.map(millis)),
        ("segment-bytes", cluster.broker.segment_bytes),
        ("checkpoint-bytes", cluster.broker.checkpoint_bytes),
        ("checkpoint-rate", cluster.broker.checkpoint_rate),
        ("resume-records", cluster.broker.resume_records),
        ("scrub-interval-ms", cluster.broker.scrub_interval.map(millis)),
        ("handshake-timeout-ms", cluster.broker.handshake_timeout.map(millis)),
        ("max-catch-ups", Some(cluster.max_catch_ups).filter(|n| *n != DEFAULT_MAX_CATCH_UPS).map(u64::from)),
    ];
    arguments.extend(numbers.iter().filter_map(|(name, number)| number.map(|number| format!("--{name}={number}"))));
    match cluster.replicate {
        Replicate::All => {}
        Replicate::Configuration | Replicate::None => {
            arguments.push(format!("--replicate={}", cluster.replicate.as_str()));
        }
    }
    match cluster.clients.backup_connections {
        BackupConnections::Relay => {}
        BackupConnections::Refuse => arguments.push("--backup-connections=refuse".into()),
    }
    match cluster.promotion {
        Promotion::Automatic => {}
        Promotion::Manual => arguments.push("--promotion=manual".into()),
    }
    for (option, mechanisms) in
        [("sasl-mechanisms", &cluster.clients.sasl_mechanisms), ("sasl-tls-only", &cluster.clients.sasl_tls_only)]
    {
        let words: Vec<_> = mechanisms.iter().map(|mechanism| mechanism.as_str()).collect();
        if !words.is_empty() {
            arguments.push(format!("--{option}={}", words.join(",")));
        }
    }
    if cluster.broker.accept_differences {
        arguments.push("--accept-differences".into());
    }
    if let Some(tls) = &cluster.clients.tls {
        arguments.extend(tls_arguments(tls));
    }
    arguments
}

fn tls_arguments(tls: &ClientTls) -> Vec<String> {
    let mut arguments = vec![
        format!("--amqps-listen=0.0.0.0:{AMQPS_PORT}"),
        format!("--amqps-cert={CLIENT_TLS_DIR}/tls.crt"),
        format!("--amqps-key={CLIENT_TLS_DIR}/tls.key"),
    ];
    if tls.min_version != TlsVersion::default() {
        arguments.push(format!("--amqps-min-version={}", tls.min_version.as_str()));
    }
    if tls.client_authority.is_some() {
        arguments.push(format!("--amqps-client-ca={CLIENT_AUTHORITY_DIR}/ca.crt"));
        arguments.push(format!("--amqps-client-certificates={}", tls.client_certificates.as_str()));
        arguments.push(format!("--amqps-login-from={}", tls.login_from.as_str()));
    }
    arguments
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
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

/// Directories, never single files of them: the kubelet renews directories in place (no subPath).
fn volumes(cluster: &ValidatedCluster, names: &Names) -> Vec<Volume> {
    let mut volumes = vec![
        secret_volume(TLS, names.tls_secret(), &[]),
        secret_volume(USERS, names.user_secret(), &[("users", "users")]),
        Volume {
            name: SETTINGS.into(),
            config_map: Some(ConfigMapVolumeSource { name: names.settings(), ..ConfigMapVolumeSource::default() }),
            ..Volume::default()
        },
    ];
    if let Some(tls) = &cluster.clients.tls {
        let secret = tls.secret_name.clone().unwrap_or_else(|| names.client_tls_secret());
        volumes.push(secret_volume(CLIENT_TLS, secret, &[("tls.crt", "tls.crt"), ("tls.key", "tls.key")]));
        if let Some(authority) = &tls.client_authority {
            let items = [(authority.key.as_str(), "ca.crt")];
            volumes.push(secret_volume(CLIENT_AUTHORITY, authority.secret_name.clone(), &items));
        }
    }
    volumes
}

/// `items`: keys and the files they become; all, under their own names, if there are none.
fn secret_volume(name: &str, secret: String, items: &[(&str, &str)]) -> Volume {
    let item = |(key, path): &(&str, &str)| KeyToPath { key: (*key).into(), path: (*path).into(), mode: None };
    Volume {
        name: name.into(),
        secret: Some(SecretVolumeSource {
            secret_name: Some(secret),
            default_mode: Some(0o440),
            items: some_list(items.iter().map(item)),
            optional: None,
        }),
        ..Volume::default()
    }
}

/// Apart from one another as far as it goes, or always. What the spec says itself wins, kind by kind.
fn affinity(cluster: &ValidatedCluster) -> Affinity {
    let term = PodAffinityTerm {
        label_selector: Some(selector(&cluster.name)),
        topology_key: HOSTNAME_KEY.into(),
        ..PodAffinityTerm::default()
    };
    let apart = match cluster.scheduling.spread {
        Spread::Preferred => PodAntiAffinity {
            preferred_during_scheduling_ignored_during_execution: Some(vec![WeightedPodAffinityTerm {
                weight: 100,
                pod_affinity_term: term,
            }]),
            ..PodAntiAffinity::default()
        },
        Spread::Required => PodAntiAffinity {
            required_during_scheduling_ignored_during_execution: Some(vec![term]),
            ..PodAntiAffinity::default()
        },
    };
    let given = cluster.affinity.clone().unwrap_or_default();
    Affinity { pod_anti_affinity: given.pod_anti_affinity.or(Some(apart)), ..given }
}

fn spread_constraints(cluster: &ValidatedCluster) -> Vec<TopologySpreadConstraint> {
    let constraint = |max_skew, key: &str, otherwise: WhenUnsatisfiable| TopologySpreadConstraint {
        max_skew,
        topology_key: key.into(),
        when_unsatisfiable: otherwise.as_str().into(),
        label_selector: Some(selector(&cluster.name)),
        ..TopologySpreadConstraint::default()
    };
    let given = &cluster.scheduling.topology_spread_constraints;
    if given.is_empty() {
        return vec![constraint(1, HOSTNAME_KEY, WhenUnsatisfiable::ScheduleAnyway)];
    }
    given.iter().map(|given| constraint(given.max_skew, &given.topology_key, given.when_unsatisfiable)).collect()
}

fn toleration(given: &understudy_crds::Toleration) -> Toleration {
    Toleration {
        key: given.key.clone(),
        operator: given.operator.clone(),
        value: given.value.clone(),
        effect: given.effect.clone(),
        toleration_seconds: given.toleration_seconds,
    }
}

fn some_list<T>(items: impl Iterator<Item = T>) -> Option<Vec<T>> {
    let items: Vec<T> = items.collect();
    (!items.is_empty()).then_some(items)
}
