//! What the operating system says of a process or a directory while a load runs, asked again and again by a thread of its
//! own, and the highest value of each. It keeps no history.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

const UNPOISONED: &str = "nobody panics while holding this lock";
/// Directories below a data directory: a store and the one that takes its place, and no deeper.
const MAX_DEPTH: usize = 4;

/// Asks until it is dropped.
#[derive(Debug)]
pub(crate) struct Sampler {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Sampler {
    pub(crate) fn start(period: Duration, mut sample: impl FnMut() + Send + 'static) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                sample();
                std::thread::sleep(period);
            }
        });
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A sample that panicked has said so on standard error.
            thread.join().ok();
        }
    }
}

/// The highest value of each of several names.
#[derive(Debug)]
pub(crate) struct Peaks {
    highest: Arc<Mutex<BTreeMap<String, u64>>>,
    _sampler: Sampler,
}

impl Peaks {
    pub(crate) fn start(period: Duration, mut sample: impl FnMut() -> BTreeMap<String, u64> + Send + 'static) -> Self {
        let highest = Arc::new(Mutex::new(BTreeMap::new()));
        let kept = highest.clone();
        let sampler = Sampler::start(period, move || {
            let values = sample();
            let mut kept = kept.lock().expect(UNPOISONED);
            for (name, value) in values {
                let peak = kept.entry(name).or_insert(0);
                *peak = value.max(*peak);
            }
        });
        Self { highest, _sampler: sampler }
    }

    /// The peaks since the last lap.
    pub(crate) fn lap(&self) -> BTreeMap<String, u64> {
        std::mem::take(&mut *self.highest.lock().expect(UNPOISONED))
    }
}

/// Resident set size of a process in bytes; `None` if it is gone.
pub(crate) fn resident_bytes(pid: u32) -> Option<u64> {
    resident_in(&std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?)
}

/// The number of the line that begins with `VmRSS:`, which is in units of 1024 bytes.
fn resident_in(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes << 10)
}

/// What a directory's files take of the disk, in bytes. Those that go while it looks count as gone.
///
/// # Errors
/// If a directory cannot be read.
pub(crate) fn disk_bytes(dir: &Path) -> io::Result<u64> {
    disk_bytes_within(dir, MAX_DEPTH)
}

fn disk_bytes_within(dir: &Path, depth: usize) -> io::Result<u64> {
    let entries = match std::fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        entries => entries?,
    };
    let mut bytes = 0;
    for entry in entries {
        let entry = entry?;
        let Ok(metadata) = entry.metadata() else { continue };
        bytes += metadata.blocks() * 512;
        if metadata.is_dir() && depth > 0 {
            bytes += disk_bytes_within(&entry.path(), depth - 1)?;
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_kernel_writes() {
        assert_eq!(resident_in("Name:\tx\nVmHWM:\t  9 kB\nVmRSS:\t    12 kB\nRssAnon:\t 1 kB\n"), Some(12 << 10));
        assert_eq!(resident_in("Name:\tzombie\n"), None);
        assert!(resident_bytes(std::process::id()).is_some_and(|bytes| bytes > 1 << 16));
    }

    #[test]
    fn counts_what_is_below_a_directory() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("below")).unwrap();
        std::fs::write(dir.path().join("a"), vec![1; 100_000]).unwrap();
        std::fs::write(dir.path().join("below/b"), vec![1; 100_000]).unwrap();
        // Some file systems give a file's blocks only when it is written out.
        std::fs::File::open(dir.path().join("a")).unwrap().sync_all().unwrap();
        std::fs::File::open(dir.path().join("below/b")).unwrap().sync_all().unwrap();
        let bytes = disk_bytes(dir.path()).unwrap();
        assert!((200_000..300_000).contains(&bytes), "{bytes}");
        assert_eq!(disk_bytes(&dir.path().join("nothing")).unwrap(), 0);
    }

    #[test]
    fn keeps_the_highest_of_each_lap() {
        let (told, heard) = std::sync::mpsc::channel();
        let mut values = [3, 7, 5].into_iter();
        let peaks = Peaks::start(Duration::from_millis(1), move || {
            let value = values.next();
            if value.is_none() {
                told.send(()).ok();
            }
            value.map(|value| ("a".to_owned(), value)).into_iter().collect()
        });
        heard.recv().unwrap();
        assert_eq!(peaks.lap(), BTreeMap::from([("a".to_owned(), 7)]));
        assert_eq!(peaks.lap(), BTreeMap::new());
    }
}
