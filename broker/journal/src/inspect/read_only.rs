//! A data directory that is looked at: it takes no lock, makes no file and changes none.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{major, minor};

use crate::dir::LOCK_NAME;
use crate::{Storage, StorageFile};

/// A lock file of ours holds a process id; a pid has few digits.
const MAX_LOCK_TEXT: usize = 16;

#[derive(Clone, Debug)]
pub struct ReadOnlyDir {
    path: PathBuf,
}

/// Whether a broker has the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum User {
    Nobody,
    Process(u32),
    /// The process that took it last is there, and whether it still has it is hidden from this one.
    Perhaps(u32),
}

impl ReadOnlyDir {
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }

    /// Who has it now. Asking the lock itself would take it for a moment, and could turn a starting broker away; so this asks
    /// the system who holds it. A process in another pid namespace is not seen.
    pub fn user(&self) -> User {
        let path = self.path.join(LOCK_NAME);
        let Ok(lock) = std::fs::metadata(&path) else { return User::Nobody };
        let named = self.pid_in_lock_file();
        if let Some(pid) = holder(&std::fs::read_to_string("/proc/locks").unwrap_or_default(), &lock, named) {
            return User::Process(pid);
        }
        // Where the list is not to be had: a process that has the file open holds its lock.
        let Some(pid) = named else { return User::Nobody };
        match std::fs::read_dir(format!("/proc/{pid}/fd")) {
            Ok(open) => {
                let is_lock = |file: &std::fs::Metadata| (file.dev(), file.ino()) == (lock.dev(), lock.ino());
                let mut open = open.flatten().filter_map(|entry| std::fs::metadata(entry.path()).ok());
                if open.any(|file| is_lock(&file)) { User::Process(pid) } else { User::Nobody }
            }
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => User::Perhaps(pid),
            Err(_) => User::Nobody,
        }
    }

    fn pid_in_lock_file(&self) -> Option<u32> {
        let mut bytes = [0; MAX_LOCK_TEXT];
        let filled = File::open(self.path.join(LOCK_NAME)).and_then(|file| file.read_at(&mut bytes, 0)).ok()?;
        std::str::from_utf8(&bytes[..filled]).ok()?.trim().parse().ok()
    }
}

/// Who holds the lock on this file, by the system's list of locks. Some file systems have another device number there than
/// they show, so a holder whose number the file names is taken without it.
fn holder(locks: &str, lock: &std::fs::Metadata, named: Option<u32>) -> Option<u32> {
    let device = format!("{:02x}:{:02x}", major(lock.dev()), minor(lock.dev()));
    locks.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, "FLOCK", _, "WRITE", pid, place, ..] = words[..] else { return None };
        let pid: u32 = pid.parse().ok()?;
        let (found_device, inode) = place.rsplit_once(':')?;
        let is_here = inode.parse() == Ok(lock.ino()) && (found_device == device || Some(pid) == named);
        is_here.then_some(pid)
    })
}

impl Storage for ReadOnlyDir {
    fn list(&self) -> io::Result<Vec<String>> {
        std::fs::read_dir(&self.path)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    }

    fn create(&self, _name: &str) -> io::Result<Arc<dyn StorageFile>> {
        Err(refused())
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn StorageFile>> {
        Ok(Arc::new(ReadOnlyFile(OpenOptions::new().read(true).open(self.path.join(name))?)))
    }

    fn rename(&self, _from: &str, _to: &str) -> io::Result<()> {
        Err(refused())
    }

    fn remove(&self, _name: &str) -> io::Result<()> {
        Err(refused())
    }

    fn sync_dir(&self) -> io::Result<()> {
        Err(refused())
    }

    fn free_space(&self) -> io::Result<u64> {
        Ok(0)
    }

    fn place(&self) -> String {
        self.path.display().to_string()
    }
}

struct ReadOnlyFile(File);

impl StorageFile for ReadOnlyFile {
    fn append(&self, _slices: &mut [IoSlice<'_>]) -> io::Result<()> {
        Err(refused())
    }

    fn sync_data(&self) -> io::Result<()> {
        Err(refused())
    }

    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        loop {
            match self.0.read_at(into, offset) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                done => return done,
            }
        }
    }

    fn len(&self) -> io::Result<u64> {
        self.0.metadata().map(|metadata| metadata.len())
    }

    fn truncate(&self, _len: u64) -> io::Result<()> {
        Err(refused())
    }
}

fn refused() -> io::Error {
    io::ErrorKind::ReadOnlyFilesystem.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_is_found_among_locks() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(LOCK_NAME);
        std::fs::write(&path, "77\n").unwrap();
        let lock = std::fs::metadata(&path).unwrap();
        let device = format!("{:02x}:{:02x}", major(lock.dev()), minor(lock.dev()));
        let inode = lock.ino();
        let table = [
            (format!("1: FLOCK  ADVISORY  WRITE 55 {device}:{inode} 0 EOF"), Some(55)),
            (format!("1: POSIX  ADVISORY  WRITE 55 {device}:{inode} 0 EOF"), None),
            (format!("1: FLOCK  ADVISORY  READ 55 {device}:{inode} 0 EOF"), None),
            (format!("1: -> FLOCK  ADVISORY  WRITE 55 {device}:{inode} 0 EOF"), None),
            (format!("1: FLOCK  ADVISORY  WRITE 55 {device}:{inode}0 0 EOF"), None),
            (format!("1: FLOCK  ADVISORY  WRITE 55 ff:ff:{inode} 0 EOF"), None),
            (format!("nonsense\n\n2: FLOCK  ADVISORY  WRITE 77 ff:ff:{inode} 0 EOF"), Some(77)),
        ];
        for (locks, expected) in table {
            assert_eq!(holder(&locks, &lock, ReadOnlyDir::new(dir.path()).pid_in_lock_file()), expected, "{locks}");
        }
    }
}
