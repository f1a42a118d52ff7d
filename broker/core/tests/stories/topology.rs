//! Exchanges, queues, bindings, and where messages go.

use bytes::Bytes;
use expect_test::expect;
use understudy_core::Command;
use understudy_protocol::{BasicProperties, FieldTable, FieldValue, Properties};
use understudy_record::Record;

use crate::harness::*;

#[test]
fn a_reply_waits_for_the_record_it_follows_from_and_for_the_replies_before_it() {
    uncommitted_story()
        .say(1, 1, [declare("a", "durable"), declare("a", "durable passive"), qos(10, false), declare("b", "")])
        .expect(expect![[r#"
            log 1 declare queue a durable
            log 2 declare queue b
        "#]])
        .commit_to(1, 0)
        .expect(expect![[r#"
            committed 1, confirmable 0
            1/1 > queue.declare-ok a, 0 messages, 0 consumers
            1/1 > queue.declare-ok a, 0 messages, 0 consumers
            1/1 > qos-ok
        "#]])
        .commit_to(2, 0)
        .expect(expect![[r#"
            committed 2, confirmable 0
            1/1 > queue.declare-ok b, 0 messages, 0 consumers
        "#]])
        // Another channel sees an object only once it is committed; what needs no record is told at once.
        .say(2, 1, [qos(1, false), declare("c", "")])
        .say(3, 1, [exchange("x", "fanout", ""), exchange("x", "fanout", "passive")])
        .say(4, 1, [exchange("x", "fanout", "passive")])
        .expect(expect![[r#"
            log 3 declare queue c
            2/1 > qos-ok
            log 4 declare fanout exchange x
        "#]])
        .commit()
        .expect(expect![[r#"
            committed 4, confirmable 4
            2/1 > queue.declare-ok c, 0 messages, 0 consumers
            3/1 > exchange.declare-ok
            3/1 > exchange.declare-ok
            4/1 > exchange.declare-ok
        "#]]);
}

#[test]
fn no_wait_is_silent_and_errors_are_not() {
    story()
        .say(1, 1, [declare("a", "no-wait"), exchange("x", "topic", "no-wait"), declare("a", "passive no-wait")])
        .say(1, 1, [declare("missing", "passive no-wait")])
        .expect(expect![[r#"
            log 1 declare queue a
            log 2 declare topic exchange x
            1/1 > channel.close 404 NOT_FOUND - no queue 'missing' in vhost '/' (50,10)
        "#]]);
}

#[test]
fn server_named_queues_and_the_empty_name() {
    story()
        .say(1, 1, [declare("", "exclusive")])
        .say(1, 1, [bind("", "amq.direct", ""), publish_to("amq.direct", "nobody", "x"), purge(""), get("", "")])
        .say(1, 1, [consume("", "", ""), delete("", "")])
        .skip()
        .say(1, 1, [declare("named", ""), bind("", "amq.direct", ""), publish_to("amq.direct", "named", "y")])
        .expect(expect![[r#"
            log 4 declare queue named
            log 5 bind #4 to amq.direct by 'named'
            log 6 publish 'y' to #4
            1/1 > queue.declare-ok named, 0 messages, 0 consumers
            1/1 > queue.bind-ok
        "#]]);
}

#[test]
fn the_seed_names_the_queue() {
    let name = |seed| {
        let mut story = Story::with(promoted(understudy_core::Core::new(seed)));
        story.say(1, 1, [declare("", "")]);
        let text = describe_record(&story.log[0].1);
        assert_eq!(text.len(), "declare queue amq.gen-".len() + 22, "{text}");
        text
    };
    assert_eq!(name(1), name(1));
    assert_ne!(name(1), name(2));
}

#[test]
fn exchanges_route_as_their_kind_says() {
    let mut story = story();
    story
        .say(1, 1, [declare("a", ""), declare("b", ""), declare("c", "")])
        .say(1, 1, [exchange("f", "fanout", ""), exchange("d", "direct", ""), exchange("t", "topic", "")])
        .say(1, 1, [bind("a", "f", ""), bind("b", "f", "ignored")])
        .say(1, 1, [bind("a", "d", "k"), bind("b", "d", "k"), bind("c", "d", "other")])
        .say(1, 1, [bind("a", "t", "a.*.c.#"), bind("b", "t", "#"), bind("c", "t", "*.*"), bind("c", "t", "x.#")])
        .skip()
        .say(1, 1, [publish_to("f", "k", "to all")])
        .say(1, 1, [publish_to("d", "k", "to a and b"), publish_to("d", "none", "to nobody")])
        .say(1, 1, [publish_to("t", "a.b.c", "to a and b"), publish_to("t", "x.y", "to b and c, once")])
        .say(1, 1, [publish_to("t", "", "to b"), publish("c", "to c by name")])
        .expect(expect![[r#"
            log 16 publish 'to all' to #1 #2
            log 17 publish 'to a and b' to #1 #2
            log 18 publish 'to a and b' to #1 #2
            log 19 publish 'to b and c, once' to #2 #3
            log 20 publish 'to b' to #2
            log 21 publish 'to c by name' to #3
        "#]]);
}

/// Case P15.
#[test]
fn the_headers_exchange_matches_all_or_any() {
    let headers = |fields: &[(&str, &str)]| {
        let mut table = FieldTable::new();
        fields.iter().for_each(|(name, value)| table.insert(short(name), text_value(value)));
        BasicProperties { headers: Some(table), ..BasicProperties::default() }
    };
    let wanted =
        |mode: &str| arguments(&[("x-match", text_value(mode)), ("a", text_value("1")), ("b", text_value("2"))]);
    story()
        .say(1, 1, [declare("all", ""), declare("any", "")])
        .say(
            1,
            1,
            [bind_with("all", "amq.headers", "", wanted("all")), bind_with("any", "amq.headers", "", wanted("any"))],
        )
        .skip()
        .say(
            1,
            1,
            [
                publish_with("amq.headers", "", "both", "", &headers(&[("a", "1"), ("b", "2")])),
                publish_with("amq.headers", "", "one", "", &headers(&[("a", "1"), ("b", "other")])),
                publish_with("amq.headers", "", "none", "", &headers(&[])),
            ],
        )
        .expect(expect![[r#"
            log 5 publish 'both' to #1 #2
            log 6 publish 'one' to #2
        "#]]);
}

#[test]
fn exchanges_bind_to_exchanges_and_cycles_end() {
    story()
        .say(1, 1, [declare("a", ""), declare("b", ""), exchange("x", "fanout", ""), exchange("y", "topic", "")])
        .say(1, 1, [bind_exchange("y", "x", ""), bind_exchange("x", "y", "#"), bind_exchange("x", "x", "")])
        .say(1, 1, [bind("a", "x", ""), bind("a", "y", "k.*"), bind("b", "y", "k.1")])
        .skip()
        .say(1, 1, [publish_to("x", "k.1", "once each"), publish_to("y", "k.2", "a only")])
        .say(1, 1, [unbind_exchange("y", "x", ""), unbind_exchange("y", "x", ""), publish_to("x", "k.1", "a only")])
        .expect(expect![[r#"
            log 11 publish 'once each' to #1 #2
            log 12 publish 'a only' to #1
            log 13 unbind exchange y to x by ''
            log 14 publish 'a only' to #1
            1/1 > exchange.unbind-ok
            1/1 > exchange.unbind-ok
        "#]]);
}

#[test]
fn a_binding_made_twice_is_one_and_goes_once() {
    story()
        .say(1, 1, [declare("a", ""), bind("a", "amq.direct", "k"), bind("a", "amq.direct", "k")])
        .say(1, 1, [unbind("a", "amq.direct", "k"), unbind("a", "amq.direct", "k"), publish_to("amq.direct", "k", "x")])
        .say(1, 1, [unbind("missing", "amq.direct", "k"), unbind("a", "missing", "k")])
        .expect(expect![[r#"
            log 1 declare queue a
            log 2 bind #1 to amq.direct by 'k'
            1/1 > queue.declare-ok a, 0 messages, 0 consumers
            1/1 > queue.bind-ok
            1/1 > queue.bind-ok
            log 3 unbind #1 to amq.direct by 'k'
            1/1 > queue.unbind-ok
            1/1 > queue.unbind-ok
            1/1 > queue.unbind-ok
            1/1 > queue.unbind-ok
        "#]]);
}

/// Clients that keep arguments in a map write them in another order each time.
#[test]
fn the_order_of_a_binding_s_arguments_says_nothing() {
    let (a, b, all) = (("a", text_value("1")), ("b", text_value("2")), ("x-match", text_value("all")));
    let unbind = Command::QueueUnbind {
        queue: short("q"),
        exchange: short("amq.headers"),
        routing_key: short(""),
        arguments: arguments(&[all.clone(), b.clone(), a.clone()]),
    };
    story()
        .say(1, 1, [declare("q", "")])
        .say(1, 1, [bind_with("q", "amq.headers", "", arguments(&[b.clone(), all.clone(), a.clone()]))])
        .say(1, 1, [bind_with("q", "amq.headers", "", arguments(&[a, b, all])), unbind])
        .expect(expect![[r#"
            log 1 declare queue q
            1/1 > queue.declare-ok q, 0 messages, 0 consumers
            log 2 bind #1 to amq.headers by ''
            1/1 > queue.bind-ok
            log 3 unbind #1 to amq.headers by ''
            1/1 > queue.bind-ok
            1/1 > queue.unbind-ok
        "#]]);
}

#[test]
fn deleting_what_does_not_exist_succeeds() {
    story()
        .say(1, 1, [delete("missing", ""), delete_exchange("missing", ""), delete("missing", "if-empty if-unused")])
        .expect(expect![[r#"
            1/1 > queue.delete-ok, 0 messages
            1/1 > exchange.delete-ok
            1/1 > queue.delete-ok, 0 messages
        "#]]);
}

#[test]
fn an_auto_delete_exchange_goes_with_its_last_binding_and_takes_the_next() {
    story()
        .say(1, 1, [exchange("x", "fanout", "auto-delete"), exchange("y", "fanout", "auto-delete"), declare("a", "")])
        .say(1, 1, [bind_exchange("y", "x", ""), bind("a", "y", ""), bind("a", "y", "2")])
        .skip()
        .say(1, 1, [unbind("a", "y", "2")])
        .say(1, 1, [delete("a", "")])
        .expect(expect![[r#"
            log 7 unbind #3 to y by '2'
            1/1 > queue.unbind-ok
            log 8 delete queue #3
            log 9 delete exchange y
            log 10 delete exchange x
            1/1 > queue.delete-ok, 0 messages
        "#]]);
}

#[test]
fn an_auto_delete_queue_goes_with_its_last_consumer_and_not_before_its_first() {
    story()
        .say(1, 1, [declare("a", "auto-delete"), declare("b", "auto-delete"), consume("a", "1", "")])
        .say(2, 1, [consume("a", "2", ""), consume("b", "b", "")])
        .skip()
        .say(1, 1, [cancel("1")])
        .close_connection(2)
        .say(1, 1, [declare("b", "passive")])
        .expect(expect![[r#"
            1/1 > cancel-ok 1
            log 3 delete queue #1
            log 4 delete queue #2
            1/1 > channel.close 404 NOT_FOUND - no queue 'b' in vhost '/' (50,10)
        "#]]);
}

/// Case P8: an exclusive queue is its connection's alone and goes with it.
#[test]
fn an_exclusive_queue_is_locked_to_others_until_its_connection_ends() {
    let mut story = story();
    story.say(1, 1, [declare("mine", "exclusive durable"), bind("mine", "amq.fanout", "")]).skip();
    // What is not bound can be unbound by anyone.
    story.say(2, 1, [unbind("mine", "amq.direct", "")]).expect(expect![[r#"
        2/1 > queue.unbind-ok
    "#]]);
    let others = [
        declare("mine", "passive"),
        declare("mine", "exclusive"),
        consume("mine", "c", ""),
        get("mine", ""),
        purge("mine"),
        delete("mine", ""),
        bind("mine", "amq.fanout", ""),
        unbind("mine", "amq.fanout", ""),
    ];
    for command in others {
        story.say(2, 1, [command]);
    }
    story.say(1, 1, [declare("mine", "")]).expect(expect![[r#"
        2/1 > channel.close 405 RESOURCE_LOCKED - cannot obtain exclusive access to locked queue 'mine' in vhost '/'. It could be originally declared on another connection or the exclusive property value does not match that of the original declaration. (50,10)
        2/1 > channel.close 405 RESOURCE_LOCKED - cannot obtain exclusive access to locked queue 'mine' in vhost '/'. It could be originally declared on another connection or the exclusive property value does not match that of the original declaration. (50,10)
        2/1 > channel.close 405 RESOURCE_LOCKED - cannot obtain exclusive access to locked queue 'mine' in vhost '/'. It could be originally declared on another connection or the exclusive property value does not match that of the original declaration. (60,20)
        2/1 > channel.close 405 RESOURCE_LOCKED - cannot obtain exclusive access to locked queue 'mine' in vhost '/'. It could be originally declared on another connection or the exclusive property value does not match that of the original declaration. (60,70)
        2/1 > channel.close 405 RESOURCE_LOCKED - cannot obtain exclusive access to locked queue 'mine' in vhost '/'. It could be originally declared on another connection or the exclusive property value does not match that of the original declaration. (50,30)
        2/1 > channel.close 405 RESOURCE_LOCKED - cannot obtain exclusive access to locked queue 'mine' in vhost '/'. It could be originally declared on another connection or the exclusive property value does not match that of the original declaration. (50,40)
        2/1 > channel.close 405 RESOURCE_LOCKED - cannot obtain exclusive access to locked queue 'mine' in vhost '/'. It could be originally declared on another connection or the exclusive property value does not match that of the original declaration. (50,20)
        2/1 > channel.close 405 RESOURCE_LOCKED - cannot obtain exclusive access to locked queue 'mine' in vhost '/'. It could be originally declared on another connection or the exclusive property value does not match that of the original declaration. (50,50)
        1/1 > channel.close 405 RESOURCE_LOCKED - cannot obtain exclusive access to locked queue 'mine' in vhost '/'. It could be originally declared on another connection or the exclusive property value does not match that of the original declaration. (50,10)
    "#]]);
    story.close_connection(1).say(2, 1, [declare("mine", "exclusive")]).expect(expect![[r#"
        log 3 delete queue #1
        log 4 declare queue mine exclusive
        2/1 > queue.declare-ok mine, 0 messages, 0 consumers
    "#]]);
}

#[test]
fn a_connection_s_exclusive_queue_can_be_used_by_it_and_published_to_by_all() {
    story()
        .say(1, 1, [declare("mine", "exclusive")])
        .say(1, 2, [declare("mine", "exclusive"), consume("mine", "c", "no-ack")])
        .say(2, 1, [publish("mine", "from another")])
        .expect(expect![[r#"
            log 1 declare queue mine exclusive
            1/1 > queue.declare-ok mine, 0 messages, 0 consumers
            1/2 > queue.declare-ok mine, 0 messages, 0 consumers
            1/2 > consume-ok c
            log 2 publish 'from another' to here #1
            log 3 dequeue 2 from #1 here
            1/2 > deliver 1 to c: 'from another'
        "#]]);
}

#[test]
fn persistent_is_what_asks_for_it_and_reaches_a_durable_queue() {
    story()
        .say(1, 1, [declare("durable", "durable"), declare("transient", "")])
        .skip()
        .say(1, 1, [persistent("durable", "yes"), persistent("transient", "no"), publish("durable", "no")])
        .expect(expect![[r#"
            log 3 publish 'yes' to #1 persistent
            log 4 publish 'no' to #2
            log 5 publish 'no' to #1
        "#]]);
}

/// Names of 255 bytes and empty bodies work (P5).
#[test]
fn the_longest_name_and_the_empty_body() {
    let name = "é".repeat(127) + "x";
    let mut story = story();
    story.say(1, 1, [declare(&name, ""), consume(&name, "c", "no-ack"), publish(&name, "")]);
    assert!(story.take_text().contains("deliver 1 to c: ''"));
}

#[test]
fn purge_takes_the_ready_and_spares_the_delivered() {
    story()
        .say(1, 1, [declare("a", ""), publish("a", "1"), publish("a", "2"), publish("a", "3")])
        .say(1, 1, [qos(1, false), consume("a", "c", "")])
        .skip()
        .say(2, 1, [purge("a"), purge("a"), declare("a", "passive")])
        .say(1, 1, [ack(1), publish("a", "4")])
        .expect(expect![[r#"
            log 5 purge #1 up to 4 except [2]
            2/1 > queue.purge-ok, 2 messages
            2/1 > queue.purge-ok, 0 messages
            2/1 > queue.declare-ok a, 0 messages, 1 consumers
            log 6 publish '4' to #1
            log 7 dequeue 2 from #1
            1/1 > deliver 2 to c: '4'
        "#]]);
}

#[test]
fn delete_minds_its_conditions() {
    let mut story = story();
    story.say(1, 1, [declare("a", ""), publish("a", "1"), exchange("x", "fanout", ""), bind("a", "x", "")]).skip();
    story.say(2, 1, [delete("a", "if-empty")]).say(2, 1, [delete_exchange("x", "if-unused")]);
    story.say(1, 1, [consume("a", "c", "no-ack")]).say(2, 1, [delete("a", "if-unused")]);
    story.say(1, 1, [cancel("c"), delete("a", "if-unused if-empty"), delete_exchange("x", "if-unused")]);
    story.expect(expect![[r#"
        2/1 > channel.close 406 PRECONDITION_FAILED - queue 'a' in vhost '/' not empty (50,40)
        2/1 > channel.close 406 PRECONDITION_FAILED - exchange 'x' in vhost '/' in use (40,20)
        log 5 dequeue 2 from #1
        1/1 > consume-ok c
        1/1 > deliver 1 to c: '1'
        2/1 > channel.close 406 PRECONDITION_FAILED - queue 'a' in vhost '/' in use (50,40)
        log 6 delete queue #1
        log 7 delete exchange x
        1/1 > cancel-ok c
        1/1 > queue.delete-ok, 0 messages
        1/1 > exchange.delete-ok
    "#]]);
}

#[test]
fn malformed_argument_tables_are_refused() {
    let mut story = story();
    let arguments = Bytes::from_static(b"\x05short");
    story.say(1, 1, [declare_with("a", "", arguments.clone())]);
    story.say(2, 1, [bind_with("a", "amq.fanout", "", arguments)]);
    story.expect(expect![[r#"
        1/1 > connection.close 502 SYNTAX_ERROR - malformed argument table (50,10)
        2/1 > connection.close 502 SYNTAX_ERROR - malformed argument table (50,20)
    "#]]);
}

#[test]
fn commands_that_crossed_a_close_are_ignored() {
    let mut story = story();
    story.say(1, 1, [declare("missing", "passive"), declare("a", ""), publish("a", "x")]);
    story.say(2, 1, [Command::ChannelClose, declare("a", "")]);
    story.close_connection(3).say(4, 1, [Command::BasicRecover { requeue: false }, declare("a", "")]).say(
        4,
        1,
        [declare("a", "")],
    );
    story.expect(expect![[r#"
        1/1 > channel.close 404 NOT_FOUND - no queue 'missing' in vhost '/' (50,10)
        4/1 > connection.close 540 NOT_IMPLEMENTED - requeue=false (60,110)
    "#]]);
}

fn with_alternate(name: &str, kind: &str, alternate: &str) -> Command {
    let Command::ExchangeDeclare { name, kind, passive, durable, auto_delete, internal, no_wait, .. } =
        exchange(name, kind, "")
    else {
        unreachable!()
    };
    let arguments = arguments(&[("alternate-exchange", text_value(alternate))]);
    Command::ExchangeDeclare { name, kind, passive, durable, auto_delete, internal, no_wait, arguments }
}

/// Each exchange on a message's way has its own alternate; one that is not there, or that was visited, takes nothing.
#[test]
fn what_no_binding_takes_goes_to_the_alternate_exchange() {
    story()
        .say(1, 1, [with_alternate("x", "direct", "y"), with_alternate("y", "topic", "x")])
        .say(1, 1, [declare("a", ""), bind("a", "x", "a"), declare("b", ""), bind("b", "y", "b.#")])
        .say(1, 1, [with_alternate("z", "fanout", "missing"), with_alternate("d", "direct", "")])
        .say(1, 1, [exchange("top", "fanout", ""), bind_exchange("x", "top", "")])
        .skip()
        .say(1, 1, [publish_to("x", "a", "1"), publish_to("x", "b.1", "2"), publish_to("top", "b", "3")])
        .say(1, 1, [select(), publish_with("x", "c", "4", "mandatory", &BasicProperties::default())])
        .say(1, 1, [publish_with("z", "a", "5", "mandatory", &BasicProperties::default()), publish_to("d", "a", "6")])
        .expect(expect![[r#"
            log 11 publish '1' to #3
            log 12 publish '2' to #5
            log 13 publish '3' to #5
            1/1 > confirm.select-ok
            1/1 > return 312 NO_ROUTE: '4'
            1/1 > confirm 1
            log 14 publish '6' to #3
            1/1 > return 312 NO_ROUTE: '5'
            1/1 > confirm 2
            1/1 > confirm 3
        "#]]);
}

#[test]
fn copies_go_where_their_keys_lead_and_nobody_sees_the_blind_ones() {
    let list = |keys: &[&str]| FieldValue::Array(keys.iter().map(|key| text_value(key)).collect());
    let to = |cc: FieldValue, bcc: FieldValue| BasicProperties {
        headers: Some(FieldTable::new().with("CC", cc).with("BCC", bcc)),
        ..BasicProperties::default()
    };
    let mut story = story();
    story
        .say(1, 1, ["a", "b", "c", "d"].map(|name| declare(name, "")))
        .say(1, 1, [exchange("t", "topic", ""), bind("c", "t", "c.*"), bind("d", "t", "*.2")])
        .skip()
        .say(1, 1, [publish_with("", "a", "1", "", &to(list(&["b", "a", "nobody"]), list(&["c"])))])
        .say(1, 1, [publish_with("t", "nobody", "2", "", &to(list(&["c.1"]), list(&["x.2"])))])
        .say(1, 1, [publish_with("", "a", "3", "", &to(text_value("b"), list(&[])))])
        .expect(expect![[r#"
            log 8 publish '1' to #1 #2 #3
            log 9 publish '2' to #3 #4
            1/1 > channel.close 406 PRECONDITION_FAILED - invalid message: {unacceptable_type_in_header,"CC",longstr} (60,40)
        "#]]);
    let headers = story.log.iter().filter_map(|(_, record)| match record {
        Record::Publish { message, .. } => Properties::from_raw(message.properties.clone()).headers(),
        _ => None,
    });
    let names: Vec<Vec<String>> =
        headers.map(|table| table.iter().map(|(name, _)| name.to_string()).collect()).collect();
    assert_eq!(names, [["CC"], ["CC"]]);
}
