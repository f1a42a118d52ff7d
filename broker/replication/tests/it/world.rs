//! The world around the nodes: streams, the Lease store, elections, clients, disasters; and the checker.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, IteratorRandom};
use rand::{Rng, SeedableRng};
use understudy_election::{Incarnation, Lease, Stored, Version};
use understudy_record::{Epoch, Index, StoreId};
use understudy_replication::{LeaseAnswer, LeaseRequest, StreamId};

use crate::node::{Act, FromPrimary, LEASE, Node, Role, ToPrimary, build};

/// One connection of a backup to a primary. Either end may know that it is broken before the other.
struct Link {
    backup: usize,
    backup_process: u64,
    primary: usize,
    primary_process: u64,
    up: VecDeque<ToPrimary>,
    down: VecDeque<FromPrimary>,
    backup_open: bool,
    primary_open: bool,
}

/// A request on its way to the Lease store.
struct Request {
    node: usize,
    process: u64,
    epoch: Epoch,
    request: LeaseRequest,
    /// The caller has been told that no answer came.
    given_up: bool,
}

/// How often disasters happen, in percent of steps.
#[derive(Clone, Copy)]
pub(crate) struct Weather {
    pub(crate) crash: u32,
    pub(crate) wipe: u32,
    pub(crate) break_link: u32,
    pub(crate) lose_answer: u32,
    pub(crate) election: u32,
    /// A replica comes back with another build.
    pub(crate) upgrade: u32,
}

pub(crate) struct World {
    seed: u64,
    rng: StdRng,
    pub(crate) now: Duration,
    pub(crate) nodes: Vec<Node>,
    links: BTreeMap<u64, Link>,
    next_link: u64,
    pub(crate) lease: Lease,
    version: u64,
    /// Earlier states: what a watch that lags shows.
    seen: Vec<(Lease, Version)>,
    requests: Vec<Request>,
    next_store: u128,
    next_number: u64,
    pub(crate) confirmed: BTreeMap<Index, u64>,
    pub(crate) elections: usize,
    pub(crate) bases: usize,
    pub(crate) resumed: usize,
    pub(crate) waited: usize,
    pub(crate) hand_overs: usize,
    pub(crate) checkpoints: usize,
    calm: bool,
    replicated: bool,
    pub(crate) blind: f64,
    trace: VecDeque<String>,
    /// The Lease, the stores and the confirms that the checker has seen last.
    checked: (u64, Vec<(StoreId, u64)>, usize),
}

/// Of the one Lease there is.
pub(crate) fn version(number: u64) -> Version {
    Version::new(Incarnation::new("1"), number.to_string())
}

impl World {
    pub(crate) fn new(seed: u64, replicated: bool) -> Self {
        let mut nodes: Vec<_> = (0..3).map(|i| Node::new(&format!("r{i}"), i + 1)).collect();
        nodes.iter_mut().for_each(|node| node.replicated = replicated);
        nodes.iter_mut().for_each(|node| node.start(Duration::ZERO));
        let set: BTreeSet<_> = nodes.iter().map(|node| node.identity().member(replicated)).collect();
        let lease = Lease::bootstrap(&nodes[0].identity(), set, LEASE).unwrap();
        let seen = vec![(lease.clone(), version(1))];
        Self {
            seed,
            rng: StdRng::seed_from_u64(seed),
            now: Duration::ZERO,
            nodes,
            links: BTreeMap::new(),
            next_link: 1,
            lease,
            version: 1,
            seen,
            requests: Vec::new(),
            next_store: 10,
            next_number: 1,
            confirmed: BTreeMap::new(),
            elections: 1,
            bases: 0,
            resumed: 0,
            waited: 0,
            hand_overs: 0,
            checkpoints: 0,
            calm: false,
            replicated,
            blind: 0.0,
            trace: VecDeque::new(),
            checked: Default::default(),
        }
    }

