//! The operator's part in a local cluster: hears every broker and every process's end, decides by the election crate at
//! each change, swaps the Lease, and tells the brokers. It supervises nothing and prints nothing.
//!
//! Nothing slow stands between a death and the swap: what is told goes into bounded queues that are never waited for, and
//! brokers are called only after it, by tasks of their own.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use futures::StreamExt;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tonic::transport::Channel;
use understudy_election::{Decision, Lease, LeaseTracker, Register, Stored, Timings, decide};
use understudy_lease::{LeaseStore, SwapError};
use understudy_proto as proto;
use understudy_proto::control_client::ControlClient;
use understudy_record::{Epoch, Identity, ReplicaName};

use super::events::{BrokerLine, Elected, Event, Events};
use super::view::{Brokers, INTERVAL, Start};
use crate::control::{self, ControlError, Tls};

/// Words that wait for the elector. Nine brokers that speak at each change come to some hundreds a second; it takes
/// microseconds for each, and a watcher that finds the queue full waits.
pub(crate) const MAX_WAITING_WORDS: usize = 1024;
/// Silence and stalls are noticed by asking again, at least so often.
const LONGEST_SLEEP: Duration = Duration::from_millis(100);
/// A decision that wants to be asked again at once is asked again after this.
const SHORTEST_SLEEP: Duration = Duration::from_millis(1);
/// Between two tries to reach a broker that does not answer: at its start it listens within some tens of milliseconds.
const REDIAL: Duration = Duration::from_millis(20);
/// A call that tells a broker to look at the Lease; it would find out by itself.
const PROMOTE_WITHIN: Duration = Duration::from_secs(2);
/// A state that only a person can end is told when it has lasted, since some pass through one for a moment.
const BLOCKED_TOLD_AFTER: Duration = Duration::from_secs(3);
/// A cluster whose last replica takes long to catch up is ready without it.
const READY_WITHOUT_ALL_IN_SYNC: Duration = Duration::from_secs(10);

/// What reaches the elector from the supervisor and from the brokers.
#[derive(Debug)]
pub(crate) enum Heard {
    Started {
        name: ReplicaName,
        pid: u32,
    },
    /// The process was waited for and is no more.
    Ended {
        name: ReplicaName,
        noticed: Instant,
    },
    Said {
        name: ReplicaName,
        start: Start,
        status: Box<proto::Status>,
    },
    /// Its stream broke or could not be had.
    Unheard {
        name: ReplicaName,
        start: Start,
    },
}

/// A broker as the elector reaches it and as people are shown it.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) name: ReplicaName,
    pub(crate) grpc: SocketAddr,
    pub(crate) amqp: SocketAddr,
    /// Over TLS.
    pub(crate) amqps: Option<SocketAddr>,
    pub(crate) http: SocketAddr,
}

pub(crate) struct Plan {
    pub(crate) cluster: String,
    pub(crate) places: Vec<Place>,
    pub(crate) processes_in_set: bool,
    pub(crate) timings: Timings,
    pub(crate) tls: Tls,
}

pub(crate) struct Elector<S> {
    plan: Plan,
    store: S,
    events: Events,
    words: mpsc::Receiver<Heard>,
    /// For the watchers it starts.
    own_words: mpsc::Sender<Heard>,
    origin: Instant,
    tracker: LeaseTracker,
    brokers: Brokers,
    watchers: BTreeMap<ReplicaName, Watcher>,
    told: Told,
    /// When a process's end was noticed that no election has answered yet.
    noticed: Option<Instant>,
    /// A swap that did not go through is not tried again before this.
    not_before: Duration,
}

/// What has been told already.
#[derive(Default)]
struct Told {
    /// The epoch of the Lease that was found, before any of the brokers was started.
    before: Epoch,
    primary: Epoch,
    /// The election whose winner has not said yet that it is primary.
    not_serving: Option<(Epoch, Instant)>,
    in_sync: (Epoch, BTreeSet<ReplicaName>),
    ready: bool,
    answering_since: Option<Duration>,
    blocked: Option<(String, Duration)>,
    blocked_told: bool,
}

