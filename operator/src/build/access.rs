//! ServiceAccount, Role and RoleBinding of the brokers: the Lease and the EndpointSlice of their own cluster, their own
//! pods' labels, nothing else. RBAC cannot limit `create` to a name: none is in the request's path.

use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::rbac::v1::{PolicyRule, Role, RoleBinding, RoleRef, Subject};
use understudy_crds::ValidatedCluster;

use crate::names::{Names, metadata};

pub(super) fn service_account(cluster: &ValidatedCluster) -> ServiceAccount {
    ServiceAccount {
        metadata: metadata(cluster, Names::of(&cluster.name).broker_account()),
        automount_service_account_token: Some(false), // the pods ask for it themselves
        ..ServiceAccount::default()
    }
}

pub(super) fn role(cluster: &ValidatedCluster) -> Role {
    let names = Names::of(&cluster.name);
    let rule = |group: &str, resource: &str, verbs: &[&str], resource_names: Option<Vec<String>>| PolicyRule {
        api_groups: Some(vec![group.to_owned()]),
        resources: Some(vec![resource.to_owned()]),
        verbs: verbs.iter().map(|verb| (*verb).to_owned()).collect(),
        resource_names,
        non_resource_urls: None,
    };
    let (lease, slice) = (vec![names.lease()], vec![names.primary_slice()]);
    Role {
        metadata: metadata(cluster, names.broker_account()),
        rules: Some(vec![
            rule("coordination.k8s.io", "leases", &["get", "list", "watch", "update"], Some(lease)),
            // Where the Lease was deleted, or no operator runs, brokers create the next one.
            rule("coordination.k8s.io", "leases", &["create"], None),
            rule("discovery.k8s.io", "endpointslices", &["get", "update"], Some(slice)),
            rule("", "pods", &["patch"], Some(cluster.pod_names().collect())),
        ]),
    }
}

pub(super) fn role_binding(cluster: &ValidatedCluster) -> RoleBinding {
    let names = Names::of(&cluster.name);
    RoleBinding {
        metadata: metadata(cluster, names.broker_account()),
        role_ref: RoleRef {
            api_group: "rbac.authorization.k8s.io".into(),
            kind: "Role".into(),
            name: names.broker_account(),
        },
        subjects: Some(vec![Subject {
            kind: "ServiceAccount".into(),
            name: names.broker_account(),
            namespace: Some(cluster.namespace.clone()),
            api_group: None,
        }]),
    }
}
