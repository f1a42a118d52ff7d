//! The decision: leave the primary, replace it, or call a person. Pure; the caller asks again whenever its view changes, and
//! at the time a `Wait` names.
//!
//! In two steps: is the holder of the Lease to be replaced (`judge`), and by whom (`elect`). The first is about liveness only
//! and may err; the second can elect none but a member of the set (rule 1).

use std::time::Duration;

use understudy_record::{Identity, ReplicaName};

use crate::candidate::Muster;
use crate::force::{force_highest, force_named};
use crate::reason::{BlockedReason, FailoverReason, WaitReason};
use crate::recovery::decide_without_lease;
use crate::tracker::{Observed, Register};
use crate::view::{Contact, Elector, Force, Loss, Promotion, Report, Role, View};
use crate::{Lease, NotElectable, Version};

/// What to do, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// `until`: when time alone may change the answer; `None`: only a change of the view does.
    Wait { reason: WaitReason, until: Option<Duration> },
    /// Swap the Lease of version `expected` for `lease`. A conflict means that somebody else was faster: look again.
    Elect { expected: Version, lease: Lease, candidate: Identity, reason: FailoverReason },
    /// Create a blank Lease, which says nothing: once every replica has seen it `candidate` can be elected in it, as things
    /// stand. A conflict means that somebody else has created it, which is as good.
    Create { candidate: Identity, reason: FailoverReason },
    /// Only a person can go on.
    Blocked { reason: BlockedReason },
}

/// What becomes of the holder.
enum Verdict {
    Keep { reason: WaitReason, until: Option<Duration> },
    Replace(FailoverReason),
}

/// `now` is on the elector's own monotonic clock, like every point in time in `view`.
pub fn decide(now: Duration, view: &View) -> Decision {
    if let Some(decision) = forced_in_vain(now, view) {
        return decision;
    }
    let observed = match &view.register {
        Register::Unread => return Decision::Wait { reason: WaitReason::LeaseUnread, until: None },
        Register::Absent { last, .. } => return decide_without_lease(now, view, last.as_ref(), None),
        Register::Blank { version, last } => return decide_without_lease(now, view, last.as_ref(), Some(version)),
        Register::Held(observed) => observed,
    };
    if let Some(decision) = lease_is_behind(now, view, observed) {
        return decision;
    }
    if let Force::Named(name) = &view.spec.forced
        && let Some(decision) = force_named(now, view, observed, name)
    {
        return decision;
    }
    let verdict = match observed.lease.holder() {
        None => Verdict::Replace(FailoverReason::Vacant),
        Some(holder) => judge(now, view, observed, holder),
    };
    match verdict {
        Verdict::Keep { reason, until } => Decision::Wait { reason, until },
        Verdict::Replace(reason) => elect(now, view, observed, reason),
    }
}

/// A person has named one that does not answer: whoever can be elected without a loss is.
fn forced_in_vain(now: Duration, view: &View) -> Option<Decision> {
    let Force::Named(name) = &view.spec.forced else { return None };
    if view.heard(name).is_some() || view.register == Register::Unread {
        return None;
    }
    let mut others = view.clone();
    others.spec.forced = Force::No;
    let reason = WaitReason::ForcedUnheard { name: name.clone() };
    Some(match decide(now, &others) {
        Decision::Wait { until, .. } => Decision::Wait { reason, until },
        Decision::Blocked { .. } => Decision::Wait { reason, until: None },
        elected => elected,
    })
}

/// A replica that knows a higher epoch refuses the Lease's, and anything elected after it. Mostly the newer Lease is on its
/// way here; if none comes the Lease was put back to an older state, and an election from it could be neither followed nor
/// safe.
fn lease_is_behind(now: Duration, view: &View, observed: &Observed) -> Option<Decision> {
    let reports = view.replicas.values().filter_map(|replica| replica.report.as_ref());
    let highest = reports.max_by_key(|report| report.known_epoch)?;
    let (lease, known) = (observed.lease.epoch(), highest.known_epoch);
    if known <= lease {
        return None;
    }
    let by = highest.identity.name.clone();
    let expiry = expiry(observed);
    if now < expiry {
        return Some(Decision::Wait { reason: WaitReason::LeaseBehind { lease, known, by }, until: Some(expiry) });
    }
    Some(Decision::Blocked { reason: BlockedReason::LeaseWentBack { lease, known, by } })
}

fn judge(now: Duration, view: &View, observed: &Observed, holder: &Identity) -> Verdict {
    if let Elector::Backup(me) = &view.elector
        && let Some(reason) = backup_abstains(view, observed, holder, me)
    {
        return Verdict::Keep { reason, until: None };
    }
    match view.heard(&holder.name) {
        Some(report) if report.identity == *holder => judge_heard(now, view, observed, report),
        Some(report) => {
            let reason = FailoverReason::IdentityChanged { holder: holder.clone(), now: report.identity.clone() };
            judge_ended(now, view, observed, holder, reason)
        }
        None if view.replicas.get(&holder.name).is_some_and(|replica| replica.contact == Contact::Gone) => {
            judge_ended(now, view, observed, holder, FailoverReason::ProcessGone { holder: holder.clone() })
        }
        None => judge_unheard(now, view, observed, holder),
    }
}

