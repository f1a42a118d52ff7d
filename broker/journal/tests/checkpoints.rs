//! Checkpoints and the consolidator under load, under power loss at every change they make, and again during recovery. The
//! broker here is a toy: queues of indexes. What counts is that the state which recovery gives is the one that the log's
//! records give, and that every message a queue still holds can be read, whole.

mod story;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use story::*;
use understudy_journal::sim::{Faults, SimStorage};
use understudy_journal::{CheckpointError, Checkpointer, Draft, Finished, Journal, LogReader, Storage};
use understudy_record::{
    BasePiece, Frame, FrameKind, HeldMessage, Index, Message, PartRef, Position, QueueId, QueueSpec, Record, Replicate,
    ShortStr, StoreId,
};

/// Messages of a queue in one piece of a checkpoint: few, so that much happens between two pieces.
const SLICE: usize = 3;

fn queue_ids() -> impl Iterator<Item = QueueId> {
    (1..=2).map(|number| QueueId(Index(number)))
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Broker {
    queues: BTreeMap<QueueId, BTreeSet<Index>>,
    /// Parts that no message has claimed.
    unclaimed: BTreeMap<Index, u32>,
    /// Of the messages that have some, and that a queue holds.
    parts: BTreeMap<Index, Vec<PartRef>>,
}

impl Broker {
    fn apply(&mut self, index: Index, record: &Record) {
        match record {
            Record::QueueDeclare(_) => _ = self.queues.insert(QueueId(index), BTreeSet::new()),
            Record::Publish { targets, message } => {
                for target in targets {
                    self.queues.get_mut(target).expect("declared").insert(index);
                }
                self.note_parts(index, message);
            }
            Record::Part { body } => _ = self.unclaimed.insert(index, body.len() as u32),
            Record::Discard { parts } => self.unclaimed.retain(|part, _| !parts.contains(part)),
            Record::Dequeue { queue, messages } => {
                let queue = self.queues.get_mut(queue).expect("declared");
                messages.iter().for_each(|message| _ = queue.remove(message));
            }
            Record::Purge { queue, up_to, .. } => {
                self.queues.get_mut(queue).expect("declared").retain(|index| index > up_to);
            }
            other => panic!("not in these stories: {other:?}"),
        }
        self.forget_parts();
    }

    fn note_parts(&mut self, index: Index, message: &Message) {
        if let Some(parts) = &message.parts {
            parts.iter().for_each(|part| _ = self.unclaimed.remove(&part.index));
            self.parts.insert(index, parts.to_vec());
        }
    }

    fn forget_parts(&mut self) {
        self.parts.retain(|message, _| self.queues.values().any(|queue| queue.contains(message)));
    }

    fn apply_base(&mut self, piece: &BasePiece) {
        match piece {
            BasePiece::Start { .. } => *self = Self::default(),
            BasePiece::Queue { id, .. } => _ = self.queues.insert(*id, BTreeSet::new()),
            BasePiece::Held { queue, messages } => {
                let queue = self.queues.get_mut(queue).expect("declared");
                queue.extend(messages.iter().map(|message| message.index));
            }
            BasePiece::Message { queue, index, message, .. } => {
                self.queues.get_mut(queue).expect("declared").insert(*index);
                self.note_parts(*index, message);
            }
            BasePiece::Parts { message: Index(0), parts } => {
                self.unclaimed.extend(parts.iter().map(|part| (part.index, part.bytes)));
            }
            BasePiece::Parts { message, parts } => _ = self.parts.insert(*message, parts.clone()),
            BasePiece::End { .. } => self.forget_parts(),
            _ => {}
        }
    }

    /// Messages and parts.
    fn live(&self) -> Vec<Index> {
        let messages = self.queues.values().flatten().copied();
        let claimed = self.parts.values().flatten().map(|part| part.index);
        let live = messages.chain(claimed).chain(self.unclaimed.keys().copied());
        live.collect::<BTreeSet<_>>().into_iter().collect()
    }

    fn unclaimed(&self) -> Vec<PartRef> {
        self.unclaimed.iter().map(|(index, bytes)| PartRef { index: *index, bytes: *bytes }).collect()
    }
}

/// Numbers that look random, by a seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// All records ever written, by index from 1, and what of them is promised.
#[derive(Default)]
struct History {
    records: Vec<Record>,
    durable: usize,
}

impl History {
    fn state_at(&self, last: Index) -> Broker {
        let mut broker = Broker::default();
        let upto = self.records.iter().take(last.0 as usize);
        (1..).zip(upto).for_each(|(index, record)| broker.apply(Index(index), record));
        broker
    }

    fn body_of(&self, index: Index) -> Bytes {
        match &self.records[index.0 as usize - 1] {
            Record::Publish { message, .. } => message.body.to_contiguous(),
            Record::Part { body } => body.to_contiguous(),
            other => panic!("{index} is {other:?}"),
        }
    }
}

fn frame(index: Index, record: &Record) -> Frame {
    Frame::record(Position::new(position(1, 1).epoch, index), index.previous(), record, &mut BytesMut::new())
}

fn spec(id: QueueId) -> QueueSpec {
    let name = ShortStr::try_from(format!("queue-{id}").as_str()).expect("short");
    QueueSpec {
        name,
        durable: true,
        exclusive: false,
        auto_delete: false,
        replicate: Replicate::All,
        deduplicates: false,
        arguments: Bytes::new(),
    }
}

fn publish(index: Index, targets: Vec<QueueId>, size: u64) -> Record {
    match sized(1, index.0, size as usize).decode_record() {
        Ok(Record::Publish { message, .. }) => Record::Publish { targets, message },
        other => panic!("{other:?}"),
    }
}

/// A checkpoint under way: what is still to be read of the queues.
struct UnderWay {
    draft: Draft,
    sync_point: Position,
    left: Vec<(QueueId, Index)>,
}

/// What a run was, for the counts at the end.
#[derive(Default)]
struct Counts {
    installed: u32,
    moved: u32,
    bases: u32,
    /// Publishes that claimed parts.
    large: u32,
}

struct Run<'a> {
    journal: Journal,
    maker: &'a Checkpointer,
    history: &'a mut History,
    counts: &'a mut Counts,
    broker: Broker,
    under_way: Option<UnderWay>,
    finished: Option<Finished>,
}

