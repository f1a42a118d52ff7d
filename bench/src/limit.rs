//! How near the journal comes to the disk: batches of messages appended and synced by the journal alone, and the same
//! frames through a bare loop of write and fdatasync, in turns on the same disk, so that their ratio means something
//! where the absolute figures do not. No broker runs.
//!
//! Frames are made before the clock starts in both, since another thread makes them in a broker; what making them would
//! add to the journal's time is a figure of its own.

mod plot;
mod svg;
mod table;

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use serde::Serialize;
use understudy_journal::{DirError, DirStorage, Journal, JournalError, OpenError, Options};
use understudy_record::{Epoch, Frame, Index, Message, Position, QueueId, Record, ShortStr, StoreId};

use crate::figures::median;
use crate::latency::Latencies;

pub use plot::plot;
pub use svg::svg;
pub use table::table;

/// A turn writes at most about this much: four segments, and no great claim on a disk that others use.
const MAX_TURN_BYTES: usize = 256 << 20;
/// The share of the bare loop's speed that the journal is to reach.
pub const GOAL: f64 = 0.8;

#[derive(Clone, Debug)]
pub struct LimitPlan {
    /// A directory on the disk that is measured; what is written there is removed.
    pub dir: PathBuf,
    pub message_bytes: usize,
    /// Messages of one batch, in ascending order.
    pub batches: Vec<usize>,
    /// Turns of each, for each size of batch.
    pub rounds: usize,
    /// Of one of the two, in one round.
    pub turn: Duration,
}

#[derive(Debug, thiserror::Error)]
pub enum LimitError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Dir(#[from] DirError),
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error("interrupted")]
    Interrupted,
}

#[derive(Clone, Debug, Serialize)]
pub struct Limit {
    pub message_bytes: usize,
    pub points: Vec<Point>,
}

/// One size of batch.
#[derive(Clone, Debug, Serialize)]
pub struct Point {
    pub batch: usize,
    /// Of a batch, as the bare loop writes it. The journal adds what it needs to find it again.
    pub batch_bytes: usize,
    pub rounds: Vec<Round>,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub struct Round {
    pub journal: Speed,
    pub bare: Speed,
}

/// What one turn achieved.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Speed {
    /// Messages a second.
    pub rate: f64,
    /// Messages a second if the time it took to make the frames is added.
    pub rate_with_making: f64,
    /// Of a batch, from the write to the answer of the sync, in milliseconds.
    pub batch_p50_ms: f64,
    pub batch_p99_ms: f64,
}

impl Round {
    pub fn ratio(&self) -> f64 {
        self.journal.rate / self.bare.rate
    }
}

impl Point {
    fn median(&self, figure: impl Fn(&Round) -> f64) -> f64 {
        median(self.rounds.iter().map(figure).collect()).unwrap_or(f64::NAN)
    }

    /// The median of the rounds' ratios.
    pub fn ratio(&self) -> f64 {
        self.median(Round::ratio)
    }

    /// MiB of frames a second.
    fn throughput(&self, speed: fn(&Round) -> Speed) -> f64 {
        let frame_bytes = self.batch_bytes as f64 / self.batch as f64;
        self.median(|round| speed(round).rate) * frame_bytes / f64::from(1 << 20)
    }
}

impl Limit {
    /// The smallest of the ratios of all sizes.
    pub fn worst_ratio(&self) -> f64 {
        self.points.iter().map(Point::ratio).fold(f64::INFINITY, f64::min)
    }
}

/// Runs all rounds; `stop` ends it early. `progress` gets a line for each size of batch.
///
/// # Errors
/// If the disk refuses something, or `stop` was set. What was written is removed in any case.
pub fn limit(plan: &LimitPlan, stop: &AtomicBool, mut progress: impl FnMut(String)) -> Result<Limit, LimitError> {
    let mut points = Vec::new();
    for batch in plan.batches.iter().copied() {
        let mut load = Load::new(plan, batch);
        let mut rounds = Vec::new();
        // The first round is not counted: memory that the machine gives for the first time is slow, and not the disk's doing.
        for round in 0..=plan.rounds {
            // Who goes first changes: a disk that tires would otherwise favour one.
            let (journal, bare) = if round % 2 == 0 {
                let journal = load.turn(Way::open_journal, stop)?;
                (journal, load.turn(Way::open_bare, stop)?)
            } else {
                let bare = load.turn(Way::open_bare, stop)?;
                (load.turn(Way::open_journal, stop)?, bare)
            };
            if round > 0 {
                rounds.push(Round { journal, bare });
            }
        }
        let point = Point { batch, batch_bytes: load.frames(Index(1)).iter().map(Frame::len).sum(), rounds };
        progress(format!(
            "batches of {batch}: journal {:.0} MiB/s, bare {:.0} MiB/s, ratio {:.2}",
            point.throughput(|round| round.journal),
            point.throughput(|round| round.bare),
            point.ratio()
        ));
        points.push(point);
    }
    Ok(Limit { message_bytes: plan.message_bytes, points })
}

/// One of the two ways to the disk.
enum Way {
    Journal(Box<Journal>),
    Bare {
        file: File,
        /// The frames of a batch, one behind the other.
        buffer: Vec<u8>,
    },
}

impl Way {
    fn open_journal(dir: &Path) -> Result<Self, LimitError> {
        let storage = Arc::new(DirStorage::open(&dir.join("journal"))?);
        let (journal, _) = Journal::open(storage, Options::default(), StoreId(1), &mut |_| Ok(()))?;
        Ok(Self::Journal(Box::new(journal)))
    }

    fn open_bare(dir: &Path) -> Result<Self, LimitError> {
        let file = OpenOptions::new().append(true).create_new(true).open(dir.join("bare"))?;
        Ok(Self::Bare { file, buffer: Vec::new() })
    }

