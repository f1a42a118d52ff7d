//! Dead-lettering: messages that leave a queue without having been consumed are published again, where the queue says. What
//! they say then is in `letter`.
//!
//! A message and its letter change places in one transaction, so neither a failover nor a restart has both or none of them.
//! Until then the message is condemned: in its queue, and handed out to nobody. Its body may have to be read back, and that of
//! a large one, which is in parts, is written once more, part by part: a part belongs to one message, for replicas that fetch
//! messages one by one. So a letter can come some time after the death, in the order of the deaths of its queue.
//!
//! A queue whose dead-letter exchange is not there drops them, and so does an exchange that routes them nowhere, as in RabbitMQ.
//! So does one, or a queue, that drops duplicates and knows the letter's key: it is gone.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use understudy_record::{Body, Index, Message, PartRef, QueueId, Record, Settled, VhostId};

use crate::ahead::Batch;
use crate::core::Core;
use crate::deduplication::Passing;
use crate::effect::Outputs;
use crate::entry::{Entry, message_bytes};
use crate::exchange::Routed;
pub(crate) use crate::letter::Reason;
use crate::letter::{Death, Letter};
use crate::load::PartLoad;
use crate::queue::Queue;
use crate::settle::dequeue;
use crate::transaction::Held;
use crate::{
    DEAD_LETTERS_PER_TURN, EXPIRIES_PER_TURN, MAX_DEAD_LETTERS_PER_STEP, MAX_UNCOMMITTED_DEAD_LETTERS_BYTES,
    TRANSACTIONS_SINCE,
};

/// Of one queue.
#[derive(Debug, Default)]
pub(crate) struct Condemned {
    /// In the order in which they go.
    order: VecDeque<(Index, Reason)>,
    known: HashSet<Index>,
    /// What had to be read back of the first ones: at most a batch.
    read: HashMap<Index, Message>,
    /// The first one, if it is large.
    copying: Option<Copying>,
    /// In the list of queues that may go on.
    listed: bool,
}

/// A large message on its way into new parts.
#[derive(Debug)]
struct Copying {
    parts: Arc<[PartRef]>,
    copied: Vec<PartRef>,
    /// The next part is being read.
    reading: bool,
}

/// Of all queues.
#[derive(Debug, Default)]
pub(crate) struct DeadLetters {
    /// Queues that may go on, in turn; each at most once.
    queues: VecDeque<QueueId>,
    /// What was written and is not committed, with its bytes.
    uncommitted: VecDeque<(Index, u64)>,
    uncommitted_bytes: u64,
}

impl DeadLetters {
    fn note_written(&mut self, index: Index, bytes: u64) {
        self.uncommitted.push_back((index, bytes));
        self.uncommitted_bytes += bytes;
    }

    pub(crate) fn handle_committed(&mut self, committed: Index) {
        while let Some((_, bytes)) = self.uncommitted.pop_front_if(|(index, _)| *index <= committed) {
            self.uncommitted_bytes -= bytes;
        }
    }

    /// No more is to be written before some of it is committed.
    fn are_many(&self) -> bool {
        self.uncommitted_bytes >= MAX_UNCOMMITTED_DEAD_LETTERS_BYTES
    }
}

/// What becomes of the first condemned one.
enum Next {
    /// `None`: nobody wants it.
    Letter(Option<Box<Held>>),
    /// It left its queue by itself.
    Left,
    /// It has to be read back.
    Stored,
    /// It is written in parts, one after the other.
    Large,
}

impl Queue {
    /// On its way out.
    pub(crate) fn is_condemned(&self, index: Index) -> bool {
        self.session.condemned.as_ref().is_some_and(|condemned| condemned.known.contains(&index))
    }

    /// How many more may be condemned that nobody made to.
    pub(crate) fn condemned_room(&self) -> usize {
        let condemned = self.session.condemned.as_ref().map_or(0, |condemned| condemned.order.len());
        EXPIRIES_PER_TURN.saturating_sub(condemned)
    }

    /// Condemned ones that have to be read back, into `batch`.
    pub(crate) fn ask_for_condemned(&self, committed: Index, batch: &mut Batch) {
        let Some(condemned) = &self.session.condemned else { return };
        for (index, _) in condemned.order.iter().take_while(|(index, _)| *index <= committed) {
            let Some(entry) = self.entry(*index) else { continue };
            let there = entry.is_resident() || condemned.read.contains_key(index);
            if !there && !batch.add(*index, entry.memory_bytes()) {
                return;
            }
        }
    }

    /// The first condemned one has to be read back.
    pub(crate) fn waits_for_condemned(&self, committed: Index) -> bool {
        let first = self.session.condemned.as_ref().and_then(|condemned| {
            let (index, _) = condemned.order.front().filter(|(index, _)| *index <= committed)?;
            (!condemned.read.contains_key(index)).then_some(*index)
        });
        first.is_some_and(|index| self.entry(index).is_some_and(|entry| !entry.is_resident()))
    }

