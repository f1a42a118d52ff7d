//! K11: a cluster is deleted and another one of its name is there at once, seen by operators that begin in between. Nothing of the
//! new one is deleted with what was the old one's, volumes above all.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, ensure};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Secret, Service};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams};
use serde_json::json;
use understudy_crds::BrokerCluster;
use understudy_e2e::{Cluster, Load, replace_operator, with_temp_ns};

use crate::{PATIENCE, small};

/// Longer than Kubernetes' garbage collector and the operator's own sweep need.
const QUIET: Duration = Duration::from_secs(6);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a cluster: make e2e"]
async fn another_cluster_of_the_name_keeps_what_is_its_own() {
    with_temp_ns("recreated", |space| async move {
        for (retention, claims_stay) in [("Retain", true), ("Delete", false)] {
            let mut spec = small();
            spec["replicas"] = json!(1);
            spec["storage"]["retention"] = json!({ "whenDeleted": retention });
            let old = space.create_cluster(spec.clone()).await?;
            old.ready().await?;
            let before = uids(&old).await?;
            old.api::<BrokerCluster>().delete(&old.name, &DeleteParams::default()).await?;
            let new = space.create_cluster(spec).await?;
            replace_operator(&space.client).await?;
            new.ready().await?;
            let made = uids(&new).await?;
            for (name, uid) in &made {
                let is_claim = name.starts_with(CLAIM);
                let same = before.get(name) == Some(uid);
                ensure!(same == (is_claim && claims_stay), "{retention}: {name} is the old one: {same}");
            }
            replace_operator(&space.client).await?;
            tokio::time::sleep(QUIET).await;
            ensure!(uids(&new).await? == made, "{retention}: {made:?} became {:?}", uids(&new).await?);
            let load = Load::start(&new.target().await?, "work").await?;
            load.confirms(100, PATIENCE).await?;
            load.finish().await?;
            new.api::<BrokerCluster>().delete(&new.name, &DeleteParams::default()).await?;
        }
        Ok(())
    })
    .await;
}

const CLAIM: &str = "PersistentVolumeClaim ";

/// Of what belongs to the cluster of this name, whichever it is.
async fn uids(cluster: &Cluster) -> Result<BTreeMap<String, String>> {
    let mut uids = BTreeMap::new();
    macro_rules! add {
        ($($kind:ty),*) => {$(
            for object in cluster.api::<$kind>().list(&ListParams::default()).await? {
                uids.insert(format!("{} {}", stringify!($kind), object.name_any()), object.uid().unwrap_or_default());
            }
        )*};
    }
    add!(StatefulSet, Service, Secret, PodDisruptionBudget, PersistentVolumeClaim);
    Ok(uids)
}
