//! What no client sees: each replica's log as it was ordered and made durable, compared with what the rules promise. One
//! primary an epoch; committed logs are prefixes of one another; what is confirmed is on every member of the set that is in
//! force.

use std::collections::{BTreeMap, BTreeSet};

use understudy_election::Lease;
use understudy_node::{JournalEvent, Order, Writer};
use understudy_record::{BasePiece, Epoch, Frame, FrameKind, Identity, Index, Record};

use crate::ledger::MessageId;

/// One store's log as it is known from outside.
#[derive(Clone, Debug, Default)]
struct Mirror {
    /// Each record with its epoch and checksum.
    records: BTreeMap<Index, (Epoch, u64)>,
    /// What is not after this is in a base or a checkpoint, in some form.
    covered: Index,
    durable: Index,
}

#[derive(Debug, Default)]
struct Store {
    log: Mirror,
    /// Beside it, while a base comes in.
    building: Option<Mirror>,
    /// Committed up to here has been compared.
    compared: Index,
}

#[derive(Debug, Default)]
pub(crate) struct Witness {
    stores: BTreeMap<usize, Store>,
    committed: BTreeMap<Index, (Epoch, u64)>,
    writers: BTreeMap<Epoch, Identity>,
    /// Where each message's record is, in any log.
    places: BTreeMap<MessageId, BTreeSet<(Index, u64)>>,
    confirmed: BTreeSet<MessageId>,
}

/// A replica as it stands to the set: where it is, and who it is now.
pub(crate) struct Standing {
    pub(crate) place: usize,
    pub(crate) identity: Option<Identity>,
    pub(crate) store: Option<understudy_record::StoreId>,
}

impl Witness {
    /// The process that begins there found this log.
    pub(crate) fn found(&mut self, place: usize, frames: &[Frame], last: Index) {
        let records = || frames.iter().filter(|frame| frame.kind == FrameKind::Record);
        let covered = records().next().map_or(last, |frame| frame.position.index.previous());
        let mut log = Mirror { covered, durable: last, ..Mirror::default() };
        for frame in records() {
            log.records.insert(frame.position.index, (frame.position.epoch, checksum(frame)));
        }
        self.stores.insert(place, Store { log, building: None, compared: Index(0) });
    }

    /// What `who` wrote as primary is on its disk, or on its way to others.
    ///
    /// # Errors
    /// If another process has written under that epoch.
    pub(crate) fn wrote(&mut self, who: &Identity, epoch: Epoch) -> Result<(), String> {
        let writer = self.writers.entry(epoch).or_insert_with(|| who.clone());
        if writer != who {
            return Err(format!("{who} writes under epoch {epoch}, and so did {writer}"));
        }
        Ok(())
    }

    /// # Errors
    /// If what is committed would be cut.
    pub(crate) fn ordered(&mut self, place: usize, who: &Identity, order: &Order) -> Result<(), String> {
        let store = self.stores.entry(place).or_default();
        match order {
            Order::Append(_, frames) => {
                let log = store.building.as_mut().unwrap_or(&mut store.log);
                for frame in frames {
                    let sum = checksum(frame);
                    if frame.kind == FrameKind::Base {
                        if let Ok(BasePiece::Start { sync_point, .. }) = frame.decode_base() {
                            log.covered = sync_point.index;
                        }
                        continue;
                    }
                    log.records.insert(frame.position.index, (frame.position.epoch, sum));
                    if let Ok(Record::Publish { message, .. }) = frame.decode_record()
                        && let Some(id) = message_id(&message.body)
                    {
                        self.places.entry(id).or_default().insert((frame.position.index, sum));
                    }
                }
            }
            Order::Truncate(after) => {
                _ = store.log.records.split_off(&after.next());
                store.log.durable = store.log.durable.min(*after);
                if store.compared > *after {
                    return Err(format!("{who} cuts its log after {after}, and {} is committed", store.compared));
                }
            }
            Order::BeginBase => store.building = Some(Mirror::default()),
            _ => {}
        }
        Ok(())
    }

