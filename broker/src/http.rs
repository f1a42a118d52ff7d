//! Health and metrics over HTTP. Health asks this broker only: never the API server, never a peer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::routing::get;

use understudy_journal::Progress;

use crate::metrics::Metrics;
use understudy_node::{RoleStatus, Shared};

/// A core thread that has not turned for so long is stuck for good.
const STUCK: Duration = Duration::from_secs(30);

#[derive(Clone)]
pub(crate) struct Health {
    pub(crate) shared: Arc<Shared>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) started: Instant,
    /// Milliseconds after `started` at which the core thread last turned.
    pub(crate) heartbeat: Arc<AtomicU64>,
}

pub(crate) fn router(health: Health) -> Router {
    Router::new()
        .route("/livez", get(live))
        .route("/startupz", get(started))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .with_state(health)
}

async fn live(State(health): State<Health>) -> impl IntoResponse {
    let last = Duration::from_millis(health.heartbeat.load(Ordering::Relaxed));
    let still = health.started.elapsed().saturating_sub(last);
    if still < STUCK {
        (StatusCode::OK, "ok\n".to_owned())
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, format!("the core thread has not turned for {} s\n", still.as_secs()))
    }
}

async fn started(State(health): State<Health>) -> impl IntoResponse {
    match health.shared.status.borrow().role {
        RoleStatus::Recovering => (StatusCode::SERVICE_UNAVAILABLE, recovering(&health.shared)),
        _ => (StatusCode::OK, "ok\n".to_owned()),
    }
}

async fn ready(State(health): State<Health>) -> impl IntoResponse {
    let status = health.shared.status.borrow();
    if status.is_ready() {
        return (StatusCode::OK, "ok\n".to_owned());
    }
    if let Some(why) = &status.needs_upgrade {
        return (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n"));
    }
    let why = match &status.role {
        RoleStatus::Recovering => return (StatusCode::SERVICE_UNAVAILABLE, recovering(&health.shared)),
        RoleStatus::Fenced => "fenced\n",
        RoleStatus::Outdated => "waiting for another build\n",
        RoleStatus::Ended => "ending\n",
        RoleStatus::Primary { .. } => "isolated: no client is served\n",
        RoleStatus::Backup { primary: None, .. } => "no primary is heard\n",
        RoleStatus::Backup { catch_up: Some(_), .. } => "catching up\n",
        RoleStatus::Backup { .. } => "not in the in-sync set yet\n",
    };
    (StatusCode::SERVICE_UNAVAILABLE, why.to_owned())
}

/// How far the reading of the log is: recovery is work, not trouble.
fn recovering(shared: &Shared) -> String {
    let Progress { segments, segments_done, records_done } = &shared.recovery;
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let (done, all, records) = (count(segments_done), count(segments), count(records_done));
    format!("reading the log: {done} of {all} segments, {records} records\n")
}

async fn metrics(State(health): State<Health>) -> impl IntoResponse {
    let status = health.shared.status.borrow().clone();
    let usage = *health.shared.usage.borrow();
    match health.metrics.render(&status, &usage, &health.shared.checkpoints) {
        Ok(text) => (StatusCode::OK, [("content-type", "text/plain; version=0.0.4")], text),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, [("content-type", "text/plain")], error.to_string().into()),
    }
}
