//! The network and the API server fail without a broker failing.

use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::json;
use understudy_crds::ConditionStatus;
use understudy_e2e::{
    ApiOutage, Failure, Goal, Load, Outage, Parting, RATE, Row, eventually, kill_process, lead_from, node_of,
    operator_node, with_temp_ns,
};

use crate::{PATIENCE, recovered, small};

/// How long the API server is away, in seconds: several lease durations. More of it: `UNDERSTUDY_E2E_OUTAGE_SECONDS=120`.
const OUTAGE_SECONDS: u64 = 20;
const OUTAGE_VARIABLE: &str = "UNDERSTUDY_E2E_OUTAGE_SECONDS";

/// A broker that does not answer its liveness probe for so long is started again. Much shorter than the outage.
const LIVENESS_SECONDS: u64 = 6;

fn outage_seconds() -> u64 {
    std::env::var(OUTAGE_VARIABLE).ok().and_then(|text| text.parse().ok()).unwrap_or(OUTAGE_SECONDS)
}

/// Rule 6: while the primary hears every member of the set, nobody else can have been elected. K17: no probe fails by it, however
/// impatient.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a cluster: make e2e"]
async fn an_api_server_that_hangs_costs_no_client_anything() {
    with_temp_ns("api_outage", |space| async move {
        let mut spec = small();
        spec["podTemplate"] = json!({ "spec": { "containers": [{
            "name": "broker", "livenessProbe": { "periodSeconds": 1, "failureThreshold": LIVENESS_SECONDS },
        }] } });
        let cluster = space.create_cluster(spec).await?;
        cluster.ready().await?;
        let load = Load::start(&cluster.target().await?, "work").await?;
        let (primary, epoch) = (cluster.primary().await?, cluster.epoch().await?);
        let lives = cluster.lives().await?;
        let outage = ApiOutage::freeze()?;
        let failure = Failure::now();
        load.confirms(outage_seconds() * RATE, PATIENCE + Duration::from_secs(outage_seconds())).await?;
        outage.end()?;
        load.confirms(RATE, PATIENCE).await?;
        let aftermath = load.finish().await?;
        ensure!(aftermath.reconnects == 0 && aftermath.consumer_reconnects == 0, "clients noticed: {aftermath:?}");
        ensure!(aftermath.errors.is_empty(), "the publisher saw errors: {:?}", aftermath.errors);
        ensure!(cluster.primary().await? == primary && cluster.epoch().await? == epoch, "the primary changed");
        // Kubelets have told what they did meanwhile once the cluster is Ready.
        let status = cluster.ready().await?;
        ensure!(cluster.lives().await? == lives, "pods were touched: {lives:?}, {:?}", cluster.lives().await?);
        let gap = aftermath.longest_silence;
        let scenario = "API server hangs (longest silence)";
        Row { scenario, failure, gap, goal: Goal::KilledProcess }.write(&aftermath.account, &status)?;

        // The operator is all there again: it sees a changed spec, and a death.
        cluster.patch(json!({ "minInSync": 1 })).await?;
        cluster.ready().await?;
        let load = Load::start(&cluster.target().await?, "work").await?;
        let (primary, epoch) = (cluster.primary().await?, cluster.epoch().await?);
        let failure = kill_process(&cluster, &[primary.name.to_string()]).await?;
        let gap = load.recovery(failure).await?;
        let aftermath = load.finish().await?;
        let status = recovered(&cluster, epoch, &aftermath).await?;
        let scenario = "primary's process killed after that";
        Row { scenario, failure, gap, goal: Goal::KilledProcess }.write(&aftermath.account, &status)
    })
    .await;
}

