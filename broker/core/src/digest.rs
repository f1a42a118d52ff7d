//! The replicated state as text and as a number, to compare replicas: equal on all that have applied the same records.

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use understudy_record::{BasePiece, Index, VhostId};

use crate::core::{Core, Role};
use crate::exchange::Exchange;
use crate::queue::Queue;
use crate::session::Answer;
use crate::settle::Settled;
use crate::state::State;

impl Core {
    /// Everything that is replicated, in a fixed order, messages by index, delivery count and weight: what they say may be
    /// in memory on one replica and not on another. Grows with the messages. For tests and people.
    pub fn replicated_text(&self) -> String {
        let mut text = String::new();
        self.state.describe(false, &mut text).expect("a string takes what is written to it");
        text
    }

    /// The same with the messages that only this replica has: what its own log gives again.
    pub fn own_text(&self) -> String {
        let mut text = String::new();
        self.state.describe(true, &mut text).expect("a string takes what is written to it");
        text
    }

    /// The same as a number, without holding the text.
    pub fn digest(&self) -> u64 {
        let mut digest = Fnv(0xcbf2_9ce4_8422_2325);
        self.state.describe(false, &mut digest).expect("the digest takes what is written to it");
        digest.0
    }

    /// The books agree: what is ready and what is not, and who waits for what. Visits everything; for tests.
    ///
    /// # Panics
    /// If they do not, with both sides.
    pub fn assert_consistent(&self) {
        self.state.assert_consistent();
        let channels = || self.connections.values().flat_map(|connection| connection.channels.values());
        let waiting: usize = channels().filter_map(|channel| channel.confirms.as_ref()).map(|c| c.waiting()).sum();
        assert_eq!(self.unconfirmed, waiting, "unconfirmed publishes");
        let transactions = || channels().filter_map(|channel| channel.transaction.as_deref());
        assert_eq!(self.transactions.channels, transactions().count(), "channels in transactional mode");
        assert_eq!(self.transactions.bytes, transactions().map(|t| t.bytes).sum::<u64>(), "bytes of transactions");
        let outstanding = channels().flat_map(|channel| channel.unacked.iter().map(|(_, unacked)| unacked));
        let outstanding = outstanding.chain(transactions().flat_map(|t| t.settled.iter().map(|s| &s.unacked)));
        let outstanding = outstanding.filter(|unacked| self.state.queues.contains_key(&unacked.queue)).count();
        let settled: usize = self.settled.values().map(Settled::len).sum();
        let handed_out: usize = self.state.queues.values().map(|queue| queue.unacked()).sum();
        let loading = channels().flat_map(|channel| &channel.replies).filter(|reply| {
            let Answer::Loading(get) = &reply.answer else { return false };
            let queue = self.state.queues.get(&get.queue);
            let known = queue.is_some_and(|queue| queue.session.gets.iter().any(|other| other.index == get.index));
            assert!(known, "nobody will answer {get:?}");
            get.no_ack
        });
        let queues = self.state.queues.values();
        let condemned: usize =
            queues.map(|queue| queue.condemned().filter(|index| !queue.is_ready(*index)).count()).sum();
        assert_eq!(
            handed_out,
            outstanding + settled + loading.count() + condemned,
            "every message handed out is on one channel, or about to be settled"
        );
        if self.role != Role::Replica {
            let held = transactions().flat_map(|t| &t.published).filter_map(|held| held.message.parts.as_ref());
            let held = held.flat_map(|parts| parts.iter());
            let copied = self.state.queues.values().flat_map(Queue::copied_parts);
            let mut uploads: Vec<_> = self.uploads.values().flatten().chain(held).chain(copied).copied().collect();
            uploads.sort_unstable_by_key(|part| part.index);
            let unclaimed: Vec<_> = self.state.parts.unclaimed().collect();
            assert_eq!(unclaimed, uploads, "parts that wait for their message are on one channel each");
        }
        let consumers: usize = self.state.queues.values().map(|queue| queue.session.consumers.len()).sum();
        assert_eq!(self.consumers.len(), consumers, "every consumer is at one queue");
        for queue in self.state.queues.values() {
            let asked = queue.session.loading.is_some() || queue.session.wanting;
            let idle = !queue.session.dirty && !queue.session.waiting && !asked;
            let stuck = idle && queue.ready() > 0 && !queue.session.active.is_empty();
            assert!(!stuck, "queue {} has messages and consumers in turn, and nobody will look at it", queue.id);
            self.assert_condemned_go_on(queue);
            let due = queue.session.gets.iter().any(|get| get.index <= self.committed);
            assert!(!due || asked, "queue {} has a get that waits for its message, which nobody asks for", queue.id);
        }
        if self.role != Role::Replica {
            self.assert_expiries_consistent();
        }
        let on_the_way = self.state.queues.values().filter_map(|queue| queue.session.loading.as_ref());
        assert_eq!(self.loads.bytes(), on_the_way.map(|asked| asked.bytes).sum::<u64>(), "bytes being read back");
    }
}

