//! Starting and ending: the parts are made in the order in which they need each other, and each failure says what to do.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Semaphore, mpsc, watch};
use understudy_journal::{DirStorage, Journal, OpenError, Options, Progress};
use understudy_lease::{KubernetesLease, LeaseStore, LocalLease};
use understudy_node::{ControlEvent, Event, Node, Rebuild, Recovered, Settings, Shared};
use understudy_proto::control_server::ControlServer;
use understudy_proto::replica_server::ReplicaServer;
use understudy_protocol::{FieldTable, FieldValue, ServerConfig};
use understudy_record::{Identity, ProcessId, ShortStr, StoreId};

use crate::amqp::{Amqp, Authenticator, ClientCertificate, Doorway, Encryption, Failures, Logins};
use crate::around::{Around, LogReads};
use crate::aside::{Aside, stand_aside};
use crate::checkpoint_thread::CheckpointHandle;
use crate::config::{Clients, Config, LeasePlace};
use crate::core_thread::CoreThread;
use crate::elector::BackupElector;
use crate::fence;
use crate::http::Health;
use crate::journal_thread::JournalHandle;
use crate::kubernetes::Announcer;
use crate::lease_requests::{self, LeaseRequests};
use crate::metrics::Metrics;
use crate::peers::{Bandwidth, ControlService, MAX_MESSAGE_BYTES, ReplicaService, Tls, Upstream, server_builder};
use crate::resources::Sampler;

/// Events for the core thread that must not wait behind clients' commands: acknowledgements, the journal's reports, peers.
const EVENT_INBOX: usize = 4096;

/// Batches of clients' commands, each one read's worth at most: what a busy moment may pile up in memory.
const CLIENT_INBOX: usize = 256;

/// A Lease request that has not been answered by then counts as unknown.
const LEASE_REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

/// Connections get so long to hear why they are closed, once the core thread has ended.
const LAST_WORDS: Duration = Duration::from_millis(300);

/// Runs one replica until it is told to end, or must.
///
/// # Errors
/// If it cannot start, or had to give up its role (a failed disk): the text names cause and cure.
pub fn run(config: Config) -> anyhow::Result<()> {
    if config.exit_with_parent {
        crate::parent::exit_when_parent_ends();
    }
    allow_many_files();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let outcome = runtime.block_on(serve(Arc::new(config)));
    runtime.shutdown_timeout(Duration::from_secs(1));
    outcome
}

/// A connection is an open file: as many as the system allows this process, not as many as it was started with.
fn allow_many_files() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = rustix::process::Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!("no more than {:?} open files: {error}", limit.current);
    }
}

