//! Direct reply-to: requests and answers without a queue for the answers.

use expect_test::expect;
use understudy_core::{Command, EffectKind, MAX_WAITING_ANSWERS_BYTES, Outputs};
use understudy_protocol::{BasicProperties, Properties};
use understudy_record::Record;

use crate::harness::*;

const PSEUDO_QUEUE: &str = "amq.rabbitmq.reply-to";

fn request(queue: &str, body: &str) -> Command {
    let properties = BasicProperties { reply_to: Some(short(PSEUDO_QUEUE)), ..BasicProperties::default() };
    publish_with("", queue, body, "", &properties)
}

fn mandatory(key: &str, body: &str) -> Command {
    publish_with("", key, body, "mandatory", &BasicProperties::default())
}

/// What stands in the `reply-to` of the last message that was written.
fn reply_name(story: &Story) -> String {
    let published = story.log.iter().rev().find_map(|(_, record)| match record {
        Record::Publish { message, .. } => Some(Properties::from_raw(message.properties.clone())),
        _ => None,
    });
    published.unwrap().reply_to().unwrap().to_string()
}

/// `name` is another with each seed.
fn told(story: &mut Story, name: &str) -> String {
    story.take_text().replace(name, "NAME")
}

/// Case P12.
#[test]
fn an_answer_goes_straight_to_the_channel_that_asked() {
    let mut story = story();
    story.say(2, 1, [declare("work", ""), consume("work", "server", "no-ack")]).say(
        1,
        1,
        [consume(PSEUDO_QUEUE, "mine", "no-ack"), request("work", "ask")],
    );
    let name = reply_name(&story);
    assert!(name.starts_with("amq.rabbitmq.reply-to.") && name.len() > 30, "{name}");
    story.skip();
    story.say(2, 1, [declare(&name, "passive"), publish(&name, "answer"), select(), mandatory(&name, "another")]);
    expect![[r#"
        2/1 > queue.declare-ok NAME, 0 messages, 1 consumers
        2/1 > confirm.select-ok
        2/1 > return 312 NO_ROUTE: 'another'
        2/1 > confirm 1
        1/1 > deliver 1 to mine: 'answer'
        1/1 > deliver 2 to mine: 'another'
    "#]]
    .assert_eq(&told(&mut story, &name));
    // Nobody is there any more.
    story.say(1, 1, [cancel("mine")]).skip();
    story.say(2, 1, [mandatory(&name, "late"), declare(&name, "passive")]);
    expect![[r#"
        2/1 > return 312 NO_ROUTE: 'late'
        2/1 > confirm 2
        2/1 > channel.close 404 NOT_FOUND - no queue 'NAME' in vhost '/' (50,10)
    "#]]
    .assert_eq(&told(&mut story, &name));
}

#[test]
fn it_takes_a_consumer_that_gives_no_acknowledgements_one_a_channel() {
    story()
        .say(1, 1, [declare("work", ""), request("work", "ask")])
        .say(2, 1, [consume(PSEUDO_QUEUE, "c", "")])
        .say(3, 1, [consume(PSEUDO_QUEUE, "c", "no-ack"), consume(PSEUDO_QUEUE, "d", "no-ack")])
        .say(4, 1, [declare(PSEUDO_QUEUE, ""), get(PSEUDO_QUEUE, "")])
        .say(5, 1, [declare("amq.rabbitmq.reply-to.nobody", "passive")])
        .say(6, 1, [consume(PSEUDO_QUEUE, "c", "no-ack"), consume("work", "c", "")])
        .expect(expect![[r#"
            log 1 declare queue work
            1/1 > queue.declare-ok work, 0 messages, 0 consumers
            1/1 > channel.close 406 PRECONDITION_FAILED - fast reply consumer does not exist (60,40)
            2/1 > channel.close 406 PRECONDITION_FAILED - reply consumer cannot acknowledge (60,20)
            3/1 > consume-ok c
            3/1 > channel.close 406 PRECONDITION_FAILED - reply consumer already set (60,20)
            4/1 > queue.declare-ok amq.rabbitmq.reply-to, 0 messages, 1 consumers
            4/1 > channel.close 404 NOT_FOUND - no queue 'amq.rabbitmq.reply-to' in vhost '/' (60,70)
            5/1 > channel.close 404 NOT_FOUND - no queue 'amq.rabbitmq.reply-to.nobody' in vhost '/' (50,10)
            6/1 > consume-ok c
            6/1 > connection.close 530 NOT_ALLOWED - attempt to reuse consumer tag 'c' (60,20)
        "#]]);
}

/// An answer may come before the consume-ok is out, which waits for another reply.
#[test]
fn the_consume_ok_comes_first() {
    let mut story = uncommitted_story();
    story.say(2, 1, [declare("work", "")]).commit().skip();
    story.say(1, 1, [declare("slow", ""), consume(PSEUDO_QUEUE, "c", "no-ack"), request("work", "ask")]);
    let name = reply_name(&story);
    story.say(2, 1, [publish(&name, "early")]).commit();
    expect![[r#"
        log 2 declare queue slow
        log 3 publish 'ask' to #1
        committed 3, confirmable 3
        1/1 > queue.declare-ok slow, 0 messages, 0 consumers
        1/1 > consume-ok c
        1/1 > deliver 1 to c: 'early'
    "#]]
    .assert_eq(&told(&mut story, &name));
}

#[test]
fn what_is_published_in_a_transaction_comes_with_its_commit() {
    let mut story = story();
    story.say(2, 1, [declare("work", "")]);
    story.say(1, 1, [consume(PSEUDO_QUEUE, "c", "no-ack"), request("work", "ask")]);
    let name = reply_name(&story);
    story.skip();
    story.say(2, 1, [Command::TxSelect, publish(&name, "answer")]);
    expect![[r#"
        2/1 > tx.select-ok
    "#]]
    .assert_eq(&told(&mut story, &name));
    story.say(2, 1, [Command::TxCommit]);
    expect![[r#"
        2/1 > tx.commit-ok
        1/1 > deliver 1 to c: 'answer'
    "#]]
    .assert_eq(&told(&mut story, &name));
}

/// Answers wait for a client that does not read, up to a bound.
#[test]
fn a_client_that_does_not_read_gets_the_first_answers_later_and_not_all() {
    let mut story = story();
    story.say(2, 1, [declare("work", "")]);
    story.say(1, 1, [consume(PSEUDO_QUEUE, "c", "no-ack"), request("work", "ask")]);
    let name = reply_name(&story);
    story.writable(1, false);
    let body = "x".repeat(1 << 20);
    for _ in 0..20 {
        story.say(2, 1, [publish(&name, &body)]);
    }
    story.skip().writable(1, true);
    let deliveries = told(&mut story, &name).matches("deliver").count() as u64;
    assert_eq!(deliveries, MAX_WAITING_ANSWERS_BYTES / (1 << 20) - 1, "each is a little more than its body");
    story.say(2, 1, [publish(&name, "and on")]);
    assert!(told(&mut story, &name).contains("'and on'"));
}

/// The parts stay in the log as long as the answer is on its way.
#[test]
fn a_large_answer_s_parts_are_there_until_it_is_sent() {
    let mut story = story();
    story.say(2, 1, [declare("work", "")]);
    story.say(1, 1, [consume(PSEUDO_QUEUE, "c", "no-ack"), request("work", "ask")]);
    let name = reply_name(&story);
    story.skip();
    let mut out = Outputs::default();
    let channel = understudy_core::ChannelId(1);
    for command in [part("first part "), publish(&name, "and the rest")] {
        story.core.handle(understudy_core::ConnectionId(2), channel, command, &mut out);
    }
    story.core.deliver(&mut out);
    let answer = out.effects.iter().find_map(|effect| match &effect.kind {
        EffectKind::BasicDeliver { message, .. } => Some(message.clone()),
        _ => None,
    });
    let parts = answer.unwrap().parts.clone().unwrap();
    assert_eq!(story.core.pinned_parts(), *parts);
    drop((out, parts));
    assert_eq!(story.core.pinned_parts(), []);
}
