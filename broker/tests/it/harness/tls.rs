//! TLS as a client has it, and the certificates of both sides.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use time::{Duration, OffsetDateTime};

use super::{Settings, free_ports, loopback};

/// What a client reads from and writes to.
pub(crate) trait Stream: Read + Write + Send {
    fn socket(&self) -> &TcpStream;

    /// Nothing more will be sent.
    fn hang_up(&mut self) {
        _ = self.socket().shutdown(Shutdown::Write);
    }
}

impl Stream for TcpStream {
    fn socket(&self) -> &TcpStream {
        self
    }
}

type Encrypted = StreamOwned<ClientConnection, TcpStream>;

impl Stream for Encrypted {
    fn socket(&self) -> &TcpStream {
        &self.sock
    }
}

/// Issues certificates. Its key never reaches a disk.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub(crate) certificate: String,
}

#[derive(Clone)]
pub(crate) struct Pair {
    pub(crate) certificate: String,
    pub(crate) key: String,
    /// Seconds since 1970.
    pub(crate) not_after: i64,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new([]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), certificate }
    }

    /// For `localhost`, from a day ago for `days` days.
    pub(crate) fn issue(&self, common_name: &str, days: i64) -> Pair {
        let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, common_name);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.not_before = OffsetDateTime::now_utc() - Duration::days(1);
        params.not_after = params.not_before + Duration::days(days);
        let not_after = params.not_after.unix_timestamp();
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap().pem();
        Pair { certificate, key: key.serialize_pem(), not_after }
    }
}

/// A broker's files for clients, and its port for TLS.
pub(crate) struct Amqps {
    directory: PathBuf,
    pub(crate) address: SocketAddr,
}

impl Amqps {
    /// Gives a broker what it needs; it asks clients for certificates of `authority`.
    pub(crate) fn give(settings: &mut Settings, directory: PathBuf, authority: &Authority, pair: &Pair) -> Self {
        std::fs::create_dir_all(&directory).unwrap();
        let [port] = free_ports();
        let amqps = Self { directory, address: loopback(port) };
        amqps.write(&pair.certificate, &pair.key);
        std::fs::write(amqps.directory.join("ca.crt"), &authority.certificate).unwrap();
        let path = |file: &str| amqps.directory.join(file).display().to_string();
        settings.extra.extend(
            [
                ("--amqps-listen", amqps.address.to_string()),
                ("--amqps-cert", path("tls.crt")),
                ("--amqps-key", path("tls.key")),
                ("--amqps-client-ca", path("ca.crt")),
            ]
            .into_iter()
            .flat_map(|(option, value)| [option.to_owned(), value]),
        );
        amqps
    }

    pub(crate) fn write(&self, certificate: &str, key: &str) {
        std::fs::write(self.directory.join("tls.crt"), certificate).unwrap();
        std::fs::write(self.directory.join("tls.key"), key).unwrap();
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }
}

/// Trusts `authority`, and shows `pair` if it is given; the handshake is done on return.
pub(crate) fn connect_tls(to: SocketAddr, authority: &Authority, pair: Option<&Pair>) -> std::io::Result<Encrypted> {
    connect_tls_by(to, authority, pair, rustls::DEFAULT_VERSIONS)
}

pub(crate) fn connect_tls_by(
    to: SocketAddr,
    authority: &Authority,
    pair: Option<&Pair>,
    versions: &[&'static rustls::SupportedProtocolVersion],
) -> std::io::Result<Encrypted> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority.certificate.as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(versions).unwrap();
    let builder = builder.with_root_certificates(roots);
    let config = match pair {
        None => builder.with_no_client_auth(),
        Some(pair) => {
            let certificate = CertificateDer::from_pem_slice(pair.certificate.as_bytes()).unwrap();
            let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).unwrap();
            builder.with_client_auth_cert(vec![certificate], key).unwrap()
        }
    };
    let connection = ClientConnection::new(Arc::new(config), ServerName::try_from("localhost").unwrap()).unwrap();
    let socket = TcpStream::connect(to)?;
    socket.set_read_timeout(Some(super::PATIENCE))?;
    let mut stream = StreamOwned::new(connection, socket);
    while stream.conn.is_handshaking() {
        stream.conn.complete_io(&mut stream.sock)?;
    }
    Ok(stream)
}
