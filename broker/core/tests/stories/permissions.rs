//! Who may do what: RabbitMQ's table and words, at once for who is connected.

use bytes::Bytes;
use expect_test::expect;
use understudy_core::{AdminCommand, Command, Limit, LimitOf};
use understudy_protocol::{BasicProperties, FieldTable, FieldValue};
use understudy_record::{HashAlgorithm, PasswordHash};

use crate::harness::*;

fn of_anna() -> Story {
    let mut story = story();
    story.administer([add_vhost("shop"), add_user("anna"), permit("anna", "shop", ["^a", "^w|^a", "^r|^a"])]);
    story.administer([permit_topics("anna", "shop", "amq.topic", ["^w\\.", "^{username}\\."])]);
    story.enter(1, "+root", "shop").say(1, 1, [declare("q", ""), declare("a1", ""), exchange("alt", "fanout", "")]);
    story.skip();
    story
}

fn with(argument: &str, value: &str) -> Bytes {
    arguments(&[(argument, text_value(value))])
}

fn exchange_with(name: &str, arguments: Bytes) -> Command {
    let Command::ExchangeDeclare { name, kind, passive, durable, auto_delete, internal, no_wait, .. } =
        exchange(name, "direct", "")
    else {
        unreachable!()
    };
    Command::ExchangeDeclare { name, kind, passive, durable, auto_delete, internal, no_wait, arguments }
}

