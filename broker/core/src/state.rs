//! The replicated state and the one way it changes: records, applied in index order. The same code runs on the primary
//! (which applies what it has just written) and on every backup, so it decides nothing and asks nobody.

use std::collections::BTreeMap;
use std::sync::Arc;

use hashbrown::HashMap;
use understudy_record::{
    Binding, Destination, ExchangeSpec, Index, Message, PartRef, QueueId, QueueSpec, Record, ShortStr, StoreId,
};

use crate::base::BaseState;
use crate::entry::{Entry, message_bytes};
use crate::evict::Evictable;
use crate::exchange::{Exchange, Routed};
use crate::expiry::Wishes;
use crate::parts::Parts;
use crate::queue::Queue;
use crate::scrub::Difference;
use crate::staged::Staged;
use crate::tally::Tally;

/// A record that does not fit what this replica has: it has diverged and must start over from its primary.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    #[error("record {found} where {expected} is next")]
    OutOfOrder { expected: Index, found: Index },
    #[error("record {index} names queue {queue}, which does not exist here")]
    UnknownQueue { index: Index, queue: QueueId },
    #[error("record {index} names exchange {name}, which does not exist here")]
    UnknownExchange { index: Index, name: ShortStr },
    #[error("record {index} declares {name}, which exists here")]
    Exists { index: Index, name: ShortStr },
    #[error("record {index} binds what is bound, or unbinds what is not, at exchange {source_exchange}")]
    Binding { index: Index, source_exchange: ShortStr },
    #[error("record {index} lists its target queues, or its message's parts, out of order or twice")]
    Targets { index: Index },
    #[error("record {index} names part {part}, which is not here, is claimed, or has another length")]
    UnknownPart { index: Index, part: Index },
    #[error("record {index} decides over {expected} staged messages where {found} are")]
    Staged { index: Index, expected: u32, found: usize },
    #[error("record {index} stands between a transaction's messages and its decision")]
    AmidTransaction { index: Index },
    #[error("a piece of a sync point came out of place: {what}")]
    Base { what: &'static str },
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) exchanges: HashMap<ShortStr, Exchange>,
    pub(crate) queues: HashMap<QueueId, Queue>,
    pub(crate) names: HashMap<ShortStr, QueueId>,
    by_destination: HashMap<Destination, Vec<Arc<Binding>>>,
    pub(crate) last_index: Index,
    /// The last record that changed exchanges, queues or bindings.
    pub(crate) topology_index: Index,
    pub(crate) base: BaseState,
    /// Up to this record the sync point that the state was built from shows effects of later ones.
    pub(crate) floor: Index,
    /// The first difference from the primary that a scrub has found.
    pub(crate) difference: Option<Difference>,
    /// Sync points that are being read, for replicas that start over and for checkpoints, with how many read each.
    pub(crate) syncs: BTreeMap<Index, usize>,
    pub(crate) tally: Tally,
    pub(crate) parts: Parts,
    pub(crate) evictable: Evictable,
    /// Queues whose messages only their primary has, in number.
    pub(crate) unreplicated: usize,
    /// Queues with a limit, in number.
    pub(crate) limited: usize,
    /// The stores of the last epoch's primary and of the one before, as far as they are known.
    pub(crate) writers: [Option<StoreId>; 2],
    /// Queues with a time to live for their messages, in number.
    pub(crate) expiring: usize,
    /// What time it is, as the last primary to say it said: in milliseconds since 1970. 0: nobody has.
    pub(crate) wall_ms: u64,
    /// Of the transaction whose decision is next.
    pub(crate) staged: Vec<Staged>,
}

/// A message on its way into its queues.
#[derive(Debug)]
pub(crate) struct Arriving<'a> {
    pub(crate) bytes: u32,
    pub(crate) parts: Option<&'a Arc<[PartRef]>>,
    pub(crate) wishes: Wishes,
    /// If it stays in memory.
    pub(crate) resident: Option<Arc<Message>>,
}

/// Whether messages stay in memory as they come. Either way they are in the log, or about to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keep {
    /// A primary is about to deliver them.
    Resident,
    /// A replica delivers nothing.
    Stored,
}

