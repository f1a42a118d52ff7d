//! Looking at a data directory without touching it: what is in it, what a broker would do with it, and what is damaged, each
//! place with its file, offset and reason. It works beside a running broker, takes no lock and writes nothing.
//!
//! It judges as `recovery` does, by the same `files` and `order`; but that stops at the first thing that is wrong, and here
//! everything that is wrong is listed. It does not repair, and does not apply records: a log whose bytes are right and whose
//! contents make no sense passes.
//!
//! Beside a writer a reading can catch files between two states. So damage counts only when two readings in a row find it.

mod directory;
mod live;
mod read_only;
mod walk;

use std::io;

use understudy_record::version::ClusterVersion;
use understudy_record::{Epoch, Index, Position, RecordError, StoreId};

use crate::error::{Failure, OpenError};
use crate::files::Lack;
use crate::order::Unread;
use crate::recovery::TornTail;
use crate::segment::{FORMAT, ScanError};
use crate::{OrderError, Storage};

pub use read_only::{ReadOnlyDir, User};

/// Readings until two agree on what is damaged. A broker changes its files a few times a second at most, and a reading of
/// headers takes milliseconds, so more than a few in vain mean that no verdict is to be had.
const MAX_READINGS: usize = 8;

/// Places listed of one file; what comes after them in it is not read. Nobody repairs so many by hand.
const MAX_PLACES_PER_FILE: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// What a broker reads to open the store: every header, the checkpoint, and the log after its sync point. All of the log
    /// if there is no checkpoint.
    Opening,
    /// Every frame of every file that counts. At most one frame is in memory at a time, and a few bits a live message.
    Everything,
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inspection {
    pub place: String,
    pub depth: Depth,
    /// `None` if the file `store` is missing or damaged.
    pub store: Option<StoreSeen>,
    /// `None` if there is none, or it is damaged.
    pub checkpoint: Option<CheckpointSeen>,
    /// Those that count, in the order of their messages.
    pub segments: Vec<SegmentSeen>,
    /// The last record; `None` if damage hides it.
    pub last: Option<Position>,
    /// The highest `committed` stamp on what was read.
    pub committed: Index,
    /// A tail that was never reported durable: the next opening cuts it off, or it is being written right now. No damage.
    pub cut: Option<TornTail>,
    pub leftovers: Vec<Leftover>,
    pub damage: Vec<Damage>,
    /// Of segments and checkpoint.
    pub bytes_read: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreSeen {
    pub id: StoreId,
    pub known_epoch: Epoch,
    pub generation: u32,
    /// The highest version of the cluster that it knows.
    pub version: ClusterVersion,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckpointSeen {
    pub bytes: u64,
    pub sync_point: Position,
    /// The log may not be cut below this.
    pub floor: Index,
    /// The sequence number of the log's first segment, and the first record in it.
    pub log_start: u32,
    pub first_record: Index,
    pub queues: u64,
    pub exchanges: u64,
    pub bindings: u64,
    /// Messages that it names, each once however many queues hold it.
    pub messages: u64,
    /// What they weigh: bodies and properties, in bytes.
    pub message_bytes: u64,
    /// Places in queues.
    pub held: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentRole {
    /// Part of the log.
    Log,
    /// Copies of messages that outlived their log segments.
    Kept,
    /// A log segment that is no longer part of the log and goes on for the messages in it.
    KeptLog,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentSeen {
    pub name: String,
    pub role: SegmentRole,
    /// The indexes that it answers for; `None` if it has none, or damage hides it.
    pub range: Option<(Index, Index)>,
    /// The file's length.
    pub bytes: u64,
    /// `None` if its frames were not read.
    pub counts: Option<Counts>,
    /// Which of its messages the checkpoint names; `None` if it tells nothing about this segment.
    pub live: Option<Live>,
    /// Messages that the checkpoint names, and that reading this segment did not find.
    pub lost: u64,
    /// It was removed while it was waiting to be read, as a broker at work does.
    pub gone: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub records: u64,
    /// Pieces of a base.
    pub pieces: u64,
    pub marks: u64,
    /// Among records and pieces: those that carry a message.
    pub messages: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Live {
    pub messages: u64,
    /// What they take in the segment. If it was not read: bodies, properties and frame headers, so a little less.
    pub bytes: u64,
}

/// A file that does not count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leftover {
    pub name: String,
    pub bytes: u64,
    pub what: &'static str,
    /// The next opening removes it; else nobody touches it.
    pub is_removed_at_opening: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    pub file: String,
    pub offset: u64,
    pub kind: DamageKind,
    /// For people.
    pub reason: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DamageKind {
    /// Bytes that are not what was written, or not where they belong.
    Bytes,
    /// A file, or a part of one, that has to be there.
    Missing,
    /// Nothing is wrong with it but that a newer version wrote it.
    Newer,
    /// The disk did not give it.
    Unreadable,
}

/// Why there is no verdict.
#[derive(Debug, thiserror::Error)]
pub enum InspectError {
    #[error(transparent)]
    Failed(#[from] Failure),
    #[error("{place} is not the data directory of a broker: {why}")]
    NotAStore { place: String, why: &'static str },
    #[error("{place} changes faster than it can be read; try again, or stop the broker that uses it")]
    Restless { place: String },
}

/// Looks at the store in `storage`, of which nothing is changed.
///
/// # Errors
/// If there is no store in it, or it cannot be listed; whatever is wrong with a store is no error but what was asked for.
pub fn inspect(storage: &dyn Storage, depth: Depth) -> Result<Inspection, InspectError> {
    let mut before: Vec<Damage> = Vec::new();
    for _ in 0..MAX_READINGS {
        let mut found = match directory::read(storage, depth) {
            Ok(found) => found,
            Err(Stopped::Changed) => continue,
            Err(Stopped::Error(error)) => return Err(error),
        };
        // A disk that fails once in a while is damage enough.
        let is_certain = found.damage.iter().any(|damage| damage.kind == DamageKind::Unreadable);
        if found.damage.is_empty() || is_certain {
            return Ok(found);
        }
        let was_there = |damage: &Damage| before.iter().any(|other| other.is_same_place(damage));
        let (twice, once) = std::mem::take(&mut found.damage).into_iter().partition(was_there);
        (found.damage, before) = (twice, once);
        if !found.damage.is_empty() {
            return Ok(found);
        }
    }
    Err(InspectError::Restless { place: storage.place() })
}

impl Inspection {
    /// Segments and checkpoint.
    pub fn bytes(&self) -> u64 {
        let checkpoint = self.checkpoint.map_or(0, |checkpoint| checkpoint.bytes);
        checkpoint + self.segments.iter().map(|segment| segment.bytes).sum::<u64>()
    }

    /// Messages that lived when the checkpoint was begun; `None` without a checkpoint.
    pub fn live_messages(&self) -> Option<u64> {
        self.checkpoint.map(|checkpoint| checkpoint.messages)
    }
}

impl SegmentSeen {
    /// Of the file's bytes, between 0 and 1.
    pub fn share_live(&self) -> Option<f64> {
        let live = self.live?;
        (self.bytes > 0).then(|| (live.bytes as f64 / self.bytes as f64).min(1.0))
    }
}

impl Counts {
    pub fn frames(&self) -> u64 {
        self.records + self.pieces
    }
}

/// Why a reading came to no end.
enum Stopped {
    /// Somebody changed the files meanwhile.
    Changed,
    Error(InspectError),
}

impl From<Failure> for Stopped {
    fn from(failure: Failure) -> Self {
        match failure.kind {
            io::ErrorKind::NotFound => Self::Changed,
            _ => Self::Error(failure.into()),
        }
    }
}

impl Damage {
    /// What is said of a place may change with what is written after it.
    fn is_same_place(&self, other: &Self) -> bool {
        (&self.file, self.offset, self.kind) == (&other.file, other.offset, other.kind)
    }

    fn bytes(file: impl Into<String>, offset: u64, reason: impl Into<String>) -> Self {
        Self { file: file.into(), offset, kind: DamageKind::Bytes, reason: reason.into() }
    }

    fn missing(file: impl Into<String>, offset: u64, reason: impl Into<String>) -> Self {
        Self { kind: DamageKind::Missing, ..Self::bytes(file, offset, reason) }
    }

    fn lack(lack: Lack) -> Self {
        Self::missing(lack.id.name(), lack.offset, lack.reason)
    }

    fn newer(file: impl Into<String>, offset: u64, found: u32) -> Self {
        let reason = format!(
            "it is of format {found}, this version knows {FORMAT}: run the version that wrote it, or a newer one"
        );
        Self { kind: DamageKind::Newer, ..Self::bytes(file, offset, reason) }
    }

    /// Of a frame whose checksum is right.
    fn undecodable(file: impl Into<String>, offset: u64, error: &RecordError) -> Self {
        let kind = match error {
            RecordError::UnknownTag { .. } => DamageKind::Newer,
            _ => DamageKind::Bytes,
        };
        Self { kind, ..Self::bytes(file, offset, error.to_string()) }
    }

    fn of_scan(file: &str, offset: u64, error: ScanError) -> Result<Self, Stopped> {
        match error {
            ScanError::Bad { offset, reason } => Ok(Self::bytes(file, offset, reason)),
            ScanError::Io(error) => Self::unreadable(file, offset, &error),
        }
    }

    fn of_unread(file: &str, unread: Unread<Self>) -> Result<Self, Stopped> {
        match unread {
            Unread::Scan { offset, error } => Self::of_scan(file, offset, error),
            Unread::Order { offset, error: OrderError::BasePiece(error) } => {
                Ok(Self::undecodable(file, offset, &error))
            }
            Unread::Order { offset, error } => Ok(Self::bytes(file, offset, error.to_string())),
            Unread::NotWhole { offset, reason } => Ok(Self::missing(file, offset, reason)),
            Unread::Refused(damage) => Ok(damage),
        }
    }

    /// A read that failed, unless that is because the file was removed or cut meanwhile.
    fn unreadable(file: &str, offset: u64, error: &io::Error) -> Result<Self, Stopped> {
        match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::UnexpectedEof => Err(Stopped::Changed),
            _ => {
                let reason = format!("it cannot be read: {error}");
                Ok(Self { kind: DamageKind::Unreadable, ..Self::bytes(file, offset, reason) })
            }
        }
    }

    /// As an opening would tell it.
    fn of_opening(file: &str, error: OpenError) -> Result<Self, Stopped> {
        match error {
            OpenError::Newer { found, .. } => Ok(Self::newer(file, 0, found)),
            OpenError::Version { why, .. } => {
                Ok(Self { kind: DamageKind::Newer, ..Self::bytes(file, 0, format!("this build {why}")) })
            }
            OpenError::MetaDamaged { reason, .. } => Ok(Self::bytes(file, 0, reason)),
            OpenError::Failed(failure) if failure.kind == io::ErrorKind::NotFound => Err(Stopped::Changed),
            OpenError::Failed(failure) => {
                let reason = format!("it cannot be read: {}", failure.text);
                Ok(Self { kind: DamageKind::Unreadable, ..Self::bytes(file, 0, reason) })
            }
            other => Ok(Self::bytes(file, 0, other.to_string())),
        }
    }
}
