//! What is dropped because it is known, by exchanges and by queues; what its publisher hears, and when; and that all of it is the
//! same for whoever comes next.

use expect_test::expect;
use understudy_core::Command::{TxCommit, TxSelect};
use understudy_core::{Command, Core, MAX_CACHE_SIZE, Outputs};
use understudy_protocol::{BasicProperties, FieldTable, FieldValue};
use understudy_record::{BasePiece, Index, QueueId, Record};

use crate::harness::*;

const KNOWS: (&str, FieldValue) = ("x-message-deduplication", FieldValue::Bool(true));

fn knowing(queue: &str, more: &[(&str, FieldValue)]) -> Command {
    declare_with(queue, "durable", arguments(&[&[KNOWS], more].concat()))
}

fn number(name: &str, value: i32) -> (&str, FieldValue) {
    (name, FieldValue::I32(value))
}

fn headers(fields: &[(&str, FieldValue)]) -> BasicProperties {
    let mut table = FieldTable::new();
    fields.iter().for_each(|(name, value)| table.insert(short(name), value.clone()));
    BasicProperties { headers: Some(table), ..BasicProperties::default() }
}

/// A message with a key.
fn keyed_to(exchange: &str, routing_key: &str, key: &str, body: &str, flags: &str) -> Command {
    publish_with(exchange, routing_key, body, flags, &headers(&[("x-deduplication-header", text_value(key))]))
}

fn keyed(queue: &str, key: &str, body: &str) -> Command {
    keyed_to("", queue, key, body, "")
}

/// An exchange `x` that remembers so many keys.
fn remembering(size: i32, more: &[(&str, FieldValue)]) -> Command {
    let all = [&[number("x-cache-size", size)], more].concat();
    exchange_with("x", "x-message-deduplication", "durable", arguments(&all))
}

/// Replicas of every kind have what the primary has: one that followed, one from a checkpoint, one from a sync point, and the
/// same store once more. And a scrub says so.
fn all_agree(story: &mut Story) {
    let last = story.core.last_index();
    let mut from_checkpoint = Core::new(5);
    checkpoint(&story.core, last).into_iter().for_each(|piece| from_checkpoint.apply_base(piece).unwrap());
    let mut from_base = Core::new(6);
    let base = checkpoint(&story.core, last);
    let queues: Vec<QueueId> = story.core.queues().into_iter().map(|(queue, ..)| queue).collect();
    let of_topology = base.into_iter().take_while(|piece| *piece != BasePiece::TopologyEnd);
    of_topology.chain([BasePiece::TopologyEnd]).for_each(|piece| from_base.apply_base(piece).unwrap());
    let store = story.store();
    for queue in queues {
        let chunk = story.core.backlog_chunk(queue, last.next(), last, usize::MAX, usize::MAX);
        for message in chunk.messages() {
            let (index, delivery_count, expires_ms) = (message.index, message.delivery_count, message.expires_ms);
            let message = store.message(index).clone();
            from_base.apply_base(BasePiece::Message { queue, index, delivery_count, expires_ms, message }).unwrap();
        }
        from_base.apply_base(BasePiece::QueueDone { queue }).unwrap();
    }
    from_base.apply_base(BasePiece::End { floor: last }).unwrap();
    let (mut pass, mut out) = (story.core.begin_scrub(), Outputs::default());
    while story.core.scrub(&mut pass, 9, &mut out).is_some() {}
    for mut replica in [story.replica(), story.own(), from_checkpoint, from_base] {
        out.records.iter().for_each(|(index, record)| replica.apply(*index, record).unwrap());
        assert_eq!(replica.take_difference(), None);
        replica.assert_consistent();
        assert_eq!(replica.replicated_text(), story.core.replicated_text());
    }
    story.take_outputs(out);
    story.skip();
}

