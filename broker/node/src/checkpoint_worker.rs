//! What the checkpoints' thread does: it is handed pieces of the state in turn, writes them, moves live messages, and says
//! what came of it. No thread and no clock of its own; it decides nothing: when to begin, and when what it made comes into
//! force, is the node's business.

use understudy_journal::{Checkpointer, Draft, Finished, Obsolete};
use understudy_record::{BasePiece, Index, PartRef};

use crate::CheckpointEvent;

/// One checkpoint, counted by the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CheckpointId(pub u64);

#[derive(Debug)]
pub enum CheckpointOrder {
    Begin,
    Pieces {
        committed: Index,
        pieces: Vec<BasePiece>,
    },
    Finish {
        floor: Index,
        retain_from: Index,
        /// Parts that are in no piece and are needed all the same.
        pinned: Vec<PartRef>,
    },
    /// Nothing more comes for it.
    GiveUp,
    /// It does not come into force.
    Discard(Box<Finished>),
    Remove(Obsolete),
}

/// How the work is held back: each function is called between two steps.
#[derive(Debug)]
pub struct Brakes<K, R> {
    /// Told how many bytes were written; `false` gives the checkpoint up.
    pub keep: K,
    /// Before more space is given back.
    pub rest: R,
}

pub struct CheckpointWorker {
    maker: Checkpointer,
    draft: Option<(CheckpointId, Draft)>,
}

impl CheckpointWorker {
    pub fn new(maker: Checkpointer) -> Self {
        Self { maker, draft: None }
    }

    /// Carries out one order; what the node has to hear of it.
    pub fn carry_out<K: FnMut(u64) -> bool, R: FnMut()>(
        &mut self,
        id: CheckpointId,
        order: CheckpointOrder,
        brakes: &mut Brakes<K, R>,
    ) -> Option<CheckpointEvent> {
        let Self { maker, draft } = self;
        let done = match order {
            CheckpointOrder::Begin => maker.begin().map(|new| {
                *draft = Some((id, new));
                None
            }),
            CheckpointOrder::Pieces { committed, pieces } => match draft {
                Some((current, draft)) if *current == id => {
                    draft.add(committed, &pieces, &mut brakes.keep).map(|()| None)
                }
                _ => Ok(None),
            },
            CheckpointOrder::Finish { floor, retain_from, pinned } => match draft.take() {
                Some((current, mut draft)) if current == id => {
                    draft.pin(&pinned);
                    draft.finish(floor, retain_from, &mut brakes.keep).map(Some)
                }
                _ => Ok(None),
            },
            CheckpointOrder::GiveUp => {
                draft.take_if(|(current, _)| *current <= id);
                Ok(None)
            }
            CheckpointOrder::Discard(finished) => maker.discard(*finished).map(|()| None),
            CheckpointOrder::Remove(obsolete) => maker.remove(obsolete, &mut brakes.rest).map(|()| None),
        };
        match done {
            Ok(finished) => finished.map(|finished| CheckpointEvent::Finished(id, Box::new(finished))),
            // If it was given up here, the node waits for a word.
            Err(error) => {
                *draft = None;
                Some(CheckpointEvent::Failed(id, error))
            }
        }
    }
}
