//! The core itself: the replicated state, and on a primary what it knows of its clients and of what waits. The methods are
//! spread over the modules by subject; here are those of a replica, of becoming a primary, and of records.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;
use rand::rngs::StdRng;
use rand::{RngCore, SeedableRng};
use understudy_record::{BacklogCursor, BasePiece, Index, PartRef, QueueId, Record, Replicate, ShortStr, VhostId};

use crate::access::Rules;
use crate::base::{BacklogChunk, BaseState, HeldChunk};
use crate::client::Origin;
use crate::command::ConnectionId;
use crate::dead_letter::DeadLetters;
use crate::direct_reply::DirectReplies;
use crate::effect::{AmqpError, Outputs};
use crate::expiry::Expiries;
use crate::gates::Gates;
use crate::load::Loads;
use crate::queue::Queue;
use crate::session::{Connection, Consumer, ConsumerId};
use crate::settle::Settled;
use crate::state::{ApplyError, Keep, State};
use crate::time::Time;
use crate::transaction::Transactions;
use crate::unused::Unused;

/// See the crate's documentation.
#[derive(Debug)]
pub struct Core {
    pub(crate) state: State,
    pub(crate) role: Role,
    pub(crate) committed: Index,
    pub(crate) confirmable: Index,
    pub(crate) connections: HashMap<ConnectionId, Connection>,
    pub(crate) consumers: HashMap<ConsumerId, Consumer>,
    pub(crate) last_consumer: ConsumerId,
    /// Acknowledgements of this step, to be written as one record for each queue.
    pub(crate) settled: BTreeMap<QueueId, Settled>,
    /// Queues that have something to deliver, in turn; each at most once.
    pub(crate) dirty: VecDeque<QueueId>,
    /// Queues whose oldest messages may have to go.
    pub(crate) too_long: BTreeSet<QueueId>,
    /// Queues whose next message waits for its commit; each at most once.
    pub(crate) waiting: BTreeSet<(Index, QueueId)>,
    pub(crate) reply_gates: Gates,
    pub(crate) confirm_gates: Gates,
    pub(crate) loads: Loads,
    /// Of each channel, the parts that came ahead of the message that will claim them.
    pub(crate) uploads: BTreeMap<Origin, Vec<PartRef>>,
    pub(crate) transactions: Transactions,
    pub(crate) direct_replies: DirectReplies,
    pub(crate) dead_letters: DeadLetters,
    pub(crate) time: Time,
    pub(crate) expiries: Expiries,
    pub(crate) unused: Unused,
    /// How long a delivery may wait for its acknowledgement.
    pub(crate) consumer_timeout: Option<Duration>,
    pub(crate) next_ack_check: Duration,
    /// What users may do, as far as somebody has asked: at most as many as there are permissions, and connections.
    pub(crate) rules: HashMap<(ShortStr, VhostId), Arc<Rules>>,
    /// Connections that are to be closed once that record is committed.
    pub(crate) closing: BTreeMap<Index, Vec<(ConnectionId, AmqpError)>>,
    /// Of the record kinds that every replica knows.
    pub(crate) cluster_version: u32,
    /// Of queues and exchanges whose declares do not say.
    pub(crate) default_replication: Replicate,
    /// Publishes that wait for their confirm, on all channels.
    pub(crate) unconfirmed: usize,
    rng: StdRng,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Replica,
    /// What was in a queue at `promoted_at` may have been delivered before, by the predecessor.
    Primary {
        promoted_at: Index,
    },
}

impl Core {
    /// Empty, a replica. The exchanges that every broker has exist without records.
    pub fn new(seed: u64) -> Self {
        Self {
            state: State::default(),
            role: Role::Replica,
            committed: Index(0),
            confirmable: Index(0),
            connections: HashMap::new(),
            consumers: HashMap::new(),
            last_consumer: ConsumerId(0),
            settled: BTreeMap::new(),
            dirty: VecDeque::new(),
            too_long: BTreeSet::new(),
            waiting: BTreeSet::new(),
            reply_gates: Gates::default(),
            confirm_gates: Gates::default(),
            loads: Loads::default(),
            uploads: BTreeMap::new(),
            transactions: Transactions::default(),
            direct_replies: DirectReplies::default(),
            dead_letters: DeadLetters::default(),
            time: Time::default(),
            expiries: Expiries::default(),
            unused: Unused::default(),
            consumer_timeout: None,
            next_ack_check: Duration::ZERO,
            rules: HashMap::new(),
            closing: BTreeMap::new(),
            cluster_version: 1,
            default_replication: Replicate::All,
            unconfirmed: 0,
            rng: StdRng::seed_from_u64(seed),
        }
    }

