//! Why an elector acts, waits, or gives up until a person has looked: values for the program, texts for people, and one
//! CamelCase word each for conditions and events. Decides nothing.

use std::fmt;
use std::time::Duration;

use understudy_record::version::{UnknownVersion, VersionRange};
use understudy_record::{Epoch, Identity, Member, Position, ReplicaName};

/// On the BrokerCluster: "elect what is left, I take the loss". Whoever sets `Spec::forced` takes it off once it was used.
pub const FORCE_RECOVERY_ANNOTATION: &str = "understudy.dev/force-recovery";

/// On the BrokerCluster: "this in-sync pod is to be the primary". Taken off once it was answered.
pub const SWITCHOVER_ANNOTATION: &str = "understudy.dev/switchover";

/// On the BrokerCluster: "elect this pod, I take the loss". Taken off once it was used.
pub const FORCE_PRIMARY_ANNOTATION: &str = "understudy.dev/force-primary";

/// Why somebody is elected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FailoverReason {
    /// The Lease names no holder.
    Vacant,
    /// Nothing runs under the holder's name.
    ProcessGone { holder: Identity },
    /// The holder's name answers, as another process or with another store (rule 8).
    IdentityChanged { holder: Identity, now: Identity },
    /// The elector has lost it, and so has this member of the set.
    TwoWitnesses { holder: Identity, witness: ReplicaName },
    /// Not renewed for the Lease's duration on the elector's own clock, and not heard.
    Expired { holder: Identity, unrenewed_for: Duration },
    /// It runs and answers, but its journal makes no progress.
    JournalStalled { holder: Identity, stalled_for: Duration },
    /// It runs and answers, but does not renew the Lease, and this member of its set has lost it: it can confirm nothing
    /// (rule 6).
    Hindered { holder: Identity, witness: ReplicaName },
    /// It runs and answers, but neither renews the Lease nor acts as its primary.
    NotServing { holder: Identity },
    /// A person has forced it.
    Forced { may_be_lost: MayBeLost },
    /// Every replica of the spec has answered, and all of them are empty.
    NewCluster,
    /// The Lease was deleted; every replica has answered, and this is the highest log (rule 7).
    Recovered { last: Position },
    /// The Lease was deleted, and a person has forced it: these are missing.
    ForcedRecovery { missing: Vec<ReplicaName>, may_be_lost: MayBeLost },
}

/// Why nothing is done now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitReason {
    LeaseUnread,
    /// A replica knows a higher epoch than the Lease as this elector sees it: a newer one is on its way.
    LeaseBehind {
        lease: Epoch,
        known: Epoch,
        by: ReplicaName,
    },
    PrimaryHealthy {
        primary: Identity,
    },
    /// The elector does not hear the primary, or takes it for ended; this member of the set still hears it.
    StillHeard {
        primary: Identity,
        by: ReplicaName,
    },
    /// The primary is not heard, which is not enough to replace it before the Lease runs out or a second witness agrees.
    NotHeard {
        primary: Identity,
    },
    /// The process of the primary has ended; a backup gives the other members of the set time to be heard.
    PrimaryEnded {
        primary: Identity,
        unheard: Vec<ReplicaName>,
    },
    /// This backup is not in the in-sync set, so it leaves the decision to those who are.
    NotAMember {
        replica: ReplicaName,
        members: Vec<Member>,
    },
    /// Somebody should be elected; nobody of the set answers, but these may come back with what they had.
    MembersAway {
        cause: FailoverReason,
        away: Vec<Member>,
        lost: Vec<LostMember>,
    },
    /// There is no Lease, or a blank one; these replicas must answer before somebody may be elected.
    ReplicasUnheard {
        unheard: Vec<ReplicaName>,
    },
    /// There is no Lease, or a blank one, but a primary lives, and writes it as it was (rule 7).
    PrimaryRecreates {
        by: ReplicaName,
        epoch: Epoch,
    },
    /// There is no version of a cluster that all replicas of a new one know.
    NoCommonVersion {
        knows: Vec<(ReplicaName, VersionRange)>,
    },
    /// A person has forced an election, but no replica with a clean store answers.
    NobodyToForce,
    /// A person has forced the election of this replica, and it does not answer.
    ForcedUnheard {
        name: ReplicaName,
    },
}

