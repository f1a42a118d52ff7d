//! A client on a node of the cluster, which still reaches the broker there when the node is cut off from all others.
//!
//! It is the program `understudy-e2e-client`, run in the node's network namespace (a hermetic cluster's), and answers one
//! line of JSON to each line it is told.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use understudy_bench::Target;

use crate::faults::number_of;

/// An answer may take the client's own deadlines, which are shorter.
const ANSWERS_WITHIN: Duration = Duration::from_secs(90);

pub struct InsideClient {
    // Killed when this is dropped.
    _child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

/// What the client says of itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct InsideState {
    pub confirmed: u64,
    /// Whether a message that was sent after the mark has been confirmed.
    pub confirmed_since_mark: bool,
    pub connected: bool,
    pub reconnects: u64,
}

/// Its closing account.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct InsideAccount {
    pub confirmed: u64,
    pub lost: u64,
    pub duplicated: u64,
    pub errors: Vec<String>,
}

impl InsideClient {
    /// Begins to publish to the broker at `address`, from the node.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(program: &str, node: &str, address: &str, target: &Target, queue: &str) -> Result<Self> {
        let namespace = format!("--net=/run/netns/understudy-n{}", number_of(node)?);
        let mut child = Command::new("nsenter")
            .args([&namespace, program, "--address", address, "--queue", queue, "--user", &target.user])
            .env("AMQP_PASSWORD", &target.password)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("cannot run the client on the node")?;
        let input = child.stdin.take().context("no stdin")?;
        let output = BufReader::new(child.stdout.take().context("no stdout")?).lines();
        Ok(Self { _child: child, input, output })
    }

    /// Marks this moment as that of the failure.
    ///
    /// # Errors
    /// If the client does not answer.
    pub async fn mark(&mut self) -> Result<InsideState> {
        self.ask("mark").await
    }

    /// # Errors
    /// If the client does not answer.
    pub async fn state(&mut self) -> Result<InsideState> {
        self.ask("state").await
    }

    /// Stops publishing, consumes all that is in the queue, and gives the account.
    ///
    /// # Errors
    /// If the client does not answer.
    pub async fn finish(mut self) -> Result<InsideAccount> {
        self.ask("finish").await
    }

    async fn ask<T: for<'a> Deserialize<'a>>(&mut self, word: &str) -> Result<T> {
        self.input.write_all(format!("{word}\n").as_bytes()).await.context("the client on the node has ended")?;
        let line = tokio::time::timeout(ANSWERS_WITHIN, self.output.next_line()).await;
        let line = line.with_context(|| format!("the client on the node does not answer to {word:?}"))??;
        let line = line.context("the client on the node has ended")?;
        ensure!(line.starts_with('{'), "the client on the node says {line:?}");
        Ok(serde_json::from_str(&line)?)
    }
}