type Failed = Box<dyn std::error::Error>;

impl Run<'_> {
    fn last(&self) -> Index {
        Index(self.history.records.len() as u64)
    }

    fn write(&mut self, records: Vec<Record>) -> Result<(), Failed> {
        let mut frames = Vec::new();
        for record in records {
            let index = self.last().next();
            self.broker.apply(index, &record);
            frames.push(frame(index, &record));
            self.history.records.push(record);
        }
        Ok(self.journal.append(&frames)?)
    }

    fn sync(&mut self) -> Result<(), Failed> {
        self.history.durable = self.journal.sync()?.index.0 as usize;
        Ok(())
    }

    fn step(&mut self, dice: &mut Dice) -> Result<(), Failed> {
        match dice.below(20) {
            0..=11 => self.traffic(dice),
            12 if dice.below(6) == 0 => {
                let (queue, up_to) = (QueueId(Index(1 + dice.below(2))), Index(dice.below(self.last().0 + 1)));
                self.write(vec![Record::Purge { queue, up_to, except: Vec::new() }])
            }
            12..=14 => self.sync(),
            15 if dice.below(2) == 0 && self.under_way.is_none() && self.finished.is_none() => self.catch_up(dice),
            _ => self.checkpoint(),
        }
    }

    /// A publish, or acknowledgements.
    fn traffic(&mut self, dice: &mut Dice) -> Result<(), Failed> {
        match dice.below(14) {
            0..=6 => {
                let targets =
                    if dice.below(4) == 0 { queue_ids().collect() } else { vec![QueueId(Index(1 + dice.below(2)))] };
                let (index, size) = (self.last().next(), dice.below(700));
                let mut record = publish(index, targets, size);
                // It claims what has come before it, mostly.
                if let Record::Publish { message, .. } = &mut record
                    && dice.below(3) > 0
                {
                    message.parts = Some(self.broker.unclaimed()).filter(|parts| !parts.is_empty()).map(Into::into);
                    self.counts.large += u32::from(message.parts.is_some());
                }
                self.write(vec![record])
            }
            7 if dice.below(4) == 0 => {
                let parts = self.broker.unclaimed.keys().copied().collect();
                self.write(vec![Record::Discard { parts }])
            }
            7..=8 => {
                let (index, size) = (self.last().next(), dice.below(700));
                let body = match publish(index, Vec::new(), size) {
                    Record::Publish { message, .. } => message.body,
                    other => panic!("{other:?}"),
                };
                self.write(vec![Record::Part { body }])
            }
            _ => {
                let id = QueueId(Index(1 + dice.below(2)));
                let queue = &self.broker.queues[&id];
                // Old ones mostly stay: they are what has to be moved.
                let messages: Vec<Index> = queue.iter().rev().take(3).skip(dice.below(2) as usize).copied().collect();
                if messages.is_empty() { Ok(()) } else { self.write(vec![Record::Dequeue { queue: id, messages }]) }
            }
        }
    }

    /// One step of a checkpoint: a beginning, a slice, the end, the coming into force.
    fn checkpoint(&mut self) -> Result<(), Failed> {
        if let Some(finished) = self.finished.take() {
            if finished.floor().0 as usize > self.history.durable {
                self.finished = Some(finished);
                return self.sync();
            }
            let obsolete = self.journal.install(&finished)?.expect("nothing has replaced the log");
            self.counts.installed += 1;
            self.counts.moved += u32::from(finished.moved_bytes > 0);
            return Ok(self.maker.remove(obsolete, &mut || ())?);
        }
        let Some(mut under_way) = self.under_way.take() else {
            let mut draft = self.maker.begin()?;
            let sync_point = Position::new(position(1, 1).epoch, self.last());
            draft.add(self.last(), &topology(sync_point, &self.broker), &mut |_| true)?;
            let left = self.broker.queues.keys().map(|id| (*id, sync_point.index.next())).collect();
            self.under_way = Some(UnderWay { draft, sync_point, left });
            return Ok(());
        };
        let Some((queue, before)) = under_way.left.pop() else {
            let finished = under_way.draft.finish(self.last(), Index(u64::MAX), &mut |_| true)?;
            assert_eq!(finished.sync_point(), under_way.sync_point);
            self.finished = Some(finished);
            return Ok(());
        };
        let there = self.broker.queues[&queue].range(..before).rev().take(SLICE).copied();
        let parts_of = |index| self.broker.parts.get(&index).into_iter().flatten();
        let held = |index| {
            let bytes = self.history.body_of(index).len() as u32 + parts_of(index).map(|part| part.bytes).sum::<u32>();
            HeldMessage { index, bytes, ..HeldMessage::default() }
        };
        let messages: Vec<HeldMessage> = there.map(held).collect();
        let large = messages.iter().filter_map(|message| {
            let parts = self.broker.parts.get(&message.index)?.clone();
            Some(BasePiece::Parts { message: message.index, parts })
        });
        let mut pieces: Vec<BasePiece> = large.collect();
        pieces.push(match messages.last() {
            None => BasePiece::QueueDone { queue },
            Some(oldest) => {
                under_way.left.push((queue, oldest.index));
                BasePiece::Held { queue, messages }
            }
        });
        under_way.draft.add(self.last(), &pieces, &mut |_| true)?;
        self.under_way = Some(under_way);
        Ok(())
    }

    /// A new log that begins with the state, whole messages in it, newest first, and live records between them.
    fn catch_up(&mut self, dice: &mut Dice) -> Result<(), Failed> {
        self.sync()?;
        self.journal.begin_base()?;
        let sync_point = self.journal_position();
        let first = topology(sync_point, &self.broker);
        self.write_base(sync_point, &first)?;
        let unclaimed: Vec<Index> = self.broker.unclaimed.keys().copied().collect();
        let unclaimed: Vec<BasePiece> = unclaimed.into_iter().map(|part| self.part_piece(part)).collect();
        self.write_base(sync_point, &unclaimed)?;
        for id in queue_ids() {
            let mut before = sync_point.index.next();
            loop {
                // Sometimes more than a segment of them before the first message.
                for _ in 0..dice.below(8) {
                    self.traffic(dice)?;
                }
                let there = self.broker.queues[&id].range(..before).rev().take(SLICE).copied();
                let mut pieces = Vec::new();
                for index in there {
                    let Record::Publish { message, .. } = &self.history.records[index.0 as usize - 1] else {
                        panic!("{index} is no message")
                    };
                    let parts = message.parts.iter().flat_map(|parts| parts.iter());
                    pieces.extend(parts.map(|part| self.part_piece(part.index)));
                    pieces.push(BasePiece::Message {
                        queue: id,
                        index,
                        delivery_count: 0,
                        expires_ms: 0,
                        message: message.clone(),
                    });
                    before = index;
                }
                let done = pieces.is_empty();
                if done {
                    pieces.push(BasePiece::QueueDone { queue: id });
                }
                self.write_base(sync_point, &pieces)?;
                if done {
                    break;
                }
            }
        }
        self.write_base(sync_point, &[BasePiece::End { floor: self.last() }])?;
        self.journal.complete_base()?;
        self.history.durable = self.last().0 as usize;
        self.counts.bases += 1;
        Ok(())
    }

    fn part_piece(&self, index: Index) -> BasePiece {
        BasePiece::Part { index, body: self.history.body_of(index).into() }
    }

    fn write_base(&mut self, sync_point: Position, pieces: &[BasePiece]) -> Result<(), Failed> {
        let frames = pieces.iter().map(|piece| Frame::base(sync_point, self.last(), piece, &mut BytesMut::new()));
        Ok(self.journal.append(&frames.collect::<Vec<_>>())?)
    }

    fn journal_position(&self) -> Position {
        Position::new(position(1, 1).epoch, self.last())
    }
}

