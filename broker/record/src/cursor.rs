//! How far a queue's backlog has been read, from the newest message toward the oldest. Which messages there are is not known
//! here.

use crate::Index;

/// How far a queue's backlog has been read: where the next chunk goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BacklogCursor {
    /// Messages from this index on have been read.
    pub before: Index,
    /// And so many parts of the next one, if it is still this one.
    pub begun: Option<(Index, usize)>,
}

impl BacklogCursor {
    /// Nothing has been read.
    pub const START: Self = Self { before: Index(u64::MAX), begun: None };
}

/// Between two messages.
impl From<Index> for BacklogCursor {
    fn from(before: Index) -> Self {
        Self { before, begun: None }
    }
}
