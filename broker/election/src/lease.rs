//! The Lease: who is primary, since which epoch, and who is in sync. The only file in which one Lease value is derived from
//! another; each constructor is one legal swap and cites its rule. It does not know how a Lease is stored, nor when it is
//! wise to swap one.
//!
//! Invariants of every value: the set is not empty, no name stands in it twice, and the holder, if any, is a member of it.
//! No constructor lowers the cluster's version.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use understudy_record::variant::{Variant, is_broken};
use understudy_record::version::ClusterVersion;
use understudy_record::{Epoch, Identity, Member, ReplicaName};

/// A primary that has not renewed for an hour is not waited for in any sensible configuration; a longer duration is a
/// damaged Lease or a unit taken for another.
pub const MAX_LEASE_DURATION: Duration = Duration::from_secs(3600);

/// A Lease that its primary writes anew leaves this many epochs unused: those of elections in the deleted Lease that nobody
/// has heard of yet. Elections take seconds, so a hundred unheard ones are out of reach.
pub const RECREATION_EPOCH_GAP: u64 = 100;

/// A set's size at most. Every confirm waits for every member, so clusters have a handful; the bound keeps a damaged
/// annotation from growing without end.
pub const MAX_MEMBERS: usize = 64;

/// The configuration register of one cluster (rules 1 to 8).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    holder: Option<Identity>,
    epoch: Epoch,
    given: Epoch,
    in_sync: BTreeSet<Member>,
    duration: Duration,
    cluster_version: ClusterVersion,
    renewed: Option<Renewal>,
}

/// When the Lease was last written, by the writer's wall clock, in microseconds since 1970. Shown to people; compared with
/// no clock, since the reader's may differ (a change of the [`Version`](crate::Version) is what says that the holder lives).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Renewal(pub i64);

/// A Lease as a store reads it, before [`Lease::from_parts`] has looked at it.
#[derive(Clone, Debug)]
pub struct LeaseParts {
    pub holder: Option<Identity>,
    pub epoch: Epoch,
    /// `None`: as the epoch.
    pub given: Option<Epoch>,
    pub in_sync: BTreeSet<Member>,
    pub duration: Duration,
    pub cluster_version: ClusterVersion,
    pub renewed: Option<Renewal>,
}

/// What was read cannot be a Lease that this project wrote.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MalformedLease {
    #[error("the in-sync set is empty")]
    NoMembers,
    #[error("the in-sync set has {count} members, more than {MAX_MEMBERS}")]
    TooManyMembers { count: usize },
    #[error("{name} stands twice in the in-sync set")]
    NameTwice { name: ReplicaName },
    #[error("the holder {holder} is not in the in-sync set")]
    HolderOutsideSet { holder: Identity },
    #[error("the epoch is 0, which stands for no primary at all")]
    NoEpoch,
    #[error("the epoch is {epoch}, above {given}, the highest that is said to have been given")]
    EpochNotGiven { epoch: Epoch, given: Epoch },
    #[error("the cluster's version is 0; the first one is 1")]
    NoVersion,
    #[error("the lease duration is {} ms; it must lie between 1 ms and one hour", .0.as_millis())]
    Duration(Duration),
}

/// The candidate may not become primary by this swap.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotElectable {
    #[error("{candidate} is not in the in-sync set, so it may lack confirmed messages")]
    OutsideSet { candidate: Identity },
    #[error("there is no epoch after {epoch}")]
    EpochsExhausted { epoch: Epoch },
    #[error(transparent)]
    Malformed(#[from] MalformedLease),
}

/// The swap is the primary's own, and the Lease names another (rule 5), or the result would be no Lease.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotHolder {
    #[error("the Lease is held by {holder:?} at epoch {epoch}, not by {claimant}")]
    HeldByAnother { claimant: Identity, holder: Option<Identity>, epoch: Epoch },
    #[error(transparent)]
    Malformed(#[from] MalformedLease),
}

impl Lease {
    pub fn holder(&self) -> Option<&Identity> {
        self.holder.as_ref()
    }

    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// No epoch up to this one is given again; the next election goes beyond it. Above the epoch where the Lease was
    /// deleted and written anew (rule 7).
    pub fn given(&self) -> Epoch {
        self.given
    }

