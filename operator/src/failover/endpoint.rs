//! The failover Service's EndpointSlice: the primary's address and epoch, written in one update and never backwards. The new
//! primary writes it too; whoever is second finds it done.

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointSlice};
use kube::Client;
use kube::api::{Api, DeleteParams, PostParams, Preconditions};
use understudy_crds::ValidatedCluster;
use understudy_record::Epoch;

use crate::build::slice_ports;
use crate::names::{EPOCH_ANNOTATION, Names, metadata};

/// Somebody else writes the slice at the same moment at most a few times: the new primary, another operator.
const MAX_ATTEMPTS: u32 = 5;

/// Where the primary is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PrimaryAddress {
    pub(crate) epoch: Epoch,
    pub(crate) pod: String,
    pub(crate) ip: IpAddr,
    pub(crate) node: Option<String>,
}

/// What is to be done with the slice that is there.
#[derive(Debug, PartialEq)]
enum Step {
    Nothing,
    Create(Box<EndpointSlice>),
    Replace(Box<EndpointSlice>),
    /// The address family cannot be changed in place.
    Remake(Box<EndpointSlice>),
}

/// # Errors
/// If the API server refuses, does not answer, or others write the slice each time we try.
pub(crate) async fn publish(
    client: &Client,
    cluster: &ValidatedCluster,
    address: &PrimaryAddress,
) -> Result<(), kube::Error> {
    let api: Api<EndpointSlice> = Api::namespaced(client.clone(), &cluster.namespace);
    let name = Names::of(&cluster.name).primary_slice();
    let mut last = None;
    for _ in 0..MAX_ATTEMPTS {
        let live = api.get_opt(&name).await?;
        let result = match next(live.as_ref(), cluster, address) {
            Step::Nothing => return Ok(()),
            Step::Create(slice) => api.create(&PostParams::default(), &slice).await.map(drop),
            Step::Replace(slice) => api.replace(&name, &PostParams::default(), &slice).await.map(drop),
            Step::Remake(slice) => {
                let uid = live.and_then(|live| live.metadata.uid);
                let params = DeleteParams::default().preconditions(Preconditions { uid, resource_version: None });
                match api.delete(&name, &params).await {
                    Ok(_) => api.create(&PostParams::default(), &slice).await.map(drop),
                    Err(error) => Err(error),
                }
            }
        };
        match result {
            Err(kube::Error::Api(status)) if status.code == 409 || status.code == 404 => {
                last = Some(kube::Error::Api(status)); // somebody was faster: read again
            }
            other => return other,
        }
    }
    last.map_or(Ok(()), Err)
}

fn next(live: Option<&EndpointSlice>, cluster: &ValidatedCluster, address: &PrimaryAddress) -> Step {
    let mut wanted = slice(cluster, address);
    let Some(live) = live else { return Step::Create(Box::new(wanted)) };
    let epoch = live.metadata.annotations.as_ref().and_then(|annotations| annotations.get(EPOCH_ANNOTATION));
    let epoch = epoch.and_then(|epoch| epoch.parse().ok()).unwrap_or(Epoch(0));
    if epoch > address.epoch {
        return Step::Nothing;
    }
    let same_addresses = live.endpoints.first().map(|endpoint| &endpoint.addresses)
        == wanted.endpoints.first().map(|endpoint| &endpoint.addresses);
    let same_ports = live.ports == wanted.ports;
    if epoch == address.epoch
        && same_addresses
        && same_ports
        && live.endpoints.len() == 1
        && is_ready(&live.endpoints[0])
    {
        return Step::Nothing;
    }
    if live.address_type != wanted.address_type {
        return Step::Remake(Box::new(wanted));
    }
    wanted.metadata.resource_version.clone_from(&live.metadata.resource_version);
    wanted.metadata.uid.clone_from(&live.metadata.uid);
    merge_under(&mut wanted.metadata.annotations, live.metadata.annotations.as_ref());
    merge_under(&mut wanted.metadata.labels, live.metadata.labels.as_ref());
    Step::Replace(Box::new(wanted))
}

/// Keeps what others wrote, except where we say something.
fn merge_under(ours: &mut Option<BTreeMap<String, String>>, theirs: Option<&BTreeMap<String, String>>) {
    let ours = ours.get_or_insert_default();
    for (key, value) in theirs.into_iter().flatten() {
        ours.entry(key.clone()).or_insert_with(|| value.clone());
    }
}

