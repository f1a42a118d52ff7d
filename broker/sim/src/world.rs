//! The world: machines, network, API server, clients, and what happens between them.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use understudy_core::Time;
use understudy_election::Stored;
use understudy_node::{
    BacklogReply, ChunkToSend, ClientEvent, Event, FollowerEvent, LeaseEvent, Order, READ_BYTES, ToPrimary,
    UpstreamEvent, read_messages, read_part,
};
use understudy_record::{Epoch, Index, ReplicaName, StoreId};
use understudy_replication::{Backlog, LeaseAnswer, LeaseRequest, PrimaryMessage, StreamId};

use crate::absence::Absence;
use crate::api::Api;
use crate::around::Act;
use crate::client::{Client, ClientStep, Kind};
use crate::elector::Operator;
use crate::faults::{FaultStep, POWER_IS_BACK};
use crate::ledger::{Ledger, WORK};
use crate::machine::{Machine, Process};
use crate::network::{Link, Network, Place};
use crate::plan::Plan;
use crate::report::Counts;
use crate::schedule::Schedule;
use crate::witness::{Standing, Witness};

/// How often a process looks at its clocks.
const TICK: Duration = Duration::from_millis(20);
/// How often electors look around.
pub(crate) const OPERATOR_LOOKS: Duration = Duration::from_millis(50);
const BACKUP_LOOKS: Duration = Duration::from_millis(200);

/// What reaches a process, in its own time: not while it is frozen.
#[derive(Debug)]
pub(crate) enum ForProcess {
    Tick,
    /// There was more to do at once.
    Work,
    Look,
    Client(ClientEvent),
    Event(Box<Event>),
    Seen(Stored),
    /// The journal's batch is due, or a checkpoint's order.
    Batch,
    Checkpoint,
    ReadLog(StreamId, Index),
    Load(Epoch, understudy_core::Load),
    LoadPart(Epoch, understudy_core::PartLoad),
    Fill(Box<(ChunkToSend, tokio::sync::oneshot::Sender<Result<BacklogReply, String>>)>),
    Arrives(u64),
    Connected(u64),
    Word(u64, ToPrimary),
    Message(u64, PrimaryMessage),
    Backlog(u64, Box<Backlog>),
    FetchFailed(u64, String),
    FetchNext(u64),
    /// The other end closed it.
    LinkEnded(u64),
    /// Nobody answered.
    NotConnected(u64, bool),
}

/// Who asked the API server.
#[derive(Clone, Debug)]
pub(crate) enum Asker {
    Keeper(Place, Epoch),
    Backup(Place),
    Operator,
}

#[derive(Debug)]
pub(crate) enum Happening {
    To(Place, ForProcess),
    Client(usize, ClientStep),
    Start(usize, u64),
    /// A machine goes on, if nothing has frozen it anew.
    Thaw(usize),
    Fault,
    FaultEnds(FaultStep),
    Absence(Absence),
    OperatorLooks,
    Request(Asker, LeaseRequest, bool),
    Answer(Asker, LeaseRequest, LeaseAnswer),
    OperatorSees(Stored),
}

pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) rng: StdRng,
    pub(crate) schedule: Schedule<Happening>,
    pub(crate) machines: Vec<Machine>,
    pub(crate) network: Network,
    pub(crate) api: Api,
    pub(crate) operator: Operator,
    pub(crate) clients: Vec<Client>,
    pub(crate) ledger: Ledger,
    pub(crate) witness: Witness,
    pub(crate) counts: Counts,
    pub(crate) is_calm: bool,
    /// To the API server, and not taken effect yet; some never will.
    pub(crate) requests_under_way: usize,
    /// Of everything that happened, in order: two runs of a seed end with the same.
    pub(crate) trace: u64,
    pub(crate) story: Option<Vec<String>>,
    seed: u64,
    made: u64,
}

