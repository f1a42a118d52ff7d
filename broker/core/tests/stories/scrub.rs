//! Scrubs: what is written down of a state, what is compared with it, and what is not.

use bytes::Bytes;
use expect_test::expect;
use understudy_core::{Core, Outputs};
use understudy_record::{BasePiece, Index, KeyedBy, QueueId, QueueSpec, Record, Replicate};

use crate::harness::*;

/// The records of a whole pass.
fn pass(core: &mut Core, max_messages: usize) -> Vec<(Index, Record)> {
    let (mut pass, mut out) = (core.begin_scrub(), Outputs::default());
    while core.scrub(&mut pass, max_messages, &mut out).is_some() {}
    assert!(pass.is_done(), "{pass:?}");
    out.records
}

/// Two queues, a binding, an exchange, a message that came back, and a large one.
fn some_state() -> Story {
    let mut story = story();
    story.say(1, 1, [declare("a", "durable"), declare("b", ""), exchange("x", "topic", ""), bind("b", "x", "k.#")]);
    story.say(1, 1, [publish("a", "1"), publish("a", "2"), part("first"), publish("b", "last"), part("unclaimed")]);
    story.say(1, 1, [get("a", ""), nack(1, false, true)]);
    story
}

/// The numbers are part of the log's format: a replica of another build makes the same ones.
#[test]
fn what_a_state_is_as_numbers() {
    let mut story = some_state();
    let text: String =
        pass(&mut story.core, 2).iter().map(|(index, record)| format!("{index} {record:#x?}\n")).collect();
    expect![[r#"
        11 Scrub {
            digests: [
                Topology {
                    exchanges: 0x1,
                    queues: 0x2,
                    digest: 0xb555fe1755f92c1d,
                },
            ],
        }
        12 Scrub {
            digests: [
                Queue {
                    queue: QueueId(
                        Index(
                            0x1,
                        ),
                    ),
                    from: Index(
                        0x0,
                    ),
                    to: Index(
                        0xffffffffffffffff,
                    ),
                    messages: 0x2,
                    digest: 0xf0fd096c60893566,
                },
            ],
        }
        13 Scrub {
            digests: [
                Queue {
                    queue: QueueId(
                        Index(
                            0x2,
                        ),
                    ),
                    from: Index(
                        0x0,
                    ),
                    to: Index(
                        0xffffffffffffffff,
                    ),
                    messages: 0x1,
                    digest: 0x3490e20031ffbe85,
                },
            ],
        }
    "#]]
    .assert_eq(&text);
}

#[test]
fn a_replica_compares_only_once_it_shows_nothing_of_later_records() {
    let mut story = some_state();
    let sync_point = story.core.begin_sync();
    let mut base = checkpoint(&story.core, sync_point);
    // The base is read when the second message has left: until the replica has applied that, it lacks a message.
    let BasePiece::Held { messages, .. } =
        base.iter_mut().find(|piece| matches!(piece, BasePiece::Held { .. })).unwrap()
    else {
        panic!("queue a holds messages")
    };
    messages.remove(0);
    let early = pass(&mut story.core, 9);
    story.skip().say(1, 1, [get("a", ""), get("a", ""), ack(3)]);
    let floor = story.core.last_index();
    base.pop();
    base.push(BasePiece::End { floor });
    let late = pass(&mut story.core, 9);

    let recovered = |base: &[BasePiece]| {
        let mut replica = Core::new(2);
        base.iter().cloned().for_each(|piece| replica.apply_base(piece).unwrap());
        replica
    };
    let mut replica = recovered(&base);
    let between = story.log.iter().filter(|(index, _)| *index > sync_point);
    early.iter().chain(between).chain(&late).for_each(|(index, record)| replica.apply(*index, record).unwrap());
    assert_eq!(replica.take_difference(), None);

    // With a floor that is too low the same replica would have found itself wrong.
    base.pop();
    base.push(BasePiece::End { floor: sync_point });
    let mut replica = recovered(&base);
    early.iter().for_each(|(index, record)| replica.apply(*index, record).unwrap());
    expect![[r#"
        as of record 12, in queue "a", the primary has 2 messages from 0 on in queue 1, digest f0fd096c60893566; here are 1 messages from 0 on in queue 1, digest 051ab77915fc4100
    "#]].assert_eq(&(replica.take_difference().unwrap().to_string() + "\n"));
}

#[test]
fn a_queue_that_a_replica_lacks_is_named() {
    let mut story = some_state();
    let mut base = checkpoint(&story.core, story.core.last_index());
    base.retain(|piece| !matches!(piece, BasePiece::Queue { id: QueueId(Index(1)), .. }));
    let mut replica = Core::new(2);
    base.into_iter().for_each(|piece| replica.apply_base(piece).unwrap());
    let records = pass(&mut story.core, 9);
    // The first record speaks of the queues' number, the second of the queue.
    let found = records.iter().filter_map(|(index, record)| {
        replica.apply(*index, record).unwrap();
        replica.take_difference().map(|difference| difference.to_string() + "\n")
    });
    expect![[r#"
        as of record 11 the primary has 1 exchanges and 2 queues, digest b555fe1755f92c1d; here are 1 exchanges and 1 queues, digest b555fe1755f92c1d
        as of record 12 the primary has 2 messages from 0 on in queue 1, digest f0fd096c60893566; here is no such queue
    "#]].assert_eq(&found.collect::<String>());
}

#[test]
fn nothing_is_written_that_an_older_replica_does_not_know() {
    let mut core = Core::new(1);
    let mut out = Outputs::default();
    core.append(epoch_start(), &mut out);
    core.promote(&mut out);
    out.records.clear();
    let mut pass = core.begin_scrub();
    assert_eq!(core.scrub(&mut pass, 9, &mut out), None);
    assert!(out.records.is_empty() && !pass.is_done());
    core.set_cluster_version(2);
    assert!(core.scrub(&mut pass, 9, &mut out).is_some());
}

#[test]
fn a_pass_goes_on_over_queues_that_come_and_go() {
    let mut story = story();
    story.say(1, 1, [declare("a", ""), declare("b", ""), declare("c", "")]);
    (0..5).for_each(|_| _ = story.say(1, 1, [publish("a", ""), publish("c", "")]));
    let (mut pass, mut out) = (story.core.begin_scrub(), Outputs::default());
    for _ in 0..2 {
        story.core.scrub(&mut pass, 3, &mut out).unwrap(); // the topology, and part of `a`
    }
    let half = pass.progress();
    assert!(half > 0.0 && half < 0.5, "{half}");
    story.core.scrub(&mut pass, 1, &mut out).unwrap();
    let mut replica = story.replica();
    out.records.iter().for_each(|(index, record)| replica.apply(*index, record).unwrap());
    assert_eq!((replica.take_difference(), replica.last_index()), (None, story.core.last_index()));
    assert!(pass.progress() > half);
}

/// Changes one thing that a checkpoint says; `None` if there is nothing of the kind.
pub(crate) fn alter(pieces: &mut Vec<BasePiece>, whichever: usize) -> Option<()> {
    // What a queue that is not replicated holds is compared with nobody's.
    let shared = |queue: &QueueId| {
        let spec = |piece: &BasePiece| matches!(piece, BasePiece::Queue { id, spec } if id == queue && spec.replicate == Replicate::All);
        pieces.iter().any(spec)
    };
    let shared_message = |index: &Index| {
        let holds = |piece: &BasePiece| matches!(piece, BasePiece::Held { queue, messages } if shared(queue) && messages.iter().any(|held| held.index == *index));
        pieces.iter().any(holds)
    };
    let place = |wanted: &dyn Fn(&BasePiece) -> bool| {
        let places: Vec<_> = pieces.iter().enumerate().filter(|(_, piece)| wanted(piece)).map(|(at, _)| at).collect();
        (!places.is_empty()).then(|| places[whichever / 9 % places.len()])
    };
    let held = || {
        place(&|piece| matches!(piece, BasePiece::Held { queue, messages } if !messages.is_empty() && shared(queue)))
    };
    match whichever % 9 {
        0 => _ = pieces.remove(place(&|piece| matches!(piece, BasePiece::Binding(_)))?),
        1 => {
            let at = place(&|piece| matches!(piece, BasePiece::Queue { .. }))?;
            let BasePiece::Queue { spec, .. } = &mut pieces[at] else { return None };
            spec.durable = !spec.durable;
        }
        2 => {
            let at = place(&|piece| matches!(piece, BasePiece::Exchange(_)))?;
            let BasePiece::Exchange(spec) = &mut pieces[at] else { return None };
            spec.internal = !spec.internal;
        }
        3 => {
            _ = pieces
                .remove(place(&|piece| matches!(piece, BasePiece::Parts { message, .. } if shared_message(message)))?)
        }
        4 => {
            let at = place(&|piece| *piece == BasePiece::TopologyEnd)?;
            let spec = QueueSpec {
                name: short("one too many"),
                durable: false,
                exclusive: false,
                auto_delete: false,
                arguments: Bytes::new(),
                replicate: Replicate::All,
                deduplicates: false,
            };
            let id = QueueId(Index(0));
            pieces.insert(at, BasePiece::Queue { id, spec });
            pieces.insert(at + 2, BasePiece::QueueDone { queue: id });
        }
        8 => {
            let shared = |of: &KeyedBy| match of {
                KeyedBy::Queue(queue) => shared(queue),
                KeyedBy::Exchange(_) => true,
            };
            let keys =
                |piece: &BasePiece| matches!(piece, BasePiece::Keys { of, keys } if !keys.is_empty() && shared(of));
            let at = place(&keys)?;
            let BasePiece::Keys { keys, .. } = &mut pieces[at] else { return None };
            let which = whichever / 72 % keys.len();
            keys[which].key.0[0] ^= 1;
        }
        change => {
            let at = held()?;
            let BasePiece::Held { messages, .. } = &mut pieces[at] else { return None };
            let which = whichever / 72 % messages.len();
            match change {
                5 => _ = messages.remove(which),
                6 => messages[which].delivery_count += 1,
                _ => messages[which].bytes ^= 1,
            }
        }
    }
    Some(())
}
