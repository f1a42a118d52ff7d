//! Parse, don't validate: a [`BrokerCluster`] becomes a [`ValidatedCluster`] or an error that names field, cause and cure.

mod amounts;
mod broker;
mod clients;
mod invalid;
mod orders;
mod pods;
mod times;
mod windows;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use k8s_openapi::api::core::v1::Affinity;
use kube::ResourceExt;

use crate::amount::Amount;
use crate::spec::{
    BrokerCluster, ConfigMapKeyRef, Durability, PodMonitor, PodTemplate, Promotion, PullPolicy, Replicate, Retention,
    Scheduling, Service, UpdateStrategy,
};

pub use broker::BrokerOptions;
pub use clients::{ClientSettings, ServicePorts};
pub use invalid::InvalidCluster;
pub use orders::{FENCED_ANNOTATION, HIBERNATION_ANNOTATION, MAINTENANCE_ANNOTATION, Orders, RECONCILE_ANNOTATION};
pub use windows::UpdateWindows;

/// Longest name: the longest derived one, `NAME-primary`, and the label that carries a pod's revision stay under 63 bytes.
pub const MAX_NAME_BYTES: usize = 40;

/// A person accepts that messages may be lost, since not every replica can be asked any more. Set to the epoch that the
/// status shows, so that an annotation forgotten on the object forces nothing a second time.
pub const FORCE_RECOVERY_ANNOTATION: &str = "understudy.dev/force-recovery";

/// The pod that is to be the primary, though it may lack confirmed messages. The operator takes the annotation off once that
/// is so.
pub const FORCE_PRIMARY_ANNOTATION: &str = "understudy.dev/force-primary";

/// The in-sync pod that the role is to be handed over to. The operator takes the annotation off once it has answered.
pub const SWITCHOVER_ANNOTATION: &str = "understudy.dev/switchover";

const MIN_REPLICAS: i32 = 1;
/// Each record goes to every backup from the primary's one network card; more than eight copies help nobody.
const MAX_REPLICAS: i32 = 9;

/// Hundredths of the memory limit; the broker's own default too.
pub const DEFAULT_MEMORY_WATERMARK: u8 = 80;

/// The broker's own default too.
pub const DEFAULT_MAX_CATCH_UPS: u8 = 1;

/// Every replica but the primary.
const MAX_CATCH_UPS: i32 = 8;

/// The broker's own: below it its code would take all there is.
const MIN_MEMORY_WATERMARK: u8 = 10;

/// A cluster's name, short enough for everything derived from it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClusterName(String);

