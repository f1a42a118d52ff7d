//! Mutual TLS between replicas, operator and command line: one authority, a certificate each.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity, ServerTlsConfig};

/// Every certificate of a cluster carries this name, so that a replica is known by its authority, wherever it is reached.
const CERTIFICATE_NAME: &str = "localhost";

/// A connection attempt to a replica that does not answer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// The stream's own window, so that a batch of records is not held back by the default of 64 KiB.
const STREAM_WINDOW_BYTES: u32 = 8 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 16 << 20;

#[derive(Clone)]
pub(crate) struct Tls {
    authority: Certificate,
    identity: Identity,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum TlsError {
    #[error("cannot read {}: {source}; --tls-dir must hold ca.crt, tls.crt and tls.key", path.display())]
    Read { path: PathBuf, source: std::io::Error },
}

impl Tls {
    pub(crate) fn read(directory: &Path) -> Result<Self, TlsError> {
        let read = |file: &str| {
            let path = directory.join(file);
            std::fs::read(&path).map_err(|source| TlsError::Read { path, source })
        };
        Ok(Self {
            authority: Certificate::from_pem(read("ca.crt")?),
            identity: Identity::from_pem(read("tls.crt")?, read("tls.key")?),
        })
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

    pub(crate) async fn connect(&self, address: &str) -> Result<Channel, tonic::transport::Error> {
        self.endpoint(address)?.connect().await
    }
}

/// The same windows on the serving side.
pub(crate) fn server_builder() -> tonic::transport::Server {
    tonic::transport::Server::builder()
        .tcp_nodelay(true)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
}
