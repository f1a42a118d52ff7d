//! Message de-duplication: exchanges and queues that drop a message when they know its key already. As RabbitMQ's plugin and
//! LavinMQ have it:
//!
//! | declared | what is dropped |
//! | --- | --- |
//! | an exchange of type `x-message-deduplication` (a fanout), or of any with `x-message-deduplication: true`; both with `x-cache-size` | what has one of the last so many keys, before it is routed |
//! | a queue with `x-message-deduplication: true` | what has the key of a message in it, delivered or not |
//! | the same with `x-cache-size` | what has one of the last so many keys |
//!
//! The key is the value of the message's header `x-deduplication-header`, or of the one that the argument of that name names. A
//! message without it is nobody's duplicate. `x-cache-ttl`, as argument or header, bounds how long one of the last so many is
//! remembered. An exchange that drops a message has no binding that takes it: so its alternate gets the message, and a
//! mandatory one is returned. A queue drops in silence.
//!
//! A duplicate is confirmed, but never before its original: the publisher may have it from a primary that died before it could
//! confirm. The original is in the log already, so the confirm waits for the log as it is when the duplicate comes.
//!
//! What is known is replicated ([`crate::keys`]). What is in a queue follows from the message itself; what has passed an
//! exchange stands in a record before that of the message ([`Record::Seen`]), so that no history has one without the other. A
//! publish that a full queue refuses leaves nothing at the exchanges: its publisher will try again.
//!
//! Several messages can be decided about before any of them is written: a transaction's, and dead letters. [`Passing`] knows
//! what these bring and take away.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeSet;

use bytes::Bytes;
use understudy_protocol::{FieldTable, FieldValue, Properties};
use understudy_record::{
    BasePiece, ExchangeKind, HeldKey, Index, KeyedBy, MessageKey, QueueId, Record, SeenKey, ShortStr, VhostId,
};

use crate::arguments::{
    CACHE_PERSISTENCE, CACHE_SIZE, CACHE_TTL, DEDUPLICATION_HEADER, MAX_EXPIRY_MS, MESSAGE_DEDUPLICATION,
    assert_equivalent, whole_or_text,
};
use crate::core::Core;
use crate::effect::Outputs;
use crate::error::{Failure, precondition_failed};
use crate::keys::Keys;
use crate::queue::Queue;
use crate::state::{ApplyError, State};
use crate::vhost::Vhost;
use crate::{DEDUPLICATION_SINCE, MAX_CACHE_SIZE, SEEN_PER_RECORD};

/// Messages that are decided about in one go. Mostly there is nothing to say of them, and nothing to allocate.
#[derive(Debug, Default)]
pub(crate) struct Passing {
    now_ms: u64,
    said: OnceCell<Box<Said>>,
}

#[derive(Debug, Default)]
struct Said {
    exchanges: RefCell<BTreeSet<(VhostId, ShortStr, MessageKey)>>,
    queues: RefCell<BTreeSet<(QueueId, MessageKey)>>,
    /// Messages that leave their queues.
    leaving: RefCell<BTreeSet<(QueueId, Index)>>,
    /// Of the message that is being routed.
    seen: RefCell<Vec<SeenKey>>,
    /// An exchange has dropped that one.
    is_duplicate: Cell<bool>,
    /// Of messages that have reached no queue.
    orphans: RefCell<Vec<SeenKey>>,
}

impl Passing {
    /// `now_ms`: since 1970, by the primary's clock.
    pub(crate) fn at(now_ms: u64) -> Self {
        Self { now_ms, said: OnceCell::new() }
    }

    fn said(&self) -> &Said {
        self.said.get_or_init(Box::default)
    }

    /// The message leaves its queue with those that come.
    pub(crate) fn leave(&self, queue: QueueId, index: Index) {
        self.said().leaving.borrow_mut().insert((queue, index));
    }

    /// It does not.
    pub(crate) fn stay(&self, queue: QueueId, index: Index) {
        self.said().leaving.borrow_mut().remove(&(queue, index));
    }

    /// The exchange has a say, and lets the message pass.
    pub(crate) fn pass(&self, vhost: VhostId, exchange: &ShortStr, keys: &Keys, headers: &FieldTable) -> bool {
        let Some(key) = keys.key_of(headers) else { return true };
        let is_known = keys.find(key, self.now_ms).next().is_some();
        let said = self.said();
        if is_known || !said.exchanges.borrow_mut().insert((vhost, exchange.clone(), key)) {
            said.is_duplicate.set(true);
            return false;
        }
        let expires_ms = keys.expiry(headers, self.now_ms);
        said.seen.borrow_mut().push(SeenKey { vhost, exchange: exchange.clone(), key, expires_ms });
        true
    }

