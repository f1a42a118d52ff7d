//! A backup loses its disk: it comes back as a new store, and counts again only once it has everything.

use anyhow::{Context, ensure};
use serde_json::json;
use understudy_e2e::{Goal, Load, Row, eventually, kill_process, with_temp_ns};

use crate::{PATIENCE, recovered, small};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a cluster: make e2e"]
async fn a_backup_without_its_volume_catches_up() {
    with_temp_ns("volume_lost", |space| async move {
        let cluster = space.create_cluster(small()).await?;
        cluster.ready().await?;
        let target = cluster.target().await?;
        // Messages that are there before, and stay until the end: they come to the new disk by catch-up alone.
        let kept = Load::start_backlog(&target, "kept").await?;
        kept.confirms(500, PATIENCE).await?;
        let load = Load::start(&target, "work").await?;

        let backup = cluster.backup().await?;
        let store = |members: &[understudy_record::Member]| {
            members.iter().find(|member| member.name.as_str() == backup).map(|member| member.store)
        };
        let before = store(&cluster.in_sync().await?).context("the backup is not in sync")?;
        cluster.delete_volume_and_pod(&backup).await?;
        eventually(format!("a new store of {backup} in the in-sync set"), PATIENCE * 2, async || {
            let now = store(&cluster.in_sync().await?).context("it is not in the set")?;
            ensure!(now != before, "it is still store {now}");
            Ok(())
        })
        .await?;
        cluster.ready().await?;

        // It leads next, with what it has.
        cluster.patch(json!({ "primary": { "preferred": backup } })).await?;
        cluster.ready().await?;
        let (primary, epoch) = (cluster.primary().await?, cluster.epoch().await?);
        let failure = kill_process(&cluster, &[primary.name.to_string()]).await?;
        let gap = load.recovery(failure).await?;
        kept.recovery(failure).await?;
        let heir = cluster.primary().await?;
        ensure!(heir.name.as_str() == backup, "{} leads, and not {backup}", heir.name);
        let aftermath = load.finish().await?;
        let kept = kept.finish().await?;
        recovered(&cluster, epoch, &aftermath).await?;
        let status = recovered(&cluster, epoch, &kept).await?;
        let scenario = "primary killed, a backup's new store leads";
        Row { scenario, failure, gap, goal: Goal::KilledProcess }.write(&aftermath.account, &status)
    })
    .await;
}
