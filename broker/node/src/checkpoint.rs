//! When the state is written down, so that the log before it can go: a checkpoint is begun after so many bytes of log, read
//! slice by slice between other work, written elsewhere, and put in force once everything it may show is committed and on
//! this disk. A change of role gives it up.

use std::collections::VecDeque;
use std::time::Duration;

use understudy_journal::{CheckpointError, Finished, Obsolete, ReadError};
use understudy_record::{BasePiece, Index, KeyedBy, Position, QueueId};

use crate::checkpoint_worker::{CheckpointId, CheckpointOrder};
use crate::{Node, Order, Role};

/// Messages read in one slice, and queues: a slice takes the core thread some tens of microseconds.
const SLICE_MESSAGES: usize = 2000;
const SLICE_QUEUES: usize = 256;

/// After a failure, a full disk mostly, before the next try.
const RETRY: Duration = Duration::from_secs(5);

/// Log bytes for each byte of the last checkpoint before the next: a large backlog is written down less often.
const LOG_PER_CHECKPOINT_BYTE: u64 = 4;

#[derive(Debug)]
pub enum CheckpointEvent {
    /// Written, and not in force.
    Finished(CheckpointId, Box<Finished>),
    Failed(CheckpointId, CheckpointError),
}

/// The journal's answer to [`Order::Install`].
#[derive(Debug)]
pub struct Installed {
    pub finished: Box<Finished>,
    /// The first record in the log from now on, and what is to be removed; `None` if it did not come into force.
    pub outcome: Option<(Index, Obsolete)>,
}

#[derive(Debug)]
enum Stage {
    Idle,
    /// The state is being read.
    Reading {
        sync_point: Position,
        queues: VecDeque<QueueId>,
        before: Index,
    },
    /// All of it has been handed over.
    Writing,
    /// It waits for the commit.
    Ready(Box<Finished>),
    /// The journal puts it in force.
    Installing,
}

pub(crate) struct Checkpoints {
    /// Log bytes between two.
    interval: u64,
    stage: Stage,
    current: CheckpointId,
    /// Log bytes since the last sync point.
    written: u64,
    /// Log bytes before the present sync point, which count again if nothing comes of it.
    covered: u64,
    /// Of the last checkpoint, in bytes.
    last_bytes: u64,
    /// The most that the messages have weighed since the last sync point.
    peak_bytes: u64,
    not_before: Duration,
    /// The same for one that is made for the sake of what has gone: its reason may stand while it is made.
    freeing_not_before: Duration,
}

impl Checkpoints {
    /// `log_bytes`: of the log as it was found.
    pub(crate) fn new(interval: u64, log_bytes: u64) -> Self {
        let (stage, current, not_before) = (Stage::Idle, CheckpointId(0), Duration::ZERO);
        Self {
            interval,
            stage,
            current,
            written: log_bytes,
            covered: 0,
            last_bytes: 0,
            peak_bytes: 0,
            not_before,
            freeing_not_before: not_before,
        }
    }

    pub(crate) fn note_written(&mut self, bytes: usize) {
        self.written += bytes as u64;
    }

    fn is_due(&self, now: Duration) -> bool {
        let interval = self.interval.max(self.last_bytes.saturating_mul(LOG_PER_CHECKPOINT_BYTE));
        matches!(self.stage, Stage::Idle) && self.written >= interval && now >= self.not_before
    }

    /// Acknowledgements make the log little longer, and must not wait for that with what they set free: as much as a
    /// checkpoint is worth has gone, or (`short`) the disk has little room and publishers wait for some.
    fn frees(&self, now: Duration, live_bytes: u64, short: bool) -> bool {
        let freed = self.peak_bytes.saturating_sub(live_bytes) >= self.interval;
        matches!(self.stage, Stage::Idle)
            && self.written > 0
            && (freed || short)
            && now >= self.not_before.max(self.freeing_not_before)
    }

    /// Nothing comes of the present one: the log is as long as it was.
    fn note_failed(&mut self) {
        self.written += std::mem::take(&mut self.covered);
    }

    /// There is more to read.
    pub(crate) fn is_reading(&self) -> bool {
        matches!(self.stage, Stage::Reading { .. })
    }
}