impl Default for State {
    fn default() -> Self {
        Self {
            exchanges: Exchange::built_in().map(|exchange| (exchange.spec.name.clone(), exchange)).collect(),
            queues: HashMap::new(),
            names: HashMap::new(),
            by_destination: HashMap::new(),
            last_index: Index(0),
            topology_index: Index(0),
            base: BaseState::None,
            floor: Index(0),
            difference: None,
            syncs: BTreeMap::new(),
            tally: Tally::default(),
            parts: Parts::default(),
            evictable: Evictable::default(),
            unreplicated: 0,
            limited: 0,
            expiring: 0,
            wall_ms: 0,
            writers: [None, None],
            staged: Vec::new(),
        }
    }
}

impl State {
    /// On an error nothing has changed.
    pub(crate) fn apply(&mut self, index: Index, record: &Record, keep: Keep) -> Result<(), ApplyError> {
        let expected = self.last_index.next();
        if index != expected {
            return Err(ApplyError::OutOfOrder { expected, found: index });
        }
        let goes_on = matches!(
            record,
            Record::Staged { .. } | Record::StagedHere { .. } | Record::Transaction { .. } | Record::EpochStart { .. }
        );
        if !self.staged.is_empty() && !goes_on {
            return Err(ApplyError::AmidTransaction { index });
        }
        match record {
            Record::Time { wall_ms } => self.wall_ms = *wall_ms,
            Record::EpochStart { primary, .. } => {
                self.writers = [self.writers[1], Some(primary.store)];
                self.staged = Vec::new();
                self.parts.discard_all();
            }
            Record::InSyncSet { .. } | Record::Withheld => {}
            Record::ExchangeDeclare(spec) => self.declare_exchange(index, spec)?,
            Record::ExchangeDelete { name } => self.delete_exchange(index, name)?,
            Record::QueueDeclare(spec) => self.declare_queue(index, spec)?,
            Record::QueueDelete { queue } => self.delete_queue(index, *queue)?,
            Record::Bind(binding) => self.bind(index, binding)?,
            Record::Unbind(binding) => self.unbind(index, binding)?,
            Record::Publish { targets, message } => self.publish(index, targets, &[], message, keep)?,
            Record::PublishHere { targets, here, message } => self.publish(index, targets, here, message, keep)?,
            Record::Staged { targets, message } => self.stage(index, targets, &[], message, keep)?,
            Record::StagedHere { targets, here, message } => self.stage(index, targets, here, message, keep)?,
            Record::Transaction { staged, settled } => self.decide(index, *staged, settled)?,
            Record::Part { body } => self.parts.add(index, u32::try_from(body.len()).unwrap_or(u32::MAX)),
            Record::Discard { parts } => self.parts.discard(index, parts)?,
            Record::Dequeue { queue, messages } | Record::DequeueHere { queue, messages } => {
                self.dequeue(index, *queue, messages)?
            }
            Record::Requeue { queue, messages } | Record::RequeueHere { queue, messages } => {
                let unknown = ApplyError::UnknownQueue { index, queue: *queue };
                let queue = self.queues.get_mut(queue).ok_or(unknown)?;
                messages.iter().for_each(|message| queue.give_back(*message, &self.syncs));
            }
            Record::Purge { queue, up_to, except } | Record::PurgeHere { queue, up_to, except } => {
                let unknown = ApplyError::UnknownQueue { index, queue: *queue };
                let queue = self.queues.get_mut(queue).ok_or(unknown)?;
                let (tally, parts) = (&mut self.tally, &mut self.parts);
                queue.purge(*up_to, except, |index, entry| release(tally, parts, index, &entry));
            }
            // The primary made the digests from this very state.
            Record::Scrub { digests } => {
                if keep == Keep::Stored {
                    self.compare(index, digests);
                }
            }
            #[cfg(feature = "made-up-version")]
            Record::MadeUp { .. } => {}
        }
        if is_topology(record) {
            self.topology_index = index;
        }
        self.last_index = index;
        Ok(())
    }

    fn declare_exchange(&mut self, index: Index, spec: &ExchangeSpec) -> Result<(), ApplyError> {
        if self.exchanges.contains_key(&spec.name) {
            return Err(ApplyError::Exists { index, name: spec.name.clone() });
        }
        self.add_exchange(index, spec);
        Ok(())
    }

