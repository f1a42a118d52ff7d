//! Stands in for every broker of every `BrokerCluster`, in one process: answers the operator's streams under each pod's address and
//! certificate, says what a healthy broker in its place would say, and renews the Leases of those that are primaries.
//!
//! For measuring an operator that looks after many clusters (`e2e/scale/run`), where all pods' addresses are this machine's. It
//! stores nothing, serves no client, replicates nothing, elects nobody, and asks nobody for a certificate.

use std::collections::HashMap;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use futures::StreamExt;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Pod, Secret};
use k8s_openapi::jiff;
use kube::api::{Api, Patch, PatchParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, ResourceExt};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio_rustls::TlsAcceptor;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};
use understudy_proto as wire;
use understudy_record::version::VersionRange;

const GRPC_PORT: u16 = 7672;
const INSTANCE_LABEL: &str = "app.kubernetes.io/instance";
const OURS: &str = "app.kubernetes.io/managed-by=understudy-operator";
const BROKERS: &str = "app.kubernetes.io/name=understudy";
const IN_SYNC_ANNOTATION: &str = "understudy.dev/in-sync";
/// As brokers do: at a third of the Lease's duration.
const RENEWALS_PER_DURATION: u32 = 3;
const DEFAULT_DURATION_SECONDS: i32 = 15;
/// Records in every log, once there is a primary.
const RECORDS: u64 = 10;

/// Namespace and name.
type Key = (String, String);

#[derive(Clone)]
struct Broker {
    cluster: Key,
    pod: String,
    store: String,
    process: String,
}

/// Of the Lease, what a status says. Nobody and epoch 0: it is blank.
#[derive(Clone, Default, PartialEq)]
struct Reign {
    uid: String,
    holder: String,
    epoch: u64,
    in_sync: Vec<String>,
    duration_seconds: i32,
}

#[derive(Default)]
struct Known {
    brokers: HashMap<IpAddr, Broker>,
    reigns: HashMap<Key, Reign>,
    certificates: HashMap<Key, Arc<CertifiedKey>>,
}

#[derive(Clone)]
struct World {
    client: Client,
    known: Arc<Mutex<Known>>,
    /// Another primary somewhere.
    changed: watch::Sender<()>,
}

#[tokio::main]
async fn main() -> Result<()> {
    let client = Client::try_default().await.context("no way to an API server")?;
    let world = World { client: client.clone(), known: Arc::default(), changed: watch::Sender::new(()) };
    let listener = TcpListener::bind(("0.0.0.0", GRPC_PORT)).await.context("the brokers' port is taken")?;
    tokio::select! {
        () = follow::<Pod>(&client, BROKERS, |pod, is_there| world.handle_pod(pod, is_there)) => {}
        () = follow::<Secret>(&client, OURS, |secret, _| world.handle_secret(secret)) => {}
        () = follow::<Lease>(&client, BROKERS, |lease, is_there| world.handle_lease(lease, is_there)) => {}
        served = serve(&world, listener) => served?,
    }
    Ok(())
}

/// Hands each object on as it comes, and those that go.
async fn follow<K>(client: &Client, selector: &str, mut handle: impl FnMut(&K, bool))
where
    K: kube::Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned + Send + 'static,
{
    let config = watcher::Config::default().labels(selector);
    let mut events = watcher(Api::<K>::all(client.clone()), config).default_backoff().boxed();
    while let Some(event) = events.next().await {
        match event {
            Ok(watcher::Event::Apply(object) | watcher::Event::InitApply(object)) => handle(&object, true),
            Ok(watcher::Event::Delete(object)) => handle(&object, false),
            Ok(watcher::Event::Init | watcher::Event::InitDone) => {}
            Err(error) => eprintln!("watch: {error}"),
        }
    }
}

async fn serve(world: &World, listener: TcpListener) -> Result<()> {
    let mut tls = rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(ByName(world.known.clone())));
    tls.alpn_protocols = vec![b"h2".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(tls));
    let (sender, connections) = mpsc::channel(1);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, sender) = (acceptor.clone(), sender.clone());
            tokio::spawn(async move {
                if let Ok(stream) = acceptor.accept(stream).await {
                    let _ = sender.send(Ok::<_, std::io::Error>(stream)).await; // nobody serves any more
                }
            });
        }
    });
    let control = wire::control_server::ControlServer::new(Control(world.clone()));
    tonic::transport::Server::builder()
        .add_service(control)
        .serve_with_incoming(ReceiverStream::new(connections))
        .await
        .context("gRPC")
}

fn key_of<K: ResourceExt>(object: &K, name: String) -> Key {
    (object.namespace().unwrap_or_default(), name)
}