    /// One thing happens, chosen by the seed.
    pub(crate) fn step(&mut self, weather: Weather) {
        self.now += Duration::from_millis(self.rng.random_range(0..60));
        let disaster = self.rng.random_range(0..100);
        let Weather { crash, wipe, break_link, lose_answer, election, upgrade } = weather;
        let bounds = [crash, wipe, break_link, lose_answer, election, upgrade];
        let mut bound = 0;
        let kind = bounds.iter().position(|share| {
            bound += share;
            disaster < bound
        });
        match kind {
            Some(0) => self.crash(),
            Some(1) => self.wipe(),
            Some(2) => self.break_link(),
            Some(3) => self.lose_answer(),
            Some(4) if self.rng.random_bool(0.5) => self.hand_over(),
            Some(4) => self.elect(),
            Some(5) => self.upgrade(),
            _ => self.work(),
        }
        self.settle();
        self.check();
    }

    /// Something that is no disaster.
    pub(crate) fn work(&mut self) {
        let node = self.rng.random_range(0..self.nodes.len());
        match self.rng.random_range(0..13) {
            0 => self.restart(node),
            1 => self.see_lease(node),
            2 => self.dial(node),
            3 => self.tick(node),
            4 => self.answer_request(),
            5 | 6 => self.publish(node),
            12 => self.checkpoint(node),
            7 | 8 => self.nodes[node].turn_journal(self.now),
            _ => self.deliver(),
        }
    }

    pub(crate) fn settle(&mut self) {
        for node in 0..self.nodes.len() {
            self.nodes[node].poll_keeper(self.now);
            for act in std::mem::take(&mut self.nodes[node].acts) {
                self.carry_out(node, act);
            }
        }
    }

    fn note(&mut self, what: String) {
        if self.trace.len() == 60 {
            self.trace.pop_front();
        }
        self.trace.push_back(what);
    }

    fn checkpoint(&mut self, node: usize) {
        let (behind, back) = (self.rng.random_range(0..4), self.rng.random_range(0..8));
        // In fair weather there is room for what followers lack, or they would start over for ever.
        let full = !self.calm && self.rng.random_bool(0.3);
        if self.nodes[node].checkpoint(behind, back, full) {
            self.checkpoints += 1;
            self.note(format!("checkpoint of {}", self.nodes[node].identity()));
        }
    }

    fn restart(&mut self, node: usize) {
        let stored = &self.nodes[node].store;
        // A build that does not know the version its store was written at waits for an upgrade.
        if !self.nodes[node].is_up() && self.nodes[node].knows.contains(stored.cluster_version) {
            self.nodes[node].start(self.now);
            self.note(format!("start {}", self.nodes[node].identity()));
        }
    }

    fn crash(&mut self) {
        let node = self.rng.random_range(0..self.nodes.len());
        if self.replicated && self.is_last_of_a_set(node) {
            return;
        }
        self.note(format!("crash {node}"));
        self.nodes[node].crash();
        self.cut_links_of(node);
    }

    /// Forth mostly, and back, as people do.
    fn upgrade(&mut self) {
        let node = self.rng.random_range(0..self.nodes.len());
        if self.replicated && self.is_last_of_a_set(node) {
            return;
        }
        let newest = if self.rng.random_bool(0.85) { 3 } else { 2 };
        self.note(format!("{node} gets a build of version {newest}"));
        self.nodes[node].crash();
        self.nodes[node].knows = build(newest);
        self.cut_links_of(node);
    }

    /// Who cannot go on with the build that it has gets the newer one.
    fn upgrade_outdated(&mut self) {
        for node in 0..self.nodes.len() {
            let version = self.lease.cluster_version().max(self.nodes[node].store.cluster_version);
            let spared = self.replicated && self.is_last_of_a_set(node);
            if !self.nodes[node].knows.contains(version) && !spared {
                self.nodes[node].crash();
                self.nodes[node].knows = build(3);
                self.cut_links_of(node);
            }
        }
    }

    fn is_last_of_a_set(&self, node: usize) -> bool {
        let member = self.nodes[node].identity().member(true);
        let living: Vec<_> = self.nodes.iter().filter(|n| n.is_up()).map(Node::identity).collect();
        let alive =
            |set: &BTreeSet<understudy_record::Member>| set.iter().filter(|m| living.iter().any(|i| m.is(i))).count();
        let sets = self.requests.iter().filter_map(|request| match &request.request {
            LeaseRequest::Swap { lease, .. } => Some(lease.in_sync()),
            LeaseRequest::Read | LeaseRequest::Create => None,
        });
        sets.chain([self.lease.in_sync()]).any(|set| set.contains(&member) && alive(set) < 2)
    }

