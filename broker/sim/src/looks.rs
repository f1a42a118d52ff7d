//! What electors see when they look around, and what they then ask for.

use std::time::Duration;

use understudy_election::{Decision, Elector, Loss, decide, whom_to_follow};
use understudy_node::{ControlEvent, Event, RoleStatus};
use understudy_replication::LeaseRequest;

use crate::elector::{report, view};
use crate::network::{OPERATOR, Place};
use crate::world::{Asker, ForProcess, Happening, OPERATOR_LOOKS, World};

impl World {
    /// What `from` hears of a replica when it asks.
    pub(crate) fn ask(&self, from: usize, to: usize) -> Result<Option<understudy_node::NodeStatus>, Loss> {
        let now = self.schedule.now;
        let machine = &self.machines[to];
        let cut = self.network.is_cut(from, to, now) || self.network.is_cut(to, from, now);
        if cut || !machine.has_power || machine.is_frozen(now) {
            return Err(Loss::Silent);
        }
        match &machine.process {
            Some(process) => Ok(Some(process.shared.status.borrow().clone())),
            None => Err(Loss::Reset),
        }
    }

    pub(crate) fn operator_looks(&mut self) {
        let now = self.schedule.now;
        self.schedule.after(OPERATOR_LOOKS, Happening::OperatorLooks);
        if now < self.operator.away_until {
            return;
        }
        for machine in 0..self.machines.len() {
            let said = self.ask(OPERATOR, machine);
            let name = self.machines[machine].name.clone();
            let knows_end = self.machines[machine].process.is_none()
                && now > self.machines[machine].ended_at + Duration::from_millis(150);
            let sight = self.operator.sights.entry(name).or_default();
            match said {
                Ok(Some(status)) => sight.hear(now, report(&status, now)),
                Ok(None) => {}
                Err(how) => {
                    sight.lose(now, how);
                    sight.gone |= how == Loss::Reset && knows_end && sight.report.is_some();
                }
            }
        }
        if self.operator.busy {
            return;
        }
        let names = self.names();
        let view = view(
            now,
            Elector::Operator,
            &self.operator.tracker,
            &self.operator.sights,
            &names,
            self.plan.replicated_only,
        );
        if let Some(request) = self.request_of(decide(now, &view)) {
            self.operator.busy = true;
            self.request(Asker::Operator, request);
        }
    }

    pub(crate) fn backup_looks(&mut self, place: Place) {
        let clock = self.machines[place.machine].clock(self.schedule.now);
        let Some(process) = self.process_at(place) else { return };
        let status = process.shared.status.borrow().clone();
        if !matches!(&status.role, RoleStatus::Backup { primary: None, .. }) {
            process.sights.clear();
            return;
        }
        let me = process.identity.clone();
        for machine in 0..self.machines.len() {
            let said =
                if machine == place.machine { Ok(Some(status.clone())) } else { self.ask(place.machine, machine) };
            let name = self.machines[machine].name.clone();
            let Some(process) = self.process_at(place) else { return };
            let sight = process.sights.entry(name).or_default();
            match said {
                Ok(Some(status)) => match report(&status, clock) {
                    Some(report) => sight.hear(clock, Some(report)),
                    None => sight.lose(clock, Loss::Reset),
                },
                Ok(None) => {}
                Err(how) => sight.lose(clock, how),
            }
        }
        let (names, replicated) = (self.names(), self.plan.replicated_only);
        let Some(process) = self.process_at(place) else { return };
        let view = view(clock, Elector::Backup(me), &process.tracker, &process.sights, &names, replicated);
        if let Some((epoch, primary)) = whom_to_follow(&view) {
            self.control(place.machine, ControlEvent::Follow(epoch, primary));
        }
        if let Some(request) = self.request_of(decide(clock, &view)) {
            self.request(Asker::Backup(place), request);
        }
    }

    pub(crate) fn request_of(&mut self, decision: Decision) -> Option<LeaseRequest> {
        match decision {
            Decision::Elect { expected, lease, candidate, reason } => {
                self.tell(|_| format!("elects {candidate}: {reason}"));
                Some(LeaseRequest::Swap { expected, lease })
            }
            Decision::Create { candidate, reason } => {
                self.tell(|_| format!("creates a blank Lease, for {candidate}: {reason}"));
                Some(LeaseRequest::Create)
            }
            Decision::Wait { .. } | Decision::Blocked { .. } => None,
        }
    }

    /// A person, or a pod's end, asks the node for something.
    pub(crate) fn control(&mut self, machine: usize, event: ControlEvent) {
        self.send_to(machine, Event::Control(event));
    }

    pub(crate) fn send_to(&mut self, machine: usize, event: Event) {
        if let Some(process) = &self.machines[machine].process {
            let place = Place { machine, process: process.key };
            let delay = self.delay();
            self.schedule.after(delay, Happening::To(place, ForProcess::Event(Box::new(event))));
        }
    }
}