/// The answers of RabbitMQ 3.10.8 to the same, asked in the same order.
#[test]
fn each_operation_needs_what_it_needs_in_rabbitmq() {
    let mut story = of_anna();
    let commands = [
        declare("q", ""),
        declare("a1", ""),
        declare("", ""),
        declare("q", "passive"),
        declare_with("a2", "", with("x-dead-letter-exchange", "zz")),
        declare_with("a2", "", with("x-dead-letter-exchange", "w")),
        exchange("x", "direct", ""),
        exchange("ax", "direct", ""),
        exchange_with("ay", with("alternate-exchange", "nope")),
        exchange_with("ay", with("alternate-exchange", "alt")),
        delete("q", ""),
        delete_exchange("x", ""),
        get("q", ""),
        consume("q", "", ""),
        purge("q"),
        bind("a1", "source", "k"),
        bind("q", "ax", "k"),
        bind("a1", "amq.topic", "bob.x"),
        bind("a1", "amq.topic", "anna.x"),
        bind("a1", "", "anna.x"),
        unbind("a1", "source", "k"),
        bind_exchange("x", "ax", "k"),
        bind_exchange("ax", "x", "k"),
        bind_exchange("ax", "ax", "k"),
        publish("a1", "x"),
        publish_to("amq.topic", "bad", "x"),
        publish_to("amq.topic", "w.1", "x"),
        publish_to("xx", "w.1", "x"),
        publish_to("amissing", "w.1", "x"),
        consume("amq.rabbitmq.reply-to", "", "no-ack"),
        exchange("", "direct", ""),
        declare("amq.mine", ""),
    ];
    let mut text = String::new();
    for command in commands {
        story.enter(2, "anna", "shop").say(2, 1, [command]).close_connection(2);
        text += &story.take_text();
    }
    expect![[r#"
        2/1 > channel.close 403 ACCESS_REFUSED - access to queue 'q' in vhost 'shop' refused for user 'anna' (50,10)
        2/1 > queue.declare-ok a1, 0 messages, 0 consumers
        log 8 in @1: declare queue amq.gen-YRgw02QaaPlKaQ3MJdH0sA
        2/1 > queue.declare-ok amq.gen-…, 0 messages, 0 consumers
        2/1 > queue.declare-ok q, 0 messages, 0 consumers
        2/1 > channel.close 403 ACCESS_REFUSED - access to exchange 'zz' in vhost 'shop' refused for user 'anna' (50,10)
        log 9 in @1: declare queue a2
        2/1 > queue.declare-ok a2, 0 messages, 0 consumers
        2/1 > channel.close 403 ACCESS_REFUSED - access to exchange 'x' in vhost 'shop' refused for user 'anna' (40,10)
        log 10 in @1: declare direct exchange ax
        2/1 > exchange.declare-ok
        2/1 > channel.close 403 ACCESS_REFUSED - access to exchange 'nope' in vhost 'shop' refused for user 'anna' (40,10)
        log 11 in @1: declare direct exchange ay
        2/1 > exchange.declare-ok
        2/1 > channel.close 403 ACCESS_REFUSED - access to queue 'q' in vhost 'shop' refused for user 'anna' (50,40)
        2/1 > channel.close 403 ACCESS_REFUSED - access to exchange 'x' in vhost 'shop' refused for user 'anna' (40,20)
        2/1 > channel.close 403 ACCESS_REFUSED - access to queue 'q' in vhost 'shop' refused for user 'anna' (60,70)
        2/1 > channel.close 403 ACCESS_REFUSED - access to queue 'q' in vhost 'shop' refused for user 'anna' (60,20)
        2/1 > channel.close 403 ACCESS_REFUSED - access to queue 'q' in vhost 'shop' refused for user 'anna' (50,30)
        2/1 > channel.close 403 ACCESS_REFUSED - access to exchange 'source' in vhost 'shop' refused for user 'anna' (50,20)
        2/1 > channel.close 403 ACCESS_REFUSED - access to queue 'q' in vhost 'shop' refused for user 'anna' (50,20)
        2/1 > channel.close 403 ACCESS_REFUSED - access to topic 'bob.x' in exchange 'amq.topic' in vhost 'shop' refused for user 'anna' (50,20)
        log 12 in @1: bind #6 to amq.topic by 'anna.x'
        2/1 > queue.bind-ok
        2/1 > channel.close 403 ACCESS_REFUSED - operation not permitted on the default exchange (50,20)
        2/1 > channel.close 403 ACCESS_REFUSED - access to exchange 'source' in vhost 'shop' refused for user 'anna' (50,50)
        2/1 > channel.close 403 ACCESS_REFUSED - access to exchange 'x' in vhost 'shop' refused for user 'anna' (40,30)
        2/1 > channel.close 403 ACCESS_REFUSED - access to exchange 'x' in vhost 'shop' refused for user 'anna' (40,30)
        log 13 in @1: bind exchange ax to ax by 'k'
        2/1 > exchange.bind-ok
        log 14 publish 'x' to #6
        2/1 > channel.close 403 ACCESS_REFUSED - access to topic 'bad' in exchange 'amq.topic' in vhost 'shop' refused for user 'anna' (60,40)
        2/1 > channel.close 403 ACCESS_REFUSED - access to exchange 'xx' in vhost 'shop' refused for user 'anna' (60,40)
        2/1 > channel.close 404 NOT_FOUND - no exchange 'amissing' in vhost 'shop' (60,40)
        2/1 > consume-ok amq.ctag-…
        2/1 > channel.close 403 ACCESS_REFUSED - operation not permitted on the default exchange (40,10)
        2/1 > channel.close 403 ACCESS_REFUSED - queue name 'amq.mine' contains reserved prefix 'amq.*' (50,10)
    "#]].assert_eq(&text);
}

#[test]
fn every_routing_key_of_a_message_is_a_topic() {
    let mut story = of_anna();
    let keys = FieldValue::Array(["w.2", "x.3"].map(text_value).to_vec());
    let headers = Some(FieldTable::new().with("CC", keys));
    let properties = BasicProperties { headers, ..BasicProperties::default() };
    let publish = |to| publish_with(to, "w.1", "", "", &properties);
    story.enter(2, "anna", "shop").say(2, 1, [publish("amq.direct")]).say(2, 1, [publish("amq.topic")]);
    story.expect(expect![[r#"
        2/1 > channel.close 403 ACCESS_REFUSED - access to topic 'x.3' in exchange 'amq.topic' in vhost 'shop' refused for user 'anna' (60,40)
    "#]]);
}

#[test]
fn a_message_is_its_publishers_unless_that_one_may_impersonate() {
    let mut story = of_anna();
    let properties = BasicProperties { user_id: Some(short("bob")), ..BasicProperties::default() };
    let publish = || publish_with("", "a1", "", "", &properties);
    story.enter(2, "anna", "shop").say(2, 1, [publish()]);
    story.administer([AdminCommand::SetTags { user: short("anna"), tags: vec![short("impersonator")] }]);
    story.say(2, 2, [publish()]);
    story.expect(expect![[r#"
        2/1 > channel.close 406 PRECONDITION_FAILED - user_id property set to 'bob' but authenticated user was 'anna' (60,40)
        log 8 user anna ["impersonator"]
        log 9 publish '' to #6
    "#]]);
}

#[test]
fn changes_hold_at_once_for_who_is_connected() {
    let mut story = of_anna();
    story.enter(2, "anna", "shop").say(2, 1, [publish("a1", "1"), publish_to("alt", "", "")]).skip();
    story.administer([permit("anna", "shop", ["", "^z", ""])]).say(2, 2, [publish("a1", "2")]);
    story.administer([permit("anna", "shop", [".*", ".*", ".*"])]).say(2, 3, [publish("a1", "3"), declare("new", "")]);
    story.say(2, 4, [publish_to("amq.topic", "bad", "")]);
    let all = AdminCommand::ClearTopicPermission { user: short("anna"), vhost: short("shop"), exchange: None };
    story.administer([all]).say(2, 5, [publish_to("amq.topic", "bad", "")]);
    let clear = || AdminCommand::ClearPermission { user: short("anna"), vhost: short("shop") };
    story.administer([clear(), clear()]).say(2, 6, [publish("a1", "4")]).enter(3, "anna", "shop");
    story.expect(expect![[r#"
        log 9 permit anna in @1 '' '^z' ''
        2/2 > channel.close 403 ACCESS_REFUSED - access to exchange 'amq.default' in vhost 'shop' refused for user 'anna' (60,40)
        log 10 permit anna in @1 '.*' '.*' '.*'
        log 11 publish '3' to #6
        log 12 in @1: declare queue new
        2/3 > queue.declare-ok new, 0 messages, 0 consumers
        2/4 > channel.close 403 ACCESS_REFUSED - access to topic 'bad' in exchange 'amq.topic' in vhost 'shop' refused for user 'anna' (60,40)
        log 13 free topics of amq.topic in @1 for anna
        as it was
        log 14 forbid anna in @1
        2/6 > channel.close 403 ACCESS_REFUSED - access to exchange 'amq.default' in vhost 'shop' refused for user 'anna' (60,40)
        3 refused: 530 NOT_ALLOWED - access to vhost 'shop' refused for user 'anna' (10,40)
    "#]]);
    assert_eq!(story.replica().replicated_text(), story.core.replicated_text());
}

#[test]
fn a_user_is_let_in_where_it_has_a_permission() {
    let mut story = of_anna();
    story.enter(2, "anna", "/").enter(3, "nobody", "/").enter(4, "guest", "shop").enter(5, "anna", "shop");
    story.expect(expect![[r#"
        2 refused: 530 NOT_ALLOWED - access to vhost '/' refused for user 'anna' (10,40)
        3 refused: 530 NOT_ALLOWED - access to vhost '/' refused for user 'nobody' (10,40)
    "#]]);
}

#[test]
fn a_deleted_user_is_gone_with_its_connections_once_that_is_committed() {
    let mut story = of_anna();
    let mut story = {
        let mut next = story.successor(promoted(story.replica()));
        next.commit().skip();
        story.skip();
        next
    };
    story.enter(2, "anna", "shop").enter(3, "+anna", "shop").enter(4, "+root", "shop");
    story.say(2, 1, [declare("a3", "exclusive"), consume("a1", "", "no-wait")]).commit().skip();
    story.administer([AdminCommand::DeleteUser { name: short("anna") }]);
    story.say(2, 1, [declare("a4", "")]).enter(5, "anna", "shop");
    story.expect(expect![[r#"
        log 9 delete queue #8
        log 10 delete user anna
        5 refused: 530 NOT_ALLOWED - access to vhost 'shop' refused for user 'anna' (10,40)
    "#]]);
    story.commit().close_connection(2).say(3, 1, [declare("b", "")]).commit();
    story.administer([AdminCommand::DeleteUser { name: short("anna") }]);
    story.expect(expect![[r#"
        committed 10, confirmable 10
        2/0 > connection.close 320 CONNECTION_FORCED - user 'anna' is deleted (0,0)
        log 11 in @1: declare queue b
        committed 11, confirmable 11
        3/1 > queue.declare-ok b, 0 messages, 0 consumers
        refused: there is no user 'anna'
    "#]]);
}

/// Nothing but a password makes a record of it: one without would shut out everybody.
#[test]
fn the_guest_without_a_password_of_its_own_keeps_what_it_has() {
    let mut story = story();
    story.administer([add_vhost("shop")]).skip();
    let tags = AdminCommand::SetTags { user: short("guest"), tags: Vec::new() };
    story.administer([permit("guest", "shop", ["", "", ""]), tags]).expect(expect![[r#"
        refused: user 'guest' has no password of its own yet: set one first (`understudy user password guest`)
        refused: user 'guest' has no password of its own yet: set one first (`understudy user password guest`)
    "#]]);
    assert!(story.core.login_since(None).unwrap().1.has_open_guest);
}

#[test]
fn the_guest_without_a_record_may_do_everything_until_a_record_names_it() {
    let mut story = story();
    story.administer([add_vhost("shop")]).enter(1, "guest", "/").enter(2, "guest", "shop").skip();
    story.administer([add_user("guest"), add_user("anna")]).say(1, 1, [declare("q", "")]);
    assert!(story.core.login_since(None).unwrap().1.has_open_guest);
    let password = PasswordHash { algorithm: HashAlgorithm::Argon2id, text: "another".into() };
    story.administer([AdminCommand::SetPassword { user: short("guest"), password }]);
    assert!(!story.core.login_since(None).unwrap().1.has_open_guest);
    story.say(1, 1, [declare("r", "")]).administer([permit("guest", "/", ["^a", "", ""])]);
    story.say(1, 1, [declare("r", "")]).say(2, 1, [declare("r", "")]);
    story.expect(expect![[r#"
        differs: user 'guest' exists already
        log 2 user anna []
        log 3 declare queue q
        1/1 > queue.declare-ok q, 0 messages, 0 consumers
        log 4 user guest ["administrator"]
        log 5 permit guest in @0 '.*' '.*' '.*'
        log 6 permit guest in @1 '.*' '.*' '.*'
        log 7 user guest ["administrator"]
        log 8 declare queue r
        1/1 > queue.declare-ok r, 0 messages, 0 consumers
        log 9 permit guest in @0 '^a' '' ''
        1/1 > channel.close 403 ACCESS_REFUSED - access to queue 'r' in vhost '/' refused for user 'guest' (50,10)
        log 10 in @1: declare queue r
        2/1 > queue.declare-ok r, 0 messages, 0 consumers
    "#]]);
    let mut story = crate::harness::story();
    story.enter(1, "guest", "/").skip();
    story.administer([AdminCommand::DeleteUser { name: short("guest") }]).enter(2, "guest", "/");
    story.administer([AdminCommand::DeleteUser { name: short("guest") }]);
    story.expect(expect![[r#"
        log 1 delete user guest
        1/0 > connection.close 320 CONNECTION_FORCED - user 'guest' is deleted (0,0)
        2 refused: 530 NOT_ALLOWED - access to vhost '/' refused for user 'guest' (10,40)
        refused: there is no user 'guest'
    "#]]);
    let replica = story.replica();
    assert_eq!(replica.login_since(None).unwrap().1, story.core.login_since(None).unwrap().1);
}

#[test]
fn limits_of_a_user_hold_for_what_comes_after_them() {
    let mut story = of_anna();
    story.administer([permit("anna", "/", [".*", ".*", ".*"])]).enter(2, "anna", "shop").enter(3, "anna", "/").skip();
    let set = |limit, value| AdminCommand::SetLimit { of: LimitOf::User(short("anna")), limit, value };
    story.administer([set(Limit::MaxConnections, Some(2)), set(Limit::MaxChannels, Some(2))]);
    story.administer([set(Limit::MaxQueues, Some(2))]).enter(4, "anna", "/").enter(5, "+anna", "/");
    story.open_channel(2, 1).open_channel(3, 1).open_channel(2, 2);
    story.close_connection(2).administer([set(Limit::MaxChannels, None)]).enter(4, "anna", "/");
    story.open_channel(4, 1).open_channel(4, 2).open_channel(4, 3).say(4, 3, [declare("q", "")]);
    story.expect(expect![[r#"
        log 9 limit anna to Some(2) connections, None channels
        log 10 limit anna to Some(2) connections, Some(2) channels
        refused: a user has no limit of queues; a virtual host has
        4 refused: 530 NOT_ALLOWED - connection refused for user 'anna': user connection limit (2) is reached (10,40)
        2/2 > connection.close 530 NOT_ALLOWED - number of channels opened for user 'anna' has reached the maximum allowed user limit of (2) (0,0)
        log 11 limit anna to Some(2) connections, None channels
        log 12 declare queue q
        4/3 > queue.declare-ok q, 0 messages, 0 consumers
    "#]]);
}

#[test]
fn what_makes_no_sense_is_refused_and_what_is_so_already_is_not_written() {
    let mut story = of_anna();
    story.administer([add_user("anna"), permit("anna", "none", ["", "", ""]), permit("bob", "shop", ["", "", ""])]);
    story.administer([permit("anna", "shop", ["(", "", ""]), permit("anna", "shop", ["^a", "^w|^a", "^r|^a"])]);
    story.administer([permit_topics("anna", "shop", "amq.topic", ["{", ""])]);
    story.administer([AdminCommand::SetTags { user: short("anna"), tags: vec![short("monitoring")] }]);
    story.administer([AdminCommand::SetTags { user: short("anna"), tags: vec![short("monitoring")] }]);
    story.administer([AdminCommand::SetTags { user: short("bob"), tags: vec![] }]);
    story.expect(expect![[r#"
        differs: user 'anna' exists already
        refused: there is no virtual host 'none'
        refused: there is no user 'bob'
        refused: '(' is no pattern: regex parse error:
            (
            ^
        error: unclosed group
        as it was
        refused: '{' is no pattern: regex parse error:
            {
            ^
        error: repetition operator missing expression
        log 8 user anna ["monitoring"]
        as it was
        refused: there is no user 'bob'
    "#]]);
}
