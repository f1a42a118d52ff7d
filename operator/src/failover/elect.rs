//! The election: what this task sees becomes the view that [`decide`] judges, and what it decides is written, and said to whom it
//! concerns.

use std::time::Duration;

use understudy_crds::{Durability, Promotion};
use understudy_election::{Contact, Decision, FailoverReason, Force, Spec, Stored, Timings, View, decide};
use understudy_lease::{LeaseStore, SwapError};
use understudy_proto::{self as wire, wire_identity};
use understudy_record::ReplicaName;

use super::peer::Command;
use super::task::{Task, timestamp};
use crate::status;

/// After a swap that failed, so that an API server in trouble is not asked in a loop.
const SWAP_RETRY_AFTER: Duration = Duration::from_millis(200);
/// The word for a forced election (`FailoverReason::kind`).
const FORCED: &str = "Forced";

impl Task {
    fn view(&self, now: Duration) -> View {
        let cluster = self.cluster();
        let register = self.tracker.register().clone();
        let forced = match self.switchover.forced(&self.picture()) {
            Some(name) => Force::Named(name.clone()),
            None if cluster.forced_recovery == Some(self.known_epoch()) => Force::Highest,
            None => Force::No,
        };
        let spec = Spec {
            replicas: cluster.pod_names().map(|name| ReplicaName::new(&name)).collect(),
            processes_in_set: cluster.durability == Durability::Replicated,
            preferred: cluster.preferred_primary.as_deref().map(ReplicaName::new),
            forced,
            promotion: match cluster.promotion {
                Promotion::Automatic => understudy_election::Promotion::Automatic,
                Promotion::Manual => understudy_election::Promotion::Manual { to: self.switchover.named().cloned() },
            },
            fenced: cluster.orders.fenced.iter().map(|name| ReplicaName::new(name)).collect(),
        };
        let timings = Timings {
            lease_duration: cluster.failover.lease_duration,
            backup_timeout: cluster.failover.backup_timeout,
            stall_timeout: cluster.failover.stall_timeout,
        };
        self.sight.view(now, register, spec, timings)
    }

    pub(super) async fn elect(&mut self) -> Option<Duration> {
        let now = self.now();
        let decision = decide(now, &self.view(now));
        // Deadlines move with every message; only another reason is news.
        let changed = match (&self.decision, &decision) {
            (Some(Decision::Wait { reason: before, .. }), Decision::Wait { reason, .. }) => before != reason,
            _ => true,
        };
        self.decision = Some(decision.clone());
        self.note_missed(now);
        match decision {
            Decision::Wait { reason, until } => {
                if changed {
                    tracing::info!(cluster = %self.cluster().name, %reason, "waits");
                }
                self.blocked = None;
                until
            }
            Decision::Blocked { reason } => {
                let text = status::blocked_text(&reason, self.known_epoch());
                if self.blocked.as_ref() != Some(&text) {
                    self.announcer.warning(reason.kind(), "Elect", text.clone());
                    self.blocked = Some(text);
                }
                None
            }
            _ if now < self.act_after => Some(self.act_after),
            Decision::Elect { expected, lease, candidate, reason } => {
                self.own_reason = Some((lease.epoch(), reason.kind(), reason.to_string()));
                self.history.note_decided(now);
                let version = match self.lease.swap(&expected, &lease).await {
                    Ok(version) => version,
                    Err(error) => return Some(self.not_written(&error, &reason).await),
                };
                let took = self.now() - now;
                let (kind, why) = (reason.kind(), reason.to_string());
                crate::metrics::ELECTIONS.with_label_values(&["applied"]).inc();
                crate::metrics::ELECTION_SECONDS.observe(took.as_secs_f64());
                let request = wire::PromoteRequest { epoch: lease.epoch().0, primary: Some(wire_identity(&candidate)) };
                self.peers.send(&candidate.name, Command::Promote(request));
                tracing::info!(cluster = %self.cluster().name, primary = %candidate, epoch = %lease.epoch(), kind, why,
                    took_ms = took.as_millis(), "elected");
                if kind == FORCED {
                    self.announce_forced(&why);
                }
                self.observe(Stored::Held(lease, version));
                // The answer to what is known now is another one: look again at once.
                Some(self.now())
            }
            Decision::Create { candidate, reason } => match self.lease.create().await {
                Ok(version) => {
                    tracing::info!(cluster = %self.cluster().name, %candidate, why = %reason, "a blank Lease created");
                    self.observe(Stored::Blank(version));
                    Some(self.now())
                }
                Err(error) => Some(self.not_written(&error, &reason).await),
            },
        }
    }

    /// Returns when to try again.
    async fn not_written(&mut self, error: &SwapError, reason: &FailoverReason) -> Duration {
        let outcome = match error {
            SwapError::Conflict => "conflict",
            SwapError::Unknown { .. } => "unknown",
            SwapError::Refused { .. } => "refused",
        };
        crate::metrics::ELECTIONS.with_label_values(&[outcome]).inc();
        let kind = reason.kind();
        tracing::warn!(cluster = %self.cluster().name, %error, kind, why = %reason, "election not held");
        self.act_after = self.now() + SWAP_RETRY_AFTER;
        if *error == SwapError::Conflict {
            let seen = self.lease.read().await;
            self.handle_lease(seen);
        }
        self.act_after
    }

    /// Remembers when the primary was first missed: the failover's beginning, as far as the operator knows.
    fn note_missed(&mut self, now: Duration) {
        let Some(holder) = self.held().and_then(|lease| lease.holder().cloned()) else { return };
        let seen = self.sight.replica(&holder.name);
        let there =
            seen.is_some_and(|seen| seen.contact(now) == Contact::Reachable && seen.identity() == Some(&holder));
        let last_heard = match seen.map(|seen| seen.contact(now)) {
            Some(Contact::Lost { since, .. }) => since,
            _ => now,
        };
        match there {
            true => self.history.note_there(),
            false => self.history.note_missed(timestamp(), last_heard),
        }
    }

    pub(super) fn note_serving(&mut self) {
        let now = self.now();
        let Some(lease) = self.held() else { return };
        if status::serving(lease, &self.sight, now).is_some() {
            let epoch = lease.epoch();
            self.history.note_serving(now, timestamp(), epoch);
        }
    }
}
