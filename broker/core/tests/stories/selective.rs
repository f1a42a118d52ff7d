//! Queues and exchanges of which the backups have less than all: what is written for whom, and what a failover leaves.

use bytes::{Bytes, BytesMut};
use expect_test::expect;
use understudy_core::Command::{TxCommit, TxSelect};
use understudy_core::{Command, Core, Outputs};
use understudy_protocol::FieldValue;
use understudy_record::{
    BasePiece, Epoch, Frame, Identity, Index, Position, ProcessId, QueueId, Record, ReplicaName, Replicate, StoreId,
};

use crate::harness::*;

fn replicate(value: &str) -> Bytes {
    arguments(&[("x-understudy-replicate", text_value(value))])
}

fn declare_as(name: &str, value: &str) -> Command {
    declare_with(name, "durable", replicate(value))
}

fn exchange_as(name: &str, flags: &str, value: &str) -> Command {
    match exchange(name, "fanout", flags) {
        Command::ExchangeDeclare { name, kind, passive, durable, auto_delete, internal, no_wait, .. } => {
            let arguments = replicate(value);
            Command::ExchangeDeclare { name, kind, passive, durable, auto_delete, internal, no_wait, arguments }
        }
        other => other,
    }
}

fn epoch_of(store: u128) -> Record {
    let primary = Identity { name: ReplicaName::new("b"), store: StoreId(store), process: ProcessId(1) };
    Record::EpochStart { primary, in_sync: Vec::new() }
}

/// The primary of an epoch, as the shell makes one.
fn elected(mut core: Core, store: u128, log: &[(Index, Record)]) -> Story {
    let mut out = Outputs::default();
    core.set_cluster_version(2);
    core.append(epoch_of(store), &mut out);
    core.promote(&mut out);
    core.assert_consistent();
    let mut story = Story::with(core);
    story.log = log.to_vec();
    story.take_outputs(out);
    story
}

/// Store 1 is the primary's. Queues #2 `all`, #3 `configuration`, #4 `none`, all bound to the exchange `x`.
fn three_queues() -> Story {
    let mut story = elected(Core::new(1), 1, &[]);
    story.say(1, 1, [declare_as("all", "all"), declare_as("conf", "configuration"), declare_as("none", "none")]);
    story.say(1, 1, [exchange_as("x", "durable", "all")]);
    story.say(1, 1, ["all", "conf", "none"].map(|queue| bind(queue, "x", ""))).commit().skip();
    story
}

/// What its followers' log has.
fn followed(story: &mut Story) -> String {
    let from = story.take_text().lines().filter(|line| line.starts_with("log ")).count();
    let records = &story.log[story.log.len() - from..];
    records.iter().map(|(index, record)| format!("{index} {}\n", describe_record(&as_followed(record)))).collect()
}

