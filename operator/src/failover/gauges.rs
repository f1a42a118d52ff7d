//! One cluster's state as metrics. Folds the statuses that are written anyway; drives nothing. What is shown of a cluster goes
//! with its task.

use std::collections::{BTreeMap, BTreeSet};

use understudy_crds::{BrokerClusterStatus, ConditionStatus, FailoverRecord};

use crate::metrics::{
    CERTIFICATE_EXPIRY, CLUSTER_CONDITION, CLUSTER_EPOCH, CLUSTER_IN_SYNC, CLUSTER_MIN_IN_SYNC, FAILOVER_SECONDS,
    FAILOVERS, REPLICA_IN_SYNC, REPLICA_LAG, REPLICA_PRIMARY,
};

#[derive(Debug)]
pub(super) struct Gauges {
    namespace: String,
    cluster: String,
    replicas: BTreeSet<String>,
    conditions: BTreeSet<String>,
    certificates: BTreeSet<&'static str>,
    /// The newest change of primary that was counted, and the newest whose parts were; `None`: nothing has been looked at yet,
    /// and what stands there was counted by another operator.
    told: Option<(i64, i64)>,
}

impl Gauges {
    pub(super) fn new(namespace: &str, cluster: &str) -> Self {
        Self {
            namespace: namespace.into(),
            cluster: cluster.into(),
            replicas: BTreeSet::new(),
            conditions: BTreeSet::new(),
            certificates: BTreeSet::new(),
            told: None,
        }
    }

    pub(super) fn observe(
        &mut self,
        status: &BrokerClusterStatus,
        min_in_sync: u8,
        certificates_end: &BTreeMap<&'static str, i64>,
    ) {
        let labels = [self.namespace.as_str(), &self.cluster];
        CLUSTER_EPOCH.with_label_values(&labels).set(status.epoch.unwrap_or(0));
        CLUSTER_IN_SYNC.with_label_values(&labels).set(status.in_sync_replicas.into());
        CLUSTER_MIN_IN_SYNC.with_label_values(&labels).set(min_in_sync.into());
        let now: BTreeSet<String> = status.replica_statuses.iter().map(|replica| replica.name.clone()).collect();
        self.replicas.difference(&now).for_each(|name| self.forget_replica(name));
        self.replicas = now;
        for replica in &status.replica_statuses {
            let labels = [self.namespace.as_str(), &self.cluster, &replica.name];
            REPLICA_IN_SYNC.with_label_values(&labels).set(replica.in_sync.into());
            let is_primary = status.primary.as_ref() == Some(&replica.name);
            REPLICA_PRIMARY.with_label_values(&labels).set(is_primary.into());
            match replica.lag {
                Some(lag) => REPLICA_LAG.with_label_values(&labels).set(lag),
                None => _ = REPLICA_LAG.remove_label_values(&labels),
            }
        }
        let now: BTreeSet<String> = status.conditions.iter().map(|condition| condition.kind.clone()).collect();
        self.conditions.difference(&now).for_each(|kind| self.forget_condition(kind));
        self.conditions = now;
        for condition in &status.conditions {
            let labels = [self.namespace.as_str(), &self.cluster, &condition.kind];
            let holds = condition.status == ConditionStatus::True;
            CLUSTER_CONDITION.with_label_values(&labels).set(holds.into());
        }
        let now: BTreeSet<&'static str> = certificates_end.keys().copied().collect();
        self.certificates.difference(&now).for_each(|which| self.forget_certificate(which));
        self.certificates = now;
        for (which, end) in certificates_end {
            CERTIFICATE_EXPIRY.with_label_values(&[self.namespace.as_str(), &self.cluster, which]).set(*end);
        }
        self.count(&status.failovers);
    }

    /// The newest first.
    fn count(&mut self, failovers: &[FailoverRecord]) {
        let newest = failovers.first().map_or(0, |record| record.epoch);
        let (counted, timed) = *self.told.get_or_insert((newest, newest));
        for record in failovers.iter().filter(|record| record.epoch > counted) {
            FAILOVERS.with_label_values(&[self.namespace.as_str(), &self.cluster, &record.reason]).inc();
        }
        self.told = Some((counted.max(newest), timed));
        let Some(record) = failovers.first().filter(|record| record.epoch > timed) else { return };
        if let (Some(promote), Some(route)) = (record.promote_ms, record.route_ms) {
            let parts = [
                ("detect", record.detect_ms),
                ("elect", record.elect_ms),
                ("promote", Some(promote)),
                ("route", Some(route)),
            ];
            for (part, ms) in parts {
                let Some(ms) = ms.and_then(|ms| u32::try_from(ms).ok()) else { continue };
                let labels = [self.namespace.as_str(), &self.cluster, part];
                FAILOVER_SECONDS.with_label_values(&labels).observe(f64::from(ms) / 1_000.0);
            }
            self.told = Some((counted.max(newest), newest));
        }
    }

