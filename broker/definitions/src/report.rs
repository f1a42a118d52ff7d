//! What became of a file.

use std::fmt;

use serde::Serialize;

/// What became of it.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Changes that were made.
    pub changed: usize,
    /// What was there already, as the file has it.
    pub unchanged: usize,
    /// They exist, are something else, and stay so.
    pub differs: Vec<String>,
    /// Why not, one line for each.
    pub refused: Vec<String>,
    /// Entries that say something which there is not here, or not yet.
    pub not_taken: Vec<String>,
}

impl Report {
    /// Nothing differs, and nothing was refused.
    pub fn is_clean(&self) -> bool {
        self.differs.is_empty() && self.refused.is_empty()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [("differs", &self.differs), ("refused", &self.refused), ("not taken", &self.not_taken)];
        for (what, lines) in parts {
            lines.iter().try_for_each(|line| writeln!(f, "{what}: {line}"))?;
        }
        let [differ, refused, not_taken] = parts.map(|(_, lines)| lines.len());
        let Self { changed, unchanged, .. } = self;
        writeln!(
            f,
            "{changed} changed, {unchanged} as they were, {differ} differ, {refused} refused, {not_taken} not taken"
        )
    }
}