    /// Writes and syncs a batch and says how long the disk took for it.
    fn write(&mut self, frames: &[Frame]) -> Result<Duration, LimitError> {
        let begun;
        match self {
            Self::Journal(journal) => {
                begun = Instant::now();
                journal.append(frames)?;
                journal.sync()?;
            }
            Self::Bare { file, buffer } => {
                buffer.clear();
                frames.iter().flat_map(Frame::pieces).for_each(|piece| buffer.extend_from_slice(piece));
                begun = Instant::now();
                file.write_all(buffer)?;
                file.sync_data()?;
            }
        }
        Ok(begun.elapsed())
    }
}

/// What is written: batches of one size.
struct Load<'a> {
    plan: &'a LimitPlan,
    /// One for each message of a batch: in a broker no two share their memory, and a cache would make them cheap.
    bodies: Vec<Bytes>,
    arena: BytesMut,
}

impl<'a> Load<'a> {
    fn new(plan: &'a LimitPlan, batch: usize) -> Self {
        let mut bodies = Bytes::from(vec![b'.'; plan.message_bytes * batch]);
        let bodies = (0..batch).map(|_| bodies.split_to(plan.message_bytes)).collect();
        Self { plan, bodies, arena: BytesMut::with_capacity(1 << 20) }
    }

    /// A batch, counted from `first`.
    fn frames(&mut self, first: Index) -> Vec<Frame> {
        let arena = &mut self.arena;
        let frame = |(index, body): (u64, &Bytes)| {
            let message = Message {
                exchange: ShortStr::EMPTY,
                routing_key: ShortStr::from_static("orders"),
                properties: Bytes::new(),
                persistent: true,
                parts: None,
                body: body.clone().into(),
            };
            let record = Record::Publish { targets: vec![QueueId(Index(1))], message };
            Frame::record(Position::new(Epoch(1), Index(index)), Index(index - 1), &record, arena)
        };
        (first.0..).zip(&self.bodies).map(frame).collect()
    }

    /// One turn of one way, on files of its own.
    fn turn(&mut self, open: fn(&Path) -> Result<Way, LimitError>, stop: &AtomicBool) -> Result<Speed, LimitError> {
        let dir = tempfile::Builder::new().prefix("understudy-bench-limit-").tempdir_in(&self.plan.dir)?;
        let mut way = open(dir.path())?;
        // Untimed: a new file's first batch pays for its beginning.
        let mut frames = self.frames(Index(1));
        way.write(&frames)?;
        let (mut making, mut writing, mut written, mut batches) = (Duration::ZERO, Duration::ZERO, 0, 0);
        let mut latencies = Latencies::default();
        let begun = Instant::now();
        while batches == 0 || begun.elapsed() < self.plan.turn && written < MAX_TURN_BYTES {
            if stop.load(Ordering::Relaxed) {
                return Err(LimitError::Interrupted);
            }
            let making_since = Instant::now();
            batches += 1;
            frames = self.frames(Index(1 + (batches * self.bodies.len()) as u64));
            making += making_since.elapsed();
            let took = way.write(&frames)?;
            latencies.record(took);
            writing += took;
            written += frames.iter().map(Frame::len).sum::<usize>();
        }
        let messages = (batches * self.bodies.len()) as f64;
        let latencies = latencies.summary();
        Ok(Speed {
            rate: messages / writing.as_secs_f64(),
            rate_with_making: messages / (writing + making).as_secs_f64(),
            batch_p50_ms: latencies.p50_ms,
            batch_p99_ms: latencies.p99_ms,
        })
    }
}

#[cfg(test)]
pub(crate) fn example() -> Limit {
    let speed = |rate: f64| Speed { rate, rate_with_making: rate * 0.9, batch_p50_ms: 1.0, batch_p99_ms: 2.0 };
    let point = |(batch, journal, bare)| Point {
        batch,
        batch_bytes: batch * 1048,
        rounds: vec![Round { journal: speed(journal), bare: speed(bare) }],
    };
    let figures =
        [(1, 900.0, 1000.0), (16, 14_000.0, 16_000.0), (256, 100_000.0, 120_000.0), (4096, 350_000.0, 500_000.0)];
    Limit { message_bytes: 1024, points: figures.into_iter().map(point).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measures_both_and_leaves_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        let plan = LimitPlan {
            dir: dir.path().to_owned(),
            message_bytes: 100,
            batches: vec![1, 8],
            rounds: 2,
            turn: Duration::from_millis(20),
        };
        let measured = limit(&plan, &AtomicBool::new(false), |_| {}).unwrap();
        assert_eq!(measured.points.iter().map(|point| point.batch).collect::<Vec<_>>(), [1, 8]);
        for point in &measured.points {
            assert!(point.batch_bytes > point.batch * 100);
            assert_eq!(point.rounds.len(), 2);
            assert!(point.rounds.iter().all(|round| round.journal.rate > 0.0 && round.bare.rate > 0.0));
            assert!(point.rounds.iter().all(|round| round.journal.rate_with_making < round.journal.rate));
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn can_be_stopped() {
        let dir = tempfile::tempdir().unwrap();
        let plan = LimitPlan {
            dir: dir.path().to_owned(),
            message_bytes: 100,
            batches: vec![1],
            rounds: 1,
            turn: Duration::from_secs(3600),
        };
        assert!(matches!(limit(&plan, &AtomicBool::new(true), |_| {}), Err(LimitError::Interrupted)));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn the_worst_ratio_is_that_of_one_size() {
        assert!((example().worst_ratio() - 0.7).abs() < 1e-9);
    }
}
