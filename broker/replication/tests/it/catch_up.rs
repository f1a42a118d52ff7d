//! A catch-up whose connection breaks over and over, with the real state on both sides: messages are published, taken, given
//! back and purged, queues come and go, and in the end the backup has exactly what its primary has.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, IteratorRandom};
use rand::{Rng, SeedableRng};
use understudy_core::{BacklogItem, Core, Outputs};
use understudy_record::version::{ClusterVersion, VersionRange};
use understudy_record::*;
use understudy_replication::*;

use crate::store::{Order, Report, Store, Writer};

const EPOCH: Epoch = Epoch(1);
const TIMEOUT: Duration = Duration::from_secs(2);

/// Of the backlog, in one chunk: few, so that much happens between two.
const CHUNK: usize = 4;

#[derive(Debug)]
enum Word {
    Hello(Hello),
    Acknowledge(Acknowledge),
    CaughtUp(Index),
}

#[derive(Clone, Copy, Debug)]
struct Fetch {
    sync_id: SyncId,
    queue: QueueId,
    from: BacklogCursor,
}

/// One connection. The backup's end may be gone while the primary still sends.
#[derive(Default)]
struct Link {
    id: u64,
    up: VecDeque<Word>,
    down: VecDeque<PrimaryMessage>,
    fetches: Vec<Fetch>,
    backlogs: Vec<Backlog>,
}

/// What a run came to.
#[derive(Debug, Default)]
struct Sum {
    bases: usize,
    resumed: usize,
    recovered: usize,
    early: usize,
}

struct World {
    rng: StdRng,
    now: Duration,
    primary: Primary,
    core: Core,
    out: Outputs,
    log: Vec<Frame>,
    /// By queue, what is in it, as the primary's clients know.
    queues: Vec<(QueueId, BTreeSet<Index>)>,
    syncs: Vec<(SyncId, Index)>,
    backup: Backup,
    copy: Core,
    store: Store,
    orders: VecDeque<Order>,
    link: Option<Link>,
    links: u64,
    sum: Sum,
    named: u64,
}

fn id(n: u64) -> Identity {
    Identity { name: ReplicaName::new(&format!("r{n}")), store: StoreId(n.into()), process: ProcessId(n) }
}

fn message(number: u64, bytes: usize) -> Message {
    let mut body = number.to_le_bytes().to_vec();
    body.resize(bytes.max(8), 0);
    Message {
        exchange: ShortStr::EMPTY,
        routing_key: ShortStr::EMPTY,
        properties: Bytes::from_static(&[0, 0]),
        persistent: true,
        parts: None,
        body: Body::new(Bytes::from(body)),
    }
}

fn empty_log() -> RecoveredLog {
    RecoveredLog {
        cluster_version: ClusterVersion::FIRST,
        known_epoch: Epoch(0),
        history: History::default(),
        first: Index(1),
        floor: Index(0),
        applied: Index(0),
        pending: VecDeque::new(),
        damaged: false,
    }
}

fn backup(now: Duration) -> Backup {
    let config = BackupConfig { knows: VersionRange::OWN, me: id(2), replicated_only: false, backup_timeout: TIMEOUT };
    Backup::new(now, config, empty_log())
}

impl World {
    fn new(seed: u64) -> Self {
        let config = PrimaryConfig {
            knows: VersionRange::OWN,
            version: ClusterVersion::FIRST,
            me: id(1),
            min_in_sync: 1,
            replicated_only: false,
            backup_timeout: TIMEOUT,
            stall_timeout: Duration::from_secs(1000),
            lease_duration: Duration::from_secs(1000),
            resume_records: 0,
            max_catch_ups: 1,
        };
        let in_force = [id(1).member(false)].into();
        let (mut core, mut out) = (Core::new(seed), Outputs::default());
        core.promote(&mut out);
        let log = OwnLog { history: History::default(), first: Index(1), durable: Index(0) };
        let mut primary = Primary::new(Duration::ZERO, config, EPOCH, log, in_force);
        primary.handle_lease_held(Duration::ZERO, &mut Vec::new());
        Self {
            rng: StdRng::seed_from_u64(seed),
            now: Duration::ZERO,
            primary,
            core,
            out,
            log: Vec::new(),
            queues: Vec::new(),
            syncs: Vec::new(),
            backup: backup(Duration::ZERO),
            copy: Core::new(seed),
            store: Store::new(2),
            orders: VecDeque::new(),
            link: None,
            links: 0,
            sum: Sum::default(),
            named: 0,
        }
    }

