//! Which segments go, which stay as they are, and which are rewritten: the plan of a checkpoint's other half. It reads and
//! writes nothing.

use understudy_record::{FRAME_HEADER_BYTES, Index};

use crate::segment::SegmentId;

/// What a message takes in a segment beside body and properties, in bytes, about: header, names, targets.
const OVERHEAD_BYTES: u64 = FRAME_HEADER_BYTES as u64 + 48;

/// What holds messages now, with its range of indexes; sources' ranges ascend and do not overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Source {
    /// `None`: the pieces of a base, scattered over the log's segments.
    pub(crate) id: Option<SegmentId>,
    pub(crate) first: Index,
    pub(crate) last: Index,
    pub(crate) len: u64,
    /// It cannot stay as it is.
    pub(crate) must_move: bool,
}

/// A message that is still in a queue, and its body's and properties' bytes.
pub(crate) type Live = (Index, u32);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Stays, and holds the messages of `first..=last`.
    Keep(Source),
    /// The live messages of this range are copied to new kept segments.
    Rewrite { first: Index, last: Index },
}

/// `live` ascends, each index once.
pub(crate) fn plan(sources: &[Source], live: &[Live], segment_bytes: u64) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut run: Vec<(Source, Fate)> = Vec::new();
    for source in sources {
        let fate = fate(source, live, segment_bytes);
        if fate == Fate::Stay {
            flush(&mut run, &mut steps);
            steps.push(Step::Keep(*source));
        } else {
            run.push((*source, fate));
        }
    }
    flush(&mut run, &mut steps);
    steps
}

/// The messages of `live` in this range.
pub(crate) fn within(live: &[Live], first: Index, last: Index) -> &[Live] {
    let from = live.partition_point(|(index, _)| *index < first);
    let to = live.partition_point(|(index, _)| *index <= last);
    live.get(from..to).unwrap_or_default()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Stay,
    /// Worth merging with a neighbour, not by itself.
    Small,
    Move,
    /// Nothing in it lives.
    Dead,
}

fn fate(source: &Source, live: &[Live], segment_bytes: u64) -> Fate {
    let live = within(live, source.first, source.last);
    let bytes: u64 = live.iter().map(|(_, bytes)| u64::from(*bytes) + OVERHEAD_BYTES).sum();
    match () {
        () if live.is_empty() => Fate::Dead,
        () if source.must_move || bytes < source.len / 2 => Fate::Move,
        () if source.len < segment_bytes / 4 => Fate::Small,
        () => Fate::Stay,
    }
}

/// Neighbours that move become one range.
fn flush(run: &mut Vec<(Source, Fate)>, steps: &mut Vec<Step>) {
    let run = std::mem::take(run);
    let alive: Vec<_> = run.iter().filter(|(_, fate)| *fate != Fate::Dead).collect();
    match alive.as_slice() {
        [] => {}
        [(source, Fate::Small)] => steps.push(Step::Keep(*source)),
        [(first, _), ..] => {
            let last = alive.last().map_or(first.last, |(source, _)| source.last);
            steps.push(Step::Rewrite { first: first.first, last });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGMENT: u64 = 64_000;

    fn source(sequence: u32, first: u64, last: u64, len: u64) -> Source {
        let id = Some(SegmentId::log(0, sequence));
        Source { id, first: Index(first), last: Index(last), len, must_move: false }
    }

    /// Every message of the range lives and is of 1000 bytes.
    fn live(ranges: &[(u64, u64)]) -> Vec<Live> {
        ranges.iter().flat_map(|&(first, last)| first..=last).map(|index| (Index(index), 1000)).collect()
    }

    fn check(sources: &[Source], ranges: &[(u64, u64)], expected: &[Step]) {
        assert_eq!(plan(sources, &live(ranges), SEGMENT), expected, "live: {ranges:?}");
    }

    fn rewrite(first: u64, last: u64) -> Step {
        Step::Rewrite { first: Index(first), last: Index(last) }
    }

    #[test]
    fn dead_segments_go_live_ones_stay_and_the_rest_is_gathered() {
        let all = [source(0, 1, 60, SEGMENT), source(1, 61, 120, SEGMENT), source(2, 121, 180, SEGMENT)];
        check(&all, &[], &[]);
        check(&all, &[(1, 180)], &all.map(Step::Keep));
        check(&all, &[(7, 7)], &[rewrite(1, 60)]);
        check(&all, &[(7, 7), (170, 171)], &[rewrite(1, 180)]);
        check(&all, &[(7, 7), (61, 120), (170, 171)], &[rewrite(1, 60), Step::Keep(all[1]), rewrite(121, 180)]);
        check(&all, &[(61, 100), (121, 122)], &[Step::Keep(all[1]), rewrite(121, 180)]);
    }

    #[test]
    fn small_ones_wait_for_a_neighbour() {
        let small = [source(0, 1, 5, 6000), source(1, 61, 120, SEGMENT)];
        check(&small, &[(1, 5)], &[Step::Keep(small[0])]);
        check(&small, &[(1, 5), (61, 61)], &[rewrite(1, 120)]);
        check(&small, &[(1, 5), (61, 120)], &small.map(Step::Keep));
        let two = [source(0, 1, 5, 6000), source(1, 61, 65, 6000)];
        check(&two, &[(1, 5), (61, 65)], &[rewrite(1, 65)]);
    }

    #[test]
    fn what_must_move_moves() {
        let base = Source { id: None, must_move: true, ..source(0, 1, 60, SEGMENT) };
        check(&[base], &[(1, 60)], &[rewrite(1, 60)]);
        check(&[base], &[], &[]);
    }
}
