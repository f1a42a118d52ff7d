//! An authority and a certificate that every broker of one test uses at both ends of mutual TLS.

use std::path::Path;

use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use time::{Duration, OffsetDateTime};

/// Makes `directory` hold `ca.crt`, `tls.crt` and `tls.key` of a new authority.
pub(crate) fn write_certificates(directory: &Path) {
    let now = OffsetDateTime::now_utc();
    let dated = |mut params: CertificateParams| {
        (params.not_before, params.not_after) = (now - Duration::days(1), now + Duration::days(1));
        params
    };
    let mut authority = dated(CertificateParams::new([]).unwrap());
    authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let authority_key = KeyPair::generate().unwrap();
    let authority_certificate = authority.self_signed(&authority_key).unwrap();
    let mut leaf = dated(CertificateParams::new(["localhost", "127.0.0.1"].map(String::from)).unwrap());
    leaf.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    let key = KeyPair::generate().unwrap();
    let certificate = leaf.signed_by(&key, &Issuer::new(authority, authority_key)).unwrap();
    std::fs::create_dir_all(directory).unwrap();
    let files =
        [("ca.crt", authority_certificate.pem()), ("tls.crt", certificate.pem()), ("tls.key", key.serialize_pem())];
    for (file, text) in files {
        std::fs::write(directory.join(file), text).unwrap();
    }
}
