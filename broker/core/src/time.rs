//! What time it is, as the core is told: it has no clock.

use std::time::Duration;

/// Of one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Time {
    /// Milliseconds since 1970, by the clock that people set: it may jump.
    pub wall_ms: u64,
    /// Since any fixed moment, by a clock that nobody sets.
    pub steady: Duration,
}
