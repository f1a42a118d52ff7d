//! What clients say about their deliveries, and what comes back when they say nothing.

use expect_test::expect;
use understudy_core::Command;

use crate::harness::*;

fn with_deliveries() -> Story {
    let mut story = story();
    story.say(1, 1, [declare("a", ""), declare("b", ""), consume("a", "a", ""), consume("b", "b", "")]);
    story.say(2, 1, (1..=3).flat_map(|n| [publish("a", &format!("a{n}")), publish("b", &format!("b{n}"))]));
    story.skip();
    story
}

#[test]
fn acks_of_a_step_become_one_record_for_each_queue() {
    let mut story = with_deliveries();
    story.say(1, 1, [ack(1), ack_to(4), ack(6)]).expect(expect![[r#"
        log 9 dequeue 3 5 7 from #1
        log 10 dequeue 4 8 from #2
    "#]]);
    story.say(1, 1, [ack_to(0), ack_to(0)]).expect(expect![[r#"
        log 11 dequeue 6 from #2
    "#]]);
}

/// Case T8: the same message, its original place, redelivered.
#[test]
fn a_requeued_message_keeps_its_place() {
    story()
        .say(1, 1, [declare("a", ""), qos(1, false), consume("a", "c", "")])
        .say(2, 1, (1..=3).map(|n| publish("a", &n.to_string())))
        .skip()
        .say(1, 1, [nack(1, false, true)])
        .say(1, 1, [Command::BasicReject { delivery_tag: understudy_core::DeliveryTag(2), requeue: true }])
        .say(1, 1, [nack(3, false, false)])
        .expect(expect![[r#"
            log 5 requeue 2 in #1
            1/1 > deliver 2 to c: '1' redelivered x1
            log 6 requeue 2 in #1
            1/1 > deliver 3 to c: '1' redelivered x2
            log 7 dequeue 2 from #1
            1/1 > deliver 4 to c: '2'
        "#]]);
}

#[test]
fn a_requeue_and_a_get_in_one_step_find_each_other() {
    story()
        .say(1, 1, [declare("a", ""), publish("a", "1"), publish("a", "2"), get("a", "")])
        .skip()
        .say(1, 1, [nack(1, false, true), get("a", ""), get("a", "")])
        .expect(expect![[r#"
            log 4 requeue 2 in #1
            1/1 > get-ok 2: '1' redelivered x1, 1 left
            1/1 > get-ok 3: '2', 0 left
        "#]]);
}

#[test]
fn unknown_and_repeated_tags_close_the_channel_and_give_everything_back() {
    let mut story = with_deliveries();
    story.say(1, 1, [ack(2), ack(2)]).expect(expect![[r#"
        log 9 dequeue 5 from #1
        log 10 requeue 3 7 in #1
        log 11 requeue 4 6 8 in #2
        1/1 > channel.close 406 PRECONDITION_FAILED - unknown delivery tag 2 (60,80)
    "#]]);
    let mut story = with_deliveries();
    story.say(1, 1, [ack_to(7)]).say(3, 1, [nack(1, false, true)]).say(3, 1, [ack(0)]);
    story.expect(expect![[r#"
        log 9 requeue 3 5 7 in #1
        log 10 requeue 4 6 8 in #2
        1/1 > channel.close 406 PRECONDITION_FAILED - unknown delivery tag 7 (60,80)
        3/1 > channel.close 406 PRECONDITION_FAILED - unknown delivery tag 1 (60,120)
        3/1 > channel.close 406 PRECONDITION_FAILED - unknown delivery tag 0 (60,80)
    "#]]);
}

/// Cases H9 and T12: what a lost client held is delivered again, marked.
#[test]
fn what_a_lost_connection_held_is_redelivered_to_others() {
    let mut story = with_deliveries();
    story.say(1, 1, [ack(1)]).close_connection(1).expect(expect![[r#"
        log 9 dequeue 3 from #1
        log 10 requeue 5 7 in #1
        log 11 requeue 4 6 8 in #2
    "#]]);
    story.say(2, 1, [consume("a", "next", ""), get("b", "")]).expect(expect![[r#"
        2/1 > consume-ok next
        2/1 > get-ok 1: 'b1' redelivered x1, 2 left
        2/1 > deliver 2 to next: 'a2' redelivered x1
        2/1 > deliver 3 to next: 'a3' redelivered x1
    "#]]);
}

#[test]
fn recover_gives_everything_back_and_without_requeue_it_is_not_implemented() {
    let mut story = with_deliveries();
    story.say(1, 1, [ack_to(4), Command::BasicRecover { requeue: true }]).expect(expect![[r#"
        log 9 dequeue 3 5 7 from #1
        log 10 dequeue 4 from #2
        log 11 requeue 6 8 in #2
        1/1 > recover-ok
        1/1 > deliver 7 to b: 'b2' redelivered x1
        1/1 > deliver 8 to b: 'b3' redelivered x1
    "#]]);
    story.say(1, 1, [Command::BasicRecover { requeue: false }]).expect(expect![[r#"
        log 12 requeue 6 8 in #2
        1/1 > connection.close 540 NOT_IMPLEMENTED - requeue=false (60,110)
    "#]]);
}

#[test]
fn recover_async_is_recover_without_an_answer() {
    let mut story = with_deliveries();
    story.say(1, 1, [ack_to(4), Command::BasicRecoverAsync { requeue: true }]).expect(expect![[r#"
        log 9 dequeue 3 5 7 from #1
        log 10 dequeue 4 from #2
        log 11 requeue 6 8 in #2
        1/1 > deliver 7 to b: 'b2' redelivered x1
        1/1 > deliver 8 to b: 'b3' redelivered x1
    "#]]);
    story.say(1, 1, [Command::BasicRecoverAsync { requeue: false }]).expect(expect![[r#"
        log 12 requeue 6 8 in #2
        1/1 > connection.close 540 NOT_IMPLEMENTED - requeue=false (60,100)
    "#]]);
}

#[test]
fn nothing_is_held_back_by_a_reject_without_requeue() {
    let mut story = with_deliveries();
    story.say(1, 1, [nack(0, true, false)]).expect(expect![[r#"
        log 9 dequeue 3 5 7 from #1
        log 10 dequeue 4 6 8 from #2
    "#]]);
    assert_eq!(story.core.message_bytes(), 0);
}

/// A delivery that nobody acknowledges goes to somebody else in the end.
#[test]
fn a_channel_that_holds_a_delivery_for_too_long_is_closed() {
    let mut story = story();
    story.core.set_consumer_timeout(Some(std::time::Duration::from_secs(60)));
    let own = arguments(&[("x-consumer-timeout", understudy_protocol::FieldValue::I32(5_000))]);
    story
        .say(1, 1, [declare("a", ""), declare_with("b", "", own)])
        .say(1, 1, (0..3).map(|number| publish("a", &number.to_string())))
        .say(1, 1, [publish("b", "own")])
        .say(2, 1, [qos(1, false), consume("a", "c", "")])
        .say(3, 1, [qos(1, false), consume("b", "d", "")])
        .skip()
        // One that is at work holds none for long, and each later one has its own time.
        .wait(50_000)
        .expect(expect![[r#"
            log 7 requeue 6 in #2
            3/1 > channel.close 406 PRECONDITION_FAILED - delivery acknowledgement on channel 1 timed out. Timeout value used: 5000 ms. This timeout value can be configured, see consumers doc guide to learn more (0,0)
        "#]])
        .say(2, 1, [ack(1)])
        .wait(50_000)
        .say(2, 1, [ack(2)])
        .skip()
        .wait(50_000)
        .expect(expect![[r#""#]])
        .wait(11_000)
        .expect(expect![[r#"
            log 10 requeue 5 in #1
            2/1 > channel.close 406 PRECONDITION_FAILED - delivery acknowledgement on channel 1 timed out. Timeout value used: 60000 ms. This timeout value can be configured, see consumers doc guide to learn more (0,0)
        "#]]);
}
