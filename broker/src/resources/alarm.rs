//! When an alarm comes and when it goes: a pure step from one sample to the next. Between the two marks lies a band in which
//! nothing changes, so that publishers are not stopped and let go with every message.

use understudy_record::{Alarms, Shortage};

use super::Sample;

/// The memory alarm ends this many hundredths of the limit below its mark.
const MEMORY_BAND_PERCENT: u8 = 5;

/// The disk alarm ends at 6/5 of its mark.
const DISK_BAND: (u64, u64) = (6, 5);

/// Of a volume's size, where nothing else is said.
const FREE_PERCENT: u64 = 10;
/// What a checkpoint and two segments take at their smallest.
const LEAST_FREE_BYTES: u64 = 64 << 20;
/// More helps nobody, however large the volume.
const MOST_FREE_BYTES: u64 = 2 << 30;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Watermarks {
    /// Bytes that this process may have.
    pub(crate) memory_limit: u64,
    /// Hundredths of the limit.
    pub(crate) memory_percent: u8,
    /// Bytes to be left free; zero: no alarm; `None`: by the volume's size.
    pub(crate) disk_free: Option<u64>,
}

/// A tenth of the volume, within reason; of a very small volume never more than half.
fn default_free_watermark(total: u64) -> u64 {
    (total / 100 * FREE_PERCENT).clamp(LEAST_FREE_BYTES, MOST_FREE_BYTES).min(total / 2)
}

impl Watermarks {
    fn memory(&self, percent: u8) -> u64 {
        let bytes = u128::from(self.memory_limit) * u128::from(percent) / 100;
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }

    /// For a volume of that size.
    pub(crate) fn disk_free(&self, total: u64) -> u64 {
        self.disk_free.unwrap_or_else(|| default_free_watermark(total))
    }
}

/// What holds after this sample, if `before` held before it.
pub(crate) fn after(before: Alarms, sample: &Sample, marks: &Watermarks) -> Alarms {
    let bytes = sample.resident;
    let watermark = marks.memory(marks.memory_percent);
    let memory = match before.memory {
        None => (bytes > watermark).then_some(Shortage { bytes, watermark }),
        held => held.filter(|_| bytes >= marks.memory(marks.memory_percent.saturating_sub(MEMORY_BAND_PERCENT))),
    };
    // A volume that cannot be asked is as it was.
    let disk = sample.volume.map_or(before.disk, |volume| {
        let (bytes, watermark) = (volume.free, marks.disk_free(volume.total));
        let (more, less) = DISK_BAND;
        match before.disk {
            None => (bytes < watermark).then_some(Shortage { bytes, watermark }),
            held => held.filter(|_| bytes < watermark.saturating_mul(more) / less),
        }
    });
    Alarms { memory, disk }
}

/// Those of `now` that `before` did not have.
pub(super) fn since(now: Alarms, before: Alarms) -> Alarms {
    Alarms { memory: now.memory.filter(|_| before.memory.is_none()), disk: now.disk.filter(|_| before.disk.is_none()) }
}

#[cfg(test)]
mod tests {
    use super::super::Volume;
    use super::*;

    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;

    fn marks() -> Watermarks {
        Watermarks { memory_limit: 1000, memory_percent: 80, disk_free: Some(100) }
    }

    fn using(resident: u64) -> Sample {
        Sample { resident, volume: None }
    }

    fn free(free: u64) -> Sample {
        Sample { resident: 0, volume: Some(Volume { free, total: 10_000 }) }
    }

    /// Each sample with what holds after it.
    fn check(samples: impl IntoIterator<Item = (Sample, bool)>) -> Vec<Alarms> {
        let mut alarms = Alarms::default();
        let after = samples.into_iter().map(|(sample, held)| {
            alarms = after(alarms, &sample, &marks());
            assert_eq!(alarms.any(), held, "after {sample:?}");
            alarms
        });
        after.collect()
    }

    #[test]
    fn memory_is_short_above_its_mark_until_well_below_it() {
        let steps = [(800, false), (801, true), (900, true), (780, true), (750, true), (749, false), (790, false)];
        let seen = check(steps.map(|(resident, held)| (using(resident), held)));
        // What is said is what was seen first.
        assert_eq!(seen[1].memory, Some(Shortage { bytes: 801, watermark: 800 }));
        assert_eq!(seen[4], seen[1]);
    }

    #[test]
    fn disk_is_short_below_its_mark_until_well_above_it() {
        let steps = [(100, false), (99, true), (0, true), (110, true), (119, true), (120, false), (101, false)];
        let seen = check(steps.map(|(bytes, held)| (free(bytes), held)));
        assert_eq!(seen[1].disk, Some(Shortage { bytes: 99, watermark: 100 }));
        assert_eq!(seen[4], seen[1]);
    }

    #[test]
    fn a_volume_that_does_not_answer_changes_nothing() {
        check([(using(0), false), (free(5), true), (using(0), true), (free(500), false), (using(0), false)]);
    }

    #[test]
    fn each_resource_by_itself() {
        let both = after(Alarms::default(), &Sample { resident: 999, ..free(1) }, &marks());
        assert!(both.memory.is_some() && both.disk.is_some());
        let disk = after(both, &free(1), &marks());
        assert_eq!(disk, Alarms { memory: None, ..both });
        assert_eq!(since(both, disk), Alarms { disk: None, ..both });
        assert_eq!(since(disk, both), Alarms::default());
    }

    #[test]
    fn a_mark_of_zero_is_no_alarm() {
        let marks = Watermarks { disk_free: Some(0), ..marks() };
        assert_eq!(after(Alarms::default(), &free(0), &marks), Alarms::default());
        // And ends one that there was.
        let before = Alarms { disk: Some(Shortage { bytes: 1, watermark: 2 }), memory: None };
        assert_eq!(after(before, &free(0), &marks), Alarms::default());
    }

    #[test]
    fn a_volume_leaves_a_tenth_free_within_reason() {
        let table = [
            (8 * GIB, 8 * GIB / 100 * 10),
            (1 << 40, 2 * GIB),
            (200 * MIB, 64 * MIB),
            (8 * MIB, 4 * MIB), // else it would never do
            (0, 0),
        ];
        for (total, expected) in table {
            assert_eq!(default_free_watermark(total), expected, "{total}");
        }
    }
}
