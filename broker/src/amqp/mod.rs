//! AMQP clients: listening, the door to the primary, and one task a connection.

mod auth;
mod certificate;
mod connection;
mod convert;
mod gets;
mod large;
mod login;
mod peer;
mod socket;
mod tls;
mod traffic;
mod users_file;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc, watch};

pub(crate) use auth::{Authenticator, check_hash};
pub(crate) use login::{Failures, Logins};
pub(crate) use peer::Peer;
pub(crate) use socket::part;
pub(crate) use tls::ClientCertificate;
use understudy_journal::LogReader;
use understudy_protocol::ServerConfig;

use crate::config::{BackupConnections, Clients, Mechanism};
use crate::metrics::{AmqpsMetrics, Metrics};
use crate::peers::{Tls, relay};
use understudy_node::{ClientEvent, Door, Flow, Shared};

/// How long a client that arrives while no primary is known is kept waiting: an election takes less, and a client that
/// waits here reconnects once instead of in a loop.
const DOOR_TIMEOUT: Duration = Duration::from_secs(10);

/// Between two tries to relay a client, unless the primary changes meanwhile.
const RELAY_PAUSE: Duration = Duration::from_millis(50);

/// Connections that are not open yet, or not any more, beside those that may be open: each costs a task and buffers.
const MAX_NEWCOMERS: usize = 4096;

/// After a failed accept (out of file descriptors, mostly) the next try waits for some to be closed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What every connection's task needs.
pub(crate) struct Amqp {
    pub(crate) server: ServerConfig,
    pub(crate) options: Clients,
    pub(crate) authenticator: Arc<Authenticator>,
    pub(crate) logins: Logins,
    /// Connections that come to nothing before anybody has logged in.
    pub(crate) strangers: Failures,
    /// One for each connection that may be open.
    pub(crate) places: Arc<Semaphore>,
    pub(crate) clients: mpsc::Sender<ClientEvent>,
    pub(crate) flow: watch::Receiver<Flow>,
    pub(crate) next_connection: AtomicU64,
    pub(crate) started: Instant,
    pub(crate) metrics: Arc<Metrics>,
    /// Parts of large messages that came in and are not committed, in bytes.
    pub(crate) uploads: Arc<AtomicUsize>,
    /// For large messages, which are never in memory as a whole.
    pub(crate) reader: LogReader,
}

/// Where a client that connects here belongs.
pub(crate) struct Doorway {
    pub(crate) amqp: Arc<Amqp>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) tls: Tls,
    pub(crate) name: String,
    pub(crate) backup_connections: BackupConnections,
}

impl Amqp {
    /// What the client is offered.
    fn server_for(&self, peer: &Peer) -> ServerConfig {
        let mechanisms = self.options.mechanisms.on(peer.tls, peer.certificate_name.is_some());
        ServerConfig { mechanisms: mechanisms.map(Mechanism::name).collect(), ..self.server.clone() }
    }

    /// Serves one client to its end, over whatever carries its bytes.
    pub(crate) async fn serve<S>(self: Arc<Self>, stream: S, peer: Peer)
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        connection::Connection::new(self, peer).run(stream).await;
    }
}

/// TLS at the door.
pub(crate) struct Encryption {
    acceptor: tls::Acceptor,
    metrics: AmqpsMetrics,
}

impl Encryption {
    pub(crate) fn new(certificate: &ClientCertificate, metrics: AmqpsMetrics) -> Self {
        Self { acceptor: certificate.acceptor(), metrics }
    }
}

impl Doorway {
    /// So many sockets of clients at once, through all listeners together.
    pub(crate) fn sockets(&self) -> Arc<Semaphore> {
        Arc::new(Semaphore::new(self.amqp.options.max_connections + MAX_NEWCOMERS))
    }

    /// Takes clients in, over TLS if `encryption` is given.
    pub(crate) async fn listen(
        self: Arc<Self>,
        listener: TcpListener,
        sockets: Arc<Semaphore>,
        encryption: Option<Encryption>,
    ) {
        let encryption = encryption.map(Arc::new);
        loop {
            let Ok(place) = sockets.clone().acquire_owned().await else { return };
            match listener.accept().await {
                Ok((stream, address)) => {
                    _ = stream.set_nodelay(true);
                    let (doorway, encryption) = (self.clone(), encryption.clone());
                    tokio::spawn(async move {
                        match encryption {
                            None => doorway.receive(stream, Peer::plain(address)).await,
                            Some(encryption) => doorway.encrypt(stream, address, &encryption).await,
                        }
                        drop(place);
                    });
                }
                Err(error) => {
                    tracing::warn!("a client cannot be accepted: {error}");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    async fn encrypt(&self, stream: TcpStream, address: SocketAddr, encryption: &Encryption) {
        match encryption.acceptor.accept(stream).await {
            Ok((stream, name)) => self.receive(stream, Peer::encrypted(address, name)).await,
            Err(reason) => {
                encryption.metrics.failed_handshakes.inc();
                let peer = Peer::encrypted(address, None);
                self.amqp.strangers.tell(&peer, &format!("no TLS with a client: {reason}"));
            }
        }
    }

    /// A client waits here while there is no primary, or none that answers, for as long as an election may take.
    async fn receive<S>(&self, mut stream: S, peer: Peer)
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let mut door = self.shared.door.subscribe();
        let deadline = tokio::time::Instant::now() + DOOR_TIMEOUT;
        loop {
            let open = tokio::time::timeout_at(deadline, door.wait_for(|door| *door != Door::Closed)).await;
            let Ok(Ok(open)) = open.map(|open| open.map(|door| door.clone())) else {
                tracing::info!(%peer, "a client was sent away: no primary serves");
                return;
            };
            match (open, self.backup_connections) {
                (Door::Here, _) => return self.amqp.clone().serve(stream, peer).await,
                (Door::At { name, .. }, BackupConnections::Refuse) => {
                    let text = format!("{} is a backup; the primary is {name}", self.name);
                    let server = self.amqp.server_for(&peer);
                    return connection::refuse(stream, server, self.amqp.started, &text).await;
                }
                (Door::At { name, address }, BackupConnections::Relay) => {
                    let opened = || self.amqp.metrics.relayed_connections.inc();
                    match relay(stream, &self.tls, &address, peer.to_relay(&self.name), opened).await {
                        Ok(()) => return,
                        // Nothing was read from the client yet: it may go another way.
                        Err((unread, reason)) if tokio::time::Instant::now() < deadline => {
                            tracing::debug!(%peer, "not relayed to {name} yet: {reason}");
                            stream = unread;
                            _ = tokio::time::timeout(RELAY_PAUSE, door.changed()).await;
                        }
                        Err((_, reason)) => {
                            tracing::info!(%peer, "a client could not be relayed to {name}: {reason}");
                            return;
                        }
                    }
                }
                (Door::Closed, _) => {}
            }
        }
    }
}