impl Node {
    /// One step towards the next checkpoint, if it is time. Everything that was made has become records and frames.
    pub(crate) fn drive_checkpoint(&mut self) {
        let (live_bytes, short) = (self.core.message_bytes(), self.alarms.disk.is_some());
        self.checkpoints.peak_bytes = self.checkpoints.peak_bytes.max(live_bytes);
        let frees = self.checkpoints.frees(self.now, live_bytes, short);
        if (frees || self.checkpoints.is_due(self.now)) && self.may_checkpoint() {
            if frees {
                self.checkpoints.freeing_not_before = self.now + RETRY;
            }
            self.begin_checkpoint();
        }
        if self.wants_slice() {
            self.read_slice();
        }
        if let Stage::Ready(finished) = &self.checkpoints.stage
            && finished.floor() <= self.settled_up_to()
            && let Stage::Ready(finished) = std::mem::replace(&mut self.checkpoints.stage, Stage::Installing)
        {
            self.around.order(Order::Install(finished));
        }
    }

    /// There is more to read, and somebody to take it.
    pub(crate) fn wants_slice(&self) -> bool {
        self.checkpoints.is_reading() && self.around.has_room_for_pieces()
    }

    fn may_checkpoint(&self) -> bool {
        let whole = match &self.role {
            Role::Recovering => false,
            Role::Primary(_) => true,
            Role::Backup(role) => role.backup.is_clean(),
        };
        let amid = self.core.is_amid_transaction() || !self.out.records.is_empty();
        whole && self.leaving.is_none() && self.core.last_index() > Index(0) && !amid
    }

    /// Committed, and on this disk.
    fn settled_up_to(&self) -> Index {
        match &self.role {
            Role::Recovering => Index(0),
            Role::Primary(role) => role.primary.committed().min(role.primary.own_durable()),
            Role::Backup(role) => role.backup.committed().min(role.backup.durable()),
        }
    }

    fn begin_checkpoint(&mut self) {
        let history = match &self.role {
            Role::Recovering => return,
            Role::Primary(role) => role.primary.history(),
            Role::Backup(role) => role.backup.history(),
        };
        let last = self.core.last_index();
        let Some(epoch) = history.epoch_at(last) else { return };
        let sync_point = Position::new(epoch, last);
        let epochs = history.starts().iter().filter(|start| start.index <= last).copied().collect();
        let start = BasePiece::Start { sync_point, epochs, in_sync: self.recorded_sets.as_of(last).to_vec() };
        self.core.begin_sync();
        let topology = self.core.snapshot_topology();
        let topology = topology.into_iter().chain(self.core.unreplicated_keys()).chain(self.core.writer());
        let pieces = std::iter::once(start).chain(topology).chain([BasePiece::TopologyEnd]).collect();
        let queues = self.core.queues().into_iter().map(|(queue, ..)| queue).collect();
        let checkpoints = &mut self.checkpoints;
        checkpoints.current = CheckpointId(checkpoints.current.0 + 1);
        checkpoints.covered = std::mem::take(&mut checkpoints.written);
        checkpoints.peak_bytes = self.core.message_bytes();
        let (around, id) = (&mut self.around, checkpoints.current);
        around.checkpoint(id, CheckpointOrder::Begin);
        around.checkpoint(id, CheckpointOrder::Pieces { committed: Index(0), pieces });
        checkpoints.stage = Stage::Reading { sync_point, queues, before: Index(u64::MAX) };
    }

    fn read_slice(&mut self) {
        let Stage::Reading { sync_point, queues, before } = &mut self.checkpoints.stage else { return };
        let mut pieces = Vec::new();
        let mut room = SLICE_MESSAGES;
        for _ in 0..SLICE_QUEUES {
            let Some(&queue) = queues.front() else { break };
            let chunk = self.core.held_chunk(queue, *before, sync_point.index, room);
            room -= chunk.messages.len().min(room);
            *before = chunk.messages.last().map_or(*before, |oldest| oldest.index);
            for (message, parts) in chunk.parts {
                pieces.push(BasePiece::Parts { message, parts: parts.to_vec() });
            }
            if !chunk.keys.is_empty() {
                pieces.push(BasePiece::Keys { of: KeyedBy::Queue(queue), keys: chunk.keys });
            }
            if !chunk.messages.is_empty() {
                pieces.push(BasePiece::Held { queue, messages: chunk.messages });
            }
            if chunk.done {
                pieces.push(BasePiece::QueueDone { queue });
                queues.pop_front();
                *before = Index(u64::MAX);
            }
            if room == 0 {
                break;
            }
        }
        let read = queues.is_empty().then_some(sync_point.index);
        let id = self.checkpoints.current;
        self.around.checkpoint(id, CheckpointOrder::Pieces { committed: Index(0), pieces });
        if let Some(sync_point) = read {
            self.core.end_sync(sync_point);
            let retain_from = match &self.role {
                // Who is away gets a base when it comes back, rather than that publishers wait for it.
                Role::Primary(role) => role.primary.retain_from(self.alarms.disk.is_none()),
                _ => Index(u64::MAX),
            };
            let floor = self.core.last_index();
            // What is being sent to clients, though its messages are gone from the pieces.
            let pinned = self.core.pinned_parts();
            self.around.checkpoint(id, CheckpointOrder::Finish { floor, retain_from, pinned });
            self.checkpoints.stage = Stage::Writing;
        }
    }

