//! Whether this replica and the others make the same of the log: as primary, when which slice of the state is written down
//! for them to compare; as backup, what follows from a difference. What is compared, and how, is the core's part.
//!
//! A backup whose state differs, or that cannot apply a record, leaves the set at once, marks its store and ends: its next
//! process fetches everything anew, however good its log looks. The primary goes on, being the authority; that a backup
//! disagrees is counted, and that all do is said.

use std::collections::BTreeMap;
use std::time::Duration;

use understudy_core::{SCRUB_MESSAGES, ScrubPass};
use understudy_journal::Flaw;
use understudy_record::{Frame, Index, ReplicaName};

use crate::recovery::Inconsistency;
use crate::{Node, Role, ToPrimary};

/// The primary's passes over its state, one in each interval, spread over it.
pub(crate) struct Scrubber {
    /// Zero: never.
    interval: Duration,
    /// With the time it began.
    pass: Option<(ScrubPass, Duration)>,
    next_pass: Duration,
    /// The last record written: the next waits for its commit, so that there are never many that wait.
    last: Index,
}

impl Scrubber {
    pub(crate) fn new(interval: Duration) -> Self {
        Self { interval, pass: None, next_pass: Duration::ZERO, last: Index(0) }
    }

    /// The state is no more.
    pub(crate) fn give_up_pass(&mut self) {
        *self = Self::new(self.interval);
    }
}

/// What is known of differences: this replica's own, and those that backups have found while this process was primary.
#[derive(Debug, Default)]
pub(crate) struct Agreement {
    own: Option<Inconsistency>,
    own_count: u64,
    /// The own state is worth nothing, and the process on its way out.
    given_up: bool,
    /// By which record each backup that has not fetched everything since was found to differ.
    open: BTreeMap<ReplicaName, Index>,
    counts: BTreeMap<ReplicaName, u64>,
}

impl Agreement {
    /// Of this replica, until it has fetched everything anew.
    pub(crate) fn own(&self) -> Option<&Inconsistency> {
        self.own.as_ref()
    }

    pub(crate) fn own_count(&self) -> u64 {
        self.own_count
    }

    /// By backup.
    pub(crate) fn counts(&self) -> &BTreeMap<ReplicaName, u64> {
        &self.counts
    }

    pub(crate) fn found(&mut self, inconsistency: Inconsistency) {
        // The log is read again whenever a catch-up breaks: it says the same again.
        if self.own.as_ref().is_none_or(|own| own.at != inconsistency.at) {
            self.own_count += 1;
        }
        self.own = Some(inconsistency);
    }

    pub(crate) fn mended(&mut self) {
        self.own = None;
    }

    /// A backup says so, when it leaves and each time it comes back, until it has fetched everything. `others`: all backups.
    pub(crate) fn disagrees(&mut self, follower: &ReplicaName, at: Index, reason: &str, others: usize) {
        if self.open.insert(follower.clone(), at) == Some(at) {
            return;
        }
        *self.counts.entry(follower.clone()).or_default() += 1;
        tracing::error!(%follower, %at, "a backup's state is not what this primary has, so it fetches everything anew: {reason}");
        if self.open.len() >= others {
            tracing::error!(
                "every backup's state differs from this primary's, which may itself be the one that is wrong; it goes on, \
                 since what it has is what counts. Compare the queues with what is expected, and hand over if in doubt \
                 once a backup is in sync"
            );
        }
    }

    pub(crate) fn agrees(&mut self, follower: &ReplicaName) {
        self.open.remove(follower);
    }
}

