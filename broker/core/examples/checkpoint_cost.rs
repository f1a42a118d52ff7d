//! What a large backlog costs: how long a checkpoint, or a scrub, keeps the core from its work, in slices, how much memory a
//! message takes that is stored only, and how long messages take to leave memory.
//!
//! `cargo run --release -p understudy-core --example checkpoint_cost`

use std::time::{Duration, Instant};

use bytes::Bytes;
use understudy_core::{Core, Outputs, SCRUB_MESSAGES};
use understudy_record::{
    BasePiece, Binding, Body, Destination, Index, Message, QueueId, QueueSpec, Record, Replicate, ShortStr,
};

const QUEUES: u64 = 10_000;
const MESSAGES: u64 = 1_000_000;

/// Messages that one slice of a checkpoint lists.
const SLICE: usize = 2000;

/// How often a checkpoint is taken. Of each of its steps the fastest time counts, or what else the machine does would be
/// measured too.
const ROUNDS: usize = 10;

fn main() {
    let before = resident_set();
    let mut long = Core::new(1);
    apply(&mut long, Record::QueueDeclare(queue("long")));
    let targets = vec![QueueId(Index(1))];
    for _ in 0..MESSAGES {
        apply(&mut long, Record::Publish { targets: targets.clone(), message: a_message() });
    }
    let grown = resident_set() - before;
    println!("{MESSAGES} messages in one queue: {:.1} bytes of memory a message", grown as f64 / MESSAGES as f64);
    report_checkpoint(&mut long);
    report_scrub(&mut long);
    drop(long);

    let mut core = Core::new(1);
    for number in 0..QUEUES {
        apply(&mut core, Record::QueueDeclare(queue(&format!("queue-{number:05}"))));
    }
    let ids: Vec<QueueId> = core.queues().into_iter().map(|(queue, ..)| queue).collect();
    for (number, id) in ids.iter().enumerate() {
        let routing_key = ShortStr::try_from(format!("key-{number:05}").as_str()).expect("a short key");
        let (source, destination) = (ShortStr::from_static("amq.direct"), Destination::Queue(*id));
        apply(&mut core, Record::Bind(Binding { source, destination, routing_key, arguments: Bytes::new() }));
    }
    let before = resident_set();
    for message in 0..MESSAGES {
        let targets = vec![ids[(message % QUEUES) as usize]];
        apply(&mut core, Record::Publish { targets, message: a_message() });
    }
    let grown = resident_set() - before;
    println!("{MESSAGES} messages in {QUEUES} queues: {:.1} bytes of memory a message", grown as f64 / MESSAGES as f64);
    report_checkpoint(&mut core);
    recover(&core);
    report_scrub(&mut core);
    drop(core);
    evict();
}

/// From a primary that took them all from publishers.
fn evict() {
    let (mut core, mut out) = (Core::new(1), Outputs::default());
    core.promote(&mut out);
    let ids: Vec<_> = (0..QUEUES)
        .map(|number| QueueId(core.append(Record::QueueDeclare(queue(&format!("queue-{number:05}"))), &mut out)))
        .collect();
    for message in 0..MESSAGES {
        let targets = vec![ids[(message % QUEUES) as usize]];
        let message = Message { body: Body::new(Bytes::copy_from_slice(&[0; 100])), ..a_message() };
        core.append(Record::Publish { targets, message }, &mut out);
        out.records.clear();
    }
    let mut steps = Vec::new();
    loop {
        let (more, took) = timed(|| {
            let last = core.last_index();
            core.evict(last, 0)
        });
        steps.push(took);
        if !more {
            break;
        }
    }
    assert_eq!(core.resident_messages(), 0);
    steps.sort_unstable();
    println!(
        "{MESSAGES} messages left memory in {} steps, half of them within {:?}",
        steps.len(),
        steps[steps.len() / 2]
    );
}

#[derive(Default)]
struct Cost {
    topology: Duration,
    queues: Duration,
    slices: Vec<Duration>,
    end: Duration,
    messages: usize,
}

fn report_checkpoint(core: &mut Core) {
    let mut cost = checkpoint(core);
    for _ in 1..ROUNDS {
        let again = checkpoint(core);
        cost.topology = cost.topology.min(again.topology);
        cost.queues = cost.queues.min(again.queues);
        cost.end = cost.end.min(again.end);
        cost.slices.iter_mut().zip(again.slices).for_each(|(slice, again)| *slice = again.min(*slice));
    }
    let Cost { topology, queues, slices, end, messages } = cost;
    let (longest, total) = (slices.iter().max().copied().unwrap_or_default(), slices.iter().sum::<Duration>());
    let each = total.as_nanos() as f64 / messages.max(1) as f64;
    println!("  snapshot_topology {topology:?}, queues {queues:?}, end_sync {end:?}");
    println!(
        "  held_chunk: {messages} messages in {} slices, longest {longest:?}, total {total:?}: {each:.1} ns each",
        slices.len()
    );
}

