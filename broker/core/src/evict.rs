//! Which messages leave memory when there are too many: those that nobody will ask for soon. First what is handed out and
//! unacknowledged, then each queue's tail, from the end toward the head; only when all queues are down to their heads the
//! heads too, those that nobody consumes first.
//!
//! Queues take turns, and only those that have something in memory are looked at. What may leave at all, because the log
//! has it, is told by the caller; so is the budget. What has left is read back by `load`.

use std::collections::BTreeSet;
use std::ops::Bound::{Excluded, Unbounded};

use understudy_record::{Index, QueueId};

use crate::ahead::Reach;
use crate::core::Core;
use crate::entry::Entry;
use crate::lane::Lane;
use crate::queue::Queue;
use crate::state::State;
use crate::tally::Tally;
use crate::{EVICTIONS_PER_TURN, MAX_EVICTIONS_PER_STEP};

/// Where a queue stands among those that have something in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Listed {
    No,
    At(Level),
    /// What it has in memory is not in the log yet, from this message on; the rest has left.
    Unwritten(Index),
}

/// In the order in which memory is freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    /// More than its head may be in memory.
    Body,
    /// Only its head is.
    Head,
    /// Only its head is, and it has consumers.
    ConsumedHead,
}

const LEVELS: [Level; 3] = [Level::Body, Level::Head, Level::ConsumedHead];

/// Queues that have something in memory. A queue that has nothing may be here until its next turn.
#[derive(Debug, Default)]
pub(crate) struct Evictable {
    levels: [BTreeSet<QueueId>; 3],
    unwritten: BTreeSet<(Index, QueueId)>,
    /// Whose turn was the last.
    last: Option<QueueId>,
}

impl Evictable {
    fn insert(&mut self, queue: &mut Queue, listed: Listed) {
        self.remove(queue);
        match listed {
            Listed::No => {}
            Listed::At(level) => _ = self.levels[level as usize].insert(queue.id),
            Listed::Unwritten(index) => _ = self.unwritten.insert((index, queue.id)),
        }
        queue.listed = listed;
    }

    pub(crate) fn remove(&mut self, queue: &mut Queue) {
        match std::mem::replace(&mut queue.listed, Listed::No) {
            Listed::No => {}
            Listed::At(level) => _ = self.levels[level as usize].remove(&queue.id),
            Listed::Unwritten(index) => _ = self.unwritten.remove(&(index, queue.id)),
        }
    }

    /// Something of the queue is in memory, or less needed than before.
    pub(crate) fn note(&mut self, queue: &mut Queue) {
        match queue.listed {
            Listed::At(Level::Body) | Listed::Unwritten(_) => {}
            _ if queue.resident() == 0 => {}
            _ => self.insert(queue, Listed::At(Level::Body)),
        }
    }

    pub(crate) fn assert_consistent<'a>(&self, queues: impl Iterator<Item = &'a Queue>) {
        let mut listed = 0;
        for queue in queues {
            let found = match queue.listed {
                Listed::No => continue,
                Listed::At(level) => self.levels[level as usize].contains(&queue.id),
                Listed::Unwritten(index) => self.unwritten.contains(&(index, queue.id)),
            };
            assert!(found, "queue {} is {:?}, and is not there", queue.id, queue.listed);
            listed += 1;
        }
        let total = self.levels.iter().map(BTreeSet::len).sum::<usize>() + self.unwritten.len();
        assert_eq!(listed, total, "queues with something in memory");
    }

    fn next_in_turn(&self, level: Level) -> Option<QueueId> {
        let queues = &self.levels[level as usize];
        let after = self.last.and_then(|last| queues.range((Excluded(last), Unbounded)).next());
        after.or_else(|| queues.first()).copied()
    }
}

/// One queue's turn.
struct Sweep<'a> {
    tally: &'a mut Tally,
    /// What is above is not in the log yet.
    stored: u64,
    budget: u64,
    /// Messages that may still be looked at.
    work: usize,
}

