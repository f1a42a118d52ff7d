//! The failover Service's EndpointSlice, before there is a primary. Made once; afterwards each primary and the operator's
//! election write the address into it (see `failover::endpoint`), so it is never applied over.

use std::collections::BTreeMap;

use k8s_openapi::api::discovery::v1::{EndpointPort, EndpointSlice};
use understudy_crds::ValidatedCluster;

use super::service::{app_protocol, client_ports};
use crate::names::{EPOCH_ANNOTATION, Names, metadata};

pub(super) fn empty(cluster: &ValidatedCluster) -> EndpointSlice {
    let names = Names::of(&cluster.name);
    let mut metadata = metadata(cluster, names.primary_slice());
    metadata.annotations = Some(BTreeMap::from([(EPOCH_ANNOTATION.to_owned(), "0".to_owned())]));
    metadata.labels.get_or_insert_default().extend(slice_labels(&names));
    EndpointSlice { metadata, address_type: "IPv4".into(), endpoints: Vec::new(), ports: Some(slice_ports(cluster)) }
}

/// Under the names that the Service's ports have.
pub(crate) fn slice_ports(cluster: &ValidatedCluster) -> Vec<EndpointPort> {
    let port = |(name, number): (&str, i32)| EndpointPort {
        name: Some(name.into()),
        port: Some(number),
        protocol: Some("TCP".into()),
        app_protocol: app_protocol(name),
    };
    client_ports(cluster).into_iter().map(port).collect()
}

/// The Service it belongs to, and that no controller of Kubernetes' own may touch it.
pub(crate) fn slice_labels(names: &Names) -> [(String, String); 2] {
    [
        ("kubernetes.io/service-name".to_owned(), names.failover_service()),
        ("endpointslice.kubernetes.io/managed-by".to_owned(), "understudy.dev".to_owned()),
    ]
}
