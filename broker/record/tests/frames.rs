//! Any record, as a frame through any stream and back; and any damage to it: never a panic, never another frame.

use bytes::{Bytes, BytesMut};
use proptest::collection::vec;
use proptest::prelude::*;
use understudy_record::{
    BasePiece, Binding, Body, Destination, Epoch, ExchangeKind, ExchangeSpec, FRAME_HEADER_BYTES, Frame, FrameError,
    HeldKey, HeldMessage, Identity, Index, KeyedBy, Member, Message, MessageKey, PartRef, Position, ProcessId, QueueId,
    QueueSpec, Record, ReplicaName, Replicate, Rope, SeenKey, Settled, ShortStr, StoreId, VhostId, peek_header,
};

fn bytes(most: usize) -> impl Strategy<Value = Bytes> {
    vec(any::<u8>(), 0..most).prop_map(Bytes::from)
}

fn short() -> impl Strategy<Value = ShortStr> {
    bytes(256).prop_map(|bytes| ShortStr::new(bytes).expect("at most 255 bytes"))
}

fn body() -> impl Strategy<Value = Body> {
    vec(bytes(200), 0..4).prop_map(|pieces| {
        let mut body = Body::default();
        pieces.into_iter().for_each(|piece| body.push(piece));
        body
    })
}

fn index() -> impl Strategy<Value = Index> {
    any::<u64>().prop_map(Index)
}

fn queue() -> impl Strategy<Value = QueueId> {
    index().prop_map(QueueId)
}

fn position() -> impl Strategy<Value = Position> {
    (any::<u64>(), index()).prop_map(|(epoch, index)| Position::new(Epoch(epoch), index))
}

fn name() -> impl Strategy<Value = ReplicaName> {
    "[a-z0-9-]{1,63}".prop_map(|text| ReplicaName::new(&text))
}

fn identity() -> impl Strategy<Value = Identity> {
    (name(), any::<u128>(), any::<u64>()).prop_map(|(name, store, process)| Identity {
        name,
        store: StoreId(store),
        process: ProcessId(process),
    })
}

fn members() -> impl Strategy<Value = Vec<Member>> {
    vec((identity(), any::<bool>()).prop_map(|(identity, with_process)| identity.member(with_process)), 0..5)
}

fn message() -> impl Strategy<Value = Message> {
    (short(), short(), bytes(100), any::<bool>(), parts(), body()).prop_map(
        |(exchange, routing_key, properties, persistent, parts, body)| Message {
            exchange,
            routing_key,
            properties,
            persistent,
            parts: Some(parts).filter(|parts| !parts.is_empty()).map(Into::into),
            body,
        },
    )
}

fn exchange() -> impl Strategy<Value = ExchangeSpec> {
    let kinds = [
        ExchangeKind::Direct,
        ExchangeKind::Fanout,
        ExchangeKind::Topic,
        ExchangeKind::Headers,
        ExchangeKind::MessageDeduplication,
    ];
    (short(), prop::sample::select(kinds.to_vec()), any::<[bool; 4]>(), replicate(), bytes(50)).prop_map(
        |(name, kind, [durable, auto_delete, internal, deduplicates], replicate, arguments)| ExchangeSpec {
            name,
            kind,
            durable,
            auto_delete,
            internal,
            replicate,
            deduplicates: deduplicates || kind == ExchangeKind::MessageDeduplication,
            arguments,
        },
    )
}

fn queue_spec() -> impl Strategy<Value = QueueSpec> {
    (short(), any::<[bool; 4]>(), replicate(), bytes(50)).prop_map(
        |(name, [durable, exclusive, auto_delete, deduplicates], replicate, arguments)| QueueSpec {
            name,
            durable,
            exclusive,
            auto_delete,
            replicate,
            deduplicates,
            arguments,
        },
    )
}

