//! Messages that leave by themselves: after the queue's time to live (`x-message-ttl`) or the message's own (`expiration`),
//! whichever is shorter, wherever they are in the queue. RabbitMQ looks at the head alone, so there a message that lives long
//! keeps those behind it beyond their time.
//!
//! A replica has no clock: the primary writes down what time it is ([`Record::Time`]) before it publishes something that expires,
//! so every replica knows the same deadlines, and another primary goes on with them by its own clock. A message expires when
//! it is ready and due, and it has been offered once: one that lives no time at all goes to a consumer that waits for it.

use std::collections::BTreeSet;
use std::num::NonZeroU64;

use bytes::Bytes;
use understudy_protocol::Properties;
use understudy_record::{Index, QueueId, Record};

use crate::core::Core;
use crate::dead_letter::Reason;
use crate::effect::Outputs;
use crate::queue::Queue;
use crate::session::Unacked;
use crate::settle::{Settlement, dequeue};
use crate::{EXPIRIES_PER_TURN, EXPIRING_SINCE, MAX_EXPIRED_PER_STEP};

/// A queue whose messages cannot leave yet is looked at again after so many milliseconds.
const LATER_MS: u64 = 20;

/// What a message says of its own place in a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wishes {
    pub(crate) priority: u8,
    /// How long it stays, in milliseconds.
    expiration: Option<u64>,
}

impl Wishes {
    /// `properties`: checked.
    pub(crate) fn of(properties: &Bytes) -> Self {
        if !Properties::may_have_priority_or_expiration(properties) {
            return Self::default();
        }
        let properties = Properties::from_raw(properties.clone());
        let expiration = properties.expiration().and_then(|text| {
            let text = text.to_text();
            text.trim_start_matches(['+', '-']).parse().ok()
        });
        Self { priority: properties.priority().unwrap_or(0), expiration }
    }

    /// Deadlines are in milliseconds since 1970, as `wall_ms`, which is 0 where nobody has said what time it is.
    pub(crate) fn deadline(self, queue: &Queue, wall_ms: u64) -> Option<NonZeroU64> {
        let lives = queue.rules.message_ttl.into_iter().chain(self.expiration).min()?;
        (wall_ms > 0).then(|| NonZeroU64::new(wall_ms.saturating_add(lives)))?
    }
}

/// Which queues have something to expire, and when to look.
#[derive(Debug, Default)]
pub(crate) struct Expiries {
    /// Not later than the queue's first deadline; each queue at most once.
    queues: BTreeSet<(u64, QueueId)>,
}

