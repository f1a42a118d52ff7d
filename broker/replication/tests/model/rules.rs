//! How much may happen in one exploration, and which rule it breaks: by its number in ARCHITECTURE.md, "The eight rules".

/// How often each thing may happen, and what a crash costs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// How many of the three replicas are in sync at first; the others hold nothing.
    pub(crate) in_sync: usize,
    /// So many replicas outside the set follow too, and join.
    pub(crate) newcomers: usize,
    pub(crate) publishes: u8,
    pub(crate) elections: u8,
    /// A primary finds that the members without a stream have been silent for too long.
    pub(crate) silences: u8,
    /// A backup's connections, of one process; sessions are counted, so this keeps the states finite.
    pub(crate) connects: u8,
    /// A backup's connection breaks for no reason.
    pub(crate) breaks: u8,
    pub(crate) crashes: u8,
    pub(crate) lost_disks: u8,
    /// A write of the Lease whose answer is lost; it has taken effect, or does so later, or never.
    pub(crate) lost_answers: u8,
    pub(crate) deletions: u8,
    /// Somebody finds a blank Lease, asks every replica, and writes into it.
    pub(crate) recoveries: u8,
    /// Such an elector may also have seen the Lease before it went; it is then the more careful.
    pub(crate) knowing_electors: bool,
    /// The Lease's store has served a request for a while before its answer comes; otherwise it comes at once.
    pub(crate) slow_answers: bool,
    /// Journals take their time; otherwise what is appended is on disk at once.
    pub(crate) slow_journals: bool,
    /// `durability: Replicated`: a crash loses the log, and the set names processes.
    pub(crate) in_memory: bool,
}

/// Which rule is broken, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Broken {
    /// 1: anybody is elected who is there.
    ElectsOutsiders,
    /// 1 and 8: a new disk passes for the old one.
    NewStoreIsOldStore,
    /// 2: a backup takes records of an epoch that is over.
    TakesLowerEpochs,
    /// 2: a backup acknowledges what is not on its disk.
    AcknowledgesBeforeDurable,
    /// 3: while a change of the set is on its way only the old set counts.
    CountsOldSetOnly,
    /// 3 and 6: a change of the set that nobody has answered is taken for done.
    TakesSilenceForSuccess,
    /// 3: a read that shows the old version is taken for an answer.
    ReadsSettle,
    /// 3: an acknowledgement counts for whoever has the name.
    AcknowledgementsByName,
    /// 3: the set does not name processes where a crash loses what they hold.
    ProcessesNotInSet,
    /// 4: members leave the set once they are lost, before the Lease says so.
    ShrinksBeforeSwap,
    /// 4: a newcomer joins when it has been sent what it lacks.
    AdmitsTooEarly,
    /// 5: a primary that is demoted goes on with the log it has.
    KeepsItsTail,
    /// 7: a primary commits before it has written the Lease itself.
    CommitsBeforeOwnWrite,
    /// 7: a Lease written anew gives the epoch after its own next.
    RecreatesWithoutGap,
    /// 7: the Lease is written anew whoever is heard.
    RecreatesWithoutProof,
    /// 7: a request to create the Lease carries what is to stand in it.
    CreationsCarryAState,
    /// 7: a role is taken by a Lease after a blank one was seen that has taken its place.
    ActsByALeaseThatIsGone,
    /// 7: recovery believes what replicas said before the blank Lease was there.
    RecoversFromOldReports,
    /// 7: recovery counts what a replica has in memory.
    RecoversByMemory,
    /// 8: a restarted process resumes as the primary it was.
    ResumesAfterRestart,
}

/// A cluster of three in sync in which nothing happens but one message and one election.
pub(crate) const CALM: Bounds = Bounds {
    in_sync: 3,
    newcomers: 0,
    publishes: 1,
    elections: 1,
    silences: 0,
    connects: 1,
    breaks: 0,
    crashes: 0,
    lost_disks: 0,
    lost_answers: 0,
    deletions: 0,
    recoveries: 0,
    knowing_electors: false,
    slow_answers: false,
    slow_journals: false,
    in_memory: false,
};

