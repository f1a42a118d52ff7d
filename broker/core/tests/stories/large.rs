//! Large messages: parts ahead of the message that claims them, on every replica; what becomes of those that nobody claims;
//! and how long parts stay.

use expect_test::expect;
use understudy_core::{BacklogChunk, BacklogCursor, BacklogItem, Core, EffectKind, Outputs};
use understudy_protocol::BasicProperties;
use understudy_record::{BasePiece, Index, PartRef, QueueId, Record};

use crate::desk::Desk;
use crate::harness::*;

fn mandatory(exchange: &str, key: &str, body: &str) -> understudy_core::Command {
    publish_with(exchange, key, body, "mandatory", &BasicProperties::default())
}

#[test]
fn a_large_message_is_its_parts_and_what_follows_them() {
    let mut story = story();
    story.say(1, 1, [declare("a", ""), select()]).skip();
    story
        .say(1, 1, [part("one")])
        .say(2, 1, [publish("a", "small"), part("other")])
        .say(1, 1, [part("two"), publish("a", "rest")])
        .say(1, 1, [consume("a", "c", "")])
        .say(1, 1, [ack(2)])
        .expect(expect![[r#"
            log 2 part 'one'
            log 3 publish 'small' to #1
            log 4 part 'other'
            log 5 part 'two'
            log 6 publish [2] [5] 'rest' to #1
            1/1 > confirm 1
            1/1 > consume-ok c
            1/1 > deliver 1 to c: 'small'
            1/1 > deliver 2 to c: [2] [5] 'rest'
            log 7 dequeue 6 from #1
        "#]]);
    let replica = story.replica();
    assert_eq!(replica.replicated_text(), story.core.replicated_text());
    replica.assert_consistent();
    let queue = QueueId(Index(1));
    assert_eq!(story.core.queues(), [(queue, 1, 7)], "the small one: five octets and two of property flags");
    story.say(2, 1, [publish("a", "r")]);
    assert_eq!(story.core.queues(), [(queue, 2, 7 + 8)], "all of the other one: six octets and two");
}

#[test]
fn what_nobody_will_claim_is_discarded() {
    let mut story = story();
    story.say(1, 1, [declare("a", ""), exchange("x", "fanout", "")]).skip();
    story
        // The channel closes, or the connection.
        .say(1, 1, [part("one"), part("two"), understudy_core::Command::ChannelClose])
        .say(2, 1, [part("three")])
        .close_connection(2)
        // The publish fails, or another command of the channel does.
        .say(3, 1, [part("four"), publish_to("nowhere", "", "five")])
        .say(3, 2, [part("six"), get("nowhere", "")])
        // No queue takes it; a mandatory one comes back, and its parts with it.
        .say(4, 1, [select(), part("seven"), publish_to("x", "", "eight")])
        .say(4, 1, [part("nine"), mandatory("x", "", "ten")])
        .expect(expect![[r#"
            log 3 part 'one'
            log 4 part 'two'
            log 5 discard 3 4
            log 6 part 'three'
            log 7 discard 6
            log 8 part 'four'
            log 9 discard 8
            3/1 > channel.close 404 NOT_FOUND - no exchange 'nowhere' in vhost '/' (60,40)
            log 10 part 'six'
            log 11 discard 10
            3/2 > channel.close 404 NOT_FOUND - no queue 'nowhere' in vhost '/' (60,70)
            log 12 part 'seven'
            log 13 discard 12
            4/1 > confirm.select-ok
            4/1 > confirm 1
            log 14 part 'nine'
            log 15 discard 14
            4/1 > return 312 NO_ROUTE: [14] 'ten'
            4/1 > confirm 2
        "#]]);
    assert_eq!(story.core.unclaimed_parts().len(), 0);
    assert_eq!(story.replica().replicated_text(), story.core.replicated_text());
}

#[test]
fn a_new_primary_knows_nothing_of_uploads_that_were_cut_off() {
    let mut story = story();
    story.say(1, 1, [declare("a", ""), part("one"), publish("a", "claimed"), part("two")]);
    story.say(2, 1, [part("three")]);
    let mut core = story.replica();
    assert_eq!(core.unclaimed_parts().len(), 2);
    let mut out = Outputs::default();
    core.append(epoch_start(), &mut out);
    core.promote(&mut out);
    core.assert_consistent();
    assert_eq!(core.unclaimed_parts().len(), 0);
    // And so does everybody who follows it.
    let mut backup = story.replica();
    out.records.iter().for_each(|(index, record)| backup.apply(*index, record).unwrap());
    assert_eq!(backup.replicated_text(), core.replicated_text());
    let mut next = story.successor(core);
    next.commit().skip();
    next.say(1, 1, [get("a", "")]).expect(expect![[r#"
        1/1 > get-ok 1: [2] 'claimed' redelivered, 0 left
    "#]]);
}

#[test]
fn a_replica_that_has_not_the_parts_a_message_claims_has_diverged() {
    let mut story = story();
    story.say(1, 1, [declare("a", ""), part("one"), part("two"), publish("a", "rest")]);
    let Some((_, Record::Publish { targets, message })) = story.log.last().cloned() else { panic!("{:?}", story.log) };
    let check = |log: &[usize], expected: &str| {
        let mut core = Core::new(2);
        for at in log {
            core.apply(core.last_index().next(), &story.log[*at].1).unwrap();
        }
        let before = core.replicated_text();
        let record = Record::Publish { targets: targets.clone(), message: message.clone() };
        let error = core.apply(core.last_index().next(), &record).unwrap_err();
        assert_eq!((error.to_string().as_str(), core.replicated_text()), (expected, before));
    };
    check(&[0, 1], "record 3 names part 3, which is not here, is claimed, or has another length");
    check(&[0], "record 2 names part 2, which is not here, is claimed, or has another length");
    let mut core = story.replica();
    let error = core.apply(Index(5), &Record::Discard { parts: vec![Index(3)] }).unwrap_err();
    assert_eq!(error.to_string(), "record 5 names part 3, which is not here, is claimed, or has another length");
}

#[test]
fn a_checkpoint_names_claimed_and_unclaimed_parts() {
    let mut story = story();
    story.say(
        1,
        1,
        [declare("a", ""), declare("b", ""), exchange("x", "fanout", ""), bind("a", "x", ""), bind("b", "x", "")],
    );
    story.say(1, 1, [part("one"), part("two"), publish_to("x", "", "rest"), part("three")]);
    let sync_point = story.core.last_index();
    let pieces = checkpoint(&story.core, sync_point);
    let named: Vec<(u64, Vec<u64>)> = pieces
        .iter()
        .filter_map(|piece| match piece {
            BasePiece::Parts { message, parts } => Some((message.0, parts.iter().map(|part| part.index.0).collect())),
            _ => None,
        })
        .collect();
    assert_eq!(named, [(0, vec![9]), (8, vec![6, 7]), (8, vec![6, 7])]);
    let mut restored = Core::new(5);
    pieces.into_iter().for_each(|piece| restored.apply_base(piece).unwrap());
    restored.assert_consistent();
    assert_eq!(restored.replicated_text(), story.core.replicated_text());
    // It goes on from there.
    story.say(1, 1, [publish("a", "end"), get("a", "no-ack"), get("b", "no-ack")]);
    story.log[sync_point.0 as usize..].iter().for_each(|(index, record)| restored.apply(*index, record).unwrap());
    restored.assert_consistent();
    assert_eq!(restored.replicated_text(), story.core.replicated_text());
}

/// In words: `p6` a part, `8` a message.
fn items(chunk: &BacklogChunk) -> String {
    let item = |item: &BacklogItem| match item {
        BacklogItem::Part(part) => format!("p{}", part.index),
        BacklogItem::Message(message) => message.index.to_string(),
    };
    chunk.items.iter().map(item).collect::<Vec<_>>().join(" ")
}

#[test]
fn a_backlog_takes_a_large_message_part_by_part() {
    let mut story = story();
    story.say(1, 1, [declare("a", ""), publish("a", "x")]);
    story.say(1, 1, (0..5).map(|_| part("four")).chain([publish("a", "end")]));
    story.say(1, 1, (0..3).map(|_| part("four")).chain([publish("a", "end")]));
    let (queue, last) = (QueueId(Index(1)), story.core.last_index());
    let mut from = BacklogCursor::START;
    let mut chunks = Vec::new();
    loop {
        let chunk = story.core.backlog_chunk(queue, from, last, 8, 100);
        chunks.push(items(&chunk));
        from = chunk.next;
        if chunk.done {
            break;
        }
    }
    assert_eq!(chunks, ["p9 p10", "p11 12", "p3 p4", "p5 p6", "p7 8", "2"]);
    // By number, too.
    assert_eq!(items(&story.core.backlog_chunk(queue, BacklogCursor::START, last, 1000, 4)), "p9 p10 p11 12");
    assert_eq!(items(&story.core.backlog_chunk(queue, BacklogCursor::START, last, 1000, 3)), "p9 p10 p11");
    // What leaves half way is not gone on with, and what comes next begins with its own first part.
    let chunk = story.core.backlog_chunk(queue, BacklogCursor::START, last, 8, 100);
    assert_eq!(chunk.next, BacklogCursor { before: Index(u64::MAX), begun: Some((Index(12), 2)) });
    story.say(1, 1, [get("a", "no-ack"), get("a", ""), get("a", "no-ack")]);
    assert_eq!(items(&story.core.backlog_chunk(queue, chunk.next, last, 8, 100)), "p3 p4");
    story.say(1, 1, [ack(2)]);
    let chunk = story.core.backlog_chunk(queue, chunk.next, last, 8, 100);
    assert_eq!((items(&chunk).as_str(), chunk.done), ("", true));
}

#[test]
fn unclaimed_parts_are_fetched_in_chunks_too() {
    let mut story = story();
    story.say(1, 1, (0..5).map(|_| part("four")));
    let parts = story.core.unclaimed_parts();
    let first = BacklogChunk::of_parts(&parts, BacklogCursor::START, 9);
    assert_eq!((items(&first).as_str(), first.done), ("p1 p2 p3", false));
    let second = BacklogChunk::of_parts(&parts, first.next, 9);
    assert_eq!((items(&second).as_str(), second.done), ("p4 p5", true));
    // They stay in the log as long as somebody may still fetch them.
    story.say(1, 1, [understudy_core::Command::ChannelClose]);
    assert_eq!(story.core.pinned_parts().len(), 5);
    drop((parts, first, second));
    assert_eq!(story.core.pinned_parts(), []);
}

#[test]
fn parts_stay_while_somebody_sends_them_though_their_message_is_gone() {
    let mut desk = Desk::new();
    desk.say(declare("a", ""));
    let parts = |desk: &mut Desk| {
        desk.say(part("one"));
        let index = desk.core.last_index();
        desk.say(part("two"));
        [PartRef { index, bytes: 3 }, PartRef { index: index.next(), bytes: 3 }]
    };
    // Delivered without acknowledgement, in memory and read back.
    for evicted in [false, true] {
        let parts = parts(&mut desk);
        desk.publish("a", 10);
        if evicted {
            desk.evict(0);
        }
        desk.say(get("a", "no-ack"));
        assert_eq!(desk.answer_next(), evicted);
        assert_eq!(desk.core.queues()[0].1, 0);
        assert_eq!(desk.core.pinned_parts(), parts, "evicted: {evicted}");
        let effects = std::mem::take(&mut desk.effects);
        assert!(effects.iter().any(|effect| matches!(effect, EffectKind::BasicGetOk { .. })), "{effects:?}");
        drop(effects);
        assert_eq!(desk.core.pinned_parts(), []);
    }
    // Returned.
    let parts = parts(&mut desk);
    desk.say(mandatory("", "nowhere", "three"));
    assert_eq!(desk.core.pinned_parts(), parts);
    desk.effects.clear();
    assert_eq!(desk.core.pinned_parts(), []);
    desk.core.assert_consistent();
}

#[test]
fn in_memory_a_large_message_counts_for_no_more_than_a_part() {
    let mut desk = Desk::new();
    desk.say(declare("a", ""));
    let part_body = "x".repeat(1 << 20);
    for rest in [1, 2, 3] {
        (0..4).for_each(|_| desk.say(part(&part_body)));
        desk.publish("a", rest);
    }
    let count = u64::from(understudy_core::LARGE_RESIDENT_BYTES);
    assert_eq!(desk.core.resident_bytes(), 3 * count);
    assert_eq!(desk.core.message_bytes(), 3 * (4 << 20) + 1 + 2 + 3);
    desk.evict(count);
    assert_eq!((desk.core.resident_bytes(), desk.core.resident_messages()), (count, 1));
    // Read back one after the other, without anybody waiting for megabytes.
    desk.restart();
    assert_eq!(desk.core.resident_bytes(), 0);
    desk.say(consume("a", "c", ""));
    while desk.answer_next() {}
    assert_eq!(desk.deliveries().len(), 3);
    desk.core.assert_consistent();
}

/// A client may acknowledge what it has not been given yet. With the message its parts may leave the log before they are sent.
#[test]
fn a_get_of_a_large_message_that_was_acknowledged_before_it_came_finds_nothing() {
    let mut story = story();
    story.say(1, 1, [declare("a", ""), part("one"), publish("a", "rest")]);
    let mut story = story.restarted();
    story.hold_loads().say(1, 1, [get("a", "")]).say(1, 1, [ack_to(0)]).skip();
    story.answer().expect(expect![[r#"
        1/1 > get-empty
    "#]]);
    assert_eq!(story.core.parts(), 0);
    story.core.assert_consistent();
}
