//! Low on memory or disk: publishers wait and are told why, whichever in-sync replica it is; consumers and acknowledgements
//! do not; and it ends by itself, with nothing lost.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use understudy_protocol::ClientConfig;

use crate::harness::{Client, Cluster, PATIENCE, Single, SmallDisk, drain_numbers};

/// How long something that must not happen is given to happen. Above the broker's own rhythms: it looks at its resources
/// twice a second.
const A_WHILE: Duration = Duration::from_millis(1500);

const DISK_MEGABYTES: u32 = 64;
const WATERMARK: u64 = 32 << 20;
/// What of the disk is left beside it is well below the watermark.
const OTHERS_MEGABYTES: u32 = 48;

/// A cluster of which one backup lives on a disk that others can fill.
struct Crowded {
    cluster: Cluster,
    backup: usize,
    disk: SmallDisk,
    file: PathBuf,
}

impl Crowded {
    /// `None` where there can be no such disk.
    fn start() -> Option<Self> {
        // A busy machine's pauses are not to look like silence: each would be a block of its own, below minInSync.
        let mut cluster = Cluster::start_with(|settings| {
            (settings.backup_timeout_ms, settings.lease_duration_ms) = (5_000, 5_000);
        });
        let backup = cluster.backups()[0];
        let broker = &mut cluster.brokers[backup];
        broker.kill();
        let mount = cluster.root.path().join("small");
        std::fs::create_dir(&mount).unwrap();
        let disk = SmallDisk::mount(&mount, DISK_MEGABYTES)?;
        broker.settings.data = mount.join("data");
        broker.settings.through = disk.enter();
        broker.settings.extra.push(format!("--disk-free-watermark={WATERMARK}"));
        broker.restart();
        cluster.await_all_in_sync();
        Some(Self { cluster, backup, disk, file: mount.join("others") })
    }

    fn crowd(&self) {
        self.disk.put_file(&self.file, OTHERS_MEGABYTES);
    }

    fn make_room(&self) {
        self.disk.put_file(&self.file, 0);
    }
}

#[track_caller]
fn expect_deliveries(consumer: &mut Client, numbers: impl IntoIterator<Item = u32>) {
    for number in numbers {
        let delivery = consumer.next_delivery(Instant::now() + PATIENCE).unwrap_or_else(|| panic!("{number} missing"));
        assert_eq!(delivery.body.to_contiguous(), number.to_string());
        consumer.ack(delivery.delivery_tag, false);
    }
}

#[test]
fn a_backup_low_on_disk_stops_publishers_until_there_is_room_and_nobody_else() {
    let Some(crowded) = Crowded::start() else { return };
    let cluster = &crowded.cluster;
    let (primary, backup) = (&cluster.brokers[cluster.primary()], &cluster.brokers[crowded.backup]);
    let mut publisher = cluster.client();
    publisher.declare("work").unwrap();
    publisher.select_confirms();
    (0..10_u32).for_each(|number| publisher.publish_confirmed("work", number.to_string()).unwrap());
    let mut consumer = cluster.client();
    consumer.consume("work", 1).unwrap();
    expect_deliveries(&mut consumer, 0..2);
    assert_eq!(backup.metric("disk_free_watermark_bytes"), Some(WATERMARK));

    crowded.crowd();
    // Who has published is told without publishing again.
    let reason = publisher.await_blocked();
    let begins = format!("{} is low on disk: ", backup.settings.name);
    assert!(reason.starts_with(&begins) && reason.ends_with(" MB free, watermark 34 MB"), "{reason}");
    primary.await_metric("publishers_blocked", 1);
    assert_eq!((backup.metric("disk_alarm"), primary.metric("disk_alarm")), (Some(1), Some(0)));
    primary.await_metric("confirms_held", 0); // but for a moment, whenever something is written
    backup.await_log(&format!("alarm: {begins}"));
    publisher.publish("work", "10");
    // Publishing and going away at once does not get around it.
    let mut hasty = cluster.client();
    hasty.publish_and_close("work", "11");

    // A consumer is served and acknowledges, and hears nothing of it.
    expect_deliveries(&mut consumer, 2..6);
    // One that publishes too gets its deliveries all the same; its acknowledgements stand behind its publish.
    let mut other = cluster.client();
    other.consume("work", 3).unwrap();
    (7..10).for_each(|_| _ = other.next_delivery(Instant::now() + PATIENCE).expect("three more"));
    let mut worker = cluster.client();
    worker.select_confirms();
    worker.consume("work", 0).unwrap();
    worker.publish("work", "12");
    assert!(worker.await_blocked().starts_with(&begins));
    drop(other);
    expect_deliveries(&mut worker, 7..10);
    expect_deliveries(&mut consumer, 6..7);
    primary.await_metric("messages_unacknowledged", 3);
    assert!(!publisher.await_confirm(Instant::now() + A_WHILE), "confirmed in spite of the alarm");
    assert_eq!(primary.metric("messages_ready"), Some(0));
    assert!(!consumer.has_been_blocked());
    assert!(hasty.ended().is_none());

    crowded.make_room();
    publisher.await_unblocked();
    publisher.await_confirms().unwrap();
    hasty.await_ended();
    worker.await_unblocked();
    worker.await_confirms().unwrap();
    worker.close();
    consumer.close();
    assert_eq!(drain_numbers(&mut cluster.client(), "work"), [10, 11, 12].into());
    primary.await_metric("publishers_blocked", 0);
    backup.await_metric("disk_alarm", 0);
    publisher.publish_confirmed("work", "13").unwrap();
}