    /// The queue has a say, and takes the message. `leaves`: whether that other message is as good as gone.
    fn enter(&self, queue: &Queue, keys: &Keys, headers: &FieldTable, leaves: impl Fn(Index) -> bool) -> bool {
        let Some(key) = keys.key_of(headers) else { return true };
        let said = self.said();
        let stays = |index| !said.leaving.borrow().contains(&(queue.id, index)) && !leaves(index);
        let is_known = keys.find(key, self.now_ms).any(|place| keys.outlive_messages() || stays(Index(place)));
        !is_known && said.queues.borrow_mut().insert((queue.id, key))
    }

    /// What the message that was routed leaves at exchanges, and whether one of them has dropped it.
    pub(crate) fn passed(&self) -> (Vec<SeenKey>, bool) {
        self.said.get().map_or((Vec::new(), false), |said| (said.seen.take(), said.is_duplicate.take()))
    }

    /// A message has reached no queue.
    pub(crate) fn orphan(&self, seen: Vec<SeenKey>) {
        if !seen.is_empty() {
            self.said().orphans.borrow_mut().extend(seen);
        }
    }

    pub(crate) fn orphans(&self) -> Vec<SeenKey> {
        self.said.get().map_or_else(Vec::new, |said| said.orphans.take())
    }
}

pub(crate) fn headers_of(properties: &Bytes) -> FieldTable {
    Properties::from_raw(properties.clone()).headers().unwrap_or_default()
}

impl Core {
    /// Takes out those of the queues that know the message; whether there were any.
    pub(crate) fn take_out_duplicates(
        &self,
        targets: &mut Vec<QueueId>,
        properties: &Bytes,
        passing: &Passing,
    ) -> bool {
        // Mostly no queue asks.
        if self.state.deduplicating == 0 {
            return false;
        }
        let (before, headers) = (targets.len(), OnceCell::new());
        targets.retain(|id| {
            let Some(queue) = self.state.queues.get(id) else { return true };
            let Some(keys) = &queue.keys else { return true };
            // What is settled is written at the end of the step, and a letter when its turn comes.
            let settled = self.settled.get(id);
            let leaves = |index| settled.is_some_and(|settled| settled.dequeues(index)) || queue.is_condemned(index);
            passing.enter(queue, keys, headers.get_or_init(|| headers_of(properties)), leaves)
        });
        targets.len() < before
    }

    /// What a message left at exchanges, ahead of the record that brings it into its queues.
    pub(crate) fn write_seen(&mut self, seen: Vec<SeenKey>, out: &mut Outputs) {
        self.write_all_seen(seen, false, out);
    }

    /// The same of messages that reached no queue. The record, if there is something to write.
    pub(crate) fn write_seen_alone(&mut self, seen: Vec<SeenKey>, out: &mut Outputs) -> Option<Index> {
        self.write_all_seen(seen, true, out)
    }

    fn write_all_seen(&mut self, mut seen: Vec<SeenKey>, alone: bool, out: &mut Outputs) -> Option<Index> {
        let mut written = None;
        while !seen.is_empty() {
            let rest = seen.split_off(seen.len().min(SEEN_PER_RECORD));
            let keys = std::mem::replace(&mut seen, rest);
            written = Some(self.write(Record::Seen { keys, alone }, out));
        }
        written
    }

