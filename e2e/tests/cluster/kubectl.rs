//! `kubectl understudy`: what it shows is so, what it orders happens, what it is told to collect is there and holds no secret.

use std::process::Output;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use serde_json::Value;
use tokio::process::Command;
use understudy_crds::{BrokerCluster, FENCED_ANNOTATION, MAINTENANCE_ANNOTATION};
use understudy_e2e::{Cluster, Load, eventually, with_temp_ns};

use crate::{PATIENCE, small};

/// The command line's executable; `e2e/run` sets it.
const CLI_VARIABLE: &str = "UNDERSTUDY_CLI";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a cluster: make e2e"]
async fn kubectl_understudy() {
    with_temp_ns("kubectl", |space| async move {
        let cluster = space.create_cluster(small()).await?;
        cluster.ready().await?;
        let load = Load::start(&cluster.target().await?, "work").await?;
        shows(&cluster).await?;
        orders(&cluster).await?;
        let before = cluster.primary().await?.name.to_string();
        let heir = cluster.backup().await?;
        let said = succeeds(&cluster, &["switchover", "--to", &heir]).await?;
        ensure!(said.contains(&format!("{heir} is the primary")), "{said}");
        load.confirms(100, PATIENCE).await?;
        // The times of its parts come to the status one after another.
        eventually("the hand-over among the last failovers", PATIENCE, async || {
            let shown = succeeds(&cluster, &["status", "--failovers"]).await?;
            let is_it = |line: &str| line.contains(&before) && line.contains(&heir) && line.contains(" ms");
            ensure!(shown.lines().any(is_it), "{shown}");
            Ok(())
        })
        .await?;
        let log = succeeds(&cluster, &["logs", "--tail", "5", "--timestamps"]).await?;
        ensure!(!log.trim().is_empty(), "the primary has said nothing");
        fences(&cluster).await?;
        load.confirms(100, PATIENCE).await?;
        reports(&cluster).await?;
        let figures = succeeds(&cluster, &["perf", "--duration", "3", "--rate", "200", "--json"]).await?;
        let figures: Value = serde_json::from_str(&figures).with_context(|| figures.clone())?;
        ensure!(figures["confirmed_rate"].as_f64().is_some_and(|rate| rate > 0.0), "{figures}");
        load.finish().await.map(drop)
    })
    .await;
}

async fn shows(cluster: &Cluster) -> Result<()> {
    let primary = cluster.primary().await?.name.to_string();
    let text = succeeds(cluster, &["status"]).await?;
    for part in [&format!("primary {primary}"), "3 of 3 in sync", "└── orders-2", "As they should be: Available"]
    {
        ensure!(text.contains(part), "{part:?} is not in {text}");
    }
    let json: Value = serde_json::from_str(&succeeds(cluster, &["status", &cluster.name, "-o", "json"]).await?)?;
    ensure!(
        json["primary"] == primary.as_str() && json["replicas"].as_array().is_some_and(|all| all.len() == 3),
        "{json}"
    );
    let refused = understudy(cluster, &["status", "nothing-like-this"]).await?;
    ensure!(!refused.status.success(), "there is no such cluster");
    Ok(())
}

async fn orders(cluster: &Cluster) -> Result<()> {
    for (word, value) in [("on", Some("on")), ("on", Some("on")), ("off", None)] {
        succeeds(cluster, &["maintenance", word]).await?;
        let object = cluster.read::<BrokerCluster>(&cluster.name).await?;
        let annotation = object.annotations().get(MAINTENANCE_ANNOTATION).map(String::as_str);
        ensure!(annotation == value, "after maintenance {word}: {annotation:?}");
        let shown = succeeds(cluster, &["status"]).await?;
        ensure!(shown.contains("* Maintenance") == value.is_some(), "{shown}");
    }
    let dry = succeeds(cluster, &["hibernate", "--dry-run"]).await?;
    ensure!(dry.starts_with("would set"), "{dry}");
    let unasked = understudy(cluster, &["hibernate"]).await?;
    ensure!(!unasked.status.success() && text(&unasked.stderr).contains("--yes"), "{unasked:?}");
    ensure!(cluster.epoch().await.is_ok() && cluster.status().await?.replicas == 3, "pods have ended");
    Ok(())
}