    // ---- a replica

    /// Applies the record at `position`, which is the one after [`Self::last_index`]. On an error nothing has changed, and
    /// the replica has diverged from its primary. What messages say is not kept in memory: the log has it. What a
    /// [`Record::Scrub`] has found is for [`Self::take_difference`] to say.
    pub fn apply(&mut self, position: Index, record: &Record) -> Result<(), ApplyError> {
        debug_assert_eq!(self.role, Role::Replica, "a primary writes its own records");
        self.state.apply(position, record, Keep::Stored)
    }

    /// Takes a piece of a sync point; [`BasePiece::Start`] forgets everything before. From [`BasePiece::TopologyEnd`] on,
    /// live records may come between the pieces, through [`Self::apply`].
    pub fn apply_base(&mut self, piece: BasePiece) -> Result<(), ApplyError> {
        debug_assert_eq!(self.role, Role::Replica, "a primary never starts over");
        self.state.apply_base(piece)
    }

    /// Nothing of a sync point is missing: its end has come, or the state was built from the log's beginning.
    pub fn base_complete(&self) -> bool {
        matches!(self.state.base, BaseState::None | BaseState::Complete)
    }

    /// Of the last record applied, or the sync point.
    pub fn last_index(&self) -> Index {
        self.state.last_index
    }

    // ---- the sending side of a sync point

    /// The sync point is [`Self::last_index`], which is returned; not [amid a transaction](Self::is_amid_transaction). Until [`Self::end_sync`], delivery counts in its backlog
    /// are those of the sync point.
    pub fn begin_sync(&mut self) -> Index {
        debug_assert!(!self.is_amid_transaction(), "a sync point between a transaction's records loses them");
        *self.state.syncs.entry(self.state.last_index).or_default() += 1;
        self.state.last_index
    }

    /// The receiver has everything, or is gone.
    pub fn end_sync(&mut self, sync_point: Index) {
        let Some(users) = self.state.syncs.get_mut(&sync_point) else { return };
        *users -= 1;
        if *users == 0 {
            self.state.syncs.remove(&sync_point);
            self.state.queues.values_mut().for_each(|queue| queue.forget_sync(sync_point));
        }
    }

    /// Parts of large messages that are not to leave the log, though no queue holds their messages any more: somebody is
    /// sending them. For a checkpoint that was read up to now.
    pub fn pinned_parts(&mut self) -> Vec<PartRef> {
        self.state.parts.pinned()
    }

    /// Exchanges, queues, bindings, virtual hosts, users and what they may do, as of [`Self::last_index`], and the parts that no
    /// message has claimed, in an order that can be applied.
    pub fn snapshot_topology(&self) -> Vec<BasePiece> {
        self.state.topology()
    }

    /// Each queue with its number of messages and their bytes that a follower gets, oldest queue first.
    pub fn backlogs(&self) -> Vec<(QueueId, u64, u64)> {
        let mut queues = self.queues();
        queues
            .iter_mut()
            .filter(|(queue, ..)| self.state.is_unreplicated(*queue))
            .for_each(|queue| (queue.1, queue.2) = (0, 0));
        queues
    }

    /// Each queue with its number of messages and their bytes, oldest queue first.
    pub fn queues(&self) -> Vec<(QueueId, u64, u64)> {
        let mut queues: Vec<_> =
            self.state.queues.values().map(|queue| (queue.id, queue.len() as u64, queue.bytes())).collect();
        queues.sort_unstable();
        queues
    }

    /// The next part of a queue's backlog: messages that are still there, with indexes up to `sync_point`, newest first, each
    /// after its parts. Those that are not in memory come without what they say. The first item that crosses `max_bytes` is
    /// the last, so that a large message takes several chunks. A queue that does not exist, or whose messages are not
    /// replicated, is done.
    pub fn backlog_chunk(
        &self,
        queue: QueueId,
        from: impl Into<BacklogCursor>,
        sync_point: Index,
        max_bytes: usize,
        max_items: usize,
    ) -> BacklogChunk {
        self.state.backlog_chunk(queue, from.into(), sync_point, max_bytes, max_items)
    }

    /// The parts of large messages that no message has claimed, as the topology's snapshot names them. They stay in the log
    /// as long as the list is held.
    pub fn unclaimed_parts(&mut self) -> Arc<[PartRef]> {
        let parts: Arc<[PartRef]> = self.state.parts.unclaimed().collect();
        self.state.parts.retire(parts.clone());
        parts
    }

