//! Replication: what makes a confirm true. The primary's side ([`Primary`]), the backup's ([`Backup`]), and how far the
//! log is safe ([`Commit`]).
//!
//! Pure: no socket, file, thread or clock. `now` is a [`Duration`](std::time::Duration) since any fixed moment, given
//! with each call; what must be done is written to an output list that the caller carries out in order. It knows the
//! log's positions and epochs, not what records mean: the state they change lives in the core, which the caller feeds.
//!
//! The rules are those of ARCHITECTURE.md, "The eight rules"; each is cited where it is kept.

mod backup;
mod catch_up;
mod commit;
mod history;
mod keeper;
mod message;
mod primary;
mod recent;

pub use backup::{Backup, BackupConfig, BackupOutput, FollowError, RecoveredLog, Session};
pub use catch_up::CatchUpProgress;
pub use commit::{Commit, InSyncSet, ProposeError, SwapOutcome};
pub use history::{History, OwnLog};
pub use keeper::{KeeperOutput, LeaseAnswer, LeaseKeeper, LeaseRequest};
pub use message::{
    Acknowledge, Backlog, BacklogQueue, Base, HalfBase, Hello, PrimaryMessage, Records, Refusal, Resume, SyncId,
    Waiting, Welcome,
};
pub use primary::{FollowerCatchUp, FollowerStatus, Hold, Primary, PrimaryConfig, PrimaryOutput, StreamId};
