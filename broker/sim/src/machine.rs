//! A machine: a disk, a clock, at most one broker process on it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::oneshot;
use understudy_core::ConnectionId;
use understudy_election::LeaseTracker;
use understudy_journal::sim::SimStorage;
use understudy_journal::{Journal, LogReader, Options};
use understudy_node::{
    BacklogReply, CheckpointId, CheckpointOrder, CheckpointWorker, JournalWorker, Node, NodeConfig, Order, Outgoing,
    Rebuild, Shared,
};
use understudy_record::{Frame, Identity, Index, ProcessId, ReplicaName, Replicate, StoreId};

use crate::around::SimAround;
use crate::elector::Sight;
use crate::network::Place;
use crate::plan::{BACKUP_TIMEOUT, LEASE_DURATION, Plan, STALL_TIMEOUT};
use crate::world::ForProcess;

/// Segments are small, so that there are many.
const SEGMENT_BYTES: u64 = 16 << 10;

/// Of the wall clocks, when the world begins: in 2026.
const BEGINNING_MS: u64 = 1_780_000_000_000;

/// Machines' wall clocks are right but for so much.
pub(crate) const WALL_CLOCKS_DIFFER: Duration = Duration::from_millis(500);

pub(crate) struct Machine {
    pub(crate) name: ReplicaName,
    pub(crate) disk: SimStorage,
    /// Of the disk, once a process has looked.
    pub(crate) store: Option<StoreId>,
    pub(crate) process: Option<Process>,
    pub(crate) has_power: bool,
    pub(crate) frozen_until: Duration,
    /// What has come meanwhile, in order.
    pub(crate) deferred: Vec<(Place, ForProcess)>,
    /// The disk answers no sync before.
    pub(crate) stalled_until: Duration,
    /// This clock against the world's.
    pub(crate) clock_offset: Duration,
    pub(crate) clock_rate: f64,
    /// When the process last ended, and whether its kernel lives to say so.
    pub(crate) ended_at: Duration,
    /// Counts starts that were planned, so that one plan does not start two processes.
    pub(crate) starts: u64,
}

pub(crate) struct Process {
    /// Never used twice in a run.
    pub(crate) key: u64,
    pub(crate) identity: Identity,
    pub(crate) node: Node,
    pub(crate) shared: Arc<Shared>,
    pub(crate) around: SimAround,
    pub(crate) journal: JournalWorker,
    pub(crate) orders: VecDeque<Order>,
    /// A batch is under way since then.
    pub(crate) batch_since: Option<Duration>,
    pub(crate) checkpoints: CheckpointWorker,
    pub(crate) checkpoint_orders: VecDeque<(CheckpointId, CheckpointOrder)>,
    pub(crate) checkpoint_busy: bool,
    pub(crate) reader: LogReader,
    /// The backup's own elector.
    pub(crate) tracker: LeaseTracker,
    pub(crate) sights: BTreeMap<ReplicaName, Sight>,
    pub(crate) outboxes: BTreeMap<ConnectionId, ClientEnd>,
    /// Answers to fetches that wait, by the fetch.
    pub(crate) replies: BTreeMap<u64, oneshot::Receiver<Result<BacklogReply, String>>>,
    /// More to do at once.
    pub(crate) works: bool,
}

/// A client's connection as its broker's side has it.
pub(crate) struct ClientEnd {
    pub(crate) client: usize,
    pub(crate) outgoing: UnboundedReceiver<Outgoing>,
    pub(crate) pending_bytes: Arc<std::sync::atomic::AtomicUsize>,
    pub(crate) congested: Arc<std::sync::atomic::AtomicBool>,
}

/// What a start found on the disk.
pub(crate) struct Found {
    pub(crate) frames: Vec<Frame>,
    pub(crate) first: Index,
    pub(crate) last: Index,
}

