//! What became of each test, by the name of its namespace, one line a test in a file that outlives the test binary: the closing
//! table of cases is made of it.

use std::fs::OpenOptions;
use std::io::Write;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// The file; `e2e/run` sets it.
const FILE_VARIABLE: &str = "UNDERSTUDY_E2E_OUTCOMES";

/// Of one test, as `with_temp_ns` has seen it, its namespace's beginning and end included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    pub test: String,
    pub passed: bool,
    pub took: Duration,
}

impl Outcome {
    /// All of the file; `None` if there is none.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn read_all() -> Result<Option<Vec<Self>>> {
        let Some(path) = std::env::var_os(FILE_VARIABLE) else { return Ok(None) };
        let text = std::fs::read_to_string(&path).with_context(|| format!("{path:?}"))?;
        text.lines().map(str::parse).collect::<Result<_>>().map(Some)
    }

    pub(crate) fn note(&self) -> Result<()> {
        let Some(path) = std::env::var_os(FILE_VARIABLE) else { return Ok(()) };
        let file = OpenOptions::new().append(true).create(true).open(&path);
        file.and_then(|mut file| file.write_all(self.line().as_bytes())).with_context(|| format!("{path:?}"))
    }

    fn line(&self) -> String {
        let word = if self.passed { "passed" } else { "failed" };
        format!("{} {word} {}\n", self.test, self.took.as_millis())
    }
}

impl FromStr for Outcome {
    type Err = anyhow::Error;

    fn from_str(line: &str) -> Result<Self> {
        let words: Vec<&str> = line.split(' ').collect();
        let &[test, word, millis] = words.as_slice() else { bail!("{line:?} is no outcome") };
        let took = Duration::from_millis(millis.parse().with_context(|| format!("{line:?}"))?);
        Ok(Self { test: test.to_owned(), passed: word == "passed", took })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for passed in [true, false] {
            let outcome = Outcome { test: "volume_lost".into(), passed, took: Duration::from_millis(41_250) };
            assert_eq!(outcome.line().trim_end().parse::<Outcome>().unwrap(), outcome);
        }
        assert!("volume_lost passed".parse::<Outcome>().is_err());
    }
}
