//! Parse, don't validate: a [`BrokerCluster`] becomes a [`ValidatedCluster`] or an error that names field, cause and cure.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use kube::ResourceExt;

use crate::amount::{Amount, AmountError, Quantity};
use crate::spec::{BackupConnections, BrokerCluster, Durability, PullPolicy, Replicate};

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
    pub durability: Durability,
    pub storage_size: Amount,
    pub storage_class: Option<String>,
    /// Bytes; absent: the broker's own default, by the size of its volume.
    pub disk_free_watermark: Option<u64>,
    pub resources: ResourceAmounts,
    /// Bytes; absent: the broker's own default, a share of its memory limit.
    pub memory_budget: Option<u64>,
    /// Hundredths of the memory limit.
    pub memory_watermark: u8,
    pub failover: FailoverTimes,
    pub backup_connections: BackupConnections,
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

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidCluster {
    #[error(
        "metadata.name {name:?} cannot be part of Service and pod names: use at most {MAX_NAME_BYTES} lower case letters, digits and '-', \
         starting with a letter and not ending with '-'"
    )]
    Name { name: String },
    #[error("the object has no {0}: it was not read from an API server")]
    NotStored(&'static str),
    #[error("spec.replicas is {0}: choose {MIN_REPLICAS} to {MAX_REPLICAS}")]
    Replicas(i32),
    #[error(
        "spec.minInSync is {min_in_sync} with spec.replicas {replicas}: choose 1 to {replicas}, or no message could ever be confirmed"
    )]
    MinInSync { min_in_sync: i32, replicas: u8 },
    #[error("{field}: {source}")]
    Amount { field: String, source: AmountError },
    #[error("{0} is zero: give it a size")]
    Zero(String),
    #[error(
        "spec.storage.freeWatermark is {watermark} with spec.storage.size {size}: choose at most half of it, or publishers would hardly \
         ever go on"
    )]
    FreeWatermark { watermark: Amount, size: Amount },
    #[error("spec.memory.watermarkPercent is {0}: choose {MIN_MEMORY_WATERMARK} to 100")]
    MemoryWatermark(i32),
    #[error(
        "spec.memory.budget is {budget}: choose less than {percent} % (spec.memory.watermarkPercent) of the memory limit, {limit}, or \
         publishers would wait for ever"
    )]
    MemoryBudget { budget: Amount, percent: u8, limit: Amount },
    #[error("spec.resources: the request for {resource}, {request}, is greater than its limit, {limit}")]
    RequestAboveLimit { resource: String, request: Amount, limit: Amount },
    #[error("{field} {text:?} is not a time: write a whole number and ms, s or m, like 500ms")]
    Time { field: &'static str, text: String },
    #[error("{field} is {text}: choose between {least:?} and {most:?}")]
    TimeRange { field: &'static str, text: String, least: Duration, most: Duration },
    #[error(
        "spec.failover.backupTimeout is longer than spec.failover.leaseDuration: a lost backup would hold confirms for longer than a lost \
         primary would"
    )]
    BackupTimeoutAboveLease,
    #[error("spec.primary.preferred {preferred:?} is none of the cluster's pods: {name}-0 to {name}-{last}")]
    Preferred { preferred: String, name: String, last: u8 },
    #[error("spec.replication.maxCatchUps is {0}: choose 1 to {MAX_CATCH_UPS}")]
    MaxCatchUps(i32),
    #[error("annotation {FORCE_RECOVERY_ANNOTATION} is {0:?}: give the epoch that the status shows, a number")]
    ForcedRecovery(String),
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
        if parse_amount("spec.storage.size", &spec.storage.size)?.is_zero() {
            return Err(InvalidCluster::Zero("spec.storage.size".into()));
        }
        let resources = parse_resources(&spec.resources.requests, &spec.resources.limits)?;
        let memory_watermark = parse_memory_watermark(spec.memory.watermark_percent)?;
        Ok(Self {
            name,
            namespace,
            uid,
            generation: cluster.metadata.generation,
            replicas,
            min_in_sync: parse_min_in_sync(spec.min_in_sync, replicas)?,
            image: spec.image.clone(),
            image_pull_policy: spec.image_pull_policy,
            durability: spec.durability,
            storage_size: spec.storage.size.clone(),
            storage_class: spec.storage.storage_class_name.clone(),
            disk_free_watermark: parse_free_watermark(&spec.storage)?,
            memory_budget: parse_memory_budget(spec.memory.budget.as_ref(), memory_watermark, &resources)?,
            memory_watermark,
            resources,
            failover: parse_failover(&spec.failover)?,
            backup_connections: spec.clients.backup_connections,
            preferred_primary,
            forced_recovery,
            switchover_to: annotated(cluster, SWITCHOVER_ANNOTATION),
            forced_primary: annotated(cluster, FORCE_PRIMARY_ANNOTATION),
            catch_up_bandwidth: parse_catch_up_bandwidth(spec.replication.catch_up_bandwidth.as_ref())?,
            max_catch_ups: parse_max_catch_ups(spec.replication.max_catch_ups)?,
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

fn parse_amount(field: &str, amount: &Amount) -> Result<Quantity, InvalidCluster> {
    amount.quantity().map_err(|source| InvalidCluster::Amount { field: field.to_owned(), source })
}

/// Fills in what is absent: a default request never exceeds a given limit, a default limit is never below a given request.
fn parse_resources(
    requests: &BTreeMap<String, Amount>,
    limits: &BTreeMap<String, Amount>,
) -> Result<ResourceAmounts, InvalidCluster> {
    const DEFAULTS: [(&str, &str, &str); 2] = [("cpu", "200m", "2"), ("memory", "512Mi", "1Gi")];
    let mut resources = ResourceAmounts { requests: requests.clone(), limits: limits.clone() };
    for (resource, request, limit) in DEFAULTS {
        let (mut request, mut limit) = (Amount::new(request), Amount::new(limit));
        if let Some(given) = limits.get(resource)
            && parse_amount(&format!("spec.resources.limits.{resource}"), given)? < parse_amount("default", &request)?
        {
            request = given.clone();
        }
        if let Some(given) = requests.get(resource)
            && parse_amount(&format!("spec.resources.requests.{resource}"), given)? > parse_amount("default", &limit)?
        {
            limit = given.clone();
        }
        resources.requests.entry(resource.to_owned()).or_insert(request);
        resources.limits.entry(resource.to_owned()).or_insert(limit);
    }
    for (resource, request) in &resources.requests {
        let request_size = parse_amount(&format!("spec.resources.requests.{resource}"), request)?;
        let Some(limit) = resources.limits.get(resource) else { continue };
        if request_size > parse_amount(&format!("spec.resources.limits.{resource}"), limit)? {
            let (resource, request, limit) = (resource.clone(), request.clone(), limit.clone());
            return Err(InvalidCluster::RequestAboveLimit { resource, request, limit });
        }
    }
    for (resource, limit) in &resources.limits {
        if parse_amount(&format!("spec.resources.limits.{resource}"), limit)?.is_zero() {
            return Err(InvalidCluster::Zero(format!("spec.resources.limits.{resource}")));
        }
    }
    Ok(resources)
}

fn parse_free_watermark(storage: &crate::spec::Storage) -> Result<Option<u64>, InvalidCluster> {
    let Some(watermark) = &storage.free_watermark else { return Ok(None) };
    let free = parse_amount("spec.storage.freeWatermark", watermark)?;
    if free > parse_amount("spec.storage.size", &storage.size)?.percent(50) {
        return Err(InvalidCluster::FreeWatermark { watermark: watermark.clone(), size: storage.size.clone() });
    }
    Ok(Some(free.whole()))
}

fn parse_memory_watermark(percent: i32) -> Result<u8, InvalidCluster> {
    let percent_or_none = u8::try_from(percent).ok().filter(|percent| (MIN_MEMORY_WATERMARK..=100).contains(percent));
    percent_or_none.ok_or(InvalidCluster::MemoryWatermark(percent))
}

fn parse_memory_budget(
    budget: Option<&Amount>,
    percent: u8,
    resources: &ResourceAmounts,
) -> Result<Option<u64>, InvalidCluster> {
    let Some(budget) = budget else { return Ok(None) };
    let size = parse_amount("spec.memory.budget", budget)?;
    if size.is_zero() {
        return Err(InvalidCluster::Zero("spec.memory.budget".into()));
    }
    if let Some(limit) = resources.limits.get("memory")
        && size >= parse_amount("spec.resources.limits.memory", limit)?.percent(percent)
    {
        return Err(InvalidCluster::MemoryBudget { budget: budget.clone(), percent, limit: limit.clone() });
    }
    Ok(Some(size.whole()))
}

/// A name that is longer than any pod's is shown, not kept.
fn annotated(cluster: &BrokerCluster, annotation: &str) -> Option<String> {
    cluster.annotations().get(annotation).map(|text| text.trim().chars().take(80).collect())
}

fn parse_catch_up_bandwidth(bandwidth: Option<&Amount>) -> Result<Option<u64>, InvalidCluster> {
    const FIELD: &str = "spec.replication.catchUpBandwidth";
    let Some(bandwidth) = bandwidth else { return Ok(None) };
    let rate = parse_amount(FIELD, bandwidth)?;
    if rate.is_zero() {
        return Err(InvalidCluster::Zero(FIELD.into()));
    }
    Ok(Some(rate.whole()))
}

fn parse_max_catch_ups(count: i32) -> Result<u8, InvalidCluster> {
    let count_or_none = u8::try_from(count).ok().filter(|_| (1..=MAX_CATCH_UPS).contains(&count));
    count_or_none.ok_or(InvalidCluster::MaxCatchUps(count))
}

fn parse_failover(failover: &crate::spec::Failover) -> Result<FailoverTimes, InvalidCluster> {
    let second = Duration::from_secs(1);
    let minute = Duration::from_secs(60);
    let times = FailoverTimes {
        lease_duration: parse_time("spec.failover.leaseDuration", &failover.lease_duration, second, minute * 10)?,
        backup_timeout: parse_time("spec.failover.backupTimeout", &failover.backup_timeout, second / 5, minute * 5)?,
        stall_timeout: parse_time("spec.failover.stallTimeout", &failover.stall_timeout, second, minute * 10)?,
    };
    if times.backup_timeout > times.lease_duration {
        return Err(InvalidCluster::BackupTimeoutAboveLease);
    }
    Ok(times)
}

fn parse_time(field: &'static str, text: &str, least: Duration, most: Duration) -> Result<Duration, InvalidCluster> {
    let error = || InvalidCluster::Time { field, text: text.chars().take(40).collect() };
    let digits = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(error)?;
    let (number, unit) = text.split_at(digits);
    let unit_ms: u64 = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        _ => return Err(error()),
    };
    let number: u64 = number.parse().map_err(|_| error())?;
    let time = Duration::from_millis(number.checked_mul(unit_ms).ok_or_else(error)?);
    if (least..=most).contains(&time) {
        Ok(time)
    } else {
        Err(InvalidCluster::TimeRange { field, text: text.to_owned(), least, most })
    }
}
