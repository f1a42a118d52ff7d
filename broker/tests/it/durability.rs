//! What one replica alone keeps: everything it confirmed, over `kill -9` and a torn tail.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use understudy_protocol::{exchange, queue};

use crate::harness::{Client, Load, PATIENCE, Single, drain_numbers, short};

/// The segment that is written now.
pub(crate) fn last_segment(data: &Path) -> PathBuf {
    let names = std::fs::read_dir(data).unwrap().map(|entry| entry.unwrap().path());
    names.filter(|path| path.extension().is_some_and(|ending| ending == "seg")).max().expect("a segment")
}

#[test]
fn what_was_confirmed_outlives_kill_9_and_what_was_acknowledged_stays_gone() {
    let mut broker = Single::start();
    let mut client = Client::guest(broker.amqp());
    client.declare("work").unwrap();
    client.select_confirms();
    (0..500).for_each(|number: u64| client.publish("work", number.to_string()));
    client.await_confirms().unwrap();
    client.consume("work", 200).unwrap();
    for _ in 0..200 {
        let delivery = client.next_delivery(Instant::now() + PATIENCE).unwrap();
        client.ack(delivery.delivery_tag, false);
    }
    // Acknowledgements have no answer; a confirm that comes after them stands behind them in the log.
    client.publish_confirmed("work", "500").unwrap();

    broker.restart();
    broker.await_ready();
    let mut client = Client::guest(broker.amqp());
    let expected: BTreeSet<u64> = (200..=500).collect();
    assert_eq!(drain_numbers(&mut client, "work"), expected);
}

#[test]
fn kill_9_under_load_again_and_again_loses_nothing_confirmed() {
    let mut broker = Single::start();
    let load = Load::start(vec![broker.amqp()], "work");
    for _ in 0..5 {
        load.await_more(300);
        broker.restart();
    }
    load.await_more(300);
    let published = load.stop();
    let seen = drain_numbers(&mut Client::guest(broker.amqp()), "work");
    published.check(&seen);
}

#[test]
fn a_torn_tail_is_cut_and_reported() {
    let mut broker = Single::start();
    let mut client = Client::guest(broker.amqp());
    client.declare("work").unwrap();
    client.select_confirms();
    (0..50).for_each(|number: u64| client.publish("work", number.to_string()));
    client.await_confirms().unwrap();
    broker.kill();
    let segment = last_segment(&broker.settings.data);
    let whole = std::fs::metadata(&segment).unwrap().len();
    std::fs::File::options().append(true).open(&segment).unwrap().write_all(&[0xa5; 777]).unwrap();

    broker.restart();
    broker.await_ready();
    let log = broker.log();
    let cut =
        log.lines().find(|line| line.contains("cut a torn tail")).unwrap_or_else(|| panic!("not reported:\n{log}"));
    let name = segment.file_name().unwrap().to_str().unwrap();
    assert!(cut.contains(name) && cut.contains(&format!("offset={whole}")) && cut.contains("bytes=777"), "{cut}");
    let expected: BTreeSet<u64> = (0..50).collect();
    assert_eq!(drain_numbers(&mut Client::guest(broker.amqp()), "work"), expected);
}

#[test]
fn durable_topology_outlives_the_broker() {
    let mut broker = Single::start();
    let mut client = Client::guest(broker.amqp());
    client.declare("kept").unwrap();
    let topic =
        exchange::Declare { exchange: short("news"), kind: short("topic"), durable: true, ..Default::default() };
    client.call(topic).unwrap();
    let bind =
        queue::Bind { queue: short("kept"), exchange: short("news"), routing_key: short("a.#"), ..Default::default() };
    client.call(bind).unwrap();

    broker.restart();
    broker.await_ready();
    let mut client = Client::guest(broker.amqp());
    client.select_confirms();
    client.publish_to("news", "a.b", "1");
    client.await_confirms().unwrap();
    assert_eq!(drain_numbers(&mut client, "kept"), BTreeSet::from([1]));
}
