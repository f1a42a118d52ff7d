//! Publisher confirms: when they go out, in which order, and what they speak for.

use expect_test::expect;
use understudy_protocol::BasicProperties;

use crate::harness::*;

#[test]
fn confirms_follow_the_confirm_horizon_and_deliveries_the_commit() {
    uncommitted_story()
        .say(1, 1, [declare("a", "durable"), select()])
        .commit()
        .say(2, 1, [consume("a", "c", "")])
        .skip()
        .say(1, 1, [persistent("a", "1"), persistent("a", "2"), persistent("a", "3")])
        .expect(expect![[r#"
            log 2 publish '1' to #1 persistent
            log 3 publish '2' to #1 persistent
            log 4 publish '3' to #1 persistent
        "#]])
        // Below minInSync the log is committed and delivered, and nothing is confirmed.
        .commit_to(3, 1)
        .expect(expect![[r#"
            committed 3, confirmable 1
            2/1 > deliver 1 to c: '1'
            2/1 > deliver 2 to c: '2'
        "#]])
        .commit_to(4, 3)
        .expect(expect![[r#"
            committed 4, confirmable 3
            1/1 > confirm up to 2
            2/1 > deliver 3 to c: '3'
        "#]])
        .commit_to(4, 4)
        .expect(expect![[r#"
            committed 4, confirmable 4
            1/1 > confirm 3
        "#]]);
}

#[test]
fn runs_become_one_confirm_and_channels_have_their_own() {
    uncommitted_story()
        .say(1, 1, [declare("a", ""), select()])
        .commit()
        .say(1, 2, [select()])
        .say(1, 3, [publish("a", "unconfirmed channel")])
        .skip()
        .say(1, 1, [publish("a", "1"), publish("a", "2")])
        .say(1, 2, [publish("a", "3")])
        .say(1, 1, [publish("a", "4")])
        .commit()
        .expect(expect![[r#"
            log 3 publish '1' to #1
            log 4 publish '2' to #1
            log 5 publish '3' to #1
            log 6 publish '4' to #1
            committed 6, confirmable 6
            1/1 > confirm up to 3
            1/2 > confirm 1
        "#]]);
}

/// What no queue takes is confirmed at once, but never in the name of an earlier publish that waits.
#[test]
fn unroutable_publishes_are_confirmed_at_once_and_for_themselves() {
    uncommitted_story()
        .say(1, 1, [declare("a", ""), select()])
        .commit()
        .skip()
        .say(1, 1, [publish("nowhere", "1"), publish("nowhere", "2"), publish("nowhere", "3")])
        .expect(expect![[r#"
            1/1 > confirm up to 3
        "#]])
        .say(1, 1, [publish("a", "4"), publish("nowhere", "5"), publish("nowhere", "6"), publish("a", "7")])
        .expect(expect![[r#"
            log 2 publish '4' to #1
            log 3 publish '7' to #1
            1/1 > confirm 5
            1/1 > confirm 6
        "#]])
        .commit()
        .expect(expect![[r#"
            committed 3, confirmable 3
            1/1 > confirm up to 7
        "#]]);
}

/// Case P6.
#[test]
fn a_mandatory_publish_that_nobody_takes_is_returned_before_its_confirm() {
    let properties = BasicProperties { message_id: Some(short("m")), ..BasicProperties::default() };
    story()
        .say(1, 1, [select(), publish_with("amq.direct", "k", "back", "mandatory", &properties)])
        .say(1, 1, [publish_with("", "nowhere", "back too", "mandatory", &properties), publish("nowhere", "dropped")])
        .say(1, 2, [publish_with("", "nowhere", "back without confirms", "mandatory", &properties)])
        .expect(expect![[r#"
            1/1 > confirm.select-ok
            1/1 > return 312 NO_ROUTE: 'back'
            1/1 > confirm 1
            1/1 > return 312 NO_ROUTE: 'back too'
            1/1 > confirm up to 3
            1/2 > return 312 NO_ROUTE: 'back without confirms'
        "#]]);
}

#[test]
fn a_closed_channel_confirms_nothing_and_its_successor_starts_over() {
    let mut story = uncommitted_story();
    story.say(1, 1, [declare("a", ""), select()]).commit().skip();
    story.say(1, 1, [publish("a", "1"), publish("a", "2"), understudy_core::Command::ChannelClose]);
    assert_eq!(story.core.unconfirmed(), 0);
    story.say(1, 1, [select(), publish("a", "3")]);
    assert_eq!(story.core.unconfirmed(), 1);
    story.commit().expect(expect![[r#"
        log 2 publish '1' to #1
        log 3 publish '2' to #1
        log 4 publish '3' to #1
        1/1 > confirm.select-ok
        committed 4, confirmable 4
        1/1 > confirm 1
    "#]]);
    assert_eq!(story.core.unconfirmed(), 0);
}

#[test]
fn a_deleted_queue_does_not_withhold_a_confirm() {
    uncommitted_story()
        .say(1, 1, [declare("a", ""), select()])
        .commit()
        .skip()
        .say(1, 1, [publish("a", "1"), delete("a", ""), publish("a", "2")])
        .commit()
        .expect(expect![[r#"
            log 2 publish '1' to #1
            log 3 delete queue #1
            committed 3, confirmable 3
            1/1 > queue.delete-ok, 1 messages
            1/1 > confirm up to 2
        "#]]);
}