    fn forget_replica(&self, name: &str) {
        for gauge in [&REPLICA_IN_SYNC, &REPLICA_LAG, &REPLICA_PRIMARY] {
            _ = gauge.remove_label_values(&[self.namespace.as_str(), &self.cluster, name]); // it may never have been shown
        }
    }

    fn forget_certificate(&self, which: &str) {
        _ = CERTIFICATE_EXPIRY.remove_label_values(&[self.namespace.as_str(), &self.cluster, which]);
    }

    fn forget_condition(&self, kind: &str) {
        _ = CLUSTER_CONDITION.remove_label_values(&[self.namespace.as_str(), &self.cluster, kind]);
    }
}

impl Drop for Gauges {
    fn drop(&mut self) {
        self.replicas.iter().for_each(|name| self.forget_replica(name));
        self.conditions.iter().for_each(|kind| self.forget_condition(kind));
        self.certificates.iter().for_each(|which| self.forget_certificate(which));
        for gauge in [&CLUSTER_EPOCH, &CLUSTER_IN_SYNC, &CLUSTER_MIN_IN_SYNC] {
            _ = gauge.remove_label_values(&[self.namespace.as_str(), &self.cluster]);
        }
    }
}

#[cfg(test)]
mod tests {
    use understudy_crds::{Condition, ReplicaRole, ReplicaStatus, Timestamp};

    use super::*;

    fn record(epoch: i64, route_ms: Option<i64>) -> FailoverRecord {
        FailoverRecord {
            from: Some("orders-0".into()),
            to: "orders-1".into(),
            epoch,
            reason: "PrimaryGone".into(),
            noticed_at: None,
            elected_at: None,
            serving_at: None,
            detect_ms: Some(20),
            elect_ms: None,
            promote_ms: Some(10),
            route_ms,
        }
    }

    fn status(failovers: Vec<FailoverRecord>, available: bool) -> BrokerClusterStatus {
        let replica = |name: &str, in_sync| ReplicaStatus {
            name: name.into(),
            role: ReplicaRole::Backup,
            in_sync,
            position: None,
            lag: Some(7),
            catch_up: None,
            message: None,
        };
        let condition = Condition {
            kind: "Available".into(),
            status: if available { ConditionStatus::True } else { ConditionStatus::Unknown },
            observed_generation: None,
            last_transition_time: Timestamp::from_unix_ms(0),
            reason: "Some".into(),
            message: String::new(),
        };
        BrokerClusterStatus {
            primary: Some("orders-0".into()),
            epoch: Some(3),
            replica_statuses: vec![replica("orders-0", true), replica("orders-1", false)],
            conditions: vec![condition],
            failovers,
            ..BrokerClusterStatus::default()
        }
    }

    fn ends() -> BTreeMap<&'static str, i64> {
        [("tls", 1_700_000_000)].into()
    }

    #[test]
    fn a_cluster_is_shown_until_it_is_gone() {
        let mut gauges = Gauges::new("shop", "shown");
        gauges.observe(&status(Vec::new(), true), 2, &ends());
        let value = |replica: &str| REPLICA_IN_SYNC.with_label_values(&["shop", "shown", replica]).get();
        assert_eq!((value("orders-0"), value("orders-1")), (1, 0));
        assert_eq!(REPLICA_PRIMARY.with_label_values(&["shop", "shown", "orders-0"]).get(), 1);
        let available = || CLUSTER_CONDITION.with_label_values(&["shop", "shown", "Available"]).get();
        assert_eq!(available(), 1);
        gauges.observe(&status(Vec::new(), false), 2, &ends());
        assert_eq!(available(), 0);
        assert_eq!(CERTIFICATE_EXPIRY.with_label_values(&["shop", "shown", "tls"]).get(), 1_700_000_000);
        drop(gauges);
        assert!(!crate::metrics::render().contains("cluster=\"shown\""), "a gauge of what is over");
    }

    #[test]
    fn what_another_operator_saw_is_not_counted_and_each_change_is_once() {
        let mut gauges = Gauges::new("shop", "counted");
        let count = || FAILOVERS.with_label_values(&["shop", "counted", "PrimaryGone"]).get();
        let timed = |part| FAILOVER_SECONDS.with_label_values(&["shop", "counted", part]).get_sample_count();
        gauges.observe(&status(vec![record(3, Some(5))], true), 2, &ends());
        assert_eq!((count(), timed("route")), (0, 0));
        gauges.observe(&status(vec![record(4, None), record(3, Some(5))], true), 2, &ends());
        assert_eq!((count(), timed("route")), (1, 0), "not routed yet");
        for _ in 0..2 {
            gauges.observe(&status(vec![record(4, Some(5)), record(3, Some(5))], true), 2, &ends());
            assert_eq!((count(), timed("route"), timed("detect"), timed("elect")), (1, 1, 1, 0));
        }
    }
}
