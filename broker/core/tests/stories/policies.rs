//! Policies: what they set holds at once, for what they match, and on every replica.

use expect_test::expect;
use understudy_core::{AdminCommand, Core};
use understudy_protocol::FieldValue;
use understudy_record::{ApplyTo, PolicySpec};

use crate::harness::*;

fn number(value: i32) -> FieldValue {
    FieldValue::I32(value)
}

fn for_what(mut policy: AdminCommand, apply_to: ApplyTo) -> AdminCommand {
    if let AdminCommand::SetPolicy { policy: PolicySpec { apply_to: to, .. }, .. } = &mut policy {
        *to = apply_to;
    }
    policy
}

fn publishes(queue: &str, numbers: std::ops::RangeInclusive<u32>) -> Vec<understudy_core::Command> {
    numbers.map(|number| publish(queue, &number.to_string())).collect()
}

#[test]
fn a_shorter_limit_drops_at_once_and_a_longer_one_gives_nothing_back() {
    let mut story = story();
    story.say(1, 1, [declare("a", ""), declare("b", "")]).say(1, 1, publishes("a", 1..=4));
    story.say(1, 1, publishes("b", 1..=3)).skip();
    story.administer([policy("short", "^a", 0, &[("max-length", number(2))])]);
    story.administer([policy("short", "^a", 0, &[("max-length", number(1))])]);
    story.administer([policy("short", "^a", 0, &[("max-length", number(1))])]);
    story.administer([policy("short", "^b", 0, &[("max-length", number(1))])]).say(1, 1, publishes("a", 5..=6));
    story.administer([clear_policy("short"), clear_policy("short")]).say(1, 1, publishes("b", 4..=5));
    story.expect(expect![[r#"
        log 10 policy short in @0 for all '^a', priority 0
        log 11 dequeue 3 4 from #1
        log 12 policy short in @0 for all '^a', priority 0
        log 13 dequeue 5 from #1
        as it was
        log 14 policy short in @0 for all '^b', priority 0
        log 15 dequeue 7 8 from #2
        log 16 publish '5' to #1
        log 17 publish '6' to #1
        refused: there is no policy 'short' in virtual host '/'
        log 18 delete policy short in @0
        log 19 publish '4' to #2
        log 20 publish '5' to #2
    "#]]);
    assert_eq!(story.replica().replicated_text(), story.core.replicated_text());
}

#[test]
fn only_the_highest_priority_counts_and_an_operator_s_bounds_it() {
    let mut story = story();
    story.administer([
        policy("low", "", 1, &[("max-length", number(1)), ("message-ttl", number(5))]),
        policy("high", "^a", 2, &[("max-length", number(3))]),
        policy("same", "^a", 2, &[("max-length", number(9))]),
    ]);
    story.say(1, 1, [declare("a", ""), declare("b", "")]).say(1, 1, publishes("a", 1..=4)).skip();
    // What the lower one sets besides does not count, and no message expires.
    story.say(1, 1, [get("a", "no-ack")]).wait(10).say(1, 1, [declare("a", "passive")]);
    story.expect(expect![[r#"
        log 11 dequeue 7 from #4
        1/1 > get-ok 1: '2', 2 left
        1/1 > queue.declare-ok a, 2 messages, 0 consumers
    "#]]);
    story.administer([operator(policy("bound", "^a", 0, &[("max-length", number(2)), ("message-ttl", number(9))]))]);
    story.say(1, 1, publishes("a", 5..=5)).wait(9);
    story.expect(expect![[r#"
        log 12 operator policy bound in @0 for all '^a', priority 0
        log 13 it is 1000010
        log 14 publish '5' to #4
        log 15 dequeue 8 from #4
        log 16 dequeue 14 from #4
    "#]]);
    // Without any other's it stands alone; one that is larger bounds nothing.
    story.administer([clear_policy("high"), clear_policy("same"), clear_policy("low")]).skip();
    story.administer([operator(policy("bound", "^a", 0, &[("max-length", number(1))]))]);
    story.administer([operator(policy("bound", "^a", 0, &[("max-length", number(5))]))]);
    story.administer([policy("low", "", 0, &[("max-length", number(0))])]);
    story.expect(expect![[r#"
        log 20 operator policy bound in @0 for all '^a', priority 0
        log 21 operator policy bound in @0 for all '^a', priority 0
        log 22 policy low in @0 for all '', priority 0
        log 23 dequeue 9 from #4
    "#]]);
}

#[test]
fn arguments_and_policies_together() {
    let mut story = story();
    let own = [("x-max-length", number(2)), ("x-overflow", text_value("reject-publish"))];
    let quorum = [&own[..], &[("x-queue-type", text_value("quorum"))]].concat();
    story.say(1, 1, [declare_with("c", "", arguments(&own)), declare_with("q", "durable", arguments(&quorum))]);
    story.administer([policy("p", "", 0, &[("max-length", number(3)), ("overflow", text_value("drop-head"))])]).skip();
    // The smaller number; how it overflows is the argument's, of a quorum queue the policy's.
    story.say(1, 1, [select()]).say(1, 1, publishes("c", 1..=3)).say(1, 1, publishes("q", 1..=3));
    story.expect(expect![[r#"
        1/1 > confirm.select-ok
        log 4 publish '1' to #1
        log 5 publish '2' to #1
        1/1 > refuse 3
        1/1 > confirm up to 2
        log 6 publish '1' to #2
        log 7 publish '2' to #2
        log 8 publish '3' to #2
        log 9 dequeue 6 from #2
        1/1 > confirm up to 6
    "#]]);
    story.administer([policy("p", "", 0, &[("max-length", number(1)), ("overflow", text_value("drop-head"))])]);
    story.expect(expect![[r#"
        log 10 policy p in @0 for all '', priority 0
        log 11 dequeue 7 from #2
    "#]]);
}

#[test]
fn a_policy_applies_to_kinds_and_not_where_it_sets_what_the_type_does_not_have() {
    let mut story = story();
    let quorum = arguments(&[("x-queue-type", text_value("quorum"))]);
    let drop = [("max-length", number(0))];
    story.say(1, 1, [declare("c", ""), declare_with("q", "durable", quorum)]);
    let fill = |story: &mut Story| {
        story.skip().say(1, 1, [publish("c", "c"), publish("q", "q")]);
    };
    for apply_to in [ApplyTo::ClassicQueues, ApplyTo::QuorumQueues, ApplyTo::Queues] {
        fill(&mut story);
        story.skip().administer([for_what(policy("p", "", 0, &drop), apply_to)]).administer([clear_policy("p")]);
        let text = story.take_text();
        let gone = |queue: &str| text.contains(&format!("from #{queue}"));
        assert_eq!(gone("1"), apply_to != ApplyTo::QuorumQueues, "{text}");
        assert_eq!(gone("2"), apply_to != ApplyTo::ClassicQueues, "{text}");
    }
    for (apply_to, also, classic, quorum) in [
        (ApplyTo::Exchanges, "max-length-bytes", false, false),
        (ApplyTo::Streams, "max-length-bytes", false, false),
        (ApplyTo::All, "delivery-limit", false, true),
        (ApplyTo::All, "ha-mode", true, false),
    ] {
        fill(&mut story);
        let drop = [drop[0].clone(), (also, number(1_000_000))];
        story.skip().administer([for_what(policy("p", "", 0, &drop), apply_to)]).administer([clear_policy("p")]);
        let text = story.take_text();
        assert_eq!(text.contains("from #1"), classic, "{also}: {text}");
        assert_eq!(text.contains("from #2"), quorum, "{also}: {text}");
    }
}

#[test]
fn dead_letters_and_what_no_binding_takes_go_where_a_policy_says() {
    let mut story = story();
    story.say(1, 1, [declare("a", ""), declare("dead", ""), declare("more", ""), exchange("x", "fanout", "")]);
    story.say(1, 1, [bind("more", "x", "")]).administer([
        policy(
            "dlx",
            "^a$",
            0,
            &[("dead-letter-exchange", text_value("")), ("dead-letter-routing-key", text_value("dead"))],
        ),
        policy("ae", r"^amq\.direct$", 0, &[("alternate-exchange", text_value("x"))]),
    ]);
    story.say(1, 1, [publish("a", "1"), publish("a", "2")]).skip();
    story.say(1, 1, [publish_to("amq.direct", "nobody", "3"), get("a", ""), nack(1, false, false)]);
    story.administer([clear_policy("dlx"), clear_policy("ae")]);
    story.say(1, 1, [publish_to("amq.direct", "nobody", "4"), get("a", ""), nack(2, false, false)]);
    story.expect(expect![[r#"
        log 10 publish '3' to #3
        log 11 staged '1' (rejected in a x1) for #2
        log 12 transaction of 1 staged, dequeue 8 from #1
        1/1 > get-ok 1: '1', 1 left
        log 13 delete policy dlx in @0
        log 14 delete policy ae in @0
        log 15 dequeue 9 from #1
        1/1 > get-ok 2: '2', 0 left
    "#]]);
}

/// The letter's parts that are written by then are dropped.
#[test]
fn a_large_letter_may_be_wanted_no_more() {
    let mut story = story();
    story.say(1, 1, [declare("a", ""), declare("dead", "")]);
    let letters = [("dead-letter-exchange", text_value("")), ("dead-letter-routing-key", text_value("dead"))];
    story.administer([policy("dlx", "^a$", 0, &letters)]);
    story.say(1, 1, [part("one"), part("two"), publish("a", "three")]);
    story.hold_parts().say(1, 1, [get("a", ""), nack(1, false, false)]).answer_parts().skip();
    story.administer([clear_policy("dlx")]).answer_parts();
    story.expect(expect![[r#"
        log 8 delete policy dlx in @0
        log 9 part 'two'
        log 10 discard 7 9
        log 11 dequeue 6 from #1
    "#]]);
}

#[test]
fn a_queue_lives_as_long_as_policies_say_from_then_on() {
    let mut story = story();
    story.say(1, 1, [declare("a", "")]).administer([policy("p", "", 0, &[("expires", number(100))])]).wait(60);
    // The time begins anew with the change, and not with one that changes something else.
    story.administer([policy("p", "", 0, &[("expires", number(50))])]).wait(40);
    story.administer([policy("p", "", 0, &[("expires", number(50)), ("max-length", number(9))])]).skip().wait(10);
    story.expect(expect![[r#"
        log 5 delete queue #1
    "#]]);
    story.say(1, 1, [declare("a", "")]).administer([clear_policy("p")]).wait(1000).say(1, 1, [declare("a", "passive")]);
    story.expect(expect![[r#"
        log 6 declare queue a
        1/1 > queue.declare-ok a, 0 messages, 0 consumers
        log 7 delete policy p in @0
        1/1 > queue.declare-ok a, 0 messages, 0 consumers
    "#]]);
}

/// What is declared stays as it is; an argument counts before the policy.
#[test]
fn how_a_queue_is_replicated_is_said_at_its_declare() {
    let mut story = story();
    story.administer([policy("p", "", 0, &[("understudy-replicate", text_value("configuration"))])]).skip();
    let own = arguments(&[("x-understudy-replicate", text_value("none"))]);
    story.say(1, 1, [declare("a", ""), declare_with("b", "", own), exchange("x", "fanout", "")]);
    story.administer([clear_policy("p")]).say(1, 1, [declare("a", ""), declare("c", ""), publish("a", "1")]);
    story.expect(expect![[r#"
        log 2 declare queue a replicated as configuration
        log 3 declare queue b not replicated
        log 4 declare fanout exchange x replicated as configuration
        1/1 > queue.declare-ok a, 0 messages, 0 consumers
        1/1 > queue.declare-ok b, 0 messages, 0 consumers
        1/1 > exchange.declare-ok
        log 5 delete policy p in @0
        log 6 declare queue c
        log 7 publish '1' to here #2
        1/1 > queue.declare-ok a, 0 messages, 0 consumers
        1/1 > queue.declare-ok c, 0 messages, 0 consumers
    "#]]);
}

#[test]
fn a_consumer_has_as_long_as_a_policy_says() {
    let mut story = story();
    story.administer([policy("p", "", 0, &[("consumer-timeout", number(60_000))])]);
    story.say(1, 1, [declare("a", ""), publish("a", "1"), consume("a", "c", "")]).skip();
    story.administer([policy("p", "", 0, &[("consumer-timeout", number(120_000))])]).wait(100_000).wait(120_000);
    story.expect(expect![[r#"
        log 4 policy p in @0 for all '', priority 0
        log 5 requeue 3 in #2
        1/1 > channel.close 406 PRECONDITION_FAILED - delivery acknowledgement on channel 1 timed out. Timeout value used: 120000 ms. This timeout value can be configured, see consumers doc guide to learn more (0,0)
    "#]]);
}

#[test]
fn what_is_wrong_is_refused_and_in_another_virtual_host_nothing_matches() {
    let mut story = story();
    story.administer([
        policy("p", "(", 0, &[("max-length", number(1))]),
        policy("p", "", 0, &[]),
        policy("p", "", 0, &[("max-size", number(1))]),
        operator(policy("p", "", 0, &[("overflow", text_value("drop-head"))])),
        policy("", "", 0, &[("max-length", number(1))]),
        clear_policy("p"),
        AdminCommand::ClearPolicy { vhost: short("/"), operator: true, name: short("p") },
        AdminCommand::ClearPolicy { vhost: short("none"), operator: true, name: short("p") },
        add_vhost("shop"),
        policy("p", "", 0, &[("max-length", number(0))]),
    ]);
    let text = story.take_text();
    let text = text.replace("regex parse error:\n    (\n    ^\nerror: unclosed group", "…");
    expect![[r#"
        refused: pattern should be regular expression but is invalid: …
        refused: no policy provided
        refused: [{<<"max-size">>,1}] are not recognised policy settings
        refused: [{<<"overflow">>,<<"drop-head">>}] are not recognised policy settings
        refused: a policy needs a name, which is text
        refused: there is no policy 'p' in virtual host '/'
        refused: there is no operator policy 'p' in virtual host '/'
        refused: there is no virtual host 'none'
        log 1 create vhost shop
        log 2 policy p in @0 for all '', priority 0
    "#]]
    .assert_eq(&text);
    story.enter(2, "+root", "shop").say(2, 1, [declare("q", ""), publish("q", "1"), get("q", "")]);
    assert!(story.take_text().contains("get-ok 1: '1'"));
}

/// Case: a replica that starts from a base, or from a checkpoint, has the policies before what they are for.
#[test]
fn a_base_brings_them_and_a_scrub_compares_them() {
    let mut story = story();
    story.administer([
        add_vhost("shop"),
        policy("p", "^q", -3, &[("max-length", number(2)), ("message-ttl", number(1000))]),
        operator(policy("p", "", 7, &[("expires", number(5000))])),
        for_what(policy("ae", "", 0, &[("alternate-exchange", text_value("amq.fanout"))]), ApplyTo::Exchanges),
    ]);
    story.say(1, 1, [declare("q", "durable"), publish("q", "1"), exchange("x", "direct", "")]);
    let mut copy = Core::new(3);
    checkpoint(&story.core, story.core.last_index()).into_iter().for_each(|piece| copy.apply_base(piece).unwrap());
    assert_eq!(copy.replicated_text(), story.core.replicated_text());
    assert!(copy.replicated_text().contains("max-length"), "{}", copy.replicated_text());
    copy.assert_consistent();
    // The rules are there too: the copy's messages expire, and its queue is as short.
    let mut next = story.successor(promoted(copy));
    next.commit().skip().say(1, 1, publishes("q", 2..=4)).commit();
    next.wait(1000).commit();
    next.expect(expect![[r#"
        log 9 publish '2' to #5
        log 10 publish '3' to #5
        log 11 publish '4' to #5
        log 12 dequeue 7 from #5
        committed 12, confirmable 12
        log 13 dequeue 9 from #5
        log 14 dequeue 10 11 from #5
        committed 14, confirmable 14
    "#]]);

    let mut out = understudy_core::Outputs::default();
    let mut pass = story.core.begin_scrub();
    story.core.scrub(&mut pass, 10, &mut out).unwrap();
    let (index, scrub) = out.records.pop().unwrap();
    let mut same = story.replica();
    same.apply(index, &scrub).unwrap();
    assert_eq!(same.take_difference(), None);
    // One that has another priority.
    let mut other = Core::new(4);
    for (at, record) in &story.log {
        let mut record = record.clone();
        if let understudy_record::Record::Admin(understudy_record::Admin::PolicyPut { policy, .. }) = &mut record {
            policy.priority += 1;
        }
        other.apply(*at, &record).unwrap();
    }
    other.apply(index, &scrub).unwrap();
    assert!(other.take_difference().is_some());
    assert_ne!(other.digest(), same.digest());
}