#[test]
fn messages_for_unreplicated_queues_stay_in_the_primary_s_log() {
    let mut story = three_queues();
    story.say(1, 1, [publish_to("x", "", "1"), persistent("conf", "2"), publish("none", "3"), publish("all", "4")]);
    story.commit().say(
        1,
        1,
        [get("conf", ""), get("conf", ""), get("none", "no-ack"), get("none", ""), get("all", "")],
    );
    story.say(1, 1, [ack(1), nack(2, false, true), ack(5)]).commit().say(1, 1, [purge("conf"), purge("all")]).commit();
    expect![[r#"
        9 publish '1' to #2 here #3 #4
        10 publish '2' to here #3 persistent
        11 publish '3' to here #4
        12 publish '4' to #2
        13 dequeue 9 from #4 here
        14 dequeue 9 from #2
        15 dequeue 9 from #3 here
        16 requeue 10 in #3 here
        17 purge #3 here up to 16 except []
        18 purge #2 up to 17 except []
    "#]]
    .assert_eq(&records_text(&story.log[8..]));
    expect![[r#"
        9 publish '1' to #2
        10 withheld
        11 withheld
        12 publish '4' to #2
        13 withheld
        14 dequeue 9 from #2
        15 withheld
        16 withheld
        17 withheld
        18 purge #2 up to 17 except []
    "#]]
    .assert_eq(&followed(&mut story));
    let follower = story.replica();
    assert_eq!(follower.replicated_text(), story.core.replicated_text());
    assert_eq!(story.own().own_text(), story.core.own_text());
    follower.assert_consistent();
}

fn records_text(log: &[(Index, Record)]) -> String {
    log.iter().map(|(index, record)| format!("{index} {}\n", describe_record(record))).collect()
}

#[test]
fn another_store_s_primary_has_them_empty_or_not_at_all_and_so_has_everybody_then() {
    let mut story = three_queues();
    story.say(1, 1, [exchange_as("y", "", "none"), exchange_as("z", "auto-delete", "configuration")]);
    story.say(1, 1, [bind("all", "y", ""), bind("conf", "z", ""), bind_exchange("y", "z", "")]);
    story.say(1, 1, [publish_to("x", "", "1"), publish("none", "2")]).commit();
    let mut next = elected(story.replica(), 2, &[]);
    next.read_from(&story);
    next.expect(expect![[r#"
        log 16 epoch start
        log 17 purge #3 up to 16 except []
        log 18 delete queue #4
        log 19 delete exchange y
    "#]]);
    next.commit().skip();
    next.say(1, 1, ["all", "conf", "none"].map(|queue| declare_with(queue, "passive", Bytes::new())));
    next.expect(expect![[r#"
        1/1 > queue.declare-ok all, 1 messages, 0 consumers
        1/1 > queue.declare-ok conf, 0 messages, 0 consumers
        1/1 > channel.close 404 NOT_FOUND - no queue 'none' in vhost '/' (50,10)
    "#]]);
    next.say(1, 2, [publish_to("x", "", "still bound"), get("conf", ""), get("all", ""), get("all", "")]).commit();
    next.expect(expect![[r#"
        log 20 publish 'still bound' to #2 here #3
        committed 20, confirmable 20
        1/2 > get-ok 1: 'still bound', 0 left
        1/2 > get-ok 2: '1' redelivered, 1 left
        1/2 > get-ok 3: 'still bound', 0 left
    "#]]);
    // The old primary follows: what only it had is gone there too.
    let mut old = story.own();
    assert_eq!(old.queues().iter().map(|(_, messages, _)| *messages).collect::<Vec<_>>(), [1, 1, 2]);
    next.log.iter().for_each(|(index, record)| old.apply(*index, &as_followed(record)).unwrap());
    assert_eq!(old.replicated_text(), next.core.replicated_text());
    assert_eq!(old.queues().iter().map(|(_, messages, _)| *messages).collect::<Vec<_>>(), [2, 0]);
    old.assert_consistent();
}

/// From its log, and from a checkpoint.
#[test]
fn the_same_store_s_primary_still_has_them_if_no_other_was_between() {
    let mut story = three_queues();
    story.say(1, 1, [publish_to("x", "", "1"), publish("none", "2")]).commit();
    let checkpoint = checkpoint(&story.core, story.core.last_index());
    let mut recovered = Core::new(4);
    checkpoint.into_iter().for_each(|piece| recovered.apply_base(piece).unwrap());
    for core in [story.own(), recovered] {
        let log = story.log.clone();
        let mut again = elected(core, 1, &log);
        assert_eq!(again.take_text(), format!("log {} epoch start\n", log.len() + 1));
        assert_eq!(again.core.queues().iter().map(|(_, messages, _)| *messages).collect::<Vec<_>>(), [1, 1, 2]);
        // Between this epoch and the next another's: then they are gone.
        let mut core = again.own();
        let mut other = elected(again.replica(), 2, &[]);
        other.commit();
        other.log.iter().for_each(|(index, record)| core.apply(*index, &as_followed(record)).unwrap());
        let mut last = elected(core, 1, &[]);
        assert_eq!(last.take_text(), "log 15 epoch start\nlog 16 purge #3 up to 15 except []\n");
    }
}

#[test]
fn transactions_are_one_decision_over_replicated_and_other_queues() {
    let mut story = three_queues();
    story.say(2, 1, [publish("none", "in"), publish("all", "in")]).commit();
    story.say(1, 1, [TxSelect, get("none", ""), get("all", "")]).skip();
    story.say(1, 1, [ack(1), nack(2, false, true), publish_to("x", "", "1"), publish("none", "2"), TxCommit]);
    story.say(1, 1, [part("part"), publish("none", "rest"), part("part"), publish("all", "rest"), TxCommit]);
    story.say(1, 1, [part("part"), publish("conf", "alone"), TxCommit]);
    let written = story.take_text();
    expect![[r#"
        log 11 staged '1' for #2 here #3 #4
        log 12 staged '2' for here #4
        log 13 transaction of 2 staged, requeue 10 in #2, dequeue 9 from #4
        log 14 part 'part'
        log 15 part 'part'
        log 16 staged [14] 'rest' for here #4
        log 17 staged [15] 'rest' for #2
        log 18 transaction of 2 staged
        log 19 part 'part'
        log 20 publish [19] 'alone' to here #3
    "#]]
    .assert_eq(&written);
    expect![[r#"
        11 staged '1' for #2
        12 staged '' for 
        13 transaction of 2 staged, requeue 10 in #2, dequeue 9 from #4
        14 part 'part'
        15 part 'part'
        16 staged [14] '' for 
        17 staged [15] 'rest' for #2
        18 transaction of 2 staged
        19 part 'part'
        20 discard 19
    "#]]
    .assert_eq(&records_text(&story.log[10..].iter().map(|(i, r)| (*i, as_followed(r))).collect::<Vec<_>>()));
    let mut follower = story.replica();
    assert_eq!(follower.replicated_text(), story.core.replicated_text());
    assert_eq!(story.own().own_text(), story.core.own_text());
    follower.assert_consistent();
    assert_eq!((follower.parts(), follower.unclaimed_parts().len()), (1, 0), "only those of the replicated message");
}

#[test]
fn a_follower_that_starts_over_gets_no_message_of_theirs_and_a_checkpoint_has_them_all() {
    let mut story = three_queues();
    story.say(1, 1, [publish_to("x", "", "1"), publish("none", "2")]).commit();
    let sync_point = story.core.begin_sync();
    let sizes = |queues: Vec<(QueueId, u64, u64)>| queues.iter().map(|(_, n, _)| *n).collect::<Vec<_>>();
    assert_eq!(sizes(story.core.backlogs()), [1, 0, 0]);
    assert_eq!(sizes(story.core.queues()), [1, 1, 2]);
    let mut follower = Core::new(2);
    let start = BasePiece::Start { sync_point: Position::new(Epoch(1), sync_point), epochs: vec![], in_sync: vec![] };
    follower.apply_base(start).unwrap();
    story.core.snapshot_topology().into_iter().for_each(|piece| follower.apply_base(piece).unwrap());
    follower.apply_base(BasePiece::TopologyEnd).unwrap();
    for (queue, ..) in story.core.backlogs() {
        let chunk = story.core.backlog_chunk(queue, sync_point.next(), sync_point, 1000, 100);
        for message in chunk.messages() {
            let (index, message) = (message.index, (**message.message.as_ref().unwrap()).clone());
            follower
                .apply_base(BasePiece::Message { queue, index, delivery_count: 0, expires_ms: 0, message })
                .unwrap();
        }
        assert!(chunk.done);
        follower.apply_base(BasePiece::QueueDone { queue }).unwrap();
    }
    follower.apply_base(BasePiece::End { floor: sync_point }).unwrap();
    assert_eq!(follower.replicated_text(), story.core.replicated_text());
    assert_eq!(sizes(follower.queues()), [1, 0, 0]);
}

#[test]
fn what_an_unreplicated_load_costs_the_network_is_next_to_nothing() {
    let mut story = three_queues();
    let before = story.log.len();
    let body = "x".repeat(1000);
    story.say(1, 1, (0..100).map(|_| persistent("conf", &body))).commit();
    story.say(1, 1, [consume("conf", "c", "no-ack")]).commit();
    let (mut own, mut sent) = (0, 0);
    for (index, record) in &story.log[before..] {
        let position = Position::new(Epoch(1), *index);
        let frame = Frame::record(position, Index(0), record, &mut BytesMut::new());
        own += frame.len();
        sent += frame.for_followers().unwrap().len();
    }
    assert!(sent * 20 < own && own > 100_000, "{sent} of {own} bytes");
}

#[test]
fn exclusive_queues_are_never_replicated_and_the_default_is_the_cluster_s() {
    let mut story = elected(Core::new(1), 1, &[]);
    let spec = |story: &Story| match &story.log.last().unwrap().1 {
        Record::QueueDeclare(spec) => spec.replicate,
        Record::ExchangeDeclare(spec) => spec.replicate,
        other => panic!("{other:?}"),
    };
    story.say(1, 1, [declare("mine", "exclusive")]);
    assert_eq!(spec(&story), Replicate::Nothing);
    story.say(1, 1, [declare_with("mine too", "exclusive", replicate("all"))]);
    assert_eq!(spec(&story), Replicate::Nothing);
    story.say(1, 1, [declare("a", "")]);
    assert_eq!(spec(&story), Replicate::All);
    story.core.set_default_replication(Replicate::Configuration);
    story.say(1, 1, [declare("b", "")]);
    assert_eq!(spec(&story), Replicate::Configuration);
    story.say(1, 1, [exchange("x", "fanout", "")]);
    assert_eq!(spec(&story), Replicate::Configuration);
    story.say(1, 1, [declare_as("c", "all")]);
    assert_eq!(spec(&story), Replicate::All);
    // Who says nothing means the queue that is there, whatever the default was then.
    story.commit().skip().say(1, 1, [declare("a", ""), declare("b", "")]).expect(expect![[r#"
        1/1 > queue.declare-ok a, 0 messages, 0 consumers
        1/1 > queue.declare-ok b, 0 messages, 0 consumers
    "#]]);
}

#[test]
fn the_argument_is_checked_and_compared() {
    let mut story = three_queues();
    let number = arguments(&[("x-understudy-replicate", FieldValue::I32(1))]);
    story.say(1, 1, [declare_as("q", "some")]).say(1, 2, [declare_with("q", "", number)]);
    story.say(1, 3, [exchange_as("e", "", "everything")]);
    story.say(1, 4, [declare_as("conf", "all")]).say(1, 5, [declare("conf", "durable")]);
    story.say(1, 6, [declare_as("conf", "configuration")]).say(1, 7, [exchange_as("x", "durable", "none")]);
    story.commit().expect(expect![[r#"
        1/1 > channel.close 406 PRECONDITION_FAILED - invalid arg 'x-understudy-replicate' for queue 'q' in vhost '/': 'some'; expected all, configuration or none (50,10)
        1/2 > channel.close 406 PRECONDITION_FAILED - invalid arg 'x-understudy-replicate' for queue 'q' in vhost '/': type signedint; expected all, configuration or none (50,10)
        1/3 > channel.close 406 PRECONDITION_FAILED - invalid arg 'x-understudy-replicate' for exchange 'e' in vhost '/': 'everything'; expected all, configuration or none (40,10)
        1/4 > channel.close 406 PRECONDITION_FAILED - inequivalent arg 'x-understudy-replicate' for queue 'conf' in vhost '/': received 'all' but current is 'configuration' (50,10)
        1/5 > channel.close 406 PRECONDITION_FAILED - inequivalent arg 'x-understudy-replicate' for queue 'conf' in vhost '/': received none but current is the value 'configuration' of type 'longstr' (50,10)
        1/6 > queue.declare-ok conf, 0 messages, 0 consumers
        1/7 > channel.close 406 PRECONDITION_FAILED - inequivalent arg 'x-understudy-replicate' for exchange 'x' in vhost '/': received 'none' but current is 'all' (40,10)
        committed 8, confirmable 8
    "#]]);
}

#[test]
fn nothing_of_it_is_written_before_every_replica_knows_it() {
    let mut core = Core::new(1);
    core.promote(&mut Outputs::default());
    core.set_default_replication(Replicate::Nothing);
    let mut story = Story::with(core);
    story.say(1, 1, [declare("mine", "exclusive"), declare_as("a", "all"), declare("b", "")]);
    story.say(1, 1, [publish("mine", "1"), declare_as("c", "none")]).say(1, 2, [exchange_as("x", "", "configuration")]);
    story.commit().expect(expect![[r#"
        log 1 declare queue mine exclusive
        log 2 declare queue a durable
        log 3 declare queue b
        log 4 publish '1' to #1
        1/2 > channel.close 406 PRECONDITION_FAILED - invalid arg 'x-understudy-replicate' for exchange 'x' in vhost '/': not every replica of this cluster has a version that knows it; upgrade them all (40,10)
        committed 4, confirmable 4
        1/1 > queue.declare-ok mine, 0 messages, 0 consumers
        1/1 > queue.declare-ok a, 0 messages, 0 consumers
        1/1 > queue.declare-ok b, 0 messages, 0 consumers
        1/1 > channel.close 406 PRECONDITION_FAILED - invalid arg 'x-understudy-replicate' for queue 'c' in vhost '/': not every replica of this cluster has a version that knows it; upgrade them all (50,10)
    "#]]);
    assert_eq!(story.core.writer(), None);
}
