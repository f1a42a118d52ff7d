//! What clients know: each message they sent, whether it was confirmed, who got it, and whether it is settled for good. At the
//! end, and whenever something arrives, it is compared with what must be.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::machine::WALL_CLOCKS_DIFFER;

pub(crate) type MessageId = u64;

/// The queues of the simulated clients.
pub(crate) const WORK: [&str; 2] = ["work-0", "work-1"];
/// Nobody consumes from it; it is purged now and then.
pub(crate) const PILE: &str = "pile";
/// Where what is rejected at the second work queue goes. Nobody consumes from it.
pub(crate) const DEAD: &str = "dead";
/// What is published to it expires there: nobody consumes from it.
pub(crate) const TIMED: &str = "timed";
/// Where what has expired goes. Nobody consumes from it.
pub(crate) const LATE: &str = "late";
/// What is sent again after a lost connection, with the same key, goes to these: one drops what it holds, the other gets what an
/// exchange lets through once. Nobody consumes from them.
pub(crate) const ONCE: [&str; 2] = ["once-in-queue", "once-by-exchange"];
pub(crate) const ONCE_EXCHANGE: &str = "once";
/// Where consumers note how far they have acknowledged.
pub(crate) const MARKS: &str = "marks";
/// To both work queues.
pub(crate) const FANOUT: &str = "both";

pub(crate) const QUEUES: [&str; 9] = [WORK[0], WORK[1], PILE, DEAD, TIMED, LATE, ONCE[0], ONCE[1], MARKS];

