//! Each mistake: its code, its words, and whether the channel or the connection closes.

use expect_test::expect;
use understudy_core::Command;
use understudy_protocol::{BasicProperties, FieldValue};

use crate::harness::*;

/// Each command on a fresh connection.
fn refusals(commands: impl IntoIterator<Item = Command>) -> String {
    let mut story = story();
    story.say(
        1,
        1,
        [declare("q", "durable"), exchange("x", "direct", "durable"), exchange("in", "fanout", "internal")],
    );
    story.skip();
    let mut text = String::new();
    for command in commands {
        story.say(2, 1, [command]).close_connection(2);
        text += &story.take_text().replace("2/1 > ", "");
    }
    text
}

#[test]
fn missing_objects_404() {
    let commands = [
        declare("x", "passive"),
        exchange("q", "direct", "passive"),
        consume("x", "", ""),
        get("x", ""),
        purge("x"),
        bind("x", "x", "k"),
        bind("q", "q", "k"),
        bind("x", "q", "k"),
        bind_exchange("x", "q", ""),
        bind_exchange("q", "x", ""),
        publish_to("q", "k", ""),
        consume("", "", ""),
        delete("", ""),
        bind("", "x", ""),
    ];
    expect![[r#"
        channel.close 404 NOT_FOUND - no queue 'x' in vhost '/' (50,10)
        channel.close 404 NOT_FOUND - no exchange 'q' in vhost '/' (40,10)
        channel.close 404 NOT_FOUND - no queue 'x' in vhost '/' (60,20)
        channel.close 404 NOT_FOUND - no queue 'x' in vhost '/' (60,70)
        channel.close 404 NOT_FOUND - no queue 'x' in vhost '/' (50,30)
        channel.close 404 NOT_FOUND - no queue 'x' in vhost '/' (50,20)
        channel.close 404 NOT_FOUND - no exchange 'q' in vhost '/' (50,20)
        channel.close 404 NOT_FOUND - no exchange 'q' in vhost '/' (50,20)
        channel.close 404 NOT_FOUND - no exchange 'q' in vhost '/' (40,30)
        channel.close 404 NOT_FOUND - no exchange 'q' in vhost '/' (40,30)
        channel.close 404 NOT_FOUND - no exchange 'q' in vhost '/' (60,40)
        channel.close 404 NOT_FOUND - no previously declared queue (60,20)
        channel.close 404 NOT_FOUND - no previously declared queue (50,40)
        channel.close 404 NOT_FOUND - no previously declared queue (50,20)
    "#]]
    .assert_eq(&refusals(commands));
}

#[test]
fn refused_403() {
    let commands = [
        declare("amq.mine", ""),
        declare("amq.gen-vanished", ""),
        exchange("amq.mine", "direct", ""),
        exchange("", "direct", ""),
        exchange("", "direct", "passive"),
        delete_exchange("", ""),
        delete_exchange("amq.direct", ""),
        bind("q", "", "k"),
        unbind("q", "", "k"),
        bind_exchange("", "x", ""),
        bind_exchange("x", "", ""),
        publish_to("in", "k", ""),
    ];
    expect![[r#"
        channel.close 403 ACCESS_REFUSED - queue name 'amq.mine' contains reserved prefix 'amq.*' (50,10)
        channel.close 403 ACCESS_REFUSED - queue name 'amq.gen-vanished' contains reserved prefix 'amq.*' (50,10)
        channel.close 403 ACCESS_REFUSED - exchange name 'amq.mine' contains reserved prefix 'amq.*' (40,10)
        channel.close 403 ACCESS_REFUSED - operation not permitted on the default exchange (40,10)
        channel.close 403 ACCESS_REFUSED - operation not permitted on the default exchange (40,10)
        channel.close 403 ACCESS_REFUSED - operation not permitted on the default exchange (40,20)
        channel.close 403 ACCESS_REFUSED - deletion of system exchange 'amq.direct' in vhost '/' not allowed (40,20)
        channel.close 403 ACCESS_REFUSED - operation not permitted on the default exchange (50,20)
        channel.close 403 ACCESS_REFUSED - operation not permitted on the default exchange (50,50)
        channel.close 403 ACCESS_REFUSED - operation not permitted on the default exchange (40,30)
        channel.close 403 ACCESS_REFUSED - operation not permitted on the default exchange (40,30)
        channel.close 403 ACCESS_REFUSED - cannot publish to internal exchange 'in' in vhost '/' (60,40)
    "#]]
    .assert_eq(&refusals(commands));
}

#[test]
fn other_properties_406() {
    let commands = [
        declare("q", ""),
        declare("q", "durable auto-delete"),
        declare("q", "durable exclusive"),
        declare_with("q", "durable", arguments(&[("x-expires", FieldValue::I64(60_000))])),
        exchange("x", "fanout", "durable"),
        exchange("x", "direct", ""),
        exchange("x", "direct", "durable auto-delete"),
        exchange("x", "direct", "durable internal"),
        exchange("amq.direct", "topic", "durable"),
    ];
    expect![[r#"
        channel.close 406 PRECONDITION_FAILED - inequivalent arg 'durable' for queue 'q' in vhost '/': received 'false' but current is 'true' (50,10)
        channel.close 406 PRECONDITION_FAILED - inequivalent arg 'auto_delete' for queue 'q' in vhost '/': received 'true' but current is 'false' (50,10)
        channel.close 405 RESOURCE_LOCKED - cannot obtain exclusive access to locked queue 'q' in vhost '/'. It could be originally declared on another connection or the exclusive property value does not match that of the original declaration. (50,10)
        channel.close 406 PRECONDITION_FAILED - inequivalent arg 'x-expires' for queue 'q' in vhost '/': received the value '60000' of type 'long' but current is none (50,10)
        channel.close 406 PRECONDITION_FAILED - inequivalent arg 'type' for exchange 'x' in vhost '/': received 'fanout' but current is 'direct' (40,10)
        channel.close 406 PRECONDITION_FAILED - inequivalent arg 'durable' for exchange 'x' in vhost '/': received 'false' but current is 'true' (40,10)
        channel.close 406 PRECONDITION_FAILED - inequivalent arg 'auto_delete' for exchange 'x' in vhost '/': received 'true' but current is 'false' (40,10)
        channel.close 406 PRECONDITION_FAILED - inequivalent arg 'internal' for exchange 'x' in vhost '/': received 'true' but current is 'false' (40,10)
        channel.close 406 PRECONDITION_FAILED - inequivalent arg 'type' for exchange 'amq.direct' in vhost '/': received 'topic' but current is 'direct' (40,10)
    "#]].assert_eq(&refusals(commands));
}

#[test]
fn the_same_properties_are_no_mistake() {
    let commands = [
        declare_with("q", "durable", arguments(&[("x-queue-type", text_value("classic"))])),
        declare_with("q", "durable", arguments(&[("x-unknown", text_value("other"))])),
        exchange("amq.topic", "topic", "durable"),
        declare("q", "passive"),
        exchange("x", "direct", "durable"),
    ];
    expect![[r#"
        queue.declare-ok q, 0 messages, 0 consumers
        queue.declare-ok q, 0 messages, 0 consumers
        exchange.declare-ok
        queue.declare-ok q, 0 messages, 0 consumers
        exchange.declare-ok
    "#]]
    .assert_eq(&refusals(commands));
}

#[test]
fn bad_arguments_406() {
    let properties = |expiration: &str, user: &str| BasicProperties {
        expiration: Some(short(expiration)),
        user_id: Some(short(user)),
        ..BasicProperties::default()
    };
    let match_by = |mode| arguments(&[("x-match", text_value(mode))]);
    let commands = [
        declare_with("n", "", arguments(&[("x-message-ttl", text_value("soon"))])),
        declare_with("n", "", arguments(&[("x-queue-type", text_value("pile"))])),
        publish_with("", "q", "", "", &properties("later", "guest")),
        publish_with("", "q", "", "", &properties("1000", "root")),
        publish_with("", "q", "", "", &properties("later", "root")),
        publish_with("", "q", "", "", &properties("-1", "guest")),
        publish_with("", "q", "", "", &BasicProperties { delivery_mode: Some(3), ..BasicProperties::default() }),
        bind_with("q", "amq.headers", "", match_by("some")),
        bind_with("q", "amq.headers", "", arguments(&[("x-match", FieldValue::Binary("all".into()))])),
        Command::ExchangeDeclare {
            name: short("ae"),
            kind: short("fanout"),
            passive: false,
            durable: false,
            auto_delete: false,
            internal: false,
            no_wait: false,
            arguments: arguments(&[("alternate-exchange", FieldValue::I32(5))]),
        },
    ];
    expect![[r#"
        channel.close 406 PRECONDITION_FAILED - invalid arg 'x-message-ttl' for queue 'n' in vhost '/': "expected integer, got longstr" (50,10)
        channel.close 406 PRECONDITION_FAILED - invalid arg 'x-queue-type' for queue 'n' in vhost '/': "unsupported queue type 'pile'" (50,10)
        channel.close 406 PRECONDITION_FAILED - invalid expiration 'later': no_integer (60,40)
        channel.close 406 PRECONDITION_FAILED - user_id property set to 'root' but authenticated user was 'guest' (60,40)
        channel.close 406 PRECONDITION_FAILED - user_id property set to 'root' but authenticated user was 'guest' (60,40)
        channel.close 406 PRECONDITION_FAILED - invalid expiration '-1': {value_negative,-1} (60,40)
        channel.close 406 PRECONDITION_FAILED - invalid message: {delivery_mode_unknown,3} (60,40)
        channel.close 406 PRECONDITION_FAILED - Invalid x-match field value <<"some">>; expected all, any, all-with-x, or any-with-x (50,20)
        channel.close 406 PRECONDITION_FAILED - Invalid x-match field type binary (value 3 octets); expected longstr (50,20)
        channel.close 406 PRECONDITION_FAILED - invalid type 'signedint' for arg 'alternate-exchange' in exchange 'ae' in vhost '/' (40,10)
    "#]].assert_eq(&refusals(commands));
}

#[test]
fn hard_errors_close_the_connection() {
    let commands = [
        exchange("y", "pigeon", ""),
        publish_with("", "q", "", "immediate", &BasicProperties::default()),
        Command::BasicQos { prefetch_size: 1, prefetch_count: 0, global: false },
        Command::BasicRecover { requeue: false },
        declare_with("s", "", arguments(&[("x-queue-type", text_value("stream"))])),
    ];
    expect![[r#"
        connection.close 503 COMMAND_INVALID - unknown exchange type 'pigeon' (40,10)
        connection.close 540 NOT_IMPLEMENTED - immediate=true (60,40)
        connection.close 540 NOT_IMPLEMENTED - prefetch_size!=0 (1) (60,10)
        connection.close 540 NOT_IMPLEMENTED - requeue=false (60,110)
        connection.close 540 NOT_IMPLEMENTED - queue 's' in vhost '/': x-queue-type 'stream' is not supported; declare it as 'classic' or 'quorum', every queue is replicated (50,10)
    "#]].assert_eq(&refusals(commands));
}

#[test]
fn a_close_waits_for_the_replies_before_it() {
    let mut story = uncommitted_story();
    story.say(1, 1, [declare("a", ""), declare("b", "passive"), declare("c", "")]).expect(expect![[r#"
        log 1 declare queue a
    "#]]);
    story.commit().expect(expect![[r#"
        committed 1, confirmable 1
        1/1 > queue.declare-ok a, 0 messages, 0 consumers
        1/1 > channel.close 404 NOT_FOUND - no queue 'b' in vhost '/' (50,10)
    "#]]);
    story.say(1, 1, [declare("a", "passive")]).expect(expect![[r#"
        1/1 > queue.declare-ok a, 0 messages, 0 consumers
    "#]]);
}

#[test]
fn a_failed_connection_gives_back_its_deliveries_and_keeps_its_queues_until_it_is_gone() {
    story()
        .say(1, 1, [declare("mine", "exclusive"), declare("a", ""), publish("a", "1"), consume("a", "c", "")])
        .say(1, 2, [consume("a", "d", "")])
        .skip()
        .say(1, 2, [consume("a", "d", "")])
        .say(1, 1, [ack(1)])
        .close_connection(1)
        .expect(expect![[r#"
            log 4 requeue 3 in #2
            1/2 > connection.close 530 NOT_ALLOWED - attempt to reuse consumer tag 'd' (60,20)
            log 5 delete queue #1
        "#]]);
}
