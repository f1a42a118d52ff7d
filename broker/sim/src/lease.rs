//! Requests to the Lease's store and their answers, and what watchers see of it.

use std::time::Duration;

use rand::Rng;
use understudy_election::{Lease, Stored};
use understudy_node::{Event, LeaseEvent};
use understudy_replication::{LeaseAnswer, LeaseRequest};

use crate::network::{OPERATOR, Place};
use crate::world::{Asker, ForProcess, Happening, World};

/// An answer of the API server that takes longer is not waited for.
const REQUEST_TIMEOUT: Duration = Duration::from_millis(800);

impl World {
    pub(crate) fn asker_number(asker: &Asker) -> usize {
        match asker {
            Asker::Keeper(place, _) | Asker::Backup(place) => place.machine,
            Asker::Operator => OPERATOR,
        }
    }

    pub(crate) fn request(&mut self, asker: Asker, request: LeaseRequest) {
        let now = self.schedule.now;
        let reached = self.api.is_reached_by(Self::asker_number(&asker), now);
        let slow = now < self.api.slow_until;
        let delay = self.delay() + Duration::from_millis(if slow { self.rng.random_range(100..1500) } else { 1 });
        let loses = self.plan.lost_answers > 0 && !self.is_calm && self.rng.random_ratio(self.plan.lost_answers, 10);
        // A request that is given up may take effect all the same, now or much later, or never.
        if !reached || loses || delay > REQUEST_TIMEOUT {
            let lost = LeaseAnswer::Unknown("no answer".into());
            self.schedule.after(REQUEST_TIMEOUT, Happening::Answer(asker.clone(), request.clone(), lost));
            let arrives = match reached {
                true => self.rng.random_bool(0.7),
                false => self.rng.random_bool(0.2),
            };
            if arrives {
                let at = Duration::from_millis(self.rng.random_range(1..4_000));
                self.send_request(at, asker, request, true);
            }
            return;
        }
        self.send_request(delay, asker, request, false);
    }

    fn send_request(&mut self, takes: Duration, asker: Asker, request: LeaseRequest, lost: bool) {
        self.requests_under_way += 1;
        self.schedule.after(takes, Happening::Request(asker, request, lost));
    }

    /// It takes effect. `lost`: nobody waits for the answer any more.
    pub(crate) fn serve(&mut self, asker: Asker, request: LeaseRequest, lost: bool) -> Result<(), String> {
        if self.schedule.now < self.api.down_until && lost {
            return Ok(());
        }
        let before = self.api.lease().cloned();
        let answer = self.api.serve(request.clone());
        if let LeaseAnswer::Written(_) = answer {
            self.lease_written(before.as_ref())?;
        }
        if !lost {
            let delay = self.delay();
            self.schedule.after(delay, Happening::Answer(asker, request, answer));
        }
        Ok(())
    }

    pub(crate) fn lease_written(&mut self, before: Option<&Lease>) -> Result<(), String> {
        let Some(lease) = self.api.lease().cloned() else {
            self.tell(|_| "a blank Lease is created".into());
            self.spread_lease();
            return Ok(());
        };
        match before {
            Some(before) if before.epoch() < lease.epoch() => self.counts.elections += 1,
            Some(before) if before.in_sync().len() > lease.in_sync().len() => self.counts.shrinks += 1,
            Some(before) if before.in_sync().len() < lease.in_sync().len() => self.counts.grows += 1,
            None if self.counts.leases_deleted > 0 => self.counts.leases_recreated += 1,
            _ => {}
        }
        if before.is_none_or(|before| !before.same_configuration(&lease)) {
            self.tell(|_| format!("the Lease: {lease}"));
            let standings = self.standings();
            self.witness.lease_changed(&lease, &standings)?;
        }
        self.spread_lease();
        Ok(())
    }

    /// Every watcher sees the Lease as it is now, sooner or later.
    pub(crate) fn spread_lease(&mut self) {
        for machine in 0..self.machines.len() {
            if let Some(process) = &self.machines[machine].process {
                self.show_lease_to(Place { machine, process: process.key });
            }
        }
        let (seen, lag) = (self.api.seen(), self.lag());
        if self.api.is_reached_by(OPERATOR, self.schedule.now) {
            self.schedule.after(lag, Happening::OperatorSees(seen));
        }
    }

    pub(crate) fn show_lease_to(&mut self, place: Place) {
        let (seen, lag) = (self.api.seen(), self.lag());
        if self.api.is_reached_by(place.machine, self.schedule.now) {
            self.schedule.after(lag, Happening::To(place, ForProcess::Seen(seen)));
        }
    }

    pub(crate) fn lag(&mut self) -> Duration {
        let most = if self.is_calm { 20 } else { self.plan.watch_lag.as_millis() as u64 };
        Duration::from_millis(self.rng.random_range(1..=most))
    }

    pub(crate) fn answer(&mut self, asker: Asker, request: LeaseRequest, answer: LeaseAnswer) -> Result<(), String> {
        match asker {
            Asker::Keeper(place, epoch) => self.turn_unless_frozen(place, LeaseEvent::Answer(epoch, answer)),
            Asker::Backup(place) => match written(request, answer) {
                Some(seen) => self.turn_unless_frozen(place, LeaseEvent::Seen(seen)),
                None => Ok(()),
            },
            Asker::Operator => {
                self.operator.busy = false;
                let now = self.schedule.now;
                if let Some(seen) = written(request, answer) {
                    self.operator.tracker.observe(now, seen.clone());
                    // The chosen one is told at once.
                    let holder = seen.lease().and_then(Lease::holder).and_then(|holder| self.place_of(&holder.name));
                    if let Some(machine) = holder
                        && let Some(process) = &self.machines[machine].process
                        && !self.network.is_cut(OPERATOR, machine, now)
                    {
                        let place = Place { machine, process: process.key };
                        let delay = self.delay();
                        self.schedule.after(delay, Happening::To(place, ForProcess::Seen(seen)));
                    }
                }
                Ok(())
            }
        }
    }

    pub(crate) fn turn_unless_frozen(&mut self, place: Place, event: LeaseEvent) -> Result<(), String> {
        self.deliver(place, ForProcess::Event(Box::new(Event::Lease(event))))
    }
}

/// The Lease as the asker's own request has made it.
fn written(request: LeaseRequest, answer: LeaseAnswer) -> Option<Stored> {
    match (request, answer) {
        (LeaseRequest::Swap { lease, .. }, LeaseAnswer::Written(version)) => Some(Stored::Held(lease, version)),
        (LeaseRequest::Create, LeaseAnswer::Written(version)) => Some(Stored::Blank(version)),
        _ => None,
    }
}