impl Node {
    /// As primary, every tick: the next slice, if it is time. One a tick at most, whatever the interval.
    pub(crate) fn drive_scrub(&mut self) {
        let Role::Primary(role) = &self.role else { return };
        let scrubber = &mut self.scrubber;
        let waits = role.primary.committed() < scrubber.last;
        if scrubber.interval.is_zero() || waits || role.isolated || self.leaving.is_some() {
            return;
        }
        if scrubber.pass.is_none() && self.now >= scrubber.next_pass {
            scrubber.next_pass = self.now + scrubber.interval;
            scrubber.pass = Some((self.core.begin_scrub(), self.now));
        }
        let Some((pass, began)) = &mut scrubber.pass else { return };
        if self.now.saturating_sub(*began) >= scrubber.interval.mul_f64(pass.progress()) {
            scrubber.last = self.core.scrub(pass, SCRUB_MESSAGES, &mut self.out).unwrap_or(scrubber.last);
        }
        if pass.is_done() {
            scrubber.pass = None;
        }
    }

    pub(crate) fn handle_inconsistent_follower(&mut self, follower: &ReplicaName, at: Index, reason: &str) {
        let replicas = &self.config.settings.replicas;
        if replicas.contains(follower) {
            let others = replicas.len().saturating_sub(1);
            self.agreement.disagrees(follower, at, reason, others);
        }
    }

    /// Committed records. Once the state is given up nothing is applied to it any more.
    pub(crate) fn apply(&mut self, frames: &[Frame]) {
        for frame in frames {
            if self.ended || self.agreement.given_up {
                return;
            }
            let at = frame.position.index;
            match frame.decode_record() {
                // Not a difference: the bytes are the primary's, and this build does not know what they say.
                Err(error) => self.end_role(format!("committed record {at} cannot be read: {error}")),
                Ok(record) => {
                    if let Err(error) = self.core.apply(at, &record) {
                        let text = format!("committed record {at} cannot be applied: {error}");
                        self.give_up_state(Inconsistency { at, text });
                    }
                }
            }
        }
    }

    /// After records were applied.
    pub(crate) fn look_for_difference(&mut self) {
        if let Some(difference) = self.core.take_difference()
            && !self.agreement.given_up
        {
            self.give_up_state(Inconsistency { at: difference.index, text: difference.to_string() });
        }
    }

    /// This replica was elected, and has applied all of its log. If that was impossible another must be. If the state is not
    /// what the predecessor had, it counts all the same: there is no other authority left, and the log is whole.
    pub(crate) fn may_take_over(&mut self) -> bool {
        self.ended |= self.agreement.given_up;
        if let Some(difference) = self.core.take_difference().filter(|_| !self.ended) {
            tracing::error!(
                "elected with a state that is not what the last primary had; it counts from here on: {difference}"
            );
        }
        !self.ended
    }

    /// What this replica has made of the log is not what the primary has.
    fn give_up_state(&mut self, inconsistency: Inconsistency) {
        let reason = format!("the state is not what the primary has: {}", inconsistency.text);
        let Role::Backup(role) = &mut self.role else { return };
        if !role.backup.is_clean() {
            // Of a base that is not whole: the store that it was to replace is what it was.
            return self.end_role(reason);
        }
        tracing::error!("{reason}; leaving, to fetch everything anew");
        let at = inconsistency.at;
        role.backup.handle_inconsistent();
        let told = role.say(ToPrimary::Leaving(reason.clone(), Some(at)));
        self.shared.set_failure(reason);
        self.mark_flawed(Flaw::Inconsistent(at));
        self.give_up_checkpoint();
        self.agreement.found(inconsistency);
        self.agreement.given_up = true;
        self.leaving.get_or_insert(self.now);
        // Who hears no primary has nobody to wait for.
        self.ended |= !told;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_counts_once_however_often_it_is_told() {
        let mut agreement = Agreement::default();
        let [one, two] = ["a-1", "a-2"].map(ReplicaName::new);
        for (follower, at) in [(&one, 7), (&one, 7), (&two, 7), (&one, 9), (&one, 9)] {
            agreement.disagrees(follower, Index(at), "it differs", 2);
        }
        agreement.agrees(&one);
        agreement.disagrees(&one, Index(9), "it differs again", 2);
        assert_eq!(agreement.counts().clone(), BTreeMap::from([(one, 3), (two, 1)]));
    }
}
