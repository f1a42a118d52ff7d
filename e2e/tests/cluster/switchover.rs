//! The role is handed over because a person asks for it: by annotation, and by the command line.

use anyhow::{Context, Result, ensure};
use tokio::process::Command;
use understudy_crds::{SWITCHOVER_ANNOTATION, SwitchoverOutcome};
use understudy_e2e::{Aftermath, Cluster, Failure, Goal, Load, RATE, Row, with_temp_ns};

use crate::{PATIENCE, recovered, small};

/// The command line's executable; `e2e/run` sets it.
const CLI_VARIABLE: &str = "UNDERSTUDY_CLI";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a cluster: make e2e"]
async fn a_switchover_by_annotation() {
    with_temp_ns("switchover", |space| async move {
        let cluster = space.create_cluster(small()).await?;
        cluster.ready().await?;
        let load = Load::start(&cluster.target().await?, "work").await?;
        let (epoch, target) = (cluster.epoch().await?, cluster.backup().await?);
        let failure = Failure::now();
        let answer = cluster.ask(SWITCHOVER_ANNOTATION, &target).await?;
        ensure!(answer.outcome == SwitchoverOutcome::Done && answer.to == target, "{answer:?}");
        ensure!(answer.gap_ms.is_some(), "no gap is told: {answer:?}");
        ensure!(cluster.epoch().await? == epoch + 1, "one swap is enough");
        load.confirms(RATE, PATIENCE).await?;
        let aftermath = load.finish().await?;
        check(&cluster, epoch, &target, &aftermath, failure, "switchover by annotation (longest silence)").await?;

        // Asked again, it says that all is as asked; of something that is no pod, that it is none. Nothing moves.
        let again = cluster.ask(SWITCHOVER_ANNOTATION, &target).await?;
        ensure!(again.outcome == SwitchoverOutcome::Done && again.gap_ms.is_none(), "{again:?}");
        let nobody = cluster.ask(SWITCHOVER_ANNOTATION, "orders-7").await?;
        ensure!(nobody.outcome == SwitchoverOutcome::Refused, "{nobody:?}");
        ensure!(cluster.epoch().await? == epoch + 1, "the primary changed");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a cluster: make e2e"]
async fn a_switchover_by_the_command_line() {
    with_temp_ns("switchover_cli", |space| async move {
        let cluster = space.create_cluster(small()).await?;
        cluster.ready().await?;
        let load = Load::start(&cluster.target().await?, "work").await?;
        let (epoch, target) = (cluster.epoch().await?, cluster.backup().await?);
        let failure = Failure::now();
        let said = understudy(&cluster, &["switchover", &cluster.name, &target]).await?;
        ensure!(said.contains(&format!("{target} is the primary")), "{said}");
        load.confirms(RATE, PATIENCE).await?;
        let aftermath = load.finish().await?;
        check(&cluster, epoch, &target, &aftermath, failure, "switchover by command (longest silence)").await?;
        let said = understudy(&cluster, &["switchover", &cluster.name, &target]).await?;
        ensure!(said.contains("already"), "{said}");
        let refused = understudy(&cluster, &["switchover", &cluster.name, "orders-7"]).await;
        ensure!(refused.is_err(), "{refused:?}");
        Ok(())
    })
    .await;
}

/// One disconnect for each client, and nothing lost.
async fn check(
    cluster: &Cluster,
    epoch: i64,
    target: &str,
    aftermath: &Aftermath,
    failure: Failure,
    scenario: &str,
) -> Result<()> {
    let status = recovered(cluster, epoch, aftermath).await?;
    ensure!(status.primary.as_deref() == Some(target), "{:?} leads", status.primary);
    ensure!(
        aftermath.reconnects == 1,
        "the publisher was closed {} times: {:?}",
        aftermath.reconnects,
        aftermath.errors
    );
    ensure!(aftermath.consumer_reconnects == 1, "the consumer was closed {} times", aftermath.consumer_reconnects);
    Row { scenario, failure, gap: aftermath.longest_silence, goal: Goal::KilledProcess }
        .write(&aftermath.account, &status)
}

/// What the command line says, if it succeeds.
async fn understudy(cluster: &Cluster, words: &[&str]) -> Result<String> {
    let program = std::env::var_os(CLI_VARIABLE).with_context(|| format!("{CLI_VARIABLE} names no executable"))?;
    let output = Command::new(program).args(words).args(["--namespace", &cluster.namespace]).output().await?;
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "understudy {}: {error}", words.join(" "));
    Ok(String::from_utf8(output.stdout)?)
}
