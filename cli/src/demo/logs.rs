//! What the brokers of a demonstration have written into their logs that should never be there.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};

use understudy_record::ReplicaName;

use crate::dev::Directory;

/// Of each broker: the first ones tell what there is to tell.
const MOST_SHOWN: usize = 10;
/// A longer line is looked at in pieces.
const MAX_LINE_BYTES: u64 = 8192;

/// Panics and errors, each with its broker's name.
pub(crate) fn complaints(directory: &Directory, brokers: &[String]) -> Vec<String> {
    let mut complaints = Vec::new();
    for name in brokers {
        match File::open(directory.log(&ReplicaName::new(name))).and_then(|log| errors_in(BufReader::new(log))) {
            Ok(errors) => complaints.extend(errors.into_iter().map(|line| format!("the log of {name}: {line}"))),
            Err(error) => complaints.push(format!("the log of {name} cannot be read: {error}")),
        }
    }
    complaints
}

fn errors_in(mut log: impl BufRead) -> io::Result<Vec<String>> {
    let mut errors = Vec::new();
    let mut line = Vec::new();
    while errors.len() < MOST_SHOWN {
        line.clear();
        if (&mut log).take(MAX_LINE_BYTES).read_until(b'\n', &mut line)? == 0 {
            break;
        }
        let text = String::from_utf8_lossy(&line);
        if text.contains(" ERROR ") || text.contains("panicked at") {
            errors.push(text.trim_end().to_string());
        }
    }
    Ok(errors)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_and_panics_are_found_and_warnings_are_not() {
        let log = "12:00 WARN a: late\n12:01 ERROR b: lost\nthread 'core' panicked at x.rs:1:1\nERRORS 0\n";
        assert_eq!(errors_in(log.as_bytes()).unwrap(), ["12:01 ERROR b: lost", "thread 'core' panicked at x.rs:1:1"]);
        let endless = " ERROR x\n".repeat(MOST_SHOWN * 2);
        assert_eq!(errors_in(endless.as_bytes()).unwrap().len(), MOST_SHOWN);
    }
}
