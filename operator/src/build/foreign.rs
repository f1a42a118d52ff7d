//! Objects of kinds that others define: cert-manager's Certificate, the Prometheus operator's PodMonitor. They are made where the
//! spec asks for them, and looked for, to be taken away, where it does not: a cluster without those kinds has none.

use kube::api::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};
use understudy_crds::{IssuerRef, PodMonitor, ValidatedCluster};

use super::certificates::client_hosts;
use super::{Mode, Prepared};
use crate::names::{Names, metadata, selector_labels};

pub(super) fn certificate(cluster: &ValidatedCluster) -> Prepared {
    let names = Names::of(&cluster.name);
    let issuer = cluster.clients.tls.as_ref().and_then(|tls| tls.issuer.as_ref());
    let spec = issuer.map(|IssuerRef { name, kind, group }| {
        json!({
            "secretName": names.client_tls_secret(),
            "dnsNames": client_hosts(cluster),
            "usages": ["digital signature", "key encipherment", "server auth"],
            "issuerRef": {"name": name, "kind": kind, "group": group},
        })
    });
    object(cluster, &GroupVersionKind::gvk("cert-manager.io", "v1", "Certificate"), names.client_tls_secret(), spec)
}

pub(super) fn pod_monitor(cluster: &ValidatedCluster) -> Prepared {
    let names = Names::of(&cluster.name);
    let spec = cluster.pod_monitor.as_ref().map(|PodMonitor { interval, .. }| {
        // The alerts and the dashboard want the cluster's name.
        let relabelings = json!([{"targetLabel": "cluster", "replacement": cluster.name.as_str()}]);
        let mut endpoint = json!({"port": "http", "path": "/metrics", "relabelings": relabelings});
        if let Some(interval) = interval {
            endpoint["interval"] = interval.clone().into();
        }
        json!({"selector": {"matchLabels": selector_labels(&cluster.name)}, "podMetricsEndpoints": [endpoint]})
    });
    let kind = GroupVersionKind::gvk("monitoring.coreos.com", "v1", "PodMonitor");
    let mut monitor = object(cluster, &kind, names.pod_monitor(), spec);
    if let (Some(given), Some(labels)) =
        (&cluster.pod_monitor, monitor.value.pointer_mut("/metadata/labels").and_then(Value::as_object_mut))
    {
        for (key, value) in &given.labels {
            labels.entry(key.clone()).or_insert_with(|| value.clone().into());
        }
    }
    monitor
}

fn object(cluster: &ValidatedCluster, kind: &GroupVersionKind, name: String, spec: Option<Value>) -> Prepared {
    let resource = ApiResource::from_gvk(kind);
    let Some(spec) = spec else {
        return Prepared { resource, name, mode: Mode::Absent, value: Value::Null };
    };
    let value = json!({
        "apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata(cluster, name.clone()), "spec": spec,
    });
    Prepared { resource, name, mode: Mode::Apply, value }
}
