//! Queues with priorities. Case T7.

use expect_test::expect;
use understudy_core::{Command, Core};
use understudy_protocol::{BasicProperties, FieldValue};

use crate::harness::*;

fn ranked(queue: &str, more: &[(&str, FieldValue)]) -> Command {
    declare_with(queue, "durable", arguments(&[&[("x-max-priority", FieldValue::I32(5))], more].concat()))
}

fn urgent(queue: &str, body: &str, priority: u8) -> Command {
    let priority = Some(priority);
    publish_with("", queue, body, "", &BasicProperties { priority, ..BasicProperties::default() })
}

fn mixed() -> Vec<Command> {
    vec![
        publish("a", "none"),
        urgent("a", "two", 2),
        urgent("a", "nine", 9),
        urgent("a", "five", 5),
        urgent("a", "zero", 0),
        urgent("a", "two again", 2),
    ]
}

#[test]
fn the_highest_priority_comes_first_and_the_oldest_of_it() {
    story()
        .say(1, 1, [ranked("a", &[])])
        .say(1, 1, mixed())
        .skip()
        .say(1, 1, [qos(2, false), consume("a", "c", "")])
        .say(1, 1, [nack(2, false, true)])
        .say(1, 1, [ack(1), ack(3)])
        .say(1, 1, [urgent("a", "late", 4), ack_to(0)])
        .say(1, 1, [ack_to(0)])
        .expect(expect![[r#"
            1/1 > qos-ok
            1/1 > consume-ok c
            1/1 > deliver 1 to c: 'nine'
            1/1 > deliver 2 to c: 'five'
            log 8 requeue 5 in #1
            1/1 > deliver 3 to c: 'five' redelivered x1
            log 9 dequeue 4 5 from #1
            1/1 > deliver 4 to c: 'two'
            1/1 > deliver 5 to c: 'two again'
            log 10 publish 'late' to #1
            log 11 dequeue 3 7 from #1
            1/1 > deliver 6 to c: 'late'
            1/1 > deliver 7 to c: 'none'
            log 12 dequeue 10 2 from #1
            1/1 > deliver 8 to c: 'zero'
        "#]]);
}

#[test]
fn priorities_are_the_same_on_every_replica() {
    let mut story = story();
    story.say(1, 1, [ranked("a", &[])]).say(1, 1, mixed()).skip();
    let last = story.core.last_index();
    let mut restored = Core::new(5);
    checkpoint(&story.core, last).into_iter().for_each(|piece| restored.apply_base(piece).unwrap());
    assert_eq!(restored.replicated_text(), story.core.replicated_text());
    assert_eq!(story.replica().replicated_text(), story.core.replicated_text());
    for core in [story.replica(), restored] {
        let mut next = story.successor(promoted(core));
        next.commit().skip();
        next.say(1, 1, [consume("a", "c", "no-ack")]);
        let text = next.commit().take_text();
        let bodies: Vec<_> = text.lines().filter_map(|line| line.split('\'').nth(1)).collect();
        assert_eq!(bodies, ["nine", "five", "two", "two again", "none", "zero"]);
    }
}

/// What is read back is what comes next, whatever is on the other lanes.
#[test]
fn what_has_left_memory_comes_in_the_same_order() {
    story()
        .say(1, 1, [ranked("a", &[])])
        .say(1, 1, mixed())
        .evict()
        .hold_loads()
        .skip()
        .say(1, 1, [qos(1, false), consume("a", "c", "")])
        .answer()
        .say(1, 1, [urgent("a", "late", 4), ack(1)])
        .say(1, 1, [ack(2)])
        .say(1, 1, [ack(3)])
        .expect(expect![[r#"
            1/1 > qos-ok
            1/1 > consume-ok c
            load 2 3 4 5 6 7 for #1
            1/1 > deliver 1 to c: 'nine'
            log 8 publish 'late' to #1
            log 9 dequeue 4 from #1
            1/1 > deliver 2 to c: 'five'
            log 10 dequeue 5 from #1
            1/1 > deliver 3 to c: 'late'
            log 11 dequeue 8 from #1
            1/1 > deliver 4 to c: 'two'
        "#]]);
}

/// Unlike in RabbitMQ, where what is most urgent would go first.
#[test]
fn the_least_urgent_go_from_a_full_queue() {
    story().say(1, 1, [ranked("a", &[("x-max-length", FieldValue::I32(3))])]).skip().say(1, 1, mixed()).expect(
        expect![[r#"
            log 2 publish 'none' to #1
            log 3 publish 'two' to #1
            log 4 publish 'nine' to #1
            log 5 publish 'five' to #1
            log 6 publish 'zero' to #1
            log 7 publish 'two again' to #1
            log 8 dequeue 2 3 6 from #1
        "#]],
    );
}

#[test]
fn a_purge_takes_all_priorities_but_what_is_delivered() {
    let mut story = story();
    story
        .say(1, 1, [ranked("a", &[])])
        .say(1, 1, mixed())
        .say(1, 1, [qos(1, false), consume("a", "c", "")])
        .say(1, 1, [purge("a")])
        .skip()
        .say(1, 1, [declare("a", "passive"), nack(1, false, true)])
        .expect(expect![[r#"
            log 9 requeue 4 in #1
            1/1 > queue.declare-ok a, 0 messages, 1 consumers
            1/1 > deliver 2 to c: 'nine' redelivered x1
        "#]]);
    assert_eq!(story.core.stats().messages_unacked, 1);
}