/// The primary's node is lost while the API server is away: nobody can be elected, so nothing is confirmed until it is back;
/// then the failover is one like any other, and nothing is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a cluster: make e2e"]
async fn the_primary_is_lost_while_the_api_server_is_away() {
    with_temp_ns("api_outage_primary_lost", |space| async move {
        let cluster = space.create_cluster(small()).await?;
        cluster.ready().await?;
        let operator = operator_node(&cluster).await?;
        let (primary, node) = lead_from(&cluster, |_, node| node != operator).await?;
        let (target, epoch) = (cluster.target().await?, cluster.epoch().await?);
        let load = Load::start(&target, "work").await?;
        // Frozen rather than stopped: kube-proxies would wait up to a minute before they look for a stopped one again.
        let api = ApiOutage::freeze()?;
        load.confirms(2 * RATE, PATIENCE).await?;
        let lost = Outage::freeze(&node)?;
        let failure = Failure::now();
        // Longer than the Lease lasts, in which the backups would have elected one of them.
        tokio::time::sleep(LEASE_RUNS_OUT).await;
        let held_at = load.confirmed();
        tokio::time::sleep(HELD_FOR).await;
        let more = load.confirmed() - held_at;
        ensure!(more == 0, "{more} messages were confirmed without a primary that could be elected");
        api.end()?;
        let gap = load.recovery(failure).await?;
        let status = eventually("the status to name the new primary", PATIENCE, async || {
            let status = cluster.status().await?;
            let available = status.conditions.iter().find(|condition| condition.kind == "Available").context("none")?;
            ensure!(available.status == ConditionStatus::True && available.reason == "PrimaryServing", "{available:?}");
            ensure!(status.primary.as_deref() != Some(primary.as_str()), "it names {primary}");
            Ok(status)
        })
        .await?;
        ensure!(status.epoch > Some(epoch), "epoch {:?}", status.epoch);
        lost.end()?;
        let aftermath = load.finish().await?;
        let status = recovered(&cluster, epoch, &aftermath).await?;
        Row { scenario: "primary lost while the API server is away", failure, gap, goal: Goal::None }
            .write(&aftermath.account, &status)
    })
    .await;
}

/// A backup's node is lost while the API server is away: the set cannot shrink, so confirms are held, and after a lease
/// duration clients are closed, since another primary might exist (rule 6). With the API server back, the same primary goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a cluster: make e2e"]
async fn a_backup_is_lost_while_the_api_server_is_away() {
    with_temp_ns("api_outage_backup_lost", |space| async move {
        let cluster = space.create_cluster(small()).await?;
        cluster.ready().await?;
        let operator = operator_node(&cluster).await?;
        let (primary, primary_node) = lead_from(&cluster, |_, node| node == operator).await?;
        let epoch = cluster.epoch().await?;
        let mut backup_nodes = Vec::new();
        for pod in cluster.pod_names(3).into_iter().filter(|pod| *pod != primary) {
            backup_nodes.push(node_of(&cluster, &pod).await?);
        }
        let node = backup_nodes.into_iter().find(|node| *node != primary_node).context("all pods are on one node")?;
        let load = Load::start(&cluster.target().await?, "work").await?;
        let api = ApiOutage::begin()?;
        load.confirms(2 * RATE, PATIENCE).await?;
        let lost = Outage::freeze(&node)?;
        let failure = Failure::now();
        eventually("the clients to be closed", PATIENCE, async || {
            ensure!(load.reconnects() > 0 || !load.is_connected(), "the publisher is still connected");
            Ok(())
        })
        .await?;
        let held_at = load.confirmed();
        tokio::time::sleep(HELD_FOR).await;
        let more = load.confirmed() - held_at;
        ensure!(more == 0, "{more} messages were confirmed by a primary that may be none");
        api.end()?;
        let gap = load.recovery(failure).await?;
        ensure!(
            cluster.primary().await?.name.as_str() == primary && cluster.epoch().await? == epoch,
            "another primary"
        );
        lost.end()?;
        let status = cluster.ready().await?;
        let aftermath = load.finish().await?;
        ensure!(
            aftermath.errors.iter().any(|error| error.contains("the Lease cannot be changed")),
            "the publisher was not told why it was closed: {:?}",
            aftermath.errors
        );
        Row { scenario: "a backup lost while the API server is away", failure, gap, goal: Goal::None }
            .write(&aftermath.account, &status)
    })
    .await;
}

/// Twice `failover.leaseDuration`.
const LEASE_RUNS_OUT: Duration = Duration::from_secs(10);
/// No confirm may come for so long.
const HELD_FOR: Duration = Duration::from_secs(5);

