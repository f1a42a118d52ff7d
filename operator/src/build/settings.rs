//! What may change without a pod being replaced: a ConfigMap that is mounted into every pod, in the broker's own words.

use k8s_openapi::api::core::v1::ConfigMap;
use understudy_crds::ValidatedCluster;

use crate::failover::settings::wanted;
use crate::names::{Names, metadata};

/// The file in the volume.
pub(super) const KEY: &str = "settings";

pub(super) fn build(cluster: &ValidatedCluster) -> ConfigMap {
    let wanted = wanted(cluster);
    let text = format!(
        "replicas={}\nmin-in-sync={}\nconsumer-timeout-ms={}\n",
        wanted.replicas, wanted.min_in_sync, wanted.consumer_timeout_ms
    );
    ConfigMap {
        metadata: metadata(cluster, Names::of(&cluster.name).settings()),
        data: Some([(KEY.to_owned(), text)].into()),
        ..ConfigMap::default()
    }
}
