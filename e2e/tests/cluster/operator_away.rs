//! Failover does not need the operator.

use anyhow::ensure;
use understudy_e2e::{Goal, Load, OperatorPause, Row, kill_process, with_temp_ns};

use crate::{recovered, small};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a cluster: make e2e"]
async fn the_primary_is_killed_without_an_operator() {
    with_temp_ns("operator_away", |space| async move {
        let cluster = space.create_cluster(small()).await?;
        cluster.ready().await?;
        let load = Load::start(&cluster.target().await?, "work").await?;
        let (primary, epoch) = (cluster.primary().await?, cluster.epoch().await?);
        let pause = OperatorPause::begin(&space.client).await?;
        let failure = kill_process(&cluster, &[primary.name.to_string()]).await?;
        let gap = load.recovery(failure).await?;
        ensure!(cluster.epoch().await? > epoch, "the epoch did not change");
        ensure!(cluster.primary().await? != primary, "a process that was killed is still the primary");
        pause.end().await?;
        let aftermath = load.finish().await?;
        let status = recovered(&cluster, epoch, &aftermath).await?;
        let scenario = "no operator, primary's process killed";
        Row { scenario, failure, gap, goal: Goal::None }.write(&aftermath.account, &status)
    })
    .await;
}
