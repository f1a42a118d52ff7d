//! Who is handed what, how much of it, and in which turn.

use expect_test::expect;
use understudy_core::{Command, MAX_DELIVERIES_PER_STEP, Outputs};

use crate::harness::*;

#[test]
fn deliveries_come_after_consume_ok_and_after_the_commit() {
    uncommitted_story()
        .say(1, 1, [declare("a", ""), publish("a", "1"), publish("a", "2"), consume("a", "c", "")])
        .expect(expect![[r#"
            log 1 declare queue a
            log 2 publish '1' to #1
            log 3 publish '2' to #1
        "#]])
        .commit_to(2, 2)
        .expect(expect![[r#"
            committed 2, confirmable 2
            1/1 > queue.declare-ok a, 0 messages, 0 consumers
            1/1 > consume-ok c
            1/1 > deliver 1 to c: '1'
        "#]])
        .commit()
        .expect(expect![[r#"
            committed 3, confirmable 3
            1/1 > deliver 2 to c: '2'
        "#]]);
}

#[test]
fn consumers_take_turns() {
    story()
        .say(1, 1, [declare("a", ""), consume("a", "x", ""), consume("a", "y", "")])
        .say(2, 1, [consume("a", "z", "no-ack")])
        .skip()
        .say(3, 1, (1..=7).map(|n| publish("a", &n.to_string())))
        .expect(expect![[r#"
            log 2 publish '1' to #1
            log 3 publish '2' to #1
            log 4 publish '3' to #1
            log 5 publish '4' to #1
            log 6 publish '5' to #1
            log 7 publish '6' to #1
            log 8 publish '7' to #1
            log 9 dequeue 4 7 from #1
            1/1 > deliver 1 to x: '1'
            1/1 > deliver 2 to y: '2'
            2/1 > deliver 1 to z: '3'
            1/1 > deliver 3 to x: '4'
            1/1 > deliver 4 to y: '5'
            2/1 > deliver 2 to z: '6'
            1/1 > deliver 5 to x: '7'
        "#]]);
}

/// Case P14: without global, the limit of consumers yet to come.
#[test]
fn prefetch_is_the_limit_of_each_later_consumer() {
    story()
        .say(1, 1, [declare("a", ""), consume("a", "unlimited", ""), qos(2, false), consume("a", "two", "")])
        .skip()
        .say(2, 1, (1..=6).map(|n| publish("a", &n.to_string())))
        .expect(expect![[r#"
            log 2 publish '1' to #1
            log 3 publish '2' to #1
            log 4 publish '3' to #1
            log 5 publish '4' to #1
            log 6 publish '5' to #1
            log 7 publish '6' to #1
            1/1 > deliver 1 to unlimited: '1'
            1/1 > deliver 2 to two: '2'
            1/1 > deliver 3 to unlimited: '3'
            1/1 > deliver 4 to two: '4'
            1/1 > deliver 5 to unlimited: '5'
            1/1 > deliver 6 to unlimited: '6'
        "#]])
        .say(1, 1, [ack(2)])
        .say(2, 1, [publish("a", "7"), publish("a", "8")])
        .expect(expect![[r#"
            log 8 dequeue 3 from #1
            log 9 publish '7' to #1
            log 10 publish '8' to #1
            1/1 > deliver 7 to unlimited: '7'
            1/1 > deliver 8 to two: '8'
        "#]]);
}

/// Case P14: with global, shared by the channel; raising resumes, lowering stops until acks.
#[test]
fn a_global_prefetch_is_shared_by_the_channel_and_may_change() {
    let mut story = story();
    story.say(1, 1, [declare("a", ""), declare("b", ""), qos(2, true), consume("a", "x", ""), consume("b", "y", "")]);
    story.say(2, 1, (1..=5).flat_map(|n| [publish("a", &format!("a{n}")), publish("b", &format!("b{n}"))]));
    story.skip();
    story.say(1, 1, [ack(1)]).expect(expect![[r#"
        log 13 dequeue 3 from #1
        1/1 > deliver 3 to y: 'b1'
    "#]]);
    story.say(1, 1, [qos(4, true)]).expect(expect![[r#"
        1/1 > qos-ok
        1/1 > deliver 4 to x: 'a3'
        1/1 > deliver 5 to x: 'a4'
    "#]]);
    story.say(1, 1, [qos(1, true)]).say(1, 1, [ack_to(4)]).expect(expect![[r#"
        1/1 > qos-ok
        log 14 dequeue 5 7 from #1
        log 15 dequeue 4 from #2
    "#]]);
    story.say(1, 1, [ack(5)]).expect(expect![[r#"
        log 16 dequeue 9 from #1
        1/1 > deliver 6 to y: 'b2'
    "#]]);
    story.say(1, 1, [qos(0, true)]).expect(expect![[r#"
        1/1 > qos-ok
        1/1 > deliver 7 to x: 'a5'
        1/1 > deliver 8 to y: 'b3'
        1/1 > deliver 9 to y: 'b4'
        1/1 > deliver 10 to y: 'b5'
    "#]]);
}

#[test]
fn a_prefetch_of_65535_is_kept_to() {
    let mut story = story();
    story.say(1, 1, [declare("a", ""), qos(65_535, false), consume("a", "c", "")]).skip();
    story.say(2, 1, (0..65_600).map(|_| publish("a", "x")));
    assert_eq!(story.take_text().matches("1/1 > deliver").count(), 65_535);
    story.say(1, 1, [ack(1), ack(65_535)]);
    assert_eq!(story.take_text().matches("1/1 > deliver").count(), 2);
}

/// Case T10: what the cancelled consumer has outstanding does not count for the new one.
#[test]
fn a_new_consumer_has_its_own_limit() {
    story()
        .say(1, 1, [declare("a", ""), qos(1, false), consume("a", "old", "")])
        .say(2, 1, (1..=4).map(|n| publish("a", &n.to_string())))
        .skip()
        .say(1, 1, [cancel("old"), qos(2, false), consume("a", "new", "")])
        .say(1, 1, [ack(1)])
        .say(1, 1, [ack(2)])
        .expect(expect![[r#"
            1/1 > cancel-ok old
            1/1 > qos-ok
            1/1 > consume-ok new
            1/1 > deliver 2 to new: '2'
            1/1 > deliver 3 to new: '3'
            log 6 dequeue 2 from #1
            log 7 dequeue 3 from #1
            1/1 > deliver 4 to new: '4'
        "#]]);
}

/// Case P9, and the race in it.
#[test]
fn consumers_of_a_deleted_queue_are_told_if_they_understand() {
    story()
        .say(1, 1, [declare("a", ""), consume("a", "understands", ""), publish("a", "1")])
        .say(9, 1, [consume("a", "does not", "")])
        .skip()
        .say(2, 1, [delete("a", "")])
        .say(1, 1, [cancel("understands"), ack(1), cancel("never was")])
        .expect(expect![[r#"
            log 3 delete queue #1
            1/1 > cancel understands
            2/1 > queue.delete-ok, 0 messages
            1/1 > cancel-ok understands
            1/1 > cancel-ok never was
        "#]]);
}

/// Case P11.
#[test]
fn a_tag_is_unique_on_its_channel_only() {
    let mut story = story();
    story.say(1, 1, [declare("a", "")]);
    (1..=100).for_each(|channel| _ = story.say(1, channel, [consume("a", "tag", "")]));
    story.skip().say(1, 7, [consume("a", "tag", "")]).expect(expect![[r#"
        1/7 > connection.close 530 NOT_ALLOWED - attempt to reuse consumer tag 'tag' (60,20)
    "#]]);
}

#[test]
fn a_tag_is_free_again_after_its_cancel() {
    story()
        .say(1, 1, [declare("a", ""), consume("a", "tag", ""), cancel("tag"), consume("a", "tag", "")])
        .say(1, 1, [consume("a", "", "")])
        .expect(expect![[r#"
            log 1 declare queue a
            1/1 > queue.declare-ok a, 0 messages, 0 consumers
            1/1 > consume-ok tag
            1/1 > cancel-ok tag
            1/1 > consume-ok tag
            1/1 > consume-ok amq.ctag-…
        "#]]);
}

#[test]
fn an_exclusive_consumer_is_alone() {
    let mut story = story();
    story.say(
        1,
        1,
        [declare("a", ""), declare("b", ""), consume("a", "only", "exclusive"), consume("b", "shared", "")],
    );
    story.skip();
    story.say(2, 1, [consume("a", "second", "")]).say(2, 1, [consume("b", "only", "exclusive")]);
    story.say(1, 1, [cancel("only")]).say(2, 1, [consume("a", "second", "")]);
    story.expect(expect![[r#"
        2/1 > channel.close 403 ACCESS_REFUSED - queue 'a' in vhost '/' in exclusive use (60,20)
        2/1 > channel.close 403 ACCESS_REFUSED - queue 'b' in vhost '/' in exclusive use (60,20)
        1/1 > cancel-ok only
        2/1 > consume-ok second
    "#]]);
}

#[test]
fn a_client_that_does_not_read_gets_nothing_more_and_others_do() {
    story()
        .say(1, 1, [declare("a", ""), consume("a", "slow", "no-ack")])
        .say(2, 1, [consume("a", "quick", "no-ack")])
        .skip()
        .writable(1, false)
        .say(3, 1, (1..=3).map(|n| publish("a", &n.to_string())))
        .expect(expect![[r#"
            log 2 publish '1' to #1
            log 3 publish '2' to #1
            log 4 publish '3' to #1
            log 5 dequeue 2 3 4 from #1
            2/1 > deliver 1 to quick: '1'
            2/1 > deliver 2 to quick: '2'
            2/1 > deliver 3 to quick: '3'
        "#]])
        .writable(1, true)
        .say(3, 1, [publish("a", "4"), publish("a", "5")])
        .expect(expect![[r#"
            log 6 publish '4' to #1
            log 7 publish '5' to #1
            log 8 dequeue 6 7 from #1
            2/1 > deliver 4 to quick: '4'
            1/1 > deliver 1 to slow: '5'
        "#]]);
}

#[test]
fn what_is_consumed_without_acks_leaves_the_log_in_batches() {
    story()
        .say(1, 1, [declare("a", "")])
        .say(1, 1, (1..=4).map(|n| publish("a", &n.to_string())))
        .skip()
        .say(1, 1, [consume("a", "c", "no-ack")])
        .expect(expect![[r#"
            log 6 dequeue 2 3 4 5 from #1
            1/1 > consume-ok c
            1/1 > deliver 1 to c: '1'
            1/1 > deliver 2 to c: '2'
            1/1 > deliver 3 to c: '3'
            1/1 > deliver 4 to c: '4'
        "#]]);
}

#[test]
fn get_takes_one_and_says_how_many_are_left() {
    uncommitted_story()
        .say(1, 1, [declare("a", ""), get("a", "")])
        .commit()
        .expect(expect![[r#"
            log 1 declare queue a
            committed 1, confirmable 1
            1/1 > queue.declare-ok a, 0 messages, 0 consumers
            1/1 > get-empty
        "#]])
        // What was just published is found, and handed over with its commit.
        .say(1, 1, [publish("a", "1"), publish("a", "2"), get("a", ""), get("a", "no-ack"), get("a", "")])
        .expect(expect![[r#"
            log 2 publish '1' to #1
            log 3 publish '2' to #1
            log 4 dequeue 3 from #1
        "#]])
        .commit()
        .say(1, 1, [ack(1)])
        .expect(expect![[r#"
            committed 4, confirmable 4
            1/1 > get-ok 1: '1', 1 left
            1/1 > get-ok 2: '2', 0 left
            1/1 > get-empty
            log 5 dequeue 2 from #1
        "#]]);
}

#[test]
fn a_step_hands_out_a_bounded_number_from_each_queue_in_turn() {
    let mut story = uncommitted_story();
    story.say(1, 1, [declare("a", ""), declare("b", "")]);
    story.say(1, 1, (0..MAX_DELIVERIES_PER_STEP).flat_map(|_| [publish("a", "a"), publish("b", "b")])).commit().skip();
    let mut out = Outputs::default();
    let (connection, channel) = (understudy_core::ConnectionId(1), understudy_core::ChannelId(1));
    for queue in ["a", "b"] {
        story.core.handle(connection, channel, consume(queue, queue, "no-ack no-wait"), &mut out);
    }
    assert!(story.core.deliver(&mut out), "there is more");
    assert_eq!(out.effects.len(), MAX_DELIVERIES_PER_STEP);
    let bodies = |out: &Outputs| {
        let deliveries = out.effects.iter().filter_map(|effect| match &effect.kind {
            understudy_core::EffectKind::BasicDeliver { message, .. } => Some(message.body.to_contiguous()),
            _ => None,
        });
        deliveries.filter(|body| body == "a").count()
    };
    assert_eq!(bodies(&out), MAX_DELIVERIES_PER_STEP / 2, "both queues had their turns");
    let mut rest = Outputs::default();
    assert!(!story.core.deliver(&mut rest) || rest.effects.len() == MAX_DELIVERIES_PER_STEP);
    story.core.assert_consistent();
}

#[test]
fn a_cancelled_consumer_s_deliveries_can_still_be_settled() {
    story()
        .say(1, 1, [declare("a", ""), publish("a", "1"), publish("a", "2"), consume("a", "c", ""), cancel("c")])
        .say(1, 1, [consume("a", "c", "")])
        .say(1, 1, [cancel("c"), ack(1), nack(2, false, true)])
        .say(1, 1, [Command::ChannelClose])
        .expect(expect![[r#"
            log 1 declare queue a
            log 2 publish '1' to #1
            log 3 publish '2' to #1
            1/1 > queue.declare-ok a, 0 messages, 0 consumers
            1/1 > consume-ok c
            1/1 > cancel-ok c
            1/1 > consume-ok c
            1/1 > deliver 1 to c: '1'
            1/1 > deliver 2 to c: '2'
            log 4 dequeue 2 from #1
            log 5 requeue 3 in #1
            1/1 > cancel-ok c
        "#]]);
}

/// Who deletes a queue that it consumes from has the answer first, as from RabbitMQ.
#[test]
fn the_delete_ok_comes_before_the_cancel() {
    story()
        .say(1, 1, [declare("a", ""), consume("a", "c", "")])
        .say(2, 1, [consume("a", "d", "")])
        .skip()
        .say(1, 1, [delete("a", "")])
        .expect(expect![[r#"
            log 2 delete queue #1
            1/1 > queue.delete-ok, 0 messages
            1/1 > cancel c
            2/1 > cancel d
        "#]]);
}