impl Sweep<'_> {
    /// Another message may be looked at, and should be.
    fn goes_on(&self) -> bool {
        self.work > 0 && self.tally.resident_bytes() > self.budget
    }

    /// `true` if it was in memory.
    fn let_go(&mut self, key: u64, entry: &mut Entry) -> bool {
        let freed = entry.let_go();
        if freed {
            self.tally.let_go(Index(key), entry.memory_bytes());
        }
        freed
    }
}

impl Core {
    /// Lets messages with indexes up to `stored`, which the own log holds, leave memory until [`Self::resident_bytes`] is
    /// down to `budget` bytes or this step has done its share of work. `true` if more could leave at once: call again.
    ///
    /// A queue's head stays while anything else can go. The next message of a queue that has consumers stays always.
    pub fn evict(&mut self, stored: Index, budget: u64) -> bool {
        self.state.evict(stored, budget)
    }

    /// Bodies and properties of the messages in memory, in bytes, each message once; costs nothing to ask. What is on its
    /// way to clients is not in it, nor what a message takes besides.
    pub fn resident_bytes(&self) -> u64 {
        self.state.tally.resident_bytes()
    }

    /// Messages in memory, each once; costs nothing to ask.
    pub fn resident_messages(&self) -> u64 {
        self.state.tally.resident_messages()
    }
}

impl State {
    fn evict(&mut self, stored: Index, budget: u64) -> bool {
        if self.tally.resident_bytes() <= budget {
            return false;
        }
        while let Some((_, queue)) = self.evictable.unwritten.first().filter(|(index, _)| *index <= stored).copied() {
            let Some(queue) = self.queues.get_mut(&queue) else { break };
            self.evictable.insert(queue, Listed::At(Level::Body));
        }
        let mut work = MAX_EVICTIONS_PER_STEP;
        for level in LEVELS {
            while work > 0 && self.tally.resident_bytes() > budget {
                let Some(id) = self.evictable.next_in_turn(level) else { break };
                self.evictable.last = Some(id);
                let Some(queue) = self.queues.get_mut(&id) else { break };
                let share = EVICTIONS_PER_TURN.min(work);
                let mut sweep = Sweep { tally: &mut self.tally, stored: stored.0, budget, work: share };
                let next = queue.evict(level, &mut sweep);
                // A queue that has nothing costs a look too.
                work -= (share - sweep.work).max(1);
                if let Some(listed) = next {
                    self.evictable.insert(queue, listed);
                }
            }
        }
        work == 0 && self.tally.resident_bytes() > budget
    }
}

impl Queue {
    /// Where the queue stands once nothing is left on this level; `None`: something may be.
    fn evict(&mut self, level: Level, sweep: &mut Sweep<'_>) -> Option<Listed> {
        let consumed = !self.session.consumers.is_empty();
        let reach = self.reach;
        // What is handed out last goes first.
        let done = match level {
            Level::Body => self.lanes_mut().rev().all(|lane| lane.evict_body(reach, sweep)),
            Level::Head if consumed => true,
            Level::Head | Level::ConsumedHead => {
                let next = self.peek().filter(|_| consumed).map(|(index, _)| index.0);
                let before = self.resident();
                let done = self.lanes_mut().rev().all(|lane| lane.evict_head(next, sweep));
                if self.resident() < before {
                    self.reach.fall_back();
                }
                done
            }
        };
        if !done {
            return None;
        }
        Some(match level {
            _ if self.resident() == 0 => Listed::No,
            Level::Body => Listed::At(Level::Head),
            Level::Head if consumed => Listed::At(Level::ConsumedHead),
            Level::Head | Level::ConsumedHead => {
                let unwritten = self.lanes_mut().filter_map(|lane| lane.first_resident_above(sweep.stored)).min();
                unwritten.map_or(Listed::No, Listed::Unwritten)
            }
        })
    }
}