fn topology(sync_point: Position, broker: &Broker) -> Vec<BasePiece> {
    let start = BasePiece::Start { sync_point, epochs: vec![position(1, 1)], in_sync: Vec::new() };
    let queues = broker.queues.keys().map(|id| BasePiece::Queue { id: *id, spec: spec(*id) });
    let unclaimed = Some(broker.unclaimed()).filter(|parts| !parts.is_empty());
    let unclaimed = unclaimed.map(|parts| BasePiece::Parts { message: Index(0), parts });
    std::iter::once(start).chain(queues).chain(unclaimed).chain([BasePiece::TopologyEnd]).collect()
}

struct Recovered {
    journal: Journal,
    broker: Broker,
}

fn recover(storage: &SimStorage) -> Recovered {
    let mut broker = Broker::default();
    let opened = Journal::open(Arc::new(storage.clone()), SMALL, STORE, &mut |frame| {
        match frame.kind {
            FrameKind::Record => broker.apply(frame.position.index, &frame.decode_record()?),
            FrameKind::Base => broker.apply_base(&frame.decode_base()?),
        }
        Ok(())
    });
    match opened {
        Ok((journal, _)) => Recovered { journal, broker },
        Err(error) => panic!("{error}; files: {:?}", segments(storage)),
    }
}