#[derive(Debug, Default)]
struct Sent {
    queues: Vec<&'static str>,
    confirmed: bool,
    deliveries: BTreeMap<&'static str, u32>,
    /// Acknowledged, and a later publish of the same channel was confirmed.
    settled: BTreeSet<&'static str>,
    /// A consumer of the second work queue rejected it, and it has not been seen since.
    rejected: bool,
    /// One ever did.
    once_rejected: bool,
    /// How often it was sent so far, where that may be more than once.
    attempts: u8,
    /// Which of these came.
    came_of: BTreeSet<u8>,
    /// When it was sent and has to live, in true time.
    due: Option<Duration>,
    /// A purge may have removed it.
    maybe_purged: bool,
    /// A purge has.
    purged: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Ledger {
    sent: BTreeMap<MessageId, Sent>,
    pub(crate) confirmed: u64,
    pub(crate) delivered: u64,
    pub(crate) redelivered: u64,
    pub(crate) settled: u64,
    pub(crate) died: u64,
    pub(crate) expired: u64,
    pub(crate) sent_again: u64,
    /// Returned by a consumer: delivered again without any fault.
    returned: BTreeSet<(MessageId, &'static str)>,
}

impl Ledger {
    pub(crate) fn publish(&mut self, queues: &[&'static str]) -> MessageId {
        let id = self.sent.len() as MessageId + 1;
        self.sent.insert(id, Sent { queues: queues.to_vec(), ..Sent::default() });
        id
    }

    /// One that expires, at the earliest `due`.
    pub(crate) fn publish_timed(&mut self, due: Duration) -> MessageId {
        let id = self.publish(&[TIMED]);
        if let Some(sent) = self.sent.get_mut(&id) {
            sent.due = Some(due);
        }
        id
    }

    /// Where a message of that number goes whose publisher does not give up: to the queue, or the exchange before it.
    pub(crate) fn publish_once(&mut self) -> MessageId {
        let queue = ONCE[self.sent.len() % 2];
        self.publish(&[queue])
    }

    /// The next attempt at it: the queue it is to come to, and its number.
    pub(crate) fn attempt(&mut self, id: MessageId) -> Option<(&'static str, u8)> {
        let sent = self.sent.get_mut(&id)?;
        sent.attempts = sent.attempts.saturating_add(1);
        self.sent_again += u64::from(sent.attempts > 1);
        Some((sent.queues.first()?, sent.attempts))
    }

    /// Whether it is one that is sent until it is confirmed.
    pub(crate) fn is_insisted_on(&self, id: MessageId) -> bool {
        self.sent.get(&id).is_some_and(|sent| sent.attempts > 0)
    }

    /// # Errors
    /// If two attempts have become two messages.
    pub(crate) fn came_of(&mut self, id: MessageId, attempt: u8) -> Result<(), String> {
        let Some(sent) = self.sent.get_mut(&id) else { return Ok(()) };
        sent.came_of.insert(attempt);
        match sent.came_of.len() {
            0 | 1 => Ok(()),
            _ => Err(format!("message {id} came as attempts {:?}: each is a message of its own", sent.came_of)),
        }
    }

    pub(crate) fn published(&self) -> u64 {
        self.sent.len() as u64
    }

    pub(crate) fn confirm(&mut self, id: MessageId) {
        if let Some(sent) = self.sent.get_mut(&id) {
            self.confirmed += u64::from(!std::mem::replace(&mut sent.confirmed, true));
        }
    }

    /// # Errors
    /// If it may not arrive, or not so: in words.
    pub(crate) fn deliver(
        &mut self,
        id: MessageId,
        queue: &'static str,
        redelivered: bool,
        now: Duration,
    ) -> Result<(), String> {
        let Some(sent) = self.sent.get_mut(&id) else {
            return Err(format!("message {id} came from {queue}, and nobody sent it"));
        };
        if queue == DEAD {
            return self.deliver_dead(id);
        }
        if queue == LATE {
            return self.deliver_late(id, now);
        }
        if !sent.queues.contains(&queue) {
            return Err(format!("message {id} came from {queue}, and was sent to {:?}", sent.queues));
        }
        if sent.settled.contains(&queue) {
            return Err(format!("message {id} of {queue} was settled for good and came again"));
        }
        if queue == WORK[1] {
            if sent.deliveries.contains_key(DEAD) {
                return Err(format!("message {id} died and came again from {queue}"));
            }
            sent.rejected = false; // its rejection was lost
        }
        if sent.purged && queue == PILE {
            return Err(format!("message {id} of {queue} was purged and came again"));
        }
        let before = sent.deliveries.entry(queue).or_default();
        if *before > 0 && !redelivered {
            return Err(format!("message {id} of {queue} came again without being marked as redelivered"));
        }
        self.delivered += 1;
        self.redelivered += u64::from(*before > 0);
        *before += 1;
        Ok(())
    }

    fn deliver_dead(&mut self, id: MessageId) -> Result<(), String> {
        let Some(sent) = self.sent.get_mut(&id) else { return Ok(()) };
        if !sent.once_rejected || sent.settled.contains(WORK[1]) {
            return Err(format!("message {id} died, and nobody rejected it"));
        }
        if sent.deliveries.insert(DEAD, 1).is_some() {
            return Err(format!("message {id} died twice"));
        }
        sent.rejected = false;
        self.died += 1;
        Ok(())
    }

    fn deliver_late(&mut self, id: MessageId, now: Duration) -> Result<(), String> {
        let Some(sent) = self.sent.get_mut(&id) else { return Ok(()) };
        let Some(due) = sent.due else { return Err(format!("message {id} expired, and was to live for ever")) };
        if now + WALL_CLOCKS_DIFFER < due {
            return Err(format!("message {id} expired and came at {now:?}, and was to live until {due:?}"));
        }
        if sent.deliveries.insert(LATE, 1).is_some() {
            return Err(format!("message {id} expired twice"));
        }
        self.expired += 1;
        Ok(())
    }

    /// Whether messages that were confirmed have still to expire, or to be fetched from where they then are.
    pub(crate) fn awaits_expiry(&self) -> bool {
        self.sent.values().any(|sent| sent.due.is_some() && sent.confirmed && !sent.deliveries.contains_key(LATE))
    }

    /// A consumer of the second work queue does not want it.
    pub(crate) fn reject(&mut self, id: MessageId) {
        if let Some(sent) = self.sent.get_mut(&id) {
            (sent.rejected, sent.once_rejected) = (true, true);
        }
    }

    pub(crate) fn return_it(&mut self, id: MessageId, queue: &'static str) {
        self.returned.insert((id, queue));
    }

    pub(crate) fn settle(&mut self, id: MessageId, queue: &'static str) {
        if let Some(sent) = self.sent.get_mut(&id) {
            self.settled += u64::from(sent.settled.insert(queue));
        }
    }

    /// A purge of the pile is on its way: what is confirmed now will be gone once it is answered.
    pub(crate) fn purge_begins(&mut self) -> Vec<MessageId> {
        let piled = self.sent.iter_mut().filter(|(_, sent)| sent.queues.contains(&PILE));
        piled.filter(|(_, sent)| sent.confirmed).map(|(id, _)| *id).collect()
    }

    /// From now on, until the purge is known to have failed or not, any of the pile's may be gone.
    pub(crate) fn purge_may_take_all(&mut self) {
        let piled = self.sent.values_mut().filter(|sent| sent.queues.contains(&PILE));
        piled.for_each(|sent| sent.maybe_purged = true);
    }

    pub(crate) fn purged(&mut self, ids: &[MessageId]) {
        for id in ids {
            if let Some(sent) = self.sent.get_mut(id) {
                sent.purged = true;
            }
        }
    }

    /// After everything that is left was drained.
    ///
    /// # Errors
    /// If a confirmed message did not come. `fair`: nothing went wrong in this run, so each came once.
    pub(crate) fn check_drained(&self, fair: bool) -> Result<(), String> {
        for (id, sent) in &self.sent {
            if sent.rejected {
                return Err(format!("message {id} was rejected, and is neither among the dead nor came again"));
            }
            for queue in &sent.queues {
                let queue = if *queue == TIMED { &LATE } else { queue };
                let came = sent.deliveries.get(queue).copied().unwrap_or(0);
                let excused = *queue == PILE && sent.maybe_purged;
                if came == 0 && sent.confirmed && !excused {
                    return Err(format!("message {id} of {queue} was confirmed and is lost"));
                }
                if fair && came > 1 && !self.returned.contains(&(*id, *queue)) {
                    return Err(format!("message {id} of {queue} came {came} times though nothing went wrong"));
                }
            }
        }
        Ok(())
    }
}
