//! The replicated state and the one way it changes: records, applied in index order. The same code runs on the primary
//! (which applies what it has just written) and on every backup, so it decides nothing and asks nobody.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use hashbrown::HashMap;
use understudy_record::{
    Admin, Binding, Destination, Index, Message, MessageKey, PartRef, QueueId, QueueSpec, Record, SeenKey, ShortStr,
    StoreId, VhostId,
};

use crate::accounts::Accounts;
use crate::base::BaseState;
use crate::deduplication::headers_of;
use crate::entry::{Entry, message_bytes};
use crate::evict::Evictable;
use crate::expiry::Wishes;
use crate::parts::Parts;
use crate::policies::Concerned;
use crate::queue::Queue;
use crate::queue_rules::QueueRules;
use crate::scrub::Difference;
use crate::staged::Staged;
use crate::tally::Tally;
use crate::vhost::{Vhost, Vhosts};

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
    #[error("record {index} names virtual host {vhost}, which does not exist here")]
    UnknownVhost { index: Index, vhost: VhostId },
    #[error("record {index} names user {user}, or what one may do, which does not exist here")]
    UnknownUser { index: Index, user: ShortStr },
    #[error("record {index} names policy {name}, which does not exist here")]
    UnknownPolicy { index: Index, name: ShortStr },
    #[error("record {index} is of no kind that stands in a virtual host")]
    NotInVhost { index: Index },
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
    pub(crate) vhosts: Vhosts,
    pub(crate) queues: HashMap<QueueId, Queue>,
    pub(crate) accounts: Accounts,
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
    /// What passed exchanges with the message whose record is next.
    pub(crate) seen: Vec<SeenKey>,
    /// Queues that drop duplicates, in number.
    pub(crate) deduplicating: usize,
    /// Keys that queues and exchanges remember, in number.
    pub(crate) remembered: usize,
    /// Of the messages of the sync point's next piece.
    pub(crate) expected_keys: HashMap<Index, MessageKey>,
}