#[test]
fn an_alarm_leaves_with_its_backup_and_stays_out_until_it_is_in_sync_again() {
    let Some(mut crowded) = Crowded::start() else { return };
    let mut publisher = crowded.cluster.client();
    publisher.declare("work").unwrap();
    publisher.select_confirms();
    publisher.publish_confirmed("work", "0").unwrap();
    crowded.crowd();
    publisher.await_blocked();
    publisher.publish("work", "1");
    crowded.cluster.brokers[crowded.backup].kill();
    publisher.await_unblocked();
    publisher.await_confirms().unwrap();
    crowded.cluster.brokers[crowded.backup].restart();
    let reason = publisher.await_blocked();
    assert!(reason.starts_with(&format!("{} is low on disk", crowded.cluster.name(crowded.backup))), "{reason}");
    crowded.make_room();
    publisher.await_unblocked();
    publisher.publish_confirmed("work", "2").unwrap();
}

/// A new primary knows what its predecessor knew: the backups tell it.
#[test]
fn a_new_primary_hears_of_an_alarm_too() {
    let Some(mut crowded) = Crowded::start() else { return };
    let old = crowded.cluster.primary();
    let mut publisher = crowded.cluster.client();
    publisher.declare("work").unwrap();
    crowded.crowd();
    crowded.cluster.brokers[crowded.backup].await_metric("disk_alarm", 1);
    crowded.cluster.brokers[old].kill();
    let new = crowded.cluster.await_other_primary(old);
    crowded.cluster.brokers[new].await_metric("publishers_blocked", 1);
    let mut publisher = crowded.cluster.client();
    publisher.select_confirms();
    publisher.publish("work", "0");
    let reason = publisher.await_blocked();
    assert!(reason.starts_with(&format!("{} is low on disk", crowded.cluster.name(crowded.backup))), "{reason}");
    crowded.make_room();
    publisher.await_unblocked();
    publisher.await_confirms().unwrap();
}

/// The reason that a publisher of this broker is given; nothing it publishes is confirmed, and consumers are served.
fn expect_alarm(broker: &Single) -> String {
    broker.await_metric("publishers_blocked", 1);
    let mut publisher = Client::guest(broker.amqp());
    publisher.declare("work").unwrap();
    publisher.select_confirms();
    assert!(!publisher.has_been_blocked(), "who has not published need not know");
    let mut consumer = Client::guest(broker.amqp());
    consumer.consume("work", 0).unwrap();
    publisher.publish("work", "0");
    let reason = publisher.await_blocked();
    assert!(!publisher.await_confirm(Instant::now() + A_WHILE), "confirmed in spite of the alarm");
    assert!(consumer.get("work", true).is_none());
    reason
}

