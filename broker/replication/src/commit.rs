//! Commit: how far the log is safe to confirm (rules 3 and 4).
//!
//! One value per primary and epoch. It hears what each store has made durable and which in-sync sets may be in force, and
//! says how far the log is committed. It knows no clock, no network and no Lease encoding.
//!
//! Invariant: the committed index never passes what some member of some set that may be in force has made durable.

use std::collections::{BTreeMap, BTreeSet};

use understudy_record::variant::{Variant, is_broken};
use understudy_record::{Epoch, Index, Member};

/// Stores, and with `durability: Replicated` their processes: an acknowledgement counts for what gave it, never for a
/// pod's name (rule 3).
pub type InSyncSet = BTreeSet<Member>;

/// What has become known of a proposed set. A read that shows the old Lease is neither: the request may still be on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwapOutcome {
    /// The Lease holds the proposed set.
    Applied,
    /// It never will: a later write of ours succeeded, or the Lease's version moved on without it.
    Refused,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProposeError {
    #[error("the outcome of an earlier change of the in-sync set is not known yet")]
    Outstanding,
    /// The newcomer lacks records that this primary, or its predecessor, may have confirmed.
    #[error("the newcomer has made records durable up to {durable}; {needed} may have been confirmed")]
    NotCaughtUp { durable: Index, needed: Index },
    /// This primary's first record is not committed yet, so it does not know how far its predecessor confirmed.
    #[error("this epoch's first record is not committed yet")]
    EpochNotCommitted,
    #[error("the primary cannot leave its own in-sync set")]
    WouldRemovePrimary,
    #[error("nothing would change")]
    NoChange,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Commit {
    epoch: Epoch,
    primary: Member,
    /// Index of this epoch's first record. What came before it may have been confirmed by an earlier primary.
    epoch_start: Index,
    /// Highest index each store has made durable under this epoch; stores outside the set are here too, catching up.
    durable: BTreeMap<Member, Index>,
    in_force: InSyncSet,
    /// On its way to the Lease, or there already: its members count (rule 3).
    proposed: Option<InSyncSet>,
    /// The Lease is known to have been there after this primary had begun (rule 7).
    lease_held: bool,
    /// About to be proposed: commits wait for it from before the swap is tried (rule 4). No swap names it yet.
    awaited: Option<Member>,
    committed: Index,
}

impl Commit {
    /// # Panics
    /// If the primary is not a member of the set it was elected from (rule 1).
    pub fn new(epoch: Epoch, primary: Member, epoch_start: Index, in_force: InSyncSet) -> Self {
        assert!(in_force.contains(&primary), "{primary} was elected from outside the set {in_force:?} (rule 1)");
        let (durable, committed) = (BTreeMap::new(), Index(0));
        Self {
            epoch,
            primary,
            epoch_start,
            durable,
            in_force,
            proposed: None,
            lease_held: false,
            awaited: None,
            committed,
        }
    }

    pub fn committed(&self) -> Index {
        self.committed
    }

    pub fn epoch_start(&self) -> Index {
        self.epoch_start
    }

    pub fn in_force(&self) -> &InSyncSet {
        &self.in_force
    }

    pub fn is_proposal_outstanding(&self) -> bool {
        self.proposed.is_some()
    }

    pub fn awaited(&self) -> Option<&Member> {
        self.awaited.as_ref()
    }

    pub fn durable_on(&self, member: &Member) -> Index {
        self.durable.get(member).copied().unwrap_or_default()
    }

    /// Every store that has acknowledged anything under this epoch, and how far.
    pub fn known(&self) -> impl Iterator<Item = (&Member, Index)> {
        self.durable.iter().map(|(member, index)| (member, *index))
    }

    /// Every member that commits wait for, the primary included.
    pub fn counted(&self) -> impl Iterator<Item = &Member> {
        let before = self.proposed.as_ref().filter(|_| is_broken(Variant::ConfirmBeforeShrink));
        before.unwrap_or(&self.in_force).iter().chain(self.proposed.iter().flatten()).chain(&self.awaited)
    }

    /// `member` (the primary itself included) has made everything up to `index` durable. An acknowledgement given under
    /// another epoch says nothing about this log and is ignored.
    pub fn handle_durable(&mut self, epoch: Epoch, member: &Member, index: Index) {
        if epoch != self.epoch {
            return;
        }
        match self.durable.get_mut(member) {
            Some(known) => *known = index.max(*known), // acknowledgements may arrive out of order
            None => _ = self.durable.insert(member.clone(), index),
        }
    }

    /// Proposes the set without `leavers`; returns what to write to the Lease. Until the outcome is known commits still wait
    /// for them, so no confirm goes out on the strength of a set that is not in force (rule 4).
    pub fn propose_without(&mut self, leavers: &InSyncSet) -> Result<InSyncSet, ProposeError> {
        if leavers.contains(&self.primary) {
            return Err(ProposeError::WouldRemovePrimary);
        }
        self.propose(self.in_force.difference(leavers).cloned().collect())
    }

    /// From here on commits wait for `newcomer` too, though no swap has been tried: so it can reach what is committed,
    /// which otherwise stays a little ahead of it for as long as there is load.
    pub fn await_newcomer(&mut self, newcomer: Member) -> Result<(), ProposeError> {
        if self.committed < self.epoch_start {
            return Err(ProposeError::EpochNotCommitted);
        }
        if self.proposed.is_some() || self.awaited.is_some() {
            return Err(ProposeError::Outstanding);
        }
        self.awaited = Some(newcomer);
        Ok(())
    }

    /// The awaited newcomer went away before any swap named it.
    pub fn forget_newcomer(&mut self) {
        self.awaited = None;
    }

    /// Proposes the set with the awaited newcomer; returns what to write to the Lease. It holds all that may have been
    /// confirmed, and commits go on waiting for it: once the swap lands it is electable (rules 1 and 4).
    pub fn propose_awaited(&mut self) -> Result<InSyncSet, ProposeError> {
        let Some(newcomer) = &self.awaited else { return Err(ProposeError::NoChange) };
        let (durable, needed) = (self.durable_on(newcomer), self.committed.max(self.epoch_start));
        if durable < needed && !is_broken(Variant::AdmitTooEarly) {
            return Err(ProposeError::NotCaughtUp { durable, needed });
        }
        let mut set = self.in_force.clone();
        set.insert(newcomer.clone());
        let set = self.propose(set)?;
        self.awaited = None; // it counts as a member of the proposed set now
        Ok(set)
    }

    /// Of a broken rule 6 alone: the set as if the Lease had been changed.
    pub(crate) fn pretend_without(&mut self, leavers: &InSyncSet) {
        self.in_force.retain(|member| !leavers.contains(member));
        self.proposed = None;
    }

    /// `true` if a proposal was outstanding: its outcome is settled now.
    pub fn handle_outcome(&mut self, outcome: SwapOutcome) -> bool {
        let Some(proposed) = self.proposed.take() else { return false };
        match outcome {
            SwapOutcome::Applied => self.in_force = proposed,
            SwapOutcome::Refused => {}
        }
        true
    }

    /// A write of this primary's own to the Lease has taken effect. Nothing is committed before: whoever makes a new Lease
    /// after this one was deleted asks every replica, and one that was elected but has not begun does not say that it is
    /// primary. One that begins after that finds that its Lease is gone, and commits nothing (rule 7).
    pub fn handle_lease_held(&mut self) {
        self.lease_held = true;
    }

    pub fn is_lease_held(&self) -> bool {
        self.lease_held
    }

    /// What every member of every set that may be in force has made durable.
    pub fn held_by_all(&self) -> Index {
        self.counted().map(|member| self.durable_on(member)).min().unwrap_or_default()
    }

    /// The new committed index, if it has moved. Nothing counts before this epoch's own first record does: only then is
    /// what the predecessor left known to be on every member.
    pub fn poll_committed(&mut self) -> Option<Index> {
        let safe = self.held_by_all();
        if !self.lease_held || safe < self.epoch_start || safe <= self.committed {
            return None;
        }
        self.committed = safe;
        Some(safe)
    }

    fn propose(&mut self, set: InSyncSet) -> Result<InSyncSet, ProposeError> {
        if self.proposed.is_some() {
            return Err(ProposeError::Outstanding);
        }
        if set == self.in_force {
            return Err(ProposeError::NoChange);
        }
        self.proposed = Some(set.clone());
        Ok(set)
    }
}

#[cfg(test)]
mod tests {
    use understudy_record::{ReplicaName, StoreId};

    use super::*;

    const EPOCH: Epoch = Epoch(7);

    fn member(store: u128) -> Member {
        Member { name: ReplicaName::new(&format!("r{}", store % 10)), store: StoreId(store), process: None }
    }

    const PRIMARY: u128 = 1;
    const BACKUP: u128 = 2;
    const LATE: u128 = 3;
    const REPLACED: u128 = 22; // the backup's pod with a new disk

    /// A primary and one backup in sync; the epoch's first record is index 10.
    fn pair() -> Commit {
        let mut commit = Commit::new(EPOCH, member(PRIMARY), Index(10), [member(PRIMARY), member(BACKUP)].into());
        commit.handle_lease_held();
        commit
    }

    fn durable(commit: &mut Commit, store: u128, index: u64) -> Option<u64> {
        commit.handle_durable(EPOCH, &member(store), Index(index));
        commit.poll_committed().map(|Index(i)| i)
    }

    #[test]
    fn commits_what_every_member_has() {
        let mut c = pair();
        assert_eq!(durable(&mut c, PRIMARY, 12), None);
        assert_eq!(durable(&mut c, BACKUP, 11), Some(11));
        assert_eq!(durable(&mut c, BACKUP, 13), Some(12));
        assert_eq!(durable(&mut c, BACKUP, 9), None); // late acknowledgement
    }

    #[test]
    fn counts_nothing_before_its_own_first_record() {
        let mut c = pair();
        assert_eq!(durable(&mut c, PRIMARY, 10), None);
        assert_eq!(durable(&mut c, BACKUP, 9), None);
        assert_eq!(durable(&mut c, BACKUP, 10), Some(10));
    }

    #[test]
    fn counts_nothing_before_its_own_write_of_the_lease() {
        let mut c = Commit::new(EPOCH, member(PRIMARY), Index(10), [member(PRIMARY), member(BACKUP)].into());
        assert_eq!(durable(&mut c, PRIMARY, 12), None);
        assert_eq!(durable(&mut c, BACKUP, 11), None);
        assert_eq!(c.held_by_all(), Index(11));
        c.handle_lease_held();
        assert_eq!(c.poll_committed(), Some(Index(11)));
    }

    #[test]
    fn an_acknowledgement_counts_for_its_store_and_epoch_only() {
        let mut c = pair();
        durable(&mut c, PRIMARY, 12);
        assert_eq!(durable(&mut c, REPLACED, 12), None);
        c.handle_durable(Epoch(6), &member(BACKUP), Index(12));
        assert_eq!(c.poll_committed(), None);
    }

    #[test]
    fn waits_for_the_leaver_until_the_smaller_set_is_in_force() {
        let mut c = pair();
        durable(&mut c, PRIMARY, 12);
        c.propose_without(&[member(BACKUP)].into()).unwrap();
        assert_eq!(c.poll_committed(), None);
        assert!(c.handle_outcome(SwapOutcome::Applied));
        assert_eq!(c.poll_committed(), Some(Index(12)));
    }

    #[test]
    fn a_refused_shrink_leaves_the_old_set_in_force() {
        let mut c = pair();
        durable(&mut c, PRIMARY, 12);
        c.propose_without(&[member(BACKUP)].into()).unwrap();
        assert!(c.handle_outcome(SwapOutcome::Refused));
        assert_eq!(c.poll_committed(), None);
        assert_eq!(durable(&mut c, BACKUP, 12), Some(12));
    }

    #[test]
    fn waits_for_the_newcomer_from_before_the_swap() {
        let mut c = pair();
        durable(&mut c, PRIMARY, 12);
        durable(&mut c, BACKUP, 12);
        c.await_newcomer(member(LATE)).unwrap();
        assert_eq!(c.propose_awaited(), Err(ProposeError::NotCaughtUp { durable: Index(0), needed: Index(12) }));
        durable(&mut c, PRIMARY, 13);
        assert_eq!(durable(&mut c, BACKUP, 13), None, "commits wait for the awaited newcomer");
        assert_eq!(durable(&mut c, LATE, 12), None);
        c.propose_awaited().unwrap();
        assert_eq!(c.poll_committed(), None);
        assert_eq!(c.propose_without(&[member(BACKUP)].into()), Err(ProposeError::Outstanding));
        assert_eq!(durable(&mut c, LATE, 13), Some(13));
    }

    #[test]
    fn an_awaited_newcomer_that_goes_away_is_waited_for_no_longer() {
        let mut c = pair();
        durable(&mut c, PRIMARY, 12);
        durable(&mut c, BACKUP, 12);
        c.await_newcomer(member(LATE)).unwrap();
        durable(&mut c, PRIMARY, 13);
        assert_eq!(durable(&mut c, BACKUP, 13), None);
        c.forget_newcomer();
        assert_eq!(c.poll_committed(), Some(Index(13)));
    }

    #[test]
    fn a_new_primary_admits_nobody_before_its_epoch_is_committed() {
        let mut c = pair();
        durable(&mut c, LATE, 10);
        assert_eq!(c.await_newcomer(member(LATE)), Err(ProposeError::EpochNotCommitted));
    }
}
