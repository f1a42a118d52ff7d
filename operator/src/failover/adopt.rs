//! Makes the BrokerCluster the owner of a Lease that brokers have created themselves, so that it goes with the cluster: a
//! Lease that outlives it would name the members of a set that no longer exists to the next cluster of that name.
//!
//! Changes nothing but the owner, and only at the version that was read; to the primary it is one more conflict to read
//! again after (rule 5).

use k8s_openapi::api::coordination::v1::Lease;
use kube::Client;
use kube::api::{Api, PostParams};
use understudy_crds::ValidatedCluster;

use crate::names::{Names, labels, owner};

/// # Errors
/// If the API server refuses or does not answer, or somebody else wrote the Lease meanwhile.
pub(super) async fn adopt(client: &Client, cluster: &ValidatedCluster) -> Result<(), kube::Error> {
    let api: Api<Lease> = Api::namespaced(client.clone(), &cluster.namespace);
    let name = Names::of(&cluster.name).lease();
    let Some(lease) = api.get_opt(&name).await? else { return Ok(()) };
    let Some(owned) = owned(lease, cluster) else { return Ok(()) };
    api.replace(&name, &PostParams::default(), &owned).await.map(drop)
}

/// `None`: it has an owner, this cluster or an earlier one that takes it along.
fn owned(mut lease: Lease, cluster: &ValidatedCluster) -> Option<Lease> {
    let owners = lease.metadata.owner_references.get_or_insert_default();
    if owners.iter().any(|owner| owner.controller == Some(true)) {
        return None;
    }
    owners.push(owner(cluster));
    lease.metadata.labels.get_or_insert_default().extend(labels(&cluster.name));
    Some(lease)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::validate::{Defaults, validate};

    #[test]
    fn an_orphan_gets_an_owner_and_keeps_everything_else() {
        let json = serde_json::json!({
            "apiVersion": "understudy.dev/v1alpha1", "kind": "BrokerCluster",
            "metadata": {"name": "orders", "namespace": "shop", "uid": "u-1"}, "spec": {},
        });
        let object = serde_json::from_value(json).unwrap();
        let cluster =
            validate(&object, &Defaults { broker_image: "broker".into(), ..Defaults::default() }).unwrap().cluster;
        let lease: Lease = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "orders", "resourceVersion": "7", "annotations": {"understudy.dev/in-sync": "a/b"}},
            "spec": {"leaseTransitions": 3, "holderIdentity": "orders-0/a/b"},
        }))
        .unwrap();
        let adopted = owned(lease.clone(), &cluster).unwrap();
        assert_eq!(adopted.spec, lease.spec);
        assert_eq!(adopted.metadata.annotations, lease.metadata.annotations);
        assert_eq!(adopted.metadata.resource_version.as_deref(), Some("7"));
        assert_eq!(adopted.metadata.owner_references.as_deref(), Some(&[owner(&cluster)][..]));
        assert_eq!(owned(adopted, &cluster), None);
    }
}
