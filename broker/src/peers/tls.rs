//! Mutual TLS between replicas, operator and command line: one authority, a certificate each.
//!
//! The files are looked at every few seconds, by content, as the kubelet swaps them. What has changed is used for connections that
//! begin then, once it has stood still for a moment and makes sense; connections that stand are not touched.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{RootCertStore, ServerConfig};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

/// Every certificate of a cluster carries this name, so that a replica is known by its authority, wherever it is reached.
const CERTIFICATE_NAME: &str = "localhost";

/// A connection attempt to a replica that does not answer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// The stream's own window, so that a batch of records is not held back by the default of 64 KiB.
const STREAM_WINDOW_BYTES: u32 = 8 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 16 << 20;

/// Of a connection that brings backlogs: what is on its way of one queue, and of all. Little, so that it stands in nobody's
/// way in the network; more would only help where the round trip is long.
const BACKLOG_STREAM_WINDOW_BYTES: u32 = 1 << 20;
const BACKLOG_CONNECTION_WINDOW_BYTES: u32 = 4 << 20;

/// Between two looks at the files.
const LOOK_AGAIN: Duration = Duration::from_secs(2);
/// What has changed must stand still for so long: who writes in place is done by then.
const SETTLED: Duration = Duration::from_millis(250);
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Handshakes at once: some tens of KiB each. More than a stranger holds who opens connections and says nothing, so that replicas
/// need not wait behind him.
const MAX_HANDSHAKES: usize = 1024;
/// After a failed accept (out of file descriptors, mostly).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

#[derive(Clone)]
pub(crate) struct Tls {
    directory: PathBuf,
    current: watch::Sender<Arc<Material>>,
}

/// The files, of one moment.
struct Material {
    contents: [Vec<u8>; 3],
    authority: Certificate,
    identity: Identity,
    server: Arc<ServerConfig>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum TlsError {
    #[error("cannot read {}: {source}; --tls-dir must hold ca.crt, tls.crt and tls.key", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{} {what}; --tls-dir must hold ca.crt, tls.crt and tls.key, in PEM", path.display())]
    Senseless { path: PathBuf, what: String },
}

impl Tls {
    /// The files are looked into here, so that what makes no sense is told by its name before anything else is touched.
    pub(crate) fn read(directory: &Path) -> Result<Self, TlsError> {
        let material = Material::of(directory, contents(directory)?)?;
        Ok(Self { directory: directory.to_owned(), current: watch::Sender::new(Arc::new(material)) })
    }

    /// Looks again and again, for as long as the process lives.
    pub(crate) async fn keep_up(self) {
        let mut told = None;
        loop {
            tokio::time::sleep(LOOK_AGAIN).await;
            let own = self.clone();
            match tokio::task::spawn_blocking(move || own.look(|| std::thread::sleep(SETTLED))).await {
                Ok(Ok(true)) => tracing::info!("a new certificate is shown to replicas and the operator from now on"),
                Ok(Ok(false)) => told = None,
                Ok(Err(error)) => {
                    let text = error.to_string();
                    if told.as_ref() != Some(&text) {
                        tracing::error!(
                            "the new certificate for replicas cannot be used, the one before goes on: {text}"
                        );
                        told = Some(text);
                    }
                }
                Err(error) => {
                    tracing::error!("replicas' certificates are not looked at any more: {error}");
                    return;
                }
            }
        }
    }

    /// Whether there is something new, and it is used.
    fn look(&self, settle: impl FnOnce()) -> Result<bool, TlsError> {
        let read = contents(&self.directory)?;
        if read == self.current.borrow().contents {
            return Ok(false);
        }
        settle();
        let again = contents(&self.directory)?;
        if again != read {
            return Ok(false); // being written
        }
        self.current.send_replace(Arc::new(Material::of(&self.directory, again)?));
        Ok(true)
    }

