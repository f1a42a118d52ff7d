//! The states of a small cluster and the steps between them.
//!
//! A state is a few bytes, so that a million of them can be kept; a Lease stands in it as a number into a table of real
//! [`Lease`] values.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::time::Duration;

use understudy_election::{Lease, LeaseParts};
use understudy_record::{Epoch, Identity, Member, ProcessId, ReplicaName, StoreId};

const REPLICAS: usize = 3;
const MAX_EPOCHS: usize = 3;
/// An epoch start for each epoch, twice if a broken rule lets it be written twice, and the values.
const MAX_LOG: usize = 8;
const DURATION: Duration = Duration::from_secs(5);

/// How often each thing may happen, and what a crash costs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// How many of the replicas are in sync at first.
    pub(crate) in_sync: usize,
    pub(crate) epochs: u8,
    pub(crate) values: u8,
    pub(crate) crashes: u8,
    pub(crate) losses: u8,
    pub(crate) set_changes: u8,
    /// `durability: Replicated`: a crash loses the log, and the set names processes.
    pub(crate) in_memory: bool,
}

/// The rules, one of which may be broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    RefuseLowerEpochs,
    ShrinkBeforeConfirm,
    GrowAfterEpochStart,
    WaitForNewcomer,
    UnknownCountsBoth,
    ReadsProveNothing,
    ElectFromTheSet,
    RestartIsNewIdentity,
    NewStoreIsNewIdentity,
    AcksCountForTheirStore,
    ProcessesInSet,
}

#[derive(Clone, Copy)]
pub(crate) enum Step {
    Elect { candidate: usize, epoch: u8 },
    Promote { replica: usize, epoch: u8 },
    Publish { primary: usize },
    Replicate { from: usize, to: usize },
    Acknowledge { from: usize, to: usize },
    Confirm { primary: usize, up_to: u8 },
    AskToShrink { primary: usize, leaver: usize },
    AskToGrow { primary: usize, newcomer: usize },
    SwapTakesEffect,
    SwapIsRefused,
    SwapIsLost,
    SeesItsSwap { primary: usize },
    Renews { primary: usize },
    ForgetsItsSwap { primary: usize },
    Demoted { replica: usize },
    Crash { replica: usize },
    Restart { replica: usize },
    LoseDisk { replica: usize },
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |replica: &usize| ["a", "b", "c"][*replica];
        match self {
            Self::Elect { candidate, epoch } => write!(f, "{} is elected for epoch {epoch}", name(candidate)),
            Self::Promote { replica, epoch } => write!(f, "{} hears that it has epoch {epoch}", name(replica)),
            Self::Publish { primary } => write!(f, "{} takes a value", name(primary)),
            Self::Replicate { from, to } => write!(f, "{} brings the log of {} on", name(from), name(to)),
            Self::Acknowledge { from, to } => write!(f, "an acknowledgement of {} reaches {}", name(from), name(to)),
            Self::Confirm { primary, up_to } => write!(f, "{} confirms up to {up_to}", name(primary)),
            Self::AskToShrink { primary, leaver } => {
                write!(f, "{} asks for the set without {}", name(primary), name(leaver))
            }
            Self::AskToGrow { primary, newcomer } => {
                write!(f, "{} asks for the set with {}", name(primary), name(newcomer))
            }
            Self::SwapTakesEffect => f.write_str("the swap takes effect"),
            Self::SwapIsRefused => f.write_str("the swap is refused"),
            Self::SwapIsLost => f.write_str("the swap is lost"),
            Self::SeesItsSwap { primary } => write!(f, "{} sees that its swap has taken effect", name(primary)),
            Self::Renews { primary } => write!(f, "{} renews", name(primary)),
            Self::ForgetsItsSwap { primary } => write!(f, "{} takes its swap for refused", name(primary)),
            Self::Demoted { replica } => write!(f, "{} hears of a higher epoch", name(replica)),
            Self::Crash { replica } => write!(f, "{} crashes", name(replica)),
            Self::Restart { replica } => write!(f, "{} starts again", name(replica)),
            Self::LoseDisk { replica } => write!(f, "{} loses its disk", name(replica)),
        }
    }
}

