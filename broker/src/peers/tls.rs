//! Mutual TLS between replicas, operator and command line: one authority, a certificate each.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity, ServerTlsConfig};

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

#[derive(Clone)]
pub(crate) struct Tls {
    authority: Certificate,
    identity: Identity,
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
        let read = |file: &str| {
            let path = directory.join(file);
            std::fs::read(&path).map_err(|source| TlsError::Read { path, source })
        };
        let senseless = |file: &str, what: String| TlsError::Senseless { path: directory.join(file), what };
        let (authority, certificate, key) = (read("ca.crt")?, read("tls.crt")?, read("tls.key")?);
        let mut roots = RootCertStore::empty();
        for root in certificates(&authority).map_err(|what| senseless("ca.crt", what))? {
            roots
                .add(root)
                .map_err(|error| senseless("ca.crt", format!("holds no authority's certificate: {error}")))?;
        }
        let chain = certificates(&certificate).map_err(|what| senseless("tls.crt", what))?;
        let parsed = PrivateKeyDer::from_pem_slice(&key)
            .map_err(|error| senseless("tls.key", format!("holds no private key: {error}")))?;
        let provider = rustls::crypto::ring::default_provider();
        CertifiedKey::from_der(chain, parsed, &provider)
            .and_then(|pair| pair.keys_match())
            .map_err(|error| senseless("tls.key", format!("does not go with tls.crt: {error}")))?;
        Ok(Self { authority: Certificate::from_pem(authority), identity: Identity::from_pem(certificate, key) })
    }

    /// Who connects must have a certificate of the cluster's authority.
    pub(crate) fn server(&self) -> ServerTlsConfig {
        ServerTlsConfig::new().identity(self.identity.clone()).client_ca_root(self.authority.clone())
    }

    /// Nothing is dialled yet.
    pub(crate) fn endpoint(&self, address: &str) -> Result<Endpoint, tonic::transport::Error> {
        let tls = ClientTlsConfig::new()
            .ca_certificate(self.authority.clone())
            .identity(self.identity.clone())
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
