//! The certificates of a local cluster: one authority, one certificate that every broker and the supervisor use at both
//! ends of mutual TLS; and for clients another authority, a certificate for the brokers and one for a client, who is guest. Kept with the data and used again; made anew when they run out or are not whole.
//!
//! The authority's key is thrown away once it has signed: nothing signed by it can appear later. Nobody is authenticated
//! by these beyond "may read this directory".

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use time::{Duration, OffsetDateTime};

const NAMES: [&str; 2] = ["localhost", "127.0.0.1"];
const LIFE: Duration = Duration::days(365);
/// Certificates with less left are replaced: a cluster may run for weeks after its start.
const LEAST_LEFT: Duration = Duration::days(60);
/// A clock that is set back a little does not make a fresh certificate "not yet valid".
const BACKDATED: Duration = Duration::days(1);
/// Written last: a directory without it was left half-written.
const EXPIRY_FILE: &str = "expires";

#[derive(Debug, thiserror::Error)]
pub(crate) enum PkiError {
    #[error("cannot write {}: {source}", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("cannot make certificates: {0}")]
    Make(#[from] rcgen::Error),
}

/// Who meets by a directory's certificates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// `ca.crt`, and `tls.crt` with `tls.key` for both ends.
    Peers,
    /// `ca.crt`, `tls.crt` with `tls.key` for brokers, `client.crt` with `client.key` for the user guest.
    Clients,
}

impl Use {
    /// Each certificate: what its files are called, its common name, whether it serves and whether it dials.
    fn leaves(self) -> &'static [(&'static str, &'static str, &'static [ExtendedKeyUsagePurpose])] {
        use ExtendedKeyUsagePurpose::{ClientAuth, ServerAuth};
        match self {
            Self::Peers => &[("tls", "understudy dev", &[ServerAuth, ClientAuth])],
            Self::Clients => &[("tls", "understudy dev", &[ServerAuth]), ("client", "guest", &[ClientAuth])],
        }
    }
}

/// Makes `dir` hold what `purpose` needs, readable by the owner only and valid for a while yet.
pub(crate) fn ensure(dir: &Path, purpose: Use, now: OffsetDateTime) -> Result<(), PkiError> {
    if usable(dir, purpose, now) {
        return Ok(());
    }
    let written = |path: &Path| {
        let path = path.to_path_buf();
        move |source| PkiError::Write { path, source }
    };
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(written(dir))?;
    fs::set_permissions(dir, fs::Permissions::from_mode(0o700)).map_err(written(dir))?;
    let expiry = dir.join(EXPIRY_FILE);
    match fs::remove_file(&expiry) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(written(&expiry)(error)),
        _ => {}
    }
    let expires = now + LIFE;
    let mut made = make(purpose, now - BACKDATED, expires)?;
    made.push((EXPIRY_FILE.into(), expires.unix_timestamp().to_string()));
    for (file, text) in made {
        let path = dir.join(file);
        write_private(&path, &text).map_err(written(&path))?;
    }
    Ok(())
}

fn usable(dir: &Path, purpose: Use, now: OffsetDateTime) -> bool {
    let expires = fs::read_to_string(dir.join(EXPIRY_FILE)).ok().and_then(|text| text.trim().parse::<i64>().ok());
    let leaves = purpose.leaves().iter().flat_map(|(name, ..)| [format!("{name}.crt"), format!("{name}.key")]);
    let whole = leaves.chain(["ca.crt".into()]).all(|file| dir.join(file).is_file());
    whole && expires.is_some_and(|expires| now.unix_timestamp() + LEAST_LEFT.whole_seconds() < expires)
}

/// Files by their names.
fn make(purpose: Use, from: OffsetDateTime, until: OffsetDateTime) -> Result<Vec<(String, String)>, rcgen::Error> {
    let named = |mut params: CertificateParams, name: &str| {
        params.distinguished_name.push(DnType::CommonName, name);
        (params.not_before, params.not_after) = (from, until);
        params
    };
    let mut authority = named(CertificateParams::new([])?, "understudy dev authority");
    authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let authority_key = KeyPair::generate()?;
    let authority_certificate = authority.self_signed(&authority_key)?;
    let issuer = Issuer::new(authority, authority_key);

    let mut made = vec![("ca.crt".into(), authority_certificate.pem())];
    for (file, name, usages) in purpose.leaves() {
        let mut leaf = named(CertificateParams::new(NAMES.map(String::from))?, name);
        leaf.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        leaf.extended_key_usages = usages.to_vec();
        leaf.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        let certificate = leaf.signed_by(&key, &issuer)?;
        made.push((format!("{file}.crt"), certificate.pem()));
        made.push((format!("{file}.key"), key.serialize_pem()));
    }
    Ok(made)
}

