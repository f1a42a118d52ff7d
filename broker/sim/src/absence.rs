//! A way to lose the Lease that single faults hardly ever make: when it is deleted those who hold everything are away, and one
//! answers that holds little, or nothing. Whoever makes a Lease up from who answers then loses what was confirmed.

use std::time::Duration;

use rand::Rng;
use understudy_election::{Lease, Register, Stored};
use understudy_node::RoleStatus;
use understudy_record::Index;

use crate::faults::FaultStep;
use crate::world::{Happening, World};

/// Between two looks whether it is time.
const LOOKS: Duration = Duration::from_millis(100);
/// Those who hold everything are away for so many milliseconds: the other one has started long before.
const AWAY: std::ops::Range<u64> = 1_000..4_000;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Absence {
    /// One is to lose its power, and mostly its disk.
    Begin,
    /// It has; the others go on without it. `since`: from when on they alone have been the set, with the primary's last record
    /// then.
    Without(usize, Option<(Duration, Index)>),
}

impl World {
    pub(crate) fn absence(&mut self, step: Absence) {
        if self.is_calm {
            return;
        }
        let next = match step {
            Absence::Begin => self.begin_absence(),
            Absence::Without(lone, since) => match (since, self.whole_without(lone)) {
                (_, None) => Some(Absence::Without(lone, None)),
                (None, Some((last, _))) => Some(Absence::Without(lone, Some((self.schedule.now, last)))),
                // What they know of the set is on all their disks, and nothing older is on its way to anybody.
                (Some((since, last)), Some((_, committed)))
                    if committed >= last && self.schedule.now > since + self.plan.watch_lag =>
                {
                    self.delete_lease_before(lone);
                    None
                }
                _ => Some(step),
            },
        };
        if let Some(next) = next {
            self.schedule.after(LOOKS, Happening::Absence(next));
        }
    }

    fn begin_absence(&mut self) -> Option<Absence> {
        let machine = self.rng.random_range(0..self.machines.len());
        if !self.machines[machine].has_power || !self.may_lose_disk(machine) {
            return Some(Absence::Begin);
        }
        self.cut_power(machine);
        if self.rng.random_bool(0.7) {
            self.lose_disk(machine);
        }
        self.tell(|_| format!("machine {machine} is off until the Lease is deleted"));
        Some(Absence::Without(machine, None))
    }

    /// The primary's last record and how far it is committed, if everybody who knows a set knows one of replicas that are
    /// there: a lost member that a log or an elector remembers is for a person to judge.
    fn whole_without(&self, lone: usize) -> Option<(Index, Index)> {
        let lease = self.api.lease().filter(|_| self.requests_under_way == 0 && self.counts.leases_deleted == 0)?;
        let names_lone = |lease: &Lease| lease.in_sync().iter().any(|member| member.name == self.machines[lone].name);
        let is_behind =
            |register: &Register| matches!(register, Register::Held(observed) if names_lone(&observed.lease));
        let processes = || self.machines.iter().filter_map(|machine| machine.process.as_ref());
        let behind = is_behind(self.operator.tracker.register())
            || processes().any(|process| is_behind(process.tracker.register()));
        let primary = processes().find(|process| Some(&process.identity) == lease.holder())?;
        let status = primary.shared.status.borrow();
        let serves = matches!(status.role, RoleStatus::Primary { .. }) && status.epoch == lease.epoch();
        let agrees = status.in_sync.iter().all(|member| lease.in_sync().contains(member));
        (!names_lone(lease) && !behind && serves && agrees).then_some((status.last.index, status.committed))
    }

    fn delete_lease_before(&mut self, lone: usize) {
        let way = self.rng.random_range(0..3);
        let others: Vec<usize> = (0..self.machines.len()).filter(|other| *other != lone).collect();
        self.tell(|_| format!("the Lease is deleted, and all but machine {lone} are away"));
        self.delete_lease();
        for other in others {
            let span = self.span(AWAY);
            let until = self.schedule.now + span;
            match way {
                0 => self.lose_power(other, AWAY),
                1 => self.freeze(other, until),
                _ => {
                    self.network.cut(lone, other, until);
                    self.network.cut(other, lone, until);
                }
            }
        }
        self.spread_lease();
        let soon = self.span(1..300);
        self.schedule.after(soon, Happening::FaultEnds(FaultStep::PowerBack(lone)));
    }

    /// A cache that is behind shows no set with a member whose disk is gone where the Lease is lost too: what was in it
    /// nobody could say.
    pub(crate) fn may_be_shown(&self, seen: &Stored) -> bool {
        let exists = |store| self.machines.iter().any(|machine| machine.store == Some(store));
        !self.plan.absence || seen.lease().is_none_or(|lease| lease.in_sync().iter().all(|member| exists(member.store)))
    }
}
