//! The backup's side: whose records it takes, what it has of the log, what of it may be applied, and how it catches up.
//!
//! It keeps no state behind the records and no file: it says what to journal, what to apply and what to answer.
//!
//! Invariants: a record is taken only from the highest epoch known, and nothing is acknowledged under an epoch before
//! that epoch is durable (rule 2: the journal carries out its orders in order, and an acknowledgement follows from the
//! completion of an order given after the epoch's). Only committed records are applied.

mod base;

use std::collections::VecDeque;
use std::time::Duration;

use understudy_record::variant::{Variant, is_broken};
use understudy_record::version::{ClusterVersion, UnknownVersion, VersionRange};
use understudy_record::{BacklogCursor, Epoch, Frame, Identity, Index, QueueId};

use crate::catch_up::{CatchUp, CatchUpProgress};
use crate::history::{History, OwnLog};
use crate::message::{Acknowledge, HalfBase, Hello, Records, Resume, SyncId, Welcome};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BackupConfig {
    pub me: Identity,
    /// `durability: Replicated`: what has been received counts, so it is acknowledged at once.
    pub replicated_only: bool,
    pub backup_timeout: Duration,
    /// The cluster's versions that this build knows.
    pub knows: VersionRange,
}

/// What was found on disk: all of it durable.
#[derive(Clone, Debug)]
pub struct RecoveredLog {
    pub known_epoch: Epoch,
    /// The highest version of the cluster that this store has heard of.
    pub cluster_version: ClusterVersion,
    pub history: History,
    /// First index held as a record.
    pub first: Index,
    /// The log may not be cut below this: a base shows effects up to there.
    pub floor: Index,
    pub applied: Index,
    /// The records after `applied`, to the log's end.
    pub pending: VecDeque<Frame>,
    /// It is not to be counted on: something in it cannot be read back, or what it led to was not what the primary had.
    pub damaged: bool,
}

/// One connection to a primary, counted by the backup. Completions of an earlier one are void: the log may have been cut since.
pub type Session = u64;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BackupOutput {
    /// Journal: make the epoch durable.
    PersistEpoch(Epoch),
    /// Journal: remember the cluster's version before anything that it brought is written.
    PersistVersion(ClusterVersion),
    /// Journal: cut the log after this index.
    Truncate(Index),
    /// Journal: append, and report the session and last index once durable.
    Append(Session, Vec<Frame>),
    /// Journal: report the session and the last index once everything so far is durable.
    Barrier(Session),
    /// Journal: a new log beside the old one, for the base and what follows it. State: begin from nothing.
    BeginBase,
    /// Journal: the new log is whole; it takes the old one's place. Report the session when that is durable.
    CompleteBase(Session),
    /// State: these records are committed.
    Apply(Vec<Frame>),
    /// State: pieces of the base.
    ApplyBase(Vec<Frame>),
    /// To the primary.
    Acknowledge(Acknowledge),
    CaughtUp(Index),
    /// Ask the primary for a queue's backlog, from where `from` says on.
    Fetch {
        epoch: Epoch,
        sync_id: SyncId,
        queue: QueueId,
        from: BacklogCursor,
    },
    /// End the connection; dial again.
    Close(String),
    /// The half base is of no use: read the old log again, as at a start.
    Recover,
}

