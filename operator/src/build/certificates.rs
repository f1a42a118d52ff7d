//! Certificates that the operator issues: the one that brokers and operator show each other, and, where nobody else keeps
//! one, that which clients see. Each has an authority of its own: who is let in by one is not by the other.
//!
//! An authority's key lies in a Secret of its own that no pod mounts. Certificates are renewed when two thirds of their
//! life are over. A new authority is trusted beside the old one for a while before anything is issued by it, since files come to
//! each pod in their own time: whoever has the newest certificate is believed by who has the oldest files. The old one is trusted
//! until the next.
//! When a certificate ends and who issued it is kept in annotations: nothing here parses X.509.

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use sha2::{Digest, Sha256};
use time::format_description::well_known::Rfc3339;
use time::{Duration, OffsetDateTime};
use understudy_crds::ValidatedCluster;

use crate::dereference::Observed;
use crate::names::{Names, metadata};

const AUTHORITY_LIFE: Duration = Duration::days(10 * 365);
const CERTIFICATE_LIFE: Duration = Duration::days(365);
/// A node's clock may be behind the operator's, and by how much nobody promises.
const BACKDATED: Duration = Duration::days(1);

/// Before the next authority issues anything. Kubelets need minutes at most; clients may be given what they trust by hand.
const TRUSTED_FIRST: Duration = Duration::days(7);

const RENEW_AFTER_ANNOTATION: &str = "understudy.dev/renew-after";
/// On the authority's Secret, where the next one is in it already: when that begins to issue.
const NEXT_AFTER_ANNOTATION: &str = "understudy.dev/next-authority-after";
/// On the certificate's Secret: fingerprint of the authority that issued it.
const ISSUER_ANNOTATION: &str = "understudy.dev/issuer";
/// On the certificate's Secret: the names it was issued for.
const HOSTS_ANNOTATION: &str = "understudy.dev/hosts";

pub(super) const AUTHORITY_CERTIFICATE: &str = "ca.crt";
const AUTHORITY_KEY: &str = "ca.key";
const NEXT_CERTIFICATE: &str = "next.crt";
const NEXT_KEY: &str = "next.key";
pub(super) const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";

/// What a gRPC connection to a broker needs, as PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct TlsMaterial {
    /// One authority, or the new and the old one.
    pub authorities: String,
    pub certificate: String,
    pub key: String,
}

impl fmt::Debug for TlsMaterial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TlsMaterial(..)") // it holds a private key
    }
}

