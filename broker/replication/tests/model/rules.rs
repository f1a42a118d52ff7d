//! How much may happen in one exploration, and which rule it breaks.

/// How often each thing may happen, and what a crash costs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// How many of the three replicas are in sync at first; the others hold nothing.
    pub(crate) in_sync: usize,
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
    /// The Lease's store has served a request for a while before its answer comes; otherwise it comes at once.
    pub(crate) slow_answers: bool,
    /// Journals take their time; otherwise what is appended is on disk at once.
    pub(crate) slow_journals: bool,
    /// `durability: Replicated`: a crash loses the log, and the set names processes.
    pub(crate) in_memory: bool,
}

/// A rule of ARCHITECTURE.md that is broken, by its number, and how.
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
    /// 7: a recovered Lease continues from the highest epoch that is known.
    RecoversWithoutGap,
    /// 7: recovery believes what replicas said before the Lease was gone.
    RecoversFromOldReports,
    /// 8: a restarted process resumes as the primary it was.
    ResumesAfterRestart,
}
