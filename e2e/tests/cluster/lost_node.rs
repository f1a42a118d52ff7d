//! The primary's node stands still, or is cut off from everything but its own clients.

use anyhow::ensure;
use understudy_e2e::{
    Failure, Goal, InsideClient, Load, Outage, RATE, Row, ensure_node_counts_as_ready, eventually, lead_from,
    operator_node, with_temp_ns,
};

use crate::{PATIENCE, recovered, small};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a cluster: make e2e"]
async fn the_primary_node_freezes() {
    freeze("node_frozen", false).await;
}

/// Nobody is left who was told of it: the backups wait for the Lease to run out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a cluster: make e2e"]
async fn the_primary_freezes_with_the_operator() {
    freeze("node_with_operator_frozen", true).await;
}

async fn freeze(name: &'static str, with_operator: bool) {
    with_temp_ns(name, |space| async move {
        let cluster = space.create_cluster(small()).await?;
        cluster.ready().await?;
        let operator = operator_node(&cluster).await?;
        let (_, node) = lead_from(&cluster, |_, node| (node == operator) == with_operator).await?;
        let epoch = cluster.epoch().await?;
        let load = Load::start(&cluster.target().await?, "work").await?;
        let outage = Outage::freeze(&node)?;
        let failure = Failure::now();
        let gap = load.recovery(failure).await?;
        // K19: streams and Lease have told it, long before a Node's condition would.
        ensure_node_counts_as_ready(&space.client, &node).await?;
        // The old primary wakes up and must find that it is none.
        outage.end()?;
        cluster.ready_after(epoch).await?;
        load.confirms(RATE, PATIENCE).await?;
        let aftermath = load.finish().await?;
        let status = recovered(&cluster, epoch, &aftermath).await?;
        let (scenario, goal) = match with_operator {
            false => ("primary's node frozen", Goal::LostNode),
            true => ("primary's and operator's node frozen", Goal::None),
        };
        Row { scenario, failure, gap, goal }.write(&aftermath.account, &status)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a cluster: make e2e"]
async fn a_primary_that_is_cut_off_confirms_nothing() {
    with_temp_ns("node_cut_off", |space| async move {
        let cluster = space.create_cluster(small()).await?;
        cluster.ready().await?;
        let target = cluster.target().await?;
        let operator = operator_node(&cluster).await?;
        let (primary, node) = lead_from(&cluster, |_, node| node != operator).await?;
        let epoch = cluster.epoch().await?;
        let load = Load::start(&target, "outside").await?;

        // A client beside the primary, which will go on reaching it.
        let address = format!("{}:5672", cluster.pod_ip(&primary).await?);
        let program = env!("CARGO_BIN_EXE_understudy-e2e-client");
        let mut inside = InsideClient::start(program, &node, &address, &target, "inside")?;
        eventually("the inner client's first confirms", PATIENCE, async || {
            let state = inside.state().await?;
            ensure!(state.confirmed > 50, "{state:?}");
            Ok(())
        })
        .await?;

        let outage = Outage::cut_off(&node)?;
        let cut = Failure::now();
        let at_cut = inside.mark().await?;
        ensure!(at_cut.connected, "the inner client lost its broker by the cut itself: {at_cut:?}");
        let gap = load.recovery(cut).await?;
        ensure_node_counts_as_ready(&space.client, &node).await?; // K19
        // The others go on. The old primary can neither commit nor change the set: it ends its clients' connections, with
        // nothing confirmed that was sent after the cut.
        let closed = eventually("the old primary to close its clients", PATIENCE, async || {
            let state = inside.state().await?;
            ensure!(!state.confirmed_since_mark, "confirmed after the cut: {state:?}");
            ensure!(!state.connected, "{state:?}");
            Ok(state)
        })
        .await?;
        ensure!(!closed.confirmed_since_mark, "confirmed after the cut: {closed:?}");
        let closed_after = cut.at.elapsed();
        load.confirms(2 * RATE, PATIENCE).await?;
        let still = inside.state().await?;
        ensure!(!still.confirmed_since_mark, "confirmed while cut off: {still:?}");
        println!("the cut-off primary closed its clients after {} ms", closed_after.as_millis());

        outage.end()?;
        cluster.ready_after(epoch).await?;
        // Its address leads to the new primary now.
        eventually("the inner client to go on", PATIENCE, async || {
            let state = inside.state().await?;
            ensure!(state.confirmed_since_mark, "{state:?}");
            Ok(())
        })
        .await?;
        let account = inside.finish().await?;
        ensure!(account.lost == 0 && account.duplicated == 0, "the inner client's ledger: {account:?}");
        ensure!(
            account.errors.iter().any(|error| error.contains("320")),
            "the inner client was not told why it was closed: {:?}",
            account.errors
        );
        let aftermath = load.finish().await?;
        let status = recovered(&cluster, epoch, &aftermath).await?;
        Row { scenario: "primary's node cut off", failure: cut, gap, goal: Goal::LostNode }
            .write(&aftermath.account, &status)
    })
    .await;
}