/// Under another name first: the file is never there half-written, nor for a moment readable by others.
fn write_private(path: &Path, text: &str) -> io::Result<()> {
    let unfinished = path.with_extension("new");
    match fs::remove_file(&unfinished) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&unfinished)?;
    file.write_all(text.as_bytes())?;
    fs::rename(&unfinished, path)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rustls::client::danger::ServerCertVerifier;
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};

    use super::*;

    struct Read {
        authority: CertificateDer<'static>,
        certificate: CertificateDer<'static>,
        key: PrivateKeyDer<'static>,
    }

    fn read(dir: &Path) -> Read {
        Read {
            authority: CertificateDer::from_pem_file(dir.join("ca.crt")).unwrap(),
            certificate: CertificateDer::from_pem_file(dir.join("tls.crt")).unwrap(),
            key: PrivateKeyDer::from_pem_file(dir.join("tls.key")).unwrap(),
        }
    }

    fn roots(read: &Read) -> Arc<rustls::RootCertStore> {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(read.authority.clone()).unwrap();
        Arc::new(roots)
    }

    fn accepted_for(read: &Read, name: &'static str) -> Result<(), rustls::Error> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier =
            rustls::client::WebPkiServerVerifier::builder_with_provider(roots(read), provider).build().unwrap();
        let name = ServerName::try_from(name).unwrap();
        verifier.verify_server_cert(&read.certificate, &[], &name, &[], UnixTime::now()).map(|_| ())
    }

    #[test]
    fn the_chain_serves_both_ends_under_the_local_names_only() {
        let dir = tempfile::tempdir().unwrap();
        ensure(dir.path(), Use::Peers, OffsetDateTime::now_utc()).unwrap();
        let read = read(dir.path());
        accepted_for(&read, "localhost").unwrap();
        accepted_for(&read, "127.0.0.1").unwrap();
        assert!(accepted_for(&read, "example.org").is_err());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let clients = rustls::server::WebPkiClientVerifier::builder_with_provider(roots(&read), provider.clone())
            .build()
            .unwrap();
        clients.verify_client_cert(&read.certificate, &[], UnixTime::now()).unwrap();
        rustls::sign::CertifiedKey::from_der(vec![read.certificate], read.key, &provider)
            .unwrap()
            .keys_match()
            .unwrap();
    }

    #[test]
    fn another_clusters_certificate_is_refused() {
        let (ours, theirs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        ensure(ours.path(), Use::Peers, OffsetDateTime::now_utc()).unwrap();
        ensure(theirs.path(), Use::Peers, OffsetDateTime::now_utc()).unwrap();
        let mixed = Read { certificate: read(theirs.path()).certificate, ..read(ours.path()) };
        assert!(accepted_for(&mixed, "localhost").is_err());
    }

    #[test]
    fn nobody_else_may_read_them() {
        let dir = tempfile::tempdir().unwrap();
        let tls = dir.path().join("tls");
        ensure(&tls, Use::Peers, OffsetDateTime::now_utc()).unwrap();
        assert_eq!(fs::metadata(&tls).unwrap().permissions().mode() & 0o777, 0o700);
        for file in ["ca.crt", "tls.crt", "tls.key"] {
            assert_eq!(fs::metadata(tls.join(file)).unwrap().permissions().mode() & 0o777, 0o600, "{file}");
        }
    }

    #[test]
    fn they_are_used_again_until_they_run_out_or_are_not_whole() {
        let dir = tempfile::tempdir().unwrap();
        let now = OffsetDateTime::now_utc();
        let key_after = |now| {
            ensure(dir.path(), Use::Peers, now).unwrap();
            fs::read(dir.path().join("tls.key")).unwrap()
        };
        let first = key_after(now);
        assert_eq!(key_after(now + Duration::days(300)), first);
        let second = key_after(now + Duration::days(320));
        assert_ne!(second, first);
        fs::remove_file(dir.path().join("tls.crt")).unwrap();
        assert_ne!(key_after(now), second);
    }

    #[test]
    fn clients_have_certificates_of_their_own() {
        let dir = tempfile::tempdir().unwrap();
        ensure(dir.path(), Use::Clients, OffsetDateTime::now_utc()).unwrap();
        let own = read(dir.path());
        accepted_for(&own, "localhost").unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let clients =
            rustls::server::WebPkiClientVerifier::builder_with_provider(roots(&own), provider.clone()).build().unwrap();
        let client = CertificateDer::from_pem_file(dir.path().join("client.crt")).unwrap();
        clients.verify_client_cert(&client, &[], UnixTime::now()).unwrap();
        assert!(
            clients.verify_client_cert(&own.certificate, &[], UnixTime::now()).is_err(),
            "the broker's is no client's"
        );
        let key = PrivateKeyDer::from_pem_file(dir.path().join("client.key")).unwrap();
        rustls::sign::CertifiedKey::from_der(vec![client], key, &provider).unwrap().keys_match().unwrap();
        assert!(!usable(dir.path(), Use::Clients, OffsetDateTime::now_utc() + LIFE));
        fs::remove_file(dir.path().join("client.key")).unwrap();
        assert!(!usable(dir.path(), Use::Clients, OffsetDateTime::now_utc()));
    }
}
