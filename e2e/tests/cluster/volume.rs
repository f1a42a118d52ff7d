//! A backup loses its disk: it comes back as a new store, and counts again only once it has everything.

use anyhow::{Context, ensure};
use understudy_e2e::{Failure, Goal, Load, Row, eventually, lead_from, with_temp_ns};

use crate::{PATIENCE, small};

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
        let failure = Failure::now();
        eventually(format!("a new store of {backup} in the in-sync set"), PATIENCE * 2, async || {
            let now = store(&cluster.in_sync().await?).context("it is not in the set")?;
            ensure!(now != before, "it is still store {now}");
            Ok(())
        })
        .await?;
        cluster.ready().await?;

        let aftermath = load.finish().await?;
        let gap = aftermath.longest_silence;
        let scenario = "a backup's volume lost (longest silence)";
        Row { scenario, failure, gap, goal: Goal::KilledProcess }
            .write(&aftermath.account, &cluster.status().await?)?;

        // It leads next, with what it has.
        let kept = kept.stop_publishing().await?;
        lead_from(&cluster, |pod, _| pod == backup).await?;
        kept.finish().await.map(drop)
    })
    .await;
}
