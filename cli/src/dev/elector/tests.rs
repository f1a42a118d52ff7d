//! The elector against brokers that are scripts behind real gRPC servers with real certificates, and a real local Lease.

use std::pin::Pin;
use std::sync::{Arc, Mutex};

use futures::Stream;
use time::OffsetDateTime;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_stream::wrappers::{TcpListenerStream, WatchStream};
use tonic::transport::{Certificate, Identity as Pem, Server, ServerTlsConfig};
use tonic::{Request, Response, Status};
use understudy_lease::LocalLease;
use understudy_proto::control_server::{Control, ControlServer};

use super::*;
use crate::dev::pki;
use crate::dev::ports::loopback;
use understudy_proto::identity;

/// Far beyond what any step takes.
const SOON: Duration = Duration::from_secs(20);
const NAMES: [&str; 3] = ["dev-0", "dev-1", "dev-2"];

/// Says what it is told to say, and remembers what it was called for.
#[derive(Clone)]
struct Script {
    says: watch::Receiver<proto::Status>,
    promoted: Arc<Mutex<Vec<proto::PromoteRequest>>>,
}

#[tonic::async_trait]
impl Control for Script {
    type ReadDefinitionsStream = Pin<Box<dyn Stream<Item = Result<proto::Definitions, Status>> + Send>>;
    type WatchStream = Pin<Box<dyn Stream<Item = Result<proto::Status, Status>> + Send>>;

    async fn watch(&self, _: Request<proto::WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        Ok(Response::new(Box::pin(WatchStream::new(self.says.clone()).map(Ok))))
    }

    async fn promote(&self, request: Request<proto::PromoteRequest>) -> Result<Response<proto::PromoteReply>, Status> {
        self.promoted.lock().unwrap().push(request.into_inner());
        Ok(Response::new(proto::PromoteReply {}))
    }

    async fn follow(&self, _: Request<proto::FollowRequest>) -> Result<Response<proto::FollowReply>, Status> {
        Err(Status::unimplemented("not in this script"))
    }

    async fn hand_over(&self, _: Request<proto::HandOverRequest>) -> Result<Response<proto::HandOverReply>, Status> {
        Err(Status::unimplemented("not in this script"))
    }

    async fn fence(&self, _: Request<proto::FenceRequest>) -> Result<Response<proto::FenceReply>, Status> {
        Err(Status::unimplemented("not in this script"))
    }

    async fn administer(
        &self,
        _: Request<proto::AdministerRequest>,
    ) -> Result<Response<proto::AdministerReply>, Status> {
        Err(Status::unimplemented("not in this script"))
    }

    async fn read_definitions(
        &self,
        _: Request<proto::ReadDefinitionsRequest>,
    ) -> Result<Response<Self::ReadDefinitionsStream>, Status> {
        Err(Status::unimplemented("not in this script"))
    }
}

struct Broker {
    say: watch::Sender<proto::Status>,
    promoted: Arc<Mutex<Vec<proto::PromoteRequest>>>,
    server: JoinHandle<()>,
}

struct Rig {
    brokers: Vec<Broker>,
    words: mpsc::Sender<Heard>,
    told: mpsc::Receiver<Event>,
    store: LocalLease,
    elector: JoinHandle<()>,
    _dir: tempfile::TempDir,
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.elector.abort();
        self.brokers.iter().for_each(|broker| broker.server.abort());
    }
}

fn status(n: usize, process: u64, role: proto::Role, epoch: u64) -> proto::Status {
    proto::Status {
        cluster: "dev".into(),
        identity: Some(proto::Identity {
            name: NAMES[n].into(),
            store: format!("{:032x}", n + 1),
            process: format!("{process:016x}"),
        }),
        role: role.into(),
        epoch,
        clean: true,
        ..Default::default()
    }
}

fn hears(epoch: u64) -> Option<proto::HeardPrimary> {
    Some(proto::HeardPrimary { primary: None, epoch, lost: None })
}

