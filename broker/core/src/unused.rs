//! Queues that go when nobody has used them for some time (`x-expires`): without consumers, and neither declared again nor asked
//! for a message (`basic.get`) meanwhile. Publishing to them does not count (T6), as in RabbitMQ. The time begins anew with another
//! primary, and it is measured by a clock that nobody sets: a queue never goes because somebody has put the time right.

use std::collections::BTreeSet;
use std::time::Duration;

use understudy_record::QueueId;

use crate::core::Core;
use crate::effect::Outputs;

/// When to look at which queue; each at most once.
#[derive(Debug, Default)]
pub(crate) struct Unused(BTreeSet<(Duration, QueueId)>);

impl Core {
    /// The queue is used now.
    pub(crate) fn note_use(&mut self, id: QueueId) {
        let Some(queue) = self.state.queues.get_mut(&id) else { return };
        let Some(lives) = queue.rules.expires else { return };
        let until = self.time.steady.saturating_add(Duration::from_millis(lives));
        if let Some(earlier) = queue.session.unused_until.replace(until) {
            self.unused.0.remove(&(earlier, id));
        }
        self.unused.0.insert((until, id));
    }

    /// How long the queue is there without being used is another from now on.
    pub(crate) fn renew_use(&mut self, id: QueueId) {
        let until = self.state.queues.get_mut(&id).and_then(|queue| queue.session.unused_until.take());
        self.forget_unused(id, until);
        self.note_use(id);
    }

    pub(crate) fn watch_all_unused(&mut self) {
        let expiring = self.state.queues.values().filter(|queue| queue.rules.expires.is_some());
        let expiring: Vec<QueueId> = expiring.map(|queue| queue.id).collect();
        expiring.into_iter().for_each(|queue| self.note_use(queue));
    }

    /// At the end of a step.
    pub(crate) fn delete_unused(&mut self, out: &mut Outputs) {
        while let Some((until, id)) = self.unused.0.first().copied().filter(|(until, _)| *until <= self.time.steady) {
            self.unused.0.remove(&(until, id));
            let Some(queue) = self.state.queues.get_mut(&id) else { continue };
            queue.session.unused_until = None;
            // With the last consumer the time begins.
            if queue.session.consumers.is_empty() {
                self.delete_queue(id, out);
            }
        }
    }

    /// The queue is gone, or is looked at no more.
    pub(crate) fn forget_unused(&mut self, queue: QueueId, unused_until: Option<Duration>) {
        if let Some(until) = unused_until {
            self.unused.0.remove(&(until, queue));
        }
    }
}