impl State {
    /// `whole`: with the messages that are not replicated.
    fn describe(&self, whole: bool, out: &mut impl Write) -> fmt::Result {
        writeln!(out, "last index {}", self.last_index)?;
        for piece in self.topology() {
            let (vhost, piece) = piece.in_vhost();
            if vhost != VhostId::DEFAULT {
                write!(out, "in {vhost} ")?;
            }
            match piece {
                BasePiece::Exchange(spec) => writeln!(out, "{spec:?}")?,
                BasePiece::Queue { id, spec } => writeln!(out, "{id} {spec:?}")?,
                BasePiece::Binding(binding) => writeln!(out, "{binding:?}")?,
                BasePiece::Vhost { id, spec } => writeln!(out, "{id} {spec:?}")?,
                BasePiece::Admin(change) => writeln!(out, "{change:?}")?,
                BasePiece::Keys { of, keys } => writeln!(out, "{of:?} remembers {keys:?}")?,
                BasePiece::Parts { parts, .. } => writeln!(out, "unclaimed {parts:?}")?,
                _ => {}
            }
        }
        for vhost in self.vhosts.iter() {
            let built_in = vhost.exchanges.values().filter(|exchange| exchange.is_built_in()).count();
            debug_assert_eq!(built_in, Exchange::built_in(vhost.id.0).count(), "built-in exchanges are never deleted");
        }
        let mut queues: Vec<_> = self.queues.values().collect();
        queues.sort_by_key(|queue| queue.id);
        let mut large: BTreeMap<Index, u32> = BTreeMap::new();
        for queue in queues.into_iter().filter(|queue| whole || queue.is_replicated()) {
            for (index, entry) in queue.entries() {
                if entry.is_large() {
                    *large.entry(index).or_default() += 1;
                }
                write!(out, "{} holds {index} x{} of {} bytes", queue.id, entry.delivery_count, entry.bytes())?;
                let (priority, expires) = (queue.priority_of(index), queue.expires(index));
                writeln!(out, ", priority {priority}, expires {expires:?}")?;
                if let Some(key) = queue.keys.as_ref().and_then(|keys| keys.of(index)) {
                    writeln!(out, "{key:?}")?;
                }
            }
        }
        for (index, held) in large {
            let parts = self.parts.of(index);
            writeln!(out, "{index} in {held} queues has {parts:?}")?;
        }
        for seen in &self.seen {
            writeln!(out, "{seen:?}")?;
        }
        for staged in &self.staged {
            let targets = staged.targets.iter().filter(|queue| whole || !self.is_unreplicated(**queue));
            writeln!(out, "staged {} for {:?}", staged.index, targets.collect::<Vec<_>>())?;
        }
        Ok(())
    }
}

/// FNV-1a, 64 bits: stable over processes and versions, which the standard hasher is not.
struct Fnv(u64);

impl Write for Fnv {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0 = text.bytes().fold(self.0, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        Ok(())
    }
}
