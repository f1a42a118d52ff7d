//! What the machine can do to a cluster: kill a process, freeze a node, cut it off.
//!
//! The hermetic cluster's script ($HERMETIC, set by `hermetic exec`) does it there. On kind, the Docker engine can: a node
//! is a container, which is paused, or taken off its network.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Client;
use kube::api::{Api, ListParams, Patch, PatchParams};
use rustix::process::{Pid, Signal};
use serde_json::json;

use crate::cluster::Cluster;
use crate::report::Failure;
use crate::wait::eventually;

const NODES_READY_WITHIN: Duration = Duration::from_secs(90);
const KIND_NETWORK: &str = "kind";

enum Machine {
    Hermetic(String),
    Kind,
}

impl Machine {
    fn here() -> Self {
        std::env::var("HERMETIC").map_or(Self::Kind, Self::Hermetic)
    }
}

/// A node that does not work. Mended when dropped, so that a failing test leaves no broken cluster.
#[derive(Debug)]
pub struct Outage {
    node: String,
    undo: Option<&'static str>,
}

impl Outage {
    /// Everything on the node stands still; its kernel goes on, and acknowledges what is sent to it.
    ///
    /// # Errors
    /// If that cannot be done.
    pub fn freeze(node: &str) -> Result<Self> {
        Self::begin(node, "freeze", "thaw")
    }

    /// Nothing reaches the node and it reaches nothing; inside it everything goes on.
    ///
    /// # Errors
    /// If that cannot be done.
    pub fn cut_off(node: &str) -> Result<Self> {
        Self::begin(node, "lose", "heal")
    }

    fn begin(node: &str, what: &'static str, undo: &'static str) -> Result<Self> {
        let outage = Self { node: node.to_owned(), undo: Some(undo) };
        change_node(node, what)?;
        Ok(outage)
    }

    /// # Errors
    /// If that cannot be done.
    pub fn end(mut self) -> Result<()> {
        self.undo.take().map_or(Ok(()), |undo| change_node(&self.node, undo))
    }
}

impl Drop for Outage {
    fn drop(&mut self) {
        if let Some(undo) = self.undo.take()
            && let Err(error) = change_node(&self.node, undo)
        {
            eprintln!("{} stays broken: {error:#}", self.node);
        }
    }
}

/// A node that takes no pods, as before it is drained.
pub struct Cordon {
    client: Client,
    node: String,
}

impl Cordon {
    /// # Errors
    /// If the API server does not take it.
    pub async fn begin(client: &Client, node: &str) -> Result<Self> {
        cordon(client, node, true).await?;
        Ok(Self { client: client.clone(), node: node.to_owned() })
    }

    /// [`nodes_ready`] does it, too, before the next test.
    ///
    /// # Errors
    /// If the API server does not take it.
    pub async fn end(self) -> Result<()> {
        cordon(&self.client, &self.node, false).await
    }
}

async fn cordon(client: &Client, node: &str, unschedulable: bool) -> Result<()> {
    let patch = Patch::Merge(json!({ "spec": { "unschedulable": unschedulable } }));
    Api::<Node>::all(client.clone()).patch(node, &PatchParams::default(), &patch).await?;
    Ok(())
}

/// Two nodes, and the pods on them, do not reach each other; everybody else reaches both. Hermetic clusters only.
#[derive(Debug)]
pub struct Parting(Option<(String, String)>);

impl Parting {
    /// # Errors
    /// If that cannot be done.
    pub fn begin(node: &str, other: &str) -> Result<Self> {
        let numbers = (number_of(node)?.to_owned(), number_of(other)?.to_owned());
        run(&hermetic()?, &["part", &numbers.0, &numbers.1])?;
        Ok(Self(Some(numbers)))
    }

    /// # Errors
    /// If that cannot be done.
    pub fn end(mut self) -> Result<()> {
        self.undo()
    }

    fn undo(&mut self) -> Result<()> {
        let Some((node, other)) = self.0.take() else { return Ok(()) };
        run(&hermetic()?, &["join", &node, &other]).map(drop)
    }
}

impl Drop for Parting {
    fn drop(&mut self) {
        if let Err(error) = self.undo() {
            eprintln!("two nodes stay parted: {error:#}");
        }
    }
}

/// The API server is down, or hangs. Hermetic clusters only.
#[derive(Debug)]
pub struct ApiOutage {
    /// What ends it, until it has been ended.
    undo: Option<&'static str>,
}