impl ClusterName {
    /// # Errors
    /// If it would not fit a Service's or a pod's name.
    pub fn parse(name: &str) -> Result<Self, InvalidCluster> {
        let starts_well = name.bytes().next().is_some_and(|b| b.is_ascii_lowercase());
        let ends_well = name.bytes().last().is_some_and(|b| b != b'-');
        let plain = name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
        if starts_well && ends_well && plain && name.len() <= MAX_NAME_BYTES {
            Ok(Self(name.to_owned()))
        } else {
            Err(InvalidCluster::Name { name: name.chars().take(80).collect() })
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ClusterName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Everything the operator builds from, with defaults resolved.
#[derive(Clone, Debug, PartialEq)]
pub struct ValidatedCluster {
    pub name: ClusterName,
    pub namespace: String,
    pub uid: String,
    pub generation: Option<i64>,
    pub replicas: u8,
    pub min_in_sync: u8,
    /// Absent: the operator's default.
    pub image: Option<String>,
    pub image_pull_policy: PullPolicy,
    pub image_pull_secrets: Vec<String>,
    pub durability: Durability,
    pub storage_size: Amount,
    pub storage_class: Option<String>,
    pub retention: Retention,
    /// Bytes; absent: the broker's own default, by the size of its volume.
    pub disk_free_watermark: Option<u64>,
    pub resources: ResourceAmounts,
    /// Bytes; absent: the broker's own default, a share of its memory limit.
    pub memory_budget: Option<u64>,
    /// Hundredths of the memory limit.
    pub memory_watermark: u8,
    pub scheduling: Scheduling,
    /// `scheduling.affinity`, as Kubernetes' type.
    pub affinity: Option<Affinity>,
    pub pod_template: PodTemplate,
    pub service: Service,
    pub service_ports: ServicePorts,
    pub clients: ClientSettings,
    pub broker: BrokerOptions,
    /// Somebody else's, with a user's name and password.
    pub users_secret: Option<String>,
    pub definitions: Option<ConfigMapKeyRef>,
    pub failover: FailoverTimes,
    pub promotion: Promotion,
    pub update: UpdateStrategy,
    pub update_windows: UpdateWindows,
    pub pod_monitor: Option<PodMonitor>,
    pub network_policy: bool,
    pub orders: Orders,
    pub preferred_primary: Option<String>,
    /// The epoch a person has given with [`FORCE_RECOVERY_ANNOTATION`].
    pub forced_recovery: Option<u64>,
    /// What [`SWITCHOVER_ANNOTATION`] says. It may be no pod of this cluster: that is for whoever acts on it to tell.
    pub switchover_to: Option<String>,
    /// What [`FORCE_PRIMARY_ANNOTATION`] says; the same.
    pub forced_primary: Option<String>,
    /// Bytes a second; absent: no limit.
    pub catch_up_bandwidth: Option<u64>,
    pub max_catch_ups: u8,
    pub replicate: Replicate,
}

/// Requests and limits, cpu and memory always among both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceAmounts {
    pub requests: BTreeMap<String, Amount>,
    pub limits: BTreeMap<String, Amount>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailoverTimes {
    pub lease_duration: Duration,
    pub backup_timeout: Duration,
    pub stall_timeout: Duration,
}

impl ValidatedCluster {
    /// # Errors
    /// The first mistake found; the schema refuses all of them in new objects.
    pub fn parse(cluster: &BrokerCluster) -> Result<Self, InvalidCluster> {
        let spec = &cluster.spec;
        let name = ClusterName::parse(&cluster.name_any())?;
        let namespace = cluster.namespace().ok_or(InvalidCluster::NotStored("namespace"))?;
        let uid = cluster.uid().ok_or(InvalidCluster::NotStored("uid"))?;
        let replicas = parse_replicas(spec.replicas)?;
        let preferred_primary = spec.primary.preferred.clone();
        if let Some(preferred) = &preferred_primary {
            let known = (0..replicas).any(|ordinal| *preferred == format!("{name}-{ordinal}"));
            if !known {
                let last = replicas - 1;
                return Err(InvalidCluster::Preferred { preferred: preferred.clone(), name: name.to_string(), last });
            }
        }
        let forced_recovery = match cluster.annotations().get(FORCE_RECOVERY_ANNOTATION) {
            None => None,
            Some(text) => {
                Some(text.parse().map_err(|_| InvalidCluster::ForcedRecovery(text.chars().take(80).collect()))?)
            }
        };
        pods::check_template(&spec.pod_template)?;
        if amounts::parse_amount("spec.storage.size", &spec.storage.size)?.is_zero() {
            return Err(InvalidCluster::Zero("spec.storage.size".into()));
        }
        let resources = amounts::parse_resources(&spec.resources.requests, &spec.resources.limits)?;
        let memory_watermark = amounts::parse_memory_watermark(spec.memory.watermark_percent)?;
        Ok(Self {
            orders: Orders::parse(cluster, &name, replicas)?,
            name,
            namespace,
            uid,
            generation: cluster.metadata.generation,
            replicas,
            min_in_sync: parse_min_in_sync(spec.min_in_sync, replicas)?,
            image: spec.image.clone(),
            image_pull_policy: spec.image_pull_policy,
            image_pull_secrets: spec.image_pull_secrets.iter().map(|secret| secret.name.clone()).collect(),
            durability: spec.durability,
            storage_size: spec.storage.size.clone(),
            storage_class: spec.storage.storage_class_name.clone(),
            retention: spec.storage.retention.clone(),
            disk_free_watermark: amounts::parse_free_watermark(&spec.storage)?,
            memory_budget: amounts::parse_memory_budget(spec.memory.budget.as_ref(), memory_watermark, &resources)?,
            memory_watermark,
            resources,
            affinity: pods::parse_affinity(&spec.scheduling)?,
            scheduling: spec.scheduling.clone(),
            pod_template: spec.pod_template.clone(),
            service: spec.service.clone(),
            service_ports: clients::parse_service(&spec.service)?,
            clients: clients::parse(&spec.clients)?,
            broker: broker::parse(&spec.broker)?,
            users_secret: spec.users.secret_name.clone(),
            definitions: spec.definitions.clone(),
            failover: times::failover(&spec.failover)?,
            promotion: spec.failover.promotion,
            update: spec.update.strategy,
            update_windows: UpdateWindows::parse(&spec.update.windows)?,
            pod_monitor: spec.monitoring.pod_monitor.clone(),
            network_policy: spec.network_policies.enabled,
            preferred_primary,
            forced_recovery,
            switchover_to: annotated(cluster, SWITCHOVER_ANNOTATION),
            forced_primary: annotated(cluster, FORCE_PRIMARY_ANNOTATION),
            catch_up_bandwidth: amounts::parse_catch_up_bandwidth(spec.replication.catch_up_bandwidth.as_ref())?,
            max_catch_ups: amounts::parse_max_catch_ups(spec.replication.max_catch_ups)?,
            replicate: spec.replication.default,
        })
    }

    /// The pods' names, in order.
    pub fn pod_names(&self) -> impl Iterator<Item = String> + '_ {
        (0..self.replicas).map(|ordinal| format!("{}-{ordinal}", self.name))
    }
}

fn parse_replicas(replicas: i32) -> Result<u8, InvalidCluster> {
    if !(MIN_REPLICAS..=MAX_REPLICAS).contains(&replicas) {
        return Err(InvalidCluster::Replicas(replicas));
    }
    u8::try_from(replicas).map_err(|_| InvalidCluster::Replicas(replicas))
}

fn parse_min_in_sync(min_in_sync: Option<i32>, replicas: u8) -> Result<u8, InvalidCluster> {
    let Some(min_in_sync) = min_in_sync else { return Ok(replicas.min(2)) };
    match u8::try_from(min_in_sync) {
        Ok(number) if (1..=replicas).contains(&number) => Ok(number),
        _ => Err(InvalidCluster::MinInSync { min_in_sync, replicas }),
    }
}

/// A name that is longer than any pod's is shown, not kept.
fn annotated(cluster: &BrokerCluster, annotation: &str) -> Option<String> {
    cluster.annotations().get(annotation).map(|text| text.trim().chars().take(80).collect())
}
