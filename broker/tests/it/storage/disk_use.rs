//! What the log takes of the disk follows what lives, however slow one consumer is.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use super::numbered::{body, body_of_size, number_of};
use super::{CHECKPOINT_BYTES, SEGMENT_BYTES, disk_use, files, patient, small};
use crate::harness::{Broker, Cluster, LOOK_AGAIN, PATIENCE, await_true};

const OLD_BYTES: usize = 100_000;
const TRAFFIC_BYTES: u64 = 120 * SEGMENT_BYTES;
const AT_A_TIME: u64 = 64;

/// What a run may take while it lasts: the log grows on while a checkpoint is written, however long a busy disk takes.
const WHILE_RUNNING: u64 = TRAFFIC_BYTES / 4;

/// Looks at directories all the time, and remembers the most that each took.
struct Sampler {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<u64>>,
}

impl Sampler {
    fn start(directories: Vec<PathBuf>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut most = vec![0; directories.len()];
            while !stopped.load(Ordering::Relaxed) {
                most.iter_mut().zip(&directories).for_each(|(most, data)| *most = disk_use(data).max(*most));
                std::thread::sleep(LOOK_AGAIN);
            }
            most
        });
        Self { stop, thread }
    }

    fn stop(self) -> Vec<u64> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("it only looks")
    }
}

#[test]
fn one_old_unacknowledged_message_keeps_no_log_alive_and_survives() {
    let mut cluster = Cluster::start_with(|settings| {
        small(settings);
        patient(settings);
    });
    let mut slow = cluster.client();
    slow.declare("old").unwrap();
    slow.select_confirms();
    slow.publish_confirmed("old", body_of_size(7, OLD_BYTES)).unwrap();
    slow.consume("old", 1).unwrap();
    let delivery = slow.next_delivery(Instant::now() + PATIENCE).expect("the old message");
    assert!(!delivery.redelivered);

    let directories: Vec<_> = cluster.brokers.iter().map(|broker| broker.settings.data.clone()).collect();
    let sampler = Sampler::start(directories.clone());
    let mut quick = cluster.client();
    quick.declare("work").unwrap();
    quick.select_confirms();
    quick.consume("work", 0).unwrap();
    let (mut number, mut bytes) = (0, 0);
    while bytes < TRAFFIC_BYTES {
        for number in number..number + AT_A_TIME {
            let body = body(number);
            bytes += body.len() as u64;
            quick.publish("work", body);
        }
        quick.await_confirms().unwrap();
        for number in number..number + AT_A_TIME {
            let delivery = quick.next_delivery(Instant::now() + PATIENCE).unwrap_or_else(|| panic!("{number} missing"));
            assert_eq!(number_of(&delivery.body), number);
            quick.ack(delivery.delivery_tag, false);
        }
        number += AT_A_TIME;
    }

    // Nothing more comes, and it is so by itself. Live: the message, and as much again for what is around it.
    let retained = SEGMENT_BYTES;
    let bound = 2 * OLD_BYTES as u64 + 4 * SEGMENT_BYTES + retained;
    for data in &directories {
        await_true(&format!("{data:?} is below {bound} bytes: {:?}", files(data, "")), || disk_use(data) < bound);
    }
    let most = sampler.stop();
    assert!(most.iter().all(|most| *most < WHILE_RUNNING), "at most {most:?} bytes, of {bytes} that passed");
    for broker in &cluster.brokers {
        let metric = |name| broker.metric(name).unwrap();
        let (count, bytes, moved) =
            (metric("checkpoints_total"), metric("checkpoint_bytes_total"), metric("moved_bytes_total"));
        assert!((2..=TRAFFIC_BYTES * 2 / CHECKPOINT_BYTES).contains(&count), "{count} checkpoints");
        assert!(bytes > 0 && moved >= OLD_BYTES as u64, "checkpoints of {bytes} bytes, {moved} moved");
        assert!(moved < TRAFFIC_BYTES / 2, "{moved} bytes were moved for one message of {OLD_BYTES}");
        eprintln!("{count} checkpoints of {bytes} bytes together, {moved} bytes moved");
    }
    eprintln!(
        "at most {most:?} bytes on disk, in the end {:?}",
        directories.iter().map(|d| disk_use(d)).collect::<Vec<_>>()
    );

    cluster.brokers.iter_mut().for_each(Broker::kill);
    cluster.brokers.iter_mut().for_each(Broker::restart);
    cluster.await_all_in_sync();
    let mut client = cluster.client();
    let got = client.get("old", true).expect("the old message is there");
    assert!(got.redelivered && got.message_count == 0);
    assert!(got.body.to_contiguous() == body_of_size(7, OLD_BYTES), "{} octets came", got.body.len());
    assert_eq!(client.declare("work").unwrap().message_count, 0);
    assert_eq!(client.declare("old").unwrap().message_count, 0);
}