    pub(crate) fn add_exchange(&mut self, declared: Index, spec: &ExchangeSpec) {
        let spec = ExchangeSpec { name: spec.name.detached(), arguments: detached(&spec.arguments), ..*spec };
        self.exchanges.insert(spec.name.clone(), Exchange::new(spec, declared));
    }

    fn delete_exchange(&mut self, index: Index, name: &ShortStr) -> Result<(), ApplyError> {
        let exchange = match self.exchanges.get(name) {
            Some(exchange) if !exchange.is_built_in() => self.exchanges.remove(name),
            _ => None,
        };
        let exchange = exchange.ok_or_else(|| ApplyError::UnknownExchange { index, name: name.clone() })?;
        exchange.bindings().for_each(|binding| self.forget_destination(binding));
        self.unbind_destination(&Destination::Exchange(name.clone()));
        Ok(())
    }

    fn declare_queue(&mut self, index: Index, spec: &QueueSpec) -> Result<(), ApplyError> {
        if self.names.contains_key(&spec.name) {
            return Err(ApplyError::Exists { index, name: spec.name.clone() });
        }
        let id = QueueId(index);
        self.add_queue(Queue::new(id, detached_queue(spec)));
        Ok(())
    }

    pub(crate) fn add_queue(&mut self, queue: Queue) {
        self.unreplicated += usize::from(!queue.is_replicated());
        self.limited += usize::from(queue.rules.limits.is_some());
        self.expiring += usize::from(queue.rules.message_ttl.is_some());
        self.names.insert(queue.spec.name.clone(), queue.id);
        self.queues.insert(queue.id, queue);
    }

    fn delete_queue(&mut self, index: Index, id: QueueId) -> Result<(), ApplyError> {
        let mut queue = self.queues.remove(&id).ok_or(ApplyError::UnknownQueue { index, queue: id })?;
        self.unreplicated -= usize::from(!queue.is_replicated());
        self.limited -= usize::from(queue.rules.limits.is_some());
        self.expiring -= usize::from(queue.rules.message_ttl.is_some());
        self.evictable.remove(&mut queue);
        self.names.remove(&queue.spec.name);
        self.unbind_destination(&Destination::Queue(id));
        queue.into_entries().for_each(|(index, entry)| release(&mut self.tally, &mut self.parts, index, &entry));
        Ok(())
    }

    pub(crate) fn bind(&mut self, index: Index, binding: &Binding) -> Result<(), ApplyError> {
        self.check_destination(index, &binding.destination)?;
        let Some(exchange) = self.exchanges.get_mut(&binding.source) else {
            return Err(ApplyError::UnknownExchange { index, name: binding.source.clone() });
        };
        if exchange.is_bound(binding) {
            return Err(ApplyError::Binding { index, source_exchange: binding.source.clone() });
        }
        let binding = Arc::new(detached_binding(binding));
        exchange.bind(&binding);
        self.by_destination.entry(binding.destination.clone()).or_default().push(binding);
        Ok(())
    }

    fn unbind(&mut self, index: Index, binding: &Binding) -> Result<(), ApplyError> {
        let exchange = self.exchanges.get_mut(&binding.source);
        let binding = exchange
            .and_then(|exchange| exchange.unbind(binding))
            .ok_or_else(|| ApplyError::Binding { index, source_exchange: binding.source.clone() })?;
        self.forget_destination(&binding);
        Ok(())
    }

    fn publish(
        &mut self,
        index: Index,
        targets: &[QueueId],
        here: &[QueueId],
        message: &Message,
        keep: Keep,
    ) -> Result<(), ApplyError> {
        self.check_publish(index, targets, here, message)?;
        let resident = (keep == Keep::Resident).then(|| Arc::new(message.clone()));
        let arriving = Arriving {
            bytes: message_bytes(message),
            parts: message.parts.as_ref(),
            wishes: Wishes::of(&message.properties),
            resident,
        };
        self.take_in(index, targets, here, arriving);
        Ok(())
    }

