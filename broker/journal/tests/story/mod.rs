//! Frames with contents that tell where they belong, and short ways to open a log and look at it.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use understudy_journal::{Journal, OpenError, Options, Recovery, Storage};
use understudy_record::{
    BasePiece, Epoch, Frame, FrameKind, Index, Message, Position, QueueId, Record, ShortStr, StoreId,
};

/// The id of a store that is begun in a test.
pub(crate) const STORE: StoreId = StoreId(0x5707e);

/// Small, so that a few records fill a segment.
pub(crate) const SMALL: Options = Options { segment_bytes: 1500, retain_bytes: 0, retain_for_followers_bytes: 0 };

pub(crate) fn position(epoch: u64, index: u64) -> Position {
    Position::new(Epoch(epoch), Index(index))
}

fn message(epoch: u64, index: u64, body_bytes: usize) -> Message {
    let text = format!("{epoch}:{index} ");
    let body: Bytes = text.bytes().cycle().take(body_bytes).collect();
    Message {
        exchange: ShortStr::EMPTY,
        routing_key: ShortStr::from_static("orders"),
        properties: Bytes::new(),
        persistent: true,
        parts: None,
        body: body.into(),
    }
}

/// A message at `epoch:index`, stamped as if all before it were committed.
pub(crate) fn sized(epoch: u64, index: u64, body_bytes: usize) -> Frame {
    let record = Record::Publish { targets: vec![QueueId(Index(1))], message: message(epoch, index, body_bytes) };
    Frame::record(position(epoch, index), Index(index - 1), &record, &mut BytesMut::new())
}

/// One of about 100 to 800 bytes.
pub(crate) fn record(epoch: u64, index: u64) -> Frame {
    sized(epoch, index, (index as usize * 37) % 700)
}

pub(crate) fn records(epoch: u64, indexes: impl IntoIterator<Item = u64>) -> Vec<Frame> {
    indexes.into_iter().map(|index| record(epoch, index)).collect()
}

fn base(sync_point: Position, piece: &BasePiece) -> Frame {
    Frame::base(sync_point, sync_point.index, piece, &mut BytesMut::new())
}

/// Opens a base; its epochs are 1, from record 1, and that of the sync point, from its record.
pub(crate) fn base_start(sync_point: Position) -> Frame {
    let mut epochs = vec![position(1, 1)];
    if sync_point.epoch > Epoch(1) {
        epochs.push(sync_point);
    }
    base(sync_point, &BasePiece::Start { sync_point, epochs, in_sync: Vec::new() })
}

pub(crate) fn base_message(sync_point: Position, index: u64) -> Frame {
    let message = message(0, index, 300);
    base(
        sync_point,
        &BasePiece::Message {
            queue: QueueId(Index(1)),
            index: Index(index),
            delivery_count: 0,
            expires_ms: 0,
            message,
        },
    )
}

pub(crate) fn base_end(sync_point: Position, floor: u64) -> Frame {
    base(sync_point, &BasePiece::End { floor: Index(floor) })
}

pub(crate) struct Found {
    pub(crate) journal: Journal,
    pub(crate) recovery: Recovery,
    pub(crate) frames: Vec<Frame>,
}

pub(crate) fn try_open(storage: impl Storage + 'static) -> Result<Found, OpenError> {
    let mut frames = Vec::new();
    let (journal, recovery) = Journal::open(Arc::new(storage), SMALL, STORE, &mut |frame| {
        frames.push(frame);
        Ok(())
    })?;
    Ok(Found { journal, recovery, frames })
}

#[track_caller]
pub(crate) fn open(storage: impl Storage + 'static) -> Found {
    match try_open(storage) {
        Ok(found) => found,
        Err(error) => panic!("{error}"),
    }
}

/// The records among `frames`, for people: `1:1 1:2`.
pub(crate) fn positions(frames: &[Frame]) -> String {
    let shown = frames.iter().map(|frame| match frame.kind {
        FrameKind::Record => frame.position.to_string(),
        FrameKind::Base => format!("base@{}", frame.position),
    });
    shown.collect::<Vec<_>>().join(" ")
}

/// The names of the segments in `storage`, oldest first.
pub(crate) fn segments(storage: &dyn Storage) -> Vec<String> {
    let mut names: Vec<String> =
        storage.list().expect("listing with the power on").into_iter().filter(|name| name.ends_with(".seg")).collect();
    names.sort();
    names
}