/// What a person must look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BlockedReason {
    /// No member of the in-sync set can come back as what it was.
    NoMemberLeft { cause: FailoverReason, lost: Vec<LostMember> },
    /// There is no Lease, and what was confirmed last may be gone.
    RecoveryUnsafe { lost: Vec<LostMember> },
    /// There is no Lease and no replica with a clean store.
    NoCleanStore { damaged: Vec<ReplicaName> },
    /// The Lease has stood still at a lower epoch than a replica knows: it was put back to an older state.
    LeaseWentBack { lease: Epoch, known: Epoch, by: ReplicaName },
    /// The next Lease would be none.
    Unswappable { why: crate::NotElectable },
    /// Promotion is manual, and these could be elected.
    AwaitsPromotion { cause: FailoverReason, electable: Vec<ReplicaName>, named: Option<ReplicaName> },
}

/// A member of the in-sync set that cannot be elected any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostMember {
    pub member: Member,
    pub why: LostWhy,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LostWhy {
    /// Its name answers with another store.
    StoreReplaced { now: Identity },
    /// Its name answers from the same store but as another process, and the set names processes.
    MemoryLost { now: Identity },
    /// Its store is not clean.
    Damaged,
    /// The spec does not have it any more, and it does not answer.
    Removed,
    /// It is in the spec and does not answer.
    Unheard,
    /// It runs a build that does not know the cluster's version.
    Outdated { why: UnknownVersion },
}

/// What a forced election may cost, as far as its elector knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MayBeLost {
    /// Who was elected, and where its log ends.
    pub candidate: ReplicaName,
    pub last: Position,
    /// Its store is not clean: what cannot be read in it is lost, too.
    pub is_damaged: bool,
    /// Who has more.
    pub ahead: Vec<Ahead>,
    /// Members of the set of which nobody knows what they had.
    pub lost: Vec<LostMember>,
}

/// A replica whose log ends after that of the one elected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ahead {
    pub name: ReplicaName,
    pub last: Position,
    /// So many more.
    pub records: u64,
    /// False: at least so many, since the two logs may have parted before they end.
    pub exact: bool,
    pub last_heard: LastHeard,
}

/// How long ago a replica said what is told of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastHeard {
    Now,
    Ago(Duration),
    Unknown,
}

impl MayBeLost {
    pub fn is_nothing(&self) -> bool {
        !self.is_damaged && self.ahead.is_empty() && self.lost.is_empty()
    }
}

impl FailoverReason {
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Vacant => "NoHolder",
            Self::ProcessGone { .. } => "PrimaryGone",
            Self::IdentityChanged { .. } => "PrimaryRestarted",
            Self::TwoWitnesses { .. } => "PrimaryLost",
            Self::Expired { .. } => "LeaseExpired",
            Self::JournalStalled { .. } => "JournalStalled",
            Self::Hindered { .. } => "PrimaryCutOff",
            Self::NotServing { .. } => "PrimaryNotServing",
            Self::Forced { .. } | Self::ForcedRecovery { .. } => "Forced",
            Self::NewCluster => "NewCluster",
            Self::Recovered { .. } => "LeaseRecovered",
        }
    }
}

impl WaitReason {
    pub fn kind(&self) -> &'static str {
        match self {
            Self::LeaseUnread => "LeaseUnread",
            Self::LeaseBehind { .. } => "LeaseBehind",
            Self::PrimaryHealthy { .. } => "PrimaryHealthy",
            Self::StillHeard { .. } => "PrimaryStillHeard",
            Self::NotHeard { .. } => "PrimaryNotHeard",
            Self::PrimaryEnded { .. } => "PrimaryEnded",
            Self::NotAMember { .. } => "NotInSync",
            Self::MembersAway { .. } => "InSyncMembersAway",
            Self::ReplicasUnheard { .. } => "ReplicasUnheard",
            Self::PrimaryRecreates { .. } => "PrimaryRecreatesLease",
            Self::NoCommonVersion { .. } => "NoCommonVersion",
            Self::NobodyToForce => "NobodyToForce",
            Self::ForcedUnheard { .. } => "ForcedUnheard",
        }
    }
}

