//! The primary's side: followers and what each is sent, who is in the set, how far clients may be told.
//!
//! It does not talk to the Lease: it proposes a set and is told the outcome. It does not know the state behind the
//! records: where a follower needs a base, the caller makes one.

mod hold;
mod membership;
mod streams;
mod syncs;
mod versions;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use understudy_record::version::{ClusterVersion, VersionRange};
use understudy_record::{Epoch, Frame, Identity, Index, Member, Position};

use crate::commit::{Commit, InSyncSet, SwapOutcome};
use crate::history::{History, OwnLog};
use crate::message::{Acknowledge, Hello, PrimaryMessage, Resume, SyncId, Welcome};
use crate::recent::Recent;

pub use hold::Hold;
pub use syncs::FollowerCatchUp;
pub(crate) use syncs::KEPT_TIMEOUTS;

/// One message of records, in bytes: large enough that its overhead is nothing, small enough to leave at once.
const BATCH_BYTES: usize = 512 << 10;

/// What a follower may have in flight, in bytes, before it has made it durable. Bounds the memory of both ends; what
/// comes after waits in the journal.
const WINDOW_BYTES: usize = 16 << 20;

/// A newcomer further behind than this, in bytes, is not awaited yet: commits would wait for it too long.
const JOIN_LAG_BYTES: usize = 1 << 20;

