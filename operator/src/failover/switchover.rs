//! Moving the role on purpose: to the pod that a person names, or back to the preferred one. Pure; asked again whenever
//! something changes, and at the times it names.
//!
//! A person is answered once: the pod is the primary, or why it is not. The preferred one is patient: it is given the role only
//! after it has been in sync for a while, and never soon after another change, so that a flapping pod costs nobody anything.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use understudy_record::ReplicaName;

/// How long the preferred pod must have been in sync before it is handed the role.
const SETTLES_AFTER: Duration = Duration::from_secs(30);
/// Between any change of primary and a move to the preferred pod. Also from the operator's start, which knows of no change.
const BETWEEN_MOVES: Duration = Duration::from_secs(60);
/// A request is not answered before a failover that is under way has had its time, or the named pod its start.
const PATIENCE: Duration = Duration::from_secs(30);
/// A hand-over that came to nothing is tried again after a moment, at most so many times.
const MAX_ATTEMPTS: u32 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestKind {
    Switchover,
    /// The pod may lack confirmed messages: a person takes that.
    Force,
}

/// What an annotation asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) kind: RequestKind,
    pub(crate) to: ReplicaName,
}

/// The cluster, as far as it matters here.
#[derive(Clone, Debug)]
pub(crate) struct Picture {
    /// The spec's pods.
    pub(crate) pods: BTreeSet<ReplicaName>,
    /// The Lease's holder, whether it serves or not.
    pub(crate) holder: Option<ReplicaName>,
    /// The holder is heard and serves.
    pub(crate) serves: bool,
    /// Those that do their work in the set, the holder included.
    pub(crate) in_sync: BTreeSet<ReplicaName>,
    pub(crate) preferred: Option<ReplicaName>,
    /// Those that should not have the role, as long as another one can.
    pub(crate) leaving: BTreeMap<ReplicaName, Leaving>,
    /// Nothing else is under way: no roll, no problem, no hand-over.
    pub(crate) is_quiet: bool,
    /// A hand-over has been asked for, or has just failed.
    pub(crate) is_handing_over: bool,
}

/// Why a replica should not have the role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leaving {
    /// Its node takes no pods any more: it is about to be drained.
    NodeCordoned,
    /// A person keeps it out.
    Fenced,
    /// The spec does not have it any more.
    ScaledAway,
}

/// Why the role is handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    AskedFor,
    Preferred,
    Leaving(Leaving),
}

impl Why {
    /// For the metric.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::AskedFor => "requested",
            Self::Preferred => "preferred",
            Self::Leaving(Leaving::NodeCordoned) => "cordoned",
            Self::Leaving(Leaving::Fenced) => "fenced",
            Self::Leaving(Leaving::ScaledAway) => "scaled-down",
        }
    }

    /// For the status.
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Self::AskedFor => "Switchover",
            Self::Preferred => "PreferredPrimary",
            Self::Leaving(Leaving::NodeCordoned) => "NodeCordoned",
            Self::Leaving(Leaving::Fenced) => "Fenced",
            Self::Leaving(Leaving::ScaledAway) => "ScaledDown",
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AskedFor => "asked for by a person",
            Self::Preferred => "it is the preferred primary",
            Self::Leaving(Leaving::NodeCordoned) => "the old primary's node is cordoned",
            Self::Leaving(Leaving::Fenced) => "the old primary is fenced",
            Self::Leaving(Leaving::ScaledAway) => "the old primary is scaled away",
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Nothing,
    HandOver {
        from: ReplicaName,
        to: ReplicaName,
        why: Why,
    },
    /// The request is answered.
    Answer(Answer),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) request: Request,
    pub(crate) done: bool,
    pub(crate) message: String,
    /// From the first hand-over asked for until the new primary served.
    pub(crate) gap: Option<Duration>,
}

#[derive(Debug, Default)]
pub(crate) struct Switchover {
    request: Option<Request>,
    seen_at: Duration,
    /// The request was answered, and its annotation may still be there.
    is_answered: bool,
    attempts: u32,
    asked_at: Option<Duration>,
    /// How the last attempt failed.
    error: Option<String>,
    /// The last change of primary.
    moved_at: Duration,
    settled_since: Option<Duration>,
}

impl Picture {
    /// From a holder that is to leave to one that is not, as soon as there is one.
    fn move_away(&self) -> Option<Step> {
        let from = self.holder.clone().filter(|_| self.serves && !self.is_handing_over)?;
        let why = Why::Leaving(*self.leaving.get(&from)?);
        let mut others = self.in_sync.iter().filter(|name| **name != from && !self.leaving.contains_key(*name));
        let preferred = self.preferred.as_ref().filter(|preferred| others.clone().any(|other| other == *preferred));
        let to = preferred.or_else(|| others.next())?.clone();
        Some(Step::HandOver { from, to, why })
    }
}