impl ApiOutage {
    /// Connections are refused.
    ///
    /// # Errors
    /// If that cannot be done.
    pub fn begin() -> Result<Self> {
        run(&hermetic()?, &["stop", "apiserver"])?;
        Ok(Self { undo: Some("start") })
    }

    /// Connections are taken, and nothing is answered.
    ///
    /// # Errors
    /// If that cannot be done.
    pub fn freeze() -> Result<Self> {
        run(&hermetic()?, &["halt", "apiserver"])?;
        Ok(Self { undo: Some("resume") })
    }

    /// Returns once the API server is ready.
    ///
    /// # Errors
    /// If it does not come back.
    pub fn end(mut self) -> Result<()> {
        self.undo()
    }

    fn undo(&mut self) -> Result<()> {
        let Some(undo) = self.undo.take() else { return Ok(()) };
        run(&hermetic()?, &[undo, "apiserver"]).map(drop)
    }
}

impl Drop for ApiOutage {
    fn drop(&mut self) {
        if let Err(error) = self.undo() {
            eprintln!("the API server stays down: {error:#}");
        }
    }
}

fn hermetic() -> Result<String> {
    match Machine::here() {
        Machine::Hermetic(script) => Ok(script),
        Machine::Kind => bail!("only a hermetic cluster can do this (UNDERSTUDY_CLUSTER=hermetic)"),
    }
}

/// Where the API server says who wrote what, if it does.
pub(crate) fn audit_log() -> Result<Option<PathBuf>> {
    match Machine::here() {
        Machine::Hermetic(script) => Ok(Some(PathBuf::from(run(&script, &["audit"])?.trim()))),
        Machine::Kind => Ok(None),
    }
}

fn change_node(node: &str, what: &str) -> Result<()> {
    match Machine::here() {
        Machine::Hermetic(script) => run(&script, &[what, number_of(node)?]).map(drop),
        Machine::Kind => match what {
            "freeze" => run("docker", &["pause", node]),
            "thaw" => run("docker", &["unpause", node]),
            "lose" => run("docker", &["network", "disconnect", KIND_NETWORK, node]),
            _ => run("docker", &["network", "connect", KIND_NETWORK, node]),
        }
        .map(drop),
    }
}

pub(crate) fn number_of(node: &str) -> Result<&str> {
    node.strip_prefix("node").with_context(|| format!("{node:?} is no node of a hermetic cluster"))
}

/// All nodes of a hermetic cluster go on and are connected, whatever a test before this one left.
pub fn restore_nodes() {
    let Machine::Hermetic(script) = Machine::here() else { return };
    for number in ["1", "2", "3"] {
        for undo in ["thaw", "heal"] {
            if let Err(error) = run(&script, &[undo, number]) {
                eprintln!("node{number}: {error:#}");
            }
        }
    }
}

pub(crate) async fn nodes_ready(client: &Client) -> Result<()> {
    let nodes: Api<Node> = Api::all(client.clone());
    for node in nodes.list(&ListParams::default()).await? {
        if node.spec.is_some_and(|spec| spec.unschedulable == Some(true)) {
            cordon(client, &node.metadata.name.unwrap_or_default(), false).await?;
        }
    }
    eventually("every node to be Ready", NODES_READY_WITHIN, async || {
        for node in nodes.list(&ListParams::default()).await? {
            let name = node.metadata.name.unwrap_or_default();
            let conditions = node.status.and_then(|status| status.conditions).unwrap_or_default();
            let ready = conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True");
            let tainted = node
                .spec
                .and_then(|spec| spec.taints)
                .is_some_and(|taints| taints.iter().any(|taint| taint.key.starts_with("node.kubernetes.io/")));
            ensure!(ready && !tainted, "{name} is not");
        }
        Ok(())
    })
    .await
}

/// The node that a pod is on.
///
/// # Errors
/// If the pod cannot be read, or is not scheduled.
pub async fn node_of(cluster: &Cluster, pod: &str) -> Result<String> {
    let pod: Pod = cluster.read(pod).await?;
    pod.spec.and_then(|spec| spec.node_name).context("the pod is not on a node")
}

/// `kill -9` of the broker in each of the pods, all found first and then killed together.
///
/// # Errors
/// If a process is not found.
pub async fn kill_process(cluster: &Cluster, pods: &[String]) -> Result<Failure> {
    match Machine::here() {
        Machine::Hermetic(script) => {
            let mut pids = Vec::new();
            for pod in pods {
                pids.push(broker_pid(&script, cluster, pod)?);
            }
            Failure::make(|| pids.into_iter().try_for_each(kill_process_now))
        }
        Machine::Kind => {
            for pod in pods {
                let (node, id) = container_of(cluster, pod).await?;
                let inner =
                    format!("kill -9 $(crictl inspect --output go-template --template '{{{{.info.pid}}}}' {id})");
                run("docker", &["exec", &node, "sh", "-c", &inner])?;
            }
            Ok(Failure::now())
        }
    }
}

