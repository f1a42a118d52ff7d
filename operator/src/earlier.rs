//! What an earlier cluster of the same name has left behind, before anything of this one is made: its pods, which end in their own
//! time and write the Lease until then, and that Lease, which would name to this cluster the members of a set that is no more.
//!
//! Looked at only while this cluster has no StatefulSet, and no Lease of its own: then no pod can be its own. Touches no volume.

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::{Api, DeleteParams, ListParams, Preconditions};
use kube::{Client, ResourceExt};
use understudy_crds::ValidatedCluster;

use crate::apply::ApplyError;
use crate::names::{Names, selector_text};

#[derive(Debug, PartialEq, Eq)]
enum Remains {
    Nothing,
    /// They are waited for.
    Pod {
        name: String,
        owner: String,
    },
    /// Everybody who wrote it is gone.
    Lease,
}

/// Removes a Lease that is another cluster's. For a cluster that has no StatefulSet.
///
/// # Errors
/// If pods of an earlier cluster are left, or the API server refuses or does not answer.
pub(crate) async fn leave_behind(client: &Client, cluster: &ValidatedCluster) -> Result<(), ApplyError> {
    let name = Names::of(&cluster.name).lease();
    let failed = |verb, kind: &str, name: &str| {
        let (kind, name) = (kind.to_owned(), name.to_owned());
        move |source| ApplyError::Api { verb, kind, name, source: Box::new(source) }
    };
    let leases: Api<Lease> = Api::namespaced(client.clone(), &cluster.namespace);
    let lease = leases.get_opt(&name).await.map_err(failed("read", "Lease", &name))?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), &cluster.namespace);
    let of_name = ListParams::default().labels(&selector_text(&cluster.name));
    let pods = pods.list(&of_name).await.map_err(failed("list", "Pod", &name))?.items;
    match remains(cluster, lease.as_ref(), &pods) {
        Remains::Nothing => Ok(()),
        Remains::Pod { name, owner } => Err(ApplyError::Taken { kind: "Pod".into(), name, owner }),
        Remains::Lease => {
            tracing::info!(cluster = %cluster.name, namespace = cluster.namespace, "the Lease of an earlier cluster is removed");
            // As it was read: who writes it now is somebody else again.
            let (uid, resource_version) =
                lease.map(|lease| (lease.uid(), lease.resource_version())).unwrap_or_default();
            let params = DeleteParams::default().preconditions(Preconditions { uid, resource_version });
            match leases.delete(&name, &params).await {
                Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
                deleted => deleted.map(drop).map_err(failed("delete", "Lease", &name)),
            }
        }
    }
}

fn remains(cluster: &ValidatedCluster, lease: Option<&Lease>, pods: &[Pod]) -> Remains {
    let is_own = |lease: &Lease| controller(&lease.metadata).is_some_and(|owner| owner.uid == cluster.uid);
    if lease.is_some_and(is_own) {
        return Remains::Nothing;
    }
    // One that nothing controls was orphaned, by a person or by `apply`, and is adopted by the next StatefulSet.
    let controlled = pods.iter().find_map(|pod| Some((pod.name_any(), controller(&pod.metadata)?)));
    match (controlled, lease) {
        (Some((name, owner)), _) => {
            Remains::Pod { name, owner: format!("{} {}, uid {}, which is gone", owner.kind, owner.name, owner.uid) }
        }
        (None, Some(_)) if pods.is_empty() => Remains::Lease,
        (None, _) => Remains::Nothing,
    }
}

fn controller(metadata: &ObjectMeta) -> Option<&OwnerReference> {
    metadata.owner_references.as_ref()?.iter().find(|owner| owner.controller == Some(true))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::validate::{Defaults, validate};

    fn cluster() -> ValidatedCluster {
        let object = json!({
            "apiVersion": "understudy.dev/v1alpha1", "kind": "BrokerCluster",
            "metadata": {"name": "orders", "namespace": "shop", "uid": "u-2"}, "spec": {},
        });
        let object = serde_json::from_value(object).unwrap();
        validate(&object, &Defaults { broker_image: "broker".into(), ..Defaults::default() }).unwrap().cluster
    }

    fn metadata(name: &str, kind: &str, owner: Option<&str>) -> Value {
        let owners: Vec<_> = owner
            .into_iter()
            .map(|uid| json!({"apiVersion": "v1", "kind": kind, "name": "orders", "uid": uid, "controller": true}))
            .collect();
        json!({ "metadata": { "name": name, "ownerReferences": owners } })
    }

    fn lease(owner: Option<&str>) -> Lease {
        serde_json::from_value(metadata("orders", "BrokerCluster", owner)).unwrap()
    }

    fn pod(owner: Option<&str>) -> Pod {
        serde_json::from_value(metadata("orders-0", "StatefulSet", owner)).unwrap()
    }

    #[test]
    fn pods_are_waited_for_and_then_the_lease_goes() {
        let cluster = cluster();
        let look = |lease: Option<Lease>, pods: &[Pod]| remains(&cluster, lease.as_ref(), pods);
        assert_eq!(look(None, &[]), Remains::Nothing);
        for lease_owner in [None, Some("u-1")] {
            let stray = || Some(lease(lease_owner));
            let Remains::Pod { name, .. } = look(stray(), &[pod(Some("s-1"))]) else { panic!("it is not waited for") };
            assert_eq!(name, "orders-0");
            assert_eq!(look(stray(), &[]), Remains::Lease);
            assert_eq!(look(stray(), &[pod(None)]), Remains::Nothing);
        }
        assert!(matches!(look(None, &[pod(Some("s-1"))]), Remains::Pod { .. }));
    }

    /// A StatefulSet that a person has deleted is made again at once.
    #[test]
    fn a_cluster_with_its_own_lease_has_no_earlier_one() {
        let cluster = cluster();
        assert_eq!(remains(&cluster, Some(&lease(Some("u-2"))), &[pod(Some("s-1"))]), Remains::Nothing);
        assert_eq!(remains(&cluster, Some(&lease(Some("u-2"))), &[]), Remains::Nothing);
    }
}