    /// # Errors
    /// As for [`Self::wrote`].
    pub(crate) fn reported(&mut self, place: usize, who: &Identity, event: &JournalEvent) -> Result<(), String> {
        if let JournalEvent::Durable(Writer::Primary(epoch), _) = event {
            self.wrote(who, *epoch)?;
        }
        let Some(store) = self.stores.get_mut(&place) else { return Ok(()) };
        match event {
            JournalEvent::Durable(_, index) => {
                let log = store.building.as_mut().unwrap_or(&mut store.log);
                log.durable = log.durable.max(*index);
            }
            JournalEvent::BaseCompleted(_) => {
                if let Some(log) = store.building.take() {
                    store.compared = store.compared.min(log.covered);
                    store.log = log;
                }
            }
            JournalEvent::Rebuilt(_) => store.building = None,
            _ => {}
        }
        Ok(())
    }

    /// # Errors
    /// If what the replica calls committed is not what others did.
    pub(crate) fn committed(&mut self, place: usize, who: &Identity, up_to: Index) -> Result<(), String> {
        let Some(store) = self.stores.get_mut(&place) else { return Ok(()) };
        if up_to <= store.compared {
            return Ok(());
        }
        let log = store.building.as_ref().unwrap_or(&store.log);
        for (index, record) in log.records.range(store.compared.next()..=up_to) {
            let known = self.committed.entry(*index).or_insert(*record);
            if known != record {
                return Err(format!(
                    "record {index} is committed as of epoch {} on {who} and as of epoch {} elsewhere",
                    record.0, known.0
                ));
            }
        }
        store.compared = up_to;
        Ok(())
    }

    /// A client was told that `id` is safe.
    ///
    /// # Errors
    /// If it is not on every member of the set in force.
    pub(crate) fn confirmed(&mut self, id: MessageId, lease: Option<&Lease>, all: &[Standing]) -> Result<(), String> {
        self.confirmed.insert(id);
        match lease {
            Some(lease) => self.check_members(lease, all, [id].iter()),
            None => Ok(()),
        }
    }

    /// # Errors
    /// If a member of the set lacks something that was confirmed.
    pub(crate) fn lease_changed(&self, lease: &Lease, all: &[Standing]) -> Result<(), String> {
        self.check_members(lease, all, self.confirmed.iter())
    }

    fn check_members<'a>(
        &self,
        lease: &Lease,
        all: &[Standing],
        ids: impl Iterator<Item = &'a MessageId> + Clone,
    ) -> Result<(), String> {
        for standing in all {
            let Some(member) = lease.in_sync().iter().find(|member| Some(member.store) == standing.store) else {
                continue; // not a member, or one whose disk is gone
            };
            let of_process = member.process.is_some();
            if of_process && standing.identity.as_ref().is_none_or(|identity| !member.is(identity)) {
                continue; // its memory is gone
            }
            let Some(store) = self.stores.get(&standing.place) else { continue };
            for id in ids.clone() {
                let Some(places) = self.places.get(id) else { continue };
                let log = &store.log;
                let holds = places.iter().any(|(index, sum)| {
                    let there = log.records.get(index).is_some_and(|(_, found)| found == sum);
                    *index <= log.covered || there && (of_process || *index <= log.durable)
                });
                if !holds {
                    return Err(format!(
                        "message {id} is confirmed, and member {member} of the set of epoch {} does not hold it \
                         (records {places:?}, covered to {}, durable to {})",
                        lease.epoch(),
                        log.covered,
                        log.durable
                    ));
                }
            }
        }
        Ok(())
    }
}

/// Of the frame's position and content: its header carries both.
fn checksum(frame: &Frame) -> u64 {
    let mut sum = 0xcbf2_9ce4_8422_2325;
    for byte in frame.pieces().next().into_iter().flat_map(|piece| piece.iter()) {
        sum = (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    }
    sum
}

/// Messages of the simulated clients begin with their number.
pub(crate) fn message_id(body: &understudy_record::Body) -> Option<MessageId> {
    let bytes = body.to_contiguous();
    Some(MessageId::from_le_bytes(bytes.get(..8)?.try_into().ok()?))
}
