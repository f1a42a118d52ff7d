//! TLS for clients: the certificate as it is on disk now, and the handshake.
//!
//! The files are looked at every few seconds, by content: Kubernetes swaps a symlink, others write in place. What has
//! changed is used once it has stood still for a moment and the certificate and the key belong together; until then, and if
//! that never comes, what was there before goes on. Connections that stand are not touched.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::{TLS12, TLS13};
use rustls::{RootCertStore, ServerConfig};
use sha2::{Digest, Sha256};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, watch};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::certificate;
use crate::config::{ClientCertificates, ClientTls, TlsVersion};
use crate::metrics::AmqpsMetrics;

/// Between two looks at the files.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// What has changed must stand still for so long: who writes in place is done by then.
const SETTLED: Duration = Duration::from_millis(250);

/// A certificate with its chain has some 10 KiB.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// For a handshake, as RabbitMQ has it.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// The same while others wait for their turn.
const HURRIED_TIMEOUT: Duration = Duration::from_secs(1);

/// Handshakes at once: some tens of KiB each, and a millisecond of a processor. Those beyond wait for their turn, unread.
const MAX_HANDSHAKES: usize = 1024;

pub(crate) struct ClientCertificate {
    files: ClientTls,
    current: watch::Sender<Arc<ServerConfig>>,
    /// What the files were when they were last tried, or why they could not be read.
    tried: Result<Fingerprint, String>,
    metrics: AmqpsMetrics,
}

type Fingerprint = [u8; 32];

#[derive(Debug, thiserror::Error)]
#[error("{} {what}", path.display())]
pub(crate) struct CertificateError {
    path: PathBuf,
    what: String,
}

/// The files' contents, of one moment.
struct Contents {
    certificate: Vec<u8>,
    key: Vec<u8>,
    authority: Option<Vec<u8>>,
}

/// What is served with.
struct Loaded {
    config: Arc<ServerConfig>,
    /// When the first certificate of the chain to end does, in seconds since 1970.
    not_after: i64,
}

impl ClientCertificate {
    /// # Errors
    /// If the files cannot be read or do not make sense now.
    pub(crate) fn read(files: ClientTls, metrics: AmqpsMetrics) -> Result<Self, CertificateError> {
        let contents = Contents::read(&files)?;
        let loaded = load(&files, &contents)?;
        metrics.not_after.set(loaded.not_after);
        Ok(Self { current: watch::Sender::new(loaded.config), tried: Ok(contents.fingerprint()), files, metrics })
    }

    pub(super) fn acceptor(&self) -> Acceptor {
        Acceptor {
            config: self.current.subscribe(),
            turns: Arc::new(Semaphore::new(MAX_HANDSHAKES)),
            login_from: self.files.login_from,
        }
    }

    /// Looks again and again, for as long as the process lives.
    pub(crate) async fn keep_up(mut self) {
        loop {
            tokio::time::sleep(LOOK_AGAIN).await;
            self = match tokio::task::spawn_blocking(move || {
                self.look(|| std::thread::sleep(SETTLED));
                self
            })
            .await
            {
                Ok(own) => own,
                Err(error) => {
                    tracing::error!("clients' certificates are not looked at any more: {error}");
                    return;
                }
            };
        }
    }

    fn look(&mut self, settle: impl FnOnce()) {
        let read = Contents::read(&self.files);
        let now = fingerprint_of(&read);
        if now == self.tried {
            return;
        }
        settle();
        let again = Contents::read(&self.files);
        if fingerprint_of(&again) != now {
            return; // being written
        }
        self.tried = now;
        match again.and_then(|contents| load(&self.files, &contents)) {
            Ok(loaded) => {
                tracing::info!(not_after = loaded.not_after, "clients get a new certificate from now on");
                self.metrics.not_after.set(loaded.not_after);
                self.metrics.unusable.set(0);
                self.current.send_replace(loaded.config);
            }
            Err(error) => {
                self.metrics.unusable.set(1);
                tracing::error!("the new certificate for clients cannot be used, the one before goes on: {error}");
            }
        }
    }
}

fn fingerprint_of(read: &Result<Contents, CertificateError>) -> Result<Fingerprint, String> {
    match read {
        Ok(contents) => Ok(contents.fingerprint()),
        Err(error) => Err(error.to_string()),
    }
}

