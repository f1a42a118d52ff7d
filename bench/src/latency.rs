//! Times of many messages, as percentiles. Kept in microseconds, up to two minutes, three digits exact.

use std::fmt;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

/// Beyond this a run has failed anyway; longer times count as this long.
const MAX_MICROS: u64 = 120_000_000;

#[derive(Clone, Debug)]
pub struct Latencies(Histogram<u64>);

impl Default for Latencies {
    fn default() -> Self {
        Self(Histogram::new_with_bounds(1, MAX_MICROS, 3).expect("1 to MAX_MICROS at 3 digits is a valid histogram"))
    }
}

impl Latencies {
    pub(crate) fn record(&mut self, time: Duration) {
        self.0.saturating_record(u64::try_from(time.as_micros()).unwrap_or(MAX_MICROS));
    }

    pub fn add(&mut self, other: &Self) {
        self.0.add(&other.0).expect("all histograms have the same bounds");
    }

    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// `quantile` between 0 and 1; zero if nothing was recorded.
    pub fn quantile(&self, quantile: f64) -> Duration {
        Duration::from_micros(self.0.value_at_quantile(quantile))
    }

    pub fn max(&self) -> Duration {
        Duration::from_micros(self.0.max())
    }

    pub fn summary(&self) -> LatencySummary {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        LatencySummary {
            count: self.count(),
            p50_ms: ms(self.quantile(0.5)),
            p90_ms: ms(self.quantile(0.9)),
            p99_ms: ms(self.quantile(0.99)),
            p999_ms: ms(self.quantile(0.999)),
            max_ms: ms(self.max()),
        }
    }
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct LatencySummary {
    pub count: u64,
    pub p50_ms: f64,
    pub p90_ms: f64,
    pub p99_ms: f64,
    pub p999_ms: f64,
    pub max_ms: f64,
}

impl fmt::Display for LatencySummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { count, p50_ms, p90_ms, p99_ms, p999_ms, max_ms } = self;
        write!(
            f,
            "p50 {p50_ms:.2} ms, p90 {p90_ms:.2}, p99 {p99_ms:.2}, p99.9 {p999_ms:.2}, max {max_ms:.2} (of {count})"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_of_a_known_set() {
        let mut latencies = Latencies::default();
        (1..=1000).for_each(|ms| latencies.record(Duration::from_millis(ms)));
        let summary = latencies.summary();
        assert_eq!(summary.count, 1000);
        assert!((summary.p50_ms - 500.0).abs() < 1.0, "{summary}");
        assert!((summary.p99_ms - 990.0).abs() < 2.0, "{summary}");
        latencies.record(Duration::from_secs(3600));
        assert!((latencies.max().as_secs_f64() - 120.0).abs() < 0.2, "longer than the bound counts as the bound");
    }
}