impl BlockedReason {
    pub fn kind(&self) -> &'static str {
        match self {
            Self::NoMemberLeft { .. } => "NoInSyncMemberLeft",
            Self::RecoveryUnsafe { .. } => "RecoveryUnsafe",
            Self::NoCleanStore { .. } => "NoCleanStore",
            Self::LeaseWentBack { .. } => "LeaseWentBack",
            Self::Unswappable { .. } => "LeaseUnswappable",
            Self::AwaitsPromotion { .. } => "AwaitsPromotion",
        }
    }
}

impl fmt::Display for FailoverReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Vacant => f.write_str("the Lease names no primary"),
            Self::ProcessGone { holder } => write!(f, "the process of primary {} has ended", holder.name),
            Self::IdentityChanged { holder, now } if holder.store != now.store => {
                write!(f, "{} came back with another store, so primary {holder} is no more", holder.name)
            }
            Self::IdentityChanged { holder, .. } => {
                write!(f, "{} was restarted, and a restarted process does not resume as primary", holder.name)
            }
            Self::TwoWitnesses { holder, witness } => {
                write!(f, "the elector and {witness} have both lost primary {}", holder.name)
            }
            Self::Expired { holder, unrenewed_for } => write!(
                f,
                "primary {} is not heard and has not renewed its Lease for {} ms",
                holder.name,
                unrenewed_for.as_millis()
            ),
            Self::JournalStalled { holder, stalled_for } => write!(
                f,
                "the journal of primary {} has made no progress for {} ms",
                holder.name,
                stalled_for.as_millis()
            ),
            Self::Hindered { holder, witness } => write!(
                f,
                "primary {} does not renew its Lease and {witness} has lost it, so it can confirm nothing",
                holder.name
            ),
            Self::NotServing { holder } => {
                write!(f, "{} holds the Lease and answers, but neither renews it nor acts as primary", holder.name)
            }
            Self::Forced { may_be_lost } => write!(f, "forced by a person; {may_be_lost}"),
            Self::NewCluster => f.write_str("a new cluster: every replica has answered, and all are empty"),
            Self::Recovered { last } => {
                write!(f, "the Lease was deleted; every replica has answered, and the highest log ends at {last}")
            }
            Self::ForcedRecovery { missing, may_be_lost } => {
                write!(f, "forced by a person; not waited for: {}; {may_be_lost}", List(missing))
            }
        }
    }
}

impl fmt::Display for WaitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LeaseUnread => f.write_str("the Lease has not been read yet"),
            Self::LeaseBehind { lease, known, by } => {
                write!(
                    f,
                    "the Lease as seen here has epoch {lease}, and {by} knows {known}: waiting for the newer Lease"
                )
            }
            Self::PrimaryHealthy { primary } => write!(f, "primary {} is heard", primary.name),
            Self::StillHeard { primary, by } => write!(f, "{by} still hears primary {}", primary.name),
            Self::NotHeard { primary } => {
                write!(f, "primary {} is not heard, but its Lease has not run out", primary.name)
            }
            Self::PrimaryEnded { primary, unheard } => {
                write!(f, "primary {} has ended; waiting to hear {}", primary.name, List(unheard))
            }
            Self::NotAMember { replica, members } => {
                write!(
                    f,
                    "{replica} is not in sync: it waits for {}, which may hold confirmed messages",
                    Stores(members)
                )
            }
            Self::MembersAway { cause, away, lost } => {
                write!(f, "{cause}; waits for {}, which may hold confirmed messages", Stores(away))?;
                if lost.is_empty() { Ok(()) } else { write!(f, " ({})", List(lost)) }
            }
            Self::ReplicasUnheard { unheard } => {
                write!(
                    f,
                    "nothing stands in the Lease; somebody is elected once these have answered too: {}",
                    List(unheard)
                )
            }
            Self::PrimaryRecreates { by, epoch } => {
                write!(f, "the Lease is gone, but {by} knows a living primary of epoch {epoch}, which writes it anew")
            }
            Self::NoCommonVersion { knows } => {
                let knows: Vec<String> = knows.iter().map(|(name, range)| format!("{name} knows {range}")).collect();
                write!(f, "the replicas' builds are too far apart for one cluster: {}", List(&knows))
            }
            Self::NobodyToForce => write!(
                f,
                "an election was forced, but no replica with a clean store answers; one that is not clean may be named in the \
                 annotation {FORCE_PRIMARY_ANNOTATION}"
            ),
            Self::ForcedUnheard { name } => write!(f, "the election of {name} was forced, but it does not answer"),
        }
    }
}