type LeaseId = u8;

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct State {
    replicas: [Replica; REPLICAS],
    lease: LeaseId,
    version: u8,
    /// The Lease as each epoch's election wrote it, and its version: what a stale read may still show.
    elections: [Option<(LeaseId, u8)>; MAX_EPOCHS],
    /// A change of the set that is on its way: the version it expects, and what it writes.
    in_flight: Option<(u8, LeaseId)>,
    values: u8,
    /// One bit for each confirmed value.
    confirmed: u8,
    crashes: u8,
    losses: u8,
    set_changes: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Replica {
    up: bool,
    store: u8,
    process: u8,
    log: Log,
    /// The highest epoch it has persisted.
    epoch: u8,
    /// The log's length it has last acknowledged under each epoch.
    acknowledged: [u8; MAX_EPOCHS],
    primary: Option<Primary>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Primary {
    epoch: u8,
    in_force: LeaseId,
    version: u8,
    /// A set whose swap was asked for and is not settled.
    proposed: Option<LeaseId>,
    /// From each replica: which store and process acknowledged last, and how far.
    acks: [(u8, u8, u8); REPLICAS],
    /// The log's length with this epoch's first record.
    start: u8,
    committed: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Log {
    len: u8,
    records: [Record; MAX_LOG],
}

/// Value 0 is an epoch's first record.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Record {
    epoch: u8,
    value: u8,
}

pub(crate) struct World {
    bounds: Bounds,
    broken: Option<Rule>,
    names: [ReplicaName; REPLICAS],
    leases: Vec<Lease>,
    /// What [`Lease::elect`] has answered, so that it is asked once for each question.
    elected: HashMap<Election, Option<LeaseId>>,
}

/// The Lease, the candidate, and which store and process of each replica the elector reaches.
type Election = (LeaseId, usize, [Option<(u8, u8)>; REPLICAS]);

impl World {
    pub(crate) fn new(bounds: Bounds, broken: Option<Rule>) -> Self {
        assert!(usize::from(bounds.epochs) <= MAX_EPOCHS && bounds.values < 8);
        let names = ["a", "b", "c"].map(ReplicaName::new);
        Self { bounds, broken, names, leases: Vec::new(), elected: HashMap::new() }
    }

    /// A new cluster: epoch 1 was just given to replica 0, which has not heard of it yet.
    pub(crate) fn start(&mut self) -> State {
        let replica = Replica {
            up: true,
            store: 0,
            process: 0,
            log: Log { len: 0, records: [Record::default(); MAX_LOG] },
            epoch: 0,
            acknowledged: [0; MAX_EPOCHS],
            primary: None,
        };
        let replicas = [replica; REPLICAS];
        let in_sync = (0..self.bounds.in_sync).map(|name| self.member(name, &replicas[name])).collect();
        let first = Lease::bootstrap(&self.identity_of(0, &replica), in_sync, DURATION).unwrap();
        let lease = self.number(first);
        let mut elections = [None; MAX_EPOCHS];
        elections[0] = Some((lease, 0));
        State {
            replicas,
            lease,
            version: 0,
            elections,
            in_flight: None,
            values: 0,
            confirmed: 0,
            crashes: 0,
            losses: 0,
            set_changes: 0,
        }
    }

    pub(crate) fn violated(&self, state: &State) -> bool {
        let set = self.leases[usize::from(state.lease)].in_sync();
        let lacks = (0..REPLICAS).any(|name| {
            let replica = &state.replicas[name];
            if state.confirmed & !replica.log.values() == 0 || (self.bounds.in_memory && !replica.up) {
                return false;
            }
            let lives = self.identity_of(name, replica);
            set.iter().any(|member| member.is(&lives))
        });
        let mut primaries = state.replicas.iter().filter_map(|replica| replica.primary.map(|primary| primary.epoch));
        let mut led = [false; MAX_EPOCHS + 1];
        lacks || primaries.any(|epoch| std::mem::replace(&mut led[usize::from(epoch)], true))
    }

    pub(crate) fn steps(&mut self, state: &State, out: &mut Vec<(Step, State)>) {
        self.elect(state, out);
        self.promote(state, out);
        self.swap_in_flight(state, out);
        for name in 0..REPLICAS {
            self.fail(state, name, out);
            let Some(primary) = state.replicas[name].primary.filter(|_| state.replicas[name].up) else { continue };
            self.replicate(state, name, &primary, out);
            self.confirm(state, name, &primary, out);
            self.change_set(state, name, &primary, out);
            self.look_at_lease(state, name, &primary, out);
            if state.values < self.bounds.values {
                let mut to = *state;
                to.values += 1;
                to.replicas[name].log.push(Record { epoch: primary.epoch, value: to.values });
                out.push((Step::Publish { primary: name }, to));
            }
        }
    }

    /// Anybody elects anybody, reaching any of the others: one swap on the Lease as it is.
    fn elect(&mut self, state: &State, out: &mut Vec<(Step, State)>) {
        if self.leases[usize::from(state.lease)].epoch().0 >= u64::from(self.bounds.epochs) {
            return;
        }
        for candidate in 0..REPLICAS {
            for others in 0..1 << REPLICAS {
                if others & (1 << candidate) == 0 {
                    continue; // the candidate is always reached
                }
                let reached = std::array::from_fn(|name| {
                    let replica = &state.replicas[name];
                    (others & (1 << name) != 0).then_some((replica.store, replica.process))
                });
                let Some(elected) = self.elected((state.lease, candidate, reached)) else { continue };
                let epoch = self.leases[usize::from(elected)].epoch().0 as u8;
                let mut to = *state;
                to.lease = elected;
                to.version += 1;
                to.elections[usize::from(epoch) - 1] = Some((to.lease, to.version));
                out.push((Step::Elect { candidate, epoch }, to));
            }
        }
    }

    fn elected(&mut self, election: Election) -> Option<LeaseId> {
        if let Some(known) = self.elected.get(&election) {
            return *known;
        }
        let (lease, candidate, reached) = election;
        let lease = self.leases[usize::from(lease)].clone();
        let identities: Vec<Option<Identity>> = (0..REPLICAS)
            .map(|name| reached[name].map(|(store, process)| self.identity(name, store, process)))
            .collect();
        let chosen = identities[candidate].clone().unwrap();
        let reachable = identities.into_iter().flatten().collect();
        let elected = match lease.elect(&chosen, &reachable) {
            Ok(elected) => Some(elected),
            Err(_) => self.is_broken(Rule::ElectFromTheSet).then(|| self.elect_anybody(&lease, &chosen, &reachable)),
        };
        let elected = elected.map(|lease| self.number(lease));
        self.elected.insert(election, elected);
        elected
    }

    fn elect_anybody(&self, lease: &Lease, candidate: &Identity, reachable: &BTreeSet<Identity>) -> Lease {
        let old = lease.in_sync().iter().filter(|member| member.name != candidate.name);
        let mut in_sync: BTreeSet<Member> =
            old.filter(|member| reachable.iter().any(|identity| member.is(identity))).cloned().collect();
        in_sync.insert(candidate.member(self.bounds.in_memory));
        let parts = LeaseParts {
            holder: Some(candidate.clone()),
            epoch: Epoch(lease.epoch().0 + 1),
            in_sync,
            duration: DURATION,
            cluster_version: lease.cluster_version(),
            renewed: None,
        };
        Lease::from_parts(parts).unwrap()
    }

    /// A replica hears of an election, however late.
    fn promote(&mut self, state: &State, out: &mut Vec<(Step, State)>) {
        for (lease, version) in state.elections.iter().flatten() {
            let elected = &self.leases[usize::from(*lease)];
            let (holder, epoch) = (elected.holder().unwrap(), elected.epoch().0 as u8);
            for name in 0..REPLICAS {
                let replica = &state.replicas[name];
                let own = self.identity_of(name, replica);
                let resumes = self.is_broken(Rule::RestartIsNewIdentity);
                let is_holder = match self.broken {
                    Some(Rule::NewStoreIsNewIdentity) => holder.name == own.name,
                    Some(Rule::RestartIsNewIdentity) => holder.name == own.name && holder.store == own.store,
                    _ => *holder == own,
                };
                let knows_it = replica.epoch > epoch || (replica.epoch == epoch && !resumes);
                let resumed_often_enough = usize::from(replica.log.len + self.bounds.values) >= MAX_LOG;
                if !replica.up || !is_holder || knows_it || resumed_often_enough || replica.leads(epoch) {
                    continue;
                }
                let mut to = *state;
                let promoted = &mut to.replicas[name];
                promoted.epoch = epoch;
                promoted.log.push(Record { epoch, value: 0 });
                promoted.primary = Some(Primary {
                    epoch,
                    in_force: *lease,
                    version: *version,
                    proposed: None,
                    acks: [(0, 0, 0); REPLICAS],
                    start: promoted.log.len,
                    committed: 0,
                });
                out.push((Step::Promote { replica: name, epoch }, to));
            }
        }
    }

    fn swap_in_flight(&mut self, state: &State, out: &mut Vec<(Step, State)>) {
        let Some((expected, lease)) = state.in_flight else { return };
        let mut to = *state;
        to.in_flight = None;
        out.push((Step::SwapIsLost, to));
        if state.version == expected {
            to.lease = lease;
            to.version += 1;
            out.push((Step::SwapTakesEffect, to));
        } else {
            out.push((Step::SwapIsRefused, to));
        }
    }

    fn fail(&mut self, state: &State, name: usize, out: &mut Vec<(Step, State)>) {
        let replica = &state.replicas[name];
        if !replica.up {
            let mut to = *state;
            to.replicas[name].up = true;
            to.replicas[name].process += 1;
            out.push((Step::Restart { replica: name }, to));
            return;
        }
        if state.crashes < self.bounds.crashes {
            let mut to = *state;
            to.crashes += 1;
            let crashed = &mut to.replicas[name];
            (crashed.up, crashed.primary) = (false, None);
            if self.bounds.in_memory {
                crashed.log.cut(0);
                crashed.acknowledged = [0; MAX_EPOCHS];
            }
            out.push((Step::Crash { replica: name }, to));
        }
        if state.losses < self.bounds.losses {
            let mut to = *state;
            to.losses += 1;
            let lost = &mut to.replicas[name];
            (lost.store, lost.process) = (lost.store + 1, lost.process + 1);
            (lost.epoch, lost.acknowledged, lost.primary) = (0, [0; MAX_EPOCHS], None);
            lost.log.cut(0);
            out.push((Step::LoseDisk { replica: name }, to));
        }
    }

    /// Rule 2, and acknowledgements that arrive whenever they like.
    fn replicate(&mut self, state: &State, name: usize, primary: &Primary, out: &mut Vec<(Step, State)>) {
        let log = &state.replicas[name].log;
        let under = usize::from(primary.epoch) - 1;
        for other in (0..REPLICAS).filter(|other| *other != name) {
            let backup = &state.replicas[other];
            if !backup.up {
                continue;
            }
            if primary.epoch < backup.epoch && !self.is_broken(Rule::RefuseLowerEpochs) {
                let mut to = *state;
                to.replicas[name].primary = None;
                out.push((Step::Demoted { replica: name }, to));
            } else if backup.primary.is_none_or(|role| role.epoch < primary.epoch) {
                let shared = log.shared_with(&backup.log);
                let news = shared < log.len || shared < backup.log.len;
                if news || backup.acknowledged[under] < backup.log.len {
                    let mut to = *state;
                    let backup = &mut to.replicas[other];
                    (backup.primary, backup.epoch) = (None, backup.epoch.max(primary.epoch));
                    backup.log.cut(shared);
                    if shared < log.len {
                        backup.log.push(log.records[usize::from(shared)]);
                    }
                    backup.acknowledged[under] = backup.log.len;
                    out.push((Step::Replicate { from: name, to: other }, to));
                }
            }
            let ack = (backup.store, backup.process, backup.acknowledged[under]);
            if ack.2 > 0 && ack != primary.acks[other] {
                let mut to = *state;
                let primary = to.replicas[name].primary.as_mut().unwrap();
                primary.acks[other] = ack;
                out.push((Step::Acknowledge { from: other, to: name }, to));
            }
        }
    }

    /// Rule 3: what every member of every set that may be in force has acknowledged.
    fn confirm(&mut self, state: &State, name: usize, primary: &Primary, out: &mut Vec<(Step, State)>) {
        let log = &state.replicas[name].log;
        let counts_newcomers = !self.is_broken(Rule::WaitForNewcomer);
        let proposed = primary.proposed.filter(|_| counts_newcomers);
        let sets = [Some(primary.in_force), proposed];
        let members = sets.iter().flatten().flat_map(|lease| self.leases[usize::from(*lease)].in_sync());
        let others = members.filter(|member| member.name != self.names[name]);
        let up_to = others.map(|member| self.acked_by(primary, member)).min().unwrap_or(log.len).min(log.len);
        if up_to <= primary.committed || up_to < primary.start {
            return;
        }
        let mut to = *state;
        to.replicas[name].primary.as_mut().unwrap().committed = up_to;
        to.confirmed |= log.prefix(up_to).values();
        out.push((Step::Confirm { primary: name, up_to }, to));
    }

    /// How far that very entry of a set has acknowledged.
    fn acked_by(&self, primary: &Primary, member: &Member) -> u8 {
        let name = self.names.iter().position(|name| *name == member.name).unwrap();
        let (store, process, len) = primary.acks[name];
        let by = self.identity(name, store, process);
        if member.is(&by) || self.is_broken(Rule::AcksCountForTheirStore) { len } else { 0 }
    }

    /// Rule 4.
    fn change_set(&mut self, state: &State, name: usize, primary: &Primary, out: &mut Vec<(Step, State)>) {
        let busy = state.in_flight.is_some() || primary.proposed.is_some();
        if busy || state.set_changes >= self.bounds.set_changes {
            return;
        }
        let lease = self.leases[usize::from(primary.in_force)].clone();
        let own = lease.holder().unwrap().clone();
        for other in (0..REPLICAS).filter(|other| *other != name) {
            let mut set = lease.in_sync().clone();
            let entry = set.iter().find(|member| member.name == self.names[other]).cloned();
            let step = match entry {
                Some(entry) => {
                    set.remove(&entry);
                    Step::AskToShrink { primary: name, leaver: other }
                }
                None => {
                    let newcomer = self.member(other, &state.replicas[other]);
                    if !state.replicas[other].up || !self.may_join(primary, &newcomer) {
                        continue;
                    }
                    set.insert(newcomer);
                    Step::AskToGrow { primary: name, newcomer: other }
                }
            };
            let next = lease.with_set(&own, set).unwrap();
            let next = self.number(next);
            let mut to = *state;
            to.set_changes += 1;
            to.in_flight = Some((primary.version, next));
            let asking = to.replicas[name].primary.as_mut().unwrap();
            asking.proposed = Some(next);
            if self.is_broken(Rule::ShrinkBeforeConfirm) && matches!(step, Step::AskToShrink { .. }) {
                (asking.in_force, asking.proposed) = (next, None);
            }
            out.push((step, to));
        }
    }

    fn may_join(&self, primary: &Primary, newcomer: &Member) -> bool {
        let has = self.acked_by(primary, newcomer);
        if self.is_broken(Rule::GrowAfterEpochStart) {
            return has >= primary.committed;
        }
        primary.committed >= primary.start && has >= primary.committed
    }

    /// Rules 3 and 5: what the primary learns from the Lease, and from a write of its own.
    fn look_at_lease(&mut self, state: &State, name: usize, primary: &Primary, out: &mut Vec<(Step, State)>) {
        let lease = &self.leases[usize::from(state.lease)];
        let own = self.leases[usize::from(primary.in_force)].holder().unwrap();
        let mut to = *state;
        let looking = to.replicas[name].primary.as_mut().unwrap();
        if lease.epoch().0 > u64::from(primary.epoch) {
            to.replicas[name].primary = None;
            out.push((Step::Demoted { replica: name }, to));
        } else if lease.holder() != Some(own) || lease.epoch().0 < u64::from(primary.epoch) {
            // Only under a broken rule: it looks again later.
        } else if state.version != primary.version {
            (looking.in_force, looking.version, looking.proposed) = (state.lease, state.version, None);
            out.push((Step::SeesItsSwap { primary: name }, to));
        } else if primary.proposed.is_some() {
            if self.is_broken(Rule::ReadsProveNothing) {
                looking.proposed = None;
                out.push((Step::ForgetsItsSwap { primary: name }, to));
                return;
            }
            let renewed = lease.renewed(own, DURATION).unwrap();
            assert!(renewed.same_configuration(lease));
            to.version += 1;
            let looking = to.replicas[name].primary.as_mut().unwrap();
            (looking.version, looking.proposed) = (to.version, None);
            out.push((Step::Renews { primary: name }, to));
        }
        if self.is_broken(Rule::UnknownCountsBoth) && primary.proposed.is_some() {
            let mut to = *state;
            to.replicas[name].primary.as_mut().unwrap().proposed = None;
            out.push((Step::ForgetsItsSwap { primary: name }, to));
        }
    }

    fn identity(&self, name: usize, store: u8, process: u8) -> Identity {
        let (store, process) = (StoreId(store.into()), ProcessId(process.into()));
        Identity { name: self.names[name].clone(), store, process }
    }

    fn identity_of(&self, name: usize, replica: &Replica) -> Identity {
        self.identity(name, replica.store, replica.process)
    }

    fn member(&self, name: usize, replica: &Replica) -> Member {
        let with_process = self.bounds.in_memory && !self.is_broken(Rule::ProcessesInSet);
        self.identity_of(name, replica).member(with_process)
    }

    fn is_broken(&self, rule: Rule) -> bool {
        self.broken == Some(rule)
    }

    fn number(&mut self, lease: Lease) -> LeaseId {
        let known = self.leases.iter().position(|known| *known == lease);
        let id = known.unwrap_or_else(|| {
            self.leases.push(lease);
            self.leases.len() - 1
        });
        LeaseId::try_from(id).expect("small bounds have fewer than 256 different Leases")
    }
}

impl Replica {
    fn leads(&self, epoch: u8) -> bool {
        self.primary.is_some_and(|primary| primary.epoch == epoch)
    }
}

impl Log {
    fn push(&mut self, record: Record) {
        self.records[usize::from(self.len)] = record;
        self.len += 1;
    }

    /// What is cut is blanked, so that equal logs are equal states.
    fn cut(&mut self, len: u8) {
        self.records[usize::from(len)..].fill(Record::default());
        self.len = len;
    }

    fn prefix(mut self, len: u8) -> Self {
        self.cut(len);
        self
    }

    fn shared_with(&self, other: &Self) -> u8 {
        let both = usize::from(self.len.min(other.len));
        (0..both).take_while(|i| self.records[*i] == other.records[*i]).count() as u8
    }

    /// One bit for each value.
    fn values(&self) -> u8 {
        let records = &self.records[..usize::from(self.len)];
        records.iter().filter(|record| record.value > 0).fold(0, |bits, record| bits | 1 << record.value)
    }
}
