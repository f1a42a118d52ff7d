//! Rules broken on purpose: what a simulation switches on to see whether its checkers notice. Without the feature `variants`,
//! which no broker is built with, every question here is answered by a constant.

/// One rule, and how it is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// Rule 1: whoever answers may be elected.
    ElectOutsider,
    /// Rule 2: a backup acknowledges under an epoch before that, and what came under it, is durable.
    AcknowledgeAtOnce,
    /// Rule 3: a swap that is not answered counts as refused.
    UnknownIsRefused,
    /// Rule 4: commits do not wait for a leaver from when its leaving is proposed.
    ConfirmBeforeShrink,
    /// Rule 4: a newcomer is admitted though it lacks what may have been confirmed.
    AdmitTooEarly,
    /// Rule 5: a primary goes on when it is deposed.
    IgnoreDemotion,
    /// Rule 6: a primary that cannot reach the Lease goes on without the member it has lost.
    ShrinkWithoutLease,
    /// Rule 7: a deleted Lease is made up from the replicas that happen to answer.
    RecoverFromSome,
    /// Rule 8: a process takes up the role of the one before it.
    ResumeOldRole,
    /// A dequeue that comes before its message, during a catch-up, is forgotten.
    ForgetEarlyDequeue,
    /// A follower's log counts as the primary's own as far as it is as long.
    KeepTail,
    /// What was written is reported as durable without a sync.
    ReportUnsynced,
}

impl Variant {
    pub const ALL: [Self; 12] = [
        Self::ElectOutsider,
        Self::AcknowledgeAtOnce,
        Self::UnknownIsRefused,
        Self::ConfirmBeforeShrink,
        Self::AdmitTooEarly,
        Self::IgnoreDemotion,
        Self::ShrinkWithoutLease,
        Self::RecoverFromSome,
        Self::ResumeOldRole,
        Self::ForgetEarlyDequeue,
        Self::KeepTail,
        Self::ReportUnsynced,
    ];
}

/// Whether this build can break a rule at all: a broker refuses to be compiled so.
pub const IS_COMPILED_IN: bool = cfg!(feature = "variants");

#[cfg(feature = "variants")]
thread_local! {
    static BROKEN: std::cell::Cell<Option<Variant>> = const { std::cell::Cell::new(None) };
}

/// On this thread, from now on.
#[cfg(feature = "variants")]
pub fn break_rule(variant: Option<Variant>) {
    BROKEN.set(variant);
}

/// Whether this rule is broken on this thread.
#[cfg(feature = "variants")]
pub fn is_broken(variant: Variant) -> bool {
    BROKEN.get() == Some(variant)
}

/// No rule is.
#[cfg(not(feature = "variants"))]
#[inline(always)]
pub const fn is_broken(_: Variant) -> bool {
    false
}