    pub(crate) fn check_publish(
        &self,
        index: Index,
        targets: &[QueueId],
        here: &[QueueId],
        message: &Message,
    ) -> Result<(), ApplyError> {
        let ascend = |queues: &[QueueId]| queues.is_sorted_by(|one, next| one < next);
        if !ascend(targets) || !ascend(here) {
            return Err(ApplyError::Targets { index });
        }
        for target in targets.iter().chain(here) {
            self.queue(index, *target)?;
        }
        message.parts.as_ref().map_or(Ok(()), |parts| self.parts.check(index, parts))
    }

    /// A message comes into its queues, which are there, each in one of the lists.
    pub(crate) fn take_in(&mut self, index: Index, targets: &[QueueId], here: &[QueueId], arriving: Arriving<'_>) {
        let Arriving { bytes, parts, wishes, resident } = arriving;
        if let Some(parts) = parts {
            self.parts.claim(index, parts, targets.len() + here.len());
        }
        let stored = || Entry::stored(bytes, 0, parts.is_some());
        let resident = resident.map(|message| (message, stored().memory_bytes()));
        self.tally.publish(index, targets.len() + here.len(), bytes, resident.as_ref());
        for target in targets.iter().chain(here) {
            let Some(queue) = self.queues.get_mut(target) else { continue };
            let expires = wishes.deadline(queue, self.wall_ms);
            match &resident {
                Some((message, _)) => {
                    queue.push(index, Entry::resident(message.clone(), bytes), wishes.priority, expires);
                    self.evictable.note(queue);
                }
                None => queue.push(index, stored(), wishes.priority, expires),
            }
        }
    }

    fn dequeue(&mut self, index: Index, queue: QueueId, messages: &[Index]) -> Result<(), ApplyError> {
        let unknown = ApplyError::UnknownQueue { index, queue };
        let queue = self.queues.get_mut(&queue).ok_or(unknown)?;
        for message in messages {
            if let Some(entry) = queue.remove(*message) {
                release(&mut self.tally, &mut self.parts, *message, &entry);
            }
        }
        Ok(())
    }

    fn unbind_destination(&mut self, destination: &Destination) {
        for binding in self.by_destination.remove(destination).unwrap_or_default() {
            if let Some(source) = self.exchanges.get_mut(&binding.source) {
                source.unbind(&binding);
            }
        }
    }

    fn forget_destination(&mut self, binding: &Arc<Binding>) {
        let left = self.by_destination.get_mut(&binding.destination).map(|bound| {
            if let Some(place) = bound.iter().position(|other| Arc::ptr_eq(other, binding)) {
                bound.swap_remove(place);
            }
            bound.len()
        });
        if left == Some(0) {
            self.by_destination.remove(&binding.destination);
        }
    }

    fn check_destination(&self, index: Index, destination: &Destination) -> Result<(), ApplyError> {
        match destination {
            Destination::Queue(queue) => self.queue(index, *queue).map(|_| ()),
            Destination::Exchange(name) if self.exchanges.contains_key(name) => Ok(()),
            Destination::Exchange(name) => Err(ApplyError::UnknownExchange { index, name: name.clone() }),
        }
    }

    fn queue(&self, index: Index, id: QueueId) -> Result<&Queue, ApplyError> {
        self.queues.get(&id).ok_or(ApplyError::UnknownQueue { index, queue: id })
    }

    // ---- reading

    /// In no order.
    pub(crate) fn bindings_to(&self, destination: &Destination) -> impl Iterator<Item = &Binding> {
        self.by_destination.get(destination).into_iter().flatten().map(|binding| &**binding)
    }

    /// Exchanges that have a binding to `destination`, in order, each once.
    pub(crate) fn sources_of(&self, destination: &Destination) -> Vec<ShortStr> {
        let bound = self.by_destination.get(destination).into_iter().flatten();
        let mut sources: Vec<_> = bound.map(|binding| binding.source.clone()).collect();
        sources.sort();
        sources.dedup();
        sources
    }

