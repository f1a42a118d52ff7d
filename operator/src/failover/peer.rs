//! The stream to one broker: dialled, read, dialled again, for as long as the replica exists. Reports what came and how it
//! was lost; judges nothing.
//!
//! A broker is dialled at its pod's address, under the name its certificate carries: no name service has to answer first.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, timeout};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity as TlsIdentity};
use understudy_election::Loss;
use understudy_proto as wire;
use understudy_proto::control_client::ControlClient;
use understudy_record::ReplicaName;

use super::sight::REPORT_INTERVAL;
use crate::build::TlsMaterial;
use crate::names::GRPC_PORT;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Between two attempts. Short: a failover waits for the stream of the replica that comes back.
const REDIAL_AFTER: Duration = Duration::from_millis(100);
/// The pause doubles up to this with each attempt in vain, and is short again when the pod's container is another one: what is
/// down for long, in many clusters at once, must not keep the operator busy.
const REDIAL_AT_MOST: Duration = Duration::from_millis(1_600);
/// A stream that brings nothing for this long is given up, and a new one tried: six reports have not come.
const GIVE_UP_AFTER: Duration = Duration::from_secs(3);
const CALL_TIMEOUT: Duration = Duration::from_secs(2);
/// A hand-over waits for the backup to have the whole log.
const HAND_OVER_TIMEOUT: Duration = Duration::from_secs(30);
/// In one request: the broker takes no more than five times as many.
const CHANGES_PER_REQUEST: usize = 200;
/// Until what was changed is on every replica in sync.
const ADMINISTER_TIMEOUT: Duration = Duration::from_secs(15);
/// Commands waiting for one peer: at most an election, whom to follow and a hand-over, each once.
pub(crate) const MAX_COMMANDS: usize = 8;

/// Where a broker is, and how to speak to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) ip: IpAddr,
    /// Pod and container. Another one is dialled anew, so that the first status of a stream is that of a process which
    /// started after its predecessor was known to have ended.
    pub(crate) life: (String, Option<String>),
    /// The name in its certificate.
    pub(crate) host: String,
    pub(crate) tls: TlsMaterial,
}

#[derive(Debug)]
pub(crate) enum Command {
    Promote(wire::PromoteRequest),
    Follow(wire::FollowRequest),
    HandOver(wire::HandOverRequest),
    Fence(wire::FenceRequest),
    /// All of these, in order, in as many requests as it takes.
    Administer(Vec<wire::AdminChange>),
}

#[derive(Debug)]
pub(crate) struct PeerEvent {
    pub(crate) name: ReplicaName,
    pub(crate) at: Instant,
    pub(crate) kind: PeerEventKind,
}

#[derive(Debug)]
pub(crate) enum PeerEventKind {
    /// `first`: the first of a new stream.
    Status {
        status: Box<wire::Status>,
        first: bool,
    },
    Lost {
        how: Loss,
        why: String,
    },
    HandedOver(Result<wire::HandOverReply, String>),
    Administered(Result<Vec<wire::AdminOutcome>, String>),
}

/// One broker's stream, until the task is aborted or everything it speaks to is gone.
pub(crate) struct Peer {
    pub(crate) name: ReplicaName,
    pub(crate) addresses: watch::Receiver<Option<Address>>,
    pub(crate) commands: mpsc::Receiver<Command>,
    pub(crate) events: mpsc::Sender<PeerEvent>,
}

/// Why a stream ended.
enum End {
    /// The replica, or the task that wanted it, is gone.
    Closed,
    /// It is somewhere else now.
    Moved,
    Lost {
        how: Loss,
        why: String,
    },
}

impl Peer {
    pub(crate) async fn run(mut self) {
        while let Some(address) = self.address().await {
            if !self.stay_with(&address).await {
                return;
            }
        }
    }

    /// Until the broker is somewhere else. False: nobody wants to hear of it any more.
    async fn stay_with(&mut self, address: &Address) -> bool {
        // Made once: it reads keys and certificates.
        let endpoint = endpoint(address);
        let mut pause = REDIAL_AFTER;
        loop {
            let mut heard = false;
            let end = match &endpoint {
                Ok(endpoint) => self.follow(endpoint, &mut heard).await,
                Err(error) => End::Lost { how: Loss::Silent, why: with_causes(error) },
            };
            let (how, why) = match end {
                End::Closed => return false,
                End::Moved => return true,
                End::Lost { how, why } => (how, why),
            };
            if self.report(PeerEventKind::Lost { how, why }).await.is_err() {
                return false;
            }
            if heard {
                pause = REDIAL_AFTER;
            }
            tokio::select! {
                () = sleep(pause) => {}
                changed = self.addresses.changed() => return changed.is_ok(),
            }
            pause = REDIAL_AT_MOST.min(pause * 2);
        }
    }