#[track_caller]
fn check_messages(reader: &mut LogReader, broker: &Broker, history: &History, at: &str) {
    let live = broker.live();
    let frames = reader.messages(&live).unwrap_or_else(|error| panic!("{at}: {error}"));
    assert_eq!(frames.len(), live.len(), "{at}");
    for (index, frame) in live.iter().zip(frames) {
        assert_eq!(frame.body().to_contiguous(), history.body_of(*index), "{at}: message {index}");
    }
}

#[track_caller]
fn check(recovered: &Recovered, history: &History, at: &str) {
    let last = recovered.journal.last().index;
    assert!(
        (history.durable as u64..=history.records.len() as u64).contains(&last.0),
        "{at}: the log ends at {last}, durable were {}",
        history.durable
    );
    assert_eq!(recovered.broker, history.state_at(last), "{at}: the state at {last}");
    check_messages(&mut recovered.journal.reader(), &recovered.broker, history, at);
    let mut replayed = Broker::default();
    let replay = recovered.journal.reader().replay(&mut |frame| {
        match frame.kind {
            FrameKind::Record => replayed.apply(frame.position.index, &frame.decode_record()?),
            FrameKind::Base => replayed.apply_base(&frame.decode_base()?),
        }
        Ok(())
    });
    replay.unwrap_or_else(|error| panic!("{at}: {error}"));
    assert_eq!(replayed, recovered.broker, "{at}: the log read again");
}