fn binding() -> impl Strategy<Value = Binding> {
    let destination = prop_oneof![queue().prop_map(Destination::Queue), short().prop_map(Destination::Exchange)];
    (short(), destination, short(), bytes(50)).prop_map(|(source, destination, routing_key, arguments)| Binding {
        source,
        destination,
        routing_key,
        arguments,
    })
}

fn settled() -> impl Strategy<Value = Settled> {
    let indexes = || vec(index(), 0..20);
    (queue(), indexes(), indexes()).prop_map(|(queue, dequeued, requeued)| Settled { queue, dequeued, requeued })
}

fn replicate() -> impl Strategy<Value = Replicate> {
    prop_oneof![Just(Replicate::All), Just(Replicate::Configuration), Just(Replicate::Nothing)]
}

fn record() -> impl Strategy<Value = Record> {
    let indexes = || vec(index(), 0..20);
    prop_oneof![
        (identity(), members()).prop_map(|(primary, in_sync)| Record::EpochStart { primary, in_sync }),
        members().prop_map(|members| Record::InSyncSet { members }),
        exchange().prop_map(Record::ExchangeDeclare),
        short().prop_map(|name| Record::ExchangeDelete { name }),
        queue_spec().prop_map(Record::QueueDeclare),
        queue().prop_map(|queue| Record::QueueDelete { queue }),
        binding().prop_map(Record::Bind),
        binding().prop_map(Record::Unbind),
        (vec(queue(), 0..9), message()).prop_map(|(targets, message)| Record::Publish { targets, message }),
        (vec(queue(), 0..9), message()).prop_map(|(targets, message)| Record::Staged { targets, message }),
        (any::<u32>(), vec(settled(), 0..5)).prop_map(|(staged, settled)| Record::Transaction { staged, settled }),
        (vec(queue(), 0..9), vec(queue(), 0..9), message()).prop_map(|(targets, here, message)| Record::PublishHere {
            targets,
            here,
            message
        }),
        (vec(queue(), 0..9), vec(queue(), 0..9), message()).prop_map(|(targets, here, message)| Record::StagedHere {
            targets,
            here,
            message
        }),
        (queue(), indexes()).prop_map(|(queue, messages)| Record::DequeueHere { queue, messages }),
        (queue(), indexes()).prop_map(|(queue, messages)| Record::RequeueHere { queue, messages }),
        (queue(), index(), indexes()).prop_map(|(queue, up_to, except)| Record::PurgeHere { queue, up_to, except }),
        (vec(seen(), 0..9), any::<bool>()).prop_map(|(keys, alone)| Record::Seen { keys, alone }),
        Just(Record::Withheld),
        any::<u64>().prop_map(|wall_ms| Record::Time { wall_ms }),
        body().prop_map(|body| Record::Part { body }),
        indexes().prop_map(|parts| Record::Discard { parts }),
        (queue(), indexes()).prop_map(|(queue, messages)| Record::Dequeue { queue, messages }),
        (queue(), indexes()).prop_map(|(queue, messages)| Record::Requeue { queue, messages }),
        (queue(), index(), indexes()).prop_map(|(queue, up_to, except)| Record::Purge { queue, up_to, except }),
    ]
}

fn seen() -> impl Strategy<Value = SeenKey> {
    (index(), short(), any::<[u8; 16]>(), any::<u64>()).prop_map(|(vhost, exchange, key, expires_ms)| SeenKey {
        vhost: VhostId(vhost),
        exchange,
        key: MessageKey(key),
        expires_ms,
    })
}

fn keys() -> impl Strategy<Value = BasePiece> {
    let of = prop_oneof![queue().prop_map(KeyedBy::Queue), short().prop_map(KeyedBy::Exchange)];
    let held = (any::<u64>(), any::<[u8; 16]>(), any::<u64>());
    let held = held.prop_map(|(place, key, expires_ms)| HeldKey { place, key: MessageKey(key), expires_ms });
    (of, vec(held, 0..9)).prop_map(|(of, keys)| BasePiece::Keys { of, keys })
}

