//! The primary's hand on the Lease: renewals, changes of the in-sync set, the hand-over, one request at a time.
//!
//! It makes no request itself. It knows what an answer, or no answer, proves (rule 3), and when the Lease says that this
//! primary is one no longer (rule 5).

use std::collections::BTreeSet;
use std::time::Duration;

use understudy_election::{Incarnation, Lease, NotHolder, Stored, Version};
use understudy_record::variant::{Variant, is_broken};
use understudy_record::version::ClusterVersion;
use understudy_record::{Epoch, Identity};

use crate::commit::{InSyncSet, SwapOutcome};

/// After an error, the pause before the next request: long enough not to press a struggling API server, short enough to
/// be back soon after it is.
const RETRY: Duration = Duration::from_millis(250);

/// Within the Lease's duration. The second comes in time though a request that is not answered takes two seconds and more; and if it
/// is late all the same, nobody stands who hears the primary.
const RENEWALS: u32 = 2;

/// After a conflict the Lease has just been read, so the next try is not a blind one.
const RETRY_AT_ONCE: Duration = Duration::ZERO;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LeaseRequest {
    Read,
    /// Compare-and-swap.
    Swap {
        expected: Version,
        lease: Lease,
    },
    /// The Lease was deleted: a blank one, into which it is then written as it was (rule 7).
    Create,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LeaseAnswer {
    Read(Stored),
    /// The swap or creation took effect.
    Written(Version),
    /// Another write came first; ours has no effect and never will.
    Conflict,
    /// Not applied, and the API server says why.
    Refused(String),
    /// No answer: it may have taken effect, or do so yet.
    Unknown(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeeperOutput {
    /// For [`Primary::handle_outcome`](crate::Primary::handle_outcome).
    Outcome(SwapOutcome),
    /// Another primary, or another epoch (rule 5).
    Demoted { epoch: Epoch, holder: Option<Identity> },
    /// A write of this primary's own has taken effect: it was elected, and after that the Lease was still there (rule 7).
    Held,
    /// The API server did not do it; worth a line in the log.
    Trouble(String),
}

/// The set, or the hand-over, that this primary wants would make no Lease that anybody could read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the Lease cannot be written as this primary wants it: {0}")]
pub struct NoLease(String);

/// What is there in place of the Lease that was deleted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Gone {
    Absent,
    Blank(Version),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LeaseKeeper {
    me: Identity,
    epoch: Epoch,
    duration: Duration,
    /// The newest state known to have been in the store.
    known: Lease,
    version: Version,
    /// A write of this primary's own has taken effect.
    held: bool,
    /// The Lease was deleted.
    gone: Option<Gone>,
    /// The set whose outcome is open.
    wanted: Option<InSyncSet>,
    /// The successor, once this primary wants to leave.
    successor: Option<(Identity, BTreeSet<Identity>)>,
    /// The version to raise the cluster to.
    raise_to: Option<ClusterVersion>,
    in_flight: Option<LeaseRequest>,
    /// A write of ours may be on its way still, though no answer came.
    must_read: bool,
    next_renewal: Duration,
    not_before: Duration,
    last_contact: Duration,
}

impl LeaseKeeper {
    /// `known`: the Lease by which this process was elected.
    pub fn new(now: Duration, me: Identity, known: Lease, version: Version, duration: Duration) -> Self {
        Self {
            me,
            epoch: known.epoch(),
            duration,
            known,
            version,
            held: false,
            gone: None,
            wanted: None,
            successor: None,
            raise_to: None,
            in_flight: None,
            must_read: false,
            next_renewal: now,
            not_before: now,
            last_contact: now,
        }
    }

    /// When the API server last answered.
    pub fn last_contact(&self) -> Duration {
        self.last_contact
    }

    /// The set to write, from [`PrimaryOutput::ProposeSet`](crate::PrimaryOutput::ProposeSet).
    pub fn propose(&mut self, set: InSyncSet) {
        self.wanted = Some(set);
        self.not_before = RETRY_AT_ONCE;
    }

    /// Raises the cluster's version, once nothing else is to be written: nobody waits for it.
    pub fn raise(&mut self, version: ClusterVersion) {
        self.raise_to = Some(version).filter(|version| *version > self.known.cluster_version());
    }

    /// The cluster's version by the newest Lease that is known to have been in the store.
    pub fn cluster_version(&self) -> ClusterVersion {
        self.known.cluster_version()
    }

    /// Gives the role to `successor` by one swap: it and the `reachable` members of the set stay.
    pub fn hand_over(&mut self, successor: Identity, reachable: BTreeSet<Identity>) {
        self.successor = Some((successor, reachable));
        self.not_before = RETRY_AT_ONCE;
    }

    /// Whom this primary wants to be followed by, until the swap that elects it.
    pub fn successor(&self) -> Option<&Identity> {
        self.successor.as_ref().map(|(successor, _)| successor)
    }

    /// The successor is gone. A swap that is on its way may elect it all the same; its outcome is seen like any other.
    pub fn give_up_hand_over(&mut self) {
        self.successor = None;
    }

    /// The set on its way to the Lease, whose outcome is open.
    pub fn proposed(&self) -> Option<&InSyncSet> {
        self.wanted.as_ref()
    }

    /// The Lease was deleted, and nothing stands in one that may be there instead.
    pub fn is_deleted(&self) -> bool {
        self.gone.is_some()
    }

    /// The blank Lease into which this primary may write (rule 7).
    pub fn blank(&self) -> Option<&Incarnation> {
        match &self.gone {
            Some(Gone::Blank(version)) => Some(version.incarnation()),
            Some(Gone::Absent) | None => None,
        }
    }

    /// The next request, if one is due and none is on its way. `may_renew`: the journal makes progress (a primary that
    /// cannot write must not look alive). `hears_all`: every member acknowledges at this epoch, and since there is
    /// [`Self::blank`] has acknowledged something that was written after it was seen (rule 7).
    ///
    /// # Errors
    /// If what should be written would be no Lease. Tried again after a pause.
    pub fn poll_request(
        &mut self,
        now: Duration,
        may_renew: bool,
        hears_all: bool,
    ) -> Result<Option<LeaseRequest>, NoLease> {
        let renewal_due = may_renew && (now >= self.next_renewal || self.raise_to.is_some());
        let due =
            self.must_read || self.gone.is_some() || self.wanted.is_some() || self.successor.is_some() || renewal_due;
        if self.in_flight.is_some() || !due || now < self.not_before {
            return Ok(None);
        }
        let request = match self.gone.clone() {
            _ if self.must_read => LeaseRequest::Read,
            Some(_) if !hears_all => {
                self.not_before = now + RETRY;
                self.must_read = true; // somebody else may write it
                return Ok(None);
            }
            Some(Gone::Absent) => LeaseRequest::Create,
            Some(Gone::Blank(expected)) => {
                let lease = self.known.as_it_was(&self.me, self.duration);
                LeaseRequest::Swap { expected, lease: self.or_pause(now, lease)? }
            }
            None => {
                let lease = self.next_lease();
                LeaseRequest::Swap { expected: self.version.clone(), lease: self.or_pause(now, lease)? }
            }
        };
        self.in_flight = Some(request.clone());
        Ok(Some(request))
    }

    fn or_pause<E: std::fmt::Display>(&mut self, now: Duration, lease: Result<Lease, E>) -> Result<Lease, NoLease> {
        lease.map_err(|error| {
            self.not_before = now + RETRY;
            NoLease(error.to_string())
        })
    }

    /// The answer to the request on its way.
    pub fn handle_answer(&mut self, now: Duration, answer: LeaseAnswer) -> Vec<KeeperOutput> {
        let request = self.in_flight.take();
        self.not_before = RETRY_AT_ONCE;
        let mut out = Vec::new();
        match answer {
            LeaseAnswer::Read(seen) => {
                self.last_contact = now;
                self.must_read = false;
                self.take(now, seen, &mut out);
            }
            LeaseAnswer::Written(version) => {
                self.last_contact = now;
                match request {
                    Some(LeaseRequest::Swap { lease, .. }) => {
                        self.next_renewal = now + self.duration / RENEWALS;
                        self.gone = None;
                        if !self.held && !self.is_deposed_by(&lease) {
                            self.held = true;
                            out.push(KeeperOutput::Held);
                        }
                        self.take(now, Stored::Held(lease, version), &mut out);
                    }
                    Some(LeaseRequest::Create) => self.take(now, Stored::Blank(version), &mut out),
                    Some(LeaseRequest::Read) | None => {}
                }
            }
            LeaseAnswer::Conflict => {
                self.last_contact = now;
                self.must_read = true;
            }
            // What an unanswered request did is settled by the next write: the same version is expected again, so either
            // that one succeeds, and the unanswered one never will, or the version has moved and is read (rule 3).
            LeaseAnswer::Unknown(reason) => {
                self.not_before = now + RETRY;
                if is_broken(Variant::UnknownIsRefused) && self.wanted.take().is_some() {
                    out.push(KeeperOutput::Outcome(SwapOutcome::Refused));
                }
                out.push(KeeperOutput::Trouble(format!("the Lease could not be read or written: {reason}")));
            }
            LeaseAnswer::Refused(reason) => {
                self.not_before = now + RETRY;
                out.push(KeeperOutput::Trouble(format!("the Lease's store refuses a change: {reason}")));
            }
        }
        out
    }

    /// What a watch shows, `None` for no Lease and for a blank one. It may be old: only another primary, or a Lease that is
    /// gone, means anything here.
    pub fn handle_seen(&mut self, seen: Option<&Lease>) -> Vec<KeeperOutput> {
        match seen {
            None => self.must_read = true,
            Some(lease) if self.is_deposed_by(lease) => return vec![Self::demoted(lease)],
            Some(_) => {}
        }
        Vec::new()
    }

    fn take(&mut self, now: Duration, seen: Stored, out: &mut Vec<KeeperOutput>) {
        let (lease, version) = match seen {
            Stored::Held(lease, version) => (lease, version),
            Stored::Absent => return self.gone = Some(Gone::Absent),
            Stored::Blank(version) => return self.gone = Some(Gone::Blank(version)),
        };
        if self.is_deposed_by(&lease) || lease.epoch() < self.epoch {
            // A lower epoch than this primary's own means that the Lease was set back by hand: it is no primary's any more.
            out.push(Self::demoted(&lease));
            return;
        }
        if version == self.version {
            return; // proves nothing about what may still be on its way (rule 3)
        }
        if self.gone.take().is_some() {
            self.next_renewal = now;
        }
        // One that somebody has put back by hand is raised again.
        let raise_to = self.raise_to.max(Some(self.known.cluster_version()));
        self.raise_to = raise_to.filter(|version| *version > lease.cluster_version());
        (self.known, self.version) = (lease, version);
        if self.wanted.as_ref().is_some_and(|wanted| wanted == self.known.in_sync()) {
            self.wanted = None;
            out.push(KeeperOutput::Outcome(SwapOutcome::Applied));
        }
    }

    fn is_deposed_by(&self, lease: &Lease) -> bool {
        lease.epoch() > self.epoch || (lease.epoch() == self.epoch && lease.holder() != Some(&self.me))
    }

    fn demoted(lease: &Lease) -> KeeperOutput {
        KeeperOutput::Demoted { epoch: lease.epoch(), holder: lease.holder().cloned() }
    }

    /// A set on its way comes before the hand-over, since its outcome must be known first; the version comes last.
    fn next_lease(&mut self) -> Result<Lease, NotHolder> {
        if let Some(set) = &self.wanted {
            return self.known.with_set(&self.me, set.clone());
        }
        if let Some((successor, reachable)) = &self.successor {
            if let Ok(lease) = self.known.elect(successor, reachable) {
                return Ok(lease);
            }
            self.successor = None; // it has left the set meanwhile
        }
        if let Some(version) = self.raise_to {
            return self.known.raised(&self.me, version);
        }
        self.known.renewed(&self.me, self.duration)
    }
}

#[cfg(test)]
mod tests {
    use understudy_record::{ProcessId, ReplicaName, StoreId};

    use super::*;

    const LEASE: Duration = Duration::from_secs(3);

    fn replica(number: u64) -> Identity {
        let name = ReplicaName::new(&format!("r{number}"));
        Identity { name, store: StoreId(number.into()), process: ProcessId(number) }
    }

    fn set(numbers: &[u64]) -> InSyncSet {
        numbers.iter().map(|&number| replica(number).member(false)).collect()
    }

    fn version(number: u64) -> Version {
        Version::new(Incarnation::new("1"), number.to_string())
    }

    fn blank(incarnation: u64, number: u64) -> Version {
        Version::new(Incarnation::new(incarnation.to_string()), number.to_string())
    }

    fn at(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// Replica 1 has been elected from the set of 1, 2 and 3; the Lease's version is 10.
    fn keeper() -> LeaseKeeper {
        let lease = Lease::bootstrap(&replica(1), set(&[1, 2, 3]), LEASE).unwrap();
        let mut keeper = LeaseKeeper::new(at(0), replica(1), lease, version(10), LEASE);
        let Ok(Some(LeaseRequest::Swap { .. })) = keeper.poll_request(at(0), true, true) else {
            panic!("renews at once")
        };
        assert_eq!(keeper.handle_answer(at(1), LeaseAnswer::Written(version(11))), [KeeperOutput::Held]);
        keeper
    }

    fn swap_of(keeper: &mut LeaseKeeper, now: Duration) -> (Version, InSyncSet) {
        match keeper.poll_request(now, true, true) {
            Ok(Some(LeaseRequest::Swap { expected, lease })) => (expected, lease.in_sync().clone()),
            other => panic!("a swap is due, not {other:?}"),
        }
    }

    #[test]
    fn renews_in_time_and_only_while_the_journal_makes_progress() {
        let mut k = keeper();
        assert_eq!(k.poll_request(at(500), true, true), Ok(None));
        assert_eq!(k.poll_request(at(1499), true, true), Ok(None), "half of the duration after the last one");
        assert_eq!(k.poll_request(at(1501), false, true), Ok(None));
        assert_eq!(swap_of(&mut k, at(1501)), (version(11), set(&[1, 2, 3])));
    }

    #[test]
    fn an_unanswered_swap_is_settled_by_the_next_that_succeeds() {
        let mut k = keeper();
        k.propose(set(&[1, 2]));
        assert_eq!(swap_of(&mut k, at(10)), (version(11), set(&[1, 2])));
        k.handle_answer(at(20), LeaseAnswer::Unknown("timeout".into()));
        assert_eq!(k.poll_request(at(30), true, true), Ok(None), "not at once");
        assert_eq!(swap_of(&mut k, at(400)), (version(11), set(&[1, 2])), "expects the same version");
        let outcome = k.handle_answer(at(410), LeaseAnswer::Written(version(12)));
        assert_eq!(outcome, [KeeperOutput::Outcome(SwapOutcome::Applied)]);
    }

    #[test]
    fn an_unanswered_swap_that_did_land_is_seen_by_the_moved_version() {
        let mut k = keeper();
        k.propose(set(&[1, 2]));
        let Ok(Some(LeaseRequest::Swap { lease, .. })) = k.poll_request(at(10), true, true) else { panic!() };
        k.handle_answer(at(20), LeaseAnswer::Unknown("timeout".into()));
        swap_of(&mut k, at(400));
        assert_eq!(k.handle_answer(at(410), LeaseAnswer::Conflict), []);
        assert_eq!(k.poll_request(at(420), true, true), Ok(Some(LeaseRequest::Read)));
        let outcome = k.handle_answer(at(430), LeaseAnswer::Read(Stored::Held(lease, version(12))));
        assert_eq!(outcome, [KeeperOutput::Outcome(SwapOutcome::Applied)]);
    }

    #[test]
    fn a_read_that_shows_the_old_version_settles_nothing() {
        let mut k = keeper();
        let old = k.known.clone();
        k.propose(set(&[1, 2]));
        swap_of(&mut k, at(10));
        k.handle_answer(at(20), LeaseAnswer::Conflict);
        assert_eq!(k.poll_request(at(30), true, true), Ok(Some(LeaseRequest::Read)));
        assert_eq!(k.handle_answer(at(40), LeaseAnswer::Read(Stored::Held(old, version(11)))), []);
        assert_eq!(swap_of(&mut k, at(50)), (version(11), set(&[1, 2])), "tried again");
    }

    #[test]
    fn a_conflict_alone_does_not_demote_but_another_holder_does() {
        let mut k = keeper();
        let (old, other) = (k.known.clone(), replica(2));
        swap_of(&mut k, at(1501));
        assert_eq!(k.handle_answer(at(1510), LeaseAnswer::Conflict), []);
        assert_eq!(k.poll_request(at(1520), true, true), Ok(Some(LeaseRequest::Read)));
        let elected = old.elect(&other, &[other.clone()].into()).unwrap();
        let out = k.handle_answer(at(1530), LeaseAnswer::Read(Stored::Held(elected.clone(), version(12))));
        assert_eq!(out, [KeeperOutput::Demoted { epoch: Epoch(2), holder: Some(other) }]);
        assert_eq!(keeper().handle_seen(Some(&old)), [], "an old state of the watch means nothing");
        assert_eq!(keeper().handle_seen(Some(&elected)).len(), 1);
    }

    #[test]
    fn a_deleted_lease_is_written_as_it_was_only_while_every_member_is_heard() {
        let mut k = keeper();
        assert_eq!(k.handle_seen(None), []);
        assert_eq!(k.poll_request(at(100), true, false), Ok(Some(LeaseRequest::Read)));
        k.handle_answer(at(110), LeaseAnswer::Read(Stored::Absent));
        assert_eq!(k.poll_request(at(120), true, false), Ok(None));
        assert_eq!(k.poll_request(at(400), true, false), Ok(Some(LeaseRequest::Read)), "somebody else may have");
        k.handle_answer(at(410), LeaseAnswer::Read(Stored::Absent));
        assert_eq!(k.poll_request(at(420), true, true), Ok(Some(LeaseRequest::Create)), "which says nothing");
        assert_eq!(k.handle_answer(at(430), LeaseAnswer::Written(blank(7, 20))), []);
        assert_eq!(k.blank(), Some(&Incarnation::new("7")));
        let Ok(Some(LeaseRequest::Swap { expected, lease })) = k.poll_request(at(440), true, true) else {
            panic!("writes it")
        };
        assert_eq!((expected, lease.epoch(), lease.in_sync()), (blank(7, 20), Epoch(1), &set(&[1, 2, 3])));
        assert!(lease.given() > lease.epoch(), "somebody may have been elected in the one that is gone");
        k.handle_answer(at(450), LeaseAnswer::Written(version(21)));
        assert!(!k.is_deleted());
        assert_eq!(swap_of(&mut k, at(3000)).0, version(21));
    }

    /// Rule 7: what was decided for one blank Lease is of no use in the next.
    #[test]
    fn a_blank_lease_that_was_deleted_too_is_not_written_into() {
        let mut k = keeper();
        k.handle_seen(None);
        assert_eq!(k.poll_request(at(100), true, true), Ok(Some(LeaseRequest::Read)));
        k.handle_answer(at(110), LeaseAnswer::Read(Stored::Blank(blank(7, 20))));
        assert_eq!(k.blank(), Some(&Incarnation::new("7")));
        assert_eq!(k.poll_request(at(120), true, false), Ok(None), "not all are heard");
        assert_eq!(k.poll_request(at(400), true, true), Ok(Some(LeaseRequest::Read)));
        k.handle_answer(at(410), LeaseAnswer::Read(Stored::Blank(blank(7, 20))));
        assert_eq!(swap_of(&mut k, at(420)).0, blank(7, 20));
        assert_eq!(k.handle_answer(at(430), LeaseAnswer::Conflict), []);
        assert_eq!(k.poll_request(at(440), true, true), Ok(Some(LeaseRequest::Read)));
        k.handle_answer(at(450), LeaseAnswer::Read(Stored::Blank(blank(8, 30))));
        assert_eq!(k.blank(), Some(&Incarnation::new("8")), "for which every member is to be heard anew");
        assert_eq!(k.poll_request(at(460), true, false), Ok(None));
        // What somebody else has written into it meanwhile is what counts.
        let recovered = k.known.elect(&replica(2), &[].into()).unwrap();
        assert_eq!(k.poll_request(at(800), true, true), Ok(Some(LeaseRequest::Read)));
        let out = k.handle_answer(at(810), LeaseAnswer::Read(Stored::Held(recovered, version(31))));
        assert_eq!(out, [KeeperOutput::Demoted { epoch: Epoch(2), holder: Some(replica(2)) }]);
    }

    #[test]
    fn a_write_into_a_blank_lease_whose_answer_was_lost_is_seen_by_the_moved_version() {
        let mut k = keeper();
        k.handle_seen(None);
        assert_eq!(k.poll_request(at(100), true, true), Ok(Some(LeaseRequest::Read)));
        k.handle_answer(at(110), LeaseAnswer::Read(Stored::Blank(blank(7, 20))));
        let Ok(Some(LeaseRequest::Swap { lease, .. })) = k.poll_request(at(120), true, true) else { panic!() };
        k.handle_answer(at(130), LeaseAnswer::Unknown("timeout".into()));
        assert_eq!(swap_of(&mut k, at(500)).0, blank(7, 20));
        k.handle_answer(at(510), LeaseAnswer::Conflict);
        assert_eq!(k.poll_request(at(520), true, true), Ok(Some(LeaseRequest::Read)));
        assert_eq!(k.handle_answer(at(530), LeaseAnswer::Read(Stored::Held(lease, version(21)))), []);
        assert!(!k.is_deleted());
        assert_eq!(swap_of(&mut k, at(540)).0, version(21));
    }

    #[test]
    fn a_lease_gone_before_its_first_write_is_not_held() {
        let lease = Lease::bootstrap(&replica(1), set(&[1, 2, 3]), LEASE).unwrap();
        let mut k = LeaseKeeper::new(at(0), replica(1), lease, version(10), LEASE);
        swap_of(&mut k, at(0));
        assert_eq!(k.handle_answer(at(1), LeaseAnswer::Conflict), []);
        assert_eq!(k.poll_request(at(2), true, false), Ok(Some(LeaseRequest::Read)));
        assert_eq!(k.handle_answer(at(3), LeaseAnswer::Read(Stored::Blank(blank(7, 20)))), []);
        assert_eq!(swap_of(&mut k, at(4)).0, blank(7, 20));
        assert_eq!(k.handle_answer(at(5), LeaseAnswer::Written(blank(7, 21))), [KeeperOutput::Held]);
        swap_of(&mut k, at(3000));
        assert_eq!(k.handle_answer(at(3001), LeaseAnswer::Written(blank(7, 22))), [], "once is enough");
    }

    #[test]
    fn a_hand_over_waits_for_the_outcome_of_a_set_on_its_way() {
        let mut k = keeper();
        k.propose(set(&[1, 2]));
        k.hand_over(replica(2), [replica(1), replica(2)].into());
        assert_eq!(swap_of(&mut k, at(10)).1, set(&[1, 2]));
        k.handle_answer(at(20), LeaseAnswer::Written(version(12)));
        let Ok(Some(LeaseRequest::Swap { lease, .. })) = k.poll_request(at(30), true, true) else { panic!() };
        assert_eq!((lease.epoch(), lease.holder(), lease.in_sync()), (Epoch(2), Some(&replica(2)), &set(&[1, 2])));
        let out = k.handle_answer(at(40), LeaseAnswer::Written(version(13)));
        assert_eq!(out, [KeeperOutput::Demoted { epoch: Epoch(2), holder: Some(replica(2)) }]);
    }

    #[test]
    fn the_version_is_raised_by_one_swap_and_stays_raised() {
        let mut k = keeper();
        k.propose(set(&[1, 2]));
        k.raise(ClusterVersion(3));
        assert_eq!(swap_of(&mut k, at(10)).1, set(&[1, 2]), "the set comes first");
        k.handle_answer(at(20), LeaseAnswer::Written(version(12)));
        assert_eq!(k.cluster_version(), ClusterVersion(1));
        assert_eq!(k.poll_request(at(25), false, true), Ok(None), "a primary that cannot write does not look alive");
        let Ok(Some(LeaseRequest::Swap { lease, .. })) = k.poll_request(at(30), true, true) else { panic!() };
        assert_eq!((lease.cluster_version(), lease.in_sync()), (ClusterVersion(3), &set(&[1, 2])));
        assert_eq!(k.cluster_version(), ClusterVersion(1), "nothing is known of it yet");
        assert_eq!(k.handle_answer(at(40), LeaseAnswer::Written(version(13))), []);
        assert_eq!(k.cluster_version(), ClusterVersion(3));
        assert_eq!(k.poll_request(at(50), true, true), Ok(None), "once");
        k.raise(ClusterVersion(2));
        assert_eq!(k.poll_request(at(60), true, true), Ok(None), "never lower");
    }

    #[test]
    fn a_raise_whose_answer_was_lost_is_seen_by_the_moved_version() {
        let mut k = keeper();
        k.raise(ClusterVersion(3));
        let Ok(Some(LeaseRequest::Swap { lease, .. })) = k.poll_request(at(10), true, true) else { panic!() };
        k.handle_answer(at(20), LeaseAnswer::Unknown("timeout".into()));
        assert_eq!(k.cluster_version(), ClusterVersion(1));
        swap_of(&mut k, at(400));
        k.handle_answer(at(410), LeaseAnswer::Conflict);
        assert_eq!(k.poll_request(at(420), true, true), Ok(Some(LeaseRequest::Read)));
        k.handle_answer(at(430), LeaseAnswer::Read(Stored::Held(lease, version(12))));
        assert_eq!(k.cluster_version(), ClusterVersion(3));
        assert_eq!(k.poll_request(at(440), true, true), Ok(None));
    }

    #[test]
    fn a_version_that_was_put_back_by_hand_is_raised_again_and_a_deleted_lease_has_it_too() {
        let mut k = keeper();
        let old = k.known.clone();
        k.raise(ClusterVersion(3));
        swap_of(&mut k, at(10));
        k.handle_answer(at(20), LeaseAnswer::Written(version(12)));
        k.must_read = true;
        assert_eq!(k.poll_request(at(30), true, true), Ok(Some(LeaseRequest::Read)));
        k.handle_answer(at(40), LeaseAnswer::Read(Stored::Held(old, version(13))));
        let Ok(Some(LeaseRequest::Swap { lease, .. })) = k.poll_request(at(50), true, true) else { panic!() };
        assert_eq!(lease.cluster_version(), ClusterVersion(3));
        k.handle_answer(at(60), LeaseAnswer::Written(version(14)));
        k.handle_seen(None);
        assert_eq!(k.poll_request(at(70), true, true), Ok(Some(LeaseRequest::Read)));
        k.handle_answer(at(80), LeaseAnswer::Read(Stored::Blank(blank(7, 20))));
        let Ok(Some(LeaseRequest::Swap { lease, .. })) = k.poll_request(at(90), true, true) else { panic!() };
        assert_eq!(lease.cluster_version(), ClusterVersion(3));
    }
}
