//! What the objects of a cluster are called and how they are labelled. Brokers derive the same names (`NAME-primary`, the
//! Lease `NAME`), so a change here is a change there.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference};
use kube::Resource;
use understudy_crds::{BrokerCluster, ClusterName, ValidatedCluster};

pub const FIELD_MANAGER: &str = "understudy-operator";
pub const MANAGED_BY_LABEL: &str = "app.kubernetes.io/managed-by";
pub const INSTANCE_LABEL: &str = "app.kubernetes.io/instance";
/// On the EndpointSlice: the epoch of the primary whose address it holds. Never goes down.
pub const EPOCH_ANNOTATION: &str = "understudy.dev/epoch";
/// On pods, for people: what the broker in it does.
pub const ROLE_LABEL: &str = "understudy.dev/role";

/// On pods: a change of it has the kubelet look at the pod's volumes at once.
pub const SETTINGS_ANNOTATION: &str = "understudy.dev/settings";

pub const BROKER_CONTAINER: &str = "broker";
pub const AMQP_PORT: i32 = 5672;
pub const AMQPS_PORT: i32 = 5671;
pub const GRPC_PORT: i32 = 7672;
pub const HTTP_PORT: i32 = 15692;

/// Names of everything that belongs to one cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names(ClusterName);

impl Names {
    pub fn of(name: &ClusterName) -> Self {
        Self(name.clone())
    }

    pub fn cluster(&self) -> String {
        self.0.to_string()
    }

    pub fn stateful_set(&self) -> String {
        self.cluster()
    }

    /// The Service that follows the primary.
    pub fn failover_service(&self) -> String {
        self.cluster()
    }

    /// The headless Service: each pod by name, ready or not.
    pub fn nodes_service(&self) -> String {
        format!("{}-nodes", self.0)
    }

    /// The Service over all pods.
    pub fn any_service(&self) -> String {
        format!("{}-any", self.0)
    }

    pub fn primary_slice(&self) -> String {
        format!("{}-primary", self.0)
    }

    /// ServiceAccount, Role and RoleBinding of the brokers.
    pub fn broker_account(&self) -> String {
        format!("{}-broker", self.0)
    }

    /// The ConfigMap of what may change while brokers run.
    pub fn settings(&self) -> String {
        format!("{}-settings", self.0)
    }

    pub fn disruption_budget(&self) -> String {
        self.cluster()
    }

    pub fn user_secret(&self) -> String {
        format!("{}-user", self.0)
    }

    pub fn tls_secret(&self) -> String {
        format!("{}-tls", self.0)
    }

    pub fn authority_secret(&self) -> String {
        format!("{}-ca", self.0)
    }

    /// The certificate that clients see, unless somebody else keeps it.
    pub fn client_tls_secret(&self) -> String {
        format!("{}-client-tls", self.0)
    }

    /// The authority that issues it, where that is the operator's own.
    pub fn client_authority_secret(&self) -> String {
        format!("{}-client-ca", self.0)
    }

    pub fn network_policy(&self) -> String {
        self.cluster()
    }

    pub fn pod_monitor(&self) -> String {
        self.cluster()
    }

    pub fn lease(&self) -> String {
        self.cluster()
    }

    pub fn claim(&self, pod: &str) -> String {
        format!("{DATA_VOLUME}-{pod}")
    }

    /// The name by which a pod is reached and which its certificate carries.
    pub fn pod_host(&self, pod: &str, namespace: &str) -> String {
        format!("{pod}.{}.{namespace}.svc", self.nodes_service())
    }
}

pub const DATA_VOLUME: &str = "data";

/// Selects the cluster's pods; part of immutable selectors, so never changed.
pub fn selector_labels(name: &ClusterName) -> BTreeMap<String, String> {
    [("app.kubernetes.io/name", "understudy"), (INSTANCE_LABEL, name.as_str())]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into()
}

/// The same, as text for a list or the scale subresource.
pub fn selector_text(name: &ClusterName) -> String {
    selector_labels(name).iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",")
}

pub fn selector(name: &ClusterName) -> LabelSelector {
    LabelSelector { match_labels: Some(selector_labels(name)), match_expressions: None }
}

pub fn labels(name: &ClusterName) -> BTreeMap<String, String> {
    let mut labels = selector_labels(name);
    labels.insert(MANAGED_BY_LABEL.into(), FIELD_MANAGER.into());
    labels
}

/// Metadata of an object that belongs to `cluster`: labelled, and owned, so that it goes when the cluster goes.
pub fn metadata(cluster: &ValidatedCluster, name: String) -> ObjectMeta {
    ObjectMeta {
        name: Some(name),
        namespace: Some(cluster.namespace.clone()),
        labels: Some(labels(&cluster.name)),
        owner_references: Some(vec![owner(cluster)]),
        ..ObjectMeta::default()
    }
}

pub fn owner(cluster: &ValidatedCluster) -> OwnerReference {
    OwnerReference {
        api_version: BrokerCluster::api_version(&()).into_owned(),
        kind: BrokerCluster::kind(&()).into_owned(),
        name: cluster.name.to_string(),
        uid: cluster.uid.clone(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}
