//! Wire messages to domain values and back. What a peer sends wrong is an error that names the field, never a panic.

use std::time::Duration;

use bytes::Bytes;
use tonic::Status as RpcStatus;
use understudy_proto::{self as wire, wire_identity};
use understudy_record::version::{ClusterVersion, VersionRange};
use understudy_record::{BacklogCursor, Epoch, Frame, Identity, Index, Member, Position, QueueId, ReplicaName, Rope};
use understudy_replication::{
    Acknowledge, BacklogQueue, Base, CatchUpProgress, FollowerCatchUp, HalfBase, Hello, History, PrimaryMessage,
    Records, Refusal, Resume, SyncId, Waiting, Welcome,
};

use understudy_node::{BacklogReply, NodeStatus, RoleStatus, ToPrimary};

/// A message says something that no peer of this version says.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ConvertError {
    #[error("{0} is missing")]
    Missing(&'static str),
    #[error("{field} is {value:?}")]
    Field { field: &'static str, value: String },
    #[error("a frame on the stream is damaged: {0}")]
    Frame(#[from] understudy_record::FrameError),
    #[error("{bytes} bytes after the last whole frame")]
    PartialFrame { bytes: usize },
}

impl From<ConvertError> for RpcStatus {
    fn from(error: ConvertError) -> Self {
        Self::invalid_argument(error.to_string())
    }
}

fn identity(from: Option<&wire::Identity>) -> Result<Identity, ConvertError> {
    let from = from.ok_or(ConvertError::Missing("identity"))?;
    wire::identity(from).map_err(|error| ConvertError::Field { field: "identity", value: error.to_string() })
}

fn position_to_wire(position: Position) -> wire::Position {
    wire::Position { epoch: position.epoch.0, index: position.index.0 }
}

fn position(from: wire::Position) -> Position {
    Position { epoch: Epoch(from.epoch), index: Index(from.index) }
}

fn frames_to_wire(frames: &[Frame]) -> Vec<Bytes> {
    frames.iter().flat_map(Frame::pieces).cloned().collect()
}

/// Checks every frame's checksum; slices, does not copy, where a frame lies in one piece.
pub(super) fn frames(pieces: Vec<Bytes>) -> Result<Vec<Frame>, ConvertError> {
    let mut rope = Rope::default();
    pieces.into_iter().for_each(|piece| rope.push(piece));
    let mut frames = Vec::new();
    while let Some(frame) = Frame::take(&mut rope)? {
        frames.push(frame);
    }
    if rope.is_empty() { Ok(frames) } else { Err(ConvertError::PartialFrame { bytes: rope.len() }) }
}

pub(super) fn to_primary_to_wire(word: ToPrimary, cluster: &str) -> wire::FollowerMessage {
    use wire::follower_message::Message;
    let alarms = match &word {
        ToPrimary::Acknowledge(_, alarms) if alarms.any() => Some((*alarms).into()),
        _ => None,
    };
    let message = match word {
        ToPrimary::Hello(hello, inconsistent_at) => {
            let inconsistent_at = inconsistent_at.map_or(0, |at| at.0);
            Message::Hello(wire::Hello { inconsistent_at, ..hello_to_wire(&hello, cluster) })
        }
        ToPrimary::Acknowledge(ack, _) => Message::Acknowledge(wire::Acknowledge {
            epoch: ack.epoch.0,
            durable: ack.durable.0,
            received: ack.received.0,
            echo: 0,
        }),
        ToPrimary::CaughtUp(floor) => Message::CaughtUp(wire::CaughtUp { floor: floor.0 }),
        ToPrimary::Leaving(reason, inconsistent_at) => {
            Message::Leaving(wire::Leaving { reason, inconsistent_at: inconsistent_at.map_or(0, |at| at.0) })
        }
        ToPrimary::Fetch { .. } => panic!("a fetch is a call of its own, not a word on the stream"),
    };
    wire::FollowerMessage { message: Some(message), alarms }
}

fn hello_to_wire(hello: &Hello, cluster: &str) -> wire::Hello {
    wire::Hello {
        min_version: hello.knows.oldest.0,
        max_version: hello.knows.newest.0,
        cluster: cluster.to_owned(),
        follower: Some(wire_identity(&hello.follower)),
        epoch: hello.epoch.0,
        epochs: hello.history.starts().iter().copied().map(position_to_wire).collect(),
        last: Some(position_to_wire(hello.history.last())),
        floor: hello.floor.0,
        clean: hello.clean,
        first: hello.first.0,
        inconsistent_at: 0,
        half_base: hello.half_base.map(|half| wire::HalfBase { epoch: half.epoch.0, sync_id: half.sync_id.0 }),
    }
}

pub(super) fn hello(from: wire::Hello, cluster: &str) -> Result<Hello, ConvertError> {
    if from.cluster != cluster {
        return Err(ConvertError::Field { field: "cluster", value: from.cluster });
    }
    let last = position(from.last.ok_or(ConvertError::Missing("last"))?);
    let starts = from.epochs.into_iter().map(position).collect();
    let history = History::new(starts, last.index).filter(|history| history.last() == last);
    let history =
        history.ok_or_else(|| ConvertError::Field { field: "epochs", value: format!("not leading to {last}") })?;
    Ok(Hello {
        follower: identity(from.follower.as_ref())?,
        epoch: Epoch(from.epoch),
        history,
        first: Index(from.first),
        floor: Index(from.floor),
        clean: from.clean,
        knows: VersionRange {
            oldest: ClusterVersion::said(from.min_version),
            newest: ClusterVersion::said(from.max_version),
        },
        half_base: from.half_base.map(|half| HalfBase { epoch: Epoch(half.epoch), sync_id: SyncId(half.sync_id) }),
    })
}

pub(super) fn acknowledge(from: &wire::Acknowledge) -> Acknowledge {
    Acknowledge { epoch: Epoch(from.epoch), durable: Index(from.durable), received: Index(from.received) }
}

pub(super) fn primary_message_to_wire(message: PrimaryMessage) -> wire::PrimaryMessage {
    use wire::primary_message::Message;
    let message = match message {
        PrimaryMessage::Welcome(welcome) => Message::Welcome(wire::Welcome {
            version: welcome.version.0,
            epoch: welcome.epoch.0,
            primary: Some(wire_identity(&welcome.primary)),
            resume_after: match welcome.resume {
                Resume::After(index) => Some(index.0),
                Resume::Base | Resume::SameBase(_) => None,
            },
            same_base: match welcome.resume {
                Resume::SameBase(sync_id) => Some(sync_id.0),
                Resume::Base | Resume::After(_) => None,
            },
        }),
        PrimaryMessage::Records(records) => Message::Records(wire::Records {
            epoch: records.epoch.0,
            committed: records.committed.0,
            pieces: frames_to_wire(&records.frames),
            echo: 0,
        }),
        PrimaryMessage::Refusal(refusal) => {
            Message::Refusal(wire::Refusal { epoch: refusal.epoch.0, primary: String::new(), reason: refusal.reason })
        }
        PrimaryMessage::Version(version) => Message::Version(version.0),
        PrimaryMessage::Base(base) => Message::Base(wire::Base {
            epoch: base.epoch.0,
            sync_id: base.sync_id.0,
            sync_point: Some(position_to_wire(base.sync_point)),
            pieces: frames_to_wire(&base.frames),
            queues: base
                .queues
                .iter()
                .map(|queue| wire::BacklogQueue {
                    queue: queue.queue.0.0,
                    messages: queue.messages,
                    bytes: queue.bytes,
                })
                .collect(),
            last: true,
        }),
        PrimaryMessage::Waiting(waiting) => {
            Message::Waiting(wire::Waiting { epoch: waiting.epoch.0, place: waiting.place })
        }
    };
    wire::PrimaryMessage { message: Some(message) }
}

pub(super) fn primary_message(from: wire::PrimaryMessage) -> Result<PrimaryMessage, ConvertError> {
    use wire::primary_message::Message;
    Ok(match from.message.ok_or(ConvertError::Missing("message"))? {
        Message::Welcome(welcome) => PrimaryMessage::Welcome(Welcome {
            epoch: Epoch(welcome.epoch),
            primary: identity(welcome.primary.as_ref())?,
            version: ClusterVersion::said(welcome.version),
            resume: match (welcome.resume_after, welcome.same_base) {
                (Some(index), _) => Resume::After(Index(index)),
                (None, Some(sync_id)) => Resume::SameBase(SyncId(sync_id)),
                (None, None) => Resume::Base,
            },
        }),
        Message::Records(records) => PrimaryMessage::Records(Records {
            epoch: Epoch(records.epoch),
            committed: Index(records.committed),
            frames: frames(records.pieces)?,
        }),
        Message::Waiting(waiting) => {
            PrimaryMessage::Waiting(Waiting { epoch: Epoch(waiting.epoch), place: waiting.place })
        }
        Message::Refusal(refusal) => {
            PrimaryMessage::Refusal(Refusal { epoch: Epoch(refusal.epoch), reason: refusal.reason })
        }
        Message::Version(version) => PrimaryMessage::Version(ClusterVersion::said(version)),
        Message::Base(base) => PrimaryMessage::Base(Base {
            epoch: Epoch(base.epoch),
            sync_id: SyncId(base.sync_id),
            sync_point: position(base.sync_point.ok_or(ConvertError::Missing("sync_point"))?),
            frames: frames(base.pieces)?,
            queues: base
                .queues
                .iter()
                .map(|queue| BacklogQueue {
                    queue: QueueId(Index(queue.queue)),
                    messages: queue.messages,
                    bytes: queue.bytes,
                })
                .collect(),
        }),
    })
}

pub(super) fn backlog_to_wire(backlog: BacklogReply) -> wire::BacklogChunk {
    wire::BacklogChunk {
        as_of: backlog.as_of.0,
        pieces: frames_to_wire(&backlog.frames),
        done: backlog.done,
        next: Some(cursor_to_wire(backlog.next)),
        messages: backlog.messages,
        bytes: backlog.bytes,
    }
}

pub(super) fn cursor_to_wire(cursor: BacklogCursor) -> wire::BacklogCursor {
    let (begun, parts) = cursor.begun.map_or((0, 0), |(index, parts)| (index.0, parts as u64));
    wire::BacklogCursor { before: cursor.before.0, begun, parts, has_begun: cursor.begun.is_some() }
}

pub(super) fn cursor(from: Option<wire::BacklogCursor>) -> BacklogCursor {
    let Some(from) = from else { return BacklogCursor::START };
    let parts = usize::try_from(from.parts).unwrap_or(usize::MAX);
    BacklogCursor { before: Index(from.before), begun: from.has_begun.then_some((Index(from.begun), parts)) }
}

fn catch_up_to_wire(progress: CatchUpProgress) -> wire::CatchUp {
    wire::CatchUp {
        queues_done: progress.queues_done,
        queues: progress.queues,
        bytes_done: progress.bytes_done,
        bytes: progress.bytes,
        messages_done: progress.messages_done,
        messages: progress.messages,
        bytes_per_second: progress.bytes_per_second,
        remaining_seconds: progress.remaining.map(|remaining| remaining.as_secs()),
        resumed: progress.resumed,
        place: progress.place,
    }
}

fn follower_catch_up_to_wire(catch_up: FollowerCatchUp) -> wire::CatchUp {
    match catch_up {
        FollowerCatchUp::Waiting { place } => wire::CatchUp { place, ..wire::CatchUp::default() },
        FollowerCatchUp::Running { queues_done, queues } => {
            wire::CatchUp { queues_done, queues, ..wire::CatchUp::default() }
        }
    }
}

/// A node's snapshot as the operator sees it.
pub(crate) fn status_to_wire(status: &NodeStatus, cluster: &str, now: Duration) -> wire::Status {
    let mut to = wire::Status {
        cluster: cluster.to_owned(),
        identity: Some(wire_identity(&status.me)),
        epoch: status.epoch.0,
        last: Some(position_to_wire(status.last)),
        durable: status.durable.index.0,
        durable_epoch: Some(status.durable.epoch.0),
        committed: status.committed.0,
        clean: status.is_clean(),
        first: status.first.0,
        in_sync: status.in_sync.iter().map(Member::to_string).collect(),
        in_sync_epoch: status.last.epoch.0,
        journal_stalled_ms: status.journal_stalled_ms,
        blank_lease: status.blank_seen.as_ref().map(ToString::to_string).unwrap_or_default(),
        message: (status.failure.clone().or_else(|| status.needs_upgrade.clone()).or_else(|| status.waits.clone()))
            .unwrap_or_default(),
        cluster_version: status.cluster_version.0,
        oldest_version: VersionRange::OWN.oldest.0,
        newest_version: VersionRange::OWN.newest.0,
        needs_upgrade: status.needs_upgrade.clone().unwrap_or_default(),
        alarms: status.alarms.any().then(|| status.alarms.into()),
        inconsistency: status.inconsistency.clone().unwrap_or_default(),
        inconsistencies: status.inconsistencies,
        settings: status.settings.as_ref().map(|settings| wire::Settings {
            replicas: u32::try_from(settings.replicas.len()).unwrap_or(u32::MAX),
            min_in_sync: u32::try_from(settings.min_in_sync).unwrap_or(u32::MAX),
            consumer_timeout_ms: u64::try_from(settings.consumer_timeout.as_millis()).unwrap_or(u64::MAX),
        }),
        ..wire::Status::default()
    };
    match &status.role {
        // Older readers know no better word for one that cannot take part yet.
        RoleStatus::Recovering | RoleStatus::Outdated => to.set_role(wire::Role::Recovering),
        RoleStatus::Fenced => {
            to.set_role(wire::Role::Recovering);
            to.fenced = true;
            to.message = "fenced: a person keeps it out".into();
        }
        RoleStatus::Ended => to.set_role(wire::Role::Ended),
        RoleStatus::Backup { primary, lost, catch_up, .. } => {
            to.set_role(match (primary, catch_up) {
                (_, Some(_)) => wire::Role::CatchingUp,
                (Some(_), None) => wire::Role::Backup,
                (None, None) => wire::Role::Idle,
            });
            to.heard = Some(wire::HeardPrimary {
                primary: primary.as_ref().map(wire_identity),
                epoch: status.epoch.0,
                lost: lost.map(|(since, reset)| wire::Lost { since_ms: since.as_millis() as u64, reset }),
            });
            to.catch_up = catch_up.map(catch_up_to_wire);
        }
        RoleStatus::Primary {
            since,
            held,
            blocked,
            isolated,
            followers,
            disagreed,
            connections,
            queues,
            ready,
            unacknowledged,
            resident_bytes: _,
            remembered_keys: _,
        } => {
            to.set_role(wire::Role::Primary);
            to.primary_for_ms = now.saturating_sub(*since).as_millis() as u64;
            to.confirms_held = held.clone().unwrap_or_default();
            to.publishers_blocked = blocked.clone().unwrap_or_default();
            if *isolated {
                to.message = "isolated: no client is served".into();
            }
            to.followers = followers
                .iter()
                .map(|follower| wire::Follower {
                    identity: Some(wire_identity(&follower.identity)),
                    durable: follower.durable.0,
                    in_sync: follower.in_sync,
                    catch_up: follower.catch_up.map(follower_catch_up_to_wire),
                    inconsistencies: disagreed.get(&follower.identity.name).copied().unwrap_or(0),
                })
                .collect();
            to.counts = Some(wire::Counts {
                connections: *connections,
                queues: *queues,
                ready: *ready,
                unacknowledged: *unacknowledged,
            });
        }
    }
    to
}

pub(super) fn replica_name(text: &str) -> Option<ReplicaName> {
    (!text.is_empty()).then(|| ReplicaName::new(text))
}