/// Runs `steps` steps, or until power fails: `true` if it did not.
fn run(storage: &SimStorage, seed: u64, steps: u64, history: &mut History, counts: &mut Counts) -> bool {
    let opened = Journal::open(Arc::new(storage.clone()), SMALL, STORE, &mut |_| Ok(()));
    let Ok((journal, _)) = opened else {
        assert!(storage.is_dead(), "opening failed with the power on");
        return false;
    };
    let maker = journal.checkpointer();
    let mut dice = Dice(seed);
    let mut run =
        Run { journal, maker: &maker, history, counts, broker: Broker::default(), under_way: None, finished: None };
    let declares = queue_ids().map(|id| Record::QueueDeclare(spec(id))).collect();
    let mut outcome = run.write(declares);
    for _ in 0..steps {
        if outcome.is_err() || storage.is_dead() {
            break;
        }
        outcome = run.step(&mut dice);
        if outcome.is_ok() && !storage.is_dead() && dice.below(30) == 0 {
            check_messages(&mut run.journal.reader(), &run.broker, run.history, "while it runs");
        }
    }
    match outcome {
        Err(error) => assert!(storage.is_dead(), "with the power on: {error}"),
        Ok(()) => return !storage.is_dead(),
    }
    false
}

#[test]
fn every_message_is_there_whenever_power_fails() {
    const STORIES: u64 = 4;
    const STEPS: u64 = 220;
    let (mut points, mut crashes) = (0, 0_u32);
    let mut counts = Counts::default();
    for story in 0..STORIES {
        for point in 0.. {
            let storage = SimStorage::new();
            storage.set_faults(Faults { power_loss_at: Some(point), ..Faults::default() });
            let mut history = History::default();
            let whole = run(&storage, story, STEPS, &mut history, &mut counts);
            for seed in 0..2 {
                let storage = storage.fork_unsynced();
                storage.crash(seed);
                crashes += 1;
                let at = format!("story {story}, power loss at change {point}, seed {seed}");
                // It fails again while it recovers, at a change that differs from run to run.
                let copy = storage.fork();
                copy.set_faults(Faults { power_loss_at: Some((point + seed) % 7), ..Faults::default() });
                let opened = Journal::open(Arc::new(copy.clone()), SMALL, STORE, &mut |_| Ok(()));
                drop(opened);
                copy.crash(seed);
                crashes += 1;
                check(&recover(&copy), &history, &format!("{at}, and again during recovery"));
                check(&recover(&storage), &history, &at);
            }
            points += 1;
            if whole {
                break;
            }
        }
    }
    let Counts { installed, moved, bases, large } = counts;
    println!(
        "{points} points of failure, {crashes} crashes; {installed} checkpoints, {moved} of which moved messages, {bases} bases, {large} large messages"
    );
    assert!(
        points > 600 && moved > 100 && bases > 10 && large > 100,
        "{points} points, {installed} checkpoints, {moved} moved, {bases} bases, {large} large messages"
    );
}

/// The first segment of a log that a catch-up began may hold nothing but live records after its topology: its range does not
/// begin with the log's first record then.
#[test]
fn a_segment_of_live_records_before_the_first_message_of_a_base_keeps_its_own_range() {
    let storage = SimStorage::new();
    let (mut history, mut counts) = (History::default(), Counts::default());
    let (journal, _) = Journal::open(Arc::new(storage.clone()), SMALL, STORE, &mut |_| Ok(())).expect("opens");
    let maker = journal.checkpointer();
    let (broker, under_way, finished) = (Broker::default(), None, None);
    let (history_ref, counts_ref) = (&mut history, &mut counts);
    let mut run = Run { journal, maker: &maker, history: history_ref, counts: counts_ref, broker, under_way, finished };
    let story = |run: &mut Run<'_>| -> Result<(), Failed> {
        let queue = QueueId(Index(1));
        run.write(queue_ids().map(|id| Record::QueueDeclare(spec(id))).collect())?;
        let publish_some = |run: &mut Run<'_>, count: u64| {
            let first = run.last().0 + 1;
            run.write((first..first + count).map(|index| publish(Index(index), vec![queue], 400)).collect())
        };
        publish_some(run, 10)?;
        run.sync()?;
        run.journal.begin_base()?;
        let sync_point = run.journal_position();
        let first = topology(sync_point, &run.broker);
        run.write_base(sync_point, &first)?;
        publish_some(run, 12)?;
        for index in (3..=12).rev().map(Index) {
            let Record::Publish { message, .. } = run.history.records[index.0 as usize - 1].clone() else {
                panic!("{index} is no message")
            };
            run.write_base(
                sync_point,
                &[BasePiece::Message { queue, index, delivery_count: 0, expires_ms: 0, message }],
            )?;
        }
        let done = queue_ids().map(|queue| BasePiece::QueueDone { queue });
        let end: Vec<_> = done.chain([BasePiece::End { floor: run.last() }]).collect();
        run.write_base(sync_point, &end)?;
        run.journal.complete_base()?;
        publish_some(run, 20)?;
        while run.counts.installed < 2 {
            run.sync()?;
            run.checkpoint()?;
        }
        Ok(())
    };
    story(&mut run).expect("a disk without faults");
    drop(run);
    check(&recover(&storage), &history, "after two checkpoints");
}