fn lost(epoch: u64) -> Option<proto::HeardPrimary> {
    Some(proto::HeardPrimary { primary: None, epoch, lost: Some(proto::Lost { since_ms: 0, reset: true }) })
}

async fn rig() -> Rig {
    let dir = tempfile::tempdir().unwrap();
    let tls_dir = dir.path().join("tls");
    pki::ensure(&tls_dir, pki::Use::Peers, OffsetDateTime::now_utc()).unwrap();
    let mut brokers = Vec::new();
    let mut places = Vec::new();
    for (n, name) in NAMES.iter().enumerate() {
        let listener = TcpListener::bind(loopback(0)).await.unwrap();
        let grpc = listener.local_addr().unwrap();
        let (say, says) = watch::channel(status(n, 1, proto::Role::Idle, 0));
        let script = Script { says, promoted: Arc::default() };
        let promoted = script.promoted.clone();
        let read = |file: &str| std::fs::read(tls_dir.join(file)).unwrap();
        let tls = ServerTlsConfig::new()
            .identity(Pem::from_pem(read("tls.crt"), read("tls.key")))
            .client_ca_root(Certificate::from_pem(read("ca.crt")));
        let serving = Server::builder()
            .tls_config(tls)
            .unwrap()
            .add_service(ControlServer::new(script))
            .serve_with_incoming(TcpListenerStream::new(listener));
        let server = tokio::spawn(async move { serving.await.unwrap() });
        brokers.push(Broker { say, promoted, server });
        places.push(Place { name: ReplicaName::new(name), grpc, amqp: grpc, amqps: None, http: grpc });
    }
    let plan = Plan {
        cluster: "dev".into(),
        places,
        processes_in_set: false,
        timings: Timings::default(),
        tls: Tls::read(&tls_dir).unwrap(),
    };
    let (events, told) = Events::channel();
    let store = LocalLease::new(dir.path().join("lease"));
    let (elector, words) = Elector::new(plan, store, Stored::Absent, events);
    let elector = tokio::spawn(elector.run());
    let store = LocalLease::new(dir.path().join("lease"));
    Rig { brokers, words, told, store, elector, _dir: dir }
}

impl Rig {
    async fn start(&self, n: usize) {
        self.words.send(Heard::Started { name: ReplicaName::new(NAMES[n]), pid: 4711 }).await.unwrap();
    }

    fn say(&self, n: usize, status: proto::Status) {
        self.brokers[n].say.send_replace(status);
    }

    /// The next event of a kind.
    async fn told<T>(&mut self, wanted: impl Fn(&Event) -> Option<T>) -> T {
        let found = async {
            loop {
                let event = self.told.recv().await.expect("the elector runs");
                if let Some(found) = wanted(&event) {
                    return found;
                }
            }
        };
        tokio::time::timeout(SOON, found).await.expect("such an event in time")
    }

    async fn told_primary(&mut self) -> (usize, u64, bool) {
        let primary = |event: &Event| match event {
            Event::Primary { name, epoch, elected, .. } => Some((name.clone(), epoch.0, elected.is_some())),
            _ => None,
        };
        let (name, epoch, elected) = self.told(primary).await;
        (NAMES.iter().position(|known| *known == name).unwrap(), epoch, elected)
    }