    /// Waits until there is an address.
    async fn address(&mut self) -> Option<Address> {
        let found = self.addresses.wait_for(Option::is_some).await.ok()?;
        let address = found.clone();
        drop(found);
        self.addresses.mark_unchanged();
        address
    }

    /// `heard`: whether anything came.
    async fn follow(&mut self, endpoint: &Endpoint, heard: &mut bool) -> End {
        let connected = tokio::select! {
            connected = connect(endpoint) => connected,
            changed = self.addresses.changed() => {
                return if changed.is_err() { End::Closed } else { End::Moved };
            }
        };
        let mut client = match connected {
            Ok(channel) => ControlClient::new(channel),
            Err(end) => return end,
        };
        let interval_ms = u32::try_from(REPORT_INTERVAL.as_millis()).unwrap_or(u32::MAX);
        let watch = timeout(GIVE_UP_AFTER, client.watch(wire::WatchRequest { interval_ms })).await;
        let mut stream = match watch {
            Ok(Ok(response)) => response.into_inner(),
            Ok(Err(status)) => return lost(&status),
            Err(_) => return End::Lost { how: Loss::Silent, why: "no answer".into() },
        };
        loop {
            tokio::select! {
                message = timeout(GIVE_UP_AFTER, stream.message()) => {
                    let status = match message {
                        Ok(Ok(Some(status))) => Box::new(status),
                        Ok(Ok(None)) => return End::Lost { how: Loss::Reset, why: "the broker ended the stream".into() },
                        Ok(Err(status)) => return lost(&status),
                        Err(_) => return End::Lost { how: Loss::Silent, why: "nothing came".into() },
                    };
                    let first = !std::mem::replace(heard, true);
                    if self.report(PeerEventKind::Status { status, first }).await.is_err() {
                        return End::Closed;
                    }
                }
                command = self.commands.recv() => match command {
                    Some(command) => self.call(client.clone(), command),
                    None => return End::Closed,
                },
                changed = self.addresses.changed() => {
                    return if changed.is_err() { End::Closed } else { End::Moved };
                }
            }
        }
    }

    /// Carried out beside the stream, so that a slow answer delays no report.
    fn call(&self, mut client: ControlClient<Channel>, command: Command) {
        let (name, events) = (self.name.clone(), self.events.clone());
        tokio::spawn(async move {
            match command {
                // Both only hasten what the broker learns from the Lease anyway.
                Command::Promote(request) => match timeout(CALL_TIMEOUT, client.promote(request)).await {
                    Ok(Ok(_)) => {}
                    Ok(Err(status)) => tracing::debug!(%name, %status, "promote"),
                    Err(_) => tracing::debug!(%name, "promote: no answer"),
                },
                Command::Follow(request) => match timeout(CALL_TIMEOUT, client.follow(request)).await {
                    Ok(Ok(_)) => {}
                    Ok(Err(status)) => tracing::debug!(%name, %status, "follow"),
                    Err(_) => tracing::debug!(%name, "follow: no answer"),
                },
                Command::HandOver(request) => {
                    let result = match timeout(HAND_OVER_TIMEOUT, client.hand_over(request)).await {
                        Ok(Ok(reply)) => Ok(reply.into_inner()),
                        Ok(Err(status)) => Err(status.message().to_owned()),
                        Err(_) => Err("no answer".to_owned()),
                    };
                    let kind = PeerEventKind::HandedOver(result);
                    let _ = events.send(PeerEvent { name, at: Instant::now(), kind }).await; // nobody waits any more
                }
                Command::Fence(request) => match timeout(CALL_TIMEOUT, client.fence(request)).await {
                    Ok(Ok(_)) => {}
                    Ok(Err(status)) => tracing::warn!(%name, %status, "fence"),
                    Err(_) => tracing::warn!(%name, "fence: no answer"),
                },
                Command::Administer(changes) => {
                    let kind = PeerEventKind::Administered(administer(client, changes).await);
                    let _ = events.send(PeerEvent { name, at: Instant::now(), kind }).await; // nobody waits any more
                }
            }
        });
    }

    async fn report(&self, kind: PeerEventKind) -> Result<(), mpsc::error::SendError<PeerEvent>> {
        self.events.send(PeerEvent { name: self.name.clone(), at: Instant::now(), kind }).await
    }
}