#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    #[error("cannot make a certificate: {0}")]
    Make(#[from] rcgen::Error),
    #[error("Secret {secret}: {key} is absent or not text in PEM; delete the Secret to have new certificates made")]
    Unreadable { secret: String, key: &'static str },
    #[error("cannot write a date: {0}")]
    Date(#[from] time::error::Format),
}

pub(super) struct Certificates {
    pub(super) authority_secret: Secret,
    pub(super) tls_secret: Secret,
    pub(super) material: TlsMaterial,
}

struct Authority {
    certificate: String,
    /// Of the authority before, still trusted.
    previous: Option<String>,
    key: KeyPair,
    renew_after: String,
    /// Trusted already.
    next: Option<NextAuthority>,
}

struct NextAuthority {
    certificate: String,
    key: KeyPair,
    issues_after: String,
}

/// Brokers and operator, towards each other.
pub(super) fn build(
    cluster: &ValidatedCluster,
    observed: &Observed,
    now: OffsetDateTime,
) -> Result<Certificates, CertificateError> {
    let names = Names::of(&cluster.name);
    let purpose = Purpose {
        authority_name: names.authority_secret(),
        tls_name: names.tls_secret(),
        hosts: hosts(cluster, &format!("*.{}", names.nodes_service())),
        kept_authority: observed.authority_secret.as_ref(),
        kept_tls: observed.tls_secret.as_ref(),
        secret_type: "Opaque",
    };
    purpose.build(cluster, now)
}

/// What clients see, under the Services' names and those of the spec.
pub(super) fn for_clients(
    cluster: &ValidatedCluster,
    observed: &Observed,
    now: OffsetDateTime,
) -> Result<Certificates, CertificateError> {
    let names = Names::of(&cluster.name);
    let purpose = Purpose {
        authority_name: names.client_authority_secret(),
        tls_name: names.client_tls_secret(),
        hosts: client_hosts(cluster),
        kept_authority: observed.client_authority_secret.as_ref(),
        kept_tls: observed.client_tls_secret.as_ref(),
        secret_type: "kubernetes.io/tls",
    };
    purpose.build(cluster, now)
}

/// One certificate and its authority.
struct Purpose<'a> {
    authority_name: String,
    tls_name: String,
    hosts: Vec<String>,
    kept_authority: Option<&'a Secret>,
    kept_tls: Option<&'a Secret>,
    /// Of the certificate's Secret.
    secret_type: &'static str,
}

impl Purpose<'_> {
    fn build(self, cluster: &ValidatedCluster, now: OffsetDateTime) -> Result<Certificates, CertificateError> {
        let authority = match self.kept_authority {
            Some(secret) => kept_authority(secret, now)?,
            None => first_authority(now)?,
        };
        let issuer = fingerprint(&authority.certificate);
        let hosts = self.hosts.join(",");
        let kept = self.kept_tls.filter(|secret| {
            annotation(secret, ISSUER_ANNOTATION) == Some(issuer.as_str())
                && annotation(secret, HOSTS_ANNOTATION) == Some(hosts.as_str())
                && !is_due(annotation(secret, RENEW_AFTER_ANNOTATION), now)
        });
        let (certificate, key, renew_after) = match kept {
            Some(secret) => (
                text(secret, CERTIFICATE)?,
                text(secret, KEY)?,
                annotation(secret, RENEW_AFTER_ANNOTATION).unwrap_or_default().to_owned(),
            ),
            None => issue(&authority, &self.hosts, now)?,
        };
        let next = authority.next.as_ref();
        let trusted = [Some(&authority.certificate), next.map(|next| &next.certificate), authority.previous.as_ref()];
        let authorities = trusted.into_iter().flatten().map(String::as_str).collect::<String>();
        let (own_key, next_key) = (authority.key.serialize_pem(), next.map(|next| next.key.serialize_pem()));
        let mut data = vec![(AUTHORITY_CERTIFICATE, authorities.as_str()), (AUTHORITY_KEY, own_key.as_str())];
        let mut annotations = vec![(RENEW_AFTER_ANNOTATION, authority.renew_after.as_str())];
        if let (Some(next), Some(key)) = (next, &next_key) {
            data.extend([(NEXT_CERTIFICATE, next.certificate.as_str()), (NEXT_KEY, key.as_str())]);
            annotations.push((NEXT_AFTER_ANNOTATION, &next.issues_after));
        }
        let authority_secret = secret(cluster, self.authority_name, &data, &annotations);
        let mut tls_secret = secret(
            cluster,
            self.tls_name,
            &[(AUTHORITY_CERTIFICATE, &authorities), (CERTIFICATE, &certificate), (KEY, &key)],
            &[(RENEW_AFTER_ANNOTATION, &renew_after), (ISSUER_ANNOTATION, &issuer), (HOSTS_ANNOTATION, &hosts)],
        );
        tls_secret.type_ = Some(self.secret_type.into());
        Ok(Certificates { authority_secret, tls_secret, material: TlsMaterial { authorities, certificate, key } })
    }
}

/// Names that clients reach the brokers by.
pub(super) fn client_hosts(cluster: &ValidatedCluster) -> Vec<String> {
    let names = Names::of(&cluster.name);
    let mut hosts = hosts(cluster, &format!("*.{}", names.nodes_service()));
    // Inside the namespace, too.
    hosts.extend([names.failover_service(), names.any_service()]);
    hosts.extend(cluster.clients.tls.iter().flat_map(|tls| tls.dns_names.clone()));
    hosts
}

