//! Catch-ups as people follow them: when one begins and when it is over, and how far each is, for events and metrics. Folds
//! the statuses that are written anyway; drives nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use understudy_crds::{CatchUpProgress, ReplicaStatus};

use crate::metrics::{CATCH_UP_BYTES_REMAINING, CATCH_UP_MESSAGES_REMAINING, CATCH_UP_RATE, CATCH_UPS};

#[derive(Debug)]
pub(super) struct CatchUps {
    namespace: String,
    cluster: String,
    /// Since when.
    under_way: BTreeMap<String, Duration>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum News {
    Started { message: String },
    Done { message: String },
}

impl CatchUps {
    pub(super) fn new(namespace: &str, cluster: &str) -> Self {
        Self { namespace: namespace.into(), cluster: cluster.into(), under_way: BTreeMap::new() }
    }

    pub(super) fn observe(&mut self, now: Duration, replicas: &[ReplicaStatus]) -> Vec<News> {
        let mut news = Vec::new();
        let gone: Vec<String> =
            self.under_way.keys().filter(|name| !replicas.iter().any(|r| r.name == **name)).cloned().collect();
        gone.iter().for_each(|name| self.forget(name));
        for replica in replicas {
            let ReplicaStatus { name, in_sync, catch_up, .. } = replica;
            if let Some(progress) = catch_up {
                self.show(name, progress);
                if !self.under_way.contains_key(name) {
                    self.under_way.insert(name.clone(), now);
                    CATCH_UPS.inc();
                    let CatchUpProgress { queues, messages, bytes, .. } = progress;
                    let message = format!("{name} catches up: {queues} queues, {messages} messages, {bytes} bytes");
                    news.push(News::Started { message });
                }
            } else if *in_sync && let Some(since) = self.under_way.get(name) {
                // Between the last byte and the set it is neither: that is not the end yet.
                let took = now.saturating_sub(*since).as_secs_f64();
                news.push(News::Done { message: format!("{name} has caught up after {took:.1} s, and is in sync") });
                self.forget(name);
            }
        }
        news
    }

    fn show(&self, replica: &str, progress: &CatchUpProgress) {
        let labels = [self.namespace.as_str(), &self.cluster, replica];
        let left = |all: i64, done: i64| all.saturating_sub(done).max(0);
        CATCH_UP_BYTES_REMAINING.with_label_values(&labels).set(left(progress.bytes, progress.bytes_done));
        CATCH_UP_MESSAGES_REMAINING.with_label_values(&labels).set(left(progress.messages, progress.messages_done));
        CATCH_UP_RATE.with_label_values(&labels).set(progress.bytes_per_second);
    }

    fn forget(&mut self, replica: &str) {
        self.under_way.remove(replica);
        let labels = [self.namespace.as_str(), &self.cluster, replica];
        for gauge in [&CATCH_UP_BYTES_REMAINING, &CATCH_UP_MESSAGES_REMAINING, &CATCH_UP_RATE] {
            _ = gauge.remove_label_values(&labels); // it may never have been shown
        }
    }
}

impl Drop for CatchUps {
    fn drop(&mut self) {
        let names: Vec<String> = self.under_way.keys().cloned().collect();
        names.iter().for_each(|name| self.forget(name));
    }
}

#[cfg(test)]
mod tests {
    use understudy_crds::ReplicaRole;

    use super::*;

    fn replica(name: &str, in_sync: bool, bytes_done: Option<i64>) -> ReplicaStatus {
        ReplicaStatus {
            name: name.into(),
            role: ReplicaRole::Backup,
            in_sync,
            position: None,
            lag: None,
            catch_up: bytes_done.map(|bytes_done| CatchUpProgress {
                queues: 4,
                messages: 1_000,
                bytes_done,
                bytes: 100,
                bytes_per_second: 20,
                ..CatchUpProgress::default()
            }),
            message: None,
        }
    }

    #[test]
    fn each_catch_up_begins_once_and_ends_in_the_set() {
        let mut catch_ups = CatchUps::new("shop", "once");
        let labels = ["shop", "once", "once-2"];
        let mut observe = |seconds, in_sync, done| {
            catch_ups.observe(
                Duration::from_secs(seconds),
                &[replica("once-1", true, None), replica("once-2", in_sync, done)],
            )
        };
        assert_eq!(observe(1, false, None), []);
        let message = "once-2 catches up: 4 queues, 1000 messages, 100 bytes".to_owned();
        assert_eq!(observe(2, false, Some(0)), [News::Started { message }]);
        assert_eq!(observe(3, false, Some(60)), []);
        assert_eq!(CATCH_UP_BYTES_REMAINING.with_label_values(&labels).get(), 40);
        assert_eq!(CATCH_UP_RATE.with_label_values(&labels).get(), 20);
        assert_eq!(observe(4, false, None), [], "whole, and not in the set yet");
        let message = "once-2 has caught up after 3.5 s, and is in sync".to_owned();
        let done = catch_ups.observe(Duration::from_millis(5_500), &[replica("once-2", true, None)]);
        assert_eq!(done, [News::Done { message }]);
        assert!(!crate::metrics::render().contains("replica=\"once-2\""), "a gauge of what is over");
    }

    #[test]
    fn a_replica_that_is_removed_is_forgotten() {
        let mut catch_ups = CatchUps::new("shop", "fewer");
        assert_eq!(catch_ups.observe(Duration::ZERO, &[replica("fewer-2", false, Some(1))]).len(), 1);
        assert_eq!(catch_ups.observe(Duration::ZERO, &[]), []);
        assert!(!crate::metrics::render().contains("replica=\"fewer-2\""));
    }
}
