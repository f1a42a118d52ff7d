//! What consumers set free comes back to the disk though publishers wait, and so hardly anything is written.

use std::time::Instant;

use super::SEGMENT_BYTES;
use crate::harness::{Client, PATIENCE, Places, Settings, SmallDisk, await_true, write_certificates};

const DISK_MEGABYTES: u32 = 64;
const WATERMARK: u64 = 32 << 20;
const BODY_BYTES: usize = 256 << 10;
/// Somewhat more than what is above the watermark, and less than the disk.
const MESSAGES: usize = (40 << 20) / BODY_BYTES;

/// The log between two checkpoints is longer than the disk is large.
#[test]
fn a_disk_alarm_ends_once_its_messages_are_consumed() {
    let _places = Places::take(1);
    let root = tempfile::tempdir().unwrap();
    write_certificates(&root.path().join("tls"));
    let mut settings = Settings::single(root.path());
    std::fs::create_dir(&settings.data).unwrap();
    let Some(disk) = SmallDisk::mount(&settings.data, DISK_MEGABYTES) else { return };
    settings.through = disk.enter();
    settings.extra.push(format!("--disk-free-watermark={WATERMARK}"));
    settings.extra.push(format!("--segment-bytes={SEGMENT_BYTES}"));
    settings.extra.push(format!("--checkpoint-bytes={}", u64::from(DISK_MEGABYTES) << 21));
    let broker = settings.start();
    broker.await_ready();
    let mut publisher = Client::guest(broker.amqp());
    publisher.declare("work").unwrap();
    publisher.select_confirms();
    // The alarm comes when it comes: what is not read by then waits in the sockets, and whoever writes it with it.
    let publisher = std::thread::spawn(move || {
        for _ in 0..MESSAGES {
            publisher.publish("work", vec![7; BODY_BYTES]);
        }
        publisher.await_confirms().unwrap();
        publisher
    });
    broker.await_metric("disk_alarm", 1);
    let mut consumer = Client::guest(broker.amqp());
    consumer.consume("work", 0).unwrap();
    for number in 0..MESSAGES {
        let delivery = consumer.next_delivery(Instant::now() + PATIENCE);
        let delivery = delivery.unwrap_or_else(|| panic!("{number} missing"));
        consumer.ack(delivery.delivery_tag, false);
    }
    let mut publisher = publisher.join().unwrap();
    publisher.await_blocked();
    publisher.await_unblocked();
    assert!(broker.metric("checkpoints_total") > Some(0));
    publisher.publish_confirmed("work", "more").unwrap();
}

/// A few large acknowledgements write next to nothing: what they set free comes back all the same, and soon.
#[test]
fn a_drained_backlog_gives_its_disk_back_without_further_traffic() {
    let _places = Places::take(1);
    let root = tempfile::tempdir().unwrap();
    write_certificates(&root.path().join("tls"));
    let mut settings = Settings::single(root.path());
    settings.extra.push(format!("--segment-bytes={SEGMENT_BYTES}"));
    settings.extra.push(format!("--checkpoint-bytes={}", 4 * SEGMENT_BYTES));
    let data = settings.data.clone();
    let broker = settings.start();
    broker.await_ready();
    let mut client = Client::guest(broker.amqp());
    client.declare("work").unwrap();
    client.select_confirms();
    for _ in 0..MESSAGES {
        client.publish("work", vec![7; BODY_BYTES]);
    }
    client.await_confirms().unwrap();
    let on_disk = || -> u64 {
        let names = std::fs::read_dir(&data).unwrap().flatten();
        names.filter_map(|entry| entry.metadata().ok()).map(|file| file.len()).sum()
    };
    let full = on_disk();
    assert!(full > (MESSAGES * BODY_BYTES) as u64, "{full} bytes");
    client.consume("work", 0).unwrap();
    for number in 0..MESSAGES {
        let delivery = client.next_delivery(Instant::now() + PATIENCE);
        let delivery = delivery.unwrap_or_else(|| panic!("{number} missing"));
        client.ack(delivery.delivery_tag, false);
    }
    await_true("the disk is given back", || on_disk() < full / 4);
}
