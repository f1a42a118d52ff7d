//! What is in memory and what is not: messages leave when there are too many, and come back before somebody gets them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use expect_test::expect;
use proptest::prelude::*;
use understudy_core::{
    Command, DeliveryTag, EffectKind, HEAD_BYTES, LOAD_BYTES, LOAD_MESSAGES, MAX_EVICTIONS_PER_STEP, MAX_LOADING_BYTES,
    Outputs,
};
use understudy_record::{Index, QueueId};

use crate::desk::Desk;
use crate::harness::*;

const QUEUE: QueueId = QueueId(Index(1));

// ---- what leaves

#[test]
fn what_is_handed_out_leaves_first_then_the_tail_and_the_head_last() {
    let mut desk = Desk::new();
    desk.say(declare("a", ""));
    // Ten messages of a fifth of what is spared at the head.
    let weight = HEAD_BYTES as usize / 5;
    (0..10).for_each(|number| _ = desk.publish("a", weight + number));
    desk.say(qos(2, false));
    desk.say(consume("a", "c", ""));
    assert_eq!(desk.deliveries().len(), 2);
    let total = desk.core.resident_bytes();
    assert_eq!(total, desk.core.message_bytes());
    let mut seen = vec![desk.residency(QUEUE)];
    for gone in 1..=10 {
        desk.evict(total.saturating_sub(gone * weight as u64));
        seen.push(desk.residency(QUEUE));
    }
    // The first five that are ready are the head. The very next stays: the queue has a consumer.
    expect![[r#"
        rrrrrrrrrr
        srrrrrrrrr
        ssrrrrrrrr
        ssrrrrrrrs
        ssrrrrrrss
        ssrrrrrsss
        ssrrrrssss
        ssrrrsssss
        ssrrssssss
        ssrsssssss
        ssrsssssss
    "#]]
    .assert_eq(&format!("{}\n", seen.join("\n")));
    desk.say(cancel("c"));
    desk.evict(0);
    assert_eq!((desk.residency(QUEUE), desk.core.resident_messages()), ("s".repeat(10), 0));
    assert_eq!(desk.core.message_bytes(), total);
}

#[test]
fn heads_stay_while_any_queue_has_a_tail() {
    let mut desk = Desk::new();
    ["a", "b", "c"].iter().for_each(|name| desk.say(declare(name, "")));
    let weight = HEAD_BYTES as usize / 4;
    for (number, name) in ["a", "a", "a", "a", "a", "a", "b", "b", "c", "c"].iter().enumerate() {
        desk.publish(name, weight + number);
    }
    desk.say(qos(1, false));
    desk.say(consume("b", "c", ""));
    let all = |desk: &Desk| [1, 2, 3].map(|queue| desk.residency(QueueId(Index(queue)))).join(" ");
    let mut seen = Vec::new();
    for left in [8, 7, 5, 2, 1, 0] {
        desk.evict(left * (weight as u64 + 10));
        seen.push(all(&desk));
    }
    // Tails and what b's consumer has; then the heads of a and c. Of b's there is only what must stay.
    expect![[r#"
        rrrrss rr rr
        rrrrss sr rr
        rrssss sr rr
        rsssss sr ss
        ssssss sr ss
        ssssss sr ss
    "#]]
    .assert_eq(&format!("{}\n", seen.join("\n")));
}

#[test]
fn what_is_not_in_the_log_yet_stays() {
    let mut desk = Desk::new();
    desk.say(declare("a", ""));
    let indexes: Vec<_> = (1..=6).map(|bytes| desk.publish("a", bytes)).collect();
    assert!(!desk.core.evict(indexes[3], 0));
    assert_eq!(desk.residency(QUEUE), "ssssrr");
    assert!(!desk.core.evict(indexes[3], 0), "nothing more until the log has more");
    assert!(!desk.core.evict(indexes[5], 6));
    assert_eq!(desk.residency(QUEUE), "ssssrs", "down to the budget, from the tail");
    assert!(!desk.core.evict(indexes[5], 5), "within the budget");
    desk.evict(0);
    assert_eq!(desk.residency(QUEUE), "ssssss");
}

#[test]
fn queues_take_turns_and_a_step_does_a_bounded_share() {
    let mut desk = Desk::new();
    let names: Vec<_> = (0..8).map(|number| format!("q{number}")).collect();
    names.iter().for_each(|name| desk.say(declare(name, "")));
    let mut bytes = 100;
    for _ in 0..2000 {
        for name in &names {
            desk.publish(name, bytes);
            bytes += 1;
        }
    }
    let queues: Vec<_> = desk.core.queues().into_iter().map(|(queue, ..)| queue).collect();
    let total = desk.core.resident_bytes();
    let last = desk.core.last_index();
    let before = desk.core.resident_messages();
    assert!(desk.core.evict(last, 0), "more could leave");
    let freed = before - desk.core.resident_messages();
    assert!(freed <= MAX_EVICTIONS_PER_STEP as u64, "{freed} left in one step");
    desk.evict(total / 2);
    let left = queues.iter().map(|queue| desk.residency(*queue).matches('r').count());
    let (least, most) = (left.clone().min().unwrap(), left.max().unwrap());
    assert!(most - least <= 3 * understudy_core::EVICTIONS_PER_TURN, "between {least} and {most}");
    assert!(desk.core.resident_bytes() <= total / 2);
}

#[test]
fn a_message_of_several_queues_counts_once_and_is_shared_when_it_comes_back() {
    let mut story = story();
    story.say(1, 1, [declare("a", ""), declare("b", ""), exchange("x", "fanout", "")]);
    story.say(1, 1, [bind("a", "x", ""), bind("b", "x", ""), publish_to("x", "", "1234")]);
    let weight = story.core.message_bytes();
    assert_eq!((story.core.resident_bytes(), story.core.resident_messages()), (weight, 1));
    story.evict();
    assert_eq!((story.core.resident_bytes(), story.core.message_bytes()), (0, weight));
    story.say(1, 1, [qos(1, false), consume("a", "c", "")]);
    assert_eq!(story.core.resident_bytes(), weight);
    story.say(1, 1, [consume("b", "d", "")]);
    assert_eq!((story.core.resident_bytes(), story.core.resident_messages()), (weight, 1));
    let chunks = [1, 2].map(|queue| {
        let last = story.core.last_index();
        story
            .core
            .backlog_chunk(QueueId(Index(queue)), last.next(), last, 100, 100)
            .messages()
            .next()
            .unwrap()
            .message
            .clone()
    });
    assert!(std::sync::Arc::ptr_eq(chunks[0].as_ref().unwrap(), chunks[1].as_ref().unwrap()));
    story.say(1, 1, [ack_to(0)]);
    assert_eq!((story.core.resident_bytes(), story.core.message_bytes()), (0, 0));
}

// ---- what comes back

/// A consumer of a long backlog gets it all, in order, and once it has begun it never waits for a disk that answers within
/// a step.
#[test]
fn messages_are_read_back_ahead_of_their_consumer() {
    let mut desk = Desk::new();
    desk.say(declare("a", ""));
    let indexes: Vec<_> = (0..10_000).map(|number| desk.publish("a", 600 + number)).collect();
    desk.restart();
    assert_eq!(desk.core.resident_bytes(), 0);
    desk.say(qos(20, false));
    desk.say(consume("a", "c", ""));
    let (mut got, mut loads, mut most) = (Vec::new(), 0, 0);
    while got.len() < indexes.len() {
        // What was asked for before this step comes with it, after the client's acknowledgement.
        let on_the_way = desk.loads.pop_front();
        let delivered = desk.deliveries();
        assert!(!delivered.is_empty() || got.is_empty(), "nothing came after {} messages", got.len());
        got.extend(delivered.into_iter().map(|(_, index)| index));
        desk.say(ack_to(0));
        if let Some(load) = on_the_way {
            loads += 1;
            desk.answer(&load);
        }
        most = most.max(desk.core.resident_bytes());
        desk.core.assert_consistent();
    }
    assert_eq!(got, indexes);
    assert!(most <= LOAD_BYTES + HEAD_BYTES + 20 * 11_000, "{most} bytes were in memory");
    let bytes: u64 = desk.store.values().map(|message| message.body.len() as u64).sum();
    assert!(loads < 2 * bytes / HEAD_BYTES, "{loads} loads for {bytes} bytes");
    assert!(desk.loads.is_empty(), "nothing is left to be read");
}

#[test]
fn a_consumer_goes_on_however_little_may_stay_in_memory() {
    let mut desk = Desk::new();
    desk.say(declare("a", ""));
    let indexes: Vec<_> = (1..=50).map(|bytes| desk.publish("a", bytes)).collect();
    desk.restart();
    desk.say(qos(1, false));
    desk.say(consume("a", "c", ""));
    let mut got = Vec::new();
    while got.len() < indexes.len() {
        if let Some(load) = desk.loads.pop_front() {
            let (messages, mut out) = (desk.read(&load), Outputs::default());
            desk.core.handle_loaded(load.queue, messages, &mut out);
            desk.evict(0);
            desk.end_step(out);
        }
        desk.evict(0);
        let delivered = desk.deliveries();
        assert!(!delivered.is_empty(), "a load brought nothing");
        got.extend(delivered.into_iter().map(|(_, index)| index));
        desk.say(ack_to(0));
    }
    assert_eq!(got, indexes);
}

/// What a queue read ahead leaves again before its consumer has room for it.
#[test]
fn little_is_read_for_each_message_where_memory_is_short() {
    let mut desk = Desk::new();
    desk.say(declare("a", ""));
    let indexes: Vec<_> = (1..=3000).map(|bytes| desk.publish("a", bytes)).collect();
    desk.restart();
    desk.say(qos(8, false));
    desk.say(consume("a", "c", ""));
    let (mut got, mut read) = (Vec::new(), 0);
    while got.len() < indexes.len() {
        // Nobody does anything: it ends by itself.
        while let Some(load) = desk.loads.pop_front() {
            read += load.indexes.len();
            assert!(read < 8 * (got.len() + LOAD_MESSAGES), "{read} messages were read and {} delivered", got.len());
            desk.answer(&load);
            desk.evict(0);
        }
        let delivered = desk.deliveries();
        assert!(!delivered.is_empty(), "nothing comes any more");
        got.extend(delivered.into_iter().map(|(_, index)| index));
        desk.say(ack_to(0));
    }
    assert_eq!(got, indexes);
}

#[test]
fn what_all_queues_read_back_together_is_bounded_and_each_has_its_turn() {
    let mut desk = Desk::new();
    let queues = 100;
    let mut bytes = 100_000;
    for number in 0..queues {
        desk.say(declare(&number.to_string(), ""));
        for _ in 0..6 {
            desk.publish(&number.to_string(), bytes);
            bytes += 1;
        }
    }
    desk.restart();
    for number in 0..queues {
        desk.say(consume(&number.to_string(), "", ""));
    }
    let mut got = BTreeSet::new();
    loop {
        let on_the_way: usize =
            desk.loads.iter().flat_map(|load| &load.indexes).map(|at| desk.store[at].body.len()).sum();
        assert!(on_the_way as u64 <= MAX_LOADING_BYTES + LOAD_BYTES, "{on_the_way} bytes are on the way");
        got.extend(desk.deliveries().into_iter().map(|(_, index)| index));
        desk.core.assert_consistent();
        if !desk.answer_next() {
            break;
        }
    }
    assert_eq!(got.len(), queues * 6);
}

/// Where a queue that waits goes, its place on the way is another's.
#[test]
fn queues_that_are_deleted_make_room_for_those_that_wait() {
    let mut desk = Desk::new();
    for number in 0..50 {
        desk.say(declare(&number.to_string(), ""));
        desk.publish(&number.to_string(), 500_000 + number);
    }
    desk.restart();
    (0..50).for_each(|number| desk.say(consume(&number.to_string(), "", "")));
    let waiting = 50 - desk.loads.len();
    assert!(waiting > 0);
    let old: Vec<_> = desk.loads.iter().cloned().collect();
    (0..old.len()).for_each(|number| desk.say(delete(&number.to_string(), "")));
    // Answers for queues that are gone mean nothing.
    while desk.answer_next() {}
    assert_eq!(desk.deliveries().len(), waiting);
    desk.core.assert_consistent();
}

#[test]
fn what_did_not_come_is_asked_for_again() {
    let mut desk = Desk::new();
    desk.say(declare("a", ""));
    (1..=3).for_each(|bytes| _ = desk.publish("a", bytes));
    desk.restart();
    desk.say(consume("a", "c", ""));
    let load = desk.loads.pop_front().unwrap();
    assert_eq!(load.indexes, [Index(2), Index(3), Index(4)]);
    let (mut messages, mut out) = (desk.read(&load), Outputs::default());
    messages.remove(1);
    desk.core.handle_loaded(load.queue, messages, &mut out);
    desk.end_step(out);
    assert_eq!(desk.deliveries(), [(1, Index(2))]);
    assert_eq!(desk.loads[0].indexes, [Index(3)]);
    desk.answer_next();
    assert_eq!(desk.deliveries(), [(2, Index(3)), (3, Index(4))]);
}

// ---- gets

#[test]
fn a_get_of_a_stored_message_keeps_its_place_among_the_replies() {
    let mut old = story();
    old.say(1, 1, [declare("a", ""), declare("b", ""), publish("a", "1"), publish("b", "2"), publish("a", "3")]);
    let mut story = old.restarted();
    story.hold_loads();
    let commands = [get("a", ""), get("b", "no-ack"), qos(1, false), get("a", "no-ack"), get("a", "")];
    story.say(1, 1, commands).say(2, 1, [get("a", "")]).expect(expect![[r#"
        load 3 5 for #1
        load 4 for #2
        2/1 > get-empty
    "#]]);
    // The second first: it waits for the first.
    story.answer_last().expect(expect![[r#"
        log 6 dequeue 4 from #2
    "#]]);
    story.answer().expect(expect![[r#"
        log 7 dequeue 5 from #1
        1/1 > get-ok 1: '1' redelivered, 1 left
        1/1 > get-ok 2: '2' redelivered, 0 left
        1/1 > qos-ok
        1/1 > get-ok 3: '3' redelivered, 0 left
        1/1 > get-empty
    "#]]);
}

#[test]
fn a_get_finds_nothing_if_its_queue_is_deleted_first_and_is_spared_by_a_purge() {
    let mut old = story();
    old.say(1, 1, [declare("a", ""), publish("a", "1"), publish("a", "2"), publish("a", "3")]);
    let mut story = old.restarted();
    story.hold_loads();
    story.say(1, 1, [get("a", ""), get("a", "no-ack")]).say(2, 1, [purge("a")]).expect(expect![[r#"
        load 2 3 4 for #1
        log 5 purge #1 up to 4 except [2 3]
        2/1 > queue.purge-ok, 1 messages
    "#]]);
    story.answer().expect(expect![[r#"
        log 6 dequeue 3 from #1
        1/1 > get-ok 1: '1' redelivered, 2 left
        1/1 > get-ok 2: '2' redelivered, 1 left
    "#]]);

    let mut story = old.restarted();
    story.hold_loads();
    story.say(1, 1, [get("a", ""), get("a", "no-ack"), qos(1, false)]).say(2, 1, [delete("a", "")]).expect(expect![[
        r#"
        load 2 3 4 for #1
        log 5 delete queue #1
        1/1 > get-empty
        1/1 > get-empty
        1/1 > qos-ok
        2/1 > queue.delete-ok, 1 messages
    "#
    ]]);
    story.answer().expect(expect![""]);
}

/// Without acknowledgement too: nobody has seen it.
#[test]
fn a_message_whose_getter_is_gone_is_ready_again() {
    let mut old = story();
    old.say(1, 1, [declare("a", ""), publish("a", "1"), publish("a", "2")]);
    let mut story = old.restarted();
    story.hold_loads();
    story.say(1, 1, [get("a", "no-ack"), get("a", "")]).close_connection(1).skip();
    story.answer().expect(expect![""]);
    assert_eq!(story.core.stats().messages_ready, 2);
    story.say(2, 1, [consume("a", "c", "")]).expect(expect![[r#"
        2/1 > consume-ok c
        2/1 > deliver 1 to c: '1' redelivered x1
        2/1 > deliver 2 to c: '2' redelivered x1
    "#]]);
}

/// A new primary's inheritance is stored before it is committed.
#[test]
fn a_get_of_what_is_not_committed_waits_for_that_before_it_is_read() {
    let mut old = uncommitted_story();
    old.say(1, 1, [declare("a", ""), publish("a", "1"), publish("a", "2")]);
    let mut story = old.successor(promoted(old.replica()));
    story.hold_loads();
    story.say(1, 1, [get("a", ""), get("a", ""), qos(1, false)]).expect(expect![""]);
    story.commit_to(2, 2).expect(expect![[r#"
        committed 2, confirmable 2
        load 2 for #1
    "#]]);
    story.answer().expect(expect!["1/1 > get-ok 1: '1' redelivered, 1 left\n"]);
    story.commit_to(3, 3).answer().expect(expect![[r#"
        committed 3, confirmable 3
        load 3 for #1
        1/1 > get-ok 2: '2' redelivered, 0 left
        1/1 > qos-ok
    "#]]);
}

/// Everything unacknowledged, before its tag was even told.
#[test]
fn a_get_that_is_acknowledged_before_it_is_answered_is_answered_all_the_same() {
    let mut old = story();
    old.say(1, 1, [declare("a", ""), publish("a", "1"), publish("a", "2")]);
    let mut story = old.restarted();
    story.hold_loads();
    story.say(1, 1, [get("a", ""), ack_to(0)]).answer().expect(expect![[r#"
        log 4 dequeue 2 from #1
        load 2 3 for #1
        1/1 > get-ok 1: '1' redelivered, 1 left
    "#]]);
    assert_eq!(story.core.stats().messages_unacked, 0);
}

#[test]
fn what_comes_back_after_it_left_memory_is_read_again_and_keeps_its_place() {
    let mut story = story();
    story.hold_loads();
    story.say(1, 1, [declare("a", ""), publish("a", "1"), publish("a", "2"), publish("a", "3")]);
    story.say(1, 1, [qos(2, false), consume("a", "c", "")]).evict().skip();
    story.say(1, 1, [nack(1, false, true)]).expect(expect![[r#"
        log 5 requeue 2 in #1
        load 2 for #1
    "#]]);
    story.answer().expect(expect![[r#"
        1/1 > deliver 3 to c: '1' redelivered x1
    "#]]);
    story.say(1, 1, [ack_to(0)]).expect(expect![[r#"
        log 6 dequeue 3 2 from #1
        1/1 > deliver 4 to c: '3'
    "#]]);
}

// ---- whatever happens

#[derive(Clone, Debug)]
enum Event {
    Publish(usize),
    Get(bool),
    Consume(u16),
    Cancel,
    /// Of the deliveries that wait, modulo their number.
    Ack(usize),
    Nack(usize),
    Purge,
    Evict {
        permille: u64,
        unwritten: u64,
    },
    Answer,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        // Light ones, so that there are many, and heavy ones, so that a few fill a batch.
        10 => prop_oneof![Just(1_000), Just(60_000), Just(400_000), Just(900_000)].prop_map(Event::Publish),
        2 => any::<bool>().prop_map(Event::Get),
        2 => (0..6_u16).prop_map(Event::Consume),
        1 => Just(Event::Cancel),
        5 => any::<usize>().prop_map(Event::Ack),
        3 => any::<usize>().prop_map(Event::Nack),
        1 => Just(Event::Purge),
        5 => (0..1000_u64, 0..3_u64).prop_map(|(permille, unwritten)| Event::Evict { permille, unwritten }),
        8 => Just(Event::Answer),
    ]
}

/// What the queue should do: messages in order, each to one place.
#[derive(Default)]
struct Model {
    ready: BTreeSet<Index>,
    unacked: BTreeMap<u64, Index>,
    gets: VecDeque<(Index, bool)>,
}

impl Model {
    fn see(&mut self, desk: &mut Desk) {
        for effect in std::mem::take(&mut desk.effects) {
            match effect {
                EffectKind::BasicDeliver { delivery_tag, message, .. } => {
                    let index = desk.indexes[&message.body.len()];
                    assert_eq!(Some(index), self.ready.pop_first(), "out of order");
                    self.unacked.insert(delivery_tag.0, index);
                }
                EffectKind::BasicGetOk { delivery_tag, message, .. } => {
                    let (index, no_ack) = self.gets.pop_front().expect("an answer without a get");
                    assert_eq!(index, desk.indexes[&message.body.len()]);
                    if !no_ack {
                        self.unacked.insert(delivery_tag.0, index);
                    }
                }
                EffectKind::BasicGetEmpty => assert_eq!(self.gets.pop_front(), Some((Index(0), true))),
                EffectKind::CloseChannel { error } => panic!("{error}"),
                _ => {}
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn messages_come_in_order_wherever_they_have_been(events in proptest::collection::vec(event(), 1..300)) {
        let (mut desk, mut model, mut weight) = (Desk::new(), Model::default(), 0);
        desk.say(declare("a", ""));
        let mut consuming = false;
        for event in events {
            match event {
                Event::Publish(bytes) => {
                    weight += 1;
                    model.ready.insert(desk.core.next_index());
                    desk.publish("a", bytes + weight);
                }
                Event::Get(no_ack) => {
                    model.gets.push_back(model.ready.pop_first().map_or((Index(0), true), |index| (index, no_ack)));
                    desk.say(get("a", if no_ack { "no-ack" } else { "" }));
                }
                Event::Consume(prefetch) if !consuming => {
                    consuming = true;
                    desk.say(qos(prefetch, false));
                    desk.say(consume("a", "c", ""));
                }
                Event::Cancel if consuming => {
                    consuming = false;
                    desk.say(cancel("c"));
                }
                Event::Consume(_) | Event::Cancel => {}
                Event::Ack(which) | Event::Nack(which) if !model.unacked.is_empty() => {
                    let tag = *model.unacked.keys().nth(which % model.unacked.len()).unwrap();
                    let index = model.unacked.remove(&tag).unwrap();
                    let tag = DeliveryTag(tag);
                    if matches!(event, Event::Ack(_)) {
                        desk.say(Command::BasicAck { delivery_tag: tag, multiple: false });
                    } else {
                        model.ready.insert(index);
                        desk.say(Command::BasicReject { delivery_tag: tag, requeue: true });
                    }
                }
                Event::Ack(_) | Event::Nack(_) => {}
                Event::Purge => {
                    model.ready.clear();
                    desk.say(purge("a"));
                }
                Event::Evict { permille, unwritten } => {
                    let budget = desk.core.resident_bytes() * permille / 1000;
                    let stored = Index(desk.core.last_index().0 - unwritten.min(desk.core.last_index().0));
                    while desk.core.evict(stored, budget) {}
                }
                Event::Answer => _ = desk.answer_next(),
            }
            model.see(&mut desk);
            desk.core.assert_consistent();
        }
        if !consuming {
            desk.say(qos(0, false));
            desk.say(consume("a", "c", ""));
        }
        loop {
            model.see(&mut desk);
            let more = desk.answer_next();
            model.see(&mut desk);
            if !model.unacked.is_empty() {
                model.unacked.clear();
                desk.say(ack_to(0));
            } else if !more {
                break;
            }
        }
        prop_assert_eq!((model.ready.len(), model.gets.len()), (0, 0));
        let stats = desk.core.stats();
        prop_assert_eq!((stats.messages_ready, stats.messages_unacked, stats.resident_bytes), (0, 0, 0));
    }
}
