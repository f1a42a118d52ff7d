//! The NetworkPolicy: clients and Prometheus may come from anywhere, gRPC is for the cluster's own pods and the operator. What
//! pods reach themselves is not limited: the API server is where the cluster has it, and a relay goes to another pod.

use k8s_openapi::api::networking::v1::{
    NetworkPolicy, NetworkPolicyIngressRule, NetworkPolicyPeer, NetworkPolicyPort, NetworkPolicySpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use understudy_crds::ValidatedCluster;

use super::service::client_ports;
use crate::names::{GRPC_PORT, HTTP_PORT, Names, metadata, selector};

const NAMESPACE_NAME_LABEL: &str = "kubernetes.io/metadata.name";

/// `operator_namespace`: absent, if the operator runs outside; then gRPC is open to all, and mutual TLS keeps strangers out.
pub(super) fn build(cluster: &ValidatedCluster, operator_namespace: Option<&str>) -> NetworkPolicy {
    let port = |number: i32| NetworkPolicyPort {
        port: Some(IntOrString::Int(number)),
        protocol: Some("TCP".into()),
        end_port: None,
    };
    let open = client_ports(cluster).into_iter().map(|(_, number)| number).chain([HTTP_PORT]).map(port).collect();
    let pods = NetworkPolicyPeer { pod_selector: Some(selector(&cluster.name)), ..NetworkPolicyPeer::default() };
    let operator = |namespace: &str| NetworkPolicyPeer {
        namespace_selector: Some(LabelSelector {
            match_labels: Some([(NAMESPACE_NAME_LABEL.to_owned(), namespace.to_owned())].into()),
            match_expressions: None,
        }),
        ..NetworkPolicyPeer::default()
    };
    NetworkPolicy {
        metadata: metadata(cluster, Names::of(&cluster.name).network_policy()),
        spec: Some(NetworkPolicySpec {
            pod_selector: Some(selector(&cluster.name)),
            policy_types: Some(vec!["Ingress".into()]),
            ingress: Some(vec![
                NetworkPolicyIngressRule { from: None, ports: Some(open) },
                NetworkPolicyIngressRule {
                    from: operator_namespace.map(|namespace| vec![pods, operator(namespace)]),
                    ports: Some(vec![port(GRPC_PORT)]),
                },
            ]),
            egress: None,
        }),
    }
}
