//! Which steps a state allows, within the bounds.

use crate::cluster::{Action, Cluster, REPLICAS, State};
use understudy_election::{Lease, Report, Role as Says, Stored, Version};

use crate::lease_store::report;
use crate::replica::{LATER, Leader, Replica, Role};
use crate::rules::Broken;

impl Cluster {
    pub(crate) fn possible(&self, state: &State, out: &mut Vec<Action>) {
        for number in 0..REPLICAS {
            self.of_replica(state, number, out);
        }
        for (link, it) in state.links.iter().enumerate() {
            if it.open && !it.down.is_empty() {
                out.push(Action::Deliver { link });
            }
            if it.up.is_some() {
                out.push(Action::Acknowledge { link });
            }
            if !it.open {
                out.push(Action::NoticeEnd { link });
            } else if state.used.breaks < self.bounds.breaks {
                out.push(Action::Break { link });
            }
        }
        for (request, it) in state.requests.iter().enumerate() {
            match &it.answer {
                None if !it.given_up || state.store.may_take(&it.request) => out.push(Action::ServeLease { request }),
                Some(_) => out.push(Action::AnswerLease { request }),
                None => {}
            }
            if !it.given_up && state.used.lost_answers < self.bounds.lost_answers {
                out.push(Action::LoseAnswer { request });
            }
        }
        self.of_electors(state, out);
    }

    fn of_replica(&self, state: &State, number: usize, out: &mut Vec<Action>) {
        let replica = &state.replicas[number];
        let (bounds, used) = (&self.bounds, &state.used);
        if !replica.orders.is_empty() {
            out.push(Action::JournalCompletes { replica: number });
        }
        match &replica.role {
            Role::Down => {
                out.push(Action::Restart { replica: number });
                return;
            }
            Role::Backup(backup, _) => {
                for (elected, (lease, version)) in state.store.elected.iter().enumerate() {
                    let ahead = lease.epoch() > backup.history().last().epoch && self.may_act_by(replica, version);
                    if lease.holder() == Some(&replica.identity()) && ahead && lease.epoch() >= backup.known_epoch() {
                        out.push(Action::TakeRole { replica: number, elected });
                    }
                }
                if let Stored::Held(lease, version) = &state.store.current
                    && lease.holder() == Some(&replica.identity())
                    && !self.may_act_by(replica, version)
                {
                    out.push(Action::ReadLease { replica: number });
                }
                for primary in (0..REPLICAS).filter(|other| *other != number && replica.connects < bounds.connects) {
                    let linked =
                        state.links.iter().any(|link| link.open && (link.backup, link.primary) == (number, primary));
                    let leader = state.replicas[primary].leader();
                    let me = replica.identity().member(self.names_processes());
                    let follows = bounds.newcomers > 0 && number < bounds.in_sync + bounds.newcomers;
                    let wanted = |leader: &Leader| follows || leader.primary.in_force().contains(&me);
                    if leader.is_some_and(wanted) && !linked {
                        out.push(Action::Connect { backup: number, primary });
                    }
                }
            }
            Role::Primary(leader) => {
                let primary = number;
                if used.publishes < bounds.publishes {
                    out.push(Action::Publish { primary });
                }
                if used.silences < bounds.silences && !leader.primary.hears_all() {
                    out.push(Action::FindSilent { primary });
                }
                if self.would_ask(leader) {
                    out.push(Action::AskLease { primary });
                }
                let (epoch, me) = (leader.primary.epoch(), replica.identity());
                let deposed =
                    |lease: &Lease| lease.epoch() > epoch || (lease.epoch() == epoch && lease.holder() != Some(&me));
                if state.store.elected.iter().any(|(lease, _)| deposed(lease)) {
                    out.push(Action::SeeDeposed { primary });
                }
                if state.store.deleted.is_some() && !leader.keeper.is_deleted() {
                    out.push(Action::SeeDeleted { primary });
                }
            }
        }
        if used.crashes < bounds.crashes {
            out.push(Action::Crash { replica: number });
        }
        if used.lost_disks < bounds.lost_disks {
            out.push(Action::LoseDisk { replica: number });
        }
    }

