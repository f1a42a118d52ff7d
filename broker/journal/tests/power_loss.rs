//! Power fails at every write, sync, creation, renaming, removal and cut of a workload, and again during each recovery.
//! What was reported durable must be there; what was cut must be gone; nothing may be there that was never written.

mod story;

use story::*;
use understudy_journal::sim::{Faults, SimStorage};
use understudy_journal::{Journal, JournalError};
use understudy_record::{Epoch, Frame, Index, Position};

/// Disks per point of failure, each of which forgets something else.
const SEEDS: u64 = 12;

enum Step {
    Append(Vec<Frame>),
    Sync,
    Truncate(u64),
    Epoch(u64),
    BeginBase,
    AbandonBase,
    CompleteBase,
}

/// A log that may be there after a crash: `frames`, of which the first `kept` must be.
#[derive(Clone, Default)]
struct Log {
    frames: Vec<Frame>,
    kept: usize,
}

/// What the journal has promised so far.
#[derive(Default)]
struct Promises {
    current: Log,
    /// The log a base replaces, while it is in progress.
    aside: Option<Log>,
    /// The log that may be there instead of the one in force, while a call is under way.
    either: Option<Log>,
    /// The highest epoch that was persisted, and that was tried.
    epoch: (u64, u64),
}

impl Promises {
    fn before(&mut self, step: &Step) {
        match step {
            Step::Append(frames) => {
                self.current.frames.extend(frames.iter().cloned());
                let highest = frames.iter().map(|frame| frame.position.epoch.0).max().unwrap_or(0);
                self.epoch.1 = self.epoch.1.max(highest);
            }
            Step::Truncate(index) => self.current.kept = self.current.kept.min(self.len_of(*index)),
            Step::Epoch(epoch) => self.epoch.1 = self.epoch.1.max(*epoch),
            Step::CompleteBase => self.either = Some(Log { kept: self.current.frames.len(), ..self.current.clone() }),
            Step::Sync | Step::BeginBase | Step::AbandonBase => {}
        }
    }

    fn after(&mut self, step: &Step) {
        match step {
            // A higher epoch is persisted before its record is written.
            Step::Append(frames) => {
                let highest = frames.iter().map(|frame| frame.position.epoch.0).max().unwrap_or(0);
                self.epoch.0 = self.epoch.0.max(highest);
            }
            Step::Sync => self.current.kept = self.current.frames.len(),
            Step::Truncate(index) => {
                let len = self.len_of(*index);
                self.current.frames.truncate(len);
                self.current.kept = len;
            }
            Step::Epoch(epoch) => self.epoch.0 = self.epoch.0.max(*epoch),
            Step::BeginBase => {
                self.current.kept = self.current.frames.len();
                self.aside = Some(std::mem::take(&mut self.current));
            }
            Step::AbandonBase => self.current = self.aside.take().expect("a base was begun"),
            Step::CompleteBase => {
                self.current.kept = self.current.frames.len();
                (self.aside, self.either) = (None, None);
            }
        }
    }

    /// How many frames a log that ends with record `index` has.
    fn len_of(&self, index: u64) -> usize {
        let later =
            |frame: &Frame| frame.kind == understudy_record::FrameKind::Record && frame.position.index.0 > index;
        self.current.frames.iter().position(later).unwrap_or(self.current.frames.len())
    }

    #[track_caller]
    fn check(&self, found: &Found, at: &str) {
        let in_force = self.aside.as_ref().unwrap_or(&self.current);
        let kept = |log: &Log| log.frames.starts_with(&found.frames) && found.frames.len() >= log.kept;
        assert!(
            kept(in_force) || self.either.as_ref().is_some_and(kept),
            "{at}: found {}, of {} at least {} were promised",
            positions(&found.frames),
            positions(&in_force.frames),
            in_force.kept
        );
        let epoch = found.recovery.known_epoch.0;
        assert!((self.epoch.0..=self.epoch.1).contains(&epoch), "{at}: epoch {epoch}, of {:?}", self.epoch);
        assert_eq!(found.recovery.store, STORE, "{at}");
    }
}

fn workload() -> Vec<Step> {
    let sync_point = position(4, 40);
    vec![
        Step::Append(records(1, 1..=3)),
        Step::Sync,
        Step::Append(records(1, 4..=9)),
        Step::Append(records(1, 10..=11)),
        Step::Sync,
        Step::Epoch(2),
        Step::Append(records(2, 12..=16)),
        Step::Sync,
        Step::Truncate(6),
        Step::Append(records(3, 7..=12)),
        Step::Truncate(11),
        Step::Append(records(3, [12])),
        Step::Sync,
        Step::BeginBase,
        Step::Append(vec![base_start(sync_point), record(4, 41), base_message(sync_point, 30)]),
        Step::Sync,
        Step::AbandonBase,
        Step::Append(records(3, 13..=14)),
        Step::Sync,
        Step::BeginBase,
        Step::Append(vec![base_start(sync_point), record(4, 41), base_message(sync_point, 30), record(4, 42)]),
        Step::Sync,
        Step::Append((20..29).map(|index| base_message(sync_point, index)).collect()),
        Step::Append(vec![record(4, 43), base_end(sync_point, 42), record(4, 44)]),
        Step::CompleteBase,
        Step::Append(records(5, 45..=49)),
        Step::Sync,
        Step::Truncate(43),
        Step::Append(records(6, 44..=46)),
        Step::Sync,
    ]
}

