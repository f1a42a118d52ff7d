//! Which consumer of a queue is preferred: by `x-priority`, or the one that is active alone.

use expect_test::expect;
use understudy_core::Command;
use understudy_protocol::FieldValue;

use crate::harness::*;

fn with_priority(queue: &str, tag: &str, priority: i32) -> Command {
    let Command::BasicConsume { queue, consumer_tag, no_local, no_ack, exclusive, no_wait, .. } =
        consume(queue, tag, "")
    else {
        unreachable!()
    };
    let arguments = arguments(&[("x-priority", FieldValue::I32(priority))]);
    Command::BasicConsume { queue, consumer_tag, no_local, no_ack, exclusive, no_wait, arguments }
}

fn single_active(name: &str) -> Command {
    declare_with(name, "", arguments(&[("x-single-active-consumer", FieldValue::Bool(true))]))
}

/// Those of a lower priority get what the higher ones cannot take; consumers of one priority take turns.
#[test]
fn the_highest_priority_that_may_take_messages_gets_them() {
    story()
        .say(1, 1, [declare("a", ""), qos(2, false)])
        .say(1, 1, [consume("a", "plain", ""), with_priority("a", "high", 5), with_priority("a", "low", -1)])
        .say(2, 1, [qos(2, false), with_priority("a", "high-too", 5)])
        .skip()
        .say(3, 1, (1..=6).map(|n| publish("a", &n.to_string())))
        .expect(expect![[r#"
            log 2 publish '1' to #1
            log 3 publish '2' to #1
            log 4 publish '3' to #1
            log 5 publish '4' to #1
            log 6 publish '5' to #1
            log 7 publish '6' to #1
            1/1 > deliver 1 to high: '1'
            2/1 > deliver 1 to high-too: '2'
            1/1 > deliver 2 to high: '3'
            2/1 > deliver 2 to high-too: '4'
            1/1 > deliver 3 to plain: '5'
            1/1 > deliver 4 to plain: '6'
        "#]])
        // Both take again, and are before the one that is in the middle of its turn.
        .say(1, 1, [ack(1), ack(2)])
        .say(3, 1, [publish("a", "7"), publish("a", "8"), publish("a", "9")])
        .expect(expect![[r#"
            log 8 dequeue 2 4 from #1
            log 9 publish '7' to #1
            log 10 publish '8' to #1
            log 11 publish '9' to #1
            1/1 > deliver 5 to high: '7'
            1/1 > deliver 6 to high: '8'
            1/1 > deliver 7 to low: '9'
        "#]]);
}

#[test]
fn one_consumer_is_active_until_it_goes_and_then_the_next() {
    story()
        .say(1, 1, [single_active("a"), consume("a", "x", ""), consume("a", "y", "")])
        .say(2, 1, [with_priority("a", "z", 1), publish("a", "1"), publish("a", "2")])
        .expect(expect![[r#"
            log 1 declare queue a
            1/1 > queue.declare-ok a, 0 messages, 0 consumers
            1/1 > consume-ok x
            1/1 > consume-ok y
            log 2 publish '1' to #1
            log 3 publish '2' to #1
            2/1 > consume-ok z
            1/1 > deliver 1 to x: '1'
            1/1 > deliver 2 to x: '2'
        "#]])
        // What it has not acknowledged stays with its channel.
        .say(1, 1, [cancel("x"), publish("a", "3")])
        .expect(expect![[r#"
            log 4 publish '3' to #1
            1/1 > cancel-ok x
            2/1 > deliver 1 to z: '3'
        "#]])
        .say(1, 1, [ack(1)])
        .close_connection(2)
        .expect(expect![[r#"
            log 5 dequeue 2 from #1
            log 6 requeue 4 in #1
            1/1 > deliver 3 to y: '3' redelivered x1
        "#]])
        .say(3, 1, [consume("a", "", "exclusive")])
        .expect(expect![[r#"
            3/1 > channel.close 403 ACCESS_REFUSED - queue 'a' in vhost '/' in exclusive use (60,20)
        "#]]);
}

/// The next one's consume-ok is not out yet.
#[test]
fn the_next_active_consumer_begins_after_its_consume_ok() {
    uncommitted_story()
        .say(1, 1, [single_active("a")])
        .commit()
        .skip()
        .say(1, 1, [consume("a", "x", ""), publish("a", "1")])
        .say(2, 1, [declare("other", ""), consume("a", "y", "")])
        .close_connection(1)
        .expect(expect![[r#"
            log 2 publish '1' to #1
            1/1 > consume-ok x
            log 3 declare queue other
        "#]])
        .commit()
        .expect(expect![[r#"
            committed 3, confirmable 3
            2/1 > queue.declare-ok other, 0 messages, 0 consumers
            2/1 > consume-ok y
            2/1 > deliver 1 to y: '1'
        "#]]);
}