impl fmt::Display for BlockedReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cure =
            format!("to go on with what the other replicas have, set the annotation {FORCE_RECOVERY_ANNOTATION}");
        match self {
            Self::NoMemberLeft { cause, lost } => write!(
                f,
                "{cause}; nobody is left who had every confirmed message: {}. Bring one back with its store, or, {cure}",
                List(lost)
            ),
            Self::RecoveryUnsafe { lost } => write!(
                f,
                "the Lease is gone, and so may be confirmed messages that only these had: {}. Bring them back, or, {cure}",
                List(lost)
            ),
            Self::NoCleanStore { damaged } => write!(
                f,
                "the Lease is gone, and no replica has a clean store: {}. Restore one from a backup, or name the one to go on \
                 with in the annotation {FORCE_PRIMARY_ANNOTATION}",
                List(damaged)
            ),
            Self::LeaseWentBack { lease, known, by } => write!(
                f,
                "the Lease stands at epoch {lease}, but {by} knows epoch {known}: it was put back to an older state. Delete \
                 it, and it is recovered from the replicas' logs"
            ),
            Self::Unswappable { why } => write!(f, "the next Lease cannot be written: {why}"),
            Self::AwaitsPromotion { cause, electable, named } => {
                write!(
                    f,
                    "{cause}; promotion is manual: name one of {} in the annotation {SWITCHOVER_ANNOTATION}",
                    names(electable)
                )?;
                match named {
                    Some(named) => write!(f, " ({named}, which it names, is not among them)"),
                    None => Ok(()),
                }
            }
        }
    }
}

fn names(names: &[ReplicaName]) -> String {
    names.iter().map(ReplicaName::as_str).collect::<Vec<_>>().join(", ")
}

impl fmt::Display for MayBeLost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { candidate, last, is_damaged, ahead, lost } = self;
        write!(f, "{candidate} goes on from {last}; what may be lost: ")?;
        if self.is_nothing() {
            return f.write_str("nothing that is known");
        }
        let damaged = format!("what cannot be read in the damaged or unfinished store of {candidate}");
        let damaged = is_damaged.then_some(damaged);
        let texts = damaged.into_iter().chain(ahead.iter().map(Ahead::to_string));
        let texts: Vec<String> = texts.chain(lost.iter().map(LostMember::to_string)).collect();
        f.write_str(&texts.join("; "))
    }
}

impl fmt::Display for Ahead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, last, records, exact, last_heard } = self;
        let at_least = if *exact { "" } else { "at least " };
        write!(f, "{name} has {at_least}{records} records more, up to {last}")?;
        match last_heard {
            LastHeard::Now => Ok(()),
            LastHeard::Ago(ago) => write!(f, " (last heard {:.1} s ago)", ago.as_secs_f64()),
            LastHeard::Unknown => f.write_str(" (it does not answer)"),
        }
    }
}

impl fmt::Display for LostMember {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.member.name;
        match &self.why {
            LostWhy::StoreReplaced { now } => {
                write!(f, "{name} lost store {} and came back with {}", self.member.store, now.store)
            }
            LostWhy::MemoryLost { .. } => write!(f, "{name} was restarted and lost what it had in memory"),
            LostWhy::Damaged => write!(f, "{name} has a damaged or unfinished store"),
            LostWhy::Removed => write!(f, "{name} was removed from the cluster"),
            LostWhy::Unheard => write!(f, "{name} does not answer"),
            LostWhy::Outdated { why } => write!(f, "the build of {name} {why}"),
        }
    }
}

/// `a, b, c`, or `nobody`.
struct List<'a, T>(&'a [T]);

impl<T: fmt::Display> fmt::Display for List<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("nobody");
        }
        for (i, item) in self.0.iter().enumerate() {
            write!(f, "{}{item}", if i == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

/// `a (store 1) or b (store 2)`.
struct Stores<'a>(&'a [Member]);

impl fmt::Display for Stores<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, Member { name, store, .. }) in self.0.iter().enumerate() {
            write!(f, "{}{name} (store {store})", if i == 0 { "" } else { " or " })?;
        }
        Ok(())
    }
}
