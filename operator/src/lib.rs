//! The operator: makes a broker cluster of each `BrokerCluster`, and elects a new primary within milliseconds of a death.
//!
//! Two halves. The reconciliation ([`controller`]) is five steps, one file each: [`dereference`] reads what no spec says,
//! [`validate`] makes the target of the spec, [`build`] the objects of the target (one file for each kind), [`apply`] brings
//! them to the API server and writes nothing that is there already, [`status`] says what has come of it. The fast path
//! ([`failover`]) is one task for each cluster, fed by the first half.
//!
//! What the operator does not do: it holds no state of its own, so it may be restarted at any moment; it is not needed for a
//! failover, which the backups hold without it; it does not decide who may be primary (`understudy-election` does).

pub mod apply;
pub mod build;
pub mod config;
mod controller;
mod covers;
pub mod dereference;
mod earlier;
pub mod failover;
mod http;
mod leader;
mod metrics;
pub mod names;
pub mod status;
mod stop_after_writes;
pub mod validate;
mod watch_retry;

use anyhow::Context as _;

/// Runs until the process is told to end.
///
/// # Errors
/// If there is no way to an API server, or the HTTP address cannot be listened on.
pub async fn run(config: config::Config) -> anyhow::Result<()> {
    let client = kube::Client::try_default().await.context("no way to an API server")?;
    tokio::select! {
        served = http::serve(config.http_listen) => served.with_context(|| format!("cannot listen on {}", config.http_listen)),
        ended = lead(client, &config) => ended,
    }
}

/// Works as long as this process leads. One that runs outside a cluster leads always: there is no namespace for a Lease.
async fn lead(client: kube::Client, config: &config::Config) -> anyhow::Result<()> {
    // The operators' own Lease is renewed by another client: what is counted here is work.
    let working = match config.stop_after_writes {
        Some(writes) => stop_after_writes::client(writes).await?,
        None => client.clone(),
    };
    let (Some(namespace), Some(me)) = (&config.own_namespace, &config.own_name) else {
        controller::run(working, config).await;
        return Ok(());
    };
    let mut leadership = tokio::select! {
        leadership = leader::stand(client.clone(), namespace, me) => leadership,
        () = told_to_end() => return Ok(()),
    };
    metrics::LEADS.set(1);
    tokio::select! {
        why = leadership.lost() => anyhow::bail!("{why}: this process ends, and the next one stands by"),
        () = controller::run(working, config) => {}
    }
    leadership.release().await;
    Ok(())
}

async fn told_to_end() {
    use tokio::signal::unix::{SignalKind, signal};
    let Ok(mut terminated) = signal(SignalKind::terminate()) else { return std::future::pending().await };
    tokio::select! {
        _ = terminated.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
    }
}
