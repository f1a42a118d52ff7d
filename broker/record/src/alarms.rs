//! What a replica runs short of, and in words: the same to a client that is blocked, in a condition, and on a terminal.

/// What a replica runs short of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Alarms {
    pub memory: Option<Shortage>,
    pub disk: Option<Shortage>,
}

/// As of when the alarm began: it reads the same until it ends. In bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// In use (memory) or free (disk).
    pub bytes: u64,
    pub watermark: u64,
}

impl Alarms {
    pub fn any(self) -> bool {
        self.memory.is_some() || self.disk.is_some()
    }

    /// One sentence a resource, like `orders-1 is low on disk: 80 MB free, watermark 107 MB`.
    pub fn describe(self, replica: &str) -> Vec<String> {
        let memory = self.memory.map(|Shortage { bytes, watermark }| {
            format!("{replica} is low on memory: {} in use, watermark {}", megabytes(bytes), megabytes(watermark))
        });
        let disk = self.disk.map(|Shortage { bytes, watermark }| {
            format!("{replica} is low on disk: {} free, watermark {}", megabytes(bytes), megabytes(watermark))
        });
        memory.into_iter().chain(disk).collect()
    }
}

/// Whole ones, so that a figure that moves a little reads the same; tenths where whole ones would say nothing.
fn megabytes(bytes: u64) -> String {
    const MEGABYTE: f64 = 1e6;
    let megabytes = bytes as f64 / MEGABYTE;
    if bytes == 0 || megabytes >= 10.0 { format!("{megabytes:.0} MB") } else { format!("{megabytes:.1} MB") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortage_names_the_replica_the_resource_and_both_figures() {
        let disk = Some(Shortage { bytes: 80_400_000, watermark: 107_374_182 });
        let memory = Some(Shortage { bytes: 901_000_000, watermark: 858_993_459 });
        let table: [(Alarms, &[&str]); 4] = [
            (Alarms { memory: None, disk: None }, &[]),
            (Alarms { memory: None, disk }, &["orders-1 is low on disk: 80 MB free, watermark 107 MB"]),
            (Alarms { memory, disk: None }, &["orders-1 is low on memory: 901 MB in use, watermark 859 MB"]),
            (
                Alarms { memory, disk },
                &[
                    "orders-1 is low on memory: 901 MB in use, watermark 859 MB",
                    "orders-1 is low on disk: 80 MB free, watermark 107 MB",
                ],
            ),
        ];
        for (alarms, expected) in table {
            assert_eq!(alarms.describe("orders-1"), expected);
            assert_eq!(alarms.any(), !expected.is_empty());
        }
    }

    #[test]
    fn small_amounts_have_a_digit_more() {
        let table = [(0, "0 MB"), (4_194_304, "4.2 MB"), (50_000, "0.1 MB"), (10_000_000, "10 MB")];
        for (bytes, text) in table {
            assert_eq!(megabytes(bytes), text);
        }
    }
}
