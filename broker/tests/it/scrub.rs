//! A backup whose log says something else than its primary's, checksums and all: it is found, leaves the set, fetches
//! everything anew and comes back, and what it had made of its log is never served.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use bytes::{Bytes, BytesMut};
use understudy_record::{Frame, Record, Rope};

use crate::harness::{Broker, Client, Cluster, Settings, Single, await_true};

const MESSAGES: u64 = 20;

fn scrub_every(interval_ms: u64) -> impl Fn(&mut Settings) {
    move |settings| (settings.scrub_interval_ms, settings.may_differ) = (interval_ms, true)
}

/// Where an acknowledgement stands.
struct Acknowledgement {
    frame: Frame,
    file: PathBuf,
    offset: u64,
    /// Of the scrubs after it.
    scrubs: usize,
}

/// The last one in this log.
fn last_acknowledgement(data: &Path) -> Acknowledgement {
    let (mut last, mut scrubs): (Option<Acknowledgement>, _) = (None, Vec::new());
    for file in std::fs::read_dir(data).unwrap().map(|file| file.unwrap().path()) {
        let bytes = Bytes::from(std::fs::read(&file).unwrap());
        let mut at = 0;
        while at < bytes.len() {
            let mut rest = Rope::default();
            rest.push(bytes.slice(at..));
            let Ok(Some(frame)) = Frame::take(&mut rest) else {
                at += 1; // in a header, or in a mark
                continue;
            };
            let (offset, index) = (at as u64, frame.position.index);
            at += frame.len();
            match frame.decode_record() {
                Ok(Record::Scrub { .. }) => scrubs.push(index),
                Ok(Record::Dequeue { .. }) if last.as_ref().is_none_or(|last| last.frame.position.index < index) => {
                    last = Some(Acknowledgement { frame, file: file.clone(), offset, scrubs: 0 });
                }
                _ => {}
            }
        }
    }
    let last = last.expect("an acknowledgement is in the log");
    let scrubs = scrubs.iter().filter(|scrub| **scrub > last.frame.position.index).count();
    Acknowledgement { scrubs, ..last }
}

/// It becomes one of the message after.
fn forge(acknowledgement: &Acknowledgement) {
    let Acknowledgement { frame, file, offset, .. } = acknowledgement;
    let Ok(Record::Dequeue { queue, messages }) = frame.decode_record() else { panic!("{frame:?}") };
    let record = Record::Dequeue { queue, messages: messages.iter().map(|message| message.next()).collect() };
    let forged = Frame::record(frame.position, frame.committed, &record, &mut BytesMut::new());
    assert_eq!(forged.len(), frame.len());
    let bytes: Vec<u8> = forged.pieces().flatten().copied().collect();
    std::fs::File::options().write(true).open(file).unwrap().write_all_at(&bytes, *offset).unwrap();
}

/// Of one message, whose body is its number. On return it is in the log of every member of the set.
fn take(client: &mut Client, expected: u64) {
    let got = client.get("work", false).unwrap();
    assert_eq!(*got.body.to_contiguous(), expected.to_be_bytes());
    client.ack(got.delivery_tag, false);
    client.declare(&format!("taken-{expected}")).unwrap(); // a later record, whose answer waits for its commit
}

fn publish_some(client: &mut Client) {
    client.select_confirms();
    client.declare("work").unwrap();
    for number in 0..MESSAGES {
        client.publish("work", number.to_be_bytes().to_vec());
    }
    client.await_confirms().unwrap();
}

/// A whole pass, of two records, since the last acknowledgement, and another so that it is known to be committed.
fn await_pass(broker: &Broker) {
    await_true("the state is written down", || last_acknowledgement(&broker.settings.data).scrubs >= 5);
}

/// After the others' deaths `heir` serves all messages but the first so many, which were taken.
fn serves_what_is_left(cluster: &mut Cluster, heir: usize, taken: u64) {
    cluster.await_all_in_sync();
    let primary = cluster.primary();
    let other = 3 - heir - primary;
    cluster.brokers[other].kill();
    cluster.await_set(&[primary, heir]);
    cluster.brokers[primary].kill();
    assert_eq!(cluster.await_other_primary(primary), heir);
    cluster.brokers[other].restart();
    let mut client = Client::guest(cluster.brokers[heir].amqp());
    let left = std::iter::from_fn(|| client.get("work", true));
    let left = left.map(|got| u64::from_be_bytes((*got.body.to_contiguous()).try_into().unwrap()));
    assert!(left.eq(taken..MESSAGES));
}