/// A backup that still hears its primary never stands; nor does the holder against itself, or one that is not in sync.
fn backup_abstains(view: &View, observed: &Observed, holder: &Identity, me: &Identity) -> Option<WaitReason> {
    if me == holder {
        return Some(WaitReason::PrimaryHealthy { primary: holder.clone() });
    }
    let own = view.heard(&me.name).map(|report| report.role);
    if own == Some(Role::Hears { epoch: observed.lease.epoch() }) {
        return Some(WaitReason::StillHeard { primary: holder.clone(), by: me.name.clone() });
    }
    if observed.lease.entry_of(me).is_none() {
        let members = observed.lease.in_sync().iter().cloned().collect();
        return Some(WaitReason::NotAMember { replica: me.name.clone(), members });
    }
    None
}

/// The holder's own process answers the elector. It is replaced only for what it says of itself: a journal that stands
/// still, or that it does not act as the primary it was elected to be.
fn judge_heard(now: Duration, view: &View, observed: &Observed, report: &Report) -> Verdict {
    let holder = report.identity.clone();
    match report.role {
        Role::Primary { epoch, stalled_for } if epoch == observed.lease.epoch() => {
            if stalled_for >= view.timings.stall_timeout && view.elector == Elector::Operator {
                return Verdict::Replace(FailoverReason::JournalStalled { holder, stalled_for });
            }
            judge_hindered(now, view, observed, holder)
        }
        _ if now >= expiry(observed) => Verdict::Replace(FailoverReason::NotServing { holder }),
        _ => Verdict::Keep { reason: WaitReason::PrimaryHealthy { primary: holder }, until: Some(expiry(observed)) },
    }
}

/// Rule 6 from outside: a primary that neither reaches the Lease nor hears a member of its set can confirm nothing and cannot
/// shrink the set. Once that has lasted for the Lease's duration it has closed its clients, so replacing it costs nothing.
fn judge_hindered(now: Duration, view: &View, observed: &Observed, holder: Identity) -> Verdict {
    let Some((lost_at, witness)) = first_witness(view, &observed.lease) else {
        return Verdict::Keep { reason: WaitReason::PrimaryHealthy { primary: holder }, until: None };
    };
    let hindered_at = expiry(observed).max(lost_at.saturating_add(observed.lease.duration()));
    if now >= hindered_at {
        return Verdict::Replace(FailoverReason::Hindered { holder, witness });
    }
    Verdict::Keep { reason: WaitReason::PrimaryHealthy { primary: holder }, until: Some(hindered_at) }
}

/// The holder's process has ended, as far as the elector knows. A member of the set that hears it at this moment knows
/// better: a pod may be deleted whose process lives on, on a node that nobody reaches. The elector's knowledge then counts
/// as one witness.
fn judge_ended(now: Duration, view: &View, observed: &Observed, holder: &Identity, reason: FailoverReason) -> Verdict {
    if hearer(view, &observed.lease).is_some() {
        return judge_unheard(now, view, observed, holder);
    }
    if view.elector == Elector::Operator || now >= expiry(observed) {
        return Verdict::Replace(reason);
    }
    // A backup that has just started hears the others a moment later; it does not put them out of the set before.
    let others = observed.lease.in_sync().iter().filter(|member| member.name != holder.name);
    let unheard: Vec<ReplicaName> =
        others.filter(|member| view.heard(&member.name).is_none()).map(|member| member.name.clone()).collect();
    if unheard.is_empty() {
        return Verdict::Replace(reason);
    }
    let reason = WaitReason::PrimaryEnded { primary: holder.clone(), unheard };
    Verdict::Keep { reason, until: Some(expiry(observed)) }
}

/// The elector does not hear the holder. Two witnesses are enough for the operator, unless a member that it hears hears the
/// holder: then the two may sit behind one broken link, and a primary that renews its Lease shrinks the set and goes on.
/// Otherwise the Lease has to run out.
fn judge_unheard(now: Duration, view: &View, observed: &Observed, holder: &Identity) -> Verdict {
    let mut wake = expiry(observed);
    let hearer = hearer(view, &observed.lease);
    if view.elector == Elector::Operator && hearer.is_none() {
        let mine = lost_by_elector_at(view, holder);
        let other = first_witness(view, &observed.lease);
        if let (Some(mine), Some((others, witness))) = (mine, other) {
            let both = mine.max(others);
            if now >= both {
                return Verdict::Replace(FailoverReason::TwoWitnesses { holder: holder.clone(), witness });
            }
            wake = wake.min(both);
        }
    }
    if now >= expiry(observed) {
        // Rule 6: past its Lease a primary goes on as long as every member of its set acknowledges. If one does not, it
        // can neither commit nor, without the Lease, shrink the set: then it is replaced though somebody hears it.
        return match hearer.filter(|_| every_backup_hears(view, &observed.lease)) {
            Some(by) => Verdict::Keep { reason: WaitReason::StillHeard { primary: holder.clone(), by }, until: None },
            None => {
                let unrenewed_for = now.saturating_sub(observed.unchanged_since);
                Verdict::Replace(FailoverReason::Expired { holder: holder.clone(), unrenewed_for })
            }
        };
    }
    let primary = holder.clone();
    let reason = match hearer {
        Some(by) => WaitReason::StillHeard { primary, by },
        None => WaitReason::NotHeard { primary },
    };
    Verdict::Keep { reason, until: Some(wake) }
}

