//! When the certificates in Secrets of the operator's making end, for a metric.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Secret;
use x509_parser::pem::parse_x509_pem;

/// What each Secret is for, and where in it the certificate is: of an authority's the first one, the newest.
pub(super) fn of(secrets: &[(&'static str, &Secret, &str)]) -> BTreeMap<&'static str, i64> {
    secrets.iter().filter_map(|(which, secret, key)| Some((*which, not_after(secret, key)?))).collect()
}

/// In seconds since 1970.
fn not_after(secret: &Secret, key: &str) -> Option<i64> {
    let text = secret.data.as_ref()?.get(key)?;
    let (_, pem) = parse_x509_pem(&text.0).ok()?;
    Some(pem.parse_x509().ok()?.validity().not_after.timestamp())
}
