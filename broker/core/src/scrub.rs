//! Whether replicas agree: the primary now and then writes down what a slice of its state is ([`Record::Scrub`]), made from
//! the entries themselves, and every replica that applies the record makes the same numbers from its own and compares. What
//! follows from a difference is for the caller to say; here it is kept until asked for.
//!
//! A state changes by records alone, and at once with each, so at any moment the primary's is exactly what its log says up to
//! its last record: acknowledgements that wait for their record have changed nothing. What is not in the log (what is handed
//! out, in memory, returned for the moment) is in no digest.
//!
//! A state that was built from a sync point shows effects of later records until it has applied all up to the base's floor.
//! Until then nothing is compared.

use std::collections::VecDeque;
use std::fmt;

use understudy_record::{
    Admin, Binding, Destination, ExchangeKind, ExchangeSpec, Index, Permission, PolicySpec, QueueId, QueueSpec, Record,
    ShortStr, StateDigest, TopicPermission, UserSpec, VhostId, VhostSpec,
};

use crate::SCRUB_QUEUES;
use crate::base::BaseState;
use crate::core::Core;
use crate::effect::Outputs;
use crate::entry::Entry;
use crate::queue::Queue;
use crate::state::State;

/// From this version of the cluster on every replica knows the record.
const SCRUB_VERSION: u32 = 2;

/// Looking at a queue costs about as much as so many of its messages.
const QUEUE_WORK: u64 = 16;

/// Where a replica's state is not what its primary's was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Of the record that told.
    pub index: Index,
    pub primary: StateDigest,
    /// `None`: there is no such queue.
    pub here: Option<StateDigest>,
    /// The queue's name here.
    pub name: Option<ShortStr>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { index, primary, here, name } = self;
        write!(f, "as of record {index}")?;
        if let Some(name) = name {
            write!(f, ", in queue {name:?},")?;
        }
        f.write_str(" the primary has ")?;
        describe(primary, f)?;
        let Some(here) = here else { return f.write_str("; here is no such queue") };
        f.write_str("; here are ")?;
        describe(here, f)
    }
}

fn describe(digest: &StateDigest, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match digest {
        StateDigest::Topology { exchanges, queues, digest } => {
            write!(f, "{exchanges} exchanges and {queues} queues, digest {digest:016x}")
        }
        StateDigest::Queue { queue, from, to: Index(u64::MAX), messages, digest } => {
            write!(f, "{messages} messages from {from} on in queue {queue}, digest {digest:016x}")
        }
        StateDigest::Queue { queue, from, to, messages, digest } => {
            write!(f, "{messages} messages from {from} to {to} in queue {queue}, digest {digest:016x}")
        }
    }
}

/// One pass over the whole state, slice by slice. Queues that are declared meanwhile are the next pass's.
#[derive(Debug)]
pub struct ScrubPass {
    topology: bool,
    queues: VecDeque<QueueId>,
    /// Of the first of them: below this index its messages have been looked at.
    from: Index,
    work: u64,
    done: u64,
}

impl ScrubPass {
    pub fn is_done(&self) -> bool {
        !self.topology && self.queues.is_empty()
    }

    /// How much of the pass is behind, from 0 to 1, by what there was to look at when it began.
    pub fn progress(&self) -> f64 {
        if self.is_done() { 1.0 } else { self.done.min(self.work) as f64 / self.work as f64 }
    }
}

impl Core {
    /// A pass over the state as it is from now on, oldest queue first.
    pub fn begin_scrub(&self) -> ScrubPass {
        let queues: VecDeque<_> = self.queues().into_iter().map(|(queue, ..)| queue).collect();
        let messages: usize = self.state.queues.values().map(Queue::len).sum();
        let work = 1 + queues.len() as u64 * QUEUE_WORK + messages as u64;
        ScrubPass { topology: true, queues, from: Index(0), work, done: 0 }
    }