fn expiry(observed: &Observed) -> Duration {
    observed.unchanged_since.saturating_add(observed.lease.duration())
}

/// From when on the elector itself bears witness that the holder is lost. Never having heard it is no witness.
fn lost_by_elector_at(view: &View, holder: &Identity) -> Option<Duration> {
    match view.replicas.get(&holder.name)?.contact {
        Contact::Unknown => None,
        Contact::Lost { since, how } => Some(lost_at(view, since, how)),
        // Only asked when what answers under the name is not the holder.
        Contact::Gone | Contact::Reachable => Some(Duration::ZERO),
    }
}

/// The first other member of the set, and from when on it bears witness that it has lost the primary of this epoch.
fn first_witness(view: &View, lease: &Lease) -> Option<(Duration, ReplicaName)> {
    members_heard(view, lease)
        .filter_map(|report| match report.role {
            Role::Lost { epoch, since, how } if epoch == lease.epoch() => {
                Some((lost_at(view, since, how), report.identity.name.clone()))
            }
            _ => None,
        })
        .min()
}

fn lost_at(view: &View, since: Duration, how: Loss) -> Duration {
    match how {
        Loss::Reset => since,
        Loss::Silent => since.saturating_add(view.timings.backup_timeout),
    }
}

/// Another member of the set that hears this epoch's primary.
fn hearer(view: &View, lease: &Lease) -> Option<ReplicaName> {
    let hears = Role::Hears { epoch: lease.epoch() };
    members_heard(view, lease).find(|report| report.role == hears).map(|report| report.identity.name.clone())
}

fn every_backup_hears(view: &View, lease: &Lease) -> bool {
    let hears = Role::Hears { epoch: lease.epoch() };
    let backups = lease.in_sync().len() - usize::from(lease.holder().is_some());
    members_heard(view, lease).filter(|report| report.role == hears).count() == backups
}

/// The members of the set, the holder apart, that the elector hears.
fn members_heard<'a>(view: &'a View, lease: &'a Lease) -> impl Iterator<Item = &'a Report> {
    let others = lease.in_sync().iter().filter(|member| lease.holder().is_none_or(|holder| holder.name != member.name));
    others.filter_map(|member| view.heard(&member.name).filter(|report| member.is(&report.identity)))
}

fn elect(now: Duration, view: &View, observed: &Observed, reason: FailoverReason) -> Decision {
    let lease = &observed.lease;
    let muster = Muster::of(lease, view);
    if let Promotion::Manual { to } = &view.spec.promotion {
        return promote(observed, muster, reason, to.as_ref());
    }
    if let Some((candidate, staying)) = muster.choose(view) {
        return swap(&observed.version, lease.elect(&candidate.identity, &staying), &candidate.identity, reason);
    }
    if matches!(
        reason,
        FailoverReason::JournalStalled { .. } | FailoverReason::Hindered { .. } | FailoverReason::NotServing { .. }
    ) {
        // Nobody could do better than the primary that is there, and a person may not know that it is.
        return muster.wait(reason);
    }
    if view.spec.forced == Force::Highest {
        return force_highest(now, view, observed, muster);
    }
    if muster.away.is_empty() && muster.outdated.is_empty() {
        return Decision::Blocked { reason: BlockedReason::NoMemberLeft { cause: reason, lost: muster.lost } };
    }
    muster.wait(reason)
}

/// Nobody is elected whom no person has named.
fn promote(observed: &Observed, muster: Muster<'_>, cause: FailoverReason, to: Option<&ReplicaName>) -> Decision {
    match to.and_then(|name| muster.choose_named(name)) {
        Some((candidate, staying)) => {
            swap(&observed.version, observed.lease.elect(&candidate.identity, &staying), &candidate.identity, cause)
        }
        None if muster.electable.is_empty() => muster.wait(cause),
        None => {
            let electable = muster.electable.iter().map(|report| report.identity.name.clone()).collect();
            Decision::Blocked { reason: BlockedReason::AwaitsPromotion { cause, electable, named: to.cloned() } }
        }
    }
}

pub(crate) fn swap(
    expected: &Version,
    lease: Result<Lease, NotElectable>,
    candidate: &Identity,
    reason: FailoverReason,
) -> Decision {
    match lease {
        Ok(lease) => Decision::Elect { expected: expected.clone(), lease, candidate: candidate.clone(), reason },
        Err(why) => Decision::Blocked { reason: BlockedReason::Unswappable { why } },
    }
}
