//! The mark that a person keeps a replica out: a file beside the log, so that it outlives the process and the pod. What is in the
//! log is not touched, nor read.

use std::fs::File;
use std::io;
use std::path::Path;

const MARK: &str = "fenced";

pub(crate) fn is_set(data_dir: &Path) -> bool {
    data_dir.join(MARK).exists()
}

/// On the disk when it returns. False: it was so already.
pub(crate) fn set(data_dir: &Path, fenced: bool) -> io::Result<bool> {
    if is_set(data_dir) == fenced {
        return Ok(false);
    }
    let mark = data_dir.join(MARK);
    match fenced {
        true => File::create(mark)?.sync_all()?,
        false => std::fs::remove_file(mark)?,
    }
    File::open(data_dir)?.sync_all()?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_and_taken_away_once() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!is_set(dir.path()));
        for fenced in [true, false] {
            assert!(set(dir.path(), fenced).unwrap());
            assert!(!set(dir.path(), fenced).unwrap());
            assert_eq!(is_set(dir.path()), fenced);
        }
    }
}