/// What the checkpoint's files hold may rot like any others: it is noticed when it is read.
#[test]
fn damage_is_told_with_its_place() {
    let ended_on_a_checkpoint = |seed| {
        let (storage, mut history) = (SimStorage::new(), History::default());
        assert!(run(&storage, seed, 300, &mut history, &mut Counts::default()));
        let names = storage.list().expect("listing");
        let both = names.iter().any(|name| name == "checkpoint") && names.iter().any(|name| name.starts_with("kept-"));
        both.then_some((storage, history))
    };
    let (storage, history) = (0..20).find_map(ended_on_a_checkpoint).expect("most stories do");
    let recovered = recover(&storage);
    let live = recovered.broker.live();
    drop(recovered);
    let mut noticed = 0;
    let names = storage.list().expect("listing");
    for name in names.iter().filter(|name| *name == "checkpoint" || name.ends_with(".seg")) {
        let whole = storage.read(name).expect("it is there");
        for at in (0..whole.len()).step_by(3) {
            let mut flipped = whole.clone();
            flipped[at] ^= 1 << (at % 8);
            let copy = storage.fork();
            copy.overwrite(name, &flipped);
            let opened = Journal::open(Arc::new(copy), SMALL, StoreId(1), &mut |_| Ok(()));
            let said = match opened {
                Err(error) => error.to_string(),
                // A torn tail is cut; anything else that opened must show itself, or hold no live message.
                Ok((journal, recovery)) => match (recovery.cut, journal.reader().messages(&live)) {
                    (Some(cut), _) => cut.segment,
                    (None, Err(error)) => error.to_string(),
                    (None, Ok(frames)) => {
                        let same = live.iter().zip(&frames).all(|(index, frame)| {
                            frame.message_index() == Some(*index)
                                && frame.body().to_contiguous() == history.body_of(*index)
                        });
                        assert!(same, "{name}, byte {at}: a wrong message, and nobody noticed");
                        continue;
                    }
                },
            };
            assert!(said.contains(name.as_str()), "{name}, byte {at}: {said}");
            noticed += 1;
        }
    }
    assert!(noticed > 1000, "{noticed}");
}

/// A full disk keeps a checkpoint from being made, and nothing else.
#[test]
fn a_full_disk_stops_a_checkpoint_and_not_the_log() {
    let storage = SimStorage::new();
    let (mut journal, _) = Journal::open(Arc::new(storage.clone()), SMALL, STORE, &mut |_| Ok(())).expect("opens");
    let maker = journal.checkpointer();
    journal.append(&records(1, 1..=20)).expect("room enough");
    journal.sync().expect("a disk that works");
    let mut draft = maker.begin().expect("room enough");
    storage.set_faults(Faults { space: Some(10), ..Faults::default() });
    let start = BasePiece::Start { sync_point: position(1, 20), epochs: vec![position(1, 1)], in_sync: Vec::new() };
    let refused = draft.add(Index(20), &[start], &mut |_| true);
    assert!(
        matches!(&refused, Err(CheckpointError::Failed(failure)) if failure.to_string().contains("make room")),
        "{refused:?}"
    );
    storage.set_faults(Faults::default());
    journal.append(&records(1, 21..=22)).expect("the log goes on");
    journal.sync().expect("the log goes on");
    drop(draft);
    maker.begin().expect("an old draft is no obstacle");
}