    pub fn in_sync(&self) -> &BTreeSet<Member> {
        &self.in_sync
    }

    /// How long the Lease may stay unrenewed before a backup that does not hear the primary stands.
    pub fn duration(&self) -> Duration {
        self.duration
    }

    /// What every replica knows, and what may therefore be written and said.
    pub fn cluster_version(&self) -> ClusterVersion {
        self.cluster_version
    }

    pub fn renewed_at(&self) -> Option<Renewal> {
        self.renewed
    }

    /// The entry of the set that speaks of `identity`, if there is one: its name, its store and, where the set names
    /// processes, its process.
    pub fn entry_of(&self, identity: &Identity) -> Option<&Member> {
        self.in_sync.iter().find(|member| member.is(identity))
    }

    /// Whether both name the same holder, epoch and set: how a writer recognises a swap whose answer was lost.
    pub fn same_configuration(&self, other: &Self) -> bool {
        self.holder == other.holder && self.epoch == other.epoch && self.in_sync == other.in_sync
    }

    /// For lease stores: what was read, checked.
    pub fn from_parts(parts: LeaseParts) -> Result<Self, MalformedLease> {
        let LeaseParts { holder, epoch, given, in_sync, duration, cluster_version, renewed } = parts;
        let given = given.unwrap_or(epoch);
        if in_sync.is_empty() {
            return Err(MalformedLease::NoMembers);
        }
        if in_sync.len() > MAX_MEMBERS {
            return Err(MalformedLease::TooManyMembers { count: in_sync.len() });
        }
        let mut names = BTreeSet::new();
        if let Some(twice) = in_sync.iter().find(|member| !names.insert(&member.name)) {
            return Err(MalformedLease::NameTwice { name: twice.name.clone() });
        }
        if let Some(holder) = holder.as_ref().filter(|holder| !in_sync.iter().any(|member| member.is(holder))) {
            return Err(MalformedLease::HolderOutsideSet { holder: holder.clone() });
        }
        if epoch == Epoch(0) {
            return Err(MalformedLease::NoEpoch);
        }
        if given < epoch {
            return Err(MalformedLease::EpochNotGiven { epoch, given });
        }
        if cluster_version < ClusterVersion::FIRST {
            return Err(MalformedLease::NoVersion);
        }
        if duration < Duration::from_millis(1) || duration > MAX_LEASE_DURATION {
            return Err(MalformedLease::Duration(duration));
        }
        Ok(Self { holder, epoch, given, in_sync, duration, cluster_version, renewed })
    }

    /// A new cluster's first Lease: epoch 1, the first version. Every store in `in_sync` is empty, so each holds all there is.
    pub fn bootstrap(
        candidate: &Identity,
        in_sync: BTreeSet<Member>,
        duration: Duration,
    ) -> Result<Self, NotElectable> {
        Self::held_by(candidate, Epoch(1), in_sync, duration, ClusterVersion::FIRST)
    }

    /// Rule 1, an election: holder := candidate, the next epoch, set := the candidate and those members of the old set that the
    /// elector reaches. A planned hand-over is the same swap. `reachable` are whole identities: a name that came back with
    /// another store, or with another process where the set names processes, is not the member it was.
    pub fn elect(&self, candidate: &Identity, reachable: &BTreeSet<Identity>) -> Result<Self, NotElectable> {
        if is_broken(Variant::ElectOutsider) {
            let in_sync = [candidate.member(false)].into();
            return Self::held_by(candidate, self.next_epoch()?, in_sync, self.duration, self.cluster_version);
        }
        if self.entry_of(candidate).is_none() {
            return Err(NotElectable::OutsideSet { candidate: candidate.clone() });
        }
        let stays = |member: &&Member| member.is(candidate) || reachable.iter().any(|identity| member.is(identity));
        let in_sync = self.in_sync.iter().filter(stays).cloned().collect();
        Self::held_by(candidate, self.next_epoch()?, in_sync, self.duration, self.cluster_version)
    }

    /// Rule 4, the primary's change of its set, smaller or larger. Holder and epoch stay.
    pub fn with_set(&self, primary: &Identity, in_sync: BTreeSet<Member>) -> Result<Self, NotHolder> {
        self.check_holder(primary)?;
        Ok(Self::from_parts(LeaseParts { in_sync, ..self.parts() })?)
    }

