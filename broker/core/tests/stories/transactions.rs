//! Transactions: all of it or nothing, for clients, for replicas, and for whoever comes after a crash.

use expect_test::expect;
use understudy_core::Command::{ChannelClose, TxCommit, TxRollback, TxSelect};
use understudy_core::{
    Command, Core, MAX_OPEN_TRANSACTIONS_BYTES, MAX_TRANSACTION_BYTES, MAX_TRANSACTION_MESSAGES, Outputs, Publish,
};
use understudy_protocol::BasicProperties;
use understudy_record::{Body, Index, QueueId, Record, Settled};

use crate::harness::*;

fn mandatory(queue: &str, body: &str) -> Command {
    publish_with("", queue, body, "mandatory", &BasicProperties::default())
}

fn in_transaction() -> Story {
    let mut story = story();
    story.say(1, 1, [declare("a", ""), declare("b", "durable"), TxSelect]).skip();
    story
}

#[test]
fn what_is_published_comes_with_the_commit_and_all_at_once() {
    let mut story = uncommitted_story();
    story.say(1, 1, [declare("a", ""), declare("b", "durable"), TxSelect]);
    story.say(2, 1, [consume("a", "c", ""), get("b", "")]).commit().skip();
    story.say(1, 1, [publish("a", "1"), persistent("b", "2"), persistent("a", "3")]).expect(expect![[""]]);
    story.say(1, 1, [TxCommit]).expect(expect![[r#"
        log 3 staged '1' for #1
        log 4 staged '2' for #2 persistent
        log 5 staged '3' for #1
        log 6 transaction of 3 staged
    "#]]);
    // A get finds what is published and not committed, and waits for it.
    story.say(2, 1, [get("b", "")]).expect(expect![[""]]);
    // Not even the commit of most of its records shows anything.
    story.commit_to(5, 5).expect(expect![[r#"
        committed 5, confirmable 5
    "#]]);
    story.commit_to(6, 5).expect(expect![[r#"
        committed 6, confirmable 5
        2/1 > get-ok 1: '2', 0 left
        2/1 > deliver 2 to c: '1'
        2/1 > deliver 3 to c: '3'
    "#]]);
    story.commit_to(6, 6).expect(expect![[r#"
        committed 6, confirmable 6
        1/1 > tx.commit-ok
    "#]]);
    assert_eq!(story.replica().replicated_text(), story.core.replicated_text());
}

#[test]
fn the_next_transaction_begins_with_the_commit() {
    let mut story = in_transaction();
    story.say(1, 1, [publish("a", "1"), TxCommit, TxCommit, publish("b", "2"), publish("b", "3"), TxCommit]);
    story.expect(expect![[r#"
        log 3 publish '1' to #1
        log 4 staged '2' for #2
        log 5 staged '3' for #2
        log 6 transaction of 2 staged
        1/1 > tx.commit-ok
        1/1 > tx.commit-ok
        1/1 > tx.commit-ok
    "#]]);
}

#[test]
fn a_rollback_drops_what_was_published_and_takes_back_what_was_settled() {
    let mut story = in_transaction();
    story.say(2, 1, (1..=4).map(|n| publish("a", &n.to_string())));
    story.say(1, 1, [qos(4, false), consume("a", "c", "")]).skip();
    story
        .say(1, 1, [ack(2), nack(3, false, true), publish("b", "never"), part("part"), publish("b", "neither")])
        .expect(expect![[r#"
            log 7 part 'part'
        "#]]);
    // A delivery is settled once, in a transaction too, and is as unacknowledged as before when it is rolled back.
    story.say(1, 1, [TxRollback]).expect(expect![[r#"
        log 8 discard 7
        1/1 > tx.rollback-ok
    "#]]);
    assert_eq!(story.core.unclaimed_parts().len(), 0);
    story.say(1, 1, [ack_to(3), nack(4, false, false), TxCommit]).expect(expect![[r#"
        log 9 transaction of 0 staged, dequeue 3 4 5 6 from #1
        1/1 > tx.commit-ok
    "#]]);
    story.say(1, 1, [TxRollback, ChannelClose]).expect(expect![[r#"
        1/1 > tx.rollback-ok
    "#]]);
}

#[test]
fn acks_and_rejects_take_effect_with_the_commit_and_free_the_prefetch_then() {
    let mut story = in_transaction();
    story.say(2, 1, (1..=5).map(|n| publish("a", &n.to_string())));
    story.say(2, 1, [publish("b", "b")]);
    story.say(1, 1, [qos(3, false), consume("a", "c", ""), get("b", "")]).skip();
    story.say(1, 1, [ack(2), nack(3, false, true), nack(4, false, false), ack(1)]).expect(expect![[""]]);
    assert_eq!(story.core.stats().messages_unacked, 4);
    story.say(1, 1, [publish("b", "answer"), TxCommit]).expect(expect![[r#"
        log 9 staged 'answer' for #2
        log 10 transaction of 1 staged, dequeue 3 5 from #1, requeue 4 in #1, dequeue 8 from #2
        1/1 > deliver 5 to c: '2' redelivered x1
        1/1 > deliver 6 to c: '4'
        1/1 > deliver 7 to c: '5'
        1/1 > tx.commit-ok
    "#]]);
    assert_eq!(story.replica().replicated_text(), story.core.replicated_text());
}

#[test]
fn a_delivery_is_settled_once_and_recover_leaves_settled_ones_alone() {
    let mut story = in_transaction();
    story.say(2, 1, (1..=3).map(|n| publish("a", &n.to_string()))).say(1, 1, [consume("a", "c", "")]).skip();
    story.say(1, 1, [ack(1), Command::BasicRecover { requeue: true }]).expect(expect![[r#"
        log 6 requeue 4 5 in #1
        1/1 > recover-ok
        1/1 > deliver 4 to c: '2' redelivered x1
        1/1 > deliver 5 to c: '3' redelivered x1
    "#]]);
    // The channel's end rolls back: all of it is somebody's again.
    story.say(1, 1, [publish("b", "lost"), ack(1)]).expect(expect![[r#"
        log 7 requeue 4 5 3 in #1
        1/1 > channel.close 406 PRECONDITION_FAILED - unknown delivery tag 1 (60,80)
    "#]]);
    story.say(2, 1, [get("a", ""), get("b", "")]).expect(expect![[r#"
        2/1 > get-ok 1: '1' redelivered x1, 2 left
        2/1 > get-empty
    "#]]);
}

#[test]
fn a_connection_s_end_rolls_back() {
    let mut story = in_transaction();
    story.say(1, 1, [publish("a", "1"), part("part"), publish("a", "2"), part("cut off")]).close_connection(1);
    story.expect(expect![[r#"
        log 3 part 'part'
        log 4 part 'cut off'
        log 5 discard 4
        log 6 discard 3
    "#]]);
    assert_eq!(story.core.transaction_bytes(), 0);
}

/// As RabbitMQ: the route is that of the publish, less what has gone since.
#[test]
fn routing_and_its_refusals_are_the_publish_s_and_returns_the_commit_s() {
    let mut story = in_transaction();
    story.say(1, 1, [publish_to("x", "", "nowhere")]).expect(expect![[r#"
        1/1 > channel.close 404 NOT_FOUND - no exchange 'x' in vhost '/' (60,40)
    "#]]);
    story.say(1, 1, [TxSelect, mandatory("c", "early"), publish("c", "early too"), mandatory("a", "late")]);
    story.say(2, 1, [declare("c", ""), delete("a", "")]).say(1, 1, [publish("c", "in time")]).skip();
    story.say(1, 1, [TxCommit]).expect(expect![[r#"
        log 5 publish 'in time' to #3
        1/1 > return 312 NO_ROUTE: 'early'
        1/1 > return 312 NO_ROUTE: 'late'
        1/1 > tx.commit-ok
    "#]]);
}

/// What went with its queue is no part of the commit any more, and `persistent` is what reaches a durable queue then.
#[test]
fn queues_that_go_before_the_commit_take_their_share_along() {
    let mut story = in_transaction();
    story.say(2, 1, [exchange("x", "fanout", ""), bind("a", "x", ""), bind("b", "x", ""), publish("b", "old")]);
    story.say(1, 1, [get("b", "")]);
    let both = publish_with("x", "", "both", "", &BasicProperties { delivery_mode: Some(2), ..Default::default() });
    story.say(1, 1, [ack(1), both.clone(), both]).say(2, 1, [delete("b", "")]).skip();
    story.say(1, 1, [TxCommit]).expect(expect![[r#"
        log 8 staged 'both' for #1
        log 9 staged 'both' for #1
        log 10 transaction of 2 staged
        1/1 > tx.commit-ok
    "#]]);
}

/// It must not be told before the topology by which nobody takes it can no longer be undone.
#[test]
fn a_commit_of_what_nobody_takes_waits_for_the_topology() {
    let mut story = uncommitted_story();
    story.say(1, 1, [declare("a", ""), TxSelect, publish("nowhere", "1"), TxCommit]);
    story.commit_to(1, 0).expect(expect![[r#"
        log 1 declare queue a
        committed 1, confirmable 0
        1/1 > queue.declare-ok a, 0 messages, 0 consumers
        1/1 > tx.select-ok
    "#]]);
    story.commit().expect(expect![[r#"
        committed 1, confirmable 1
        1/1 > tx.commit-ok
    "#]]);
}

#[test]
fn modes_exclude_each_other_and_there_is_nothing_to_commit_without_one() {
    let mut story = story();
    story.say(1, 1, [select(), TxSelect]).say(1, 2, [TxSelect, TxSelect, select()]);
    story.say(1, 3, [TxCommit]).say(1, 4, [TxRollback]).expect(expect![[r#"
        1/1 > confirm.select-ok
        1/1 > channel.close 406 PRECONDITION_FAILED - cannot switch from confirm to tx mode (90,10)
        1/2 > tx.select-ok
        1/2 > tx.select-ok
        1/2 > channel.close 406 PRECONDITION_FAILED - cannot switch from tx to confirm mode (85,10)
        1/3 > channel.close 406 PRECONDITION_FAILED - channel is not transactional (90,20)
        1/4 > channel.close 406 PRECONDITION_FAILED - channel is not transactional (90,30)
    "#]]);
}

#[test]
fn no_transaction_is_written_before_every_replica_knows_them() {
    let mut core = Core::new(1);
    core.promote(&mut Outputs::default());
    let mut story = Story::with(core);
    story.say(1, 1, [TxSelect]).expect(expect![[r#"
        1/1 > connection.close 540 NOT_IMPLEMENTED - transactions need a version of the broker that not every replica of this cluster has yet; upgrade them all (90,10)
    "#]]);
    story.core.set_cluster_version(2);
    story.core.set_cluster_version(1);
    story.say(2, 1, [TxSelect]).expect(expect![[r#"
        2/1 > tx.select-ok
    "#]]);
}

// ---- bounds

/// `body` is not copied.
fn publish_bytes(queue: &str, body: &Body) -> Command {
    let Command::BasicPublish(publish) = publish(queue, "") else { panic!("it publishes") };
    Command::BasicPublish(Publish { body: body.clone(), ..publish })
}

#[test]
fn a_transaction_is_bounded_in_messages_and_bytes_and_so_are_all_together() {
    let mut story = in_transaction();
    let many = std::iter::repeat_n(publish("a", ""), MAX_TRANSACTION_MESSAGES);
    story.say(1, 1, many.chain([TxCommit]));
    assert!(story.take_text().ends_with("tx.commit-ok\n"));
    story.say(1, 1, std::iter::repeat_n(publish("a", ""), MAX_TRANSACTION_MESSAGES + 1)).expect(expect![[r#"
        1/1 > channel.close 406 PRECONDITION_FAILED - transaction too large: at most 32768 messages and 16 MiB can wait for one commit; commit more often (60,40)
    "#]]);
    let body = Body::new(bytes::Bytes::from(vec![0; MAX_TRANSACTION_BYTES as usize / 4]));
    story.say(1, 1, [TxSelect]).say(1, 1, std::iter::repeat_n(publish_bytes("a", &body), 4)).expect(expect![[r#"
        1/1 > tx.select-ok
        1/1 > channel.close 406 PRECONDITION_FAILED - transaction too large: at most 32768 messages and 16 MiB can wait for one commit; commit more often (60,40)
    "#]]);
    assert_eq!(story.core.transaction_bytes(), 0);
    // Nobody's own is too large, and together they are: whoever comes last is refused, and the others commit.
    let fit = (MAX_OPEN_TRANSACTIONS_BYTES / (3 * (body.len() as u64 + 258))) as u16;
    for channel in 1..=fit {
        story.say(2, channel, [TxSelect]).say(2, channel, std::iter::repeat_n(publish_bytes("b", &body), 3));
    }
    story.skip().say(3, 1, [TxSelect]).say(3, 1, std::iter::repeat_n(publish_bytes("b", &body), 3)).expect(expect![[r#"
        3/1 > tx.select-ok
        3/1 > channel.close 406 PRECONDITION_FAILED - the transactions of all channels hold 128 MiB that wait for their commits, the most there may be; try again, and commit more often (60,40)
    "#]]);
    (1..=fit).for_each(|channel| _ = story.say(2, channel, [TxCommit]));
    assert_eq!(story.core.transaction_bytes(), 0);
    assert_eq!(story.take_text().matches("tx.commit-ok").count(), usize::from(fit));
}

// ---- replicas, and crashes

/// Two transactions with all that may be in one, and records of others around them.
fn busy() -> Story {
    let mut story = in_transaction();
    story.say(2, 1, (1..=4).map(|n| publish("a", &n.to_string())));
    story.say(1, 1, [qos(3, false), consume("a", "c", "")]).say(1, 1, [ack(1), nack(2, false, true), part("one")]);
    story.say(2, 1, [publish("b", "between"), part("other's")]);
    story.say(1, 1, [part("two"), publish("b", "rest"), persistent("b", "x"), publish("a", "y"), TxCommit]);
    story.say(2, 1, [publish("b", "other's rest")]);
    story.say(1, 1, [publish("a", "z"), publish("b", "w"), TxCommit]).say(2, 1, [publish("a", "after")]);
    story.skip();
    story
}

/// Where the log may end: at each record. Second: how much of it takes effect.
fn ends(log: &[(Index, Record)]) -> Vec<(usize, usize)> {
    let mut whole = 0;
    let mut ends = vec![(0, 0)];
    for (at, (_, record)) in log.iter().enumerate() {
        if !matches!(record, Record::Staged { .. }) {
            whole = at + 1;
        }
        ends.push((at + 1, whole));
    }
    ends
}

fn messages_text(core: &Core) -> String {
    core.replicated_text().lines().filter(|line| line.contains(" holds ")).map(|line| format!("{line}\n")).collect()
}

#[test]
fn a_crash_between_any_two_records_leaves_whole_transactions() {
    let story = busy();
    let mut cut = 0;
    for (end, whole) in ends(&story.log) {
        let (mut core, mut expected) = (Core::new(2), Core::new(3));
        story.log[..end].iter().for_each(|(index, record)| core.apply(*index, record).unwrap());
        story.log[..whole].iter().for_each(|(index, record)| expected.apply(*index, record).unwrap());
        core.assert_consistent();
        assert_eq!(core.is_amid_transaction(), end != whole);
        assert_eq!(messages_text(&core), messages_text(&expected), "nothing shows before the decision");
        cut += end - whole;
        let mut backup = Core::new(4);
        story.log[..end].iter().for_each(|(index, record)| backup.apply(*index, record).unwrap());
        let mut out = Outputs::default();
        core.append(epoch_start(), &mut out);
        core.promote(&mut out);
        core.assert_consistent();
        assert!(!core.is_amid_transaction());
        assert_eq!(messages_text(&core), messages_text(&expected));
        assert_eq!(core.unclaimed_parts().len(), 0);
        out.records.iter().for_each(|(index, record)| backup.apply(*index, record).unwrap());
        assert_eq!(backup.replicated_text(), core.replicated_text(), "cut after {end} records");
        assert_eq!(backup.parts(), expected.parts() - expected_unclaimed(&mut expected));
    }
    assert_eq!(cut, 1 + 2 + 3 + 1 + 2, "the story has two transactions of three and two messages");
}

fn expected_unclaimed(core: &mut Core) -> u64 {
    core.unclaimed_parts().len() as u64
}

/// A replica that writes its state down whenever it may, and starts from that and the log after it.
#[test]
fn a_checkpoint_never_parts_a_transaction() {
    let story = busy();
    let mut replica = Core::new(2);
    let mut taken = 0;
    for (at, (index, record)) in story.log.iter().enumerate() {
        replica.apply(*index, record).unwrap();
        if replica.is_amid_transaction() {
            continue;
        }
        taken += 1;
        let mut recovered = Core::new(3);
        checkpoint(&replica, *index).into_iter().for_each(|piece| recovered.apply_base(piece).unwrap());
        assert_eq!(recovered.replicated_text(), replica.replicated_text());
        story.log[at + 1..].iter().for_each(|(index, record)| recovered.apply(*index, record).unwrap());
        assert_eq!(recovered.replicated_text(), story.core.replicated_text(), "from a checkpoint at {index}");
        recovered.assert_consistent();
    }
    assert_eq!(taken, story.log.len() - 5);
}

#[test]
fn a_transaction_that_does_not_fit_is_refused_and_changes_nothing() {
    let story = busy();
    let first = story.log.iter().position(|(_, record)| matches!(record, Record::Staged { .. })).unwrap();
    let mut core = Core::new(2);
    story.log[..=first].iter().for_each(|(index, record)| core.apply(*index, record).unwrap());
    let next = core.last_index().next();
    let before = core.replicated_text();
    let unknown = Settled { queue: QueueId(Index(99)), dequeued: vec![], requeued: vec![] };
    for (record, error) in [
        (Record::Transaction { staged: 2, settled: vec![] }, "decides over 2 staged messages where 1 are"),
        (Record::Transaction { staged: 1, settled: vec![unknown] }, "names queue 99, which does not exist here"),
        (Record::Part { body: Body::default() }, "stands between a transaction's messages and its decision"),
        // The part that the first message has set aside.
        (story.log[first].1.clone(), "names part 7, which is not here, is claimed, or has another length"),
    ] {
        let refused = core.apply(next, &record).unwrap_err().to_string();
        assert_eq!(refused, format!("record {next} {error}"));
        assert_eq!(core.replicated_text(), before);
    }
}