/// One connection of a follower, numbered by the caller, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u64);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PrimaryConfig {
    pub me: Identity,
    pub min_in_sync: usize,
    /// `durability: Replicated`: a member is a process, and what it has received counts.
    pub replicated_only: bool,
    /// Silence after which a member is taken out of the set.
    pub backup_timeout: Duration,
    /// A member that makes nothing durable for so long, though it has been sent something, is taken out of the set.
    pub stall_timeout: Duration,
    /// How long an isolated primary keeps its clients (rule 6).
    pub lease_duration: Duration,
    /// A resume of more records than this, and of more than twice the live messages, is dearer than a base.
    pub resume_records: u64,
    /// The cluster's versions that this build knows.
    pub knows: VersionRange,
    /// The cluster's, by the Lease that elected it, or by its own store if that has heard of a higher one.
    pub version: ClusterVersion,
    /// Followers that fill a base at the same time, at most; one that goes on after a break does not wait. At least 1.
    pub max_catch_ups: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PrimaryOutput {
    Send(StreamId, PrimaryMessage),
    /// End the stream; the follower may come again.
    Close(StreamId, String),
    /// Read the journal from this index for the follower; [`Primary::handle_log_read`] takes the answer.
    ReadLog(StreamId, Index),
    /// Take the topology as it is at this very moment and answer with [`Primary::send_base`].
    TakeBase(StreamId, SyncId),
    /// Nothing more of this catch-up's backlog will be fetched: what was kept for it may go.
    EndSync(SyncId),
    /// Write this set to the Lease; [`Primary::handle_outcome`] takes the outcome, once it is known.
    ProposeSet(InSyncSet),
    /// A new set is in force: record it in the log (rule 7).
    SetInForce(InSyncSet),
    /// Committed up to the first; publishers may be told up to the second.
    Committed {
        committed: Index,
        confirmable: Index,
    },
    /// Another primary of a higher epoch exists (rule 5).
    Demote {
        epoch: Epoch,
    },
    /// A new primary may exist by now: no client may go on here (rule 6).
    CloseClients(String),
    ServeClients,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FollowerStatus {
    pub identity: Identity,
    pub durable: Index,
    pub in_sync: bool,
    /// Its log is not whole yet.
    pub catching_up: bool,
    /// From a sync point.
    pub catch_up: Option<FollowerCatchUp>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Follower {
    identity: Identity,
    member: Member,
    knows: VersionRange,
    /// The next record to send.
    next: Index,
    /// A read of the journal is under way.
    reading: bool,
    /// Its base has not been sent: no record goes to it before.
    awaits_base: bool,
    /// The log's end when it came: up to there it lacks what has accumulated, from there on it follows live traffic.
    backlog_to: Index,
    /// How far it must have come to join; unknown while its base is not whole.
    floor: Option<Index>,
    last_heard: Duration,
    /// When it last made something durable, or had nothing to.
    last_progress: Duration,
    last_sent: Duration,
    /// Sent and not yet durable there: last index and bytes of each message.
    in_flight: VecDeque<(Index, usize)>,
    in_flight_bytes: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Lost {
    since: Duration,
    /// What it is given to come back.
    grace: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Primary {
    config: PrimaryConfig,
    epoch: Epoch,
    member: Member,
    commit: Commit,
    confirmable: Index,
    history: History,
    /// First index the own journal holds as records.
    log_first: Index,
    own_durable: Index,
    recent: Recent,
    uncommitted_bytes: usize,
    /// Appended, and not on the own disk yet.
    undurable_bytes: usize,
    followers: BTreeMap<StreamId, Follower>,
    /// The own journal has reported under this epoch, so that it will be known here after any crash (rule 2).
    epoch_is_durable: bool,
    /// Who came before that.
    early: BTreeMap<StreamId, (Hello, u64)>,
    /// Members without a live stream.
    lost: BTreeMap<Member, Lost>,
    syncs: syncs::Syncs,
    awaiting_since: Duration,
    /// A member should have left the set since then, and the Lease has not been changed.
    isolated_since: Option<Duration>,
    serving: bool,
    /// On its way out: the set stays as it is, or nobody would be left to elect.
    leaving: bool,
    /// The cluster's.
    version: ClusterVersion,
}

impl Primary {
    /// `log` ends before this epoch's first record, which is the next one appended. `in_force`: the set that elected it.
    pub fn new(now: Duration, config: PrimaryConfig, epoch: Epoch, log: OwnLog, in_force: InSyncSet) -> Self {
        let OwnLog { history, first: log_first, durable: own_durable } = log;
        let member = config.me.member(config.replicated_only);
        let start = history.last().index.next();
        let lost = in_force.iter().filter(|other| **other != member);
        let grace = config.backup_timeout;
        let lost = lost.map(|other| (other.clone(), Lost { since: now, grace })).collect();
        Self {
            commit: Commit::new(epoch, member.clone(), start, in_force),
            recent: Recent::starting_at(start),
            version: config.version,
            config,
            epoch,
            member,
            confirmable: Index(0),
            history,
            log_first,
            own_durable,
            uncommitted_bytes: 0,
            undurable_bytes: 0,
            followers: BTreeMap::new(),
            epoch_is_durable: false,
            early: BTreeMap::new(),
            lost,
            syncs: syncs::Syncs::default(),
            awaiting_since: now,
            isolated_since: None,
            serving: true,
            leaving: false,
        }
    }

    // Getters.

    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    pub fn committed(&self) -> Index {
        self.commit.committed()
    }

    pub fn last(&self) -> Position {
        self.history.last()
    }

    pub fn in_force(&self) -> &InSyncSet {
        self.commit.in_force()
    }

    /// What is confirmable stays so; for what is not yet, the new number counts.
    pub fn set_min_in_sync(&mut self, now: Duration, min_in_sync: usize, out: &mut Vec<PrimaryOutput>) {
        self.config.min_in_sync = min_in_sync;
        self.advance(now, out);
    }

    pub fn is_below_min_in_sync(&self) -> bool {
        self.in_force().len() < self.config.min_in_sync
    }

    /// First index the own journal holds as records.
    pub fn log_first(&self) -> Index {
        self.log_first
    }

    /// The first record that a follower that is here may still ask the log for; `absent`: or one that is away for a moment.
    pub fn retain_from(&self, absent: bool) -> Index {
        let streams = self.followers.values().filter(|follower| !follower.awaits_base).map(|follower| follower.next);
        let replaced = |member: &Member| {
            let mut streams = self.followers.values();
            streams.any(|other| other.member.name == member.name && other.member != *member)
        };
        let known = self.commit.known().filter(|(member, _)| absent && **member != self.member && !replaced(member));
        let catch_ups = self.syncs.missing_from(absent);
        streams.chain(known.map(|(_, durable)| durable.next())).chain(catch_ups).min().unwrap_or(Index(u64::MAX))
    }

    /// A checkpoint has come into force: the own journal begins with `first` now.
    pub fn handle_log_start(&mut self, first: Index) {
        self.log_first = first;
    }

    pub fn own_durable(&self) -> Index {
        self.own_durable
    }

    pub fn history(&self) -> &History {
        &self.history
    }

    /// Every member of every set that may be in force is connected (rule 7).
    pub fn hears_all(&self) -> bool {
        !self.commit.counted().any(|member| self.lost.contains_key(member))
    }

    /// What every member of every set that may be in force has made durable. The proof of rule 7: a member that has
    /// acknowledged a record was this primary's when it did.
    pub fn held_by_all(&self) -> Index {
        self.commit.held_by_all()
    }

    /// Bytes of records that are not committed, or not on the own disk: what publishers are slowed down by.
    pub fn unsettled_bytes(&self) -> usize {
        self.uncommitted_bytes.max(self.undurable_bytes)
    }

    /// Why confirms are held, if they are.
    pub fn hold(&self) -> Option<Hold> {
        if self.is_below_min_in_sync() {
            return Some(Hold::BelowMinInSync { have: self.in_force().len(), need: self.config.min_in_sync });
        }
        if self.commit.committed() == self.last().index {
            return None;
        }
        if !self.commit.is_lease_held() && self.commit.held_by_all() >= self.commit.epoch_start() {
            return Some(Hold::LeaseNotWritten);
        }
        let lost = self.commit.counted().find(|member| self.lost.contains_key(*member));
        if let Some(member) = lost {
            return Some(Hold::WaitingFor { member: member.clone(), lost: true });
        }
        if self.commit.committed() < self.commit.epoch_start() {
            return Some(Hold::EpochStart);
        }
        let slowest = self.commit.counted().min_by_key(|member| self.commit.durable_on(member))?;
        Some(Hold::WaitingFor { member: slowest.clone(), lost: false })
    }

    /// What the follower is about to read from the log is what it lacked when it came, and nobody's confirm waits for it: the
    /// bandwidth of catch-ups is what it may take.
    pub fn reads_backlog(&self, stream: StreamId) -> bool {
        self.followers.get(&stream).is_some_and(|follower| {
            follower.next <= follower.backlog_to && !self.commit.counted().any(|member| *member == follower.member)
        })
    }

    pub fn followers(&self) -> impl Iterator<Item = FollowerStatus> + '_ {
        self.followers.iter().map(|(stream, follower)| FollowerStatus {
            identity: follower.identity.clone(),
            durable: self.commit.durable_on(&follower.member),
            in_sync: self.in_force().contains(&follower.member),
            catching_up: follower.floor.is_none(),
            catch_up: self.syncs.status(*stream),
        })
    }

    // Inputs.

    /// Frames this primary has just made, in order, the epoch's first record before all others. They go to the
    /// followers at once, beside the own journal.
    pub fn handle_appended(&mut self, now: Duration, frames: &[Frame], out: &mut Vec<PrimaryOutput>) {
        for frame in frames {
            assert_eq!(frame.position.epoch, self.epoch, "a primary writes under its own epoch");
            self.history.extend(frame.position);
            self.recent.push(frame);
            self.uncommitted_bytes += frame.len();
            self.undurable_bytes += frame.len();
        }
        if self.config.replicated_only
            && let Some(frame) = frames.last()
        {
            self.commit.handle_durable(self.epoch, &self.member, frame.position.index);
        }
        self.pump_all(now, out);
        self.advance(now, out);
    }

    /// The own journal has made everything up to `index` durable.
    pub fn handle_durable(&mut self, now: Duration, epoch: Epoch, index: Index, out: &mut Vec<PrimaryOutput>) {
        if epoch != self.epoch {
            return;
        }
        self.epoch_is_durable = true;
        for (stream, (hello, live_messages)) in std::mem::take(&mut self.early) {
            self.handle_hello(now, stream, &hello, live_messages, out);
        }
        let index = index.max(self.own_durable);
        let after = self.own_durable.max(self.commit.epoch_start().previous());
        self.undurable_bytes = self.undurable_bytes.saturating_sub(self.recent.bytes_between(after, index));
        self.own_durable = index;
        self.commit.handle_durable(epoch, &self.member, index);
        self.advance(now, out);
    }

    /// A follower's first word. `live_messages`: what a base would carry, to weigh it against the log.
    pub fn handle_hello(
        &mut self,
        now: Duration,
        stream: StreamId,
        hello: &Hello,
        live_messages: u64,
        out: &mut Vec<PrimaryOutput>,
    ) {
        if hello.epoch > self.epoch {
            self.refuse(stream, "the follower knows a higher epoch", out);
            out.push(PrimaryOutput::Demote { epoch: hello.epoch });
            return;
        }
        if hello.follower.name == self.config.me.name {
            self.refuse(stream, "the follower has this primary's own name", out);
            return;
        }
        // Rule 2: nothing leaves under an epoch that a crash would make this store forget. An epoch that only others knew of
        // could be given out again, once the Lease is gone.
        if !self.epoch_is_durable {
            self.early.insert(stream, (hello.clone(), live_messages));
            return;
        }
        self.drop_streams_of(now, &hello.follower, out);
        let member = hello.follower.member(self.config.replicated_only);
        let counted = self.commit.counted().any(|other| *other == member);
        if let Err(why) = hello.knows.check(self.version) {
            if counted {
                self.mark_lost(now, member, Duration::ZERO);
            }
            self.refuse(stream, &format!("the build of {} {why}", hello.follower.name), out);
            return;
        }
        let common = self.history.common_prefix(&hello.history);
        let missing = self.last().index.0 - common.0;
        let cheap = counted || missing <= self.config.resume_records.max(live_messages.saturating_mul(2));
        let possible = hello.clean && common >= hello.floor && common.next() >= self.log_first;
        if !possible && counted {
            // Its store does not hold what a member's must: it leaves the set before it starts anew.
            self.mark_lost(now, member, Duration::ZERO);
            self.refuse(
                stream,
                "the follower's log has parted from this one; it must leave the in-sync set first",
                out,
            );
            return;
        }
        let same_base = if counted { None } else { self.resume_sync(now, stream, hello, common, out) };
        let resume = match same_base {
            Some(sync_id) => Resume::SameBase(sync_id),
            None if possible && cheap => Resume::After(common),
            None => Resume::Base,
        };
        let welcome = Welcome { epoch: self.epoch, primary: self.config.me.clone(), version: self.version, resume };
        out.push(PrimaryOutput::Send(stream, PrimaryMessage::Welcome(welcome)));
        self.lost.remove(&member);
        let follower = Follower {
            identity: hello.follower.clone(),
            member,
            knows: hello.knows,
            next: common.next(),
            reading: false,
            awaits_base: resume == Resume::Base,
            backlog_to: self.last().index,
            floor: matches!(resume, Resume::After(_)).then_some(hello.floor),
            last_heard: now,
            last_progress: now,
            last_sent: now,
            in_flight: VecDeque::new(),
            in_flight_bytes: 0,
        };
        self.followers.insert(stream, follower);
        match resume {
            Resume::Base => self.enter_line(now, stream, out),
            Resume::After(_) | Resume::SameBase(_) => self.pump(now, stream, out),
        }
    }

    pub fn handle_acknowledge(
        &mut self,
        now: Duration,
        stream: StreamId,
        ack: Acknowledge,
        out: &mut Vec<PrimaryOutput>,
    ) {
        if ack.epoch > self.epoch {
            out.push(PrimaryOutput::Demote { epoch: ack.epoch });
            return;
        }
        let Some(follower) = self.followers.get_mut(&stream) else { return };
        if ack.durable >= follower.next || ack.received >= follower.next {
            let reason = format!("acknowledges {} before it was sent", ack.durable.max(ack.received));
            self.close(now, stream, &reason, out);
            return;
        }
        follower.last_heard = now;
        while let Some((last, bytes)) = follower.in_flight.front().copied()
            && last <= ack.durable
        {
            follower.in_flight.pop_front();
            follower.last_progress = now;
            follower.in_flight_bytes -= bytes;
        }
        // While its base is not whole the follower writes a log that a restart of the catch-up throws away: what it
        // acknowledges frees its window, and says nothing of what its store holds (rule 3).
        if follower.floor.is_some() {
            let safe = if self.config.replicated_only { ack.received } else { ack.durable };
            self.commit.handle_durable(ack.epoch, &follower.member, safe);
        }
        self.note_received(now, stream, ack.received);
        self.pump(now, stream, out);
        self.advance(now, out);
    }

    /// The follower's base is whole; it may join once it holds everything up to `floor`.
    pub fn handle_caught_up(&mut self, now: Duration, stream: StreamId, floor: Index, out: &mut Vec<PrimaryOutput>) {
        if let Some(follower) = self.followers.get_mut(&stream).filter(|follower| !follower.awaits_base) {
            follower.last_heard = now;
            follower.floor = Some(floor);
            self.end_sync_of(stream, out);
            self.take_next_base(now, out);
        }
        self.advance(now, out);
    }

    /// The follower leaves in good order: out of the set without a stall.
    pub fn handle_leaving(&mut self, now: Duration, stream: StreamId, out: &mut Vec<PrimaryOutput>) {
        if let Some(follower) = self.followers.remove(&stream) {
            self.mark_lost(now, follower.member, Duration::ZERO);
            self.end_sync_of(stream, out);
        }
        self.handle_timeout(now, out);
    }

    pub fn handle_stream_closed(&mut self, now: Duration, stream: StreamId, out: &mut Vec<PrimaryOutput>) {
        self.early.remove(&stream);
        if let Some(follower) = self.followers.remove(&stream) {
            self.part_sync(now, stream, out);
            self.mark_lost(now, follower.member, self.reset_grace());
        }
        self.advance(now, out);
    }

    /// Frames from `from` on, as [`PrimaryOutput::ReadLog`] asked; none if the journal does not have them yet.
    pub fn handle_log_read(
        &mut self,
        now: Duration,
        stream: StreamId,
        from: Index,
        frames: Result<Vec<Frame>, String>,
        out: &mut Vec<PrimaryOutput>,
    ) {
        let Some(follower) = self.followers.get_mut(&stream) else { return };
        follower.reading = false;
        match frames {
            Err(reason) => self.close(now, stream, &format!("the log cannot be read: {reason}"), out),
            Ok(frames) if frames.is_empty() || follower.next != from => {} // asked again by the next pump
            Ok(frames) => {
                self.send_records(now, stream, frames, out);
                self.pump(now, stream, out);
            }
        }
    }

    /// A write of this primary's own to the Lease has taken effect (rule 7): from here on it may commit.
    pub fn handle_lease_held(&mut self, now: Duration, out: &mut Vec<PrimaryOutput>) {
        self.commit.handle_lease_held();
        self.advance(now, out);
    }

    /// The outcome of the last proposed set has become known (rule 3).
    pub fn handle_outcome(&mut self, now: Duration, outcome: SwapOutcome, out: &mut Vec<PrimaryOutput>) {
        if !self.commit.handle_outcome(outcome) {
            return;
        }
        if outcome == SwapOutcome::Applied {
            out.push(PrimaryOutput::SetInForce(self.commit.in_force().clone()));
            let (commit, followers) = (&self.commit, &self.followers);
            let relevant = |member: &Member| commit.counted().any(|counted| counted == member);
            self.lost.retain(|member, _| relevant(member));
            let grace = self.config.backup_timeout / 4;
            for member in commit.in_force() {
                let has_stream = followers.values().any(|follower| follower.member == *member);
                if *member != self.member && !has_stream {
                    self.lost.entry(member.clone()).or_insert(Lost { since: now, grace });
                }
            }
        }
        self.handle_timeout(now, out);
    }

    /// This process is on its way out: from here on the set does not shrink.
    pub fn handle_own_leaving(&mut self) {
        self.leaving = true;
    }

    /// The hand-over came to nothing, and this process stays.
    pub fn handle_staying(&mut self) {
        self.leaving = false;
    }

    /// To be called every few milliseconds: heartbeats, silence, members that should leave the set.
    pub fn handle_timeout(&mut self, now: Duration, out: &mut Vec<PrimaryOutput>) {
        self.close_silent(now, out);
        self.watch_syncs(now, out);
        self.pump_all(now, out);
        self.send_heartbeats(now, out);
        self.shrink(now, out);
        self.advance(now, out);
    }

    /// Whatever may have become possible: a newcomer joins, the commit moves.
    fn advance(&mut self, now: Duration, out: &mut Vec<PrimaryOutput>) {
        self.admit(now, out);
        let before = self.commit.committed();
        if let Some(committed) = self.commit.poll_committed() {
            let after = before.max(self.commit.epoch_start().previous());
            let settled = self.recent.bytes_between(after, committed);
            self.uncommitted_bytes = self.uncommitted_bytes.saturating_sub(settled);
        }
        // What is not committed stays: it is counted back by its length, and a follower lacks it.
        self.recent.trim(self.own_durable.min(self.commit.committed()));
        let committed = self.commit.committed();
        let confirmable = if self.is_below_min_in_sync() { self.confirmable } else { committed };
        if committed > before || confirmable > self.confirmable {
            self.confirmable = confirmable;
            out.push(PrimaryOutput::Committed { committed, confirmable });
        }
    }
}
