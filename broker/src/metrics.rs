//! Numbers for Prometheus. The core thread's come from its status snapshot when they are asked for; nothing is counted on
//! the hot path.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use prometheus::{
    Encoder, Gauge, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, Opts, Registry, TextEncoder,
};
use understudy_record::{Frame, ReplicaName};
use understudy_replication::{CatchUpProgress, PrimaryMessage};

use understudy_node::{CheckpointCounts, NodeStatus, RoleStatus, Usage};

pub(crate) struct Metrics {
    registry: Registry,
    pub(crate) connections: IntGauge,
    pub(crate) relayed_connections: IntCounter,
    pub(crate) refused_logins: IntCounter,
    pub(crate) unread_connections: IntCounter,
    pub(crate) published: IntCounter,
    pub(crate) confirmed: IntCounter,
    pub(crate) delivered: IntCounter,
    pub(crate) confirm_seconds: Histogram,
    primary: IntGauge,
    epoch: IntGauge,
    last_index: IntGauge,
    durable_index: IntGauge,
    committed_index: IntGauge,
    in_sync: IntGauge,
    confirms_held: IntGauge,
    journal_stalled: Gauge,
    messages_ready: IntGauge,
    messages_unacknowledged: IntGauge,
    remembered_keys: IntGauge,
    queues: IntGauge,
    publishers_blocked: IntGauge,
    memory_alarm: IntGauge,
    memory_resident: IntGauge,
    memory_limit: IntGauge,
    memory_budget: IntGauge,
    disk_alarm: IntGauge,
    disk_free: IntGauge,
    disk_free_watermark: IntGauge,
    message_resident: IntGauge,
    cluster_version: IntGauge,
    needs_upgrade: IntGauge,
    checkpoints: IntCounter,
    checkpoint_bytes: IntCounter,
    moved_bytes: IntCounter,
    inconsistencies: IntCounter,
    follower_inconsistencies: IntCounterVec,
    sent_bytes: IntCounterVec,
    received_bytes: IntCounterVec,
    catch_up: CatchUpGauges,
    /// Counters that follow others' counts do so one request at a time.
    following: Mutex<()>,
}

