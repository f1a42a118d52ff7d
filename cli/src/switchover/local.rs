//! A local cluster: the primary is asked to hand over, or, by force, the Lease is swapped as the election code says.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use tokio::time::timeout;
use understudy_election::{
    Contact, Decision, Elector, Force, LeaseTracker, Loss, ReplicaView, Spec, Timings, View, decide,
};
use understudy_lease::{LeaseStore, LocalLease, SwapError};
use understudy_proto::{self as proto, Said, read, wire_identity};
use understudy_record::{Identity, Member, ReplicaName};

use super::{Consent, Outcome};
use crate::cluster_file::{BrokerEntry, ClusterFile};
use crate::control::{self, Tls};
use crate::status::ask_all;

/// Longer than a hand-over may take: the broker answers with its outcome.
const HAND_OVER_WITHIN: Duration = Duration::from_secs(10);
/// Until the new primary confirms. Its predecessor reads its log again meanwhile.
const SERVES_WITHIN: Duration = Duration::from_secs(30);
/// A status of the new primary comes at least so often.
const INTERVAL_MS: u32 = 20;
/// Somebody else may move the role at the same time: then it is looked at again.
const MAX_LOOKS: u32 = 5;

struct Local {
    file: ClusterFile,
    tls: Tls,
}

/// What the brokers say at one moment.
struct Look {
    answers: Vec<Result<proto::Status, String>>,
}

struct PrimarySeen<'a> {
    name: &'a str,
    status: &'a proto::Status,
}

pub(super) async fn switchover(dir: &Path, to: Option<&str>) -> anyhow::Result<Outcome> {
    let local = Local::read(dir)?;
    if let Some(to) = to {
        local.entry(to)?;
    }
    let mut first = None;
    let mut refusal = String::new();
    for _ in 0..MAX_LOOKS {
        let look = local.look().await;
        let primary = local.primary(&look).context("no broker serves as primary now")?;
        let (name, epoch) = (primary.name, primary.status.epoch);
        let was = first.get_or_insert_with(|| (name.to_owned(), epoch)).clone();
        if to == Some(name) || (to.is_none() && was.0 != name) {
            return Ok(Outcome::already(name, Some(epoch)));
        }
        if was.1 == epoch && !refusal.is_empty() {
            break; // nothing has changed meanwhile: that was the answer
        }
        let asked_at = Instant::now();
        match local.hand_over(name, epoch, to).await {
            Ok(reply) => {
                local.await_serving(&reply.primary, reply.epoch).await?;
                return Ok(Outcome::moved(&reply.primary, reply.epoch, name, asked_at.elapsed()));
            }
            Err(reason) => refusal = reason,
        }
        first = Some((was.0, epoch));
    }
    bail!("not handed over: {refusal}")
}

pub(super) async fn force(dir: &Path, to: &str, consent: Consent) -> anyhow::Result<Outcome> {
    let local = Local::read(dir)?;
    local.entry(to)?;
    let store = LocalLease::new(&local.file.lease_dir);
    let mut consent_given = false;
    for _ in 0..MAX_LOOKS {
        let look = local.look().await;
        let primary = local.primary(&look);
        if let Some(primary) = &primary {
            if primary.name == to {
                return Ok(Outcome::already(to, Some(primary.status.epoch)));
            }
            if primary.in_sync().contains(&to.to_owned()) {
                return switchover(dir, Some(to)).await; // costs nothing
            }
        }
        let decision = local.decide(&look, &store, to).await?;
        let (reason, candidate) = match &decision {
            Decision::Elect { reason, candidate, .. } | Decision::Create { reason, candidate } => {
                (reason.to_string(), candidate)
            }
            Decision::Wait { reason, .. } => bail!("{reason}"),
            Decision::Blocked { reason } => bail!("{reason}"),
        };
        if candidate.name.as_str() != to {
            bail!("{to} does not answer, and {} can be elected without a loss", candidate.name);
        }
        if !consent_given {
            consent.ask(&reason)?;
            consent_given = true;
            continue; // time has passed: decided on what is so now
        }
        let written = match &decision {
            Decision::Elect { expected, lease, .. } => store.swap(expected, lease).await.map(|_| Some(lease.epoch().0)),
            Decision::Create { .. } => store.create().await.map(|_| None),
            Decision::Wait { .. } | Decision::Blocked { .. } => continue,
        };
        match written {
            Ok(Some(epoch)) => {
                local.promote(candidate, epoch).await;
                local.await_serving(to, epoch).await?;
                return Ok(Outcome::forced(to, epoch));
            }
            Ok(None) => {} // a blank one: it is written into at the next look
            Err(SwapError::Conflict) => {}
            Err(error) => return Err(error).context("the Lease was not changed"),
        }
    }
    bail!("the Lease changed each time that {to} was about to be elected")
}

impl Local {
    fn read(dir: &Path) -> anyhow::Result<Self> {
        let file = ClusterFile::read(dir)?;
        let tls = Tls::read(&file.tls_dir)?;
        Ok(Self { file, tls })
    }

