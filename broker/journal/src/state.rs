//! Which frame may follow which: the log's order, checked by one piece of code when frames are appended and when they are
//! read back. It knows nothing of files.

use understudy_record::{BasePiece, Epoch, Frame, FrameKind, Index, Position, RecordError};

/// What the log's frames say, taken together.
#[derive(Clone, Debug, Default)]
pub(crate) struct LogState {
    pub(crate) head: Head,
    /// The highest `committed` stamp seen.
    pub(crate) committed: Index,
    /// The first position of each epoch, oldest first.
    pub(crate) epochs: Vec<Position>,
    /// The log's first record, where a checkpoint says so; it may be before the sync point.
    pub(crate) first_record: Option<Index>,
}

/// Where the log stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) last: Position,
    pub(crate) base: Base,
}

/// Whether the log begins with a base (a sync point's state) instead of record 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Base {
    /// It begins with record 1.
    #[default]
    None,
    /// A catch-up was begun, and its first piece is to come.
    Awaited,
    Open {
        sync_point: Position,
    },
    /// `floor`: the log may not end before it, since the base shows effects up to it or has pieces between the records.
    Whole {
        sync_point: Position,
        floor: Index,
    },
}

/// A frame that may not stand where it is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OrderError {
    #[error("record {found} where {expected} comes next")]
    Gap { expected: Index, found: Index },
    #[error("record {index} of epoch {found} after one of epoch {last}")]
    EpochBack { index: Index, last: Epoch, found: Epoch },
    #[error("record {index} where the start of a base was due")]
    BaseDue { index: Index },
    #[error("a base piece of sync point {found} where {expected}")]
    Base { found: Position, expected: &'static str },
    #[error("a base piece that cannot be read: {0}")]
    BasePiece(#[from] RecordError),
}

/// Frames that were found in order, and what they change.
#[derive(Debug)]
pub(crate) struct Advance {
    pub(crate) head: Head,
    committed: Index,
    /// A base's own epoch table, which replaces what was known.
    base_epochs: Option<Vec<Position>>,
    starts: Vec<Position>,
}

impl LogState {
    pub(crate) fn awaiting_base() -> Self {
        Self { head: Head { base: Base::Awaited, ..Head::default() }, ..Self::default() }
    }

    /// Checks that `frames` continue the log, and says what follows from it. Changes nothing.
    pub(crate) fn admit(&self, frames: &[Frame]) -> Result<Advance, OrderError> {
        let mut to = Advance { head: self.head, committed: self.committed, base_epochs: None, starts: Vec::new() };
        for frame in frames {
            match frame.kind {
                FrameKind::Record => to.record(frame.position)?,
                FrameKind::Base => to.base(frame)?,
            }
            to.committed = to.committed.max(frame.committed);
        }
        Ok(to)
    }

    pub(crate) fn apply(&mut self, to: Advance) {
        self.head = to.head;
        self.committed = to.committed;
        if let Some(epochs) = to.base_epochs {
            self.epochs = epochs;
        }
        self.epochs.extend(to.starts);
    }

    /// Forgets all records after `index`, which is in the log.
    pub(crate) fn cut_after(&mut self, index: Index) {
        self.head.last = Position::new(self.epoch_at(index).unwrap_or_default(), index);
        self.epochs.retain(|start| start.index <= index);
    }

    /// The first record that stands in the log itself, or would.
    pub(crate) fn first(&self) -> Index {
        let by_base = match self.head.base {
            Base::None | Base::Awaited => Index(1),
            Base::Open { sync_point } | Base::Whole { sync_point, .. } => sync_point.index.next(),
        };
        self.first_record.unwrap_or(by_base)
    }

    /// A checkpoint has come into force: the log begins with `first_record` and cannot be cut below `floor`.
    pub(crate) fn rest_on(&mut self, sync_point: Position, floor: Index, first_record: Index) {
        self.head.base = Base::Whole { sync_point, floor: floor.max(self.floor()) };
        self.first_record = Some(first_record);
    }

    pub(crate) fn floor(&self) -> Index {
        match self.head.base {
            Base::Whole { floor, .. } => floor,
            Base::None | Base::Awaited | Base::Open { .. } => Index(0),
        }
    }

    /// Which epoch wrote `index`; `None` for what the log does not reach.
    pub(crate) fn epoch_at(&self, index: Index) -> Option<Epoch> {
        if index == Index(0) || index > self.head.last.index {
            return None;
        }
        let begun = self.epochs.partition_point(|start| start.index <= index);
        begun.checked_sub(1).map(|at| self.epochs[at].epoch)
    }
}

impl Advance {
    fn record(&mut self, position: Position) -> Result<(), OrderError> {
        let Head { last, base } = self.head;
        if base == Base::Awaited {
            return Err(OrderError::BaseDue { index: position.index });
        }
        if position.index != last.index.next() {
            return Err(OrderError::Gap { expected: last.index.next(), found: position.index });
        }
        if position.epoch < last.epoch {
            return Err(OrderError::EpochBack { index: position.index, last: last.epoch, found: position.epoch });
        }
        if position.epoch > last.epoch || last.index == Index(0) {
            self.starts.push(position);
        }
        self.head.last = position;
        Ok(())
    }

    fn base(&mut self, frame: &Frame) -> Result<(), OrderError> {
        let found = frame.position;
        match (self.head.base, frame.decode_base()?) {
            (Base::Awaited, BasePiece::Start { sync_point, epochs, .. }) if sync_point == found => {
                let ordered = epochs.is_sorted_by(|a, b| a.epoch < b.epoch && a.index < b.index);
                if !ordered || epochs.last().is_some_and(|last| last.epoch > found.epoch || last.index > found.index) {
                    return Err(OrderError::Base { found, expected: "a table of epochs in order was due" });
                }
                self.head = Head { last: sync_point, base: Base::Open { sync_point } };
                self.base_epochs = Some(epochs);
                Ok(())
            }
            (Base::Awaited, _) => Err(OrderError::Base { found, expected: "the start of a base was due" }),
            (Base::Open { sync_point }, piece) if sync_point == found => match piece {
                BasePiece::Start { .. } => Err(OrderError::Base { found, expected: "that base has begun already" }),
                // What was written before the last piece cannot be cut without it.
                BasePiece::End { floor } => {
                    let floor = floor.max(self.head.last.index);
                    self.head.base = Base::Whole { sync_point, floor };
                    Ok(())
                }
                _ => Ok(()),
            },
            (Base::Open { .. }, _) => Err(OrderError::Base { found, expected: "another sync point's base is open" }),
            (Base::None, _) => Err(OrderError::Base { found, expected: "no base was begun" }),
            (Base::Whole { .. }, _) => Err(OrderError::Base { found, expected: "the base was whole already" }),
        }
    }
}
