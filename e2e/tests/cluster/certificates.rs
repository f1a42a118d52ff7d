//! K20: the certificates among brokers and operator are renewed, their authority with them. No pod is replaced by it and no process
//! started again, nobody loses a connection, and the next connections are made with the new ones.

use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::json;
use tokio::net::TcpStream;
use understudy_e2e::{Cluster, Load, RATE, eventually, kill_process, with_temp_ns};

use crate::{PATIENCE, small};

const RENEW_AFTER_ANNOTATION: &str = "understudy.dev/renew-after";
const NEXT_AFTER_ANNOTATION: &str = "understudy.dev/next-authority-after";
const GRPC_PORT: u16 = 7672;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a cluster: make e2e"]
async fn a_new_authority_and_its_certificates_disturb_nobody() {
    with_temp_ns("certificates", |space| async move {
        let cluster = space.create_cluster(small()).await?;
        cluster.ready().await?;
        no_single_files_are_mounted(&cluster).await?;
        let load = Load::start(&cluster.target().await?, "work").await?;
        let (epoch, lives) = (cluster.epoch().await?, cluster.lives().await?);
        let old = tls(&cluster).await?;
        for pod in cluster.pod_names(3) {
            handshake(&cluster, &pod, &old.newest, &old).await.context("with what there is")?;
        }

        // Its time has come: the next one is trusted, and issues nothing yet.
        its_time_has_come(&cluster, RENEW_AFTER_ANNOTATION).await?;
        let announced = eventually("two authorities", PATIENCE, async || {
            let now = tls(&cluster).await?;
            ensure!(now.authorities.len() == 2, "{} authorities", now.authorities.len());
            Ok(now)
        })
        .await?;
        ensure!(announced.authorities[0] == old.newest, "the old authority issues no more");
        ensure!(announced.certificate == old.certificate, "a certificate was issued by whom nobody knows yet");

        kubelets_look(&cluster, "1").await?;
        its_time_has_come(&cluster, NEXT_AFTER_ANNOTATION).await?;
        let new = eventually("a certificate of the new authority", PATIENCE, async || {
            let now = tls(&cluster).await?;
            ensure!(now.newest == announced.authorities[1], "the old authority issues");
            ensure!(now.certificate != old.certificate, "it is the old one");
            ensure!(now.authorities.contains(&old.newest), "the old authority is not trusted any more");
            Ok(now)
        })
        .await?;
        kubelets_look(&cluster, "2").await?;
        for pod in cluster.pod_names(3) {
            eventually(format!("{pod} to show its new certificate"), PATIENCE * 2, async || {
                handshake(&cluster, &pod, &new.newest, &new).await
            })
            .await?;
            ensure!(
                handshake(&cluster, &pod, &old.newest, &new).await.is_err(),
                "{pod} shows the old certificate, too"
            );
        }
        load.confirms(RATE, PATIENCE).await?;
        ensure!(cluster.lives().await? == lives, "pods were touched: {lives:?}, {:?}", cluster.lives().await?);
        ensure!(cluster.epoch().await? == epoch, "the primary changed");
        ensure!(load.reconnects() == 0, "the publisher was closed");

        // Who comes back is let in by the others.
        let backup = cluster.backup().await?;
        kill_process(&cluster, std::slice::from_ref(&backup)).await?;
        eventually(format!("{backup} to be started again"), PATIENCE, async || {
            ensure!(cluster.lives().await?.get(&backup).is_some_and(|(_, restarts)| *restarts == 1), "not yet");
            Ok(())
        })
        .await?;
        let status = cluster.ready().await?;
        ensure!(status.in_sync_replicas == 3, "{} are in sync", status.in_sync_replicas);
        let aftermath = load.finish().await?;
        ensure!(aftermath.reconnects == 0 && aftermath.consumer_reconnects == 0, "clients noticed: {aftermath:?}");
        Ok(())
    })
    .await;
}

/// A kubelet looks at a pod's files when the pod changes: sooner than it would by itself.
async fn kubelets_look(cluster: &Cluster, round: &str) -> Result<()> {
    for pod in cluster.pod_names(3) {
        let nudge = json!({ "metadata": { "annotations": { "example.com/look": round } } });
        cluster.api::<Pod>().patch(&pod, &PatchParams::default(), &Patch::Merge(nudge)).await?;
    }
    Ok(())
}

/// What the operator has planned for later, of the authority, it does now.
async fn its_time_has_come(cluster: &Cluster, annotation: &str) -> Result<()> {
    let patch = json!({ "metadata": { "annotations": { annotation: "2020-01-01T00:00:00Z" } } });
    cluster.api::<Secret>().patch("orders-ca", &PatchParams::default(), &Patch::Merge(patch)).await?;
    Ok(())
}

/// A kubelet renews directories, and never a file that is mounted by itself.
async fn no_single_files_are_mounted(cluster: &Cluster) -> Result<()> {
    for name in cluster.pod_names(3) {
        let pod: Pod = cluster.read(&name).await?;
        let containers = pod.spec.map(|spec| spec.containers).unwrap_or_default();
        let mounts: Vec<_> = containers.into_iter().flat_map(|container| container.volume_mounts).flatten().collect();
        ensure!(!mounts.is_empty(), "{name} mounts nothing");
        for mount in mounts {
            ensure!(mount.sub_path.is_none() && mount.sub_path_expr.is_none(), "{name}: {mount:?}");
        }
    }
    Ok(())
}

/// What the brokers' Secret holds.
struct Tls {
    /// The authority that issued the certificate.
    newest: CertificateDer<'static>,
    authorities: Vec<CertificateDer<'static>>,
    certificate: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

async fn tls(cluster: &Cluster) -> Result<Tls> {
    let secret: Secret = cluster.read("orders-tls").await?;
    let name = secret.name_any();
    let data = secret.data.unwrap_or_default();
    let bytes = |key: &str| data.get(key).map(|bytes| bytes.0.clone()).with_context(|| format!("{name} has no {key}"));
    let certificates = |bytes: &[u8]| CertificateDer::pem_slice_iter(bytes).collect::<Result<Vec<_>, _>>();
    let authorities = certificates(&bytes("ca.crt")?)?;
    Ok(Tls {
        newest: authorities.first().context("no authority")?.clone(),
        authorities,
        certificate: certificates(&bytes("tls.crt")?)?,
        key: PrivateKeyDer::from_pem_slice(&bytes("tls.key")?)?,
    })
}

/// Fails unless the broker shows a certificate of just this authority.
async fn handshake(cluster: &Cluster, pod: &str, authority: &CertificateDer<'static>, own: &Tls) -> Result<()> {
    let mut roots = RootCertStore::empty();
    roots.add(authority.clone())?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_client_auth_cert(own.certificate.clone(), own.key.clone_key())?;
    let stream = TcpStream::connect((cluster.pod_ip(pod).await?, GRPC_PORT)).await?;
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    match connector.connect(ServerName::try_from("localhost")?, stream).await {
        Ok(_) => Ok(()),
        Err(error) => bail!("{pod}: {error}"),
    }
}
