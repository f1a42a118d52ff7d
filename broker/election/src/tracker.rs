//! What one elector has seen of the Lease, and since when it has not changed: time is counted on the elector's own clock,
//! from the moment a change was *seen*, so no two machines' clocks are ever compared. Does not read the Lease itself.

use std::time::Duration;

use crate::{Lease, Version};

/// The Lease as an elector last saw it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Register {
    /// Not read yet, so nothing is known.
    #[default]
    Unread,
    /// Read, and there is none. `last` is what it was when this elector last saw it (rule 7).
    Absent {
        since: Duration,
        last: Option<Lease>,
    },
    Held(Observed),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observed {
    pub lease: Lease,
    pub version: Version,
    /// On the elector's own clock: when it first saw this version.
    pub unchanged_since: Duration,
}

/// Folds what is read or watched of the Lease into a [`Register`].
#[derive(Clone, Debug, Default)]
pub struct LeaseTracker {
    register: Register,
}

impl LeaseTracker {
    /// The Lease was seen as `seen` at `now`. Seeing the same version again changes nothing: the holder did not renew.
    /// A failed read is not to be reported here, it saw nothing.
    pub fn observe(&mut self, now: Duration, seen: Option<(Lease, Version)>) {
        let before = std::mem::take(&mut self.register);
        self.register = match (before, seen) {
            (Register::Held(before), Some((_, version))) if before.version == version => Register::Held(before),
            (_, Some((lease, version))) => Register::Held(Observed { lease, version, unchanged_since: now }),
            (Register::Absent { since, last }, None) => Register::Absent { since, last },
            (Register::Held(before), None) => Register::Absent { since: now, last: Some(before.lease) },
            (Register::Unread, None) => Register::Absent { since: now, last: None },
        };
    }

    pub fn register(&self) -> &Register {
        &self.register
    }
}

#[cfg(test)]
mod tests {
    use understudy_record::{Identity, ProcessId, ReplicaName, StoreId};

    use super::*;

    fn lease() -> Lease {
        let a = Identity { name: ReplicaName::new("a"), store: StoreId(1), process: ProcessId(1) };
        Lease::bootstrap(&a, [a.member(false)].into(), Duration::from_secs(5)).unwrap()
    }

    fn seen(version: &str) -> Option<(Lease, Version)> {
        Some((lease(), Version::new(version)))
    }

    fn unchanged_since(tracker: &LeaseTracker) -> Option<u64> {
        match tracker.register() {
            Register::Held(observed) => Some(observed.unchanged_since.as_secs()),
            _ => None,
        }
    }

    #[test]
    fn time_counts_from_the_moment_a_version_was_first_seen() {
        let mut tracker = LeaseTracker::default();
        for (now, version, since) in [(1, "7", 1), (4, "7", 1), (6, "8", 6), (9, "8", 6)] {
            tracker.observe(Duration::from_secs(now), seen(version));
            assert_eq!(unchanged_since(&tracker), Some(since), "at {now}");
        }
    }

    #[test]
    fn a_deleted_lease_is_remembered_as_it_was() {
        let mut tracker = LeaseTracker::default();
        assert_eq!(*tracker.register(), Register::Unread);
        tracker.observe(Duration::from_secs(1), seen("7"));
        for now in [2, 3] {
            tracker.observe(Duration::from_secs(now), None);
            let absent = Register::Absent { since: Duration::from_secs(2), last: Some(lease()) };
            assert_eq!(*tracker.register(), absent);
        }
        tracker.observe(Duration::from_secs(4), seen("9"));
        assert_eq!(unchanged_since(&tracker), Some(4));
    }
}
