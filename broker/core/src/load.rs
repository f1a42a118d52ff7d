//! Reading back: when a queue asks for messages that are not in memory, and what happens when they come.
//!
//! A queue asks when somebody waits for its next message (a consumer in turn, or a `basic.get`), and ahead of that while it
//! hands out. It has one batch on the way at a time; all queues together are bounded too, and those beyond take turns. Who
//! reads, and from where, is the caller's part; what comes next is in `ahead`.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use understudy_record::{Index, Message, PartRef, QueueId};

use crate::MAX_LOADING_BYTES;
use crate::ahead::Batch;
use crate::client::Origin;
use crate::core::Core;
use crate::effect::{EffectKind, Outputs};
use crate::entry::Entry;
use crate::session::{Answer, LoadingGet, Unacked};
use crate::settle::Settlement;

/// Please read these messages of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Load {
    pub queue: QueueId,
    /// Ascending, at most [`crate::LOAD_MESSAGES`], all committed.
    pub indexes: Vec<Index>,
}

/// Please read this part of a large message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartLoad {
    /// For whose sake.
    pub queue: QueueId,
    pub part: PartRef,
}

/// What is being read back for one queue.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) bytes: u64,
    messages: usize,
}

/// A `basic.get` whose reply waits for its message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitingGet {
    pub(crate) index: Index,
    /// What the message weighs.
    bytes: u32,
    origin: Origin,
    /// In the batch that is on its way for its sake. It may be there by chance too.
    asked: bool,
}

/// What is being read back for all queues.
#[derive(Debug, Default)]
pub(crate) struct Loads {
    bytes: u64,
    /// Queues that ask when others have what they asked for; each at most once.
    wanting: VecDeque<QueueId>,
    /// Queues with a get, or a condemned one, of a stored message that is not committed; only a new primary has such.
    pub(crate) uncommitted: BTreeSet<(Index, QueueId)>,
}

