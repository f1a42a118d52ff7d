//! Why publishers get no confirms, in words for a log line, a metric and a condition.

use std::fmt;

use understudy_record::Member;

/// Why publishers get no confirms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hold {
    BelowMinInSync {
        have: usize,
        need: usize,
    },
    /// A member has not acknowledged, and is in the set until the Lease says otherwise.
    WaitingFor {
        member: Member,
        lost: bool,
    },
    /// It has not yet brought its own log to every member.
    EpochStart,
    /// It has not written the Lease itself since it was elected (rule 7).
    LeaseNotWritten,
}

impl fmt::Display for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BelowMinInSync { have, need } => {
                write!(f, "{have} replicas are in sync where minInSync asks for {need}: start the missing replicas")
            }
            Self::WaitingFor { member, lost: true } => {
                write!(f, "{} is lost and still in the in-sync set: the Lease must take it out first", member.name)
            }
            Self::WaitingFor { member, lost: false } => {
                write!(f, "waiting for {} to make records durable", member.name)
            }
            Self::LeaseNotWritten => {
                f.write_str("the new primary has not been able to renew the Lease yet: the API server must answer once")
            }
            Self::EpochStart => f.write_str("the new primary is bringing its log to the in-sync backups"),
        }
    }
}