/// Every name under which a broker may be dialled.
fn hosts(cluster: &ValidatedCluster, pods: &str) -> Vec<String> {
    let names = Names::of(&cluster.name);
    let mut hosts = vec!["localhost".to_owned()];
    for service in [pods.to_owned(), names.failover_service(), names.any_service()] {
        let full = format!("{service}.{}.svc", cluster.namespace);
        hosts.push(format!("{full}.cluster.local"));
        hosts.push(full);
    }
    hosts
}

fn kept_authority(secret: &Secret, now: OffsetDateTime) -> Result<Authority, CertificateError> {
    let bundle = text(secret, AUTHORITY_CERTIFICATE)?;
    let mut certificates = split_pem(&bundle);
    if certificates.is_empty() {
        return Err(unreadable(secret, AUTHORITY_CERTIFICATE));
    }
    let certificate = certificates.remove(0);
    let next = kept_next(secret)?;
    if let Some(next) = next.as_ref().filter(|next| is_due(Some(&next.issues_after), now)) {
        let key = KeyPair::from_pem(&next.key.serialize_pem())?;
        let renew_after = renew_after(now - TRUSTED_FIRST, AUTHORITY_LIFE)?;
        let previous = Some(certificate);
        return Ok(Authority { certificate: next.certificate.clone(), previous, key, renew_after, next: None });
    }
    let key = key(secret, AUTHORITY_KEY)?;
    let renew_after = annotation(secret, RENEW_AFTER_ANNOTATION).unwrap_or_default().to_owned();
    let previous = certificates.into_iter().rfind(|other| next.as_ref().is_none_or(|next| next.certificate != *other));
    let next = match next {
        None if is_due(Some(&renew_after), now) => Some(next_authority(now)?),
        next => next,
    };
    Ok(Authority { certificate, previous, key, renew_after, next })
}

fn kept_next(secret: &Secret) -> Result<Option<NextAuthority>, CertificateError> {
    // The annotation alone says nothing: one that a person has set stays when the operator sets it no more.
    if secret.data.as_ref().is_none_or(|data| !data.contains_key(NEXT_CERTIFICATE)) {
        return Ok(None);
    }
    let issues_after = annotation(secret, NEXT_AFTER_ANNOTATION).unwrap_or_default();
    let certificate = text(secret, NEXT_CERTIFICATE)?;
    Ok(Some(NextAuthority { certificate, key: key(secret, NEXT_KEY)?, issues_after: issues_after.to_owned() }))
}

fn key(secret: &Secret, name: &'static str) -> Result<KeyPair, CertificateError> {
    KeyPair::from_pem(&text(secret, name)?).map_err(|_| unreadable(secret, name))
}

fn first_authority(now: OffsetDateTime) -> Result<Authority, CertificateError> {
    let (certificate, key) = new_authority(now)?;
    let renew_after = renew_after(now, AUTHORITY_LIFE)?;
    Ok(Authority { certificate, previous: None, key, renew_after, next: None })
}

fn next_authority(now: OffsetDateTime) -> Result<NextAuthority, CertificateError> {
    let (certificate, key) = new_authority(now)?;
    Ok(NextAuthority { certificate, key, issues_after: date(now + TRUSTED_FIRST)? })
}

fn new_authority(now: OffsetDateTime) -> Result<(String, KeyPair), CertificateError> {
    let key = KeyPair::generate()?;
    let mut params = authority_params();
    (params.not_before, params.not_after) = (now - BACKDATED, now + AUTHORITY_LIFE);
    let certificate = params.self_signed(&key)?.pem();
    Ok((certificate, key))
}

/// The subject, the same for each authority: with the key it is all that an issued certificate takes from its issuer.
fn authority_params() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = common_name("understudy authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

fn issue(
    authority: &Authority,
    hosts: &[String],
    now: OffsetDateTime,
) -> Result<(String, String, String), CertificateError> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(hosts)?;
    params.distinguished_name = common_name("understudy broker");
    (params.not_before, params.not_after) = (now - BACKDATED, now + CERTIFICATE_LIFE);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    params.use_authority_key_identifier_extension = true;
    let issuer_params = authority_params();
    let certificate = params.signed_by(&key, &Issuer::from_params(&issuer_params, &authority.key))?;
    Ok((certificate.pem(), key.serialize_pem(), renew_after(now, CERTIFICATE_LIFE)?))
}