/// The broker's process in a pod stands still (SIGSTOP); its pod, and its node, do not know. Goes on when dropped.
#[derive(Debug)]
pub struct StoppedProcess {
    /// Until it goes on.
    place: Option<ProcessPlace>,
}

/// Where a process is signalled.
#[derive(Debug)]
enum ProcessPlace {
    Here(Pid),
    /// On this node of kind, as the node numbers it.
    OnNode(String, String),
}

impl StoppedProcess {
    /// # Errors
    /// If the process is not found.
    pub async fn begin(cluster: &Cluster, pod: &str) -> Result<(Self, Failure)> {
        let place = match Machine::here() {
            Machine::Hermetic(script) => ProcessPlace::Here(broker_pid(&script, cluster, pod)?),
            Machine::Kind => {
                let (node, id) = container_of(cluster, pod).await?;
                let format = "go-template";
                let inspect =
                    ["exec", &node, "crictl", "inspect", "--output", format, "--template", "{{.info.pid}}", &id];
                ProcessPlace::OnNode(node.clone(), run("docker", &inspect)?.trim().to_owned())
            }
        };
        let failure = Failure::make(|| place.signal(Signal::STOP, "-STOP"))?;
        Ok((Self { place: Some(place) }, failure))
    }

    /// # Errors
    /// If the process is gone.
    pub fn end(mut self) -> Result<()> {
        self.undo()
    }

    fn undo(&mut self) -> Result<()> {
        self.place.take().map_or(Ok(()), |place| place.signal(Signal::CONT, "-CONT"))
    }
}

impl ProcessPlace {
    fn signal(&self, signal: Signal, word: &str) -> Result<()> {
        match self {
            Self::Here(pid) => rustix::process::kill_process(*pid, signal)
                .with_context(|| format!("kill {word} {}", pid.as_raw_nonzero())),
            Self::OnNode(node, pid) => run("docker", &["exec", node, "kill", word, pid]).map(drop),
        }
    }
}

impl Drop for StoppedProcess {
    fn drop(&mut self) {
        _ = self.undo(); // a process that is gone needs no more
    }
}

fn broker_pid(script: &str, cluster: &Cluster, pod: &str) -> Result<Pid> {
    let text = run(script, &["pid", &cluster.namespace, pod, "broker"])?;
    let pid = text.trim().parse().ok().and_then(Pid::from_raw);
    pid.with_context(|| format!("{text:?} is no process"))
}

/// A pod's node and container, on kind.
async fn container_of(cluster: &Cluster, pod: &str) -> Result<(String, String)> {
    let object: Pod = cluster.read(pod).await?;
    let node = object.spec.and_then(|spec| spec.node_name).context("the pod is not on a node")?;
    let statuses = object.status.and_then(|status| status.container_statuses).unwrap_or_default();
    let id = statuses.into_iter().find_map(|status| status.container_id).context("no container runs")?;
    Ok((node, id.trim_start_matches("containerd://").to_owned()))
}

/// Kubernetes has not noticed that a node is lost, though we have: the node is Ready as far as its API says.
///
/// # Errors
/// If it has, or the node cannot be read.
pub async fn ensure_node_counts_as_ready(client: &Client, node: &str) -> Result<()> {
    let object = Api::<Node>::all(client.clone()).get(node).await?;
    let conditions = object.status.and_then(|status| status.conditions).unwrap_or_default();
    let ready = conditions.into_iter().find(|condition| condition.type_ == "Ready").context("no condition Ready")?;
    ensure!(ready.status == "True", "{node} is Ready={} since {:?}", ready.status, ready.last_transition_time);
    Ok(())
}

fn kill_process_now(pid: Pid) -> Result<()> {
    rustix::process::kill_process(pid, Signal::KILL).with_context(|| format!("kill -9 {}", pid.as_raw_nonzero()))
}

fn run(program: &str, arguments: &[&str]) -> Result<String> {
    let output = Command::new(program).args(arguments).output().with_context(|| format!("cannot run {program}"))?;
    if !output.status.success() {
        bail!("{program} {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8(output.stdout)?)
}
