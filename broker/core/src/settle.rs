//! Acknowledgements: what a client says about its deliveries, gathered over a step and written as one record for each
//! queue. Until it is written a settled message still counts as delivered and unacknowledged.

use understudy_record::{Index, QueueId, Record};

use crate::MAX_MESSAGES_PER_RECORD;
use crate::client::Origin;
use crate::command::DeliveryTag;
use crate::core::Core;
use crate::dead_letter::Reason;
use crate::effect::{EffectKind, Outputs};
use crate::error::{self, Failure};
use crate::queue::Queue;
use crate::session::Unacked;
use crate::slots::Slots;

/// Of one queue, in this step.
#[derive(Debug, Default)]
pub(crate) struct Settled {
    dequeued: Vec<Index>,
    requeued: Vec<Index>,
}

impl Settled {
    pub(crate) fn dequeues(&self, index: Index) -> bool {
        self.dequeued.contains(&index)
    }

    pub(crate) fn len(&self) -> usize {
        self.dequeued.len() + self.requeued.len()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Settlement {
    Dequeue,
    Requeue,
    /// It leaves the queue without having been consumed.
    Reject,
}

impl Settlement {
    pub(crate) fn of_nack(requeue: bool) -> Self {
        if requeue { Self::Requeue } else { Self::Reject }
    }
}

/// What becomes of a delivered message, by its queue's rules.
pub(crate) enum Fate {
    Dequeued,
    Requeued,
    Dies(Reason),
}

impl Queue {
    pub(crate) fn fate(&self, index: Index, settlement: Settlement) -> Fate {
        let dies = |reason| if self.rules.dead_letter.is_some() { Fate::Dies(reason) } else { Fate::Dequeued };
        match settlement {
            Settlement::Dequeue => Fate::Dequeued,
            Settlement::Reject => dies(Reason::Rejected),
            Settlement::Requeue => match self.rules.delivery_limit {
                Some(limit) if self.entry(index).is_some_and(|entry| entry.delivery_count >= limit) => {
                    dies(Reason::DeliveryLimit)
                }
                _ => Fate::Requeued,
            },
        }
    }
}

impl Core {
    /// An ack, nack or reject. `multiple`: all deliveries up to the tag; tag 0 then means all there are.
    pub(crate) fn settle(
        &mut self,
        origin: Origin,
        tag: DeliveryTag,
        multiple: bool,
        settlement: Settlement,
    ) -> Result<(), Failure> {
        if self.channel_mut(origin).transaction.is_some() {
            return self.settle_later(origin, tag, multiple, settlement);
        }
        self.settle_now(origin, tag, multiple, settlement)
    }

    fn settle_now(
        &mut self,
        origin: Origin,
        tag: DeliveryTag,
        multiple: bool,
        settlement: Settlement,
    ) -> Result<(), Failure> {
        let channel = self.channel_mut(origin);
        // If they all waited for the channel's limit they all get their chance, not only those acknowledged.
        let was_at_limit = channel.is_at_limit();
        if multiple {
            let settled = take_unacked(&mut channel.unacked, tag, multiple)?;
            settled.into_iter().for_each(|(_, unacked)| self.settle_one(origin, unacked, settlement, !was_at_limit));
        } else {
            let unacked = channel.unacked.remove(tag.0).ok_or_else(|| error::unknown_delivery_tag(tag))?;
            self.settle_one(origin, unacked, settlement, !was_at_limit);
        }
        if was_at_limit {
            self.resume_channel(origin);
        }
        Ok(())
    }

    fn settle_one(&mut self, origin: Origin, unacked: Unacked, settlement: Settlement, resume: bool) {
        self.note_settled(unacked, settlement);
        self.free_limits(origin, unacked, resume);
    }

    /// The delivery counts for no limit any more. `resume`: its consumer may be able to take messages again.
    pub(crate) fn free_limits(&mut self, origin: Origin, unacked: Unacked, resume: bool) {
        let Some(id) = unacked.consumer else { return };
        self.channel_mut(origin).consumer_unacked -= 1;
        if let Some(consumer) = self.consumers.get_mut(&id) {
            consumer.unacked -= 1;
            if resume {
                self.resume_consumer(id);
            }
        }
    }

    /// `basic.recover`: everything unacknowledged on the channel goes back to its queues, but what a transaction settles.
    pub(crate) fn recover(
        &mut self,
        origin: Origin,
        requeue: bool,
        no_wait: bool,
        out: &mut Outputs,
    ) -> Result<(), Failure> {
        if !requeue {
            return Err(error::not_implemented("requeue=false"));
        }
        self.settle_now(origin, DeliveryTag(0), true, Settlement::Requeue)?;
        self.reply_unless(no_wait, origin, EffectKind::BasicRecoverOk, out);
        Ok(())
    }

    /// To be written at the end of the step. A queue that is gone took its messages along.
    pub(crate) fn note_settled(&mut self, unacked: Unacked, settlement: Settlement) {
        let Some(queue) = self.state.queues.get(&unacked.queue) else { return };
        let fate = queue.fate(unacked.index, settlement);
        if let Fate::Dies(reason) = fate {
            return self.condemn(unacked.queue, unacked.index, reason);
        }
        let settled = self.settled.entry(unacked.queue).or_default();
        match fate {
            Fate::Requeued => settled.requeued.push(unacked.index),
            Fate::Dequeued | Fate::Dies(_) => settled.dequeued.push(unacked.index),
        }
    }

    pub(crate) fn write_settled(&mut self, out: &mut Outputs) {
        while let Some((queue, settled)) = self.settled.pop_first() {
            self.write_settlement(queue, settled, out);
        }
    }

    pub(crate) fn write_settled_of(&mut self, queue: QueueId, out: &mut Outputs) {
        if let Some(settled) = self.settled.remove(&queue) {
            self.write_settlement(queue, settled, out);
        }
    }

    fn write_settlement(&mut self, queue: QueueId, settled: Settled, out: &mut Outputs) {
        let here = self.state.is_unreplicated(queue);
        for messages in batches(settled.dequeued) {
            self.write(dequeue(here, queue, messages), out);
        }
        for messages in batches(settled.requeued) {
            let record = match here {
                true => Record::RequeueHere { queue, messages },
                false => Record::Requeue { queue, messages },
            };
            self.write(record, out);
            self.mark_dirty(queue);
            self.watch_length(queue);
            self.watch_deadlines(queue);
        }
    }
}

/// `here`: the queue's messages are not replicated.
pub(crate) fn dequeue(here: bool, queue: QueueId, messages: Vec<Index>) -> Record {
    if here { Record::DequeueHere { queue, messages } } else { Record::Dequeue { queue, messages } }
}

/// The deliveries that an ack, nack or reject speaks of. `multiple`: all up to the tag; tag 0 then means all there are.
pub(crate) fn take_unacked(
    unacked: &mut Slots<Unacked>,
    tag: DeliveryTag,
    multiple: bool,
) -> Result<Vec<(u64, Unacked)>, Failure> {
    let unknown = || error::unknown_delivery_tag(tag);
    if !multiple {
        return Ok(vec![(tag.0, unacked.remove(tag.0).ok_or_else(unknown)?)]);
    }
    if tag.0 != 0 && !unacked.contains(tag.0) {
        return Err(unknown());
    }
    let up_to = if tag.0 == 0 { u64::MAX } else { tag.0 };
    Ok(unacked.take_up_to(up_to, |_| true))
}

fn batches(mut messages: Vec<Index>) -> impl Iterator<Item = Vec<Index>> {
    std::iter::from_fn(move || {
        let rest = messages.split_off(messages.len().min(MAX_MESSAGES_PER_RECORD));
        Some(std::mem::replace(&mut messages, rest)).filter(|batch| !batch.is_empty())
    })
}