    /// Whether an exchange, if `kind` is given, or a queue is to drop duplicates. `object`: `queue 'q' in vhost '/'`.
    pub(crate) fn deduplicates(
        &self,
        kind: Option<ExchangeKind>,
        table: &FieldTable,
        object: &str,
    ) -> Result<bool, Failure> {
        let invalid =
            |name: &str, why: String| precondition_failed(format!("invalid arg '{name}' for {object}: {why}"));
        let by_kind = kind == Some(ExchangeKind::MessageDeduplication);
        let asked = match table.get(MESSAGE_DEDUPLICATION) {
            None => false,
            Some(value) => value.as_bool().ok_or_else(|| {
                invalid(MESSAGE_DEDUPLICATION, format!("it is a {}; set it to true or false", value.type_name()))
            })?,
        };
        if !by_kind && !asked {
            return Ok(false);
        }
        if self.cluster_version < DEDUPLICATION_SINCE {
            let what = if by_kind { "type" } else { MESSAGE_DEDUPLICATION };
            let why = "not every replica of this cluster has a version that knows it; upgrade them all";
            return Err(invalid(what, why.to_owned()));
        }
        let number = |name, most: u64, what: &str| match table.get(name) {
            None => Ok(None),
            Some(value) => match whole_or_text(value).filter(|number| (1..=most).contains(number)) {
                Some(number) => Ok(Some(number)),
                None => Err(invalid(name, format!("set {what}, an integer from 1 to {most}"))),
            },
        };
        let keys = "how many keys are remembered";
        let size = number(CACHE_SIZE, MAX_CACHE_SIZE, keys)?;
        let ttl = number(CACHE_TTL, MAX_EXPIRY_MS.unsigned_abs(), "how many milliseconds a key is remembered")?;
        if kind.is_some() && size.is_none() {
            return Err(invalid(
                CACHE_SIZE,
                format!("it is missing; set {keys}, an integer from 1 to {MAX_CACHE_SIZE}"),
            ));
        }
        if size.is_none() && ttl.is_some() {
            let why = format!("without {CACHE_SIZE} a key is remembered as long as its message; set both or none");
            return Err(invalid(CACHE_TTL, why));
        }
        if let Some(value) = table.get(CACHE_PERSISTENCE)
            && !matches!(value.as_str(), Some("disk" | "memory"))
        {
            return Err(invalid(CACHE_PERSISTENCE, "set 'disk' or 'memory', which are the same here".to_owned()));
        }
        if let Some(value) = table.get(DEDUPLICATION_HEADER)
            && value.as_str().is_none_or(|name| name.is_empty() || name.len() > ShortStr::MAX_BYTES)
        {
            return Err(invalid(DEDUPLICATION_HEADER, "set the name of a header".to_owned()));
        }
        Ok(true)
    }

    /// For a checkpoint, before the topology's end: what queues remember that are not replicated.
    pub fn unreplicated_keys(&self) -> Vec<BasePiece> {
        self.state.queue_keys(|queue| !queue.is_replicated())
    }

    /// Keys that queues and exchanges remember; costs nothing to ask.
    pub fn remembered_keys(&self) -> u64 {
        self.state.remembered as u64
    }
}

/// A declare of what exists: it drops the same duplicates. Whether, and the arguments, of each.
pub(crate) fn assert_same_deduplication(
    (received, received_table): (bool, &FieldTable),
    (current, current_table): (bool, &FieldTable),
    object: &str,
) -> Result<(), Failure> {
    if received != current {
        let declared_before = received && current_table.get(MESSAGE_DEDUPLICATION) == Some(&FieldValue::Bool(true));
        let cure = match declared_before {
            true => "; it was declared when not every replica knew the argument: delete it and declare it again",
            false => "",
        };
        return Err(precondition_failed(format!(
            "inequivalent arg '{MESSAGE_DEDUPLICATION}' for {object}: received '{received}' but current is '{current}'{cure}"
        )));
    }
    let number = |name: &str, table: &FieldTable| table.get(name).and_then(whole_or_text);
    let differs = |name: &&'static str| match *name {
        DEDUPLICATION_HEADER => true,
        name => number(name, received_table) != number(name, current_table),
    };
    let mut compared = [CACHE_SIZE, CACHE_TTL, DEDUPLICATION_HEADER].into_iter().filter(|_| received).filter(differs);
    compared.try_for_each(|name| assert_equivalent(name, received_table, current_table, object))
}

impl State {
    /// What passed exchanges, to take effect with the record of its message, or now.
    pub(crate) fn see(&mut self, index: Index, keys: &[SeenKey], alone: bool) -> Result<(), ApplyError> {
        for seen in keys {
            let unknown = || ApplyError::UnknownExchange { index, name: seen.exchange.clone() };
            let exchange = self.vhost_mut(index, seen.vhost)?.exchanges.get(&seen.exchange).ok_or_else(unknown)?;
            exchange.keys.as_ref().ok_or_else(unknown)?;
        }
        match alone {
            true => self.remember(keys.iter().cloned()),
            false => {
                self.seen.extend(keys.iter().map(|seen| SeenKey { exchange: seen.exchange.detached(), ..seen.clone() }))
            }
        }
        Ok(())
    }