/// Newest first, each index once.
fn held() -> impl Strategy<Value = Vec<HeldMessage>> {
    vec((any::<u64>(), any::<u32>(), any::<u32>(), 0..4_u8, 0..3_u64), 0..40).prop_map(|mut messages| {
        messages.sort_unstable_by_key(|(index, ..)| std::cmp::Reverse(*index));
        messages.dedup_by_key(|(index, ..)| *index);
        let messages = messages.into_iter().filter(|(index, ..)| *index < u64::MAX);
        messages
            .map(|(index, delivery_count, bytes, priority, expires_ms)| {
                let expires_ms = expires_ms * 1_780_000_000_000;
                HeldMessage { index: Index(index), delivery_count, bytes, priority, expires_ms }
            })
            .collect()
    })
}

/// In the order of their indexes, each once, none of them 0.
fn parts() -> impl Strategy<Value = Vec<PartRef>> {
    prop::collection::btree_map(1..=u64::MAX, any::<u32>(), 0..9)
        .prop_map(|parts| parts.into_iter().map(|(index, bytes)| PartRef { index: Index(index), bytes }).collect())
}

fn piece() -> impl Strategy<Value = BasePiece> {
    prop_oneof![
        (position(), vec(position(), 0..6), members()).prop_map(|(sync_point, epochs, in_sync)| BasePiece::Start {
            sync_point,
            epochs,
            in_sync
        }),
        exchange().prop_map(BasePiece::Exchange),
        (queue(), queue_spec()).prop_map(|(id, spec)| BasePiece::Queue { id, spec }),
        binding().prop_map(BasePiece::Binding),
        Just(BasePiece::TopologyEnd),
        (queue(), index(), any::<u32>(), 0..3_u64, message()).prop_map(
            |(queue, index, delivery_count, expires_ms, message)| {
                BasePiece::Message { queue, index, delivery_count, expires_ms, message }
            }
        ),
        any::<u64>().prop_map(|wall_ms| BasePiece::Time { wall_ms }),
        queue().prop_map(|queue| BasePiece::QueueDone { queue }),
        index().prop_map(|floor| BasePiece::End { floor }),
        (queue(), held()).prop_map(|(queue, messages)| BasePiece::Held { queue, messages }),
        (index(), body()).prop_map(|(index, body)| BasePiece::Part { index, body }),
        keys(),
        (index(), parts()).prop_map(|(message, parts)| BasePiece::Parts { message, parts }),
    ]
}

fn frame() -> impl Strategy<Value = Frame> {
    prop_oneof![
        (position(), index(), record()).prop_map(|(position, committed, record)| Frame::record(
            position,
            committed,
            &record,
            &mut BytesMut::new()
        )),
        (position(), index(), piece()).prop_map(|(position, committed, piece)| Frame::base(
            position,
            committed,
            &piece,
            &mut BytesMut::new()
        )),
    ]
}

fn flat(frame: &Frame) -> Vec<u8> {
    frame.pieces().flatten().copied().collect()
}

