//! What may go wrong, with its cause and its cure.

use std::io;

use rustix::io::Errno;
use understudy_record::Index;
use understudy_record::version::UnknownVersion;

use crate::{OrderError, Storage, VisitError};

/// A disk that did not do what it was asked. The journal that met it is done: what a failed write or fsync left behind is
/// unknown, so nothing is reported durable any more, and no retry pretends otherwise. A restart reads what is there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot {action} {name} in {place}: {text}{}", cure(*.kind))]
pub struct Failure {
    pub action: &'static str,
    pub name: String,
    pub place: String,
    pub kind: io::ErrorKind,
    /// The system's number for it, if it came from there.
    pub code: Option<i32>,
    pub text: String,
}

impl Failure {
    /// There was no room: nothing is wrong with what is there.
    pub fn is_full(&self) -> bool {
        matches!(self.kind, io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
    }

    /// The process or the machine had too many open files, or too little memory: this says nothing of the disk, and passes.
    pub fn is_passing(&self) -> bool {
        let passing = [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::AGAIN];
        passing.iter().any(|errno| self.code == Some(errno.raw_os_error()))
    }

    /// Makes an [`io::Error`] tell where it happened.
    pub(crate) fn of(storage: &dyn Storage, action: &'static str, name: &str) -> impl FnOnce(io::Error) -> Self {
        move |error| Self {
            action,
            name: name.to_owned(),
            place: storage.place(),
            kind: error.kind(),
            code: error.raw_os_error(),
            text: error.to_string(),
        }
    }
}

fn cure(kind: io::ErrorKind) -> &'static str {
    match kind {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "; make room or enlarge the volume, then restart this broker: its log is intact"
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "; the broker's user must be able to write there"
        }
        _ => "",
    }
}

/// Why the journal did not take what it was given. All but [`Failed`](JournalError::Failed) are refusals that changed nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JournalError {
    #[error(transparent)]
    Failed(#[from] Failure),
    #[error(transparent)]
    Order(#[from] OrderError),
    #[error("the log cannot end at {index}: it may not be cut below {floor}, so this store has to be filled anew")]
    BelowFloor { index: Index, floor: Index },
    #[error("a new store is being filled; complete or abandon it first")]
    BaseInProgress,
    #[error("no new store is being filled")]
    NoBase,
    #[error("the new store is not whole yet: {missing}")]
    BaseIncomplete { missing: &'static str },
}

/// Why a data directory was not opened. Nothing in it was changed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(transparent)]
    Failed(#[from] Failure),
    #[error("{place} holds {name}, which is not Understudy's; give the broker an empty directory")]
    NotOurs { place: String, name: String },
    #[error(
        "{place} holds a log but no file `store`, so nobody knows whose log it is; restore that file, or empty the \
         directory to let this broker fetch everything from its primary"
    )]
    StoreMissing { place: String },
    #[error(
        "{place}/{name} is damaged ({reason}); restore it, or empty the directory to let this broker fetch everything \
         from its primary"
    )]
    MetaDamaged { place: String, name: String, reason: String },
    #[error(
        "{place}/{name} is of format {found}, this version knows {known}; run the version that wrote it, or a newer one"
    )]
    Newer { place: String, name: String, found: u32, known: u32 },
    /// The store remembers a version of the cluster that this build does not know.
    #[error("{place}/{name}: this build {why}")]
    Version { place: String, name: String, why: UnknownVersion },
    #[error(
        "{place}/{segment} at byte {offset}: a record of a kind that this build does not know; a newer build wrote it: \
         upgrade this one"
    )]
    UnknownKind { place: String, segment: String, offset: u64 },
    #[error(
        "the log is damaged: {place}/{segment} at byte {offset}: {reason}; what follows may hold confirmed messages, so \
         nothing was skipped. If another replica of this cluster is in sync, empty the directory to let this broker \
         fetch everything from it; otherwise keep a copy before anything else"
    )]
    Damaged { place: String, segment: String, offset: u64, reason: String },
    #[error("{place}/{segment} at byte {offset}: the record cannot be applied: {source}")]
    Refused { place: String, segment: String, offset: u64, source: VisitError },
}

impl OpenError {
    /// Nothing is wrong with the directory: a newer build opens it, and the present one never will.
    pub fn needs_upgrade(&self) -> bool {
        matches!(self, Self::Version { .. } | Self::UnknownKind { .. })
    }
}
