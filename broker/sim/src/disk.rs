//! The world's disks at work: the journal's batches and the checkpoints, each after what it takes.

use std::time::Duration;

use rand::Rng;
use understudy_node::{Brakes, Event, JournalEvent};

use crate::faults::POWER_IS_BACK;
use crate::network::Place;
use crate::world::{ForProcess, Happening, World};

impl World {
    pub(crate) fn begin_batch(&mut self, place: Place) {
        let now = self.schedule.now;
        let takes = Duration::from_micros(match self.rng.random_range(0..50) {
            0 => self.rng.random_range(5_000..80_000),
            _ => self.rng.random_range(100..2_500),
        });
        let at = (now + takes).max(self.machines[place.machine].stalled_until);
        if let Some(process) = self.process_at(place) {
            process.batch_since = Some(now);
        }
        self.schedule.at(at, Happening::To(place, ForProcess::Batch));
    }

    pub(crate) fn carry_out_batch(&mut self, place: Place) -> Result<(), String> {
        let stalled_until = self.machines[place.machine].stalled_until;
        if self.schedule.now < stalled_until {
            self.schedule.at(stalled_until, Happening::To(place, ForProcess::Batch));
            return Ok(());
        }
        let Some(process) = self.process_at(place) else { return Ok(()) };
        process.batch_since = None;
        process.around.shelf().stalled_for = Duration::ZERO;
        let Some(first) = process.orders.pop_front() else { return Ok(()) };
        let who = process.identity.clone();
        let (orders, journal) = (&mut process.orders, &mut process.journal);
        let mut events = Vec::new();
        let outcome = journal.batch(first, || orders.pop_front(), |_| {}, &mut |event| events.push(event));
        if self.machines[place.machine].disk.is_dead() {
            self.lose_power(place.machine, POWER_IS_BACK);
            return Ok(());
        }
        for event in &events {
            self.witness.reported(place.machine, &who, event)?;
            if let JournalEvent::Installed(installed) = event {
                self.counts.checkpoints += u64::from(installed.outcome.is_some());
            }
        }
        if let Err(reason) = outcome {
            events.push(JournalEvent::Failed(reason));
        }
        for event in events {
            self.turn(place, |process| process.node.handle(Event::Journal(event)))?;
        }
        if self.process_at(place).is_some_and(|process| !process.orders.is_empty() && process.batch_since.is_none()) {
            self.begin_batch(place);
        }
        Ok(())
    }

    pub(crate) fn carry_out_checkpoint(&mut self, place: Place) -> Result<(), String> {
        let Some(process) = self.process_at(place) else { return Ok(()) };
        process.checkpoint_busy = false;
        let Some((id, order)) = process.checkpoint_orders.pop_front() else { return Ok(()) };
        let given_up = {
            let mut shelf = process.around.shelf();
            shelf.waiting_checkpoints -= 1;
            shelf.given_up
        };
        let mut brakes = Brakes { keep: |_| given_up < id.0, rest: || {} };
        let event = process.checkpoints.carry_out(id, order, &mut brakes);
        if self.machines[place.machine].disk.is_dead() {
            self.lose_power(place.machine, POWER_IS_BACK);
            return Ok(());
        }
        let Some(process) = self.process_at(place) else { return Ok(()) };
        if !process.checkpoint_orders.is_empty() {
            process.checkpoint_busy = true;
            self.soon(place, ForProcess::Checkpoint);
        }
        match event {
            Some(event) => self.turn(place, |process| process.node.handle(Event::Checkpoint(event))),
            None => Ok(()),
        }
    }
}