impl Loads {
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Core {
    /// Whether the message is still in the queue: if so, the log must have it.
    pub fn holds(&self, queue: QueueId, index: Index) -> bool {
        self.state.queues.get(&queue).is_some_and(|queue| queue.contains(index))
    }

    /// The answer to a [`Load`]: the messages, in any order. Those that left the queue meanwhile are ignored, as is an answer
    /// for a queue that is gone. What is missing of those still there is asked for again, so whoever cannot read a message
    /// must not answer, and give up the role. Gets that waited are answered; deliveries follow with [`Core::deliver`].
    pub fn handle_loaded(&mut self, queue: QueueId, mut messages: Vec<(Index, Message)>, out: &mut Outputs) {
        let Some(known) = self.state.queues.get_mut(&queue) else { return };
        let Some(asked) = known.session.loading.take() else { return };
        if messages.len() < asked.messages {
            known.forget_ahead();
        }
        // All who have a list of parts have the same one: see `parts`. Without one nothing keeps the parts in the log: a get
        // that took such a message, and acknowledged it before it came, finds nothing.
        messages.retain_mut(|(index, message)| {
            let parts = message.parts.as_ref().and_then(|_| self.state.parts.of(*index)).cloned();
            let kept = message.parts.is_none() || parts.is_some();
            message.parts = parts;
            kept
        });
        let gets = std::mem::take(&mut known.session.gets);
        self.loads.bytes -= asked.bytes;
        let answers = self.take_messages(queue, messages, gets);
        self.go_on_with_condemned(queue);
        answers.into_iter().for_each(|(get, message)| self.answer_get(queue, get, message, None, out));
        self.mark_dirty(queue);
        self.ask_for_messages(queue, out);
        self.serve_wanting(out);
    }

    /// Returns which gets can be answered, and by what. What they took is not kept in memory besides.
    fn take_messages(
        &mut self,
        id: QueueId,
        mut messages: Vec<(Index, Message)>,
        gets: Vec<WaitingGet>,
    ) -> Vec<(WaitingGet, Option<Arc<Message>>)> {
        messages.sort_unstable_by_key(|(index, _)| *index);
        let mut answers = Vec::with_capacity(gets.len());
        for get in gets {
            if let Ok(place) = messages.binary_search_by_key(&get.index, |(index, _)| *index) {
                answers.push((get, Some(Arc::new(messages[place].1.clone()))));
                continue;
            }
            // Nothing is left to be read of a message that was settled before its get was answered.
            match self.state.queues.get_mut(&id) {
                Some(queue) if !get.asked || queue.contains(get.index) => {
                    queue.session.gets.push(WaitingGet { asked: false, ..get });
                }
                _ => answers.push((get, None)),
            }
        }
        for (index, message) in messages {
            let condemned = self.state.queues.get_mut(&id).map(|queue| queue.keep_condemned(index, message));
            if let Some(Some(message)) = condemned {
                self.state.load(id, index, message);
            }
        }
        answers
    }

    /// The queue may have to read something back: asks for it, unless a batch is on its way.
    pub(crate) fn ask_for_messages(&mut self, id: QueueId, out: &mut Outputs) {
        let committed = self.committed;
        let Some(queue) = self.state.queues.get_mut(&id) else { return };
        let session = &queue.session;
        if session.loading.is_some() || session.wanting {
            return;
        }
        let gets = session.gets.iter().any(|get| get.index <= committed);
        let consumed = !session.consumers.is_empty() && !queue.has_enough_ahead();
        let condemned = queue.waits_for_condemned(committed);
        if !gets && !consumed && !condemned {
            return;
        }
        if self.loads.bytes >= MAX_LOADING_BYTES {
            queue.session.wanting = true;
            self.loads.wanting.push_back(id);
            return;
        }
        let mut batch = Batch::of(queue.reach);
        for get in queue.session.gets.iter_mut().filter(|get| get.index <= committed) {
            get.asked = batch.add(get.index, get.bytes);
            if !get.asked {
                break;
            }
        }
        if condemned {
            queue.ask_for_condemned(committed, &mut batch);
        }
        if gets || consumed {
            queue.look_ahead(committed, Some(&mut batch));
        }
        if batch.indexes.is_empty() {
            return;
        }
        queue.reach.grow();
        batch.indexes.sort_unstable();
        batch.indexes.dedup();
        queue.session.loading = Some(Asked { bytes: batch.bytes, messages: batch.indexes.len() });
        self.loads.bytes += batch.bytes;
        out.loads.push(Load { queue: id, indexes: batch.indexes });
    }

    /// Messages that gets took are committed: they can be read back.
    pub(crate) fn ask_for_committed(&mut self, out: &mut Outputs) {
        while let Some((_, queue)) =
            self.loads.uncommitted.first().filter(|(index, _)| *index <= self.committed).copied()
        {
            self.loads.uncommitted.pop_first();
            self.ask_for_messages(queue, out);
        }
    }

    /// The others have what they asked for, or part of it.
    fn serve_wanting(&mut self, out: &mut Outputs) {
        while self.loads.bytes < MAX_LOADING_BYTES {
            let Some(id) = self.loads.wanting.pop_front() else { break };
            let Some(queue) = self.state.queues.get_mut(&id) else { continue };
            queue.session.wanting = false;
            self.ask_for_messages(id, out);
            self.mark_dirty(id);
        }
    }

    // ---- basic.get

    /// A get took a message that is stored. Without acknowledgement it stays with its queue until it is read, so that it is
    /// not lost if it never comes to that.
    pub(crate) fn take_stored(
        &mut self,
        origin: Origin,
        unacked: Unacked,
        no_ack: bool,
        (redelivered, delivery_count): (bool, u32),
        message_count: u32,
    ) -> Answer {
        let Unacked { queue, index, .. } = unacked;
        let now = self.time.steady;
        let channel = self.channel_mut(origin);
        let delivery_tag = channel.take_tag();
        if !no_ack {
            channel.delivery_times.note(delivery_tag.0, now);
            channel.unacked.push_back(delivery_tag.0, unacked);
        }
        if let Some(queue) = self.state.queues.get_mut(&queue) {
            let bytes = queue.entry(index).map_or(0, Entry::memory_bytes);
            queue.session.gets.push(WaitingGet { index, bytes, origin, asked: false });
        }
        if index > self.committed {
            self.loads.uncommitted.insert((index, queue));
        }
        Answer::Loading(LoadingGet { queue, index, no_ack, delivery_tag, redelivered, delivery_count, message_count })
    }

    /// `None`: the message is gone; `gate` is the record by which it went.
    fn answer_get(
        &mut self,
        queue: QueueId,
        get: WaitingGet,
        message: Option<Arc<Message>>,
        gate: Option<Index>,
        out: &mut Outputs,
    ) {
        let WaitingGet { index, origin, .. } = get;
        let connection = self.connections.get_mut(&origin.connection);
        let Some(channel) = connection.and_then(|connection| connection.channels.get_mut(&origin.channel)) else {
            return;
        };
        let waiting = channel.replies.iter_mut().find_map(|reply| match reply.answer {
            Answer::Loading(get) if (get.queue, get.index) == (queue, index) => Some((reply, get)),
            _ => None,
        });
        let Some((reply, get)) = waiting else { return };
        let LoadingGet { delivery_tag, redelivered, delivery_count, message_count, no_ack, .. } = get;
        reply.gate = gate.map_or(reply.gate, |gate| gate.max(reply.gate));
        reply.answer = Answer::Known(match message {
            Some(message) => {
                EffectKind::BasicGetOk { delivery_tag, redelivered, delivery_count, message_count, message }
            }
            None => EffectKind::BasicGetEmpty,
        });
        if no_ack {
            self.note_settled(Unacked { queue, index, consumer: None }, Settlement::Dequeue);
        }
        self.release_replies(origin, out);
    }

    /// The channel is gone before these gets, all that it had, were answered. There may be very many.
    pub(crate) fn forget_gets(&mut self, origin: Origin, gets: impl Iterator<Item = LoadingGet>) {
        let mut queues = BTreeSet::new();
        for LoadingGet { queue, index, no_ack, .. } in gets {
            queues.insert(queue);
            if no_ack {
                self.note_settled(Unacked { queue, index, consumer: None }, Settlement::Requeue);
            }
        }
        for queue in queues {
            if let Some(queue) = self.state.queues.get_mut(&queue) {
                queue.session.gets.retain(|other| other.origin != origin);
            }
        }
    }

    /// The queue is deleted: what it asked for means nothing any more, and its gets find nothing.
    pub(crate) fn end_loads_of(
        &mut self,
        id: QueueId,
        loading: Option<Asked>,
        wanting: bool,
        gets: Vec<WaitingGet>,
        deleted: Index,
        out: &mut Outputs,
    ) {
        if wanting {
            self.loads.wanting.retain(|other| *other != id);
        }
        gets.into_iter().for_each(|get| self.answer_get(id, get, None, Some(deleted), out));
        if let Some(asked) = loading {
            self.loads.bytes -= asked.bytes;
            self.serve_wanting(out);
        }
    }
}
