//! A real directory, used by one process at a time.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, IoSlice, Read, Seek, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::{Storage, StorageFile};

/// The file whose lock says who uses the directory; it holds the process id for people.
pub(crate) const LOCK_NAME: &str = "lock";

/// A directory with an exclusive lock on it, given back when this is dropped or the process ends, however it ends.
#[derive(Debug)]
pub struct DirStorage {
    path: PathBuf,
    /// The directory itself, to sync it.
    dir: File,
    _lock: File,
}

#[derive(Debug, thiserror::Error)]
pub enum DirError {
    #[error("another broker{} uses the data directory {path}; stop it, or give this one another directory", holder(*.pid))]
    InUse { path: String, pid: Option<u32> },
    #[error("the data directory {path} cannot be used: {action} failed: {source}; it must be a directory that user {uid} may read and write", uid = rustix::process::getuid().as_raw())]
    Unusable { path: String, action: &'static str, source: io::Error },
}

fn holder(pid: Option<u32>) -> String {
    pid.map_or(String::new(), |pid| format!(" (process {pid})"))
}

impl DirStorage {
    /// Takes `path`, which is created if it is not there.
    pub fn open(path: &Path) -> Result<Self, DirError> {
        let shown = || path.display().to_string();
        let unusable = |action| move |source| DirError::Unusable { path: shown(), action, source };
        if !path.is_dir() {
            std::fs::create_dir_all(path).map_err(unusable("creating it"))?;
            if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
                File::open(parent).and_then(|dir| dir.sync_all()).map_err(unusable("syncing its parent"))?;
            }
        }
        let dir = File::open(path).map_err(unusable("opening it"))?;
        let options = &mut OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let mut lock = options.open(path.join(LOCK_NAME)).map_err(unusable("opening its lock file"))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut text = String::new();
                // A pid has few digits; a lock file of ours has nothing else.
                let pid = (&lock).take(16).read_to_string(&mut text).ok().and_then(|_| text.trim().parse().ok());
                return Err(DirError::InUse { path: shown(), pid });
            }
            Err(TryLockError::Error(source)) => return Err(unusable("locking it")(source)),
        }
        let write_pid = |lock: &mut File| {
            lock.set_len(0)?;
            lock.rewind()?;
            writeln!(lock, "{}", std::process::id())
        };
        // The number is for people only: a full disk must not keep the broker from opening its log.
        if let Err(source) = write_pid(&mut lock)
            && source.kind() != io::ErrorKind::StorageFull
        {
            return Err(unusable("writing its lock file")(source));
        }
        Ok(Self { path: path.to_owned(), dir, _lock: lock })
    }

    fn file(&self, name: &str, options: &OpenOptions) -> io::Result<Arc<dyn StorageFile>> {
        let path = self.path.join(name);
        Ok(Arc::new(DirFile { file: options.open(&path)?, path }))
    }
}

impl Storage for DirStorage {
    fn list(&self) -> io::Result<Vec<String>> {
        std::fs::read_dir(&self.path)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn StorageFile>> {
        self.file(name, OpenOptions::new().read(true).append(true).create_new(true))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn StorageFile>> {
        self.file(name, OpenOptions::new().read(true).append(true))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        std::fs::rename(self.path.join(from), self.path.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        std::fs::remove_file(self.path.join(name))
    }

    fn sync_dir(&self) -> io::Result<()> {
        self.dir.sync_all()
    }

    fn free_space(&self) -> io::Result<u64> {
        let space = rustix::fs::fstatvfs(&self.dir)?;
        Ok(space.f_bavail.saturating_mul(space.f_frsize))
    }

    fn place(&self) -> String {
        self.path.display().to_string()
    }
}

struct DirFile {
    /// Writes go to its end, wherever it is.
    file: File,
    path: PathBuf,
}

impl StorageFile for DirFile {
    fn append(&self, mut slices: &mut [IoSlice<'_>]) -> io::Result<()> {
        IoSlice::advance_slices(&mut slices, 0); // drops leading empty ones: a write of nothing returns 0
        while !slices.is_empty() {
            match (&self.file).write_vectored(slices) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => IoSlice::advance_slices(&mut slices, count),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn rewrite(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        OpenOptions::new().write(true).open(&self.path)?.write_all_at(bytes, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        loop {
            match FileExt::read_at(&self.file, into, offset) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                done => return done,
            }
        }
    }

    fn len(&self) -> io::Result<u64> {
        self.file.metadata().map(|metadata| metadata.len())
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }
}
