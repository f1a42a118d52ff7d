//! The world: machines, network, API server, clients, and what happens between them.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::sync::mpsc::error::TryRecvError;
use understudy_election::{Decision, Elector, Lease, Loss, Version, decide, whom_to_follow};
use understudy_node::{
    BacklogReply, BacklogRequest, Brakes, ChunkToSend, ClientEvent, ControlEvent, Event, FollowerEvent, JournalEvent,
    LeaseEvent, Order, READ_BYTES, RoleStatus, Target, ToPrimary, UpstreamEvent, read_messages,
};
use understudy_record::{Epoch, Index, ReplicaName, StoreId};
use understudy_replication::{Backlog, LeaseAnswer, LeaseRequest, PrimaryMessage, Resume, StreamId};

use crate::api::Api;
use crate::around::Act;
use crate::client::{Client, ClientStep, Kind};
use crate::elector::{Operator, report, view};
use crate::faults::FaultStep;
use crate::ledger::{Ledger, WORK};
use crate::machine::{Machine, Process};
use crate::network::{Fetch, Link, Network, OPERATOR, Place};
use crate::plan::Plan;
use crate::report::Counts;
use crate::schedule::Schedule;
use crate::witness::{Standing, Witness};

/// How often a process looks at its clocks.
const TICK: Duration = Duration::from_millis(20);
/// How often electors look around.
const OPERATOR_LOOKS: Duration = Duration::from_millis(50);
const BACKUP_LOOKS: Duration = Duration::from_millis(200);
/// An answer of the API server that takes longer is not waited for.
const REQUEST_TIMEOUT: Duration = Duration::from_millis(800);
/// A connection that cannot be made is given up.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(1000);