    /// The disk is gone too. Never the last of the set: what is confirmed lives on one member at least.
    fn wipe(&mut self) {
        let node = self.rng.random_range(0..self.nodes.len());
        let member = self.nodes[node].identity().member(self.replicated);
        let stores: BTreeSet<_> = self.nodes.iter().map(|node| node.store.id).collect();
        let alive =
            |set: &BTreeSet<understudy_record::Member>| set.iter().filter(|m| stores.contains(&m.store)).count();
        let sets = self.requests.iter().filter_map(|request| match &request.request {
            LeaseRequest::Swap { lease, .. } => Some(lease.in_sync()),
            LeaseRequest::Read | LeaseRequest::Create => None,
        });
        let last_of_one = sets.chain([self.lease.in_sync()]).any(|set| set.contains(&member) && alive(set) < 2);
        if last_of_one || (self.replicated && self.is_last_of_a_set(node)) {
            return;
        }
        self.note(format!("wipe {node}"));
        self.nodes[node].crash();
        self.cut_links_of(node);
        let name = format!("r{node}");
        let (process, knows) = (self.nodes[node].process, self.nodes[node].knows);
        self.nodes[node] = Node::new(&name, self.next_store);
        (self.nodes[node].replicated, self.nodes[node].knows) = (self.replicated, knows);
        self.nodes[node].process = process;
        self.next_store += 1;
    }

    fn cut_links_of(&mut self, node: usize) {
        for link in self.links.values_mut() {
            if link.backup == node {
                link.backup_open = false;
            }
            if link.primary == node {
                link.primary_open = false;
            }
        }
    }

    fn break_link(&mut self) {
        if let Some(link) = self.links.values_mut().choose(&mut self.rng) {
            let was_open = link.backup_open;
            match self.rng.random_range(0..3) {
                0 => link.backup_open = false,
                1 => link.primary_open = false,
                _ => (link.backup_open, link.primary_open) = (false, false),
            }
            let (backup, still_open) = (link.backup, link.backup_open);
            if was_open && !still_open {
                self.nodes[backup].disconnected(self.now);
            }
        }
    }

    /// Somebody elects: any member, with any part of the old set.
    fn elect(&mut self) {
        let Some(candidate) = (0..self.nodes.len()).choose(&mut self.rng) else { return };
        let identity = self.nodes[candidate].identity();
        let clean = match &self.nodes[candidate].role {
            Role::Down => false,
            Role::Backup(backup) => backup.is_clean(),
            Role::Primary(..) => true,
        };
        let reachable = self.nodes.iter().filter(|_| self.rng.random_bool(0.7)).map(Node::identity).collect();
        if !clean || !self.nodes[candidate].knows.contains(self.lease.cluster_version()) {
            return;
        }
        if let Ok(lease) = self.lease.elect(&identity, &reachable) {
            self.note(format!("elect {identity} epoch {} set {:?}", lease.epoch(), lease.in_sync()));
            self.elections += 1;
            self.write_lease(lease);
        }
    }

    fn hand_over(&mut self) {
        let Some(node) = (0..self.nodes.len()).choose(&mut self.rng) else { return };
        let me = self.nodes[node].identity();
        let Role::Primary(primary, keeper) = &mut self.nodes[node].role else { return };
        let in_sync: Vec<_> = primary.followers().filter(|f| f.in_sync).map(|f| f.identity).collect();
        let Some(successor) = in_sync.choose(&mut self.rng).cloned() else { return };
        let mut reachable: BTreeSet<_> = in_sync.iter().cloned().collect();
        reachable.insert(me.clone());
        primary.handle_own_leaving();
        keeper.hand_over(successor.clone(), reachable);
        self.hand_overs += 1;
        self.note(format!("hand over {me} to {successor}"));
    }

    fn write_lease(&mut self, lease: Lease) -> Version {
        self.version += 1;
        assert!(lease.cluster_version() >= self.lease.cluster_version(), "lowered: {}", self.story());
        let version = version(self.version);
        self.lease = lease;
        self.seen.push((self.lease.clone(), version.clone()));
        version
    }