async fn serve(config: Arc<Config>) -> anyhow::Result<()> {
    let started = Instant::now();
    let handle = tokio::runtime::Handle::current();
    let tls = Tls::read(&config.tls_dir)?;
    tokio::spawn(tls.clone().keep_up());
    let metrics = Arc::new(Metrics::new()?);
    let amqps = match &config.clients.tls {
        Some(tls) => {
            let metrics = metrics.amqps()?;
            let read = ClientCertificate::read(tls.clone(), metrics.clone());
            Some((read.context("--amqps-listen needs a certificate and its key")?, metrics))
        }
        None => None,
    };
    let heartbeat = Arc::new(AtomicU64::new(0));
    let (events, event_inbox) = mpsc::channel(EVENT_INBOX);
    let (clients, client_inbox) = mpsc::channel(CLIENT_INBOX);

    // Health answers while the log is being read.
    let process = ProcessId(rand::random());
    let nobody = Identity { name: config.name.clone(), store: StoreId(0), process };
    let shared = Arc::new(Shared::new(nobody));
    let authenticator = Arc::new(Authenticator::read(&config.users, shared.login.subscribe())?);
    tokio::spawn(authenticator.clone().keep_up());
    let http = listen(config.http_listen, "http-listen").await?;
    let health = Health { shared: shared.clone(), metrics: metrics.clone(), started, heartbeat: heartbeat.clone() };
    tokio::spawn(async move { axum::serve(http, crate::http::router(health)).await });
    let grpc = listen(config.grpc_listen, "grpc-listen").await?;

    // Taken for good only when the log has been read; a port that somebody else has is said before anything is touched.
    drop(ClientListeners::bind(&config.clients).await?);

    let control = |shared, events, lease| ControlService {
        cluster: config.cluster.clone(),
        data_dir: config.data_dir.clone(),
        started,
        shared,
        events,
        lease,
    };
    if fence::is_set(&config.data_dir) {
        let (lease, _) = lease_store(&config).await?;
        tokio::spawn(pass_signals(events.clone()));
        return stand_aside(Aside::Fenced, control(shared, events, lease), &tls, grpc, heartbeat, event_inbox).await;
    }
    let (opening, progress) = (config.clone(), shared.clone());
    let opened = tokio::task::spawn_blocking(move || open_journal(&opening, &progress.recovery));
    let (journal, recovered) = match opened.await? {
        Err(error) if error.downcast_ref::<OpenError>().is_some_and(OpenError::needs_upgrade) => {
            let (lease, _) = lease_store(&config).await?;
            tokio::spawn(pass_signals(events.clone()));
            let why = Aside::Outdated(format!("{error:#}"));
            return stand_aside(why, control(shared, events, lease), &tls, grpc, heartbeat, event_inbox).await;
        }
        opened => opened?,
    };
    let me = Identity { name: config.name.clone(), store: journal.store_id(), process };
    // Only now: a client that comes earlier is refused at once, and goes to the next address.
    let listeners = ClientListeners::bind(&config.clients).await?;
    tracing::info!(%me, version = env!("CARGO_PKG_VERSION"), "starting");
    Sampler::new(&config, shared.clone(), events.clone()).start()?;

    let (lease, kubernetes) = lease_store(&config).await?;
    let reader = journal.reader();
    let (maker, log_bytes) = (journal.checkpointer(), journal.log_bytes());
    let journal = JournalHandle::start(journal, events.clone())?;
    let catch_ups = Arc::new(Bandwidth::new(config.catch_up_bandwidth));
    let checkpoints = CheckpointHandle::start(maker, config.checkpoint_rate, events.clone())?;
    let upstream = Upstream::new(
        config.cluster.clone(),
        me.clone(),
        tls.clone(),
        events.clone(),
        journal.queued(),
        metrics.received_bytes(),
        handle.clone(),
    );
    let log_reads = LogReads::new(reader.clone(), events.clone(), handle.clone(), catch_ups.clone());
    let lease_requests = LeaseRequests::new(lease.clone(), events.clone(), handle);
    let (damage_noted, noted) = std::sync::mpsc::channel();
    let around =
        Around { config: config.clone(), journal, checkpoints, upstream, log_reads, lease_requests, damage_noted };
    let (ended_sender, mut ended) = watch::channel(false);
    let core_thread = CoreThread {
        started,
        events: event_inbox,
        clients: client_inbox,
        heartbeat,
        damage_noted: noted,
        ended: ended_sender,
    };
    let (node_config, node_me, node_shared) = (config.node(), me.clone(), shared.clone());
    core_thread
        .spawn(move |now| Node::new(now, node_config, node_me, Box::new(around), node_shared, recovered, log_bytes))?;

    let amqp = Arc::new(Amqp {
        server: server_config(&config),
        options: config.clients.clone(),
        authenticator,
        logins: Logins::new(config.clients.login_failure_delay),
        strangers: Failures::default(),
        places: Arc::new(Semaphore::new(config.clients.max_connections)),
        clients,
        flow: shared.flow.subscribe(),
        next_connection: std::sync::atomic::AtomicU64::new(1),
        started,
        metrics,
        uploads: Arc::default(),
        reader,
    });
    serve_peers(&config, &tls, grpc, started, &shared, &events, &lease, &amqp, catch_ups);
    tokio::spawn(lease_requests::watch(lease.clone(), events.clone()));
    let (settings, changes) = watch::channel(config.settings.clone());
    if let Some(file) = config.settings_file.clone() {
        tokio::spawn(file.keep_up(settings));
    }
    tokio::spawn(pass_settings(changes.clone(), events.clone()));
    let elector = BackupElector {
        config: config.clone(),
        started,
        shared: shared.clone(),
        tls: tls.clone(),
        lease,
        settings: changes,
        events: events.clone(),
    };
    tokio::spawn(elector.run());
    if let (Some(client), LeasePlace::Kubernetes { namespace, pod_ip, node, .. }) = (kubernetes, &config.lease) {
        let announcer = Announcer {
            client,
            namespace: namespace.clone(),
            cluster: config.cluster.clone(),
            pod: config.name.to_string(),
            pod_ip: pod_ip.clone(),
            node: node.clone(),
            shared: shared.clone(),
        };
        tokio::spawn(announcer.run());
    }
    let doorway = Doorway {
        amqp,
        shared: shared.clone(),
        tls,
        name: config.name.to_string(),
        backup_connections: config.backup_connections,
    };
    let (sockets, doorway) = (doorway.sockets(), Arc::new(doorway));
    if let Some(listener) = listeners.plain {
        tokio::spawn(doorway.clone().listen(listener, sockets.clone(), None));
    }
    if let (Some(listener), Some((certificate, metrics))) = (listeners.tls, amqps) {
        let encryption = Encryption::new(&certificate, metrics);
        tokio::spawn(certificate.keep_up());
        tokio::spawn(doorway.listen(listener, sockets, Some(encryption)));
    }

    tokio::spawn(pass_signals(events));
    _ = ended.wait_for(|ended| *ended).await;
    tokio::time::sleep(LAST_WORDS).await;
    match shared.failure() {
        Some(reason) => Err(anyhow!(reason)),
        None => Ok(()),
    }
}

