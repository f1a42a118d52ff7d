//! The Lease as a file, shared by the broker processes of one machine (`understudy dev`).
//!
//! ```text
//! lease.json   the Lease and its version; replaced by rename, so it is always whole
//! lease.lock   empty; whoever compares and swaps holds an exclusive lock on it, which ends with its process
//! lease.new-*  a Lease about to be renamed; one that a crash left behind is removed by the next writer
//! ```
//!
//! Not for a network file system, and not for several machines.

use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use futures::stream::{BoxStream, StreamExt, unfold};
use serde::{Deserialize, Serialize};
use understudy_election::{Incarnation, Lease, LeaseParts, MAX_MEMBERS, Renewal, Stored, Version};
use understudy_record::version::ClusterVersion;
use understudy_record::{Epoch, Identity, Member};

use crate::{LeaseError, LeaseStore, SwapError};

/// How often a watch looks. A few hundred bytes from the page cache 200 times a second cost next to nothing, and a failover
/// waits for this at most.
const POLL: Duration = Duration::from_millis(5);

/// The lock is held for microseconds. A process that was stopped while it held it must not hang the others for ever.
const LOCK_PATIENCE: Duration = Duration::from_secs(1);

/// Between two attempts at the lock.
const LOCK_RETRY: Duration = Duration::from_millis(1);

/// A Lease about to be renamed is renamed within milliseconds; after this long its writer is dead.
const ABANDONED: Duration = Duration::from_secs(60);

/// A Lease's file at most: a set of the most members a Lease may have, with room for long names. What is longer is damaged.
const MAX_FILE_BYTES: usize = MAX_MEMBERS * 512 + 1_024;

const FILE: &str = "lease.json";
const LOCK: &str = "lease.lock";
const NEW: &str = "lease.new-";

/// Numbers the writes of this process, so that no two of them share a temporary file.
static WRITES: AtomicU64 = AtomicU64::new(0);

/// The Lease in one directory.
#[derive(Clone, Debug)]
pub struct LocalLease {
    dir: PathBuf,
}

/// `lease.json`. The counter is of one incarnation, which is a random number: a Lease that was deleted and created anew never
/// has a version that the one before it had.
#[derive(Default, Serialize, Deserialize)]
struct OnDisk {
    incarnation: u64,
    counter: u64,
    // The rest is not there in a blank Lease.
    #[serde(skip_serializing_if = "Option::is_none")]
    holder: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    epoch: Option<u64>,
    /// Absent: as the epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    given: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    in_sync: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    duration_ms: Option<u64>,
    /// Absent in a Lease of before there were versions, which is the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    cluster_version: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    renewed_us: Option<i64>,
}

impl LocalLease {
    /// The directory is created by the first write if it is not there.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }

    async fn write(&self, expected: Option<Version>, next: OnDisk) -> Result<Version, SwapError> {
        let dir = self.dir.clone();
        let written = tokio::task::spawn_blocking(move || compare_and_swap(&dir, expected.as_ref(), &next)).await;
        written.unwrap_or_else(|error| Err(SwapError::Unknown { why: error.to_string() }))
    }
}

#[async_trait]
impl LeaseStore for LocalLease {
    async fn read(&self) -> Result<Stored, LeaseError> {
        read(&self.dir)
    }

    async fn create(&self) -> Result<Version, SwapError> {
        self.write(None, OnDisk { incarnation: rand::random(), counter: 1, ..OnDisk::default() }).await
    }

    async fn swap(&self, expected: &Version, lease: &Lease) -> Result<Version, SwapError> {
        self.write(Some(expected.clone()), successor(expected, lease)?).await
    }

    fn watch(&self) -> BoxStream<'static, Result<Stored, LeaseError>> {
        unfold((self.dir.clone(), None), |(dir, last)| async move {
            loop {
                let seen = read(&dir);
                if last.as_ref() != Some(&seen) {
                    return Some((seen.clone(), (dir, Some(seen))));
                }
                tokio::time::sleep(POLL).await;
            }
        })
        .boxed()
    }
}

fn read(dir: &Path) -> Result<Stored, LeaseError> {
    // Not worth a thread of its own: see POLL.
    let bytes = match fs::read(dir.join(FILE)) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Stored::Absent),
        Err(error) => return Err(LeaseError::Unavailable { why: format!("{}: {error}", dir.join(FILE).display()) }),
    };
    decode(&bytes)
}

fn compare_and_swap(dir: &Path, expected: Option<&Version>, next: &OnDisk) -> Result<Version, SwapError> {
    let refused = |what: &str, error: io::Error| SwapError::Refused { why: format!("{what}: {error}") };
    fs::create_dir_all(dir).map_err(|error| refused("create the directory", error))?;
    let version = next.version();
    // Written and synced before the lock is taken, so that the lock is held for a read and a rename only.
    let new = NewFile::write(dir, next).map_err(|error| refused("write the new Lease", error))?;
    let lock = lock(&dir.join(LOCK))?;
    let current = read(dir).map_err(|error| SwapError::Refused { why: error.to_string() })?;
    if current.version() != expected {
        return Err(SwapError::Conflict);
    }
    new.rename_to(&dir.join(FILE)).map_err(|error| refused("put the new Lease in place", error))?;
    drop(lock);
    remove_abandoned(dir);
    // The rename is in force for every process of this machine; whether it outlives a power failure is not known before
    // the directory is synced.
    let synced = File::open(dir).and_then(|dir| dir.sync_all());
    synced.map_err(|error| SwapError::Unknown { why: format!("sync the directory: {error}") })?;
    Ok(version)
}