    fn see_lease(&mut self, node: usize) {
        if matches!(self.nodes[node].role, Role::Primary(..)) && self.rng.random_bool(self.blind) {
            return;
        }
        let lag = if self.rng.random_bool(0.8) { 0 } else { self.rng.random_range(0..self.seen.len().min(4)) };
        let (lease, version) = self.seen[self.seen.len() - 1 - lag].clone();
        let me = self.nodes[node].identity();
        match &self.nodes[node].role {
            Role::Backup(backup) => {
                let ahead = lease.epoch() > backup.history().last().epoch;
                if lease.holder() == Some(&me) && ahead {
                    self.note(format!("promote {me} epoch {}", lease.epoch()));
                    self.nodes[node].elected(self.now, lease, version);
                }
            }
            Role::Primary(..) => self.nodes[node].keeper(self.now, |keeper| keeper.handle_seen(Some(&lease))),
            Role::Down => {}
        }
    }

    /// A backup connects to whoever holds the Lease, or to any primary: it may not know better.
    fn dial(&mut self, backup: usize) {
        let Role::Backup(role) = &self.nodes[backup].role else { return };
        if role.is_connected() {
            return;
        }
        let primaries = (0..self.nodes.len()).filter(|node| matches!(self.nodes[*node].role, Role::Primary(..)));
        let Some(primary) = primaries.filter(|node| *node != backup).choose(&mut self.rng) else { return };
        let mut hello = None;
        let now = self.now;
        self.nodes[backup].backup(now, |backup, _| {
            hello = Some(backup.handle_connected(now));
            true
        });
        let Some(hello) = hello else { return };
        let link = Link {
            backup,
            backup_process: self.nodes[backup].process,
            primary,
            primary_process: self.nodes[primary].process,
            up: [ToPrimary::Hello(hello)].into(),
            down: VecDeque::new(),
            backup_open: true,
            primary_open: true,
        };
        self.links.insert(self.next_link, link);
        self.next_link += 1;
    }

    fn tick(&mut self, node: usize) {
        let now = self.now;
        let replicas: Vec<_> = self.nodes.iter().map(|node| node.name.clone()).collect();
        self.nodes[node].tick_version(now, &replicas);
        self.nodes[node].primary(now, |primary, out| primary.handle_timeout(now, out));
        self.nodes[node].backup(now, |backup, out| {
            backup.handle_timeout(now, out);
            true
        });
    }

    fn publish(&mut self, node: usize) {
        if let Role::Primary(..) = self.nodes[node].role {
            self.nodes[node].publish(self.now, self.next_number);
            self.next_number += 1;
        }
    }

    /// One message of one stream arrives, or an end learns that the other is gone.
    fn deliver(&mut self) {
        let Some(id) = self.links.keys().copied().choose(&mut self.rng) else { return };
        let upward = self.rng.random_bool(0.5);
        let Some(link) = self.links.get_mut(&id) else { return };
        let (backup, primary) = (link.backup, link.primary);
        let backup_lives = link.backup_open && self.nodes[backup].process == link.backup_process;
        let primary_lives = link.primary_open && self.nodes[primary].process == link.primary_process;
        let (now, stream) = (self.now, StreamId(id));
        if upward {
            // A fetch is a call of its own, beside the stream.
            let beside = link.up.iter().position(|word| matches!(word, ToPrimary::Fetch { .. }));
            let next = match beside.filter(|_| self.rng.random_bool(0.5)) {
                Some(place) => link.up.remove(place),
                None => link.up.pop_front(),
            };
            match next {
                Some(word) if primary_lives => self.hear(primary, stream, word),
                Some(_) => {}
                None if !backup_lives => {
                    if primary_lives {
                        self.nodes[primary].primary(now, |primary, out| primary.handle_stream_closed(now, stream, out));
                    }
                    self.links.remove(&id);
                }
                None => {}
            }
        } else {
            let beside = link.down.iter().position(|m| matches!(m, FromPrimary::Backlog(..)));
            let next = match beside.filter(|_| self.rng.random_bool(0.5)) {
                Some(place) => link.down.remove(place),
                None => link.down.pop_front(),
            };
            match next {
                Some(message) if backup_lives => self.take(backup, message),
                Some(_) => {}
                None if !primary_lives && backup_lives => {
                    link.backup_open = false;
                    self.nodes[backup].disconnected(now);
                }
                None => {}
            }
        }
    }

