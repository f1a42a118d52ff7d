//! Three Services: to each pod, to the primary, to any pod.

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use understudy_crds::{ServiceType, ValidatedCluster};

use crate::names::{AMQP_PORT, AMQPS_PORT, GRPC_PORT, HTTP_PORT, Names, metadata, selector_labels};

/// Each pod under its own name. Not-ready addresses too: brokers find each other before any of them is ready.
pub(super) fn nodes(cluster: &ValidatedCluster) -> Service {
    let client_ports = client_ports(cluster).into_iter().map(|(name, number)| port(name, number));
    Service {
        metadata: metadata(cluster, Names::of(&cluster.name).nodes_service()),
        spec: Some(ServiceSpec {
            cluster_ip: Some("None".into()),
            publish_not_ready_addresses: Some(true),
            selector: Some(selector_labels(&cluster.name)),
            ports: Some(client_ports.chain([port("grpc", GRPC_PORT), port("http", HTTP_PORT)]).collect()),
            ..ServiceSpec::default()
        }),
        status: None,
    }
}

/// The primary alone. No selector: its EndpointSlice is written at an election, and waits for no label and no probe.
pub(super) fn failover(cluster: &ValidatedCluster) -> Service {
    let given = &cluster.service;
    let mut metadata = metadata(cluster, Names::of(&cluster.name).failover_service());
    let ours = metadata.labels.get_or_insert_default();
    for (key, value) in &given.labels {
        ours.entry(key.clone()).or_insert_with(|| value.clone());
    }
    metadata.annotations = Some(given.annotations.clone()).filter(|annotations| !annotations.is_empty());
    let numbers = cluster.service_ports;
    let ports = client_ports(cluster).into_iter().map(|(name, target)| ServicePort {
        port: if name == AMQPS { numbers.amqps } else { numbers.amqp }.into(),
        ..port(name, target)
    });
    Service {
        metadata,
        spec: Some(ServiceSpec {
            type_: (given.kind != ServiceType::ClusterIp).then(|| given.kind.as_str().into()),
            external_traffic_policy: given.external_traffic_policy.map(|policy| policy.as_str().into()),
            load_balancer_class: given.load_balancer_class.clone(),
            load_balancer_source_ranges: Some(given.load_balancer_source_ranges.clone()).filter(|all| !all.is_empty()),
            ports: Some(ports.collect()),
            ..ServiceSpec::default()
        }),
        status: None,
    }
}

/// Any ready broker: a backup relays to the primary.
pub(super) fn any(cluster: &ValidatedCluster) -> Service {
    Service {
        metadata: metadata(cluster, Names::of(&cluster.name).any_service()),
        spec: Some(ServiceSpec {
            selector: Some(selector_labels(&cluster.name)),
            ports: Some(client_ports(cluster).into_iter().map(|(name, number)| port(name, number)).collect()),
            ..ServiceSpec::default()
        }),
        status: None,
    }
}

const AMQP: &str = "amqp";
const AMQPS: &str = "amqps";

/// Names and numbers of the ports that clients may use on a pod.
pub(crate) fn client_ports(cluster: &ValidatedCluster) -> Vec<(&'static str, i32)> {
    let plain = cluster.clients.plaintext.then_some((AMQP, AMQP_PORT));
    let encrypted = cluster.clients.tls.as_ref().map(|_| (AMQPS, AMQPS_PORT));
    plain.into_iter().chain(encrypted).collect()
}

fn port(name: &str, number: i32) -> ServicePort {
    ServicePort {
        name: Some(name.into()),
        port: number,
        protocol: Some("TCP".into()),
        target_port: Some(IntOrString::Int(number)),
        app_protocol: app_protocol(name),
        ..ServicePort::default()
    }
}

pub(super) fn app_protocol(port: &str) -> Option<String> {
    [AMQP, AMQPS].contains(&port).then(|| port.to_owned())
}
