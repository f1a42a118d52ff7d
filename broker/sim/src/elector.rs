//! Who elects: the operator with the widest view, and each backup for itself. What they see, they see late, or not at all.

use std::collections::BTreeMap;
use std::time::Duration;

use understudy_election::{
    Contact, Elector, Force, LeaseTracker, Loss, ReplicaView, Report, Role, Spec, StoreState, Timings, View,
};
use understudy_node::{NodeStatus, RoleStatus};
use understudy_record::ReplicaName;
use understudy_record::version::VersionRange;

use crate::plan::{BACKUP_TIMEOUT, LEASE_DURATION, STALL_TIMEOUT};

/// What an elector remembers of one replica.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sight {
    pub(crate) report: Option<Report>,
    pub(crate) heard_at: Option<Duration>,
    pub(crate) lost: Option<(Duration, Loss)>,
    /// Its process is known to have ended.
    pub(crate) gone: bool,
}

/// The operator: one, or none for a while.
#[derive(Debug, Default)]
pub(crate) struct Operator {
    pub(crate) tracker: LeaseTracker,
    pub(crate) sights: BTreeMap<ReplicaName, Sight>,
    pub(crate) away_until: Duration,
    /// A swap of its own is on its way.
    pub(crate) busy: bool,
}

/// A replica that is quiet for longer counts as lost since it was last heard.
const QUIET_AFTER: Duration = Duration::from_millis(300);

impl Sight {
    pub(crate) fn hear(&mut self, now: Duration, report: Option<Report>) {
        self.gone = report.is_none();
        self.heard_at = Some(now);
        self.lost = None;
        if let Some(report) = report {
            self.report = Some(report);
        }
    }

    pub(crate) fn lose(&mut self, now: Duration, how: Loss) {
        let since = match (self.lost, how) {
            (Some((since, _)), _) => since,
            (None, Loss::Reset) => now,
            (None, Loss::Silent) => self.heard_at.unwrap_or(now),
        };
        self.lost = Some((since, how));
    }

    fn view(&self, now: Duration) -> ReplicaView {
        let contact = match (self.heard_at, self.lost) {
            _ if self.gone => Contact::Gone,
            (_, Some((since, how))) => Contact::Lost { since, how },
            (Some(at), None) if now < at + QUIET_AFTER => Contact::Reachable,
            (Some(at), None) => Contact::Lost { since: at, how: Loss::Silent },
            (None, None) => Contact::Unknown,
        };
        ReplicaView { contact, report: self.report.clone() }
    }
}

/// What a replica says of itself to an elector; `None`: it reads its log still, or is done.
pub(crate) fn report(status: &NodeStatus, now: Duration) -> Option<Report> {
    let role = match &status.role {
        RoleStatus::Recovering | RoleStatus::Ended | RoleStatus::Outdated | RoleStatus::Fenced => return None,
        RoleStatus::Primary { .. } => {
            Role::Primary { epoch: status.epoch, stalled_for: Duration::from_millis(status.journal_stalled_ms) }
        }
        RoleStatus::Backup { primary: Some(_), lost: None, .. } => Role::Hears { epoch: status.epoch },
        RoleStatus::Backup { lost: Some((age, reset)), .. } if status.epoch.0 > 0 => Role::Lost {
            epoch: status.epoch,
            since: now.saturating_sub(*age),
            how: if *reset { Loss::Reset } else { Loss::Silent },
        },
        RoleStatus::Backup { .. } => Role::Idle,
    };
    Some(Report {
        identity: status.me.clone(),
        known_epoch: status.epoch,
        last: status.last,
        durable: status.durable,
        state: if status.is_clean() { StoreState::Clean } else { StoreState::Dirty },
        recorded_set: status.in_sync.iter().cloned().collect(),
        role,
        blank_seen: status.blank_seen.clone(),
        cluster_version: status.cluster_version,
        knows: VersionRange::OWN,
    })
}

pub(crate) fn view(
    now: Duration,
    elector: Elector,
    tracker: &LeaseTracker,
    sights: &BTreeMap<ReplicaName, Sight>,
    names: &[ReplicaName],
    processes_in_set: bool,
) -> View {
    View {
        elector,
        register: tracker.register().clone(),
        replicas: sights.iter().map(|(name, sight)| (name.clone(), sight.view(now))).collect(),
        spec: Spec {
            replicas: names.iter().cloned().collect(),
            processes_in_set,
            preferred: None,
            forced: Force::No,
            ..Spec::default()
        },
        timings: Timings {
            lease_duration: LEASE_DURATION,
            backup_timeout: BACKUP_TIMEOUT,
            stall_timeout: STALL_TIMEOUT,
        },
    }
}
