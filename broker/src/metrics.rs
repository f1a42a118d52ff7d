//! Numbers for Prometheus. The core thread's come from its status snapshot when they are asked for; nothing is counted on
//! the hot path.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use prometheus::{Encoder, IntCounter, IntCounterVec, IntGauge, Opts, Registry, TextEncoder};

use understudy_node::{CheckpointCounts, NodeStatus, RoleStatus, Usage};

pub(crate) struct Metrics {
    registry: Registry,
    pub(crate) connections: IntGauge,
    pub(crate) relayed_connections: IntCounter,
    pub(crate) refused_logins: IntCounter,
    primary: IntGauge,
    epoch: IntGauge,
    last_index: IntGauge,
    durable_index: IntGauge,
    committed_index: IntGauge,
    in_sync: IntGauge,
    confirms_held: IntGauge,
    journal_stalled_ms: IntGauge,
    messages_ready: IntGauge,
    messages_unacknowledged: IntGauge,
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
        Ok(Self {
            connections: gauge("connections", "AMQP connections served by this broker")?,
            relayed_connections: counter("relayed_connections_total", "AMQP connections relayed to the primary")?,
            refused_logins: counter("refused_logins_total", "Logins with a wrong user or password")?,
            primary: gauge("primary", "1 if this replica is the primary")?,
            epoch: gauge("epoch", "The highest epoch this replica has made durable")?,
            last_index: gauge("last_index", "Index of the last record in this replica's log")?,
            durable_index: gauge("durable_index", "Index up to which this replica's log is on its disk")?,
            committed_index: gauge("committed_index", "Index up to which this replica knows the log to be committed")?,
            in_sync: gauge("in_sync_replicas", "Members of the in-sync set as this replica knows it")?,
            confirms_held: gauge("confirms_held", "1 if publishers get no confirms; the log and the status say why")?,
            journal_stalled_ms: gauge(
                "journal_stalled_milliseconds",
                "How long the present batch has been on its way to disk",
            )?,
            messages_ready: gauge("messages_ready", "Messages ready for delivery")?,
            messages_unacknowledged: gauge("messages_unacknowledged", "Messages delivered and not acknowledged")?,
            queues: gauge("queues", "Queues")?,
            publishers_blocked: gauge("publishers_blocked", "1 if publishers must wait; the status says why")?,
            memory_alarm: gauge("memory_alarm", "1 while this process uses too much of its memory limit")?,
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
            following: Mutex::new(()),
            registry,
        })
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
        self.durable_index.set(number(status.durable.0));
        self.committed_index.set(number(status.committed.0));
        self.in_sync.set(number(status.in_sync.len() as u64));
        self.journal_stalled_ms.set(number(status.journal_stalled_ms));
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
        if let RoleStatus::Primary { held, blocked, queues, ready, unacknowledged, resident_bytes, .. } = &status.role {
            self.confirms_held.set(held.is_some().into());
            self.publishers_blocked.set(blocked.is_some().into());
            self.queues.set(number(*queues));
            self.messages_ready.set(number(*ready));
            self.messages_unacknowledged.set(number(*unacknowledged));
            self.message_resident.set(number(*resident_bytes));
        } else {
            [
                &self.confirms_held,
                &self.publishers_blocked,
                &self.queues,
                &self.messages_ready,
                &self.messages_unacknowledged,
                &self.message_resident,
            ]
            .into_iter()
            .for_each(|gauge| gauge.set(0));
        }
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        Ok(text)
    }
}

fn follow(counter: &IntCounter, count: &AtomicU64) {
    counter.inc_by(count.load(Ordering::Relaxed).saturating_sub(counter.get()));
}