    /// A message that was read back, if it was for this.
    pub(crate) fn keep_condemned(&mut self, index: Index, message: Message) -> Option<Message> {
        let wanted = self.is_wanted(index);
        match &mut self.session.condemned {
            Some(condemned) if !wanted && condemned.known.contains(&index) => {
                condemned.read.insert(index, message);
                None
            }
            _ => Some(message),
        }
    }
}

impl Queue {
    /// In the order in which they go, those that are still in the queue.
    pub(crate) fn condemned(&self) -> impl Iterator<Item = Index> {
        let order = self.session.condemned.iter().flat_map(|condemned| &condemned.order);
        order.map(|(index, _)| *index).filter(|index| self.contains(*index))
    }

    /// Parts that were written for a letter to come.
    pub(crate) fn copied_parts(&self) -> &[PartRef] {
        let copying = self.session.condemned.as_ref().and_then(|condemned| condemned.copying.as_ref());
        copying.map_or(&[], |copying| &copying.copied)
    }
}

impl Core {
    pub(crate) fn assert_condemned_go_on(&self, queue: &Queue) {
        let Some(condemned) = &queue.session.condemned else { return };
        assert_eq!(condemned.order.len(), condemned.known.len(), "the condemned of queue {}", queue.id);
        let asked = queue.session.loading.is_some() || queue.session.wanting;
        let reading = condemned.copying.as_ref().is_some_and(|copying| copying.reading);
        let listed = condemned.listed && self.dead_letters.queues.contains(&queue.id);
        let first = condemned.order.front();
        let waits = first.is_some_and(|(index, _)| self.loads.uncommitted.contains(&(*index, queue.id)));
        assert!(asked || reading || listed || waits, "nobody goes on with the condemned of queue {}", queue.id);
    }

    /// The message, which is in the queue and handed out to nobody who will settle it, dies.
    pub(crate) fn condemn(&mut self, id: QueueId, index: Index, reason: Reason) {
        let Some(queue) = self.state.queues.get_mut(&id) else { return };
        let condemned = queue.session.condemned.get_or_insert_default();
        if condemned.known.insert(index) {
            condemned.order.push_back((index, reason));
        }
        self.go_on_with_condemned(id);
    }

    /// The queue's first condemned message may be there by now.
    pub(crate) fn go_on_with_condemned(&mut self, id: QueueId) {
        let queue = self.state.queues.get_mut(&id);
        let Some(condemned) = queue.and_then(|queue| queue.session.condemned.as_mut()) else { return };
        if !condemned.listed {
            condemned.listed = true;
            self.dead_letters.queues.push_back(id);
        }
    }

    /// At the end of a step. `true` if more could be written at once.
    pub(crate) fn write_dead_letters(&mut self, out: &mut Outputs) -> bool {
        let mut work = MAX_DEAD_LETTERS_PER_STEP;
        while work > 0 && !self.dead_letters.are_many() {
            let Some(id) = self.dead_letters.queues.pop_front() else { return false };
            let Some(queue) = self.state.queues.get_mut(&id) else { continue };
            let Some(mut condemned) = queue.session.condemned.take() else { continue };
            condemned.listed = false;
            let share = DEAD_LETTERS_PER_TURN.min(work);
            let (done, goes_on) = self.write_some(id, &mut condemned, share, out);
            work -= done.max(1).min(work);
            let Some(queue) = self.state.queues.get_mut(&id) else { continue };
            if !condemned.order.is_empty() {
                queue.session.condemned = Some(condemned);
            } else if queue.session.watched_from.is_some() {
                self.watch_deadlines(id);
            }
            if goes_on {
                self.go_on_with_condemned(id);
            } else {
                self.ask_for_condemned(id, out);
            }
        }
        !self.dead_letters.queues.is_empty() && !self.dead_letters.are_many()
    }

    fn ask_for_condemned(&mut self, id: QueueId, out: &mut Outputs) {
        let Some(queue) = self.state.queues.get(&id) else { return };
        let first = queue.session.condemned.as_ref().and_then(|condemned| condemned.order.front());
        if let Some((index, _)) = first.filter(|(index, _)| *index > self.committed) {
            self.loads.uncommitted.insert((*index, id));
        }
        self.ask_for_messages(id, out);
    }

