//! Random work by several clients while random brokers die: everything that a client knows for certain about its queues
//! holds. The seed is printed; `STORAGE_SEED` replays its choices (not the machine's timing), `STORAGE_SECONDS` makes it
//! longer.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use understudy_protocol::{ClientConfig, DeliveryTag, confirm, exchange, queue};

use super::numbered::{SOME_LARGE, body, number_of};
use crate::harness::{Client, Cluster, LOOK_AGAIN, Refused, await_true, short};

const SECONDS: u64 = 20;

/// Even smaller than the other tests': many times everything in a second.
const OPTIONS: [&str; 5] = [
    "--segment-bytes=65536",
    "--checkpoint-bytes=65536",
    "--memory-budget=131072",
    "--resume-records=200",
    // A client's commands end with its primary, so that an answer that did not come in time cannot come true later.
    "--backup-connections=refuse",
];

const WORKERS: u64 = 3;
const QUEUES: usize = 3;

/// Messages of one step, at most.
const BURST: u64 = 24;

/// A queue's length from which on its worker rather takes than publishes.
const LONG: usize = 400;

/// What its only client knows of a queue.
#[derive(Default)]
struct Ledger {
    name: String,
    /// Confirmed, and nobody has taken it.
    there: BTreeSet<u64>,
    /// There, or not: its confirm was not seen, or whether its acknowledgement came through.
    perhaps: BTreeSet<u64>,
    /// In this connection's hands.
    held: BTreeMap<u64, DeliveryTag>,
    /// Was in the hands of a connection whose end the broker need not have noticed yet.
    lingering: BTreeSet<u64>,
    /// Acknowledged on this connection, and nothing confirmed since.
    acknowledged: BTreeSet<u64>,
    /// Handed out at some time.
    seen: BTreeSet<u64>,
    redelivered: u64,
}

impl Ledger {
    #[track_caller]
    fn receive(&mut self, number: u64, redelivered: bool) {
        let known = self.there.contains(&number) || self.perhaps.contains(&number);
        assert!(known, "{number} was gone from {}, and came back", self.name);
        assert!(!self.held.contains_key(&number), "{number} of {} was handed out twice", self.name);
        let new = self.seen.insert(number);
        assert!(new || redelivered, "{number} of {} came again, unmarked", self.name);
        self.lingering.remove(&number);
        self.redelivered += u64::from(!new);
    }

    fn acknowledge(&mut self, number: u64) {
        self.there.remove(&number);
        self.perhaps.remove(&number);
        self.held.remove(&number);
        self.acknowledged.insert(number);
    }

    /// The connection is over.
    fn disconnect(&mut self) {
        self.lingering.extend(std::mem::take(&mut self.held).into_keys());
        self.perhaps.append(&mut self.acknowledged);
    }

    /// It was to be emptied, and nobody said whether it was.
    fn perhaps_emptied(&mut self) {
        self.perhaps.append(&mut self.there);
    }

    /// Purged. What is in somebody's hands stays. `count`: what the broker says there was.
    #[track_caller]
    fn purged(&mut self, count: u32) {
        let Self { there, perhaps, held, lingering, name, .. } = self;
        let spared = |number: &u64| held.contains_key(number);
        let sure = there.iter().filter(|number| !spared(number) && !lingering.contains(number)).count();
        let possible = there.iter().chain(&*perhaps).filter(|number| !spared(number)).count();
        let known = u32::try_from(sure).unwrap()..=u32::try_from(possible).unwrap();
        assert!(known.contains(&count), "{count} were purged from {name}, which had {known:?}");
        perhaps.retain(|number| spared(number) || lingering.contains(number));
        perhaps.extend(there.extract_if(.., |number| lingering.contains(number)));
        there.retain(spared);
    }

    fn deleted(&mut self) {
        [&mut self.there, &mut self.perhaps, &mut self.lingering].into_iter().for_each(BTreeSet::clear);
        self.held.clear();
        self.acknowledged.clear();
    }
}

struct Worker {
    random: StdRng,
    doors: Vec<SocketAddr>,
    fan: String,
    ledgers: Vec<Ledger>,
    next: u64,
    /// On the present connection.
    published: u64,
    confirmed: u64,
    /// How often each kind of step went well.
    done: BTreeMap<&'static str, u64>,
}

impl Worker {
    fn new(id: u64, seed: u64, doors: Vec<SocketAddr>) -> Self {
        let ledger = |at| Ledger { name: format!("random-{id}-{at}"), ..Ledger::default() };
        Self {
            random: StdRng::seed_from_u64(seed.wrapping_add(id)),
            doors,
            fan: format!("fan-{id}"),
            ledgers: (0..QUEUES).map(ledger).collect(),
            next: SOME_LARGE + (id << 32),
            published: 0,
            confirmed: 0,
            done: BTreeMap::new(),
        }
    }