    // The primary.

    fn write(&mut self, record: Record) -> Index {
        let index = self.core.append(record, &mut self.out);
        let committed = self.primary.committed();
        let frames: Vec<_> = self
            .out
            .records
            .drain(..)
            .map(|(index, record)| Frame::record(Position::new(EPOCH, index), committed, &record, &mut BytesMut::new()))
            .collect();
        self.log.extend(frames.iter().cloned());
        let now = self.now;
        self.primary(|primary, out| {
            primary.handle_appended(now, &frames, out);
            primary.handle_durable(now, EPOCH, index, out);
        });
        index
    }

    fn primary(&mut self, step: impl FnOnce(&mut Primary, &mut Vec<PrimaryOutput>)) {
        let mut out = Vec::new();
        step(&mut self.primary, &mut out);
        self.carry_out_primary(out);
    }

    fn carry_out_primary(&mut self, out: Vec<PrimaryOutput>) {
        for output in out {
            match output {
                PrimaryOutput::Send(StreamId(stream), message) => {
                    if let Some(link) = self.link.as_mut().filter(|link| link.id == stream) {
                        link.down.push_back(message);
                    }
                }
                PrimaryOutput::Close(StreamId(stream), _) => {
                    if self.link.as_ref().is_some_and(|link| link.id == stream) {
                        self.hang_up();
                    }
                }
                PrimaryOutput::ReadLog(stream, from) => {
                    let frames =
                        self.log.iter().filter(|frame| frame.position.index >= from).take(5).cloned().collect();
                    let now = self.now;
                    self.primary(|primary, out| primary.handle_log_read(now, stream, from, Ok(frames), out));
                }
                PrimaryOutput::TakeBase(stream, sync_id) => self.take_base(stream, sync_id),
                PrimaryOutput::EndSync(sync_id) => {
                    let place = self.syncs.iter().position(|(id, _)| *id == sync_id).expect("it was begun");
                    self.core.end_sync(self.syncs.remove(place).1);
                }
                // It is enough for it to have caught up; and the set's record would be written at each.
                PrimaryOutput::ProposeSet(_) | PrimaryOutput::SetInForce(_) | PrimaryOutput::Committed { .. } => {}
                output => panic!("{output:?}"),
            }
        }
    }

    fn take_base(&mut self, stream: StreamId, sync_id: SyncId) {
        let (sync_point, now) = (self.primary.last(), self.now);
        let start = BasePiece::Start { sync_point, epochs: self.primary.history().starts().to_vec(), in_sync: vec![] };
        let pieces = [start].into_iter().chain(self.core.snapshot_topology()).chain([BasePiece::TopologyEnd]);
        let committed = self.primary.committed();
        let frames = pieces.map(|piece| Frame::base(sync_point, committed, &piece, &mut BytesMut::new())).collect();
        let queues = self.core.queues().into_iter();
        let queues = queues.map(|(queue, messages, bytes)| BacklogQueue { queue, messages, bytes }).collect();
        self.syncs.push((sync_id, self.core.begin_sync()));
        self.primary(|primary, out| primary.send_base(now, stream, sync_id, frames, queues, out));
    }

