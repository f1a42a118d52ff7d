//! `understudy dev` as a child process, followed by the JSON lines it prints: which brokers run, and who is primary.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde::Deserialize;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, ChildStdout, Command};

use super::{PeerError, signal};

const READY_LIMIT: Duration = Duration::from_secs(60);
const STOP_LIMIT: Duration = Duration::from_secs(10);
const LOOK_AGAIN: Duration = Duration::from_millis(10);
const UNPOISONED: &str = "nobody panics while holding this lock";

/// Ends when dropped; [`DevCluster::stop`] lets it end in good order and removes its directory.
#[derive(Debug)]
pub struct DevCluster {
    supervisor: Child,
    dir: PathBuf,
    view: Arc<Mutex<View>>,
}

#[derive(Debug, Default)]
struct View {
    is_ready: bool,
    has_ended: bool,
    brokers: BTreeMap<String, Broker>,
    primary: Option<String>,
}

#[derive(Clone, Debug)]
struct Broker {
    pid: u32,
    /// When its start was told.
    started: Instant,
    address: String,
    /// Of its health and metrics.
    http: String,
}

/// How to run `understudy dev`.
#[derive(Clone, Debug)]
pub struct DevPlan {
    /// `understudy`, with the broker's executable beside it.
    pub binary: PathBuf,
    /// The cluster's files go into a new directory in here.
    pub parent: PathBuf,
    pub replicas: u16,
    /// Of the first broker; the others follow.
    pub amqp_port: u16,
    /// What each broker is told beside what `dev` tells it.
    pub broker_arguments: Vec<String>,
}

/// One line of `--json`. Unknown events and fields are passed over.
#[derive(Debug, Deserialize)]
#[serde(tag = "event", rename_all = "lowercase")]
enum Line {
    Ready {
        brokers: Vec<ReadyBroker>,
    },
    Started {
        name: String,
        pid: u32,
    },
    Primary {
        name: String,
    },
    #[serde(other)]
    Other,
}

#[derive(Debug, Deserialize)]
struct ReadyBroker {
    name: String,
    pid: u32,
    amqp: String,
    #[serde(default)]
    http: String,
    #[serde(default)]
    role: String,
}

