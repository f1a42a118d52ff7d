//! What reads of the journal beside the node give: records for followers that memory no longer serves, messages that queues
//! want back, and backlogs for replicas that start over. May block: for a thread of its own.

use std::time::Duration;

use bytes::BytesMut;
use understudy_core::{BacklogChunk, BacklogItem, BacklogMessage};
use understudy_journal::{LogReader, ReadError};
use understudy_record::{BasePiece, Body, Frame, Index, Message, PartRef, Position, QueueId};

use crate::BacklogReply;

/// One read, in bytes: a follower far behind gets the log in pieces of this size.
pub const READ_BYTES: usize = 1 << 20;

/// Between two tries of a read for which the system lacked something.
const PAUSE: Duration = Duration::from_millis(20);

/// Part of a queue's backlog on its way to a follower.
#[derive(Debug)]
pub struct ChunkToSend {
    pub queue: QueueId,
    pub sync_point: Position,
    pub committed: Index,
    pub as_of: Index,
    pub chunk: BacklogChunk,
}

impl ChunkToSend {
    /// # Errors
    /// If the log does not give what was counted: in words.
    pub fn fill(mut self, reader: &mut LogReader) -> Result<BacklogReply, String> {
        let stored = self.chunk.items.iter().rev().filter_map(|item| match item {
            BacklogItem::Message(BacklogMessage { index, message: None, .. }) => Some(*index),
            BacklogItem::Message(_) | BacklogItem::Part(_) => None,
        });
        let stored: Vec<Index> = stored.collect();
        // Newest first, as they are used.
        let mut read = read_messages(reader, &stored)?.into_iter().rev();
        let gone = |index| format!("message {index} has left the log since it was counted: the catch-up begins anew");
        let mut arena = BytesMut::new();
        let mut frames = Vec::with_capacity(self.chunk.items.len());
        let (mut messages, mut bytes) = (0, 0);
        for item in std::mem::take(&mut self.chunk.items) {
            let piece = match item {
                BacklogItem::Part(PartRef { index, bytes: part_bytes }) => {
                    bytes += u64::from(part_bytes);
                    let body = read_part(reader, index)?.ok_or_else(|| gone(index))?;
                    BasePiece::Part { index, body }
                }
                BacklogItem::Message(BacklogMessage { index, delivery_count, expires_ms, message, .. }) => {
                    let message = match message {
                        Some(message) => (*message).clone(),
                        None => read.next().and_then(|(_, message)| message).ok_or_else(|| gone(index))?,
                    };
                    messages += 1;
                    bytes += message.body.len() as u64 + message.properties.len() as u64; // its parts came before it
                    BasePiece::Message { queue: self.queue, index, delivery_count, expires_ms, message }
                }
            };
            frames.push(Frame::base(self.sync_point, self.committed, &piece, &mut arena));
        }
        let Self { as_of, chunk: BacklogChunk { next, done, .. }, .. } = self;
        Ok(BacklogReply { as_of, frames, messages, bytes, next, done })
    }
}

/// # Errors
/// If it cannot be read: in words.
pub fn read_part(reader: &mut LogReader, index: Index) -> Result<Option<Body>, String> {
    let found = read_patiently(reader, &[index]).map_err(|error| error.to_string())?;
    Ok(found.into_iter().flatten().find_map(|frame| frame.part().cloned()))
}

/// Too many open files say nothing of the disk: what could not be opened for them is tried again until it can be.
fn read_patiently(reader: &mut LogReader, indexes: &[Index]) -> Result<Vec<Option<Frame>>, ReadError> {
    loop {
        match reader.messages_if_there(indexes) {
            Err(ReadError::Failed(failure)) if failure.is_passing() => std::thread::sleep(PAUSE),
            found => return found,
        }
    }
}

/// In the order of `indexes`, which ascend.
///
/// # Errors
/// If they cannot be read: in words.
pub fn read_messages(reader: &mut LogReader, indexes: &[Index]) -> Result<Vec<(Index, Option<Message>)>, String> {
    let frames = read_patiently(reader, indexes).map_err(|error| error.to_string())?;
    let message = |(index, frame): (&Index, Option<Frame>)| {
        let message = frame.map(|frame| frame.detached_message()).transpose();
        message.map(|message| (*index, message.flatten())).map_err(|error| format!("message {index}: {error}"))
    };
    indexes.iter().zip(frames).map(message).collect()
}