    fn serve(&mut self, Fetch { sync_id, queue, from }: Fetch) -> Option<Backlog> {
        let (_, sync_point) = *self.syncs.iter().find(|(id, _)| *id == sync_id)?;
        let chunk = self.core.backlog_chunk(queue, from, sync_point, 1000, self.rng.random_range(1..=CHUNK));
        self.primary.handle_fetch(self.now, sync_id, queue, chunk.done);
        let (mut frames, mut bytes) = (Vec::new(), 0);
        for item in chunk.items {
            let BacklogItem::Message(message) = item else { panic!("none is large") };
            bytes += u64::from(message.bytes);
            let (index, delivery_count, expires_ms) = (message.index, message.delivery_count, message.expires_ms);
            let message = (*message.message.expect("it is in memory")).clone();
            let piece = BasePiece::Message { queue, index, delivery_count, expires_ms, message };
            frames.push(Frame::base(Position::new(EPOCH, sync_point), Index(0), &piece, &mut BytesMut::new()));
        }
        let (next, done, messages) = (chunk.next, chunk.done, frames.len() as u64);
        Some(Backlog { sync_id, queue, from, next, as_of: self.core.last_index(), frames, messages, bytes, done })
    }

    fn client(&mut self) {
        let at = (0..self.queues.len()).choose(&mut self.rng);
        match (self.rng.random_range(0..100), at) {
            (0..6, _) | (_, None) => {
                self.named += 1;
                let name = ShortStr::try_from(format!("q{}", self.named % 9).as_str()).unwrap();
                if self
                    .core
                    .snapshot_topology()
                    .iter()
                    .any(|p| matches!(p, BasePiece::Queue { spec, .. } if spec.name == name))
                {
                    return;
                }
                let spec = QueueSpec {
                    name,
                    durable: true,
                    exclusive: false,
                    auto_delete: false,
                    arguments: Bytes::new(),
                    replicate: understudy_record::Replicate::All,
                    deduplicates: false,
                };
                let index = self.write(Record::QueueDeclare(spec));
                self.queues.push((QueueId(index), BTreeSet::new()));
            }
            (6..8, Some(at)) if self.queues.len() > 2 => {
                let (queue, _) = self.queues.swap_remove(at);
                self.write(Record::QueueDelete { queue });
            }
            (8..11, Some(at)) => {
                let up_to = Index(self.rng.random_range(0..=self.core.last_index().0));
                let (queue, content) = &mut self.queues[at];
                let except: Vec<_> = content.iter().filter(|_| self.rng.random_bool(0.2)).copied().collect();
                content.retain(|index| *index > up_to || except.contains(index));
                let queue = *queue;
                self.write(Record::Purge { queue, up_to, except });
            }
            (11..50, Some(at)) => {
                let (queue, content) = &mut self.queues[at];
                let taken: Vec<_> = content.iter().filter(|_| self.rng.random_bool(0.2)).copied().collect();
                let queue = *queue;
                if self.rng.random_bool(0.6) {
                    taken.iter().for_each(|index| _ = content.remove(index));
                    self.write(Record::Dequeue { queue, messages: taken });
                } else {
                    self.write(Record::Requeue { queue, messages: taken });
                }
            }
            _ => {
                let targets: Vec<_> = self.queues.iter().map(|(queue, _)| *queue).collect();
                let count = self.rng.random_range(1..=targets.len().min(3));
                let mut targets: Vec<_> = targets.choose_multiple(&mut self.rng, count).copied().collect();
                targets.sort_unstable();
                self.named += 1;
                let message = message(self.named, self.rng.random_range(8..400));
                let index = self.write(Record::Publish { targets: targets.clone(), message });
                for (queue, content) in &mut self.queues {
                    if targets.contains(queue) {
                        content.insert(index);
                    }
                }
            }
        }
    }

    // The backup.

