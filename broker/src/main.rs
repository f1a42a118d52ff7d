//! `understudy-broker`: one replica. What it does is in the library; this reads the command line and starts it.

use std::process::ExitCode;

use clap::Parser;
use understudy_broker::{Arguments, Config, run};

fn main() -> ExitCode {
    tracing_subscriber::fmt()
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_default_env()
                .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info,kube_client=warn,tower=warn,h2=warn")),
        )
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
    let outcome = Config::try_from(Arguments::parse()).map_err(anyhow::Error::from).and_then(run);
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}