/// What is written in place of `expected`.
fn successor(expected: &Version, lease: &Lease) -> Result<OnDisk, SwapError> {
    let now_us = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
    let next = parse_version(expected).and_then(|(incarnation, counter)| Some((incarnation, counter.checked_add(1)?)));
    let refused = || SwapError::Refused { why: format!("{expected} is not a version of this store") };
    let (incarnation, counter) = next.ok_or_else(refused)?;
    Ok(OnDisk {
        incarnation,
        counter,
        holder: lease.holder().map(ToString::to_string),
        epoch: Some(lease.epoch().0),
        given: (lease.given() > lease.epoch()).then_some(lease.given().0),
        in_sync: Some(lease.in_sync().iter().map(ToString::to_string).collect()),
        cluster_version: Some(lease.cluster_version().0),
        duration_ms: Some(u64::try_from(lease.duration().as_millis()).unwrap_or(u64::MAX)),
        renewed_us: Some(i64::try_from(now_us).unwrap_or(i64::MAX)),
    })
}

fn parse_version(version: &Version) -> Option<(u64, u64)> {
    Some((u64::from_str_radix(version.incarnation().as_str(), 16).ok()?, version.revision().parse().ok()?))
}

fn decode(bytes: &[u8]) -> Result<Stored, LeaseError> {
    let malformed = |field, why: String| LeaseError::Malformed { field, why };
    if bytes.len() > MAX_FILE_BYTES {
        return Err(malformed(FILE, format!("{} bytes, more than {MAX_FILE_BYTES}", bytes.len())));
    }
    let on_disk: OnDisk = serde_json::from_slice(bytes).map_err(|error| malformed(FILE, error.to_string()))?;
    let version = on_disk.version();
    let OnDisk { holder, epoch, given, in_sync, duration_ms, cluster_version, renewed_us, .. } = on_disk;
    // One that has lost a part of its content is damaged.
    if holder.is_none() && epoch.is_none() && given.is_none() && in_sync.is_none() {
        return Ok(Stored::Blank(version));
    }
    let missing = |field| move || malformed(field, "missing".to_owned());
    let holder = holder.as_deref().map(str::parse::<Identity>).transpose();
    let in_sync = in_sync.ok_or_else(missing("in_sync"))?;
    let in_sync = in_sync.iter().map(|member| member.parse::<Member>()).collect::<Result<_, _>>();
    let parts = LeaseParts {
        holder: holder.map_err(|error| malformed("holder", error.to_string()))?,
        epoch: epoch.map(Epoch).ok_or_else(missing("epoch"))?,
        given: given.map(Epoch),
        in_sync: in_sync.map_err(|error| malformed("in_sync", error.to_string()))?,
        duration: duration_ms.map(Duration::from_millis).ok_or_else(missing("duration_ms"))?,
        cluster_version: cluster_version.map_or(ClusterVersion::FIRST, ClusterVersion),
        renewed: renewed_us.map(Renewal),
    };
    let lease = Lease::from_parts(parts).map_err(|error| malformed(FILE, error.to_string()))?;
    Ok(Stored::Held(lease, version))
}

fn lock(path: &Path) -> Result<File, SwapError> {
    let refused = |why: String| SwapError::Refused { why: format!("lock {}: {why}", path.display()) };
    let file = File::options().create(true).truncate(false).write(true).open(path);
    let file = file.map_err(|error| refused(error.to_string()))?;
    let deadline = Instant::now() + LOCK_PATIENCE;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) if Instant::now() < deadline => std::thread::sleep(LOCK_RETRY),
            Err(TryLockError::WouldBlock) => {
                return Err(refused(format!("another process holds it for {} ms", LOCK_PATIENCE.as_millis())));
            }
            Err(TryLockError::Error(error)) => return Err(refused(error.to_string())),
        }
    }
}

/// Best effort: a file left over takes a few hundred bytes and harms nothing.
fn remove_abandoned(dir: &Path) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with(NEW)) {
        let modified = entry.metadata().and_then(|metadata| metadata.modified());
        let age = modified.ok().and_then(|modified| modified.elapsed().ok());
        if age.is_some_and(|age| age > ABANDONED) {
            _ = fs::remove_file(entry.path());
        }
    }
}

/// The Lease before it is in force; removed if it never comes to be.
struct NewFile {
    path: PathBuf,
}

impl NewFile {
    fn write(dir: &Path, next: &OnDisk) -> io::Result<Self> {
        let number = WRITES.fetch_add(1, Ordering::Relaxed);
        let new = Self { path: dir.join(format!("{NEW}{}-{number}", std::process::id())) };
        let mut file = File::create(&new.path)?;
        file.write_all(&serde_json::to_vec_pretty(next)?)?;
        file.sync_all()?;
        Ok(new)
    }

    fn rename_to(&self, path: &Path) -> io::Result<()> {
        fs::rename(&self.path, path)
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        // Not there any more once it was renamed.
        _ = fs::remove_file(&self.path);
    }
}

impl OnDisk {
    fn version(&self) -> Version {
        Version::new(Incarnation::new(format!("{:x}", self.incarnation)), self.counter.to_string())
    }
}
