//! Times: a number and `ms`, `s` or `m`.

use std::time::Duration;

use super::{FailoverTimes, InvalidCluster};

pub(super) fn failover(failover: &crate::spec::Failover) -> Result<FailoverTimes, InvalidCluster> {
    let second = Duration::from_secs(1);
    let minute = Duration::from_secs(60);
    let times = FailoverTimes {
        lease_duration: parse("spec.failover.leaseDuration", &failover.lease_duration, second, minute * 10)?,
        backup_timeout: parse("spec.failover.backupTimeout", &failover.backup_timeout, second / 5, minute * 5)?,
        stall_timeout: parse("spec.failover.stallTimeout", &failover.stall_timeout, second, minute * 10)?,
    };
    if times.backup_timeout > times.lease_duration {
        return Err(InvalidCluster::BackupTimeoutAboveLease);
    }
    Ok(times)
}

pub(super) fn parse(
    field: &'static str,
    text: &str,
    least: Duration,
    most: Duration,
) -> Result<Duration, InvalidCluster> {
    let error = || InvalidCluster::Time { field, text: text.chars().take(40).collect() };
    let digits = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(error)?;
    let (number, unit) = text.split_at(digits);
    let unit_ms: u64 = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        _ => return Err(error()),
    };
    let number: u64 = number.parse().map_err(|_| error())?;
    let time = Duration::from_millis(number.checked_mul(unit_ms).ok_or_else(error)?);
    if (least..=most).contains(&time) {
        Ok(time)
    } else {
        Err(InvalidCluster::TimeRange { field, text: text.to_owned(), least, most })
    }
}
