//! Three Services: to each pod, to the primary, to any pod.

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use understudy_crds::ValidatedCluster;

use crate::names::{AMQP_PORT, GRPC_PORT, HTTP_PORT, Names, metadata, selector_labels};

/// Each pod under its own name. Not-ready addresses too: brokers find each other before any of them is ready.
pub(super) fn nodes(cluster: &ValidatedCluster) -> Service {
    Service {
        metadata: metadata(cluster, Names::of(&cluster.name).nodes_service()),
        spec: Some(ServiceSpec {
            cluster_ip: Some("None".into()),
            publish_not_ready_addresses: Some(true),
            selector: Some(selector_labels(&cluster.name)),
            ports: Some(vec![port("amqp", AMQP_PORT), port("grpc", GRPC_PORT), port("http", HTTP_PORT)]),
            ..ServiceSpec::default()
        }),
        status: None,
    }
}

/// The primary alone. No selector: its EndpointSlice is written at an election, and waits for no label and no probe.
pub(super) fn failover(cluster: &ValidatedCluster) -> Service {
    Service {
        metadata: metadata(cluster, Names::of(&cluster.name).failover_service()),
        spec: Some(ServiceSpec { ports: Some(vec![port("amqp", AMQP_PORT)]), ..ServiceSpec::default() }),
        status: None,
    }
}

/// Any ready broker: a backup relays to the primary.
pub(super) fn any(cluster: &ValidatedCluster) -> Service {
    Service {
        metadata: metadata(cluster, Names::of(&cluster.name).any_service()),
        spec: Some(ServiceSpec {
            selector: Some(selector_labels(&cluster.name)),
            ports: Some(vec![port("amqp", AMQP_PORT)]),
            ..ServiceSpec::default()
        }),
        status: None,
    }
}

fn port(name: &str, number: i32) -> ServicePort {
    ServicePort {
        name: Some(name.into()),
        port: number,
        protocol: Some("TCP".into()),
        target_port: Some(IntOrString::Int(number)),
        app_protocol: (name == "amqp").then(|| "amqp".into()),
        ..ServicePort::default()
    }
}