impl Contents {
    fn read(files: &ClientTls) -> Result<Self, CertificateError> {
        Ok(Self {
            certificate: read(&files.certificate)?,
            key: read(&files.key)?,
            authority: files.client_authority.as_deref().map(read).transpose()?,
        })
    }

    /// The key itself is not kept.
    fn fingerprint(&self) -> Fingerprint {
        let mut digest = Sha256::new();
        for part in [Some(&self.certificate), Some(&self.key), self.authority.as_ref()].into_iter().flatten() {
            digest.update((part.len() as u64).to_le_bytes());
            digest.update(part);
        }
        digest.finalize().into()
    }
}

fn read(path: &Path) -> Result<Vec<u8>, CertificateError> {
    let cannot = |what: String| CertificateError { path: path.into(), what };
    let length = std::fs::metadata(path).map_err(|error| cannot(format!("cannot be read: {error}")))?.len();
    if length > MAX_FILE_BYTES {
        return Err(cannot(format!("has {length} bytes, more than {MAX_FILE_BYTES}")));
    }
    std::fs::read(path).map_err(|error| cannot(format!("cannot be read: {error}")))
}

fn load(files: &ClientTls, contents: &Contents) -> Result<Loaded, CertificateError> {
    let senseless = |path: &Path, what: String| CertificateError { path: path.into(), what };
    let of_certificate = |what: String| senseless(&files.certificate, what);
    let chain = certificates(&contents.certificate).map_err(of_certificate)?;
    let ends: Result<Vec<_>, _> = chain.iter().map(certificate::not_after).collect();
    let ends = ends.map_err(|what| of_certificate(format!("holds a certificate that makes no sense: {what}")))?;
    let not_after = ends.into_iter().min().unwrap_or_default();
    let key = PrivateKeyDer::from_pem_slice(&contents.key)
        .map_err(|error| senseless(&files.key, format!("holds no private key: {error}")))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let pair = CertifiedKey::from_der(chain, key, &provider)
        .map_err(|error| senseless(&files.key, format!("does not go with {}: {error}", files.certificate.display())))?;
    let verifier = match (&files.client_authority, &contents.authority) {
        (Some(path), Some(text)) => {
            let mut roots = RootCertStore::empty();
            for root in certificates(text).map_err(|what| senseless(path, what))? {
                let added = roots.add(root);
                added.map_err(|error| senseless(path, format!("holds no authority's certificate: {error}")))?;
            }
            let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone());
            let builder = match files.client_certificates {
                ClientCertificates::Optional => builder.allow_unauthenticated(),
                ClientCertificates::Required => builder,
            };
            builder.build().map_err(|error| senseless(path, format!("cannot be used: {error}")))?
        }
        _ => WebPkiClientVerifier::no_client_auth(),
    };
    let versions = match files.min_version {
        TlsVersion::Tls12 => &[&TLS13, &TLS12][..],
        TlsVersion::Tls13 => &[&TLS13][..],
    };
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .map_err(|error| of_certificate(format!("cannot be used: {error}")))?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(pair)));
    if files.client_authority.is_some() {
        // A session that is taken up again would bring its certificate with it, unverified.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
    }
    Ok(Loaded { config: Arc::new(config), not_after })
}

/// One at least.
fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match found {
        Ok(found) if found.is_empty() => Err("holds no certificate".to_owned()),
        Ok(found) => Ok(found),
        Err(error) => Err(format!("holds a certificate that cannot be read: {error}")),
    }
}

/// Makes TLS of connections.
#[derive(Clone)]
pub(super) struct Acceptor {
    config: watch::Receiver<Arc<ServerConfig>>,
    turns: Arc<Semaphore>,
    login_from: crate::config::LoginFrom,
}

impl Acceptor {
    /// With the name in the client's certificate, if it has shown one; `None` says that none is usable.
    pub(super) async fn accept(&self, stream: TcpStream) -> Result<(TlsStream<TcpStream>, Option<String>), String> {
        let Ok(_turn) = self.turns.acquire().await else { return Err("the broker is ending".into()) };
        let acceptor = TlsAcceptor::from(self.config.borrow().clone());
        let accepted = tokio::select! {
            accepted = acceptor.accept(stream) => accepted.map_err(|error| error.to_string())?,
            () = self.out_of_time() => return Err("the handshake took too long".into()),
        };
        let (_, session) = accepted.get_ref();
        let certificate = session.peer_certificates().and_then(<[_]>::first);
        let name = certificate.and_then(|shown| certificate::login_name(shown, self.login_from));
        Ok((accepted, name))
    }

