//! Which segments go, which stay as they are, and which are rewritten: the plan of a checkpoint's other half. It reads and
//! writes nothing.

use understudy_record::Index;

use crate::segment::SegmentId;

/// What holds messages now, with its range of indexes; sources' ranges ascend and do not overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Source {
    /// `None`: the pieces of a base, scattered over the log's segments.
    pub(crate) id: Option<SegmentId>,
    pub(crate) first: Index,
    pub(crate) last: Index,
    pub(crate) len: u64,
    /// What `live_bytes` would be if all of it lived, as far as that is known.
    pub(crate) weight: u64,
    /// It cannot stay as it is.
    pub(crate) must_move: bool,
    pub(crate) live_messages: u64,
    /// What they take in it, about.
    pub(crate) live_bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Stays, and holds the messages of `first..=last`.
    Keep(Source),
    /// The live messages of this range are copied to new kept segments.
    Rewrite { first: Index, last: Index },
}

pub(crate) fn plan(sources: &[Source], segment_bytes: u64) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut run: Vec<(Source, Fate)> = Vec::new();
    for source in sources {
        let fate = fate(source, segment_bytes);
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

/// Nothing is copied but what cannot stay: what holds no live message goes, all else is as it was.
pub(crate) fn plan_without_room(sources: &[Source]) -> Vec<Step> {
    let alive = sources.iter().filter(|source| source.live_messages > 0);
    let step = |source: &Source| match source.must_move {
        true => Step::Rewrite { first: source.first, last: source.last },
        false => Step::Keep(*source),
    };
    alive.map(step).collect()
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

fn fate(source: &Source, segment_bytes: u64) -> Fate {
    match () {
        () if source.live_messages == 0 => Fate::Dead,
        () if source.must_move || source.live_bytes < source.weight / 2 => Fate::Move,
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
        let (first, last) = (Index(first), Index(last));
        Source { id, first, last, len, weight: len, must_move: false, live_messages: 0, live_bytes: 0 }
    }

    /// Every message of the ranges lives and is of 1000 bytes.
    fn alive(sources: &[Source], ranges: &[(u64, u64)]) -> Vec<Source> {
        let alive = |source: &Source| {
            let within = |index: &u64| (source.first.0..=source.last.0).contains(index);
            let live_messages = ranges.iter().flat_map(|&(first, last)| first..=last).filter(within).count() as u64;
            Source { live_messages, live_bytes: live_messages * 1000, ..*source }
        };
        sources.iter().map(alive).collect()
    }

    /// `Ok`: the source of this number stays; `Err`: this range is rewritten.
    fn check(sources: &[Source], ranges: &[(u64, u64)], expected: &[Result<usize, (u64, u64)>]) {
        let sources = alive(sources, ranges);
        let expected: Vec<Step> = expected
            .iter()
            .map(|step| match step {
                Ok(number) => Step::Keep(sources[*number]),
                Err((first, last)) => Step::Rewrite { first: Index(*first), last: Index(*last) },
            })
            .collect();
        assert_eq!(plan(&sources, SEGMENT), expected, "live: {ranges:?}");
    }

    #[test]
    fn dead_segments_go_live_ones_stay_and_the_rest_is_gathered() {
        let all = [source(0, 1, 60, SEGMENT), source(1, 61, 120, SEGMENT), source(2, 121, 180, SEGMENT)];
        check(&all, &[], &[]);
        check(&all, &[(1, 180)], &[Ok(0), Ok(1), Ok(2)]);
        check(&all, &[(7, 7)], &[Err((1, 60))]);
        check(&all, &[(7, 7), (170, 171)], &[Err((1, 180))]);
        check(&all, &[(7, 7), (61, 120), (170, 171)], &[Err((1, 60)), Ok(1), Err((121, 180))]);
        check(&all, &[(61, 100), (121, 122)], &[Ok(1), Err((121, 180))]);
    }

    #[test]
    fn small_ones_wait_for_a_neighbour() {
        let small = [source(0, 1, 5, 6000), source(1, 61, 120, SEGMENT)];
        check(&small, &[(1, 5)], &[Ok(0)]);
        check(&small, &[(1, 5), (61, 61)], &[Err((1, 120))]);
        check(&small, &[(1, 5), (61, 120)], &[Ok(0), Ok(1)]);
        let two = [source(0, 1, 5, 6000), source(1, 61, 65, 6000)];
        check(&two, &[(1, 5), (61, 65)], &[Err((1, 65))]);
    }

    #[test]
    fn without_room_only_what_is_dead_goes() {
        let all = alive(
            &[source(0, 1, 60, SEGMENT), source(1, 61, 120, SEGMENT), source(2, 121, 180, SEGMENT)],
            &[(7, 7), (121, 180)],
        );
        assert_eq!(plan_without_room(&all), [Step::Keep(all[0]), Step::Keep(all[2])]);
        let base = Source { must_move: true, ..all[0] };
        assert_eq!(plan_without_room(&[base]), [Step::Rewrite { first: Index(1), last: Index(60) }]);
    }

    #[test]
    fn what_must_move_moves() {
        let base = Source { id: None, must_move: true, ..source(0, 1, 60, SEGMENT) };
        check(&[base], &[(1, 60)], &[Err((1, 60))]);
        check(&[base], &[], &[]);
    }
}
