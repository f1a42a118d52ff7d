//! Replicas: by records, by a sync point, and as the next primary.

use bytes::Bytes;
use expect_test::expect;
use understudy_core::{ApplyError, BacklogChunk, BacklogItem, BacklogMessage, Command, Core, DeliveryTag, Outputs};
use understudy_record::{BasePiece, Body, Epoch, Index, Message, Position, QueueId, Record, ShortStr};

use crate::harness::*;

fn position(index: Index) -> Position {
    Position::new(Epoch(1), index)
}

fn start(sync_point: Index) -> BasePiece {
    BasePiece::Start { sync_point: position(sync_point), epochs: vec![], in_sync: vec![] }
}

/// Of a message that is in memory.
/// All of them small, so each item is a message.
fn messages(chunk: BacklogChunk) -> (Vec<BacklogMessage>, bool) {
    let messages = chunk.items.into_iter().map(|item| match item {
        BacklogItem::Message(message) => message,
        BacklogItem::Part(part) => panic!("{part:?}"),
    });
    (messages.collect(), chunk.done)
}

fn piece(queue: QueueId, message: BacklogMessage) -> BasePiece {
    let BacklogMessage { index, delivery_count, expires_ms, message, .. } = message;
    let message = (*message.expect("nothing was evicted")).clone();
    BasePiece::Message { queue, index, delivery_count, expires_ms, message }
}

fn publish_record(targets: &[u64]) -> Record {
    let targets = targets.iter().map(|id| QueueId(Index(*id))).collect();
    let (exchange, routing_key) = (ShortStr::EMPTY, ShortStr::EMPTY);
    let message = Message {
        exchange,
        routing_key,
        properties: Bytes::new(),
        persistent: false,
        parts: None,
        body: Body::default(),
    };
    Record::Publish { targets, message }
}