impl Switchover {
    /// What the object's annotations say now. Force is the stronger word.
    pub(crate) fn note_request(&mut self, now: Duration, request: Option<Request>) {
        if self.request != request {
            let moved_at = self.moved_at;
            let settled_since = self.settled_since;
            *self = Self { request, seen_at: now, moved_at, settled_since, ..Self::default() };
        }
    }

    pub(crate) fn note_moved(&mut self, now: Duration) {
        self.moved_at = now;
    }

    pub(crate) fn note_asked(&mut self, now: Duration) {
        self.asked_at.get_or_insert(now);
        self.attempts += 1;
        self.moved_at = now; // tried is as good as moved: the next try waits
    }

    pub(crate) fn note_failed(&mut self, error: String) {
        self.error = Some(error);
    }

    /// Whom the election must take, whatever the Lease's set says.
    pub(crate) fn forced(&self, picture: &Picture) -> Option<&ReplicaName> {
        let Some(Request { kind: RequestKind::Force, to }) = self.request.as_ref().filter(|_| !self.is_answered) else {
            return None;
        };
        let hands_over = picture.serves && picture.in_sync.contains(to);
        (picture.pods.contains(to) && !hands_over).then_some(to)
    }

    /// Whom a person has named, for an election that waits for that.
    pub(crate) fn named(&self) -> Option<&ReplicaName> {
        self.request.as_ref().filter(|_| !self.is_answered).map(|request| &request.to)
    }

    pub(crate) fn step(&mut self, now: Duration, picture: &Picture) -> Step {
        let settled = picture.preferred.as_ref().is_some_and(|preferred| picture.in_sync.contains(preferred));
        self.settled_since = settled.then(|| self.settled_since.unwrap_or(now));
        match self.request.clone().filter(|_| !self.is_answered) {
            Some(request) => self.serve(now, picture, request),
            None => picture.move_away().unwrap_or_else(|| self.move_to_preferred(now, picture)),
        }
    }

    /// When to ask again even if nothing changes.
    pub(crate) fn wakes_at(&self) -> Option<Duration> {
        let preferred = self.settled_since.map(|since| (since + SETTLES_AFTER).max(self.moved_at + BETWEEN_MOVES));
        let request = self.request.as_ref().filter(|_| !self.is_answered).map(|_| self.seen_at + PATIENCE);
        preferred.into_iter().chain(request).min()
    }

    fn serve(&mut self, now: Duration, picture: &Picture, request: Request) -> Step {
        let to = request.to.clone();
        if !picture.pods.contains(&to) {
            return self.answer(request, false, format!("{to} is none of the cluster's pods"), None);
        }
        let holds = picture.holder.as_ref() == Some(&to);
        if holds && picture.serves {
            let gap = self.asked_at.map(|asked_at| now.saturating_sub(asked_at));
            let message = match gap {
                Some(gap) => format!("{to} is the primary; publishers waited for {} ms at most", gap.as_millis()),
                None if request.kind == RequestKind::Force => format!("{to} is the primary"),
                None => format!("{to} is the primary already"),
            };
            return self.answer(request, true, message, gap);
        }
        let is_late = now >= self.seen_at + PATIENCE;
        if (holds && !is_late) || picture.is_handing_over {
            return Step::Nothing;
        }
        if let Some(error) = self.error.clone().filter(|_| self.attempts >= MAX_ATTEMPTS || is_late) {
            return self.answer(request, false, error, None);
        }
        let from = picture.holder.clone().filter(|_| picture.serves);
        match (from, picture.in_sync.contains(&to), request.kind) {
            (Some(from), true, _) => Step::HandOver { from, to, why: Why::AskedFor },
            (Some(_), false, RequestKind::Switchover) => {
                let message = format!(
                    "{to} is not in sync: it may lack confirmed messages. Wait until it is, or take the loss with {}",
                    understudy_crds::FORCE_PRIMARY_ANNOTATION
                );
                self.answer(request, false, message, None)
            }
            (None, _, RequestKind::Switchover) if is_late => {
                self.answer(request, false, "no primary serves that could hand over".into(), None)
            }
            (_, _, RequestKind::Force) if is_late => {
                self.answer(request, false, format!("{to} does not serve: see the Available condition"), None)
            }
            _ => Step::Nothing, // an election is under way, or will be
        }
    }

    fn answer(&mut self, request: Request, done: bool, message: String, gap: Option<Duration>) -> Step {
        self.is_answered = true;
        Step::Answer(Answer { request, done, message, gap })
    }