impl World {
    fn known(&self) -> std::sync::MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn handle_pod(&self, pod: &Pod, is_there: bool) {
        let address = pod.status.as_ref().and_then(|status| status.pod_ip.as_ref()?.parse().ok());
        let (Some(address), Some(cluster)) = (address, pod.labels().get(INSTANCE_LABEL)) else { return };
        if !is_there {
            self.known().brokers.remove(&address);
            return;
        }
        // The pod's own number is as good as what a process draws; a store's goes with the name.
        let process: String = pod.uid().unwrap_or_default().replace('-', "").chars().take(16).collect();
        let store = format!("{:032x}", u128::from(hash(&key_of(pod, pod.name_any()))));
        let broker = Broker { cluster: key_of(pod, cluster.clone()), pod: pod.name_any(), store, process };
        self.known().brokers.insert(address, broker);
    }

    fn handle_secret(&self, secret: &Secret) {
        let name = secret.name_any();
        let Some(cluster) = name.strip_suffix("-tls").filter(|cluster| !cluster.ends_with("-client")) else { return };
        match certified(secret) {
            Some(pair) => _ = self.known().certificates.insert(key_of(secret, cluster.to_owned()), Arc::new(pair)),
            None => eprintln!("Secret {name} holds no certificate"),
        }
    }

    fn handle_lease(&self, lease: &Lease, is_there: bool) {
        let key = key_of(lease, lease.name_any());
        let spec = lease.spec.clone().unwrap_or_default();
        let in_sync = lease.annotations().get(IN_SYNC_ANNOTATION).cloned().unwrap_or_default();
        let now = Reign {
            uid: lease.uid().unwrap_or_default(),
            holder: spec.holder_identity.unwrap_or_default(),
            epoch: spec.lease_transitions.and_then(|epoch| epoch.try_into().ok()).unwrap_or(0),
            in_sync: in_sync.split(',').filter(|member| !member.is_empty()).map(str::to_owned).collect(),
            duration_seconds: spec.lease_duration_seconds.unwrap_or(DEFAULT_DURATION_SECONDS),
        };
        let before = match is_there {
            true => self.known().reigns.insert(key.clone(), now.clone()),
            false => self.known().reigns.remove(&key),
        };
        if before.as_ref() == Some(&now) && is_there {
            return; // renewed
        }
        self.changed.send_replace(());
        let same_holder = before.is_some_and(|before| before.epoch == now.epoch && before.uid == now.uid);
        if is_there && now.epoch > 0 && !same_holder {
            tokio::spawn(self.clone().renew(key, now));
        }
    }

    /// As the primary does, for as long as it is it.
    async fn renew(self, key: Key, reign: Reign) {
        let api: Api<Lease> = Api::namespaced(self.client.clone(), &key.0);
        let every = Duration::from_secs(reign.duration_seconds.try_into().unwrap_or(1)) / RENEWALS_PER_DURATION;
        loop {
            tokio::time::sleep(every).await;
            let is_same = |now: &Reign| now.epoch == reign.epoch && now.uid == reign.uid;
            if !self.known().reigns.get(&key).is_some_and(is_same) {
                return;
            }
            let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string();
            let patch = Patch::Merge(json!({ "spec": { "renewTime": now } }));
            if let Err(error) = api.patch(&key.1, &PatchParams::default(), &patch).await {
                eprintln!("Lease {}/{}: {error}", key.0, key.1);
            }
        }
    }

    /// What the broker at this address says; `None`: there is none.
    fn status_of(&self, address: IpAddr) -> Option<wire::Status> {
        let known = self.known();
        let broker = known.brokers.get(&address)?;
        let blank = Reign::default();
        said(broker, known.reigns.get(&broker.cluster).unwrap_or(&blank))
    }
}

fn said(broker: &Broker, reign: &Reign) -> Option<wire::Status> {
    let versions = VersionRange::OWN;
    let mut status = wire::Status {
        cluster: broker.cluster.1.clone(),
        identity: Some(wire::Identity {
            name: broker.pod.clone(),
            store: broker.store.clone(),
            process: broker.process.clone(),
        }),
        role: wire::Role::Idle.into(),
        clean: true,
        first: 1,
        oldest_version: versions.oldest.0,
        newest_version: versions.newest.0,
        ..wire::Status::default()
    };
    if reign.epoch == 0 {
        status.blank_lease.clone_from(&reign.uid);
        return Some(status);
    }
    let position = wire::Position { epoch: reign.epoch, index: RECORDS };
    (status.epoch, status.last) = (reign.epoch, Some(position));
    (status.durable, status.committed, status.durable_epoch) = (RECORDS, RECORDS, Some(reign.epoch));
    (status.in_sync, status.in_sync_epoch) = (reign.in_sync.clone(), reign.epoch);
    status.cluster_version = versions.newest.0;
    let mut holder = reign.holder.split('/').map(str::to_owned);
    let primary = wire::Identity { name: holder.next()?, store: holder.next()?, process: holder.next()? };
    if status.identity.as_ref() == Some(&primary) {
        status.set_role(wire::Role::Primary);
        status.primary_for_ms = 1;
        let others = reign.in_sync.iter().filter(|member| !member.starts_with(&format!("{}/", broker.pod)));
        status.followers = others.filter_map(|member| follower(member)).collect();
    } else {
        status.set_role(wire::Role::Backup);
        status.heard = Some(wire::HeardPrimary { primary: Some(primary), epoch: reign.epoch, lost: None });
    }
    Some(status)
}

