//! What a [`Record::Scrub`](crate::Record::Scrub) says of the state, and its bytes. How the numbers are made, and who compares
//! them with what, is not known here.

use crate::record::RecordError;
use crate::wire::{Reader, Writer};
use crate::{Index, QueueId};

/// What part of the state is, as of the record that says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateDigest {
    /// Everything but the queues: exchanges that were declared, the bindings that lead to exchanges, parts that no message has
    /// claimed. Of the queues only their number.
    Topology { exchanges: u64, queues: u64, digest: u64 },
    /// The messages of a queue with indexes from `from` up to, not including, `to`. With `from` 0 the queue itself and the
    /// bindings that lead to it are in the digest too.
    Queue { queue: QueueId, from: Index, to: Index, messages: u64, digest: u64 },
}

/// Of either kind, at least: what bounds a list on the word of its count.
const MIN_BYTES: usize = 25;

const TOPOLOGY: u8 = 1;
const QUEUE: u8 = 2;

pub(crate) fn write_digests(w: &mut Writer<'_>, digests: &[StateDigest]) {
    w.list(digests, |w, digest| match *digest {
        StateDigest::Topology { exchanges, queues, digest } => {
            w.u8(TOPOLOGY).u64(exchanges).u64(queues).u64(digest);
        }
        StateDigest::Queue { queue, from, to, messages, digest } => {
            w.u8(QUEUE).u64(queue.0.0).u64(from.0).u64(to.0).u64(messages).u64(digest);
        }
    });
}

pub(crate) fn read_digests(r: &mut Reader) -> Result<Vec<StateDigest>, RecordError> {
    (0..r.count(MIN_BYTES)?).map(|_| read_digest(r)).collect()
}

fn read_digest(r: &mut Reader) -> Result<StateDigest, RecordError> {
    match r.u8()? {
        TOPOLOGY => Ok(StateDigest::Topology { exchanges: r.u64()?, queues: r.u64()?, digest: r.u64()? }),
        QUEUE => Ok(StateDigest::Queue {
            queue: r.queue()?,
            from: r.index()?,
            to: r.index()?,
            messages: r.u64()?,
            digest: r.u64()?,
        }),
        other => Err(RecordError::Malformed { what: "kind of digest", value: other.into() }),
    }
}
