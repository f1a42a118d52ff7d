//! A journal without a disk: orders are carried out in order, each batch whole; a crash loses the orders not carried out.

use std::collections::BTreeMap;

use understudy_record::version::ClusterVersion;
use understudy_record::{BasePiece, Epoch, Frame, FrameKind, Index, Position, Record, StoreId};
use understudy_replication::{History, Session};

/// What a log's records and base say: each message's index and the number it carries.
pub(crate) type Contents = BTreeMap<Index, u64>;

#[derive(Clone, Debug, Default)]
pub(crate) struct Log {
    pub(crate) base: Option<BaseLog>,
    pub(crate) records: Vec<Frame>,
    /// Where a checkpoint left off to cut records away; they may reach back before its sync point.
    first_record: Option<Index>,
    /// What base and records say, kept as they come.
    contents: Contents,
}

#[derive(Clone, Debug)]
pub(crate) struct BaseLog {
    pub(crate) sync_point: Position,
    epochs: Vec<Position>,
    pub(crate) floor: Option<Index>,
}

#[derive(Clone, Debug)]
pub(crate) struct Store {
    pub(crate) id: StoreId,
    pub(crate) known_epoch: Epoch,
    pub(crate) cluster_version: ClusterVersion,
    pub(crate) log: Log,
    /// A new log beside the old one.
    building: Option<Log>,
    /// Grows whenever something that was in the log may not be there any more.
    pub(crate) losses: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Writer {
    Primary(Epoch),
    Backup(Session),
}

#[derive(Clone, Debug)]
pub(crate) enum Order {
    Append(Writer, Vec<Frame>),
    Barrier(Writer),
    PersistEpoch(Epoch),
    PersistVersion(ClusterVersion),
    Truncate(Index),
    BeginBase,
    CompleteBase(Session),
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Report {
    Durable(Writer, Index),
    BaseCompleted(Session),
}

impl Log {
    pub(crate) fn history(&self) -> History {
        let mut starts = self.base.as_ref().map_or(Vec::new(), |base| base.epochs.clone());
        let mut last = self.base.as_ref().map_or(Index(0), |base| base.sync_point.index);
        for frame in &self.records {
            if starts.last().is_none_or(|start| start.epoch < frame.position.epoch) {
                starts.push(frame.position);
            }
            last = frame.position.index;
        }
        History::new(starts, last).expect("a log's epochs are in order")
    }

    pub(crate) fn first(&self) -> Index {
        let by_base = self.base.as_ref().map_or(Index(1), |base| base.sync_point.index.next());
        self.first_record.unwrap_or(by_base)
    }

    /// A checkpoint of `sync_point` takes the place of the records before `first`, and of any base.
    pub(crate) fn rest_on(&mut self, sync_point: Index, floor: Index, first: Index) {
        let history = self.history();
        let epoch = history.epoch_at(sync_point).expect("the sync point is in the log");
        let epochs = history.starts().iter().filter(|start| start.index <= sync_point).copied().collect();
        let sync_point = Position::new(epoch, sync_point);
        self.base = Some(BaseLog { sync_point, epochs, floor: Some(floor) });
        self.records.retain(|frame| frame.position.index >= first);
        self.first_record = Some(first);
    }

    pub(crate) fn is_checkpointed(&self) -> bool {
        self.first_record.is_some()
    }

    pub(crate) fn contents(&self) -> &Contents {
        &self.contents
    }

    fn last(&self) -> Index {
        let base = self.base.as_ref().map_or(Index(0), |base| base.sync_point.index);
        self.records.last().map_or(base, |frame| frame.position.index)
    }

    fn truncate_after(&mut self, after: Index) {
        while self.records.last().is_some_and(|frame| frame.position.index > after) {
            self.records.pop();
        }
        _ = self.contents.split_off(&after.next());
    }

    fn append(&mut self, frames: &[Frame]) {
        for frame in frames {
            match frame.kind {
                FrameKind::Record => {
                    assert_eq!(frame.position.index, self.last().next(), "the log has no gap");
                    self.contents.extend(number_of(frame).map(|number| (frame.position.index, number)));
                    self.records.push(frame.clone());
                }
                FrameKind::Base => self.take_piece(frame.decode_base().unwrap()),
            }
        }
    }

    fn take_piece(&mut self, piece: BasePiece) {
        if let BasePiece::Start { sync_point, epochs, .. } = piece {
            *self = Self::default();
            self.base = Some(BaseLog { sync_point, epochs, floor: None });
            return;
        }
        let base = self.base.as_mut().expect("a base begins with its start");
        match piece {
            BasePiece::Message { index, message, .. } => _ = self.contents.insert(index, body_number(&message.body)),
            BasePiece::End { floor } => base.floor = Some(floor),
            _ => {}
        }
    }
}

impl Store {
    pub(crate) fn new(id: u128) -> Self {
        let (known_epoch, cluster_version) = (Epoch(0), ClusterVersion::FIRST);
        Self { id: StoreId(id), known_epoch, cluster_version, log: Log::default(), building: None, losses: 0 }
    }

    pub(crate) fn is_building(&self) -> bool {
        self.building.is_some()
    }

    /// A crash: what was being built is of no use.
    pub(crate) fn crash(&mut self) {
        self.building = None;
    }

    pub(crate) fn carry_out(&mut self, orders: impl Iterator<Item = Order>) -> Vec<Report> {
        let mut reports = Vec::new();
        for order in orders {
            let log = self.building.as_mut().unwrap_or(&mut self.log);
            match order {
                Order::Append(writer, frames) => {
                    let written_at = frames.iter().filter_map(version_of).max().unwrap_or_default();
                    assert!(
                        written_at <= self.cluster_version,
                        "a store at {:?} has {written_at:?}",
                        self.cluster_version
                    );
                    log.append(&frames);
                    reports.push(Report::Durable(writer, log.last()));
                }
                Order::Barrier(writer) => reports.push(Report::Durable(writer, log.last())),
                Order::PersistEpoch(epoch) => self.known_epoch = self.known_epoch.max(epoch),
                Order::PersistVersion(version) => self.cluster_version = self.cluster_version.max(version),
                Order::Truncate(after) => {
                    log.truncate_after(after);
                    self.losses += 1;
                }
                Order::BeginBase => self.building = Some(Log::default()),
                Order::CompleteBase(session) => {
                    self.log = self.building.take().expect("a base that is completed was begun");
                    let floor = self.log.base.as_ref().and_then(|base| base.floor).expect("a whole base has its end");
                    assert!(
                        self.log.last() >= floor,
                        "the journal refuses a base whose log ends at {} below its floor {floor}",
                        self.log.last()
                    );
                    self.losses += 1;
                    reports.push(Report::BaseCompleted(session));
                }
            }
        }
        reports
    }
}

/// The number a message carries, if the record is one.
pub(crate) fn number_of(frame: &Frame) -> Option<u64> {
    match frame.decode_record().unwrap() {
        Record::Publish { message, .. } => Some(body_number(&message.body)),
        _ => None,
    }
}

/// The version that the cluster had, as its primary knew it, when a message was written. Those of a backlog do not say.
fn version_of(frame: &Frame) -> Option<ClusterVersion> {
    let body = frame.body().to_contiguous();
    body.get(8..12).map(|bytes| ClusterVersion(u32::from_le_bytes(bytes.try_into().unwrap())))
}

pub(crate) fn body_number(body: &understudy_record::Body) -> u64 {
    u64::from_le_bytes(body.to_contiguous()[..8].try_into().unwrap())
}