/// Where clients come in.
struct ClientListeners {
    plain: Option<TcpListener>,
    tls: Option<TcpListener>,
}

impl ClientListeners {
    async fn bind(clients: &Clients) -> anyhow::Result<Self> {
        let plain = match clients.amqp_listen {
            Some(address) => Some(listen(address, "amqp-listen").await?),
            None => None,
        };
        let tls = match &clients.tls {
            Some(tls) => Some(listen(tls.listen, "amqps-listen").await?),
            None => None,
        };
        Ok(Self { plain, tls })
    }
}

async fn listen(address: std::net::SocketAddr, option: &str) -> anyhow::Result<TcpListener> {
    let listener = TcpListener::bind(address).await;
    listener.with_context(|| format!("cannot listen on {address}; choose another address with --{option}"))
}

fn open_journal(config: &Config, progress: &Progress) -> anyhow::Result<(Journal, Recovered)> {
    let directory = &config.data_dir;
    let storage = Arc::new(DirStorage::open(directory)?);
    let mut rebuild = Rebuild::new(config.seed, config.accept_differences);
    let fresh = StoreId(rand::random());
    // One segment before the checkpoint stays: a follower that was away for a moment resumes.
    let retain_bytes = config.segment_bytes;
    let options = Options { segment_bytes: config.segment_bytes, retain_bytes, ..Options::default() };
    let opened = Journal::open_watched(storage, options, fresh, progress, &mut |frame| rebuild.take(frame));
    let (journal, recovery) = opened.with_context(|| format!("the log in {} cannot be opened", directory.display()))?;
    if let Some(cut) = &recovery.cut {
        tracing::warn!(segment = %cut.segment, offset = cut.offset, bytes = cut.bytes, "cut a torn tail: what was never confirmed");
    }
    let recovered = rebuild.finish(&journal).map_err(anyhow::Error::msg)?;
    Ok((journal, recovered))
}