struct Watcher {
    client: ControlClient<Channel>,
    task: JoinHandle<()>,
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl<S: LeaseStore> Elector<S> {
    /// `before`: the Lease as it was before any of the brokers was started, which is no news to anybody.
    pub(crate) fn new(plan: Plan, store: S, before: Stored, events: Events) -> (Self, mpsc::Sender<Heard>) {
        let (own_words, words) = mpsc::channel(MAX_WAITING_WORDS);
        let epoch = before.lease().map_or(Epoch(0), Lease::epoch);
        let told = Told { before: epoch, primary: epoch, ..Told::default() };
        let mut tracker = LeaseTracker::default();
        tracker.observe(Duration::ZERO, before);
        let brokers = Brokers::new(&plan.cluster, plan.places.iter().map(|place| place.name.clone()));
        let elector = Self {
            plan,
            store,
            events,
            words,
            own_words: own_words.clone(),
            origin: Instant::now(),
            tracker,
            brokers,
            watchers: BTreeMap::new(),
            told,
            noticed: None,
            not_before: Duration::ZERO,
        };
        (elector, own_words)
    }

    /// Until it is aborted.
    pub(crate) async fn run(mut self) {
        let mut leases = self.store.watch();
        loop {
            let until = self.decide().await;
            self.tell();
            let sleep = until.saturating_sub(self.now()).clamp(SHORTEST_SLEEP, LONGEST_SLEEP);
            tokio::select! {
                Some(word) = self.words.recv() => self.hear(word),
                Some(seen) = leases.next() => self.see(seen),
                () = tokio::time::sleep(sleep) => {}
            }
            // What came meanwhile belongs to the same picture. At most the queue's bound at a time.
            for _ in 0..MAX_WAITING_WORDS {
                let Ok(word) = self.words.try_recv() else { break };
                self.hear(word);
            }
        }
    }

    fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    fn lease(&self) -> Option<&Lease> {
        match self.tracker.register() {
            Register::Held(observed) => Some(&observed.lease),
            _ => None,
        }
    }

    fn hear(&mut self, word: Heard) {
        let now = self.now();
        match word {
            Heard::Started { name, pid } => {
                let start = self.brokers.handle_started(&name, pid);
                if let Err(error) = self.watch(&name, start) {
                    self.note(format!("{name} cannot be watched: {error}"));
                }
            }
            Heard::Ended { name, noticed } => {
                self.watchers.remove(&name);
                self.brokers.handle_ended(&name);
                let holder = self.lease().and_then(Lease::holder);
                if holder.is_some_and(|holder| holder.name == name) {
                    self.noticed = Some(noticed);
                }
            }
            Heard::Said { name, start, status } => {
                if let Err(error) = self.brokers.handle_status(now, &name, start, *status) {
                    tracing::warn!(%name, %error, "a status makes no sense");
                }
            }
            Heard::Unheard { name, start } => self.brokers.handle_reset(now, &name, start),
        }
    }

    fn see(&mut self, seen: Result<Stored, understudy_lease::LeaseError>) {
        match seen {
            Ok(seen) => self.tracker.observe(self.now(), seen),
            Err(error) => tracing::warn!(%error, "the lease cannot be read"),
        }
    }

    fn watch(&mut self, name: &ReplicaName, start: Start) -> Result<(), ControlError> {
        let Some(place) = self.plan.places.iter().find(|place| place.name == *name) else { return Ok(()) };
        let client = control::client(place.grpc, &self.plan.tls)?;
        let task = tokio::spawn(watch(name.clone(), start, client.clone(), self.own_words.clone()));
        self.watchers.insert(name.clone(), Watcher { client, task });
        Ok(())
    }

    /// Decides and carries the decision out; returns when to ask again even if nothing changes.
    async fn decide(&mut self) -> Duration {
        let now = self.now();
        if now < self.not_before {
            return self.not_before;
        }
        let view = self.brokers.view(now, self.tracker.register(), self.plan.processes_in_set, self.plan.timings);
        let called_for = self.noticed.unwrap_or_else(Instant::now);
        let decision = decide(now, &view);
        if self.noticed.is_some() {
            tracing::debug!(?decision, since_noticed = ?called_for.elapsed());
        }
        if !matches!(decision, Decision::Blocked { .. }) {
            self.told.blocked = None;
        }
        match decision {
            Decision::Wait { until, .. } => return until.unwrap_or(Duration::MAX),
            Decision::Elect { expected, lease, candidate, reason } => match self.store.swap(&expected, &lease).await {
                Ok(version) => {
                    let elected = Elected { within: called_for.elapsed() };
                    self.tracker.observe(self.now(), Stored::Held(lease.clone(), version));
                    self.promote(&lease, &candidate);
                    self.tell_primary(&lease, &candidate, reason.to_string(), Some(elected));
                }
                Err(error) => self.look_again(&error).await,
            },
            Decision::Create { .. } => match self.store.create().await {
                Ok(version) => self.tracker.observe(self.now(), Stored::Blank(version)),
                Err(error) => self.look_again(&error).await,
            },
            Decision::Blocked { reason } => self.note_blocked(now, reason.to_string()),
        }
        Duration::MAX
    }

    /// Somebody else changed the Lease, or it is not known who did: decides anew on what is seen.
    async fn look_again(&mut self, error: &SwapError) {
        tracing::info!(%error, "an election did not go through");
        if !matches!(error, SwapError::Conflict) {
            self.not_before = self.now() + LONGEST_SLEEP;
        }
        let seen = self.store.read().await;
        self.see(seen);
    }

    /// Tells the winner, and then the others, that the Lease has changed. Nobody waits for the answers.
    fn promote(&self, lease: &Lease, winner: &Identity) {
        let request = proto::PromoteRequest {
            epoch: lease.epoch().0,
            primary: Some(proto::Identity {
                name: winner.name.to_string(),
                store: winner.store.to_string(),
                process: winner.process.to_string(),
            }),
        };
        let (first, others): (Vec<_>, Vec<_>) = self.watchers.iter().partition(|(name, _)| **name == winner.name);
        for (name, watcher) in first.into_iter().chain(others) {
            let (name, mut client) = (name.clone(), watcher.client.clone());
            let mut request = tonic::Request::new(request.clone());
            request.set_timeout(PROMOTE_WITHIN);
            tokio::spawn(async move {
                if let Err(error) = client.promote(request).await {
                    tracing::debug!(%name, %error, "not told of the election; it will see the lease");
                }
            });
        }
    }

    /// Tells what has changed and has not been told.
    fn tell(&mut self) {
        let Some(lease) = self.lease().cloned() else { return };
        let Some(holder) = lease.holder() else { return };
        if lease.epoch() > self.told.primary {
            let reason = match self.told.primary {
                Epoch(0) => "a new cluster: elected by the brokers themselves",
                _ => "elected by the brokers themselves: a hand-over, or a backup that took over",
            };
            let reason = reason.to_string();
            self.tell_primary(&lease, holder, reason, None);
        }
        self.tell_serving(holder, lease.epoch());
        self.tell_in_sync(&lease);
        self.tell_ready(holder, &lease);
    }

    fn tell_primary(&mut self, lease: &Lease, holder: &Identity, reason: String, elected: Option<Elected>) {
        let (name, epoch) = (holder.name.to_string(), lease.epoch());
        self.noticed = None;
        self.told.primary = epoch;
        self.told.not_serving = Some((epoch, Instant::now()));
        self.events.tell(Event::Primary { name, epoch, reason, elected });
    }

    fn tell_serving(&mut self, holder: &Identity, epoch: Epoch) {
        let Some((waited_for, since)) = self.told.not_serving else { return };
        if waited_for == epoch && self.serves(holder, epoch) {
            self.told.not_serving = None;
            self.events.tell(Event::Serving { name: holder.name.to_string(), epoch, after: since.elapsed() });
        }
    }

    fn serves(&self, holder: &Identity, epoch: Epoch) -> bool {
        self.brokers.status(&holder.name).is_some_and(|status| {
            let same_process =
                status.identity.as_ref().is_some_and(|identity| identity.process == holder.process.to_string());
            same_process && status.role() == proto::Role::Primary && status.epoch == epoch.0
        })
    }

    fn tell_in_sync(&mut self, lease: &Lease) {
        // The set of an epoch that was before us says nothing of the processes that run now.
        if lease.epoch() <= self.told.before {
            return;
        }
        let names: BTreeSet<_> = lease.in_sync().iter().map(|member| member.name.clone()).collect();
        let in_sync = (lease.epoch(), names);
        if in_sync != self.told.in_sync {
            let names = in_sync.1.iter().map(ToString::to_string).collect();
            self.told.in_sync = in_sync;
            self.events.tell(Event::InSync { names, epoch: lease.epoch() });
        }
    }

    fn tell_ready(&mut self, holder: &Identity, lease: &Lease) {
        if self.told.ready || !self.serves(holder, lease.epoch()) {
            return;
        }
        let Some(brokers) = self.plan.places.iter().map(|place| self.line(place)).collect::<Option<Vec<_>>>() else {
            return;
        };
        let now = self.now();
        let since = *self.told.answering_since.get_or_insert(now);
        // A first election takes all into the set before they follow, so both must be so.
        let all_in_sync = lease.in_sync().len() == self.plan.places.len();
        let all_follow = self.plan.places.iter().all(|place| self.plays_its_part(&place.name));
        if (all_in_sync && all_follow) || now.saturating_sub(since) > READY_WITHOUT_ALL_IN_SYNC {
            self.told.ready = true;
            self.events.tell(Event::Ready { brokers });
        }
    }

    fn plays_its_part(&self, name: &ReplicaName) -> bool {
        let role = self.brokers.status(name).map(proto::Status::role);
        matches!(role, Some(proto::Role::Primary | proto::Role::Backup))
    }

    /// A broker that answers, as it is shown; `None` while it does not.
    fn line(&self, place: &Place) -> Option<BrokerLine> {
        let status = self.brokers.status(&place.name)?;
        let role = role_name(status.role());
        let answers = !matches!(status.role(), proto::Role::Unspecified | proto::Role::Recovering | proto::Role::Ended);
        let pid = self.brokers.pid(&place.name)?;
        answers.then(|| BrokerLine {
            name: place.name.to_string(),
            pid,
            amqp: place.amqp,
            amqps: place.amqps,
            http: place.http,
            role: role.into(),
        })
    }

    fn note_blocked(&mut self, now: Duration, reason: String) {
        match &self.told.blocked {
            Some((known, since)) if *known == reason => {
                if !self.told.blocked_told && now.saturating_sub(*since) > BLOCKED_TOLD_AFTER {
                    self.told.blocked_told = true;
                    self.note(format!(
                        "no primary can be elected: {reason} (here: `understudy force --dir DIR BROKER`)"
                    ));
                }
            }
            _ => {
                self.told.blocked = Some((reason, now));
                self.told.blocked_told = false;
            }
        }
    }

    fn note(&self, text: String) {
        self.events.tell(Event::Note { text });
    }
}

pub(crate) fn role_name(role: proto::Role) -> &'static str {
    match role {
        proto::Role::Unspecified => "unknown",
        proto::Role::Recovering => "recovering",
        proto::Role::Idle => "idle",
        proto::Role::CatchingUp => "catching-up",
        proto::Role::Backup => "backup",
        proto::Role::Primary => "primary",
        proto::Role::Ended => "ended",
    }
}

/// Keeps a stream to one process of a broker and passes on what it says, until aborted.
async fn watch(name: ReplicaName, start: Start, mut client: ControlClient<Channel>, words: mpsc::Sender<Heard>) {
    let interval_ms = u32::try_from(INTERVAL.as_millis()).expect("an interval below an hour");
    loop {
        match client.watch(proto::WatchRequest { interval_ms }).await {
            Ok(stream) => {
                let mut stream = stream.into_inner();
                while let Ok(Some(status)) = stream.message().await {
                    let said = Heard::Said { name: name.clone(), start, status: Box::new(status) };
                    if words.send(said).await.is_err() {
                        return;
                    }
                }
            }
            Err(error) => tracing::trace!(%name, %error, "not reached"),
        }
        if words.send(Heard::Unheard { name: name.clone(), start }).await.is_err() {
            return;
        }
        tokio::time::sleep(REDIAL).await;
    }
}

#[cfg(test)]
mod tests;
