//! What a peer sends or a disk holds: frames, records, a whole log.

use std::sync::{Arc, OnceLock};

use bytes::{Bytes, BytesMut};
use understudy_core::Core;
use understudy_journal::sim::SimStorage;
use understudy_journal::{Journal, Options, Storage};
use understudy_record::{
    BasePiece, Body, Epoch, Frame, Index, Message, Position, QueueId, Record, Rope, ShortStr, StoreId,
};

use crate::input::Input;

const STORE: StoreId = StoreId(0x5707e);
const OPTIONS: Options = Options { segment_bytes: 1500, retain_bytes: 0, retain_for_followers_bytes: 0 };

/// Records and base pieces one after another, to a replica; and a stream of frames, whose checksums may be made right.
pub fn record(octets: &[u8]) {
    let mut input = Input::new(octets);
    if input.octet() & 1 == 1 {
        return frames(input);
    }
    let mut replica = Core::new(1);
    while !input.is_empty() {
        let (kind, meta, body) = (input.octet(), input.piece(), input.piece());
        let (meta, body) = (Bytes::copy_from_slice(meta), Body::new(Bytes::copy_from_slice(body)));
        if kind & 1 == 0 {
            let Ok(record) = Record::decode(meta, body) else { continue };
            let mut once = BytesMut::new();
            record.encode_meta(&mut once);
            let again = Record::decode(once.freeze(), record.body()).expect("what was written can be read");
            assert_eq!(again, record);
            if let Some(followed) = record.for_followers() {
                _ = replica.apply(replica.last_index().next(), &followed);
            }
            let at = if kind & 2 == 0 { replica.last_index().next() } else { Index(u64::from(kind) >> 2) };
            _ = replica.apply(at, &record);
        } else {
            let Ok(piece) = BasePiece::decode(meta, body) else { continue };
            let mut once = BytesMut::new();
            piece.encode_meta(&mut once);
            let again = BasePiece::decode(once.freeze(), piece.body()).expect("what was written can be read");
            assert_eq!(again, piece);
            _ = replica.apply_base(piece);
        }
        _ = replica.take_difference();
    }
}

fn frames(mut input: Input<'_>) {
    let (mode, step) = (input.octet(), usize::from(input.octet()).max(1));
    let mut octets = input.rest().to_vec();
    if mode & 1 == 1 {
        right_checksums(&mut octets, 0);
    }
    let mut stream = Rope::default();
    let mut frames = 0;
    for piece in octets.chunks(step) {
        stream.push(Bytes::copy_from_slice(piece));
        loop {
            match Frame::take(&mut stream) {
                Ok(Some(frame)) => {
                    frames += 1;
                    let (record, base) = (frame.decode_record(), frame.decode_base());
                    assert!(!(record.is_ok() && frame.since().is_none() && base.is_err() && frame.is_empty()));
                    _ = (frame.message_index(), frame.since(), frame.part(), frame.in_sync_set());
                    _ = frame.detached_message();
                    assert_eq!(frame.detached(), frame);
                    _ = frame.for_followers();
                }
                Ok(None) => break,
                Err(_) => return,
            }
        }
    }
    assert!(frames <= octets.len() / understudy_record::FRAME_HEADER_BYTES);
}

/// Of the frames that follow one another from `at` on, as far as they are whole.
fn right_checksums(octets: &mut [u8], mut at: usize) {
    while let Some(header) = octets.get(at..at + understudy_record::FRAME_HEADER_BYTES) {
        let Ok(length) = understudy_record::peek_header(header.try_into().expect("as long as a header")) else {
            return;
        };
        let Some(frame) = octets.get_mut(at..at + length) else { return };
        let checksum = crc32c::crc32c(&frame[4..]).to_le_bytes();
        frame[..4].copy_from_slice(&checksum);
        at += length;
    }
}

/// A log of two segments with some octets changed, or one file of it replaced.
pub fn journal(octets: &[u8]) {
    static LOG: OnceLock<SimStorage> = OnceLock::new();
    let storage = LOG.get_or_init(log).fork();
    let mut names = storage.list().expect("a directory");
    names.sort();
    let mut input = Input::new(octets);
    let mode = input.octet();
    let name = names[usize::from(input.octet()) % names.len()].clone();
    let mut file = storage.read(&name).expect("a file that is listed");
    if mode & 1 == 0 {
        while !input.is_empty() && !file.is_empty() {
            let at = usize::from(u16::from_be_bytes([input.octet(), input.octet()])) % file.len();
            file[at] ^= input.octet();
        }
    } else {
        let keep = usize::from(u16::from_be_bytes([input.octet(), input.octet()])).min(file.len());
        file.truncate(keep);
        file.extend_from_slice(input.rest());
    }
    if mode & 2 == 2 {
        // Behind the segment's own header.
        right_checksums(&mut file, usize::from(mode >> 2));
    }
    storage.overwrite(&name, &file);
    let mut core = Core::new(1);
    let mut visit = |frame: Frame| {
        match frame.kind {
            understudy_record::FrameKind::Record => {
                if let Ok(record) = frame.decode_record() {
                    _ = core.apply(frame.position.index, &record);
                }
            }
            understudy_record::FrameKind::Base => {
                if let Ok(piece) = frame.decode_base() {
                    _ = core.apply_base(piece);
                }
            }
        }
        Ok(())
    };
    _ = understudy_journal::inspect::inspect(&storage, understudy_journal::inspect::Depth::Everything);
    let storage = Arc::new(storage);
    let Ok((mut journal, _)) = Journal::open(storage.clone(), OPTIONS, STORE, &mut visit) else { return };
    // It can be gone on with, and is right afterwards.
    let next = Position::new(journal.last().epoch.max(Epoch(2)), journal.last().index.next());
    if next.index.0 < u64::MAX / 2
        && next.epoch.0 < u64::MAX / 2
        && journal.append(&[message(next)]).is_ok()
        && journal.sync().is_ok()
    {
        let mut reader = journal.reader();
        assert!(reader.read_from(next.index, 1 << 20).is_ok_and(|frames| frames.len() == 1));
        drop(journal);
        let again = Journal::open(storage, OPTIONS, STORE, &mut |_| Ok(()));
        let (again, _) = again.expect("a log that was gone on with");
        assert_eq!(again.last(), next);
    }
}

fn message(position: Position) -> Frame {
    let message = Message {
        exchange: ShortStr::EMPTY,
        routing_key: ShortStr::from_static("q"),
        properties: Bytes::from_static(&[0, 0]),
        persistent: true,
        parts: None,
        body: Body::new(Bytes::from(vec![7; 60])),
    };
    let record = Record::Publish { targets: vec![QueueId(Index(1))], message };
    Frame::record(position, Index(0), &record, &mut BytesMut::new())
}

fn log() -> SimStorage {
    let storage = SimStorage::new();
    let (mut journal, _) =
        Journal::open(Arc::new(storage.clone()), OPTIONS, STORE, &mut |_| Ok(())).expect("a new log");
    for index in 1..20 {
        journal.append(&[message(Position::new(Epoch(1), Index(index)))]).expect("room");
    }
    journal.sync().expect("a disk that works");
    drop(journal);
    storage
}