/// Why the backup does not follow. The connection is to be closed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FollowError {
    #[error("the primary's epoch {theirs} is over: epoch {known} is known here")]
    OldEpoch { theirs: Epoch, known: Epoch },
    #[error("the primary went from epoch {expected} to {found} without a welcome")]
    EpochChanged { expected: Epoch, found: Epoch },
    #[error("record {found} came where {expected} is next")]
    Gap { expected: Index, found: Index },
    #[error("told to cut the log after {after}, but everything up to {floor} is applied")]
    BelowFloor { after: Index, floor: Index },
    #[error("told to resume after {after}, but the log ends at {last}")]
    BeyondEnd { after: Index, last: Index },
    #[error("{what} came where it has no place")]
    OutOfPlace { what: &'static str },
    #[error("this build {0}")]
    Version(#[from] UnknownVersion),
    #[error("the base is damaged: {0}")]
    BadBase(String),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Link {
    /// Not connected since then.
    Down {
        since: Duration,
        reset: bool,
    },
    /// Hello sent at `asked`; no primary heard since `since`.
    Greeting {
        since: Duration,
        asked: Duration,
    },
    /// Welcomed; a base must come first.
    AwaitingBase {
        primary: Identity,
        last_heard: Duration,
        /// In the line of those that wait, from 1; 0: not told of any.
        place: u64,
    },
    Following {
        primary: Identity,
        last_heard: Duration,
    },
}

/// What is written beside the log in force.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Building {
    Nothing,
    Base(Box<CatchUp>),
    /// Part of a base that nobody will go on with. The next one takes its place.
    Remains,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Backup {
    config: BackupConfig,
    /// The highest epoch known, durable before anything is acknowledged under it.
    known_epoch: Epoch,
    /// The highest version of the cluster that this store has heard of.
    cluster_version: ClusterVersion,
    history: History,
    first: Index,
    /// What the primary has said is committed.
    committed: Index,
    /// How far the state has come; with a base, no lower than what the base shows.
    floor: Index,
    applied: Index,
    /// Records that are not applied yet, in order, up to the log's end.
    pending: VecDeque<Frame>,
    durable: Index,
    session: Session,
    /// Since the log was last cut or replaced: what the journal reports of an earlier one says nothing of this log.
    log_session: Session,
    /// The journal has reported under this session, so the epoch that came before it is on disk (rule 2).
    epoch_is_durable: bool,
    link: Link,
    building: Building,
    /// The last base that became whole: its primary may not know yet.
    completed: Option<HalfBase>,
    /// The log is not to be counted on: only a base, which begins another, makes this store whole.
    damaged: bool,
    /// A primary has welcomed this process.
    has_followed: bool,
}

impl Backup {
    pub fn new(now: Duration, config: BackupConfig, log: RecoveredLog) -> Self {
        let RecoveredLog { known_epoch, cluster_version, history, first, floor, applied, pending, damaged } = log;
        Self {
            config,
            known_epoch,
            cluster_version,
            first,
            committed: applied,
            floor: floor.max(applied),
            applied,
            pending,
            durable: history.last().index,
            history,
            session: 0,
            log_session: 0,
            epoch_is_durable: false,
            link: Link::Down { since: now, reset: false },
            building: Building::Nothing,
            completed: None,
            damaged,
            has_followed: false,
        }
    }

    // Getters.

    pub fn known_epoch(&self) -> Epoch {
        self.known_epoch
    }

    /// The highest version of the cluster that this store has heard of.
    pub fn cluster_version(&self) -> ClusterVersion {
        self.cluster_version
    }

    pub fn history(&self) -> &History {
        &self.history
    }

    pub fn first(&self) -> Index {
        self.first
    }

    pub fn applied(&self) -> Index {
        self.applied
    }

    pub fn committed(&self) -> Index {
        self.committed
    }

    /// The last record that no loss of power takes from this log.
    pub fn durable(&self) -> Index {
        self.durable
    }

    pub fn is_clean(&self) -> bool {
        matches!(self.building, Building::Nothing) && !self.damaged
    }

    pub fn is_connected(&self) -> bool {
        !matches!(self.link, Link::Down { .. })
    }

    /// Of a base that is under way or waited for.
    pub fn catch_up(&self, now: Duration) -> Option<CatchUpProgress> {
        match (&self.building, &self.link) {
            (Building::Base(catch_up), _) => Some(catch_up.progress(now)),
            (_, Link::AwaitingBase { place, .. }) if *place > 0 => {
                Some(CatchUpProgress { place: *place, ..CatchUpProgress::default() })
            }
            _ => None,
        }
    }

    /// A primary has been heard since this process began: only then has it lost one.
    pub fn has_followed(&self) -> bool {
        self.has_followed
    }

    /// The primary that is heard.
    pub fn primary(&self) -> Option<&Identity> {
        match &self.link {
            Link::AwaitingBase { primary, .. } | Link::Following { primary, .. } => Some(primary),
            Link::Down { .. } | Link::Greeting { .. } => None,
        }
    }

    /// Since when no primary is heard, and whether by a reset; `None` while one is.
    pub fn lost(&self) -> Option<(Duration, bool)> {
        match self.link {
            Link::Down { since, reset } => Some((since, reset)),
            Link::Greeting { since, .. } => Some((since, false)),
            Link::AwaitingBase { .. } | Link::Following { .. } => None,
        }
    }

    // Inputs.

    /// A connection to a primary stands; the answer is the first word on it.
    pub fn handle_connected(&mut self, now: Duration) -> Hello {
        self.session += 1;
        self.epoch_is_durable = false;
        let since = match self.link {
            Link::Down { since, .. } => since,
            _ => now,
        };
        self.link = Link::Greeting { since, asked: now };
        Hello {
            follower: self.config.me.clone(),
            epoch: self.known_epoch,
            history: self.history.clone(),
            first: self.first,
            floor: self.floor(),
            clean: self.is_clean(),
            knows: self.config.knows,
            half_base: match &self.building {
                Building::Base(catch_up) => Some(catch_up.name()),
                Building::Nothing | Building::Remains => None,
            },
        }
    }

    /// The connection is gone. A base that was under way stays, for a while: its primary may come back and go on with it.
    pub fn handle_disconnected(&mut self, now: Duration, reset: bool, out: &mut Vec<BackupOutput>) {
        self.session += 1;
        let since = match self.link {
            Link::Down { since, .. } | Link::Greeting { since, .. } => since,
            _ => now,
        };
        self.link = Link::Down { since, reset };
        match &mut self.building {
            Building::Nothing => {}
            Building::Base(catch_up) => catch_up.part(now),
            Building::Remains => out.push(BackupOutput::Recover),
        }
    }

    /// An epoch became known from the Lease or from a peer: the fence (rule 2). Every comparison of epochs on this side
    /// happens here. `Ok` if records of `epoch` may be taken; it is being made durable if it is new.
    fn admit_epoch(&mut self, epoch: Epoch, out: &mut Vec<BackupOutput>) -> Result<(), FollowError> {
        if epoch < self.known_epoch {
            return Err(FollowError::OldEpoch { theirs: epoch, known: self.known_epoch });
        }
        if epoch > self.known_epoch {
            self.known_epoch = epoch;
            out.push(BackupOutput::PersistEpoch(epoch));
        }
        Ok(())
    }

    pub fn handle_welcome(
        &mut self,
        now: Duration,
        welcome: Welcome,
        out: &mut Vec<BackupOutput>,
    ) -> Result<(), FollowError> {
        let Link::Greeting { .. } = self.link else { return Err(FollowError::OutOfPlace { what: "a welcome" }) };
        self.admit_epoch(welcome.epoch, out)?;
        self.admit_version(welcome.version, out)?;
        self.has_followed = true;
        let primary = welcome.primary;
        match welcome.resume {
            Resume::Base => {
                if let Building::Base(_) = self.building {
                    self.building = Building::Remains;
                }
                self.link = Link::AwaitingBase { primary, last_heard: now, place: 0 };
                out.push(BackupOutput::Barrier(self.session)); // who waits for its base acknowledges heartbeats
            }
            Resume::SameBase(sync_id) => {
                let named = HalfBase { epoch: self.known_epoch, sync_id };
                match &mut self.building {
                    Building::Base(catch_up) if catch_up.name() == named => {
                        let epoch = self.known_epoch;
                        out.push(BackupOutput::Barrier(self.session));
                        out.extend(catch_up.resume(now).map(|(queue, from)| BackupOutput::Fetch {
                            epoch,
                            sync_id,
                            queue,
                            from,
                        }));
                    }
                    // It has become whole since the hello.
                    Building::Nothing if self.completed == Some(named) => {
                        out.push(BackupOutput::Barrier(self.session));
                        out.push(BackupOutput::CaughtUp(self.floor));
                    }
                    _ => return Err(FollowError::OutOfPlace { what: "the rest of a base that is not here" }),
                }
                self.link = Link::Following { primary, last_heard: now };
            }
            Resume::After(after) => {
                if !matches!(self.building, Building::Nothing) {
                    return Err(FollowError::OutOfPlace { what: "a resume of half a base" });
                }
                let last = self.history.last().index;
                if after > last {
                    return Err(FollowError::BeyondEnd { after, last });
                }
                if after < self.floor() {
                    return Err(FollowError::BelowFloor { after, floor: self.floor() });
                }
                if after < last {
                    self.history.truncate_after(after);
                    while self.pending.back().is_some_and(|frame| frame.position.index > after) {
                        self.pending.pop_back();
                    }
                    out.push(BackupOutput::Truncate(after));
                    (self.durable, self.log_session) = (self.durable.min(after), self.session);
                }
                self.link = Link::Following { primary, last_heard: now };
                out.push(BackupOutput::Barrier(self.session));
            }
        }
        Ok(())
    }

    /// The primary has raised the cluster's version.
    pub fn handle_version(&mut self, version: ClusterVersion, out: &mut Vec<BackupOutput>) -> Result<(), FollowError> {
        if self.primary().is_none() {
            return Err(FollowError::OutOfPlace { what: "a version" });
        }
        self.admit_version(version, out)
    }

    fn admit_version(&mut self, version: ClusterVersion, out: &mut Vec<BackupOutput>) -> Result<(), FollowError> {
        self.config.knows.check(version)?;
        if version > self.cluster_version {
            self.cluster_version = version;
            out.push(BackupOutput::PersistVersion(version));
        }
        Ok(())
    }

    pub fn handle_records(
        &mut self,
        now: Duration,
        records: Records,
        out: &mut Vec<BackupOutput>,
    ) -> Result<(), FollowError> {
        let Link::Following { last_heard, .. } = &mut self.link else {
            return Err(FollowError::OutOfPlace { what: "a record" });
        };
        *last_heard = now;
        self.check_epoch(records.epoch)?;
        let mut last = self.history.last();
        for frame in &records.frames {
            if frame.position.index != last.index.next() {
                return Err(FollowError::Gap { expected: last.index.next(), found: frame.position.index });
            }
            if frame.position.epoch > records.epoch || frame.position.epoch < last.epoch {
                return Err(FollowError::EpochChanged { expected: last.epoch, found: frame.position.epoch });
            }
            last = frame.position;
        }
        // All or nothing: the history never names a record that was not given to the journal.
        records.frames.iter().for_each(|frame| self.history.extend(frame.position));
        self.committed = self.committed.max(records.committed);
        let due = records.frames.is_empty() || self.config.replicated_only;
        let at_once = is_broken(Variant::AcknowledgeAtOnce);
        if due && self.epoch_is_durable || at_once {
            let received = self.history.last().index;
            let durable = if at_once { received } else { self.durable };
            out.push(BackupOutput::Acknowledge(Acknowledge { epoch: self.known_epoch, durable, received }));
        }
        if !records.frames.is_empty() {
            self.pending.extend(records.frames.iter().cloned());
            out.push(BackupOutput::Append(self.session, records.frames));
        }
        self.apply(out);
        self.fetch_next(out); // the base may have waited for these only
        Ok(())
    }

    /// The journal has made everything up to `index` durable, and what that session ordered before.
    pub fn handle_durable(&mut self, session: Session, index: Index, out: &mut Vec<BackupOutput>) {
        if session >= self.log_session {
            self.durable = self.durable.max(index).min(self.history.last().index);
        }
        if session != self.session {
            return;
        }
        match self.link {
            Link::Following { .. } => self.epoch_is_durable = true,
            // Of the log that the base will replace: its own end is of no interest any more.
            Link::AwaitingBase { .. } => return self.epoch_is_durable = true,
            Link::Down { .. } | Link::Greeting { .. } => return,
        }
        let (durable, received) = (self.durable, self.history.last().index);
        out.push(BackupOutput::Acknowledge(Acknowledge { epoch: self.known_epoch, durable, received }));
    }

    /// What this replica has made of the log is not what the primary has: from here on it is no member that could be elected.
    pub fn handle_inconsistent(&mut self) {
        self.damaged = true;
    }

    /// A checkpoint has come into force: the log begins with `first` now, and cannot be cut below `floor`.
    pub fn handle_log_start(&mut self, first: Index, floor: Index) {
        if !matches!(self.building, Building::Nothing) {
            return; // it is the old log's, which the one that is being filled will replace
        }
        self.first = first;
        self.floor = self.floor.max(floor);
    }

    /// To be called every few milliseconds: a silent primary, a catch-up that stands still.
    pub fn handle_timeout(&mut self, now: Duration, out: &mut Vec<BackupOutput>) {
        let timeout = self.config.backup_timeout;
        if let Link::Following { last_heard, .. }
        | Link::AwaitingBase { last_heard, .. }
        | Link::Greeting { asked: last_heard, .. } = self.link
            && now.saturating_sub(last_heard) >= timeout
        {
            out.push(BackupOutput::Close(format!("the primary is silent for {} ms", timeout.as_millis())));
            self.handle_disconnected(last_heard, false, out); // lost since it was last heard, not since it was missed
            return;
        }
        self.watch_base(now, out);
    }

    /// This process has been elected: it takes no records from now on, its whole log stays, and the epoch is made
    /// durable before anything is written under it.
    ///
    /// # Errors
    /// If the epoch is over already, the log is not whole (such a store is in no in-sync set), or this build does not know
    /// the cluster's version. One that is marked as damaged is elected by a person's word alone, who takes what it has.
    pub fn handle_elected(
        &mut self,
        epoch: Epoch,
        version: ClusterVersion,
        out: &mut Vec<BackupOutput>,
    ) -> Result<OwnLog, FollowError> {
        if !matches!(self.building, Building::Nothing) {
            return Err(FollowError::OutOfPlace { what: "an election of a store that is catching up" });
        }
        if epoch <= self.history.last().epoch && !is_broken(Variant::ResumeOldRole) {
            return Err(FollowError::OldEpoch { theirs: epoch, known: self.history.last().epoch });
        }
        self.admit_version(version, out)?;
        self.admit_epoch(epoch, out)?;
        self.session += 1;
        out.push(BackupOutput::Apply(self.pending.drain(..).collect()));
        Ok(OwnLog { history: self.history.clone(), first: self.first, durable: self.durable })
    }

    fn floor(&self) -> Index {
        self.floor.max(self.applied)
    }

    fn check_epoch(&self, found: Epoch) -> Result<(), FollowError> {
        if found == self.known_epoch {
            return Ok(());
        }
        Err(FollowError::EpochChanged { expected: self.known_epoch, found })
    }

    fn apply(&mut self, out: &mut Vec<BackupOutput>) {
        let count = self.pending.iter().take_while(|frame| frame.position.index <= self.committed).count();
        if count > 0 {
            let ready: Vec<Frame> = self.pending.drain(..count).collect();
            self.applied = ready.last().map_or(self.applied, |frame| frame.position.index);
            out.push(BackupOutput::Apply(ready));
        }
    }
}
