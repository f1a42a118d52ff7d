//! A Lease value as the fields of a Kubernetes Lease, both ways. Talks to nobody.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease as KubeLease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference};
use k8s_openapi::jiff::Timestamp;
use understudy_election::{Incarnation, Lease, LeaseParts, MAX_MEMBERS, MalformedLease, Renewal, Stored, Version};
use understudy_record::version::ClusterVersion;
use understudy_record::{Epoch, Member};

use crate::{LeaseError, SwapError};

pub const IN_SYNC_ANNOTATION: &str = "understudy.dev/in-sync";
/// The highest epoch that may have been given, where it is above the Lease's own; not there otherwise.
pub const GIVEN_EPOCH_ANNOTATION: &str = "understudy.dev/given-epoch";
pub const DURATION_ANNOTATION: &str = "understudy.dev/lease-duration-ms";
pub const VERSION_ANNOTATION: &str = "understudy.dev/version";

const HOLDER_FIELD: &str = "spec.holderIdentity";
const EPOCH_FIELD: &str = "spec.leaseTransitions";
const DURATION_FIELD: &str = "spec.leaseDurationSeconds";

/// Which state of which Lease the object is.
pub(super) fn version(object: &KubeLease) -> Result<Version, LeaseError> {
    let revision = object.metadata.resource_version.as_ref().ok_or_else(|| missing("metadata.resourceVersion"))?;
    let incarnation = object.metadata.uid.as_ref().ok_or_else(|| missing("metadata.uid"))?;
    Ok(Version::new(Incarnation::new(incarnation), revision))
}

pub(super) fn decode(object: Option<&KubeLease>) -> Result<Stored, LeaseError> {
    let Some(object) = object else { return Ok(Stored::Absent) };
    let version = version(object)?;
    let spec = object.spec.clone().unwrap_or_default();
    let annotations = object.metadata.annotations.as_ref();
    let annotation = |name: &str| annotations.and_then(|all| all.get(name)).map(String::as_str);

    let holder = spec.holder_identity.as_deref().filter(|text| !text.is_empty());
    let ours = [IN_SYNC_ANNOTATION, GIVEN_EPOCH_ANNOTATION];
    // One that has lost a part of its content is damaged. One without any says nothing, and nothing is lost with it.
    if holder.is_none() && spec.lease_transitions.is_none() && ours.iter().all(|name| annotation(name).is_none()) {
        return Ok(Stored::Blank(version));
    }
    let epoch = spec.lease_transitions.ok_or_else(|| missing(EPOCH_FIELD))?;
    let parts = LeaseParts {
        holder: holder.map(str::parse).transpose().map_err(|error| malformed(HOLDER_FIELD, error))?,
        epoch: u64::try_from(epoch).map(Epoch).map_err(|_| malformed(EPOCH_FIELD, format!("{epoch} is negative")))?,
        given: annotation(GIVEN_EPOCH_ANNOTATION).map(parse_epoch).transpose()?,
        in_sync: parse_set(annotation(IN_SYNC_ANNOTATION).ok_or_else(|| missing(IN_SYNC_ANNOTATION))?)?,
        duration: parse_duration(annotation(DURATION_ANNOTATION), &spec)?,
        cluster_version: parse_version(annotation(VERSION_ANNOTATION))?,
        renewed: spec.renew_time.as_ref().map(|time| Renewal(time.0.as_microsecond())),
    };
    let lease = Lease::from_parts(parts).map_err(|error| malformed(field_of(&error), error))?;
    Ok(Stored::Held(lease, version))
}

/// Our fields, in an object of which the rest stays as it is.
pub(super) fn write_into(object: &mut KubeLease, lease: &Lease) -> Result<(), SwapError> {
    let ours = spec(lease)?;
    let all = object.metadata.annotations.get_or_insert_default();
    all.remove(GIVEN_EPOCH_ANNOTATION);
    all.extend(annotations(lease));
    // Absent, they are kept; the API server fills in what this write changes.
    object.metadata.managed_fields = None;
    let spec = object.spec.get_or_insert_default();
    spec.holder_identity = ours.holder_identity;
    spec.lease_transitions = ours.lease_transitions;
    spec.lease_duration_seconds = ours.lease_duration_seconds;
    spec.renew_time = ours.renew_time;
    Ok(())
}

