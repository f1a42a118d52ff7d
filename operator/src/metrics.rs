//! The operator's own metrics, in Prometheus' text form. One registry for the process: the default one.

use std::sync::LazyLock;

use prometheus::{Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, Opts, TextEncoder};

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
