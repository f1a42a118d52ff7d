//! Replacing outdated pods, one step at a time: backups first, the primary last and after a hand-over. Pure; asked again
//! whenever something changes.
//!
//! Never takes a pod out of the in-sync set that `minInSync` needs; a pod that is not in the set may go at any time, so that
//! a corrected image reaches pods that never started.

use std::fmt;

use understudy_crds::Timestamp;
use understudy_record::ReplicaName;

/// One pod of the spec, as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RollPod {
    pub(crate) name: ReplicaName,
    /// Absent: the pod does not exist, or is being deleted.
    pub(crate) uid: Option<String>,
    pub(crate) outdated: bool,
    pub(crate) in_sync: bool,
    pub(crate) primary: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RollStep {
    /// Every pod is there and has the newest template.
    Done,
    /// Wait: something is under way.
    Wait {
        outdated: usize,
        reason: RollWait,
    },
    Delete {
        pod: ReplicaName,
        uid: String,
    },
    HandOver {
        from: ReplicaName,
    },
    /// A person has to decide.
    Hold(RollHold),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RollWait {
    PodsAbsent(Vec<ReplicaName>),
    NotInSync(Vec<ReplicaName>),
    NoPrimary,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RollHold {
    /// Each in-sync replica is needed for confirms.
    MinInSync { in_sync: usize, min_in_sync: usize },
    /// Only the primary is left, and handing over is a person's (`update.strategy: Supervised`).
    AwaitsSwitchover { primary: ReplicaName },
    /// A person has ordered that nothing be rolled out now.
    Ordered { outdated: usize, order: Order },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Paused,
    Maintenance,
    /// No maintenance window of the spec is open; the next one begins then, in seconds since 1970.
    Window {
        next: i64,
    },
}

/// What a roll has to keep to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RollRules {
    pub(crate) min_in_sync: usize,
    /// The hand-over is a person's.
    pub(crate) supervised: bool,
    pub(crate) order: Option<Order>,
}

pub(crate) fn next(pods: &[RollPod], rules: RollRules) -> RollStep {
    let RollRules { min_in_sync, supervised, order } = rules;
    let outdated: Vec<&RollPod> = pods.iter().filter(|pod| pod.outdated && pod.uid.is_some()).collect();
    if outdated.is_empty() && pods.iter().all(|pod| pod.uid.is_some()) {
        return RollStep::Done;
    }
    // What does no work is no loss, and may be what the change is to mend.
    let mends = |order: &Order| {
        matches!(order, Order::Window { .. }) && outdated.iter().any(|pod| !pod.in_sync && !pod.primary)
    };
    if let Some(order) = order.filter(|order| !outdated.is_empty() && !mends(order)) {
        return RollStep::Hold(RollHold::Ordered { outdated: outdated.len(), order });
    }
    let wait = |reason| RollStep::Wait { outdated: outdated.len(), reason };
    let names = |pods: &mut dyn Iterator<Item = &RollPod>| pods.map(|pod| pod.name.clone()).collect::<Vec<_>>();
    let delete = |pod: &RollPod| RollStep::Delete { pod: pod.name.clone(), uid: pod.uid.clone().unwrap_or_default() };

    let absent = names(&mut pods.iter().filter(|pod| pod.uid.is_none()));
    if !absent.is_empty() {
        return wait(RollWait::PodsAbsent(absent));
    }
    if let Some(pod) = outdated.iter().find(|pod| !pod.in_sync && !pod.primary) {
        return delete(pod);
    }
    if let [only] = pods {
        return delete(only); // a single broker cannot be replaced without a pause
    }
    let not_in_sync = names(&mut pods.iter().filter(|pod| !pod.in_sync));
    if !not_in_sync.is_empty() {
        return wait(RollWait::NotInSync(not_in_sync));
    }
    let Some(primary) = pods.iter().find(|pod| pod.primary) else { return wait(RollWait::NoPrimary) };
    if pods.len() - 1 < min_in_sync {
        return RollStep::Hold(RollHold::MinInSync { in_sync: pods.len(), min_in_sync });
    }
    match outdated.iter().find(|pod| !pod.primary) {
        Some(backup) => delete(backup),
        None if supervised => RollStep::Hold(RollHold::AwaitsSwitchover { primary: primary.name.clone() }),
        None => RollStep::HandOver { from: primary.name.clone() },
    }
}

impl RollStep {
    /// For the `Ready` condition: reason and text, `None` if there is nothing to roll.
    pub(crate) fn text(&self) -> Option<(&'static str, String)> {
        match self {
            Self::Done => None,
            Self::Wait { outdated: 0, reason } => Some(("PodsAbsent", format!("waiting for {reason}"))),
            Self::Wait { outdated, reason } => Some(("Rolling", format!("{outdated} outdated; waiting for {reason}"))),
            Self::Delete { pod, .. } => Some(("Rolling", format!("{pod} is being replaced"))),
            Self::HandOver { from } => Some(("Rolling", format!("primary {from} hands over, then it is replaced"))),
            Self::Hold(RollHold::AwaitsSwitchover { primary }) => Some((
                "AwaitsSwitchover",
                format!(
                    "all but primary {primary} are replaced; updates are supervised: hand the role over (kubectl understudy switchover)"
                ),
            )),
            Self::Hold(RollHold::Ordered { outdated, order: Order::Paused }) => {
                Some(("Paused", format!("{outdated} outdated; reconciliation is paused")))
            }
            Self::Hold(RollHold::Ordered { outdated, order: Order::Maintenance }) => {
                Some(("Maintenance", format!("{outdated} outdated; nothing is rolled out during maintenance")))
            }
            Self::Hold(RollHold::Ordered { outdated, order: Order::Window { next } }) => {
                let next = Timestamp::from_unix_ms(next.saturating_mul(1000));
                Some(("OutsideWindow", format!("{outdated} outdated; the next maintenance window begins at {next}")))
            }
            Self::Hold(RollHold::MinInSync { in_sync, min_in_sync }) => Some((
                "RollHeld",
                format!(
                    "no pod can be replaced: minInSync is {min_in_sync} and {in_sync} replicas are in sync, so confirms would \
                     stop; lower minInSync, add a replica, or delete outdated pods by hand"
                ),
            )),
        }
    }
}

impl fmt::Display for RollWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |names: &[ReplicaName]| names.iter().map(ReplicaName::to_string).collect::<Vec<_>>().join(", ");
        match self {
            Self::PodsAbsent(names) => write!(f, "{} to be made", list(names)),
            Self::NotInSync(names) => write!(f, "{} to be in sync", list(names)),
            Self::NoPrimary => f.write_str("a primary"),
        }
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;

    /// One word a pod: `P` primary, `B` in-sync backup, `c` not in sync, `-` absent; `!` after it: outdated.
    fn check(pods: &str, min_in_sync: usize, expected: Expect) {
        check_by(pods, RollRules { min_in_sync, supervised: false, order: None }, expected);
    }

    fn check_by(pods: &str, rules: RollRules, expected: Expect) {
        let pods: Vec<RollPod> = (0..)
            .zip(pods.split(' '))
            .map(|(ordinal, word)| RollPod {
                name: ReplicaName::new(&format!("orders-{ordinal}")),
                uid: (!word.starts_with('-')).then(|| format!("u{ordinal}")),
                outdated: word.ends_with('!'),
                in_sync: word.starts_with(['P', 'B']),
                primary: word.starts_with('P'),
            })
            .collect();
        let step = next(&pods, rules);
        let text = match &step {
            RollStep::Delete { pod, uid } => format!("delete {pod} {uid}"),
            RollStep::HandOver { from } => format!("hand over from {from}"),
            other => other.text().map_or("done".into(), |(reason, text)| format!("{reason}: {text}")),
        };
        expected.assert_eq(&text);
    }

    /// Backups first, wait in sync, hand over, the old primary last.
    #[test]
    fn a_roll_step_by_step() {
        check("P B B", 2, expect!["done"]);
        check("P! B! B!", 2, expect!["delete orders-1 u1"]);
        check("P! - B!", 2, expect!["Rolling: 2 outdated; waiting for orders-1 to be made"]);
        check("P! c B!", 2, expect!["Rolling: 2 outdated; waiting for orders-1 to be in sync"]);
        check("P! B B!", 2, expect!["delete orders-2 u2"]);
        check("P! B B", 2, expect!["hand over from orders-0"]);
        check("B! P B", 2, expect!["delete orders-0 u0"]);
        check("- P B", 2, expect!["PodsAbsent: waiting for orders-0 to be made"]);
    }

    /// A pod that never started is replaced though others are not in sync; the primary stays.
    #[test]
    fn a_pod_outside_the_set_may_always_go() {
        check("P c! B!", 2, expect!["delete orders-1 u1"]);
        check("c! c! c!", 2, expect!["delete orders-0 u0"]);
        check("P c! c", 2, expect!["delete orders-1 u1"]);
    }

    #[test]
    fn never_below_min_in_sync() {
        check(
            "P! B!",
            2,
            expect![
                "RollHeld: no pod can be replaced: minInSync is 2 and 2 replicas are in sync, so confirms would stop; lower minInSync, add a replica, or delete outdated pods by hand"
            ],
        );
        check("P! B!", 1, expect!["delete orders-1 u1"]);
        check("P B! c", 2, expect!["Rolling: 1 outdated; waiting for orders-2 to be in sync"]);
    }

    #[test]
    fn without_a_primary_nothing_in_sync_is_touched() {
        check("B! B! B", 2, expect!["Rolling: 2 outdated; waiting for a primary"]);
    }

    #[test]
    fn what_persons_have_ordered() {
        let rules = RollRules { min_in_sync: 2, supervised: true, order: None };
        check_by("P! B! B", rules, expect!["delete orders-1 u1"]);
        check_by(
            "P! B B",
            rules,
            expect![
                "AwaitsSwitchover: all but primary orders-0 are replaced; updates are supervised: hand the role over (kubectl understudy switchover)"
            ],
        );
        check_by("B! P B", rules, expect!["delete orders-0 u0"]);
        let ordered = |order| RollRules { order: Some(order), min_in_sync: 2, supervised: true };
        check_by("P! B! B", ordered(Order::Paused), expect!["Paused: 2 outdated; reconciliation is paused"]);
        check_by(
            "P! B! B",
            ordered(Order::Maintenance),
            expect!["Maintenance: 2 outdated; nothing is rolled out during maintenance"],
        );
        check_by("P B B", ordered(Order::Paused), expect!["done"]);
        let window = ordered(Order::Window { next: 1_795_996_800 });
        check_by(
            "P! B! B",
            window,
            expect!["OutsideWindow: 2 outdated; the next maintenance window begins at 2026-11-30T00:00:00.000Z"],
        );
        check_by("P B c!", window, expect!["delete orders-2 u2"]);
        check_by("c! P B", ordered(Order::Paused), expect!["Paused: 1 outdated; reconciliation is paused"]);
        check_by("P B B", window, expect!["done"]);
    }

    /// One replica is exempt.
    #[test]
    fn a_single_broker_is_replaced_at_once() {
        check("P!", 1, expect!["delete orders-0 u0"]);
        check("P", 1, expect!["done"]);
    }
}
