//! A connection to one broker's `Control` service: mutual TLS with the certificates of a local cluster's directory, or others. It
//! dials and authenticates; what is said over it belongs to the callers.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use understudy_proto::control_client::ControlClient;

/// The name in every local broker's certificate, whatever address it is dialled by.
const CERTIFICATE_NAME: &str = "localhost";
/// Loopback answers or refuses at once; a process that is stopped does neither.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(1000);

#[derive(Clone)]
pub(crate) struct Tls(ClientTlsConfig);

#[derive(Debug, thiserror::Error)]
pub(crate) enum ControlError {
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("cannot dial {address} with these certificates: {source}")]
    Certificates { address: SocketAddr, source: tonic::transport::Error },
}

impl Tls {
    pub(crate) fn read(dir: &Path) -> Result<Self, ControlError> {
        let read = |file: &str| {
            let path = dir.join(file);
            std::fs::read(&path).map_err(|source| ControlError::Read { path, source })
        };
        Ok(Self::of(&read("ca.crt")?, &read("tls.crt")?, &read("tls.key")?))
    }

    /// The authority's certificate, and the caller's own with its key, in PEM form.
    pub(crate) fn of(authority: &[u8], certificate: &[u8], key: &[u8]) -> Self {
        let (authority, identity) = (Certificate::from_pem(authority), Identity::from_pem(certificate, key));
        Self(ClientTlsConfig::new().ca_certificate(authority).identity(identity).domain_name(CERTIFICATE_NAME))
    }
}

/// Nothing is dialled before the first call; the channel dials anew after a loss.
pub(crate) fn client(address: SocketAddr, tls: &Tls) -> Result<ControlClient<Channel>, ControlError> {
    let refused = |source| ControlError::Certificates { address, source };
    let endpoint = Endpoint::from_shared(format!("https://{address}"))
        .and_then(|endpoint| endpoint.tls_config(tls.0.clone()))
        .map_err(refused)?
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_nodelay(true);
    Ok(ControlClient::new(endpoint.connect_lazy()))
}