#[test]
fn a_queue_drops_what_has_the_key_of_a_message_in_it() {
    let mut story = story();
    story
        .say(1, 1, [knowing("a", &[]), select()])
        .say(1, 1, [keyed("a", "k", "one"), keyed("a", "k", "two"), keyed("a", "l", "three"), publish("a", "four")])
        .say(1, 1, [publish("a", "five"), keyed_to("", "a", "k", "six", "mandatory")])
        .expect(expect![[r#"
            log 1 declare queue a durable
            1/1 > queue.declare-ok a, 0 messages, 0 consumers
            1/1 > confirm.select-ok
            log 2 publish 'one' to #1
            log 3 publish 'three' to #1
            log 4 publish 'four' to #1
            1/1 > confirm up to 4
            log 5 publish 'five' to #1
            1/1 > confirm up to 6
        "#]]);
    // Delivered it is in the queue yet; acknowledged it is not.
    story
        .say(1, 1, [get("a", ""), keyed("a", "k", "seven")])
        .say(1, 1, [nack(1, false, true), keyed("a", "k", "eight")])
        .say(1, 1, [get("a", ""), ack(2)])
        .say(1, 1, [keyed("a", "k", "nine")])
        .expect(expect![[r#"
            1/1 > get-ok 1: 'one', 3 left
            1/1 > confirm 7
            log 6 requeue 2 in #1
            1/1 > confirm 8
            log 7 dequeue 2 from #1
            1/1 > get-ok 2: 'one' redelivered x1, 3 left
            log 8 publish 'nine' to #1
            1/1 > confirm 9
        "#]]);
    all_agree(&mut story);
    assert_eq!(story.core.remembered_keys(), 2);
}

#[test]
fn the_parts_of_a_large_duplicate_are_dropped() {
    let mut story = story();
    story.say(1, 1, [knowing("a", &[]), select(), part("la"), keyed("a", "k", "rge")]).skip();
    story.say(1, 1, [part("du"), part("pli"), keyed("a", "k", "cate")]).expect(expect![[r#"
        log 4 part 'du'
        log 5 part 'pli'
        log 6 discard 4 5
        1/1 > confirm 2
    "#]]);
    assert_eq!((story.core.parts(), story.core.unclaimed_parts().len()), (1, 0));
    assert_eq!(story.replica().replicated_text(), story.core.replicated_text());
}

/// An acknowledgement is written at the end of the step, a dead letter when its turn comes; its client has done its part.
#[test]
fn who_settles_a_message_may_publish_it_again_at_once() {
    let mut story = story();
    let dies = [("x-dead-letter-exchange", text_value("")), ("x-dead-letter-routing-key", text_value("dead"))];
    story.say(1, 1, [knowing("a", &dies), declare("dead", ""), keyed("a", "k", "1")]).skip();
    story.say(1, 1, [get("a", ""), ack(1), keyed("a", "k", "2"), keyed("a", "k", "3")]).expect(expect![[r#"
        log 4 publish '2' to #1
        log 5 dequeue 3 from #1
        1/1 > get-ok 1: '1', 0 left
    "#]]);
    story.say(1, 1, [get("a", ""), nack(2, false, false), keyed("a", "k", "4"), keyed("a", "k", "5")]);
    story.expect(expect![[r#"
        log 6 publish '4' to #1
        log 7 staged '2' (rejected in a x1) for #2
        log 8 transaction of 1 staged, dequeue 4 from #1
        1/1 > get-ok 2: '2', 0 left
    "#]]);
    all_agree(&mut story);
    story.say(1, 1, [get("a", ""), nack(3, false, true), keyed("a", "k", "6")]).expect(expect![[r#"
        log 11 requeue 6 in #1
        1/1 > get-ok 3: '4', 0 left
    "#]]);
    all_agree(&mut story);
}

#[test]
fn however_a_message_leaves_its_key_is_free() {
    let mut story = story();
    let limit = [number("x-message-ttl", 50), number("x-max-length", 2)];
    story.say(1, 1, [knowing("a", &limit), keyed("a", "k", "1")]).skip();
    let leaves = |story: &mut Story, how: &dyn Fn(&mut Story)| {
        story.say(1, 1, [keyed("a", "k", "a duplicate")]);
        how(story);
        assert_eq!(story.core.queues()[0].1, 0, "nothing is left");
        story.say(1, 1, [keyed("a", "k", "again")]).skip();
        assert_eq!((story.core.queues()[0].1, story.core.remembered_keys()), (1, 1));
    };
    leaves(&mut story, &|story| _ = story.say(1, 1, [get("a", "no-ack")]));
    leaves(&mut story, &|story| _ = story.wait(60));
    leaves(&mut story, &|story| _ = story.say(1, 1, [purge("a")]));
    leaves(&mut story, &|story| _ = story.say(1, 1, [get("a", "")]).say(1, 1, [nack(0, true, false)]));
    leaves(&mut story, &|story| {
        story.say(1, 1, [keyed("a", "l", "2"), keyed("a", "m", "3"), keyed("a", "n", "4")]);
        story.say(1, 1, [keyed("a", "k", "5"), purge("a")]);
    });
    leaves(&mut story, &|story| _ = story.say(1, 1, [delete("a", ""), knowing("a", &limit)]));
    all_agree(&mut story);
}

#[test]
fn a_queue_with_a_size_knows_the_last_keys_whatever_becomes_of_the_messages() {
    let mut story = story();
    let of = [number("x-cache-size", 2), number("x-cache-ttl", 100), ("x-deduplication-header", text_value("id"))];
    let identified = |id: i32, ttl: Option<i32>, body| {
        let ttl = ttl.map(|ttl| number("x-cache-ttl", ttl));
        let fields: Vec<_> = [number("id", id)].into_iter().chain(ttl).collect();
        publish_with("", "a", body, "", &headers(&fields))
    };
    story
        .say(1, 1, [knowing("a", &of), identified(1, None, "1"), get("a", "no-ack"), identified(1, None, "2")])
        .say(1, 1, [keyed("a", "k", "another header says nothing"), identified(2, Some(10), "3")])
        .wait(10)
        .say(1, 1, [identified(2, Some(20), "4"), identified(1, None, "5")])
        .expect(expect![[r#"
            log 1 declare queue a durable
            log 2 it is 1000000
            log 3 publish '1' to #1
            log 4 dequeue 3 from #1
            1/1 > queue.declare-ok a, 0 messages, 0 consumers
            1/1 > get-ok 1: '1', 0 left
            log 5 publish 'another header says nothing' to #1
            log 6 publish '3' to #1
            log 7 it is 1000010
            log 8 publish '4' to #1
        "#]]);
    all_agree(&mut story);
    story.say(1, 1, [identified(3, None, "6"), purge("a")]).skip();
    story.say(1, 1, [identified(1, None, "7"), identified(3, None, "8"), identified(2, None, "9")]).expect(expect![[
        r#"
        log 13 publish '7' to #1
        log 14 publish '9' to #1
    "#
    ]]);
    story.wait(100).say(1, 1, [identified(2, None, "10")]).expect(expect![[r#"
        log 15 it is 1000110
        log 16 publish '10' to #1
    "#]]);
    all_agree(&mut story);
}

#[test]
fn an_exchange_drops_what_it_has_seen() {
    let mut story = story();
    let seen = |key: &str, body: &str| keyed_to("x", "", key, body, "mandatory");
    story
        .say(1, 1, [remembering(2, &[number("x-cache-ttl", 100)]), declare("a", "durable"), select()])
        .say(1, 1, [seen("k", "nobody"), bind("a", "x", "")])
        .say(1, 1, [seen("k", "known"), seen("l", "one"), seen("l", "two"), publish_to("x", "", "three")])
        .expect(expect![[r#"
            log 1 declare x-message-deduplication exchange x durable
            log 2 declare queue a durable
            1/1 > exchange.declare-ok
            1/1 > queue.declare-ok a, 0 messages, 0 consumers
            1/1 > confirm.select-ok
            log 3 seen alone by x until 1000100
            log 4 bind #2 to x by ''
            1/1 > return 312 NO_ROUTE: 'nobody'
            1/1 > queue.bind-ok
            1/1 > confirm 1
            log 5 seen by x until 1000100
            log 6 publish 'one' to #2
            log 7 publish 'three' to #2
            1/1 > return 312 NO_ROUTE: 'known'
            1/1 > confirm 2
            1/1 > return 312 NO_ROUTE: 'two'
            1/1 > confirm up to 5
        "#]]);
    all_agree(&mut story);
    story.say(1, 1, [get("a", "no-ack"), seen("m", "four"), seen("k", "five"), seen("m", "six")]).expect(expect![[
        r#"
        log 10 seen by x until 1000100
        log 11 publish 'four' to #2
        log 12 seen by x until 1000100
        log 13 publish 'five' to #2
        log 14 dequeue 6 from #2
        1/1 > get-ok 1: 'one', 1 left
        1/1 > return 312 NO_ROUTE: 'six'
        1/1 > confirm up to 8
    "#
    ]]);
    story.wait(100).say(1, 1, [seen("m", "seven")]).expect(expect![[r#"
        log 15 seen by x until 1000200
        log 16 publish 'seven' to #2
        1/1 > confirm 9
    "#]]);
    all_agree(&mut story);
    assert_eq!(story.core.remembered_keys(), 2);
    story.say(1, 1, [delete_exchange("x", "")]).skip();
    assert_eq!(story.core.remembered_keys(), 0);
}

#[test]
fn any_exchange_can_drop_what_it_has_seen_and_each_decides_for_itself() {
    let mut story = story();
    let of = arguments(&[KNOWS, ("x-cache-size", text_value("9")), ("alternate-exchange", text_value("else"))]);
    story.administer([add_vhost("shop")]).enter(2, "+root", "shop");
    let topology = [
        exchange_with("x", "topic", "", of),
        exchange("y", "fanout", ""),
        exchange("else", "fanout", ""),
        bind_exchange("x", "y", "k"),
        declare("a", ""),
        declare("b", ""),
        declare("c", ""),
        bind("a", "x", "#"),
        bind("b", "y", ""),
        bind("c", "else", ""),
    ];
    story.say(2, 1, topology).skip();
    story.say(2, 1, [keyed_to("y", "k", "1", "one", ""), keyed_to("y", "k", "1", "two", "")]).expect(expect![[r#"
        log 12 seen by x until 0
        log 13 publish 'one' to #6 #7
        log 14 publish 'two' to #7 #8
    "#]]);
    all_agree(&mut story);
    story.administer([delete_vhost("shop")]);
    assert_eq!(story.core.remembered_keys(), 0);
}

/// A confirm that comes first would say that the message is safe.
#[test]
fn a_duplicate_is_not_confirmed_before_its_original() {
    for to in [|key, body| keyed("a", key, body), |key, body| keyed_to("x", "", key, body, "")] {
        let mut story = uncommitted_story();
        story.say(1, 1, [knowing("a", &[]), declare("b", ""), remembering(9, &[]), bind("b", "x", ""), select()]);
        story.say(2, 1, [select()]).commit().skip();
        story.say(1, 1, [to("k", "one")]).say(2, 1, [to("k", "two")]).skip();
        let last = story.core.last_index().0;
        story.commit_to(last, last - 1);
        assert!(!story.take_text().contains("confirm 1"), "nothing is confirmed");
        story.commit_to(last, last);
        let told = story.take_text();
        assert!(told.contains("1/1 > confirm 1") && told.contains("2/1 > confirm 1"), "{told}");
        story.say(2, 1, [to("k", "three")]);
        assert!(story.take_text().contains("2/1 > confirm 2"), "the original is confirmed: at once");
    }
}

/// The very use: the primary dies before it could confirm, and the publisher sends again.
#[test]
fn after_a_failover_the_retry_is_dropped() {
    let mut story = uncommitted_story();
    story.say(1, 1, [knowing("a", &[]), declare("b", ""), remembering(9, &[]), bind("b", "x", "")]);
    story.say(1, 1, [keyed("a", "k", "one"), keyed_to("x", "", "k", "one", "")]).skip();
    let mut next = story.restarted();
    next.say(1, 1, [select(), keyed("a", "k", "one"), keyed_to("x", "", "k", "one", "")]).expect(expect![[r#"
        1/1 > confirm.select-ok
        1/1 > confirm up to 2
    "#]]);
    assert_eq!(next.core.queues().iter().map(|(_, messages, _)| *messages).collect::<Vec<_>>(), [1, 1]);
}

/// What was cut off between a key and its message leaves neither: the retry is taken.
#[test]
fn no_history_has_a_key_without_its_message() {
    let mut story = story();
    story.say(1, 1, [declare("a", "durable"), remembering(9, &[]), bind("a", "x", "")]);
    story.say(1, 1, [keyed_to("x", "", "k", "one", "")]);
    let mut transaction = vec![TxSelect];
    transaction.extend(["l", "m", "l"].map(|key| keyed_to("x", "", key, key, "")));
    story.say(2, 1, transaction).say(2, 1, [TxCommit]);
    let mut cut = 0;
    for end in 0..=story.log.len() {
        let mut core = Core::new(2);
        story.log[..end].iter().for_each(|(index, record)| core.apply(*index, record).unwrap());
        let amid = core.is_amid_transaction();
        cut += usize::from(amid);
        let mut out = Outputs::default();
        core.append(epoch_start(), &mut out);
        assert!(!core.is_amid_transaction());
        core.assert_consistent();
        let messages: u64 = core.queues().iter().map(|(_, messages, _)| *messages).sum();
        assert_eq!(messages, core.remembered_keys(), "after {end} records");
    }
    assert_eq!(cut, 1 + 3, "between key and message; between two messages, their keys and the decision");
    all_agree(&mut story);
}

#[test]
fn in_a_transaction_duplicates_count_at_the_commit() {
    let mut story = story();
    story.say(1, 1, [knowing("a", &[]), declare("b", ""), remembering(9, &[]), bind("b", "x", "")]).skip();
    let seen = |key: &str, body: &str| keyed_to("x", "", key, body, "mandatory");
    story.say(1, 1, [TxSelect, keyed("a", "k", "1"), keyed("a", "k", "2"), seen("k", "3"), seen("k", "4")]).skip();
    // Another is faster.
    story.say(2, 1, [seen("k", "5"), publish("b", "6")]).skip();
    story.say(1, 1, [TxCommit]).expect(expect![[r#"
        log 8 publish '1' to #1
        1/1 > return 312 NO_ROUTE: '3'
        1/1 > return 312 NO_ROUTE: '4'
        1/1 > tx.commit-ok
    "#]]);
    // What a transaction takes away is gone for what it brings.
    story.say(1, 1, [get("a", ""), keyed("a", "k", "7"), ack(1), TxCommit]).expect(expect![[r#"
        log 9 staged '7' for #1
        log 10 transaction of 1 staged, dequeue 8 from #1
        1/1 > get-ok 1: '1', 0 left
        1/1 > tx.commit-ok
    "#]]);
    story.say(1, 1, [keyed("a", "k", "8"), TxCommit]).expect(expect![[r#"
        1/1 > tx.commit-ok
    "#]]);
    all_agree(&mut story);
}

#[test]
fn a_duplicate_in_a_transaction_waits_for_its_original() {
    let mut story = uncommitted_story();
    story.say(1, 1, [knowing("a", &[]), TxSelect]).commit().skip();
    story.say(2, 1, [keyed("a", "k", "one")]).say(1, 1, [keyed("a", "k", "two"), TxCommit]).skip();
    let last = story.core.last_index().0;
    story.commit_to(last, last - 1).expect(expect![[r#"
        committed 2, confirmable 1
    "#]]);
    story.commit_to(last, last).expect(expect![[r#"
        committed 2, confirmable 2
        1/1 > tx.commit-ok
    "#]]);
}

#[test]
fn a_dead_letter_is_dropped_where_it_is_known() {
    let mut story = story();
    let dies = [("x-dead-letter-exchange", text_value("x"))];
    let back = [("x-dead-letter-exchange", text_value("")), ("x-dead-letter-routing-key", text_value("own"))];
    story.say(1, 1, [knowing("a", &dies), declare("b", ""), remembering(9, &[]), bind("b", "x", "")]);
    story.say(1, 1, [knowing("own", &back), keyed("a", "k", "1"), keyed("own", "k", "2")]).skip();
    story.say(1, 1, [get("a", "")]).say(1, 1, [nack(1, false, false)]).expect(expect![[r#"
        1/1 > get-ok 1: '1', 0 left
        log 8 staged '1' (rejected in a x1) for #2
        log 9 seen by x until 0
        log 10 transaction of 1 staged, dequeue 6 from #1
    "#]]);
    story.say(1, 1, [keyed("a", "k", "3"), get("a", "")]).say(1, 1, [nack(2, false, false)]).expect(expect![[r#"
        log 11 publish '3' to #1
        1/1 > get-ok 2: '3', 0 left
        log 12 dequeue 11 from #1
    "#]]);
    // One that comes back to its own queue is not its own duplicate.
    story.say(1, 1, [get("own", "")]).say(1, 1, [nack(3, false, false)]).expect(expect![[r#"
        1/1 > get-ok 3: '2', 0 left
        log 13 staged '2' (rejected in own x1) for #5
        log 14 transaction of 1 staged, dequeue 7 from #5
    "#]]);
    all_agree(&mut story);
}

/// Its publisher will try again, and is to be heard then.
#[test]
fn what_a_full_queue_refuses_is_not_remembered() {
    let mut story = story();
    let full = arguments(&[number("x-max-length", 1), ("x-overflow", text_value("reject-publish"))]);
    story.say(1, 1, [declare_with("a", "", full), remembering(9, &[]), bind("a", "x", ""), select()]).skip();
    let seen = |key: &str, body: &str| keyed_to("x", "", key, body, "");
    story.say(1, 1, [seen("k", "1"), seen("l", "2"), seen("k", "3"), get("a", "no-ack")]).say(1, 1, [seen("l", "2")]);
    story.expect(expect![[r#"
        log 4 seen by x until 0
        log 5 publish '1' to #1
        log 6 dequeue 5 from #1
        1/1 > refuse 2
        1/1 > get-ok 1: '1', 0 left
        1/1 > confirm up to 3
        log 7 seen by x until 0
        log 8 publish '2' to #1
        1/1 > confirm 4
    "#]]);
    all_agree(&mut story);
}

/// Of a queue that is not replicated another store has nothing, not even what it knew.
#[test]
fn who_has_not_got_the_messages_does_not_know_them() {
    for size in [None, Some(number("x-cache-size", 9))] {
        let mut story = story();
        story.core.append(epoch_start(), &mut Outputs::default());
        let start = (story.core.last_index(), epoch_start());
        story.log.push(start);
        let more: Vec<_> = [("x-understudy-replicate", text_value("configuration"))].into_iter().chain(size).collect();
        story.say(1, 1, [knowing("a", &more), keyed("a", "k", "one")]).skip();
        assert_eq!((story.core.remembered_keys(), story.replica().remembered_keys()), (1, 0));
        assert_eq!(story.own().remembered_keys(), 1);
        let mut recovered = Core::new(5);
        let last = story.core.last_index();
        checkpoint(&story.core, last).into_iter().for_each(|piece| recovered.apply_base(piece).unwrap());
        assert_eq!(recovered.own_text(), story.core.own_text());
        assert!(!story.core.snapshot_topology().iter().any(|piece| matches!(piece, BasePiece::Keys { .. })));
        // The old primary's store follows another one, which has emptied the queue.
        let mut own = story.own();
        let purge = Record::Purge { queue: QueueId(Index(2)), up_to: last, except: Vec::new() };
        own.apply(last.next(), &purge).unwrap();
        own.assert_consistent();
        assert_eq!(own.remembered_keys(), 0);
    }
}

#[test]
fn declares_that_mean_nothing_are_refused_with_the_cure() {
    let mut story = story();
    story.say(1, 1, [knowing("there", &[number("x-cache-size", 5)]), declare("plain", "durable")]).skip();
    let size = |value: FieldValue| ("x-cache-size", value);
    let of_x = |arguments: &[(&str, FieldValue)]| {
        exchange_with("x", "x-message-deduplication", "", self::arguments(arguments))
    };
    let declares = [
        of_x(&[]),
        of_x(&[size(FieldValue::I32(0))]),
        of_x(&[size(FieldValue::I64(MAX_CACHE_SIZE as i64 + 1))]),
        of_x(&[size(text_value("many"))]),
        of_x(&[size(FieldValue::I32(5)), number("x-cache-ttl", 0)]),
        of_x(&[size(FieldValue::I32(5)), ("x-cache-persistence", text_value("tape"))]),
        exchange_with("x", "direct", "", arguments(&[KNOWS])),
        knowing("q", &[number("x-cache-ttl", 5)]),
        knowing("q", &[("x-deduplication-header", FieldValue::I32(5))]),
        declare_with("q", "", arguments(&[number("x-message-deduplication", 1)])),
        knowing("there", &[number("x-cache-size", 6)]),
        knowing("there", &[size(text_value("5"))]),
        declare("there", "durable"),
        knowing("plain", &[]),
    ];
    declares.into_iter().for_each(|command| _ = story.say(1, 1, [command]));
    story.expect(expect![[r#"
        1/1 > channel.close 406 PRECONDITION_FAILED - invalid arg 'x-cache-size' for exchange 'x' in vhost '/': it is missing; set how many keys are remembered, an integer from 1 to 1000000 (40,10)
        1/1 > channel.close 406 PRECONDITION_FAILED - invalid arg 'x-cache-size' for exchange 'x' in vhost '/': set how many keys are remembered, an integer from 1 to 1000000 (40,10)
        1/1 > channel.close 406 PRECONDITION_FAILED - invalid arg 'x-cache-size' for exchange 'x' in vhost '/': set how many keys are remembered, an integer from 1 to 1000000 (40,10)
        1/1 > channel.close 406 PRECONDITION_FAILED - invalid arg 'x-cache-size' for exchange 'x' in vhost '/': set how many keys are remembered, an integer from 1 to 1000000 (40,10)
        1/1 > channel.close 406 PRECONDITION_FAILED - invalid arg 'x-cache-ttl' for exchange 'x' in vhost '/': set how many milliseconds a key is remembered, an integer from 1 to 315360000000 (40,10)
        1/1 > channel.close 406 PRECONDITION_FAILED - invalid arg 'x-cache-persistence' for exchange 'x' in vhost '/': set 'disk' or 'memory', which are the same here (40,10)
        1/1 > channel.close 406 PRECONDITION_FAILED - invalid arg 'x-cache-size' for exchange 'x' in vhost '/': it is missing; set how many keys are remembered, an integer from 1 to 1000000 (40,10)
        1/1 > channel.close 406 PRECONDITION_FAILED - invalid arg 'x-cache-ttl' for queue 'q' in vhost '/': without x-cache-size a key is remembered as long as its message; set both or none (50,10)
        1/1 > channel.close 406 PRECONDITION_FAILED - invalid arg 'x-deduplication-header' for queue 'q' in vhost '/': set the name of a header (50,10)
        1/1 > channel.close 406 PRECONDITION_FAILED - invalid arg 'x-message-deduplication' for queue 'q' in vhost '/': it is a signedint; set it to true or false (50,10)
        1/1 > channel.close 406 PRECONDITION_FAILED - inequivalent arg 'x-cache-size' for queue 'there' in vhost '/': received '6' but current is '5' (50,10)
        1/1 > queue.declare-ok there, 0 messages, 0 consumers
        1/1 > channel.close 406 PRECONDITION_FAILED - inequivalent arg 'x-message-deduplication' for queue 'there' in vhost '/': received 'false' but current is 'true' (50,10)
        1/1 > channel.close 406 PRECONDITION_FAILED - inequivalent arg 'x-message-deduplication' for queue 'plain' in vhost '/': received 'true' but current is 'false' (50,10)
    "#]]);
}

#[test]
fn what_is_allowed_is_remembered_as_said() {
    let mut story = story();
    let most = FieldValue::I64(MAX_CACHE_SIZE as i64);
    let all =
        [("x-cache-size", most), ("x-cache-ttl", text_value("60000")), ("x-cache-persistence", text_value("disk"))];
    story.say(1, 1, [exchange_with("x", "x-message-deduplication", "", arguments(&all))]);
    story.say(1, 1, [exchange_with("x", "x-message-deduplication", "", arguments(&all))]);
    story.say(1, 1, [declare_with("a", "", arguments(&[("x-message-deduplication", FieldValue::Bool(false))]))]);
    story.say(1, 1, [declare("a", ""), keyed("a", "k", "1"), keyed("a", "k", "2")]);
    story.expect(expect![[r#"
        log 1 declare x-message-deduplication exchange x
        1/1 > exchange.declare-ok
        1/1 > exchange.declare-ok
        log 2 declare queue a
        1/1 > queue.declare-ok a, 0 messages, 0 consumers
        log 3 publish '1' to #2
        log 4 publish '2' to #2
        1/1 > queue.declare-ok a, 0 messages, 0 consumers
    "#]]);
}

/// Replicas of a version before would keep both messages.
#[test]
fn a_cluster_in_the_midst_of_an_upgrade_refuses() {
    let mut core = Core::new(1);
    core.set_cluster_version(2);
    core.promote(&mut Outputs::default());
    let mut story = Story::with(core);
    story.say(1, 1, [knowing("a", &[])]).say(1, 1, [remembering(5, &[])]);
    story.say(1, 1, [exchange_with("y", "topic", "", arguments(&[KNOWS, number("x-cache-size", 5)]))]);
    story.expect(expect![[r#"
        1/1 > channel.close 406 PRECONDITION_FAILED - invalid arg 'x-message-deduplication' for queue 'a' in vhost '/': not every replica of this cluster has a version that knows it; upgrade them all (50,10)
        1/1 > channel.close 406 PRECONDITION_FAILED - invalid arg 'type' for exchange 'x' in vhost '/': not every replica of this cluster has a version that knows it; upgrade them all (40,10)
        1/1 > channel.close 406 PRECONDITION_FAILED - invalid arg 'x-message-deduplication' for exchange 'y' in vhost '/': not every replica of this cluster has a version that knows it; upgrade them all (40,10)
    "#]]);
    // What an earlier version took, and did nothing about, stays what it was.
    let old = arguments(&[KNOWS]);
    let mut log = Story::with(promoted(Core::new(1)));
    log.say(1, 1, [declare("a", "durable")]);
    let (index, mut record) = log.log.remove(0);
    if let Record::QueueDeclare(spec) = &mut record {
        spec.arguments = old;
    }
    let mut core = Core::new(1);
    core.apply(index, &record).unwrap();
    let mut story = Story::with(promoted(core));
    story.say(1, 1, [keyed("a", "k", "1"), keyed("a", "k", "2"), knowing("a", &[])]).commit().expect(expect![[r#"
        log 2 publish '1' to #1
        log 3 publish '2' to #1
        1/1 > channel.close 406 PRECONDITION_FAILED - inequivalent arg 'x-message-deduplication' for queue 'a' in vhost '/': received 'true' but current is 'false'; it was declared when not every replica knew the argument: delete it and declare it again (50,10)
        committed 3, confirmable 3
    "#]]);
}
