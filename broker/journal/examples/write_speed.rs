//! How near the journal comes to the disk: 1 KiB messages in batches, each batch appended and synced, against a bare loop
//! that writes and fdatasyncs the same number of bytes from one buffer. Both run in turns on the same disk, so that their
//! ratio means something where the absolute figures do not.
//!
//! `cargo run --release -p understudy-journal --example write_speed [DIRECTORY]` (default: a new one beside the target)

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use understudy_journal::{DirStorage, Journal, Options};
use understudy_record::{Epoch, Frame, Index, Message, Position, QueueId, Record, ShortStr, StoreId};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

const BODY_BYTES: usize = 1024;
const BATCHES: [usize; 5] = [1, 8, 64, 500, 2000];
const TURNS: usize = 5;
const TURN: Duration = Duration::from_millis(600);

/// What one turn achieved.
struct Speed {
    messages: usize,
    took: Duration,
    syncs: Vec<Duration>,
}

impl Speed {
    fn per_second(&self) -> f64 {
        self.messages as f64 / self.took.as_secs_f64()
    }

    fn median_sync(&mut self) -> Duration {
        self.syncs.sort_unstable();
        self.syncs[self.syncs.len() / 2]
    }
}

fn frames(first: u64, count: usize, body: &Bytes, arena: &mut BytesMut) -> Vec<Frame> {
    let frame = |index| {
        let message = Message {
            exchange: ShortStr::EMPTY,
            routing_key: ShortStr::from_static("orders"),
            properties: Bytes::new(),
            persistent: true,
            body: body.clone().into(),
        };
        let record = Record::Publish { targets: vec![QueueId(Index(1))], message };
        Frame::record(Position::new(Epoch(1), Index(index)), Index(index - 1), &record, arena)
    };
    (first..first + count as u64).map(frame).collect()
}

/// Repeats `batch` for one turn.
fn turn(messages: usize, mut batch: impl FnMut() -> Outcome<()>) -> Outcome<Speed> {
    let mut speed = Speed { messages: 0, took: Duration::ZERO, syncs: Vec::new() };
    let start = Instant::now();
    while speed.took < TURN {
        let begun = Instant::now();
        batch()?;
        speed.syncs.push(begun.elapsed());
        speed.messages += messages;
        speed.took = start.elapsed();
    }
    Ok(speed)
}

fn compare(dir: &Path, count: usize) -> Outcome<(Speed, Speed, f64)> {
    let body: Bytes = vec![0x5a; BODY_BYTES].into();
    let mut arena = BytesMut::with_capacity(1 << 20);
    let storage = Arc::new(DirStorage::open(&dir.join(format!("journal-{count}")))?);
    let (mut journal, _) = Journal::open(storage, Options::default(), StoreId(1), &mut |_| Ok(()))?;
    let bare_path = dir.join(format!("bare-{count}"));
    let mut bare = OpenOptions::new().append(true).create_new(true).open(bare_path)?;
    let batch_bytes: usize = frames(1, count, &body, &mut arena).iter().map(Frame::len).sum();
    let buffer = vec![0x5a; batch_bytes];

    let mut turns = Vec::new();
    for _ in 0..TURNS {
        let with_journal = turn(count, || {
            journal.append(&frames(journal.last().index.0 + 1, count, &body, &mut arena))?;
            journal.sync()?;
            Ok(())
        })?;
        let with_nothing = turn(count, || {
            bare.write_all(&buffer)?;
            bare.sync_data()?;
            Ok(())
        })?;
        turns.push((with_journal, with_nothing));
    }
    drop(journal);
    reopen(&dir.join(format!("journal-{count}")))?;
    let ratio = |(journal, bare): &(Speed, Speed)| journal.per_second() / bare.per_second();
    turns.sort_by(|a, b| ratio(a).total_cmp(&ratio(b)));
    let median = turns.swap_remove(TURNS / 2);
    let ratio = ratio(&median);
    Ok((median.0, median.1, ratio))
}

/// Opening reads and checks everything.
fn reopen(dir: &Path) -> Outcome<()> {
    let begun = Instant::now();
    let mut bytes = 0;
    let storage = Arc::new(DirStorage::open(dir)?);
    Journal::open(storage, Options::default(), StoreId(1), &mut |frame| {
        bytes += frame.len();
        Ok(())
    })?;
    let seconds = begun.elapsed().as_secs_f64();
    println!(
        "        opened again: {} MiB in {seconds:.2} s, {:.0} MiB/s",
        bytes >> 20,
        bytes as f64 / seconds / f64::from(1 << 20)
    );
    Ok(())
}

fn main() -> Outcome<()> {
    let dir = match std::env::args().nth(1) {
        Some(path) => tempfile::tempdir_in(path)?,
        None => tempfile::tempdir()?,
    };
    println!("{BODY_BYTES} byte messages, median of {TURNS} turns in {}", dir.path().display());
    println!(
        "{:>6}  {:>12}  {:>12}  {:>6}  {:>10}  {:>10}",
        "batch", "journal/s", "bare/s", "ratio", "sync", "bare sync"
    );
    for count in BATCHES {
        let (mut journal, mut bare, ratio) = compare(dir.path(), count)?;
        println!(
            "{count:>6}  {:>12.0}  {:>12.0}  {ratio:>6.2}  {:>7.0} us  {:>7.0} us",
            journal.per_second(),
            bare.per_second(),
            journal.median_sync().as_secs_f64() * 1e6,
            bare.median_sync().as_secs_f64() * 1e6,
        );
    }
    Ok(())
}