impl Core {
    /// What is published to these queues, or what they remember of it, may expire: every replica is to know from when on.
    pub(crate) fn note_time<'a>(
        &mut self,
        published: impl IntoIterator<Item = (&'a Bytes, &'a [QueueId])>,
        out: &mut Outputs,
    ) {
        if self.time.wall_ms == self.state.wall_ms || self.cluster_version < EXPIRING_SINCE {
            return;
        }
        let expiring = self.state.expiring;
        let expires = |(properties, queues): (&Bytes, &[QueueId])| {
            let ttl = |id: &QueueId| self.state.queues.get(id).is_some_and(|queue| queue.rules.message_ttl.is_some());
            Wishes::of(properties).expiration.is_some() || expiring > 0 && queues.iter().any(ttl)
        };
        let remembered = |id: &QueueId| {
            let queue = self.state.queues.get(id);
            queue.and_then(|queue| queue.keys.as_ref()).is_some_and(|keys| keys.outlive_messages())
        };
        let remembers = |queues: &[QueueId]| self.state.deduplicating > 0 && queues.iter().any(remembered);
        if published.into_iter().any(|(properties, queues)| expires((properties, queues)) || remembers(queues)) {
            self.write(Record::Time { wall_ms: self.time.wall_ms }, out);
        }
    }

    /// More is ready in the queue than before.
    pub(crate) fn watch_deadlines(&mut self, id: QueueId) {
        if let Some(queue) = self.state.queues.get_mut(&id)
            && let Some(first) = queue.first_deadline()
        {
            self.expiries.watch(queue, first.get());
        }
    }

    pub(crate) fn watch_all_deadlines(&mut self) {
        self.expiries = Expiries::default();
        for queue in self.state.queues.values_mut() {
            queue.session.watched_from = None;
            if let Some(first) = queue.first_deadline() {
                self.expiries.watch(queue, first.get());
            }
        }
    }

    /// The message, the next of its queue, is due and must not be delivered.
    pub(crate) fn is_expired(&self, queue: &Queue, index: Index) -> bool {
        // Mostly nothing expires.
        if self.expiries.queues.is_empty() || queue.session.is_fresh(index) {
            return false;
        }
        queue.expires(index).is_some_and(|expires| expires.get() <= self.time.wall_ms)
    }

    /// Takes the next message, which [is due](Self::is_expired), out of its queue.
    pub(crate) fn expire_next(&mut self, id: QueueId, index: Index) {
        let Some(queue) = self.state.queues.get_mut(&id) else { return };
        queue.hand_out(index);
        let dies = queue.rules.dead_letter.is_some();
        self.state.evictable.note(queue);
        if dies {
            self.condemn(id, index, Reason::Expired);
        } else {
            self.note_settled(Unacked { queue: id, index, consumer: None }, Settlement::Dequeue);
        }
    }

    /// The queue's next message is none that is due.
    pub(crate) fn drop_expired_head(&mut self, id: QueueId) {
        while let Some(queue) = self.state.queues.get(&id)
            && let Some((index, _)) = queue.peek()
            && self.is_expired(queue, index)
        {
            self.expire_next(id, index);
        }
    }

    /// Something is to be looked at.
    pub(crate) fn expiries_are_due(&self) -> bool {
        self.expiries.queues.first().is_some_and(|(from, _)| *from <= self.time.wall_ms)
    }

    /// At the end of a step, as much as belongs into one.
    pub(crate) fn expire(&mut self, out: &mut Outputs) {
        let now = self.time.wall_ms;
        let mut work = MAX_EXPIRED_PER_STEP;
        while let Some((_, id)) = self.expiries.queues.first().filter(|(from, _)| *from <= now).copied() {
            if work == 0 {
                return;
            }
            self.expiries.queues.pop_first();
            let Some(queue) = self.state.queues.get_mut(&id) else { continue };
            queue.session.watched_from = None;
            let looked = self.expire_some(id, EXPIRIES_PER_TURN.min(work), out);
            work -= looked.clamp(1, work);
        }
    }

    /// How many were looked at.
    fn expire_some(&mut self, id: QueueId, share: usize, out: &mut Outputs) -> usize {
        let Some(queue) = self.state.queues.get(&id) else { return 0 };
        let (now, committed) = (self.time.wall_ms, self.committed);
        let may_wait = if queue.rules.dead_letter.is_some() { queue.condemned_room() } else { usize::MAX };
        let due: Vec<Index> = queue.due(now).take(share.min(may_wait)).collect();
        let looked = due.len();
        let stays = |index: Index| index > committed || queue.session.is_fresh(index) || queue.is_condemned(index);
        let mut gone: Vec<Index> = due.into_iter().filter(|index| !stays(*index)).collect();
        gone.sort_unstable();
        let stuck = gone.is_empty();
        if queue.rules.dead_letter.is_some() {
            gone.into_iter().for_each(|index| self.condemn(id, index, Reason::Expired));
        } else if !stuck {
            self.write(dequeue(self.state.is_unreplicated(id), id, gone), out);
        }
        let Some(queue) = self.state.queues.get_mut(&id) else { return looked };
        if let Some(first) = queue.first_deadline() {
            // What is due and still here waits for its commit, for its consumer, or for what dies before it.
            let waits = stuck || queue.rules.dead_letter.is_some();
            self.expiries.watch(queue, if waits { first.get().max(now + LATER_MS) } else { first.get() });
        }
        looked
    }

    pub(crate) fn assert_expiries_consistent(&self) {
        for queue in self.state.queues.values() {
            let watched = queue.session.watched_from;
            assert!(watched.is_none_or(|from| self.expiries.queues.contains(&(from, queue.id))));
            let forgotten = queue.first_deadline().is_some() && watched.is_none();
            assert!(!forgotten, "nobody will look at the deadlines of queue {}", queue.id);
        }
    }
}

impl Expiries {
    pub(crate) fn watch(&mut self, queue: &mut Queue, from: u64) {
        let watched = &mut queue.session.watched_from;
        if watched.is_some_and(|watched| watched <= from) {
            return;
        }
        if let Some(later) = watched.replace(from) {
            self.queues.remove(&(later, queue.id));
        }
        self.queues.insert((from, queue.id));
    }

    /// The queue is gone.
    pub(crate) fn forget(&mut self, queue: QueueId, watched_from: Option<u64>) {
        if let Some(from) = watched_from {
            self.queues.remove(&(from, queue));
        }
    }
}
