//! RabbitMQ nodes, by way of the script `rabbitmq-cluster`.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tokio::process::Command;

use super::{PeerError, output_of, signal};

/// Installing the package and three cold starts are within it.
const UP_LIMIT: Duration = Duration::from_secs(300);
const COMMAND_LIMIT: Duration = Duration::from_secs(60);

/// Runs until [`RabbitCluster::stop`], or until dropped, which then waits for its end.
#[derive(Debug)]
pub struct RabbitCluster {
    script: PathBuf,
    dir: PathBuf,
    amqp_port: u16,
    nodes: u16,
    addresses: Vec<String>,
    is_stopped: bool,
}

impl RabbitCluster {
    /// Starts up to nine nodes with their files under `dir`.
    ///
    /// # Errors
    /// If the script fails or takes more than five minutes. Nodes that started are stopped again.
    pub async fn start(script: &Path, dir: &Path, amqp_port: u16, nodes: u16) -> Result<Self, PeerError> {
        let (script, dir) = (script.to_owned(), dir.to_owned());
        let mut cluster = Self { script, dir, amqp_port, nodes, addresses: Vec::new(), is_stopped: false };
        let lines = cluster.script(&["up"], UP_LIMIT).await?;
        cluster.addresses =
            lines.lines().map(|line| node_in(line).map(|(address, _)| address)).collect::<Result<_, _>>()?;
        Ok(cluster)
    }

    pub fn addresses(&self) -> Vec<String> {
        self.addresses.clone()
    }

    /// Address and process of the node that leads a queue.
    ///
    /// # Errors
    /// If there is no such queue, or no leader.
    pub async fn leader(&self, queue: &str) -> Result<(String, u32), PeerError> {
        node_in(&self.script(&["leader", queue], COMMAND_LIMIT).await?)
    }

    /// Process of the node at one of [`Self::addresses`].
    ///
    /// # Errors
    /// If it does not run.
    pub async fn pid_at(&self, address: &str) -> Result<u32, PeerError> {
        let lines = self.script(&["status"], COMMAND_LIMIT).await?;
        let nodes = lines.lines().map(node_in).collect::<Result<Vec<_>, _>>()?;
        let found = nodes.into_iter().find(|(node, _)| node == address);
        found.map(|(_, pid)| pid).ok_or_else(|| PeerError::Ended(format!("the node at {address}")))
    }

    /// Kills a node that [`Self::leader`] or [`Self::pid_at`] named with SIGKILL and says when it was done.
    ///
    /// # Errors
    /// If the process is gone.
    pub async fn kill(&self, pid: u32) -> Result<Instant, PeerError> {
        signal("KILL", pid).await?;
        Ok(Instant::now())
    }

    /// Starts a killed node again and waits until it runs.
    ///
    /// # Errors
    /// If it does not.
    pub async fn start_again(&self, address: &str) -> Result<(), PeerError> {
        self.script(&["start", address], UP_LIMIT).await.map(drop)
    }

    /// Starts a killed node again and does not wait.
    ///
    /// # Errors
    /// If the script fails.
    pub async fn launch(&self, address: &str) -> Result<(), PeerError> {
        self.script(&["launch", address], COMMAND_LIMIT).await.map(drop)
    }

    /// # Errors
    /// If the script fails.
    pub async fn stop(mut self) -> Result<(), PeerError> {
        self.is_stopped = true;
        self.script(&["down"], COMMAND_LIMIT).await.map(drop)
    }

    async fn script(&self, arguments: &[&str], limit: Duration) -> Result<String, PeerError> {
        output_of(&mut Command::from(self.command(arguments)), limit).await
    }

    fn command(&self, arguments: &[&str]) -> std::process::Command {
        let mut command = std::process::Command::new(&self.script);
        command
            .args(arguments)
            .env("RABBITMQ_CLUSTER_DIR", &self.dir)
            .env("RABBITMQ_CLUSTER_PORT", self.amqp_port.to_string())
            .env("RABBITMQ_CLUSTER_NODES", self.nodes.to_string())
            .process_group(0); // an interrupt from the keyboard is for this process, which then calls `down`
        command
    }
}

impl Drop for RabbitCluster {
    fn drop(&mut self) {
        if !self.is_stopped {
            // Whoever drops it has no use for the outcome; the script says on standard error what went wrong.
            self.command(&["down"]).status().ok();
        }
    }
}

/// "address pid"
fn node_in(line: &str) -> Result<(String, u32), PeerError> {
    let parsed = line.trim().split_once(' ').and_then(|(address, pid)| Some((address.to_owned(), pid.parse().ok()?)));
    parsed.ok_or_else(|| PeerError::Output(line.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_scripts_lines() {
        assert_eq!(node_in("127.0.0.1:25672 812\n").unwrap(), ("127.0.0.1:25672".to_owned(), 812));
        assert!(node_in("127.0.0.1:25672 ").is_err());
        assert!(node_in("").is_err());
    }
}