    fn backup(&mut self, step: impl FnOnce(&mut Backup, &mut Vec<BackupOutput>) -> Result<(), FollowError>) {
        let mut out = Vec::new();
        let outcome = step(&mut self.backup, &mut out);
        assert_eq!(outcome, Ok(()));
        for output in out {
            match output {
                BackupOutput::PersistEpoch(epoch) => self.orders.push_back(Order::PersistEpoch(epoch)),
                BackupOutput::PersistVersion(_) => {} // nothing here is of a later one
                BackupOutput::Truncate(after) => self.orders.push_back(Order::Truncate(after)),
                BackupOutput::Append(session, frames) => {
                    self.orders.push_back(Order::Append(Writer::Backup(session), frames));
                }
                BackupOutput::Barrier(session) => self.orders.push_back(Order::Barrier(Writer::Backup(session))),
                BackupOutput::BeginBase => {
                    self.copy = Core::new(0);
                    self.store.crash();
                    self.orders.push_back(Order::BeginBase);
                }
                BackupOutput::CompleteBase(session) => self.orders.push_back(Order::CompleteBase(session)),
                BackupOutput::Apply(frames) => frames.iter().for_each(|frame| {
                    self.copy.apply(frame.position.index, &frame.decode_record().unwrap()).unwrap();
                }),
                BackupOutput::ApplyBase(frames) => frames.iter().for_each(|frame| {
                    self.copy.apply_base(frame.decode_base().unwrap()).unwrap();
                }),
                BackupOutput::Acknowledge(ack) => self.say(Word::Acknowledge(ack)),
                BackupOutput::CaughtUp(floor) => self.say(Word::CaughtUp(floor)),
                BackupOutput::Fetch { epoch, sync_id, queue, from } => {
                    assert_eq!(epoch, EPOCH);
                    self.sum.resumed += usize::from(from != BacklogCursor::START);
                    self.link.as_mut().expect("it is connected").fetches.push(Fetch { sync_id, queue, from });
                }
                BackupOutput::Close(_) => self.link = None,
                BackupOutput::Recover => {
                    self.sum.recovered += 1;
                    self.orders.clear();
                    self.store.crash();
                    (self.backup, self.copy, self.link) = (backup(self.now), Core::new(0), None);
                }
            }
        }
    }

    fn say(&mut self, word: Word) {
        if let Some(link) = &mut self.link {
            link.up.push_back(word);
        }
    }

    fn hang_up(&mut self) {
        let now = self.now;
        if let Some(link) = self.link.take() {
            if self.rng.random_bool(0.8) {
                self.primary(|primary, out| primary.handle_stream_closed(now, StreamId(link.id), out));
            }
            self.backup(|backup, out| {
                backup.handle_disconnected(now, true, out);
                Ok(())
            });
        }
    }

    fn turn_journal(&mut self) {
        let orders: Vec<_> = self.orders.drain(..).collect();
        for report in self.store.carry_out(orders.into_iter()) {
            self.backup(|backup, out| {
                match report {
                    Report::Durable(Writer::Backup(session), index) => backup.handle_durable(session, index, out),
                    Report::BaseCompleted(session) => backup.handle_base_completed(session, out),
                    Report::Durable(writer, _) => panic!("{writer:?}"),
                }
                Ok(())
            });
        }
    }

    // What is between them.

    fn dial(&mut self) {
        if self.link.is_none() && !self.backup.is_connected() {
            self.links += 1;
            let hello = self.backup.handle_connected(self.now);
            self.link = Some(Link { id: self.links, up: [Word::Hello(hello)].into(), ..Link::default() });
        }
    }

