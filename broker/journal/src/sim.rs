//! A disk in memory that loses power, fails and rots on demand, by a seed. Nothing here is used outside of tests and
//! simulations.
//!
//! What a power loss may do is as bad as a real file system allows: of the changes a file saw since its last sync any
//! number survive, the last of them torn at any byte and with sectors of zeros in it; of the changes to the directory
//! since its last sync any subset survives, each whole.

use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::{Storage, StorageFile};

const SECTOR_BYTES: usize = 512;

/// A directory; clones are the same one.
#[derive(Clone, Default)]
pub struct SimStorage {
    disk: Arc<Mutex<Disk>>,
    /// Told when the faults change.
    changed: Arc<Condvar>,
}

/// What goes wrong next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Power fails during the change (write, sync, create, rename, remove, truncate) that is the n-th from now, from 0.
    pub power_loss_at: Option<u64>,
    /// So many writes from now succeed, then one fails with EIO.
    pub write_error_after: Option<u64>,
    /// So many syncs of files or the directory from now succeed, then one fails with EIO.
    pub sync_error_after: Option<u64>,
    /// So many reads from now succeed, then one fails with EIO.
    pub read_error_after: Option<u64>,
    /// What may still be written, in bytes; then ENOSPC. A file that is removed gives its room back.
    pub space: Option<u64>,
    /// Syncs of files do not return until this is false again: a disk that hangs.
    pub hang_syncs: bool,
}

#[derive(Clone, Default)]
struct Disk {
    files: Vec<File>,
    names: Names,
    durable_names: Names,
    unsynced_names: Vec<NameChange>,
    faults: Faults,
    changes: u64,
    dead: bool,
}

type Names = BTreeMap<String, usize>;

#[derive(Clone, Default)]
struct File {
    data: Vec<u8>,
    durable: Vec<u8>,
    unsynced: Vec<Change>,
    /// What a failed sync left in the cache alone, marked as written: later syncs do not write it.
    cached_only: Vec<Range<usize>>,
}

#[derive(Clone)]
enum Change {
    Append(Vec<u8>),
    Truncate(usize),
}

#[derive(Clone)]
enum NameChange {
    Put(String, usize),
    Remove(String),
    Rename(String, String, usize),
}

impl SimStorage {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn set_faults(&self, faults: Faults) {
        self.disk().faults = faults;
        self.changed.notify_all();
    }

    /// Whether anything is to go wrong still, or a place is short.
    pub fn has_faults(&self) -> bool {
        self.disk().faults != Faults::default()
    }

    /// How many changes (writes, syncs, creations …) there have been: the points at which power may fail.
    pub fn changes(&self) -> u64 {
        self.disk().changes
    }

    /// Whether power failed.
    pub fn is_dead(&self) -> bool {
        self.disk().dead
    }

    /// Power is lost and comes back. Open files are useless afterwards, and all faults are forgotten.
    pub fn crash(&self, seed: u64) {
        let mut dice = Dice(seed);
        let disk = &mut *self.disk();
        for file in &mut disk.files {
            file.lose_power(&mut dice);
        }
        let mut names = disk.durable_names.clone();
        for change in std::mem::take(&mut disk.unsynced_names) {
            if dice.one_in(2) {
                change.apply(&mut names);
            }
        }
        disk.names.clone_from(&names);
        disk.durable_names = names;
        (disk.faults, disk.dead) = (Faults::default(), false);
    }

    /// The bytes of a file, as a process sees them.
    pub fn read(&self, name: &str) -> Option<Vec<u8>> {
        let disk = self.disk();
        disk.names.get(name).map(|&id| disk.files[id].data.clone())
    }

    /// Puts `bytes` in the place of a file's own, durably: rot, or somebody's hand.
    pub fn overwrite(&self, name: &str, bytes: &[u8]) {
        let disk = &mut *self.disk();
        let id = disk.names.get(name).copied().unwrap_or(disk.files.len());
        if id == disk.files.len() {
            disk.files.push(File::default());
        }
        disk.files[id] = File { data: bytes.to_vec(), durable: bytes.to_vec(), ..File::default() };
        disk.names.insert(name.to_owned(), id);
        disk.durable_names.insert(name.to_owned(), id);
    }