async fn lease_store(config: &Config) -> anyhow::Result<(Arc<dyn LeaseStore>, Option<kube::Client>)> {
    match &config.lease {
        LeasePlace::Local(directory) => Ok((Arc::new(LocalLease::new(directory.clone())), None)),
        LeasePlace::Kubernetes { namespace, name, .. } => {
            let client = kube::Client::try_default().await;
            let client = client.context("no access to the Kubernetes API: is this a pod with a service account?")?;
            let lease = KubernetesLease::new(client.clone(), namespace, name, LEASE_REQUEST_TIMEOUT);
            Ok((Arc::new(lease), Some(client)))
        }
    }
}

fn server_config(config: &Config) -> ServerConfig {
    let short = |text: &'static str| ShortStr::from_static(text);
    let long = |text: &str| FieldValue::Text(bytes::Bytes::copy_from_slice(text.as_bytes()));
    let mut capabilities = FieldTable::new();
    for name in [
        "publisher_confirms",
        "basic.nack",
        "consumer_cancel_notify",
        "connection.blocked",
        "exchange_exchange_bindings",
        "per_consumer_qos",
        "consumer_priorities",
        "direct_reply_to",
        "authentication_failure_close",
    ] {
        capabilities.insert(short(name), FieldValue::Bool(true));
    }
    let mut properties = FieldTable::new();
    properties.insert(short("capabilities"), FieldValue::Table(capabilities));
    properties.insert(short("cluster_name"), long(&config.cluster));
    properties.insert(short("node"), long(config.name.as_str()));
    properties.insert(short("platform"), long("Rust"));
    properties.insert(short("product"), long("Understudy"));
    properties.insert(short("version"), long(env!("CARGO_PKG_VERSION")));
    ServerConfig {
        server_properties: properties,
        channel_max: config.clients.channel_max,
        handshake_timeout: config.clients.handshake_timeout,
        max_message_bytes: config.max_message_size,
        ..ServerConfig::default()
    }
}

#[expect(clippy::too_many_arguments, reason = "the parts that the two services are made of, once")]
fn serve_peers(
    config: &Config,
    tls: &Tls,
    listener: TcpListener,
    started: Instant,
    shared: &Arc<Shared>,
    events: &mpsc::Sender<Event>,
    lease: &Arc<dyn LeaseStore>,
    amqp: &Arc<Amqp>,
    catch_ups: Arc<Bandwidth>,
) {
    let (door, amqp) = (shared.door.subscribe(), amqp.clone());
    let replica = ReplicaService::new(config.cluster.clone(), events.clone(), amqp, door, catch_ups);
    let control = ControlService {
        cluster: config.cluster.clone(),
        data_dir: config.data_dir.clone(),
        started,
        shared: shared.clone(),
        events: events.clone(),
        lease: lease.clone(),
    };
    let replica = ReplicaServer::new(replica)
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES);
    let incoming = tls.incoming(listener);
    let router = server_builder().add_service(replica).add_service(ControlServer::new(control));
    tokio::spawn(async move {
        if let Err(error) = router.serve_with_incoming(incoming).await {
            tracing::error!("the gRPC server ended: {error}");
        }
    });
}

/// The core thread is told what changes, until nothing can change any more.
async fn pass_settings(mut changes: watch::Receiver<Settings>, events: mpsc::Sender<Event>) {
    while changes.changed().await.is_ok() {
        let settings = changes.borrow_and_update().clone();
        if events.send(Event::Settings(settings)).await.is_err() {
            return;
        }
    }
}

/// SIGTERM and SIGINT mean: leave in good order.
async fn pass_signals(events: mpsc::Sender<Event>) {
    let (Ok(mut terminate), Ok(mut interrupt)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        return;
    };
    loop {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        if events.send(Event::Control(ControlEvent::Shutdown)).await.is_err() {
            return;
        }
    }
}