fn is_ready(endpoint: &Endpoint) -> bool {
    endpoint.conditions.as_ref().and_then(|conditions| conditions.ready) != Some(false)
}

fn slice(cluster: &ValidatedCluster, address: &PrimaryAddress) -> EndpointSlice {
    let names = Names::of(&cluster.name);
    let mut metadata = metadata(cluster, names.primary_slice());
    metadata.annotations = Some([(EPOCH_ANNOTATION.to_owned(), address.epoch.to_string())].into());
    metadata.labels.get_or_insert_default().extend(crate::build::slice_labels(&names));
    EndpointSlice {
        metadata,
        address_type: if address.ip.is_ipv6() { "IPv6" } else { "IPv4" }.into(),
        ports: Some(slice_ports(cluster)),
        endpoints: vec![Endpoint {
            addresses: vec![address.ip.to_string()],
            // Ready by election: clients wait for no probe.
            conditions: Some(EndpointConditions { ready: Some(true), serving: Some(true), terminating: Some(false) }),
            node_name: address.node.clone(),
            target_ref: Some(ObjectReference {
                kind: Some("Pod".into()),
                namespace: Some(cluster.namespace.clone()),
                name: Some(address.pod.clone()),
                ..ObjectReference::default()
            }),
            ..Endpoint::default()
        }],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::validate::{Defaults, validate};

    fn cluster() -> ValidatedCluster {
        let json = serde_json::json!({
            "apiVersion": "understudy.dev/v1alpha1", "kind": "BrokerCluster",
            "metadata": {"name": "orders", "namespace": "shop", "uid": "u-1"}, "spec": {},
        });
        let object = serde_json::from_value(json).unwrap();
        validate(&object, &Defaults { broker_image: "broker".into(), ..Defaults::default() }).unwrap().cluster
    }

    fn at(epoch: u64, ip: &str) -> PrimaryAddress {
        PrimaryAddress { epoch: Epoch(epoch), pod: "orders-1".into(), ip: ip.parse().unwrap(), node: Some("n1".into()) }
    }

    fn live(epoch: u64, ip: &str) -> EndpointSlice {
        let mut live = slice(&cluster(), &at(epoch, ip));
        live.metadata.resource_version = Some("41".into());
        live.metadata.uid = Some("e-1".into());
        live.metadata.annotations.get_or_insert_default().insert("theirs".into(), "kept".into());
        live
    }

    fn step(live: &EndpointSlice, address: &PrimaryAddress) -> Step {
        next(Some(live), &cluster(), address)
    }

    /// An old primary that comes back, or an operator that lags, cannot take the address back.
    #[test]
    fn never_backwards_in_epoch() {
        assert_eq!(step(&live(7, "10.0.0.7"), &at(6, "10.0.0.6")), Step::Nothing);
        assert_eq!(step(&live(7, "10.0.0.7"), &at(7, "10.0.0.7")), Step::Nothing);
    }

    #[test]
    fn a_higher_epoch_replaces_what_was_read_and_keeps_what_others_wrote() {
        let Step::Replace(written) = step(&live(7, "10.0.0.7"), &at(8, "10.0.0.8")) else { panic!("no replace") };
        assert_eq!(written.metadata.resource_version.as_deref(), Some("41"));
        let annotations = written.metadata.annotations.unwrap();
        assert_eq!((annotations["theirs"].as_str(), annotations[EPOCH_ANNOTATION].as_str()), ("kept", "8"));
        assert_eq!(written.endpoints[0].addresses, ["10.0.0.8"]);
    }

    #[test]
    fn another_address_in_the_same_epoch_is_written() {
        assert!(matches!(step(&live(7, "10.0.0.7"), &at(7, "10.0.0.9")), Step::Replace(_)));
    }

    #[test]
    fn an_empty_slice_and_none_at_all() {
        let mut empty = live(0, "10.0.0.7");
        empty.endpoints.clear();
        assert!(matches!(step(&empty, &at(1, "10.0.0.7")), Step::Replace(_)));
        assert!(matches!(next(None, &cluster(), &at(1, "10.0.0.7")), Step::Create(_)));
        assert!(matches!(step(&empty, &at(1, "fd00::7")), Step::Remake(_)));
    }

    #[test]
    fn a_garbled_epoch_counts_as_none() {
        let mut garbled = live(7, "10.0.0.7");
        garbled.metadata.annotations.get_or_insert_default().insert(EPOCH_ANNOTATION.into(), "seven".into());
        assert!(matches!(step(&garbled, &at(1, "10.0.0.1")), Step::Replace(_)));
    }
}
