//! Transactions (AMQP's class `tx`), as RabbitMQ has them: what a channel publishes, acknowledges and rejects between two
//! commits takes effect with the second, all of it or nothing, on every replica and across a failover. A rollback, or the
//! channel's end, drops what was published; what was acknowledged is unacknowledged as before.
//!
//! A message is routed, and refused, when it is published, and returned, if nobody takes it, with the commit; one that passes an
//! exchange which drops duplicates is routed anew with the commit, and whether a message is one is decided then. Consuming,
//! `basic.get`, `basic.recover` and all declarations take effect at once: they are in no transaction. How the log holds a
//! transaction together is in `staged`.

use std::collections::{BTreeMap, VecDeque};

use understudy_record::{Index, Message, QueueId, Record, SeenKey, Settled, ShortStr};

use crate::client::Origin;
use crate::command::DeliveryTag;
use crate::core::Core;
use crate::deduplication::Passing;
use crate::effect::{EffectKind, Outputs};
use crate::error::{self, Failure};
use crate::exchange::Routed;
use crate::session::{Answer, Reply, Unacked};
use crate::settle::{Fate, Settlement, take_unacked};
use crate::{MAX_OPEN_TRANSACTIONS_BYTES, MAX_TRANSACTION_BYTES, MAX_TRANSACTION_MESSAGES, TRANSACTIONS_SINCE};

/// What a message that waits for its commit takes beside body and properties, in bytes, about.
const HELD_BYTES: u64 = 256;

/// What a channel has said since its last commit.
#[derive(Debug, Default)]
pub(crate) struct Transaction {
    pub(crate) published: Vec<Held>,
    /// In memory for its sake.
    pub(crate) bytes: u64,
    /// In the order in which the client settled them.
    pub(crate) settled: Vec<HeldSettlement>,
}

/// A message that waits for its commit.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) message: Message,
    pub(crate) targets: Vec<QueueId>,
    mandatory: bool,
    /// It passes exchanges that drop duplicates, and is routed by these further keys when its fate is known.
    again: Option<Vec<ShortStr>>,
    /// What it leaves at these exchanges.
    pub(crate) seen: Vec<SeenKey>,
}

impl Held {
    /// A message that the broker itself publishes.
    pub(crate) fn new(message: Message, targets: Vec<QueueId>, seen: Vec<SeenKey>) -> Self {
        Self { message, targets, mandatory: false, again: None, seen }
    }

    /// `again`: it passes exchanges that drop duplicates, with these further routing keys.
    pub(crate) fn of_publisher(
        message: Message,
        targets: Vec<QueueId>,
        mandatory: bool,
        again: Option<Vec<ShortStr>>,
    ) -> Self {
        Self { message, targets, mandatory, again, seen: Vec::new() }
    }
}

/// A delivery that counts as unacknowledged before the commit.
#[derive(Debug)]
pub(crate) struct HeldSettlement {
    tag: u64,
    pub(crate) unacked: Unacked,
    settlement: Settlement,
}

/// All transactions together.
#[derive(Debug, Default)]
pub(crate) struct Transactions {
    /// Channels in transactional mode.
    pub(crate) channels: usize,
    /// What their messages take in memory.
    pub(crate) bytes: u64,
    /// Written and not committed: the first record and the last, which is the decision. As many as the records in flight,
    /// which the shell bounds.
    undecided: VecDeque<(Index, Index)>,
}

impl Transactions {
    /// How far the log is committed for those who must not see half of a transaction: not into the middle of one.
    pub(crate) fn whole(&mut self, committed: Index) -> Index {
        while self.undecided.pop_front_if(|(_, decision)| *decision <= committed).is_some() {}
        match self.undecided.front() {
            Some((first, _)) if *first <= committed => first.previous(),
            _ => committed,
        }
    }
}

impl Core {
    /// What transactions that are not committed keep in memory, in bytes; costs nothing to ask.
    pub fn transaction_bytes(&self) -> u64 {
        self.transactions.bytes
    }

    /// Between the records of a transaction, or of a message and what it left at exchanges, where its state is not to be written
    /// down or handed on. It does not last: the next records end it.
    pub fn is_amid_transaction(&self) -> bool {
        !self.state.staged.is_empty() || !self.state.seen.is_empty()
    }

    pub(crate) fn select_transactions(&mut self, origin: Origin, out: &mut Outputs) -> Result<(), Failure> {
        if self.cluster_version < TRANSACTIONS_SINCE {
            return Err(error::not_implemented(
                "transactions need a version of the broker that not every replica of this cluster has yet; upgrade them all",
            ));
        }
        let channel = self.channel_mut(origin);
        if channel.confirms.is_some() {
            return Err(error::precondition_failed("cannot switch from confirm to tx mode"));
        }
        if channel.transaction.is_none() {
            channel.transaction = Some(Box::default());
            self.transactions.channels += 1;
        }
        self.reply(origin, EffectKind::TxSelectOk, out);
        Ok(())
    }

    pub(crate) fn is_transactional(&mut self, origin: Origin) -> bool {
        // Nearly always nobody is.
        self.transactions.channels > 0 && self.channel_mut(origin).transaction.is_some()
    }