impl Machine {
    pub(crate) fn new(name: &str) -> Self {
        Self {
            name: ReplicaName::new(name),
            disk: SimStorage::new(),
            store: None,
            process: None,
            has_power: true,
            frozen_until: Duration::ZERO,
            deferred: Vec::new(),
            stalled_until: Duration::ZERO,
            clock_offset: Duration::ZERO,
            clock_rate: 1.0,
            ended_at: Duration::ZERO,
            starts: 0,
        }
    }

    /// This machine's wall clock, in ms of the Unix epoch.
    pub(crate) fn wall_ms(&self, now: Duration) -> u64 {
        let ahead = self.clock_offset.as_millis() % WALL_CLOCKS_DIFFER.as_millis();
        BEGINNING_MS + u64::try_from(now.as_millis() + ahead).unwrap_or(u64::MAX)
    }

    /// This machine's monotonic clock.
    pub(crate) fn clock(&self, now: Duration) -> Duration {
        self.clock_offset + now.mul_f64(self.clock_rate)
    }

    /// It keeps what it is given, as far as anybody knows.
    pub(crate) fn disk_is_sound(&self) -> bool {
        self.has_power && !self.disk.is_dead()
    }

    pub(crate) fn is_frozen(&self, now: Duration) -> bool {
        now < self.frozen_until
    }

    /// A process begins and reads its log.
    ///
    /// # Errors
    /// If the log cannot be opened: in words.
    pub(crate) fn start(
        &mut self,
        now: Duration,
        key: u64,
        fresh: StoreId,
        seed: u64,
        plan: &Plan,
    ) -> Result<Found, String> {
        let options = Options {
            segment_bytes: SEGMENT_BYTES,
            retain_bytes: SEGMENT_BYTES,
            retain_for_followers_bytes: SEGMENT_BYTES * 8,
        };
        let mut rebuild = Rebuild::new(seed, false);
        let mut frames = Vec::new();
        let opened = Journal::open(Arc::new(self.disk.clone()), options, fresh, &mut |frame| {
            frames.push(frame.clone());
            rebuild.take(frame)
        });
        let (journal, _) = opened.map_err(|error| error.to_string())?;
        let recovered = rebuild.finish(&journal)?;
        let (first, last) = (journal.first(), journal.last().index);
        let identity = Identity { name: self.name.clone(), store: journal.store_id(), process: ProcessId(key) };
        self.store = Some(identity.store);
        let config = NodeConfig {
            max_catch_ups: plan.max_catch_ups,
            settings: plan.settings(plan.min_in_sync),
            replicate: Replicate::All,
            scrub_interval: plan.scrub_interval,
            accept_differences: false,
            seed,
            replicated_only: plan.replicated_only,
            lease_duration: LEASE_DURATION,
            backup_timeout: BACKUP_TIMEOUT,
            stall_timeout: STALL_TIMEOUT,
            resume_records: plan.resume_records,
            checkpoint_bytes: plan.checkpoint_bytes,
            memory_budget: plan.memory_budget,
        };
        let (reader, log_bytes) = (journal.reader(), journal.log_bytes());
        let checkpoints = CheckpointWorker::new(journal.checkpointer());
        let shared = Arc::new(Shared::new(identity.clone()));
        let around = SimAround::default();
        let node = Node::new(
            self.clock(now),
            config,
            identity.clone(),
            Box::new(around.clone()),
            shared.clone(),
            recovered,
            log_bytes,
        );
        self.process = Some(Process {
            key,
            identity,
            node,
            shared,
            around,
            journal: JournalWorker::new(journal),
            orders: VecDeque::new(),
            batch_since: None,
            checkpoints,
            checkpoint_orders: VecDeque::new(),
            checkpoint_busy: false,
            reader,
            tracker: LeaseTracker::default(),
            sights: BTreeMap::new(),
            outboxes: BTreeMap::new(),
            replies: BTreeMap::new(),
            works: false,
        });
        Ok(Found { frames, first, last })
    }
}
