//! Who could be elected: what has become of each member of the in-sync set, and the choice among those that are left. Does
//! not judge whether an election is called for.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use understudy_record::variant::{Variant, is_broken};
use understudy_record::{Identity, Member, Position, ReplicaName};

use crate::Lease;
use crate::decide::Decision;
use crate::reason::{FailoverReason, LostMember, LostWhy, WaitReason};
use crate::view::{Contact, Report, StoreState, View};

/// The members of one Lease's set, as one view knows them.
#[derive(Debug)]
pub(crate) struct Muster<'a> {
    /// Reachable, the very store (and process) of the set's entry, clean, and not the holder that is to be replaced.
    pub(crate) electable: Vec<&'a Report>,
    /// Not heard, but nothing says that they cannot come back as they were.
    pub(crate) away: Vec<&'a Member>,
    pub(crate) lost: Vec<LostMember>,
    /// Reachable, as they were, and of a build that does not know the cluster's version: they come back with another.
    pub(crate) outdated: Vec<LostMember>,
}

impl<'a> Muster<'a> {
    pub(crate) fn of(lease: &'a Lease, view: &'a View) -> Self {
        let mut muster = Self { electable: Vec::new(), away: Vec::new(), lost: Vec::new(), outdated: Vec::new() };
        for member in lease.in_sync() {
            let lost = |why| LostMember { member: member.clone(), why };
            match view.heard(&member.name) {
                _ if is_broken(Variant::ElectOutsider) => {}
                None if view.spec.replicas.contains(&member.name) => muster.away.push(member),
                None => muster.lost.push(lost(LostWhy::Removed)),
                Some(report) if !member.is(&report.identity) => muster.lost.push(lost(not_the_member(member, report))),
                Some(report) if report.state == StoreState::Dirty => muster.lost.push(lost(LostWhy::Damaged)),
                Some(report) if Some(&report.identity) == lease.holder() => muster.away.push(member),
                Some(_) if view.spec.fenced.contains(&member.name) => muster.away.push(member),
                Some(report) => match report.knows.check(lease.cluster_version()) {
                    Ok(()) => muster.electable.push(report),
                    Err(why) => muster.outdated.push(lost(LostWhy::Outdated { why })),
                },
            }
        }
        if is_broken(Variant::ElectOutsider) {
            let clean =
                |report: &&Report| report.state == StoreState::Clean && Some(&report.identity) != lease.holder();
            muster.electable = view.all_heard().filter(clean).collect();
        }
        muster
    }

    /// The candidate, and with it those who stay in the set.
    pub(crate) fn choose(&self, view: &View) -> Option<(&'a Report, BTreeSet<Identity>)> {
        best(&self.electable, view).map(|candidate| (candidate, self.staying()))
    }

    /// The candidate that a person has named, if it can be elected. Each member holds all that was confirmed, so it need not
    /// be the one with the longest log.
    pub(crate) fn choose_named(&self, name: &ReplicaName) -> Option<(&'a Report, BTreeSet<Identity>)> {
        let named = self.electable.iter().find(|report| report.identity.name == *name);
        named.map(|candidate| (*candidate, self.staying()))
    }

    fn staying(&self) -> BTreeSet<Identity> {
        self.electable.iter().map(|report| report.identity.clone()).collect()
    }

    /// Nobody can be elected now, and these may come back.
    pub(crate) fn wait(self, cause: FailoverReason) -> Decision {
        let outdated = self.outdated.iter().map(|lost| lost.member.clone());
        let away = self.away.into_iter().cloned().chain(outdated).collect();
        let lost = self.lost.into_iter().chain(self.outdated).collect();
        Decision::Wait { reason: WaitReason::MembersAway { cause, away, lost }, until: None }
    }
}

/// The highest log, then the preferred primary, then the first name; a replica that the spec is about to remove only if
/// there is no other.
pub(crate) fn best<'a>(candidates: &[&'a Report], view: &View) -> Option<&'a Report> {
    let rank = |report: &&Report| {
        let name = &report.identity.name;
        let preferred = view.spec.preferred.as_ref() == Some(name);
        (view.spec.replicas.contains(name), report.last, preferred, Reverse(name.clone()))
    };
    candidates.iter().copied().max_by_key(rank)
}

/// How it comes that the name of `member` answers, but not as that member.
pub(crate) fn not_the_member(member: &Member, report: &Report) -> LostWhy {
    let now = report.identity.clone();
    if member.store == now.store { LostWhy::MemoryLost { now } } else { LostWhy::StoreReplaced { now } }
}

impl View {
    /// What the replica of that name says now; `None` if it is not heard.
    pub(crate) fn heard(&self, name: &understudy_record::ReplicaName) -> Option<&Report> {
        let replica = self.replicas.get(name)?;
        replica.report.as_ref().filter(|_| replica.contact == Contact::Reachable)
    }

    /// Where that part of its log ends which a confirm may have stood on: what no loss of power takes or, where processes are
    /// the members, what it has in memory.
    pub(crate) fn counted_end(&self, report: &Report) -> Position {
        if self.spec.processes_in_set { report.last } else { report.durable }
    }

    /// What each replica that is heard says, in the order of their names.
    pub(crate) fn all_heard(&self) -> impl Iterator<Item = &Report> {
        self.replicas.keys().filter_map(|name| self.heard(name))
    }
}