fn common_name(name: &str) -> DistinguishedName {
    let mut distinguished = DistinguishedName::new();
    distinguished.push(DnType::CommonName, name);
    distinguished
}

fn renew_after(now: OffsetDateTime, life: Duration) -> Result<String, time::error::Format> {
    date(now + life * 2 / 3)
}

fn date(date: OffsetDateTime) -> Result<String, time::error::Format> {
    date.replace_nanosecond(0).unwrap_or(date).format(&Rfc3339)
}

/// A date that is absent or unreadable has come.
fn is_due(renew_after: Option<&str>, now: OffsetDateTime) -> bool {
    renew_after.and_then(|text| OffsetDateTime::parse(text, &Rfc3339).ok()).is_none_or(|date| date <= now)
}

fn fingerprint(certificate: &str) -> String {
    Sha256::digest(certificate.as_bytes()).iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

fn split_pem(bundle: &str) -> Vec<String> {
    const END: &str = "-----END CERTIFICATE-----";
    let whole = bundle.split_inclusive(END).filter(|part| part.ends_with(END));
    whole.map(|part| format!("{}\n", part.trim_start())).collect()
}

fn annotation<'a>(secret: &'a Secret, key: &str) -> Option<&'a str> {
    secret.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

fn text(secret: &Secret, key: &'static str) -> Result<String, CertificateError> {
    let bytes = secret.data.as_ref().and_then(|data| data.get(key));
    let text = bytes.and_then(|bytes| String::from_utf8(bytes.0.clone()).ok());
    text.filter(|text| text.contains("-----BEGIN")).ok_or_else(|| unreadable(secret, key))
}

fn unreadable(secret: &Secret, key: &'static str) -> CertificateError {
    CertificateError::Unreadable { secret: secret.metadata.name.clone().unwrap_or_default(), key }
}