    /// How many are done, and whether more could be at once.
    fn write_some(&mut self, id: QueueId, condemned: &mut Condemned, share: usize, out: &mut Outputs) -> (usize, bool) {
        let (mut letters, mut gone) = (Vec::new(), Vec::new());
        let (mut done, mut bytes, mut goes_on) = (0, 0, false);
        let passing = Passing::at(self.time.wall_ms);
        while let Some((index, reason)) = condemned.order.front().copied() {
            if done == share || self.dead_letters.are_many() || bytes >= MAX_UNCOMMITTED_DEAD_LETTERS_BYTES {
                goes_on = true;
                break;
            }
            match self.next_letter(id, index, reason, condemned, &passing) {
                Next::Letter(letter) => {
                    bytes += letter.as_ref().map_or(0, |held| u64::from(message_bytes(&held.message)));
                    letters.extend(letter.map(|held| *held));
                    gone.push(index);
                }
                Next::Left => {}
                Next::Stored => break,
                Next::Large if gone.is_empty() => {
                    goes_on = self.copy_parts(id, index, reason, condemned, out);
                    break;
                }
                Next::Large => {
                    goes_on = true; // by itself, in the next turn
                    break;
                }
            }
            done += 1;
            condemned.order.pop_front();
            condemned.known.remove(&index);
            // Nobody wants the letter any more of which parts are written.
            let copied = condemned.copying.take().map(|copying| copying.copied).filter(|copied| !copied.is_empty());
            self.discard(copied.map(Arc::from).as_ref(), out);
        }
        self.write_seen_alone(passing.orphans(), out);
        self.replace(id, gone, letters, bytes, out);
        (done, goes_on)
    }

    fn next_letter(
        &self,
        id: QueueId,
        index: Index,
        reason: Reason,
        condemned: &mut Condemned,
        passing: &Passing,
    ) -> Next {
        let Some(queue) = self.state.queues.get(&id) else { return Next::Left };
        let Some(entry) = queue.entry(index) else {
            condemned.read.remove(&index);
            return Next::Left;
        };
        let Some(to) = &queue.rules.dead_letter else { return Next::Letter(None) };
        if !to.exchange.is_empty() && !self.state.vhost(queue.vhost).exchanges.contains_key(&to.exchange) {
            return Next::Letter(None);
        }
        if entry.is_large() {
            let there = entry.is_resident() || condemned.read.contains_key(&index);
            return if there { Next::Large } else { Next::Stored };
        }
        let read = condemned.read.remove(&index);
        let Some(message) = entry.message().map(|message| &**message).or(read.as_ref()) else { return Next::Stored };
        if queue.keys.is_some() {
            passing.leave(id, index);
        }
        Next::Letter(self.address(queue.vhost, self.letter(queue, message, reason), passing).map(Box::new))
    }

    /// `queue` has a rule for its dead letters.
    fn letter(&self, queue: &Queue, message: &Message, reason: Reason) -> Letter {
        let to = queue.rules.dead_letter.as_ref().expect("who writes a letter has looked whether one is wanted");
        let death = Death { queue: &queue.spec.name, reason, time: self.time.wall_ms / 1000 };
        Letter::new(message, death, to)
    }

    /// `None`: nobody takes it, all who would know it already, or it would go round for ever.
    fn address(&self, vhost: VhostId, letter: Letter, passing: &Passing) -> Option<Held> {
        let Message { routing_key, properties, exchange, .. } = &letter.message;
        let routed = Routed::new(routing_key, &letter.more_keys, properties, passing);
        let mut targets = self.state.vhost(vhost).route(exchange, &routed);
        targets.retain(|target| {
            self.state.queues.get(target).is_some_and(|queue| !letter.goes_in_circles(&queue.spec.name))
        });
        let (seen, _) = passing.passed();
        let mut message = letter.message;
        self.take_out_duplicates(&mut targets, &message.properties, passing);
        let persistent = understudy_protocol::Properties::from_raw(message.properties.clone()).is_persistent();
        message.persistent = persistent && targets.iter().any(|queue| self.is_durable(*queue));
        if targets.is_empty() {
            passing.orphan(seen);
            return None;
        }
        Some(Held::new(message, targets, seen))
    }

    /// The messages go, and their letters come: all or nothing.
    fn replace(&mut self, id: QueueId, gone: Vec<Index>, letters: Vec<Held>, bytes: u64, out: &mut Outputs) {
        if gone.is_empty() {
            return;
        }
        let here = self.state.is_unreplicated(id);
        let written = if letters.is_empty() {
            self.write(dequeue(here, id, gone), out)
        } else if self.cluster_version < TRANSACTIONS_SINCE {
            // A failover between them leaves both.
            for Held { message, targets, seen, .. } in letters {
                self.write_publish(targets, message, seen, out);
            }
            self.write(dequeue(here, id, gone), out)
        } else {
            let settled = Settled { queue: id, dequeued: gone, requeued: Vec::new() };
            let written = self.write_transaction(letters, [(id, settled)].into(), Vec::new(), out);
            written.expect("what is settled is written")
        };
        self.dead_letters.note_written(written, bytes);
    }

