//! Numbers for Prometheus. The core thread's come from its status snapshot when they are asked for; nothing is counted on
//! the hot path.

use prometheus::{Encoder, IntCounter, IntGauge, Registry, TextEncoder};

use crate::node::{NodeStatus, RoleStatus};

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
            registry,
        })
    }

    /// The exposition format, of one moment.
    pub(crate) fn render(&self, status: &NodeStatus) -> Result<Vec<u8>, prometheus::Error> {
        let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        self.epoch.set(number(status.epoch.0));
        self.last_index.set(number(status.last.index.0));
        self.durable_index.set(number(status.durable.0));
        self.committed_index.set(number(status.committed.0));
        self.in_sync.set(number(status.in_sync.len() as u64));
        self.journal_stalled_ms.set(number(status.journal_stalled_ms));
        let is_primary = matches!(status.role, RoleStatus::Primary { .. });
        self.primary.set(is_primary.into());
        if let RoleStatus::Primary { held, queues, ready, unacknowledged, .. } = &status.role {
            self.confirms_held.set(held.is_some().into());
            self.queues.set(number(*queues));
            self.messages_ready.set(number(*ready));
            self.messages_unacknowledged.set(number(*unacknowledged));
        } else {
            [&self.confirms_held, &self.queues, &self.messages_ready, &self.messages_unacknowledged]
                .into_iter()
                .for_each(|gauge| gauge.set(0));
        }
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        Ok(text)
    }
}
