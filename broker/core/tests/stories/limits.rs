//! Queues with a limit on what is ready in them. Case T5.

use bytes::Bytes;
use expect_test::expect;
use understudy_core::{Command, MAX_DROPPED_PER_STEP};
use understudy_protocol::FieldValue;

use crate::harness::*;

fn limit(name: &str, value: i32) -> (&str, FieldValue) {
    (name, FieldValue::I32(value))
}

fn limited(queue: &str, limits: &[(&str, FieldValue)]) -> Command {
    declare_with(queue, "", arguments(limits))
}

fn publishes(queue: &str, numbers: std::ops::RangeInclusive<u32>) -> Vec<Command> {
    numbers.map(|number| publish(queue, &number.to_string())).collect()
}

#[test]
fn the_oldest_go_and_what_consumers_have_does_not_count() {
    story()
        .say(1, 1, [limited("a", &[limit("x-max-length", 2)])])
        .say(1, 1, publishes("a", 1..=4))
        .expect(expect![[r#"
            log 1 declare queue a
            1/1 > queue.declare-ok a, 0 messages, 0 consumers
            log 2 publish '1' to #1
            log 3 publish '2' to #1
            log 4 publish '3' to #1
            log 5 publish '4' to #1
            log 6 dequeue 2 3 from #1
        "#]])
        .say(2, 1, [qos(1, false), consume("a", "c", "")])
        .say(1, 1, publishes("a", 5..=6))
        .expect(expect![[r#"
            2/1 > qos-ok
            2/1 > consume-ok c
            2/1 > deliver 1 to c: '3'
            log 7 publish '5' to #1
            log 8 publish '6' to #1
            log 9 dequeue 5 from #1
        "#]])
        // It comes back to a full queue, as the oldest of it.
        .close_connection(2)
        .expect(expect![[r#"
            log 10 requeue 4 in #1
            log 11 dequeue 4 from #1
        "#]]);
}

/// Whoever takes all there is takes it also from a queue that may hold nothing.
#[test]
fn what_somebody_takes_at_once_is_not_in_the_way() {
    story()
        .say(1, 1, [limited("a", &[limit("x-max-length", 0)]), consume("a", "c", "")])
        .skip()
        .say(1, 1, publishes("a", 1..=3))
        .say(1, 1, [cancel("c")])
        .say(1, 1, [publish("a", "4")])
        .expect(expect![[r#"
            log 2 publish '1' to #1
            log 3 publish '2' to #1
            log 4 publish '3' to #1
            1/1 > deliver 1 to c: '1'
            1/1 > deliver 2 to c: '2'
            1/1 > deliver 3 to c: '3'
            1/1 > cancel-ok c
            log 5 publish '4' to #1
            log 6 dequeue 5 from #1
        "#]]);
}

#[test]
fn only_what_is_committed_goes() {
    uncommitted_story()
        .say(1, 1, [limited("a", &[limit("x-max-length", 1)])])
        .say(1, 1, publishes("a", 1..=3))
        .skip()
        .commit_to(3, 3)
        .expect(expect![[r#"
            committed 3, confirmable 3
            log 5 dequeue 2 3 from #1
            1/1 > queue.declare-ok a, 0 messages, 0 consumers
        "#]])
        .commit()
        .expect(expect![[r#"
            committed 5, confirmable 5
        "#]]);
}

/// Ten bytes: a body of four is in twice, one of eleven never.
#[test]
fn bytes_are_limited_too() {
    story()
        .say(1, 1, [limited("a", &[limit("x-max-length-bytes", 10)])])
        .say(1, 1, ["four", "more", "last", "eleven byte"].map(|body| publish("a", body)))
        .expect(expect![[r#"
            log 1 declare queue a
            1/1 > queue.declare-ok a, 0 messages, 0 consumers
            log 2 publish 'four' to #1
            log 3 publish 'more' to #1
            log 4 publish 'last' to #1
            log 5 publish 'eleven byte' to #1
            log 6 dequeue 2 3 4 5 from #1
        "#]]);
}

#[test]
fn a_full_queue_refuses_if_it_is_told_to_and_the_others_take_their_copy() {
    let full = [limit("x-max-length", 1), ("x-overflow", text_value("reject-publish"))];
    story()
        .say(1, 1, [limited("a", &full), declare("b", ""), select()])
        .say(1, 1, [bind("a", "amq.fanout", ""), bind("b", "amq.fanout", "")])
        .skip()
        .say(1, 1, [publish_to("amq.fanout", "", "1"), publish_to("amq.fanout", "", "2"), publish("a", "3")])
        .expect(expect![[r#"
            log 5 publish '1' to #1 #2
            log 6 publish '2' to #2
            1/1 > refuse 2
            1/1 > refuse 3
            1/1 > confirm 1
        "#]])
        // One that somebody has been given makes room.
        .say(2, 1, [get("a", "")])
        .say(1, 1, [publish("a", "4")])
        .say(3, 1, [publish("a", "to nobody's knowledge")])
        .expect(expect![[r#"
            2/1 > get-ok 1: '1', 0 left
            log 7 publish '4' to #1
            1/1 > confirm 4
        "#]]);
}

/// Case T9: all of it or nothing.
#[test]
fn a_transaction_that_a_queue_refuses_is_refused() {
    let full = [limit("x-max-length", 1), ("x-overflow", text_value("reject-publish"))];
    story()
        .say(1, 1, [limited("a", &full), declare("b", ""), Command::TxSelect])
        .skip()
        .say(1, 1, [publish("b", "1"), publish("a", "2"), publish("a", "3"), Command::TxCommit])
        .expect(expect![[r#"
            1/1 > channel.close 406 PRECONDITION_FAILED - tx.commit: queue 'a' in vhost '/' is full (90,20)
        "#]]);
}

/// A new primary looks at all of them.
#[test]
fn a_limit_holds_after_a_failover() {
    let mut story = uncommitted_story();
    story.say(1, 1, [limited("a", &[limit("x-max-length", 1)])]).say(1, 1, publishes("a", 1..=3)).skip();
    story.restarted().say(1, 1, []).say(1, 1, [get("a", "")]).expect(expect![[r#"
        1/1 > get-ok 1: '3' redelivered, 0 left
    "#]]);
}

/// What it took it keeps, though what its consumers had comes back to it.
#[test]
fn a_queue_that_refuses_drops_nothing() {
    let full = [limit("x-max-length", 1), ("x-overflow", text_value("reject-publish"))];
    let mut story = story();
    story.say(1, 1, [limited("a", &full)]);
    for number in ["1", "2", "3"] {
        story.say(1, 1, [publish("a", number)]).say(2, 1, [get("a", "")]);
    }
    story.say(1, 1, [publish("a", "4")]).skip();
    let passive = || [declare_with("a", "passive", Bytes::new())];
    story.restarted().say(1, 1, passive()).expect(expect![[r#"
        1/1 > queue.declare-ok a, 4 messages, 0 consumers
    "#]]);
    story.close_connection(2).say(3, 1, passive()).expect(expect![[r#"
        log 6 requeue 2 3 4 in #1
        3/1 > queue.declare-ok a, 4 messages, 0 consumers
    "#]]);
}

#[test]
fn a_step_drops_a_bounded_number() {
    let mut story = uncommitted_story();
    let count = MAX_DROPPED_PER_STEP as u32 + 10;
    story.say(1, 1, [limited("a", &[limit("x-max-length", 0)])]).say(1, 1, publishes("a", 1..=count)).skip();
    story.commit();
    let dropped: Vec<usize> = story
        .log
        .iter()
        .filter_map(|(_, record)| match record {
            understudy_record::Record::Dequeue { messages, .. } => Some(messages.len()),
            _ => None,
        })
        .collect();
    assert_eq!(dropped, [MAX_DROPPED_PER_STEP, 10]);
}

/// The limit holds all the same; where dead letters go is in `dead_letters`.
#[test]
fn a_queue_whose_dead_letter_exchange_is_not_there_drops_its_oldest() {
    let arguments = [limit("x-max-length", 1), ("x-dead-letter-exchange", text_value("dlx"))];
    let mut story = story();
    story.say(1, 1, [limited("a", &arguments)]).say(1, 1, publishes("a", 1..=3)).skip();
    story.say(1, 1, [declare_with("a", "passive", Bytes::new())]).expect(expect![[r#"
        1/1 > queue.declare-ok a, 1 messages, 0 consumers
    "#]]);
}