    /// The message waits for the commit.
    pub(crate) fn publish_later(&mut self, origin: Origin, held: Held, out: &mut Outputs) -> Result<(), Failure> {
        let message = &held.message;
        let parts = message.parts.as_ref().map_or(0, |parts| size_of_val(&**parts));
        let bytes = HELD_BYTES + (message.properties.len() + message.body.len() + parts) as u64;
        let open = self.transactions.bytes;
        let Some(transaction) = &mut self.channel_mut(origin).transaction else { return Ok(()) };
        let refusal = if transaction.published.len() >= MAX_TRANSACTION_MESSAGES
            || transaction.bytes + bytes > MAX_TRANSACTION_BYTES
        {
            Some(error::transaction_too_large(MAX_TRANSACTION_MESSAGES, MAX_TRANSACTION_BYTES))
        } else if open + bytes > MAX_OPEN_TRANSACTIONS_BYTES {
            Some(error::too_many_transactions(MAX_OPEN_TRANSACTIONS_BYTES))
        } else {
            None
        };
        if let Some(refusal) = refusal {
            self.discard(held.message.parts.as_ref(), out);
            return Err(refusal);
        }
        transaction.bytes += bytes;
        transaction.published.push(held);
        self.transactions.bytes += bytes;
        Ok(())
    }

    /// The settlement waits for the commit.
    pub(crate) fn settle_later(
        &mut self,
        origin: Origin,
        tag: DeliveryTag,
        multiple: bool,
        settlement: Settlement,
    ) -> Result<(), Failure> {
        let channel = self.channel_mut(origin);
        let taken = take_unacked(&mut channel.unacked, tag, multiple)?;
        if let Some(transaction) = &mut channel.transaction {
            let held = taken.into_iter().map(|(tag, unacked)| HeldSettlement { tag, unacked, settlement });
            transaction.settled.extend(held);
        }
        Ok(())
    }

    pub(crate) fn commit_transaction(&mut self, origin: Origin, out: &mut Outputs) -> Result<(), Failure> {
        if let Some(full) = self.find_full(origin) {
            // Nothing of it takes effect: it goes with the channel (T9).
            let queue = error::queue(self.state.vhost(full.vhost).name(), &full.spec.name);
            return Err(error::precondition_failed(format!("tx.commit: {queue} is full")));
        }
        let channel = self.channel_mut(origin);
        let was_at_limit = channel.is_at_limit();
        let Transaction { published, bytes, settled } = take(channel.transaction.as_deref_mut())?;
        self.transactions.bytes -= bytes;
        published.iter().for_each(|held| self.answer(&held.message));
        let (passing, mut letters) = (Passing::at(self.time.wall_ms), Vec::new());
        let settled = self.settle_held(origin, settled, !was_at_limit, &mut letters, &passing);
        if was_at_limit {
            self.resume_channel(origin);
        }
        let (mut routed, dropped, is_any_duplicate) = self.split_by_fate(origin, published, &passing);
        routed.append(&mut letters);
        // What no queue takes is as good as taken once the topology by which it is so cannot be undone, and a duplicate once
        // its original cannot.
        let mut gate = if dropped.is_empty() { Index(0) } else { self.state.topology_index };
        if is_any_duplicate {
            gate = self.state.last_index;
        }
        for Held { message, mandatory, .. } in dropped {
            self.drop_unrouted(origin, message, mandatory, out);
        }
        if let Some(decision) = self.write_transaction(routed, settled, passing.orphans(), out) {
            gate = decision;
        }
        let answer = Answer::Known(EffectKind::TxCommitOk);
        self.push_reply(origin, Reply { gate, confirmable: true, answer, start: None }, out);
        Ok(())
    }

    pub(crate) fn roll_back_transaction(&mut self, origin: Origin, out: &mut Outputs) -> Result<(), Failure> {
        let channel = self.channel_mut(origin);
        let transaction = take(channel.transaction.as_deref_mut())?;
        for HeldSettlement { tag, unacked, .. } in &transaction.settled {
            channel.unacked.put_back(*tag, *unacked);
        }
        self.drop_published(transaction.published, transaction.bytes, out);
        self.reply(origin, EffectKind::TxRollbackOk, out);
        Ok(())
    }

    /// The channel has ended.
    pub(crate) fn end_transaction(&mut self, transaction: Transaction, out: &mut Outputs) {
        self.transactions.channels -= 1;
        for HeldSettlement { unacked, .. } in transaction.settled {
            self.note_settled(unacked, Settlement::Requeue);
        }
        self.drop_published(transaction.published, transaction.bytes, out);
    }

    fn drop_published(&mut self, published: Vec<Held>, bytes: u64, out: &mut Outputs) {
        self.transactions.bytes -= bytes;
        published.iter().for_each(|held| self.discard(held.message.parts.as_ref(), out));
    }