    async fn await_promoted(&self, n: usize, epoch: u64) {
        let promoted = async {
            while !self.brokers[n].promoted.lock().unwrap().iter().any(|request| request.epoch == epoch) {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(SOON, promoted).await.expect("a call to look at the lease in time");
    }

    /// All brokers start empty, one is elected, all play their parts.
    async fn bootstrap(&mut self) -> usize {
        for n in 0..NAMES.len() {
            self.start(n).await;
        }
        // As brokers do: they say which blank Lease they see.
        let mut leases = self.store.watch();
        let blank = async {
            loop {
                let seen = leases.next().await.expect("a watch does not end").unwrap();
                match seen.blank() {
                    Some(blank) => return blank.to_string(),
                    None => assert_eq!(seen, Stored::Absent, "it is blank first"),
                }
            }
        };
        let blank_lease = tokio::time::timeout(SOON, blank).await.expect("a blank Lease in time");
        for n in 0..NAMES.len() {
            let sees = proto::Status { blank_lease: blank_lease.clone(), ..status(n, 1, proto::Role::Idle, 0) };
            self.say(n, sees);
        }
        let (winner, epoch, elected) = self.told_primary().await;
        assert_eq!((epoch, elected), (1, true));
        self.await_promoted(winner, 1).await;
        self.play(winner, 1);
        winner
    }

    fn play(&self, primary: usize, epoch: u64) {
        for n in 0..NAMES.len() {
            let role = if n == primary { proto::Role::Primary } else { proto::Role::Backup };
            let heard = hears(epoch).filter(|_| n != primary);
            self.say(n, proto::Status { heard, ..status(n, 1, role, epoch) });
        }
    }
}

#[tokio::test]
async fn a_fresh_cluster_gets_its_first_primary_and_is_ready_once_all_play_their_parts() {
    let mut rig = rig().await;
    let winner = rig.bootstrap().await;
    let serving = rig.told(|event| matches!(event, Event::Serving { .. }).then(|| event.clone())).await;
    assert!(matches!(serving, Event::Serving { name, .. } if name == NAMES[winner]));
    let (lease, version) = rig.store.read().await.unwrap().into_held().unwrap();
    // The primary takes the others in, as it would once they have caught up.
    let members = (0..NAMES.len())
        .map(|n| identity(&status(n, 1, proto::Role::Backup, 1).identity.unwrap()).unwrap().member(false));
    let whole = lease.with_set(lease.holder().unwrap(), members.collect()).unwrap();
    rig.store.swap(&version, &whole).await.unwrap();
    let ready = |event: &Event| match event {
        Event::Ready { brokers } => Some(brokers.clone()),
        _ => None,
    };
    let brokers = rig.told(ready).await;
    let roles: Vec<_> = brokers.iter().map(|broker| broker.role.as_str()).collect();
    assert_eq!(roles.iter().filter(|role| **role == "primary").count(), 1, "{roles:?}");
    assert_eq!(roles.iter().filter(|role| **role == "backup").count(), 2, "{roles:?}");
}

#[tokio::test]
async fn a_primary_whose_process_has_ended_is_replaced_and_all_are_told() {
    let mut rig = rig().await;
    let first = rig.bootstrap().await;
    for n in (0..NAMES.len()).filter(|n| *n != first) {
        rig.say(n, proto::Status { heard: lost(1), ..status(n, 1, proto::Role::Backup, 1) });
    }
    let name = ReplicaName::new(NAMES[first]);
    rig.words.send(Heard::Ended { name, noticed: Instant::now() }).await.unwrap();
    let (second, epoch, elected) = rig.told_primary().await;
    assert_ne!(second, first);
    assert_eq!((epoch, elected), (2, true));
    rig.await_promoted(second, 2).await;
    let (lease, _) = rig.store.read().await.unwrap().into_held().unwrap();
    assert_eq!(lease.holder().unwrap().name.as_str(), NAMES[second]);
    assert!(lease.in_sync().iter().all(|member| member.name.as_str() != NAMES[first]), "{:?}", lease.in_sync());
}

#[tokio::test]
async fn an_election_by_somebody_else_is_told_too() {
    let mut rig = rig().await;
    let first = rig.bootstrap().await;
    let second = (first + 1) % NAMES.len();
    let (lease, version) = rig.store.read().await.unwrap().into_held().unwrap();
    let identities: BTreeSet<Identity> =
        (0..NAMES.len()).map(|n| identity(&status(n, 1, proto::Role::Backup, 1).identity.unwrap()).unwrap()).collect();
    let winner = identities.iter().find(|identity| identity.name.as_str() == NAMES[second]).unwrap();
    let handed_over = lease.elect(winner, &identities).unwrap();
    rig.store.swap(&version, &handed_over).await.unwrap();
    rig.play(second, 2);
    assert_eq!(rig.told_primary().await, (second, 2, false));
}
