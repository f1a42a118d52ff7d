//! The operator's process: arguments, logging, then [`understudy_operator::run`].

use clap::Parser;
use tracing_subscriber::EnvFilter;
use understudy_operator::config::Config;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt().json().with_env_filter(filter).init();
    understudy_operator::run(Config::parse()).await
}