impl World {
    pub(crate) fn new(seed: u64, tells: bool) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let plan = Plan::of(&mut rng);
        let machines = (0..plan.replicas).map(|place| Machine::new(&format!("orders-{place}"))).collect();
        let mut world = Self {
            rng,
            schedule: Schedule::new(),
            machines,
            network: Network::default(),
            api: Api::new(),
            operator: Operator::default(),
            clients: Vec::new(),
            ledger: Ledger::default(),
            witness: Witness::default(),
            counts: Counts { seeds: 1, ..Counts::default() },
            is_calm: false,
            requests_under_way: 0,
            trace: 0xcbf2_9ce4_8422_2325,
            story: tells.then(Vec::new),
            seed,
            made: 0,
            plan,
        };
        world.begin();
        world
    }

    pub(crate) fn begin(&mut self) {
        self.tell(|world| format!("{:?}", world.plan));
        for place in 0..self.machines.len() {
            let machine = &mut self.machines[place];
            machine.clock_offset = Duration::from_millis(self.rng.random_range(0..1_000_000));
            machine.clock_rate = self.rng.random_range(0.9..1.1);
            self.plan_start(place, 0..50);
        }
        let kinds = std::iter::repeat_n(Kind::Publisher, self.plan.publishers)
            .chain((0..self.plan.consumers).map(|n| Kind::Consumer(WORK[n % WORK.len()])))
            .chain([Kind::Purger]);
        self.clients = kinds.map(Client::new).collect();
        for client in 0..self.clients.len() {
            self.schedule.after(Duration::from_millis(200), Happening::Client(client, ClientStep::Connect));
        }
        if self.plan.operator {
            self.schedule.after(OPERATOR_LOOKS, Happening::OperatorLooks);
        }
        if !self.plan.faults.is_empty() {
            self.schedule.after(Duration::from_millis(1500), Happening::Fault);
        }
        if self.plan.absence {
            self.schedule.after(Duration::from_millis(1500), Happening::Absence(Absence::Begin));
        }
    }

    /// Takes the next step.
    ///
    /// # Errors
    /// If a rule is broken: in words.
    pub(crate) fn step(&mut self) -> Result<(), String> {
        let Some(happening) = self.schedule.next() else { return Err("nothing will ever happen again".into()) };
        self.note(&happening);
        match happening {
            Happening::To(place, what) => self.deliver(place, what),
            Happening::Client(client, step) => self.client_step(client, step),
            Happening::Start(machine, start) => self.start(machine, start),
            Happening::Thaw(machine) => self.thaw(machine),
            Happening::Fault => {
                self.fault();
                Ok(())
            }
            Happening::FaultEnds(step) => {
                self.end_fault(step);
                Ok(())
            }
            Happening::Absence(step) => {
                self.absence(step);
                Ok(())
            }
            Happening::OperatorLooks => {
                self.operator_looks();
                Ok(())
            }
            Happening::Request(asker, request, lost) => {
                self.requests_under_way -= 1;
                self.serve(asker, request, lost)
            }
            Happening::Answer(asker, request, answer) => self.answer(asker, request, answer),
            Happening::OperatorSees(seen) => {
                let now = self.schedule.now;
                self.operator.tracker.observe(now, seen);
                Ok(())
            }
        }
    }

    /// What happened goes into the trace; the words into the story, if somebody wants one.
    fn note(&mut self, happening: &Happening) {
        let word = match happening {
            Happening::To(place, what) => {
                let kind = match what {
                    ForProcess::Event(event) => 100 + event_number(event),
                    ForProcess::Word(..) => 50,
                    ForProcess::Message(_, message) => match message {
                        PrimaryMessage::Records(records) => 1000 + records.frames.len() as u64,
                        _ => 51,
                    },
                    ForProcess::Tick => 1,
                    ForProcess::Work => 2,
                    ForProcess::Batch => 3,
                    _ => 4,
                };
                (place.machine as u64) << 32 | kind
            }
            Happening::Client(client, _) => (1 << 48) | *client as u64,
            Happening::Thaw(machine) => (6 << 48) | *machine as u64,
            Happening::Start(machine, _) => (2 << 48) | *machine as u64,
            Happening::Fault | Happening::FaultEnds(_) | Happening::Absence(_) => 3 << 48,
            Happening::OperatorLooks | Happening::OperatorSees(_) => 4 << 48,
            Happening::Request(..) | Happening::Answer(..) => 5 << 48,
        };
        for part in [self.schedule.now.as_nanos() as u64, word] {
            self.trace = (self.trace ^ part).wrapping_mul(0x0100_0000_01b3);
        }
        if self.story.is_some() {
            let text = match happening {
                Happening::To(_, ForProcess::Tick | ForProcess::Work | ForProcess::Batch | ForProcess::Look)
                | Happening::OperatorLooks
                | Happening::Absence(_)
                | Happening::Client(..)
                | Happening::To(_, ForProcess::Client(_) | ForProcess::Checkpoint) => return,
                Happening::To(place, ForProcess::Message(link, PrimaryMessage::Records(records))) => {
                    let (first, last) = (records.frames.first(), records.frames.last());
                    let range = first.zip(last).map(|(first, last)| (first.position, last.position));
                    format!("{place:?} link {link} records {range:?} committed {}", records.committed)
                }
                Happening::To(place, ForProcess::Message(link, PrimaryMessage::Base(base))) => {
                    format!("{place:?} link {link} a base of {} with {} queues", base.sync_point, base.queues.len())
                }
                Happening::To(place, ForProcess::Backlog(fetch, backlog)) => {
                    let (messages, done) = (backlog.frames.len(), backlog.done);
                    format!(
                        "{place:?} fetch {fetch} of {}: {messages} as of {} done {done}",
                        backlog.queue, backlog.as_of
                    )
                }
                other => {
                    let mut text = format!("{other:?}");
                    text.truncate(400);
                    text
                }
            };
            self.tell(|_| text);
        }
    }

    pub(crate) fn tell(&mut self, text: impl FnOnce(&Self) -> String) {
        if self.story.is_some() {
            let line = format!("{:>10.3} ms  {}", self.schedule.now.as_secs_f64() * 1000.0, text(self));
            if let Some(story) = &mut self.story {
                story.push(line);
            }
        }
    }

    pub(crate) fn delay(&mut self) -> Duration {
        let micros = match self.rng.random_range(0..100) {
            0 => self.rng.random_range(5_000..60_000),
            1..=9 => self.rng.random_range(500..5_000),
            _ => self.rng.random_range(50..500),
        };
        Duration::from_micros(micros)
    }

    pub(crate) fn names(&self) -> Vec<ReplicaName> {
        self.machines.iter().map(|machine| machine.name.clone()).collect()
    }

    pub(crate) fn place_of(&self, name: &ReplicaName) -> Option<usize> {
        self.machines.iter().position(|machine| machine.name == *name)
    }

    pub(crate) fn process_at(&mut self, place: Place) -> Option<&mut Process> {
        self.machines[place.machine].process.as_mut().filter(|process| process.key == place.process)
    }

    pub(crate) fn standings(&self) -> Vec<Standing> {
        let standing = |(place, machine): (usize, &Machine)| Standing {
            place,
            identity: machine.process.as_ref().map(|process| process.identity.clone()),
            store: machine.store,
        };
        self.machines.iter().enumerate().map(standing).collect()
    }

    // Processes.

    pub(crate) fn plan_start(&mut self, machine: usize, millis: std::ops::Range<u64>) {
        self.machines[machine].starts += 1;
        let start = self.machines[machine].starts;
        let delay = Duration::from_millis(self.rng.random_range(millis));
        self.schedule.after(delay, Happening::Start(machine, start));
    }

    fn start(&mut self, place: usize, start: u64) -> Result<(), String> {
        let machine = &mut self.machines[place];
        if machine.starts != start || machine.process.is_some() || !machine.has_power {
            return Ok(());
        }
        self.made += 1;
        let (key, now) = (self.made, self.schedule.now);
        let fresh = StoreId(u128::from(self.made) << 64 | u128::from(self.seed));
        let machine = &mut self.machines[place];
        let found = match machine.start(now, key, fresh, self.seed, &self.plan) {
            Ok(found) => found,
            Err(_) if machine.disk.is_dead() => {
                self.lose_power(place, POWER_IS_BACK); // while it read its log
                return Ok(());
            }
            // A fault that was ordered strikes once, and this was it.
            Err(error) if machine.disk.has_faults() || error.contains("EIO") => {
                machine.disk.set_faults(understudy_journal::sim::Faults::default());
                self.plan_start(place, 100..500);
                return Ok(());
            }
            Err(error) => return Err(format!("{} cannot open its log: {error}", machine.name)),
        };
        self.tell(|_| format!("machine {place} starts process {key}: log {}..{}", found.first, found.last));
        self.witness.found(place, &found.frames, found.last);
        let place = Place { machine: place, process: key };
        self.schedule.after(TICK, Happening::To(place, ForProcess::Tick));
        self.schedule.after(BACKUP_LOOKS, Happening::To(place, ForProcess::Look));
        if !self.is_calm && self.rng.random_bool(0.3) {
            let ago = self.rng.random_range(0..12);
            if let Some(stale) = self.api.seen_before(ago).filter(|stale| self.may_be_shown(stale)) {
                self.schedule.after(Duration::from_millis(1), Happening::To(place, ForProcess::Seen(stale)));
            }
        }
        self.show_lease_to(place);
        self.after_turn(place)
    }

    /// The process ends at once; `says_so`: its kernel tells the other ends.
    pub(crate) fn end_process(&mut self, machine: usize, says_so: bool) {
        let now = self.schedule.now;
        let Some(process) = self.machines[machine].process.take() else { return };
        self.machines[machine].ended_at = now;
        let place = Place { machine, process: process.key };
        self.tell(|_| format!("machine {machine} process {} is gone", process.key));
        for (id, end) in process.outboxes {
            let at = now + if says_so { Duration::from_micros(300) } else { Duration::from_millis(700) };
            self.schedule.at(at, Happening::Client(end.client, ClientStep::Lost(id)));
        }
        let links: Vec<u64> = self.network.links.keys().copied().collect();
        for id in links {
            if self.network.links[&id].follower == place {
                self.close_link(id, false, says_so);
            } else if self.network.links[&id].primary == Some(place) {
                self.close_link(id, true, says_so);
            }
        }
    }

    pub(crate) fn deliver(&mut self, place: Place, what: ForProcess) -> Result<(), String> {
        let now = self.schedule.now;
        let machine = &self.machines[place.machine];
        if machine.process.as_ref().is_none_or(|process| process.key != place.process) {
            return Ok(());
        }
        // What was held up comes first: no connection brings its octets in another order.
        if machine.is_frozen(now) || !machine.deferred.is_empty() {
            self.machines[place.machine].deferred.push((place, what));
            return Ok(());
        }
        let clock = machine.clock(now);
        match what {
            ForProcess::Tick => {
                self.note_stall(place, now);
                self.turn(place, |process| process.node.tick())?;
                if let Some(process) = self.process_at(place) {
                    process.node.publish_status();
                }
                self.schedule.after(TICK, Happening::To(place, ForProcess::Tick));
                Ok(())
            }
            ForProcess::Work => {
                if let Some(process) = self.process_at(place) {
                    process.works = false;
                }
                self.turn(place, |_| {})
            }
            ForProcess::Look => {
                self.backup_looks(place);
                self.schedule.after(BACKUP_LOOKS, Happening::To(place, ForProcess::Look));
                Ok(())
            }
            ForProcess::Client(event) => self.turn(place, |process| process.node.handle_client(event)),
            ForProcess::Event(event) => self.turn(place, |process| process.node.handle(*event)),
            ForProcess::Seen(seen) => self.turn(place, |process| {
                process.tracker.observe(clock, seen.clone());
                process.node.handle(Event::Lease(LeaseEvent::Seen(seen)));
            }),
            ForProcess::Batch => self.carry_out_batch(place),
            ForProcess::Checkpoint => self.carry_out_checkpoint(place),
            ForProcess::ReadLog(stream, from) => self.turn(place, |process| {
                let frames = process.reader.clone().read_from(from, READ_BYTES).map_err(|error| error.to_string());
                process.node.handle(Event::Follower(stream, FollowerEvent::LogRead { from, frames }));
            }),
            ForProcess::Load(epoch, load) => self.turn(place, |process| {
                let messages = read_messages(&mut process.reader.clone(), &load.indexes);
                process.node.handle(Event::Loaded(epoch, load.queue, messages));
            }),
            ForProcess::LoadPart(epoch, load) => self.turn(place, |process| {
                let body = read_part(&mut process.reader.clone(), load.part.index);
                process.node.handle(Event::PartLoaded(epoch, load, body));
            }),
            ForProcess::Fill(job) => {
                let (chunk, reply) = *job;
                self.turn(place, |process| _ = reply.send(chunk.fill(&mut process.reader.clone())))
            }
            ForProcess::Arrives(link) => {
                self.link_arrives(place, link);
                Ok(())
            }
            ForProcess::Connected(link) => self.link_connected(place, link),
            ForProcess::Word(link, word) => self.hear_word(place, link, word),
            ForProcess::Message(link, message) => self.hear_message(place, link, message),
            ForProcess::Backlog(fetch, backlog) => self.hear_backlog(place, fetch, *backlog),
            ForProcess::FetchFailed(link, reason) => {
                let Some(number) = self.network.links.get(&link).filter(|link| link.follower_open).map(|l| l.number)
                else {
                    return Ok(());
                };
                self.close_link(link, false, true);
                self.turn(place, |process| {
                    let closed = UpstreamEvent::Closed { reset: true, reason };
                    process.node.handle(Event::Upstream(number, closed));
                })
            }
            ForProcess::FetchNext(fetch) => self.ask_for_chunk(place, fetch),
            ForProcess::LinkEnded(link) => self.link_ended(place, link),
            ForProcess::NotConnected(link, reset) => {
                let waits = |link: &&Link| link.follower_open && link.words.is_none();
                let Some(number) = self.network.links.get(&link).filter(waits).map(|link| link.number) else {
                    return Ok(());
                };
                self.close_link(link, false, true);
                self.turn(place, |process| {
                    let closed = UpstreamEvent::Closed { reset, reason: "not reached".into() };
                    process.node.handle(Event::Upstream(number, closed));
                })
            }
        }
    }

    pub(crate) fn freeze(&mut self, machine: usize, until: Duration) {
        self.machines[machine].frozen_until = until;
        self.schedule.at(until, Happening::Thaw(machine));
    }

    fn thaw(&mut self, machine: usize) -> Result<(), String> {
        if self.machines[machine].is_frozen(self.schedule.now) {
            return Ok(());
        }
        for (place, what) in std::mem::take(&mut self.machines[machine].deferred) {
            self.deliver(place, what)?;
        }
        Ok(())
    }

    pub(crate) fn note_stall(&mut self, place: Place, now: Duration) {
        if let Some(process) = self.process_at(place) {
            let since = process.batch_since;
            process.around.shelf().stalled_for = since.map_or(Duration::ZERO, |since| now.saturating_sub(since));
        }
    }

    /// The node takes a turn, and what it leads to goes on its way.
    pub(crate) fn turn(&mut self, place: Place, step: impl FnOnce(&mut Process)) -> Result<(), String> {
        let machine = &self.machines[place.machine];
        let time = Time { wall_ms: machine.wall_ms(self.schedule.now), steady: machine.clock(self.schedule.now) };
        let Some(process) = self.process_at(place) else { return Ok(()) };
        process.node.begin_turn(time);
        step(process);
        process.node.settle();
        self.after_turn(place)
    }

    pub(crate) fn after_turn(&mut self, place: Place) -> Result<(), String> {
        let Some(process) = self.process_at(place) else { return Ok(()) };
        let acts = std::mem::take(&mut process.around.shelf().acts);
        for act in acts {
            self.carry_out(place, act)?;
        }
        self.collect_words(place);
        self.collect_messages(place)?;
        self.collect_replies(place);
        self.collect_outboxes(place.machine)?;
        let process = self.machines[place.machine].process.as_mut().filter(|process| process.key == place.process);
        let Some(process) = process else { return Ok(()) };
        if process.node.has_ended() {
            let (status, flaw) = (process.shared.status.borrow().clone(), process.around.shelf().flaw);
            self.tell(|_| format!("machine {} ends: {:?}", place.machine, status.failure));
            if let Some(flaw) = flaw {
                return Err(format!("{} is not to be counted on ({flaw:?}): {:?}", status.me, status.failure));
            }
            self.end_process(place.machine, true);
            self.machines[place.machine].disk.set_faults(understudy_journal::sim::Faults::default());
            self.plan_start(place.machine, 50..400);
            return Ok(());
        }
        let starts_work = process.node.has_work() && !std::mem::replace(&mut process.works, true);
        let committed = process.shared.status.borrow().committed;
        self.witness.committed(place.machine, &process.identity, committed)?;
        if starts_work {
            self.schedule.after(Duration::from_micros(50), Happening::To(place, ForProcess::Work));
        }
        Ok(())
    }

    fn carry_out(&mut self, place: Place, act: Act) -> Result<(), String> {
        match act {
            Act::Order(order) => {
                let Some(process) = self.process_at(place) else { return Ok(()) };
                let identity = process.identity.clone();
                if let Order::Truncate(_) = &order {
                    self.counts.tails_cut += 1;
                }
                self.witness.ordered(place.machine, &identity, &order)?;
                let Some(process) = self.process_at(place) else { return Ok(()) };
                process.orders.push_back(order);
                if process.batch_since.is_none() {
                    self.begin_batch(place);
                }
            }
            Act::Checkpoint(id, order) => {
                let Some(process) = self.process_at(place) else { return Ok(()) };
                process.checkpoint_orders.push_back((id, order));
                if !std::mem::replace(&mut process.checkpoint_busy, true) {
                    self.soon(place, ForProcess::Checkpoint);
                }
            }
            Act::HangUp => {
                let own = self.network.links.iter().filter(|(_, link)| link.follower == place && link.follower_open);
                for id in own.map(|(id, _)| *id).collect::<Vec<_>>() {
                    self.close_link(id, false, true);
                }
            }
            Act::Dial(number, target) => self.dial(place, number, &target),
            Act::ReadLog(stream, from) => self.soon(place, ForProcess::ReadLog(stream, from)),
            Act::Load(epoch, load) => self.soon(place, ForProcess::Load(epoch, load)),
            Act::LoadPart(epoch, load) => self.soon(place, ForProcess::LoadPart(epoch, load)),
            Act::Backlog(chunk, reply) => self.soon(place, ForProcess::Fill(Box::new((chunk, reply)))),
            Act::Lease(epoch, request) => self.request(Asker::Keeper(place, epoch), request),
        }
        Ok(())
    }

    /// After what a disk or a thread takes.
    pub(crate) fn soon(&mut self, place: Place, what: ForProcess) {
        let delay = Duration::from_micros(self.rng.random_range(20..3_000));
        self.schedule.after(delay, Happening::To(place, what));
    }
}

fn event_number(event: &Event) -> u64 {
    match event {
        Event::Journal(_) => 1,
        Event::Follower(..) => 2,
        Event::Upstream(..) => 3,
        Event::Lease(_) => 4,
        Event::Control(_) => 5,
        Event::Alarms(_) => 6,
        Event::Checkpoint(_) => 7,
        Event::Loaded(..) => 8,
        Event::PartLoaded(..) => 9,
        Event::Settings(_) => 10,
    }
}
