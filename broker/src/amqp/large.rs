//! A large message on its way to a client: its parts are read from the log one by one, each while the one before is being
//! written to the socket. A client that does not read costs the two parts that stand here and in the output.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use understudy_journal::{LogReader, ReadError};
use understudy_protocol::ChannelId;
use understudy_record::{Body, PartRef};

/// Between two looks whether a part is in the log yet, or what happened to a log that was cut.
const PAUSE: Duration = Duration::from_millis(2);

pub(super) struct Streaming {
    pub(super) channel: ChannelId,
    /// As long as somebody holds the list, checkpoints keep its parts, whatever became of the message.
    parts: Arc<[PartRef]>,
    /// What comes after the last part; taken when it is given.
    last: Option<Body>,
    /// The next to be read.
    next: usize,
    reading: Option<JoinHandle<Result<Body, ReadError>>>,
    reader: LogReader,
}

/// Why a part cannot be had: the log is damaged, or the disk fails.
#[derive(Debug, thiserror::Error)]
#[error("a part of a large message, record {}, cannot be read: {reason}", part.index)]
pub(super) struct Unreadable {
    part: PartRef,
    reason: String,
}

impl Streaming {
    pub(super) fn new(channel: ChannelId, parts: Arc<[PartRef]>, last: Body, reader: LogReader) -> Self {
        Self { channel, parts, last: Some(last), next: 0, reading: None, reader }
    }

    /// The last piece has been given.
    pub(super) fn is_over(&self) -> bool {
        self.last.is_none()
    }

    /// The next piece of the body. Nothing is lost if the future is dropped.
    pub(super) async fn next_piece(&mut self) -> Result<Body, Unreadable> {
        loop {
            let Some(&part) = self.parts.get(self.next) else { return Ok(self.last.take().unwrap_or_default()) };
            self.read(part).await;
            let Some(reading) = &mut self.reading else { continue };
            let outcome = reading.await;
            self.reading = None;
            let unreadable = |reason| Unreadable { part, reason };
            match outcome {
                Ok(Ok(body)) if body.len() == part.bytes as usize => {
                    self.next += 1;
                    if let Some(&part) = self.parts.get(self.next).filter(|part| self.is_written(part)) {
                        self.begin(part); // one ahead
                    }
                    return Ok(body);
                }
                Ok(Ok(body)) => {
                    return Err(unreadable(format!("it has {} bytes instead of {}", body.len(), part.bytes)));
                }
                // Too many open files: that passes.
                Ok(Err(ReadError::Failed(failure))) if failure.is_passing() => tokio::time::sleep(PAUSE).await,
                // The role is changing, and the connection about to be closed.
                Ok(Err(ReadError::Changed)) => tokio::time::sleep(PAUSE).await,
                Ok(Err(error)) => return Err(unreadable(error.to_string())),
                Err(error) => return Err(unreadable(error.to_string())),
            }
        }
    }

    /// Begins to read it, once it is in the log: what came in a moment ago may still be on its way there.
    async fn read(&mut self, part: PartRef) {
        if self.reading.is_none() {
            while !self.is_written(&part) {
                tokio::time::sleep(PAUSE).await;
            }
            self.begin(part);
        }
    }

    fn is_written(&self, part: &PartRef) -> bool {
        part.index <= self.reader.last().index
    }

    fn begin(&mut self, part: PartRef) {
        let mut reader = self.reader.clone();
        self.reading = Some(tokio::task::spawn_blocking(move || {
            let frames = reader.messages(&[part.index])?;
            Ok(frames.first().and_then(|frame| frame.part()).cloned().unwrap_or_default())
        }));
    }
}