/// Two are in sync, and nobody else is there.
pub(crate) const PAIR: Bounds = Bounds { in_sync: 2, ..CALM };

/// Two are in sync, and the third follows and joins.
pub(crate) const JOINING: Bounds = Bounds { newcomers: 1, elections: 0, ..PAIR };

/// One is in sync, another follows whose journal takes its time; the Lease goes, and the primary.
pub(crate) const LAGGING: Bounds =
    Bounds { in_sync: 1, deletions: 1, recoveries: 1, crashes: 1, slow_journals: true, ..JOINING };

impl Broken {
    /// Each with its rule and with bounds that are wide enough to find it out.
    pub(crate) const ALL: [(u8, Self, Bounds); 20] = [
        (1, Self::ElectsOutsiders, PAIR),
        (1, Self::NewStoreIsOldStore, Bounds { elections: 0, lost_disks: 1, ..CALM }),
        (2, Self::TakesLowerEpochs, Bounds { connects: 2, ..CALM }),
        (2, Self::AcknowledgesBeforeDurable, Bounds { elections: 0, crashes: 1, slow_journals: true, ..CALM }),
        (3, Self::CountsOldSetOnly, JOINING),
        (3, Self::ReadsSettle, Bounds { breaks: 1, lost_answers: 1, ..JOINING }),
        (3, Self::AcknowledgementsByName, Bounds { lost_disks: 1, ..JOINING }),
        (3, Self::ProcessesNotInSet, Bounds { elections: 0, crashes: 1, in_memory: true, ..CALM }),
        (4, Self::ShrinksBeforeSwap, Bounds { elections: 0, silences: 1, breaks: 1, ..CALM }),
        (4, Self::AdmitsTooEarly, JOINING),
        (5, Self::KeepsItsTail, CALM),
        (6, Self::TakesSilenceForSuccess, Bounds { publishes: 0, silences: 1, breaks: 1, lost_answers: 1, ..CALM }),
        (7, Self::CommitsBeforeOwnWrite, Bounds { publishes: 0, deletions: 1, recoveries: 1, ..CALM }),
        (7, Self::RecreatesWithoutProof, Bounds { deletions: 1, ..CALM }),
        (7, Self::RecreatesWithoutGap, Bounds { publishes: 0, elections: 2, deletions: 1, ..PAIR }),
        (7, Self::CreationsCarryAState, Bounds { publishes: 0, deletions: 2, recoveries: 1, ..PAIR }),
        (7, Self::ActsByALeaseThatIsGone, Bounds { publishes: 0, deletions: 2, recoveries: 2, ..PAIR }),
        (7, Self::RecoversFromOldReports, Bounds { publishes: 0, deletions: 1, recoveries: 1, ..CALM }),
        (7, Self::RecoversByMemory, LAGGING),
        (8, Self::ResumesAfterRestart, Bounds { crashes: 1, ..JOINING }),
    ];
}

impl Bounds {
    /// With what `text` says, like `elections=2,silences=1`; flags are 0 or 1.
    pub(crate) fn with(mut self, text: &str) -> Self {
        for setting in text.split(',').filter(|setting| !setting.is_empty()) {
            let (name, value) = setting.split_once('=').expect("a setting reads name=number");
            let value: u8 = value.parse().expect("a setting's value is a small number");
            match name {
                "in_sync" => self.in_sync = value.into(),
                "newcomers" => self.newcomers = value.into(),
                "publishes" => self.publishes = value,
                "elections" => self.elections = value,
                "silences" => self.silences = value,
                "connects" => self.connects = value,
                "breaks" => self.breaks = value,
                "crashes" => self.crashes = value,
                "lost_disks" => self.lost_disks = value,
                "lost_answers" => self.lost_answers = value,
                "deletions" => self.deletions = value,
                "recoveries" => self.recoveries = value,
                "knowing_electors" => self.knowing_electors = value > 0,
                "slow_answers" => self.slow_answers = value > 0,
                "slow_journals" => self.slow_journals = value > 0,
                "in_memory" => self.in_memory = value > 0,
                _ => panic!("no bound is called {name}"),
            }
        }
        self
    }
}