fn disagreements(cluster: &Cluster, backup: usize) -> Option<u64> {
    let name = format!("follower_inconsistencies_total{{follower=\"{}\"}}", cluster.name(backup));
    cluster.brokers[cluster.primary()].metric(&name)
}

#[test]
fn a_log_that_leads_elsewhere_is_found_when_it_is_read() {
    let mut cluster = Cluster::start_with(scrub_every(100));
    let mut client = cluster.client();
    publish_some(&mut client);
    take(&mut client, 0);
    take(&mut client, 1);
    let [forged, _] = cluster.backups();
    await_pass(&cluster.brokers[forged]);
    cluster.brokers[forged].kill();
    forge(&last_acknowledgement(&cluster.brokers[forged].settings.data));
    cluster.brokers[forged].restart();

    cluster.brokers[forged].await_log("so everything is fetched anew: as of record ");
    cluster.await_all_in_sync();
    let broker = &cluster.brokers[forged];
    assert!(broker.log().contains("in queue \"work\", the primary has 18 messages from 0 on in queue "));
    assert!(broker.log().contains("resume=Base"), "{}", broker.log());
    assert_eq!(broker.metric("inconsistencies_total"), Some(1));
    assert_eq!(disagreements(&cluster, forged), Some(1));
    drop(client);
    serves_what_is_left(&mut cluster, forged, 2);
}

/// A replica that nobody can give the true state keeps what it has, serves nobody, and says so, until a person decides.
#[test]
fn a_state_that_differs_is_served_only_when_told() {
    let mut broker = Single::start_with(scrub_every(100));
    let mut client = Client::guest(broker.amqp());
    publish_some(&mut client);
    take(&mut client, 0);
    await_pass(&broker);
    broker.kill();
    forge(&last_acknowledgement(&broker.settings.data));
    broker.restart();
    broker.await_log("so everything is fetched anew: as of record ");
    broker.await_log("solo-0 has a damaged or unfinished store");
    assert!(!broker.is_ready());

    broker.settings.extra.push("--accept-differences".into());
    broker.restart();
    broker.await_ready();
    assert!(broker.log().contains("accepted as told: as of record "));
    let mut client = Client::guest(broker.amqp());
    let first = client.get("work", true).unwrap();
    assert_eq!(*first.body.to_contiguous(), 0_u64.to_be_bytes(), "the log says that message 1 was taken");
}

#[test]
fn a_backup_whose_state_differs_leaves_the_set_and_comes_back_whole() {
    let mut cluster = Cluster::start_with(scrub_every(5_000));
    let mut client = cluster.client();
    publish_some(&mut client);
    let primary = cluster.primary();
    let [forged, other] = cluster.backups();
    // Between two passes: the next one finds that the forged log was read, unnoticed.
    let mut taken = 0;
    loop {
        take(&mut client, taken);
        taken += 1;
        cluster.brokers[forged].kill();
        let acknowledgement = last_acknowledgement(&cluster.brokers[forged].settings.data);
        if acknowledgement.scrubs == 0 {
            forge(&acknowledgement);
            break;
        }
        cluster.brokers[forged].restart();
        cluster.await_all_in_sync();
    }
    cluster.brokers[forged].restart();

    let status = cluster.brokers[forged].await_end();
    let log = cluster.brokers[forged].log();
    assert!(!status.success(), "{log}");
    assert!(log.contains("leaving, to fetch everything anew"), "{log}");
    cluster.await_set(&[primary, other]);
    client.publish_confirmed("elsewhere", Vec::new()).unwrap(); // nobody waits for the one that left
    cluster.brokers[primary].await_log("fetches everything anew: the state is not what the primary has: as of record ");

    cluster.brokers[forged].restart();
    cluster.await_all_in_sync();
    let broker = &cluster.brokers[forged];
    assert!(broker.log().contains("found to differ from the primary's at record "), "{}", broker.log());
    assert_eq!(broker.metric("inconsistencies_total"), Some(1));
    assert_eq!(disagreements(&cluster, forged), Some(1));
    drop(client);
    serves_what_is_left(&mut cluster, forged, taken);
}
