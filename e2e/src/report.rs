//! The closing table: one row a scenario. Goals are shown there and not asserted, since a busy machine misses them
//! without anything being wrong; what must never happen is asserted by the tests.

use std::fs::OpenOptions;
use std::io::Write;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use k8s_openapi::jiff;
use understudy_bench::Account;
use understudy_crds::{BrokerClusterStatus, Timestamp};

/// Where rows are appended; `e2e/run` prints them at the end.
const FILE_VARIABLE: &str = "UNDERSTUDY_E2E_REPORT";

/// How long a client of the failover Service may be without confirms.
#[derive(Clone, Copy, Debug)]
pub enum Goal {
    KilledProcess,
    LostNode,
    /// In good order.
    Switchover,
    /// Without an operator, a backup waits for the Lease.
    None,
}

impl Goal {
    pub(crate) fn limit(self) -> Option<Duration> {
        match self {
            Self::KilledProcess => Some(Duration::from_secs(1)),
            Self::LostNode => Some(Duration::from_secs(4)),
            Self::Switchover => Some(Duration::from_secs(1)),
            Self::None => None,
        }
    }
}

/// The moment of a failure, by both clocks: the status speaks of the wall's.
#[derive(Clone, Copy, Debug)]
pub struct Failure {
    /// When it was certainly there: what is sent from now on is sent to a cluster with this failure.
    pub at: Instant,
    /// How long before that it may have been there already.
    pub(crate) lead: Duration,
    wall: SystemTime,
}

impl Failure {
    /// To be called right after the failure was made.
    pub fn now() -> Self {
        Self { at: Instant::now(), lead: Duration::ZERO, wall: SystemTime::now() }
    }

    /// Makes the failure, by something that takes no time itself but may be interrupted: a busy machine runs others between
    /// any two statements.
    pub(crate) fn make(fail: impl FnOnce() -> Result<()>) -> Result<Self> {
        let (begun, wall) = (Instant::now(), SystemTime::now());
        fail()?;
        let at = Instant::now();
        Ok(Self { at, lead: at - begun, wall })
    }

    /// Milliseconds from the failure to what the status says, or `-`.
    fn until(&self, moment: Option<&Timestamp>) -> String {
        let moment = moment.and_then(|moment| moment.0.parse::<jiff::Timestamp>().ok());
        let failed = self.wall.duration_since(UNIX_EPOCH).ok().and_then(|since| i64::try_from(since.as_millis()).ok());
        match (moment, failed) {
            // Earlier ones are of another failover.
            (Some(moment), Some(failed)) if moment.as_millisecond() >= failed => {
                (moment.as_millisecond() - failed).to_string()
            }
            _ => "-".to_owned(),
        }
    }
}

pub struct Row<'a> {
    pub scenario: &'a str,
    pub failure: Failure,
    /// From the failure to the first confirm of a message sent after it.
    pub gap: Duration,
    pub goal: Goal,
}

impl Row<'_> {
    /// `status` after the failover.
    ///
    /// # Errors
    /// If the report's file cannot be written.
    pub fn write(&self, account: &Account, status: &BrokerClusterStatus) -> Result<()> {
        let last = status.last_failover.as_ref();
        let noticed = self.failure.until(last.and_then(|last| last.noticed_at.as_ref()));
        let elected = self.failure.until(last.and_then(|last| last.elected_at.as_ref()));
        let serving = self.failure.until(last.and_then(|last| last.serving_at.as_ref()));
        let verdict = match self.goal.limit() {
            None => "-".to_owned(),
            Some(limit) if self.gap < limit => format!("met (< {} s)", limit.as_secs()),
            Some(limit) => format!("MISSED (< {} s)", limit.as_secs()),
        };
        let line = format!(
            "{:<42} {:>7} {:>7} {:>7} {:>7}  {:<14} {:>9} {:>5} {:>10} {:>11}\n",
            self.scenario,
            noticed,
            elected,
            serving,
            self.gap.as_millis(),
            verdict,
            account.confirmed,
            account.lost,
            account.duplicated,
            account.redelivered,
        );
        print!("{line}");
        let Some(path) = std::env::var_os(FILE_VARIABLE) else { return Ok(()) };
        let file = OpenOptions::new().append(true).create(true).open(&path);
        file.and_then(|mut file| file.write_all(line.as_bytes())).with_context(|| format!("{path:?}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_of_the_status_are_told_since_the_failure() {
        let failure = Failure { wall: UNIX_EPOCH + Duration::from_millis(1_000_500), ..Failure::now() };
        assert_eq!(failure.until(Some(&Timestamp::from_unix_ms(1_000_623))), "123");
        assert_eq!(failure.until(Some(&Timestamp::from_unix_ms(1_000_499))), "-");
        assert_eq!(failure.until(Some(&Timestamp("soon".into()))), "-");
        assert_eq!(failure.until(None), "-");
    }
}