fn carry_out(journal: &mut Journal, step: &Step) -> Result<(), JournalError> {
    match step {
        Step::Append(frames) => journal.append(frames),
        Step::Sync => journal.sync().map(|_| ()),
        Step::Truncate(index) => journal.truncate_after(Index(*index)),
        Step::Epoch(epoch) => journal.persist_epoch(Epoch(*epoch)),
        Step::BeginBase => journal.begin_base(),
        Step::AbandonBase => journal.abandon_base(),
        Step::CompleteBase => journal.complete_base().map(|_| ()),
    }
}

/// Runs the workload until power fails; `None` if it did not.
fn run(storage: &SimStorage) -> (Promises, bool) {
    let mut promises = Promises::default();
    let Ok(mut found) = try_open(storage.clone()) else {
        assert!(storage.is_dead(), "opening failed with the power on");
        return (promises, false);
    };
    for step in workload() {
        promises.before(&step);
        match carry_out(&mut found.journal, &step) {
            Ok(()) => promises.after(&step),
            Err(error) => {
                assert!(storage.is_dead(), "with the power on: {error}");
                assert_eq!(carry_out(&mut found.journal, &Step::Sync), Err(error), "a failed journal stays failed");
                return (promises, false);
            }
        }
        if storage.is_dead() {
            return (promises, false); // a mark after a successful sync was lost
        }
    }
    (promises, true)
}

/// The next record of a log that ends at `last`, from a new primary.
fn follow_up(last: Position) -> Frame {
    record(9, last.index.next().0)
}

#[test]
fn what_was_durable_is_there_whenever_power_fails() {
    let (mut points, mut crashes, mut torn) = (0, 0_u32, 0_u32);
    for point in 0.. {
        let mut whole = false;
        for seed in 0..SEEDS {
            let storage = SimStorage::new();
            storage.set_faults(Faults { power_loss_at: Some(point), ..Faults::default() });
            let (promises, done) = run(&storage);
            whole = done;
            storage.crash(seed);
            crashes += 1;
            let at = format!("power loss at change {point}, seed {seed}");
            crashes += recover_with_failures(&storage, &promises, seed, &at);

            let mut found = open(storage.clone());
            promises.check(&found, &at);
            torn += u32::from(found.recovery.cut.is_some());
            // It goes on from there, and what opening found is durable by now.
            let next = follow_up(found.recovery.last);
            found.journal.append(std::slice::from_ref(&next)).unwrap();
            let mut expected = found.frames;
            if seed % 2 == 0 {
                found.journal.sync().unwrap();
                expected.push(next.clone());
            }
            storage.crash(seed + 1);
            let again = open(storage.clone());
            let without_unsynced = again.frames.strip_suffix(&[next]).unwrap_or(&again.frames);
            let promised = expected.strip_suffix(&[follow_up(found.recovery.last)]).unwrap_or(&expected);
            assert_eq!(positions(without_unsynced), positions(promised), "{at}, second crash");
            assert!(again.frames.len() >= expected.len(), "{at}, second crash: the synced record is gone");
        }
        points = point;
        if whole {
            break;
        }
    }
    println!("{points} points of failure, {crashes} crashes, {torn} torn tails cut");
    assert!(points > 80 && torn > 100, "the workload met {points} points of failure and {torn} torn tails");
}

/// Lets power fail at each change that opening makes, on copies of the disk; returns how many.
fn recover_with_failures(storage: &SimStorage, promises: &Promises, seed: u64, at: &str) -> u32 {
    for point in 0.. {
        let copy = storage.fork();
        copy.set_faults(Faults { power_loss_at: Some(point), ..Faults::default() });
        let opened = try_open(copy.clone()).is_ok() && !copy.is_dead();
        copy.crash(seed ^ point);
        promises.check(&open(copy), &format!("{at}, again at change {point} of recovery"));
        if opened {
            return u32::try_from(point).expect("few changes") + 1;
        }
    }
    unreachable!("opening ends")
}

#[test]
fn the_same_seed_tells_the_same_story() {
    let story = |seed| {
        let storage = SimStorage::new();
        storage.set_faults(Faults { power_loss_at: Some(60), ..Faults::default() });
        run(&storage);
        storage.crash(seed);
        segments(&storage).iter().map(|name| storage.read(name).unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(story(7), story(7));
    assert!((0..20).any(|seed| story(seed) != story(7)), "the seed has no effect");
}
