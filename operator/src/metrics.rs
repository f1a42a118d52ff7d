//! The operator's own metrics, in Prometheus' text form. One registry for the process: the default one.

use std::sync::LazyLock;

use prometheus::{Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, TextEncoder};

pub(crate) static RECONCILES: LazyLock<IntCounterVec> = LazyLock::new(|| {
    counters("understudy_operator_reconciles_total", "Reconciliations, by outcome (ok, invalid, failed).", "outcome")
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

/// Present while a replica catches up.
fn replica_gauges(name: &str, help: &str) -> IntGaugeVec {
    let gauges = IntGaugeVec::new(Opts::new(name, help), &["namespace", "cluster", "replica"]);
    registered(gauges.expect("a constant name is valid"))
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
