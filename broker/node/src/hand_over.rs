//! A hand-over in good order: publishers pause, everything taken from them is committed, one swap, and clients are closed with
//! the successor's name. If it comes to nothing, publishers go on as if nothing had been asked.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::sync::oneshot;
use understudy_record::{Epoch, Identity, ReplicaName};

use crate::{Node, Role};

/// Publishes that connections had handed over before they saw the pause come within this time.
const PAUSE_IS_SEEN_WITHIN: Duration = Duration::from_millis(5);

/// How long publishers pause for the set to get everything, at most. Then the swap goes ahead: the successor, a member of the
/// set, has all that was confirmed, and the rest was never promised.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(100);

/// How long publishers pause in all. A Lease that takes longer to be changed is not worth the wait.
const HAND_OVER_TIMEOUT: Duration = Duration::from_secs(2);

/// Whoever asked, and waits for the outcome.
pub(crate) type Asker = oneshot::Sender<Result<(), String>>;

/// A hand-over under way.
#[derive(Debug)]
pub(crate) struct HandOver {
    successor: Identity,
    begun: Duration,
    /// The keeper has been given it: the swap may be on its way.
    is_asked: bool,
    asker: Option<Asker>,
}

impl HandOver {
    /// Publishers wait for it.
    pub(crate) fn pauses_publishers(&self, now: Duration) -> bool {
        now.saturating_sub(self.begun) < HAND_OVER_TIMEOUT
    }

    pub(crate) fn answer(self, outcome: Result<(), String>) {
        if let Some(asker) = self.asker {
            _ = asker.send(outcome); // who asked may have gone
        }
    }
}

impl Node {
    /// Somebody asks for a hand-over; the answer comes with the outcome.
    pub(crate) fn handle_hand_over(&mut self, epoch: Epoch, to: Option<ReplicaName>, asker: Asker) {
        if let Err(reason) = self.hand_over(epoch, to) {
            _ = asker.send(Err(reason));
            return;
        }
        if let Role::Primary(role) = &mut self.role
            && let Some(hand_over) = &mut role.hand_over
        {
            hand_over.asker = Some(asker);
        }
        self.set_flow();
    }

    /// Begins to give the role to a backup: the one named, or the one that is furthest.
    pub(crate) fn hand_over(&mut self, epoch: Epoch, to: Option<ReplicaName>) -> Result<(), String> {
        let Role::Primary(role) = &mut self.role else { return Err(format!("{} is not the primary", self.me.name)) };
        if epoch != role.primary.epoch() {
            return Err(format!("the epoch is {}, not {epoch}", role.primary.epoch()));
        }
        if let Some(under_way) = &role.hand_over {
            return Err(format!("a hand-over to {} is under way", under_way.successor.name));
        }
        let in_sync: Vec<_> = role.primary.followers().filter(|follower| follower.in_sync).collect();
        let named = |name: &ReplicaName| in_sync.iter().find(|follower| follower.identity.name == *name);
        let successor = match &to {
            Some(name) if *name == self.me.name => return Err(format!("{name} is the primary already")),
            Some(name) => named(name)
                .ok_or_else(|| format!("{name} is not in sync, or not connected: it may lack confirmed messages"))?,
            None => in_sync.iter().max_by_key(|follower| follower.durable).ok_or("no backup is in sync")?,
        };
        tracing::info!(successor = %successor.identity, "handing over: publishers pause");
        role.hand_over =
            Some(HandOver { successor: successor.identity.clone(), begun: self.now, is_asked: false, asker: None });
        role.primary.handle_own_leaving();
        Ok(())
    }

    /// The swap, once everything is committed or has had its time.
    pub(crate) fn drive_hand_over(&mut self) {
        let Role::Primary(role) = &mut self.role else { return };
        let Some(hand_over) = role.hand_over.as_mut().filter(|hand_over| !hand_over.is_asked) else { return };
        let paused_for = self.now.saturating_sub(hand_over.begun);
        let is_drained = role.primary.committed() == role.primary.last().index;
        if paused_for < PAUSE_IS_SEEN_WITHIN || (!is_drained && paused_for < DRAIN_TIMEOUT) {
            return;
        }
        hand_over.is_asked = true;
        let in_sync = role.primary.followers().filter(|follower| follower.in_sync);
        let mut reachable: BTreeSet<_> = in_sync.map(|follower| follower.identity).collect();
        // This replica reads its log again before it follows, if it does not end, and the successor's first commits would wait
        // for that. So it stays only where it is needed: for `minInSync`, or because the successor's process may end before it
        // has begun, and where memory is what counts nobody would have everything.
        let is_needed = self.config.replicated_only || reachable.len() < self.config.settings.min_in_sync;
        if self.leaving.is_none() && is_needed {
            reachable.insert(self.me.clone());
        }
        tracing::info!(successor = %hand_over.successor, paused_ms = paused_for.as_millis(), is_drained, "the swap");
        role.keeper.hand_over(hand_over.successor.clone(), reachable);
    }

    /// A hand-over lasts as long as its successor does, and no longer than publishers can be made to wait; one that leaves
    /// asks the next.
    pub(crate) fn check_hand_over(&mut self) {
        let now = self.now;
        let Role::Primary(role) = &mut self.role else { return };
        let Some(hand_over) = &role.hand_over else {
            let epoch = role.primary.epoch();
            if self.leaving.is_none() {
                role.primary.handle_staying();
            } else {
                _ = self.hand_over(epoch, None); // elected while it was leaving: as soon as there is a successor
            }
            return;
        };
        let HandOver { successor, is_asked, .. } = hand_over;
        let is_there = role.primary.followers().any(|other| other.in_sync && other.identity == *successor);
        // The keeper forgets a successor that is not in the Lease's set any more.
        let reason = if !is_there || (*is_asked && role.keeper.successor().is_none()) {
            format!("{} has left the in-sync set before it took over", successor.name)
        } else if self.leaving.is_none() && !hand_over.pauses_publishers(now) {
            let why = role.trouble.clone().unwrap_or_else(|| "its store does not answer".into());
            format!("the Lease was not changed within {} s: {why}", HAND_OVER_TIMEOUT.as_secs())
        } else {
            return;
        };
        self.give_up_hand_over(reason);
    }

    /// The Lease's store has refused the swap, or not answered. One that leaves tries again until its time is up.
    pub(crate) fn handle_hand_over_trouble(&mut self, reason: &str) {
        let Role::Primary(role) = &self.role else { return };
        if self.leaving.is_none() && role.hand_over.as_ref().is_some_and(|hand_over| hand_over.is_asked) {
            self.give_up_hand_over(format!("the Lease could not be changed: {reason}"));
        }
    }

    /// Publishers go on. A swap that is on its way may take effect all the same; its outcome is seen like any other.
    fn give_up_hand_over(&mut self, reason: String) {
        let Role::Primary(role) = &mut self.role else { return };
        let Some(hand_over) = role.hand_over.take() else { return };
        tracing::warn!(successor = %hand_over.successor, "no hand-over: {reason}");
        role.keeper.give_up_hand_over();
        let epoch = role.primary.epoch();
        hand_over.answer(Err(reason));
        if self.leaving.is_some() {
            // If nobody is left, the deadline of the orderly end comes.
            _ = self.hand_over(epoch, None);
        } else {
            role.primary.handle_staying();
        }
        self.set_flow();
    }
}
