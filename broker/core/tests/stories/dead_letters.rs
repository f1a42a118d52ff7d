//! Messages that leave their queue without having been consumed. Cases T2, T4, T5, T9, T13.

use bytes::Bytes;
use expect_test::expect;
use understudy_core::{Command, Outputs};
use understudy_protocol::FieldValue;

use crate::harness::*;

fn dying(exchange: &str, more: &[(&str, FieldValue)]) -> Bytes {
    let first = ("x-dead-letter-exchange", text_value(exchange));
    arguments(&[&[first], more].concat())
}

fn limit(name: &str, value: i32) -> (&str, FieldValue) {
    (name, FieldValue::I32(value))
}

/// `a`'s dead letters go to `b`, by the default exchange.
fn a_dies_into_b() -> Vec<Command> {
    let key = ("x-dead-letter-routing-key", text_value("b"));
    vec![declare_with("a", "durable", dying("", &[key])), declare("b", "durable")]
}

#[test]
fn what_is_rejected_changes_its_place_at_once() {
    let mut story = story();
    story
        .say(1, 1, a_dies_into_b())
        .say(1, 1, [persistent("a", "one"), publish("a", "two"), publish("a", "three"), consume("a", "c", "")])
        .skip()
        .say(1, 1, [nack(2, true, false), ack(3)])
        .say(1, 1, [get("b", ""), get("b", "")])
        .expect(expect![[r#"
            log 6 dequeue 5 from #1
            log 7 staged 'one' (rejected in a x1) for #2 persistent
            log 8 staged 'two' (rejected in a x1) for #2
            log 9 transaction of 2 staged, dequeue 3 4 from #1
            1/1 > get-ok 4: 'one' (rejected in a x1), 1 left
            1/1 > get-ok 5: 'two' (rejected in a x1), 0 left
        "#]]);
    assert_eq!(story.replica().replicated_text(), story.core.replicated_text());
}

#[test]
fn without_somewhere_to_go_it_is_dropped() {
    story()
        .say(1, 1, [declare_with("a", "", dying("gone", &[])), declare_with("b", "", dying("amq.direct", &[]))])
        .say(1, 1, [publish("a", "one"), publish("b", "two"), consume("a", "c", ""), consume("b", "d", "")])
        .skip()
        .say(1, 1, [nack(0, true, false)])
        .expect(expect![[r#"
            log 5 dequeue 3 from #1
            log 6 dequeue 4 from #2
        "#]]);
}

/// What has left memory is read back, in order.
#[test]
fn what_is_not_in_memory_dies_when_it_has_been_read() {
    let mut story = story();
    story
        .say(1, 1, a_dies_into_b())
        .say(1, 1, [publish("a", "one"), publish("a", "two"), publish("a", "three"), consume("a", "c", "")])
        .evict()
        .hold_loads()
        .skip()
        .say(1, 1, [nack(2, false, false), nack(1, false, false)])
        .say(1, 1, [get("b", "")])
        .answer()
        .expect(expect![[r#"
            load 3 4 for #1
            1/1 > get-empty
            log 6 staged 'two' (rejected in a x1) for #2
            log 7 staged 'one' (rejected in a x1) for #2
            log 8 transaction of 2 staged, dequeue 4 3 from #1
        "#]]);
}

#[test]
fn what_is_on_its_way_out_goes_with_its_queue_and_survives_a_purge() {
    story()
        .say(1, 1, a_dies_into_b())
        .say(1, 1, [publish("a", "one"), publish("a", "two"), consume("a", "c", "")])
        .evict()
        .hold_loads()
        .skip()
        .say(1, 1, [nack(1, false, false), purge("a")])
        .answer()
        .expect(expect![[r#"
            1/1 > queue.purge-ok, 0 messages
            load 3 for #1
            log 5 staged 'one' (rejected in a x1) for #2
            log 6 transaction of 1 staged, dequeue 3 from #1
        "#]])
        .evict()
        .say(1, 1, [nack(2, false, false)])
        .say(1, 1, [delete("a", "")])
        .answer()
        .expect(expect![[r#"
            load 4 for #1
            log 7 delete queue #1
            1/1 > queue.delete-ok, 0 messages
            1/1 > cancel c
        "#]]);
}

#[test]
fn the_oldest_of_a_full_queue_die() {
    story()
        .say(1, 1, [declare_with("a", "", dying("amq.fanout", &[limit("x-max-length", 1)])), declare("b", "")])
        .say(1, 1, [bind("b", "amq.fanout", "")])
        .skip()
        .say(1, 1, [publish("a", "one"), publish("a", "two"), publish("a", "three")])
        .expect(expect![[r#"
            log 4 publish 'one' to #1
            log 5 publish 'two' to #1
            log 6 publish 'three' to #1
            log 7 staged 'one' (maxlen in a x1) for #2
            log 8 staged 'two' (maxlen in a x1) for #2
            log 9 transaction of 2 staged, dequeue 4 5 from #1
        "#]]);
}

/// Case T5: the publisher is told, the other queue keeps its copy, and the refused one dies.
#[test]
fn what_a_full_queue_refuses_dies_too() {
    let refusing = |queue: &str| {
        let rules = [limit("x-max-length", 0), ("x-overflow", text_value("reject-publish-dlx"))];
        declare_with(queue, "", dying("amq.fanout", &rules))
    };
    let mut story = story();
    story
        .say(1, 1, [refusing("a"), declare("b", ""), declare("c", "")])
        .say(1, 1, [bind("a", "amq.direct", "k"), bind("b", "amq.direct", "k"), bind("c", "amq.fanout", ""), select()])
        .skip()
        .say(1, 1, [publish("a", "one"), publish_to("amq.direct", "k", "two")])
        .expect(expect![[r#"
            log 7 publish 'one' (maxlen in a x1) to #3
            log 8 publish 'two' to #2
            log 9 publish 'two' (maxlen in a x1) to #3
            1/1 > refuse 1
            1/1 > refuse 2
        "#]])
        // The parts of a large one are for one message.
        .say(1, 1, [part("thr"), publish("a", "ee"), part("fo"), publish_to("amq.direct", "k", "ur")])
        .expect(expect![[r#"
            log 10 part 'thr'
            log 11 publish [10] 'ee' (maxlen in a x1) to #3
            log 12 part 'fo'
            log 13 publish [12] 'ur' to #2
            1/1 > refuse 3
            1/1 > refuse 4
        "#]]);
    assert_eq!(story.core.unclaimed_parts().len(), 0);
}

#[test]
fn what_comes_back_too_often_dies() {
    let mut story = story();
    let rules = [limit("x-delivery-limit", 1)];
    story
        .say(1, 1, [declare_with("a", "", dying("amq.fanout", &rules)), declare("b", "")])
        .say(1, 1, [declare_with("c", "", arguments(&rules)), bind("b", "amq.fanout", "")])
        .say(1, 1, [publish("a", "one"), publish("c", "two"), consume("a", "c", ""), consume("c", "d", "")])
        .skip()
        .say(1, 1, [nack(0, true, true)])
        .close_connection(1)
        .expect(expect![[r#"
            log 7 requeue 5 in #1
            log 8 requeue 6 in #3
            1/1 > deliver 3 to c: 'one' redelivered x1
            1/1 > deliver 4 to d: 'two' redelivered x1
            log 9 dequeue 6 from #3
            log 10 staged 'one' (delivery_limit in a x1) for #2
            log 11 transaction of 1 staged, dequeue 5 from #1
        "#]]);
}

/// Case T13.
#[test]
fn a_circle_ends_unless_somebody_rejects() {
    let back = |to: &str, limits: &[(&str, FieldValue)]| {
        let key = ("x-dead-letter-routing-key", text_value(to));
        dying("", &[&[key], limits].concat())
    };
    let mut story = story();
    story
        // To itself, and it is full at once.
        .say(1, 1, [declare_with("self", "", back("self", &[limit("x-max-length", 0)]))])
        .say(1, 1, [declare_with("a", "", back("b", &[limit("x-max-length", 0)]))])
        .say(1, 1, [declare_with("b", "", back("a", &[]))])
        .skip()
        .say(1, 1, [publish("self", "one"), publish("a", "two")])
        .expect(expect![[r#"
            log 4 publish 'one' to #1
            log 5 publish 'two' to #2
            log 6 dequeue 4 from #1
            log 7 staged 'two' (maxlen in a x1) for #3
            log 8 transaction of 1 staged, dequeue 5 from #2
        "#]])
        .say(1, 1, [consume("b", "c", "")])
        .say(1, 1, [nack(1, false, false)])
        .say(1, 1, [nack(2, false, false)])
        .expect(expect![[r#"
            1/1 > consume-ok c
            1/1 > deliver 1 to c: 'two' (maxlen in a x1)
            log 9 staged 'two' (rejected in b x1, maxlen in a x1) for #2
            log 10 transaction of 1 staged, dequeue 7 from #3
            log 11 staged 'two' (maxlen in a x2, rejected in b x1) for #3
            log 12 transaction of 1 staged, dequeue 9 from #2
            1/1 > deliver 2 to c: 'two' (maxlen in a x2, rejected in b x1)
            log 13 staged 'two' (rejected in b x2, maxlen in a x2) for #2
            log 14 transaction of 1 staged, dequeue 11 from #3
            log 15 staged 'two' (maxlen in a x3, rejected in b x2) for #3
            log 16 transaction of 1 staged, dequeue 13 from #2
            1/1 > deliver 3 to c: 'two' (maxlen in a x3, rejected in b x2)
        "#]]);
}

#[test]
fn a_large_message_is_written_again_in_parts() {
    let mut story = story();
    story
        .say(1, 1, a_dies_into_b())
        .say(1, 1, [part("one"), part("two"), publish("a", "three"), publish("a", "four"), consume("a", "c", "")])
        .evict()
        .skip()
        .say(1, 1, [nack(0, true, false)])
        .say(1, 1, [get("b", "no-ack"), get("b", "no-ack")])
        .expect(expect![[r#"
            log 7 part 'one'
            log 8 part 'two'
            log 9 staged [7] [8] 'three' (rejected in a x1) for #2
            log 10 transaction of 1 staged, dequeue 5 from #1
            log 11 staged 'four' (rejected in a x1) for #2
            log 12 transaction of 1 staged, dequeue 6 from #1
            log 13 dequeue 9 from #2
            log 14 dequeue 11 from #2
            1/1 > get-ok 3: [7] [8] 'three' (rejected in a x1), 1 left
            1/1 > get-ok 4: 'four' (rejected in a x1), 0 left
        "#]]);
    assert_eq!(story.core.parts(), 0);
    assert_eq!(story.replica().replicated_text(), story.core.replicated_text());
}

#[test]
fn a_large_message_that_loses_its_way_leaves_nothing() {
    // Its target goes, or its own queue, while its parts are copied.
    for victim in ["b", "a"] {
        let mut story = uncommitted_story();
        story.say(1, 1, a_dies_into_b());
        story.say(1, 1, [part("one"), part("two"), publish("a", "three")]);
        story.commit();
        story.say(1, 1, [consume("a", "c", "")]);
        story.commit();
        story.hold_parts().say(1, 1, [nack(1, false, false)]).answer_parts();
        assert_eq!(story.core.unclaimed_parts().len(), 1);
        story.say(1, 1, [delete(victim, "")]).answer_parts().commit();
        assert_eq!((story.core.parts(), story.core.unclaimed_parts().len()), (0, 0), "without {victim}");
        let stats = story.core.stats();
        assert_eq!((stats.messages_ready, stats.messages_unacked), (0, 0), "without {victim}");
    }
}

#[test]
fn a_transaction_takes_its_rejected_along() {
    let mut story = story();
    story
        .say(1, 1, a_dies_into_b())
        .say(1, 1, [publish("a", "one"), publish("a", "two"), consume("a", "c", "")])
        .skip()
        .say(1, 1, [Command::TxSelect, nack(1, false, false), publish("b", "three"), Command::TxCommit])
        .expect(expect![[r#"
            log 5 staged 'three' for #2
            log 6 staged 'one' (rejected in a x1) for #2
            log 7 transaction of 2 staged, dequeue 3 from #1
            1/1 > tx.select-ok
            1/1 > tx.commit-ok
        "#]])
        // It has left memory: it is read, and follows.
        .evict()
        .say(1, 1, [nack(2, false, false), Command::TxCommit])
        .expect(expect![[r#"
            1/1 > tx.commit-ok
            log 8 staged 'two' (rejected in a x1) for #2
            log 9 transaction of 1 staged, dequeue 4 from #1
        "#]]);
}

/// Whatever the log ends with, a message is in one of its queues, and in one only.
#[test]
fn a_failover_finds_each_message_once() {
    let mut story = story();
    story.say(1, 1, a_dies_into_b());
    story.say(1, 1, [publish("a", "one"), publish("a", "two"), consume("a", "c", "")]);
    story.say(1, 1, [nack(0, true, false)]);
    for end in 0..=story.log.len() {
        let mut core = understudy_core::Core::new(4);
        story.log[..end].iter().for_each(|(index, record)| core.apply(*index, record).unwrap());
        let published = story.log[..end].iter().filter(|(_, r)| matches!(r, understudy_record::Record::Publish { .. }));
        let published = published.count();
        let mut out = Outputs::default();
        core.append(epoch_start(), &mut out);
        core.promote(&mut out);
        assert_eq!(core.stats().messages_ready, published, "after {end} records");
    }
}