impl Lane {
    /// `false`: there may be more to free on this level.
    fn evict_body(&mut self, reach: Reach, sweep: &mut Sweep<'_>) -> bool {
        let passed = if self.sees_enough_ahead(reach) { 0 } else { self.look_ahead(reach, Index(u64::MAX), None) };
        sweep.work = sweep.work.saturating_sub(passed);
        self.evict_handed_out(sweep)
            && self.evict_down(u64::MAX, self.ahead.to.max(self.cursor), None, sweep)
            && self.evict_down(self.cursor, self.returned_ahead.to, None, sweep)
    }

    /// The same. `next` is spared.
    fn evict_head(&mut self, next: Option<u64>, sweep: &mut Sweep<'_>) -> bool {
        self.forget_ahead();
        self.evict_down(u64::MAX, 0, next, sweep)
    }

    /// Frees what is handed out and unacknowledged. `false`: there may be more of it.
    fn evict_handed_out(&mut self, sweep: &mut Sweep<'_>) -> bool {
        let limit = self.cursor.min(sweep.stored);
        while let Some((start, end)) = self.runs.up_from(self.handed_out_from) {
            let (from, to) = (start.max(self.handed_out_from), end.min(limit));
            if from > to {
                break;
            }
            // Stretches without a returned message between: nothing is in memory there any more.
            let (mut freed, mut stretch) = (Vec::new(), (from, from));
            let mut end = to + 1;
            for (key, entry) in self.entries.range_mut(from, to) {
                if !sweep.goes_on() {
                    end = key;
                    break;
                }
                sweep.work -= 1;
                if !self.returned.is_empty() && self.returned.contains(&key) {
                    freed.push((stretch.0, key));
                    stretch.0 = key + 1;
                } else if sweep.let_go(key, entry) {
                    self.resident -= 1;
                }
            }
            stretch.1 = end;
            freed.push(stretch);
            freed.into_iter().filter(|(from, end)| from < end).for_each(|(from, end)| self.runs.remove(from, end - 1));
            self.handed_out_from = end;
            if end <= to {
                return false;
            }
        }
        true
    }

    /// Frees everything up to `from` and above `floor`, but `spared`, from the end. `false`: there may be more of it.
    fn evict_down(&mut self, from: u64, floor: u64, spared: Option<u64>, sweep: &mut Sweep<'_>) -> bool {
        let mut from = from.min(sweep.stored);
        while let Some((start, end)) = self.runs.down_from(from).filter(|_| from > floor) {
            let (lowest, to) = (start.max(floor + 1), end.min(from));
            if lowest > to {
                break;
            }
            let mut down_to = lowest;
            for (key, entry) in self.entries.range_mut(lowest, to).rev() {
                if !sweep.goes_on() {
                    down_to = key + 1;
                    break;
                }
                sweep.work -= 1;
                if Some(key) != spared && sweep.let_go(key, entry) {
                    self.resident -= 1;
                }
            }
            self.runs.remove(down_to, to);
            if let Some(spared) = spared.filter(|spared| (down_to..=to).contains(spared)) {
                self.runs.add(spared, spared);
            }
            if down_to > lowest {
                return false;
            }
            from = lowest - 1;
        }
        true
    }

    fn first_resident_above(&mut self, stored: u64) -> Option<Index> {
        let mut from = stored.saturating_add(1);
        while let Some((start, end)) = self.runs.up_from(from) {
            let mut run = self.entries.range_mut(start.max(from), end);
            if let Some((key, _)) = run.find(|(_, entry)| entry.is_resident()) {
                return Some(Index(key));
            }
            from = end.checked_add(1)?;
        }
        None
    }

    pub(crate) fn assert_memory_consistent(&self) {
        let resident = || self.entries.iter().filter(|(_, entry)| entry.is_resident());
        assert_eq!(self.resident, resident().count(), "messages in memory");
        for (key, _) in resident() {
            let found = self.runs.down_from(key).is_some_and(|(_, end)| key <= end);
            assert!(found, "message {key} is in memory where none should be");
            let handed_out = !self.is_ready(Index(key));
            assert!(!handed_out || key >= self.handed_out_from, "message {key} was overlooked");
        }
    }
}