    /// Connections of those who have a certificate of the cluster's authority. The stream ends when it is dropped.
    pub(crate) fn incoming(
        &self,
        listener: TcpListener,
    ) -> ReceiverStream<Result<TlsStream<TcpStream>, std::io::Error>> {
        let (done, connections) = mpsc::channel(1);
        let tls = self.clone();
        tokio::spawn(async move {
            let turns = Arc::new(Semaphore::new(MAX_HANDSHAKES));
            loop {
                let Ok(turn) = turns.clone().acquire_owned().await else { return };
                let stream = tokio::select! {
                    accepted = listener.accept() => match accepted {
                        Ok((stream, _)) => stream,
                        Err(error) => {
                            tracing::warn!("no connection can be taken from a replica: {error}");
                            tokio::time::sleep(ACCEPT_PAUSE).await;
                            continue;
                        }
                    },
                    () = done.closed() => return,
                };
                // Acknowledgements and records are small and must not wait for one another.
                _ = stream.set_nodelay(true);
                let (acceptor, done) = (TlsAcceptor::from(tls.current.borrow().server.clone()), done.clone());
                tokio::spawn(async move {
                    if let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
                        drop(turn);
                        _ = done.send(Ok(stream)).await; // nobody serves any more
                    }
                });
            }
        });
        ReceiverStream::new(connections)
    }

    /// Nothing is dialled yet.
    pub(crate) fn endpoint(&self, address: &str) -> Result<Endpoint, tonic::transport::Error> {
        let material = self.current.borrow().clone();
        let tls = ClientTlsConfig::new()
            .ca_certificate(material.authority.clone())
            .identity(material.identity.clone())
            .domain_name(CERTIFICATE_NAME);
        Ok(Endpoint::from_shared(format!("https://{address}"))?
            .tls_config(tls)?
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_nodelay(true)
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES))
    }

    /// A connection of its own for backlogs, so that no live record waits behind one; dialled when it is first needed.
    pub(crate) fn backlog_channel(&self, address: &str) -> Result<Channel, tonic::transport::Error> {
        let endpoint = self.endpoint(address)?;
        let endpoint = endpoint.initial_stream_window_size(BACKLOG_STREAM_WINDOW_BYTES);
        Ok(endpoint.initial_connection_window_size(BACKLOG_CONNECTION_WINDOW_BYTES).connect_lazy())
    }

    pub(crate) async fn connect(&self, address: &str) -> Result<Channel, tonic::transport::Error> {
        self.endpoint(address)?.connect().await
    }
}

/// ca.crt, tls.crt and tls.key.
fn contents(directory: &Path) -> Result<[Vec<u8>; 3], TlsError> {
    let read = |file: &str| {
        let path = directory.join(file);
        std::fs::read(&path).map_err(|source| TlsError::Read { path, source })
    };
    Ok([read("ca.crt")?, read("tls.crt")?, read("tls.key")?])
}

impl Material {
    fn of(directory: &Path, contents: [Vec<u8>; 3]) -> Result<Self, TlsError> {
        let senseless = |file: &str, what: String| TlsError::Senseless { path: directory.join(file), what };
        let [authority, certificate, key] = &contents;
        let mut roots = RootCertStore::empty();
        for root in certificates(authority).map_err(|what| senseless("ca.crt", what))? {
            roots
                .add(root)
                .map_err(|error| senseless("ca.crt", format!("holds no authority's certificate: {error}")))?;
        }
        let chain = certificates(certificate).map_err(|what| senseless("tls.crt", what))?;
        let parsed = PrivateKeyDer::from_pem_slice(key)
            .map_err(|error| senseless("tls.key", format!("holds no private key: {error}")))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let pair = CertifiedKey::from_der(chain, parsed, &provider)
            .and_then(|pair| pair.keys_match().map(|()| pair))
            .map_err(|error| senseless("tls.key", format!("does not go with tls.crt: {error}")))?;
        let unusable = |error: &dyn std::fmt::Display| senseless("ca.crt", format!("cannot be used: {error}"));
        // Who connects must have a certificate of the cluster's authority.
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build();
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| unusable(&error))?
            .with_client_cert_verifier(verifier.map_err(|error| unusable(&error))?)
            .with_cert_resolver(Arc::new(SingleCertAndKey::from(pair)));
        server.alpn_protocols = vec![b"h2".to_vec()];
        // A session that is taken up again would bring a certificate that is perhaps trusted no more.
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        let (authority, identity) = (Certificate::from_pem(authority), Identity::from_pem(certificate, key));
        Ok(Self { authority, identity, server: Arc::new(server), contents })
    }
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