/// None of our fields: see [`Stored::Blank`].
pub(super) fn blank(name: &str, labels: &BTreeMap<String, String>, owner: Option<&OwnerReference>) -> KubeLease {
    let metadata = ObjectMeta {
        name: Some(name.to_owned()),
        labels: (!labels.is_empty()).then(|| labels.clone()),
        owner_references: owner.map(|owner| vec![owner.clone()]),
        ..ObjectMeta::default()
    };
    KubeLease { metadata, spec: Some(LeaseSpec::default()) }
}

fn annotations(lease: &Lease) -> BTreeMap<String, String> {
    let members: Vec<String> = lease.in_sync().iter().map(Member::to_string).collect();
    let given = (lease.given() > lease.epoch()).then(|| (GIVEN_EPOCH_ANNOTATION.to_owned(), lease.given().to_string()));
    [
        (IN_SYNC_ANNOTATION.to_owned(), members.join(",")),
        (DURATION_ANNOTATION.to_owned(), lease.duration().as_millis().to_string()),
        (VERSION_ANNOTATION.to_owned(), lease.cluster_version().to_string()),
    ]
    .into_iter()
    .chain(given)
    .collect()
}

fn spec(lease: &Lease) -> Result<LeaseSpec, SwapError> {
    let refused = |what: &str| SwapError::Refused { why: format!("{what} does not fit into a Kubernetes Lease") };
    let seconds = lease.duration().as_millis().div_ceil(1_000);
    Ok(LeaseSpec {
        holder_identity: lease.holder().map(ToString::to_string),
        lease_transitions: Some(i32::try_from(lease.epoch().0).map_err(|_| refused("the epoch"))?),
        lease_duration_seconds: Some(i32::try_from(seconds).map_err(|_| refused("the duration"))?),
        renew_time: Some(MicroTime(Timestamp::now())),
        ..LeaseSpec::default()
    })
}

fn parse_set(text: &str) -> Result<BTreeSet<Member>, LeaseError> {
    let mut members = BTreeSet::new();
    for entry in text.split(',').map(str::trim).filter(|entry| !entry.is_empty()).take(MAX_MEMBERS + 1) {
        let member: Member = entry.parse().map_err(|error| malformed(IN_SYNC_ANNOTATION, error))?;
        members.insert(member);
    }
    Ok(members)
}

fn parse_epoch(text: &str) -> Result<Epoch, LeaseError> {
    text.parse().map_err(|error| malformed(GIVEN_EPOCH_ANNOTATION, error))
}

/// A Lease of before there were versions does not say it.
fn parse_version(text: Option<&str>) -> Result<ClusterVersion, LeaseError> {
    let Some(text) = text else { return Ok(ClusterVersion::FIRST) };
    let number = text.parse().map_err(|_| malformed(VERSION_ANNOTATION, format!("not a number: {text:?}")))?;
    Ok(ClusterVersion(number))
}

/// To the millisecond where our annotation says it, otherwise in seconds.
fn parse_duration(exact: Option<&str>, spec: &LeaseSpec) -> Result<Duration, LeaseError> {
    if let Some(text) = exact {
        let ms = text.parse().map_err(|_| malformed(DURATION_ANNOTATION, format!("not a number: {text:?}")))?;
        return Ok(Duration::from_millis(ms));
    }
    let seconds = spec.lease_duration_seconds.ok_or_else(|| missing(DURATION_FIELD))?;
    let seconds = u64::try_from(seconds).map_err(|_| malformed(DURATION_FIELD, format!("{seconds} is negative")))?;
    Ok(Duration::from_secs(seconds))
}

fn field_of(error: &MalformedLease) -> &'static str {
    match error {
        MalformedLease::NoMembers | MalformedLease::TooManyMembers { .. } | MalformedLease::NameTwice { .. } => {
            IN_SYNC_ANNOTATION
        }
        MalformedLease::HolderOutsideSet { .. } => HOLDER_FIELD,
        MalformedLease::NoEpoch => EPOCH_FIELD,
        MalformedLease::EpochNotGiven { .. } => GIVEN_EPOCH_ANNOTATION,
        MalformedLease::NoVersion => VERSION_ANNOTATION,
        MalformedLease::Duration(_) => DURATION_FIELD,
    }
}

fn missing(field: &'static str) -> LeaseError {
    malformed(field, "missing")
}

fn malformed(field: &'static str, why: impl ToString) -> LeaseError {
    LeaseError::Malformed { field, why: why.to_string() }
}