    /// Queues may have gone since the messages were routed. First: those that some queue takes; second the others; then
    /// whether somebody has dropped a duplicate.
    fn split_by_fate(
        &self,
        origin: Origin,
        mut published: Vec<Held>,
        passing: &Passing,
    ) -> (Vec<Held>, Vec<Held>, bool) {
        let vhost = self.connections.get(&origin.connection).map(|connection| connection.vhost);
        let mut is_any_duplicate = false;
        for held in &mut published {
            let Held { targets, message, mandatory, again, seen } = held;
            if let (Some(more_keys), Some(vhost)) = (again, vhost) {
                let routed = Routed::new(&message.routing_key, more_keys, &message.properties, passing);
                *targets = self.state.vhost(vhost).route(&message.exchange, &routed);
                let passed = passing.passed();
                *seen = passed.0;
                is_any_duplicate |= passed.1;
            }
            targets.retain(|queue| self.state.queues.contains_key(queue));
            let is_unrouted = targets.is_empty();
            is_any_duplicate |= self.take_out_duplicates(targets, &message.properties, passing);
            *mandatory &= is_unrouted || !targets.is_empty();
            message.persistent &= targets.iter().any(|queue| self.is_durable(*queue));
            if targets.is_empty() {
                passing.orphan(std::mem::take(seen));
            }
        }
        let (routed, dropped) = published.into_iter().partition(|held| !held.targets.is_empty());
        (routed, dropped, is_any_duplicate)
    }

    /// The deliveries no longer count for any limit; what is to be written of them, by queue, beside the letters of those that
    /// die. One whose message is not at hand, or large, dies right after the transaction: until then it is in its queue.
    fn settle_held(
        &mut self,
        origin: Origin,
        settled: Vec<HeldSettlement>,
        resume: bool,
        letters: &mut Vec<Held>,
        passing: &Passing,
    ) -> BTreeMap<QueueId, Settled> {
        let mut by_queue: BTreeMap<QueueId, Settled> = BTreeMap::new();
        for HeldSettlement { unacked, settlement, .. } in settled {
            self.free_limits(origin, unacked, resume);
            let queue = unacked.queue;
            let Some(known) = self.state.queues.get(&queue) else { continue }; // it took its messages along
            let fate = known.fate(unacked.index, settlement);
            if matches!(fate, Fate::Dequeued | Fate::Dies(_)) && self.state.deduplicating > 0 {
                passing.leave(queue, unacked.index);
            }
            if let Fate::Dies(reason) = fate {
                match self.letter_at_hand(queue, unacked.index, reason, passing) {
                    Some(letter) => letters.extend(letter),
                    None => {
                        passing.stay(queue, unacked.index);
                        self.condemn(queue, unacked.index, reason);
                        continue;
                    }
                }
            }
            let nothing = || Settled { queue, dequeued: Vec::new(), requeued: Vec::new() };
            let settled = by_queue.entry(queue).or_insert_with(nothing);
            match fate {
                Fate::Requeued => settled.requeued.push(unacked.index),
                Fate::Dequeued | Fate::Dies(_) => settled.dequeued.push(unacked.index),
            }
        }
        by_queue
    }

    /// The record by which it all takes effect; `None` if there is nothing to write. `orphans`: what messages leave at exchanges
    /// that reach no queue.
    pub(crate) fn write_transaction(
        &mut self,
        routed: Vec<Held>,
        settled: BTreeMap<QueueId, Settled>,
        orphans: Vec<SeenKey>,
        out: &mut Outputs,
    ) -> Option<Index> {
        self.note_time(routed.iter().map(|held| (&held.message.properties, &held.targets[..])), out);
        let first = self.next_index();
        let alone = settled.is_empty() && routed.len() == 1;
        let mut expected = Vec::with_capacity(routed.len());
        let mut all_seen = orphans;
        for Held { message, targets, seen, .. } in routed {
            let queues = targets.clone();
            all_seen.extend(seen);
            let record = match alone {
                true => {
                    self.write_seen(std::mem::take(&mut all_seen), out);
                    self.publish_record(targets, message)
                }
                false => self.staged_record(targets, message),
            };
            expected.push((self.write(record, out), queues));
        }
        if expected.is_empty() && settled.is_empty() {
            return self.write_seen_alone(all_seen, out);
        }
        let mut decision = expected.last().map_or(first, |(last, _)| *last);
        if !alone {
            self.write_seen(all_seen, out);
            let staged = u32::try_from(expected.len()).expect("a transaction's messages are few: they were counted");
            let requeued: Vec<QueueId> =
                settled.values().filter(|settled| !settled.requeued.is_empty()).map(|settled| settled.queue).collect();
            decision = self.write(Record::Transaction { staged, settled: settled.into_values().collect() }, out);
            if first < decision {
                self.transactions.undecided.push_back((first, decision));
            }
            for queue in requeued {
                self.mark_dirty(queue);
                self.watch_length(queue);
                self.watch_deadlines(queue);
            }
        }
        for (index, queues) in expected {
            queues.into_iter().for_each(|queue| self.expect_commit(queue, index));
        }
        Some(decision)
    }
}

/// What was said so far, so that the next transaction begins.
fn take(transaction: Option<&mut Transaction>) -> Result<Transaction, Failure> {
    transaction.map(std::mem::take).ok_or_else(|| error::precondition_failed("channel is not transactional"))
}