    /// Liveness only: the same configuration once more. The store stamps the time.
    pub fn renewed(&self, primary: &Identity, duration: Duration) -> Result<Self, NotHolder> {
        self.check_holder(primary)?;
        Ok(Self::from_parts(LeaseParts { duration, ..self.parts() })?)
    }

    /// The primary raises the cluster's version: every replica has said that it knows `version`. Everything else stays.
    pub fn raised(&self, primary: &Identity, version: ClusterVersion) -> Result<Self, NotHolder> {
        self.check_holder(primary)?;
        Ok(self.clone().at_least(version))
    }

    /// The same in a cluster of this version, if it is not in one of a higher version anyway.
    #[must_use]
    pub(crate) fn at_least(self, version: ClusterVersion) -> Self {
        Self { cluster_version: self.cluster_version.max(version), ..self }
    }

    /// Rule 7: the Lease was deleted under a living primary, which writes it into the blank one as it was. Every member of the
    /// set has acknowledged, at this epoch, what was written after that blank one was there. One of them may have been elected
    /// all the same and not know it yet: it can commit nothing, and its epoch is not given again.
    pub fn as_it_was(&self, primary: &Identity, duration: Duration) -> Result<Self, NotHolder> {
        self.check_holder(primary)?;
        let given = self.given.0.checked_add(RECREATION_EPOCH_GAP).map_or(self.given, Epoch);
        Ok(Self::from_parts(LeaseParts { given: Some(given), duration, ..self.parts() })?)
    }

    /// Rule 7: the Lease was deleted and no primary lives. `epoch` lies above all that any replica knows, and every store
    /// in `in_sync` holds the highest log found. No store was written at a version above `version`.
    pub(crate) fn recover(
        candidate: &Identity,
        epoch: Epoch,
        in_sync: BTreeSet<Member>,
        duration: Duration,
        version: ClusterVersion,
    ) -> Result<Self, NotElectable> {
        Self::held_by(candidate, epoch, in_sync, duration, version)
    }

    /// A person's word in place of rule 1: no member of the set is left, and the person takes the loss.
    pub(crate) fn force(&self, candidate: &Identity, in_sync: BTreeSet<Member>) -> Result<Self, NotElectable> {
        Self::held_by(candidate, self.next_epoch()?, in_sync, self.duration, self.cluster_version)
    }

    fn held_by(
        holder: &Identity,
        epoch: Epoch,
        in_sync: BTreeSet<Member>,
        duration: Duration,
        cluster_version: ClusterVersion,
    ) -> Result<Self, NotElectable> {
        if !in_sync.iter().any(|member| member.is(holder)) {
            return Err(NotElectable::OutsideSet { candidate: holder.clone() });
        }
        let holder = Some(holder.clone());
        let parts = LeaseParts { holder, epoch, given: None, in_sync, duration, cluster_version, renewed: None };
        Ok(Self::from_parts(parts)?)
    }

    fn next_epoch(&self) -> Result<Epoch, NotElectable> {
        self.given.0.checked_add(1).map(Epoch).ok_or(NotElectable::EpochsExhausted { epoch: self.given })
    }

    fn check_holder(&self, primary: &Identity) -> Result<(), NotHolder> {
        if self.holder.as_ref() == Some(primary) {
            return Ok(());
        }
        Err(NotHolder::HeldByAnother { claimant: primary.clone(), holder: self.holder.clone(), epoch: self.epoch })
    }

    fn parts(&self) -> LeaseParts {
        let Self { holder, epoch, given, in_sync, duration, cluster_version, renewed } = self.clone();
        LeaseParts { holder, epoch, given: Some(given), in_sync, duration, cluster_version, renewed }
    }
}

/// One line for logs and golden tests: `epoch 3 held by a/…; in sync: a/…, b/…`.
impl fmt::Display for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "epoch {} held by ", self.epoch)?;
        match &self.holder {
            Some(holder) => write!(f, "{holder}")?,
            None => f.write_str("nobody")?,
        }
        f.write_str("; in sync: ")?;
        for (i, member) in self.in_sync.iter().enumerate() {
            write!(f, "{}{member}", if i == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}