impl Metrics {
    pub(crate) fn new() -> Result<Self, prometheus::Error> {
        let registry = Registry::new_custom(Some("understudy".into()), None)?;
        let gauge = |name: &str, help: &str| -> Result<IntGauge, prometheus::Error> {
            let gauge = IntGauge::new(name, help)?;
            registry.register(Box::new(gauge.clone()))?;
            Ok(gauge)
        };
        let counter = |name: &str, help: &str| -> Result<IntCounter, prometheus::Error> {
            let counter = IntCounter::new(name, help)?;
            registry.register(Box::new(counter.clone()))?;
            Ok(counter)
        };
        let follower_inconsistencies = IntCounterVec::new(
            Opts::new(
                "follower_inconsistencies_total",
                "How often a backup's state differed from this primary's, so that it fetched everything anew",
            ),
            &["follower"],
        )?;
        registry.register(Box::new(follower_inconsistencies.clone()))?;
        let vector = |name: &str, help: &str, labels: &[&str]| -> Result<IntCounterVec, prometheus::Error> {
            let vector = IntCounterVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(vector.clone()))?;
            Ok(vector)
        };
        let journal_stalled =
            Gauge::new("journal_stalled_seconds", "How long the present batch has been on its way to disk")?;
        registry.register(Box::new(journal_stalled.clone()))?;
        // From a quarter of a millisecond to 16 s.
        let confirm_seconds = Histogram::with_opts(
            HistogramOpts::new(
                "confirm_seconds",
                "From a publish to its confirm; of each channel one at a time is timed",
            )
            .buckets(prometheus::exponential_buckets(0.00025, 2.0, 17)?),
        )?;
        registry.register(Box::new(confirm_seconds.clone()))?;
        Ok(Self {
            connections: gauge("connections", "AMQP connections served by this broker")?,
            relayed_connections: counter("relayed_connections_total", "AMQP connections relayed to the primary")?,
            refused_logins: counter("refused_logins_total", "Logins with a wrong user or password")?,
            unread_connections: counter(
                "unread_connections_total",
                "AMQP connections dropped because the client took nothing of what waited for it",
            )?,
            published: counter("messages_published_total", "Messages that clients of this broker have published")?,
            confirmed: counter("messages_confirmed_total", "Messages whose publishers have been sent a confirm")?,
            delivered: counter("messages_delivered_total", "Messages sent to clients, each time counted")?,
            confirm_seconds,
            primary: gauge("primary", "1 if this replica is the primary")?,
            epoch: gauge("epoch", "The highest epoch this replica has made durable")?,
            last_index: gauge("last_index", "Index of the last record in this replica's log")?,
            durable_index: gauge("durable_index", "Index up to which this replica's log is on its disk")?,
            committed_index: gauge("committed_index", "Index up to which this replica knows the log to be committed")?,
            in_sync: gauge("in_sync_replicas", "Members of the in-sync set as this replica knows it")?,
            confirms_held: gauge("confirms_held", "1 if publishers get no confirms; the log and the status say why")?,
            journal_stalled,
            messages_ready: gauge("messages_ready", "Messages ready for delivery")?,
            messages_unacknowledged: gauge("messages_unacknowledged", "Messages delivered and not acknowledged")?,
            queues: gauge("queues", "Queues")?,
            publishers_blocked: gauge("publishers_blocked", "1 if publishers must wait; the status says why")?,
            memory_alarm: gauge("memory_alarm", "1 while this process uses too much of its memory limit")?,
            remembered_keys: gauge("deduplication_keys", "Keys by which queues and exchanges know duplicates")?,
            memory_resident: gauge("memory_resident_bytes", "Memory that this process uses")?,
            memory_limit: gauge("memory_limit_bytes", "Memory that this process may use")?,
            memory_budget: gauge("memory_budget_bytes", "Memory for message bodies; the rest waits on disk")?,
            disk_alarm: gauge("disk_alarm", "1 while too little is free on the data directory's volume")?,
            disk_free: gauge("disk_free_bytes", "Free space on the data directory's volume")?,
            disk_free_watermark: gauge("disk_free_watermark_bytes", "Free space below which publishers must wait")?,
            message_resident: gauge("message_resident_bytes", "Bytes of messages in queues that are in memory")?,
            cluster_version: gauge("cluster_version", "The cluster's version as this replica knows it")?,
            needs_upgrade: gauge("needs_upgrade", "1 while this replica waits for another build; the status says why")?,
            checkpoints: counter("checkpoints_total", "Checkpoints that came into force")?,
            checkpoint_bytes: counter("checkpoint_bytes_total", "Bytes of the checkpoints that came into force")?,
            moved_bytes: counter("moved_bytes_total", "Bytes of messages moved out of mostly dead segments")?,
            inconsistencies: counter(
                "inconsistencies_total",
                "How often this replica's state differed from its primary's, the last one before this start included",
            )?,
            follower_inconsistencies,
            sent_bytes: vector(
                "replication_sent_bytes_total",
                "Bytes of frames sent to followers: of the log, of queues' backlogs, of topologies as of a sync point",
                &["follower", "kind"],
            )?,
            received_bytes: vector("replication_received_bytes_total", "Bytes of frames received", &["kind"])?,
            catch_up: CatchUpGauges {
                queues: gauge("catch_up_queues", "Queues that this replica fetches to catch up; 0 once it has")?,
                queues_done: gauge("catch_up_queues_done", "Those of them that are here")?,
                messages: gauge("catch_up_messages", "Messages in those queues at the sync point")?,
                messages_done: gauge("catch_up_messages_done", "Those of them that are here, or have left meanwhile")?,
                bytes: gauge("catch_up_bytes", "Bytes of those messages")?,
                bytes_done: gauge("catch_up_bytes_done", "Bytes of those that are here, or have left meanwhile")?,
                bytes_per_second: gauge("catch_up_bytes_per_second", "Rate of the last seconds")?,
                place: gauge(
                    "catch_up_place",
                    "Place in the line of replicas that wait to catch up; 0: it does not wait",
                )?,
            },
            following: Mutex::new(()),
            registry,
        })
    }

    /// Only where clients may come over TLS.
    pub(crate) fn amqps(&self) -> Result<AmqpsMetrics, prometheus::Error> {
        let metrics = AmqpsMetrics {
            not_after: IntGauge::new(
                "amqps_certificate_not_after_seconds",
                "When the certificate shown to clients ends, or one of its chain before it, in seconds since 1970",
            )?,
            unusable: IntGauge::new(
                "amqps_certificate_unusable",
                "1 while the certificate's files hold something that cannot be used, and the one before goes on",
            )?,
            failed_handshakes: IntCounter::new(
                "amqps_failed_handshakes_total",
                "Clients' connections that did not become TLS",
            )?,
        };
        self.registry.register(Box::new(metrics.not_after.clone()))?;
        self.registry.register(Box::new(metrics.unusable.clone()))?;
        self.registry.register(Box::new(metrics.failed_handshakes.clone()))?;
        Ok(metrics)
    }

    /// Counters of what this follower is sent.
    pub(crate) fn sent_to(&self, follower: &ReplicaName) -> ReplicationBytes {
        let kind = |kind| self.sent_bytes.with_label_values(&[follower.as_str(), kind]);
        ReplicationBytes { log: kind("log"), backlog: kind("backlog"), base: kind("base") }
    }

    /// Counters of what the primary sends to this replica.
    pub(crate) fn received_bytes(&self) -> ReplicationBytes {
        let kind = |kind| self.received_bytes.with_label_values(&[kind]);
        ReplicationBytes { log: kind("log"), backlog: kind("backlog"), base: kind("base") }
    }

    /// The exposition format, of one moment.
    pub(crate) fn render(
        &self,
        status: &NodeStatus,
        usage: &Usage,
        checkpoints: &CheckpointCounts,
    ) -> Result<Vec<u8>, prometheus::Error> {
        let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        self.epoch.set(number(status.epoch.0));
        self.last_index.set(number(status.last.index.0));
        self.durable_index.set(number(status.durable.index.0));
        self.committed_index.set(number(status.committed.0));
        self.in_sync.set(number(status.in_sync.len() as u64));
        self.journal_stalled.set(Duration::from_millis(status.journal_stalled_ms).as_secs_f64());
        self.cluster_version.set(status.cluster_version.0.into());
        self.needs_upgrade.set(status.needs_upgrade.is_some().into());
        self.memory_alarm.set(usage.alarms.memory.is_some().into());
        self.memory_resident.set(number(usage.resident));
        self.memory_limit.set(number(usage.limit));
        self.memory_budget.set(number(usage.budget));
        self.disk_alarm.set(usage.alarms.disk.is_some().into());
        self.disk_free.set(number(usage.disk_free));
        self.disk_free_watermark.set(number(usage.disk_free_watermark));
        {
            let _alone = self.following.lock().unwrap_or_else(PoisonError::into_inner);
            follow(&self.checkpoints, &checkpoints.count);
            follow(&self.checkpoint_bytes, &checkpoints.bytes);
            follow(&self.moved_bytes, &checkpoints.moved_bytes);
            self.inconsistencies.inc_by(status.inconsistencies.saturating_sub(self.inconsistencies.get()));
            if let RoleStatus::Primary { disagreed, .. } = &status.role {
                for (follower, count) in disagreed {
                    let counter = self.follower_inconsistencies.with_label_values(&[follower.as_str()]);
                    counter.inc_by(count.saturating_sub(counter.get()));
                }
            }
        }
        let is_primary = matches!(status.role, RoleStatus::Primary { .. });
        self.primary.set(is_primary.into());
        if let RoleStatus::Primary {
            held,
            blocked,
            queues,
            ready,
            unacknowledged,
            resident_bytes,
            remembered_keys,
            ..
        } = &status.role
        {
            self.confirms_held.set(held.is_some().into());
            self.publishers_blocked.set(blocked.is_some().into());
            self.queues.set(number(*queues));
            self.messages_ready.set(number(*ready));
            self.messages_unacknowledged.set(number(*unacknowledged));
            self.message_resident.set(number(*resident_bytes));
            self.remembered_keys.set(number(*remembered_keys));
        } else {
            [
                &self.confirms_held,
                &self.publishers_blocked,
                &self.queues,
                &self.messages_ready,
                &self.messages_unacknowledged,
                &self.remembered_keys,
                &self.message_resident,
            ]
            .into_iter()
            .for_each(|gauge| gauge.set(0));
        }
        self.catch_up.set(match &status.role {
            RoleStatus::Backup { catch_up, .. } => catch_up.unwrap_or_default(),
            _ => CatchUpProgress::default(),
        });
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        Ok(text)
    }
}