#[test]
fn a_new_primary_marks_all_it_has_as_redelivered_and_clears_exclusive_queues() {
    let mut old = story();
    old.say(1, 1, [declare("a", "durable"), declare("mine", "exclusive"), declare("auto", "auto-delete")]);
    old.say(1, 1, [publish("a", "1"), publish("a", "2"), publish("mine", "m"), publish("auto", "kept")]);
    old.say(
        1,
        1,
        [exchange("x", "fanout", "auto-delete"), bind("mine", "x", ""), qos(1, false), consume("a", "c", "")],
    );
    old.say(1, 1, [consume("auto", "auto", "no-ack")]);

    let mut core = old.replica();
    let mut out = Outputs::default();
    core.promote(&mut out);
    let records: Vec<_> =
        out.records.iter().map(|(index, record)| format!("{index} {}", describe_record(record))).collect();
    expect![[r#"
        11 delete queue #2
        12 delete exchange x"#]]
    .assert_eq(&records.join("\n"));
    assert_eq!(core.replicated_text().matches("exclusive: true").count(), 0);

    let mut new = old.successor(core);
    new.commit().say(1, 1, [publish("a", "3"), declare("auto", "auto-delete"), declare("mine", "exclusive")]);
    new.commit().skip().say(1, 1, [consume("a", "c", "")]).expect(expect![[r#"
        1/1 > consume-ok c
        1/1 > deliver 1 to c: '1' redelivered
        1/1 > deliver 2 to c: '2' redelivered
        1/1 > deliver 3 to c: '3'
    "#]]);
}

#[test]
fn a_promoted_replica_waits_for_the_commit_of_what_it_inherited() {
    let mut old = uncommitted_story();
    old.say(1, 1, [declare("a", ""), publish("a", "1")]);
    let mut new = old.successor(promoted(old.replica()));
    new.say(1, 1, [consume("a", "c", "")]).expect(expect![[""]]);
    new.commit().expect(expect![[r#"
        committed 2, confirmable 2
        1/1 > consume-ok c
        1/1 > deliver 1 to c: '1' redelivered
    "#]]);
}

#[test]
fn records_that_do_not_fit_are_refused_and_change_nothing() {
    let mut story = story();
    story.say(1, 1, [declare("a", ""), exchange("x", "fanout", ""), bind("a", "x", "")]);
    let mut core = story.replica();
    let before = core.replicated_text();
    let (next, queue) = (core.last_index().next(), QueueId(Index(99)));
    let refused = [
        (next.next(), publish_record(&[1]), ApplyError::OutOfOrder { expected: next, found: next.next() }),
        (next, publish_record(&[1, 99]), ApplyError::UnknownQueue { index: next, queue }),
        (next, publish_record(&[1, 1]), ApplyError::Targets { index: next }),
        (next, Record::Dequeue { queue, messages: vec![] }, ApplyError::UnknownQueue { index: next, queue }),
        (next, Record::Requeue { queue, messages: vec![] }, ApplyError::UnknownQueue { index: next, queue }),
        (next, Record::QueueDelete { queue }, ApplyError::UnknownQueue { index: next, queue }),
        (next, story.log[0].1.clone(), ApplyError::Exists { index: next, name: short("a") }),
        (next, story.log[1].1.clone(), ApplyError::Exists { index: next, name: short("x") }),
        (next, story.log[2].1.clone(), ApplyError::Binding { index: next, source_exchange: short("x") }),
        (
            next,
            Record::ExchangeDelete { name: short("amq.topic") },
            ApplyError::UnknownExchange { index: next, name: short("amq.topic") },
        ),
    ];
    for (index, record, error) in refused {
        assert_eq!(core.apply(index, &record), Err(error), "{record:?}");
        assert_eq!(core.replicated_text(), before);
    }
    let unknown = Record::Dequeue { queue: QueueId(Index(1)), messages: vec![Index(77)] };
    assert_eq!(core.apply(next, &unknown), Ok(()), "a message that is not there left before");
}

#[test]
fn pieces_out_of_place_are_refused() {
    let message = |index| BasePiece::Message {
        queue: QueueId(Index(1)),
        index: Index(index),
        delivery_count: 0,
        expires_ms: 0,
        message: Message {
            exchange: ShortStr::EMPTY,
            routing_key: ShortStr::EMPTY,
            properties: Bytes::new(),
            persistent: true,
            parts: None,
            body: Body::default(),
        },
    };
    let mut story = story();
    story.say(1, 1, [declare("a", "")]);
    let queue = story.core.snapshot_topology().remove(0);
    let mut core = Core::new(1);
    let base = |what| Err(ApplyError::Base { what });
    assert_eq!(core.apply_base(BasePiece::TopologyEnd), base("a piece without a start"));
    assert!(core.base_complete());
    core.apply_base(start(Index(10))).unwrap();
    assert!(!core.base_complete());
    let BasePiece::Queue { spec, .. } = queue.clone() else { panic!("{queue:?}") };
    let late = BasePiece::Queue { id: QueueId(Index(11)), spec };
    assert_eq!(core.apply_base(late), base("a queue declared after the sync point"));
    assert_eq!(core.apply_base(message(5)), base("backlog before the end of the topology"));
    core.apply_base(queue.clone()).unwrap();
    assert!(matches!(core.apply_base(queue.clone()), Err(ApplyError::Exists { .. })));
    core.apply_base(BasePiece::TopologyEnd).unwrap();
    assert_eq!(core.apply_base(queue), base("topology after its end"));
    assert_eq!(core.apply_base(message(11)), base("a message not older than those here"));
    core.apply_base(message(5)).unwrap();
    assert_eq!(core.apply_base(message(5)), base("a message not older than those here"));
    assert_eq!(core.apply_base(BasePiece::End { floor: Index(10) }), base("the end before every queue was done"));
    core.apply_base(BasePiece::QueueDone { queue: QueueId(Index(1)) }).unwrap();
    core.apply_base(BasePiece::End { floor: Index(10) }).unwrap();
    assert!(core.base_complete());
    assert_eq!(core.last_index(), Index(10));
    core.assert_consistent();
}

/// A backlog that shrinks while it is read, and records that come before their messages.
#[test]
fn catch_up_mixes_the_backlog_with_live_records() {
    let mut story = story();
    story.say(
        1,
        1,
        [declare("a", ""), declare("b", ""), exchange("x", "fanout", ""), bind("a", "x", ""), bind("b", "x", "")],
    );
    story.say(1, 1, (1..=6).map(|n| publish_to("x", "", &n.to_string())));
    story.say(1, 1, [consume("a", "c", "")]);
    let sync_point = story.core.begin_sync();
    let (a, b) = (QueueId(Index(1)), QueueId(Index(2)));
    assert_eq!(story.core.queues(), [(a, 6, 18), (b, 6, 18)], "a byte of body and two of property flags each");

    let mut replica = Core::new(2);
    replica.apply_base(start(sync_point)).unwrap();
    story.core.snapshot_topology().into_iter().for_each(|piece| replica.apply_base(piece).unwrap());
    replica.apply_base(BasePiece::TopologyEnd).unwrap();

    // The first chunk is read, then the primary goes on, and all of that arrives before the chunk.
    let (newest, done) = messages(story.core.backlog_chunk(a, sync_point.next(), sync_point, 1000, 3));
    assert!(!done && newest.len() == 3);
    story.say(1, 1, [nack(5, false, true), ack(6), ack_to(2), publish_to("x", "", "7")]).say(2, 1, [purge("b")]);
    let live = &story.log[sync_point.0 as usize..];
    live.iter().for_each(|(index, record)| replica.apply(*index, record).unwrap());

    let before = newest[2].index;
    newest.into_iter().for_each(|message| replica.apply_base(piece(a, message)).unwrap());
    let (left, done) = messages(story.core.backlog_chunk(a, before, sync_point, 1000, 100));
    assert!(done && left.len() == 1, "two of the three were acknowledged meanwhile");
    left.into_iter().for_each(|message| replica.apply_base(piece(a, message)).unwrap());
    replica.apply_base(BasePiece::QueueDone { queue: a }).unwrap();

    let (left, done) = messages(story.core.backlog_chunk(b, sync_point.next(), sync_point, 1000, 100));
    assert!(done && left.is_empty(), "the queue was purged");
    replica.apply_base(BasePiece::QueueDone { queue: b }).unwrap();
    replica.apply_base(BasePiece::End { floor: story.core.last_index() }).unwrap();
    story.core.end_sync(sync_point);

    assert_eq!(replica.replicated_text(), story.core.replicated_text());
    assert_eq!(replica.digest(), story.core.digest());
    assert_eq!(replica.message_bytes(), 3 * replica.stats().messages_ready as u64, "none is shared");
    replica.assert_consistent();
}

#[test]
fn a_queue_deleted_during_catch_up_ignores_what_still_comes_for_it() {
    let mut story = story();
    story.say(1, 1, [declare("a", ""), publish("a", "1")]);
    let sync_point = story.core.begin_sync();
    let mut replica = Core::new(2);
    replica.apply_base(start(sync_point)).unwrap();
    story.core.snapshot_topology().into_iter().for_each(|piece| replica.apply_base(piece).unwrap());
    replica.apply_base(BasePiece::TopologyEnd).unwrap();
    let queue = QueueId(Index(1));
    let chunk = story.core.backlog_chunk(queue, sync_point.next(), sync_point, 1000, 100);
    story.say(1, 1, [delete("a", ""), declare("a", "")]);
    story.log[2..].iter().for_each(|(index, record)| replica.apply(*index, record).unwrap());
    messages(chunk).0.into_iter().for_each(|message| replica.apply_base(piece(queue, message)).unwrap());
    replica.apply_base(BasePiece::QueueDone { queue }).unwrap();
    replica.apply_base(BasePiece::End { floor: story.core.last_index() }).unwrap();
    assert!(story.core.backlog_chunk(queue, sync_point.next(), sync_point, 1000, 100).done);
    assert_eq!(replica.replicated_text(), story.core.replicated_text());
}

/// Returned by nack, reject, recover, a transaction and a channel's end, before a sync point, while it is read, and after it.
#[test]
fn delivery_counts_survive_failover_restart_checkpoint_and_catch_up() {
    let mut story = story();
    story.say(1, 1, [declare("a", ""), publish("a", "1"), publish("a", "2")]);
    let queue = QueueId(Index(1));
    story.say(1, 1, [get("a", "")]).say(1, 1, [nack(1, false, true), get("a", "")]);
    story.say(1, 1, [Command::BasicRecover { requeue: true }, get("a", "")]);
    let sync_point = story.core.begin_sync();
    let topology = story.core.snapshot_topology();
    story.say(1, 1, [Command::BasicReject { delivery_tag: DeliveryTag(3), requeue: true }]);
    let chunk = story.core.backlog_chunk(queue, sync_point.next(), sync_point, 1000, 100);
    let held = story.core.held_chunk(queue, sync_point.next(), sync_point, 100);
    story.say(2, 1, [get("a", ""), Command::ChannelClose]).say(2, 1, [Command::TxSelect, get("a", "")]);
    story.say(2, 1, [nack(1, false, true), Command::TxRollback, nack(1, false, true), Command::TxCommit]);
    story.core.end_sync(sync_point);

    let since = |mut replica: Core, pieces: Vec<BasePiece>| {
        let end = [BasePiece::QueueDone { queue }, BasePiece::End { floor: story.core.last_index() }];
        let base = [start(sync_point)].into_iter().chain(topology.clone()).chain([BasePiece::TopologyEnd]);
        base.chain(pieces).chain(end).for_each(|piece| replica.apply_base(piece).unwrap());
        let live = &story.log[sync_point.0 as usize..];
        live.iter().for_each(|(index, record)| replica.apply(*index, record).unwrap());
        replica
    };
    let backlog = messages(chunk).0.into_iter().map(|message| piece(queue, message)).collect();
    let replicas = [
        story.replica(),
        since(Core::new(3), backlog),
        since(Core::new(4), vec![BasePiece::Held { queue, messages: held.messages }]),
    ];
    for replica in replicas {
        assert_eq!(replica.replicated_text(), story.core.replicated_text());
        let mut next = story.successor(promoted(replica));
        next.commit().skip().say(1, 1, [get("a", ""), get("a", "")]).expect(expect![[r#"
            1/1 > get-ok 1: '1' redelivered x5, 1 left
            1/1 > get-ok 2: '2' redelivered, 0 left
        "#]]);
    }
}

#[test]
fn the_shell_s_own_records_take_their_place() {
    let mut core = promoted(Core::new(1));
    let mut out = Outputs::default();
    assert_eq!(core.next_index(), Index(1));
    assert_eq!(core.append(Record::InSyncSet { members: vec![] }, &mut out), Index(1));
    assert_eq!(out.records, [(Index(1), Record::InSyncSet { members: vec![] })]);
    assert_eq!(core.last_index(), Index(1));
}

/// A catch-up and a checkpoint, or two catch-ups.
#[test]
fn two_readers_of_one_sync_point_see_the_same_delivery_counts() {
    let mut story = story();
    story.say(1, 1, [declare("a", ""), publish("a", "1"), consume("a", "c", "")]);
    let sync_point = story.core.begin_sync();
    assert_eq!(story.core.begin_sync(), sync_point);
    story.say(1, 1, [nack(0, true, true)]);
    let count =
        |core: &Core| core.held_chunk(QueueId(Index(1)), sync_point.next(), sync_point, 10).messages[0].delivery_count;
    assert_eq!(count(&story.core), 0);
    story.core.end_sync(sync_point);
    assert_eq!(count(&story.core), 0, "one still reads");
    story.core.end_sync(sync_point);
    assert_eq!(count(&story.core), 1);
}