    /// The state it was read from is no more, or not this replica's any longer.
    pub(crate) fn give_up_checkpoint(&mut self) {
        let checkpoints = &mut self.checkpoints;
        match std::mem::replace(&mut checkpoints.stage, Stage::Idle) {
            Stage::Idle => return,
            // It shows nothing that can be undone any more.
            Stage::Installing => {
                checkpoints.stage = Stage::Installing;
                return;
            }
            Stage::Reading { sync_point, .. } => {
                self.around.give_up_checkpoint(checkpoints.current);
                self.core.end_sync(sync_point.index);
            }
            Stage::Writing => self.around.give_up_checkpoint(checkpoints.current),
            Stage::Ready(finished) => self.around.checkpoint(checkpoints.current, CheckpointOrder::Discard(finished)),
        }
        checkpoints.note_failed();
    }

    pub(crate) fn handle_checkpoint(&mut self, event: CheckpointEvent) {
        match event {
            CheckpointEvent::Finished(id, finished) => {
                if id == self.checkpoints.current && matches!(self.checkpoints.stage, Stage::Writing) {
                    self.checkpoints.stage = Stage::Ready(finished);
                } else {
                    self.around.checkpoint(id, CheckpointOrder::Discard(finished));
                }
            }
            CheckpointEvent::Failed(id, error) => {
                if id == self.checkpoints.current && !matches!(self.checkpoints.stage, Stage::Installing) {
                    self.give_up_checkpoint();
                }
                if matches!(error, CheckpointError::GivenUp) {
                    return;
                }
                self.checkpoints.not_before = self.now + RETRY;
                match error {
                    CheckpointError::Failed(failure) | CheckpointError::Read(ReadError::Failed(failure))
                        if failure.is_passing() =>
                    {
                        tracing::warn!("no checkpoint this time, so the log grows: {failure}");
                    }
                    // A disk that loses what it was given is not to be trusted with the log either.
                    CheckpointError::Failed(failure) if !failure.is_full() => {
                        self.end_role(format!(
                            "a checkpoint failed, so this process gives up its role and ends: {failure}"
                        ));
                    }
                    CheckpointError::Read(error @ (ReadError::Failed(_) | ReadError::Damaged { .. })) => {
                        self.end_role_damaged(format!("messages cannot be moved: {error}"));
                    }
                    error => tracing::warn!("no checkpoint this time, so the log grows: {error}"),
                }
            }
        }
    }

    pub(crate) fn handle_installed(&mut self, installed: Installed) {
        let Installed { finished, outcome } = installed;
        let id = self.checkpoints.current;
        if matches!(self.checkpoints.stage, Stage::Installing) {
            self.checkpoints.stage = Stage::Idle;
        }
        let Some((first, obsolete)) = outcome else {
            self.checkpoints.note_failed();
            self.checkpoints.not_before = self.now + RETRY;
            self.around.checkpoint(id, CheckpointOrder::Discard(finished));
            return;
        };
        self.checkpoints.covered = 0;
        tracing::debug!(
            sync_point = %finished.sync_point(), bytes = finished.bytes, moved = finished.moved_bytes, log_first = %first,
            "checkpoint"
        );
        self.checkpoints.last_bytes = finished.bytes;
        self.recorded_sets.forget_before(finished.sync_point().index);
        match &mut self.role {
            Role::Recovering => {}
            Role::Primary(role) => role.primary.handle_log_start(first),
            Role::Backup(role) => role.backup.handle_log_start(first, finished.floor()),
        }
        self.shared.checkpoints.add(finished.bytes, finished.moved_bytes);
        self.around.checkpoint(id, CheckpointOrder::Remove(obsolete));
    }
}