    fn hear(&mut self, primary: usize, stream: StreamId, word: ToPrimary) {
        let now = self.now;
        // Both ways to catch up: the log, whatever its length, or a base as soon as it is longer than a few records.
        let live = if self.rng.random_bool(0.5) { 0 } else { u64::MAX / 4 };
        if !matches!(word, ToPrimary::Acknowledge(_)) {
            self.note(format!("{primary} hears {word:?} on {stream:?}"));
        }
        let node = &mut self.nodes[primary];
        match word {
            ToPrimary::Hello(hello) => node.primary(now, |p, out| p.handle_hello(now, stream, &hello, live, out)),
            ToPrimary::Acknowledge(ack) => node.primary(now, |p, out| p.handle_acknowledge(now, stream, ack, out)),
            ToPrimary::CaughtUp(floor) => node.primary(now, |p, out| p.handle_caught_up(now, stream, floor, out)),
            ToPrimary::Fetch { epoch, sync_id, from } => node.backlog(now, stream, epoch, sync_id, from),
        }
    }

    fn take(&mut self, backup: usize, message: FromPrimary) {
        use understudy_replication::PrimaryMessage as M;
        let now = self.now;
        match &message {
            FromPrimary::Message(M::Base(base)) => {
                self.bases += 1;
                self.note(format!("{backup} takes a base of {}", base.sync_point));
            }
            FromPrimary::Message(M::Welcome(welcome)) => {
                self.resumed += usize::from(matches!(welcome.resume, understudy_replication::Resume::SameBase(_)));
                self.note(format!("{backup} is welcomed: {:?}", welcome.resume))
            }
            FromPrimary::Message(M::Waiting(_)) => self.waited += 1,
            FromPrimary::Backlog(backlog) => {
                let (count, as_of, done) = (backlog.frames.len(), backlog.as_of, backlog.done);
                let lowest = backlog.next.before;
                self.note(format!("{backup} takes {count} messages as of {as_of} down to {lowest}, done {done}"));
            }
            FromPrimary::Message(_) => {}
        }
        let node = &mut self.nodes[backup];
        match message {
            FromPrimary::Backlog(backlog) => node.take_backlog(now, backlog),
            FromPrimary::Message(message) => node.backup(now, |backup, out| match message {
                M::Welcome(welcome) => backup.handle_welcome(now, welcome, out).is_ok(),
                M::Records(records) => backup.handle_records(now, records, out).is_ok(),
                M::Base(base) => backup.handle_base(now, base, out).is_ok(),
                M::Version(version) => backup.handle_version(version, out).is_ok(),
                M::Waiting(waiting) => backup.handle_waiting(now, waiting, out).is_ok(),
                M::Refusal(_) => false,
            }),
        }
    }

    fn carry_out(&mut self, node: usize, act: Act) {
        let process = self.nodes[node].process;
        match act {
            Act::Say(word) => {
                let mut own = self.links.values_mut().filter(|l| l.backup == node && l.backup_open);
                if let Some(link) = own.find(|link| link.backup_process == process) {
                    link.up.push_back(word);
                }
            }
            Act::Tell(StreamId(id), message) => {
                if let Some(link) = self.links.get_mut(&id).filter(|link| link.primary_open) {
                    link.down.push_back(message);
                }
            }
            Act::HangUp => self.links.values_mut().filter(|l| l.backup == node).for_each(|l| l.backup_open = false),
            Act::Cut(StreamId(id)) => {
                if let Some(link) = self.links.get_mut(&id) {
                    link.primary_open = false;
                }
            }
            Act::Lease(epoch, request) => {
                self.requests.push(Request { node, process, epoch, request, given_up: false });
            }
            Act::Confirm(newly) => {
                for (index, number) in newly {
                    let known = self.confirmed.insert(index, number);
                    assert!(known.is_none_or(|known| known == number), "{index} confirmed twice: {}", self.story());
                }
            }
        }
    }

    /// A request takes effect, and its answer arrives.
    fn answer_request(&mut self) {
        if self.requests.is_empty() {
            return;
        }
        let place = self.rng.random_range(0..self.requests.len());
        let request = self.requests.swap_remove(place);
        let answer = self.serve(request.request);
        if !request.given_up {
            self.give_answer(request.node, request.process, request.epoch, answer);
        }
    }