#[test]
fn a_process_above_its_memory_watermark_takes_no_publishes() {
    // No broker fits into a mebibyte.
    let broker = Single::start_with(|settings| settings.extra.push("--memory-limit=1048576".into()));
    let reason = expect_alarm(&broker);
    assert!(
        reason.starts_with("solo-0 is low on memory: ") && reason.ends_with(" in use, watermark 0.8 MB"),
        "{reason}"
    );
    let metric = |name| broker.metric(name).unwrap();
    assert_eq!((metric("memory_alarm"), metric("disk_alarm")), (1, 0));
    assert_eq!((metric("memory_limit_bytes"), metric("memory_budget_bytes")), (1 << 20, (1 << 20) * 2 / 5));
    assert!(metric("memory_resident_bytes") > 1 << 20);
}

/// More than is left of it in memory: a backlog that nobody reads fills the process up to its watermark, and once it is read
/// publishers go on.
#[test]
fn a_memory_alarm_is_over_once_the_backlog_is_read() {
    const BODY: usize = 16 << 10;
    let limit = 256_u64 << 20;
    let broker = Single::start_with(|settings| {
        settings.extra.push(format!("--memory-limit={limit}"));
        settings.extra.push("--memory-watermark=50".into());
        // All that the watermark allows, so that it is met before bodies leave memory.
        settings.extra.push(format!("--memory-budget={}", limit / 2 - 1));
    });
    let mut publisher = Client::guest(broker.amqp());
    publisher.declare("work").unwrap();
    publisher.select_confirms();
    let mut published = 0;
    while !publisher.has_been_blocked() {
        assert!(published * BODY < 1 << 30, "no alarm after a gibibyte");
        (0..64).for_each(|_| publisher.publish("work", vec![b'x'; BODY]));
        published += 64;
        while publisher.unconfirmed().len() > 256 && !publisher.has_been_blocked() {
            publisher.await_confirm(Instant::now() + Duration::from_millis(100));
        }
    }
    let reason = publisher.await_blocked();
    assert!(
        reason.starts_with("solo-0 is low on memory: ") && reason.ends_with(" in use, watermark 134 MB"),
        "{reason}"
    );
    let mut consumer = Client::guest(broker.amqp());
    consumer.consume("work", 0).unwrap();
    let mut taken = 0;
    while taken < published {
        let delivery = consumer.next_delivery(Instant::now() + PATIENCE).unwrap_or_else(|| panic!("{taken} came"));
        consumer.ack(delivery.delivery_tag, false);
        taken += 1;
    }
    publisher.await_unblocked();
    publisher.await_confirms().unwrap();
}

#[test]
fn the_only_replica_low_on_disk_takes_no_publishes_and_takes_them_with_another_watermark() {
    let mut broker =
        Single::start_with(|settings| settings.extra.push(format!("--disk-free-watermark={}", 1_u64 << 60)));
    let reason = expect_alarm(&broker);
    assert!(reason.starts_with("solo-0 is low on disk: "), "{reason}");
    let metric = |name| broker.metric(name).unwrap();
    assert_eq!((metric("memory_alarm"), metric("disk_alarm")), (0, 1));
    assert!((1..1 << 60).contains(&metric("disk_free_bytes")));
    broker.settings.extra.clear();
    broker.restart();
    broker.await_ready();
    let mut publisher = Client::guest(broker.amqp());
    publisher.select_confirms();
    publisher.publish_confirmed("work", "1").unwrap();
}

/// It is the broker that does not read: a publisher that waits is not taken for dead.
#[test]
fn a_blocked_publisher_outlives_its_heartbeats() {
    const HEARTBEAT_SECONDS: u16 = 1;
    let broker = Single::start_with(|settings| settings.extra.push("--memory-limit=1048576".into()));
    let config = ClientConfig { heartbeat_seconds: HEARTBEAT_SECONDS, ..ClientConfig::default() };
    let mut publisher = Client::connect(broker.amqp(), config).unwrap();
    publisher.publish("work", "0");
    publisher.await_blocked();
    // Two would be the end of a client that is silent.
    let beats = Duration::from_secs(HEARTBEAT_SECONDS.into()) * 4;
    assert!(!publisher.await_confirm(Instant::now() + beats));
    assert_eq!(publisher.ended(), None);
}
