//! A broker's status, read: what the operator, `understudy dev` and the other brokers make of it for an election. Ages
//! become points on the reader's own clock. Pure.

use std::collections::BTreeSet;
use std::time::Duration;

use understudy_election::{Incarnation, Loss, Report, Role, StoreState};
use understudy_record::version::{ClusterVersion, VersionRange};
use understudy_record::{Epoch, Identity, Index, Member, ParseIdError, Position, ReplicaName};

use crate as wire;

/// More members than a cluster may have replicas, sets in transit included.
const MAX_MEMBERS: usize = 32;

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    #[error("the status carries no identity")]
    NoIdentity,
    #[error("it calls itself {claimed:?} and was asked as {asked}")]
    WrongName { claimed: String, asked: ReplicaName },
    #[error("it belongs to cluster {0:?}")]
    WrongCluster(String),
    #[error("role {0} is not known")]
    UnknownRole(i32),
    #[error("an in-sync set of {0} members")]
    TooManyMembers(usize),
    #[error(transparent)]
    Id(#[from] ParseIdError),
}

/// What one status means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    /// It reads its journal, or waits for a build that can, and cannot tell yet where its log ends.
    Recovering(Identity),
    Report(Report),
    /// It says of itself that it is done: its journal failed, or it is leaving.
    Ended(Identity),
}

impl Said {
    pub fn identity(&self) -> &Identity {
        match self {
            Self::Recovering(identity) | Self::Ended(identity) => identity,
            Self::Report(report) => &report.identity,
        }
    }
}

/// `asked`: the name it was reached under. `now`: when the status came, on the reader's clock.
///
/// # Errors
/// If it is another's, or says what no broker says.
pub fn read(status: &wire::Status, cluster: &str, asked: &ReplicaName, now: Duration) -> Result<Said, ReadError> {
    if status.cluster != cluster {
        return Err(ReadError::WrongCluster(status.cluster.chars().take(80).collect()));
    }
    let identity = identity(status.identity.as_ref().ok_or(ReadError::NoIdentity)?)?;
    if identity.name != *asked {
        return Err(ReadError::WrongName { claimed: identity.name.to_string(), asked: asked.clone() });
    }
    match wire::Role::try_from(status.role) {
        Err(_) | Ok(wire::Role::Unspecified) => return Err(ReadError::UnknownRole(status.role)),
        Ok(wire::Role::Recovering) => return Ok(Said::Recovering(identity)),
        Ok(wire::Role::Ended) => return Ok(Said::Ended(identity)),
        Ok(_) => {}
    }
    if status.in_sync.len() > MAX_MEMBERS {
        return Err(ReadError::TooManyMembers(status.in_sync.len()));
    }
    let recorded_set: BTreeSet<Member> =
        status.in_sync.iter().map(|member| member.parse()).collect::<Result<_, _>>()?;
    let (known_epoch, last) = (Epoch(status.epoch), position(status.last.as_ref()));
    let role = match status.role() {
        wire::Role::Primary => {
            Role::Primary { epoch: known_epoch, stalled_for: Duration::from_millis(status.journal_stalled_ms) }
        }
        _ => status.heard.as_ref().map_or(Role::Idle, |heard| hearing(heard, now)),
    };
    Ok(Said::Report(Report {
        identity,
        known_epoch,
        last,
        // A build of before this was said counted its whole log.
        durable: status
            .durable_epoch
            .map_or(last, |epoch| Position { epoch: Epoch(epoch), index: Index(status.durable) }),
        state: if status.clean { StoreState::Clean } else { StoreState::Dirty },
        recorded_set,
        knows: VersionRange {
            oldest: ClusterVersion::said(status.oldest_version),
            newest: ClusterVersion::said(status.newest_version),
        },
        cluster_version: ClusterVersion::said(status.cluster_version),
        role,
        blank_seen: Some(status.blank_lease.as_str()).filter(|text| !text.is_empty()).map(Incarnation::new),
    }))
}

/// Without a primary, and without having lost one, a broker has followed nobody yet.
fn hearing(heard: &wire::HeardPrimary, now: Duration) -> Role {
    let epoch = Epoch(heard.epoch);
    match (&heard.primary, &heard.lost) {
        (Some(_), None) => Role::Hears { epoch },
        (_, Some(lost)) if epoch > Epoch(0) => Role::Lost {
            epoch,
            since: now.saturating_sub(Duration::from_millis(lost.since_ms)),
            how: if lost.reset { Loss::Reset } else { Loss::Silent },
        },
        _ => Role::Idle,
    }
}

fn position(position: Option<&wire::Position>) -> Position {
    position.map_or_else(Position::default, |p| Position { epoch: Epoch(p.epoch), index: Index(p.index) })
}

/// By way of the written form, so that one place decides what a well-formed identity is.
pub fn identity(wire: &wire::Identity) -> Result<Identity, ParseIdError> {
    format!("{}/{}/{}", wire.name, wire.store, wire.process).parse()
}

pub fn wire_identity(identity: &Identity) -> wire::Identity {
    wire::Identity {
        name: identity.name.to_string(),
        store: identity.store.to_string(),
        process: identity.process.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hearing_lost_and_idle() {
        let now = Duration::from_secs(10);
        let primary = || Some(wire::Identity::default());
        let lost = |reset| Some(wire::Lost { since_ms: 300, reset });
        let since = Duration::from_millis(9_700);
        let table = [
            (primary(), 3, None, Role::Hears { epoch: Epoch(3) }),
            (primary(), 3, lost(true), Role::Lost { epoch: Epoch(3), since, how: Loss::Reset }),
            (None, 3, lost(false), Role::Lost { epoch: Epoch(3), since, how: Loss::Silent }),
            (None, 3, None, Role::Idle),
            (None, 0, lost(true), Role::Idle),
        ];
        for (primary, epoch, lost, expected) in table {
            let heard = wire::HeardPrimary { primary, epoch, lost };
            assert_eq!(hearing(&heard, now), expected, "{heard:?}");
        }
    }
}
