//! What goes wrong, and when it ends. A fault never takes the last copy of something confirmed: that no protocol survives.

use std::time::Duration;

use rand::Rng;
use rand::seq::IndexedRandom;
use tokio::sync::oneshot;
use understudy_journal::sim::{Faults, SimStorage};
use understudy_node::{ControlEvent, Event};

use crate::network::OPERATOR;
use crate::plan::Fault;
use crate::world::{Happening, World};

/// After so many milliseconds.
pub(crate) const POWER_IS_BACK: std::ops::Range<u64> = 100..2500;

/// Watches of the Lease look for themselves so often.
const QUIET_WATCH: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug)]
pub(crate) enum FaultStep {
    PowerBack(usize),
    DiskMended(usize),
    ApiBack,
    /// As a watch does that has been quiet: nothing that came late is the last that is seen.
    WatchersList,
}

impl World {
    pub(crate) fn fault(&mut self) {
        if self.is_calm {
            return;
        }
        let pause = self.plan.pause.as_millis() as u64;
        let next = Duration::from_millis(self.rng.random_range(pause / 4..pause * 2));
        self.schedule.after(next, Happening::Fault);
        let Some(fault) = self.plan.faults.choose(&mut self.rng).copied() else { return };
        let machine = self.rng.random_range(0..self.machines.len());
        self.tell(|_| format!("fault: {fault:?} (machine {machine})"));
        self.carry_out_fault(fault, machine);
    }

    fn carry_out_fault(&mut self, fault: Fault, machine: usize) {
        let now = self.schedule.now;
        match fault {
            Fault::Kill if self.may_end(machine) => {
                self.counts.crashes += 1;
                self.end_process(machine, true);
                self.plan_start(machine, 50..1000);
            }
            Fault::PowerLoss if self.may_end(machine) => {
                if self.rng.random_bool(0.5) && !self.plan.replicated_only {
                    let at = self.rng.random_range(0..8);
                    let faults = Faults { power_loss_at: Some(at), ..Faults::default() };
                    self.machines[machine].disk.set_faults(faults);
                } else {
                    self.lose_power(machine, POWER_IS_BACK);
                }
            }
            Fault::PowerLossOfAll if !self.plan.replicated_only => {
                (0..self.machines.len()).for_each(|machine| self.lose_power(machine, POWER_IS_BACK));
            }
            Fault::Freeze => {
                let until = now + self.span(50..4000);
                self.freeze(machine, until);
            }
            Fault::CutOneWay | Fault::CutBothWays => {
                let other = self.rng.random_range(0..self.machines.len());
                let until = now + self.span(50..4000);
                self.network.cut(machine, other, until);
                if fault == Fault::CutBothWays {
                    self.network.cut(other, machine, until);
                }
            }
            Fault::Isolate => self.isolate(machine),
            Fault::LoseDisk if self.may_lose_disk(machine) => {
                self.end_process(machine, true);
                self.lose_disk(machine);
                self.plan_start(machine, 50..1000);
            }
            // They strike later, when nobody may be left whose memory has what this one's has.
            Fault::FailWrite | Fault::FailSync | Fault::FullDisk if !self.plan.replicated_only => {
                let after = Some(self.rng.random_range(0..6));
                let faults = match fault {
                    Fault::FailWrite => Faults { write_error_after: after, ..Faults::default() },
                    Fault::FailSync => Faults { sync_error_after: after, ..Faults::default() },
                    _ => Faults { space: Some(self.rng.random_range(0..20_000)), ..Faults::default() },
                };
                self.machines[machine].disk.set_faults(faults);
                let span = self.span(500..3000);
                self.schedule.after(span, Happening::FaultEnds(FaultStep::DiskMended(machine)));
            }
            Fault::StallDisk => self.machines[machine].stalled_until = now + self.span(100..4000),
            Fault::ApiDown => {
                let span = self.span(200..6000);
                self.api.down_until = self.api.down_until.max(now + span);
                self.schedule.after(span, Happening::FaultEnds(FaultStep::ApiBack));
            }
            Fault::ApiSlow => self.api.slow_until = now + self.span(500..5000),
            Fault::ApiCutFromOne => {
                let span = self.span(200..6000);
                let operator = self.rng.random_bool(0.2);
                self.api.cut_from = Some(if operator { OPERATOR } else { machine });
                self.api.cut_until = now + span;
                self.schedule.after(span, Happening::FaultEnds(FaultStep::ApiBack));
            }
            Fault::DeleteLease if self.api.is_there() => {
                self.delete_lease();
                self.spread_lease();
            }
            Fault::OperatorAway => self.operator.away_until = now + self.span(500..8000),
            Fault::HandOver => self.hand_over(machine),
            // One that leaves waits, and may be the last of them by the time it goes.
            Fault::ShutDown if !self.plan.replicated_only => self.control(machine, ControlEvent::Shutdown),
            Fault::BreakLink => {
                let links: Vec<u64> = self.network.links.keys().copied().collect();
                if let Some(link) = links.choose(&mut self.rng) {
                    self.break_link(*link);
                }
            }
            Fault::Retell => {
                let min_in_sync = self.rng.random_range(1..=2.min(self.plan.replicas));
                let settings = self.plan.settings(min_in_sync);
                self.send_to(machine, Event::Settings(settings));
            }
            _ => {}
        }
    }

