//! No Lease, or a blank one: a new cluster, or one whose Lease was deleted (rule 7). The one place where a set is made up from
//! what replicas say of themselves instead of being derived from the set before it, and therefore the most careful one.
//!
//! In two steps. While there is no Lease a blank one is created, which takes part in nothing by itself. Then it is given its
//! first content by a swap, so that nothing which was decided before this very Lease existed can come into it.

use std::collections::BTreeSet;
use std::time::Duration;

use understudy_record::variant::{Variant, is_broken};
use understudy_record::version::{ClusterVersion, VersionRange};
use understudy_record::{Epoch, Identity, Member, Position, ReplicaName};

use crate::candidate::{best, not_the_member};
use crate::decide::{Decision, swap};
use crate::force::{may_be_lost, set_of};
use crate::reason::{BlockedReason, FailoverReason, LostMember, LostWhy, WaitReason};
use crate::view::{Force, Report, Role, StoreState, View};
use crate::{Lease, NotElectable, Register, Version};

/// A recovered Lease leaves this many epochs unused. An election may have happened in the deleted Lease without any replica
/// having heard of it; its epoch must not be used twice. Whoever has seen the blank Lease takes no role by it any more; but where
/// a person forces the recovery, not all have. Nor does a log say that a Lease was written anew, each time with
/// its own gap ([`RECREATION_EPOCH_GAP`](crate::RECREATION_EPOCH_GAP)): a hundred such gaps are left here.
pub const RECOVERY_EPOCH_GAP: u64 = 10_000;

/// `last`: the Lease as this elector saw it before it went. `blank`: the version of the one that is there instead.
pub(crate) fn decide_without_lease(
    now: Duration,
    view: &View,
    last: Option<&Lease>,
    blank: Option<&Version>,
) -> Decision {
    let heard: Vec<&Report> = view.all_heard().collect();
    let unheard: Vec<ReplicaName> =
        view.spec.replicas.iter().filter(|name| view.heard(name).is_none()).cloned().collect();
    if view.spec.forced == Force::No && !is_broken(Variant::RecoverFromSome) {
        if let Some(reason) = living_primary(&heard) {
            return Decision::Wait { reason, until: None };
        }
        // Whom nobody hears is waited for before the blank one is made, since it would be made in vain.
        let is_asked =
            |report: &Report| blank.is_none_or(|blank| report.blank_seen.as_ref() == Some(blank.incarnation()));
        let has_answered = |name: &ReplicaName| view.heard(name).is_some_and(is_asked);
        let unheard: Vec<ReplicaName> = view.spec.replicas.iter().filter(|name| !has_answered(name)).cloned().collect();
        if !unheard.is_empty() {
            return Decision::Wait { reason: WaitReason::ReplicasUnheard { unheard }, until: None };
        }
    }
    if unheard.is_empty() && last.is_none() && heard.iter().all(|report| is_new(report)) {
        return bootstrap(view, &heard, blank);
    }
    recover(now, view, last, blank, &heard, unheard)
}

/// A primary that still hears every member writes the Lease as it was. Whether it does, only it can know; while one lives
/// its set may be another than its log says, so nobody else makes one up.
fn living_primary(heard: &[&Report]) -> Option<WaitReason> {
    heard.iter().find_map(|report| match report.role {
        Role::Primary { epoch, .. } | Role::Hears { epoch } => {
            Some(WaitReason::PrimaryRecreates { by: report.identity.name.clone(), epoch })
        }
        Role::Lost { .. } | Role::Idle => None,
    })
}

/// Without a Lease nobody is told whom to follow, and a primary makes it anew only once it hears every member of its set. So a
/// backup goes by what replicas say of themselves: following is safe whoever it is, since epochs fence (rule 2).
pub fn whom_to_follow(view: &View) -> Option<(Epoch, ReplicaName)> {
    let (Register::Absent { .. } | Register::Blank { .. }) = view.register else { return None };
    let primaries = view.all_heard().filter_map(|report| match report.role {
        Role::Primary { epoch, .. } => Some((epoch, report.identity.name.clone())),
        Role::Hears { .. } | Role::Lost { .. } | Role::Idle => None,
    });
    primaries.max()
}

