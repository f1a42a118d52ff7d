//! What one elector has seen of the Lease, and since when it has not changed: time is counted on the elector's own clock,
//! from the moment a change was *seen*, so no two machines' clocks are ever compared. Does not read the Lease itself.

use std::time::Duration;

use crate::{Lease, Stored, Version};

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
    /// Read, and it says nothing yet. `last` as above.
    Blank {
        version: Version,
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
    pub fn observe(&mut self, now: Duration, seen: Stored) {
        let before = std::mem::take(&mut self.register);
        self.register = match (before, seen) {
            (Register::Held(before), Stored::Held(_, version)) if before.version == version => Register::Held(before),
            (_, Stored::Held(lease, version)) => Register::Held(Observed { lease, version, unchanged_since: now }),
            (Register::Absent { since, last }, Stored::Absent) => Register::Absent { since, last },
            (before, Stored::Absent) => Register::Absent { since: now, last: before.into_last() },
            (before, Stored::Blank(version)) => Register::Blank { version, last: before.into_last() },
        };
    }

    pub fn register(&self) -> &Register {
        &self.register
    }
}

impl Register {
    /// The Lease as it last was when it had a content.
    fn into_last(self) -> Option<Lease> {
        match self {
            Self::Unread => None,
            Self::Absent { last, .. } | Self::Blank { last, .. } => last,
            Self::Held(observed) => Some(observed.lease),
        }
    }
}

#[cfg(test)]
mod tests {
    use understudy_record::{Identity, ProcessId, ReplicaName, StoreId};

    use super::*;
    use crate::Incarnation;

    fn lease() -> Lease {
        let a = Identity { name: ReplicaName::new("a"), store: StoreId(1), process: ProcessId(1) };
        Lease::bootstrap(&a, [a.member(false)].into(), Duration::from_secs(5)).unwrap()
    }

    fn seen(version: &str) -> Stored {
        Stored::Held(lease(), version_of("1", version))
    }

    fn version_of(incarnation: &str, revision: &str) -> Version {
        Version::new(Incarnation::new(incarnation), revision)
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
            tracker.observe(Duration::from_secs(now), Stored::Absent);
            let absent = Register::Absent { since: Duration::from_secs(2), last: Some(lease()) };
            assert_eq!(*tracker.register(), absent);
        }
        // Blank ones, one of which was deleted again.
        for (now, version) in [(4, version_of("1", "8")), (5, version_of("2", "10")), (6, version_of("2", "11"))] {
            tracker.observe(Duration::from_secs(now), Stored::Blank(version.clone()));
            assert_eq!(*tracker.register(), Register::Blank { version, last: Some(lease()) });
        }
        tracker.observe(Duration::from_secs(7), seen("12"));
        assert_eq!(unchanged_since(&tracker), Some(7));
        tracker.observe(Duration::from_secs(8), Stored::Blank(version_of("3", "14")));
        assert_eq!(*tracker.register(), Register::Blank { version: version_of("3", "14"), last: Some(lease()) });
    }

    #[test]
    fn a_blank_lease_is_none_that_was_there_before() {
        let mut tracker = LeaseTracker::default();
        tracker.observe(Duration::from_secs(1), Stored::Blank(version_of("1", "8")));
        assert_eq!(*tracker.register(), Register::Blank { version: version_of("1", "8"), last: None });
        tracker.observe(Duration::from_secs(2), Stored::Absent);
        assert_eq!(*tracker.register(), Register::Absent { since: Duration::from_secs(2), last: None });
    }
}