    fn move_to_preferred(&self, now: Duration, picture: &Picture) -> Step {
        let (Some(since), Some(to)) = (self.settled_since, picture.preferred.clone()) else { return Step::Nothing };
        if picture.leaving.contains_key(&to) {
            return Step::Nothing;
        }
        let Some(from) = picture.holder.clone().filter(|holder| picture.serves && *holder != to) else {
            return Step::Nothing;
        };
        let is_due = now >= since + SETTLES_AFTER && now >= self.moved_at + BETWEEN_MOVES;
        if is_due && picture.is_quiet && !picture.is_handing_over {
            return Step::HandOver { from, to, why: Why::Preferred };
        }
        Step::Nothing
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;

    fn name(ordinal: u32) -> ReplicaName {
        ReplicaName::new(&format!("orders-{ordinal}"))
    }

    fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// orders-0 serves, all are in sync.
    fn picture() -> Picture {
        Picture {
            pods: (0..3).map(name).collect(),
            holder: Some(name(0)),
            serves: true,
            in_sync: (0..3).map(name).collect(),
            preferred: None,
            leaving: BTreeMap::new(),
            is_quiet: true,
            is_handing_over: false,
        }
    }

    fn asked(kind: RequestKind, to: &str) -> Switchover {
        let mut switchover = Switchover::default();
        switchover.note_request(secs(100), Some(Request { kind, to: ReplicaName::new(to) }));
        switchover
    }

    fn tell(step: &Step) -> String {
        match step {
            Step::Nothing => "nothing".into(),
            Step::HandOver { from, to, why } => format!("{from} hands over to {to}: {why}"),
            Step::Answer(Answer { done: true, message, .. }) => format!("done: {message}"),
            Step::Answer(Answer { done: false, message, .. }) => format!("refused: {message}"),
        }
    }

    fn check(switchover: &mut Switchover, seconds: u64, picture: &Picture, expected: Expect) {
        expected.assert_eq(&tell(&switchover.step(secs(seconds), picture)));
    }

    #[test]
    fn a_request_is_served_and_answered_once() {
        let mut switchover = asked(RequestKind::Switchover, "orders-1");
        let mut picture = picture();
        check(&mut switchover, 100, &picture, expect!["orders-0 hands over to orders-1: asked for by a person"]);
        switchover.note_asked(secs(100));
        picture.is_handing_over = true;
        check(&mut switchover, 101, &picture, expect!["nothing"]);
        (picture.holder, picture.serves, picture.is_handing_over) = (Some(name(1)), false, false);
        check(&mut switchover, 101, &picture, expect!["nothing"]);
        picture.serves = true;
        check(
            &mut switchover,
            102,
            &picture,
            expect!["done: orders-1 is the primary; publishers waited for 2000 ms at most"],
        );
        check(&mut switchover, 103, &picture, expect!["nothing"]);
        // The annotation has gone, and comes again.
        switchover.note_request(secs(104), None);
        switchover
            .note_request(secs(105), Some(Request { kind: RequestKind::Switchover, to: ReplicaName::new("orders-1") }));
        check(&mut switchover, 105, &picture, expect!["done: orders-1 is the primary already"]);
    }

    #[test]
    fn what_cannot_be_is_refused_with_the_reason() {
        let mut without_2 = picture();
        without_2.in_sync.remove(&name(2));
        check(
            &mut asked(RequestKind::Switchover, "orders-2"),
            100,
            &without_2,
            expect![
                "refused: orders-2 is not in sync: it may lack confirmed messages. Wait until it is, or take the loss with understudy.dev/force-primary"
            ],
        );
        check(
            &mut asked(RequestKind::Switchover, "payments-0"),
            100,
            &picture(),
            expect!["refused: payments-0 is none of the cluster's pods"],
        );
        let mut nobody = asked(RequestKind::Switchover, "orders-1");
        let failed_over = Picture { serves: false, ..picture() };
        check(&mut nobody, 100, &failed_over, expect!["nothing"]);
        check(&mut nobody, 130, &failed_over, expect!["refused: no primary serves that could hand over"]);
    }

    #[test]
    fn a_hand_over_that_fails_is_tried_again_and_then_the_reason_is_told() {
        let mut switchover = asked(RequestKind::Switchover, "orders-1");
        for second in 0..3 {
            assert!(matches!(switchover.step(secs(100 + second), &picture()), Step::HandOver { .. }), "{second}");
            switchover.note_asked(secs(100 + second));
            switchover.note_failed("the Lease could not be changed: forbidden".into());
        }
        check(&mut switchover, 103, &picture(), expect!["refused: the Lease could not be changed: forbidden"]);
    }

    /// Force is an election's business, unless a hand-over does it without a loss.
    #[test]
    fn one_that_is_forced_is_handed_the_role_if_that_costs_nothing() {
        let mut switchover = asked(RequestKind::Force, "orders-2");
        check(&mut switchover, 100, &picture(), expect!["orders-0 hands over to orders-2: asked for by a person"]);
        assert_eq!(switchover.forced(&picture()), None);
        let mut stale = picture();
        stale.in_sync.remove(&name(2));
        assert_eq!(switchover.forced(&stale), Some(&name(2)));
        check(&mut switchover, 101, &stale, expect!["nothing"]);
        stale.holder = Some(name(2));
        check(&mut switchover, 102, &stale, expect!["done: orders-2 is the primary"]);
        assert_eq!(switchover.forced(&picture()), None, "answered");
        let gone = Picture { holder: Some(name(2)), serves: false, ..picture() };
        let mut switchover = asked(RequestKind::Force, "orders-2");
        check(&mut switchover, 100, &gone, expect!["nothing"]);
        check(&mut switchover, 130, &gone, expect!["refused: orders-2 does not serve: see the Available condition"]);
    }

    #[test]
    fn the_preferred_one_gets_the_role_once_it_has_settled_and_never_twice_within_a_minute() {
        let mut switchover = Switchover::default();
        let mut picture = Picture { preferred: Some(name(1)), ..picture() };
        picture.in_sync.remove(&name(1));
        check(&mut switchover, 70, &picture, expect!["nothing"]);
        picture.in_sync.insert(name(1));
        check(&mut switchover, 80, &picture, expect!["nothing"]);
        assert_eq!(switchover.wakes_at(), Some(secs(110)));
        check(&mut switchover, 109, &picture, expect!["nothing"]);
        let rolling = Picture { is_quiet: false, ..picture.clone() };
        check(&mut switchover, 110, &rolling, expect!["nothing"]);
        check(&mut switchover, 110, &picture, expect!["orders-0 hands over to orders-1: it is the preferred primary"]);
        switchover.note_asked(secs(110));
        // It dies at once, and comes back at once: the others keep the role for a minute.
        switchover.note_moved(secs(112));
        check(&mut switchover, 171, &picture, expect!["nothing"]);
        check(&mut switchover, 172, &picture, expect!["orders-0 hands over to orders-1: it is the preferred primary"]);
    }

    #[test]
    fn one_that_flaps_never_settles() {
        let mut switchover = Switchover::default();
        let there = Picture { preferred: Some(name(1)), ..picture() };
        let mut away = there.clone();
        away.in_sync.remove(&name(1));
        for round in 0..10 {
            check(&mut switchover, 100 + 40 * round, &there, expect!["nothing"]);
            check(&mut switchover, 129 + 40 * round, &there, expect!["nothing"]);
            check(&mut switchover, 130 + 40 * round, &away, expect!["nothing"]);
        }
    }

    #[test]
    fn it_stays_where_it_is_preferred() {
        let mut switchover = Switchover::default();
        let picture = Picture { preferred: Some(name(0)), ..picture() };
        check(&mut switchover, 100, &picture, expect!["nothing"]);
        check(&mut switchover, 1_000, &picture, expect!["nothing"]);
    }

    /// A cordoned node, a fenced pod and one that is scaled away lose the role at once, to one that may keep it.
    #[test]
    fn who_is_to_leave_hands_over_first() {
        let mut switchover = Switchover::default();
        let leaving = |names: &[(u32, Leaving)]| Picture {
            leaving: names.iter().map(|(ordinal, why)| (name(*ordinal), *why)).collect(),
            ..picture()
        };
        let cordoned = leaving(&[(0, Leaving::NodeCordoned), (1, Leaving::NodeCordoned)]);
        check(
            &mut switchover,
            1,
            &cordoned,
            expect!["orders-0 hands over to orders-2: the old primary's node is cordoned"],
        );
        check(&mut switchover, 1, &Picture { is_handing_over: true, ..cordoned.clone() }, expect!["nothing"]);
        check(&mut switchover, 1, &Picture { serves: false, ..cordoned }, expect!["nothing"]);
        let backup = leaving(&[(1, Leaving::Fenced)]);
        check(&mut switchover, 1, &backup, expect!["nothing"]);
        let fenced = leaving(&[(0, Leaving::Fenced)]);
        check(
            &mut switchover,
            1,
            &Picture { preferred: Some(name(2)), ..fenced },
            expect!["orders-0 hands over to orders-2: the old primary is fenced"],
        );
        let all = leaving(&[(0, Leaving::NodeCordoned), (1, Leaving::Fenced), (2, Leaving::NodeCordoned)]);
        check(&mut switchover, 1, &all, expect!["nothing"]);
    }

    #[test]
    fn the_preferred_one_gets_nothing_while_it_is_to_leave() {
        let mut switchover = Switchover::default();
        let picture =
            Picture { preferred: Some(name(1)), leaving: [(name(1), Leaving::NodeCordoned)].into(), ..picture() };
        check(&mut switchover, 100, &picture, expect!["nothing"]);
        check(&mut switchover, 1_000, &picture, expect!["nothing"]);
    }
}