fn is_new(report: &Report) -> bool {
    report.last == Position::default()
        && report.known_epoch == Epoch(0)
        && report.recorded_set.is_empty()
        && report.state == StoreState::Clean
}

fn bootstrap(view: &View, heard: &[&Report], blank: Option<&Version>) -> Decision {
    let Some(first) = best(heard, view) else {
        return Decision::Wait { reason: WaitReason::ReplicasUnheard { unheard: Vec::new() }, until: None };
    };
    let Some(version) = VersionRange::newest_common(heard.iter().map(|report| report.knows)) else {
        let knows = heard.iter().map(|report| (report.identity.name.clone(), report.knows)).collect();
        return Decision::Wait { reason: WaitReason::NoCommonVersion { knows }, until: None };
    };
    let in_spec = heard.iter().filter(|report| view.spec.replicas.contains(&report.identity.name));
    let in_sync = in_spec.map(|report| report.identity.member(view.spec.processes_in_set)).collect();
    let lease = Lease::bootstrap(&first.identity, in_sync, view.timings.lease_duration);
    write(blank, &first.identity, lease.map(|lease| lease.at_least(version)), FailoverReason::NewCluster)
}

fn recover(
    now: Duration,
    view: &View,
    last: Option<&Lease>,
    blank: Option<&Version>,
    heard: &[&Report],
    unheard: Vec<ReplicaName>,
) -> Decision {
    // No store has heard of a higher one, so no log holds what only a higher one brought.
    let versions = heard.iter().map(|report| report.cluster_version).chain(last.map(Lease::cluster_version));
    let version = versions.max().unwrap_or_default();
    let candidate = match &view.spec.forced {
        Force::No | Force::Highest => highest_fit(view, heard, version),
        Force::Named(name) => view.heard(name),
    };
    let Some(candidate) = candidate else { return nobody(view, heard, version) };
    let highest = view.counted_end(candidate);
    let lost = lost_with_the_lease(view, last, heard, highest, version);
    if !lost.is_empty() && view.spec.forced == Force::No {
        return Decision::Blocked { reason: BlockedReason::RecoveryUnsafe { lost } };
    }
    let lease = unused_epoch(last, heard).and_then(|epoch| {
        Lease::recover(
            &candidate.identity,
            epoch,
            set_of(view, candidate, version),
            view.timings.lease_duration,
            version,
        )
    });
    let may_be_lost = may_be_lost(now, view, candidate, lost);
    let reason = if unheard.is_empty() && may_be_lost.is_nothing() {
        FailoverReason::Recovered { last: highest }
    } else {
        FailoverReason::ForcedRecovery { missing: unheard, may_be_lost }
    };
    write(blank, &candidate.identity, lease, reason)
}

fn highest_fit<'a>(view: &View, heard: &[&'a Report], version: ClusterVersion) -> Option<&'a Report> {
    let clean: Vec<&Report> = heard.iter().copied().filter(|report| is_fit(report, version)).collect();
    let highest = clean.iter().map(|report| view.counted_end(report)).max();
    let equal: Vec<&Report> = clean.into_iter().filter(|report| Some(view.counted_end(report)) == highest).collect();
    best(&equal, view)
}

/// No replica that answers could go on, or not the one that a person has named.
fn nobody(view: &View, heard: &[&Report], version: ClusterVersion) -> Decision {
    if let Force::Named(name) = &view.spec.forced {
        return Decision::Wait { reason: WaitReason::ForcedUnheard { name: name.clone() }, until: None };
    }
    if view.spec.forced == Force::Highest && heard.is_empty() {
        return Decision::Wait { reason: WaitReason::NobodyToForce, until: None };
    }
    let outdated: Vec<LostMember> = heard.iter().filter_map(|report| outdated(view, report, version)).collect();
    if !outdated.is_empty() {
        return Decision::Blocked { reason: BlockedReason::RecoveryUnsafe { lost: outdated } };
    }
    let damaged = heard.iter().map(|report| report.identity.name.clone()).collect();
    Decision::Blocked { reason: BlockedReason::NoCleanStore { damaged } }
}

