//! The backups' fallback: failover must not need the operator. While this replica hears no primary it asks the others
//! what they hear, and lets the pure `decide` say whether to stand.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::future::join_all;
use tokio::sync::mpsc::Sender;
use tokio::sync::watch;
use understudy_election::{
    Contact, Decision, Elector, Force, LeaseTracker, Loss, Register, ReplicaView, Report, Spec, Stored, Timings, View,
    decide, whom_to_follow,
};
use understudy_lease::LeaseStore;
use understudy_proto::control_client::ControlClient;
use understudy_proto::{self as wire, Said};
use understudy_record::ReplicaName;

use crate::config::{Config, Promotion};
use crate::peers::{Tls, status_to_wire};
use understudy_node::{ControlEvent, Event, LeaseEvent, NodeStatus, RoleStatus, Settings, Shared};

/// How often a backup without a primary looks around.
const INTERVAL: Duration = Duration::from_millis(200);

/// A peer that has not answered by then is not reached.
const ASK_TIMEOUT: Duration = Duration::from_millis(500);

pub(crate) struct BackupElector {
    pub(crate) config: Arc<Config>,
    pub(crate) started: Instant,
    pub(crate) shared: Arc<Shared>,
    pub(crate) tls: Tls,
    pub(crate) lease: Arc<dyn LeaseStore>,
    pub(crate) settings: watch::Receiver<Settings>,
    pub(crate) events: Sender<Event>,
}

/// What is remembered of a peer between two looks.
#[derive(Default)]
struct Known {
    report: Option<Report>,
    lost: Option<(Duration, Loss)>,
}

impl BackupElector {
    /// For as long as the process lives.
    pub(crate) async fn run(self) {
        let mut tracker = LeaseTracker::default();
        let mut changes = self.lease.watch();
        let mut known: BTreeMap<ReplicaName, Known> = BTreeMap::new();
        let mut tick = tokio::time::interval(INTERVAL);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                change = changes.next() => match change {
                    Some(Ok(seen)) => tracker.observe(self.started.elapsed(), seen),
                    Some(Err(_)) => {}
                    None => return,
                },
                _ = tick.tick() => {
                    let status = self.shared.status.borrow().clone();
                    let misses_primary = matches!(&status.role, RoleStatus::Backup { primary: None, .. });
                    if !misses_primary {
                        known.clear();
                        self.shared.set_waits(None);
                        continue;
                    }
                    self.ask_all(&tracker, &mut known).await;
                    self.act(&tracker, &known, &status).await;
                }
            }
        }
    }

    async fn act(&self, tracker: &LeaseTracker, known: &BTreeMap<ReplicaName, Known>, status: &NodeStatus) {
        let now = self.started.elapsed();
        let Some(view) = self.view(now, tracker, known, status) else { return };
        if let Some((epoch, primary)) = whom_to_follow(&view) {
            _ = self.events.send(Event::Control(ControlEvent::Follow(epoch, primary))).await;
        }
        let (written, what) = match decide(now, &view) {
            Decision::Wait { reason, .. } => return self.shared.set_waits(Some(reason.to_string())),
            Decision::Blocked { reason } => {
                tracing::warn!("nobody can be elected: {reason}");
                return self.shared.set_waits(Some(reason.to_string()));
            }
            Decision::Elect { expected, lease, candidate, reason } => {
                let written = self.lease.swap(&expected, &lease).await;
                let written = written.map(|version| Stored::Held(lease, version));
                (written, format!("{} elected: {reason}", candidate.name))
            }
            Decision::Create { candidate, reason } => {
                let written = self.lease.create().await.map(Stored::Blank);
                (written, format!("a blank Lease created, for {}: {reason}", candidate.name))
            }
        };
        match written {
            Ok(seen) => {
                tracing::info!("{what}");
                _ = self.events.send(Event::Lease(LeaseEvent::Seen(seen))).await;
            }
            Err(error) => tracing::info!("{what}, but {error}"),
        }
    }

    fn view(
        &self,
        now: Duration,
        tracker: &LeaseTracker,
        known: &BTreeMap<ReplicaName, Known>,
        status: &NodeStatus,
    ) -> Option<View> {
        let config = &self.config;
        let own = status_to_wire(status, &config.cluster, now);
        let Ok(Said::Report(own)) = wire::read(&own, &config.cluster, &config.name, now) else { return None };
        let mut replicas =
            BTreeMap::from([(config.name.clone(), ReplicaView { contact: Contact::Reachable, report: Some(own) })]);
        for (name, peer) in known {
            let contact = match peer.lost {
                None => Contact::Reachable,
                Some((since, how)) => Contact::Lost { since, how },
            };
            replicas.insert(name.clone(), ReplicaView { contact, report: peer.report.clone() });
        }
        Some(View {
            elector: Elector::Backup(status.me.clone()),
            register: tracker.register().clone(),
            replicas,
            spec: Spec {
                replicas: self.settings.borrow().replicas.iter().cloned().collect(),
                processes_in_set: config.replicated_only(),
                preferred: None,
                forced: Force::No,
                promotion: match config.promotion {
                    Promotion::Automatic => understudy_election::Promotion::Automatic,
                    Promotion::Manual => understudy_election::Promotion::Manual { to: None },
                },
                ..Spec::default()
            },
            timings: Timings {
                lease_duration: config.lease_duration,
                backup_timeout: config.backup_timeout,
                stall_timeout: config.stall_timeout,
            },
        })
    }

    /// The replicas that there are to be, and those of the set: one may have been told otherwise for the moment.
    async fn ask_all(&self, tracker: &LeaseTracker, known: &mut BTreeMap<ReplicaName, Known>) {
        let mut others: BTreeSet<_> = self.settings.borrow().replicas.iter().cloned().collect();
        if let Register::Held(observed) = tracker.register() {
            others.extend(observed.lease.in_sync().iter().map(|member| member.name.clone()));
        }
        others.remove(&self.config.name);
        known.retain(|name, _| others.contains(name));
        let answers = join_all(others.into_iter().map(async |name| {
            let answer = match self.config.address_of(&name) {
                Some(address) => tokio::time::timeout(ASK_TIMEOUT, self.ask(&address)).await,
                None => Ok(Err(())),
            };
            (name, answer)
        }))
        .await;
        let now = self.started.elapsed();
        for (name, answer) in answers {
            let peer = known.entry(name.clone()).or_default();
            let lost = match answer {
                Ok(Ok(status)) => match wire::read(&status, &self.config.cluster, &name, now) {
                    Ok(Said::Report(report)) => {
                        peer.report = Some(report);
                        None
                    }
                    // It is there, but cannot say yet where its log ends, or is on its way out.
                    Ok(Said::Recovering(_) | Said::Ended(_)) => Some(Loss::Reset),
                    Err(error) => {
                        tracing::warn!("{name} says of itself what cannot be: {error}");
                        Some(Loss::Reset)
                    }
                },
                Ok(Err(())) => Some(Loss::Reset),
                Err(_) => Some(Loss::Silent),
            };
            peer.lost = lost.map(|how| (peer.lost.map_or(now, |(since, _)| since), how));
        }
    }

    async fn ask(&self, address: &str) -> Result<wire::Status, ()> {
        let channel = self.tls.connect(address).await.map_err(|_| ())?;
        let request = wire::WatchRequest { interval_ms: 0 };
        let mut statuses = ControlClient::new(channel).watch(request).await.map_err(|_| ())?.into_inner();
        statuses.message().await.ok().flatten().ok_or(())
    }
}
