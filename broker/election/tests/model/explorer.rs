//! Breadth first through every state that can be reached: the first violation found has a shortest story.

use std::collections::{HashSet, VecDeque};
use std::fmt::Write;
use std::hash::{BuildHasher, RandomState};

use crate::world::{Bounds, Rule, Step, World};

/// About two gigabytes; a run that passes this has bounds too wide to wait for.
const MAX_STATES: usize = 12_000_000;

pub(crate) struct Outcome {
    pub(crate) states: usize,
    pub(crate) violation: Option<Vec<Step>>,
}

impl Outcome {
    pub(crate) fn story(&self) -> String {
        let mut story = String::new();
        for step in self.violation.iter().flatten() {
            _ = writeln!(story, "  {step}");
        }
        story
    }
}

pub(crate) fn explore(bounds: Bounds, broken: Option<Rule>) -> Outcome {
    let mut world = World::new(bounds, broken);
    let hasher = RandomState::new();
    let start = world.start();
    let mut seen = HashSet::from([hasher.hash_one(start)]);
    // How each state was first reached: by which step, from which state.
    let mut reached: Vec<Option<(usize, Step)>> = vec![None];
    let mut queue = VecDeque::from([(0, start)]);
    let mut next = Vec::new();
    while let Some((from, state)) = queue.pop_front() {
        world.steps(&state, &mut next);
        for (step, state) in next.drain(..) {
            if !seen.insert(hasher.hash_one(state)) {
                continue;
            }
            assert!(seen.len() <= MAX_STATES, "more than {MAX_STATES} states: narrow the bounds {bounds:?}");
            reached.push(Some((from, step)));
            let id = reached.len() - 1;
            if world.violated(&state) {
                return Outcome { states: seen.len(), violation: Some(story_of(&reached, id)) };
            }
            queue.push_back((id, state));
        }
    }
    Outcome { states: seen.len(), violation: None }
}

fn story_of(reached: &[Option<(usize, Step)>], last: usize) -> Vec<Step> {
    let mut story = Vec::new();
    let mut at = last;
    while let Some((from, step)) = reached[at] {
        story.push(step);
        at = from;
    }
    story.reverse();
    story
}
