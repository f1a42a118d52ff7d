//! Step 3: the objects of a cluster, one file for each kind. Needs no client: from a [`Target`] and what was
//! [`Observed`] follow the same objects every time, apart from secrets that do not exist yet or have run out.

mod access;
mod certificates;
mod credentials;
mod disruption_budget;
mod endpoint_slice;
mod expiry;
mod foreign;
mod network_policy;
mod overlay;
mod password;
mod pod;
mod service;
mod settings;
mod stateful_set;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::Resource;
use kube::api::ApiResource;
use serde::Serialize;
use serde_json::Value;
use time::OffsetDateTime;

pub use certificates::{CertificateError, TlsMaterial};
pub use credentials::{CredentialError, VerifiedCredentials};

pub(crate) use endpoint_slice::{slice_labels, slice_ports};

use crate::dereference::Observed;
use crate::names::Names;
use crate::validate::Target;

/// How an object reaches the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Server-side apply of the fields we set; what others set stays.
    Apply,
    /// Made if it does not exist, then left alone: others write into it.
    CreateOnly,
    /// Removed, if it is ours.
    Absent,
}

/// One object as it should be.
#[derive(Clone, Debug)]
pub struct Prepared {
    pub resource: ApiResource,
    pub name: String,
    pub mode: Mode,
    /// With `apiVersion` and `kind`.
    pub value: Value,
}

/// Everything a cluster consists of, in the order in which it is made.
#[derive(Debug)]
pub struct Built {
    pub objects: Vec<Prepared>,
    /// What the operator itself needs to speak to the brokers.
    pub tls: TlsMaterial,
    /// When the certificates end that the operator has made, in seconds since 1970: `ca`, `tls`, `client-ca`, `client-tls`.
    pub certificates_end: BTreeMap<&'static str, i64>,
    /// Volume claims that are smaller than the spec says: name and new size.
    pub claims_to_grow: Vec<(String, String)>,
}

#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    #[error(transparent)]
    Credential(#[from] CredentialError),
    #[error("spec.podTemplate makes no pod template of what it is laid over: {source}")]
    PodTemplate { source: serde_json::Error },
    #[error("cannot encode {kind}: {source}")]
    Encode { kind: String, source: serde_json::Error },
}

/// # Errors
/// If a certificate or password cannot be made, or a kept Secret is not what it was.
pub fn build(
    target: &Target,
    observed: &Observed,
    verified: &VerifiedCredentials,
    now: OffsetDateTime,
) -> Result<Built, BuildError> {
    let cluster = &target.cluster;
    let names = Names::of(&cluster.name);
    let certificates = certificates::build(cluster, observed, now)?;
    let mut certificates_end = expiry::of(&[
        ("ca", &certificates.authority_secret, certificates::AUTHORITY_CERTIFICATE),
        ("tls", &certificates.tls_secret, certificates::CERTIFICATE),
    ]);
    let mut objects = vec![
        prepare(&access::service_account(cluster), Mode::Apply)?,
        prepare(&access::role(cluster), Mode::Apply)?,
        prepare(&access::role_binding(cluster), Mode::Apply)?,
        prepare(&certificates.authority_secret, Mode::Apply)?,
        prepare(&certificates.tls_secret, Mode::Apply)?,
        prepare::<Secret>(&credentials::secret(cluster, observed, verified)?, Mode::Apply)?,
        prepare(&settings::build(cluster), Mode::Apply)?,
        prepare(&service::nodes(cluster), Mode::Apply)?,
        prepare(&service::failover(cluster), Mode::Apply)?,
        prepare(&service::any(cluster), Mode::Apply)?,
        prepare(&endpoint_slice::empty(cluster), Mode::CreateOnly)?,
    ];
    if let Some(tls) = &cluster.clients.tls
        && tls.secret_name.is_none()
        && tls.issuer.is_none()
    {
        let for_clients = certificates::for_clients(cluster, observed, now)?;
        certificates_end.extend(expiry::of(&[
            ("client-ca", &for_clients.authority_secret, certificates::AUTHORITY_CERTIFICATE),
            ("client-tls", &for_clients.tls_secret, certificates::CERTIFICATE),
        ]));
        objects.push(prepare(&for_clients.authority_secret, Mode::Apply)?);
        objects.push(prepare(&for_clients.tls_secret, Mode::Apply)?);
    }
    objects.push(foreign::certificate(cluster));
    objects.push(match disruption_budget::build(cluster) {
        Some(budget) => prepare(&budget, Mode::Apply)?,
        None => absent::<PodDisruptionBudget>(names.disruption_budget()),
    });
    objects.push(match cluster.network_policy {
        true => prepare(&network_policy::build(cluster, target.operator_namespace.as_deref()), Mode::Apply)?,
        false => absent::<NetworkPolicy>(names.network_policy()),
    });
    objects.push(prepare(&stateful_set::build(target, observed)?, Mode::Apply)?);
    // Last: where its kind does not exist, everything else is there all the same.
    objects.push(foreign::pod_monitor(cluster));
    let claims_to_grow = stateful_set::claims_to_grow(cluster, observed);
    Ok(Built { objects, tls: certificates.material, certificates_end, claims_to_grow })
}

fn absent<K: Resource<DynamicType = ()>>(name: String) -> Prepared {
    Prepared { resource: ApiResource::erase::<K>(&()), name, mode: Mode::Absent, value: Value::Null }
}

fn prepare<K: Resource<DynamicType = ()> + Serialize>(object: &K, mode: Mode) -> Result<Prepared, BuildError> {
    let resource = ApiResource::erase::<K>(&());
    let encode = |source| BuildError::Encode { kind: resource.kind.clone(), source };
    let mut value = serde_json::to_value(object).map_err(encode)?;
    if let Some(fields) = value.as_object_mut() {
        fields.insert("apiVersion".into(), resource.api_version.clone().into());
        fields.insert("kind".into(), resource.kind.clone().into());
    }
    let name = object.meta().name.clone().unwrap_or_default();
    Ok(Prepared { resource, name, mode, value })
}