    /// Who is slow is let go the sooner when others wait: they would wait for nothing else.
    async fn out_of_time(&self) {
        tokio::time::sleep(HURRIED_TIMEOUT).await;
        let rest = HANDSHAKE_TIMEOUT - HURRIED_TIMEOUT;
        let steps = rest.as_millis() / SETTLED.as_millis();
        for _ in 0..steps {
            if self.turns.available_permits() == 0 {
                return;
            }
            tokio::time::sleep(SETTLED).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair};

    use super::*;
    use crate::config::LoginFrom;
    use crate::metrics::Metrics;

    struct Files(tempfile::TempDir);

    impl Files {
        fn new() -> Self {
            let files = Self(tempfile::tempdir().unwrap());
            files.renew();
            files
        }

        fn write(&self, file: &str, text: &str) {
            std::fs::write(self.0.path().join(file), text).unwrap();
        }

        /// Another certificate with its key.
        fn renew(&self) {
            let key = KeyPair::generate().unwrap();
            let certificate = CertificateParams::new(["localhost".to_owned()]).unwrap().self_signed(&key).unwrap();
            self.write("tls.crt", &certificate.pem());
            self.write("tls.key", &key.serialize_pem());
        }

        fn settings(&self) -> ClientTls {
            let path = |file| self.0.path().join(file);
            ClientTls {
                listen: ([127, 0, 0, 1], 0).into(),
                certificate: path("tls.crt"),
                key: path("tls.key"),
                client_authority: None,
                client_certificates: ClientCertificates::Optional,
                min_version: TlsVersion::Tls12,
                login_from: LoginFrom::CommonName,
            }
        }

        fn read(&self) -> ClientCertificate {
            ClientCertificate::read(self.settings(), Metrics::new().unwrap().amqps().unwrap()).unwrap()
        }
    }

    /// Whether a look at the files brought something new.
    fn changes(certificate: &mut ClientCertificate, settle: impl FnOnce()) -> bool {
        let before = certificate.current.borrow().clone();
        certificate.look(settle);
        !Arc::ptr_eq(&before, &certificate.current.borrow())
    }

    #[test]
    fn what_still_changes_is_not_used_yet() {
        let files = Files::new();
        let mut certificate = files.read();
        assert!(!changes(&mut certificate, || panic!("nothing has changed")));
        files.renew();
        assert!(!changes(&mut certificate, || files.renew()));
        assert!(changes(&mut certificate, || {}));
        assert!(!changes(&mut certificate, || panic!("nothing has changed")));
    }

    #[test]
    fn what_cannot_be_used_is_tried_once_and_what_was_there_goes_on() {
        let files = Files::new();
        let mut certificate = files.read();
        let key = std::fs::read_to_string(files.0.path().join("tls.key")).unwrap();
        let first = std::fs::read_to_string(files.0.path().join("tls.crt")).unwrap();
        files.renew();
        files.write("tls.key", &key);
        assert!(!changes(&mut certificate, || {}));
        assert_eq!(certificate.metrics.unusable.get(), 1);
        assert!(!changes(&mut certificate, || panic!("it was tried")));
        std::fs::remove_file(files.0.path().join("tls.crt")).unwrap();
        assert!(!changes(&mut certificate, || {}));
        assert!(!changes(&mut certificate, || panic!("it was tried")));
        // Back to what it was: that is another content than the one that was tried last.
        files.write("tls.crt", &first);
        assert!(changes(&mut certificate, || {}));
        assert_eq!(certificate.metrics.unusable.get(), 0);
    }

    #[test]
    fn a_file_that_is_far_too_long_is_not_read() {
        let files = Files::new();
        files.write("tls.crt", &"x".repeat(2 << 20));
        let error = Contents::read(&files.settings()).err().unwrap().to_string();
        assert!(error.contains("more than 1048576"), "{error}");
    }
}
