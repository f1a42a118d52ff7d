//! One cluster's task: waits for whatever changes first, folds it into the sight, decides, carries out.
//!
//! The swap of an election is awaited here: nothing matters more, and it is bounded. Everything else that speaks to the API
//! server runs beside the loop as a job, one of a kind at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures::StreamExt;
use futures::stream::BoxStream;
use k8s_openapi::api::core::v1::Pod;
use kube::api::Api;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, ResourceExt};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use understudy_crds::{BrokerClusterStatus, LastSwitchover, Timestamp, ValidatedCluster};
use understudy_election::{Decision, Lease, LeaseTracker, Register, Stored};
use understudy_lease::{KubernetesLease, LeaseStore};
use understudy_record::{Epoch, Identity, ReplicaName};

use super::Assignment;
use super::actions::LOOKS_WITHIN;
use super::announce::Announcer;
use super::catch_ups::CatchUps;
use super::definitions::Import;
use super::endpoint::PrimaryAddress;
use super::fencing::Fencing;
use super::gauges::Gauges;
use super::history::{Change, History};
use super::moves::{Removal, request};
use super::peer::{PeerEvent, PeerEventKind};
use super::peers::Peers;
use super::pods::PodFacts;
use super::roll::RollStep;
use super::settings::Nudges;
use super::sight::Sight;
use super::switchover::{Request, Switchover, Why};
use crate::names::{Names, labels, owner, selector_text};
use crate::status::CHANGES_EVERY;

/// An election's request to the API server; longer than a busy server takes, shorter than the Lease lasts.
pub(super) const SWAP_TIMEOUT: Duration = Duration::from_secs(2);
pub(super) const JOB_RETRY_AFTER: Duration = Duration::from_millis(500);
/// The EndpointSlice is looked at again this often, in case somebody has changed it and no watch has told.
pub(super) const ENDPOINT_CHECK_EVERY: Duration = Duration::from_secs(120);
pub(super) const HAND_OVER_RETRY_AFTER: Duration = Duration::from_secs(10);
/// The longest between two turns: what only an event would bring forward is not late by more.
const TURN_AT_LEAST_EVERY: Duration = Duration::from_secs(1);
/// Peer events taken in one turn before the loop decides again.
const MAX_EVENTS_A_TURN: usize = 64;

/// Changes of primary while the status cannot be written; later ones are told by the status alone.
const MAX_NEWS: usize = 10;

/// Ends when the registry drops the sender, or aborts it.
pub(super) async fn run(surroundings: Surroundings, assignments: watch::Receiver<Assignment>) {
    let mut task = Task::new(surroundings, assignments);
    task.run().await;
}

/// What a task has beside its assignments.
pub(super) struct Surroundings {
    pub(super) client: Client,
    pub(super) cordoned: watch::Receiver<BTreeSet<String>>,
    pub(super) hold: watch::Sender<u8>,
}

/// A job that has ended.
pub(super) enum Done {
    Published(PrimaryAddress, Result<(), String>),
    Adopted(Result<(), String>),
    Deleted { pod: ReplicaName, uid: String, result: Result<(), String> },
    StatusWritten(Box<BrokerClusterStatus>, Result<(), String>),
    AnnotationRemoved(Result<(), String>),
    Nudged { pod: ReplicaName, result: Result<(), String> },
}

/// What is known of the last change of primary.
#[derive(Clone, Debug)]
pub(super) struct Reign {
    epoch: Epoch,
    holder: Option<Identity>,
}

pub(super) struct Task {
    pub(super) client: Client,
    pub(super) assignments: watch::Receiver<Assignment>,
    pub(super) assignment: Assignment,
    pub(super) names: Names,
    pub(super) lease: KubernetesLease,
    pub(super) announcer: Announcer,
    pub(super) started: Instant,
    /// Nodes that take no pods.
    pub(super) cordoned: watch::Receiver<BTreeSet<String>>,
    /// How many pods there must be, as far as this task knows: see [`Task::hold_pods`].
    pub(super) hold: watch::Sender<u8>,