fn take(bytes: Vec<u8>) -> Result<Option<Frame>, FrameError> {
    let mut stream = Rope::default();
    stream.push(bytes.into());
    Frame::take(&mut stream)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(500) })]

    #[test]
    fn a_record_comes_back_from_its_frame(record in record(), position in position(), committed in index()) {
        let frame = Frame::record(position, committed, &record, &mut BytesMut::new());
        prop_assert_eq!(frame.len(), flat(&frame).len());
        let back = take(flat(&frame)).unwrap().unwrap();
        prop_assert_eq!(&back, &frame);
        prop_assert_eq!((back.position, back.committed), (position, committed));
        prop_assert_eq!(back.decode_record().unwrap(), record);
    }

    #[test]
    fn a_base_piece_comes_back_from_its_frame(piece in piece(), position in position(), committed in index()) {
        let frame = Frame::base(position, committed, &piece, &mut BytesMut::new());
        let back = take(flat(&frame)).unwrap().unwrap();
        prop_assert_eq!(&back, &frame);
        prop_assert_eq!(back.decode_base().unwrap(), piece);
    }

    #[test]
    fn a_stream_in_pieces_of_any_size_gives_the_same_frames(frames in vec(frame(), 1..5), sizes in vec(1usize..300, 1..20)) {
        let whole: Vec<u8> = frames.iter().flat_map(flat).collect();
        let (mut stream, mut taken, mut rest) = (Rope::default(), Vec::new(), &whole[..]);
        for size in sizes.iter().cycle() {
            let (now, later) = rest.split_at((*size).min(rest.len()));
            stream.push(Bytes::copy_from_slice(now));
            rest = later;
            while let Some(frame) = Frame::take(&mut stream).unwrap() {
                taken.push(frame);
            }
            if rest.is_empty() { break }
        }
        prop_assert_eq!(taken, frames);
        prop_assert!(stream.is_empty());
    }

    #[test]
    fn a_cut_frame_is_no_frame_yet(frame in frame(), cut in any::<prop::sample::Index>()) {
        let mut bytes = flat(&frame);
        bytes.truncate(cut.index(bytes.len()));
        prop_assert_eq!(take(bytes), Ok(None));
    }

    #[test]
    fn a_flipped_bit_never_gives_a_frame(frame in frame(), at in any::<prop::sample::Index>()) {
        let mut bytes = flat(&frame);
        let bit = at.index(bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(!matches!(take(bytes), Ok(Some(_))));
    }

    #[test]
    fn overwritten_bytes_never_give_another_frame(frame in frame(), at in any::<prop::sample::Index>(), junk in vec(any::<u8>(), 1..60)) {
        let mut bytes = flat(&frame);
        let at = at.index(bytes.len());
        let end = (at + junk.len()).min(bytes.len());
        bytes[at..end].copy_from_slice(&junk[..end - at]);
        if let Ok(Some(taken)) = take(bytes) {
            prop_assert_eq!(taken, frame);
        }
    }

    #[test]
    fn any_bytes_are_refused_or_awaited(bytes in vec(any::<u8>(), 0..400), kind in 0u8..3, small in any::<bool>()) {
        let mut bytes = bytes;
        if small && bytes.len() >= FRAME_HEADER_BYTES {
            // Far enough into the parser: a known kind, zeros where they belong, lengths that fit.
            bytes[4..16].copy_from_slice(&[kind, 0, 0, 0, 20, 0, 0, 0, 9, 0, 0, 0]);
        }
        if let Some(header) = bytes.first_chunk() {
            _ = peek_header(header);
        }
        prop_assert!(!matches!(take(bytes), Ok(Some(_))));
    }

    /// A frame whose checksum is right may still have been written by something else.
    #[test]
    fn any_meta_is_decoded_or_refused(meta in bytes(300), tag in 0u8..16, body in body()) {
        let mut tagged = BytesMut::from(&[tag][..]);
        tagged.extend_from_slice(&meta);
        let meta = tagged.freeze();
        if let Ok(record) = Record::decode(meta.clone(), body.clone()) {
            let mut again = BytesMut::new();
            record.encode_meta(&mut again);
            prop_assert_eq!(&again.freeze(), &meta);
        }
        if let Ok(piece) = BasePiece::decode(meta.clone(), body) {
            let mut again = BytesMut::new();
            piece.encode_meta(&mut again);
            prop_assert_eq!(&again.freeze(), &meta);
        }
    }

    #[test]
    fn a_cut_or_lengthened_meta_is_refused(record in record(), cut in any::<prop::sample::Index>()) {
        let mut meta = BytesMut::new();
        record.encode_meta(&mut meta);
        let meta = meta.freeze();
        let len = cut.index(meta.len());
        prop_assert!(Record::decode(meta.slice(..len), record.body()).is_err());
        let longer = Bytes::from([&meta[..], &[0]].concat());
        prop_assert!(Record::decode(longer, record.body()).is_err());
    }
}
