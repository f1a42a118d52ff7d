//! The operator as a process of the test's own, which ends right after each write to the API server and is started anew at once:
//! whatever it does it has to carry through by lives of one write.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use kube::Client;
use kube::api::Api;
use kube::config::Kubeconfig;
use rustix::process::{Pid, Signal};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::dump;
use crate::identity::{Account, token};
use crate::operator::{DEPLOYMENT, NAMESPACE};

/// The operator's executable; `e2e/run` sets it.
const PROGRAM_VARIABLE: &str = "UNDERSTUDY_OPERATOR";
/// What the operator says, and exits with, after its last write.
const LAST_WORD: &str = "the last write of this process";
const EXIT_STATUS: i32 = 86;
/// To hand the operators' Lease back.
const LEAVES_WITHIN: Duration = Duration::from_secs(10);

/// For one namespace, with the rights of the operator's ServiceAccount. The deployed operator has to be away.
pub struct Lives {
    end: watch::Sender<bool>,
    task: JoinHandle<Result<()>>,
    /// The write that ended each life.
    writes: Arc<Mutex<Vec<String>>>,
}

impl Lives {
    /// # Errors
    /// If there is no executable, or no token for it.
    pub async fn begin(client: &Client, namespace: &str) -> Result<Self> {
        let program = std::env::var_os(PROGRAM_VARIABLE).map(PathBuf::from);
        let program = program.with_context(|| format!("{PROGRAM_VARIABLE} names no executable"))?;
        let account = Account::operator();
        let kubeconfig = Scratch::new(namespace, &kubeconfig(&token(client, &account).await?)?)?;
        let (image, namespace) = (broker_image(client).await?, namespace.to_owned());
        let log = dump::folder().join(format!("{namespace}-lives.log"));
        let spawn = move || {
            let mut command = Command::new(&program);
            command.env("KUBECONFIG", &kubeconfig.0).env("UNDERSTUDY_STOP_AFTER_WRITES", "1");
            command.env("POD_NAME", "lives").env("POD_NAMESPACE", NAMESPACE).env("UNDERSTUDY_NAMESPACE", &namespace);
            command.env("UNDERSTUDY_BROKER_IMAGE", &image).env("UNDERSTUDY_HTTP_LISTEN", "127.0.0.1:0");
            command.stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
            command.spawn().with_context(|| format!("cannot run {}", program.display()))
        };
        let (end, ended) = watch::channel(false);
        let writes: Arc<Mutex<Vec<String>>> = Arc::default();
        let task = tokio::spawn(live(spawn, log, writes.clone(), ended));
        Ok(Self { end, task, writes })
    }

    /// Carries a procedure through, and prints how many lives that took, and what they wrote.
    ///
    /// # Errors
    /// Those of the procedure, or if the operator ends by itself.
    pub async fn through<T>(&mut self, what: &str, procedure: impl Future<Output = Result<T>>) -> Result<T> {
        let before = self.writes.lock().unwrap_or_else(PoisonError::into_inner).len();
        let done = tokio::select! {
            done = procedure => done,
            ended = &mut self.task => match ended? {
                Ok(()) => bail!("the operator was ended"),
                Err(error) => Err(error),
            },
        };
        let writes = self.writes.lock().unwrap_or_else(PoisonError::into_inner)[before..].to_vec();
        let mut table: BTreeMap<&String, usize> = BTreeMap::new();
        writes.iter().for_each(|write| *table.entry(write).or_default() += 1);
        println!("{what}: {} lives of one write", writes.len());
        table.iter().for_each(|(write, lives)| println!("  {lives:>4} {write}"));
        done.with_context(|| format!("{what}, after {} lives", writes.len()))
    }

    /// The last life ends in good order.
    ///
    /// # Errors
    /// If an operator has ended by itself.
    pub async fn end(self) -> Result<()> {
        self.end.send_replace(true);
        self.task.await?
    }
}

async fn live(
    spawn: impl Fn() -> Result<Child>,
    log: PathBuf,
    writes: Arc<Mutex<Vec<String>>>,
    mut ended: watch::Receiver<bool>,
) -> Result<()> {
    let mut log = OpenOptions::new().append(true).create(true).open(&log).with_context(|| log.display().to_string())?;
    loop {
        let mut child = spawn()?;
        let mut lines = BufReader::new(child.stdout.take().context("no stdout")?).lines();
        let mut last = None;
        loop {
            let line = tokio::select! {
                line = lines.next_line() => line?,
                _ = ended.changed() => return leave(child).await,
            };
            let Some(line) = line else { break };
            writeln!(log, "{line}")?;
            if line.contains(LAST_WORD) {
                last = serde_json::from_str::<serde_json::Value>(&line)?["fields"]["write"].as_str().map(str::to_owned);
            }
        }
        let status = child.wait().await?;
        ensure!(status.code() == Some(EXIT_STATUS), "the operator ended by itself: {status}");
        let write = last.context("the operator did not say what it wrote last")?;
        writes.lock().unwrap_or_else(PoisonError::into_inner).push(write);
    }
}

async fn leave(mut child: Child) -> Result<()> {
    let pid = child.id().and_then(|pid| Pid::from_raw(pid.cast_signed()));
    if let Some(pid) = pid {
        rustix::process::kill_process(pid, Signal::TERM)?;
    }
    let status = tokio::time::timeout(LEAVES_WITHIN, child.wait()).await.context("the operator does not end")??;
    ensure!(status.success() || status.code() == Some(EXIT_STATUS), "the operator's end: {status}");
    Ok(())
}

/// As the Deployment has it.
async fn broker_image(client: &Client) -> Result<String> {
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), NAMESPACE);
    let spec = deployments.get(DEPLOYMENT).await?.spec.and_then(|spec| spec.template.spec).context("no template")?;
    let variables = spec.containers.into_iter().flat_map(|container| container.env.unwrap_or_default());
    let image = variables.into_iter().find(|variable| variable.name == "UNDERSTUDY_BROKER_IMAGE");
    image.and_then(|variable| variable.value).context("the Deployment names no image of brokers")
}

/// This process's way to the API server, with a token instead of its own rights.
fn kubeconfig(token: &str) -> Result<String> {
    let mut config = serde_json::to_value(Kubeconfig::read()?)?;
    for user in config["users"].as_array_mut().context("the kubeconfig has no users")? {
        user["user"] = serde_json::json!({ "token": token });
    }
    Ok(config.to_string())
}

/// A file that goes when this is dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str, text: &str) -> Result<Self> {
        use std::os::unix::fs::OpenOptionsExt as _;
        let path = std::env::temp_dir().join(format!("{name}-{}.kubeconfig", std::process::id()));
        let file = Self(path);
        let mut open = OpenOptions::new();
        open.write(true).create(true).truncate(true).mode(0o600);
        open.open(&file.0)?.write_all(text.as_bytes())?;
        Ok(file)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _: std::io::Result<()> = std::fs::remove_file(Path::new(&self.0));
    }
}
