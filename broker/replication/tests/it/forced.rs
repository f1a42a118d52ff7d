//! A person's word gives the role to a store that no election would take.

use std::collections::VecDeque;
use std::time::Duration;

use understudy_record::version::{ClusterVersion, VersionRange};
use understudy_record::{Epoch, Identity, Index, Position, ProcessId, ReplicaName, StoreId};
use understudy_replication::{Backup, BackupConfig, BackupOutput, History, RecoveredLog};

#[test]
fn a_damaged_store_takes_the_role_with_the_log_it_has() {
    let start = Position { epoch: Epoch(1), index: Index(1) };
    let log = RecoveredLog {
        cluster_version: ClusterVersion::FIRST,
        known_epoch: Epoch(1),
        history: History::new(vec![start], Index(7)).unwrap(),
        first: Index(1),
        floor: Index(0),
        applied: Index(7),
        pending: VecDeque::new(),
        damaged: true,
    };
    let me = Identity { name: ReplicaName::new("r1"), store: StoreId(1), process: ProcessId(1) };
    let config =
        BackupConfig { knows: VersionRange::OWN, me, replicated_only: false, backup_timeout: Duration::from_secs(2) };
    let mut backup = Backup::new(Duration::ZERO, config, log);
    assert!(!backup.is_clean(), "no election without a person takes it");
    let mut outputs = Vec::new();
    let log = backup.handle_elected(Epoch(2), ClusterVersion::FIRST, &mut outputs).unwrap();
    assert_eq!(log.history.last().index, Index(7));
    let epoch_kept = outputs.iter().any(|output| matches!(output, BackupOutput::PersistEpoch(Epoch(2))));
    assert!(epoch_kept, "the epoch is made durable like in any election: {outputs:?}");
}
