//! Clusters to measure, started and stopped as processes of this machine: ours by `understudy dev`, RabbitMQ's by the
//! script beside this crate. Loopback only. Everything here has a deadline; only processes started here are ended.

mod dev;
mod rabbitmq;

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

pub use dev::{DevCluster, DevPlan};
pub use rabbitmq::RabbitCluster;

#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    #[error("{command} could not be started: {source}")]
    Spawn { command: PathBuf, source: std::io::Error },
    #[error("{command} failed ({status}): {stderr}")]
    Failed { command: String, status: std::process::ExitStatus, stderr: String },
    #[error("{what}: nothing within {} s", .limit.as_secs())]
    TimedOut { what: String, limit: Duration },
    #[error("{0} ended before it was ready")]
    Ended(String),
    #[error("unexpected output: {0}")]
    Output(String),
    #[error("no primary is known")]
    NoPrimary,
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// Runs a command to its end and gives its standard output.
async fn output_of(command: &mut tokio::process::Command, limit: Duration) -> Result<String, PeerError> {
    let shown = format!("{:?}", command.as_std());
    let program = PathBuf::from(command.as_std().get_program());
    let running = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|source| PeerError::Spawn { command: program, source })?;
    let output = tokio::time::timeout(limit, running.wait_with_output())
        .await
        .map_err(|_| PeerError::TimedOut { what: shown.clone(), limit })??;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(PeerError::Failed { command: shown, status: output.status, stderr });
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Sends a signal by name, such as `KILL` or `STOP`, to a process started here.
pub(crate) async fn signal(name: &str, pid: u32) -> Result<(), PeerError> {
    const LIMIT: Duration = Duration::from_secs(5);
    output_of(tokio::process::Command::new("kill").args(["-s", name, &pid.to_string()]), LIMIT).await.map(drop)
}