/// TLS for clients.
#[derive(Clone)]
pub(crate) struct AmqpsMetrics {
    /// In seconds since 1970.
    pub(crate) not_after: IntGauge,
    pub(crate) unusable: IntGauge,
    pub(crate) failed_handshakes: IntCounter,
}

/// Frames on one connection between replicas, in bytes.
#[derive(Clone)]
pub(crate) struct ReplicationBytes {
    pub(crate) log: IntCounter,
    pub(crate) backlog: IntCounter,
    pub(crate) base: IntCounter,
}

impl ReplicationBytes {
    /// Of one message of the stream, which carries no backlog.
    pub(crate) fn count(&self, message: &PrimaryMessage) {
        let bytes = |frames: &[Frame]| frames.iter().map(Frame::len).sum::<usize>() as u64;
        match message {
            PrimaryMessage::Records(records) => self.log.inc_by(bytes(&records.frames)),
            PrimaryMessage::Base(base) => self.base.inc_by(bytes(&base.frames)),
            PrimaryMessage::Welcome(_)
            | PrimaryMessage::Version(_)
            | PrimaryMessage::Refusal(_)
            | PrimaryMessage::Waiting(_) => {}
        }
    }
}

struct CatchUpGauges {
    queues: IntGauge,
    queues_done: IntGauge,
    messages: IntGauge,
    messages_done: IntGauge,
    bytes: IntGauge,
    bytes_done: IntGauge,
    bytes_per_second: IntGauge,
    place: IntGauge,
}

impl CatchUpGauges {
    fn set(&self, progress: CatchUpProgress) {
        let pairs = [
            (&self.queues, progress.queues),
            (&self.queues_done, progress.queues_done),
            (&self.messages, progress.messages),
            (&self.messages_done, progress.messages_done),
            (&self.bytes, progress.bytes),
            (&self.bytes_done, progress.bytes_done),
            (&self.bytes_per_second, progress.bytes_per_second),
            (&self.place, progress.place),
        ];
        pairs.into_iter().for_each(|(gauge, value)| gauge.set(i64::try_from(value).unwrap_or(i64::MAX)));
    }
}

fn follow(counter: &IntCounter, count: &AtomicU64) {
    counter.inc_by(count.load(Ordering::Relaxed).saturating_sub(counter.get()));
}
