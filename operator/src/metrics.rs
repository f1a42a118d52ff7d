//! The operator's own metrics, in Prometheus' text form. One registry for the process: the default one.

use std::sync::LazyLock;

use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, TextEncoder,
};

pub(crate) static RECONCILES: LazyLock<IntCounterVec> = LazyLock::new(|| {
    counters("understudy_operator_reconciles_total", "Reconciliations, by outcome (ok, invalid, failed).", "outcome")
});

/// From 1 ms to 32 s.
pub(crate) static RECONCILE_SECONDS: LazyLock<Histogram> = LazyLock::new(|| {
    let options = HistogramOpts::new("understudy_operator_reconcile_seconds", "What a reconciliation took.");
    let buckets = prometheus::exponential_buckets(0.001, 2.0, 16).expect("constant buckets are valid");
    registered(Histogram::with_opts(options.buckets(buckets)).expect("a constant name is valid"))
});

pub(crate) static OBJECTS_WRITTEN: LazyLock<IntCounter> =
    LazyLock::new(|| counter("understudy_operator_objects_written_total", "Writes to objects of clusters."));

pub(crate) static STATUS_WRITTEN: LazyLock<IntCounter> =
    LazyLock::new(|| counter("understudy_operator_status_written_total", "Writes of a BrokerCluster's status."));

pub(crate) static CLUSTERS: LazyLock<IntGauge> = LazyLock::new(|| {
    let gauge = IntGauge::new("understudy_operator_clusters", "Clusters whose brokers are watched.");
    registered(gauge.expect("a constant name is valid"))
});

pub(crate) static ELECTIONS: LazyLock<IntCounterVec> = LazyLock::new(|| {
    counters(
        "understudy_operator_elections_total",
        "Elections that this operator has tried, by outcome of the swap.",
        "outcome",
    )
});

/// From 1 ms to 16 s.
pub(crate) static ELECTION_SECONDS: LazyLock<Histogram> = LazyLock::new(|| {
    let options = HistogramOpts::new("understudy_operator_election_seconds", "From the decision to the Lease written.");
    let buckets = prometheus::exponential_buckets(0.001, 2.0, 15).expect("constant buckets are valid");
    registered(Histogram::with_opts(options.buckets(buckets)).expect("a constant name is valid"))
});

pub(crate) static LEADS: LazyLock<IntGauge> = LazyLock::new(|| {
    let help = "1 if this operator works, 0 if it stands by.";
    registered(IntGauge::new("understudy_operator_leader", help).expect("a constant name is valid"))
});

pub(crate) static SWITCHOVERS: LazyLock<IntCounterVec> = LazyLock::new(|| {
    let help = "Hand-overs that this operator has asked for, by reason (requested, preferred, cordoned, fenced, scaled-down) and outcome (done, failed).";
    let counters = IntCounterVec::new(Opts::new("understudy_operator_switchovers_total", help), &["reason", "outcome"]);
    registered(counters.expect("a constant name is valid"))
});

pub(crate) static CATCH_UPS: LazyLock<IntCounter> =
    LazyLock::new(|| counter("understudy_operator_catch_ups_total", "Catch-ups that this operator has seen begin."));

pub(crate) static CATCH_UP_BYTES_REMAINING: LazyLock<IntGaugeVec> = LazyLock::new(|| {
    replica_gauges("understudy_operator_catch_up_bytes_remaining", "Bytes that a replica has yet to fetch.")
});

pub(crate) static CATCH_UP_MESSAGES_REMAINING: LazyLock<IntGaugeVec> = LazyLock::new(|| {
    replica_gauges("understudy_operator_catch_up_messages_remaining", "Messages that a replica has yet to fetch.")
});

pub(crate) static CATCH_UP_RATE: LazyLock<IntGaugeVec> = LazyLock::new(|| {
    replica_gauges("understudy_operator_catch_up_bytes_per_second", "How fast a replica fetches what it lacks.")
});

pub(crate) static CLUSTER_CONDITION: LazyLock<IntGaugeVec> = LazyLock::new(|| {
    let help = "1 while a cluster's condition is True, 0 while it is False or Unknown.";
    gauges("understudy_operator_cluster_condition", help, &["namespace", "cluster", "condition"])
});

pub(crate) static CLUSTER_EPOCH: LazyLock<IntGaugeVec> =
    LazyLock::new(|| cluster_gauges("understudy_operator_cluster_epoch", "The cluster's epoch, as its Lease has it."));

pub(crate) static CLUSTER_IN_SYNC: LazyLock<IntGaugeVec> =
    LazyLock::new(|| cluster_gauges("understudy_operator_cluster_in_sync_replicas", "Members of the in-sync set."));

pub(crate) static CLUSTER_MIN_IN_SYNC: LazyLock<IntGaugeVec> =
    LazyLock::new(|| cluster_gauges("understudy_operator_cluster_min_in_sync_replicas", "The cluster's minInSync."));

pub(crate) static REPLICA_IN_SYNC: LazyLock<IntGaugeVec> =
    LazyLock::new(|| replica_gauges("understudy_operator_replica_in_sync", "1 if a replica is in the in-sync set."));