    /// The same by reference, for a checkpoint: what the messages say stays where the log has it.
    pub fn held_chunk(&self, queue: QueueId, before: Index, sync_point: Index, max_messages: usize) -> HeldChunk {
        self.state.held_chunk(queue, before, sync_point, max_messages)
    }

    // ---- a primary

    /// Becomes the primary; commands are taken from here on. Every message present counts as possibly delivered, since
    /// deliveries are not logged, and is ready. All of them are stored: they are read back when somebody consumes.
    ///
    /// Exclusive queues are deleted: their owners were connections of the predecessor. Auto-delete queues stay: their
    /// consumers are about to come back, and what is in them was confirmed; each goes with the next last consumer. What is not
    /// replicated is emptied or deleted, unless the last primary had this store too.
    pub fn promote(&mut self, out: &mut Outputs) {
        debug_assert!(self.base_complete(), "half of a sync point is no state to serve");
        self.role = Role::Primary { promoted_at: self.state.last_index };
        self.state.queues.values_mut().for_each(Queue::hand_out_from_start);
        let mut exclusive: Vec<_> =
            self.state.queues.values().filter(|queue| queue.spec.exclusive).map(|queue| queue.id).collect();
        exclusive.sort_unstable();
        exclusive.into_iter().for_each(|queue| self.delete_queue(queue, out));
        self.clear_unreplicated(out);
        self.watch_all_lengths();
        self.watch_all_deadlines();
        self.watch_all_unused();
    }

    /// What every replica of the cluster knows how to apply: nothing newer is written. 1 until this is called; it only
    /// grows.
    pub fn set_cluster_version(&mut self, version: u32) {
        self.cluster_version = self.cluster_version.max(version);
    }

    /// What time it is, from here on: to be told at least every few milliseconds.
    pub fn set_time(&mut self, time: Time) {
        self.time = time;
    }

    pub fn cluster_version(&self) -> u32 {
        self.cluster_version
    }

    /// The index that the next record takes.
    pub fn next_index(&self) -> Index {
        self.state.last_index.next()
    }

    /// Writes a record of the shell's own, such as an epoch's start; returns its index.
    pub fn append(&mut self, record: Record, out: &mut Outputs) -> Index {
        self.write(record, out)
    }

    pub(crate) fn write(&mut self, record: Record, out: &mut Outputs) -> Index {
        let index = self.next_index();
        if let Err(error) = self.state.apply(index, &record, Keep::Resident) {
            panic!("the primary wrote a record that does not fit its own state: {error}: {record:?}");
        }
        out.records.push((index, record));
        index
    }

    /// `prefix` and 128 random bits in the URL-safe base 64 alphabet.
    pub(crate) fn random_name(&mut self, prefix: &str) -> ShortStr {
        let mut random = [0; 16];
        self.rng.fill_bytes(&mut random);
        let name = format!("{prefix}{}", base64_url(&random));
        ShortStr::try_from(name.as_str()).expect("a prefix and 22 characters are below 255 bytes")
    }

    /// How many parts of large messages there are, claimed or not.
    pub fn parts(&self) -> u64 {
        self.state.parts.count() as u64
    }

    /// Whether what this record made may be shown: it is committed, or was there when this replica became the primary.
    pub(crate) fn is_settled(&self, vhost: VhostId) -> bool {
        let inherited = matches!(self.role, Role::Primary { promoted_at } if vhost.0 <= promoted_at);
        inherited || vhost.0 <= self.committed
    }

    /// Whether this message may have reached a client before.
    pub(crate) fn is_redelivered(&self, index: Index, delivery_count: u32) -> bool {
        let inherited = matches!(self.role, Role::Primary { promoted_at } if index <= promoted_at);
        inherited || delivery_count > 0
    }
}

/// Without padding.
fn base64_url(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let bits = group.iter().chain(&[0; 2]).take(3).fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte));
        let digits = (0..=group.len()).map(|place| ALPHABET[(bits >> (18 - 6 * place) & 63) as usize]);
        text.extend(digits.map(char::from));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_the_url_safe_one_without_padding() {
        assert_eq!(base64_url(b""), "");
        assert_eq!(base64_url(&[0xfb]), "-w");
        assert_eq!(base64_url(&[0xff, 0xff]), "__8");
        assert_eq!(base64_url(b"abc"), "YWJj");
        assert_eq!(base64_url(&[7; 16]).len(), 22);
    }
}