/// What reaches a process, in its own time: not while it is frozen.
#[derive(Debug)]
pub(crate) enum ForProcess {
    Tick,
    /// There was more to do at once.
    Work,
    Look,
    Client(ClientEvent),
    Event(Box<Event>),
    Seen(Option<(Lease, Version)>),
    /// The journal's batch is due, or a checkpoint's order.
    Batch,
    Checkpoint,
    ReadLog(StreamId, Index),
    Load(Epoch, understudy_core::Load),
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
    OperatorLooks,
    Request(Asker, LeaseRequest, bool),
    Answer(Asker, LeaseRequest, LeaseAnswer),
    OperatorSees(Option<(Lease, Version)>),
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
            trace: 0xcbf2_9ce4_8422_2325,
            story: tells.then(Vec::new),
            seed,
            made: 0,
            plan,
        };
        world.begin();
        world
    }

    fn begin(&mut self) {
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
            Happening::OperatorLooks => {
                self.operator_looks();
                Ok(())
            }
            Happening::Request(asker, request, lost) => self.serve(asker, request, lost),
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
            Happening::Fault | Happening::FaultEnds(_) => 3 << 48,
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

    fn place_of(&self, name: &ReplicaName) -> Option<usize> {
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
                self.lose_power(place); // while it read its log
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
            if let Some(stale) = self.api.seen_before(ago) {
                self.schedule.after(Duration::from_millis(1), Happening::To(place, ForProcess::Seen(Some(stale))));
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

    fn deliver(&mut self, place: Place, what: ForProcess) -> Result<(), String> {
        let now = self.schedule.now;
        let machine = &self.machines[place.machine];
        if machine.process.as_ref().is_none_or(|process| process.key != place.process) {
            return Ok(());
        }
        if machine.is_frozen(now) {
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

    fn note_stall(&mut self, place: Place, now: Duration) {
        if let Some(process) = self.process_at(place) {
            let since = process.batch_since;
            process.around.shelf().stalled_for = since.map_or(Duration::ZERO, |since| now.saturating_sub(since));
        }
    }

    /// The node takes a turn, and what it leads to goes on its way.
    pub(crate) fn turn(&mut self, place: Place, step: impl FnOnce(&mut Process)) -> Result<(), String> {
        let clock = self.machines[place.machine].clock(self.schedule.now);
        let Some(process) = self.process_at(place) else { return Ok(()) };
        process.node.begin_turn(clock);
        step(process);
        process.node.settle();
        self.after_turn(place)
    }

    fn after_turn(&mut self, place: Place) -> Result<(), String> {
        let Some(process) = self.process_at(place) else { return Ok(()) };
        let acts = std::mem::take(&mut process.around.shelf().acts);
        for act in acts {
            self.carry_out(place, act)?;
        }
        self.collect_words(place);
        self.collect_messages(place)?;
        self.collect_replies(place);
        self.collect_outboxes(place.machine)?;
        let Some(process) = self.process_at(place) else { return Ok(()) };
        let status = process.shared.status.borrow().clone();
        if process.node.has_ended() {
            let flaw = process.around.shelf().flaw;
            self.tell(|_| format!("machine {} ends: {:?}", place.machine, status.failure));
            if let Some(flaw) = flaw {
                return Err(format!("{} is not to be counted on ({flaw:?}): {:?}", status.me, status.failure));
            }
            self.end_process(place.machine, true);
            self.machines[place.machine].disk.set_faults(understudy_journal::sim::Faults::default());
            self.plan_start(place.machine, 50..400);
            return Ok(());
        }
        if process.node.has_work() && !process.works {
            process.works = true;
            self.schedule.after(Duration::from_micros(50), Happening::To(place, ForProcess::Work));
        }
        self.witness.committed(place.machine, &status.me, status.committed)
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
            Act::Backlog(chunk, reply) => self.soon(place, ForProcess::Fill(Box::new((chunk, reply)))),
            Act::Lease(epoch, request) => self.request(Asker::Keeper(place, epoch), request),
        }
        Ok(())
    }

    /// After what a disk or a thread takes.
    fn soon(&mut self, place: Place, what: ForProcess) {
        let delay = Duration::from_micros(self.rng.random_range(20..3_000));
        self.schedule.after(delay, Happening::To(place, what));
    }

    // The disk.

    fn begin_batch(&mut self, place: Place) {
        let now = self.schedule.now;
        let takes = Duration::from_micros(match self.rng.random_range(0..50) {
            0 => self.rng.random_range(5_000..80_000),
            _ => self.rng.random_range(100..2_500),
        });
        let at = (now + takes).max(self.machines[place.machine].stalled_until);
        if let Some(process) = self.process_at(place) {
            process.batch_since = Some(now);
        }
        self.schedule.at(at, Happening::To(place, ForProcess::Batch));
    }

    fn carry_out_batch(&mut self, place: Place) -> Result<(), String> {
        let stalled_until = self.machines[place.machine].stalled_until;
        if self.schedule.now < stalled_until {
            self.schedule.at(stalled_until, Happening::To(place, ForProcess::Batch));
            return Ok(());
        }
        let Some(process) = self.process_at(place) else { return Ok(()) };
        process.batch_since = None;
        process.around.shelf().stalled_for = Duration::ZERO;
        let Some(first) = process.orders.pop_front() else { return Ok(()) };
        let who = process.identity.clone();
        let (orders, journal) = (&mut process.orders, &mut process.journal);
        let mut events = Vec::new();
        let outcome = journal.batch(first, || orders.pop_front(), |_| {}, &mut |event| events.push(event));
        if self.machines[place.machine].disk.is_dead() {
            self.lose_power(place.machine);
            return Ok(());
        }
        for event in &events {
            self.witness.reported(place.machine, &who, event)?;
            if let JournalEvent::Installed(installed) = event {
                self.counts.checkpoints += u64::from(installed.outcome.is_some());
            }
        }
        if let Err(reason) = outcome {
            events.push(JournalEvent::Failed(reason));
        }
        for event in events {
            self.turn(place, |process| process.node.handle(Event::Journal(event)))?;
        }
        if self.process_at(place).is_some_and(|process| !process.orders.is_empty() && process.batch_since.is_none()) {
            self.begin_batch(place);
        }
        Ok(())
    }

    fn carry_out_checkpoint(&mut self, place: Place) -> Result<(), String> {
        let Some(process) = self.process_at(place) else { return Ok(()) };
        process.checkpoint_busy = false;
        let Some((id, order)) = process.checkpoint_orders.pop_front() else { return Ok(()) };
        let given_up = {
            let mut shelf = process.around.shelf();
            shelf.waiting_checkpoints -= 1;
            shelf.given_up
        };
        let mut brakes = Brakes { keep: |_| given_up < id.0, rest: || {} };
        let event = process.checkpoints.carry_out(id, order, &mut brakes);
        if self.machines[place.machine].disk.is_dead() {
            self.lose_power(place.machine);
            return Ok(());
        }
        let Some(process) = self.process_at(place) else { return Ok(()) };
        if !process.checkpoint_orders.is_empty() {
            process.checkpoint_busy = true;
            self.soon(place, ForProcess::Checkpoint);
        }
        match event {
            Some(event) => self.turn(place, |process| process.node.handle(Event::Checkpoint(event))),
            None => Ok(()),
        }
    }

    // The network.

    fn dial(&mut self, place: Place, number: u64, target: &Target) {
        let Some(to) = self.place_of(&target.name) else { return };
        let (now, delay, id) = (self.schedule.now, self.delay(), self.network.number());
        self.network.links.insert(
            id,
            Link {
                follower: place,
                number,
                target: to,
                primary: None,
                words: None,
                messages: None,
                follower_open: true,
                primary_open: false,
                up_at: now,
                down_at: now,
            },
        );
        let machine = &self.machines[to];
        let (cut, process) = (self.network.is_cut(place.machine, to, now), machine.process.as_ref());
        let not_connected = |reset| ForProcess::NotConnected(id, reset);
        match process {
            Some(process) if !cut => {
                let primary = Place { machine: to, process: process.key };
                self.schedule.after(delay, Happening::To(primary, ForProcess::Arrives(id)));
                // If nobody answers, the connection is given up.
                self.schedule.after(CONNECT_TIMEOUT, Happening::To(place, not_connected(false)));
            }
            None if !cut && machine.has_power => self.schedule.after(delay, Happening::To(place, not_connected(true))),
            _ => self.schedule.after(CONNECT_TIMEOUT, Happening::To(place, not_connected(false))),
        }
    }

    fn link_arrives(&mut self, place: Place, id: u64) {
        let (now, delay) = (self.schedule.now, self.delay());
        let Some(link) = self.network.links.get_mut(&id).filter(|link| link.follower_open) else { return };
        link.primary = Some(place);
        link.primary_open = true;
        let follower = link.follower;
        let at = self.network.arrival(place.machine, follower.machine, now, delay);
        self.schedule.at(at, Happening::To(follower, ForProcess::Connected(id)));
    }

    fn link_connected(&mut self, place: Place, id: u64) -> Result<(), String> {
        let Some(link) = self.network.links.get_mut(&id).filter(|link| link.follower_open) else { return Ok(()) };
        let (sender, words) = tokio::sync::mpsc::unbounded_channel();
        link.words = Some(words);
        let number = link.number;
        self.turn(place, |process| process.node.handle(Event::Upstream(number, UpstreamEvent::Connected(sender))))
    }

    /// One end closes; the other hears of it, after what was sent before, if `says_so` and the way is open.
    pub(crate) fn close_link(&mut self, id: u64, at_primary: bool, says_so: bool) {
        let (now, delay) = (self.schedule.now, self.delay());
        let Some(link) = self.network.links.get_mut(&id) else { return };
        let (from, to, sent) = if at_primary {
            link.primary_open = false;
            link.messages = None;
            (link.target, Some(link.follower), link.down_at)
        } else {
            link.follower_open = false;
            link.words = None;
            (link.follower.machine, link.primary, link.up_at)
        };
        if let Some(to) = to.filter(|_| says_so) {
            let at = self.network.arrival(from, to.machine, now, delay).max(sent);
            self.schedule.at(at, Happening::To(to, ForProcess::LinkEnded(id)));
        }
        self.forget_link(id);
    }

    /// Something between the two ends it; both hear of it.
    pub(crate) fn break_link(&mut self, id: u64) {
        let Some(link) = self.network.links.get(&id) else { return };
        for place in std::iter::once(link.follower).chain(link.primary) {
            self.schedule.after(Duration::ZERO, Happening::To(place, ForProcess::LinkEnded(id)));
        }
    }

    fn forget_link(&mut self, id: u64) {
        let over = self.network.links.get(&id).is_some_and(|link| !link.follower_open && !link.primary_open);
        if over {
            self.network.links.remove(&id);
            self.network.fetches.retain(|_, fetch| fetch.link != id);
        }
    }

    fn link_ended(&mut self, place: Place, id: u64) -> Result<(), String> {
        let Some(link) = self.network.links.get_mut(&id) else { return Ok(()) };
        if link.follower == place && link.follower_open {
            link.follower_open = false;
            link.words = None;
            let number = link.number;
            self.forget_link(id);
            return self.turn(place, |process| {
                let closed = UpstreamEvent::Closed { reset: true, reason: "the stream ended".into() };
                process.node.handle(Event::Upstream(number, closed));
            });
        }
        if link.primary == Some(place) && link.primary_open {
            link.primary_open = false;
            link.messages = None;
            self.forget_link(id);
            return self.turn(place, |process| {
                process.node.handle(Event::Follower(StreamId(id), FollowerEvent::Closed));
            });
        }
        Ok(())
    }

    fn collect_words(&mut self, place: Place) {
        let own: Vec<u64> =
            self.network.links.iter().filter(|(_, link)| link.follower == place).map(|(id, _)| *id).collect();
        for id in own {
            loop {
                let delay = self.delay();
                let now = self.schedule.now;
                let Some(link) = self.network.links.get_mut(&id) else { break };
                let Some(Ok(word)) = link.words.as_mut().map(tokio::sync::mpsc::UnboundedReceiver::try_recv) else {
                    break;
                };
                let Some(primary) = link.primary.filter(|_| link.follower_open) else { continue };
                let (from, before) = (link.follower.machine, link.up_at);
                let at = self.network.arrival(from, primary.machine, now, delay).max(before);
                if let Some(link) = self.network.links.get_mut(&id) {
                    link.up_at = at;
                }
                self.schedule.at(at, Happening::To(primary, ForProcess::Word(id, word)));
            }
        }
    }

    fn collect_messages(&mut self, place: Place) -> Result<(), String> {
        let own: Vec<u64> =
            self.network.links.iter().filter(|(_, link)| link.primary == Some(place)).map(|(id, _)| *id).collect();
        for id in own {
            loop {
                let delay = self.delay();
                let now = self.schedule.now;
                let Some(link) = self.network.links.get_mut(&id) else { break };
                let Some(messages) = link.messages.as_mut() else { break };
                match messages.try_recv() {
                    Ok(message) => {
                        let (follower, before) = (link.follower, link.down_at);
                        if let PrimaryMessage::Records(records) = &message
                            && records.frames.last().is_some_and(|frame| frame.position.epoch == records.epoch)
                            && let Some(process) = &self.machines[place.machine].process
                        {
                            self.witness.wrote(&process.identity, records.epoch)?;
                        }
                        let at = self.network.arrival(place.machine, follower.machine, now, delay).max(before);
                        if let Some(link) = self.network.links.get_mut(&id) {
                            link.down_at = at;
                        }
                        self.schedule.at(at, Happening::To(follower, ForProcess::Message(id, message)));
                    }
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => {
                        self.close_link(id, true, true);
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    fn hear_word(&mut self, place: Place, id: u64, word: ToPrimary) -> Result<(), String> {
        let Some(link) = self.network.links.get_mut(&id) else { return Ok(()) };
        if link.primary != Some(place) || !link.primary_open {
            return Ok(());
        }
        let event = match word {
            ToPrimary::Hello(hello, _) => {
                let (sender, messages) = tokio::sync::mpsc::unbounded_channel();
                link.messages = Some(messages);
                FollowerEvent::Hello(hello, sender)
            }
            ToPrimary::Acknowledge(ack, _) => FollowerEvent::Acknowledge(ack),
            ToPrimary::CaughtUp(floor) => FollowerEvent::CaughtUp(floor),
            ToPrimary::Leaving(reason, _) => FollowerEvent::Leaving(reason),
            ToPrimary::Fetch { epoch, sync_id, queue, from } => {
                return self.begin_fetch(place, Fetch { link: id, epoch, sync_id, queue, from });
            }
        };
        self.turn(place, |process| process.node.handle(Event::Follower(StreamId(id), event)))
    }

    fn hear_message(&mut self, place: Place, id: u64, message: PrimaryMessage) -> Result<(), String> {
        let Some(link) = self.network.links.get(&id).filter(|link| link.follower_open) else { return Ok(()) };
        let number = link.number;
        match &message {
            PrimaryMessage::Base(_) => self.counts.catch_ups += 1,
            PrimaryMessage::Welcome(welcome) => {
                self.counts.resumes += u64::from(matches!(welcome.resume, Resume::After(_)));
            }
            _ => {}
        }
        self.turn(place, |process| process.node.handle(Event::Upstream(number, UpstreamEvent::Message(message))))
    }

    // A queue's backlog, chunk by chunk.

    fn begin_fetch(&mut self, place: Place, fetch: Fetch) -> Result<(), String> {
        let id = self.network.number();
        self.network.fetches.insert(id, fetch);
        self.ask_for_chunk(place, id)
    }

    fn ask_for_chunk(&mut self, place: Place, id: u64) -> Result<(), String> {
        let Some(fetch) = self.network.fetches.get(&id) else { return Ok(()) };
        let Fetch { epoch, sync_id, queue, from, .. } = *fetch;
        let (reply, answer) = tokio::sync::oneshot::channel();
        let request = BacklogRequest { epoch, sync_id, queue, from };
        if let Some(process) = self.process_at(place) {
            process.replies.insert(id, answer);
        }
        self.turn(place, |process| {
            process.node.handle(Event::Follower(StreamId(0), FollowerEvent::Backlog { request, reply }));
        })
    }

    fn collect_replies(&mut self, place: Place) {
        let Some(process) = self.process_at(place) else { return };
        let mut there = Vec::new();
        process.replies.retain(|id, reply| match reply.try_recv() {
            Ok(answer) => {
                there.push((*id, answer));
                false
            }
            Err(tokio::sync::oneshot::error::TryRecvError::Empty) => true,
            Err(tokio::sync::oneshot::error::TryRecvError::Closed) => {
                there.push((*id, Err("the broker is ending".into())));
                false
            }
        });
        for (id, answer) in there {
            let (now, delay) = (self.schedule.now, self.delay());
            let Some(fetch) = self.network.fetches.get_mut(&id) else { continue };
            let Some(link) = self.network.links.get(&fetch.link) else { continue };
            let at = self.network.arrival(place.machine, link.follower.machine, now, delay);
            let (follower, link) = (link.follower, self.network.fetches[&id].link);
            let what = match answer {
                Ok(BacklogReply { as_of, frames, messages, bytes, next, done }) => {
                    let Some(fetch) = self.network.fetches.get_mut(&id) else { continue };
                    let from = std::mem::replace(&mut fetch.from, next);
                    let (sync_id, queue) = (fetch.sync_id, fetch.queue);
                    ForProcess::Backlog(
                        id,
                        Box::new(Backlog { sync_id, queue, as_of, frames, messages, bytes, from, next, done }),
                    )
                }
                Err(reason) => ForProcess::FetchFailed(link, reason),
            };
            self.schedule.at(at, Happening::To(follower, what));
        }
    }

    fn hear_backlog(&mut self, place: Place, id: u64, backlog: Backlog) -> Result<(), String> {
        let (now, delay) = (self.schedule.now, self.delay());
        let Some(fetch) = self.network.fetches.get(&id) else { return Ok(()) };
        let Some(link) = self.network.links.get(&fetch.link).filter(|link| link.follower_open) else { return Ok(()) };
        let (number, primary, done) = (link.number, link.primary, backlog.done);
        if done {
            self.network.fetches.remove(&id);
        } else if let Some(primary) = primary {
            let at = self.network.arrival(place.machine, primary.machine, now, delay);
            self.schedule.at(at, Happening::To(primary, ForProcess::FetchNext(id)));
        }
        let (taken, _) = tokio::sync::oneshot::channel();
        self.turn(place, |process| {
            process.node.handle(Event::Upstream(number, UpstreamEvent::Backlog(backlog, taken)));
        })
    }

    // The Lease.

    fn asker_number(asker: &Asker) -> usize {
        match asker {
            Asker::Keeper(place, _) | Asker::Backup(place) => place.machine,
            Asker::Operator => OPERATOR,
        }
    }

    fn request(&mut self, asker: Asker, request: LeaseRequest) {
        let now = self.schedule.now;
        let reached = self.api.is_reached_by(Self::asker_number(&asker), now);
        let slow = now < self.api.slow_until;
        let delay = self.delay() + Duration::from_millis(if slow { self.rng.random_range(100..1500) } else { 1 });
        let loses = self.plan.lost_answers > 0 && !self.is_calm && self.rng.random_ratio(self.plan.lost_answers, 10);
        // A request that is given up may take effect all the same, now or much later, or never.
        if !reached || loses || delay > REQUEST_TIMEOUT {
            let lost = LeaseAnswer::Unknown("no answer".into());
            self.schedule.after(REQUEST_TIMEOUT, Happening::Answer(asker.clone(), request.clone(), lost));
            let arrives = match reached {
                true => self.rng.random_bool(0.7),
                false => self.rng.random_bool(0.2),
            };
            if arrives {
                let at = Duration::from_millis(self.rng.random_range(1..4_000));
                self.schedule.after(at, Happening::Request(asker, request, true));
            }
            return;
        }
        self.schedule.after(delay, Happening::Request(asker, request, false));
    }

    /// It takes effect. `lost`: nobody waits for the answer any more.
    fn serve(&mut self, asker: Asker, request: LeaseRequest, lost: bool) -> Result<(), String> {
        if self.schedule.now < self.api.down_until && lost {
            return Ok(());
        }
        let before = self.api.lease().cloned();
        let answer = self.api.serve(request.clone());
        if let LeaseAnswer::Written(_) = answer {
            self.lease_written(before.as_ref())?;
        }
        if !lost {
            let delay = self.delay();
            self.schedule.after(delay, Happening::Answer(asker, request, answer));
        }
        Ok(())
    }

    fn lease_written(&mut self, before: Option<&Lease>) -> Result<(), String> {
        let Some(lease) = self.api.lease().cloned() else { return Ok(()) };
        match before {
            Some(before) if before.epoch() < lease.epoch() => self.counts.elections += 1,
            Some(before) if before.in_sync().len() > lease.in_sync().len() => self.counts.shrinks += 1,
            Some(before) if before.in_sync().len() < lease.in_sync().len() => self.counts.grows += 1,
            None if self.counts.leases_deleted > 0 => self.counts.leases_recreated += 1,
            _ => {}
        }
        if before.is_none_or(|before| !before.same_configuration(&lease)) {
            self.tell(|_| format!("the Lease: {lease}"));
            let standings = self.standings();
            self.witness.lease_changed(&lease, &standings)?;
        }
        self.spread_lease();
        Ok(())
    }

    /// Every watcher sees the Lease as it is now, sooner or later.
    pub(crate) fn spread_lease(&mut self) {
        for machine in 0..self.machines.len() {
            if let Some(process) = &self.machines[machine].process {
                self.show_lease_to(Place { machine, process: process.key });
            }
        }
        let (seen, lag) = (self.api.seen(), self.lag());
        if self.api.is_reached_by(OPERATOR, self.schedule.now) {
            self.schedule.after(lag, Happening::OperatorSees(seen));
        }
    }

    pub(crate) fn show_lease_to(&mut self, place: Place) {
        let (seen, lag) = (self.api.seen(), self.lag());
        if self.api.is_reached_by(place.machine, self.schedule.now) {
            self.schedule.after(lag, Happening::To(place, ForProcess::Seen(seen)));
        }
    }

    fn lag(&mut self) -> Duration {
        let most = if self.is_calm { 20 } else { self.plan.watch_lag.as_millis() as u64 };
        Duration::from_millis(self.rng.random_range(1..=most))
    }

    fn answer(&mut self, asker: Asker, request: LeaseRequest, answer: LeaseAnswer) -> Result<(), String> {
        match asker {
            Asker::Keeper(place, epoch) => self.turn_unless_frozen(place, LeaseEvent::Answer(epoch, answer)),
            Asker::Backup(place) => match (request, answer) {
                (LeaseRequest::Swap { lease, .. } | LeaseRequest::Create { lease }, LeaseAnswer::Written(version)) => {
                    self.turn_unless_frozen(place, LeaseEvent::Seen(Some((lease, version))))
                }
                _ => Ok(()),
            },
            Asker::Operator => {
                self.operator.busy = false;
                let now = self.schedule.now;
                if let (
                    LeaseRequest::Swap { lease, .. } | LeaseRequest::Create { lease },
                    LeaseAnswer::Written(version),
                ) = (request, answer)
                {
                    let seen = Some((lease.clone(), version));
                    self.operator.tracker.observe(now, seen.clone());
                    // The chosen one is told at once.
                    let holder = lease.holder().and_then(|holder| self.place_of(&holder.name));
                    if let Some(machine) = holder
                        && let Some(process) = &self.machines[machine].process
                        && !self.network.is_cut(OPERATOR, machine, now)
                    {
                        let place = Place { machine, process: process.key };
                        let delay = self.delay();
                        self.schedule.after(delay, Happening::To(place, ForProcess::Seen(seen)));
                    }
                }
                Ok(())
            }
        }
    }

    fn turn_unless_frozen(&mut self, place: Place, event: LeaseEvent) -> Result<(), String> {
        self.deliver(place, ForProcess::Event(Box::new(Event::Lease(event))))
    }

    // Electors.

    /// What `from` hears of a replica when it asks.
    fn ask(&self, from: usize, to: usize) -> Result<Option<understudy_node::NodeStatus>, Loss> {
        let now = self.schedule.now;
        let machine = &self.machines[to];
        let cut = self.network.is_cut(from, to, now) || self.network.is_cut(to, from, now);
        if cut || !machine.has_power || machine.is_frozen(now) {
            return Err(Loss::Silent);
        }
        match &machine.process {
            Some(process) => Ok(Some(process.shared.status.borrow().clone())),
            None => Err(Loss::Reset),
        }
    }

    fn operator_looks(&mut self) {
        let now = self.schedule.now;
        self.schedule.after(OPERATOR_LOOKS, Happening::OperatorLooks);
        if now < self.operator.away_until {
            return;
        }
        for machine in 0..self.machines.len() {
            let said = self.ask(OPERATOR, machine);
            let name = self.machines[machine].name.clone();
            let knows_end = self.machines[machine].process.is_none()
                && now > self.machines[machine].ended_at + Duration::from_millis(150);
            let sight = self.operator.sights.entry(name).or_default();
            match said {
                Ok(Some(status)) => sight.hear(now, report(&status, now)),
                Ok(None) => {}
                Err(how) => {
                    sight.lose(now, how);
                    sight.gone |= how == Loss::Reset && knows_end && sight.report.is_some();
                }
            }
        }
        if self.operator.busy {
            return;
        }
        let names = self.names();
        let view = view(
            now,
            Elector::Operator,
            &self.operator.tracker,
            &self.operator.sights,
            &names,
            self.plan.replicated_only,
        );
        if let Some(request) = self.request_of(decide(now, &view)) {
            self.operator.busy = true;
            self.request(Asker::Operator, request);
        }
    }

    fn backup_looks(&mut self, place: Place) {
        let clock = self.machines[place.machine].clock(self.schedule.now);
        let Some(process) = self.process_at(place) else { return };
        let status = process.shared.status.borrow().clone();
        if !matches!(&status.role, RoleStatus::Backup { primary: None, .. }) {
            process.sights.clear();
            return;
        }
        let me = process.identity.clone();
        for machine in 0..self.machines.len() {
            let said =
                if machine == place.machine { Ok(Some(status.clone())) } else { self.ask(place.machine, machine) };
            let name = self.machines[machine].name.clone();
            let Some(process) = self.process_at(place) else { return };
            let sight = process.sights.entry(name).or_default();
            match said {
                Ok(Some(status)) => match report(&status, clock) {
                    Some(report) => sight.hear(clock, Some(report)),
                    None => sight.lose(clock, Loss::Reset),
                },
                Ok(None) => {}
                Err(how) => sight.lose(clock, how),
            }
        }
        let (names, replicated) = (self.names(), self.plan.replicated_only);
        let Some(process) = self.process_at(place) else { return };
        let view = view(clock, Elector::Backup(me), &process.tracker, &process.sights, &names, replicated);
        if let Some((epoch, primary)) = whom_to_follow(&view) {
            self.control(place.machine, ControlEvent::Follow(epoch, primary));
        }
        if let Some(request) = self.request_of(decide(clock, &view)) {
            self.request(Asker::Backup(place), request);
        }
    }

    fn request_of(&mut self, decision: Decision) -> Option<LeaseRequest> {
        match decision {
            Decision::Elect { expected, lease, candidate, reason } => {
                self.tell(|_| format!("elects {candidate}: {reason}"));
                Some(LeaseRequest::Swap { expected, lease })
            }
            Decision::Create { lease, candidate, reason } => {
                self.tell(|_| format!("creates a Lease for {candidate}: {reason}"));
                Some(LeaseRequest::Create { lease })
            }
            Decision::Wait { .. } | Decision::Blocked { .. } => None,
        }
    }

    /// A person, or a pod's end, asks the node for something.
    pub(crate) fn control(&mut self, machine: usize, event: ControlEvent) {
        if let Some(process) = &self.machines[machine].process {
            let place = Place { machine, process: process.key };
            let delay = self.delay();
            let event = Box::new(Event::Control(event));
            self.schedule.after(delay, Happening::To(place, ForProcess::Event(event)));
        }
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
    }
}