impl DevCluster {
    /// Starts it and waits until it is ready.
    ///
    /// # Errors
    /// If it does not start, or is not ready within a minute.
    pub async fn start(plan: &DevPlan) -> Result<Self, PeerError> {
        let DevPlan { binary, parent, replicas, amqp_port, broker_arguments } = plan;
        let dir = parent.join(format!("understudy-bench-{:016x}", rand::random::<u64>()));
        std::fs::create_dir_all(&dir)?;
        let log = std::fs::File::create(dir.join("dev.log"))?;
        let mut supervisor = Command::new(binary)
            .arg("dev")
            .args(["--replicas", &replicas.to_string(), "--amqp-port", &amqp_port.to_string(), "--json"])
            .args(broker_arguments.iter().map(|argument| format!("--broker-arg={argument}")))
            .arg("--dir")
            .arg(dir.join("data"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .map_err(|source| PeerError::Spawn { command: binary.to_owned(), source })?;
        let view = Arc::new(Mutex::new(View::default()));
        let stdout = supervisor.stdout.take().expect("its output is piped");
        tokio::spawn(follow(stdout, view.clone()));
        let cluster = Self { supervisor, dir, view };
        cluster.await_view(READY_LIMIT, "understudy dev", |view| view.is_ready.then_some(())).await?;
        Ok(cluster)
    }

    /// AMQP addresses, in the order of the brokers' names.
    pub fn addresses(&self) -> Vec<String> {
        self.view.lock().expect(UNPOISONED).brokers.values().map(|broker| broker.address.clone()).collect()
    }

    /// The primary's name and AMQP address.
    pub fn primary(&self) -> Option<(String, String)> {
        let view = self.view.lock().expect(UNPOISONED);
        let name = view.primary.clone()?;
        let address = view.brokers.get(&name)?.address.clone();
        Some((name, address))
    }

    /// Kills a broker's process with SIGKILL and says when it was done.
    ///
    /// # Errors
    /// If the process is gone.
    pub async fn kill(&self, pid: u32) -> Result<Instant, PeerError> {
        signal("KILL", pid).await?;
        Ok(Instant::now())
    }

    /// The brokers' names, in their order.
    pub fn names(&self) -> Vec<String> {
        self.view.lock().expect(UNPOISONED).brokers.keys().cloned().collect()
    }

    /// Where a broker's health is asked, as host:port.
    pub fn http_of(&self, name: &str) -> Option<String> {
        self.view.lock().expect(UNPOISONED).brokers.get(name).map(|broker| broker.http.clone())
    }

    /// The processes by name, whenever it is called.
    pub(crate) fn processes(&self) -> impl Fn() -> Vec<(String, u32)> + Send + use<> {
        let view = self.view.clone();
        move || {
            let view = view.lock().expect(UNPOISONED);
            view.brokers.iter().map(|(name, broker)| (name.clone(), broker.pid)).collect()
        }
    }

    /// When the process that has this name now was started.
    pub fn started(&self, name: &str) -> Option<Instant> {
        self.view.lock().expect(UNPOISONED).brokers.get(name).map(|broker| broker.started)
    }

    /// The directory of a broker's log.
    pub fn data_of(&self, name: &str) -> PathBuf {
        self.dir.join("data").join(name)
    }

    /// Waits until a broker that was killed has been started again.
    ///
    /// # Errors
    /// If that takes too long.
    pub async fn await_restart(&self, name: &str, old_pid: u32) -> Result<(), PeerError> {
        let is_new = |view: &View| view.brokers.get(name).filter(|broker| broker.pid != old_pid).map(drop);
        self.await_view(READY_LIMIT, name, is_new).await
    }

    pub fn pid_of(&self, name: &str) -> Option<u32> {
        self.view.lock().expect(UNPOISONED).brokers.get(name).map(|broker| broker.pid)
    }

    /// Ends the supervisor, and with it its brokers, and removes their files.
    ///
    /// # Errors
    /// If it does not end.
    pub async fn stop(mut self) -> Result<(), PeerError> {
        if let Some(pid) = self.supervisor.id() {
            signal("TERM", pid).await?;
        }
        if tokio::time::timeout(STOP_LIMIT, self.supervisor.wait()).await.is_err() {
            self.supervisor.kill().await?;
        }
        std::fs::remove_dir_all(&self.dir)?;
        Ok(())
    }

    async fn await_view<T>(
        &self,
        limit: Duration,
        what: &str,
        wanted: impl Fn(&View) -> Option<T>,
    ) -> Result<T, PeerError> {
        let deadline = Instant::now() + limit;
        loop {
            {
                let view = self.view.lock().expect(UNPOISONED);
                if let Some(found) = wanted(&view) {
                    return Ok(found);
                }
                if view.has_ended {
                    return Err(PeerError::Ended(format!("{what} (see {})", self.dir.join("dev.log").display())));
                }
            }
            if Instant::now() >= deadline {
                return Err(PeerError::TimedOut { what: what.to_owned(), limit });
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }
}

async fn follow(stdout: ChildStdout, view: Arc<Mutex<View>>) {
    let mut lines = BufReader::new(stdout).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        if let Ok(line) = serde_json::from_str(&line) {
            view.lock().expect(UNPOISONED).take(line);
        }
    }
    view.lock().expect(UNPOISONED).has_ended = true;
}

impl View {
    fn take(&mut self, line: Line) {
        match line {
            Line::Ready { brokers } => {
                self.is_ready = true;
                for ReadyBroker { name, pid, amqp, http, role } in brokers {
                    if role.eq_ignore_ascii_case("primary") {
                        self.primary = Some(name.clone());
                    }
                    self.brokers.insert(name, Broker { pid, started: Instant::now(), address: amqp, http });
                }
            }
            Line::Started { name, pid } => {
                if let Some(broker) = self.brokers.get_mut(&name) {
                    broker.pid = pid;
                    broker.started = Instant::now();
                }
            }
            Line::Primary { name } => self.primary = Some(name),
            Line::Other => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(lines: &[&str]) -> View {
        let mut view = View::default();
        lines.iter().for_each(|line| view.take(serde_json::from_str(line).unwrap()));
        view
    }

    const READY: &str = r#"{"event":"ready","brokers":[
        {"name":"a","pid":10,"amqp":"127.0.0.1:1","http":"127.0.0.1:9","role":"backup"},
        {"name":"b","pid":11,"amqp":"127.0.0.1:2","http":"127.0.0.1:8","role":"primary"}]}"#;

    #[test]
    fn follows_restarts_and_changes_of_primary() {
        let view = view(&[
            READY,
            r#"{"event":"primary","name":"a","epoch":2,"reason":"process ended"}"#,
            r#"{"event":"started","name":"b","pid":12}"#,
            r#"{"event":"something new","name":"b"}"#,
        ]);
        assert!(view.is_ready);
        assert_eq!(view.primary.as_deref(), Some("a"));
        assert_eq!(view.brokers["b"].pid, 12);
    }

    #[test]
    fn the_primary_at_the_beginning_is_known_by_its_role() {
        assert_eq!(view(&[READY]).primary.as_deref(), Some("b"));
    }
}
