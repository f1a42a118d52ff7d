//! The log's order from where an opening begins: from its first frame, or from a checkpoint, which covers the records up to
//! its sync point. Which frame may follow which is for `state` to say; here is what need not be read or applied again.

use understudy_record::{Frame, FrameKind, Index, Position};

use crate::checkpoint::Found;
use crate::segment::ScanError;
use crate::state::{Base, LogState, OrderError};

const NOT_WHOLE: &str = "its state ends here and is not whole";

pub(crate) struct Order {
    pub(crate) state: LogState,
    covered: Option<Covered>,
}

/// The part of the log before a checkpoint's sync point.
#[derive(Clone, Copy)]
struct Covered {
    sync_point: Position,
    /// The last record passed.
    passed: Position,
}

/// What a frame that stands where it should is to a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// A record that the checkpoint covers, or a piece of the base that it has replaced.
    Covered,
    New,
}

/// Why a checkpoint's pieces were not read to their end.
pub(crate) enum Unread<E> {
    /// What stands at `offset` cannot be read.
    Scan { offset: u64, error: ScanError },
    /// It can, and may not stand there.
    Order { offset: u64, error: OrderError },
    /// They end before the base does.
    NotWhole { offset: u64, reason: &'static str },
    /// Whoever looked at them wanted no more.
    Refused(E),
}

impl Order {
    /// Of a log without a checkpoint, from its beginning.
    pub(crate) fn of_log(generation: u32) -> Self {
        // Every generation but the first begins with the base of a catch-up.
        let state = if generation == 0 { LogState::default() } else { LogState::awaiting_base() };
        Self { state, covered: None }
    }

    /// Of a log that goes on from a checkpoint, whose pieces are its beginning; `each` gets their offsets and them.
    pub(crate) fn of_checkpoint<E>(
        found: &Found,
        each: &mut dyn FnMut(u64, Frame) -> Result<(), E>,
    ) -> Result<Self, Unread<E>> {
        let mut state = LogState::awaiting_base();
        let mut frames = found.frames();
        loop {
            let offset = frames.offset();
            let Some(frame) = frames.next().map_err(|error| Unread::Scan { offset, error })? else { break };
            let advance = state.admit(std::slice::from_ref(&frame));
            state.apply(advance.map_err(|error| Unread::Order { offset, error })?);
            each(offset, frame).map_err(Unread::Refused)?;
        }
        let Base::Whole { sync_point, .. } = state.head.base else {
            return Err(Unread::NotWhole { offset: frames.offset(), reason: NOT_WHOLE });
        };
        Ok(Self { state, covered: Some(Covered { sync_point, passed: Position::default() }) })
    }

    /// The checkpoint's.
    pub(crate) fn sync_point(&self) -> Option<Position> {
        self.covered.map(|covered| covered.sync_point)
    }

    /// The last record read, covered ones included.
    pub(crate) fn last(&self) -> Position {
        match self.covered {
            Some(Covered { sync_point, passed }) if passed < sync_point => passed,
            _ => self.state.head.last,
        }
    }

    /// Goes on after `before` without having read it; `false` if the checkpoint does not cover it.
    pub(crate) fn jump(&mut self, before: Position) -> bool {
        let Some(covered) = &mut self.covered else { return false };
        covered.passed = before;
        before.index <= covered.sync_point.index
    }

    /// Whether a segment that follows `before` comes next.
    pub(crate) fn check_segment(&self, before: Position) -> Result<(), String> {
        let last = self.last();
        if before != last {
            return Err(format!("it follows {before}, but the one before it ends at {last}"));
        }
        Ok(())
    }

    /// The next frame. If it may not stand there, nothing is certain of what comes after it.
    pub(crate) fn take(&mut self, frame: &Frame) -> Result<Taken, String> {
        if let Some(Covered { sync_point, passed }) = &mut self.covered {
            if frame.kind == FrameKind::Base {
                // The base that began this log: its records follow the base's sync point.
                *passed = frame.position.max(*passed);
                return Ok(Taken::Covered);
            }
            if passed < sync_point {
                check_record(*passed, frame.position)?;
                *passed = frame.position;
                if frame.position.index == sync_point.index && frame.position != *sync_point {
                    return Err(format!("record {} where the checkpoint has {sync_point}", frame.position));
                }
                return Ok(Taken::Covered);
            }
        }
        let advance = self.state.admit(std::slice::from_ref(frame)).map_err(|error| error.to_string())?;
        self.state.apply(advance);
        Ok(Taken::New)
    }

    /// What a log lacks that ends here.
    pub(crate) fn lack(&self) -> Option<String> {
        if !matches!(self.state.head.base, Base::None | Base::Whole { .. }) {
            return Some("the sync point's state ends here and is not whole".to_owned());
        }
        if let Some(Covered { sync_point, passed }) = &self.covered
            && passed < sync_point
        {
            return Some(format!("the log ends at {passed}, before the checkpoint's sync point {sync_point}"));
        }
        let (last, floor) = (self.state.head.last, self.state.floor());
        (last.index < floor).then(|| format!("the log ends at {last}, but must reach {floor}"))
    }
}

/// Of a record that is not applied: whether it may follow `before`.
pub(crate) fn check_record(before: Position, found: Position) -> Result<(), String> {
    let expected = before.index.next();
    if found.index != expected || found.epoch < before.epoch {
        return Err(format!("record {found} where {expected} comes next after epoch {}", before.epoch));
    }
    Ok(())
}

/// How many of the log's segments end at the sync point or before it, so that a reader of the state need not read them.
/// `befores`: the last record before each, as far as that is known.
pub(crate) fn passed_over(befores: impl Iterator<Item = Index>, sync_point: Index) -> usize {
    befores.skip(1).take_while(|before| *before <= sync_point).count()
}
