//! What was done to which broker and what it cost the publisher, counted: one line for each kind of failure. Pure.

use std::time::{Duration, Instant};

use serde::Serialize;

use crate::demo::report::{ms, percentile};
use crate::status::columns;

/// A fault that was carried out.
#[derive(Clone, Debug)]
pub(crate) struct Struck {
    pub(crate) at: Instant,
    pub(crate) broker: String,
    pub(crate) role: Role,
    pub(crate) fall: Fall,
    /// All others were in sync and ran, and nothing befell them before the publisher's next confirm.
    pub(crate) alone: bool,
    /// To the first confirm of a message sent after it.
    pub(crate) gap: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Primary,
    Backup,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fall {
    Killed,
    /// `replaced`: another broker was primary when it was continued.
    Stopped {
        replaced: bool,
    },
}

impl Role {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Primary => "the primary",
            Self::Backup => "a backup",
        }
    }
}

impl Fall {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Killed => "killed",
            Self::Stopped { .. } => "stopped",
        }
    }
}

/// A gap that another fault came into belongs to both, so neither was alone.
pub(crate) fn note_overlaps(struck: &mut [Struck]) {
    for at in 1..struck.len() {
        let (before, rest) = struck.split_at_mut(at);
        let Some(this) = rest.first_mut() else { continue };
        for earlier in before {
            let over = earlier.gap.map(|gap| earlier.at + gap);
            if over.is_none_or(|over| over >= this.at) {
                earlier.alone = false;
                this.alone = false;
            }
        }
    }
}

/// Faults of one kind, in a line of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
enum Class {
    PrimaryKilled,
    PrimaryStoppedAndReplaced,
    PrimaryStoppedAndKept,
    BackupKilled,
    BackupStopped,
}

const CLASSES: [Class; 5] = [
    Class::PrimaryKilled,
    Class::PrimaryStoppedAndReplaced,
    Class::PrimaryStoppedAndKept,
    Class::BackupKilled,
    Class::BackupStopped,
];

impl Class {
    fn of(struck: &Struck) -> Self {
        match (struck.role, struck.fall) {
            (Role::Primary, Fall::Killed) => Self::PrimaryKilled,
            (Role::Primary, Fall::Stopped { replaced: true }) => Self::PrimaryStoppedAndReplaced,
            (Role::Primary, Fall::Stopped { replaced: false }) => Self::PrimaryStoppedAndKept,
            (Role::Backup, Fall::Killed) => Self::BackupKilled,
            (Role::Backup, Fall::Stopped { .. }) => Self::BackupStopped,
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::PrimaryKilled => "primary killed",
            Self::PrimaryStoppedAndReplaced => "primary stopped, another took over",
            Self::PrimaryStoppedAndKept => "primary stopped, continued in time",
            Self::BackupKilled => "backup killed",
            Self::BackupStopped => "backup stopped",
        }
    }
}

/// One line for each kind of fault and whether it came alone, and one for all losses of a primary.
pub(crate) fn table(seed: u64, struck: &[Struck]) -> String {
    let mut rows =
        vec![["FAULT", "OTHERS", "COUNT", "MIN", "MEDIAN", "P90", "P99", "MAX"].map(str::to_string).to_vec()];
    for class in CLASSES {
        for alone in [true, false] {
            let of_it = struck.iter().filter(|struck| Class::of(struck) == class && struck.alone == alone);
            rows.extend(row(class.word(), if alone { "well" } else { "away" }, of_it));
        }
    }
    let lost = |class| matches!(class, Class::PrimaryKilled | Class::PrimaryStoppedAndReplaced);
    rows.extend(row("every primary lost", "", struck.iter().filter(|struck| lost(Class::of(struck)))));
    format!(
        "\n{} faults, --seed {seed}. From each to the first confirm of a message sent after it, in ms:\n\n{}\n",
        struck.len(),
        columns(&rows)
    )
}

fn row<'a>(what: &str, others: &str, struck: impl Iterator<Item = &'a Struck>) -> Option<Vec<String>> {
    let gap = Gaps::of(struck)?;
    let count = gap.count.to_string();
    let figures = [gap.min, gap.median, gap.p90, gap.p99, gap.max].map(|ms| format!("{ms:.0}"));
    Some([what.to_string(), others.to_string(), count].into_iter().chain(figures).collect())
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct JsonChaos<'a> {
    seed: u64,
    faults: Vec<JsonFault<'a>>,
    gaps: Vec<JsonGaps>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct JsonFault<'a> {
    broker: &'a str,
    fault: Class,
    alone: bool,
    gap_ms: Option<f64>,
}