/// The primary loses the role by it, and comes back into the set when it may.
async fn fences(cluster: &Cluster) -> Result<()> {
    let primary = cluster.primary().await?.name.to_string();
    succeeds(cluster, &["fence", &primary]).await?;
    ensure!(cluster.primary().await?.name.as_str() != primary, "it is the primary still");
    ensure!(cluster.in_sync().await?.iter().all(|member| member.name.as_str() != primary), "it is in the set still");
    let everybody: Vec<String> = cluster.pod_names(3);
    let all = [&["fence", "--yes"], everybody.iter().map(String::as_str).collect::<Vec<_>>().as_slice()].concat();
    let refused = understudy(cluster, &all).await?;
    ensure!(!refused.status.success() && text(&refused.stderr).contains("not fenced"), "{refused:?}");
    succeeds(cluster, &["unfence", &primary]).await?;
    let object = cluster.read::<BrokerCluster>(&cluster.name).await?;
    ensure!(!object.annotations().contains_key(FENCED_ANNOTATION), "the annotation is still there");
    cluster.ready().await.map(drop)
}

async fn reports(cluster: &Cluster) -> Result<()> {
    let folder = std::env::temp_dir().join(format!("understudy-report-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let archive = folder.join("report.tar.gz");
    let path = archive.to_string_lossy().into_owned();
    let said = succeeds(cluster, &["report", "-o", &path]).await;
    let unpacked = match &said {
        Ok(_) => Command::new("tar").arg("-xzOf").arg(&archive).output().await,
        Err(_) => Ok(Command::new("true").output().await?),
    };
    let listed = Command::new("tar").arg("-tzf").arg(&archive).output().await;
    std::fs::remove_dir_all(&folder)?;
    said?;
    let (names, everything) = (text(&listed?.stdout), text(&unpacked?.stdout));
    for name in [
        "status.txt",
        "brokercluster.yaml",
        "pods.yaml",
        "secrets.yaml",
        "lease.yaml",
        "logs/orders-0.log",
        "metrics/orders-0.txt",
    ] {
        ensure!(names.lines().any(|line| line.ends_with(name)), "{name} is not among {names}");
    }
    for name in ["orders-user", "orders-tls", "orders-ca"] {
        let secret: Secret = cluster.read(name).await?;
        for (key, value) in secret.data.unwrap_or_default() {
            let value = text(&value.0);
            let is_secret = ["password", "uri", "users", "tls.key", "ca.key"].contains(&key.as_str());
            let leaks = value.lines().filter(|line| line.len() >= 16 && !line.starts_with("-----"));
            let leaks: Vec<_> = leaks.filter(|line| everything.contains(line)).collect();
            ensure!(!is_secret || leaks.is_empty(), "{key} of {name} is in the report");
        }
    }
    Ok(())
}

/// What it says on standard output.
async fn succeeds(cluster: &Cluster, words: &[&str]) -> Result<String> {
    let output = understudy(cluster, words).await?;
    ensure!(output.status.success(), "understudy {}: {}", words.join(" "), text(&output.stderr));
    Ok(text(&output.stdout))
}

async fn understudy(cluster: &Cluster, words: &[&str]) -> Result<Output> {
    let program = std::env::var_os(CLI_VARIABLE).with_context(|| format!("{CLI_VARIABLE} names no executable"))?;
    let mut command = Command::new(program);
    command.args(words).args(["--namespace", &cluster.namespace]).stdin(std::process::Stdio::null());
    Ok(command.output().await?)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