    fn run(mut self, stop: &AtomicBool) -> Self {
        let mut connected = None;
        while !stop.load(Ordering::Relaxed) {
            let step = match connected.take() {
                None => self.connect(),
                Some(client) => self.step(client),
            };
            match step {
                Ok(client) => connected = Some(client),
                Err(_) => {
                    self.ledgers.iter_mut().for_each(Ledger::disconnect);
                    std::thread::sleep(LOOK_AGAIN);
                }
            }
        }
        self.ledgers.iter_mut().for_each(Ledger::disconnect);
        self
    }

    fn connect(&mut self) -> Result<Client, Refused> {
        let door = *self.doors.choose(&mut self.random).expect("a broker at least");
        let config = ClientConfig { heartbeat_seconds: 0, ..ClientConfig::default() };
        let mut client = Client::connect(door, config).map_err(Refused::Connection)?;
        client.call(confirm::Select::default())?;
        self.published = 0;
        let (exchange, kind) = (short(&self.fan), short("fanout"));
        client.call(exchange::Declare { exchange, kind, durable: true, ..Default::default() })?;
        (0..QUEUES).try_for_each(|at| self.declare(&mut client, at))?;
        Ok(client)
    }

    fn declare(&self, client: &mut Client, at: usize) -> Result<(), Refused> {
        let name = &self.ledgers[at].name;
        client.declare(name)?;
        let bind = queue::Bind { queue: short(name), exchange: short(&self.fan), ..Default::default() };
        client.call(bind).map(|_| ())
    }

    fn step(&mut self, mut client: Client) -> Result<Client, Refused> {
        let at = self.random.random_range(0..QUEUES);
        let long = self.ledgers[at].there.len() > LONG;
        let (step, outcome) = match self.random.random_range(0..100) {
            0..35 if !long => ("publish", self.publish(&mut client, Some(at))),
            35..50 if !long => ("fan out", self.publish(&mut client, None)),
            0..75 => ("take", self.take(&mut client, at)),
            75..94 => ("settle", self.settle(&mut client, at)),
            94..96 => ("purge", self.purge(&mut client, at)),
            96..98 => ("delete", self.delete(&mut client, at)),
            _ => ("hang up", Err(Refused::NoAnswer)),
        };
        *self.done.entry(step).or_default() += u64::from(outcome.is_ok() || step == "hang up");
        outcome.map(|()| client)
    }

    /// To one queue, or to all.
    fn publish(&mut self, client: &mut Client, to: Option<usize>) -> Result<(), Refused> {
        let count = self.random.random_range(1..=BURST);
        let numbers = self.next..self.next + count;
        for number in numbers.clone() {
            match to {
                Some(at) => client.publish(&self.ledgers[at].name, body(number)),
                None => client.publish_to(&self.fan, "", body(number)),
            }
        }
        let outcome = client.await_confirms();
        // The connection's publishes are counted from 1.
        let sequences = self.published + 1..;
        let unconfirmed = |sequence: &u64| client.unconfirmed().contains(sequence);
        let (doubtful, confirmed): (Vec<_>, Vec<_>) =
            numbers.zip(sequences).partition(|(_, sequence)| unconfirmed(sequence));
        (self.next, self.published) = (self.next + count, self.published + count);
        self.confirmed += confirmed.len() as u64;
        for (_, ledger) in self.ledgers.iter_mut().enumerate().filter(|(place, _)| to.is_none_or(|at| at == *place)) {
            ledger.there.extend(confirmed.iter().map(|(number, _)| number));
            ledger.perhaps.extend(doubtful.iter().map(|(number, _)| number));
        }
        if !confirmed.is_empty() {
            // What was acknowledged before stands before it in the log.
            self.ledgers.iter_mut().for_each(|ledger| ledger.acknowledged.clear());
        }
        outcome
    }

    fn take(&mut self, client: &mut Client, at: usize) -> Result<(), Refused> {
        let ledger = &mut self.ledgers[at];
        for _ in 0..self.random.random_range(1..=BURST) {
            let Some(got) = client.try_get(&ledger.name, false)? else { break };
            let number = number_of(&got.body);
            ledger.receive(number, got.redelivered);
            ledger.held.insert(number, got.delivery_tag);
        }
        Ok(())
    }