    // ---- large ones

    /// Writes the large message's letter, or asks for its next part; whether more could be done at once.
    fn copy_parts(
        &mut self,
        id: QueueId,
        index: Index,
        reason: Reason,
        condemned: &mut Condemned,
        out: &mut Outputs,
    ) -> bool {
        let Some(queue) = self.state.queues.get(&id) else { return false };
        let message = queue.entry(index).and_then(Entry::message).map(|message| &**message);
        let Some(message) = message.or(condemned.read.get(&index)) else { return false };
        let Some(parts) = self.state.parts.of(index).cloned() else { return false };
        let (vhost, mut letter) = (queue.vhost, self.letter(queue, message, reason));
        let copying = condemned.copying.get_or_insert(Copying { parts, copied: Vec::new(), reading: false });
        letter.message.parts = Some(copying.copied.iter().copied().collect());
        let passing = Passing::at(self.time.wall_ms);
        passing.leave(id, index);
        let addressed = self.address(vhost, letter, &passing);
        let wanted = addressed.is_some();
        if let Some(next) = copying.parts.get(copying.copied.len()).filter(|_| wanted).copied() {
            if !copying.reading {
                copying.reading = true;
                out.part_loads.push(PartLoad { queue: id, part: next });
            }
            return false;
        }
        let bytes = addressed.as_ref().map_or(0, |held| held.message.body.len() as u64);
        if !wanted {
            let copied: Arc<[PartRef]> = copying.copied.iter().copied().collect();
            self.discard((!copied.is_empty()).then_some(&copied), out);
        }
        self.write_seen_alone(passing.orphans(), out);
        condemned.copying = None;
        condemned.order.pop_front();
        condemned.known.remove(&index);
        condemned.read.remove(&index);
        self.replace(id, vec![index], addressed.into_iter().collect(), bytes, out);
        true
    }

    /// Whether the answer to a [`PartLoad`] is still waited for: if so, the log must have the part.
    pub fn wants_part(&self, load: PartLoad) -> bool {
        let queue = self.state.queues.get(&load.queue);
        let copying = queue.and_then(|queue| queue.session.condemned.as_ref()?.copying.as_ref());
        copying.is_some_and(|copying| copying.reading && copying.parts.get(copying.copied.len()) == Some(&load.part))
    }

    /// The answer to a [`PartLoad`].
    pub fn handle_part_loaded(&mut self, load: PartLoad, body: Body, out: &mut Outputs) {
        if !self.wants_part(load) {
            return; // its queue is gone, or it was purged
        }
        let index = self.write(Record::Part { body }, out);
        self.dead_letters.note_written(index, load.part.bytes.into());
        let queue = self.state.queues.get_mut(&load.queue);
        let copying = queue.and_then(|queue| queue.session.condemned.as_mut()?.copying.as_mut());
        if let Some(copying) = copying {
            copying.copied.push(PartRef { index, bytes: load.part.bytes });
            copying.reading = false;
        }
        self.go_on_with_condemned(load.queue);
    }

    /// The queue is gone, and its condemned with it.
    pub(crate) fn forget_condemned(&mut self, condemned: Option<Box<Condemned>>, out: &mut Outputs) {
        let copied = condemned.and_then(|condemned| condemned.copying).map(|copying| copying.copied);
        let copied: Option<Arc<[PartRef]>> = copied.filter(|copied| !copied.is_empty()).map(Arc::from);
        self.discard(copied.as_ref(), out);
    }

    // ---- those that are refused, and those of transactions

    /// A publish that the queue, which is full, refuses: it dies there without having been in it. `None`: nobody takes its
    /// letter.
    pub(crate) fn refused_letter(&self, id: QueueId, message: &Message, passing: &Passing) -> Option<Held> {
        let queue = self.state.queues.get(&id)?;
        queue.rules.dead_letter.as_ref()?;
        self.address(queue.vhost, self.letter(queue, message, Reason::MaxLength), passing)
    }

    /// The letter of a rejected message that is in memory, and whether it is: see [`Self::condemn`] for the others.
    pub(crate) fn letter_at_hand(
        &self,
        id: QueueId,
        index: Index,
        reason: Reason,
        passing: &Passing,
    ) -> Option<Option<Held>> {
        let queue = self.state.queues.get(&id)?;
        let to = queue.rules.dead_letter.as_ref()?;
        let message = queue.entry(index).filter(|entry| !entry.is_large())?.message()?;
        if !to.exchange.is_empty() && !self.state.vhost(queue.vhost).exchanges.contains_key(&to.exchange) {
            return Some(None);
        }
        Some(self.address(queue.vhost, self.letter(queue, message, reason), passing))
    }
}