fn checkpoint(core: &mut Core) -> Cost {
    let sync_point = core.begin_sync();
    let mut cost = Cost::default();
    (_, cost.topology) = timed(|| core.snapshot_topology());
    let queues;
    (queues, cost.queues) = timed(|| core.queues());
    // A slice goes on over queues until it is full.
    let mut queues = queues.into_iter();
    let mut open = queues.next().map(|(queue, ..)| (queue, sync_point.next()));
    while open.is_some() {
        let (listed, took) = timed(|| {
            let mut listed = 0;
            while let Some((queue, before)) = open.filter(|_| listed < SLICE) {
                let chunk = core.held_chunk(queue, before, sync_point, SLICE - listed);
                listed += chunk.messages.len();
                open = match chunk.messages.last().filter(|_| !chunk.done) {
                    Some(oldest) => Some((queue, oldest.index)),
                    None => queues.next().map(|(queue, ..)| (queue, sync_point.next())),
                };
            }
            listed
        });
        cost.messages += listed;
        cost.slices.push(took);
    }
    (_, cost.end) = timed(|| core.end_sync(sync_point));
    cost
}

/// What a primary takes; a replica that compares takes the same.
fn report_scrub(core: &mut Core) {
    let mut out = Outputs::default();
    core.promote(&mut out);
    let begin = (0..ROUNDS).map(|_| timed(|| core.begin_scrub()).1).min().unwrap_or_default();
    let mut fastest: Vec<Duration> = Vec::new();
    for _ in 0..ROUNDS {
        let mut pass = core.begin_scrub();
        for slice in 0.. {
            let (written, took) = timed(|| core.scrub(&mut pass, SCRUB_MESSAGES, &mut out));
            if written.is_none() {
                break;
            }
            match fastest.get_mut(slice) {
                Some(fastest) => *fastest = took.min(*fastest),
                None => fastest.push(took),
            }
        }
    }
    let (longest, total) = (fastest.iter().max().copied().unwrap_or_default(), fastest.iter().sum::<Duration>());
    println!(
        "  scrub: begun in {begin:?}, {} slices, longest {longest:?}, total {total:?}: {:.1} ns a message",
        fastest.len(),
        total.as_nanos() as f64 / MESSAGES as f64
    );
}

fn recover(core: &Core) {
    let sync_point = core.last_index();
    let mut pieces = core.snapshot_topology();
    pieces.push(BasePiece::TopologyEnd);
    for (queue, ..) in core.queues() {
        let chunk = core.held_chunk(queue, sync_point.next(), sync_point, usize::MAX);
        pieces.push(BasePiece::Held { queue, messages: chunk.messages });
        pieces.push(BasePiece::QueueDone { queue });
    }
    let position = understudy_record::Position::new(understudy_record::Epoch(1), sync_point);
    let start = BasePiece::Start { sync_point: position, epochs: vec![], in_sync: vec![] };
    let mut recovered = Core::new(1);
    let (result, took) = timed(|| {
        let pieces = std::iter::once(start).chain(pieces).chain([BasePiece::End { floor: sync_point }]);
        pieces.into_iter().try_for_each(|piece| recovered.apply_base(piece))
    });
    result.expect("a core takes its own checkpoint");
    println!("  recovered from its pieces in {took:?}");
    assert_eq!(recovered.digest(), core.digest());
}

fn apply(core: &mut Core, record: Record) {
    core.apply(core.last_index().next(), &record).expect("the record fits");
}

fn queue(name: &str) -> QueueSpec {
    let name = ShortStr::try_from(name).expect("a short name");
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

fn a_message() -> Message {
    Message {
        exchange: ShortStr::EMPTY,
        routing_key: ShortStr::EMPTY,
        properties: Bytes::from_static(&[0x10, 0, 2]),
        persistent: true,
        parts: None,
        body: Body::new(Bytes::from_static(&[0; 100])),
    }
}

fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let started = Instant::now();
    let result = work();
    (result, started.elapsed())
}

/// Of this process, in bytes.
fn resident_set() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux tells a process its memory");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    kib.expect("VmRSS in kB") * 1024
}
