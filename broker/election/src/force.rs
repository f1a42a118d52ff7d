//! A person's word in place of rule 1: somebody is elected who may lack confirmed messages. What that may cost is worked out
//! here, as far as this elector knows it; whether it is wise is not.

use std::collections::BTreeSet;
use std::time::Duration;

use understudy_record::version::ClusterVersion;
use understudy_record::{Member, Position, ReplicaName};

use crate::candidate::{Muster, best};
use crate::decide::{Decision, swap};
use crate::reason::{Ahead, FailoverReason, LastHeard, LostMember, LostWhy, MayBeLost, WaitReason};
use crate::tracker::Observed;
use crate::view::{Contact, Report, StoreState, View};

/// Nobody of the set is left: the highest clean log of any replica.
pub(crate) fn force_highest(now: Duration, view: &View, observed: &Observed, muster: Muster<'_>) -> Decision {
    let version = observed.lease.cluster_version();
    let fit = |report: &&Report| report.state == StoreState::Clean && report.knows.contains(version);
    let clean: Vec<&Report> = view.all_heard().filter(fit).collect();
    let highest = clean.iter().map(|report| view.counted_end(report)).max();
    let equal: Vec<&Report> = clean.into_iter().filter(|report| Some(view.counted_end(report)) == highest).collect();
    let Some(candidate) = best(&equal, view) else {
        return Decision::Wait { reason: WaitReason::NobodyToForce, until: None };
    };
    force(now, view, observed, candidate, muster)
}

/// `None`: it does not answer, or it is the Lease's holder already, so that there is nothing to force.
pub(crate) fn force_named(now: Duration, view: &View, observed: &Observed, name: &ReplicaName) -> Option<Decision> {
    let candidate = view.heard(name).filter(|report| observed.lease.holder() != Some(&report.identity))?;
    let muster = Muster::of(&observed.lease, view);
    if muster.electable.contains(&candidate) {
        // A member of the set lacks nothing: an election like any other.
        let staying = muster.electable.iter().map(|report| report.identity.clone()).collect();
        let may_be_lost = may_be_lost(now, view, candidate, Vec::new());
        let lease = observed.lease.elect(&candidate.identity, &staying);
        return Some(swap(&observed.version, lease, &candidate.identity, FailoverReason::Forced { may_be_lost }));
    }
    Some(force(now, view, observed, candidate, muster))
}

fn force(now: Duration, view: &View, observed: &Observed, candidate: &Report, muster: Muster<'_>) -> Decision {
    let unheard = muster.away.iter().map(|&member| LostMember { member: member.clone(), why: LostWhy::Unheard });
    let lost = unheard.chain(muster.lost).chain(muster.outdated).collect();
    let may_be_lost = may_be_lost(now, view, candidate, lost);
    let lease = observed.lease.force(&candidate.identity, set_of(view, candidate, observed.lease.cluster_version()));
    swap(&observed.version, lease, &candidate.identity, FailoverReason::Forced { may_be_lost })
}

/// Who holds what the candidate holds, as firmly: two logs that come to the same position are the same log up to there. A
/// damaged store is like no other: nobody knows what can be read in it.
pub(crate) fn set_of(view: &View, candidate: &Report, version: ClusterVersion) -> BTreeSet<Member> {
    let alike = |other: &&Report| {
        let clean = candidate.state == StoreState::Clean && other.state == StoreState::Clean;
        let fit = clean && other.knows.contains(version);
        let end = |report| view.counted_end(report);
        other.identity == candidate.identity || (fit && end(other) == end(candidate))
    };
    view.all_heard().filter(alike).map(|report| report.identity.member(view.spec.processes_in_set)).collect()
}

/// `lost`: members of the set that cannot be asked, or are not what they were.
pub(crate) fn may_be_lost(now: Duration, view: &View, candidate: &Report, mut lost: Vec<LostMember>) -> MayBeLost {
    let own_end = view.counted_end(candidate);
    let ahead: Vec<Ahead> = view
        .replicas
        .values()
        .filter_map(|replica| {
            let report = replica.report.as_ref()?;
            let (end, last_heard) = match replica.contact {
                Contact::Reachable => (view.counted_end(report), LastHeard::Now),
                // What it had in memory may have become durable, and been confirmed, since.
                Contact::Lost { since, .. } => (report.last, LastHeard::Ago(now.saturating_sub(since))),
                Contact::Unknown | Contact::Gone => (report.last, LastHeard::Unknown),
            };
            let (records, exact) = records_between(own_end, end);
            let ahead = Ahead { name: report.identity.name.clone(), last: end, records, exact, last_heard };
            (end > own_end).then_some(ahead)
        })
        .collect();
    lost.retain(|LostMember { member, why }| match why {
        LostWhy::Unheard => !ahead.iter().any(|ahead| ahead.name == member.name), // told, and more
        LostWhy::Damaged => member.name != candidate.identity.name,               // the same
        LostWhy::StoreReplaced { .. } | LostWhy::MemoryLost { .. } | LostWhy::Removed | LostWhy::Outdated { .. } => {
            true
        }
    });
    MayBeLost {
        candidate: candidate.identity.name.clone(),
        last: own_end,
        is_damaged: candidate.state == StoreState::Dirty,
        ahead,
        lost,
    }
}

/// Records that a log ending at `more` has after one ending at `less`. Within an epoch one log is the other's beginning; else
/// the two may have parted before, and it is at least so many.
fn records_between(less: Position, more: Position) -> (u64, bool) {
    (more.index.0.saturating_sub(less.index.0), less.epoch == more.epoch)
}