    /// The queues that a message published to `exchange` reaches, in order, each once. Bindings from exchange to exchange are
    /// followed, and where an exchange has none that takes it its alternate; each exchange is visited once, so cycles end.
    pub(crate) fn route(&self, exchange: &ShortStr, message: &Routed<'_>) -> Vec<QueueId> {
        if exchange.is_empty() && message.more_keys.is_empty() {
            return self.names.get(message.routing_key).copied().into_iter().collect();
        }
        let mut targets = Vec::new();
        let mut onward = Vec::new();
        self.collect_matches(exchange, message, &mut targets, &mut onward);
        let mut visited = 0;
        while let Some(next) = onward.get(visited).cloned() {
            visited += 1;
            if next != *exchange {
                self.collect_matches(&next, message, &mut targets, &mut onward);
            }
        }
        if targets.len() > 1 {
            targets.sort_unstable();
            targets.dedup();
        }
        targets
    }

    fn collect_matches(
        &self,
        name: &ShortStr,
        message: &Routed<'_>,
        targets: &mut Vec<QueueId>,
        onward: &mut Vec<ShortStr>,
    ) {
        if name.is_empty() {
            return targets.extend(message.keys().filter_map(|key| self.names.get(key)));
        }
        let Some(exchange) = self.exchanges.get(name) else { return };
        let mut taken = false;
        exchange.for_each_match(message, |binding| {
            taken = true;
            match &binding.destination {
                Destination::Queue(queue) => targets.push(*queue),
                Destination::Exchange(next) if !onward.contains(next) => onward.push(next.clone()),
                Destination::Exchange(_) => {}
            }
        });
        if let Some(alternate) = exchange.alternate().filter(|next| !taken && !onward.contains(next)) {
            onward.push(alternate.clone());
        }
    }

    /// A message is read back into a queue, if it is still there for somebody to ask for it.
    pub(crate) fn load(&mut self, queue: QueueId, index: Index, message: Message) {
        let Some(queue) = self.queues.get_mut(&queue).filter(|queue| queue.is_wanted(index)) else { return };
        queue.load(index, |bytes| self.tally.load(index, bytes, message));
        self.evictable.note(queue);
    }

    pub(crate) fn assert_consistent(&self) {
        self.queues.values().for_each(Queue::assert_consistent);
        assert_eq!(self.queues.len(), self.names.len(), "each queue has one name");
        let unreplicated = self.queues.values().filter(|queue| !queue.is_replicated()).count();
        assert_eq!(self.unreplicated, unreplicated, "queues whose messages are not replicated");
        let limited = self.queues.values().filter(|queue| queue.rules.limits.is_some()).count();
        assert_eq!(self.limited, limited, "queues with a limit");
        let expiring = self.queues.values().filter(|queue| queue.rules.message_ttl.is_some()).count();
        assert_eq!(self.expiring, expiring, "queues whose messages expire");
        self.tally.assert_consistent(self.queues.values().flat_map(Queue::entries));
        self.parts.assert_consistent(self.queues.values().flat_map(Queue::entries));
        self.evictable.assert_consistent(self.queues.values());
    }
}

/// A queue gave up its copy.
pub(crate) fn release(tally: &mut Tally, parts: &mut Parts, index: Index, entry: &Entry) {
    tally.release(index, entry);
    if entry.is_large() {
        parts.release(index);
    }
}

fn is_topology(record: &Record) -> bool {
    matches!(
        record,
        Record::ExchangeDeclare(_)
            | Record::ExchangeDelete { .. }
            | Record::QueueDeclare(_)
            | Record::QueueDelete { .. }
            | Record::Bind(_)
            | Record::Unbind(_)
    )
}

/// Topology is kept long: it must not hold on to the read buffer that a declare came in.
pub(crate) fn detached_queue(spec: &QueueSpec) -> QueueSpec {
    QueueSpec { name: spec.name.detached(), arguments: detached(&spec.arguments), ..*spec }
}

fn detached_binding(binding: &Binding) -> Binding {
    let destination = match &binding.destination {
        Destination::Queue(queue) => Destination::Queue(*queue),
        Destination::Exchange(name) => Destination::Exchange(name.detached()),
    };
    let (source, routing_key) = (binding.source.detached(), binding.routing_key.detached());
    Binding { source, destination, routing_key, arguments: detached(&binding.arguments) }
}

fn detached(bytes: &bytes::Bytes) -> bytes::Bytes {
    bytes::Bytes::copy_from_slice(bytes)
}
