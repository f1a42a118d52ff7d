//! Maintenance windows: times of the week in UTC, in minutes since Monday 00:00.

use std::time::Duration;

use super::{InvalidCluster, times};
use crate::spec::{Day, MaintenanceWindow};

const HOUR: u32 = 60;
const DAY: u32 = 24 * HOUR;
const WEEK: u32 = 7 * DAY;
/// 1970-01-01 was a Thursday.
const EPOCH_IN_WEEK: u32 = 3 * DAY;
const LEAST: Duration = Duration::from_secs(10 * 60);
const MOST: Duration = Duration::from_secs(24 * 60 * 60);
const EACH_DAY: [Day; 7] =
    [Day::Monday, Day::Tuesday, Day::Wednesday, Day::Thursday, Day::Friday, Day::Saturday, Day::Sunday];

/// When pods may be replaced: at any time if there are none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UpdateWindows(Vec<Window>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Window {
    begin: u32,
    minutes: u32,
}

impl UpdateWindows {
    pub(super) fn parse(given: &[MaintenanceWindow]) -> Result<Self, InvalidCluster> {
        let mut windows = Vec::new();
        for window in given {
            let start = minute_of_day(&window.start)?;
            let duration = times::parse("spec.update.windows.duration", &window.duration, LEAST, MOST)?;
            let minutes = u32::try_from(duration.as_secs() / 60).unwrap_or(DAY);
            let days = if window.days.is_empty() { &EACH_DAY[..] } else { &window.days };
            windows.extend(days.iter().map(|day| Window { begin: *day as u32 * DAY + start, minutes }));
        }
        Ok(Self(windows))
    }

    /// When the next window begins, in seconds since 1970; `None` if pods may be replaced now. `now` in the same.
    pub fn closed_until(&self, now: i64) -> Option<i64> {
        let minute = now.div_euclid(60);
        let here = (minute + i64::from(EPOCH_IN_WEEK)).rem_euclid(i64::from(WEEK));
        let here = u32::try_from(here).unwrap_or(0);
        let since = |window: &Window| (here + WEEK - window.begin) % WEEK;
        if self.0.iter().any(|window| since(window) < window.minutes) {
            return None;
        }
        let wait = self.0.iter().map(|window| WEEK - since(window)).min()?;
        Some((minute + i64::from(wait)) * 60)
    }
}

fn minute_of_day(text: &str) -> Result<u32, InvalidCluster> {
    let parse = || {
        let (hours, minutes) = text.split_once(':')?;
        let two_digits = |part: &str| {
            (part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_digit())).then(|| part.parse::<u8>().ok())?
        };
        let (hours, minutes) = (two_digits(hours)?, two_digits(minutes)?);
        (hours < 24 && minutes < 60).then(|| u32::from(hours) * HOUR + u32::from(minutes))
    };
    let error =
        || InvalidCluster::TimeOfDay { field: "spec.update.windows.start", text: text.chars().take(40).collect() };
    parse().ok_or_else(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Monday, 2026-11-30, 00:00 UTC.
    const MONDAY: i64 = 1_795_996_800;

    fn window(days: &[Day], start: &str, duration: &str) -> MaintenanceWindow {
        MaintenanceWindow { days: days.to_vec(), start: start.into(), duration: duration.into() }
    }

    fn closed_until(windows: &[MaintenanceWindow], minutes: i64) -> Option<i64> {
        let windows = UpdateWindows::parse(windows).unwrap();
        Some((windows.closed_until(MONDAY + minutes * 60 + 59)? - MONDAY) / 60)
    }

    #[test]
    fn open_from_the_first_minute_to_the_last() {
        assert_eq!(closed_until(&[], 0), None);
        let nightly = [window(&[], "02:30", "60m")];
        assert_eq!(closed_until(&nightly, 149), Some(150));
        assert_eq!(closed_until(&nightly, 150), None);
        assert_eq!(closed_until(&nightly, 209), None);
        assert_eq!(closed_until(&nightly, 210), Some(24 * 60 + 150));
        assert_eq!(closed_until(&[window(&[], "05:00", "1440m")], 1), None);
    }

    /// Over midnight, and over the end of the week.
    #[test]
    fn a_window_ends_on_another_day() {
        let sunday = [window(&[Day::Sunday], "23:00", "120m")];
        assert_eq!(closed_until(&sunday, 59), None);
        assert_eq!(closed_until(&sunday, 60), Some((6 * 24 + 23) * 60));
        let two = [window(&[Day::Wednesday, Day::Friday], "00:00", "10m"), window(&[Day::Tuesday], "12:00", "30m")];
        assert_eq!(closed_until(&two, 0), Some((24 + 12) * 60));
        assert_eq!(closed_until(&two, (24 + 12) * 60 + 30), Some(48 * 60));
        assert_eq!(closed_until(&two, 5 * 24 * 60), Some((7 * 24 + 36) * 60));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for (start, duration, expected) in [
            ("2:30", "60m", "spec.update.windows.start \"2:30\" is not a time of the day"),
            ("24:00", "60m", "is not a time of the day"),
            ("02:60", "60m", "is not a time of the day"),
            ("02:+1", "60m", "is not a time of the day"),
            ("02:30", "9m", "spec.update.windows.duration is 9m: choose between"),
            ("02:30", "1441m", "spec.update.windows.duration is 1441m"),
            ("02:30", "x", "is not a time"),
        ] {
            let error = UpdateWindows::parse(&[window(&[], start, duration)]).unwrap_err().to_string();
            assert!(error.contains(expected), "{start} {duration}: {error}");
        }
    }
}