fn secret(cluster: &ValidatedCluster, name: String, data: &[(&str, &str)], annotations: &[(&str, &str)]) -> Secret {
    let mut metadata = metadata(cluster, name);
    metadata.annotations = Some(annotations.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect());
    let data: BTreeMap<_, _> =
        data.iter().map(|(key, text)| ((*key).to_owned(), ByteString(text.as_bytes().to_vec()))).collect();
    Secret { metadata, data: Some(data), type_: Some("Opaque".into()), ..Secret::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::validate::{Defaults, validate};

    fn cluster() -> ValidatedCluster {
        let json = serde_json::json!({
            "apiVersion": "understudy.dev/v1alpha1", "kind": "BrokerCluster",
            "metadata": {"name": "orders", "namespace": "shop", "uid": "u-1"}, "spec": {},
        });
        let object = serde_json::from_value(json).unwrap();
        validate(&object, &Defaults { broker_image: "broker".into(), ..Defaults::default() }).unwrap().cluster
    }

    fn day(number: i64) -> OffsetDateTime {
        OffsetDateTime::UNIX_EPOCH + Duration::days(20_000 + number)
    }

    /// Builds at `now` on what an earlier build left.
    fn again(before: &Certificates, now: OffsetDateTime) -> Certificates {
        let observed = Observed {
            authority_secret: Some(before.authority_secret.clone()),
            tls_secret: Some(before.tls_secret.clone()),
            ..Observed::default()
        };
        build(&cluster(), &observed, now).unwrap()
    }

    #[test]
    fn kept_until_two_thirds_of_its_life_are_over() {
        let first = build(&cluster(), &Observed::default(), day(0)).unwrap();
        let second = again(&first, day(243));
        assert_eq!(second.authority_secret, first.authority_secret);
        assert_eq!(second.tls_secret, first.tls_secret);
        let third = again(&second, day(244));
        assert_eq!(third.authority_secret, first.authority_secret);
        assert_ne!(third.material.certificate, first.material.certificate);
        assert_eq!(third.material.authorities, first.material.authorities);
    }

    /// Who has either certificate is believed by who has either file, at each step.
    #[test]
    fn a_new_authority_is_trusted_before_it_issues_and_the_old_one_after() {
        let first = build(&cluster(), &Observed::default(), day(0)).unwrap();
        let announced = again(&first, day(2_434));
        let both = split_pem(&announced.material.authorities);
        assert_eq!(both.len(), 2);
        assert_eq!(both[0], first.material.authorities);
        let annotations = announced.tls_secret.metadata.annotations.as_ref().unwrap();
        assert_eq!(Some(annotations[ISSUER_ANNOTATION].as_str()), annotation(&first.tls_secret, ISSUER_ANNOTATION));
        // The certificate's own time has come meanwhile; it is still of the old authority, and stays.
        for build in [&first, &announced] {
            let keys = build.authority_secret.data.as_ref().unwrap();
            assert!(
                keys.values().all(|kept| kept.0 != build.material.key.as_bytes()),
                "an authority's key is shown to pods"
            );
        }
        let kept = again(&announced, day(2_440));
        assert_eq!(kept.tls_secret, announced.tls_secret);
        assert_eq!(kept.authority_secret, announced.authority_secret);

        let issuing = again(&kept, day(2_441));
        assert_eq!(split_pem(&issuing.material.authorities), [both[1].clone(), both[0].clone()]);
        assert_ne!(issuing.material.certificate, kept.material.certificate);
        let issuer = annotation(&issuing.tls_secret, ISSUER_ANNOTATION).unwrap();
        assert_eq!(issuer, fingerprint(&both[1]));
        assert_eq!(annotation(&issuing.authority_secret, NEXT_AFTER_ANNOTATION), None);
        let mut touched = issuing.authority_secret.clone();
        let left = touched.metadata.annotations.get_or_insert_default();
        left.insert(NEXT_AFTER_ANNOTATION.into(), "2020-01-01T00:00:00Z".into());
        let observed = Observed {
            authority_secret: Some(touched),
            tls_secret: Some(issuing.tls_secret.clone()),
            ..Observed::default()
        };
        let kept = build(&cluster(), &observed, day(2_442)).unwrap();
        assert_eq!(kept.tls_secret, issuing.tls_secret);
        assert_eq!(kept.authority_secret, issuing.authority_secret);
        // The one after that: the oldest is trusted until it issues.
        let third = again(&kept, day(2 * 2_434));
        assert_eq!(split_pem(&third.material.authorities).len(), 3);
        let third = again(&third, day(2 * 2_434 + 7));
        assert_eq!(split_pem(&third.material.authorities)[1..], both[1..]);
    }

    #[test]
    fn a_damaged_secret_is_an_error_that_names_the_cure() {
        let first = build(&cluster(), &Observed::default(), day(0)).unwrap();
        let mut damaged = first.authority_secret.clone();
        damaged.data.get_or_insert_default().insert("ca.key".into(), ByteString(b"no key".to_vec()));
        let observed = Observed { authority_secret: Some(damaged), ..Observed::default() };
        let error = build(&cluster(), &observed, day(1)).err().unwrap();
        expect_test::expect![
            "Secret orders-ca: ca.key is absent or not text in PEM; delete the Secret to have new certificates made"
        ]
        .assert_eq(&error.to_string());
    }

    #[test]
    fn named_for_every_way_a_broker_is_dialled() {
        let first = build(&cluster(), &Observed::default(), day(0)).unwrap();
        expect_test::expect!["localhost,*.orders-nodes.shop.svc.cluster.local,*.orders-nodes.shop.svc,orders.shop.svc.cluster.local,orders.shop.svc,orders-any.shop.svc.cluster.local,orders-any.shop.svc"]
            .assert_eq(annotation(&first.tls_secret, HOSTS_ANNOTATION).unwrap());
        assert_eq!(format!("{:?}", first.material), "TlsMaterial(..)");
    }
}
