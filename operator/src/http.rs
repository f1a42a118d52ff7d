//! `/healthz` and `/metrics`. Health is local: the process runs and answers, whatever the API server does.

use std::net::SocketAddr;

use axum::Router;
use axum::routing::get;
use tokio::net::TcpListener;

/// # Errors
/// If the address cannot be listened on.
pub(crate) async fn serve(listen: SocketAddr) -> std::io::Result<()> {
    let router = Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/metrics", get(|| async { crate::metrics::render() }));
    axum::serve(TcpListener::bind(listen).await?, router).await
}