pub(crate) static REPLICA_PRIMARY: LazyLock<IntGaugeVec> =
    LazyLock::new(|| replica_gauges("understudy_operator_replica_primary", "1 if the Lease names this replica."));

pub(crate) static REPLICA_LAG: LazyLock<IntGaugeVec> = LazyLock::new(|| {
    replica_gauges("understudy_operator_replica_lag_records", "Records of the primary's log that a replica lacks.")
});

pub(crate) static FAILOVERS: LazyLock<IntCounterVec> = LazyLock::new(|| {
    let help = "Changes of primary that this operator has seen, hand-overs included, by reason.";
    let labels = ["namespace", "cluster", "reason"];
    let counters = IntCounterVec::new(Opts::new("understudy_operator_failovers_total", help), &labels);
    registered(counters.expect("a constant name is valid"))
});

/// From 1 ms to 16 s.
pub(crate) static FAILOVER_SECONDS: LazyLock<HistogramVec> = LazyLock::new(|| {
    let help =
        "What a change of primary took, by part: detect, elect, promote, and route, which goes on beside promote.";
    let options = HistogramOpts::new("understudy_operator_failover_seconds", help);
    let buckets = prometheus::exponential_buckets(0.001, 2.0, 15).expect("constant buckets are valid");
    let histograms = HistogramVec::new(options.buckets(buckets), &["namespace", "cluster", "part"]);
    registered(histograms.expect("a constant name is valid"))
});

pub(crate) static CERTIFICATE_EXPIRY: LazyLock<IntGaugeVec> = LazyLock::new(|| {
    let help = "When a certificate of the operator's making ends, in seconds since 1970, by its Secret.";
    gauges("understudy_operator_certificate_expiry_seconds", help, &["namespace", "cluster", "which"])
});

fn cluster_gauges(name: &str, help: &str) -> IntGaugeVec {
    gauges(name, help, &["namespace", "cluster"])
}

fn gauges(name: &str, help: &str, labels: &[&str]) -> IntGaugeVec {
    registered(IntGaugeVec::new(Opts::new(name, help), labels).expect("a constant name is valid"))
}

/// Some are there only while a replica catches up.
fn replica_gauges(name: &str, help: &str) -> IntGaugeVec {
    gauges(name, help, &["namespace", "cluster", "replica"])
}

fn counter(name: &str, help: &str) -> IntCounter {
    registered(IntCounter::new(name, help).expect("a constant name is valid"))
}

fn counters(name: &str, help: &str, label: &str) -> IntCounterVec {
    registered(IntCounterVec::new(Opts::new(name, help), &[label]).expect("a constant name is valid"))
}

fn registered<C: prometheus::core::Collector + Clone + 'static>(collector: C) -> C {
    prometheus::default_registry().register(Box::new(collector.clone())).expect("each metric is registered once");
    collector
}

/// Everything, as text.
pub(crate) fn render() -> String {
    TextEncoder::new().encode_to_string(&prometheus::gather()).unwrap_or_else(|error| format!("# {error}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// For `make monitoring-check`, which names a file in `UNDERSTUDY_OPERATOR_METRICS`: a scrape on which everything has happened.
    #[test]
    fn each_metric_has_a_help_text_and_is_the_operators() {
        for counters in [&RECONCILES, &ELECTIONS] {
            counters.with_label_values(&["ok"]).inc_by(0);
        }
        for counter in [&OBJECTS_WRITTEN, &STATUS_WRITTEN, &CATCH_UPS] {
            counter.inc_by(0);
        }
        LazyLock::force(&CLUSTERS);
        LazyLock::force(&ELECTION_SECONDS);
        LazyLock::force(&RECONCILE_SECONDS);
        LazyLock::force(&LEADS);
        SWITCHOVERS.with_label_values(&["requested", "done"]).inc_by(0);
        FAILOVERS.with_label_values(&["shop", "scraped", "PrimaryGone"]).inc_by(0);
        FAILOVER_SECONDS.with_label_values(&["shop", "scraped", "detect"]).observe(0.02);
        for gauges in [&CATCH_UP_BYTES_REMAINING, &CATCH_UP_MESSAGES_REMAINING, &CATCH_UP_RATE] {
            gauges.with_label_values(&["shop", "scraped", "scraped-0"]).set(0);
        }
        for gauges in [&REPLICA_IN_SYNC, &REPLICA_LAG, &REPLICA_PRIMARY, &CLUSTER_CONDITION, &CERTIFICATE_EXPIRY] {
            gauges.with_label_values(&["shop", "scraped", "any"]).set(0);
        }
        for gauges in [&CLUSTER_EPOCH, &CLUSTER_IN_SYNC, &CLUSTER_MIN_IN_SYNC] {
            gauges.with_label_values(&["shop", "scraped"]).set(0);
        }
        let text = render();
        let metrics: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
        assert_eq!(metrics.len(), 23, "{metrics:#?}");
        for metric in metrics {
            let name = metric.split(' ').next().unwrap_or_default();
            assert!(name.starts_with("understudy_operator_"), "{name}");
            assert!(text.contains(&format!("# HELP {name} ")), "{name}");
        }
        if let Ok(file) = std::env::var("UNDERSTUDY_OPERATOR_METRICS") {
            std::fs::write(&file, text).unwrap();
        }
    }
}