    pub(crate) fn span(&mut self, millis: std::ops::Range<u64>) -> Duration {
        Duration::from_millis(self.rng.random_range(millis))
    }

    fn isolate(&mut self, machine: usize) {
        let until = self.schedule.now + self.span(100..5000);
        let (with_operator, with_api) = (self.rng.random_bool(0.7), self.rng.random_bool(0.5));
        let others =
            (0..self.machines.len()).filter(|other| *other != machine).chain(with_operator.then_some(OPERATOR));
        for other in others {
            self.network.cut(machine, other, until);
            self.network.cut(other, machine, until);
        }
        if with_api {
            self.api.cut_from = Some(machine);
            self.api.cut_until = until;
            let span = until - self.schedule.now;
            self.schedule.after(span, Happening::FaultEnds(FaultStep::ApiBack));
        }
    }

    fn hand_over(&mut self, to: usize) {
        let Some(lease) = self.api.lease() else { return };
        let (epoch, holder) = (lease.epoch(), lease.holder().map(|holder| holder.name.clone()));
        let to = self.rng.random_bool(0.5).then(|| self.machines[to].name.clone());
        let Some(holder) = holder else { return };
        let Some(machine) = self.machines.iter().position(|machine| machine.name == holder) else { return };
        let (reply, _) = oneshot::channel();
        self.counts.hand_overs += 1;
        self.control(machine, ControlEvent::HandOver { epoch, to, reply });
    }

    /// `back_in`: after how many milliseconds it is back.
    pub(crate) fn lose_power(&mut self, machine: usize, back_in: std::ops::Range<u64>) {
        if !self.machines[machine].has_power {
            return;
        }
        self.cut_power(machine);
        let span = self.span(back_in);
        self.schedule.after(span, Happening::FaultEnds(FaultStep::PowerBack(machine)));
    }

    /// Until somebody gives it back.
    pub(crate) fn cut_power(&mut self, machine: usize) {
        self.counts.power_losses += 1;
        self.end_process(machine, false);
        let seed = self.rng.random();
        self.machines[machine].disk.crash(seed);
        self.machines[machine].has_power = false;
    }

    /// No process is on it.
    pub(crate) fn lose_disk(&mut self, machine: usize) {
        self.counts.disks_lost += 1;
        self.machines[machine].disk = SimStorage::new();
        self.machines[machine].store = None;
    }

    pub(crate) fn delete_lease(&mut self) {
        self.counts.leases_deleted += 1;
        self.api.delete();
    }

    /// With `durability: Replicated` one member's memory has to stay; otherwise any process may end.
    fn may_end(&self, machine: usize) -> bool {
        if !self.plan.replicated_only {
            return true;
        }
        // A change of the set that is under way may leave this one alone in it.
        let Some(lease) = self.api.lease().filter(|_| self.requests_under_way == 0) else { return false };
        self.machines.iter().enumerate().any(|(other, state)| {
            let identity = state.process.as_ref().map(|process| &process.identity);
            other != machine
                && identity.is_some_and(|identity| lease.entry_of(identity).is_some())
                && state.disk_is_sound()
        })
    }

    pub(crate) fn may_lose_disk(&self, machine: usize) -> bool {
        let Some(lease) = self.api.lease().filter(|_| self.requests_under_way == 0) else { return false };
        let holds = |other: usize| {
            let store = self.machines[other].store;
            lease.in_sync().iter().any(|member| Some(member.store) == store)
        };
        (0..self.machines.len()).any(|other| other != machine && holds(other)) && self.may_end(machine)
    }

    pub(crate) fn end_fault(&mut self, step: FaultStep) {
        match step {
            FaultStep::PowerBack(machine) => {
                if !std::mem::replace(&mut self.machines[machine].has_power, true) {
                    self.plan_start(machine, 10..300);
                }
            }
            FaultStep::DiskMended(machine) => self.machines[machine].disk.set_faults(Faults::default()),
            FaultStep::ApiBack => self.spread_lease(),
            FaultStep::WatchersList => {
                self.spread_lease();
                self.schedule.after(QUIET_WATCH, Happening::FaultEnds(FaultStep::WatchersList));
            }
        }
    }

    /// No more faults, and what was broken is mended.
    pub(crate) fn calm_down(&mut self) {
        let now = self.schedule.now;
        self.tell(|_| "calm".into());
        self.is_calm = true;
        self.network.mend_all();
        (self.api.down_until, self.api.slow_until, self.api.cut_until) = (now, now, now);
        self.operator.away_until = now;
        for place in 0..self.machines.len() {
            let machine = &mut self.machines[place];
            machine.disk.set_faults(Faults::default());
            machine.stalled_until = now;
            machine.has_power = true;
            if machine.process.is_none() {
                self.plan_start(place, 10..300);
            }
            self.freeze(place, now);
        }
        self.spread_lease();
        // What was late in the storm may be seen after that.
        self.schedule.after(self.plan.watch_lag, Happening::FaultEnds(FaultStep::WatchersList));
    }
}