    /// The record of the message is applied.
    pub(crate) fn remember_seen(&mut self) {
        let seen = std::mem::take(&mut self.seen);
        self.remember(seen.into_iter());
    }

    fn remember(&mut self, seen: impl Iterator<Item = SeenKey>) {
        for SeenKey { vhost, exchange, key, expires_ms } in seen {
            let exchange = self.vhosts.get_mut(vhost).and_then(|vhost| vhost.exchanges.get_mut(&exchange));
            let Some(keys) = exchange.and_then(|exchange| exchange.keys.as_deref_mut()) else { continue };
            let before = keys.len();
            keys.pass(key, expires_ms, self.wall_ms);
            self.remembered = self.remembered + keys.len() - before;
        }
    }

    /// A sync point's, of what came before.
    pub(crate) fn take_keys(&mut self, vhost: VhostId, of: KeyedBy, held: &[HeldKey]) -> Result<(), ApplyError> {
        let keys = match of {
            KeyedBy::Queue(queue) => self.queues.get_mut(&queue).and_then(|queue| queue.keys.as_deref_mut()),
            KeyedBy::Exchange(name) => {
                let exchange = self.vhosts.get_mut(vhost).and_then(|vhost| vhost.exchanges.get_mut(&name));
                exchange.and_then(|exchange| exchange.keys.as_deref_mut())
            }
        };
        let keys = keys.ok_or(ApplyError::Base { what: "keys of what drops no duplicates" })?;
        let before = keys.len();
        held.iter().for_each(|held| keys.put(*held));
        self.remembered = self.remembered + keys.len() - before;
        Ok(())
    }

    /// What is remembered whatever becomes of the messages. Queues whose messages are not replicated have nothing to remember
    /// elsewhere.
    pub(crate) fn topology_keys(&self) -> Vec<BasePiece> {
        let exchanges = self.vhosts.iter().flat_map(Vhost::keys);
        exchanges.chain(self.queue_keys(Queue::is_replicated)).collect()
    }

    fn queue_keys(&self, wanted: impl Fn(&Queue) -> bool) -> Vec<BasePiece> {
        if self.deduplicating == 0 {
            return Vec::new();
        }
        let mut queues: Vec<_> = self.queues.values().filter(|queue| wanted(queue)).collect();
        queues.sort_unstable_by_key(|queue| queue.id);
        let keys = queues.into_iter().filter_map(|queue| Some((queue.id, queue.keys.as_deref()?)));
        let keys = keys.filter(|(_, keys)| keys.outlive_messages());
        keys.flat_map(|(id, keys)| pieces(KeyedBy::Queue(id), keys)).collect()
    }

    /// In number, by looking; for tests.
    pub(crate) fn count_keys(&self) -> usize {
        let queues = self.queues.values().filter_map(|queue| queue.keys.as_deref());
        let exchanges = self.vhosts.iter().flat_map(|vhost| vhost.exchanges.values());
        queues.chain(exchanges.filter_map(|exchange| exchange.keys.as_deref())).map(Keys::len).sum()
    }
}

impl Vhost {
    fn keys(&self) -> Vec<BasePiece> {
        let mut exchanges: Vec<_> = self.exchanges.values().filter(|exchange| exchange.keys.is_some()).collect();
        exchanges.sort_unstable_by_key(|exchange| &exchange.spec.name);
        let keys = exchanges.into_iter().filter_map(|exchange| Some((&exchange.spec.name, exchange.keys.as_deref()?)));
        let pieces = keys.flat_map(|(name, keys)| pieces(KeyedBy::Exchange(name.clone()), keys));
        pieces.map(|piece| piece.within(self.id)).collect()
    }

    /// In number.
    pub(crate) fn remembered(&self) -> usize {
        self.exchanges.values().filter_map(|exchange| exchange.keys.as_deref()).map(Keys::len).sum()
    }
}

fn pieces(of: KeyedBy, keys: &Keys) -> impl Iterator<Item = BasePiece> {
    let mut held = keys.held();
    std::iter::from_fn(move || {
        let keys: Vec<HeldKey> = held.by_ref().take(SEEN_PER_RECORD).collect();
        (!keys.is_empty()).then(|| BasePiece::Keys { of: of.clone(), keys })
    })
}