/// One outcome for each change. What was made before a request failed stays: to make it again changes nothing.
async fn administer(
    mut client: ControlClient<Channel>,
    changes: Vec<wire::AdminChange>,
) -> Result<Vec<wire::AdminOutcome>, String> {
    let mut outcomes = Vec::with_capacity(changes.len());
    for changes in changes.chunks(CHANGES_PER_REQUEST) {
        let request = wire::AdministerRequest { changes: changes.to_vec() };
        match timeout(ADMINISTER_TIMEOUT, client.administer(request)).await {
            Ok(Ok(reply)) => outcomes.extend(reply.into_inner().outcomes),
            Ok(Err(status)) => return Err(status.message().to_owned()),
            Err(_) => return Err("no answer".to_owned()),
        }
    }
    Ok(outcomes)
}

fn endpoint(address: &Address) -> Result<Endpoint, tonic::transport::Error> {
    let uri = match address.ip {
        IpAddr::V4(ip) => format!("https://{ip}:{GRPC_PORT}"),
        IpAddr::V6(ip) => format!("https://[{ip}]:{GRPC_PORT}"),
    };
    let tls = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(&address.tls.authorities))
        .identity(TlsIdentity::from_pem(&address.tls.certificate, &address.tls.key))
        .domain_name(&address.host);
    Endpoint::from_shared(uri)?.connect_timeout(CONNECT_TIMEOUT).tls_config(tls)
}

async fn connect(endpoint: &Endpoint) -> Result<Channel, End> {
    match timeout(CONNECT_TIMEOUT * 2, endpoint.connect()).await {
        Ok(Ok(channel)) => Ok(channel),
        // Somebody has to say that there is no process: anything else is silence.
        Ok(Err(error)) => {
            let how = if refused(&error) { Loss::Reset } else { Loss::Silent };
            Err(End::Lost { how, why: with_causes(&error) })
        }
        Err(_) => Err(End::Lost { how: Loss::Silent, why: "no connection".into() }),
    }
}

/// A stream that was there and broke. An answer of the broker's is no loss of the process; nor is a machine that cannot be
/// reached.
fn lost(status: &tonic::Status) -> End {
    use tonic::Code;
    let answered = matches!(
        status.code(),
        Code::PermissionDenied | Code::Unauthenticated | Code::Unimplemented | Code::FailedPrecondition
    );
    let how = if answered || unreachable(status) { Loss::Silent } else { Loss::Reset };
    End::Lost { how, why: format!("{:?}: {}", status.code(), status.message()) }
}

fn refused(error: &(dyn std::error::Error + 'static)) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionRefused, ConnectionReset};
    let kinds = [ConnectionRefused, ConnectionReset, ConnectionAborted, BrokenPipe];
    io_kind(error).is_some_and(|kind| kinds.contains(&kind))
}

fn unreachable(error: &(dyn std::error::Error + 'static)) -> bool {
    use io::ErrorKind::{HostUnreachable, NetworkDown, NetworkUnreachable, TimedOut};
    io_kind(error).is_some_and(|kind| [HostUnreachable, NetworkDown, NetworkUnreachable, TimedOut].contains(&kind))
}

fn io_kind(error: &(dyn std::error::Error + 'static)) -> Option<io::ErrorKind> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            return Some(error.kind());
        }
        cause = error.source();
    }
    None
}

fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_closed_port_is_a_reset_and_names_its_cause() {
        // Nobody listens for gRPC on this loopback address.
        let tls = TlsMaterial { authorities: String::new(), certificate: String::new(), key: String::new() };
        let error = io::Error::from(io::ErrorKind::ConnectionRefused);
        assert!(refused(&error) && !unreachable(&error));
        let address =
            Address { ip: "127.0.0.1".parse().unwrap(), life: ("p-1".into(), None), host: "localhost".into(), tls };
        // An empty certificate is no sign of a dead process.
        let silent = match endpoint(&address) {
            Ok(endpoint) => matches!(connect(&endpoint).await, Err(End::Lost { how: Loss::Silent, .. })),
            Err(_) => true,
        };
        assert!(silent);
    }

    #[test]
    fn an_answer_is_no_loss_of_the_process() {
        let how = |status: tonic::Status| match lost(&status) {
            End::Lost { how, .. } => how,
            End::Closed | End::Moved => unreachable!("a lost stream"),
        };
        assert_eq!(how(tonic::Status::unavailable("connection closed")), Loss::Reset);
        assert_eq!(how(tonic::Status::unknown("h2 protocol error")), Loss::Reset);
        assert_eq!(how(tonic::Status::unauthenticated("who are you")), Loss::Silent);
        let gone = io::Error::from(io::ErrorKind::HostUnreachable);
        assert_eq!(how(tonic::Status::from_error(Box::new(gone))), Loss::Silent);
    }
}