    fn settle(&mut self, client: &mut Client, at: usize) -> Result<(), Refused> {
        let ledger = &mut self.ledgers[at];
        for (number, tag) in ledger.held.clone() {
            match self.random.random_range(0..10) {
                0..6 => {
                    client.ack(tag, false);
                    ledger.acknowledge(number);
                }
                6..8 => {
                    client.requeue(tag);
                    ledger.held.remove(&number);
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn purge(&mut self, client: &mut Client, at: usize) -> Result<(), Refused> {
        let ledger = &mut self.ledgers[at];
        let outcome = client.purge(&ledger.name);
        match &outcome {
            Ok(count) => ledger.purged(*count),
            Err(_) => ledger.perhaps_emptied(),
        }
        outcome.map(|_| ())
    }

    fn delete(&mut self, client: &mut Client, at: usize) -> Result<(), Refused> {
        let ledger = &mut self.ledgers[at];
        match client.delete(&ledger.name) {
            Ok(_) => ledger.deleted(),
            Err(refused) => {
                ledger.perhaps_emptied();
                return Err(refused);
            }
        }
        self.declare(client, at)
    }
}

#[derive(Clone, Copy, Debug)]
enum Failure {
    KillOne,
    KillTwo,
    KillAll,
    LoseDiskOfBackup,
}

/// None ends but by this test's hand.
#[track_caller]
fn expect_all_alive(cluster: &mut Cluster) {
    for broker in &mut cluster.brokers {
        assert!(
            !broker.has_ended(),
            "{} ended by itself: {}",
            broker.settings.name,
            broker.log().lines().last().unwrap_or_default()
        );
    }
}

fn fail(cluster: &mut Cluster, failure: Failure, random: &mut StdRng) {
    let first = random.random_range(0..3);
    let victims = match failure {
        Failure::KillOne => vec![first],
        Failure::KillTwo => vec![first, (first + 1) % 3],
        Failure::KillAll => vec![0, 1, 2],
        // Survived by design only from a whole cluster.
        Failure::LoseDiskOfBackup => {
            cluster.await_all_in_sync();
            expect_all_alive(cluster);
            vec![cluster.backups()[random.random_range(0..2)]]
        }
    };
    victims.iter().for_each(|at| cluster.brokers[*at].kill());
    if matches!(failure, Failure::LoseDiskOfBackup) {
        std::fs::remove_dir_all(&cluster.brokers[victims[0]].settings.data).unwrap();
    }
    std::thread::sleep(Duration::from_millis(random.random_range(0..300)));
    victims.iter().for_each(|at| cluster.brokers[*at].restart());
}

#[track_caller]
fn expect_what_is_known(client: &mut Client, ledger: &mut Ledger) {
    // What a broker has not noticed to be in no hands any more comes a little later.
    await_true(&format!("{} is empty", ledger.name), || {
        while let Some(got) = client.get(&ledger.name, false) {
            let number = number_of(&got.body);
            ledger.receive(number, got.redelivered);
            ledger.held.insert(number, got.delivery_tag);
        }
        ledger.there.iter().all(|number| ledger.held.contains_key(number))
    });
}

#[test]
fn random_work_among_random_deaths_is_as_its_clients_know_it() {
    let setting = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let seed: u64 = setting("STORAGE_SEED").unwrap_or_else(|| rand::random_range(0..1_000_000));
    let duration = Duration::from_secs(setting("STORAGE_SECONDS").unwrap_or(SECONDS));
    eprintln!("STORAGE_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let mut cluster = Cluster::start_with(|settings| settings.extra = OPTIONS.map(String::from).into());
    let stop = Arc::new(AtomicBool::new(false));
    let workers = (0..WORKERS).map(|id| {
        let (worker, stop) = (Worker::new(id, seed, cluster.addresses()), stop.clone());
        std::thread::spawn(move || worker.run(&stop))
    });
    let workers: Vec<_> = workers.collect();
    let end = Instant::now() + duration;
    let mut checkpoints = 0;
    while Instant::now() < end && !workers.iter().any(|worker| worker.is_finished()) {
        std::thread::sleep(Duration::from_millis(random.random_range(300..1500)));
        expect_all_alive(&mut cluster);
        let failure = match random.random_range(0..10) {
            0..6 => Failure::KillOne,
            6..8 => Failure::KillTwo,
            8 => Failure::KillAll,
            _ => Failure::LoseDiskOfBackup,
        };
        let made = cluster.brokers.iter().filter_map(|broker| broker.metric("checkpoints_total")).sum::<u64>();
        eprintln!("{failure:?}, after {made} checkpoints");
        checkpoints += made;
        fail(&mut cluster, failure, &mut random);
    }
    stop.store(true, Ordering::Relaxed);
    let workers: Vec<Worker> = workers.into_iter().map(|worker| worker.join().expect("a worker ends well")).collect();
    cluster.await_all_in_sync();
    expect_all_alive(&mut cluster);
    let mut client = cluster.client();
    for mut worker in workers {
        worker.ledgers.iter_mut().for_each(|ledger| expect_what_is_known(&mut client, ledger));
        let left: usize = worker.ledgers.iter().map(|ledger| ledger.held.len()).sum();
        let redelivered: u64 = worker.ledgers.iter().map(|ledger| ledger.redelivered).sum();
        eprintln!("{} confirmed, {redelivered} redelivered, {left} left: {:?}", worker.confirmed, worker.done);
        assert!(worker.confirmed > 0, "nothing was confirmed in {duration:?}");
    }
    assert!(checkpoints > 0, "no checkpoint was made");
}