    /// Another disk in the same state, what is not synced included.
    pub fn fork_unsynced(&self) -> Self {
        Self { disk: Arc::new(Mutex::new(self.disk().clone())), changed: Arc::default() }
    }

    /// Another disk with the same durable and visible content.
    pub fn fork(&self) -> Self {
        let disk = self.disk();
        let fork = Self::new();
        for (name, &id) in &disk.names {
            fork.overwrite(name, &disk.files[id].data);
        }
        fork
    }

    fn disk(&self) -> MutexGuard<'_, Disk> {
        self.disk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Disk {
    /// Counts a change. `Err` if there is no power; `Ok(true)` if power fails while this one is under way.
    fn change(&mut self) -> io::Result<bool> {
        self.alive()?;
        self.changes += 1;
        let dies = self.faults.power_loss_at == Some(0);
        self.faults.power_loss_at = self.faults.power_loss_at.map(|left| left.saturating_sub(1));
        self.dead = dies;
        Ok(dies)
    }

    fn alive(&self) -> io::Result<()> {
        if self.dead { Err(no_power()) } else { Ok(()) }
    }

    fn rename_change(&mut self, change: NameChange) -> io::Result<()> {
        let dies = self.change()?;
        change.apply(&mut self.names);
        self.unsynced_names.push(change);
        if dies { Err(no_power()) } else { Ok(()) }
    }

    fn sync_fails(&mut self) -> io::Result<()> {
        let due = self.faults.sync_error_after == Some(0);
        self.faults.sync_error_after = self.faults.sync_error_after.and_then(|left| left.checked_sub(1));
        if due { Err(io::Error::other("EIO")) } else { Ok(()) }
    }

    fn find(&self, name: &str) -> io::Result<usize> {
        self.alive()?;
        self.names.get(name).copied().ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

fn no_power() -> io::Error {
    io::Error::other("no power")
}

impl NameChange {
    fn apply(&self, names: &mut Names) {
        match self {
            Self::Put(name, id) => _ = names.insert(name.clone(), *id),
            Self::Remove(name) => _ = names.remove(name),
            Self::Rename(from, to, id) => {
                names.remove(from);
                names.insert(to.clone(), *id);
            }
        }
    }
}

impl File {
    fn lose_power(&mut self, dice: &mut Dice) {
        let changes = std::mem::take(&mut self.unsynced);
        let survive = dice.below(changes.len() as u64 + 1) as usize;
        for (at, change) in changes.into_iter().take(survive).enumerate() {
            match change {
                Change::Truncate(len) => self.durable.truncate(len),
                Change::Append(mut bytes) => {
                    if at + 1 == survive {
                        bytes.truncate(dice.below(bytes.len() as u64 + 1) as usize);
                    }
                    // The file's length got there, some of its data did not.
                    for sector in bytes.chunks_mut(SECTOR_BYTES) {
                        if dice.one_in(8) {
                            sector.fill(0);
                        }
                    }
                    self.durable.extend(bytes);
                }
            }
        }
        self.data.clone_from(&self.durable);
        self.cached_only.clear();
    }
}

impl Storage for SimStorage {
    fn list(&self) -> io::Result<Vec<String>> {
        let disk = self.disk();
        disk.alive()?;
        Ok(disk.names.keys().cloned().collect())
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn StorageFile>> {
        let mut disk = self.disk();
        if disk.names.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        disk.files.push(File::default());
        let id = disk.files.len() - 1;
        disk.rename_change(NameChange::Put(name.to_owned(), id))?;
        Ok(Arc::new(SimFile { storage: self.clone(), id }))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn StorageFile>> {
        let id = self.disk().find(name)?;
        Ok(Arc::new(SimFile { storage: self.clone(), id }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut disk = self.disk();
        let id = disk.find(from)?;
        disk.rename_change(NameChange::Rename(from.to_owned(), to.to_owned(), id))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let disk = &mut *self.disk();
        let id = disk.find(name)?;
        disk.rename_change(NameChange::Remove(name.to_owned()))?;
        let freed = disk.files[id].data.len() as u64;
        disk.faults.space.iter_mut().for_each(|space| *space += freed);
        Ok(())
    }

    fn sync_dir(&self) -> io::Result<()> {
        let disk = &mut *self.disk();
        if disk.change()? {
            return Err(no_power());
        }
        disk.sync_fails()?;
        disk.unsynced_names.clear();
        disk.durable_names.clone_from(&disk.names);
        Ok(())
    }

    fn free_space(&self) -> io::Result<u64> {
        Ok(self.disk().faults.space.unwrap_or(u64::MAX))
    }

    fn place(&self) -> String {
        "/sim".to_owned()
    }
}

struct SimFile {
    storage: SimStorage,
    id: usize,
}

impl StorageFile for SimFile {
    fn append(&self, slices: &mut [IoSlice<'_>]) -> io::Result<()> {
        let disk = &mut *self.storage.disk();
        let dies = disk.change()?;
        let mut bytes = Vec::with_capacity(slices.iter().map(|slice| slice.len()).sum());
        slices.iter().for_each(|slice| bytes.extend_from_slice(slice));
        let due = disk.faults.write_error_after == Some(0);
        disk.faults.write_error_after = disk.faults.write_error_after.and_then(|left| left.checked_sub(1));
        let mut outcome = if due { Err(io::Error::other("EIO")) } else { Ok(()) };
        if let Some(space) = &mut disk.faults.space {
            if (bytes.len() as u64) > *space {
                outcome = Err(io::ErrorKind::StorageFull.into());
                bytes.truncate(*space as usize);
            }
            *space -= bytes.len() as u64;
        }
        let file = &mut disk.files[self.id];
        file.data.extend_from_slice(&bytes);
        file.unsynced.push(Change::Append(bytes));
        if dies { Err(no_power()) } else { outcome }
    }

    fn rewrite(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let disk = &mut *self.storage.disk();
        let dies = disk.change()?;
        let file = &mut disk.files[self.id];
        let range = offset as usize..offset as usize + bytes.len();
        assert_eq!(file.data.get(range.clone()), Some(bytes), "what is rewritten stands there already");
        file.cached_only.retain(|cached| cached.start < range.start || cached.end > range.end);
        if dies { Err(no_power()) } else { Ok(()) }
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut disk = self.storage.disk();
        while disk.faults.hang_syncs {
            disk = self.storage.changed.wait(disk).unwrap_or_else(PoisonError::into_inner);
        }
        let disk = &mut *disk;
        if disk.change()? {
            return Err(no_power());
        }
        let failed = disk.sync_fails();
        let file = &mut disk.files[self.id];
        if failed.is_err() {
            file.cached_only.push(file.durable.len().min(file.data.len())..file.data.len());
            file.unsynced.clear();
            return failed;
        }
        let appended = file.unsynced.iter().all(|change| matches!(change, Change::Append(_)));
        file.unsynced.clear();
        if appended && file.durable.len() <= file.data.len() {
            let durable = file.durable.len();
            file.durable.extend_from_slice(&file.data[durable..]);
        } else {
            file.durable.clone_from(&file.data);
        }
        for range in &file.cached_only {
            let end = range.end.min(file.durable.len());
            file.durable[range.start.min(end)..end].fill(0);
        }
        Ok(())
    }

    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        let disk = &mut *self.storage.disk();
        disk.alive()?;
        let due = disk.faults.read_error_after == Some(0);
        disk.faults.read_error_after = disk.faults.read_error_after.and_then(|left| left.checked_sub(1));
        if due {
            return Err(io::Error::other("EIO"));
        }
        let data = &disk.files[self.id].data;
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(data.len());
        let count = into.len().min(data.len() - from);
        into[..count].copy_from_slice(&data[from..from + count]);
        Ok(count)
    }

    fn len(&self) -> io::Result<u64> {
        let disk = self.storage.disk();
        disk.alive()?;
        Ok(disk.files[self.id].data.len() as u64)
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        let disk = &mut *self.storage.disk();
        let dies = disk.change()?;
        let file = &mut disk.files[self.id];
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        if let Some(space) = &mut disk.faults.space {
            *space += file.data.len().saturating_sub(len) as u64;
        }
        file.data.truncate(len);
        file.unsynced.push(Change::Truncate(len));
        if dies { Err(no_power()) } else { Ok(()) }
    }
}

/// splitmix64: small, seeded, the same everywhere.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }
}
