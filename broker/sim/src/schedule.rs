//! What happens next: events in the order of their time, and of their making where times are equal.

use std::collections::BTreeMap;
use std::time::Duration;

#[derive(Debug)]
pub(crate) struct Schedule<T> {
    events: BTreeMap<(Duration, u64), T>,
    made: u64,
    pub(crate) now: Duration,
}

impl<T> Schedule<T> {
    pub(crate) fn new() -> Self {
        Self { events: BTreeMap::new(), made: 0, now: Duration::ZERO }
    }

    pub(crate) fn at(&mut self, at: Duration, event: T) {
        self.made += 1;
        self.events.insert((at.max(self.now), self.made), event);
    }

    pub(crate) fn after(&mut self, delay: Duration, event: T) {
        self.at(self.now + delay, event);
    }

    /// The next event; time is its time from now on.
    pub(crate) fn next(&mut self) -> Option<T> {
        let ((at, _), event) = self.events.pop_first()?;
        self.now = at;
        Some(event)
    }

    /// Events handed out so far, or waiting.
    pub(crate) fn made(&self) -> u64 {
        self.made
    }
}