#[derive(Serialize)]
struct JsonGaps {
    fault: Class,
    alone: bool,
    #[serde(flatten)]
    gaps: Gaps,
}

/// In milliseconds.
#[derive(Serialize)]
struct Gaps {
    count: usize,
    min: f64,
    median: f64,
    p90: f64,
    p99: f64,
    max: f64,
}

impl Gaps {
    fn of<'a>(struck: impl Iterator<Item = &'a Struck>) -> Option<Self> {
        let mut gaps: Vec<_> = struck.filter_map(|struck| struck.gap).collect();
        gaps.sort_unstable();
        let at = |of_100| percentile(&gaps, of_100).map(ms);
        let (min, max) = (ms(*gaps.first()?), ms(*gaps.last()?));
        Some(Self { count: gaps.len(), min, median: at(50)?, p90: at(90)?, p99: at(99)?, max })
    }
}

pub(crate) fn to_json(seed: u64, struck: &[Struck]) -> JsonChaos<'_> {
    let mut gaps = Vec::new();
    for fault in CLASSES {
        for alone in [true, false] {
            let of_it = struck.iter().filter(|struck| Class::of(struck) == fault && struck.alone == alone);
            gaps.extend(Gaps::of(of_it).map(|gaps| JsonGaps { fault, alone, gaps }));
        }
    }
    let faults = struck
        .iter()
        .map(|struck| JsonFault {
            broker: &struck.broker,
            fault: Class::of(struck),
            alone: struck.alone,
            gap_ms: struck.gap.map(ms),
        })
        .collect();
    JsonChaos { seed, faults, gaps }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    /// What, when and how long, in milliseconds, to a cluster that was well.
    fn struck(began: Instant, role: Role, fall: Fall, at: u64, gap: u64) -> Struck {
        Struck {
            at: began + Duration::from_millis(at),
            broker: "dev-0".into(),
            role,
            fall,
            alone: true,
            gap: Some(Duration::from_millis(gap)),
        }
    }

    fn some() -> Vec<Struck> {
        let began = Instant::now();
        let mut all = vec![
            struck(began, Role::Primary, Fall::Killed, 0, 30),
            struck(began, Role::Primary, Fall::Killed, 1000, 40),
            struck(began, Role::Primary, Fall::Stopped { replaced: true }, 2000, 2100),
            struck(began, Role::Backup, Fall::Killed, 2500, 1600),
            struck(began, Role::Primary, Fall::Stopped { replaced: false }, 9000, 50),
            struck(began, Role::Backup, Fall::Stopped { replaced: true }, 10_000, 2000),
        ];
        note_overlaps(&mut all);
        all
    }

    #[test]
    fn a_fault_in_anothers_gap_is_alone_no_more_and_neither_is_the_other() {
        assert_eq!(
            some().iter().map(|struck| struck.alone).collect::<Vec<_>>(),
            [true, true, false, false, true, true]
        );
    }

    #[test]
    fn the_table() {
        expect![[r#"

            6 faults, --seed 7. From each to the first confirm of a message sent after it, in ms:

            FAULT                               OTHERS  COUNT  MIN   MEDIAN  P90   P99   MAX
            primary killed                      well    2      30    30      40    40    40
            primary stopped, another took over  away    1      2100  2100    2100  2100  2100
            primary stopped, continued in time  well    1      50    50      50    50    50
            backup killed                       away    1      1600  1600    1600  1600  1600
            backup stopped                      well    1      2000  2000    2000  2000  2000
            every primary lost                          3      30    40      2100  2100  2100

        "#]]
        .assert_eq(&table(7, &some()));
    }

    #[test]
    fn programs_get_each_fault_and_the_same_figures() {
        let all = some();
        let json = serde_json::to_value(to_json(7, &all)).unwrap();
        assert_eq!(json["seed"], 7);
        assert_eq!(json["faults"][2]["fault"], "primaryStoppedAndReplaced");
        assert_eq!(json["faults"][2]["gapMs"], 2100.0);
        assert_eq!(json["gaps"][0]["fault"], "primaryKilled");
        assert_eq!((&json["gaps"][0]["count"], &json["gaps"][0]["max"]), (&2.into(), &40.0.into()));
    }
}