    /// On a primary: writes down what the next slice is, at most so many messages ([`SCRUB_MESSAGES`]) and [`SCRUB_QUEUES`]
    /// queues; returns the record's index. `None`: the pass is done, or not every replica knows the record.
    ///
    /// [`SCRUB_MESSAGES`]: crate::SCRUB_MESSAGES
    pub fn scrub(&mut self, pass: &mut ScrubPass, max_messages: usize, out: &mut Outputs) -> Option<Index> {
        if self.cluster_version < SCRUB_VERSION {
            return None;
        }
        let digests = self.state.next_slice(pass, max_messages);
        (!digests.is_empty()).then(|| self.write(Record::Scrub { digests }, out))
    }

    /// The first difference found since this was last asked, on a replica.
    pub fn take_difference(&mut self) -> Option<Difference> {
        self.state.difference.take()
    }
}

impl State {
    fn next_slice(&self, pass: &mut ScrubPass, max_messages: usize) -> Vec<StateDigest> {
        if std::mem::take(&mut pass.topology) {
            pass.done += 1;
            return vec![self.topology_digest()];
        }
        let mut digests = Vec::new();
        let mut room = max_messages.max(1);
        while room > 0
            && digests.len() < SCRUB_QUEUES
            && let Some(&id) = pass.queues.front()
        {
            let from = std::mem::take(&mut pass.from);
            // Deleted since the pass began, or looked at in full.
            let slice = self.queues.get(&id).map(|queue| self.queue_digest(queue, from, Index(u64::MAX), room));
            let Some((digest, messages)) = slice else {
                pass.queues.pop_front();
                continue;
            };
            room -= messages;
            pass.done += messages as u64;
            match digest {
                StateDigest::Queue { to, .. } if to < Index(u64::MAX) => pass.from = to,
                _ => {
                    pass.queues.pop_front();
                    pass.done += QUEUE_WORK;
                }
            }
            digests.push(digest);
        }
        digests
    }

    /// Record `index` says what the primary's state is just before it.
    pub(crate) fn compare(&mut self, index: Index, digests: &[StateDigest]) {
        let whole = matches!(self.base, BaseState::None | BaseState::Complete) && index > self.floor;
        if !whole {
            return;
        }
        for primary in digests {
            let here = match *primary {
                StateDigest::Topology { .. } => Some(self.topology_digest()),
                StateDigest::Queue { queue, from, to, .. } => {
                    self.queues.get(&queue).map(|queue| self.queue_digest(queue, from, to, usize::MAX).0)
                }
            };
            if here != Some(*primary) {
                let name = match primary {
                    StateDigest::Topology { .. } => None,
                    StateDigest::Queue { queue, .. } => self.queues.get(queue).map(|queue| queue.spec.name.clone()),
                };
                self.difference.get_or_insert(Difference { index, primary: *primary, here, name });
            }
        }
    }

    /// As many exchanges as there are, in no order: each is a few dozen nanoseconds, and there are rarely more than hundreds.
    /// Those that exist without a record may be others in another build: of them only what leads there. Then other virtual
    /// hosts, limits, policies, users and what they may do: where there are none the digest is as before there were any.
    fn topology_digest(&self) -> StateDigest {
        let (mut exchanges, mut sum) = (0, 0_u64);
        for vhost in self.vhosts.iter() {
            if vhost.id != VhostId::DEFAULT {
                sum = sum.wrapping_add(Digest::default().vhost(vhost.id).vhost_spec(&vhost.spec).finish());
            }
            for exchange in vhost.exchanges.values() {
                let bound = self.bound_to(vhost.id, &Destination::Exchange(exchange.spec.name.clone()));
                let built_in = exchange.is_built_in();
                if built_in && bound == 0 {
                    continue;
                }
                exchanges += u64::from(!built_in);
                let mut digest = Digest::default().vhost(vhost.id).exchange(&exchange.spec).word(bound);
                if let Some(keys) = &exchange.keys {
                    digest = digest.word(keys.len() as u64).word(keys.sum());
                }
                sum = sum.wrapping_add(digest.finish());
            }
        }
        let parts = self.parts.unclaimed();
        let digest =
            parts.fold(Digest::default().word(sum), |digest, part| digest.word(part.index.0).word(part.bytes.into()));
        let digest =
            self.limits_and_accounts().chain(self.policies()).fold(digest, |digest, change| digest.admin(&change));
        StateDigest::Topology { exchanges, queues: self.queues.len() as u64, digest: digest.finish() }
    }

