//! Messages and queues that leave by themselves. Cases T1, T2, T6.

use expect_test::expect;
use understudy_core::{Command, Core, Outputs};
use understudy_protocol::{BasicProperties, FieldValue};
use understudy_record::Index;

use crate::harness::*;

fn with(queue: &str, more: &[(&str, FieldValue)]) -> Command {
    declare_with(queue, "durable", arguments(more))
}

fn number(name: &str, value: i32) -> (&str, FieldValue) {
    (name, FieldValue::I32(value))
}

/// It stays for so many milliseconds.
fn passing(queue: &str, body: &str, ms: &str) -> Command {
    let expiration = Some(short(ms));
    publish_with("", queue, body, "", &BasicProperties { expiration, ..BasicProperties::default() })
}

#[test]
fn it_leaves_after_its_own_time_or_its_queues_whichever_is_shorter() {
    let mut story = story();
    story
        .say(1, 1, [with("a", &[number("x-message-ttl", 50)]), declare("b", "durable")])
        .say(1, 1, [publish("a", "one"), passing("a", "two", "10"), passing("a", "three", "90")])
        .say(1, 1, [publish("b", "four"), passing("b", "five", "+60")])
        .wait(9)
        .expect(expect![[r#"
            log 1 declare queue a durable
            log 2 declare queue b durable
            1/1 > queue.declare-ok a, 0 messages, 0 consumers
            1/1 > queue.declare-ok b, 0 messages, 0 consumers
            log 3 it is 1000000
            log 4 publish 'one' to #1
            log 5 publish 'two' to #1
            log 6 publish 'three' to #1
            log 7 publish 'four' to #2
            log 8 publish 'five' to #2
        "#]])
        .wait(1)
        .wait(39)
        .expect(expect![[r#"
            log 9 dequeue 5 from #1
        "#]])
        .wait(1)
        .wait(10)
        .expect(expect![[r#"
            log 10 dequeue 4 6 from #1
            log 11 dequeue 8 from #2
        "#]])
        .say(1, 1, [get("a", ""), get("b", "")])
        .expect(expect![[r#"
            1/1 > get-empty
            1/1 > get-ok 1: 'four', 0 left
        "#]]);
    assert_eq!(story.replica().replicated_text(), story.core.replicated_text());
}

/// Case T1. RabbitMQ keeps it behind the head.
#[test]
fn it_leaves_wherever_it_is_in_the_queue() {
    story()
        .say(1, 1, [declare("a", ""), publish("a", "one"), passing("a", "two", "10"), passing("a", "three", "5")])
        .say(1, 1, [passing("a", "four", "7")])
        .skip()
        .wait(5)
        .wait(2)
        .wait(3)
        .expect(expect![[r#"
            log 7 dequeue 5 from #1
            log 8 dequeue 6 from #1
            log 9 dequeue 4 from #1
        "#]]);
}

/// Case T1: however late somebody looks at it.
#[test]
fn what_is_due_is_never_delivered() {
    let mut story = uncommitted_story();
    story.say(1, 1, [declare("a", ""), passing("a", "one", "10"), publish("a", "two")]).commit().skip();
    story.core.set_time(understudy_core::Time { wall_ms: 1_000_010, steady: std::time::Duration::from_secs(2) });
    story.say(1, 1, [get("a", "no-ack"), consume("a", "c", "")]).commit().expect(expect![[r#"
        log 5 dequeue 3 4 from #1
        1/1 > get-ok 1: 'two', 0 left
        1/1 > consume-ok c
        committed 5, confirmable 5
    "#]]);
}

#[test]
fn what_lives_no_time_goes_to_who_waits_for_it() {
    story()
        .say(1, 1, [with("a", &[number("x-message-ttl", 0)]), publish("a", "one")])
        .expect(expect![[r#"
            log 1 declare queue a durable
            log 2 it is 1000000
            log 3 publish 'one' to #1
            1/1 > queue.declare-ok a, 0 messages, 0 consumers
        "#]])
        .say(1, 1, [consume("a", "c", "")])
        .say(1, 1, [publish("a", "two")])
        .expect(expect![[r#"
            log 4 dequeue 3 from #1
            1/1 > consume-ok c
            log 5 publish 'two' to #1
            1/1 > deliver 1 to c: 'two'
        "#]]);
}

/// What consumers have does not expire; what comes back late does.
#[test]
fn a_delivered_message_is_due_when_it_comes_back() {
    story()
        .say(1, 1, [declare("a", ""), passing("a", "one", "10"), passing("a", "two", "30"), consume("a", "c", "")])
        .skip()
        .wait(20)
        .say(1, 1, [cancel("c"), nack(0, true, true)])
        .expect(expect![[r#"
            log 5 requeue 3 4 in #1
            log 6 dequeue 3 from #1
            1/1 > cancel-ok c
        "#]])
        .wait(10)
        .expect(expect![[r#"
            log 7 dequeue 4 from #1
        "#]]);
}

/// Case T2.
#[test]
fn what_expires_dies() {
    let mut story = story();
    let rules = [("x-dead-letter-exchange", text_value("")), ("x-dead-letter-routing-key", text_value("b"))];
    story
        .say(1, 1, [with("a", &rules), with("b", &[number("x-message-ttl", 100)])])
        .say(1, 1, [passing("a", "one", "20"), passing("a", "two", "10"), publish("a", "three")])
        .evict()
        .skip()
        .wait(10)
        .wait(10)
        .expect(expect![[r#"
            log 7 it is 1000010
            log 8 staged 'two' (expired in a x1) for #2
            log 9 transaction of 1 staged, dequeue 5 from #1
            log 10 it is 1000020
            log 11 staged 'one' (expired in a x1) for #2
            log 12 transaction of 1 staged, dequeue 4 from #1
        "#]])
        // It has its own time there, and not the old one.
        .wait(89)
        .wait(1)
        .wait(10)
        .expect(expect![[r#"
            log 13 dequeue 8 from #2
            log 14 dequeue 11 from #2
        "#]]);
    assert_eq!(story.replica().replicated_text(), story.core.replicated_text());
}

/// Cases T1, T13: a delay queue that returns to where the message was rejected.
#[test]
fn a_retry_comes_round_as_often_as_it_is_rejected() {
    let to = |queue| [("x-dead-letter-exchange", text_value("")), ("x-dead-letter-routing-key", text_value(queue))];
    story()
        .say(
            1,
            1,
            [with("work", &to("wait")), with("wait", &[&to("work")[..], &[number("x-message-ttl", 5)]].concat())],
        )
        .say(1, 1, [publish("work", "one"), consume("work", "c", "")])
        .skip()
        .say(1, 1, [nack(1, false, false)])
        .wait(5)
        .say(1, 1, [nack(2, false, false)])
        .wait(5)
        .say(1, 1, [publish("wait", "two")])
        .wait(5)
        .expect(expect![[r#"
            log 4 it is 1000000
            log 5 staged 'one' (rejected in work x1) for #2
            log 6 transaction of 1 staged, dequeue 3 from #1
            log 7 staged 'one' (expired in wait x1, rejected in work x1) for #1
            log 8 transaction of 1 staged, dequeue 5 from #2
            1/1 > deliver 2 to c: 'one' (expired in wait x1, rejected in work x1)
            log 9 it is 1000005
            log 10 staged 'one' (rejected in work x2, expired in wait x1) for #2
            log 11 transaction of 1 staged, dequeue 7 from #1
            log 12 staged 'one' (expired in wait x2, rejected in work x2) for #1
            log 13 transaction of 1 staged, dequeue 10 from #2
            1/1 > deliver 3 to c: 'one' (expired in wait x2, rejected in work x2)
            log 14 it is 1000010
            log 15 publish 'two' to #2
            log 16 staged 'two' (expired in wait x1) for #1
            log 17 transaction of 1 staged, dequeue 15 from #2
            1/1 > deliver 4 to c: 'two' (expired in wait x1)
        "#]]);
}

#[test]
fn many_that_expire_at_once_die_in_order() {
    let mut story = story();
    let rules = [("x-dead-letter-exchange", text_value("")), ("x-dead-letter-routing-key", text_value("b"))];
    story.say(1, 1, [with("a", &[&rules[..], &[number("x-message-ttl", 10)]].concat()), declare("b", "durable")]);
    story.say(1, 1, (0..5_000).map(|number| publish("a", &number.to_string()))).skip();
    story.wait(10);
    for _ in 0..20 {
        story.wait(20);
    }
    story.skip();
    story.say(1, 1, [declare("b", "passive"), declare("a", "passive")]).expect(expect![[r#"
        1/1 > queue.declare-ok b, 5000 messages, 0 consumers
        1/1 > queue.declare-ok a, 0 messages, 0 consumers
    "#]]);
    let bodies: Vec<u32> = story
        .log
        .iter()
        .filter_map(|(_, record)| match record {
            understudy_record::Record::Staged { message, .. } => {
                String::from_utf8(message.body.to_contiguous().to_vec()).unwrap().parse().ok()
            }
            _ => None,
        })
        .collect();
    assert!(bodies.is_sorted() && bodies.len() == 5_000);
}

/// Another primary goes on with the deadlines that were there, by its own clock.
#[test]
fn deadlines_survive_the_primary() {
    let mut story = story();
    story.say(1, 1, [with("a", &[number("x-message-ttl", 100)]), publish("a", "one")]).wait(40);
    story.say(1, 1, [publish("a", "two"), passing("a", "three", "10")]);
    let last = story.core.last_index();
    let mut restored = Core::new(5);
    checkpoint(&story.core, last).into_iter().for_each(|piece| restored.apply_base(piece).unwrap());
    assert_eq!(restored.replicated_text(), story.core.replicated_text());
    for core in [story.replica(), restored] {
        let mut next = story.successor(promote(core));
        next.read_from(&story);
        next.commit().skip();
        // A story begins at the same time.
        next.wait(49).expect(expect![[r#""#]]);
        next.wait(1).commit().skip();
        next.wait(49).expect(expect![[r#""#]]);
        let text = next.wait(1).take_text();
        assert_eq!(text.trim(), "log 8 dequeue 3 from #1");
    }
}

fn promote(mut core: Core) -> Core {
    let mut out = Outputs::default();
    core.set_cluster_version(3);
    core.handle_committed(Index(0), Index(0), &mut out);
    core.promote(&mut out);
    core
}

/// A replica that does not know the time takes no part in this: nothing expires before all of them do.
#[test]
fn nothing_expires_in_an_old_cluster() {
    let mut core = Core::new(1);
    core.set_cluster_version(2);
    core.promote(&mut Outputs::default());
    let mut story = Story::with(core);
    story.say(1, 1, [declare("a", ""), passing("a", "one", "10")]).commit().skip();
    story.wait(1_000).expect(expect![[r#""#]]);
}

/// Case T6.
#[test]
fn a_queue_goes_when_nobody_uses_it() {
    let rules = [number("x-expires", 100), ("x-dead-letter-exchange", text_value("amq.fanout"))];
    let mut story = story();
    story
        .say(1, 1, [with("a", &rules), declare("b", "durable"), bind("b", "amq.fanout", "")])
        .skip()
        .wait(90)
        .say(1, 1, [publish("a", "one"), get("a", "")])
        .wait(90)
        .say(1, 1, [declare("a", "passive")])
        .wait(90)
        .say(1, 1, [with("a", &rules), consume("a", "c", "")])
        .wait(900)
        .say(1, 1, [cancel("c")])
        .wait(90)
        .say(1, 1, [publish("a", "two")])
        .expect(expect![[r#"
            log 4 publish 'one' to #1
            1/1 > get-ok 1: 'one', 0 left
            1/1 > queue.declare-ok a, 0 messages, 0 consumers
            1/1 > queue.declare-ok a, 0 messages, 0 consumers
            1/1 > consume-ok c
            1/1 > cancel-ok c
            log 5 publish 'two' to #1
        "#]])
        .wait(10)
        .expect(expect![[r#"
            log 6 delete queue #1
        "#]]);
}