    fn entry(&self, name: &str) -> anyhow::Result<&BrokerEntry> {
        let found = self.file.brokers.iter().find(|broker| broker.name == name);
        found.with_context(|| {
            let names: Vec<_> = self.file.brokers.iter().map(|broker| broker.name.as_str()).collect();
            format!("{name:?} is none of the brokers: {}", names.join(", "))
        })
    }

    async fn look(&self) -> Look {
        Look { answers: ask_all(&self.file, &self.tls).await }
    }

    /// The broker of the highest epoch that says it is one.
    fn primary<'a>(&'a self, look: &'a Look) -> Option<PrimarySeen<'a>> {
        let heard = self.file.brokers.iter().zip(&look.answers).filter_map(|(broker, answer)| {
            let status = answer.as_ref().ok().filter(|status| status.role() == proto::Role::Primary)?;
            Some(PrimarySeen { name: &broker.name, status })
        });
        heard.max_by_key(|primary| primary.status.epoch)
    }

    async fn hand_over(&self, primary: &str, epoch: u64, to: Option<&str>) -> Result<proto::HandOverReply, String> {
        let entry = self.entry(primary).map_err(|error| error.to_string())?;
        let mut client = control::client(entry.grpc, &self.tls).map_err(|error| error.to_string())?;
        let request = proto::HandOverRequest { epoch, to: to.unwrap_or_default().to_owned() };
        match timeout(HAND_OVER_WITHIN, client.hand_over(request)).await {
            Ok(Ok(reply)) => Ok(reply.into_inner()),
            Ok(Err(status)) => Err(status.message().to_owned()),
            Err(_) => Err(format!("{primary} did not answer within {} s", HAND_OVER_WITHIN.as_secs())),
        }
    }

    /// Until it has committed the first record of its epoch: from then on it confirms.
    async fn await_serving(&self, name: &str, epoch: u64) -> anyhow::Result<()> {
        let entry = self.entry(name)?;
        let mut client = control::client(entry.grpc, &self.tls)?;
        let serving = async {
            let mut stream = client.watch(proto::WatchRequest { interval_ms: INTERVAL_MS }).await?.into_inner();
            let mut begun_at = None;
            while let Some(status) = stream.message().await? {
                if status.role() != proto::Role::Primary || status.epoch < epoch {
                    continue;
                }
                // Its log ended there, at the latest, when its epoch began.
                let begun_at = *begun_at.get_or_insert(status.last.map_or(0, |last| last.index));
                if status.epoch > epoch || status.committed >= begun_at {
                    return Ok(());
                }
            }
            Err(tonic::Status::unavailable("it ended the stream"))
        };
        let within = SERVES_WITHIN.as_secs();
        let served = timeout(SERVES_WITHIN, serving).await;
        served
            .with_context(|| {
                format!("{name} was elected and confirms nothing after {within} s: see `understudy status`")
            })?
            .with_context(|| format!("{name} was elected and does not say that it serves"))
    }

    /// A word to the winner, which would see the Lease by itself a moment later.
    async fn promote(&self, winner: &Identity, epoch: u64) {
        let Ok(entry) = self.entry(winner.name.as_str()) else { return };
        let Ok(mut client) = control::client(entry.grpc, &self.tls) else { return };
        let request = proto::PromoteRequest { epoch, primary: Some(wire_identity(winner)) };
        if let Ok(Err(error)) = timeout(HAND_OVER_WITHIN, client.promote(request)).await {
            tracing::debug!(%error, "not told of the election; it will see the Lease");
        }
    }

    async fn decide(&self, look: &Look, store: &LocalLease, to: &str) -> anyhow::Result<Decision> {
        let now = Duration::ZERO; // of a clock that begins with this look
        let mut tracker = LeaseTracker::default();
        tracker.observe(now, store.read().await.context("the Lease cannot be read")?);
        let replicas: BTreeMap<ReplicaName, ReplicaView> = self
            .file
            .brokers
            .iter()
            .zip(&look.answers)
            .map(|(broker, answer)| {
                let name = ReplicaName::new(&broker.name);
                let said = answer.as_ref().ok().map(|status| read(status, &self.file.cluster, &name, now));
                let view = match said {
                    Some(Ok(Said::Report(report))) => ReplicaView { contact: Contact::Reachable, report: Some(report) },
                    _ => ReplicaView { contact: Contact::Lost { since: now, how: Loss::Silent }, report: None },
                };
                (name, view)
            })
            .collect();
        let view = View {
            elector: Elector::Operator,
            register: tracker.register().clone(),
            spec: Spec {
                replicas: replicas.keys().cloned().collect(),
                processes_in_set: self.file.durability == "replicated",
                preferred: None,
                forced: Force::Named(ReplicaName::new(to)),
                ..Spec::default()
            },
            replicas,
            timings: Timings::default(),
        };
        Ok(decide(now, &view))
    }
}

impl PrimarySeen<'_> {
    fn in_sync(&self) -> Vec<String> {
        let members = self.status.in_sync.iter().filter_map(|member| member.parse::<Member>().ok());
        members.map(|member| member.name.to_string()).collect()
    }
}
