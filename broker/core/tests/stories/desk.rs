//! One client against a core that does not keep its messages in memory, for tests with many messages of any weight: steps
//! are committed at once, what is read back waits until the test answers.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use understudy_core::{
    ChannelId, Command, ConnectionId, ConnectionInfo, Core, EffectKind, LOAD_BYTES, Load, Outputs, Publish,
};
use understudy_record::{Body, Index, Message, QueueId, Record};

use crate::harness::*;

const CONNECTION: ConnectionId = ConnectionId(1);
const CHANNEL: ChannelId = ChannelId(1);

/// Weights of bodies without their cost: all are parts of this one. No two messages of a test weigh the same.
static BYTES: [u8; 1 << 20] = [0; 1 << 20];

pub(crate) struct Desk {
    pub(crate) core: Core,
    pub(crate) store: BTreeMap<Index, Message>,
    pub(crate) loads: VecDeque<Load>,
    pub(crate) effects: Vec<EffectKind>,
    /// By weight of the body.
    pub(crate) indexes: BTreeMap<usize, Index>,
    pub(crate) committed: Index,
}

impl Desk {
    pub(crate) fn new() -> Self {
        let (store, loads, effects, indexes) = Default::default();
        let committed = Index(0);
        let mut desk = Self { core: promoted(Core::new(1)), store, loads, effects, indexes, committed };
        desk.connect();
        desk
    }

    pub(crate) fn connect(&mut self) {
        self.core
            .connection_opened(CONNECTION, ConnectionInfo { consumer_cancel_notify: true, ..ConnectionInfo::default() })
            .unwrap();
        self.say(Command::ChannelOpen);
    }

    /// Another primary, with all messages in the log.
    pub(crate) fn restart(&mut self) {
        let mut next = Core::new(2);
        let sync_point = self.core.begin_sync();
        for piece in checkpoint(&self.core, sync_point) {
            next.apply_base(piece).unwrap();
        }
        self.core = promoted(next);
        self.loads.clear();
        self.core.handle_committed(sync_point, sync_point, &mut Outputs::default());
        self.connect();
    }

    /// One step, committed at once.
    pub(crate) fn say(&mut self, command: Command) {
        let mut out = Outputs::default();
        self.core.handle(CONNECTION, CHANNEL, command, &mut out);
        self.end_step(out);
    }

    pub(crate) fn publish(&mut self, queue: &str, bytes: usize) -> Index {
        let index = self.core.next_index();
        self.say(Command::BasicPublish(Publish {
            exchange: short(""),
            routing_key: short(queue),
            mandatory: false,
            immediate: false,
            properties: Bytes::new(),
            body: Body::new(Bytes::from_static(&BYTES[..bytes])),
        }));
        self.indexes.insert(bytes, index);
        index
    }

    pub(crate) fn answer(&mut self, load: &Load) {
        let mut out = Outputs::default();
        self.core.handle_loaded(load.queue, self.read(load), &mut out);
        self.end_step(out);
    }

    pub(crate) fn read(&self, load: &Load) -> Vec<(Index, Message)> {
        load.indexes.iter().map(|index| (*index, self.store[index].clone())).collect()
    }

    pub(crate) fn answer_next(&mut self) -> bool {
        let Some(load) = self.loads.pop_front() else { return false };
        self.answer(&load);
        true
    }

    pub(crate) fn end_step(&mut self, mut out: Outputs) {
        loop {
            let more = self.core.deliver(&mut out);
            for (index, record) in out.records.drain(..) {
                if let Record::Publish { message, .. }
                | Record::PublishHere { message, .. }
                | Record::Staged { message, .. } = record
                {
                    self.store.insert(index, as_read(&message));
                }
            }
            self.effects.extend(out.effects.drain(..).map(|effect| effect.kind));
            for load in out.loads.drain(..) {
                let bytes: usize = load.indexes.iter().map(|index| self.store[index].body.len()).sum();
                assert!(bytes as u64 <= LOAD_BYTES || load.indexes.len() == 1, "{bytes} bytes in a load");
                assert!(!self.loads.iter().any(|other| other.queue == load.queue), "two loads of one queue");
                self.loads.push_back(load);
            }
            let last = self.core.last_index();
            if !more && self.committed == last {
                return;
            }
            self.committed = last;
            self.core.handle_committed(last, last, &mut out);
        }
    }

    pub(crate) fn evict(&mut self, budget: u64) {
        while self.core.evict(self.core.last_index(), budget) {}
        self.core.assert_consistent();
    }

    /// Of a queue, in order: `r` in memory, `s` stored.
    pub(crate) fn residency(&self, queue: QueueId) -> String {
        let last = self.core.last_index();
        let chunk = self.core.backlog_chunk(queue, last.next(), last, usize::MAX, usize::MAX);
        let mut text: Vec<char> =
            chunk.messages().map(|message| if message.message.is_some() { 'r' } else { 's' }).collect();
        text.reverse();
        text.into_iter().collect()
    }

    /// Messages delivered since the last call, each with its tag.
    pub(crate) fn deliveries(&mut self) -> Vec<(u64, Index)> {
        let effects = std::mem::take(&mut self.effects);
        let delivered = effects.into_iter().filter_map(|effect| match effect {
            EffectKind::BasicDeliver { delivery_tag, message, .. } => Some((delivery_tag.0, message)),
            EffectKind::BasicGetOk { delivery_tag, message, .. } => Some((delivery_tag.0, message)),
            _ => None,
        });
        delivered.map(|(tag, message)| (tag, self.indexes[&message.body.len()])).collect()
    }
}