/// A backup that the primary has lost leaves the set, and comes back; the primary stays. The operator is on that backup's
/// node and has lost the primary, too: behind one broken link they are no two witnesses while another backup hears it. K18: when the
/// primary dies, the one who was left behind does not take over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a cluster: make e2e"]
async fn a_parted_backup_leaves_the_set_and_returns() {
    with_temp_ns("backup_parted", |space| async move {
        let cluster = space.create_cluster(small()).await?;
        cluster.ready().await?;
        let other = operator_node(&cluster).await?;
        let (name, node) = lead_from(&cluster, |_, node| node != other).await?;
        let mut backup = None;
        for pod in cluster.pod_names(3).into_iter().filter(|pod| *pod != name) {
            if node_of(&cluster, &pod).await? == other {
                backup = Some(pod);
            }
        }
        let backup = backup.context("no backup is on the operator's node")?;
        let (primary, epoch) = (cluster.primary().await?, cluster.epoch().await?);
        let load = Load::start(&cluster.target().await?, "work").await?;
        let parting = Parting::begin(&node, &other)?;
        let failure = Failure::now();
        eventually(format!("{backup} to leave the in-sync set"), PATIENCE, async || {
            let members = cluster.in_sync().await?;
            ensure!(members.len() == 2 && members.iter().all(|member| member.name.as_str() != backup), "{members:?}");
            Ok(())
        })
        .await?;
        load.confirms(2 * RATE, PATIENCE).await?;
        let aftermath = load.finish().await?;
        ensure!(cluster.primary().await? == primary && cluster.epoch().await? == epoch, "the primary changed");
        let gap = aftermath.longest_silence;
        let scenario = "a backup parted from it (longest silence)";
        Row { scenario, failure, gap, goal: Goal::LostNode }.write(&aftermath.account, &cluster.status().await?)?;

        let load = Load::start(&cluster.target().await?, "left-behind").await?;
        let died = kill_process(&cluster, std::slice::from_ref(&name)).await?;
        cluster.epoch_after(epoch).await?;
        let heir = cluster.primary().await?.name.to_string();
        ensure!(heir != backup, "{backup} leads, and lacks what was confirmed without it");
        let gap = load.recovery(died).await?;
        parting.end()?;
        let aftermath = load.finish().await?;
        let status = recovered(&cluster, epoch, &aftermath).await?;
        let scenario = "primary killed while a backup is parted";
        Row { scenario, failure: died, gap, goal: Goal::None }.write(&aftermath.account, &status)
    })
    .await;
}

/// Below `minInSync` nothing is confirmed, and publishers are told; with a backup back, everything goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a cluster: make e2e"]
async fn a_primary_without_backups_confirms_nothing() {
    with_temp_ns("backups_lost", |space| async move {
        let cluster = space.create_cluster(small()).await?;
        cluster.ready().await?;
        // The operator stays, so that somebody can say what is wrong.
        let operator = operator_node(&cluster).await?;
        let (primary, _) = lead_from(&cluster, |_, node| node == operator).await?;
        let epoch = cluster.epoch().await?;
        let load = Load::start(&cluster.target().await?, "work").await?;
        let mut outages = Vec::new();
        for backup in cluster.pod_names(3).iter().filter(|pod| **pod != primary) {
            outages.push(Outage::cut_off(&node_of(&cluster, backup).await?)?);
        }
        eventually("the publisher to be told that it is blocked", PATIENCE, async || {
            ensure!(load.blocked(), "it is not; {} confirmed", load.confirmed());
            Ok(())
        })
        .await?;
        let held_at = load.confirmed();
        let status = eventually("the condition Durable to say why", PATIENCE, async || {
            let status = cluster.status().await?;
            let durable = status.conditions.iter().find(|condition| condition.kind == "Durable").context("none")?;
            ensure!(durable.status == ConditionStatus::False && durable.reason == "BelowMinInSync", "{durable:?}");
            Ok(status)
        })
        .await?;
        ensure!(status.in_sync == [primary.clone()], "in sync: {:?}", status.in_sync);
        tokio::time::sleep(HELD_FOR).await;
        ensure!(load.confirmed() == held_at, "{} messages were confirmed below minInSync", load.confirmed() - held_at);

        for outage in outages {
            outage.end()?;
        }
        load.confirms(RATE, PATIENCE).await?;
        cluster.ready().await?;
        ensure!(!load.blocked(), "the publisher is still blocked");
        ensure!(cluster.epoch().await? == epoch, "the primary changed");
        load.finish().await.map(drop)
    })
    .await;
}