    pub(super) tracker: LeaseTracker,
    pub(super) sight: Sight,
    /// Pods by name, those that are not looked at (yet) included.
    pub(super) pods: BTreeMap<ReplicaName, PodFacts>,
    pub(super) pods_listed: bool,
    pub(super) listing: Option<BTreeSet<ReplicaName>>,
    pub(super) peers: Peers,

    pub(super) decision: Option<Decision>,
    pub(super) act_after: Duration,
    pub(super) reign: Option<Reign>,
    pub(super) history: History,
    /// Changes of primary that no event has told of yet.
    pub(super) news: Vec<(&'static str, String)>,
    /// Why the next change of primary happens, if it is our doing.
    pub(super) own_reason: Option<(Epoch, &'static str, String)>,
    pub(super) blocked: Option<String>,

    pub(super) jobs: JoinSet<Done>,
    /// The Lease has an owner, as far as is known.
    pub(super) adopted: bool,
    pub(super) adopting: bool,
    pub(super) adopt_after: Duration,
    pub(super) publishing: bool,
    pub(super) published: Option<PrimaryAddress>,
    pub(super) publish_after: Duration,
    pub(super) recheck_endpoint_at: Duration,
    pub(super) roll: RollStep,
    pub(super) deleted: BTreeSet<String>,
    pub(super) handing_over: Option<Duration>,
    pub(super) switchover: Switchover,
    /// Why the hand-over under way was asked for, if it is no roll's: for the metric.
    pub(super) moving_for: Option<Why>,
    pub(super) last_switchover: Option<LastSwitchover>,
    /// What was asked for when this task began, as long as it is and the primary is that of the status: an earlier operator may
    /// have answered it.
    pub(super) inherited: Option<Request>,
    /// The annotation that is to go next.
    pub(super) removal: Option<Removal>,
    pub(super) removing: bool,
    pub(super) remove_after: Duration,
    pub(super) catch_ups: CatchUps,
    pub(super) gauges: Gauges,
    pub(super) import: Import,
    pub(super) fencing: Fencing,
    pub(super) nudges: Nudges,
    pub(super) writing: bool,
    pub(super) written: Option<BrokerClusterStatus>,
    pub(super) written_at: Option<Duration>,
    pub(super) write_after: Duration,
}

impl Task {
    fn new(surroundings: Surroundings, mut assignments: watch::Receiver<Assignment>) -> Self {
        let Surroundings { client, cordoned, hold } = surroundings;
        let assignment = assignments.borrow_and_update().clone();
        let cluster = &assignment.target.cluster;
        let names = Names::of(&cluster.name);
        let lease = KubernetesLease::new(client.clone(), &cluster.namespace, &names.lease(), SWAP_TIMEOUT)
            .with_create_metadata(labels(&cluster.name), Some(owner(cluster)));
        let announcer = Announcer::new(client.clone(), cluster);
        let sight = Sight::new(cluster.name.as_str());
        let written = assignment.status.clone();
        Self {
            history: written.as_ref().map(|status| History::of(&status.failovers)).unwrap_or_default(),
            client,
            assignments,
            names,
            lease,
            announcer,
            started: Instant::now(),
            cordoned,
            hold,
            tracker: LeaseTracker::default(),
            sight,
            pods: BTreeMap::new(),
            pods_listed: false,
            listing: None,
            peers: Peers::new().0,
            decision: None,
            act_after: Duration::ZERO,
            reign: None,
            news: Vec::new(),
            own_reason: None,
            blocked: None,
            jobs: JoinSet::new(),
            adopted: false,
            adopting: false,
            adopt_after: Duration::ZERO,
            publishing: false,
            published: None,
            publish_after: Duration::ZERO,
            recheck_endpoint_at: ENDPOINT_CHECK_EVERY,
            roll: RollStep::Done,
            deleted: BTreeSet::new(),
            handing_over: None,
            switchover: Switchover::default(),
            moving_for: None,
            last_switchover: written.as_ref().and_then(|status| status.last_switchover.clone()),
            inherited: request(cluster),
            removal: None,
            removing: false,
            remove_after: Duration::ZERO,
            catch_ups: CatchUps::new(&cluster.namespace, cluster.name.as_str()),
            fencing: Fencing::default(),
            nudges: Nudges::default(),
            gauges: Gauges::new(&cluster.namespace, cluster.name.as_str()),
            import: Import::of(written.as_ref().and_then(|status| status.definitions.as_ref())),
            writing: false,
            written,
            written_at: None,
            write_after: Duration::ZERO,
            assignment,
        }
    }

    async fn run(&mut self) {
        let (peers, mut events) = Peers::new();
        self.peers = peers;
        let mut leases = self.lease.watch();
        let mut pods = self.watch_pods();
        let (mut is_news, mut turned) = (true, None);
        loop {
            if is_news {
                self.follow_replicas();
                turned = self.turn().await;
            }
            let wake = [turned, self.sight.next_quiet(self.now())].into_iter().flatten().min();
            is_news = true;
            let sleep = async {
                match wake {
                    Some(at) => sleep_until(self.started + at).await,
                    None => pending().await,
                }
            };
            tokio::select! {
                Some(event) = events.recv() => is_news = self.take_events(event, &mut events),
                Some(seen) = leases.next() => self.handle_lease(seen),
                Some(event) = pods.next() => self.handle_pod(event),
                Some(done) = self.jobs.join_next() => match done {
                    Ok(done) => self.handle_done(done),
                    Err(error) => tracing::error!(%error, "a job has failed"),
                },
                changed = self.assignments.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    let assignment = self.assignments.borrow_and_update().clone();
                    if assignment.applied.slice_version != self.assignment.applied.slice_version {
                        self.recheck_endpoint_at = Duration::ZERO;
                    }
                    self.assignment = assignment;
                }
                Ok(()) = self.cordoned.changed() => {}
                () = sleep => {}
            }
        }
    }

    fn watch_pods(&self) -> BoxStream<'static, Result<watcher::Event<Pod>, watcher::Error>> {
        let cluster = self.cluster();
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &cluster.namespace);
        let config = watcher::Config::default().labels(&selector_text(&cluster.name));
        watcher(api, config).backoff(crate::watch_retry::WatchRetry).boxed()
    }

    pub(super) fn cluster(&self) -> &ValidatedCluster {
        &self.assignment.target.cluster
    }

    pub(super) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    pub(super) fn held(&self) -> Option<&Lease> {
        match self.tracker.register() {
            Register::Held(observed) => Some(&observed.lease),
            Register::Unread | Register::Absent { .. } | Register::Blank { .. } => None,
        }
    }

    // ---- what comes in

    /// Takes this event and those that wait behind it: a decision is made on all that is known. True: there is something to decide.
    fn take_events(&mut self, first: PeerEvent, events: &mut mpsc::Receiver<PeerEvent>) -> bool {
        let mut is_news = self.handle_peer(first);
        for _ in 1..MAX_EVENTS_A_TURN {
            let Ok(event) = events.try_recv() else { break };
            is_news |= self.handle_peer(event);
        }
        is_news
    }

    fn handle_peer(&mut self, event: PeerEvent) -> bool {
        let PeerEvent { name, at, kind } = event;
        let at = at.saturating_duration_since(self.started);
        match kind {
            PeerEventKind::Status { status, first } => match self.sight.handle_status(&name, *status, first, at) {
                Err(error) => {
                    tracing::warn!(cluster = %self.cluster().name, %name, %error, "a broker's status makes no sense");
                }
                Ok(is_news) => {
                    if first {
                        self.tell_whom_to_follow(&name);
                    }
                    return is_news;
                }
            },
            PeerEventKind::Lost { how, why } => {
                tracing::debug!(cluster = %self.cluster().name, %name, ?how, why, "stream lost");
                self.sight.handle_lost(&name, how, at);
            }
            PeerEventKind::Administered(result) => self.handle_administered(&name, result),
            PeerEventKind::HandedOver(result) => {
                // Until the Lease shows it, or for a while if it failed.
                self.handing_over = Some(self.now() + HAND_OVER_RETRY_AFTER);
                let is_told_later = self.note_handed_over(&result);
                match result {
                    Ok(reply) => tracing::info!(primary = reply.primary, epoch = reply.epoch, "handed over"),
                    Err(why) if is_told_later => tracing::info!(%name, why, "not handed over"),
                    Err(why) => self.announcer.warning("HandOverFailed", "HandOver", format!("{name}: {why}")),
                }
            }
        }
        true
    }

    pub(super) fn handle_lease(&mut self, seen: Result<Stored, understudy_lease::LeaseError>) {
        match seen {
            Ok(stored) => self.observe(stored),
            Err(error) => tracing::warn!(cluster = %self.cluster().name, %error, "Lease"),
        }
    }

    pub(super) fn observe(&mut self, stored: Stored) {
        let now = self.now();
        self.tracker.observe(now, stored);
        let Some(lease) = self.held() else {
            self.adopted = false;
            return;
        };
        let reign = Reign { epoch: lease.epoch(), holder: lease.holder().cloned() };
        let before = self.reign.replace(reign.clone());
        match before {
            Some(before) if before.epoch == reign.epoch && before.holder == reign.holder => {}
            before => self.handle_new_reign(before, &reign),
        }
    }

    /// The Lease names another primary, or it was read for the first time.
    fn handle_new_reign(&mut self, before: Option<Reign>, reign: &Reign) {
        let previous = self.assignment.status.as_ref().filter(|_| before.is_none());
        let known_epoch = previous.and_then(|status| status.epoch).and_then(|epoch| u64::try_from(epoch).ok());
        let from = match &before {
            Some(before) => before.holder.as_ref().map(|holder| holder.name.to_string()),
            None => previous.and_then(|status| status.primary.clone()),
        };
        for name in self.sight.replicas().keys().cloned().collect::<Vec<_>>() {
            self.tell_whom_to_follow(&name);
        }
        (self.publish_after, self.handing_over) = (Duration::ZERO, None);
        self.switchover.note_moved(self.now());
        self.import.note_moved();
        let already_told = before.is_none() && known_epoch == Some(reign.epoch.0);
        self.inherited = self.inherited.take().filter(|_| already_told);
        let Some(holder) = reign.holder.as_ref().filter(|_| !already_told) else { return };
        let own = self.own_reason.take().filter(|(epoch, ..)| *epoch == reign.epoch);
        let watched = before.is_some() || from.is_none();
        let is_own = own.is_some();
        let (reason, why) = match own {
            Some((_, reason, why)) => (reason, why),
            None if !watched => ("ElectedMeanwhile", "elected while no operator ran".to_owned()),
            None if from.is_some() && !self.history.is_missed() => {
                ("Switchover", "the one before handed over".to_owned())
            }
            None => ("ElectedByBrokers", "elected by the brokers themselves".to_owned()),
        };
        let note = match &from {
            Some(from) if *from != holder.name.as_str() => {
                format!("{} takes over from {from} as primary of epoch {}: {why}", holder.name, reign.epoch)
            }
            _ => format!("{} is primary of epoch {}: {why}", holder.name, reign.epoch),
        };
        let event_reason = if from.is_some() { "PrimaryChanged" } else { "PrimaryElected" };
        // Told once the status has it: an operator that ends in between would tell it again, and its next one.
        if self.news.len() < MAX_NEWS {
            self.news.push((event_reason, note));
        }
        let change = Change {
            from,
            to: holder.name.to_string(),
            epoch: reign.epoch,
            reason: reason.to_owned(),
            watched,
            own: is_own,
        };
        self.history.begin(self.now(), timestamp(), change);
    }

    fn handle_pod(&mut self, event: Result<watcher::Event<Pod>, watcher::Error>) {
        match event {
            Ok(watcher::Event::Apply(pod)) => self.pod_seen(&pod),
            Ok(watcher::Event::Delete(pod)) => {
                let name = ReplicaName::new(&pod.name_any());
                self.pods.remove(&name);
                self.sight.handle_pod_deleted(&name);
            }
            Ok(watcher::Event::Init) => self.listing = Some(BTreeSet::new()),
            Ok(watcher::Event::InitApply(pod)) => {
                if let Some(listing) = &mut self.listing {
                    listing.insert(ReplicaName::new(&pod.name_any()));
                }
                self.pod_seen(&pod);
            }
            Ok(watcher::Event::InitDone) => {
                let existing = self.listing.take().unwrap_or_default();
                self.pods.retain(|name, _| existing.contains(name));
                self.pods_listed = true;
                self.sight.handle_pods_listed(&existing.into_iter().collect::<Vec<_>>());
            }
            Err(error) => tracing::warn!(cluster = %self.cluster().name, %error, "pods"),
        }
    }

    fn pod_seen(&mut self, pod: &Pod) {
        let (name, facts) = (ReplicaName::new(&pod.name_any()), PodFacts::of(pod));
        self.sight.handle_pod(&name, facts.clone());
        self.pods.insert(name, facts);
    }

    fn handle_done(&mut self, done: Done) {
        let now = self.now();
        match done {
            Done::Published(address, result) => {
                self.publishing = false;
                match result {
                    Ok(()) => {
                        self.history.note_routed(now, address.epoch);
                        self.published = Some(address);
                    }
                    Err(error) => {
                        tracing::warn!(cluster = %self.cluster().name, error, "EndpointSlice");
                        self.publish_after = now + JOB_RETRY_AFTER;
                    }
                }
            }
            Done::Adopted(result) => {
                self.adopting = false;
                self.adopted = result.is_ok();
                if let Err(error) = result {
                    tracing::debug!(cluster = %self.cluster().name, error, "Lease not adopted");
                    self.adopt_after = now + JOB_RETRY_AFTER;
                }
            }
            Done::Deleted { pod, uid, result } => match result {
                Ok(()) => self.announcer.normal("PodReplaced", "Roll", format!("{pod} is outdated and is replaced")),
                Err(error) => {
                    tracing::warn!(cluster = %self.cluster().name, error, "pod not deleted");
                    self.deleted.remove(&uid);
                }
            },
            Done::Nudged { pod, result } => self.handle_nudged(&pod, result),
            Done::AnnotationRemoved(result) => self.handle_annotation_removed(result),
            Done::StatusWritten(status, result) => {
                self.writing = false;
                self.written_at = Some(now);
                match result {
                    Ok(()) => {
                        for (reason, note) in self.news.drain(..) {
                            self.announcer.normal(reason, "Elect", note);
                        }
                        self.announce_alarms(&status);
                        self.written = Some(*status);
                    }
                    Err(error) => {
                        tracing::warn!(cluster = %self.cluster().name, error, "status");
                        self.write_after = now + CHANGES_EVERY;
                    }
                }
            }
        }
    }

    // ---- what goes out

    /// Decides and carries out; says when to look again even if nothing comes.
    async fn turn(&mut self) -> Option<Duration> {
        self.note_request();
        let decided_until = self.elect().await;
        self.note_serving();
        self.publish_endpoint();
        self.adopt_lease();
        self.switch();
        self.fence();
        self.hurry_settings();
        self.hold_pods();
        self.import_definitions();
        self.roll();
        self.write_status();
        let now = self.now();
        let deadlines = [
            decided_until,
            Some(now + TURN_AT_LEAST_EVERY),
            Some(self.recheck_endpoint_at),
            Some(self.publish_after).filter(|_| !self.publishing),
            Some(self.write_after),
            Some(LOOKS_WITHIN),
            Some(self.adopt_after),
            self.handing_over,
            self.switchover.wakes_at(),
            Some(self.remove_after),
            Some(self.import.wakes_at()),
        ];
        deadlines.into_iter().flatten().filter(|at| *at > now).min()
    }

    /// That of the next primary.
    pub(super) fn held_epoch_after(&self) -> Epoch {
        Epoch(self.known_epoch().saturating_add(1))
    }

    /// The last epoch that is known, though the Lease may be gone or was not read yet.
    pub(super) fn known_epoch(&self) -> u64 {
        match self.tracker.register() {
            Register::Held(observed) => observed.lease.epoch().0,
            Register::Absent { last: Some(last), .. } | Register::Blank { last: Some(last), .. } => last.epoch().0,
            Register::Absent { last: None, .. } | Register::Blank { last: None, .. } | Register::Unread => {
                let written = self.written.as_ref().and_then(|status| status.epoch);
                written.and_then(|epoch| u64::try_from(epoch).ok()).unwrap_or(0)
            }
        }
    }
}

pub(super) fn timestamp() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_unix_ms(i64::try_from(since.as_millis()).unwrap_or(0))
}