fn follower(member: &str) -> Option<wire::Follower> {
    let mut words = member.split('/').map(str::to_owned);
    let (name, store) = (words.next()?, words.next()?);
    let identity = wire::Identity { name, store, process: words.next().unwrap_or_else(|| "0".repeat(16)) };
    Some(wire::Follower { identity: Some(identity), durable: RECORDS, in_sync: true, ..wire::Follower::default() })
}

/// FNV-1a: a number that stays the same.
fn hash(key: &Key) -> u64 {
    let bytes = key.0.bytes().chain([b'/']).chain(key.1.bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

fn certified(secret: &Secret) -> Option<CertifiedKey> {
    let data = secret.data.as_ref()?;
    let chain = CertificateDer::pem_slice_iter(&data.get("tls.crt")?.0).collect::<Result<Vec<_>, _>>().ok()?;
    let key = PrivateKeyDer::from_pem_slice(&data.get("tls.key")?.0).ok()?;
    CertifiedKey::from_der(chain, key, &rustls::crypto::ring::default_provider()).ok()
}

/// The certificate of the cluster whose broker is meant: `POD.CLUSTER-nodes.NAMESPACE.svc`.
struct ByName(Arc<Mutex<Known>>);

impl std::fmt::Debug for ByName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ByName")
    }
}

impl ResolvesServerCert for ByName {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let mut words = hello.server_name()?.split('.').skip(1);
        let cluster = words.next()?.strip_suffix("-nodes")?.to_owned();
        let key = (words.next()?.to_owned(), cluster);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).certificates.get(&key).cloned()
    }
}

struct Control(World);

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl wire::control_server::Control for Control {
    type WatchStream = Pin<Box<ReceiverStream<Result<wire::Status, Status>>>>;
    type ReadDefinitionsStream = Pin<Box<ReceiverStream<Result<wire::Definitions, Status>>>>;

    async fn watch(&self, request: Request<wire::WatchRequest>) -> Answer<Self::WatchStream> {
        let address = request.local_addr().ok_or_else(|| Status::internal("no address"))?.ip();
        let interval = Duration::from_millis(request.into_inner().interval_ms.max(1).into());
        let (world, mut changed) = (self.0.clone(), self.0.changed.subscribe());
        let (sender, statuses) = mpsc::channel(1);
        tokio::spawn(async move {
            let mut last;
            loop {
                let Some(status) = world.status_of(address) else { return };
                last = Some(status.clone());
                if sender.send(Ok(status)).await.is_err() {
                    return;
                }
                // The interval, or news of this very broker.
                let news = async { while changed.changed().await.is_ok() && world.status_of(address) == last {} };
                let _ = tokio::time::timeout(interval, news).await; // both lead to the next status
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(statuses))))
    }

    async fn promote(&self, _: Request<wire::PromoteRequest>) -> Answer<wire::PromoteReply> {
        Ok(Response::new(wire::PromoteReply {}))
    }

    async fn follow(&self, _: Request<wire::FollowRequest>) -> Answer<wire::FollowReply> {
        Ok(Response::new(wire::FollowReply {}))
    }

    async fn hand_over(&self, _: Request<wire::HandOverRequest>) -> Answer<wire::HandOverReply> {
        Err(Status::unimplemented("a stand-in"))
    }

    async fn administer(&self, _: Request<wire::AdministerRequest>) -> Answer<wire::AdministerReply> {
        Err(Status::unimplemented("a stand-in"))
    }

    async fn fence(&self, _: Request<wire::FenceRequest>) -> Answer<wire::FenceReply> {
        Err(Status::unimplemented("a stand-in"))
    }

    async fn read_definitions(&self, _: Request<wire::ReadDefinitionsRequest>) -> Answer<Self::ReadDefinitionsStream> {
        Err(Status::unimplemented("a stand-in"))
    }
}