/// Who of those that may hold confirmed messages which nobody else holds is not there, or not clean. Empty: the highest
/// clean log is safe to go on with.
fn lost_with_the_lease(
    view: &View,
    last: Option<&Lease>,
    heard: &[&Report],
    highest: Position,
    version: ClusterVersion,
) -> Vec<LostMember> {
    let mut lost: Vec<LostMember> = needed_members(last, heard)
        .into_iter()
        .filter(|member| !heard.iter().any(|report| member.is(&report.identity)))
        .map(|member| {
            let why = match view.heard(&member.name) {
                Some(report) => not_the_member(&member, report),
                None if view.spec.replicas.contains(&member.name) => LostWhy::Unheard,
                None => LostWhy::Removed,
            };
            LostMember { member, why }
        })
        .collect();
    let ahead_but_dirty = heard.iter().filter(|report| report.state == StoreState::Dirty && report.last > highest);
    lost.extend(ahead_but_dirty.map(|report| LostMember {
        member: report.identity.member(view.spec.processes_in_set),
        why: LostWhy::Damaged,
    }));
    let is_ahead = |report: &&&Report| report.state == StoreState::Clean && view.counted_end(report) > highest;
    let ahead = heard.iter().filter(is_ahead);
    lost.extend(ahead.filter_map(|report| outdated(view, report, version)));
    lost
}

/// May be elected in a cluster of that version, as far as its store and its build go.
fn is_fit(report: &Report, version: ClusterVersion) -> bool {
    report.state == StoreState::Clean && report.knows.contains(version)
}

fn outdated(view: &View, report: &Report, version: ClusterVersion) -> Option<LostMember> {
    let why = report.knows.check(version).err()?;
    Some(LostMember { member: report.identity.member(view.spec.processes_in_set), why: LostWhy::Outdated { why } })
}

/// The newest in-sync set known, from the highest log or from the Lease as last seen. Where the two are of one epoch nothing
/// says which is newer, so the members of both are asked for.
fn needed_members(last: Option<&Lease>, heard: &[&Report]) -> BTreeSet<Member> {
    let highest = heard.iter().max_by_key(|report| report.last);
    let (log_epoch, recorded) = match highest {
        Some(report) => (report.last.epoch, report.recorded_set.clone()),
        None => (Epoch(0), BTreeSet::new()),
    };
    match last {
        Some(last) if last.epoch() > log_epoch => last.in_sync().clone(),
        Some(last) if last.epoch() == log_epoch => recorded.union(last.in_sync()).cloned().collect(),
        _ => recorded,
    }
}

fn unused_epoch(last: Option<&Lease>, heard: &[&Report]) -> Result<Epoch, NotElectable> {
    let known = heard.iter().flat_map(|report| [report.known_epoch, report.last.epoch]).chain(last.map(Lease::given));
    let epoch = known.max().unwrap_or_default();
    epoch.0.checked_add(RECOVERY_EPOCH_GAP).map(Epoch).ok_or(NotElectable::EpochsExhausted { epoch })
}

/// Into the blank Lease, by a swap. While there is none it is created first, and all is decided again on what is so then.
fn write(
    blank: Option<&Version>,
    candidate: &Identity,
    lease: Result<Lease, NotElectable>,
    reason: FailoverReason,
) -> Decision {
    match (lease, blank) {
        (Ok(_), None) => Decision::Create { candidate: candidate.clone(), reason },
        (Err(why), None) => Decision::Blocked { reason: BlockedReason::Unswappable { why } },
        (lease, Some(blank)) => swap(blank, lease, candidate, reason),
    }
}