    fn would_ask(&self, leader: &Leader) -> bool {
        let Some(hears_all) = self.hears_all(leader) else { return true };
        leader.keeper.clone().poll_request(LATER, true, hears_all).is_ok_and(|request| request.is_some())
    }

    /// Whether the replica may take a role by that Lease, however late: it has seen no blank one that may be the next (rule 7).
    pub(crate) fn may_act_by(&self, replica: &Replica, version: &Version) -> bool {
        self.is_broken(Broken::ActsByALeaseThatIsGone)
            || replica.blanks_seen.iter().all(|seen| seen == version.incarnation())
    }

    /// Whether a primary whose Lease was deleted may write; `None`: it has a proof to write first, to its log (rule 7). To
    /// create a blank Lease it may at any time, as anybody may.
    pub(crate) fn hears_all(&self, leader: &Leader) -> Option<bool> {
        let blank = leader.keeper.blank();
        let needs_none =
            blank.is_none() && !(self.is_broken(Broken::CreationsCarryAState) && leader.keeper.is_deleted());
        if needs_none || self.is_broken(Broken::RecreatesWithoutProof) {
            return Some(true);
        }
        let (_, proof) = leader.proof.as_ref().filter(|(of, _)| of.as_ref() == blank)?;
        Some(leader.primary.hears_all() && leader.primary.held_by_all() >= *proof)
    }

    fn of_electors(&self, state: &State, out: &mut Vec<Action>) {
        let current = &state.store.current;
        if current.lease().is_some() && state.used.elections < self.bounds.elections {
            for candidate in 0..REPLICAS {
                let reachings = (0..1_u8 << REPLICAS).filter(|reaching| reaching & (1 << candidate) != 0);
                out.extend(reachings.map(|reaching| Action::Elect { candidate, reaching }));
            }
        }
        if *current != Stored::Absent && state.used.deletions < self.bounds.deletions {
            out.push(Action::DeleteLease);
        }
        if *current == Stored::Absent && self.bounds.recoveries > 0 {
            out.push(Action::CreateLease);
        }
        let early = self.is_broken(Broken::RecoversFromOldReports) && state.used.deletions < self.bounds.deletions;
        match &state.elector {
            None if (current.blank().is_some() || early) && state.used.recoveries < self.bounds.recoveries => {
                let knowing: &[bool] = if self.bounds.knowing_electors { &[false, true] } else { &[false] };
                out.extend(knowing.iter().map(|&knowing| Action::ElectorFindsNone { knowing }));
            }
            Some(elector) => {
                let is_old = |report: &Report| report.blank_seen.as_ref() != current.blank();
                let may_hear = current.blank().is_some() || early;
                let unheard = (0..REPLICAS).filter(|replica| {
                    may_hear && elector.reports[*replica].as_ref().is_none_or(|it| !early && is_old(it))
                });
                // A report that knows of a living primary makes the elector wait for another: as if it came only then.
                let heard =
                    unheard.filter(|replica| report(&state.replicas[*replica]).is_some_and(|it| it.role == Says::Idle));
                out.extend(heard.map(|replica| Action::ElectorHears { replica }));
                if current.blank().is_some() && elector.reports.iter().all(Option::is_some) {
                    out.push(Action::ElectorRecovers);
                }
            }
            None => {}
        }
        if self.is_broken(Broken::ResumesAfterRestart) {
            for (elected, (lease, _)) in state.store.elected.iter().enumerate() {
                let resumes = |replica: &usize| {
                    let it = &state.replicas[*replica];
                    let backup = it.backup();
                    lease.holder() == Some(&it.identity()) && backup.is_some_and(|it| it.known_epoch() == lease.epoch())
                };
                out.extend((0..REPLICAS).filter(resumes).map(|replica| Action::Resume { replica, elected }));
            }
        }
    }
}
