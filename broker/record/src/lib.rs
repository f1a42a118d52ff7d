//! The vocabulary of the log: who wrote a record, where it stands, what it says, and the bytes it is.
//!
//! Every other crate of the broker speaks in these types: the core produces [`Record`]s, the journal stores [`Frame`]s,
//! replication carries the same frames unchanged. This crate decides nothing: it holds no state machine, opens no file,
//! knows no clock and no AMQP grammar (properties and argument tables are raw bytes here).

mod admin;
mod alarms;
mod body;
mod cursor;
mod fields;
mod frame;
mod ids;
mod keys;
mod record;
mod scrub;
pub mod variant;
pub mod version;
mod wire;

pub use admin::{
    Admin, ApplyTo, HashAlgorithm, PasswordHash, Permission, PolicySpec, TopicPermission, UserLimits, UserSpec,
    VhostLimits, VhostSpec,
};
pub use alarms::{Alarms, Shortage};
pub use body::{Body, Rope};
pub use cursor::BacklogCursor;
pub use frame::{FRAME_HEADER_BYTES, Frame, FrameError, FrameKind, MAX_BODY_BYTES, MAX_META_BYTES, peek_header};
pub use ids::{
    Epoch, Identity, Index, Member, ParseIdError, Position, ProcessId, QueueId, ReplicaName, ShortStr, StoreId, VhostId,
};
pub use record::{
    BasePiece, Binding, Destination, ExchangeKind, ExchangeSpec, HeldKey, HeldMessage, KeyedBy, Message, MessageKey,
    PartRef, QueueSpec, Record, RecordError, Replicate, SeenKey, Settled,
};
pub use scrub::StateDigest;
