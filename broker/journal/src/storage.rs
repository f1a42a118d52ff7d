//! What the journal asks of a disk: one flat directory of files. [`DirStorage`](crate::DirStorage) is a real one,
//! [`SimStorage`](crate::sim::SimStorage) one that loses power on demand. Nothing here retries or hides an error.

use std::io::{self, IoSlice};
use std::sync::Arc;

/// A directory. Names are plain file names. Creating, renaming and removing survive a power loss only after
/// [`sync_dir`](Storage::sync_dir).
pub trait Storage: Send + Sync {
    /// The names of all files, in no order.
    fn list(&self) -> io::Result<Vec<String>>;
    /// A new, empty file; an error if the name is taken.
    fn create(&self, name: &str) -> io::Result<Arc<dyn StorageFile>>;
    /// An existing file, to read and to append.
    fn open(&self, name: &str) -> io::Result<Arc<dyn StorageFile>>;
    /// Atomically gives `from` the name `to`, whose earlier file is gone then.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    fn remove(&self, name: &str) -> io::Result<()>;
    fn sync_dir(&self) -> io::Result<()>;
    /// What an ordinary process may still write, in bytes.
    fn free_space(&self) -> io::Result<u64>;
    /// Where this is, for error messages: a path.
    fn place(&self) -> String;
}

/// An open file. Readers use it while one writer appends.
pub trait StorageFile: Send + Sync {
    /// Writes all the slices at the end, or fails; a failure may leave a part of them. Slices are consumed.
    fn append(&self, slices: &mut [IoSlice<'_>]) -> io::Result<()>;
    /// Writes `bytes`, which stand at `offset` already, once more: a sync that failed may have left them in the cache alone,
    /// marked as written.
    /// A file that is only read refuses.
    fn rewrite(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        _ = (bytes, offset);
        Err(io::ErrorKind::Unsupported.into())
    }
    /// Returns when all that was appended, and the length, would survive a power loss.
    fn sync_data(&self) -> io::Result<()>;
    /// Fills a part of `into` from `offset` on; 0 only at the file's end.
    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize>;
    fn len(&self) -> io::Result<u64>;
    fn is_empty(&self) -> io::Result<bool> {
        self.len().map(|len| len == 0)
    }
    fn truncate(&self, len: u64) -> io::Result<()>;
}

/// Fills `into` from `offset` on, as far as the file goes; returns how far.
pub(crate) fn read_full(file: &dyn StorageFile, into: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut filled = 0;
    while filled < into.len() {
        match file.read_at(&mut into[filled..], offset + filled as u64)? {
            0 => break,
            count => filled += count,
        }
    }
    Ok(filled)
}