    fn deliver(&mut self) {
        let now = self.now;
        let choice = self.rng.random_range(0..4);
        let Some(link) = &mut self.link else { return };
        let stream = StreamId(link.id);
        match choice {
            0 => match link.up.pop_front() {
                Some(Word::Hello(hello)) => self.primary(|p, out| p.handle_hello(now, stream, &hello, 0, out)),
                Some(Word::Acknowledge(ack)) => self.primary(|p, out| p.handle_acknowledge(now, stream, ack, out)),
                Some(Word::CaughtUp(floor)) => self.primary(|p, out| p.handle_caught_up(now, stream, floor, out)),
                None => {}
            },
            1 => {
                let Some(message) = link.down.pop_front() else { return };
                self.sum.bases += usize::from(matches!(message, PrimaryMessage::Base(_)));
                self.backup(|backup, out| match message {
                    PrimaryMessage::Welcome(welcome) => backup.handle_welcome(now, welcome, out),
                    PrimaryMessage::Records(records) => backup.handle_records(now, records, out),
                    PrimaryMessage::Base(base) => backup.handle_base(now, base, out),
                    PrimaryMessage::Waiting(waiting) => backup.handle_waiting(now, waiting, out),
                    PrimaryMessage::Version(version) => backup.handle_version(version, out),
                    PrimaryMessage::Refusal(refusal) => panic!("{refusal:?}"),
                });
            }
            2 if !link.fetches.is_empty() => {
                let place = self.rng.random_range(0..link.fetches.len());
                let fetch = link.fetches.swap_remove(place);
                let backlog = self.serve(fetch);
                if let (Some(backlog), Some(link)) = (backlog, &mut self.link) {
                    link.backlogs.push(backlog);
                }
            }
            3 if !link.backlogs.is_empty() => {
                let place = self.rng.random_range(0..link.backlogs.len());
                let backlog = link.backlogs.swap_remove(place);
                let (sync_id, queue, from, done) = (backlog.sync_id, backlog.queue, backlog.next, backlog.done);
                self.sum.early += usize::from(backlog.as_of > self.backup.history().last().index);
                self.backup(|backup, out| backup.handle_backlog(now, backlog, out));
                if let Some(link) = self.link.as_mut().filter(|_| !done) {
                    link.fetches.push(Fetch { sync_id, queue, from });
                }
            }
            _ => {}
        }
    }

    fn step(&mut self, breaks: f64) {
        self.now += Duration::from_millis(self.rng.random_range(0..10));
        if self.rng.random_bool(breaks) {
            self.hang_up();
        }
        match self.rng.random_range(0..10) {
            0 => self.client(),
            1 => self.turn_journal(),
            2 => self.dial(),
            3 => {
                let now = self.now;
                self.primary(|primary, out| primary.handle_timeout(now, out));
                self.backup(|backup, out| {
                    backup.handle_timeout(now, out);
                    Ok(())
                });
            }
            _ => self.deliver(),
        }
    }

    /// In fair weather, until it has all.
    fn finish(&mut self) {
        for _ in 0..40_000 {
            let whole = self.backup.is_clean() && self.copy.base_complete() && self.copy.last_index() > Index(0);
            if whole && self.copy.last_index() == self.core.last_index() {
                return;
            }
            self.now += Duration::from_millis(1);
            match self.rng.random_range(0..6) {
                0 => self.turn_journal(),
                1 => self.dial(),
                2 => {
                    let now = self.now;
                    self.primary(|primary, out| primary.handle_timeout(now, out));
                }
                _ => self.deliver(),
            }
        }
        panic!("it has not caught up: {:?}, {:?}", self.sum, self.backup);
    }
}

fn run(seed: u64, sum: &mut Sum) {
    let mut world = World::new(seed);
    world.write(Record::EpochStart { primary: id(1), in_sync: vec![id(1).member(false)] });
    (0..300).for_each(|_| world.client());
    let breaks = [0.0, 0.002, 0.01, 0.05][seed as usize % 4];
    (0..1500).for_each(|_| world.step(breaks));
    world.finish();
    assert_eq!(world.copy.replicated_text(), world.core.replicated_text(), "seed {seed}");
    world.copy.assert_consistent();
    let Sum { bases, resumed, recovered, early } = world.sum;
    sum.bases += bases;
    sum.resumed += resumed;
    sum.recovered += recovered;
    sum.early += early;
}

#[test]
fn a_catch_up_that_breaks_again_and_again_ends_with_exactly_what_the_primary_has() {
    let mut sum = Sum::default();
    match std::env::var("SEED") {
        Ok(seed) => run(seed.parse().expect("SEED is a number"), &mut sum),
        Err(_) => {
            (0..200).for_each(|seed| run(seed, &mut sum));
            assert!(sum.bases >= 200 && sum.resumed > 200 && sum.early > 200, "too little happened: {sum:?}");
            assert!(sum.bases < 600, "a break means to start over: {sum:?}");
        }
    }
}