/// The same windows on the serving side.
pub(crate) fn server_builder() -> tonic::transport::Server {
    tonic::transport::Server::builder()
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
}

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

    use super::*;

    struct Authority {
        params: CertificateParams,
        key: KeyPair,
    }

    impl Authority {
        fn new() -> Self {
            let mut params = CertificateParams::default();
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            Self { params, key: KeyPair::generate().unwrap() }
        }

        fn pem(&self) -> String {
            self.params.self_signed(&self.key).unwrap().pem()
        }

        fn issue(&self, into: &Path, trusted: &str) {
            let key = KeyPair::generate().unwrap();
            let params = CertificateParams::new(["localhost".to_owned()]).unwrap();
            let certificate = params.signed_by(&key, &Issuer::from_params(&self.params, &self.key)).unwrap();
            std::fs::write(into.join("ca.crt"), trusted).unwrap();
            std::fs::write(into.join("tls.crt"), certificate.pem()).unwrap();
            std::fs::write(into.join("tls.key"), key.serialize_pem()).unwrap();
        }
    }

    async fn is_let_in(client: &Tls, server: &Tls) -> bool {
        use tokio_stream::StreamExt;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let mut incoming = server.incoming(listener);
        let endpoint = client.endpoint(&address).unwrap();
        let dial = tokio::spawn(async move { endpoint.connect().await.is_ok() });
        let came = tokio::time::timeout(Duration::from_millis(500), incoming.next()).await;
        dial.abort();
        matches!(came, Ok(Some(Ok(_))))
    }

    /// An authority is followed by the next one without a restart, as long as both are trusted for a while.
    #[tokio::test]
    async fn a_new_authority_is_taken_up_as_it_comes() {
        let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let (old, new) = (Authority::new(), Authority::new());
        dirs.iter().for_each(|dir| old.issue(dir.path(), &old.pem()));
        let [a, b] = dirs.each_ref().map(|dir| Tls::read(dir.path()).unwrap());
        assert!(is_let_in(&a, &b).await);

        // One has what comes next already, the other not yet.
        let both = format!("{}{}", old.pem(), new.pem());
        old.issue(dirs[0].path(), &both);
        assert!(a.look(|| {}).unwrap() && !b.look(|| {}).unwrap());
        assert!(is_let_in(&a, &b).await && is_let_in(&b, &a).await);
        old.issue(dirs[1].path(), &both);
        assert!(b.look(|| {}).unwrap());
        new.issue(dirs[0].path(), &both);
        assert!(a.look(|| {}).unwrap());
        assert!(is_let_in(&a, &b).await && is_let_in(&b, &a).await);
        new.issue(dirs[1].path(), &new.pem());
        assert!(b.look(|| {}).unwrap());
        assert!(is_let_in(&a, &b).await && is_let_in(&b, &a).await);
        old.issue(dirs[0].path(), &old.pem());
        assert!(a.look(|| {}).unwrap());
        assert!(!is_let_in(&a, &b).await && !is_let_in(&b, &a).await);
    }

    #[test]
    fn what_makes_no_sense_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::new();
        authority.issue(dir.path(), &authority.pem());
        let tls = Tls::read(dir.path()).unwrap();
        let before = tls.current.borrow().clone();
        std::fs::write(dir.path().join("tls.key"), "no key").unwrap();
        assert!(tls.look(|| {}).unwrap_err().to_string().contains("tls.key holds no private key"));
        assert!(Arc::ptr_eq(&before, &tls.current.borrow()));
        // Written in two steps: the second is waited for.
        authority.issue(dir.path(), &authority.pem());
        let path = dir.path().to_owned();
        assert!(!tls.look(|| authority.issue(&path, &authority.pem())).unwrap());
        assert!(tls.look(|| {}).unwrap());
    }
}
