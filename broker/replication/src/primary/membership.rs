//! Who is in the set: members leave it before a confirm goes out without them, newcomers hold everything before they
//! join (rule 4), and a primary that can do neither closes its clients (rule 6).

use std::time::Duration;

use understudy_record::{Identity, Member};

use super::{JOIN_LAG_BYTES, Lost, Primary, PrimaryOutput};
use crate::commit::{InSyncSet, ProposeError};

impl Primary {
    /// Rule 4: the set loses its lost members by a swap, before any confirm goes out without them.
    pub(super) fn shrink(&mut self, now: Duration, out: &mut Vec<PrimaryOutput>) {
        let overdue = self.lost.iter().filter(|(_, lost)| now.saturating_sub(lost.since) >= lost.grace);
        let overdue: InSyncSet = overdue.map(|(member, _)| member.clone()).collect();
        let leavers: InSyncSet = self.commit.in_force().intersection(&overdue).cloned().collect();
        match self.commit.counted().any(|member| overdue.contains(member)) {
            true => _ = self.isolated_since.get_or_insert(now),
            // Every member of every set that may be in force acknowledges: nobody else was elected.
            false => self.isolated_since = None,
        }
        self.judge_isolation(now, out);
        if leavers.is_empty() || self.leaving {
            return;
        }
        match self.commit.propose_without(&leavers) {
            Ok(set) => out.push(PrimaryOutput::ProposeSet(set)),
            Err(ProposeError::Outstanding | ProposeError::NoChange) => {}
            Err(error) => unreachable!("members other than the primary are proposed to leave: {error}"),
        }
    }

    /// Rule 6: a member is lost and the Lease cannot be changed. Another primary may have been elected with that member.
    fn judge_isolation(&mut self, now: Duration, out: &mut Vec<PrimaryOutput>) {
        let isolated = self.isolated_since.is_some_and(|since| now.saturating_sub(since) >= self.config.lease_duration);
        if isolated && self.serving {
            self.serving = false;
            out.push(PrimaryOutput::CloseClients(
                "a replica is lost and the Lease cannot be changed: another primary may exist by now".into(),
            ));
        } else if !isolated && !self.serving {
            self.serving = true;
            out.push(PrimaryOutput::ServeClients);
        }
    }

    /// Rule 4's other half: a newcomer is awaited first, then proposed.
    pub(super) fn admit(&mut self, now: Duration, out: &mut Vec<PrimaryOutput>) {
        if let Some(newcomer) = self.commit.awaited().cloned() {
            let stream = self.followers.iter().find(|(_, follower)| follower.member == newcomer);
            let Some(stream) = stream.map(|(stream, _)| *stream) else { return self.commit.forget_newcomer() };
            match self.commit.propose_awaited() {
                Ok(set) => out.push(PrimaryOutput::ProposeSet(set)),
                Err(ProposeError::NotCaughtUp { .. })
                    if now.saturating_sub(self.awaiting_since) >= self.config.backup_timeout =>
                {
                    self.commit.forget_newcomer();
                    self.close(now, stream, "did not keep pace while commits waited for it to join", out);
                }
                Err(_) => {}
            }
            return;
        }
        if self.leaving {
            return;
        }
        let end = self.recent.next();
        let ready = self.followers.values().find(|follower| {
            let durable = self.commit.durable_on(&follower.member);
            let current = follower.next == end && follower.in_flight_bytes <= JOIN_LAG_BYTES;
            let whole = follower.floor.is_some_and(|floor| durable >= floor) && durable >= self.commit.epoch_start();
            // A name stands once in a set: its earlier store has to leave before this one joins.
            current && whole && !self.commit.counted().any(|member| member.name == follower.member.name)
        });
        let Some(newcomer) = ready.map(|follower| follower.member.clone()) else { return };
        if self.commit.await_newcomer(newcomer).is_ok() {
            self.awaiting_since = now;
            self.admit(now, out);
        }
    }

    /// A follower that comes again has lost its earlier stream; one that comes with another store, or another process
    /// where the process counts, has lost its place in the set for good.
    pub(super) fn drop_streams_of(&mut self, now: Duration, identity: &Identity, out: &mut Vec<PrimaryOutput>) {
        let earlier = self.followers.iter().filter(|(_, follower)| follower.identity.name == identity.name);
        for stream in earlier.map(|(stream, _)| *stream).collect::<Vec<_>>() {
            self.close(now, stream, "replaced by a newer connection of the same replica", out);
        }
        let gone = self.commit.counted().filter(|member| member.name == identity.name && !member.is(identity));
        for member in gone.cloned().collect::<Vec<_>>() {
            self.mark_lost(now, member, Duration::ZERO);
        }
    }

    /// Only of members: of others it makes no difference. The shorter grace counts.
    pub(super) fn mark_lost(&mut self, now: Duration, member: Member, grace: Duration) {
        if self.commit.counted().any(|counted| *counted == member) {
            let lost = self.lost.entry(member).or_insert(Lost { since: now, grace });
            lost.grace = lost.grace.min(grace);
        }
    }

    /// A reset is an ended process or a moment's break: long enough to tell them apart, no longer.
    pub(super) fn reset_grace(&self) -> Duration {
        self.config.backup_timeout / 4
    }
}