/// A message on its way into its queues.
#[derive(Debug)]
pub(crate) struct Arriving<'a> {
    pub(crate) bytes: u32,
    pub(crate) parts: Option<&'a Arc<[PartRef]>>,
    pub(crate) wishes: Wishes,
    /// Where there is a queue that drops duplicates.
    pub(crate) properties: &'a Bytes,
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
            vhosts: Vhosts::default(),
            queues: HashMap::new(),
            accounts: Accounts::default(),
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
            seen: Vec::new(),
            deduplicating: 0,
            remembered: 0,
            expected_keys: HashMap::new(),
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
            Record::Staged { .. }
                | Record::StagedHere { .. }
                | Record::Seen { alone: false, .. }
                | Record::Transaction { .. }
                | Record::EpochStart { .. }
        );
        if !self.staged.is_empty() && !goes_on {
            return Err(ApplyError::AmidTransaction { index });
        }
        match record {
            Record::Time { wall_ms } => self.wall_ms = *wall_ms,
            Record::EpochStart { primary, .. } => {
                self.writers = [self.writers[1], Some(primary.store)];
                self.staged = Vec::new();
                self.seen = Vec::new();
                self.parts.discard_all();
            }
            Record::InSyncSet { .. } | Record::Withheld => {}
            Record::ExchangeDeclare(_)
            | Record::ExchangeDelete { .. }
            | Record::QueueDeclare(_)
            | Record::Bind(_)
            | Record::Unbind(_) => self.change(index, VhostId::DEFAULT, record)?,
            Record::In { vhost, change } => self.change(index, *vhost, change)?,
            Record::QueueDelete { queue } => self.delete_queue(index, *queue)?,
            Record::Admin(change) => self.administer(index, change)?,
            Record::Publish { targets, message } => self.publish(index, targets, &[], message, keep)?,
            Record::PublishHere { targets, here, message } => self.publish(index, targets, here, message, keep)?,
            Record::Staged { targets, message } => self.stage(index, targets, &[], message, keep)?,
            Record::StagedHere { targets, here, message } => self.stage(index, targets, here, message, keep)?,
            Record::Transaction { staged, settled } => self.decide(index, *staged, settled)?,
            Record::Seen { keys, alone } => self.see(index, keys, *alone)?,
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
                let remembered = queue.remembered();
                let (tally, parts) = (&mut self.tally, &mut self.parts);
                queue.purge(*up_to, except, |index, entry| release(tally, parts, index, &entry));
                if !queue.is_replicated() && matches!(record, Record::Purge { .. }) {
                    // A new primary has not got what was in it: whoever sends it again is to be heard.
                    queue.keys.iter_mut().for_each(|keys| keys.clear());
                }
                self.remembered -= remembered - queue.remembered();
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
        if !self.seen.is_empty()
            && !matches!(record, Record::Seen { .. } | Record::Staged { .. } | Record::StagedHere { .. })
        {
            self.remember_seen();
        }
        if is_topology(record) {
            self.topology_index = index;
        }
        self.last_index = index;
        Ok(())
    }

    /// In one virtual host.
    fn change(&mut self, index: Index, vhost: VhostId, record: &Record) -> Result<(), ApplyError> {
        match record {
            Record::ExchangeDeclare(spec) => self.vhost_mut(index, vhost)?.declare_exchange(index, spec),
            Record::ExchangeDelete { name } => {
                self.remembered -= self.vhost_mut(index, vhost)?.delete_exchange(index, name)?;
                Ok(())
            }
            Record::QueueDeclare(spec) => self.declare_queue(index, vhost, spec),
            Record::Bind(binding) => self.bind(index, vhost, binding),
            Record::Unbind(binding) => self.vhost_mut(index, vhost)?.unbind(index, binding),
            _ => Err(ApplyError::NotInVhost { index }),
        }
    }

    fn declare_queue(&mut self, index: Index, vhost: VhostId, spec: &QueueSpec) -> Result<(), ApplyError> {
        if self.vhost_mut(index, vhost)?.names.contains_key(&spec.name) {
            return Err(ApplyError::Exists { index, name: spec.name.clone() });
        }
        self.add_queue(Queue::new(vhost, QueueId(index), detached_queue(spec)));
        Ok(())
    }

    /// Its virtual host is there.
    pub(crate) fn add_queue(&mut self, mut queue: Queue) {
        if let Some(vhost) = self.vhosts.get(queue.vhost).filter(|vhost| !vhost.policies.is_empty()) {
            queue.rules = QueueRules::of(&queue.spec.arguments, vhost.policies.of_queue(&queue.spec));
        }
        self.unreplicated += usize::from(!queue.is_replicated());
        self.limited += usize::from(queue.rules.limits.is_some());
        self.expiring += usize::from(queue.rules.message_ttl.is_some());
        self.deduplicating += usize::from(queue.keys.is_some());
        if let Some(vhost) = self.vhosts.get_mut(queue.vhost) {
            vhost.names.insert(queue.spec.name.clone(), queue.id);
        }
        self.queues.insert(queue.id, queue);
    }

    fn delete_queue(&mut self, index: Index, id: QueueId) -> Result<(), ApplyError> {
        let queue = self.take_out_queue(id).ok_or(ApplyError::UnknownQueue { index, queue: id })?;
        if let Some(vhost) = self.vhosts.get_mut(queue.vhost) {
            vhost.names.remove(&queue.spec.name);
            vhost.unbind_destination(&Destination::Queue(id));
        }
        self.release_all(queue);
        Ok(())
    }

    /// It is left to its virtual host to forget the name and the bindings.
    fn take_out_queue(&mut self, id: QueueId) -> Option<Queue> {
        let mut queue = self.queues.remove(&id)?;
        self.unreplicated -= usize::from(!queue.is_replicated());
        self.limited -= usize::from(queue.rules.limits.is_some());
        self.expiring -= usize::from(queue.rules.message_ttl.is_some());
        self.deduplicating -= usize::from(queue.keys.is_some());
        self.remembered -= queue.remembered();
        self.evictable.remove(&mut queue);
        Some(queue)
    }

    fn release_all(&mut self, queue: Queue) {
        queue.into_entries().for_each(|(index, entry)| release(&mut self.tally, &mut self.parts, index, &entry));
    }

    pub(crate) fn bind(&mut self, index: Index, vhost: VhostId, binding: &Binding) -> Result<(), ApplyError> {
        if let Destination::Queue(id) = &binding.destination
            && self.queue(index, *id)?.vhost != vhost
        {
            return Err(ApplyError::UnknownQueue { index, queue: *id });
        }
        self.vhost_mut(index, vhost)?.bind(index, binding)
    }

    pub(crate) fn administer(&mut self, index: Index, change: &Admin) -> Result<(), ApplyError> {
        match change {
            Admin::VhostCreate(spec) => {
                if self.vhosts.named(&spec.name).is_some() {
                    return Err(ApplyError::Exists { index, name: spec.name.clone() });
                }
                self.vhosts.add(VhostId(index), spec);
            }
            Admin::VhostDelete { vhost: id } => {
                let vhost = self.vhosts.remove(*id).ok_or(ApplyError::UnknownVhost { index, vhost: *id })?;
                self.remembered -= vhost.remembered();
                for queue in vhost.names.into_values() {
                    if let Some(queue) = self.take_out_queue(queue) {
                        self.release_all(queue);
                    }
                }
                self.accounts.forget_vhost(*id);
            }
            Admin::PolicyPut { vhost, operator, policy } => {
                let concerned = self.vhost_mut(index, *vhost)?.policies.put(*operator, policy);
                self.renew_rules(*vhost, &concerned);
            }
            Admin::PolicyDelete { vhost, operator, name } => {
                let concerned = self.vhost_mut(index, *vhost)?.policies.delete(*operator, name);
                let unknown = ApplyError::UnknownPolicy { index, name: name.clone() };
                self.renew_rules(*vhost, &concerned.ok_or(unknown)?);
            }
            Admin::VhostLimits { vhost, limits } => self.vhost_mut(index, *vhost)?.limits = *limits,
            change => {
                if let Admin::PermissionPut { vhost, .. } | Admin::TopicPermissionPut { vhost, .. } = change {
                    self.vhost_mut(index, *vhost)?;
                }
                self.accounts.apply(index, change)?;
            }
        }
        Ok(())
    }

    /// As its policies are now.
    fn renew_rules(&mut self, vhost: VhostId, concerned: &Concerned) {
        let Some(vhost) = self.vhosts.get_mut(vhost) else { return };
        vhost.renew_alternates(concerned);
        for (_, id) in vhost.names.iter().filter(|(name, _)| concerned.has(name)) {
            let Some(queue) = self.queues.get_mut(id) else { continue };
            self.limited -= usize::from(queue.rules.limits.is_some());
            self.expiring -= usize::from(queue.rules.message_ttl.is_some());
            queue.rules = QueueRules::of(&queue.spec.arguments, vhost.policies.of_queue(&queue.spec));
            self.limited += usize::from(queue.rules.limits.is_some());
            self.expiring += usize::from(queue.rules.message_ttl.is_some());
        }
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
            properties: &message.properties,
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
        let Arriving { bytes, parts, wishes, properties, resident } = arriving;
        if let Some(parts) = parts {
            self.parts.claim(index, parts, targets.len() + here.len());
        }
        let stored = || Entry::stored(bytes, 0, parts.is_some());
        let headers = OnceCell::new();
        let resident = resident.map(|message| (message, stored().memory_bytes()));
        self.tally.publish(index, targets.len() + here.len(), bytes, resident.as_ref());
        for target in targets.iter().chain(here) {
            let Some(queue) = self.queues.get_mut(target) else { continue };
            let expires = wishes.deadline(queue, self.wall_ms);
            if let Some(keys) = &mut queue.keys {
                let before = keys.len();
                keys.note(index, headers.get_or_init(|| headers_of(properties)), self.wall_ms);
                self.remembered = self.remembered + keys.len() - before;
            }
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
        let remembered = queue.remembered();
        for message in messages {
            if let Some(entry) = queue.remove(*message) {
                release(&mut self.tally, &mut self.parts, *message, &entry);
            }
        }
        self.remembered -= remembered - queue.remembered();
        Ok(())
    }

    fn queue(&self, index: Index, id: QueueId) -> Result<&Queue, ApplyError> {
        self.queues.get(&id).ok_or(ApplyError::UnknownQueue { index, queue: id })
    }

    pub(crate) fn vhost_mut(&mut self, index: Index, id: VhostId) -> Result<&mut Vhost, ApplyError> {
        self.vhosts.get_mut(id).ok_or(ApplyError::UnknownVhost { index, vhost: id })
    }

    // ---- reading

    /// Of a connection, or a queue.
    pub(crate) fn vhost(&self, id: VhostId) -> &Vhost {
        self.vhosts.get(id).expect("with a virtual host its queues are deleted and its connections closed")
    }

    /// In no order.
    pub(crate) fn bindings_to(&self, vhost: VhostId, destination: &Destination) -> impl Iterator<Item = &Binding> {
        self.vhosts.get(vhost).into_iter().flat_map(move |vhost| vhost.bindings_to(destination))
    }

    /// A message is read back into a queue, if it is still there for somebody to ask for it.
    pub(crate) fn load(&mut self, queue: QueueId, index: Index, message: Message) {
        let Some(queue) = self.queues.get_mut(&queue).filter(|queue| queue.is_wanted(index)) else { return };
        queue.load(index, |bytes| self.tally.load(index, bytes, message));
        self.evictable.note(queue);
    }

    pub(crate) fn assert_consistent(&self) {
        self.queues.values().for_each(Queue::assert_consistent);
        let names: usize = self.vhosts.iter().map(|vhost| vhost.names.len()).sum();
        assert_eq!(self.queues.len(), names, "each queue has one name");
        for queue in self.queues.values() {
            let named = self.vhosts.get(queue.vhost).and_then(|vhost| vhost.names.get(&queue.spec.name));
            assert_eq!(named, Some(&queue.id), "its virtual host knows it by its name");
            let settings = self.vhost(queue.vhost).policies.of_queue(&queue.spec);
            assert_eq!(queue.rules, QueueRules::of(&queue.spec.arguments, settings), "the rules of queue {}", queue.id);
        }
        let unreplicated = self.queues.values().filter(|queue| !queue.is_replicated()).count();
        assert_eq!(self.unreplicated, unreplicated, "queues whose messages are not replicated");
        let limited = self.queues.values().filter(|queue| queue.rules.limits.is_some()).count();
        assert_eq!(self.limited, limited, "queues with a limit");
        let expiring = self.queues.values().filter(|queue| queue.rules.message_ttl.is_some()).count();
        assert_eq!(self.expiring, expiring, "queues whose messages expire");
        let deduplicating = self.queues.values().filter(|queue| queue.keys.is_some()).count();
        assert_eq!(self.deduplicating, deduplicating, "queues that drop duplicates");
        assert_eq!(self.remembered, self.count_keys(), "keys that are remembered");
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
            | Record::In { .. }
            | Record::Admin(Admin::VhostCreate(_) | Admin::VhostDelete { .. })
    )
}

/// Topology is kept long: it must not hold on to the read buffer that a declare came in.
pub(crate) fn detached_queue(spec: &QueueSpec) -> QueueSpec {
    QueueSpec { name: spec.name.detached(), arguments: detached(&spec.arguments), ..*spec }
}

pub(crate) fn detached(bytes: &Bytes) -> Bytes {
    Bytes::copy_from_slice(bytes)
}
