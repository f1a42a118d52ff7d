//! Reads of the journal for followers that memory no longer serves. Each runs beside the core thread and answers by event.

use tokio::runtime::Handle;
use tokio::sync::mpsc::Sender;
use understudy_journal::LogReader;
use understudy_record::Index;
use understudy_replication::StreamId;

use crate::node::{Event, FollowerEvent};

/// One read, in bytes: a follower far behind gets the log in pieces of this size.
const READ_BYTES: usize = 1 << 20;

pub(crate) struct LogReads {
    reader: LogReader,
    events: Sender<Event>,
    runtime: Handle,
}

impl LogReads {
    pub(crate) fn new(reader: LogReader, events: Sender<Event>, runtime: Handle) -> Self {
        Self { reader, events, runtime }
    }

    pub(crate) fn read(&self, stream: StreamId, from: Index) {
        let (mut reader, events) = (self.reader.clone(), self.events.clone());
        self.runtime.spawn_blocking(move || {
            let frames = reader.read_from(from, READ_BYTES).map_err(|error| error.to_string());
            _ = events.blocking_send(Event::Follower(stream, FollowerEvent::LogRead { from, frames }));
        });
    }
}
