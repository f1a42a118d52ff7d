//! K25: what probes ask for follows from the role, and no client can make one fail.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use understudy_e2e::{Cluster, Load, RATE, with_temp_ns};

use crate::{PATIENCE, small};

/// Several times what readiness needs to fail (three times two seconds).
const WATCHED_FOR: Duration = Duration::from_secs(12);
const STRANGERS: usize = 40;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a cluster: make e2e"]
async fn a_backup_that_serves_nobody_is_well_and_clients_spoil_nothing() {
    with_temp_ns("probes", |space| async move {
        let mut spec = small();
        spec["clients"] = json!({ "backupConnections": "Refuse" });
        let cluster = space.create_cluster(spec).await?;
        cluster.ready().await?;
        let before = readiness(&cluster).await?;
        let backup = cluster.pod_ip(&cluster.backup().await?).await?;
        let target = cluster.target_at(|_, port| vec![format!("{backup}:{port}")]).await?;
        let served = tokio::time::timeout(Duration::from_secs(3), Load::start(&target, "refused")).await;
        ensure!(!matches!(served, Ok(Ok(_))), "a backup serves a client");

        let target = cluster.target().await?;
        let load = Load::start(&target, "work").await?;
        // Messages that nobody fetches, consumers that vanish amid their deliveries, clients that say nothing or nonsense.
        let backlog = Load::start_backlog(&target, "kept").await?;
        let mut strangers = Vec::new();
        for number in 0..STRANGERS {
            let mut stream = TcpStream::connect(target.addresses.first().context("no address")?).await?;
            let words: &[u8] = if number % 2 == 0 { b"AMQP\0\0\x09\x01\x01\0\0\xff\xff\xff\xff" } else { b"" };
            stream.write_all(words).await?;
            strangers.push(stream);
        }
        for round in 0..5 {
            drop(Load::start(&target, &format!("vanished-{round}")).await?);
        }
        tokio::time::sleep(WATCHED_FOR).await;
        drop(strangers);
        load.confirms(RATE, PATIENCE).await?;
        ensure!(readiness(&cluster).await? == before, "{before:?} became {:?}", readiness(&cluster).await?);
        load.finish().await?;
        backlog.finish().await.map(drop)
    })
    .await;
}

/// Of each pod: since when it is ready, and how often it was started again.
async fn readiness(cluster: &Cluster) -> Result<Vec<(String, String, i32)>> {
    let mut all = Vec::new();
    for (name, (_, restarts)) in cluster.lives().await? {
        let pod: Pod = cluster.read(&name).await?;
        let conditions = pod.status.and_then(|status| status.conditions).unwrap_or_default();
        let ready =
            conditions.into_iter().find(|condition| condition.type_ == "Ready").context("no condition Ready")?;
        ensure!(ready.status == "True", "{name} is not ready: {:?}", ready.message);
        all.push((name, format!("{:?}", ready.last_transition_time), restarts));
    }
    ensure!(all.len() == 3, "{all:?}");
    Ok(all)
}