    /// Of the messages from `from` on and below `to`, but `most` at most: then `to` is where the rest begins. With how many
    /// they are.
    fn queue_digest(&self, queue: &Queue, from: Index, to: Index, most: usize) -> (StateDigest, usize) {
        let mut digest = Digest::default();
        if from == Index(0) {
            digest = digest.vhost(queue.vhost).queue(&queue.spec);
            digest = digest.word(self.bound_to(queue.vhost, &Destination::Queue(queue.id)));
            if let Some(keys) = queue.keys.as_ref().filter(|_| queue.is_replicated()) {
                digest = digest.word(keys.len() as u64).word(keys.sum());
            }
        }
        let (mut messages, mut end) = (0, to);
        // What a queue that is not replicated holds is on one replica alone.
        let shared = |(index, _): &(Index, _)| *index < to && queue.is_replicated();
        for (index, entry) in queue.entries_from(from).take_while(shared) {
            if messages == most {
                end = index;
                break;
            }
            digest = digest.message(index, entry);
            if let Some(expires) = queue.expires(index) {
                digest = digest.word(expires.get());
            }
            if entry.is_large() {
                let parts = self.parts.of(index).into_iter().flat_map(|parts| parts.iter());
                digest = parts.fold(digest, |digest, part| digest.word(part.index.0).word(part.bytes.into()));
            }
            messages += 1;
        }
        let (queue, digest) = (queue.id, digest.finish());
        (StateDigest::Queue { queue, from, to: end, messages: messages as u64, digest }, messages)
    }

    /// The bindings that lead there, which are in no order. As many as there are: deleting the destination visits them too.
    fn bound_to(&self, vhost: VhostId, destination: &Destination) -> u64 {
        let bindings = self.bindings_to(vhost, destination).map(|binding| Digest::default().binding(binding).finish());
        bindings.fold(0, u64::wrapping_add)
    }
}

/// 64 bits, word by word. Each step is a bijection of what was there before and, for the same before, of the word: two
/// sequences that differ in one word never meet. Its values stand in logs: it never changes.
#[derive(Clone, Copy, Debug, Default)]
struct Digest(u64);

impl Digest {
    /// The high half, which depends on all that came before, becomes the low one; the golden ratio keeps zeros from staying
    /// zero.
    fn word(self, word: u64) -> Self {
        let mixed = (self.0 ^ word).wrapping_add(0x9e37_79b9_7f4a_7c15);
        Self(mixed.wrapping_mul(0xff51_afd7_ed55_8ccd).rotate_left(32))
    }

