//! What electors do: elections from the Lease as it is, and the recovery of one that is gone. Whether either is wise is not
//! asked.

use std::collections::BTreeSet;

use understudy_election::{Lease, LeaseParts, Stored};
use understudy_record::{Epoch, Identity};

use crate::cluster::REPLICAS;
use crate::happen::Step;
use crate::replica::LEASE;
use crate::rules::Broken;

impl Step<'_> {
    pub(crate) fn elect(&mut self, candidate: usize, reaching: u8) -> bool {
        let Some(lease) = self.state.store.current.lease() else { return false };
        if !self.state.replicas[candidate].is_up() {
            return false;
        }
        let reached = (0..REPLICAS).filter(|number| reaching & (1 << number) != 0);
        let reachable: BTreeSet<Identity> = reached.map(|number| self.state.replicas[number].identity()).collect();
        // A replica that is no member makes no difference: the step without it is the same.
        let member = |identity: &Identity| lease.entry_of(identity).is_some();
        let chosen = self.state.replicas[candidate].identity();
        if reachable.iter().any(|identity| *identity != chosen && !member(identity)) {
            return false;
        }
        let elected = match lease.elect(&chosen, &reachable) {
            Ok(elected) => elected,
            Err(_) if self.cluster.is_broken(Broken::ElectsOutsiders) => {
                let names_processes = self.cluster.names_processes();
                let stay = lease.in_sync().iter().filter(|member| member.name != chosen.name);
                let stay = stay.filter(|member| reachable.iter().any(|identity| member.is(identity)));
                let in_sync = stay.cloned().chain([chosen.member(names_processes)]).collect();
                let epoch = Epoch(lease.epoch().0 + 1);
                let parts = LeaseParts {
                    cluster_version: understudy_record::version::ClusterVersion::FIRST,
                    holder: Some(chosen),
                    epoch,
                    given: None,
                    in_sync,
                    duration: LEASE,
                    renewed: None,
                };
                let Ok(elected) = Lease::from_parts(parts) else { return false };
                elected
            }
            Err(_) => return false,
        };
        self.state.used.elections += 1;
        self.give_epoch(elected.epoch());
        self.state.store.write(elected);
        true
    }

    pub(crate) fn recover(&mut self) -> bool {
        let Some(elector) = self.state.elector.take() else { return false };
        let Stored::Blank(blank) = &self.state.store.current else { return false };
        let lease = elector.decide(blank, self.cluster.names_processes(), self.cluster.broken);
        let Some(lease) = lease else { return false };
        let living = self.state.living_members(self.cluster).count();
        if living == 0 {
            self.state.ledger.committed.clear(); // no disk that was in sync lives: what it held is gone
        }
        self.state.ledger.recovered = true;
        self.give_epoch(lease.epoch());
        self.state.store.write(lease);
        true
    }

    /// A Lease gives an epoch to somebody. One that was given in another Lease does not count once its holder has seen
    /// the next, or is no more: nobody acts by it.
    fn give_epoch(&mut self, epoch: Epoch) {
        let may_be_taken = |lease: &Lease, version| {
            let mut replicas = self.state.replicas.iter();
            replicas.any(|it| lease.holder() == Some(&it.identity()) && self.cluster.may_act_by(it, version))
        };
        let mut elected = self.state.store.elected.iter();
        let given = elected.any(|(lease, version)| lease.epoch() >= epoch && may_be_taken(lease, version));
        let known = self.state.replicas.iter().any(|replica| replica.disk.epoch >= epoch);
        self.state.ledger.epoch_lowered |= given || known;
    }
}
