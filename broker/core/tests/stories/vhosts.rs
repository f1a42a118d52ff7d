//! Virtual hosts: what is in one is in no other, and ends with it.

use expect_test::expect;
use understudy_core::{AdminCommand, Core, Limit, LimitOf, Outputs};
use understudy_record::{BasePiece, Record};

use crate::harness::*;

fn limit(of: LimitOf, limit: Limit, value: u64) -> AdminCommand {
    AdminCommand::SetLimit { of, limit, value: Some(value) }
}

#[test]
fn what_is_in_one_is_in_no_other() {
    let mut story = story();
    story.administer([add_vhost("shop")]).enter(1, "+root", "/").enter(2, "+root", "shop");
    for connection in [1, 2] {
        story.say(connection, 1, [declare("q", "durable"), exchange("x", "fanout", ""), bind("q", "x", "")]);
    }
    story.say(1, 1, [publish("q", "in /")]).say(2, 1, [publish_to("x", "", "in shop")]);
    story.say(2, 1, [publish_to("amq.direct", "k", "nowhere"), bind("q", "amq.direct", "k")]);
    story.say(
        2,
        1,
        [publish_to("amq.direct", "k", "somewhere"), publish_to("x", "", "more"), delete_exchange("x", "")],
    );
    story.say(1, 1, [get("q", "no-ack"), get("q", "no-ack")]);
    story.say(2, 1, [get("q", "no-ack"), get("q", "no-ack"), get("q", "no-ack"), get("q", "no-ack")]);
    story.say(2, 1, [unbind("q", "amq.direct", "k"), delete("q", "")]);
    story.expect(expect![[r#"
        log 1 create vhost shop
        log 2 declare queue q durable
        log 3 declare fanout exchange x
        log 4 bind #2 to x by ''
        1/1 > queue.declare-ok q, 0 messages, 0 consumers
        1/1 > exchange.declare-ok
        1/1 > queue.bind-ok
        log 5 in @1: declare queue q durable
        log 6 in @1: declare fanout exchange x
        log 7 in @1: bind #5 to x by ''
        2/1 > queue.declare-ok q, 0 messages, 0 consumers
        2/1 > exchange.declare-ok
        2/1 > queue.bind-ok
        log 8 publish 'in /' to #2
        log 9 publish 'in shop' to #5
        log 10 in @1: bind #5 to amq.direct by 'k'
        2/1 > queue.bind-ok
        log 11 publish 'somewhere' to #5
        log 12 publish 'more' to #5
        log 13 in @1: delete exchange x
        2/1 > exchange.delete-ok
        log 14 dequeue 8 from #2
        1/1 > get-ok 1: 'in /', 0 left
        1/1 > get-empty
        log 15 dequeue 9 from #5
        log 16 dequeue 11 from #5
        log 17 dequeue 12 from #5
        2/1 > get-ok 1: 'in shop', 2 left
        2/1 > get-ok 2: 'somewhere', 1 left
        2/1 > get-ok 3: 'more', 0 left
        2/1 > get-empty
        log 18 in @1: unbind #5 to amq.direct by 'k'
        log 19 delete queue #5
        2/1 > queue.unbind-ok
        2/1 > queue.delete-ok, 0 messages
    "#]]);
    story.say(2, 1, [get("q", "")]).say(2, 2, [publish_to("x", "", "")]);
    story.say(2, 3, [declare("q", "exclusive")]).enter(3, "+root", "shop").say(3, 1, [purge("q")]);
    story.expect(expect![[r#"
        2/1 > channel.close 404 NOT_FOUND - no queue 'q' in vhost 'shop' (60,70)
        2/2 > channel.close 404 NOT_FOUND - no exchange 'x' in vhost 'shop' (60,40)
        log 20 in @1: declare queue q exclusive
        2/3 > queue.declare-ok q, 0 messages, 0 consumers
        3/1 > channel.close 405 RESOURCE_LOCKED - cannot obtain exclusive access to locked queue 'q' in vhost 'shop'. It could be originally declared on another connection or the exclusive property value does not match that of the original declaration. (50,30)
    "#]]);
}

#[test]
fn one_that_is_there_is_left_and_one_that_is_not_cannot_be_entered() {
    let mut story = story();
    story.administer([add_vhost("/"), add_vhost("shop"), add_vhost("shop"), add_vhost("")]);
    story.administer([delete_vhost("/"), delete_vhost("none")]);
    story.enter(1, "+root", "none").enter(2, "+root", "/").enter(3, "+root", "shop");
    story.expect(expect![[r#"
        as it was
        as it was
        refused: a virtual host needs a name
        log 1 create vhost shop
        refused: virtual host '/' cannot be deleted
        refused: there is no virtual host 'none'
        1 refused: 530 NOT_ALLOWED - vhost none not found (10,40)
    "#]]);
}

#[test]
fn one_that_is_not_committed_is_not_there_for_clients() {
    let mut story = uncommitted_story();
    story.administer([add_vhost("shop")]).enter(1, "+root", "shop").commit().enter(1, "+root", "shop");
    story.expect(expect![[r#"
        log 1 create vhost shop
        1 refused: 530 NOT_ALLOWED - vhost shop not found (10,40)
        committed 1, confirmable 1
    "#]]);
}

#[test]
fn with_its_deletion_go_its_queues_its_connections_and_nothing_else() {
    let mut story = uncommitted_story();
    story.administer([add_vhost("shop")]).commit().enter(1, "+root", "/").enter(2, "+root", "shop");
    for connection in [1, 2] {
        let queues = [declare("q", "durable"), declare("mine", "exclusive"), declare("auto", "auto-delete")];
        story.say(connection, 1, queues.into_iter().chain([bind("q", "amq.fanout", "")]));
        story.say(connection, 1, [publish("q", "1"), publish("q", "2"), publish("auto", "3")]);
        story.say(connection, 1, [consume("auto", "", "no-wait"), part("cut off")]).commit();
        story.say(connection, 1, [qos(1, false), consume("q", "", "no-wait")]);
    }
    story.skip().administer([delete_vhost("shop")]);
    story.say(2, 1, [declare("late", "")]).enter(3, "+root", "shop");
    story.expect(expect![[r#"
        log 18 discard 17
        log 19 requeue 14 in #10
        log 20 requeue 16 in #12
        log 21 delete queue #12
        log 22 delete queue #11
        log 23 delete vhost @1
        3 refused: 530 NOT_ALLOWED - vhost shop not found (10,40)
    "#]]);
    story.commit().close_connection(2).say(1, 1, [get("q", "")]);
    story.expect(expect![[r#"
        committed 23, confirmable 23
        2/0 > connection.close 320 CONNECTION_FORCED - vhost 'shop' is deleted (0,0)
        1/1 > get-ok 3: '2', 0 left
    "#]]);
    assert_eq!(story.replica().replicated_text(), story.core.replicated_text());
    // The name is free for another one.
    story.administer([add_vhost("shop")]).commit().enter(4, "+root", "shop").say(4, 1, [declare("q", "passive")]);
    story.expect(expect![[r#"
        log 24 create vhost shop
        committed 24, confirmable 24
        4/1 > channel.close 404 NOT_FOUND - no queue 'q' in vhost 'shop' (50,10)
    "#]]);
}

#[test]
fn a_queue_whose_message_is_being_read_back_may_go_with_its_virtual_host() {
    let mut story = story();
    story.administer([add_vhost("shop")]).enter(1, "+root", "shop");
    story.say(1, 1, [declare("q", ""), publish("q", "1"), publish("q", "2")]).evict().hold_loads();
    story.say(1, 1, [get("q", "")]).skip();
    story.administer([delete_vhost("shop")]).answer();
    story.expect(expect![[r#"
        log 5 requeue 3 in #2
        log 6 delete vhost @1
        1/0 > connection.close 320 CONNECTION_FORCED - vhost 'shop' is deleted (0,0)
    "#]]);
}

#[test]
fn a_replica_of_a_sync_point_has_them_and_a_scrub_sees_what_differs() {
    let mut story = story();
    story.administer([add_vhost("shop"), add_user("anna"), permit("anna", "shop", ["^a", ".*", ""])]);
    story.administer([limit(LimitOf::Vhost(short("shop")), Limit::MaxQueues, 3)]);
    story.administer([permit_topics("anna", "shop", "amq.topic", ["a", "b"])]);
    story.administer([limit(LimitOf::User(short("anna")), Limit::MaxChannels, 9)]);
    story.administer([AdminCommand::DeleteUser { name: short("guest") }]);
    story.enter(1, "+root", "shop").enter(2, "+root", "/");
    for connection in [1, 2] {
        story.say(connection, 1, [declare("q", "durable"), exchange("x", "topic", ""), bind("q", "x", "#")]);
        story.say(connection, 1, [bind_exchange("amq.fanout", "x", "a"), publish_to("x", "a", "1")]);
    }
    let sync_point = story.core.last_index();
    let base = checkpoint(&story.core, sync_point);
    let recovered = |base: &[BasePiece]| {
        let mut replica = Core::new(2);
        base.iter().cloned().for_each(|piece| replica.apply_base(piece).unwrap());
        replica
    };
    let replica = recovered(&base);
    assert_eq!(replica.replicated_text(), story.core.replicated_text());
    assert_eq!(replica.definitions(true), story.core.definitions(true));

    let mut out = Outputs::default();
    let mut pass = story.core.begin_scrub();
    while story.core.scrub(&mut pass, 9, &mut out).is_some() {}
    let differs = |mut replica: Core| {
        out.records.iter().for_each(|(index, record)| replica.apply(*index, record).unwrap());
        replica.take_difference().is_some()
    };
    assert!(!differs(replica));
    // Each piece that is missing, or stands in the other virtual host, is noticed.
    let mut noticed = 0;
    for at in 1..base.len() {
        let of_admin = matches!(base[at], BasePiece::Admin(_));
        let of_vhost = matches!(&base[at], BasePiece::In { piece, .. } if matches!(**piece, BasePiece::Binding(_)));
        if of_admin || of_vhost {
            let mut without = base.clone();
            without.remove(at);
            let mut replica = Core::new(2);
            if without.iter().cloned().all(|piece| replica.apply_base(piece).is_ok()) {
                assert!(differs(replica), "{:?}", base[at]);
                noticed += 1;
            }
        }
    }
    assert!(noticed >= 6, "{noticed}");
}

#[test]
fn the_default_one_is_written_as_ever() {
    let mut story = story();
    story.say(1, 1, [declare("q", ""), exchange("x", "fanout", ""), bind("q", "x", ""), unbind("q", "x", "")]);
    story.say(1, 1, [delete_exchange("x", ""), delete("q", "")]);
    let tells = |record: &Record| matches!(record, Record::In { .. } | Record::Admin(_));
    assert!(!story.log.iter().any(|(_, record)| tells(record)));
    assert_eq!(story.core.snapshot_topology(), []);
}

#[test]
fn limits_of_a_virtual_host_hold_for_what_comes_after_them() {
    let mut story = story();
    story.administer([add_vhost("shop")]).enter(1, "+root", "shop").enter(2, "+root", "shop");
    story.say(1, 1, [declare("a", ""), declare("b", "")]).skip();
    let shop = || LimitOf::Vhost(short("shop"));
    story.administer([limit(shop(), Limit::MaxQueues, 1), limit(shop(), Limit::MaxConnections, 2)]);
    story.administer([limit(shop(), Limit::MaxQueues, 1), limit(shop(), Limit::MaxChannels, 2)]);
    story.say(1, 1, [declare("a", ""), declare("c", "")]).enter(3, "+root", "shop").enter(4, "+root", "/");
    story.close_connection(2).enter(3, "+root", "shop");
    story.administer([AdminCommand::SetLimit { of: shop(), limit: Limit::MaxQueues, value: None }]);
    story.say(1, 2, [declare("c", "")]);
    story.expect(expect![[r#"
        log 4 limit @1 to None connections, Some(1) queues
        log 5 limit @1 to Some(2) connections, Some(1) queues
        as it was
        refused: a virtual host has no limit of channels; a user has
        1/1 > queue.declare-ok a, 0 messages, 0 consumers
        1/1 > channel.close 406 PRECONDITION_FAILED - cannot declare queue 'c': queue limit in vhost 'shop' (1) is reached (50,10)
        3 refused: 530 NOT_ALLOWED - access to vhost 'shop' refused for user 'root': connection limit (2) is reached (10,40)
        log 6 limit @1 to Some(2) connections, None queues
        log 7 in @1: declare queue c
        1/2 > queue.declare-ok c, 0 messages, 0 consumers
    "#]]);
}

#[test]
fn nothing_of_it_is_written_while_a_replica_does_not_know_it() {
    let mut core = Core::new(1);
    core.set_cluster_version(2);
    let mut out = Outputs::default();
    core.promote(&mut out);
    let mut story = Story::with(core);
    let declare = AdminCommand::DeclareQueue {
        vhost: short("/"),
        name: short("q"),
        durable: true,
        auto_delete: false,
        arguments: bytes::Bytes::new(),
    };
    story.administer([add_vhost("shop"), add_user("anna"), AdminCommand::DeleteUser { name: short("guest") }, declare]);
    story.expect(expect![[r#"
        refused: virtual hosts, users, permissions, limits and policies need a version of the broker that not every replica of this cluster has yet; upgrade them all
        refused: virtual hosts, users, permissions, limits and policies need a version of the broker that not every replica of this cluster has yet; upgrade them all
        refused: virtual hosts, users, permissions, limits and policies need a version of the broker that not every replica of this cluster has yet; upgrade them all
        log 1 declare queue q durable
    "#]]);
}