    /// Murmur3's finalizer.
    fn finish(self) -> u64 {
        let mixed = (self.0 ^ (self.0 >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        let mixed = (mixed ^ (mixed >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        mixed ^ (mixed >> 33)
    }

    fn bytes(self, bytes: &[u8]) -> Self {
        let word = |chunk: &[u8]| chunk.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
        bytes.chunks(8).fold(self.word(bytes.len() as u64), |digest, chunk| digest.word(word(chunk)))
    }

    fn flags<const N: usize>(self, flags: [bool; N]) -> Self {
        self.word(flags.iter().fold(0, |word, flag| word << 1 | u64::from(*flag)))
    }

    fn message(self, index: Index, entry: &Entry) -> Self {
        let size = u64::from(entry.bytes()) << 1 | u64::from(entry.is_large());
        self.word(index.0).word(size << 32 ^ u64::from(entry.delivery_count))
    }

    /// Nothing for the default one.
    fn vhost(self, id: VhostId) -> Self {
        if id == VhostId::DEFAULT { self } else { self.word(id.0.0) }
    }

    fn vhost_spec(self, spec: &VhostSpec) -> Self {
        self.bytes(spec.name.as_bytes()).bytes(spec.description.as_bytes()).names(&spec.tags)
    }

    fn names(self, names: &[ShortStr]) -> Self {
        names.iter().fold(self.word(names.len() as u64), |digest, name| digest.bytes(name.as_bytes()))
    }

    fn limit(self, limit: Option<u64>) -> Self {
        self.flags([limit.is_some()]).word(limit.unwrap_or_default())
    }

    /// Of those that make what there is, in their order.
    fn admin(self, change: &Admin) -> Self {
        match change {
            Admin::UserPut(UserSpec { name, password, tags }) => {
                let digest = self.word(1).bytes(name.as_bytes()).word(password.algorithm as u64);
                digest.bytes(password.text.as_bytes()).names(tags)
            }
            Admin::UserDelete { name } => self.word(2).bytes(name.as_bytes()),
            Admin::UserLimits { user, limits } => {
                self.word(3).bytes(user.as_bytes()).limit(limits.max_connections).limit(limits.max_channels)
            }
            Admin::VhostLimits { vhost, limits } => {
                self.word(4).word(vhost.0.0).limit(limits.max_connections).limit(limits.max_queues)
            }
            Admin::PermissionPut { user, vhost, permission: Permission { configure, write, read } } => {
                let digest = self.word(5).bytes(user.as_bytes()).word(vhost.0.0);
                digest.bytes(configure.as_bytes()).bytes(write.as_bytes()).bytes(read.as_bytes())
            }
            Admin::TopicPermissionPut { user, vhost, exchange, permission: TopicPermission { write, read } } => {
                let digest = self.word(6).bytes(user.as_bytes()).word(vhost.0.0).bytes(exchange.as_bytes());
                digest.bytes(write.as_bytes()).bytes(read.as_bytes())
            }
            Admin::PolicyPut { vhost, operator, policy } => {
                let PolicySpec { name, pattern, apply_to, priority, definition } = policy;
                let digest = self.word(7).word(vhost.0.0).flags([*operator]).bytes(name.as_bytes());
                let digest = digest.bytes(pattern.as_bytes()).bytes(apply_to.name().as_bytes());
                digest.word(priority.cast_unsigned()).bytes(definition)
            }
            Admin::PolicyDelete { .. }
            | Admin::VhostCreate(_)
            | Admin::VhostDelete { .. }
            | Admin::PermissionDelete { .. }
            | Admin::TopicPermissionDelete { .. } => self,
        }
    }

    fn queue(self, spec: &QueueSpec) -> Self {
        let flags = [spec.durable, spec.exclusive, spec.auto_delete];
        self.bytes(spec.name.as_bytes()).flags(flags).bytes(&spec.arguments)
    }

    fn exchange(self, spec: &ExchangeSpec) -> Self {
        let kind = match spec.kind {
            ExchangeKind::Direct => 1,
            ExchangeKind::Fanout => 2,
            ExchangeKind::Topic => 3,
            ExchangeKind::Headers => 4,
            ExchangeKind::MessageDeduplication => 5,
        };
        let flags = [spec.durable, spec.auto_delete, spec.internal];
        self.bytes(spec.name.as_bytes()).word(kind).flags(flags).bytes(&spec.arguments)
    }

    /// Where it leads is known.
    fn binding(self, binding: &Binding) -> Self {
        self.bytes(binding.source.as_bytes()).bytes(binding.routing_key.as_bytes()).bytes(&binding.arguments)
    }
}
