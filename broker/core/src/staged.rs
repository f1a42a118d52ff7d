//! A transaction's messages on their way into their queues: each is a record of its own, and none is in a queue before the
//! transaction's one decision is there. A history that ends before the decision has nothing of the transaction in it.
//!
//! Nothing stands between a transaction's records: the primary writes them in one go. A backup may have applied some of
//! them, since the commit moves record by record, and so must not be asked for its state then: see
//! [`crate::Core::is_amid_transaction`]. Who began the transaction, and why, is in `transaction`.

use std::sync::Arc;

use bytes::Bytes;
use understudy_record::{Index, Message, PartRef, QueueId, Settled};

use crate::entry::message_bytes;
use crate::expiry::Wishes;
use crate::state::{ApplyError, Arriving, Keep, State, release};

/// A message in no queue yet. Their number is what the primary lets a transaction have.
#[derive(Debug)]
pub(crate) struct Staged {
    pub(crate) index: Index,
    pub(crate) targets: Vec<QueueId>,
    pub(crate) bytes: u32,
    /// Set aside: nobody else can claim them.
    parts: Option<Arc<[PartRef]>>,
    wishes: Wishes,
    /// Where there is a queue that drops duplicates.
    properties: Bytes,
    /// If it stays in memory.
    message: Option<Arc<Message>>,
}

impl State {
    pub(crate) fn stage(
        &mut self,
        index: Index,
        targets: &[QueueId],
        here: &[QueueId],
        message: &Message,
        keep: Keep,
    ) -> Result<(), ApplyError> {
        self.check_publish(index, targets, here, message)?;
        if let Some(parts) = &message.parts {
            self.parts.set_aside(parts);
        }
        let (targets, parts, bytes) = ([targets, here].concat(), message.parts.clone(), message_bytes(message));
        let wishes = Wishes::of(&message.properties);
        let properties = if self.deduplicating > 0 { message.properties.clone() } else { Bytes::new() };
        let message = (keep == Keep::Resident).then(|| Arc::new(message.clone()));
        self.staged.push(Staged { index, targets, bytes, parts, wishes, properties, message });
        Ok(())
    }

    /// All of the transaction takes effect.
    pub(crate) fn decide(&mut self, index: Index, staged: u32, settled: &[Settled]) -> Result<(), ApplyError> {
        if self.staged.len() != staged as usize {
            return Err(ApplyError::Staged { index, expected: staged, found: self.staged.len() });
        }
        if let Some(unknown) = settled.iter().find(|settled| !self.queues.contains_key(&settled.queue)) {
            return Err(ApplyError::UnknownQueue { index, queue: unknown.queue });
        }
        for Settled { queue, dequeued, requeued } in settled {
            let Some(queue) = self.queues.get_mut(queue) else { continue };
            let remembered = queue.remembered();
            for message in dequeued {
                if let Some(entry) = queue.remove(*message) {
                    release(&mut self.tally, &mut self.parts, *message, &entry);
                }
            }
            self.remembered -= remembered - queue.remembered();
            requeued.iter().for_each(|message| queue.give_back(*message, &self.syncs));
        }
        for Staged { index, targets, bytes, parts, wishes, properties, message } in std::mem::take(&mut self.staged) {
            let arriving =
                Arriving { bytes, parts: parts.as_ref(), wishes, properties: &properties, resident: message };
            self.take_in(index, &targets, &[], arriving);
        }
        Ok(())
    }
}