    /// The caller is told that no answer came; the request takes effect now, later or never.
    fn lose_answer(&mut self) {
        let waiting: Vec<_> = (0..self.requests.len()).filter(|place| !self.requests[*place].given_up).collect();
        let Some(&place) = waiting.choose(&mut self.rng) else { return };
        self.requests[place].given_up = true;
        let (node, process, epoch) =
            (self.requests[place].node, self.requests[place].process, self.requests[place].epoch);
        if self.rng.random_bool(0.3) {
            self.requests.swap_remove(place);
        }
        self.give_answer(node, process, epoch, LeaseAnswer::Unknown("no answer".into()));
    }

    fn give_answer(&mut self, node: usize, process: u64, epoch: Epoch, answer: LeaseAnswer) {
        let now = self.now;
        let current = match &self.nodes[node].role {
            Role::Primary(primary, _) => self.nodes[node].process == process && primary.epoch() == epoch,
            _ => false,
        };
        if current {
            self.nodes[node].keeper(now, |keeper| keeper.handle_answer(now, answer));
        }
    }

    fn serve(&mut self, request: LeaseRequest) -> LeaseAnswer {
        let current = version(self.version);
        match request {
            LeaseRequest::Read => LeaseAnswer::Read(Stored::Held(self.lease.clone(), current)),
            LeaseRequest::Swap { expected, lease } if expected == current => {
                self.note(format!("lease set {:?}", lease.in_sync()));
                LeaseAnswer::Written(self.write_lease(lease))
            }
            LeaseRequest::Swap { .. } | LeaseRequest::Create => LeaseAnswer::Conflict,
        }
    }

    /// Every confirmed message is in the log of every member of the set whose disk lives.
    pub(crate) fn check(&mut self) {
        let stores = self.nodes.iter().map(|node| (node.store.id, node.store.losses)).collect();
        let present = (self.version, stores, self.confirmed.len());
        if present == self.checked {
            return; // a log that only grew still holds what it held
        }
        self.checked = present;
        for member in self.lease.in_sync() {
            let Some(node) = self.nodes.iter().find(|node| node.store.id == member.store) else { continue };
            if self.replicated && !(node.is_up() && member.is(&node.identity())) {
                continue;
            }
            let mut contents = node.store.log.contents().clone();
            if self.replicated {
                node.add_received(&mut contents);
            }
            for (index, number) in &self.confirmed {
                let found = contents.get(index);
                assert_eq!(found, Some(number), "{index} was confirmed and {member} has {found:?}: {}", self.story());
            }
        }
    }

    fn story(&self) -> String {
        let lines: Vec<_> = self.trace.iter().map(|line| format!("  {line}")).collect();
        format!("seed {}\n{}", self.seed, lines.join("\n"))
    }

    /// What a run came to, for comparing two of the same seed.
    pub(crate) fn digest(&self) -> String {
        let logs: Vec<_> = self.nodes.iter().map(|node| (node.store.id, node.store.log.contents())).collect();
        format!("{:?} {:?} {:?} {logs:?}", self.lease, self.version, self.confirmed)
    }

    /// Fair weather until every replica is in sync and everything written is confirmed.
    pub(crate) fn calm(&mut self) {
        self.blind = 0.0;
        self.calm = true;
        let steps = 60_000;
        for _ in 0..steps {
            self.now += Duration::from_millis(self.rng.random_range(0..10));
            self.upgrade_outdated();
            self.work();
            self.deliver(); // streams have room for what is published, or nobody would ever be current
            self.settle();
            self.check();
            let holder = self.lease.holder().cloned();
            let serving = self.nodes.iter().any(|node| {
                matches!(&node.role, Role::Primary(primary, _)
                    if Some(node.identity()) == holder && primary.in_force().len() == self.nodes.len())
            });
            if serving {
                return;
            }
            // An elector's part: a holder that is no more is replaced.
            let holder_lives = self.nodes.iter().any(|node| Some(node.identity()) == holder && node.is_up());
            if !holder_lives && self.rng.random_bool(0.01) {
                self.elect();
            }
        }
        let nodes: Vec<_> = self.nodes.iter().map(Node::describe).collect();
        panic!("not everybody is in sync after {steps} steps of fair weather: {nodes:#?}\n{}", self.story());
    }
}
